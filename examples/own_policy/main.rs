//! How do I write a policy of my own, and have the control plane configure it?
//!
//! Implement one trait (`favourite.rs`) and register it with one call. The control plane names the policy in
//! a list, with its config and a fallback for clients without it. Check the shares: they follow the config,
//! and a client without the policy uses the fallback.

mod favourite;

use evenkeel::{Bootstrap, Channel, Registry};
use evenkeel_control::{Cluster, ClusterPolicy, ControlPlane, Endpoint, Mesh, Service};
use evenkeel_proto::envoy::config::cluster::v3::Cluster as ClusterResource;
use examples::{Backend, Outcome, Tally, connected};
use favourite::Favourite;
use serde_json::json;

#[tokio::main]
async fn main() -> Outcome {
    let servers = [Backend::start("a").await?, Backend::start("b").await?, Backend::start("c").await?];
    let control = ControlPlane::builder().serve().await?;
    control.set_mesh(&mesh(&servers, 80));
    let bootstrap = Bootstrap::from_json(&control.bootstrap("own-policy"))?;

    let mut registry = Registry::standard();
    registry.register::<Favourite>("example.Favourite");
    let knows = Channel::builder("xds:///orders").bootstrap(bootstrap.clone()).registry(registry).build()?;
    let does_not = Channel::builder("xds:///orders").bootstrap(bootstrap).build()?;
    connected(&knows, 3).await;
    connected(&does_not, 3).await;
    println!("80 % to the favourite: {}", Tally::of(&knows, 1_000).await);
    println!("without the policy:    {}", Tally::of(&does_not, 300).await);

    control.set_mesh(&mesh(&servers, 20));
    control.wait_acked::<ClusterResource>().await;
    println!("20 % to the favourite: {}", Tally::of(&knows, 1_000).await);

    // Invalid config: the client NACKs it and keeps the previous one.
    control.set_mesh(&mesh(&servers, 120));
    println!("120 %? {}", control.wait_nacked::<ClusterResource>().await.error);
    println!("still 20 %:            {}", Tally::of(&knows, 1_000).await);
    Ok(())
}

/// Clients receive the whole list. Each uses the first policy that it knows.
fn mesh(servers: &[Backend], percent: u32) -> Mesh {
    let policy =
        ClusterPolicy::list([("example.Favourite", json!({"percent": percent})), ("round_robin", json!({}))]);
    let endpoints = servers.iter().map(|server| Endpoint::at(server.address()));
    Mesh::new()
        .service("orders", Service::to("orders"))
        .cluster("orders", Cluster::new().policy(policy).endpoints(endpoints))
}
