//! Reading load reports, as a client does.
//!
//! A backend sends them in the trailer [`TRAILER`] of an answer, or out of band. They come from outside and say
//! anything. What cannot be used is ignored, and [`Reading::ignored`] says why, for whoever counts such things; the call
//! that it came with is none the worse.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use evenkeel_proto::prost::Message as _;
use evenkeel_proto::xds::data::orca::v3::OrcaLoadReport;
use http::{HeaderMap, HeaderName};

/// The trailer that carries the report on a call; its value is binary.
pub const TRAILER: &str = "endpoint-load-metrics-bin";

pub(crate) static TRAILER_NAME: HeaderName = HeaderName::from_static(TRAILER);

/// Binary metadata as gRPC sends it: without padding. Some peers send padding, and it is taken too.
pub(crate) const BINARY: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// The longest report that is read.
const MAX_BYTES: usize = 64 << 10;

/// The most names in a report, over all of its maps.
const MAX_NAMES: usize = 1_000;

/// A report that is not longer than this is decoded without memory of its own.
const SHORT: usize = 256;

/// What came of reading a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// What can be used. A value that no server may report is left out, as if it had not been reported.
    pub report: Option<OrcaLoadReport>,
    /// Why something was left out, if it was: one reason of perhaps several.
    pub ignored: Option<Ignored>,
}

/// Why a report, or some of it, is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ignored {
    /// There are several in the trailers of one call, and none of them is better than the others.
    Repeated,
    /// It has more bytes than are read.
    TooLong,
    /// It has more names than are read.
    TooManyNames,
    /// It is no report.
    Malformed,
    /// A value is not a number, infinite, or below zero where there is nothing below zero. The other values are used.
    BadValue,
}

/// The report in the trailers of a call, if there is one.
pub fn read_trailers(trailers: &HeaderMap) -> Reading {
    let mut values = trailers.iter().filter(|(name, _)| *name == TRAILER_NAME).map(|(_, value)| value);
    let Some(value) = values.next() else { return Reading::default() };
    let text = value.as_bytes();
    // A list in one line is the same as several lines; a comma is no letter of the code.
    if values.next().is_some() || text.contains(&b',') {
        return Reading::none(Ignored::Repeated);
    }
    let mut short = [0; SHORT];
    if let Ok(length) = BINARY.decode_slice(text, &mut short) {
        return read(&short[..length]);
    }
    if text.len() > MAX_BYTES.div_ceil(3) * 4 {
        return Reading::none(Ignored::TooLong);
    }
    match BINARY.decode(text) {
        Ok(bytes) => read(&bytes),
        Err(_) => Reading::none(Ignored::Malformed),
    }
}

/// A report from its bytes, as they come out of band. The old whole-number `rps` is not for anybody's use (ORCA-2).
pub fn read(bytes: &[u8]) -> Reading {
    if bytes.len() > MAX_BYTES {
        return Reading::none(Ignored::TooLong);
    }
    let Ok(mut report) = OrcaLoadReport::decode(bytes) else {
        return Reading::none(Ignored::Malformed);
    };
    if report.utilization.len() + report.named_metrics.len() + report.request_cost.len() > MAX_NAMES {
        return Reading::none(Ignored::TooManyNames);
    }
    let is_sound = leave_out_bad(&mut report);
    Reading { report: Some(report), ignored: (!is_sound).then_some(Ignored::BadValue) }
}

/// Takes out what no server may report; answers whether there was nothing of it.
fn leave_out_bad(report: &mut OrcaLoadReport) -> bool {
    let mut is_sound = true;
    for value in [
        &mut report.cpu_utilization,
        &mut report.mem_utilization,
        &mut report.application_utilization,
        &mut report.rps_fractional,
        &mut report.eps,
    ] {
        if !is_amount(*value) {
            *value = 0.0;
            is_sound = false;
        }
    }
    let mut keep = |map: &mut BTreeMap<String, f64>, is_good: fn(f64) -> bool| {
        let before = map.len();
        map.retain(|_, value| is_good(*value));
        is_sound &= map.len() == before;
    };
    keep(&mut report.utilization, is_amount);
    keep(&mut report.named_metrics, f64::is_finite);
    keep(&mut report.request_cost, f64::is_finite);
    is_sound
}

/// Whether this can be a share or a rate.
pub(crate) fn is_amount(value: f64) -> bool {
    value >= 0.0 && value.is_finite()
}

impl Reading {
    fn none(why: Ignored) -> Reading {
        Reading { report: None, ignored: Some(why) }
    }
}

impl Ignored {
    /// One word, as for a label of a metric.
    pub fn as_str(self) -> &'static str {
        match self {
            Ignored::Repeated => "repeated",
            Ignored::TooLong => "too_long",
            Ignored::TooManyNames => "too_many_names",
            Ignored::Malformed => "malformed",
            Ignored::BadValue => "bad_value",
        }
    }
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ignored::Repeated => f.write_str("several load reports on one call; none is used"),
            Ignored::TooLong => write!(f, "a load report of more than {MAX_BYTES} bytes; it is not used"),
            Ignored::TooManyNames => write!(f, "a load report with more than {MAX_NAMES} names; it is not used"),
            Ignored::Malformed => f.write_str("a load report that cannot be decoded; it is not used"),
            Ignored::BadValue => f.write_str(
                "a load report with a value that is not finite, or negative where nothing is; the value is not used",
            ),
        }
    }
}
