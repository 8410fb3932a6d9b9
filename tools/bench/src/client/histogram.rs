//! Histogram of durations: one bucket per nanosecond up to 128, then 128 buckets per power of two. A quantile
//! is accurate to 1/256.

use std::sync::atomic::{AtomicU64, Ordering};

const BITS: u32 = 7;
/// Number of buckets per power of two.
const STEPS: usize = 1 << BITS;
const BUCKETS: usize = (u64::BITS - BITS + 1) as usize * STEPS;

pub(crate) struct Histogram {
    buckets: Box<[AtomicU64]>,
}

impl Histogram {
    pub(crate) fn new() -> Histogram {
        Histogram { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect() }
    }

    pub(crate) fn record(&self, nanos: u64) {
        self.buckets[bucket(nanos)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the quantile; `None` without values.
    pub(crate) fn quantile(&self, part: f64) -> Option<u64> {
        let counts: Vec<u64> = self.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        let rank = ((total as f64 * part).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        let reached = counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        reached.map(middle)
    }
}

fn bucket(value: u64) -> usize {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(BITS + 1);
    // The shifted value is below 2 * STEPS, and at least STEPS if the shift is not zero.
    shift as usize * STEPS + (value >> shift) as usize
}

/// Returns the middle of a bucket.
fn middle(bucket: usize) -> u64 {
    let shift = (bucket / STEPS).saturating_sub(1);
    let low = ((bucket - shift * STEPS) as u64) << shift;
    low + ((1_u64 << shift) - 1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_has_no_quantile() {
        assert_eq!(Histogram::new().quantile(0.5), None);
    }

    #[test]
    fn small_values_are_exact() {
        let histogram = Histogram::new();
        for value in 1..=100 {
            histogram.record(value);
        }
        let quantiles = [0.0, 0.5, 0.505, 0.99, 0.999, 1.0].map(|part| histogram.quantile(part));
        assert_eq!(quantiles, [1, 50, 51, 99, 100, 100].map(Some));
    }

    #[test]
    fn large_values_are_near() {
        let values =
            (0..64).flat_map(|power| [1_u64 << power, (1 << power) + (1 << power) / 3, u64::MAX >> power]);
        for value in values {
            let histogram = Histogram::new();
            histogram.record(value);
            let found = histogram.quantile(0.5).expect("a value");
            assert!(found.abs_diff(value) <= value / 256, "{found} for {value}");
        }
    }

    #[test]
    fn buckets_are_in_order_and_without_gaps() {
        assert_eq!(bucket(0), 0);
        for power in 0..63 {
            let edge = 1_u64 << power;
            let step = bucket(edge) - bucket(edge - 1);
            assert_eq!(step, 1, "at {edge}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }
}
