//! Route changes concurrent with calls.

#![expect(clippy::disallowed_methods, reason = "these stories are about threads")]

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use evenkeel_core::PickArgs;
use evenkeel_xds::resource::Listener;
use evenkeel_xds::routing::{ActiveClusters, ConfigSelector};
use testkit::resources::{listener_with_routes, route};

use super::{quiet, selector_of};
use crate::listener::accepted;
use crate::route::{routes, to_weighted};

/// CM-5, CM-7: routes are replaced thousands of times while three threads route calls and hold some. Every call's
/// cluster is in the balancing config.
#[test]
fn no_call_loses_its_cluster() {
    const CHANGES: usize = 3_000;
    const HELD: usize = 16;
    let listeners: Vec<Arc<Listener>> = (0..4)
        .map(|i: usize| {
            let (own, next) = (format!("c{i}"), format!("c{}", (i + 1) % 4));
            let config = routes([route("/a", &format!("only-{i}")), to_weighted(&[(&own, 1), (&next, 1)])]);
            accepted(&listener_with_routes("l", config)).0
        })
        .collect();
    let idle = Arc::new(AtomicUsize::new(0));
    let clusters = {
        let idle = idle.clone();
        ActiveClusters::new(Arc::new(move || {
            idle.fetch_add(1, Ordering::SeqCst);
        }))
    };
    let names = || -> BTreeSet<Arc<str>> { clusters.names().into_iter().collect() };
    let first = Arc::new(selector_of(&listeners[0], &clusters));
    let balancing = RwLock::new(names());
    let published: RwLock<Arc<ConfigSelector>> = RwLock::new(first);
    let (stop, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (balancing, published, stop, calls) = (&balancing, &published, &stop, &calls);
            scope.spawn(move || {
                let mut held = VecDeque::new();
                let mut entropy = thread << 32;
                while !stop.load(Ordering::Relaxed) {
                    entropy += 1;
                    let selector = published.read().unwrap().clone();
                    let path = if entropy % 3 == 0 { "/a" } else { "/b" };
                    let selected = selector.select(&PickArgs::new(path, entropy)).expect("a route");
                    drop(selector);
                    held.push_back(selected);
                    if held.len() > HELD {
                        held.pop_front();
                    }
                    let config = balancing.read().unwrap();
                    for selected in &held {
                        assert!(config.contains(selected.cluster().name()), "{selected:?} not in {config:?}");
                    }
                    drop(config);
                    // Yield to the thread that changes the routes.
                    std::thread::yield_now();
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut rebuilt = 0;
        let mut changes = 0;
        while changes < CHANGES || calls.load(Ordering::Relaxed) < CHANGES {
            changes += 1;
            let selector = Arc::new(selector_of(&listeners[changes % 4], &clusters));
            // A31: the policy is updated before the selector.
            *balancing.write().unwrap() = names();
            *published.write().unwrap() = selector;
            let gone = idle.load(Ordering::SeqCst);
            if gone != rebuilt {
                rebuilt = gone;
                *balancing.write().unwrap() = names();
            }
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(idle.load(Ordering::SeqCst) > 0, "clusters came and went");
    assert_eq!(names().len(), 3, "those of the routes in use");
}

/// CM-5: threads acquire and release a cluster concurrently. It is active while it is held, and idle in the end.
#[test]
fn clusters_are_acquired_and_released_concurrently() {
    let clusters = quiet();
    let name: Arc<str> = "c".into();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    let taken = clusters.acquire(&name);
                    assert_eq!(clusters.names(), std::slice::from_ref(&name));
                    assert_eq!(taken.child(), "cluster:c");
                }
            });
        }
    });
    assert!(clusters.names().is_empty());
}
