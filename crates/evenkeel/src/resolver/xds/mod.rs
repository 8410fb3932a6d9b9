//! The xDS client of a process, running.
//!
//! What it decides is in [`evenkeel_xds`]; here are its thread, its streams and its handles. It runs on a thread of its own, so
//! that neither a blocked nor an ended runtime of the application stops it, and a large resource blocks none of the
//! application's workers. Channels [follow](XdsClient::watch_target) their targets and get one complete step after the other.
//!
//! ```text
//!   Following ── commands ──▶ worker ──▶ Client, Reporter, Names (no sockets)
//!       ▲                       │ ▲
//!       └──── the last step ────┘ └── events ── streams, look-ups
//! ```
//!
//! The thread ends when the last handle and the last following channel are gone. Nobody waits for it.

pub mod csds;
mod names;
mod streams;
mod worker;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use evenkeel_core::load::LoadStore;
use evenkeel_core::{Registry, Rng};
use evenkeel_proto::envoy::service::status::v3::{ClientConfig, ClientStatusRequest, ClientStatusResponse};
use evenkeel_xds::XdsLimits;
use evenkeel_xds::ads::{AdsClient, DELETION_GRACE, ServerStats, XdsVariant};
use evenkeel_xds::bootstrap::{Bootstrap, BootstrapError, XdsTarget, XdsTargetError};
use evenkeel_xds::lb::LbPolicyConverters;
use evenkeel_xds::lrs::LrsClient;
use evenkeel_xds::resolver::XdsResolverUpdate;
use evenkeel_xds::resource::ResourceParser;
use tokio::runtime;
use tokio::sync::{mpsc, oneshot, watch};

use self::streams::XdsDialer;
use self::worker::{WorkerCommand, XdsWorker};
use crate::entropy;
use crate::telemetry::metrics::XdsMeter;
use crate::transport::connection::{Http2Config, KeepaliveParams};
use crate::transport::http2::Http2Implementation;
use crate::transport::{Connector, SocketConnector};

/// When a silent control plane is asked whether it is there, and how long it has to answer (as in C-core, Java and Go).
const KEEPALIVE: KeepaliveParams = KeepaliveParams {
    time: Duration::from_secs(5 * 60),
    timeout: Duration::from_secs(20),
    without_calls: true,
};

/// Every client of the process that is in use.
static CLIENTS: Mutex<Vec<Weak<XdsClientInner>>> = Mutex::new(Vec::new());

/// A client of control planes. Cheap to clone; clones are the same client.
///
/// Channels to `xds:` targets use the one of the process for their bootstrap, and so share its streams: one per control
/// plane. Who needs another registry of policies, or streams of its own, [builds](XdsClient::builder) one.
///
/// ```no_run
/// use evenkeel::XdsClient;
///
/// # async fn show() -> Result<(), Box<dyn std::error::Error>> {
/// let client = XdsClient::from_env()?;
/// for resource in client.status().await?.generic_xds_configs {
///     println!("{} {}", resource.name, resource.version_info);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct XdsClient {
    shared: Arc<XdsClientInner>,
}

/// What all handles know. The thread does not hold it: it ends when this is gone.
struct XdsClientInner {
    bootstrap: Arc<Bootstrap>,
    commands: mpsc::UnboundedSender<WorkerCommand>,
    load: Arc<LoadStore>,
    worker_status: Arc<WorkerStatus>,
    /// Whether everybody with this bootstrap uses it.
    is_shared: bool,
    next_key: AtomicU64,
}

/// What the thread and the handles show each other.
#[derive(Default)]
struct WorkerStatus {
    server_stats: Mutex<Vec<ServerStats>>,
    /// Whether the thread was told to look at the load and has not done it yet.
    load_is_due: AtomicBool,
}

impl XdsClient {
    /// The process's client for the bootstrap that the environment names (`GRPC_XDS_BOOTSTRAP`, or else
    /// `GRPC_XDS_BOOTSTRAP_CONFIG`).
    pub fn from_env() -> Result<XdsClient, XdsError> {
        let bootstrap =
            Bootstrap::load(|name| std::env::var(name).ok(), |file| std::fs::read_to_string(file))
                .map_err(|error| XdsError { kind: XdsErrorKind::Bootstrap(error) })?;
        Ok(XdsClient::shared(bootstrap))
    }

    /// The process's client for this bootstrap: the one that is in use already, if an equal bootstrap was given before.
    pub fn shared(bootstrap: Bootstrap) -> XdsClient {
        let mut clients = clients();
        let usable = |client: &XdsClient| {
            let shared = &client.shared;
            shared.is_shared && *shared.bootstrap == bootstrap && !shared.commands.is_closed()
        };
        if let Some(client) = live(&clients).find(usable) {
            return client;
        }
        XdsClient::builder(bootstrap).start(true, &mut clients)
    }

    /// Describes a client with streams of its own.
    pub fn builder(bootstrap: Bootstrap) -> XdsClientBuilder {
        XdsClientBuilder {
            bootstrap,
            registry: Registry::standard(),
            converters: LbPolicyConverters::standard(),
            limits: XdsLimits::default(),
            variant: XdsVariant::StateOfTheWorld,
            keepalive: KEEPALIVE,
            deletion_grace: DELETION_GRACE,
            http2: Http2Implementation::default(),
            connector: Arc::new(SocketConnector),
        }
    }

    /// Who it is and which control planes it asks.
    pub fn bootstrap(&self) -> &Bootstrap {
        &self.shared.bootstrap
    }

    /// Every resource that somebody wants, as it was received, and how it stands: what CSDS tells (A40).
    pub async fn status(&self) -> Result<ClientConfig, XdsError> {
        let answered = self.client_status(ClientStatusRequest::default()).await;
        let config = answered.and_then(|answer| answer.ok()?.config.pop());
        config.ok_or(XdsError { kind: XdsErrorKind::Gone })
    }

    /// What a request for the status of clients gets from this one; `None` if its thread is gone.
    async fn client_status(
        &self,
        request: ClientStatusRequest,
    ) -> Option<Result<ClientStatusResponse, evenkeel_core::Status>> {
        let (reply, answer) = oneshot::channel();
        self.shared.commands.send(WorkerCommand::Describe { request, reply }).ok()?;
        answer.await.ok()
    }

    /// Whether a channel to `target` could follow it: the bootstrap knows what it means.
    pub(crate) fn check(&self, target: &str) -> Result<(), XdsError> {
        self.named(target).map(drop)
    }

    fn named(&self, target: &str) -> Result<XdsTarget, XdsError> {
        self.shared
            .bootstrap
            .listener_name(target)
            .map_err(|error| XdsError { kind: XdsErrorKind::Target(error) })
    }

    /// Follows what a channel to `target` needs. Its calls are for `authority`, or for the target's unless given: by that the
    /// virtual host is chosen. `channel_id` is the channel's random number for hash policies (A42).
    pub(crate) fn watch_target(
        &self,
        target: &str,
        authority: Option<&str>,
        channel_id: u64,
        meter: XdsMeter,
    ) -> Result<XdsSubscription, XdsError> {
        let shared = &self.shared;
        let named = self.named(target)?;
        let authority = authority.map_or(named.authority, str::to_owned);
        let (sender, steps) = watch::channel(None);
        let key = shared.next_key.fetch_add(1, Ordering::Relaxed);
        let join = WorkerCommand::Subscribe {
            key,
            target: target.to_owned(),
            listener: named.listener.as_str().to_owned(),
            authority: authority.clone(),
            channel_id,
            meter,
            steps: sender,
        };
        shared.commands.send(join).map_err(|_| XdsError { kind: XdsErrorKind::Gone })?;
        let dynamic = BTreeSet::new();
        Ok(XdsSubscription { authority, key, steps, dynamic, client: self.clone() })
    }

    /// Where the calls of all its channels are counted.
    pub(crate) fn load_store(&self) -> &Arc<LoadStore> {
        &self.shared.load
    }

    /// The id of the node, which failures name.
    pub(crate) fn node_id(&self) -> &str {
        &self.shared.bootstrap.node.id
    }

    /// A core ran a pass, or is gone: there may be more or fewer clusters to report load of. Cheap.
    ///
    /// Who lets go of a core does so before it lets go of its client, or else the last report of its clusters is lost.
    pub(crate) fn notify_pass(&self) {
        if !self.shared.worker_status.load_is_due.swap(true, Ordering::AcqRel) {
            let _ = self.shared.commands.send(WorkerCommand::PollLoadReports);
        }
    }

    /// How each control plane stands, and what happened with it so far.
    pub fn server_stats(&self) -> Vec<ServerStats> {
        lock(&self.shared.worker_status.server_stats).clone()
    }

    /// Every client of the process, whoever made it.
    pub(crate) fn all() -> Vec<XdsClient> {
        live(&clients()).collect()
    }
}

impl fmt::Debug for XdsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<_> = self.shared.bootstrap.servers.iter().map(|server| &server.uri).collect();
        f.debug_struct("XdsClient").field("node", &self.node_id()).field("servers", &servers).finish()
    }
}

fn clients() -> MutexGuard<'static, Vec<Weak<XdsClientInner>>> {
    lock(&CLIENTS)
}

fn live(clients: &[Weak<XdsClientInner>]) -> impl Iterator<Item = XdsClient> {
    clients.iter().filter_map(Weak::upgrade).map(|shared| XdsClient { shared })
}

/// Nothing panics while one of these locks is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client that is being described; [`XdsClientBuilder::build`] makes it.
#[must_use = "it is a description; `build` makes a client of it"]
pub struct XdsClientBuilder {
    bootstrap: Bootstrap,
    registry: Registry,
    converters: LbPolicyConverters,
    limits: XdsLimits,
    variant: XdsVariant,
    keepalive: KeepaliveParams,
    deletion_grace: Duration,
    http2: Http2Implementation,
    connector: Arc<dyn Connector>,
}

impl XdsClientBuilder {
    /// The policies that clusters may use; those that are built in unless given.
    pub fn registry(mut self, registry: Registry) -> XdsClientBuilder {
        self.registry = registry;
        self
    }

    /// How policies of the control plane become policies of the registry; those that are built in unless given.
    pub fn converters(mut self, converters: LbPolicyConverters) -> XdsClientBuilder {
        self.converters = converters;
        self
    }

    /// How much a control plane may ask of us.
    pub fn limits(mut self, limits: XdsLimits) -> XdsClientBuilder {
        self.limits = limits;
        self
    }

    /// How control planes are spoken to; by the state of the world unless given.
    pub fn variant(mut self, variant: XdsVariant) -> XdsClientBuilder {
        self.variant = variant;
        self
    }

    /// A control plane that was silent for `time` is asked whether it is there, and has `timeout` to answer; 5 minutes and
    /// 20 seconds unless given.
    pub fn keepalive(mut self, time: Duration, timeout: Duration) -> XdsClientBuilder {
        self.keepalive = KeepaliveParams { time, timeout, ..self.keepalive };
        self
    }

    /// Sets how long a deleted cluster, route configuration or endpoint resource stays in use while another resource names it;
    /// 1 second by default, and not at all if zero.
    ///
    /// Control planes such as istiod delete a cluster before they move the routes away from it, and calls must not fail
    /// meanwhile. When the period ends, calls to the cluster fail with `UNAVAILABLE` (A53). Deleted listeners, and
    /// resources of servers with the feature `fail_on_data_errors`, have no such period.
    pub fn deletion_grace(mut self, grace: Duration) -> XdsClientBuilder {
        self.deletion_grace = grace;
        self
    }

    /// The HTTP/2 implementation of streams to control planes; see [`Http2Implementation`].
    pub fn http2(mut self, implementation: Http2Implementation) -> XdsClientBuilder {
        self.http2 = implementation;
        self
    }

    /// Opens the byte streams to control planes. It is called on the client's own thread.
    pub fn connector(mut self, connector: impl Connector) -> XdsClientBuilder {
        self.connector = Arc::new(connector);
        self
    }

    /// A client of its own: it shares nothing with others, whatever their bootstrap.
    pub fn build(self) -> XdsClient {
        self.start(false, &mut clients())
    }

    fn start(self, is_shared: bool, clients: &mut Vec<Weak<XdsClientInner>>) -> XdsClient {
        for warning in self.bootstrap.warnings() {
            tracing::warn!(node = self.bootstrap.node.id, "bootstrap: {warning}");
        }
        let (commands, received) = mpsc::unbounded_channel();
        let bootstrap = Arc::new(self.bootstrap.clone());
        let load = Arc::<LoadStore>::default();
        let worker_status = Arc::<WorkerStatus>::default();
        if let Err(error) = self.spawn(bootstrap.clone(), load.clone(), worker_status.clone(), received) {
            // Who follows is told that the client is gone.
            tracing::error!(%error, "failed to spawn the xDS client thread");
        }
        let next_key = AtomicU64::new(0);
        let shared =
            Arc::new(XdsClientInner { bootstrap, commands, load, worker_status, is_shared, next_key });
        clients.retain(|client| client.strong_count() > 0);
        clients.push(Arc::downgrade(&shared));
        XdsClient { shared }
    }

    /// Starts the thread. It ends when nobody can send a command any more.
    fn spawn(
        self,
        bootstrap: Arc<Bootstrap>,
        load: Arc<LoadStore>,
        worker_status: Arc<WorkerStatus>,
        commands: mpsc::UnboundedReceiver<WorkerCommand>,
    ) -> io::Result<()> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let rng = || Rng::from_entropy(entropy::fresh());
        let response_bytes = self.limits.response_bytes;
        let parser = ResourceParser {
            registry: self.registry,
            converters: self.converters,
            limits: self.limits,
            certificate_providers: bootstrap.certificate_providers.keys().cloned().collect(),
        };
        let reporter = LrsClient::new(bootstrap.node.clone(), load, rng());
        let client = AdsClient::new(bootstrap.clone(), parser, self.variant, rng())
            .with_deletion_grace(self.deletion_grace);
        let http2 = Http2Config {
            implementation: self.http2,
            keepalive: Some(self.keepalive),
            ..Http2Config::default()
        };
        let dialer = XdsDialer::new(self.connector, http2);
        let worker = move || {
            runtime.block_on(
                XdsWorker::new(bootstrap, client, reporter, worker_status, dialer, response_bytes)
                    .run(commands),
            );
            // A look-up of a name that hangs must not keep the thread.
            runtime.shutdown_background();
        };
        thread::Builder::new().name("evenkeel-xds".to_owned()).spawn(worker).map(drop)
    }
}

impl fmt::Debug for XdsClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XdsClientBuilder").field("bootstrap", &self.bootstrap).finish_non_exhaustive()
    }
}

/// What one channel follows. Dropping it ends that.
pub(crate) struct XdsSubscription {
    /// The authority of the channel's calls.
    pub(crate) authority: String,
    key: u64,
    steps: watch::Receiver<Option<XdsResolverUpdate>>,
    /// What was wanted last.
    dynamic: BTreeSet<Arc<str>>,
    client: XdsClient,
}

impl XdsSubscription {
    /// The next step, once there is one: the last of those that came meanwhile. `None` if the client is gone. Nothing is
    /// lost if the future is dropped.
    pub(crate) async fn changed(&mut self) -> Option<XdsResolverUpdate> {
        self.steps.changed().await.ok()?;
        self.steps.borrow_and_update().clone()
    }

    /// Policies ask for these clusters beside the routes, and no others. Cheap if they are the same as before.
    pub(crate) fn watch_clusters(&mut self, dynamic: BTreeSet<Arc<str>>) {
        if dynamic != self.dynamic {
            self.dynamic.clone_from(&dynamic);
            self.send(WorkerCommand::WatchClusters { key: self.key, dynamic });
        }
    }

    /// The addresses of DNS names do not work: the names are resolved again, though not too often.
    pub(crate) fn reresolve(&self) {
        self.send(WorkerCommand::Reresolve { key: self.key });
    }

    /// One that cannot be sent is not missed: the client is gone, and [`XdsSubscription::changed`] says so.
    fn send(&self, command: WorkerCommand) {
        let _ = self.client.shared.commands.send(command);
    }
}

impl Drop for XdsSubscription {
    fn drop(&mut self) {
        self.send(WorkerCommand::Unsubscribe { key: self.key });
    }
}

impl fmt::Debug for XdsSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Following").field("authority", &self.authority).finish_non_exhaustive()
    }
}

/// Why there is no xDS for a channel. The text says whether the bootstrap or the target must change.
#[derive(Debug)]
pub struct XdsError {
    kind: XdsErrorKind,
}

#[derive(Debug)]
enum XdsErrorKind {
    Bootstrap(BootstrapError),
    Target(XdsTargetError),
    Gone,
}

impl XdsError {
    /// Whether there is no bootstrap at all, so that a program may do without one.
    pub fn is_unset(&self) -> bool {
        matches!(&self.kind, XdsErrorKind::Bootstrap(error) if error.is_unset())
    }
}

impl fmt::Display for XdsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            XdsErrorKind::Bootstrap(error) => error.fmt(f),
            XdsErrorKind::Target(error) => error.fmt(f),
            XdsErrorKind::Gone => f.write_str("the thread of the xDS client is not running"),
        }
    }
}

impl std::error::Error for XdsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            XdsErrorKind::Bootstrap(error) => Some(error),
            XdsErrorKind::Target(error) => Some(error),
            XdsErrorKind::Gone => None,
        }
    }
}
