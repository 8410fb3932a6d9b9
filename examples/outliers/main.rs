//! How do clients eject a server that fails calls?
//!
//! The server is connected, and healthy according to the control plane. Only its callers see failures. With outlier
//! detection every client judges by its own calls. Check the failures: they stop although the server still fails.
//! After it is repaired, the ejection ends and it gets calls again.

use std::time::Duration;

use evenkeel::{Bootstrap, Channel};
use evenkeel_control::{Cluster, ControlPlane, Endpoint, FailurePercentage, Mesh, OutlierDetection, Service};
use examples::{Backend, Load, Outcome, connected};

#[tokio::main]
async fn main() -> Outcome {
    let mut servers = Vec::new();
    for name in ["a", "b", "c", "bad"] {
        servers.push(Backend::start(name).await?);
    }
    let control = ControlPlane::builder().serve().await?;
    control.set_mesh(&mesh(&servers));
    let bootstrap = Bootstrap::from_json(&control.bootstrap("outliers"))?;
    let channel = Channel::builder("xds:///orders").bootstrap(bootstrap).build()?;
    connected(&channel, 4).await;
    let calls = Load::start(channel.clone(), 200);
    println!("all is well:      {}", calls.over(Duration::from_secs(1)).await);

    servers[3].set_failing(true);
    connected(&channel, 3).await; // one is ejected, and the tree has the reason
    println!("until it is ejected: {}", calls.take());
    println!("ejected:          {}", calls.over(Duration::from_millis(800)).await);

    servers[3].set_failing(false);
    connected(&channel, 4).await;
    println!("after unejection: {}", calls.over(Duration::from_secs(1)).await);
    Ok(())
}

/// Short intervals, for a short example. Other settings have Envoy's defaults (docs/policies.md).
fn mesh(servers: &[Backend]) -> Mesh {
    let outliers = OutlierDetection {
        interval: Some(Duration::from_millis(500)),
        base_ejection_time: Some(Duration::from_secs(3)),
        failure_percentage: Some(FailurePercentage {
            threshold_percent: Some(50),
            minimum_hosts: Some(3),
            request_volume: Some(5),
            ..FailurePercentage::default()
        }),
        ..OutlierDetection::default()
    };
    let endpoints = servers.iter().map(|server| Endpoint::at(server.address()));
    let cluster = Cluster::new().policy("round_robin").endpoints(endpoints).outlier_detection(outliers);
    Mesh::new().service("orders", Service::to("orders")).cluster("orders", cluster)
}
