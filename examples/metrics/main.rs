//! Which metrics do I get, and how?
//!
//! They are OpenTelemetry instruments with gRPC's names, so dashboards for other languages work. The figures
//! are those of real calls, some of which fail. The output ends with the list of all metrics and their
//! defaults.

use evenkeel::{Channel, Metric, MetricLabel, OtelMetrics};
use examples::{Backend, Outcome, Tally, connected};
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ScopeMetrics};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};

#[tokio::main]
async fn main() -> Outcome {
    // An application has its own provider and exporter (OTLP, Prometheus). This one keeps the data in memory.
    let exporter = InMemoryMetricExporter::default();
    let reader = PeriodicReader::builder(exporter.clone()).build();
    let provider = SdkMeterProvider::builder().with_reader(reader).build();

    // `OtelMetrics::new(&provider)` enables gRPC's defaults. This adds some optional ones.
    let metrics = OtelMetrics::builder(&provider)
        .enable([Metric::SubchannelConnectionAttemptsSucceeded, Metric::SubchannelOpenConnections])
        .label(MetricLabel::SecurityLevel)
        .build();

    let servers = [Backend::start("good").await?, Backend::start("bad").await?];
    servers[1].set_failing(true);
    let list = servers.each_ref().map(|server| server.address().to_string()).join(",");
    let channel = Channel::builder(format!("ipv4:{list}"))
        .service_config(r#"{"loadBalancingConfig": [{"round_robin": {}}]}"#)
        .metrics(&metrics)
        .build()?;
    connected(&channel, 2).await;
    println!("calls: {}\n", Tally::of(&channel, 100).await);

    provider.force_flush()?;
    show(&exporter)?;
    println!("\non  {:<58} {:<20} what", "name", "unit");
    for metric in Metric::ALL {
        let on = if metric.is_on_by_default() { "yes" } else { "-" };
        println!("{on:<3} {:<58} {:<20} {}", metric.name(), metric.unit(), metric.description());
    }
    Ok(())
}

/// Prints one line per exported series.
fn show(exporter: &InMemoryMetricExporter) -> Outcome {
    for exported in exporter.get_finished_metrics()? {
        for metric in exported.scope_metrics().flat_map(ScopeMetrics::metrics) {
            let series = match metric.data() {
                AggregatedMetrics::F64(data) => series(data),
                AggregatedMetrics::U64(data) => series(data),
                AggregatedMetrics::I64(data) => series(data),
            };
            for (labels, value) in series {
                println!("{} {{{labels}}} = {value}", metric.name());
            }
        }
    }
    Ok(())
}

/// Returns labels and value of every series; for a histogram, the count and the sum.
fn series<T: Copy + std::fmt::Display>(data: &MetricData<T>) -> Vec<(String, String)> {
    fn labels<'a>(attributes: impl Iterator<Item = &'a opentelemetry::KeyValue>) -> String {
        attributes.map(|label| format!("{}={}", label.key, label.value)).collect::<Vec<_>>().join(" ")
    }
    match data {
        MetricData::Gauge(gauge) => {
            gauge.data_points().map(|point| (labels(point.attributes()), point.value().to_string())).collect()
        }
        MetricData::Sum(sum) => {
            sum.data_points().map(|point| (labels(point.attributes()), point.value().to_string())).collect()
        }
        MetricData::Histogram(histogram) => histogram
            .data_points()
            .map(|point| {
                (labels(point.attributes()), format!("{} values, {} in all", point.count(), point.sum()))
            })
            .collect(),
        MetricData::ExponentialHistogram(_) => Vec::new(),
    }
}
