//! Queues of turns by virtual time: the data structures of the producer.
//!
//! A turn's time as a floating-point quotient selects its bucket and decides most comparisons. Correctly
//! rounded operations are monotonic: of two turns with different quotients, or in different buckets, the
//! lesser is the earlier. Equal quotients are compared exactly.
//!
//! | type | far turns | near turns |
//! |---|---|---|
//! | [`TimingWheel`] | in buckets, in no order within one | in no order |
//! | [`TurnQueue`] | the same | in a heap, which stays small however many endpoints there are |

use std::cmp::Ordering;
use std::mem;

/// Endpoint in the producer's list.
#[derive(Clone, Copy)]
pub(super) struct QueueEntry {
    /// Start of the endpoint's next turn, in parts.
    pub(super) start: i64,
    pub(super) weight: u32,
    /// Index of the next endpoint in the same bucket.
    next: u32,
}

impl QueueEntry {
    pub(super) fn new(start: i64, weight: u32) -> Self {
        Self { start, weight, next: NONE }
    }
}

/// Timing wheel: endpoints by the time `after` the start of their next turn, in buckets of equal width.
#[derive(Default)]
pub(super) struct TimingWheel {
    after: i64,
    /// Turns in buckets below `bound`.
    pub(super) near: Vec<QueuedTurn>,
    /// First endpoint of each bucket from `bound` on. All rounds of the wheel share the buckets.
    heads: Box<[u32]>,
    bound: i64,
    /// Number of turns in the buckets.
    far: usize,
    /// Number of buckets per tick.
    rate: f64,
}

impl TimingWheel {
    /// Creates a wheel for endpoints with `rate` turns per tick in total, and `width` turns per bucket.
    pub(super) fn new(after: i64, endpoints: usize, rate: f64, width: usize) -> Self {
        // A power of two, so that a mask selects the bucket.
        let buckets = (2 * endpoints / width).next_power_of_two();
        // A few endpoints share a single bucket.
        let rate = if buckets > 1 { rate / width as f64 } else { 0.0 };
        Self { after, heads: vec![NONE; buckets].into(), rate, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.far == 0 && self.near.is_empty()
    }

    #[inline]
    pub(super) fn push(&mut self, index: u32, entry: &mut QueueEntry) {
        if let Some(turn) = self.push_far(index, entry) {
            self.near.push(turn);
        }
    }

    /// Inserts an endpoint's turn, or returns it if it is near.
    #[inline]
    fn push_far(&mut self, index: u32, entry: &mut QueueEntry) -> Option<QueuedTurn> {
        let turn = QueuedTurn::new(index, entry, self.after);
        let bucket = turn.bucket(self.rate);
        if bucket < self.bound {
            return Some(turn);
        }
        self.far += 1;
        self.chain(bucket, index, entry);
        None
    }

    #[inline]
    fn chain(&mut self, bucket: i64, index: u32, entry: &mut QueueEntry) {
        let mask = self.heads.len().wrapping_sub(1);
        // Two's complement makes the mask correct for buckets before the base too.
        if let Some(head) = self.heads.get_mut(bucket as usize & mask) {
            entry.next = mem::replace(head, index);
        }
    }

    /// Moves all turns before a time in ticks to `near`, and possibly a few later ones.
    pub(super) fn approach(&mut self, ticks: f64, entries: &mut [QueueEntry]) {
        let last = (ticks * self.rate) as i64;
        while self.bound <= last && self.far > 0 {
            self.drain(entries);
        }
        // Raised even if no turn is far, so that turns pushed later for this time become near.
        self.bound = self.bound.max(last.saturating_add(1));
    }

    /// Moves the first bucket that is not empty to `near`, if there is one.
    fn approach_first(&mut self, entries: &mut [QueueEntry]) {
        let (mut looked, mut nearest) = (0, None);
        while self.near.is_empty() && self.far > 0 {
            nearest = nearest.into_iter().chain(self.drain(entries)).min();
            looked += 1;
            if looked == self.heads.len() && self.near.is_empty() {
                // A whole round was empty. Jumps to the round of the nearest turn, however many rounds lie
                // between.
                self.bound = nearest.unwrap_or(self.bound);
                (looked, nearest) = (0, None);
            }
        }
    }

    /// Moves the next bucket to `near`. Returns the lowest bucket of the later rounds' turns in the same
    /// slot, if any.
    fn drain(&mut self, entries: &mut [QueueEntry]) -> Option<i64> {
        let bucket = self.bound;
        self.bound = bucket.saturating_add(1);
        let mask = self.heads.len().wrapping_sub(1);
        let mut next = mem::replace(self.heads.get_mut(bucket as usize & mask)?, NONE);
        let mut later = None;
        while let Some(entry) = entries.get_mut(next as usize) {
            let turn = QueuedTurn::new(next, entry, self.after);
            // Read before `chain`, which overwrites the link.
            next = entry.next;
            let own = turn.bucket(self.rate);
            if own == bucket {
                self.far -= 1;
                self.near.push(turn);
            } else {
                later = Some(later.map_or(own, |later: i64| later.min(own)));
                self.chain(own, turn.index, entry);
            }
        }
        later
    }
}

/// Timing wheel with ordered near turns. The turns of a bucket form a sorted run, latest first. Turns added
/// to them are in a 4-ary heap.
#[derive(Default)]
pub(super) struct TurnQueue {
    run: Vec<QueuedTurn>,
    wheel: TimingWheel,
}

impl TurnQueue {
    #[inline]
    pub(super) fn push(&mut self, index: u32, entry: &mut QueueEntry) {
        if let Some(turn) = self.wheel.push_far(index, entry) {
            self.push_near(turn);
        }
    }

    /// Returns the earliest turn without removing it.
    #[inline]
    pub(super) fn peek(&mut self, entries: &mut [QueueEntry]) -> Option<QueuedTurn> {
        if self.run.is_empty() && self.wheel.near.is_empty() && self.wheel.far > 0 {
            self.wheel.approach_first(entries);
            self.order();
        }
        match (self.run.last(), self.wheel.near.first()) {
            (Some(one), Some(other)) => Some(if one.is_before(other) { *one } else { *other }),
            (one, other) => one.or(other).copied(),
        }
    }

    /// Removes the turn that `peek` returned.
    #[inline]
    pub(super) fn pop(&mut self, turn: QueuedTurn) {
        if !self.pop_run(turn)
            && let Some(last) = self.wheel.near.pop()
            && !self.wheel.near.is_empty()
        {
            self.sift_down(0, last);
        }
    }

    #[inline]
    fn pop_run(&mut self, turn: QueuedTurn) -> bool {
        // An endpoint has at most one turn in the queue, so the index identifies it.
        self.run.pop_if(|last| last.index == turn.index).is_some()
    }

    /// Combines `pop` with a `push` of the same endpoint, which saves a heap operation.
    #[inline]
    pub(super) fn again(&mut self, turn: QueuedTurn, entry: &mut QueueEntry) {
        match self.wheel.push_far(turn.index, entry) {
            None => self.pop(turn),
            Some(next) if self.pop_run(turn) => self.push_near(next),
            Some(next) => self.sift_down(0, next),
        }
    }

    /// Sorts the near turns into a run, or builds a heap of them.
    fn order(&mut self) {
        let near = &mut self.wheel.near;
        let rises = near.windows(2).filter(|pair| matches!(pair, [a, b] if a.is_before(b))).count();
        let breaks = rises.min(near.len().saturating_sub(rises));
        if near.len() <= LONGEST_RUN || breaks <= FEW {
            // A stable sort is fast on presorted input, which turns of equal weights are.
            near.sort_by(|a, b| if b.is_before(a) { Ordering::Less } else { Ordering::Greater });
            mem::swap(&mut self.run, near);
            return;
        }
        // Only parents are sifted; the leaves are heaps already.
        for at in (0..near.len().div_ceil(4)).rev() {
            if let Some(&turn) = self.wheel.near.get(at) {
                self.sift_down(at, turn);
            }
        }
    }

    fn push_near(&mut self, turn: QueuedTurn) {
        let mut at = self.wheel.near.len();
        self.wheel.near.push(turn);
        while at > 0 {
            let parent = (at - 1) / 4;
            match self.wheel.near.get(parent) {
                Some(&above) if turn.is_before(&above) => self.set(at, above),
                _ => break,
            }
            at = parent;
        }
        self.set(at, turn);
    }

    /// Places a turn at position `at` of the heap or below.
    fn sift_down(&mut self, mut at: usize, turn: QueuedTurn) {
        loop {
            let first = 4 * at + 1;
            let children = self.wheel.near.get(first..).unwrap_or_default();
            let children = children.get(..4).unwrap_or(children);
            let mut least = (at, turn);
            for (child, below) in (first..).zip(children) {
                if below.is_before(&least.1) {
                    least = (child, *below);
                }
            }
            self.set(at, least.1);
            if least.0 == at {
                return;
            }
            at = least.0;
        }
    }

    #[inline]
    fn set(&mut self, at: usize, turn: QueuedTurn) {
        if let Some(slot) = self.wheel.near.get_mut(at) {
            *slot = turn;
        }
    }
}

impl From<TimingWheel> for TurnQueue {
    fn from(wheel: TimingWheel) -> Self {
        let mut queue = Self { run: Vec::new(), wheel };
        queue.order();
        queue
    }
}

/// Turn of an endpoint, at `at/weight` ticks after the base.
#[derive(Clone, Copy)]
pub(super) struct QueuedTurn {
    /// Quotient `at/weight`, rounded to floating point.
    ticks: f64,
    pub(super) at: i64,
    pub(super) weight: u32,
    pub(super) index: u32,
}

impl QueuedTurn {
    #[inline]
    fn new(index: u32, entry: &QueueEntry, after: i64) -> Self {
        let at = entry.start + after;
        // The conversion is exact, since times stay below 2^53 (`FAR_OUT`). Only the division rounds.
        Self { ticks: at as f64 / f64::from(entry.weight), at, weight: entry.weight, index }
    }

    #[inline]
    fn bucket(&self, rate: f64) -> i64 {
        (self.ticks * rate) as i64
    }

    #[inline]
    fn is_before(&self, other: &Self) -> bool {
        self.ticks < other.ticks || self.ticks <= other.ticks && self.wins_tie(other)
    }

    fn wins_tie(&self, other: &Self) -> bool {
        // With equal weights, different times have different quotients, so this is a true tie.
        if self.weight == other.weight {
            return self.index < other.index;
        }
        let mine = i128::from(self.at) * i128::from(other.weight);
        let others = i128::from(other.at) * i128::from(self.weight);
        mine < others || mine == others && self.index < other.index
    }
}

/// Index that marks the end of a chain.
const NONE: u32 = u32::MAX;

/// Maximum number of turns in a bucket that are sorted at once, since a pick may wait for the sort. More are
/// sorted only if they consist of a few ordered runs.
const LONGEST_RUN: usize = 1_024;
const FEW: usize = 4;
