//! OpenTelemetry metrics: the public settings and the meters of channels.
//!
//! [`OtelMetrics`] creates the instruments once, and channels share them. A disabled metric has no instrument, and
//! nothing is collected for it.

mod call;
mod catalogue;
mod channel;
mod framing;
mod instruments;
#[cfg(feature = "prometheus")]
mod prometheus;
mod xds;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use opentelemetry::InstrumentationScope;
use opentelemetry::metrics::{Meter, MeterProvider};

pub(crate) use call::{AttemptMeter, CallMeter};
pub use catalogue::{Metric, MetricLabel};
pub(crate) use channel::{ChannelMetrics, ConnectionMeter};
#[cfg(feature = "prometheus")]
pub use prometheus::PrometheusMetrics;
pub(crate) use xds::XdsMeter;

use instruments::{MetricSelection, OtelInstruments};

/// Metrics with gRPC's names, for OpenTelemetry. Pass it to the builder of each channel to be measured.
///
/// The application supplies the meter provider; the global one is never used (A66). The metrics of A66 for calls and
/// attempts are on by default. Experimental metrics and optional labels are off until enabled
/// ([`OtelMetrics::builder`]).
///
/// Clones are cheap and share the instruments. Create one per provider: a second one would report into instruments of
/// the same names.
#[derive(Clone, Debug)]
pub struct OtelMetrics(Arc<OtelInstruments>);

impl OtelMetrics {
    /// Creates metrics with the default selection ([`Metric::is_on_by_default`]) and no optional labels.
    pub fn new(provider: &dyn MeterProvider) -> OtelMetrics {
        OtelMetrics::builder(provider).build()
    }

    /// Returns a builder that starts from the default selection.
    ///
    /// ```
    /// use evenkeel::{Metric, MetricLabel, OtelMetrics};
    /// # let provider = opentelemetry::metrics::NoopMeterProvider::new();
    /// let metrics = OtelMetrics::builder(&provider)
    ///     .enable([Metric::WrrEndpointWeights, Metric::SubchannelDisconnections])
    ///     .disable([Metric::AttemptStarted])
    ///     .label(MetricLabel::Locality)
    ///     .build();
    /// # drop(metrics);
    /// ```
    pub fn builder(provider: &dyn MeterProvider) -> OtelMetricsBuilder {
        let scope = InstrumentationScope::builder("evenkeel").with_version(env!("CARGO_PKG_VERSION")).build();
        let on = Metric::ALL.into_iter().filter(|metric| metric.is_on_by_default()).collect();
        let selection = MetricSelection { metrics: on, labels: BTreeSet::new(), method_filter: None };
        OtelMetricsBuilder { meter: provider.meter_with_scope(scope), selection }
    }
}

/// Builder of [`OtelMetrics`], from [`OtelMetrics::builder`].
pub struct OtelMetricsBuilder {
    meter: Meter,
    selection: MetricSelection,
}

impl OtelMetricsBuilder {
    /// Enables these metrics in addition to those already enabled.
    #[must_use]
    pub fn enable(mut self, metrics: impl IntoIterator<Item = Metric>) -> OtelMetricsBuilder {
        self.selection.metrics.extend(metrics);
        self
    }

    /// Disables these metrics, including those that are on by default.
    #[must_use]
    pub fn disable(mut self, metrics: impl IntoIterator<Item = Metric>) -> OtelMetricsBuilder {
        for metric in metrics {
            self.selection.metrics.remove(&metric);
        }
        self
    }

    /// Adds an optional label to all metrics that support it. Each value of the label creates a further series.
    #[must_use]
    pub fn label(mut self, label: MetricLabel) -> OtelMetricsBuilder {
        self.selection.labels.insert(label);
        self
    }

    /// Sets the filter for the label `grpc.method` (A66). It receives `package.Service/Method`; methods for which it
    /// returns false are recorded as `other`.
    ///
    /// Without a filter every method is recorded by name. Set one if method names come from outside, such as in a
    /// proxy, because they are then unbounded.
    #[must_use]
    pub fn method_filter(
        mut self,
        is_recorded: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> OtelMetricsBuilder {
        self.selection.method_filter = Some(Box::new(is_recorded));
        self
    }

    /// Creates the instruments of the enabled metrics.
    pub fn build(self) -> OtelMetrics {
        OtelMetrics(Arc::new(OtelInstruments::new(&self.meter, self.selection)))
    }
}

impl fmt::Debug for OtelMetricsBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtelMetricsBuilder").field("choice", &self.selection).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
