//! Escapes and truncates text of external origin for messages.
//!
//! Text from a control plane, a file or a caller is escaped, so that it stays on one line and inside its quotes. It is
//! also truncated, so that its author does not control the length of our messages.

use std::fmt::Write as _;

/// Maximum number of characters of a quoted text.
const MAX_QUOTE: usize = 120;

/// Maximum number of characters of a text that should be quoted in full if possible. Examples are resource names, which
/// may be long paths (A47), and error messages of peers.
const MAX_LONG_QUOTE: usize = 512;

/// Returns the text in quotes, escaped, and truncated to [`MAX_QUOTE`] characters.
pub(crate) fn quoted(text: &str) -> String {
    quoted_at_most(MAX_QUOTE, text)
}

/// Returns the text in quotes, as [`quoted`], truncated to [`MAX_LONG_QUOTE`] characters.
pub(crate) fn quoted_long(text: &str) -> String {
    quoted_at_most(MAX_LONG_QUOTE, text)
}

/// Returns the first 16 texts, quoted and separated by commas, and the number of the others.
pub(crate) fn listed<'a>(texts: impl ExactSizeIterator<Item = &'a str>) -> String {
    const MAX_LISTED: usize = 16;
    let more = texts.len().saturating_sub(MAX_LISTED);
    let mut list = texts.take(MAX_LISTED).map(quoted).collect::<Vec<_>>().join(", ");
    if more > 0 {
        let _ = write!(list, " and {more} more");
    }
    list
}

/// Returns the text on one line, truncated to [`MAX_LONG_QUOTE`] characters. It may quote text of external origin.
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

/// Returns true for line separators, direction marks and characters without a width. They can make a log viewer show
/// other text than the message contains.
fn is_format_character(c: char) -> bool {
    matches!(
        c,
        '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    )
}

/// Returns the longest prefix of at most `bytes` bytes that ends at a character boundary.
pub(crate) fn truncated(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    text.split_at(end).0
}

/// Returns the text truncated for use in a field path.
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
