//! Channels to `xds:///orders`: a real control plane, real backends, a generated client, and a load that nothing may
//! disturb unless the story says so.

mod balance;
mod cooperation;
mod load_reports;
mod process;
mod resources;
mod routing;
mod security;
mod start;
mod swaps;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use evenkeel::{Backoff, Bootstrap, Channel, ChannelBuilder, Description, EndpointRow, WaitForReady};
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use testkit::net::{Backend, ControlPlane};
use tokio::time::{sleep, timeout};
use tonic::{Request, Status};

/// Only a failure takes this long.
const LONG: Duration = Duration::from_secs(30);

/// A service `orders` with one cluster, and a channel to it that was not used yet.
struct Mesh {
    control: ControlPlane,
    backends: Vec<Backend>,
    channel: Channel,
}

impl Mesh {
    /// With so many backends in the cluster `pay`.
    async fn start(backends: usize) -> Mesh {
        Mesh::of(start(backends).await).await
    }

    /// With these backends in the cluster `pay`.
    async fn of(backends: Vec<Backend>) -> Mesh {
        let control = ControlPlane::start().await;
        control.serve("orders", "pay", &addresses(&backends));
        let channel = channel(&control).build().expect("a channel");
        Mesh { control, backends, channel }
    }

    /// What the channel was made with.
    fn bootstrap(&self) -> Bootstrap {
        Bootstrap::from_json(&self.control.bootstrap("node-7")).expect("a bootstrap")
    }

    /// How often each backend was connected to.
    fn connections(&self) -> Vec<usize> {
        self.backends.iter().map(Backend::connections).collect()
    }
}

async fn start(backends: usize) -> Vec<Backend> {
    let mut started = Vec::new();
    for _ in 0..backends {
        started.push(Backend::start().await);
    }
    started
}

/// A channel of the node `node-7`. It goes back to an endpoint soon.
fn channel(control: &ControlPlane) -> ChannelBuilder {
    channel_by(&control.bootstrap("node-7"))
}

/// The same, whose control plane has these features in the bootstrap.
fn channel_with(control: &ControlPlane, features: &str) -> ChannelBuilder {
    channel_by(&control.bootstrap("node-7").replace("\"xds_v3\"", features))
}

fn channel_by(bootstrap: &str) -> ChannelBuilder {
    let soon = Duration::from_millis(50);
    let backoff = Backoff { initial: soon, max: soon, ..Backoff::default() };
    crate::builder("xds:///orders")
        .bootstrap(Bootstrap::from_json(bootstrap).expect("a bootstrap"))
        .backoff(backoff)
}

fn addresses<'b>(backends: impl IntoIterator<Item = &'b Backend>) -> Vec<SocketAddr> {
    backends.into_iter().map(Backend::address).collect()
}

fn texts<'b>(backends: impl IntoIterator<Item = &'b Backend>) -> Vec<String> {
    backends.into_iter().map(|backend| backend.address().to_string()).collect()
}

/// A request with a deadline that only a failure reaches.
fn request() -> Request<EchoRequest> {
    let mut request = Request::new(EchoRequest { payload: b"hello".to_vec(), ..EchoRequest::default() });
    request.set_timeout(LONG);
    request
}

fn patient(mut request: Request<EchoRequest>) -> Request<EchoRequest> {
    request.extensions_mut().insert(WaitForReady(true));
    request
}

/// Calls once; answers with the name of the backend.
async fn call(channel: &Channel) -> Result<String, Status> {
    send(channel, request()).await
}

async fn send(channel: &Channel, request: Request<EchoRequest>) -> Result<String, Status> {
    Ok(EchoClient::new(channel.clone()).unary(request).await?.into_inner().backend)
}

/// Calls so many times, one after the other; answers how many each backend got.
async fn shares(channel: &Channel, calls: usize) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for _ in 0..calls {
        *shares.entry(call(channel).await.expect("an answer")).or_default() += 1;
    }
    shares
}

/// Waits until something is so.
async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let waited = timeout(LONG, async {
        while !is_so().await {
            sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "waited in vain until {what}");
}

/// Waits until the channel's tree is as described.
async fn until_tree(channel: &Channel, what: &str, is_so: impl Fn(&Description) -> bool) {
    let is_so = &is_so;
    until(what, || async move { channel.tree().await.is_some_and(|tree| is_so(&tree)) }).await;
}

/// All policies of a tree, from the root down.
fn policies(tree: &Description) -> Vec<&Description> {
    let below = tree.children.iter().flat_map(|(_, child)| policies(child));
    [tree].into_iter().chain(below).collect()
}

/// All endpoints of a tree.
fn endpoints(tree: &Description) -> Vec<&EndpointRow> {
    policies(tree).into_iter().flat_map(|policy| &policy.endpoints).collect()
}

/// Their first addresses, in order.
fn places(tree: &Description) -> Vec<String> {
    let mut places: Vec<_> = endpoints(tree).iter().map(|row| row.addresses[0].clone()).collect();
    places.sort();
    places
}
