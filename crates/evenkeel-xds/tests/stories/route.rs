//! Route configurations: rejected resources, skipped routes, and parsed routes.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{Code, PickArgs, Registry};
use evenkeel_proto::envoy::config::core::v3::{RuntimeFractionalPercent, TypedExtensionConfig};
use evenkeel_proto::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use evenkeel_proto::envoy::config::route::v3::retry_policy::RetryBackOff;
use evenkeel_proto::envoy::config::route::v3::route::Action;
use evenkeel_proto::envoy::config::route::v3::route_action::hash_policy::{self, PolicySpecifier};
use evenkeel_proto::envoy::config::route::v3::route_action::{
    ClusterSpecifier, HashPolicy, HostRewriteSpecifier, MaxStreamDuration,
};
use evenkeel_proto::envoy::config::route::v3::route_match::{ConnectMatcher, PathSpecifier};
use evenkeel_proto::envoy::config::route::v3::weighted_cluster::ClusterWeight;
use evenkeel_proto::envoy::config::route::v3::{
    ClusterSpecifierPlugin, DirectResponseAction, FilterConfig, HeaderMatcher, NonForwardingAction,
    QueryParameterMatcher, RedirectAction, RetryPolicy, Route, RouteAction, RouteConfiguration, RouteMatch,
    WeightedCluster,
};
use evenkeel_proto::envoy::extensions::filters::http::fault::v3::HttpFault;
use evenkeel_proto::envoy::extensions::filters::http::router::v3::Router;
use evenkeel_proto::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use evenkeel_proto::envoy::r#type::matcher::v3::{RegexMatchAndSubstitute, RegexMatcher, StringMatcher};
use evenkeel_proto::envoy::r#type::v3::{FractionalPercent, Int64Range};
use evenkeel_proto::prost::{Message as _, Name};
use evenkeel_proto::prost_types::{Any, Duration as ProtoDuration};
use evenkeel_proto::{udpa, xds};
use evenkeel_xds::ValidationErrors;
use evenkeel_xds::bootstrap::{ServerConfig, ServerFeatures};
use evenkeel_xds::resource::{
    ParsedResource, RejectedResource, Resource, ResourceParser, ResourceType, RouteConfig, VirtualHost,
};
use evenkeel_xds::routing::{FilterOverride, RouteAction as Kept, XdsRetryPolicy as Retry};
use proptest::prelude::*;
use testkit::resources::{any, route, route_config, virtual_host};

/// Parses a resource from a server that may rewrite authorities or not.
pub(crate) fn parse_with<M: Name>(
    kind: ResourceType,
    message: &M,
    trusted: bool,
    change: impl FnOnce(&mut ResourceParser),
) -> Result<ParsedResource, RejectedResource> {
    parse_any(kind, &any(message), trusted, change)
}

pub(crate) fn parse_any(
    kind: ResourceType,
    any: &Any,
    trusted: bool,
    change: impl FnOnce(&mut ResourceParser),
) -> Result<ParsedResource, RejectedResource> {
    let features = ServerFeatures { trusted_xds_server: trusted, ..ServerFeatures::default() };
    let server = ServerConfig { features, ..ServerConfig::insecure("xds.test:443") };
    let mut parser = ResourceParser::new(Registry::standard());
    change(&mut parser);
    parser.parse(kind, any, &server)
}

fn parse(config: &RouteConfiguration) -> Result<ParsedResource, RejectedResource> {
    parse_with(ResourceType::RouteConfig, config, false, |_| ())
}

/// Returns the config and the warnings of a valid resource.
pub(crate) fn accepted(config: &RouteConfiguration) -> (Arc<RouteConfig>, Vec<String>) {
    match parse(config).expect("a good resource") {
        ParsedResource { resource: Resource::RouteConfig(config), warnings, .. } => (config, warnings),
        other => panic!("not a route configuration: {other:?}"),
    }
}

/// Returns the errors of a resource, one per line, or nothing if it is valid.
pub(crate) fn told(result: Result<ParsedResource, RejectedResource>) -> Vec<String> {
    let problems = result.err().map(|rejected| rejected.problems);
    problems.iter().flat_map(ValidationErrors::iter).map(ToString::to_string).collect()
}

fn problems(config: &RouteConfiguration) -> Vec<String> {
    told(parse(config))
}

/// Returns a config with these routes in one virtual host for every domain.
pub(crate) fn routes(routes: impl IntoIterator<Item = Route>) -> RouteConfiguration {
    RouteConfiguration {
        virtual_hosts: vec![virtual_host("*", routes.into_iter().collect())],
        ..route_config("r", "unused")
    }
}

/// Returns a route to `cluster` with a changed match.
pub(crate) fn matching(change: impl FnOnce(&mut RouteMatch)) -> Route {
    let mut route = route("/", "c");
    change(route.r#match.as_mut().expect("testkit makes one"));
    route
}

/// Returns a route for every path with a changed action.
pub(crate) fn acting(change: impl FnOnce(&mut RouteAction)) -> Route {
    let mut route = route("/", "c");
    match route.action.as_mut() {
        Some(Action::Route(action)) => change(action),
        other => panic!("testkit changed: {other:?}"),
    }
    route
}

/// Returns the errors of a config with this one route, without the path to the route.
fn route_problems(route: Route) -> Vec<String> {
    let told = problems(&routes([route]));
    told.iter().map(|line| line.replace("virtual_hosts[0].routes[0].", "")).collect()
}

/// Returns the parsed routes and the warnings.
fn left(config: &RouteConfiguration) -> (Vec<String>, Vec<String>) {
    let (config, warnings) = accepted(config);
    (config.virtual_hosts[0].routes.iter().map(ToString::to_string).collect(), warnings)
}

pub(crate) fn regex(pattern: &str) -> RegexMatcher {
    RegexMatcher { regex: pattern.to_owned(), ..RegexMatcher::default() }
}

pub(crate) fn header(name: &str, test: HeaderMatchSpecifier) -> HeaderMatcher {
    HeaderMatcher { name: name.to_owned(), header_match_specifier: Some(test), ..HeaderMatcher::default() }
}

pub(crate) fn seconds(seconds: i64) -> ProtoDuration {
    ProtoDuration { seconds, nanos: 0 }
}

fn millis(millis: i32) -> ProtoDuration {
    ProtoDuration { seconds: 0, nanos: millis * 1_000_000 }
}

/// VAL-R1: a route without a valid match is rejected.
#[test]
fn a_route_must_have_a_valid_match() {
    let check = |change: fn(&mut RouteMatch), expected: &str| {
        assert_eq!(route_problems(matching(change)), [expected]);
    };
    assert_eq!(route_problems(Route { r#match: None, ..route("/", "c") }), ["match: is required"]);
    // The deprecated `regex` (field 3) is not decoded, so nothing is set.
    check(|m| m.path_specifier = None, "match: expected prefix, path or safe_regex, found none of these");
    check(
        |m| m.path_specifier = Some(PathSpecifier::ConnectMatcher(ConnectMatcher {})),
        "match: expected prefix, path or safe_regex, found connect_matcher",
    );
    check(
        |m| m.path_specifier = Some(PathSpecifier::PathSeparatedPrefix("/a".to_owned())),
        "match: expected prefix, path or safe_regex, found path_separated_prefix",
    );
    check(
        |m| m.path_specifier = Some(PathSpecifier::SafeRegex(regex("a(b"))),
        "match.safe_regex.regex: \"a(b\" is not a valid regular expression: \"unclosed group\"",
    );
    check(
        |m| m.path_specifier = Some(PathSpecifier::SafeRegex(regex("a)|(b"))),
        "match.safe_regex.regex: \"a)|(b\" is not a valid regular expression: \"unopened group\"",
    );
    // The deprecated `regex_match` (field 5) is not decoded either.
    check(
        |m| m.headers = vec![HeaderMatcher { name: "x".to_owned(), ..HeaderMatcher::default() }],
        "match.headers[0]: expected one of exact_match, safe_regex_match, range_match, present_match, prefix_match, \
         suffix_match, contains_match and string_match, found none of these",
    );
    check(
        |m| m.headers = vec![header("", HeaderMatchSpecifier::PresentMatch(true))],
        "match.headers[0].name: must not be empty",
    );
    check(
        |m| m.headers = vec![header("x", HeaderMatchSpecifier::SafeRegexMatch(regex("[")))],
        "match.headers[0].safe_regex_match.regex: \"[\" is not a valid regular expression: \"unclosed character class\"",
    );
    check(
        |m| m.headers = vec![header("x", HeaderMatchSpecifier::StringMatch(StringMatcher::default()))],
        "match.headers[0].string_match: expected exact, prefix, suffix, contains or safe_regex, found none of these",
    );
    check(
        |m| {
            let custom = MatchPattern::Custom(xds::core::v3::TypedExtensionConfig::default());
            let custom = StringMatcher { match_pattern: Some(custom), ignore_case: false };
            m.headers = vec![header("x", HeaderMatchSpecifier::StringMatch(custom))];
        },
        "match.headers[0].string_match.custom: is not supported",
    );
    check(
        |m| {
            let empty =
                StringMatcher { match_pattern: Some(MatchPattern::Prefix(String::new())), ignore_case: true };
            m.headers = vec![header("x", HeaderMatchSpecifier::StringMatch(empty))];
        },
        "match.headers[0].string_match.prefix: must not be empty",
    );
    check(
        |m| m.runtime_fraction = Some(RuntimeFractionalPercent::default()),
        "match.runtime_fraction.default_value: is required",
    );
    check(
        |m| {
            let odd = FractionalPercent { numerator: 1, denominator: 7 };
            m.runtime_fraction =
                Some(RuntimeFractionalPercent { default_value: Some(odd), runtime_key: String::new() });
        },
        "match.runtime_fraction.default_value.denominator: expected HUNDRED, TEN_THOUSAND or MILLION, found 7",
    );
}

/// fault 38: one regular expression has a size limit, which the error names.
#[test]
fn a_regular_expression_has_a_limit() {
    let bomb =
        || matching(|m| m.path_specifier = Some(PathSpecifier::SafeRegex(regex("((a{100}){100}){100}"))));
    assert_eq!(
        route_problems(bomb()),
        [
            "match.safe_regex.regex: \"((a{100}){100}){100}\" takes more than 10485760 bytes when compiled; at most that \
          many are allowed"
        ]
    );
    let long = format!("({}){{1000}}", "ab".repeat(1_000));
    let shown =
        &route_problems(matching(|m| m.path_specifier = Some(PathSpecifier::SafeRegex(regex(&long)))))[0];
    assert!(shown.len() < 300, "a long pattern is cut: {shown}");
}

/// fault 38: the regular expressions of one resource share a size limit.
#[test]
fn the_regular_expressions_of_a_resource_share_a_limit() {
    let bombs = |pattern: fn(usize) -> String, count: usize| {
        let route = |i| matching(|m| m.path_specifier = Some(PathSpecifier::SafeRegex(regex(&pattern(i)))));
        let config = routes((0..count).map(route));
        told(parse_with(ResourceType::RouteConfig, &config, false, |parser| {
            parser.limits.regex_bytes = 64 << 10;
        }))
    };
    let together = "the regular expressions of one resource exceed 1048576 bytes in total when compiled";
    let too_big = bombs(|i| format!("x{i}(a{{100}}){{100}}"), 1_000);
    assert!(too_big[15].contains("takes more than 65536 bytes"), "{too_big:?}");
    assert!(too_big[16].contains(together), "{too_big:?}");
    let many = bombs(|i| format!("x{i}a{{200}}"), 1_000);
    assert!(many[0].contains(together), "{many:?}");
    // A repeated expression counts once.
    assert_eq!(bombs(|_| "xa{200}".to_owned(), 1_000), [""; 0]);
}

/// VAL-R2: routes that gRPC cannot serve are skipped with a warning.
#[test]
fn routes_that_grpc_cannot_serve_are_skipped() {
    let by = |specifier: Option<ClusterSpecifier>| acting(|action| action.cluster_specifier = specifier);
    let query = QueryParameterMatcher { name: "q".to_owned(), ..QueryParameterMatcher::default() };
    let config = routes([
        matching(|m| m.query_parameters = vec![query.clone()]),
        by(None),
        by(Some(ClusterSpecifier::ClusterHeader("x-cluster".to_owned()))),
        route("/left", "left"),
        // The rest of a skipped route is not validated.
        matching(|m| {
            m.query_parameters = vec![query.clone()];
            m.path_specifier = None;
        }),
        acting(|action| {
            action.cluster_specifier = None;
            action.retry_policy = Some(RetryPolicy { num_retries: Some(0), ..RetryPolicy::default() });
        }),
    ]);
    let (left, warnings) = left(&config);
    assert_eq!(left, ["path prefix \"/left\" -> cluster \"left\""]);
    assert_eq!(
        warnings,
        [
            "virtual_hosts[0].routes[0].match.query_parameters: never match in gRPC: the route is skipped",
            "virtual_hosts[0].routes[1].route: has no supported cluster specifier: the route is skipped",
            "virtual_hosts[0].routes[2].route.cluster_header: is not supported: the route is skipped",
            "virtual_hosts[0].routes[4].match.query_parameters: never match in gRPC: the route is skipped",
            "virtual_hosts[0].routes[5].route: has no supported cluster specifier: the route is skipped",
        ]
    );
}

/// An empty range matches no value, or every value if inverted. It produces a warning.
#[test]
fn an_empty_header_range_is_warned_about() {
    let range = |start, end| {
        let range = HeaderMatchSpecifier::RangeMatch(Int64Range { start, end });
        matching(|m| m.headers = vec![header("x", range)])
    };
    let (left, warnings) = left(&routes([range(1, 2), range(2, 1), range(5, 5), range(i64::MIN, i64::MAX)]));
    assert_eq!(left.len(), 4, "routes stay, as in Envoy and gRPC");
    assert_eq!(
        warnings,
        [
            "virtual_hosts[0].routes[1].match.headers[0].range_match: no number is in [2, 1): end is exclusive",
            "virtual_hosts[0].routes[2].match.headers[0].range_match: no number is in [5, 5): end is exclusive",
        ]
    );
}

/// VAL-R2: a route to an optional plugin of unknown type is skipped. A required one rejects the resource.
#[test]
fn cluster_specifier_plugins_are_not_supported() {
    let plugin = |name: &str, is_optional| ClusterSpecifierPlugin {
        extension: Some(TypedExtensionConfig {
            name: name.to_owned(),
            typed_config: Some(Any {
                type_url: "type.googleapis.com/grpc.lookup.Rls".to_owned(),
                value: vec![],
            }),
        }),
        is_optional,
    };
    let config = |plugins: Vec<ClusterSpecifierPlugin>| RouteConfiguration {
        cluster_specifier_plugins: plugins,
        ..routes([acting(|action| {
            action.cluster_specifier = Some(ClusterSpecifier::ClusterSpecifierPlugin("rls".to_owned()));
        })])
    };
    let (left, warnings) = left(&config(vec![plugin("rls", true)]));
    assert_eq!(left, [""; 0]);
    let at = "virtual_hosts[0].routes[0].route.cluster_specifier_plugin";
    assert_eq!(warnings, [format!("{at}: \"rls\" is of an unknown type: the route is skipped")]);
    assert_eq!(
        problems(&config(vec![plugin("rls", false)])),
        [
            "cluster_specifier_plugins[0]: cluster specifier plugin \"rls\" has the unknown type \"grpc.lookup.Rls\""
        ]
    );
    assert_eq!(
        problems(&config(vec![plugin("other", true)])),
        [format!("{at}: \"rls\" is not among cluster_specifier_plugins")]
    );
}

/// VAL-R2: a matching route with an action that is not for clients is kept, so its calls fail and do not reach later
/// routes (A36).
#[test]
fn actions_that_are_not_for_clients_stay() {
    let with = |action: Option<Action>| Route { action, ..route("/", "c") };
    let config = routes([
        with(Some(Action::NonForwardingAction(NonForwardingAction {}))),
        with(Some(Action::Redirect(RedirectAction {}))),
        with(Some(Action::DirectResponse(DirectResponseAction { status: 200 }))),
        with(None),
    ]);
    let (left, warnings) = left(&config);
    assert_eq!(
        left,
        [
            "path prefix \"/\" -> non_forwarding_action, which is not for clients",
            "path prefix \"/\" -> redirect, which is not for clients",
            "path prefix \"/\" -> direct_response, which is not for clients",
            "path prefix \"/\" -> no supported action, which is not for clients",
        ]
    );
    assert_eq!(
        warnings[0],
        "virtual_hosts[0].routes[0]: has non_forwarding_action: calls that match it fail (A36)"
    );
}

fn weighted(clusters: &[(&str, u32)]) -> WeightedCluster {
    let cluster = |(name, weight): &(&str, u32)| ClusterWeight {
        name: (*name).to_owned(),
        weight: Some(*weight),
        ..ClusterWeight::default()
    };
    WeightedCluster { clusters: clusters.iter().map(cluster).collect(), total_weight: None }
}

pub(crate) fn to_weighted(clusters: &[(&str, u32)]) -> Route {
    acting(|action| action.cluster_specifier = Some(ClusterSpecifier::WeightedClusters(weighted(clusters))))
}

/// VAL-R3: clusters of weight 0 are dropped. A route without a positive weight, or with too large a sum, is rejected.
#[test]
fn weighted_clusters() {
    let config = routes([to_weighted(&[("a", 1), ("", 0), ("b", u32::MAX - 1)]), to_weighted(&[("b", 7)])]);
    let (config, _) = accepted(&config);
    let host = &config.virtual_hosts[0];
    assert_eq!(
        host.routes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "path prefix \"/\" -> cluster \"a\" (1), cluster \"b\" (4294967294)",
            "path prefix \"/\" -> cluster \"b\""
        ]
    );
    assert_eq!(host.clusters.iter().map(|name| &**name).collect::<Vec<_>>(), ["a", "b"]);
    let check = |clusters: &[(&str, u32)], expected: &str| {
        assert_eq!(route_problems(to_weighted(clusters)), [format!("route.weighted_clusters{expected}")]);
    };
    check(&[], ": expected at least one cluster with a weight above 0, found none");
    check(&[("a", 0), ("b", 0)], ": expected at least one cluster with a weight above 0, found none");
    check(&[("a", 1), ("b", u32::MAX)], ": the weights sum up to 4294967296; at most 4294967295 is allowed");
    check(&[("", 1)], ".clusters[0].name: must not be empty");
    let by_header = acting(|action| {
        let mut clusters = weighted(&[("", 1)]);
        clusters.clusters[0].cluster_header = "x".to_owned();
        action.cluster_specifier = Some(ClusterSpecifier::WeightedClusters(clusters));
    });
    assert_eq!(
        route_problems(by_header),
        ["route.weighted_clusters.clusters[0].cluster_header: is not supported: the cluster must be named"]
    );
    assert_eq!(route_problems(route("/", "")), ["route.cluster: must not be empty"]);
    let total = acting(|action| {
        let clusters = WeightedCluster { total_weight: Some(100), ..weighted(&[("a", 1)]) };
        action.cluster_specifier = Some(ClusterSpecifier::WeightedClusters(clusters));
    });
    let (_, warnings) = left(&routes([total]));
    assert_eq!(
        warnings,
        [
            "virtual_hosts[0].routes[0].route.weighted_clusters.total_weight: is ignored: the sum of the weights is used"
        ]
    );
}

fn retry_on(codes: &str) -> RetryPolicy {
    RetryPolicy { retry_on: codes.to_owned(), ..RetryPolicy::default() }
}

fn back_off(base: Option<ProtoDuration>, max: Option<ProtoDuration>) -> RetryPolicy {
    RetryPolicy {
        retry_back_off: Some(RetryBackOff { base_interval: base, max_interval: max }),
        ..retry_on("unavailable")
    }
}

fn retry_of(host: &VirtualHost, route: usize) -> Option<Arc<Retry>> {
    match &host.routes[route].action {
        Kept::Forward(forward) => forward.retry.clone(),
        other => panic!("{other:?}"),
    }
}

/// VAL-R4: retry policies are parsed, and invalid ones are rejected.
#[test]
fn retry_policies() {
    let check = |policy: RetryPolicy, expected: Option<(&[Code], u32, u64, u64)>| {
        let config = routes([acting(|action| action.retry_policy = Some(policy.clone()))]);
        let found = retry_of(&accepted(&config).0.virtual_hosts[0], 0);
        let expected = expected.map(|(codes, max_attempts, base, max)| {
            Arc::new(Retry {
                retry_on: codes.to_vec(),
                max_attempts,
                base_interval: Duration::from_micros(base),
                max_interval: Duration::from_micros(max),
            })
        });
        assert_eq!(found, expected, "{policy:?}");
    };
    let unavailable: &[Code] = &[Code::Unavailable];
    check(retry_on("unavailable"), Some((unavailable, 2, 25_000, 250_000)));
    check(
        retry_on("cancelled,deadline-exceeded,internal,resource-exhausted,unavailable"),
        Some((
            &[
                Code::Cancelled,
                Code::DeadlineExceeded,
                Code::Internal,
                Code::ResourceExhausted,
                Code::Unavailable,
            ],
            2,
            25_000,
            250_000,
        )),
    );
    // Istio mixes HTTP and gRPC conditions, with spaces and in any case.
    check(retry_on("connect-failure, Unavailable ,5xx,reset"), Some((unavailable, 2, 25_000, 250_000)));
    check(retry_on("5xx,gateway-error"), None);
    check(retry_on(""), None);
    for (retries, attempts) in [(1, 2), (3, 4), (4, 5), (5, 5), (u32::MAX, 5)] {
        let policy = RetryPolicy { num_retries: Some(retries), ..retry_on("unavailable") };
        check(policy, Some((unavailable, attempts, 25_000, 250_000)));
    }
    check(back_off(Some(millis(30)), None), Some((unavailable, 2, 30_000, 300_000)));
    check(back_off(Some(millis(30)), Some(millis(30))), Some((unavailable, 2, 30_000, 30_000)));
    let micro = |micros: i32| ProtoDuration { seconds: 0, nanos: micros * 1_000 };
    check(back_off(Some(micro(1)), None), Some((unavailable, 2, 1_000, 10_000)));
    check(back_off(Some(micro(1)), Some(micro(2))), Some((unavailable, 2, 1_000, 1_000)));

    let wrong = |policy: RetryPolicy, expected: &[&str]| {
        let found = route_problems(acting(|action| action.retry_policy = Some(policy)));
        let expected: Vec<_> = expected.iter().map(|line| format!("route.retry_policy.{line}")).collect();
        assert_eq!(found, expected);
    };
    let none = RetryPolicy { num_retries: Some(0), ..retry_on("unavailable") };
    wrong(none, &["num_retries: expected 1 or more, found 0"]);
    wrong(
        RetryPolicy { num_retries: Some(0), ..retry_on("5xx") },
        &["num_retries: expected 1 or more, found 0"],
    );
    wrong(back_off(None, Some(millis(1))), &["retry_back_off.base_interval: is required"]);
    wrong(back_off(Some(millis(0)), None), &["retry_back_off.base_interval: must be above 0"]);
    wrong(
        back_off(Some(millis(0)), Some(millis(0))),
        &["retry_back_off.base_interval: must be above 0", "retry_back_off.max_interval: must be above 0"],
    );
    wrong(
        back_off(Some(millis(2)), Some(millis(1))),
        &["retry_back_off.max_interval: must not be below base_interval"],
    );
    wrong(
        back_off(Some(seconds(-1)), None),
        &[
            "retry_back_off.base_interval: expected seconds from 0 to 315576000000 and nanos from 0 to 999999999, found -1 \
           and 0",
        ],
    );
}

/// VAL-R4: the retry policy of the virtual host is the default. A route's own policy replaces it, even if it retries
/// nothing.
#[test]
fn a_virtual_host_gives_a_default_retry_policy() {
    let own = |codes: &str| acting(|action| action.retry_policy = Some(retry_on(codes)));
    let mut config = routes([route("/", "c"), own("internal"), own("5xx")]);
    config.virtual_hosts[0].retry_policy = Some(retry_on("unavailable"));
    let (parsed, warnings) = accepted(&config);
    let codes = |i| retry_of(&parsed.virtual_hosts[0], i).map(|policy| policy.retry_on.clone());
    assert_eq!(codes(0), Some(vec![Code::Unavailable]));
    assert_eq!(codes(1), Some(vec![Code::Internal]));
    assert_eq!(codes(2), None);
    assert_eq!(
        warnings,
        [
            "virtual_hosts[0].routes[2].route.retry_policy.retry_on: has no condition that gRPC supports (cancelled, \
          deadline-exceeded, internal, resource-exhausted, unavailable): nothing is retried"
        ]
    );
    config.virtual_hosts[0].retry_policy = Some(back_off(None, None));
    assert_eq!(
        problems(&config),
        ["virtual_hosts[0].retry_policy.retry_back_off.base_interval: is required"]
    );
}

/// Returns a filter config in the wrapper for overrides.
pub(crate) fn wrapped(config: Option<Any>, is_optional: bool, disabled: bool) -> Any {
    any(&FilterConfig { config, is_optional, disabled })
}

pub(crate) fn unknown_filter() -> Any {
    Any { type_url: "type.googleapis.com/acme.Teapot".to_owned(), value: vec![1, 2, 3] }
}

/// Returns a `TypedStruct` of each package, for an unknown filter.
pub(crate) fn typed_structs() -> [Any; 2] {
    let type_url = || "type.googleapis.com/acme.Teapot".to_owned();
    [
        any(&xds::r#type::v3::TypedStruct { type_url: type_url(), value: None }),
        any(&udpa::r#type::v1::TypedStruct { type_url: type_url(), value: None }),
    ]
}

/// VAL-R5: filter overrides are parsed, and invalid or unknown ones are rejected unless optional.
#[test]
fn overrides_of_filters() {
    let fault = || any(&HttpFault::default());
    let check = |config: Any, expected: Result<&str, &str>| {
        let mut config_ = routes([route("/", "c")]);
        config_.virtual_hosts[0].routes[0].typed_per_filter_config.insert("f".to_owned(), config.clone());
        let found = match parse(&config_) {
            Err(rejected) => Err(rejected.problems.to_string()),
            Ok(ParsedResource { resource: Resource::RouteConfig(parsed), .. }) => {
                Ok(match parsed.virtual_hosts[0].routes[0].overrides.get("f") {
                    Some(FilterOverride::Use(_)) => "use",
                    Some(FilterOverride::Off) => "off",
                    None => "none",
                    other => panic!("{other:?}"),
                })
            }
            other => panic!("{other:?}"),
        };
        let at = "virtual_hosts[0].routes[0].typed_per_filter_config[\"f\"]";
        assert_eq!(found, expected.map_err(|text| format!("{at}{text}")), "{config:?}");
    };
    check(fault(), Ok("use"));
    check(wrapped(Some(fault()), false, false), Ok("use"));
    check(wrapped(Some(fault()), false, true), Ok("off"));
    check(wrapped(None, false, true), Ok("off"));
    check(wrapped(None, true, false), Ok("none"));
    check(wrapped(None, false, false), Err(".config: is required"));
    check(unknown_filter(), Err(": has the unknown type \"acme.Teapot\""));
    check(
        wrapped(Some(unknown_filter()), false, false),
        Err(".config: has the unknown type \"acme.Teapot\""),
    );
    check(wrapped(Some(unknown_filter()), true, false), Ok("none"));
    for config in typed_structs() {
        check(config.clone(), Err(": has the unknown type \"acme.Teapot\" (in a TypedStruct)"));
        check(wrapped(Some(config), true, false), Ok("none"));
    }
    check(any(&Router::default()), Err(": the router has no overrides"));
    check(
        Any { value: vec![0xff], ..fault() },
        Err(": cannot be decoded: failed to decode Protobuf message: invalid varint"),
    );
}

/// VAL-R5: overrides are parsed in virtual hosts, routes and weighted clusters.
#[test]
fn overrides_are_read_at_every_level() {
    let bad = || [("f".to_owned(), unknown_filter())].into();
    let mut config = routes([acting(|action| {
        let mut clusters = weighted(&[("skipped", 0), ("a", 1)]);
        clusters.clusters.iter_mut().for_each(|cluster| cluster.typed_per_filter_config = bad());
        action.cluster_specifier = Some(ClusterSpecifier::WeightedClusters(clusters));
    })]);
    config.virtual_hosts[0].typed_per_filter_config = bad();
    config.virtual_hosts[0].routes[0].typed_per_filter_config = bad();
    let text = "typed_per_filter_config[\"f\"]: has the unknown type \"acme.Teapot\"";
    assert_eq!(
        problems(&config),
        [
            format!("virtual_hosts[0].{text}"),
            format!("virtual_hosts[0].routes[0].route.weighted_clusters.clusters[1].{text}"),
            format!("virtual_hosts[0].routes[0].{text}"),
        ]
    );
}

/// A81: the control plane may rewrite the authority only if the bootstrap trusts it.
#[test]
fn auto_host_rewrite_needs_trust() {
    let config = routes([acting(|action| {
        action.host_rewrite_specifier = Some(HostRewriteSpecifier::AutoHostRewrite(true));
    })]);
    for trusted in [true, false] {
        let parsed = parse_with(ResourceType::RouteConfig, &config, trusted, |_| ()).unwrap();
        let Resource::RouteConfig(routes) = parsed.resource else { panic!("not routes") };
        let Kept::Forward(forward) = &routes.virtual_hosts[0].routes[0].action else {
            panic!("not forwarded")
        };
        assert_eq!(forward.auto_host_rewrite, trusted);
        assert_eq!(parsed.warnings.is_empty(), trusted, "{:?}", parsed.warnings);
    }
}

/// Fields without effect produce warnings.
#[test]
fn fields_without_effect_are_warned_about() {
    let mut config = routes([
        acting(|action| {
            action.timeout = Some(seconds(3));
            action.retry_policy =
                Some(RetryPolicy { per_try_timeout: Some(seconds(1)), ..retry_on("unavailable") });
            action.hash_policy = vec![HashPolicy { policy_specifier: None, terminal: false }];
        }),
        // Istio sends a zero timeout with every route, which means no timeout.
        acting(|action| action.timeout = Some(seconds(0))),
        matching(|m| {
            m.headers = vec![HeaderMatcher {
                treat_missing_header_as_empty: true,
                ..header("x", HeaderMatchSpecifier::PresentMatch(true))
            }];
        }),
    ]);
    config.ignore_port_in_host_matching = true;
    config.typed_per_filter_config.insert("f".to_owned(), unknown_filter());
    let at = "virtual_hosts[0].routes";
    assert_eq!(
        accepted(&config).1,
        [
            "ignore_port_in_host_matching: is ignored, as gRPC does".to_owned(),
            "typed_per_filter_config: is ignored: overrides belong to virtual hosts, routes and weighted clusters (A39)"
                .to_owned(),
            format!("{at}[0].route.timeout: is ignored: gRPC uses only max_stream_duration (A31)"),
            format!("{at}[0].route.retry_policy.per_try_timeout: is ignored, as gRPC does (A44)"),
            format!(
                "{at}[0].route.hash_policy[0]: yields no hash: gRPC supports header, and filter_state with the key \
                 io.grpc.channel_id (A42)"
            ),
            format!("{at}[2].match.headers[0].treat_missing_header_as_empty: is ignored, as gRPC does"),
        ]
    );
    let many = accepted(&routes(vec![acting(|action| action.timeout = Some(seconds(3))); 1_000])).1;
    assert_eq!((many.len(), many.last().unwrap().as_str()), (33, "and 968 more warnings"));
}

/// RH-8: the regex rewrite of a hash policy is validated.
#[test]
fn hash_policies_are_checked() {
    let policy = |header_name: &str, rewrite: Option<(&str, &str)>| HashPolicy {
        policy_specifier: Some(PolicySpecifier::Header(hash_policy::Header {
            header_name: header_name.to_owned(),
            regex_rewrite: rewrite.map(|(pattern, substitution)| RegexMatchAndSubstitute {
                pattern: Some(regex(pattern)),
                substitution: substitution.to_owned(),
            }),
        })),
        terminal: false,
    };
    let check = |policy: HashPolicy, expected: &str| {
        let found = route_problems(acting(|action| action.hash_policy = vec![policy]));
        assert_eq!(found, [format!("route.hash_policy[0].header.{expected}")]);
    };
    check(policy("", None), "header_name: must not be empty");
    check(
        policy("x", Some(("(", ""))),
        "regex_rewrite.pattern.regex: \"(\" is not a valid regular expression: \"unclosed group\"",
    );
    for bad in ["\\2", "\\", "\\x", "a\\"] {
        let text = "expected text with \\\\ for a backslash and \\0 to \\1 for groups of the pattern";
        check(policy("x", Some(("(a)", bad))), &format!("regex_rewrite.substitution: {text}, found {bad:?}"));
    }
    let mut without = policy("x", Some(("a", "b")));
    if let Some(PolicySpecifier::Header(header)) = &mut without.policy_specifier {
        header.regex_rewrite.as_mut().unwrap().pattern = None;
    }
    check(without, "regex_rewrite.pattern: is required");
}

/// A28: a route is described by the text that `evenkeel explain` prints, with each header matcher and its case
/// sensitivity.
#[test]
fn header_tests_are_described() {
    let text = |pattern: MatchPattern, ignore_case: bool| {
        HeaderMatchSpecifier::StringMatch(StringMatcher { match_pattern: Some(pattern), ignore_case })
    };
    let range = HeaderMatchSpecifier::RangeMatch(Int64Range { start: -1, end: 9 });
    for (test, invert, expected) in [
        (text(MatchPattern::Exact("a".to_owned()), false), false, r#"exact "a""#),
        (text(MatchPattern::Exact("a".to_owned()), true), true, r#"not exact "a" in any case"#),
        (text(MatchPattern::Prefix("a".to_owned()), true), false, r#"prefix "a" in any case"#),
        (text(MatchPattern::Suffix("a".to_owned()), false), false, r#"suffix "a""#),
        (text(MatchPattern::Contains("a".to_owned()), false), false, r#"contains "a""#),
        (text(MatchPattern::Contains("a.b".to_owned()), true), false, r#"contains "a.b" in any case"#),
        (text(MatchPattern::SafeRegex(regex("a+")), false), false, r#"regex "a+""#),
        (range, false, "in [-1, 9)"),
        (HeaderMatchSpecifier::PresentMatch(true), false, "present"),
        (HeaderMatchSpecifier::PresentMatch(true), true, "not present"),
        (HeaderMatchSpecifier::PresentMatch(false), false, "absent"),
    ] {
        let matcher = HeaderMatcher { invert_match: invert, ..header("X-User", test) };
        let (left, _) = left(&routes([matching(|rule| rule.headers = vec![matcher])]));
        assert_eq!(left, [format!("path prefix \"/\" and header \"x-user\" {expected} -> cluster \"c\"")]);
    }
}

/// RH-7, RH-8: hash policies are described by the text that `evenkeel explain` prints, with the hash of a call if
/// there is one.
#[test]
fn hash_policies_are_described() {
    let header = |rewrite: Option<(&str, &str)>| {
        PolicySpecifier::Header(hash_policy::Header {
            header_name: "x-user".to_owned(),
            regex_rewrite: rewrite.map(|(pattern, substitution)| RegexMatchAndSubstitute {
                pattern: Some(regex(pattern)),
                substitution: substitution.to_owned(),
            }),
        })
    };
    let channel = hash_policy::FilterState { key: "io.grpc.channel_id".to_owned() };
    let cookie = PolicySpecifier::Cookie(hash_policy::Cookie::default());
    for (specifier, terminal, expected, hash) in [
        (header(None), false, r#"header "x-user""#, None),
        (header(None), true, r#"header "x-user", terminal"#, None),
        (header(Some(("a+", "b"))), false, r#"header "x-user" with "b" for "a+""#, None),
        (PolicySpecifier::FilterState(channel), false, "the channel", Some(7)),
        (cookie, false, "unsupported by gRPC", None),
    ] {
        let policy = HashPolicy { policy_specifier: Some(specifier), terminal };
        let (config, _) = accepted(&routes([acting(|action| action.hash_policy = vec![policy])]));
        let Kept::Forward(forward) = &config.virtual_hosts[0].routes[0].action else {
            panic!("not forwarded")
        };
        assert_eq!(forward.hash.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
        assert_eq!(forward.hash(&PickArgs::new("/s/m", 1), 7), hash, "{expected}");
    }
}

/// VAL-X1: all errors of a resource are reported together, each with its path.
#[test]
fn all_errors_are_reported_together() {
    let mut config = routes([
        Route { r#match: None, ..route("/", "c") },
        matching(|m| {
            m.path_specifier = None;
            m.headers = vec![header("", HeaderMatchSpecifier::SafeRegexMatch(regex("(")))];
        }),
        acting(|action| {
            action.cluster_specifier = Some(ClusterSpecifier::Cluster(String::new()));
            action.max_stream_duration = Some(MaxStreamDuration {
                max_stream_duration: Some(seconds(-1)),
                ..MaxStreamDuration::default()
            });
            action.retry_policy = Some(RetryPolicy { num_retries: Some(0), ..retry_on("unavailable") });
        }),
    ]);
    config.name = String::new();
    config.virtual_hosts[0].domains = vec!["a*b".to_owned(), String::new()];
    config.virtual_hosts.push(virtual_host("x", vec![]));
    config.virtual_hosts[1].domains.clear();
    let paths: Vec<_> =
        problems(&config).iter().map(|line| line.split(": ").next().unwrap().to_owned()).collect();
    assert_eq!(
        paths,
        [
            "name",
            "virtual_hosts[0].domains[0]",
            "virtual_hosts[0].domains[1]",
            "virtual_hosts[0].routes[0].match",
            "virtual_hosts[0].routes[1].match",
            "virtual_hosts[0].routes[1].match.headers[0].name",
            "virtual_hosts[0].routes[1].match.headers[0].safe_regex_match.regex",
            "virtual_hosts[0].routes[2].route.cluster",
            "virtual_hosts[0].routes[2].route.max_stream_duration.max_stream_duration",
            "virtual_hosts[0].routes[2].route.retry_policy.num_retries",
            "virtual_hosts[1].domains",
        ]
    );
}

/// VAL-X1, VAL-R7: invalid and duplicate domains are rejected.
#[test]
fn domains_are_checked() {
    let with = |domains: &[&str]| {
        let mut config = route_config("r", "c");
        config.virtual_hosts[0].domains = domains.iter().map(|domain| (*domain).to_owned()).collect();
        config
    };
    for bad in ["a*b", "*a*", "**", "a**"] {
        assert_eq!(
            problems(&with(&["ok", bad])),
            [format!("virtual_hosts[0].domains[1]: expected a name, *suffix, prefix* or *, found {bad:?}")]
        );
    }
    assert_eq!(problems(&with(&[""])), ["virtual_hosts[0].domains[0]: must not be empty"]);
    assert_eq!(
        problems(&with(&["a".repeat(5_000).as_str()])),
        ["virtual_hosts[0].domains[0]: has 5000 bytes; at most 4096 are allowed"]
    );
    let (_, warnings) = accepted(&with(&["a", "A", "*", "*"]));
    assert_eq!(
        warnings,
        [
            "virtual_hosts[0].domains[1]: \"A\" occurs twice: the first one is used",
            "virtual_hosts[0].domains[3]: \"*\" occurs twice: the first one is used",
        ]
    );
}

/// Returns a config with one virtual host per domain, named like the domain.
fn hosts<'a>(domains: impl IntoIterator<Item = &'a str>) -> RouteConfiguration {
    RouteConfiguration {
        virtual_hosts: domains.into_iter().map(|domain| virtual_host(domain, vec![route("", "c")])).collect(),
        ..route_config("r", "c")
    }
}

/// VAL-R7: the most specific domain selects the virtual host.
#[test]
fn the_best_domain_wins() {
    let find = |domains: &[&str], authority: &str| -> Option<String> {
        let (config, _) = accepted(&hosts(domains.iter().copied()));
        config.virtual_host(authority).map(|host| host.domains[0].clone())
    };
    let all = ["*", "foo.*", "foo.bar.*", "*.com", "*.bar.com", "foo.bar.com", "*-x.bar.com"];
    for (authority, expected) in [
        ("foo.bar.com", "foo.bar.com"),
        ("FOO.bar.COM", "foo.bar.com"),
        ("a.bar.com", "*.bar.com"),
        ("a-x.bar.com", "*-x.bar.com"),
        ("-x.bar.com", "*.bar.com"),
        ("a.com", "*.com"),
        // A suffix match takes precedence over a prefix match of any length.
        ("foo.bar.x.com", "*.com"),
        ("foo.bar.org", "foo.bar.*"),
        ("foo.org", "foo.*"),
        ("foo.", "*"),
        ("", "*"),
        ("bar.org:443", "*"),
        ("éfoo", "*"),
    ] {
        assert_eq!(find(&all, authority).as_deref(), Some(expected), "{authority}");
    }
    assert_eq!(find(&all[1..], "org"), None);
    assert_eq!(find(&["*.com"], ".com"), None, "an asterisk stands for something");
    assert_eq!(find(&["A.Com"], "a.com").as_deref(), Some("A.Com"));
    assert_eq!(find(&["*é"], "è"), None);
}

/// Returns the domain that VAL-R7 selects, in a direct implementation of its rules.
fn best<'a>(domains: &'a [String], authority: &str) -> Option<&'a String> {
    let matched = |domain: &&String| match (domain.strip_prefix('*'), domain.strip_suffix('*')) {
        (Some(""), _) => true,
        (Some(suffix), _) => authority.len() > suffix.len() && authority.ends_with(suffix),
        (_, Some(prefix)) => authority.len() > prefix.len() && authority.starts_with(prefix),
        _ => authority == domain.as_str(),
    };
    let rank = |domain: &str| match (domain, domain.starts_with('*'), domain.ends_with('*')) {
        ("*", ..) => 0,
        (_, true, _) => 2,
        (_, _, true) => 1,
        _ => 3,
    };
    domains.iter().filter(matched).max_by_key(|domain| (rank(domain), domain.len()))
}

proptest! {
    /// VAL-R7: domain selection equals the reference implementation, for any set of domains.
    #[test]
    fn domain_selection_follows_the_rules(
        domains in prop::collection::btree_set("[ab.]{1,4}|\\*[ab.]{0,3}|[ab.]{1,3}\\*", 1..20),
        authorities in prop::collection::vec("[ab.]{0,5}", 20),
    ) {
        let domains: Vec<String> = domains.into_iter().collect();
        let (config, _) = accepted(&hosts(domains.iter().map(String::as_str)));
        for authority in &authorities {
            let found = config.virtual_host(authority).map(|host| &host.domains[0]);
            prop_assert_eq!(found, best(&domains, authority), "{} in {:?}", authority, domains);
        }
    }

    /// fault 36: changed bytes are accepted or rejected without a panic.
    #[test]
    fn changed_bytes_do_not_panic(at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
        let message = routes([
            to_weighted(&[("a", 1), ("b", 2)]),
            matching(|m| m.headers = vec![header("x", HeaderMatchSpecifier::SafeRegexMatch(regex("a+")))]),
            acting(|action| action.retry_policy = Some(back_off(Some(millis(3)), Some(millis(9))))),
        ]);
        let mut bytes = message.encode_to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes.truncate(cut.index(bytes.len() * 2));
        let _ = parse_any(ResourceType::RouteConfig, &Any { value: bytes, ..any(&message) }, false, |_| ());
    }
}

/// Thousands of virtual hosts and routes are parsed and searched quickly.
#[test]
fn many_hosts_and_routes() {
    let domains: Vec<String> = (0..5_000).map(|i| format!("*.host-{i}.test")).collect();
    let (config, _) = accepted(&hosts(domains.iter().map(String::as_str)));
    for (i, domain) in domains.iter().enumerate() {
        let host = config.virtual_host(&format!("x.host-{i}.test")).expect("a host");
        assert_eq!(&host.domains, std::slice::from_ref(domain));
    }
    let many = routes((0..20_000).map(|i| route(&format!("/s/{i}"), &format!("c{}", i % 5_000))));
    assert_eq!(accepted(&many).0.virtual_hosts[0].clusters.len(), 5_000);
}

/// VAL-X1: the number of routes per resource is limited, over all virtual hosts.
#[test]
fn the_number_of_routes_has_a_limit() {
    let config = hosts(["a", "b", "c"]);
    let with = |routes| {
        told(parse_with(ResourceType::RouteConfig, &config, false, |parser| parser.limits.routes = routes))
    };
    assert_eq!(with(3), [""; 0]);
    assert_eq!(with(2), ["virtual_hosts: there are 3 routes; at most 2 are allowed"]);
}

/// Text from the resource is escaped and truncated in errors.
#[test]
fn foreign_text_is_escaped_and_cut() {
    let mut name = "\u{1b}[31m".to_owned();
    let _ = write!(name, "{}", "é".repeat(10_000));
    let config = routes([acting(|action| {
        action.cluster_specifier = Some(ClusterSpecifier::ClusterSpecifierPlugin(name));
    })]);
    let told = problems(&config).remove(0);
    assert!(told.contains("\\u{1b}[31mé") && told.len() < 400, "{told}");
}
