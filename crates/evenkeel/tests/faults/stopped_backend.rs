//! Backend that stops like a process under SIGSTOP: connections stay open, and no response is sent.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel::Channel;
use testkit::net::frames::Answer;
use tokio::time::{Instant, sleep};
use tonic::Code;

use super::{MemoryNetwork, TimedLoad};

const BACKENDS: u64 = 10;
const DEADLINE: Duration = Duration::from_secs(1);

/// Interval and base ejection time of outlier detection; both are A50's defaults.
const INTERVAL: Duration = Duration::from_secs(10);
const EJECTION: Duration = Duration::from_secs(30);

/// Timer tolerance: tokio's timers have millisecond resolution, and some are chained.
const TIMER_SLACK: Duration = Duration::from_millis(5);

const OUTLIER_DETECTION: &str = r#"{"loadBalancingConfig": [{"outlier_detection_experimental": {
    "interval": "10s", "baseEjectionTime": "30s", "maxEjectionPercent": 10,
    "failurePercentageEjection": {"threshold": 50, "minimumHosts": 5, "requestVolume": 5},
    "childPolicy": [{"round_robin": {}}]}}]}"#;

const LEAST_REQUEST: &str = r#"{"loadBalancingConfig": [{"least_request_experimental": {}}]}"#;

/// Ten in-memory backends. The first can be stopped.
struct StoppableFleet {
    network: MemoryNetwork,
    is_stopped: Arc<AtomicBool>,
    first: IpAddr,
}

impl StoppableFleet {
    fn new() -> StoppableFleet {
        let first = IpAddr::from([10, 0, 0, 1]);
        let is_stopped = Arc::<AtomicBool>::default();
        let network = MemoryNetwork::new({
            let is_stopped = is_stopped.clone();
            move |call| {
                let is_silent = call.local == first && is_stopped.load(Ordering::SeqCst);
                if is_silent { Answer::Silent } else { Answer::Ok(Vec::new().into()) }
            }
        });
        StoppableFleet { network, is_stopped, first }
    }

    fn stop(&self, is_stopped: bool) {
        self.is_stopped.store(is_stopped, Ordering::SeqCst);
    }

    async fn channel(&self, service_config: &str) -> Channel {
        let addresses: Vec<_> = (1..=BACKENDS).map(|host| format!("10.0.0.{host}:80")).collect();
        let channel = Channel::builder(format!("ipv4:{}", addresses.join(",")))
            .service_config(service_config)
            .connector(self.network.clone())
            .seed(7)
            .build()
            .unwrap();
        channel.ready().await.unwrap();
        channel
    }

    /// Returns the number of calls received by the first backend, and by all.
    fn calls(&self) -> (u64, u64) {
        let calls = self.network.servers.calls_by_address();
        (calls.get(&self.first).copied().unwrap_or_default(), calls.values().sum())
    }
}

/// fault 50: a backend stops for 30 seconds. Its calls end at their deadline, outlier detection ejects it within one
/// interval, and no later call fails. It serves its share again when the ejection ends.
#[tokio::test(start_paused = true)]
async fn a_stopped_backend_is_ejected_within_one_interval() {
    let fleet = StoppableFleet::new();
    let begun = Instant::now();
    let channel = fleet.channel(OUTLIER_DETECTION).await;
    let load = TimedLoad::start(&channel, 10, Duration::from_millis(100), Some(DEADLINE));
    // Stop at the start of an interval: A50 evaluates whole intervals, and half a good one would hide the
    // failures.
    sleep(2 * INTERVAL).await;
    assert!(fleet.calls().0 > 50, "it serves before it stops");

    fleet.stop(true);
    let stopped = Instant::now();
    sleep(INTERVAL + TIMER_SLACK).await;
    let at_ejection = fleet.calls();
    sleep(Duration::from_secs(20)).await;
    fleet.stop(false);
    let resumed = fleet.calls();
    assert_eq!(resumed.0, at_ejection.0, "an ejected backend gets no calls");
    assert!(resumed.1 > at_ejection.1 + 500, "the others get calls");

    sleep(EJECTION).await;
    let (its, all) = fleet.calls();
    let calls = load.stop().await;
    let share = (its - resumed.0) as f64 / (all - resumed.1) as f64;
    println!("fault 50: share after the ejection {share:.3}, {:?} of virtual time", begun.elapsed());
    assert!((0.05..=0.1).contains(&share), "it serves its share again, not {share:.3} of all calls");

    let failed: Vec<_> = calls.iter().filter(|call| call.failed.is_some()).collect();
    println!("fault 50: {} of {} calls failed", failed.len(), calls.len());
    assert!(!failed.is_empty(), "calls to a stopped backend fail");
    for call in &failed {
        assert_eq!(call.failed.as_ref().map(tonic::Status::code), Some(Code::DeadlineExceeded), "{call:?}");
        assert!(call.took >= DEADLINE && call.took <= DEADLINE + TIMER_SLACK, "{call:?}");
        assert!(call.begun >= stopped && call.begun <= stopped + INTERVAL + TIMER_SLACK, "{call:?}");
    }
}

/// fault 50: without outlier detection, `least_request` avoids a stopped backend, since its calls stay
/// outstanding. As a reference, it keeps its share under `round_robin`.
#[tokio::test(start_paused = true)]
async fn least_request_sheds_a_stopped_backend() {
    let mut shares = Vec::new();
    for policy in [LEAST_REQUEST, r#"{"loadBalancingConfig": [{"round_robin": {}}]}"#] {
        let fleet = StoppableFleet::new();
        let channel = fleet.channel(policy).await;
        fleet.stop(true);
        let load = TimedLoad::start(&channel, 20, Duration::from_millis(100), Some(DEADLINE));
        sleep(Duration::from_secs(30)).await;
        let (its, all) = fleet.calls();
        let calls = load.stop().await;
        let failed = calls.iter().filter_map(|call| call.failed.as_ref());
        assert!(failed.clone().count() > 10, "the stopped backend was tried");
        assert!(failed.clone().all(|status| status.code() == Code::DeadlineExceeded));
        shares.push(its as f64 / all as f64);
    }
    println!(
        "fault 50: share of the stopped backend: least_request {:.3}, round_robin {:.3}",
        shares[0], shares[1]
    );
    assert!((0.09..=0.11).contains(&shares[1]), "round_robin takes no notice: {}", shares[1]);
    assert!(shares[0] < shares[1] / 3.0, "least_request sheds: {}", shares[0]);
}
