//! Reading the small parts that many messages share.

use std::time::Duration;

use evenkeel_core::policy::Denominator;
use evenkeel_proto::envoy::r#type::v3::FractionalPercent;
use evenkeel_proto::envoy::r#type::v3::fractional_percent::DenominatorType;
use evenkeel_proto::prost;
use evenkeel_proto::prost_types;

use crate::resource::{Parsed, Rejected, Resource};
use crate::{Limits, Path, Problems};

/// The longest duration in protobuf, in seconds (10,000 years).
const MAX_SECONDS: i64 = 315_576_000_000;

/// Decodes a message; bytes that are no such message are a problem of the resource as a whole.
pub(crate) fn decode<M: prost::Message + Default>(bytes: &[u8]) -> Result<M, Rejected> {
    M::decode(bytes).map_err(|error| Rejected {
        name: None,
        problems: Problems::one(&Path::root(), format!("cannot be decoded: {error}")),
    })
}

/// What a parser answers: the resource if nothing is wrong with it.
pub(crate) fn finish(
    name: String,
    problems: Problems,
    warnings: Vec<String>,
    resource: impl FnOnce() -> Option<Resource>,
) -> Result<Parsed, Rejected> {
    if problems.is_empty()
        && let Some(resource) = resource()
    {
        return Ok(Parsed { name, resource, warnings });
    }
    Err(Rejected { name: Some(name), problems })
}

/// Checks a name against the limit; an empty one is a problem too.
pub(crate) fn name(text: &str, limits: &Limits, path: &Path<'_>, problems: &mut Problems) {
    if text.is_empty() {
        problems.add(path, "must not be empty");
    } else if text.len() > limits.name_bytes {
        problems.add(path, format!("has {} bytes; at most {} are allowed", text.len(), limits.name_bytes));
    }
}

/// A duration that is valid protobuf and not negative.
pub(crate) fn duration(
    value: &prost_types::Duration,
    path: &Path<'_>,
    problems: &mut Problems,
) -> Option<Duration> {
    let seconds = u64::try_from(value.seconds).ok().filter(|_| value.seconds <= MAX_SECONDS);
    let nanos = u32::try_from(value.nanos).ok().filter(|nanos| *nanos < 1_000_000_000);
    if let (Some(seconds), Some(nanos)) = (seconds, nanos) {
        return Some(Duration::new(seconds, nanos));
    }
    let text = format!(
        "expected seconds from 0 to {MAX_SECONDS} and nanos from 0 to 999999999, found {} and {}",
        value.seconds, value.nanos
    );
    problems.add(path, text);
    None
}

/// A fraction as so many in a million; above one it counts as one. An unknown denominator is a problem.
pub(crate) fn per_million(
    fraction: FractionalPercent,
    path: &Path<'_>,
    problems: &mut Problems,
) -> Option<u32> {
    Some(denominator(fraction.denominator, path, problems)?.per_million(fraction.numerator))
}

/// What the numerator of a fraction counts. An unknown denominator is a problem.
pub(crate) fn denominator(value: i32, path: &Path<'_>, problems: &mut Problems) -> Option<Denominator> {
    match DenominatorType::try_from(value) {
        Ok(DenominatorType::Hundred) => Some(Denominator::Hundred),
        Ok(DenominatorType::TenThousand) => Some(Denominator::TenThousand),
        Ok(DenominatorType::Million) => Some(Denominator::Million),
        Err(_) => {
            let text = format!("expected HUNDRED, TEN_THOUSAND or MILLION, found {value}");
            problems.add(&path.field("denominator"), text);
            None
        }
    }
}

/// How many remarks of one resource are kept.
const NOTES: usize = 32;

/// Notes something about the field at `path` that the operator should know. After a few, no more are kept.
pub(crate) fn note(path: &Path<'_>, text: &str, warnings: &mut Vec<String>) {
    if warnings.len() < NOTES {
        warnings.push(format!("{path}: {text}"));
    }
}
