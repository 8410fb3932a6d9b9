//! What discovery found, written down in short, for stories about clusters.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_core::cluster::{Cluster, ClusterMap, EndpointSet, EndpointSource, LeafCluster};
use evenkeel_core::{Description, Endpoint, Endpoints, LbConfig, Locality, Registry, Status};
use serde_json::{Value, json};
use testkit::CoreSim;

/// Clusters, to be given to a world.
#[derive(Clone, Default)]
pub(crate) struct Discovered(pub(crate) ClusterMap);

impl Discovered {
    /// A cluster with round_robin over these priorities (see [`priorities`]).
    pub(crate) fn with(self, name: &str, priorities: &str) -> Discovered {
        self.with_leaf(eds(name), set(priorities))
    }

    /// A cluster with these settings and endpoints.
    pub(crate) fn with_leaf(mut self, leaf: LeafCluster, set: EndpointSet) -> Discovered {
        self.0.insert_endpoint_set(leaf.source.clone(), Arc::new(set));
        self.with_cluster(&leaf.name.clone(), Ok(Cluster::Leaf(leaf)))
    }

    /// An aggregate of these clusters.
    pub(crate) fn with_aggregate(self, name: &str, leaves: &[&str]) -> Discovered {
        let leaves = leaves.iter().map(|leaf| Arc::from(*leaf)).collect();
        self.with_cluster(name, Ok(Cluster::Aggregate { leaves }))
    }

    /// A cluster that cannot be used.
    pub(crate) fn with_error(self, name: &str, reason: &str) -> Discovered {
        self.with_cluster(name, Err(Status::unavailable(reason)))
    }

    fn with_cluster(mut self, name: &str, cluster: Result<Cluster, Status>) -> Discovered {
        self.0.insert_cluster(name, cluster.map(Arc::new));
        self
    }

    /// Other endpoints for a cluster made by [`eds`].
    pub(crate) fn with_endpoints(mut self, name: &str, set: EndpointSet) -> Discovered {
        self.0.insert_endpoint_set(eds(name).source, Arc::new(set));
        self
    }

    /// Nothing is said of a cluster.
    pub(crate) fn without(mut self, name: &str) -> Discovered {
        self.0.remove_cluster(name);
        self
    }
}

/// A cluster of endpoints from a control plane, with round_robin.
pub(crate) fn eds(name: &str) -> LeafCluster {
    LeafCluster {
        name: name.into(),
        source: EndpointSource::Eds { cluster: name.into(), service_name: None },
        lb_policy: lb_policy(&json!([{"round_robin": {}}])),
        max_concurrent_requests: None,
        outlier_detection: None,
        load_reporting: None,
        transport: None,
    }
}

/// A cluster of endpoints from DNS, with round_robin.
pub(crate) fn dns(name: &str, hostname: &str) -> LeafCluster {
    LeafCluster { source: EndpointSource::LogicalDns { hostname: hostname.into() }, ..eds(name) }
}

/// A policy.
pub(crate) fn lb_policy(config: &Value) -> LbConfig {
    Registry::standard().parse(config).expect("the story's policy parses")
}

/// Endpoints in priorities: `a b@x | c@y:3` are a and b (in zone x) in the first, c (in zone y, weight 3) in the second.
pub(crate) fn set(priorities: &str) -> EndpointSet {
    let endpoint = |text: &str| {
        let (address, place) = text.split_once('@').unwrap_or((text, ""));
        let (zone, weight) = place.split_once(':').unwrap_or((place, "1"));
        let locality = Locality { zone: zone.to_owned(), ..Locality::default() };
        Endpoint::at(address).with_locality(Arc::new(locality), weight.parse().expect("a weight"))
    };
    let list = |priority: &str| Endpoints::list(priority.split_whitespace().map(endpoint));
    EndpointSet { priorities: priorities.split('|').map(list).collect(), ..EndpointSet::default() }
}

/// The policies of this name in a tree, each with the name it has below its parent.
pub(crate) fn find_all<'d>(tree: &'d Description, policy: &str) -> BTreeMap<String, &'d Description> {
    let mut found = BTreeMap::new();
    let mut open = vec![("", tree)];
    while let Some((name, description)) = open.pop() {
        if description.policy == policy {
            found.insert(name.to_owned(), description);
        }
        open.extend(description.children.iter().map(|(name, child)| (name.as_str(), child)));
    }
    found
}

/// The names of the policies from the root down, first child first.
pub(crate) fn spine(tree: &Description) -> Vec<&str> {
    let below = tree.children.first().map(|(_, child)| spine(child)).unwrap_or_default();
    [tree.policy.as_str()].into_iter().chain(below).collect()
}

/// Returns a simulation in which every backend accepts connections, with these clusters.
pub(crate) fn sim(config: &Value, discovered: &Discovered) -> CoreSim {
    let mut sim = CoreSim::new(config, Endpoints::none()).all_up();
    sim.clusters(&discovered.0);
    sim.published();
    sim
}

/// Returns the status with which a call fails.
pub(crate) fn failure(sim: &mut CoreSim) -> String {
    sim.pick().status().map(ToString::to_string).expect("the call fails")
}
