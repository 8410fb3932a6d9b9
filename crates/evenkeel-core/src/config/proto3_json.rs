//! Rules of proto3 JSON, the format of gRPC's configs.

use std::time::Duration;

use serde_json::{Map, Value};

/// Maximum number of seconds of a duration (10,000 years).
const MAX_SECONDS: u64 = 315_576_000_000;

/// Returns a field by its name in camel case. Also finds the snake-case spelling; `null` is unset.
pub fn field<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object.get(name).or_else(|| object.get(&to_snake_case(name))).filter(|value| !value.is_null())
}

/// Returns true if `field` is a spelling of `name`, which is in camel case.
pub fn is_name_of(field: &str, name: &str) -> bool {
    field == name || field == to_snake_case(name)
}

/// Parses a duration such as `1.5s`: seconds with at most nine decimals. Returns `None` for a negative one.
pub fn duration(text: &str) -> Option<Duration> {
    signed_duration(text).filter(|(wait, negative)| !negative || wait.is_zero()).map(|(wait, _)| wait)
}

/// Parses a duration. The flag is true for a negative one.
pub(crate) fn signed_duration(text: &str) -> Option<(Duration, bool)> {
    let number = text.strip_suffix('s')?;
    let (number, negative) = number.strip_prefix('-').map_or((number, false), |rest| (rest, true));
    let (seconds, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !all_digits(seconds) || !all_digits(decimals) || decimals.len() > 9 {
        return None;
    }
    let seconds = seconds.parse().ok().filter(|s| *s <= MAX_SECONDS)?;
    let nanos = format!("{decimals:0<9}").parse().ok()?;
    Some((Duration::new(seconds, nanos), negative))
}

/// Formats a duration: seconds, without trailing zeros.
pub fn duration_to_json(wait: Duration) -> String {
    let decimals = format!(".{:09}", wait.subsec_nanos());
    format!("{}{}s", wait.as_secs(), decimals.trim_end_matches('0').trim_end_matches('.'))
}

/// Parses an integer: a number (also `4.0`) or a string.
pub(crate) fn integer(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => text.parse().ok(),
        // Up to 2^53 a JSON float is exact.
        Value::Number(n) => n.as_u64().or_else(|| {
            let float = n.as_f64()?;
            (float >= 0.0 && float.fract() == 0.0 && float <= 9_007_199_254_740_992.0).then_some(float as u64)
        }),
        _ => None,
    }
}

fn to_snake_case(camel: &str) -> String {
    let mut out = String::with_capacity(camel.len() + 4);
    for c in camel.chars() {
        if c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_follow_proto3_json() {
        assert_eq!(signed_duration("10s"), Some((Duration::from_secs(10), false)));
        assert_eq!(signed_duration("0.25s"), Some((Duration::from_millis(250), false)));
        assert_eq!(signed_duration("-1.000000001s"), Some((Duration::new(1, 1), true)));
        for bad in [
            "",
            "s",
            "10",
            "1.s",
            ".5s",
            "1e3s",
            "+1s",
            "1.0000000001s",
            "315576000001s",
            "99999999999999999999s",
        ] {
            assert_eq!(signed_duration(bad), None, "{bad}");
        }
        assert_eq!((duration("-1s"), duration("-0s")), (None, Some(Duration::ZERO)));
        for same in ["0s", "10s", "0.25s", "1.000000001s", "315576000000s"] {
            assert_eq!(signed_duration(same).map(|(wait, _)| duration_to_json(wait)).as_deref(), Some(same));
        }
    }
}
