//! Weighted schedules: which endpoint is next, exactly.
//!
//! A [`Schedule`] hands out indices so that each appears in proportion to its weight, in an order that is
//! the same on every run and machine. It has two halves: a producer that computes the order in exact
//! integers, ahead of need, and a cell from which any number of threads draw it at the price of one atomic
//! addition, the same for ten and ten thousand endpoints and for any weights.
//!
//! A schedule never changes its weights. When they change, [`Schedule::successor`] builds the next one from
//! where this one stands, so that frequent updates do not restart the sequence. The policy that owns it
//! decides when, and calls [`Schedule::prefill`] so that picks find their slots ready.

mod cell;
mod producer;
mod queue;

use std::fmt;
use std::sync::Arc;

use cell::{CellProgress, ScheduleCell};
use producer::{SlotProducer, TURN, TurnPositions, turns};

/// Which endpoint comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleRule {
    /// The earliest deadline first, ties by position in the list: the order of the EDF proposal. An
    /// endpoint that outweighs the others together is picked many times in a row.
    Literal,
    /// The same among those whose turn has started: on every prefix each endpoint is less than one pick
    /// away from its exact share.
    Eligible,
}

/// An order of picks and the place reached in it, shared by all picks.
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
    /// Picks by the schedules this one succeeded, by index in this one.
    inherited: Box<[u64]>,
    /// Picks by the one right before this: what to expect of this one.
    expected: usize,
}

impl Schedule {
    /// A schedule at the beginning of its order. A weight of 0 counts as 1. `None` without endpoints.
    pub fn new(weights: &[u32], rule: ScheduleRule) -> Option<Self> {
        let weights = positive(weights);
        let positions = TurnPositions::fresh(&weights);
        let inherited = vec![0; weights.len()].into();
        Self::build(weights, rule, positions, inherited, 0, 0)
    }

    /// The same order from another place, so that many clients that start together do not pick in step.
    /// Meant for a schedule that has not been picked from.
    ///
    /// Literal orders start anywhere in their period. So do eligible ones if the period is tabled; in longer
    /// ones up to two rounds of picks are skipped.
    #[must_use]
    pub fn at_random_phase(mut self, random: u64) -> Self {
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

    /// The schedule that takes over from this one: endpoint `j` of the new list was `from[j]` here, or is
    /// new. `None` without endpoints.
    ///
    /// Everybody keeps their place. An endpoint with the same weight keeps the exact moment of its turn, so
    /// that those who stay keep their relative order when another leaves, and a rebuild without any change
    /// continues the very same sequence. One with another weight keeps the part of a turn it had
    /// waited. A new one starts level. Slots produced but not picked here count as not served; picks that
    /// race with this call, or follow it, are not carried over.
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
                // The same lap, from the slot that is next.
                let positions = producer.positions(producer.first().to_vec(), None);
                return (positions, picks, used, progress.taken % self.cell.len());
            }
            let latest = match progress.taken.checked_sub(1) {
                _ if progress.tail > 0 => producer.latest(),
                Some(slot) => self.cell.slots(slot, slot + 1).next(),
                None => None,
            };
            (producer.positions(starts, latest), picks, used, 0)
        });
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

    /// The index whose turn it is. Any number of threads may call this at once; together they get the order
    /// without gap or repetition. It does not allocate or lock where the order has been produced ahead.
    #[inline]
    pub fn pick(&self) -> usize {
        self.cell.pick() as usize
    }

    /// Produces ahead, so that picks need not: as much as the predecessor used and a little more. Takes time in
    /// proportion; call it off the call path. Past that, picks produce a block now and then.
    pub fn prefill(&self) {
        // What this one has used says something too, if there was none before it.
        let expected = self.expected.max(self.cell.taken());
        self.cell.prefill(self.cell.taken().saturating_add(expected + expected / 4 + BLOCK));
    }

    /// Whether the order is one table that repeats for ever. If not, it must be looked after: see
    /// [`is_depleted`](Self::is_depleted).
    pub fn is_cyclic(&self) -> bool {
        self.cell.is_cyclic()
    }

    /// Whether more than half of a run that does not repeat has been used. Past its end picks remain exact
    /// but take a lock, so [`successor`](Self::successor) it with the same weights before.
    pub fn is_depleted(&self) -> bool {
        !self.cell.is_cyclic() && self.cell.taken() > self.cell.len() / 2
    }

    /// Returns a number that differs after each pick. It waits for a pick that produces a block.
    pub(crate) fn position(&self) -> u64 {
        self.cell.position()
    }

    /// How often each index was picked, by this schedule and, for endpoints that came from there, by the ones
    /// it succeeded. Counts what was handed out by walking over it; picks pay nothing for this.
    pub fn picks(&self) -> Vec<u64> {
        self.cell.inspect(|producer, progress| {
            let starts = self.starts(producer, &progress);
            self.totals(producer, &progress, &starts)
        })
    }

    /// How many endpoints there are; never 0.
    #[expect(clippy::len_without_is_empty, reason = "a schedule without endpoints does not exist")]
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// The weights, each at least 1.
    pub fn weights(&self) -> &[u32] {
        &self.weights
    }

    /// The part of all picks that goes to an index; 0 for one that does not exist.
    pub fn share(&self, index: usize) -> f64 {
        let total: u64 = self.weights.iter().map(|&weight| u64::from(weight)).sum();
        self.weights.get(index).map_or(0.0, |&weight| f64::from(weight) / total as f64)
    }

    /// The rule the order follows.
    pub fn rule(&self) -> ScheduleRule {
        self.rule
    }

    /// Where everybody's next turn was to start when the slots taken of the present lap had been taken.
    fn starts(&self, producer: &SlotProducer, progress: &CellProgress) -> Vec<i64> {
        let CellProgress { taken, produced, tail, .. } = *progress;
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
            // What was produced is exactly one lap.
            for (total, lap) in totals.iter_mut().zip(producer.served()) {
                *total = total.wrapping_add(lap.wrapping_mul(progress.laps));
            }
        }
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

/// Turns measured weights into integers: the largest becomes 2^20, none becomes less than 1, and those that
/// are missing or make no sense (not finite, or not above 0) get the mean of the others. `None` when fewer
/// than two make sense: A58 then falls back.
pub fn scale(weights: &[Option<f64>]) -> Option<Vec<u32>> {
    let usable = |weight: &Option<f64>| weight.filter(|weight| weight.is_finite() && *weight > 0.0);
    let known = || weights.iter().filter_map(usable);
    let largest = known().fold(0.0, f64::max);
    let count = known().count();
    if count < 2 {
        return None;
    }
    // Ratios to the largest are at most 1, so that their sum is finite where the sum of the weights is not.
    let mean = known().map(|weight| weight / largest).sum::<f64>() / count as f64;
    let scaled = |ratio: f64| ((ratio * LARGEST).round() as u32).max(1);
    Some(
        weights.iter().map(|weight| scaled(usable(weight).map_or(mean, |weight| weight / largest))).collect(),
    )
}

/// What the run of a list of weights looks like.
struct ScheduleShape {
    total: u64,
    slots: usize,
    /// The weights' divisor, if the run is cyclic.
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

/// The greatest common divisor.
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

/// What the cell is made of; the model in `tests/loom.rs` puts its own in its place.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
    pub(super) use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
}

/// Slots produced at once: a pick that finds none waits for tens of microseconds at most.
/// A shorter period is repeated up to this length, so that the end of a lap is rare.
const BLOCK: usize = 512;

/// Longer periods are not tabled as a whole.
const LONGEST_TABLE: u64 = 1 << 16;

/// The room of an open run: twice what its predecessor used, within these bounds.
const SHORTEST_RUN: usize = 1 << 14;
const LONGEST_RUN: usize = 1 << 20;

/// What the largest measured weight becomes: fine enough for any share, and sums of ten thousand stay small.
const LARGEST: f64 = 1_048_576.0;
