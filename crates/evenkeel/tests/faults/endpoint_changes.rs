//! Endpoints that are added and replaced by EDS while calls run.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use evenkeel::{Bootstrap, Channel};
use testkit::net::ControlPlane;
use testkit::net::frames::Answer;
use tokio::time::sleep;

use super::{ConnectAttempt, MemoryNetwork, TimedLoad, assert_undisturbed, until_elsewhere};

/// Maximum number of recent attempts in progress: at the start of a burst, and later.
const FIRST_PARALLEL: usize = 16;
const MAX_PARALLEL: usize = 128;

/// Age up to which an attempt in progress counts against the maximum.
const RECENT: Duration = Duration::from_millis(100);

fn endpoint(number: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(u32::from_be_bytes([10, 0, 0, 0]) + number))
}

fn addresses(numbers: impl IntoIterator<Item = u32>) -> Vec<SocketAddr> {
    numbers.into_iter().map(|number| SocketAddr::new(endpoint(number), 80)).collect()
}

/// Returns a channel to `xds:///orders` over in-memory endpoints. Its idle timeout is off, because a paused
/// clock jumps.
fn channel(control: &ControlPlane, network: &MemoryNetwork) -> Channel {
    Channel::builder("xds:///orders")
        .bootstrap(Bootstrap::from_json(&control.bootstrap("node-7")).unwrap())
        .connector(network.clone())
        .idle_timeout(None)
        .build()
        .unwrap()
}

/// Returns the number of recent attempts in progress when `attempt` starts, including itself.
fn parallel(attempts: &[ConnectAttempt], attempt: &ConnectAttempt) -> usize {
    let is_in_progress = |other: &&ConnectAttempt| {
        other.begun <= attempt.begun
            && attempt.begun - other.begun < RECENT
            && other.ended.is_none_or(|ended| ended > attempt.begun)
    };
    attempts.iter().filter(is_in_progress).count()
}

/// fault 53: EDS adds ten times the endpoints, and every fourth takes ten seconds to connect. At most 16
/// attempts start at once, and at most 128 recent ones are in progress. Each endpoint is dialled once. No
/// call fails or waits.
#[tokio::test(start_paused = true)]
async fn ten_times_the_endpoints_connect_in_bounded_parallel() {
    let slow = |ip: IpAddr| match ip {
        IpAddr::V4(ip) if ip.to_bits() % 4 == 0 => Duration::from_secs(10),
        _ => Duration::from_millis(50),
    };
    let network = MemoryNetwork::new(|_| Answer::Ok(Vec::new().into())).delayed(slow);
    let control = ControlPlane::start().await;
    control.serve("orders", "pay", &addresses(0..100));
    let channel = channel(&control, &network);
    channel.connect();
    until_elsewhere("the first endpoints are dialled", || network.attempt_count() > 0).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(network.servers.open_connections(), 100);

    let load = TimedLoad::start(&channel, 8, Duration::from_millis(10), None);
    sleep(Duration::from_secs(1)).await;
    control.set_endpoints("pay", &addresses(0..1_100));
    until_elsewhere("the added endpoints are dialled", || network.attempt_count() > 100).await;
    sleep(Duration::from_secs(60)).await;
    assert_undisturbed(&load.stop().await, 1_000);

    let attempts = network.attempts();
    let dialled: BTreeSet<_> = attempts.iter().map(|attempt| attempt.to).collect();
    assert_eq!((attempts.len(), dialled.len()), (1_100, 1_100), "each endpoint is dialled once");
    assert_eq!(network.servers.open_connections(), 1_100);
    for burst in [&attempts[..100], &attempts[100..]] {
        let first = burst.iter().filter(|attempt| attempt.begun == burst[0].begun).count();
        assert!(first <= FIRST_PARALLEL, "{first} attempts begin at once");
        let peak = burst.iter().map(|attempt| parallel(burst, attempt)).max().unwrap();
        println!("fault 53: at most {peak} of {} attempts in parallel", burst.len());
        assert!((2..=MAX_PARALLEL).contains(&peak), "{peak} attempts in parallel");
    }
    let served = network.servers.calls_by_address();
    assert!(dialled.iter().all(|ip| served.contains_key(ip)), "each endpoint gets calls in the end");
}

/// fault 29: EDS repeatedly replaces one percent of a thousand endpoints. Only the replaced ones are dialled
/// and closed. No call fails or waits.
#[tokio::test(start_paused = true)]
async fn replacing_one_percent_leaves_the_others_alone() {
    const ENDPOINTS: u32 = 1_000;
    const REPLACED: u32 = 10;
    let network = MemoryNetwork::new(|_| Answer::Ok(Vec::new().into()));
    let control = ControlPlane::start().await;
    control.serve("orders", "pay", &addresses(0..ENDPOINTS));
    let channel = channel(&control, &network);
    channel.connect();
    until_elsewhere("the endpoints are dialled", || network.attempt_count() > 0).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(network.servers.open_connections(), ENDPOINTS as usize);

    let load = TimedLoad::start(&channel, 8, Duration::from_millis(10), None);
    for step in 1..=30 {
        let before = network.attempt_count();
        let first = step * REPLACED;
        control.set_endpoints("pay", &addresses(first..first + ENDPOINTS));
        until_elsewhere("the update arrives", || network.attempt_count() > before).await;
        sleep(Duration::from_secs(1)).await;
        let added: Vec<_> = network.attempts()[before..].iter().map(|attempt| attempt.to).collect();
        let end = first + ENDPOINTS;
        let expected: Vec<_> = (end - REPLACED..end).map(endpoint).collect();
        assert_eq!(added, expected, "step {step} dials what it added");
        assert_eq!(
            network.servers.open_connections(),
            ENDPOINTS as usize,
            "step {step} closes what it removed"
        );
    }
    assert_undisturbed(&load.stop().await, 1_000);
    let connections: BTreeMap<_, _> = network.servers.connections_by_address();
    assert!(connections.values().all(|connections| *connections == 1), "no endpoint is connected twice");
}
