//! `cds_experimental`: one cluster, as discovery found it (A37, A74, A75).
//!
//! Looks its cluster up in what came with the update, and runs `xds_cluster_resolver_experimental` with one discovery
//! mechanism for each leaf cluster: itself, or those of an aggregate in their order, each under its own policy and limits.
//! A leaf that cannot be used is a priority that fails; the aggregate works on with the others.
//!
//! A cluster that cannot be used at all fails its calls, also those that wait for ready: a call holds on to the cluster
//! that its route chose, so one that waited for a deleted cluster would keep it in the config for ever (A31).

use std::sync::Arc;

use serde_json::Value;

use crate::config::cluster::{Cluster, is_same_cluster};
use crate::config::{ConfigError, ConfigFields, LbConfig, object};
use crate::engine::describe::{DescribeCx, Description};
use crate::policy::cluster_resolver::{self, ClusterResolver, ClusterResolverConfig, DiscoveryMechanism};
use crate::policy::{CachedState, LbState, Policy};
use crate::{ChildPolicy, Cx, Endpoints, Status};

/// The policy.
#[derive(Debug, Default)]
pub struct Cds {
    cluster: Option<Arc<str>>,
    last: Option<CdsResult>,
    child: ChildPolicy,
    failing: CachedState<Status>,
    waiting: CachedState<()>,
}

/// Settings of `cds_experimental`.
#[derive(Clone, Debug)]
pub struct CdsConfig {
    /// The name of the cluster.
    pub cluster: Arc<str>,
    /// Whether no route names the cluster: it is asked for on behalf of this policy, and calls wait for it (A74).
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
            self.last = None;
        }
        if config.is_dynamic {
            cx.subscribe_cluster(&config.cluster);
        }
        let found = CdsLookup::lookup(&config.cluster, cx);
        // A74: updates that say nothing yet of a cluster that was asked for are passed over.
        if !(config.is_dynamic && found.cluster.is_none()) {
            self.last = match self.last.take() {
                Some(last) if last.found == found => Some(last),
                _ => Some(CdsResult { config: found.resolver_config(), found }),
            };
        }
        let outcome = self.last.as_ref().map(|last| &last.config);
        if let Some(Ok(child)) = outcome {
            return self.child.reconcile(child, &Endpoints::none(), cx);
        }
        std::mem::take(&mut self.child).release(cx);
        match outcome {
            Some(Ok(_)) | None => self.waiting.get_or_build((), |()| LbState::connecting()),
            Some(Err(reason)) => {
                let status = reason.status(&config.cluster, cx);
                self.failing.get_or_build(status, |status| LbState::dropping(status.clone()))
            }
        }
    }

    fn each_child(&mut self, visit: &mut dyn FnMut(&mut ChildPolicy)) {
        visit(&mut self.child);
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

/// What was found, and what it means: the config of the child, or why there is none.
#[derive(Debug)]
struct CdsResult {
    found: CdsLookup,
    config: Result<LbConfig, UnusableCluster>,
}

/// Why a cluster cannot be used.
#[derive(Debug)]
enum UnusableCluster {
    /// Discovery says why, and of which cluster.
    Reported(Status),
    /// What discovery found does not do.
    Invalid(String),
}

impl UnusableCluster {
    fn status(&self, cluster: &str, cx: &Cx<'_>) -> Status {
        match self {
            UnusableCluster::Reported(status) => Status::unavailable(status.message()),
            UnusableCluster::Invalid(reason) => cx.unavailable(format_args!("cluster {cluster:?}: {reason}")),
        }
    }
}

/// What discovery says of a cluster.
type ClusterLookup = Option<Result<Arc<Cluster>, Status>>;

/// What discovery says of the cluster, and of its leaves if it is an aggregate.
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
        // The same cluster has leaves of the same names.
        same(&self.cluster, &other.cluster)
            && self.leaves.iter().zip(&other.leaves).all(|((_, a), (_, b))| same(a, b))
    }
}

/// The cluster, or why it cannot be used.
fn usable(found: &ClusterLookup) -> Result<&Cluster, UnusableCluster> {
    match found {
        Some(Ok(cluster)) => Ok(cluster),
        Some(Err(status)) => Err(UnusableCluster::Reported(status.clone())),
        None => Err(UnusableCluster::Invalid("discovery knows nothing of it".to_owned())),
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
