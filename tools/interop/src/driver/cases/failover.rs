//! Cases of failover between priorities.

use evenkeel_control::{Cluster, Locality, Mesh, Service};

use super::endpoints;
use crate::driver::stage::{CLUSTER, SERVICE, Server};
use crate::driver::{Calls, Result, Stage};

/// Returns a mesh with near servers in priority 0 and far ones in priority 1.
fn mesh(near: &[Server], far: &[Server]) -> Mesh {
    let place = |servers, zone: &str, priority| {
        let locality = Locality::zone(zone);
        let placed = endpoints(servers).into_iter();
        placed.map(|endpoint| endpoint.locality(locality.clone()).priority(priority)).collect::<Vec<_>>()
    };
    let cluster = Cluster::new()
        .policy("round_robin")
        .endpoints(place(near, "eu-1", 0))
        .endpoints(place(far, "eu-2", 1));
    Mesh::new().service(SERVICE, Service::to(CLUSTER)).cluster(CLUSTER, cluster)
}

pub(super) async fn secondary_locality_gets_requests_on_primary_failure(mut stage: Stage) -> Result {
    let (mut near, far) = (stage.servers(["s1", "s2"]).await?, stage.servers(["t1", "t2"]).await?);
    stage.set(&mesh(&near, &far)).await?;
    let mut client = stage.client(Calls::unary()).await?;
    client.until(40, "calls at the near servers only", |stats| stats.only(&["s1", "s2"])).await?;
    for server in &mut near {
        server.stop().await?;
    }
    client.until(40, "calls at the far servers only", |stats| stats.only(&["t1", "t2"])).await?;
    for server in &mut near {
        server.resume().await?;
    }
    client.until(40, "calls at the near servers only, again", |stats| stats.only(&["s1", "s2"])).await?;
    Ok(())
}

pub(super) async fn secondary_locality_gets_no_requests_on_partial_primary_failure(
    mut stage: Stage,
) -> Result {
    let (mut near, far) = (stage.servers(["s1", "s2"]).await?, stage.servers(["t1", "t2"]).await?);
    stage.set(&mesh(&near, &far)).await?;
    let mut client = stage.client(Calls::unary()).await?;
    client.until(40, "calls at the near servers only", |stats| stats.only(&["s1", "s2"])).await?;
    near[0].stop().await?;
    let none_far = |stats: &crate::driver::Stats| stats.of("t1") + stats.of("t2") == 0;
    // From the time of the failure on, not only after it has settled.
    client.now(100, "no call at a far server", none_far).await?;
    client.until(40, "calls at the remaining near server only", |stats| stats.only(&["s2"])).await?;
    client.now(100, "no call at a far server", |stats| stats.only(&["s2"])).await?;
    Ok(())
}
