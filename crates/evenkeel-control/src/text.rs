//! Escapes text from clients and files for log lines and errors.

/// Maximum number of characters that are shown of a text.
const MAX_CHARS: usize = 1024;

/// Escapes control characters, line separators and direction marks, and cuts long text.
///
/// Without this, a client could forge log lines or send commands to a terminal.
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
