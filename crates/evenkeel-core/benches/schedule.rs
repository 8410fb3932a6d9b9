//! What a pick, a rebuild and the order ahead cost, beside an atomic addition and a heap build in the same process.
//!
//! `cargo bench -p evenkeel-core --bench schedule`. The machine may be shared, so that what is compared
//! alternates and medians or best passes are reported:
//!
//! - *pick*: ns, the median pass; in brackets the ratio to bare additions, each pass of picks divided by the
//!   pass of additions right after it, and of these ratios the median. A round in which two threads happen
//!   not to contend has both parts fast and does not distort it. Open schedules are succeeded when they are worn and
//!   filled ahead between the passes, as a policy does on its timer.
//! - *slot*: ns for each slot produced, over the blocks after the first. *block*: us for the longest pick that
//!   produced one of these; *first*: for the very first pick, which builds the queues as well.
//! - *rebuild*: us, best of the rounds. `succeed` takes over from a schedule in use, `first` is what is built
//!   before the first slot: the first pick, which produces a block, less the next pick that does. The two ratios
//!   are those of their sum to `BinaryHeap::from` over as many `(u64, u32)` keys, first with other keys in each
//!   round, as the weights are, then with the same keys over and over, whose branches the processor learns by
//!   heart. `changed`: every weight by up to a tenth; `gone`: one endpoint left; `same`: nothing changed, where
//!   the first pick of a tabled period also produces the slots before the place reached; `new`: from nothing.
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
    println!("pick: ns (ratio to a bare addition); slot: ns each; block, first: us, the longest picks");
    println!("rule      set        n       1 thread      2 threads     slot    block    first");
    for rule in RULES {
        let (mut fastest, mut slowest) = (f64::MAX, 0.0_f64);
        for (name, set) in SETS {
            for n in SIZES {
                let weights = set(n);
                let one = picks(&weights, rule, 1);
                let two = picks(&weights, rule, 2);
                fastest = fastest.min(one.best);
                slowest = slowest.max(one.best);
                let Production { slot, block, first } = production(&weights, rule);
                println!(
                    "{:9} {name:5} {n:6} {:6.2} ({:5.2}) {:6.1} ({:5.2}) {slot:8.0} {block:8.0} {first:8.0}",
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
    println!(
        "rebuild: us, succeed + first = sum (ratios of the sum to BinaryHeap::from, other and same keys)"
    );
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

struct Production {
    slot: f64,
    block: f64,
    first: f64,
}

/// Over the blocks of a round of all endpoints and more. The best of a few passes, since others interrupt.
fn production(weights: &[u32], rule: Rule) -> Production {
    // So that short periods are not tabled and every block is produced.
    let open: Vec<_> = weights.iter().zip(0..).map(|(&w, i)| w * 65_537 + u32::from(i == 0)).collect();
    let mut best = Production { slot: f64::MAX, block: f64::MAX, first: f64::MAX };
    for _ in 0..10 {
        let schedule = Schedule::new(&open, rule).expect("weights");
        let first = block(&schedule).as_secs_f64();
        let blocks: Vec<_> = (0..24).map(|_| block(&schedule).as_secs_f64()).collect();
        let slots = f64::from(BLOCK) * blocks.len() as f64;
        best.slot = best.slot.min(blocks.iter().sum::<f64>() * 1e9 / slots);
        best.block = best.block.min(blocks.into_iter().fold(0.0, f64::max) * 1e6);
        best.first = best.first.min(first * 1e6);
    }
    best
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
    let learnt = (0..100)
        .map(|_| keys.clone())
        .map(|keys| us(time(|| BinaryHeap::from(keys))))
        .fold(f64::MAX, f64::min);
    let mut heap = f64::MAX;
    let mut parts = [Rebuild::default(); 4];
    let mut schedule = Schedule::new(base, rule).expect("weights");
    for _ in 0..40 {
        schedule.prefill();
        for _ in 0..1_000 {
            black_box(schedule.pick());
        }
        let keys: Vec<_> = (0..n as u32).map(|i| (random.below(1 << 40), i)).collect();
        heap = heap.min(us(time(|| BinaryHeap::from(keys))));
        let now = schedule.weights().to_vec();
        let next: Vec<_> = base.iter().map(|&w| w * (900 + random.below(201) as u32)).collect();
        let gone = random.below(n as u64) as usize;
        let without = |i: &usize| *i != gone;
        let from: Vec<_> = (0..n).filter(without).map(|i| Some(i as u32)).collect();
        let rest: Vec<_> = (0..n).filter(without).map(|i| now[i]).collect();
        parts[0].measure(|| schedule.succeed(&next, rule, &identity));
        parts[1].measure(|| schedule.succeed(&rest, rule, &from));
        parts[2].measure(|| schedule.succeed(&now, rule, &identity));
        parts[3].measure(|| Schedule::new(&next, rule));
        schedule = schedule.succeed(&next, rule, &identity).expect("weights");
    }
    print!("{:9} {name:5} {n:6} heap {heap:6.2} {learnt:6.2}", format!("{rule:?}"));
    for (what, Rebuild { succeed, first, second }) in
        ["changed", "gone", "same", "new"].into_iter().zip(parts)
    {
        let first = (first - second).max(0.0);
        let sum = succeed + first;
        print!("  {what} {succeed:5.1} +{first:6.1} ={sum:6.1} ({:.2}, {:.2})", sum / heap, sum / learnt);
    }
    println!();
}

/// The best times, in us, for a rebuild and for the picks that produce the first two blocks.
#[derive(Clone, Copy)]
struct Rebuild {
    succeed: f64,
    first: f64,
    second: f64,
}

impl Default for Rebuild {
    fn default() -> Self {
        Self { succeed: f64::MAX, first: f64::MAX, second: f64::MAX }
    }
}

impl Rebuild {
    fn measure(&mut self, work: impl FnOnce() -> Option<Schedule>) {
        let start = Instant::now();
        let next = black_box(work());
        self.succeed = self.succeed.min(us(start.elapsed()));
        let next = next.expect("weights");
        self.first = self.first.min(us(block(&next)));
        self.second = self.second.min(us(block(&next)));
    }
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn time<R>(work: impl FnOnce() -> R) -> Duration {
    let start = Instant::now();
    let result = black_box(work());
    let elapsed = start.elapsed();
    drop(result);
    elapsed
}
