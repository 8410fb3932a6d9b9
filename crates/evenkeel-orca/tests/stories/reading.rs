//! Load reports of backends, from bytes.

use std::collections::BTreeMap;
use std::error::Error as _;

use evenkeel_core::{Code, LoadReport};
use evenkeel_proto::prost::Message as _;
use evenkeel_proto::xds::data::orca::v3::OrcaLoadReport;
use evenkeel_xds::load_report::{LoadReportError, TRAILER, from_trailers, parse};
use proptest::prelude::*;
use serde_json::json;
use testkit::{World, endpoints, secs};

fn map(entries: &[(&str, f64)]) -> BTreeMap<String, f64> {
    entries.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

/// A field of type double, as its bytes.
fn double(number: u8, value: f64) -> Vec<u8> {
    [&[number << 3 | 1][..], &value.to_le_bytes()].concat()
}

/// An entry of a map from strings to doubles, as its bytes.
fn entry(number: u8, key: &str, value: f64) -> Vec<u8> {
    let key = [&[10, key.len() as u8][..], key.as_bytes()].concat();
    let entry = [key, double(2, value)].concat();
    [&[number << 3 | 2, entry.len() as u8][..], &entry].concat()
}

/// ORCA-2: every field by its number.
#[test]
fn fields_by_number() {
    let named = |value| vec![("k".to_owned(), value)];
    let none = LoadReport::default;
    for (bytes, expected) in [
        (vec![], none()),
        (double(1, 0.5), LoadReport { cpu_utilization: 0.5, ..none() }),
        (double(2, 0.5), LoadReport { mem_utilization: 0.5, ..none() }),
        (vec![3 << 3, 7], none()),
        (entry(4, "k", 1.0), LoadReport { request_cost: named(1.0), ..none() }),
        (entry(5, "k", 2.0), LoadReport { utilization: named(2.0), ..none() }),
        (double(6, 100.0), LoadReport { requests_per_second: 100.0, ..none() }),
        (double(7, 3.0), LoadReport { errors_per_second: 3.0, ..none() }),
        (entry(8, "k", 4.0), LoadReport { named_metrics: named(4.0), ..none() }),
        (double(9, 1.5), LoadReport { application_utilization: 1.5, ..none() }),
        (double(15, 1.0), none()),
        (
            [entry(8, "k", 4.0), entry(8, "k", 5.0)].concat(),
            LoadReport { named_metrics: named(5.0), ..none() },
        ),
    ] {
        assert_eq!(parse(&bytes).unwrap(), expected, "{bytes:?}");
    }
}

/// ORCA-1: one value counts, several do not.
#[test]
fn one_report_per_call() {
    let report = OrcaLoadReport { cpu_utilization: 0.5, ..OrcaLoadReport::default() }.encode_to_vec();
    assert_eq!(TRAILER, "endpoint-load-metrics-bin");
    assert_eq!(from_trailers::<&[u8]>([]), Ok(None));
    let expected = LoadReport { cpu_utilization: 0.5, ..LoadReport::default() };
    assert_eq!(from_trailers([&report]), Ok(Some(expected)));
    let error = from_trailers([&report, &report]).unwrap_err();
    assert_eq!(error, LoadReportError::Repeated);
    assert_eq!(error.to_string(), "several load reports on one call; none is used");
}

/// fault 57: reports that are too large, or none, are errors that say so.
#[test]
fn bad_reports_say_what_is_wrong() {
    let names = |n: usize| (0..n).map(|i| (i.to_string(), 1.0)).collect::<BTreeMap<_, _>>();
    let thousand = OrcaLoadReport { named_metrics: names(1_000), ..OrcaLoadReport::default() };
    assert_eq!(parse(&thousand.encode_to_vec()).unwrap().named_metrics.len(), 1_000);
    let more = OrcaLoadReport { utilization: names(1), ..thousand.clone() };
    let error = parse(&more.encode_to_vec()).unwrap_err();
    assert_eq!(error.to_string(), "a load report with 1001 names; at most 1000 are allowed");
    let long =
        OrcaLoadReport { request_cost: map(&[(&"x".repeat(70_000), 1.0)]), ..OrcaLoadReport::default() };
    let error = parse(&long.encode_to_vec()).unwrap_err();
    assert_eq!(error.to_string(), "a load report of 70017 bytes; at most 65536 are allowed");
    let mut cut = thousand.encode_to_vec();
    cut.pop();
    let error = parse(&cut).unwrap_err();
    assert_eq!(error.to_string(), "a load report cannot be decoded");
    assert!(error.source().is_some());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// fault 57: no bytes make the parser panic, also those that begin as a report does.
    #[test]
    fn any_bytes_are_survived(
        good in 0..9usize,
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        flip in any::<prop::sample::Index>(),
    ) {
        let report = OrcaLoadReport {
            cpu_utilization: 0.5,
            named_metrics: map(&[("a", 1.0), ("b", 2.0)]),
            rps_fractional: 10.0,
            ..OrcaLoadReport::default()
        };
        let mut all = report.encode_to_vec();
        all.truncate(all.len() * good / 8);
        all.extend(bytes);
        if !all.is_empty() {
            let i = flip.index(all.len());
            all[i] = !all[i];
        }
        let _ = parse(&all);
    }

    /// fault 58, WRR-4: whatever backends report, shares are numbers and add up to one.
    #[test]
    fn absurd_reports_leave_sound_weights(
        reports in prop::collection::vec((absurd(), absurd(), absurd(), absurd()), 3)
    ) {
        let policy = json!([{"weighted_round_robin": {"blackoutPeriod": "0s"}}]);
        let mut world = World::new(&policy, endpoints(["a", "b", "c"])).all_up();
        for (cpu, application, rps, eps) in reports {
            let report = OrcaLoadReport {
                cpu_utilization: cpu,
                application_utilization: application,
                rps_fractional: rps,
                eps,
                ..OrcaLoadReport::default()
            };
            let report = parse(&report.encode_to_vec()).expect("a report");
            world.pick().finish(Code::Ok, Some(&report));
        }
        world.advance(secs(2));
        let rows = world.describe().endpoints;
        prop_assert!(rows.iter().all(|row| row.weight.is_none_or(|weight| weight.is_finite() && weight >= 0.0)));
        let shares: f64 = rows.iter().filter_map(|row| row.share).sum();
        prop_assert!((shares - 1.0).abs() < 1e-9, "{rows:?}");
        prop_assert_eq!(world.shares(30).values().sum::<usize>(), 30);
    }
}

fn absurd() -> impl Strategy<Value = f64> {
    let extremes =
        [0.0, -0.0, -1.0, 1e308, 1e-308, f64::MAX, f64::MIN_POSITIVE, f64::INFINITY, f64::NAN, 5e-324];
    prop_oneof![prop::sample::select(extremes.to_vec()), any::<f64>(), 0.0..1.0f64, 0.0..1e4f64]
}
