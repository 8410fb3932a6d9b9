//! Catalogue of metrics: names, units and buckets as the gRFCs define them, descriptions, and the default selection.

/// A metric. Its gRFC defines its meaning. All metrics have the label `grpc.target`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Metric {
    /// `grpc.client.attempt.started` (A66): number of attempts started.
    AttemptStarted,
    /// `grpc.client.attempt.duration` (A66): latency of attempts, from before the pick to the status.
    AttemptDuration,
    /// `grpc.client.attempt.sent_total_compressed_message_size` (A66): request bytes per attempt.
    AttemptSentSize,
    /// `grpc.client.attempt.rcvd_total_compressed_message_size` (A66): response bytes per attempt.
    AttemptReceivedSize,
    /// `grpc.client.call.duration` (A66): end-to-end latency of calls, with all attempts.
    CallDuration,
    /// `grpc.client.call.retries` (A96): number of retries of a call that was retried.
    CallRetries,
    /// `grpc.client.call.transparent_retries` (A96): number of transparent retries of a call that had any.
    CallTransparentRetries,
    /// `grpc.client.call.retry_delay` (A96): time without an active attempt, for calls that were retried.
    CallRetryDelay,
    /// `grpc.lb.wrr.rr_fallback` (A78): scheduler updates that fell back to round robin.
    WrrRrFallback,
    /// `grpc.lb.wrr.endpoint_weight_not_yet_usable` (A78): endpoints without a usable weight, per scheduler update.
    WrrEndpointWeightNotYetUsable,
    /// `grpc.lb.wrr.endpoint_weight_stale` (A78): endpoints with an expired weight, per scheduler update.
    WrrEndpointWeightStale,
    /// `grpc.lb.wrr.endpoint_weights` (A78): weights of endpoints, per scheduler update.
    WrrEndpointWeights,
    /// `grpc.lb.outlier_detection.ejections_enforced` (A91): number of ejections.
    OutlierEjectionsEnforced,
    /// `grpc.lb.outlier_detection.ejections_unenforced` (A91): outliers that were not ejected.
    OutlierEjectionsUnenforced,
    /// `grpc.subchannel.disconnections` (A94): number of disconnects.
    SubchannelDisconnections,
    /// `grpc.subchannel.connection_attempts_succeeded` (A94): number of established connections.
    SubchannelConnectionAttemptsSucceeded,
    /// `grpc.subchannel.connection_attempts_failed` (A94): number of failed connection attempts.
    SubchannelConnectionAttemptsFailed,
    /// `grpc.subchannel.open_connections` (A94): number of open connections.
    SubchannelOpenConnections,
    /// `grpc.xds_client.connected` (A78): 1 while the ADS stream works, 0 otherwise.
    XdsConnected,
    /// `grpc.xds_client.server_failure` (A78): transitions of the xDS server to unhealthy.
    XdsServerFailure,
    /// `grpc.xds_client.resource_updates_valid` (A78): valid resources received.
    XdsResourceUpdatesValid,
    /// `grpc.xds_client.resource_updates_invalid` (A78): invalid resources received (NACK).
    XdsResourceUpdatesInvalid,
    /// `grpc.xds_client.resources` (A78, A88): number of resources by cache state.
    XdsResources,
    /// `evenkeel.client.load_reports.ignored`: load reports ignored in whole or in part, with the label `evenkeel.reason`.
    LoadReportsIgnored,
}

/// An optional metric label. It is off unless [`OtelMetricsBuilder::label`](super::OtelMetricsBuilder::label) adds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum MetricLabel {
    /// `grpc.lb.locality`, on metrics of attempts, subchannels and weighted round robin (A78).
    Locality,
    /// `grpc.lb.backend_service`, the cluster, on the same metrics and those of outlier detection (A89).
    BackendService,
    /// `grpc.disconnect_error`, the reason of a disconnect (A94).
    DisconnectError,
    /// `grpc.security_level`, the protection of open connections (A94).
    SecurityLevel,
}

impl MetricLabel {
    /// Returns the attribute key of the label.
    pub fn name(self) -> &'static str {
        match self {
            MetricLabel::Locality => "grpc.lb.locality",
            MetricLabel::BackendService => "grpc.lb.backend_service",
            MetricLabel::DisconnectError => "grpc.disconnect_error",
            MetricLabel::SecurityLevel => "grpc.security_level",
        }
    }
}

/// Bucket boundaries of a histogram (A66, A96).
#[derive(Clone, Copy)]
pub(super) enum HistogramBuckets {
    Latency,
    Size,
    /// 1 to 5, for numbers of retries.
    Few,
    /// 1 to 5 and 10, for numbers of transparent retries.
    FewAndTen,
    /// Default boundaries of the OpenTelemetry SDK.
    Default,
}

impl HistogramBuckets {
    pub(super) fn bounds(self) -> Option<Vec<f64>> {
        match self {
            HistogramBuckets::Latency => Some(vec![
                0.0, 0.00001, 0.00005, 0.0001, 0.0003, 0.0006, 0.0008, 0.001, 0.002, 0.003, 0.004, 0.005,
                0.006, 0.008, 0.01, 0.013, 0.016, 0.02, 0.025, 0.03, 0.04, 0.05, 0.065, 0.08, 0.1, 0.13,
                0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0,
            ]),
            HistogramBuckets::Size => {
                let powers = [10, 11, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32];
                Some([0.0].into_iter().chain(powers.map(|power| 2_f64.powi(power))).collect())
            }
            HistogramBuckets::Few => Some(vec![1.0, 2.0, 3.0, 4.0, 5.0]),
            HistogramBuckets::FewAndTen => Some(vec![1.0, 2.0, 3.0, 4.0, 5.0, 10.0]),
            HistogramBuckets::Default => None,
        }
    }
}

impl Metric {
    /// All metrics, in order of definition.
    pub const ALL: [Metric; 24] = [
        Metric::AttemptStarted,
        Metric::AttemptDuration,
        Metric::AttemptSentSize,
        Metric::AttemptReceivedSize,
        Metric::CallDuration,
        Metric::CallRetries,
        Metric::CallTransparentRetries,
        Metric::CallRetryDelay,
        Metric::WrrRrFallback,
        Metric::WrrEndpointWeightNotYetUsable,
        Metric::WrrEndpointWeightStale,
        Metric::WrrEndpointWeights,
        Metric::OutlierEjectionsEnforced,
        Metric::OutlierEjectionsUnenforced,
        Metric::SubchannelDisconnections,
        Metric::SubchannelConnectionAttemptsSucceeded,
        Metric::SubchannelConnectionAttemptsFailed,
        Metric::SubchannelOpenConnections,
        Metric::XdsConnected,
        Metric::XdsServerFailure,
        Metric::XdsResourceUpdatesValid,
        Metric::XdsResourceUpdatesInvalid,
        Metric::XdsResources,
        Metric::LoadReportsIgnored,
    ];

    /// Returns the instrument name.
    pub fn name(self) -> &'static str {
        match self {
            Metric::AttemptStarted => "grpc.client.attempt.started",
            Metric::AttemptDuration => "grpc.client.attempt.duration",
            Metric::AttemptSentSize => "grpc.client.attempt.sent_total_compressed_message_size",
            Metric::AttemptReceivedSize => "grpc.client.attempt.rcvd_total_compressed_message_size",
            Metric::CallDuration => "grpc.client.call.duration",
            Metric::CallRetries => "grpc.client.call.retries",
            Metric::CallTransparentRetries => "grpc.client.call.transparent_retries",
            Metric::CallRetryDelay => "grpc.client.call.retry_delay",
            Metric::WrrRrFallback => "grpc.lb.wrr.rr_fallback",
            Metric::WrrEndpointWeightNotYetUsable => "grpc.lb.wrr.endpoint_weight_not_yet_usable",
            Metric::WrrEndpointWeightStale => "grpc.lb.wrr.endpoint_weight_stale",
            Metric::WrrEndpointWeights => "grpc.lb.wrr.endpoint_weights",
            Metric::OutlierEjectionsEnforced => "grpc.lb.outlier_detection.ejections_enforced",
            Metric::OutlierEjectionsUnenforced => "grpc.lb.outlier_detection.ejections_unenforced",
            Metric::SubchannelDisconnections => "grpc.subchannel.disconnections",
            Metric::SubchannelConnectionAttemptsSucceeded => "grpc.subchannel.connection_attempts_succeeded",
            Metric::SubchannelConnectionAttemptsFailed => "grpc.subchannel.connection_attempts_failed",
            Metric::SubchannelOpenConnections => "grpc.subchannel.open_connections",
            Metric::XdsConnected => "grpc.xds_client.connected",
            Metric::XdsServerFailure => "grpc.xds_client.server_failure",
            Metric::XdsResourceUpdatesValid => "grpc.xds_client.resource_updates_valid",
            Metric::XdsResourceUpdatesInvalid => "grpc.xds_client.resource_updates_invalid",
            Metric::XdsResources => "grpc.xds_client.resources",
            Metric::LoadReportsIgnored => "evenkeel.client.load_reports.ignored",
        }
    }

    /// Returns the unit, in UCUM notation.
    pub fn unit(self) -> &'static str {
        match self {
            Metric::AttemptDuration | Metric::CallDuration | Metric::CallRetryDelay => "s",
            Metric::AttemptSentSize | Metric::AttemptReceivedSize => "By",
            Metric::AttemptStarted
            | Metric::SubchannelConnectionAttemptsSucceeded
            | Metric::SubchannelConnectionAttemptsFailed => "{attempt}",
            Metric::CallRetries => "{retry}",
            Metric::CallTransparentRetries => "{transparent_retry}",
            Metric::LoadReportsIgnored => "{report}",
            Metric::WrrRrFallback => "{update}",
            Metric::WrrEndpointWeightNotYetUsable | Metric::WrrEndpointWeightStale => "{endpoint}",
            Metric::WrrEndpointWeights => "{weight}",
            Metric::OutlierEjectionsEnforced | Metric::OutlierEjectionsUnenforced => "{ejection}",
            Metric::SubchannelDisconnections => "{disconnection}",
            Metric::SubchannelOpenConnections => "{connection}",
            Metric::XdsConnected => "{bool}",
            Metric::XdsServerFailure => "{failure}",
            Metric::XdsResourceUpdatesValid | Metric::XdsResourceUpdatesInvalid | Metric::XdsResources => {
                "{resource}"
            }
        }
    }

    /// Returns the description that exporters attach to the instrument.
    pub fn description(self) -> &'static str {
        match self {
            Metric::AttemptStarted => "Number of attempts started, including those in progress",
            Metric::AttemptDuration => "End-to-end time of an attempt, including the pick",
            Metric::AttemptSentSize => "Compressed request message bytes sent per attempt, without framing",
            Metric::AttemptReceivedSize => {
                "Compressed response message bytes received per attempt, without framing"
            }
            Metric::CallDuration => "End-to-end time of an RPC from the application's perspective",
            Metric::CallRetries => "Number of retries of a call, if it had any",
            Metric::CallTransparentRetries => "Number of transparent retries of a call, if it had any",
            Metric::CallRetryDelay => "Total time without an active attempt during a retried call",
            Metric::WrrRrFallback => {
                "Number of scheduler updates with too few usable weights, which fell back to round robin"
            }
            Metric::WrrEndpointWeightNotYetUsable => {
                "Number of endpoints without a usable weight yet, per scheduler update"
            }
            Metric::WrrEndpointWeightStale => {
                "Number of endpoints whose weight has expired, per scheduler update"
            }
            Metric::WrrEndpointWeights => {
                "Weight of each endpoint, recorded on every scheduler update; 0 if unusable"
            }
            Metric::OutlierEjectionsEnforced => "Number of enforced outlier ejections",
            Metric::OutlierEjectionsUnenforced => "Number of outlier ejections that were not enforced",
            Metric::SubchannelDisconnections => "Number of disconnections of the selected subchannel",
            Metric::SubchannelConnectionAttemptsSucceeded => "Number of successful connection attempts",
            Metric::SubchannelConnectionAttemptsFailed => "Number of failed connection attempts",
            Metric::SubchannelOpenConnections => "Number of open connections",
            Metric::XdsConnected => "Whether the xDS client has a working ADS stream to the server",
            Metric::XdsServerFailure => "Number of times the xDS server went from healthy to unhealthy",
            Metric::XdsResourceUpdatesValid => "Number of valid resources received, including unchanged ones",
            Metric::XdsResourceUpdatesInvalid => "Number of invalid resources received",
            Metric::XdsResources => "Number of xDS resources by cache state",
            Metric::LoadReportsIgnored => "Number of load reports with ignored content, by reason",
        }
    }

    /// Returns true if the metric is on by default. Metrics of A66 and evenkeel's own are; gRPC's experimental ones are
    /// not (A79).
    pub fn is_on_by_default(self) -> bool {
        matches!(
            self,
            Metric::AttemptStarted
                | Metric::AttemptDuration
                | Metric::AttemptSentSize
                | Metric::AttemptReceivedSize
                | Metric::CallDuration
                | Metric::LoadReportsIgnored
        )
    }

    pub(super) fn buckets(self) -> HistogramBuckets {
        match self {
            Metric::AttemptDuration | Metric::CallDuration | Metric::CallRetryDelay => {
                HistogramBuckets::Latency
            }
            Metric::AttemptSentSize | Metric::AttemptReceivedSize => HistogramBuckets::Size,
            Metric::CallRetries => HistogramBuckets::Few,
            Metric::CallTransparentRetries => HistogramBuckets::FewAndTen,
            _ => HistogramBuckets::Default,
        }
    }
}
