//! Check of the target `load_report`.

use evenkeel_orca::{ParsedReport, TRAILER, read, read_trailers};
use http::{HeaderMap, HeaderValue};

/// Parses bytes as a load report and as a trailer. Asserts that used values are finite, and that ignored ones
/// have a reason.
pub fn check_load_report(bytes: &[u8]) {
    check(&read(bytes));
    if let Ok(value) = HeaderValue::from_bytes(bytes) {
        check(&read_trailers(&HeaderMap::from_iter([(TRAILER.parse().expect("a name"), value)])));
    }
}

fn check(reading: &ParsedReport) {
    let Some(report) = &reading.report else {
        let why = reading.ignored.expect("a reason").to_string();
        assert!(!why.is_empty() && why.len() <= 200, "{why}");
        return;
    };
    let amounts = [
        report.cpu_utilization,
        report.mem_utilization,
        report.application_utilization,
        report.rps_fractional,
        report.eps,
    ];
    for amount in amounts.into_iter().chain(report.utilization.iter().map(|named| named.value)) {
        assert!(amount.is_finite() && amount >= 0.0, "{report:?}");
    }
    for named in report.named_metrics.iter().chain(&report.request_cost) {
        assert!(named.value.is_finite(), "{report:?}");
    }
}
