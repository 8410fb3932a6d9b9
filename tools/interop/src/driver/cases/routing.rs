//! Cases of route matching and route actions.

use std::time::Duration;

use evenkeel_control::{HeaderMatch, Mesh, RouteRetry, RetryOn, Route, Service};
use evenkeel_proto::envoy::config::listener::v3::Listener;
use evenkeel_proto::envoy::config::route::v3::RouteConfiguration;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use evenkeel_proto::prost::Message as _;
use evenkeel_proto::prost_types::Any;

use super::round_robin;
use crate::driver::stage::{SERVICE, Server};
use crate::driver::{Calls, Client, Failure, Result, Stage};
use crate::proto::testing::client_configure_request::RpcType;

const EMPTY: &str = "/grpc.testing.TestService/EmptyCall";
const UNARY_PREFIX: &str = "/grpc.testing.TestService/Unary";

/// Returns a mesh of two clusters with one server each, and these routes.
fn routed(servers: &[Server; 2], routes: impl IntoIterator<Item = Route>) -> Mesh {
    Mesh::new()
        .service(SERVICE, routes.into_iter().fold(Service::new(), Service::route))
        .cluster("default", round_robin(&servers[..1]))
        .cluster("other", round_robin(&servers[1..]))
}

/// The same, with a default route to `default`.
fn mesh(servers: &[Server; 2], routes: impl IntoIterator<Item = Route>) -> Mesh {
    routed(servers, routes.into_iter().chain([Route::to("default")]))
}

pub(super) async fn traffic_splitting(mut stage: Stage) -> Result {
    let servers = stage.servers(["default", "other"]).await?;
    stage.set(&mesh(&servers, [])).await?;
    let mut client = stage.client(Calls::unary().qps(400)).await?;
    client.until(100, "all calls at the first", |stats| stats.only(&["default"])).await?;
    client.now(400, "all calls at the first", |stats| stats.only(&["default"])).await?;
    stage.set(&routed(&servers, [Route::split([("default", 20), ("other", 80)])])).await?;
    client.until(100, "calls at both", |stats| stats.only(&["default", "other"])).await?;
    // More than five standard deviations on each side.
    let near = |count: i32| (130..=270).contains(&count);
    client.now(1_000, "200 and 800 calls", |stats| stats.failures == 0 && near(stats.of("default"))).await?;
    Ok(())
}

/// Sets routes one after another. Each time, all calls of both methods must reach the expected server.
async fn routes_one_by_one<'a>(
    stage: &mut Stage,
    client: &mut Client,
    servers: &[Server; 2],
    steps: impl IntoIterator<Item = (&'a str, Vec<Route>, [(&'a str, &'a str); 2])>,
) -> Result {
    for (what, routes, expected) in steps {
        stage.set(&mesh(servers, routes)).await?;
        let words = format!("({what}) calls {expected:?}");
        client.until(20, &words, |stats| stats.went(&expected)).await?;
        client.now(40, &words, |stats| stats.went(&expected)).await?;
    }
    client.still_runs()
}

const UNARY_MOVES: [(&str, &str); 2] = [("UnaryCall", "other"), ("EmptyCall", "default")];
const EMPTY_MOVES: [(&str, &str); 2] = [("UnaryCall", "default"), ("EmptyCall", "other")];
const NONE_MOVES: [(&str, &str); 2] = [("UnaryCall", "default"), ("EmptyCall", "default")];

pub(super) async fn path_matching(mut stage: Stage) -> Result {
    let servers = stage.servers(["default", "other"]).await?;
    stage.set(&mesh(&servers, [])).await?;
    let mut client = stage.client(Calls::both().none_may_fail()).await?;
    let other = || Route::to("other");
    let steps = [
        ("no route", vec![], NONE_MOVES),
        ("path", vec![other().path(EMPTY)], EMPTY_MOVES),
        ("prefix", vec![other().prefix(UNARY_PREFIX)], UNARY_MOVES),
        (
            "prefix and path",
            vec![Route::to("default").prefix(UNARY_PREFIX), other().path(EMPTY)],
            EMPTY_MOVES,
        ),
        ("expression", vec![other().regex(r"^\/.*\/UnaryCall$")], UNARY_MOVES),
        ("any case", vec![other().path("/gRpC.tEsTinG.tEstseRvice/empTycaLl").ignore_case()], EMPTY_MOVES),
    ];
    routes_one_by_one(&mut stage, &mut client, &servers, steps).await
}

pub(super) async fn header_matching(mut stage: Stage) -> Result {
    let servers = stage.servers(["default", "other"]).await?;
    stage.set(&mesh(&servers, [])).await?;
    let metadata = "EmptyCall:xds_md:empty_ytpme,UnaryCall:xds_md:unary_yranu,UnaryCall:xds_md_numeric:159";
    let mut client = stage.client(Calls::both().metadata(metadata).none_may_fail()).await?;
    let with = |name: &str, value| vec![Route::to("other").header(name, value)];
    let steps = [
        ("no route", vec![], NONE_MOVES),
        ("exact", with("xds_md", HeaderMatch::exact("empty_ytpme")), EMPTY_MOVES),
        ("prefix", with("xds_md", HeaderMatch::prefix("un")), UNARY_MOVES),
        ("suffix", with("xds_md", HeaderMatch::suffix("me")), EMPTY_MOVES),
        ("present", with("xds_md_numeric", HeaderMatch::present(true)), UNARY_MOVES),
        ("inverted", with("xds_md", HeaderMatch::exact("unary_yranu").invert()), EMPTY_MOVES),
        ("range", with("xds_md_numeric", HeaderMatch::range(100, 200)), UNARY_MOVES),
        ("expression", with("xds_md", HeaderMatch::regex("^em.*me$")), EMPTY_MOVES),
    ];
    routes_one_by_one(&mut stage, &mut client, &servers, steps).await
}

/// The listener refers to another route configuration, and the old one is deleted.
pub(super) async fn api_listener(mut stage: Stage) -> Result {
    let servers = stage.servers(["default", "other"]).await?;
    let before = mesh(&servers, []).resources();
    stage.set_resources(before.clone()).await?;
    let mut client = stage.client(Calls::unary().none_may_fail()).await?;
    client.until(40, "all calls at the first", |stats| stats.only(&["default"])).await?;

    let mut both = before;
    let listener = both.get::<Listener>(SERVICE).ok_or_else(|| Failure::new("the mesh has no listener"))?;
    let mut routes = routed(&servers, [Route::to("other")])
        .resources()
        .get::<RouteConfiguration>(SERVICE)
        .ok_or_else(|| Failure::new("the mesh has no routes"))?;
    "elsewhere".clone_into(&mut routes.name);
    both.set(routes);
    both.set(with_routes_of(listener, "elsewhere")?);
    stage.set_resources(both.clone()).await?;
    client.until(40, "all calls at the second", |stats| stats.only(&["other"])).await?;
    both.remove::<RouteConfiguration>(SERVICE);
    stage.set_resources(both).await?;
    client.now(100, "all calls at the second", |stats| stats.only(&["other"])).await?;
    client.still_runs()
}

fn with_routes_of(mut listener: Listener, name: &str) -> Result<Listener> {
    let api = listener.api_listener.as_mut().and_then(|api| api.api_listener.as_mut());
    let api = api.ok_or_else(|| Failure::new("the listener is not one for gRPC clients"))?;
    let mut manager = HttpConnectionManager::decode(&*api.value)
        .map_err(|error| Failure::new(format!("the listener cannot be read: {error}")))?;
    if let Some(RouteSpecifier::Rds(rds)) = &mut manager.route_specifier {
        name.clone_into(&mut rds.route_config_name);
    }
    *api = Any { type_url: api.type_url.clone(), value: manager.encode_to_vec() };
    Ok(listener)
}

pub(super) async fn retry(mut stage: Stage) -> Result {
    let servers = stage.servers(["default", "other"]).await?;
    let retrying = |attempts| {
        let retry = RouteRetry::on([RetryOn::Unavailable]).attempts(attempts);
        let retry = retry.backoff(Duration::from_millis(5), Duration::from_millis(50));
        routed(&servers, [Route::to("default").retry(retry)])
    };
    stage.set(&retrying(4)).await?;
    let mut client = stage.client(Calls::unary()).await?;
    let behaviour = (RpcType::UnaryCall, "rpc-behavior", "succeed-on-retry-attempt-3,error-code-14");
    client.configure(&[RpcType::UnaryCall], &[behaviour], 0).await?;
    client.until_results("UNARY_CALL", 0).await?;
    stage.set(&retrying(3)).await?;
    client.until_results("UNARY_CALL", 14).await
}
