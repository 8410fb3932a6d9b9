//! Readers of small messages that occur in many resources.

use std::time::Duration;

use evenkeel_core::policy::Denominator;
use evenkeel_proto::envoy::r#type::v3::fractional_percent::DenominatorType;
use evenkeel_proto::prost;
use evenkeel_proto::prost_types;

use crate::resource::RejectedResource;
use crate::{FieldPath, ValidationErrors};

/// Maximum protobuf duration in seconds (10,000 years).
const MAX_SECONDS: i64 = 315_576_000_000;

/// Decodes a message. Malformed bytes are an error of the whole resource.
pub(crate) fn decode<M: prost::Message + Default>(bytes: &[u8]) -> Result<M, RejectedResource> {
    M::decode(bytes).map_err(|error| RejectedResource {
        name: None,
        problems: ValidationErrors::one(&FieldPath::root(), format!("cannot be decoded: {error}")),
    })
}

/// Returns a valid protobuf duration that is not negative.
pub(crate) fn duration(
    value: &prost_types::Duration,
    path: &FieldPath<'_>,
    problems: &mut ValidationErrors,
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

/// Returns the denominator of a fraction. An unknown one is an error.
pub(crate) fn denominator(
    value: i32,
    path: &FieldPath<'_>,
    problems: &mut ValidationErrors,
) -> Option<Denominator> {
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
