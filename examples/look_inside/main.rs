//! How do I see what a running process does with its calls?
//!
//! One line starts an admin server with a live page, its data as JSON, and CSDS for tools such as grpcdebug.
//! Compare `want` and `got`: the expected and the actual share of an endpoint.
//!
//! It ends after a few seconds. Run `cargo run -p examples --bin look_inside -- --stay` to keep the page
//! open.

use std::time::Duration;

use evenkeel::admin::AdminServer;
use evenkeel::{Bootstrap, Channel};
use evenkeel_control::{Cluster, ControlPlane, Endpoint, Mesh, Service};
use examples::{Backend, Load, Outcome, connected};

#[tokio::main]
async fn main() -> Outcome {
    // Start it before the calls, which are counted from here on. It listens on loopback by default.
    let admin = AdminServer::builder().start().await?;
    println!("the page: http://{}/", admin.address());

    let servers = [Backend::start("a").await?, Backend::start("b").await?, Backend::start("c").await?];
    let control = ControlPlane::builder().serve().await?;
    control.set_mesh(&mesh(&servers));
    let bootstrap = Bootstrap::from_json(&control.bootstrap("look-inside"))?;
    let channel = Channel::builder("xds:///orders").bootstrap(bootstrap).build()?;
    connected(&channel, 3).await;
    let calls = Load::start(channel, 300);
    let stay = std::env::args().any(|argument| argument == "--stay");
    tokio::time::sleep(if stay { Duration::MAX } else { Duration::from_secs(3) }).await;
    drop(calls);

    // The data behind the page.
    let state = admin.watch().state();
    for channel in &state.channels {
        println!("{} is {:?}", channel.target, channel.state);
        for endpoint in &channel.endpoints {
            println!(
                "  {:<8} {:?}, weight {}, want {:.1} %, got {:.1} %, {} calls, {} failed",
                endpoint.name.as_deref().unwrap_or("?"),
                endpoint.state,
                endpoint.weight.unwrap_or_default(),
                endpoint.want.unwrap_or_default() * 100.0,
                endpoint.got.unwrap_or_default() * 100.0,
                endpoint.traffic.started,
                endpoint.traffic.failed,
            );
        }
    }
    for resource in state.xds.iter().flat_map(|client| &client.resources) {
        println!(
            "  {:<22} {:<8} {} at version {}",
            resource.kind, resource.name, resource.status, resource.version
        );
    }
    Ok(())
}

fn mesh(servers: &[Backend]) -> Mesh {
    let weighted = servers.iter().zip(1..);
    let endpoints =
        weighted.map(|(server, weight)| Endpoint::at(server.address()).name(server.name()).weight(weight));
    Mesh::new()
        .service("orders", Service::to("orders"))
        .cluster("orders", Cluster::new().endpoints(endpoints))
}
