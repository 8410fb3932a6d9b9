//! `edf_weighted_round_robin`: picks in proportion to the EDS weights.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_core::schedule::{Schedule, ScheduleRule};
use evenkeel_core::{Core, Endpoint, Endpoints, Locality, Registry, Rng};
use serde_json::{Value, json};
use testkit::{CoreSim, endpoints, secs, weighted};

fn edf() -> Value {
    json!([{"edf_weighted_round_robin": {}}])
}

fn check<const N: usize>(list: [(&str, u32); N], picks: &str) {
    let mut sim = CoreSim::new(&edf(), weighted(list)).all_up();
    assert_eq!(sim.letters(picks.len()), picks);
}

/// EDF-1, EDF-3, EDF-4, EDF-6: the pick sequences of grpc/proposal#202.
#[test]
fn sequences_of_the_proposal() {
    check([("a", 2), ("b", 4)], "babbabbabbabba");
    check([("a", 2), ("b", 2)], &"ab".repeat(14));
    check([("a", 1), ("b", 10)], "bbbbbbbbbabbbbbbbbbbab");
    check([("a", 1), ("b", 2), ("c", 3)], "cbcabccbcabccbcabc");
}

/// EDF-2: equal weights give a strict rotation.
#[test]
fn equal_weights_are_a_rotation() {
    check([("a", 7), ("b", 7), ("c", 7), ("d", 7)], &"abcd".repeat(1_000));
}

/// EDF-5: a missing weight counts as 1.
#[test]
fn a_missing_weight_is_one() {
    let list = || Endpoints::list([Endpoint::at("a"), Endpoint::at("b").with_weight(3)]);
    let mut sim = CoreSim::new(&edf(), list()).all_up();
    assert_eq!(sim.shares(400).into_values().collect::<Vec<_>>(), [100, 300]);
    let rows = sim.describe().endpoints;
    let rows: Vec<_> = rows.iter().map(|row| (row.weight, row.share, row.picks)).collect();
    assert_eq!(rows, [(Some(1.0), Some(0.25), 100), (Some(3.0), Some(0.75), 300)]);
}

/// EDF-7: a changed weight applies from the next pick, without a reconnect.
#[test]
fn a_new_weight_acts_on_the_next_pick() {
    let mut sim = CoreSim::new(&edf(), weighted([("a", 1), ("b", 1)])).all_up();
    assert_eq!(sim.letters(3), "aba");
    sim.dialled();
    sim.endpoints(weighted([("a", 1), ("b", 100)]));
    assert_eq!(sim.shares(202).into_values().collect::<Vec<_>>(), [2, 200]);
    sim.endpoints(weighted([("a", 3), ("b", 1)]));
    assert_eq!(sim.shares(400).into_values().collect::<Vec<_>>(), [300, 100]);
    assert_eq!((sim.dialled(), sim.closed()), (vec![], vec![]));
}

/// EDF-8: a lost endpoint is removed at once, and the others keep their order.
#[test]
fn a_lost_endpoint_is_removed_and_the_others_keep_their_order() {
    let list = [("a", 3), ("b", 5), ("c", 7), ("d", 11)];
    for n in 0..60 {
        let mut sim = CoreSim::new(&edf(), weighted(list));
        assert_eq!(sim.letters(1), "queue");
        for (address, _) in list {
            sim.ready(address);
        }
        let whole = CoreSim::new(&edf(), weighted(list)).all_up().letters(n + 200);
        assert_eq!(sim.letters(n), whole[..n]);
        sim.lose("c");
        let rest = whole[n..].replace('c', "");
        assert_eq!(sim.letters(rest.len()), rest, "c lost after {n} picks");
    }
}

/// EDF-9: locality weights do not affect the picks.
#[test]
fn locality_weights_are_ignored() {
    let at = |address, zone: &str, weight| {
        let locality = Locality { zone: zone.to_owned(), ..Locality::default() };
        Endpoint::at(address).with_locality(Arc::new(locality), weight)
    };
    let list = Endpoints::list([at("a", "north", 90), at("b", "south", 10)]);
    assert_eq!(CoreSim::new(&edf(), list).all_up().letters(6), "ababab");
}

/// EDF-10: unknown config fields are ignored.
#[test]
fn unknown_config_fields_are_ignored() {
    let config = json!([{"edf_weighted_round_robin": {"slowStart": {"window": "1s"}}}]);
    let mut sim = CoreSim::new(&config, weighted([("a", 2), ("b", 4)])).all_up();
    assert_eq!(sim.letters(6), "babbab");
    let error = Registry::standard().parse(&json!([{"edf_weighted_round_robin": 1}])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "policy \"edf_weighted_round_robin\": loadBalancingConfig[0].edf_weighted_round_robin: \
         expected an object, found 1"
    );
}

/// Channels of several clients start at different positions of the same order.
#[test]
fn the_first_pick_is_random() {
    let picks = |seed| {
        let core = Core::builder(Rng::from_entropy(seed)).build();
        let list = weighted([("a", 1), ("b", 2), ("c", 3)]);
        CoreSim::with(core, Registry::standard(), &edf(), list).all_up().letters(6)
    };
    let starts: BTreeSet<String> = (0..100).map(picks).collect();
    let order = "cbcabccbcabc";
    assert_eq!(starts, (0..6).map(|start| order[start..start + 6].to_owned()).collect());
}

/// EDF-12: a sequence that is too long for a table is renewed while calls are picked.
#[test]
fn a_long_sequence_is_renewed_while_it_is_used() {
    let weights = [u32::MAX, 3_000_000_019, 77_777];
    let mut sim =
        CoreSim::new(&edf(), weighted([("a", weights[0]), ("b", weights[1]), ("c", weights[2])])).all_up();
    let whole = Schedule::new(&weights, ScheduleRule::Literal).unwrap();
    sim.published();
    let mut renewed = 0;
    for _ in 0..12 {
        let expected: String = (0..10_000).map(|_| ["a", "b", "c"][whole.pick()]).collect();
        assert_eq!(sim.letters(10_000), expected);
        sim.advance(secs(1));
        renewed += sim.published();
    }
    assert!((3..=5).contains(&renewed), "renewed whenever half is used, {renewed} times");
    assert_eq!(sim.describe().picks(), 120_000);
    sim.endpoints(endpoints(["a", "b", "c"]));
    assert_eq!(sim.wake_at(), None, "a rotation needs no timer");
}

/// EDF-12: a sequence that is too long for a table needs a timer while calls are picked. Without picks there
/// is no timer.
#[test]
fn a_long_sequence_needs_no_timer_without_picks() {
    let list = weighted([("a", u32::MAX), ("b", 3_000_000_019), ("c", 77_777)]);
    let mut sim = CoreSim::new(&edf(), list).all_up();
    sim.advance(secs(10));
    assert_eq!(sim.wake_at(), None);
    for _ in 0..3 {
        sim.letters(10);
        assert!(sim.wake_at().is_some_and(|at| at <= sim.now() + secs(1)), "the pick set the timer");
        sim.advance(secs(1));
    }
    sim.advance(secs(10));
    assert_eq!(sim.wake_at(), None);
    assert_eq!(sim.describe().picks(), 30);
}

/// Without endpoints, calls fail at once instead of being queued.
#[test]
fn without_endpoints_calls_fail() {
    let mut sim = CoreSim::new(&edf(), Endpoints::none());
    assert_eq!(sim.pick().status().unwrap().message(), "no endpoints");
    sim.endpoints(weighted([("a", 5)]));
    sim.ready("a");
    assert_eq!(sim.letters(3), "aaa");
    assert_eq!(sim.describe().endpoints[0].share, Some(1.0));
}
