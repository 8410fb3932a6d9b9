//! Random bits for RPCs, without contention between threads.
//!
//! Each thread has its own state, seeded by the operating system. Tests use a seeded source instead. The bits are not
//! suitable for cryptography.

use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_core::Rng;

/// Increment of the counters: 2^64 divided by the golden ratio, as in SplitMix64. It is odd, so a counter visits every
/// state before it repeats.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Source of a channel's random bits.
#[derive(Debug)]
pub(crate) enum Entropy {
    /// Per-thread state, seeded by the operating system.
    System,
    /// State shared by all threads, with a fixed seed. It yields the same sequence in each run.
    Seeded(AtomicU64),
}

thread_local! {
    static STATE: Cell<u64> = Cell::new(fresh());
}

/// Returns random bits that derive from the operating system, through the keys of the standard library's hash maps.
pub(crate) fn fresh() -> u64 {
    RandomState::new().hash_one(0u8)
}

impl Entropy {
    /// Returns a different value on each call. The values are a plain counter, so the caller must mix them, as
    /// [`Rng::from_entropy`] does.
    pub(crate) fn next(&self) -> u64 {
        match self {
            Entropy::System => STATE.with(|state| {
                let next = state.get().wrapping_add(STEP);
                state.set(next);
                next
            }),
            Entropy::Seeded(state) => state.fetch_add(STEP, Ordering::Relaxed),
        }
    }

    /// Returns a uniformly distributed number in the open interval (0, 1).
    pub(crate) fn unit(&self) -> f64 {
        Rng::from_entropy(self.next()).unit()
    }
}
