//! `xds_interop_server`: backend of the xDS cases, with the flags, services and behaviours of gRPC's own
//! servers.
//!
//! It serves `grpc.testing.TestService`, load reports, and health, hook and admin services (CSDS, channelz)
//! on one port. It prints `listening on PORT` once it is bound, and exits within a second of SIGTERM, even
//! with active calls. `--secure_mode` is rejected: it requires a server configured by xDS (A36), which
//! evenkeel is not.

mod behavior;
mod health;
mod hook;
mod listen;
mod load;
mod test_service;
mod update_health;

use std::fs;
use std::io::{self, Write as _};
use std::process::{Command, ExitCode};
use std::time::Duration;

use evenkeel::csds::Csds;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

use self::health::Serving;
use self::hook::{HookServer, Hooks};
use self::listen::{Addresses, listen};
use self::load::{Fixed, Load, Reports};
use self::test_service::{Host, TestServiceState};
use self::update_health::Updating;
use crate::channelz::Channelz;
use crate::flags::{FlagError, Flags};
use crate::proto::health::health_server::HealthServer;
use crate::proto::testing::hook_service_server::HookServiceServer;
use crate::proto::testing::test_service_server::TestServiceServer;
use crate::proto::testing::xds_update_health_service_server::XdsUpdateHealthServiceServer;

/// Maximum time for active calls after SIGTERM; some never end.
const GRACE: Duration = Duration::from_millis(500);

/// Exit code for invalid flags.
const USAGE: u8 = 2;

/// Runs the program: parses its flags and serves until a signal.
pub async fn run(args: impl IntoIterator<Item = String>) -> ExitCode {
    let mut flags = Flags::of(args);
    let settings = Settings::read(&mut flags);
    flags.warn_of_unknown();
    let settings = match settings {
        Ok(settings) => settings,
        Err(problem) => {
            eprintln!("error: {problem}");
            return ExitCode::from(USAGE);
        }
    };
    match serve(settings).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Settings {
    port: u16,
    addresses: Addresses,
    server_id: String,
    host: Host,
    fixed: Fixed,
    tls: Option<ServerTlsConfig>,
}

impl Settings {
    /// Reads all flags before it rejects any, so that none of them counts as unknown.
    fn read(flags: &mut Flags) -> Result<Settings, String> {
        let told = |error: FlagError| error.to_string();
        let port = flags.number("port", 8080);
        // Without secure mode all services share one port, as in other servers.
        let maintenance_port = flags.number("maintenance_port", 8081_u16);
        let addresses = flags.read("address_type", "", Addresses::read);
        let server_id = flags.text("server_id", "evenkeel");
        let host = flags.text("host_name_override", "");
        let is_secure = flags.yes("secure_mode");
        let utilization = flags.read_if_there("load_utilization", amount);
        let qps = flags.read_if_there("load_qps", amount);
        let reports = flags.read("load_reports", "all", Reports::named);
        let tls = tls(flags);
        maintenance_port.map_err(told)?;
        if is_secure.map_err(told)? {
            return Err(
                "flag --secure_mode: evenkeel has no server that xDS configures (A36); name files with \
                        --tls_certificate_file and --tls_private_key_file, or use another server, such as grpc-go's"
                    .to_owned(),
            );
        }
        Ok(Settings {
            port: port.map_err(told)?,
            addresses: addresses.map_err(told)?,
            server_id: server_id.map_err(told)?,
            host: find_host(host.map_err(told)?)?,
            fixed: Fixed {
                utilization: utilization.map_err(told)?,
                qps: qps.map_err(told)?,
                reports: reports.map_err(told)?,
            },
            tls: tls?,
        })
    }
}

/// Returns the TLS config, if its files are set.
fn tls(flags: &mut Flags) -> Result<Option<ServerTlsConfig>, String> {
    let mut named = |name| match flags.text(name, "").map_err(|error| error.to_string())? {
        file if file.is_empty() => Ok(None),
        file => fs::read(&file).map(Some).map_err(|error| format!("flag --{name}: {file:?}: {error}")),
    };
    let files =
        (named("tls_certificate_file")?, named("tls_private_key_file")?, named("tls_client_ca_file")?);
    match files {
        (None, None, None) => Ok(None),
        (Some(certificate), Some(key), authority) => {
            let config = ServerTlsConfig::new().identity(Identity::from_pem(certificate, key));
            Ok(Some(match authority {
                Some(pem) => config.client_ca_root(Certificate::from_pem(pem)),
                None => config,
            }))
        }
        _ => Err("flags --tls_certificate_file and --tls_private_key_file: expected both, found one or none"
            .to_owned()),
    }
}

/// Parses a utilization or a rate.
fn amount(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "a number from 0 on".to_owned())
}

/// Returns this name, or the machine's if it is empty.
fn find_host(name: String) -> Result<Host, String> {
    let name = if name.is_empty() { machine_name() } else { Some(name) };
    let name = name.ok_or("the machine's host name is unknown; set one with --host_name_override")?;
    let problem =
        format!("host name {name:?}: expected a valid header value; set one with --host_name_override");
    Host::new(name).ok_or(problem)
}

/// Returns the host name, from the kernel's file or from the command.
fn machine_name() -> Option<String> {
    let said = fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| {
        Command::new("hostname").output().map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    });
    said.ok().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty())
}

async fn serve(settings: Settings) -> Result<(), Box<dyn std::error::Error>> {
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let problem = |error| format!("cannot listen on port {}: {error}", settings.port);
    let (incoming, address) = listen(settings.port, settings.addresses).map_err(problem)?;
    let channelz = Channelz::new();
    let sockets = channelz.add_server(address);
    let incoming = incoming.map(move |stream| stream.map(|stream| sockets.taken(stream)));
    let load = Load::new(settings.fixed);
    let serving = Serving::default();
    let updating = Updating { serving: serving.clone(), hook_server: HookServer::default() };
    let answering =
        TestServiceState { server_id: settings.server_id, host: settings.host, load: load.clone() };
    let (stop, stopped) = oneshot::channel::<()>();
    let mut builder = Server::builder();
    if let Some(tls) = settings.tls {
        builder = builder.tls_config(tls)?;
    }
    let server = builder
        // Cases keep a thousand calls open on one connection, and other servers have no limit here.
        .max_concurrent_streams(u32::MAX)
        .layer(load.layer())
        .add_service(TestServiceServer::new(answering))
        .add_service(load.service())
        .add_service(HealthServer::new(serving))
        .add_service(XdsUpdateHealthServiceServer::new(updating))
        .add_service(HookServiceServer::new(Hooks::default()))
        .add_service(Csds::new())
        .add_service(channelz.service())
        .serve_with_incoming_shutdown(incoming, async {
            let _ = stopped.await;
        });
    tokio::pin!(server);
    writeln!(io::stdout(), "listening on {}", address.port()).and_then(|()| io::stdout().flush())?;
    tokio::select! {
        end = &mut server => return Ok(end?),
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
    let _ = stop.send(());
    // Calls that have not ended by then end with the process.
    if let Ok(end) = timeout(GRACE, server).await {
        end?;
    }
    Ok(())
}
