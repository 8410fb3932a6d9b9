//! The scheduler's cell under every interleaving of a few threads: no pick is lost, repeated or out of thin
//! air.
//!
//! The same source file as in the crate, over loom's atomics and lock, with blocks of two slots.

#[expect(dead_code, reason = "the model draws; rebuilding is tested where there is something to rebuild")]
#[path = "../src/schedule/cell.rs"]
mod cell;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use loom::sync::{Mutex, MutexGuard};
    pub(crate) use std::sync::PoisonError;

    use loom::sync::atomic::AtomicBool;

    /// std's, seen by loom through a flag: a reader that did not synchronise with the writer finds it empty.
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

use cell::{Cell, Source};

/// 0, 1, 2, …
struct Count(u32);

impl Source for Count {
    fn next(&mut self) -> u32 {
        self.0 += 1;
        self.0 - 1
    }
}

/// Lets threads draw `picks` times each; the main thread is the first of them. Then checks that together
/// they got `want`, and that the next pick is `then`. Two threads are explored to the end, three up to two
/// preemptions, as loom advises.
fn check(slots: usize, cyclic: bool, start: usize, picks: &'static [usize], want: &'static [u32], then: u32) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = if picks.len() == 2 { None } else { Some(2) };
    model.check(move || {
        let cell = Arc::new(Cell::<_, 2>::new(Count(0), slots, cyclic, start));
        let draw = |cell: &Cell<Count, 2>, n: usize| (0..n).map(|_| cell.pick()).collect::<Vec<_>>();
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

/// EDF-11: three threads across the ends of blocks that are not there yet.
#[test]
fn blocks_are_drawn_once() {
    check(8, false, 0, &[2, 2, 1], &[0, 1, 2, 3, 4], 5);
    check(8, false, 1, &[2, 1], &[1, 2, 3], 4);
}

/// EDF-11, WRR-12: three threads across the end of a lap, so that several are past it at once.
#[test]
fn laps_are_drawn_once() {
    check(3, true, 1, &[2, 1, 2], &[0, 1, 1, 2, 2], 0);
    check(2, true, 1, &[2, 1], &[0, 1, 1], 0);
}

/// EDF-11: a lap of one slot, where every pick ends it.
#[test]
fn the_shortest_lap_is_drawn_in_full() {
    check(1, true, 0, &[2, 2, 1], &[0; 5], 0);
}

/// EDF-11, WRR-12: three threads across the end of an open run into its tail.
#[test]
fn the_tail_goes_on_where_the_run_ends() {
    check(3, false, 1, &[2, 1, 2], &[1, 2, 3, 4, 5], 6);
}

/// EDF-11: producing ahead while others draw.
#[test]
fn producing_ahead_does_not_disturb() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let cell = Arc::new(Cell::<_, 2>::new(Count(0), 4, true, 0));
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
