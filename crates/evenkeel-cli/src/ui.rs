//! Terminal output shared by the subcommands: exit codes, errors, styles, escaping.

use std::fmt;
use std::io::{ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Exit code of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CliExit {
    /// The command completed without findings.
    Success = 0,
    /// The command completed and found something to fix.
    Findings = 1,
    /// Arguments, or a file that they name, are invalid. Clap uses the same code.
    Usage = 2,
    /// A peer could not be reached.
    Unreachable = 3,
}

impl From<CliExit> for ExitCode {
    fn from(exit: CliExit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Error that ends the command. The text is lower case, names the subject, and gives the next action unless
/// it is obvious.
#[derive(Debug)]
pub(crate) struct CliError {
    pub(crate) exit: CliExit,
    pub(crate) text: String,
}

impl CliError {
    /// Error for invalid arguments, or for a file that they name.
    pub(crate) fn usage(text: impl Into<String>) -> CliError {
        CliError { exit: CliExit::Usage, text: text.into() }
    }

    /// Error for a peer that does not respond.
    pub(crate) fn unreachable(text: impl Into<String>) -> CliError {
        CliError { exit: CliExit::Unreachable, text: text.into() }
    }

    /// The reader of the output has closed it, as `| head -1` does. This is a silent, successful exit.
    fn broken_pipe() -> CliError {
        CliError { exit: CliExit::Success, text: String::new() }
    }
}

/// Use of colours in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ColorMode {
    Auto,
    Always,
    Never,
}

/// Standard output, which may be a terminal.
#[derive(Clone, Debug)]
pub(crate) struct TerminalOutput {
    /// True if output is styled.
    colors: bool,
    /// True if standard output is a terminal.
    pub(crate) is_interactive: bool,
}

impl TerminalOutput {
    pub(crate) fn new(when: ColorMode) -> TerminalOutput {
        let is_interactive = std::io::stdout().is_terminal();
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let colors = match when {
            ColorMode::Auto => is_interactive && wanted,
            ColorMode::Always => true,
            ColorMode::Never => false,
        };
        TerminalOutput { colors, is_interactive }
    }

    /// Styles text, if colours are enabled.
    pub(crate) fn paint<T: fmt::Display>(&self, style: TextStyle, text: T) -> StyledText<T> {
        StyledText { style: self.colors.then_some(style), text }
    }

    /// Writes to standard output and flushes. A closed pipe ends the command silently.
    ///
    /// Style codes and line feeds pass; other control characters are escaped. This is the last guard. A
    /// caller that prints untrusted text on one line applies [`safe`] first: a line feed in it would forge
    /// another line.
    pub(crate) fn print(&self, text: impl fmt::Display) -> Result<(), CliError> {
        self.print_raw(escape_output(&text.to_string(), self.colors))
    }

    /// Writes JSON and a line feed to standard output. Characters that are valid in JSON but unsafe for
    /// terminals become JSON escapes.
    pub(crate) fn print_json(&self, json: impl fmt::Display) -> Result<(), CliError> {
        self.print_raw(format_args!("{}\n", json_escaped(&json.to_string())))
    }

    /// Writes to standard output unchanged: for text with cursor movements, whose other parts went through
    /// [`safe`].
    #[expect(clippy::unused_self, reason = "all output goes through the terminal")]
    pub(crate) fn print_raw(&self, text: impl fmt::Display) -> Result<(), CliError> {
        let mut stdout = std::io::stdout().lock();
        let written = write!(stdout, "{text}").and_then(|()| stdout.flush());
        written.map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => CliError::broken_pipe(),
            _ => CliError::usage(format!("standard output cannot be written: {error}")),
        })
    }

    /// Creates a progress line on standard error.
    pub(crate) fn progress(&self) -> ProgressLine {
        let is_on = self.is_interactive && std::io::stderr().is_terminal();
        ProgressLine { began: is_on.then(Instant::now), is_shown: false }
    }

    /// Prints the error on standard error, unless its text is empty.
    pub(crate) fn print_error(&self, failure: &CliError) {
        if failure.text.is_empty() {
            return;
        }
        let colors = self.colors && std::io::stderr().is_terminal();
        let error = StyledText { style: colors.then_some(TextStyle::Bad), text: "error:" };
        // A failed write to standard error cannot be reported.
        let _ = writeln!(std::io::stderr(), "{error} {}", escape_output(&failure.text, false));
    }
}

/// Progress line on standard error. It is shown after one second, only on a terminal, and erased on drop.
#[derive(Debug)]
pub(crate) struct ProgressLine {
    /// `None` if standard output or standard error is not a terminal.
    began: Option<Instant>,
    is_shown: bool,
}

impl ProgressLine {
    /// Replaces the text of the line.
    pub(crate) fn show(&mut self, text: impl fmt::Display) {
        if self.began.is_some_and(|began| began.elapsed() >= Duration::from_secs(1)) {
            self.is_shown = true;
            // A failed write to standard error cannot be reported.
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", safe(&text.to_string()));
        }
    }

    /// Awaits `work` and shows `what` with the elapsed seconds.
    pub(crate) async fn during<T>(mut self, what: &str, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        let mut seconds = 0;
        loop {
            match tokio::time::timeout(Duration::from_secs(1), work.as_mut()).await {
                Ok(done) => return done,
                Err(_) => seconds += 1,
            }
            self.show(format!("{what}: {seconds} s ..."));
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// Returns the size of the terminal; 80 by 24 if unknown.
pub(crate) fn size() -> TerminalSize {
    let stty = std::process::Command::new("stty")
        .arg("size")
        .stdin(std::process::Stdio::inherit())
        .stderr(std::process::Stdio::null())
        .output();
    let output = stty.ok().and_then(|stty| String::from_utf8(stty.stdout).ok()).unwrap_or_default();
    let mut numbers = output.split_whitespace().filter_map(|number| number.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(rows), Some(columns)) if rows > 0 && columns > 0 => TerminalSize { rows, columns },
        _ => TerminalSize { rows: 24, columns: 80 },
    }
}

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TerminalSize {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

/// Maximum number of characters shown of an untrusted text.
const MAX_CHARS: usize = 4096;

/// Returns true for characters that move the cursor, change the terminal, hide text or change its direction.
fn needs_escape(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Escapes untrusted text for one line of a terminal and truncates it at [`MAX_CHARS`]. Characters that would
/// move the cursor or change the text direction are escaped.
pub(crate) fn safe(text: &str) -> String {
    let mut safe = String::with_capacity(text.len().min(MAX_CHARS));
    for (i, c) in text.chars().enumerate() {
        if i == MAX_CHARS {
            safe.push_str("...");
            break;
        }
        if needs_escape(c) { safe.extend(c.escape_default()) } else { safe.push(c) }
    }
    safe
}

/// Escapes control characters in multi-line text, except line feeds and, with `colors`, the codes of
/// [`StyledText`].
fn escape_output(text: &str, colors: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let code = colors.then(|| CODES.iter().find(|code| rest.starts_with(**code))).flatten();
        let passed = match code {
            Some(code) => code.len(),
            None if c == '\n' || !needs_escape(c) => c.len_utf8(),
            None => {
                out.extend(c.escape_default());
                rest = rest.split_at(c.len_utf8()).1;
                continue;
            }
        };
        let (start, end) = rest.split_at(passed);
        out.push_str(start);
        rest = end;
    }
    out
}

/// Escapes characters that are unsafe for terminals. In JSON they occur only within strings, where escapes
/// are valid.
pub(crate) fn json_escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '\n' || !needs_escape(c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a `String` cannot fail.
            let _ = fmt::Write::write_fmt(&mut out, format_args!("\\u{unit:04x}"));
        }
    }
    out
}

/// Wraps text at `room` characters, between words where possible.
pub(crate) fn wrapped(text: &str, room: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room {
            lines.push(std::mem::take(&mut line));
        } else if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

/// Truncates a line at this number of columns. The codes of [`StyledText`] take no columns and are all kept, so every style is
/// reset.
pub(crate) fn cut(line: &str, columns: usize) -> String {
    let mut kept = String::with_capacity(line.len());
    let (mut column, mut is_code) = (0, false);
    for c in line.chars() {
        is_code |= c == '\x1b';
        if is_code {
            kept.push(c);
            is_code = c != 'm';
        } else if column < columns {
            kept.push(c);
            column += 1;
        }
    }
    kept
}

/// Formats a number with at most `decimals` decimals, of which there is at least one, and without trailing zeros.
pub(crate) fn number(number: f64, decimals: usize) -> String {
    let text = format!("{number:.decimals$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Parses a duration such as `500ms`, `15s` or `2m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let expected = || format!("expected a time such as 500ms, 15s or 2m, found {text:?}");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u32 = text[..digits].parse().map_err(|_| expected())?;
    let unit = match &text[digits..] {
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        _ => return Err(expected()),
    };
    let time = unit * number;
    if time.is_zero() { Err(expected()) } else { Ok(time) }
}

/// Meaning of a style. Colour is never the only signal: a word or a symbol carries the same information.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TextStyle {
    Title,
    Good,
    Warn,
    Bad,
    Faint,
}

/// Text with an optional style. Width and alignment apply to the text without its codes.
pub(crate) struct StyledText<T> {
    style: Option<TextStyle>,
    text: T,
}

impl<T: fmt::Display> fmt::Display for StyledText<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(style) = self.style else { return self.text.fmt(f) };
        let [reset, title, good, warn, bad, faint] = CODES;
        f.write_str(match style {
            TextStyle::Title => title,
            TextStyle::Good => good,
            TextStyle::Warn => warn,
            TextStyle::Bad => bad,
            TextStyle::Faint => faint,
        })?;
        self.text.fmt(f)?;
        f.write_str(reset)
    }
}

/// SGR codes: reset, title, good, warn, bad, faint.
const CODES: [&str; 6] = ["\x1b[0m", "\x1b[1m", "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_wrapped_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("incomprehensible one", 7), ["incomprehensible", "one"]);
        assert_eq!(wrapped("", 7), [""]);
    }

    #[test]
    fn lines_are_cut_but_not_their_codes() {
        assert_eq!(cut("abcdef", 3), "abc");
        assert_eq!(cut("a\x1b[31mbcd\x1b[0me", 2), "a\x1b[31mb\x1b[0m");
    }

    #[test]
    fn times_are_read() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("15s"), Ok(Duration::from_secs(15)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "5", "s", "0s", "-1s", "1.5s", "1h", "99999999999s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_moves_the_cursor_is_escaped() {
        assert_eq!(safe("a\x1b[2J\r\n\u{9b}\u{202e}é→"), "a\\u{1b}[2J\\r\\n\\u{9b}\\u{202e}é→");
        assert_eq!(safe(&"é".repeat(MAX_CHARS + 1)), format!("{}...", "é".repeat(MAX_CHARS)));
    }

    #[test]
    fn only_our_own_colours_pass() {
        let text = "a\x1b[31mb\x1b[0m\nc\x1b[5md\r\x1b";
        assert_eq!(escape_output(text, true), "a\x1b[31mb\x1b[0m\nc\\u{1b}[5md\\r\\u{1b}");
        assert_eq!(escape_output(text, false), "a\\u{1b}[31mb\\u{1b}[0m\nc\\u{1b}[5md\\r\\u{1b}");
    }

    #[test]
    fn json_stays_the_same_json() {
        let value = serde_json::json!({ "a": "\u{9b}\u{202e}\u{7f}\u{e0041}\n\x1bé" });
        let text = json_escaped(&format!("{value:#}"));
        assert!(text.chars().all(|c| c == '\n' || !needs_escape(c)), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
