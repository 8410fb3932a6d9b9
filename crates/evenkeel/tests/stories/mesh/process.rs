//! Channels as part of a process: load reporting, idleness, lifecycle, CSDS and blocked workers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use evenkeel::{ConnectivityState, XdsClient};
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use testkit::net::{Backend, ControlPlane};

use super::balance::reporting;
use super::{LONG, Mesh, addresses, call, channel, start, until};
use crate::load::Load;

/// Returns the number of issued and of successful requests in the load reports.
fn reported(control: &ControlPlane) -> (u64, u64) {
    let reports = control.load_reports();
    let localities = reports.iter().flat_map(|stats| &stats.upstream_locality_stats);
    localities.fold((0, 0), |(issued, well), stats| {
        (issued + stats.total_issued_requests, well + stats.total_successful_requests)
    })
}

/// fault 76, LRS-4, LRS-7: load reports arrive. While the server accepts none, calls continue, and the counts
/// are reported later, each call once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_of_load_may_wait() {
    let mesh = Mesh::start(2).await;
    mesh.control.set(reporting("pay"));
    for _ in 0..50 {
        call(&mesh.channel).await.unwrap();
    }
    mesh.control.wait_until(|control| reported(control) == (50, 50)).await;
    mesh.control.kill();
    for _ in 0..50 {
        call(&mesh.channel).await.unwrap();
    }
    mesh.control.restart().await;
    mesh.control.wait_until(|control| reported(control).1 >= 100).await;
    assert_eq!(reported(&mesh.control), (100, 100));
    for report in mesh.control.load_reports() {
        assert_eq!((&*report.cluster_name, report.dropped_requests.len()), ("pay", 0));
        assert!(report.load_report_interval.is_some());
    }
}

/// fault 76: the control plane does not implement LRS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_control_plane_without_lrs() {
    let mesh = Mesh::start(2).await;
    mesh.control.lrs_unimplemented();
    mesh.control.set(reporting("pay"));
    let load = Load::start(&mesh.channel, 8);
    load.further(6).await;
    mesh.control.wait_until(|control| control.lrs_streams() > 0).await;
    load.further(25).await;
    load.stop().await.expect_none_failed();
    assert_eq!((mesh.control.streams(), mesh.connections()), (1, vec![1, 1]));
}

/// fault 19: the control plane serves one stream per process, as Istio's agent does. All channels share it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_stream_is_enough() {
    let mesh = Mesh::start(1).await;
    mesh.control.only_one_stream();
    let channels = [(); 3].map(|()| channel(&mesh.control).build().unwrap());
    for channel in &channels {
        for _ in 0..5 {
            call(channel).await.unwrap();
        }
    }
    assert_eq!((mesh.control.streams(), mesh.control.connections()), (1, 1));
}

/// fault 18: a channel without calls becomes IDLE and releases its connections and subscriptions. The next
/// call subscribes again and uses the current resources, even if all have changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_that_is_idle() {
    let control = ControlPlane::start().await;
    control.serve("orders", "pay", &[]);
    let channel = channel(&control).idle_timeout(Duration::from_millis(100)).build().unwrap();
    for _ in 0..3 {
        let backend = Backend::start().await;
        control.set_endpoints("pay", &[backend.address()]);
        assert_eq!(call(&channel).await.unwrap(), backend.name());
        let mut connectivity = channel.watch_connectivity();
        let idle = connectivity.wait_for(|connectivity| *connectivity == ConnectivityState::Idle);
        tokio::time::timeout(LONG, idle).await.unwrap().unwrap();
        backend.wait_until(|backend| backend.open_connections() == 0).await;
        control.wait_until(|control| control.open_streams() == 0).await;
        assert!(channel.tree().await.is_none());
    }
}

/// fault 70, fault 71: channels are created and dropped, some during a call. No connection, stream or
/// subscription leaks, and the calls complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn channels_come_and_go() {
    let mesh = Mesh::start(2).await;
    let mut under_way = Vec::new();
    for turn in 0..200 {
        let channel = channel(&mesh.control).build().unwrap();
        if turn % 2 == 0 {
            call(&channel).await.unwrap();
        } else {
            under_way.push(tokio::spawn(async move { call(&channel).await }));
        }
    }
    for call in under_way {
        call.await.unwrap().unwrap();
    }
    for backend in &mesh.backends {
        backend.wait_until(|backend| backend.open_connections() == 0).await;
    }
    mesh.control.wait_until(|control| control.open_streams() == 0 && control.open_connections() == 0).await;
}

/// fault 77: continuous CSDS requests while endpoints change. Each response is complete, and no call fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asked_all_the_time() {
    let mesh = Mesh::start(2).await;
    let others = start(2).await;
    let load = Load::start(&mesh.channel, 8);
    load.further(2).await;
    let client = XdsClient::shared(mesh.bootstrap());
    for turn in 0..100 {
        let next = if turn % 2 == 0 { &others } else { &mesh.backends };
        mesh.control.set_endpoints("pay", &addresses(next));
        let status = client.status().await.unwrap();
        let names: Vec<_> =
            status.generic_xds_configs.iter().map(|resource| resource.name.as_str()).collect();
        assert_eq!(names.len(), 4, "{names:?}");
        assert!(mesh.channel.tree().await.is_some());
    }
    mesh.control.wait_acked::<ClusterLoadAssignment>().await;
    load.further(1).await;
    load.stop().await.expect_none_failed();
}

/// fault 74: the application blocks its only worker thread. ACKs are still sent, and calls continue
/// afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_blocked_worker() {
    // Control plane and backends run on a runtime of their own.
    let elsewhere =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mesh = elsewhere.spawn(Mesh::start(2)).await.unwrap();
    let another = elsewhere.spawn(Backend::start()).await.unwrap();
    let channel = channel(&mesh.control).build().unwrap();
    call(&channel).await.unwrap();

    let (end, wait) = mpsc::channel::<()>();
    let is_blocked = Arc::new(AtomicBool::new(false));
    let blocked = tokio::spawn({
        let is_blocked = is_blocked.clone();
        async move {
            is_blocked.store(true, Ordering::SeqCst);
            wait.recv_timeout(LONG)
        }
    });
    while !is_blocked.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    for turn in 0..5 {
        // Each turn is a change: unchanged resources are not sent.
        let added = (turn % 2 == 0).then_some(&another);
        mesh.control.set_endpoints("pay", &addresses(mesh.backends.iter().chain(added)));
        mesh.control.wait_acked::<ClusterLoadAssignment>().await;
    }
    assert!(!blocked.is_finished());
    end.send(()).unwrap();
    blocked.await.unwrap().expect("it ends on request");
    until("the new one is called", || async {
        call(&channel).await.unwrap();
        another.calls() > 0
    })
    .await;
    elsewhere.shutdown_background();
}
