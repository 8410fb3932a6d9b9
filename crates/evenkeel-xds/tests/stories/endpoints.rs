//! Load assignments: parsed endpoints, and the errors of invalid resources.

use std::sync::Arc;

use evenkeel_core::cluster::EndpointSet;
use evenkeel_core::{Endpoint, EndpointHealthStatus, HASH_KEY, Registry};
use evenkeel_proto::envoy::config::core::v3::address::Address as AddressKind;
use evenkeel_proto::envoy::config::core::v3::socket_address::{PortSpecifier, Protocol};
use evenkeel_proto::envoy::config::core::v3::{Address, HealthStatus, Metadata, Pipe, SocketAddress};
use evenkeel_proto::envoy::config::endpoint::v3::cluster_load_assignment::Policy;
use evenkeel_proto::envoy::config::endpoint::v3::cluster_load_assignment::policy::DropOverload;
use evenkeel_proto::envoy::config::endpoint::v3::endpoint::AdditionalAddress;
use evenkeel_proto::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use evenkeel_proto::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpoint, LocalityLbEndpoints};
use evenkeel_proto::envoy::r#type::v3::FractionalPercent;
use evenkeel_proto::prost::Message as _;
use evenkeel_proto::prost_types::{Any, Duration, Struct, Value};
use evenkeel_xds::bootstrap::ServerConfig;
use evenkeel_xds::resource::{ParsedResource, RejectedResource, Resource, ResourceParser, ResourceType};
use proptest::prelude::*;
use testkit::resources::{address, any, endpoint, load_assignment, locality};

fn parse_any(any: &Any, parser: &ResourceParser) -> Result<ParsedResource, RejectedResource> {
    let from = ServerConfig::insecure("xds.example:443");
    parser.parse(ResourceType::Endpoints, any, &from)
}

fn parse(message: &ClusterLoadAssignment) -> Result<(Arc<EndpointSet>, Vec<String>), String> {
    match parse_any(&any(message), &ResourceParser::new(Registry::empty())) {
        Ok(ParsedResource { name, resource: Resource::Endpoints(set), warnings }) => {
            assert_eq!(name, message.cluster_name);
            Ok((set, warnings))
        }
        Ok(other) => panic!("not endpoints: {other:?}"),
        Err(rejected) => {
            assert_eq!(rejected.name.as_deref(), Some(&*message.cluster_name));
            Err(rejected.problems.to_string())
        }
    }
}

fn accepted(message: &ClusterLoadAssignment) -> Arc<EndpointSet> {
    let (set, warnings) = parse(message).expect("a valid resource");
    assert_eq!(warnings, [""; 0]);
    set
}

fn refused(message: &ClusterLoadAssignment) -> String {
    parse(message).expect_err("a bad resource")
}

fn assignment(endpoints: Vec<LocalityLbEndpoints>) -> ClusterLoadAssignment {
    ClusterLoadAssignment { cluster_name: "c".to_owned(), endpoints, ..ClusterLoadAssignment::default() }
}

/// Returns a load assignment with one locality of these endpoints.
fn with(endpoints: Vec<LbEndpoint>) -> ClusterLoadAssignment {
    assignment(vec![LocalityLbEndpoints { lb_endpoints: endpoints, ..locality("a", 1, 0, &[]) }])
}

fn dual(all: &[(&str, u16)]) -> LbEndpoint {
    let mut first = endpoint(all[0].0, all[0].1);
    if let Some(HostIdentifier::Endpoint(known)) = &mut first.host_identifier {
        let further =
            all[1..].iter().map(|(ip, port)| AdditionalAddress { address: Some(address(ip, *port)) });
        known.additional_addresses = further.collect();
    }
    first
}

fn weighing(weight: u32, port: u16) -> LbEndpoint {
    LbEndpoint { load_balancing_weight: Some(weight), ..endpoint("10.0.0.1", port) }
}

fn being(status: HealthStatus, port: u16) -> LbEndpoint {
    LbEndpoint { health_status: status.into(), ..endpoint("10.0.0.1", port) }
}

fn at_socket(change: impl FnOnce(&mut SocketAddress)) -> LbEndpoint {
    let mut socket = SocketAddress {
        address: "10.0.0.1".to_owned(),
        port_specifier: Some(PortSpecifier::PortValue(80)),
        ..SocketAddress::default()
    };
    change(&mut socket);
    at(Some(AddressKind::SocketAddress(socket)))
}

fn at(address: Option<AddressKind>) -> LbEndpoint {
    let mut changed = endpoint("10.0.0.1", 1);
    if let Some(HostIdentifier::Endpoint(known)) = &mut changed.host_identifier {
        known.address = Some(Address { address });
    }
    changed
}

fn drops(all: &[(&str, u32, i32)]) -> ClusterLoadAssignment {
    let overload = |(category, numerator, denominator): &(&str, u32, i32)| DropOverload {
        category: (*category).to_owned(),
        drop_percentage: Some(FractionalPercent { numerator: *numerator, denominator: *denominator }),
    };
    let policy = Policy { drop_overloads: all.iter().map(overload).collect(), ..Policy::default() };
    ClusterLoadAssignment { policy: Some(policy), ..load_assignment("c", &["10.0.0.1:80"]) }
}

fn with_metadata(namespace: &str, key: &str, value: impl Into<Value>) -> LbEndpoint {
    let fields = Struct { fields: [(key.to_owned(), value.into())].into() };
    let metadata = Metadata {
        filter_metadata: [(namespace.to_owned(), fields)].into(),
        typed_filter_metadata: [(namespace.to_owned(), Any::default())].into(),
    };
    LbEndpoint { metadata: Some(metadata), ..endpoint("10.0.0.1", 80) }
}

/// Returns the endpoints of each priority as text.
fn shown(set: &EndpointSet) -> Vec<Vec<String>> {
    let endpoint = |endpoint: &Endpoint| {
        let weight = endpoint.weight().map(|weight| format!(" x{weight}")).unwrap_or_default();
        let locality = endpoint.locality().map_or("", |locality| &locality.zone);
        let share = endpoint.locality_weight().unwrap_or(0);
        format!("{:?}{weight} in {locality} x{share}", endpoint.addresses())
    };
    set.priorities.iter().map(|priority| priority.iter().map(endpoint).collect()).collect()
}

#[test]
fn a_load_assignment_becomes_priorities() {
    let mut first = locality("a", 3, 1, &["10.0.0.1:80", "[2001:DB8::0:1]:443"]);
    first.lb_endpoints[0].load_balancing_weight = Some(7);
    let second = locality("b", 5, 0, &["10.0.0.2:80"]);
    let third = locality("c", u32::MAX - 3, 1, &["10.0.0.3:80"]);
    let set = accepted(&assignment(vec![first, second, third]));
    assert_eq!(
        shown(&set),
        [
            vec!["[10.0.0.2:80] in b x5"],
            vec!["[10.0.0.1:80] x7 in a x3", "[[2001:db8::1]:443] in a x3", "[10.0.0.3:80] in c x4294967292"],
        ]
    );
    assert!(set.drops.is_empty() && set.note.is_none());
    let localities: Vec<_> = set.priorities[1].iter().map(|e| e.locality().unwrap().clone()).collect();
    assert!(Arc::ptr_eq(&localities[0], &localities[1]));
}

/// VAL-E1: a locality without a weight is skipped without validation, as if it were missing from its priority.
#[test]
fn localities_without_a_weight_are_passed_over() {
    let mut bad = locality("zero", 0, 0, &["10.0.0.9:80"]);
    bad.lb_endpoints.push(weighing(0, 80));
    bad.locality = None;
    let mut unset = locality("unset", 0, 7, &["10.0.0.8:80"]);
    unset.load_balancing_weight = None;
    let good = locality("good", 1, 0, &["10.0.0.9:80"]);
    let set = accepted(&assignment(vec![bad, unset, good]));
    assert_eq!(shown(&set), [["[10.0.0.9:80] in good x1"]]);

    let only = accepted(&assignment(vec![locality("zero", 0, 0, &["10.0.0.9:80"])]));
    assert!(only.priorities.is_empty());
    let gap = [locality("zero", 0, 0, &["10.0.0.1:80"]), locality("good", 1, 1, &["10.0.0.2:80"])];
    assert_eq!(refused(&assignment(gap.into())), "endpoints: there is a priority 1 but no priority 0");
}

/// VAL-E2, VAL-E3, fault 34: localities that other gRPC implementations reject are rejected.
#[test]
fn invalid_localities_are_rejected() {
    let max = u32::MAX;
    let unnamed = LocalityLbEndpoints { locality: None, ..locality("a", 1, 0, &["10.0.0.1:80"]) };
    for (localities, problem) in [
        (vec![unnamed], "endpoints[0].locality: must be set"),
        (
            vec![locality("a", 1, 0, &["10.0.0.1:80"]), locality("a", 2, 0, &["10.0.0.2:80"])],
            r#"endpoints[1].locality: the locality "{region=\"\", zone=\"a\", sub_zone=\"\"}" is in priority 0 more than once"#,
        ),
        (
            vec![locality("a", 1, 0, &["10.0.0.1:80"]), locality("a", 2, 2, &["10.0.0.2:80"])],
            "endpoints: there is a priority 2 but no priority 1",
        ),
        (
            vec![locality("a", 1, max, &["10.0.0.1:80"])],
            "endpoints: there is a priority 4294967295 but no priority 0",
        ),
        (
            vec![
                locality("a", max, 0, &["10.0.0.1:80"]),
                locality("b", 1, 0, &["10.0.0.2:80"]),
                locality("c", max, 0, &["10.0.0.3:80"]),
                locality("d", max, 1, &["10.0.0.4:80"]),
            ],
            "endpoints[1].load_balancing_weight: the weights of the localities in priority 0 add up to more than 4294967295",
        ),
    ] {
        assert_eq!(refused(&assignment(localities)), problem);
    }
    let unnamed = ClusterLoadAssignment { cluster_name: String::new(), ..load_assignment("", &[]) };
    assert_eq!(refused(&unnamed), "cluster_name: must not be empty");
}

/// VAL-E4, VAL-E6, EDF-5, fault 34: weights of zero and duplicate addresses are rejected.
#[test]
fn invalid_weights_and_duplicates_are_rejected() {
    let max = u32::MAX;
    let twice = "the address 10.0.0.1:80 is in the resource more than once";
    let again = "the address [::1]:80 is in the resource more than once";
    for (endpoints, problem) in [
        (vec![weighing(0, 80)], "[0].load_balancing_weight: must be at least 1, found 0".to_owned()),
        (
            vec![weighing(max, 80), endpoint("10.0.0.1", 81), weighing(max, 82)],
            format!(
                "[1].load_balancing_weight: the weights of the locality's endpoints add up to more than {max}"
            ),
        ),
        (
            vec![endpoint("10.0.0.1", 80), endpoint("10.0.0.1", 80)],
            format!("[1].endpoint.address.socket_address: {twice}"),
        ),
        (
            vec![dual(&[("10.0.0.1", 80), ("10.0.0.1", 80)])],
            format!("[0].endpoint.additional_addresses[0].address.socket_address: {twice}"),
        ),
        (
            vec![dual(&[("10.0.0.1", 80), ("::1", 80), ("0:0:0:0:0:0:0:1", 80)])],
            format!("[0].endpoint.additional_addresses[1].address.socket_address: {again}"),
        ),
        (
            vec![dual(&[("10.0.0.1", 80), ("::1", 80)]), endpoint("::1", 80)],
            format!("[1].endpoint.address.socket_address: {again}"),
        ),
    ] {
        assert_eq!(refused(&with(endpoints)), format!("endpoints[0].lb_endpoints{problem}"));
    }
    let apart = [locality("a", 1, 0, &["10.0.0.1:80"]), locality("b", 1, 1, &["10.0.0.2:80", "10.0.0.1:80"])];
    let problem = format!("endpoints[1].lb_endpoints[1].endpoint.address.socket_address: {twice}");
    assert_eq!(refused(&assignment(apart.into())), problem);
}

/// VAL-E5, fault 34: unsupported and invalid addresses are rejected.
#[test]
fn invalid_addresses_are_rejected() {
    let name = HostIdentifier::EndpointName("e".to_owned());
    let mut bare = endpoint("10.0.0.1", 80);
    if let Some(HostIdentifier::Endpoint(known)) = &mut bare.host_identifier {
        known.address = None;
    }
    let pipe = AddressKind::Pipe(Pipe { path: "/tmp/s".to_owned(), mode: 0 });
    let port = |port| at_socket(|socket| socket.port_specifier = port);
    for (endpoint, problem) in [
        (LbEndpoint { host_identifier: Some(name), ..LbEndpoint::default() }, ": must be set"),
        (LbEndpoint::default(), ": must be set"),
        (bare, ".address.socket_address: must be set"),
        (at(None), ".address.socket_address: must be set"),
        (at(Some(pipe)), ".address.socket_address: must be set"),
        (
            port(Some(PortSpecifier::PortValue(0))),
            ".address.socket_address.port_value: expected a port from 1 to 65535, found 0",
        ),
        (
            port(Some(PortSpecifier::PortValue(65_536))),
            ".address.socket_address.port_value: expected a port from 1 to 65535, found 65536",
        ),
        (
            port(Some(PortSpecifier::NamedPort("http".to_owned()))),
            ".address.socket_address.port_value: must be set; found named_port \"http\"",
        ),
        (port(None), ".address.socket_address.port_value: must be set"),
        (
            at_socket(|socket| socket.protocol = Protocol::Udp.into()),
            ".address.socket_address.protocol: expected TCP (0), found 1",
        ),
    ] {
        assert_eq!(refused(&with(vec![endpoint])), format!("endpoints[0].lb_endpoints[0].endpoint{problem}"));
    }
    for host in ["", "host", "two\nlines", "[::1]", "fe80::1%eth0", "010.0.0.1", "10.0.0.1:80"] {
        let problem = refused(&with(vec![at_socket(|socket| socket.address = host.to_owned())]));
        let expected = format!("address: expected an IPv4 or IPv6 address, found {host:?}");
        assert_eq!(
            problem,
            format!("endpoints[0].lb_endpoints[0].endpoint.address.socket_address.{expected}")
        );
    }
}

/// CI-2, fault 34: invalid drop categories are rejected.
#[test]
fn invalid_drops_are_rejected() {
    assert_eq!(refused(&drops(&[("", 1, 0)])), "policy.drop_overloads[0].category: must not be empty");
    assert_eq!(
        refused(&drops(&[("lb", 1, 0), ("lb", 1, 3)])),
        "policy.drop_overloads[1].drop_percentage.denominator: expected HUNDRED, TEN_THOUSAND or MILLION, found 3"
    );
    let mut message = drops(&[("lb", 1, 0)]);
    message.policy.as_mut().unwrap().drop_overloads[0].drop_percentage = None;
    assert_eq!(refused(&message), "policy.drop_overloads[0].drop_percentage: must be set");
}

/// VAL-E3, VAL-E4, VAL-E6, fault 34: valid resources close to each rule are accepted.
#[test]
fn resources_close_to_the_rules_are_accepted() {
    let max = u32::MAX;
    let cases = [
        // The same locality in two priorities, with two weights.
        (vec![locality("a", max, 0, &["10.0.0.1:80"]), locality("a", max, 1, &["10.0.0.2:80"])], 2),
        (vec![locality("a", max - 1, 0, &["10.0.0.1:80"]), locality("b", 1, 0, &["10.0.0.2:80"])], 2),
        // Priorities in any order.
        (vec![locality("a", 1, 1, &["10.0.0.1:80"]), locality("b", 1, 0, &["10.0.0.2:80"])], 2),
        // The same IP address with another port.
        (vec![locality("a", 1, 0, &["10.0.0.1:80", "10.0.0.1:81", "[::ffff:10.0.0.1]:80"])], 3),
        (
            vec![LocalityLbEndpoints {
                lb_endpoints: vec![weighing(max - 1, 80), endpoint("10.0.0.1", 81)],
                ..locality("a", 1, 0, &[])
            }],
            2,
        ),
        // Unhealthy endpoints are not validated, so one may have the address of its successor.
        (
            vec![LocalityLbEndpoints {
                lb_endpoints: vec![
                    being(HealthStatus::Draining, 80),
                    being(HealthStatus::Unhealthy, 80),
                    LbEndpoint { load_balancing_weight: Some(0), ..being(HealthStatus::Timeout, 80) },
                    LbEndpoint { host_identifier: None, ..being(HealthStatus::Degraded, 80) },
                    being(HealthStatus::Healthy, 80),
                ],
                ..locality("a", 1, 0, &[])
            }],
            1,
        ),
    ];
    for (localities, endpoints) in cases {
        let set = accepted(&assignment(localities));
        assert_eq!(set.priorities.iter().map(|priority| priority.iter().count()).sum::<usize>(), endpoints);
    }
}

/// VAL-X1, VAL-E9: every error is reported with its path, and no part of an invalid resource is used.
#[test]
fn all_errors_are_reported_at_once() {
    let mut endpoints = vec![endpoint("10.0.0.1", 80); 3];
    endpoints[1] = weighing(0, 81);
    endpoints.push(at_socket(|socket| {
        socket.address = "here".to_owned();
        socket.port_specifier = None;
    }));
    let mut message = with(endpoints);
    message.endpoints.push(locality("b", 1, 2, &[]));
    message.policy = drops(&[("", 1, 9)]).policy;
    let told = [
        "policy.drop_overloads[0].category: must not be empty",
        "policy.drop_overloads[0].drop_percentage.denominator: expected HUNDRED, TEN_THOUSAND or MILLION, found 9",
        "endpoints[0].lb_endpoints[1].load_balancing_weight: must be at least 1, found 0",
        "endpoints[0].lb_endpoints[2].endpoint.address.socket_address: the address 10.0.0.1:80 is in the resource more than once",
        "endpoints[0].lb_endpoints[3].endpoint.address.socket_address.address: expected an IPv4 or IPv6 address, found \"here\"",
        "endpoints[0].lb_endpoints[3].endpoint.address.socket_address.port_value: must be set",
        "endpoints: there is a priority 2 but no priority 1",
    ];
    assert_eq!(refused(&message), told.join("; "));
}

/// VAL-E7, fault 26: only endpoints with health UNKNOWN or HEALTHY are used. A priority without any remains a
/// priority.
#[test]
fn only_healthy_endpoints_are_used() {
    use HealthStatus::{Degraded, Draining, Healthy, Timeout, Unhealthy, Unknown};
    let all = [Unknown, Healthy, Unhealthy, Draining, Timeout, Degraded];
    let mut endpoints: Vec<_> = (1..).zip(all).map(|(port, status)| being(status, port)).collect();
    endpoints.push(LbEndpoint { health_status: 77, ..endpoint("10.0.0.1", 99) });
    let set = accepted(&with(endpoints));
    let well: Vec<_> = set.priorities[0].iter().map(|e| (e.addresses()[0].to_string(), e.health())).collect();
    let expected = [
        ("10.0.0.1:1".to_owned(), EndpointHealthStatus::Unknown),
        ("10.0.0.1:2".to_owned(), EndpointHealthStatus::Healthy),
    ];
    assert_eq!(well, expected);

    let sick = [Unhealthy, Draining].map(|status| being(status, 80));
    let mut message = with(sick.into());
    message.endpoints.push(locality("b", 1, 1, &[]));
    message.endpoints.push(locality("b", 1, 2, &["10.0.0.2:80"]));
    assert_eq!(shown(&accepted(&message)), [vec![], vec![], vec!["[10.0.0.2:80] in b x1"]]);
}

/// VAL-E8: a resource without endpoints is valid.
#[test]
fn no_endpoints_are_valid() {
    assert!(accepted(&assignment(vec![])).priorities.is_empty());
}

/// EDF-5: an unset weight is unknown, not 1.
#[test]
fn an_unset_weight_stays_unset() {
    let set = accepted(&with(vec![endpoint("10.0.0.1", 80), weighing(1, 81), weighing(u32::MAX - 2, 82)]));
    let weights: Vec<_> = set.priorities[0].iter().map(Endpoint::weight).collect();
    assert_eq!(weights, [None, Some(1), Some(u32::MAX - 2)]);
}

/// CI-2: drop rates are scaled to a million, and are at most 100 %.
#[test]
fn drop_rates_are_scaled() {
    let set = accepted(&drops(&[
        ("lb", 5, 0),
        ("throttle", 5, 1),
        ("few", 5, 2),
        ("lb", 101, 0),
        ("all", u32::MAX, 1),
    ]));
    let rates: Vec<_> = set.drops.iter().map(|drop| (&*drop.category, drop.requests_per_million)).collect();
    let expected = [("lb", 50_000), ("throttle", 500), ("few", 5), ("lb", 1_000_000), ("all", 1_000_000)];
    assert_eq!(rates, expected);
}

/// RH-15: the hash key of an endpoint comes from its metadata, if it is a string.
#[test]
fn hash_keys_come_from_the_metadata() {
    let key = |endpoint: LbEndpoint| {
        let (set, warnings) = parse(&with(vec![endpoint])).unwrap();
        let endpoint = set.priorities[0].iter().next().unwrap().clone();
        (endpoint.metadata(HASH_KEY).cloned(), warnings)
    };
    assert_eq!(key(with_metadata("envoy.lb", "hash_key", "k1")), (Some("k1".into()), vec![]));
    assert_eq!(key(with_metadata("envoy.lb", "hash_key", "")), (None, vec![]));
    assert_eq!(key(with_metadata("envoy.lb", "other", "k1")), (None, vec![]));
    assert_eq!(key(with_metadata("other", "hash_key", "k1")), (None, vec![]));
    assert_eq!(key(endpoint("10.0.0.1", 80)), (None, vec![]));
    let warning = r#"endpoints[0].lb_endpoints[0].metadata.filter_metadata["envoy.lb"]["hash_key"]: is ignored: it is not a string"#;
    assert_eq!(key(with_metadata("envoy.lb", "hash_key", 5.0)), (None, vec![warning.to_owned()]));
}

/// VAL-E4: additional addresses follow the first, in order (A61). Host names are kept (A81).
#[test]
fn an_endpoint_has_several_addresses_and_a_name() {
    let mut endpoint = dual(&[("10.0.0.1", 80), ("::1", 80), ("10.0.0.2", 81)]);
    if let Some(HostIdentifier::Endpoint(known)) = &mut endpoint.host_identifier {
        known.hostname = "host.example".to_owned();
    }
    let set = accepted(&with(vec![endpoint, self::endpoint("10.0.0.3", 80)]));
    let all: Vec<_> =
        set.priorities[0].iter().map(|e| (format!("{:?}", e.addresses()), e.hostname())).collect();
    let first = "[10.0.0.1:80, [::1]:80, 10.0.0.2:81]".to_owned();
    assert_eq!(all, [(first, Some("host.example")), ("[10.0.0.3:80]".to_owned(), None)]);
}

#[test]
fn fields_without_effect_are_warned_about() {
    let policy = Policy {
        overprovisioning_factor: Some(140),
        endpoint_stale_after: Some(Duration::default()),
        ..Policy::default()
    };
    let message = ClusterLoadAssignment { policy: Some(policy), ..load_assignment("c", &[]) };
    let (_, warnings) = parse(&message).unwrap();
    assert_eq!(
        warnings,
        ["policy.overprovisioning_factor: is ignored", "policy.endpoint_stale_after: is ignored"]
    );
}

#[test]
fn limits_hold() {
    let mut parser = ResourceParser::new(Registry::empty());
    parser.limits.endpoints = 3;
    parser.limits.name_bytes = 8;
    let check = |message: &ClusterLoadAssignment| {
        parse_any(&any(message), &parser).map(|_| ()).map_err(|rejected| rejected.problems.to_string())
    };
    let mut message = assignment(vec![
        locality("a", 1, 0, &["10.0.0.1:80", "10.0.0.2:80"]),
        locality("b", 1, 0, &["10.0.0.3:80"]),
    ]);
    assert_eq!(check(&message), Ok(()));
    message.endpoints[1].lb_endpoints.push(being(HealthStatus::Unhealthy, 1));
    assert_eq!(check(&message), Err("endpoints: there are 4 endpoints; at most 3 are allowed".to_owned()));

    let mut long = endpoint("10.0.0.1", 80);
    if let Some(HostIdentifier::Endpoint(known)) = &mut long.host_identifier {
        known.hostname = "012345678".to_owned();
    }
    let problem = "endpoints[0].lb_endpoints[0].endpoint.hostname: has 9 bytes; at most 8 are allowed";
    assert_eq!(check(&with(vec![long])), Err(problem.to_owned()));
    assert!(check(&with(vec![with_metadata("envoy.lb", "hash_key", "012345678")])).is_err());
    let many: Vec<_> = (1..=101).map(|port| ("10.0.0.1", port)).collect();
    accepted(&with(vec![dual(&many[..100])]));
    let problem = "endpoints[0].lb_endpoints[0].endpoint.additional_addresses: an endpoint has at most 100 addresses, found 101";
    assert_eq!(refused(&with(vec![dual(&many)])), problem);
    let problem = "endpoints: there are 99 additional addresses; at most 48 are allowed";
    assert_eq!(check(&with(vec![dual(&many[..100])])), Err(problem.to_owned()));
    let localities = (0..4).map(|_| LocalityLbEndpoints::default()).collect();
    let problem = "endpoints: there are 4 localities; at most 3 are allowed";
    assert_eq!(check(&assignment(localities)), Err(problem.to_owned()));
}

/// A resource with 100,000 endpoints is parsed, and as many errors lead to a short text.
#[test]
fn many_endpoints() {
    let many = |port: fn(u32) -> u32| {
        let endpoints = (0..100_000_u32).map(|i| {
            at_socket(|socket| {
                socket.address = std::net::Ipv4Addr::from(i).to_string();
                socket.port_specifier = Some(PortSpecifier::PortValue(port(i)));
            })
        });
        with(endpoints.collect())
    };
    let set = accepted(&many(|_| 80));
    assert_eq!(set.priorities[0].iter().count(), 100_000);
    let problems = refused(&many(|_| 0));
    assert!(problems.len() < 5_000 && problems.ends_with("; and 99968 more"), "{problems}");
}

fn generated() -> impl Strategy<Value = ClusterLoadAssignment> {
    let endpoint = (0..20_u32, 0..4_u32, 0..7_i32, proptest::option::weighted(0.3, 0..3_u32));
    let endpoint = endpoint.prop_map(|(ip, port, health_status, load_balancing_weight)| LbEndpoint {
        health_status,
        load_balancing_weight,
        ..at_socket(|socket| {
            socket.address = format!("10.0.0.{ip}");
            socket.port_specifier = Some(PortSpecifier::PortValue(port));
        })
    });
    let endpoints = proptest::collection::vec(endpoint, 0..4);
    let locality = ("[ab]", proptest::option::weighted(0.9, 0..3_u32), 0..3_u32, endpoints);
    let locality = locality.prop_map(|(zone, weight, priority, lb_endpoints)| LocalityLbEndpoints {
        load_balancing_weight: weight,
        lb_endpoints,
        ..self::locality(&zone, 0, priority, &[])
    });
    proptest::collection::vec(locality, 0..4).prop_map(assignment)
}

/// Returns true if a resource is valid by A27, A61 and the rules for weights.
fn is_good(message: &ClusterLoadAssignment) -> bool {
    let used = || message.endpoints.iter().filter(|locality| locality.load_balancing_weight.unwrap_or(0) > 0);
    let well = |endpoint: &&LbEndpoint| endpoint.health_status <= 1;
    let socket = |endpoint: &LbEndpoint| match &endpoint.host_identifier {
        Some(HostIdentifier::Endpoint(known)) => known.address.clone(),
        _ => None,
    };
    let addresses: Vec<_> = used().flat_map(|l| l.lb_endpoints.iter().filter(well)).map(socket).collect();
    let mut names: Vec<_> =
        used().map(|l| (l.priority, l.locality.clone().unwrap_or_default().zone)).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    names.len() == all
        && used().all(|l| l.priority == 0 || used().any(|other| other.priority == l.priority - 1))
        && addresses.iter().enumerate().all(|(i, address)| !addresses[..i].contains(address))
        && used().flat_map(|l| l.lb_endpoints.iter().filter(well)).all(|e| {
            let port_0 = format!("{:?}", socket(e)).contains("PortValue(0)");
            e.load_balancing_weight != Some(0) && !port_0
        })
}

proptest! {
    /// fault 34: a resource is accepted if and only if no rule rejects it.
    #[test]
    fn the_rules_and_the_parser_agree(message in generated()) {
        prop_assert_eq!(parse(&message).is_ok(), is_good(&message), "{:?}", parse(&message));
    }

    /// Arbitrary changes of the bytes cause no panic.
    #[test]
    fn damaged_bytes_do_no_harm(message in generated(), at in 0..10_000_usize, byte: u8, cut in 0..10_000_usize) {
        let mut bytes = message.encode_to_vec();
        let length = bytes.len().max(1);
        if let Some(changed) = bytes.get_mut(at % length) {
            *changed = byte;
        }
        bytes.truncate(cut % (length * 4));
        let any = Any { value: bytes, ..any(&message) };
        let _ = parse_any(&any, &ResourceParser::new(Registry::empty()));
    }
}

/// VAL-X1, fault 36: a locality that cannot be decoded is named by its index. A length prefix beyond the end rejects
/// the whole resource. Fields may be in any order, although localities are decoded separately.
#[test]
fn bytes_are_taken_apart() {
    let parser = ResourceParser::new(Registry::empty());
    let parse = |value: Vec<u8>| {
        let type_url = ResourceType::Endpoints.type_url().to_owned();
        parse_any(&Any { type_url, value }, &parser).map_err(|rejected| rejected.to_string())
    };
    let good = load_assignment("c", &["10.0.0.1:80"]).encode_to_vec();
    // Field 2 with one byte, which is no valid message.
    let spoiled = [&good[..], &[0x12, 1, 0xff]].concat();
    let told = parse(spoiled).expect_err("no locality");
    assert!(told.starts_with(r#""c": endpoints[1]: cannot be decoded: "#), "{told}");
    // Field 2 with a length of five bytes, at the end of the resource.
    let cut = [&good[..], &[0x12, 5]].concat();
    let told = parse(cut).expect_err("no end");
    assert_eq!(told, "cannot be decoded: a field is truncated or malformed");

    let name = ClusterLoadAssignment { cluster_name: "c".to_owned(), ..ClusterLoadAssignment::default() };
    let localities = [("a", "10.0.0.1:80"), ("b", "10.0.0.2:80")]
        .map(|(zone, address)| assignment(vec![locality(zone, 1, 0, &[address])]))
        .map(|part| ClusterLoadAssignment { cluster_name: String::new(), ..part }.encode_to_vec());
    let [first, second] = &localities;
    let parsed = parse([&first[..], &name.encode_to_vec(), second].concat()).expect("a valid resource");
    let Resource::Endpoints(set) = parsed.resource else { panic!("not endpoints") };
    assert_eq!((parsed.name.as_str(), set.priorities[0].iter().count()), ("c", 2));
}
