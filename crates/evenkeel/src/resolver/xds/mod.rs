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
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | [`XdsClient`], the handle of a client |
//! | `builder.rs` | settings of a client, and the start of its thread |
//! | `subscription.rs` | subscription of one channel |
//! | `worker.rs` | the thread's event loop |
//! | `streams.rs`, `stream_task.rs` | ADS and LRS streams |
//! | `server_connection.rs` | connections to control planes |
//! | `names.rs` | DNS names in clusters |
//! | `csds.rs` | the CSDS service |
//! | `error.rs` | [`XdsError`] |

mod builder;
pub mod csds;
mod error;
mod names;
mod server_connection;
mod stream_task;
mod streams;
mod subscription;
mod worker;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use evenkeel_core::load::LoadStore;
use evenkeel_proto::envoy::service::status::v3::{ClientConfig, ClientStatusRequest, ClientStatusResponse};
use evenkeel_xds::ads::ServerStats;
use evenkeel_xds::bootstrap::{Bootstrap, XdsTarget};
use tokio::sync::{mpsc, oneshot, watch};

pub use self::builder::XdsClientBuilder;
pub use self::error::XdsError;
use self::error::XdsErrorKind;
pub(crate) use self::subscription::XdsSubscription;
use self::worker::WorkerCommand;
use crate::clock;
use crate::resolver::progress::XdsProgress;
use crate::sync::lock;
use crate::telemetry::metrics::XdsMeter;

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
    /// True if [`WorkerCommand::PollLoadStats`] was sent and the thread has not processed it yet.
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
        // Locked until the client is registered, so that two threads cannot start one each.
        let mut clients = clients();
        let usable = |client: &XdsClient| {
            let shared = &client.shared;
            // A client whose thread has ended is closed, and replaced.
            shared.is_shared && *shared.bootstrap == bootstrap && !shared.commands.is_closed()
        };
        if let Some(client) = live(&clients).find(usable) {
            return client;
        }
        XdsClient::builder(bootstrap).start(true, &mut clients)
    }

    /// Returns a builder of a client with streams of its own.
    pub fn builder(bootstrap: Bootstrap) -> XdsClientBuilder {
        XdsClientBuilder::new(bootstrap)
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

    /// Returns an error if the target or the address of a control plane is invalid, or if the bootstrap does not
    /// define the target's xDS authority.
    pub(crate) fn check(&self, target: &str) -> Result<(), XdsError> {
        self.named(target)?;
        // A bootstrap that was built in code has not been validated.
        let bootstrap = &self.shared.bootstrap;
        let of_authorities = bootstrap.authorities.values().flat_map(|authority| &authority.servers);
        let invalid = bootstrap.servers.iter().chain(of_authorities).find_map(|server| server.target().err());
        invalid.map_or(Ok(()), |error| Err(XdsError { kind: XdsErrorKind::Target(error) }))
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
        // Relaxed: the key only has to be unique.
        let key = shared.next_key.fetch_add(1, Ordering::Relaxed);
        let progress = Arc::new(XdsProgress::new(self.node_id(), clock::now()));
        let join = WorkerCommand::Subscribe {
            key,
            target: target.to_owned(),
            listener: named.listener.as_str().to_owned(),
            authority: authority.clone(),
            channel_id,
            meter,
            progress: progress.clone(),
            steps: sender,
        };
        shared.commands.send(join).map_err(|_| XdsError { kind: XdsErrorKind::Gone })?;
        let dynamic = BTreeSet::new();
        Ok(XdsSubscription { authority, key, progress, steps, dynamic, client: self.clone() })
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
            let _ = self.shared.commands.send(WorkerCommand::PollLoadStats);
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
