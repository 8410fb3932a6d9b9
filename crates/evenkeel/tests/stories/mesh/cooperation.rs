//! Callers that retry at once while the channel's config fails their calls: they yield to the runtime.
//!
//! All tests run on one thread, together with the control plane and the backend. A caller that never yields
//! starves both, and the update that lets calls succeed would never arrive.

use evenkeel::Channel;
use evenkeel_proto::envoy::config::cluster::v3::circuit_breakers::Thresholds;
use evenkeel_proto::envoy::config::cluster::v3::{CircuitBreakers, Cluster};
use evenkeel_proto::envoy::config::endpoint::v3::cluster_load_assignment::policy::DropOverload;
use evenkeel_proto::envoy::config::endpoint::v3::{ClusterLoadAssignment, cluster_load_assignment};
use evenkeel_proto::envoy::r#type::v3::FractionalPercent;
use testkit::net::{Backend, ControlPlane};
use testkit::resources;
use tonic::{Code, Status};

use super::{Mesh, call, channel, until};
use crate::calls::cooperation::{fails_and_yields, insist};

/// Makes a call and asserts that a failure is UNAVAILABLE with this text.
async fn call_or_fail_with(channel: &Channel, text: &str) -> Result<String, Status> {
    let outcome = call(channel).await;
    if let Err(status) = &outcome {
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains(text), "no {text:?} in {status}");
    }
    outcome
}

/// The control plane drops all calls by `drop_overloads`, and later none.
#[tokio::test]
async fn a_caller_of_a_cluster_that_drops_calls_yields() {
    let mesh = Mesh::start(1).await;
    let drops = |percent| {
        let drop_percentage = Some(FractionalPercent { numerator: percent, denominator: 0 });
        let drop_overloads = vec![DropOverload { category: "maintenance".to_owned(), drop_percentage }];
        let policy = cluster_load_assignment::Policy { drop_overloads, ..Default::default() };
        let place = mesh.backends[0].address().to_string();
        ClusterLoadAssignment { policy: Some(policy), ..resources::load_assignment("pay", &[&place]) }
    };
    mesh.control.set(drops(100));
    mesh.channel.ready().await.unwrap();
    let dropped = async || call_or_fail_with(&mesh.channel, "maintenance").await;
    fails_and_yields("a drop of the control plane", dropped).await;

    mesh.control.set(drops(0));
    insist(dropped).await;
}

/// Circuit breaking allows one request. A pending call holds it until the backend resumes.
#[tokio::test]
async fn a_caller_that_reaches_the_circuit_breaking_limit_yields() {
    let control = ControlPlane::start().await;
    let backend = Backend::start().await;
    control.serve("orders", "narrow", &[backend.address()]);
    let thresholds = vec![Thresholds { max_requests: Some(1), ..Thresholds::default() }];
    let circuit_breakers = Some(CircuitBreakers { thresholds, ..CircuitBreakers::default() });
    control.set(Cluster { circuit_breakers, ..resources::cluster("narrow") });
    let channel = channel(&control).build().unwrap();
    channel.ready().await.unwrap();
    backend.pause();
    let only = tokio::spawn({
        let channel = channel.clone();
        async move { call(&channel).await }
    });
    backend.wait_until(|backend| backend.in_flight() == 1).await;
    let limited = async || call_or_fail_with(&channel, "\"narrow\"").await;
    fails_and_yields("circuit breaking", limited).await;

    backend.resume();
    insist(limited).await;
    only.await.unwrap().unwrap();
}

/// The channel has no config because its control plane is unreachable, then routes that match no call, then a
/// complete config.
#[tokio::test]
async fn a_caller_of_a_channel_without_a_config_yields() {
    let control = ControlPlane::start().await;
    let backend = Backend::start().await;
    control.serve("orders", "pay", &[backend.address()]);
    let routes = resources::route_config("orders", "pay");
    let mut elsewhere = routes.clone();
    elsewhere.virtual_hosts[0].domains = vec!["elsewhere".to_owned()];
    control.set(elsewhere);
    control.kill();
    let channel = channel(&control).build().unwrap();
    let absent = async || call_or_fail_with(&channel, "listener \"orders\": not received").await;
    absent().await.unwrap_err();
    fails_and_yields("no config", absent).await;

    control.restart().await;
    until("the routes are in force", || async {
        call(&channel).await.is_err_and(|status| status.message().contains("no virtual host"))
    })
    .await;
    let unrouted = async || call_or_fail_with(&channel, "no virtual host").await;
    fails_and_yields("no route", unrouted).await;

    control.set(routes);
    insist(unrouted).await;
}
