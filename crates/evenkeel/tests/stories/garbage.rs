//! Malformed load reports: they are only counted.

#![cfg(feature = "otel")]

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel::{Channel, Metric, OtelMetrics};
use evenkeel_orca::OrcaLoadReport;
use evenkeel_proto::prost::Message as _;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ResourceMetrics, ScopeMetrics};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use testkit::net::Backend;
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use tokio::time::{sleep, timeout};

/// Backend, a weighted_round_robin channel to it, and the channel's metrics.
struct CountingBackend {
    backend: Backend,
    channel: Channel,
    provider: SdkMeterProvider,
    exporter: InMemoryMetricExporter,
}

impl CountingBackend {
    async fn start(settings: &str) -> CountingBackend {
        let exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exporter.clone()).build();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        let backend = Backend::start().await;
        backend.set_load(Some(OrcaLoadReport::default()));
        let channel = crate::builder(format!("ipv4:{}", backend.address()))
            .service_config(format!(r#"{{"loadBalancingConfig": [{{"weighted_round_robin": {settings}}}]}}"#))
            // The header list must be accepted, so that the report in it is parsed.
            .max_header_list_size(4 << 20)
            .metrics(&OtelMetrics::new(&provider))
            .build()
            .expect("a channel");
        CountingBackend { backend, channel, provider, exporter }
    }

    /// Returns the number of ignored reports by reason.
    fn ignored(&self) -> BTreeMap<String, u64> {
        self.exporter.reset();
        self.provider.force_flush().expect("an exporter in memory");
        let mut ignored = BTreeMap::new();
        for metric in self
            .exporter
            .get_finished_metrics()
            .expect("an exporter in memory")
            .iter()
            .flat_map(ResourceMetrics::scope_metrics)
            .flat_map(ScopeMetrics::metrics)
            .filter(|metric| metric.name() == Metric::LoadReportsIgnored.name())
        {
            let AggregatedMetrics::U64(MetricData::Sum(sum)) = metric.data() else {
                panic!("{metric:?} is no counter")
            };
            for point in sum.data_points() {
                let reason = point.attributes().find(|label| label.key.as_str() == "evenkeel.reason");
                let reason = reason.expect("every count has a reason").value.to_string();
                ignored.insert(reason, point.value());
            }
        }
        ignored
    }

    async fn call(&self) {
        let answer = EchoClient::new(self.channel.clone()).unary(EchoRequest::default()).await;
        answer.expect("the report is not the call's business");
    }
}

fn cpu(value: f64) -> Vec<u8> {
    OrcaLoadReport { cpu_utilization: value, ..OrcaLoadReport::default() }.encode_to_vec()
}

/// fault 57, fault 58: malformed, oversized and out-of-range reports are counted by reason, and the calls
/// succeed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_calls_is_counted() {
    let counted = CountingBackend::start("{}").await;
    let megabyte =
        OrcaLoadReport { named_metrics: [("x".repeat(1 << 20), 1.0)].into(), ..OrcaLoadReport::default() };
    let names = (0..2_000).map(|i| (i.to_string(), 1.0)).collect();
    let many = OrcaLoadReport { named_metrics: names, ..OrcaLoadReport::default() };
    for bytes in [
        cpu(0.5),
        vec![],
        vec![0xff; 20],
        vec![0x09, 1, 2],
        cpu(f64::NAN),
        cpu(-1.0),
        cpu(f64::INFINITY),
        cpu(f64::NEG_INFINITY),
        megabyte.encode_to_vec(),
        vec![0; 1 << 20],
        many.encode_to_vec(),
    ] {
        counted.backend.set_load_trailer(Some(bytes));
        counted.call().await;
    }
    counted.backend.set_load_trailer(None);
    counted.call().await;
    let expected = [("bad_value", 4), ("malformed", 2), ("too_long", 2), ("too_many_names", 1)];
    assert_eq!(counted.ignored(), expected.map(|(reason, count)| (reason.to_owned(), count)).into());
}

/// fault 58: the same for out-of-band reports.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_out_of_band_is_counted() {
    let counted =
        CountingBackend::start(r#"{"enableOobLoadReport": true, "oobReportingPeriod": "0.05s"}"#).await;
    counted.backend.set_load(Some(OrcaLoadReport { eps: f64::NAN, ..OrcaLoadReport::default() }));
    counted.call().await;
    let seen = async {
        while counted.ignored().get("bad_value").is_none_or(|count| *count < 3) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(30), seen).await.expect("reports are counted");
    assert_eq!(counted.ignored().len(), 1, "what comes on calls is not looked at");
    assert_eq!(counted.backend.load_streams(), 1, "the stream continues");
}
