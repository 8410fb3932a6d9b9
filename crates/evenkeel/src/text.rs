//! Text from outside, as our messages show it: escaped, so that it stays on one line and inside its quotes, and cut, so
//! that nobody else decides how long our messages are.

/// How many characters of a text are quoted.
const QUOTED: usize = 120;

/// A text in quotes, escaped, and cut if it is long.
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
