//! Number of calls in flight per cluster, shared by every channel with the same counters (A32).

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::store::lock;

/// Counters of calls in flight, by cluster and EDS service name.
///
/// Created once per process and passed to every core, so that circuit breakers see all calls of the process.
/// It is a value and not a global, so that tests and simulations have separate counters.
#[derive(Default)]
pub struct CallCounters {
    all: Mutex<HashMap<CounterKey, Weak<InFlightCounter>>>,
}

type CounterKey = (Arc<str>, Arc<str>);

/// Number of calls in flight to one cluster, aligned to a cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct InFlightCounter(AtomicU64);

impl InFlightCounter {
    /// Returns the number of calls in flight.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Increments the counter if it is below `limit`. Each successful call must be paired with one
    /// [`InFlightCounter::end`].
    ///
    /// The increment is a compare-and-exchange from a value below the limit, so concurrent threads never
    /// exceed it. The counter guards no other memory, so relaxed ordering is sufficient.
    pub(crate) fn try_start(&self, limit: u64) -> bool {
        let up = |count| (count < limit).then_some(count + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, up).is_ok()
    }

    /// Reverts a successful [`InFlightCounter::try_start`].
    pub(crate) fn end(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl CallCounters {
    /// Returns the counter of a cluster. It is shared as long as any reference exists.
    pub fn counter(&self, cluster: &str, eds_service_name: &str) -> Arc<InFlightCounter> {
        // A panic while the lock was held leaves the map valid.
        let mut all = lock(&self.all);
        let key = (Arc::from(cluster), Arc::from(eds_service_name));
        if let Some(counter) = all.get(&key).and_then(Weak::upgrade) {
            return counter;
        }
        // Only insertions grow the map, so dead entries are removed here.
        all.retain(|_, counter| counter.strong_count() > 0);
        let counter = Arc::<InFlightCounter>::default();
        all.insert(key, Arc::downgrade(&counter));
        counter
    }
}

impl fmt::Debug for CallCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallCounters")
    }
}
