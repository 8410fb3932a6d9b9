//! evenkeel's part of the benches: a control plane, and a channel through it.

use std::net::SocketAddr;

use evenkeel::{Bootstrap, Channel};
use evenkeel_proto::envoy::config::cluster::v3::LoadBalancingPolicy;
use evenkeel_proto::envoy::config::cluster::v3::load_balancing_policy::Policy;
use evenkeel_proto::envoy::config::core::v3::TypedExtensionConfig;
use evenkeel_proto::envoy::extensions::load_balancing_policies::client_side_weighted_round_robin::v3::ClientSideWeightedRoundRobin;
use evenkeel_proto::envoy::extensions::load_balancing_policies::wrr_locality::v3::WrrLocality;
use evenkeel_proto::prost::Name;
use testkit::net::ControlPlane;
use testkit::resources;

use crate::Error;

/// Starts a control plane whose `xds:///bench` is weighted_round_robin over the backends, with further ones
/// in a second priority. Prints its address. It lives as long as the process.
pub(crate) async fn control_plane(
    backends: &[SocketAddr],
    standing_by: &[SocketAddr],
    config: ClientSideWeightedRoundRobin,
) -> Result<SocketAddr, Error> {
    let control = ControlPlane::start().await;
    control.serve("bench", "backends", backends);
    if !standing_by.is_empty() {
        let addresses: [Vec<String>; 2] =
            [backends, standing_by].map(|all| all.iter().map(ToString::to_string).collect());
        let [first, second] =
            addresses.each_ref().map(|all| all.iter().map(String::as_str).collect::<Vec<_>>());
        let mut endpoints = resources::load_assignment("backends", &[]);
        endpoints.endpoints =
            vec![resources::locality("a", 1, 0, &first), resources::locality("b", 1, 1, &second)];
        control.set(endpoints);
    }
    let locality = WrrLocality { endpoint_picking_policy: Some(policy(&config)) };
    let mut cluster = resources::cluster("backends");
    cluster.load_balancing_policy = Some(policy(&locality));
    control.set(cluster);
    let address = control.address();
    std::mem::forget(control);
    Ok(address)
}

fn policy<M: Name>(config: &M) -> LoadBalancingPolicy {
    let config =
        TypedExtensionConfig { name: M::NAME.to_owned(), typed_config: Some(resources::any(config)) };
    LoadBalancingPolicy { policies: vec![Policy { typed_extension_config: Some(config) }] }
}

/// Returns a channel to `xds:///bench` of the control plane, with all backends connected.
pub(crate) async fn channel(control: SocketAddr) -> Result<Channel, Error> {
    let bootstrap = format!(
        r#"{{"xds_servers": [{{"server_uri": "{control}", "channel_creds": [{{"type": "insecure"}}]}}]}}"#
    );
    let channel = Channel::builder("xds:///bench").bootstrap(Bootstrap::from_json(&bootstrap)?).build()?;
    channel.ready().await?;
    while channel.tree().await.is_none_or(|tree| !is_connected(&tree)) {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    Ok(channel)
}

/// Returns true if every endpoint is READY.
fn is_connected(tree: &evenkeel::Description) -> bool {
    let is_ready = |row: &evenkeel::EndpointRow| row.state == evenkeel::ConnectivityState::Ready;
    tree.endpoints.iter().all(is_ready) && tree.children.iter().all(|(_, child)| is_connected(child))
}
