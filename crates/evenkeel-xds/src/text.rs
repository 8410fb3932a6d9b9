//! Text from outside, as our messages show it.
//!
//! Whatever a control plane, a file or a caller wrote is escaped, so that it stays on one line and inside its quotes,
//! and cut, so that nobody else decides how long our messages are.

use std::fmt::Write as _;

/// How many characters of a text are quoted.
const MAX_QUOTE: usize = 120;

/// How many characters are kept of what has to be told whole if that is possible: names of resources, which may be long
/// paths (A47), and what other sides say about their errors.
const MAX_LONG_QUOTE: usize = 512;

/// A text in quotes, escaped, and cut if it is long.
pub(crate) fn quoted(text: &str) -> String {
    quoted_at_most(MAX_QUOTE, text)
}

/// As [`quoted`], with room for a whole name or a whole message.
pub(crate) fn quoted_long(text: &str) -> String {
    quoted_at_most(MAX_LONG_QUOTE, text)
}

/// Texts in quotes, the first few of them.
pub(crate) fn listed<'a>(texts: impl ExactSizeIterator<Item = &'a str>) -> String {
    const MAX_LISTED: usize = 16;
    let more = texts.len().saturating_sub(MAX_LISTED);
    let mut list = texts.take(MAX_LISTED).map(quoted).collect::<Vec<_>>().join(", ");
    if more > 0 {
        let _ = write!(list, " and {more} more");
    }
    list
}

/// A message of another part, which may quote text from outside: on one line, and cut if it is long.
pub(crate) fn single_line(text: &str) -> String {
    let mut single_line = String::new();
    for (i, c) in text.chars().enumerate() {
        if i == MAX_LONG_QUOTE {
            single_line.push_str("...");
            break;
        }
        if c.is_control() || is_format_character(c) {
            single_line.extend(c.escape_default());
        } else {
            single_line.push(c);
        }
    }
    single_line
}

/// Returns true for line separators, direction marks and characters without a width: a log viewer may show other text than
/// there is.
fn is_format_character(c: char) -> bool {
    matches!(
        c,
        '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    )
}

/// The longest start of a text that has at most so many bytes.
pub(crate) fn truncated(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    text.split_at(end).0
}

/// The start of a text, as the paths to fields have it.
pub(crate) fn short(text: &str) -> &str {
    truncated(text, MAX_QUOTE)
}

fn quoted_at_most(characters: usize, text: &str) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{:?}...", truncated(text, end)),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stay_on_one_line_and_in_their_direction() {
        assert_eq!(
            single_line("a\r\n\x1b\u{9b}\u{202e}\u{2028}é \"b\""),
            "a\\r\\n\\u{1b}\\u{9b}\\u{202e}\\u{2028}é \"b\""
        );
        assert_eq!(
            single_line(&"é".repeat(MAX_LONG_QUOTE + 1)),
            format!("{}...", "é".repeat(MAX_LONG_QUOTE))
        );
    }
}
