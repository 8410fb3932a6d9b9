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
    done: Vec<Entry>,
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
    pub(super) fn new(rule: Rule, positions: &Positions, divisor: Option<u64>) -> Self {
        let starts = &positions.starts;
        let mut producer = Self {
            rule,
            ready: BinaryHeap::new(),
            waiting: BinaryHeap::new(),
            done: Vec::new(),
            ring: VecDeque::new(),
            clock: Clock::new(starts.iter()),
            divisor,
            served: vec![0; starts.len()],
            latest: None,
            since: positions.now,
        };
        let mut entries: Vec<_> = (0..).zip(starts).map(|(index, &at)| Entry { at, index }).collect();
        if starts.windows(2).all(|pair| matches!(pair, [a, b] if a.weight == b.weight)) {
            // Stable for its speed on runs that are sorted already, as after a rotation was cut short.
            entries.sort_by(|a, b| b.cmp(a));
            producer.ring = entries.into();
        } else {
            producer.enqueue(entries);
        }
        producer
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
        let nowhere = Moment { ticks: ORIGIN, part: 0, weight: 1 };
        let mut starts = vec![nowhere; self.served.len()];
        let due = self.ready.iter().map(|entry| (entry, 1));
        let starting = self.waiting.iter().chain(&self.done).chain(&self.ring).map(|entry| (entry, 0));
        for (entry, ahead) in due.chain(starting) {
            let i = entry.index as usize;
            let (Some(start), Some(&count), Some(&served)) =
                (starts.get_mut(i), counts.get(i), self.served.get(i))
            else {
                continue;
            };
            *start = entry.at.moved(count.wrapping_sub(served).wrapping_sub(ahead).cast_signed());
        }
        let now = match (self.rule, latest) {
            (Rule::Eligible, _) => Clock::new(starts.iter()).now(),
            // The turn that follows the latest one starts when that one was due.
            (Rule::Literal, Some(latest)) => starts.get(latest as usize).map_or(self.since, |at| at.now()),
            (Rule::Literal, None) => self.since,
        };
        Positions { starts, now }
    }

    fn next_by_ring(&mut self) -> u32 {
        let Some(entry) = self.ring.pop_front() else { return 0 };
        self.ring.push_back(entry.a_turn_later());
        if let Some(served) = self.served.get_mut(entry.index as usize) {
            *served += 1;
        }
        entry.index
    }

    fn next_by_heap(&mut self) -> u32 {
        // The starts sum up to the clock, so that some turn has always started; only the end of a period from a
        // carried-over state may let slots pass.
        loop {
            if self.rule == Rule::Eligible {
                self.release();
                self.clock.tick();
            }
            if let Some(index) = self.take() {
                return index;
            }
            if self.waiting.is_empty() {
                if self.done.is_empty() {
                    return 0;
                }
                let entries = mem::take(&mut self.done);
                self.enqueue(entries);
            }
        }
    }

    fn enqueue(&mut self, mut entries: Vec<Entry>) {
        let mut waiting = Vec::new();
        if self.rule == Rule::Eligible {
            let clock = Clock::new(entries.iter().map(|entry| &entry.at));
            waiting.extend(entries.extract_if(.., |entry| !clock.has_reached(entry.at)));
            self.clock = clock;
        }
        for entry in &mut entries {
            *entry = entry.a_turn_later();
        }
        self.ready = entries.into();
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
            self.done.push(PeekMut::pop(top));
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
        let index = if self.ring.is_empty() { self.next_by_heap() } else { self.next_by_ring() };
        self.latest = Some(index);
        index
    }
}

/// Where all endpoints stand: what a rebuild carries over.
pub(super) struct Positions {
    /// The moment at which the next turn of each endpoint starts.
    starts: Vec<Moment>,
    /// The present.
    now: Now,
}

impl Positions {
    /// Everybody's first turn starts at the present.
    pub(super) fn fresh(weights: &[u32]) -> Self {
        let starts = weights.iter().map(|&weight| Moment { ticks: ORIGIN, part: 0, weight }).collect();
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
        let start = |(i, &weight): (usize, &u32)| {
            // Turns due up to the present are over; of those due right now, the ones that come first in the list.
            let (done, rest) = (turn * u64::from(weight) / whole, turn * u64::from(weight) % whole);
            let done = if rest == 0 && i > latest { done - 1 } else { done };
            Moment { ticks: ORIGIN, part: 0, weight }.moved_by((i128::from(done)) << 32)
        };
        let starts: Vec<_> = weights.iter().enumerate().map(start).collect();
        let now = starts.get(latest).map_or(Now { ticks: ORIGIN, fraction: 0 }, |at| at.now());
        Self { starts, now }
    }

    /// The same positions under other weights and in another list, where endpoint `j` was `from[j]`.
    ///
    /// Who kept its weight keeps its exact moment, up to the common shift that makes the present the origin. Who
    /// changed it keeps the part of a turn by which it was ahead or behind; who is new is neither.
    pub(super) fn carried(&self, rule: Rule, weights: &[u32], from: &[Option<u32>]) -> Self {
        let now = Now { ticks: ORIGIN, fraction: self.now.fraction };
        let (least, most) = match rule {
            Rule::Eligible => (-FAR, FAR),
            // No turn starts after the present, and none is due before it. One may be due right now and not taken,
            // as others of that moment came first; then nobody else may start right now, or, being later in the
            // list, it would be taken before that endpoint's next turn in one cycle and after it in another.
            Rule::Literal if self.starts.iter().any(|at| at.lead(self.now) <= 1 - WHOLE) => (1 - WHOLE, -1),
            Rule::Literal => (1 - WHOLE, 0),
        };
        let carry = |(j, &weight): (usize, &u32)| {
            let was = from.get(j).copied().flatten().and_then(|i| self.starts.get(i as usize));
            let lead = match was {
                Some(at) if at.weight == weight => {
                    let ticks = at.ticks.wrapping_sub(self.now.ticks).wrapping_add(ORIGIN);
                    return Moment { ticks, ..*at };
                }
                Some(at) => at.lead(self.now).clamp(least, most),
                None => most.min(0),
            };
            let start = now.fraction_of(weight) + lead;
            Moment { ticks: ORIGIN, part: 0, weight }.moved_by(i128::from(start))
        };
        Self { starts: weights.iter().enumerate().map(carry).collect(), now }
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

    /// Some turns later or earlier.
    fn moved(self, turns: i64) -> Self {
        if turns == 0 { self } else { self.moved_by(i128::from(turns) << 32) }
    }

    /// Later by `parts`, which are 2^-32 of a turn.
    fn moved_by(self, parts: i128) -> Self {
        let weight = i64::from(self.weight);
        let parts = parts + i128::from(self.part);
        // Division in 128 bits is ten times slower and hardly ever needed.
        let (ticks, part) = match i64::try_from(parts) {
            Ok(parts) => (parts.div_euclid(weight), parts.rem_euclid(weight)),
            Err(_) => {
                let weight = i128::from(weight);
                (parts.div_euclid(weight) as i64, parts.rem_euclid(weight) as i64)
            }
        };
        Self { ticks: self.ticks.wrapping_add_signed(ticks), part: part as u32, ..self }
    }

    /// By how much of a turn, in 2^-32, this moment lies after `now`.
    fn lead(self, now: Now) -> i64 {
        let ticks = self.ticks.wrapping_sub(now.ticks).cast_signed();
        let parts = i128::from(ticks) * i128::from(self.weight) + i128::from(self.part);
        let parts = parts - i128::from(now.fraction_of(self.weight));
        parts.clamp(-i128::from(FAR), i128::from(FAR)) as i64
    }

    fn now(self) -> Now {
        let fraction = (u64::from(self.part) << 32) / u64::from(self.weight);
        Now { ticks: self.ticks, fraction: fraction as u32 }
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
struct Clock {
    ticks: u64,
    part: u64,
    total: u64,
}

impl Clock {
    fn new<'a>(starts: impl Iterator<Item = &'a Moment>) -> Self {
        let (mut total, mut sum) = (0, 0);
        for at in starts {
            total += u64::from(at.weight);
            let ticks = at.ticks.wrapping_sub(ORIGIN).cast_signed();
            sum += i128::from(ticks) * i128::from(at.weight) + i128::from(at.part);
        }
        let whole = i128::from(total.max(1));
        let ticks = ORIGIN.wrapping_add_signed(sum.div_euclid(whole) as i64);
        let mut clock = Self { ticks, part: sum.rem_euclid(whole) as u64, total: total.max(1) };
        clock.tick();
        clock
    }

    fn tick(&mut self) {
        let parts = TURN + self.part;
        self.ticks = self.ticks.wrapping_add(parts / self.total);
        self.part = parts % self.total;
    }

    fn has_reached(&self, start: Moment) -> bool {
        start.ticks < self.ticks || start.ticks == self.ticks && {
            let mine = u128::from(self.part) * u128::from(start.weight);
            u128::from(start.part) * u128::from(self.total) < mine
        }
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
