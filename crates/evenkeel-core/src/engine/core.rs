//! The core itself: takes in what happened, runs one pass, gives back what should be done.

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

/// The longest chain of policies that can wake each other in one pass is far below this; a policy that never comes
/// to rest is cut off here and goes on in the next pass.
const MAX_ROUNDS: usize = 16;

/// A tree of policies over its subchannels.
///
/// A driver tells it what happened ([`Core::update`], [`Core::handle`]) and then asks for one pass
/// ([`Core::reconcile`]), whose [`PassResult`] says what to do. The core does nothing by itself.
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
/// // The pass asks for both connections; the driver dials and reports what came of it.
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

/// What the resolver says: the config, the endpoints, and a note to attach to failures.
#[derive(Clone, Debug)]
pub struct LbUpdate {
    config: LbConfig,
    endpoints: Endpoints,
    note: Option<Arc<str>>,
    clusters: Option<Arc<ClusterMap>>,
}

impl LbUpdate {
    /// A config and the endpoints for it.
    pub fn new(config: LbConfig, endpoints: Endpoints) -> LbUpdate {
        LbUpdate { config, endpoints, note: None, clusters: None }
    }

    /// Adds a note that failures carry: an ambient error, or who to ask (the xDS node id).
    #[must_use]
    pub fn with_note(self, note: impl Into<Arc<str>>) -> LbUpdate {
        LbUpdate { note: Some(note.into()), ..self }
    }

    /// Adds what discovery found, for policies that name clusters.
    #[must_use]
    pub fn with_clusters(self, clusters: Arc<ClusterMap>) -> LbUpdate {
        LbUpdate { clusters: Some(clusters), ..self }
    }
}

/// Something that happened to a subchannel or to the channel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LbEvent {
    /// The attempt succeeded, and the peer has sent its settings.
    Connected(SubchannelId),
    /// The attempt failed.
    ConnectFailed(SubchannelId, Status),
    /// A call was answered on the connection. To be told before [`LbEvent::Disconnected`], if at all: a connection that ends soon
    /// and answered nothing makes the next attempt wait ([`Backoff`]).
    ResponseReceived(SubchannelId),
    /// The connection is gone, or takes no more calls.
    Disconnected(SubchannelId, Status),
    /// A call waits for this subchannel to connect ([`PickResult::Queue`](crate::PickResult::Queue)), or its pick asks for it
    /// ([`CallTrackers::to_wake`](crate::CallTrackers::to_wake)). The policies that hold a ready subchannel look again.
    Connect(SubchannelId),
    /// An out-of-band load report came.
    Load(SubchannelId, LoadReport),
    /// The application asked the channel to connect.
    ExitIdle,
}

/// Something the driver should do.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LbEffect {
    /// Open a connection, and report [`LbEvent::Connected`] or [`LbEvent::ConnectFailed`]; give up at the deadline. If the
    /// subchannel has [means](Subchannel::transport) of its own, it is opened by those.
    Connect {
        /// The subchannel.
        id: SubchannelId,
        /// Where to.
        address: Address,
        /// When the attempt has failed at the latest.
        deadline: Instant,
    },
    /// Give up the attempt or close the connection once its calls have finished. The id is gone.
    Close {
        /// The subchannel.
        id: SubchannelId,
    },
    /// Ask for out-of-band load reports this often on every connection of the subchannel, or stop asking.
    WatchLoad {
        /// The subchannel.
        id: SubchannelId,
        /// The interval, `None` to stop.
        every: Option<Duration>,
    },
    /// Ask the resolver for fresh addresses.
    Reresolve,
    /// Tell the operator.
    Warn(String),
    /// Count something; only from a core that was built to [measure](CoreBuilder::measure).
    Measure(Box<Measurement>),
}

/// What came of a pass.
#[derive(Debug)]
#[non_exhaustive]
pub struct PassResult {
    /// What to do, in order.
    pub effects: Vec<LbEffect>,
    /// The state of the channel.
    pub connectivity: ConnectivityState,
    /// The picker to use from now on; `None` if it has not changed.
    pub picker: Option<RootPicker>,
    /// When the next pass is due if nothing happens before.
    pub wake_at: Option<Instant>,
    /// Values that the pass released. A driver may drop them later, off the request path.
    pub released: ReleasedValues,
}

impl Core {
    /// Settings for a new core. Production passes [`Rng::from_entropy`], so that clients do not start in step; tests and
    /// simulations [`Rng::fixed`].
    pub fn builder(rng: Rng) -> CoreBuilder {
        CoreBuilder {
            rng,
            backoff: Backoff::default(),
            attempt_delay: Duration::from_millis(250),
            counters: Arc::default(),
            load_store: Arc::default(),
            measure: false,
            per_cluster_transport: false,
        }
    }

    /// Takes in a new config and endpoints; they count from the next pass on.
    pub fn update(&mut self, update: LbUpdate) {
        self.tree.update_clusters(update.clusters.as_ref());
        self.update = Some(update);
    }

    /// Takes in something that happened. Answers whether it was news: events about subchannels that are gone, or
    /// that do not fit their state, are ignored.
    pub fn handle(&mut self, event: LbEvent, now: Instant) -> bool {
        self.advance(now);
        let tree = &mut self.tree;
        match event {
            LbEvent::Connected(id) => {
                let now = tree.now;
                tree.change(id, |subchannel| subchannel.connected(now))
            }
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
                if subchannel.is_ready() {
                    tree.set_holders_changed(id, None);
                } else {
                    tree.connect(id, None);
                }
                true
            }
            LbEvent::ExitIdle => {
                tree.exit_idle = true;
                tree.invalidate_all();
                true
            }
        }
    }

    /// Runs one pass. A second pass with nothing in between changes nothing, unless this one says that it is due at once
    /// ([`PassResult::wake_at`]): much is done in parts.
    pub fn reconcile(&mut self, now: Instant) -> PassResult {
        self.advance(now);
        self.tree.fire_timers();
        let mut state = self.published.clone().unwrap_or_else(LbState::connecting);
        if let Some(LbUpdate { config, endpoints, note, .. }) = &self.update {
            let scope = PolicyScope::default().with_note(note.clone());
            for _ in 0..MAX_ROUNDS {
                let tree = &mut self.tree;
                let mut cx = Cx { tree, node: None, scope: scope.clone(), children_reusable: false };
                let next = self.root.reconcile(config, endpoints, &mut cx);
                let is_stable = next.is_same(&state);
                state = next;
                if is_stable && !self.root.is_outdated(&self.tree) {
                    break;
                }
            }
        }
        // Who asks before there is anything to connect to means what comes.
        self.tree.exit_idle &= self.update.is_none();
        self.tree.finish_pass();
        let changed = self.published.as_ref().is_none_or(|published| !published.is_same(&state));
        let picker = changed.then(|| RootPicker::new(state.picker.clone()));
        let connectivity = state.connectivity;
        self.published = Some(state);
        let is_pending = self.root.is_outdated(&self.tree) || self.tree.has_unreferenced();
        let wake_at = if is_pending { Some(self.tree.now) } else { self.tree.next_wake() };
        let (effects, released) = (mem::take(&mut self.tree.effects), mem::take(&mut self.tree.released));
        PassResult { effects, connectivity, picker, wake_at, released }
    }

    /// Runs a pass in which every policy looks again, changed or not. By the rule of [`Core::reconcile`] this changes
    /// nothing; tests use it to hold policies to that rule.
    pub fn reconcile_all(&mut self, now: Instant) -> PassResult {
        self.tree.invalidate_all();
        self.reconcile(now)
    }

    /// The whole tree as data, as of the last pass; `None` before the first update.
    pub fn describe(&self) -> Option<Description> {
        self.root.describe(&DescribeCx { tree: &self.tree })
    }

    /// The clusters that policies want to be discovered although no route names them, as of the last pass (A74): each
    /// holds its own for as long as it runs. Once found, they are part of [`LbUpdate::with_clusters`].
    pub fn subscribed_clusters(&self) -> impl Iterator<Item = &Arc<str>> {
        self.tree.subscribed_clusters()
    }

    /// A subchannel, if it exists.
    pub fn subchannel(&self, id: SubchannelId) -> Option<&Subchannel> {
        self.tree.subchannels.get(id)
    }

    /// Where a subchannel stands, in the words of metrics (A94); of one that stands in several places, the first that asked
    /// for it. Meant to be asked when it is dialled: the answer is looked up each time.
    pub fn labels(&self, id: SubchannelId) -> LbLabels {
        let Some(subchannel) = self.tree.subchannels.get(id) else { return LbLabels::default() };
        let holder = subchannel.holders.get(0).and_then(|holder| self.tree.node(*holder));
        let labels = holder.map(|holder| holder.scope.labels()).unwrap_or_default();
        let locality = labels.locality.or_else(|| {
            let cluster = labels.backend_service.as_ref()?;
            let locality = self.tree.clusters.as_ref()?.locality(cluster, subchannel.address())?;
            Some(locality.to_string().into())
        });
        LbLabels { locality, ..labels }
    }

    /// How many subchannels there are.
    pub fn subchannel_count(&self) -> usize {
        self.tree.subchannels.len()
    }

    /// Time never goes backwards: an earlier `now` counts as the latest one.
    fn advance(&mut self, now: Instant) {
        self.tree.now = self.tree.now.max(now);
    }
}

/// Settings of a core that do not change.
#[derive(Clone)]
pub struct CoreBuilder {
    rng: Rng,
    backoff: Backoff,
    attempt_delay: Duration,
    counters: Arc<CallCounters>,
    load_store: Arc<LoadStore>,
    measure: bool,
    per_cluster_transport: bool,
}

impl CoreBuilder {
    /// The back-off between connection attempts.
    #[must_use]
    pub fn backoff(self, backoff: Backoff) -> CoreBuilder {
        CoreBuilder { backoff, ..self }
    }

    /// The delay between parallel connection attempts (Happy Eyeballs): 250 ms unless set, held to 100 ms..2 s (A61).
    #[must_use]
    pub fn attempt_delay(self, delay: Duration) -> CoreBuilder {
        CoreBuilder { attempt_delay: delay.clamp(Duration::from_millis(100), Duration::from_secs(2)), ..self }
    }

    /// Counters of calls in flight, to be shared by all cores of a process (A32).
    #[must_use]
    pub fn counters(self, counters: Arc<CallCounters>) -> CoreBuilder {
        CoreBuilder { counters, ..self }
    }

    /// Counts for load reports, to be shared by all cores whose load one reporter reports. They must share one clock too.
    #[must_use]
    pub fn load_store(self, load_store: Arc<LoadStore>) -> CoreBuilder {
        CoreBuilder { load_store, ..self }
    }

    /// Whether passes give measurements ([`LbEffect::Measure`]); if not, which is so unless set, nothing is collected.
    #[must_use]
    pub fn measure(self, measure: bool) -> CoreBuilder {
        CoreBuilder { measure, ..self }
    }

    /// Whether connections are made by the [means](crate::TransportParams) of their clusters, and so are never shared with clusters
    /// of other means. If not, which is so unless set, means are passed over.
    #[must_use]
    pub fn per_cluster_transport(self, per_cluster_transport: bool) -> CoreBuilder {
        CoreBuilder { per_cluster_transport, ..self }
    }

    /// The core.
    pub fn build(self) -> Core {
        let CoreBuilder { rng, backoff, attempt_delay, counters, load_store, measure, per_cluster_transport } =
            self;
        let mut tree = PolicyTree::new(rng, backoff, attempt_delay, counters, load_store);
        tree.measure = measure;
        tree.per_cluster_transport = per_cluster_transport;
        Core { tree, root: ChildPolicy::new(), update: None, published: None }
    }
}

impl fmt::Debug for CoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoreBuilder").field("backoff", &self.backoff).finish_non_exhaustive()
    }
}
