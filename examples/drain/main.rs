//! How do I take a server away without losing a call?
//!
//! In either of two ways, under load: the control plane says that it drains and then it is stopped, or the server itself says that it
//! goes (HTTP/2's GOAWAY, which every orderly stop of a tonic server sends). Look at `failed`: calls that are under way finish, and
//! later ones go elsewhere.

use std::time::Duration;

use evenkeel::{Bootstrap, Channel};
use evenkeel_control::{Cluster, ControlPlane, Endpoint, EndpointHealth, Mesh, Service};
use examples::{Backend, Load, Outcome, connected};

#[tokio::main]
async fn main() -> Outcome {
    let [a, b, c] = [Backend::start("a").await?, Backend::start("b").await?, Backend::start("c").await?];
    for server in [&a, &b, &c] {
        // So there are always calls under way.
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

    // The control plane knows first: a deployment, a scale-down.
    let [at_a, at_b, at_c] = endpoints;
    control.set_mesh(&mesh([at_a.clone().health(EndpointHealth::Draining), at_b.clone(), at_c.clone()]));
    connected(&channel, 2).await;
    a.drain().await;
    println!("while a is drained:   {}", calls.take());
    println!("without a:            {}", calls.over(Duration::from_millis(500)).await);

    // The server knows first: it was told to stop, and nobody else was.
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
