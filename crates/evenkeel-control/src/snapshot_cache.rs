//! What is served, who is served, and how it stands: the control plane without its sockets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use evenkeel_proto::envoy::config::core::v3::Node;
use evenkeel_proto::envoy::config::endpoint::v3::ClusterStats;
use tokio::sync::{broadcast, watch};

use crate::ClientLimits;
use crate::limits::{LimitExceeded, MAX_NODE_TEXT_BYTES, check_length};
use crate::lrs::{self, DropReport, LoadReportStore, LocalityLoadReport};
use crate::records::{ClientEvent, ClientEventKind, ClientRecord, Nack, user_agent};
use crate::service::DiscoveryService;
use crate::snapshot::{ProtocolVariant, ResourceSnapshot};
use crate::stream::{AckKind, StreamState, WatchRequest};
use crate::text::escaped;
use crate::{Mesh, NamedResource, ResourceSet};

/// How many events a reader may lie behind.
const EVENT_CAPACITY: usize = 1024;

/// What a control plane holds and knows. Clones are the same plane.
///
/// [`ControlPlane`](crate::ControlPlane) serves one on a port of its own; [`SnapshotCache::service`] can be served by any tonic
/// server. Changes are told to all clients at once, and to each as fast as it can take them.
#[derive(Clone)]
pub struct SnapshotCache {
    shared: Arc<CacheInner>,
}

struct CacheInner {
    resources: Mutex<ResourceSet>,
    state: watch::Sender<ServingState>,
    clients: Mutex<BTreeMap<u64, Arc<Mutex<ConnectedClient>>>>,
    opened: AtomicU64,
    /// Number of open streams, of discovery and of load reports.
    open_streams: Arc<AtomicUsize>,
    loads: Mutex<LoadReportStore>,
    changes: watch::Sender<u64>,
    events: broadcast::Sender<ClientEvent>,
}

/// What streams follow.
#[derive(Clone)]
pub(crate) struct ServingState {
    pub(crate) snapshot: Arc<ResourceSnapshot>,
    pub(crate) fault_modes: FaultModes,
    /// Streams up to this number are to end.
    pub(crate) closed_up_to: u64,
    pub(crate) lrs_interval: Duration,
    pub(crate) limits: ClientLimits,
}

/// Ways of control planes that clients must cope with, for tests of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultModes {
    /// Reads and answers nothing. What was held back is sent when it ends.
    pub silent: bool,
    /// Refuses streams of discovery while one is open, as Istio's agent does.
    pub one_stream: bool,
    /// Answers load reporting streams with UNIMPLEMENTED.
    pub refuse_lrs: bool,
}

struct ConnectedClient {
    node_id: String,
    user_agent: String,
    peer: Option<SocketAddr>,
    variant: ProtocolVariant,
    connected_at: SystemTime,
    stream: StreamState,
}

impl SnapshotCache {
    /// A plane that holds nothing.
    pub fn new() -> SnapshotCache {
        let state = ServingState {
            snapshot: Arc::default(),
            fault_modes: FaultModes::default(),
            closed_up_to: 0,
            lrs_interval: Duration::from_secs(10),
            limits: ClientLimits::default(),
        };
        SnapshotCache {
            shared: Arc::new(CacheInner {
                resources: Mutex::default(),
                state: watch::Sender::new(state),
                clients: Mutex::default(),
                opened: AtomicU64::new(0),
                open_streams: Arc::default(),
                loads: Mutex::default(),
                changes: watch::Sender::new(0),
                events: broadcast::Sender::new(EVENT_CAPACITY),
            }),
        }
    }

    /// The gRPC services of this plane: discovery, aggregated and by type, and load reporting.
    pub fn service(&self) -> DiscoveryService {
        DiscoveryService::new(self.clone())
    }

    /// Serves a mesh and nothing else.
    pub fn set_mesh(&self, mesh: &Mesh) {
        self.set(mesh.resources());
    }

    /// Serves these resources and no others.
    pub fn set(&self, resources: ResourceSet) {
        self.update(|held| *held = resources);
    }

    /// Changes what is served, as one change: each type that is touched gets one version. A resource whose bytes did not
    /// change keeps its version and is not sent again.
    pub fn update(&self, change: impl FnOnce(&mut ResourceSet)) {
        let mut resources = lock(&self.shared.resources);
        change(&mut resources);
        // Under the lock, so that worlds follow each other in the order of the changes.
        let snapshot = Arc::new(self.state().snapshot.with_resources(&resources));
        self.shared.state.send_modify(|state| state.snapshot = snapshot);
        drop(resources);
        self.notify_changed();
    }

    /// What is served.
    pub fn resources(&self) -> ResourceSet {
        lock(&self.shared.resources).clone()
    }

    /// The version of a type: how often it changed.
    pub fn version<M: NamedResource>(&self) -> u64 {
        self.state().snapshot.type_resources(&M::type_url()).version
    }

    /// How often clients are to report load; 10 s unless set.
    pub fn set_lrs_interval(&self, interval: Duration) {
        self.shared.state.send_modify(|state| state.lrs_interval = interval);
    }

    /// Sets the limits on clients. Streams that are open keep what they hold; the limits apply to their next requests.
    pub fn set_client_limits(&self, limits: ClientLimits) {
        self.shared.state.send_modify(|state| state.limits = limits);
    }

    /// Returns the limits on clients.
    pub fn client_limits(&self) -> ClientLimits {
        self.shared.state.borrow().limits
    }

    /// Takes on quirks, and drops those that it had.
    pub fn set_fault_modes(&self, fault_modes: FaultModes) {
        self.shared.state.send_modify(|state| state.fault_modes = fault_modes);
    }

    /// Ends all open streams of discovery with OK. Clients may open others.
    pub fn close_streams(&self) {
        let opened = self.shared.opened.load(Ordering::SeqCst);
        self.shared.state.send_modify(|state| state.closed_up_to = opened);
    }

    /// The clients with an open stream of discovery, oldest first.
    pub fn clients(&self) -> Vec<ClientRecord> {
        let clients = lock(&self.shared.clients).clone();
        let record = |(stream, client): (u64, Arc<Mutex<ConnectedClient>>)| {
            let client = lock(&client);
            ClientRecord {
                stream,
                node_id: client.node_id.clone(),
                user_agent: client.user_agent.clone(),
                peer: client.peer,
                variant: client.variant,
                connected_at: client.connected_at,
                types: client.stream.types(),
            }
        };
        clients.into_iter().map(record).collect()
    }

    /// How many streams of discovery were opened.
    pub fn streams(&self) -> u64 {
        self.shared.opened.load(Ordering::SeqCst)
    }

    /// What clients reported, by client, cluster, priority and locality.
    pub fn load_reports(&self) -> Vec<LocalityLoadReport> {
        lock(&self.shared.loads).reports()
    }

    /// What clients reported as dropped, by client, cluster and category.
    pub fn drop_reports(&self) -> Vec<DropReport> {
        lock(&self.shared.loads).drops()
    }

    /// A number that changes whenever anything here does: what is served, who is connected, what was answered or
    /// reported.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// What clients do from here on, for logs. A reader that lies far behind misses some.
    pub fn events(&self) -> broadcast::Receiver<ClientEvent> {
        self.shared.events.subscribe()
    }

    /// Waits until every client that subscribes to this type was told of all that it wants and has accepted it. There
    /// must be one: while there is none, this waits for it.
    pub async fn wait_acked<M: NamedResource>(&self) {
        let type_url = M::type_url();
        self.wait_until(|cache| {
            let snapshot = cache.state().snapshot;
            let clients = lock(&cache.shared.clients).clone();
            let mut subscribers = clients
                .values()
                .filter_map(|client| lock(client).stream.is_in_sync(&type_url, &snapshot))
                .peekable();
            subscribers.peek().is_some() && subscribers.all(|is_in_sync| is_in_sync)
        })
        .await;
    }

    /// Waits until a client has rejected what is served of this type, and says what.
    pub async fn wait_nacked<M: NamedResource>(&self) -> Nack {
        let type_url = M::type_url();
        let find = || {
            let snapshot = self.state().snapshot;
            let clients = lock(&self.shared.clients).clone();
            clients.values().find_map(|client| lock(client).stream.rejection(&type_url, &snapshot).cloned())
        };
        let mut changes = self.changes();
        loop {
            changes.mark_unchanged();
            if let Some(nack) = find() {
                return nack;
            }
            // The sender is in `self`.
            let _ = changes.changed().await;
        }
    }

    /// Waits until something is so. It is asked again whenever anything here changes.
    pub async fn wait_until(&self, mut condition: impl FnMut(&SnapshotCache) -> bool) {
        let mut changes = self.changes();
        loop {
            changes.mark_unchanged();
            if condition(self) {
                return;
            }
            let _ = changes.changed().await;
        }
    }

    pub(crate) fn state_changes(&self) -> watch::Receiver<ServingState> {
        self.shared.state.subscribe()
    }

    pub(crate) fn state(&self) -> ServingState {
        self.shared.state.borrow().clone()
    }

    /// Takes in a load report. Returns an error, and takes in nothing, if a name in it is too long.
    pub(crate) fn report_load(&self, node_id: &str, stats: Vec<ClusterStats>) -> Result<(), LimitExceeded> {
        let maximum = self.client_limits().name_bytes;
        stats.iter().try_for_each(|stats| lrs::check(stats, maximum))?;
        let mut loads = lock(&self.shared.loads);
        let now = SystemTime::now();
        for stats in stats {
            loads.add(node_id, stats, now);
        }
        drop(loads);
        self.notify_changed();
        Ok(())
    }

    /// Counts a stream as open until the slot is dropped. Returns `None` if there are as many as the limit allows.
    pub(crate) fn open_slot(&self) -> Option<StreamSlot> {
        let maximum = self.client_limits().streams;
        let open = &self.shared.open_streams;
        let opened = open.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
            (count < maximum).then(|| count.saturating_add(1))
        });
        opened.ok().map(|_| StreamSlot { open: Arc::clone(open) })
    }

    /// Opens a stream of discovery, unless there may be only one.
    pub(crate) fn open(&self, variant: ProtocolVariant, peer: Option<SocketAddr>) -> Option<ClientStream> {
        let mut clients = lock(&self.shared.clients);
        let number = self.shared.opened.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        let is_refused = self.state().fault_modes.one_stream && !clients.is_empty();
        let client = Arc::new(Mutex::new(ConnectedClient {
            node_id: String::new(),
            user_agent: String::new(),
            peer,
            variant,
            connected_at: SystemTime::now(),
            stream: StreamState::new(variant),
        }));
        if !is_refused {
            clients.insert(number, Arc::clone(&client));
        }
        drop(clients);
        self.notify_changed();
        (!is_refused).then(|| ClientStream { cache: self.clone(), number, client })
    }

    fn notify_changed(&self) {
        self.shared.changes.send_modify(|count| *count = count.wrapping_add(1));
    }
}

impl Default for SnapshotCache {
    fn default() -> SnapshotCache {
        SnapshotCache::new()
    }
}

/// An open stream, counted until this is dropped.
pub(crate) struct StreamSlot {
    open: Arc<AtomicUsize>,
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A client while its stream is open.
pub(crate) struct ClientStream {
    cache: SnapshotCache,
    pub(crate) number: u64,
    client: Arc<Mutex<ConnectedClient>>,
}

impl ClientStream {
    pub(crate) fn handle(&self, mut request: WatchRequest) -> Result<(), LimitExceeded> {
        let mut client = lock(&self.client);
        if let Some(node) = request.node.take() {
            self.record_node(&mut client, &node)?;
        }
        let type_url = request.type_url.clone();
        let ServingState { snapshot, limits, .. } = self.cache.state();
        let ack = client.stream.handle(request, &snapshot, &limits, SystemTime::now())?;
        match ack {
            AckKind::None => {}
            AckKind::Ack => {
                let version = client.stream.acked_version(&type_url).unwrap_or_default();
                self.publish_event(&client, ClientEventKind::Acked { type_url, version });
            }
            AckKind::Nack => {
                if let Some(nack) = client.stream.last_nack(&type_url).cloned() {
                    tracing::warn!(
                        node = escaped(&client.node_id),
                        type_url = escaped(&type_url),
                        version = nack.version,
                        error = escaped(&nack.error),
                        "client sent a NACK"
                    );
                    self.publish_event(&client, ClientEventKind::Nacked { type_url, nack });
                }
            }
        }
        drop(client);
        self.cache.notify_changed();
        Ok(())
    }

    fn record_node(&self, client: &mut ConnectedClient, node: &Node) -> Result<(), LimitExceeded> {
        let user_agent = user_agent(node);
        check_length("a node id", node.id.len(), MAX_NODE_TEXT_BYTES)?;
        check_length("a user agent", user_agent.len(), MAX_NODE_TEXT_BYTES)?;
        let is_new = client.node_id.is_empty() && client.user_agent.is_empty();
        client.node_id.clone_from(&node.id);
        client.user_agent = user_agent;
        if is_new {
            let (user_agent, peer, variant) = (client.user_agent.clone(), client.peer, client.variant);
            self.publish_event(client, ClientEventKind::Connected { user_agent, peer, variant });
        }
        Ok(())
    }

    pub(crate) fn responses(&self, snapshot: &ResourceSnapshot) -> Vec<Vec<bytes::Bytes>> {
        let responses = lock(&self.client).stream.responses(snapshot);
        self.cache.notify_changed();
        responses
    }

    fn publish_event(&self, client: &ConnectedClient, kind: ClientEventKind) {
        // No readers is no error.
        let _ = self.cache.shared.events.send(ClientEvent {
            stream: self.number,
            node_id: client.node_id.clone(),
            kind,
        });
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        lock(&self.cache.shared.clients).remove(&self.number);
        self.publish_event(&lock(&self.client), ClientEventKind::Disconnected);
        self.cache.notify_changed();
    }
}

/// A panic in a closure of the user's is reported by itself; what it left is consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
