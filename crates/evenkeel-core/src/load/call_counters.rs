//! Calls in flight per cluster, shared by every channel that is given the same counters (A32).

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Counts calls in flight per cluster and EDS service name. Made once per process and given to every core, so that
/// circuit breakers see all calls of the process; it is a value, so that tests and simulations have their own.
#[derive(Default)]
pub struct CallCounters {
    all: Mutex<HashMap<CounterKey, Weak<InFlightCounter>>>,
}

type CounterKey = (Arc<str>, Arc<str>);

/// The number of calls in flight to one cluster, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct InFlightCounter(AtomicU64);

impl InFlightCounter {
    /// How many calls are in flight.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts one more call if fewer than `limit` are in flight; each that is counted must be ended once.
    ///
    /// The only step up is from a number below the limit to the next one, in one exchange: however many threads try,
    /// the number never passes the limit. It guards no other memory, so no ordering is needed.
    pub(crate) fn try_start(&self, limit: u64) -> bool {
        let up = |count| (count < limit).then_some(count + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, up).is_ok()
    }

    /// Takes back what [`InFlightCounter::try_start`] counted.
    pub(crate) fn end(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl CallCounters {
    /// The counter of a cluster, shared by all who ask for it while anybody holds it.
    pub fn counter(&self, cluster: &str, eds_service_name: &str) -> Arc<InFlightCounter> {
        // A thread that panicked while it held the lock left a valid map behind.
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (Arc::from(cluster), Arc::from(eds_service_name));
        if let Some(counter) = all.get(&key).and_then(Weak::upgrade) {
            return counter;
        }
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
