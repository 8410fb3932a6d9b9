//! How do I send the same user to the same server?
//!
//! The route sets the hash policy, and the cluster uses `ring_hash`. Check which users move. When a server is
//! down, only its users do, and they return with it. When it is removed from the list, a few others move too,
//! because the ring is rebuilt.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel::{Bootstrap, Channel};
use evenkeel_control::{Cluster, ClusterPolicy, ControlPlane, Endpoint, Mesh, Route, RouteHash, Service};
use examples::shop::GetRequest;
use examples::shop::orders_client::OrdersClient;
use examples::{Backend, Outcome, until};
use serde_json::json;
use tonic::{Request, Status};

const USERS: u32 = 200;

#[tokio::main]
async fn main() -> Outcome {
    let names = ["a", "b", "c", "d"];
    let mut servers = Vec::new();
    for name in names {
        servers.push(Backend::start(name).await?);
    }
    let control = ControlPlane::builder().serve().await?;
    control.set_mesh(&mesh(&servers));
    let bootstrap = Bootstrap::from_json(&control.bootstrap("sticky-users"))?;
    let channel = Channel::builder("xds:///orders").bootstrap(bootstrap).build()?;

    // ring_hash connects to an endpoint when the first call needs it.
    let first = homes(&channel).await?;
    let again = homes(&channel).await?;
    println!("{USERS} users, two calls each: {} met another server", moved(&first, &again));
    for name in names {
        println!("  {name} has {} users", first.values().filter(|home| *home == name).count());
    }

    let on_d = first.values().filter(|home| *home == "d").count();
    let d = servers.pop().ok_or("there are four")?;
    let (address, with_d) = (d.address(), mesh(servers.iter().chain([&d])));
    d.kill().await;
    println!("d is down: {} users moved, {on_d} were on d", moved(&first, &homes(&channel).await?));

    let d = Backend::start_at("d", address, None).await?;
    // The subchannel reconnects after a backoff of about one second.
    while moved(&first, &homes(&channel).await?) > 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("d is back: all users are where they were");

    control.set_mesh(&mesh(&servers));
    until(&channel, |endpoints| endpoints.len() == 3).await;
    println!("d is off the list: {} users moved, {on_d} were on d", moved(&first, &homes(&channel).await?));

    control.set_mesh(&with_d);
    until(&channel, |endpoints| endpoints.len() == 4).await;
    println!(
        "d is on it again: {} users are elsewhere than at first",
        moved(&first, &homes(&channel).await?)
    );
    drop(d);
    Ok(())
}

/// Returns a mesh that hashes the header `x-user`.
fn mesh<'a>(servers: impl IntoIterator<Item = &'a Backend>) -> Mesh {
    let service = Service::new().route(Route::to("orders").hash(RouteHash::header("x-user")));
    let cluster = Cluster::new()
        .policy(ClusterPolicy::with("ring_hash", json!({"min_ring_size": 1024})))
        .endpoints(servers.into_iter().map(|server| Endpoint::at(server.address())));
    Mesh::new().service("orders", service).cluster("orders", cluster)
}

/// Makes one call per user, and returns the serving backend of each.
async fn homes(channel: &Channel) -> Result<BTreeMap<u32, String>, Status> {
    let mut orders = OrdersClient::new(channel.clone());
    let mut homes = BTreeMap::new();
    for user in 0..USERS {
        let mut request = Request::new(GetRequest::default());
        request.metadata_mut().insert("x-user", user.into());
        homes.insert(user, orders.get(request).await?.into_inner().backend);
    }
    Ok(homes)
}

/// Returns the number of users with another server than before.
fn moved(before: &BTreeMap<u32, String>, after: &BTreeMap<u32, String>) -> usize {
    before.iter().filter(|(user, home)| after.get(user) != Some(home)).count()
}
