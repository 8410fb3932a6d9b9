//! Converts a mesh to xDS messages.
//!
//! The mesh is expected to be checked: invalid values are converted as they are, and clients reject them.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_proto::envoy::config::cluster::v3 as cds;
use evenkeel_proto::envoy::config::cluster::v3::circuit_breakers::Thresholds;
use evenkeel_proto::envoy::config::cluster::v3::cluster::{
    ClusterDiscoveryType, CustomClusterType, DiscoveryType, EdsClusterConfig,
};
use evenkeel_proto::envoy::config::core::v3 as core;
use evenkeel_proto::envoy::config::core::v3::address::Address as AddressKind;
use evenkeel_proto::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use evenkeel_proto::envoy::config::core::v3::socket_address::PortSpecifier;
use evenkeel_proto::envoy::config::endpoint::v3 as eds;
use evenkeel_proto::envoy::config::endpoint::v3::cluster_load_assignment::Policy as AssignmentPolicy;
use evenkeel_proto::envoy::config::endpoint::v3::cluster_load_assignment::policy::DropOverload;
use evenkeel_proto::envoy::config::endpoint::v3::endpoint::AdditionalAddress;
use evenkeel_proto::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use evenkeel_proto::envoy::config::listener::v3::{ApiListener, Listener};
use evenkeel_proto::envoy::config::route::v3 as rds;
use evenkeel_proto::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use evenkeel_proto::envoy::config::route::v3::retry_policy::RetryBackOff;
use evenkeel_proto::envoy::config::route::v3::route::Action;
use evenkeel_proto::envoy::config::route::v3::route_action::hash_policy::{self, PolicySpecifier};
use evenkeel_proto::envoy::config::route::v3::route_action::{ClusterSpecifier, MaxStreamDuration};
use evenkeel_proto::envoy::config::route::v3::route_match::PathSpecifier;
use evenkeel_proto::envoy::config::route::v3::weighted_cluster::ClusterWeight;
use evenkeel_proto::envoy::extensions::clusters::aggregate::v3::ClusterConfig;
use evenkeel_proto::envoy::extensions::filters::http::router::v3::Router;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::http_filter::ConfigType;
use evenkeel_proto::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use evenkeel_proto::envoy::r#type::matcher::v3::{RegexMatchAndSubstitute, RegexMatcher, StringMatcher};
use evenkeel_proto::envoy::r#type::v3::Int64Range;
use evenkeel_proto::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;
use evenkeel_proto::envoy::extensions::upstreams::http::v3::http_protocol_options::explicit_http_config::ProtocolConfig;
use evenkeel_proto::envoy::extensions::upstreams::http::v3::http_protocol_options::{
    ExplicitHttpConfig, UpstreamProtocolOptions,
};
use evenkeel_proto::prost::Name;
use evenkeel_proto::prost_types::value::Kind;
use evenkeel_proto::prost_types::{Any, Struct, Value};

use super::cluster::{Cluster, Endpoint, EndpointHealth, Locality, MeshClusterMembers, OutlierDetection};
use super::errors::MeshPath;
use super::service::{
    HeaderCondition, HeaderMatch, PathMatch, Route, RouteHash, RouteHashSource, RouteRetry, Service,
};
use super::values::duration_message;

/// Returns a listener that refers to a route configuration of the same name.
pub(super) fn listener(name: &str) -> Listener {
    let rds = hcm::Rds { route_config_name: name.to_owned(), config_source: Some(ads()) };
    let router = hcm::HttpFilter {
        name: "router".to_owned(),
        config_type: Some(ConfigType::TypedConfig(any(&Router::default()))),
        ..hcm::HttpFilter::default()
    };
    let manager = hcm::HttpConnectionManager {
        http_filters: vec![router],
        route_specifier: Some(RouteSpecifier::Rds(rds)),
        ..hcm::HttpConnectionManager::default()
    };
    Listener {
        name: name.to_owned(),
        api_listener: Some(ApiListener { api_listener: Some(any(&manager)) }),
        ..Listener::default()
    }
}

/// Returns the routes of a service, for any authority: the listener has already selected the service.
pub(super) fn route_configuration(name: &str, service: &Service) -> rds::RouteConfiguration {
    let host = rds::VirtualHost {
        name: name.to_owned(),
        domains: vec!["*".to_owned()],
        routes: service.routes.iter().map(route).collect(),
        ..rds::VirtualHost::default()
    };
    rds::RouteConfiguration {
        name: name.to_owned(),
        virtual_hosts: vec![host],
        ..rds::RouteConfiguration::default()
    }
}

fn route(route: &Route) -> rds::Route {
    let path = match &route.path {
        None => PathSpecifier::Prefix(String::new()),
        Some(PathMatch::Prefix(prefix)) => PathSpecifier::Prefix(prefix.clone()),
        Some(PathMatch::Exact(path)) => PathSpecifier::Path(path.clone()),
        Some(PathMatch::Regex(expression)) => PathSpecifier::SafeRegex(regex(expression)),
    };
    let matcher = rds::RouteMatch {
        path_specifier: Some(path),
        case_sensitive: route.ignore_case.then_some(false),
        headers: route.headers.iter().map(|(name, header)| header_matcher(name, header)).collect(),
        runtime_fraction: route.fraction.map(|share| core::RuntimeFractionalPercent {
            default_value: Some(share.message()),
            ..core::RuntimeFractionalPercent::default()
        }),
        ..rds::RouteMatch::default()
    };
    let action = rds::RouteAction {
        cluster_specifier: Some(clusters(route)),
        max_stream_duration: route.timeout.map(|timeout| MaxStreamDuration {
            max_stream_duration: Some(duration_message(timeout)),
            ..MaxStreamDuration::default()
        }),
        retry_policy: route.retry.as_ref().map(retry),
        hash_policy: route.hash.iter().map(hash).collect(),
        ..rds::RouteAction::default()
    };
    rds::Route { r#match: Some(matcher), action: Some(Action::Route(action)), ..rds::Route::default() }
}

fn clusters(route: &Route) -> ClusterSpecifier {
    if let ([(cluster, _)], false) = (&route.to[..], route.is_split) {
        return ClusterSpecifier::Cluster(cluster.clone());
    }
    let clusters = route.to.iter().map(|(name, weight)| ClusterWeight {
        name: name.clone(),
        weight: Some(*weight),
        ..ClusterWeight::default()
    });
    ClusterSpecifier::WeightedClusters(rds::WeightedCluster {
        clusters: clusters.collect(),
        ..rds::WeightedCluster::default()
    })
}

/// Uses the older fields, which every client reads; only `ignore_case` needs the newer `string_match` (A63).
fn header_matcher(name: &str, header: &HeaderMatch) -> rds::HeaderMatcher {
    let text = |pattern: MatchPattern, older: HeaderMatchSpecifier| {
        if header.ignore_case {
            return HeaderMatchSpecifier::StringMatch(StringMatcher {
                ignore_case: true,
                match_pattern: Some(pattern),
            });
        }
        older
    };
    let specifier = match header.test.clone() {
        HeaderCondition::Exact(value) => {
            text(MatchPattern::Exact(value.clone()), HeaderMatchSpecifier::ExactMatch(value))
        }
        HeaderCondition::Prefix(value) => {
            text(MatchPattern::Prefix(value.clone()), HeaderMatchSpecifier::PrefixMatch(value))
        }
        HeaderCondition::Suffix(value) => {
            text(MatchPattern::Suffix(value.clone()), HeaderMatchSpecifier::SuffixMatch(value))
        }
        HeaderCondition::Contains(value) => {
            text(MatchPattern::Contains(value.clone()), HeaderMatchSpecifier::ContainsMatch(value))
        }
        HeaderCondition::Regex(expression) => HeaderMatchSpecifier::SafeRegexMatch(regex(&expression)),
        HeaderCondition::Range { from, below } => {
            HeaderMatchSpecifier::RangeMatch(Int64Range { start: from, end: below })
        }
        HeaderCondition::Present(yes) => HeaderMatchSpecifier::PresentMatch(yes),
    };
    rds::HeaderMatcher {
        name: name.to_owned(),
        invert_match: header.invert,
        header_match_specifier: Some(specifier),
        ..rds::HeaderMatcher::default()
    }
}

fn regex(expression: &str) -> RegexMatcher {
    RegexMatcher { regex: expression.to_owned(), ..RegexMatcher::default() }
}

fn retry(retry: &RouteRetry) -> rds::RetryPolicy {
    let on: Vec<_> = retry.on.iter().map(|status| status.name()).collect();
    rds::RetryPolicy {
        retry_on: on.join(","),
        // `num_retries` does not count the first attempt (VAL-R4).
        num_retries: retry.attempts.map(|attempts| attempts.saturating_sub(1)),
        retry_back_off: retry.backoff.map(|(base, max)| RetryBackOff {
            base_interval: Some(duration_message(base)),
            max_interval: max.map(duration_message),
        }),
        ..rds::RetryPolicy::default()
    }
}

fn hash(hash: &RouteHash) -> rds::route_action::HashPolicy {
    let by = match &hash.by {
        RouteHashSource::Header { name, rewrite } => PolicySpecifier::Header(hash_policy::Header {
            header_name: name.clone(),
            regex_rewrite: rewrite.as_ref().map(|(expression, with)| RegexMatchAndSubstitute {
                pattern: Some(regex(expression)),
                substitution: with.clone(),
            }),
        }),
        // This key stands for the channel (A42).
        RouteHashSource::ChannelId => {
            PolicySpecifier::FilterState(hash_policy::FilterState { key: "io.grpc.channel_id".to_owned() })
        }
    };
    rds::route_action::HashPolicy { terminal: hash.terminal, policy_specifier: Some(by) }
}

pub(super) fn cluster(name: &str, cluster: &Cluster) -> cds::Cluster {
    let (kind, load_assignment) = match &cluster.members {
        MeshClusterMembers::Endpoints(_) => (ClusterDiscoveryType::Type(DiscoveryType::Eds.into()), None),
        MeshClusterMembers::Dns { host, port } => {
            (ClusterDiscoveryType::Type(DiscoveryType::LogicalDns.into()), Some(dns(name, host, *port)))
        }
        MeshClusterMembers::Clusters(clusters) => {
            let config = any(&ClusterConfig { clusters: clusters.clone() });
            let kind = "envoy.clusters.aggregate".to_owned();
            (
                ClusterDiscoveryType::ClusterType(CustomClusterType {
                    name: kind,
                    typed_config: Some(config),
                }),
                None,
            )
        }
    };
    let eds = matches!(cluster.members, MeshClusterMembers::Endpoints(_));
    let policy = cluster.policy.as_ref();
    cds::Cluster {
        name: name.to_owned(),
        cluster_discovery_type: Some(kind),
        eds_cluster_config: eds
            // Without a service name the EDS resource has the name of the cluster (CDS-4).
            .then(|| EdsClusterConfig { eds_config: Some(ads()), service_name: String::new() }),
        load_assignment,
        // `check` reports the errors of a policy; this conversion leaves invalid parts out.
        load_balancing_policy: policy.and_then(|policy| policy.message(&MeshPath::Root, &mut |_, _| {})),
        circuit_breakers: cluster.max_requests.map(|max| cds::CircuitBreakers {
            thresholds: vec![Thresholds { max_requests: Some(max), ..Thresholds::default() }],
            ..cds::CircuitBreakers::default()
        }),
        outlier_detection: cluster.outlier_detection.as_ref().map(outlier_detection),
        lrs_server: cluster
            .lrs
            .then(|| source(ConfigSourceSpecifier::Self_(core::SelfConfigSource::default()))),
        typed_extension_protocol_options: BTreeMap::from([http2_options()]),
        ..cds::Cluster::default()
    }
}

/// HTTP/2 for Envoy, which would use HTTP/1 to the endpoints. gRPC clients do not need it.
fn http2_options() -> (String, Any) {
    let http2 = ProtocolConfig::Http2ProtocolOptions(core::Http2ProtocolOptions {});
    let explicit = ExplicitHttpConfig { protocol_config: Some(http2) };
    let options = HttpProtocolOptions {
        upstream_protocol_options: Some(UpstreamProtocolOptions::ExplicitHttpConfig(explicit)),
    };
    (HttpProtocolOptions::full_name(), any(&options))
}

/// Converts outlier detection (A50). Every value is set explicitly, because the defaults of clients differ.
///
/// C-core and grpc-js disable success rate unless it is set, and grpc-js ejects no endpoint without the factor.
fn outlier_detection(settings: &OutlierDetection) -> cds::OutlierDetection {
    let by_rate = settings.success_rate.clone().unwrap_or_default();
    let by_failures = settings.failure_percentage.clone().unwrap_or_default();
    let only_failures = settings.success_rate.is_none() && settings.failure_percentage.is_some();
    let base = settings.base_ejection_time.unwrap_or(Duration::from_secs(30));
    let max = settings.max_ejection_time.unwrap_or(Duration::from_secs(300).max(base));
    let enforcing = |on: bool, percent: Option<u32>| Some(if on { percent.unwrap_or(100) } else { 0 });
    cds::OutlierDetection {
        interval: Some(duration_message(settings.interval.unwrap_or(Duration::from_secs(10)))),
        base_ejection_time: Some(duration_message(base)),
        max_ejection_time: Some(duration_message(max)),
        max_ejection_percent: settings.max_ejection_percent.or(Some(10)),
        enforcing_success_rate: enforcing(!only_failures, by_rate.enforcing_percent),
        success_rate_stdev_factor: by_rate.stdev_factor.or(Some(1_900)),
        success_rate_minimum_hosts: by_rate.minimum_hosts.or(Some(5)),
        success_rate_request_volume: by_rate.request_volume.or(Some(100)),
        enforcing_failure_percentage: enforcing(
            settings.failure_percentage.is_some(),
            by_failures.enforcing_percent,
        ),
        failure_percentage_threshold: by_failures.threshold_percent.or(Some(85)),
        failure_percentage_minimum_hosts: by_failures.minimum_hosts.or(Some(5)),
        failure_percentage_request_volume: by_failures.request_volume.or(Some(50)),
        ..cds::OutlierDetection::default()
    }
}

fn dns(name: &str, host: &str, port: u16) -> eds::ClusterLoadAssignment {
    let endpoint = eds::Endpoint { address: Some(address(host, port)), ..eds::Endpoint::default() };
    let endpoint = eds::LbEndpoint {
        host_identifier: Some(HostIdentifier::Endpoint(endpoint)),
        ..eds::LbEndpoint::default()
    };
    let locality =
        eds::LocalityLbEndpoints { lb_endpoints: vec![endpoint], ..eds::LocalityLbEndpoints::default() };
    eds::ClusterLoadAssignment {
        cluster_name: name.to_owned(),
        endpoints: vec![locality],
        ..eds::ClusterLoadAssignment::default()
    }
}

/// Returns the endpoints of a cluster by priority and locality. `None` if the cluster has none of its own.
pub(super) fn endpoints(name: &str, cluster: &Cluster) -> Option<eds::ClusterLoadAssignment> {
    let MeshClusterMembers::Endpoints(endpoints) = &cluster.members else { return None };
    let mut groups = BTreeMap::<(u32, &Locality), Vec<&Endpoint>>::new();
    for endpoint in endpoints {
        groups.entry((cluster.priority_of(endpoint), &endpoint.locality)).or_default().push(endpoint);
    }
    let drops = cluster.drops.iter().map(|(category, share)| DropOverload {
        category: category.clone(),
        drop_percentage: Some(share.message()),
    });
    let drops: Vec<_> = drops.collect();
    Some(eds::ClusterLoadAssignment {
        cluster_name: name.to_owned(),
        endpoints: groups
            .iter()
            .map(|((priority, locality), endpoints)| group(cluster, *priority, locality, endpoints))
            .collect(),
        policy: (!drops.is_empty())
            .then(|| AssignmentPolicy { drop_overloads: drops, ..AssignmentPolicy::default() }),
    })
}

fn group(
    cluster: &Cluster,
    priority: u32,
    locality: &Locality,
    endpoints: &[&Endpoint],
) -> eds::LocalityLbEndpoints {
    let weight = locality_weight(cluster, locality, endpoints.iter().copied());
    eds::LocalityLbEndpoints {
        locality: Some(core::Locality {
            region: locality.region.clone(),
            zone: locality.zone.clone(),
            sub_zone: locality.sub_zone.clone(),
        }),
        // A locality without endpoints stays: clients reject priorities with a gap (A27).
        lb_endpoints: endpoints
            .iter()
            .filter(|endpoint| endpoint.host.is_none())
            .map(|endpoint| lb_endpoint(endpoint))
            .collect(),
        // `check` rejects weights whose sum is larger.
        load_balancing_weight: Some(u32::try_from(weight).unwrap_or(u32::MAX)),
        priority,
        ..eds::LocalityLbEndpoints::default()
    }
}

/// Returns the weight of a locality within its priority.
///
/// Unless it is set, it is the sum of the weights of its usable endpoints. So each endpoint's weight counts in the
/// whole cluster.
pub(super) fn locality_weight<'a>(
    cluster: &Cluster,
    locality: &Locality,
    endpoints: impl Iterator<Item = &'a Endpoint>,
) -> u64 {
    if let Some(weight) = cluster.localities.get(locality).and_then(|settings| settings.weight) {
        return weight.into();
    }
    let usable = endpoints.filter(|endpoint| endpoint.health.is_usable() && endpoint.host.is_none());
    // Clients skip a locality of weight 0 (VAL-E1).
    usable.map(|endpoint| u64::from(endpoint.weight.unwrap_or(1))).sum::<u64>().max(1)
}

fn lb_endpoint(endpoint: &Endpoint) -> eds::LbEndpoint {
    let mut addresses = endpoint.addresses.iter().map(|at| address(&at.ip().to_string(), at.port()));
    let message = eds::Endpoint {
        address: addresses.next(),
        hostname: endpoint.name.clone().unwrap_or_default(),
        additional_addresses: addresses.map(|at| AdditionalAddress { address: Some(at) }).collect(),
    };
    let health = match endpoint.health {
        EndpointHealth::Unknown => core::HealthStatus::Unknown,
        EndpointHealth::Healthy => core::HealthStatus::Healthy,
        EndpointHealth::Unhealthy => core::HealthStatus::Unhealthy,
        EndpointHealth::Draining => core::HealthStatus::Draining,
        EndpointHealth::Timeout => core::HealthStatus::Timeout,
        EndpointHealth::Degraded => core::HealthStatus::Degraded,
    };
    eds::LbEndpoint {
        health_status: health.into(),
        metadata: endpoint.hash_key.as_deref().map(hash_key),
        load_balancing_weight: endpoint.weight,
        host_identifier: Some(HostIdentifier::Endpoint(message)),
    }
}

/// Returns the metadata that contains the hash key of an endpoint (A76).
fn hash_key(key: &str) -> core::Metadata {
    let key = Value { kind: Some(Kind::StringValue(key.to_owned())) };
    let fields = Struct { fields: BTreeMap::from([("hash_key".to_owned(), key)]) };
    core::Metadata {
        filter_metadata: BTreeMap::from([("envoy.lb".to_owned(), fields)]),
        ..core::Metadata::default()
    }
}

fn address(host: &str, port: u16) -> core::Address {
    let socket = core::SocketAddress {
        address: host.to_owned(),
        port_specifier: Some(PortSpecifier::PortValue(port.into())),
        ..core::SocketAddress::default()
    };
    core::Address { address: Some(AddressKind::SocketAddress(socket)) }
}

/// Config source for ADS: the stream that delivered the resource.
fn ads() -> core::ConfigSource {
    source(ConfigSourceSpecifier::Ads(core::AggregatedConfigSource {}))
}

fn source(specifier: ConfigSourceSpecifier) -> core::ConfigSource {
    core::ConfigSource {
        resource_api_version: core::ApiVersion::V3.into(),
        config_source_specifier: Some(specifier),
        ..core::ConfigSource::default()
    }
}

fn any<M: Name>(message: &M) -> Any {
    Any { type_url: M::type_url(), value: message.encode_to_vec() }
}
