//! State of a channel that is not IDLE: core, resolver, connections, and the times at which the driver acts next.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{
    ConnectivityState, Core, Instant, LbUpdate, ReleasedValues, Rng, RootPicker, Status, SubchannelId,
};
use evenkeel_xds::resolver::XdsResolverUpdate;
use evenkeel_xds::routing::ConfigSelector;
use rustc_hash::FxHashMap;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::call::InFlightCalls;
use crate::channel::driver::DriverConfig;
use crate::channel::driver::channel_log::ChannelLog;
use crate::channel::driver::connection_events::ConnectionEvent;
use crate::channel::driver::load_watches::LoadWatches;
use crate::channel::pass_pacer::{PassPacer, PassUrgency};
use crate::channel::snapshot::{ChannelState, ConnectProgress, ConnectionMap, SnapshotPublisher};
use crate::resolver::dns::DnsResolver;
use crate::resolver::{Resolver, ResolverConfig, ResolverUpdate};
use crate::telemetry::metrics::{ChannelMetrics, ConnectionMeter, SecurityLevel};
use crate::transport::connect_queue::ConnectQueue;
use crate::transport::connection::Connection;
use crate::{clock, entropy};

/// State of a channel that is not IDLE.
pub(super) struct ActiveChannel {
    // Before `resolver`: fields are dropped in order. A core that outlives its xDS client loses its last load report.
    pub(super) core: Core,
    pub(super) resolver: Resolver,
    route: RouteState,
    pub(super) picker: Option<RootPicker>,
    pub(super) connections: ConnectionMap,
    /// Events of this core's connections only: another core may assign the same ids to other subchannels.
    pub(super) reports: mpsc::UnboundedReceiver<ConnectionEvent>,
    pub(super) reporter: mpsc::UnboundedSender<ConnectionEvent>,
    /// Connection attempts that wait or are in progress.
    pub(super) connect_queue: ConnectQueue,
    /// Error of the last connection attempt, if it failed.
    pub(super) connect_error: Option<Status>,
    /// Closed subchannels of a large pass. No picker returns them.
    pub(super) closes: Vec<SubchannelId>,
    /// Connections that are in no snapshot, to be dropped in batches.
    pub(super) released: Vec<Arc<Connection>>,
    /// Time at which the driver drops more connections, if it pauses.
    pub(super) close_at: Option<Instant>,
    /// Values that the policies no longer need, to be dropped in parts.
    pub(super) released_values: ReleasedValues,
    pub(super) load: LoadWatches,
    pub(super) metrics: ChannelMetrics,
    pub(super) meters: FxHashMap<SubchannelId, ConnectionMeter>,
    /// True if the published snapshot is out of date.
    pub(super) is_dirty: bool,
    /// True if the last pass resulted in READY.
    pub(super) is_ready: bool,
    pub(super) pacer: PassPacer,
    pub(super) wake_at: Option<Instant>,
    pub(super) idle_at: Instant,
    pub(super) calls_started: u32,
    pub(super) calls: Arc<InFlightCalls>,
}

/// Warning for a cluster with TLS settings that the channel's credentials do not apply.
const PLAINTEXT_WARNING: &str = "connections are not encrypted: the channel ignores the cluster's TLS settings; add \
     certificate_providers to the bootstrap, or build the channel with Credentials::xds";

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
    pub(super) fn new(settings: &DriverConfig, calls: &Arc<InFlightCalls>) -> ActiveChannel {
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
        if settings.credentials.level() == SecurityLevel::None {
            core = core.ignored_transport_warning(PLAINTEXT_WARNING);
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
            meters: FxHashMap::default(),
            reports,
            reporter,
            connect_queue: ConnectQueue::new(Handle::current().metrics().num_workers()),
            connect_error: None,
            closes: Vec::new(),
            released: Vec::new(),
            close_at: None,
            released_values: ReleasedValues::default(),
            // The first pass replaces the published IDLE state, also without a picker.
            is_dirty: true,
            is_ready: false,
            pacer: PassPacer::default(),
            wake_at: None,
            // `Instant` saturates, so without a timeout this time is never reached.
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
                    // The client's thread has ended, or failed to start: `build` has checked the target.
                    Err(error) => active.route = RouteState::Failed(Status::unavailable(error.to_string())),
                }
            }
        }
        active
    }

    /// Returns the time at which the driver has something to do without an event.
    pub(super) fn wake_at(&self, published: &SnapshotPublisher) -> Instant {
        let close_at =
            self.close_at.filter(|_| self.has_deferred_work() && self.connect_queue.due().is_none());
        let times = [self.pass_due_at(published), self.connect_queue.due(), close_at];
        times.into_iter().flatten().fold(self.idle_at, Instant::min)
    }

    /// Returns the time of the next pass, `None` if nothing needs one.
    pub(super) fn pass_due_at(&self, published: &SnapshotPublisher) -> Option<Instant> {
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
    pub(super) fn calls_in_flight(&self) -> bool {
        self.is_ready && self.calls.in_flight() > 0
    }

    pub(super) fn handle_resolver_update(&mut self, update: ResolverUpdate, log: &mut ChannelLog) {
        let now = clock::now();
        match &update {
            ResolverUpdate::Xds(XdsResolverUpdate { route: Ok(_), .. }) | ResolverUpdate::Resolved(_) => {
                log.handle_resolved(now);
            }
            ResolverUpdate::Xds(XdsResolverUpdate { route: Err(status), .. })
            | ResolverUpdate::Failed(status) => log.handle_resolution_failure(status, now),
        }
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
                // With a usable config, the last endpoints stay in use.
                if matches!(self.route, RouteState::Unknown | RouteState::Failed(_)) {
                    self.route = RouteState::Failed(status);
                    self.is_dirty = true;
                }
            }
        }
    }

    /// Returns the state for the next snapshot.
    pub(super) fn channel_state(&self) -> ChannelState {
        let selector = match &self.route {
            RouteState::Unknown => return ChannelState::Resolving(self.resolver.progress()),
            RouteState::Failed(status) => return ChannelState::Failed(status.clone()),
            RouteState::Direct => None,
            RouteState::Selector(selector) => Some(selector.clone()),
        };
        match &self.picker {
            Some(picker) => ChannelState::Active { selector, picker: picker.clone() },
            None => ChannelState::Resolving(self.resolver.progress()),
        }
    }

    /// Returns the connection attempts that calls may wait for; `None` if the channel is READY.
    pub(super) fn connect_progress(&self) -> Option<ConnectProgress> {
        let (attempts, oldest) = self.connect_queue.in_progress();
        let progress = || ConnectProgress { attempts, oldest, error: self.connect_error.clone() };
        (!self.is_ready).then(progress)
    }

    pub(super) fn connectivity(&self, core_state: ConnectivityState) -> ConnectivityState {
        match self.route {
            RouteState::Unknown => ConnectivityState::Connecting,
            RouteState::Failed(_) => ConnectivityState::TransientFailure,
            RouteState::Direct | RouteState::Selector(_) => core_state,
        }
    }
}
