//! What a pick and a rebuild cost, as ratios to an atomic addition and to a heap build in the same process.
//!
//! `cargo bench -p evenkeel-core --bench schedule`. Passes of picks and of bare additions alternate, since the machine is
//! shared; a figure is the median. Open schedules are succeeded when they are worn and filled ahead between
//! the passes, as a policy does on its timer.

#[path = "../tests/sets/mod.rs"]
mod sets;

use std::collections::BinaryHeap;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_core::schedule::{Rule, Schedule};
use sets::{Lcg, SETS};

const SIZES: [u32; 4] = [10, 100, 1_000, 10_000];
const RULES: [Rule; 2] = [Rule::Literal, Rule::Eligible];
const PASSES: usize = 40;

fn main() {
    println!("pick: ns (ratio to a bare addition), medians; produced: ns per slot");
    println!("{:9} {:5} {:>6} {:>14} {:>14} {:>9}", "rule", "set", "n", "1 thread", "2 threads", "produced");
    for rule in RULES {
        let (mut fastest, mut slowest) = (f64::MAX, 0.0_f64);
        for (name, set) in SETS {
            for n in SIZES {
                let weights = set(n);
                let (one, add) = picks(&weights, rule, 1);
                let (two, contended) = picks(&weights, rule, 2);
                fastest = fastest.min(one.best);
                slowest = slowest.max(one.best);
                let produced = production(&weights, rule);
                println!(
                    "{:9} {name:5} {n:6} {:6.2} ({:5.2}) {:6.1} ({:5.2}) {produced:9.0}",
                    format!("{rule:?}"),
                    one.median,
                    one.median / add.median,
                    two.median,
                    two.median / contended.median,
                );
            }
        }
        println!("{rule:?}: slowest set / fastest set at one thread, best passes {:.2}", slowest / fastest);
    }
    println!("rebuild: us (ratio to BinaryHeap::from over as many keys), best");
    for rule in RULES {
        for (name, set) in SETS {
            for n in SIZES {
                rebuild(name, &set(n), rule);
            }
        }
    }
}

/// What a pick and an addition cost, in ns, with some threads at it.
fn picks(weights: &[u32], rule: Rule, threads: usize) -> (Figure, Figure) {
    let identity: Vec<_> = (0..weights.len() as u32).map(Some).collect();
    let mut schedule = Schedule::new(weights, rule).expect("weights");
    let counter = Padded(AtomicU64::new(0));
    // Two threads need longer passes: they do not start at the same moment.
    let n: u64 = if threads == 1 { 20_000 } else { 150_000 };
    let (mut picks, mut adds) = (Vec::new(), Vec::new());
    for _ in 0..PASSES {
        schedule.prefill();
        picks.push(pass(threads, n, || {
            black_box(schedule.pick());
        }));
        adds.push(pass(threads, n, || {
            black_box(counter.0.fetch_add(1, Ordering::Relaxed));
        }));
        // Also at the start, when the schedule does not know how much will be used.
        if schedule.is_worn() || picks.len() == 1 {
            schedule = schedule.succeed(weights, schedule.rule(), &identity).expect("weights");
        }
    }
    let figure = |mut passes: Vec<Duration>| {
        passes.sort_unstable();
        let each = |pass: Duration| pass.as_secs_f64() * 1e9 / (n * threads as u64) as f64;
        Figure { best: each(passes[0]), median: each(passes[passes.len() / 2]) }
    };
    (figure(picks), figure(adds))
}

struct Figure {
    best: f64,
    median: f64,
}

#[repr(align(128))]
struct Padded(AtomicU64);

fn pass(threads: usize, n: u64, work: impl Fn() + Sync) -> Duration {
    let timed = || {
        let start = Instant::now();
        for _ in 0..n {
            work();
        }
        start.elapsed()
    };
    if threads == 1 {
        return timed();
    }
    let ready = AtomicUsize::new(0);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    ready.fetch_add(1, Ordering::SeqCst);
                    while ready.load(Ordering::SeqCst) < threads {
                        spin_loop();
                    }
                    timed()
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("no panic")).max().unwrap_or_default()
    })
}

fn production(weights: &[u32], rule: Rule) -> f64 {
    let schedule = Schedule::new(weights, rule).expect("weights");
    let start = Instant::now();
    let slots = 4_096;
    for _ in 0..slots {
        black_box(schedule.pick());
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(slots)
}

/// A rebuild of a schedule in use, with every weight changed by up to a tenth, against a bare heap build.
fn rebuild(name: &str, base: &[u32], rule: Rule) {
    let n = base.len();
    let identity: Vec<_> = (0..n as u32).map(Some).collect();
    let mut random = Lcg(5);
    let keys: Vec<_> = (0..n as u32).map(|i| (random.below(1 << 40), i)).collect();
    let (mut heap, mut fresh, mut kept, mut changed) =
        (Duration::MAX, Duration::MAX, Duration::MAX, Duration::MAX);
    let mut schedule = Schedule::new(base, rule).expect("weights");
    for _ in 0..40 {
        schedule.prefill();
        for _ in 0..1_000 {
            black_box(schedule.pick());
        }
        let copy = keys.clone();
        heap = heap.min(time(|| BinaryHeap::from(copy)));
        fresh = fresh.min(time(|| Schedule::new(base, rule)));
        kept = kept.min(time(|| schedule.succeed(base, schedule.rule(), &identity)));
        let next: Vec<_> = base.iter().map(|&w| w * (900 + random.below(201) as u32)).collect();
        changed = changed.min(time(|| schedule.succeed(&next, schedule.rule(), &identity)));
        schedule = schedule.succeed(&next, schedule.rule(), &identity).expect("weights");
    }
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let ratio = |time: Duration| us(time) / us(heap);
    println!(
        "{:9} {name:5} {n:6} heap {:6.2} new {:6.2} ({:.2}) same {:6.2} ({:.2}) changed {:6.2} ({:.2})",
        format!("{rule:?}"),
        us(heap),
        us(fresh),
        ratio(fresh),
        us(kept),
        ratio(kept),
        us(changed),
        ratio(changed),
    );
}

fn time<R>(work: impl FnOnce() -> R) -> Duration {
    let start = Instant::now();
    let result = black_box(work());
    let elapsed = start.elapsed();
    drop(result);
    elapsed
}
