//! Counts of calls for load reports to control planes (LRS: A27, A32, A64, A85).
//!
//! Calls are counted where they happen, by one atomic addition when they start and one when they end. Totals only
//! grow; who reports takes the difference to what it took before. So nothing is lost and nothing is counted twice,
//! however calls and reports interleave, and a control plane that cannot be reached costs no memory: a sum
//! is as large for a day as for a second.
//!
//! ```text
//!   LoadStore ── server ── (cluster, EDS service name) ── drop category
//!                                                      ── (locality, metrics wanted)
//! ```
//!
//! Counters are shared while anybody holds them. When the last holder goes they stay until they have been reported.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::config::cluster::BackendMetrics;
use crate::load::MetricSum;
use crate::load::sums::MetricSums;
use crate::{CallOutcome, Code, Instant, Locality};

/// How many counters of one kind may wait to be reported while nobody holds them; where names come and go and no
/// report gets through, those beyond are forgotten.
const MAX_UNHELD: usize = 1_000;

/// Everything that is counted for load reports. Made once per xDS client and given to every core of it; it is a
/// value, so that tests and simulations have their own.
#[derive(Default)]
pub struct LoadStore {
    servers: Mutex<BTreeMap<Arc<str>, CounterMap<LoadKey, ClusterLoad>>>,
}

/// A cluster and the name under which its endpoints are asked for, if it has one.
type LoadKey = (Arc<str>, Option<Arc<str>>);

impl LoadStore {
    /// The counts of a cluster that reports to `server`. They are shared by all who ask for the same while anybody
    /// holds them; the first report covers the time from `now` on.
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
        let counters = servers.get_mut(server).expect("it was found or made just now");
        counters.entry((cluster.into(), eds_service_name.map(Into::into)), || ClusterLoad::new(now))
    }

    /// The servers that there is something to report to, each with whether anybody counts for it still.
    pub fn servers(&self) -> Vec<(Arc<str>, bool)> {
        let mut servers = lock(&self.servers);
        servers.iter_mut().map(|(server, counters)| (server.clone(), counters.is_held())).collect()
    }

    /// What happened since the last time for the clusters that report to `server` and whose names are `wanted`,
    /// in the order of their names; clusters that nothing happened to are left out. Counts that nobody holds any more
    /// are forgotten, wanted or not.
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

/// What is counted for one cluster.
#[derive(Debug)]
pub struct ClusterLoad {
    drops: Mutex<CounterMap<Arc<str>, DropCount>>,
    /// Drops without a category.
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

    /// The count of drops under this category.
    pub fn drops(&self, category: &Arc<str>) -> Arc<DropCount> {
        lock(&self.drops).entry(category.clone(), DropCount::default)
    }

    /// The count of drops that have no category: those of the circuit breaker (A32).
    pub fn shed(&self) -> &DropCount {
        &self.shed
    }

    /// The counts of a locality, with these metrics of load reports. Other metrics make other counts of the same
    /// locality (A85). Endpoints whose locality is not known count for the empty one (A42).
    pub fn locality(&self, locality: Option<&Arc<Locality>>, metrics: &BackendMetrics) -> Arc<LocalityLoad> {
        let locality = locality.cloned().unwrap_or_default();
        let make = || LocalityLoad::new(metrics);
        lock(&self.localities).entry((locality, metrics.clone()), make)
    }

    /// Every locality with its counts since they exist, unaffected by reports.
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

/// How many calls were dropped, under one category or under none.
#[derive(Debug, Default)]
pub struct DropCount {
    total: AtomicU64,
    taken: AtomicU64,
}

impl DropCount {
    /// Counts one more.
    pub fn count(&self) {
        self.total.fetch_add(1, Ordering::Relaxed);
    }

    /// Only one thread takes at a time: who takes has locked what this is part of.
    fn take(&self) -> u64 {
        let total = self.total.load(Ordering::Relaxed);
        total - self.taken.swap(total, Ordering::Relaxed)
    }
}

/// What is counted for one locality of a cluster.
#[derive(Debug)]
pub struct LocalityLoad {
    calls: AtomicCallTotals,
    sums: MetricSums,
    taken: Mutex<CallTotals>,
}

/// Totals of calls, on a cache line of their own.
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

    /// Counts a call that starts; it must be finished once.
    pub fn start(&self) {
        self.calls.issued.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts how a call ended. One that was not sent counts as never issued. Of the load report only the metrics that
    /// are wanted count.
    pub fn finish(&self, end: &CallOutcome<'_>) {
        // Release, so that who sees the end sees the start too.
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

    /// Whether load reports are read at all.
    pub fn needs_load_report(&self) -> bool {
        self.sums.is_enabled()
    }

    /// Calls since it exists, unaffected by reports: issued, succeeded, failed, in progress.
    pub fn totals(&self) -> [u64; 4] {
        let CallTotals { issued, succeeded, failed, in_progress } = self.calls.totals();
        [issued, succeeded, failed, in_progress]
    }

    fn take(&self, locality: &Arc<Locality>) -> LocalityStats {
        let totals = self.calls.totals();
        let mut taken = lock(&self.taken);
        // A call that turns out to be unsent after it was reported as issued is taken off the next ones.
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
    /// Ends are read before starts, so that no end is seen without its start. Between the two, calls may start and end; so that
    /// those do not count as in progress, ends are read once more.
    fn totals(&self) -> CallTotals {
        let ends =
            || [&self.unsent, &self.succeeded, &self.failed].map(|total| total.load(Ordering::Acquire));
        let [unsent, succeeded, failed] = ends();
        // Acquire, so that the ends below are read after it.
        let started = self.issued.load(Ordering::Acquire);
        let in_progress = started.saturating_sub(ends().iter().sum());
        CallTotals { issued: started - unsent, succeeded, failed, in_progress }
    }
}

/// What happened to a cluster between two reports.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterStats {
    /// The name of the cluster.
    pub cluster: Arc<str>,
    /// The name under which its endpoints are asked for, if it has one.
    pub eds_service_name: Option<Arc<str>>,
    /// The time that this covers.
    pub interval: Duration,
    /// Drops by category, in the order of their names; none is 0.
    pub drops: Vec<(Arc<str>, u64)>,
    /// All drops, those without a category included.
    pub total_drops: u64,
    /// What happened in localities; there may be several entries for one, with different metrics.
    pub localities: Vec<LocalityStats>,
}

impl ClusterStats {
    fn is_empty(&self) -> bool {
        self.total_drops == 0 && self.localities.is_empty()
    }
}

/// What happened in a locality of a cluster between two reports.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalityStats {
    /// The locality; empty if it is not known.
    pub locality: Arc<Locality>,
    /// Calls that were sent.
    pub issued: u64,
    /// Calls that ended well.
    pub succeeded: u64,
    /// Calls that ended otherwise, those that were given up included.
    pub failed: u64,
    /// Calls that had not ended when this was taken.
    pub in_progress: u64,
    /// `cpu_utilization`, over the calls that came with it.
    pub cpu_utilization: MetricSum,
    /// `mem_utilization`, over the calls that came with it.
    pub mem_utilization: MetricSum,
    /// `application_utilization`, over the calls that came with it.
    pub application_utilization: MetricSum,
    /// `named_metrics` by key.
    pub named_metrics: BTreeMap<String, MetricSum>,
    /// Values of named metrics that were not counted because there were too many names.
    pub dropped_metrics: u64,
}

impl LocalityStats {
    /// A call's report may be counted after its end was taken: then there are metrics without a call.
    fn is_empty(&self) -> bool {
        let calls = [self.issued, self.succeeded, self.failed, self.in_progress, self.dropped_metrics];
        let sums = [self.cpu_utilization, self.mem_utilization, self.application_utilization];
        calls == [0; 5] && sums.iter().all(|sum| sum.count == 0) && self.named_metrics.is_empty()
    }
}

/// Counters by key. Those that nobody holds stay until they are taken, or until there are too many.
#[derive(Debug)]
struct CounterMap<K, V> {
    all: BTreeMap<K, Arc<V>>,
    /// How many there may be before those that nobody holds are looked for.
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

    /// Shows every entry; those that nobody holds are forgotten. Whether somebody does is asked first: who counts and
    /// then lets go is seen to have counted.
    fn take(&mut self, mut show: impl FnMut(&K, &V)) {
        self.all.retain(|key, value| {
            let held = is_held(value);
            show(key, value);
            held
        });
    }
}

/// Whether anybody but the ledger holds it; if not, everything that was done with it has been seen.
fn is_held<V>(value: &mut Arc<V>) -> bool {
    Arc::get_mut(value).is_none()
}

/// A thread that panicked while it held the lock left valid counts behind.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
