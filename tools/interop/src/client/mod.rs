//! Client of gRPC's xDS interop tests, on [`evenkeel::Channel`].
//!
//! It makes calls at a steady rate and counts them by server. For a driver it serves statistics,
//! reconfiguration of the calls, and the admin services (CSDS, channelz). It does not know the driver's
//! cases.

mod call;
mod plan;
mod rpc_behavior;
mod services;
mod settings;
mod stats;

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel::{Bootstrap, Channel, Credentials, Registry, XdsClient, csds::Csds};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Code, Status};

use self::call::{CallResponse, Sizes, call};
use self::plan::{Kind, Planned};
use self::rpc_behavior::RpcBehavior;
use self::services::{ConfigureService, StatsService};
pub use self::settings::Settings;
use self::settings::code_name;
use self::stats::Stats;
use crate::channelz::{Calls, Channelz};
use crate::proto::testing::load_balancer_stats_service_server::LoadBalancerStatsServiceServer;
use crate::proto::testing::xds_update_client_configure_service_server::XdsUpdateClientConfigureServiceServer;

/// Runs the client until a signal or a fatal error.
pub async fn run(settings: Settings) -> Result<(), String> {
    let channelz = Channelz::new();
    let lines = channels(&settings, &channelz)?;
    let listener = listen(settings.stats_port).await;
    let listener = listener.map_err(|error| format!("stats port {}: {error}", settings.stats_port))?;
    let port = listener.local_addr().map_err(|error| format!("stats port: {error}"))?.port();

    let stats = Arc::<Stats>::default();
    let plan = watch::Sender::new(settings.plan.into_iter().map(Arc::new).collect());
    let configure = ConfigureService { plan: plan.clone(), default_timeout: settings.timeout };
    let server = Server::builder()
        .add_service(LoadBalancerStatsServiceServer::new(StatsService(stats.clone())))
        .add_service(XdsUpdateClientConfigureServiceServer::new(configure))
        .add_service(Csds::new())
        .add_service(channelz.service())
        .serve_with_incoming(TcpListenerStream::new(listener));
    let (fatal, mut failure) = mpsc::channel(1);
    let caller = Arc::new(Caller {
        stats,
        sizes: settings.sizes,
        expected: settings.expect_status,
        print: settings.print_response,
        fatal: settings.fail_on_failed_rpc.then_some(fatal),
        succeeded: AtomicBool::new(false),
    });
    let calls = async {
        let mut ticks = interval(settings.period);
        // Ticks missed during a stall are skipped. A burst would surprise drivers and trip circuit breakers.
        // Later ticks keep the original schedule.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        for line in lines.iter().cycle() {
            ticks.tick().await;
            let plan = plan.borrow().clone();
            for planned in plan {
                caller.clone().start(line, planned);
            }
        }
    };
    let end = end();
    say(&format!("listening on {port}"));
    tokio::select! {
        () = end => Ok(()),
        ended = server => {
            let why = ended.err().map_or_else(|| "the server ended".to_owned(), |error| error.to_string());
            Err(format!("stats port {port}: {why}"))
        }
        Some(failure) = failure.recv() => Err(failure),
        () = calls => Ok(()),
    }
}

/// Channel with its channelz counters.
struct Line {
    channel: Channel,
    calls: Arc<Calls>,
}

/// State shared by all calls.
struct Caller {
    stats: Arc<Stats>,
    sizes: Sizes,
    /// Expected status of a call.
    expected: Code,
    print: bool,
    /// Receives the first failure after a success, if that must end the program.
    fatal: Option<mpsc::Sender<String>>,
    succeeded: AtomicBool,
}

impl Caller {
    /// Starts a call and counts it.
    fn start(self: Arc<Self>, line: &Line, planned: Arc<Planned>) {
        let started = self.stats.start(planned.kind);
        let Line { channel, calls } = line;
        let (channel, calls) = (channel.clone(), calls.clone());
        calls.start();
        tokio::spawn(async move {
            let outcome = call(&channel, &planned, self.sizes).await;
            if self.print {
                say(&self.line(planned.kind, &outcome));
            }
            calls.end(outcome.is_ok());
            self.stats.end(started, &outcome);
            self.judge(planned.kind, &outcome);
        });
    }

    fn is_well(&self, outcome: &Result<CallResponse, Status>) -> bool {
        self.expected == outcome.as_ref().map_or_else(Status::code, |_| Code::Ok)
    }

    fn judge(&self, kind: Kind, outcome: &Result<CallResponse, Status>) {
        if self.is_well(outcome) {
            self.succeeded.store(true, Ordering::Relaxed);
        } else if let Some(fatal) = self.fatal.as_ref().filter(|_| self.succeeded.load(Ordering::Relaxed)) {
            // One message is enough.
            let _ = fatal.try_send(format!("RPC failed: {}: {}", kind.name(), told(outcome)));
        }
    }

    /// Formats a line for `--print_response`. The wording is that of all languages' clients, which drivers
    /// match.
    fn line(&self, kind: Kind, outcome: &Result<CallResponse, Status>) -> String {
        let name = kind.name();
        match outcome {
            Ok(CallResponse { peer, address, .. }) if self.is_well(outcome) => {
                let peer = peer.as_deref().unwrap_or_default();
                let address = address.as_ref().map(ToString::to_string).unwrap_or_default();
                match kind {
                    Kind::Unary => format!("Greeting: Hello world, this is {peer}, from {address}"),
                    Kind::Empty => format!("RPC {name:?}, from host {peer}, addr {address}"),
                }
            }
            _ if self.is_well(outcome) => format!("RPC {name:?}, ended as expected with {}", told(outcome)),
            _ => format!("RPC {name:?}, failed with {}", told(outcome)),
        }
    }
}

fn told(outcome: &Result<CallResponse, Status>) -> String {
    match outcome {
        Ok(_) => code_name(Code::Ok).to_owned(),
        Err(status) => format!("{}: {}", code_name(status.code()), status.message()),
    }
}

/// Creates the channels. They share an xDS client, as in any process.
fn channels(settings: &Settings, channelz: &Channelz) -> Result<Vec<Line>, String> {
    let credentials = credentials(settings);
    let client = if settings.server.starts_with("xds:") { Some(xds_client(settings)?) } else { None };
    let mut lines = Vec::new();
    for _ in 0..settings.channels {
        let sockets = channelz.sockets();
        let mut builder =
            Channel::builder(&settings.server).credentials(credentials.clone()).connector(sockets.clone());
        if let Some(client) = &client {
            builder = builder.xds_client(client.clone());
        }
        let channel =
            builder.build().map_err(|error| format!("channel to {:?}: {error}", settings.server))?;
        let calls = channelz.add(&settings.server, channel.clone(), sockets);
        lines.push(Line { channel, calls });
    }
    if let Some(client) = client {
        channelz.add_client(client);
    }
    Ok(lines)
}

/// Returns the credentials for servers.
fn credentials(settings: &Settings) -> Credentials {
    let insecure = Credentials::insecure();
    if settings.secure_mode { Credentials::xds(insecure) } else { insecure }
}

/// Creates the xDS client of the environment's bootstrap, with the test policy registered.
fn xds_client(settings: &Settings) -> Result<XdsClient, String> {
    let bootstrap = Bootstrap::load(|name| std::env::var(name).ok(), |file| std::fs::read_to_string(file));
    let bootstrap = bootstrap.map_err(|error| error.to_string())?;
    let mut registry = Registry::standard();
    registry.register::<RpcBehavior>(rpc_behavior::NAME);
    Ok(XdsClient::builder(bootstrap).registry(registry).variant(settings.variant).build())
}

/// Listens on all interfaces; on IPv4 only if IPv6 is unavailable.
async fn listen(port: u16) -> io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        bound => bound,
    }
}

/// Waits for a signal. The handler is installed by this call, not by the first poll, so an early SIGTERM does
/// not kill the process.
fn end() -> impl Future<Output = ()> {
    #[cfg(unix)]
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).ok();
    async move {
        let terminated = async {
            #[cfg(unix)]
            if let Some(terminate) = &mut terminate {
                terminate.recv().await;
                return;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = terminated => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    }
}

/// Prints one line on stdout. A closed pipe is ignored.
fn say(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
