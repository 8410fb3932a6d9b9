//! Flattens a policy tree into a list of endpoints, each with its position and its expected share of calls.

use std::collections::BTreeMap;

use evenkeel_core::{ConnectivityState, Description};
use serde_json::Value;

/// Endpoint and its position in the tree.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EndpointPosition {
    pub(super) addresses: Vec<String>,
    pub(super) name: Option<String>,
    pub(super) cluster: Option<String>,
    pub(super) priority: Option<u32>,
    pub(super) locality: Option<String>,
    pub(super) state: ConnectivityState,
    pub(super) unused: Option<String>,
    pub(super) weight: Option<f64>,
    pub(super) want: Option<f64>,
}

/// Returns all endpoints of a tree, in its order.
pub(super) fn endpoints(tree: &Description) -> Vec<EndpointPosition> {
    let mut all = Vec::new();
    walk(tree, &TreePosition { cluster: None, priority: None, share: 1.0 }, &mut all);
    all
}

/// Chosen priority by cluster.
pub(super) type ClusterPriorities = BTreeMap<String, Option<u32>>;

/// Returns the chosen priority of every cluster with several priorities.
pub(super) fn priorities(tree: &Description) -> ClusterPriorities {
    fn walk(tree: &Description, cluster: &str, all: &mut ClusterPriorities) {
        let cluster = text(tree, "cluster").unwrap_or(cluster);
        if tree.policy == PRIORITY && names(tree).count() > 1 {
            all.insert(cluster.to_owned(), text(tree, "chosen").and_then(|chosen| rank(tree, chosen)));
        }
        tree.children.iter().for_each(|(_, child)| walk(child, cluster, all));
    }
    let mut all = ClusterPriorities::new();
    walk(tree, "", &mut all);
    all
}

/// Counter of calls that a cluster dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DropCounter {
    pub(super) cluster: String,
    /// Drop category; `None` for the circuit breaker.
    pub(super) category: Option<String>,
    /// Maximum number of calls in flight, for the circuit breaker.
    pub(super) limit: Option<u64>,
    pub(super) count: u64,
}

/// Returns the drop counters of all clusters that are not zero.
pub(super) fn drop_counters(tree: &Description) -> Vec<DropCounter> {
    fn walk(tree: &Description, all: &mut Vec<DropCounter>) {
        let cluster = || text(tree, "cluster").unwrap_or_default().to_owned();
        let count = |value: Option<&Value>| value.and_then(Value::as_u64).filter(|count| *count > 0);
        if let Some(count) = count(tree.details.get("circuitBreakerDrops")) {
            let limit = tree.details.get("maxConcurrentRequests").and_then(Value::as_u64);
            all.push(DropCounter { cluster: cluster(), category: None, limit, count });
        }
        for (category, dropped) in tree.details.get("drops").and_then(Value::as_object).into_iter().flatten()
        {
            if let Some(count) = count(Some(dropped)) {
                all.push(DropCounter {
                    cluster: cluster(),
                    category: Some(category.clone()),
                    limit: None,
                    count,
                });
            }
        }
        tree.children.iter().for_each(|(_, child)| walk(child, all));
    }
    let mut all = Vec::new();
    walk(tree, &mut all);
    all
}

const PRIORITY: &str = "priority_experimental";
const MANAGER: &str = "xds_cluster_manager_experimental";
const TARGETS: &str = "weighted_target_experimental";

/// Position of a policy: properties that its ancestors set for the endpoints below.
struct TreePosition {
    cluster: Option<String>,
    priority: Option<u32>,
    /// Share of the cluster's calls.
    share: f64,
}

fn walk(tree: &Description, position: &TreePosition, all: &mut Vec<EndpointPosition>) {
    let cluster = text(tree, "cluster").map(str::to_owned).or_else(|| position.cluster.clone());
    for row in &tree.endpoints {
        // An endpoint below a policy without calls gets none, whatever share its own policy reports.
        let want =
            if position.share == 0.0 { Some(0.0) } else { row.share.map(|share| share * position.share) };
        all.push(EndpointPosition {
            addresses: row.addresses.clone(),
            name: row.hostname.clone().filter(|name| !name.is_empty()),
            cluster: cluster.clone(),
            priority: position.priority,
            locality: row.locality.clone(),
            state: row.state,
            unused: row.unused.clone(),
            weight: row.weight,
            want,
        });
    }
    for (name, child) in &tree.children {
        let (priority, share) = match tree.policy.as_str() {
            // The routes decide on the share of a cluster, so each cluster starts with all of its calls.
            MANAGER => (None, 1.0),
            PRIORITY => {
                let is_chosen = text(tree, "chosen") == Some(name);
                (rank(tree, name), if is_chosen { position.share } else { 0.0 })
            }
            TARGETS => {
                let share = tree.details.get("targets").and_then(|targets| targets[name]["share"].as_f64());
                (position.priority, position.share * share.unwrap_or(0.0))
            }
            _ => (position.priority, position.share),
        };
        walk(child, &TreePosition { cluster: cluster.clone(), priority, share }, all);
    }
}

fn text<'d>(tree: &'d Description, detail: &str) -> Option<&'d str> {
    tree.details.get(detail).and_then(Value::as_str)
}

fn names(priority: &Description) -> impl Iterator<Item = &str> {
    let list = priority.details.get("priorities").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

fn rank(priority: &Description, name: &str) -> Option<u32> {
    names(priority).position(|known| known == name).map(|rank| rank as u32)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tree() -> Description {
        let row = |address: &str, name: Option<&str>, share: Option<f64>| {
            json!({ "addresses": [address], "hostname": name, "locality": "here", "state": "READY",
                    "weight": 2.0, "share": share, "picks": 0, "unused": null })
        };
        let leaf = |rows: Value| json!({ "policy": "round_robin", "state": "READY", "details": {}, "endpoints": rows });
        let tree = json!({
            "policy": MANAGER, "state": "READY", "details": {},
            "children": [["cluster:orders", {
                "policy": "cds_experimental", "state": "READY", "details": { "cluster": "orders" },
                "children": [["", {
                    "policy": PRIORITY, "state": "READY",
                    "details": { "priorities": ["p0", "p1"], "chosen": "p0" },
                    "children": [
                        ["p0", { "policy": TARGETS, "state": "READY",
                            "details": { "targets": { "a": { "share": 0.75 }, "b": { "share": 0.25 }, "c": { "share": null } } },
                            "children": [
                                ["a", leaf(json!([row("1:1", Some("one"), Some(0.5)), row("2:2", Some(""), Some(0.5))]))],
                                ["b", leaf(json!([row("3:3", None, None)]))],
                                ["c", leaf(json!([row("4:4", None, Some(1.0))]))],
                            ] }],
                        ["p1", leaf(json!([row("5:5", None, Some(1.0))]))],
                    ],
                }]],
            }]],
        });
        serde_json::from_value(tree).expect("a description")
    }

    #[test]
    fn shares_multiply_on_the_way_down() {
        let found: Vec<_> = endpoints(&tree())
            .iter()
            .map(|placed| {
                (placed.name.as_ref().unwrap_or(&placed.addresses[0]).clone(), placed.priority, placed.want)
            })
            .collect();
        let expected = [
            ("one", 0, Some(0.375)),
            ("2:2", 0, Some(0.375)),
            ("3:3", 0, None),
            ("4:4", 0, Some(0.0)),
            ("5:5", 1, Some(0.0)),
        ];
        assert_eq!(found, expected.map(|(label, rank, want)| (label.to_owned(), Some(rank), want)));
        assert!(endpoints(&tree()).iter().all(|placed| placed.cluster.as_deref() == Some("orders")));
        assert_eq!(priorities(&tree()), [("orders".to_owned(), Some(0))].into());
    }
}
