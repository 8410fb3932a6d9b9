//! Policy tree of a cluster, with the share of its calls at each policy.
//!
//! Shares multiply downwards: priority passes all calls to one child, weighted_target splits them, drops
//! reduce them. A policy that decides at run time has no constant share; it is `None`.

use evenkeel_core::cluster::{Cluster, ClusterMap, LeafCluster};
use evenkeel_core::{Description, Endpoint, EndpointRow};
use serde::Serialize;
use serde_json::{Map, Value};

/// Policy, or an inactive priority.
#[derive(Debug, Serialize)]
pub(crate) struct PolicyNode {
    /// Name of the child in its parent; empty for an only child.
    pub(crate) name: String,
    /// Policy name; `None` for an inactive priority, whose policy does not exist yet.
    pub(crate) policy: Option<String>,
    /// Share of the cluster's calls, if constant.
    pub(crate) share: Option<f64>,
    pub(crate) details: Map<String, Value>,
    pub(crate) endpoints: Vec<EndpointShare>,
    pub(crate) children: Vec<PolicyNode>,
    pub(crate) warnings: Vec<String>,
}

/// Endpoint and its share of the calls.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EndpointShare {
    pub(crate) addresses: Vec<String>,
    pub(crate) locality: Option<String>,
    pub(crate) weight: Option<f64>,
    /// Share of the cluster's calls, if constant.
    pub(crate) share: Option<f64>,
    /// Reason why the endpoint gets no calls, if it gets none.
    pub(crate) unused: Option<String>,
}

impl PolicyNode {
    /// Builds the tree of one cluster, whose root gets all of its calls.
    pub(crate) fn of(description: &Description, clusters: &ClusterMap) -> PolicyNode {
        PolicyNode::new(String::new(), description, Some(1.0), clusters)
    }

    fn new(name: String, description: &Description, share: Option<f64>, clusters: &ClusterMap) -> PolicyNode {
        let child = |(name, child): &(String, Description)| {
            let share = share.zip(part(description, name, clusters)).map(|(whole, part)| whole * part);
            // A name distinguishes siblings. That of an only child is omitted.
            let shown = if is_named(description) { locality(name) } else { String::new() };
            PolicyNode::new(shown, child, share, clusters)
        };
        let mut children: Vec<_> = description.children.iter().map(child).collect();
        if description.policy == "xds_cluster_resolver_experimental" {
            let priorities = children.iter_mut().find(|child| child.details.contains_key("chosen"));
            if let Some(priorities) = priorities {
                priorities.children.extend(standing_by(description, priorities, clusters));
            }
        }
        PolicyNode {
            name,
            policy: Some(description.policy.clone()),
            share,
            details: description.details.clone(),
            endpoints: description.endpoints.iter().map(|row| EndpointShare::new(row, share)).collect(),
            children,
            warnings: description.warnings.clone(),
        }
    }

    /// Returns this node and its descendants in pre-order.
    pub(crate) fn walk(&self) -> Vec<&PolicyNode> {
        let mut all = vec![self];
        for child in &self.children {
            all.extend(child.walk());
        }
        all
    }

    /// Returns the share of calls that reach an endpoint; `None` if one of the shares is not constant.
    pub(crate) fn arriving(&self) -> Option<f64> {
        let nodes = self.walk();
        let rows = nodes.iter().flat_map(|node| &node.endpoints);
        rows.map(|row| row.share.or(row.unused.is_some().then_some(0.0))).sum()
    }
}

impl EndpointShare {
    fn new(row: &EndpointRow, share: Option<f64>) -> EndpointShare {
        let share = share.zip(row.share).map(|(whole, part)| whole * part);
        EndpointShare {
            addresses: row.addresses.clone(),
            locality: row.locality.as_deref().map(locality),
            weight: row.weight,
            share,
            // An endpoint that is IDLE until its first call still has its share.
            unused: row.unused.clone().filter(|_| share.is_none_or(|share| share == 0.0)),
        }
    }

    /// Endpoint of an inactive priority.
    fn standing_by(endpoint: &Endpoint) -> EndpointShare {
        EndpointShare {
            addresses: endpoint.addresses().iter().map(ToString::to_string).collect(),
            locality: endpoint.locality().map(|name| locality(&name.to_string())),
            weight: endpoint.weight().map(f64::from),
            share: Some(0.0),
            unused: Some("inactive".to_owned()),
        }
    }
}

/// Returns the fraction of a policy's calls for the named child, if constant.
fn part(parent: &Description, child: &str, clusters: &ClusterMap) -> Option<f64> {
    match parent.policy.as_str() {
        "priority_experimental" => {
            let chosen = parent.details.get("chosen").and_then(Value::as_str);
            Some(if chosen == Some(child) { 1.0 } else { 0.0 })
        }
        "weighted_target_experimental" => {
            let share = parent.details.get("targets")?.get(child)?.get("share")?;
            Some(share.as_f64().unwrap_or(0.0))
        }
        "xds_cluster_impl_experimental" => {
            let cluster = parent.details.get("cluster").and_then(Value::as_str)?;
            Some(leaf(cluster, clusters).map_or(1.0, |leaf| passing(leaf, clusters)))
        }
        _ => (parent.children.len() == 1).then_some(1.0),
    }
}

/// Returns the fraction of a cluster's calls that is not dropped.
pub(crate) fn passing(leaf: &LeafCluster, clusters: &ClusterMap) -> f64 {
    let drops = clusters.endpoint_set(&leaf.source).map_or(&[][..], |set| &set.drops);
    drops.iter().map(|drop| 1.0 - f64::from(drop.requests_per_million) / 1e6).product()
}

/// Returns the named cluster if it has endpoints.
pub(crate) fn leaf<'a>(name: &str, clusters: &'a ClusterMap) -> Option<&'a LeafCluster> {
    match clusters.cluster(name)?.as_deref() {
        Ok(Cluster::Leaf(leaf)) => Some(leaf),
        _ => None,
    }
}

fn is_named(parent: &Description) -> bool {
    let several =
        ["priority_experimental", "weighted_target_experimental", "xds_cluster_manager_experimental"];
    several.contains(&parent.policy.as_str()) || parent.children.len() > 1
}

/// Returns the priorities without a child in the priority policy: those below the chosen one.
fn standing_by(resolver: &Description, priorities: &PolicyNode, clusters: &ClusterMap) -> Vec<PolicyNode> {
    let mut found = Vec::new();
    let mechanisms = resolver.details.get("mechanisms").and_then(Value::as_object);
    for (cluster, mechanism) in mechanisms.into_iter().flatten() {
        let Some(set) = leaf(cluster, clusters).and_then(|leaf| clusters.endpoint_set(&leaf.source)) else {
            continue;
        };
        let names = mechanism.get("priorities").and_then(Value::as_array).into_iter().flatten();
        for (name, endpoints) in names.filter_map(Value::as_str).zip(&set.priorities) {
            if priorities.children.iter().any(|child| child.name == name) {
                continue;
            }
            found.push(PolicyNode {
                name: name.to_owned(),
                policy: None,
                share: Some(0.0),
                details: Map::new(),
                endpoints: endpoints.iter().map(EndpointShare::standing_by).collect(),
                children: Vec::new(),
                warnings: Vec::new(),
            });
        }
    }
    let order = priorities.details.get("priorities").and_then(Value::as_array);
    let place =
        |node: &PolicyNode| order.and_then(|order| order.iter().position(|name| *name == node.name.as_str()));
    found.sort_by_key(place);
    found
}

/// Shortens a locality: `eu/eu-1/a` for `{region="eu", zone="eu-1", sub_zone="a"}`. Returns other names
/// unchanged.
pub(crate) fn locality(name: &str) -> String {
    let inner = name.strip_prefix("{region=\"").and_then(|rest| rest.strip_suffix("\"}"));
    let parts = inner.and_then(|inner| {
        let (region, rest) = inner.split_once("\", zone=\"")?;
        let (zone, sub_zone) = rest.split_once("\", sub_zone=\"")?;
        Some([region, zone, sub_zone])
    });
    match parts {
        Some(["", "", ""]) => "(no locality)".to_owned(),
        Some(parts) => parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/"),
        None => name.to_owned(),
    }
}
