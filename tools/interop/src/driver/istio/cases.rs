//! Cases with istiod: each configures a feature as Istio documents it, and checks the calls.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_proto::envoy::admin::v3::ClientResourceStatus;
use serde_json::{Value, json};

use super::config::{
    HOST, PORT, destination_rule, endpoint, placed_endpoint, resource, route, route_matching, service_entry,
    split, strict_authentication, virtual_service, weighted_endpoint, with,
};
use super::{IstioCase, IstioStage};
use crate::driver::client::Totals;
use crate::driver::{Calls, Client, Failure, Result, Server, Stats, ensure};
use crate::proto::testing::client_configure_request::RpcType::UnaryCall;

const EMPTY: &str = "/grpc.testing.TestService/EmptyCall";

/// Number of clusters in the case of a large mesh.
const CLUSTERS: usize = 1_000;

/// Creates a case from the async function of the same name.
macro_rules! case {
    ($name:ident, $shows:literal) => {
        IstioCase { name: stringify!($name), shows: $shows, story: |stage| Box::pin($name(stage)) }
    };
}

/// Returns all cases with istiod, in the order of the table.
pub fn istio_cases() -> Vec<IstioCase> {
    vec![
        case!(weights, "`ServiceEntry` endpoints get calls by `weight`"),
        case!(traffic_split, "`VirtualService` destinations get calls by `weight`"),
        case!(route_match, "`VirtualService` matches by `uri` and `headers`"),
        case!(consistent_hash, "`consistentHash.httpHeaderName` pins a session to one server"),
        case!(locality_failover, "`localityLbSetting`: failover to the next locality, and failback"),
        case!(retries, "`retries.attempts` and `retryOn`"),
        case!(timeout, "`timeout` of a route"),
        case!(fault, "`fault.abort` and `fault.delay`"),
        case!(istio_mutual, "`ISTIO_MUTUAL` with certificates from files and the service's identities"),
        case!(circuit_breaker, "`http2MaxRequests` limits calls in flight, before and after an edit"),
        case!(edit_under_load, "routes, weights and endpoints change without a failed call"),
        case!(restart, "istiod restarts without a failed call, and later updates are applied"),
        case!(subset_removed, "a subset is removed together with its routes without a failed call"),
        case!(thousand_clusters, "1,000 services behind one `VirtualService`"),
        case!(agent_socket, "the bootstrap of Istio's agent, with its unix socket"),
    ]
}

/// Returns the service with these servers as endpoints, the subsets `v1` and `v2`, and these routes.
fn mesh(servers: &[Server], routes: impl IntoIterator<Item = Value>) -> Vec<Value> {
    vec![
        service_entry(HOST, servers.iter().map(endpoint)),
        destination_rule(&json!({}), &["v1", "v2"]),
        virtual_service(routes),
    ]
}

async fn weights(stage: &mut IstioStage) -> Result {
    let servers = stage.servers(["v1", "v2"]).await?;
    let weighted = |first, second| {
        let endpoints = [weighted_endpoint(&servers[0], first), weighted_endpoint(&servers[1], second)];
        [service_entry(HOST, endpoints)]
    };
    stage.set(&weighted(1, 3)).await?;
    let mut client = stage.client(Calls::unary().qps(400)).await?;
    let near = |count: i32, expected: i32| (count - expected).abs() <= 20;
    let quarter = |stats: &Stats| stats.failures == 0 && near(stats.of("v1"), 100);
    client.until(400, "100 and 300 calls", quarter).await?;
    stage.set(&weighted(4, 1)).await?;
    client.until(400, "320 and 80 calls", |stats| stats.failures == 0 && near(stats.of("v1"), 320)).await?;
    Ok(())
}

async fn traffic_split(stage: &mut IstioStage) -> Result {
    let servers = stage.servers(["v1", "v2"]).await?;
    stage.set(&mesh(&servers, [split(&[("v1", 100), ("v2", 0)])])).await?;
    let mut client = stage.client(Calls::unary().qps(400)).await?;
    client.until(100, "all calls at v1", |stats| stats.only(&["v1"])).await?;
    stage.set(&mesh(&servers, [split(&[("v1", 20), ("v2", 80)])])).await?;
    client.until(100, "calls at both", |stats| stats.only(&["v1", "v2"])).await?;
    // More than five standard deviations on each side.
    let near = |count: i32| (130..=270).contains(&count);
    client.now(1_000, "200 and 800 calls", |stats| stats.failures == 0 && near(stats.of("v1"))).await?;
    Ok(())
}

async fn route_match(stage: &mut IstioStage) -> Result {
    let servers = stage.servers(["v1", "v2"]).await?;
    stage
        .set(&mesh(
            &servers,
            [
                route_matching("v2", &json!({"uri": {"exact": EMPTY}})),
                route_matching("v2", &json!({"headers": {"tenant": {"prefix": "gold-"}}})),
                route_matching("v2", &json!({"headers": {"tenant": {"regex": "t[0-9]+"}}})),
                route("v1"),
            ],
        ))
        .await?;
    let mut client = stage.client(Calls::both()).await?;
    let by_path = |stats: &Stats| stats.went(&[("UnaryCall", "v1"), ("EmptyCall", "v2")]);
    client.until(20, "empty calls at v2, unary calls at v1", by_path).await?;
    for (tenant, server) in [("gold-7", "v2"), ("silver", "v1"), ("t42", "v2"), ("t42x", "v1")] {
        client.configure(&[UnaryCall], &[(UnaryCall, "tenant", tenant)], 0).await?;
        let words = format!("calls of tenant {tenant} at {server}");
        client.until(20, &words, |stats| stats.went(&[("UnaryCall", server)])).await?;
    }
    Ok(())
}

async fn consistent_hash(stage: &mut IstioStage) -> Result {
    let mut servers = stage.servers(["s1", "s2", "s3"]).await?;
    let policy = json!({"loadBalancer": {"consistentHash": {"httpHeaderName": "session"}}});
    stage.set(&[service_entry(HOST, servers.iter().map(endpoint)), destination_rule(&policy, &[])]).await?;
    let mut client = stage.client(Calls::unary().metadata("UnaryCall:session:0")).await?;
    let one = |stats: &Stats| stats.failures == 0 && stats.by_peer.len() == 1;
    let mut chosen = BTreeMap::new();
    for session in ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"] {
        client.configure(&[UnaryCall], &[(UnaryCall, "session", session)], 0).await?;
        let stats = client.until(20, "all calls of a session at one server", one).await?;
        let server = stats.by_peer.keys().next().cloned().unwrap_or_default();
        client.now(20, "all calls of a session at the same server", |stats| stats.only(&[&server])).await?;
        chosen.insert(session, server);
    }
    let used: BTreeSet<_> = chosen.values().collect();
    ensure(used.len() > 1, || format!("all sessions are at one server: {chosen:?}"))?;
    // Only the sessions of a stopped server move.
    let last = chosen["9"].clone();
    for server in servers.iter_mut().filter(|server| server.name() == last) {
        server.stop().await?;
    }
    client.until(20, "another server", |stats| one(stats) && stats.of(&last) == 0).await?;
    for (session, server) in chosen.iter().filter(|(_, server)| **server != last) {
        client.configure(&[UnaryCall], &[(UnaryCall, "session", *session)], 0).await?;
        client.until(20, "a session stays at its server", |stats| stats.only(&[server])).await?;
    }
    Ok(())
}

async fn locality_failover(stage: &mut IstioStage) -> Result {
    let mut near = stage.servers(["near"]).await?;
    let far = stage.servers(["far", "farther"]).await?;
    // Istio assigns priorities only together with outlier detection.
    let policy = json!({
        "outlierDetection": {"consecutive5xxErrors": 5, "interval": "1s", "baseEjectionTime": "5s"},
        "loadBalancer": {"localityLbSetting": {"enabled": true}},
    });
    let endpoints = [
        placed_endpoint(&near[0], "eu/eu-1"),
        placed_endpoint(&far[0], "eu/eu-2"),
        placed_endpoint(&far[1], "us/us-1"),
    ];
    stage.set(&[service_entry(HOST, endpoints), destination_rule(&policy, &[])]).await?;
    let mut client = stage.client(Calls::unary()).await?;
    client.until(40, "calls in the own zone only", |stats| stats.only(&["near"])).await?;
    near[0].stop().await?;
    client.until(40, "calls in the own region only", |stats| stats.only(&["far"])).await?;
    near[0].resume().await?;
    client.until(40, "calls in the own zone only, again", |stats| stats.only(&["near"])).await?;
    Ok(())
}

async fn retries(stage: &mut IstioStage) -> Result {
    let servers = stage.servers(["v1", "v2"]).await?;
    let retrying = |attempts| {
        let retries = json!({"attempts": attempts, "retryOn": "unavailable", "backoff": "10ms"});
        mesh(&servers, [with(route("v1"), "retries", retries)])
    };
    stage.set(&retrying(3)).await?;
    let mut client = stage.client(Calls::unary()).await?;
    let behavior = (UnaryCall, "rpc-behavior", "succeed-on-retry-attempt-3,error-code-14");
    client.configure(&[UnaryCall], &[behavior], 0).await?;
    client.until_results("UNARY_CALL", 0).await?;
    stage.set(&retrying(2)).await?;
    client.until_results("UNARY_CALL", 14).await?;
    // Another status is not retried.
    stage.set(&retrying(3)).await?;
    client.until_results("UNARY_CALL", 0).await?;
    let behavior = (UnaryCall, "rpc-behavior", "succeed-on-retry-attempt-3,error-code-13");
    client.configure(&[UnaryCall], &[behavior], 0).await?;
    client.until_results("UNARY_CALL", 13).await
}

async fn timeout(stage: &mut IstioStage) -> Result {
    let servers = stage.servers(["v1", "v2"]).await?;
    let limited = |limit: &str| mesh(&servers, [with(route("v1"), "timeout", limit.into())]);
    stage.set(&limited("1s")).await?;
    let mut client = stage.client(Calls::unary().qps(25)).await?;
    client.until_results("UNARY_CALL", 0).await?;
    client.configure(&[UnaryCall], &[(UnaryCall, "rpc-behavior", "sleep-3")], 10).await?;
    client.until_results("UNARY_CALL", 4).await?;
    stage.set(&limited("8s")).await?;
    client.until_results("UNARY_CALL", 0).await
}

async fn fault(stage: &mut IstioStage) -> Result {
    let servers = stage.servers(["v1", "v2"]).await?;
    let when = |fault: &str| route_matching("v1", &json!({"headers": {"fault": {"exact": fault}}}));
    let always = json!({"value": 100.0});
    let abort = json!({"abort": {"grpcStatus": "PERMISSION_DENIED", "percentage": always}});
    let some = json!({"abort": {"grpcStatus": "NOT_FOUND", "percentage": {"value": 25.0}}});
    let delay = json!({"delay": {"fixedDelay": "3s", "percentage": always}});
    stage
        .set(&mesh(
            &servers,
            [
                with(when("abort"), "fault", abort),
                with(when("some"), "fault", some),
                with(when("delay"), "fault", delay),
                route("v1"),
            ],
        ))
        .await?;
    let mut client = stage.client(Calls::unary()).await?;
    client.until_results("UNARY_CALL", 0).await?;
    client.configure(&[UnaryCall], &[(UnaryCall, "fault", "abort")], 0).await?;
    client.until_results("UNARY_CALL", 7).await?;
    client.configure(&[UnaryCall], &[(UnaryCall, "fault", "some")], 0).await?;
    let some_fail = |stats: &Stats| (50..=150).contains(&stats.failures) && stats.of("v1") > 0;
    client.until(400, "100 calls that fail and 300 that do not", some_fail).await?;
    // A call that is delayed beyond its deadline fails; a longer deadline succeeds.
    client.configure(&[UnaryCall], &[(UnaryCall, "fault", "delay")], 1).await?;
    client.until_results("UNARY_CALL", 4).await?;
    client.configure(&[UnaryCall], &[(UnaryCall, "fault", "delay")], 15).await?;
    client.until_results("UNARY_CALL", 0).await
}

async fn istio_mutual(stage: &mut IstioStage) -> Result {
    let certificates = stage.certificates()?;
    let (known, stranger) = (certificates.of_server(true), certificates.of_stranger());
    let servers = stage.servers_with([("known", known), ("stranger", stranger)]).await?;
    let policy = json!({"tls": {"mode": "ISTIO_MUTUAL"}});
    let secured = |members: &[Server]| {
        [
            service_entry(HOST, members.iter().map(endpoint)),
            destination_rule(&policy, &[]),
            strict_authentication(),
        ]
    };
    // A server with an identity that the service does not have gets no calls.
    stage.set(&secured(&servers[1..])).await?;
    let mut client = stage.client(Calls::unary().secure()).await?;
    let none = |stats: &Stats| stats.by_peer.is_empty() && stats.failures > 0;
    client.until(50, "no call that succeeds", none).await?;
    stage.set(&secured(&servers)).await?;
    client.until(50, "calls at the known server only", |stats| stats.only(&["known"])).await?;
    // Without the rule, calls are in plaintext, which this server does not accept.
    stage.set(&[service_entry(HOST, servers[..1].iter().map(endpoint))]).await?;
    client.until(50, "no call that succeeds", none).await?;
    Ok(())
}

async fn circuit_breaker(stage: &mut IstioStage) -> Result {
    let servers = stage.servers(["s1", "s2"]).await?;
    let limited = |max: u32| {
        let policy = json!({"connectionPool": {"http": {"http2MaxRequests": max}}});
        [service_entry(HOST, servers.iter().map(endpoint)), destination_rule(&policy, &[])]
    };
    stage.set(&limited(50)).await?;
    let mut client = stage.client(Calls::unary().metadata("UnaryCall:rpc-behavior:keep-open")).await?;
    let in_flight = |totals: &BTreeMap<String, Totals>| totals.get("UNARY_CALL").map_or(0, Totals::in_flight);
    client.until_totals("50 calls in flight", |totals| in_flight(totals) == 50).await?;
    stage.set(&limited(80)).await?;
    client.until_totals("80 calls in flight", |totals| in_flight(totals) == 80).await
}

async fn edit_under_load(stage: &mut IstioStage) -> Result {
    let servers = stage.servers(["v1", "v2"]).await?;
    let more = stage.servers(["v3"]).await?;
    stage.set(&mesh(&servers, [route("v1")])).await?;
    let mut client = stage.client(Calls::unary().qps(300)).await?;
    client.until(50, "calls at v1", |stats| stats.only(&["v1"])).await?;
    for _ in 0..3 {
        stage.set(&mesh(&servers, [route("v2")])).await?;
        client.until(50, "calls at v2", |stats| stats.only(&["v2"])).await?;
        stage.set(&mesh(&servers, [split(&[("v1", 50), ("v2", 50)])])).await?;
        client.until(50, "calls at both", |stats| stats.only(&["v1", "v2"])).await?;
        stage.set(&mesh(&servers, [route("")])).await?;
        client.until(50, "calls at both", |stats| stats.only(&["v1", "v2"])).await?;
        let all = servers.iter().chain(&more).map(endpoint);
        stage.set(&[service_entry(HOST, all), destination_rule(&json!({}), &["v1", "v2"])]).await?;
        client.until(50, "calls at all three", |stats| stats.only(&["v1", "v2", "v3"])).await?;
        stage.set(&mesh(&servers, [route("v1")])).await?;
        client.until(50, "calls at v1", |stats| stats.only(&["v1"])).await?;
    }
    none_failed(&mut client).await
}

async fn restart(stage: &mut IstioStage) -> Result {
    let servers = stage.servers(["v1", "v2"]).await?;
    stage.set(&mesh(&servers, [route("v1")])).await?;
    let mut client = stage.client(Calls::unary().qps(200)).await?;
    client.until(50, "calls at v1", |stats| stats.only(&["v1"])).await?;
    for (next, last) in [("v2", "v1"), ("v1", "v2")] {
        stage.stop().await?;
        client.now(200, "calls as before", |stats| stats.only(&[last])).await?;
        stage.set(&mesh(&servers, [route(next)])).await?;
        stage.resume().await?;
        let words = format!("calls at {next}");
        client.until(50, &words, |stats| stats.only(&[next])).await?;
    }
    none_failed(&mut client).await
}

/// Istiod pushes clusters before routes, so a removed subset is gone while routes still name it.
async fn subset_removed(stage: &mut IstioStage) -> Result {
    let servers = stage.servers(["v1", "v2"]).await?;
    let only = |subset: &str| {
        vec![
            service_entry(HOST, servers.iter().map(endpoint)),
            destination_rule(&json!({}), &[subset]),
            virtual_service([route(subset)]),
        ]
    };
    stage.set(&only("v1")).await?;
    let mut client = stage.client(Calls::unary().qps(500)).await?;
    client.until(50, "calls at v1", |stats| stats.only(&["v1"])).await?;
    for _ in 0..5 {
        for subset in ["v2", "v1"] {
            stage.set(&only(subset)).await?;
            let words = format!("calls at {subset}");
            client.until(50, &words, |stats| stats.only(&[subset])).await?;
        }
    }
    none_failed(&mut client).await
}

async fn thousand_clusters(stage: &mut IstioStage) -> Result {
    let servers = stage.servers(["even", "odd"]).await?;
    let host = |shard: usize| format!("shard-{shard}.mesh.test");
    let shard_route = |shard: usize| {
        json!({
            "match": [{"headers": {"shard": {"exact": shard.to_string()}}}],
            "route": [{"destination": {"host": host(shard), "port": {"number": PORT}}}],
        })
    };
    let mut documents: Vec<_> =
        (1..CLUSTERS).map(|shard| service_entry(&host(shard), [endpoint(&servers[shard % 2])])).collect();
    documents.push(service_entry(HOST, [endpoint(&servers[0])]));
    let routes: Vec<_> = (1..CLUSTERS).map(shard_route).chain([route("")]).collect();
    let spec = json!({"hosts": [HOST], "http": routes});
    documents.push(resource("networking.istio.io/v1", "VirtualService", HOST, &spec));
    stage.set(&documents).await?;
    let mut client = stage.client(Calls::unary()).await?;
    for (shard, server) in [("none", "even"), ("1", "odd"), ("500", "even"), ("777", "odd"), ("998", "even")]
    {
        client.configure(&[UnaryCall], &[(UnaryCall, "shard", shard)], 0).await?;
        let words = format!("calls of shard {shard:?} at {server}");
        client.until(20, &words, |stats| stats.only(&[server])).await?;
    }
    let mut accepted = BTreeMap::<_, usize>::new();
    for config in client.xds_config().await? {
        for resource in config.generic_xds_configs {
            let kind = resource.type_url.rsplit('.').next().unwrap_or_default().to_owned();
            if resource.client_status() == ClientResourceStatus::Acked {
                *accepted.entry(kind).or_default() += 1;
            }
        }
    }
    let counted = |kind: &str| accepted.get(kind) == Some(&CLUSTERS);
    ensure(counted("Cluster") && counted("ClusterLoadAssignment"), || {
        format!("expected {CLUSTERS} accepted clusters with endpoints, found {accepted:?}")
    })
}

async fn agent_socket(stage: &mut IstioStage) -> Result {
    let certificates = stage.certificates()?;
    let flags = certificates.of_server(true);
    let servers = stage.servers_with([("v1", flags.clone()), ("v2", flags)]).await?;
    let policy = json!({"tls": {"mode": "ISTIO_MUTUAL"}});
    let routed = |subset: &str| {
        [
            service_entry(HOST, servers.iter().map(endpoint)),
            destination_rule(&policy, &["v1", "v2"]),
            virtual_service([route(subset)]),
        ]
    };
    stage.set(&routed("v1")).await?;
    stage.relay()?;
    let mut client = stage.client(Calls::unary().secure()).await?;
    client.until(40, "calls at v1", |stats| stats.only(&["v1"])).await?;
    stage.set(&routed("v2")).await?;
    client.until(40, "calls at v2", |stats| stats.only(&["v2"])).await?;
    none_failed(&mut client).await
}

/// Fails unless every call since the start of the client succeeded.
async fn none_failed(client: &mut Client) -> Result {
    let totals = client.totals().await?;
    let all: i32 = totals.values().map(|totals| totals.started).sum();
    let failed: BTreeMap<_, _> =
        totals.values().flat_map(|totals| totals.results.iter().filter(|(code, _)| **code != 0)).collect();
    if failed.is_empty() {
        return Ok(());
    }
    let count: i32 = failed.values().copied().sum();
    Err(Failure::new(format!("{count} of {all} calls failed, by code {failed:?}")))
}
