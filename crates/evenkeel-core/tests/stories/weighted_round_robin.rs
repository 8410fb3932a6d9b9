//! `weighted_round_robin`: picks in proportion to weights computed from load reports.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use evenkeel_core::policy::WeightedRoundRobinConfig;
use evenkeel_core::{Code, Core, Endpoint, Endpoints, Instant, LoadReport, Registry, Rng};
use proptest::prelude::*;
use serde_json::{Value, json};
use testkit::{CoreSim, Picked, endpoints, secs, weighted};

fn wrr(settings: &Value) -> Value {
    json!([{"weighted_round_robin": settings}])
}

/// Config without a blackout period.
fn at_once() -> Value {
    wrr(&json!({"blackoutPeriod": "0s"}))
}

/// Load report that leads to this weight.
fn load(weight: f64) -> LoadReport {
    LoadReport { requests_per_second: weight, cpu_utilization: 1.0, ..LoadReport::default() }
}

/// Returns a simulation in which every endpoint is connected and has just reported its weight with a call.
fn reported<const N: usize>(config: &Value, weights: [(&str, f64); N]) -> CoreSim {
    let mut sim = CoreSim::new(config, endpoints(weights.map(|(address, _)| address))).all_up();
    report(&mut sim, weights.map(|(address, weight)| (address, load(weight))));
    sim
}

/// Makes calls until every endpoint has finished one with its report.
fn report<const N: usize>(sim: &mut CoreSim, loads: [(&str, LoadReport); N]) {
    let mut open = BTreeMap::from(loads.map(|(address, load)| (address.to_owned(), load)));
    for _ in 0..10_000 {
        let picked = sim.pick();
        let load = open.remove(&picked.outcome());
        picked.finish(Code::Ok, load.as_ref());
        if open.is_empty() {
            return;
        }
    }
    panic!("never picked: {open:?}");
}

/// Usable weight of an endpoint, if there is one.
fn weight(sim: &CoreSim, address: &str) -> Option<f64> {
    let rows = sim.describe().endpoints;
    let row = rows.iter().find(|row| row.addresses == [address])?;
    row.weight.filter(|weight| *weight > 0.0)
}

fn count(sim: &CoreSim, detail: &str) -> u64 {
    sim.describe().details[detail].as_u64().expect("a count")
}

fn shares(sim: &mut CoreSim, n: usize) -> Vec<usize> {
    sim.shares(n).into_values().collect()
}

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// WRR-1: the defaults are those of A58.
#[test]
fn defaults_are_those_of_a58() {
    let registry = Registry::standard();
    for name in ["weighted_round_robin", "weighted_round_robin_experimental"] {
        let config = registry.parse(&json!([{ name: {} }])).unwrap();
        assert_eq!(config.policy(), "weighted_round_robin");
        assert_eq!(
            config.settings(),
            Some(&WeightedRoundRobinConfig {
                enable_oob_load_report: false,
                oob_reporting_period: secs(10),
                blackout_period: secs(10),
                weight_expiration_period: secs(180),
                weight_update_period: secs(1),
                error_utilization_penalty: 1.0,
                metric_names_for_computing_utilization: vec![],
                weight_cap_ratio: None,
            })
        );
    }
}

/// WRR-2: config errors name the field and the expected value.
#[test]
fn config_errors_name_the_field() {
    let error = |settings: Value| Registry::standard().parse(&wrr(&settings)).unwrap_err().to_string();
    let at = |rest: &str| {
        format!("policy \"weighted_round_robin\": loadBalancingConfig[0].weighted_round_robin.{rest}")
    };
    for (settings, rest) in [
        (json!({"errorUtilizationPenalty": -0.5}), "errorUtilizationPenalty: must not be negative"),
        (
            json!({"error_utilization_penalty": "x"}),
            "errorUtilizationPenalty: expected a finite number, found \"x\"",
        ),
        (
            json!({"weightCapRatio": 0.5}),
            "weightCapRatio: must be at least 1: it bounds weights by their mean",
        ),
        (json!({"weightExpirationPeriod": "-1s"}), "weightExpirationPeriod: must not be negative"),
        (
            json!({"blackoutPeriod": 10}),
            "blackoutPeriod: expected a duration such as \"10s\" or \"0.25s\", found 10",
        ),
        (
            json!({"metricNamesForComputingUtilization": [1]}),
            "metricNamesForComputingUtilization[0]: expected a string, found 1",
        ),
    ] {
        assert_eq!(error(settings), at(rest));
    }
}

/// WRR-2: an update period below 100 ms becomes 100 ms.
#[test]
fn updates_are_at_least_100_ms_apart() {
    for (period, expected) in [("0.099s", 100), ("0s", 100), ("-3s", 100), ("0.101s", 101), ("2.5s", 2500)] {
        let sim = CoreSim::new(&wrr(&json!({"weightUpdatePeriod": period})), endpoints(["a", "b"])).all_up();
        assert_eq!(sim.wake_at(), Some(Instant::ORIGIN + millis(expected)), "{period}");
    }
}

/// WRR-3: the weight is the rate divided by the utilization, with the error penalty.
#[test]
fn the_weight_is_rate_per_utilization() {
    let report = |rate, cpu, application, errors| LoadReport {
        requests_per_second: rate,
        cpu_utilization: cpu,
        application_utilization: application,
        errors_per_second: errors,
        ..LoadReport::default()
    };
    for (penalty, of_a, expected) in [
        (1.0, report(100.0, 0.5, 0.0, 0.0), 200.0),
        (1.0, report(100.0, 0.5, 0.25, 0.0), 400.0),
        (1.0, report(100.0, 0.5, 0.0, 10.0), 100.0 / 0.6),
        (0.0, report(100.0, 0.5, 0.0, 10.0), 200.0),
        (0.0, report(100.0, 0.5, 0.0, f64::INFINITY), 200.0),
        (2.5, report(100.0, 0.5, 0.25, 10.0), 200.0),
        (1.0, report(100.0, 1.75, 0.0, 0.0), 100.0 / 1.75),
        (1.0, report(100.0, 0.5, -1.0, 0.0), 200.0),
        (1.0, report(100.0, 0.5, f64::NAN, 0.0), 200.0),
    ] {
        let config = wrr(&json!({"blackoutPeriod": "0s", "errorUtilizationPenalty": penalty}));
        let mut sim = CoreSim::new(&config, endpoints(["a", "b"])).all_up();
        self::report(&mut sim, [("a", of_a.clone()), ("b", load(1.0))]);
        sim.advance(secs(1));
        let weight = weight(&sim, "a").unwrap();
        assert!((weight - expected).abs() < 1e-9, "{of_a:?} gives {weight}");
    }
}

/// WRR-4: invalid reports change neither the weight nor its timestamps.
#[test]
fn invalid_reports_change_nothing() {
    let of = |rate, cpu, errors| LoadReport {
        requests_per_second: rate,
        cpu_utilization: cpu,
        errors_per_second: errors,
        ..LoadReport::default()
    };
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    for bad in [
        LoadReport::default(),
        of(0.0, 0.5, 0.0),
        of(100.0, 0.0, 0.0),
        of(-100.0, 0.5, 0.0),
        of(-100.0, -0.5, 0.0),
        of(100.0, -0.5, 0.0),
        of(nan, 0.5, 0.0),
        of(100.0, nan, 0.0),
        of(inf, 0.5, 0.0),
        of(100.0, inf, 0.0),
        of(inf, inf, 0.0),
        of(1e308, 1e-308, 0.0),
        of(100.0, 0.5, nan),
        of(100.0, 0.5, inf),
        of(100.0, 0.5, -49.0),
    ] {
        // Neither the weight nor its expiration changes.
        let mut sim = reported(&at_once(), [("a", 5.0), ("b", 7.0)]);
        sim.advance(secs(179));
        report(&mut sim, [("a", bad.clone()), ("b", load(7.0))]);
        assert_eq!(weight(&sim, "a"), Some(5.0), "{bad:?}");
        sim.advance(secs(1));
        assert_eq!((weight(&sim, "a"), weight(&sim, "b")), (None, Some(7.0)), "{bad:?}");
        // The start of the blackout period does not change either.
        let mut sim = CoreSim::new(&wrr(&json!({})), endpoints(["a", "b"])).all_up();
        report(&mut sim, [("a", bad.clone()), ("b", load(7.0))]);
        sim.advance(secs(5));
        report(&mut sim, [("a", load(5.0)), ("b", load(7.0))]);
        sim.advance(secs(5));
        assert_eq!((weight(&sim, "a"), weight(&sim, "b")), (None, Some(7.0)), "{bad:?}");
        sim.advance(secs(5));
        assert_eq!(weight(&sim, "a"), Some(5.0), "{bad:?}");
    }
}

/// WRR-5: configured metrics replace the utilization.
#[test]
fn named_metrics_replace_the_utilization() {
    let named = |pairs: &[(&str, f64)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect::<Vec<_>>();
    let report_a = LoadReport {
        requests_per_second: 100.0,
        cpu_utilization: 0.5,
        application_utilization: 0.25,
        mem_utilization: 0.125,
        named_metrics: named(&[("queue", 2.0), ("a.b", 4.0), ("nan", f64::NAN), ("neg", -1.0)]),
        utilization: named(&[("disk", 0.8), ("zero", 0.0), ("inf", f64::INFINITY)]),
        ..LoadReport::default()
    };
    for (names, utilisation) in [
        (vec![], Some(0.25)),
        (vec!["cpu_utilization"], Some(0.5)),
        (vec!["mem_utilization"], Some(0.125)),
        (vec!["mem_utilization", "cpu_utilization", "application_utilization"], Some(0.5)),
        (vec!["named_metrics.queue"], Some(2.0)),
        (vec!["named_metrics.a.b", "named_metrics.queue"], Some(4.0)),
        (vec!["utilization.disk", "mem_utilization"], Some(0.8)),
        (vec!["named_metrics.nan", "named_metrics.neg", "utilization.zero"], Some(0.25)),
        (vec!["named_metrics.absent", "named_metrics.nan", "mem_utilization"], Some(0.125)),
        (vec!["utilization.inf"], None),
        (vec!["request_cost.queue", "rps_fractional", "named_metrics"], Some(0.25)),
    ] {
        let config = wrr(&json!({
            "blackoutPeriod": "0s", "metricNamesForComputingUtilization": names,
        }));
        let mut sim = CoreSim::new(&config, endpoints(["a", "b"])).all_up();
        report(&mut sim, [("a", report_a.clone()), ("b", load(1.0))]);
        sim.advance(secs(1));
        let expected = utilisation.map(|utilisation| 100.0 / utilisation);
        assert_eq!(weight(&sim, "a"), expected, "{names:?}");
    }
    let settings =
        json!({"metricNamesForComputingUtilization": ["named_metrics.q", "request_cost.q", "cpu"]});
    let config = Registry::standard().parse(&wrr(&settings)).unwrap();
    let at = "loadBalancingConfig[0].weighted_round_robin.metricNamesForComputingUtilization";
    let line = |name| {
        format!("policy \"weighted_round_robin\": {at}: \"{name}\" is not a supported metric, it is ignored")
    };
    assert_eq!(config.warnings(), [line("request_cost.q"), line("cpu")]);
}

/// WRR-6, WRR-8: a weight counts after the blackout period. After it expired, the next report starts a new
/// blackout period.
#[test]
fn weights_follow_blackout_and_expiration() {
    let mut sim = reported(&wrr(&json!({})), [("a", 1.0), ("b", 3.0)]);
    let uses_weights = |sim: &mut CoreSim| match &shares(sim, 40)[..] {
        [10, 30] => true,
        [20, 20] => false,
        other => panic!("{other:?}"),
    };
    sim.advance(millis(9_999));
    assert!(!uses_weights(&mut sim));
    sim.advance(millis(1));
    assert!(uses_weights(&mut sim), "10 s after the first report");
    // Reports continue until 20 s and then stop.
    sim.advance(secs(10));
    report(&mut sim, [("a", load(1.0)), ("b", load(3.0))]);
    sim.advance(millis(179_999));
    assert!(uses_weights(&mut sim));
    sim.advance(millis(1));
    assert!(!uses_weights(&mut sim), "180 s after the last report");
    assert_eq!(count(&sim, "endpoint_weight_stale"), 2);
    sim.advance(millis(5_500));
    report(&mut sim, [("a", load(1.0)), ("b", load(3.0))]);
    sim.advance(millis(10_499));
    assert!(!uses_weights(&mut sim), "the blackout runs again, and weights are updated on the second");
    sim.advance(millis(1));
    assert!(uses_weights(&mut sim));
}

/// WRR-6: without a blackout period a weight applies from the next update. An expiration period of zero
/// expires it at once.
#[test]
fn blackout_and_expiration_may_be_off() {
    for blackout in ["0s", "-1s"] {
        let mut sim = reported(&wrr(&json!({"blackoutPeriod": blackout})), [("a", 1.0), ("b", 3.0)]);
        assert_eq!(shares(&mut sim, 40), [20, 20]);
        sim.advance(secs(1));
        assert_eq!(shares(&mut sim, 40), [10, 30]);
    }
    let settings = json!({"blackoutPeriod": "0s", "weightExpirationPeriod": "0s"});
    let mut sim = reported(&wrr(&settings), [("a", 1.0), ("b", 3.0)]);
    sim.advance(secs(1));
    assert_eq!(shares(&mut sim, 40), [20, 20]);
}

/// WRR-7, WRR-10: a reconnected endpoint has a new blackout period.
#[test]
fn a_new_connection_starts_the_blackout_over() {
    let list = [("a", 100.0), ("b", 200.0), ("c", 300.0)];
    let mut sim = CoreSim::new(&wrr(&json!({})), endpoints(list.map(|(address, _)| address)));
    for (address, weight) in list {
        sim.ready(address);
        report(&mut sim, [(address, load(weight))]);
    }
    sim.advance(secs(50));
    assert_eq!(shares(&mut sim, 600), [100, 200, 300]);
    sim.lose("c");
    assert_eq!(shares(&mut sim, 300), [100, 200], "lost, and removed at once");
    sim.ready("c");
    assert_eq!(["a", "b", "c"].map(|address| weight(&sim, address)), [Some(100.0), Some(200.0), None]);
    assert_eq!(shares(&mut sim, 450), [100, 200, 150], "the mean until it is known");
    sim.advance(secs(2));
    report(&mut sim, [("c", load(400.0))]);
    sim.advance(millis(9_999));
    assert_eq!(weight(&sim, "c"), None);
    sim.advance(millis(1));
    assert_eq!(shares(&mut sim, 700), [100, 200, 400]);
    // Only the blackout period restarts. Without one the weight is kept.
    let mut sim = reported(&at_once(), [("a", 100.0), ("b", 300.0)]);
    sim.advance(secs(1));
    sim.lose("b");
    assert_eq!(shares(&mut sim, 40), [10, 30], "b reconnects at once");
    // A connection that was lost and replaced between two passes is another connection.
    let mut sim = reported(&wrr(&json!({})), [("a", 100.0), ("b", 300.0)]);
    sim.advance(secs(20));
    let id = sim.find("b").unwrap();
    let now = sim.now();
    let gone = evenkeel_core::Status::unavailable("gone");
    sim.core().handle(evenkeel_core::LbEvent::Disconnected(id, gone), now);
    sim.core().handle(evenkeel_core::LbEvent::Connect(id), now);
    sim.handle(evenkeel_core::LbEvent::Connected(id));
    sim.advance(secs(1));
    assert_eq!(weight(&sim, "b"), None);
}

/// WRR-9: an endpoint without a weight gets the mean of the others.
#[test]
fn an_endpoint_without_a_weight_gets_the_mean() {
    let mut sim = CoreSim::new(&at_once(), endpoints(["a", "b", "c"])).all_up();
    report(&mut sim, [("a", load(100.0))]);
    sim.advance(secs(1));
    assert_eq!(sim.describe().details["weights_from"], "EDS");
    assert_eq!(shares(&mut sim, 300), [100, 100, 100], "a single weight is not used");
    report(&mut sim, [("b", load(300.0))]);
    sim.advance(secs(1));
    assert_eq!(sim.describe().details["weights_from"], "load");
    // Picks that an endpoint was ahead or behind are compensated now, at most one pick each.
    let got = shares(&mut sim, 600);
    assert!(got.iter().zip([100, 300, 200]).all(|(got, want)| got.abs_diff(want) <= 1), "{got:?}");
}

/// WRR-9, WRR-20: without reports the weights of EDS apply.
#[test]
fn without_reports_the_eds_weights_apply() {
    let mut sim = CoreSim::new(&at_once(), weighted([("a", 2), ("b", 4)])).all_up();
    assert_eq!(sim.letters(14), "babbabbabbabba");
    report(&mut sim, [("a", load(1.0)), ("b", load(1.0))]);
    sim.advance(secs(1));
    assert_eq!(shares(&mut sim, 40), [20, 20]);
    sim.advance(secs(180));
    assert_eq!(shares(&mut sim, 60), [20, 40]);
    sim.endpoints(weighted([("a", 5), ("b", 1)]));
    assert_eq!(shares(&mut sim, 60), [50, 10], "on the next pick");
    let mut sim = CoreSim::new(&at_once(), endpoints(["a", "b", "c"])).all_up();
    assert_eq!(sim.letters(6), "abcabc");
}

/// Advances the time and returns the number of times that the core requested a pass.
fn wake_ups(sim: &mut CoreSim, by: Duration) -> usize {
    let (end, mut count) = (sim.now() + by, 0);
    while let Some(at) = sim.wake_at().filter(|at| *at <= end) {
        let now = sim.now();
        sim.advance(at.since(now));
        count += 1;
    }
    let now = sim.now();
    sim.advance(end.since(now));
    count
}

/// WRR-10: without picks the only timers are the ends of blackout periods and weights, and after those there
/// is none.
#[test]
fn without_picks_weights_are_not_updated() {
    let mut sim = CoreSim::new(&wrr(&json!({})), endpoints(["a", "b", "c"])).all_up();
    assert_eq!(wake_ups(&mut sim, secs(3_600)), 1, "the first update finds that there are no picks");
    assert_eq!(sim.wake_at(), None);
    // Reports of a few calls set three timers: the next update, the end of the blackout periods and the
    // expiration of the weights.
    report(&mut sim, [("a", load(1.0)), ("b", load(3.0)), ("c", load(4.0))]);
    let count = wake_ups(&mut sim, secs(3_600));
    assert!(count <= 5, "{count} wake-ups in an hour");
    assert_eq!(sim.wake_at(), None);
    assert_eq!(weight(&sim, "b"), None, "expired without picks");
    // While calls are picked, there is one update per second.
    let before = self::count(&sim, "rr_fallback");
    for _ in 0..10 {
        sim.letters(1);
        sim.advance(secs(1));
    }
    assert!((10..=11).contains(&(self::count(&sim, "rr_fallback") - before)));
}

/// WRR-6, WRR-10: the first pick after a time without picks leads to an update at once, so that the next pick
/// uses current weights.
#[test]
fn the_first_pick_after_a_pause_leads_to_an_update() {
    let mut sim = CoreSim::new(&at_once(), endpoints(["a", "b"])).all_up();
    let calls = [sim.pick(), sim.pick()];
    wake_ups(&mut sim, secs(100));
    assert_eq!(sim.wake_at(), None, "without reports nothing expires");
    for call in calls {
        let of_a = call.outcome() == "a";
        call.finish(Code::Ok, Some(&load(if of_a { 1.0 } else { 3.0 })));
    }
    assert_eq!(weight(&sim, "b"), None, "a call from before the pause reports, and no pick follows");
    sim.letters(1);
    assert_eq!(weight(&sim, "b"), Some(3.0));
    assert_eq!(sim.wake_at(), Some(sim.now() + secs(1)), "updates continue");
    // Weights expire without picks, and the next reports start new blackout periods.
    let mut sim = reported(&wrr(&json!({})), [("a", 1.0), ("b", 3.0)]);
    sim.advance(secs(15));
    assert_eq!(shares(&mut sim, 40), [10, 30]);
    sim.advance(secs(1_000));
    let [first, second] = [sim.pick(), sim.pick()];
    for call in [first, second] {
        let of_a = call.outcome() == "a";
        call.finish(Code::Ok, Some(&load(if of_a { 1.0 } else { 3.0 })));
    }
    sim.advance(secs(9));
    assert_eq!(shares(&mut sim, 40), [20, 20], "the weights from before the pause do not count");
    sim.advance(secs(2));
    assert_eq!(shares(&mut sim, 40), [10, 30]);
}

/// WRR-10, WRR-12: out-of-band reports arrive without calls. Without picks they lead to no updates.
#[test]
fn out_of_band_reports_lead_to_no_updates_without_picks() {
    let config = wrr(&json!({"enableOobLoadReport": true, "blackoutPeriod": "0s"}));
    let mut sim = CoreSim::new(&config, endpoints(["a", "b"])).all_up();
    wake_ups(&mut sim, secs(10));
    let before = count(&sim, "rr_fallback");
    for _ in 0..100 {
        sim.load("a", load(1.0));
        sim.load("b", load(3.0));
        assert_eq!(wake_ups(&mut sim, secs(1)), 0);
    }
    assert_eq!(count(&sim, "rr_fallback"), before);
    sim.letters(1);
    assert_eq!((weight(&sim, "a"), weight(&sim, "b")), (Some(1.0), Some(3.0)));
}

/// WRR-10: without picks, added and removed endpoints set no timer, and each change applies at once.
#[test]
fn endpoint_changes_apply_without_picks() {
    let mut sim = CoreSim::new(&at_once(), endpoints(["a", "b", "c"]));
    for address in ["a", "b"] {
        sim.ready(address);
    }
    wake_ups(&mut sim, secs(10));
    sim.ready("c");
    assert_eq!(wake_ups(&mut sim, secs(10)), 0);
    sim.lose("a");
    assert_eq!(wake_ups(&mut sim, secs(10)), 0);
    assert_eq!(shares(&mut sim, 40), [20, 20]);
    assert!(sim.wake_at().is_some());
}

/// WRR-10: updates keep their phase across other events, and an old picker still picks.
#[test]
fn weights_are_updated_on_the_second_and_on_changes() {
    let mut sim = CoreSim::new(&at_once(), endpoints(["a", "b", "c"]));
    sim.ready("a");
    sim.ready("b");
    report(&mut sim, [("a", load(1.0)), ("b", load(3.0))]);
    let old = sim.picker();
    sim.advance(millis(400));
    assert_eq!(weight(&sim, "b"), None);
    sim.ready("c");
    assert_eq!(weight(&sim, "b"), Some(3.0), "the ready endpoints changed");
    assert_eq!(sim.wake_at(), Some(Instant::ORIGIN + secs(1)));
    report(&mut sim, [("c", load(4.0))]);
    sim.config(&wrr(&json!({"blackoutPeriod": "0s", "weightExpirationPeriod": "60s"})));
    assert_eq!(weight(&sim, "c"), Some(4.0), "the config changed");
    assert_eq!(sim.wake_at(), Some(Instant::ORIGIN + secs(1)));
    sim.config(&wrr(&json!({"blackoutPeriod": "0s", "weightUpdatePeriod": "0.4s"})));
    assert_eq!(sim.wake_at(), Some(Instant::ORIGIN + millis(800)));
    for _ in 0..10 {
        let call = evenkeel_core::PickArgs::new("/test.Service/Method", 0);
        assert!(matches!(old.pick(&call), evenkeel_core::PickResult::Complete(..)));
    }
}

/// WRR-10: clusters that became READY one after the other are updated together. An update is at most a
/// twentieth of the period early.
#[test]
fn many_clusters_are_updated_in_few_passes() {
    let names = ["a", "b", "c", "d"];
    let child = |name: &str| (name.to_owned(), json!({ "childPolicy": at_once() }));
    let children: serde_json::Map<_, _> = names.iter().map(|name| child(name)).collect();
    let config = json!([{"xds_cluster_manager_experimental": { "children": children }}]);
    let pair = |name: &str| Endpoints::list(["1", "2"].map(|n| Endpoint::at(format!("{name}{n}").as_str())));
    let mut sim = CoreSim::new(&config, Endpoints::groups(names.map(|name| (name, pair(name)))));
    sim.advance(millis(50));
    for name in names {
        sim.ready(&format!("{name}1"));
        sim.ready(&format!("{name}2"));
        sim.advance(millis(12));
    }
    assert_eq!(sim.wake_at(), Some(Instant::ORIGIN + millis(1_050)));
    let updates = |sim: &CoreSim| -> Vec<u64> {
        let tree = sim.describe();
        tree.children
            .iter()
            .map(|(_, child)| child.details["rr_fallback"].as_u64().expect("a count"))
            .collect()
    };
    for name in names {
        let _ = sim.pick_call(&evenkeel_core::PickArgs::new("/test.Service/Method", 0).with_cluster(name));
    }
    let before = updates(&sim);
    sim.advance(millis(1_050 - 98));
    assert!(updates(&sim).iter().zip(before).all(|(now, before)| *now == before + 1));
    assert_eq!(sim.wake_at(), Some(Instant::ORIGIN + millis(2_050)));
}

/// WRR-10, WRR-12: an update without changes keeps the picker.
#[test]
fn the_same_weights_keep_the_picker() {
    let mut sim = reported(&at_once(), [("a", 100.0), ("b", 300.0)]);
    sim.advance(secs(1));
    sim.published();
    for _ in 0..10 {
        report(&mut sim, [("a", load(200.0)), ("b", load(600.0))]);
        sim.advance(secs(1));
    }
    assert_eq!(sim.published(), 0, "the ratio is the same");
    report(&mut sim, [("b", load(601.0))]);
    sim.advance(secs(1));
    assert_eq!(sim.published(), 1);
}

/// fault 68: after a pause there is one update.
#[test]
fn a_pause_gives_one_update() {
    let mut sim = CoreSim::new(&at_once(), endpoints(["a", "b"])).all_up();
    // One call per second.
    let advance = |sim: &mut CoreSim, seconds: usize| {
        for _ in 0..seconds {
            sim.letters(1);
            sim.advance(secs(1));
        }
        sim.letters(1);
    };
    advance(&mut sim, 3);
    let before = count(&sim, "rr_fallback");
    sim.sleep_through(millis(30_400));
    assert_eq!(count(&sim, "rr_fallback") - before, 1);
    assert_eq!(sim.wake_at(), Some(sim.now() + secs(1)));
    advance(&mut sim, 2);
    assert_eq!(count(&sim, "rr_fallback") - before, 3);
    // An update that is only late keeps the phase of the others.
    sim.sleep_through(millis(1_300));
    assert_eq!(count(&sim, "rr_fallback") - before, 4);
    assert_eq!(sim.wake_at(), Some(sim.now() + millis(700)));
}

/// WRR-11, WRR-12: shares are exact on every prefix and across updates.
#[test]
fn shares_are_exact_on_every_prefix_and_over_every_update() {
    let mut sim = CoreSim::new(&at_once(), endpoints(["a", "b", "c", "d", "e"])).all_up();
    let mut rng = Rng::fixed(7);
    let names = ["a", "b", "c", "d", "e"];
    let mut weights = [1.0; 5];
    report(&mut sim, std::array::from_fn::<_, 5, _>(|i| (names[i], load(weights[i]))));
    sim.advance(secs(1));
    let (mut due, mut had) = ([0.0; 5], [0.0; 5]);
    for _ in 0..300 {
        for (weight, base) in weights.iter_mut().zip([3.0, 1.0, 20.0, 8.0, 0.7]) {
            *weight = base * (0.9 + 0.2 * rng.unit());
        }
        let total: f64 = weights.iter().sum();
        // Finished calls report the next weights. The weights of the last second apply.
        let rows = sim.describe().endpoints;
        let in_force: Vec<f64> = rows.iter().map(|row| row.share.unwrap()).collect();
        for _ in 0..37 {
            let picked = sim.pick();
            let i = names.iter().position(|name| *name == picked.outcome()).unwrap();
            picked.finish(Code::Ok, Some(&load(weights[i] / total)));
            had[i] += 1.0;
            for (due, share) in due.iter_mut().zip(&in_force) {
                *due += share;
            }
            for (due, had) in due.iter().zip(&had) {
                assert!((due - had).abs() < 1.5, "{had} picks where {due} were due");
            }
        }
        sim.advance(secs(1));
    }
}

/// WRR-12: an endpoint update without changes continues the same sequence.
#[test]
fn the_sequence_continues_across_pickers() {
    let config = at_once();
    let start = || {
        let mut sim = reported(&config, [("a", 3.0), ("b", 5.0), ("c", 7.0)]);
        sim.advance(secs(1));
        sim
    };
    let whole = start().letters(600);
    let mut sim = start();
    let mut picks = String::new();
    for n in 0..20 {
        picks += &sim.letters(n);
        sim.endpoints(endpoints(["a", "b", "c"]));
        picks += &sim.letters(7);
        sim.advance(secs(1));
    }
    assert_eq!(picks, whole[..picks.len()]);
}

/// WRR-13: trackers need load reports per call unless out-of-band reports are configured.
#[test]
fn calls_carry_reports_unless_out_of_band_is_enabled() {
    let wants = |picked: &Picked| match picked {
        Picked::To { trackers, .. } => trackers.needs_load_report(),
        other => panic!("{other:?}"),
    };
    let mut sim = reported(&at_once(), [("a", 1.0), ("b", 3.0)]);
    let before = sim.pick();
    assert!(wants(&before));
    sim.pick().finish(Code::Internal, None);
    drop(sim.pick());
    sim.pick().unsent();
    sim.load("a", load(50.0));
    sim.advance(secs(1));
    assert_eq!(weight(&sim, "a"), Some(1.0), "out-of-band reports are not enabled");
    // A failed call carries a report too.
    let picked = sim.pick();
    let address = picked.finish(Code::Unavailable, Some(&load(9.0)));
    sim.advance(secs(1));
    assert_eq!(weight(&sim, &address), Some(9.0));
    report(&mut sim, [("a", load(1.0)), ("b", load(3.0))]);

    sim.config(&wrr(&json!({"blackoutPeriod": "0s", "enableOobLoadReport": true})));
    assert_eq!((weight(&sim, "a"), weight(&sim, "b")), (Some(1.0), Some(3.0)), "known weights are kept");
    let after = sim.pick();
    assert!(!wants(&after));
    after.finish(Code::Ok, Some(&load(70.0)));
    before.finish(Code::Ok, Some(&load(70.0)));
    sim.load("b", load(4.0));
    sim.load("b", load(5.0));
    sim.advance(secs(1));
    assert_eq!((weight(&sim, "a"), weight(&sim, "b")), (Some(1.0), Some(5.0)));
    sim.config(&at_once());
    assert!(wants(&sim.pick()));
}

/// WRR-14: out-of-band reports are watched with the configured period.
#[test]
fn out_of_band_reports_are_watched_as_configured() {
    let oob = |period: &str| {
        let settings = json!({"enableOobLoadReport": true, "oobReportingPeriod": period});
        wrr(&settings)
    };
    let mut sim = CoreSim::new(&wrr(&json!({})), endpoints(["a", "b"])).all_up();
    sim.dialled();
    assert!(sim.watches().is_empty());
    sim.config(&wrr(&json!({"enableOobLoadReport": true})));
    assert_eq!(sim.watch_log(), ["a every 10s", "b every 10s"]);
    sim.config(&oob("30s"));
    assert_eq!(sim.watch_log(), ["a every 30s", "b every 30s"]);
    sim.config(&wrr(
        &json!({"enableOobLoadReport": true, "oobReportingPeriod": "30s", "blackoutPeriod": "1s"}),
    ));
    assert_eq!(sim.watch_log(), Vec::<String>::new());
    sim.config(&wrr(&json!({})));
    assert_eq!(sim.watch_log(), ["a stop", "b stop"]);
    assert_eq!((sim.dialled(), sim.closed()), (vec![], vec![]));
    // Out-of-band reports start a blackout period with the first report.
    sim.config(&oob("10s"));
    sim.load("a", load(1.0));
    sim.load("b", load(3.0));
    sim.advance(secs(5));
    sim.load("b", load(4.0));
    sim.advance(secs(5));
    assert_eq!((weight(&sim, "a"), weight(&sim, "b")), (Some(1.0), Some(4.0)));
}

/// WRR-15: an endpoint update keeps the weights of listed endpoints.
#[test]
fn weights_survive_an_endpoint_update() {
    let mut sim = reported(&wrr(&json!({})), [("a", 1.0), ("b", 3.0)]);
    sim.advance(secs(10));
    let list = [Endpoint::at("c"), Endpoint::at("b"), Endpoint::at("a"), Endpoint::at("b")];
    sim.endpoints(Endpoints::list(list));
    assert_eq!(["a", "b", "c"].map(|address| weight(&sim, address)), [Some(1.0), Some(3.0), None]);
    assert_eq!(shares(&mut sim, 60), [10, 30, 20]);
    assert_eq!(sim.dialled(), ["a", "b", "c"]);
    sim.endpoints(endpoints(["a"]));
    sim.endpoints(endpoints(["a", "b"]));
    assert_eq!(weight(&sim, "b"), None, "the weight of a removed endpoint is discarded");
    // Another set of addresses is another endpoint, also on the same connection.
    sim.endpoints(Endpoints::list([Endpoint::new(["a", "x"]), Endpoint::at("b")]));
    report(&mut sim, [("a", load(5.0)), ("b", load(7.0))]);
    sim.advance(secs(10));
    let rows: Vec<_> = sim.describe().endpoints.iter().map(|row| (row.weight, row.picks > 0)).collect();
    assert_eq!(rows, [(Some(5.0), true), (Some(7.0), true)]);
}

/// WRR-16: a single endpoint needs no timer.
#[test]
fn one_endpoint_needs_no_timer() {
    let mut sim = CoreSim::new(&at_once(), endpoints(["a", "a"])).all_up();
    assert_eq!(sim.wake_at(), None);
    assert_eq!(sim.letters(5), "aaaaa");
    let row = &sim.describe().endpoints[0];
    assert_eq!((row.share, row.picks), (Some(1.0), 5));
    // Its reports are read nevertheless, since endpoints may be added.
    report(&mut sim, [("a", load(2.0))]);
    sim.endpoints(endpoints(["a", "b"]));
    report(&mut sim, [("b", load(6.0))]);
    sim.advance(secs(1));
    assert_eq!(shares(&mut sim, 40), [10, 30]);
    assert_eq!(sim.wake_at(), Some(Instant::ORIGIN + secs(2)));
    sim.down("b");
    sim.advance(secs(1));
    assert_eq!(sim.letters(3), "aaa");
    assert_eq!(count(&sim, "rr_fallback"), 1, "no more updates");
    assert_eq!(sim.describe().picks(), 5 + 1 + 40 + 3 + 2, "two for b's first report");
}

/// Counters of A78 for scheduler updates.
#[test]
fn updates_are_counted() {
    let counts = |sim: &CoreSim| {
        ["rr_fallback", "endpoint_weight_not_yet_usable", "endpoint_weight_stale"]
            .map(|name| count(sim, name))
    };
    let settings = json!({"blackoutPeriod": "2s", "weightExpirationPeriod": "5s"});
    let mut sim = CoreSim::new(&wrr(&settings), endpoints(["a", "b", "c"]));
    sim.ready("a");
    assert_eq!(counts(&sim), [0, 0, 0], "one endpoint has no updates");
    sim.ready("b");
    sim.ready("c");
    assert_eq!(counts(&sim), [2, 5, 0]);
    report(&mut sim, [("a", load(1.0)), ("b", load(3.0))]);
    sim.advance(secs(1));
    assert_eq!(counts(&sim), [3, 8, 0]);
    // Updates need picks.
    for _ in 0..3 {
        sim.letters(1);
        sim.advance(secs(1));
    }
    assert_eq!(counts(&sim), [3, 11, 0]);
    sim.advance(secs(1));
    assert_eq!(counts(&sim), [4, 12, 2]);
}

/// Weights are capped only if `weightCapRatio` is set.
#[test]
fn a_cap_is_an_option() {
    let list = [("a", 1.0), ("b", 1.0), ("c", 1.0), ("d", 97.0)];
    let mut sim = reported(&at_once(), list);
    sim.advance(secs(1));
    assert_eq!(shares(&mut sim, 1_000), [10, 10, 10, 970]);
    let capped = json!({"blackoutPeriod": "0s", "weightCapRatio": 2});
    sim.config(&wrr(&capped));
    assert_eq!(sim.describe().details["weightCapRatio"], 2.0);
    assert_eq!(shares(&mut sim, 530), [10, 10, 10, 500], "twice the mean of 25");
}

/// Three machines with capacities 1:2:4 reach equal utilization.
#[test]
fn capacities_of_1_2_4_settle_at_that_split() {
    let mut sim = CoreSim::new(&wrr(&json!({})), endpoints(["a", "b", "c"])).all_up();
    let capacity = BTreeMap::from([("a", 100.0), ("b", 200.0), ("c", 400.0)]);
    let mut recent: BTreeMap<String, VecDeque<Instant>> = BTreeMap::new();
    let mut had: BTreeMap<String, usize> = BTreeMap::new();
    for n in 0..10_000_u32 {
        let picked = sim.pick();
        let address = picked.outcome();
        let calls = recent.entry(address.clone()).or_default();
        calls.push_back(sim.now());
        while calls.front().is_some_and(|at| sim.now().since(*at) >= secs(1)) {
            calls.pop_front();
        }
        let rate = calls.len() as f64;
        let load = LoadReport {
            requests_per_second: rate,
            cpu_utilization: rate / capacity[&*address],
            ..LoadReport::default()
        };
        picked.finish(Code::Ok, Some(&load));
        if n >= 6_000 {
            *had.entry(address).or_default() += 1;
        }
        sim.advance(millis(2));
    }
    for (address, share) in [("a", 1.0 / 7.0), ("b", 2.0 / 7.0), ("c", 4.0 / 7.0)] {
        let got = had[address] as f64 / 4_000.0;
        assert!((got / share - 1.0).abs() < 0.02, "{address} got {got} of all calls, not {share}");
    }
}

/// Channels of several clients start at different endpoints.
#[test]
fn the_first_pick_is_random() {
    let picks = |seed| {
        let core = Core::builder(Rng::from_entropy(seed)).build();
        let list = weighted([("a", 1), ("b", 2), ("c", 3)]);
        CoreSim::with(core, Registry::standard(), &at_once(), list).all_up().letters(1)
    };
    let firsts: std::collections::BTreeSet<String> = (0..40).map(picks).collect();
    assert_eq!(firsts.len(), 3);
}

/// Without endpoints, calls fail and no timer is set.
#[test]
fn without_endpoints_calls_fail() {
    let mut sim = CoreSim::new(&at_once(), Endpoints::none());
    assert_eq!(sim.pick().status().unwrap().message(), "no endpoints");
    assert_eq!(sim.wake_at(), None);
}

fn invalid_report() -> impl Strategy<Value = LoadReport> {
    let number = || {
        let special = prop::sample::select(vec![
            0.0,
            -0.0,
            1.0,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::MAX,
            f64::MIN,
            f64::MIN_POSITIVE,
            5e-324,
            1e308,
            1e-308,
        ]);
        prop_oneof![special, prop::num::f64::ANY, 0.01..1000.0_f64]
    };
    (number(), number(), number(), number()).prop_map(|(rate, cpu, application, errors)| LoadReport {
        requests_per_second: rate,
        cpu_utilization: cpu,
        application_utilization: application,
        errors_per_second: errors,
        ..LoadReport::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// fault 58: after 1,000 invalid reports per case, weights are finite and shares add up to 1.
    #[test]
    fn invalid_reports_do_no_harm(
        reports in prop::collection::vec(invalid_report(), 1_000),
        cap in prop_oneof![Just(json!(null)), Just(json!(1)), Just(json!(10.0)), Just(json!(1e300))],
    ) {
        let config = wrr(&json!({"blackoutPeriod": "0s", "weightCapRatio": cap}));
        let mut sim = CoreSim::new(&config, endpoints(["a", "b", "c", "d"])).all_up();
        for some in reports.chunks(50) {
            for report in some {
                sim.pick().finish(Code::Ok, Some(report));
            }
            sim.advance(secs(1));
            let rows = sim.describe().endpoints;
            for row in &rows {
                let weight = row.weight.unwrap();
                prop_assert!(weight.is_finite() && weight >= 0.0, "{weight}");
            }
            let total: f64 = rows.iter().filter_map(|row| row.share).sum();
            prop_assert!((total - 1.0).abs() < 1e-9, "shares sum to {total}");
            prop_assert!(rows.iter().all(|row| row.share.is_some_and(|share| share > 0.0)));
        }
        prop_assert_eq!(sim.describe().picks(), 1_000);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Up(usize),
    Down(usize),
    /// New list: endpoints by index, with EDS weights.
    List(Vec<(usize, u32)>),
    PickArgs(usize, f64),
    Advance(u64),
    Configure(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let weight = prop_oneof![1..5_u32, Just(70_001), Just(u32::MAX)];
    prop_oneof![
        3 => (0..5_usize).prop_map(Step::Up),
        2 => (0..5_usize).prop_map(Step::Down),
        1 => prop::collection::vec((0..5_usize, weight), 0..7).prop_map(Step::List),
        5 => (1..40_usize, 0.1..1000.0_f64).prop_map(|(calls, load)| Step::PickArgs(calls, load)),
        3 => (1..4_000_u64).prop_map(Step::Advance),
        1 => (0..4_usize).prop_map(Step::Configure),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// WRR-10, EDF-8, RR-3: after any events calls go to READY endpoints, shares add up to 1 and every pick
    /// is counted. The simulation checks after each step that another pass changes nothing.
    #[test]
    fn after_any_events_calls_go_to_ready_endpoints(steps in prop::collection::vec(step(), 1..80), first in 0..4_usize) {
        let names = ["a", "b", "c", "d", "e"];
        let configs = [
            at_once(),
            wrr(&json!({"blackoutPeriod": "1s", "weightExpirationPeriod": "3s", "weightUpdatePeriod": "0.3s"})),
            json!([{"edf_weighted_round_robin": {}}]),
            json!([{"round_robin": {}}]),
        ];
        let mut sim = CoreSim::new(&configs[first], endpoints(names));
        let mut policy = first;
        let mut listed = names.to_vec();
        let mut picks: BTreeMap<&str, u64> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Up(i) => sim.up(names[i]),
                Step::Down(i) => sim.down(names[i]),
                Step::Advance(ms) => sim.advance(millis(ms)),
                // Another policy would restart its counts.
                Step::Configure(i) if (i < 2) != (policy < 2) => {}
                Step::Configure(i) if i >= 2 && i != policy => {}
                Step::Configure(i) => {
                    policy = i;
                    sim.config(&configs[i]);
                }
                Step::List(list) => {
                    sim.endpoints(Endpoints::list(
                        list.iter().map(|(i, weight)| Endpoint::at(names[*i]).with_weight(*weight)),
                    ));
                    listed = list.iter().map(|(i, _)| names[*i]).collect();
                    picks.retain(|name, _| listed.contains(name));
                }
                Step::PickArgs(calls, rate) => {
                    let ready = |name: &&&str| sim.state_of(name) == Some(evenkeel_core::ConnectivityState::Ready);
                    let ready: Vec<&str> = listed.iter().filter(ready).copied().collect();
                    for _ in 0..calls {
                        let outcome = sim.pick().finish(Code::Ok, Some(&load(rate)));
                        match ready.iter().find(|name| **name == outcome) {
                            Some(name) => *picks.entry(name).or_default() += 1,
                            None => prop_assert!(
                                ready.is_empty() && ["queue", "fail"].contains(&&*outcome),
                                "{outcome} with {ready:?} ready"
                            ),
                        }
                    }
                }
            }
            let rows = sim.describe().endpoints;
            let total: f64 = rows.iter().filter_map(|row| row.share).sum();
            let whole = if rows.iter().any(|row| row.share.is_some()) { 1.0 } else { 0.0 };
            prop_assert!((total - whole).abs() < 1e-9, "shares sum to {total}");
            for row in &rows {
                prop_assert_eq!(row.picks, picks.get(&*row.addresses[0]).copied().unwrap_or(0), "{:?}", row);
            }
        }
    }
}

mod threads {
    #![expect(clippy::disallowed_methods, reason = "picks come from many threads at once")]

    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use evenkeel_core::{CallOutcome, PickArgs, PickResult};

    use super::*;

    /// WRR-11, EDF-11: the picks of many threads together have exact shares.
    #[test]
    fn many_threads_pick_one_order() {
        for threads in [1, 4, 16] {
            for unit in [1.0, 1.000_1] {
                // With the second unit the sequence is too long for a table.
                let list = [("a", 1.0), ("b", 2.0 * unit), ("c", 4.0)];
                let mut sim = reported(&at_once(), list);
                sim.advance(secs(1));
                let before: Vec<u64> = sim.describe().endpoints.iter().map(|row| row.picks).collect();
                let ids = ["a", "b", "c"].map(|address| sim.find(address).unwrap());
                let counts = [const { AtomicU64::new(0) }; 3];
                let (picker, per_thread) = (sim.picker(), 70_000 / threads);
                let at = sim.now();
                thread::scope(|scope| {
                    for _ in 0..threads {
                        scope.spawn(|| {
                            for n in 0..per_thread {
                                let call = PickArgs::new("/test.Service/Method", n);
                                let PickResult::Complete(id, trackers) = picker.pick(&call) else {
                                    panic!("no pick")
                                };
                                let i = ids.iter().position(|known| *known == id).unwrap();
                                counts[i].fetch_add(1, Ordering::Relaxed);
                                let report = load(list[i].1);
                                trackers.finish(&CallOutcome::Finished {
                                    code: Code::Ok,
                                    at,
                                    load: Some(&report),
                                });
                            }
                        });
                    }
                });
                let all = (per_thread * threads) as f64;
                let total: f64 = list.iter().map(|(_, weight)| weight).sum();
                let rows = sim.describe().endpoints;
                for (i, (address, weight)) in list.iter().enumerate() {
                    let (had, due) = (counts[i].load(Ordering::Relaxed), all * weight / total);
                    assert!(
                        (had as f64 - due).abs() <= 1.5,
                        "{threads} threads, {address}: {had}, due {due}"
                    );
                    assert_eq!(rows[i].picks - before[i], had, "{threads} threads, {address}");
                }
            }
        }
    }
}
