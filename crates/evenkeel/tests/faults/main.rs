//! Faults on virtual time: in-memory endpoints, a paused clock, and exact call durations.
//!
//! Each test names its number in the list of faults. A control plane runs in real time on its own thread.
//! [`until_elsewhere`] waits for it without advancing the paused clock.
//!
//! The tests are a binary of their own, because it builds in seconds.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[cfg(feature = "otel")]
mod blocked_exporter;
mod endpoint_changes;
mod nested_control_plane;
mod stopped_backend;

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel::{Address, Channel, Connector, Io};
use testkit::lock;
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use testkit::net::frames::{Answer, Call, MemoryServers};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tonic::{Request, Status};

/// Maximum wait in real time. Only a failing test reaches it.
const LONG: Duration = Duration::from_secs(30);

/// Waits until another thread has made `condition` true. The paused clock does not advance meanwhile.
async fn until_elsewhere(what: &str, condition: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LONG, "waited in vain until {what}");
        // A blocking task keeps tokio from advancing a paused clock.
        let pause = tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(1)));
        pause.await.expect("a sleep does not panic");
    }
}

/// Connector to servers in memory. It delays attempts by address and records them.
#[derive(Clone)]
struct MemoryNetwork {
    servers: Arc<MemoryServers>,
    delay: Arc<dyn Fn(IpAddr) -> Duration + Send + Sync>,
    attempts: Arc<Mutex<Vec<ConnectAttempt>>>,
}

/// One attempt to connect, on virtual time.
#[derive(Clone, Copy, Debug)]
struct ConnectAttempt {
    to: IpAddr,
    begun: Instant,
    /// `None` while the attempt is in progress.
    ended: Option<Instant>,
}

impl MemoryNetwork {
    fn new(handler: impl Fn(&Call<'_>) -> Answer + Send + Sync + 'static) -> MemoryNetwork {
        let servers = Arc::new(MemoryServers::new(handler));
        MemoryNetwork { servers, delay: Arc::new(|_| Duration::ZERO), attempts: Arc::default() }
    }

    /// Sets the duration of each connection attempt by address.
    fn delayed(mut self, delay: impl Fn(IpAddr) -> Duration + Send + Sync + 'static) -> MemoryNetwork {
        self.delay = Arc::new(delay);
        self
    }

    fn attempts(&self) -> Vec<ConnectAttempt> {
        lock(&self.attempts).clone()
    }

    fn attempt_count(&self) -> usize {
        lock(&self.attempts).len()
    }
}

impl Connector for MemoryNetwork {
    fn connect(
        &self,
        address: &Address,
    ) -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send + '_>> {
        let Address::Ip(to) = *address else { panic!("{address} is not an IP address") };
        let to = to.ip();
        let mut attempts = lock(&self.attempts);
        let index = attempts.len();
        attempts.push(ConnectAttempt { to, begun: Instant::now(), ended: None });
        Box::pin(async move {
            let delay = (self.delay)(to);
            if !delay.is_zero() {
                sleep(delay).await;
            }
            lock(&self.attempts)[index].ended = Some(Instant::now());
            Ok(Box::new(self.servers.connect(to)) as Box<dyn Io>)
        })
    }
}

/// One finished call, on virtual time.
#[derive(Clone, Debug)]
struct TimedCall {
    begun: Instant,
    took: Duration,
    failed: Option<Status>,
}

/// Callers of `Echo/Unary` that run until stopped.
struct TimedLoad {
    callers: JoinSet<()>,
    calls: Arc<Mutex<Vec<TimedCall>>>,
    stopped: Arc<AtomicBool>,
}

impl TimedLoad {
    /// Starts `callers` callers, each with `pause` between two calls. `deadline` applies to each call.
    fn start(channel: &Channel, callers: usize, pause: Duration, deadline: Option<Duration>) -> TimedLoad {
        let calls = Arc::<Mutex<Vec<TimedCall>>>::default();
        let stopped = Arc::<AtomicBool>::default();
        let caller = |_| {
            let mut client = EchoClient::new(channel.clone());
            let (calls, stopped) = (calls.clone(), stopped.clone());
            async move {
                while !stopped.load(Ordering::SeqCst) {
                    let mut request = Request::new(EchoRequest::default());
                    if let Some(deadline) = deadline {
                        request.set_timeout(deadline);
                    }
                    let begun = Instant::now();
                    let failed = client.unary(request).await.err();
                    lock(&calls).push(TimedCall { begun, took: begun.elapsed(), failed });
                    sleep(pause).await;
                }
            }
        };
        let callers = (0..callers).map(caller).collect();
        TimedLoad { callers, calls, stopped }
    }

    /// Stops after the calls in progress, and returns all finished calls.
    async fn stop(mut self) -> Vec<TimedCall> {
        self.stopped.store(true, Ordering::SeqCst);
        while let Some(caller) = self.callers.join_next().await {
            caller.expect("a caller does not panic");
        }
        std::mem::take(&mut *lock(&self.calls))
    }
}

/// Asserts that at least `count` calls were made, that all succeeded, and that none waited.
fn assert_undisturbed(calls: &[TimedCall], count: usize) {
    assert!(calls.len() >= count, "only {} calls", calls.len());
    for call in calls {
        assert!(call.failed.is_none(), "{call:?}");
        assert_eq!(call.took, Duration::ZERO, "no call waits for a connection attempt");
    }
}
