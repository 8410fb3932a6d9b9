//! Call statistics for load reports to control planes (LRS: A27, A32, A64, A85).
//!
//! A call is counted with one atomic addition at its start and one at its end. Totals only grow; a reporter
//! takes the difference from its last report. Nothing is lost or counted twice, however calls and reports
//! interleave. An unreachable control plane costs no memory: a sum has the same size after a day as after a
//! second.
//!
//! ```text
//!   LoadStore ── server ── (cluster, EDS service name) ── drop category
//!                                                      ── (locality, metrics wanted)
//! ```
//!
//! Counters are shared while references to them exist. After the last one is dropped, they stay until they
//! are reported.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::config::cluster::BackendMetrics;
use crate::load::MetricSum;
use crate::load::sums::MetricSums;
use crate::{CallOutcome, Code, Instant, Locality};

/// Maximum number of unreferenced counters of one kind that wait to be reported. If names keep changing and
/// no report succeeds, further ones are dropped.
const MAX_UNHELD: usize = 1_000;

/// Counters for load reports. Created once per xDS client and passed to all of its cores. It is a value and
/// not a global, so that tests and simulations have separate stores.
#[derive(Default)]
pub struct LoadStore {
    servers: Mutex<BTreeMap<Arc<str>, CounterMap<LoadKey, ClusterLoad>>>,
}

/// Key of a cluster: its name and its EDS service name, if any.
type LoadKey = (Arc<str>, Option<Arc<str>>);

impl LoadStore {
    /// Returns the counters of a cluster that reports to `server`. Calls with the same arguments share them
    /// while references exist. The first report covers the time from `now` on.
    pub fn cluster(
        &self,
        server: &str,
        cluster: &str,
        eds_service_name: Option<&str>,
        now: Instant,
    ) -> Arc<ClusterLoad> {
        let mut servers = lock(&self.servers);
        if !servers.contains_key(server) {
            servers.insert(server.into(), CounterMap::default());
        }
        let counters = servers.get_mut(server).expect("it was found or created just now");
        counters.entry((cluster.into(), eds_service_name.map(Into::into)), || ClusterLoad::new(now))
    }

    /// Returns the servers with something to report. The flag is true while counters of the server are
    /// referenced.
    pub fn servers(&self) -> Vec<(Arc<str>, bool)> {
        let mut servers = lock(&self.servers);
        servers.iter_mut().map(|(server, counters)| (server.clone(), counters.is_held())).collect()
    }

    /// Takes the statistics since the last call for clusters that report to `server`, sorted by name. Only
    /// clusters whose name is `wanted` are included, and those without any activity are skipped. Unreferenced
    /// counters are removed, wanted or not.
    pub fn take(&self, server: &str, wanted: impl Fn(&str) -> bool, now: Instant) -> Vec<ClusterStats> {
        let mut servers = lock(&self.servers);
        let Some(counters) = servers.get_mut(server) else { return Vec::new() };
        let mut all = Vec::new();
        counters.take(|(cluster, eds_service_name), load| {
            if wanted(cluster) {
                all.push(load.take(cluster, eds_service_name.as_ref(), now));
            }
        });
        if counters.all.is_empty() {
            servers.remove(server);
        }
        all.retain(|stats| !stats.is_empty());
        all
    }
}

impl fmt::Debug for LoadStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoadStore")
    }
}

/// Counters of one cluster.
#[derive(Debug)]
pub struct ClusterLoad {
    drops: Mutex<CounterMap<Arc<str>, DropCount>>,
    /// Number of drops without a category.
    shed: DropCount,
    localities: Mutex<CounterMap<(Arc<Locality>, BackendMetrics), LocalityLoad>>,
    taken_at: Mutex<Instant>,
}

impl ClusterLoad {
    fn new(now: Instant) -> ClusterLoad {
        ClusterLoad {
            drops: Mutex::default(),
            shed: DropCount::default(),
            localities: Mutex::default(),
            taken_at: Mutex::new(now),
        }
    }

    /// Returns the drop counter of a category.
    pub fn drops(&self, category: &Arc<str>) -> Arc<DropCount> {
        lock(&self.drops).entry(category.clone(), DropCount::default)
    }

    /// Returns the drop counter without a category, which the circuit breaker uses (A32).
    pub fn shed(&self) -> &DropCount {
        &self.shed
    }

    /// Returns the counters of a locality for these backend metrics. Other metrics use separate counters of
    /// the same locality (A85). Endpoints of unknown locality use the empty one (A42).
    pub fn locality(&self, locality: Option<&Arc<Locality>>, metrics: &BackendMetrics) -> Arc<LocalityLoad> {
        let locality = locality.cloned().unwrap_or_default();
        let make = || LocalityLoad::new(metrics);
        lock(&self.localities).entry((locality, metrics.clone()), make)
    }

    /// Returns every locality with its total counts; reports do not reset them.
    pub fn localities(&self) -> Vec<(Arc<Locality>, Arc<LocalityLoad>)> {
        let localities = lock(&self.localities);
        localities.all.iter().map(|((locality, _), load)| (locality.clone(), load.clone())).collect()
    }

    fn take(&self, cluster: &Arc<str>, eds_service_name: Option<&Arc<str>>, now: Instant) -> ClusterStats {
        let mut drops = Vec::new();
        lock(&self.drops).take(|category, count| drops.push((category.clone(), count.take())));
        drops.retain(|(_, count)| *count > 0);
        let mut localities = Vec::new();
        lock(&self.localities).take(|(locality, _), load| localities.push(load.take(locality)));
        localities.retain(|stats| !stats.is_empty());
        let taken_at = std::mem::replace(&mut *lock(&self.taken_at), now);
        ClusterStats {
            cluster: cluster.clone(),
            eds_service_name: eds_service_name.cloned(),
            interval: now.since(taken_at),
            total_drops: drops.iter().map(|(_, count)| count).sum::<u64>() + self.shed.take(),
            drops,
            localities,
        }
    }
}

/// Number of dropped calls, for one category or without a category.
#[derive(Debug, Default)]
pub struct DropCount {
    total: AtomicU64,
    taken: AtomicU64,
}

impl DropCount {
    /// Counts one dropped call.
    pub fn count(&self) {
        self.total.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the drops since the last call. The caller holds the lock of the owner, so only one thread
    /// takes at a time.
    fn take(&self) -> u64 {
        let total = self.total.load(Ordering::Relaxed);
        total - self.taken.swap(total, Ordering::Relaxed)
    }
}

/// Counters of one locality of a cluster.
#[derive(Debug)]
pub struct LocalityLoad {
    calls: AtomicCallTotals,
    sums: MetricSums,
    taken: Mutex<CallTotals>,
}

/// Totals of calls, aligned to a cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct AtomicCallTotals {
    issued: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    unsent: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default)]
struct CallTotals {
    issued: u64,
    succeeded: u64,
    failed: u64,
    in_progress: u64,
}

impl LocalityLoad {
    fn new(metrics: &BackendMetrics) -> LocalityLoad {
        LocalityLoad {
            calls: AtomicCallTotals::default(),
            sums: MetricSums::new(metrics),
            taken: Mutex::default(),
        }
    }

    /// Counts the start of a call. Each must be paired with one [`LocalityLoad::finish`].
    pub fn start(&self) {
        self.calls.issued.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a call. An unsent call counts as not issued. Only the enabled metrics of the load
    /// report are added.
    pub fn finish(&self, end: &CallOutcome<'_>) {
        // Release pairs with the Acquire in `totals`: a visible end implies a visible start.
        let add = |total: &AtomicU64| total.fetch_add(1, Ordering::Release);
        match end {
            CallOutcome::Unsent => drop(add(&self.calls.unsent)),
            CallOutcome::Cancelled => drop(add(&self.calls.failed)),
            CallOutcome::Finished { code, load, .. } => {
                let ok = *code == Code::Ok;
                let turn = add(if ok { &self.calls.succeeded } else { &self.calls.failed });
                if let Some(report) = load {
                    self.sums.add(report, turn);
                }
            }
        }
    }

    /// Returns true if any metric of load reports is enabled.
    pub fn needs_load_report(&self) -> bool {
        self.sums.is_enabled()
    }

    /// Returns the total number of calls issued, succeeded, failed and in progress; reports do not reset
    /// them.
    pub fn totals(&self) -> [u64; 4] {
        let CallTotals { issued, succeeded, failed, in_progress } = self.calls.totals();
        [issued, succeeded, failed, in_progress]
    }

    fn take(&self, locality: &Arc<Locality>) -> LocalityStats {
        let totals = self.calls.totals();
        // The owner's lock admits one thread at a time, so `taken` is never ahead of `totals`.
        let mut taken = lock(&self.taken);
        // A call may turn out unsent after it was reported as issued. It is subtracted from the next issued
        // calls.
        let issued = totals.issued.max(taken.issued);
        let sums = self.sums.take();
        let stats = LocalityStats {
            locality: locality.clone(),
            issued: issued - taken.issued,
            succeeded: totals.succeeded - taken.succeeded,
            failed: totals.failed - taken.failed,
            in_progress: totals.in_progress,
            cpu_utilization: sums.cpu_utilization,
            mem_utilization: sums.mem_utilization,
            application_utilization: sums.application_utilization,
            named_metrics: sums.named,
            dropped_metrics: sums.dropped,
        };
        *taken = CallTotals { issued, ..totals };
        stats
    }
}

impl AtomicCallTotals {
    /// Reads the totals. Ends are read before starts, so that no end is seen without its start. Calls that
    /// start and end between the two reads must not count as in progress, so the ends are read again.
    fn totals(&self) -> CallTotals {
        let ends =
            || [&self.unsent, &self.succeeded, &self.failed].map(|total| total.load(Ordering::Acquire));
        let [unsent, succeeded, failed] = ends();
        // Acquire orders the second read of the ends after this one.
        let started = self.issued.load(Ordering::Acquire);
        let in_progress = started.saturating_sub(ends().iter().sum());
        CallTotals { issued: started - unsent, succeeded, failed, in_progress }
    }
}

/// Statistics of a cluster between two reports.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterStats {
    /// Name of the cluster.
    pub cluster: Arc<str>,
    /// EDS service name of the cluster, if any.
    pub eds_service_name: Option<Arc<str>>,
    /// Time that the statistics cover.
    pub interval: Duration,
    /// Number of drops by category, sorted by name; never 0.
    pub drops: Vec<(Arc<str>, u64)>,
    /// Number of all drops, with and without a category.
    pub total_drops: u64,
    /// Statistics by locality. A locality has several entries if its backend metrics differ.
    pub localities: Vec<LocalityStats>,
}

impl ClusterStats {
    fn is_empty(&self) -> bool {
        self.total_drops == 0 && self.localities.is_empty()
    }
}

/// Statistics of a locality between two reports.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalityStats {
    /// Locality of the endpoints; empty if unknown.
    pub locality: Arc<Locality>,
    /// Number of calls sent.
    pub issued: u64,
    /// Number of calls with status OK.
    pub succeeded: u64,
    /// Number of calls with any other status, cancelled ones included.
    pub failed: u64,
    /// Number of calls in flight at the time of the report.
    pub in_progress: u64,
    /// Sum of `cpu_utilization` over the calls that reported it.
    pub cpu_utilization: MetricSum,
    /// Sum of `mem_utilization` over the calls that reported it.
    pub mem_utilization: MetricSum,
    /// Sum of `application_utilization` over the calls that reported it.
    pub application_utilization: MetricSum,
    /// Sums of `named_metrics` by key.
    pub named_metrics: BTreeMap<String, MetricSum>,
    /// Number of named metric values that were dropped because there were too many names.
    pub dropped_metrics: u64,
}

impl LocalityStats {
    /// Returns true if there is nothing to report. A call's metrics may be added after its end was taken, so
    /// metrics without a call are possible.
    fn is_empty(&self) -> bool {
        let calls = [self.issued, self.succeeded, self.failed, self.in_progress, self.dropped_metrics];
        let sums = [self.cpu_utilization, self.mem_utilization, self.application_utilization];
        calls == [0; 5] && sums.iter().all(|sum| sum.count == 0) && self.named_metrics.is_empty()
    }
}

/// Counters by key. Unreferenced ones stay until they are taken, or until there are too many.
#[derive(Debug)]
struct CounterMap<K, V> {
    all: BTreeMap<K, Arc<V>>,
    /// Number of entries at which unreferenced ones are searched for.
    capacity: usize,
}

impl<K, V> Default for CounterMap<K, V> {
    fn default() -> CounterMap<K, V> {
        CounterMap { all: BTreeMap::new(), capacity: MAX_UNHELD }
    }
}

impl<K: Ord, V> CounterMap<K, V> {
    fn entry(&mut self, key: K, make: impl FnOnce() -> V) -> Arc<V> {
        if let Some(found) = self.all.get(&key) {
            return found.clone();
        }
        // The capacity doubles with the referenced entries, so the scan costs a constant amount per insertion.
        if self.all.len() >= self.capacity {
            self.all.retain(|_, value| is_held(value));
            self.capacity = MAX_UNHELD.max(2 * self.all.len());
        }
        let value = Arc::new(make());
        self.all.insert(key, value.clone());
        value
    }

    fn is_held(&mut self) -> bool {
        self.all.values_mut().any(is_held)
    }

    /// Visits every entry and removes unreferenced ones. The reference check comes first: a call that counts
    /// and then drops its reference in between is still visited.
    fn take(&mut self, mut show: impl FnMut(&K, &V)) {
        self.all.retain(|key, value| {
            let held = is_held(value);
            show(key, value);
            held
        });
    }
}

/// Returns true if a reference outside of the map exists. If false, all counts made through others are
/// visible.
fn is_held<V>(value: &mut Arc<V>) -> bool {
    Arc::get_mut(value).is_none()
}

/// Locks a mutex. A panic while the lock was held leaves the counts valid.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
