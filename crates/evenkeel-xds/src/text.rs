//! Text from outside, as our messages show it.
//!
//! Whatever a control plane, a file or a caller wrote is escaped, so that it stays on one line and inside its quotes,
//! and cut, so that nobody else decides how long our messages are.

use std::fmt::Write as _;

/// How many characters of a text are quoted.
const QUOTED: usize = 120;

/// How many characters are kept of what has to be told whole if that is possible: names of resources, which may be long
/// paths (A47), and what other sides say about their errors.
const TOLD: usize = 512;

/// A text in quotes, escaped, and cut if it is long.
pub(crate) fn quoted(text: &str) -> String {
    quoted_up_to(QUOTED, text)
}

/// As [`quoted`], with room for a whole name or a whole message.
pub(crate) fn quoted_whole(text: &str) -> String {
    quoted_up_to(TOLD, text)
}

/// Texts in quotes, the first few of them.
pub(crate) fn listed<'a>(texts: impl ExactSizeIterator<Item = &'a str>) -> String {
    const LISTED: usize = 16;
    let more = texts.len().saturating_sub(LISTED);
    let mut list = texts.take(LISTED).map(quoted).collect::<Vec<_>>().join(", ");
    if more > 0 {
        let _ = write!(list, " and {more} more");
    }
    list
}

/// A message of another part, which may quote text from outside: on one line, and cut if it is long.
pub(crate) fn line(text: &str) -> String {
    let mut line = String::new();
    for (i, c) in text.chars().enumerate() {
        if i == TOLD {
            line.push_str("...");
            break;
        }
        if c.is_control() || is_mark(c) { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

/// Returns true for line separators, direction marks and characters without a width: a log viewer may show other text than
/// there is.
fn is_mark(c: char) -> bool {
    matches!(
        c,
        '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    )
}

/// The longest start of a text that has at most so many bytes.
pub(crate) fn start(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    text.split_at(end).0
}

/// The start of a text, as the paths to fields have it.
pub(crate) fn short(text: &str) -> &str {
    start(text, QUOTED)
}

fn quoted_up_to(characters: usize, text: &str) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{:?}...", start(text, end)),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stay_on_one_line_and_in_their_direction() {
        assert_eq!(
            line("a\r\n\x1b\u{9b}\u{202e}\u{2028}é \"b\""),
            "a\\r\\n\\u{1b}\\u{9b}\\u{202e}\\u{2028}é \"b\""
        );
        assert_eq!(line(&"é".repeat(TOLD + 1)), format!("{}...", "é".repeat(TOLD)));
    }
}
