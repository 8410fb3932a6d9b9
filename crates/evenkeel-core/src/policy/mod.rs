//! Policies: what they are given, what they answer, and which ones there are.

mod cds;
mod children;
mod cluster_impl;
mod cluster_manager;
mod cluster_resolver;
mod dormant;
mod edf_weighted_round_robin;
mod least_request;
mod outlier_detection;
mod pick_first;
mod priority;
mod priority_names;
mod random_subsetting;
mod ring_hash;
mod round_robin;
mod weighted_round_robin;
mod weighted_scheduler;
mod weighted_target;
mod wrr_locality;

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::config::registry::Registry;
use crate::config::{ConfigError, ConfigFields, LbConfig};
use crate::engine::cx::Cx;
use crate::engine::describe::{DescribeCx, Description};
use crate::engine::pure_parent;
use crate::pick::{PickArgs, PickResult, Picker};
use crate::{ChildPolicy, ConnectivityState, Endpoints, Status, SubchannelId};

pub use cds::{Cds, CdsConfig};
pub use cluster_impl::{Denominator, DropCategory};
pub use cluster_manager::{ClusterManager, ClusterManagerConfig};
pub use cluster_resolver::{ClusterResolver, ClusterResolverConfig, DiscoveryMechanism};
pub use least_request::{LeastRequest, LeastRequestConfig};
pub use outlier_detection::{
    FailurePercentageEjection, OutlierDetectionConfig, OutlierSettings, SuccessRateEjection,
};
pub use priority::{Priority, PriorityChild, PriorityConfig};
pub use priority_names::PriorityNames;
pub use ring_hash::{RingHash, RingHashConfig};
pub use round_robin::RoundRobin;
pub use weighted_round_robin::WeightedRoundRobinConfig;
pub use wrr_locality::WrrLocalityConfig;

pub(crate) use cluster_impl::ClusterImpl;
pub(crate) use edf_weighted_round_robin::EdfWeightedRoundRobin;
pub(crate) use outlier_detection::OutlierDetection;
pub(crate) use pick_first::{PickFirst, PickFirstConfig};
pub(crate) use random_subsetting::RandomSubsetting;
pub(crate) use weighted_round_robin::WeightedRoundRobin;
pub(crate) use weighted_target::WeightedTarget;
pub(crate) use wrr_locality::WrrLocality;

/// A load-balancing policy.
///
/// A policy looks at the present (its config, its endpoints, the subchannels, the time) and answers its state;
/// run again with nothing changed, it must ask for the same things and answer the same picker. See [`Cx`] for what it
/// may ask for, [`ChildPolicy`] for running policies below it, and [`EndpointList`](crate::EndpointList) for the common case of
/// connecting to every endpoint.
pub trait Policy: Send + 'static {
    /// The policy's settings, parsed once.
    type Config: Send + Sync + 'static;

    /// Reads the settings; errors come from [`ConfigFields`], which knows where in the config it is.
    fn parse(fields: &ConfigFields<'_>) -> Result<Self::Config, ConfigError>;

    /// Writes the settings as [`Policy::parse`] would read them, leaving out what is unset or the default. Asked for
    /// configs that were made in code ([`LbConfig::new`]); a policy that nobody configures in code need not write any.
    fn to_json(config: &Self::Config) -> Value {
        let _ = config;
        json!({})
    }

    /// Looks at the present and answers the policy's state.
    fn reconcile(&mut self, config: &Self::Config, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState;

    /// Describes the policy and what is below it.
    fn describe(&self, cx: &DescribeCx<'_>) -> Description;
}

/// What a policy answers: how well it is connected, and how to pick.
#[derive(Clone)]
pub struct LbState {
    /// How well the policy is connected.
    pub connectivity: ConnectivityState,
    /// How to pick. Its identity is the change signal: keep it for as long as nothing changed for those who pick.
    pub picker: Arc<dyn Picker>,
}

impl LbState {
    /// A state with its picker.
    pub fn new(connectivity: ConnectivityState, picker: impl Picker + 'static) -> LbState {
        LbState { connectivity, picker: Arc::new(picker) }
    }

    /// CONNECTING: calls wait.
    pub fn connecting() -> LbState {
        LbState::new(ConnectivityState::Connecting, QueuePicker)
    }

    /// IDLE: the first call wakes a subchannel and waits.
    pub fn idle(wake: SubchannelId) -> LbState {
        LbState::new(ConnectivityState::Idle, WakePicker(wake))
    }

    /// TRANSIENT_FAILURE: calls fail with this status.
    pub fn failing(status: Status) -> LbState {
        LbState::new(ConnectivityState::TransientFailure, FailPicker(status))
    }

    /// TRANSIENT_FAILURE: calls fail with this status, those that wait for ready too.
    pub fn dropping(status: Status) -> LbState {
        LbState::new(ConnectivityState::TransientFailure, DropPicker(status))
    }

    /// Whether both carry the same picker: nothing changed for those who pick.
    pub fn is_same(&self, other: &LbState) -> bool {
        let (mine, theirs) = (Arc::as_ptr(&self.picker), Arc::as_ptr(&other.picker));
        self.connectivity == other.connectivity && std::ptr::addr_eq(mine, theirs)
    }
}

impl fmt::Debug for LbState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LbState({:?})", self.connectivity)
    }
}

/// The state that a policy last answered, with what it was made from: gives the same picker again until that differs.
#[derive(Debug)]
pub struct CachedState<K> {
    last: Option<(K, LbState)>,
}

impl<K> Default for CachedState<K> {
    fn default() -> CachedState<K> {
        CachedState { last: None }
    }
}

impl<K: PartialEq> CachedState<K> {
    /// The last state if it was made from an equal key, else a new one.
    pub fn get_or_build(&mut self, key: K, make: impl FnOnce(&K) -> LbState) -> LbState {
        if let Some((_, state)) = self.last.as_ref().filter(|(last, _)| *last == key) {
            return state.clone();
        }
        let state = make(&key);
        self.last.insert((key, state)).1.clone()
    }
}

struct QueuePicker;

impl Picker for QueuePicker {
    fn pick(&self, _: &PickArgs<'_>) -> PickResult {
        PickResult::QUEUE
    }
}

struct WakePicker(SubchannelId);

impl Picker for WakePicker {
    fn pick(&self, _: &PickArgs<'_>) -> PickResult {
        PickResult::Queue { connect: Some(self.0) }
    }
}

struct FailPicker(Status);

impl Picker for FailPicker {
    fn pick(&self, _: &PickArgs<'_>) -> PickResult {
        PickResult::Fail(self.0.clone())
    }
}

struct DropPicker(Status);

impl Picker for DropPicker {
    fn pick(&self, _: &PickArgs<'_>) -> PickResult {
        PickResult::Drop(self.0.clone())
    }
}

/// A policy whose config type is known only to itself.
pub(crate) trait AnyPolicy: Send {
    fn reconcile(&mut self, config: &LbConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState;
    /// Visits the children of a [`PureParent`](pure_parent::PureParent), and none of any other policy.
    fn each_child(&mut self, visit: &mut dyn FnMut(&mut ChildPolicy));
    fn describe(&self, cx: &DescribeCx<'_>) -> Description;
}

impl fmt::Debug for dyn AnyPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Policy")
    }
}

pub(crate) struct ErasedPolicy<P>(pub(crate) P);

impl<P: Policy> AnyPolicy for ErasedPolicy<P> {
    fn reconcile(&mut self, config: &LbConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        let settings = config.settings().expect("a config builds the policy that its settings belong to");
        self.0.reconcile(settings, endpoints, cx)
    }

    fn each_child(&mut self, visit: &mut dyn FnMut(&mut ChildPolicy)) {
        pure_parent::each_child(&mut self.0, visit);
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        self.0.describe(cx)
    }
}

pub(crate) fn register_all(registry: &mut Registry) {
    registry.register::<Cds>("cds_experimental");
    registry.register::<EdfWeightedRoundRobin>("edf_weighted_round_robin");
    registry.register::<LeastRequest>("least_request_experimental");
    registry.register::<OutlierDetection>(outlier_detection::NAME);
    registry.register::<PickFirst>("pick_first");
    registry.register::<Priority>(priority::NAME);
    registry.register::<RandomSubsetting>("random_subsetting_experimental");
    registry.register::<RingHash>("ring_hash_experimental");
    registry.register::<RoundRobin>("round_robin");
    registry.register::<WeightedRoundRobin>("weighted_round_robin");
    registry.alias("weighted_round_robin_experimental", "weighted_round_robin");
    registry.register::<WeightedTarget>(weighted_target::NAME);
    registry.register::<ClusterImpl>(cluster_impl::NAME);
    registry.register::<ClusterManager>("xds_cluster_manager_experimental");
    registry.register::<ClusterResolver>(cluster_resolver::NAME);
    registry.register::<WrrLocality>("xds_wrr_locality_experimental");
    registry.alias("wrr_locality_experimental", "xds_wrr_locality_experimental");
    registry.alias("xds_wrr_locality", "xds_wrr_locality_experimental");
}
