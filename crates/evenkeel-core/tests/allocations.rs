//! Memory cost of a pick and of an endpoint, counted by the allocator.

use std::sync::{Arc, LazyLock};

use evenkeel_core::{
    CallOutcome, Code, Core, Endpoint, Endpoints, Instant, LbEffect, LbEvent, LbUpdate, LoadReport, Locality,
    PickArgs, PickResult, Registry, Rng, RootPicker,
};
use serde_json::{Value, json};
use testkit::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static REPORT: LazyLock<LoadReport> = LazyLock::new(|| LoadReport {
    cpu_utilization: 0.5,
    requests_per_second: 100.0,
    named_metrics: vec![("queue".to_owned(), 3.0)],
    ..LoadReport::default()
});

const LEAVES: [&str; 5] = [
    "round_robin",
    "edf_weighted_round_robin",
    "weighted_round_robin",
    "least_request_experimental",
    "ring_hash_experimental",
];

fn whole_tree(leaf: &str) -> Value {
    let locality = json!([{"xds_wrr_locality_experimental": {"childPolicy": [{leaf: {}}]}}]);
    let drops = json!([{"category": "shed", "requestsPerMillion": 1}]);
    let cluster = json!([{"xds_cluster_impl_experimental": {
        "cluster": "orders", "maxConcurrentRequests": 1_000, "dropCategories": drops, "childPolicy": locality,
        "lrsLoadReportingServer": "lrs", "lrsReportEndpointMetrics": ["cpu_utilization", "named_metrics.*"],
    }}]);
    let outlier =
        json!([{"outlier_detection_experimental": {"successRateEjection": {}, "childPolicy": cluster}}]);
    let priority =
        json!([{"priority_experimental": {"priorities": ["p0"], "children": {"p0": {"config": outlier}}}}]);
    json!([{"xds_cluster_manager_experimental": {"children": {"orders": {"childPolicy": priority}}}}])
}

fn endpoints(n: usize) -> Endpoints {
    let zones = ["a", "b"].map(|zone| Arc::new(Locality { zone: zone.to_owned(), ..Locality::default() }));
    Endpoints::list((0..n).map(|i| {
        let address = format!("10.0.{}.{}:443", i / 256, i % 256);
        Endpoint::at(&*address).with_weight(1 + i as u32 % 7).with_locality(zones[i % 2].clone(), 1)
    }))
}

/// Returns a core whose connection attempts all succeeded, with its picker.
fn connected(config: &Value, endpoints: Endpoints) -> (Core, RootPicker) {
    let now = Instant::ORIGIN;
    let config = Registry::standard().parse(config).expect("valid");
    let mut core = Core::builder(Rng::fixed(1)).build();
    core.update(LbUpdate::new(config, endpoints));
    let mut picker = None;
    let mut left = 3;
    while left > 0 {
        let pass = core.reconcile(now);
        left -= u32::from(pass.wake_at != Some(now));
        picker = pass.picker.or(picker);
        for effect in pass.effects {
            if let LbEffect::Connect { id, .. } = effect {
                core.handle(LbEvent::Connected(id), now);
            }
        }
    }
    (core, picker.expect("a first picker"))
}

fn call<'a>(entropy: u64) -> PickArgs<'a> {
    PickArgs::new("/shop.Orders/Get", entropy)
        .with_cluster("orders")
        .with_hash(entropy.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// A pick of a single policy allocates nothing, tracked or not.
#[test]
fn a_pick_allocates_nothing() {
    for leaf in LEAVES {
        let (mut core, mut picker) = connected(&json!([{leaf: {}}]), endpoints(10));
        warm(&mut core, &mut picker);
        let (allocations, done) =
            Counting::during(|| (0..1_000).filter(|i| finish(picker.pick(&call(*i)))).count());
        assert_eq!((allocations.count, done), (0, 1_000), "{leaf}");
    }
}

/// A pick through the whole tree allocates nothing. The tree has drops, circuit breaker, outlier detection and load
/// reports.
#[test]
fn a_pick_through_the_whole_tree_allocates_nothing() {
    for leaf in LEAVES {
        let groups = Endpoints::groups([("orders", Endpoints::groups([("p0", endpoints(10))]))]);
        let (mut core, mut picker) = connected(&whole_tree(leaf), groups);
        warm(&mut core, &mut picker);
        let (allocations, done) =
            Counting::during(|| (0..1_000).filter(|i| finish(picker.pick(&call(*i)))).count());
        assert_eq!(allocations.count, 0, "{leaf}");
        assert!(done > 990, "{leaf}: {done}");
    }
}

/// An endpoint with its subchannel, weights and schedule costs at most 1 KiB, whether IDLE (ring hash), CONNECTING
/// or READY.
#[test]
fn an_endpoint_costs_less_than_a_kibibyte() {
    const N: u32 = 10_000;
    for leaf in LEAVES {
        let config = whole_tree(leaf);
        let (allocations, kept) = Counting::during(|| {
            let groups = Endpoints::groups([("orders", Endpoints::groups([("p0", endpoints(N as usize))]))]);
            connected(&config, groups)
        });
        assert_eq!(kept.0.subchannel_count(), N as usize, "{leaf}");
        let each = allocations.net_bytes / i64::from(N);
        assert!(each <= 1_024, "{leaf}: {each} bytes an endpoint");
    }
}

/// fault 67: replaced pickers, schedules and subchannels are freed. A thousand updates do not grow the heap.
#[test]
fn replaced_objects_are_freed() {
    for leaf in LEAVES {
        let groups = |n| Endpoints::groups([("orders", Endpoints::groups([("p0", endpoints(n))]))]);
        let (mut core, mut picker) = connected(&whole_tree(leaf), groups(10));
        let config = Registry::standard().parse(&whole_tree(leaf)).expect("valid");
        let mut churn = |updates: usize| {
            for i in 0..updates {
                let now = Instant::from_nanos(i as u64 * 100_000_000);
                core.update(LbUpdate::new(config.clone(), groups(if i % 2 == 0 { 7 } else { 10 })));
                for _ in 0..2 {
                    let pass = core.reconcile(now);
                    picker = pass.picker.unwrap_or(picker.clone());
                    for effect in pass.effects {
                        if let LbEffect::Connect { id, .. } = effect {
                            core.handle(LbEvent::Connected(id), now);
                        }
                    }
                }
                for i in 0..20 {
                    finish(picker.pick(&call(i)));
                }
            }
        };
        churn(100);
        let (allocations, ()) = Counting::during(|| churn(1_000));
        assert!(allocations.net_bytes.abs() < 4_096, "{leaf}: {} bytes", allocations.net_bytes);
    }
}

/// Connects the endpoints that lazy policies left IDLE and lets weights settle, so that only picks are
/// counted.
fn warm(core: &mut Core, picker: &mut RootPicker) {
    let now = Instant::ORIGIN;
    for i in 0..5_000 {
        match picker.pick(&call(i)) {
            PickResult::Queue { connect: Some(id) } => {
                core.handle(LbEvent::Connect(id), now);
                core.reconcile(now);
                core.handle(LbEvent::Connected(id), now);
                *picker = core.reconcile(now).picker.unwrap_or(picker.clone());
            }
            pick => {
                finish(pick);
            }
        }
    }
}

fn finish(pick: PickResult) -> bool {
    let PickResult::Complete(_, trackers) = pick else { return false };
    trackers.finish(&CallOutcome::Finished { code: Code::Ok, at: Instant::ORIGIN, load: Some(&REPORT) });
    true
}
