//! Load reports to control planes (LRS, A27): streams, intervals and messages.
//!
//! [`evenkeel_core::load::LoadStore`] keeps the counters. An [`LrsClient`] turns them into messages. There is
//! one stream per server that at least one cluster reports to:
//!
//! ```text
//!                 opened: send the node             first response
//!      Opening ───────────────────────▶ Waiting ─────────────────────▶ Reporting ──┐ every interval,
//!         ▲ │ closed                       │ closed               closed │    ▲    │ a report
//!         │ ▼                              ▼                             │    └────┘
//!        Down ◀──────────────────────────────────────────────────────────┘
//! ```
//!
//! A stream that ends is reopened after a backoff, with any status. A server without the LRS service may
//! offer it later, and an attempt every two minutes costs little. The counters continue meanwhile, so the
//! next report covers the whole time. When no cluster reports to a server any more, the client sends one last
//! report and closes the stream.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::load::{ClusterStats, LoadStore, LocalityStats, MetricSum};
use evenkeel_core::{Backoff, Instant, Rng, Status};
use evenkeel_proto::envoy::config::core::v3::{Locality, Node};
use evenkeel_proto::envoy::config::endpoint::v3::cluster_stats::DroppedRequests;
use evenkeel_proto::envoy::config::endpoint::v3::{
    self as wire, EndpointLoadMetricStats, UnnamedEndpointLoadMetricStats, UpstreamLocalityStats,
};
use evenkeel_proto::envoy::service::load_stats::v3::{LoadStatsRequest, LoadStatsResponse};
use evenkeel_proto::prost::Message as _;
use evenkeel_proto::prost_types;

use crate::resource::fields;
use crate::text::quoted_long;
use crate::{FieldPath, ValidationErrors};

/// Client feature that announces support for `send_all_clusters`.
const SEND_ALL_CLUSTERS_FEATURE: &str = "envoy.lrs.supports_send_all_clusters";

/// Minimum interval between reports. A shorter interval in a response is raised to it.
const MIN_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time until the first response on a stream that is kept open only for its last report (as in
/// grpc-go).
const FINAL_REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Load reports to all servers.
///
/// The driver reports stream events (`handle_*`) and then performs the effects that [`LrsClient::poll`]
/// returns. It also polls at [`LrsClient::next_deadline`], and whenever clusters may start or stop reporting:
/// after a pass of the core and after a channel is dropped. Additional polls are harmless.
#[derive(Debug)]
pub struct LrsClient {
    node: Node,
    store: Arc<LoadStore>,
    rng: Rng,
    backoff: Backoff,
    servers: BTreeMap<Arc<str>, LrsServer>,
    streams: u64,
    effects: Vec<LrsEffect>,
}

/// Id of an LRS stream. Ids are never reused, so late events of a closed stream are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LrsStreamId(u64);

/// Action for the driver to perform.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LrsEffect {
    /// Call `StreamLoadStats` on this server. The driver reports [`LrsClient::handle_opened`] or
    /// [`LrsClient::handle_closed`].
    Open {
        /// Id of the stream to open.
        stream: LrsStreamId,
        /// URI of the control plane.
        server: Arc<str>,
    },
    /// Send a request on the stream.
    Send {
        /// Id of the stream to send on.
        stream: LrsStreamId,
        /// Request to encode and send.
        request: Box<LoadStatsRequest>,
    },
    /// Half-close the stream after all earlier requests are written, or cancel its opening. Later events of
    /// this id are ignored.
    Close {
        /// Id of the stream to close.
        stream: LrsStreamId,
    },
    /// Log a warning for the operator.
    Warn(String),
}

#[derive(Debug)]
struct LrsServer {
    state: LrsStreamState,
    /// Number of consecutive streams that ended without a response.
    attempts: u32,
    /// Deadline of the last report. Set while no cluster reports to the server.
    close_at: Option<Instant>,
}

#[derive(Debug)]
enum LrsStreamState {
    Down { retry_at: Instant },
    Opening(LrsStream),
    Waiting(LrsStream),
    Reporting(LrsStream, ReportSchedule),
}

#[derive(Clone, Copy, Debug)]
struct LrsStream {
    id: LrsStreamId,
    /// End of the backoff if the stream ends without a response.
    retry_at: Instant,
    /// End of the backoff if the stream ends after a response.
    retry_at_best: Instant,
}

/// Clusters and interval that a server requested.
#[derive(Debug)]
struct ReportSchedule {
    clusters: ReportedClusters,
    interval: Duration,
    /// Time of the last report, or of the first response on the stream.
    last: Instant,
}

#[derive(Debug)]
enum ReportedClusters {
    All,
    Named(HashSet<String>),
}

impl LrsClient {
    /// Creates a client that reports the counters of `store` with the identity of `node`.
    pub fn new(mut node: Node, store: Arc<LoadStore>, rng: Rng) -> LrsClient {
        if !node.client_features.iter().any(|feature| feature == SEND_ALL_CLUSTERS_FEATURE) {
            node.client_features.push(SEND_ALL_CLUSTERS_FEATURE.to_owned());
        }
        LrsClient {
            node,
            store,
            rng,
            backoff: Backoff::default(),
            servers: BTreeMap::new(),
            streams: 0,
            effects: Vec::new(),
        }
    }

    /// Handles the opening of a stream: the first request carries the node.
    pub fn handle_opened(&mut self, id: LrsStreamId) {
        let Some((_, server)) = find(&mut self.servers, id) else { return };
        if let LrsStreamState::Opening(stream) = server.state {
            server.state = LrsStreamState::Waiting(stream);
            let request = LoadStatsRequest { node: Some(self.node.clone()), cluster_stats: Vec::new() };
            self.effects.push(LrsEffect::Send { stream: id, request: Box::new(request) });
        }
    }

    /// Handles a message of the server. A message that cannot be decoded is ignored with a warning.
    pub fn handle_message(&mut self, id: LrsStreamId, bytes: &[u8], now: Instant) {
        let Some((uri, server)) = find(&mut self.servers, id) else { return };
        let mut warn =
            |text: String| self.effects.push(LrsEffect::Warn(format!("load reports to {uri:?}: {text}")));
        let response = match LoadStatsResponse::decode(bytes) {
            Ok(response) => response,
            Err(error) => return warn(format!("a response cannot be decoded and is ignored: {error}")),
        };
        // A changed interval counts from the last report.
        let (stream, last) = match &server.state {
            LrsStreamState::Waiting(stream) => (*stream, now),
            LrsStreamState::Reporting(stream, schedule) => (*stream, schedule.last),
            LrsStreamState::Down { .. } | LrsStreamState::Opening(_) => return,
        };
        let mut problems = ValidationErrors::new();
        let path = FieldPath::root();
        let interval = response.load_reporting_interval.as_ref();
        let interval = interval.and_then(|interval| {
            fields::duration(interval, &path.field("load_reporting_interval"), &mut problems)
        });
        if !problems.is_empty() {
            warn(format!("{problems}; every {MIN_REPORT_INTERVAL:?} is taken"));
        }
        if response.report_endpoint_granularity {
            warn(
                "load per endpoint is requested but not reported: localities are the smallest unit"
                    .to_owned(),
            );
        }
        let clusters = if response.send_all_clusters {
            ReportedClusters::All
        } else {
            ReportedClusters::Named(response.clusters.into_iter().collect())
        };
        let interval = interval.unwrap_or_default().max(MIN_REPORT_INTERVAL);
        server.attempts = 0;
        server.state = LrsStreamState::Reporting(stream, ReportSchedule { clusters, interval, last });
    }

    /// Handles the end of a stream, or the failure to open it.
    pub fn handle_closed(&mut self, id: LrsStreamId, status: &Status, now: Instant) {
        let Some((uri, server)) = find(&mut self.servers, id) else { return };
        let retry_at = match &server.state {
            LrsStreamState::Reporting(stream, _) => stream.retry_at_best.max(now),
            LrsStreamState::Opening(stream) | LrsStreamState::Waiting(stream) => {
                // Log once until the next response.
                if server.attempts == 0 {
                    let (code, message) = (status.code(), quoted_long(status.message()));
                    let text = format!("the stream ended with {code:?} {message}; it is retried");
                    self.effects.push(LrsEffect::Warn(format!("load reports to {uri:?}: {text}")));
                }
                server.attempts = server.attempts.saturating_add(1);
                stream.retry_at.max(now)
            }
            LrsStreamState::Down { .. } => return,
        };
        server.state = LrsStreamState::Down { retry_at };
    }

    /// Returns the actions that are due.
    pub fn poll(&mut self, now: Instant) -> Vec<LrsEffect> {
        let counted: BTreeMap<Arc<str>, bool> = self.store.servers().into_iter().collect();
        for uri in counted.keys() {
            self.servers.entry(uri.clone()).or_insert_with(|| LrsServer {
                state: LrsStreamState::Down { retry_at: now },
                attempts: 0,
                close_at: None,
            });
        }
        let mut servers = std::mem::take(&mut self.servers);
        servers.retain(|uri, server| {
            let held = counted.get(uri).copied().unwrap_or(false);
            // A deadline that is set stays: polling again must not extend the time of the last report.
            server.close_at = if held { None } else { server.close_at.or(Some(now + FINAL_REPORT_TIMEOUT)) };
            self.poll_server(uri, server, now)
        });
        self.servers = servers;
        std::mem::take(&mut self.effects)
    }

    /// Returns the time of the next poll if no event happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        let deadline = |server: &LrsServer| match &server.state {
            LrsStreamState::Down { retry_at } => Some(*retry_at),
            LrsStreamState::Opening(_) | LrsStreamState::Waiting(_) => server.close_at,
            LrsStreamState::Reporting(_, schedule) => Some(schedule.due()),
        };
        self.servers.values().filter_map(deadline).min()
    }

    /// Queues the actions that are due for a server. Returns false if the server is to be removed.
    fn poll_server(&mut self, uri: &Arc<str>, server: &mut LrsServer, now: Instant) -> bool {
        match &mut server.state {
            // Also without clusters that report: the last report is still attempted (LRS-8).
            LrsStreamState::Down { retry_at } if *retry_at <= now => {
                server.state = LrsStreamState::Opening(self.open(uri, server.attempts, now));
                true
            }
            LrsStreamState::Down { .. } => {
                if server.close_at.is_some() {
                    // Release the counters: no report will contain them.
                    self.store.take(uri, |_| false, now);
                }
                server.close_at.is_none()
            }
            LrsStreamState::Opening(stream) | LrsStreamState::Waiting(stream) => {
                let stays = server.close_at.is_none_or(|at| now < at);
                if !stays {
                    self.store.take(uri, |_| false, now);
                    self.effects.push(LrsEffect::Close { stream: stream.id });
                }
                stays
            }
            LrsStreamState::Reporting(stream, schedule) => {
                let stream = stream.id;
                let is_closing = server.close_at.is_some();
                if is_closing || schedule.due() <= now {
                    schedule.last = now;
                    let wanted = |cluster: &str| match &schedule.clusters {
                        ReportedClusters::All => true,
                        ReportedClusters::Named(names) => names.contains(cluster),
                    };
                    let stats = self.store.take(uri, wanted, now);
                    let left_out =
                        |stats: &ClusterStats| stats.localities.iter().any(|l| l.dropped_metrics > 0);
                    for stats in stats.iter().filter(|stats| left_out(stats)) {
                        let cluster = &stats.cluster;
                        let text = format!(
                            "backends report too many named metrics; some of cluster {cluster:?} are omitted"
                        );
                        self.effects.push(LrsEffect::Warn(format!("load reports to {uri:?}: {text}")));
                    }
                    // Empty reports are sent too, as in grpc-go: they show that the client is alive.
                    let cluster_stats = stats.into_iter().map(cluster_stats).collect();
                    let request = LoadStatsRequest { node: None, cluster_stats };
                    self.effects.push(LrsEffect::Send { stream, request: Box::new(request) });
                }
                if is_closing {
                    // The driver writes the last report before it half-closes the stream.
                    self.effects.push(LrsEffect::Close { stream });
                }
                !is_closing
            }
        }
    }

    fn open(&mut self, uri: &Arc<str>, attempts: u32, now: Instant) -> LrsStream {
        self.streams = self.streams.saturating_add(1);
        let id = LrsStreamId(self.streams);
        self.effects.push(LrsEffect::Open { stream: id, server: uri.clone() });
        // Backoff counts from the start of the stream. A long-lived stream is therefore reopened at once.
        let mut after = |attempts| now + self.backoff.wait(attempts, &mut self.rng);
        LrsStream { id, retry_at: after(attempts), retry_at_best: after(0) }
    }
}

impl ReportSchedule {
    fn due(&self) -> Instant {
        self.last + self.interval
    }
}

impl LrsStreamState {
    fn stream(&self) -> Option<LrsStreamId> {
        match self {
            LrsStreamState::Down { .. } => None,
            LrsStreamState::Opening(stream)
            | LrsStreamState::Waiting(stream)
            | LrsStreamState::Reporting(stream, _) => Some(stream.id),
        }
    }
}

fn find(servers: &mut BTreeMap<Arc<str>, LrsServer>, id: LrsStreamId) -> Option<(&Arc<str>, &mut LrsServer)> {
    servers.iter_mut().find(|(_, server)| server.state.stream() == Some(id))
}

fn cluster_stats(stats: ClusterStats) -> wire::ClusterStats {
    let dropped = |(category, count): &(Arc<str>, u64)| DroppedRequests {
        category: category.to_string(),
        dropped_count: *count,
    };
    wire::ClusterStats {
        cluster_name: stats.cluster.to_string(),
        cluster_service_name: stats.eds_service_name.as_deref().unwrap_or_default().to_owned(),
        upstream_locality_stats: stats.localities.into_iter().map(locality_stats).collect(),
        total_dropped_requests: stats.total_drops,
        dropped_requests: stats.drops.iter().map(dropped).collect(),
        load_report_interval: Some(duration(stats.interval)),
    }
}

fn locality_stats(stats: LocalityStats) -> UpstreamLocalityStats {
    let unnamed = |MetricSum { count, total }: MetricSum| {
        (count > 0).then_some(UnnamedEndpointLoadMetricStats {
            num_requests_finished_with_metric: count,
            total_metric_value: total,
        })
    };
    let named = |(name, MetricSum { count, total }): (String, MetricSum)| EndpointLoadMetricStats {
        metric_name: format!("named_metrics.{name}"),
        num_requests_finished_with_metric: count,
        total_metric_value: total,
    };
    UpstreamLocalityStats {
        locality: Some(Locality {
            region: stats.locality.region.clone(),
            zone: stats.locality.zone.clone(),
            sub_zone: stats.locality.sub_zone.clone(),
        }),
        total_successful_requests: stats.succeeded,
        total_requests_in_progress: stats.in_progress,
        total_error_requests: stats.failed,
        total_issued_requests: stats.issued,
        cpu_utilization: unnamed(stats.cpu_utilization),
        mem_utilization: unnamed(stats.mem_utilization),
        application_utilization: unnamed(stats.application_utilization),
        load_metric_stats: stats.named_metrics.into_iter().map(named).collect(),
        priority: 0,
    }
}

fn duration(time: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        nanos: time.subsec_nanos().cast_signed(),
    }
}
