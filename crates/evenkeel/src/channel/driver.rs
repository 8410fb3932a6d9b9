//! The driver: one task per channel that runs the core's passes and performs their effects.
//!
//! The driver collects all pending events, runs one pass and publishes one snapshot, so a burst of events costs one
//! pass. It waits for nothing but the next event. Connections are tasks of their own that report here.
//!
//! A pass may open and close thousands of connections. The driver does this in batches, so that calls and events are
//! served in between. Passes, connection attempts and closing share the threads with calls, and each has a bounded
//! share of the time ([`PassPacer`], [`ConnectQueue`], [`CLOSE_PAUSE`]).
//!
//! After the idle timeout without calls, the driver drops policies, connections and subscriptions. The next call
//! starts them again (A62).

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use std::{future, mem};

use evenkeel_core::{
    Backoff, CallCounters, ConnectivityState, Core, Endpoint, Endpoints, Instant, LbConfig, LbEffect,
    LbEvent, LbLabels, LbUpdate, LoadReport, PassResult, ReleasedValues, Rng, RootPicker, Status,
    SubchannelId,
};
use evenkeel_xds::resolver::XdsResolverUpdate;
use evenkeel_xds::routing::ConfigSelector;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{self, sleep_until};

use crate::call::InFlightCalls;
use crate::channel::id_map::IdMap;
use crate::channel::pass_pacer::{PassPacer, PassUrgency};
use crate::channel::snapshot::{ChannelState, ConnectionMap, SnapshotPublisher};
use crate::channel::{ChannelCommand, DefaultHeaders};
use crate::credentials::{CertificateProviders, ClusterTls, Credentials};
use crate::load::oob::{self, LoadStreamConfig};
use crate::resolver::dns::{self, DnsRefresh};
use crate::resolver::xds::{XdsClient, XdsSubscription};
use crate::telemetry::metrics::{ChannelMetrics, ConnectionMeter, SecurityLevel};
use crate::transport::connect_queue::{ConnectQueue, ConnectRequest};
use crate::transport::connection::{self, Connection, Disconnect, Http2Config};
use crate::transport::{self, Connector};
use crate::{clock, entropy};

/// Time for which calls fail after a policy panicked, before the policy runs again.
const PANIC_RESTART_DELAY: Duration = Duration::from_secs(1);

/// Minimum number of effects of a large pass. Its closes are deferred until its connection attempts have started.
const LARGE_CHANGE: usize = 512;

/// Number of connections dropped before the driver yields, while no calls are in flight.
const RELEASE_BATCH: usize = 32;

/// Number of connections dropped at once while calls are in flight, and the pause that follows. Dropping one takes a
/// few system calls, and calls need most of the time.
const RELEASE_BATCH_WITH_CALLS: usize = 4;
const CLOSE_PAUSE: Duration = Duration::from_millis(2);

/// Number of deferred closes processed at once.
const CLOSE_BATCH: usize = 512;

/// Source of a channel's endpoints.
#[derive(Clone)]
pub(crate) enum ResolverConfig {
    /// Endpoints and routes from a control plane.
    Xds { client: XdsClient, target: Arc<str>, authority: Option<Arc<str>>, channel_id: u64 },
    /// Endpoints from DNS, with the policy of the service config.
    Dns { host: Arc<str>, port: u16, config: LbConfig },
    /// Addresses that the target lists.
    Fixed { endpoints: Endpoints, config: LbConfig },
}

/// Settings that are constant for the lifetime of a channel, except for the keepalive time, which may grow (A8).
pub(crate) struct DriverConfig {
    pub(crate) source: ResolverConfig,
    pub(crate) credentials: Credentials,
    /// Certificate providers for clusters with a security config; `None` if the credentials ignore such configs.
    pub(crate) providers: Option<Arc<CertificateProviders>>,
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) default_headers: DefaultHeaders,
    pub(crate) metrics: ChannelMetrics,
    /// Name that certificates must be valid for.
    pub(crate) host: Arc<str>,
    pub(crate) http2: Http2Config,
    pub(crate) backoff: Backoff,
    pub(crate) attempt_delay: Duration,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) counters: Arc<CallCounters>,
    /// Makes runs reproducible if set.
    pub(crate) seed: Option<u64>,
}

/// The driver of one channel.
pub(crate) struct ChannelDriver {
    settings: DriverConfig,
    published: Arc<SnapshotPublisher>,
    calls: Arc<InFlightCalls>,
    commands: mpsc::UnboundedReceiver<ChannelCommand>,
    active: Option<ActiveChannel>,
}

/// Event reported by the task of a connection.
enum ConnectionEvent {
    /// An attempt succeeded, after its polls took this long.
    Connected(SubchannelId, Arc<Connection>, Duration),
    /// An attempt failed, after its polls took this long.
    Failed(SubchannelId, Status, Duration),
    Lost(SubchannelId, Disconnect),
    Load(SubchannelId, LoadReport),
}

/// Event that the driver waits for.
enum DriverEvent {
    ChannelCommand(Option<ChannelCommand>),
    Connection(ConnectionEvent),
    Resolver(ResolverUpdate),
    /// A call started to wait for the next snapshot.
    CallWaiting,
    Time,
}

impl ChannelDriver {
    pub(crate) fn new(
        settings: DriverConfig,
        published: Arc<SnapshotPublisher>,
        calls: Arc<InFlightCalls>,
        commands: mpsc::UnboundedReceiver<ChannelCommand>,
    ) -> ChannelDriver {
        ChannelDriver { settings, published, calls, commands, active: None }
    }

    /// Runs until the channel is closed or its last handle is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            let Some(event) = self.next().await else {
                self.release_some();
                continue;
            };
            if !self.handle_event(event) {
                return;
            }
            while let Some(event) = self.try_next() {
                if !self.handle_event(event) {
                    return;
                }
            }
            self.pass_if_due();
        }
    }

    /// Runs a pass if one is due. Otherwise starts the connection attempts that the queue admits.
    fn pass_if_due(&mut self) {
        let Some(active) = &mut self.active else { return };
        let now = clock::now();
        if active.pass_due_at(&self.published).is_some_and(|due| due <= now) {
            self.pass();
        } else {
            active.start_connects(now, &self.settings);
        }
    }

    /// Returns the next event. Returns `None` after yielding once while deferred work is left and no event is
    /// pending.
    async fn next(&mut self) -> Option<DriverEvent> {
        // Every future below is cancel-safe: `select!` drops the losers without losing an event.
        let wake_at = self.active.as_ref().map(|active| active.wake_at(&self.published));
        // Connection attempts come before deferred drops. A pause of the closes ends with the timer, not with a
        // yield.
        let is_busy = self.active.as_ref().is_some_and(|active| {
            active.has_deferred_work() && active.connect_queue.due().is_none() && active.close_at.is_none()
        });
        let is_deferring = self.active.as_ref().is_some_and(|active| active.pacer.is_deferring());
        let (reports, resolver) = match &mut self.active {
            Some(active) => (Some(&mut active.reports), Some(&mut active.resolver)),
            None => (None, None),
        };
        let report = async {
            match reports {
                Some(reports) => reports.recv().await,
                None => future::pending().await,
            }
        };
        let resolver = async {
            match resolver {
                Some(resolver) => resolver.next().await,
                None => future::pending().await,
            }
        };
        let due = async {
            match wake_at {
                Some(at) => sleep_until(clock::sleep_until(at)).await,
                None => future::pending().await,
            }
        };
        Some(tokio::select! {
            command = self.commands.recv() => DriverEvent::ChannelCommand(command),
            // `ActiveChannel` holds a sender, so `recv` never returns `None` here.
            Some(report) = report => DriverEvent::Connection(report),
            update = resolver => DriverEvent::Resolver(update),
            () = self.published.wait_for_waiter(), if is_deferring => DriverEvent::CallWaiting,
            () = due => DriverEvent::Time,
            () = yield_now(), if is_busy => return None,
        })
    }

    /// Returns an event that is pending already, without waiting.
    fn try_next(&mut self) -> Option<DriverEvent> {
        if let Some(report) = self.active.as_mut().and_then(|active| active.reports.try_recv().ok()) {
            return Some(DriverEvent::Connection(report));
        }
        self.commands.try_recv().ok().map(|command| DriverEvent::ChannelCommand(Some(command)))
    }

    /// Applies an event. Returns false if the channel is closed.
    fn handle_event(&mut self, event: DriverEvent) -> bool {
        match event {
            DriverEvent::ChannelCommand(None | Some(ChannelCommand::Close)) => return false,
            DriverEvent::ChannelCommand(Some(ChannelCommand::Describe(answer))) => {
                let describe = || self.active.as_ref().and_then(|active| active.core.describe());
                // The policy may be the application's own. If it panics, there is no description.
                let tree = catch_unwind(AssertUnwindSafe(describe)).unwrap_or_else(|_| {
                    tracing::error!("load balancing policy panicked in describe");
                    None
                });
                let _ = answer.send(tree);
            }
            DriverEvent::ChannelCommand(Some(ChannelCommand::Wake)) => {
                self.activate().pacer.record(PassUrgency::Immediate);
            }
            DriverEvent::ChannelCommand(Some(ChannelCommand::ExitIdle)) => {
                let active = self.activate();
                active.core.handle(LbEvent::ExitIdle, clock::now());
                active.pacer.record(PassUrgency::Immediate);
            }
            DriverEvent::ChannelCommand(Some(ChannelCommand::Connect(id))) => {
                if let Some(active) = &mut self.active {
                    active.core.handle(LbEvent::Connect(id), clock::now());
                    active.pacer.record(PassUrgency::Prompt);
                }
            }
            DriverEvent::Connection(report) => {
                if let Some(active) = &mut self.active {
                    let too_many_pings = active.handle_event(report);
                    if too_many_pings && let Some(keepalive) = &mut self.settings.http2.keepalive {
                        keepalive.time = keepalive.time.saturating_mul(2);
                        tracing::warn!(time = ?keepalive.time, "received GOAWAY with too_many_pings, keepalive time doubled");
                    }
                }
            }
            DriverEvent::Resolver(update) => {
                if let Some(active) = &mut self.active {
                    active.handle_resolver_update(update);
                    active.pacer.record(PassUrgency::Immediate);
                }
            }
            // Nothing to do: `pass_due_at` takes waiting calls into account.
            DriverEvent::CallWaiting => {}
            DriverEvent::Time => {
                // Continue work that is in progress before dropping what has been closed.
                let now = clock::now();
                let has_pending_work = |active: &ActiveChannel| {
                    active.wake_at.is_some_and(|at| at <= now)
                        || active.connect_queue.is_paced()
                        || active.close_at.is_some_and(|at| at > now)
                };
                if !self.active.as_ref().is_some_and(has_pending_work) {
                    self.release_some();
                } else if let Some(active) = &mut self.active {
                    active.close_at =
                        active.close_at.map(|at| if at <= now { now + CLOSE_PAUSE } else { at });
                }
                self.enter_idle_if_due();
            }
        }
        true
    }

    /// Starts the policies and the resolver, unless they run already.
    fn activate(&mut self) -> &mut ActiveChannel {
        self.active.get_or_insert_with(|| ActiveChannel::new(&self.settings, &self.calls))
    }

    /// Enters IDLE if there were no calls for the idle timeout.
    fn enter_idle_if_due(&mut self) {
        let (Some(active), Some(timeout)) = (&mut self.active, self.settings.idle_timeout) else { return };
        if clock::now() < active.idle_at {
            return;
        }
        let calls_started = self.calls.started();
        if self.calls.in_flight() > 0
            || mem::replace(&mut active.calls_started, calls_started) != calls_started
        {
            active.idle_at = clock::now() + timeout;
            return;
        }
        tracing::info!(idle_timeout = ?timeout, "channel entering IDLE");
        self.active = None;
        self.published.publish(ChannelState::Idle, ConnectionMap::default());
        self.published.update_connectivity(ConnectivityState::Idle);
        // A call may have started since the check above. It then uses the earlier snapshot or sees `Idle` and wakes
        // the channel.
    }

    /// Runs a pass, applies its effects and publishes a snapshot if calls should see a change.
    fn pass(&mut self) {
        let Some(active) = &mut self.active else { return };
        let began = clock::now();
        // The policy may be the application's own. If it panics, the channel restarts and its calls fail meanwhile.
        let Ok(pass) = catch_unwind(AssertUnwindSafe(|| active.core.reconcile(began))) else {
            tracing::error!("load balancing policy panicked in reconcile, policy tree rebuilt");
            let status = Status::new(evenkeel_core::Code::Internal, "a load balancing policy panicked");
            self.published.publish(ChannelState::Failed(status), ConnectionMap::default());
            let mut fresh = ActiveChannel::new(&self.settings, &self.calls);
            fresh.is_dirty = false;
            fresh.wake_at = Some(clock::now() + PANIC_RESTART_DELAY);
            self.active = Some(fresh);
            return;
        };
        let PassResult { effects, connectivity, picker, wake_at, released, .. } = pass;
        active.wake_at = wake_at;
        active.is_ready = connectivity == ConnectivityState::Ready;
        active.released_values.append(released);
        if let Some(picker) = picker {
            active.picker = Some(picker);
            active.is_dirty = true;
        }
        let now = clock::now();
        let is_large_change = effects.len() >= LARGE_CHANGE;
        for effect in effects {
            match effect {
                LbEffect::Close { id } if is_large_change => {
                    active.connect_queue.cancel(id);
                    active.closes.push(id);
                }
                effect => active.apply_effect(effect, now, &self.settings),
            }
        }
        if mem::take(&mut active.is_dirty) {
            self.published.publish(active.channel_state(), active.connections.clone());
        }
        self.published.update_connectivity(active.connectivity(connectivity));
        active.resolver.handle_pass(&active.core);
        active.start_connects(now, &self.settings);
        active.pacer.finish_pass(began, clock::now());
    }

    /// Processes a batch of deferred closes. If there are none, drops a batch of closed connections and retired
    /// state.
    fn release_some(&mut self) {
        let Some(active) = &mut self.active else { return };
        let has_calls = active.calls_in_flight();
        active.close_at = has_calls.then(|| clock::now() + CLOSE_PAUSE);
        // Calls must not see a connection that is dropped, so closes are published before anything is dropped.
        if !active.closes.is_empty() {
            let first = active.closes.len().saturating_sub(CLOSE_BATCH);
            for id in active.closes.split_off(first) {
                active.close(id);
            }
            if mem::take(&mut active.is_dirty) {
                self.published.publish(active.channel_state(), active.connections.clone());
            }
            return;
        }
        let at_once = if has_calls { RELEASE_BATCH_WITH_CALLS } else { RELEASE_BATCH };
        active.released.truncate(active.released.len().saturating_sub(at_once));
        active.released_values.drop_some();
    }
}

impl Drop for ChannelDriver {
    /// Also runs when the runtime shuts down: calls must not wait for a driver that no longer exists.
    fn drop(&mut self) {
        self.published.publish(ChannelState::Closed, ConnectionMap::default());
        self.published.connectivity().send_replace(ConnectivityState::Idle);
    }
}

/// State of a channel that is not IDLE.
struct ActiveChannel {
    core: Core,
    resolver: Resolver,
    route: RouteState,
    picker: Option<RootPicker>,
    connections: ConnectionMap,
    /// Events of this core's connections only: another core may assign the same ids to other subchannels.
    reports: mpsc::UnboundedReceiver<ConnectionEvent>,
    reporter: mpsc::UnboundedSender<ConnectionEvent>,
    /// Connection attempts that wait or are in progress.
    connect_queue: ConnectQueue,
    /// Closed subchannels of a large pass. No picker returns them.
    closes: Vec<SubchannelId>,
    /// Connections that are in no snapshot, to be dropped in batches.
    released: Vec<Arc<Connection>>,
    /// Time at which the driver drops more connections, if it pauses.
    close_at: Option<Instant>,
    /// Values that the policies no longer need, to be dropped in parts.
    released_values: ReleasedValues,
    load: LoadWatches,
    metrics: ChannelMetrics,
    meters: IdMap<ConnectionMeter>,
    /// True if the published snapshot is out of date.
    is_dirty: bool,
    /// True if the last pass resulted in READY.
    is_ready: bool,
    pacer: PassPacer,
    wake_at: Option<Instant>,
    idle_at: Instant,
    calls_started: u32,
    calls: Arc<InFlightCalls>,
}

/// Routing of calls to clusters.
enum RouteState {
    /// No config has arrived.
    Unknown,
    /// There are no routes; all calls use the same picker.
    Direct,
    /// The control plane's routes select the cluster.
    Selector(Arc<ConfigSelector>),
    /// There is no usable config; calls fail with this status.
    Failed(Status),
}

impl ActiveChannel {
    fn new(settings: &DriverConfig, calls: &Arc<InFlightCalls>) -> ActiveChannel {
        let seed = settings.seed.unwrap_or_else(entropy::fresh);
        let rng = if settings.seed.is_some() { Rng::fixed(seed) } else { Rng::from_entropy(seed) };
        let mut core = Core::builder(rng)
            .backoff(settings.backoff.clone())
            .attempt_delay(settings.attempt_delay)
            .measure(settings.metrics.records_policies())
            .per_cluster_transport(settings.providers.is_some())
            .counters(settings.counters.clone());
        if let ResolverConfig::Xds { client, .. } = &settings.source {
            core = core.load_store(client.load_store().clone());
        }
        let now = clock::now();
        let (reporter, reports) = mpsc::unbounded_channel();
        let mut active = ActiveChannel {
            core: core.build(),
            resolver: Resolver::Fixed,
            route: RouteState::Unknown,
            picker: None,
            connections: ConnectionMap::default(),
            load: LoadWatches::new(settings, reporter.clone()),
            metrics: settings.metrics.clone(),
            meters: IdMap::default(),
            reports,
            reporter,
            connect_queue: ConnectQueue::new(Handle::current().metrics().num_workers()),
            closes: Vec::new(),
            released: Vec::new(),
            close_at: None,
            released_values: ReleasedValues::default(),
            is_dirty: true,
            is_ready: false,
            pacer: PassPacer::default(),
            wake_at: None,
            idle_at: now + settings.idle_timeout.unwrap_or(Duration::MAX),
            calls_started: calls.started(),
            calls: calls.clone(),
        };
        match &settings.source {
            ResolverConfig::Fixed { endpoints, config } => {
                active.core.update(LbUpdate::new(config.clone(), endpoints.clone()));
                active.route = RouteState::Direct;
            }
            ResolverConfig::Dns { host, port, config } => {
                active.resolver = Resolver::Dns(DnsResolver::new(host.clone(), *port, config.clone(), seed));
            }
            ResolverConfig::Xds { client, target, authority, channel_id } => {
                match client.watch_target(target, authority.as_deref(), *channel_id, settings.metrics.xds()) {
                    Ok(subscription) => {
                        active.resolver = Resolver::Xds { client: client.clone(), subscription };
                    }
                    Err(error) => active.route = RouteState::Failed(Status::unavailable(error.to_string())),
                }
            }
        }
        active
    }

    /// Returns true if closed subchannels, connections or retired state wait to be dropped.
    fn has_deferred_work(&self) -> bool {
        !(self.closes.is_empty() && self.released.is_empty() && self.released_values.is_empty())
    }

    /// Returns the time at which the driver has something to do without an event.
    fn wake_at(&self, published: &SnapshotPublisher) -> Instant {
        let close_at =
            self.close_at.filter(|_| self.has_deferred_work() && self.connect_queue.due().is_none());
        let times = [self.pass_due_at(published), self.connect_queue.due(), close_at];
        times.into_iter().flatten().fold(self.idle_at, Instant::min)
    }

    /// Returns the time of the next pass, `None` if nothing needs one.
    fn pass_due_at(&self, published: &SnapshotPublisher) -> Option<Instant> {
        let least = if !self.is_ready || published.has_waiters() {
            PassUrgency::Prompt
        } else if self.calls_in_flight() {
            PassUrgency::Background
        } else {
            PassUrgency::Routine
        };
        self.pacer.due_at(least, self.wake_at)
    }

    /// Returns true if calls compete for the processor: the channel is READY and calls are in flight.
    fn calls_in_flight(&self) -> bool {
        self.is_ready && self.calls.in_flight() > 0
    }

    /// Applies an event of a connection. Returns true if the peer rejected our keepalive pings (`too_many_pings`,
    /// A8).
    fn handle_event(&mut self, report: ConnectionEvent) -> bool {
        let now = clock::now();
        // Closed connections and cancelled attempts report as well. The core ignores those events, and they need no
        // pass.
        match report {
            ConnectionEvent::Connected(id, connection, spent) => {
                self.connect_queue.handle_finished(id, spent);
                // If the core has closed the subchannel, dropping the handle closes the connection.
                if self.core.handle(LbEvent::Connected(id), now) {
                    let is_first = !self.is_ready;
                    self.pacer.record(if is_first {
                        PassUrgency::Immediate
                    } else {
                        PassUrgency::Background
                    });
                    tracing::debug!(address = %connection.transport_state().address(), "subchannel connected");
                    let transport = connection.transport_state();
                    self.calls.channel_stats().attach(transport.address(), transport.stats());
                    self.load.connected(id, &connection);
                    self.meters.insert(id, self.metrics.connected(self.labels(id), transport.security()));
                    // In a large change, the index is reused before the earlier subchannel is closed. Dropping its
                    // connection here would close one for each that opens, at the expense of calls.
                    self.released.extend(self.connections.insert(id, connection));
                    self.is_dirty = true;
                }
                false
            }
            ConnectionEvent::Failed(id, status, spent) => {
                self.connect_queue.handle_finished(id, spent);
                tracing::debug!(error = status.message(), "connection attempt failed");
                let labels = self.labels(id);
                // A cancelled attempt is counted neither as succeeded nor as failed (A94).
                if self.core.handle(LbEvent::ConnectFailed(id, status), now) {
                    self.pacer.record(PassUrgency::Background);
                    self.metrics.connect_failed(&labels);
                }
                false
            }
            ConnectionEvent::Load(id, report) => {
                if let Some(connection) = self.connections.get(id) {
                    connection.transport_state().stats().load(&report);
                }
                if self.core.handle(LbEvent::Load(id, report), now) {
                    self.pacer.record(PassUrgency::Background);
                }
                false
            }
            ConnectionEvent::Lost(id, disconnect) => {
                self.load.lost(id);
                if let Some(mut meter) = self.meters.remove(&id) {
                    meter.lost(disconnect.reason);
                }
                if let Some(connection) = self.connections.remove(id) {
                    if connection.transport_state().has_served_calls() {
                        self.core.handle(LbEvent::ResponseReceived(id), now);
                    }
                    tracing::info!(
                    address = %connection.transport_state().address(),
                    reason = ?disconnect.reason,
                    error = disconnect.status.message(),
                    "subchannel disconnected"
                    );
                    self.is_dirty = true;
                    self.pacer.record(PassUrgency::Prompt);
                }
                if self.core.handle(LbEvent::Disconnected(id, disconnect.status), now) {
                    self.pacer.record(PassUrgency::Prompt);
                }
                disconnect.too_many_pings
            }
        }
    }

    fn handle_resolver_update(&mut self, update: ResolverUpdate) {
        match update {
            ResolverUpdate::Xds(XdsResolverUpdate { update, route }) => {
                self.core.update(update);
                self.route = match route {
                    Ok(selector) => RouteState::Selector(selector),
                    Err(status) => RouteState::Failed(status),
                };
                self.is_dirty = true;
            }
            ResolverUpdate::Resolved(update) => {
                self.core.update(update);
                self.route = RouteState::Direct;
                self.is_dirty = true;
            }
            ResolverUpdate::Failed(status) => {
                tracing::warn!(error = status.message(), "name resolution failed");
                if matches!(self.route, RouteState::Unknown | RouteState::Failed(_)) {
                    self.route = RouteState::Failed(status);
                    self.is_dirty = true;
                }
            }
        }
    }

    fn start_connects(&mut self, now: Instant, settings: &DriverConfig) {
        let calls_in_flight = self.calls_in_flight();
        while let Some(request) = self.connect_queue.next(now, calls_in_flight) {
            let id = request.id;
            // Without the subchannel, its cluster's security config is unknown, and the attempt must not run without
            // it.
            let Some(subchannel) = self.core.subchannel(id) else {
                self.connect_queue.cancel(id);
                continue;
            };
            let mut connecting = ConnectAttempt::new(settings, id, &self.reporter);
            if let (Some(means), Some(providers)) = (subchannel.transport(), &settings.providers) {
                connecting.cluster = Some(ClusterTls::new(means.clone(), providers.clone()));
            }
            let task = tokio::spawn(run_connect_attempt(request, connecting));
            self.connect_queue.handle_started(id, task.abort_handle(), now);
        }
    }

    fn apply_effect(&mut self, effect: LbEffect, now: Instant, settings: &DriverConfig) {
        match effect {
            LbEffect::Connect { id, address, deadline } => {
                self.connect_queue.push(ConnectRequest { id, address, deadline });
                // The first attempts run while the remaining effects are applied.
                self.start_connects(now, settings);
            }
            LbEffect::Close { id } => self.close(id),
            LbEffect::WatchLoad { id, every } => self.load.watch(id, every, self.connections.get(id)),
            LbEffect::Reresolve => self.resolver.reresolve(),
            LbEffect::Measure(measurement) => self.metrics.record_measurement(&measurement),
            LbEffect::Warn(text) => tracing::warn!("{text}"),
            // A later version of the core may return effects that this driver does not know.
            other => tracing::warn!(effect = ?other, "unsupported effect ignored"),
        }
    }

    fn close(&mut self, id: SubchannelId) {
        self.connect_queue.cancel(id);
        self.load.watch(id, None, None);
        self.meters.remove(&id);
        if let Some(connection) = self.connections.remove(id) {
            self.released.push(connection);
            self.is_dirty = true;
        }
    }

    /// Returns the metric labels of a subchannel, empty if no metric needs them.
    fn labels(&self, id: SubchannelId) -> LbLabels {
        if self.metrics.needs_labels() { self.core.labels(id) } else { LbLabels::default() }
    }

    /// Returns the state for the next snapshot.
    fn channel_state(&self) -> ChannelState {
        let selector = match &self.route {
            RouteState::Unknown => return ChannelState::Resolving,
            RouteState::Failed(status) => return ChannelState::Failed(status.clone()),
            RouteState::Direct => None,
            RouteState::Selector(selector) => Some(selector.clone()),
        };
        match &self.picker {
            Some(picker) => ChannelState::Active { selector, picker: picker.clone() },
            None => ChannelState::Resolving,
        }
    }

    fn connectivity(&self, core_state: ConnectivityState) -> ConnectivityState {
        match self.route {
            RouteState::Unknown => ConnectivityState::Connecting,
            RouteState::Failed(_) => ConnectivityState::TransientFailure,
            RouteState::Direct | RouteState::Selector(_) => core_state,
        }
    }
}

/// Subchannels with out-of-band load reports, and their intervals. Dropping it ends the streams.
struct LoadWatches {
    default_headers: DefaultHeaders,
    metrics: ChannelMetrics,
    reporter: mpsc::UnboundedSender<ConnectionEvent>,
    all: IdMap<LoadWatch>,
}

struct LoadWatch {
    every: Duration,
    stream: Option<AbortHandle>,
}

impl LoadWatches {
    fn new(settings: &DriverConfig, reporter: mpsc::UnboundedSender<ConnectionEvent>) -> LoadWatches {
        let (default_headers, metrics) = (settings.default_headers.clone(), settings.metrics.clone());
        LoadWatches { default_headers, metrics, reporter, all: IdMap::default() }
    }

    /// Sets the report interval for this connection and its successors; `None` ends the reports. The stream is
    /// restarted, the connection is kept (ORCA-8).
    fn watch(&mut self, id: SubchannelId, every: Option<Duration>, connection: Option<&Arc<Connection>>) {
        self.all.remove(&id);
        let Some(every) = every else { return };
        self.all.insert(id, LoadWatch { every, stream: None });
        if let Some(connection) = connection {
            self.connected(id, connection);
        }
    }

    fn connected(&mut self, id: SubchannelId, connection: &Arc<Connection>) {
        let Some(watch) = self.all.get_mut(&id) else { return };
        let reporter = self.reporter.clone();
        let report = move |load| {
            let _ = reporter.send(ConnectionEvent::Load(id, load));
        };
        let stream_config = LoadStreamConfig {
            default_headers: self.default_headers.clone(),
            metrics: self.metrics.clone(),
            every: watch.every,
        };
        let stream = oob::watch(connection.clone(), stream_config, report);
        watch.end();
        watch.stream = Some(tokio::spawn(stream).abort_handle());
    }

    /// Ends the stream of a connection that takes no more calls (ORCA-10).
    fn lost(&mut self, id: SubchannelId) {
        if let Some(watch) = self.all.get_mut(&id) {
            watch.end();
        }
    }
}

impl LoadWatch {
    fn end(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.abort();
        }
    }
}

impl Drop for LoadWatch {
    fn drop(&mut self) {
        self.end();
    }
}

/// Inputs of a connection attempt, and a guard that reports its outcome exactly once.
struct ConnectAttempt {
    /// TLS settings of the cluster, in place of the credentials.
    cluster: Option<ClusterTls>,
    credentials: Credentials,
    connector: Arc<dyn Connector>,
    host: Arc<str>,
    http2: Http2Config,
    id: SubchannelId,
    reporter: mpsc::UnboundedSender<ConnectionEvent>,
    has_reported: bool,
}

impl ConnectAttempt {
    fn new(
        settings: &DriverConfig,
        id: SubchannelId,
        reporter: &mpsc::UnboundedSender<ConnectionEvent>,
    ) -> ConnectAttempt {
        ConnectAttempt {
            cluster: None,
            credentials: settings.credentials.clone(),
            connector: settings.connector.clone(),
            host: settings.host.clone(),
            http2: settings.http2.clone(),
            id,
            reporter: reporter.clone(),
            has_reported: false,
        }
    }

    fn report(&mut self, report: ConnectionEvent) {
        self.has_reported = true;
        let _ = self.reporter.send(report);
    }
}

impl Drop for ConnectAttempt {
    /// Reports a failure if the attempt has not reported. The connector may be the application's own and may panic.
    fn drop(&mut self) {
        if !self.has_reported {
            // A cancelled attempt reports as well; the core ignores it.
            let status = Status::new(evenkeel_core::Code::Internal, "the connector panicked");
            self.report(ConnectionEvent::Failed(self.id, status, Duration::ZERO));
        }
    }
}

/// Runs a connection from the attempt until its end.
async fn run_connect_attempt(
    ConnectRequest { id, address, deadline }: ConnectRequest,
    mut connecting: ConnectAttempt,
) {
    // Polls share the threads with calls. The time spent in them paces the next attempts.
    let mut spent = Duration::ZERO;
    let attempt = async {
        let ConnectAttempt { cluster, credentials, connector, host, http2, .. } = &connecting;
        let (io, level) = if let Some(cluster) = cluster {
            let io = transport::connect_by_cluster(&**connector, &address, cluster).await?;
            (io, SecurityLevel::PrivacyAndIntegrity)
        } else {
            let io = transport::connect(&**connector, &address, credentials, host).await?;
            (io, credentials.level())
        };
        connection::handshake(io, (address.clone(), level), http2).await
    };
    let result = {
        let mut attempt = pin!(time::timeout_at(clock::sleep_until(deadline), attempt));
        future::poll_fn(|cx| {
            let began = time::Instant::now();
            let polled = attempt.as_mut().poll(cx);
            spent += began.elapsed();
            polled
        })
        .await
    };
    match result {
        Ok(Ok((connection, task))) => {
            connecting.report(ConnectionEvent::Connected(id, Arc::new(connection), spent));
            task.run(|disconnect| connecting.report(ConnectionEvent::Lost(id, disconnect))).await;
        }
        Ok(Err(status)) => connecting.report(ConnectionEvent::Failed(id, status, spent)),
        Err(_) => {
            let status = Status::unavailable(format!("connecting to {address}: no answer in time"));
            connecting.report(ConnectionEvent::Failed(id, status, spent));
        }
    }
}

/// Source of updates while a channel is not IDLE.
enum Resolver {
    /// The endpoints never change.
    Fixed,
    Dns(DnsResolver),
    Xds {
        client: XdsClient,
        subscription: XdsSubscription,
    },
}

/// Update of endpoints, config or routes.
enum ResolverUpdate {
    Xds(XdsResolverUpdate),
    Resolved(LbUpdate),
    Failed(Status),
}

impl Resolver {
    /// Returns the next update. Cancel-safe: no update is lost if the future is dropped.
    async fn next(&mut self) -> ResolverUpdate {
        match self {
            Resolver::Fixed => future::pending().await,
            Resolver::Dns(dns) => dns.next().await,
            Resolver::Xds { subscription, .. } => match subscription.changed().await {
                Some(step) => ResolverUpdate::Xds(step),
                None => future::pending().await,
            },
        }
    }

    fn reresolve(&mut self) {
        match self {
            Resolver::Fixed => {}
            Resolver::Dns(dns) => dns.refresh.request(clock::now()),
            Resolver::Xds { subscription, .. } => subscription.reresolve(),
        }
    }

    /// Forwards the result of a pass: the clusters that policies subscribe to, and a hint that load reports changed.
    fn handle_pass(&mut self, core: &Core) {
        if let Resolver::Xds { client, subscription } = self {
            subscription.watch_clusters(core.subscribed_clusters().cloned().collect());
            client.notify_pass();
        }
    }
}

/// A DNS name that is resolved again when a policy requests it.
struct DnsResolver {
    host: Arc<str>,
    port: u16,
    config: LbConfig,
    refresh: DnsRefresh,
    rng: Rng,
    running: Option<DnsLookup>,
}

type DnsLookup = Pin<Box<dyn Future<Output = Result<Vec<SocketAddr>, Status>> + Send>>;

impl DnsResolver {
    fn new(host: Arc<str>, port: u16, config: LbConfig, seed: u64) -> DnsResolver {
        DnsResolver {
            host,
            port,
            config,
            refresh: DnsRefresh::new(),
            rng: Rng::from_entropy(seed),
            running: None,
        }
    }

    async fn next(&mut self) -> ResolverUpdate {
        if self.running.is_none() {
            match self.refresh.due() {
                Some(at) => sleep_until(clock::sleep_until(at)).await,
                None => future::pending().await,
            }
        }
        // The lookup stays in `running` if this future is dropped, so a cancelled `next` continues it.
        let (host, port) = (self.host.clone(), self.port);
        let resolving =
            self.running.get_or_insert_with(|| Box::pin(async move { dns::resolve(&host, port).await }));
        let resolved = resolving.await;
        self.running = None;
        match resolved {
            Ok(addresses) => {
                self.refresh.resolved(clock::now());
                let endpoints = Endpoints::list(addresses.into_iter().map(Endpoint::at));
                ResolverUpdate::Resolved(LbUpdate::new(self.config.clone(), endpoints))
            }
            Err(status) => {
                self.refresh.failed(clock::now(), &mut self.rng);
                ResolverUpdate::Failed(status)
            }
        }
    }
}
