//! Parses load reports on the client.
//!
//! A backend sends reports in the trailer [`TRAILER`] of a call, or out of band. They are untrusted input, so their
//! size and number of names are limited. Unusable reports and values are dropped, and [`ParsedReport::ignored`] gives
//! the reason, for example for a counter. The outcome of the call is not affected.

use std::fmt;

use evenkeel_proto::prost::{self, Message as _};
use http::{HeaderMap, HeaderName};

use crate::base64;

/// Name of the trailer that carries the report of a call. Its value is binary metadata.
pub const TRAILER: &str = "endpoint-load-metrics-bin";

pub(crate) static TRAILER_NAME: HeaderName = HeaderName::from_static(TRAILER);

/// Maximum length of a report, in bytes after decoding.
const MAX_BYTES: usize = 64 << 10;

/// Maximum number of names in a report, over all of its maps.
const MAX_NAMES: usize = 1_000;

/// Maximum length of a report that is decoded on the stack.
const SHORT: usize = 128;

/// Result of parsing a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParsedReport {
    /// The usable values. An invalid value is dropped, as if it had not been reported.
    pub report: Option<OrcaReport>,
    /// Reason why the report, or some of its values, was ignored. It names one reason even if there are several.
    pub ignored: Option<IgnoredReason>,
}

/// Parsed report: the message [`OrcaLoadReport`](crate::OrcaLoadReport) with lists in place of maps.
///
/// An empty list does not allocate. Every number is finite, and utilizations and rates are not negative. A value that
/// was not reported is 0 or absent. The deprecated integer field `rps` is not read (ORCA-2).
#[derive(Clone, PartialEq, prost::Message)]
#[prost(prost_path = "evenkeel_proto::prost")]
pub struct OrcaReport {
    /// CPU utilization. It may exceed 1 above a soft limit.
    #[prost(double, tag = "1")]
    pub cpu_utilization: f64,
    /// Memory utilization of the server.
    #[prost(double, tag = "2")]
    pub mem_utilization: f64,
    /// Named costs of the request; each name occurs once.
    #[prost(message, repeated, tag = "4")]
    pub request_cost: Vec<NamedMetric>,
    /// Utilizations of named resources; each name occurs once.
    #[prost(message, repeated, tag = "5")]
    pub utilization: Vec<NamedMetric>,
    /// Requests per second of the server.
    #[prost(double, tag = "6")]
    pub rps_fractional: f64,
    /// Errors per second of the server.
    #[prost(double, tag = "7")]
    pub eps: f64,
    /// Named metrics with an application-defined meaning; each name occurs once.
    #[prost(message, repeated, tag = "8")]
    pub named_metrics: Vec<NamedMetric>,
    /// Utilization as the application defines it.
    #[prost(double, tag = "9")]
    pub application_utilization: f64,
}

/// Map entry in its wire encoding.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(prost_path = "evenkeel_proto::prost")]
pub struct NamedMetric {
    /// Key of the map entry.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Value of the map entry.
    #[prost(double, tag = "2")]
    pub value: f64,
}

/// Reason why a report, or some of its values, is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IgnoredReason {
    /// The trailers of the call contain several reports. None of them is used.
    Repeated,
    /// The report is longer than the maximum.
    TooLong,
    /// The report has more names than the maximum.
    TooManyNames,
    /// The value is not valid base64, or not an encoded report.
    Malformed,
    /// A value is NaN, infinite, or negative where that is invalid. The other values are used.
    InvalidValue,
}

/// Parses the report in the trailers of a call. Without the trailer, both fields of the result are `None`.
pub fn read_trailers(trailers: &HeaderMap) -> ParsedReport {
    let mut found: Option<&[u8]> = None;
    for (_, value) in trailers.iter().filter(|(name, _)| **name == TRAILER_NAME) {
        if found.replace(value.as_bytes()).is_some() {
            return ParsedReport::none(IgnoredReason::Repeated);
        }
    }
    let Some(text) = found else { return ParsedReport::default() };
    let mut short = [0; SHORT];
    // Most reports fit on the stack, so they need no allocation.
    if let Some(room) = short.get_mut(..base64::max_decoded_len(text.len())) {
        return read_text(text, room);
    }
    if text.len() > MAX_BYTES.div_ceil(3) * 4 {
        return ParsedReport::none(IgnoredReason::TooLong);
    }
    read_text(text, &mut vec![0; base64::max_decoded_len(text.len())])
}

/// Decodes the base64 `text` into `room`, and parses the report.
fn read_text(text: &[u8], room: &mut [u8]) -> ParsedReport {
    match base64::decode(text, room) {
        Some(length) => read(&room[..length]),
        // HTTP allows repeated fields to be joined by commas, and a comma is not in the base64 alphabet.
        None if text.contains(&b',') => ParsedReport::none(IgnoredReason::Repeated),
        None => ParsedReport::none(IgnoredReason::Malformed),
    }
}

/// Parses an encoded report, as it is received out of band.
pub fn read(bytes: &[u8]) -> ParsedReport {
    if bytes.len() > MAX_BYTES {
        return ParsedReport::none(IgnoredReason::TooLong);
    }
    let Ok(mut report) = OrcaReport::decode(bytes) else {
        return ParsedReport::none(IgnoredReason::Malformed);
    };
    if report.utilization.len() + report.named_metrics.len() + report.request_cost.len() > MAX_NAMES {
        return ParsedReport::none(IgnoredReason::TooManyNames);
    }
    let is_valid = report.remove_invalid();
    ParsedReport { report: Some(report), ignored: (!is_valid).then_some(IgnoredReason::InvalidValue) }
}

impl OrcaReport {
    /// Drops invalid values. Returns true if there were none.
    fn remove_invalid(&mut self) -> bool {
        let mut is_valid = true;
        for value in [
            &mut self.cpu_utilization,
            &mut self.mem_utilization,
            &mut self.application_utilization,
            &mut self.rps_fractional,
            &mut self.eps,
        ] {
            if !is_non_negative(*value) {
                *value = 0.0;
                is_valid = false;
            }
        }
        // `&=` evaluates every list, so that all invalid values are removed.
        is_valid &= retain_valid(&mut self.utilization, is_non_negative);
        is_valid &= retain_valid(&mut self.named_metrics, f64::is_finite);
        is_valid &= retain_valid(&mut self.request_cost, f64::is_finite);
        is_valid
    }
}

/// Keeps the last value of each name and drops invalid ones. Returns true if there were none.
fn retain_valid(list: &mut Vec<NamedMetric>, is_good: fn(f64) -> bool) -> bool {
    if list.is_empty() {
        return true;
    }
    if list.len() > 1 {
        // The last entry of a name wins, as in a protobuf map. The sort is stable, so it comes first after the
        // reversal.
        list.reverse();
        list.sort_by(|a, b| a.name.cmp(&b.name));
        list.dedup_by(|later, earlier| later.name == earlier.name);
    }
    let before = list.len();
    list.retain(|named| is_good(named.value));
    list.len() == before
}

/// Returns true if the value is valid for a utilization or a rate.
pub(crate) fn is_non_negative(value: f64) -> bool {
    value >= 0.0 && value.is_finite()
}

impl ParsedReport {
    fn none(why: IgnoredReason) -> ParsedReport {
        ParsedReport { report: None, ignored: Some(why) }
    }
}

impl IgnoredReason {
    /// Returns the reason in one word, suitable as a metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            IgnoredReason::Repeated => "repeated",
            IgnoredReason::TooLong => "too_long",
            IgnoredReason::TooManyNames => "too_many_names",
            IgnoredReason::Malformed => "malformed",
            IgnoredReason::InvalidValue => "bad_value",
        }
    }
}

impl fmt::Display for IgnoredReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IgnoredReason::Repeated => f.write_str("several load reports on one call; none is used"),
            IgnoredReason::TooLong => write!(f, "a load report of more than {MAX_BYTES} bytes; it is not used"),
            IgnoredReason::TooManyNames => write!(f, "a load report with more than {MAX_NAMES} names; it is not used"),
            IgnoredReason::Malformed => f.write_str("a load report that cannot be decoded; it is not used"),
            IgnoredReason::InvalidValue => f.write_str(
                "a load report with a value that is not finite, or negative where that is invalid; the value is not used",
            ),
        }
    }
}
