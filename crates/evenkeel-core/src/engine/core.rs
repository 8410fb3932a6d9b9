//! Interface to the driver: events and updates in, one pass, effects and a picker out.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::config::LbConfig;
use crate::config::cluster::ClusterMap;
use crate::engine::child::ChildPolicy;
use crate::engine::cx::{Cx, PolicyScope};
use crate::engine::describe::{DescribeCx, Description};
use crate::engine::released::ReleasedValues;
use crate::engine::tree::PolicyTree;
use crate::load::LoadStore;
use crate::load::call_counters::CallCounters;
use crate::load::measurement::{LbLabels, Measurement};
use crate::pick::RootPicker;
use crate::policy::LbState;
use crate::subchannel::Backoff;
use crate::{
    Address, ConnectivityState, Endpoints, Instant, LoadReport, Rng, Status, Subchannel, SubchannelId,
};

/// Maximum number of rounds in a pass. Policies that outdate each other need far fewer; a policy that never reaches a stable
/// state continues in the next pass.
const MAX_ROUNDS: usize = 16;

/// Tree of policies with its subchannels.
///
/// A driver reports updates ([`Core::update`]) and events ([`Core::handle`]), and then runs one pass ([`Core::reconcile`]). The
/// [`PassResult`] lists the effects for the driver to perform. The core performs no I/O.
///
/// ```
/// use evenkeel_core::{
///     ConnectivityState, Core, Endpoint, Endpoints, Instant, LbEffect, LbEvent, LbUpdate, PickArgs, PickResult, Registry, Rng,
/// };
///
/// let now = Instant::ORIGIN;
/// let config = Registry::standard().parse_json(r#"[{"round_robin": {}}]"#)?;
/// let endpoints = Endpoints::list([Endpoint::at("10.0.0.1:443"), Endpoint::at("10.0.0.2:443")]);
/// let mut core = Core::builder(Rng::fixed(1)).build();
/// core.update(LbUpdate::new(config, endpoints));
///
/// // The pass requests both connections; the driver connects and reports the result.
/// for effect in core.reconcile(now).effects {
///     let LbEffect::Connect { id, .. } = effect else { continue };
///     core.handle(LbEvent::Connected(id), now);
/// }
/// let pass = core.reconcile(now);
/// assert_eq!(pass.connectivity, ConnectivityState::Ready);
/// let picker = pass.picker.expect("there is something to pick from now");
/// assert!(matches!(picker.pick(&PickArgs::new("/orders.Orders/Get", 7)), PickResult::Complete(..)));
/// # Ok::<(), evenkeel_core::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct Core {
    tree: PolicyTree,
    root: ChildPolicy,
    update: Option<LbUpdate>,
    published: Option<LbState>,
}

/// Update from the resolver: config, endpoints, and a note for error messages.
#[derive(Clone, Debug)]
pub struct LbUpdate {
    config: LbConfig,
    endpoints: Endpoints,
    note: Option<Arc<str>>,
    clusters: Option<Arc<ClusterMap>>,
}

impl LbUpdate {
    /// Creates an update with a config and its endpoints.
    pub fn new(config: LbConfig, endpoints: Endpoints) -> LbUpdate {
        LbUpdate { config, endpoints, note: None, clusters: None }
    }

    /// Adds a resolution note to error messages: an ambient error, or the xDS node id (A88).
    #[must_use]
    pub fn with_note(self, note: impl Into<Arc<str>>) -> LbUpdate {
        LbUpdate { note: Some(note.into()), ..self }
    }

    /// Adds the discovered clusters, for policies that refer to clusters by name.
    #[must_use]
    pub fn with_clusters(self, clusters: Arc<ClusterMap>) -> LbUpdate {
        LbUpdate { clusters: Some(clusters), ..self }
    }
}

/// Event of a subchannel or of the channel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LbEvent {
    /// The connection attempt succeeded, and the peer has sent its SETTINGS.
    Connected(SubchannelId),
    /// The connection attempt failed.
    ConnectFailed(SubchannelId, Status),
    /// A response was received on the connection. The driver reports it before [`LbEvent::Disconnected`]. A short connection
    /// without a response delays the next attempt ([`Backoff`]).
    ResponseReceived(SubchannelId),
    /// The connection was lost, or accepts no more calls.
    Disconnected(SubchannelId, Status),
    /// A queued call waits for this subchannel to connect ([`PickResult::Queue`](crate::PickResult::Queue)), or a pick requests
    /// a pass ([`CallTrackers::to_wake`](crate::CallTrackers::to_wake)). If the subchannel is ready, its holders run again.
    Connect(SubchannelId),
    /// An out-of-band load report arrived.
    Load(SubchannelId, LoadReport),
    /// The application asked the channel to connect.
    ExitIdle,
}

/// Action for the driver to perform.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LbEffect {
    /// Open a connection and report [`LbEvent::Connected`] or [`LbEvent::ConnectFailed`]; cancel the attempt at the deadline. If
    /// the subchannel has [transport parameters](Subchannel::transport), they apply.
    Connect {
        /// Subchannel of the attempt.
        id: SubchannelId,
        /// Address to connect to.
        address: Address,
        /// Time at which the driver cancels the attempt.
        deadline: Instant,
    },
    /// Cancel the attempt, or close the connection once its calls have finished. The id becomes stale.
    Close {
        /// Id of the subchannel to close.
        id: SubchannelId,
    },
    /// Request out-of-band load reports on every connection of the subchannel, or stop them.
    WatchLoad {
        /// Id of the subchannel to watch.
        id: SubchannelId,
        /// Interval of the reports; `None` stops them.
        every: Option<Duration>,
    },
    /// Ask the resolver to resolve again.
    Reresolve,
    /// Log a warning for the operator.
    Warn(String),
    /// Record a measurement. Emitted only if [enabled](CoreBuilder::measure).
    Measure(Box<Measurement>),
}

/// Result of a pass.
#[derive(Debug)]
#[non_exhaustive]
pub struct PassResult {
    /// Effects to perform, in order.
    pub effects: Vec<LbEffect>,
    /// Connectivity state of the channel.
    pub connectivity: ConnectivityState,
    /// New picker; `None` if it has not changed.
    pub picker: Option<RootPicker>,
    /// Time of the next pass, unless an event requires one earlier.
    pub wake_at: Option<Instant>,
    /// Values that the pass released. A driver may drop them later, off the request path.
    pub released: ReleasedValues,
}

impl Core {
    /// Returns a builder. Production code passes [`Rng::from_entropy`], so that clients do not act in lockstep. Tests and
    /// simulations pass [`Rng::fixed`].
    pub fn builder(rng: Rng) -> CoreBuilder {
        CoreBuilder {
            rng,
            backoff: Backoff::default(),
            attempt_delay: Duration::from_millis(250),
            counters: Arc::default(),
            load_store: Arc::default(),
            measure: false,
            per_cluster_transport: false,
            ignored_transport_warning: None,
        }
    }

    /// Replaces config and endpoints. The next pass applies them.
    pub fn update(&mut self, update: LbUpdate) {
        // Clusters are no input of policies: only nodes that read a changed value run.
        self.tree.update_clusters(update.clusters.as_ref());
        self.update = Some(update);
    }

    /// Handles an event. Returns true if it changed a state. Events of closed subchannels, and events that do not fit the
    /// state, are ignored.
    pub fn handle(&mut self, event: LbEvent, now: Instant) -> bool {
        self.advance(now);
        let tree = &mut self.tree;
        match event {
            LbEvent::Connected(id) => {
                let now = tree.now;
                tree.change(id, |subchannel| subchannel.connected(now))
            }
            // No policy can observe a response. The subchannel gets no new revision, and its holders do not run.
            LbEvent::ResponseReceived(id) => tree.subchannels.get_mut(id).is_some_and(Subchannel::answered),
            LbEvent::ConnectFailed(id, error) => tree.failed(id, error),
            LbEvent::Disconnected(id, error) => tree.disconnected(id, error),
            LbEvent::Load(id, report) => {
                let now = tree.now;
                tree.change(id, |subchannel| {
                    subchannel.report(now, report);
                    true
                })
            }
            LbEvent::Connect(id) => {
                let Some(subchannel) = tree.subchannels.get(id) else { return false };
                // A pick of a dormant policy requests this pass. Its subchannel is connected already.
                if subchannel.is_ready() {
                    tree.set_holders_changed(id, None);
                } else {
                    tree.connect(id, None);
                }
                true
            }
            LbEvent::ExitIdle => {
                tree.exit_idle = true;
                // No node depends on `exit_idle`, and any policy may read it.
                tree.invalidate_all();
                true
            }
        }
    }

    /// Runs one pass. A second pass without an event in between changes nothing. An exception is a pass that is due at once
    /// ([`PassResult::wake_at`]), since large updates are split.
    pub fn reconcile(&mut self, now: Instant) -> PassResult {
        self.advance(now);
        self.tree.fire_timers();
        let mut state = self.published.clone().unwrap_or_else(LbState::connecting);
        if let Some(LbUpdate { config, endpoints, note, .. }) = &self.update {
            let scope = PolicyScope::default().with_note(note.clone());
            // A run may change a subchannel of a policy that ran earlier in the pass. The next round runs that policy.
            for _ in 0..MAX_ROUNDS {
                let tree = &mut self.tree;
                let mut cx = Cx { tree, node: None, scope: scope.clone(), children_reusable: false };
                let next = self.root.reconcile(config, endpoints, &mut cx);
                // Compared with the published state at first, so a pass that changes nothing needs one round.
                let is_stable = next.is_same(&state);
                state = next;
                if is_stable && !self.root.is_outdated(&self.tree) {
                    break;
                }
            }
        }
        // A request to connect before the first update applies to that update.
        self.tree.exit_idle &= self.update.is_none();
        // After the last round: a later round may hold a subchannel that an earlier one released.
        self.tree.finish_pass();
        let changed = self.published.as_ref().is_none_or(|published| !published.is_same(&state));
        let picker = changed.then(|| RootPicker::new(state.picker.clone()));
        let connectivity = state.connectivity;
        self.published = Some(state);
        // The rounds were used up, or subchannels wait to be closed. Both continue in a pass that is due at once.
        let is_pending = self.root.is_outdated(&self.tree) || self.tree.has_unreferenced();
        let wake_at = if is_pending { Some(self.tree.now) } else { self.tree.next_wake() };
        let (effects, released) = (mem::take(&mut self.tree.effects), mem::take(&mut self.tree.released));
        PassResult { effects, connectivity, picker, wake_at, released }
    }

    /// Runs a pass in which every policy runs. Since policies are level-triggered, this changes nothing. Tests check policies
    /// with it.
    pub fn reconcile_all(&mut self, now: Instant) -> PassResult {
        self.tree.invalidate_all();
        self.reconcile(now)
    }

    /// Describes the policy tree as of the last pass; `None` before the first update.
    pub fn describe(&self) -> Option<Description> {
        self.root.describe(&DescribeCx { tree: &self.tree })
    }

    /// Returns the clusters that policies subscribe to although no route refers to them (A74), as of the last pass. Discovered
    /// ones become part of [`LbUpdate::with_clusters`].
    pub fn subscribed_clusters(&self) -> impl Iterator<Item = &Arc<str>> {
        self.tree.subscribed_clusters()
    }

    /// Returns the subchannel with this id, if it exists.
    pub fn subchannel(&self, id: SubchannelId) -> Option<&Subchannel> {
        self.tree.subchannels.get(id)
    }

    /// Returns the metric labels of a subchannel (A94). If several policies hold it, those of the first holder. The result is
    /// not cached; drivers call this once per connection attempt.
    pub fn labels(&self, id: SubchannelId) -> LbLabels {
        let Some(subchannel) = self.tree.subchannels.get(id) else { return LbLabels::default() };
        let holder = subchannel.holders.get(0).and_then(|holder| self.tree.node(*holder));
        let labels = holder.map(|holder| holder.scope.labels()).unwrap_or_default();
        // Policies that pick across localities (ring_hash, pick_first) have no locality in their scope.
        let locality = labels.locality.or_else(|| {
            let cluster = labels.backend_service.as_ref()?;
            let locality = self.tree.clusters.as_ref()?.locality(cluster, subchannel.address())?;
            Some(locality.to_string().into())
        });
        LbLabels { locality, ..labels }
    }

    /// Returns the number of subchannels.
    pub fn subchannel_count(&self) -> usize {
        self.tree.subchannels.len()
    }

    /// Advances the time. Ignores a `now` before the latest one, so that time is monotonic.
    fn advance(&mut self, now: Instant) {
        self.tree.now = self.tree.now.max(now);
    }
}

/// Builder of a [`Core`].
#[derive(Clone)]
pub struct CoreBuilder {
    rng: Rng,
    backoff: Backoff,
    attempt_delay: Duration,
    counters: Arc<CallCounters>,
    load_store: Arc<LoadStore>,
    measure: bool,
    per_cluster_transport: bool,
    ignored_transport_warning: Option<&'static str>,
}

impl CoreBuilder {
    /// Sets the back-off between connection attempts.
    #[must_use]
    pub fn backoff(self, backoff: Backoff) -> CoreBuilder {
        CoreBuilder { backoff, ..self }
    }

    /// Sets the delay between parallel connection attempts (Happy Eyeballs, A61). The default is 250 ms; values are clamped to
    /// 100 ms..2 s.
    #[must_use]
    pub fn attempt_delay(self, delay: Duration) -> CoreBuilder {
        CoreBuilder { attempt_delay: delay.clamp(Duration::from_millis(100), Duration::from_secs(2)), ..self }
    }

    /// Sets the counters of calls in flight, which all cores of a process share (A32).
    #[must_use]
    pub fn counters(self, counters: Arc<CallCounters>) -> CoreBuilder {
        CoreBuilder { counters, ..self }
    }

    /// Sets the store of load statistics. Cores whose load is reported together share it, and must share a clock.
    #[must_use]
    pub fn load_store(self, load_store: Arc<LoadStore>) -> CoreBuilder {
        CoreBuilder { load_store, ..self }
    }

    /// Enables measurements ([`LbEffect::Measure`]). The default is off, and then nothing is collected.
    #[must_use]
    pub fn measure(self, measure: bool) -> CoreBuilder {
        CoreBuilder { measure, ..self }
    }

    /// Enables the [transport parameters](crate::TransportParams) of clusters. Clusters with different parameters then never
    /// share a connection. The default is off: the parameters are ignored.
    #[must_use]
    pub fn per_cluster_transport(self, per_cluster_transport: bool) -> CoreBuilder {
        CoreBuilder { per_cluster_transport, ..self }
    }

    /// Sets a warning for each cluster whose transport parameters are ignored. It follows the name of the cluster. The
    /// default is none.
    #[must_use]
    pub fn ignored_transport_warning(self, text: &'static str) -> CoreBuilder {
        CoreBuilder { ignored_transport_warning: Some(text), ..self }
    }

    /// Builds a core with these settings.
    pub fn build(self) -> Core {
        let CoreBuilder { rng, backoff, attempt_delay, counters, load_store, .. } = self;
        let mut tree = PolicyTree::new(rng, backoff, attempt_delay, counters, load_store);
        tree.measure = self.measure;
        tree.per_cluster_transport = self.per_cluster_transport;
        tree.ignored_transport_warning = self.ignored_transport_warning;
        Core { tree, root: ChildPolicy::new(), update: None, published: None }
    }
}

impl fmt::Debug for CoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoreBuilder").field("backoff", &self.backoff).finish_non_exhaustive()
    }
}
