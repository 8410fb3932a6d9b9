//! Routing of one call: route, cluster, timeout, retry policy and hash.

mod clusters;
mod fault;
mod matching;
mod race;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{PickArgs, Code, RequestMetadata, Status, hash};
use evenkeel_proto::envoy::config::core::v3::HttpProtocolOptions;
use evenkeel_proto::envoy::config::route::v3::route::Action;
use evenkeel_proto::envoy::config::route::v3::route_action::hash_policy::{self, PolicySpecifier};
use evenkeel_proto::envoy::config::route::v3::route_action::{
    ClusterSpecifier, HashPolicy, HostRewriteSpecifier, MaxStreamDuration,
};
use evenkeel_proto::envoy::config::route::v3::weighted_cluster::ClusterWeight;
use evenkeel_proto::envoy::config::route::v3::{
    NonForwardingAction, RetryPolicy, Route, RouteAction, RouteConfiguration, WeightedCluster,
};
use evenkeel_proto::envoy::extensions::filters::http::fault::v3::HttpFault;
use evenkeel_proto::envoy::extensions::filters::http::router::v3::Router;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use evenkeel_proto::envoy::r#type::matcher::v3::RegexMatchAndSubstitute;
use evenkeel_proto::prost_types::Any;
use evenkeel_xds::resource::{Listener, Resource, ResourceType, RouteSource};
use evenkeel_xds::routing::{ActiveClusters, ExplainedRoute, XdsHttpFilter, RouteOutcome, SelectedRoute, ConfigSelector};
use testkit::resources::{any, filter, listener, manager, route};

use crate::listener::accepted;
use crate::route::{
    acting, header, matching as matching_route, parse_with, regex, routes, seconds, to_weighted, wrapped,
};

const CHANNEL_ID: u64 = 0xc0ff_ee00;

/// Headers of a call, in order. Values of one name are joined.
#[derive(Clone, Copy)]
struct Sent<'a>(&'a [(&'a str, &'a str)]);

impl RequestMetadata for Sent<'_> {
    fn value(&self, name: &str) -> Option<Cow<'_, str>> {
        let values: Vec<&str> =
            self.0.iter().filter(|(key, _)| *key == name).map(|(_, value)| *value).collect();
        (!values.is_empty()).then(|| values.join(",").into())
    }
}

fn quiet() -> ActiveClusters {
    ActiveClusters::new(Arc::new(|| ()))
}

/// Returns a selector for the routes of one virtual host, under a listener with these filters.
fn selector_with(
    config: RouteConfiguration,
    filters: Vec<HttpFilter>,
    default: Option<i64>,
    clusters: &ActiveClusters,
) -> ConfigSelector {
    let mut manager = manager(RouteSpecifier::RouteConfig(config));
    manager.http_filters.splice(0..0, filters);
    manager.common_http_protocol_options = default.map(|default| HttpProtocolOptions {
        max_stream_duration: Some(seconds(default)),
        idle_timeout: None,
    });
    let (listener, _) = accepted(&listener("l", &manager));
    selector_of(&listener, clusters)
}

fn selector_of(listener: &Listener, clusters: &ActiveClusters) -> ConfigSelector {
    let RouteSource::Inline(config) = &listener.routes else { panic!("not inline") };
    let host = config.virtual_host("any").expect("a host for every domain");
    ConfigSelector::new(host.clone(), listener, clusters, CHANNEL_ID)
}

fn selector(list: impl IntoIterator<Item = Route>) -> ConfigSelector {
    selector_with(routes(list), vec![], None, &quiet())
}

/// Returns the cluster of a call, or its status.
fn way(
    selector: &ConfigSelector,
    path: &str,
    headers: &[(&str, &str)],
    entropy: u64,
) -> Result<String, Status> {
    let headers = Sent(headers);
    let call = PickArgs::new(path, entropy).with_headers(&headers);
    selector.select(&call).map(|selected| selected.cluster().name().to_string())
}

fn select(selector: &ConfigSelector, headers: &[(&str, &str)]) -> SelectedRoute {
    let headers = Sent(headers);
    selector.select(&PickArgs::new("/s/m", 1).with_headers(&headers)).expect("a route")
}

/// A28: the first matching route is used, not the most specific one.
#[test]
fn the_first_route_wins() {
    let selector = selector([route("/s/a", "one"), route("/s/ab", "two"), route("/s/", "three")]);
    for (path, cluster) in [("/s/ab", "one"), ("/s/a", "one"), ("/s/b", "three")] {
        assert_eq!(way(&selector, path, &[], 0).unwrap(), cluster);
    }
    let selected = selector.select(&PickArgs::new("/s/b", 0)).unwrap();
    assert_eq!(selected.cluster().child(), "cluster:three");
}

/// CM-8: a call without a matching route fails with UNAVAILABLE.
#[test]
fn a_call_without_a_route_is_unavailable() {
    let failed = way(&selector([route("/s/a", "one")]), "/s/b", &[], 0).unwrap_err();
    assert_eq!(failed, Status::unavailable("virtual host \"host *\": no route matches (path \"/s/b\")"));
    let long = format!("/{}", "x".repeat(100_000));
    assert!(way(&selector([]), &long, &[], 0).unwrap_err().message().len() < 300);
}

/// VAL-R2: a route whose action is not for clients matches calls and fails them (A36).
#[test]
fn a_route_that_is_not_for_clients_fails_its_calls() {
    let action = Some(Action::NonForwardingAction(NonForwardingAction {}));
    let selector = selector([Route { action, ..route("/s/a", "x") }, route("/", "rest")]);
    assert_eq!(
        way(&selector, "/s/a", &[], 0).unwrap_err(),
        Status::unavailable("virtual host \"host *\": the matching route is not for clients (path \"/s/a\")")
    );
    assert_eq!(way(&selector, "/s/b", &[], 0).unwrap(), "rest");
}

/// CVE-2026-33186: a path without a leading slash matches no route, not even one for every path.
#[test]
fn a_path_must_be_canonical() {
    let selector = selector([route("", "all")]);
    for path in ["", "s/m", "S/m", " /s/m", "*", "http://host/s/m", "\\s\\m"] {
        let failed = way(&selector, path, &[], 0).unwrap_err();
        assert_eq!(
            failed,
            Status::new(Code::Internal, format!("the path {path:?} does not start with \"/\""))
        );
    }
    assert_eq!(way(&selector, "/s/m", &[], 0).unwrap(), "all");
}

/// CM-4, VAL-R3: weighted clusters are selected at random by weight, and one with weight 0 never.
#[test]
fn weighted_clusters_share_the_calls() {
    const CALLS: u64 = 100_000;
    let selector = selector([to_weighted(&[("a", 1), ("never", 0), ("b", 2), ("c", 7)])]);
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for entropy in 0..CALLS {
        *counts.entry(way(&selector, "/s/m", &[], entropy).unwrap()).or_default() += 1;
    }
    assert_eq!(counts.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    for (name, share) in [("a", 10), ("b", 20), ("c", 70)] {
        let expected = CALLS * share / 100;
        assert!(counts[name].abs_diff(expected) < CALLS / 200, "{name}: {counts:?}");
    }
}

/// CM-4: a selected route keeps its cluster and hash for the whole call.
#[test]
fn a_selection_is_kept() {
    let selector = selector([to_weighted(&[("a", 1), ("b", 1)])]);
    let call = PickArgs::new("/s/m", 7);
    let first = selector.select(&call).unwrap();
    let kept = first.clone();
    let others: Vec<_> = (0..64).map(|_| selector.select(&call).unwrap().cluster().name().clone()).collect();
    assert!(others.iter().any(|name| name != first.cluster().name()), "each selection is random");
    drop(selector);
    assert_eq!((kept.cluster().name(), kept.hash()), (first.cluster().name(), first.hash()));
}

/// RT-1: the table of A31. The listener's value is the default of the route's.
#[test]
fn timeouts() {
    let secs = |seconds: Option<u64>| seconds.map(Duration::from_secs);
    let check = |own: Option<u64>,
                 header: Option<i64>,
                 route: Option<i64>,
                 listener: Option<i64>,
                 expected| {
        let config = routes([acting(|action| {
            action.max_stream_duration = Some(MaxStreamDuration {
                max_stream_duration: route.map(seconds),
                grpc_timeout_header_max: header.map(seconds),
                grpc_timeout_header_offset: None,
            });
        })]);
        let selected = select(&selector_with(config, vec![], listener, &quiet()), &[]);
        assert_eq!(selected.timeout(secs(own)), secs(expected), "{own:?} {header:?} {route:?} {listener:?}");
    };
    let any = [None, Some(0), Some(3), Some(99)];
    check(None, None, None, None, None);
    check(Some(20), None, None, None, Some(20));
    for listener in any {
        check(None, None, Some(0), listener, None);
        check(None, None, Some(10), listener, Some(10));
        check(Some(20), None, Some(0), listener, Some(20));
        check(Some(20), None, Some(10), listener, Some(10));
        check(Some(5), None, Some(10), listener, Some(5));
        for route in any {
            check(None, Some(0), route, listener, None);
            check(None, Some(10), route, listener, Some(10));
            check(Some(20), Some(0), route, listener, Some(20));
            check(Some(20), Some(10), route, listener, Some(10));
            check(Some(5), Some(10), route, listener, Some(5));
        }
    }
    check(None, None, None, Some(10), Some(10));
    check(None, None, None, Some(0), None);
    check(Some(20), None, None, Some(10), Some(10));
    check(Some(5), None, None, Some(10), Some(5));
    // A route without a timeout of its own.
    let plain = selector_with(routes([route("/", "c")]), vec![], Some(10), &quiet());
    assert_eq!(select(&plain, &[]).timeout(None), Some(Duration::from_secs(10)));
}

/// VAL-R4: the selected route has the retry policy.
#[test]
fn the_selection_has_the_retry_policy() {
    let policy = RetryPolicy { retry_on: "unavailable".to_owned(), ..RetryPolicy::default() };
    let with = selector([acting(|action| action.retry_policy = Some(policy))]);
    let selected = select(&with, &[]);
    let policy = selected.retry().expect("a policy");
    assert!(policy.retries(Code::Unavailable) && !policy.retries(Code::Internal));
    assert!(select(&selector([route("/", "c")]), &[]).retry().is_none());
}

fn by_header(name: &str, rewrite: Option<(&str, &str)>) -> PolicySpecifier {
    PolicySpecifier::Header(hash_policy::Header {
        header_name: name.to_owned(),
        regex_rewrite: rewrite.map(|(pattern, substitution)| RegexMatchAndSubstitute {
            pattern: Some(regex(pattern)),
            substitution: substitution.to_owned(),
        }),
    })
}

fn by_state(key: &str) -> PolicySpecifier {
    PolicySpecifier::FilterState(hash_policy::FilterState { key: key.to_owned() })
}

fn hashing(policies: Vec<(PolicySpecifier, bool)>) -> ConfigSelector {
    selector([acting(|action| {
        let policy = |(specifier, terminal)| HashPolicy { policy_specifier: Some(specifier), terminal };
        action.hash_policy = policies.into_iter().map(policy).collect();
    })])
}

/// RH-8: the value of a header, rewritten or not, and the channel id are hashed.
#[test]
fn headers_and_channel_id_are_hashed() {
    let check = |policy: PolicySpecifier, headers: &[(&str, &str)], expected: Option<&str>| {
        let selector = hashing(vec![(policy.clone(), false)]);
        let expected = expected.map(|text| hash::of_bytes(text.as_bytes()));
        let found = select(&selector, headers).hash();
        assert_eq!(Some(found) == expected, expected.is_some(), "{policy:?} {headers:?}");
    };
    let plain = |name| by_header(name, None);
    check(plain("x-user"), &[("x-user", "ann")], Some("ann"));
    check(plain("X-User"), &[("x-user", "ann")], Some("ann"));
    check(plain("x-user"), &[("x-user", "ann"), ("x", "y"), ("x-user", "bob")], Some("ann,bob"));
    check(plain("x-user"), &[], None);
    check(plain("x-user-bin"), &[("x-user-bin", "ann")], None);
    check(plain("content-type"), &[], Some("application/grpc"));
    check(plain("content-type"), &[("content-type", "application/grpc+json")], Some("application/grpc+json"));
    // Substitutions use RE2's notation. Every match is replaced, and `$` is literal.
    let session = |substitution| by_header("x", Some((r"([a-z]+)-(\d+)", substitution)));
    check(session(r"\2"), &[("x", "ann-12")], Some("12"));
    check(session(r"\2.\1"), &[("x", "ann-12,bob-3")], Some("12.ann,3.bob"));
    check(session(r"$1\\\0${2}"), &[("x", "ann-12")], Some(r"$1\ann-12${2}"));
    check(session(r"\2"), &[("x", "other")], Some("other"));
    check(by_header("x-bin", Some(("a", "b"))), &[("x-bin", "a")], None);
    let channel = hashing(vec![(by_state("io.grpc.channel_id"), false)]);
    assert_eq!(select(&channel, &[]).hash(), CHANNEL_ID);
    check(by_state("other"), &[], None);
    check(PolicySpecifier::Cookie(hash_policy::Cookie::default()), &[], None);
}

/// RH-7: the hashes of several policies are combined in order.
#[test]
fn hashes_are_combined_in_order() {
    let cookie = || PolicySpecifier::Cookie(hash_policy::Cookie::default());
    let channel = || by_state("io.grpc.channel_id");
    let x = hash::of_bytes(b"1");
    let check = |policies: Vec<(PolicySpecifier, bool)>, expected: u64| {
        let shown = format!("{policies:?}");
        assert_eq!(select(&hashing(policies), &[("x", "1")]).hash(), expected, "{shown}");
    };
    let header = |name: &str| by_header(name, None);
    check(vec![(header("x"), false), (channel(), false)], x.rotate_left(1) ^ CHANNEL_ID);
    check(vec![(channel(), false), (header("x"), false)], CHANNEL_ID.rotate_left(1) ^ x);
    check(vec![(header("absent"), false), (header("x"), false)], x);
    check(vec![(header("x"), true), (channel(), false)], x);
    check(vec![(header("absent"), true), (channel(), false)], CHANNEL_ID);
    check(vec![(cookie(), true), (header("x"), false)], x);
    check(vec![(header("x"), false), (cookie(), true), (channel(), false)], x);
}

/// RH-7: a call without a hash from any policy has a random hash.
#[test]
fn without_a_policy_the_hash_is_random() {
    for selector in [hashing(vec![]), hashing(vec![(by_header("absent", None), false)])] {
        let hash = |entropy| selector.select(&PickArgs::new("/s/m", entropy)).unwrap().hash();
        assert_ne!(hash(1), hash(2));
        assert_eq!(hash(1), hash(1));
    }
}

/// A81: a trusted control plane may rewrite the authority for one route, and other routes are not affected.
#[test]
fn the_authority_is_rewritten_for_one_route() {
    let rewriting = acting(|action| {
        action.host_rewrite_specifier = Some(HostRewriteSpecifier::AutoHostRewrite(true));
    });
    let rewriting = Route { r#match: route("/s/a", "c").r#match, ..rewriting };
    let message = listener("l", &manager(RouteSpecifier::RouteConfig(routes([rewriting, route("/", "c")]))));
    for trusted in [true, false] {
        let parsed = parse_with(ResourceType::Listener, &message, trusted, |_| ()).unwrap();
        let Resource::Listener(listener) = parsed.resource else { panic!("not a listener") };
        let selector = selector_of(&listener, &quiet());
        let rewrites = |path| selector.select(&PickArgs::new(path, 1)).unwrap().auto_host_rewrite();
        assert_eq!((rewrites("/s/a"), rewrites("/s/b")), (trusted, false));
    }
}

/// Returns a fault config that is recognised by its maximum of active faults.
fn fault(mark: u32) -> Any {
    any(&HttpFault { max_active_faults: Some(mark), ..HttpFault::default() })
}

/// Returns the marks of the filters that run for a call.
fn marks(selected: &SelectedRoute) -> Vec<String> {
    let mark = |instance: &evenkeel_xds::routing::FilterInstance| match &instance.filter {
        XdsHttpFilter::Fault(config) => format!("{} {}", instance.name, config.max_active().expect("marked")),
        other => panic!("not to be run: {other:?}"),
    };
    selected.filters().iter().map(mark).collect()
}

/// VAL-R5: the most specific override of each filter is used. The router is not among the filters that run.
#[test]
fn the_most_specific_override_wins() {
    let overrides = |list: &[(&str, Any)]| -> BTreeMap<String, Any> {
        list.iter().map(|(name, config)| ((*name).to_owned(), config.clone())).collect()
    };
    let off = || wrapped(None, false, true);
    let weighted = |route: &[(&str, Any)], cluster: &[(&str, Any)]| {
        let cluster = ClusterWeight {
            name: "c".to_owned(),
            weight: Some(1),
            typed_per_filter_config: overrides(cluster),
            ..ClusterWeight::default()
        };
        let clusters = WeightedCluster { clusters: vec![cluster], total_weight: None };
        let action = RouteAction {
            cluster_specifier: Some(ClusterSpecifier::WeightedClusters(clusters)),
            ..RouteAction::default()
        };
        Route {
            action: Some(Action::Route(action)),
            typed_per_filter_config: overrides(route),
            ..testkit::resources::route("/", "c")
        }
    };
    let check = |host: &[(&str, Any)], route: &[(&str, Any)], cluster: &[(&str, Any)], expected: &[&str]| {
        let mut config = routes([weighted(route, cluster)]);
        config.virtual_hosts[0].typed_per_filter_config = overrides(host);
        let sleeping = HttpFilter { disabled: true, ..filter("c", fault(3)) };
        let filters = vec![filter("a", fault(1)), filter("b", fault(2)), sleeping];
        assert_eq!(marks(&select(&selector_with(config, filters, None, &quiet()), &[])), expected);
    };
    check(&[], &[], &[], &["a 1", "b 2"]);
    check(&[("a", fault(10))], &[], &[], &["a 10", "b 2"]);
    check(&[("a", fault(10))], &[("a", fault(20)), ("b", fault(21))], &[], &["a 20", "b 21"]);
    check(&[("a", fault(10))], &[("a", fault(20))], &[("a", fault(30))], &["a 30", "b 2"]);
    check(&[("b", fault(10))], &[], &[("a", fault(30))], &["a 30", "b 10"]);
    check(&[("nobody", fault(10))], &[], &[], &["a 1", "b 2"]);
    check(&[("router", fault(10))], &[], &[], &["a 1", "b 2"]);
    // Disabled, and enabled again.
    check(&[("a", off())], &[], &[], &["b 2"]);
    check(&[("a", off())], &[("a", fault(20))], &[], &["a 20", "b 2"]);
    check(&[("a", fault(10))], &[], &[("a", off()), ("b", off())], &[]);
    check(&[], &[("c", fault(23))], &[], &["a 1", "b 2", "c 23"]);
    check(&[("c", fault(13))], &[("c", off())], &[], &["a 1", "b 2"]);
    let alone = selector_with(routes([route("/", "c")]), vec![], None, &quiet());
    assert!(select(&alone, &[]).filters().is_empty());
    let wrapped_router = wrapped(Some(any(&Router::default())), true, true);
    check(&[("a", wrapped_router)], &[], &[], &["b 2"]);
}

/// An explanation lists each route with the reason why it did not match, up to the route that matches.
#[test]
fn every_step_can_be_explained() {
    use evenkeel_proto::envoy::config::core::v3::RuntimeFractionalPercent;
    use evenkeel_proto::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier::ExactMatch;
    use evenkeel_proto::envoy::r#type::v3::FractionalPercent;
    let canary = matching_route(|m| {
        m.headers = vec![header("x-canary", ExactMatch("yes".to_owned()))];
    });
    let some = matching_route(|m| {
        let default_value = Some(FractionalPercent { numerator: 5, denominator: 0 });
        m.runtime_fraction = Some(RuntimeFractionalPercent { default_value, runtime_key: String::new() });
    });
    let selector = selector([
        Route { name: "login".to_owned(), ..route("/auth.", "auth") },
        canary,
        some,
        to_weighted(&[("a", 1), ("b", 3)]),
        route("/", "never"),
    ]);
    let told = selector.explain(&PickArgs::new("/s/m", 0));
    let expected = [
        ("login", "path prefix \"/auth.\" -> cluster \"auth\"", RouteOutcome::PathMismatch),
        (
            "",
            "path prefix \"/\" and header \"x-canary\" exact \"yes\" -> cluster \"c\"",
            RouteOutcome::HeaderMismatch("header \"x-canary\" exact \"yes\"".to_owned()),
        ),
        (
            "",
            "path prefix \"/\" and 50000 in a million -> cluster \"c\"",
            RouteOutcome::FractionMatched(50_000),
        ),
        ("", "path prefix \"/\" -> cluster \"a\" (1), cluster \"b\" (3)", RouteOutcome::Matched),
    ];
    let expected = expected.map(|(name, route, outcome)| ExplainedRoute {
        name: name.to_owned(),
        route: route.to_owned(),
        outcome,
    });
    assert_eq!(told, expected);
}
