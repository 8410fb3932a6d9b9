//! Weighted schedules: exact pick sequences over endpoints.
//!
//! A [`Schedule`] yields indices in proportion to their weights, in a sequence that is the same on every run
//! and machine. It has two halves. The producer computes the sequence ahead of picks, in exact integers. The
//! cell lets any number of threads consume it. A pick costs one atomic addition, whatever the number of
//! endpoints and their weights.
//!
//! The weights of a schedule are immutable. If they change, [`Schedule::successor`] builds a schedule that
//! continues at the current position, so that frequent updates do not restart the sequence. The owning policy
//! decides when to do so. It also calls [`Schedule::prefill`], so that picks find their slots ready.

mod cell;
mod producer;
mod queue;

use std::fmt;
use std::sync::Arc;

use cell::{CellProgress, ScheduleCell};
use producer::{SlotProducer, TURN, TurnPositions, turns};

/// Order of the endpoints in a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleRule {
    /// Earliest deadline first, ties by list position, as in the EDF proposal. An endpoint that outweighs all
    /// others together is picked many times in a row.
    Literal,
    /// Earliest deadline first among the endpoints whose turn has started. On every prefix each endpoint is
    /// less than one pick away from its exact share.
    Eligible,
}

/// Pick sequence with the current position in it, shared by all picks.
///
/// ```
/// # use evenkeel_core::schedule::{Schedule, ScheduleRule};
/// let schedule = Schedule::new(&[2, 4], ScheduleRule::Literal).expect("two endpoints");
/// let picks: Vec<_> = (0..6).map(|_| schedule.pick()).collect();
/// assert_eq!(picks, [1, 0, 1, 1, 0, 1]);
/// ```
pub struct Schedule {
    cell: ScheduleCell<SlotProducer, BLOCK>,
    rule: ScheduleRule,
    weights: Arc<[u32]>,
    /// Number of picks by predecessors, by index in this schedule.
    inherited: Box<[u64]>,
    /// Number of picks by the direct predecessor; the estimate for this one.
    expected: usize,
}

impl Schedule {
    /// Creates a schedule at the start of its sequence. A weight of 0 counts as 1. Returns `None` without
    /// endpoints.
    pub fn new(weights: &[u32], rule: ScheduleRule) -> Option<Self> {
        let weights = positive(weights);
        let positions = TurnPositions::fresh(&weights);
        let inherited = vec![0; weights.len()].into();
        Self::build(weights, rule, positions, inherited, 0, 0)
    }

    /// Moves the start of the sequence, so that clients that start together do not pick in lockstep. Meant
    /// for a schedule without picks.
    ///
    /// Literal sequences start anywhere in their period. So do eligible ones with a tabled period; in longer
    /// ones up to two rounds of picks are skipped.
    #[must_use]
    pub fn at_random_phase(mut self, random: u64) -> Self {
        // The upper half of the product is uniform below the bound.
        let below = |bound: u64| ((u128::from(random) * u128::from(bound)) >> 64) as u64;
        let shape = ScheduleShape::new(&self.weights, self.expected);
        let (positions, start) = match self.rule {
            ScheduleRule::Literal => (TurnPositions::after_turn(&self.weights, below(shape.total)), 0),
            ScheduleRule::Eligible => {
                let bound =
                    if shape.divisor.is_some() { shape.slots } else { 2 * self.len().min(shape.slots / 8) };
                (TurnPositions::fresh(&self.weights), below(bound as u64) as usize)
            }
        };
        let producer = SlotProducer::new(self.rule, Arc::clone(&self.weights), positions, shape.divisor);
        self.cell = ScheduleCell::new(producer, shape.slots, shape.divisor.is_some(), start);
        self
    }

    /// Builds the schedule that replaces this one. Endpoint `j` of the given list was `from[j]` here; `None`
    /// if it was not in this schedule. Returns `None` without endpoints.
    ///
    /// All endpoints keep their position. An endpoint with the same weight keeps the exact time of its turn.
    /// Remaining endpoints therefore keep their relative order when another is removed, and a rebuild without
    /// any change continues the same sequence. An endpoint with a changed weight keeps the fraction of a turn
    /// that it had waited. An added endpoint starts without lead or lag. Slots that were produced but not
    /// picked count as not served. Picks concurrent with this call, or after it, are not carried over.
    pub fn successor(&self, weights: &[u32], rule: ScheduleRule, from: &[Option<u32>]) -> Option<Self> {
        let weights = positive(weights);
        let n = self.len();
        let same_list =
            weights.len() == n && from.len() == n && from.iter().zip(0..).all(|(&from, j)| from == Some(j));
        let (positions, picks, used, start) = self.cell.inspect(|producer, progress| {
            let starts = self.starts(producer, &progress);
            let picks = self.totals(producer, &progress, &starts);
            let used = progress.taken + progress.tail as usize;
            if same_list && rule == self.rule && *weights == *self.weights && self.cell.is_cyclic() {
                // The table is the same, so only the start position changes.
                let positions = producer.positions(producer.first().to_vec(), None);
                // The end of a lap is the start of the next one.
                return (positions, picks, used, progress.taken % self.cell.len());
            }
            // The literal rule derives the virtual time from the last turn.
            let latest = match progress.taken.checked_sub(1) {
                _ if progress.tail > 0 => producer.latest(),
                Some(slot) => self.cell.slots(slot, slot + 1).next(),
                None => None,
            };
            (producer.positions(starts, latest), picks, used, 0)
        });
        // Without a list the positions are updated in place.
        let from = if same_list { None } else { Some(from) };
        let inherited = match from {
            None => picks,
            Some(from) => {
                let was = |j: usize| picks.get(from.get(j).copied().flatten()? as usize).copied();
                (0..weights.len()).map(|j| was(j).unwrap_or(0)).collect()
            }
        };
        let positions = positions.carried((self.rule, &self.weights), (rule, &weights), from);
        Self::build(weights, rule, positions, inherited.into(), used, start)
    }

    fn build(
        weights: Arc<[u32]>,
        rule: ScheduleRule,
        positions: TurnPositions,
        inherited: Box<[u64]>,
        expected: usize,
        start: usize,
    ) -> Option<Self> {
        if weights.is_empty() {
            return None;
        }
        let shape = ScheduleShape::new(&weights, expected);
        let producer = SlotProducer::new(rule, Arc::clone(&weights), positions, shape.divisor);
        let cell = ScheduleCell::new(producer, shape.slots, shape.divisor.is_some(), start);
        Some(Self { cell, rule, weights, inherited, expected })
    }

    /// Returns the next index. Threads may call it concurrently; together they get the sequence without gap
    /// or repetition. It neither allocates nor locks while slots are prefilled.
    #[inline]
    pub fn pick(&self) -> usize {
        self.cell.pick() as usize
    }

    /// Produces slots ahead of picks: a quarter more than the predecessor used. The cost is proportional, so
    /// call it off the request path. Beyond that, a pick occasionally produces a block.
    pub fn prefill(&self) {
        // Without a predecessor, the consumption of this schedule is the estimate.
        let expected = self.expected.max(self.cell.taken());
        self.cell.prefill(self.cell.taken().saturating_add(expected + expected / 4 + BLOCK));
    }

    /// Returns true if the sequence is one table that repeats forever. If false, the owner must check
    /// [`is_depleted`](Self::is_depleted).
    pub fn is_cyclic(&self) -> bool {
        self.cell.is_cyclic()
    }

    /// Returns true if more than half of an open run is consumed. Past its end, picks stay exact but take a
    /// lock, so build a [`successor`](Self::successor) with the same weights before that.
    pub fn is_depleted(&self) -> bool {
        !self.cell.is_cyclic() && self.cell.taken() > self.cell.len() / 2
    }

    /// Returns a number that differs after each pick. Blocks while a pick produces a block.
    pub(crate) fn position(&self) -> u64 {
        self.cell.position()
    }

    /// Returns the number of picks per index, predecessors included. Counts by walking the consumed slots, so
    /// that picks pay nothing for it.
    pub fn picks(&self) -> Vec<u64> {
        self.cell.inspect(|producer, progress| {
            let starts = self.starts(producer, &progress);
            self.totals(producer, &progress, &starts)
        })
    }

    /// Returns the number of endpoints; never 0.
    #[expect(clippy::len_without_is_empty, reason = "a schedule without endpoints does not exist")]
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Returns the weights, each at least 1.
    pub fn weights(&self) -> &[u32] {
        &self.weights
    }

    /// Returns the share of all picks that an index gets; 0 if out of range.
    pub fn share(&self, index: usize) -> f64 {
        let total: u64 = self.weights.iter().map(|&weight| u64::from(weight)).sum();
        self.weights.get(index).map_or(0.0, |&weight| f64::from(weight) / total as f64)
    }

    /// Returns the rule of the sequence.
    pub fn rule(&self) -> ScheduleRule {
        self.rule
    }

    /// Returns the start of each endpoint's next turn as of the last consumed slot of the current lap.
    fn starts(&self, producer: &SlotProducer, progress: &CellProgress) -> Vec<i64> {
        let CellProgress { taken, produced, tail, .. } = *progress;
        // Replays the consumed slots or undoes the unconsumed ones, whichever are fewer.
        if tail == 0 && taken < produced / 2 {
            let mut starts = producer.first().to_vec();
            for index in self.cell.slots(0, taken) {
                if let Some(start) = starts.get_mut(index as usize) {
                    *start += TURN;
                }
            }
            return starts;
        }
        let mut starts = producer.next_starts();
        // Tail picks have no slot. If there are any, all produced slots are consumed and none is undone.
        for index in self.cell.slots(if tail == 0 { taken } else { produced }, produced) {
            if let Some(start) = starts.get_mut(index as usize) {
                *start -= TURN;
            }
        }
        starts
    }

    fn totals(&self, producer: &SlotProducer, progress: &CellProgress, starts: &[i64]) -> Vec<u64> {
        let here = producer.first().iter().zip(starts).map(|(&first, &start)| turns(first, start));
        let totals = self.inherited.iter().zip(here).map(|(&before, here)| before.wrapping_add(here));
        let mut totals: Vec<_> = totals.collect();
        if progress.laps > 0 {
            // A cyclic run is produced exactly once, so the producer's count is the count of one lap.
            for (total, lap) in totals.iter_mut().zip(producer.served()) {
                *total = total.wrapping_add(lap.wrapping_mul(progress.laps));
            }
        }
        // Slots before the start were skipped, not picked.
        for index in self.cell.slots(0, self.cell.start()) {
            if let Some(total) = totals.get_mut(index as usize) {
                *total = total.wrapping_sub(1);
            }
        }
        totals
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schedule")
            .field("rule", &self.rule)
            .field("weights", &self.weights)
            .finish_non_exhaustive()
    }
}

/// Scales measured weights to integers. The largest becomes 2^20, and none is less than 1. Missing or invalid
/// weights (not finite, or not positive) become the mean of the others. Returns `None` with fewer than two
/// valid weights, which A58 treats as fallback.
pub fn scale(weights: &[Option<f64>]) -> Option<Vec<u32>> {
    let usable = |weight: &Option<f64>| weight.filter(|weight| weight.is_finite() && *weight > 0.0);
    let known = || weights.iter().filter_map(usable);
    let largest = known().fold(0.0, f64::max);
    let count = known().count();
    if count < 2 {
        return None;
    }
    // Ratios to the largest weight are at most 1, so their sum is finite even if the sum of the weights is
    // not.
    let mean = known().map(|weight| weight / largest).sum::<f64>() / count as f64;
    // A ratio is at most 1, so the value is at most 2^20 and the cast is exact.
    let scaled = |ratio: f64| ((ratio * LARGEST).round() as u32).max(1);
    Some(
        weights.iter().map(|weight| scaled(usable(weight).map_or(mean, |weight| weight / largest))).collect(),
    )
}

/// Dimensions of the run for a list of weights.
struct ScheduleShape {
    total: u64,
    slots: usize,
    /// Greatest common divisor of the weights; `None` if the run is open.
    divisor: Option<u64>,
}

impl ScheduleShape {
    fn new(weights: &[u32], expected: usize) -> Self {
        let total = weights.iter().map(|&weight| u64::from(weight)).sum::<u64>().max(1);
        let divisor = u64::from(divisor(weights));
        let period = total / divisor;
        if period > LONGEST_TABLE {
            let slots = expected.saturating_mul(2).clamp(SHORTEST_RUN, LONGEST_RUN).next_multiple_of(BLOCK);
            return Self { total, slots, divisor: None };
        }
        let periods = (BLOCK as u64).div_ceil(period);
        Self { total, slots: (period * periods) as usize, divisor: Some(divisor) }
    }
}

/// Returns the greatest common divisor of the weights.
fn divisor(weights: &[u32]) -> u32 {
    let mut divisor = 0;
    for &weight in weights {
        let mut rest = weight;
        while divisor != 0 {
            (rest, divisor) = (divisor, rest % divisor);
        }
        divisor = rest;
        if divisor == 1 {
            break;
        }
    }
    divisor.max(1)
}

fn positive(weights: &[u32]) -> Arc<[u32]> {
    weights.iter().map(|&weight| weight.max(1)).collect()
}

/// Synchronisation primitives of the cell. The model in `tests/loom.rs` substitutes loom's.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
    pub(super) use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
}

/// Number of slots produced at once: a pick that finds none waits for tens of microseconds at most. A shorter
/// period is repeated up to this length, so that laps are rare.
const BLOCK: usize = 512;

/// Maximum period that is tabled as a whole.
const LONGEST_TABLE: u64 = 1 << 16;

/// Bounds of the length of an open run, which is twice the predecessor's use.
const SHORTEST_RUN: usize = 1 << 14;
const LONGEST_RUN: usize = 1 << 20;

/// Scaled value of the largest weight: precise enough for any share, small enough for sums of ten thousand.
const LARGEST: f64 = 1_048_576.0;
