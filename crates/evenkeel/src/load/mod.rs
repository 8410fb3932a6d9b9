//! Conversion of ORCA load reports into the form that load balancing policies use.
//!
//! `evenkeel_orca` parses the reports, per RPC (from trailers) and out of band ([`oob`]). Policies in the core compute
//! weights from them.

pub(crate) mod oob;

use evenkeel_core::LoadReport;
use evenkeel_orca::{IgnoredReason, NamedMetric, OrcaReport, ParsedReport};

/// Returns the usable part of a parsed report. An unusable part is logged and passed to `ignored`; it never fails an
/// RPC.
pub(crate) fn usable(reading: ParsedReport, ignored: impl FnOnce(IgnoredReason)) -> Option<LoadReport> {
    if let Some(why) = reading.ignored {
        tracing::debug!("{why}");
        ignored(why);
    }
    reading.report.map(for_policies)
}

fn for_policies(report: OrcaReport) -> LoadReport {
    LoadReport {
        cpu_utilization: report.cpu_utilization,
        mem_utilization: report.mem_utilization,
        application_utilization: report.application_utilization,
        requests_per_second: report.rps_fractional,
        errors_per_second: report.eps,
        utilization: pairs(report.utilization),
        named_metrics: pairs(report.named_metrics),
        request_cost: pairs(report.request_cost),
    }
}

fn pairs(list: Vec<NamedMetric>) -> Vec<(String, f64)> {
    list.into_iter().map(|named| (named.name, named.value)).collect()
}

#[cfg(test)]
mod tests {
    use evenkeel_orca::{OrcaLoadReport, read};
    use evenkeel_proto::prost::Message as _;

    use super::*;

    /// ORCA-2: every field is mapped, except the deprecated integer `rps`.
    #[test]
    fn every_field_has_its_place() {
        let map = |name: &str, value| [(name.to_owned(), value)].into();
        let list = |name: &str, value| vec![(name.to_owned(), value)];
        let report = OrcaLoadReport {
            cpu_utilization: 0.1,
            mem_utilization: 0.2,
            rps: 3,
            request_cost: map("cost", 4.0),
            utilization: map("share", 0.5),
            rps_fractional: 6.0,
            eps: 7.0,
            named_metrics: map("name", 8.0),
            application_utilization: 0.9,
        };
        let expected = LoadReport {
            cpu_utilization: 0.1,
            mem_utilization: 0.2,
            application_utilization: 0.9,
            requests_per_second: 6.0,
            errors_per_second: 7.0,
            utilization: list("share", 0.5),
            named_metrics: list("name", 8.0),
            request_cost: list("cost", 4.0),
        };
        let read = usable(read(&report.encode_to_vec()), |why| panic!("{why}"));
        assert_eq!(read, Some(expected));
    }
}
