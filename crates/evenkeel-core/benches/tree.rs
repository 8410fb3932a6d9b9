//! What a pick through the whole tree costs, and what passes cost, as ratios measured in one process.
//!
//! `cargo bench -p evenkeel-core --bench tree`. The tree is the one that a cluster from xDS gets: manager, priority,
//! outlier detection, drops and circuit breaker, locality choice, and a policy over the endpoints. Rounds of picks and
//! of bare atomic additions alternate, since machines are noisy: times are the median round's, ratios the median of the
//! rounds' own ratios, so that a round in which the processors do not contend counts as such on both sides.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark reads the clock and has threads"
)]

use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant as Clock};

use evenkeel_core::{
    Call, CallEnd, Code, Core, Effect, Endpoint, Endpoints, Event, Instant, LoadReport, Locality, Pick,
    Registry, Rng, RootPicker, Status, SubchannelId, Update,
};
use serde_json::{Value, json};

const SIZES: [usize; 4] = [10, 100, 1_000, 10_000];
const ROUNDS: usize = 40;
const PICKS: u64 = 20_000;

fn main() {
    println!(
        "whole tree: ns per pick and end of call (ratio to a bare addition), {ROUNDS} rounds of {PICKS}"
    );
    println!("{:28} {:>6} {:>16} {:>16}", "endpoint policy", "n", "1 thread", "2 threads");
    let policies = [
        ("round_robin", json!([{"round_robin": {}}])),
        ("edf_weighted_round_robin", json!([{"edf_weighted_round_robin": {}}])),
        ("weighted_round_robin", json!([{"weighted_round_robin": {}}])),
        ("least_request", json!([{"least_request_experimental": {}}])),
        ("ring_hash", json!([{"ring_hash_experimental": {}}])),
    ];
    for (name, policy) in &policies {
        for n in SIZES {
            let bed = Bed::new(&whole_tree(policy), n);
            let [one, two] = [1, 2].map(|threads| bed.picks(threads));
            println!("{name:28} {n:>6} {one:>16} {two:>16}");
        }
    }
    println!("\npasses: us, best of {ROUNDS} (weighted_round_robin below the whole tree)");
    println!(
        "{:>6} {:>12} {:>14} {:>14} {:>18}",
        "n", "idle", "one changed", "per endpoint", "all endpoints new"
    );
    let mut idle = Vec::new();
    for n in SIZES {
        let mut bed = Bed::new(&whole_tree(&policies[2].1), n);
        let (quiet, one, all) = (bed.idle_pass(), bed.one_changed(), bed.all_new());
        idle.push(quiet);
        let each = one.as_secs_f64() * 1e9 / n as f64;
        println!("{n:>6} {:>12.3} {:>14.2} {each:>11.1} ns {:>18.1}", us(quiet), us(one), us(all));
    }
    println!("idle pass at 10,000 endpoints / at 100: {:.2}", us(idle[3]) / us(idle[1]));
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The config that a cluster with one priority gets from xDS.
fn whole_tree(policy: &Value) -> Value {
    let locality = json!([{"xds_wrr_locality_experimental": {"childPolicy": policy}}]);
    let cluster = json!([{"xds_cluster_impl_experimental": {
        "cluster": "orders", "maxConcurrentRequests": 1_000_000,
        "dropCategories": [{"category": "shed", "requestsPerMillion": 1}], "childPolicy": locality,
    }}]);
    let outlier = json!([{"outlier_detection_experimental": {
        "failurePercentageEjection": {}, "childPolicy": cluster,
    }}]);
    let priority =
        json!([{"priority_experimental": {"priorities": ["p0"], "children": {"p0": {"config": outlier}}}}]);
    json!([{"xds_cluster_manager_experimental": {"children": {"cluster:orders": {"childPolicy": priority}}}}])
}

/// A core with every endpoint connected, and what is needed to disturb it.
struct Bed {
    core: Core,
    picker: RootPicker,
    ids: Vec<SubchannelId>,
    config: evenkeel_core::LbConfig,
    now: Instant,
    n: usize,
}

impl Bed {
    fn new(config: &Value, n: usize) -> Bed {
        let config = Registry::standard().parse(config).expect("the tree's config parses");
        let mut core = Core::builder(Rng::fixed(1)).build();
        core.update(Update::new(config.clone(), endpoints(n, 0)));
        let now = Instant::ORIGIN;
        let mut ids = connect_all(&mut core, now);
        let mut picker = core.reconcile(now).picker.expect("a first picker");
        // Ring hash connects only what calls ask for: ask for everything that the rounds will.
        loop {
            let asked = (0..2 * PICKS).filter_map(|i| match picker.pick(&call(spread(i))) {
                Pick::Queue { connect } => connect,
                _ => None,
            });
            let asked: BTreeSet<_> = asked.collect();
            if asked.is_empty() {
                break;
            }
            for id in asked {
                core.handle(Event::Connect(id), now);
            }
            ids.extend(connect_all(&mut core, now));
            picker = core.reconcile(now).picker.unwrap_or(picker);
        }
        Bed { core, picker, ids, config, now, n }
    }

    /// A pick and the end of its call, against a bare addition.
    fn picks(&self, threads: usize) -> String {
        let counter = Padded(AtomicU64::new(0));
        let picker = &self.picker;
        let load = LoadReport { cpu_utilization: 0.5, requests_per_second: 100.0, ..LoadReport::default() };
        let end = CallEnd::Finished { code: Code::Ok, at: self.now, load: Some(&load) };
        let mut rounds: Vec<(f64, f64)> = Vec::new();
        for _ in 0..ROUNDS {
            let pick = round(threads, |i| match picker.pick(&call(spread(i))) {
                Pick::To(id, trackers) => {
                    black_box(id);
                    trackers.finish(&end);
                }
                other => panic!("everything is connected, yet {other:?}"),
            });
            let add = round(threads, |_| {
                black_box(counter.0.fetch_add(1, Ordering::Relaxed));
            });
            rounds.push((pick.as_secs_f64() * 1e9 / PICKS as f64, pick.as_secs_f64() / add.as_secs_f64()));
        }
        let median = |mut figures: Vec<f64>| {
            figures.sort_by(f64::total_cmp);
            figures[figures.len() / 2]
        };
        let (times, ratios) = rounds.into_iter().unzip();
        format!("{:.1} ({:.1})", median(times), median(ratios))
    }

    fn idle_pass(&mut self) -> Duration {
        let now = self.now;
        let core = &mut self.core;
        best(|| {
            let start = Clock::now();
            for _ in 0..1_000 {
                black_box(core.reconcile(now));
            }
            start.elapsed() / 1_000
        })
    }

    fn one_changed(&mut self) -> Duration {
        let (now, id) = (self.now, self.ids[self.n / 2]);
        let core = &mut self.core;
        best(|| {
            let start = Clock::now();
            core.handle(Event::Disconnected(id, Status::unavailable("gone")), now);
            core.reconcile(now);
            let lost = start.elapsed();
            core.handle(Event::Connected(id), now);
            core.reconcile(now);
            lost
        })
    }

    fn all_new(&mut self) -> Duration {
        let mut generation = 0;
        best(|| {
            generation += 1;
            let update = Update::new(self.config.clone(), endpoints(self.n, generation % 2));
            let start = Clock::now();
            self.core.update(update);
            self.core.reconcile(self.now);
            let took = start.elapsed();
            connect_all(&mut self.core, self.now);
            took
        })
    }
}

fn best(mut measure: impl FnMut() -> Duration) -> Duration {
    (0..ROUNDS).map(|_| measure()).min().unwrap_or_default()
}

/// Wall time of a round in which each thread does its picks.
fn round(threads: usize, work: impl Fn(u64) + Sync) -> Duration {
    let run = |from: u64| {
        for i in from..from + PICKS {
            work(i);
        }
    };
    if threads == 1 {
        let start = Clock::now();
        run(0);
        return start.elapsed();
    }
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads as u64)
            .map(|t| {
                let (barrier, run) = (&barrier, &run);
                scope.spawn(move || {
                    barrier.wait();
                    let start = Clock::now();
                    run(t * PICKS);
                    start.elapsed()
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("a round does not panic")).max().unwrap_or_default()
    })
}

/// Numbers that lie all over the ring.
fn spread(i: u64) -> u64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn call<'a>(entropy: u64) -> Call<'a> {
    Call::new("/shop.Orders/Get", entropy).with_cluster("cluster:orders").with_hash(entropy)
}

/// Two localities, three weights.
fn endpoints(n: usize, generation: usize) -> Endpoints {
    let zones = ["a", "b"].map(|zone| Arc::new(Locality { zone: zone.to_owned(), ..Locality::default() }));
    let endpoint = |i: usize| {
        let address = format!("10.{}.{}.{}:{}", generation, i / 256 % 256, i % 256, 443 + i / 65_536);
        Endpoint::at(&*address).with_weight(1 << (i % 3)).with_locality(zones[i % 2].clone(), 1)
    };
    let list = Endpoints::list((0..n).map(endpoint));
    Endpoints::groups([("cluster:orders", Endpoints::groups([("p0", list)]))])
}

fn connect_all(core: &mut Core, now: Instant) -> Vec<SubchannelId> {
    let mut ids = Vec::new();
    for effect in core.reconcile(now).effects {
        if let Effect::Dial { id, .. } = effect {
            core.handle(Event::Connected(id), now);
            ids.push(id);
        }
    }
    ids
}

#[repr(align(128))]
struct Padded(AtomicU64);
