//! The xDS client of a process: its thread, its streams and its handles.
//!
//! Protocol decisions are made in [`evenkeel_xds`]. The client runs on its own thread: neither a blocked nor a
//! stopped runtime of the application stops it, and parsing a large resource blocks none of the application's
//! workers. A channel [subscribes](XdsClient::watch_target) to its target and receives complete updates, each
//! replacing the last.
//!
//! ```text
//!   XdsSubscription ── commands ──▶ XdsWorker ──▶ AdsClient, LrsClient, DnsCache (no sockets)
//!         ▲                             │ ▲
//!         └─────── last update ─────────┘ └── events ── streams, DNS lookups
//! ```
//!
//! The thread ends when the last handle and the last subscription are dropped. Dropping them does not wait for it.

pub mod csds;
mod names;
mod server_connection;
mod stream_task;
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

use self::server_connection::XdsDialer;
use self::worker::{WorkerCommand, XdsWorker};
use crate::entropy;
use crate::telemetry::metrics::XdsMeter;
use crate::transport::connection::Http2Config;
use crate::transport::http2::Http2Implementation;
use crate::transport::keepalive::KeepaliveParams;
use crate::transport::{Connector, SocketConnector};

/// Keepalive of connections to control planes (as in C-core, Java and Go).
const KEEPALIVE: KeepaliveParams = KeepaliveParams {
    time: Duration::from_secs(5 * 60),
    timeout: Duration::from_secs(20),
    without_calls: true,
};

/// Every xDS client of the process that is in use.
static CLIENTS: Mutex<Vec<Weak<XdsClientInner>>> = Mutex::new(Vec::new());

/// Client of control planes. Cheap to clone; clones are handles of the same client.
///
/// Channels to `xds:` targets with equal bootstraps share one client, and therefore one stream per control plane. For
/// another registry of policies, or separate streams, [build](XdsClient::builder) one.
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

/// State shared by all handles. The thread holds no reference to it and ends when it is dropped.
struct XdsClientInner {
    bootstrap: Arc<Bootstrap>,
    commands: mpsc::UnboundedSender<WorkerCommand>,
    load: Arc<LoadStore>,
    worker_status: Arc<WorkerStatus>,
    /// True if channels with an equal bootstrap use this client.
    is_shared: bool,
    next_key: AtomicU64,
}

/// State shared by the thread and the handles.
#[derive(Default)]
struct WorkerStatus {
    server_stats: Mutex<Vec<ServerStats>>,
    /// True if [`WorkerCommand::PollLoadReports`] was sent and the thread has not processed it yet.
    load_is_due: AtomicBool,
}

impl XdsClient {
    /// Returns the process's client for the bootstrap that the environment names (`GRPC_XDS_BOOTSTRAP`, or else
    /// `GRPC_XDS_BOOTSTRAP_CONFIG`).
    ///
    /// # Errors
    ///
    /// Returns an error if the bootstrap is missing or invalid.
    pub fn from_env() -> Result<XdsClient, XdsError> {
        let bootstrap =
            Bootstrap::load(|name| std::env::var(name).ok(), |file| std::fs::read_to_string(file))
                .map_err(|error| XdsError { kind: XdsErrorKind::Bootstrap(error) })?;
        Ok(XdsClient::shared(bootstrap))
    }

    /// Returns the process's client for this bootstrap. A client in use with an equal bootstrap is returned again.
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

    /// Returns a builder of a client with streams of its own.
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

    /// Returns the bootstrap: the node's identity and the control planes.
    pub fn bootstrap(&self) -> &Bootstrap {
        &self.shared.bootstrap
    }

    /// Returns every subscribed resource as it was received, and its state, as CSDS reports it (A40).
    ///
    /// # Errors
    ///
    /// Returns an error if the client's thread is not running.
    pub async fn status(&self) -> Result<ClientConfig, XdsError> {
        let answered = self.client_status(ClientStatusRequest::default()).await;
        let config = answered.and_then(|answer| answer.ok()?.config.pop());
        config.ok_or(XdsError { kind: XdsErrorKind::Gone })
    }

    /// Returns the response to a CSDS request; `None` if the client's thread has ended.
    async fn client_status(
        &self,
        request: ClientStatusRequest,
    ) -> Option<Result<ClientStatusResponse, evenkeel_core::Status>> {
        let (reply, answer) = oneshot::channel();
        self.shared.commands.send(WorkerCommand::Describe { request, reply }).ok()?;
        answer.await.ok()
    }

    /// Returns an error if the bootstrap does not define the target's xDS authority, or the target is invalid.
    pub(crate) fn check(&self, target: &str) -> Result<(), XdsError> {
        self.named(target).map(drop)
    }

    fn named(&self, target: &str) -> Result<XdsTarget, XdsError> {
        self.shared
            .bootstrap
            .listener_name(target)
            .map_err(|error| XdsError { kind: XdsErrorKind::Target(error) })
    }

    /// Subscribes to the resources that a channel to `target` needs. `authority` selects the virtual host, by default
    /// the target's. `channel_id` is the channel's random number for hash policies (A42).
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

    /// Returns the store that counts the calls of all its channels, for load reports.
    pub(crate) fn load_store(&self) -> &Arc<LoadStore> {
        &self.shared.load
    }

    /// Returns the node id, which is part of status messages.
    pub(crate) fn node_id(&self) -> &str {
        &self.shared.bootstrap.node.id
    }

    /// Requests a check for load reports, because a core ran a pass or was dropped. Cheap: repeated requests are
    /// merged.
    ///
    /// A core must be dropped before its client, or the last load report of its clusters is lost.
    pub(crate) fn notify_pass(&self) {
        // The worker clears the flag before it polls. So a request after that point sends another command.
        if !self.shared.worker_status.load_is_due.swap(true, Ordering::AcqRel) {
            let _ = self.shared.commands.send(WorkerCommand::PollLoadReports);
        }
    }

    /// Returns the connection state and counters of each control plane.
    pub fn server_stats(&self) -> Vec<ServerStats> {
        lock(&self.shared.worker_status.server_stats).clone()
    }

    /// Returns every xDS client of the process, shared or built.
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

/// Ignores poisoning: no code panics while one of these locks is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Settings of an xDS client, created by [`XdsClient::builder`].
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
    /// Load balancing policies that clusters may use; the built-in ones unless set.
    pub fn registry(mut self, registry: Registry) -> XdsClientBuilder {
        self.registry = registry;
        self
    }

    /// Converters from the control plane's policies to those of the registry; the built-in ones unless set.
    pub fn converters(mut self, converters: LbPolicyConverters) -> XdsClientBuilder {
        self.converters = converters;
        self
    }

    /// Limits on the resources that a control plane may send.
    pub fn limits(mut self, limits: XdsLimits) -> XdsClientBuilder {
        self.limits = limits;
        self
    }

    /// Variant of the transport protocol; state of the world unless set.
    pub fn variant(mut self, variant: XdsVariant) -> XdsClientBuilder {
        self.variant = variant;
        self
    }

    /// Sends a keepalive ping after `time` without data from a control plane, and closes the connection if no data
    /// follows within `timeout`. 5 minutes and 20 seconds unless set.
    pub fn keepalive(mut self, time: Duration, timeout: Duration) -> XdsClientBuilder {
        self.keepalive = KeepaliveParams { time, timeout, ..self.keepalive };
        self
    }

    /// Grace period of a deleted cluster, route configuration or endpoint resource that another resource still names.
    /// 1 second by default; zero disables it.
    ///
    /// Control planes such as istiod delete a cluster before they move the routes away from it, and calls must not fail
    /// meanwhile. When the period ends, calls to the cluster fail with `UNAVAILABLE` (A53). Deleted listeners, and
    /// resources of servers with the feature `fail_on_data_errors`, have no such period.
    pub fn deletion_grace(mut self, grace: Duration) -> XdsClientBuilder {
        self.deletion_grace = grace;
        self
    }

    /// HTTP/2 implementation of streams to control planes; see [`Http2Implementation`].
    pub fn http2(mut self, implementation: Http2Implementation) -> XdsClientBuilder {
        self.http2 = implementation;
        self
    }

    /// Opens the byte streams to control planes. It is called on the client's own thread.
    pub fn connector(mut self, connector: impl Connector) -> XdsClientBuilder {
        self.connector = Arc::new(connector);
        self
    }

    /// Starts a client that shares nothing with others, even if their bootstraps are equal.
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
            // The client is returned without a worker. Its calls and subscriptions then fail with
            // `XdsErrorKind::Gone`.
            tracing::error!(%error, "failed to spawn the xDS client thread");
        }
        let next_key = AtomicU64::new(0);
        let shared =
            Arc::new(XdsClientInner { bootstrap, commands, load, worker_status, is_shared, next_key });
        clients.retain(|client| client.strong_count() > 0);
        clients.push(Arc::downgrade(&shared));
        XdsClient { shared }
    }

    /// Starts the thread. It ends when the last sender of commands is dropped.
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
            // A DNS lookup that hangs must not block the end of the thread.
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

/// Subscription of one channel. Dropping it ends the subscription.
pub(crate) struct XdsSubscription {
    /// Authority of the channel's calls.
    pub(crate) authority: String,
    key: u64,
    steps: watch::Receiver<Option<XdsResolverUpdate>>,
    /// Clusters of the last [`XdsSubscription::watch_clusters`].
    dynamic: BTreeSet<Arc<str>>,
    client: XdsClient,
}

impl XdsSubscription {
    /// Returns the latest update that was not returned before, or waits for one. Returns `None` if the client has
    /// ended. Cancel-safe.
    pub(crate) async fn changed(&mut self) -> Option<XdsResolverUpdate> {
        self.steps.changed().await.ok()?;
        self.steps.borrow_and_update().clone()
    }

    /// Replaces the set of clusters that policies request beside the routes. Cheap if it is unchanged.
    pub(crate) fn watch_clusters(&mut self, dynamic: BTreeSet<Arc<str>>) {
        if dynamic != self.dynamic {
            self.dynamic.clone_from(&dynamic);
            self.send(WorkerCommand::WatchClusters { key: self.key, dynamic });
        }
    }

    /// Requests that DNS names are resolved again, because connections to their addresses fail. The rate is limited.
    pub(crate) fn reresolve(&self) {
        self.send(WorkerCommand::Reresolve { key: self.key });
    }

    /// Ignores a failure: the client has ended then, which [`XdsSubscription::changed`] reports.
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

/// Error of the xDS client. Its text states whether the bootstrap or the target must change.
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
    /// Returns true if no bootstrap is configured, so that a program may continue without xDS.
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
