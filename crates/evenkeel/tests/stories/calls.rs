//! Calls of a generated client, without a control plane: what users of tonic do with a channel.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod config;
pub(crate) mod cooperation;
mod deadlines;
mod ends;
mod kinds;
mod life;
mod panicked;
mod panics;
mod pick_headers;
mod retries;
mod security;
mod server;
mod streams;
mod targets;
mod waiting;

use std::panic::Location;
use std::time::Duration;

use evenkeel::{Backoff, Channel, ChannelBuilder, ConnectivityState};
use testkit::net::Backend;
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;

type Client = EchoClient<Channel>;

/// Only a failure takes this long.
const LONG: Duration = Duration::from_secs(30);

/// What `story` comes to; panics if it takes longer than anything takes.
#[track_caller]
fn within<T>(story: impl Future<Output = T>) -> impl Future<Output = T> {
    let place = Location::caller();
    async move {
        let ended = tokio::time::timeout(LONG, story).await;
        ended.unwrap_or_else(|_| panic!("waited in vain at {place}"))
    }
}

fn request(payload: impl Into<Vec<u8>>) -> EchoRequest {
    EchoRequest { payload: payload.into(), ..EchoRequest::default() }
}

/// A request without an answer; a server stream of it has `repeat` messages and no end.
fn endless(repeat: u32) -> EchoRequest {
    EchoRequest { forever: true, repeat, ..request("endless") }
}

/// Settings for a channel to these backends. It comes back to a backend within milliseconds.
fn to<'a>(backends: impl IntoIterator<Item = &'a Backend>) -> ChannelBuilder {
    let addresses: Vec<_> = backends.into_iter().map(|backend| backend.address().to_string()).collect();
    crate::builder(format!("ipv4:{}", addresses.join(","))).backoff(quick())
}

fn client(backend: &Backend) -> Client {
    EchoClient::new(to([backend]).build().unwrap())
}

/// Short waits between attempts to connect.
fn quick() -> Backoff {
    let wait = Duration::from_millis(20);
    Backoff { initial: wait, max: wait, ..Backoff::default() }
}

/// A service config with nothing but this policy.
fn policy(name: &str) -> String {
    format!(r#"{{"loadBalancingConfig": [{{"{name}": {{}}}}]}}"#)
}

/// Connects, and waits until so many endpoints are ready.
async fn connected(channel: &Channel, count: usize) {
    channel.connect();
    let ready = async {
        loop {
            let tree = channel.tree().await.unwrap_or_default();
            let ready = tree.endpoints.iter().filter(|row| row.state == ConnectivityState::Ready).count();
            if ready == count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(ready).await;
}

/// Waits until something is so that nobody tells of.
async fn until(is_so: impl Fn() -> bool) {
    within(async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Waits until the channel is in this state.
async fn becomes(channel: &Channel, state: ConnectivityState) {
    let mut states = channel.watch_connectivity();
    within(states.wait_for(|now| *now == state)).await.unwrap();
}
