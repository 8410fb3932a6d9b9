//! The whole policy tree of an xDS cluster, from the cluster manager to the endpoints.

use std::sync::Arc;

use evenkeel_core::{Code, ConnectivityState, Description, Endpoint, Endpoints, Locality};
use serde_json::{Value, json};
use testkit::{CoreSim, secs};

/// Two priorities. Each has outlier detection above drops and circuit breaker above localities above EDF.
fn config() -> Value {
    let locality =
        json!([{"xds_wrr_locality_experimental": {"childPolicy": [{"edf_weighted_round_robin": {}}]}}]);
    let priority = |name: &str| {
        json!({"config": [{"outlier_detection_experimental": {
            "interval": "1s",
            "failurePercentageEjection": {"threshold": 50, "minimumHosts": 2, "requestVolume": 5},
            "maxEjectionPercent": 50,
            "childPolicy": [{"xds_cluster_impl_experimental": {
                "cluster": name, "maxConcurrentRequests": 50, "childPolicy": locality,
            }}],
        }}], "ignoreReresolutionRequests": true})
    };
    json!([{"xds_cluster_manager_experimental": {"children": {"cluster:orders": {"childPolicy": [
        {"priority_experimental": {
            "priorities": ["p0", "p1"], "children": {"p0": priority("orders"), "p1": priority("orders")},
        }},
    ]}}}}])
}

fn endpoints() -> Endpoints {
    let zone = |zone: &str| Arc::new(Locality { zone: zone.to_owned(), ..Locality::default() });
    let (x, y) = (zone("x"), zone("y"));
    let p0 = Endpoints::list([
        Endpoint::at("a").with_weight(2).with_locality(x.clone(), 3),
        Endpoint::at("b").with_weight(4).with_locality(x, 3),
        Endpoint::at("c").with_locality(y.clone(), 1),
    ]);
    let p1 = Endpoints::list([Endpoint::at("d").with_locality(y, 1)]);
    Endpoints::groups([("cluster:orders", Endpoints::groups([("p0", p0), ("p1", p1)]))])
}

fn pick(sim: &mut CoreSim) -> String {
    sim.pick_with(|call| call.with_cluster("cluster:orders")).finish_ok()
}

/// Names of the policies from the root down, along the first children.
fn names(description: &Description) -> Vec<String> {
    let below = description.children.first().map(|(_, child)| names(child)).unwrap_or_default();
    [description.policy.clone()].into_iter().chain(below).collect()
}

/// EDF-9: localities share calls by their weight. Endpoints share calls inside their locality, in exact EDF
/// order.
#[test]
fn shares_are_split_level_by_level() {
    let mut sim = CoreSim::new(&config(), endpoints()).all_up();
    let picks: Vec<String> = (0..8_000).map(|_| pick(&mut sim)).collect();
    let count = |address: &str| picks.iter().filter(|pick| *pick == address).count();
    // With 8,000 draws between localities 3:1 the standard deviation is 39.
    assert!((1_840..=2_160).contains(&count("c")), "{}", count("c"));
    let in_x: String = picks.iter().filter(|pick| *pick != "c").map(String::as_str).collect();
    assert!(in_x.starts_with("babbabbabbabba"), "{}", &in_x[..20]);
    assert_eq!(in_x.replace("bab", "").len(), in_x.len() % 3);
    assert!(sim.closed().is_empty() && sim.state_of("d").is_none(), "the second priority is not touched");
}

#[test]
fn the_description_has_the_whole_tree() {
    let mut sim = CoreSim::new(&config(), endpoints()).all_up();
    for _ in 0..400 {
        pick(&mut sim);
    }
    let tree = sim.describe();
    assert_eq!(
        names(&tree),
        [
            "xds_cluster_manager_experimental",
            "priority_experimental",
            "outlier_detection_experimental",
            "xds_cluster_impl_experimental",
            "xds_wrr_locality_experimental",
            "weighted_target_experimental",
            "edf_weighted_round_robin",
        ]
    );
    assert_eq!((tree.state, tree.picks()), (Some(ConnectivityState::Ready), 400));
    let json = serde_json::to_string(&tree).expect("a description is plain data");
    assert!(json.contains(r#""share":0.6666666666666666"#), "{json}");
}

/// PR-11, OD-11: a failed priority is replaced and takes calls again when it is READY. An endpoint with
/// errors is ejected.
#[test]
fn failover_and_ejection_are_combined() {
    let mut sim = CoreSim::new(&config(), endpoints()).all_up();
    for address in ["a", "b", "c"] {
        sim.down(address);
    }
    assert_eq!(pick(&mut sim), "d");
    for address in ["a", "b", "c"] {
        sim.up(address);
    }
    sim.advance(secs(3));
    assert_ne!(pick(&mut sim), "d");
    for _ in 0..200 {
        let picked = sim.pick_with(|call| call.with_cluster("cluster:orders"));
        let code = if picked.outcome() == "c" { Code::Internal } else { Code::Ok };
        picked.finish(code, None);
    }
    sim.advance(secs(1));
    assert!((0..200).all(|_| pick(&mut sim) != "c"));
    assert_eq!(sim.state_of("c"), Some(ConnectivityState::Ready), "its connection is kept");
}

/// Re-resolution requests from a child of priority that ignores them are not passed on.
#[test]
fn reresolution_is_ignored_as_configured() {
    let mut sim = CoreSim::new(&config(), endpoints()).all_up();
    sim.reresolutions();
    sim.down("a");
    assert_eq!(sim.reresolutions(), 0);
}
