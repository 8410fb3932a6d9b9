//! Memory that parsing resources allocates, counted by the allocator: constant per item, and little for a resource
//! that is rejected.

use evenkeel_core::Registry;
use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::core::v3::Metadata;
use evenkeel_proto::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use evenkeel_proto::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints,
};
use evenkeel_proto::envoy::config::route::v3::{Route, RouteConfiguration, VirtualHost};
use evenkeel_proto::prost::Message;
use evenkeel_proto::prost_types::value::Kind;
use evenkeel_proto::prost_types::{Any, Struct, Value};
use evenkeel_xds::bootstrap::ServerConfig;
use evenkeel_xds::resource::{ResourceParser, ResourceType};
use testkit::Counting;
use testkit::resources::{listener_with_routes, load_assignment, route, route_config, virtual_host};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MANY: usize = 100_000;

/// Maximum of bytes allocated per byte of a rejected resource. A listener is copied when its `Any` is opened.
/// Decoding the resources of these tests would allocate more than fifty times their size.
const TIMES: u64 = 3;

/// Returns the error of a resource, and checks that rejecting it allocated at most [`TIMES`] its size.
fn refused(kind: ResourceType, bytes: Vec<u8>) -> String {
    let mut parser = ResourceParser::new(Registry::standard());
    parser.limits.endpoints = 1_000;
    parser.limits.routes = 1_000;
    let from = ServerConfig::insecure("xds.test:443");
    let any = Any { type_url: kind.type_url().to_owned(), value: bytes };
    let (allocations, result) = Counting::during(|| parser.parse(kind, &any, &from));
    let (allocated, sent) = (allocations.bytes, any.value.len() as u64);
    assert!(allocated < TIMES * sent, "{allocated} bytes for {sent}");
    result.expect_err("far more than the limit").to_string()
}

fn assignment(endpoints: Vec<LocalityLbEndpoints>) -> ClusterLoadAssignment {
    ClusterLoadAssignment { cluster_name: "c".to_owned(), endpoints, ..ClusterLoadAssignment::default() }
}

fn of_empty_endpoints() -> ClusterLoadAssignment {
    let lb_endpoints = vec![LbEndpoint::default(); MANY / 4];
    assignment(vec![LocalityLbEndpoints { lb_endpoints, ..LocalityLbEndpoints::default() }; 4])
}

/// A list over the limit is rejected before it is decoded, since two bytes on the wire become hundreds in memory.
#[test]
fn a_long_list_is_refused_before_it_is_decoded() {
    let endpoints = of_empty_endpoints();
    assert_eq!(
        refused(ResourceType::Endpoints, endpoints.encode_to_vec()),
        "\"c\": endpoints: there are 100000 endpoints; at most 1000 are allowed"
    );
    assert_eq!(
        refused(
            ResourceType::Endpoints,
            assignment(vec![LocalityLbEndpoints::default(); MANY]).encode_to_vec()
        ),
        "\"c\": endpoints: there are 100000 localities; at most 1000 are allowed"
    );
    let cluster = Cluster { name: "dns".to_owned(), load_assignment: Some(endpoints), ..Cluster::default() };
    assert_eq!(
        refused(ResourceType::Cluster, cluster.encode_to_vec()),
        "\"dns\": load_assignment.endpoints: there are 100000 endpoints; at most 1000 are allowed"
    );
    let host = VirtualHost { routes: vec![Route::default(); MANY], ..VirtualHost::default() };
    let routes = RouteConfiguration { virtual_hosts: vec![host], ..route_config("r", "unused") };
    assert_eq!(
        refused(ResourceType::RouteConfig, routes.encode_to_vec()),
        "\"r\": virtual_hosts: there are 100000 routes; at most 1000 are allowed"
    );
    assert_eq!(
        refused(ResourceType::Listener, listener_with_routes("l", routes).encode_to_vec()),
        "\"l\": api_listener.api_listener.route_config.virtual_hosts: there are 100000 routes; at most 1000 are allowed"
    );
}

/// A length prefix beyond the end of its message is invalid. Its items are counted all the same, because the decoder
/// would allocate them before it notices.
#[test]
fn items_behind_an_invalid_length_are_counted() {
    let empty = [0x22, 0];
    let addresses = empty.repeat(MANY);
    let field = |tag: u8, bytes: &[u8]| {
        let mut out = vec![tag << 3 | 2];
        evenkeel_proto::prost::encode_length_delimiter(bytes.len(), &mut out).unwrap();
        out.extend_from_slice(bytes);
        out
    };
    let endpoint = Endpoint::decode(&*addresses).expect("many addresses");
    let endpoint =
        LbEndpoint { host_identifier: Some(HostIdentifier::Endpoint(endpoint)), ..LbEndpoint::default() };
    // The length prefix of the locality is four bytes.
    let mut bytes = [field(1, b"c"), vec![2 << 3 | 2, 4]].concat();
    bytes.extend(field(2, &endpoint.encode_to_vec()));
    let told = refused(ResourceType::Endpoints, bytes);
    assert!(
        told.ends_with("endpoints: there are 100000 additional addresses; at most 16000 are allowed"),
        "{told}"
    );
}

/// Returns the number of allocations and bytes per item of a resource that is accepted.
fn each(kind: ResourceType, items: usize, bytes: Vec<u8>) -> (f64, f64) {
    let parser = ResourceParser::new(Registry::standard());
    let from = ServerConfig::insecure("xds.test:443");
    let any = Any { type_url: kind.type_url().to_owned(), value: bytes };
    let (allocations, result) = Counting::during(|| parser.parse(kind, &any, &from));
    result.expect("it is valid");
    (allocations.count as f64 / items as f64, allocations.bytes as f64 / items as f64)
}

/// A load assignment with 100,000 endpoints costs no more per endpoint than one with 1,000, and 20,000 routes no more
/// than 200.
#[test]
fn the_cost_of_an_item_does_not_grow_with_their_number() {
    let endpoints = |n: usize| {
        let list: Vec<String> =
            (0..n).map(|i| format!("10.{}.{}.{}:80", i >> 16, (i >> 8) & 255, i & 255)).collect();
        let list: Vec<&str> = list.iter().map(String::as_str).collect();
        each(ResourceType::Endpoints, n, load_assignment("c", &list).encode_to_vec())
    };
    let of_istio = |n: usize| {
        let workload =
            Value { kind: Some(Kind::StringValue("ratings;shop;ratings;v1;Kubernetes".to_owned())) };
        let istio = Struct { fields: [("workload".to_owned(), workload)].into() };
        let metadata =
            Metadata { filter_metadata: [("istio".to_owned(), istio)].into(), ..Metadata::default() };
        let list: Vec<String> = (0..n).map(|i| format!("10.0.{}.{}:80", i >> 8, i & 255)).collect();
        let list: Vec<&str> = list.iter().map(String::as_str).collect();
        let mut assignment = load_assignment("c", &list);
        for endpoint in assignment.endpoints.iter_mut().flat_map(|locality| &mut locality.lb_endpoints) {
            endpoint.metadata = Some(metadata.clone());
        }
        each(ResourceType::Endpoints, n, assignment.encode_to_vec())
    };
    let routes = |n: usize| {
        let host = virtual_host("*", (0..n).map(|i| route(&format!("/s/{i}"), &format!("c{i}"))).collect());
        let table = RouteConfiguration { virtual_hosts: vec![host], ..route_config("r", "unused") };
        each(ResourceType::RouteConfig, n, table.encode_to_vec())
    };
    let (plain, of_istio) = (endpoints(1_000), of_istio(1_000));
    println!("allocations and bytes for each endpoint: {plain:?}, with Istio's metadata: {of_istio:?}");
    assert!(of_istio.0 <= plain.0 && of_istio.1 <= plain.1 * 1.01, "metadata without an effect costs memory");
    for (few, many) in [(endpoints(1_000), endpoints(100_000)), (routes(200), routes(20_000))] {
        assert!(many.0 < few.0 * 1.05, "allocations for each: {} of few, {} of many", few.0, many.0);
        // A vector doubles its capacity when it is full, so up to half of it may be unused.
        assert!(many.1 < few.1 * 1.5, "bytes for each: {} of few, {} of many", few.1, many.1);
    }
}
