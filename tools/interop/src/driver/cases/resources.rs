//! Cases of CSDS: the client's view of its xDS resources.

use std::collections::BTreeMap;

use evenkeel_control::{Mesh, Service};
use evenkeel_proto::envoy::admin::v3::ClientResourceStatus;

use super::round_robin;
use crate::driver::stage::{CLUSTER, SERVICE};
use crate::driver::{Calls, Result, Stage};

pub(super) async fn csds(mut stage: Stage) -> Result {
    let servers = stage.servers(["s1"]).await?;
    let mesh = Mesh::new().service(SERVICE, Service::to(CLUSTER)).cluster(CLUSTER, round_robin(&servers));
    stage.set(&mesh).await?;
    let mut client = stage.client(Calls::unary()).await?;
    client.until(10, "calls that succeed", |stats| stats.only(&["s1"])).await?;
    let mut told = BTreeMap::new();
    for config in client.xds_config().await? {
        for resource in config.generic_xds_configs {
            let kind = resource.type_url.rsplit('.').next().unwrap_or_default().to_owned();
            told.insert((kind, resource.name.clone()), resource.client_status());
        }
    }
    let expected = [
        ("Listener", SERVICE),
        ("RouteConfiguration", SERVICE),
        ("Cluster", CLUSTER),
        ("ClusterLoadAssignment", CLUSTER),
    ];
    let expected: BTreeMap<_, _> = expected
        .map(|(kind, name)| ((kind.to_owned(), name.to_owned()), ClientResourceStatus::Acked))
        .into_iter()
        .collect();
    if told == expected {
        return Ok(());
    }
    Err(client.failure(&format!("reports {told:?}; expected {expected:?}")))
}
