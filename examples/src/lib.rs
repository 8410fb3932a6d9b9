//! Shared parts of the examples: one service, its servers, and counted calls.
//!
//! All servers listen on loopback. `shop` is the code that tonic generates from `proto/shop.proto`.
//! `backend` is a server that can be killed, drained and made to fail. `tally` counts calls by server.

#![forbid(unsafe_code)]

mod backend;
mod guides;
pub mod shop;
mod tally;

use std::time::Duration;

pub use backend::{Backend, Tls};
use evenkeel::{Channel, ConnectivityState, Description, EndpointRow};
pub use tally::{Load, Tally};

/// Return type of the examples.
pub type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Waits until this number of endpoints is READY, so that shares can be counted from the first call.
/// Applications do not need it: calls wait for a connection.
pub async fn connected(channel: &Channel, count: usize) {
    let is_ready = |row: &&EndpointRow| row.state == ConnectivityState::Ready && row.unused.is_none();
    until(channel, |endpoints| endpoints.iter().filter(is_ready).count() == count).await;
}

/// Waits until the endpoints of the policy tree ([`Channel::tree`]) satisfy the condition.
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
