//! Pickers under concurrent picks of many threads.

#![expect(clippy::disallowed_methods, reason = "these tests are about threads")]

use std::collections::HashSet;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use evenkeel_core::{CallOutcome, Code, Instant, LoadReport, PickArgs, PickResult, RootPicker, SubchannelId};
use serde_json::json;
use testkit::{CoreSim, secs, weighted};

/// fault 67: pickers are replaced while 64 threads pick ten million times in total. Every pick is a valid one
/// of its picker, and every tracker that was started is finished.
#[test]
fn pickers_are_replaced_under_64_threads() {
    const THREADS: u64 = 64;
    const PICKS: u64 = 10_000_000;
    const SWAPS: u32 = 50;
    let policy = json!([{"xds_cluster_impl_experimental": {
        "cluster": "c", "maxConcurrentRequests": 1_000_000, "childPolicy": [{"weighted_round_robin": {"blackoutPeriod": "0s"}}],
    }}]);
    let mut sim = CoreSim::new(&policy, weighted([("a", 1), ("b", 2), ("c", 3), ("d", 4)])).all_up();
    let current = RwLock::new(sim.picker());
    let (stop, picks) = (AtomicBool::new(false), AtomicU64::new(0));
    let load = LoadReport { cpu_utilization: 0.5, requests_per_second: 10.0, ..LoadReport::default() };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (current, stop, picks, load) = (&current, &stop, &picks, &load);
            scope.spawn(move || {
                let mut seen: HashSet<SubchannelId> = HashSet::new();
                let mut entropy = thread;
                while !stop.load(Ordering::Relaxed) {
                    let picker: RootPicker = current.read().expect("no thread panics").clone();
                    for _ in 0..100 {
                        entropy += THREADS;
                        match picker.pick(&PickArgs::new("/a/b", entropy)) {
                            PickResult::Complete(id, trackers) => {
                                seen.insert(id);
                                let end = CallOutcome::Finished {
                                    code: Code::Ok,
                                    at: Instant::ORIGIN,
                                    load: Some(load),
                                };
                                trackers.finish(&end);
                            }
                            other => panic!("everything is connected, yet {other:?}"),
                        }
                    }
                    picks.fetch_add(100, Ordering::Relaxed);
                }
                assert!(seen.len() <= 4, "{seen:?}");
            });
        }
        let mut swaps = 0;
        while swaps < SWAPS || picks.load(Ordering::Relaxed) < PICKS {
            swaps += 1;
            sim.endpoints(weighted([("a", 1 + swaps % 7), ("b", 2), ("c", 3), ("d", 4)]));
            // The other threads still pick from the previous schedule. An unused schedule would be dormant
            // and wake between two passes.
            assert!(matches!(sim.picker().pick(&PickArgs::new("/a/b", 0)), PickResult::Complete(..)));
            sim.advance(secs(1));
            *current.write().expect("no thread panics") = sim.picker();
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(sim.describe().details["inFlight"], 0);
}
