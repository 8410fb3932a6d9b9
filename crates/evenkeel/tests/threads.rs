//! Number of xDS client threads. The binary has no other tests, since their threads would be counted.
#![cfg(target_os = "linux")]

use std::fs;
use std::time::Duration;

use evenkeel::{Channel, XdsClient};
use evenkeel_xds::bootstrap::Bootstrap;
use testkit::net::{Backend, ControlPlane};

fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux has it");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "evenkeel-xds").count()
}

/// Waits until this number of threads is left. They end asynchronously.
async fn settle_at(count: usize) {
    let settled = async {
        while threads() != count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), settled).await;
    assert!(waited.is_ok(), "expected {count} threads, found {}", threads());
}

/// All channels of a bootstrap share one thread. It ends with the last handle or channel, also without a
/// control plane.
#[tokio::test]
async fn threads_end_with_their_clients() {
    let backend = Backend::start().await;
    let control = ControlPlane::start().await;
    control.serve("orders", "a", &[backend.address()]);
    let bootstrap = Bootstrap::from_json(&control.bootstrap("me")).unwrap();
    assert_eq!(threads(), 0);

    let client = XdsClient::shared(bootstrap.clone());
    let channels: Vec<_> = (0..10)
        .map(|_| Channel::builder("xds:///orders").bootstrap(bootstrap.clone()).build().unwrap())
        .collect();
    for channel in &channels {
        channel.ready().await.unwrap();
    }
    settle_at(1).await;
    assert_eq!(control.streams(), 1);
    drop(client);
    let mut channels = channels.into_iter();
    let last = channels.next_back().unwrap();
    for channel in channels {
        channel.close().await;
    }
    assert!(last.ready().await.is_ok() && threads() == 1);
    last.close().await;
    settle_at(0).await;
    control.wait_until(|control| control.open_connections() == 0).await;

    control.kill();
    let own: Vec<_> = (0..5).map(|_| XdsClient::builder(bootstrap.clone()).build()).collect();
    let channel = Channel::builder("xds:///orders").xds_client(own[0].clone()).build().unwrap();
    channel.connect();
    while own[0].server_stats().first().is_none_or(|server| server.failures == 0) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    settle_at(5).await;
    drop((own, channel));
    settle_at(0).await;
}
