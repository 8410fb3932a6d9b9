//! Random bits for calls, without a place that threads meet at.

use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_core::Rng;

/// An odd number that makes a counter step through all states: the golden ratio of 2^64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Where a channel's random bits come from.
#[derive(Debug)]
pub(crate) enum Entropy {
    /// From the operating system, by thread.
    System,
    /// From a seed: the same sequence each time.
    Seeded(AtomicU64),
}

thread_local! {
    static STATE: Cell<u64> = Cell::new(fresh());
}

/// Bits that the operating system gave: the standard library keys its maps with them.
pub(crate) fn fresh() -> u64 {
    RandomState::new().hash_one(0u8)
}

impl Entropy {
    /// A seed for whoever mixes it further, as the core does; others each time.
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

    /// A number from 0 to 1.
    pub(crate) fn unit(&self) -> f64 {
        Rng::from_entropy(self.next()).unit()
    }
}
