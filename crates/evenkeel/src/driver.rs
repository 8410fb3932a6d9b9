//! The driver: one task per channel that runs the core's passes and carries out their effects.
//!
//! It takes in everything that has happened, runs one pass, and publishes one snapshot; a storm of events is one pass. It never
//! waits for anything but the next event, so endpoints come and go whether or not calls are made. Connections are tasks of
//! their own that report here. A pass may want thousands of them to begin and to end: that is done a few at a time, since calls and
//! reports want their turn too. Passes, attempts to connect and closing share the threads with calls, and each has a bound on its
//! share of the time ([`PassPacer`], [`Dials`], [`CLOSE_PAUSE`]).
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
use evenkeel_xds::follow::XdsResolverUpdate;
use evenkeel_xds::routing::ConfigSelector;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{self, sleep_until};

use crate::call::Calls;
use crate::channel::{Command, Head};
use crate::connection::{self, Connection, Http2, Loss};
use crate::credentials::{ClusterTls, Credentials, Providers};
use crate::dials::{Dials, Wanted};
use crate::dns::{self, Refresh};
use crate::id_map::IdMap;
use crate::metrics::{ConnectionMeter, Metrics, SecurityLevel};
use crate::oob::{self, Asking};
use crate::pass_pacer::{PassPacer, PassUrgency};
use crate::snapshot::{Connections, Published, Way};
use crate::transport::{self, Connector};
use crate::xds::{Following, XdsClient};
use crate::{clock, entropy};

/// How long calls fail after a policy panicked, before it is run again.
const AFTER_A_PANIC: Duration = Duration::from_secs(1);

/// From so many effects of a pass on, what ends waits until what begins has begun.
const STORM: usize = 512;

/// How many connections are let go before others have their turn.
const LET_GO_AT_ONCE: usize = 32;

/// Number of connections closed at once while calls are in flight, and the pause after them. Closing one takes a few system
/// calls, and calls keep most of the time.
const CLOSED_BESIDE_CALLS: usize = 4;
const CLOSE_PAUSE: Duration = Duration::from_millis(2);

/// Number of subchannels whose end is taken in at once.
const CLOSES_AT_ONCE: usize = 512;

/// Where a channel's endpoints come from.
#[derive(Clone)]
pub(crate) enum Source {
    /// From a control plane, with the routes.
    Xds { client: XdsClient, target: Arc<str>, authority: Option<Arc<str>>, channel_id: u64 },
    /// From DNS.
    Dns { host: Arc<str>, port: u16, config: LbConfig },
    /// From the target itself.
    Fixed { endpoints: Endpoints, config: LbConfig },
}

/// What does not change while a channel lives.
pub(crate) struct Settings {
    pub(crate) source: Source,
    pub(crate) credentials: Credentials,
    /// Where certificates come from that clusters want used; `None` if clusters have no say.
    pub(crate) providers: Option<Arc<Providers>>,
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) head: Head,
    pub(crate) metrics: Metrics,
    /// The name that certificates must be valid for.
    pub(crate) host: Arc<str>,
    pub(crate) http2: Http2,
    pub(crate) backoff: Backoff,
    pub(crate) attempt_delay: Duration,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) counters: Arc<CallCounters>,
    /// The same run each time, if set.
    pub(crate) seed: Option<u64>,
}

/// The driver of one channel.
pub(crate) struct Driver {
    settings: Settings,
    published: Arc<Published>,
    calls: Arc<Calls>,
    commands: mpsc::UnboundedReceiver<Command>,
    awake: Option<Awake>,
}

/// What a connection's task reports.
enum Report {
    /// An attempt succeeded, after its polls took this long.
    Connected(SubchannelId, Arc<Connection>, Duration),
    /// An attempt failed, after its polls took this long.
    Failed(SubchannelId, Status, Duration),
    Lost(SubchannelId, Loss),
    Load(SubchannelId, LoadReport),
}

/// Something that the driver waited for.
enum Happened {
    Command(Option<Command>),
    Report(Report),
    Fed(Fed),
    /// A call began to wait.
    Waiting,
    Time,
}

impl Driver {
    pub(crate) fn new(
        settings: Settings,
        published: Arc<Published>,
        calls: Arc<Calls>,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> Driver {
        Driver { settings, published, calls, commands, awake: None }
    }

    /// Runs until the channel is closed, or its last handle is gone.
    pub(crate) async fn run(mut self) {
        loop {
            let Some(happened) = self.next().await else {
                self.let_go_some();
                continue;
            };
            if !self.take_in(happened) {
                return;
            }
            while let Some(happened) = self.more() {
                if !self.take_in(happened) {
                    return;
                }
            }
            self.pass_if_due();
        }
    }

    /// Runs a pass if it is time for one. Otherwise begins attempts for which there is room.
    fn pass_if_due(&mut self) {
        let Some(awake) = &mut self.awake else { return };
        let now = clock::now();
        if awake.pass_due_at(&self.published).is_some_and(|due| due <= now) {
            self.pass();
        } else {
            awake.dial_some(now, &self.settings);
        }
    }

    /// The next that happens; `None` if nothing did, others had their turn, and there is something left to do.
    async fn next(&mut self) -> Option<Happened> {
        let wake_at = self.awake.as_ref().map(|awake| awake.wake_at(&self.published));
        // New connections come before the end of old ones, unless nothing happens but that time passes.
        let is_busy = self.awake.as_ref().is_some_and(|awake| {
            awake.has_leftovers() && awake.dials.due().is_none() && awake.close_at.is_none()
        });
        let is_deferring = self.awake.as_ref().is_some_and(|awake| awake.pacer.is_deferring());
        let (reports, feed) = match &mut self.awake {
            Some(awake) => (Some(&mut awake.reports), Some(&mut awake.feed)),
            None => (None, None),
        };
        let report = async {
            match reports {
                Some(reports) => reports.recv().await,
                None => future::pending().await,
            }
        };
        let feed = async {
            match feed {
                Some(feed) => feed.next().await,
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
            command = self.commands.recv() => Happened::Command(command),
            // Who is awake holds a sender, so there is always a next one.
            Some(report) = report => Happened::Report(report),
            update = feed => Happened::Fed(update),
            () = self.published.wait_for_waiting(), if is_deferring => Happened::Waiting,
            () = due => Happened::Time,
            () = yield_now(), if is_busy => return None,
        })
    }

    /// What else has happened already.
    fn more(&mut self) -> Option<Happened> {
        if let Some(report) = self.awake.as_mut().and_then(|awake| awake.reports.try_recv().ok()) {
            return Some(Happened::Report(report));
        }
        self.commands.try_recv().ok().map(|command| Happened::Command(Some(command)))
    }

    /// Takes in what happened; answers whether the channel goes on.
    fn take_in(&mut self, happened: Happened) -> bool {
        match happened {
            Happened::Command(None | Some(Command::Close)) => return false,
            Happened::Command(Some(Command::Describe(answer))) => {
                let describe = || self.awake.as_ref().and_then(|awake| awake.core.describe());
                // A policy may be the application's own. If it panics there is nothing to see.
                let tree = catch_unwind(AssertUnwindSafe(describe)).unwrap_or_else(|_| {
                    tracing::error!("a load balancing policy panicked while it described itself");
                    None
                });
                let _ = answer.send(tree);
            }
            Happened::Command(Some(Command::Wake)) => self.wake().pacer.record(PassUrgency::Immediate),
            Happened::Command(Some(Command::ExitIdle)) => {
                let awake = self.wake();
                awake.core.handle(LbEvent::ExitIdle, clock::now());
                awake.pacer.record(PassUrgency::Immediate);
            }
            Happened::Command(Some(Command::Connect(id))) => {
                if let Some(awake) = &mut self.awake {
                    awake.core.handle(LbEvent::Connect(id), clock::now());
                    awake.pacer.record(PassUrgency::Prompt);
                }
            }
            Happened::Report(report) => {
                if let Some(awake) = &mut self.awake {
                    let calmed = awake.take_in(report);
                    if calmed && let Some(keepalive) = &mut self.settings.http2.keepalive {
                        keepalive.time = keepalive.time.saturating_mul(2);
                        tracing::warn!(time = ?keepalive.time, "a peer wants fewer keepalive pings");
                    }
                }
            }
            Happened::Fed(fed) => {
                if let Some(awake) = &mut self.awake {
                    awake.take_in_feed(fed);
                    awake.pacer.record(PassUrgency::Immediate);
                }
            }
            // The time of the next pass depends on the calls that wait.
            Happened::Waiting => {}
            Happened::Time => {
                // What is begun in parts goes on before what has ended is let go.
                let now = clock::now();
                let goes_on = |awake: &Awake| {
                    awake.wake_at.is_some_and(|at| at <= now)
                        || awake.dials.is_paced()
                        || awake.close_at.is_some_and(|at| at > now)
                };
                if !self.awake.as_ref().is_some_and(goes_on) {
                    self.let_go_some();
                } else if let Some(awake) = &mut self.awake {
                    awake.close_at = awake.close_at.map(|at| if at <= now { now + CLOSE_PAUSE } else { at });
                }
                self.rest_if_idle();
            }
        }
        true
    }

    /// Starts the policies and the source of endpoints, unless they run.
    fn wake(&mut self) -> &mut Awake {
        self.awake.get_or_insert_with(|| Awake::new(&self.settings, &self.calls))
    }

    /// Lets go of everything if there were no calls for long.
    fn rest_if_idle(&mut self) {
        let (Some(awake), Some(timeout)) = (&mut self.awake, self.settings.idle_timeout) else { return };
        if clock::now() < awake.idle_at {
            return;
        }
        let begun = self.calls.begun();
        if self.calls.under_way() > 0 || mem::replace(&mut awake.begun, begun) != begun {
            awake.idle_at = clock::now() + timeout;
            return;
        }
        tracing::info!("the channel rests: no calls for {timeout:?}");
        self.awake = None;
        self.published.publish(Way::Idle, Connections::default());
        self.published.show_connectivity(ConnectivityState::Idle);
        // A call may have begun between the look and the publication: it then saw the old way, or wakes the channel.
    }

    /// Runs a pass, carries out what it says, and publishes what calls should see.
    fn pass(&mut self) {
        let Some(awake) = &mut self.awake else { return };
        let began = clock::now();
        // A policy may be the application's own. If it panics the channel starts anew, and tells its calls.
        let Ok(pass) = catch_unwind(AssertUnwindSafe(|| awake.core.reconcile(began))) else {
            tracing::error!("a load balancing policy panicked; the channel starts anew");
            let status = Status::new(evenkeel_core::Code::Internal, "a load balancing policy panicked");
            self.published.publish(Way::Failed(status), Connections::default());
            let mut fresh = Awake::new(&self.settings, &self.calls);
            fresh.is_new = false;
            fresh.wake_at = Some(clock::now() + AFTER_A_PANIC);
            self.awake = Some(fresh);
            return;
        };
        let PassResult { effects, connectivity, picker, wake_at, deferred_drop, .. } = pass;
        awake.wake_at = wake_at;
        awake.is_ready = connectivity == ConnectivityState::Ready;
        awake.deferred_drop.append(deferred_drop);
        if let Some(picker) = picker {
            awake.picker = Some(picker);
            awake.is_new = true;
        }
        let now = clock::now();
        let is_storm = effects.len() >= STORM;
        for effect in effects {
            match effect {
                LbEffect::Close { id } if is_storm => {
                    awake.dials.give_up(id);
                    awake.closes.push(id);
                }
                effect => awake.carry_out(effect, now, &self.settings),
            }
        }
        if mem::take(&mut awake.is_new) {
            self.published.publish(awake.way(), awake.connections.clone());
        }
        self.published.show_connectivity(awake.connectivity(connectivity));
        awake.feed.passed(&awake.core);
        awake.dial_some(now, &self.settings);
        awake.pacer.finish_pass(began, clock::now());
    }

    fn let_go_some(&mut self) {
        let Some(awake) = &mut self.awake else { return };
        let is_beside_calls = awake.calls_in_flight();
        awake.close_at = is_beside_calls.then(|| clock::now() + CLOSE_PAUSE);
        if !awake.closes.is_empty() {
            let first = awake.closes.len().saturating_sub(CLOSES_AT_ONCE);
            for id in awake.closes.split_off(first) {
                awake.close(id);
            }
            if mem::take(&mut awake.is_new) {
                self.published.publish(awake.way(), awake.connections.clone());
            }
            return;
        }
        let at_once = if is_beside_calls { CLOSED_BESIDE_CALLS } else { LET_GO_AT_ONCE };
        awake.let_go.truncate(awake.let_go.len().saturating_sub(at_once));
        awake.deferred_drop.drop_some();
    }
}

impl Drop for Driver {
    /// Also when the runtime ends under it: nobody should wait for a driver that is gone.
    fn drop(&mut self) {
        self.published.publish(Way::Closed, Connections::default());
        self.published.connectivity().send_replace(ConnectivityState::Idle);
    }
}

/// A channel that is not at rest.
struct Awake {
    core: Core,
    feed: Feed,
    route: Route,
    picker: Option<RootPicker>,
    connections: Connections,
    /// Of this core's connections only: another core may give the same ids to others.
    reports: mpsc::UnboundedReceiver<Report>,
    reporter: mpsc::UnboundedSender<Report>,
    /// Attempts to connect that are under way.
    dials: Dials,
    /// Subchannels that are gone, of a storm: no picker leads to them.
    closes: Vec<SubchannelId>,
    /// Connections that calls do not see any more.
    let_go: Vec<Arc<Connection>>,
    /// Time at which the driver closes more connections, if it pauses.
    close_at: Option<Instant>,
    /// What the policies do not need any more.
    deferred_drop: DeferredDrop,
    load: LoadWatches,
    metrics: Metrics,
    meters: IdMap<ConnectionMeter>,
    /// Whether calls should see something else than they do.
    is_new: bool,
    /// The last pass led to READY.
    is_ready: bool,
    pacer: PassPacer,
    wake_at: Option<Instant>,
    idle_at: Instant,
    begun: u32,
    calls: Arc<Calls>,
}

/// How calls find their cluster.
enum Route {
    /// It is not known yet.
    Unknown,
    /// There are no routes; all calls go the same way.
    Direct,
    /// By the control plane's routes.
    Selector(Arc<ConfigSelector>),
    /// There is no config that could be used.
    Failed(Status),
}

impl Awake {
    fn new(settings: &Settings, calls: &Arc<Calls>) -> Awake {
        let seed = settings.seed.unwrap_or_else(entropy::fresh);
        let rng = if settings.seed.is_some() { Rng::fixed(seed) } else { Rng::from_entropy(seed) };
        let mut core = Core::builder(rng)
            .backoff(settings.backoff.clone())
            .attempt_delay(settings.attempt_delay)
            .measure(settings.metrics.measures())
            .per_cluster_transport(settings.providers.is_some())
            .counters(settings.counters.clone());
        if let Source::Xds { client, .. } = &settings.source {
            core = core.load_store(client.load_store().clone());
        }
        let now = clock::now();
        let (reporter, reports) = mpsc::unbounded_channel();
        let mut awake = Awake {
            core: core.build(),
            feed: Feed::Fixed,
            route: Route::Unknown,
            picker: None,
            connections: Connections::default(),
            load: LoadWatches::new(settings, reporter.clone()),
            metrics: settings.metrics.clone(),
            meters: IdMap::default(),
            reports,
            reporter,
            dials: Dials::new(Handle::current().metrics().num_workers()),
            closes: Vec::new(),
            let_go: Vec::new(),
            close_at: None,
            deferred_drop: DeferredDrop::default(),
            is_new: true,
            is_ready: false,
            pacer: PassPacer::default(),
            wake_at: None,
            idle_at: now + settings.idle_timeout.unwrap_or(Duration::MAX),
            begun: calls.begun(),
            calls: calls.clone(),
        };
        match &settings.source {
            Source::Fixed { endpoints, config } => {
                awake.core.update(LbUpdate::new(config.clone(), endpoints.clone()));
                awake.route = Route::Direct;
            }
            Source::Dns { host, port, config } => {
                awake.feed = Feed::Dns(Lookup::new(host.clone(), *port, config.clone(), seed));
            }
            Source::Xds { client, target, authority, channel_id } => {
                match client.follow(target, authority.as_deref(), *channel_id, settings.metrics.xds()) {
                    Ok(following) => {
                        awake.feed = Feed::Xds { client: client.clone(), following };
                    }
                    Err(error) => awake.route = Route::Failed(Status::unavailable(error.to_string())),
                }
            }
        }
        awake
    }

    /// Whether there is something left to be dropped.
    fn has_leftovers(&self) -> bool {
        !(self.closes.is_empty() && self.let_go.is_empty() && self.deferred_drop.is_empty())
    }

    /// Returns the time at which the driver has something to do without an event.
    fn wake_at(&self, published: &Published) -> Instant {
        let close_at = self.close_at.filter(|_| self.has_leftovers() && self.dials.due().is_none());
        let times = [self.pass_due_at(published), self.dials.due(), close_at];
        times.into_iter().flatten().fold(self.idle_at, Instant::min)
    }

    /// Returns the time of the next pass, `None` if nothing needs one.
    fn pass_due_at(&self, published: &Published) -> Option<Instant> {
        let least = if !self.is_ready || published.has_waiting() {
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
        self.is_ready && self.calls.under_way() > 0
    }

    /// Takes in what became of a connection. Answers whether the peer complained of our pings (A8).
    fn take_in(&mut self, report: Report) -> bool {
        let now = clock::now();
        // Connections and attempts that the driver closed report too. Those reports are no news and need no pass.
        match report {
            Report::Connected(id, connection, spent) => {
                self.dials.ended(id, spent);
                // One that nobody wants any more is let go by dropping it.
                if self.core.handle(LbEvent::Connected(id), now) {
                    let is_first = !self.is_ready;
                    self.pacer.record(if is_first {
                        PassUrgency::Immediate
                    } else {
                        PassUrgency::Background
                    });
                    tracing::debug!(address = %connection.shared().address(), "connected");
                    let link = connection.shared();
                    self.calls.tallies().link(link.address(), link.tally());
                    self.load.connected(id, &connection);
                    self.meters.insert(id, self.metrics.connected(self.labels(id), link.security()));
                    // In a storm the index is in use again before the earlier subchannel is closed. To drop its connection here
                    // would close one for each that begins, beside calls.
                    self.let_go.extend(self.connections.insert(id, connection));
                    self.is_new = true;
                }
                false
            }
            Report::Failed(id, status, spent) => {
                self.dials.ended(id, spent);
                tracing::debug!(error = status.message(), "a connection attempt failed");
                let labels = self.labels(id);
                // An attempt that nobody waits for any more counts as neither (A94).
                if self.core.handle(LbEvent::ConnectFailed(id, status), now) {
                    self.pacer.record(PassUrgency::Background);
                    self.metrics.connect_failed(&labels);
                }
                false
            }
            Report::Load(id, report) => {
                if let Some(connection) = self.connections.get(id) {
                    connection.shared().tally().load(&report);
                }
                if self.core.handle(LbEvent::Load(id, report), now) {
                    self.pacer.record(PassUrgency::Background);
                }
                false
            }
            Report::Lost(id, loss) => {
                self.load.lost(id);
                if let Some(mut meter) = self.meters.remove(&id) {
                    meter.lost(loss.reason);
                }
                if let Some(connection) = self.connections.remove(id) {
                    if connection.shared().was_useful() {
                        self.core.handle(LbEvent::ResponseReceived(id), now);
                    }
                    tracing::info!(reason = ?loss.reason, error = loss.status.message(), "a connection is lost");
                    self.is_new = true;
                    self.pacer.record(PassUrgency::Prompt);
                }
                if self.core.handle(LbEvent::Disconnected(id, loss.status), now) {
                    self.pacer.record(PassUrgency::Prompt);
                }
                loss.too_many_pings
            }
        }
    }

    fn take_in_feed(&mut self, fed: Fed) {
        match fed {
            Fed::Step(XdsResolverUpdate { update, route }) => {
                self.core.update(update);
                self.route = match route {
                    Ok(selector) => Route::Selector(selector),
                    Err(status) => Route::Failed(status),
                };
                self.is_new = true;
            }
            Fed::Resolved(update) => {
                self.core.update(update);
                self.route = Route::Direct;
                self.is_new = true;
            }
            Fed::Failed(status) => {
                tracing::warn!(error = status.message(), "the endpoints cannot be found out");
                if matches!(self.route, Route::Unknown | Route::Failed(_)) {
                    self.route = Route::Failed(status);
                    self.is_new = true;
                }
            }
        }
    }

    fn dial_some(&mut self, now: Instant, settings: &Settings) {
        let calls_in_flight = self.calls_in_flight();
        while let Some(wanted) = self.dials.next(now, calls_in_flight) {
            let id = wanted.id;
            // One that is gone already would be dialled without what its cluster wants; it is closed next.
            let Some(subchannel) = self.core.subchannel(id) else {
                self.dials.give_up(id);
                continue;
            };
            let mut dialling = Dialling::new(settings, id, &self.reporter);
            if let (Some(means), Some(providers)) = (subchannel.transport(), &settings.providers) {
                dialling.cluster = Some(ClusterTls::new(means.clone(), providers.clone()));
            }
            let task = tokio::spawn(dial(wanted, dialling));
            self.dials.began(id, task.abort_handle(), now);
        }
    }

    fn carry_out(&mut self, effect: LbEffect, now: Instant, settings: &Settings) {
        match effect {
            LbEffect::Connect { id, address, deadline } => {
                self.dials.want(Wanted { id, address, deadline });
                // The first are on their way while the others are taken in.
                self.dial_some(now, settings);
            }
            LbEffect::Close { id } => self.close(id),
            LbEffect::WatchLoad { id, every } => self.load.watch(id, every, self.connections.get(id)),
            LbEffect::Reresolve => self.feed.reresolve(),
            LbEffect::Measure(measurement) => self.metrics.measured(&measurement),
            LbEffect::Warn(text) => tracing::warn!("{text}"),
            // The core may learn to want more than this version can do.
            other => tracing::warn!(effect = ?other, "not carried out"),
        }
    }

    fn close(&mut self, id: SubchannelId) {
        self.dials.give_up(id);
        self.load.watch(id, None, None);
        self.meters.remove(&id);
        if let Some(connection) = self.connections.remove(id) {
            self.let_go.push(connection);
            self.is_new = true;
        }
    }

    /// Where a subchannel stands, if metrics say it.
    fn labels(&self, id: SubchannelId) -> LbLabels {
        if self.metrics.wants_labels() { self.core.labels(id) } else { LbLabels::default() }
    }

    /// What calls should see.
    fn way(&self) -> Way {
        let selector = match &self.route {
            Route::Unknown => return Way::Waiting,
            Route::Failed(status) => return Way::Failed(status.clone()),
            Route::Direct => None,
            Route::Selector(selector) => Some(selector.clone()),
        };
        match &self.picker {
            Some(picker) => Way::Open { selector, picker: picker.clone() },
            None => Way::Waiting,
        }
    }

    fn connectivity(&self, of_core: ConnectivityState) -> ConnectivityState {
        match self.route {
            Route::Unknown => ConnectivityState::Connecting,
            Route::Failed(_) => ConnectivityState::TransientFailure,
            Route::Direct | Route::Selector(_) => of_core,
        }
    }
}

/// Who is asked for out-of-band load reports, and how often; streams end when this is dropped.
struct LoadWatches {
    head: Head,
    metrics: Metrics,
    reporter: mpsc::UnboundedSender<Report>,
    all: IdMap<LoadWatch>,
}

struct LoadWatch {
    every: Duration,
    stream: Option<AbortHandle>,
}

impl LoadWatches {
    fn new(settings: &Settings, reporter: mpsc::UnboundedSender<Report>) -> LoadWatches {
        let (head, metrics) = (settings.head.clone(), settings.metrics.clone());
        LoadWatches { head, metrics, reporter, all: IdMap::default() }
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
            let _ = reporter.send(Report::Load(id, load));
        };
        let asking = Asking { head: self.head.clone(), metrics: self.metrics.clone(), every: watch.every };
        let stream = oob::watch(connection.clone(), asking, report);
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
struct Dialling {
    /// What its cluster wants, in place of the credentials.
    cluster: Option<ClusterTls>,
    credentials: Credentials,
    connector: Arc<dyn Connector>,
    host: Arc<str>,
    http2: Http2,
    id: SubchannelId,
    reporter: mpsc::UnboundedSender<Report>,
    has_reported: bool,
}

impl Dialling {
    fn new(settings: &Settings, id: SubchannelId, reporter: &mpsc::UnboundedSender<Report>) -> Dialling {
        Dialling {
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

    fn report(&mut self, report: Report) {
        self.has_reported = true;
        let _ = self.reporter.send(report);
    }
}

impl Drop for Dialling {
    /// A connector may be the application's own. If it panics, the attempt has failed.
    fn drop(&mut self) {
        if !self.has_reported {
            // An attempt that was given up reports it too, and nobody listens.
            let status = Status::new(evenkeel_core::Code::Internal, "the connector panicked");
            self.report(Report::Failed(self.id, status, Duration::ZERO));
        }
    }
}

/// A connection from the first attempt to its end.
async fn dial(Wanted { id, address, deadline }: Wanted, mut dialling: Dialling) {
    // Polls share the threads with calls: their time decides when other attempts begin.
    let mut spent = Duration::ZERO;
    let attempt = async {
        let Dialling { cluster, credentials, connector, host, http2, .. } = &dialling;
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
            dialling.report(Report::Connected(id, Arc::new(connection), spent));
            task.run(|loss| dialling.report(Report::Lost(id, loss))).await;
        }
        Ok(Err(status)) => dialling.report(Report::Failed(id, status, spent)),
        Err(_) => {
            let status = Status::unavailable(format!("connecting to {address}: no answer in time"));
            dialling.report(Report::Failed(id, status, spent));
        }
    }
}

/// Where updates come from while a channel is awake.
enum Feed {
    /// There are none.
    Fixed,
    Dns(Lookup),
    Xds {
        client: XdsClient,
        following: Following,
    },
}

/// An update.
enum Fed {
    Step(XdsResolverUpdate),
    Resolved(LbUpdate),
    Failed(Status),
}

impl Feed {
    /// The next update. Nothing is lost if this is dropped before it is there.
    async fn next(&mut self) -> Fed {
        match self {
            Feed::Fixed => future::pending().await,
            Feed::Dns(lookup) => lookup.next().await,
            Feed::Xds { following, .. } => match following.changed().await {
                Some(step) => Fed::Step(step),
                None => future::pending().await,
            },
        }
    }

    fn reresolve(&mut self) {
        match self {
            Feed::Fixed => {}
            Feed::Dns(lookup) => lookup.refresh.asked(clock::now()),
            Feed::Xds { following, .. } => following.reresolve(),
        }
    }

    /// A pass is over: policies may want other clusters, and count other load.
    fn passed(&mut self, core: &Core) {
        if let Feed::Xds { client, following } = self {
            following.want(core.subscribed_clusters().cloned().collect());
            client.pass_done();
        }
    }
}

/// A DNS name that is looked up again when a policy asks for it.
struct Lookup {
    host: Arc<str>,
    port: u16,
    config: LbConfig,
    refresh: Refresh,
    rng: Rng,
    running: Option<Resolving>,
}

type Resolving = Pin<Box<dyn Future<Output = Result<Vec<SocketAddr>, Status>> + Send>>;

impl Lookup {
    fn new(host: Arc<str>, port: u16, config: LbConfig, seed: u64) -> Lookup {
        Lookup { host, port, config, refresh: Refresh::new(), rng: Rng::from_entropy(seed), running: None }
    }

    async fn next(&mut self) -> Fed {
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
                Fed::Resolved(LbUpdate::new(self.config.clone(), endpoints))
            }
            Err(status) => {
                self.refresh.failed(clock::now(), &mut self.rng);
                Fed::Failed(status)
            }
        }
    }
}
