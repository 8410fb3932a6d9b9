//! Parts of a soak test: long-running calls, windows in which calls may fail, and resources of the process.
//!
//! The short soak of the tests and the long one, `evenkeel bench soak`, share the criteria. No call fails
//! outside the windows, and descriptors, tasks and threads return to their initial numbers.

use std::fs;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tonic::Status;

use super::LONG;
use crate::lock;

/// Resources of this process that a fault must not leak. Linux only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Number of open file descriptors.
    pub descriptors: usize,
    /// Number of tasks in the current tokio runtime.
    pub tasks: usize,
    /// Number of xDS client threads.
    pub xds_threads: usize,
}

impl ProcessUsage {
    /// Returns the current usage. Panics outside a tokio runtime.
    pub fn now() -> io::Result<ProcessUsage> {
        let threads = fs::read_dir("/proc/self/task")?;
        let names = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("comm")).ok());
        Ok(ProcessUsage {
            descriptors: fs::read_dir("/proc/self/fd")?.count(),
            tasks: Handle::current().metrics().num_alive_tasks(),
            xds_threads: names.filter(|name| name.trim() == "evenkeel-xds").count(),
        })
    }

    /// Waits until no count is above this usage, and returns the usage. Returns an error after 30 seconds.
    pub async fn wait_until_restored(&self) -> Result<ProcessUsage, ProcessUsage> {
        let begun = Instant::now();
        loop {
            match ProcessUsage::now() {
                Ok(now) if now.is_at_most(self) => return Ok(now),
                Ok(now) if begun.elapsed() > LONG => return Err(now),
                _ => sleep(Duration::from_millis(5)).await,
            }
        }
    }

    /// Returns true if no count is above its count in `other`.
    pub fn is_at_most(&self, other: &ProcessUsage) -> bool {
        self.descriptors <= other.descriptors
            && self.tasks <= other.tasks
            && self.xds_threads <= other.xds_threads
    }
}

/// Returns the resident memory of this process in bytes. Linux only.
pub fn resident_bytes() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other("no VmRSS in /proc/self/status"))
}

/// Returns the slope of the line through these points, by least squares. `None` if they have no spread.
pub fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    let mean = |sum: f64| sum / count;
    let (x, y) = (mean(points.iter().map(|p| p.0).sum()), mean(points.iter().map(|p| p.1).sum()));
    let spread: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    let common: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    (spread > 0.0).then(|| common / spread)
}

/// Failed call, with its start and end.
#[derive(Clone, Debug)]
pub struct FailedCall {
    /// Start of the call.
    pub begun: Instant,
    /// End of the call.
    pub ended: Instant,
    /// Status of the call.
    pub status: Status,
}

/// Time in which calls may fail: from before a backend is killed until its calls have ended.
#[derive(Clone, Copy, Debug)]
pub struct KillWindow {
    /// Start of the window.
    pub begun: Instant,
    /// End of the window.
    pub ended: Instant,
}

/// Outcome of a soak.
#[derive(Debug)]
pub struct SoakOutcome {
    /// Number of calls that succeeded.
    pub ok: u64,
    /// Failed calls with their status.
    pub failed: Vec<FailedCall>,
}

impl SoakOutcome {
    /// Returns the failed calls that overlap none of these windows.
    pub fn failed_outside(&self, windows: &[KillWindow]) -> Vec<&FailedCall> {
        let overlaps =
            |call: &FailedCall, window: &KillWindow| call.begun <= window.ended && call.ended >= window.begun;
        let is_outside = |call: &&FailedCall| !windows.iter().any(|window| overlaps(call, window));
        self.failed.iter().filter(is_outside).collect()
    }
}

/// Callers at a steady rate. They stop when this is dropped.
pub struct SoakLoad {
    callers: JoinSet<()>,
    /// Number of calls that each caller has finished.
    finished: Vec<Arc<AtomicU64>>,
    record: Arc<LoadRecord>,
}

#[derive(Default)]
struct LoadRecord {
    ok: AtomicU64,
    failed: Mutex<Vec<FailedCall>>,
    is_stopped: AtomicBool,
}

impl LoadRecord {
    fn failed(&self) -> MutexGuard<'_, Vec<FailedCall>> {
        lock(&self.failed)
    }
}

impl SoakLoad {
    /// Starts `callers` callers. Each starts a call per `period`, or when the previous call ends if that is
    /// later.
    pub fn start<C, F>(callers: usize, period: Duration, call: C) -> SoakLoad
    where
        C: Fn() -> F + Clone + Send + 'static,
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let record = Arc::<LoadRecord>::default();
        let finished: Vec<Arc<AtomicU64>> = (0..callers).map(|_| Arc::default()).collect();
        let caller = |finished: &Arc<AtomicU64>| {
            let (call, record, finished) = (call.clone(), Arc::clone(&record), Arc::clone(finished));
            async move {
                let mut ticks = interval(period);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                while !record.is_stopped.load(Ordering::SeqCst) {
                    ticks.tick().await;
                    let begun = Instant::now();
                    match call().await {
                        Ok(()) => drop(record.ok.fetch_add(1, Ordering::SeqCst)),
                        Err(status) => {
                            record.failed().push(FailedCall { begun, ended: Instant::now(), status });
                        }
                    }
                    finished.fetch_add(1, Ordering::SeqCst);
                }
            }
        };
        let callers = finished.iter().map(caller).collect();
        SoakLoad { callers, finished, record }
    }

    /// Returns the number of calls that succeeded so far.
    pub fn ok(&self) -> u64 {
        self.record.ok.load(Ordering::SeqCst)
    }

    /// Returns the number of calls that failed so far.
    pub fn failed(&self) -> usize {
        self.record.failed().len()
    }

    /// Waits until each caller has finished its current call and `calls` more. Returns false after 30
    /// seconds.
    pub async fn further(&self, calls: u64) -> bool {
        let finished = || self.finished.iter().map(|finished| finished.load(Ordering::SeqCst));
        let until: Vec<u64> = finished().map(|finished| finished + 1 + calls).collect();
        let begun = Instant::now();
        while finished().zip(&until).any(|(finished, until)| finished < *until) {
            if begun.elapsed() > LONG {
                return false;
            }
            sleep(Duration::from_millis(1)).await;
        }
        true
    }

    /// Stops after the calls in progress, and returns the outcome.
    pub async fn stop(mut self) -> SoakOutcome {
        self.record.is_stopped.store(true, Ordering::SeqCst);
        while let Some(caller) = self.callers.join_next().await {
            assert!(caller.is_ok(), "a caller panicked");
        }
        let failed = std::mem::take(&mut *self.record.failed());
        SoakOutcome { ok: self.ok(), failed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_is_that_of_the_line() {
        let line = |x: u32| (f64::from(x), 3.0 * f64::from(x) + 7.0);
        let found = slope(&(0..10).map(line).collect::<Vec<_>>());
        assert!(found.is_some_and(|found| (found - 3.0).abs() < 1e-9), "{found:?}");
        assert_eq!(slope(&[]), None);
        assert_eq!(slope(&[(1.0, 2.0), (1.0, 3.0)]), None);
    }

    #[test]
    fn a_failed_call_is_inside_a_window_that_it_overlaps() {
        let zero = Instant::now();
        let at = |seconds: u64| zero + Duration::from_secs(seconds);
        let call = |begun: u64, ended: u64| FailedCall {
            begun: at(begun),
            ended: at(ended),
            status: Status::unavailable("gone"),
        };
        let outcome = SoakOutcome {
            ok: 0,
            failed: vec![call(1, 2), call(4, 6), call(6, 7), call(8, 11), call(12, 13)],
        };
        let windows = [KillWindow { begun: at(5), ended: at(10) }];
        let outside: Vec<_> = outcome.failed_outside(&windows).iter().map(|call| call.begun).collect();
        assert_eq!(outside, [at(1), at(12)]);
        assert_eq!(outcome.failed_outside(&[]).len(), 5);
    }
}
