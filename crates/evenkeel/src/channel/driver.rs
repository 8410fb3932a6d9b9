//! The driver: one task per channel that runs the core's passes and carries out their effects.
//!
//! It takes in everything that has happened, runs one pass, and publishes one snapshot; a storm of events is one pass. It never
//! waits for anything but the next event, so endpoints come and go whether or not calls are made. Connections are tasks of
//! their own that report here. A pass may want thousands of them to begin and to end: that is done a few at a time, since calls and
//! reports want their turn too. Passes, attempts to connect and closing share the threads with calls, and each has a bound on its
//! share of the time ([`PassPacer`], [`ConnectQueue`], [`CLOSE_PAUSE`]).
//!
//! A channel without calls for long goes to rest: policies, connections and subscriptions are let go, and the next call starts
//! them again (A62).

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use std::{future, mem};

use evenkeel_core::{
    Backoff, CallCounters, ConnectivityState, Core, DeferredDrop, Endpoint, Endpoints, Instant, LbConfig,
    LbEffect, LbEvent, LbLabels, LbUpdate, LoadReport, PassResult, Rng, RootPicker, Status, SubchannelId,
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

/// How long calls fail after a policy panicked, before it is run again.
const PANIC_RESTART_DELAY: Duration = Duration::from_secs(1);

/// From so many effects of a pass on, what ends waits until what begins has begun.
const LARGE_CHANGE: usize = 512;

/// How many connections are let go before others have their turn.
const RELEASE_BATCH: usize = 32;

/// Number of connections closed at once while calls are in flight, and the pause after them. Closing one takes a few system
/// calls, and calls keep most of the time.
const RELEASE_BATCH_WITH_CALLS: usize = 4;
const CLOSE_PAUSE: Duration = Duration::from_millis(2);

/// Number of subchannels whose end is taken in at once.
const CLOSE_BATCH: usize = 512;

/// Where a channel's endpoints come from.
#[derive(Clone)]
pub(crate) enum ResolverConfig {
    /// From a control plane, with the routes.
    Xds { client: XdsClient, target: Arc<str>, authority: Option<Arc<str>>, channel_id: u64 },
    /// From DNS.
    Dns { host: Arc<str>, port: u16, config: LbConfig },
    /// From the target itself.
    Fixed { endpoints: Endpoints, config: LbConfig },
}

/// What does not change while a channel lives.
pub(crate) struct DriverConfig {
    pub(crate) source: ResolverConfig,
    pub(crate) credentials: Credentials,
    /// Where certificates come from that clusters want used; `None` if clusters have no say.
    pub(crate) providers: Option<Arc<CertificateProviders>>,
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) default_headers: DefaultHeaders,
    pub(crate) metrics: ChannelMetrics,
    /// The name that certificates must be valid for.
    pub(crate) host: Arc<str>,
    pub(crate) http2: Http2Config,
    pub(crate) backoff: Backoff,
    pub(crate) attempt_delay: Duration,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) counters: Arc<CallCounters>,
    /// The same run each time, if set.
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

/// What a connection's task reports.
enum ConnectionEvent {
    /// An attempt succeeded, after its polls took this long.
    Connected(SubchannelId, Arc<Connection>, Duration),
    /// An attempt failed, after its polls took this long.
    Failed(SubchannelId, Status, Duration),
    Lost(SubchannelId, Disconnect),
    Load(SubchannelId, LoadReport),
}

/// Something that the driver waited for.
enum DriverEvent {
    ChannelCommand(Option<ChannelCommand>),
    Connection(ConnectionEvent),
    Resolver(ResolverUpdate),
    /// A call began to wait.
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

    /// Runs until the channel is closed, or its last handle is gone.
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

    /// Runs a pass if it is time for one. Otherwise begins attempts for which there is room.
    fn pass_if_due(&mut self) {
        let Some(active) = &mut self.active else { return };
        let now = clock::now();
        if active.pass_due_at(&self.published).is_some_and(|due| due <= now) {
            self.pass();
        } else {
            active.start_connects(now, &self.settings);
        }
    }

    /// The next that happens; `None` if nothing did, others had their turn, and there is something left to do.
    async fn next(&mut self) -> Option<DriverEvent> {
        let wake_at = self.active.as_ref().map(|active| active.wake_at(&self.published));
        // New connections come before the end of old ones, unless nothing happens but that time passes.
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
            // Who is awake holds a sender, so there is always a next one.
            Some(report) = report => DriverEvent::Connection(report),
            update = resolver => DriverEvent::Resolver(update),
            () = self.published.wait_for_waiter(), if is_deferring => DriverEvent::CallWaiting,
            () = due => DriverEvent::Time,
            () = yield_now(), if is_busy => return None,
        })
    }

    /// What else has happened already.
    fn try_next(&mut self) -> Option<DriverEvent> {
        if let Some(report) = self.active.as_mut().and_then(|active| active.reports.try_recv().ok()) {
            return Some(DriverEvent::Connection(report));
        }
        self.commands.try_recv().ok().map(|command| DriverEvent::ChannelCommand(Some(command)))
    }

    /// Takes in what happened; answers whether the channel goes on.
    fn handle_event(&mut self, event: DriverEvent) -> bool {
        match event {
            DriverEvent::ChannelCommand(None | Some(ChannelCommand::Close)) => return false,
            DriverEvent::ChannelCommand(Some(ChannelCommand::Describe(answer))) => {
                let describe = || self.active.as_ref().and_then(|active| active.core.describe());
                // A policy may be the application's own. If it panics there is nothing to see.
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
            // The time of the next pass depends on the calls that wait.
            DriverEvent::CallWaiting => {}
            DriverEvent::Time => {
                // What is begun in parts goes on before what has ended is let go.
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

    /// Starts the policies and the source of endpoints, unless they run.
    fn activate(&mut self) -> &mut ActiveChannel {
        self.active.get_or_insert_with(|| ActiveChannel::new(&self.settings, &self.calls))
    }

    /// Lets go of everything if there were no calls for long.
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
        // A call may have begun between the look and the publication: it then saw the old way, or wakes the channel.
    }

    /// Runs a pass, carries out what it says, and publishes what calls should see.
    fn pass(&mut self) {
        let Some(active) = &mut self.active else { return };
        let began = clock::now();
        // A policy may be the application's own. If it panics the channel starts anew, and tells its calls.
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
        let PassResult { effects, connectivity, picker, wake_at, deferred_drop, .. } = pass;
        active.wake_at = wake_at;
        active.is_ready = connectivity == ConnectivityState::Ready;
        active.deferred_drop.append(deferred_drop);
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

    fn release_some(&mut self) {
        let Some(active) = &mut self.active else { return };
        let has_calls = active.calls_in_flight();
        active.close_at = has_calls.then(|| clock::now() + CLOSE_PAUSE);
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
        active.deferred_drop.drop_some();
    }
}

impl Drop for ChannelDriver {
    /// Also when the runtime ends under it: nobody should wait for a driver that is gone.
    fn drop(&mut self) {
        self.published.publish(ChannelState::Closed, ConnectionMap::default());
        self.published.connectivity().send_replace(ConnectivityState::Idle);
    }
}

/// A channel that is not at rest.
struct ActiveChannel {
    core: Core,
    resolver: Resolver,
    route: RouteState,
    picker: Option<RootPicker>,
    connections: ConnectionMap,
    /// Of this core's connections only: another core may give the same ids to others.
    reports: mpsc::UnboundedReceiver<ConnectionEvent>,
    reporter: mpsc::UnboundedSender<ConnectionEvent>,
    /// Attempts to connect that are under way.
    connect_queue: ConnectQueue,
    /// Subchannels that are gone, of a storm: no picker leads to them.
    closes: Vec<SubchannelId>,
    /// Connections that calls do not see any more.
    released: Vec<Arc<Connection>>,
    /// Time at which the driver closes more connections, if it pauses.
    close_at: Option<Instant>,
    /// What the policies do not need any more.
    deferred_drop: DeferredDrop,
    load: LoadWatches,
    metrics: ChannelMetrics,
    meters: IdMap<ConnectionMeter>,
    /// Whether calls should see something else than they do.
    is_dirty: bool,
    /// The last pass led to READY.
    is_ready: bool,
    pacer: PassPacer,
    wake_at: Option<Instant>,
    idle_at: Instant,
    calls_started: u32,
    calls: Arc<InFlightCalls>,
}

/// How calls find their cluster.
enum RouteState {
    /// It is not known yet.
    Unknown,
    /// There are no routes; all calls go the same way.
    Direct,
    /// By the control plane's routes.
    Selector(Arc<ConfigSelector>),
    /// There is no config that could be used.
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
            deferred_drop: DeferredDrop::default(),
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

    /// Whether there is something left to be dropped.
    fn has_deferred_work(&self) -> bool {
        !(self.closes.is_empty() && self.released.is_empty() && self.deferred_drop.is_empty())
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

    /// Returns true if calls need the processor: some are in flight, and there are connections for them.
    fn calls_in_flight(&self) -> bool {
        self.is_ready && self.calls.in_flight() > 0
    }

    /// Takes in what became of a connection. Answers whether the peer complained of our pings (A8).
    fn handle_event(&mut self, report: ConnectionEvent) -> bool {
        let now = clock::now();
        // Connections and attempts that the driver closed report too. Those reports are no news and need no pass.
        match report {
            ConnectionEvent::Connected(id, connection, spent) => {
                self.connect_queue.handle_finished(id, spent);
                // One that nobody wants any more is let go by dropping it.
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
                    // In a storm the index is in use again before the earlier subchannel is closed. To drop its connection here
                    // would close one for each that begins, beside calls.
                    self.released.extend(self.connections.insert(id, connection));
                    self.is_dirty = true;
                }
                false
            }
            ConnectionEvent::Failed(id, status, spent) => {
                self.connect_queue.handle_finished(id, spent);
                tracing::debug!(error = status.message(), "connection attempt failed");
                let labels = self.labels(id);
                // An attempt that nobody waits for any more counts as neither (A94).
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
            // One that is gone already would be dialled without what its cluster wants; it is closed next.
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
                // The first are on their way while the others are taken in.
                self.start_connects(now, settings);
            }
            LbEffect::Close { id } => self.close(id),
            LbEffect::WatchLoad { id, every } => self.load.watch(id, every, self.connections.get(id)),
            LbEffect::Reresolve => self.resolver.reresolve(),
            LbEffect::Measure(measurement) => self.metrics.record_measurement(&measurement),
            LbEffect::Warn(text) => tracing::warn!("{text}"),
            // The core may learn to want more than this version can do.
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

    /// Where a subchannel stands, if metrics say it.
    fn labels(&self, id: SubchannelId) -> LbLabels {
        if self.metrics.needs_labels() { self.core.labels(id) } else { LbLabels::default() }
    }

    /// What calls should see.
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

/// Who is asked for out-of-band load reports, and how often; streams end when this is dropped.
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

    /// Asks this often from here on, on this connection and those after it; `None` ends it. The stream begins anew, the
    /// connection stays (ORCA-8).
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

    /// The connection takes no more calls: its stream ends too (ORCA-10).
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

/// What an attempt to connect needs, and its duty to report.
struct ConnectAttempt {
    /// What its cluster wants, in place of the credentials.
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
    /// A connector may be the application's own. If it panics, the attempt has failed.
    fn drop(&mut self) {
        if !self.has_reported {
            // An attempt that was given up reports it too, and nobody listens.
            let status = Status::new(evenkeel_core::Code::Internal, "the connector panicked");
            self.report(ConnectionEvent::Failed(self.id, status, Duration::ZERO));
        }
    }
}

/// A connection from the first attempt to its end.
async fn run_connect_attempt(
    ConnectRequest { id, address, deadline }: ConnectRequest,
    mut connecting: ConnectAttempt,
) {
    // Polls share the threads with calls: their time decides when other attempts begin.
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

/// Where updates come from while a channel is awake.
enum Resolver {
    /// There are none.
    Fixed,
    Dns(DnsResolver),
    Xds {
        client: XdsClient,
        subscription: XdsSubscription,
    },
}

/// An update.
enum ResolverUpdate {
    Xds(XdsResolverUpdate),
    Resolved(LbUpdate),
    Failed(Status),
}

impl Resolver {
    /// The next update. Nothing is lost if this is dropped before it is there.
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

    /// A pass is over: policies may want other clusters, and count other load.
    fn handle_pass(&mut self, core: &Core) {
        if let Resolver::Xds { client, subscription } = self {
            subscription.watch_clusters(core.subscribed_clusters().cloned().collect());
            client.notify_pass();
        }
    }
}

/// A DNS name that is looked up again when a policy asks for it.
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
