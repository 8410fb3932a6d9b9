//! Compact notation for clusters and endpoints from discovery.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_core::cluster::{Cluster, ClusterMap, EndpointSet, EndpointSource, LeafCluster};
use evenkeel_core::{Description, Endpoint, Endpoints, LbConfig, Locality, Registry, Status};
use serde_json::{Value, json};
use testkit::CoreSim;

/// Clusters to pass to a simulation.
#[derive(Clone, Default)]
pub(crate) struct Discovered(pub(crate) ClusterMap);

impl Discovered {
    /// Adds a cluster with round_robin over these priorities (see [`set`]).
    pub(crate) fn with(self, name: &str, priorities: &str) -> Discovered {
        self.with_leaf(eds(name), set(priorities))
    }

    /// Adds a cluster with these settings and endpoints.
    pub(crate) fn with_leaf(mut self, leaf: LeafCluster, set: EndpointSet) -> Discovered {
        self.0.insert_endpoint_set(leaf.source.clone(), Arc::new(set));
        self.with_cluster(&leaf.name.clone(), Ok(Cluster::Leaf(leaf)))
    }

    /// Adds an aggregate of these clusters.
    pub(crate) fn with_aggregate(self, name: &str, leaves: &[&str]) -> Discovered {
        let leaves = leaves.iter().map(|leaf| Arc::from(*leaf)).collect();
        self.with_cluster(name, Ok(Cluster::Aggregate { leaves }))
    }

    /// Adds a cluster whose resource is invalid or missing.
    pub(crate) fn with_error(self, name: &str, reason: &str) -> Discovered {
        self.with_cluster(name, Err(Status::unavailable(reason)))
    }

    fn with_cluster(mut self, name: &str, cluster: Result<Cluster, Status>) -> Discovered {
        self.0.insert_cluster(name, cluster.map(Arc::new));
        self
    }

    /// Replaces the endpoints of a cluster made by [`eds`].
    pub(crate) fn with_endpoints(mut self, name: &str, set: EndpointSet) -> Discovered {
        self.0.insert_endpoint_set(eds(name).source, Arc::new(set));
        self
    }

    /// Removes a cluster, so that its state is unknown.
    pub(crate) fn without(mut self, name: &str) -> Discovered {
        self.0.remove_cluster(name);
        self
    }
}

/// A cluster with endpoints from EDS and round_robin.
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

/// A cluster with endpoints from DNS and round_robin.
pub(crate) fn dns(name: &str, hostname: &str) -> LeafCluster {
    LeafCluster { source: EndpointSource::LogicalDns { hostname: hostname.into() }, ..eds(name) }
}

/// Parses a policy config of a test.
pub(crate) fn lb_policy(config: &Value) -> LbConfig {
    Registry::standard().parse(config).expect("the story's policy parses")
}

/// Endpoints in priorities. `a b@x | c@y:3` has a and b (in zone x) in the first priority and c (in zone y,
/// weight 3) in the second.
pub(crate) fn set(priorities: &str) -> EndpointSet {
    let endpoint = |text: &str| {
        let (address, locality) = text.split_once('@').unwrap_or((text, ""));
        let (zone, weight) = locality.split_once(':').unwrap_or((locality, "1"));
        let locality = Locality { zone: zone.to_owned(), ..Locality::default() };
        Endpoint::at(address).with_locality(Arc::new(locality), weight.parse().expect("a weight"))
    };
    let list = |priority: &str| Endpoints::list(priority.split_whitespace().map(endpoint));
    EndpointSet { priorities: priorities.split('|').map(list).collect(), ..EndpointSet::default() }
}

/// Policies of this name in a tree, each under the name of the child it is.
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

/// Names of the policies from the root down, along the first children.
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
