//! How does the control plane give servers unequal shares?
//!
//! Each endpoint has a weight. Clients schedule picks in the exact order of the weights (earliest deadline
//! first), not at random. The shares are therefore exact after a few calls. A changed weight applies from the
//! next pick on.

use evenkeel::{Bootstrap, Channel};
use evenkeel_control::{ControlPlane, Mesh};
use examples::shop::GetRequest;
use examples::shop::orders_client::OrdersClient;
use examples::{Backend, Outcome, Tally, connected, until};

#[tokio::main]
async fn main() -> Outcome {
    let servers = [Backend::start("a").await?, Backend::start("b").await?, Backend::start("c").await?];
    let control = ControlPlane::builder().serve().await?;
    control.set_mesh(&mesh(&servers, [1, 2, 3])?);
    let bootstrap = Bootstrap::from_json(&control.bootstrap("weights"))?;
    let channel = Channel::builder("xds:///orders").bootstrap(bootstrap).build()?;
    connected(&channel, 3).await;

    let mut orders = OrdersClient::new(channel.clone());
    let mut order = Vec::new();
    for _ in 0..12 {
        order.push(orders.get(GetRequest::default()).await?.into_inner().backend);
    }
    println!("in this order:  {}", order.join(" "));
    println!("weights 1 2 3:  {}", Tally::of(&channel, 60).await);

    control.set_mesh(&mesh(&servers, [8, 1, 1])?);
    until(&channel, |endpoints| endpoints.iter().any(|row| row.weight == Some(8.0))).await;
    println!("weights 8 1 1:  {}", Tally::of(&channel, 60).await);
    Ok(())
}

fn mesh(servers: &[Backend; 3], weights: [u32; 3]) -> Result<Mesh, Box<dyn std::error::Error>> {
    let [a, b, c] = servers.each_ref().map(Backend::address);
    Ok(Mesh::from_yaml(&format!(
        "
services:
  orders: {{}}                                # clients say xds:///orders
clusters:
  orders:                                   # no policy: the endpoints' weights, in exact order
    endpoints:
      - {{address: {a}, weight: {}}}
      - {{address: {b}, weight: {}}}
      - {{address: {c}, weight: {}}}
",
        weights[0], weights[1], weights[2]
    ))?)
}
