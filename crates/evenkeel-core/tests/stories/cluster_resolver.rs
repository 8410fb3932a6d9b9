//! `xds_cluster_resolver_experimental`: endpoints of clusters as priorities, and the child configs generated
//! from them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_core::cluster::{BackendMetrics, EndpointSet, LeafCluster, LoadReporting, stages};
use evenkeel_core::policy::{
    Cds, CdsConfig, ClusterResolver, ClusterResolverConfig, DiscoveryMechanism, DropCategory,
    FailurePercentageEjection, OutlierSettings, SuccessRateEjection,
};
use evenkeel_core::{
    Code, ConfigError, ConfigFields, ConnectivityState, Core, Cx, DescribeCx, Description, Endpoint,
    Endpoints, LbConfig, LbState, Policy, Registry, Rng, Status,
};
use serde_json::{Value, json};
use testkit::{CoreSim, secs};

use crate::discovered::{Discovered, dns, eds, failure, find_all, lb_policy, set, sim, spine};
use crate::fn_policy;

/// A config with these discovery mechanisms over round_robin.
fn config(mechanisms: &Value) -> Value {
    json!([{"xds_cluster_resolver_experimental": {
        "discoveryMechanisms": mechanisms, "xdsLbPolicy": [{"round_robin": {}}],
    }}])
}

/// A config with one EDS cluster.
fn orders() -> Value {
    config(&json!([{"cluster": "orders", "type": "EDS"}]))
}

fn priorities(sim: &CoreSim) -> Vec<String> {
    let tree = sim.describe();
    let names = &find_all(&tree, "priority_experimental")["priority"].details["priorities"];
    names.as_array().expect("a list").iter().map(|name| name.as_str().expect("a name").to_owned()).collect()
}

/// CDS-14: the priorities follow the order of the mechanisms, without any Cluster resource.
#[test]
fn priorities_of_the_mechanisms_follow_each_other() {
    let config = json!([{"xds_cluster_resolver_experimental": {
        "discovery_mechanisms": [
            {"cluster": "orders", "type": "EDS", "eds_service_name": "orders-v2", "max_concurrent_requests": 1},
            {"cluster": "spare", "type": "LOGICAL_DNS", "dnsHostname": "spare.example:443",
             "outlierDetection": {"interval": "1s", "failurePercentageEjection": {}}},
        ],
        "xds_lb_policy": [{"unknown": {}}, {"round_robin": {}}],
    }}]);
    let mut discovered = Discovered::default();
    let service = Some("orders-v2".into());
    let source =
        evenkeel_core::cluster::EndpointSource::Eds { cluster: "orders".into(), service_name: service };
    discovered.0.insert_endpoint_set(source, Arc::new(set("a | b")));
    discovered.0.insert_endpoint_set(dns("spare", "spare.example:443").source, Arc::new(set("c")));
    let mut sim = sim(&config, &discovered);
    let call = sim.pick();
    assert_eq!((call.outcome(), sim.pick().outcome()), ("a".to_owned(), "drop".to_owned()));
    call.finish_ok();
    assert_eq!(priorities(&sim), ["orders/priority-0", "orders/priority-1", "spare/priority-0"]);
    sim.down("a");
    assert_eq!(sim.letters(2), "bb");
    sim.down("b");
    assert_eq!(sim.letters(2), "cc");
    let tree = sim.describe();
    let gates = find_all(&tree, "xds_cluster_impl_experimental");
    let details = |name: &str, field: &str| gates[name].details[field].clone();
    assert_eq!(details("orders/priority-0", "edsServiceName"), "orders-v2");
    assert_eq!(details("childPolicy", "cluster"), "spare", "below outlier detection");
    assert_eq!(details("childPolicy", "maxConcurrentRequests"), 1024);
    assert_eq!(tree.details["mechanisms"]["spare"]["source"], "DNS name \"spare.example:443\"");
}

/// CDS-9: calls queue until endpoints are known. A source without endpoints is one priority in
/// TRANSIENT_FAILURE.
#[test]
fn calls_queue_for_unknown_endpoints_and_fail_without_any() {
    let mut sim = sim(&orders(), &Discovered::default());
    assert_eq!((sim.state(), sim.pick().outcome()), (ConnectivityState::Connecting, "queue".to_owned()));
    let empty = Discovered::default().with_leaf(eds("orders"), EndpointSet::default());
    sim.clusters(&empty.0);
    assert_eq!(priorities(&sim), ["orders/priority-0"]);
    assert_eq!(failure(&mut sim), "Unavailable: no endpoints");
    assert_eq!((sim.pick().outcome(), sim.pick_waiting().outcome()), ("fail".to_owned(), "queue".to_owned()));
    let gone = EndpointSet::unreachable("EDS resource \"orders\" does not exist");
    sim.clusters(&empty.with_endpoints("orders", gone).0);
    assert_eq!(failure(&mut sim), "Unavailable: no endpoints (EDS resource \"orders\" does not exist)");
    assert_eq!(priorities(&sim), ["orders/priority-0"]);
    let found = Discovered::default().with("orders", "a");
    sim.clusters(&found.0);
    assert_eq!(sim.letters(2), "aa");
    // An update without the endpoint set leaves the endpoints unchanged.
    sim.clusters(&Discovered::default().0);
    assert_eq!((sim.letters(2), sim.closed()), ("aa".to_owned(), vec![]));
}

/// A mechanism whose endpoints are not known yet does not remove known endpoints.
#[test]
fn known_endpoints_serve_until_all_are_known() {
    let found = Discovered::default().with("orders", "a");
    let mut sim = sim(&orders(), &found);
    sim.config(&config(&json!([{"cluster": "new"}, {"cluster": "orders"}])));
    assert_eq!((sim.letters(2), sim.published()), ("aa".to_owned(), 0));
    sim.clusters(&found.with("new", "n").0);
    assert_eq!(sim.letters(2), "nn");
    assert_eq!(priorities(&sim), ["new/priority-0", "orders/priority-0"]);
    assert!(sim.closed().is_empty(), "the child of the other cluster was kept");
    // An update without one endpoint set still applies to the other.
    sim.clusters(&Discovered::default().with("new", "m").0);
    assert_eq!(sim.letters(2), "mm");
    assert_eq!(priorities(&sim), ["new/priority-0", "orders/priority-0"]);
}

/// CDS-7: each changed setting of a cluster applies at once and closes no connection.
#[test]
fn changed_settings_apply_at_once() {
    let detection = |interval| Some(OutlierSettings { interval, ..OutlierSettings::default() });
    let reporting = |server: &str| {
        Some(Arc::new(LoadReporting { server: server.into(), metrics: BackendMetrics::default() }))
    };
    let first = LeafCluster {
        max_concurrent_requests: Some(5),
        outlier_detection: detection(secs(1)),
        load_reporting: reporting("lrs:1"),
        ..eds("orders")
    };
    let of = |leaf: &LeafCluster| Discovered::default().with_leaf(leaf.clone(), set("a b"));
    let config = json!([{"cds_experimental": {"cluster": "orders"}}]);
    let mut sim = sim(&config, &of(&first));
    assert_eq!(sim.dialled().len(), 2);
    let mut expect = |leaf: &LeafCluster, expected: [&str; 4]| {
        sim.clusters(&of(leaf).0);
        assert!(sim.dialled().is_empty());
        let tree = sim.describe();
        let detail = |policy: &str, field: &str| {
            let found = find_all(&tree, policy);
            found.values().map(|it| it.details[field].to_string()).collect::<String>()
        };
        let cluster_impl = "xds_cluster_impl_experimental";
        let limit = detail(cluster_impl, "maxConcurrentRequests");
        let server = detail(cluster_impl, "lrsLoadReportingServer");
        let interval = detail("outlier_detection_experimental", "interval");
        let policy = spine(&tree).last().map(ToString::to_string).unwrap_or_default();
        assert_eq!([limit, server, interval, policy], expected.map(str::to_owned));
    };
    expect(&first, ["5", "\"lrs:1\"", "\"1s\"", "round_robin"]);
    let limit = LeafCluster { max_concurrent_requests: Some(6), ..first };
    expect(&limit, ["6", "\"lrs:1\"", "\"1s\"", "round_robin"]);
    let server = LeafCluster { load_reporting: reporting("lrs:2"), ..limit };
    expect(&server, ["6", "\"lrs:2\"", "\"1s\"", "round_robin"]);
    let interval = LeafCluster { outlier_detection: detection(secs(2)), ..server };
    expect(&interval, ["6", "\"lrs:2\"", "\"2s\"", "round_robin"]);
    let policy = LeafCluster { lb_policy: lb_policy(&json!([{"pick_first": {}}])), ..interval };
    expect(&policy, ["6", "\"lrs:2\"", "\"2s\"", "pick_first"]);
    let none = LeafCluster { outlier_detection: None, ..policy };
    expect(&none, ["6", "\"lrs:2\"", "", "pick_first"]);
}

/// PR-10: the example of A115, from endpoint sets down to connections.
#[test]
fn a_locality_that_moves_keeps_its_child_and_its_connections() {
    let names = |numbers: &[u32]| numbers.iter().map(|n| format!("orders/priority-{n}")).collect::<Vec<_>>();
    let found = |priorities: &str| Discovered::default().with("orders", priorities);
    let mut sim = sim(&orders(), &found("a@AA b@BB | c@CC d@DD"));
    for address in ["a", "b"] {
        sim.down(address);
    }
    assert_eq!(priorities(&sim), names(&[0, 1]));
    assert_eq!(sim.letters(2).replace('d', "c"), "cc");
    sim.dialled();
    sim.clusters(&found("c@CC | d@DD e@EE").0);
    assert_eq!(priorities(&sim), names(&[1, 2]));
    assert_eq!((sim.letters(2), sim.dialled()), ("cc".to_owned(), vec![]));
    assert_eq!(sim.state_of("c"), Some(ConnectivityState::Ready));
    let mut closed = sim.closed();
    closed.sort_unstable();
    assert_eq!(closed, ["a", "b", "d"], "the second priority is not needed, and its endpoints have no user");
    sim.clusters(&found("a@AA b@BB | c@CC d@DD").0);
    assert_eq!(priorities(&sim), names(&[3, 1]));
    let mut dialled = sim.dialled();
    dialled.sort_unstable();
    assert_eq!(dialled, ["a", "b", "d"], "the connection to c is the one from before");
    // An equal endpoint set in another allocation changes nothing.
    sim.published();
    sim.clusters(&found("a@AA b@BB | c@CC d@DD").0);
    assert_eq!((priorities(&sim), sim.published()), (names(&[3, 1]), 0));
}

/// OD-14: outliers are determined among the endpoints of one priority.
#[test]
fn each_priority_is_a_population_of_its_own() {
    let ejection = json!({
        "interval": "1s", "maxEjectionPercent": 100,
        "failurePercentageEjection": {"threshold": 50, "minimumHosts": 2, "requestVolume": 5},
    });
    let config = config(&json!([{"cluster": "orders", "outlierDetection": ejection}]));
    let mut sim = sim(&config, &Discovered::default().with("orders", "a | b c"));
    // One endpoint is below the minimum of two hosts, although the cluster has three endpoints.
    for round in 0..2 {
        for _ in 0..20 {
            let picked = sim.pick();
            let code = if matches!(picked.outcome().as_str(), "a" | "c") { Code::Internal } else { Code::Ok };
            picked.finish(code, None);
        }
        sim.advance(secs(1));
        if round == 0 {
            assert_eq!(sim.letters(2), "aa");
            sim.down("a");
        }
    }
    assert_eq!(sim.letters(4), "bbbb", "one of two endpoints in the second priority is ejected");
    let tree = sim.describe();
    let ejected: BTreeMap<_, _> = find_all(&tree, "outlier_detection_experimental")
        .into_iter()
        .map(|(name, policy)| (name, policy.details["ejected"].clone()))
        .collect();
    assert_eq!(
        ejected,
        [("orders/priority-0", json!(0)), ("orders/priority-1", json!(1))]
            .map(|(n, e)| (n.to_owned(), e))
            .into()
    );
}

/// CDS-10: failing endpoints from DNS request re-resolution. Failing endpoints from EDS do not.
#[test]
fn only_dns_is_re_resolved() {
    let discovered = Discovered::default()
        .with("orders", "a")
        .with_leaf(dns("spare", "spare.example:443"), set("b"))
        .with_leaf(dns("other", "other.example:443"), set("c"));
    let mechanisms = json!([
        {"cluster": "orders"},
        {"cluster": "spare", "type": "LOGICAL_DNS", "dnsHostname": "spare.example:443"},
        {"cluster": "other", "type": "LOGICAL_DNS", "dnsHostname": "other.example:443"},
    ]);
    let mut sim = sim(&config(&mechanisms), &discovered);
    sim.down("a");
    sim.advance(secs(30));
    assert_eq!((sim.letters(1), sim.reresolutions()), ("b".to_owned(), 0));
    sim.down("b");
    assert_eq!(sim.letters(1), "c");
    assert_eq!(
        sim.reresolutions(),
        2,
        "once for the connection that was lost, once for the attempt that failed"
    );
}

/// CDS-10: without DNS names no re-resolution is requested.
#[test]
fn without_dns_nothing_is_re_resolved() {
    let discovered = Discovered::default().with("orders", "a");
    let mut sim = sim(&config(&json!([{"cluster": "orders"}])), &discovered);
    sim.down("a");
    sim.advance(secs(30));
    assert_eq!(sim.reresolutions(), 0);
}

/// LBX-9: failures carry the note of their endpoint source, and the note of the update unless the former
/// contains it.
#[test]
fn failures_carry_the_note_of_their_source() {
    let noted = |priorities: &str, note: &str| EndpointSet { note: Some(note.into()), ..set(priorities) };
    let discovered = Discovered::default()
        .with_leaf(eds("orders"), noted("a", "orders: the last update was refused"))
        .with_leaf(eds("spare"), set("b"));
    let mut sim = sim(&orders(), &discovered);
    sim.note("node n1");
    sim.down("a");
    assert_eq!(failure(&mut sim), "Unavailable: a: a refused (orders: the last update was refused; node n1)");
    let whole = noted("a", "refused (node n1)");
    sim.clusters(&discovered.clone().with_endpoints("orders", whole).0);
    assert_eq!(failure(&mut sim), "Unavailable: a: a refused (refused (node n1))");
    // The note is removed and nothing else changes.
    sim.dialled();
    sim.clusters(&discovered.clone().with_endpoints("orders", set("a")).0);
    assert_eq!(failure(&mut sim), "Unavailable: a: a refused (node n1)");
    assert!(sim.dialled().is_empty());
    sim.clusters(&discovered.0);
    sim.config(&config(&json!([{"cluster": "orders"}, {"cluster": "spare"}])));
    sim.down("b");
    assert_eq!(
        failure(&mut sim),
        "Unavailable: b: b refused (node n1)",
        "the note of another source is not used"
    );
}

/// Drop categories are updated with the endpoints.
#[test]
fn drops_are_those_of_the_endpoints() {
    let all = DropCategory { category: "shed".into(), requests_per_million: 1_000_000 };
    let shedding = EndpointSet { drops: vec![all], ..set("a") };
    let discovered = Discovered::default().with("orders", "a");
    let mut sim = sim(&orders(), &discovered);
    assert_eq!(sim.letters(2), "aa");
    sim.clusters(&discovered.clone().with_endpoints("orders", shedding).0);
    assert_eq!(sim.picks(2), ["drop", "drop"]);
    sim.clusters(&discovered.0);
    assert_eq!((sim.letters(2), sim.closed()), ("aa".to_owned(), vec![]));
}

/// A changed priority reconciles no other priority. An equal endpoint set reconciles none.
#[test]
fn only_the_changed_priority_is_reconciled() {
    let runs: Arc<[AtomicUsize; 3]> = Arc::default();
    let shared = runs.clone();
    let mut registry = Registry::standard();
    // Counts its runs by its first endpoint, and connects to none.
    fn_policy::register(&mut registry, "counted", move |endpoints, cx| {
        let first = endpoints.iter().next().map(|endpoint| endpoint.addresses()[0].to_string());
        let index = ["a", "b", "c"].iter().position(|address| Some(*address) == first.as_deref());
        shared[index.expect("one of three")].fetch_add(1, Ordering::Relaxed);
        LbState::failing(cx.unavailable("scripted"))
    });
    let config = json!([{"xds_cluster_resolver_experimental": {
        "discoveryMechanisms": [{"cluster": "one"}, {"cluster": "two"}], "xdsLbPolicy": [{"counted": {}}],
    }}]);
    let config = registry.parse(&config).expect("it parses");
    let mut core = Core::builder(Rng::fixed(1)).build();
    let mut expect = |one: &str, two: EndpointSet, expected: [usize; 3]| {
        let discovered = Discovered::default().with("one", one).with_leaf(eds("two"), two);
        let update = evenkeel_core::LbUpdate::new(config.clone(), Endpoints::none());
        core.update(update.with_clusters(Arc::new(discovered.0)));
        core.reconcile(evenkeel_core::Instant::ORIGIN);
        let counted = [0, 1, 2].map(|i| runs[i].swap(0, Ordering::Relaxed));
        assert_eq!(counted, expected, "{one}");
    };
    expect("a@x | b@y", set("c"), [1, 1, 1]);
    expect("a@x | b@y", set("c"), [0, 0, 0]);
    expect("a@x | b@y d@y", set("c"), [0, 1, 0]);
    expect("a@x | b@y d@y", set("c e"), [0, 0, 1]);
    expect("b@y d@y | a@x", set("c e"), [0, 0, 0]);
    let noted = EndpointSet { note: Some("late".into()), ..set("c e") };
    expect("b@y d@y | a@x", noted.clone(), [0, 0, 1]);
    let drop = DropCategory { category: "shed".into(), requests_per_million: 1 };
    expect("b@y d@y | a@x", EndpointSet { drops: vec![drop], ..noted }, [0, 0, 0]);
}

/// CDS-14: errors name the mechanism and the field.
#[test]
fn config_errors_name_the_field() {
    let name = "xds_cluster_resolver_experimental";
    let round_robin = json!([{"round_robin": {}}]);
    let one = |mechanism: Value| json!({"discoveryMechanisms": [mechanism], "xdsLbPolicy": round_robin});
    let twice = json!([{"cluster": "a"}, {"cluster": "a"}]);
    let at = "discoveryMechanisms[0]";
    let server = "expected a server URI, or an object with one as serverUri";
    for (settings, error) in [
        (
            json!({"xdsLbPolicy": round_robin}),
            "discoveryMechanisms: is required: a list of at least one".to_owned(),
        ),
        (
            json!({"xdsLbPolicy": round_robin, "discoveryMechanisms": []}),
            "discoveryMechanisms: is required: a list of at least one".to_owned(),
        ),
        (
            json!({"discoveryMechanisms": [{"cluster": "a"}]}),
            "xdsLbPolicy: is required: a list such as [{\"round_robin\": {}}]".to_owned(),
        ),
        (
            json!({"discoveryMechanisms": twice, "xdsLbPolicy": round_robin}),
            "discoveryMechanisms[1].cluster: \"a\" is listed twice; a cluster has one discovery mechanism"
                .to_owned(),
        ),
        (one(json!({})), format!("{at}.cluster: is required: the name of the cluster")),
        (
            one(json!({"cluster": "a", "type": "STATIC"})),
            format!("{at}.type: expected EDS or LOGICAL_DNS, found \"STATIC\""),
        ),
        (one(json!({"cluster": "a", "type": 3})), format!("{at}.type: expected EDS or LOGICAL_DNS, found 3")),
        (
            one(json!({"cluster": "a", "type": "LOGICAL_DNS"})),
            format!("{at}.dnsHostname: is required: a name and a port, \"example.com:443\""),
        ),
        (
            one(json!({"cluster": "a", "outlierDetection": {"maxEjectionPercent": 101}})),
            format!(
                "{at}.outlierDetection.maxEjectionPercent: expected a percentage from 0 to 100, found 101"
            ),
        ),
        (
            one(json!({"cluster": "a", "lrsLoadReportingServer": ""})),
            format!("{at}.lrsLoadReportingServer: {server}"),
        ),
        (
            one(json!({"cluster": "a", "lrsLoadReportingServer": {}})),
            format!("{at}.lrsLoadReportingServer: {server}"),
        ),
        (
            one(json!({"cluster": "a", "lrsLoadReportingServer": {"server_uri": 7}})),
            format!("{at}.lrsLoadReportingServer.serverUri: expected a string, found 7"),
        ),
    ] {
        let found = Registry::standard().parse(&json!([{name: settings}])).unwrap_err();
        assert_eq!(found.to_string(), format!("policy \"{name}\": loadBalancingConfig[0].{name}.{error}"));
    }
}

/// Returns the parsed settings of a config.
fn parsed(config: &Value) -> ClusterResolverConfig {
    let config = Registry::standard().parse(config).expect("it parses");
    config.settings::<ClusterResolverConfig>().expect("a cluster resolver").clone()
}

/// CDS-14: unset fields stay unset, and both forms of the load reporting server are accepted.
#[test]
fn unset_fields_stay_unset() {
    let config = config(&json!([
        {"cluster": "a", "lrsLoadReportingServer": {"server_uri": "lrs:1", "channel_creds": []}},
        {"cluster": "b", "lrsLoadReportingServer": "lrs:2", "outlierDetection": {}},
        {"cluster": "c", "xdsLbPolicy": [{"pick_first": {}}]},
    ]));
    let leaves: Vec<LeafCluster> =
        parsed(&config).mechanisms.iter().filter_map(DiscoveryMechanism::leaf).cloned().collect();
    let server = |leaf: &LeafCluster| leaf.load_reporting.as_ref().map(|load| load.server.to_string());
    assert_eq!(
        leaves.iter().map(server).collect::<Vec<_>>(),
        [Some("lrs:1".into()), Some("lrs:2".into()), None]
    );
    let detection: Vec<_> = leaves.iter().map(|leaf| leaf.outlier_detection.clone()).collect();
    assert_eq!(detection, [None, Some(OutlierSettings::default()), None]);
    assert_eq!(leaves.iter().map(|leaf| leaf.max_concurrent_requests).collect::<Vec<_>>(), [None; 3]);
    assert_eq!(
        leaves.iter().map(|leaf| leaf.lb_policy.policy()).collect::<Vec<_>>(),
        ["round_robin", "round_robin", "pick_first"]
    );
}

/// All metrics that a cluster can propagate.
const METRICS: [&str; 6] = [
    "cpu_utilization",
    "mem_utilization",
    "application_utilization",
    "named_metrics.*",
    "named_metrics.bytes",
    "named_metrics.queue",
];

/// A cluster with every setting.
fn full() -> LeafCluster {
    let outlier_detection = OutlierSettings {
        interval: secs(5),
        base_ejection_time: std::time::Duration::from_millis(1_500),
        max_ejection_time: secs(60),
        max_ejection_percent: 20,
        success_rate_ejection: Some(SuccessRateEjection {
            stdev_factor: 1000,
            enforcement_percentage: 50,
            minimum_hosts: 3,
            request_volume: 10,
        }),
        failure_percentage_ejection: Some(FailurePercentageEjection {
            threshold: 40,
            enforcement_percentage: 60,
            minimum_hosts: 4,
            request_volume: 20,
        }),
    };
    let service_name = Some("orders-v2".into());
    let mut metrics = BackendMetrics::default();
    assert!(METRICS.iter().all(|name| metrics.add(name)));
    let load = LoadReporting { server: "lrs:1".into(), metrics };
    LeafCluster {
        source: evenkeel_core::cluster::EndpointSource::Eds { cluster: "orders".into(), service_name },
        lb_policy: lb_policy(&json!([{"least_request_experimental": {"choiceCount": 3}}])),
        max_concurrent_requests: Some(7),
        outlier_detection: Some(outlier_detection),
        load_reporting: Some(Arc::new(load)),
        ..eds("orders")
    }
}

/// A config made in code serialises to the JSON that parses to an equal config.
#[test]
fn configs_made_in_code_round_trip_through_json() {
    let gone =
        DiscoveryMechanism::Unusable { cluster: "gone".into(), reason: Status::unavailable("deleted") };
    let all = [
        DiscoveryMechanism::Leaf(Box::new(full())),
        DiscoveryMechanism::Leaf(Box::new(dns("spare", "spare:1"))),
    ];
    let made = |mechanisms: Vec<DiscoveryMechanism>| {
        let settings = ClusterResolverConfig { mechanisms };
        LbConfig::new::<ClusterResolver>("xds_cluster_resolver_experimental", settings).to_json()
    };
    let resolver = made(all.to_vec());
    let ejection = json!({
        "interval": "5s", "baseEjectionTime": "1.5s", "maxEjectionTime": "60s", "maxEjectionPercent": 20,
        "successRateEjection": {
            "stdevFactor": 1000, "enforcementPercentage": 50, "minimumHosts": 3, "requestVolume": 10,
        },
        "failurePercentageEjection": {
            "threshold": 40, "enforcementPercentage": 60, "minimumHosts": 4, "requestVolume": 20,
        },
    });
    let least_request = json!([{"least_request_experimental": {"choiceCount": 3}}]);
    assert_eq!(
        resolver,
        json!({"xds_cluster_resolver_experimental": {
            "discoveryMechanisms": [
                {
                    "cluster": "orders", "type": "EDS", "edsServiceName": "orders-v2",
                    "maxConcurrentRequests": 7, "lrsLoadReportingServer": {"server_uri": "lrs:1"},
                    "lrsReportEndpointMetrics": METRICS,
                    "outlierDetection": ejection,
                },
                {
                    "cluster": "spare", "type": "LOGICAL_DNS", "dnsHostname": "spare:1",
                    "xdsLbPolicy": [{"round_robin": {}}],
                },
            ],
            "xdsLbPolicy": least_request,
        }})
    );
    let again = ClusterResolver::to_json(&parsed(&json!([resolver])));
    assert_eq!(json!({"xds_cluster_resolver_experimental": again}), resolver);
    let with_gone = made([&all[..], &[gone]].concat());
    let last = &with_gone["xds_cluster_resolver_experimental"]["discoveryMechanisms"][2];
    assert_eq!(last, &json!({"cluster": "gone", "unusable": "deleted"}));

    let drop = DropCategory { category: "shed".into(), requests_per_million: 5 };
    let priority = stages(&full(), &EndpointSet { drops: vec![drop], ..set("a") }).priority;
    let mut expected = ejection;
    expected["childPolicy"] = json!([{"xds_cluster_impl_experimental": {
        "cluster": "orders", "edsServiceName": "orders-v2", "lrsLoadReportingServer": {"server_uri": "lrs:1"},
                    "lrsReportEndpointMetrics": METRICS,
        "maxConcurrentRequests": 7, "dropCategories": [{"category": "shed", "requestsPerMillion": 5}],
        "childPolicy": least_request,
    }}]);
    assert_eq!(
        priority,
        json!({
            "children": {"orders/priority-0": {
                "config": [{"outlier_detection_experimental": expected}],
                "ignoreReresolutionRequests": false,
            }},
            "priorities": ["orders/priority-0"],
        })
    );
    Registry::standard().parse(&json!([{"priority_experimental": priority}])).expect("it can be read again");

    let cds = |is_dynamic| {
        LbConfig::new::<Cds>("cds_experimental", CdsConfig { cluster: "orders".into(), is_dynamic }).to_json()
    };
    assert_eq!(cds(false), json!({"cds_experimental": {"cluster": "orders"}}));
    assert_eq!(cds(true), json!({"cds_experimental": {"cluster": "orders", "isDynamic": true}}));
}

/// A parsed config serialises as it was written, under the policy's canonical name.
#[test]
fn parsed_configs_serialise_as_written() {
    for (given, written) in [
        (json!([{"round_robin": null}]), json!({"round_robin": {}})),
        (json!([{"no": {}}, {"pick_first": {"mine": 1}}]), json!({"pick_first": {"mine": 1}})),
        (
            json!([{"xds_wrr_locality": {"child_policy": [{"round_robin": {}}]}}]),
            json!({"xds_wrr_locality_experimental": {"child_policy": [{"round_robin": {}}]}}),
        ),
    ] {
        assert_eq!(lb_policy(&given).to_json(), written);
    }
}

/// Custom policy of the worked example of A52: it ignores `choiceCount` and picks like round_robin.
#[derive(Default)]
struct MyCustomLeastRequest(evenkeel_core::policy::RoundRobin);

impl Policy for MyCustomLeastRequest {
    type Config = u32;

    fn parse(fields: &ConfigFields<'_>) -> Result<u32, ConfigError> {
        fields.u32("choiceCount")?.ok_or_else(|| fields.error("choiceCount", "is required"))
    }

    fn reconcile(&mut self, _: &u32, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        self.0.reconcile(&Default::default(), endpoints, cx)
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        self.0.describe(cx)
    }
}

/// REG-8: the four configs of the worked example of A52, and a simulation that runs them. Without the custom
/// policy, round_robin is used.
#[test]
fn the_worked_example_stage_by_stage() {
    let mut registry = Registry::standard();
    registry.register::<MyCustomLeastRequest>("myorg.MyCustomLeastRequestPolicy");
    let custom = json!([{"myorg.MyCustomLeastRequestPolicy": {"choiceCount": 2}}]);
    let wrr_locality = json!([{"xds_wrr_locality_experimental": {"childPolicy": custom}}]);
    let lb_policy = registry.parse(&wrr_locality).expect("it is registered");
    let leaf = LeafCluster { lb_policy, ..eds("ClusterName") };
    let endpoints = set("a@A:1 b@B:2");
    let stages = stages(&leaf, &endpoints);
    assert_eq!(stages.lb_policy_config, wrr_locality);
    assert_eq!(
        stages.cluster_resolver,
        json!({
            "discoveryMechanisms": [{"cluster": "ClusterName", "type": "EDS"}],
            "xdsLbPolicy": wrr_locality,
        })
    );
    assert_eq!(
        stages.priority,
        json!({
            "children": {
                "ClusterName/priority-0": {
                    "config": [{"xds_cluster_impl_experimental": {
                        "cluster": "ClusterName",
                        "childPolicy": wrr_locality,
                    }}],
                    "ignoreReresolutionRequests": false,
                },
            },
            "priorities": ["ClusterName/priority-0"],
        })
    );
    assert_eq!(
        stages.weighted_target,
        Some(json!({
            "targets": {
                "{region=\"\", zone=\"A\", sub_zone=\"\"}": {"weight": 1, "childPolicy": custom},
                "{region=\"\", zone=\"B\", sub_zone=\"\"}": {"weight": 2, "childPolicy": custom},
            },
        }))
    );

    // The same configs, in a simulation.
    let discovered = Discovered::default().with_leaf(leaf, endpoints.clone());
    let config = json!([{"cds_experimental": {"cluster": "ClusterName"}}]);
    let core = Core::builder(Rng::fixed(1)).build();
    let mut sim = CoreSim::with(core, registry, &config, Endpoints::none()).all_up();
    sim.clusters(&discovered.0);
    let shares = sim.shares(9_000);
    // The standard deviation is 45.
    assert!((2_800..=3_200).contains(&shares["a"]) && shares["a"] + shares["b"] == 9_000, "{shares:?}");
    assert_eq!(spine(&sim.describe()).last(), Some(&"myorg.MyCustomLeastRequestPolicy"));

    let either = json!([custom[0], {"round_robin": {}}]);
    let fallback = lb_policy_of_locality(&either);
    assert_eq!(
        evenkeel_core::cluster::stages(
            &LeafCluster { lb_policy: fallback, ..eds("ClusterName") },
            &set("a@A")
        )
        .weighted_target,
        Some(json!({"targets": {"{region=\"\", zone=\"A\", sub_zone=\"\"}": {
            "weight": 1, "childPolicy": [{"round_robin": {}}],
        }}}))
    );
}

fn lb_policy_of_locality(child: &Value) -> LbConfig {
    lb_policy(&json!([{"xds_wrr_locality_experimental": {"childPolicy": child}}]))
}

/// Only locality policies have a fourth stage. A source without endpoints has no targets.
#[test]
fn stages_of_other_clusters() {
    assert_eq!(stages(&eds("orders"), &set("a")).weighted_target, None);
    let leaf =
        LeafCluster { lb_policy: lb_policy_of_locality(&json!([{"round_robin": {}}])), ..eds("orders") };
    let none = stages(&leaf, &EndpointSet::default());
    assert_eq!(none.weighted_target, Some(json!({"targets": {}})));
    assert_eq!(none.priority["priorities"], json!(["orders/priority-0"]));
    let two = EndpointSet {
        priorities: vec![Endpoints::none(), Endpoints::list([Endpoint::at("a")])],
        ..EndpointSet::default()
    };
    assert_eq!(stages(&leaf, &two).priority["priorities"], json!(["orders/priority-0", "orders/priority-1"]));
}
