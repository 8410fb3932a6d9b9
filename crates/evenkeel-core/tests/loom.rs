//! Loom model of the scheduler's cell. Under every interleaving of a few threads no pick is lost, repeated or
//! invented.
//!
//! The model compiles the crate's source file with the atomics and the lock of loom, with blocks of one or
//! two slots.

#[expect(dead_code, reason = "the model draws; rebuilding is tested where there is something to rebuild")]
#[path = "../src/schedule/cell.rs"]
mod cell;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use loom::sync::{Mutex, MutexGuard};
    pub(crate) use std::sync::PoisonError;

    use loom::sync::atomic::AtomicBool;

    /// `OnceLock` of std with a flag that loom tracks. A reader that did not synchronise with the writer
    /// finds it empty.
    pub(crate) struct OnceLock<T> {
        is_set: AtomicBool,
        value: std::sync::OnceLock<T>,
    }

    impl<T> OnceLock<T> {
        pub(crate) fn new() -> Self {
            Self { is_set: AtomicBool::new(false), value: std::sync::OnceLock::new() }
        }

        pub(crate) fn get(&self) -> Option<&T> {
            if self.is_set.load(Ordering::Acquire) { self.value.get() } else { None }
        }

        pub(crate) fn get_or_init(&self, init: impl FnOnce() -> T) -> &T {
            let value = self.value.get_or_init(init);
            self.is_set.store(true, Ordering::Release);
            value
        }
    }
}

use loom::sync::Arc;
use loom::thread;

use cell::{ScheduleCell, SlotSource};

/// Source that yields 0, 1, 2, …
struct Count(u32);

impl SlotSource for Count {
    fn next(&mut self) -> u32 {
        self.0 += 1;
        self.0 - 1
    }
}

/// Configuration of the cell; `ready` slots are produced before the threads start.
#[derive(Clone, Copy)]
struct Run {
    slots: usize,
    cyclic: bool,
    start: usize,
    ready: usize,
}

impl Run {
    fn open(slots: usize) -> Self {
        Self { slots, cyclic: false, start: 0, ready: 0 }
    }

    fn cyclic(slots: usize) -> Self {
        Self { cyclic: true, ..Self::open(slots) }
    }

    fn start(self, start: usize) -> Self {
        Self { start, ..self }
    }

    fn ready(self, ready: usize) -> Self {
        Self { ready, ..self }
    }
}

/// Lets threads draw `picks` times each; the main thread is the first of them. Checks that together they drew
/// `want` and that the next pick is `then`. `bound` is the maximum number of preemptions; `None` explores
/// every interleaving.
fn check<const BLOCK: usize>(
    bound: Option<usize>,
    Run { slots, cyclic, start, ready }: Run,
    picks: &'static [usize],
    want: &'static [u32],
    then: u32,
) {
    explore(bound, move || {
        let cell = Arc::new(ScheduleCell::<_, BLOCK>::new(Count(0), slots, cyclic, start));
        cell.prefill(ready);
        let draw =
            |cell: &ScheduleCell<Count, BLOCK>, n: usize| (0..n).map(|_| cell.pick()).collect::<Vec<_>>();
        let others: Vec<_> = picks[1..]
            .iter()
            .map(|&n| {
                let cell = Arc::clone(&cell);
                thread::spawn(move || draw(&cell, n))
            })
            .collect();
        let mut got = draw(&cell, picks[0]);
        got.extend(others.into_iter().flat_map(|other| other.join().expect("no panic")));
        got.sort_unstable();
        assert_eq!(got, want);
        assert_eq!(cell.pick(), then);
        cell.inspect(|source, progress| {
            let taken = progress.laps * slots as u64 + progress.taken as u64 + progress.tail;
            assert_eq!(taken, (start + picks.iter().sum::<usize>() + 1) as u64);
            assert!(u64::from(source.0) >= progress.produced as u64);
        });
    });
}

/// EDF-11: three threads draw once each, in every interleaving. One takes the last slot of a block, and two
/// find the next block missing.
#[test]
fn three_threads_cross_a_block() {
    check::<2>(None, Run::open(4).start(1).ready(2), &[1, 1, 1], &[1, 2, 3], 4);
}

/// EDF-11, WRR-12: three threads draw once each across the end of a lap, in every interleaving. Covers laps
/// that are only partly produced and laps of one slot.
#[test]
fn three_threads_cross_a_lap() {
    check::<2>(None, Run::cyclic(2).start(1).ready(2), &[1, 1, 1], &[0, 1, 1], 0);
    check::<1>(None, Run::cyclic(2).ready(1), &[1, 1, 1], &[0, 0, 1], 1);
    check::<1>(None, Run::cyclic(1).ready(1), &[1, 1, 1], &[0; 3], 0);
}

/// EDF-11: three threads draw across the ends of blocks that are not produced yet.
#[test]
fn blocks_are_drawn_once() {
    check::<2>(BOUND, Run::open(8), &[2, 2, 1], &[0, 1, 2, 3, 4], 5);
    check::<2>(None, Run::open(8).start(1), &[2, 1], &[1, 2, 3], 4);
}

/// EDF-11, WRR-12: three threads draw across the end of a lap, so that several pass it at once.
#[test]
fn laps_are_drawn_once() {
    check::<2>(BOUND, Run::cyclic(3).start(1), &[2, 1, 2], &[0, 1, 1, 2, 2], 0);
    check::<2>(None, Run::cyclic(2).start(1), &[2, 1], &[0, 1, 1], 0);
}

/// EDF-11: with a lap of one slot, every pick ends the lap.
#[test]
fn the_shortest_lap_is_drawn_in_full() {
    check::<2>(BOUND, Run::cyclic(1), &[2, 2, 1], &[0; 5], 0);
}

/// EDF-11, WRR-12: three threads draw across the end of an open run into its tail.
#[test]
fn the_tail_continues_after_the_run() {
    check::<2>(BOUND, Run::open(3).start(1), &[2, 1, 2], &[1, 2, 3, 4, 5], 6);
}

/// EDF-11: one thread produces slots ahead while others draw.
#[test]
fn producing_ahead_does_not_disturb() {
    explore(BOUND, || {
        let cell = Arc::new(ScheduleCell::<_, 2>::new(Count(0), 4, true, 0));
        let ahead = Arc::clone(&cell);
        let ahead = thread::spawn(move || ahead.prefill(4));
        let other = Arc::clone(&cell);
        let other = thread::spawn(move || [other.pick(), other.pick()]);
        let mut got = vec![cell.pick(), cell.pick()];
        got.extend(other.join().expect("no panic"));
        ahead.join().expect("no panic");
        got.sort_unstable();
        assert_eq!(got, [0, 1, 2, 3]);
    });
}

/// Runs one model at a time. In parallel, models would only wait for each other in the kernel.
fn explore(bound: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(sync::PoisonError::into_inner);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = bound;
    builder.check(model);
}

/// Maximum number of preemptions where three threads have too many interleavings. According to loom, two find
/// most faults.
const BOUND: Option<usize> = Some(2);
