//! Control plane without sockets: the current snapshot, the connected clients and their load reports.
//!
//! Changes to the resources are atomic, and every stream sees the latest snapshot. `service` runs the streams, and
//! [`ControlPlane`](crate::ControlPlane) adds a server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use evenkeel_proto::envoy::config::core::v3::Node;
use evenkeel_proto::envoy::config::endpoint::v3::ClusterStats;
use tokio::sync::{broadcast, watch};

use crate::ClientLimits;
use crate::limits::{LimitExceeded, MAX_NODE_TEXT_BYTES, check_length};
use crate::lrs::{self, DropStats, LoadStatsStore, LocalityLoadStats};
use crate::records::{ClientEvent, ClientEventKind, ClientRecord, ClientRequest, Nack, user_agent};
use crate::service::DiscoveryService;
use crate::snapshot::{ProtocolVariant, ResourceSnapshot};
use crate::stream::{AckKind, StreamState, WatchRequest};
use crate::text::escaped;
use crate::{Mesh, NamedResource, ResourceSet};

/// Maximum number of events that a reader may be behind.
const EVENT_CAPACITY: usize = 1024;

/// Resources of a control plane and the state of its clients. Clones share both.
///
/// [`ControlPlane`](crate::ControlPlane) serves one on a port of its own; [`SnapshotCache::service`] can be served by
/// any tonic server. A change is sent to all clients at once; a slow client delays no other.
#[derive(Clone)]
pub struct SnapshotCache {
    shared: Arc<CacheInner>,
}

struct CacheInner {
    resources: Mutex<ResourceSet>,
    state: watch::Sender<ServingState>,
    clients: Mutex<BTreeMap<u64, Arc<Mutex<ConnectedClient>>>>,
    /// Number of discovery streams ever opened, rejected ones included.
    opened: AtomicU64,
    /// Number of load reporting streams ever opened, rejected ones included.
    lrs_opened: AtomicU64,
    /// Number of open streams, for discovery and for load reports.
    open_streams: Arc<AtomicUsize>,
    loads: Mutex<LoadStatsStore>,
    /// Requests in the order of arrival. Unset unless they are recorded.
    requests: OnceLock<Mutex<Vec<ClientRequest>>>,
    /// Number of changes of any kind, for [`SnapshotCache::changes`].
    changes: watch::Sender<u64>,
    events: broadcast::Sender<ClientEvent>,
}

/// Snapshot and settings that all streams watch.
#[derive(Clone)]
pub(crate) struct ServingState {
    pub(crate) snapshot: Arc<ResourceSnapshot>,
    pub(crate) fault_modes: FaultModes,
    /// Streams up to this number must end.
    pub(crate) closed_up_to: u64,
    pub(crate) lrs_interval: Duration,
    pub(crate) limits: ClientLimits,
}

/// Misbehaviour of control planes that clients must tolerate, for tests of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultModes {
    /// Reads requests and sends no responses. The responses are sent once this is reset.
    pub silent: bool,
    /// Rejects a discovery stream while another is open, as Istio's agent does.
    pub one_stream: bool,
    /// Rejects load reporting streams with UNIMPLEMENTED.
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
    /// Creates a cache without resources.
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
                lrs_opened: AtomicU64::new(0),
                open_streams: Arc::default(),
                loads: Mutex::default(),
                requests: OnceLock::new(),
                changes: watch::Sender::new(0),
                events: broadcast::Sender::new(EVENT_CAPACITY),
            }),
        }
    }

    /// Returns the gRPC services of this cache: ADS, discovery by type, and load reporting.
    pub fn service(&self) -> DiscoveryService {
        DiscoveryService::new(self.clone())
    }

    /// Replaces all resources by those of a mesh.
    pub fn set_mesh(&self, mesh: &Mesh) {
        self.set(mesh.resources());
    }

    /// Replaces all resources by these. Resources with the same bytes keep their versions.
    pub fn set(&self, resources: ResourceSet) {
        self.update(|held| *held = resources);
    }

    /// Changes the resources atomically: each changed type gets one new version. A resource with the same bytes keeps
    /// its version and is not sent again.
    pub fn update(&self, change: impl FnOnce(&mut ResourceSet)) {
        let mut resources = lock(&self.shared.resources);
        change(&mut resources);
        // Under the lock, so that snapshots are published in the order of the changes.
        let snapshot = Arc::new(self.state().snapshot.with_resources(&resources));
        self.shared.state.send_modify(|state| state.snapshot = snapshot);
        drop(resources);
        self.notify_changed();
    }

    /// Returns a copy of the served resources.
    pub fn resources(&self) -> ResourceSet {
        lock(&self.shared.resources).clone()
    }

    /// Returns the version of a type: the number of its changes.
    pub fn version<M: NamedResource>(&self) -> u64 {
        self.state().snapshot.type_resources(&M::type_url()).version
    }

    /// Sets the interval at which clients report load; 10 s unless set.
    pub fn set_lrs_interval(&self, interval: Duration) {
        self.shared.state.send_modify(|state| state.lrs_interval = interval);
    }

    /// Sets the limits on clients. Open streams keep their subscriptions; the limits apply to their next requests.
    pub fn set_client_limits(&self, limits: ClientLimits) {
        self.shared.state.send_modify(|state| state.limits = limits);
    }

    /// Returns the limits on clients.
    pub fn client_limits(&self) -> ClientLimits {
        self.shared.state.borrow().limits
    }

    /// Replaces the fault modes.
    pub fn set_fault_modes(&self, fault_modes: FaultModes) {
        self.shared.state.send_modify(|state| state.fault_modes = fault_modes);
    }

    /// Returns the fault modes.
    pub fn fault_modes(&self) -> FaultModes {
        self.shared.state.borrow().fault_modes
    }

    /// Ends all open discovery streams with OK. Clients may open others.
    pub fn close_streams(&self) {
        let opened = self.shared.opened.load(Ordering::SeqCst);
        // Streams that open later have higher numbers and stay open.
        self.shared.state.send_modify(|state| state.closed_up_to = opened);
    }

    /// Returns the clients with an open discovery stream, oldest first.
    pub fn clients(&self) -> Vec<ClientRecord> {
        // Cloned, so that no client is locked while the map is.
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

    /// Returns the number of discovery streams opened so far, rejected ones included.
    pub fn streams(&self) -> u64 {
        self.shared.opened.load(Ordering::SeqCst)
    }

    /// Returns the number of load reporting streams opened so far, rejected ones included.
    pub fn lrs_streams(&self) -> u64 {
        self.shared.lrs_opened.load(Ordering::SeqCst)
    }

    /// Records every request from this call on, for tests of clients.
    ///
    /// The record has no limit: a control plane that runs for long, or serves untrusted clients, must not use it.
    pub fn record_requests(&self) {
        self.shared.requests.get_or_init(Mutex::default);
    }

    /// Returns the recorded requests of all clients in the order of arrival. Empty unless
    /// [`record_requests`](SnapshotCache::record_requests) was called.
    pub fn client_requests(&self) -> Vec<ClientRequest> {
        self.shared.requests.get().map(|requests| lock(requests).clone()).unwrap_or_default()
    }

    /// Returns the reported load, by client, cluster, priority and locality.
    pub fn load_stats(&self) -> Vec<LocalityLoadStats> {
        lock(&self.shared.loads).reports()
    }

    /// Returns the reported drops, by client, cluster and category.
    pub fn drop_stats(&self) -> Vec<DropStats> {
        lock(&self.shared.loads).drops()
    }

    /// Returns a receiver of a number that increases with every change: resources, clients, ACKs, NACKs and load
    /// reports.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Subscribes to the events of clients from this call on. A reader that is far behind misses some.
    pub fn events(&self) -> broadcast::Receiver<ClientEvent> {
        self.shared.events.subscribe()
    }

    /// Waits until every client that subscribes to this type has been sent the current resources and has ACKed them.
    ///
    /// At least one client must subscribe: until then this waits.
    pub async fn wait_acked<M: NamedResource>(&self) {
        let type_url = M::type_url();
        self.wait_until(|cache| {
            let snapshot = cache.state().snapshot;
            let clients = lock(&cache.shared.clients).clone();
            let mut subscribers = clients
                .values()
                .filter_map(|client| lock(client).stream.is_in_sync(&type_url, &snapshot))
                .peekable();
            // Without a subscriber the condition is not met.
            subscribers.peek().is_some() && subscribers.all(|is_in_sync| is_in_sync)
        })
        .await;
    }

    /// Waits until a client has NACKed the current resources of this type, and returns the NACK.
    pub async fn wait_nacked<M: NamedResource>(&self) -> Nack {
        let type_url = M::type_url();
        let find = || {
            let snapshot = self.state().snapshot;
            let clients = lock(&self.shared.clients).clone();
            clients.values().find_map(|client| lock(client).stream.rejection(&type_url, &snapshot).cloned())
        };
        let mut changes = self.changes();
        loop {
            // Before the check, so that a change during the check is not missed.
            changes.mark_unchanged();
            if let Some(nack) = find() {
                return nack;
            }
            // The sender is in `self`, so this cannot fail.
            let _ = changes.changed().await;
        }
    }

    /// Waits until `condition` returns true. It is evaluated again after every change of this cache.
    pub async fn wait_until(&self, mut condition: impl FnMut(&SnapshotCache) -> bool) {
        let mut changes = self.changes();
        loop {
            // Before the check, so that a change during the check is not missed.
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

    /// Adds a load report. Returns an error, and adds nothing, if a name in it is too long.
    pub(crate) fn report_load(&self, node_id: &str, stats: Vec<ClusterStats>) -> Result<(), LimitExceeded> {
        let maximum = self.client_limits().name_bytes;
        // All are checked before the first is added: a report above the limits adds nothing.
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

    /// Counts a stream as open until the slot is dropped. Returns `None` if the maximum number is reached.
    pub(crate) fn open_slot(&self) -> Option<StreamSlot> {
        let maximum = self.client_limits().streams;
        let open = &self.shared.open_streams;
        let opened = open.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
            (count < maximum).then(|| count.saturating_add(1))
        });
        opened.ok().map(|_| StreamSlot { open: Arc::clone(open) })
    }

    /// Counts a load reporting stream. Returns false if [`FaultModes::refuse_lrs`] rejects it.
    pub(crate) fn open_lrs(&self) -> bool {
        self.shared.lrs_opened.fetch_add(1, Ordering::SeqCst);
        self.notify_changed();
        !self.fault_modes().refuse_lrs
    }

    /// Adds a request to the record, if requests are recorded. The caller notifies of the change.
    pub(crate) fn record_request<M: Clone + Into<ClientRequest>>(&self, request: &M) {
        if let Some(requests) = self.shared.requests.get() {
            lock(requests).push(request.clone().into());
        }
    }

    /// Registers a discovery stream. Returns `None` if [`FaultModes::one_stream`] rejects it.
    pub(crate) fn open(&self, variant: ProtocolVariant, peer: Option<SocketAddr>) -> Option<ClientStream> {
        let mut clients = lock(&self.shared.clients);
        let number = self.shared.opened.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        // The map is locked, so of two streams that open at once only one finds it empty.
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

/// Slot of an open stream, counted until this is dropped.
pub(crate) struct StreamSlot {
    open: Arc<AtomicUsize>,
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Registration of a client, removed when its stream ends.
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
        // Released before the waiters wake up, since they lock the client.
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
        // Sending fails only if there are no readers, which is allowed.
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

/// Locks a mutex. Poisoning is ignored: the panic of a caller's closure is reported elsewhere, and leaves consistent
/// data.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
