//! Trees of policies under random edits, failures, recoveries, calls and time.
//!
//! There is no model here, only invariants. Calls go to READY subchannels. Every call that was started ends.
//! Nothing is retained without a user. If all backends are up, calls succeed.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{
    Code, ConnectivityState, Core, Endpoint, Endpoints, LbEvent, LoadReport, Locality, Registry, Rng,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use testkit::{CoreSim, Picked, secs};

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

#[derive(Clone, Debug)]
enum Step {
    Config(usize),
    /// Endpoints of the first and of the second group, by index, with weights.
    Endpoints(Vec<(usize, u32)>, Vec<(usize, u32)>),
    Up(usize),
    Down(usize),
    Lose(usize),
    /// Starts a call with this entropy.
    PickArgs(u64),
    /// Finishes the oldest call in flight.
    End(Code),
    /// Drops the oldest call in flight.
    Cancel,
    ExitIdle,
    Wait(u64),
    Sleep(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let address = || 0..NAMES.len();
    let group = || proptest::collection::vec((address(), 0u32..5), 0..6);
    let wait = || prop_oneof![Just(1), Just(250), Just(1_000), Just(11_000), Just(1_000_000)];
    let code = prop_oneof![3 => Just(Code::Ok), 1 => Just(Code::Internal), 1 => Just(Code::Unavailable)];
    let step = prop_oneof![
        1 => (0..configs().len()).prop_map(Step::Config),
        2 => (group(), group()).prop_map(|(a, b)| Step::Endpoints(a, b)),
        3 => address().prop_map(Step::Up),
        3 => address().prop_map(Step::Down),
        1 => address().prop_map(Step::Lose),
        8 => any::<u64>().prop_map(Step::PickArgs),
        5 => code.prop_map(Step::End),
        2 => Just(Step::Cancel),
        1 => Just(Step::ExitIdle),
        4 => wait().prop_map(Step::Wait),
        1 => wait().prop_map(Step::Sleep),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Trees over two groups, `one` and `two`.
fn configs() -> Vec<Value> {
    let leaves = [
        json!([{"pick_first": {"shuffleAddressList": true}}]),
        json!([{"round_robin": {}}]),
        json!([{"edf_weighted_round_robin": {}}]),
        json!([{"weighted_round_robin": {"blackoutPeriod": "1s", "weightExpirationPeriod": "5s"}}]),
        json!([{"weighted_round_robin": {"enableOobLoadReport": true}}]),
        json!([{"least_request_experimental": {"choiceCount": 3}}]),
        json!([{"ring_hash_experimental": {"minRingSize": 64}}]),
        json!([{"random_subsetting_experimental": {"subsetSize": 2, "childPolicy": [{"round_robin": {}}]}}]),
    ];
    let mut all = Vec::new();
    for leaf in leaves {
        let cluster = |below: &Value| {
            json!([{"outlier_detection_experimental": {
                "interval": "1s", "baseEjectionTime": "2s", "maxEjectionPercent": 50,
                "successRateEjection": {"minimumHosts": 2, "requestVolume": 2},
                "failurePercentageEjection": {"minimumHosts": 2, "requestVolume": 2, "threshold": 60},
                "childPolicy": [{"xds_cluster_impl_experimental": {
                    "cluster": "c", "maxConcurrentRequests": 20, "childPolicy": below,
                }}],
            }}])
        };
        let localities = cluster(&json!([{"xds_wrr_locality_experimental": {"childPolicy": leaf}}]));
        all.push(json!([{"priority_experimental": {
            "priorities": ["one", "two"],
            "children": {"one": {"config": localities}, "two": {"config": cluster(&leaf)}},
        }}]));
        all.push(json!([{"weighted_target_experimental": {"targets": {
            "one": {"weight": 3, "childPolicy": leaf}, "two": {"weight": 1, "childPolicy": localities},
        }}}]));
        all.push(json!([{"xds_cluster_manager_experimental": {"children": {
            "one": {"childPolicy": localities}, "two": {"childPolicy": leaf},
        }}}]));
    }
    all
}

fn groups(one: &[(usize, u32)], two: &[(usize, u32)]) -> Endpoints {
    let zones = ["x", "y"].map(|zone| Arc::new(Locality { zone: zone.to_owned(), ..Locality::default() }));
    let list = |group: &[(usize, u32)]| {
        Endpoints::list(group.iter().map(|(i, weight)| {
            // Every third endpoint has a second address.
            let second = (i % 3 == 0).then(|| format!("{}2", NAMES[*i]));
            let addresses = [NAMES[*i].to_owned()].into_iter().chain(second);
            let endpoint = Endpoint::new(addresses.map(|address| evenkeel_core::Address::from(&*address)));
            endpoint.with_weight(*weight).with_locality(zones[i % 2].clone(), 1 + (*i as u32 % 2))
        }))
    };
    Endpoints::groups([("one", list(one)), ("two", list(two))])
}

fn call(sim: &mut CoreSim, entropy: u64) -> Picked {
    let cluster = if entropy.is_multiple_of(2) { "one" } else { "two" };
    sim.pick_with(|call| call.with_cluster(cluster).with_hash(entropy))
}

fn load(entropy: usize) -> LoadReport {
    let rate = (entropy % 7) as f64;
    LoadReport { cpu_utilization: 0.1 * rate, requests_per_second: 10.0 * rate, ..LoadReport::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// fault 63, fault 68: the invariants hold after any sequence of events.
    #[test]
    fn invariants_hold_after_any_events(first in 0..configs().len(), seed in any::<u64>(), steps in steps()) {
        let configs = configs();
        let core = Core::builder(Rng::from_entropy(seed)).build();
        let start = groups(&[(0, 1), (1, 2), (2, 3)], &[(3, 1), (4, 1)]);
        let mut sim = CoreSim::with(core, Registry::standard(), &configs[first], start);
        let mut config = first;
        let mut under_way: Vec<Picked> = Vec::new();
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                Step::Config(n) => {
                    config = n;
                    sim.config(&configs[n]);
                }
                Step::Endpoints(one, two) => sim.endpoints(groups(&one, &two)),
                Step::Up(n) => sim.up(NAMES[n]),
                Step::Down(n) => sim.down(NAMES[n]),
                Step::Lose(n) => {
                    if sim.state_of(NAMES[n]) == Some(ConnectivityState::Ready) {
                        sim.lose(NAMES[n]);
                    }
                }
                Step::PickArgs(entropy) => {
                    let picked = call(&mut sim, entropy);
                    if let Picked::To { address, .. } = &picked {
                        let state = sim.state_of(address);
                        prop_assert_eq!(state, Some(ConnectivityState::Ready), "{} was picked", address);
                    }
                    under_way.push(picked);
                }
                Step::End(code) if !under_way.is_empty() => {
                    under_way.remove(0).finish(code, Some(&load(i)));
                }
                Step::Cancel if !under_way.is_empty() => drop(under_way.remove(0)),
                Step::End(_) | Step::Cancel => {}
                Step::ExitIdle => {
                    sim.handle(LbEvent::ExitIdle);
                }
                Step::Wait(millis) => sim.advance(Duration::from_millis(millis)),
                Step::Sleep(millis) => sim.sleep_through(Duration::from_millis(millis)),
            }
        }

        // If all backends are up, calls succeed once backoffs, ejections and failover timers are over.
        under_way.clear();
        for name in NAMES {
            sim.up(name);
            sim.up(&format!("{name}2"));
        }
        sim.config(&configs[config]);
        sim.endpoints(groups(&[(0, 1), (1, 2), (2, 3)], &[(3, 1), (4, 1)]));
        sim.advance(secs(400));
        for entropy in 0..200 {
            call(&mut sim, entropy).finish_ok();
        }
        for entropy in 0..20 {
            let picked = call(&mut sim, entropy);
            prop_assert!(matches!(picked, Picked::To { .. }), "a call {:?} though all is up", picked);
            picked.finish_ok();
        }

        // After the last retained child is dropped, no subchannel and no watch remains.
        sim.update(&json!([{"round_robin": {}}]), Endpoints::none());
        sim.advance(secs(16 * 60));
        prop_assert_eq!(sim.subchannel_count(), 0);
        prop_assert!(sim.watches().is_empty());
    }
}
