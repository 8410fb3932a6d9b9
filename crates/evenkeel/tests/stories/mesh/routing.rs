//! Routes: matching, timeouts, faults, retries, hashing and authorities, as the backend sees them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel::Channel;
use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::cluster::v3::cluster::LbPolicy;
use evenkeel_proto::envoy::config::core::v3::HttpProtocolOptions;
use evenkeel_proto::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use evenkeel_proto::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use evenkeel_proto::envoy::config::route::v3::retry_policy::RetryBackOff;
use evenkeel_proto::envoy::config::route::v3::route::Action;
use evenkeel_proto::envoy::config::route::v3::route_action::hash_policy::{self, PolicySpecifier};
use evenkeel_proto::envoy::config::route::v3::route_action::{
    ClusterSpecifier, HashPolicy, HostRewriteSpecifier, MaxStreamDuration,
};
use evenkeel_proto::envoy::config::route::v3::weighted_cluster::ClusterWeight;
use evenkeel_proto::envoy::config::route::v3::{
    HeaderMatcher, RetryPolicy, Route, RouteAction, RouteConfiguration, WeightedCluster,
};
use evenkeel_proto::envoy::extensions::filters::common::fault::v3::FaultDelay;
use evenkeel_proto::envoy::extensions::filters::common::fault::v3::fault_delay::{
    FaultDelaySecifier, HeaderDelay,
};
use evenkeel_proto::envoy::extensions::filters::http::fault::v3::fault_abort::{ErrorType, HeaderAbort};
use evenkeel_proto::envoy::extensions::filters::http::fault::v3::{FaultAbort, HttpFault};
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::Rds;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use evenkeel_proto::envoy::r#type::v3::FractionalPercent;
use evenkeel_proto::prost_types;
use testkit::net::control::ResourceSetExt as _;
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use testkit::net::{Backend, ControlPlane};
use testkit::resources::{self, any};
use tokio_stream::StreamExt as _;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status};

use super::{Mesh, addresses, call, channel, channel_with, request, shares, start};

/// Returns a modified route for calls whose header `row` has this value.
fn row(row: &str, change: impl FnOnce(&mut Route, &mut RouteAction)) -> Route {
    let mut route = resources::route("", "pay");
    let exact = HeaderMatchSpecifier::ExactMatch(row.to_owned());
    let header = HeaderMatcher {
        name: "row".to_owned(),
        header_match_specifier: Some(exact),
        ..HeaderMatcher::default()
    };
    if let Some(matches) = &mut route.r#match {
        matches.headers.push(header);
    }
    let Some(Action::Route(mut action)) = route.action.take() else { unreachable!("it forwards") };
    change(&mut route, &mut action);
    route.action = Some(Action::Route(action));
    route
}

fn routes(routes: Vec<Route>) -> RouteConfiguration {
    RouteConfiguration {
        virtual_hosts: vec![resources::virtual_host("*", routes)],
        ..resources::route_config("orders", "pay")
    }
}

/// Returns a request for the route of this row.
fn of_row(row: &str) -> Request<EchoRequest> {
    with_header(request(), "row", row)
}

fn with_header(mut request: Request<EchoRequest>, name: &'static str, value: &str) -> Request<EchoRequest> {
    request.metadata_mut().insert(name, MetadataValue::try_from(value).expect("a value"));
    request
}

/// Returns the request metadata that the backend saw.
async fn seen(channel: &Channel, request: Request<EchoRequest>) -> Result<BTreeMap<String, String>, Status> {
    Ok(EchoClient::new(channel.clone()).unary(request).await?.into_inner().metadata)
}

fn span(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
}

fn seconds(seconds: u64) -> Option<prost_types::Duration> {
    span(Duration::from_secs(seconds))
}

/// Calls are routed by header, else by cluster weight. Calls without a route fail with the reason.
#[tokio::test]
async fn by_header_and_by_weight() {
    let mesh = Mesh::start(1).await;
    let canary = start(1).await;
    let channel = channel(&mesh.control).seed(11).build().unwrap();
    let weight = |name: &str, weight| ClusterWeight {
        name: name.to_owned(),
        weight: Some(weight),
        ..ClusterWeight::default()
    };
    let weighted =
        WeightedCluster { clusters: vec![weight("pay", 9), weight("canary", 1)], total_weight: None };
    let weighted = ClusterSpecifier::WeightedClusters(weighted);
    mesh.control.update(|held| {
        held.set(resources::cluster("canary"));
        held.set_endpoints("canary", &addresses(&canary));
        held.set(routes(vec![
            row("canary", |_, action| {
                action.cluster_specifier = Some(ClusterSpecifier::Cluster("canary".to_owned()));
            }),
            row("any", |_, action| action.cluster_specifier = Some(weighted)),
        ]));
    });
    let answered_by = |row: &'static str| super::send(&channel, of_row(row));
    for _ in 0..20 {
        assert_eq!(answered_by("canary").await.unwrap(), canary[0].name());
    }
    let mut to_canary = 0;
    for _ in 0..500 {
        to_canary += u32::from(answered_by("any").await.unwrap() == canary[0].name());
    }
    println!("{to_canary} of 500");
    assert!(to_canary.abs_diff(50) < 25, "{to_canary}");
    let status = answered_by("other").await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("no route matches"), "{status}");
}

/// Returns the `grpc-timeout` in seconds, rounded up to a multiple of 100.
fn timeout_seen(headers: &BTreeMap<String, String>) -> Option<u64> {
    let (number, unit) = headers.get("grpc-timeout").map(|text| text.split_at(text.len() - 1))?;
    let number: f64 = number.parse().expect("a number");
    let seconds = match unit {
        "n" => number / 1e9,
        "u" => number / 1e6,
        "m" => number / 1e3,
        "S" => number,
        unit => panic!("unit {unit:?}"),
    };
    // The remaining time is slightly less than the limit, and all limits here are multiples of 100 s.
    Some((seconds / 100.0).ceil() as u64 * 100)
}

/// RT-1: timeouts by application, route and listener, as the backend sees them.
#[tokio::test]
async fn time_limits() {
    let mesh = Mesh::start(1).await;
    // Application's deadline, `grpc_timeout_header_max`, `max_stream_duration`, and the effective timeout.
    // The listener sets 700 s.
    let table = [
        (None, None, None, Some(700)),
        (None, None, Some(0), None),
        (None, None, Some(100), Some(100)),
        (None, Some(0), Some(100), None),
        (None, Some(200), Some(100), Some(200)),
        (Some(300), None, None, Some(300)),
        (Some(800), None, None, Some(700)),
        (Some(300), None, Some(0), Some(300)),
        (Some(300), None, Some(100), Some(100)),
        (Some(300), None, Some(500), Some(300)),
        (Some(300), Some(0), Some(100), Some(300)),
        (Some(300), Some(200), Some(100), Some(200)),
        (Some(300), Some(500), Some(100), Some(300)),
    ];
    let limited = |header: Option<u64>, route: Option<u64>| MaxStreamDuration {
        max_stream_duration: route.and_then(seconds),
        grpc_timeout_header_max: header.and_then(seconds),
        grpc_timeout_header_offset: None,
    };
    let mut rows: Vec<_> = (table.iter().enumerate())
        .map(|(i, (_, header, route, _))| {
            row(&i.to_string(), |_, action| action.max_stream_duration = Some(limited(*header, *route)))
        })
        .collect();
    let short = MaxStreamDuration {
        max_stream_duration: span(Duration::from_millis(50)),
        ..MaxStreamDuration::default()
    };
    rows.push(row("short", |_, action| action.max_stream_duration = Some(short)));
    let rds = Rds { route_config_name: "orders".to_owned(), config_source: Some(resources::ads()) };
    let mut manager = resources::manager(RouteSpecifier::Rds(rds));
    manager.common_http_protocol_options =
        Some(HttpProtocolOptions { max_stream_duration: seconds(700), idle_timeout: None });
    mesh.control.update(|held| {
        held.set(routes(rows));
        held.set(resources::listener("orders", &manager));
    });

    for (i, (own, _, _, expected)) in table.into_iter().enumerate() {
        let mut request = with_header(Request::new(EchoRequest::default()), "row", &i.to_string());
        if let Some(own) = own {
            request.set_timeout(Duration::from_secs(own));
        }
        let seen = seen(&mesh.channel, request).await.unwrap();
        assert_eq!(timeout_seen(&seen), expected, "row {i}: {seen:?}");
    }
    let mut request = of_row("short");
    request.get_mut().forever = true;
    let status = seen(&mesh.channel, request).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    mesh.backends[0].wait_until(|backend| backend.in_flight() == 0).await;
}

/// Applies to all calls.
const ALL: Option<FractionalPercent> = Some(FractionalPercent { numerator: 100, denominator: 0 });

fn abort(kind: ErrorType) -> HttpFault {
    HttpFault { abort: Some(FaultAbort { percentage: ALL, error_type: Some(kind) }), ..HttpFault::default() }
}

fn delay(kind: FaultDelaySecifier) -> HttpFault {
    HttpFault {
        delay: Some(FaultDelay { percentage: ALL, fault_delay_secifier: Some(kind) }),
        ..HttpFault::default()
    }
}

/// RT-3: fault injection by config or by headers of the call. None of these calls reaches the backend. An
/// abort with OK ends without a message.
#[tokio::test]
async fn faults() {
    let mesh = Mesh::start(1).await;
    let by_header = HttpFault {
        delay: delay(FaultDelaySecifier::HeaderDelay(HeaderDelay {})).delay,
        ..abort(ErrorType::HeaderAbort(HeaderAbort {}))
    };
    let faulty = |name: &str, fault: HttpFault| {
        row(name, |route, _| drop(route.typed_per_filter_config.insert("fault".to_owned(), any(&fault))))
    };
    let hour = || FaultDelaySecifier::FixedDelay(prost_types::Duration { seconds: 3_600, nanos: 0 });
    let rds = Rds { route_config_name: "orders".to_owned(), config_source: Some(resources::ads()) };
    let mut manager = resources::manager(RouteSpecifier::Rds(rds));
    manager.http_filters.insert(0, resources::filter("fault", any(&by_header)));
    mesh.control.update(|held| {
        held.set(resources::listener("orders", &manager));
        held.set(routes(vec![
            faulty("aborted", abort(ErrorType::GrpcStatus(10))),
            faulty("http", abort(ErrorType::HttpStatus(503))),
            faulty("well", abort(ErrorType::GrpcStatus(0))),
            faulty("late", delay(hour())),
            faulty(
                "first late, then aborted",
                HttpFault {
                    delay: delay(FaultDelaySecifier::FixedDelay(prost_types::Duration {
                        seconds: 0,
                        nanos: 1_000,
                    }))
                    .delay,
                    ..abort(ErrorType::GrpcStatus(5))
                },
            ),
            row("headers", |_, _| ()),
        ]));
    });
    let code = async |request| seen(&mesh.channel, request).await.map_err(|status| status.code()).err();
    let soon = |mut request: Request<EchoRequest>| {
        request.set_timeout(Duration::from_millis(50));
        request
    };
    assert_eq!(code(of_row("aborted")).await, Some(Code::Aborted));
    assert_eq!(code(of_row("http")).await, Some(Code::Unavailable));
    assert_eq!(code(of_row("first late, then aborted")).await, Some(Code::NotFound));
    assert_eq!(code(soon(of_row("late"))).await, Some(Code::DeadlineExceeded));
    let asked = with_header(of_row("headers"), "x-envoy-fault-abort-grpc-request", "9");
    assert_eq!(code(asked).await, Some(Code::FailedPrecondition));
    let asked = with_header(of_row("headers"), "x-envoy-fault-delay-request", "3600000");
    assert_eq!(code(soon(asked)).await, Some(Code::DeadlineExceeded));
    let mut client = EchoClient::new(mesh.channel.clone());
    let mut well = client.server_stream(of_row("well")).await.unwrap().into_inner();
    assert!(well.next().await.is_none(), "it ends well, and at once");
    assert_eq!(mesh.backends[0].calls(), 0);

    let asked = with_header(of_row("headers"), "x-envoy-fault-abort-grpc-request", "9");
    let unlikely = with_header(asked, "x-envoy-fault-abort-request-percentage", "0");
    assert_eq!(code(unlikely).await, None);
    assert_eq!(code(of_row("headers")).await, None);
    assert_eq!(mesh.backends[0].calls(), 2);
}

/// A44: retry policy of a route. Each attempt uses the next backend and carries the number of previous
/// attempts.
#[tokio::test]
async fn retries() {
    let mesh = Mesh::start(2).await;
    let policy = RetryPolicy {
        retry_on: "unavailable".to_owned(),
        num_retries: Some(3),
        retry_back_off: Some(RetryBackOff {
            base_interval: span(Duration::from_millis(2)),
            max_interval: None,
        }),
        ..RetryPolicy::default()
    };
    mesh.control.set(routes(vec![
        row("again", |_, action| action.retry_policy = Some(policy)),
        row("once", |_, _| ()),
    ]));
    seen(&mesh.channel, of_row("once")).await.unwrap();
    for backend in &mesh.backends {
        backend.wait_until(|backend| backend.open_connections() == 1).await;
    }
    super::until("both get calls", || async {
        seen(&mesh.channel, of_row("once")).await.unwrap();
        mesh.backends.iter().all(|backend| backend.calls() > 0)
    })
    .await;
    let calls = || mesh.backends.iter().map(Backend::calls).sum::<usize>();

    mesh.backends[0].fail_with(Some(Code::Unavailable));
    let before = calls();
    let mut repeated = 0;
    for _ in 0..20 {
        let seen = seen(&mesh.channel, of_row("again")).await.unwrap();
        repeated += usize::from(seen.get("grpc-previous-rpc-attempts").is_some_and(|count| count == "1"));
    }
    println!("{repeated} of 20 were repeated");
    assert!(repeated > 0);
    assert_eq!(calls() - before, 20 + repeated);
    mesh.backends[1].fail_with(Some(Code::Unavailable));
    for (row, attempts) in [("again", 4), ("once", 1)] {
        let before = calls();
        assert_eq!(seen(&mesh.channel, of_row(row)).await.unwrap_err().code(), Code::Unavailable);
        assert_eq!(calls() - before, attempts);
    }
    mesh.backends.iter().for_each(|backend| backend.fail_with(Some(Code::Internal)));
    let before = calls();
    assert_eq!(seen(&mesh.channel, of_row("again")).await.unwrap_err().code(), Code::Internal);
    assert_eq!(calls() - before, 1);
}

/// ring_hash: calls of one user use one backend, and users are distributed. With the channel id as hash,
/// channels are.
#[tokio::test]
async fn the_same_key_the_same_backend() {
    let mesh = Mesh::start(4).await;
    let hashing = |source| vec![HashPolicy { terminal: false, policy_specifier: Some(source) }];
    let user =
        PolicySpecifier::Header(hash_policy::Header { header_name: "user".to_owned(), regex_rewrite: None });
    let own = PolicySpecifier::FilterState(hash_policy::FilterState { key: "io.grpc.channel_id".to_owned() });
    mesh.control.update(|held| {
        held.set(Cluster { lb_policy: LbPolicy::RingHash.into(), ..resources::cluster("pay") });
        held.set(routes(vec![
            row("user", |_, action| action.hash_policy = hashing(user)),
            row("channel", |_, action| action.hash_policy = hashing(own)),
        ]));
    });
    let mut met = BTreeSet::new();
    for user in 0..20 {
        let request = || with_header(of_row("user"), "user", &format!("user-{user}"));
        let first = super::send(&mesh.channel, request()).await.unwrap();
        for _ in 0..5 {
            assert_eq!(super::send(&mesh.channel, request()).await.unwrap(), first);
        }
        met.insert(first);
    }
    assert!(met.len() > 1, "all users met {met:?}");

    let mut met = BTreeSet::new();
    for _ in 0..12 {
        let channel = channel(&mesh.control).build().unwrap();
        let first = super::send(&channel, of_row("channel")).await.unwrap();
        for _ in 0..5 {
            assert_eq!(super::send(&channel, of_row("channel")).await.unwrap(), first);
        }
        met.insert(first);
    }
    assert!(met.len() > 1, "all channels met {met:?}");
}

/// CI-9, A81: the endpoint's hostname becomes the authority if the route enables it and the bootstrap trusts
/// the server. Otherwise it is the target's, or the application's.
#[tokio::test]
async fn authorities() {
    let mesh = Mesh::start(1).await;
    let mut assignment = resources::load_assignment("pay", &[&mesh.backends[0].address().to_string()]);
    if let Some(HostIdentifier::Endpoint(endpoint)) =
        &mut assignment.endpoints[0].lb_endpoints[0].host_identifier
    {
        endpoint.hostname = "pay-1.example".to_owned();
    }
    let rewrite = Some(HostRewriteSpecifier::AutoHostRewrite(true));
    mesh.control.update(|held| {
        held.set(assignment);
        held.set(routes(vec![
            row("rewritten", |_, action| action.host_rewrite_specifier = rewrite),
            row("kept", |_, _| ()),
        ]));
    });
    let trusting = channel_with(&mesh.control, "\"trusted_xds_server\"");
    let named = channel(&mesh.control).authority("shop.example");
    for (channel, row, expected) in [
        (trusting.clone(), "rewritten", "pay-1.example"),
        (trusting, "kept", "orders"),
        (channel(&mesh.control), "rewritten", "orders"),
        (named, "kept", "shop.example"),
    ] {
        let seen = seen(&channel.build().unwrap(), of_row(row)).await.unwrap();
        assert_eq!(seen[":authority"], expected, "{row}");
    }
}

/// CDS-3: the virtual host is selected by the authority of calls, also if the application overrides the
/// target's.
#[tokio::test]
async fn the_virtual_host_is_that_of_the_authority() {
    let control = ControlPlane::start().await;
    let backends = start(2).await;
    control.serve("orders", "pay", &addresses(&backends[..1]));
    control.update(|held| {
        held.set(resources::cluster("shop"));
        held.set_endpoints("shop", &addresses(&backends[1..]));
        held.set(RouteConfiguration {
            virtual_hosts: vec![
                resources::virtual_host("orders", vec![resources::route("", "pay")]),
                resources::virtual_host("shop.example", vec![resources::route("", "shop")]),
            ],
            ..resources::route_config("orders", "pay")
        });
    });
    let of_target = channel(&control).build().unwrap();
    assert_eq!(call(&of_target).await.unwrap(), backends[0].name());
    let of_shop = channel(&control).authority("shop.example").build().unwrap();
    assert_eq!(call(&of_shop).await.unwrap(), backends[1].name());
    let of_nobody = channel(&control).authority("nobody.example").build().unwrap();
    let status = call(&of_nobody).await.unwrap_err();
    println!("{status}");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("nobody.example"), "{status}");
    assert_eq!(shares(&of_target, 10).await.len(), 1);
}
