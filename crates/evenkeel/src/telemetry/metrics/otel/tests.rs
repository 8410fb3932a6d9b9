//! Every instrument as an exporter sees it: name, kind, unit, buckets, and each series with its labels.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{
    BackendLabels, Code, DetectionMethod, Instant, LbLabels, Measurement, OutlierCounts, Registry, Rng,
    UnenforcedReason, WeightUpdate,
};
use evenkeel_http2::Reason;
use evenkeel_orca::IgnoredReason;
use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::service::discovery::v3::DiscoveryResponse;
use evenkeel_proto::prost::Message as _;
use evenkeel_xds::ads::{AdsClient, AdsEffect, AdsEvent, XdsVariant};
use evenkeel_xds::bootstrap::Bootstrap;
use evenkeel_xds::resource::{ResourceParser, ResourceType};
use opentelemetry::KeyValue;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ResourceMetrics, ScopeMetrics};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};

use testkit::resources;

use super::{ChannelMetrics, Metric, MetricLabel, OtelMetrics, OtelMetricsBuilder};
use crate::telemetry::metrics::{DisconnectReason, SecurityLevel};

const TARGET: &str = "xds:///orders";

/// Meter provider with an in-memory exporter.
struct Exported {
    provider: SdkMeterProvider,
    exporter: InMemoryMetricExporter,
}

/// One metric as the exporter received it.
#[derive(Debug, Default, PartialEq)]
struct RecordedMetric {
    kind: &'static str,
    unit: String,
    bounds: Vec<f64>,
    /// Map from labels, as `a=x b=y`, to the value; for a histogram `count/sum`.
    series: BTreeMap<String, String>,
}

impl Exported {
    fn new() -> Exported {
        let exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exporter.clone()).build();
        Exported { provider: SdkMeterProvider::builder().with_reader(reader).build(), exporter }
    }

    /// Returns the metrics of a channel with these settings.
    fn metrics(&self, choose: impl FnOnce(OtelMetricsBuilder) -> OtelMetricsBuilder) -> ChannelMetrics {
        let metrics = choose(OtelMetrics::builder(&self.provider)).build();
        ChannelMetrics::from(&metrics).for_target(TARGET.into())
    }

    /// Returns the metrics of a channel with everything enabled.
    fn all(&self) -> ChannelMetrics {
        self.metrics(everything)
    }

    /// Returns the metrics exported so far, by name.
    fn seen(&self) -> BTreeMap<String, RecordedMetric> {
        self.exporter.reset();
        self.provider.force_flush().unwrap();
        let exported = self.exporter.get_finished_metrics().unwrap();
        let scopes = exported.iter().flat_map(ResourceMetrics::scope_metrics);
        scopes
            .inspect(|scope| {
                assert_eq!(scope.scope().name(), "evenkeel");
                assert_eq!(scope.scope().version(), Some(env!("CARGO_PKG_VERSION")));
            })
            .flat_map(ScopeMetrics::metrics)
            .map(|metric| {
                assert!(!metric.description().is_empty());
                let mut seen = match metric.data() {
                    AggregatedMetrics::F64(data) => seen(data),
                    AggregatedMetrics::U64(data) => seen(data),
                    AggregatedMetrics::I64(data) => seen(data),
                };
                metric.unit().clone_into(&mut seen.unit);
                (metric.name().to_owned(), seen)
            })
            .collect()
    }

    /// Returns the series of one metric; empty if it was not exported.
    fn series(&self, metric: Metric) -> Vec<(String, String)> {
        self.seen().remove(metric.name()).unwrap_or_default().series.into_iter().collect()
    }
}

fn everything(builder: OtelMetricsBuilder) -> OtelMetricsBuilder {
    let labels = [
        MetricLabel::Locality,
        MetricLabel::BackendService,
        MetricLabel::DisconnectError,
        MetricLabel::SecurityLevel,
    ];
    labels.into_iter().fold(builder.enable(Metric::ALL), OtelMetricsBuilder::label)
}

fn seen<T: Copy + Display>(data: &MetricData<T>) -> RecordedMetric {
    match data {
        MetricData::Gauge(gauge) => {
            let series =
                gauge.data_points().map(|point| (labels(point.attributes()), point.value().to_string()));
            RecordedMetric { kind: "gauge", series: series.collect(), ..RecordedMetric::default() }
        }
        MetricData::Sum(sum) => {
            let series =
                sum.data_points().map(|point| (labels(point.attributes()), point.value().to_string()));
            let kind = if sum.is_monotonic() { "counter" } else { "up-down counter" };
            RecordedMetric { kind, series: series.collect(), ..RecordedMetric::default() }
        }
        MetricData::Histogram(histogram) => {
            let bounds =
                histogram.data_points().next().map(|point| point.bounds().collect()).unwrap_or_default();
            let series = histogram
                .data_points()
                .map(|point| (labels(point.attributes()), format!("{}/{}", point.count(), point.sum())));
            RecordedMetric {
                kind: "histogram",
                bounds,
                series: series.collect(),
                ..RecordedMetric::default()
            }
        }
        MetricData::ExponentialHistogram(_) => panic!("nobody asked for one"),
    }
}

/// Formats the labels sorted by name, without the prefix `grpc.`.
fn labels<'a>(attributes: impl Iterator<Item = &'a KeyValue>) -> String {
    let mut all: Vec<String> = attributes
        .map(|label| {
            let name = label.key.as_str();
            // Labels with the prefix `evenkeel.` keep it.
            let name = name.strip_prefix("grpc.").unwrap_or(name);
            format!("{name}={}", label.value.as_str())
        })
        .collect();
    all.sort_unstable();
    all.join(" ")
}

fn one(labels: &str, value: &str) -> Vec<(String, String)> {
    vec![(labels.to_owned(), value.to_owned())]
}

fn place() -> BackendLabels {
    BackendLabels { backend_service: "pay".into(), locality: LOCALITY.into(), hostname: None }
}

fn at() -> LbLabels {
    LbLabels { backend_service: Some("pay".into()), locality: Some(LOCALITY.into()) }
}

const LOCALITY: &str = "{region=\"r\", zone=\"z\", sub_zone=\"\"}";

/// Returns a framed message of this length.
fn message(length: u8) -> Vec<u8> {
    [vec![0, 0, 0, 0, length], vec![7; length.into()]].concat()
}

/// Runs a call with a retry, a transparent retry and load reports.
async fn busy_call(metrics: &ChannelMetrics) {
    let place = place();
    let mut call = metrics.call("/shop.Orders/Get");
    let first = call.start_attempt();
    first.record_unpicked(Some("pay".into()));
    tokio::time::advance(Duration::from_secs(1)).await;
    first.finish(Code::Unavailable);
    call.transparently_retried();
    let second = call.start_attempt();
    second.record_picked(|| Some(&place));
    second.sent(&message(100));
    tokio::time::advance(Duration::from_secs(2)).await;
    second.finish(Code::Unavailable);
    tokio::time::advance(Duration::from_millis(500)).await;
    call.retried(Duration::from_millis(500));
    let third = call.start_attempt();
    third.record_picked(|| Some(&place));
    let body = third.clone();
    tokio::spawn(async move {
        body.sent(&message(100)[..50]);
        body.sent(&message(100)[50..]);
    })
    .await
    .unwrap();
    third.received(&[message(30), message(0), message(11)].concat());
    tokio::time::advance(Duration::from_secs(4)).await;
    third.finish(Code::Ok);
    third.finish(Code::Internal);
    drop(third);
    call.finish(Code::Ok);
    call.finish(Code::Internal);
}

/// A66, A78, A89, A96: a call with a transparent retry and one by policy.
#[tokio::test(start_paused = true)]
async fn calls_and_attempts() {
    let exported = Exported::new();
    busy_call(&exported.all()).await;
    let call = "method=shop.Orders/Get target=xds:///orders";
    assert_eq!(exported.series(Metric::AttemptStarted), one(call, "3"));
    let attempt = |locality: &str, status: &str| {
        format!(
            "lb.backend_service=pay lb.locality={locality} method=shop.Orders/Get status={status} target=xds:///orders"
        )
    };
    let attempts = |values: [&str; 3]| {
        let [ok, queued, failed] = values.map(str::to_owned);
        let mut all = vec![
            (attempt("", "UNAVAILABLE"), queued),
            (attempt(LOCALITY, "UNAVAILABLE"), failed),
            (attempt(LOCALITY, "OK"), ok),
        ];
        all.sort_unstable();
        all
    };
    assert_eq!(exported.series(Metric::AttemptDuration), attempts(["1/4", "1/1", "1/2"]));
    assert_eq!(exported.series(Metric::AttemptSentSize), attempts(["1/100", "1/0", "1/100"]));
    assert_eq!(exported.series(Metric::AttemptReceivedSize), attempts(["1/41", "1/0", "1/0"]));
    let finished = "method=shop.Orders/Get status=OK target=xds:///orders";
    assert_eq!(exported.series(Metric::CallDuration), one(finished, "1/7.5"));
    assert_eq!(exported.series(Metric::CallRetries), one(call, "1/1"));
    assert_eq!(exported.series(Metric::CallTransparentRetries), one(call, "1/1"));
    assert_eq!(exported.series(Metric::CallRetryDelay), one(call, "1/0.5"));
}

/// A66: dropping a call records CANCELLED. A96: a call without retries records none.
#[tokio::test(start_paused = true)]
async fn calls_that_are_dropped_were_cancelled() {
    let exported = Exported::new();
    let metrics = exported.metrics(|builder| builder.enable(Metric::ALL));
    let call = metrics.call("/shop.Orders/Get");
    let attempt = call.start_attempt();
    let body = attempt.clone();
    tokio::time::advance(Duration::from_secs(1)).await;
    drop((call, attempt));
    let cancelled = "method=shop.Orders/Get status=CANCELLED target=xds:///orders";
    assert_eq!(exported.series(Metric::CallDuration), one(cancelled, "1/1"));
    assert_eq!(exported.series(Metric::AttemptDuration), [], "its body is still on the way");
    body.sent(&message(3));
    drop(body);
    assert_eq!(exported.series(Metric::AttemptDuration), one(cancelled, "1/1"));
    assert_eq!(exported.series(Metric::AttemptSentSize), one(cancelled, "1/3"));
    let seen = exported.seen();
    for metric in [Metric::CallRetries, Metric::CallTransparentRetries, Metric::CallRetryDelay] {
        assert!(!seen.contains_key(metric.name()), "{metric:?}");
    }
}

/// A66: `grpc.status` uses gRPC's names of status codes.
#[tokio::test(start_paused = true)]
async fn every_code_has_its_name() {
    let exported = Exported::new();
    let metrics = exported.all();
    let codes = [
        (Code::Ok, "OK"),
        (Code::Cancelled, "CANCELLED"),
        (Code::Unknown, "UNKNOWN"),
        (Code::InvalidArgument, "INVALID_ARGUMENT"),
        (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"),
        (Code::NotFound, "NOT_FOUND"),
        (Code::AlreadyExists, "ALREADY_EXISTS"),
        (Code::PermissionDenied, "PERMISSION_DENIED"),
        (Code::ResourceExhausted, "RESOURCE_EXHAUSTED"),
        (Code::FailedPrecondition, "FAILED_PRECONDITION"),
        (Code::Aborted, "ABORTED"),
        (Code::OutOfRange, "OUT_OF_RANGE"),
        (Code::Unimplemented, "UNIMPLEMENTED"),
        (Code::Internal, "INTERNAL"),
        (Code::Unavailable, "UNAVAILABLE"),
        (Code::DataLoss, "DATA_LOSS"),
        (Code::Unauthenticated, "UNAUTHENTICATED"),
    ];
    let mut expected = Vec::new();
    for (code, name) in codes {
        metrics.call("a/B").finish(code);
        expected.push((format!("method=a/B status={name} target=xds:///orders"), "1/0".to_owned()));
    }
    expected.sort_unstable();
    assert_eq!(exported.series(Metric::CallDuration), expected);
}

/// A66, A79: default selection of metrics and labels.
#[tokio::test(start_paused = true)]
async fn what_is_experimental_is_off_by_default() {
    let exported = Exported::new();
    let metrics = exported.metrics(|builder| builder);
    assert!(!metrics.records_policies() && !metrics.needs_labels());
    feed(&metrics).await;
    let seen = exported.seen();
    let names: Vec<&str> = seen.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "evenkeel.client.load_reports.ignored",
            "grpc.client.attempt.duration",
            "grpc.client.attempt.rcvd_total_compressed_message_size",
            "grpc.client.attempt.sent_total_compressed_message_size",
            "grpc.client.attempt.started",
            "grpc.client.call.duration",
        ]
    );
    let labels = seen["grpc.client.attempt.duration"].series.keys().next().unwrap();
    assert_eq!(labels, "method=shop.Orders/Get status=OK target=xds:///orders", "no optional label");
}

/// A79: each metric can be enabled and disabled on its own. With none enabled, calls allocate nothing.
#[tokio::test(start_paused = true)]
async fn each_metric_is_a_choice() {
    for metric in Metric::ALL {
        let exported = Exported::new();
        let metrics = exported.metrics(|builder| builder.disable(Metric::ALL).enable([metric]));
        let xds = feed(&metrics).await;
        let seen = exported.seen();
        assert_eq!(seen.keys().collect::<Vec<_>>(), [metric.name()]);
        drop(xds);
    }
    let exported = Exported::new();
    let metrics = exported.metrics(|builder| builder.disable(Metric::ALL));
    let xds = feed(&metrics).await;
    assert!(exported.seen().is_empty());
    drop(xds);
}

/// Records every metric once.
pub(super) async fn feed(metrics: &ChannelMetrics) -> (super::XdsMeter, AdsClient) {
    busy_call(metrics).await;
    metrics.connect_failed(&at());
    drop(metrics.connected(at(), SecurityLevel::None));
    metrics.load_ignored(IgnoredReason::InvalidValue);
    metrics.record_measurement(&weighed());
    metrics.record_measurement(&outliers(None));
    metrics.record_measurement(&outliers(Some(UnenforcedReason::MaxEjectionOverflow)));
    let (meter, client) = (metrics.xds(), client());
    meter.publish(&client);
    (meter, client)
}

/// A66, A78, A91, A94, A96: every instrument has the kind, unit and buckets that its gRFC defines.
#[tokio::test(start_paused = true)]
async fn every_instrument_is_as_its_grfc_has_it() {
    let exported = Exported::new();
    let xds = feed(&exported.all()).await;
    let latency: &[f64] = &[
        0.0, 0.00001, 0.00005, 0.0001, 0.0003, 0.0006, 0.0008, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006,
        0.008, 0.01, 0.013, 0.016, 0.02, 0.025, 0.03, 0.04, 0.05, 0.065, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25,
        0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0,
    ];
    let size: &[f64] = &[
        0.0,
        1024.0,
        2048.0,
        4096.0,
        16384.0,
        65536.0,
        262_144.0,
        1_048_576.0,
        4_194_304.0,
        16_777_216.0,
        67_108_864.0,
        268_435_456.0,
        1_073_741_824.0,
        4_294_967_296.0,
    ];
    let sdk: &[f64] = &[
        0.0, 5.0, 10.0, 25.0, 50.0, 75.0, 100.0, 250.0, 500.0, 750.0, 1000.0, 2500.0, 5000.0, 7500.0, 10000.0,
    ];
    let expected: &[(&str, &str, &str, &[f64])] = &[
        ("evenkeel.client.load_reports.ignored", "counter", "{report}", &[]),
        ("grpc.client.attempt.duration", "histogram", "s", latency),
        ("grpc.client.attempt.rcvd_total_compressed_message_size", "histogram", "By", size),
        ("grpc.client.attempt.sent_total_compressed_message_size", "histogram", "By", size),
        ("grpc.client.attempt.started", "counter", "{attempt}", &[]),
        ("grpc.client.call.duration", "histogram", "s", latency),
        ("grpc.client.call.retries", "histogram", "{retry}", &[1.0, 2.0, 3.0, 4.0, 5.0]),
        ("grpc.client.call.retry_delay", "histogram", "s", latency),
        (
            "grpc.client.call.transparent_retries",
            "histogram",
            "{transparent_retry}",
            &[1.0, 2.0, 3.0, 4.0, 5.0, 10.0],
        ),
        ("grpc.lb.outlier_detection.ejections_enforced", "counter", "{ejection}", &[]),
        ("grpc.lb.outlier_detection.ejections_unenforced", "counter", "{ejection}", &[]),
        ("grpc.lb.wrr.endpoint_weight_not_yet_usable", "counter", "{endpoint}", &[]),
        ("grpc.lb.wrr.endpoint_weight_stale", "counter", "{endpoint}", &[]),
        ("grpc.lb.wrr.endpoint_weights", "histogram", "{weight}", sdk),
        ("grpc.lb.wrr.rr_fallback", "counter", "{update}", &[]),
        ("grpc.subchannel.connection_attempts_failed", "counter", "{attempt}", &[]),
        ("grpc.subchannel.connection_attempts_succeeded", "counter", "{attempt}", &[]),
        ("grpc.subchannel.disconnections", "counter", "{disconnection}", &[]),
        ("grpc.subchannel.open_connections", "up-down counter", "{connection}", &[]),
        ("grpc.xds_client.connected", "gauge", "{bool}", &[]),
        ("grpc.xds_client.resource_updates_invalid", "counter", "{resource}", &[]),
        ("grpc.xds_client.resource_updates_valid", "counter", "{resource}", &[]),
        ("grpc.xds_client.resources", "gauge", "{resource}", &[]),
        ("grpc.xds_client.server_failure", "counter", "{failure}", &[]),
    ];
    let seen = exported.seen();
    let all: Vec<_> = seen
        .iter()
        .map(|(name, seen)| (name.as_str(), seen.kind, seen.unit.as_str(), seen.bounds.as_slice()))
        .collect();
    assert_eq!(all, expected);
    drop(xds);
}

/// Ignored load reports, per RPC and out of band, are counted by reason.
#[tokio::test(start_paused = true)]
async fn load_reports_of_no_use_are_counted() {
    let exported = Exported::new();
    let metrics = exported.metrics(|builder| builder);
    metrics.call("/shop.Orders/Get").start_attempt().load_ignored(IgnoredReason::Repeated);
    metrics.call("/shop.Orders/Put").start_attempt().load_ignored(IgnoredReason::InvalidValue);
    metrics.load_ignored(IgnoredReason::InvalidValue);
    let series = |reason: &str, count: &str| {
        (format!("evenkeel.reason={reason} target=xds:///orders"), count.to_owned())
    };
    let expected = [series("bad_value", "2"), series("repeated", "1")];
    assert_eq!(exported.series(Metric::LoadReportsIgnored), expected);
}

/// A66: a method that the filter rejects is recorded as `other`.
#[tokio::test(start_paused = true)]
async fn methods_can_be_left_out() {
    let exported = Exported::new();
    let metrics = exported.metrics(|builder| builder.method_filter(|method| method == "shop.Orders/Get"));
    for path in ["/shop.Orders/Get", "/shop.Orders/Put", "/x"] {
        metrics.call(path).start_attempt().finish(Code::Ok);
    }
    let series =
        |method: &str, count: &str| (format!("method={method} target=xds:///orders"), count.to_owned());
    let mut expected = [series("shop.Orders/Get", "1"), series("other", "2")];
    expected.sort_unstable();
    assert_eq!(exported.series(Metric::AttemptStarted), expected);
}

/// A91, A89: optional labels are empty if locality and backend service are unknown.
#[tokio::test(start_paused = true)]
async fn unknown_places_are_empty() {
    let exported = Exported::new();
    let metrics = exported.all();
    let attempt = metrics.call("a/B").start_attempt();
    attempt.record_picked(|| None);
    attempt.finish(Code::Ok);
    let labels = "lb.backend_service= lb.locality= method=a/B status=OK target=xds:///orders";
    assert_eq!(exported.series(Metric::AttemptDuration), one(labels, "1/0"));
    metrics.connect_failed(&LbLabels::default());
    let labels = "lb.backend_service= lb.locality= target=xds:///orders";
    assert_eq!(exported.series(Metric::SubchannelConnectionAttemptsFailed), one(labels, "1"));
}

/// PF-14, PF-15: connection attempts, open connections and disconnects with their labels.
#[test]
fn connections() {
    let exported = Exported::new();
    let metrics = exported.all();
    metrics.connect_failed(&at());
    let mut first = metrics.connected(at(), SecurityLevel::PrivacyAndIntegrity);
    let mut second = metrics.connected(at(), SecurityLevel::None);
    let third = metrics.connected(at(), SecurityLevel::None);
    let place = format!("lb.backend_service=pay lb.locality={LOCALITY}");
    let plain = format!("{place} target=xds:///orders");
    assert_eq!(exported.series(Metric::SubchannelConnectionAttemptsSucceeded), one(&plain, "3"));
    assert_eq!(exported.series(Metric::SubchannelConnectionAttemptsFailed), one(&plain, "1"));
    assert_eq!(exported.series(Metric::SubchannelDisconnections), []);
    let level = |level: &str, count: &str| {
        (format!("{place} security_level={level} target=xds:///orders"), count.to_owned())
    };
    let open = |none: &str, tls: &str| vec![level("none", none), level("privacy_and_integrity", tls)];
    assert_eq!(exported.series(Metric::SubchannelOpenConnections), open("2", "1"));
    first.lost(DisconnectReason::GoAway(Reason::NO_ERROR));
    first.lost(DisconnectReason::Socket);
    drop(first);
    second.lost(DisconnectReason::TimedOut);
    assert_eq!(exported.series(Metric::SubchannelOpenConnections), open("1", "0"));
    drop(third);
    assert_eq!(exported.series(Metric::SubchannelOpenConnections), open("0", "0"));
    let lost =
        |error: &str| (format!("disconnect_error={error} {place} target=xds:///orders"), "1".to_owned());
    assert_eq!(
        exported.series(Metric::SubchannelDisconnections),
        [lost("GOAWAY NO_ERROR"), lost("connection timed out"), lost("subchannel shutdown")]
    );
}

fn weighed() -> Measurement {
    Measurement::WeightUpdate(WeightUpdate {
        labels: at(),
        rr_fallback: true,
        not_yet_usable: 2,
        stale: 1,
        weights: vec![0.0, 0.0, 0.0, 7.5],
    })
}

fn outliers(unenforced: Option<UnenforcedReason>) -> Measurement {
    let (backend_service, method) = (Some("pay".into()), DetectionMethod::SuccessRate);
    Measurement::OutlierCounts(OutlierCounts { backend_service, method, unenforced, count: 2 })
}

/// WRR-17, WRR-18: metrics of weighted round robin with their labels.
#[test]
fn weights() {
    let exported = Exported::new();
    let metrics = exported.all();
    assert!(metrics.records_policies());
    metrics.record_measurement(&weighed());
    metrics.record_measurement(&weighed());
    let labels =
        "lb.backend_service=pay lb.locality={region=\"r\", zone=\"z\", sub_zone=\"\"} target=xds:///orders";
    assert_eq!(exported.series(Metric::WrrRrFallback), one(labels, "2"));
    assert_eq!(exported.series(Metric::WrrEndpointWeightNotYetUsable), one(labels, "4"));
    assert_eq!(exported.series(Metric::WrrEndpointWeightStale), one(labels, "2"));
    assert_eq!(exported.series(Metric::WrrEndpointWeights), one(labels, "8/15"));
}

/// OD-15: enforced and unenforced ejections with their labels.
#[test]
fn ejections() {
    let exported = Exported::new();
    let metrics = exported.all();
    metrics.record_measurement(&outliers(None));
    metrics.record_measurement(&outliers(Some(UnenforcedReason::EnforcementPercentage)));
    metrics.record_measurement(&outliers(Some(UnenforcedReason::MaxEjectionOverflow)));
    metrics.record_measurement(&outliers(Some(UnenforcedReason::MaxEjectionOverflow)));
    let method = "lb.backend_service=pay lb.outlier_detection.detection_method=success_rate";
    let enforced = format!("{method} target=xds:///orders");
    assert_eq!(exported.series(Metric::OutlierEjectionsEnforced), one(&enforced, "2"));
    let unenforced = |reason: &str, count: &str| {
        let labels = format!("{method} lb.outlier_detection.unenforced_reason={reason} target=xds:///orders");
        (labels, count.to_owned())
    };
    assert_eq!(
        exported.series(Metric::OutlierEjectionsUnenforced),
        [unenforced("enforcement_percentage", "2"), unenforced("max_ejection_overflow", "4")]
    );
}

/// Returns a client that received one valid and one invalid cluster, and still waits for an old-style listener.
fn client() -> AdsClient {
    let creds = r#""channel_creds": [{"type": "insecure"}]"#;
    let bootstrap = format!(
        r#"{{"xds_servers": [{{"server_uri": "xds.one:443", {creds}}}, {{"server_uri": "xds.two:443", {creds}}}],
            "authorities": {{"far": {{}}}}}}"#
    );
    let bootstrap = Bootstrap::from_json(&bootstrap).unwrap();
    let now = Instant::ORIGIN;
    let parser = ResourceParser::new(Registry::standard());
    let mut client = AdsClient::new(Arc::new(bootstrap), parser, XdsVariant::StateOfTheWorld, Rng::fixed(1));
    let id = client.add_subscriber();
    let cluster = |name: &str| format!("xdstp://far/envoy.config.cluster.v3.Cluster/{name}");
    let wanted = [
        (ResourceType::Listener, "orders".to_owned()),
        (ResourceType::Cluster, cluster("good")),
        (ResourceType::Cluster, cluster("bad")),
    ];
    client.watch(id, wanted.into(), now);
    let mut good = resources::cluster(&cluster("good"));
    "orders".clone_into(&mut good.eds_cluster_config.as_mut().unwrap().service_name);
    let bad = Cluster { eds_cluster_config: None, ..resources::cluster(&cluster("bad")) };
    let response = DiscoveryResponse {
        type_url: ResourceType::Cluster.type_url().to_owned(),
        nonce: "1".to_owned(),
        resources: vec![resources::any(&good), resources::any(&bad)],
        ..DiscoveryResponse::default()
    };
    let response = response.encode_to_vec();
    let mut reading = None;
    for answered in [false, true] {
        while let Some(effect) = client.poll_effect() {
            match effect {
                AdsEffect::Open { stream, .. } => client.handle(AdsEvent::Opened { stream }, now),
                AdsEffect::Send { stream, .. } => client.handle(AdsEvent::Written { stream }, now),
                AdsEffect::Read { stream } => reading = Some(stream),
                _ => {}
            }
        }
        if let Some(stream) = reading.take().filter(|_| !answered) {
            client.handle(AdsEvent::Message { stream, bytes: &response }, now);
        }
    }
    client
}

/// XM-1, XM-2: metrics of an xDS client with their labels.
#[test]
fn xds_clients() {
    let exported = Exported::new();
    let metrics = exported.all();
    let meter = metrics.xds();
    meter.publish(&client());
    let to_one = "target=xds:///orders xds.server=xds.one:443";
    let to_two = "target=xds:///orders xds.server=xds.two:443";
    assert_eq!(exported.series(Metric::XdsConnected), one(to_one, "1"), "the other one is not in use");
    let failures = [one(to_one, "0"), one(to_two, "0")].concat();
    assert_eq!(exported.series(Metric::XdsServerFailure), failures);
    let clusters =
        "target=xds:///orders xds.resource_type=envoy.config.cluster.v3.Cluster xds.server=xds.one:443";
    assert_eq!(exported.series(Metric::XdsResourceUpdatesValid), one(clusters, "1"));
    assert_eq!(exported.series(Metric::XdsResourceUpdatesInvalid), one(clusters, "1"));
    let resources = |authority: &str, state: &str, kind: &str| {
        let labels = "target=xds:///orders xds.authority";
        one(
            &format!("{labels}={authority} xds.cache_state={state} xds.resource_type=envoy.config.{kind}"),
            "1",
        )
    };
    assert_eq!(
        exported.series(Metric::XdsResources),
        [
            resources("#old", "requested", "listener.v3.Listener"),
            resources("far", "acked", "cluster.v3.Cluster"),
            resources("far", "nacked", "cluster.v3.Cluster"),
        ]
        .concat()
    );
    drop(meter);
    assert_eq!(exported.series(Metric::XdsConnected), [], "a client that is gone is not reported");
    assert_eq!(exported.series(Metric::XdsResources), []);
}

/// XM-1: clients of several channels have separate series.
#[test]
fn clients_of_two_targets() {
    let exported = Exported::new();
    let metrics = exported.all();
    let other = metrics.for_target("xds:///stock".into());
    let meters = [metrics.xds(), other.xds()];
    for meter in &meters {
        meter.publish(&client());
    }
    let to_one = |target: &str| one(&format!("target=xds:///{target} xds.server=xds.one:443"), "1");
    assert_eq!(exported.series(Metric::XdsConnected), [to_one("orders"), to_one("stock")].concat());
}
