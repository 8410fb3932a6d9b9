//! Shares, limits and failover by xDS config.

use std::time::Duration;

use evenkeel::{Channel, Description, EndpointRow};
use evenkeel_proto::envoy::config::cluster::v3::circuit_breakers::Thresholds;
use evenkeel_proto::envoy::config::cluster::v3::load_balancing_policy::Policy;
use evenkeel_proto::envoy::config::cluster::v3::{CircuitBreakers, Cluster, LoadBalancingPolicy};
use evenkeel_proto::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use evenkeel_proto::envoy::config::core::v3::{ConfigSource, SelfConfigSource, TypedExtensionConfig};
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_proto::envoy::config::endpoint::v3::cluster_load_assignment::{self, policy::DropOverload};
use evenkeel_proto::envoy::config::route::v3::RetryPolicy;
use evenkeel_proto::envoy::r#type::v3::FractionalPercent;
use evenkeel_proto::prost_types::Any;
use testkit::net::{Backend, ControlPlane};
use testkit::resources;
use tokio::task::JoinSet;
use tonic::Code;

use super::{
    Mesh, call, channel, endpoints, patient, policies, request, send, shares, texts, until, until_tree,
};
use crate::load::{Counts, Load};

/// Returns a `LoadBalancingPolicy` with these policies, most preferred first.
pub(super) fn policy_list(entries: impl IntoIterator<Item = Any>) -> LoadBalancingPolicy {
    let entry = |any| Policy {
        typed_extension_config: Some(TypedExtensionConfig {
            name: "policy".to_owned(),
            typed_config: Some(any),
        }),
    };
    LoadBalancingPolicy { policies: entries.into_iter().map(entry).collect() }
}

/// Returns the cluster `name` with load reporting to its own control plane.
pub(super) fn reporting(name: &str) -> Cluster {
    let source = ConfigSourceSpecifier::Self_(SelfConfigSource::default());
    let lrs_server = Some(ConfigSource { config_source_specifier: Some(source), ..ConfigSource::default() });
    Cluster { lrs_server, ..resources::cluster(name) }
}

/// Returns endpoints of `pay` in localities with these weights and priorities.
fn localities(localities: &[(&str, u32, u32, &[Backend])]) -> ClusterLoadAssignment {
    let locality = |(zone, weight, priority, backends): &(&str, u32, u32, &[Backend])| {
        let texts = texts(*backends);
        let texts: Vec<_> = texts.iter().map(String::as_str).collect();
        resources::locality(zone, *weight, *priority, &texts)
    };
    ClusterLoadAssignment {
        endpoints: localities.iter().map(locality).collect(),
        ..resources::load_assignment("pay", &[])
    }
}

/// fault 61: the first priority dies and the second takes over. Only active calls fail. When the first
/// returns, the second gets no more calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_and_return() {
    const CALLERS: usize = 8;
    let mesh = Mesh::start(4).await;
    let (first, second) = mesh.backends.split_at(2);
    mesh.control.set(localities(&[("a", 1, 0, first), ("b", 1, 1, second)]));
    // Long enough for active calls at the time of the kill.
    for backend in first {
        backend.set_delay(Duration::from_millis(10));
    }
    let load = Load::start(&mesh.channel, CALLERS);
    load.further(12).await;
    assert!(second.iter().all(|backend| backend.connections() == 0), "the second priority is not needed yet");

    // Held calls cannot end before the kill.
    first[0].pause();
    first[0].wait_until(|backend| backend.held() > 0).await;
    first.iter().for_each(Backend::kill);
    first[0].resume();
    load.further(1).await;
    let failed = load.failed();
    load.further(25).await;
    assert!(failed > 0, "what was under way cannot have been answered");
    assert_eq!(load.failed(), failed, "calls fail although the second is there");
    assert!(second.iter().all(|backend| backend.calls() > 0));

    for backend in first {
        backend.restart().await;
    }
    let before: Vec<_> = first.iter().map(Backend::calls).collect();
    for (backend, before) in first.iter().zip(before) {
        backend.wait_until(|backend| backend.calls() > before).await;
    }
    load.further(1).await;
    let before: usize = second.iter().map(Backend::calls).sum();
    load.further(25).await;
    assert_eq!(second.iter().map(Backend::calls).sum::<usize>(), before);
    let counts = load.stop().await;
    println!("{} ok at {}/s, slowest {:?}", counts.ok, counts.rate, counts.slowest);
    assert_eq!(counts.failed.len(), failed);
    expect_one_lost_by_each(first, &counts, CALLERS);
}

/// Asserts that each killed backend lost at most one call per caller. The kills are not simultaneous, so a
/// caller may lose calls on several of them.
fn expect_one_lost_by_each(died: &[Backend], counts: &Counts, callers: usize) {
    let lost = died.iter().map(|backend| {
        let address = backend.address().to_string();
        counts.failed.iter().filter(|status| status.message().contains(&address)).count()
    });
    let lost: Vec<usize> = lost.collect();
    println!("{lost:?} failed on those that died, of {callers} under way");
    assert_eq!(lost.iter().sum::<usize>(), counts.failed.len(), "{:?}", counts.failed);
    assert!(lost.iter().all(|lost| *lost <= callers), "{:?}", counts.failed);
}

/// fault 62: a part of the first priority dies. The remaining endpoints serve, and the second priority is not
/// connected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_of_the_first_locality_is_enough() {
    const CALLERS: usize = 8;
    let mesh = Mesh::start(4).await;
    let (first, second) = mesh.backends.split_at(3);
    mesh.control.set(localities(&[("a", 1, 0, first), ("b", 1, 1, second)]));
    for backend in first {
        backend.set_delay(Duration::from_millis(10));
    }
    let load = Load::start(&mesh.channel, CALLERS);
    load.further(12).await;
    // Held calls cannot end before the kill.
    first[0].pause();
    first[0].wait_until(|backend| backend.held() > 0).await;
    first[0].kill();
    first[1].kill();
    load.further(1).await;
    let failed = load.failed();
    assert!(failed > 0, "the killed backends had calls");
    load.further(62).await;
    assert_eq!(load.failed(), failed, "calls fail although there is one to take them");
    expect_one_lost_by_each(&first[..2], &load.stop().await, CALLERS);
    assert_eq!((second[0].calls(), second[0].connections()), (0, 0));
}

/// Starts calls, distributed over the channels.
fn begin(calls: usize, channels: &[Channel]) -> JoinSet<Result<String, tonic::Status>> {
    let one = |i: usize| {
        let channel = channels[i % channels.len()].clone();
        async move { call(&channel).await }
    };
    (0..calls).map(one).collect()
}

/// Waits for this number of calls to fail with the circuit breaking status.
async fn refused(calls: &mut JoinSet<Result<String, tonic::Status>>, count: usize) {
    for _ in 0..count {
        let status = calls.join_next().await.expect("a call").expect("no panic");
        let status = status.expect_err("one too many");
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("\"breaker\""), "{status}");
    }
}

/// fault 64: circuit breaking at exactly 500 concurrent calls over two channels, then at 800.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_circuit_breaker_counts_exactly() {
    let control = ControlPlane::start().await;
    let backend = Backend::builder().max_concurrent_streams(2_000).start().await;
    let limited = |limit| {
        let thresholds = vec![Thresholds { max_requests: Some(limit), ..Thresholds::default() }];
        let circuit_breakers = Some(CircuitBreakers { thresholds, ..CircuitBreakers::default() });
        Cluster { circuit_breakers, ..resources::cluster("breaker") }
    };
    control.serve("orders", "breaker", &[backend.address()]);
    control.set(limited(500));
    let channels = [channel(&control).build().unwrap(), channel(&control).build().unwrap()];
    for channel in &channels {
        channel.ready().await.unwrap();
    }
    backend.pause();
    let mut calls = begin(800, &channels);
    refused(&mut calls, 300).await;
    backend.wait_until(|backend| backend.in_flight() == 500).await;

    control.set(limited(800));
    control.wait_acked::<Cluster>().await;
    for channel in &channels {
        until_tree(channel, "the limit is raised", |tree| {
            policies(tree)
                .iter()
                .any(|policy| policy.details.get("maxConcurrentRequests") == Some(&800.into()))
        })
        .await;
    }
    let mut more = begin(400, &channels);
    refused(&mut more, 100).await;
    backend.wait_until(|backend| backend.in_flight() == 800).await;

    backend.resume();
    let mut answered = 0;
    for calls in [&mut calls, &mut more] {
        while let Some(call) = calls.join_next().await {
            call.unwrap().unwrap();
            answered += 1;
        }
    }
    assert_eq!((answered, backend.calls()), (800, 800));
    for _ in 0..10 {
        call(&channels[0]).await.unwrap();
    }
}

/// fault 65, LRS-4, LRS-5, LRS-6: a fifth of the calls is dropped, wait-for-ready calls too, without retries.
/// Load reports contain each drop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fifth_is_dropped() {
    const CALLS: usize = 10_000;
    let mesh = Mesh::start(1).await;
    // A fixed seed whose draws meet the share closely.
    let channel = channel(&mesh.control).seed(3).build().unwrap();
    let mut routes = resources::route_config("orders", "pay");
    routes.virtual_hosts[0].retry_policy = Some(RetryPolicy {
        retry_on: "unavailable".to_owned(),
        num_retries: Some(5),
        ..RetryPolicy::default()
    });
    let mut assignment = resources::load_assignment("pay", &[&mesh.backends[0].address().to_string()]);
    let drop_percentage = Some(FractionalPercent { numerator: 20, denominator: 0 });
    assignment.policy = Some(cluster_load_assignment::Policy {
        drop_overloads: vec![DropOverload { category: "lottery".to_owned(), drop_percentage }],
        ..cluster_load_assignment::Policy::default()
    });
    mesh.control.update(|held| {
        held.set(routes);
        held.set(reporting("pay"));
        held.set(assignment);
    });
    channel.ready().await.unwrap();
    let mut dropped = 0;
    for i in 0..CALLS {
        let request = if i % 2 == 0 { request() } else { patient(request()) };
        if let Err(status) = send(&channel, request).await {
            assert_eq!(status.code(), Code::Unavailable);
            assert!(status.message().contains("lottery"), "{status}");
            dropped += 1;
        }
    }
    let share = f64::from(dropped) / CALLS as f64;
    println!("{dropped} of {CALLS} dropped: {share}");
    assert!((share - 0.2).abs() < 0.01, "{share}");

    let sum = |control: &ControlPlane| {
        let (mut issued, mut well, mut lost, mut total) = (0, 0, 0, 0);
        for stats in control.load_reports() {
            assert_eq!(stats.cluster_name, "pay");
            total += stats.total_dropped_requests;
            lost += stats.dropped_requests.iter().map(|of| of.dropped_count).sum::<u64>();
            assert!(stats.dropped_requests.iter().all(|of| of.category == "lottery"));
            for locality in &stats.upstream_locality_stats {
                assert_eq!(locality.locality.as_ref().unwrap().zone, "local");
                issued += locality.total_issued_requests;
                well += locality.total_successful_requests;
                assert_eq!(locality.total_error_requests, 0);
            }
        }
        (issued, well, lost, total)
    };
    let (ok, dropped) = (CALLS as u64 - dropped as u64, dropped as u64);
    mesh.control.wait_until(|control| sum(control).3 >= dropped && sum(control).1 >= ok).await;
    assert_eq!(sum(&mesh.control), (ok, ok, dropped, dropped));
}

/// Returns the backends with these EDS weights.
fn weighted(backends: &[Backend], weights: &[u32]) -> ClusterLoadAssignment {
    resources::weighted(localities(&[("local", 1, 0, backends)]), weights.iter().copied())
}

pub(super) fn share_of(
    tree: &Description,
    backend: &Backend,
    of: impl Fn(&EndpointRow) -> Option<f64>,
) -> Option<f64> {
    let place = backend.address().to_string();
    endpoints(tree).into_iter().find(|row| row.addresses[0] == place).and_then(of)
}

/// fault 66: endpoint weights change continuously under load. No call fails, no connection is added, and the
/// shares follow the last weights.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_that_change_all_the_time() {
    let mesh = Mesh::start(3).await;
    let load = Load::start(&mesh.channel, 16);
    load.further(3).await;
    for change in 0u32..200 {
        let weights = [1 + change % 7, 1 + change % 11, 1 + change % 13];
        mesh.control.set(weighted(&mesh.backends, &weights));
        mesh.control.wait_acked::<ClusterLoadAssignment>().await;
    }
    mesh.control.set(weighted(&mesh.backends, &[1, 3, 6]));
    let last = &mesh.backends[2];
    until_tree(&mesh.channel, "the last weights are in force", |tree| {
        share_of(tree, last, |row| row.weight) == Some(6.0)
    })
    .await;
    let counts = load.stop().await;
    println!("{} ok at {}/s, slowest {:?}", counts.ok, counts.rate, counts.slowest);
    counts.expect_none_failed();
    assert_eq!(mesh.connections(), [1; 3]);
    let shares = shares(&mesh.channel, 500).await;
    for (backend, expected) in mesh.backends.iter().zip([50, 150, 300usize]) {
        assert!(shares[backend.name()].abs_diff(expected) <= 10, "{shares:?}");
    }
}

/// Localities get calls in proportion to their weights.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn localities_by_weight() {
    let mesh = Mesh::start(3).await;
    let channel = channel(&mesh.control).seed(5).build().unwrap();
    let (near, far) = mesh.backends.split_at(2);
    mesh.control.set(localities(&[("near", 3, 0, near), ("far", 1, 0, far)]));
    channel.ready().await.unwrap();
    until("the channel uses each backend", || async {
        call(&channel).await.is_ok() && mesh.backends.iter().all(|backend| backend.calls() > 0)
    })
    .await;
    let shares = shares(&channel, 1_000).await;
    println!("{shares:?}");
    assert!(shares[far[0].name()].abs_diff(250) < 50, "{shares:?}");
    assert!(
        shares[near[0].name()].abs_diff(shares[near[1].name()]) <= 2,
        "in turn within a locality: {shares:?}"
    );
}
