//! Invalid input: the behaviour is defined and nothing panics.

use evenkeel_core::{
    Core, Endpoint, Endpoints, Instant, LbEvent, LbUpdate, LoadReport, Registry, Rng, Status,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use testkit::{CoreSim, endpoints, secs};

/// Names that configs use, so that arbitrary JSON reaches the parsers now and then.
fn word() -> impl Strategy<Value = String> + Clone {
    let registry = Registry::standard();
    let fields = [
        "childPolicy",
        "children",
        "config",
        "priorities",
        "targets",
        "weight",
        "cluster",
        "dropCategories",
        "category",
        "requestsPerMillion",
        "maxConcurrentRequests",
        "discoveryMechanisms",
        "type",
        "EDS",
        "LOGICAL_DNS",
        "dnsHostname",
        "lrsLoadReportingServer",
        "outlierDetection",
        "xdsLbPolicy",
        "isDynamic",
        "subsetSize",
        "choiceCount",
        "minRingSize",
        "maxRingSize",
        "requestHashHeader",
        "interval",
        "baseEjectionTime",
        "successRateEjection",
        "stdevFactor",
        "enforcementPercentage",
        "failurePercentageEjection",
        "threshold",
        "blackoutPeriod",
        "weightUpdatePeriod",
        "errorUtilizationPenalty",
        "metricNamesForComputingUtilization",
        "shuffleAddressList",
        "enableOobLoadReport",
        "10s",
        "-1s",
        "1e400s",
        "a",
        "",
    ];
    let words: Vec<String> = registry.names().map(str::to_owned).chain(fields.map(str::to_owned)).collect();
    proptest::sample::select(words)
}

fn arbitrary_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0u32..5000).prop_map(Value::from),
        word().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(8, 96, 6, |inner| {
        let member = (word(), inner.clone());
        prop_oneof![
            proptest::collection::vec(inner, 0..5).prop_map(Value::from),
            proptest::collection::vec(member.clone(), 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
            // An object shaped like a policy list, so that the parsers of policies are reached.
            member.prop_map(|(name, settings)| json!([{name: settings}])),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any JSON is a config or a clear error, and every config that parses also runs.
    #[test]
    fn any_json_is_a_config_or_an_error(json in arbitrary_json()) {
        match Registry::standard().parse(&json) {
            Err(error) => prop_assert!(error.path().starts_with("loadBalancingConfig"), "{error}"),
            Ok(config) => {
                let mut core = Core::builder(Rng::fixed(1)).build();
                core.update(LbUpdate::new(config, endpoints(["a", "b"])));
                core.reconcile(Instant::ORIGIN);
                core.reconcile(Instant::ORIGIN + secs(1_000));
                let description = core.describe();
                prop_assert!(description.is_some());
            }
        }
    }

    /// Every policy accepts or rejects arbitrary settings under its name.
    #[test]
    fn any_settings_are_accepted_or_rejected_by_name(name in word(), settings in arbitrary_json()) {
        if let Err(error) = Registry::standard().parse(&json!([{name: settings}])) {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}

#[test]
fn configs_nested_too_deep_are_rejected() {
    let mut config = json!([{"round_robin": {}}]);
    for _ in 0..200 {
        config = json!([{"random_subsetting_experimental": {"subsetSize": 1, "childPolicy": config}}]);
    }
    let error = Registry::standard().parse(&config).unwrap_err();
    assert!(error.to_string().ends_with("policies are nested more than 64 deep"), "{error}");
}

const LEAVES: [&str; 6] = [
    "pick_first",
    "round_robin",
    "edf_weighted_round_robin",
    "weighted_round_robin",
    "ring_hash_experimental",
    "least_request_experimental",
];

#[test]
fn no_endpoints_fail_calls_at_once() {
    for policy in LEAVES {
        let mut sim = CoreSim::new(&json!([{policy: {}}]), Endpoints::none());
        assert_eq!(sim.pick_with(|call| call.with_hash(1)).outcome(), "fail", "{policy}");
        sim.endpoints(Endpoints::list([Endpoint::new([] as [&str; 0])]));
        assert_eq!(sim.pick_with(|call| call.with_hash(1)).outcome(), "fail", "{policy}");
    }
}

#[test]
fn duplicate_addresses_make_one_connection() {
    for policy in LEAVES {
        let list = Endpoints::list([Endpoint::new(["a", "a"]), Endpoint::at("a").with_weight(9)]);
        let mut sim = CoreSim::new(&json!([{policy: {}}]), list).all_up();
        for _ in 0..2 {
            sim.pick_with(|call| call.with_hash(1)).finish_ok();
        }
        assert_eq!(sim.dialled(), ["a"], "{policy}");
        assert_eq!(sim.describe().endpoints.len(), 1, "{policy}");
    }
}

#[test]
fn extreme_weights_are_weights() {
    for policy in LEAVES {
        let list = Endpoints::list([
            Endpoint::at("a").with_weight(u32::MAX),
            Endpoint::at("b").with_weight(0),
            Endpoint::at("c").with_weight(u32::MAX),
        ]);
        let mut sim = CoreSim::new(&json!([{policy: {}}]), list).all_up();
        let mut addresses: Vec<String> = Vec::new();
        for hash in 0..64_u64 {
            let hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            addresses.push(sim.pick_with(|call| call.with_hash(hash)).finish_ok());
        }
        assert!(addresses.iter().any(|address| address == "a"), "{policy}: {addresses:?}");
    }
}

#[test]
fn a_clock_that_goes_backwards_stands_still() {
    for policy in LEAVES {
        let mut sim = CoreSim::new(&json!([{policy: {}}]), endpoints(["a", "b"]));
        sim.pick_with(|call| call.with_hash(1));
        sim.advance(secs(100));
        if sim.find("a").is_some() {
            sim.fail("a");
        }
        let wake = sim.wake_at();
        sim.set_clock(Instant::ORIGIN);
        assert_eq!(sim.wake_at(), wake, "{policy}");
        sim.advance(secs(300));
        sim.up("a");
        sim.up("b");
        sim.pick_with(|call| call.with_hash(1));
        assert_ne!(sim.pick_with(|call| call.with_hash(1)).outcome(), "fail", "{policy}");
    }
}

#[test]
fn events_of_removed_subchannels_are_ignored() {
    let mut sim = CoreSim::new(&json!([{"round_robin": {}}]), endpoints(["a", "b"])).all_up();
    let gone = sim.find("b").expect("b was dialled");
    sim.endpoints(endpoints(["a"]));
    sim.dialled();
    let error = Status::unavailable("late");
    assert!(!sim.handle(LbEvent::Connected(gone)));
    assert!(!sim.handle(LbEvent::ConnectFailed(gone, error.clone())));
    assert!(!sim.handle(LbEvent::Disconnected(gone, error.clone())));
    assert!(!sim.handle(LbEvent::Connect(gone)));
    assert!(!sim.handle(LbEvent::Load(gone, LoadReport::default())));
    sim.endpoints(endpoints(["a", "c"]));
    assert_ne!(sim.find("c"), Some(gone), "ids do not come back");
    assert!(!sim.handle(LbEvent::Disconnected(gone, error.clone())));
    assert_eq!(sim.picks(2).len(), 2);

    // Events that do not fit the state are ignored too.
    let ready = sim.find("a").expect("a is there");
    assert!(!sim.handle(LbEvent::Connected(ready)));
    assert!(!sim.handle(LbEvent::ConnectFailed(ready, error)));
    assert_eq!(sim.state_of("a"), Some(evenkeel_core::ConnectivityState::Ready));
}
