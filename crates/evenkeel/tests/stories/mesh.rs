//! Channels to `xds:///orders`: a real control plane, real backends, a generated client, and a load in which
//! no call may fail unless the test expects it.

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

/// Maximum wait. Only a failing test reaches it.
const LONG: Duration = Duration::from_secs(30);

/// Service `orders` with one cluster, and an unused channel to it.
struct Mesh {
    control: ControlPlane,
    backends: Vec<Backend>,
    channel: Channel,
}

impl Mesh {
    /// Starts with this number of backends in the cluster `pay`.
    async fn start(backends: usize) -> Mesh {
        Mesh::of(start(backends).await).await
    }

    /// Starts with these backends in the cluster `pay`.
    async fn of(backends: Vec<Backend>) -> Mesh {
        let control = ControlPlane::start().await;
        control.serve("orders", "pay", &addresses(&backends));
        let channel = channel(&control).build().expect("a channel");
        Mesh { control, backends, channel }
    }

    /// Returns the bootstrap of the channel.
    fn bootstrap(&self) -> Bootstrap {
        Bootstrap::from_json(&self.control.bootstrap("node-7")).expect("a bootstrap")
    }

    /// Returns the number of connections that each backend has accepted.
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

/// Returns a builder for a channel of the node `node-7`, with a short backoff.
fn channel(control: &ControlPlane) -> ChannelBuilder {
    channel_by(&control.bootstrap("node-7"))
}

/// Like [`channel`], with these server features in the bootstrap.
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

/// Returns a request with a deadline that only a failing test reaches.
fn request() -> Request<EchoRequest> {
    let mut request = Request::new(EchoRequest { payload: b"hello".to_vec(), ..EchoRequest::default() });
    request.set_timeout(LONG);
    request
}

fn patient(mut request: Request<EchoRequest>) -> Request<EchoRequest> {
    request.extensions_mut().insert(WaitForReady(true));
    request
}

/// Makes a call and returns the name of the backend.
async fn call(channel: &Channel) -> Result<String, Status> {
    send(channel, request()).await
}

async fn send(channel: &Channel, request: Request<EchoRequest>) -> Result<String, Status> {
    Ok(EchoClient::new(channel.clone()).unary(request).await?.into_inner().backend)
}

/// Makes sequential calls and returns the number per backend.
async fn shares(channel: &Channel, calls: usize) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for _ in 0..calls {
        *shares.entry(call(channel).await.expect("an answer")).or_default() += 1;
    }
    shares
}

/// Polls until a condition holds.
async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let waited = timeout(LONG, async {
        while !is_so().await {
            sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "waited in vain until {what}");
}

/// Waits until the channel's policy tree satisfies the condition.
async fn until_tree(channel: &Channel, what: &str, is_so: impl Fn(&Description) -> bool) {
    let is_so = &is_so;
    until(what, || async move { channel.tree().await.is_some_and(|tree| is_so(&tree)) }).await;
}

/// Returns all policies of a tree in pre-order.
fn policies(tree: &Description) -> Vec<&Description> {
    let below = tree.children.iter().flat_map(|(_, child)| policies(child));
    [tree].into_iter().chain(below).collect()
}

/// Returns all endpoints of a tree.
fn endpoints(tree: &Description) -> Vec<&EndpointRow> {
    policies(tree).into_iter().flat_map(|policy| &policy.endpoints).collect()
}

/// Returns the first addresses of all endpoints, sorted.
fn places(tree: &Description) -> Vec<String> {
    let mut places: Vec<_> = endpoints(tree).iter().map(|row| row.addresses[0].clone()).collect();
    places.sort();
    places
}
