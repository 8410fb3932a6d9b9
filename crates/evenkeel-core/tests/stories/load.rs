//! Load reporting: calls of a cluster are counted for load reports, and attempts carry the labels of their
//! backend.

#![expect(clippy::disallowed_methods, reason = "counts must be exact under concurrent calls")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_core::cluster::BackendMetrics;
use evenkeel_core::load::{ClusterStats, LoadStore, LocalityStats, MetricSum};
use evenkeel_core::{
    Address, BackendLabels, CallOutcome, Code, Core, Endpoint, Endpoints, Instant, LoadReport, Locality,
    PickArgs, PickResult, Registry, Rng,
};
use serde_json::{Value, json};
use testkit::{CoreSim, Picked, secs};

/// Config of cluster "c" over round_robin that reports load to "lrs", with these additional settings.
fn cluster(settings: &Value) -> Value {
    let mut all = json!({
        "cluster": "c", "lrsLoadReportingServer": "lrs", "childPolicy": [{"round_robin": {}}],
    });
    for (name, value) in settings.as_object().into_iter().flatten() {
        all[name] = value.clone();
    }
    json!([{"xds_cluster_impl_experimental": all}])
}

fn metrics(names: &[&str]) -> Value {
    cluster(&json!({"lrsReportEndpointMetrics": names}))
}

fn sim(store: &Arc<LoadStore>, config: &Value, endpoints: Endpoints) -> CoreSim {
    let core = Core::builder(Rng::fixed(1)).load_store(store.clone()).build();
    CoreSim::with(core, Registry::standard(), config, endpoints).all_up()
}

fn zone(name: &str) -> Arc<Locality> {
    Arc::new(Locality { zone: name.to_owned(), ..Locality::default() })
}

fn in_zone(address: impl Into<Address>, name: &str) -> Endpoint {
    Endpoint::at(address).with_locality(zone(name), 1)
}

/// Makes one call to a cluster with one endpoint and finishes it with this result.
fn call(sim: &mut CoreSim, code: Code, load: Option<&LoadReport>) {
    sim.pick().finish(code, load);
}

fn named(metrics: &[(&str, f64)]) -> LoadReport {
    let named_metrics = metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    LoadReport { named_metrics, ..LoadReport::default() }
}

/// Takes the stats of the only cluster since the last call.
fn take(store: &LoadStore, now: Instant) -> Option<ClusterStats> {
    let mut all = store.take("lrs", |_| true, now);
    assert!(all.len() <= 1, "{all:?}");
    all.pop()
}

fn take_localities(store: &LoadStore) -> Vec<LocalityStats> {
    take(store, Instant::ORIGIN).map(|stats| stats.localities).unwrap_or_default()
}

/// Number of issued, succeeded, failed and in-progress calls by zone.
fn counts(stats: &[LocalityStats]) -> BTreeMap<String, [u64; 4]> {
    let of = |s: &LocalityStats| (s.locality.zone.clone(), [s.issued, s.succeeded, s.failed, s.in_progress]);
    stats.iter().map(of).collect()
}

fn sum(count: u64, total: f64) -> MetricSum {
    MetricSum { count, total }
}

/// CI-7: each call counts for the locality of its endpoint, or for the empty locality if the endpoint has
/// none.
#[test]
fn calls_count_for_the_locality_of_their_endpoint() {
    let store = Arc::new(LoadStore::default());
    let endpoints =
        Endpoints::list([in_zone("a", "x"), in_zone("b", "x"), in_zone("c", "y"), Endpoint::at("d")]);
    let mut sim = sim(&store, &cluster(&json!({})), endpoints);
    assert_eq!(sim.picks(8).len(), 8);
    let held: Vec<Picked> = (0..4).map(|_| sim.pick()).collect();
    let stats = take(&store, Instant::ORIGIN + secs(3)).unwrap();
    assert_eq!((&*stats.cluster, &stats.eds_service_name, stats.interval), ("c", &None, secs(3)));
    let expected =
        [("", [3, 2, 0, 1]), ("x", [6, 4, 0, 2]), ("y", [3, 2, 0, 1])].map(|(zone, n)| (zone.to_owned(), n));
    assert_eq!(counts(&stats.localities), expected.into());
    drop(held);
}

/// CI-7: an endpoint that moves counts for its new locality. Calls in flight end in their old locality.
#[test]
fn the_locality_is_that_of_the_latest_endpoints() {
    let store = Arc::new(LoadStore::default());
    let two = |first| Endpoints::list([in_zone("a", first), in_zone("b", "z")]);
    let mut sim = sim(&store, &cluster(&json!({})), two("x"));
    let held = [sim.pick(), sim.pick()];
    sim.endpoints(two("y"));
    sim.picks(2);
    assert_eq!(held.map(Picked::finish_ok), ["a", "b"]);
    let expected = [("x", [1, 1, 0, 0]), ("y", [1, 1, 0, 0]), ("z", [2, 2, 0, 0])];
    assert_eq!(counts(&take_localities(&store)), expected.map(|(zone, n)| (zone.to_owned(), n)).into());
}

/// CI-7: later connections are counted, whichever address of an endpoint they use.
#[test]
fn later_connections_are_found() {
    let store = Arc::new(LoadStore::default());
    let other = Endpoint::new(["b1", "b2"]).with_locality(zone("y"), 1);
    let core = Core::builder(Rng::fixed(1)).load_store(store.clone()).build();
    let endpoints = Endpoints::list([in_zone("a", "x"), other]);
    let mut sim = CoreSim::with(core, Registry::standard(), &cluster(&json!({})), endpoints);
    sim.ready("a");
    sim.fail("b1");
    sim.ready("b2");
    assert_eq!(sim.picks(4), ["a", "b2", "a", "b2"]);
    sim.lose("b2");
    sim.up("b1");
    assert_eq!(sim.picks(4), ["a", "b1", "a", "b1"]);
    let expected = [("x", [4, 4, 0, 0]), ("y", [4, 4, 0, 0])];
    assert_eq!(counts(&take_localities(&store)), expected.map(|(zone, n)| (zone.to_owned(), n)).into());
}

/// CI-8, CI-9: an attempt carries cluster, locality and host name.
#[test]
fn an_attempt_carries_its_backend_labels() {
    let backend_labels = |locality: &str, hostname: Option<&str>| BackendLabels {
        backend_service: "c".into(),
        locality: locality.into(),
        hostname: hostname.map(Into::into),
    };
    let x = r#"{region="", zone="x", sub_zone=""}"#;
    let cases = [
        (vec![Endpoint::at("a")], vec![backend_labels("", None)]),
        (vec![in_zone("a", "x")], vec![backend_labels(x, None)]),
        (vec![in_zone("a", "x").with_hostname("")], vec![backend_labels(x, None)]),
        (
            vec![in_zone("a", "x"), in_zone("b", "x").with_hostname("b.example"), Endpoint::at("c")],
            vec![backend_labels(x, None), backend_labels(x, Some("b.example")), backend_labels("", None)],
        ),
    ];
    for (endpoints, expected) in cases {
        for load_reporting in [json!("lrs"), Value::Null] {
            let config = cluster(&json!({"lrsLoadReportingServer": load_reporting}));
            let mut sim = sim(&Arc::default(), &config, Endpoints::list(endpoints.clone()));
            let labels = expected.iter().map(|_| match sim.pick() {
                Picked::To { trackers, .. } => trackers.backend_labels().cloned().unwrap(),
                other => panic!("{other:?}"),
            });
            assert_eq!(labels.collect::<Vec<_>>(), expected);
        }
    }
}

/// CI-8: an attempt that is queued, fails or is dropped carries the cluster too. A sent attempt carries it in
/// its backend labels.
#[test]
fn an_unsent_attempt_carries_its_cluster() {
    let picked = |sim: &mut CoreSim| {
        let call = PickArgs::new("/s/m", 1);
        let outcome = sim.pick_call(&call).outcome();
        (outcome, call.backend_service())
    };
    let config = cluster(&json!({"maxConcurrentRequests": 1}));
    let mut sim = CoreSim::new(&config, testkit::endpoints(["a"]));
    let cluster_c = Some(Arc::from("c"));
    assert_eq!(picked(&mut sim), ("queue".to_owned(), cluster_c.clone()));
    sim.fail("a");
    assert_eq!(picked(&mut sim), ("fail".to_owned(), cluster_c.clone()));
    sim.up("a");
    sim.advance(secs(2));
    assert_eq!(picked(&mut sim), ("a".to_owned(), None));
    let held = sim.pick();
    assert_eq!(picked(&mut sim), ("drop".to_owned(), cluster_c.clone()));
    drop(held);
    let all = json!({"dropCategories": [{"category": "lb", "requestsPerMillion": 1_000_000}]});
    sim.config(&cluster(&all));
    assert_eq!(picked(&mut sim), ("drop".to_owned(), cluster_c));
    let call = PickArgs::new("/s/m", 1);
    call.note_backend_service(&"one".into());
    call.note_backend_service(&"two".into());
    assert_eq!([call.backend_service(), call.backend_service()], [Some("two".into()), Some("two".into())]);
}

/// LRS-4, LRS-5: finished calls are reported once, calls in progress each time. The interval is the time
/// between two reports.
#[test]
fn counts_restart_and_calls_in_progress_do_not() {
    let store = Arc::new(LoadStore::default());
    let mut sim = sim(&store, &cluster(&json!({"edsServiceName": "eds"})), testkit::endpoints(["a"]));
    let [one, two, three, four] = [(); 4].map(|()| sim.pick());
    one.finish_ok();
    two.finish(Code::Internal, None);
    let at = |seconds| Instant::ORIGIN + secs(seconds);
    let stats = take(&store, at(10)).unwrap();
    assert_eq!(stats.eds_service_name.as_deref(), Some("eds"));
    assert_eq!((stats.interval, counts(&stats.localities)[""]), (secs(10), [4, 1, 1, 2]));
    let stats = take(&store, at(11)).unwrap();
    assert_eq!((stats.interval, counts(&stats.localities)[""]), (secs(1), [0, 0, 0, 2]));
    // The caller drops the call, which counts as a failure.
    drop(three);
    four.finish_ok();
    let stats = take(&store, at(13)).unwrap();
    assert_eq!((stats.interval, counts(&stats.localities)[""]), (secs(2), [0, 1, 1, 0]));
    assert_eq!(take(&store, at(20)), None);
    sim.picks(1);
    assert_eq!(take(&store, at(21)).unwrap().interval, secs(1), "an interval without calls ends too");
}

/// LRS-5: an unsent call does not count as issued, also if it turns out to be unsent only after a report.
#[test]
fn a_call_that_was_not_sent_does_not_count() {
    let store = Arc::new(LoadStore::default());
    let mut sim = sim(&store, &cluster(&json!({})), testkit::endpoints(["a"]));
    sim.pick().unsent();
    assert_eq!(take_localities(&store), []);
    let held = sim.pick();
    assert_eq!(counts(&take_localities(&store))[""], [1, 0, 0, 1]);
    held.unsent();
    assert_eq!(take_localities(&store), []);
    sim.picks(3);
    assert_eq!(
        counts(&take_localities(&store))[""],
        [2, 3, 0, 0],
        "three were sent, of which one is reported"
    );
}

/// LRS-6: drops count by category and in total; circuit-breaker drops count only in total.
#[test]
fn drops_count_by_category_and_in_total() {
    let store = Arc::new(LoadStore::default());
    let settings = |rate: u32, limit: u32| {
        let drops = json!([
            {"category": "none", "requestsPerMillion": 0},
            {"category": "lb", "requestsPerMillion": rate},
        ]);
        cluster(&json!({"dropCategories": drops, "maxConcurrentRequests": limit}))
    };
    let mut sim = sim(&store, &settings(1_000_000, 1), testkit::endpoints(["a"]));
    sim.picks(3);
    sim.config(&settings(0, 0));
    sim.picks(2);
    let stats = take(&store, Instant::ORIGIN).unwrap();
    assert_eq!((stats.drops, stats.total_drops), (vec![("lb".into(), 3)], 5));
    assert_eq!(stats.localities, []);
    sim.picks(1);
    let stats = take(&store, Instant::ORIGIN).unwrap();
    assert_eq!((stats.drops, stats.total_drops), (vec![], 1));
}

/// LRS-9, LRS-11, CI-10: the example of A64.
#[test]
fn named_metrics_add_up_per_key() {
    let store = Arc::new(LoadStore::default());
    let mut sim = sim(&store, &metrics(&["named_metrics.*"]), testkit::endpoints(["a"]));
    call(&mut sim, Code::Ok, Some(&named(&[("key1", 1.0), ("key2", 2.0)])));
    call(&mut sim, Code::Internal, Some(&named(&[("key2", 3.0), ("key3", 4.0)])));
    call(&mut sim, Code::Ok, Some(&named(&[])));
    let [stats] = &take_localities(&store)[..] else { panic!() };
    let expected = [("key1", sum(1, 1.0)), ("key2", sum(2, 5.0)), ("key3", sum(1, 4.0))];
    assert_eq!(stats.named_metrics, expected.map(|(key, metric)| (key.to_owned(), metric)).into());
    call(&mut sim, Code::Ok, Some(&named(&[("key3", 5.0)])));
    let [stats] = &take_localities(&store)[..] else { panic!() };
    assert_eq!(
        stats.named_metrics,
        [("key3".to_owned(), sum(1, 5.0))].into(),
        "sums restart with each report"
    );
}

/// LRS-9: out-of-band reports do not count.
#[test]
fn reports_out_of_band_do_not_count() {
    let store = Arc::new(LoadStore::default());
    let child = json!([{"weighted_round_robin": {"enableOobLoadReport": true}}]);
    let config = cluster(&json!({"lrsReportEndpointMetrics": ["named_metrics.*"], "childPolicy": child}));
    let mut sim = sim(&store, &config, testkit::endpoints(["a"]));
    sim.load("a", named(&[("key", 7.0)]));
    call(&mut sim, Code::Ok, None);
    let [stats] = &take_localities(&store)[..] else { panic!() };
    assert_eq!(stats.named_metrics, BTreeMap::new());
}

/// LRS-10: only listed metrics count. Values that are missing or not finite do not.
#[test]
fn only_listed_metrics_count() {
    let report = LoadReport {
        cpu_utilization: 0.5,
        mem_utilization: 0.25,
        application_utilization: 2.0,
        utilization: vec![("k".to_owned(), 9.0)],
        ..named(&[("k", 1.0), ("l", 2.0), ("nan", f64::NAN), ("inf", f64::INFINITY), ("huge", f64::MAX)])
    };
    let none = sum(0, 0.0);
    let all = [("huge", f64::MAX), ("k", 2.0), ("l", 4.0)].map(|(key, total)| (key, sum(2, total)));
    for (names, utilizations, expected) in [
        (&[] as &[_], [none; 3], &[] as &[_]),
        (&["cpu_utilization"], [sum(2, 1.0), none, none], &[]),
        (&["mem_utilization"], [none, sum(2, 0.5), none], &[]),
        (&["application_utilization"], [none, none, sum(2, 4.0)], &[]),
        (&["named_metrics.k", "named_metrics.absent"], [none; 3], &all[1..2]),
        (&["named_metrics.*"], [none; 3], &all),
        (&["named_metrics.nan", "named_metrics.inf"], [none; 3], &[]),
        (&["k", "named_metrics", "utilization.k", "rps_fractional"], [none; 3], &[]),
    ] {
        let store = Arc::new(LoadStore::default());
        let mut sim = sim(&store, &metrics(names), testkit::endpoints(["a"]));
        call(&mut sim, Code::Ok, Some(&report));
        call(&mut sim, Code::Unknown, Some(&report));
        call(&mut sim, Code::Ok, Some(&LoadReport::default()));
        let [stats] = &take_localities(&store)[..] else { panic!() };
        let found = [stats.cpu_utilization, stats.mem_utilization, stats.application_utilization];
        assert_eq!(found, utilizations, "{names:?}");
        let expected = expected.iter().map(|(key, metric)| ((*key).to_owned(), *metric)).collect();
        assert_eq!(stats.named_metrics, expected, "{names:?}");
        // Load reports are parsed only if a tracker needs them.
        let Picked::To { trackers, .. } = sim.pick() else { panic!() };
        let needs_report = names.iter().any(|name| BackendMetrics::default().add(name));
        assert_eq!(trackers.needs_load_report(), needs_report, "{names:?}");
    }
}

/// LRS-10: unknown metrics are ignored with a warning.
#[test]
fn unknown_metrics_are_ignored_with_a_warning() {
    let sim = CoreSim::new(&metrics(&["named_metrics.k", "rps"]), testkit::endpoints(["a"]));
    let warnings = sim.describe().warnings;
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].ends_with(r#"lrsReportEndpointMetrics: "rps" is an unknown metric; it is ignored"#));
}

/// LRS-12: a channel with other metrics has its own entry for the same locality.
#[test]
fn other_metrics_have_their_own_entry() {
    let store = Arc::new(LoadStore::default());
    let mut one = sim(&store, &metrics(&["cpu_utilization"]), testkit::endpoints(["a"]));
    let mut two = sim(&store, &metrics(&["mem_utilization"]), testkit::endpoints(["a"]));
    let report = LoadReport { cpu_utilization: 0.5, mem_utilization: 0.25, ..LoadReport::default() };
    call(&mut one, Code::Ok, Some(&report));
    call(&mut two, Code::Ok, Some(&report));
    call(&mut two, Code::Ok, Some(&report));
    let stats = take_localities(&store);
    let mut found: Vec<_> = stats.iter().map(|s| (s.issued, s.cpu_utilization, s.mem_utilization)).collect();
    found.sort_by_key(|(issued, ..)| *issued);
    assert_eq!(found, [(1, sum(1, 0.5), sum(0, 0.0)), (2, sum(0, 0.0), sum(2, 0.5))]);
}

/// fault 76: metric names come from backends, so the number of names that a report keeps is limited.
#[test]
fn metric_names_are_limited() {
    let store = Arc::new(LoadStore::default());
    let mut sim = sim(&store, &metrics(&["named_metrics.*"]), testkit::endpoints(["a"]));
    for i in 0..20_000 {
        call(&mut sim, Code::Ok, Some(&named(&[(&format!("key{i}"), 1.0)])));
    }
    let [stats] = &take_localities(&store)[..] else { panic!() };
    assert_eq!((stats.named_metrics.len(), stats.dropped_metrics), (8_000, 12_000));
    call(&mut sim, Code::Ok, Some(&named(&[("key0", 1.0)])));
    take_localities(&store);
    call(&mut sim, Code::Ok, Some(&named(&[("new", 1.0)])));
    let [stats] = &take_localities(&store)[..] else { panic!() };
    assert_eq!(
        (stats.named_metrics["new"], stats.dropped_metrics),
        (sum(1, 1.0), 0),
        "a report makes room again"
    );
}

/// LRS-8: counts from before the last user was dropped are reported once more and then removed.
#[test]
fn dropped_clusters_are_reported_once() {
    let store = Arc::new(LoadStore::default());
    let mut sim = sim(&store, &cluster(&json!({})), testkit::endpoints(["a"]));
    assert_eq!(store.servers(), [("lrs".into(), true)]);
    let (held, _) = (sim.pick(), sim.picks(2));
    drop(sim);
    assert_eq!(store.servers(), [("lrs".into(), true)], "a call in flight counts still");
    assert_eq!(counts(&take_localities(&store))[""], [3, 2, 0, 1]);
    held.finish_ok();
    assert_eq!(store.servers(), [("lrs".into(), false)]);
    assert_eq!(counts(&take_localities(&store))[""], [0, 1, 0, 0]);
    assert_eq!(store.servers(), []);
}

/// LRS-8: dropped clusters that no report selects are removed. Clusters in use keep their counts.
#[test]
fn unselected_clusters_are_removed_when_dropped() {
    let store = LoadStore::default();
    let here = store.cluster("lrs", "here", None, Instant::ORIGIN);
    let gone = store.cluster("lrs", "gone", Some("eds"), Instant::ORIGIN);
    here.shed().count();
    gone.shed().count();
    drop(gone);
    assert_eq!(store.take("lrs", |_| false, Instant::ORIGIN + secs(5)), []);
    let stats = store.take("lrs", |_| true, Instant::ORIGIN + secs(9));
    let found: Vec<_> = stats.iter().map(|s| (&*s.cluster, s.total_drops, s.interval)).collect();
    assert_eq!(found, [("here", 1, secs(9))]);
    assert_eq!(store.take("other", |_| true, Instant::ORIGIN), []);
}

/// fault 76: while no report is sent, names that are added and removed do not accumulate without limit.
#[test]
fn dropped_clusters_are_limited() {
    let store = LoadStore::default();
    let kept = store.cluster("lrs", "kept", None, Instant::ORIGIN);
    kept.shed().count();
    for i in 0..10_000 {
        store.cluster("lrs", &format!("gone{i}"), None, Instant::ORIGIN).shed().count();
        kept.drops(&format!("gone{i}").into()).count();
        let locality = kept.locality(Some(&zone(&format!("gone{i}"))), &BackendMetrics::default());
        locality.start();
        locality.finish(&CallOutcome::Cancelled);
    }
    let stats = store.take("lrs", |_| true, Instant::ORIGIN);
    assert!((1..=1_000).contains(&stats.len()), "{}", stats.len());
    let kept = stats.iter().find(|s| &*s.cluster == "kept").unwrap();
    assert!((1..=1_000).contains(&kept.drops.len()) && (1..=1_000).contains(&kept.localities.len()));
}

/// Counts are keyed by load reporting server, cluster name and EDS service name.
#[test]
fn channels_share_the_counts_of_a_cluster() {
    let store = Arc::new(LoadStore::default());
    let same = [json!({}), json!({"lrsLoadReportingServer": {"server_uri": "lrs"}})];
    let other =
        [json!({"edsServiceName": "eds"}), json!({"cluster": "d"}), json!({"lrsLoadReportingServer": "x"})];
    for settings in same.iter().chain(&other) {
        sim(&store, &cluster(settings), testkit::endpoints(["a"])).picks(1);
    }
    let take = |server: &str| -> Vec<_> {
        let stats = store.take(server, |_| true, Instant::ORIGIN);
        stats.into_iter().map(|s| (s.cluster, s.eds_service_name, s.localities[0].issued)).collect()
    };
    let eds = Some("eds".into());
    assert_eq!(take("lrs"), [("c".into(), None, 2), ("c".into(), eds, 1), ("d".into(), None, 1)]);
    assert_eq!(take("x"), [("c".into(), None, 1)]);
}

/// LRS-5: while some threads make calls and another takes reports, no call is lost or counted twice.
#[test]
fn no_call_is_lost_or_counted_twice() {
    const THREADS: u64 = 6;
    const CALLS: u64 = 30_000;
    let store = Arc::new(LoadStore::default());
    let drops = json!([{"category": "lb", "requestsPerMillion": 100_000}]);
    let config = cluster(&json!({
        "dropCategories": drops, "maxConcurrentRequests": 20, "lrsReportEndpointMetrics": ["named_metrics.*"],
    }));
    let sim = sim(&store, &config, Endpoints::list([in_zone("a", "x"), in_zone("b", "y")]));
    let (picker, done) = (sim.picker(), AtomicBool::new(false));
    let report = named(&[("k", 1.0), ("l", 2.0)]);
    let mut all: Vec<ClusterStats> = Vec::new();
    let mut sent = [0; 4];
    std::thread::scope(|scope| {
        let taker = scope.spawn(|| {
            let mut all = Vec::new();
            while !done.load(Ordering::Acquire) {
                all.extend(take(&store, Instant::ORIGIN));
            }
            all
        });
        let callers: Vec<_> = (0..THREADS)
            .map(|seed| {
                let (picker, report) = (&picker, &report);
                scope.spawn(move || {
                    let mut rng = Rng::fixed(seed);
                    let (mut sent, mut held) = ([0; 4], Vec::new());
                    let finish = |trackers: evenkeel_core::CallTrackers, how| {
                        let code = if how < 4 { Code::Ok } else { Code::Unavailable };
                        match how {
                            6 => trackers.finish(&CallOutcome::Unsent),
                            7 => drop(trackers),
                            _ => {
                                let at = Instant::ORIGIN;
                                trackers.finish(&CallOutcome::Finished { code, at, load: Some(report) });
                            }
                        }
                        match how {
                            0..4 => 1,
                            6 => 0,
                            _ => 2,
                        }
                    };
                    for _ in 0..CALLS {
                        match picker.pick(&PickArgs::new("/s/m", rng.next_u64())) {
                            PickResult::Complete(_, trackers) => held.push(trackers),
                            PickResult::Drop(_) => sent[3] += 1,
                            other => panic!("{other:?}"),
                        }
                        if held.len() as u64 > rng.below(6) {
                            sent[finish(held.swap_remove(0), rng.below(8))] += 1;
                        }
                    }
                    for trackers in held {
                        sent[finish(trackers, 0)] += 1;
                    }
                    sent
                })
            })
            .collect();
        for caller in callers {
            let counted: [u64; 4] = caller.join().unwrap();
            sent.iter_mut().zip(counted).for_each(|(all, n)| *all += n);
        }
        done.store(true, Ordering::Release);
        all = taker.join().unwrap();
    });
    all.extend(take(&store, Instant::ORIGIN));
    let each = || all.iter().flat_map(|stats| &stats.localities);
    let [succeeded, failed] = [each().map(|s| s.succeeded).sum(), each().map(|s| s.failed).sum::<u64>()];
    assert_eq!([succeeded, failed], [sent[1], sent[2]]);
    // Calls that turned out unsent after the second-last report may still be subtracted from later calls.
    let issued: u64 = each().map(|s| s.issued).sum();
    assert!((0..=20).contains(&(issued - succeeded - failed)), "{issued} {sent:?}");
    assert!(each().all(|s| s.in_progress <= 20));
    assert_eq!(all.iter().map(|s| s.total_drops).sum::<u64>(), sent[3]);
    assert_eq!(all.last().map(|s| s.localities.iter().map(|s| s.in_progress).sum::<u64>()), Some(0));
    let (k, l) = each().fold((sum(0, 0.0), sum(0, 0.0)), |(mut k, mut l), stats| {
        for (key, metric) in &stats.named_metrics {
            let all = if key == "k" { &mut k } else { &mut l };
            *all = MetricSum { count: all.count + metric.count, total: all.total + metric.total };
        }
        (k, l)
    });
    assert_eq!((k.total, l.total), (k.count as f64, 2.0 * k.count as f64));
    assert!(k.count == l.count && k.count >= succeeded, "{k:?} {succeeded}");
}

#[test]
fn the_description_shows_the_server_and_the_counts() {
    let store = Arc::new(LoadStore::default());
    let mut sim = sim(&store, &cluster(&json!({})), Endpoints::list([in_zone("a", "x")]));
    sim.picks(2);
    let held = sim.pick();
    take_localities(&store);
    let details = sim.describe().details;
    assert_eq!(details["lrsLoadReportingServer"], "lrs");
    let x = r#"{region="", zone="x", sub_zone=""}"#;
    let load = json!([{"locality": x, "issued": 3, "succeeded": 2, "failed": 0, "inProgress": 1}]);
    assert_eq!(details["load"], load);
    drop(held);
}

/// An equal config with equal endpoints keeps the picker. Another server, or other metrics, publish a new
/// one.
#[test]
fn the_picker_is_kept_while_reporting_is_unchanged() {
    let endpoints = Endpoints::list([in_zone("a", "x"), in_zone("b", "y")]);
    let mut sim = CoreSim::new(&metrics(&["cpu_utilization"]), endpoints.clone()).all_up();
    for (config, published) in [
        (metrics(&["cpu_utilization"]), 0),
        (metrics(&[]), 1),
        (cluster(&json!({"lrsLoadReportingServer": "other"})), 1),
        (cluster(&json!({"lrsLoadReportingServer": null})), 1),
        (cluster(&json!({"lrsLoadReportingServer": null})), 0),
    ] {
        sim.published();
        sim.update(&config, endpoints.clone());
        assert_eq!(sim.published(), published, "{config}");
    }
    sim.advance(Duration::ZERO);
    assert_eq!(sim.published(), 0);
}

/// Connections that a sibling cluster makes in the same pass do not change the picker in the next. The
/// simulation checks this.
#[test]
fn connections_of_other_clusters_do_not_matter() {
    let child = |name: &str| json!({"childPolicy": cluster(&json!({"cluster": name}))});
    let config = json!([{"xds_cluster_manager_experimental": {"children": {"one": child("one"), "two": child("two")}}}]);
    let two = |first, second| Endpoints::list([in_zone(first, "x"), in_zone(second, "y")]);
    let endpoints = Endpoints::groups([("one", two("a", "b")), ("two", two("c", "d"))]);
    let mut sim = CoreSim::new(&config, endpoints).all_up();
    assert_eq!(sim.pick_with(|call| call.with_cluster("two")).finish_ok(), "c");
}

#[test]
fn a_server_needs_a_uri() {
    for (server, problem) in [
        (json!(""), "lrsLoadReportingServer: expected a server URI, or an object with one as serverUri"),
        (json!({}), "lrsLoadReportingServer: expected a server URI, or an object with one as serverUri"),
        (json!(7), "lrsLoadReportingServer: expected an object, found 7"),
        (json!({"serverUri": 7}), "lrsLoadReportingServer.serverUri: expected a string, found 7"),
    ] {
        let error = Registry::standard().parse(&cluster(&json!({"lrsLoadReportingServer": server})));
        let error = error.unwrap_err().to_string();
        assert!(error.ends_with(problem), "{error}");
    }
}
