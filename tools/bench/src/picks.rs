//! Cost of a pick, for every policy alone and below the whole tree, and the cost of passes and schedule
//! rebuilds that keep picks cheap.
//!
//! Timed are picks, and picks with the ends of their calls, relative to a bare atomic addition. Rounds of the
//! three alternate, and ratios to the adjacent round count, so that other load of the machine affects all.
//! Between rounds a second passes in the core's virtual time, in which schedules are maintained as in a
//! channel. Allocations are counted, not timed.

mod harness;
mod passes;
mod rebuild;

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) use self::harness::{POLICIES, PickHarness, Picks, Policy, Tree};
pub(crate) use self::rebuild::one_replaced;
use crate::Error;
use crate::common::allocator::Totals;
use crate::spread::Spread;
use crate::table::Table;
use crate::thresholds::{Measured, Threshold, ThresholdResult};

/// Measure the cost of a pick, for every policy and for the whole tree, and the cost of passes and rebuilds.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Numbers of endpoints, one row each.
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000,10000")]
    sizes: Vec<usize>,
    /// Number of rounds. Picks and additions alternate.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Number of picks per thread and round.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    picks: u64,
}

pub(crate) fn run(args: &Args) -> Result<Measured, Error> {
    let (alone, _) = picks(Tree::Alone, args)?;
    let (whole, PickThresholds { additions, allocations }) = picks(Tree::Whole, args)?;
    let what = "a pick through the whole tree";
    let thresholds = vec![
        ThresholdResult::new(format!("{what}, in atomic additions"), Threshold::AtMost(40.0), additions),
        ThresholdResult::figure(
            format!("{what}, allocations, of the most expensive policy"),
            Threshold::AtMost(1.0),
            Some(allocations),
        ),
    ];
    let tables = vec![alone, whole, passes::table(args)?, rebuild::table(args)?];
    Ok(Measured { thresholds, ..Measured::tables(tables) })
}

/// Figures that have a threshold.
#[derive(Default)]
struct PickThresholds {
    /// Ratio of weighted_round_robin to additions, with the fewest endpoints and one thread.
    additions: Option<(f64, String)>,
    /// Maximum number of allocations of any kind.
    allocations: f64,
}

fn picks(tree: Tree, args: &Args) -> Result<(Table, PickThresholds), Error> {
    let title = match tree {
        Tree::Alone => "A pick of a policy alone",
        Tree::Whole => "A pick through the whole tree",
    };
    let columns = [
        "policy",
        "endpoints",
        "a pick, ns",
        "a pick, additions",
        "with its end, ns",
        "with its end, additions",
        "2 threads, ns",
        "2 threads, additions",
        "allocations",
    ];
    let mut table = Table::new(title, &columns).note(format!(
        "A pick, and a pick with the end of its call, which is reported to all trackers; as time (median) and as a multiple of a \
         bare atomic addition in the same round (median, quartiles). On one thread, and with its end on two. {} rounds of {} \
         picks.",
        args.rounds, args.picks
    ));
    let mut thresholds = PickThresholds::default();
    for policy in POLICIES {
        for &n in &args.sizes {
            let mut harness = PickHarness::new(policy, tree, n, 2 * args.picks)?;
            let [one, two] = [1, 2].map(|threads| timed(&mut harness, threads, args));
            let (one, two) = (one?, two?);
            let allocations = allocations(&mut harness, args.picks)?;
            let alone = alone(&mut harness, args)?;
            if policy.name == "weighted_round_robin" && thresholds.additions.is_none() {
                thresholds.additions = Some((alone.ratio.median, format!("{:.1}", alone.ratio)));
            }
            thresholds.allocations = thresholds.allocations.max(allocations);
            table.row(vec![
                policy.name.to_owned(),
                n.to_string(),
                format!("{:.1}", alone.time),
                format!("{:.1}", alone.ratio),
                format!("{:.1}", one.time),
                format!("{:.1}", one.ratio),
                format!("{:.1}", two.time),
                format!("{:.1}", two.ratio),
                format!("{allocations:.2}"),
            ]);
        }
    }
    Ok((table, thresholds))
}

struct Figure {
    /// Time of one pick in ns, on its thread.
    time: f64,
    /// Ratio to an addition.
    ratio: Spread,
}

/// Times picks alone. Their calls end while the clock is stopped.
fn alone(harness: &mut PickHarness, args: &Args) -> Result<Figure, Error> {
    let counter = Padded(AtomicU64::new(0));
    let (mut times, mut ratios) = (Vec::new(), Vec::new());
    let mut held = Vec::with_capacity(HELD as usize);
    for round in 0..=args.rounds {
        harness.a_second_later();
        let picker = harness.picker();
        let mut spent = Duration::ZERO;
        for first in (0..args.picks).step_by(HELD as usize) {
            let last = args.picks.min(first + HELD);
            let start = Instant::now();
            held.extend((first..last).map(|i| picker.begin(i)));
            spent += start.elapsed();
            if !held.drain(..).all(|pick| picker.end(pick)) {
                return Err("a pick found no connected endpoint".into());
            }
        }
        let add = add(1, args.picks, &counter)?;
        if round > 0 {
            times.push(spent.as_secs_f64() * 1e9 / args.picks as f64);
            ratios.push(spent.as_secs_f64() / add.as_secs_f64());
        }
    }
    Figure::of(times, ratios)
}

/// Number of picks before their calls end: few enough for the first-level cache, and enough to hide the cost
/// of the clock.
const HELD: u64 = 64;

fn timed(harness: &mut PickHarness, threads: u64, args: &Args) -> Result<Figure, Error> {
    let counter = Padded(AtomicU64::new(0));
    let (mut times, mut ratios) = (Vec::new(), Vec::new());
    // The first round is not counted: schedules only learn their usage.
    for round in 0..=args.rounds {
        harness.a_second_later();
        let picker = harness.picker();
        let pick = pass(threads, args.picks, |i| picker.pick(i))?;
        let add = add(threads, args.picks, &counter)?;
        if round > 0 {
            times.push(pick.as_secs_f64() * 1e9 / args.picks as f64);
            ratios.push(pick.as_secs_f64() / add.as_secs_f64());
        }
    }
    Figure::of(times, ratios)
}

impl Figure {
    fn of(times: Vec<f64>, ratios: Vec<f64>) -> Result<Figure, Error> {
        let [time, ratio] = [times, ratios].map(|figures| Spread::of(figures).ok_or("no rounds"));
        Ok(Figure { time: time?.median, ratio: ratio? })
    }
}

fn allocations(harness: &mut PickHarness, picks: u64) -> Result<f64, Error> {
    harness.a_second_later();
    let picker = harness.picker();
    let (before, _) = Totals::now();
    pass(1, picks, |i| picker.pick(i))?;
    let (after, _) = Totals::now();
    Ok((after - before) as f64 / picks as f64)
}

/// Counter in its own cache lines.
#[repr(align(128))]
struct Padded(AtomicU64);

/// Makes additions, the unit of the figures.
fn add(threads: u64, n: u64, counter: &Padded) -> Result<Duration, Error> {
    pass(threads, n, |_| {
        black_box(counter.0.fetch_add(1, Ordering::Relaxed));
        true
    })
}

/// Returns the time of the slowest thread for `n` repetitions. A failed repetition makes the pass an error.
fn pass(threads: u64, n: u64, work: impl Fn(u64) -> bool + Sync) -> Result<Duration, Error> {
    let timed = |from: u64| {
        let start = Instant::now();
        let mut good = true;
        for i in from..from + n {
            good &= work(i);
        }
        if good { Ok(start.elapsed()) } else { Err("a pick found no connected endpoint") }
    };
    if threads == 1 {
        return Ok(timed(0)?);
    }
    let ready = AtomicUsize::new(0);
    let (ready, timed) = (&ready, &timed);
    thread::scope(|scope| {
        let start = |thread: u64| {
            scope.spawn(move || {
                ready.fetch_add(1, Ordering::SeqCst);
                while ready.load(Ordering::SeqCst) < threads as usize {
                    spin_loop();
                }
                timed(thread * n)
            })
        };
        let started: Vec<_> = (0..threads).map(start).collect();
        let mut slowest = Duration::ZERO;
        for thread in started {
            slowest = slowest.max(thread.join().map_err(|_| "a thread of picks panicked")??);
        }
        Ok(slowest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The suite runs with small sizes.
    #[test]
    fn every_policy_is_picked_from_alone_and_below_the_whole_tree() {
        let Measured { tables, thresholds, .. } =
            run(&Args { sizes: vec![3, 10], rounds: 2, picks: 50 }).expect("the suite runs");
        assert_eq!(thresholds.len(), 2);
        let text = |i: usize| tables[i].text();
        assert_eq!(tables.len(), 4);
        for policy in POLICIES {
            for i in [0, 1] {
                assert_eq!(text(i).matches(&format!("\n{} ", policy.name)).count(), 2, "{}", text(i));
            }
        }
        assert!(text(2).contains("passes"), "{}", text(2));
        assert!(text(3).contains("mix"), "{}", text(3));
    }

    /// A failed pick must not be timed.
    #[test]
    fn a_pass_of_failed_picks_is_an_error() {
        for threads in [1, 2] {
            assert!(pass(threads, 10, |i| i != 7).is_err());
            assert!(pass(threads, 10, |_| true).is_ok());
        }
    }
}
