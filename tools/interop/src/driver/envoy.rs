//! Envoy, configured by one of the templates in `tools/interop/peers/envoy`.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::process::Process;
use super::{Failure, LOOK_EVERY, PATIENCE, Program, Result};
use crate::peers;

/// Running Envoy with one listener.
pub(super) struct Envoy {
    /// Process that is killed on drop.
    _process: Process,
    /// Holds its files while it runs.
    _folder: TempDir,
    port: u16,
}

impl Envoy {
    /// Starts Envoy with these values for the template's placeholders, and waits for its listener.
    pub(super) async fn start(program: &Program, template: &str, values: &[(&str, String)]) -> Result<Envoy> {
        let failed = |what: &str, error: std::io::Error| Failure::new(format!("Envoy: {what}: {error}"));
        let file = peers::peers_folder().join("envoy").join(template);
        let mut config = fs::read_to_string(&file).map_err(|error| failed(template, error))?;
        let ports = [("ADMIN_PORT", "0".to_owned()), ("LISTEN_PORT", "0".to_owned())];
        for (name, value) in ports.iter().chain(values) {
            config = config.replace(name, value);
        }
        let folder = tempfile::tempdir().map_err(|error| failed("a folder for its files", error))?;
        let (config_file, admin_file) = (folder.path().join("envoy.yaml"), folder.path().join("admin"));
        fs::write(&config_file, config).map_err(|error| failed("its configuration", error))?;
        let (config, admin) = (config_file.display().to_string(), admin_file.display().to_string());
        let flags = ["--config-path", &config, "--admin-address-path", &admin, "--log-level", "warning"];
        // Several instances run concurrently, each for few calls.
        let flags =
            flags.into_iter().chain(["--use-dynamic-base-id", "--concurrency", "1"]).map(str::to_owned);
        let mut process = Process::start(program, &flags.collect::<Vec<_>>(), &[])?;
        let port = find_port(&mut process, &admin_file).await?;
        Ok(Envoy { _process: process, _folder: folder, port })
    }

    /// Returns the port of its listener.
    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

/// Waits for the port of its only listener.
async fn find_port(process: &mut Process, admin_file: &Path) -> Result<u16> {
    let end = Instant::now() + PATIENCE;
    loop {
        let admin = fs::read_to_string(admin_file).ok().and_then(|text| text.trim().parse().ok());
        if let Some(admin) = admin
            && let Some(port) = listener_port(admin).await
        {
            return Ok(port);
        }
        if !process.runs() {
            return Err(process.failure("has ended"));
        }
        if Instant::now() > end {
            return Err(process.failure("opened no listener"));
        }
        sleep(LOOK_EVERY).await;
    }
}

async fn listener_port(admin: SocketAddr) -> Option<u16> {
    let mut stream = TcpStream::connect(admin).await.ok()?;
    let request = b"GET /listeners?format=json HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    // The response is one small chunk: the JSON is between the first and the last brace.
    let body = answer.get(answer.find('{')?..=answer.rfind('}')?)?;
    let listeners: Value = serde_json::from_str(body).ok()?;
    let port = listeners.pointer("/listener_statuses/0/local_address/socket_address/port_value")?.as_u64()?;
    u16::try_from(port).ok().filter(|port| *port != 0)
}
