//! Routes of a virtual host, parsed and validated.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::PickArgs;

use crate::routing::hash;
use crate::routing::{FilterOverrides, HashPolicy, RouteMatch, XdsRetryPolicy};

/// Route with its match and action.
#[derive(Clone, Debug)]
pub struct Route {
    /// Name of the route, often empty.
    pub name: String,
    /// Condition that a call must match.
    pub matches: RouteMatch,
    /// Action for matching calls.
    pub action: RouteAction,
    /// Filter overrides of the route.
    pub overrides: FilterOverrides,
}

/// Action for the calls of a route.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RouteAction {
    /// Forward the calls to a cluster.
    Forward(ForwardAction),
    /// Fail the calls: gRPC clients do not support the action (A36).
    Unsupported {
        /// Field name of the action.
        kind: &'static str,
    },
}

/// Clusters and per-call settings of a forwarding route.
#[derive(Clone, Debug)]
pub struct ForwardAction {
    /// Clusters, at least one. Each weight is positive, and the sum fits into 32 bits.
    pub clusters: Vec<WeightedCluster>,
    /// Maximum duration of a call.
    pub limit: StreamLimit,
    /// Retry policy of the route, or else of the virtual host.
    pub retry: Option<Arc<XdsRetryPolicy>>,
    /// Hash policies in order.
    pub hash: Vec<HashPolicy>,
    /// True if the endpoint's host name becomes the authority of the call (A81).
    pub auto_host_rewrite: bool,
}

/// Cluster with its weight in a route.
#[derive(Clone, Debug)]
pub struct WeightedCluster {
    /// Name of the cluster.
    pub name: Arc<str>,
    /// Weight relative to the other clusters of the route.
    pub weight: u32,
    /// Filter overrides of the weighted cluster.
    pub overrides: FilterOverrides,
}

/// Maximum duration of a call as a route sets it. Zero means no limit (A31).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamLimit {
    /// Value of the field `max_stream_duration`.
    pub max_stream_duration: Option<Duration>,
    /// Value of the field `grpc_timeout_header_max`, which takes precedence.
    pub grpc_timeout_header_max: Option<Duration>,
}

impl StreamLimit {
    /// Returns the limit, where `default` is the listener's. `None` means no limit.
    pub fn effective(&self, default: Option<Duration>) -> Option<Duration> {
        // An explicit 0 also replaces the default: the deadline is then that of the application (RT-1).
        let limit = self.grpc_timeout_header_max.or(self.max_stream_duration).or(default);
        limit.filter(|limit| !limit.is_zero())
    }
}

impl ForwardAction {
    /// Returns the combined hash of the hash policies. `channel_id` is the channel's random number. `None` if
    /// no policy produces a hash, so that the call gets a random one (A42).
    pub fn hash(&self, call: &PickArgs<'_>, channel_id: u64) -> Option<u64> {
        hash::combined(&self.hash, call, channel_id)
    }
}

impl fmt::Display for Route {
    /// Writes the match and the target on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> ", self.matches)?;
        let forward = match &self.action {
            RouteAction::Forward(forward) => forward,
            RouteAction::Unsupported { kind } => return write!(f, "{kind}, which is not for clients"),
        };
        if let [only] = forward.clusters.as_slice() {
            return write!(f, "cluster {:?}", only.name);
        }
        for (i, cluster) in forward.clusters.iter().enumerate() {
            let between = if i == 0 { "" } else { ", " };
            write!(f, "{between}cluster {:?} ({})", cluster.name, cluster.weight)?;
        }
        Ok(())
    }
}
