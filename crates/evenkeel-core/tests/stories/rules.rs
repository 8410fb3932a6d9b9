//! Requirements common to all policies.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_core::{
    CachedState, CallOutcome, CallTracker, CallTrackers, ChildPolicy, Code, ConfigError, ConfigFields,
    ConnectivityState, Core, Cx, DescribeCx, Description, Endpoint, Endpoints, Instant, LbConfig, LbEffect,
    LbEvent, LbState, LbUpdate, PassResult, PickArgs, PickResult, Picker, Policy, Registry, Rng, Status,
};
use serde_json::{Value, json};
use testkit::{CoreSim, dialled, endpoints, secs};

fn round_robin() -> Value {
    json!([{"round_robin": {}}])
}

/// LBX-1: the first registered name is chosen, and its config must parse.
#[test]
fn the_first_registered_policy_is_chosen() {
    let registry = Registry::standard();
    let taken = |config: Value| registry.parse(&config).map(|config| config.policy().to_owned());
    let unknown_first = json!([{"unknown.Policy": {"x": 1}}, {"round_robin": {}}, {"pick_first": {}}]);
    assert_eq!(taken(unknown_first).as_deref(), Ok("round_robin"));
    let broken_first = json!([{"pick_first": {"shuffleAddressList": "maybe"}}, {"round_robin": {}}]);
    assert!(taken(broken_first).is_err(), "a later entry does not replace an invalid one");
    let cases = [
        (json!([]), "loadBalancingConfig: the list of policies is empty"),
        (
            json!({"round_robin": {}}),
            "loadBalancingConfig: expected a list of policies, found {\"round_robin\":{}}",
        ),
        (
            json!([{"a": {}, "b": {}}]),
            "loadBalancingConfig[0]: expected an object with one policy name, found {\"a\":{},\"b\":{}}",
        ),
        (
            json!([{"Round_Robin": {}}]),
            "loadBalancingConfig: no policy of the list is supported: \"Round_Robin\"; did you mean \"round_robin\"?",
        ),
        (
            json!([{"fastest": {}}]),
            "loadBalancingConfig: no policy of the list is supported: \"fastest\"; register it or name a supported one",
        ),
    ];
    for (config, message) in cases {
        assert_eq!(taken(config).unwrap_err().to_string(), message);
    }
    let long: Vec<_> = (0..1_000).map(|i| json!({format!("\n{i}{}", "x".repeat(1_000)): {}})).collect();
    let message = taken(json!(long)).unwrap_err().to_string();
    assert!(
        message.contains("\"\\n0xxx") && message.contains("xxx\"... and 984 more; register"),
        "{message}"
    );
    assert!(message.len() < 3_000);
}

/// Unknown fields change nothing, in whatever object. A warning names each one, and the field that was probably meant.
#[test]
fn unknown_fields_are_warned_about() {
    let child = json!([{"round_robin": {"shuffle": true}}]);
    let config = json!([{"outlier_detection_experimental": {
        "intervall": "5s",
        "failurePercentageEjection": {"treshold": 50, "minimum_hosts": 3},
        "success_rate_ejection": {},
        "child_policy": child,
    }}]);
    let config = Registry::standard().parse(&config).unwrap();
    let outlier =
        "policy \"outlier_detection_experimental\": loadBalancingConfig[0].outlier_detection_experimental";
    assert_eq!(
        config.warnings(),
        [
            "policy \"round_robin\": loadBalancingConfig[0].outlier_detection_experimental.childPolicy[0].round_robin: \
             unknown field \"shuffle\"; there are no settings"
                .to_owned(),
            format!("{outlier}: unknown field \"intervall\"; did you mean \"interval\"?"),
            format!(
                "{outlier}.failurePercentageEjection: unknown field \"treshold\"; did you mean \"threshold\"?"
            ),
        ]
    );
    // Fields of the other type of mechanism are known, although they have no effect.
    let mechanism = json!({"cluster": "a", "type": "EDS", "dnsHostname": "b:1"});
    let resolver = json!({"discoveryMechanisms": [mechanism], "xdsLbPolicy": round_robin()});
    let config =
        Registry::standard().parse(&json!([{"xds_cluster_resolver_experimental": resolver}])).unwrap();
    assert_eq!(config.warnings(), [""; 0]);
    // Their number and length are bounded.
    let many: Value = (0..100).map(|i| (format!("{i}{}", "x".repeat(1_000)), json!(1))).collect();
    let config = Registry::standard().parse(&json!([{"pick_first": many}])).unwrap();
    assert_eq!(config.warnings().len(), 9);
    assert!(config.warnings().iter().all(|warning| warning.len() < 300), "{:?}", config.warnings());
    assert!(config.warnings()[8].ends_with(": 92 more unknown fields"), "{}", config.warnings()[8]);
}

/// LBX-1: a later entry is chosen if the policy before it is not registered.
#[test]
fn an_unregistered_policy_is_skipped() {
    let config = json!([{"weighted_round_robin": {}}, {"round_robin": {}}]);
    let mut registry = Registry::standard();
    assert_eq!(registry.parse(&config).map(|c| c.policy().to_owned()).as_deref(), Ok("weighted_round_robin"));
    registry.remove("weighted_round_robin");
    assert!(!registry.contains("weighted_round_robin"));
    assert_eq!(registry.parse(&config).map(|c| c.policy().to_owned()).as_deref(), Ok("round_robin"));
}

/// LBX-1, LBX-2: a service config names a policy in one of two fields.
#[test]
fn service_configs_name_a_policy_in_two_ways() {
    let registry = Registry::standard();
    let policy = |json: &str| registry.parse_service_config(json).map(|config| config.policy().to_owned());
    assert_eq!(policy("{}").as_deref(), Ok("pick_first"));
    assert_eq!(policy(r#"{"loadBalancingPolicy": "ROUND_ROBIN"}"#).as_deref(), Ok("round_robin"));
    let both = r#"{"load_balancing_config": [{"round_robin": {}}], "loadBalancingPolicy": "x", "new": []}"#;
    assert_eq!(policy(both).as_deref(), Ok("round_robin"));
    for bad in [
        "",
        "[]",
        "{",
        r#"{"loadBalancingPolicy": 3}"#,
        r#"{"loadBalancingPolicy": "x"}"#,
        r#"{"loadBalancingConfig": 1}"#,
    ] {
        assert!(policy(bad).is_err(), "{bad}");
    }
}

/// LBX-3, LBX-4: any READY wins, then CONNECTING. An endpoint that reported TRANSIENT_FAILURE counts as
/// failed until it is READY.
#[test]
fn states_are_aggregated() {
    let mut sim = CoreSim::new(&round_robin(), endpoints(["a", "b"]));
    assert_eq!(sim.state(), ConnectivityState::Connecting);
    sim.fail("a");
    assert_eq!(sim.state(), ConnectivityState::Connecting);
    sim.fail("b");
    assert_eq!(sim.state(), ConnectivityState::TransientFailure);
    sim.advance(secs(2));
    assert_eq!(sim.state_of("a"), Some(ConnectivityState::Connecting));
    assert_eq!(sim.state(), ConnectivityState::TransientFailure);
    sim.ready("b");
    assert_eq!(sim.state(), ConnectivityState::Ready);
    sim.lose("b");
    assert_eq!(sim.state(), ConnectivityState::Connecting, "b was ready: it may connect again");
}

/// LBX-5: IDLE endpoints are connected at once.
#[test]
fn idle_endpoints_are_connected_at_once() {
    for policy in
        ["round_robin", "weighted_round_robin", "edf_weighted_round_robin", "least_request_experimental"]
    {
        let mut sim = CoreSim::new(&json!([{policy: {}}]), endpoints(["a", "b"])).all_up();
        assert_eq!(sim.dialled(), ["a", "b"], "{policy}");
        sim.lose("b");
        assert_eq!(sim.dialled(), ["b"], "{policy}");
    }
}

/// LBX-6: the same addresses in another order are the same endpoint. The next connection uses the new order.
#[test]
fn an_endpoint_is_its_set_of_addresses() {
    let list = |addresses: [&str; 2]| Endpoints::list([Endpoint::new(addresses).with_weight(1)]);
    let mut sim = CoreSim::new(&round_robin(), list(["a", "b"]));
    sim.ready("a");
    sim.dialled();
    sim.endpoints(list(["b", "a"]));
    assert_eq!((sim.dialled().len(), sim.closed().len()), (0, 0));
    sim.lose("a");
    assert_eq!(sim.dialled(), ["b"]);
}

/// LBX-8: reserved status codes become INTERNAL, with the original code in the message.
#[test]
fn reserved_codes_do_not_reach_calls() {
    use Code::*;
    let reserved =
        [Ok, InvalidArgument, NotFound, AlreadyExists, FailedPrecondition, Aborted, OutOfRange, DataLoss];
    let allowed = [
        Cancelled,
        Unknown,
        DeadlineExceeded,
        PermissionDenied,
        ResourceExhausted,
        Unimplemented,
        Internal,
        Unavailable,
        Unauthenticated,
    ];
    for (code, drop) in reserved.into_iter().chain(allowed).flat_map(|code| [(code, false), (code, true)]) {
        let mut sim = scripted(Script {
            result: move || {
                if drop { PickResult::Drop(status(code)) } else { PickResult::Fail(status(code)) }
            },
        });
        let seen = sim.pick().status().cloned().expect("it fails");
        if reserved.contains(&code) {
            assert_eq!(seen.code(), Internal);
            assert!(
                seen.message().contains(&format!("{code:?}")) && seen.message().contains("because"),
                "{seen}"
            );
        } else {
            assert_eq!(seen, status(code));
        }
    }
}

/// LBX-9: failures carry the resolution note, also if only the note changes.
#[test]
fn failures_carry_the_resolution_note() {
    for policy in ["pick_first", "round_robin"] {
        let mut sim = CoreSim::new(&json!([{policy: {}}]), endpoints(["a"]));
        sim.fail("a");
        sim.note("xDS node id: n1");
        let message = sim.pick().status().map(|status| status.message().to_owned()).unwrap_or_default();
        assert!(message.contains("a refused") && message.ends_with("(xDS node id: n1)"), "{message}");
        sim.note("cluster c: stale");
        let message = sim.pick().status().map(|status| status.message().to_owned()).unwrap_or_default();
        assert!(message.ends_with("(cluster c: stale)"), "{message}");
    }
}

/// LBX-10: a picker in TRANSIENT_FAILURE queues wait-for-ready calls and fails others. A drop fails both.
#[test]
fn waiting_calls_queue_where_others_fail_but_drops_hit_all() {
    let mut failing = CoreSim::new(&round_robin(), Endpoints::none());
    assert_eq!(failing.pick().outcome(), "fail");
    assert_eq!(failing.pick_waiting().outcome(), "queue");
    let mut dropping = scripted(Script { result: || PickResult::Drop(status(Code::Unavailable)) });
    assert_eq!(dropping.pick_waiting().outcome(), "drop");
}

/// LBX-11: one update publishes one picker, however many children change.
#[test]
fn one_update_publishes_one_picker() {
    let mut sim = CoreSim::new(&round_robin(), endpoints(["a", "b", "c"])).all_up();
    sim.published();
    sim.endpoints(endpoints(["b", "c", "d", "e"]));
    assert_eq!(sim.published(), 2, "one without a, one with d and e, which connected after the first pass");
    sim.endpoints(endpoints(["b", "c", "d", "e"]));
    assert_eq!(sim.published(), 0, "nothing changed for picks");
}

/// LBX-12: the old policy serves until the new one leaves CONNECTING.
#[test]
fn a_change_of_policy_is_graceful() {
    let mut sim = CoreSim::new(&json!([{"pick_first": {}}]), endpoints(["a"])).all_up();
    let mut other = CoreSim::new(&json!([{"pick_first": {}}]), endpoints(["a"]));
    other.ready("a");
    other.update(&round_robin(), endpoints(["b", "c"]));
    assert_eq!(other.picks(2), ["a", "a"], "b and c are connecting");
    assert!(other.closed().is_empty());
    other.ready("c");
    assert_eq!(other.picks(2), ["c", "c"]);
    assert_eq!(other.closed(), ["a"]);
    sim.dialled();
    sim.config(&round_robin());
    assert_eq!(sim.picks(1), ["a"]);
    assert_eq!((sim.dialled().len(), sim.closed().len()), (0, 0), "the connection is taken over");
}

/// LBX-12: the switch also happens when the old policy leaves READY. A second change replaces the pending
/// policy.
#[test]
fn a_lost_connection_ends_the_wait_for_the_new_policy() {
    let mut sim = CoreSim::new(&json!([{"pick_first": {}}]), endpoints(["a"]));
    sim.ready("a");
    sim.update(&round_robin(), endpoints(["b"]));
    sim.update(&json!([{"edf_weighted_round_robin": {}}]), endpoints(["c"]));
    assert_eq!(sim.closed(), ["b"]);
    sim.lose("a");
    assert_eq!(sim.state(), ConnectivityState::Connecting);
    assert_eq!(sim.describe().policy, "edf_weighted_round_robin");
    sim.ready("c");
    assert_eq!(sim.picks(1), ["c"]);
}

/// A tracker is notified once: when the call finishes, when it is dropped, or when the pick is unsent.
#[test]
fn trackers_are_notified_exactly_once() {
    #[derive(Default)]
    struct NotificationCounts(AtomicUsize, AtomicUsize, AtomicUsize);
    impl CallTracker for NotificationCounts {
        fn finished(&self, end: &CallOutcome<'_>) {
            let count = match end {
                CallOutcome::Finished { .. } => &self.0,
                CallOutcome::Cancelled => &self.1,
                _ => &self.2,
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
    let counts: Vec<Arc<NotificationCounts>> = (0..5).map(|_| Arc::default()).collect();
    let trackers = || {
        let mut trackers = CallTrackers::none();
        for count in &counts {
            trackers.push(count.clone());
        }
        trackers
    };
    let end = CallOutcome::Finished { code: Code::Ok, at: evenkeel_core::Instant::ORIGIN, load: None };
    trackers().finish(&end);
    drop(trackers());
    trackers().finish(&CallOutcome::Unsent);
    for count in &counts {
        let notified = [&count.0, &count.1, &count.2].map(|count| count.load(Ordering::Relaxed));
        assert_eq!((notified, Arc::strong_count(count)), ([1, 1, 1], 1));
    }
}

/// A pass reconciles the policies with changes and their parents. A pass without changes reconciles none.
#[test]
fn only_changed_policies_are_reconciled() {
    let runs: [Arc<AtomicUsize>; 2] = Default::default();
    let mut registry = Registry::standard();
    for (name, runs) in ["one", "two"].into_iter().zip(runs.clone()) {
        crate::fn_policy::register(&mut registry, name, move |endpoints, cx| {
            runs.fetch_add(1, Ordering::Relaxed);
            for endpoint in endpoints.iter() {
                let id = cx.subchannel(&endpoint.addresses()[0]).id();
                cx.connect(id);
            }
            LbState::connecting()
        });
    }
    let config = json!([{"xds_cluster_manager_experimental": {"children": {
        "one": {"childPolicy": [{"one": {}}]}, "two": {"childPolicy": [{"two": {}}]},
    }}}]);
    let config = registry.parse(&config).expect("valid");
    let groups = Endpoints::groups([("one", endpoints(["a", "b"])), ("two", endpoints(["c"]))]);
    let mut core = Core::builder(Rng::fixed(1)).build();
    let now = evenkeel_core::Instant::ORIGIN;
    let update = LbUpdate::new(config, groups);
    core.update(update.clone());
    let dialled: Vec<_> = core.reconcile(now).effects.into_iter().collect();
    let expect = |core: &mut Core, one: usize, two: usize| {
        core.reconcile(now);
        assert_eq!([&runs[0], &runs[1]].map(|runs| runs.swap(0, Ordering::Relaxed)), [one, two]);
    };
    expect(&mut core, 1, 1);
    expect(&mut core, 0, 0);
    core.update(update);
    expect(&mut core, 0, 0);
    let [LbEffect::Connect { id, .. }, ..] = dialled[..] else { panic!("{dialled:?}") };
    core.handle(LbEvent::Connected(id), now);
    expect(&mut core, 1, 0);
    core.reconcile_all(now);
    expect(&mut core, 1, 1);
}

/// A core can be moved between tasks, and pickers can be shared by all of them.
#[test]
fn a_core_can_move_and_pickers_can_be_shared() {
    fn moves<T: Send + 'static>() {}
    fn is_shared<T: Clone + Send + Sync + 'static>() {}
    moves::<Core>();
    moves::<CallTrackers>();
    is_shared::<evenkeel_core::RootPicker>();
    is_shared::<Registry>();
    is_shared::<evenkeel_core::LbConfig>();
    is_shared::<Endpoints>();
}

fn status(code: Code) -> Status {
    Status::new(code, "because")
}

/// Script of a test policy; `result` computes the result of each pick.
#[derive(Clone)]
struct Script<F> {
    result: F,
}

struct Scripted<F> {
    script: Script<F>,
    state: CachedState<()>,
}

impl<F: Fn() -> PickResult + Clone + Send + Sync + 'static> Policy for Scripted<F> {
    type Config = ();

    fn parse(_: &ConfigFields<'_>) -> Result<(), ConfigError> {
        Ok(())
    }

    fn reconcile(&mut self, (): &(), _: &Endpoints, _: &mut Cx<'_>) -> LbState {
        let script = self.script.clone();
        self.state.get_or_build((), |()| LbState::new(ConnectivityState::TransientFailure, script))
    }

    fn describe(&self, _: &DescribeCx<'_>) -> Description {
        Description::new()
    }
}

impl<F: Fn() -> PickResult + Send + Sync> Picker for Script<F> {
    fn pick(&self, _: &PickArgs<'_>) -> PickResult {
        (self.result)()
    }
}

fn scripted<F: Fn() -> PickResult + Clone + Send + Sync + 'static>(script: Script<F>) -> CoreSim {
    let mut registry = Registry::standard();
    registry.register_with("scripted", move || Scripted {
        script: script.clone(),
        state: CachedState::default(),
    });
    CoreSim::with(
        Core::builder(Rng::fixed(1)).build(),
        registry,
        &json!([{"scripted": {}}]),
        Endpoints::none(),
    )
}

/// With many new endpoints, each pass starts a limited number of attempts and is due again at once. Calls go
/// to the first READY endpoint, and all attempts are started in the end.
#[test]
fn many_connections_are_started_in_batches() {
    let names: Vec<String> = (0..1_000).map(|i| format!("e{i}")).collect();
    let config = Registry::standard().parse(&json!([{"round_robin": {}}])).expect("valid");
    let mut core = Core::builder(Rng::fixed(1)).build();
    let now = evenkeel_core::Instant::ORIGIN;
    core.update(LbUpdate::new(config, Endpoints::distinct(names.iter().map(|name| Endpoint::at(&**name)))));
    let mut dialled = BTreeSet::new();
    let mut passes = 0;
    loop {
        let pass = core.reconcile(now);
        passes += 1;
        for effect in pass.effects {
            let LbEffect::Connect { id, address, .. } = effect else {
                panic!("expected a dial, found {effect:?}")
            };
            assert!(dialled.insert(address.to_string()), "once each");
            if passes == 1 {
                core.handle(LbEvent::Connected(id), now);
            }
        }
        let expected = if passes == 1 { ConnectivityState::Connecting } else { ConnectivityState::Ready };
        assert_eq!(pass.connectivity, expected);
        if pass.wake_at != Some(now) {
            break;
        }
    }
    assert_eq!((dialled.len(), passes), (names.len(), 4));
}

/// With many removed endpoints, each pass closes a limited number of connections and is due again at once. An
/// endpoint that is re-added before its turn keeps its connection.
#[test]
fn removed_connections_are_closed_in_batches() {
    let now = Instant::ORIGIN;
    let config = Registry::standard().parse(&round_robin()).expect("the config parses");
    let names: Vec<String> = (0..1_000).map(|i| format!("e{i}")).collect();
    let list = |names: &[String]| Endpoints::distinct(names.iter().map(|name| Endpoint::at(&**name)));
    let mut core = Core::builder(Rng::fixed(1)).build();
    core.update(LbUpdate::new(config.clone(), list(&names)));
    let mut ids = Vec::new();
    while ids.len() < names.len() {
        let new = dialled(&core.reconcile(now));
        for id in &new {
            core.handle(LbEvent::Connected(*id), now);
        }
        ids.extend(new);
    }
    while core.reconcile(now).wake_at == Some(now) {}
    let closed = |pass: &PassResult| -> Vec<_> {
        let closed = |effect: &LbEffect| match effect {
            LbEffect::Close { id } => Some(*id),
            _ => None,
        };
        pass.effects.iter().filter_map(closed).collect()
    };
    core.update(LbUpdate::new(config.clone(), list(&names[..1])));
    let pass = core.reconcile(now);
    let mut gone = closed(&pass);
    assert_eq!((gone.len(), pass.wake_at), (256, Some(now)));
    assert_eq!(core.subchannel_count(), names.len() - gone.len());
    let back = [names[0].clone(), names[999].clone()];
    core.update(LbUpdate::new(config, list(&back)));
    loop {
        let pass = core.reconcile(now);
        assert_eq!(dialled(&pass), [], "its connection is there");
        let more = closed(&pass);
        assert!(more.len() <= 256);
        gone.extend(more);
        if pass.wake_at != Some(now) {
            break;
        }
    }
    assert_eq!(core.subchannel_count(), 2);
    let mut expected = ids[1..999].to_vec();
    expected.sort_unstable();
    gone.sort_unstable();
    assert_eq!(gone, expected);
}

/// A new policy takes over all connections of the old one. None is closed and opened again.
#[test]
fn existing_connections_are_taken_over_at_once() {
    let names: Vec<String> = (0..1_000).map(|i| format!("e{i}")).collect();
    let list = Endpoints::distinct(names.iter().map(|name| Endpoint::at(&**name)));
    let mut sim = CoreSim::new(&json!([{"round_robin": {}}]), list).all_up();
    assert_eq!(sim.dialled().len(), names.len());
    sim.config(&json!([{"least_request_experimental": {}}]));
    assert_eq!((sim.dialled().len(), sim.closed().len()), (0, 0));
    assert_eq!(sim.state(), ConnectivityState::Ready);
}

/// Test policy that wraps a child and counts its own passes.
#[derive(Default)]
struct CountingParent {
    child: ChildPolicy,
    runs: usize,
}

impl Policy for CountingParent {
    type Config = LbConfig;

    fn parse(fields: &ConfigFields<'_>) -> Result<LbConfig, ConfigError> {
        fields.child("childPolicy")
    }

    fn reconcile(&mut self, config: &LbConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        self.runs += 1;
        self.child.reconcile(config, endpoints, cx)
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        Description::new().detail("runs", self.runs).child("child", self.child.describe(cx))
    }
}

/// A custom policy is reconciled whenever its child was, also if the child's state is unchanged.
#[test]
fn a_custom_policy_is_reconciled_with_its_child() {
    let mut registry = Registry::standard();
    registry.register::<CountingParent>("counting_parent");
    let config = json!([{ "counting_parent": { "childPolicy": [{"weighted_round_robin": {}}] }}]);
    let config = registry.parse(&config).expect("the config parses");
    let mut core = Core::builder(Rng::fixed(1)).build();
    let mut now = Instant::ORIGIN;
    core.update(LbUpdate::new(config, endpoints(["a", "b"])));
    let dialled = dialled(&core.reconcile(now));
    for id in &dialled {
        core.handle(LbEvent::Connected(*id), now);
    }
    let pass = core.reconcile(now);
    assert_eq!(pass.connectivity, ConnectivityState::Ready);
    let picker = pass.picker.expect("there is something to pick from");
    let counters = |core: &Core| {
        let tree = core.describe().expect("it ran");
        let count =
            |details: &serde_json::Map<_, Value>, name: &str| details[name].as_u64().expect("a count");
        (count(&tree.details, "runs"), count(&tree.children[0].1.details, "rr_fallback"))
    };
    for _ in 0..3 {
        let (runs, updates) = counters(&core);
        // Weights are only updated while calls are picked.
        drop(picker.pick(&evenkeel_core::PickArgs::new("/test.Service/Method", 0)));
        now += secs(1);
        assert!(core.reconcile(now).picker.is_none());
        assert_eq!(counters(&core), (runs + 1, updates + 1));
    }
    let (runs, _) = counters(&core);
    core.handle(LbEvent::Disconnected(dialled[0], Status::unavailable("gone")), now);
    assert!(core.reconcile(now).picker.is_some());
    assert_eq!(counters(&core).0, runs + 1);
}
