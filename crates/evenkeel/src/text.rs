//! Quoting of external text in log lines and status messages.
//!
//! Escaping keeps the text on one line and inside its quotes. Truncation bounds the length of the message, which a peer
//! could otherwise choose.

use std::time::Duration;

use evenkeel_core::Instant;

/// Maximum number of characters that are quoted.
const QUOTED: usize = 120;

/// Returns the text in quotes, escaped. A longer text is cut and ends with `...` after the closing quote.
pub(crate) fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{:?}...", text.split_at(end).0),
        None => format!("{text:?}"),
    }
}

/// Returns the time between two instants in text, rounded to three digits or to milliseconds: `340ms`, `2.94s`, `81.3s`.
pub(crate) fn elapsed(since: Instant, now: Instant) -> String {
    let millis = now.since(since).as_millis() as u64;
    let step = match millis {
        0..1_000 => 1,
        1_000..10_000 => 10,
        10_000..100_000 => 100,
        _ => 1_000,
    };
    format!("{:?}", Duration::from_millis(millis / step * step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        let text = |millis: u64| {
            let now = Instant::ORIGIN + Duration::from_micros(millis * 1000 + 999);
            elapsed(Instant::ORIGIN, now)
        };
        assert_eq!([0, 340, 2_945, 81_377, 123_456].map(text), ["0ns", "340ms", "2.94s", "81.3s", "123s"]);
    }

    #[test]
    fn text_from_outside_stays_on_its_line_and_short() {
        assert_eq!(quoted("a\n\"b\"\u{7}"), r#""a\n\"b\"\u{7}""#);
        assert_eq!(quoted(&"é".repeat(120)), format!("\"{}\"", "é".repeat(120)));
        assert_eq!(quoted(&"é".repeat(121)), format!("\"{}\"...", "é".repeat(120)));
    }
}
