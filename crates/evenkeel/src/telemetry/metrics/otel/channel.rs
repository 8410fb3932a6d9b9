//! Metrics of one channel: its share of the instruments, and the meters of connections and policies (A78, A91, A94).

use std::sync::Arc;

use evenkeel_core::{LbLabels, Measurement, OutlierCounts, WeightUpdate};
use evenkeel_orca::IgnoredReason;
use opentelemetry::KeyValue;

use super::OtelMetrics;
use super::call::CallMeter;
use super::catalogue::MetricLabel;
use super::instruments::{OtelInstruments, target, text};
use super::xds::XdsMeter;
use crate::telemetry::metrics::{DisconnectReason, SecurityLevel};

/// Metrics of one channel. The default records nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChannelMetrics(Option<ChannelInstruments>);

/// Shared instruments with the target of one channel.
#[derive(Clone, Debug)]
pub(super) struct ChannelInstruments {
    pub(super) instruments: Arc<OtelInstruments>,
    pub(super) target: Arc<str>,
}

impl From<&OtelMetrics> for ChannelMetrics {
    fn from(metrics: &OtelMetrics) -> ChannelMetrics {
        ChannelMetrics(Some(ChannelInstruments { instruments: metrics.0.clone(), target: Arc::default() }))
    }
}

impl ChannelMetrics {
    /// Returns the same metrics for the channel with this target, in canonical form (A66).
    pub(crate) fn for_target(&self, target: Arc<str>) -> ChannelMetrics {
        ChannelMetrics(self.0.clone().map(|channel| ChannelInstruments { target, ..channel }))
    }

    /// Returns true if the core should emit measurements ([`evenkeel_core::CoreBuilder::measure`]).
    pub(crate) fn records_policies(&self) -> bool {
        self.0.as_ref().is_some_and(|channel| channel.instruments.measure_policies())
    }

    /// Returns true if metrics need the labels of a subchannel ([`evenkeel_core::Core::labels`]). Otherwise the driver
    /// skips the lookup.
    pub(crate) fn needs_labels(&self) -> bool {
        self.0.as_ref().is_some_and(|channel| channel.instruments.needs_labels())
    }

    /// Starts the meter of a call to the method at this path.
    pub(crate) fn call(&self, path: &str) -> CallMeter {
        CallMeter::begin(self.0.as_ref(), path)
    }

    /// Records a successful connection attempt and starts the meter of the connection.
    pub(crate) fn connected(&self, labels: LbLabels, security: SecurityLevel) -> ConnectionMeter {
        let Some(channel) = &self.0 else { return ConnectionMeter(None) };
        let connection = OpenConnection { channel: channel.clone(), labels, security };
        if let Some(succeeded) = &channel.instruments.attempts_succeeded {
            succeeded.add(1, &channel.attributes(&connection.labels));
        }
        connection.count(1);
        ConnectionMeter(Some(connection))
    }

    /// Records a failed connection attempt. A cancelled attempt is not a failure and must not be recorded (A94).
    pub(crate) fn connect_failed(&self, labels: &LbLabels) {
        if let Some(channel) = &self.0
            && let Some(failed) = &channel.instruments.attempts_failed
        {
            failed.add(1, &channel.attributes(labels));
        }
    }

    /// Records that an out-of-band load report was ignored, in whole or in part.
    pub(crate) fn load_ignored(&self, why: IgnoredReason) {
        if let Some(channel) = &self.0 {
            channel.load_ignored(why);
        }
    }

    /// Records a measurement of a policy. Kinds without an instrument are skipped.
    pub(crate) fn record_measurement(&self, measurement: &Measurement) {
        let Some(channel) = &self.0 else { return };
        match measurement {
            Measurement::WeightUpdate(weighed) => channel.weighed(weighed),
            Measurement::OutlierCounts(outliers) => channel.outliers(outliers),
            _ => {}
        }
    }

    /// Starts the meter of the channel's xDS client.
    pub(crate) fn xds(&self) -> XdsMeter {
        XdsMeter::begin(self.0.as_ref())
    }
}

impl ChannelInstruments {
    fn attributes(&self, labels: &LbLabels) -> Vec<KeyValue> {
        let mut attributes = Vec::with_capacity(4);
        attributes.push(target(&self.target));
        self.instruments.push_labels(&mut attributes, labels);
        attributes
    }

    pub(super) fn load_ignored(&self, why: IgnoredReason) {
        if let Some(ignored) = &self.instruments.load_ignored {
            ignored.add(1, &[target(&self.target), KeyValue::new("evenkeel.reason", why.as_str())]);
        }
    }

    fn weighed(&self, weighed: &WeightUpdate) {
        let attributes = self.attributes(&weighed.labels);
        let counts = [
            (&self.instruments.wrr_rr_fallback, u64::from(weighed.rr_fallback)),
            (&self.instruments.wrr_not_yet_usable, weighed.not_yet_usable),
            (&self.instruments.wrr_stale, weighed.stale),
        ];
        for (counter, count) in counts {
            if let Some(counter) = counter {
                counter.add(count, &attributes);
            }
        }
        if let Some(weights) = &self.instruments.wrr_weights {
            for weight in &weighed.weights {
                weights.record(*weight, &attributes);
            }
        }
    }

    fn outliers(&self, outliers: &OutlierCounts) {
        let OutlierCounts { backend_service, method, unenforced, count } = outliers;
        let counter = match unenforced {
            None => &self.instruments.outliers_enforced,
            Some(_) => &self.instruments.outliers_unenforced,
        };
        let Some(counter) = counter else { return };
        let mut attributes = vec![
            target(&self.target),
            KeyValue::new("grpc.lb.outlier_detection.detection_method", method.as_str()),
        ];
        if let Some(reason) = unenforced {
            attributes.push(KeyValue::new("grpc.lb.outlier_detection.unenforced_reason", reason.as_str()));
        }
        if self.instruments.has_label(MetricLabel::BackendService) {
            let service = backend_service.clone().unwrap_or_default();
            attributes.push(KeyValue::new(MetricLabel::BackendService.name(), text(service)));
        }
        counter.add(*count, &attributes);
    }
}

/// Meter of one connection. It records one disconnect. Dropping an open meter records a subchannel shutdown.
#[derive(Debug)]
pub(crate) struct ConnectionMeter(Option<OpenConnection>);

#[derive(Debug)]
struct OpenConnection {
    channel: ChannelInstruments,
    labels: LbLabels,
    security: SecurityLevel,
}

impl ConnectionMeter {
    /// Records the disconnect. Only the first call has an effect (A94).
    pub(crate) fn lost(&mut self, reason: DisconnectReason) {
        let Some(connection) = self.0.take() else { return };
        connection.count(-1);
        let instruments = &connection.channel.instruments;
        if let Some(disconnections) = &instruments.disconnections {
            let mut attributes = connection.channel.attributes(&connection.labels);
            if instruments.has_label(MetricLabel::DisconnectError) {
                attributes.push(KeyValue::new(MetricLabel::DisconnectError.name(), reason.as_str()));
            }
            disconnections.add(1, &attributes);
        }
    }
}

impl Drop for ConnectionMeter {
    fn drop(&mut self) {
        self.lost(DisconnectReason::Shutdown);
    }
}

impl OpenConnection {
    fn count(&self, change: i64) {
        let instruments = &self.channel.instruments;
        let Some(open) = &instruments.open_connections else { return };
        let mut attributes = self.channel.attributes(&self.labels);
        if instruments.has_label(MetricLabel::SecurityLevel) {
            attributes.push(KeyValue::new(MetricLabel::SecurityLevel.name(), self.security.as_str()));
        }
        open.add(change, &attributes);
    }
}

impl SecurityLevel {
    /// Returns the value of the label `grpc.security_level` (A94).
    fn as_str(self) -> &'static str {
        match self {
            SecurityLevel::None => "none",
            SecurityLevel::PrivacyAndIntegrity => "privacy_and_integrity",
        }
    }
}
