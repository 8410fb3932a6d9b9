//! Valid meshes: the resources that they become, which clients accept.

use std::path::Path;
use std::time::Duration;

use evenkeel_control::{
    Cluster, Endpoint, FailurePercentage, RouteHash, HeaderMatch, EndpointHealth, Locality, Mesh, OutlierDetection,
    ClusterPolicy, RouteRetry, RetryOn, Route, Service, TrafficFraction, SuccessRate,
};
use evenkeel_proto::envoy::config::cluster::v3 as cds;
use evenkeel_proto::envoy::config::cluster::v3::cluster::LbPolicy;
use evenkeel_proto::envoy::config::core::v3::{ApiVersion, ConfigSource};
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_proto::envoy::config::listener::v3::Listener;
use evenkeel_proto::envoy::config::route::v3::RouteConfiguration;
use evenkeel_proto::envoy::config::route::v3::route::Action;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::Rds;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use evenkeel_proto::envoy::extensions::load_balancing_policies::wrr_locality::v3::WrrLocality;
use evenkeel_proto::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;
use evenkeel_proto::prost::{Message, Name};
use evenkeel_proto::prost_types::Any;
use evenkeel_proto::xds::r#type::v3::TypedStruct;
use evenkeel_xds::bootstrap::ServerConfig;
use evenkeel_xds::resource::{ResourceParser, ResourceType};
use serde_json::json;
use testkit::resources;

/// Parses a mesh and checks that the client's parser accepts every resource without a warning.
fn read(yaml: &str) -> Mesh {
    let mesh = Mesh::from_yaml(yaml).unwrap_or_else(|errors| panic!("{errors}\nin\n{yaml}"));
    accept(&mesh);
    mesh
}

fn accept(mesh: &Mesh) {
    let parser = ResourceParser::new(evenkeel::Registry::standard());
    let from = ServerConfig::insecure("control.test:443");
    for (type_url, name, any) in mesh.resources().iter() {
        let kind = ResourceType::from_type_url(type_url).expect("a type that clients request");
        match parser.parse(kind, any, &from) {
            Ok(parsed) => {
                assert_eq!(parsed.name, name);
                assert_eq!(parsed.warnings, Vec::<String>::new(), "{kind} {name}");
            }
            Err(rejected) => panic!("{kind} {name}: {rejected:?}"),
        }
    }
}

/// The smallest mesh, resource by resource.
#[test]
fn a_service_is_four_resources() {
    let mesh = read(
        "
services:
  orders:
    cluster: pay
clusters:
  pay:
    policy: edf_weighted_round_robin
    endpoints: [10.0.0.1:50051, 10.0.0.2:50051]
",
    );
    assert_eq!(mesh.services().collect::<Vec<_>>(), ["orders"]);
    assert_eq!(mesh.clusters().collect::<Vec<_>>(), ["pay"]);
    let sent = mesh.resources();
    assert_eq!(sent.iter().count(), 4);
    let source = ConfigSource { resource_api_version: ApiVersion::V3.into(), ..resources::ads() };
    let rds = Rds { route_config_name: "orders".to_owned(), config_source: Some(source.clone()) };
    let listener = resources::listener("orders", &resources::manager(RouteSpecifier::Rds(rds)));
    let mut cluster = resources::cluster("pay");
    cluster.eds_cluster_config.as_mut().unwrap().eds_config = Some(source);
    // Envoy requires `explicit_http_config { http2_protocol_options {} }`.
    let http2 = Any { type_url: HttpProtocolOptions::type_url(), value: vec![26, 2, 18, 0] };
    cluster.typed_extension_protocol_options.insert(HttpProtocolOptions::full_name(), http2);
    assert_eq!(sent.get::<Listener>("orders"), Some(listener));
    assert_eq!(sent.get::<cds::Cluster>("pay"), Some(cluster));
    let mut routes = resources::route_config("orders", "pay");
    routes.virtual_hosts[0].name = "orders".to_owned();
    assert_eq!(sent.get::<RouteConfiguration>("orders"), Some(routes));
    let mut endpoints = resources::load_assignment("pay", &["10.0.0.1:50051", "10.0.0.2:50051"]);
    endpoints.endpoints[0].locality.as_mut().unwrap().zone.clear();
    endpoints.endpoints[0].load_balancing_weight = Some(2);
    assert_eq!(sent.get::<ClusterLoadAssignment>("pay"), Some(endpoints));
}

/// All route settings have the same meaning in YAML and in code.
#[test]
fn all_route_settings() {
    let yaml = "
services:
  plain: {cluster: a, timeout: 1.5s}
  same-name:
  split:
    weights: {a: 95, b: 5}
  orders:
    routes:
      - path: /shop.Orders/Get
        ignore_case: true
        headers:
          x-tier: gold
          x-user: {prefix: a, ignore_case: true}
          x-b: {suffix: b, invert: true}
          x-c: {contains: c}
          x-d: {regex: 'd+'}
          x-e: {range: {from: -1, below: 10}}
          x-f: {present: false}
          x-g: {exact: '10'}
        fraction: 0.5%
        to: a
        timeout: 2s
        retry: {on: [unavailable, deadline_exceeded], attempts: 3, backoff: {base: 25ms, max: 250ms}}
        hash:
          - {header: x-user, rewrite: {regex: '^(.)', with: '\\1'}, terminal: true}
          - {header: x-tier}
          - channel_id
      - prefix: /shop.Orders/
        to: b
        retry: {on: [internal]}
      - regex: '/shop\\.[A-Z]+/.*'
        weights: {a: 1, b: 0}
      - to: a
clusters:
  a: {endpoints: []}
  b: {endpoints: []}
  same-name: {endpoints: []}
";
    let first = Route::to("a")
        .path("/shop.Orders/Get")
        .ignore_case()
        .header("x-tier", HeaderMatch::exact("gold"))
        .header("x-user", HeaderMatch::prefix("a").ignore_case())
        .header("x-b", HeaderMatch::suffix("b").invert())
        .header("x-c", HeaderMatch::contains("c"))
        .header("x-d", HeaderMatch::regex("d+"))
        .header("x-e", HeaderMatch::range(-1, 10))
        .header("x-f", HeaderMatch::present(false))
        .header("x-g", HeaderMatch::exact("10"))
        .fraction(TrafficFraction::per_million(5_000))
        .timeout(Duration::from_secs(2))
        .retry(
            RouteRetry::on([RetryOn::Unavailable, RetryOn::DeadlineExceeded])
                .attempts(3)
                .backoff(Duration::from_millis(25), Duration::from_millis(250)),
        )
        .hash(RouteHash::rewritten_header("x-user", "^(.)", "\\1").terminal())
        .hash(RouteHash::header("x-tier"))
        .hash(RouteHash::channel_id());
    let orders = Service::new()
        .route(first)
        .route(Route::to("b").prefix("/shop.Orders/").retry(RouteRetry::on([RetryOn::Internal])))
        .route(Route::split([("a", 1), ("b", 0)]).regex("/shop\\.[A-Z]+/.*"))
        .route(Route::to("a"));
    let mesh = read(yaml);
    let in_code = |name| Mesh::new().service("it", name).resources().get::<RouteConfiguration>("it").unwrap();
    let in_yaml = |name| mesh.resources().get::<RouteConfiguration>(name).unwrap();
    let routes = |configuration: RouteConfiguration| configuration.virtual_hosts[0].routes.clone();
    assert_eq!(routes(in_yaml("orders")), routes(in_code(orders)));
    assert_eq!(routes(in_yaml("same-name")), routes(in_code(Service::to("same-name"))));
    let plain = Service::new().route(Route::to("a").timeout(Duration::from_millis(1500)));
    assert_eq!(routes(in_yaml("plain")), routes(in_code(plain)));
    let split = Service::new().route(Route::split([("a", 95), ("b", 5)]));
    assert_eq!(routes(in_yaml("split")), routes(in_code(split)));
    // Values that the comparison above would not check.
    let route = &routes(in_yaml("orders"))[0];
    let Some(Action::Route(action)) = &route.action else { panic!("{route:?}") };
    let retry = action.retry_policy.as_ref().unwrap();
    assert_eq!((retry.retry_on.as_str(), retry.num_retries), ("unavailable,deadline-exceeded", Some(2)));
    assert_eq!(action.hash_policy.len(), 3);
    let fraction = route.r#match.as_ref().unwrap().runtime_fraction.as_ref().unwrap();
    assert_eq!(fraction.default_value.unwrap().numerator, 50, "of ten thousand");
}

/// All cluster settings have the same meaning in YAML and in code.
#[test]
fn all_cluster_settings() {
    let yaml = "
clusters:
  orders:
    policy: round_robin
    endpoints:
      - 10.0.0.1:50051
      - {address: 10.0.0.2:50051, name: big-1, weight: 3, locality: eu/eu-1a, health: draining, hash_key: k}
      - {addresses: ['10.0.0.3:50051', '[::1]:50051'], locality: eu/eu-1b/rack-2}
      - {address: 10.0.0.4:50051, priority: 1}
    localities:
      eu/eu-1a: {weight: 3}
      eu/eu-1b/rack-2: {priority: 1}
    circuit_breaking: {max_requests: 100}
    drops: {shed: 2%, test: 0.25%}
    outlier_detection:
      interval: 5s
      base_ejection_time: 10s
      max_ejection_time: 1m
      max_ejection_percent: 50%
      success_rate: {stdev_factor: 1.5, enforcing: 90%, minimum_hosts: 2, request_volume: 10}
      failure_percentage: {threshold: 60%, minimum_hosts: 3, request_volume: 20}
    lrs: true
  names: {dns: 'orders.prod:50051'}
  both: {aggregate: [orders, names]}
";
    let locality = |zone: &str, sub_zone: &str| Locality {
        region: "eu".to_owned(),
        zone: zone.to_owned(),
        sub_zone: sub_zone.to_owned(),
    };
    let at = |text: &str| Endpoint::at(text.parse().unwrap());
    let draining = at("10.0.0.2:50051")
        .name("big-1")
        .weight(3)
        .locality(locality("eu-1a", ""))
        .health(EndpointHealth::Draining)
        .hash_key("k");
    let two = ["10.0.0.3:50051", "[::1]:50051"].map(|text| text.parse().unwrap());
    let orders = Cluster::new()
        .policy("round_robin")
        .endpoint(at("10.0.0.1:50051"))
        .endpoint(draining)
        .endpoint(Endpoint::at_any(two).locality(locality("eu-1b", "rack-2")))
        .endpoint(at("10.0.0.4:50051").priority(1))
        .locality_weight(locality("eu-1a", ""), 3)
        .locality_priority(locality("eu-1b", "rack-2"), 1)
        .max_requests(100)
        .drop_calls("shed", TrafficFraction::percent(2))
        .drop_calls("test", TrafficFraction::per_million(2_500))
        .outlier_detection(OutlierDetection {
            interval: Some(Duration::from_secs(5)),
            base_ejection_time: Some(Duration::from_secs(10)),
            max_ejection_time: Some(Duration::from_secs(60)),
            max_ejection_percent: Some(50),
            success_rate: Some(SuccessRate {
                stdev_factor: Some(1500),
                enforcing_percent: Some(90),
                minimum_hosts: Some(2),
                request_volume: Some(10),
            }),
            failure_percentage: Some(FailurePercentage {
                threshold_percent: Some(60),
                enforcing_percent: None,
                minimum_hosts: Some(3),
                request_volume: Some(20),
            }),
        })
        .lrs();
    let in_code = Mesh::new()
        .cluster("orders", orders)
        .cluster("names", Cluster::dns("orders.prod", 50051))
        .cluster("both", Cluster::aggregate(["orders", "names"]));
    let mesh = read(yaml);
    assert_eq!(mesh, in_code);
    assert_eq!(in_code.check(), Ok(()));
    let sent = mesh.resources().get::<ClusterLoadAssignment>("orders").unwrap();
    let groups = sent.endpoints.iter().map(|group| {
        let zone = group.locality.as_ref().unwrap().zone.as_str();
        (group.priority, zone, group.load_balancing_weight, group.lb_endpoints.len())
    });
    let groups: Vec<_> = groups.collect();
    let expected =
        [(0, "", Some(1), 1), (0, "eu-1a", Some(3), 1), (1, "", Some(1), 1), (1, "eu-1b", Some(1), 1)];
    assert_eq!(groups, expected);
    let outliers = mesh.resources().get::<cds::Cluster>("orders").unwrap().outlier_detection.unwrap();
    assert_eq!(outliers.enforcing_failure_percentage, Some(100), "it is off if it is not set (A50)");
}

/// A locality without a weight has the sum of the weights of its endpoints that take calls.
#[test]
fn a_locality_has_the_weight_of_its_endpoints() {
    let mesh = read(
        "
clusters:
  orders:
    endpoints:
      - {address: 10.0.0.1:1, locality: a, weight: 5}
      - {address: 10.0.0.2:1, locality: a}
      - {address: 10.0.0.3:1, locality: a, weight: 7, health: unhealthy}
      - {address: 10.0.0.4:1, locality: b, health: draining}
",
    );
    let sent = mesh.resources().get::<ClusterLoadAssignment>("orders").unwrap();
    let weights: Vec<_> = sent.endpoints.iter().map(|group| group.load_balancing_weight).collect();
    assert_eq!(weights, [Some(6), Some(1)]);
}

/// Only one of the two ejection algorithms is on unless both are configured.
#[test]
fn failure_percentage_alone() {
    let outliers = |settings: &str| {
        let yaml = format!("clusters: {{a: {{endpoints: [], outlier_detection: {settings}}}}}");
        read(&yaml).resources().get::<cds::Cluster>("a").unwrap().outlier_detection.unwrap()
    };
    let enforced = |settings| {
        let outliers = outliers(settings);
        (outliers.enforcing_success_rate, outliers.enforcing_failure_percentage)
    };
    assert_eq!(enforced("{}"), (Some(100), Some(0)), "success rate, by default");
    assert_eq!(enforced("{success_rate: {}}"), (Some(100), Some(0)));
    assert_eq!(enforced("{failure_percentage: {}}"), (Some(0), Some(100)));
    assert_eq!(enforced("{success_rate: {}, failure_percentage: {enforcing: 5%}}"), (Some(100), Some(5)));
}

/// Message type of a cluster's policy. For `WrrLocality`, the type of its child policy follows.
fn policy(yaml: &str) -> Vec<String> {
    let mesh = read(&format!("clusters: {{a: {{endpoints: [], policy: {yaml}}}}}"));
    let cluster = mesh.resources().get::<cds::Cluster>("a").expect("a cluster");
    assert_eq!(cluster.lb_policy, LbPolicy::RoundRobin as i32);
    let mut list = cluster.load_balancing_policy;
    let mut types = Vec::new();
    while let Some(entry) = list.take().and_then(|list| list.policies.into_iter().next()) {
        let any =
            entry.typed_extension_config.and_then(|extension| extension.typed_config).expect("a policy");
        let mut name = any.type_url.rsplit('.').next().unwrap_or_default().to_owned();
        if any.type_url == WrrLocality::type_url() {
            list = WrrLocality::decode(&*any.value).expect("a message").endpoint_picking_policy;
        } else if any.type_url == TypedStruct::type_url() {
            name = TypedStruct::decode(&*any.value).expect("a message").type_url;
        }
        types.push(name);
    }
    types
}

/// A52 defines the messages, A42 and A48 the policies below the locality. edf_weighted_round_robin is sent as
/// the enum ROUND_ROBIN (see EDF-10).
#[test]
fn policies_are_sent_in_the_form_that_grpc_reads() {
    assert_eq!(policy("round_robin"), ["WrrLocality", "RoundRobin"]);
    assert_eq!(policy("weighted_round_robin"), ["WrrLocality", "ClientSideWeightedRoundRobin"]);
    assert_eq!(policy("{least_request: {choice_count: 3}}"), ["WrrLocality", "LeastRequest"]);
    assert_eq!(policy("{ring_hash: {min_ring_size: 1024}}"), ["RingHash"]);
    assert_eq!(policy("{ring_hash_experimental: {maxRingSize: 2048}}"), ["RingHash"]);
    assert_eq!(policy("pick_first"), ["PickFirst"]);
    assert_eq!(policy("edf_weighted_round_robin"), Vec::<String>::new(), "by the enum");
    assert_eq!(policy("[{round_robin: {}}]"), ["RoundRobin"], "a list is sent unchanged");
    assert_eq!(policy("[{wrr_locality: {child_policy: [{round_robin: }]}}]"), ["WrrLocality", "RoundRobin"]);
    assert_eq!(
        policy("{random_subsetting: {subset_size: 3, child_policy: round_robin}}"),
        ["RandomSubsetting"]
    );
    let own = "[{edf_weighted_round_robin: {}}, {my_policy: {level: 3}}]";
    assert_eq!(policy(own), ["type.googleapis.com/edf_weighted_round_robin"]);
}

/// The settings of a custom policy are sent as they were written.
#[test]
fn a_custom_policy_keeps_its_settings() {
    let settings = json!({"level": 3, "names": ["a", true, null, 0.5], "deep": {"er": {}}});
    let cluster = Cluster::new()
        .policy(ClusterPolicy::list([("my_policy", settings.clone()), ("round_robin", json!({}))]));
    let yaml = format!(
        "clusters: {{a: {{endpoints: [], policy: [{{my_policy: {settings}}}, {{round_robin: {{}}}}]}}}}"
    );
    let mesh = read(&yaml);
    assert_eq!(mesh, Mesh::new().cluster("a", cluster));
    let list = mesh.resources().get::<cds::Cluster>("a").unwrap().load_balancing_policy.unwrap();
    let any = list.policies[0].typed_extension_config.clone().unwrap().typed_config.unwrap();
    let sent = TypedStruct::decode(&*any.value).unwrap();
    assert_eq!(sent.type_url, "type.googleapis.com/my_policy");
    let fields = sent.value.unwrap().fields;
    assert_eq!(fields.len(), 3);
    assert_eq!(fields["level"].kind, Some(evenkeel_proto::prost_types::value::Kind::NumberValue(3.0)));
}

/// All meshes in docs/mesh.md parse.
#[test]
fn every_mesh_of_the_page_is_valid() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/mesh.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let blocks: Vec<_> =
        page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() > 5, "found {} meshes", blocks.len());
    for block in blocks {
        read(block);
    }
}

/// Anchors, aliases and merges work as in any YAML.
#[test]
fn yaml_aliases_are_resolved() {
    let mesh = read(
        "
clusters:
  a: &a
    endpoints: [10.0.0.1:1]
    policy: round_robin
  b: *a
  c:
    <<: *a
    policy: pick_first
",
    );
    let at = Endpoint::at("10.0.0.1:1".parse().unwrap());
    let a = Cluster::new().policy("round_robin").endpoint(at);
    assert_eq!(
        mesh,
        Mesh::new().cluster("a", a.clone()).cluster("b", a.clone()).cluster("c", a.policy("pick_first"))
    );
}
