//! Text from clients and files as log lines and errors show it.

/// Maximum number of characters of a text that are shown.
const MAX_CHARS: usize = 1024;

/// Escapes control characters, line separators and direction marks, and cuts long text. Without this a client could forge
/// lines of a log or send commands to a terminal.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MAX_CHARS));
    for (i, c) in text.chars().enumerate() {
        if i == MAX_CHARS {
            out.push_str("...");
            break;
        }
        let is_mark = matches!(
            c,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        );
        if c.is_control() || is_mark { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_long_text_is_cut() {
        assert_eq!(escaped("a\x1b[2J\r\n\u{9b}\u{202e}é \"b\""), "a\\u{1b}[2J\\r\\n\\u{9b}\\u{202e}é \"b\"");
        assert_eq!(escaped(&"é".repeat(MAX_CHARS + 1)), format!("{}...", "é".repeat(MAX_CHARS)));
    }
}
