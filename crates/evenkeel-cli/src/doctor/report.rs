//! The steps of a walk, told as they are taken, or all at once as JSON.

use std::time::Instant;

use serde_json::{Value, json};

use super::Stop;
use crate::ui::{self, Exit, Failure, Style, Terminal};

/// What is wrong: at which step, and in four lines what somebody needs to put it right.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    step: &'static str,
    exit: Exit,
    expected: String,
    pub(super) found: String,
    likely: String,
    next: String,
}

impl Trouble {
    pub(super) fn new(step: &'static str, exit: Exit, found: impl Into<String>) -> Trouble {
        let found = found.into();
        Trouble { step, exit, expected: String::new(), found, likely: String::new(), next: String::new() }
    }

    pub(super) fn expected(self, expected: impl Into<String>) -> Trouble {
        Trouble { expected: expected.into(), ..self }
    }

    pub(super) fn likely(self, likely: impl Into<String>) -> Trouble {
        Trouble { likely: likely.into(), ..self }
    }

    pub(super) fn next(self, next: impl Into<String>) -> Trouble {
        Trouble { next: next.into(), ..self }
    }

    fn lines(&self) -> [(&'static str, &str); 4] {
        [("expected", &self.expected), ("found", &self.found), ("likely", &self.likely), ("next", &self.next)]
    }
}

/// What was found so far.
pub(super) struct Report<'a> {
    target: String,
    as_json: bool,
    pub(super) terminal: &'a Terminal,
    steps: Vec<Value>,
    /// When the step began that is under way.
    began: Instant,
}

impl<'a> Report<'a> {
    pub(super) fn new(target: &str, as_json: bool, terminal: &'a Terminal) -> Report<'a> {
        Report { target: target.to_owned(), as_json, terminal, steps: Vec::new(), began: Instant::now() }
    }

    /// A step went well.
    pub(super) fn fine(&mut self, step: &'static str, found: &str) -> Result<(), Failure> {
        let ms = self.step_ended();
        self.steps.push(json!({ "step": step, "ok": true, "ms": ms, "found": found }));
        self.line(Style::Good, "✓", step, "ok", Some(ms), found)
    }

    /// There is nothing to do at a step.
    pub(super) fn skipped(&mut self, step: &'static str, why: &str) -> Result<(), Failure> {
        self.step_ended();
        self.steps.push(json!({ "step": step, "ok": true, "skipped": true, "found": why }));
        self.line(Style::Faint, "-", step, "skipped", None, why)
    }

    /// Something that works, but not as well as it could.
    pub(super) fn warn(&mut self, warning: &str) -> Result<(), Failure> {
        self.steps.push(json!({ "warning": warning }));
        if self.as_json {
            return Ok(());
        }
        let mark = self.terminal.paint(Style::Warn, "!");
        self.terminal.print(format!("{mark} {}\n", ui::safe(warning)))
    }

    /// A step failed, and the walk ends there.
    pub(super) fn stop(&mut self, trouble: &Trouble) -> Result<Stop, Failure> {
        self.failed(trouble)?;
        Ok(Stop::At(trouble.exit))
    }

    /// A step failed; the walk goes on another way.
    pub(super) fn failed(&mut self, trouble: &Trouble) -> Result<(), Failure> {
        let ms = self.step_ended();
        let mut step = json!({ "step": trouble.step, "ok": false, "ms": ms });
        for (name, text) in trouble.lines() {
            step[name] = json!(text);
        }
        self.steps.push(step);
        self.line(Style::Bad, "✗", trouble.step, "FAILED", Some(ms), "")?;
        if self.as_json {
            return Ok(());
        }
        let width = if self.terminal.is_interactive { ui::size().columns } else { usize::MAX };
        for (name, text) in trouble.lines() {
            let name = self.terminal.paint(Style::Title, format!("{name:<9}")).to_string();
            let room = width.saturating_sub(INDENT.len()).max(20);
            let text = text.lines().flat_map(|line| ui::wrapped(&ui::safe(line), room)).collect::<Vec<_>>();
            self.terminal.print(format!("    {name} {}\n", text.join(&format!("\n{INDENT}"))))?;
        }
        Ok(())
    }

    /// The end of the walk.
    pub(super) fn end(self, walked: Result<(), Stop>) -> Result<Exit, Failure> {
        let exit = match walked {
            Ok(()) => Exit::Fine,
            Err(Stop::At(exit)) => exit,
            Err(Stop::Failed(failure)) => return Err(failure),
        };
        if self.as_json {
            let all = json!({ "target": self.target, "ok": exit == Exit::Fine, "steps": self.steps });
            self.terminal.print_json(format_args!("{all:#}"))?;
        } else if exit == Exit::Fine {
            let fine = self.terminal.paint(Style::Good, "all fine");
            self.terminal.print(format!("{fine}: calls to {} can be sent\n", ui::safe(&self.target)))?;
        }
        Ok(exit)
    }

    /// How long the step took, in milliseconds; the next one begins.
    fn step_ended(&mut self) -> u64 {
        let now = Instant::now();
        let took = now.duration_since(std::mem::replace(&mut self.began, now));
        u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
    }

    fn line(
        &self,
        style: Style,
        mark: &str,
        step: &str,
        word: &str,
        ms: Option<u64>,
        found: &str,
    ) -> Result<(), Failure> {
        if self.as_json {
            return Ok(());
        }
        let (mark, word) =
            (self.terminal.paint(style, mark), self.terminal.paint(style, format!("{word:<7}")));
        let took = ms.map(|ms| format!("{ms} ms")).unwrap_or_default();
        let line = format!("{mark} {step:<10} {word} {took:>8}  {}", ui::safe(found));
        self.terminal.print(format!("{}\n", line.trim_end()))
    }
}

/// Where the texts of a trouble begin.
const INDENT: &str = "              ";
