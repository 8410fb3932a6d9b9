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

use crate::cluster::{Cluster, is_same_cluster};
use crate::config::{ConfigError, Fields, LbConfig, object};
use crate::describe::{Description, Look};
use crate::policy::cluster_resolver::{self, ClusterResolver, ClusterResolverConfig, Mechanism};
use crate::policy::{LbState, Policy, Shown};
use crate::{Child, Cx, Endpoints, Status};

/// The policy.
#[derive(Debug, Default)]
pub struct Cds {
    cluster: Option<Arc<str>>,
    last: Option<Outcome>,
    child: Child,
    failing: Shown<Status>,
    waiting: Shown<()>,
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

    fn parse(fields: &Fields<'_>) -> Result<CdsConfig, ConfigError> {
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
            cx.want_cluster(&config.cluster);
        }
        let found = Found::look(&config.cluster, cx);
        // A74: updates that say nothing yet of a cluster that was asked for are passed over.
        if !(config.is_dynamic && found.cluster.is_none()) {
            self.last = match self.last.take() {
                Some(last) if last.found == found => Some(last),
                _ => Some(Outcome { config: found.resolver_config(), found }),
            };
        }
        let outcome = self.last.as_ref().map(|last| &last.config);
        if let Some(Ok(child)) = outcome {
            return self.child.reconcile(child, &Endpoints::none(), cx);
        }
        std::mem::take(&mut self.child).release(cx);
        match outcome {
            Some(Ok(_)) | None => self.waiting.show((), |()| LbState::connecting()),
            Some(Err(reason)) => {
                let status = reason.status(&config.cluster, cx);
                self.failing.show(status, |status| LbState::dropping(status.clone()))
            }
        }
    }

    fn each_child(&mut self, visit: &mut dyn FnMut(&mut Child)) {
        visit(&mut self.child);
    }

    fn describe(&self, look: &Look<'_>) -> Description {
        let mut description = Description::new().detail("cluster", self.cluster.as_deref());
        if let Some(found) = self.last.as_ref().map(|last| &last.found).filter(|found| found.is_aggregate()) {
            let leaves: Vec<&str> = found.leaves.iter().map(|(name, _)| &**name).collect();
            description = description.detail("leaves", leaves);
        }
        description.child("cluster_resolver", self.child.describe(look))
    }
}

/// What was found, and what it means: the config of the child, or why there is none.
#[derive(Debug)]
struct Outcome {
    found: Found,
    config: Result<LbConfig, Unusable>,
}

/// Why a cluster cannot be used.
#[derive(Debug)]
enum Unusable {
    /// Discovery says why, and of which cluster.
    Told(Status),
    /// What discovery found does not do.
    Seen(String),
}

impl Unusable {
    fn status(&self, cluster: &str, cx: &Cx<'_>) -> Status {
        match self {
            Unusable::Told(status) => Status::unavailable(status.message()),
            Unusable::Seen(reason) => cx.unavailable(format_args!("cluster {cluster:?}: {reason}")),
        }
    }
}

/// What discovery says of a cluster.
type Seen = Option<Result<Arc<Cluster>, Status>>;

/// What discovery says of the cluster, and of its leaves if it is an aggregate.
#[derive(Debug)]
struct Found {
    cluster: Seen,
    leaves: Vec<(Arc<str>, Seen)>,
}

impl Found {
    fn look(name: &Arc<str>, cx: &mut Cx<'_>) -> Found {
        let cluster = cx.cluster(name);
        let leaves = match cluster.as_ref().and_then(|seen| seen.as_deref().ok()) {
            Some(Cluster::Aggregate { leaves }) => {
                leaves.iter().map(|leaf| (leaf.clone(), cx.cluster(leaf))).collect()
            }
            Some(Cluster::Leaf(_)) | None => Vec::new(),
        };
        Found { cluster, leaves }
    }

    fn is_aggregate(&self) -> bool {
        matches!(self.cluster.as_ref().and_then(|seen| seen.as_deref().ok()), Some(Cluster::Aggregate { .. }))
    }

    fn resolver_config(&self) -> Result<LbConfig, Unusable> {
        let settings = match usable(&self.cluster)? {
            Cluster::Leaf(leaf) => ClusterResolverConfig::of_leaf(leaf),
            Cluster::Aggregate { .. } => {
                let mechanisms = self.leaves.iter().map(|(name, seen)| mechanism(name, seen)).collect();
                ClusterResolverConfig { mechanisms }
            }
        };
        if settings.mechanisms.iter().all(|mechanism| mechanism.leaf().is_none()) {
            return Err(Unusable::Seen(none_usable(&settings.mechanisms)));
        }
        Ok(LbConfig::new::<ClusterResolver>(cluster_resolver::NAME, settings))
    }
}

impl PartialEq for Found {
    fn eq(&self, other: &Found) -> bool {
        let same = |a: &Seen, b: &Seen| match (a, b) {
            (Some(a), Some(b)) => is_same_cluster(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        // The same cluster has leaves of the same names.
        same(&self.cluster, &other.cluster)
            && self.leaves.iter().zip(&other.leaves).all(|((_, a), (_, b))| same(a, b))
    }
}

/// The cluster, or why it cannot be used.
fn usable(seen: &Seen) -> Result<&Cluster, Unusable> {
    match seen {
        Some(Ok(cluster)) => Ok(cluster),
        Some(Err(status)) => Err(Unusable::Told(status.clone())),
        None => Err(Unusable::Seen("discovery knows nothing of it".to_owned())),
    }
}

fn mechanism(name: &Arc<str>, seen: &Seen) -> Mechanism {
    let reason = match usable(seen) {
        Ok(Cluster::Leaf(leaf)) => return Mechanism::Leaf(Box::new(leaf.clone())),
        Ok(Cluster::Aggregate { .. }) => {
            Unusable::Seen("it is an aggregate where a leaf cluster was expected".to_owned())
        }
        Err(reason) => reason,
    };
    let reason = match reason {
        Unusable::Told(status) => status,
        Unusable::Seen(reason) => Status::unavailable(format!("cluster {name:?}: {reason}")),
    };
    Mechanism::Unusable { cluster: name.clone(), reason }
}

fn none_usable(mechanisms: &[Mechanism]) -> String {
    let first = mechanisms.iter().find_map(|mechanism| match mechanism {
        Mechanism::Unusable { reason, .. } => Some(reason),
        Mechanism::Leaf(_) => None,
    });
    match first {
        Some(reason) => {
            let all = mechanisms.len();
            format!("none of its {all} leaf clusters can be used; of the first: {}", reason.message())
        }
        None => "it is an aggregate without leaf clusters".to_owned(),
    }
}
