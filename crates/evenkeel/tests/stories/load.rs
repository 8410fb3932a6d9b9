//! Steady load: callers that each make sequential calls until stopped.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel::Channel;
use testkit::lock;
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Request, Status};

/// Maximum wait. Only a failing test reaches it.
const LONG: Duration = Duration::from_secs(30);

/// Pause between two calls of a caller, so that a small machine has time for the servers.
const PAUSE: Duration = Duration::from_millis(2);

/// Running load. It ends when dropped; [`stop`](Load::stop) returns the results.
pub(crate) struct Load {
    callers: JoinSet<()>,
    /// Number of finished calls of each caller.
    ended: Vec<Arc<AtomicU64>>,
    tally: Arc<Tally>,
    since: Instant,
}

/// Results of a load.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) ok: u64,
    pub(crate) failed: Vec<Status>,
    /// Maximum duration of a call, with any outcome.
    pub(crate) slowest: Duration,
    /// Number of calls per second.
    pub(crate) rate: u64,
}

#[derive(Default)]
struct Tally {
    ok: AtomicU64,
    failed: Mutex<Vec<Status>>,
    slowest: AtomicU64,
    stopped: AtomicBool,
    counted: Notify,
}

impl Load {
    /// Starts `callers` callers of `Echo/Unary`. Only a failing test reaches the deadline of a call.
    pub(crate) fn start(channel: &Channel, callers: usize) -> Load {
        let tally = Arc::<Tally>::default();
        let client = EchoClient::new(channel.clone());
        let ended: Vec<Arc<AtomicU64>> = (0..callers).map(|_| Arc::default()).collect();
        let caller = |ended: &Arc<AtomicU64>| call_on(client.clone(), ended.clone(), tally.clone());
        let callers = ended.iter().map(caller).collect();
        Load { callers, ended, tally, since: Instant::now() }
    }

    /// Returns the number of successful calls so far.
    pub(crate) fn ok(&self) -> u64 {
        self.tally.ok.load(Ordering::SeqCst)
    }

    /// Returns the number of failed calls so far.
    pub(crate) fn failed(&self) -> usize {
        lock(&self.tally.failed).len()
    }

    /// Waits until every caller has finished its current call and `calls` more.
    pub(crate) async fn further(&self, calls: u64) {
        let count = || self.ended.iter().map(|ended| ended.load(Ordering::SeqCst));
        let until: Vec<u64> = count().map(|ended| ended + 1 + calls).collect();
        let is_over = || count().zip(&until).all(|(ended, until)| ended >= *until);
        let waited = timeout(LONG, async {
            loop {
                let counted = self.tally.counted.notified();
                tokio::pin!(counted);
                // Register before the check, so that no notification is lost.
                counted.as_mut().enable();
                if is_over() {
                    return;
                }
                counted.await;
            }
        });
        assert!(waited.await.is_ok(), "the load stands still: {} ok, {} failed", self.ok(), self.failed());
    }

    /// Stops all callers after their current call.
    pub(crate) async fn stop(mut self) -> Counts {
        self.tally.stopped.store(true, Ordering::SeqCst);
        while let Some(caller) = self.callers.join_next().await {
            caller.expect("a caller does not panic");
        }
        let took = self.since.elapsed();
        let failed = std::mem::take(&mut *lock(&self.tally.failed));
        let ok = self.ok();
        Counts {
            ok,
            slowest: Duration::from_nanos(self.tally.slowest.load(Ordering::SeqCst)),
            rate: ((ok + failed.len() as u64) as f64 / took.as_secs_f64()) as u64,
            failed,
        }
    }
}

impl Counts {
    /// Asserts that calls were made and none failed.
    pub(crate) fn expect_none_failed(&self) {
        assert!(self.ok > 0, "there was no load at all");
        assert!(
            self.failed.is_empty(),
            "{} of {} failed, the first with {:?}",
            self.failed.len(),
            self.ok,
            self.failed[0]
        );
    }
}

async fn call_on(mut client: EchoClient<Channel>, ended: Arc<AtomicU64>, tally: Arc<Tally>) {
    while !tally.stopped.load(Ordering::SeqCst) {
        let mut request = Request::new(EchoRequest { payload: b"load".to_vec(), ..EchoRequest::default() });
        request.set_timeout(LONG);
        let begun = Instant::now();
        let answer = client.unary(request).await;
        let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        tally.slowest.fetch_max(took, Ordering::SeqCst);
        match answer {
            Ok(_) => drop(tally.ok.fetch_add(1, Ordering::SeqCst)),
            Err(status) => lock(&tally.failed).push(status),
        }
        ended.fetch_add(1, Ordering::SeqCst);
        tally.counted.notify_waiters();
        sleep(PAUSE).await;
    }
}
