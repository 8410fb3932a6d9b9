//! Measurements of a core and their labels.

use evenkeel_core::cluster::LeafCluster;
use evenkeel_core::policy::{FailurePercentageEjection, OutlierSettings, SuccessRateEjection};
use evenkeel_core::{
    Code, DetectionMethod, Endpoints, LbLabels, LoadReport, Measurement, OutlierCounts, UnenforcedReason,
    WeightUpdate,
};
use serde_json::{Value, json};
use testkit::{CoreSim, endpoints, secs};

use crate::discovered::{Discovered, eds, lb_policy, set};

fn wrr() -> Value {
    json!([{"weighted_round_robin": {"blackoutPeriod": "2s", "weightExpirationPeriod": "5s"}}])
}

fn cds(cluster: &str) -> Value {
    json!([{"cds_experimental": {"cluster": cluster}}])
}

/// Returns a simulation that measures, whose backends all accept connections, with these clusters.
fn sim(cluster: &str, discovered: &Discovered) -> CoreSim {
    let mut sim = CoreSim::measuring(&cds(cluster), Endpoints::none()).all_up();
    sim.clusters(&discovered.0);
    sim
}

fn weight_updates(all: Vec<Measurement>) -> Vec<WeightUpdate> {
    let update = |measurement| match measurement {
        Measurement::WeightUpdate(update) => update,
        other => panic!("not a weight update: {other:?}"),
    };
    all.into_iter().map(update).collect()
}

/// Outliers by detection method and unenforced reason, with their number.
type Expected<'a> = &'a [(DetectionMethod, Option<UnenforcedReason>, u64)];

fn labels(backend_service: &str, locality: &str) -> LbLabels {
    LbLabels { backend_service: Some(backend_service.into()), locality: Some(locality.into()) }
}

/// WRR-17: each scheduler update is one measurement. The weight of an endpoint without a usable weight is 0.
#[test]
fn updates_of_the_scheduler_are_measured() {
    let mut sim = CoreSim::measuring(&wrr(), endpoints(["a", "b", "c"]));
    let taken = |sim: &mut CoreSim| -> Vec<(bool, u64, u64, Vec<f64>)> {
        let all = weight_updates(sim.measurements()).into_iter();
        all.inspect(|one| assert_eq!(one.labels, LbLabels::default()))
            .map(|one| (one.rr_fallback, one.not_yet_usable, one.stale, one.weights))
            .collect()
    };
    sim.ready("a");
    assert_eq!(taken(&mut sim), [], "one endpoint has no updates");
    sim.ready("b");
    sim.ready("c");
    assert_eq!(taken(&mut sim), [(true, 2, 0, vec![0.0; 2]), (true, 3, 0, vec![0.0; 3])]);
    for _ in 0..3 {
        let picked = sim.pick();
        let weight = match picked.outcome().as_str() {
            "a" => 1.0,
            "b" => 3.0,
            _ => 0.0,
        };
        let load = LoadReport { requests_per_second: weight, cpu_utilization: 1.0, ..LoadReport::default() };
        picked.finish(Code::Ok, Some(&load));
    }
    sim.advance(secs(1));
    assert_eq!(taken(&mut sim), [(true, 3, 0, vec![0.0; 3])]);
    // Updates need picks.
    for _ in 0..3 {
        sim.picks(1);
        sim.advance(secs(1));
    }
    assert_eq!(taken(&mut sim), vec![(false, 1, 0, vec![1.0, 3.0, 0.0]); 3]);
    sim.advance(secs(1));
    assert_eq!(taken(&mut sim), [(true, 1, 2, vec![0.0; 3])]);
    sim.down("b");
    sim.down("c");
    taken(&mut sim);
    sim.advance(secs(5));
    assert_eq!(taken(&mut sim), [], "one endpoint has no updates");
}

/// WRR-17, WRR-18: measurements carry the labels of their cluster and locality.
#[test]
fn measurements_carry_their_labels() {
    let policy = json!([{"xds_wrr_locality_experimental": {"childPolicy": wrr()}}]);
    let leaf = |name: &str| LeafCluster { lb_policy: lb_policy(&policy), ..eds(name) };
    let discovered = Discovered::default()
        .with_leaf(leaf("orders"), set("a@x b@x c@y d@y"))
        .with_leaf(leaf("spare"), set("e@z f@z"))
        .with_aggregate("all", &["orders", "spare"]);
    let mut sim = sim("all", &discovered);
    let zone = |zone: &str| format!("{{region=\"\", zone=\"{zone}\", sub_zone=\"\"}}");
    let mut seen: Vec<LbLabels> = Vec::new();
    for one in weight_updates(sim.measurements()) {
        if !seen.contains(&one.labels) {
            seen.push(one.labels);
        }
    }
    assert_eq!(seen, [labels("orders", &zone("x")), labels("orders", &zone("y"))]);
    for address in ["a", "b", "c", "d"] {
        sim.down(address);
    }
    let last = weight_updates(sim.measurements()).pop().expect("the spare cluster is used");
    assert_eq!(last.labels, labels("spare", &zone("z")));
}

/// OD-15: outliers are counted by detection method and reason, with the label of their cluster.
#[test]
fn outliers_are_measured() {
    use DetectionMethod::{FailurePercentage, SuccessRate};
    use UnenforcedReason::{EnforcementPercentage, MaxEjectionOverflow};
    let by_rate = |enforced| SuccessRateEjection {
        minimum_hosts: 1,
        request_volume: 1,
        stdev_factor: 0,
        enforcement_percentage: enforced,
    };
    let by_failures = |enforced| FailurePercentageEjection {
        minimum_hosts: 1,
        request_volume: 1,
        threshold: 50,
        enforcement_percentage: enforced,
    };
    let cases: [(Option<u32>, Option<u32>, u32, Expected<'_>); 6] = [
        (Some(100), None, 100, &[(SuccessRate, None, 2)]),
        (Some(0), None, 100, &[(SuccessRate, Some(EnforcementPercentage), 2)]),
        (Some(100), None, 1, &[(SuccessRate, None, 1), (SuccessRate, Some(MaxEjectionOverflow), 1)]),
        (None, Some(100), 100, &[(FailurePercentage, None, 2)]),
        (None, Some(0), 100, &[(FailurePercentage, Some(EnforcementPercentage), 2)]),
        (
            Some(0),
            Some(100),
            1,
            &[
                (SuccessRate, Some(EnforcementPercentage), 2),
                (FailurePercentage, None, 1),
                (FailurePercentage, Some(MaxEjectionOverflow), 1),
            ],
        ),
    ];
    for (rate, failures, max_ejection_percent, expected) in cases {
        let settings = OutlierSettings {
            max_ejection_percent,
            success_rate_ejection: rate.map(by_rate),
            failure_percentage_ejection: failures.map(by_failures),
            ..OutlierSettings::default()
        };
        let leaf = LeafCluster { outlier_detection: Some(settings), ..eds("orders") };
        let discovered = Discovered::default()
            .with_leaf(leaf, set("a b c d"))
            .with("spare", "s")
            .with_aggregate("all", &["orders", "spare"]);
        let mut sim = sim("all", &discovered);
        for _ in 0..40 {
            let picked = sim.pick();
            let code = if ["a", "b"].contains(&&*picked.outcome()) { Code::Internal } else { Code::Ok };
            picked.finish(code, None);
        }
        assert_eq!(sim.measurements(), [], "until the sweep");
        sim.advance(secs(10));
        let expected: Vec<_> = expected
            .iter()
            .map(|(method, unenforced, count)| {
                let (method, unenforced, count) = (*method, *unenforced, *count);
                let backend_service = Some("orders".into());
                Measurement::OutlierCounts(OutlierCounts { backend_service, method, unenforced, count })
            })
            .collect();
        assert_eq!(sim.measurements(), expected);
        sim.advance(secs(10));
        assert_eq!(sim.measurements(), [], "no calls, no outliers");
    }
}

/// WRR-17, OD-15: a core without a recorder collects nothing.
#[test]
fn a_core_measures_only_if_enabled() {
    let config = json!([{"outlier_detection_experimental": {
        "failurePercentageEjection": {"threshold": 0, "minimumHosts": 1, "requestVolume": 1},
        "childPolicy": wrr(),
    }}]);
    for (mut sim, measures) in [
        (CoreSim::new(&config, endpoints(["a", "b"])).all_up(), false),
        (CoreSim::measuring(&config, endpoints(["a", "b"])).all_up(), true),
    ] {
        for _ in 0..4 {
            sim.pick().finish(Code::Internal, None);
        }
        sim.advance(secs(10));
        let all = sim.measurements();
        assert_eq!(all.iter().any(|one| matches!(one, Measurement::WeightUpdate(_))), measures);
        assert_eq!(all.iter().any(|one| matches!(one, Measurement::OutlierCounts(_))), measures);
    }
}

/// PF-14: subchannels carry the labels of cluster and locality, also if one policy has endpoints of several
/// localities.
#[test]
fn subchannels_carry_their_labels() {
    let zone = |zone: &str| format!("{{region=\"\", zone=\"{zone}\", sub_zone=\"\"}}");
    let by_locality = json!([{"xds_wrr_locality_experimental": {"childPolicy": [{"round_robin": {}}]}}]);
    for policy in [by_locality, json!([{"round_robin": {}}])] {
        let leaf = LeafCluster { lb_policy: lb_policy(&policy), ..eds("orders") };
        let discovered = Discovered::default().with_leaf(leaf, set("a@x b@y"));
        let mut sim = sim("orders", &discovered);
        assert_eq!(sim.labels("a"), labels("orders", &zone("x")));
        assert_eq!(sim.labels("b"), labels("orders", &zone("y")));
        let id = sim.find("b").expect("it was dialled");
        sim.clusters(&discovered.with_error("orders", "it was deleted").0);
        assert_eq!(sim.core().labels(id), LbLabels::default(), "the subchannel was removed");
    }
    let sim = CoreSim::new(&json!([{"round_robin": {}}]), endpoints(["a"]));
    assert_eq!(sim.labels("a"), LbLabels::default());
}
