//! Load reports of backends (ORCA, A51): from bytes to [`LoadReport`].
//!
//! A backend sends them in the trailer [`TRAILER`] of an answer, or out of band. They come from outside and say
//! anything: a report that cannot be read is an error for whoever counts such errors, and the call that it came with is
//! none the worse. Numbers are passed on as they are; who computes with them leaves out what is not finite (A58, A114).

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_core::LoadReport;
use evenkeel_proto::prost::{self, Message as _};
use evenkeel_proto::xds::data::orca::v3::OrcaLoadReport;

/// The trailer that carries the report on a call; its value is binary.
pub const TRAILER: &str = "endpoint-load-metrics-bin";

/// The longest report that is read.
const MAX_BYTES: usize = 64 << 10;

/// The most names in a report, over all of its maps.
const MAX_NAMES: usize = 1_000;

/// Why a report is ignored.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LoadReportError {
    /// There are several in the trailers of one call, and none of them is better than the others.
    Repeated,
    /// It has this many bytes, which is too many.
    TooLong(usize),
    /// It has this many names, which is too many.
    TooManyNames(usize),
    /// It is no report.
    Malformed(prost::DecodeError),
}

/// The report in the trailers of a call, given the decoded values of [`TRAILER`]. No value is no report; several are
/// none that counts.
pub fn from_trailers<B: AsRef<[u8]>>(
    values: impl IntoIterator<Item = B>,
) -> Result<Option<LoadReport>, LoadReportError> {
    let mut values = values.into_iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => parse(value.as_ref()).map(Some),
        (Some(_), Some(_)) => Err(LoadReportError::Repeated),
    }
}

/// A report, from a trailer or out of band. The old whole-number `rps` is not read (ORCA-2).
pub fn parse(bytes: &[u8]) -> Result<LoadReport, LoadReportError> {
    if bytes.len() > MAX_BYTES {
        return Err(LoadReportError::TooLong(bytes.len()));
    }
    let report = OrcaLoadReport::decode(bytes).map_err(LoadReportError::Malformed)?;
    let names = report.utilization.len() + report.named_metrics.len() + report.request_cost.len();
    if names > MAX_NAMES {
        return Err(LoadReportError::TooManyNames(names));
    }
    let list = |map: BTreeMap<String, f64>| map.into_iter().collect();
    Ok(LoadReport {
        cpu_utilization: report.cpu_utilization,
        mem_utilization: report.mem_utilization,
        application_utilization: report.application_utilization,
        requests_per_second: report.rps_fractional,
        errors_per_second: report.eps,
        utilization: list(report.utilization),
        named_metrics: list(report.named_metrics),
        request_cost: list(report.request_cost),
    })
}

impl fmt::Display for LoadReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadReportError::Repeated => write!(f, "several load reports on one call; none is used"),
            LoadReportError::TooLong(bytes) => {
                write!(f, "a load report of {bytes} bytes; at most {MAX_BYTES} are allowed")
            }
            LoadReportError::TooManyNames(names) => {
                write!(f, "a load report with {names} names; at most {MAX_NAMES} are allowed")
            }
            LoadReportError::Malformed(_) => f.write_str("a load report cannot be decoded"),
        }
    }
}

impl std::error::Error for LoadReportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LoadReportError::Malformed(error) => Some(error),
            _ => None,
        }
    }
}
