//! How do I get retries and timeouts without writing them?
//!
//! The control plane's routes configure them. One of three servers fails every call and one is slow. The
//! client's code does not change while the mesh adds settings. Check the failures and their messages.

use std::time::{Duration, Instant};

use evenkeel::{Bootstrap, Channel};
use evenkeel_control::{Cluster, ControlPlane, Endpoint, Mesh, RetryOn, Route, RouteRetry, Service};
use evenkeel_proto::envoy::config::route::v3::RouteConfiguration;
use examples::shop::GetRequest;
use examples::shop::orders_client::OrdersClient;
use examples::{Backend, Outcome, Tally, connected};

#[tokio::main]
async fn main() -> Outcome {
    let servers =
        [Backend::start("good").await?, Backend::start("bad").await?, Backend::start("fine").await?];
    servers[1].set_failing(true);
    let control = ControlPlane::builder().serve().await?;
    control.set_mesh(&mesh(&servers, Route::to("orders")));
    let bootstrap = Bootstrap::from_json(&control.bootstrap("retries"))?;
    let channel = Channel::builder("xds:///orders").bootstrap(bootstrap).build()?;
    connected(&channel, 3).await;
    println!("as it is:     {}", Tally::of(&channel, 60).await);

    // Up to three attempts, the second after at most 10 ms, and only on UNAVAILABLE.
    let retry = RouteRetry::on([RetryOn::Unavailable])
        .attempts(3)
        .backoff(Duration::from_millis(10), Duration::from_millis(100));
    control.set_mesh(&mesh(&servers, Route::to("orders").retry(retry.clone())));
    control.wait_acked::<RouteConfiguration>().await;
    println!("with retries: {}", Tally::of(&channel, 60).await);

    // Timeout of the whole call, with all attempts. The server gets it as `grpc-timeout`.
    let route = Route::to("orders").retry(retry).timeout(Duration::from_millis(200));
    control.set_mesh(&mesh(&servers, route));
    control.wait_acked::<RouteConfiguration>().await;
    servers[0].set_slow(Duration::from_secs(30));
    let mut orders = OrdersClient::new(channel);
    for _ in 0..6 {
        let began = Instant::now();
        if let Err(status) = orders.get(GetRequest::default()).await {
            println!("with a limit of 200 ms: after {} ms {status}", began.elapsed().as_millis());
            break;
        }
    }
    Ok(())
}

fn mesh(servers: &[Backend], route: Route) -> Mesh {
    let endpoints = servers.iter().map(|server| Endpoint::at(server.address()));
    Mesh::new()
        .service("orders", Service::new().route(route))
        .cluster("orders", Cluster::new().policy("round_robin").endpoints(endpoints))
}
