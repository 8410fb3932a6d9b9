//! Results of the steps, printed as they complete, or all at once as JSON.

use std::time::Instant;

use serde_json::{Value, json};

use super::EarlyExit;
use crate::ui::{self, CliError, CliExit, TerminalOutput, TextStyle};

/// Failure of a step: the expectation, the finding, the likely cause and the next action.
#[derive(Clone, Debug)]
pub(super) struct Diagnosis {
    step: &'static str,
    exit: CliExit,
    expected: String,
    pub(super) found: String,
    likely: String,
    next: String,
}

impl Diagnosis {
    pub(super) fn new(step: &'static str, exit: CliExit, found: impl Into<String>) -> Diagnosis {
        let found = found.into();
        Diagnosis { step, exit, expected: String::new(), found, likely: String::new(), next: String::new() }
    }

    pub(super) fn expected(self, expected: impl Into<String>) -> Diagnosis {
        Diagnosis { expected: expected.into(), ..self }
    }

    pub(super) fn likely(self, likely: impl Into<String>) -> Diagnosis {
        Diagnosis { likely: likely.into(), ..self }
    }

    pub(super) fn next(self, next: impl Into<String>) -> Diagnosis {
        Diagnosis { next: next.into(), ..self }
    }

    fn lines(&self) -> [(&'static str, &str); 4] {
        [("expected", &self.expected), ("found", &self.found), ("likely", &self.likely), ("next", &self.next)]
    }
}

/// Report of the steps so far.
pub(super) struct DoctorReport<'a> {
    target: String,
    as_json: bool,
    pub(super) terminal: &'a TerminalOutput,
    steps: Vec<Value>,
    /// Start of the current step.
    began: Instant,
}

impl<'a> DoctorReport<'a> {
    pub(super) fn new(target: &str, as_json: bool, terminal: &'a TerminalOutput) -> DoctorReport<'a> {
        DoctorReport {
            target: target.to_owned(),
            as_json,
            terminal,
            steps: Vec::new(),
            began: Instant::now(),
        }
    }

    /// Records a passed step.
    pub(super) fn passed(&mut self, step: &'static str, found: &str) -> Result<(), CliError> {
        let ms = self.step_ended();
        self.steps.push(json!({ "step": step, "ok": true, "ms": ms, "found": found }));
        self.line(TextStyle::Good, "✓", step, "ok", Some(ms), found)
    }

    /// Records a step that does not apply.
    pub(super) fn skipped(&mut self, step: &'static str, why: &str) -> Result<(), CliError> {
        self.step_ended();
        self.steps.push(json!({ "step": step, "ok": true, "skipped": true, "found": why }));
        self.line(TextStyle::Faint, "-", step, "skipped", None, why)
    }

    /// Records a warning: a condition that fails no step.
    pub(super) fn warn(&mut self, warning: &str) -> Result<(), CliError> {
        self.steps.push(json!({ "warning": warning }));
        if self.as_json {
            return Ok(());
        }
        let mark = self.terminal.paint(TextStyle::Warn, "!");
        self.terminal.print(format!("{mark} {}\n", ui::safe(warning)))
    }

    /// Records a failed step that ends the checks.
    pub(super) fn stop(&mut self, diagnosis: &Diagnosis) -> Result<EarlyExit, CliError> {
        self.failed(diagnosis)?;
        Ok(EarlyExit::At(diagnosis.exit))
    }

    /// Records a failed step; the checks continue with another peer.
    pub(super) fn failed(&mut self, diagnosis: &Diagnosis) -> Result<(), CliError> {
        let ms = self.step_ended();
        let mut step = json!({ "step": diagnosis.step, "ok": false, "ms": ms });
        for (name, text) in diagnosis.lines() {
            step[name] = json!(text);
        }
        self.steps.push(step);
        self.line(TextStyle::Bad, "✗", diagnosis.step, "FAILED", Some(ms), "")?;
        if self.as_json {
            return Ok(());
        }
        let width = if self.terminal.is_interactive { ui::size().columns } else { usize::MAX };
        for (name, text) in diagnosis.lines() {
            let name = self.terminal.paint(TextStyle::Title, format!("{name:<9}")).to_string();
            let room = width.saturating_sub(INDENT.len()).max(20);
            let text = text.lines().flat_map(|line| ui::wrapped(&ui::safe(line), room)).collect::<Vec<_>>();
            self.terminal.print(format!("    {name} {}\n", text.join(&format!("\n{INDENT}"))))?;
        }
        Ok(())
    }

    /// Ends the report. Prints the JSON if requested.
    pub(super) fn end(self, outcome: Result<(), EarlyExit>) -> Result<CliExit, CliError> {
        let exit = match outcome {
            Ok(()) => CliExit::Success,
            Err(EarlyExit::At(exit)) => exit,
            Err(EarlyExit::Failed(failure)) => return Err(failure),
        };
        if self.as_json {
            let all = json!({ "target": self.target, "ok": exit == CliExit::Success, "steps": self.steps });
            self.terminal.print_json(format_args!("{all:#}"))?;
        } else if exit == CliExit::Success {
            let fine = self.terminal.paint(TextStyle::Good, "all fine");
            self.terminal.print(format!("{fine}: calls to {} can be sent\n", ui::safe(&self.target)))?;
        }
        Ok(exit)
    }

    /// Returns the duration of the step in milliseconds, and starts the next one.
    fn step_ended(&mut self) -> u64 {
        let now = Instant::now();
        let took = now.duration_since(std::mem::replace(&mut self.began, now));
        u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
    }

    fn line(
        &self,
        style: TextStyle,
        mark: &str,
        step: &str,
        word: &str,
        ms: Option<u64>,
        found: &str,
    ) -> Result<(), CliError> {
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

/// Indentation of a diagnosis.
const INDENT: &str = "              ";
