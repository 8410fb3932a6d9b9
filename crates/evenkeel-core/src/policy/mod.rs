//! Load-balancing policies: the trait, the state that they return, and the built-in ones.

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

/// Load-balancing policy of a channel or of a part of it.
///
/// A policy computes its state from its config, its endpoints, the subchannels and the time. A second run without a change must
/// request the same resources and return the same picker. [`Cx`] lists the resources, [`ChildPolicy`] runs child policies, and
/// [`EndpointList`](crate::EndpointList) connects to every endpoint.
pub trait Policy: Send + 'static {
    /// Parsed settings of the policy.
    type Config: Send + Sync + 'static;

    /// Parses the settings. Errors of [`ConfigFields`] contain the path of the field.
    fn parse(fields: &ConfigFields<'_>) -> Result<Self::Config, ConfigError>;

    /// Returns the settings as JSON that [`Policy::parse`] accepts, without unset and default values. The core uses it for
    /// configs that were created in code ([`LbConfig::new`]). Other policies need not implement it.
    fn to_json(config: &Self::Config) -> Value {
        let _ = config;
        json!({})
    }

    /// Runs the policy and returns its state.
    fn reconcile(&mut self, config: &Self::Config, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState;

    /// Describes the policy and its children.
    fn describe(&self, cx: &DescribeCx<'_>) -> Description;
}

/// State that a policy returns: its connectivity and its picker.
#[derive(Clone)]
pub struct LbState {
    /// Connectivity state of the policy.
    pub connectivity: ConnectivityState,
    /// Picker for calls. Its identity is the change signal: return the same allocation while picks are unaffected.
    pub picker: Arc<dyn Picker>,
}

impl LbState {
    /// Creates a state with a new picker.
    pub fn new(connectivity: ConnectivityState, picker: impl Picker + 'static) -> LbState {
        LbState { connectivity, picker: Arc::new(picker) }
    }

    /// Returns CONNECTING with a picker that queues calls.
    pub fn connecting() -> LbState {
        LbState::new(ConnectivityState::Connecting, QueuePicker)
    }

    /// Returns IDLE with a picker that queues calls and connects this subchannel.
    pub fn idle(wake: SubchannelId) -> LbState {
        LbState::new(ConnectivityState::Idle, WakePicker(wake))
    }

    /// Returns TRANSIENT_FAILURE with a picker that fails calls with this status.
    pub fn failing(status: Status) -> LbState {
        LbState::new(ConnectivityState::TransientFailure, FailPicker(status))
    }

    /// Returns TRANSIENT_FAILURE with a picker that fails calls with this status, including wait-for-ready calls.
    pub fn dropping(status: Status) -> LbState {
        LbState::new(ConnectivityState::TransientFailure, DropPicker(status))
    }

    /// Returns true if connectivity and picker are the same, so that picks are unaffected.
    pub fn is_same(&self, other: &LbState) -> bool {
        let (mine, theirs) = (Arc::as_ptr(&self.picker), Arc::as_ptr(&other.picker));
        // Only addresses are compared: the same type may have several vtables.
        self.connectivity == other.connectivity && std::ptr::addr_eq(mine, theirs)
    }
}

impl fmt::Debug for LbState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LbState({:?})", self.connectivity)
    }
}

/// Last state of a policy with the key that it was built from. Returns the same picker until the key changes.
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
    /// Returns the last state if its key is equal, or builds a new one.
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

/// Policy with a type-erased config.
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
        let settings = config.settings().expect("settings build only the policy that parsed them");
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
