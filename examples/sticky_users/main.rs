//! How do I send the same user to the same server?
//!
//! The route says what a call is hashed by, the policy is `ring_hash`. Look at who moves when a server leaves: only its own users;
//! and when it returns, they are back where they were.

use std::collections::BTreeMap;

use evenkeel::{Bootstrap, Channel};
use evenkeel_control::{Cluster, ControlPlane, Endpoint, Hash, Mesh, Policy, Route, Service};
use examples::shop::OrdersClient;
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

    // Connections are made when the first user needs them.
    let first = homes(&channel).await?;
    let again = homes(&channel).await?;
    println!("{USERS} users, called for twice: {} met the same server", same(&first, &again));
    for name in names {
        println!("  {name} has {} users", first.values().filter(|home| *home == name).count());
    }

    control.set_mesh(&mesh(&servers[..3]));
    until(&channel, |endpoints| endpoints.len() == 3).await;
    let without = homes(&channel).await?;
    let orphans = first.values().filter(|home| *home == "d").count();
    println!("d leaves: {} users moved, {orphans} were on d", USERS as usize - same(&first, &without));

    control.set_mesh(&mesh(&servers));
    until(&channel, |endpoints| endpoints.len() == 4).await;
    println!("d returns: {} users are where they were", same(&first, &homes(&channel).await?));
    Ok(())
}

/// Calls go by the header `x-user`.
fn mesh(servers: &[Backend]) -> Mesh {
    let service = Service::new().route(Route::to("orders").hash(Hash::header("x-user")));
    let cluster = Cluster::new()
        .policy(Policy::with("ring_hash", json!({"min_ring_size": 1024})))
        .endpoints(servers.iter().map(|server| Endpoint::at(server.address())));
    Mesh::new().service("orders", service).cluster("orders", cluster)
}

/// Calls once for every user: who answered whom.
async fn homes(channel: &Channel) -> Result<BTreeMap<u32, String>, Status> {
    let mut orders = OrdersClient::new(channel.clone());
    let mut homes = BTreeMap::new();
    for user in 0..USERS {
        let mut request = Request::new(String::new());
        request.metadata_mut().insert("x-user", user.into());
        homes.insert(user, orders.get(request).await?.into_inner());
    }
    Ok(homes)
}

fn same(before: &BTreeMap<u32, String>, after: &BTreeMap<u32, String>) -> usize {
    before.iter().filter(|(user, home)| after.get(user) == Some(home)).count()
}
