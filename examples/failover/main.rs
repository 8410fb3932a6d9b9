//! How do calls go to another region when ours is down, and come back?
//!
//! Priorities do it: all calls go to the first priority that works. Check the failures: when a region dies,
//! later calls go to the other. When it recovers, calls return without any action.

use std::time::Duration;

use evenkeel::{Bootstrap, Channel};
use evenkeel_control::{ControlPlane, Mesh};
use examples::shop::GetRequest;
use examples::shop::orders_client::OrdersClient;
use examples::{Backend, Outcome, Tally, connected};

#[tokio::main]
async fn main() -> Outcome {
    let eu = [Backend::start("eu-1").await?, Backend::start("eu-2").await?];
    let us = [Backend::start("us-1").await?, Backend::start("us-2").await?];
    let control = ControlPlane::builder().serve().await?;
    control.set_mesh(&mesh(&eu, &us)?);
    let bootstrap = Bootstrap::from_json(&control.bootstrap("failover"))?;
    let channel = Channel::builder("xds:///orders").bootstrap(bootstrap).build()?;
    connected(&channel, 2).await;
    println!("all is well:  {}", Tally::of(&channel, 40).await);

    let addresses = eu.each_ref().map(Backend::address);
    for server in eu {
        server.kill().await;
    }
    println!("eu is down:   {}", Tally::of(&channel, 40).await);

    let eu = [
        Backend::start_at("eu-1", addresses[0], None).await?,
        Backend::start_at("eu-2", addresses[1], None).await?,
    ];
    // Subchannels reconnect after a backoff of about one second. The first READY one brings the calls back.
    let mut orders = OrdersClient::new(channel.clone());
    let mut returning = Tally::default();
    while returning.by("eu-1") + returning.by("eu-2") == 0 {
        returning.add(orders.get(GetRequest::default()).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("eu returns:   {returning}");
    println!("and from then on: {}", Tally::of(&channel, 40).await);
    drop(eu);
    Ok(())
}

/// The `retry` policy covers calls that a dying server had received. Calls that no server processed are
/// retried transparently.
fn mesh(eu: &[Backend; 2], us: &[Backend; 2]) -> Result<Mesh, Box<dyn std::error::Error>> {
    let ([eu_1, eu_2], [us_1, us_2]) =
        (eu.each_ref().map(Backend::address), us.each_ref().map(Backend::address));
    Ok(Mesh::from_yaml(&format!(
        "
services:
  orders:
    retry: {{on: [unavailable], attempts: 5}}
clusters:
  orders:
    policy: round_robin
    localities:
      eu/eu-1a: {{priority: 0}}
      us/us-1a: {{priority: 1}}
    endpoints:
      - {{address: {eu_1}, locality: eu/eu-1a}}
      - {{address: {eu_2}, locality: eu/eu-1a}}
      - {{address: {us_1}, locality: us/us-1a}}
      - {{address: {us_2}, locality: us/us-1a}}
"
    ))?)
}
