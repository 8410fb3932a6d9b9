//! Clusters (CDS): source of endpoints, load-balancing policy, circuit breakers, outlier detection and
//! security.
//!
//! The parser follows A27, A37 for logical DNS and aggregate clusters, and one gRFC per further feature.
//! Fields that gRPC does not support, although users may expect an effect, produce warnings.

use std::sync::Arc;

use evenkeel_core::cluster as core;
use evenkeel_core::policy::{FailurePercentageEjection, OutlierSettings, SuccessRateEjection};
use evenkeel_core::{LbConfig, TransportParams};
use evenkeel_proto::envoy::config::cluster::v3::circuit_breakers::Thresholds;
use evenkeel_proto::envoy::config::cluster::v3::cluster::{
    ClusterDiscoveryType, CustomClusterType, DiscoveryType, DnsLookupFamily,
};
use evenkeel_proto::envoy::config::cluster::v3::{CircuitBreakers, Cluster as Message, OutlierDetection};
use evenkeel_proto::envoy::config::core::v3::RoutingPriority;
use evenkeel_proto::envoy::config::core::v3::address::Address as AddressKind;
use evenkeel_proto::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use evenkeel_proto::envoy::config::core::v3::socket_address::PortSpecifier;
use evenkeel_proto::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use evenkeel_proto::envoy::extensions::clusters::aggregate::v3::ClusterConfig;

use crate::FieldPath;
use crate::bootstrap::ServerConfig;
use crate::resource::reader::ResourceReader;
use crate::resource::security::{self, ClusterSecurity, SecurityConfig};
use crate::resource::{ParsedResource, RejectedResource, Resource, ResourceParser, fields, wire};
use crate::text::quoted;

/// Cluster as received from CDS.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Name of the cluster.
    pub name: Arc<str>,
    /// Leaf or aggregate contents.
    pub kind: ClusterKind,
    /// Security of its connections. `None` if the control plane does not configure it.
    pub security: Option<Arc<SecurityConfig>>,
}

/// Contents of a cluster.
#[derive(Clone, Debug)]
pub enum ClusterKind {
    /// Own endpoints, as `core::Cluster::Leaf`. It is allocated once per version, so that its identity is the
    /// change signal.
    Leaf(Arc<core::Cluster>),
    /// Names of other clusters, highest priority first, as received.
    Aggregate(Vec<Arc<str>>),
}

pub(super) fn parse(
    bytes: &[u8],
    parser: &ResourceParser,
    from: &ServerConfig,
) -> Result<ParsedResource, RejectedResource> {
    let root = FieldPath::root();
    let assignment = root.field("load_assignment");
    // Field 33 is `load_assignment`.
    wire::check(bytes, &[33], &assignment, &wire::endpoint_limits(&parser.limits))?;
    let message: Message = fields::decode(bytes)?;
    let mut reader = ResourceReader::new(parser, from);
    let cluster = cluster(&message, from, &mut reader);
    reader.finish(message.name, cluster.map(|cluster| Resource::Cluster(Arc::new(cluster))))
}

/// Contents of a cluster without its policy and limits.
enum ClusterMembers {
    Source(core::EndpointSource),
    Clusters(Vec<Arc<str>>),
}

fn cluster(message: &Message, from: &ServerConfig, reader: &mut ResourceReader<'_>) -> Option<Cluster> {
    let root = FieldPath::root();
    reader.name(&message.name, &root.field("name"));
    let name: Arc<str> = message.name.as_str().into();
    let members = members(message, &name, reader);
    // Read every part before returning: all validation errors are reported together (A40).
    let is_aggregate = matches!(members, Some(ClusterMembers::Clusters(_)));
    // The policy of an aggregate is ignored (CDS-7), so it is not validated either.
    let lb_policy = if is_aggregate { None } else { lb_policy(message, reader) };
    let max_concurrent_requests = circuit_breakers(message.circuit_breakers.as_ref(), reader);
    let outlier_detection =
        message.outlier_detection.as_ref().map(|settings| outlier_detection(settings, reader));
    let load_reporting = load_reporting(message, from, reader);
    let security = security(message, reader);
    ignored(message, is_aggregate, reader);
    let kind = match members? {
        ClusterMembers::Clusters(names) => ClusterKind::Aggregate(names),
        ClusterMembers::Source(source) => {
            ClusterKind::Leaf(Arc::new(core::Cluster::Leaf(core::LeafCluster {
                name: name.clone(),
                source,
                lb_policy: lb_policy?,
                max_concurrent_requests,
                outlier_detection,
                load_reporting,
                transport: security.as_ref().map(|security| means(&name, security)),
            })))
        }
    };
    Some(Cluster { name, kind, security })
}

fn lb_policy(message: &Message, reader: &mut ResourceReader<'_>) -> Option<LbConfig> {
    let ResourceParser { converters, registry, .. } = reader.parser;
    converters.cluster_policy(message, registry, &mut reader.diagnostics)
}

fn members(message: &Message, name: &Arc<str>, reader: &mut ResourceReader<'_>) -> Option<ClusterMembers> {
    let root = FieldPath::root();
    let path = root.field("type");
    let expected = "expected EDS, LOGICAL_DNS or an aggregate cluster";
    match &message.cluster_discovery_type {
        Some(ClusterDiscoveryType::Type(kind)) => match DiscoveryType::try_from(*kind) {
            Ok(DiscoveryType::Eds) => Some(ClusterMembers::Source(eds(message, name, reader))),
            Ok(DiscoveryType::LogicalDns) => logical_dns(message, reader).map(ClusterMembers::Source),
            Ok(other) => {
                reader.problem(&path, format!("{expected}, found {}", other.as_str_name()));
                None
            }
            Err(_) => {
                reader.problem(&path, format!("{expected}, found {kind}"));
                None
            }
        },
        Some(ClusterDiscoveryType::ClusterType(kind)) => {
            aggregate(kind, reader).map(ClusterMembers::Clusters)
        }
        None => {
            reader.problem(&path, format!("{expected}, found nothing"));
            None
        }
    }
}

fn eds(message: &Message, name: &Arc<str>, reader: &mut ResourceReader<'_>) -> core::EndpointSource {
    let root = FieldPath::root();
    let path = root.field("eds_cluster_config");
    let config = message.eds_cluster_config.clone().unwrap_or_default();
    let source = config.eds_config.and_then(|source| source.config_source_specifier);
    if !matches!(source, Some(ConfigSourceSpecifier::Ads(_) | ConfigSourceSpecifier::Self_(_))) {
        reader.problem(&path.field("eds_config"), "must be set to ads or self");
    }
    let path = path.field("service_name");
    if config.service_name.is_empty() {
        // A47: an xdstp name contains its type, so the name of a cluster is no name of endpoints.
        if name.starts_with("xdstp:") {
            reader.problem(&path, "must be set for a cluster with an xdstp name");
        }
        return core::EndpointSource::Eds { cluster: name.clone(), service_name: None };
    }
    reader.name(&config.service_name, &path);
    core::EndpointSource::Eds { cluster: name.clone(), service_name: Some(config.service_name.into()) }
}

/// Reads a logical DNS cluster (A37): one locality with one endpoint, whose address is the name to resolve.
fn logical_dns(message: &Message, reader: &mut ResourceReader<'_>) -> Option<core::EndpointSource> {
    let root = FieldPath::root();
    let path = root.field("load_assignment");
    let Some(assignment) = &message.load_assignment else {
        reader.problem(&path, "must be set for a LOGICAL_DNS cluster");
        return None;
    };
    if assignment.policy.as_ref().is_some_and(|policy| !policy.drop_overloads.is_empty()) {
        let path = path.field("policy");
        reader.warn(&path.field("drop_overloads"), "is ignored in a LOGICAL_DNS cluster");
    }
    let path = path.field("endpoints");
    let [locality] = &assignment.endpoints[..] else {
        let found = assignment.endpoints.len();
        reader.problem(&path, format!("a LOGICAL_DNS cluster has exactly one locality, found {found}"));
        return None;
    };
    let path = path.index(0);
    let path = path.field("lb_endpoints");
    let [endpoint] = &locality.lb_endpoints[..] else {
        let found = locality.lb_endpoints.len();
        reader.problem(&path, format!("a LOGICAL_DNS cluster has exactly one endpoint, found {found}"));
        return None;
    };
    let path = path.index(0);
    let path = path.field("endpoint");
    let Some(HostIdentifier::Endpoint(endpoint)) = &endpoint.host_identifier else {
        reader.problem(&path, "must be set");
        return None;
    };
    let ignored = [
        ("hostname", !endpoint.hostname.is_empty()),
        ("additional_addresses", !endpoint.additional_addresses.is_empty()),
    ];
    reader.warn_fields(&path, ignored, "is ignored in a LOGICAL_DNS cluster");
    let path = path.field("address");
    let address = endpoint.address.as_ref().and_then(|address| address.address.as_ref());
    let path = path.field("socket_address");
    let Some(AddressKind::SocketAddress(address)) = address else {
        reader.problem(&path, "must be set");
        return None;
    };
    if !address.resolver_name.is_empty() {
        let text = format!("must be empty, found {}", quoted(&address.resolver_name));
        reader.problem(&path.field("resolver_name"), text);
    }
    let port = match address.port_specifier {
        Some(PortSpecifier::PortValue(port @ 1..=65_535)) => Some(port),
        Some(PortSpecifier::PortValue(port)) => {
            let text = format!("expected a port from 1 to 65535, found {port}");
            reader.problem(&path.field("port_value"), text);
            None
        }
        Some(PortSpecifier::NamedPort(_)) | None => {
            reader.problem(&path.field("port_value"), "must be set");
            None
        }
    };
    let host = host(&address.address, &path.field("address"), reader);
    Some(core::EndpointSource::LogicalDns { hostname: format!("{}:{}", host?, port?).into() })
}

/// Returns a host in the form for `host:port`, with brackets around an IPv6 address.
fn host(host: &str, path: &FieldPath<'_>, reader: &mut ResourceReader<'_>) -> Option<String> {
    reader.name(host, path);
    if host.parse::<std::net::Ipv6Addr>().is_ok() {
        return Some(format!("[{host}]"));
    }
    if let Some(odd) = host.chars().find(|c| !c.is_ascii_graphic() || "[]:/@".contains(*c)) {
        let text = format!("expected a host name, found {} with a {odd:?}", quoted(host));
        reader.problem(path, text);
        return None;
    }
    Some(host.to_owned())
}

fn aggregate(kind: &CustomClusterType, reader: &mut ResourceReader<'_>) -> Option<Vec<Arc<str>>> {
    let root = FieldPath::root();
    let path = root.field("cluster_type");
    let path = path.field("typed_config");
    let names = reader.message::<ClusterConfig>(kind.typed_config.as_ref(), &path)?.clusters;
    let path = path.field("clusters");
    if names.is_empty() {
        reader.problem(&path, "must name at least one cluster");
    }
    for (i, name) in names.iter().enumerate() {
        reader.name(name, &path.index(i));
    }
    Some(names.into_iter().map(Into::into).collect())
}

/// Returns `max_requests` of the first threshold with the default priority, which all gRPC calls have (A32).
fn circuit_breakers(breakers: Option<&CircuitBreakers>, reader: &mut ResourceReader<'_>) -> Option<u32> {
    let root = FieldPath::root();
    let path = root.field("circuit_breakers");
    let breakers = breakers?;
    let per_host = path.field("per_host_thresholds");
    if let Some((i, threshold)) = default_threshold(&breakers.per_host_thresholds) {
        let path = per_host.index(i);
        let path = path.field("max_connections");
        match threshold.max_connections {
            None => {}
            Some(0) => reader.problem(&path, "must be at least 1, found 0"),
            Some(_) => reader.warn(&path, "is ignored: each address has one connection"),
        }
    }
    let (i, threshold) = default_threshold(&breakers.thresholds)?;
    let path = path.field("thresholds");
    let path = path.index(i);
    for (field, value) in [
        ("max_connections", threshold.max_connections),
        ("max_pending_requests", threshold.max_pending_requests),
        ("max_retries", threshold.max_retries),
    ] {
        // Control planes write the maximum value for "no limit".
        if value.is_some_and(|limit| limit != u32::MAX) {
            reader.warn(&path.field(field), "is ignored");
        }
    }
    threshold.max_requests
}

/// Reads outlier detection (A50). Success-rate ejection is on by default, failure-percentage ejection is off.
fn outlier_detection(message: &OutlierDetection, reader: &mut ResourceReader<'_>) -> OutlierSettings {
    let root = FieldPath::root();
    let path = root.field("outlier_detection");
    let unset = OutlierSettings::default();
    let mut duration = |field: &str, value: &Option<_>, default| {
        reader.duration(value.as_ref(), &path.field(field)).unwrap_or(default)
    };
    let interval = duration("interval", &message.interval, unset.interval);
    let base_ejection_time =
        duration("base_ejection_time", &message.base_ejection_time, unset.base_ejection_time);
    let max_ejection_time =
        duration("max_ejection_time", &message.max_ejection_time, unset.max_ejection_time);
    for (field, value) in [
        ("max_ejection_percent", message.max_ejection_percent),
        ("enforcing_success_rate", message.enforcing_success_rate),
        ("failure_percentage_threshold", message.failure_percentage_threshold),
        ("enforcing_failure_percentage", message.enforcing_failure_percentage),
    ] {
        if let Some(percent) = value.filter(|percent| *percent > 100) {
            reader.problem(&path.field(field), format!("must be at most 100, found {percent}"));
        }
    }
    let consecutive = message.consecutive_5xx.is_some() && message.enforcing_consecutive_5xx != Some(0);
    let ignored = [
        ("consecutive_5xx", consecutive),
        ("max_ejection_time_jitter", message.max_ejection_time_jitter.is_some()),
    ];
    reader.warn_fields(&path, ignored, "is ignored");
    let success_rate = SuccessRateEjection::default();
    let success_rate = SuccessRateEjection {
        stdev_factor: message.success_rate_stdev_factor.unwrap_or(success_rate.stdev_factor),
        enforcement_percentage: message.enforcing_success_rate.unwrap_or(success_rate.enforcement_percentage),
        minimum_hosts: message.success_rate_minimum_hosts.unwrap_or(success_rate.minimum_hosts),
        request_volume: message.success_rate_request_volume.unwrap_or(success_rate.request_volume),
    };
    let failure = FailurePercentageEjection::default();
    let failure = FailurePercentageEjection {
        threshold: message.failure_percentage_threshold.unwrap_or(failure.threshold),
        enforcement_percentage: message.enforcing_failure_percentage.unwrap_or_default(),
        minimum_hosts: message.failure_percentage_minimum_hosts.unwrap_or(failure.minimum_hosts),
        request_volume: message.failure_percentage_request_volume.unwrap_or(failure.request_volume),
    };
    OutlierSettings {
        interval,
        base_ejection_time,
        max_ejection_time,
        max_ejection_percent: message.max_ejection_percent.unwrap_or(unset.max_ejection_percent),
        // An enforcement of 0 turns the algorithm off (OD-3).
        success_rate_ejection: Some(success_rate).filter(|rate| rate.enforcement_percentage > 0),
        failure_percentage_ejection: Some(failure).filter(|rate| rate.enforcement_percentage > 0),
    }
}

/// Reads the LRS config. The report goes to the server that sent the cluster (A27), with the metrics that it
/// lists (A85).
fn load_reporting(
    message: &Message,
    from: &ServerConfig,
    reader: &mut ResourceReader<'_>,
) -> Option<Arc<core::LoadReporting>> {
    let root = FieldPath::root();
    let path = root.field("lrs_report_endpoint_metrics");
    let Some(server) = &message.lrs_server else {
        if !message.lrs_report_endpoint_metrics.is_empty() {
            reader.warn(&path, "has no effect without lrs_server");
        }
        return None;
    };
    if !matches!(server.config_source_specifier, Some(ConfigSourceSpecifier::Self_(_))) {
        reader.problem(&root.field("lrs_server"), "must be self");
    }
    let mut metrics = core::BackendMetrics::default();
    for (i, metric) in message.lrs_report_endpoint_metrics.iter().enumerate() {
        match (metric.as_str(), metric.strip_prefix("named_metrics.")) {
            ("cpu_utilization", _) => metrics.cpu_utilization = true,
            ("mem_utilization", _) => metrics.mem_utilization = true,
            ("application_utilization", _) => metrics.application_utilization = true,
            (_, Some("*")) => metrics.all_named = true,
            (_, Some(key)) if !key.is_empty() => {
                metrics.named.insert(key.to_owned());
            }
            _ => {
                let text = format!("{} is not a reportable metric, it is ignored", quoted(metric));
                reader.warn(&path.index(i), text);
            }
        }
    }
    // `*` includes every name. Equal settings then share their counters (LRS-12).
    if metrics.all_named {
        metrics.named.clear();
    }
    Some(Arc::new(core::LoadReporting { server: from.uri.clone(), metrics }))
}

fn security(message: &Message, reader: &mut ResourceReader<'_>) -> Option<Arc<SecurityConfig>> {
    let root = FieldPath::root();
    if !message.transport_socket_matches.is_empty() {
        // A29 does not support it. Ignoring it would connect to endpoints with less security than configured.
        reader.problem(&root.field("transport_socket_matches"), "is not supported");
    }
    let path = root.field("transport_socket");
    let socket = message.transport_socket.as_ref()?;
    security::read(socket, &path, reader).map(Arc::new)
}

/// Returns the transport parameters, by which the core separates its subchannels from those of other
/// clusters.
fn means(cluster: &Arc<str>, security: &Arc<SecurityConfig>) -> TransportParams {
    let of = ClusterSecurity { cluster: cluster.clone(), security: security.clone() };
    TransportParams::new(of).by_host_name(security.auto_host_sni)
}

/// Warns about fields that have no effect although users may expect one.
fn ignored(message: &Message, is_aggregate: bool, reader: &mut ResourceReader<'_>) {
    let root = FieldPath::root();
    let is_dns = matches!(
        message.cluster_discovery_type,
        Some(ClusterDiscoveryType::Type(kind)) if kind == DiscoveryType::LogicalDns as i32
    );
    let override_host = message.common_lb_config.as_ref().and_then(|c| c.override_host_status.as_ref());
    let ignored = [
        ("health_checks", !message.health_checks.is_empty()),
        ("lb_subset_config", message.lb_subset_config.is_some()),
        ("upstream_config", message.upstream_config.is_some()),
        ("dns_lookup_family", is_dns && message.dns_lookup_family != DnsLookupFamily::Auto as i32),
        ("load_assignment", !is_dns && message.load_assignment.is_some()),
        ("common_lb_config.override_host_status", override_host.is_some()),
    ];
    reader.warn_fields(&root, ignored, "is ignored");
    // A75: each underlying cluster uses its own settings.
    for (field, set) in [
        ("load_balancing_policy", message.load_balancing_policy.is_some()),
        ("circuit_breakers", message.circuit_breakers.is_some()),
        ("outlier_detection", message.outlier_detection.is_some()),
        ("lrs_server", message.lrs_server.is_some()),
        ("transport_socket", message.transport_socket.is_some()),
    ] {
        if is_aggregate && set {
            let text = "has no effect in an aggregate cluster: its members have their own";
            reader.warn(&root.field(field), text);
        }
    }
}

fn default_threshold(thresholds: &[Thresholds]) -> Option<(usize, &Thresholds)> {
    thresholds.iter().enumerate().find(|(_, threshold)| threshold.priority == RoutingPriority::Default as i32)
}
