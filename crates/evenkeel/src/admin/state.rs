//! What the page shows, as data: the same that `/api/state` answers and that [`AdminState`] reads back.
//!
//! Times are milliseconds since 1970; rates, got shares and latencies are those of the last second or so, totals those since the channel began.

use evenkeel_core::{ConnectivityState, Description};
use serde::{Deserialize, Serialize};

/// A process at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AdminState {
    /// What the process calls itself.
    pub title: String,
    /// The version of evenkeel.
    pub version: String,
    /// The process.
    pub pid: u32,
    /// When it began to be watched.
    pub since: u64,
    /// When this was seen.
    pub at: u64,
    /// Its channels, the oldest first.
    pub channels: Vec<ChannelInfo>,
    /// Its xDS clients.
    pub xds: Vec<XdsClientInfo>,
    /// What happened, the oldest first; the last few hundred.
    pub events: Vec<AdminEvent>,
    /// What its operator may want to look at.
    pub hints: Vec<String>,
}

/// A channel at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChannelInfo {
    /// Stays the same while the channel lives, and is no other channel's.
    pub id: u64,
    /// What it was built for.
    pub target: String,
    /// How well it is connected.
    pub state: ConnectivityState,
    /// Its calls.
    pub traffic: TrafficStats,
    /// Every endpoint of the tree, in its order.
    pub endpoints: Vec<EndpointInfo>,
    /// Its policies; none while the channel rests.
    pub tree: Option<Description>,
}

/// An endpoint at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EndpointInfo {
    /// Where it is; the first address if it has several.
    pub address: String,
    /// What the control plane calls it.
    pub name: Option<String>,
    /// Of which cluster it is.
    pub cluster: Option<String>,
    /// Of which priority it is; 0 is the first choice.
    pub priority: Option<u32>,
    /// Of which locality it is.
    pub locality: Option<String>,
    /// The state of its connection, as its policy counts it.
    pub state: ConnectivityState,
    /// Why it gets no calls, if it gets none.
    pub unused: Option<String>,
    /// The weight in force, if its policy weighs.
    pub weight: Option<f64>,
    /// The share of the cluster's calls that it should get, 0 to 1, if that is fixed.
    pub want: Option<f64>,
    /// The share of the cluster's calls that it got, 0 to 1; none while there are no calls.
    pub got: Option<f64>,
    /// How busy it says it is (ORCA); 1 is all that it can do.
    pub utilization: Option<f64>,
    /// Its calls.
    pub traffic: TrafficStats,
}

/// Calls of a channel or an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TrafficStats {
    /// How many began.
    pub started: u64,
    /// How many ended well.
    pub succeeded: u64,
    /// How many ended with an error.
    pub failed: u64,
    /// How many have not ended.
    pub in_flight: u64,
    /// Calls that began per second.
    pub rate: f64,
    /// Calls that failed per second.
    pub failures: f64,
    /// Half of the calls took at most this long, in milliseconds.
    pub p50_ms: Option<f64>,
    /// 99 of 100 calls took at most this long, in milliseconds.
    pub p99_ms: Option<f64>,
}

/// An xDS client at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct XdsClientInfo {
    /// What it is called among the clients of the process (CSDS).
    pub scope: String,
    /// The node that it says it is.
    pub node: String,
    /// The control planes that it has talked to, and whether it is connected.
    pub servers: Vec<XdsServerInfo>,
    /// Every resource that it wants.
    pub resources: Vec<XdsResourceInfo>,
}

/// A control plane as a client sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct XdsServerInfo {
    /// Where it is.
    pub uri: String,
    /// Whether there is a working stream.
    pub connected: bool,
}

/// A resource as a client sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct XdsResourceInfo {
    /// `Listener`, `RouteConfiguration`, `Cluster`, `ClusterLoadAssignment`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The version in use; empty if there is none.
    pub version: String,
    /// As CSDS names it: `ACKED`, `NACKED`, `REQUESTED`, `DOES_NOT_EXIST`, `TIMEOUT`, `RECEIVED_ERROR`.
    pub status: String,
    /// When the version in use came.
    pub updated: Option<u64>,
    /// What is wrong with what came since.
    pub error: Option<XdsResourceError>,
}

/// Why a resource was not taken.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct XdsResourceError {
    /// The version that was not taken.
    pub version: String,
    /// Every problem with it.
    pub details: String,
    /// When it came.
    pub at: Option<u64>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AdminEvent {
    /// Counts up; no two events of a process have the same.
    pub number: u64,
    /// When it was seen.
    pub at: u64,
    /// How bad it is.
    pub level: EventLevel,
    /// What it is about: a channel's target, an endpoint, a resource; empty for the process itself.
    pub subject: String,
    /// What happened, in a few words.
    pub text: String,
}

/// How bad an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventLevel {
    /// Something was marked by the application: an act of a story, a deployment.
    Mark,
    /// Good to know.
    Info,
    /// Worth a look.
    Warning,
    /// Calls may have failed.
    Error,
}

/// The last two minutes of one channel, for charts: `/api/history`.
///
/// All lists are as long as `at`, the oldest first, one entry for each look (a second apart).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChannelHistory {
    /// The channel.
    pub id: u64,
    /// When each look was.
    pub at: Vec<u64>,
    /// Of the whole channel.
    pub total: MetricSeries,
    /// By address.
    pub endpoints: Vec<(String, MetricSeries)>,
}

/// One line of charts. An endpoint that was not there has `null`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MetricSeries {
    /// Calls per second.
    pub rate: Vec<Option<f64>>,
    /// Failures per second.
    pub failures: Vec<Option<f64>>,
    /// 99 of 100 calls took at most this long, in milliseconds.
    pub p99_ms: Vec<Option<f64>>,
    /// The share of calls that it got.
    pub got: Vec<Option<f64>>,
    /// How busy it says it is.
    pub utilization: Vec<Option<f64>>,
}
