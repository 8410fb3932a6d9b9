//! `cds_experimental`: clusters from discovery, alone and in aggregates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_core::cluster::{BackendMetrics, Cluster, LeafCluster, LoadReporting, stages};
use evenkeel_core::policy::{
    Cds, CdsConfig, ClusterManager, ClusterManagerConfig, FailurePercentageEjection, OutlierSettings,
};
use evenkeel_core::{
    CachedState, ConfigError, ConfigFields, ConnectivityState, Core, Cx, DescribeCx, Description, Endpoints,
    Instant, LbConfig, LbState, LbUpdate, PickArgs, Policy, Registry, Rng,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use testkit::{CoreSim, Picked, secs};

use crate::discovered::{Discovered, dns, eds, failure, find_all, lb_policy, set, sim, spine};
use crate::fn_policy;

fn cds(cluster: &str) -> Value {
    json!([{"cds_experimental": {"cluster": cluster}}])
}

fn pick_for(sim: &mut CoreSim, cluster: &str) -> Picked {
    let entropy = sim.entropy();
    sim.pick_call(&PickArgs::new("/test.Service/Method", entropy).with_cluster(cluster))
}

/// CDS-12: a cluster gets the whole policy tree, with outlier detection only if it is configured.
#[test]
fn a_cluster_has_the_whole_tree() {
    let policy = lb_policy(
        &json!([{"xds_wrr_locality_experimental": {"childPolicy": [{"edf_weighted_round_robin": {}}]}}]),
    );
    let plain = LeafCluster { lb_policy: policy, ..eds("orders") };
    let with_detection = LeafCluster { outlier_detection: Some(OutlierSettings::default()), ..plain.clone() };
    let above = ["cds_experimental", "xds_cluster_resolver_experimental", "priority_experimental"];
    let below = [
        "xds_cluster_impl_experimental",
        "xds_wrr_locality_experimental",
        "weighted_target_experimental",
        "edf_weighted_round_robin",
    ];
    for (leaf, between) in [(plain, &[][..]), (with_detection, &["outlier_detection_experimental"])] {
        let discovered = Discovered::default().with_leaf(leaf, set("a@x b@x | c@y"));
        let mut sim = sim(&cds("orders"), &discovered);
        assert_eq!(spine(&sim.describe()), [&above[..], between, &below].concat());
        assert_eq!(sim.letters(4).replace("ab", ""), "");
        let tree = sim.describe();
        let priority = find_all(&tree, "priority_experimental")["priority"];
        assert_eq!(priority.details["priorities"], json!(["orders/priority-0", "orders/priority-1"]));
        sim.down("a");
        sim.down("b");
        assert_eq!(sim.letters(2), "cc");
    }
}

/// CM-6: calls for a deleted cluster fail, also wait-for-ready calls, so that none of them retains the
/// cluster.
#[test]
fn a_deleted_cluster_fails_its_calls() {
    let discovered = Discovered::default().with("orders", "a");
    let mut sim = sim(&cds("orders"), &discovered);
    assert_eq!(sim.letters(2), "aa");
    sim.clusters(&discovered.clone().with_error("orders", "the control plane deleted it").0);
    assert_eq!(failure(&mut sim), "Unavailable: the control plane deleted it");
    assert_eq!(sim.pick().outcome(), "drop");
    assert_eq!(sim.pick_waiting().outcome(), "drop");
    assert_eq!((sim.state(), sim.closed()), (ConnectivityState::TransientFailure, vec!["a".to_owned()]));
    assert!(sim.describe().children.is_empty(), "the cluster has no child policy");
    sim.note("node n1");
    assert_eq!(
        failure(&mut sim),
        "Unavailable: the control plane deleted it",
        "the message of discovery has no second note"
    );
    sim.clusters(&discovered.0);
    assert_eq!(sim.letters(2), "aa");
}

/// CDS-11: the config is complete, so an unknown cluster is an error, except a dynamic one that was just
/// subscribed.
#[test]
fn an_unknown_cluster_is_an_error_unless_dynamic() {
    let none = Discovered::default();
    let mut static_one = sim(&cds("orders"), &none);
    assert_eq!(static_one.pick_waiting().outcome(), "drop");
    assert_eq!(failure(&mut static_one), r#"Unavailable: cluster "orders": missing in the discovery result"#);
    assert_eq!(static_one.core().subscribed_clusters().count(), 0);

    let dynamic = json!([{"cds_experimental": {"cluster": "orders", "is_dynamic": true}}]);
    let mut sim = sim(&dynamic, &none);
    let subscribed =
        |sim: &mut CoreSim| sim.core().subscribed_clusters().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!((subscribed(&mut sim), sim.pick().outcome()), (vec!["orders".to_owned()], "queue".to_owned()));
    sim.clusters(&none.clone().with("stock", "s").0);
    assert_eq!((sim.published(), sim.pick().outcome()), (0, "queue".to_owned()));
    let found = none.clone().with("orders", "a");
    sim.clusters(&found.0);
    assert_eq!(sim.letters(2), "aa");
    // Updates without the cluster are ignored. An update with an error for the cluster is applied.
    sim.clusters(&none.0);
    assert_eq!((sim.letters(2), subscribed(&mut sim).len()), ("aa".to_owned(), 1));
    sim.clusters(&none.clone().with_error("orders", "gone").0);
    assert_eq!(sim.pick().outcome(), "drop");
    sim.clusters(&none.0);
    assert_eq!(sim.pick().outcome(), "drop");
    // The subscription ends with its policy. The state of one cluster does not affect another.
    sim.config(&json!([{"cds_experimental": {"cluster": "stock", "isDynamic": true}}]));
    assert_eq!((subscribed(&mut sim), sim.pick().outcome()), (vec!["stock".to_owned()], "queue".to_owned()));
    sim.config(&cds("orders"));
    assert!(subscribed(&mut sim).is_empty());
}

/// A dynamic cluster stays subscribed until its last policy is dropped.
#[test]
fn a_cluster_is_subscribed_until_its_last_policy_is_dropped() {
    let dynamic = json!([{"cds_experimental": {"cluster": "orders", "isDynamic": true}}]);
    let children = |names: &[&str]| {
        let children: serde_json::Map<_, _> =
            names.iter().map(|name| (name.to_string(), json!({"childPolicy": dynamic}))).collect();
        json!([{"xds_cluster_manager_experimental": {"children": children}}])
    };
    let mut sim = CoreSim::new(&children(&["one", "two"]), Endpoints::none());
    for (names, subscribed) in [(&["one", "two"][..], 1), (&["two"], 1), (&["two", "three"], 1), (&[], 0)] {
        sim.config(&children(names));
        assert_eq!(sim.core().subscribed_clusters().count(), subscribed, "{names:?}");
    }
}

/// CDS-5, CDS-12: the leaves of an aggregate are tried in its order, each priority of each leaf in turn.
#[test]
fn an_aggregate_tries_its_leaves_in_order() {
    let discovered = Discovered::default()
        .with("main", "a | b")
        .with("spare", "c | d")
        .with_aggregate("all", &["main", "spare"]);
    let mut sim = sim(&cds("all"), &discovered);
    for address in ["a", "b", "c", "d"] {
        assert_eq!(sim.letters(2), address.repeat(2));
        sim.down(address);
    }
    assert_eq!(failure(&mut sim), "Unavailable: d: d refused");
    assert_eq!(sim.pick_waiting().outcome(), "queue");
    sim.up("c");
    sim.advance(secs(3));
    assert_eq!(sim.letters(2), "cc");
    // A new order keeps the child of each cluster, and nothing is dialled again.
    sim.dialled();
    sim.clusters(&discovered.clone().with_aggregate("all", &["spare", "main"]).0);
    assert_eq!((sim.letters(2), sim.dialled()), ("cc".to_owned(), vec![]));
    let tree = sim.describe();
    assert_eq!(tree.details["leaves"], json!(["spare", "main"]));
    let priorities = &find_all(&tree, "priority_experimental")["priority"].details["priorities"];
    let names = ["spare/priority-0", "spare/priority-1", "main/priority-0", "main/priority-1"];
    assert_eq!(priorities, &json!(names));
    // A single leaf, then the aggregate again, use the same cluster resolver.
    sim.clusters(&discovered.clone().with("all", "c").0);
    assert_eq!(sim.letters(2), "cc");
    sim.clusters(&discovered.0);
    assert_eq!(sim.letters(2), "cc");
}

/// CDS-7: each leaf has its own policy, circuit breaker, outlier detection, load reporting and drops.
#[test]
fn each_leaf_has_its_own_settings() {
    let ejection = OutlierSettings {
        failure_percentage_ejection: Some(FailurePercentageEjection::default()),
        ..OutlierSettings::default()
    };
    let load = LoadReporting { server: "lrs.example:443".into(), metrics: BackendMetrics::default() };
    let main = LeafCluster {
        lb_policy: lb_policy(&json!([{"pick_first": {}}])),
        max_concurrent_requests: Some(1),
        outlier_detection: Some(ejection),
        load_reporting: Some(Arc::new(load)),
        ..eds("main")
    };
    let discovered = Discovered::default()
        .with_leaf(main, set("a b"))
        .with_leaf(dns("spare", "spare.example:443"), set("c d"))
        .with_aggregate("all", &["main", "spare"]);
    let mut sim = sim(&cds("all"), &discovered);
    assert_eq!(sim.letters(2), "aa", "pick_first");
    let first = sim.pick();
    assert_eq!((first.outcome(), sim.pick().outcome()), ("a".to_owned(), "drop".to_owned()));
    first.finish_ok();
    sim.down("a");
    sim.down("b");
    assert_eq!(sim.pick().outcome(), "queue", "pick_first was idle and tries again");
    let calls: Vec<_> = (0..4).map(|_| sim.pick()).collect();
    let letters: String = calls.iter().map(Picked::outcome).collect();
    assert_eq!(letters.replace("cd", "").replace("dc", ""), "", "round_robin without that limit");
    for call in calls {
        call.finish_ok();
    }

    let tree = sim.describe();
    let branches: BTreeMap<&str, Vec<&str>> = find_all(&tree, "priority_experimental")["priority"]
        .children
        .iter()
        .map(|(name, child)| (name.as_str(), spine(child)))
        .collect();
    let cluster_impl = "xds_cluster_impl_experimental";
    let expected = [
        ("main/priority-0", vec!["outlier_detection_experimental", cluster_impl, "pick_first"]),
        ("spare/priority-0", vec![cluster_impl, "round_robin"]),
    ];
    assert_eq!(branches, expected.into());
    let config = |name: &str| match discovered.0.cluster(name).expect("a known cluster").as_deref() {
        Ok(Cluster::Leaf(leaf)) => stages(leaf, &set("a")).priority,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        config("main")["children"]["main/priority-0"],
        json!({
            "config": [{"outlier_detection_experimental": {
                "failurePercentageEjection": {},
                "childPolicy": [{"xds_cluster_impl_experimental": {
                    "cluster": "main",
                    "lrsLoadReportingServer": {"server_uri": "lrs.example:443"},
                    "maxConcurrentRequests": 1,
                    "childPolicy": [{"pick_first": {}}],
                }}],
            }}],
            "ignoreReresolutionRequests": false,
        })
    );
    assert_eq!(
        config("spare")["children"]["spare/priority-0"],
        json!({
            "config": [{"xds_cluster_impl_experimental": {
                "cluster": "spare",
                "childPolicy": [{"round_robin": {}}],
            }}],
            "ignoreReresolutionRequests": false,
        })
    );
}

/// CDS-6: an unusable leaf is a priority in TRANSIENT_FAILURE. If no leaf is usable, calls fail.
#[test]
fn an_unusable_leaf_is_skipped() {
    let discovered = Discovered::default().with("b", "b").with_aggregate("all", &["a", "b", "c"]);
    let mut sim = sim(&cds("all"), &discovered);
    assert_eq!(sim.letters(2), "bb");
    let tree = sim.describe();
    let priority = find_all(&tree, "priority_experimental")["priority"];
    let states: Vec<_> = priority.children.iter().map(|(name, child)| (name.as_str(), child.state)).collect();
    let (failed, ready) = (Some(ConnectivityState::TransientFailure), Some(ConnectivityState::Ready));
    assert_eq!(states, [("a/priority-0", failed), ("b/priority-0", ready)], "the third was not needed");
    // With every other priority down, calls fail with the error of the last one. Wait-for-ready calls queue
    // for the second.
    sim.down("b");
    assert_eq!(
        failure(&mut sim),
        r#"Unavailable: no addresses to connect to (cluster "c": missing in the discovery result)"#
    );
    assert_eq!((sim.pick().outcome(), sim.pick_waiting().outcome()), ("fail".to_owned(), "queue".to_owned()));
    // A leaf becomes known.
    sim.clusters(&discovered.clone().with("a", "a").0);
    assert_eq!(sim.letters(2), "aa");
    // All leaves become unusable; then the aggregate has none.
    let none = discovered.clone().without("b").with_error("a", "gone").with_error("c", "refused");
    sim.clusters(&none.0);
    assert_eq!(
        failure(&mut sim),
        r#"Unavailable: cluster "all": none of its 3 leaf clusters can be used; of the first: gone"#
    );
    assert_eq!(sim.pick_waiting().outcome(), "drop");
    sim.clusters(&none.with_aggregate("all", &[]).0);
    assert_eq!(failure(&mut sim), r#"Unavailable: cluster "all": it is an aggregate without leaf clusters"#);
    // An aggregate as its own leaf is an error, not an endless recursion.
    sim.clusters(&Discovered::default().with_aggregate("all", &["all"]).0);
    assert_eq!(
        failure(&mut sim),
        "Unavailable: cluster \"all\": none of its 1 leaf clusters can be used; of the first: cluster \"all\": it is an \
         aggregate where a leaf cluster was expected"
    );
}

/// CDS-13: the circuit breaker counts calls per cluster, whether or not the cluster is in an aggregate.
#[test]
fn a_cluster_alone_and_in_an_aggregate_shares_its_circuit_breaker() {
    let limited = LeafCluster { max_concurrent_requests: Some(2), ..eds("orders") };
    let discovered =
        Discovered::default().with_leaf(limited, set("a | b")).with_aggregate("all", &["orders"]);
    let config = json!([{"xds_cluster_manager_experimental": {"children": {
        "alone": {"childPolicy": cds("orders")}, "aggregate": {"childPolicy": cds("all")},
    }}}]);
    let mut sim = sim(&config, &discovered);
    let mut pick = |name: &str| pick_for(&mut sim, name);
    let (one, two) = (pick("alone"), pick("aggregate"));
    assert_eq!((one.outcome(), two.outcome()), ("a".to_owned(), "a".to_owned()));
    assert_eq!(
        (pick("alone").outcome(), pick("aggregate").outcome()),
        ("drop".to_owned(), "drop".to_owned())
    );
    one.finish_ok();
    assert_eq!(pick("aggregate").finish_ok(), "a");
    two.finish_ok();
}

/// First service config of the walk-through (see CM-9), with the cluster names and weights printed there.
fn weighted_clusters() -> Value {
    let targets = |targets: &[(&str, u32)]| {
        let target = |(name, weight): &(&str, u32)| {
            (name.to_string(), json!({"weight": weight, "childPolicy": cds(name)}))
        };
        let targets: serde_json::Map<_, _> = targets.iter().map(target).collect();
        json!({"childPolicy": [{"weighted_target_experimental": {"targets": targets}}]})
    };
    json!({"loadBalancingConfig": [{"xds_cluster_manager_experimental": {"children": {
        "cds:cluster_1": {"childPolicy": cds("cluster_1")},
        "weighted:cluster_1_cluster_2_1": targets(&[("cluster_1", 75), ("cluster_2", 25)]),
        "weighted:cluster_1_cluster_3_1": targets(&[("cluster_1", 99), ("cluster_3", 1)]),
    }}}]})
}

/// Second service config of the walk-through (see CM-9).
fn bare_clusters() -> Value {
    let child = |name: &str| json!({"childPolicy": cds(name)});
    json!({"loadBalancingConfig": [{"xds_cluster_manager_experimental": {"children": {
        "one": child("one"), "two": child("two"), "zero": child("zero"),
    }}}]})
}

/// CM-9: weighted targets of clusters below the cluster manager share calls by weight.
#[test]
fn the_first_config_of_the_walk_through_works() {
    let config = weighted_clusters();
    Registry::standard().parse_service_config(&config.to_string()).expect("it is a whole service config");
    let discovered =
        Discovered::default().with("cluster_1", "1").with("cluster_2", "2").with("cluster_3", "3");
    let mut sim = sim(&config["loadBalancingConfig"], &discovered);
    let mut shares = |child: &str| {
        let mut shares: BTreeMap<String, usize> = BTreeMap::new();
        for _ in 0..10_000 {
            let outcome = pick_for(&mut sim, child).finish_ok();
            *shares.entry(outcome).or_default() += 1;
        }
        shares
    };
    assert_eq!(shares("cds:cluster_1"), [("1".to_owned(), 10_000)].into());
    // The standard deviations are 43 and 10.
    let second = shares("weighted:cluster_1_cluster_2_1");
    assert!((2_300..=2_700).contains(&second["2"]) && second["1"] + second["2"] == 10_000, "{second:?}");
    let third = shares("weighted:cluster_1_cluster_3_1");
    assert!((50..=150).contains(&third["3"]) && third["1"] + third["3"] == 10_000, "{third:?}");
    assert_eq!(shares("cluster_2"), [("fail".to_owned(), 10_000)].into(), "there is no child of that name");
}

/// CM-9: each child of the cluster manager can be a plain cluster.
#[test]
fn the_second_config_of_the_walk_through_works() {
    let config = bare_clusters();
    Registry::standard().parse_service_config(&config.to_string()).expect("it is a whole service config");
    let discovered = Discovered::default().with("one", "1").with("two", "2");
    let discovered = discovered.with_error("zero", "nothing refers to it");
    let mut sim = sim(&config["loadBalancingConfig"], &discovered);
    for (child, outcome) in [("one", "1"), ("two", "2"), ("zero", "drop"), ("one", "1")] {
        assert_eq!(pick_for(&mut sim, child).finish_ok(), outcome);
    }
}

/// An update that changes one cluster of a thousand reconciles only its policies. An update without changes
/// reconciles none.
#[test]
fn only_the_changed_cluster_is_reconciled() {
    const ALL: usize = 1_000;
    let runs = Arc::new(AtomicUsize::new(0));
    let mut registry = Registry::standard();
    let shared = runs.clone();
    fn_policy::register(&mut registry, "counted", move |_, _| {
        shared.fetch_add(1, Ordering::Relaxed);
        LbState::connecting()
    });
    let counted = registry.parse(&json!([{"counted": {}}])).expect("it is registered");
    let leaf = |i: usize| {
        let lb_policy = counted.clone();
        LeafCluster { lb_policy, ..eds(&format!("c{i}")) }
    };
    let mut discovered = Discovered::default();
    for i in 0..ALL {
        discovered = discovered.with_leaf(leaf(i), set("a b | c"));
    }
    let child = |i: usize| {
        let settings = CdsConfig { cluster: format!("c{i}").into(), is_dynamic: false };
        (Arc::from(format!("c{i}")), LbConfig::new::<Cds>("cds_experimental", settings))
    };
    let settings = ClusterManagerConfig { children: (0..ALL).map(child).collect() };
    let config = LbConfig::new::<ClusterManager>("xds_cluster_manager_experimental", settings);
    let mut core = Core::builder(Rng::fixed(1)).build();
    let now = Instant::ORIGIN;
    let mut expect = |discovered: &Discovered, expected: usize, what: &str| {
        let update = LbUpdate::new(config.clone(), Endpoints::none());
        core.update(update.with_clusters(Arc::new(discovered.0.clone())));
        core.reconcile(now);
        assert_eq!(runs.swap(0, Ordering::Relaxed), expected, "{what}");
    };
    expect(&discovered, ALL, "the first priority of each");
    expect(&discovered, 0, "the same in another allocation");
    let more = discovered.clone().with_endpoints("c7", set("a b d | c"));
    expect(&more, 1, "other endpoints");
    expect(&more.clone().with_endpoints("c7", set("a b d | c e")), 0, "in a priority that does not run");
    let fewer = LeafCluster { max_concurrent_requests: Some(7), ..leaf(8) };
    let fewer = discovered.clone().with_endpoints("c7", set("a b d | c e")).with_leaf(fewer, set("a b | c"));
    expect(&fewer, 0, "a limit above the policy, and endpoints that read the same");
    expect(&fewer.clone().with("other", "x").without("other2"), 0, "a cluster that no policy reads");
    expect(&fewer.with_error("c9", "gone"), 0, "a removed cluster");
}

/// Reads the cluster and the endpoints that its config names, and counts its passes.
struct ClusterReader(Arc<AtomicUsize>, CachedState<()>);

impl Policy for ClusterReader {
    type Config = Arc<str>;

    fn parse(fields: &ConfigFields<'_>) -> Result<Arc<str>, ConfigError> {
        Ok(fields.str("at")?.unwrap_or_default().into())
    }

    fn reconcile(&mut self, name: &Arc<str>, _: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        self.0.fetch_add(1, Ordering::Relaxed);
        cx.cluster(name);
        cx.endpoint_set(&eds(name).source);
        self.1.get_or_build((), |()| LbState::connecting())
    }

    fn describe(&self, _: &DescribeCx<'_>) -> Description {
        Description::new()
    }
}

/// A policy is reconciled again only if a cluster or endpoint set that it read in its last pass has changed.
#[test]
fn a_policy_runs_again_when_what_it_read_changes() {
    let runs = Arc::new(AtomicUsize::new(0));
    let mut registry = Registry::standard();
    let shared = runs.clone();
    registry.register_with("cluster_reader", move || ClusterReader(shared.clone(), CachedState::default()));
    let at =
        |name: &str| registry.parse(&json!([{"cluster_reader": {"at": name}}])).expect("it is registered");
    let (at_one, at_two) = (at("one"), at("two"));
    let mut core = Core::builder(Rng::fixed(1)).build();
    let mut expect = |config: &LbConfig, discovered: Option<&Discovered>, expected: usize, what: &str| {
        let update = LbUpdate::new(config.clone(), Endpoints::none());
        core.update(match discovered {
            Some(discovered) => update.with_clusters(Arc::new(discovered.0.clone())),
            None => update,
        });
        core.reconcile(Instant::ORIGIN);
        assert_eq!(runs.swap(0, Ordering::Relaxed), expected, "{what}");
    };
    let both = Discovered::default().with("one", "a").with("two", "b");
    expect(&at_one, None, 1, "new");
    expect(&at_one, None, 0, "still nothing");
    expect(&at_one, Some(&Discovered::default()), 0, "nothing found");
    expect(&at_one, Some(&both), 1, "found");
    expect(&at_one, Some(&both), 0, "the same, in another value");
    let more = both.clone().with("two", "c");
    expect(&at_one, Some(&more), 0, "another cluster changed");
    let more = more.with_endpoints("one", set("d"));
    expect(&at_one, Some(&more), 1, "its endpoints changed");
    let gone = more.clone().with_error("one", "gone");
    expect(&at_one, Some(&gone), 1, "it cannot be used");
    expect(&at_one, Some(&gone.clone().with_error("one", "gone")), 0, "for the same reason");
    expect(&at_one, Some(&gone.clone().with_error("one", "refused")), 1, "for another reason");
    expect(&at_two, Some(&gone), 1, "the config names another cluster");
    expect(&at_two, Some(&both), 1, "the named cluster changed");
    expect(&at_two, Some(&both.clone().with("one", "z")), 0, "the cluster named before changed");
    expect(&at_two, None, 1, "the update has no clusters");
}

#[test]
fn config_errors_name_the_field() {
    let at = "policy \"cds_experimental\": loadBalancingConfig[0].cds_experimental";
    for (settings, error) in [
        (json!({}), ".cluster: is required: the name of the cluster"),
        (json!({"cluster": ""}), ".cluster: is required: the name of the cluster"),
        (json!({"cluster": 7}), ".cluster: expected a string, found 7"),
        (json!({"cluster": "a", "isDynamic": "yes"}), ".isDynamic: expected true or false, found \"yes\""),
    ] {
        let found = Registry::standard().parse(&json!([{"cds_experimental": settings}])).unwrap_err();
        assert_eq!(found.to_string(), format!("{at}{error}"));
    }
}

/// State of each leaf of an aggregate: unknown, an error, or priorities (from DNS if the bool is true). A
/// priority is a set of letters.
type Leaves = Vec<Option<Result<(bool, Vec<BTreeSet<char>>), ()>>>;

fn leaves() -> impl Strategy<Value = Leaves> {
    let priority = prop::collection::btree_set(prop::char::range('a', 'f'), 0..3);
    let priorities = (any::<bool>(), prop::collection::vec(priority, 0..3));
    let known = prop_oneof![1 => Just(Err(())), 4 => priorities.prop_map(Ok)];
    prop::collection::vec(prop::option::weighted(0.9, known), 0..4)
}

/// Each letter is an endpoint in a locality of its own.
fn letters(all: &BTreeSet<char>) -> String {
    let each: Vec<String> = all.iter().map(|c| format!("{c}@{c}")).collect();
    each.join(" ")
}

fn discovered(leaves: &Leaves) -> Discovered {
    let names: Vec<String> = (0..leaves.len()).map(|i| format!("leaf{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut discovered = Discovered::default().with_aggregate("all", &names);
    for (name, leaf) in names.into_iter().zip(leaves) {
        discovered = match leaf {
            None => discovered,
            Some(Err(())) => discovered.with_error(name, "no"),
            Some(Ok((is_dns, priorities))) => {
                let text: Vec<String> = priorities.iter().map(letters).collect();
                let mut endpoints = set(&text.join("|"));
                if priorities.is_empty() {
                    endpoints.priorities.clear();
                }
                let leaf = if *is_dns { dns(name, &format!("{name}:1")) } else { eds(name) };
                discovered.with_leaf(leaf, endpoints)
            }
        };
    }
    discovered
}

/// Expected pick outcomes: the endpoints of the first non-empty priority, independent of earlier updates.
fn expected(leaves: &Leaves) -> BTreeSet<String> {
    let usable = || leaves.iter().flatten().flatten();
    let first = usable().flat_map(|(_, priorities)| priorities).find(|priority| !priority.is_empty());
    match first {
        Some(priority) => priority.iter().map(ToString::to_string).collect(),
        None if usable().next().is_some() => ["fail".to_owned()].into(),
        None => ["drop".to_owned()].into(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// CDS-6, CDS-12: after any updates of the leaves, calls follow the latest one. The simulation checks
    /// after each step that another pass changes nothing.
    #[test]
    fn only_the_latest_update_counts(updates in prop::collection::vec(leaves(), 1..6)) {
        let mut sim = CoreSim::new(&cds("all"), Endpoints::none()).all_up();
        for leaves in updates {
            sim.clusters(&discovered(&leaves).0);
            let picked: BTreeSet<String> = sim.picks(12).into_iter().collect();
            prop_assert_eq!(picked, expected(&leaves), "{:?}", leaves);
        }
    }
}
