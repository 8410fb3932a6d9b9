//! Clusters: their fields in the parsed config, and the errors of invalid resources.

mod security;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::cluster::{
    BackendMetrics, Cluster as CoreCluster, EndpointSource, LeafCluster, LoadReporting,
};
use evenkeel_core::policy::{
    FailurePercentageEjection, LeastRequestConfig, OutlierSettings, RingHashConfig, SuccessRateEjection,
    WrrLocalityConfig,
};
use evenkeel_core::{LbConfig, Registry};
use evenkeel_proto::envoy::config::cluster::v3::circuit_breakers::Thresholds;
use evenkeel_proto::envoy::config::cluster::v3::cluster::{
    ClusterDiscoveryType, CommonLbConfig, CustomClusterType, DiscoveryType, DnsLookupFamily,
    LbConfig as LegacyConfig, LbPolicy, LbSubsetConfig, LeastRequestLbConfig, RingHashLbConfig,
    RoundRobinLbConfig, SlowStartConfig, TransportSocketMatch,
};
use evenkeel_proto::envoy::config::cluster::v3::{CircuitBreakers, Cluster, OutlierDetection};
use evenkeel_proto::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use evenkeel_proto::envoy::config::core::v3::socket_address::PortSpecifier;
use evenkeel_proto::envoy::config::core::v3::{
    Address, ConfigSource, HealthCheck, HealthStatusSet, Metadata, PathConfigSource, Pipe, RuntimeDouble,
    SelfConfigSource, SocketAddress, TransportSocket, TypedExtensionConfig, address,
};
use evenkeel_proto::envoy::config::endpoint::v3::cluster_load_assignment::Policy as AssignmentPolicy;
use evenkeel_proto::envoy::config::endpoint::v3::cluster_load_assignment::policy::DropOverload;
use evenkeel_proto::envoy::config::endpoint::v3::endpoint::AdditionalAddress;
use evenkeel_proto::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use evenkeel_proto::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints,
};
use evenkeel_proto::envoy::extensions::load_balancing_policies::client_side_weighted_round_robin::v3::ClientSideWeightedRoundRobin;
use evenkeel_proto::envoy::extensions::load_balancing_policies::least_request::v3::LeastRequest;
use evenkeel_proto::prost::Message as _;
use evenkeel_proto::prost_types::{self, Any};
use evenkeel_xds::bootstrap::ServerConfig;
use evenkeel_xds::lb::{EdsWeights, LbPolicyConverters};
use evenkeel_xds::resource::{
    Cluster as Known, ClusterKind, ParsedResource, RejectedResource, Resource, ResourceParser, ResourceType,
};
use proptest::prelude::*;
use testkit::resources::{ads, aggregate_cluster, any, cluster, dns_cluster, load_assignment};

use crate::lb::{custom, list, round_robin};

fn parse_any(any: &Any, parser: &ResourceParser) -> Result<ParsedResource, RejectedResource> {
    let from = ServerConfig::insecure("xds.example:443");
    parser.parse(ResourceType::Cluster, any, &from)
}

fn parser() -> ResourceParser {
    let mut parser = ResourceParser::new(Registry::standard());
    parser.certificate_providers = ["roots", "own"].map(str::to_owned).into();
    parser
}

fn parse_with(message: &Cluster, parser: &ResourceParser) -> Result<(Arc<Known>, Vec<String>), String> {
    match parse_any(&any(message), parser) {
        Ok(ParsedResource { name, resource: Resource::Cluster(known), warnings }) => {
            assert_eq!((&name, &*known.name), (&message.name, &*message.name));
            Ok((known, warnings))
        }
        Ok(other) => panic!("not a cluster: {other:?}"),
        Err(rejected) => {
            assert_eq!(rejected.name.as_ref(), Some(&message.name));
            Err(rejected.problems.to_string())
        }
    }
}

fn parse(message: &Cluster) -> Result<(Arc<Known>, Vec<String>), String> {
    parse_with(message, &parser())
}

fn accepted(message: &Cluster) -> Arc<Known> {
    let (known, warnings) = parse(message).expect("a good resource");
    assert_eq!(warnings, [""; 0]);
    known
}

fn refused(message: &Cluster) -> String {
    parse(message).expect_err("a bad resource")
}

fn warnings(message: &Cluster) -> Vec<String> {
    parse(message).expect("a good resource").1
}

fn leaf(known: &Known) -> &LeafCluster {
    match &known.kind {
        ClusterKind::Leaf(cluster) => match &**cluster {
            CoreCluster::Leaf(leaf) => leaf,
            CoreCluster::Aggregate { .. } => panic!("a leaf that is an aggregate"),
        },
        ClusterKind::Aggregate(_) => panic!("an aggregate"),
    }
}

fn changed(change: impl FnOnce(&mut Cluster)) -> Cluster {
    let mut message = cluster("c");
    change(&mut message);
    message
}

fn source(specifier: ConfigSourceSpecifier) -> ConfigSource {
    ConfigSource { config_source_specifier: Some(specifier), ..ConfigSource::default() }
}

fn itself() -> ConfigSource {
    source(ConfigSourceSpecifier::Self_(SelfConfigSource::default()))
}

fn path() -> ConfigSource {
    source(ConfigSourceSpecifier::PathConfigSource(PathConfigSource { path: "/f".to_owned() }))
}

fn of_type(kind: impl Into<i32>) -> Cluster {
    changed(|message| message.cluster_discovery_type = Some(ClusterDiscoveryType::Type(kind.into())))
}

fn of_cluster_type(name: &str, typed_config: Option<Any>) -> Cluster {
    let kind = CustomClusterType { name: name.to_owned(), typed_config };
    changed(|message| message.cluster_discovery_type = Some(ClusterDiscoveryType::ClusterType(kind)))
}

#[test]
fn a_cluster_as_most_are() {
    let known = accepted(&cluster("c"));
    let leaf = leaf(&known);
    assert_eq!(&*leaf.name, "c");
    assert_eq!(leaf.source, EndpointSource::Eds { cluster: "c".into(), service_name: None });
    assert_eq!(leaf.max_concurrent_requests, None);
    assert_eq!((&leaf.outlier_detection, &leaf.load_reporting, &known.security), (&None, &None, &None));
}

/// VAL-C1, CDS-4: endpoints come from EDS on the same stream, under the EDS service name or the name of the cluster.
#[test]
fn endpoints_from_eds() {
    for eds_config in [ads(), itself()] {
        for (service_name, expected) in [("", "c"), ("s", "s"), ("xdstp://a/t/s", "xdstp://a/t/s")] {
            let known = accepted(&changed(|message| {
                let config = message.eds_cluster_config.as_mut().unwrap();
                config.eds_config = Some(eds_config.clone());
                config.service_name = service_name.to_owned();
            }));
            assert_eq!(&**leaf(&known).source.name(), expected);
        }
    }
    let problem = "eds_cluster_config.eds_config: must be set to ads or self";
    assert_eq!(refused(&changed(|message| message.eds_cluster_config = None)), problem);
    for eds_config in [None, Some(ConfigSource::default()), Some(path())] {
        let message = changed(|m| m.eds_cluster_config.as_mut().unwrap().eds_config = eds_config);
        assert_eq!(refused(&message), problem);
    }
    let name = "xdstp://auth/envoy.config.cluster.v3.Cluster/c";
    assert_eq!(
        refused(&cluster(name)),
        "eds_cluster_config.service_name: must be set for a cluster with an xdstp name"
    );
    let mut message = cluster(name);
    message.eds_cluster_config.as_mut().unwrap().service_name = "s".to_owned();
    assert_eq!(&**leaf(&accepted(&message)).source.name(), "s");
}

/// VAL-C1, fault 33: unsupported discovery types and cluster types are rejected.
#[test]
fn other_kinds_of_clusters() {
    let expected = "type: expected EDS, LOGICAL_DNS or an aggregate cluster, found";
    let config = "envoy.extensions.clusters.aggregate.v3.ClusterConfig";
    let members = |names: &[&str]| {
        let mut message = aggregate_cluster("c", names);
        message.eds_cluster_config = None;
        message
    };
    let undecodable =
        any(&evenkeel_proto::envoy::extensions::clusters::aggregate::v3::ClusterConfig::default());
    let undecodable = Any { value: vec![0xff; 3], ..undecodable };
    for (message, problem) in [
        (changed(|message| message.cluster_discovery_type = None), format!("{expected} nothing")),
        (of_type(DiscoveryType::Static), format!("{expected} STATIC")),
        (of_type(DiscoveryType::StrictDns), format!("{expected} STRICT_DNS")),
        (of_type(DiscoveryType::OriginalDst), format!("{expected} ORIGINAL_DST")),
        (of_type(9), format!("{expected} 9")),
        (
            of_cluster_type("envoy.clusters.aggregate", None),
            format!("cluster_type.typed_config: expected {config}, found type \"\""),
        ),
        (
            of_cluster_type(
                "envoy.clusters.dynamic_forward_proxy",
                Some(Any { type_url: "t/a.Proxy".to_owned(), value: vec![] }),
            ),
            format!("cluster_type.typed_config: expected {config}, found type \"t/a.Proxy\""),
        ),
        (members(&[]), "cluster_type.typed_config.clusters: must name at least one cluster".to_owned()),
        (members(&["a", "", "b"]), "cluster_type.typed_config.clusters[1]: must not be empty".to_owned()),
        (changed(|message| message.name.clear()), "name: must not be empty".to_owned()),
        (cluster(&"n".repeat(4097)), "name: has 4097 bytes; at most 4096 are allowed".to_owned()),
    ] {
        assert_eq!(refused(&message), problem);
    }
    let problem = refused(&of_cluster_type("envoy.clusters.aggregate", Some(undecodable)));
    assert!(problem.starts_with("cluster_type.typed_config: cannot be decoded: "), "{problem}");
}

/// VAL-C1, fault 33: aggregates keep the order of their members. The legacy policy fields of an aggregate are not
/// read.
#[test]
fn aggregate_clusters() {
    let mut message = aggregate_cluster("c", &["a", "b", "a", "c"]);
    message.lb_policy = LbPolicy::ClusterProvided.into();
    let known = accepted(&message);
    match &known.kind {
        ClusterKind::Aggregate(names) => assert_eq!(names, &["a", "b", "a", "c"].map(Arc::from)),
        ClusterKind::Leaf(_) => panic!("a leaf"),
    }
    message.load_balancing_policy = Some(list([]));
    message.circuit_breakers = Some(CircuitBreakers::default());
    message.outlier_detection = Some(OutlierDetection::default());
    message.lrs_server = Some(itself());
    let told = ["load_balancing_policy", "circuit_breakers", "outlier_detection", "lrs_server"]
        .map(|field| format!("{field}: has no effect in an aggregate cluster: its members have their own"));
    assert_eq!(warnings(&message), told);
    message.lrs_server = Some(ads());
    assert_eq!(refused(&message), "lrs_server: must be self");
}

fn dns(change: impl FnOnce(&mut Endpoint, &mut SocketAddress)) -> Cluster {
    let mut socket = SocketAddress {
        address: "db.example".to_owned(),
        port_specifier: Some(PortSpecifier::PortValue(5432)),
        ..SocketAddress::default()
    };
    let mut endpoint = Endpoint::default();
    change(&mut endpoint, &mut socket);
    endpoint.address = Some(Address { address: Some(address::Address::SocketAddress(socket)) });
    dns_at(LbEndpoint { host_identifier: Some(HostIdentifier::Endpoint(endpoint)), ..LbEndpoint::default() })
}

fn dns_at(endpoint: LbEndpoint) -> Cluster {
    let mut message = dns_cluster("c", "db.example", 5432);
    let assignment = message.load_assignment.as_mut().expect("a load assignment");
    assignment.endpoints[0].lb_endpoints = vec![endpoint];
    message
}

/// CDS-8, VAL-C1: a DNS cluster has exactly one host name with a port.
#[test]
fn endpoints_from_dns() {
    for (host, port, expected) in [
        ("db.example", 5432, "db.example:5432"),
        ("10.0.0.1", 80, "10.0.0.1:80"),
        ("::1", 65_535, "[::1]:65535"),
        ("_svc.a-b", 1, "_svc.a-b:1"),
    ] {
        let known = accepted(&dns_cluster("c", host, port));
        assert_eq!(leaf(&known).source, EndpointSource::LogicalDns { hostname: expected.into() });
    }
    let with = |endpoints: Vec<LocalityLbEndpoints>| Cluster {
        load_assignment: Some(ClusterLoadAssignment { endpoints, ..ClusterLoadAssignment::default() }),
        ..dns_cluster("c", "h", 1)
    };
    let good = dns_cluster("c", "h", 1).load_assignment.unwrap().endpoints.remove(0);
    let twice = vec![good.lb_endpoints[0].clone(); 2];
    let pipe = address::Address::Pipe(Pipe { path: "/p".to_owned(), mode: 0 });
    let piped = Endpoint { address: Some(Address { address: Some(pipe) }), ..Endpoint::default() };
    let at = "load_assignment.endpoints[0].lb_endpoints[0].endpoint";
    let socket = "address.socket_address";
    for (message, problem) in [
        (Cluster { load_assignment: None, ..with(vec![]) }, "load_assignment: must be set for a LOGICAL_DNS cluster".to_owned()),
        (with(vec![]), "load_assignment.endpoints: a LOGICAL_DNS cluster has exactly one locality, found 0".to_owned()),
        (with(vec![good.clone(), good.clone()]), "load_assignment.endpoints: a LOGICAL_DNS cluster has exactly one locality, found 2".to_owned()),
        (
            with(vec![LocalityLbEndpoints { lb_endpoints: vec![], ..good.clone() }]),
            "load_assignment.endpoints[0].lb_endpoints: a LOGICAL_DNS cluster has exactly one endpoint, found 0".to_owned(),
        ),
        (
            with(vec![LocalityLbEndpoints { lb_endpoints: twice, ..good }]),
            "load_assignment.endpoints[0].lb_endpoints: a LOGICAL_DNS cluster has exactly one endpoint, found 2".to_owned(),
        ),
        (dns_at(LbEndpoint::default()), format!("{at}: must be set")),
        (
            dns_at(LbEndpoint { host_identifier: Some(HostIdentifier::Endpoint(piped)), ..LbEndpoint::default() }),
            format!("{at}.{socket}: must be set"),
        ),
        (dns(|_, socket| socket.resolver_name = "r".to_owned()), format!("{at}.{socket}.resolver_name: must be empty, found \"r\"")),
        (dns(|_, socket| socket.address = String::new()), format!("{at}.{socket}.address: must not be empty")),
        (dns(|_, socket| socket.address = "a:b".to_owned()), format!("{at}.{socket}.address: expected a host name, found \"a:b\" with a ':'")),
        (dns(|_, socket| socket.address = "a\n".to_owned()), format!("{at}.{socket}.address: expected a host name, found \"a\\n\" with a '\\n'")),
        (dns(|_, socket| socket.port_specifier = None), format!("{at}.{socket}.port_value: must be set")),
        (
            dns(|_, socket| socket.port_specifier = Some(PortSpecifier::NamedPort("pg".to_owned()))),
            format!("{at}.{socket}.port_value: must be set"),
        ),
        (
            dns(|_, socket| socket.port_specifier = Some(PortSpecifier::PortValue(0))),
            format!("{at}.{socket}.port_value: expected a port from 1 to 65535, found 0"),
        ),
        (
            dns(|_, socket| socket.port_specifier = Some(PortSpecifier::PortValue(65_536))),
            format!("{at}.{socket}.port_value: expected a port from 1 to 65535, found 65536"),
        ),
    ] {
        assert_eq!(refused(&message), problem);
    }
    let mut odd = dns(|endpoint, _| {
        endpoint.hostname = "h".to_owned();
        endpoint.additional_addresses = vec![AdditionalAddress::default()];
    });
    odd.dns_lookup_family = DnsLookupFamily::V4Only.into();
    let policy =
        AssignmentPolicy { drop_overloads: vec![DropOverload::default()], ..AssignmentPolicy::default() };
    odd.load_assignment.as_mut().unwrap().policy = Some(policy);
    let told = [
        "load_assignment.policy.drop_overloads: is ignored in a LOGICAL_DNS cluster".to_owned(),
        format!("{at}.hostname: is ignored in a LOGICAL_DNS cluster"),
        format!("{at}.additional_addresses: is ignored in a LOGICAL_DNS cluster"),
        "dns_lookup_family: is ignored".to_owned(),
    ];
    assert_eq!(warnings(&odd), told);
}

fn enumerated(policy: impl Into<i32>, config: Option<LegacyConfig>) -> Cluster {
    changed(|message| {
        message.lb_policy = policy.into();
        message.lb_config = config;
    })
}

/// Returns the endpoint policy below the locality policy.
fn child(config: &LbConfig) -> LbConfig {
    assert_eq!(config.policy(), "xds_wrr_locality_experimental");
    config.settings::<WrrLocalityConfig>().expect("its settings").child_policy.clone()
}

/// EDF-10, VAL-C2: the enum `ROUND_ROBIN` uses EDS weights unless they are disabled.
#[test]
fn the_enum_round_robin() {
    let policy = |converters: LbPolicyConverters| {
        let parser = ResourceParser { converters, ..parser() };
        let (known, _) = parse_with(&enumerated(LbPolicy::RoundRobin, None), &parser).unwrap();
        child(&leaf(&known).lb_policy).policy().to_owned()
    };
    assert_eq!(policy(LbPolicyConverters::standard()), "edf_weighted_round_robin");
    assert_eq!(policy(LbPolicyConverters::empty()), "edf_weighted_round_robin");
    assert_eq!(
        policy(LbPolicyConverters::standard().with_eds_weights(EdsWeights::EnumAndMessage)),
        "edf_weighted_round_robin"
    );
    assert_eq!(policy(LbPolicyConverters::standard().with_eds_weights(EdsWeights::Unused)), "round_robin");
    let slow = RoundRobinLbConfig { slow_start_config: Some(SlowStartConfig::default()) };
    let message = enumerated(LbPolicy::RoundRobin, Some(LegacyConfig::RoundRobinLbConfig(slow)));
    assert_eq!(warnings(&message), ["round_robin_lb_config.slow_start_config: is ignored"]);
}

/// A114: a metric that `weighted_round_robin` does not know leaves the cluster in use, and a warning names it, escaped.
#[test]
fn unknown_metrics_of_a_policy_are_warned_about() {
    let policy = ClientSideWeightedRoundRobin {
        metric_names_for_computing_utilization: vec!["cpu_utilization".to_owned(), "cpu\n".to_owned()],
        ..ClientSideWeightedRoundRobin::default()
    };
    let message = changed(|message| message.load_balancing_policy = Some(list([any(&policy)])));
    let [warning] = &warnings(&message)[..] else { panic!("not one warning") };
    assert!(warning.starts_with("load_balancing_policy: "), "{warning}");
    assert!(warning.ends_with(r#""cpu\n" is not a supported metric, it is ignored"#), "{warning}");
}

/// LR-2, VAL-C2: the enum `LEAST_REQUEST` converts with its choice count, within the limits.
#[test]
fn the_enum_least_request() {
    let with = |choice_count| LeastRequestLbConfig { choice_count, ..LeastRequestLbConfig::default() };
    let message =
        |config| enumerated(LbPolicy::LeastRequest, Some(LegacyConfig::LeastRequestLbConfig(config)));
    let ring =
        LegacyConfig::RingHashLbConfig(RingHashLbConfig { hash_function: 1, ..RingHashLbConfig::default() });
    for (message, choices) in [
        (enumerated(LbPolicy::LeastRequest, None), 2),
        // The config of another policy is not read.
        (enumerated(LbPolicy::LeastRequest, Some(ring)), 2),
        (message(with(None)), 2),
        (message(with(Some(3))), 3),
        (message(with(Some(11))), 10),
    ] {
        let (known, _) = parse(&message).unwrap();
        let child = child(&leaf(&known).lb_policy);
        assert_eq!(child.policy(), "least_request_experimental");
        assert_eq!(child.settings::<LeastRequestConfig>().unwrap().choice_count, choices);
    }
    assert_eq!(
        refused(&message(with(Some(1)))),
        "lb_policy: policy \"least_request_experimental\": loadBalancingConfig[0].xds_wrr_locality_experimental\
         .childPolicy[0].least_request_experimental.choiceCount: must be at least 2, found 1"
    );
    let ignored = LeastRequestLbConfig {
        active_request_bias: Some(RuntimeDouble::default()),
        slow_start_config: Some(SlowStartConfig::default()),
        ..with(None)
    };
    let told = ["active_request_bias", "slow_start_config"]
        .map(|field| format!("least_request_lb_config.{field}: is ignored"));
    assert_eq!(warnings(&message(ignored)), told);
}

/// RH-2, REG-10, VAL-C2: the enum `RING_HASH` converts with its sizes and requires `XX_HASH`.
#[test]
fn the_enum_ring_hash() {
    let message = |hash_function, minimum_ring_size, maximum_ring_size| {
        let config = RingHashLbConfig { hash_function, minimum_ring_size, maximum_ring_size };
        enumerated(LbPolicy::RingHash, Some(LegacyConfig::RingHashLbConfig(config)))
    };
    for (message, min, max) in [
        (enumerated(LbPolicy::RingHash, None), 1024, 8_388_608),
        (message(0, None, None), 1024, 8_388_608),
        (message(0, Some(5), Some(8_388_608)), 5, 8_388_608),
        (message(0, Some(5), Some(6)), 5, 6),
    ] {
        let (known, _) = parse(&message).unwrap();
        let policy = &leaf(&known).lb_policy;
        assert_eq!(policy.policy(), "ring_hash_experimental");
        let config = policy.settings::<RingHashConfig>().unwrap();
        assert_eq!((config.min_ring_size, config.max_ring_size), (min, max));
    }
    for function in [1, 2] {
        let problem = format!("ring_hash_lb_config.hash_function: expected XX_HASH (0), found {function}");
        assert_eq!(refused(&message(function, None, None)), problem);
    }
    for (min, max) in [(None, Some(8_388_609)), (Some(8_388_609), None), (Some(2), Some(1)), (Some(0), None)]
    {
        let problem = refused(&message(0, min, max));
        assert!(problem.starts_with("lb_policy: policy \"ring_hash_experimental\": "), "{problem}");
    }
}

/// VAL-C2: other values of the enum are rejected.
#[test]
fn other_enums() {
    let expected = "lb_policy: expected ROUND_ROBIN, LEAST_REQUEST or RING_HASH, found";
    for (policy, problem) in [
        (LbPolicy::Random as i32, format!("{expected} RANDOM")),
        (LbPolicy::Maglev.into(), format!("{expected} MAGLEV")),
        (LbPolicy::ClusterProvided.into(), format!("{expected} CLUSTER_PROVIDED")),
        (77, format!("{expected} 77")),
        (
            LbPolicy::LoadBalancingPolicyConfig.into(),
            "load_balancing_policy: must be set: lb_policy is LOAD_BALANCING_POLICY_CONFIG".to_owned(),
        ),
    ] {
        assert_eq!(refused(&enumerated(policy, None)), problem);
    }
}

/// REG-7: with a list of policies, the legacy fields are not read.
#[test]
fn a_list_of_policies_beats_the_enum() {
    let murmur = RingHashLbConfig { hash_function: 1, ..RingHashLbConfig::default() };
    for (policy, config) in [
        (LbPolicy::RingHash as i32, Some(LegacyConfig::RingHashLbConfig(murmur))),
        (LbPolicy::Maglev.into(), None),
        (LbPolicy::LoadBalancingPolicyConfig.into(), None),
        (1000, None),
    ] {
        let mut message = enumerated(policy, config);
        message.load_balancing_policy = Some(list([round_robin()]));
        assert_eq!(leaf(&accepted(&message)).lb_policy.policy(), "round_robin");
    }
}

/// REG-3, REG-6: a policy that cannot be converted or parsed makes the cluster invalid, and the error gives the
/// reason.
#[test]
fn a_list_of_policies_must_be_valid() {
    let with = |any| changed(|message| message.load_balancing_policy = Some(list([any])));
    let one = any(&LeastRequest { choice_count: Some(1), ..LeastRequest::default() });
    assert_eq!(
        refused(&with(one)),
        "load_balancing_policy: policy \"least_request_experimental\": \
         loadBalancingConfig[0].least_request_experimental.choiceCount: must be at least 2, found 1"
    );
    let wrong = custom("ring_hash_experimental", &[("minRingSize", "many".into())]);
    assert_eq!(
        refused(&with(wrong)),
        "load_balancing_policy: policy \"ring_hash_experimental\": \
         loadBalancingConfig[0].ring_hash_experimental.minRingSize: expected a whole number, not negative, found \"many\""
    );
    // Quoted text from the resource stays on one line and is truncated.
    let name = format!("x\n{}", "y".repeat(10_000));
    let entry = prost_types::Struct { fields: [(name, 1.0.into())].into() };
    let kind = prost_types::value::Kind::StructValue(entry);
    let values = vec![prost_types::Value { kind: Some(kind) }];
    let kind = prost_types::value::Kind::ListValue(prost_types::ListValue { values });
    let long =
        custom("xds_wrr_locality_experimental", &[("childPolicy", prost_types::Value { kind: Some(kind) })]);
    let problem = refused(&with(long));
    assert!(
        problem.contains("\"x\\nyyy") && problem.contains("yyy\"...") && problem.len() < 600,
        "{problem}"
    );
    assert_eq!(
        refused(&with(custom("myorg.Custom", &[]))),
        "load_balancing_policy: no policy of the list is supported: \"myorg.Custom\""
    );
    assert_eq!(
        refused(&changed(|message| message.load_balancing_policy = Some(list([])))),
        "load_balancing_policy: the list of policies is empty"
    );
}

fn threshold(priority: i32, max_requests: Option<u32>) -> Thresholds {
    Thresholds { priority, max_requests, ..Thresholds::default() }
}

/// CI-5: the first threshold for the default priority sets the maximum number of requests.
#[test]
fn circuit_breakers() {
    for (thresholds, expected) in [
        (vec![], None),
        (vec![threshold(1, Some(1))], None),
        (vec![threshold(0, None)], None),
        (vec![threshold(0, None), threshold(0, Some(5))], None),
        (vec![threshold(0, Some(0))], Some(0)),
        (vec![threshold(1, Some(1)), threshold(0, Some(7)), threshold(0, Some(9))], Some(7)),
        (vec![threshold(9, Some(1)), threshold(0, Some(u32::MAX))], Some(u32::MAX)),
    ] {
        let breakers = CircuitBreakers { thresholds, ..CircuitBreakers::default() };
        let known = accepted(&changed(|message| message.circuit_breakers = Some(breakers)));
        assert_eq!(leaf(&known).max_concurrent_requests, expected);
    }
    let limit = |n| Thresholds {
        max_connections: Some(n),
        max_pending_requests: Some(n),
        max_retries: Some(n),
        ..threshold(0, Some(n))
    };
    let with = |first| {
        let breakers =
            CircuitBreakers { thresholds: vec![threshold(1, None), first], ..CircuitBreakers::default() };
        warnings(&changed(|message| message.circuit_breakers = Some(breakers)))
    };
    let told = ["max_connections", "max_pending_requests", "max_retries"]
        .map(|field| format!("circuit_breakers.thresholds[1].{field}: is ignored"));
    assert_eq!(with(limit(3)), told);
    assert_eq!(with(limit(u32::MAX)), [""; 0]);
}

/// VAL-C6: a maximum of zero connections per host is rejected.
#[test]
fn connections_per_host() {
    let per_host = |max_connections: &[(i32, Option<u32>)]| {
        let per_host_thresholds = max_connections.iter().map(|(priority, max_connections)| Thresholds {
            max_connections: *max_connections,
            ..threshold(*priority, None)
        });
        let per_host_thresholds = per_host_thresholds.collect();
        let breakers = CircuitBreakers { per_host_thresholds, ..CircuitBreakers::default() };
        changed(|message| message.circuit_breakers = Some(breakers))
    };
    let at = "circuit_breakers.per_host_thresholds";
    assert_eq!(
        refused(&per_host(&[(1, None), (0, Some(0))])),
        format!("{at}[1].max_connections: must be at least 1, found 0")
    );
    accepted(&per_host(&[(1, Some(0)), (0, None), (0, Some(0))]));
    assert_eq!(
        warnings(&per_host(&[(0, Some(2))])),
        [format!("{at}[0].max_connections: is ignored: each address has one connection")]
    );
}

fn ejecting(settings: OutlierDetection) -> Cluster {
    changed(|message| message.outlier_detection = Some(settings))
}

fn seconds(seconds: i64, nanos: i32) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos }
}

/// OD-3: success rate ejection is on by default, failure percentage ejection is off.
#[test]
fn outlier_detection() {
    let settings = |message| leaf(&accepted(&ejecting(message))).outlier_detection.clone().unwrap();
    let unset = OutlierSettings {
        success_rate_ejection: Some(SuccessRateEjection::default()),
        ..OutlierSettings::default()
    };
    assert_eq!(settings(OutlierDetection::default()), unset);
    let off = OutlierDetection {
        enforcing_success_rate: Some(0),
        success_rate_stdev_factor: Some(5),
        enforcing_failure_percentage: Some(0),
        failure_percentage_threshold: Some(5),
        ..OutlierDetection::default()
    };
    assert_eq!(settings(off), OutlierSettings::default());
    let on = OutlierDetection { enforcing_failure_percentage: Some(40), ..OutlierDetection::default() };
    let failure =
        FailurePercentageEjection { enforcement_percentage: 40, ..FailurePercentageEjection::default() };
    assert_eq!(settings(on), OutlierSettings { failure_percentage_ejection: Some(failure), ..unset });
    let full = OutlierDetection {
        interval: Some(seconds(1, 5)),
        base_ejection_time: Some(seconds(0, 0)),
        max_ejection_time: Some(seconds(3, 0)),
        max_ejection_percent: Some(100),
        enforcing_success_rate: Some(100),
        success_rate_minimum_hosts: Some(0),
        success_rate_request_volume: Some(2),
        success_rate_stdev_factor: Some(3),
        failure_percentage_threshold: Some(0),
        enforcing_failure_percentage: Some(1),
        failure_percentage_minimum_hosts: Some(4),
        failure_percentage_request_volume: Some(5),
        ..OutlierDetection::default()
    };
    let expected = OutlierSettings {
        interval: Duration::new(1, 5),
        base_ejection_time: Duration::ZERO,
        max_ejection_time: Duration::from_secs(3),
        max_ejection_percent: 100,
        success_rate_ejection: Some(SuccessRateEjection {
            stdev_factor: 3,
            enforcement_percentage: 100,
            minimum_hosts: 0,
            request_volume: 2,
        }),
        failure_percentage_ejection: Some(FailurePercentageEjection {
            threshold: 0,
            enforcement_percentage: 1,
            minimum_hosts: 4,
            request_volume: 5,
        }),
    };
    assert_eq!(settings(full), expected);
}

/// OD-2, VAL-C4: durations must be valid and not negative, percentages at most 100, even if they have no effect.
#[test]
fn outlier_detection_must_be_valid() {
    let od = OutlierDetection::default;
    let range = "expected seconds from 0 to 315576000000 and nanos from 0 to 999999999, found";
    for (settings, problem) in [
        (OutlierDetection { interval: Some(seconds(-1, 0)), ..od() }, format!("interval: {range} -1 and 0")),
        (OutlierDetection { interval: Some(seconds(0, -1)), ..od() }, format!("interval: {range} 0 and -1")),
        (
            OutlierDetection { interval: Some(seconds(315_576_000_001, 0)), ..od() },
            format!("interval: {range} 315576000001 and 0"),
        ),
        (
            OutlierDetection { base_ejection_time: Some(seconds(0, 1_000_000_000)), ..od() },
            format!("base_ejection_time: {range} 0 and 1000000000"),
        ),
        (
            OutlierDetection { max_ejection_time: Some(seconds(i64::MIN, 0)), ..od() },
            format!("max_ejection_time: {range} {} and 0", i64::MIN),
        ),
        (
            OutlierDetection { max_ejection_percent: Some(101), ..od() },
            "max_ejection_percent: must be at most 100, found 101".to_owned(),
        ),
        (
            OutlierDetection { enforcing_success_rate: Some(101), ..od() },
            "enforcing_success_rate: must be at most 100, found 101".to_owned(),
        ),
        (
            OutlierDetection { failure_percentage_threshold: Some(101), ..od() },
            "failure_percentage_threshold: must be at most 100, found 101".to_owned(),
        ),
        (
            OutlierDetection { enforcing_failure_percentage: Some(u32::MAX), ..od() },
            format!("enforcing_failure_percentage: must be at most 100, found {}", u32::MAX),
        ),
    ] {
        assert_eq!(refused(&ejecting(settings)), format!("outlier_detection.{problem}"));
    }
    let other =
        OutlierDetection { consecutive_5xx: Some(5), max_ejection_time_jitter: Some(seconds(1, 0)), ..od() };
    let told = ["consecutive_5xx", "max_ejection_time_jitter"]
        .map(|field| format!("outlier_detection.{field}: is ignored"));
    assert_eq!(warnings(&ejecting(other)), told);
    let off = OutlierDetection { consecutive_5xx: Some(5), enforcing_consecutive_5xx: Some(0), ..od() };
    assert_eq!(warnings(&ejecting(off)), [""; 0]);
}

/// VAL-C3: load is reported to the server that sent the cluster, with the metrics that the cluster lists.
#[test]
fn load_reporting() {
    let with = |server: ConfigSource, metrics: &[&str]| {
        changed(|message| {
            message.lrs_server = Some(server);
            message.lrs_report_endpoint_metrics = metrics.iter().map(|&metric| metric.to_owned()).collect();
        })
    };
    let named = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
    for (metrics, expected) in [
        (&[][..], BackendMetrics::default()),
        (&["cpu_utilization"], BackendMetrics { cpu_utilization: true, ..BackendMetrics::default() }),
        (
            &[
                "mem_utilization",
                "application_utilization",
                "named_metrics.a",
                "named_metrics.b.c",
                "named_metrics.a",
            ],
            BackendMetrics {
                mem_utilization: true,
                application_utilization: true,
                named: named(&["a", "b.c"]),
                ..BackendMetrics::default()
            },
        ),
        (
            &["named_metrics.a", "named_metrics.*", "named_metrics.b"],
            BackendMetrics { all_named: true, ..BackendMetrics::default() },
        ),
    ] {
        let known = accepted(&with(itself(), metrics));
        let reporting = LoadReporting { server: "xds.example:443".into(), metrics: expected };
        assert_eq!(leaf(&known).load_reporting.as_deref(), Some(&reporting));
    }
    for server in [ads(), path(), ConfigSource::default()] {
        assert_eq!(refused(&with(server, &[])), "lrs_server: must be self");
    }
    let told = ["0]: \"rps\"", "1]: \"named_metrics.\"", "2]: \"\""].map(|metric| {
        format!("lrs_report_endpoint_metrics[{metric} is not a reportable metric, it is ignored")
    });
    assert_eq!(warnings(&with(itself(), &["rps", "named_metrics.", ""])), told);
    let without = Cluster { lrs_server: None, ..with(itself(), &["cpu_utilization"]) };
    assert_eq!(warnings(&without), ["lrs_report_endpoint_metrics: has no effect without lrs_server"]);
}

/// Fields that have no effect but change how calls are balanced produce a warning. Other unknown fields are ignored.
#[test]
fn fields_without_effect_are_warned_about() {
    let message = changed(|message| {
        message.health_checks = vec![HealthCheck::default()];
        message.lb_subset_config = Some(LbSubsetConfig::default());
        message.upstream_config = Some(TypedExtensionConfig::default());
        message.load_assignment = Some(load_assignment("c", &[]));
        message.common_lb_config = Some(CommonLbConfig {
            override_host_status: Some(HealthStatusSet::default()),
            ..CommonLbConfig::default()
        });
        message.metadata = Some(Metadata::default());
        message.dns_lookup_family = DnsLookupFamily::V4Only.into();
    });
    let told = [
        "health_checks",
        "lb_subset_config",
        "upstream_config",
        "load_assignment",
        "common_lb_config.override_host_status",
    ];
    assert_eq!(warnings(&message), told.map(|field| format!("{field}: is ignored")));
}

/// VAL-X1: every error is reported with its path.
#[test]
fn all_errors_are_reported_at_once() {
    let message = changed(|message| {
        message.name.clear();
        message.eds_cluster_config = None;
        message.lb_policy = LbPolicy::Maglev.into();
        let per_host_thresholds = vec![Thresholds { max_connections: Some(0), ..Thresholds::default() }];
        message.circuit_breakers =
            Some(CircuitBreakers { per_host_thresholds, ..CircuitBreakers::default() });
        message.outlier_detection = Some(OutlierDetection {
            interval: Some(seconds(-1, 0)),
            max_ejection_percent: Some(101),
            ..OutlierDetection::default()
        });
        message.lrs_server = Some(ads());
        message.transport_socket_matches = vec![TransportSocketMatch::default()];
        message.transport_socket = Some(TransportSocket::default());
    });
    let told = [
        "name: must not be empty",
        "eds_cluster_config.eds_config: must be set to ads or self",
        "lb_policy: expected ROUND_ROBIN, LEAST_REQUEST or RING_HASH, found MAGLEV",
        "circuit_breakers.per_host_thresholds[0].max_connections: must be at least 1, found 0",
        "outlier_detection.interval: expected seconds from 0 to 315576000000 and nanos from 0 to 999999999, found -1 and 0",
        "outlier_detection.max_ejection_percent: must be at most 100, found 101",
        "lrs_server: must be self",
        "transport_socket_matches: is not supported",
        "transport_socket.typed_config: must be set: envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
    ];
    assert_eq!(refused(&message), told.join("; "));
}

#[test]
fn bytes_that_are_no_cluster() {
    let rejected = parse_any(&Any { value: vec![0xff; 3], ..any(&cluster("c")) }, &parser()).unwrap_err();
    assert_eq!(rejected.name, None);
    assert!(rejected.to_string().starts_with("cannot be decoded: "), "{rejected}");
}

proptest! {
    /// Arbitrary changes of the bytes cause no panic.
    #[test]
    fn damaged_bytes_do_no_harm(at in 0..10_000_usize, byte: u8, end in 0..10_000_usize, which in 0..4_usize) {
        let message = match which {
            0 => changed(|message| message.load_balancing_policy = Some(list([custom("round_robin", &[("a", 1.0.into())])]))),
            1 => dns_cluster("c", "h", 1),
            2 => aggregate_cluster("c", &["a", "b"]),
            _ => security::secured(&security::context()),
        };
        let mut bytes = message.encode_to_vec();
        let length = bytes.len();
        bytes[at % length] = byte;
        bytes.truncate(end % (length * 4));
        let _ = parse_any(&Any { value: bytes, ..any(&message) }, &parser());
    }
}
