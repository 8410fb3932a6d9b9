//! How do I test my client against a control plane?
//!
//! The embedded control plane exposes the ACKs and NACKs of its clients. A test changes a resource, waits for
//! the ACK or NACK, and then checks its calls, without a sleep. In a real test every `check` is an `assert!`.

use std::time::Duration;

use evenkeel::{Bootstrap, Channel};
use evenkeel_control::{Cluster, ControlPlane, Endpoint, FaultModes, Mesh, Service};
use evenkeel_proto::envoy::config::cluster::v3::Cluster as ClusterResource;
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use examples::shop::GetRequest;
use examples::shop::orders_client::OrdersClient;
use examples::{Backend, Outcome};
use tonic::{Code, Request};

#[tokio::main]
async fn main() -> Outcome {
    let server = Backend::start("a").await?;
    let mesh = Mesh::new()
        .service("orders", Service::to("orders"))
        .cluster("orders", Cluster::new().endpoint(Endpoint::at(server.address())));
    let control = ControlPlane::builder().serve().await?;
    control.set_mesh(&mesh);
    let bootstrap = Bootstrap::from_json(&control.bootstrap("test-a-client"))?;
    let channel = Channel::builder("xds:///orders").bootstrap(bootstrap.clone()).build()?;
    let mut orders = OrdersClient::new(channel);
    check("a call gets through", orders.get(GetRequest::default()).await.is_ok());

    control.wait_acked::<ClusterLoadAssignment>().await;
    check("the endpoints were accepted", true);
    let clients = control.clients();
    check("the client sends its node id", clients.iter().any(|client| client.node_id == "test-a-client"));

    // A resource that gRPC clients reject: a cluster without a discovery type.
    control.update(|resources| {
        resources.set(ClusterResource { name: "orders".to_owned(), ..ClusterResource::default() });
    });
    let nack = control.wait_nacked::<ClusterResource>().await;
    println!("      message: {}", nack.error);
    check("a bad cluster is rejected by name", nack.error.contains("orders"));
    check("and calls go on", orders.get(GetRequest::default()).await.is_ok());
    control.set_mesh(&mesh);
    control.wait_acked::<ClusterResource>().await;
    check("a good one is accepted again", true);

    // No endpoints: calls fail at once with the reason.
    control.set_mesh(&mesh.clone().cluster("orders", Cluster::new()));
    control.wait_acked::<ClusterLoadAssignment>().await;
    let failure = loop {
        if let Err(status) = orders.get(GetRequest::default()).await {
            break status;
        }
    };
    println!("      message: {}", failure.message());
    check("without endpoints calls fail", failure.code() == Code::Unavailable);

    // A silent control plane: calls of a new channel wait until their deadline.
    control.set_fault_modes(FaultModes { silent: true, ..FaultModes::default() });
    let client = evenkeel::XdsClient::builder(bootstrap).build();
    let mut waiting = OrdersClient::new(Channel::builder("xds:///orders").xds_client(client).build()?);
    let mut request = Request::new(GetRequest::default());
    request.set_timeout(Duration::from_millis(300));
    let status = waiting.get(request).await.err();
    let message = status.as_ref().map_or("", |status| status.message());
    println!("      message: {message}");
    check(
        "a silent control plane",
        status.as_ref().is_some_and(|status| status.code() == Code::DeadlineExceeded),
    );
    Ok(())
}

fn check(what: &str, holds: bool) {
    println!("{} {what}", if holds { "ok   " } else { "FAILED" });
}
