//! What a pick, a rebuild and the order ahead cost, beside an atomic addition and a heap build in the same process.
//!
//! `cargo bench -p evenkeel-core --bench schedule`. The machine may be shared, so that what is compared
//! alternates and medians or best passes are reported:
//!
//! - *pick*: ns, the median pass; in brackets the ratio to bare additions, each pass of picks divided by the
//!   pass of additions right after it, and of these ratios the median. A round in which two threads happen
//!   not to contend has both parts fast and does not distort it. Open schedules are succeeded when they are worn and
//!   filled ahead between the passes, as a policy does on its timer.
//! - *slot*: ns for each slot produced, over blocks after the first. *worst*: the longest pick that produced one.
//! - *rebuild*: us, best of the rounds. `succeed` takes over from a schedule in use, `first` is what is built
//!   before the first slot: the first pick, which produces a block, less the next pick that does. The ratio
//!   is that of their sum to `BinaryHeap::from` over as many 16-byte keys. `changed`: every weight by up to a
//!   tenth; `gone`: one endpoint left; `same`: nothing changed; `new`: from nothing.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark reads the clock and has threads"
)]

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
    let quick = std::env::var_os("QUICK").is_some();
    println!("pick: ns (ratio to a bare addition); slot: ns each; worst: us for a block");
    println!("rule      set        n       1 thread      2 threads     slot    worst");
    for rule in RULES {
        let (mut fastest, mut slowest) = (f64::MAX, 0.0_f64);
        for (name, set) in SETS {
            for n in SIZES {
                let weights = set(n);
                if quick {
                    let (s, w) = production(&weights, rule);
                    println!("{:9} {name:5} {n:6} {s:8.0} {w:8.0}", format!("{rule:?}"));
                    continue;
                }
                let one = picks(&weights, rule, 1);
                let two = picks(&weights, rule, 2);
                fastest = fastest.min(one.best);
                slowest = slowest.max(one.best);
                let (slot, worst) = production(&weights, rule);
                println!(
                    "{:9} {name:5} {n:6} {:6.2} ({:5.2}) {:6.1} ({:5.2}) {slot:8.0} {worst:8.0}",
                    format!("{rule:?}"),
                    one.median,
                    one.ratio,
                    two.median,
                    two.ratio,
                );
            }
        }
        println!("{rule:?}: slowest set / fastest set at one thread, best passes {:.2}", slowest / fastest);
    }
    println!("rebuild: us, succeed + first = sum (ratio of the sum to BinaryHeap::from)");
    for rule in RULES {
        for (name, set) in SETS {
            for n in SIZES {
                rebuild(name, &set(n), rule);
            }
        }
    }
}

/// What a pick costs, in ns, with some threads at it.
fn picks(weights: &[u32], rule: Rule, threads: usize) -> Figure {
    let identity: Vec<_> = (0..weights.len() as u32).map(Some).collect();
    let mut schedule = Schedule::new(weights, rule).expect("weights");
    let counter = Padded(AtomicU64::new(0));
    // Two threads need longer passes: they do not start at the same moment.
    let n: u64 = if threads == 1 { 20_000 } else { 150_000 };
    let (mut passes, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..PASSES {
        schedule.prefill();
        let pick = pass(threads, n, || {
            black_box(schedule.pick());
        });
        let add = pass(threads, n, || {
            black_box(counter.0.fetch_add(1, Ordering::Relaxed));
        });
        passes.push(pick.as_secs_f64() * 1e9 / (n * threads as u64) as f64);
        ratios.push(pick.as_secs_f64() / add.as_secs_f64());
        // Also at the start, when the schedule does not know how much will be used.
        if schedule.is_worn() || passes.len() == 1 {
            schedule = schedule.succeed(weights, schedule.rule(), &identity).expect("weights");
        }
    }
    let best = passes.iter().copied().fold(f64::MAX, f64::min);
    Figure { best, median: median(passes), ratio: median(ratios) }
}

struct Figure {
    best: f64,
    median: f64,
    /// To an addition, the median over the rounds.
    ratio: f64,
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
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

/// Slots at once; the scheduler's own number.
const BLOCK: u32 = 512;

/// ns for each slot, and the longest pick in us, over the blocks of one round of all endpoints. Both are the
/// best of a few rounds, since others interrupt.
fn production(weights: &[u32], rule: Rule) -> (f64, f64) {
    let (mut slot, mut worst) = (f64::MAX, f64::MAX);
    for _ in 0..5 {
        // A prime times the weights, so that short periods are not tabled and all blocks are produced.
        let open: Vec<_> = weights.iter().enumerate().map(|(i, &w)| w * 65_537 + u32::from(i == 0)).collect();
        let schedule = Schedule::new(&open, rule).expect("weights");
        let blocks: Vec<_> = (0..24).map(|_| block(&schedule)).collect();
        let produced = blocks[1..].iter().sum::<Duration>();
        slot = slot.min(produced.as_secs_f64() * 1e9 / f64::from(23 * BLOCK));
        worst = worst.min(blocks.into_iter().max().unwrap_or_default().as_secs_f64() * 1e6);
    }
    (slot, worst)
}

/// A pick that produces a block, and the picks that use it up.
fn block(schedule: &Schedule) -> Duration {
    let elapsed = time(|| schedule.pick());
    for _ in 1..BLOCK {
        black_box(schedule.pick());
    }
    elapsed
}

/// Rebuilds of a schedule in use against a bare heap build.
fn rebuild(name: &str, base: &[u32], rule: Rule) {
    let n = base.len();
    let identity: Vec<_> = (0..n as u32).map(Some).collect();
    let mut random = Lcg(5);
    let keys: Vec<_> = (0..n as u32).map(|i| (random.below(1 << 40), i)).collect();
    let mut heap = Duration::MAX;
    let mut parts = [(Duration::MAX, Duration::MAX); 4];
    let mut schedule = Schedule::new(base, rule).expect("weights");
    for _ in 0..40 {
        schedule.prefill();
        for _ in 0..1_000 {
            black_box(schedule.pick());
        }
        let copy = keys.clone();
        heap = heap.min(time(|| BinaryHeap::from(copy)));
        let now = schedule.weights().to_vec();
        let next: Vec<_> = base.iter().map(|&w| w * (900 + random.below(201) as u32)).collect();
        let gone = random.below(n as u64) as usize;
        let without = |i: &usize| *i != gone;
        let from: Vec<_> = (0..n).filter(without).map(|i| Some(i as u32)).collect();
        let rest: Vec<_> = (0..n).filter(without).map(|i| now[i]).collect();
        measure(&mut parts[0], || schedule.succeed(&next, rule, &identity));
        measure(&mut parts[1], || schedule.succeed(&rest, rule, &from));
        measure(&mut parts[2], || schedule.succeed(&now, rule, &identity));
        measure(&mut parts[3], || Schedule::new(&next, rule));
        schedule = schedule.succeed(&next, rule, &identity).expect("weights");
    }
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    print!("{:9} {name:5} {n:6} heap {:6.2}", format!("{rule:?}"), us(heap));
    for (what, (succeed, first)) in ["changed", "gone", "same", "new"].into_iter().zip(parts) {
        let sum = us(succeed) + us(first);
        print!("  {what} {:5.1} +{:6.1} ={:6.1} ({:.2})", us(succeed), us(first), sum, sum / us(heap));
    }
    println!();
}

/// Keeps the best of a rebuild and of what its first slot takes besides a block.
fn measure((succeed, first): &mut (Duration, Duration), work: impl FnOnce() -> Option<Schedule>) {
    let start = Instant::now();
    let next = black_box(work());
    *succeed = start.elapsed().min(*succeed);
    let next = next.expect("weights");
    let (one, other) = (block(&next), block(&next));
    *first = one.saturating_sub(other).min(*first);
}

fn time<R>(work: impl FnOnce() -> R) -> Duration {
    let start = Instant::now();
    let result = black_box(work());
    let elapsed = start.elapsed();
    drop(result);
    elapsed
}
