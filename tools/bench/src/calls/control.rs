//! Control plane process: one listener, route and cluster for each policy, all over the same backends.
//!
//! It prints its address on stdout and ends when stdin closes.

use std::net::SocketAddr;

use evenkeel_proto::envoy::config::cluster::v3::LoadBalancingPolicy;
use evenkeel_proto::envoy::config::cluster::v3::load_balancing_policy::Policy;
use evenkeel_proto::envoy::config::core::v3::TypedExtensionConfig;
use evenkeel_proto::envoy::extensions::load_balancing_policies::client_side_weighted_round_robin::v3::ClientSideWeightedRoundRobin;
use evenkeel_proto::envoy::extensions::load_balancing_policies::least_request::v3::LeastRequest;
use evenkeel_proto::envoy::extensions::load_balancing_policies::ring_hash::v3::RingHash;
use evenkeel_proto::envoy::extensions::load_balancing_policies::round_robin::v3::RoundRobin;
use evenkeel_proto::envoy::extensions::load_balancing_policies::wrr_locality::v3::WrrLocality;
use evenkeel_proto::prost::Name;
use evenkeel_proto::prost_types::Duration;
use testkit::net::ControlPlane;
use testkit::resources;

use crate::Error;
use crate::common::process::{runtime, until_stdin_ends};

/// Endpoints of `edf` have the weights from 1 to this, repeatedly.
pub(crate) const GREATEST_WEIGHT: u32 = 10;

pub(crate) fn run(backends: &[SocketAddr]) -> Result<(), Error> {
    runtime()?.block_on(async {
        let control = ControlPlane::start().await;
        for (name, policy) in policies() {
            control.serve(name, name, backends);
            let mut cluster = resources::cluster(name);
            cluster.load_balancing_policy = policy;
            control.set(cluster);
        }
        let addresses: Vec<String> = backends.iter().map(SocketAddr::to_string).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let weights = (1..=GREATEST_WEIGHT).cycle();
        control.set(resources::weighted(resources::load_assignment("edf", &addresses), weights));
        println!("{}", control.address());
        until_stdin_ends().await
    })
}

/// Returns the policies by target name. `edf` is the enum `ROUND_ROBIN`, which uses the weights of endpoints.
/// Routes have no hash policy, so that `ring_hash` uses a random hash per call.
fn policies() -> [(&'static str, Option<LoadBalancingPolicy>); 5] {
    let weighted = ClientSideWeightedRoundRobin {
        // Weights apply from the first report on.
        blackout_period: Some(Duration::default()),
        ..ClientSideWeightedRoundRobin::default()
    };
    [
        ("round_robin", Some(by_locality(policy(&RoundRobin::default())))),
        ("edf", None),
        ("weighted_round_robin", Some(by_locality(policy(&weighted)))),
        ("ring_hash", Some(policy(&RingHash::default()))),
        ("least_request", Some(by_locality(policy(&LeastRequest::default())))),
    ]
}

fn by_locality(child: LoadBalancingPolicy) -> LoadBalancingPolicy {
    policy(&WrrLocality { endpoint_picking_policy: Some(child) })
}

fn policy<M: Name>(config: &M) -> LoadBalancingPolicy {
    let config =
        TypedExtensionConfig { name: M::NAME.to_owned(), typed_config: Some(resources::any(config)) };
    LoadBalancingPolicy { policies: vec![Policy { typed_extension_config: Some(config) }] }
}
