//! `xds_cluster_impl_experimental`: drops, circuit breaker and calls in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_core::policy::Denominator;
use evenkeel_core::{
    CallCounters, CallOutcome, CallTracker, CallTrackers, Code, ConfigError, ConfigFields, ConnectivityState,
    Core, Cx, DescribeCx, Description, Endpoints, LbState, PickArgs, PickResult, Picker, Policy, Registry,
    Rng, SubchannelId,
};
use serde_json::{Value, json};
use testkit::{CoreSim, Picked, endpoints};

/// Config of cluster "c" over round_robin, with these additional settings.
fn cluster(settings: &Value) -> Value {
    cluster_over(settings, &json!([{"round_robin": {}}]))
}

fn cluster_over(settings: &Value, child: &Value) -> Value {
    let mut all = json!({"cluster": "c", "childPolicy": child});
    for (name, value) in settings.as_object().into_iter().flatten() {
        all[name] = value.clone();
    }
    json!([{"xds_cluster_impl_experimental": all}])
}

fn drops(rates: &[(&str, u32)]) -> Value {
    let drop = |(category, rate): &(&str, u32)| json!({"category": category, "requestsPerMillion": rate});
    cluster(&json!({"dropCategories": rates.iter().map(drop).collect::<Vec<_>>()}))
}

fn detail(sim: &CoreSim, name: &str) -> Value {
    sim.describe().details[name].clone()
}

fn with_counters(counters: &Arc<CallCounters>, config: &Value, endpoints: Endpoints) -> CoreSim {
    let core = Core::builder(Rng::fixed(1)).counters(counters.clone()).build();
    CoreSim::with(core, Registry::standard(), config, endpoints)
}

/// CI-1: each category draws its own random number. With one number for both, the second would never drop a
/// call.
#[test]
fn each_category_draws_its_own_number_in_order() {
    let mut sim = CoreSim::new(&drops(&[("lb", 500_000), ("throttle", 500_000)]), endpoints(["a"])).all_up();
    let passed = sim.shares(40_000)["a"] as u64;
    let dropped = |category: &str| detail(&sim, "drops")[category].as_u64().unwrap();
    assert_eq!(passed + dropped("lb") + dropped("throttle"), 40_000);
    assert_near(dropped("lb"), 40_000, 0.5);
    assert_near(dropped("throttle"), 40_000, 0.25);
    assert_eq!(detail(&sim, "circuitBreakerDrops"), 0);
}

/// CI-1: the share of dropped calls follows the rate of the category.
#[test]
fn rates_hold() {
    for rate in [0, 1_000, 50_000, 333_333, 1_000_000] {
        let mut sim = CoreSim::new(&drops(&[("lb", rate)]), endpoints(["a"])).all_up();
        sim.picks(50_000);
        assert_near(detail(&sim, "drops")["lb"].as_u64().unwrap(), 50_000, f64::from(rate) / 1e6);
    }
}

/// Checks that a count is within four standard deviations of this share of the calls.
fn assert_near(count: u64, calls: u32, share: f64) {
    let calls = f64::from(calls);
    let slack = 4.0 * (calls * share * (1.0 - share)).sqrt();
    assert!((count as f64 - calls * share).abs() <= slack, "{count} of {calls} for a share of {share}");
}

/// CI-1: a drop also fails wait-for-ready calls, and the child's picker is not called.
#[test]
fn a_drop_comes_before_the_pick_and_names_its_category() {
    let mut sim = CoreSim::new(&drops(&[("none", 0), ("maintenance", 1_000_000)]), endpoints(["a"])).all_up();
    let picked = sim.pick_call(&PickArgs::new("/s/m", 1).wait_for_ready());
    let Picked::Dropped(status) = &picked else { panic!("{picked:?}") };
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(
        status.message(),
        r#"cluster "c": dropped by the control plane's drop category "maintenance""#
    );
    assert_eq!(detail(&sim, "drops"), json!({"none": 0, "maintenance": 1}));
    assert_eq!(sim.describe().picks(), 0);
    assert_eq!(detail(&sim, "inFlight"), 0);
}

/// CI-2: rates are scaled to a million and capped there.
#[test]
fn rates_are_scaled_to_a_million_and_capped() {
    use Denominator::{Hundred, Million, TenThousand};
    for (denominator, numerator, expected) in [
        (Hundred, 0, 0),
        (Hundred, 7, 70_000),
        (Hundred, 100, 1_000_000),
        (Hundred, 101, 1_000_000),
        (Hundred, u32::MAX, 1_000_000),
        (TenThousand, 7, 700),
        (TenThousand, 10_001, 1_000_000),
        (Million, 7, 7),
        (Million, 1_000_001, 1_000_000),
    ] {
        assert_eq!(denominator.per_million(numerator), expected, "{numerator} per {denominator:?}");
    }
    let mut sim = CoreSim::new(&drops(&[("lb", 4_000_000_000)]), endpoints(["a"])).all_up();
    assert_eq!(sim.shares(100), [("drop".to_owned(), 100)].into());
    assert!(sim.describe().warnings[0].contains("is treated as a million"));
}

/// CI-3: calls that queue or fail draw no drop.
#[test]
fn queued_and_failed_calls_draw_no_drop() {
    let mut sim = CoreSim::new(&drops(&[("lb", 900_000)]), endpoints(["a"]));
    assert_eq!(sim.shares(100), [("queue".to_owned(), 100)].into());
    sim.fail("a");
    assert_eq!(sim.shares(100), [("fail".to_owned(), 100)].into());
    assert_eq!(detail(&sim, "drops"), json!({"lb": 0}));
    sim.up("a");
    sim.advance(testkit::secs(2));
    assert!(sim.shares(100)["drop"] > 70);
}

/// CI-3, CI-4: if the child picks without being READY, no drop is drawn, but the call counts as in flight. A
/// call above the limit ends as unsent for the child's trackers.
#[test]
fn calls_of_a_child_that_is_not_ready_count_in_flight() {
    let mut registry = Registry::standard();
    let ends = Arc::new(Ends::default());
    let shared = ends.clone();
    registry.register_with("early_picker", move || EarlyPicker {
        ends: shared.clone(),
        ..EarlyPicker::default()
    });
    let settings = json!({
        "maxConcurrentRequests": 1,
        "dropCategories": [{"category": "lb", "requestsPerMillion": 1_000_000}],
    });
    let config = cluster_over(&settings, &json!([{"early_picker": {}}]));
    let mut sim = CoreSim::with(Core::builder(Rng::fixed(1)).build(), registry, &config, endpoints(["a"]));
    assert_eq!(sim.state(), ConnectivityState::Connecting);
    let first = sim.pick();
    assert!(matches!(first, Picked::To { .. }));
    assert_eq!(sim.pick().outcome(), "drop");
    assert_eq!(ends.unsent.load(Ordering::Relaxed), 1);
    first.finish_ok();
    assert_eq!(ends.finished.load(Ordering::Relaxed), 1);
    assert_eq!(detail(&sim, "inFlight"), 0);
    assert_eq!(detail(&sim, "circuitBreakerDrops"), 1);
}

/// CI-4: a call above the limit is dropped with UNAVAILABLE, also if it waits for ready.
#[test]
fn the_circuit_breaker_drops_above_its_limit() {
    let config = cluster(&json!({"maxConcurrentRequests": 2}));
    let mut sim = CoreSim::new(&config, endpoints(["a", "b"])).all_up();
    let (first, second) = (sim.pick(), sim.pick());
    assert_eq!((first.outcome(), second.outcome()), ("a".to_owned(), "b".to_owned()));
    let third = sim.pick_call(&PickArgs::new("/s/m", 1).wait_for_ready());
    let status = third.status().unwrap();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(
        status.message(),
        r#"cluster "c": the circuit breaker's maximum of 2 calls in flight is reached"#
    );
    assert_eq!(third.outcome(), "drop");
    first.finish_ok();
    assert_eq!(sim.picks(3), ["a", "b", "a"]);
    assert_eq!(detail(&sim, "inFlight"), 1);
    assert_eq!(detail(&sim, "circuitBreakerDrops"), 1);
    assert_eq!(detail(&sim, "drops"), json!({}));
    drop(second);
    assert_eq!(detail(&sim, "inFlight"), 0);
}

/// CI-4: a limit of zero drops every call.
#[test]
fn a_limit_of_zero_drops_all() {
    let mut sim = CoreSim::new(&cluster(&json!({"max_concurrent_requests": 0})), endpoints(["a"])).all_up();
    assert_eq!(sim.picks(2), ["drop", "drop"]);
}

/// CI-5: without a setting the limit is 1024.
#[test]
fn the_limit_is_1024_unless_set() {
    let mut sim = CoreSim::new(&cluster(&json!({})), endpoints(["a"])).all_up();
    let held: Vec<_> = (0..1024).map(|_| sim.pick()).collect();
    assert!(held.iter().all(|picked| picked.outcome() == "a"));
    assert_eq!(sim.pick().outcome(), "drop");
}

/// CI-6: the example of A32, a limit lowered below the number of calls in flight.
#[test]
fn lowering_the_limit_keeps_calls_in_flight() {
    let mut sim = CoreSim::new(&cluster(&json!({"maxConcurrentRequests": 105})), endpoints(["a"])).all_up();
    let mut held: Vec<_> = (0..105).map(|_| sim.pick()).collect();
    sim.config(&cluster(&json!({"maxConcurrentRequests": 100})));
    for _ in 0..6 {
        assert_eq!(sim.picks(1), ["drop"]);
        held.pop().unwrap().finish_ok();
    }
    assert_eq!(sim.picks(1), ["a"]);
    sim.config(&cluster(&json!({"maxConcurrentRequests": 200})));
    assert_eq!(detail(&sim, "inFlight"), 99);
    assert_eq!(detail(&sim, "circuitBreakerDrops"), 6, "counts are kept across configs");
}

/// CI-6: channels of one process share the counter of a cluster and EDS service name.
#[test]
fn channels_of_a_process_share_the_count_of_a_cluster() {
    let counters = Arc::new(CallCounters::default());
    let limit = json!({"maxConcurrentRequests": 1});
    let other = json!({"maxConcurrentRequests": 1, "edsServiceName": "other"});
    let mut one = with_counters(&counters, &cluster(&limit), endpoints(["a"])).all_up();
    let mut two = with_counters(&counters, &cluster(&limit), endpoints(["a"])).all_up();
    let mut third = with_counters(&counters, &cluster(&other), endpoints(["a"])).all_up();
    let held = one.pick();
    assert_eq!(two.picks(1), ["drop"]);
    assert_eq!(third.picks(1), ["a"]);
    drop(one);
    assert_eq!(two.picks(1), ["drop"], "the call outlives its channel");
    drop(held);
    assert_eq!(two.picks(1), ["a"]);
}

/// CI-6: each way a call can end decrements the counter once.
#[test]
fn every_end_decrements_the_counter_once() {
    let mut sim = CoreSim::new(&cluster(&json!({})), endpoints(["a"])).all_up();
    let ends: [fn(Picked); 4] = [
        |picked| assert_eq!(picked.finish_ok(), "a"),
        |picked| assert_eq!(picked.finish(Code::Internal, None), "a"),
        drop,
        Picked::unsent,
    ];
    for end in ends {
        let picked = sim.pick();
        assert_eq!(detail(&sim, "inFlight"), 1);
        end(picked);
        assert_eq!(detail(&sim, "inFlight"), 0);
    }
}

/// CI-6: no thread sees more calls in flight than allowed, and the counter is 0 at the end.
#[test]
#[expect(clippy::disallowed_methods, reason = "the limit must hold whatever threads do")]
fn the_limit_is_exact_and_nothing_leaks() {
    const LIMIT: u64 = 3;
    let counters = Arc::new(CallCounters::default());
    let settings = json!({
        "maxConcurrentRequests": LIMIT,
        "dropCategories": [{"category": "lb", "requestsPerMillion": 100_000}],
    });
    let sim = with_counters(&counters, &cluster(&settings), endpoints(["a", "b"])).all_up();
    let (picker, counter) = (sim.picker(), counters.counter("c", ""));
    let (admitted, shed) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let (picker, counter, admitted, shed) = (&picker, &counter, &admitted, &shed);
            scope.spawn(move || {
                let mut rng = Rng::fixed(seed);
                let mut held: Vec<CallTrackers> = Vec::new();
                let end = |trackers: CallTrackers, how| {
                    admitted.fetch_sub(1, Ordering::SeqCst);
                    match how {
                        0 => drop(trackers),
                        1 => trackers.finish(&CallOutcome::Unsent),
                        _ => trackers.finish(&CallOutcome::Finished {
                            code: if how == 2 { Code::Unavailable } else { Code::Ok },
                            at: evenkeel_core::Instant::ORIGIN,
                            load: None,
                        }),
                    }
                };
                for _ in 0..20_000 {
                    match picker.pick(&PickArgs::new("/s/m", rng.next_u64())) {
                        PickResult::Complete(_, trackers) => {
                            assert!(admitted.fetch_add(1, Ordering::SeqCst) < LIMIT);
                            held.push(trackers);
                        }
                        PickResult::Drop(_) => drop(shed.fetch_add(1, Ordering::Relaxed)),
                        other => panic!("{other:?}"),
                    }
                    assert!(counter.count() <= LIMIT);
                    while held.len() as u64 > rng.below(4) {
                        let i = rng.below(held.len() as u64) as usize;
                        end(held.swap_remove(i), rng.below(8));
                    }
                }
                for trackers in held {
                    end(trackers, 0);
                }
            });
        }
    });
    assert_eq!(counter.count(), 0);
    let count = |name: &str| detail(&sim, name).as_u64().unwrap();
    let dropped = detail(&sim, "drops")["lb"].as_u64().unwrap();
    assert!(dropped > 0 && count("circuitBreakerDrops") > 0);
    assert_eq!(count("circuitBreakerDrops") + dropped, shed.into_inner());
}

/// CI-8: child policies read the cluster name from their scope.
#[test]
fn the_cluster_is_named_below() {
    let mut registry = Registry::standard();
    registry.register::<EarlyPicker>("early_picker");
    let config = cluster_over(&json!({}), &json!([{"early_picker": {}}]));
    let sim = CoreSim::with(Core::builder(Rng::fixed(1)).build(), registry, &config, endpoints(["a"]));
    assert_eq!(sim.describe().children[0].1.details["backendService"], "c");
}

/// CI-1: the drop count of a category is kept while the config names it.
#[test]
fn drop_counts_are_kept_with_their_category() {
    let mut sim = CoreSim::new(&drops(&[("lb", 1_000_000)]), endpoints(["a"])).all_up();
    sim.picks(3);
    sim.config(&drops(&[("new", 0), ("lb", 1_000_000), ("lb", 1_000_000)]));
    sim.picks(1);
    assert_eq!(detail(&sim, "drops"), json!({"new": 0, "lb": 4}));
    sim.config(&drops(&[]));
    assert_eq!(sim.picks(1), ["a"]);
}

/// An equal config with equal endpoints keeps the picker. Another limit publishes a new one.
#[test]
fn the_picker_is_kept_until_the_config_changes() {
    let endpoints = endpoints(["a"]);
    let mut sim = CoreSim::new(&cluster(&json!({})), endpoints.clone()).all_up();
    sim.published();
    sim.update(&cluster(&json!({})), endpoints);
    assert_eq!(sim.published(), 0);
    sim.config(&cluster(&json!({"maxConcurrentRequests": 5})));
    assert_eq!(sim.published(), 1);
}

#[test]
fn without_endpoints_the_child_reports_the_failure() {
    let mut sim = CoreSim::new(&drops(&[("lb", 1_000_000)]), Endpoints::none());
    assert_eq!(sim.state(), ConnectivityState::TransientFailure);
    assert_eq!(sim.pick().status().unwrap().message(), "no endpoints");
}

/// CI-2: config errors name the field and the expected value.
#[test]
fn config_errors_name_the_field() {
    let child = json!([{"round_robin": {}}]);
    for (settings, problem) in [
        (json!({"cluster": "c"}), ".childPolicy: is required"),
        (json!({"childPolicy": child}), ".cluster: is required: the name of the cluster"),
        (json!({"cluster": "", "childPolicy": child}), ".cluster: is required"),
        (json!({"cluster": 7, "childPolicy": child}), ".cluster: expected a string, found 7"),
        (
            json!({"cluster": "c", "childPolicy": child, "dropCategories": [{"requestsPerMillion": 1}]}),
            ".dropCategories[0].category: is required: a name that is not empty",
        ),
        (
            json!({"cluster": "c", "childPolicy": child, "drop_categories": [{"category": ""}]}),
            ".dropCategories[0].category: is required",
        ),
        (
            json!({"cluster": "c", "childPolicy": child, "maxConcurrentRequests": -1}),
            ".maxConcurrentRequests: expected a whole number from 0 to 4294967295, found -1",
        ),
    ] {
        let error = Registry::standard().parse(&json!([{"xds_cluster_impl_experimental": settings}]));
        let error = error.unwrap_err().to_string();
        let place =
            "policy \"xds_cluster_impl_experimental\": loadBalancingConfig[0].xds_cluster_impl_experimental";
        assert!(error.starts_with(&format!("{place}{problem}")), "{error}");
    }
}

/// Test policy that picks its first endpoint although it always reports CONNECTING.
#[derive(Default)]
struct EarlyPicker {
    ends: Arc<Ends>,
    state: Option<LbState>,
    backend_service: Option<Arc<str>>,
}

#[derive(Default)]
struct Ends {
    finished: AtomicU64,
    unsent: AtomicU64,
}

struct FixedPicker(SubchannelId, Arc<Ends>);

impl Policy for EarlyPicker {
    type Config = ();

    fn parse(_: &ConfigFields<'_>) -> Result<(), ConfigError> {
        Ok(())
    }

    fn reconcile(&mut self, (): &(), endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        self.backend_service = cx.scope().backend_service().cloned();
        let Some(address) = endpoints.iter().next().map(|endpoint| endpoint.addresses()[0].clone()) else {
            return LbState::connecting();
        };
        let id = cx.subchannel(&address).id();
        let picker = || LbState::new(ConnectivityState::Connecting, FixedPicker(id, self.ends.clone()));
        self.state.get_or_insert_with(picker).clone()
    }

    fn describe(&self, _: &DescribeCx<'_>) -> Description {
        Description::new().detail("backendService", self.backend_service.as_deref())
    }
}

impl Picker for FixedPicker {
    fn pick(&self, _: &PickArgs<'_>) -> PickResult {
        PickResult::Complete(self.0, CallTrackers::one(self.1.clone()))
    }
}

impl CallTracker for Ends {
    fn finished(&self, end: &CallOutcome<'_>) {
        let count = if let CallOutcome::Unsent = end { &self.unsent } else { &self.finished };
        count.fetch_add(1, Ordering::Relaxed);
    }
}
