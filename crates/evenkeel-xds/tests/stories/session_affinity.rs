//! Session affinity (A55, A60, A75) is not supported: configs that use it are rejected or reported.
//!
//! OH-1..10 of the specification describe the filter `StatefulSession`, its cookie and the policy
//! `xds_override_host`. None of them is implemented. These stories cover the rest: no config with session affinity is
//! accepted silently, and calls lose only the affinity.

use evenkeel_core::Registry;
use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::cluster::v3::cluster::CommonLbConfig;
use evenkeel_proto::envoy::config::core::v3::HealthStatusSet;
use evenkeel_proto::envoy::extensions::filters::http::router::v3::Router;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, Rds,
};
use evenkeel_proto::prost_types::Any;
use evenkeel_xds::bootstrap::ServerConfig;
use evenkeel_xds::resource::{ParsedResource, ResourceParser, RejectedResource, ResourceType};
use testkit::resources::{ads, any, cluster, filter, listener, manager};

const FILTER: &str = "type.googleapis.com/envoy.extensions.filters.http.stateful_session.v3.StatefulSession";

fn parse(kind: ResourceType, resource: &Any) -> Result<ParsedResource, RejectedResource> {
    ResourceParser::new(Registry::standard()).parse(kind, resource, &ServerConfig::insecure("one"))
}

/// Listener with a session filter before the router.
fn with_session_filter(is_optional: bool) -> Any {
    let config = Any { type_url: FILTER.to_owned(), value: Vec::new() };
    let session = HttpFilter { is_optional, ..filter("session", config) };
    let rds = Rds { route_config_name: "r".to_owned(), config_source: Some(ads()) };
    let manager = HttpConnectionManager {
        http_filters: vec![session, filter("router", any(&Router::default()))],
        ..manager(RouteSpecifier::Rds(rds))
    };
    any(&listener("l", &manager))
}

/// OH-2: a session filter is rejected with its type. If it is optional, it is skipped with a warning.
#[test]
fn a_session_filter_is_rejected_or_reported() {
    let rejected = parse(ResourceType::Listener, &with_session_filter(false)).unwrap_err();
    let problems = rejected.problems.to_string();
    assert!(problems.contains("http_filters[0]") && problems.contains("StatefulSession"), "{problems}");

    let accepted = parse(ResourceType::Listener, &with_session_filter(true)).unwrap();
    let [warning] = &accepted.warnings[..] else { panic!("one warning, not {:?}", accepted.warnings) };
    assert!(warning.contains("http_filters[0]") && warning.contains("StatefulSession"), "{warning}");
}

/// OH-3, OH-4: `override_host_status` of a cluster has no effect and produces a warning.
#[test]
fn statuses_of_override_hosts_are_reported_as_ignored() {
    let config = CommonLbConfig {
        override_host_status: Some(HealthStatusSet::default()),
        ..CommonLbConfig::default()
    };
    let cluster = Cluster { common_lb_config: Some(config), ..cluster("pay") };
    let accepted = parse(ResourceType::Cluster, &any(&cluster)).unwrap();
    let warned = accepted.warnings.iter().filter(|warning| warning.contains("override_host_status")).count();
    assert_eq!(warned, 1, "{:?}", accepted.warnings);
}

/// OH-5: the policy is not registered under its name, so it cannot be configured.
#[test]
fn the_override_host_policy_is_not_registered() {
    for name in ["xds_override_host_experimental", "xds_override_host"] {
        let config = format!(r#"[{{"{name}": {{"childPolicy": [{{"round_robin": {{}}}}]}}}}]"#);
        let error = Registry::standard().parse_json(&config).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}
