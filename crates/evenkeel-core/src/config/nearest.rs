//! Suggestion for a misspelt name: the known name with the smallest edit distance.

/// Maximum length of names that are compared, in bytes. The cost is quadratic, and longer names are no typing errors.
const MAX_NAME: usize = 64;

/// Returns the known name that an unknown one most likely stands for, if one is close. Case, underscores and hyphens
/// do not count, so `round-robbin` stands for `round_robin`.
///
/// ```
/// use evenkeel_core::nearest_name;
/// assert_eq!(nearest_name("timout", ["name", "timeout", "retryPolicy"]), Some("timeout"));
/// assert_eq!(nearest_name("hedging", ["name", "timeout", "retryPolicy"]), None);
/// ```
pub fn nearest_name<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if unknown.len() > MAX_NAME {
        return None;
    }
    let unknown = letters(unknown);
    let maximum = (unknown.len() / 3).max(1);
    let candidates = known.into_iter().filter(|name| name.len() <= MAX_NAME);
    let distances = candidates.map(|name| (distance(&unknown, &letters(name)), name));
    distances
        .filter(|(distance, _)| *distance <= maximum)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

fn letters(name: &str) -> Vec<char> {
    name.chars().filter(|c| !matches!(c, '_' | '-')).map(|c| c.to_ascii_lowercase()).collect()
}

/// Returns the edit distance: the number of characters to insert, delete or replace.
fn distance(one: &[char], other: &[char]) -> usize {
    // Distances from the processed prefix of `one` to every prefix of `other`.
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut next = vec![i + 1];
        for ((b, above), diagonal) in other.iter().zip(row.iter().skip(1)).zip(&row) {
            let left = next.last().copied().unwrap_or_default();
            next.push((diagonal + usize::from(a != b)).min(above + 1).min(left + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found() {
        let known = ["maxAttempts", "maxBackoff", "minRingSize", "maxRingSize", "round_robin"];
        for (unknown, nearest) in [
            ("maxAttempt", Some("maxAttempts")),
            ("max_attempts", Some("maxAttempts")),
            ("MaxBackOff", Some("maxBackoff")),
            ("maxRingsize", Some("maxRingSize")),
            ("minRngSze", Some("minRingSize")),
            ("round-robbin", Some("round_robin")),
            ("", None),
            ("timeout", None),
        ] {
            assert_eq!(nearest_name(unknown, known), nearest, "{unknown}");
        }
        assert_eq!(nearest_name(&"a".repeat(65), [&*"a".repeat(64)]), None);
        assert_eq!(nearest_name("a", []), None);
    }
}
