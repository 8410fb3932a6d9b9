//! Cost of a pass of the whole tree: without changes, with one changed endpoint, and with all endpoints
//! replaced.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::Args;
use super::harness::{PickHarness, Policy, Tree};
use crate::Error;
use crate::spread::Spread;
use crate::table::Table;

/// Number of idle passes per measurement. A single one is too short for the clock.
const IDLE: u32 = 1_000;

pub(super) fn table(args: &Args) -> Result<Table, Error> {
    let columns =
        ["endpoints", "idle", "one lost", "one lost, ns per endpoint", "one replaced", "all replaced"];
    let mut table = Table::new("Passes over the whole tree, us", &columns).note(format!(
        "weighted_round_robin; median of {} passes. One lost: a connection ends. Replaced: an update has another endpoint. \
         All three rebuild the schedule.",
        args.rounds
    ));
    for &n in &args.sizes {
        let mut harness = PickHarness::new(Policy::named("weighted_round_robin")?, Tree::Whole, n, 1)?;
        let idle = median(args.rounds, || {
            let start = Instant::now();
            for _ in 0..IDLE {
                harness.reconcile();
            }
            start.elapsed() / IDLE
        })?;
        let lost = median(args.rounds, || {
            let lost = timed(|| {
                harness.lose_one();
                harness.reconcile();
            });
            harness.connect();
            lost
        })?;
        let mut generation = 0;
        let replaced = median(args.rounds, || {
            generation += 1;
            replace(&mut harness, 0, Some(1 + generation % 2))
        })?;
        let all = median(args.rounds, || {
            generation += 1;
            replace(&mut harness, 3 + generation % 2, None)
        })?;
        let each = lost * 1e3 / n as f64;
        let figures = [format!("{idle:.2}"), format!("{lost:.1}"), format!("{each:.1}")];
        let updates = [replaced, all].map(|figure| format!("{figure:.1}"));
        table.row([n.to_string()].into_iter().chain(figures).chain(updates).collect());
    }
    Ok(table)
}

fn replace(harness: &mut PickHarness, all: usize, one: Option<usize>) -> Duration {
    let update = harness.next(all, one);
    let took = timed(|| {
        harness.update(update);
        harness.reconcile();
    });
    harness.connect();
    took
}

fn timed<R>(work: impl FnOnce() -> R) -> Duration {
    let start = Instant::now();
    black_box(work());
    start.elapsed()
}

/// Returns the median in us.
fn median(rounds: u32, mut measure: impl FnMut() -> Duration) -> Result<f64, Error> {
    let figures = (0..rounds).map(|_| measure().as_secs_f64() * 1e6).collect();
    Ok(Spread::of(figures).ok_or("no rounds")?.median)
}
