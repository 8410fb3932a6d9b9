//! The exact scheduler: its order, its guarantees about shares, and the state that a rebuild carries over.
#![expect(clippy::disallowed_methods, reason = "the picks of several threads are compared with those of one")]

mod sets;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::thread;

use evenkeel_core::schedule::{Schedule, ScheduleRule, scale};
use proptest::prelude::*;
use sets::{Lcg, SETS, half, mix, tri};

const RULES: [ScheduleRule; 2] = [ScheduleRule::Literal, ScheduleRule::Eligible];

fn schedule(weights: &[u32], rule: ScheduleRule) -> Schedule {
    Schedule::new(weights, rule).expect("some weights")
}

fn take(schedule: &Schedule, n: usize) -> Vec<usize> {
    (0..n).map(|_| schedule.pick()).collect()
}

/// Picks as letters, where the first endpoint is `a`.
fn letters(schedule: &Schedule, n: usize) -> String {
    take(schedule, n).into_iter().map(|i| char::from(b'a' + i as u8)).collect()
}

fn tally(picks: &[usize], n: usize) -> Vec<u64> {
    let mut counts = vec![0; n];
    for &i in picks {
        counts[i] += 1;
    }
    counts
}

fn identity(n: usize) -> Vec<Option<u32>> {
    (0..n as u32).map(Some).collect()
}

fn sum(weights: &[u32]) -> u64 {
    weights.iter().map(|&w| u64::from(w)).sum()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Length of a period: the sum of the weights divided by their greatest common divisor.
fn period(weights: &[u32]) -> usize {
    let divisor = weights.iter().fold(0, |g, &w| gcd(g, u64::from(w)));
    (sum(weights) / divisor) as usize
}

/// The literal rule as grpc/proposal#202 defines it: deadlines (k + 1) / w as exact fractions, and a scan for
/// the least.
struct Reference {
    /// Index, number of picks, weight.
    entries: Vec<(usize, u64, u64)>,
}

impl Reference {
    fn new(weights: &[u32]) -> Self {
        Self { entries: weights.iter().enumerate().map(|(i, &w)| (i, 0, u64::from(w))).collect() }
    }

    fn pick(&mut self) -> usize {
        let least = self.entries.iter_mut().min_by(|one, other| {
            let left = u128::from(one.1 + 1) * u128::from(other.2);
            left.cmp(&(u128::from(other.1 + 1) * u128::from(one.2))).then(one.0.cmp(&other.0))
        });
        let entry = least.expect("some endpoint");
        entry.1 += 1;
        entry.0
    }

    fn take(&mut self, n: usize) -> Vec<usize> {
        (0..n).map(|_| self.pick()).collect()
    }
}

/// Order of the literal rule, computed with a heap for many endpoints.
fn heap_order(weights: &[u32], n: usize) -> Vec<usize> {
    /// Index, number of the next pick (from 1), weight.
    #[derive(PartialEq, Eq)]
    struct Deadline(usize, u64, u32);
    impl Ord for Deadline {
        fn cmp(&self, other: &Self) -> std::cmp::Ordering {
            let left = u128::from(self.1) * u128::from(other.2);
            left.cmp(&(u128::from(other.1) * u128::from(self.2))).then(self.0.cmp(&other.0))
        }
    }
    impl PartialOrd for Deadline {
        fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
            Some(self.cmp(other))
        }
    }
    let mut heap: BinaryHeap<_> =
        weights.iter().enumerate().map(|(i, &w)| Reverse(Deadline(i, 1, w))).collect();
    let mut next = || {
        let mut top = heap.peek_mut().expect("some endpoint");
        top.0.1 += 1;
        top.0.0
    };
    (0..n).map(|_| next()).collect()
}

/// Reference for the eligible rule. Among the turns that start before the end of a slot, it picks the one
/// with the earliest deadline. It scans exact fractions of a cycle.
fn eligible_order(weights: &[u32], n: usize) -> Vec<usize> {
    let total = u128::from(sum(weights));
    let mut turns = vec![0_u128; weights.len()];
    let next = |slot: usize| {
        let weight = |i: usize| u128::from(weights[i]);
        let started = (0..weights.len()).filter(|&i| turns[i] * total < (slot as u128 + 1) * weight(i));
        let least = started
            .min_by(|&i, &j| ((turns[i] + 1) * weight(j)).cmp(&((turns[j] + 1) * weight(i))).then(i.cmp(&j)));
        let i = least.expect("some turn has started");
        turns[i] += 1;
        i
    };
    (0..n).map(next).collect()
}

/// Large weight sets: with ties, without ties, with extreme weights, and with all of these.
fn large_sets() -> Vec<Vec<u32>> {
    let mut random = Lcg(13);
    let mut drawn =
        |n: u32, weight: fn(&mut Lcg) -> u32| -> Vec<u32> { (0..n).map(|_| weight(&mut random)).collect() };
    vec![
        drawn(10_000, |random| 1 + random.below(1 << 20) as u32),
        drawn(10_000, |random| u32::MAX - random.below(3) as u32),
        drawn(10_000, |random| if random.below(10) == 0 { u32::MAX } else { 1 + random.below(7) as u32 }),
        drawn(9_000, |random| 1 << random.below(32)),
        drawn(10_000, |random| if random.below(5_000) == 0 { 1 << 30 } else { 3 }),
        mix(10_000),
        tri(10_000),
        half(10_000),
        drawn(65, |random| 1 + random.below(1 << 31) as u32),
        drawn(300, |random| (1 + random.below(1 << 31) as u32) >> random.below(31))
            .into_iter()
            .map(|w| w.max(1))
            .collect(),
    ]
}

/// Largest distance of any endpoint from its exact share on any prefix, in picks. An endpoint is furthest
/// ahead right after a pick. It is furthest behind right before a pick, or at the end.
fn deviation(weights: &[u32], picks: &[usize]) -> f64 {
    let total = i128::from(sum(weights));
    let mut counts = vec![0_i128; weights.len()];
    let mut worst = 0;
    let mut measure = |count: i128, slot: usize, weight: u32| {
        worst = worst.max((count * total - slot as i128 * i128::from(weight)).abs());
    };
    for (slot, &i) in picks.iter().enumerate() {
        measure(counts[i], slot, weights[i]);
        counts[i] += 1;
        measure(counts[i], slot + 1, weights[i]);
    }
    for (&count, &weight) in counts.iter().zip(weights) {
        measure(count, picks.len(), weight);
    }
    worst as f64 / total as f64
}

/// EDF-1, EDF-4: both rules give the two pick sequences of the proposal.
#[test]
fn the_sequences_of_the_proposal() {
    for rule in RULES {
        assert_eq!(letters(&schedule(&[2, 4], rule), 14), "babbabbabbabba");
        assert_eq!(letters(&schedule(&[2, 2], rule), 28), "ab".repeat(14));
    }
}

/// EDF-3, EDF-4: equal deadlines that `f64` arithmetic would not find equal go to the first endpoint of the
/// list.
#[test]
fn ties_go_to_the_first_in_the_list() {
    assert_eq!(letters(&schedule(&[1, 2, 3], ScheduleRule::Literal), 14), "cbcabccbcabccb");
    assert_eq!(letters(&schedule(&[1, 10], ScheduleRule::Literal), 12), "bbbbbbbbbabb");
    assert_eq!(letters(&schedule(&[10, 1], ScheduleRule::Literal), 12), "aaaaaaaaaaba");
}

/// EDF-2: equal weights give a strict rotation in list order.
#[test]
fn equal_weights_rotate_in_list_order() {
    for rule in RULES {
        for (n, weight) in [(1, 1), (3, 1), (7, 5), (100, u32::MAX)] {
            let picks = take(&schedule(&vec![weight; n], rule), 10 * n + 3);
            assert!(picks.iter().enumerate().all(|(slot, &i)| i == slot % n), "{n} of {weight}: {picks:?}");
        }
        // More endpoints than a table may have slots.
        let n = 70_000;
        let picks = take(&schedule(&vec![3; n], rule), 2 * n + 3);
        assert!(picks.iter().enumerate().all(|(slot, &i)| i == slot % n));
    }
}

#[test]
fn no_weights_make_no_schedule() {
    for rule in RULES {
        assert!(Schedule::new(&[], rule).is_none());
        assert!(schedule(&[1, 2], rule).successor(&[], rule, &[]).is_none());
    }
}

/// EDF-5: zero weights are rejected by xDS validation; the scheduler treats a zero as 1.
#[test]
fn weight_zero_counts_as_one() {
    for rule in RULES {
        let zero = schedule(&[0, 3, 0], rule);
        assert_eq!(zero.weights(), [1, 3, 1]);
        assert_eq!(take(&zero, 50), take(&schedule(&[1, 3, 1], rule), 50));
    }
}

/// WRR-16: a schedule of a single endpoint is not needed, but it works.
#[test]
fn a_single_endpoint_gets_everything() {
    for rule in RULES {
        let only = schedule(&[u32::MAX], rule).at_random_phase(u64::MAX);
        assert_eq!(take(&only, 2_000), vec![0; 2_000]);
        assert_eq!(only.picks(), [2_000]);
    }
}

/// EDF-6: every window of one period contains each endpoint exactly by its weight.
#[test]
fn every_window_is_exact() {
    for rule in RULES {
        for weights in
            [vec![2, 4], vec![6, 10, 15], vec![1, 10], mix(20), half(30), tri(12), vec![3, 70_000, 5]]
        {
            let picks = take(&schedule(&weights, rule), 3 * period(&weights));
            assert_windows(&weights, &picks);
        }
    }
}

fn assert_windows(weights: &[u32], picks: &[usize]) {
    let period = period(weights);
    let divisor = sum(weights) / period as u64;
    let want: Vec<_> = weights.iter().map(|&w| u64::from(w) / divisor).collect();
    let mut counts = tally(&picks[..period], weights.len());
    assert_eq!(counts, want);
    // Sliding the window by one keeps the counts if and only if the same endpoint leaves and enters it.
    for (slot, &entering) in picks.iter().enumerate().skip(period) {
        counts[picks[slot - period]] -= 1;
        counts[entering] += 1;
        assert_eq!(entering, picks[slot - period], "at {slot} of {weights:?}");
    }
    assert_eq!(counts, want);
}

/// EDF-6: windows are exact after a billion picks and more. The test computes that state instead of picking
/// so often.
#[test]
fn windows_are_exact_far_out() {
    let weights = [1_000_003, 2_000_029, 500_009, 7];
    let mut random = Lcg(1);
    for _ in 0..5 {
        let place = random.below(1 << 31) << 33;
        let far = schedule(&weights, ScheduleRule::Literal).at_random_phase(place);
        let picks = take(&far, 50_000);
        let mut reference = Reference::new(&weights);
        // Bring the reference to the same position. The turns before it follow from the moment at which it
        // starts.
        let nth = ((u128::from(place) * u128::from(sum(&weights))) >> 64) as u64;
        let (mut latest, mut turn) = (0, nth);
        while turn >= u64::from(weights[latest]) {
            turn -= u64::from(weights[latest]);
            latest += 1;
        }
        let (due, of) = (u128::from(turn + 1), u128::from(weights[latest]));
        // 10^9 laps of the whole cycle before that position.
        for (i, entry) in reference.entries.iter_mut().enumerate() {
            let weight = u128::from(weights[i]);
            let mut turns = due * weight / of;
            if due * weight % of == 0 && i > latest {
                turns -= 1;
            }
            entry.1 = (turns + 1_000_000_000 * weight) as u64;
        }
        assert_eq!(picks, reference.take(50_000));
    }
}

/// EDF-6, EDF-11: the sequence continues across the end of a lap, however large the counter.
#[test]
fn laps_repeat_without_a_seam() {
    for rule in RULES {
        let weights = mix(30);
        let lapped = schedule(&weights, rule);
        let first = take(&lapped, period(&weights));
        for _ in 0..200 {
            assert_eq!(take(&lapped, period(&weights)), first);
        }
        let want: Vec<_> = tally(&first, 30).iter().map(|count| count * 201).collect();
        assert_eq!(lapped.picks(), want);
    }
}

/// EDF-7: the first pick after a change follows the new weights.
#[test]
fn a_weight_change_acts_on_the_next_pick() {
    for rule in RULES {
        let before = schedule(&[1, 1], rule);
        assert_eq!(letters(&before, 4), "abab");
        let after = before.successor(&[1, 1_000_000], before.rule(), &identity(2)).expect("two endpoints");
        assert_eq!(letters(&after, 3), "bbb");
        let counts = tally(&take(&after, 997), 2);
        assert!(counts[0] <= 1, "{counts:?}");
    }
}

/// EDF-8: if one endpoint is removed, the others keep their exact order, ties included.
#[test]
fn remaining_endpoints_keep_their_order() {
    let weights = [1, 2, 3, 2, 1, 6, 3];
    for gone in 0..weights.len() {
        for done in 0..40 {
            let before = schedule(&weights, ScheduleRule::Literal);
            take(&before, done);
            let stay: Vec<_> = (0..weights.len()).filter(|&i| i != gone).collect();
            let from: Vec<_> = stay.iter().map(|&i| Some(i as u32)).collect();
            let kept: Vec<_> = stay.iter().map(|&i| weights[i]).collect();
            let after = before.successor(&kept, before.rule(), &from).expect("six endpoints");
            let after: Vec<_> = take(&after, 100).into_iter().map(|i| stay[i]).collect();
            let want: Vec<_> = take(&before, 300).into_iter().filter(|&i| i != gone).take(100).collect();
            assert_eq!(after, want, "without {gone} after {done}");
        }
    }
}

/// EDF-8: a rotation from which one endpoint was removed continues at its position.
#[test]
fn a_rotation_continues_at_its_position() {
    for rule in RULES {
        let before = schedule(&[5; 4], rule);
        assert_eq!(letters(&before, 5), "abcda");
        let after =
            before.successor(&[5; 3], before.rule(), &[Some(0), Some(2), Some(3)]).expect("three endpoints");
        assert_eq!(letters(&after, 6), "bcabca");
    }
}

/// WRR-12: a rebuild without changes continues the same sequence, wherever it happens.
#[test]
fn a_rebuild_without_changes_changes_nothing() {
    for rule in RULES {
        for weights in [vec![1, 2, 3], mix(50), half(50), tri(9), vec![7; 5], vec![70_001, 3, 90_000, 12_345]]
        {
            let whole = take(&schedule(&weights, rule), 5_000);
            let mut random = Lcg(3);
            let mut now = schedule(&weights, rule);
            let mut picks = Vec::new();
            while picks.len() < whole.len() {
                picks.extend(take(&now, random.below(40) as usize));
                if random.below(2) == 0 {
                    now.prefill();
                }
                now = now.successor(&weights, now.rule(), &identity(weights.len())).expect("same endpoints");
            }
            assert_eq!(picks[..whole.len()], whole, "{rule:?} {weights:?}");
            assert_eq!(now.picks(), tally(&picks, weights.len()));
        }
    }
}

/// WRR-11: every endpoint is within one pick of its share on every prefix, and exact after a period.
#[test]
fn eligible_orders_are_within_one_pick() {
    for (name, set) in SETS {
        for n in [2, 10, 100, 1_000] {
            let weights = set(n);
            let picks = take(&schedule(&weights, ScheduleRule::Eligible), 100_000);
            let worst = deviation(&weights, &picks);
            assert!(worst < 1.0, "{name} {n}: {worst}");
            if period(&weights) <= picks.len() {
                assert_windows(&weights, &picks);
            }
        }
    }
}

/// WRR-11: no burst is longer than the share needs.
#[test]
fn eligible_orders_do_not_burst() {
    let picks = take(&schedule(&half(100), ScheduleRule::Eligible), 19_800);
    assert!(picks.windows(3).all(|three| three != [0, 0, 0]));
    assert_eq!(tally(&picks, 100)[0], 9_900);
    // The literal rule does burst; that is specified.
    assert_eq!(take(&schedule(&half(100), ScheduleRule::Literal), 98), vec![0; 98]);
}

/// WRR-12: weights that change at every rebuild do not let any endpoint drift from its share.
#[test]
fn jittering_weights_do_not_drift() {
    assert_jitter(&tri(100), 100);
    assert_jitter(&mix(1_000), 100);
    assert_jitter(&half(1_000), 1_000);
}

fn assert_jitter(base: &[u32], picks: usize) {
    let mut random = Lcg(11);
    let mut now = schedule(base, ScheduleRule::Eligible);
    let (mut share, mut count) = (vec![0.0; base.len()], vec![0.0_f64; base.len()]);
    let mut worst = 0.0_f64;
    for _ in 0..2_000 {
        let weights: Vec<_> = base.iter().map(|&w| w * (900 + random.below(201) as u32)).collect();
        now = now.successor(&weights, now.rule(), &identity(base.len())).expect("same endpoints");
        let total = sum(&weights) as f64;
        for slot in 0..picks {
            let i = now.pick();
            let each = f64::from(weights[i]) / total;
            worst = worst.max((share[i] + slot as f64 * each - count[i]).abs());
            count[i] += 1.0;
            worst = worst.max((share[i] + (slot + 1) as f64 * each - count[i]).abs());
        }
        for (i, &w) in weights.iter().enumerate() {
            share[i] += picks as f64 * f64::from(w) / total;
            worst = worst.max((share[i] - count[i]).abs());
        }
    }
    assert!(worst <= 1.5, "{worst}");
}

/// WRR-10, WRR-12: endpoints that are added and removed do not leave another endpoint behind its share for
/// long.
#[test]
fn churn_keeps_the_shares() {
    for rule in RULES {
        let mut random = Lcg(5);
        let mut now = schedule(&mix(50), rule);
        for round in 0..500 {
            let mut weights = now.weights().to_vec();
            let mut from = identity(weights.len());
            let gone = random.below(weights.len() as u64) as usize;
            weights.remove(gone);
            from.remove(gone);
            if round % 3 != 0 || weights.len() < 10 {
                let at = random.below(weights.len() as u64 + 1) as usize;
                weights.insert(at, 1 + random.below(100) as u32);
                from.insert(at, None);
                weights.push(1 + random.below(100) as u32);
            }
            now = now.successor(&weights, now.rule(), &from).expect("some endpoints");
            let picks = take(&now, 500);
            if rule == ScheduleRule::Eligible {
                let worst = deviation(&weights, &picks);
                assert!(worst < 2.5, "round {round}: {worst}");
            }
        }
        // A carried-over order has the same period as a fresh one.
        let weights = now.weights().to_vec();
        assert_windows(&weights, &take(&now, 3 * period(&weights)));
    }
}

/// WRR-10: a schedule that has a successor still picks.
#[test]
fn the_old_schedule_still_picks() {
    let old = schedule(&[1, 2, 3], ScheduleRule::Literal);
    take(&old, 4);
    let new = old.successor(&[1, 2, 3], old.rule(), &identity(3)).expect("three endpoints");
    assert_eq!(take(&old, 50), take(&new, 50));
}

/// EDF-7: a changed weight keeps the elapsed fraction of a turn.
#[test]
fn a_changed_weight_keeps_the_waited_part() {
    // `a` has waited 9/10 of its turn when its weight falls to a tenth. A tenth of the longer turn remains.
    let before = schedule(&[100, 1_000], ScheduleRule::Literal);
    assert_eq!(letters(&before, 9), "bbbbbbbbb");
    let after = before.successor(&[10, 1_000], before.rule(), &identity(2)).expect("two endpoints");
    let picks = letters(&after, 120);
    assert_eq!(picks.find('a'), Some(9));
    assert_eq!(picks[10..].find('a'), Some(100));
}

/// EDF-8: a new endpoint waits one whole turn, also in a sequence that has run for long.
#[test]
fn a_new_endpoint_starts_level() {
    for rule in RULES {
        let before = schedule(&[1, 1], rule);
        take(&before, 10_000);
        let after =
            before.successor(&[1, 1, 1], before.rule(), &[Some(0), Some(1), None]).expect("three endpoints");
        assert_eq!(letters(&after, 6), "abcabc");
        assert_eq!(after.picks(), [5_002, 5_002, 2]);
    }
}

/// EDF-11, WRR-11: the picks of any number of threads together are the sequence.
#[test]
fn threads_share_one_order() {
    for rule in RULES {
        for weights in [vec![2, 4], mix(40), vec![70_001, 3, 90_000]] {
            for threads in [1, 4, 16] {
                let shared = Arc::new(schedule(&weights, rule));
                let each = 160_000 / threads;
                let workers: Vec<_> = (0..threads)
                    .map(|_| {
                        let shared = Arc::clone(&shared);
                        thread::spawn(move || take(&shared, each))
                    })
                    .collect();
                let picks: Vec<_> = workers.into_iter().flat_map(|w| w.join().expect("no panic")).collect();
                let alone = schedule(&weights, rule);
                let want = tally(&take(&alone, each * threads), weights.len());
                assert_eq!(tally(&picks, weights.len()), want, "{rule:?} {threads} threads");
                assert_eq!(shared.picks(), want);
                assert_eq!(take(&shared, 100), take(&alone, 100));
            }
        }
    }
}

/// EDF-12: 1,000 endpoints with weights near 2^32 do not overflow.
#[test]
fn the_largest_weights_do_not_overflow() {
    let weights: Vec<_> = (0..1_000).map(|i| u32::MAX - i).collect();
    for rule in RULES {
        let large = schedule(&weights, rule);
        let picks = take(&large, 20_000);
        if rule == ScheduleRule::Literal {
            assert_eq!(picks[..5_000], Reference::new(&weights).take(5_000));
        }
        assert!(deviation(&weights, &picks) < 2.0);
        let mut now = large.at_random_phase(u64::MAX);
        for _ in 0..20 {
            now = now.successor(&weights, now.rule(), &identity(1_000)).expect("same endpoints");
            let picks = take(&now, 1_000);
            assert!(tally(&picks, 1_000).iter().all(|&count| count <= 2));
        }
    }
    let uneven = schedule(&[u32::MAX, 1], ScheduleRule::Eligible);
    assert_eq!(tally(&take(&uneven, 1_000), 2)[0], 1_000);
}

/// EDF-3, EDF-4, EDF-12: ten thousand endpoints are picked in the order of a heap over exact fractions.
#[test]
fn large_literal_orders_equal_a_heap() {
    for weights in large_sets() {
        let picks = take(&schedule(&weights, ScheduleRule::Literal), 30_000);
        assert!(picks == heap_order(&weights, 30_000), "{:?}…", &weights[..8]);
    }
}

/// WRR-11: large sets are picked in the order of a scan.
#[test]
fn large_eligible_orders_equal_a_scan() {
    for weights in large_sets() {
        let weights = &weights[..weights.len().min(1_500)];
        let picks = take(&schedule(weights, ScheduleRule::Eligible), 3_000);
        assert!(picks == eligible_order(weights, 3_000), "{:?}…", &weights[..8]);
    }
}

/// EDF-8, WRR-12: with ten thousand endpoints the order continues across rebuilds and without removed
/// endpoints.
#[test]
fn large_orders_are_carried_over() {
    for rule in RULES {
        for weights in large_sets() {
            let n = weights.len();
            let whole = schedule(&weights, rule);
            let mut now = schedule(&weights, rule);
            for done in [0, 1, n / 3, 700, n, 5] {
                assert!(take(&now, done) == take(&whole, done), "{rule:?} {:?}…", &weights[..8]);
                now = now.successor(&weights, rule, &identity(n)).expect("same endpoints");
            }
            assert_eq!(now.picks(), whole.picks());
            if rule == ScheduleRule::Literal {
                let stay: Vec<_> = (0..n).filter(|i| i % 3 != 1).collect();
                let kept: Vec<_> = stay.iter().map(|&i| weights[i]).collect();
                let from: Vec<_> = stay.iter().map(|&i| Some(i as u32)).collect();
                let after = now.successor(&kept, rule, &from).expect("some stay");
                let after: Vec<_> = take(&after, n).into_iter().map(|i| stay[i]).collect();
                let want: Vec<_> = take(&whole, 4 * n).into_iter().filter(|i| i % 3 != 1).take(n).collect();
                assert!(after[..want.len()] == want, "{:?}…", &weights[..8]);
            }
        }
    }
}

/// EDF-12: once an endpoint had a million turns, the scheduler rebases its time. The order does not change.
#[test]
fn the_base_of_time_moves_along() {
    let weights = [4_000_000_007, 3, 1_000_000_000, 65_537];
    let n = 4_000_000;
    for rule in RULES {
        let long = schedule(&weights, rule);
        let picks = take(&long, n);
        let want = if rule == ScheduleRule::Literal {
            heap_order(&weights, n + 50)
        } else {
            eligible_order(&weights, n + 50)
        };
        assert!(picks == want[..n], "{rule:?}");
        assert_eq!(long.picks(), tally(&picks, 4));
        let next = long.successor(&weights, rule, &identity(4)).expect("same endpoints");
        assert_eq!(take(&next, 50), want[n..]);
    }
}

/// WRR-12: a long order continues after its run is depleted, first in the tail and then in successors.
#[test]
fn depleted_runs_are_exact() {
    let weights = [70_001, 3, 90_000, 12_345];
    for rule in RULES {
        let tailed = schedule(&weights, rule);
        let mut renewed = schedule(&weights, rule);
        let (mut renewals, mut worn) = (0, false);
        for _ in 0..2_000 {
            let picks = take(&tailed, 100);
            worn |= tailed.is_depleted();
            if renewed.is_depleted() {
                renewed = renewed.successor(&weights, renewed.rule(), &identity(4)).expect("same endpoints");
                renewed.prefill();
                renewals += 1;
            }
            assert_eq!(take(&renewed, 100), picks);
        }
        assert!(worn && renewals > 1);
        assert_eq!(tailed.picks(), renewed.picks());
        let carried = tailed.successor(&weights, tailed.rule(), &identity(4)).expect("same endpoints");
        assert_eq!(take(&carried, 1_000), take(&renewed, 1_000));
    }
}

/// Each random phase is a position of the cyclic sequence, and the sequence from there is the same.
#[test]
fn a_random_phase_is_another_position_in_the_same_order() {
    for rule in RULES {
        for weights in [vec![1, 2, 3, 3], vec![4; 6], half(6), vec![1, 10]] {
            let order = take(&schedule(&weights, rule), period(&weights));
            let mut places = vec![false; order.len()];
            let mut random = Lcg(9);
            for _ in 0..400 {
                let started = schedule(&weights, rule).at_random_phase(random.below(1 << 31) << 33);
                let picks = take(&started, 2 * order.len());
                let place = (0..order.len())
                    .find(|&place| picks.iter().zip(order.iter().cycle().skip(place)).all(|(a, b)| a == b));
                places[place.expect("the same order")] = true;
                assert_eq!(started.picks(), tally(&picks, weights.len()));
            }
            // Positions with equal sequels are found as the first of them.
            let distinct = (0..order.len()).filter(|&place| {
                let sequel = |place: usize| order.iter().cycle().skip(place).take(order.len());
                (0..place).all(|before| !sequel(before).eq(sequel(place)))
            });
            assert!(distinct.into_iter().all(|place| places[place]), "{rule:?} {weights:?} {places:?}");
        }
        let long = [70_001, 3, 90_000];
        let started = schedule(&long, rule).at_random_phase(u64::MAX / 3);
        let picks = take(&started, 100_000);
        assert_eq!(started.picks(), tally(&picks, 3));
        let carried = started.successor(&long, started.rule(), &identity(3)).expect("same endpoints");
        assert_eq!(take(&carried, 1_000), take(&started, 1_000));
    }
}

#[test]
fn shares_and_weights_are_accessible() {
    let schedule = schedule(&[2, 4, 2], ScheduleRule::Eligible);
    assert_eq!((schedule.len(), schedule.rule()), (3, ScheduleRule::Eligible));
    assert!((schedule.share(1) - 0.5).abs() < 1e-12);
    assert!(schedule.share(3).abs() < 1e-12);
    assert_eq!(format!("{schedule:?}"), "Schedule { rule: Eligible, weights: [2, 4, 2], .. }");
}

/// WRR-9: unknown weights get the mean of the known ones. With fewer than two known weights there is no
/// result.
#[test]
fn measured_weights_become_integers() {
    assert_eq!(scale(&[Some(1.0), Some(3.0), None]), Some(vec![349_525, 1 << 20, 699_051]));
    assert_eq!(scale(&[Some(1.0), Some(1e-30)]), Some(vec![1 << 20, 1]));
    assert_eq!(scale(&[Some(1.0), None, Some(0.0)]), None);
    assert_eq!(scale(&[]), None);
}

/// WRR-9, fault 58: invalid weights count as unknown and do not affect the others.
#[test]
fn invalid_weights_count_as_unknown() {
    let invalid = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, -0.0];
    let mut weights: Vec<_> = invalid.into_iter().map(Some).collect();
    weights.extend([Some(2.0), Some(2.0)]);
    assert_eq!(scale(&weights), Some(vec![1 << 20; 8]));
    assert_eq!(scale(&[Some(1e308), Some(1e308), Some(f64::MAX), None]).map(|w| w[2]), Some(1 << 20));
    let tiny = f64::from_bits(1);
    assert_eq!(scale(&[Some(tiny), Some(tiny * 2.0)]), Some(vec![1 << 19, 1 << 20]));
    assert_eq!(scale(&[Some(tiny), Some(f64::MAX)]), Some(vec![1, 1 << 20]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// EDF-3, EDF-4, EDF-12: every pick follows the order of exact fractions.
    #[test]
    fn literal_equals_the_reference(weights in weights()) {
        let picks = take(&schedule(&weights, ScheduleRule::Literal), 700);
        prop_assert_eq!(picks, Reference::new(&weights).take(700));
    }

    /// WRR-11: with any weights, every endpoint is within one pick of its share on every prefix.
    #[test]
    fn eligible_stays_within_one_pick(weights in weights()) {
        let picks = take(&schedule(&weights, ScheduleRule::Eligible), 2_000);
        let worst = deviation(&weights, &picks);
        prop_assert!(worst < 1.0, "{}", worst);
    }

    /// EDF-8: endpoints may be removed at any time, also after changes of weights; the others keep their
    /// order.
    #[test]
    fn removed_endpoints_do_not_disturb_the_order(
        weights in prop::collection::vec(1_u32..9, 2..8),
        other in prop::collection::vec(1_u32..9, 8),
        done in 0_usize..60,
        more in 0_usize..60,
        gone: [bool; 8],
    ) {
        let n = weights.len();
        let first = schedule(&weights, ScheduleRule::Literal);
        take(&first, done);
        let second = first.successor(&other[..n], first.rule(), &identity(n)).expect("same endpoints");
        take(&second, more);
        let stay: Vec<_> = (0..n).filter(|&i| !gone[i]).collect();
        let kept: Vec<_> = stay.iter().map(|&i| other[i]).collect();
        let from: Vec<_> = stay.iter().map(|&i| Some(i as u32)).collect();
        let Some(third) = second.successor(&kept, second.rule(), &from) else { return Ok(()) };
        let picks: Vec<_> = take(&third, 100).into_iter().map(|i| stay[i]).collect();
        let want: Vec<_> = take(&second, 20_000).into_iter().filter(|i| !gone[*i]).take(100).collect();
        prop_assert_eq!(picks, want);
    }

    /// EDF-6: a carried-over order is exact over every period, whichever endpoints were added, removed or
    /// moved.
    #[test]
    fn rebuilt_orders_are_periodic(
        weights in prop::collection::vec(1_u32..20, 1..10),
        next in prop::collection::vec((1_u32..20, prop::option::of(0_u32..12)), 1..10),
        done in 0_usize..300,
        eligible: bool,
    ) {
        let rule = RULES[usize::from(eligible)];
        let before = schedule(&weights, rule);
        take(&before, done);
        let (weights, from): (Vec<_>, Vec<_>) = next.into_iter().unzip();
        let after = before.successor(&weights, before.rule(), &from).expect("some endpoints");
        let picks = take(&after, 1_500);
        assert_windows(&weights, &picks);
        prop_assert!(!eligible || deviation(&weights, &picks) < 2.0);
    }

    /// Fault 58: with any reports, the weights are usable and the shares add up to 1.
    #[test]
    fn scale_survives_anything(bits in prop::collection::vec(prop::option::of(any::<u64>()), 0..40)) {
        let weights: Vec<_> = bits.into_iter().map(|bits| bits.map(f64::from_bits)).collect();
        if let Some(scaled) = scale(&weights) {
            prop_assert!(scaled.iter().all(|weight| (1..=1 << 20).contains(weight)));
            prop_assert!(scaled.contains(&(1 << 20)));
            let scaled = schedule(&scaled, ScheduleRule::Eligible);
            let shares: f64 = (0..scaled.len()).map(|i| scaled.share(i)).sum();
            prop_assert!((shares - 1.0).abs() < 1e-9);
        }
    }
}

/// Small weights with many ties, large weights, and both together.
fn weights() -> impl Strategy<Value = Vec<u32>> {
    let weight = prop_oneof![4 => 1_u32..8, 2 => 1_u32..2_000, 1 => any::<u32>(), 1 => Just(u32::MAX)];
    prop_oneof![
        prop::collection::vec(weight, 1..24),
        prop::collection::vec(1_u32..6, 1..40),
        prop::collection::vec((1_u32 << 20)..(1 << 21), 1..24),
    ]
    // Zero counts as 1.
    .prop_map(|weights| weights.into_iter().map(|weight| weight.max(1)).collect())
}

/// WRR-12: a change of the rule keeps the positions. The endpoint picked last is not picked again at once,
/// and the shares of both orders together are exact.
#[test]
fn a_change_of_rule_keeps_positions() {
    for (from, to) in
        [(ScheduleRule::Literal, ScheduleRule::Eligible), (ScheduleRule::Eligible, ScheduleRule::Literal)]
    {
        let weights = [1, 2, 3, 10];
        for picks in 0..32 {
            let before = schedule(&weights, from);
            let mut counts = [0_i64; 4];
            (0..picks).for_each(|_| counts[before.pick()] += 1);
            let after = before.successor(&weights, to, &identity(4)).expect("same endpoints");
            assert_eq!(after.rule(), to);
            (0..32 - picks).for_each(|_| counts[after.pick()] += 1);
            for (count, share) in counts.into_iter().zip([2, 4, 6, 20]) {
                assert!((count - share).abs() <= 2, "{from:?} to {to:?} after {picks}: {counts:?}");
            }
        }
    }
}
