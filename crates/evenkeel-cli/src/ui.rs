//! What the subcommands share on the way to the terminal: exit codes, failures, colours.

use std::fmt;
use std::io::{ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CliExit {
    /// All is well.
    Success = 0,
    /// It did what it should, and found something that somebody should fix.
    Findings = 1,
    /// Its arguments, or a file that they name, cannot be used. Clap ends with the same code.
    Usage = 2,
    /// It could not reach what it was told to talk to.
    Unreachable = 3,
}

impl From<CliExit> for ExitCode {
    fn from(exit: CliExit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Why the command cannot go on. The text is lower case, names the thing, and says what to do next where that is not plain.
#[derive(Debug)]
pub(crate) struct CliError {
    pub(crate) exit: CliExit,
    pub(crate) text: String,
}

impl CliError {
    /// The arguments, or a file that they name, cannot be used.
    pub(crate) fn usage(text: impl Into<String>) -> CliError {
        CliError { exit: CliExit::Usage, text: text.into() }
    }

    /// Somebody does not answer.
    pub(crate) fn unreachable(text: impl Into<String>) -> CliError {
        CliError { exit: CliExit::Unreachable, text: text.into() }
    }

    /// Nobody reads the output any more, as after `| head -1`: nothing is wrong, and there is nothing more to do.
    fn broken_pipe() -> CliError {
        CliError { exit: CliExit::Success, text: String::new() }
    }
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ColorMode {
    Auto,
    Always,
    Never,
}

/// The terminal, or whatever stands in its place.
#[derive(Clone, Debug)]
pub(crate) struct TerminalOutput {
    /// Whether standard output takes colours.
    colors: bool,
    /// Whether a person reads standard output as it comes.
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

    /// A text in a style, if there are colours.
    pub(crate) fn paint<T: fmt::Display>(&self, style: TextStyle, text: T) -> StyledText<T> {
        StyledText { style: self.colors.then_some(style), text }
    }

    /// Writes to standard output, at once. A reader that went away ends the command without a word.
    ///
    /// Colours and ends of lines pass, other control characters are escaped. This is the last guard: a caller that prints text
    /// of others on one line applies [`safe`] to it, since an end of a line in it would forge another line.
    pub(crate) fn print(&self, text: impl fmt::Display) -> Result<(), CliError> {
        self.print_raw(escape_output(&text.to_string(), self.colors))
    }

    /// Writes JSON and the end of its line to standard output. What JSON leaves as it is and terminals do not is escaped
    /// as JSON has it.
    pub(crate) fn print_json(&self, json: impl fmt::Display) -> Result<(), CliError> {
        self.print_raw(format_args!("{}\n", json_escaped(&json.to_string())))
    }

    /// Writes to standard output as it is: for text with cursor movements, whose other parts went through [`safe`].
    #[expect(clippy::unused_self, reason = "what is said goes through the terminal")]
    pub(crate) fn print_raw(&self, text: impl fmt::Display) -> Result<(), CliError> {
        let mut stdout = std::io::stdout().lock();
        let written = write!(stdout, "{text}").and_then(|()| stdout.flush());
        written.map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => CliError::broken_pipe(),
            _ => CliError::usage(format!("standard output cannot be written: {error}")),
        })
    }

    /// A line on standard error about what goes on.
    pub(crate) fn progress(&self) -> ProgressLine {
        let is_on = self.is_interactive && std::io::stderr().is_terminal();
        ProgressLine { began: is_on.then(Instant::now), is_shown: false }
    }

    /// Says on standard error why the command ends, if there is a reason.
    pub(crate) fn print_error(&self, failure: &CliError) {
        if failure.text.is_empty() {
            return;
        }
        let colors = self.colors && std::io::stderr().is_terminal();
        let error = StyledText { style: colors.then_some(TextStyle::Bad), text: "error:" };
        // Nobody is left to tell if this fails.
        let _ = writeln!(std::io::stderr(), "{error} {}", escape_output(&failure.text, false));
    }
}

/// A line that says what takes so long: from one second on, and only if a person watches. It goes away with this.
#[derive(Debug)]
pub(crate) struct ProgressLine {
    /// `None` if nobody watches.
    began: Option<Instant>,
    is_shown: bool,
}

impl ProgressLine {
    /// Says it, in place of what was said before.
    pub(crate) fn show(&mut self, text: impl fmt::Display) {
        if self.began.is_some_and(|began| began.elapsed() >= Duration::from_secs(1)) {
            self.is_shown = true;
            // Nobody is left to tell if this fails.
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", safe(&text.to_string()));
        }
    }

    /// Waits for something, and says what for.
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

/// How large the terminal is; 80 by 24 if it does not say.
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

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TerminalSize {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

/// Maximum number of characters of a text from outside that are shown.
const MAX_CHARS: usize = 4096;

/// Returns true for characters that move the cursor, change the terminal, hide text or turn its direction.
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

/// A text from outside as one line of a terminal may show it: what would move the cursor or turn the direction is escaped,
/// and the rest of a long text is cut.
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

/// A text of any number of lines without control characters but ends of lines and, with `colors`, those of [`StyledText`].
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

/// A JSON text in which no character is a hazard to terminals. They occur within strings only, where JSON has escapes.
pub(crate) fn json_escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '\n' || !needs_escape(c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = fmt::Write::write_fmt(&mut out, format_args!("\\u{unit:04x}"));
        }
    }
    out
}

/// A text in lines of at most so many characters, broken between words where that can be.
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

/// Reads a time as people write it: `500ms`, `15s`, `2m`.
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

/// What colours mean. Never the only sign of anything: a word or a shape says the same.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TextStyle {
    Title,
    Good,
    Warn,
    Bad,
    Faint,
}

/// A text that may be coloured. Widths and alignments hold for the text alone.
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

/// Codes of terminals: the end of all styles, then title, good, warn, bad, faint.
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
