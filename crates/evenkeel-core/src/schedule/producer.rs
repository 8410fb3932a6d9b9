//! The producer half: the exact order, in integers.
//!
//! Time is virtual. In one cycle of it an endpoint of weight `w` has `w` turns, so its k-th turn is due at
//! `k/w`, whatever the other weights are. A moment is held as whole ticks (2^-32 of a cycle) and a
//! remainder over the endpoint's own weight; one division moves it by a turn, nothing is rounded, and two
//! moments compare by their ticks or, in the rare same tick, by cross-multiplied remainders. Since the
//! other weights do not enter, a rebuild carries the moments of unchanged endpoints over as they are.
//!
//! | rule | a turn may be taken | so |
//! |---|---|---|
//! | literal | at any time | the earliest due is next, ties by position in the list |
//! | eligible | not before the slot its start falls in | no endpoint is ever a whole pick off its share |

use std::cmp::Ordering;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::mem;

use super::Rule;
use super::cell::Source;

/// The state of an order: for each endpoint the moment at which its next turn starts or is due.
pub(super) struct Producer {
    rule: Rule,
    /// Turns that may be taken, by due moment.
    ready: BinaryHeap<Entry>,
    /// Turns of the eligible rule that may not be taken yet, by starting moment.
    waiting: BinaryHeap<Entry>,
    /// Endpoints that had all turns of the period, at their next starting moment.
    done: Vec<Start>,
    /// All endpoints, at their starting moments, when all weights are equal: then both rules are a rotation.
    ring: VecDeque<Entry>,
    clock: Clock,
    divisor: Option<u64>,
    /// Turns taken, by index.
    served: Vec<u64>,
    latest: Option<u32>,
    /// The present before the first turn.
    since: Now,
}

impl Producer {
    /// The order from given positions on. With a divisor of the weights every endpoint is held to its exact
    /// number of turns in each period, which makes the order repeat also from a carried-over state in which a
    /// tie, or a lag, stands across the period's end.
    pub(super) fn new(rule: Rule, positions: Positions, divisor: Option<u64>) -> Self {
        Self {
            rule,
            ready: BinaryHeap::new(),
            waiting: BinaryHeap::new(),
            served: vec![0; positions.starts.len()],
            // The queues are built for the first turn: many schedules of a storm of updates never see one.
            done: positions.starts,
            ring: VecDeque::new(),
            clock: Clock::default(),
            divisor,
            latest: None,
            since: positions.now,
        }
    }

    /// Turns taken, by index.
    pub(super) fn served(&self) -> &[u64] {
        &self.served
    }

    /// Who had the last turn.
    pub(super) fn latest(&self) -> Option<u32> {
        self.latest
    }

    /// Where every endpoint stood when it had had `counts` turns and `latest` had the last of them.
    pub(super) fn positions(&self, counts: &[u64], latest: Option<u32>) -> Positions {
        let mut starts = vec![Start::level(1, 0); self.served.len()];
        let due = self.ready.iter().map(|entry| entry.start().moved(-1));
        let starting = self.waiting.iter().chain(&self.ring).map(|entry| entry.start());
        for start in due.chain(starting).chain(self.done.iter().copied()) {
            if let Some(slot) = starts.get_mut(start.index as usize) {
                *slot = start;
            }
        }
        for ((start, &count), &served) in starts.iter_mut().zip(counts).zip(&self.served) {
            *start = start.moved(count.wrapping_sub(served).cast_signed());
        }
        let now = match (self.rule, latest) {
            (Rule::Eligible, _) => Clock::new(&starts).now(),
            // The turn that follows the latest one starts when that one was due.
            (Rule::Literal, Some(latest)) => {
                starts.get(latest as usize).map_or(self.since, |start| start.now())
            }
            (Rule::Literal, None) => self.since,
        };
        Positions { starts, now }
    }

    fn next_by_ring(&mut self) -> Option<u32> {
        let entry = self.ring.pop_front()?;
        self.ring.push_back(entry.a_turn_later());
        *self.served.get_mut(entry.index as usize)? += 1;
        Some(entry.index)
    }

    fn next_by_heap(&mut self) -> Option<u32> {
        if self.rule == Rule::Eligible {
            self.release();
            self.clock.tick();
        }
        self.take()
    }

    /// Queues all endpoints, at the beginning and after each period.
    fn enqueue(&mut self) {
        let starts = mem::take(&mut self.done);
        if starts.windows(2).all(|pair| matches!(pair, [a, b] if a.weight == b.weight)) {
            let mut entries: Vec<_> = starts.iter().map(|start| start.entry()).collect();
            // Stable for its speed on runs that are sorted already, as after a rotation was cut short.
            entries.sort_by(|a, b| b.cmp(a));
            self.ring = entries.into();
            return;
        }
        let (mut ready, mut waiting) = (Vec::with_capacity(starts.len()), Vec::new());
        self.clock = Clock::new(&starts);
        for start in starts {
            if self.rule == Rule::Literal || self.clock.has_passed(start) {
                ready.push(start.moved(1).entry());
            } else {
                waiting.push(start.entry());
            }
        }
        self.ready = ready.into();
        self.waiting = waiting.into();
    }

    fn release(&mut self) {
        while let Some(top) = self.waiting.peek_mut() {
            if !self.clock.has_reached(top.at) {
                break;
            }
            self.ready.push(PeekMut::pop(top).a_turn_later());
        }
    }

    /// Takes the turn that is due first; the endpoint's next one starts when this one was due.
    fn take(&mut self) -> Option<u32> {
        let mut top = self.ready.peek_mut()?;
        let index = top.index;
        let served = self.served.get_mut(index as usize)?;
        *served += 1;
        let weight = u64::from(top.at.weight);
        if self.divisor.is_some_and(|divisor| (*served * divisor).is_multiple_of(weight)) {
            self.done.push(PeekMut::pop(top).start());
        } else if self.rule == Rule::Literal {
            *top = top.a_turn_later();
        } else {
            self.waiting.push(PeekMut::pop(top));
        }
        Some(index)
    }
}

impl Source for Producer {
    fn next(&mut self) -> u32 {
        loop {
            let index = if self.ring.is_empty() { self.next_by_heap() } else { self.next_by_ring() };
            if let Some(index) = index {
                self.latest = Some(index);
                return index;
            }
            // Starts sum up to the clock, so that some turn has always started. Only at the end of a period
            // from a carried-over state slots may pass until those that wait have their turn.
            if self.waiting.is_empty() {
                if self.done.is_empty() {
                    return 0;
                }
                self.enqueue();
            }
        }
    }
}

/// Where all endpoints stand: what a rebuild carries over.
pub(super) struct Positions {
    /// The moment at which the next turn of each endpoint starts.
    starts: Vec<Start>,
    /// The present.
    now: Now,
}

impl Positions {
    /// Everybody's first turn starts at the present.
    pub(super) fn fresh(weights: &[u32]) -> Self {
        let starts = (0..).zip(weights).map(|(index, &weight)| Start::level(weight, index)).collect();
        Self { starts, now: Now { ticks: ORIGIN, fraction: 0 } }
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
        let whole = u64::from(whole);
        let turn = nth + 1;
        let start = |(index, &weight): (u32, &u32)| {
            // Turns due up to the present are over; of those due right now, the ones that come first in the
            // list.
            let (done, rest) = (turn * u64::from(weight) / whole, turn * u64::from(weight) % whole);
            let done = if rest == 0 && index as usize > latest { done - 1 } else { done };
            let (ticks, parts) = ((done << 32) / u64::from(weight), (done << 32) % u64::from(weight));
            Start { ticks: ORIGIN + ticks, parts: parts.cast_signed(), weight, index }
        };
        let starts: Vec<_> = (0..).zip(weights).map(start).collect();
        let now = starts.get(latest).map_or(Now { ticks: ORIGIN, fraction: 0 }, |start| start.now());
        Self { starts, now }
    }

    /// The same positions under other weights, and in another list if there is a `from`: endpoint `j` was
    /// `from[j]`.
    ///
    /// Under the same rule, who kept its weight keeps its exact moment, up to the common shift that makes the present the origin.
    /// Who changed it keeps the part of a turn by which it was ahead or behind; who is new is neither.
    pub(super) fn carried(
        self,
        was: Rule,
        rule: Rule,
        weights: &[u32],
        from: Option<&[Option<u32>]>,
    ) -> Self {
        let Self { starts, now: then } = self;
        let now = Now { ticks: ORIGIN, fraction: then.fraction };
        let (least, most) = match rule {
            Rule::Eligible => (-FAR, FAR),
            // No turn starts after the present, and none is due before it. One may be due right now and not
            // taken, as others of that moment came first; then nobody else may start right now, or, being
            // later in the list, it would be taken before that endpoint's next turn in one cycle and after it
            // in another.
            Rule::Literal if starts.iter().any(|start| start.is_due(then)) => (1 - WHOLE, -1),
            Rule::Literal => (1 - WHOLE, 0),
        };
        let same_rule = was == rule;
        let carry = |was: Option<Start>, weight: u32, index: u32| {
            let lead = match was {
                Some(start) if same_rule && start.weight == weight => {
                    let ticks = start.ticks.wrapping_sub(then.ticks).wrapping_add(ORIGIN);
                    return Start { ticks, index, ..start };
                }
                Some(start) => start.lead(then).clamp(least, most),
                None => most.min(0),
            };
            Start { parts: now.fraction_of(weight) + lead, ..Start::level(weight, index) }
        };
        let listed = (0..).zip(weights);
        let starts = match from {
            // In place, as this is what every change of weights alone comes to.
            None => starts.into_iter().zip(listed).map(|(was, (j, &w))| carry(Some(was), w, j)).collect(),
            Some(from) => {
                let was = |j: u32| starts.get(from.get(j as usize).copied().flatten()? as usize).copied();
                listed.map(|(j, &w)| carry(was(j), w, j)).collect()
            }
        };
        Self { starts, now }
    }
}

/// Where an endpoint's turn starts: `ticks + parts/weight` ticks, not reduced, so that a rebuild moves it
/// by turns and from weight to weight without a division.
#[derive(Clone, Copy)]
struct Start {
    ticks: u64,
    parts: i64,
    weight: u32,
    index: u32,
}

impl Start {
    /// At the origin.
    fn level(weight: u32, index: u32) -> Self {
        Self { ticks: ORIGIN, parts: 0, weight, index }
    }

    fn moved(self, turns: i64) -> Self {
        Self { parts: self.parts.wrapping_add(turns.wrapping_mul(WHOLE)), ..self }
    }

    fn entry(self) -> Entry {
        let weight = i64::from(self.weight);
        let ticks = self.ticks.wrapping_add_signed(self.parts.div_euclid(weight));
        let at = Moment { ticks, part: self.parts.rem_euclid(weight) as u32, weight: self.weight };
        Entry { at, index: self.index }
    }

    /// Parts after a tick.
    fn parts_after(self, ticks: u64) -> i128 {
        let ticks = self.ticks.wrapping_sub(ticks).cast_signed();
        i128::from(ticks) * i128::from(self.weight) + i128::from(self.parts)
    }

    /// Whether the turn is due right then.
    fn is_due(self, now: Now) -> bool {
        self.lead(now) <= 1 - WHOLE
    }

    /// By how much of a turn, in parts, this lies after `now`: about one turn at most, and so far from the
    /// ends of an `i64`.
    fn lead(self, now: Now) -> i64 {
        let ticks = self.ticks.wrapping_sub(now.ticks).cast_signed();
        let parts = ticks.wrapping_mul(i64::from(self.weight)).wrapping_add(self.parts);
        parts.wrapping_sub(now.fraction_of(self.weight))
    }

    fn now(self) -> Now {
        let Moment { ticks, part, weight } = self.entry().at;
        Now { ticks, fraction: ((u64::from(part) << 32) / u64::from(weight)) as u32 }
    }
}

/// A moment in virtual time: `ticks + part/weight` ticks.
#[derive(Clone, Copy)]
struct Moment {
    ticks: u64,
    part: u32,
    weight: u32,
}

impl Moment {
    /// One turn later.
    fn a_turn_later(self) -> Self {
        let weight = u64::from(self.weight);
        let parts = TURN + u64::from(self.part);
        Self { ticks: self.ticks.wrapping_add(parts / weight), part: (parts % weight) as u32, ..self }
    }
}

impl Ord for Moment {
    fn cmp(&self, other: &Self) -> Ordering {
        self.ticks.cmp(&other.ticks).then_with(|| {
            let mine = u64::from(self.part) * u64::from(other.weight);
            mine.cmp(&(u64::from(other.part) * u64::from(self.weight)))
        })
    }
}

impl PartialOrd for Moment {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Moment {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Moment {}

/// One endpoint in a queue. The greatest entry is the earliest, since std's heap is a max-heap.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry {
    at: Moment,
    index: u32,
}

impl Entry {
    fn a_turn_later(self) -> Self {
        Self { at: self.at.a_turn_later(), ..self }
    }

    fn start(self) -> Start {
        let Moment { ticks, part, weight } = self.at;
        Start { ticks, parts: i64::from(part), weight, index: self.index }
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.cmp(&self.at).then_with(|| other.index.cmp(&self.index))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The end of the present slot, `ticks + part/total` ticks. One slot is one cycle over the sum of the
/// weights; the clock stands at the mean of the starts by weight, where leads and lags cancel out.
#[derive(Default)]
struct Clock {
    ticks: u64,
    part: u64,
    total: u64,
}

impl Clock {
    fn new(starts: &[Start]) -> Self {
        let (mut total, mut sum) = (0, 0);
        for start in starts {
            total += u64::from(start.weight);
            sum += start.parts_after(ORIGIN);
        }
        let whole = i128::from(total.max(1));
        let ticks = ORIGIN.wrapping_add_signed(sum.div_euclid(whole) as i64);
        let mut clock = Self { ticks, part: sum.rem_euclid(whole) as u64, total: total.max(1) };
        clock.tick();
        clock
    }

    fn tick(&mut self) {
        let (parts, total) = (TURN + self.part, self.total.max(1));
        self.ticks = self.ticks.wrapping_add(parts / total);
        self.part = parts % total;
    }

    fn has_reached(&self, start: Moment) -> bool {
        start.ticks < self.ticks
            || start.ticks == self.ticks && {
                let mine = u128::from(self.part) * u128::from(start.weight);
                u128::from(start.part) * u128::from(self.total) < mine
            }
    }

    fn has_passed(&self, start: Start) -> bool {
        start.parts_after(self.ticks) * i128::from(self.total)
            < i128::from(self.part) * i128::from(start.weight)
    }

    /// The beginning of the slot.
    fn now(&self) -> Now {
        let total = u128::from(self.total);
        let parts = u128::from(self.ticks) * total + u128::from(self.part) - u128::from(TURN);
        let fraction = ((parts % total) << 32) / total;
        Now { ticks: (parts / total) as u64, fraction: fraction as u32 }
    }
}

/// The present, to 2^-64 of a cycle.
#[derive(Clone, Copy)]
struct Now {
    ticks: u64,
    fraction: u32,
}

impl Now {
    /// What a weight's share of the fraction is, in 2^-32 of a turn.
    fn fraction_of(self, weight: u32) -> i64 {
        ((u64::from(self.fraction) * u64::from(weight)) >> 32).cast_signed()
    }
}

/// A turn in parts: a tick is one part of a turn for each unit of weight.
const TURN: u64 = 1 << 32;

/// Where the present is put at each rebuild: high enough that no turn starts below zero.
const ORIGIN: u64 = 1 << 40;

/// A turn in parts, signed.
const WHOLE: i64 = 1 << 32;

/// Turns do not start further off the present than this; a bound all the same, as it feeds the next state.
const FAR: i64 = 4 * WHOLE;
