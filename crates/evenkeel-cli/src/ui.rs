//! What the subcommands share on the way to the terminal: exit codes, failures, colours.

use std::fmt;
use std::io::{ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All is well.
    Fine = 0,
    /// It did what it should, and found something that somebody should fix.
    Findings = 1,
    /// Its arguments, or a file that they name, cannot be used. Clap ends with the same code.
    Usage = 2,
    /// It could not reach what it was told to talk to.
    Unreachable = 3,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Why the command cannot go on. The text is lower case, names the thing, and says what to do next where that is not plain.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) text: String,
}

impl Failure {
    /// The arguments, or a file that they name, cannot be used.
    pub(crate) fn usage(text: impl Into<String>) -> Failure {
        Failure { exit: Exit::Usage, text: text.into() }
    }

    /// Somebody does not answer.
    pub(crate) fn unreachable(text: impl Into<String>) -> Failure {
        Failure { exit: Exit::Unreachable, text: text.into() }
    }

    /// Nobody reads the output any more, as after `| head -1`: nothing is wrong, and there is nothing more to do.
    fn nobody_reads() -> Failure {
        Failure { exit: Exit::Fine, text: String::new() }
    }
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum When {
    Auto,
    Always,
    Never,
}

/// The terminal, or whatever stands in its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terminal {
    /// Whether standard output takes colours.
    colors: bool,
    /// Whether a person reads standard output as it comes.
    pub(crate) is_interactive: bool,
}

impl Terminal {
    pub(crate) fn new(when: When) -> Terminal {
        let is_interactive = std::io::stdout().is_terminal();
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let colors = match when {
            When::Auto => is_interactive && wanted,
            When::Always => true,
            When::Never => false,
        };
        Terminal { colors, is_interactive }
    }

    /// A text in a style, if there are colours.
    pub(crate) fn paint<T: fmt::Display>(&self, style: Style, text: T) -> Painted<T> {
        Painted { style: self.colors.then_some(style), text }
    }

    /// Writes to standard output, at once. A reader that went away ends the command without a word.
    pub(crate) fn print(&self, text: impl fmt::Display) -> Result<(), Failure> {
        let mut stdout = std::io::stdout().lock();
        let written = write!(stdout, "{text}").and_then(|()| stdout.flush());
        written.map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => Failure::nobody_reads(),
            _ => Failure::usage(format!("standard output cannot be written: {error}")),
        })
    }

    /// Says on standard error why the command ends, if there is a reason.
    pub(crate) fn complain(&self, failure: &Failure) {
        if failure.text.is_empty() {
            return;
        }
        let colors = self.colors && std::io::stderr().is_terminal();
        let error = Painted { style: colors.then_some(Style::Bad), text: "error:" };
        // Nobody is left to tell if this fails.
        let _ = writeln!(std::io::stderr(), "{error} {}", failure.text);
    }
}

/// What colours mean. Never the only sign of anything: a word or a shape says the same.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    Title,
    Good,
    Warn,
    Bad,
    Faint,
}

/// A text that may be coloured. Widths and alignments hold for the text alone.
pub(crate) struct Painted<T> {
    style: Option<Style>,
    text: T,
}

impl<T: fmt::Display> fmt::Display for Painted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(style) = self.style else { return self.text.fmt(f) };
        f.write_str(match style {
            Style::Title => "\x1b[1m",
            Style::Good => "\x1b[32m",
            Style::Warn => "\x1b[33m",
            Style::Bad => "\x1b[31m",
            Style::Faint => "\x1b[2m",
        })?;
        self.text.fmt(f)?;
        f.write_str("\x1b[0m")
    }
}
