//! The stage of the examples: one service, servers of it, and calls that are counted.
//!
//! What an example is about stands in its own folder; what any of them needs to have something to talk about is here. All of it is
//! on loopback. `shop` is what tonic would generate from a `.proto` file, `backend` a server that can be killed, drained, and made
//! to fail, `tally` calls by who answered them.

#![forbid(unsafe_code)]

mod backend;
mod guides;
pub mod shop;
mod tally;

use std::time::Duration;

pub use backend::{Backend, Tls};
use evenkeel::{Channel, ConnectivityState, Description, EndpointRow};
pub use tally::{Load, Tally};

/// What the examples end with.
pub type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Waits until the channel is connected to so many endpoints, so that shares can be counted from the first call on. Applications
/// have no need of it: calls wait by themselves.
pub async fn connected(channel: &Channel, count: usize) {
    let is_ready = |row: &&EndpointRow| row.state == ConnectivityState::Ready && row.unused.is_none();
    until(channel, |endpoints| endpoints.iter().filter(is_ready).count() == count).await;
}

/// Waits until the channel's endpoints are as asked for. [`Channel::tree`] tells how they are.
pub async fn until(channel: &Channel, condition: impl Fn(&[EndpointRow]) -> bool) {
    channel.connect();
    loop {
        let mut endpoints = Vec::new();
        if let Some(tree) = channel.tree().await {
            collect(tree, &mut endpoints);
        }
        if condition(&endpoints) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn collect(tree: Description, endpoints: &mut Vec<EndpointRow>) {
    endpoints.extend(tree.endpoints);
    for (_, child) in tree.children {
        collect(child, endpoints);
    }
}
