//! Figures of the acts, as tables and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::acts::{ACTS, DemoAct};
use super::fleet::BACKENDS;
use super::load::FinishedCall;
use super::screen::WIDE;
use crate::table::{TableCell, keep_columns, table};
use crate::ui::{self, TerminalOutput, TextStyle};

/// Figures of the whole demo, for `--json` and for the final tables.
#[derive(Debug, Serialize)]
pub(super) struct DemoReport {
    pub(super) calls_per_second: u32,
    pub(super) seconds: f64,
    pub(super) acts: Vec<ActReport>,
}

/// Figures of one act. They cover the calls that began in it after its warm-up, whenever they finished: a call
/// that an overloaded backend holds back counts like the others.
#[derive(Debug, Serialize)]
pub(super) struct ActReport {
    act: usize,
    title: &'static str,
    #[serde(flatten)]
    all: CallSummary,
    backends: Vec<BackendReport>,
}

#[derive(Debug, Serialize)]
struct BackendReport {
    name: &'static str,
    calls_per_second_at_most: u32,
    share: f64,
    /// Average of the utilization that the backend reported; `None` without a report.
    utilization: Option<f64>,
    #[serde(flatten)]
    figures: CallSummary,
}

#[derive(Debug, Serialize)]
struct CallSummary {
    calls: usize,
    failed: usize,
    /// Number of failed calls by status code.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    reasons: BTreeMap<String, usize>,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
}

impl ActReport {
    /// Summarizes the calls that began in `window`, with the utilization samples of each backend.
    pub(super) fn new(
        number: usize,
        act: &DemoAct,
        window: &Range<Instant>,
        finished: &[FinishedCall],
        utilization_samples: &[Vec<f64>],
    ) -> ActReport {
        let calls: Vec<_> = finished.iter().filter(|call| window.contains(&call.began)).collect();
        let answered = calls.iter().filter(|call| call.backend.is_some()).count();
        let backends = BACKENDS.iter().zip(utilization_samples).enumerate().map(
            |(i, ((name, capacity), utilization_samples))| {
                let figures = CallSummary::of(calls.iter().copied().filter(|call| call.backend == Some(i)));
                BackendReport {
                    name,
                    calls_per_second_at_most: *capacity,
                    share: figures.calls as f64 / answered.max(1) as f64,
                    utilization: (!utilization_samples.is_empty())
                        .then(|| utilization_samples.iter().sum::<f64>() / utilization_samples.len() as f64),
                    figures,
                }
            },
        );
        ActReport {
            act: number + 1,
            title: act.title,
            backends: backends.collect(),
            all: CallSummary::of(calls.iter().copied()),
        }
    }
}

impl CallSummary {
    fn of<'c>(calls: impl Iterator<Item = &'c FinishedCall>) -> CallSummary {
        let (mut took, mut reasons) = (Vec::new(), BTreeMap::new());
        for call in calls {
            took.push(call.took);
            if let Some(code) = call.failed {
                *reasons.entry(format!("{code:?}")).or_default() += 1;
            }
        }
        took.sort_unstable();
        let at = |share: f64| {
            let rank = (took.len() as f64 * share).ceil() as usize;
            took.get(rank.saturating_sub(1)).map(|took: &Duration| took.as_secs_f64() * 1e3)
        };
        CallSummary {
            calls: took.len(),
            failed: reasons.values().sum(),
            reasons,
            p50_ms: at(0.5),
            p99_ms: at(0.99),
        }
    }
}

impl DemoReport {
    /// Renders one table per act, and one sentence, for a terminal with this number of columns.
    pub(super) fn text(&self, terminal: &TerminalOutput, columns: usize) -> String {
        let mut out = String::new();
        for (report, act) in self.acts.iter().zip(&ACTS) {
            let title = format!("{}  {}", report.act, report.title);
            // Writing to a `String` cannot fail.
            let _ = writeln!(out, "\n{}:", terminal.paint(TextStyle::Title, title));
            for line in ui::wrapped(act.caption, columns - 3) {
                let _ = writeln!(out, "   {line}");
            }
            let mut rows = report.rows();
            if columns < WIDE {
                keep_columns(&mut rows, &[0, 2, 3, 6, 7]);
            }
            out.push_str(&table(&rows, terminal));
            let reasons = report.all.reasons.iter().map(|(code, count)| format!("{count} {code}"));
            let reasons: Vec<_> = reasons.collect();
            if !reasons.is_empty() {
                let _ = writeln!(out, "   failed: {}", reasons.join(", "));
            }
        }
        let _ = writeln!(out, "\n{}", ui::wrapped(&self.verdict(), columns).join("\n"));
        out
    }

    /// Returns one sentence that compares the failures of the acts.
    fn verdict(&self) -> String {
        let failed = |acts: std::ops::Range<usize>| -> (usize, usize) {
            let acts = self.acts.iter().skip(acts.start).take(acts.len());
            acts.fold((0, 0), |(failed, calls), act| (failed + act.all.failed, calls + act.all.calls))
        };
        let (in_turn, of) = failed(0..1);
        let (weighted, of_weighted) = failed(1..ACTS.len());
        format!(
            "round robin failed {in_turn} of {of} calls; after that {weighted} of {of_weighted} failed, \
             with two backends killed on the way"
        )
    }
}

impl ActReport {
    fn rows(&self) -> Vec<Vec<TableCell>> {
        let mut rows = vec![
            ["   backend", "capacity", "calls", "share", "busy", "p50", "p99", "failed"]
                .into_iter()
                .enumerate()
                .map(|(i, head)| {
                    if i == 0 { TableCell::new(head) } else { TableCell::right(head) }.style(TextStyle::Faint)
                })
                .collect(),
        ];
        for backend in &self.backends {
            let busy = backend.utilization.map_or_else(|| "-".to_owned(), |share| percent(share, 0));
            let is_full = backend.utilization.is_some_and(|share| share >= 0.95);
            let busy = TableCell::right(if is_full { format!("{busy}!") } else { format!("{busy} ") });
            let mut row = vec![
                TableCell::new(format!("   {}", backend.name)),
                TableCell::right(format!("{}/s", backend.calls_per_second_at_most)),
                TableCell::right(backend.figures.calls.to_string()),
                TableCell::right(percent(backend.share, 1)),
                if is_full { busy.style(TextStyle::Bad) } else { busy },
            ];
            row.extend(backend.figures.cells());
            rows.push(row);
        }
        let mut all = vec![
            TableCell::new("   all"),
            TableCell::default(),
            TableCell::right(self.all.calls.to_string()),
            TableCell::default(),
            TableCell::default(),
        ];
        all.extend(self.all.cells());
        rows.push(all);
        rows
    }
}

impl CallSummary {
    fn cells(&self) -> [TableCell; 3] {
        let ms = |value: Option<f64>| {
            TableCell::right(value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0} ms")))
        };
        let failed = match self.failed {
            0 => TableCell::right("0"),
            failed => {
                TableCell::right(format!("{failed} ({})", percent(failed as f64 / self.calls as f64, 1)))
                    .style(TextStyle::Bad)
            }
        };
        [ms(self.p50_ms), ms(self.p99_ms), failed]
    }
}

pub(super) fn percent(share: f64, digits: usize) -> String {
    format!("{:.digits$} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::ui::ColorMode;

    #[test]
    fn figures_are_of_the_calls_that_count() {
        let start = Instant::now();
        let call = |at: u64, took: u64, backend: Option<usize>, failed: Option<Code>| FinishedCall {
            began: start + Duration::from_secs(at),
            took: Duration::from_millis(took),
            backend,
            failed,
        };
        let ended = [
            call(0, 999, Some(0), Some(Code::Internal)),
            call(2, 10, Some(0), None),
            call(2, 20, Some(0), None),
            call(3, 500, Some(4), Some(Code::ResourceExhausted)),
            call(3, 1, None, Some(Code::Unavailable)),
            call(5, 1, Some(0), None),
        ];
        let utilization_samples = [vec![0.5, 1.0], vec![], vec![], vec![], vec![0.25]];
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let report = ActReport::new(1, &ACTS[1], &(at(1)..at(4)), &ended, &utilization_samples);
        assert_eq!((report.act, report.all.calls, report.all.failed), (2, 4, 2));
        let reasons: Vec<_> = report.all.reasons.keys().collect();
        assert_eq!(reasons, ["ResourceExhausted", "Unavailable"]);
        let small = &report.backends[0];
        assert_eq!((small.figures.calls, small.figures.failed, small.utilization), (2, 0, Some(0.75)));
        assert_eq!((small.figures.p50_ms, small.figures.p99_ms), (Some(10.0), Some(20.0)));
        assert!((small.share - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!((report.backends[1].utilization, report.backends[1].figures.p99_ms), (None, None));
        let report = DemoReport { calls_per_second: 600, seconds: 1.0, acts: vec![report] };
        for columns in [80, 50] {
            let text = report.text(&TerminalOutput::new(ColorMode::Never), columns);
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
            assert!(text.contains("2 (50.0 %)") && text.contains("failed 2 of 4 calls"), "{text}");
        }
    }
}
