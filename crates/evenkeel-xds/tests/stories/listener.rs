//! Listeners: parsed routes, filters and timeouts, and the errors of invalid resources.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_proto::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use evenkeel_proto::envoy::config::core::v3::{
    ConfigSource, ExtensionConfigSource, HttpProtocolOptions, PathConfigSource, SelfConfigSource,
    TypedExtensionConfig,
};
use evenkeel_proto::envoy::config::listener::v3::{ApiListener, FilterChain, Listener};
use evenkeel_proto::envoy::extensions::filters::common::fault::v3::FaultDelay;
use evenkeel_proto::envoy::extensions::filters::common::fault::v3::fault_delay::FaultDelaySecifier;
use evenkeel_proto::envoy::extensions::filters::http::fault::v3::fault_abort::ErrorType;
use evenkeel_proto::envoy::extensions::filters::http::fault::v3::{FaultAbort, HttpFault};
use evenkeel_proto::envoy::extensions::filters::http::router::v3::Router;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::http_filter::ConfigType;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, Rds, ScopedRoutes,
};
use evenkeel_proto::envoy::r#type::v3::FractionalPercent;
use evenkeel_proto::prost_types::Any;
use evenkeel_xds::resource::{self, ParsedResource, Resource, ResourceType, RouteSource};
use evenkeel_xds::routing::XdsHttpFilter;
use testkit::resources::{
    ads, any, filter, listener, listener_with_rds, listener_with_routes, manager, route_config,
};

use crate::route::{parse_with, seconds, told, typed_structs, unknown_filter};

/// Returns the listener and the warnings of a valid resource.
pub(crate) fn accepted(message: &Listener) -> (Arc<resource::Listener>, Vec<String>) {
    match parse_with(ResourceType::Listener, message, false, |_| ()).expect("a valid resource") {
        ParsedResource { resource: Resource::Listener(listener), warnings, .. } => (listener, warnings),
        other => panic!("not a listener: {other:?}"),
    }
}

fn problems(message: &Listener) -> Vec<String> {
    told(parse_with(ResourceType::Listener, message, false, |_| ()))
}

/// Returns the errors of a listener with a changed connection manager, with the path to the manager shortened.
fn manager_problems(change: impl FnOnce(&mut HttpConnectionManager)) -> Vec<String> {
    let told = problems(&listener("l", &changed(change)));
    told.iter().map(|line| line.replace("api_listener.api_listener", "hcm")).collect()
}

fn changed(change: impl FnOnce(&mut HttpConnectionManager)) -> HttpConnectionManager {
    let mut manager = manager(RouteSpecifier::RouteConfig(route_config("r", "c")));
    change(&mut manager);
    manager
}

fn router() -> HttpFilter {
    filter("router", any(&Router::default()))
}

fn fault(name: &str) -> HttpFilter {
    filter(name, any(&HttpFault::default()))
}

/// VAL-L1: routes are inline or named by RDS.
#[test]
fn routes_are_inside_or_named() {
    let (inline, warnings) = accepted(&listener_with_routes("l", route_config("", "orders")));
    assert_eq!((inline.name.as_str(), warnings.len()), ("l", 0));
    match &inline.routes {
        RouteSource::Inline(routes) => assert_eq!(&*routes.virtual_hosts[0].clusters[0], "orders"),
        RouteSource::Rds(name) => panic!("by the name {name}"),
    }
    match &accepted(&listener_with_rds("l", "my-routes")).0.routes {
        RouteSource::Rds(name) => assert_eq!(name, "my-routes"),
        RouteSource::Inline(routes) => panic!("{routes:?}"),
    }
}

/// VAL-L1: the source of RDS must be `ads` or `self`, and the name must not be empty.
#[test]
fn the_source_of_routes_is_this_stream() {
    let check = |source: Option<ConfigSourceSpecifier>, expected: Option<&str>| {
        let source = ConfigSource { config_source_specifier: source, ..ConfigSource::default() };
        let rds = Rds { route_config_name: "r".to_owned(), config_source: Some(source) };
        let found = manager_problems(|manager| manager.route_specifier = Some(RouteSpecifier::Rds(rds)));
        let expected =
            expected.map(|found| format!("hcm.rds.config_source: expected ads or self, found {found}"));
        assert_eq!(found, Vec::from_iter(expected));
    };
    check(ads().config_source_specifier, None);
    check(Some(ConfigSourceSpecifier::Self_(SelfConfigSource::default())), None);
    let path = PathConfigSource { path: "/etc/routes".to_owned() };
    check(Some(ConfigSourceSpecifier::PathConfigSource(path)), Some("path_config_source"));
    check(None, Some("neither"));
    let nameless = Rds { route_config_name: String::new(), config_source: None };
    assert_eq!(
        manager_problems(|manager| manager.route_specifier = Some(RouteSpecifier::Rds(nameless))),
        [
            "hcm.rds.route_config_name: must not be empty",
            "hcm.rds.config_source: expected ads or self, found neither"
        ]
    );
}

/// VAL-L1: scoped routes and a missing route specifier are rejected.
#[test]
fn other_sources_of_routes_are_refused() {
    let scoped = RouteSpecifier::ScopedRoutes(ScopedRoutes::default());
    assert_eq!(
        manager_problems(|manager| manager.route_specifier = Some(scoped)),
        ["hcm.scoped_routes: is not supported: expected route_config or rds"]
    );
    assert_eq!(
        manager_problems(|manager| manager.route_specifier = None),
        ["hcm: expected route_config or rds, found neither"]
    );
}

/// VAL-L1: a listener without an API listener, or with another type in it, is rejected.
#[test]
fn only_listeners_of_clients() {
    let server = Listener {
        name: "grpc/server".to_owned(),
        filter_chains: vec![FilterChain::default()],
        ..Listener::default()
    };
    assert_eq!(
        problems(&server),
        ["api_listener: is required: only listeners of clients are supported, not those of servers"]
    );
    let with = |api_listener| {
        problems(&Listener {
            api_listener: Some(ApiListener { api_listener }),
            ..listener_with_rds("l", "r")
        })
    };
    let expected = "api_listener.api_listener: expected \
                    envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, found type";
    assert_eq!(with(None), [format!("{expected} \"\"")]);
    assert_eq!(
        with(Some(any(&Router::default()))),
        [format!("{expected} \"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router\"")]
    );
    let spoiled = Any { value: vec![0xff], ..any(&HttpConnectionManager::default()) };
    assert_eq!(
        with(Some(spoiled)),
        ["api_listener.api_listener: cannot be decoded: failed to decode Protobuf message: invalid varint"]
    );
}

/// Checks the names and kinds of a listener's filters, or its errors.
fn check(filters: Vec<HttpFilter>, expected: Result<&[&str], &[&str]>) {
    let shown = format!("{filters:?}");
    let message = listener("l", &changed(|manager| manager.http_filters = filters));
    let found = match parse_with(ResourceType::Listener, &message, false, |_| ()) {
        Ok(ParsedResource { resource: Resource::Listener(listener), .. }) => {
            let show = |filter: &evenkeel_xds::routing::FilterInstance| match &filter.filter {
                XdsHttpFilter::Router => format!("{} router", filter.name),
                XdsHttpFilter::Fault(_) => format!("{} fault", filter.name),
                other => panic!("{other:?}"),
            };
            Ok(listener.filters.iter().map(show).collect::<Vec<_>>())
        }
        result => Err(told(result)),
    };
    let at = |line: &&str| format!("api_listener.api_listener.http_filters{line}");
    let expected = match expected {
        Ok(names) => Ok(names.iter().map(ToString::to_string).collect()),
        Err(lines) => Err(lines.iter().map(at).collect()),
    };
    assert_eq!(found, expected, "{shown}");
}

/// VAL-L2: the last filter is the router, and no other filter is.
#[test]
fn a_chain_ends_with_the_router() {
    check(vec![router()], Ok(&["router router"]));
    check(vec![fault("a"), fault("b"), router()], Ok(&["a fault", "b fault", "router router"]));
    check(vec![], Err(&[": expected at least one filter, found none"]));
    check(vec![fault("a")], Err(&["[0]: is the last filter, but not terminal: the router must be last"]));
    check(
        vec![router(), fault("a")],
        Err(&[
            "[0]: is terminal, but other filters follow",
            "[1]: is the last filter, but not terminal: the router must be last",
        ]),
    );
    let second = filter("router 2", any(&Router::default()));
    check(vec![router(), second], Err(&["[0]: is terminal, but other filters follow"]));
}

/// VAL-L2: two filters with the same name are rejected.
#[test]
fn filter_names_are_unique() {
    check(vec![fault("a"), fault("a"), router()], Err(&["[1].name: \"a\" occurs twice"]));
    check(vec![fault(""), router()], Err(&["[0].name: must not be empty"]));
}

/// VAL-L2: an unknown filter, also in a `TypedStruct` of either package, is rejected unless it is optional. Optional
/// ones are skipped.
#[test]
fn unknown_filters_must_be_optional() {
    let optional = |filter: HttpFilter| HttpFilter { is_optional: true, ..filter };
    let unknown = || filter("teapot", unknown_filter());
    check(vec![unknown(), router()], Err(&["[0].typed_config: has the unknown type \"acme.Teapot\""]));
    check(vec![optional(unknown()), router()], Ok(&["router router"]));
    check(vec![router(), optional(unknown())], Ok(&["router router"]));
    check(vec![optional(unknown())], Err(&[": no supported filter is left: the router must be last"]));
    for config in typed_structs() {
        let unknown = || filter("teapot", config.clone());
        check(
            vec![unknown(), router()],
            Err(&["[0].typed_config: has the unknown type \"acme.Teapot\" (in a TypedStruct)"]),
        );
        check(vec![optional(unknown()), router()], Ok(&["router router"]));
    }
    let discovered = |is_optional| HttpFilter {
        config_type: Some(ConfigType::ConfigDiscovery(ExtensionConfigSource::default())),
        is_optional,
        ..fault("found")
    };
    check(vec![discovered(false), router()], Err(&["[0].config_discovery: is not supported"]));
    check(vec![discovered(true), router()], Ok(&["router router"]));
    let empty = |is_optional| HttpFilter { config_type: None, is_optional, ..fault("empty") };
    check(vec![empty(false), router()], Err(&["[0].typed_config: is required"]));
    check(vec![empty(true), router()], Ok(&["router router"]));
    let message = changed(|manager| manager.http_filters = vec![optional(unknown()), router()]);
    assert_eq!(
        accepted(&listener("l", &message)).1,
        [
            "api_listener.api_listener.http_filters[0].typed_config: has the unknown type \"acme.Teapot\": skipped because it is optional"
        ]
    );
}

/// VAL-L2: an optional filter of a known type must still be valid.
#[test]
fn known_filters_are_checked() {
    let spoiled = |is_optional| HttpFilter {
        is_optional,
        ..filter("a", Any { value: vec![0xff], ..any(&HttpFault::default()) })
    };
    for is_optional in [true, false] {
        check(
            vec![spoiled(is_optional), router()],
            Err(&["[0].typed_config: cannot be decoded: failed to decode Protobuf message: invalid varint"]),
        );
    }
    let disabled = HttpFilter { disabled: true, ..router() };
    check(vec![disabled], Err(&["[0].disabled: a terminal filter cannot be disabled"]));
    let off = HttpFilter { disabled: true, ..fault("off") };
    check(vec![off, router()], Ok(&["off fault", "router router"]));
}

/// RT-3: invalid fault configs are rejected, and fields without effect produce warnings.
#[test]
fn faults_are_checked() {
    let half = || Some(FractionalPercent { numerator: 50, denominator: 0 });
    let abort = |error_type, percentage| HttpFault {
        abort: Some(FaultAbort { percentage, error_type }),
        ..HttpFault::default()
    };
    let delay = |specifier, percentage| HttpFault {
        delay: Some(FaultDelay { percentage, fault_delay_secifier: specifier }),
        ..HttpFault::default()
    };
    let wrong = |config: HttpFault, expected: &str| {
        check(vec![filter("f", any(&config)), router()], Err(&[&format!("[0].typed_config.{expected}")]));
    };
    for status in [0, 199, 600] {
        let text = format!("abort.http_status: expected 200 to 599, found {status}");
        wrong(abort(Some(ErrorType::HttpStatus(status)), half()), &text);
    }
    wrong(abort(Some(ErrorType::GrpcStatus(17)), half()), "abort.grpc_status: expected 0 to 16, found 17");
    let odd = Some(FractionalPercent { numerator: 1, denominator: 3 });
    wrong(
        abort(Some(ErrorType::GrpcStatus(1)), odd),
        "abort.percentage.denominator: expected HUNDRED, TEN_THOUSAND or MILLION, found 3",
    );
    wrong(
        delay(Some(FaultDelaySecifier::FixedDelay(seconds(-1))), half()),
        "delay.fixed_delay: expected seconds from 0 to 315576000000 and nanos from 0 to 999999999, found -1 and 0",
    );
    let odd = |config: HttpFault, expected: &str| {
        let message = changed(|manager| manager.http_filters = vec![filter("f", any(&config)), router()]);
        let expected = format!("api_listener.api_listener.http_filters[0].typed_config.{expected}");
        assert_eq!(accepted(&listener("l", &message)).1, [expected]);
    };
    odd(delay(None, half()), "delay: has neither fixed_delay nor header_delay: nothing is delayed");
    odd(
        abort(None, half()),
        "abort: has none of http_status, grpc_status and header_abort: nothing is aborted",
    );
    odd(
        abort(Some(ErrorType::GrpcStatus(1)), None),
        "abort.percentage: is unset, which is 0: no call is affected",
    );
    odd(
        HttpFault { downstream_nodes: vec!["n".to_owned()], ..HttpFault::default() },
        "downstream_nodes: is ignored, as gRPC does: faults are injected by percentage only (A33)",
    );
}

/// VAL-L3: `xff_num_trusted_hops` and `original_ip_detection_extensions` must be unset.
#[test]
fn peers_are_direct() {
    assert_eq!(
        manager_problems(|manager| {
            manager.xff_num_trusted_hops = 1;
            manager.original_ip_detection_extensions = vec![TypedExtensionConfig::default()];
        }),
        [
            "hcm.xff_num_trusted_hops: expected 0, found 1",
            "hcm.original_ip_detection_extensions: must be empty, found 1"
        ]
    );
}

/// RT-1: `max_stream_duration` of the listener is the default of its routes.
#[test]
fn the_longest_stream() {
    let with = |max_stream_duration, idle_timeout| {
        listener(
            "l",
            &changed(|manager| {
                manager.common_http_protocol_options =
                    Some(HttpProtocolOptions { idle_timeout, max_stream_duration });
            }),
        )
    };
    assert_eq!(accepted(&listener_with_rds("l", "r")).0.max_stream_duration, None);
    assert_eq!(accepted(&with(Some(seconds(7)), None)).0.max_stream_duration, Some(Duration::from_secs(7)));
    let (listener, warnings) = accepted(&with(None, Some(seconds(1))));
    assert_eq!(listener.max_stream_duration, None);
    assert_eq!(
        warnings,
        ["api_listener.api_listener.common_http_protocol_options.idle_timeout: is ignored, as gRPC does"]
    );
    assert_eq!(problems(&with(Some(seconds(-7)), None)).len(), 1);
}

/// VAL-X1: all errors of a listener are reported together, those of inline routes included.
#[test]
fn all_errors_are_reported_together() {
    let mut routes = route_config("", "");
    routes.virtual_hosts[0].domains = vec!["a*b".to_owned()];
    let mut message = listener(
        "",
        &changed(|manager| {
            manager.route_specifier = Some(RouteSpecifier::RouteConfig(routes));
            manager.http_filters = vec![fault("")];
            manager.xff_num_trusted_hops = 1;
        }),
    );
    message.name = String::new();
    let told: Vec<_> = problems(&message)
        .iter()
        .map(|line| line.split(": ").next().unwrap().replace("api_listener.api_listener", "hcm"))
        .collect();
    assert_eq!(
        told,
        [
            "name",
            "hcm.route_config.virtual_hosts[0].domains[0]",
            "hcm.route_config.virtual_hosts[0].routes[0].route.cluster",
            "hcm.http_filters[0].name",
            "hcm.http_filters[0]",
            "hcm.xff_num_trusted_hops",
        ]
    );
}
