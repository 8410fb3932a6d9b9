//! Calls of a generated tonic client without a control plane.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod config;
pub(crate) mod cooperation;
mod deadlines;
mod ends;
mod kinds;
mod life;
mod limits;
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

/// Maximum wait. Only a failing test reaches it.
const LONG: Duration = Duration::from_secs(30);

/// Awaits a future, and panics after [`LONG`] with the caller's location.
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

/// Returns a request without a response. As a server stream it sends `repeat` messages and never ends.
fn endless(repeat: u32) -> EchoRequest {
    EchoRequest { forever: true, repeat, ..request("endless") }
}

/// Returns a builder for a channel to these backends, with a backoff of milliseconds.
fn to<'a>(backends: impl IntoIterator<Item = &'a Backend>) -> ChannelBuilder {
    let addresses: Vec<_> = backends.into_iter().map(|backend| backend.address().to_string()).collect();
    crate::builder(format!("ipv4:{}", addresses.join(","))).backoff(quick())
}

fn client(backend: &Backend) -> Client {
    EchoClient::new(to([backend]).build().unwrap())
}

/// Returns a backoff of 20 ms.
fn quick() -> Backoff {
    let wait = Duration::from_millis(20);
    Backoff { initial: wait, max: wait, ..Backoff::default() }
}

/// Returns a service config with this policy only.
fn policy(name: &str) -> String {
    format!(r#"{{"loadBalancingConfig": [{{"{name}": {{}}}}]}}"#)
}

/// Connects, and waits until this number of endpoints is READY.
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

/// Polls a condition that has no notification.
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
