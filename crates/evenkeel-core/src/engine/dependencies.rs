//! Dependencies of policies on discovered clusters and endpoint sets.
//!
//! A policy depends on what it read in its last run. An update that changes one of these values outdates the node; an
//! update of anything else does not reach it. Subchannels keep their own list of holders, since they change far more
//! often.

use std::sync::Arc;

use crate::Status;
use crate::collections::fast_map::FastMap;
use crate::collections::inline_vec::InlineVec;
use crate::config::cluster::{Cluster, ClusterMap, EndpointSet, EndpointSource, is_same_cluster};
use crate::engine::tree::NodeId;

/// Discovered value that a policy read, with the result of the read.
#[derive(Debug)]
pub(crate) enum DiscoveryDependency {
    Cluster(Arc<str>, Option<Result<Arc<Cluster>, Status>>),
    Endpoints(EndpointSource, Option<Arc<EndpointSet>>),
}

/// Name of a discovered value.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) enum DependencyKey {
    Cluster(Arc<str>),
    Endpoints(EndpointSource),
}

impl DiscoveryDependency {
    fn key(&self) -> DependencyKey {
        match self {
            DiscoveryDependency::Cluster(name, _) => DependencyKey::Cluster(name.clone()),
            DiscoveryDependency::Endpoints(source, _) => DependencyKey::Endpoints(source.clone()),
        }
    }

    fn has_same_key(&self, other: &DiscoveryDependency) -> bool {
        match (self, other) {
            (DiscoveryDependency::Cluster(a, _), DiscoveryDependency::Cluster(b, _)) => a == b,
            (DiscoveryDependency::Endpoints(a, _), DiscoveryDependency::Endpoints(b, _)) => a == b,
            _ => false,
        }
    }

    /// Returns true if reading it again returns the same value.
    pub(crate) fn is_current(&self, clusters: Option<&ClusterMap>) -> bool {
        match self {
            DiscoveryDependency::Cluster(name, value) => {
                match (value, clusters.and_then(|all| all.cluster(name))) {
                    (Some(value), Some(current)) => is_same_cluster(value, current),
                    (value, current) => value.is_none() && current.is_none(),
                }
            }
            DiscoveryDependency::Endpoints(source, value) => {
                let current = clusters.and_then(|all| all.endpoint_set(source));
                // By identity: the xDS client keeps the allocation of endpoints that did not change.
                value.as_ref().map(Arc::as_ptr) == current.map(Arc::as_ptr)
            }
        }
    }
}

/// Nodes by the discovered values that they depend on.
#[derive(Debug, Default)]
pub(crate) struct DependencyIndex(FastMap<DependencyKey, InlineVec<NodeId>>);

impl DependencyIndex {
    /// Returns the nodes that depend on a value.
    pub(crate) fn dependents(&self, key: &DependencyKey) -> Vec<NodeId> {
        self.0.get(key).into_iter().flat_map(InlineVec::iter).copied().collect()
    }

    /// Replaces the dependencies of a node.
    pub(crate) fn replace(
        &mut self,
        node: NodeId,
        before: &[DiscoveryDependency],
        dependencies: &[DiscoveryDependency],
    ) {
        let mut pairs = dependencies.iter().zip(before);
        // Most runs read the same values as the run before.
        if dependencies.len() == before.len() && pairs.all(|(new, old)| new.has_same_key(old)) {
            return;
        }
        // A value that was read twice is listed twice. `remove` takes out one entry per dependency.
        self.remove(node, before);
        for dependency in dependencies {
            self.0.entry(dependency.key()).or_default().push(node);
        }
    }

    /// Removes the dependencies of a node.
    pub(crate) fn remove(&mut self, node: NodeId, dependencies: &[DiscoveryDependency]) {
        for dependency in dependencies {
            let key = dependency.key();
            if let Some(dependents) = self.0.get_mut(&key) {
                dependents.remove(&node);
                // An empty entry would keep the name of a deleted cluster in memory.
                if dependents.get(0).is_none() {
                    self.0.remove(&key);
                }
            }
        }
    }
}
