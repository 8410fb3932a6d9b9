//! LRS streams to control planes, and the load reports on them.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::cluster::BackendMetrics;
use evenkeel_core::load::{ClusterLoad, LoadStore};
use evenkeel_core::{CallOutcome, Code, Instant, LoadReport, Locality, Rng, Status};
use evenkeel_proto::envoy::config::core::v3::Node;
use evenkeel_proto::envoy::config::endpoint::v3::{ClusterStats, UpstreamLocalityStats};
use evenkeel_proto::envoy::service::load_stats::v3::{LoadStatsRequest, LoadStatsResponse};
use evenkeel_proto::prost::Message as _;
use evenkeel_proto::prost_types;
use evenkeel_xds::lrs::{LrsClient, LrsEffect, LrsStreamId};
use proptest::prelude::*;
use testkit::secs;

const NODE: &str = "send node \"me\" [\"ours\", \"envoy.lrs.supports_send_all_clusters\"]";

const FITS: &str = "a string takes all";

/// LRS client with its clock and the last stream that it opened.
struct LrsScript {
    store: Arc<LoadStore>,
    reporter: LrsClient,
    now: Instant,
    stream: Option<LrsStreamId>,
}

impl LrsScript {
    fn new() -> LrsScript {
        let store = Arc::new(LoadStore::default());
        let node = Node { id: "me".to_owned(), client_features: vec!["ours".to_owned()], ..Node::default() };
        let reporter = LrsClient::new(node, store.clone(), Rng::fixed(1));
        LrsScript { store, reporter, now: Instant::ORIGIN, stream: None }
    }

    /// Returns a script in which cluster "c" counts calls, and its open stream has received this response.
    fn reporting(response: &LoadStatsResponse) -> (LrsScript, Arc<ClusterLoad>) {
        let mut lrs = LrsScript::new();
        let load = lrs.cluster("c");
        assert_eq!(lrs.poll(), ["open lrs"]);
        assert_eq!(lrs.opened(), [NODE]);
        assert_eq!(lrs.response(response), [""; 0]);
        (lrs, load)
    }

    fn cluster(&self, name: &str) -> Arc<ClusterLoad> {
        self.store.cluster("lrs", name, None, self.now)
    }

    /// Polls the client and returns its effects as text.
    fn poll(&mut self) -> Vec<String> {
        let effects = self.reporter.poll(self.now);
        let mut words = Vec::new();
        for effect in effects {
            words.push(match effect {
                LrsEffect::Open { stream, server } => {
                    self.stream = Some(stream);
                    format!("open {server}")
                }
                LrsEffect::Send { stream, request } => {
                    assert_eq!(Some(stream), self.stream);
                    format!("send {}", told(&request))
                }
                LrsEffect::Close { stream } => {
                    assert_eq!(Some(stream), self.stream);
                    "close".to_owned()
                }
                LrsEffect::Warn(text) => format!("warn {text}"),
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(self.reporter.poll(self.now), [], "a second look asks for nothing");
        words
    }

    fn stream(&self) -> LrsStreamId {
        self.stream.expect("a stream was opened")
    }

    fn opened(&mut self) -> Vec<String> {
        self.reporter.handle_opened(self.stream());
        self.poll()
    }

    fn response(&mut self, response: &LoadStatsResponse) -> Vec<String> {
        self.message(&response.encode_to_vec())
    }

    fn message(&mut self, bytes: &[u8]) -> Vec<String> {
        self.reporter.handle_message(self.stream(), bytes, self.now);
        self.poll()
    }

    fn closed(&mut self, status: &Status) -> Vec<String> {
        self.reporter.handle_closed(self.stream(), status, self.now);
        self.poll()
    }

    /// Advances the time and returns the effects, each with the time since the start.
    fn advance(&mut self, by: Duration) -> Vec<(Duration, String)> {
        let end = self.now + by;
        let mut done = Vec::new();
        while let Some(at) = self.reporter.next_deadline().filter(|at| *at <= end) {
            assert!(at > self.now || !done.is_empty(), "no time goes by");
            self.now = at;
            let since = at.since(Instant::ORIGIN);
            done.extend(self.poll().into_iter().map(|words| (since, words)));
        }
        self.now = end;
        let since = end.since(Instant::ORIGIN);
        done.extend(self.poll().into_iter().map(|words| (since, words)));
        done
    }
}

/// Returns a request as text.
fn told(request: &LoadStatsRequest) -> String {
    let node = request.node.iter().map(|node| format!("node {:?} {:?}", node.id, node.client_features));
    let parts: Vec<String> = node.chain(request.cluster_stats.iter().map(told_cluster)).collect();
    if parts.is_empty() { "nothing".to_owned() } else { parts.join("; ") }
}

fn told_cluster(stats: &ClusterStats) -> String {
    let interval = stats.load_report_interval.as_ref().expect("every report has one");
    let interval = Duration::new(interval.seconds as u64, interval.nanos as u32);
    let service = &stats.cluster_service_name;
    let mut words = format!("{}/{service} {interval:?}", stats.cluster_name);
    for drops in &stats.dropped_requests {
        write!(words, " {} dropped {}", drops.dropped_count, drops.category).expect(FITS);
    }
    if stats.total_dropped_requests > 0 {
        write!(words, " {} dropped", stats.total_dropped_requests).expect(FITS);
    }
    for locality in &stats.upstream_locality_stats {
        words += &told_locality(locality);
    }
    words
}

fn told_locality(stats: &UpstreamLocalityStats) -> String {
    let place = stats.locality.as_ref().expect("every entry has one");
    let mut words = format!(
        " {}.{}.{}: {} issued {} ok {} failed {} open",
        place.region,
        place.zone,
        place.sub_zone,
        stats.total_issued_requests,
        stats.total_successful_requests,
        stats.total_error_requests,
        stats.total_requests_in_progress,
    );
    let own = [&stats.cpu_utilization, &stats.mem_utilization, &stats.application_utilization];
    for (name, sum) in ["cpu", "mem", "app"].into_iter().zip(own) {
        if let Some(sum) = sum {
            write!(words, " {name} {}/{}", sum.total_metric_value, sum.num_requests_finished_with_metric)
                .expect(FITS);
        }
    }
    for sum in &stats.load_metric_stats {
        let count = sum.num_requests_finished_with_metric;
        write!(words, " {} {}/{count}", sum.metric_name, sum.total_metric_value).expect(FITS);
    }
    words
}

/// Returns a response that requests reports of all clusters at this interval.
fn all(every: i64) -> LoadStatsResponse {
    LoadStatsResponse {
        send_all_clusters: true,
        load_reporting_interval: Some(prost_types::Duration { seconds: every, nanos: 0 }),
        ..LoadStatsResponse::default()
    }
}

/// Returns a response that requests reports of these clusters at this interval.
fn only(clusters: &[&str], every: i64) -> LoadStatsResponse {
    LoadStatsResponse {
        clusters: clusters.iter().map(|name| (*name).to_owned()).collect(),
        load_reporting_interval: Some(prost_types::Duration { seconds: every, nanos: 0 }),
        ..LoadStatsResponse::default()
    }
}

/// Counts a call to a zone of the cluster, with its status and load report.
fn call(load: &ClusterLoad, zone: &str, metrics: &BackendMetrics, code: Code, report: Option<&LoadReport>) {
    let locality = Arc::new(Locality { zone: zone.to_owned(), ..Locality::default() });
    let load = load.locality(Some(&locality), metrics);
    load.start();
    load.finish(&CallOutcome::Finished { code, at: Instant::ORIGIN, load: report });
}

fn ok(load: &ClusterLoad) {
    call(load, "z", &BackendMetrics::default(), Code::Ok, None);
}

fn at(seconds: u64, words: &str) -> (Duration, String) {
    (secs(seconds), words.to_owned())
}

/// LRS-1, LRS-2: a stream is opened once a cluster reports to the server. The client sends its node and waits for a
/// response.
#[test]
fn sends_the_node_and_waits() {
    let mut lrs = LrsScript::new();
    assert_eq!(lrs.poll(), [""; 0]);
    assert_eq!(lrs.reporter.next_deadline(), None);
    let load = lrs.cluster("c");
    assert_eq!(lrs.poll(), ["open lrs"]);
    ok(&load);
    assert_eq!(lrs.opened(), [NODE]);
    assert_eq!(lrs.opened(), [""; 0], "once");
    assert_eq!(lrs.advance(secs(1_000)), []);
    assert_eq!(lrs.response(&all(5)), [""; 0]);
    let report = "send c/ 1005s .z.: 1 issued 1 ok 0 failed 0 open";
    assert_eq!(lrs.advance(secs(5)), [at(1_005, report)]);
}

/// LRS-2: the client feature is not added twice.
#[test]
fn a_feature_that_is_there_is_not_added() {
    let features = vec!["envoy.lrs.supports_send_all_clusters".to_owned()];
    let node = Node { client_features: features.clone(), ..Node::default() };
    let store = Arc::new(LoadStore::default());
    let mut reporter = LrsClient::new(node, store.clone(), Rng::fixed(1));
    let _load = store.cluster("lrs", "c", None, Instant::ORIGIN);
    let [LrsEffect::Open { stream, .. }] = reporter.poll(Instant::ORIGIN)[..] else { panic!() };
    reporter.handle_opened(stream);
    let effects = reporter.poll(Instant::ORIGIN);
    let [LrsEffect::Send { request, .. }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(request.node.as_ref().unwrap().client_features, features);
}

/// LRS-3: a missing, invalid or shorter interval becomes one second.
#[test]
fn intervals_are_held_to_a_second() {
    let interval = |seconds, nanos| Some(prost_types::Duration { seconds, nanos });
    for (given, expected, warns) in [
        (interval(7, 500_000_000), 7_500, false),
        (interval(1, 0), 1_000, false),
        (interval(0, 999_999_999), 1_000, false),
        (interval(0, 0), 1_000, false),
        (None, 1_000, false),
        (interval(-1, 0), 1_000, true),
        (interval(5, -1), 1_000, true),
        (interval(i64::MAX, 0), 1_000, true),
        (interval(1, i32::MAX), 1_000, true),
    ] {
        let mut lrs = LrsScript::new();
        let _load = lrs.cluster("c");
        lrs.poll();
        lrs.opened();
        let response = LoadStatsResponse { load_reporting_interval: given, ..all(0) };
        let warnings = lrs.response(&response);
        assert_eq!(warnings.len(), usize::from(warns), "{given:?} {warnings:?}");
        assert!(warnings.iter().all(|text| text.contains("load_reporting_interval: expected seconds")));
        let due = lrs.reporter.next_deadline();
        assert_eq!(due, Some(Instant::ORIGIN + Duration::from_millis(expected)), "{given:?}");
        assert_eq!(lrs.advance(Duration::from_millis(expected)).len(), 1);
    }
    // The longest duration of protobuf does not overflow.
    let (lrs, _load) = LrsScript::reporting(&all(315_576_000_000));
    assert!(lrs.reporter.next_deadline() > Some(Instant::ORIGIN + secs(1 << 33)));
}

/// LRS-3: only requested clusters are reported, and another response takes effect at once.
#[test]
fn only_clusters_that_are_asked_for_are_reported() {
    let (mut lrs, c) = LrsScript::reporting(&only(&["c", "absent"], 10));
    let d = lrs.cluster("d");
    ok(&c);
    ok(&d);
    assert_eq!(lrs.advance(secs(10)), [at(10, "send c/ 10s .z.: 1 issued 1 ok 0 failed 0 open")]);
    lrs.now += secs(4);
    assert_eq!(lrs.response(&only(&["d"], 10)), [""; 0]);
    ok(&c);
    assert_eq!(lrs.advance(secs(6)), [at(20, "send d/ 20s .z.: 1 issued 1 ok 0 failed 0 open")]);
    // A new interval counts from the last report.
    lrs.now += secs(3);
    assert_eq!(lrs.response(&all(2)), ["send c/ 13s .z.: 1 issued 1 ok 0 failed 0 open"]);
    assert_eq!(lrs.advance(secs(2)), [at(25, "send nothing")]);
    // An empty list requests no cluster.
    ok(&c);
    assert_eq!(lrs.response(&only(&[], 5)), [""; 0]);
    assert_eq!(lrs.advance(secs(5)), [at(30, "send nothing")]);
    lrs.response(&all(5));
    assert_eq!(lrs.advance(secs(5)), [at(35, "send c/ 10s .z.: 1 issued 1 ok 0 failed 0 open")]);
}

/// LRS-3: repeated responses with the same content do not change the report times.
#[test]
fn repeated_responses_change_nothing() {
    let (mut lrs, _load) = LrsScript::reporting(&all(10));
    for second in 1..10 {
        assert_eq!(lrs.advance(secs(1)), [], "{second}");
        assert_eq!(lrs.response(&all(10)), [""; 0]);
    }
    assert_eq!(lrs.advance(secs(1)), [at(10, "send nothing")]);
}

/// LRS-4, LRS-5, LRS-6, LRS-10, LRS-12: a report contains all counters and metrics of each cluster and locality.
#[test]
fn a_report_in_full() {
    let (mut lrs, c) = LrsScript::reporting(&all(10));
    let eds = lrs.store.cluster("lrs", "c", Some("eds"), lrs.now);
    let some = BackendMetrics {
        cpu_utilization: true,
        mem_utilization: true,
        application_utilization: true,
        named: ["k".to_owned()].into(),
        ..BackendMetrics::default()
    };
    let every = BackendMetrics { all_named: true, ..BackendMetrics::default() };
    let report = LoadReport {
        cpu_utilization: 0.5,
        mem_utilization: 0.25,
        application_utilization: 1.5,
        named_metrics: vec![("k".to_owned(), 2.0), ("l".to_owned(), 3.0)],
        ..LoadReport::default()
    };
    call(&c, "a", &some, Code::Ok, Some(&report));
    call(&c, "a", &some, Code::Unavailable, Some(&report));
    call(&c, "a", &every, Code::Ok, Some(&report));
    call(&c, "b", &BackendMetrics::default(), Code::Ok, Some(&report));
    let open = eds.locality(None, &BackendMetrics::default());
    open.start();
    c.drops(&"lb".into()).count();
    c.drops(&"lb".into()).count();
    c.drops(&"throttle".into()).count();
    c.shed().count();
    let sent = lrs.advance(Duration::from_millis(10_250));
    let expected = "send \
        c/ 10s 2 dropped lb 1 dropped throttle 4 dropped \
        .a.: 1 issued 1 ok 0 failed 0 open named_metrics.k 2/1 named_metrics.l 3/1 \
        .a.: 2 issued 1 ok 1 failed 0 open cpu 1/2 mem 0.5/2 app 3/2 named_metrics.k 4/2 \
        .b.: 1 issued 1 ok 0 failed 0 open; \
        c/eds 10s ..: 1 issued 0 ok 0 failed 1 open";
    assert_eq!(sent, [at(10, expected)]);
    // A late report covers the whole time since the last one.
    lrs.now += Duration::from_millis(10_500);
    assert_eq!(lrs.poll(), ["send c/eds 10.75s ..: 0 issued 0 ok 0 failed 1 open"]);
    open.finish(&CallOutcome::Unsent);
    assert_eq!(lrs.advance(secs(10)), [(Duration::from_millis(30_750), "send nothing".to_owned())]);
}

/// LRS-7, fault 76: a failed stream is reopened with exponential backoff, and no counts are lost.
#[test]
fn a_stream_that_fails_is_opened_again() {
    for status in [Status::unavailable("gone"), Status::new(Code::Unimplemented, "no such service")] {
        let mut lrs = LrsScript::new();
        let load = lrs.cluster("c");
        assert_eq!(lrs.poll(), ["open lrs"]);
        let mut nominal = 1.0;
        for attempt in 0..20 {
            ok(&load);
            if attempt % 2 == 1 {
                assert_eq!(lrs.opened(), [NODE]);
            }
            let warned = lrs.closed(&status);
            assert_eq!(warned.len(), usize::from(attempt == 0), "logged once");
            let due = lrs.reporter.next_deadline().unwrap();
            let wait = due.since(lrs.now).as_secs_f64();
            assert!((nominal * 0.8..=nominal * 1.2).contains(&wait), "{attempt}: {wait}");
            lrs.now = Instant::from_nanos(due.as_nanos() - 1);
            assert_eq!(lrs.poll(), [""; 0]);
            lrs.now = due;
            assert_eq!(lrs.poll(), ["open lrs"]);
            nominal = f64::min(nominal * 1.6, 120.0);
        }
        lrs.opened();
        lrs.response(&all(10));
        let report = lrs.advance(secs(10));
        assert!(report[0].1.ends_with(" .z.: 20 issued 20 ok 0 failed 0 open"), "{report:?}");
        // A response resets the backoff. The stream lived longer than the first backoff, so it is reopened at once.
        assert_eq!(lrs.closed(&status), ["open lrs"]);
        lrs.closed(&status);
        let wait = lrs.reporter.next_deadline().unwrap().since(lrs.now);
        assert!((0.8..=1.2).contains(&wait.as_secs_f64()), "{wait:?}");
    }
}

/// LRS-7: the warning names the server and quotes its status message, truncated and escaped.
#[test]
fn the_first_failure_is_logged() {
    let mut lrs = LrsScript::new();
    let _load = lrs.cluster("c");
    lrs.poll();
    let words = lrs.closed(&Status::unavailable(format!("\u{1b}[31m{}", "x".repeat(10_000))));
    let shown = format!("\"\\u{{1b}}[31m{}\"...", "x".repeat(507));
    let expected =
        format!("warn load reports to \"lrs\": the stream ended with Unavailable {shown}; it is retried");
    assert_eq!(words, [expected]);
}

/// LRS-7: with a server that ends the stream after each response, about one stream per second is opened.
#[test]
fn streams_that_end_after_a_response_reopen_once_a_second() {
    let mut lrs = LrsScript::new();
    let _load = lrs.cluster("c");
    let mut opened = lrs.poll().len();
    while lrs.now < Instant::ORIGIN + secs(100) {
        lrs.opened();
        lrs.response(&all(10));
        assert_eq!(lrs.closed(&Status::new(Code::Ok, "")), [""; 0]);
        lrs.now = lrs.reporter.next_deadline().unwrap();
        opened += lrs.poll().len();
    }
    assert!((80..=130).contains(&opened), "{opened}");
}

/// LRS-8: when the last cluster stops reporting, the last report is sent at once and the stream is closed.
#[test]
fn the_last_report_and_the_end() {
    let (mut lrs, load) = LrsScript::reporting(&all(10));
    let other = lrs.cluster("d");
    lrs.now += secs(3);
    ok(&load);
    drop(load);
    assert_eq!(lrs.poll(), [""; 0], "the other cluster still counts");
    assert_eq!(lrs.advance(secs(7)), [at(10, "send c/ 10s .z.: 1 issued 1 ok 0 failed 0 open")]);
    ok(&other);
    drop(other);
    lrs.now += secs(1);
    assert_eq!(lrs.poll(), ["send d/ 1s .z.: 1 issued 1 ok 0 failed 0 open", "close"]);
    assert_eq!((lrs.reporter.next_deadline(), lrs.store.servers()), (None, vec![]));
    // Late events of the old stream are ignored.
    let old = lrs.stream.unwrap();
    let again = lrs.cluster("c");
    assert_eq!(lrs.poll(), ["open lrs"]);
    assert_ne!(lrs.stream, Some(old));
    lrs.reporter.handle_opened(old);
    lrs.reporter.handle_message(old, &all(1).encode_to_vec(), lrs.now);
    lrs.reporter.handle_closed(old, &Status::unavailable("late"), lrs.now);
    assert_eq!(lrs.poll(), [""; 0]);
    drop(again);
}

/// LRS-8: the client waits up to one second for an open stream to be ready for the last report, and does not wait for
/// a failed stream.
#[test]
fn the_last_report_is_tried_not_forced() {
    let counted = |lrs: &mut LrsScript| ok(&lrs.cluster("c"));
    // The last cluster stops reporting before the server has responded.
    let mut lrs = LrsScript::new();
    counted(&mut lrs);
    assert_eq!(lrs.poll(), ["open lrs"]);
    assert_eq!(lrs.opened(), [NODE]);
    lrs.now += Duration::from_millis(900);
    let last = "send c/ 900ms .z.: 1 issued 1 ok 0 failed 0 open";
    assert_eq!(lrs.response(&all(10)), [last, "close"]);
    // No response within one second.
    let mut lrs = LrsScript::new();
    counted(&mut lrs);
    lrs.poll();
    lrs.opened();
    assert_eq!(lrs.advance(secs(1)), [at(1, "close")]);
    assert_eq!((lrs.reporter.next_deadline(), lrs.store.servers()), (None, vec![]));
    // The stream has failed.
    let mut lrs = LrsScript::new();
    counted(&mut lrs);
    lrs.poll();
    assert_eq!(lrs.closed(&Status::unavailable("gone")).len(), 1);
    assert_eq!((lrs.reporter.next_deadline(), lrs.store.servers()), (None, vec![]));
    // A cluster reports again within the second.
    let mut lrs = LrsScript::new();
    counted(&mut lrs);
    lrs.poll();
    let load = lrs.cluster("c");
    assert_eq!(lrs.advance(secs(10)), []);
    drop(load);
}

/// Each server has its own stream.
#[test]
fn every_server_has_its_stream() {
    let store = Arc::new(LoadStore::default());
    let mut reporter = LrsClient::new(Node::default(), store.clone(), Rng::fixed(1));
    let _loads = ["one", "two"].map(|server| store.cluster(server, "c", None, Instant::ORIGIN));
    let opened: Vec<_> = reporter
        .poll(Instant::ORIGIN)
        .into_iter()
        .map(|effect| match effect {
            LrsEffect::Open { stream, server } => (stream, server.to_string()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(opened.iter().map(|(_, server)| &**server).collect::<Vec<_>>(), ["one", "two"]);
    assert_ne!(opened[0].0, opened[1].0);
    for (stream, _) in &opened {
        reporter.handle_opened(*stream);
    }
    reporter.handle_message(opened[1].0, &all(3).encode_to_vec(), Instant::ORIGIN);
    assert_eq!(reporter.poll(Instant::ORIGIN).len(), 2);
    let sent = reporter.poll(Instant::ORIGIN + secs(3));
    assert!(matches!(&sent[..], [LrsEffect::Send { stream, .. }] if *stream == opened[1].0), "{sent:?}");
}

/// LRS-3: an invalid message is ignored with a warning. A response before the node was sent is ignored.
#[test]
fn invalid_messages_are_ignored() {
    let (mut lrs, _load) = LrsScript::reporting(&all(10));
    let words = lrs.message(&[0xff; 3]);
    assert!(
        words[0].starts_with("warn load reports to \"lrs\": a response cannot be decoded and is ignored: ")
    );
    assert_eq!(lrs.advance(secs(10)), [at(10, "send nothing")]);
    let response = LoadStatsResponse { report_endpoint_granularity: true, ..all(10) };
    let words = "warn load reports to \"lrs\": load per endpoint is requested but not reported: \
        localities are the smallest unit";
    assert_eq!(lrs.response(&response), [words]);
    let mut lrs = LrsScript::new();
    let _load = lrs.cluster("c");
    lrs.poll();
    assert_eq!(lrs.response(&all(1)), [""; 0]);
    assert_eq!(lrs.reporter.next_deadline(), None, "the node was not sent");
}

/// fault 76: named metrics beyond the limit are omitted with a warning.
#[test]
fn omitted_metrics_are_logged() {
    let (mut lrs, load) = LrsScript::reporting(&all(10));
    let every = BackendMetrics { all_named: true, ..BackendMetrics::default() };
    for i in 0..10_000 {
        let named_metrics = vec![(format!("key{i}"), 1.0)];
        let report = LoadReport { named_metrics, ..LoadReport::default() };
        call(&load, "z", &every, Code::Ok, Some(&report));
    }
    let words = lrs.advance(secs(10));
    let warning = "warn load reports to \"lrs\": backends report too many named metrics; \
        some of cluster \"c\" are omitted";
    assert_eq!((words.len(), &*words[0].1), (2, warning));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Arbitrary bytes from a server cause no panic, and reporting continues.
    #[test]
    fn any_response_is_survived(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..10)) {
        let (mut lrs, _load) = LrsScript::reporting(&all(10));
        for message in messages {
            lrs.message(&message);
            let due = lrs.reporter.next_deadline().unwrap();
            prop_assert!(due >= lrs.now);
        }
    }
}
