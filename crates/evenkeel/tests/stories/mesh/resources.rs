//! Changes, errors and deletions of resources in use.

use std::time::Duration;

use evenkeel::{Bootstrap, Channel, ConnectivityState, Description, XdsClient, XdsVariant};
use evenkeel_proto::envoy::admin::v3::ClientResourceStatus;
use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::cluster::v3::cluster::LbPolicy;
use evenkeel_proto::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use evenkeel_proto::envoy::config::endpoint::v3::{ClusterLoadAssignment, LocalityLbEndpoints};
use evenkeel_proto::envoy::config::listener::v3::Listener;
use evenkeel_proto::envoy::config::route::v3::RouteConfiguration;
use evenkeel_proto::envoy::extensions::load_balancing_policies::pick_first::v3::PickFirst;
use evenkeel_proto::prost::{Message as _, Name as _};
use testkit::net::control::ResourceSetExt as _;
use testkit::net::{Backend, ControlPlane};
use testkit::resources::{self, any};
use tokio::time::sleep;
use tonic::Code;

use super::balance::policy_list;
use super::{LONG, Mesh, addresses, call, channel_with, patient, request, send, start, until, until_tree};
use crate::load::Load;

/// Returns the number of ACKs on all streams.
fn accepts(control: &ControlPlane) -> usize {
    let requests = control.requests();
    requests
        .iter()
        .filter(|request| request.error_detail.is_none() && !request.response_nonce.is_empty())
        .count()
}

/// Waits until the four resources were ACKed again on another stream.
async fn accepted_again(control: &ControlPlane, before: usize) {
    control.wait_until(|control| accepts(control) >= before + 4).await;
}

/// fault 1, fault 15: the control plane dies under load and returns with the same resources. No call fails,
/// no connection is added, no endpoint is reset, and later updates apply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_control_plane_dies_and_returns() {
    let mesh = Mesh::start(4).await;
    let load = Load::start(&mesh.channel, 16);
    load.further(12).await;
    until_tree(&mesh.channel, "all are connected", |tree| {
        super::endpoints(tree).iter().all(|row| row.picks > 0)
    })
    .await;
    let before = accepts(&mesh.control);

    let client = XdsClient::shared(mesh.bootstrap());
    // Value of the gauge `grpc.xds_client.connected`.
    let connected = || client.server_stats().iter().all(|tally| tally.connected);
    assert!(connected());
    mesh.control.kill();
    until("the loss is seen", || async { !connected() }).await;
    load.further(62).await;
    let known = XdsClient::shared(mesh.bootstrap()).status().await.unwrap().generic_xds_configs;
    let acked = ClientResourceStatus::Acked as i32;
    assert_eq!(known.iter().map(|resource| resource.client_status).collect::<Vec<_>>(), [acked; 4]);
    let answered = load.ok();
    mesh.control.restart().await;
    accepted_again(&mesh.control, before).await;
    until("it is connected again", || async { connected() }).await;
    assert_eq!(client.server_stats().iter().map(|tally| tally.failures).collect::<Vec<_>>(), [1]);
    load.further(31).await;
    assert_eq!(mesh.connections(), [1; 4], "the same resources, and yet new connections");

    let another = Backend::start().await;
    mesh.control.set_endpoints("pay", &addresses(mesh.backends.iter().chain([&another])));
    another.wait_until(|another| another.calls() > 0).await;
    let tree = mesh.channel.tree().await.unwrap();
    let picks: u64 = super::endpoints(&tree).iter().map(|row| row.picks).sum();
    let counts = load.stop().await;
    println!("{} ok at {}/s, slowest {:?}", counts.ok, counts.rate, counts.slowest);
    counts.expect_none_failed();
    assert!(picks >= answered, "endpoints count anew: {picks} picks, and {answered} answers before");
    assert_eq!(mesh.connections(), [1; 4]);
}

/// fault 1, fault 15, DE-1: while the control plane is unreachable, cached resources serve. Calls that fail
/// for another reason mention it, and stop doing so once it is back with the same resources.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_mention_a_control_plane_that_is_away() {
    let mesh = Mesh::start(1).await;
    call(&mesh.channel).await.unwrap();
    let before = accepts(&mesh.control);
    mesh.control.kill();
    mesh.backends[0].kill();
    let is_ambient = |text: &str| text.contains("xDS server") && text.contains("cannot be reached");
    until("a failure mentions it", || async {
        call(&mesh.channel).await.is_err_and(|status| is_ambient(status.message()))
    })
    .await;
    let status = call(&mesh.channel).await.unwrap_err();
    println!("{status}");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains(&mesh.backends[0].address().to_string()), "the reason comes first");

    mesh.control.restart().await;
    accepted_again(&mesh.control, before).await;
    until("failures do not mention it", || async {
        call(&mesh.channel).await.is_err_and(|status| !is_ambient(status.message()))
    })
    .await;
}

/// fault 3: the control plane repeatedly ends the stream after sending everything. This is not an error. The
/// first retry is immediate, later ones take a second, and the config does not change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_end_all_the_time() {
    let mesh = Mesh::start(2).await;
    let load = Load::start(&mesh.channel, 8);
    load.further(6).await;
    for _ in 0..4 {
        let before = accepts(&mesh.control);
        mesh.control.close_streams();
        accepted_again(&mesh.control, before).await;
    }
    load.further(1).await;
    let counts = load.stop().await;
    println!("{} ok, slowest {:?}, {} streams", counts.ok, counts.slowest, mesh.control.streams());
    counts.expect_none_failed();
    assert_eq!((mesh.control.streams(), mesh.connections()), (5, vec![1, 1]));
}

/// fault 22: an invalid cluster is NACKed with name and reason, and the previous version stays in use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_cluster_is_refused() {
    let mesh = Mesh::start(2).await;
    let load = Load::start(&mesh.channel, 8);
    load.further(6).await;
    let maglev = Cluster { lb_policy: LbPolicy::Maglev.into(), ..resources::cluster("pay") };
    mesh.control.set(maglev);
    mesh.control.wait_until(|control| !control.nacks().is_empty()).await;
    load.further(25).await;

    let (kind, text) = mesh.control.nacks().remove(0);
    println!("{text}");
    assert_eq!(kind, Cluster::type_url());
    assert!(text.contains("\"pay\"") && text.contains("lb_policy") && text.contains("MAGLEV"), "{text}");
    mesh.control.set(resources::cluster("pay"));
    mesh.control.wait_acked::<Cluster>().await;
    load.further(1).await;
    load.stop().await.expect_none_failed();
    assert_eq!((mesh.control.nacks().len(), mesh.connections()), (1, vec![1, 1]));
}

/// fault 23: the same with `fail_on_data_errors`: calls fail with the reason until a valid cluster arrives.
#[tokio::test]
async fn an_invalid_cluster_fails_with_fail_on_data_errors() {
    let mesh = Mesh::start(1).await;
    let channel = channel_with(&mesh.control, "\"fail_on_data_errors\"").build().unwrap();
    call(&channel).await.unwrap();
    mesh.control.set(Cluster { lb_policy: LbPolicy::Maglev.into(), ..resources::cluster("pay") });
    until("calls fail", || async { call(&channel).await.is_err() }).await;
    let status = call(&channel).await.unwrap_err();
    println!("{status}");
    assert_eq!(status.code(), Code::Unavailable);
    for part in ["\"pay\"", "lb_policy", "node-7"] {
        assert!(status.message().contains(part), "no {part:?} in {:?}", status.message());
    }
    mesh.control.set(resources::cluster("pay"));
    until("calls are answered", || async { call(&channel).await.is_ok() }).await;
}

/// fault 21: one of a hundred clusters in a response is invalid. It is NACKed by name, its calls fail, and
/// the others serve.
#[tokio::test]
async fn one_bad_cluster_among_many() {
    let mesh = Mesh::start(1).await;
    let name = |i: usize| format!("shard-{i}");
    let to = |i: usize| resources::route(&format!("/shard-{i}/"), &name(i));
    mesh.control.update(|held| {
        for i in 0..100 {
            let lb_policy = if i == 42 { LbPolicy::Maglev } else { LbPolicy::RoundRobin };
            held.set(Cluster { lb_policy: lb_policy.into(), ..resources::cluster(&name(i)) });
            held.set_endpoints(&name(i), &addresses(&mesh.backends));
        }
        let routes = (0..100).map(to).chain([resources::route("", "shard-42")]).collect();
        held.set(RouteConfiguration {
            virtual_hosts: vec![resources::virtual_host("*", routes)],
            ..resources::route_config("orders", "pay")
        });
    });
    // The last route leads the echo service to the invalid cluster.
    let status = call(&mesh.channel).await.unwrap_err();
    println!("{status}");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("\"shard-42\"") && status.message().contains("lb_policy"), "{status}");
    mesh.control.wait_until(|control| !control.nacks().is_empty()).await;
    let nacks = mesh.control.nacks();
    assert!(
        nacks.iter().all(|(kind, text)| *kind == Cluster::type_url() && text.contains("\"shard-42\"")),
        "{nacks:?}"
    );

    let ready = |tree: &Description| {
        tree.children.iter().filter(|(_, child)| child.state == Some(ConnectivityState::Ready)).count()
    };
    until_tree(&mesh.channel, "the others are ready", |tree| ready(tree) == 99).await;
    mesh.control.set(resources::route_config("orders", "shard-41"));
    until("calls are answered", || async { call(&mesh.channel).await.is_ok() }).await;
}

/// fault 24: with `ignore_resource_deletion` the control plane deletes everything. Calls continue, and later
/// failures do not mention the deletion once the resources are back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletions_are_ignored_if_the_bootstrap_requests_it() {
    let mut mesh = Mesh::start(2).await;
    mesh.channel = channel_with(&mesh.control, "\"ignore_resource_deletion\"").build().unwrap();
    let load = Load::start(&mesh.channel, 8);
    load.further(6).await;
    mesh.control.update(|held| {
        held.remove::<Cluster>("pay");
        held.remove::<Listener>("orders");
    });
    mesh.control.wait_acked::<Cluster>().await;
    mesh.control.wait_acked::<Listener>().await;
    load.further(25).await;

    mesh.control.serve("orders", "pay", &addresses(&mesh.backends));
    mesh.control.wait_acked::<Cluster>().await;
    mesh.control.wait_acked::<Listener>().await;
    load.further(1).await;
    load.stop().await.expect_none_failed();
    assert_eq!(mesh.connections(), [1, 1]);

    mesh.control.set_endpoints("pay", &[]);
    let mut text = String::new();
    while text.is_empty() {
        if let Err(status) = call(&mesh.channel).await {
            text = status.message().to_owned();
        }
    }
    println!("{text}");
    assert!(!text.contains("exist") && !text.contains("delet"), "{text}");
}

/// fault 24: like istiod, the cluster of a subset is deleted 20 ms before the routes change to another. No
/// call fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subset_deleted_before_the_routes_move() {
    for variant in [XdsVariant::StateOfTheWorld, XdsVariant::Delta] {
        let (control, backends) = (ControlPlane::start().await, start(2).await);
        let subset = |i: usize| ["v1", "v2"][i % 2];
        let serve = |i: usize| {
            control.set(resources::cluster(subset(i)));
            control.set_endpoints(subset(i), &[backends[i % 2].address()]);
        };
        serve(1);
        control.serve("orders", subset(0), &[backends[0].address()]);
        let bootstrap = Bootstrap::from_json(&control.bootstrap("node-7")).unwrap();
        // Longer than any stall of the test machine.
        let client = XdsClient::builder(bootstrap).variant(variant).deletion_grace(LONG).build();
        let channel = Channel::builder("xds:///orders").xds_client(client).build().unwrap();
        let load = Load::start(&channel, 8);
        load.further(6).await;
        for i in 0..6 {
            let (old, new) = (subset(i), subset(i + 1));
            control.update(|held| {
                held.remove::<Cluster>(old);
                held.remove::<ClusterLoadAssignment>(old);
            });
            control.wait_acked::<Cluster>().await;
            sleep(Duration::from_millis(20)).await;
            assert_eq!(load.failed(), 0, "the deletion of {old} is seen, and its calls fail");
            let before = backends[(i + 1) % 2].calls();
            control.set(resources::route_config("orders", new));
            backends[(i + 1) % 2].wait_until(|backend| backend.calls() > before).await;
            serve(i);
        }
        load.further(6).await;
        let counts = load.stop().await;
        println!("{variant:?}: {} ok, slowest {:?}", counts.ok, counts.slowest);
        counts.expect_none_failed();
        assert!(control.nacks().is_empty());
    }
}

/// fault 24, CM-6: by default a deleted cluster fails calls after its grace period, wait-for-ready calls too,
/// with its name. Calls succeed again when it returns.
#[tokio::test]
async fn a_deleted_cluster_fails_and_recovers() {
    let mesh = Mesh::start(2).await;
    call(&mesh.channel).await.unwrap();
    for _ in 0..3 {
        mesh.control.remove::<Cluster>("pay");
        mesh.control.wait_acked::<Cluster>().await;
        until("calls fail", || async { call(&mesh.channel).await.is_err() }).await;
        for request in [request(), patient(request())] {
            let status = send(&mesh.channel, request).await.unwrap_err();
            println!("{status}");
            assert_eq!(status.code(), Code::Unavailable);
            for part in ["\"pay\"", "node-7"] {
                assert!(status.message().contains(part), "no {part:?} in {:?}", status.message());
            }
        }
        mesh.control.set(resources::cluster("pay"));
        until("calls are answered", || async { call(&mesh.channel).await.is_ok() }).await;
        for _ in 0..10 {
            call(&mesh.channel).await.unwrap();
        }
    }
    assert!(mesh.control.nacks().is_empty());
}

/// fault 25: three forms of a cluster without endpoints. Calls fail at once with the cluster, the locality if
/// there is one, and the node. They succeed again when endpoints return.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_without_endpoints_fails_at_once() {
    let mesh = Mesh::start(2).await;
    call(&mesh.channel).await.unwrap();
    let without_localities =
        ClusterLoadAssignment { endpoints: vec![], ..resources::load_assignment("pay", &[]) };
    let mut all_unhealthy = resources::load_assignment("pay", &["127.0.0.1:1"]);
    all_unhealthy.endpoints[0].lb_endpoints[0].health_status = 2;
    for empty in [resources::load_assignment("pay", &[]), without_localities, all_unhealthy] {
        let names = ["pay", "xDS node id \"", empty.endpoints.first().map_or("", |_| "zone=\"local\"")];
        let load = Load::start(&mesh.channel, 8);
        load.further(1).await;
        mesh.control.set(empty);
        mesh.control.wait_acked::<ClusterLoadAssignment>().await;
        until("calls fail", || async { load.failed() > 200 }).await;

        mesh.control.set_endpoints("pay", &addresses(&mesh.backends));
        until("calls are answered", || async { call(&mesh.channel).await.is_ok() }).await;
        load.further(1).await;
        let failed = load.failed();
        load.further(12).await;
        let counts = load.stop().await;
        println!("{} ok, {failed} failed, slowest {:?}: {}", counts.ok, counts.slowest, counts.failed[0]);
        assert_eq!(counts.failed.len(), failed, "calls fail although the endpoints are back");
        for status in &counts.failed {
            assert_eq!(status.code(), Code::Unavailable);
            assert!(names.iter().all(|name| status.message().contains(name)), "{status}");
        }
    }
}

/// fault 30: 20 MiB of endpoints in one resource, five times tonic's default message limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_resource() {
    let mesh = Mesh::start(1).await;
    // pick_first does not connect to all of them.
    let pick_first = Some(policy_list([any(&PickFirst::default())]));
    mesh.control.set(Cluster { load_balancing_policy: pick_first, ..resources::cluster("pay") });
    let long_name = "x".repeat(1_000);
    let named = |mut endpoint: evenkeel_proto::envoy::config::endpoint::v3::LbEndpoint| {
        if let Some(HostIdentifier::Endpoint(endpoint)) = &mut endpoint.host_identifier {
            endpoint.hostname.clone_from(&long_name);
        }
        endpoint
    };
    let mut assignment = resources::load_assignment("pay", &[&mesh.backends[0].address().to_string()]);
    let LocalityLbEndpoints { lb_endpoints, .. } = &mut assignment.endpoints[0];
    lb_endpoints.extend(
        (0..21_000).map(|i| named(resources::endpoint(&format!("10.0.{}.{}", i / 250, i % 250), 80))),
    );
    println!("{} bytes", assignment.encoded_len());
    assert!(assignment.encoded_len() > 20 << 20);
    mesh.control.set(assignment);
    assert_eq!(call(&mesh.channel).await.unwrap(), mesh.backends[0].name());
    mesh.control.wait_acked::<ClusterLoadAssignment>().await;
    mesh.control.wait_acked::<RouteConfiguration>().await;
    assert!(mesh.control.nacks().is_empty());
}
