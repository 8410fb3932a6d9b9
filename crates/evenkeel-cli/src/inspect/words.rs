//! Resources as text: routes with matches and actions, clusters with policies, endpoints.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType, LbPolicy};
use evenkeel_proto::envoy::config::core::v3::address::Address as AddressKind;
use evenkeel_proto::envoy::config::core::v3::socket_address::PortSpecifier;
use evenkeel_proto::envoy::config::core::v3::{Address, HealthStatus, Locality};
use evenkeel_proto::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use evenkeel_proto::envoy::config::endpoint::v3::{LbEndpoint, LocalityLbEndpoints};
use evenkeel_proto::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use evenkeel_proto::envoy::config::route::v3::route::Action;
use evenkeel_proto::envoy::config::route::v3::route_action::ClusterSpecifier;
use evenkeel_proto::envoy::config::route::v3::route_match::PathSpecifier;
use evenkeel_proto::envoy::config::route::v3::{
    HeaderMatcher, Route, RouteAction, RouteMatch, WeightedCluster,
};
use evenkeel_proto::envoy::extensions::load_balancing_policies::wrr_locality::v3::WrrLocality;
use evenkeel_proto::envoy::r#type::matcher::v3::StringMatcher;
use evenkeel_proto::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use evenkeel_proto::envoy::r#type::v3::FractionalPercent;
use evenkeel_proto::envoy::r#type::v3::fractional_percent::DenominatorType;
use evenkeel_proto::prost::{Message as _, Name as _};
use evenkeel_proto::prost_types::{Any, Timestamp};
use evenkeel_proto::xds::r#type::v3::TypedStruct;

use crate::ui;

/// Describes the match and the action of a route.
pub(super) fn route(route: &Route) -> String {
    let calls = route.r#match.as_ref().map_or_else(|| "no calls".to_owned(), calls);
    let place = match &route.action {
        Some(Action::Route(action)) => place(action),
        Some(Action::Redirect(_)) => "a redirect, which gRPC clients do not follow".to_owned(),
        Some(Action::DirectResponse(direct)) => format!("a direct response with status {}", direct.status),
        Some(Action::NonForwardingAction(_)) => "this server".to_owned(),
        None => "nowhere".to_owned(),
    };
    format!("{calls} → {place}")
}

fn calls(route: &RouteMatch) -> String {
    let mut text = match &route.path_specifier {
        Some(PathSpecifier::Prefix(prefix)) if prefix.is_empty() || prefix == "/" => "all calls".to_owned(),
        Some(PathSpecifier::Prefix(prefix)) => format!("{prefix}*"),
        Some(PathSpecifier::Path(path)) => path.clone(),
        Some(PathSpecifier::SafeRegex(regex)) => format!("paths like {:?}", regex.regex),
        Some(PathSpecifier::PathSeparatedPrefix(prefix)) => format!("{prefix}/*"),
        Some(PathSpecifier::ConnectMatcher(_)) => "CONNECT".to_owned(),
        None => "any path".to_owned(),
    };
    if route.case_sensitive == Some(false) {
        text.push_str(" in any case");
    }
    for header in &route.headers {
        let _ = write!(text, ", {}", self::header(header));
    }
    for parameter in &route.query_parameters {
        let _ = write!(text, ", query parameter {}", parameter.name);
    }
    let fraction = route.runtime_fraction.as_ref().and_then(|fraction| fraction.default_value);
    if let Some(fraction) = fraction {
        let _ = write!(text, ", {} of them", percent(fraction));
    }
    text
}

fn header(header: &HeaderMatcher) -> String {
    let name = &header.name;
    let not = if header.invert_match { "not " } else { "" };
    match &header.header_match_specifier {
        Some(HeaderMatchSpecifier::ExactMatch(text)) => format!("{not}{name} = {text}"),
        Some(HeaderMatchSpecifier::SafeRegexMatch(regex)) => format!("{not}{name} like {:?}", regex.regex),
        Some(HeaderMatchSpecifier::RangeMatch(range)) => {
            format!("{not}{name} from {} to below {}", range.start, range.end)
        }
        Some(HeaderMatchSpecifier::PresentMatch(present)) => {
            let there = if *present == header.invert_match { "no " } else { "" };
            format!("{there}header {name}")
        }
        Some(HeaderMatchSpecifier::PrefixMatch(text)) => format!("{not}{name} = {text}*"),
        Some(HeaderMatchSpecifier::SuffixMatch(text)) => format!("{not}{name} = *{text}"),
        Some(HeaderMatchSpecifier::ContainsMatch(text)) => format!("{not}{name} = *{text}*"),
        Some(HeaderMatchSpecifier::StringMatch(matcher)) => format!("{not}{name}{}", string(matcher)),
        None => format!("{not}header {name}"),
    }
}

fn string(matcher: &StringMatcher) -> String {
    let text = match &matcher.match_pattern {
        Some(MatchPattern::Exact(text)) => format!(" = {text}"),
        Some(MatchPattern::Prefix(text)) => format!(" = {text}*"),
        Some(MatchPattern::Suffix(text)) => format!(" = *{text}"),
        Some(MatchPattern::Contains(text)) => format!(" = *{text}*"),
        Some(MatchPattern::SafeRegex(regex)) => format!(" like {:?}", regex.regex),
        Some(MatchPattern::Custom(custom)) => format!(" by {}", custom.name),
        None => String::new(),
    };
    if matcher.ignore_case { format!("{text} in any case") } else { text }
}

fn place(action: &RouteAction) -> String {
    match &action.cluster_specifier {
        Some(ClusterSpecifier::Cluster(name)) => name.clone(),
        Some(ClusterSpecifier::ClusterHeader(header)) => format!("the cluster that header {header} names"),
        Some(ClusterSpecifier::WeightedClusters(clusters)) => weighted(clusters),
        Some(ClusterSpecifier::ClusterSpecifierPlugin(name)) => format!("plugin {name}"),
        None => "nowhere".to_owned(),
    }
}

fn weighted(clusters: &WeightedCluster) -> String {
    let weight = |weight: Option<u32>| f64::from(weight.unwrap_or_default());
    let total: f64 = clusters.clusters.iter().map(|cluster| weight(cluster.weight)).sum();
    let shares = clusters.clusters.iter().map(|cluster| {
        let share = if total > 0.0 { weight(cluster.weight) / total * 100.0 } else { 0.0 };
        format!("{} {} %", cluster.name, ui::number(share, 2))
    });
    shares.collect::<Vec<_>>().join(", ")
}

/// Returns the clusters that a route names.
pub(super) fn clusters_of(route: &Route) -> Vec<&str> {
    let Some(Action::Route(action)) = &route.action else { return Vec::new() };
    match &action.cluster_specifier {
        Some(ClusterSpecifier::Cluster(name)) => vec![name],
        Some(ClusterSpecifier::WeightedClusters(clusters)) => {
            clusters.clusters.iter().map(|cluster| cluster.name.as_str()).collect()
        }
        _ => Vec::new(),
    }
}

fn percent(fraction: FractionalPercent) -> String {
    let of = match DenominatorType::try_from(fraction.denominator) {
        Ok(DenominatorType::TenThousand) => 10_000.0,
        Ok(DenominatorType::Million) => 1_000_000.0,
        _ => 100.0,
    };
    format!("{} %", ui::number(f64::from(fraction.numerator) / of * 100.0, 2))
}

/// Describes a drop category and its share.
pub(super) fn drops(category: &str, share: Option<FractionalPercent>) -> String {
    let share = share.map_or_else(|| "none".to_owned(), percent);
    format!("drops {share} of calls ({category})")
}

/// Describes a cluster: its policy, and its discovery type unless that is EDS.
pub(super) fn cluster(cluster: &Cluster) -> String {
    let mut parts = vec![policy(cluster)];
    match &cluster.cluster_discovery_type {
        Some(ClusterDiscoveryType::Type(kind)) => match DiscoveryType::try_from(*kind) {
            Ok(DiscoveryType::Eds) => {}
            Ok(DiscoveryType::LogicalDns) => parts.push("endpoints by DNS".to_owned()),
            Ok(kind) => parts.push(format!("type {}", kind.as_str_name())),
            Err(_) => parts.push(format!("unknown type {kind}")),
        },
        Some(ClusterDiscoveryType::ClusterType(custom)) => parts.push(custom.name.clone()),
        None => {}
    }
    if cluster.outlier_detection.is_some() {
        parts.push("outlier detection".to_owned());
    }
    if cluster.transport_socket.is_some() {
        parts.push("TLS".to_owned());
    }
    parts.join(", ")
}

fn policy(cluster: &Cluster) -> String {
    let listed = cluster.load_balancing_policy.iter().flat_map(|policy| &policy.policies);
    let mut configs =
        listed.filter_map(|policy| policy.typed_extension_config.as_ref()?.typed_config.as_ref());
    if let Some(config) = configs.next() {
        return policy_name(config);
    }
    match LbPolicy::try_from(cluster.lb_policy) {
        Ok(policy) => policy.as_str_name().to_ascii_lowercase(),
        Err(_) => format!("unknown policy {}", cluster.lb_policy),
    }
}

/// Returns the policy name of a config. For `wrr_locality` it includes the child policy.
fn policy_name(config: &Any) -> String {
    let message = message_of(&config.type_url);
    if message == TypedStruct::full_name()
        && let Ok(typed) = TypedStruct::decode(&*config.value)
    {
        return short_type(&typed.type_url).to_owned();
    }
    let name = short_type(&config.type_url);
    if message == WrrLocality::full_name()
        && let Ok(locality) = WrrLocality::decode(&*config.value)
    {
        let below = locality.endpoint_picking_policy.iter().flat_map(|policy| &policy.policies);
        let mut below =
            below.filter_map(|policy| policy.typed_extension_config.as_ref()?.typed_config.as_ref());
        if let Some(below) = below.next() {
            return format!("{name} over {}", short_type(&below.type_url));
        }
    }
    name.to_owned()
}

/// Returns the message name: the part of a type URL after the last slash.
pub(super) fn message_of(type_url: &str) -> &str {
    type_url.rsplit('/').next().unwrap_or(type_url)
}

/// Returns `round_robin` for
/// `type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin`, and the last
/// part of other names.
fn short_type(type_url: &str) -> &str {
    let mut parts = message_of(type_url).rsplit('.');
    let last = parts.next().unwrap_or_default();
    match (parts.next(), parts.next()) {
        (Some("v3"), Some(name)) => name,
        _ => last,
    }
}

/// Describes a locality: name, weight and priority.
pub(super) fn locality(endpoints: &LocalityLbEndpoints) -> String {
    let place = endpoints.locality.as_ref().map(place_of).filter(|place| !place.is_empty());
    let place = place.unwrap_or_else(|| "no locality".to_owned());
    let weight = endpoints.load_balancing_weight.unwrap_or_default();
    format!("{place}, weight {weight}, priority {}", endpoints.priority)
}

fn place_of(locality: &Locality) -> String {
    let parts = [&locality.region, &locality.zone, &locality.sub_zone];
    parts.into_iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join("/")
}

/// Describes an endpoint: addresses, weight and host name.
pub(super) fn endpoint(endpoint: &LbEndpoint) -> String {
    let weight = endpoint.load_balancing_weight.unwrap_or(1);
    match &endpoint.host_identifier {
        Some(HostIdentifier::Endpoint(host)) => {
            let more = host.additional_addresses.iter().map(|more| more.address.as_ref());
            let all = std::iter::once(host.address.as_ref()).chain(more);
            let all = all.map(|one| one.map_or_else(|| "no address".to_owned(), address));
            let addresses = all.collect::<Vec<_>>().join(" + ");
            let name = if host.hostname.is_empty() { String::new() } else { format!(", {}", host.hostname) };
            format!("{addresses}, weight {weight}{name}")
        }
        Some(HostIdentifier::EndpointName(name)) => format!("{name}, weight {weight}"),
        None => "no address".to_owned(),
    }
}

/// Formats an address as `host:port`, with brackets around IPv6.
pub(super) fn address(address: &Address) -> String {
    match &address.address {
        Some(AddressKind::SocketAddress(socket)) => {
            let host = &socket.address;
            let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
            match &socket.port_specifier {
                Some(PortSpecifier::PortValue(port)) => format!("{host}:{port}"),
                Some(PortSpecifier::NamedPort(port)) => format!("{host}:{port}"),
                None => host,
            }
        }
        Some(AddressKind::Pipe(pipe)) => format!("unix:{}", pipe.path),
        None => "no address".to_owned(),
    }
}

/// Returns the health status of an endpoint; `None` for UNKNOWN.
pub(super) fn health(endpoint: &LbEndpoint) -> Option<String> {
    match HealthStatus::try_from(endpoint.health_status) {
        Ok(HealthStatus::Unknown) => None,
        Ok(health) => Some(health.as_str_name().to_owned()),
        Err(_) => Some(format!("unknown health {}", endpoint.health_status)),
    }
}

/// Returns true if clients use an endpoint with this health status (A27).
pub(super) fn is_usable(endpoint: &LbEndpoint) -> bool {
    matches!(
        HealthStatus::try_from(endpoint.health_status),
        Ok(HealthStatus::Unknown | HealthStatus::Healthy)
    )
}

/// Formats the time since a timestamp; `None` if it is out of range.
pub(super) fn ago(at: Option<&Timestamp>, now: SystemTime) -> Option<String> {
    let at = at?;
    let since = Duration::new(u64::try_from(at.seconds).ok()?, u32::try_from(at.nanos).unwrap_or_default());
    let then = UNIX_EPOCH.checked_add(since)?;
    // The peer's clock may be ahead.
    Some(age(now.duration_since(then).unwrap_or_default().as_secs()))
}

/// Formats an age in seconds.
pub(super) fn age(seconds: u64) -> String {
    match seconds {
        0 => "just now".to_owned(),
        1..=119 => format!("{seconds} s ago"),
        120..=7199 => format!("{} min ago", seconds / 60),
        7200..=172_799 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86400),
    }
}
