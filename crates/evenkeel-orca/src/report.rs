//! Reading load reports, as a client does.
//!
//! A backend sends them in the trailer [`TRAILER`] of an answer, or out of band. They come from outside and say
//! anything. What cannot be used is ignored, and [`ParsedReport::ignored`] says why, for whoever counts such things; the call
//! that it came with is none the worse.

use std::fmt;

use evenkeel_proto::prost::{self, Message as _};
use http::{HeaderMap, HeaderName};

use crate::base64;

/// The trailer that carries the report on a call; its value is binary.
pub const TRAILER: &str = "endpoint-load-metrics-bin";

pub(crate) static TRAILER_NAME: HeaderName = HeaderName::from_static(TRAILER);

/// The longest report that is read.
const MAX_BYTES: usize = 64 << 10;

/// The most names in a report, over all of its lists.
const MAX_NAMES: usize = 1_000;

/// A report that is not longer than this is decoded without memory of its own.
const SHORT: usize = 128;

/// What came of reading a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParsedReport {
    /// What can be used. A value that no server may report is left out, as if it had not been reported.
    pub report: Option<OrcaReport>,
    /// Why something was left out, if it was: one reason of perhaps several.
    pub ignored: Option<IgnoredReason>,
}

/// A report as it was read: the message [`OrcaLoadReport`](crate::OrcaLoadReport) with lists for maps, which cost nothing where they are
/// empty. Every number is finite, and shares and rates are not negative. What was not reported is 0 or absent. The old
/// whole-number `rps` is not for anybody's use (ORCA-2).
#[derive(Clone, PartialEq, prost::Message)]
#[prost(prost_path = "evenkeel_proto::prost")]
pub struct OrcaReport {
    /// CPU utilisation; may exceed 1 above a soft limit.
    #[prost(double, tag = "1")]
    pub cpu_utilization: f64,
    /// Memory utilisation.
    #[prost(double, tag = "2")]
    pub mem_utilization: f64,
    /// Named costs of the request, each name once.
    #[prost(message, repeated, tag = "4")]
    pub request_cost: Vec<NamedMetric>,
    /// Named utilisations, each name once.
    #[prost(message, repeated, tag = "5")]
    pub utilization: Vec<NamedMetric>,
    /// Requests per second.
    #[prost(double, tag = "6")]
    pub rps_fractional: f64,
    /// Errors per second.
    #[prost(double, tag = "7")]
    pub eps: f64,
    /// Named metrics of any meaning, each name once.
    #[prost(message, repeated, tag = "8")]
    pub named_metrics: Vec<NamedMetric>,
    /// The application's own view of its utilisation.
    #[prost(double, tag = "9")]
    pub application_utilization: f64,
}

/// An entry of a map, as it is on the wire.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(prost_path = "evenkeel_proto::prost")]
pub struct NamedMetric {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The value.
    #[prost(double, tag = "2")]
    pub value: f64,
}

/// Why a report, or some of it, is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IgnoredReason {
    /// There are several in the trailers of one call, and none of them is better than the others.
    Repeated,
    /// It has more bytes than are read.
    TooLong,
    /// It has more names than are read.
    TooManyNames,
    /// It is no report.
    Malformed,
    /// A value is not a number, infinite, or below zero where there is nothing below zero. The other values are used.
    InvalidValue,
}

/// The report in the trailers of a call, if there is one.
pub fn read_trailers(trailers: &HeaderMap) -> ParsedReport {
    let mut found: Option<&[u8]> = None;
    for (_, value) in trailers.iter().filter(|(name, _)| **name == TRAILER_NAME) {
        if found.replace(value.as_bytes()).is_some() {
            return ParsedReport::none(IgnoredReason::Repeated);
        }
    }
    let Some(text) = found else { return ParsedReport::default() };
    let mut short = [0; SHORT];
    if let Some(room) = short.get_mut(..base64::max_decoded_len(text.len())) {
        return read_text(text, room);
    }
    if text.len() > MAX_BYTES.div_ceil(3) * 4 {
        return ParsedReport::none(IgnoredReason::TooLong);
    }
    read_text(text, &mut vec![0; base64::max_decoded_len(text.len())])
}

/// A report from its text, decoded into `room`.
fn read_text(text: &[u8], room: &mut [u8]) -> ParsedReport {
    match base64::decode(text, room) {
        Some(length) => read(&room[..length]),
        // A list in one line is the same as several lines; a comma is no letter of the code.
        None if text.contains(&b',') => ParsedReport::none(IgnoredReason::Repeated),
        None => ParsedReport::none(IgnoredReason::Malformed),
    }
}

/// A report from its bytes, as they come out of band.
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
    /// Takes out what no server may report; answers whether there was nothing of it.
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
        is_valid &= retain_valid(&mut self.utilization, is_non_negative);
        is_valid &= retain_valid(&mut self.named_metrics, f64::is_finite);
        is_valid &= retain_valid(&mut self.request_cost, f64::is_finite);
        is_valid
    }
}

/// Keeps the last value of each name, if it is good; answers whether all were.
fn retain_valid(list: &mut Vec<NamedMetric>, is_good: fn(f64) -> bool) -> bool {
    if list.is_empty() {
        return true;
    }
    if list.len() > 1 {
        list.reverse();
        list.sort_by(|a, b| a.name.cmp(&b.name));
        list.dedup_by(|later, earlier| later.name == earlier.name);
    }
    let before = list.len();
    list.retain(|named| is_good(named.value));
    list.len() == before
}

/// Whether this can be a share or a rate.
pub(crate) fn is_non_negative(value: f64) -> bool {
    value >= 0.0 && value.is_finite()
}

impl ParsedReport {
    fn none(why: IgnoredReason) -> ParsedReport {
        ParsedReport { report: None, ignored: Some(why) }
    }
}

impl IgnoredReason {
    /// One word, as for a label of a metric.
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
                "a load report with a value that is not finite, or negative where nothing is; the value is not used",
            ),
        }
    }
}
