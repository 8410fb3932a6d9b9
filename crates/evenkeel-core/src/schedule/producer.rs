//! Producer half of a schedule: the exact sequence, in integers.
//!
//! Time is virtual. In one cycle an endpoint of weight `w` has `w` turns, so its k-th turn is due at `k/w`,
//! whatever the other weights are. An endpoint's times are integers in its own unit, the part. A turn has
//! 2^32 parts, counted from a common base. A turn is thus one addition, and nothing is rounded. Two times
//! compare by cross-multiplication, most of which [`TurnQueue`] avoids. A tick is 2^-32 of a cycle, or `w`
//! parts of every endpoint. Other weights do not enter, so a rebuild carries over the times of unchanged
//! endpoints exactly.
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

/// State of a sequence: the start time of each endpoint's next turn.
pub(super) struct SlotProducer {
    rule: ScheduleRule,
    weights: Arc<[u32]>,
    /// Sum of the weights.
    total: i64,
    /// Start of the first turn of each endpoint.
    first: Vec<i64>,
    /// Start of the next turn of each endpoint. Built on the first turn, like the queues: in a burst of
    /// updates, many schedules are replaced unused.
    entries: Vec<QueueEntry>,
    /// Turns that may be taken, by due time.
    ready: TurnQueue,
    /// Turns that may not be taken yet under the eligible rule, by start time.
    waiting: TimingWheel,
    /// All endpoints in order if the weights are equal, since both rules are then a rotation.
    ring: VecDeque<u32>,
    clock: VirtualClock,
    divisor: Option<u64>,
    /// Number of periods begun; counted only with a divisor.
    periods: u64,
    latest: Option<u32>,
    /// Virtual time before the first turn.
    since: VirtualTime,
}

impl SlotProducer {
    /// Creates a producer that continues from `positions`. With a divisor of the weights, every endpoint gets
    /// its exact number of turns in each period. The sequence then repeats even if a carried-over tie or lag
    /// spans the end of a period.
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

    /// Returns the endpoint of the last turn.
    pub(super) fn latest(&self) -> Option<u32> {
        self.latest
    }

    /// Returns the start of the first turn of each endpoint.
    pub(super) fn first(&self) -> &[i64] {
        &self.first
    }

    /// Returns the start of the next turn of each endpoint.
    pub(super) fn next_starts(&self) -> Vec<i64> {
        if self.entries.is_empty() {
            return self.first.clone();
        }
        self.entries.iter().map(|entry| entry.start).collect()
    }

    /// Returns the number of turns taken, by index.
    pub(super) fn served(&self) -> impl Iterator<Item = u64> {
        self.entries.iter().zip(&self.first).map(|(entry, &first)| turns(first, entry.start))
    }

    /// Returns the positions for the given next starts and the endpoint of the last turn.
    pub(super) fn positions(&self, starts: Vec<i64>, latest: Option<u32>) -> TurnPositions {
        let now = match (self.rule, latest.map(|latest| latest as usize)) {
            // The clock of this rule is the weighted mean of the starts, so the starts alone determine it.
            (ScheduleRule::Eligible, _) => VirtualClock::new(starts.iter().copied(), self.total).now(),
            // An endpoint's next turn starts when its last one was due.
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
            // The turns that start in the current slot may be taken in it, so the clock advances afterwards.
            self.release();
            self.clock.tick();
        }
        self.take()
    }

    /// Queues all endpoints, at the start and after each period.
    fn enqueue(&mut self) {
        if self.entries.is_empty() {
            let entries = self.first.iter().zip(&*self.weights);
            self.entries = entries.map(|(&start, &weight)| QueueEntry::new(start, weight)).collect();
            if self.weights.windows(2).all(|pair| matches!(pair, [a, b] if a == b)) {
                let mut order: Vec<_> = self.first.iter().zip(0..).collect();
                // A stable sort is fast on presorted input, which an interrupted rotation leaves.
                order.sort();
                self.ring = order.into_iter().map(|(_, index)| index).collect();
                return;
            }
        }
        self.periods += 1;
        self.enqueue_all();
    }

    /// Inserts every endpoint into its queue.
    fn enqueue_all(&mut self) {
        // A cycle has 2^32 ticks and `total` turns.
        let (n, rate) = (self.entries.len(), self.total as f64 / TURN as f64);
        // Ready turns are ordered by their due time, which is one turn after their start.
        let mut ready = TimingWheel::new(TURN, n, rate, READY_WIDTH);
        if self.rule == ScheduleRule::Literal {
            for (index, entry) in (0..).zip(&mut self.entries) {
                ready.push(index, entry);
            }
            self.ready = ready.into();
            return;
        }
        self.clock = VirtualClock::new(self.entries.iter().map(|entry| entry.start), self.total);
        // Indexing avoids a branch that would be hard to predict.
        let mut wheels = [TimingWheel::new(0, n, rate, WAITING_WIDTH), ready];
        for (index, entry) in (0..).zip(&mut self.entries) {
            let is_ready = self.clock.has_passed(entry.start, entry.weight);
            wheels[usize::from(is_ready)].push(index, entry);
        }
        let [waiting, ready] = wheels;
        (self.waiting, self.ready) = (waiting, ready.into());
    }

    /// Moves turns that start in the current slot from `waiting` to `ready`.
    fn release(&mut self) {
        self.waiting.approach(self.clock.ticks(), &mut self.entries);
        let mut at = 0;
        while let Some(turn) = self.waiting.near.get(at) {
            if !self.clock.has_passed(turn.at, turn.weight) {
                at += 1;
                continue;
            }
            // `at` stays: the last turn moves to this position.
            let QueuedTurn { index, .. } = self.waiting.near.swap_remove(at);
            if let Some(entry) = self.entries.get_mut(index as usize) {
                self.ready.push(index, entry);
            }
        }
    }

    /// Takes the turn that is due first. The endpoint's next turn starts at that due time.
    fn take(&mut self) -> Option<u32> {
        let turn = self.ready.peek(&mut self.entries)?;
        let QueuedTurn { at, weight, index, .. } = turn;
        let is_last = self.divisor.is_some_and(|divisor| self.is_last(at, weight, index, divisor));
        let entry = self.entries.get_mut(index as usize)?;
        entry.start = at;
        // The endpoint has all turns of this period. `enqueue` inserts it again.
        if is_last {
            self.ready.pop(turn);
        } else if self.rule == ScheduleRule::Literal {
            self.ready.again(turn, entry);
        } else {
            self.ready.pop(turn);
            self.waiting.push(index, entry);
        }
        // Not reached with a divisor: a table has at most 2^16 turns. A rebase would insert finished endpoints again.
        if at > FAR_OUT || self.clock.parts > CLOCK_FAR_OUT {
            self.rebase(at / i64::from(weight));
        }
        Some(index)
    }

    /// Returns true if the turn due at `at` is the endpoint's last one of the period.
    fn is_last(&self, at: i64, weight: u32, index: u32, divisor: u64) -> bool {
        let served = self.first.get(index as usize).map_or(0, |&first| turns(first, at));
        // An endpoint has weight/divisor turns per period. Multiplied out, nothing is rounded.
        served * divisor == u64::from(weight) * self.periods
    }

    /// Moves the base of all times by `ticks`, so that times stay small.
    #[cold]
    fn rebase(&mut self, ticks: i64) {
        for (entry, first) in self.entries.iter_mut().zip(&mut self.first) {
            let parts = ticks.wrapping_mul(i64::from(entry.weight));
            entry.start = entry.start.wrapping_sub(parts);
            // `first` moves too, so that the number of turns does not change.
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
            // The starts sum up to the clock, so some turn has always started. The exception is the end of a
            // period after a carried-over state: slots then pass until the waiting turns start.
            if self.waiting.is_empty() {
                self.enqueue();
            }
        }
    }
}

/// Positions of all endpoints, carried over by a rebuild.
pub(super) struct TurnPositions {
    /// Start of each endpoint's next turn.
    starts: Vec<i64>,
    /// Virtual time of the positions.
    now: VirtualTime,
}

impl TurnPositions {
    /// Returns positions at which every endpoint's first turn starts at once.
    pub(super) fn fresh(weights: &[u32]) -> Self {
        Self { starts: vec![0; weights.len()], now: VirtualTime::default() }
    }

    /// Returns the literal positions after the `nth` turn. Turns are counted endpoint by endpoint, not in
    /// time order. Each turn of a cycle corresponds to exactly one `nth` below the sum of the weights.
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
        // `turn` is at most a weight and has 32 bits, so the shift does not overflow.
        let turn = nth + 1;
        let (ticks, rest) = ((turn << 32) / u64::from(whole), (turn << 32) % u64::from(whole));
        let now =
            VirtualTime { ticks: ticks.cast_signed(), ..VirtualTime::at(rest.cast_signed(), whole.into()) };
        let start = |(index, &weight): (usize, &u32)| {
            // Turns due up to this time are done. Of those due exactly at it, the ones up to `latest` in list
            // order are done.
            // Both factors have at most 32 bits.
            let (turns, whole) = (turn * u64::from(weight), u64::from(whole));
            let done =
                if turns.is_multiple_of(whole) && index > latest { turns / whole - 1 } else { turns / whole };
            // Both operands may wrap, but their difference is about one turn.
            (done << 32).cast_signed().wrapping_sub(now.ticks.wrapping_mul(i64::from(weight)))
        };
        let starts = weights.iter().enumerate().map(start).collect();
        Self { starts, now: VirtualTime { ticks: 0, ..now } }
    }

    /// Converts the positions from the weights `were` to other weights. With a `from` the list changes too:
    /// endpoint `j` was `from[j]`.
    ///
    /// Under the same rule, an endpoint with an unchanged weight keeps its exact time, shifted to the common
    /// base. One with a changed weight keeps its lead or lag as a fraction of a turn. An added one has
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
            // No turn starts after the current time, and none is due before it. One may be due exactly at it
            // and not be taken, since others due at that time came first. Then no other endpoint may start at
            // this time. Being later in the list, it would be taken before that endpoint's next turn in one
            // cycle and after it in another.
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
            // Updated in place, since this is the common case: only weights changed.
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

/// End of the current slot, `parts/total` ticks after the base. A slot is one cycle divided by the sum of the
/// weights. The clock is the weighted mean of the starts, where leads and lags cancel out.
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

    /// Returns true if the slot ends after this time.
    #[inline]
    fn has_passed(&self, start: i64, weight: u32) -> bool {
        // Clock and weights need more than 64 bits together.
        i128::from(start) * i128::from(self.total) < i128::from(self.parts) * i128::from(weight)
    }

    /// Returns the start of the slot.
    fn now(&self) -> VirtualTime {
        VirtualTime::at(self.parts - TURN, self.total)
    }

    /// Returns the ticks, rounded up beyond any floating-point error.
    fn ticks(&self) -> f64 {
        let ticks = self.parts as f64 / self.total as f64;
        ticks + ticks.abs() * (4.0 * f64::EPSILON)
    }
}

/// Virtual time with a resolution of 2^-64 cycles.
#[derive(Clone, Copy, Default)]
struct VirtualTime {
    ticks: i64,
    fraction: u32,
}

impl VirtualTime {
    /// Returns the time `parts/weight`.
    fn at(parts: i64, weight: i64) -> Self {
        let rest = i128::from(parts.rem_euclid(weight)) << 32;
        // Euclidean division: times before the base are negative, but the fraction is not.
        Self { ticks: parts.div_euclid(weight), fraction: (rest / i128::from(weight)) as u32 }
    }

    /// Returns the distance of a start from this time, in parts: about one turn at most.
    fn lead(self, start: i64, weight: u32) -> i64 {
        start.wrapping_sub(self.ticks.wrapping_mul(i64::from(weight))).wrapping_sub(self.fraction_of(weight))
    }

    /// Returns the fraction of a tick in parts of an endpoint of this weight.
    fn fraction_of(self, weight: u32) -> i64 {
        ((u64::from(self.fraction) * u64::from(weight)) >> 32).cast_signed()
    }
}

/// Returns the number of turns between two starts. It is below 2^32: a run is replaced long before.
pub(super) fn turns(from: i64, to: i64) -> u64 {
    // Starts of an endpoint differ by whole turns, so the shift drops no bits.
    to.wrapping_sub(from).cast_unsigned() >> 32
}

/// Number of parts per turn.
pub(super) const TURN: i64 = 1 << 32;

/// Maximum distance of a start from the current time. Turns stay closer; the bound protects the next state.
const FAR: i64 = 4 * TURN;

/// Maximum time in parts before a rebase. Times up to this, plus one turn, are exact in floating point.
const FAR_OUT: i64 = 1 << 52;

/// Maximum of the clock's sum of all times before a rebase, so that it does not overflow.
const CLOCK_FAR_OUT: i64 = 1 << 61;

/// Number of ready turns per bucket: enough for few empty buckets, few enough to sort at once.
const READY_WIDTH: usize = 32;

/// Number of waiting turns per bucket. Each slot checks all turns of its bucket.
const WAITING_WIDTH: usize = 2;
