//! Builders of small, valid xDS resources, which tests modify as needed.

use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::cluster::v3::cluster::{
    ClusterDiscoveryType, CustomClusterType, DiscoveryType, EdsClusterConfig,
};
use evenkeel_proto::envoy::config::core::v3::address::Address as AddressKind;
use evenkeel_proto::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use evenkeel_proto::envoy::config::core::v3::socket_address::PortSpecifier;
use evenkeel_proto::envoy::config::core::v3::{
    Address, AggregatedConfigSource, ConfigSource, Locality, SocketAddress,
};
use evenkeel_proto::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use evenkeel_proto::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints,
};
use evenkeel_proto::envoy::config::listener::v3::{ApiListener, Listener};
use evenkeel_proto::envoy::config::route::v3::route::Action;
use evenkeel_proto::envoy::config::route::v3::route_action::ClusterSpecifier;
use evenkeel_proto::envoy::config::route::v3::route_match::PathSpecifier;
use evenkeel_proto::envoy::config::route::v3::{
    Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost,
};
use evenkeel_proto::envoy::extensions::clusters::aggregate::v3::ClusterConfig;
use evenkeel_proto::envoy::extensions::filters::http::router::v3::Router;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, Rds, http_filter,
};
use evenkeel_proto::prost::Name;
use evenkeel_proto::prost_types::Any;

/// Packs a message into an `Any`.
pub fn any<M: Name>(message: &M) -> Any {
    Any { type_url: M::type_url(), value: message.encode_to_vec() }
}

/// Returns a config source for the ADS stream.
pub fn ads() -> ConfigSource {
    let source = ConfigSourceSpecifier::Ads(AggregatedConfigSource {});
    ConfigSource { config_source_specifier: Some(source), ..ConfigSource::default() }
}

/// Returns an API listener with a connection manager.
pub fn listener(name: &str, manager: &HttpConnectionManager) -> Listener {
    Listener {
        name: name.to_owned(),
        api_listener: Some(ApiListener { api_listener: Some(any(manager)) }),
        ..Listener::default()
    }
}

/// Returns a connection manager with these routes and the router as its only filter.
pub fn manager(routes: RouteSpecifier) -> HttpConnectionManager {
    HttpConnectionManager {
        http_filters: vec![filter("router", any(&Router::default()))],
        route_specifier: Some(routes),
        ..HttpConnectionManager::default()
    }
}

/// Returns an HTTP filter.
pub fn filter(name: &str, config: Any) -> HttpFilter {
    HttpFilter {
        name: name.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(config)),
        ..HttpFilter::default()
    }
}

/// Returns a listener that refers to the route configuration `rds`.
pub fn listener_with_rds(name: &str, rds: &str) -> Listener {
    let rds = Rds { route_config_name: rds.to_owned(), config_source: Some(ads()) };
    listener(name, &manager(RouteSpecifier::Rds(rds)))
}

/// Returns a listener with inline routes.
pub fn listener_with_routes(name: &str, routes: RouteConfiguration) -> Listener {
    listener(name, &manager(RouteSpecifier::RouteConfig(routes)))
}

/// Returns a route configuration that sends all calls to one cluster.
pub fn route_config(name: &str, cluster: &str) -> RouteConfiguration {
    RouteConfiguration {
        name: name.to_owned(),
        virtual_hosts: vec![virtual_host("*", vec![route("", cluster)])],
        ..RouteConfiguration::default()
    }
}

/// Returns a virtual host for one domain.
pub fn virtual_host(domain: &str, routes: Vec<Route>) -> VirtualHost {
    VirtualHost {
        name: format!("host {domain}"),
        domains: vec![domain.to_owned()],
        routes,
        ..VirtualHost::default()
    }
}

/// Returns a route from a path prefix to a cluster.
pub fn route(prefix: &str, cluster: &str) -> Route {
    let action = RouteAction {
        cluster_specifier: Some(ClusterSpecifier::Cluster(cluster.to_owned())),
        ..RouteAction::default()
    };
    Route {
        r#match: Some(RouteMatch {
            path_specifier: Some(PathSpecifier::Prefix(prefix.to_owned())),
            ..RouteMatch::default()
        }),
        action: Some(Action::Route(action)),
        ..Route::default()
    }
}

/// Returns an EDS cluster with its own name as service name.
pub fn cluster(name: &str) -> Cluster {
    Cluster {
        name: name.to_owned(),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into())),
        eds_cluster_config: Some(EdsClusterConfig { eds_config: Some(ads()), service_name: String::new() }),
        ..Cluster::default()
    }
}

/// Returns a LOGICAL_DNS cluster.
pub fn dns_cluster(name: &str, host: &str, port: u16) -> Cluster {
    let locality =
        LocalityLbEndpoints { lb_endpoints: vec![endpoint(host, port)], ..LocalityLbEndpoints::default() };
    Cluster {
        name: name.to_owned(),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::LogicalDns.into())),
        load_assignment: Some(ClusterLoadAssignment {
            endpoints: vec![locality],
            ..ClusterLoadAssignment::default()
        }),
        ..Cluster::default()
    }
}

/// Returns an aggregate cluster.
pub fn aggregate_cluster(name: &str, members: &[&str]) -> Cluster {
    let config = ClusterConfig { clusters: members.iter().map(|member| (*member).to_owned()).collect() };
    let kind =
        CustomClusterType { name: "envoy.clusters.aggregate".to_owned(), typed_config: Some(any(&config)) };
    Cluster {
        name: name.to_owned(),
        cluster_discovery_type: Some(ClusterDiscoveryType::ClusterType(kind)),
        ..Cluster::default()
    }
}

/// Returns endpoints, given as `ip:port`, in one locality of weight 1.
pub fn load_assignment(cluster: &str, addresses: &[&str]) -> ClusterLoadAssignment {
    let locality = locality("local", 1, 0, addresses);
    ClusterLoadAssignment {
        cluster_name: cluster.to_owned(),
        endpoints: vec![locality],
        ..ClusterLoadAssignment::default()
    }
}

/// Sets the weights of the endpoints in the first locality, in order.
pub fn weighted(
    mut assignment: ClusterLoadAssignment,
    weights: impl IntoIterator<Item = u32>,
) -> ClusterLoadAssignment {
    let endpoints = assignment.endpoints.iter_mut().take(1).flat_map(|locality| &mut locality.lb_endpoints);
    for (endpoint, weight) in endpoints.zip(weights) {
        endpoint.load_balancing_weight = Some(weight);
    }
    assignment
}

/// Returns a locality with its weight, priority and endpoints.
pub fn locality(zone: &str, weight: u32, priority: u32, addresses: &[&str]) -> LocalityLbEndpoints {
    let endpoints = addresses.iter().map(|address| {
        let (ip, port) = address.rsplit_once(':').expect("an address with a port");
        endpoint(ip.trim_matches(['[', ']']), port.parse().expect("a port"))
    });
    LocalityLbEndpoints {
        locality: Some(Locality { zone: zone.to_owned(), ..Locality::default() }),
        lb_endpoints: endpoints.collect(),
        load_balancing_weight: Some(weight),
        priority,
        ..LocalityLbEndpoints::default()
    }
}

/// Returns an endpoint at this host and port.
pub fn endpoint(host: &str, port: u16) -> LbEndpoint {
    let endpoint = Endpoint { address: Some(address(host, port)), ..Endpoint::default() };
    LbEndpoint { host_identifier: Some(HostIdentifier::Endpoint(endpoint)), ..LbEndpoint::default() }
}

/// Returns a socket address.
pub fn address(host: &str, port: u16) -> Address {
    let socket = SocketAddress {
        address: host.to_owned(),
        port_specifier: Some(PortSpecifier::PortValue(port.into())),
        ..SocketAddress::default()
    };
    Address { address: Some(AddressKind::SocketAddress(socket)) }
}
