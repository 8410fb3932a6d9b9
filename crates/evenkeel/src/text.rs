//! Quoting of external text in log lines and status messages.
//!
//! Escaping keeps the text on one line and inside its quotes. Truncation bounds the length of the message, which a peer
//! could otherwise choose.

/// Maximum number of characters that are quoted.
const QUOTED: usize = 120;

/// Returns the text in quotes, escaped. A longer text is cut and ends with `...` after the closing quote.
pub(crate) fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{:?}...", text.split_at(end).0),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_stays_on_its_line_and_short() {
        assert_eq!(quoted("a\n\"b\"\u{7}"), r#""a\n\"b\"\u{7}""#);
        assert_eq!(quoted(&"é".repeat(120)), format!("\"{}\"", "é".repeat(120)));
        assert_eq!(quoted(&"é".repeat(121)), format!("\"{}\"...", "é".repeat(120)));
    }
}
