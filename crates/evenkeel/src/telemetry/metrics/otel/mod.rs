//! The meters of a build with metrics, and what users choose about them.
//!
//! [`OtelMetrics`] makes the instruments, once; channels share them. What is not enabled has no instrument, and nothing is
//! collected for it.

mod call;
mod catalogue;
mod channel;
mod framing;
mod instruments;
mod xds;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use opentelemetry::InstrumentationScope;
use opentelemetry::metrics::{Meter, MeterProvider};

pub(crate) use call::{AttemptMeter, CallMeter};
pub use catalogue::{Metric, MetricLabel};
pub(crate) use channel::{ChannelMetrics, ConnectionMeter};
pub(crate) use xds::XdsMeter;

use instruments::{MetricSelection, OtelInstruments};

/// Metrics with gRPC's names, for OpenTelemetry. Give it to the builders of the channels that are to be measured.
///
/// The provider is yours; the global one is never used (A66). What A66 defines for calls and attempts is on. What gRPC
/// calls experimental is off until you enable it ([`OtelMetrics::builder`]), and so are the optional labels.
///
/// Cloning is cheap, and clones are the same. Make one for each provider: two would count the same things into the same
/// instruments.
#[derive(Clone, Debug)]
pub struct OtelMetrics(Arc<OtelInstruments>);

impl OtelMetrics {
    /// What is on by default.
    pub fn new(provider: &dyn MeterProvider) -> OtelMetrics {
        OtelMetrics::builder(provider).build()
    }

    /// Settings for other choices.
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

/// Settings of [`OtelMetrics`].
pub struct OtelMetricsBuilder {
    meter: Meter,
    selection: MetricSelection,
}

impl OtelMetricsBuilder {
    /// Turns metrics on.
    #[must_use]
    pub fn enable(mut self, metrics: impl IntoIterator<Item = Metric>) -> OtelMetricsBuilder {
        self.selection.metrics.extend(metrics);
        self
    }

    /// Turns metrics off.
    #[must_use]
    pub fn disable(mut self, metrics: impl IntoIterator<Item = Metric>) -> OtelMetricsBuilder {
        for metric in metrics {
            self.selection.metrics.remove(&metric);
        }
        self
    }

    /// Adds an optional label to all metrics that can have it. Each value that it takes is a further series.
    #[must_use]
    pub fn label(mut self, label: MetricLabel) -> OtelMetricsBuilder {
        self.selection.labels.insert(label);
        self
    }

    /// Says which methods, as `package.Service/Method`, are recorded under their names; the others are `other`. Without it
    /// all are: meant for programs whose method names come from elsewhere, and so without bound.
    #[must_use]
    pub fn method_filter(
        mut self,
        is_recorded: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> OtelMetricsBuilder {
        self.selection.method_filter = Some(Box::new(is_recorded));
        self
    }

    /// Makes the instruments.
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
