//! Allocations of route selection, counted by the allocator.

use std::borrow::Cow;
use std::sync::Arc;

use evenkeel_core::{PickArgs, Registry, RequestMetadata};
use evenkeel_proto::envoy::config::route::v3::RouteAction;
use evenkeel_proto::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use evenkeel_proto::envoy::config::route::v3::route::Action;
use evenkeel_proto::envoy::config::route::v3::route_action::HashPolicy;
use evenkeel_proto::envoy::config::route::v3::route_action::hash_policy::{Header, PolicySpecifier};
use evenkeel_proto::envoy::config::route::v3::route_match::PathSpecifier;
use evenkeel_proto::envoy::config::route::v3::{HeaderMatcher, Route};
use evenkeel_proto::envoy::r#type::matcher::v3::RegexMatcher;
use evenkeel_xds::bootstrap::ServerConfig;
use evenkeel_xds::resource::{Resource, ResourceParser, ResourceType, RouteSource};
use evenkeel_xds::routing::{ActiveClusters, ConfigSelector};
use testkit::Counting;
use testkit::resources::{any, listener_with_routes, route, route_config, virtual_host};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct User;

impl RequestMetadata for User {
    fn value(&self, name: &str) -> Option<Cow<'_, str>> {
        (name == "x-user").then_some(Cow::Borrowed("ann"))
    }
}

fn selector(routes: Vec<Route>) -> ConfigSelector {
    let config = route_config("r", "unused");
    let listener = listener_with_routes(
        "l",
        evenkeel_proto::envoy::config::route::v3::RouteConfiguration {
            virtual_hosts: vec![virtual_host("*", routes)],
            ..config
        },
    );
    let server = ServerConfig::insecure("xds.test:443");
    let parser = ResourceParser::new(Registry::standard());
    let parsed = parser.parse(ResourceType::Listener, &any(&listener), &server).expect("valid");
    let Resource::Listener(listener) = parsed.resource else { panic!("not a listener") };
    let RouteSource::Inline(routes) = &listener.routes else { panic!("not inline") };
    let clusters = ActiveClusters::new(Arc::new(|| ()));
    ConfigSelector::new(routes.virtual_host("any").expect("a host").clone(), &listener, &clusters, 7)
}

/// Route selection over a thousand routes allocates nothing. It matches paths, regular expressions and headers,
/// chooses a weighted cluster and hashes a header.
#[test]
fn a_choice_allocates_nothing() {
    let mut routes: Vec<Route> = (0..998).map(|i| route(&format!("/other.{i}/"), "other")).collect();
    let mut by_regex = route("", "regex");
    if let Some(matching) = &mut by_regex.r#match {
        let regex = RegexMatcher { regex: "/[a-z]+/[a-z]+x".to_owned(), ..RegexMatcher::default() };
        matching.path_specifier = Some(PathSpecifier::SafeRegex(regex));
    }
    routes.push(by_regex);
    let mut last = route("/shop.", "orders");
    if let Some(matching) = &mut last.r#match {
        matching.headers = vec![HeaderMatcher {
            name: "x-user".to_owned(),
            header_match_specifier: Some(HeaderMatchSpecifier::PrefixMatch("a".to_owned())),
            ..HeaderMatcher::default()
        }];
    }
    if let Some(Action::Route(RouteAction { hash_policy, .. })) = &mut last.action {
        let header = Header { header_name: "x-user".to_owned(), regex_rewrite: None };
        let policy = HashPolicy { policy_specifier: Some(PolicySpecifier::Header(header)), terminal: true };
        hash_policy.push(policy);
    }
    routes.push(last);
    let selector = selector(routes);
    let choose = |entropy| {
        let call = PickArgs::new("/shop.Orders/Get", entropy).with_headers(&User);
        let selected = selector.select(&call).expect("a route");
        selected.cluster().child() == "cluster:orders"
    };
    // The first match of a regular expression allocates its cache.
    assert!(choose(0));
    let (allocations, chosen) = Counting::during(|| (0..100).filter(|entropy| choose(*entropy)).count());
    assert_eq!((allocations.count, chosen), (0, 100));
}
