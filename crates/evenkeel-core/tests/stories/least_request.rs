//! `least_request_experimental`: of a few endpoints sampled at random, the one with the fewest calls in
//! flight is picked.

use std::collections::BTreeMap;

use evenkeel_core::{
    ChildPolicy, Code, ConfigError, ConfigFields, ConnectivityState, Core, Cx, DescribeCx, Description,
    Endpoint, Endpoints, LbConfig, LbState, PickArgs, PickResult, Picker, Policy, Registry, Rng,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use testkit::{CoreSim, Picked, endpoints, secs, weighted};

fn config(settings: &Value) -> Value {
    json!([{"least_request_experimental": settings}])
}

fn sim<const N: usize>(settings: &Value, addresses: [&str; N]) -> CoreSim {
    CoreSim::new(&config(settings), endpoints(addresses)).all_up()
}

/// Calls in flight by endpoint, as the policy counts them.
fn outstanding(sim: &CoreSim) -> BTreeMap<String, u64> {
    let details = sim.describe().details;
    let counts = details["outstanding"].as_object().into_iter().flatten();
    counts.filter_map(|(address, count)| Some((address.clone(), count.as_u64()?))).collect()
}

fn total(sim: &CoreSim) -> u64 {
    outstanding(sim).values().sum()
}

/// Picks until a call goes to this endpoint and keeps that call. The others are dropped.
fn call_to(sim: &mut CoreSim, address: &str) -> Picked {
    let mut calls = std::iter::repeat_with(|| sim.pick()).take(1000);
    calls.find(|picked| picked.outcome() == address).expect("one of many calls goes there")
}

/// LR-1: choice counts below 2 are rejected, and counts above 10 are capped.
#[test]
fn choice_counts_are_checked_and_capped() {
    let parse = |settings| Registry::standard().parse(&config(&settings));
    for (settings, problem) in [
        (json!({"choiceCount": 1}), "choiceCount: must be at least 2, found 1"),
        (json!({"choice_count": 0}), "choiceCount: must be at least 2, found 0"),
        (
            json!({"choiceCount": "two"}),
            "choiceCount: expected a whole number from 0 to 4294967295, found \"two\"",
        ),
        (json!({"distinctSamples": 1}), "distinctSamples: expected true or false, found 1"),
    ] {
        let place =
            "policy \"least_request_experimental\": loadBalancingConfig[0].least_request_experimental";
        assert_eq!(parse(settings).unwrap_err().to_string(), format!("{place}.{problem}"));
    }
    for (settings, count) in [
        (json!({}), 2),
        (json!({"choiceCount": null}), 2),
        (json!({"choiceCount": 2}), 2),
        (json!({"choiceCount": 10}), 10),
        (json!({"choiceCount": 11}), 10),
        (json!({"choiceCount": u32::MAX}), 10),
    ] {
        assert_eq!(sim(&settings, ["a"]).describe().details["choiceCount"], count);
    }
}

/// LR-4: a call is counted until it ends, and each end decrements the count once.
#[test]
fn a_call_counts_until_it_ends() {
    let mut sim = sim(&json!({}), ["a", "b"]);
    let ends: [fn(Picked); 5] = [
        |picked| drop(picked.finish_ok()),
        |picked| drop(picked.finish(Code::Unavailable, None)),
        |picked| drop(picked.finish(Code::Cancelled, None)),
        Picked::unsent,
        drop,
    ];
    for end in ends {
        let (first, second) = (sim.pick(), sim.pick());
        assert_eq!(total(&sim), 2);
        end(first);
        assert_eq!(total(&sim), 1);
        end(second);
        assert_eq!(total(&sim), 0);
    }
    assert_eq!(sim.describe().picks(), 10);
}

/// LR-4: queued and failed calls are not counted.
#[test]
fn queued_and_failed_calls_do_not_count() {
    let mut sim = CoreSim::new(&config(&json!({})), endpoints(["a", "b"]));
    assert_eq!(sim.picks(3), ["queue"; 3]);
    sim.fail("a");
    sim.fail("b");
    assert_eq!(sim.picks(3), ["fail"; 3]);
    assert_eq!((total(&sim), sim.describe().picks()), (0, 0));
}

/// LR-5: an endpoint keeps its count across pickers, updates and lost connections.
#[test]
fn counts_stay_with_the_endpoint() {
    let mut sim = sim(&json!({}), ["a", "b"]);
    let mut held: Vec<Picked> = (0..5).map(|_| call_to(&mut sim, "a")).collect();
    held.push(call_to(&mut sim, "b"));
    let count_of = |sim: &CoreSim, address: &str| outstanding(sim).get(address).copied();
    sim.endpoints(endpoints(["c", "a"]));
    assert_eq!((count_of(&sim, "a"), count_of(&sim, "b"), count_of(&sim, "c")), (Some(5), None, Some(0)));
    sim.config(&config(&json!({"distinctSamples": true})));
    assert_eq!(sim.picks(20), ["c"; 20]);
    sim.lose("a");
    assert_eq!(count_of(&sim, "a"), Some(5));
    sim.config(&config(&json!({"choiceCount": 3})));
    assert_eq!(count_of(&sim, "a"), Some(5));
    // A re-added endpoint is a new one. Calls on the old one still end, but do not change its count.
    sim.endpoints(endpoints(["a", "b"]));
    let _on_b = call_to(&mut sim, "b");
    drop(held);
    assert_eq!((count_of(&sim, "a"), count_of(&sim, "b")), (Some(0), Some(1)));
}

/// LR-5: an endpoint with another set of addresses is a new one, although it has the same connection.
#[test]
fn another_endpoint_starts_with_a_count_of_zero() {
    let mut sim = sim(&json!({}), ["a"]);
    let _held = sim.pick();
    sim.endpoints(Endpoints::list([Endpoint::new(["a", "a2"])]));
    assert_eq!((total(&sim), sim.describe().picks()), (0, 0));
    let _second = sim.pick();
    assert_eq!((total(&sim), sim.describe().picks()), (1, 1));
    assert_eq!(sim.closed(), [""; 0]);
}

/// LR-5: two policies over the same connection have separate counts.
#[test]
fn counts_are_not_shared_between_policies() {
    let mut registry = Registry::standard();
    registry.register::<Pair>("pair");
    let core = Core::builder(Rng::fixed(1)).build();
    let child = config(&json!({"distinctSamples": true}));
    let mut sim =
        CoreSim::with(core, registry, &json!([{"pair": {"child": child}}]), endpoints(["a", "b"])).all_up();
    assert_eq!(sim.subchannel_count(), 2);
    let mut calls = (0..1000).map(|_| sim.pick_with(|call| call.with_cluster("left")));
    let _held = calls.find(|picked| picked.outcome() == "a").expect("one of many calls goes there");
    let mut outcomes = |cluster| {
        (0..50)
            .map(|_| sim.pick_with(|call| call.with_cluster(cluster)).finish_ok())
            .collect::<std::collections::BTreeSet<_>>()
    };
    // For the left policy `a` is busy; for the right one the same connection is not.
    assert_eq!(outcomes("left").len(), 1);
    assert_eq!(outcomes("right").len(), 2);
}

/// Two policies over the same endpoints. A call selects one by its cluster.
#[derive(Default)]
struct Pair {
    children: [ChildPolicy; 2],
    published: Option<(LbState, [LbState; 2])>,
}

struct PairPicker([LbState; 2]);

impl Policy for Pair {
    type Config = LbConfig;

    fn parse(fields: &ConfigFields<'_>) -> Result<LbConfig, ConfigError> {
        fields.child("child")
    }

    fn reconcile(&mut self, config: &LbConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        let states = self.children.each_mut().map(|child| child.reconcile(config, endpoints, cx));
        match &self.published {
            Some((state, [a, b])) if a.is_same(&states[0]) && b.is_same(&states[1]) => state.clone(),
            _ => {
                let state = LbState::new(states[0].connectivity, PairPicker(states.clone()));
                self.published.insert((state, states)).0.clone()
            }
        }
    }

    fn describe(&self, _: &DescribeCx<'_>) -> Description {
        Description::new()
    }
}

impl Picker for PairPicker {
    fn pick(&self, call: &PickArgs<'_>) -> PickResult {
        self.0[usize::from(call.cluster() == Some("right"))].picker.pick(call)
    }
}

/// LR-6, LBX-4, LBX-5: states are aggregated as in round_robin. Duplicates and weights are ignored.
#[test]
fn states_are_those_of_round_robin() {
    let mut sim = CoreSim::new(&config(&json!({})), weighted([("a", 1), ("b", 100), ("a", 50)]));
    assert_eq!(
        (sim.dialled(), sim.state()),
        (vec!["a".to_owned(), "b".to_owned()], ConnectivityState::Connecting)
    );
    sim.fail("a");
    assert_eq!(sim.state(), ConnectivityState::Connecting);
    sim.fail("b");
    assert_eq!(sim.state(), ConnectivityState::TransientFailure);
    assert_eq!(sim.pick().status().unwrap().message(), "b: b refused");
    sim.advance(secs(2));
    assert_eq!(sim.state(), ConnectivityState::TransientFailure);
    sim.ready("a");
    assert_eq!((sim.state(), sim.picks(3)), (ConnectivityState::Ready, vec!["a".to_owned(); 3]));
    sim.ready("b");
    sim.dialled();
    sim.lose("a");
    assert_eq!(sim.dialled(), ["a"]);
    sim.ready("a");
    let shares = sim.shares(2000);
    assert!(shares.values().all(|n| (850..1150).contains(n)), "{shares:?}");

    let mut sim = CoreSim::new(&config(&json!({})), endpoints([]));
    assert_eq!((sim.state(), sim.picks(1)), (ConnectivityState::TransientFailure, vec!["fail".to_owned()]));
    sim.endpoints(Endpoints::list([Endpoint::new([""; 0])]));
    assert_eq!(sim.pick().status().unwrap().message(), "no endpoints");
}

/// LR-7: an endpoint that never responds gets few calls, and none with distinct samples.
#[test]
fn a_frozen_endpoint_gets_few_calls_or_none() {
    const CALLS: usize = 20_000;
    let frozen_calls = |settings: Value| {
        let mut sim = sim(&settings, ["a", "b", "c", "d", "frozen"]);
        let mut stuck = vec![call_to(&mut sim, "frozen")];
        for _ in 0..CALLS {
            let picked = sim.pick();
            if picked.outcome() == "frozen" {
                stuck.push(picked);
            }
        }
        stuck.len() - 1
    };
    let with_repetition = frozen_calls(json!({}));
    assert!(
        (CALLS / 29..CALLS / 22).contains(&with_repetition),
        "{with_repetition} is not about {}",
        CALLS / 25
    );
    assert!(frozen_calls(json!({"choiceCount": 3})) < CALLS / 80);
    for choices in 2..=10 {
        assert_eq!(frozen_calls(json!({"choiceCount": choices, "distinctSamples": true})), 0);
    }
}

/// LR-7: with distinct samples, idle endpoints get equal shares, and a single endpoint is found.
#[test]
fn distinct_samples_are_fair() {
    for choices in [2, 4, 10] {
        let settings = json!({"choiceCount": choices, "distinctSamples": true});
        let shares = sim(&settings, ["a", "b", "c", "d"]).shares(8000);
        assert!(shares.values().all(|n| (1800..2200).contains(n)), "{choices}: {shares:?}");
        assert_eq!(sim(&settings, ["a"]).letters(3), "aaa");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// LR-3: samples are drawn with repetition. Only a strictly smaller count replaces an earlier sample.
    #[test]
    fn picks_follow_the_rule(
        count in 1usize..6,
        choices in 2usize..=10,
        steps in prop::collection::vec((any::<u64>(), any::<bool>()), 1..40),
    ) {
        let names = ["a", "b", "c", "d", "e"];
        let list = Endpoints::list(names[..count].iter().map(|name| Endpoint::at(*name)));
        let mut sim = CoreSim::new(&config(&json!({"choiceCount": choices})), list).all_up();
        let mut model = vec![0; count];
        let mut held = Vec::new();
        for (entropy, keep) in steps {
            let draws = PickArgs::new("/a/b", entropy);
            let mut candidate: Option<usize> = None;
            for _ in 0..choices {
                let sampled = draws.random_below(count as u64) as usize;
                if candidate.is_none_or(|candidate| model[sampled] < model[candidate]) {
                    candidate = Some(sampled);
                }
            }
            let expected = candidate.unwrap();
            let picked = sim.pick_call(&PickArgs::new("/a/b", entropy));
            prop_assert_eq!(picked.outcome(), names[expected]);
            if keep {
                model[expected] += 1;
                held.push(picked);
            }
        }
    }
}

mod threads {
    #![expect(clippy::disallowed_methods, reason = "counters are for many threads at once")]

    use evenkeel_core::{CallOutcome, CallTrackers};

    use super::*;

    /// LR-8: four threads make a million calls that end in different ways. Many are in flight at a time, some
    /// after their picker was dropped.
    #[test]
    fn counts_stay_exact() {
        const CALLS: u64 = 250_000;
        let mut sim = sim(&json!({}), ["a", "b", "c"]);
        let picker = sim.picker();
        let late: Vec<CallTrackers> = std::thread::scope(|scope| {
            let picker = &picker;
            let threads = [1, 2, 3, 4].map(|seed| scope.spawn(move || many_calls(picker, seed, CALLS)));
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(total(&sim), late.len() as u64);
        assert_eq!(sim.describe().picks(), 4 * CALLS);
        drop(picker);
        sim.lose("a");
        sim.endpoints(endpoints(["c", "b", "a"]));
        drop(late);
        assert_eq!(outstanding(&sim).into_values().collect::<Vec<_>>(), [0, 0, 0]);
    }

    fn many_calls(picker: &evenkeel_core::RootPicker, seed: u64, calls: u64) -> Vec<CallTrackers> {
        let mut rng = Rng::fixed(seed);
        let mut in_flight: Vec<CallTrackers> = Vec::new();
        for _ in 0..calls {
            if let PickResult::Complete(_, trackers) = picker.pick(&PickArgs::new("/a/b", rng.next_u64())) {
                in_flight.push(trackers);
            }
            if in_flight.len() > 100 {
                let ended = in_flight.swap_remove(rng.below(100) as usize);
                match rng.below(3) {
                    0 => drop(ended),
                    1 => ended.finish(&CallOutcome::Unsent),
                    _ => {
                        let (code, at, load) = (Code::Ok, evenkeel_core::Instant::ORIGIN, None);
                        ended.finish(&CallOutcome::Finished { code, at, load });
                    }
                }
            }
        }
        in_flight
    }
}

/// LR-2: fields of Envoy's message that gRPC does not use are ignored.
#[test]
fn settings_of_other_implementations_are_ignored() {
    let theirs = json!([{"least_request_experimental": {
        "choiceCount": 3, "activeRequestBias": {"defaultValue": 2}, "slowStartConfig": {}, "selectionMethod": "FULL_SCAN",
    }}]);
    let ours = json!([{"least_request_experimental": {"choiceCount": 3}}]);
    let list = || endpoints(["a", "b", "c", "d"]);
    assert_eq!(
        CoreSim::new(&theirs, list()).all_up().picks(50),
        CoreSim::new(&ours, list()).all_up().picks(50)
    );
}
