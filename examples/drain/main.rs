//! How do I take a server away without losing a call?
//!
//! There are two ways, both shown under load. The control plane marks the endpoint as DRAINING before it
//! stops, or the server sends GOAWAY, as every graceful shutdown of tonic does. Check `failed`: active calls
//! finish, and later ones use other servers.

use std::time::Duration;

use evenkeel::{Bootstrap, Channel};
use evenkeel_control::{Cluster, ControlPlane, Endpoint, EndpointHealth, Mesh, Service};
use examples::{Backend, Load, Outcome, connected};

#[tokio::main]
async fn main() -> Outcome {
    let [a, b, c] = [Backend::start("a").await?, Backend::start("b").await?, Backend::start("c").await?];
    for server in [&a, &b, &c] {
        // Long enough that some calls are always active.
        server.set_slow(Duration::from_millis(100));
    }
    let control = ControlPlane::builder().serve().await?;
    let endpoints = [&a, &b, &c].map(|server| Endpoint::at(server.address()));
    control.set_mesh(&mesh(endpoints.clone()));
    let bootstrap = Bootstrap::from_json(&control.bootstrap("drain"))?;
    let channel = Channel::builder("xds:///orders").bootstrap(bootstrap).build()?;
    connected(&channel, 3).await;
    let calls = Load::start(channel.clone(), 200);
    println!("three servers:        {}", calls.over(Duration::from_secs(1)).await);

    // The control plane acts first: a deployment, a scale-down.
    let [at_a, at_b, at_c] = endpoints;
    control.set_mesh(&mesh([at_a.clone().health(EndpointHealth::Draining), at_b.clone(), at_c.clone()]));
    connected(&channel, 2).await;
    a.drain().await;
    println!("while a is drained:   {}", calls.take());
    println!("without a:            {}", calls.over(Duration::from_millis(500)).await);

    // The server acts first: it shuts down gracefully, and the control plane does not know.
    b.drain().await;
    println!("while b stops:        {}", calls.take());
    println!("without b:            {}", calls.over(Duration::from_millis(500)).await);
    println!("those under way last: {}", calls.stop().await);
    Ok(())
}

fn mesh(endpoints: [Endpoint; 3]) -> Mesh {
    let cluster = Cluster::new().policy("round_robin").endpoints(endpoints);
    Mesh::new().service("orders", Service::to("orders")).cluster("orders", cluster)
}
