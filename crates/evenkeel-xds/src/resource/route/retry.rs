//! Parsing of retry policies (A44).

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::Code;
use evenkeel_proto::envoy::config::route::v3 as proto;
use evenkeel_proto::prost_types;

use crate::FieldPath;
use crate::resource::reader::ResourceReader;
use crate::routing::XdsRetryPolicy;

/// Retry conditions of gRPC. Other conditions concern HTTP and are ignored.
const CONDITIONS: [(&str, Code); 5] = [
    ("cancelled", Code::Cancelled),
    ("deadline-exceeded", Code::DeadlineExceeded),
    ("internal", Code::Internal),
    ("resource-exhausted", Code::ResourceExhausted),
    ("unavailable", Code::Unavailable),
];

/// Maximum number of attempts in gRPC (A6).
const MAX_ATTEMPTS: u32 = 5;

/// Default of the first backoff.
const DEFAULT_BASE_INTERVAL: Duration = Duration::from_millis(25);

/// Minimum backoff. Shorter values are raised to it.
const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// Returns the policy, if it has a retryable code.
pub(super) fn read(
    message: &proto::RetryPolicy,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<Arc<XdsRetryPolicy>> {
    let num_retries = message.num_retries.unwrap_or(1);
    if num_retries == 0 {
        reader.problem(&path.field("num_retries"), "expected 1 or more, found 0");
    }
    let (base_interval, max_interval) = back_off(message, &path.field("retry_back_off"), reader)?;
    if message.per_try_timeout.is_some() {
        reader.warn(&path.field("per_try_timeout"), "is ignored, as gRPC does (A44)");
    }
    let asked = |name: &str| message.retry_on.split(',').any(|asked| asked.trim().eq_ignore_ascii_case(name));
    let retry_on: Vec<Code> =
        CONDITIONS.iter().filter(|(name, _)| asked(name)).map(|(_, code)| *code).collect();
    if retry_on.is_empty() {
        let text = "has no condition that gRPC supports (cancelled, deadline-exceeded, internal, resource-exhausted, \
                    unavailable): nothing is retried";
        reader.warn(&path.field("retry_on"), text);
        return None;
    }
    let max_attempts = num_retries.saturating_add(1).min(MAX_ATTEMPTS);
    Some(Arc::new(XdsRetryPolicy { retry_on, max_attempts, base_interval, max_interval }))
}

fn back_off(
    message: &proto::RetryPolicy,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<(Duration, Duration)> {
    let Some(message) = &message.retry_back_off else {
        return Some((DEFAULT_BASE_INTERVAL, DEFAULT_BASE_INTERVAL.saturating_mul(10)));
    };
    let (at_base, at_max) = (path.field("base_interval"), path.field("max_interval"));
    let base = reader.required(message.base_interval.as_ref(), &at_base);
    let base = positive(base, &at_base, reader);
    let max = positive(message.max_interval.as_ref(), &at_max, reader);
    let base = base?;
    // Compared as sent, before both are raised to the minimum.
    if max.is_some_and(|max| max < base) {
        reader.problem(&at_max, "must not be below base_interval");
        return None;
    }
    let base = base.max(MIN_INTERVAL);
    Some((base, max.unwrap_or(base.saturating_mul(10)).max(MIN_INTERVAL)))
}

fn positive(
    value: Option<&prost_types::Duration>,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<Duration> {
    let value = reader.duration(value, path)?;
    if value.is_zero() {
        reader.problem(path, "must be above 0");
        return None;
    }
    Some(value)
}
