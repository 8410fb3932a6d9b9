//! Turns by moment: what the order is made from.
//!
//! A heap of the turns that are near and a wheel of buckets for the others, so that the heap stays small
//! however many endpoints there are. The moment's quotient in floating point chooses the bucket: correctly
//! rounded operations never turn two numbers around, so that of two turns in different buckets the one in the
//! earlier bucket is earlier. All else is compared exactly.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::mem;

/// An endpoint in the producer's list.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Where its next turn starts, in its parts.
    pub(super) start: i64,
    pub(super) weight: u32,
    /// The next one in the same bucket.
    next: u32,
}

impl Place {
    pub(super) fn new(start: i64, weight: u32) -> Self {
        Self { start, weight, next: NONE }
    }
}

/// The next turn of each endpoint that was pushed, by the moment that lies `after` its start.
#[derive(Default)]
pub(super) struct Queue {
    after: i64,
    /// Turns of the buckets before `bound`.
    near: BinaryHeap<Turn>,
    /// The first endpoint of each bucket from `bound` on; a later round of the wheel shares its buckets.
    wheel: Box<[u32]>,
    bound: i64,
    /// Turns on the wheel.
    far: usize,
    /// Buckets to the tick.
    rate: f64,
}

impl Queue {
    /// For some endpoints, of which `rate` have a turn in each tick.
    pub(super) fn new(after: i64, endpoints: usize, rate: f64) -> Self {
        let buckets = (endpoints / WIDTH).next_power_of_two();
        // All in one bucket if they are few.
        let rate = if buckets > 1 { rate / WIDTH as f64 } else { 0.0 };
        Self { after, wheel: vec![NONE; buckets].into(), rate, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.near.is_empty() && self.far == 0
    }

    #[inline]
    pub(super) fn push(&mut self, index: u32, places: &mut [Place]) {
        let Some(place) = places.get_mut(index as usize) else { return };
        let turn = Turn { at: place.start + self.after, weight: place.weight, index };
        let bucket = turn.bucket(self.rate);
        if bucket < self.bound {
            self.near.push(turn);
        } else {
            self.far += 1;
            self.chain(bucket, index, place);
        }
    }

    #[inline]
    fn chain(&mut self, bucket: i64, index: u32, place: &mut Place) {
        let mask = self.wheel.len() - 1;
        if let Some(head) = self.wheel.get_mut(bucket as usize & mask) {
            place.next = mem::replace(head, index);
        }
    }

    /// The earliest turn.
    #[inline]
    pub(super) fn peek(&mut self, places: &mut [Place]) -> Option<Turn> {
        if self.near.is_empty() && self.far > 0 {
            self.approach(places);
        }
        self.near.peek().copied()
    }

    /// Takes the turn that was peeked away.
    #[inline]
    pub(super) fn pop(&mut self) {
        self.near.pop();
    }

    /// The same as `pop` and `push` of the endpoint that was peeked.
    #[inline]
    pub(super) fn again(&mut self, places: &mut [Place]) {
        let Some(mut top) = self.near.peek_mut() else { return };
        let Some(place) = places.get_mut(top.index as usize) else { return };
        let turn = Turn { at: place.start + self.after, ..*top };
        let bucket = turn.bucket(self.rate);
        if bucket < self.bound {
            *top = turn;
        } else {
            PeekMut::pop(top);
            self.far += 1;
            self.chain(bucket, turn.index, place);
        }
    }

    /// Moves the turns of the first bucket that is not empty off the wheel.
    fn approach(&mut self, places: &mut [Place]) {
        let mask = self.wheel.len() - 1;
        let mut near = mem::take(&mut self.near).into_vec();
        let (mut looked, mut nearest) = (0, i64::MAX);
        while near.is_empty() {
            let bucket = self.bound;
            let Some(head) = self.wheel.get_mut(bucket as usize & mask) else { break };
            let mut next = mem::replace(head, NONE);
            while let Some(place) = places.get_mut(next as usize) {
                let turn = Turn { at: place.start + self.after, weight: place.weight, index: next };
                let own = turn.bucket(self.rate);
                let index = mem::replace(&mut next, place.next);
                if own == bucket {
                    near.push(turn);
                } else {
                    nearest = nearest.min(own);
                    self.chain(own, index, place);
                }
            }
            self.bound = bucket.saturating_add(1);
            looked += 1;
            if looked > mask && near.is_empty() {
                // Nothing in this round: on to the round of the nearest, however many lie between.
                (self.bound, looked, nearest) = (nearest, 0, i64::MAX);
            }
        }
        self.far -= near.len();
        self.near = near.into();
    }
}

/// A turn in a queue, `at/weight` ticks after the base. The greatest is the earliest, since std's heap is a
/// max-heap.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    pub(super) at: i64,
    pub(super) weight: u32,
    pub(super) index: u32,
}

impl Turn {
    #[inline]
    fn bucket(self, rate: f64) -> i64 {
        (self.at as f64 / f64::from(self.weight) * rate) as i64
    }
}

impl Ord for Turn {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        let mine = i128::from(self.at) * i128::from(other.weight);
        let others = i128::from(other.at) * i128::from(self.weight);
        others.cmp(&mine).then_with(|| other.index.cmp(&self.index))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Turn {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Turn {}

/// No endpoint.
const NONE: u32 = u32::MAX;

/// Slots to a bucket.
const WIDTH: usize = 32;
