//! `xds_cluster_manager_experimental`: one child per cluster; the call's route selects the child.

use evenkeel_core::ConnectivityState::{self, Connecting, Idle, Ready, TransientFailure};
use evenkeel_core::policy::RoundRobin;
use evenkeel_core::{
    ChildPolicy, Code, ConfigError, ConfigFields, Core, Cx, DescribeCx, Description, Endpoints, Instant,
    LbConfig, LbEvent, LbState, LbUpdate, PassResult, PickArgs, PickResult, Policy, Registry, Rng,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use testkit::{CoreSim, dialled, endpoints, secs};

use crate::scripted::{self, picked_child, scripted};

/// Config of clusters with a policy each.
fn clusters<'a>(children: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let child = |(name, policy): (&str, Value)| (name.to_owned(), json!({ "childPolicy": policy }));
    let children: Map<_, _> = children.into_iter().map(child).collect();
    json!([{"xds_cluster_manager_experimental": { "children": children }}])
}

fn round_robin<'a>(names: impl IntoIterator<Item = &'a str>) -> Value {
    clusters(names.into_iter().map(|name| (name, json!([{"round_robin": {}}]))))
}

/// One endpoint group per name, with one endpoint at the address of that name.
fn alone<'a>(names: impl IntoIterator<Item = &'a str>) -> Endpoints {
    Endpoints::groups(names.into_iter().map(|name| (name, endpoints([name]))))
}

/// Returns the outcome of a call routed to this cluster.
fn pick(sim: &mut CoreSim, cluster: &'static str) -> String {
    sim.pick_with(|call| call.with_cluster(cluster)).finish_ok()
}

/// CM-1, LBX-7: each cluster has its own endpoints and its own state. A call is picked by the child of its
/// cluster.
#[test]
fn a_call_goes_to_the_cluster_of_its_route() {
    let mut sim = CoreSim::new(&round_robin(["a", "b", "c"]), alone(["a", "b", "c"]));
    sim.up("a");
    sim.down("b");
    assert_eq!(sim.state(), Ready);
    for _ in 0..3 {
        assert_eq!(["a", "b", "c"].map(|name| pick(&mut sim, name)), ["a", "fail", "queue"]);
    }
    sim.up("c");
    sim.down("a");
    assert_eq!(["a", "b", "c"].map(|name| pick(&mut sim, name)), ["fail", "fail", "c"]);
}

/// CM-1: an IDLE cluster connects only when a call for it is picked.
#[test]
fn an_idle_cluster_connects_on_its_first_call() {
    let child = || json!([{"pick_first": {}}]);
    let mut sim = CoreSim::new(&clusters([("a", child()), ("b", child())]), alone(["a", "b"]));
    sim.ready("a");
    sim.ready("b");
    sim.dialled();
    sim.lose("a");
    sim.advance(secs(60));
    assert_eq!((pick(&mut sim, "b"), sim.dialled().len()), ("b".to_owned(), 0));
    assert_eq!((pick(&mut sim, "a"), sim.dialled()), ("queue".to_owned(), vec!["a".to_owned()]));
}

/// CM-2: a call for an unknown cluster fails with INTERNAL, for configs with no, one and many clusters.
#[test]
fn an_unknown_cluster_is_internal() {
    for known in [&[][..], &["a"], &["a", "b", "c"]] {
        let mut sim =
            CoreSim::new(&round_robin(known.iter().copied()), alone(known.iter().copied())).all_up();
        for unknown in ["x", "", "aa", "A"] {
            let status =
                sim.pick_with(|call| call.with_cluster(unknown)).status().cloned().expect("it fails");
            assert_eq!(status.code(), Code::Internal);
            assert!(status.message().contains(&format!("\"{unknown}\"")), "{status}");
        }
        let status = sim.pick().status().cloned().expect("it fails");
        assert_eq!((status.code(), status.message()), (Code::Internal, "no cluster selected for RPC"));
        let waiting = sim.pick_with(|call| call.with_cluster("x").wait_for_ready());
        assert_eq!(waiting.outcome(), "queue");
    }
}

/// CM-3: the aggregated state, for no children and for every pair of child states.
#[test]
fn states_are_aggregated() {
    assert_eq!(CoreSim::new(&clusters([]), Endpoints::none()).state(), TransientFailure);
    let states = [Ready, Connecting, Idle, TransientFailure];
    for (i, a) in states.into_iter().enumerate() {
        for (j, b) in states.into_iter().enumerate() {
            let config = clusters([("a", scripted("a", a)), ("b", scripted("b", b))]);
            let mut sim = scripted::sim(&config, Endpoints::none());
            // The list has the states in the order of their precedence.
            assert_eq!(sim.state(), states[i.min(j)], "{a:?}, {b:?}");
            for name in ["a", "b"] {
                assert_eq!(picked_child(&sim.pick_with(|call| call.with_cluster(name))), name);
            }
        }
    }
}

/// CM-3, LBX-4: a child that reported TRANSIENT_FAILURE counts as failed until it is READY.
#[test]
fn failure_sticks_until_ready() {
    let one = |state: ConnectivityState| clusters([("a", scripted("a", state))]);
    let mut sim = scripted::sim(&one(TransientFailure), Endpoints::none());
    for (given, expected) in
        [(Connecting, TransientFailure), (Idle, TransientFailure), (Ready, Ready), (Idle, Idle)]
    {
        sim.config(&one(given));
        assert_eq!(sim.state(), expected);
    }
}

/// CM-1, LBX-11: clusters are added and removed without effect on the others. A removed cluster is closed at
/// once.
#[test]
fn clusters_are_added_and_removed_alone() {
    let mut sim = CoreSim::new(&round_robin(["a", "b"]), alone(["a", "b"])).all_up();
    assert_eq!(sim.dialled(), ["a", "b"]);
    sim.published();
    sim.update(&round_robin(["b", "c"]), alone(["b", "c"]));
    assert_eq!((sim.dialled(), sim.closed()), (vec!["c".to_owned()], vec!["a".to_owned()]));
    assert_eq!(["a", "b", "c"].map(|name| pick(&mut sim, name)), ["fail", "b", "c"]);
    sim.published();
    sim.update(&round_robin(["c"]), alone(["c"]));
    assert_eq!((sim.published(), sim.closed()), (1, vec!["b".to_owned()]));
    assert_eq!(sim.wake_at(), None);
    sim.update(&round_robin([]), Endpoints::none());
    assert_eq!((sim.state(), sim.subchannel_count()), (TransientFailure, 0));
}

/// CM-1: the endpoints of a cluster may arrive before its config.
#[test]
fn a_cluster_joins_by_config_alone() {
    let mut sim = CoreSim::new(&round_robin(["a"]), alone(["a", "b"])).all_up();
    assert_eq!(["a", "b"].map(|name| pick(&mut sim, name)), ["a", "fail"]);
    sim.config(&round_robin(["a", "b"]));
    assert_eq!(["a", "b"].map(|name| pick(&mut sim, name)), ["a", "b"]);
    sim.config(&round_robin(["b"]));
    assert_eq!(["a", "b"].map(|name| pick(&mut sim, name)), ["fail", "b"]);
}

/// LBX-7: in a tree of policies, each level passes on the groups below its part of the path.
#[test]
fn groups_are_passed_down_level_by_level() {
    let split = json!([{"weighted_target_experimental": {"targets": {
        "x": {"weight": 1, "childPolicy": [{"xds_wrr_locality_experimental": {"childPolicy": [{"round_robin": {}}]}}]},
    }}}]);
    let config = clusters([("a", split), ("b", json!([{"round_robin": {}}]))]);
    let groups = Endpoints::groups([
        ("a", Endpoints::groups([("x", endpoints(["a.x.1", "a.x.2"])), ("y", endpoints(["a.y"]))])),
        ("b", endpoints(["b"])),
        ("c", endpoints(["c"])),
    ]);
    let mut sim = CoreSim::new(&config, groups).all_up();
    let mut seen = [pick(&mut sim, "a"), pick(&mut sim, "a")];
    seen.sort();
    assert_eq!(seen, ["a.x.1", "a.x.2"]);
    assert_eq!(pick(&mut sim, "b"), "b");
    assert_eq!(sim.subchannel_count(), 3);
}

/// LBX-12: a changed policy of one cluster takes over without a gap.
#[test]
fn a_changed_policy_of_a_cluster_takes_over() {
    let mut sim = CoreSim::new(&round_robin(["a", "b"]), alone(["a", "b"])).all_up();
    sim.config(&clusters([("a", json!([{"pick_first": {}}])), ("b", json!([{"round_robin": {}}]))]));
    assert_eq!(sim.describe().children[0].1.policy, "pick_first");
    assert_eq!(["a", "b"].map(|name| pick(&mut sim, name)), ["a", "b"]);
    assert_eq!((sim.dialled().len(), sim.closed().len()), (2, 0));
}

/// CM-1, LBX-1, LBX-2: config errors carry the path of the field.
#[test]
fn config_errors_carry_the_path() {
    let registry = Registry::standard();
    for (config, path, problem) in [
        (json!({"children": 1}), "children", "expected an object"),
        (json!({"children": {"a": []}}), "children[\"a\"]", "expected an object"),
        (json!({"children": {"a": {}}}), "children[\"a\"].childPolicy", "is required"),
        (json!({"children": {"a": {"childPolicy": {}}}}), "children[\"a\"].childPolicy", "expected a list"),
        (
            json!({"children": {"a": {"childPolicy": [{"nosuch": 1}]}}}),
            "children[\"a\"].childPolicy",
            "nosuch",
        ),
    ] {
        let error = registry
            .parse(&json!([{ "xds_cluster_manager_experimental": config }]))
            .expect_err("the config is invalid");
        assert_eq!(error.path(), format!("loadBalancingConfig[0].xds_cluster_manager_experimental.{path}"));
        assert!(error.to_string().contains(problem), "{error}");
    }
    let snake = json!([{"xds_cluster_manager_experimental": {
        "children": {"a": {"child_policy": [{"nosuch": {}}, {"round_robin": {}}], "other": 1}},
    }}]);
    assert!(registry.parse(&snake).is_ok());
    assert!(registry.parse(&json!([{"xds_cluster_manager_experimental": {}}])).is_ok());
}

/// Stand-in for `cds_experimental`: round_robin over the endpoints it is given.
#[derive(Default)]
struct Cds {
    child: ChildPolicy,
    made: Option<LbConfig>,
    runs: usize,
}

impl Policy for Cds {
    type Config = String;

    fn parse(fields: &ConfigFields<'_>) -> Result<String, ConfigError> {
        fields.str("cluster")?.map(ToOwned::to_owned).ok_or_else(|| fields.error("cluster", "is required"))
    }

    fn reconcile(&mut self, _: &String, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        self.runs += 1;
        let config = self.made.get_or_insert_with(|| LbConfig::new::<RoundRobin>("round_robin", ()));
        self.child.reconcile(config, endpoints, cx)
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        Description::new().detail("runs", self.runs).child("round_robin", self.child.describe(cx))
    }
}

/// CM-1: an event of one cluster reconciles none of the others, however many there are.
#[test]
fn one_changed_cluster_of_many_is_reconciled_alone() {
    let now = Instant::ORIGIN;
    let names: Vec<String> = (0..100).map(|i| format!("c{i:02}")).collect();
    let mut registry = Registry::standard();
    registry.register::<Cds>("cds_experimental");
    let config = clusters(names.iter().map(|name| (name.as_str(), cds(name))));
    let config = registry.parse(&config).expect("the config parses");
    let mut core = evenkeel_core::Core::builder(Rng::fixed(1)).build();
    core.update(LbUpdate::new(config, alone(names.iter().map(String::as_str))));
    let dialled = dialled(&core.reconcile(now));
    assert_eq!(dialled.len(), names.len());
    let runs = |core: &Core| -> Vec<u64> {
        let tree = core.describe().expect("it ran");
        tree.children.iter().map(|(_, child)| child.details["runs"].as_u64().expect("a count")).collect()
    };
    let pick = |pass: &PassResult, cluster: &str| {
        let picker = pass.picker.as_ref().expect("it is another");
        picker.pick(&PickArgs::new("/test.Service/Method", 0).with_cluster(cluster))
    };
    for (i, id) in dialled.into_iter().enumerate() {
        let before = runs(&core);
        core.handle(LbEvent::Connected(id), now);
        let pass = core.reconcile(now);
        let after = runs(&core);
        let ran: Vec<usize> = (0..names.len()).filter(|&i| after[i] != before[i]).collect();
        assert_eq!(ran, [i]);
        for name in [&names[0], &names[i]] {
            assert!(matches!(pick(&pass, name), PickResult::Complete(..)), "{name} after {i}");
        }
        if let Some(next) = names.get(i + 1) {
            assert!(matches!(pick(&pass, next), PickResult::Queue { .. }), "{next} after {i}");
        }
    }
}

fn cds(cluster: &str) -> Value {
    json!([{"cds_experimental": {"cluster": cluster}}])
}

/// Returns a simulation for a service config with `cds_experimental`.
fn service(config: &Value, endpoints: Endpoints) -> CoreSim {
    let mut registry = Registry::standard();
    registry.register::<Cds>("cds_experimental");
    let parsed = registry.parse_service_config(&config.to_string()).expect("the service config parses");
    assert_eq!(parsed.policy(), "xds_cluster_manager_experimental");
    let core = evenkeel_core::Core::builder(Rng::fixed(1)).build();
    CoreSim::with(core, registry, &config["loadBalancingConfig"], endpoints).all_up()
}

/// CM-9: the first service config of the walk-through, with one plain cluster and two weighted splits.
#[test]
fn the_service_config_with_splits() {
    let split = |targets: [(&str, u32); 2]| {
        let target = |(name, weight): (&str, u32)| {
            (name.to_owned(), json!({"weight": weight, "childPolicy": cds(name)}))
        };
        let targets: Map<_, _> = targets.into_iter().map(target).collect();
        json!([{"weighted_target_experimental": {"targets": targets}}])
    };
    let config = json!({"loadBalancingConfig": clusters([
        ("cds:cluster_1", cds("cluster_1")),
        ("weighted:cluster_1_cluster_2_1", split([("cluster_1", 75), ("cluster_2", 25)])),
        ("weighted:cluster_1_cluster_3_1", split([("cluster_1", 99), ("cluster_3", 1)])),
    ])});
    let groups = Endpoints::groups([
        ("cds:cluster_1", endpoints(["1"])),
        ("weighted:cluster_1_cluster_2_1", alone(["cluster_1", "cluster_2"])),
        ("weighted:cluster_1_cluster_3_1", alone(["cluster_1", "cluster_3"])),
    ]);
    let mut sim = service(&config, groups);
    assert_eq!(pick(&mut sim, "cds:cluster_1"), "1");
    for (route, other, share) in [
        ("weighted:cluster_1_cluster_2_1", "cluster_2", 0.25),
        ("weighted:cluster_1_cluster_3_1", "cluster_3", 0.01),
    ] {
        let n = 20_000;
        let hits = (0..n).filter(|_| pick(&mut sim, route) == other).count() as f64;
        assert!(
            (hits - n as f64 * share).abs() < crate::weighted_target::tolerance(n, share),
            "{route}: {hits}"
        );
    }
}

/// CM-9: the second service config of the walk-through, with three plain clusters.
#[test]
fn the_service_config_with_clusters() {
    let names = ["one", "two", "zero"];
    let config = json!({"loadBalancingConfig": clusters(names.map(|name| (name, cds(name))))});
    let mut sim = service(&config, alone(names));
    assert_eq!(names.map(|name| pick(&mut sim, name)), names);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// CM-1, CM-2: with any cluster names, a call is picked by the child of exactly its cluster.
    #[test]
    fn any_names_are_found(names in prop::collection::btree_set("[a-b:|]{0,20}", 0..20), others in prop::collection::vec("[a-b:|]{0,20}", 5)) {
        let config = clusters(names.iter().map(|name| (name.as_str(), scripted(name, Ready))));
        let mut sim = scripted::sim(&config, Endpoints::none());
        for name in names.iter().chain(&others) {
            let entropy = sim.entropy();
            let call = evenkeel_core::PickArgs::new("/test.Service/Method", entropy).with_cluster(name);
            let picked = sim.pick_call(&call);
            let code = if names.contains(name) { Code::Unavailable } else { Code::Internal };
            prop_assert_eq!(picked.status().map(evenkeel_core::Status::code), Some(code));
            if names.contains(name) {
                prop_assert_eq!(&picked_child(&picked), name);
            }
        }
    }
}
