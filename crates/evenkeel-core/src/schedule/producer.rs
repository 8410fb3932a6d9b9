//! The producer half: the exact order, in integers.
//!
//! Time is virtual. In one cycle of it an endpoint of weight `w` has `w` turns, so its k-th turn is due at
//! `k/w`, whatever the other weights are. An endpoint's moments are whole numbers of its own parts, 2^32 to
//! the turn, counted from a base that all share: a turn is one addition, nothing is rounded, and two moments
//! compare by cross-multiplication, of which [`TurnQueue`] spares us most. A tick is 2^-32 of a cycle and `w` parts
//! for everybody. Since the other weights do not enter, a rebuild carries the moments of unchanged endpoints over as they are.
//!
//! | rule | a turn may be taken | so |
//! |---|---|---|
//! | literal | at any time | the earliest due is next, ties by position in the list |
//! | eligible | not before the slot its start falls in | no endpoint is ever a whole pick off its share |

use std::collections::VecDeque;
use std::sync::Arc;

use super::ScheduleRule;
use super::cell::SlotSource;
use super::queue::{QueueEntry, QueuedTurn, TimingWheel, TurnQueue};

/// The state of an order: for each endpoint the moment at which its next turn starts.
pub(super) struct SlotProducer {
    rule: ScheduleRule,
    weights: Arc<[u32]>,
    /// Their sum.
    total: i64,
    /// Where the first turn of each endpoint starts.
    first: Vec<i64>,
    /// Where the next turn of each endpoint starts. Made, with the queues, for the first turn: many schedules
    /// of a storm of updates never see one.
    entries: Vec<QueueEntry>,
    /// Turns that may be taken, by due moment.
    ready: TurnQueue,
    /// Turns of the eligible rule that may not be taken yet, by starting moment.
    waiting: TimingWheel,
    /// All endpoints, in order, when all weights are equal: then both rules are a rotation.
    ring: VecDeque<u32>,
    clock: VirtualClock,
    divisor: Option<u64>,
    /// Periods begun, if there is a divisor.
    periods: u64,
    latest: Option<u32>,
    /// The present before the first turn.
    since: VirtualTime,
}

impl SlotProducer {
    /// The order from given positions on. With a divisor of the weights every endpoint is held to its exact
    /// number of turns in each period, which makes the order repeat also from a carried-over state in which a
    /// tie, or a lag, stands across the period's end.
    pub(super) fn new(
        rule: ScheduleRule,
        weights: Arc<[u32]>,
        positions: TurnPositions,
        divisor: Option<u64>,
    ) -> Self {
        Self {
            rule,
            total: weights.iter().map(|&weight| i64::from(weight)).sum(),
            weights,
            first: positions.starts,
            entries: Vec::new(),
            ready: TurnQueue::default(),
            waiting: TimingWheel::default(),
            ring: VecDeque::new(),
            clock: VirtualClock::default(),
            divisor,
            periods: 0,
            latest: None,
            since: positions.now,
        }
    }

    /// Who had the last turn.
    pub(super) fn latest(&self) -> Option<u32> {
        self.latest
    }

    /// Where the first turn of each endpoint starts.
    pub(super) fn first(&self) -> &[i64] {
        &self.first
    }

    /// Where the next turn of each endpoint starts.
    pub(super) fn next_starts(&self) -> Vec<i64> {
        if self.entries.is_empty() {
            return self.first.clone();
        }
        self.entries.iter().map(|entry| entry.start).collect()
    }

    /// Turns taken, by index.
    pub(super) fn served(&self) -> impl Iterator<Item = u64> {
        self.entries.iter().zip(&self.first).map(|(entry, &first)| turns(first, entry.start))
    }

    /// The positions when the next turns were to start at `starts` and `latest` had the last one.
    pub(super) fn positions(&self, starts: Vec<i64>, latest: Option<u32>) -> TurnPositions {
        let now = match (self.rule, latest.map(|latest| latest as usize)) {
            (ScheduleRule::Eligible, _) => VirtualClock::new(starts.iter().copied(), self.total).now(),
            // The turn that follows the latest one starts when that one was due.
            (ScheduleRule::Literal, Some(latest)) => match (starts.get(latest), self.weights.get(latest)) {
                (Some(&start), Some(&weight)) => VirtualTime::at(start, weight.into()),
                _ => self.since,
            },
            (ScheduleRule::Literal, None) => self.since,
        };
        TurnPositions { starts, now }
    }

    fn next_by_ring(&mut self) -> Option<u32> {
        let index = self.ring.pop_front()?;
        self.ring.push_back(index);
        self.entries.get_mut(index as usize)?.start += TURN;
        Some(index)
    }

    fn next_by_queue(&mut self) -> Option<u32> {
        if self.rule == ScheduleRule::Eligible {
            self.release();
            self.clock.tick();
        }
        self.take()
    }

    /// Queues all endpoints, at the beginning and after each period.
    fn enqueue(&mut self) {
        if self.entries.is_empty() {
            let entries = self.first.iter().zip(&*self.weights);
            self.entries = entries.map(|(&start, &weight)| QueueEntry::new(start, weight)).collect();
            if self.weights.windows(2).all(|pair| matches!(pair, [a, b] if a == b)) {
                let mut order: Vec<_> = self.first.iter().zip(0..).collect();
                // Stable for its speed on runs that are sorted already, as after a rotation was cut short.
                order.sort();
                self.ring = order.into_iter().map(|(_, index)| index).collect();
                return;
            }
        }
        self.periods += 1;
        self.enqueue_all();
    }

    /// Puts every endpoint into the queue where it belongs.
    fn enqueue_all(&mut self) {
        let (n, rate) = (self.entries.len(), self.total as f64 / TURN as f64);
        let mut ready = TimingWheel::new(TURN, n, rate, READY_WIDTH);
        if self.rule == ScheduleRule::Literal {
            for (index, entry) in (0..).zip(&mut self.entries) {
                ready.push(index, entry);
            }
            self.ready = ready.into();
            return;
        }
        self.clock = VirtualClock::new(self.entries.iter().map(|entry| entry.start), self.total);
        // Chosen by number, not by a branch that would be hard to predict.
        let mut wheels = [TimingWheel::new(0, n, rate, WAITING_WIDTH), ready];
        for (index, entry) in (0..).zip(&mut self.entries) {
            let is_ready = self.clock.has_passed(entry.start, entry.weight);
            wheels[usize::from(is_ready)].push(index, entry);
        }
        let [waiting, ready] = wheels;
        (self.waiting, self.ready) = (waiting, ready.into());
    }

    /// Makes the turns ready that start in the present slot.
    fn release(&mut self) {
        self.waiting.approach(self.clock.ticks(), &mut self.entries);
        let mut at = 0;
        while let Some(turn) = self.waiting.near.get(at) {
            if !self.clock.has_passed(turn.at, turn.weight) {
                at += 1;
                continue;
            }
            let QueuedTurn { index, .. } = self.waiting.near.swap_remove(at);
            if let Some(entry) = self.entries.get_mut(index as usize) {
                self.ready.push(index, entry);
            }
        }
    }

    /// Takes the turn that is due first; the endpoint's next one starts when this one was due.
    fn take(&mut self) -> Option<u32> {
        let turn = self.ready.peek(&mut self.entries)?;
        let QueuedTurn { at, weight, index, .. } = turn;
        let is_last = self.divisor.is_some_and(|divisor| self.is_last(at, weight, index, divisor));
        let entry = self.entries.get_mut(index as usize)?;
        entry.start = at;
        if is_last {
            self.ready.pop(turn);
        } else if self.rule == ScheduleRule::Literal {
            self.ready.again(turn, entry);
        } else {
            self.ready.pop(turn);
            self.waiting.push(index, entry);
        }
        if at > FAR_OUT || self.clock.parts > CLOCK_FAR_OUT {
            self.rebase(at / i64::from(weight));
        }
        Some(index)
    }

    /// Whether the turn due at some moment is an endpoint's last one of the period.
    fn is_last(&self, at: i64, weight: u32, index: u32, divisor: u64) -> bool {
        let served = self.first.get(index as usize).map_or(0, |&first| turns(first, at));
        served * divisor == u64::from(weight) * self.periods
    }

    /// Moves the base of all moments by some ticks, so that the moments stay small.
    #[cold]
    fn rebase(&mut self, ticks: i64) {
        for (entry, first) in self.entries.iter_mut().zip(&mut self.first) {
            let parts = ticks.wrapping_mul(i64::from(entry.weight));
            entry.start = entry.start.wrapping_sub(parts);
            *first = first.wrapping_sub(parts);
        }
        self.since.ticks = self.since.ticks.wrapping_sub(ticks);
        self.enqueue_all();
    }
}

impl SlotSource for SlotProducer {
    fn next(&mut self) -> u32 {
        loop {
            let index = if self.ring.is_empty() { self.next_by_queue() } else { self.next_by_ring() };
            if let Some(index) = index {
                self.latest = Some(index);
                return index;
            }
            // Starts sum up to the clock, so that some turn has always started. Only at the end of a period
            // from a carried-over state slots may pass until those that wait have their turn.
            if self.waiting.is_empty() {
                self.enqueue();
            }
        }
    }
}

/// Where all endpoints stand: what a rebuild carries over.
pub(super) struct TurnPositions {
    /// The moment at which the next turn of each endpoint starts.
    starts: Vec<i64>,
    /// The present.
    now: VirtualTime,
}

impl TurnPositions {
    /// Everybody's first turn starts at the present.
    pub(super) fn fresh(weights: &[u32]) -> Self {
        Self { starts: vec![0; weights.len()], now: VirtualTime::default() }
    }

    /// The literal order just after its `nth` turn, counted endpoint by endpoint, not in time: every turn of
    /// a cycle is reached by exactly one `nth` below the sum of the weights.
    pub(super) fn after_turn(weights: &[u32], nth: u64) -> Self {
        let mut nth = nth;
        let latest = weights.iter().position(|&weight| match nth.checked_sub(u64::from(weight)) {
            Some(rest) => {
                nth = rest;
                false
            }
            None => true,
        });
        let Some((latest, &whole)) = latest.and_then(|i| Some((i, weights.get(i)?))) else {
            return Self::fresh(weights);
        };
        let turn = nth + 1;
        let (ticks, rest) = ((turn << 32) / u64::from(whole), (turn << 32) % u64::from(whole));
        let now =
            VirtualTime { ticks: ticks.cast_signed(), ..VirtualTime::at(rest.cast_signed(), whole.into()) };
        let start = |(index, &weight): (usize, &u32)| {
            // Turns due up to the present are over; of those due right now, the ones that come first in the
            // list.
            let (turns, whole) = (turn * u64::from(weight), u64::from(whole));
            let done =
                if turns.is_multiple_of(whole) && index > latest { turns / whole - 1 } else { turns / whole };
            // Both may be large, their difference is about a turn.
            (done << 32).cast_signed().wrapping_sub(now.ticks.wrapping_mul(i64::from(weight)))
        };
        let starts = weights.iter().enumerate().map(start).collect();
        Self { starts, now: VirtualTime { ticks: 0, ..now } }
    }

    /// The same positions, of endpoints with weights that `were`, under other weights, and in another list if
    /// there is a `from`: endpoint `j` was `from[j]`.
    ///
    /// Under the same rule, who kept its weight keeps its exact moment, up to the common shift that makes the
    /// present the base. Who changed it keeps the part of a turn by which it was ahead or behind; who is new is
    /// neither.
    pub(super) fn carried(
        self,
        (was, were): (ScheduleRule, &[u32]),
        (rule, weights): (ScheduleRule, &[u32]),
        from: Option<&[Option<u32>]>,
    ) -> Self {
        let Self { mut starts, now: then } = self;
        let now = VirtualTime { ticks: 0, ..then };
        let is_due = |(&start, &weight): (&i64, &u32)| then.lead(start, weight) <= 1 - TURN;
        let (least, most) = match rule {
            ScheduleRule::Eligible => (-FAR, FAR),
            // No turn starts after the present, and none is due before it. One may be due right now and not
            // taken, as others of that moment came first; then nobody else may start right now, or, being
            // later in the list, it would be taken before that endpoint's next turn in one cycle and after it
            // in another.
            ScheduleRule::Literal if starts.iter().zip(were).any(is_due) => (1 - TURN, -1),
            ScheduleRule::Literal => (1 - TURN, 0),
        };
        let carry = |start: i64, before: u32, weight: u32| {
            if was == rule && before == weight {
                start.wrapping_sub(then.ticks.wrapping_mul(i64::from(weight)))
            } else {
                now.fraction_of(weight) + then.lead(start, before).clamp(least, most)
            }
        };
        let Some(from) = from else {
            // In place, as this is what every change of weights alone comes to.
            for ((start, &before), &weight) in starts.iter_mut().zip(were).zip(weights) {
                *start = carry(*start, before, weight);
            }
            return Self { starts, now };
        };
        let carried = weights.iter().enumerate().map(|(j, &weight)| {
            let i = from.get(j).copied().flatten().map(|i| i as usize);
            match i.and_then(|i| starts.get(i).zip(were.get(i))) {
                Some((&start, &before)) => carry(start, before, weight),
                None => now.fraction_of(weight) + most.min(0),
            }
        });
        Self { starts: carried.collect(), now }
    }
}

/// The end of the present slot, `parts/total` ticks after the base. One slot is one cycle over the sum of the
/// weights; the clock stands at the mean of the starts by weight, where leads and lags cancel out.
#[derive(Default)]
struct VirtualClock {
    parts: i64,
    total: i64,
}

impl VirtualClock {
    fn new(starts: impl Iterator<Item = i64>, total: i64) -> Self {
        Self { parts: starts.sum::<i64>() + TURN, total }
    }

    fn tick(&mut self) {
        self.parts += TURN;
    }

    /// Whether the slot ends after this moment.
    #[inline]
    fn has_passed(&self, start: i64, weight: u32) -> bool {
        i128::from(start) * i128::from(self.total) < i128::from(self.parts) * i128::from(weight)
    }

    /// The beginning of the slot.
    fn now(&self) -> VirtualTime {
        VirtualTime::at(self.parts - TURN, self.total)
    }

    /// A little more than its ticks, whatever was rounded.
    fn ticks(&self) -> f64 {
        let ticks = self.parts as f64 / self.total as f64;
        ticks + ticks.abs() * (4.0 * f64::EPSILON)
    }
}

/// The present, to 2^-64 of a cycle.
#[derive(Clone, Copy, Default)]
struct VirtualTime {
    ticks: i64,
    fraction: u32,
}

impl VirtualTime {
    /// The moment `parts/weight`.
    fn at(parts: i64, weight: i64) -> Self {
        let rest = i128::from(parts.rem_euclid(weight)) << 32;
        Self { ticks: parts.div_euclid(weight), fraction: (rest / i128::from(weight)) as u32 }
    }

    /// By how much of a turn, in parts, a start lies after this: about one turn at most.
    fn lead(self, start: i64, weight: u32) -> i64 {
        start.wrapping_sub(self.ticks.wrapping_mul(i64::from(weight))).wrapping_sub(self.fraction_of(weight))
    }

    /// What a weight's share of the fraction is, in parts.
    fn fraction_of(self, weight: u32) -> i64 {
        ((u64::from(self.fraction) * u64::from(weight)) >> 32).cast_signed()
    }
}

/// How many turns lie between two starts: fewer than 2^32, long after which a run has found a successor.
pub(super) fn turns(from: i64, to: i64) -> u64 {
    to.wrapping_sub(from).cast_unsigned() >> 32
}

/// A turn in parts: a tick is one part of a turn for each unit of weight.
pub(super) const TURN: i64 = 1 << 32;

/// Turns do not start further off the present than this; a bound all the same, as it feeds the next state.
const FAR: i64 = 4 * TURN;

/// Moments up to here, and a turn more, are exact in floating point.
const FAR_OUT: i64 = 1 << 52;

/// The same for the sum of all moments, which must not overflow.
const CLOCK_FAR_OUT: i64 = 1 << 61;

/// Turns to a bucket of those that are ready: enough for few empty buckets, few enough to be sorted at once.
const READY_WIDTH: usize = 32;

/// Turns to a bucket of those that wait: all of the bucket are looked at in each slot.
const WAITING_WIDTH: usize = 2;
