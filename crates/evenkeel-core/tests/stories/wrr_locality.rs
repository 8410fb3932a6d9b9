//! `xds_wrr_locality_experimental`: calls are divided among localities by weight, with the same policy in
//! each locality.

use std::sync::Arc;

use evenkeel_core::ConnectivityState::TransientFailure;
use evenkeel_core::{Code, Endpoint, Endpoints, Locality, Registry};
use proptest::prelude::*;
use serde_json::{Value, json};
use testkit::{CoreSim, endpoints, secs};

use crate::scripted;
use crate::weighted_target::check_shares;

fn config() -> Value {
    json!([{"xds_wrr_locality_experimental": {"childPolicy": [{"round_robin": {}}]}}])
}

fn locality(zone: &str) -> Arc<Locality> {
    Arc::new(Locality { region: "eu".to_owned(), zone: zone.to_owned(), sub_zone: String::new() })
}

fn label(zone: &str) -> String {
    format!("{{region=\"eu\", zone=\"{zone}\", sub_zone=\"\"}}")
}

/// Endpoints as (address, zone, weight of the locality).
fn zoned<'a>(all: impl IntoIterator<Item = (&'a str, &'a str, u32)>) -> Endpoints {
    let endpoint =
        |(address, zone, weight): (&str, _, _)| Endpoint::at(address).with_locality(locality(zone), weight);
    Endpoints::list(all.into_iter().map(endpoint).collect::<Vec<_>>())
}

/// WL-2, WT-6, LBX-7: each locality has one target, named by its label. Each target has the same policy and
/// the locality's endpoints in order.
#[test]
fn a_target_per_locality() {
    let config =
        json!([{"xds_wrr_locality_experimental": {"childPolicy": [{"scripted": {"state": "READY"}}]}}]);
    let sim = scripted::sim(
        &config,
        zoned([("b1", "b", 1), ("a1", "a", 3), ("b2", "b", 1), ("a2", "a", 3), ("c1", "c", 0)]),
    );
    let tree = sim.describe();
    let (name, targets) = &tree.children[0];
    assert_eq!((name.as_str(), targets.policy.as_str()), ("weighted_target", "weighted_target_experimental"));
    let expected = [
        ("a", 3, 0.6, json!(["a1", "a2"])),
        ("b", 1, 0.2, json!(["b1", "b2"])),
        ("c", 1, 0.2, json!(["c1"])),
    ];
    assert_eq!(targets.children.len(), expected.len());
    for ((name, child), (zone, weight, share, addresses)) in targets.children.iter().zip(expected) {
        assert_eq!((name, child.policy.as_str()), (&label(zone), "scripted"));
        assert_eq!(child.details["locality"], label(zone));
        assert_eq!(child.details["addresses"], addresses);
        let target = json!({"weight": weight, "state": "READY", "share": share});
        assert_eq!(targets.details["targets"][label(zone)], target);
    }
}

/// WL-2, WT-7: calls are divided by locality weight first, then by the policy of the locality.
#[test]
fn calls_follow_the_locality_weights() {
    let mut sim =
        CoreSim::new(&config(), zoned([("a", "a", 6), ("b", "b", 2), ("c", "b", 2), ("d", "d", 4)])).all_up();
    check_shares(&mut sim, 100_000, &[("a", 6), ("b", 1), ("c", 1), ("d", 4)]);
    sim.endpoints(zoned([("a", "a", u32::MAX), ("b", "b", u32::MAX), ("d", "d", 1)]));
    check_shares(&mut sim, 20_000, &[("a", u32::MAX), ("b", u32::MAX), ("d", 1)]);
}

/// WL-2: endpoints without a locality are in the empty locality, with the weight 1.
#[test]
fn endpoints_without_a_locality_are_in_the_empty_one() {
    let empty = Endpoint::at("b").with_locality(Arc::default(), 1);
    let all = [Endpoint::at("a"), empty, Endpoint::at("c").with_locality(locality("c"), 4)];
    let mut sim = CoreSim::new(&config(), Endpoints::list(all)).all_up();
    check_shares(&mut sim, 10_000, &[("a", 1), ("b", 1), ("c", 8)]);
    let names: Vec<_> = sim.describe().children[0].1.children.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(names, ["{region=\"\", zone=\"\", sub_zone=\"\"}".to_owned(), label("c")]);
    assert!(sim.warnings().is_empty());
}

/// WL-3: the warning is logged once and stays in the description while it applies.
#[test]
fn the_first_of_two_weights_is_used() {
    let mut sim =
        CoreSim::new(&config(), zoned([("a", "a", 3), ("b", "b", 1), ("c", "a", 5), ("d", "a", 7)])).all_up();
    let warning = format!("locality {} has two weights: the first, 3, is used, 5 is ignored", label("a"));
    assert_eq!(sim.describe().warnings, sim.warnings());
    assert_eq!(sim.describe().warnings, [warning]);
    check_shares(&mut sim, 10_000, &[("a", 1), ("b", 1), ("c", 1), ("d", 1)]);
    sim.down("b");
    sim.advance(secs(60));
    assert!(sim.warnings().is_empty());
    sim.endpoints(zoned([("a", "a", 3), ("b", "b", 1)]));
    assert!(sim.describe().warnings.is_empty());
}

/// WL-3: localities with equal labels share one child, since the label is the name of the child.
#[test]
fn localities_with_equal_labels_are_one() {
    let tricky = |region: &str, zone: &str| {
        Arc::new(Locality { region: region.to_owned(), zone: zone.to_owned(), sub_zone: String::new() })
    };
    let (one, other) = (tricky("r\", zone=\"s", "t"), tricky("r", "s\", zone=\"t"));
    assert_eq!(one.to_string(), other.to_string());
    let all = [Endpoint::at("a").with_locality(one, 1), Endpoint::at("b").with_locality(other, 2)];
    let mut sim = CoreSim::new(&config(), Endpoints::list(all)).all_up();
    assert_eq!(sim.warnings().len(), 1);
    check_shares(&mut sim, 1_000, &[("a", 1), ("b", 1)]);
}

/// WL-4, LBX-11, fault 66: a changed weight applies at once, without a reconnect and with one picker per
/// update.
#[test]
fn a_weight_change_applies_at_once_without_a_reconnect() {
    let mut sim = CoreSim::new(&config(), zoned([("a", "a", 1), ("b", "b", 1)])).all_up();
    assert_eq!(sim.dialled(), ["a", "b"]);
    sim.endpoints(zoned([("a", "a", 9), ("b", "b", 1)]));
    check_shares(&mut sim, 50_000, &[("a", 9), ("b", 1)]);
    sim.published();
    for i in 1..=1_000 {
        sim.endpoints(zoned([("a", "a", i), ("b", "b", 1_001 - i)]));
        assert_eq!(sim.published(), 1);
        assert!(!sim.picks(3).contains(&"fail".to_owned()));
    }
    check_shares(&mut sim, 50_000, &[("a", 1_000), ("b", 1)]);
    assert_eq!((sim.dialled().len(), sim.closed().len()), (0, 0));
}

/// WL-2: an unchanged locality is not updated, even if its endpoints arrive in a new list.
#[test]
fn an_update_reaches_only_changed_localities() {
    let config =
        json!([{"xds_wrr_locality_experimental": {"childPolicy": [{"scripted": {"state": "READY"}}]}}]);
    let mut sim = scripted::sim(&config, zoned([("a", "a", 1), ("b", "b", 1)]));
    let updates = |sim: &CoreSim| {
        let tree = sim.describe();
        let children = &tree.children[0].1.children;
        [0, 1].map(|i| children[i].1.details["updates"].as_u64())
    };
    for (update, expected) in [
        (zoned([("a", "a", 1), ("b", "b", 1)]), [1, 1]),
        (zoned([("a", "a", 1), ("b", "b", 1), ("c", "b", 1)]), [1, 2]),
        (zoned([("c", "b", 1), ("a", "a", 1), ("b", "b", 1)]), [1, 3]),
        (zoned([("c", "b", 1), ("a", "a", 2), ("b", "b", 1)]), [2, 3]),
    ] {
        sim.endpoints(update);
        assert_eq!(updates(&sim), expected.map(Some));
    }
}

/// WL-5, WT-4: a locality without endpoints has no target. Its connections are retained for 15 minutes.
#[test]
fn a_locality_without_endpoints_has_no_target() {
    let both = || zoned([("a", "a", 1), ("b", "b", 1)]);
    let mut sim = CoreSim::new(&config(), both()).all_up();
    sim.endpoints(zoned([("a", "a", 1)]));
    assert_eq!(sim.shares(50), [("a".to_owned(), 50)].into());
    let targets = &sim.describe().children[0].1.details["targets"];
    assert_eq!(targets.as_object().map(serde_json::Map::len), Some(1));
    sim.advance(secs(14 * 60 + 59));
    sim.endpoints(both());
    check_shares(&mut sim, 1_000, &[("a", 1), ("b", 1)]);
    assert_eq!(sim.dialled(), ["a", "b"]);
    sim.endpoints(zoned([("a", "a", 1)]));
    sim.advance(secs(15 * 60 + 1));
    assert_eq!(sim.closed(), ["b"]);
}

/// WL-2: an endpoint that moves to another locality keeps its connection.
#[test]
fn an_endpoint_that_moves_keeps_its_connection() {
    let mut sim = CoreSim::new(&config(), zoned([("a", "a", 1), ("b", "b", 1)])).all_up();
    sim.endpoints(zoned([("a", "a", 1), ("b", "c", 3)]));
    check_shares(&mut sim, 10_000, &[("a", 1), ("b", 3)]);
    assert_eq!(sim.dialled(), ["a", "b"]);
    sim.advance(secs(60 * 60));
    assert!(sim.closed().is_empty());
}

/// WL-5, WT-5, fault 25: without endpoints, calls fail at once.
#[test]
fn without_endpoints_calls_fail_at_once() {
    let mut sim = CoreSim::new(&config(), Endpoints::none());
    assert_eq!(sim.state(), TransientFailure);
    let status = sim.pick().status().cloned().expect("the call fails");
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "no targets to send calls to"));
    sim = sim.all_up();
    sim.endpoints(zoned([("a", "a", 1)]));
    assert_eq!(sim.picks(1), ["a"]);
    sim.endpoints(Endpoints::none());
    assert_eq!(sim.picks(1), ["fail"]);
}

/// LBX-12: a changed child policy takes over in every locality without a gap.
#[test]
fn a_changed_child_policy_takes_over() {
    let mut sim = CoreSim::new(&config(), zoned([("a", "a", 1), ("b", "b", 1)])).all_up();
    sim.config(&json!([{"xds_wrr_locality_experimental": {"childPolicy": [{"pick_first": {}}]}}]));
    assert_eq!(sim.describe().children[0].1.children[1].1.policy, "pick_first");
    check_shares(&mut sim, 1_000, &[("a", 1), ("b", 1)]);
    assert_eq!(sim.dialled(), ["a", "b"]);
}

/// An endpoint that is listed twice, and in another locality too, has one connection.
#[test]
fn duplicates_share_a_connection() {
    let mut sim = CoreSim::new(&config(), zoned([("a", "a", 1), ("a", "a", 1), ("a", "b", 1)])).all_up();
    assert_eq!(sim.picks(2), ["a", "a"]);
    assert_eq!(sim.dialled(), ["a"]);
    sim.endpoints(endpoints([]));
    sim.advance(secs(16 * 60));
    assert_eq!(sim.closed(), ["a"]);
}

/// WL-1, LBX-2: the config parses under all names that other implementations use.
#[test]
fn configs_parse_under_all_names() {
    let registry = Registry::standard();
    for name in ["xds_wrr_locality_experimental", "wrr_locality_experimental", "xds_wrr_locality"] {
        for field in ["childPolicy", "child_policy"] {
            let parsed = registry.parse(&json!([{ name: { field: [{"round_robin": {}}] } }]));
            assert_eq!(parsed.expect("it parses").policy(), "xds_wrr_locality_experimental");
        }
        let error = registry.parse(&json!([{ name: {} }])).expect_err("the child is missing");
        assert_eq!(error.policy(), Some("xds_wrr_locality_experimental"));
        assert_eq!(error.path(), format!("loadBalancingConfig[0].{name}.childPolicy"));
        assert!(error.to_string().contains("is required"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// WL-2, WL-4: after any updates, shares are those of the latest, and only new endpoints are dialled.
    #[test]
    fn shares_follow_the_latest_update(
        updates in prop::collection::vec(prop::collection::vec(0u32..5, 4), 1..6),
    ) {
        let names = ["a", "b", "c", "d"];
        let mut sim = CoreSim::new(&config(), Endpoints::none()).all_up();
        let mut dialled = Vec::new();
        for weights in updates {
            // Weight 0 stands for a missing locality.
            let present: Vec<_> = names.into_iter().zip(weights).filter(|(_, weight)| *weight > 0).collect();
            sim.endpoints(zoned(present.iter().map(|(name, weight)| (*name, *name, *weight))));
            dialled.extend(sim.dialled());
            if present.is_empty() {
                prop_assert_eq!(sim.picks(1), ["fail"]);
            } else {
                check_shares(&mut sim, 2_000, &present);
            }
        }
        dialled.sort();
        let mut once = dialled.clone();
        once.dedup();
        prop_assert_eq!(dialled, once);
    }
}

/// WL-2, WL-4: named endpoint groups are localities, and their weights divide the calls.
#[test]
fn named_groups_are_localities() {
    let groups = |near, far| {
        Endpoints::weighted_groups([("near", near, endpoints(["a", "b"])), ("far", far, endpoints(["c"]))])
    };
    let mut sim = CoreSim::new(&config(), groups(3, 1)).all_up();
    let far = sim.shares(8_000)["c"];
    assert!((1_840..=2_160).contains(&far), "{far} of 8,000 instead of a quarter");
    sim.dialled();
    sim.endpoints(groups(0, 0));
    let far = sim.shares(8_000)["c"];
    assert!((3_820..=4_180).contains(&far), "{far} of 8,000 instead of half");
    assert!(sim.dialled().is_empty(), "a changed weight does not reconnect");
    let targets = &sim.describe().children[0].1;
    let names: Vec<&str> = targets.children.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["far", "near"]);
}
