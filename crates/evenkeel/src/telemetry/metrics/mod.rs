//! Metrics with gRPC's names, for OpenTelemetry (A66, A78, A79, A89, A91, A94, A96).
//!
//! The request path, the driver and the xDS thread report events to [`ChannelMetrics`]. Instruments are private to
//! this module. A channel without metrics has `ChannelMetrics::default()`, in which every meter is `None`. Without the
//! feature `otel` the same types are empty and do nothing, so callers need no `cfg`.
//!
//! | meter | starts | ends |
//! |---|---|---|
//! | [`CallMeter`] | with the call | with its status; if dropped, as CANCELLED |
//! | [`AttemptMeter`] | with the attempt, before the pick | with its status; if all clones are dropped, as CANCELLED |
//! | [`ConnectionMeter`] | when the connection is established | on disconnect; if dropped, as subchannel shutdown |
//! | [`XdsMeter`] | with the xDS client | when the client is dropped |

use std::fmt;

use evenkeel_http2::Reason;

#[cfg(not(feature = "otel"))]
mod off;
#[cfg(feature = "otel")]
mod otel;

#[cfg(not(feature = "otel"))]
pub(crate) use off::{AttemptMeter, CallMeter, ChannelMetrics, ConnectionMeter, XdsMeter};
#[cfg(feature = "prometheus")]
pub use otel::PrometheusMetrics;
#[cfg(feature = "otel")]
pub(crate) use otel::{AttemptMeter, CallMeter, ChannelMetrics, ConnectionMeter, XdsMeter};
#[cfg(feature = "otel")]
pub use otel::{Metric, MetricLabel, OtelMetrics, OtelMetricsBuilder};

/// Reason of a disconnect. Only the first reason of a connection is recorded (A94).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DisconnectReason {
    /// The peer sent GOAWAY with this error code.
    GoAway(Reason),
    /// The client closed the connection because no subchannel needs it.
    Shutdown,
    /// The peer reset the TCP connection.
    Reset,
    /// The connection timed out, for example by keepalive.
    TimedOut,
    /// The local side aborted the connection.
    Aborted,
    /// Any other socket error.
    Socket,
    /// Any reason without a value of its own in A94.
    Unknown,
}

impl DisconnectReason {
    /// Returns the value of the label `grpc.disconnect_error`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            DisconnectReason::GoAway(code) => go_away(code),
            DisconnectReason::Shutdown => "subchannel shutdown",
            DisconnectReason::Reset => "connection reset",
            DisconnectReason::TimedOut => "connection timed out",
            DisconnectReason::Aborted => "connection aborted",
            DisconnectReason::Socket => "socket error",
            DisconnectReason::Unknown => "unknown",
        }
    }
}

impl fmt::Display for DisconnectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Returns the label value of a GOAWAY. Unknown codes count as INTERNAL_ERROR (RFC 9113, section 7), so a peer cannot
/// create label values.
fn go_away(code: Reason) -> &'static str {
    match code {
        Reason::NO_ERROR => "GOAWAY NO_ERROR",
        Reason::PROTOCOL_ERROR => "GOAWAY PROTOCOL_ERROR",
        Reason::FLOW_CONTROL_ERROR => "GOAWAY FLOW_CONTROL_ERROR",
        Reason::SETTINGS_TIMEOUT => "GOAWAY SETTINGS_TIMEOUT",
        Reason::STREAM_CLOSED => "GOAWAY STREAM_CLOSED",
        Reason::FRAME_SIZE_ERROR => "GOAWAY FRAME_SIZE_ERROR",
        Reason::REFUSED_STREAM => "GOAWAY REFUSED_STREAM",
        Reason::CANCEL => "GOAWAY CANCEL",
        Reason::COMPRESSION_ERROR => "GOAWAY COMPRESSION_ERROR",
        Reason::CONNECT_ERROR => "GOAWAY CONNECT_ERROR",
        Reason::ENHANCE_YOUR_CALM => "GOAWAY ENHANCE_YOUR_CALM",
        Reason::INADEQUATE_SECURITY => "GOAWAY INADEQUATE_SECURITY",
        Reason::HTTP_1_1_REQUIRED => "GOAWAY HTTP_1_1_REQUIRED",
        _ => "GOAWAY INTERNAL_ERROR",
    }
}

/// Security level of a connection (A94). Integrity without privacy does not occur here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SecurityLevel {
    /// Plaintext: neither privacy nor integrity.
    None,
    /// Protected by TLS or mTLS.
    PrivacyAndIntegrity,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PF-15: each disconnect reason has its label value.
    #[test]
    fn every_way_to_lose_a_connection_has_its_words() {
        let cases = [
            (DisconnectReason::GoAway(Reason::NO_ERROR), "GOAWAY NO_ERROR"),
            (DisconnectReason::GoAway(Reason::ENHANCE_YOUR_CALM), "GOAWAY ENHANCE_YOUR_CALM"),
            (DisconnectReason::GoAway(Reason::INTERNAL_ERROR), "GOAWAY INTERNAL_ERROR"),
            (DisconnectReason::GoAway(Reason::from(4711)), "GOAWAY INTERNAL_ERROR"),
            (DisconnectReason::Shutdown, "subchannel shutdown"),
            (DisconnectReason::Reset, "connection reset"),
            (DisconnectReason::TimedOut, "connection timed out"),
            (DisconnectReason::Aborted, "connection aborted"),
            (DisconnectReason::Socket, "socket error"),
            (DisconnectReason::Unknown, "unknown"),
        ];
        for (reason, words) in cases {
            assert_eq!(reason.to_string(), words);
        }
        for code in 0..14 {
            let code = Reason::from(code);
            assert_eq!(DisconnectReason::GoAway(code).to_string(), format!("GOAWAY {code:?}"));
        }
    }

    /// A channel without metrics allocates nothing for its meters.
    #[test]
    fn without_metrics_nothing_is_kept() {
        let metrics = ChannelMetrics::default().for_target("dns:///a".into());
        assert!(!metrics.records_policies() && !metrics.needs_labels());
        let call = metrics.call("/a.B/C");
        let attempt = call.start_attempt();
        assert!(size_of_val(&call) <= size_of::<usize>() && size_of_val(&attempt) <= size_of::<usize>());
        if cfg!(not(feature = "otel")) {
            assert_eq!(
                (size_of::<ChannelMetrics>(), size_of::<CallMeter>(), size_of::<AttemptMeter>()),
                (0, 0, 0)
            );
            assert_eq!((size_of::<ConnectionMeter>(), size_of::<XdsMeter>()), (0, 0));
        }
    }
}
