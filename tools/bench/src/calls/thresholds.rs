//! Thresholds of the call suite, with the measured values.

use crate::calls::bench_clients::{
    BenchClient, EVENKEEL, EVENKEEL_EDF, GRPC_GO, H2, HYPER, TONIC, TONIC_BALANCE,
};
use crate::calls::harness::Figures;
use crate::calls::ratio::Ratio;
use crate::calls::results::Results;
use crate::calls::scenario::{BASE, ONE_BACKEND, Scenario, TONIC_SERVERS};
use crate::calls::shares::Shares;
use crate::thresholds::{Threshold, ThresholdResult};

/// Threshold for the ratio of evenkeel to another client.
struct RatioThreshold {
    what: &'static str,
    scenario: Scenario,
    base: BenchClient,
    figure: fn(&Figures) -> f64,
    threshold: Threshold,
}

const THRESHOLDS: [RatioThreshold; 8] = [
    RatioThreshold {
        what: "tonic servers: CPU per call beside hyper",
        scenario: TONIC_SERVERS,
        base: HYPER,
        figure: Figures::cpu_per_call,
        threshold: Threshold::AtMost(0.90),
    },
    RatioThreshold {
        what: "tonic servers: CPU per call beside h2",
        scenario: TONIC_SERVERS,
        base: H2,
        figure: Figures::cpu_per_call,
        threshold: Threshold::AtMost(1.10),
    },
    RatioThreshold {
        what: "tonic servers: calls per second of CPU beside grpc-go",
        scenario: TONIC_SERVERS,
        base: GRPC_GO,
        figure: calls_per_cpu,
        threshold: Threshold::AtLeast(1.5),
    },
    RatioThreshold {
        what: "batching servers: CPU per call beside hyper",
        scenario: BASE,
        base: HYPER,
        figure: Figures::cpu_per_call,
        threshold: Threshold::AtMost(0.90),
    },
    RatioThreshold {
        what: "batching servers: CPU per call beside tonic's balance_list",
        scenario: BASE,
        base: TONIC_BALANCE,
        figure: Figures::cpu_per_call,
        threshold: Threshold::AtMost(0.72),
    },
    RatioThreshold {
        what: "batching servers: calls per second beside tonic's balance_list",
        scenario: BASE,
        base: TONIC_BALANCE,
        figure: Figures::throughput,
        threshold: Threshold::AtLeast(1.3),
    },
    RatioThreshold {
        what: "batching servers: CPU per call beside tonic's channel, one backend each",
        scenario: ONE_BACKEND,
        base: TONIC,
        figure: Figures::cpu_per_call,
        threshold: Threshold::AtMost(0.90),
    },
    RatioThreshold {
        what: "batching servers: calls per second of CPU beside grpc-go",
        scenario: BASE,
        base: GRPC_GO,
        figure: calls_per_cpu,
        threshold: Threshold::AtLeast(1.5),
    },
];

fn calls_per_cpu(figures: &Figures) -> f64 {
    if figures.cpu > 0.0 { figures.calls / figures.cpu } else { 0.0 }
}

pub(super) fn thresholds(results: &[Results], shares: &Shares) -> Vec<ThresholdResult> {
    let reach = |RatioThreshold { what, scenario, base, figure, threshold }: RatioThreshold| {
        let results = results.iter().find(|results| results.scenario == scenario);
        let ratio = results.and_then(|results| results.ratio(EVENKEEL, base, figure));
        ThresholdResult::new(what, threshold, ratio.map(|ratio: Ratio| (ratio.middle, ratio.to_string())))
    };
    let error = shares.error_of(EVENKEEL_EDF).map(|error| (error * 100.0, format!("{:.3}", error * 100.0)));
    let share = ThresholdResult::new(
        "largest error of a share, weights 1 to 10, in %",
        Threshold::AtMost(0.1),
        error,
    );
    THRESHOLDS.into_iter().map(reach).chain([share]).collect()
}
