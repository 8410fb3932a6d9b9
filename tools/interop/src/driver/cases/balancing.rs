//! Cases of load balancing policies and changes of their endpoints.

use evenkeel_control::{Cluster, ClusterPolicy, Locality, Mesh, Route, RouteHash, Service};
use serde_json::json;

use super::{endpoints, round_robin};
use crate::driver::stage::{CLUSTER, SERVICE};
use crate::driver::{Calls, Result, Stage, ensure};

fn to(cluster: Cluster) -> Mesh {
    Mesh::new().service(SERVICE, Service::to(CLUSTER)).cluster(CLUSTER, cluster)
}

pub(super) async fn ping_pong(mut stage: Stage) -> Result {
    let names = ["s1", "s2", "s3", "s4"];
    let servers = stage.servers(names).await?;
    stage.set(&to(round_robin(&servers))).await?;
    let mut client = stage.client(Calls::unary().none_may_fail()).await?;
    client.until(40, "calls at all four", |stats| stats.only(&names)).await?;
    client.still_runs()
}

pub(super) async fn evenly(mut stage: Stage) -> Result {
    let names = ["s1", "s2", "s3", "s4"];
    let servers = stage.servers(names).await?;
    stage.set(&to(round_robin(&servers))).await?;
    let mut client = stage.client(Calls::unary().none_may_fail()).await?;
    client.until(40, "calls at all four", |stats| stats.only(&names)).await?;
    // Tolerance of one: concurrent calls may fall on either side of the block's end.
    let even = |count: i32| (24..=26).contains(&count);
    client.now(100, "25 calls each", |stats| names.iter().all(|name| even(stats.of(name)))).await?;
    client.still_runs()
}

pub(super) async fn backends_restart(mut stage: Stage) -> Result {
    let names = ["s1", "s2", "s3", "s4"];
    let mut servers = stage.servers(names).await?;
    stage.set(&to(round_robin(&servers))).await?;
    let mut client = stage.client(Calls::unary()).await?;
    client.until(40, "calls at all four", |stats| stats.only(&names)).await?;
    let before = client.next(100).await?;
    for server in &mut servers {
        server.stop().await?;
    }
    client.until(50, "no call that succeeds", |stats| stats.by_peer.is_empty()).await?;
    for server in &mut servers {
        server.resume().await?;
    }
    client.until(40, "calls at all four again", |stats| stats.only(&names)).await?;
    let same = |name: &&str, count: i32| (before.of(name) - count).abs() <= 2;
    client
        .now(100, &format!("the spread of before ({:?})", before.by_peer), |stats| {
            names.iter().all(|name| same(name, stats.of(name)))
        })
        .await?;
    Ok(())
}

pub(super) async fn remove_instance_group(mut stage: Stage) -> Result {
    let first = stage.servers(["s1", "s2"]).await?;
    let second = stage.servers(["t1", "t2"]).await?;
    let group = |zone: &str, servers: &_| {
        let locality = Locality::zone(zone);
        endpoints(servers)
            .into_iter()
            .map(move |endpoint| endpoint.locality(locality.clone()))
            .collect::<Vec<_>>()
    };
    let one = || Cluster::new().policy("round_robin").endpoints(group("eu-1", &first));
    stage.set(&to(one().endpoints(group("eu-2", &second)))).await?;
    let mut client = stage.client(Calls::unary().none_may_fail()).await?;
    client.until(100, "calls at all four", |stats| stats.only(&["s1", "s2", "t1", "t2"])).await?;
    stage.set(&to(one())).await?;
    client.until(50, "calls at the remaining two only", |stats| stats.only(&["s1", "s2"])).await?;
    client.now(100, "no failure since", |stats| stats.only(&["s1", "s2"])).await?;
    client.still_runs()
}

pub(super) async fn change_backend_service(mut stage: Stage) -> Result {
    let first = stage.servers(["s1", "s2"]).await?;
    let second = stage.servers(["t1", "t2"]).await?;
    let mesh = |cluster: &str| {
        Mesh::new()
            .service(SERVICE, Service::to(cluster))
            .cluster("first", round_robin(&first))
            .cluster("second", round_robin(&second))
    };
    stage.set(&mesh("first")).await?;
    let mut client = stage.client(Calls::unary().none_may_fail()).await?;
    client.until(40, "calls at the first two", |stats| stats.only(&["s1", "s2"])).await?;
    stage.set(&mesh("second")).await?;
    client.until(40, "calls at the second two only", |stats| stats.only(&["t1", "t2"])).await?;
    client.still_runs()
}

pub(super) async fn affinity(mut stage: Stage) -> Result {
    let mut servers = stage.servers(["s1", "s2", "s3"]).await?;
    let cluster = Cluster::new().policy("ring_hash").endpoints(endpoints(&servers));
    let service = Service::new().route(Route::to(CLUSTER).hash(RouteHash::header("session")));
    stage.set(&Mesh::new().service(SERVICE, service).cluster(CLUSTER, cluster)).await?;
    let mut client = stage.client(Calls::unary().metadata("UnaryCall:session:4711")).await?;
    let one = |stats: &crate::driver::Stats| stats.failures == 0 && stats.by_peer.len() == 1;
    let stats = client.until(50, "all calls at one server", one).await?;
    let chosen = stats.by_peer.keys().next().cloned().unwrap_or_default();
    client.now(100, "all calls at the same server", |stats| stats.only(&[&chosen])).await?;
    for server in servers.iter_mut().filter(|server| server.name() == chosen) {
        server.stop().await?;
    }
    let another = |stats: &crate::driver::Stats| one(stats) && stats.of(&chosen) == 0;
    client.until(50, "all calls at one other server", another).await?;
    Ok(())
}

pub(super) async fn custom_lb(mut stage: Stage) -> Result {
    let servers = stage.servers(["s1", "s2"]).await?;
    let with = |behaviour: &str| {
        let own = ("test.RpcBehaviorLoadBalancer", json!({"rpcBehavior": behaviour}));
        let policy =
            ClusterPolicy::list([("test.NobodyHasThis", json!({})), own, ("round_robin", json!({}))]);
        to(Cluster::new().policy(policy).endpoints(endpoints(&servers)))
    };
    stage.set(&with("error-code-15")).await?;
    let mut client = stage.client(Calls::unary()).await?;
    client.until_results("UNARY_CALL", 15).await?;
    // The config changes, the policy stays.
    stage.set(&with("error-code-8")).await?;
    client.until_results("UNARY_CALL", 8).await?;
    let totals = client.totals().await?;
    let unavailable = totals.values().filter_map(|of_kind| of_kind.results.get(&14)).sum::<i32>();
    ensure(unavailable == 0, || format!("{unavailable} calls failed with UNAVAILABLE meanwhile"))
}
