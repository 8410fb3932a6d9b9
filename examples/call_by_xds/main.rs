//! How do I call a service that a control plane describes?
//!
//! The client's target is `xds:///orders`; the control plane supplies the rest. When the control plane
//! replaces every server, calls move to the new ones and none fails.

use std::time::Duration;

use evenkeel::{Bootstrap, Channel};
use evenkeel_control::{Cluster, ControlPlane, Endpoint, Mesh, Service};
use examples::shop::GetRequest;
use examples::shop::orders_client::OrdersClient;
use examples::{Backend, Outcome, Tally};
use tonic::Request;

#[tokio::main]
async fn main() -> Outcome {
    // Any xDS control plane works. This one is embedded, so that the example needs no other process.
    let control = ControlPlane::builder().serve().await?;
    let old = [Backend::start("old-1").await?, Backend::start("old-2").await?];
    control.set_mesh(&mesh(&old));

    // The client. In production the bootstrap comes from the environment (GRPC_XDS_BOOTSTRAP), and this is
    // `evenkeel::channel("xds:///orders")?`.
    let bootstrap = Bootstrap::from_json(&control.bootstrap("call-by-xds"))?;
    let channel = Channel::builder("xds:///orders").bootstrap(bootstrap).build()?;
    let mut orders = OrdersClient::new(channel.clone());
    let mut request = Request::new(GetRequest { id: "7".to_owned() });
    request.set_timeout(Duration::from_secs(5));
    let answer = orders.get(request).await?;
    println!("xds:///orders: response from {}", answer.into_inner().backend);

    // A deployment: one update replaces all servers while the client makes calls.
    let new = [Backend::start("new-1").await?, Backend::start("new-2").await?];
    let mut before = Tally::of(&channel, 20).await;
    control.set_mesh(&mesh(&new));
    let moved = loop {
        let answer = orders.get(GetRequest { id: "8".to_owned() }).await;
        if answer.as_ref().is_ok_and(|order| order.get_ref().backend.starts_with("new")) {
            break answer;
        }
        before.add(answer);
    };
    let mut after = Tally::of(&channel, 20).await;
    after.add(moved);
    println!("before the deployment: {before}");
    println!("after the deployment:  {after}");
    Ok(())
}

/// Returns a mesh with one service and one cluster. The format is described in docs/mesh.md.
fn mesh(servers: &[Backend]) -> Mesh {
    let endpoints = servers.iter().map(|server| Endpoint::at(server.address()));
    let cluster = Cluster::new().policy("round_robin").endpoints(endpoints);
    Mesh::new().service("orders", Service::to("orders-prod")).cluster("orders-prod", cluster)
}
