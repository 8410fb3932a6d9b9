//! Values that several parts of a mesh use: durations and fractions.

use std::fmt;
use std::time::Duration;

use evenkeel_proto::envoy::r#type::v3::FractionalPercent;
use evenkeel_proto::envoy::r#type::v3::fractional_percent::DenominatorType;
use evenkeel_proto::prost_types;

/// Fraction of calls, from none to all, in steps of a millionth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrafficFraction {
    per_million: u32,
}

impl TrafficFraction {
    /// The fraction of all calls.
    pub const ALL: TrafficFraction = TrafficFraction { per_million: 1_000_000 };

    /// Creates a fraction of `count` per million, at most all.
    pub fn per_million(count: u32) -> TrafficFraction {
        TrafficFraction { per_million: count.min(1_000_000) }
    }

    /// Creates a fraction of `count` percent, at most all.
    pub fn percent(count: u32) -> TrafficFraction {
        TrafficFraction::per_million(count.saturating_mul(10_000))
    }

    /// Parses `10%` or `0.5%`.
    pub(crate) fn parse(text: &str) -> Option<TrafficFraction> {
        let number = text.strip_suffix('%')?.trim_end();
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || fraction.len() > 4 || !digits(whole) || !digits(fraction) {
            return None;
        }
        let fraction: u32 = format!("{fraction:0<4}").parse().ok()?;
        let per_million = whole.parse::<u32>().ok()?.checked_mul(10_000)?.checked_add(fraction)?;
        (per_million <= 1_000_000).then_some(TrafficFraction { per_million })
    }

    /// Returns the percentage, if it is a whole number.
    pub(crate) fn whole_percent(self) -> Option<u32> {
        self.per_million.is_multiple_of(10_000).then_some(self.per_million / 10_000)
    }

    /// Converts to a message with the smallest denominator that is exact, so that `10%` stays readable on the wire.
    pub(crate) fn message(self) -> FractionalPercent {
        let (numerator, denominator) = match self.per_million {
            n if n.is_multiple_of(10_000) => (n / 10_000, DenominatorType::Hundred),
            n if n.is_multiple_of(100) => (n / 100, DenominatorType::TenThousand),
            n => (n, DenominatorType::Million),
        };
        FractionalPercent { numerator, denominator: denominator.into() }
    }
}

impl fmt::Display for TrafficFraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.per_million / 10_000, self.per_million % 10_000);
        if fraction == 0 {
            return write!(f, "{whole}%");
        }
        let fraction = format!("{fraction:04}");
        write!(f, "{whole}.{}%", fraction.trim_end_matches('0'))
    }
}

/// Parses `2s`, `1.5s`, `250ms`, `10us`, `1m` or `1h`.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    /// Longer than any timeout, and within the range of protobuf's `Duration`.
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(unit_at);
    let nanos_per_unit: u64 = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.len() > 9 || number.ends_with('.') {
        return None;
    }
    let whole = u128::from(whole.parse::<u64>().ok()?) * u128::from(nanos_per_unit);
    let scale = 10_u128.pow(fraction.len() as u32);
    let fraction: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let nanos = whole + fraction * u128::from(nanos_per_unit) / scale;
    let duration = Duration::from_nanos(u64::try_from(nanos).ok()?);
    (duration <= LONGEST).then_some(duration)
}

/// Converts to protobuf's `Duration`.
pub(crate) fn duration_message(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or_default(),
    }
}
