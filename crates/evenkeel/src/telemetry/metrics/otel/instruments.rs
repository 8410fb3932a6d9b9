//! OpenTelemetry instruments of the enabled metrics, and the attributes that several of them share.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use evenkeel_core::LbLabels;
use opentelemetry::metrics::{Counter, Histogram, HistogramBuilder, InstrumentBuilder, Meter, UpDownCounter};
use opentelemetry::{KeyValue, Value};

use super::catalogue::{Metric, MetricLabel};
use super::xds::XdsClientRegistry;

/// Enabled metrics, optional labels and the method filter, as the builder collected them.
pub(super) struct MetricSelection {
    pub(super) metrics: BTreeSet<Metric>,
    pub(super) labels: BTreeSet<MetricLabel>,
    pub(super) method_filter: Option<MethodFilter>,
}

pub(super) type MethodFilter = Box<dyn Fn(&str) -> bool + Send + Sync>;

impl fmt::Debug for MetricSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MetricSelection { metrics, labels, .. } = self;
        f.debug_struct("MetricSelection")
            .field("metrics", metrics)
            .field("labels", labels)
            .finish_non_exhaustive()
    }
}

/// One instrument per enabled metric, `None` if disabled. Instruments of xDS clients are observable and read on export.
#[derive(Debug)]
pub(super) struct OtelInstruments {
    pub(super) selection: MetricSelection,
    pub(super) attempt_started: Option<Counter<u64>>,
    pub(super) attempt_duration: Option<Histogram<f64>>,
    pub(super) attempt_sent: Option<Histogram<u64>>,
    pub(super) attempt_received: Option<Histogram<u64>>,
    pub(super) call_duration: Option<Histogram<f64>>,
    pub(super) call_retries: Option<Histogram<u64>>,
    pub(super) call_transparent_retries: Option<Histogram<u64>>,
    pub(super) call_retry_delay: Option<Histogram<f64>>,
    pub(super) wrr_rr_fallback: Option<Counter<u64>>,
    pub(super) wrr_not_yet_usable: Option<Counter<u64>>,
    pub(super) wrr_stale: Option<Counter<u64>>,
    pub(super) wrr_weights: Option<Histogram<f64>>,
    pub(super) outliers_enforced: Option<Counter<u64>>,
    pub(super) outliers_unenforced: Option<Counter<u64>>,
    pub(super) disconnections: Option<Counter<u64>>,
    pub(super) attempts_succeeded: Option<Counter<u64>>,
    pub(super) attempts_failed: Option<Counter<u64>>,
    pub(super) open_connections: Option<UpDownCounter<i64>>,
    pub(super) load_ignored: Option<Counter<u64>>,
    pub(super) xds_clients: Option<Arc<XdsClientRegistry>>,
}

impl OtelInstruments {
    pub(super) fn new(meter: &Meter, selection: MetricSelection) -> OtelInstruments {
        let is_on = |metric: Metric| selection.metrics.contains(&metric);
        let counter = |metric: Metric| {
            is_on(metric).then(|| with_metadata(meter.u64_counter(metric.name()), metric).build())
        };
        let seconds = |metric: Metric| {
            is_on(metric).then(|| with_buckets(meter.f64_histogram(metric.name()), metric).build())
        };
        let numbers = |metric: Metric| {
            is_on(metric).then(|| with_buckets(meter.u64_histogram(metric.name()), metric).build())
        };
        OtelInstruments {
            attempt_started: counter(Metric::AttemptStarted),
            attempt_duration: seconds(Metric::AttemptDuration),
            attempt_sent: numbers(Metric::AttemptSentSize),
            attempt_received: numbers(Metric::AttemptReceivedSize),
            call_duration: seconds(Metric::CallDuration),
            call_retries: numbers(Metric::CallRetries),
            call_transparent_retries: numbers(Metric::CallTransparentRetries),
            call_retry_delay: seconds(Metric::CallRetryDelay),
            wrr_rr_fallback: counter(Metric::WrrRrFallback),
            wrr_not_yet_usable: counter(Metric::WrrEndpointWeightNotYetUsable),
            wrr_stale: counter(Metric::WrrEndpointWeightStale),
            wrr_weights: seconds(Metric::WrrEndpointWeights),
            outliers_enforced: counter(Metric::OutlierEjectionsEnforced),
            outliers_unenforced: counter(Metric::OutlierEjectionsUnenforced),
            disconnections: counter(Metric::SubchannelDisconnections),
            attempts_succeeded: counter(Metric::SubchannelConnectionAttemptsSucceeded),
            attempts_failed: counter(Metric::SubchannelConnectionAttemptsFailed),
            open_connections: is_on(Metric::SubchannelOpenConnections).then(|| {
                let metric = Metric::SubchannelOpenConnections;
                with_metadata(meter.i64_up_down_counter(metric.name()), metric).build()
            }),
            load_ignored: counter(Metric::LoadReportsIgnored),
            xds_clients: XdsClientRegistry::register(meter, &selection.metrics),
            selection,
        }
    }

    pub(super) fn has_label(&self, label: MetricLabel) -> bool {
        self.selection.labels.contains(&label)
    }

    /// Returns true if a locality or backend service label is enabled.
    pub(super) fn needs_labels(&self) -> bool {
        self.has_label(MetricLabel::Locality) || self.has_label(MetricLabel::BackendService)
    }

    /// Returns true if any metric of calls or attempts is enabled. Ignored load reports are included, because attempts
    /// report them.
    pub(super) fn measure_calls(&self) -> bool {
        self.attempt_started.is_some()
            || self.attempt_duration.is_some()
            || self.attempt_sent.is_some()
            || self.attempt_received.is_some()
            || self.call_duration.is_some()
            || self.call_retries.is_some()
            || self.call_transparent_retries.is_some()
            || self.call_retry_delay.is_some()
            || self.load_ignored.is_some()
    }

    /// Returns true if any metric of load balancing policies is enabled.
    pub(super) fn measure_policies(&self) -> bool {
        self.wrr_rr_fallback.is_some()
            || self.wrr_not_yet_usable.is_some()
            || self.wrr_stale.is_some()
            || self.wrr_weights.is_some()
            || self.outliers_enforced.is_some()
            || self.outliers_unenforced.is_some()
    }

    /// Appends the enabled locality and backend service labels. An unknown value becomes an empty string (A78, A89).
    pub(super) fn push_labels(&self, attributes: &mut Vec<KeyValue>, labels: &LbLabels) {
        for (label, value) in [
            (MetricLabel::Locality, &labels.locality),
            (MetricLabel::BackendService, &labels.backend_service),
        ] {
            if self.has_label(label) {
                attributes.push(KeyValue::new(label.name(), text(value.clone().unwrap_or_default())));
            }
        }
    }
}

/// Returns the label `grpc.target`, which every metric has.
pub(super) fn target(target: &Arc<str>) -> KeyValue {
    KeyValue::new("grpc.target", text(target.clone()))
}

/// Returns an attribute value that shares the text instead of copying it.
pub(super) fn text(text: Arc<str>) -> Value {
    Value::String(text.into())
}

fn with_metadata<T>(builder: InstrumentBuilder<'_, T>, metric: Metric) -> InstrumentBuilder<'_, T> {
    builder.with_unit(metric.unit()).with_description(metric.description())
}

fn with_buckets<T>(builder: HistogramBuilder<'_, T>, metric: Metric) -> HistogramBuilder<'_, T> {
    let builder = builder.with_unit(metric.unit()).with_description(metric.description());
    match metric.buckets().bounds() {
        Some(bounds) => builder.with_boundaries(bounds),
        None => builder,
    }
}
