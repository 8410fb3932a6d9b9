//! `random_subsetting_experimental`: a random subset of the endpoints for the child policy.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::{ConnectivityState, Core, Endpoint, EndpointHealthStatus, Endpoints, Registry, Rng};
use proptest::prelude::*;
use serde_json::{Value, json};
use testkit::{CoreSim, endpoints};
use xxhash_rust::xxh64::xxh64;

fn config(size: u32) -> Value {
    json!([{"random_subsetting_experimental": {"subsetSize": size, "childPolicy": [{"round_robin": {}}]}}])
}

fn list(names: impl IntoIterator<Item = impl AsRef<str>>) -> Endpoints {
    Endpoints::list(names.into_iter().map(|name| Endpoint::at(name.as_ref())))
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("10.0.0.{i}:80")).collect()
}

fn client(seed: u64, size: u32, endpoints: Endpoints) -> CoreSim {
    let core = Core::builder(Rng::fixed(seed)).build();
    CoreSim::with(core, Registry::standard(), &config(size), endpoints).all_up()
}

/// Addresses of the endpoints that the child policy uses.
fn chosen(sim: &CoreSim) -> Vec<String> {
    let (_, child) = &sim.describe().children[0];
    child.endpoints.iter().map(|row| row.addresses[0].clone()).collect()
}

fn sorted<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort_unstable();
    values
}

/// RS-1: config errors name the field and the expected value.
#[test]
fn config_errors_name_the_field() {
    let child = json!([{"round_robin": {}}]);
    let cases = [
        (json!({"childPolicy": child}), "subsetSize: is required: a whole number of at least 1"),
        (json!({"subsetSize": 0, "childPolicy": child}), "subsetSize: must be at least 1, found 0"),
        (
            json!({"subsetSize": -1, "childPolicy": child}),
            "subsetSize: expected a whole number from 0 to 4294967295, found -1",
        ),
        (json!({"subset_size": 2}), "childPolicy: is required: a list such as [{\"round_robin\": {}}]"),
    ];
    for (settings, problem) in cases {
        let config = json!([{"random_subsetting_experimental": settings}]);
        let error = Registry::standard().parse(&config).unwrap_err().to_string();
        let place = "policy \"random_subsetting_experimental\": loadBalancingConfig[0].random_subsetting_experimental";
        assert_eq!(error, format!("{place}.{problem}"));
    }
    let nested =
        json!([{"random_subsetting_experimental": {"subsetSize": 2, "childPolicy": [{"nosuch": {}}]}}]);
    let error = Registry::standard().parse(&nested).unwrap_err();
    assert!(error.path().ends_with("random_subsetting_experimental.childPolicy"), "{error}");
}

/// RS-2, RS-3: the endpoints with the lowest hashes under the seed are chosen, in that order. The seed is
/// drawn once.
#[test]
fn the_seed_ranks_the_endpoints() {
    let mut seeds = BTreeSet::new();
    for client_seed in 0..20 {
        let mut sim = client(client_seed, 3, list(names(10)));
        let seed = sim.describe().details["seed"].as_u64().unwrap();
        let mut ranked = names(10);
        ranked.sort_by_key(|name| xxh64(name.as_bytes(), seed));
        assert_eq!(chosen(&sim), ranked[..3]);
        assert_eq!(sorted(sim.dialled()), sorted(ranked[..3].to_vec()));
        seeds.insert(seed);

        sim.update(&config(4), list(names(10)));
        assert_eq!(chosen(&sim), ranked[..4]);
        sim.update(&config(2), list(names(10).iter().rev()));
        assert_eq!(chosen(&sim), ranked[..2]);
        assert_eq!(sim.describe().details["seed"].as_u64(), Some(seed));
    }
    assert_eq!(seeds.len(), 20);
}

/// RS-4: all endpoints are chosen in the given order if there are no more than `subsetSize`.
#[test]
fn all_are_chosen_if_there_are_no_more() {
    for count in 0..=4 {
        assert_eq!(chosen(&client(1, 4, list(names(count)))), names(count));
    }
    assert_eq!(client(1, u32::MAX, list(names(2))).subchannel_count(), 2);
}

/// RS-6: each update of endpoints or config recomputes the subset. States and pickers of the child pass
/// through.
#[test]
fn states_and_pickers_are_those_of_the_child() {
    let mut sim = CoreSim::new(&config(2), endpoints(["a", "b", "c"]));
    assert_eq!(sim.state(), ConnectivityState::Connecting);
    let both = sim.dialled();
    assert_eq!((both.len(), sim.picks(1)), (2, vec!["queue".to_owned()]));
    sim.fail(&both[0]);
    sim.ready(&both[1]);
    assert_eq!((sim.state(), sim.picks(2)), (ConnectivityState::Ready, vec![both[1].clone(); 2]));
    assert_eq!(sim.reresolutions(), 1);

    sim.published();
    sim.config(&config(3));
    assert_eq!(chosen(&sim).len(), 3);
    sim.config(&config(1));
    assert_eq!(chosen(&sim).len(), 1);
    // Equal endpoints in another value: the child is reconciled again, but nothing is dialled or published.
    sim.published();
    sim.dialled();
    sim.endpoints(endpoints(["a", "b", "c"]));
    assert_eq!((sim.dialled(), sim.published()), (vec![], 0));
    sim.endpoints(endpoints([]));
    assert_eq!((sim.state(), sim.picks(1)), (ConnectivityState::TransientFailure, vec!["fail".to_owned()]));
    sim.endpoints(endpoints(["d"]));
    assert_eq!(chosen(&sim), ["d"]);
}

/// RS-6: a changed child policy takes over with the same subset.
#[test]
fn the_child_can_change() {
    let mut sim = client(1, 2, list(names(9)));
    let before = sorted(chosen(&sim));
    sim.config(&json!([{"random_subsetting_experimental":
        {"subsetSize": 2, "childPolicy": [{"nosuch": {}}, {"pick_first": {}}]}}]));
    assert_eq!(sim.describe().children[0].1.policy, "pick_first");
    assert_eq!(sorted(chosen(&sim)), before);
}

/// RS-7: endpoints without addresses, duplicates and draining endpoints are not counted.
#[test]
fn only_usable_endpoints_are_counted() {
    let without_address = || Endpoint::new([""; 0]);
    let drained = |name: &str| Endpoint::at(name).with_health(EndpointHealthStatus::Draining);
    let mut sim = client(
        1,
        3,
        Endpoints::list([without_address(), without_address(), Endpoint::at("a"), Endpoint::at("b")]),
    );
    assert_eq!(chosen(&sim), ["a", "b"]);
    let mixed = || {
        vec![without_address(), Endpoint::at("a"), Endpoint::at("a"), Endpoint::at("b"), Endpoint::at("c")]
    };
    sim.endpoints(Endpoints::list(mixed()));
    assert_eq!(chosen(&sim), ["a", "b", "c"]);
    sim.endpoints(Endpoints::list(mixed().into_iter().chain([
        drained("d"),
        Endpoint::at("e"),
        without_address(),
    ])));
    assert_eq!(chosen(&sim).len(), 3);
    assert!(!chosen(&sim).contains(&"d".to_owned()));
    assert_eq!(sim.describe().details["of"], 4);
    assert_eq!(sim.describe().details["chosen"], 3);
}

/// RS-9: 100 clients with subsets of 25 of 100 servers give each server between 10 and 40 connections.
#[test]
fn many_clients_spread_over_the_servers() {
    let mut connections = BTreeMap::new();
    for seed in 0..100 {
        for name in client(seed, 25, list(names(100))).dialled() {
            *connections.entry(name).or_insert(0) += 1;
        }
    }
    assert_eq!(connections.len(), 100);
    assert!(connections.values().all(|n| (10..=40).contains(n)), "{connections:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// RS-5: adding or removing one endpoint changes at most one member, also if the number of endpoints
    /// crosses `subsetSize`.
    #[test]
    fn one_endpoint_changes_at_most_one_member(
        seed in any::<u64>(),
        count in 1usize..30,
        size in 1u32..20,
        gone in any::<prop::sample::Index>(),
    ) {
        let all = names(count);
        let mut less = all.clone();
        less.remove(gone.index(count));
        let mut sim = client(seed, size, list(&all));
        let before: BTreeSet<String> = chosen(&sim).into_iter().collect();
        sim.endpoints(list(&less));
        let after: BTreeSet<String> = chosen(&sim).into_iter().collect();
        prop_assert!(before.difference(&after).count() <= 1 && after.difference(&before).count() <= 1);
        sim.endpoints(list(&all));
        prop_assert_eq!(chosen(&sim).into_iter().collect::<BTreeSet<_>>(), before);
    }
}
