//! Parsing of reports from bytes and from trailers.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use evenkeel_orca::{
    IgnoredReason, NamedMetric, OrcaLoadReport, OrcaReport, ParsedReport, TRAILER, read, read_trailers,
};
use evenkeel_proto::prost::Message as _;
use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;

use super::reports;

fn map(entries: &[(&str, f64)]) -> BTreeMap<String, f64> {
    entries.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

/// Returns an encoded field of type double.
fn double(number: u8, value: f64) -> Vec<u8> {
    [&[number << 3 | 1][..], &value.to_le_bytes()].concat()
}

/// Returns an encoded entry of a map from strings to doubles.
fn entry(number: u8, key: &str, value: f64) -> Vec<u8> {
    let key = [&[10, key.len() as u8][..], key.as_bytes()].concat();
    let entry = [key, double(2, value)].concat();
    [&[number << 3 | 2, entry.len() as u8][..], &entry].concat()
}

/// Returns the parsed form of a valid report.
fn sound(report: &OrcaLoadReport) -> OrcaReport {
    OrcaReport::decode(&*report.encode_to_vec()).expect("the same message")
}

/// ORCA-2: every field is parsed by its number.
#[test]
fn fields_by_number() {
    let named = |value| vec![NamedMetric { name: "k".to_owned(), value }];
    let none = OrcaReport::default;
    for (bytes, expected) in [
        (vec![], none()),
        (double(1, 0.5), OrcaReport { cpu_utilization: 0.5, ..none() }),
        (double(2, 0.5), OrcaReport { mem_utilization: 0.5, ..none() }),
        (vec![3 << 3, 7], none()),
        (entry(4, "k", 1.0), OrcaReport { request_cost: named(1.0), ..none() }),
        (entry(5, "k", 2.0), OrcaReport { utilization: named(2.0), ..none() }),
        (double(6, 100.0), OrcaReport { rps_fractional: 100.0, ..none() }),
        (double(7, 3.0), OrcaReport { eps: 3.0, ..none() }),
        (entry(8, "k", 4.0), OrcaReport { named_metrics: named(4.0), ..none() }),
        (double(9, 1.5), OrcaReport { application_utilization: 1.5, ..none() }),
        (double(15, 1.0), none()),
        (
            [entry(8, "k", 4.0), entry(8, "k", 5.0)].concat(),
            OrcaReport { named_metrics: named(5.0), ..none() },
        ),
    ] {
        let expected = ParsedReport { report: Some(expected), ignored: None };
        assert_eq!(read(&bytes), expected, "{bytes:?}");
        for code in [STANDARD, STANDARD_NO_PAD] {
            assert_eq!(read_trailers(&trailers(&[&code.encode(&bytes)])), expected, "{bytes:?}");
        }
    }
}

fn trailers(values: &[&str]) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    for value in values {
        trailers.append(TRAILER, value.parse().expect("text"));
    }
    trailers
}

/// ORCA-1: a single value is parsed, and several are ignored, even in one header line.
#[test]
fn one_report_per_call() {
    assert_eq!(TRAILER, "endpoint-load-metrics-bin");
    assert_eq!(read_trailers(&HeaderMap::new()), ParsedReport::default());
    assert_eq!(read_trailers(&trailers(&[])), ParsedReport::default());
    let half = STANDARD_NO_PAD.encode(double(1, 0.5));
    let expected = OrcaLoadReport { cpu_utilization: 0.5, ..OrcaLoadReport::default() };
    assert_eq!(read_trailers(&trailers(&[&half])).report, Some(sound(&expected)));
    let repeated = ParsedReport { report: None, ignored: Some(IgnoredReason::Repeated) };
    assert_eq!(read_trailers(&trailers(&[&half, &half])), repeated);
    assert_eq!(read_trailers(&trailers(&[&format!("{half},{half}")])), repeated);
}

/// fault 57: an oversized or malformed report is ignored with a reason.
#[test]
fn invalid_reports_are_ignored() {
    let names = |n: usize| (0..n).map(|i| (i.to_string(), 1.0)).collect::<BTreeMap<_, _>>();
    let thousand = OrcaLoadReport { named_metrics: names(1_000), ..OrcaLoadReport::default() };
    assert_eq!(read(&thousand.encode_to_vec()).report.map(|report| report.named_metrics.len()), Some(1_000));
    let more = OrcaLoadReport { utilization: names(1), ..thousand.clone() };
    let long = OrcaLoadReport { request_cost: map(&[(&"x".repeat(70_000), 1.0)]), ..more.clone() };
    let mut cut = thousand.encode_to_vec();
    cut.pop();
    for (bytes, why, label, text) in [
        (
            more.encode_to_vec(),
            IgnoredReason::TooManyNames,
            "too_many_names",
            "a load report with more than 1000 names; it is not used",
        ),
        (
            long.encode_to_vec(),
            IgnoredReason::TooLong,
            "too_long",
            "a load report of more than 65536 bytes; it is not used",
        ),
        (
            vec![0; 1 << 20],
            IgnoredReason::TooLong,
            "too_long",
            "a load report of more than 65536 bytes; it is not used",
        ),
        (cut, IgnoredReason::Malformed, "malformed", "a load report that cannot be decoded; it is not used"),
    ] {
        let expected = ParsedReport { report: None, ignored: Some(why) };
        assert_eq!(read(&bytes), expected);
        assert_eq!(read_trailers(&trailers(&[&STANDARD.encode(&bytes)])), expected);
        assert_eq!((why.as_str(), why.to_string().as_str()), (label, text));
    }
    for no_code in ["%%%", "a", "AAAA=AAA", &"!".repeat(1_000)] {
        let expected = ParsedReport { report: None, ignored: Some(IgnoredReason::Malformed) };
        assert_eq!(read_trailers(&trailers(&[no_code])), expected, "{no_code}");
    }
}

/// fault 58: an invalid value is ignored, and the others are used.
#[test]
fn invalid_values_are_ignored() {
    let none = OrcaLoadReport::default;
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
        let utilization = map(&[("bad", bad), ("good", 0.5)]);
        let good = map(&[("good", 0.5)]);
        for (said, kept) in [
            (OrcaLoadReport { cpu_utilization: bad, ..none() }, none()),
            (OrcaLoadReport { mem_utilization: bad, ..none() }, none()),
            (OrcaLoadReport { application_utilization: bad, ..none() }, none()),
            (OrcaLoadReport { rps_fractional: bad, ..none() }, none()),
            (OrcaLoadReport { eps: bad, ..none() }, none()),
            (OrcaLoadReport { utilization, ..none() }, OrcaLoadReport { utilization: good, ..none() }),
        ] {
            let said = OrcaLoadReport { request_cost: map(&[("cost", -2.0)]), ..said };
            let kept = OrcaLoadReport { request_cost: map(&[("cost", -2.0)]), ..kept };
            let expected =
                ParsedReport { report: Some(sound(&kept)), ignored: Some(IgnoredReason::InvalidValue) };
            assert_eq!(read(&said.encode_to_vec()), expected, "{said:?}");
        }
    }
    let named = OrcaLoadReport {
        named_metrics: map(&[("rate", f64::NAN), ("heat", -2.0)]),
        request_cost: map(&[("rows", f64::INFINITY)]),
        ..none()
    };
    let kept = OrcaLoadReport { named_metrics: map(&[("heat", -2.0)]), ..none() };
    assert_eq!(
        read(&named.encode_to_vec()),
        ParsedReport { report: Some(sound(&kept)), ignored: Some(IgnoredReason::InvalidValue) }
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// fault 57: arbitrary bytes, with or without a valid start, cause no panic, and parsed values are finite.
    #[test]
    fn arbitrary_bytes_do_not_panic(
        good in 0..9usize,
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        flip in any::<prop::sample::Index>(),
        cpu in absurd(),
        named in absurd(),
    ) {
        let report = OrcaLoadReport {
            cpu_utilization: cpu,
            named_metrics: map(&[("a", 1.0), ("b", named)]),
            rps_fractional: 10.0,
            ..OrcaLoadReport::default()
        };
        let mut all = report.encode_to_vec();
        reports::check_load_report(&all);
        all.truncate(all.len() * good / 8);
        all.extend(bytes);
        if !all.is_empty() {
            let i = flip.index(all.len());
            all[i] = !all[i];
        }
        reports::check_load_report(&all);
        reports::check_load_report(STANDARD_NO_PAD.encode(&all).as_bytes());
    }
}

fn absurd() -> impl Strategy<Value = f64> {
    let extremes =
        [0.0, -0.0, -1.0, 1e308, 1e-308, f64::MAX, f64::MIN_POSITIVE, f64::INFINITY, f64::NAN, 5e-324];
    prop_oneof![prop::sample::select(extremes.to_vec()), any::<f64>(), 0.0..1.0f64, 0.0..1e4f64]
}
