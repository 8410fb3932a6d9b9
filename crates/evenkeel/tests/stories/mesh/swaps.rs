//! Changes of endpoints, clusters and routes under load.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use evenkeel::Description;
use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_proto::envoy::config::route::v3::RouteConfiguration;
use testkit::net::Backend;
use testkit::net::control::ResourceSetExt as _;
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use testkit::resources;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::{Mesh, addresses, call, places, shares, start, texts, until_tree};
use crate::load::Load;

/// Waits until every backend has this number of open connections.
async fn open(backends: &[Backend], connections: usize) {
    for backend in backends {
        backend.wait_until(|backend| backend.open_connections() == connections).await;
    }
}

/// fault 27: one update replaces all endpoints under load. No call fails, not even an active one, and the old
/// connections are closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_endpoints_are_swapped() {
    let mesh = Mesh::start(4).await;
    let (old, new) = (&mesh.backends, start(4).await);
    let load = Load::start(&mesh.channel, 16);
    load.further(12).await;
    // Some calls are active on connections that are about to be closed.
    old[0].pause();
    old[0].wait_until(|backend| backend.held() > 0).await;

    mesh.control.set_endpoints("pay", &addresses(&new));
    open(&new, 1).await;
    assert!(old[0].in_flight() > 0, "calls are on a connection that has been replaced");
    old[0].resume();
    open(old, 0).await;
    let calls: Vec<_> = old.iter().map(Backend::calls).collect();
    load.further(31).await;
    let counts = load.stop().await;
    println!("{} ok at {}/s, slowest {:?}", counts.ok, counts.rate, counts.slowest);
    counts.expect_none_failed();
    assert_eq!(old.iter().map(Backend::calls).collect::<Vec<_>>(), calls);
    assert!(old.iter().all(|backend| backend.in_flight() == 0));
}

/// fault 28: consecutive swaps, as fast as they are ACKed. No call fails, and no connection leaks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_swaps_in_a_row() {
    let mesh = Mesh::start(4).await;
    let others = start(4).await;
    let load = Load::start(&mesh.channel, 16);
    load.further(6).await;
    for swap in 0..30 {
        let next = if swap % 2 == 0 { &others } else { &mesh.backends };
        mesh.control.set_endpoints("pay", &addresses(next));
        mesh.control.wait_acked::<ClusterLoadAssignment>().await;
        load.further(1).await;
    }
    open(&mesh.backends, 1).await;
    open(&others, 0).await;
    let counts = load.stop().await;
    println!("{} ok at {}/s, slowest {:?}", counts.ok, counts.rate, counts.slowest);
    counts.expect_none_failed();
}

/// Returns the children of the root, one per cluster.
fn clusters(tree: &Description) -> Vec<&str> {
    tree.children.iter().map(|(name, _)| name.as_str()).collect()
}

/// fault 31: the routes change to an unknown cluster. The old one serves until the new one is complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_route_to_a_cluster_that_is_not_known_yet() {
    let mesh = Mesh::start(2).await;
    let new = start(2).await;
    let load = Load::start(&mesh.channel, 8);
    load.further(6).await;

    mesh.control.set(resources::route_config("orders", "new"));
    mesh.control.wait_until(|control| control.subscribed::<Cluster>().contains("new")).await;
    load.further(25).await;
    mesh.control.set(resources::cluster("new"));
    mesh.control.wait_until(|control| control.subscribed::<ClusterLoadAssignment>().contains("new")).await;
    load.further(25).await;
    assert_eq!(clusters(&mesh.channel.tree().await.unwrap()), ["cluster:pay"]);
    mesh.control.set_endpoints("new", &addresses(&new));
    open(&new, 1).await;
    open(&mesh.backends, 0).await;
    load.further(1).await;

    let counts = load.stop().await;
    println!("{} ok, slowest {:?}", counts.ok, counts.slowest);
    counts.expect_none_failed();
    assert_eq!(clusters(&mesh.channel.tree().await.unwrap()), ["cluster:new"]);
    mesh.control.wait_until(|control| control.subscribed::<Cluster>().len() == 1).await;
}

/// fault 32, CM-5: the routes drop a cluster with active calls. A call without response headers keeps the
/// cluster in the tree. A stream with headers does not, and continues. Each call finishes where it was sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_under_way_outlive_their_cluster() {
    let mesh = Mesh::start(1).await;
    let (old, new) = (&mesh.backends[0], start(1).await);
    mesh.control.update(|held| {
        held.set(resources::cluster("new"));
        held.set_endpoints("new", &addresses(&new));
    });

    let (sender, requests) = mpsc::channel(1);
    let mut client = EchoClient::new(mesh.channel.clone());
    sender.send(EchoRequest::default()).await.unwrap();
    let mut stream = client.bidi(ReceiverStream::new(requests)).await.unwrap().into_inner();
    assert_eq!(stream.next().await.unwrap().unwrap().backend, old.name());
    old.pause();
    let held_up: Vec<_> = (0..10)
        .map(|_| {
            let channel = mesh.channel.clone();
            tokio::spawn(async move { call(&channel).await })
        })
        .collect();
    old.wait_until(|old| old.in_flight() == 11).await;

    mesh.control.set(resources::route_config("orders", "new"));
    new[0].wait_until(|new| new.connections() == 1).await;
    assert_eq!(call(&mesh.channel).await.unwrap(), new[0].name());
    let both = ["cluster:new", "cluster:pay"];
    until_tree(&mesh.channel, "both clusters are there", |tree| clusters(tree) == both).await;
    for _ in 0..20 {
        assert_eq!(call(&mesh.channel).await.unwrap(), new[0].name());
    }
    assert_eq!(clusters(&mesh.channel.tree().await.unwrap()), both);
    assert!(held_up.iter().all(|call| !call.is_finished()));

    old.resume();
    for call in held_up {
        assert_eq!(call.await.unwrap().unwrap(), old.name());
    }
    until_tree(&mesh.channel, "the old cluster is gone", |tree| clusters(tree) == ["cluster:new"]).await;
    mesh.control
        .wait_until(|control| control.subscribed::<Cluster>() == BTreeSet::from(["new".to_owned()]))
        .await;
    sender.send(EchoRequest::default()).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().backend, old.name());
    assert_eq!(old.open_connections(), 1, "the stream has its connection");
    drop((sender, stream));
    old.wait_until(|old| old.open_connections() == 0).await;
}

/// CM-5, CM-7: routes alternate between two clusters under load, which are removed and added with them. No
/// call finds a tree without its cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_back_and_forth() {
    let mesh = Mesh::start(2).await;
    let others = start(2).await;
    mesh.control.update(|held| {
        held.set(resources::cluster("other"));
        held.set_endpoints("other", &addresses(&others));
    });
    let load = Load::start(&mesh.channel, 16);
    load.further(6).await;
    for turn in 0..50 {
        let cluster = if turn % 2 == 0 { "other" } else { "pay" };
        mesh.control.set(resources::route_config("orders", cluster));
        mesh.control.wait_acked::<RouteConfiguration>().await;
        load.further(1).await;
    }
    let calls = |backends: &[Backend]| backends.iter().map(Backend::calls).sum::<usize>();
    open(&mesh.backends, 1).await;
    open(&others, 0).await;
    let counts = load.stop().await;
    println!("{} ok at {}/s, slowest {:?}", counts.ok, counts.rate, counts.slowest);
    counts.expect_none_failed();
    assert!(calls(&others) > 50, "{}", calls(&others));
}

/// Starts backends, each at its own address.
async fn fleet(net: u8, endpoints: u8) -> Vec<Backend> {
    let mut fleet = Vec::new();
    for host in 1..=endpoints {
        fleet.push(Backend::builder().at(SocketAddr::from(([127, 0, net, host], 0))).start().await);
    }
    fleet
}

/// Connections follow the endpoints without calls: all of a hundred endpoints are replaced while there are
/// few calls. A call after the pass with the update uses only new ones. After a replacement without calls,
/// and the death of the old endpoints, none of the next thousand calls fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_is_replaced_while_few_call() {
    let mut mesh = Mesh::start(0).await;
    mesh.backends = fleet(11, 100).await;
    mesh.control.set_endpoints("pay", &addresses(&mesh.backends));
    for _ in 0..5 {
        call(&mesh.channel).await.unwrap();
    }
    open(&mesh.backends, 1).await;

    let new = fleet(12, 100).await;
    mesh.control.set_endpoints("pay", &addresses(&new));
    mesh.control.wait_acked::<ClusterLoadAssignment>().await;
    // An ACK does not mean applied. The tree shows the state of the last pass.
    let mut expected = texts(&new);
    expected.sort();
    until_tree(&mesh.channel, "the new ones are there", |tree| places(tree) == expected).await;
    let before: usize = mesh.backends.iter().map(Backend::calls).sum();
    for _ in 0..5 {
        let answered_by = call(&mesh.channel).await.unwrap();
        assert!(expected.contains(&answered_by), "{answered_by} is an old one");
    }
    assert_eq!(mesh.backends.iter().map(Backend::calls).sum::<usize>(), before);

    // No calls from here on.
    open(&mesh.backends, 0).await;
    open(&new, 1).await;
    let last = fleet(13, 100).await;
    mesh.control.set_endpoints("pay", &addresses(&last));
    open(&last, 1).await;
    open(&new, 0).await;
    new.iter().chain(&mesh.backends).for_each(Backend::kill);
    let shares = shares(&mesh.channel, 1_000).await;
    assert_eq!(shares.len(), 100);
    assert_eq!(mesh.connections(), [1; 100]);
}
