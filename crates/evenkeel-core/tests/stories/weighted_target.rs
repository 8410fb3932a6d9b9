//! `weighted_target_experimental`: calls are distributed over named children at random, by weight.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::ConnectivityState::{self, Connecting, Idle, Ready, TransientFailure};
use evenkeel_core::{Code, Endpoints, Registry};
use proptest::prelude::*;
use serde_json::{Value, json};
use testkit::{CoreSim, endpoints, secs};

use crate::scripted::{self, picked_child, scripted};

/// Config of targets with a child policy each.
fn targets<'a>(targets: impl IntoIterator<Item = (&'a str, u32, Value)>) -> Value {
    let target = |(name, weight, child): (&str, u32, Value)| {
        (name.to_owned(), json!({ "weight": weight, "childPolicy": child }))
    };
    let targets: serde_json::Map<_, _> = targets.into_iter().map(target).collect();
    json!([{"weighted_target_experimental": { "targets": targets }}])
}

/// Config of targets over round_robin.
fn spread<'a>(weights: impl IntoIterator<Item = (&'a str, u32)>) -> Value {
    targets(weights.into_iter().map(|(name, weight)| (name, weight, json!([{"round_robin": {}}]))))
}

/// One endpoint group per name, with one endpoint at the address of that name.
fn alone<'a>(names: impl IntoIterator<Item = &'a str>) -> Endpoints {
    Endpoints::groups(names.into_iter().map(|name| (name, endpoints([name]))))
}

/// Maximum distance of the number of hits in `n` tries of probability `p` from `n * p`. This is Bernstein's
/// bound, which also holds for rare hits. A correct picker exceeds it once in a billion checks (21.4 is the
/// logarithm of two billion).
pub(crate) fn tolerance(n: usize, p: f64) -> f64 {
    (2.0 * 21.4 * n as f64 * p * (1.0 - p)).sqrt() + 21.4 * 2.0 / 3.0
}

/// Checks that `n` calls are distributed by weight.
pub(crate) fn check_shares(sim: &mut CoreSim, n: usize, weights: &[(&str, u32)]) {
    let shares = sim.shares(n);
    let total: f64 = weights.iter().map(|(_, weight)| f64::from(*weight)).sum();
    for (name, weight) in weights {
        let p = f64::from(*weight) / total;
        let hits = shares.get(*name).copied().unwrap_or(0) as f64;
        let off = (hits - n as f64 * p).abs();
        assert!(off <= tolerance(n, p), "{name}: {hits} of {n} calls, weights {weights:?}");
    }
    assert_eq!(shares.keys().filter(|name| !weights.iter().any(|(known, _)| known == name)).count(), 0);
}

/// WT-1, WT-2: a weight change applies to picks at once and closes no connection.
#[test]
fn calls_follow_the_weights() {
    let mut sim = CoreSim::new(&spread([("a", 75), ("b", 25)]), alone(["a", "b"])).all_up();
    check_shares(&mut sim, 100_000, &[("a", 75), ("b", 25)]);
    assert_eq!(sim.dialled(), ["a", "b"]);
    sim.published();
    for weights in [[("a", 1), ("b", 99)], [("a", 50), ("b", 50)], [("a", u32::MAX), ("b", 1)]] {
        sim.config(&spread(weights));
        assert_eq!(sim.published(), 1);
        check_shares(&mut sim, 20_000, &weights);
    }
    assert_eq!((sim.dialled().len(), sim.closed().len()), (0, 0));
}

/// WT-7: the sum of these weights overflows 32 bits.
#[test]
fn the_greatest_weights_do_not_overflow() {
    let weights = [("a", u32::MAX), ("b", u32::MAX), ("c", u32::MAX), ("d", u32::MAX - 1), ("e", 1 << 31)];
    let mut sim = CoreSim::new(&spread(weights), alone(weights.map(|(name, _)| name))).all_up();
    check_shares(&mut sim, 100_000, &weights);
}

/// WT-2: no call goes to a child that is not READY. Its part is divided among the others by weight.
#[test]
fn only_ready_children_get_calls() {
    let mut sim = CoreSim::new(&spread([("a", 5), ("b", 3), ("c", 2)]), alone(["a", "b", "c"]));
    assert_eq!(sim.picks(2), ["queue", "queue"]);
    sim.up("a");
    assert_eq!(sim.shares(100), [("a".to_owned(), 100)].into());
    sim.up("c");
    check_shares(&mut sim, 20_000, &[("a", 5), ("c", 2)]);
    sim.up("b");
    check_shares(&mut sim, 20_000, &[("a", 5), ("b", 3), ("c", 2)]);
    sim.down("a");
    check_shares(&mut sim, 20_000, &[("b", 3), ("c", 2)]);
}

/// WT-3: the aggregated state, for every combination of the states of three children.
#[test]
fn states_are_aggregated() {
    let states = [Ready, Connecting, Idle, TransientFailure];
    let all = states.iter().flat_map(|a| states.iter().flat_map(move |b| states.map(|c| [*a, *b, c])));
    for combination in all {
        let has = |state| combination.contains(&state);
        let (expected, picked_state) = match () {
            () if has(Ready) => (Ready, Some(Ready)),
            () if has(Connecting) => (Connecting, None),
            () if has(Idle) => (Idle, Some(Idle)),
            () => (TransientFailure, Some(TransientFailure)),
        };
        let names = ["a", "b", "c"];
        let children = names.iter().zip(combination).zip([1, 2, 3]);
        let config = targets(children.map(|((name, state), weight)| (*name, weight, scripted(name, state))));
        let mut sim = scripted::sim(&config, Endpoints::none());
        assert_eq!(sim.state(), expected, "{combination:?}");
        let outcomes: BTreeSet<String> = (0..200).map(|_| picked_child(&sim.pick())).collect();
        let mut expected: BTreeSet<String> = names
            .iter()
            .zip(combination)
            .filter(|(_, state)| Some(*state) == picked_state)
            .map(|(name, _)| (*name).to_owned())
            .collect();
        if picked_state.is_none() {
            expected.insert("queue".to_owned());
        }
        assert_eq!(outcomes, expected, "{combination:?}");
    }
}

/// WT-3: if all children failed, a call fails with the status of one of them, chosen by weight.
#[test]
fn failures_are_chosen_by_weight() {
    let mut sim = CoreSim::new(&spread([("a", 9), ("b", 1)]), alone(["a", "b"]));
    sim.fail("a");
    assert_eq!(sim.state(), Connecting);
    sim.fail("b");
    assert_eq!(sim.state(), TransientFailure);
    let mut hits = BTreeMap::<String, usize>::new();
    for _ in 0..10_000 {
        let message = sim.pick().status().expect("the call fails").message().to_owned();
        *hits.entry(message).or_default() += 1;
    }
    let a = hits["a: a refused"] as f64;
    assert!((a - 9_000.0).abs() < tolerance(10_000, 0.9), "{hits:?}");
    assert_eq!(hits.len(), 2);
}

/// WT-3, LBX-3, LBX-4: a child that reported TRANSIENT_FAILURE counts as failed until it is READY.
#[test]
fn failure_sticks_until_ready() {
    let one = |state| targets([("a", 1, scripted("a", state)), ("b", 1, scripted("b", TransientFailure))]);
    let mut sim = scripted::sim(&one(Connecting), Endpoints::none());
    let steps: [(ConnectivityState, ConnectivityState); 9] = [
        (Connecting, Connecting),
        (Idle, Idle),
        (Connecting, Connecting),
        (TransientFailure, TransientFailure),
        (Connecting, TransientFailure),
        (Idle, TransientFailure),
        (Ready, Ready),
        (Connecting, Connecting),
        (TransientFailure, TransientFailure),
    ];
    for (i, (given, expected)) in steps.into_iter().enumerate() {
        sim.config(&one(given));
        assert_eq!(sim.state(), expected, "step {i}");
    }
}

/// WT-2: an IDLE child reconnects without a call, since no call would reach it while another child is READY.
#[test]
fn an_idle_child_connects_again_by_itself() {
    let pick_first = || json!([{"pick_first": {}}]);
    let config = targets([("a", 1, pick_first()), ("b", 1, pick_first())]);
    let mut sim = CoreSim::new(&config, alone(["a", "b"]));
    sim.ready("a");
    sim.ready("b");
    sim.dialled();
    sim.lose("a");
    assert_eq!(sim.dialled(), ["a"]);
    assert_eq!(sim.shares(50), [("b".to_owned(), 50)].into());
    sim.ready("a");
    check_shares(&mut sim, 1_000, &[("a", 1), ("b", 1)]);
}

/// WT-4: a child that is re-added within 15 minutes has kept its connections. After that it is dropped.
#[test]
fn a_removed_child_is_kept_for_fifteen_minutes() {
    let (both, one) = (spread([("a", 1), ("b", 1)]), spread([("a", 1)]));
    let mut sim = CoreSim::new(&both, alone(["a", "b"])).all_up();
    assert_eq!(sim.dialled(), ["a", "b"]);

    sim.update(&one, alone(["a"]));
    assert_eq!(sim.shares(100), [("a".to_owned(), 100)].into());
    sim.advance(secs(14 * 60 + 59));
    assert_eq!(sim.subchannel_count(), 2);
    assert_eq!(sim.describe().details["leaving"], json!({"b": "in 1s"}));
    sim.update(&both, alone(["a", "b"]));
    check_shares(&mut sim, 1_000, &[("a", 1), ("b", 1)]);
    assert_eq!((sim.dialled().len(), sim.closed().len()), (0, 0));
    assert_eq!(sim.wake_at(), None);
    sim.advance(secs(60 * 60));
    assert_eq!(sim.closed().len(), 0);

    sim.update(&one, alone(["a"]));
    let gone = sim.now() + secs(15 * 60);
    assert_eq!(sim.wake_at(), Some(gone));
    sim.advance(secs(15 * 60 + 1));
    assert_eq!(sim.closed(), ["b"]);
    assert!(!sim.describe().details.contains_key("leaving"));
    assert_eq!(sim.wake_at(), None);
    sim.update(&both, alone(["a", "b"]));
    assert_eq!(sim.dialled(), ["b"]);
}

/// WT-4: the 15 minutes count from the removal, across other updates. They also end while the process is
/// asleep.
#[test]
fn retention_runs_from_the_removal() {
    let (both, one) = (spread([("a", 1), ("b", 1)]), spread([("a", 1)]));
    let mut sim = CoreSim::new(&both, alone(["a", "b"])).all_up();
    sim.update(&one, alone(["a"]));
    for _ in 0..14 {
        sim.advance(secs(60));
        sim.update(&spread([("a", 2)]), alone(["a"]));
        sim.update(&spread([("a", 1), ("c", 1)]), alone(["a", "c"]));
        sim.update(&one, alone(["a"]));
    }
    assert!(sim.closed().is_empty());
    sim.advance(secs(60));
    assert_eq!(sim.closed(), ["b"]);

    let mut sim = CoreSim::new(&both, alone(["a", "b"])).all_up();
    sim.update(&one, alone(["a"]));
    sim.dialled();
    sim.sleep_through(secs(20 * 60));
    assert_eq!(sim.closed(), ["b"]);
    sim.update(&both, alone(["a", "b"]));
    assert_eq!(sim.dialled(), ["b"]);
}

/// WT-4: a removed child keeps its connections but does not affect the state. All children may be removed.
#[test]
fn removed_children_do_not_count() {
    let both = spread([("a", 1), ("b", 1)]);
    let mut sim = CoreSim::new(&both, alone(["a", "b"])).all_up();
    sim.update(&spread([("a", 1)]), alone(["a"]));
    sim.published();
    sim.down("b");
    sim.up("b");
    assert_eq!(sim.published(), 0);
    sim.down("a");
    sim.advance(secs(2));
    assert_eq!((sim.state(), sim.state_of("b")), (TransientFailure, Some(Ready)));
    sim.update(&spread([]), Endpoints::none());
    assert_eq!((sim.state(), sim.state_of("b")), (TransientFailure, Some(Ready)));
    sim.advance(secs(16 * 60));
    assert_eq!(sim.subchannel_count(), 0);
}

/// WT-5: without targets, calls fail with UNAVAILABLE.
#[test]
fn without_targets_calls_fail() {
    for config in [json!([{"weighted_target_experimental": {}}]), spread([])] {
        let mut sim = CoreSim::new(&config, alone(["a"]));
        assert_eq!(sim.state(), TransientFailure);
        let status = sim.pick().status().cloned().expect("the call fails");
        assert_eq!((status.code(), status.message()), (Code::Unavailable, "no targets to send calls to"));
        sim.note("node n1");
        let status = sim.pick().status().cloned().expect("the call fails");
        assert_eq!(status.message(), "no targets to send calls to (node n1)");
    }
}

/// WT-6, LBX-7: each child receives its name and its endpoint group, without the name in the path. A target
/// without a group gets no endpoints. A group without a target is ignored.
#[test]
fn a_child_receives_its_name_and_its_group() {
    let inner = |name: &str| targets([("x", 1, scripted(name, Ready)), ("y", 1, scripted(name, Ready))]);
    let config =
        targets([("a", 1, inner("a")), ("b", 1, scripted("b", Ready)), ("c", 1, scripted("c", Ready))]);
    let groups = Endpoints::groups([
        ("a", Endpoints::groups([("x", endpoints(["a.x"])), ("y", endpoints(["a.y.1", "a.y.2"]))])),
        ("b", endpoints(["b.1"])),
        ("unknown", endpoints(["u"])),
    ]);
    let sim = scripted::sim(&config, groups);
    let tree = sim.describe();
    let names: Vec<_> = tree.children.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let (a, b, c) = (&tree.children[0].1, &tree.children[1].1, &tree.children[2].1);
    for (child, locality, addresses) in [
        (&a.children[0].1, "x", json!(["a.x"])),
        (&a.children[1].1, "y", json!(["a.y.1", "a.y.2"])),
        (b, "b", json!(["b.1"])),
        (c, "c", json!([])),
    ] {
        assert_eq!(child.details["locality"], locality);
        assert_eq!(child.details["addresses"], addresses);
    }
}

/// LBX-11: one update publishes one picker, however many children it changes.
#[test]
fn an_update_publishes_one_picker() {
    let group = |name: &'static str, n: usize| {
        let list = (0..n).map(|i| evenkeel_core::Endpoint::at(format!("{name}{i}").as_str()));
        (name, Endpoints::list(list.collect::<Vec<_>>()))
    };
    let config = spread([("a", 1), ("b", 2), ("c", 3)]);
    let groups = |n| Endpoints::groups([group("a", n), group("b", n), group("c", n)]);
    let mut sim = CoreSim::new(&config, groups(3)).all_up();
    sim.published();
    sim.update(&spread([("a", 3), ("b", 3), ("c", 3)]), groups(2));
    assert_eq!(sim.published(), 1);
    sim.config(&spread([("a", 3), ("b", 3), ("c", 3)]));
    assert_eq!(sim.published(), 0);
}

/// LBX-12: a changed policy below a target takes over without a gap.
#[test]
fn a_changed_policy_of_a_target_takes_over() {
    let mut sim = CoreSim::new(&spread([("a", 1), ("b", 1)]), alone(["a", "b"])).all_up();
    sim.dialled();
    let pick_first = |name| (name, 1, json!([{"pick_first": {}}]));
    sim.config(&targets([pick_first("a"), pick_first("b")]));
    check_shares(&mut sim, 1_000, &[("a", 1), ("b", 1)]);
    assert_eq!((sim.dialled().len(), sim.closed().len()), (0, 0));
}

#[test]
fn the_description_has_weights_and_shares() {
    let mut sim = CoreSim::new(&spread([("a", 3), ("b", 1), ("c", 4)]), alone(["a", "b", "c"]));
    sim.up("a");
    sim.up("b");
    assert_eq!(
        sim.describe().details["targets"],
        json!({
            "a": {"weight": 3, "state": "READY", "share": 0.75},
            "b": {"weight": 1, "state": "READY", "share": 0.25},
            "c": {"weight": 4, "state": "CONNECTING", "share": null},
        })
    );
}

/// WT-1, LBX-1, LBX-2: config errors carry the path of the field.
#[test]
fn config_errors_carry_the_path() {
    let registry = Registry::standard();
    let at = |rest: &str| format!("loadBalancingConfig[0].weighted_target_experimental.{rest}");
    for (config, path, problem) in [
        (json!({"targets": []}), "targets", "expected an object"),
        (json!({"targets": {"a": 1}}), "targets[\"a\"]", "expected an object"),
        (
            json!({"targets": {"a": {"childPolicy": [{"round_robin": {}}]}}}),
            "targets[\"a\"].weight",
            "at least 1",
        ),
        (
            json!({"targets": {"a": {"weight": 0, "childPolicy": [{"round_robin": {}}]}}}),
            "targets[\"a\"].weight",
            "at least 1",
        ),
        (json!({"targets": {"a": {"weight": -1}}}), "targets[\"a\"].weight", "found -1"),
        (json!({"targets": {"a": {"weight": 4_294_967_296_u64}}}), "targets[\"a\"].weight", "4294967295"),
        (json!({"targets": {"a": {"weight": 1}}}), "targets[\"a\"].childPolicy", "is required"),
        (
            json!({"targets": {"a": {"weight": 1, "childPolicy": [{"nosuch": {}}]}}}),
            "targets[\"a\"].childPolicy",
            "nosuch",
        ),
    ] {
        let error = registry
            .parse(&json!([{ "weighted_target_experimental": config }]))
            .expect_err("the config is invalid");
        assert_eq!(error.path(), at(path));
        assert!(error.to_string().contains(problem), "{error}");
    }
    let both = json!([{"weighted_target_experimental": {"targets": {
        "a": {"weight": "7", "child_policy": [{"nosuch": {}}, {"round_robin": {}}], "other": 1},
    }}}]);
    assert!(registry.parse(&both).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// WT-2, WT-7: shares follow any weights.
    #[test]
    fn shares_follow_any_weights(weights in prop::collection::vec(any_weight(), 1..8)) {
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        let weights: Vec<(&str, u32)> = names.into_iter().zip(weights).collect();
        let mut sim = CoreSim::new(&spread(weights.clone()), alone(weights.iter().map(|(name, _)| *name)));
        sim = sim.all_up();
        check_shares(&mut sim, 4_000, &weights);
    }
}

/// Weights of all magnitudes.
fn any_weight() -> impl Strategy<Value = u32> {
    (0u32..32, any::<u32>()).prop_map(|(shift, bits)| (bits >> shift).max(1))
}
