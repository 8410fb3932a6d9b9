//! Data of the status page: the JSON of `/api/state`, which [`AdminState`] also deserializes.
//!
//! Times are milliseconds since the Unix epoch. Rates, actual shares and latencies cover the last two sampling
//! intervals. Totals start when the process first enables counting, or with the channel if that is later.

use evenkeel_core::{ConnectivityState, Description};
use serde::{Deserialize, Serialize};

pub use super::verdict::{HealthVerdict, VerdictCause, VerdictKind, VerdictLevel};
pub use crate::telemetry::traffic::FailureCause;

/// State of a process at one time.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AdminState {
    /// Name of the process.
    pub title: String,
    /// Version of evenkeel in the process.
    pub version: String,
    /// Operating system's id of the process.
    pub pid: u32,
    /// Time at which sampling started.
    pub since: u64,
    /// Time of this sample.
    pub at: u64,
    /// Channels of the process, oldest first.
    pub channels: Vec<ChannelInfo>,
    /// xDS clients of the process.
    pub xds: Vec<XdsClientInfo>,
    /// Latest events, oldest first; at most a few hundred.
    pub events: Vec<AdminEvent>,
    /// Problems that an operator should check.
    pub hints: Vec<String>,
    /// Verdict over all channels and xDS clients. [`AdminState::judge`] sets it.
    #[serde(default)]
    pub verdict: Option<HealthVerdict>,
}

/// State of a channel at one time.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChannelInfo {
    /// Id of the channel, unique in the process.
    pub id: u64,
    /// Target of the channel.
    pub target: String,
    /// Connectivity state of the channel.
    pub state: ConnectivityState,
    /// Calls of the channel.
    pub traffic: TrafficStats,
    /// Endpoints of the policy tree, in its order.
    pub endpoints: Vec<EndpointInfo>,
    /// Policy tree; `None` while the channel is IDLE or has no config.
    pub tree: Option<Description>,
    /// Reason why the channel has no config, if it has none and is not IDLE.
    #[serde(default)]
    pub waiting: Option<String>,
    /// Calls that clusters dropped in the last minute, by drop category.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drops: Vec<ClusterDrops>,
    /// Verdict over this channel. [`AdminState::judge`] sets it.
    #[serde(default)]
    pub verdict: Option<HealthVerdict>,
}

/// Calls that a cluster dropped before they were sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClusterDrops {
    /// Name of the cluster.
    pub cluster: String,
    /// Drop category of the control plane; `None` for the circuit breaker.
    pub category: Option<String>,
    /// Maximum number of calls in flight, for the circuit breaker.
    pub limit: Option<u64>,
    /// Number of calls dropped in the last minute.
    pub count: u64,
}

/// State of an endpoint at one time.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EndpointInfo {
    /// Address of the endpoint; the first one if it has several.
    pub address: String,
    /// Hostname from the control plane.
    pub name: Option<String>,
    /// Cluster of the endpoint.
    pub cluster: Option<String>,
    /// Priority of the endpoint; 0 is the highest.
    pub priority: Option<u32>,
    /// Locality of the endpoint.
    pub locality: Option<String>,
    /// Connectivity state, as the policy uses it.
    pub state: ConnectivityState,
    /// Reason why the endpoint gets no calls, if it gets none.
    pub unused: Option<String>,
    /// Current weight, if the policy uses weights.
    pub weight: Option<f64>,
    /// Expected share of the cluster's calls, 0 to 1, if constant.
    pub want: Option<f64>,
    /// Actual share of the cluster's calls, 0 to 1; `None` without calls.
    pub got: Option<f64>,
    /// Smoothed difference of the actual and the expected share, if it is larger than chance explains.
    #[serde(default)]
    pub off: Option<f64>,
    /// Utilization that the endpoint reported (ORCA); 1 is full.
    pub utilization: Option<f64>,
    /// Calls to the endpoint.
    pub traffic: TrafficStats,
}

/// Call statistics of a channel or an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TrafficStats {
    /// Number of calls started.
    pub started: u64,
    /// Number of calls that ended with OK.
    pub succeeded: u64,
    /// Number of calls that ended with an error.
    pub failed: u64,
    /// Number of active calls.
    pub in_flight: u64,
    /// Calls started per second.
    pub rate: f64,
    /// Calls failed per second.
    pub failures: f64,
    /// Median latency in milliseconds.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the latency in milliseconds.
    pub p99_ms: Option<f64>,
    /// Number of calls that ended in the last minute.
    #[serde(default)]
    pub recent_calls: u64,
    /// Calls that failed in the last minute, by status code and cause, most frequent first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recent_failures: Vec<FailureCount>,
    /// A recent failure with its text. At most ten texts per second are stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<FailedCall>,
}

impl TrafficStats {
    /// Returns the number of calls that failed in the last minute.
    pub fn recent_failed(&self) -> u64 {
        self.recent_failures.iter().map(|failures| failures.count).sum()
    }
}

/// Number of calls that failed with one status code and one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FailureCount {
    /// Status code, such as `UNAVAILABLE`.
    pub code: String,
    /// Step at which the calls failed.
    pub cause: FailureCause,
    /// Number of failed calls of this kind.
    pub count: u64,
}

/// Failure of one call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FailedCall {
    /// Time of the failure.
    pub at: u64,
    /// Status code, such as `UNAVAILABLE`.
    pub code: String,
    /// Step at which the call failed.
    pub cause: FailureCause,
    /// Status message, truncated to 256 bytes. It may come from the server.
    pub text: String,
}

/// State of an xDS client at one time.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct XdsClientInfo {
    /// Client scope, as in CSDS.
    pub scope: String,
    /// Node id of the client.
    pub node: String,
    /// Control planes that the client has used.
    pub servers: Vec<XdsServerInfo>,
    /// Resources that the client subscribes to.
    pub resources: Vec<XdsResourceInfo>,
}

/// Control plane of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct XdsServerInfo {
    /// URI of the control plane.
    pub uri: String,
    /// True if the ADS stream works.
    pub connected: bool,
}

/// Resource of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct XdsResourceInfo {
    /// Message name: `Listener`, `RouteConfiguration`, `Cluster`, `ClusterLoadAssignment`.
    pub kind: String,
    /// Name of the resource.
    pub name: String,
    /// Version in use; empty if there is none.
    pub version: String,
    /// CSDS status: `ACKED`, `NACKED`, `REQUESTED`, `DOES_NOT_EXIST`, `TIMEOUT`, `RECEIVED_ERROR`.
    pub status: String,
    /// Time at which the version in use was received.
    pub updated: Option<u64>,
    /// Error of a later update.
    pub error: Option<XdsResourceError>,
}

/// Error of a rejected resource update.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct XdsResourceError {
    /// Version that was rejected.
    pub version: String,
    /// All problems of the update.
    pub details: String,
    /// Time at which the update was received.
    pub at: Option<u64>,
}

/// Entry of the event list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AdminEvent {
    /// Sequence number, unique in the process.
    pub number: u64,
    /// Time of the sample that detected the event.
    pub at: u64,
    /// Severity of the event.
    pub level: EventLevel,
    /// Subject: a channel's target, an endpoint or a resource; empty for the process.
    pub subject: String,
    /// Short description of the event.
    pub text: String,
}

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventLevel {
    /// Marked by the application, such as a deployment.
    Mark,
    /// Information without any action.
    Info,
    /// Condition that an operator should check.
    Warning,
    /// Calls may have failed.
    Error,
}

/// The last 120 samples of one channel, for charts: `/api/history`.
///
/// All lists have the length of `at` and start with the oldest sample.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChannelHistory {
    /// Id of the channel.
    pub id: u64,
    /// Times of the samples.
    pub at: Vec<u64>,
    /// Series of the whole channel.
    pub total: MetricSeries,
    /// Series of each endpoint, by address.
    pub endpoints: Vec<(String, MetricSeries)>,
}

/// Chart series. A sample without the endpoint is `None`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MetricSeries {
    /// Number of calls started per second.
    pub rate: Vec<Option<f64>>,
    /// Number of calls failed per second.
    pub failures: Vec<Option<f64>>,
    /// 99th percentile of the latency in milliseconds.
    pub p99_ms: Vec<Option<f64>>,
    /// Actual share of calls.
    pub got: Vec<Option<f64>>,
    /// Utilization that the endpoint reported.
    pub utilization: Vec<Option<f64>>,
}
