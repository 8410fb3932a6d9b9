//! Routes as data.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::PickArgs;

use crate::routing::hash;
use crate::routing::{FilterOverrides, HashPolicy, RouteMatch, XdsRetryPolicy};

/// What calls it takes, and what happens to them.
#[derive(Clone, Debug)]
pub struct Route {
    /// The name, often empty.
    pub name: String,
    /// Which calls it takes.
    pub matches: RouteMatch,
    /// What happens to them.
    pub action: RouteAction,
    /// What it says about filters.
    pub overrides: FilterOverrides,
}

/// What happens to the calls of a route.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RouteAction {
    /// They go to a cluster.
    Forward(ForwardAction),
    /// They fail: this is not for clients (A36).
    Unsupported {
        /// What the control plane wants done, as its field is called.
        kind: &'static str,
    },
}

/// How calls go to a cluster.
#[derive(Clone, Debug)]
pub struct ForwardAction {
    /// The clusters, each with a weight above zero; at least one, and their sum fits 32 bits.
    pub clusters: Vec<WeightedCluster>,
    /// How long a call may take.
    pub limit: StreamLimit,
    /// When it is tried again: the route's own policy, else the virtual host's.
    pub retry: Option<Arc<XdsRetryPolicy>>,
    /// What its hash is made of.
    pub hash: Vec<HashPolicy>,
    /// Whether the endpoint's host name becomes the call's authority (A81).
    pub auto_host_rewrite: bool,
}

/// A cluster with its share of a route's calls.
#[derive(Clone, Debug)]
pub struct WeightedCluster {
    /// The cluster.
    pub name: Arc<str>,
    /// Its weight among those of the route.
    pub weight: u32,
    /// What it says about filters.
    pub overrides: FilterOverrides,
}

/// How long a call may take, as a route says it; zero is "no limit" (A31).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamLimit {
    /// `max_stream_duration`
    pub max_stream_duration: Option<Duration>,
    /// `grpc_timeout_header_max`, which beats the other.
    pub grpc_timeout_header_max: Option<Duration>,
}

impl StreamLimit {
    /// The limit where the listener says `default`; `None` is no limit.
    pub fn effective(&self, default: Option<Duration>) -> Option<Duration> {
        let limit = self.grpc_timeout_header_max.or(self.max_stream_duration).or(default);
        limit.filter(|limit| !limit.is_zero())
    }
}

impl ForwardAction {
    /// What the hash policies make of a call of the channel with this random number; `None` if none of them yields
    /// anything, so that the call gets a random hash (A42).
    pub fn hash(&self, call: &PickArgs<'_>, channel_id: u64) -> Option<u64> {
        hash::combined(&self.hash, call, channel_id)
    }
}

impl fmt::Display for Route {
    /// What it matches and where it goes, on one line.
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
