//! The schedule alone: cost of a pick and of a rebuild, relative to a heap of as many keys built in the same
//! round.
//!
//! A rebuild has two parts: the takeover from the current schedule, and the work of the first pick before its
//! first slot, which computes a block of slots. Later blocks do not count. Rounds of all kinds alternate.

use std::collections::BinaryHeap;
use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use evenkeel_core::schedule::{Schedule, ScheduleRule};

use super::{Args, Padded, add, pass};
use crate::Error;
use crate::spread::Spread;
use crate::table::Table;

/// Slots per block; the scheduler's own number.
const BLOCK: u32 = 512;

/// Function that returns weights for a number of endpoints.
type Weights = fn(u32) -> Vec<u32>;

/// Varied small weights, and the worst case: one endpoint has half of the total.
const SETS: [(&str, Weights); 2] = [("mix", mix), ("half", half)];
const RULES: [(&str, ScheduleRule); 2] =
    [("edf", ScheduleRule::Literal), ("weighted_round_robin", ScheduleRule::Eligible)];

pub(super) fn table(args: &Args) -> Result<Table, Error> {
    let columns = [
        "order",
        "weights",
        "endpoints",
        "all changed",
        "to a heap",
        "one gone",
        "nothing changed",
        "from nothing",
        "a slot, ns",
        "a pick, additions",
        "2 threads",
    ];
    let mut table = Table::new("The order: making it anew, us, and a pick from it", &columns).note(format!(
        "Median of {} rounds; to a heap: all changed, as a multiple of BinaryHeap::from of the same size (median, quartiles). \
         mix: weights from 1 to 100; half: one endpoint has half of the weight. A slot: each precomputed pick. \
         A pick: as a multiple of a bare atomic addition in the same round (median).",
        args.rounds
    ));
    for (order, rule) in RULES {
        for (name, weights) in SETS {
            for &n in &args.sizes {
                let weights = weights(u32::try_from(n)?);
                let figures = rebuild(&weights, rule, args.rounds)?;
                let [one, two] = [1, 2].map(|threads| pick(&weights, rule, threads, args));
                let picks = [one?, two?].map(|ratio| format!("{ratio:.2}"));
                let [changed, gone, same, new] = figures.us.map(|figure| format!("{figure:.1}"));
                let (heap, slot) = (format!("{:.1}", figures.to_heap), format!("{:.0}", figures.slot));
                let names = [order.to_owned(), name.to_owned(), n.to_string()];
                table.row(
                    names.into_iter().chain([changed, heap, gone, same, new, slot]).chain(picks).collect(),
                );
            }
        }
    }
    Ok(table)
}

/// Returns the cost of a pick from the schedule, in additions.
fn pick(weights: &[u32], rule: ScheduleRule, threads: u64, args: &Args) -> Result<f64, Error> {
    let identity: Vec<_> = (0..weights.len() as u32).map(Some).collect();
    let mut schedule = Schedule::new(weights, rule).ok_or("no order of these weights")?;
    let counter = Padded(AtomicU64::new(0));
    let mut ratios = Vec::new();
    for round in 0..=args.rounds {
        schedule.prefill();
        let picks = pass(threads, args.picks, |_| {
            black_box(schedule.pick());
            true
        })?;
        let additions = add(threads, args.picks, &counter)?;
        // In the first round the schedule learns its usage. Later rounds maintain it, as a policy does on its
        // timer.
        if round > 0 {
            ratios.push(picks.as_secs_f64() / additions.as_secs_f64());
        }
        if round == 0 || schedule.is_depleted() {
            schedule = schedule.successor(weights, rule, &identity).ok_or("no order of these weights")?;
        }
    }
    Ok(Spread::of(ratios).ok_or("no rounds")?.median)
}

struct Figures {
    /// Times in us: all changed, one removed, nothing changed, from scratch.
    us: [f64; 4],
    to_heap: Spread,
    slot: f64,
}

fn rebuild(base: &[u32], rule: ScheduleRule, rounds: u32) -> Result<Figures, Error> {
    let n = base.len();
    let identity: Vec<_> = (0..n as u32).map(Some).collect();
    let mut random = Lcg(5);
    let (mut us, mut to_heap, mut slots) = ([const { Vec::new() }; 4], Vec::new(), Vec::new());
    let mut schedule = Schedule::new(base, rule).ok_or("no order of these weights")?;
    for _ in 0..rounds {
        schedule.prefill();
        for _ in 0..1_000 {
            black_box(schedule.pick());
        }
        let keys: Vec<_> = (0..n as u32).map(|i| (random.below(1 << 40), i)).collect();
        let start = Instant::now();
        let heap = black_box(BinaryHeap::from(keys));
        let heap_took = start.elapsed();
        drop(heap);
        let now = schedule.weights().to_vec();
        // Each changes by up to 10 %.
        let next: Vec<_> = base.iter().map(|&w| w * (900 + random.below(201) as u32)).collect();
        let gone = random.below(n as u64) as usize;
        let without = |i: &usize| *i != gone || n == 1;
        let from: Vec<_> = (0..n).filter(without).map(|i| Some(i as u32)).collect();
        let rest: Vec<_> = (0..n).filter(without).map(|i| now[i]).collect();
        let changed = Rebuild::of(|| schedule.successor(&next, rule, &identity))?;
        to_heap.push(changed.took.as_secs_f64() / heap_took.as_secs_f64());
        slots.push(changed.block.as_secs_f64() * 1e9 / f64::from(BLOCK));
        let others = [
            Rebuild::of(|| schedule.successor(&rest, rule, &from))?,
            Rebuild::of(|| schedule.successor(&now, rule, &identity))?,
            Rebuild::of(|| Schedule::new(&next, rule))?,
        ];
        for (figures, one) in us.iter_mut().zip([changed].into_iter().chain(others)) {
            figures.push(one.took.as_secs_f64() * 1e6);
        }
        schedule = schedule.successor(&next, rule, &identity).ok_or("no order of these weights")?;
    }
    let median = |figures| Spread::of(figures).map_or(f64::NAN, |spread| spread.median);
    let to_heap = Spread::of(to_heap).ok_or("no rounds")?;
    Ok(Figures { us: us.map(median), to_heap, slot: median(slots) })
}

/// Returns the cost of a rebuild when one of `n` endpoints of equal weight is replaced: the median in us.
pub(crate) fn one_replaced(n: usize, rounds: u32) -> Result<f64, Error> {
    let weights = vec![1; n];
    let mut from: Vec<_> = (0..n as u32).map(Some).collect();
    if let Some(one) = from.get_mut(n / 2) {
        *one = None;
    }
    let schedule = Schedule::new(&weights, ScheduleRule::Literal).ok_or("no order of these weights")?;
    let figures: Result<Vec<_>, Error> = (0..rounds)
        .map(|_| {
            Ok(Rebuild::of(|| schedule.successor(&weights, ScheduleRule::Literal, &from))?.took.as_secs_f64()
                * 1e6)
        })
        .collect();
    Ok(Spread::of(figures?).ok_or("no rounds")?.median)
}

struct Rebuild {
    took: Duration,
    /// Time of a block after the first.
    block: Duration,
}

impl Rebuild {
    fn of(work: impl FnOnce() -> Option<Schedule>) -> Result<Rebuild, Error> {
        let start = Instant::now();
        let next = black_box(work());
        let succeeded = start.elapsed();
        let next = next.ok_or("no order of these weights")?;
        let [first, second] = [block(&next), block(&next)];
        Ok(Rebuild { took: succeeded + first.saturating_sub(second), block: second })
    }
}

/// Times a pick that computes a block. The picks that use it up are not timed.
fn block(schedule: &Schedule) -> Duration {
    let start = Instant::now();
    black_box(schedule.pick());
    let took = start.elapsed();
    for _ in 1..BLOCK {
        black_box(schedule.pick());
    }
    took
}

fn mix(n: u32) -> Vec<u32> {
    let mut random = Lcg(7);
    (0..n).map(|_| 1 + random.below(100) as u32).collect()
}

fn half(n: u32) -> Vec<u32> {
    (0..n).map(|i| if i == 0 { n.saturating_sub(1).max(1) } else { 1 }).collect()
}

/// Generator with a fixed seed: the same weights in every run.
struct Lcg(u64);

impl Lcg {
    /// Returns a number below `bound`, which must not be 0.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_endpoint_has_half_of_all_weights() {
        for n in [2, 10, 1_000] {
            let weights = half(n);
            assert_eq!(weights[0], weights[1..].iter().sum::<u32>());
        }
        assert_eq!(half(1), [1]);
        assert!(mix(1_000).iter().all(|weight| (1..=100).contains(weight)));
    }
}
