//! `evenkeel serve`: a standalone control plane for a mesh file.
//!
//! It prints connection instructions for clients, then one line per event: an edit of the file, a client that
//! connects, disconnects, ACKs or NACKs. It ends on a signal, or when its output is closed.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_control::{
    ClientEvent, ClientEventKind, ControlPlane, Mesh, MeshErrors, MeshFileChange, POLL_INTERVAL, ServerTls,
    ServerTlsError,
};
use evenkeel_xds::resource::ResourceType;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;

use crate::ends::ShutdownSignals;
use crate::explain::known::LocalResources;
use crate::ui::{self, CliError, CliExit, TerminalOutput, TextStyle};
use crate::validate::mesh_summary;

/// Serve a mesh file to xDS clients.
///
/// Any xDS client may connect: gRPC of any language, or Envoy for clusters and endpoints. A valid edit of the file is
/// served at once. An invalid edit is reported and not served. By default only this machine can connect, in plaintext. For
/// other machines, set --listen, --advertise, and --tls-cert with --tls-key. With --client-ca, clients need a certificate.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// Path of the mesh file.
    mesh: PathBuf,
    /// Address to listen on. Port 0 selects a free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:18000")]
    listen: SocketAddr,
    /// Address in the printed bootstrap, if clients do not reach the one in --listen.
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    advertise: Option<String>,
    /// Certificate chain of the port, in PEM. Rotated files apply without a restart.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// CA certificates, in PEM. Clients must present a certificate that one of them issued (mTLS).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    client_ca: Option<PathBuf>,
    /// Path of the CA file on clients, for the printed bootstrap. Without it, clients use the CAs of their system.
    #[arg(long, value_name = "PATH", requires = "tls_cert")]
    bootstrap_ca: Option<String>,
    /// Node id in the printed bootstrap.
    #[arg(long, value_name = "ID", default_value = "evenkeel")]
    node: String,
    /// Write the bootstrap to this file.
    #[arg(long, value_name = "PATH")]
    bootstrap_file: Option<PathBuf>,
    /// Print one JSON object per line instead of text.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  evenkeel serve mesh.yaml
  evenkeel serve mesh.yaml --bootstrap-file bootstrap.json
  evenkeel serve mesh.yaml --listen 0.0.0.0:18000 --advertise mesh.example:18000
  evenkeel serve mesh.yaml --tls-cert tls.crt --tls-key tls.key --client-ca clients.crt
  evenkeel serve mesh.yaml --json | jq 'select(.event == \"rejected\")'

Exit codes: 0 ended by a signal, 2 the mesh, a certificate or the arguments are invalid";

pub(crate) async fn run(args: ServeArgs, terminal: &TerminalOutput) -> Result<CliExit, CliError> {
    // Register the handlers before any output: a reader of that output may send a signal at once.
    let mut signals = ShutdownSignals::new()?;
    let mut builder = ControlPlane::builder().listen(args.listen);
    if let Some(advertise) = &args.advertise {
        builder = builder.advertise(advertise);
    }
    let (reload, mut reloads) = mpsc::unbounded_channel();
    if let Some(tls) = tls(&args)? {
        builder = builder.tls(tls.on_reload(move |result| {
            // The receiver is gone when the command ends.
            let _ = reload.send(result.map_err(ToString::to_string));
        }));
    }
    let control = builder.serve().await.map_err(|error| {
        CliError::usage(format!("{}: cannot listen: {error}; set another one with --listen", args.listen))
    })?;
    let mut events = control.events();
    let (edits, mut edited) = mpsc::unbounded_channel();
    let on_change = move |change: MeshFileChange<'_>| {
        // The receiver is gone when the command ends.
        let _ = edits.send(FileLine::of(change));
    };
    let mesh_watch = control.watch_file(&args.mesh, POLL_INTERVAL, on_change).await;
    let _mesh_watch = mesh_watch.map_err(|errors| CliError::usage(errors.to_string()))?;

    let log = ServeLog { args: &args, terminal };
    log.begin(&control)?;
    loop {
        tokio::select! {
            event = events.recv() => match event {
                Ok(event) => log.event(&event)?,
                Err(RecvError::Lagged(count)) => log.missed(count)?,
                Err(RecvError::Closed) => break,
            },
            Some(line) = edited.recv() => log.file(&line)?,
            Some(result) = reloads.recv() => log.certificates(&result)?,
            () = signals.wait() => break,
        }
    }
    log.end()?;
    Ok(CliExit::Success)
}

/// Reads the TLS files of the arguments, if there are any.
fn tls(args: &ServeArgs) -> Result<Option<ServerTls>, CliError> {
    let Some((certificate, key)) = args.tls_cert.as_ref().zip(args.tls_key.as_ref()) else { return Ok(None) };
    let usage = |error: ServerTlsError| CliError::usage(error.to_string());
    let mut tls = ServerTls::load(certificate, key).map_err(usage)?;
    if let Some(file) = &args.client_ca {
        tls = tls.client_ca(file).map_err(usage)?;
    }
    if let Some(path) = &args.bootstrap_ca {
        tls = tls.bootstrap_ca(path);
    }
    Ok(Some(tls))
}

/// Change of the mesh file, as it is printed.
enum FileLine {
    Served { event: &'static str, text: &'static str, summary: String },
    Failed { event: &'static str, text: &'static str, errors: MeshErrors },
}

impl FileLine {
    fn of(change: MeshFileChange<'_>) -> FileLine {
        let summary = |mesh: &Mesh| mesh_summary(&LocalResources::parse(mesh.resources().iter()));
        match change {
            MeshFileChange::Served(mesh) => {
                FileLine::Served { event: "reloaded", text: "read again", summary: summary(mesh) }
            }
            MeshFileChange::Resolved(mesh) => {
                FileLine::Served { event: "resolved", text: "host names resolved", summary: summary(mesh) }
            }
            MeshFileChange::Unresolved(errors) => FileLine::Failed {
                event: "unresolved",
                text: "host names are looked up again every 5 s; their last addresses, if any, are still served",
                errors: errors.clone(),
            },
            MeshFileChange::Rejected(errors) => FileLine::Failed {
                event: "bad_edit",
                text: "the edit is rejected; the previous version is still served",
                errors: errors.clone(),
            },
        }
    }
}

/// Output as text or as JSON lines.
struct ServeLog<'a> {
    args: &'a ServeArgs,
    terminal: &'a TerminalOutput,
}

impl ServeLog<'_> {
    fn begin(&self, control: &ControlPlane) -> Result<(), CliError> {
        let text = control.bootstrap(&self.args.node);
        let bootstrap: Value = serde_json::from_str(&text)
            .map_err(|error| CliError::usage(format!("the bootstrap is not valid JSON: {error}")))?;
        if let Some(file) = &self.args.bootstrap_file {
            std::fs::write(file, format!("{text}\n")).map_err(|error| {
                CliError::usage(format!("{}: cannot be written: {error}", file.display()))
            })?;
        }
        let resources = control.resources();
        let known = LocalResources::parse(resources.iter());
        let names =
            known.iter().filter(|(kind, ..)| *kind == ResourceType::Listener).map(|(_, name, _)| name);
        let targets: Vec<_> = names.map(|name| format!("xds:///{name}")).collect();
        let (address, mesh) = (control.address(), self.args.mesh.display().to_string());
        if self.args.json {
            return self.json(json!({
                "event": "serving",
                "mesh": mesh,
                "address": address,
                "targets": targets,
                "bootstrap": bootstrap,
            }));
        }
        let title = ui::safe(&format!("Serving {mesh} on {address}: {}.", mesh_summary(&known)));
        let export = match &self.args.bootstrap_file {
            Some(file) => format!("export GRPC_XDS_BOOTSTRAP={}", quoted(&absolute(file))),
            None => format!(
                "export GRPC_XDS_BOOTSTRAP_CONFIG={}",
                quoted(&ui::json_escaped(&bootstrap.to_string()))
            ),
        };
        let warnings = self.warnings(address);
        self.terminal.print(format_args!(
            "{}\n{warnings}Targets: {}\n\nFor clients:\n  {export}\n\n{}\n",
            self.terminal.paint(TextStyle::Title, title),
            ui::safe(&targets.join(", ")),
            self.terminal
                .paint(TextStyle::Faint, "Edits of the file are served as they are saved. Ctrl-C ends it."),
        ))
    }

    /// Returns the lines that warn about the address and its security.
    fn warnings(&self, address: SocketAddr) -> String {
        let args = self.args;
        let mut lines = Vec::new();
        if !address.ip().is_loopback() {
            match (&args.tls_cert, &args.client_ca) {
                (None, _) => lines
                    .push("Any client that reaches this address can read the mesh; nothing is encrypted."),
                (Some(_), None) => lines.push(
                    "Any client that reaches this address can read the mesh; --client-ca requires certificates.",
                ),
                (Some(_), Some(_)) => {}
            }
            if address.ip().is_unspecified() && args.advertise.is_none() {
                lines.push(
                    "The bootstrap has the loopback address; set --advertise for clients on other machines.",
                );
            }
        }
        if args.client_ca.is_some() {
            lines.push(
                "Clients must add certificate_file and private_key_file to the config of channel_creds.",
            );
        }
        lines.iter().fold(String::new(), |text, line| {
            text + &self.terminal.paint(TextStyle::Warn, line).to_string() + "\n"
        })
    }

    /// Prints the result of a reload of the TLS files.
    fn certificates(&self, result: &Result<(), String>) -> Result<(), CliError> {
        match result {
            Ok(()) if self.args.json => self.json(json!({ "event": "certificates_reloaded" })),
            Ok(()) => self.line(self.terminal.paint(TextStyle::Good, "TLS certificates read again")),
            Err(error) if self.args.json => self.json(json!({ "event": "bad_certificates", "error": error })),
            Err(error) => {
                self.line(self.terminal.paint(TextStyle::Bad, ui::safe(error)))?;
                self.line("the previous TLS certificates stay in use")
            }
        }
    }

    fn event(&self, event: &ClientEvent) -> Result<(), CliError> {
        let ClientEvent { node_id, kind, .. } = event;
        match kind {
            ClientEventKind::Connected { user_agent, peer, .. } => {
                let place = peer.map(|peer| format!(" from {peer}")).unwrap_or_default();
                let text = format!("connected{place}: node {node_id:?}, {}", ui::safe(user_agent));
                let json = json!({ "event": "connected", "peer": peer, "user_agent": user_agent });
                self.client(event, TextStyle::Good, &text, json)
            }
            ClientEventKind::Acked { type_url, version } => {
                let kind = plural(type_url);
                let json = json!({ "event": "accepted", "type": type_url, "version": version });
                self.client(event, TextStyle::Good, &format!("accepted {kind}, version {version}"), json)
            }
            ClientEventKind::Nacked { type_url, nack } => {
                let error = ui::safe(&nack.error);
                let text = format!("REJECTED {}, version {}: {error}", plural(type_url), nack.version);
                let (version, error) = (nack.version, &nack.error);
                let json =
                    json!({ "event": "rejected", "type": type_url, "version": version, "error": error });
                self.client(event, TextStyle::Bad, &text, json)
            }
            ClientEventKind::Disconnected => {
                self.client(event, TextStyle::Faint, "gone", json!({ "event": "gone" }))
            }
            other => self.client(event, TextStyle::Faint, &format!("{other:?}"), json!({ "event": "other" })),
        }
    }

    /// Prints a line about a client.
    fn client(
        &self,
        event: &ClientEvent,
        style: TextStyle,
        text: &str,
        mut json: Value,
    ) -> Result<(), CliError> {
        if self.args.json {
            json["client"] = event.stream.into();
            json["node"] = event.node_id.as_str().into();
            return self.json(json);
        }
        self.line(format_args!("client {}  {}", event.stream, self.terminal.paint(style, text)))
    }

    /// Prints a change of the mesh file, or of the host names in it.
    fn file(&self, line: &FileLine) -> Result<(), CliError> {
        let file = ui::safe(&self.args.mesh.display().to_string());
        let (event, text, errors) = match line {
            FileLine::Served { event, text, summary } => {
                if self.args.json {
                    return self.json(json!({ "event": event, "summary": summary }));
                }
                let text = format!("{text}: {summary}");
                return self.line(format_args!("{file}  {}", self.terminal.paint(TextStyle::Good, text)));
            }
            FileLine::Failed { event, text, errors } => (event, text, errors),
        };
        if self.args.json {
            return self.json(json!({ "event": event, "errors": errors }));
        }
        for error in errors.iter() {
            self.line(self.terminal.paint(TextStyle::Bad, ui::safe(&error.to_string())))?;
        }
        self.line(format_args!("{file}  {text}"))
    }

    /// Prints the number of events that the receiver missed.
    fn missed(&self, count: u64) -> Result<(), CliError> {
        if self.args.json {
            return self.json(json!({ "event": "missed", "count": count }));
        }
        self.line(format_args!("{count} events were dropped"))
    }

    fn end(&self) -> Result<(), CliError> {
        if self.args.json { self.json(json!({ "event": "stopped" })) } else { self.line("stopped") }
    }

    fn line(&self, text: impl fmt::Display) -> Result<(), CliError> {
        let now = self.terminal.paint(TextStyle::Faint, time_of_day());
        self.terminal.print(format_args!("{now}  {text}\n"))
    }

    fn json(&self, mut json: Value) -> Result<(), CliError> {
        json["time"] = since_1970().into();
        self.terminal.print_json(json)
    }
}

/// Checks a host name or IP address with a port.
fn host_and_port(text: &str) -> Result<String, String> {
    let is_name = |host: &str| {
        !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
    };
    let is_valid = match text.parse::<SocketAddr>() {
        Ok(address) => address.port() > 0,
        Err(_) => text
            .rsplit_once(':')
            .is_some_and(|(host, port)| is_name(host) && port.parse::<u16>().is_ok_and(|port| port > 0)),
    };
    if is_valid {
        Ok(text.to_owned())
    } else {
        Err("expected HOST:PORT without a scheme, such as mesh.example:18000".to_owned())
    }
}

fn plural(type_url: &str) -> String {
    match ResourceType::from_type_url(type_url) {
        Some(ResourceType::Endpoints) => "endpoints".to_owned(),
        Some(kind) => format!("{kind}s"),
        None => format!("{type_url:?}"),
    }
}

fn absolute(file: &Path) -> String {
    std::path::absolute(file).unwrap_or_else(|_| file.to_owned()).display().to_string()
}

/// Quotes text as one word for a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Returns the time of day in UTC. The local time zone is not available here.
fn time_of_day() -> String {
    let seconds = since_1970() as u64 % 86_400;
    format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
