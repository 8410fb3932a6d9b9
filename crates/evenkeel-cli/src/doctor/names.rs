//! Wildcard LDS request to a control plane, to suggest names similar to a missing listener.
//!
//! Many control planes do not support wildcard requests, so a missing or empty response is not a failure.

use std::time::Duration;

use evenkeel::{Channel, Credentials};
use evenkeel_proto::envoy::config::core::v3::Node;
use evenkeel_proto::envoy::config::listener::v3::Listener;
use evenkeel_proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use evenkeel_proto::prost::{Message as _, Name as _};
use evenkeel_xds::bootstrap::ServerConfig;
use http::uri::PathAndQuery;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;

use super::bootstrap;

/// Maximum wait for the response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of names in a suggestion.
const MAX_NAMES: usize = 5;

/// Listeners that a control plane serves.
#[derive(Debug, Default)]
pub(super) struct ServedListeners {
    /// Listener names, most similar to the requested one first.
    pub(super) names: Vec<String>,
    /// True if no listener has an `api_listener`: all are meant for Envoy.
    pub(super) are_envoys: bool,
}

/// Requests all listeners of the control plane. Returns an empty result if there is no response.
pub(super) async fn nearest_listeners(wanted: &str, server: &ServerConfig, node: &Node) -> ServedListeners {
    let Ok(Some(listeners)) = timeout(RESPONSE_TIMEOUT, fetch_listeners(server, node)).await else {
        return ServedListeners::default();
    };
    let are_envoys =
        !listeners.is_empty() && listeners.iter().all(|listener| listener.api_listener.is_none());
    let mut names: Vec<_> = listeners.into_iter().map(|listener| listener.name).collect();
    names.sort_by_key(|name| (distance(wanted, name), name.clone()));
    names.truncate(MAX_NAMES);
    ServedListeners { names, are_envoys }
}

async fn fetch_listeners(server: &ServerConfig, node: &Node) -> Option<Vec<Listener>> {
    let credentials = bootstrap::credentials(server).ok()?.unwrap_or_else(Credentials::insecure);
    let channel = Channel::builder(&*server.uri).credentials(credentials).build().ok()?;
    let request = DiscoveryRequest {
        node: Some(node.clone()),
        type_url: Listener::type_url(),
        ..DiscoveryRequest::default()
    };
    // Keep the request stream open: an ADS server may end the RPC when the client half-closes.
    let requests = tokio_stream::once(request).chain(tokio_stream::pending());
    let path = PathAndQuery::from_static(
        "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
    );
    let codec = ProstCodec::<DiscoveryRequest, DiscoveryResponse>::default();
    let mut client = Grpc::new(channel);
    let answer = client.streaming(tonic::Request::new(requests), path, codec).await.ok()?;
    let first = answer.into_inner().message().await.ok()??;
    Some(first.resources.iter().filter_map(|any| Listener::decode(&*any.value).ok()).collect())
}

/// Distance of two names for sorting: 0 if one contains the other, else smaller for a longer common prefix.
fn distance(wanted: &str, name: &str) -> usize {
    if name.contains(wanted) || wanted.contains(name) {
        return 0;
    }
    let common = wanted.chars().zip(name.chars()).take_while(|(a, b)| a == b).count();
    usize::MAX - common
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn like_names_come_first() {
        let mut names = ["users", "order", "orders.prod:80", "orbit"];
        names.sort_by_key(|name| (distance("orders:80", name), *name));
        assert_eq!(names, ["order", "orders.prod:80", "orbit", "users"]);
    }
}
