//! Routing and balancing of a call as data: the `--json` output and the source of the text.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::cluster::{Cluster, ClusterMap, EndpointSet, EndpointSource, LeafCluster, stages};
use evenkeel_core::policy::DropCategory;
use evenkeel_core::{PickArgs, RequestMetadata};
use evenkeel_proto::envoy::config::core::v3::HealthStatus;
use evenkeel_proto::envoy::config::core::v3::address::Address as AddressKind;
use evenkeel_proto::envoy::config::core::v3::socket_address::PortSpecifier;
use evenkeel_proto::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use evenkeel_proto::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpoint};
use evenkeel_proto::prost::Message;
use evenkeel_xds::dependency_manager::XdsConfig;
use evenkeel_xds::resource::ResourceType;
use evenkeel_xds::routing::{
    ExplainedRoute, ForwardAction, RouteAction, RouteOutcome, WeightedCluster, XdsRetryPolicy,
};
use serde::Serialize;
use serde_json::Value;

use super::known::LocalResources;
use super::tree::{self, EndpointShare, PolicyNode};
use super::walk::ClientSimulation;

/// Reason for a route that does not match because of its path.
pub(crate) const OTHER_PATH: &str = "the path";

/// Call that the command explains.
#[derive(Debug)]
pub(crate) struct ExplainRequest {
    pub(crate) target: String,
    /// Name of the listener resource for the target.
    pub(crate) listener: String,
    /// Authority of the call.
    pub(crate) authority: String,
    pub(crate) path: String,
    pub(crate) headers: CallHeaders,
}

/// Headers of the call, with lower-case names.
#[derive(Debug, Default)]
pub(crate) struct CallHeaders(pub(crate) Vec<(String, String)>);

impl RequestMetadata for CallHeaders {
    fn value(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut values = self.0.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let first = values.next()?;
        Some(values.fold(Cow::Borrowed(first), |all, value| Cow::Owned(format!("{all},{value}"))))
    }
}

/// Explanation of the call.
#[derive(Debug, Serialize)]
pub(crate) struct Explanation {
    pub(crate) target: String,
    pub(crate) listener: String,
    pub(crate) path: String,
    pub(crate) virtual_host: Option<String>,
    /// Reason why every call fails, if it does.
    pub(crate) failure: Option<String>,
    /// Routes up to the first that takes all remaining calls.
    pub(crate) routes: Vec<RouteExplanation>,
    /// Fraction of calls that match no route; they fail.
    pub(crate) unrouted: f64,
    /// Clusters that the call may be routed to.
    pub(crate) clusters: Vec<ClusterExplanation>,
}

/// Route and its match result.
#[derive(Debug, Serialize)]
pub(crate) struct RouteExplanation {
    pub(crate) name: String,
    pub(crate) route: String,
    /// Reason why the route does not match.
    pub(crate) misses: Option<String>,
    /// Fraction of such calls that the route takes.
    pub(crate) share: f64,
    /// Forwarding of its calls; `None` if it takes none, or its action is unsupported by clients.
    pub(crate) forward: Option<ForwardExplanation>,
}

/// Forwarding action of a route.
#[derive(Debug, Serialize)]
pub(crate) struct ForwardExplanation {
    /// Clusters, each with its fraction of the route's calls.
    pub(crate) clusters: Vec<NamedShare>,
    /// Maximum duration of a call, in seconds.
    pub(crate) timeout: Option<f64>,
    pub(crate) retry: Option<RetryExplanation>,
    /// Hash policies (A42), as text.
    pub(crate) hash_of: Vec<String>,
    /// Request hash in hexadecimal, if it does not depend on the channel.
    pub(crate) hash: Option<String>,
    /// True if the hash differs per channel.
    pub(crate) hash_by_channel: bool,
    /// Names of the HTTP filters that run before the call is sent.
    pub(crate) filters: Vec<String>,
}

/// Named fraction of the calls.
#[derive(Debug, Serialize)]
pub(crate) struct NamedShare {
    pub(crate) name: String,
    pub(crate) share: f64,
}

/// Retry policy; durations in seconds.
#[derive(Debug, Serialize)]
pub(crate) struct RetryExplanation {
    pub(crate) max_attempts: u32,
    pub(crate) on: Vec<String>,
    pub(crate) first_backoff: f64,
    pub(crate) longest_backoff: f64,
}

/// Cluster and its balancing of the call.
#[derive(Debug, Serialize)]
pub(crate) struct ClusterExplanation {
    pub(crate) name: String,
    /// Fraction of such calls routed to the cluster.
    pub(crate) share: f64,
    /// Reason why calls to the cluster fail, if they do.
    pub(crate) failure: Option<String>,
    /// Leaf clusters of an aggregate cluster (A37), or the cluster itself.
    pub(crate) leaves: Vec<LeafExplanation>,
    /// Fraction of its calls that is dropped, if constant.
    pub(crate) dropped: Option<f64>,
    /// Address that the request hash selects for this call, if the policy hashes.
    pub(crate) this_call: Option<String>,
    /// Endpoints of the policy tree, in its order.
    pub(crate) endpoints: Vec<EndpointShare>,
    pub(crate) tree: Option<PolicyNode>,
}

/// Cluster that has endpoints of its own.
#[derive(Debug, Serialize)]
pub(crate) struct LeafExplanation {
    pub(crate) name: String,
    /// Source of its endpoints; `None` if the cluster is unavailable.
    pub(crate) source: Option<String>,
    pub(crate) is_dns: bool,
    /// Drop categories, each with the fraction of calls that it drops.
    pub(crate) drops: Vec<NamedShare>,
    pub(crate) max_concurrent_requests: Option<u32>,
    pub(crate) has_outlier_detection: bool,
    /// True if clients send load reports (LRS).
    pub(crate) reports_load: bool,
    /// Endpoints in EDS that clients do not use, with the reasons.
    pub(crate) left_out: Vec<ExcludedEndpoint>,
    /// The four configs from the control plane's policy down to the localities (A52).
    pub(crate) stages: Vec<ConfigStage>,
}

/// Endpoint that clients do not use.
#[derive(Debug, Serialize)]
pub(crate) struct ExcludedEndpoint {
    pub(crate) address: String,
    pub(crate) why: String,
}

/// One stage of the derived configs.
#[derive(Debug, Serialize)]
pub(crate) struct ConfigStage {
    pub(crate) name: &'static str,
    pub(crate) config: Value,
}

impl Explanation {
    pub(crate) fn new(question: &ExplainRequest, known: &LocalResources) -> Explanation {
        let mut walk = ClientSimulation::new(known, &question.listener, &question.authority);
        let mut answer = Explanation {
            target: question.target.clone(),
            listener: question.listener.clone(),
            path: question.path.clone(),
            virtual_host: None,
            failure: None,
            routes: Vec::new(),
            unrouted: 0.0,
            clusters: Vec::new(),
        };
        let (selector, config) = match (walk.route.clone(), walk.config().cloned()) {
            (Ok(selector), Some(config)) => (selector, config),
            (Err(status), _) => {
                answer.failure = Some(status.message().to_owned());
                return answer;
            }
            (Ok(_), None) => return answer,
        };
        answer.virtual_host = Some(config.virtual_host.name.clone());
        let call = PickArgs::new(&question.path, 0).with_headers(&question.headers);
        if let Err(status) = selector.select(&call)
            && !question.path.starts_with('/')
        {
            answer.failure = Some(status.message().to_owned());
            return answer;
        }
        answer.routes(selector.explain(&call), &config, &call);
        answer.clusters(question, &mut walk, &config, known);
        answer
    }

    fn routes(&mut self, steps: Vec<ExplainedRoute>, config: &XdsConfig, call: &PickArgs<'_>) {
        let mut left = 1.0;
        for (step, route) in steps.into_iter().zip(&config.virtual_host.routes) {
            let (part, misses) = match step.outcome {
                RouteOutcome::Matched => (1.0, None),
                RouteOutcome::FractionMatched(per_million) => (f64::from(per_million) / 1e6, None),
                RouteOutcome::PathMismatch => (0.0, Some(OTHER_PATH.to_owned())),
                RouteOutcome::HeaderMismatch(header) => (0.0, Some(header)),
                other => (0.0, Some(format!("{other:?}"))),
            };
            let share = left * part;
            left -= share;
            let forward = match &route.action {
                RouteAction::Forward(forward) if misses.is_none() => {
                    Some(ForwardExplanation::new(forward, config, call))
                }
                _ => None,
            };
            if forward.is_none() && misses.is_none() {
                self.unrouted += share;
            }
            self.routes.push(RouteExplanation { name: step.name, route: step.route, misses, share, forward });
        }
        self.unrouted += left;
    }

    fn clusters(
        &mut self,
        question: &ExplainRequest,
        walk: &mut ClientSimulation,
        config: &XdsConfig,
        known: &LocalResources,
    ) {
        let mut shares: Vec<(String, f64, Option<u64>)> = Vec::new();
        for route in self.routes.iter().filter(|route| route.share > 0.0) {
            let Some(forward) = &route.forward else { continue };
            for NamedShare { name: cluster, share: part } in &forward.clusters {
                let share = route.share * part;
                match shares.iter_mut().find(|(name, ..)| name == cluster) {
                    Some((_, sum, _)) => *sum += share,
                    None => shares.push((cluster.clone(), share, forward.hash_value())),
                }
            }
        }
        // Largest share first. The sort is stable: equal shares keep the order of the routes.
        shares.sort_by(|(_, one, _), (_, other, _)| other.total_cmp(one));
        for (name, share, hash) in shares {
            self.clusters.push(ClusterExplanation::new(&name, share, hash, question, walk, config, known));
        }
    }

    /// Returns true if some calls fail because of the config alone.
    pub(crate) fn is_failing(&self) -> bool {
        let of_clusters = self.clusters.iter().any(|cluster| cluster.failure.is_some());
        self.failure.is_some() || self.unrouted > 0.0 || of_clusters
    }
}

impl ForwardExplanation {
    fn new(forward: &ForwardAction, config: &XdsConfig, call: &PickArgs<'_>) -> ForwardExplanation {
        let sum: f64 = forward.clusters.iter().map(|cluster| f64::from(cluster.weight)).sum();
        let part = |cluster: &WeightedCluster| NamedShare {
            name: cluster.name.to_string(),
            share: f64::from(cluster.weight) / sum,
        };
        let limit = forward.limit.effective(config.listener.max_stream_duration);
        // A hash that is equal for two channels depends on the call alone.
        let [one, other] = [1, 2].map(|channel_id| forward.hash(call, channel_id));
        let filters = config.listener.filters.iter();
        ForwardExplanation {
            clusters: forward.clusters.iter().map(part).collect(),
            timeout: limit.as_ref().map(Duration::as_secs_f64),
            retry: forward.retry.as_deref().map(RetryExplanation::new),
            hash_of: forward.hash.iter().map(ToString::to_string).collect(),
            hash: one.filter(|_| one == other).map(|hash| format!("{hash:016x}")),
            hash_by_channel: one != other,
            filters: filters
                .filter(|filter| !filter.filter.is_terminal() && !filter.disabled)
                .map(|filter| filter.name.to_string())
                .collect(),
        }
    }

    fn hash_value(&self) -> Option<u64> {
        u64::from_str_radix(self.hash.as_deref()?, 16).ok()
    }
}

impl RetryExplanation {
    fn new(retry: &XdsRetryPolicy) -> RetryExplanation {
        RetryExplanation {
            max_attempts: retry.max_attempts,
            on: retry.retry_on.iter().map(|code| format!("{code:?}")).collect(),
            first_backoff: retry.base_interval.as_secs_f64(),
            longest_backoff: retry.max_interval.as_secs_f64(),
        }
    }
}

impl ClusterExplanation {
    fn new(
        name: &str,
        share: f64,
        hash: Option<u64>,
        question: &ExplainRequest,
        walk: &mut ClientSimulation,
        config: &XdsConfig,
        known: &LocalResources,
    ) -> ClusterExplanation {
        let clusters = &config.clusters;
        let child = format!("cluster:{name}");
        let call = (question.path.as_str(), &question.headers as &dyn RequestMetadata);
        let picked = walk.pick(call, &child, hash.unwrap_or_default());
        let tree = walk.tree().and_then(|root| {
            let (_, description) = root.children.iter().find(|(found, _)| *found == child)?;
            Some(PolicyNode::of(description, clusters))
        });
        let header = tree.as_ref().and_then(hash_header);
        let is_hashed = tree.as_ref().is_some_and(is_by_hash);
        let has_hash = match header {
            Some(header) => question.headers.value(&header).is_some(),
            None => hash.is_some(),
        };
        let this_call = picked.as_ref().ok().and_then(Option::as_ref).filter(|_| is_hashed && has_hash);
        ClusterExplanation {
            name: name.to_owned(),
            share,
            failure: picked.as_ref().err().map(|status| status.message().to_owned()),
            leaves: leaves(name, clusters).map(|leaf| LeafExplanation::new(&leaf, clusters, known)).collect(),
            dropped: tree.as_ref().and_then(PolicyNode::arriving).map(rest),
            this_call: this_call.map(ToString::to_string),
            endpoints: tree
                .iter()
                .flat_map(PolicyNode::walk)
                .flat_map(|node| node.endpoints.clone())
                .collect(),
            tree,
        }
    }
}

/// Returns `1.0 - share` without the rounding errors of a sum of shares.
fn rest(share: f64) -> f64 {
    ((1.0 - share) * 1e9).round().max(0.0) / 1e9
}

/// Returns the header that ring_hash hashes on its own (A76), if configured.
fn hash_header(tree: &PolicyNode) -> Option<String> {
    let mut headers =
        tree.walk().into_iter().filter_map(|node| node.details.get("requestHashHeader")?.as_str());
    headers.next().filter(|header| !header.is_empty()).map(str::to_owned)
}

fn is_by_hash(tree: &PolicyNode) -> bool {
    tree.walk().iter().any(|node| node.policy.as_deref() == Some("ring_hash_experimental"))
}

/// Returns the leaves of a cluster: those of the aggregate, or the cluster itself.
fn leaves(name: &str, clusters: &ClusterMap) -> impl Iterator<Item = Arc<str>> {
    let names = match clusters.cluster(name).map(|cluster| cluster.as_deref()) {
        Some(Ok(Cluster::Aggregate { leaves })) => leaves.clone(),
        _ => vec![name.into()],
    };
    names.into_iter()
}

impl LeafExplanation {
    fn new(name: &str, clusters: &ClusterMap, known: &LocalResources) -> LeafExplanation {
        let Some(leaf) = tree::leaf(name, clusters) else {
            return LeafExplanation {
                name: name.to_owned(),
                source: None,
                is_dns: false,
                drops: Vec::new(),
                max_concurrent_requests: None,
                has_outlier_detection: false,
                reports_load: false,
                left_out: Vec::new(),
                stages: Vec::new(),
            };
        };
        let set = clusters.endpoint_set(&leaf.source).cloned().unwrap_or_default();
        let drop = |drop: &DropCategory| NamedShare {
            name: drop.category.to_string(),
            share: f64::from(drop.requests_per_million) / 1e6,
        };
        LeafExplanation {
            name: name.to_owned(),
            source: Some(leaf.source.to_string()),
            is_dns: matches!(leaf.source, EndpointSource::LogicalDns { .. }),
            drops: set.drops.iter().map(drop).collect(),
            max_concurrent_requests: leaf.max_concurrent_requests,
            has_outlier_detection: leaf.outlier_detection.is_some(),
            reports_load: leaf.load_reporting.is_some(),
            left_out: left_out(leaf, known),
            stages: stages_of(leaf, &set),
        }
    }
}

fn stages_of(leaf: &LeafCluster, set: &EndpointSet) -> Vec<ConfigStage> {
    let stages = stages(leaf, set);
    let all = [
        ("lb_policy_config", Some(stages.lb_policy_config)),
        ("xds_cluster_resolver_experimental", Some(stages.cluster_resolver)),
        ("priority_experimental", Some(stages.priority)),
        ("weighted_target_experimental", stages.weighted_target),
    ];
    all.into_iter().filter_map(|(name, config)| Some(ConfigStage { name, config: config? })).collect()
}

/// Returns the endpoints in EDS that clients skip: unhealthy ones, and those in localities without a weight
/// (A27).
fn left_out(leaf: &LeafCluster, known: &LocalResources) -> Vec<ExcludedEndpoint> {
    let EndpointSource::Eds { .. } = &leaf.source else { return Vec::new() };
    let raw = known.find(ResourceType::Endpoints, leaf.source.name()).map(|found| &found.raw.value[..]);
    let Some(Ok(message)) = raw.map(ClusterLoadAssignment::decode) else { return Vec::new() };
    let mut found = Vec::new();
    for locality in &message.endpoints {
        let is_weighed = locality.load_balancing_weight.is_some_and(|weight| weight > 0);
        for endpoint in &locality.lb_endpoints {
            let why = match HealthStatus::try_from(endpoint.health_status) {
                Ok(HealthStatus::Unknown | HealthStatus::Healthy) if is_weighed => continue,
                Ok(HealthStatus::Unknown | HealthStatus::Healthy) => "its locality has no weight".to_owned(),
                Ok(status) => status.as_str_name().to_ascii_lowercase(),
                Err(_) => format!("health {}", endpoint.health_status),
            };
            let address = address(endpoint);
            found.push(ExcludedEndpoint { address: known.host_of(&address).unwrap_or(address), why });
        }
    }
    found
}

fn address(endpoint: &LbEndpoint) -> String {
    let address = match &endpoint.host_identifier {
        Some(HostIdentifier::Endpoint(endpoint)) => endpoint.address.as_ref(),
        _ => None,
    };
    match address.and_then(|address| address.address.as_ref()) {
        Some(AddressKind::SocketAddress(socket)) => match &socket.port_specifier {
            Some(PortSpecifier::PortValue(port)) if socket.address.contains(':') => {
                format!("[{}]:{port}", socket.address)
            }
            Some(PortSpecifier::PortValue(port)) => format!("{}:{port}", socket.address),
            _ => socket.address.clone(),
        },
        Some(AddressKind::Pipe(pipe)) => format!("unix:{}", pipe.path),
        _ => "an endpoint without an address".to_owned(),
    }
}

/// Returns the headers for `--json`.
pub(crate) fn header_map(headers: &CallHeaders) -> BTreeMap<&str, String> {
    let names = headers.0.iter().map(|(name, _)| name.as_str());
    names.filter_map(|name| Some((name, headers.value(name)?.into_owned()))).collect()
}
