//! `outlier_detection_experimental`: ejections, their duration, and the health that child policies see.

use std::time::Duration;

use evenkeel_core::policy::{FailurePercentageEjection, OutlierDetectionConfig, SuccessRateEjection};
use evenkeel_core::{
    CachedState, Code, ConfigError, ConfigFields, ConnectivityState, Core, Cx, DescribeCx, Description,
    Endpoint, Endpoints, Instant, LbState, PickArgs, PickResult, Picker, Policy, Registry, Rng, SubchannelId,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use testkit::{CoreSim, Picked, endpoints, secs, weighted};

const TEN: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

/// Config over round_robin with these settings.
fn detection(settings: &Value) -> Value {
    detection_over("round_robin", settings)
}

fn detection_over(child: &str, settings: &Value) -> Value {
    json!([{"outlier_detection_experimental": with(&json!({"childPolicy": [{child: {}}]}), settings)}])
}

/// Settings that eject endpoints with more than 50 % failed calls, from one call on, up to all endpoints.
fn strict() -> Value {
    json!({
        "maxEjectionPercent": 100,
        "failurePercentageEjection": {"threshold": 50, "minimumHosts": 1, "requestVolume": 1},
    })
}

fn with(settings: &Value, more: &Value) -> Value {
    let mut all = settings.clone();
    for (name, value) in more.as_object().into_iter().flatten() {
        all[name] = value.clone();
    }
    all
}

/// Makes this number of calls; calls to one of `failing` fail.
fn calls(sim: &mut CoreSim, count: usize, failing: &[&str]) {
    for _ in 0..count {
        let picked = sim.pick();
        let code = if failing.contains(&picked.outcome().as_str()) { Code::Unavailable } else { Code::Ok };
        picked.finish(code, None);
    }
}

/// First addresses of the ejected endpoints.
fn ejected(sim: &CoreSim) -> Vec<String> {
    rows(sim)
        .into_iter()
        .filter(|row| !row["ejectedForAnother"].is_null())
        .map(|row| row["addresses"][0].as_str().unwrap_or_default().to_owned())
        .collect()
}

fn multiplier(sim: &CoreSim, i: usize) -> Value {
    rows(sim)[i]["multiplier"].clone()
}

fn rows(sim: &CoreSim) -> Vec<Value> {
    sim.describe().details["endpoints"].as_array().cloned().unwrap_or_default()
}

fn at(seconds: u64) -> Instant {
    Instant::ORIGIN + secs(seconds)
}

/// OD-1: the defaults are those of A50.
#[test]
fn defaults_are_those_of_a50() {
    let settings = json!({"successRateEjection": {}, "failurePercentageEjection": {}});
    let config = Registry::standard().parse(&detection(&settings)).unwrap();
    let config: &OutlierDetectionConfig = config.settings().unwrap();
    let config = &config.settings;
    assert_eq!(config.interval, secs(10));
    assert_eq!(config.base_ejection_time, secs(30));
    assert_eq!(config.max_ejection_time, secs(300));
    assert_eq!(config.max_ejection_percent, 10);
    let success_rate = SuccessRateEjection {
        stdev_factor: 1900,
        enforcement_percentage: 100,
        minimum_hosts: 5,
        request_volume: 100,
    };
    assert_eq!(config.success_rate_ejection, Some(success_rate));
    let failure_percentage = FailurePercentageEjection {
        threshold: 85,
        enforcement_percentage: 100,
        minimum_hosts: 5,
        request_volume: 50,
    };
    assert_eq!(config.failure_percentage_ejection, Some(failure_percentage));
}

/// OD-2: config errors name the field and the expected value.
#[test]
fn config_errors_name_the_field() {
    for (settings, problem) in [
        (json!({"interval": "-1s"}), ".interval: must not be negative"),
        (json!({"base_ejection_time": "soon"}), ".baseEjectionTime: expected a duration"),
        (json!({"maxEjectionTime": "315576000001s"}), ".maxEjectionTime: expected a duration"),
        (
            json!({"maxEjectionPercent": 101}),
            ".maxEjectionPercent: expected a percentage from 0 to 100, found 101",
        ),
        (
            json!({"successRateEjection": {"enforcementPercentage": 101}}),
            ".successRateEjection.enforcementPercentage: expected a percentage",
        ),
        (
            json!({"failurePercentageEjection": {"enforcementPercentage": 101}}),
            ".failurePercentageEjection.enforcementPercentage: expected a percentage",
        ),
        (
            json!({"failurePercentageEjection": {"threshold": 101}}),
            ".failurePercentageEjection.threshold: expected a percentage",
        ),
        (
            json!({"successRateEjection": {"stdevFactor": -1}}),
            ".successRateEjection.stdevFactor: expected a whole number",
        ),
        (json!({"childPolicy": null}), ".childPolicy: is required"),
    ] {
        let error = Registry::standard().parse(&detection(&settings)).unwrap_err().to_string();
        let place = "policy \"outlier_detection_experimental\": loadBalancingConfig[0].outlier_detection_experimental";
        assert!(error.starts_with(&format!("{place}{problem}")), "{error}");
    }
}

/// OD-2: an interval of zero is valid and counts as one millisecond, so that the timer does not spin.
#[test]
fn an_interval_of_zero_is_a_millisecond() {
    let config = detection(&with(&strict(), &json!({"interval": "0s"})));
    let mut sim = CoreSim::new(&config, endpoints(["a", "b"])).all_up();
    assert!(sim.describe().warnings[0].contains("is raised to it"));
    calls(&mut sim, 2, &["a"]);
    sim.advance(Duration::from_millis(1));
    assert_eq!(ejected(&sim), ["a"]);
}

/// OD-3, OD-13: without any settings, no calls are counted.
#[test]
fn without_an_algorithm_nothing_is_counted() {
    let mut sim = CoreSim::new(&detection(&json!({})), endpoints(["a", "b"])).all_up();
    let picked = sim.pick();
    assert!(matches!(&picked, Picked::To { trackers, .. } if trackers.is_empty()));
    drop(picked);
    calls(&mut sim, 200, &["a"]);
    assert_eq!(sim.wake_at(), None);
    sim.advance(secs(100));
    assert_eq!(ejected(&sim), [""; 0]);
    assert_eq!(rows(&sim)[0]["lastFailures"], 0);
}

/// OD-4: a sweep counts the calls that finished since the last one.
#[test]
fn calls_that_finished_since_the_last_sweep_count() {
    let config = detection(&json!({"successRateEjection": {}}));
    let mut sim = CoreSim::new(&config, endpoints(["a"])).all_up();
    sim.pick().finish_ok();
    sim.pick().finish(Code::NotFound, None);
    sim.pick().finish(Code::Cancelled, None);
    drop(sim.pick());
    sim.pick().unsent();
    let open = sim.pick();
    let last = |sim: &CoreSim| {
        let row = &rows(sim)[0];
        (row["lastSuccesses"].as_u64().unwrap(), row["lastFailures"].as_u64().unwrap())
    };
    assert_eq!(last(&sim), (0, 0), "not taken before the sweep");
    sim.advance(secs(10));
    assert_eq!(last(&sim), (1, 3));
    open.finish_ok();
    sim.advance(secs(10));
    assert_eq!(last(&sim), (1, 0));
    sim.advance(secs(10));
    assert_eq!(last(&sim), (0, 0));
}

/// OD-5: mean 0.8 and population standard deviation 0.4 put the line at 0.8 - 1.9 * 0.4 = 0.04. With a
/// sample's deviation it would be below 0.
#[test]
fn a_success_rate_far_below_the_mean_ejects() {
    let five = || endpoints(["a", "b", "c", "d", "e"]);
    for (rule, per_endpoint, expected) in [
        (json!({}), 100, vec!["c"]),
        (json!({}), 99, vec![]),
        (json!({"requestVolume": 99}), 99, vec!["c"]),
        (json!({"minimumHosts": 6}), 100, vec![]),
        (json!({"stdevFactor": 1999}), 100, vec!["c"]),
        (json!({"stdevFactor": 2001}), 100, vec![]),
    ] {
        let mut sim = CoreSim::new(&detection(&json!({"successRateEjection": rule})), five()).all_up();
        calls(&mut sim, per_endpoint * 5, &["c"]);
        sim.advance(secs(10));
        assert_eq!(ejected(&sim), expected, "{rule}");
    }
}

/// OD-5: if all endpoints have the same success rate, none is an outlier, however the rates round.
#[test]
fn equal_rates_have_no_outlier() {
    let settings = json!({
        "maxEjectionPercent": 100,
        "successRateEjection": {"stdevFactor": 0, "minimumHosts": 1, "requestVolume": 1},
    });
    for (calls, failures) in [(10, 9), (3, 1), (7, 2), (1, 1)] {
        let mut sim = pointed(&settings, &TEN);
        for address in TEN {
            call(&mut sim, address, calls - failures, failures);
        }
        sim.advance(secs(10));
        assert_eq!(ejected(&sim), [""; 0]);
    }
}

/// OD-6: endpoints above the threshold are ejected, not those at it.
#[test]
fn more_failures_than_the_threshold_eject() {
    let settings = json!({
        "maxEjectionPercent": 100,
        "failurePercentageEjection": {"minimumHosts": 3, "requestVolume": 20},
    });
    for (hosts, expected) in [
        // 85 of 100 is not above the threshold, 86 is. 19 calls are too few. Two endpoints with enough calls
        // are too few too.
        (vec![(15, 85), (14, 86), (0, 19), (20, 0)], vec!["b"]),
        (vec![(0, 20), (0, 20), (0, 19)], vec![]),
        (vec![(0, 20), (0, 20), (0, 20)], vec!["a", "b", "c"]),
    ] {
        let mut sim = pointed(&settings, &TEN[..hosts.len()]);
        for (address, (ok, failed)) in TEN.into_iter().zip(hosts) {
            call(&mut sim, address, ok, failed);
        }
        sim.advance(secs(10));
        assert_eq!(ejected(&sim), expected);
    }
}

/// OD-7, fault 52: half of ten backends fail. As in A50 the share is compared before each ejection, so that a
/// fractional number of endpoints is rounded up.
#[test]
fn no_more_than_the_allowed_share_is_ejected() {
    let half = &TEN[..5];
    for (percent, expected) in [(0, 1), (9, 1), (10, 1), (11, 2), (30, 3), (50, 5), (100, 5)] {
        let settings = with(&strict(), &json!({"maxEjectionPercent": percent, "baseEjectionTime": "60s"}));
        let mut sim = CoreSim::new(&detection(&settings), endpoints(TEN)).all_up();
        for _ in 0..5 {
            calls(&mut sim, 100, half);
            sim.advance(secs(10));
            assert_eq!(ejected(&sim).len(), expected, "{percent} %");
            assert!(!sim.picks(30).iter().any(|address| ejected(&sim).contains(address)));
        }
        let tally = &sim.describe().details["ejections"]["failure_percentage"];
        assert_eq!(tally["enforced"], expected);
        assert_eq!(tally["unenforced"]["max_ejection_overflow"], 5 * (5 - expected));
    }
}

/// OD-8: an ejection is enforced with the configured probability.
#[test]
fn enforcement_is_random() {
    for (percent, enforced) in [(0, 0..=0), (1, 1..=25), (50, 440..=560), (99, 975..=999), (100, 1000..=1000)]
    {
        for rule in ["successRateEjection", "failurePercentageEjection"] {
            let rules = json!({
                "minimumHosts": 1, "requestVolume": 1, "enforcementPercentage": percent,
            });
            let settings = json!({"maxEjectionPercent": 100, "baseEjectionTime": "0s", rule: rules});
            let mut sim = pointed(&settings, &TEN);
            for _ in 0..1000 {
                call(&mut sim, "a", 0, 1);
                TEN[1..].iter().for_each(|address| call(&mut sim, address, 1, 0));
                sim.advance(secs(10));
            }
            let method = if rule == "successRateEjection" { "success_rate" } else { "failure_percentage" };
            let tally = sim.describe().details["ejections"][method].clone();
            let ejections = tally["enforced"].as_u64().unwrap();
            assert!(enforced.contains(&ejections), "{percent} %: {ejections}");
            assert_eq!(tally["unenforced"]["enforcement_percentage"], 1000 - ejections);
        }
    }
}

/// OD-9: each ejection lasts longer, and sweeps without one shorten the next.
#[test]
fn ejections_grow_longer_and_shorter_again() {
    let mut sim = CoreSim::new(&detection(&strict()), endpoints(["a", "b"])).all_up();
    let mut log = Vec::new();
    for sweep in 1..=17 {
        calls(&mut sim, 4, if sweep <= 8 { &["a"] } else { &[] });
        sim.advance(secs(10));
        log.push(format!("{}{}", if ejected(&sim).is_empty() { "in" } else { "out" }, multiplier(&sim, 0)));
    }
    let expected = [
        // Ejected at 10 s for 30 s, at 50 s for 60 s. Then the endpoint is healthy, and each sweep decrements
        // the multiplier.
        "out1", "out1", "out1", "in1", "out2", "out2", "out2", "out2", "out2", "out2", "in2", "in1", "in0",
        "in0", "in0", "in0", "in0",
    ];
    assert_eq!(log, expected);
}

/// OD-1, OD-9: the maximum ejection time is the larger of base and maximum.
#[test]
fn ejections_have_a_maximum_time() {
    for (base, max, second) in
        [("30s", "50s", 50), ("30s", "40s", 40), ("30s", "10s", 30), ("400s", "300s", 400)]
    {
        let settings = with(&strict(), &json!({"baseEjectionTime": base, "maxEjectionTime": max}));
        let mut sim = pointed(&settings, &["a", "b"]);
        call(&mut sim, "a", 0, 1);
        sim.advance(secs(10));
        // A call from before the ejection fails, so the endpoint is ejected once more.
        call(&mut sim, "a", 0, 1);
        sim.advance(secs(10));
        assert_eq!(multiplier(&sim, 0), 2);
        assert_eq!(rows(&sim)[0]["ejectedForAnother"], format!("{second}s"));
        sim.advance(secs(second - 1));
        assert_eq!(ejected(&sim), ["a"], "{base} {max}");
        sim.advance(secs(1));
        assert_eq!(ejected(&sim), [""; 0], "{base} {max}");
    }
}

/// OD-10: a changed interval counts from the last sweep.
#[test]
fn a_changed_interval_counts_from_the_last_sweep() {
    let interval = |interval: &str| detection(&with(&strict(), &json!({"interval": interval})));
    let mut sim = CoreSim::new(&interval("10s"), endpoints(["a", "b"])).all_up();
    sim.advance(secs(16));
    calls(&mut sim, 2, &["a"]);
    assert_eq!(sim.wake_at(), Some(at(20)));
    sim.config(&interval("30s"));
    assert_eq!(sim.wake_at(), Some(at(40)));
    sim.config(&interval("8s"));
    assert_eq!(sim.wake_at(), Some(at(18)));
    assert_eq!(ejected(&sim), [""; 0]);
    sim.config(&interval("5s"));
    assert_eq!(ejected(&sim), ["a"], "that interval is over already");
    assert_eq!(sim.wake_at(), Some(at(21)));
}

/// OD-10, OD-13: without algorithms all endpoints are un-ejected, and calls are not counted.
#[test]
fn without_algorithms_all_endpoints_are_un_ejected() {
    let mut sim = CoreSim::new(&detection(&strict()), endpoints(["a", "b"])).all_up();
    calls(&mut sim, 2, &["a"]);
    sim.advance(secs(10));
    assert_eq!(sim.picks(2), ["b", "b"]);
    let late: Vec<_> = (0..5).map(|_| sim.pick()).collect();
    sim.config(&detection(&json!({})));
    assert_eq!(ejected(&sim), [""; 0]);
    assert_eq!(multiplier(&sim, 0), 0);
    assert_eq!(sim.wake_at(), None);
    let mut picks = sim.picks(2);
    picks.sort();
    assert_eq!(picks, ["a", "b"]);
    for picked in late {
        picked.finish(Code::Unavailable, None);
    }
    sim.advance(secs(5));
    sim.config(&detection(&strict()));
    assert_eq!(sim.wake_at(), Some(at(25)), "a fresh start");
    sim.advance(secs(10));
    assert_eq!(ejected(&sim), [""; 0], "calls counted in between are discarded");
}

/// OD-11: an endpoint is ejected with all its addresses.
#[test]
fn an_endpoint_is_all_its_addresses() {
    let mut sim = pointed(&strict(), &[]);
    let two = |order: [&str; 2]| Endpoints::list([Endpoint::new(order), Endpoint::at("c")]);
    sim.endpoints(two(["a", "b"]));
    call(&mut sim, "a", 4, 3);
    sim.endpoints(two(["b", "a"]));
    call(&mut sim, "b", 1, 3);
    sim.advance(secs(10));
    assert_eq!(ejected(&sim), ["b"], "6 of 11 calls to either address failed");
    assert_eq!(rows(&sim)[0]["addresses"], json!(["b", "a"]));
    // The child's picker is unchanged, but the addresses belong to other endpoints.
    sim.endpoints(Endpoints::list([Endpoint::at("b"), Endpoint::new(["a", "c"])]));
    call(&mut sim, "a", 2, 2);
    call(&mut sim, "b", 0, 1);
    call(&mut sim, "c", 0, 1);
    sim.advance(secs(10));
    assert_eq!(ejected(&sim), ["b", "a"]);
}

/// OD-11, PF-13: an ejected endpoint reports TRANSIENT_FAILURE to round_robin and keeps its connection.
/// Health changes the reported state, never the selected connection. Ejection is the only source of health
/// here (A17 is not supported).
#[test]
fn both_addresses_are_ejected_and_the_connection_is_kept() {
    let two = Endpoints::list([Endpoint::new(["a", "b"]), Endpoint::at("c")]);
    let mut sim = CoreSim::new(&detection(&strict()), two).all_up();
    calls(&mut sim, 2, &["a"]);
    sim.advance(secs(10));
    assert_eq!(sim.picks(2), ["c", "c"]);
    assert_eq!(sim.state_of("a"), Some(ConnectivityState::Ready));
    let row = &sim.describe().children[0].1.endpoints[0];
    assert_eq!(row.state, ConnectivityState::TransientFailure);
    assert_eq!(row.unused.as_deref(), Some("ejected by outlier detection"));
    sim.dialled();
    // The endpoint now connects to its other address, which is ejected as well.
    sim.down("a");
    assert_eq!(sim.dialled().last().unwrap(), "b");
    assert_eq!(sim.picks(2), ["c", "c"]);
    sim.dialled();
    sim.closed();
    sim.advance(secs(30));
    assert!(sim.picks(2).contains(&"b".to_owned()));
    assert_eq!((sim.dialled(), sim.closed()), (vec![], vec![]));
}

/// OD-11: an update of attributes keeps ejections, counts and connections.
#[test]
fn attributes_are_no_part_of_identity() {
    let mut sim = CoreSim::new(&detection(&strict()), weighted([("a", 1), ("b", 1), ("c", 1)])).all_up();
    calls(&mut sim, 3, &["a"]);
    sim.advance(secs(10));
    let half_counted = ["b"];
    calls(&mut sim, 2, &half_counted);
    sim.endpoints(weighted([("c", 5), ("b", 5), ("a", 5)]));
    assert_eq!(ejected(&sim), ["a"]);
    sim.advance(secs(10));
    assert_eq!(ejected(&sim), ["b", "a"]);
    sim.endpoints(endpoints(["b", "c"]));
    sim.endpoints(endpoints(["a", "b", "c"]));
    assert_eq!(ejected(&sim), ["b"], "the state of a removed endpoint is discarded");
}

/// OD-12, PF-13: pick_first as the top policy does not watch health.
#[test]
fn pick_first_alone_ignores_ejections() {
    let mut sim = CoreSim::new(&detection_over("pick_first", &strict()), endpoints(["a", "b"])).all_up();
    calls(&mut sim, 10, &["a"]);
    sim.advance(secs(10));
    assert_eq!(ejected(&sim), ["a"]);
    assert_eq!(sim.picks(2), ["a", "a"]);
    assert_eq!(sim.state(), ConnectivityState::Ready);
}

/// With all endpoints ejected, the state is TRANSIENT_FAILURE and the status names the ejection.
#[test]
fn all_ejected_fails_calls() {
    let mut sim = CoreSim::new(&detection(&strict()), endpoints(["a"])).all_up();
    calls(&mut sim, 1, &["a"]);
    sim.advance(secs(10));
    assert_eq!(sim.state(), ConnectivityState::TransientFailure);
    assert_eq!(sim.pick().status().unwrap().message(), "a: ejected by outlier detection");
    sim.advance(secs(30));
    assert_eq!(sim.picks(1), ["a"]);
}

/// fault 68: after a pause there is one sweep and at most one new picker. Although every call failed, only
/// the allowed share is ejected. No end of an ejection is missed.
#[test]
fn a_pause_is_one_sweep() {
    let settings = json!({"successRateEjection": {}, "failurePercentageEjection": {}});
    let mut sim = CoreSim::new(&detection(&settings), endpoints(TEN)).all_up();
    sim.advance(secs(3));
    sim.published();
    let open: Vec<_> = (0..1000).map(|_| sim.pick()).collect();
    for picked in open {
        picked.finish(Code::DeadlineExceeded, None);
    }
    sim.sleep_through(secs(30));
    assert_eq!(ejected(&sim), ["a"], "the default share of ten");
    assert_eq!(multiplier(&sim, 0), 1);
    assert_eq!(sim.wake_at(), Some(at(43)));
    assert_eq!(sim.published(), 1);
    sim.sleep_through(secs(86_400));
    assert_eq!(ejected(&sim), [""; 0]);
    assert_eq!(multiplier(&sim, 0), 1);
    assert_eq!(sim.wake_at(), Some(at(86_443)));
    assert_eq!(sim.published(), 1);
}

/// fault 68: a clock that jumps back does not repeat a sweep.
#[test]
fn a_clock_that_jumps_back_sweeps_nothing_twice() {
    let mut sim = CoreSim::new(&detection(&strict()), endpoints(["a", "b"])).all_up();
    calls(&mut sim, 2, &["a"]);
    sim.advance(secs(10));
    sim.published();
    for seconds in [3, 0, 9] {
        sim.set_clock(at(seconds));
        assert_eq!(ejected(&sim), ["a"]);
        assert_eq!(sim.wake_at(), Some(at(20)));
    }
    assert_eq!(sim.published(), 0);
}

/// Sweeps and updates without changes publish no picker.
#[test]
fn sweeps_without_changes_keep_the_picker() {
    let mut sim = CoreSim::new(&detection(&strict()), endpoints(["a", "b"])).all_up();
    sim.published();
    for _ in 0..5 {
        calls(&mut sim, 10, &[]);
        sim.advance(secs(10));
    }
    sim.config(&detection(&strict()));
    sim.endpoints(endpoints(["a", "b"]));
    assert_eq!(sim.published(), 0);
}

/// A reconnected endpoint keeps its count. A new endpoint is counted too.
#[test]
fn calls_are_counted_across_reconnects_and_updates() {
    let mut sim = CoreSim::new(&detection(&strict()), endpoints(["a"])).all_up();
    calls(&mut sim, 1, &["a"]);
    sim.lose("a");
    calls(&mut sim, 1, &["a"]);
    sim.endpoints(endpoints(["b", "a"]));
    calls(&mut sim, 2, &[]);
    sim.advance(secs(10));
    let counts: Vec<_> =
        rows(&sim).iter().map(|row| (row["lastSuccesses"].clone(), row["lastFailures"].clone())).collect();
    assert_eq!(counts, [(json!(1), json!(0)), (json!(1), json!(2))]);
}

/// OD-11, CI-1: the policy works above xds_cluster_impl, as in an xDS tree. Drops of the cluster are not
/// failures of an endpoint.
#[test]
fn works_over_a_cluster() {
    let cluster = json!([{"xds_cluster_impl_experimental": {
        "cluster": "c",
        "dropCategories": [{"category": "lb", "requestsPerMillion": 500_000}],
        "childPolicy": [{"round_robin": {}}],
    }}]);
    let settings = with(&strict(), &json!({"childPolicy": cluster}));
    let mut sim = CoreSim::new(&detection(&settings), endpoints(["a", "b"])).all_up();
    calls(&mut sim, 100, &["a"]);
    sim.advance(secs(10));
    assert_eq!(ejected(&sim), ["a"]);
    assert_eq!(rows(&sim)[1]["lastFailures"], 0);
    let shares = sim.shares(100);
    assert!(shares["b"] > 30 && shares["drop"] > 30 && !shares.contains_key("a"));
    assert_eq!(sim.describe().children[0].1.details["inFlight"], 0);
}

#[test]
fn no_endpoints_and_duplicates() {
    let mut sim = CoreSim::new(&detection(&strict()), Endpoints::none());
    sim.advance(secs(30));
    assert_eq!(sim.pick().status().unwrap().message(), "no endpoints");
    let none: [&str; 0] = [];
    let twice = ["a", "b", "a"].map(Endpoint::at);
    sim.endpoints(Endpoints::list(twice.into_iter().chain([Endpoint::new(none)])));
    assert_eq!(rows(&sim).len(), 2);
}

#[test]
fn the_description_has_settings_and_ejections() {
    let mut sim = CoreSim::new(&detection(&strict()), endpoints(["a", "b"])).all_up();
    calls(&mut sim, 2, &["a"]);
    sim.advance(secs(12));
    let details = Value::from(sim.describe().details);
    assert_eq!(details["interval"], "10s");
    assert_eq!(details["ejected"], 1);
    assert_eq!(details["successRateEjection"], Value::Null);
    assert_eq!(details["failurePercentageEjection"]["threshold"], 50);
    assert_eq!(
        details["endpoints"][0],
        json!({
            "addresses": ["a"], "ejectedForAnother": "28s", "multiplier": 1, "lastSuccesses": 0, "lastFailures": 1,
        })
    );
    assert_eq!(details["ejections"]["failure_percentage"]["enforced"], 1);
}

/// Returns a simulation over [`Pointed`], in which the cluster of a call names its endpoint, ejected or not.
fn pointed(settings: &Value, addresses: &[&str]) -> CoreSim {
    let mut registry = Registry::standard();
    registry.register::<Pointed>("pointed");
    let endpoints = Endpoints::list(addresses.iter().copied().map(Endpoint::at));
    let core = Core::builder(Rng::fixed(1)).build();
    CoreSim::with(core, registry, &detection_over("pointed", settings), endpoints)
}

fn call(sim: &mut CoreSim, address: &str, successes: usize, failures: usize) {
    for n in 0..successes + failures {
        let entropy = sim.entropy();
        let picked = sim.pick_call(&PickArgs::new("/s/m", entropy).with_cluster(address));
        picked.finish(if n < successes { Code::Ok } else { Code::Internal }, None);
    }
}

/// Test policy that sends a call to the address that its cluster names.
#[derive(Default)]
struct Pointed {
    state: CachedState<Vec<(String, SubchannelId)>>,
}

struct PointedPicker(Vec<(String, SubchannelId)>);

impl Policy for Pointed {
    type Config = ();

    fn parse(_: &ConfigFields<'_>) -> Result<(), ConfigError> {
        Ok(())
    }

    fn reconcile(&mut self, (): &(), endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        let addresses = endpoints.iter().flat_map(|endpoint| endpoint.addresses().iter());
        let table: Vec<_> =
            addresses.map(|address| (address.to_string(), cx.subchannel(address).id())).collect();
        self.state
            .get_or_build(table, |table| LbState::new(ConnectivityState::Ready, PointedPicker(table.clone())))
    }

    fn describe(&self, _: &DescribeCx<'_>) -> Description {
        Description::new()
    }
}

impl Picker for PointedPicker {
    fn pick(&self, call: &PickArgs<'_>) -> PickResult {
        let found = self.0.iter().find(|(address, _)| Some(address.as_str()) == call.cluster());
        found.map_or(PickResult::QUEUE, |(_, id)| PickResult::complete(*id))
    }
}

/// Model of A50 over plain numbers: seconds, counts and a list of endpoint states.
struct Model {
    rules: Rules,
    hosts: Vec<ModelHost>,
}

#[derive(Clone, Debug)]
struct Rules {
    base: u64,
    max: u64,
    max_percent: usize,
    success_rate: Option<Rule>,
    failure_percentage: Option<Rule>,
}

/// One algorithm; `line` is the factor or the threshold.
#[derive(Clone, Debug)]
struct Rule {
    line: usize,
    minimum_hosts: usize,
    volume: usize,
    enforced: bool,
}

#[derive(Clone, Debug)]
struct ModelHost {
    name: &'static str,
    since: Option<u64>,
    multiplier: u64,
}

type Ends = (usize, usize);

impl Model {
    fn update(&mut self, names: &[&'static str]) {
        let keep = |name: &&'static str| {
            let known = self.hosts.iter().find(|host| host.name == *name).cloned();
            known.unwrap_or(ModelHost { name, since: None, multiplier: 0 })
        };
        self.hosts = names.iter().map(keep).collect();
    }

    /// Returns `None` if a rate is so near its line that rounding decides.
    fn sweep(&mut self, now: u64, ends: &[Ends]) -> Option<()> {
        let rules = self.rules.clone();
        if let Some(rule) = &rules.success_rate {
            let judged = judged(rule, ends);
            let rate = |i: usize| ends[i].0 as f64 / (ends[i].0 + ends[i].1) as f64;
            let n = judged.len() as f64;
            let mean = judged.iter().map(|i| rate(*i)).sum::<f64>() / n;
            let stdev =
                (judged.iter().map(|i| (rate(*i) - mean) * (rate(*i) - mean)).sum::<f64>() / n).sqrt();
            let line = mean - stdev * (rule.line as f64 / 1000.0);
            let alike = judged.iter().all(|i| {
                ends[*i].0 * (ends[judged[0]].0 + ends[judged[0]].1)
                    == ends[judged[0]].0 * (ends[*i].0 + ends[*i].1)
            });
            for i in judged.into_iter().filter(|_| !alike) {
                if (rate(i) - line).abs() < 1e-9 {
                    return None;
                }
                if rate(i) < line {
                    self.eject(i, now, rule.enforced);
                }
            }
        }
        if let Some(rule) = &rules.failure_percentage {
            for i in judged(rule, ends) {
                if ends[i].1 * 100 > rule.line * (ends[i].0 + ends[i].1) {
                    self.eject(i, now, rule.enforced);
                }
            }
        }
        for host in &mut self.hosts {
            if let Some(since) = host.since {
                let longest = rules.max.max(rules.base);
                if now >= since + (rules.base * host.multiplier).min(longest) {
                    host.since = None;
                }
            } else if host.multiplier > 0 {
                host.multiplier -= 1;
            }
        }
        Some(())
    }

    fn eject(&mut self, i: usize, now: u64, enforced: bool) {
        let ejected = self.hosts.iter().filter(|host| host.since.is_some()).count();
        let percent = ejected as f64 / self.hosts.len() as f64 * 100.0;
        if enforced && (ejected == 0 || percent < self.rules.max_percent as f64) {
            self.hosts[i].since = Some(now);
            self.hosts[i].multiplier += 1;
        }
    }
}

fn judged(rule: &Rule, ends: &[Ends]) -> Vec<usize> {
    let enough = |i: &usize| ends[*i].0 + ends[*i].1 >= rule.volume;
    let judged: Vec<usize> = (0..ends.len()).filter(enough).collect();
    if judged.len() < rule.minimum_hosts { Vec::new() } else { judged }
}

fn rule(lines: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Option<Rule>> {
    let rule = (lines, 0..5usize, 1..8usize, prop::bool::weighted(0.9))
        .prop_map(|(line, minimum_hosts, volume, enforced)| Rule { line, minimum_hosts, volume, enforced });
    prop::option::weighted(0.8, rule)
}

fn rules() -> impl Strategy<Value = Rules> {
    let either = (rule(0..=2500), rule(0..=100))
        .prop_filter("one algorithm at least", |(a, b)| a.is_some() || b.is_some());
    (0..40u64, 0..100u64, 0..=100usize, either).prop_map(
        |(base, max, max_percent, (success_rate, failure_percentage))| Rules {
            base,
            max,
            max_percent,
            success_rate,
            failure_percentage,
        },
    )
}

fn as_json(rules: &Rules) -> Value {
    let rule = |rule: &Option<Rule>, line: &str| {
        rule.as_ref().map(|rule| {
            json!({
                line: rule.line,
                "minimumHosts": rule.minimum_hosts,
                "requestVolume": rule.volume,
                "enforcementPercentage": if rule.enforced { 100 } else { 0 },
            })
        })
    };
    json!({
        "baseEjectionTime": format!("{}s", rules.base),
        "maxEjectionTime": format!("{}s", rules.max),
        "maxEjectionPercent": rules.max_percent,
        "successRateEjection": rule(&rules.success_rate, "stdevFactor"),
        "failurePercentageEjection": rule(&rules.failure_percentage, "threshold"),
    })
}

/// Events before a sweep: the new set of endpoints (as bits), the calls of each endpoint, and the delay of
/// the sweep.
fn step() -> impl Strategy<Value = (Option<u16>, Vec<Ends>, u64)> {
    let ends = prop_oneof![3 => (0..10usize, 0..2usize), 1 => (0..3usize, 0..10usize), 1 => Just((0, 0))];
    let late = prop_oneof![3 => Just(0), 1 => 0..50u64];
    (prop::option::weighted(0.2, 1..1024u16), prop::collection::vec(ends, TEN.len()), late)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// OD-5, OD-6, OD-7, OD-9: the policy agrees with the model of A50 for any failures and any changes of
    /// the endpoint list.
    #[test]
    fn agrees_with_the_model(rules in rules(), steps in prop::collection::vec(step(), 1..12)) {
        let mut names: Vec<&'static str> = TEN[..5].to_vec();
        let mut model = Model { rules: rules.clone(), hosts: Vec::new() };
        model.update(&names);
        let mut sim = pointed(&as_json(&rules), &names);
        for (members, ends, late) in steps {
            if let Some(members) = members {
                names = (0..TEN.len()).filter(|i| members >> i & 1 == 1).map(|i| TEN[i]).collect();
                sim.endpoints(Endpoints::list(names.iter().copied().map(Endpoint::at)));
                model.update(&names);
            }
            let ends = &ends[..names.len()];
            for (name, (successes, failures)) in names.iter().zip(ends) {
                call(&mut sim, name, *successes, *failures);
            }
            sim.sleep_through(secs(10 + late));
            let now = sim.now().since(Instant::ORIGIN).as_secs();
            prop_assume!(model.sweep(now, ends).is_some());
            let expected: Vec<_> =
                model.hosts.iter().map(|host| (host.name, host.since.is_some(), host.multiplier)).collect();
            let rows = rows(&sim);
            let found: Vec<_> = rows
                .iter()
                .map(|row| {
                    let name = row["addresses"][0].as_str().unwrap();
                    (name, !row["ejectedForAnother"].is_null(), row["multiplier"].as_u64().unwrap())
                })
                .collect();
            prop_assert_eq!(found, expected);
        }
    }

    /// OD-7, fault 52: the number of ejected endpoints is at most the allowed share, rounded up. If any
    /// endpoint fails, at least one is ejected. (Ejections last longer than the test.)
    #[test]
    fn the_share_holds(
        percent in 0..=100usize,
        count in 1..=TEN.len(),
        failing in prop::collection::vec(0..1024u16, 1..6),
    ) {
        let settings = with(&strict(), &json!({"maxEjectionPercent": percent, "baseEjectionTime": "100s"}));
        let mut sim = pointed(&settings, &TEN[..count]);
        for failing in failing {
            for (i, address) in TEN[..count].iter().enumerate() {
                let fails = failing >> i & 1 == 1;
                call(&mut sim, address, usize::from(!fails), usize::from(fails));
            }
            sim.advance(secs(10));
            let ejected = ejected(&sim).len();
            prop_assert!(ejected <= (count * percent).div_ceil(100).max(1));
            prop_assert!(ejected > 0 || failing & ((1 << count) - 1) == 0);
        }
    }
}
