//! Pickers under many threads.

#![expect(clippy::disallowed_methods, reason = "these stories are about threads")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use evenkeel_core::{Call, CallEnd, Code, Instant, LoadReport, Pick, RootPicker, SubchannelId};
use serde_json::json;
use testkit::{World, secs, weighted};

/// fault 67: pickers are swapped while 64 threads pick. Every pick is one that the picker may give, everything is told
/// its end, and old pickers are freed.
#[test]
fn pickers_are_swapped_under_64_threads() {
    const THREADS: usize = 64;
    const PICKS: usize = 160_000;
    let policy = json!([{"xds_cluster_impl_experimental": {
        "cluster": "c", "maxConcurrentRequests": 1_000_000, "childPolicy": [{"weighted_round_robin": {"blackoutPeriod": "0s"}}],
    }}]);
    let mut world = World::new(&policy, weighted([("a", 1), ("b", 2), ("c", 3), ("d", 4)])).all_up();
    let current = Arc::new(RwLock::new(world.picker()));
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let load = LoadReport { cpu_utilization: 0.5, requests_per_second: 10.0, ..LoadReport::default() };
    let mut swaps = 0;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (current, done, stop, load) = (&current, &done, &stop, &load);
            scope.spawn(move || {
                let mut seen: HashMap<SubchannelId, usize> = HashMap::new();
                for i in 0..PICKS {
                    let picker: RootPicker = current.read().expect("no thread panics").clone();
                    match picker.pick(&Call::new("/a/b", (thread * PICKS + i) as u64)) {
                        Pick::To(id, trackers) => {
                            *seen.entry(id).or_default() += 1;
                            trackers.finish(&CallEnd::Finished {
                                code: Code::Ok,
                                at: Instant::ORIGIN,
                                load: Some(load),
                            });
                        }
                        other => panic!("everything is connected, yet {other:?}"),
                    }
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
                assert!(seen.len() <= 4, "{seen:?}");
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        while done.load(Ordering::Relaxed) < THREADS {
            swaps += 1;
            let weights = [("a", 1 + swaps % 7), ("b", 2), ("c", 3), ("d", 4)];
            world.endpoints(weighted(weights));
            world.advance(secs(1));
            *current.write().expect("no thread panics") = world.picker();
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(swaps > 10, "{swaps} swaps");
    drop(current);
    let tree = world.describe();
    assert_eq!(tree.details["inFlight"], 0);
}
