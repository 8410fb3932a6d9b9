//! How do I send a few calls to a new version, and mine to it always?
//!
//! Routes do it: the first match takes the call. Calls with a header go to the new version. Of all others it
//! gets a share that the control plane can change at run time. Each call is drawn at random, so the shares
//! are close to the weights.

use evenkeel::{Bootstrap, Channel};
use evenkeel_control::{Cluster, ControlPlane, Endpoint, HeaderMatch, Mesh, Route, Service};
use evenkeel_proto::envoy::config::route::v3::RouteConfiguration;
use examples::shop::GetRequest;
use examples::shop::orders_client::OrdersClient;
use examples::{Backend, Outcome, Tally};
use tonic::Request;

#[tokio::main]
async fn main() -> Outcome {
    let servers = [Backend::start("v1").await?, Backend::start("v2").await?];
    let control = ControlPlane::builder().serve().await?;
    control.set_mesh(&mesh(&servers, 10));
    let bootstrap = Bootstrap::from_json(&control.bootstrap("canary"))?;
    let channel = Channel::builder("xds:///orders").bootstrap(bootstrap).build()?;

    println!("v2 for 10 %:           {}", Tally::of(&channel, 1_000).await);
    println!("with x-canary: please: {}", asking(&channel).await);

    control.set_mesh(&mesh(&servers, 50));
    control.wait_acked::<RouteConfiguration>().await;
    println!("v2 for 50 %:           {}", Tally::of(&channel, 1_000).await);

    control.set_mesh(&mesh(&servers, 0));
    control.wait_acked::<RouteConfiguration>().await;
    println!("v2 called off:         {}", Tally::of(&channel, 1_000).await);
    println!("with x-canary: please: {}", asking(&channel).await);
    Ok(())
}

fn mesh([v1, v2]: &[Backend; 2], percent: u32) -> Mesh {
    let service = Service::new()
        .route(Route::to("orders-v2").header("x-canary", HeaderMatch::exact("please")))
        .route(Route::split([("orders-v1", 100 - percent), ("orders-v2", percent)]));
    Mesh::new()
        .service("orders", service)
        .cluster("orders-v1", Cluster::new().endpoint(Endpoint::at(v1.address())))
        .cluster("orders-v2", Cluster::new().endpoint(Endpoint::at(v2.address())))
}

/// Makes calls with the header that selects the new version.
async fn asking(channel: &Channel) -> Tally {
    let mut orders = OrdersClient::new(channel.clone());
    let mut tally = Tally::default();
    for _ in 0..100 {
        let mut request = Request::new(GetRequest::default());
        request.metadata_mut().insert("x-canary", tonic::metadata::MetadataValue::from_static("please"));
        tally.add(orders.get(request).await);
    }
    tally
}
