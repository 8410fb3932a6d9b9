//! Atomic call counters and latency histograms, per channel and per address.
//!
//! A call only increments shared atomics; it takes no lock, except a failed one for its text. Latency buckets are an eighth of their power of two wide,
//! so a quantile is off by at most about 6 %. The admin watcher computes rates and shares from two snapshots.

use std::array;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use evenkeel_core::{Address, Code, LoadReport};

use super::FailureInfo;
use super::failures::{FailureCounts, FailureStats, LastFailure, wall_millis};
use crate::sync::lock;

static ENABLED: AtomicBool = AtomicBool::new(false);

/// Starts counting in all channels of the process. Counting cannot be disabled again.
pub(crate) fn enable() {
    ENABLED.store(true, Ordering::Relaxed);
}

/// Statistics of a channel: of its calls, and of the attempts at each address.
#[derive(Debug, Default)]
pub(crate) struct ChannelStats {
    calls: CallStats,
    /// Weak, so that the counters of an address exist only while a connection or a sample holds them.
    endpoints: Mutex<BTreeMap<Address, Weak<CallStats>>>,
}

impl ChannelStats {
    /// Counts a call as started.
    pub(crate) fn start(&self) -> CallTimer {
        self.calls.start()
    }

    /// Counts a call as finished. `None` means that the caller dropped the call before its status.
    pub(crate) fn finish(&self, timer: CallTimer, end: Option<(Code, FailureInfo<'_>)>) {
        self.calls.finish(timer, end);
    }

    /// Connects the statistics of a connection to the counters of its address. Only the first call has an effect.
    pub(crate) fn attach(&self, address: &Address, endpoint: &EndpointStats) {
        let _ = endpoint.0.set(self.for_address(address));
    }

    /// Returns the counters of all calls of the channel.
    pub(crate) fn calls(&self) -> &CallStats {
        &self.calls
    }

    /// Returns the counters of an address, and creates them if no holder is left.
    pub(crate) fn for_address(&self, address: &Address) -> Arc<CallStats> {
        let mut endpoints = lock(&self.endpoints);
        if let Some(stats) = endpoints.get(address).and_then(Weak::upgrade) {
            return stats;
        }
        // Dead entries are removed only when the table is about to grow past a power of two, not on each insertion.
        if endpoints.len().is_power_of_two() {
            endpoints.retain(|_, stats| stats.strong_count() > 0);
        }
        let stats = Arc::<CallStats>::default();
        endpoints.insert(address.clone(), Arc::downgrade(&stats));
        stats
    }
}

/// Statistics of one connection. They count nothing until [`ChannelStats::attach`] connects them to an address.
#[derive(Debug, Default)]
pub(crate) struct EndpointStats(OnceLock<Arc<CallStats>>);

impl EndpointStats {
    pub(crate) fn start(&self) -> CallTimer {
        self.0.get().map_or_else(CallTimer::default, |stats| stats.start())
    }

    pub(crate) fn finish(&self, timer: CallTimer, end: Option<(Code, FailureInfo<'_>)>) {
        if let Some(stats) = self.0.get() {
            stats.finish(timer, end);
        }
    }

    /// Returns true if load reports of the endpoint should be recorded.
    pub(crate) fn records_load(&self) -> bool {
        self.0.get().is_some() && ENABLED.load(Ordering::Relaxed)
    }

    /// Records a load report of the endpoint.
    pub(crate) fn load(&self, report: &LoadReport) {
        if let Some(stats) = self.0.get() {
            stats.load(report);
        }
    }
}

/// Start time of a call; `None` if counting was disabled when it started. A call without one is not counted at its end.
#[derive(Debug, Default)]
pub(crate) struct CallTimer(Option<Instant>);

/// Counters of calls or attempts. All of them only increase, except `utilization`.
#[derive(Debug)]
pub(crate) struct CallStats {
    started: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    abandoned: AtomicU64,
    /// Last reported utilization as the bits of an `f64`; NaN before the first report.
    utilization: AtomicU64,
    /// Latency histogram, allocated when the first call ends. The buckets may wrap.
    latencies: OnceLock<Box<[AtomicU32; BUCKETS]>>,
    /// Failures by code and cause, allocated when the first call fails.
    failures: OnceLock<Box<FailureStats>>,
}

impl Default for CallStats {
    fn default() -> CallStats {
        CallStats {
            started: AtomicU64::new(0),
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
            utilization: AtomicU64::new(f64::NAN.to_bits()),
            latencies: OnceLock::new(),
            failures: OnceLock::new(),
        }
    }
}

impl CallStats {
    fn start(&self) -> CallTimer {
        // Relaxed: a call that misses the change has no timer, and is not counted at its end either.
        if !ENABLED.load(Ordering::Relaxed) {
            return CallTimer(None);
        }
        self.started.fetch_add(1, Ordering::Relaxed);
        CallTimer(Some(Instant::now()))
    }

    fn finish(&self, CallTimer(began): CallTimer, end: Option<(Code, FailureInfo<'_>)>) {
        let Some(began) = began else { return };
        let ended = match end {
            Some((Code::Ok, _)) => &self.succeeded,
            Some((code, failure)) => {
                self.failures.get_or_init(Box::default).record(code, failure, wall_millis());
                &self.failed
            }
            None => &self.abandoned,
        };
        if end.is_some() {
            let latencies = self.latencies.get_or_init(|| Box::new([const { AtomicU32::new(0) }; BUCKETS]));
            latencies[bucket(began.elapsed())].fetch_add(1, Ordering::Relaxed);
        }
        ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Records application utilization, or CPU utilization if the former is not set, as weights do (A58).
    fn load(&self, report: &LoadReport) {
        let reported = [report.application_utilization, report.cpu_utilization];
        let utilization = reported.into_iter().find(|value| *value > 0.0).unwrap_or(0.0);
        self.utilization.store(utilization.to_bits(), Ordering::Relaxed);
    }

    /// Returns the current counts.
    pub(crate) fn snapshot(&self) -> CallStatsSnapshot {
        // The counters of ended calls are read before `started`. Otherwise a call that starts and ends in between would
        // count as ended but not as started.
        let succeeded = self.succeeded.load(Ordering::Relaxed);
        let failed = self.failed.load(Ordering::Relaxed);
        let abandoned = self.abandoned.load(Ordering::Relaxed);
        let utilization = f64::from_bits(self.utilization.load(Ordering::Relaxed));
        CallStatsSnapshot {
            started: self.started.load(Ordering::Relaxed),
            succeeded,
            failed,
            abandoned,
            utilization: Some(utilization).filter(|value| !value.is_nan()),
            latencies: self
                .latencies
                .get()
                .map(|buckets| Box::new(array::from_fn(|i| buckets[i].load(Ordering::Relaxed)))),
            failures: self.failures.get().map(|failures| failures.counts()).unwrap_or_default(),
            last_failure: self.failures.get().and_then(|failures| failures.last()),
        }
    }
}

/// Counts of a [`CallStats`] at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallStatsSnapshot {
    pub(crate) started: u64,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    pub(crate) abandoned: u64,
    pub(crate) utilization: Option<f64>,
    latencies: Option<Box<[u32; BUCKETS]>>,
    /// Failures by code and cause, in this order.
    pub(crate) failures: FailureCounts,
    pub(crate) last_failure: Option<LastFailure>,
}

impl CallStatsSnapshot {
    /// Returns the sums of both. The utilization is that of `other`, if it has one.
    #[must_use]
    pub(crate) fn merge(self, other: CallStatsSnapshot) -> CallStatsSnapshot {
        let latencies = match (self.latencies, other.latencies) {
            (Some(mut own), Some(more)) => {
                own.iter_mut().zip(*more).for_each(|(own, more)| *own = own.wrapping_add(more));
                Some(own)
            }
            (own, more) => own.or(more),
        };
        let mut failures = self.failures;
        for (kind, count) in other.failures {
            match failures.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, sum)) => *sum += count,
                None => failures.push((kind, count)),
            }
        }
        let last_failures = [self.last_failure, other.last_failure];
        CallStatsSnapshot {
            failures,
            last_failure: last_failures.into_iter().flatten().max_by_key(|failure| failure.at),
            started: self.started + other.started,
            succeeded: self.succeeded + other.succeeded,
            failed: self.failed + other.failed,
            abandoned: self.abandoned + other.abandoned,
            utilization: other.utilization.or(self.utilization),
            latencies,
        }
    }

    /// Returns latency quantiles, in milliseconds, of the calls that ended since `before`. They are `None` if no call
    /// ended.
    pub(crate) fn quantiles<const N: usize>(
        &self,
        before: &CallStatsSnapshot,
        shares: [f64; N],
    ) -> [Option<f64>; N] {
        let Some(now) = &self.latencies else { return [None; N] };
        // Buckets may wrap. Their difference is still right unless 2^32 calls end between two samples.
        let since = |i: usize| match &before.latencies {
            Some(before) => now[i].wrapping_sub(before[i]),
            None => now[i],
        };
        let total: u64 = (0..BUCKETS).map(|i| u64::from(since(i))).sum();
        shares.map(|share| {
            let rank = ((total as f64 * share).ceil() as u64).max(1);
            let mut below = 0;
            let found = (0..BUCKETS).find(|i| {
                below += u64::from(since(*i));
                below >= rank
            });
            found.filter(|_| total > 0).map(midpoint_ms)
        })
    }
}

/// Number of buckets: eight per power of two of microseconds, up to 67 s. The last one also holds longer calls.
const BUCKETS: usize = 8 + 8 * 23;

fn bucket(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    if micros < 8 {
        return micros as usize;
    }
    let power = micros.ilog2() as usize;
    // The three bits behind the leading one.
    let eighth = (micros >> (power - 3)) as usize & 7;
    // The first eight buckets are single microseconds, and those of 2^3 follow.
    (8 * (power - 2) + eighth).min(BUCKETS - 1)
}

/// Returns the middle of a bucket, in milliseconds.
fn midpoint_ms(bucket: usize) -> f64 {
    if bucket < 8 {
        return (bucket as f64 + 0.5) / 1e3;
    }
    let width = f64::from(1u32 << (bucket / 8 - 1));
    (8.5 + (bucket % 8) as f64) * width / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_off_by_little() {
        for micros in (1..2000).chain((2000..60_000_000).step_by(7919)) {
            let found = midpoint_ms(bucket(Duration::from_micros(micros))) * 1e3;
            let off = (found - micros as f64).abs();
            assert!(off <= 0.5 || off / micros as f64 <= 0.0626, "{micros} µs: {found}");
        }
        let longest = Duration::from_secs(1 << 40);
        assert_eq!(bucket(longest), BUCKETS - 1);
        assert_eq!(bucket(Duration::from_secs(67)), BUCKETS - 1);
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_those_between_two_looks() {
        let snapshot = |took: &[(u64, u32)]| {
            let mut latencies = Box::new([0; BUCKETS]);
            for (millis, calls) in took {
                latencies[bucket(Duration::from_millis(*millis))] = *calls;
            }
            CallStatsSnapshot { latencies: Some(latencies), ..CallStatsSnapshot::default() }
        };
        let before = snapshot(&[(1, 1000), (500, u32::MAX)]);
        let now = snapshot(&[(1, 1000), (10, 98), (500, 1)]);
        let [half, most] = now.quantiles(&before, [0.5, 0.99]).map(|ms| ms.expect("calls ended"));
        assert!((9.4..10.7).contains(&half), "{half}");
        assert!((470.0..532.0).contains(&most), "{most}");
        assert_eq!(now.quantiles(&now, [0.5]), [None]);
        assert_eq!(CallStatsSnapshot::default().quantiles(&CallStatsSnapshot::default(), [0.5]), [None]);
    }

    #[test]
    fn addresses_that_are_gone_are_forgotten() {
        let channel_stats = ChannelStats::default();
        let kept = channel_stats.for_address(&Address::from("kept:1"));
        for i in 0..10_000 {
            channel_stats.for_address(&Address::from(format!("gone:{i}").as_str()));
        }
        assert!(channel_stats.endpoints.lock().expect("no panic").len() < 10);
        assert!(Arc::ptr_eq(&kept, &channel_stats.for_address(&Address::from("kept:1"))));
    }
}
