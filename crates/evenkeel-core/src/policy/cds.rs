//! `cds_experimental`: balances over one cluster of the xDS config (A37, A74, A75).
//!
//! The policy looks up its cluster in the config of the update. It runs `xds_cluster_resolver_experimental`
//! with one discovery mechanism per leaf cluster: the cluster itself, or the leaves of an aggregate in their
//! order. Each leaf keeps its own policy and limits. An unusable leaf becomes a failing priority; the
//! aggregate continues with the others.
//!
//! If the cluster itself is unusable, the policy fails calls, wait-for-ready calls included. A queued call
//! retains the cluster that its route chose, so queuing on a deleted cluster would keep it in the config
//! forever (A31).

use std::sync::Arc;

use serde_json::Value;

use crate::config::cluster::{Cluster, is_same_cluster};
use crate::config::{ConfigError, ConfigFields, LbConfig, object};
use crate::engine::describe::{DescribeCx, Description};
use crate::engine::pure_parent::PureParent;
use crate::policy::cluster_resolver::{self, ClusterResolver, ClusterResolverConfig, DiscoveryMechanism};
use crate::policy::{CachedState, LbState, Policy};
use crate::{ChildPolicy, Cx, Endpoints, Status};

/// Implementation of the `cds_experimental` policy.
#[derive(Debug, Default)]
pub struct Cds {
    cluster: Option<Arc<str>>,
    last: Option<CdsResult>,
    child: ChildPolicy,
    failing: CachedState<Status>,
    waiting: CachedState<()>,
}

/// Settings of the `cds_experimental` policy.
#[derive(Clone, Debug)]
pub struct CdsConfig {
    /// Name of the cluster.
    pub cluster: Arc<str>,
    /// True if no route names the cluster. The policy then subscribes to it, and calls wait for the result
    /// (A74).
    pub is_dynamic: bool,
}

impl Policy for Cds {
    type Config = CdsConfig;

    fn parse(fields: &ConfigFields<'_>) -> Result<CdsConfig, ConfigError> {
        let cluster = fields.str("cluster")?.filter(|name| !name.is_empty());
        let cluster =
            cluster.ok_or_else(|| fields.error("cluster", "is required: the name of the cluster"))?;
        Ok(CdsConfig { cluster: cluster.into(), is_dynamic: fields.bool("isDynamic")?.unwrap_or(false) })
    }

    fn to_json(config: &CdsConfig) -> Value {
        let fields = [
            ("cluster", Some(config.cluster.to_string().into())),
            ("isDynamic", config.is_dynamic.then_some(true.into())),
        ];
        object(fields).into()
    }

    fn reconcile(&mut self, config: &CdsConfig, _: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        if self.cluster.as_ref() != Some(&config.cluster) {
            self.cluster = Some(config.cluster.clone());
            // The result of another cluster must not stay in use when an update lacks this one.
            self.last = None;
        }
        if config.is_dynamic {
            cx.subscribe_cluster(&config.cluster);
        }
        let found = CdsLookup::lookup(&config.cluster, cx);
        // A74: an update that does not contain a dynamically subscribed cluster is ignored; the last result
        // stays.
        if !(config.is_dynamic && found.cluster.is_none()) {
            self.last = match self.last.take() {
                // An equal result keeps its config by identity, so that the child does not run.
                Some(last) if last.found == found => Some(last),
                _ => Some(CdsResult { config: found.resolver_config(), found }),
            };
        }
        let outcome = self.last.as_ref().map(|last| &last.config);
        if let Some(Ok(child)) = outcome {
            return self.child.reconcile(child, &Endpoints::none(), cx);
        }
        // An unusable cluster gets no calls, so its connections are released.
        std::mem::take(&mut self.child).release(cx);
        match outcome {
            Some(Ok(_)) | None => self.waiting.get_or_build((), |()| LbState::connecting()),
            Some(Err(reason)) => {
                let status = reason.status(&config.cluster, cx);
                // Dropped, so that wait-for-ready calls to an unusable cluster fail too (CM-6).
                self.failing.get_or_build(status, |status| LbState::dropping(status.clone()))
            }
        }
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        let mut description = Description::new().detail("cluster", self.cluster.as_deref());
        if let Some(found) = self.last.as_ref().map(|last| &last.found).filter(|found| found.is_aggregate()) {
            let leaves: Vec<&str> = found.leaves.iter().map(|(name, _)| &**name).collect();
            description = description.detail("leaves", leaves);
        }
        description.child("cluster_resolver", self.child.describe(cx))
    }
}

impl PureParent for Cds {
    fn each_child(&mut self, visit: &mut dyn FnMut(&mut ChildPolicy)) {
        visit(&mut self.child);
    }
}

/// Result of a cluster lookup, with the child config or the error derived from it.
#[derive(Debug)]
struct CdsResult {
    found: CdsLookup,
    config: Result<LbConfig, UnusableCluster>,
}

/// Reason why a cluster is unusable.
#[derive(Debug)]
enum UnusableCluster {
    /// Status that the xDS client reported for the cluster.
    Reported(Status),
    /// Problem of a resource that the xDS client accepted.
    Invalid(String),
}

impl UnusableCluster {
    fn status(&self, cluster: &str, cx: &Cx<'_>) -> Status {
        match self {
            // Only the message is used: the code of the control plane never reaches a call (DE-5).
            UnusableCluster::Reported(status) => Status::unavailable(status.message()),
            UnusableCluster::Invalid(reason) => cx.unavailable(format_args!("cluster {cluster:?}: {reason}")),
        }
    }
}

/// Lookup result for one cluster: absent, usable or failed.
type ClusterLookup = Option<Result<Arc<Cluster>, Status>>;

/// Lookup results for the cluster and, if it is an aggregate, for its leaves.
#[derive(Debug)]
struct CdsLookup {
    cluster: ClusterLookup,
    leaves: Vec<(Arc<str>, ClusterLookup)>,
}

impl CdsLookup {
    fn lookup(name: &Arc<str>, cx: &mut Cx<'_>) -> CdsLookup {
        let cluster = cx.cluster(name);
        let leaves = match cluster.as_ref().and_then(|found| found.as_deref().ok()) {
            Some(Cluster::Aggregate { leaves }) => {
                leaves.iter().map(|leaf| (leaf.clone(), cx.cluster(leaf))).collect()
            }
            Some(Cluster::Leaf(_)) | None => Vec::new(),
        };
        CdsLookup { cluster, leaves }
    }

    fn is_aggregate(&self) -> bool {
        matches!(
            self.cluster.as_ref().and_then(|found| found.as_deref().ok()),
            Some(Cluster::Aggregate { .. })
        )
    }

    fn resolver_config(&self) -> Result<LbConfig, UnusableCluster> {
        let settings = match usable(&self.cluster)? {
            Cluster::Leaf(leaf) => ClusterResolverConfig::of_leaf(leaf),
            Cluster::Aggregate { .. } => {
                let mechanisms = self.leaves.iter().map(|(name, found)| mechanism(name, found)).collect();
                ClusterResolverConfig { mechanisms }
            }
        };
        // One usable leaf is enough. Each unusable one becomes a failing priority (CDS-6).
        if settings.mechanisms.iter().all(|mechanism| mechanism.leaf().is_none()) {
            return Err(UnusableCluster::Invalid(none_usable(&settings.mechanisms)));
        }
        Ok(LbConfig::new::<ClusterResolver>(cluster_resolver::NAME, settings))
    }
}

impl PartialEq for CdsLookup {
    fn eq(&self, other: &CdsLookup) -> bool {
        let same = |a: &ClusterLookup, b: &ClusterLookup| match (a, b) {
            (Some(a), Some(b)) => is_same_cluster(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        // The leaf names are part of the cluster, so equal clusters have the same number of leaves in the
        // same order.
        same(&self.cluster, &other.cluster)
            && self.leaves.iter().zip(&other.leaves).all(|((_, a), (_, b))| same(a, b))
    }
}

/// Returns the cluster, or the reason why it is unusable.
fn usable(found: &ClusterLookup) -> Result<&Cluster, UnusableCluster> {
    match found {
        Some(Ok(cluster)) => Ok(cluster),
        Some(Err(status)) => Err(UnusableCluster::Reported(status.clone())),
        None => Err(UnusableCluster::Invalid("missing in the discovery result".to_owned())),
    }
}

fn mechanism(name: &Arc<str>, found: &ClusterLookup) -> DiscoveryMechanism {
    let reason = match usable(found) {
        Ok(Cluster::Leaf(leaf)) => return DiscoveryMechanism::Leaf(Box::new(leaf.clone())),
        Ok(Cluster::Aggregate { .. }) => {
            UnusableCluster::Invalid("it is an aggregate where a leaf cluster was expected".to_owned())
        }
        Err(reason) => reason,
    };
    let reason = match reason {
        UnusableCluster::Reported(status) => status,
        UnusableCluster::Invalid(reason) => Status::unavailable(format!("cluster {name:?}: {reason}")),
    };
    DiscoveryMechanism::Unusable { cluster: name.clone(), reason }
}

fn none_usable(mechanisms: &[DiscoveryMechanism]) -> String {
    let first = mechanisms.iter().find_map(|mechanism| match mechanism {
        DiscoveryMechanism::Unusable { reason, .. } => Some(reason),
        DiscoveryMechanism::Leaf(_) => None,
    });
    match first {
        Some(reason) => {
            let all = mechanisms.len();
            format!("none of its {all} leaf clusters can be used; of the first: {}", reason.message())
        }
        None => "it is an aggregate without leaf clusters".to_owned(),
    }
}
