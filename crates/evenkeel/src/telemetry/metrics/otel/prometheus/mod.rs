//! Metrics for scrapes by Prometheus.

mod text_format;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{InstrumentKind, ManualReader, Pipeline, SdkMeterProvider, Temporality};

use super::{Metric, MetricLabel, OtelMetrics, OtelMetricsBuilder};

/// Metrics with gRPC's names, in the text format of Prometheus.
///
/// Pass [`PrometheusMetrics::metrics`] to the builder of each channel to be measured. The admin server then serves
/// `/metrics` (`AdminServerBuilder::prometheus`). An application with a server of its own can send
/// [`PrometheusMetrics::encode`] from there.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use evenkeel::admin::AdminServer;
/// use evenkeel::{Channel, PrometheusMetrics};
///
/// let prometheus = PrometheusMetrics::new();
/// let channel = Channel::builder("xds:///orders").metrics(prometheus.metrics()).build()?;
/// let admin = AdminServer::builder().prometheus(&prometheus).start().await?;
/// println!("scrape http://{}/metrics", admin.address());
/// # drop(channel);
/// # Ok(())
/// # }
/// ```
///
/// Clones are cheap and share the metrics. Each metric has at most 2,000 series. Further ones are counted in a series with
/// the label `otel_metric_overflow`.
#[derive(Clone)]
pub struct PrometheusMetrics {
    metrics: OtelMetrics,
    reader: SharedReader,
    /// The reader refers to it weakly.
    _provider: SdkMeterProvider,
}

impl PrometheusMetrics {
    /// Content type of [`PrometheusMetrics::encode`].
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    /// Creates metrics with all of [`Metric::ALL`] and all optional labels. The dashboard and the alerts in `deploy/` need
    /// them.
    pub fn new() -> PrometheusMetrics {
        PrometheusMetrics::select(|builder| {
            let labels = [
                MetricLabel::Locality,
                MetricLabel::BackendService,
                MetricLabel::DisconnectError,
                MetricLabel::SecurityLevel,
            ];
            labels.into_iter().fold(builder.enable(Metric::ALL), OtelMetricsBuilder::label)
        })
    }

    /// Creates metrics with a selection. It starts from gRPC's defaults ([`OtelMetrics::builder`]).
    pub fn select(choose: impl FnOnce(OtelMetricsBuilder) -> OtelMetricsBuilder) -> PrometheusMetrics {
        let reader = SharedReader(Arc::new(ManualReader::builder().build()));
        // Without a resource: the scraper adds the labels of its target.
        let provider = SdkMeterProvider::builder()
            .with_resource(Resource::builder_empty().build())
            .with_reader(reader.clone())
            .build();
        let metrics = choose(OtelMetrics::builder(&provider)).build();
        PrometheusMetrics { metrics, reader, _provider: provider }
    }

    /// Returns the metrics for the builders of channels.
    pub fn metrics(&self) -> &OtelMetrics {
        &self.metrics
    }

    /// Returns the current values in the text format. A metric without values is left out.
    pub fn encode(&self) -> String {
        let mut collected = ResourceMetrics::default();
        match self.reader.collect(&mut collected) {
            Ok(()) => text_format::encode(&collected),
            // Fails only after a shutdown, which does not happen: `self` holds the provider.
            Err(error) => {
                tracing::error!(%error, "metrics cannot be collected");
                String::new()
            }
        }
    }
}

impl Default for PrometheusMetrics {
    fn default() -> PrometheusMetrics {
        PrometheusMetrics::new()
    }
}

impl fmt::Debug for PrometheusMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrometheusMetrics").field("metrics", &self.metrics).finish_non_exhaustive()
    }
}

/// Reader that collects on demand. The provider takes ownership of a reader, so this one is a handle.
#[derive(Clone, Debug)]
struct SharedReader(Arc<ManualReader>);

impl MetricReader for SharedReader {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, collected: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(collected)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}

#[cfg(test)]
mod tests;
