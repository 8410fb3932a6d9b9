//! Comparison with the committed counts.
//!
//! Allocations are equal on every machine and always checked. Instructions depend on the compiler, its target
//! and the C library, which the file names. With others, or without valgrind, they are shown and not checked.
//! The file belongs to the build profile `counts`. A higher count is an error with
//! its name. A lower count asks to update the file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Map, Value, json};

use super::clients::CountHarness;
use super::{cell, picks, updates};
use crate::Error;
use crate::table::Table;

/// Endpoints of a call; sizes of picks and updates; counted calls. The numbers are small, for a fast gate.
const ENDPOINTS: u16 = 10;
const SIZES: [usize; 2] = [10, 1_000];
const CALLS: u32 = 2_000;

/// Tolerance above the file: a factor for instructions, a difference for allocations.
const INSTRUCTIONS: f64 = 1.05;
const ALLOCATIONS: f64 = 0.1;

const HOW_TO_ACCEPT: &str = "if intended: just counts --accept (see CONTRIBUTING.md)";

/// Figures by the name of the count.
type Figures = BTreeMap<String, f64>;

/// Counts, and the build that they depend on.
#[derive(Clone, Debug, Default, PartialEq)]
struct Counts {
    built: BTreeMap<String, String>,
    allocations: Figures,
    /// Empty if instructions are not counted.
    instructions: Figures,
}

pub(super) fn check(file: &Path) -> Result<Table, Error> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let held = Counts::read(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let found = count()?;
    let reason = held.why_not_comparable(&found);
    if let Some(reason) = &reason {
        eprintln!("\nINSTRUCTIONS ARE NOT JUDGED, only allocations: {reason}\n");
    }
    let mut verdict = Verdict::default();
    verdict.judge("allocations", &held.allocations, &found.allocations, |held| held + ALLOCATIONS);
    if reason.is_none() {
        verdict.judge("instructions", &held.instructions, &found.instructions, |held| held * INSTRUCTIONS);
    }
    if !verdict.less.is_empty() {
        eprintln!("the counts are below {}; {HOW_TO_ACCEPT}{}", file.display(), verdict.less);
    }
    if verdict.more.is_empty() {
        return Ok(table(&held, &found));
    }
    Err(format!("the counts are above {}; {HOW_TO_ACCEPT}{}", file.display(), verdict.more).into())
}

pub(super) fn accept(file: &Path) -> Result<(), Error> {
    let found = count()?;
    if found.instructions.is_empty() {
        return Err("counting instructions requires valgrind: install it".into());
    }
    std::fs::write(file, found.write()?).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(())
}

fn count() -> Result<Counts, Error> {
    let mut counts = Counts { built: built(), ..Counts::default() };
    let call = CountHarness::new()?.per_call("evenkeel", ENDPOINTS.into(), CALLS)?;
    counts.add(format!("call, {ENDPOINTS} endpoints"), call.instructions, call.allocations);
    for picks::Counted { kind, instructions, allocations } in picks::counted(&SIZES)? {
        counts.add(format!("pick, {kind}"), instructions, allocations);
    }
    for updates::Counted { endpoints, instructions, allocations } in updates::counted(&SIZES)? {
        counts.add(format!("update, one of {endpoints} endpoints"), instructions, allocations);
    }
    Ok(counts)
}

/// Returns the properties that instructions depend on. `unknown` equals only itself.
fn built() -> BTreeMap<String, String> {
    let rustc = said("rustc", &["-vV"]);
    let line = |name: &str| rustc.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("unknown");
    let parts = [
        ("compiler", line("release: ").to_owned()),
        ("target", line("host: ").to_owned()),
        ("libc", said("getconf", &["GNU_LIBC_VERSION"]).trim().to_owned()),
        ("profile", profile()),
    ];
    parts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the build profile of this program, by the name of its folder in the target folder.
fn profile() -> String {
    let exe = std::env::current_exe().unwrap_or_default();
    let folder = exe.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    folder.unwrap_or_else(|| "unknown".to_owned())
}

fn said(program: &str, arguments: &[&str]) -> String {
    let out = Command::new(program).args(arguments).output().ok().filter(|out| out.status.success());
    out.map_or_else(|| "unknown".to_owned(), |out| String::from_utf8_lossy(&out.stdout).into_owned())
}

impl Counts {
    fn add(&mut self, name: String, instructions: Option<f64>, allocations: f64) {
        if let Some(instructions) = instructions {
            // Rounded as in the file.
            self.instructions.insert(name.clone(), (instructions * 10.0).round() / 10.0);
        }
        self.allocations.insert(name, (allocations * 100.0).round() / 100.0);
    }

    fn read(text: &str) -> Result<Counts, Error> {
        let file: Map<String, Value> = serde_json::from_str(text)?;
        let part = |name: &str| {
            let part = file.get(name).and_then(Value::as_object);
            part.ok_or_else(|| format!("expected an object {name:?}"))
        };
        let figures = |name: &str| {
            let number = |(key, value): (&String, &Value)| {
                let number = value
                    .as_f64()
                    .ok_or_else(|| format!("{name}, {key:?}: expected a number, found {value}"));
                number.map(|number| (key.clone(), number))
            };
            part(name)?.iter().map(number).collect::<Result<Figures, String>>()
        };
        let text = |(key, value): (&String, &Value)| {
            let text = value.as_str().ok_or_else(|| format!("built, {key:?}: expected text, found {value}"));
            text.map(|text| (key.clone(), text.to_owned()))
        };
        let built = part("built")?.iter().map(text).collect::<Result<_, String>>()?;
        Ok(Counts { built, allocations: figures("allocations")?, instructions: figures("instructions")? })
    }

    fn write(&self) -> Result<String, Error> {
        let Counts { built, allocations, instructions } = self;
        let file = json!({"built": built, "allocations": allocations, "instructions": instructions});
        Ok(format!("{}\n", serde_json::to_string_pretty(&file)?))
    }

    fn why_not_comparable(&self, found: &Counts) -> Option<String> {
        if found.instructions.is_empty() {
            return Some("valgrind is not installed".to_owned());
        }
        let names = self.built.keys().chain(found.built.keys());
        let of = |counts: &Counts, name: &String| counts.built.get(name).cloned().unwrap_or_default();
        names
            .map(|name| (name, of(self, name), of(found, name)))
            .find(|(_, held, found)| held != found)
            .map(|(name, held, found)| format!("the file's {name} is {held:?}, this build's is {found:?}"))
    }
}

/// Lines of the verdict, each starting with a line feed.
#[derive(Default)]
struct Verdict {
    more: String,
    less: String,
}

impl Verdict {
    /// Compares counts with the file. They may reach `most` of the file's value, and are reported if as far
    /// below. The names must be equal.
    fn judge(&mut self, what: &str, held: &Figures, found: &Figures, most: impl Fn(f64) -> f64) {
        for (name, &now) in found {
            let lines = match held.get(name) {
                Some(&before) if now > most(before) => &mut self.more,
                Some(&before) if before > most(now) => &mut self.less,
                Some(_) => continue,
                None => {
                    let _ = write!(self.more, "\n  {what}, {name}: not in the file, {now} now");
                    continue;
                }
            };
            let before = held.get(name).copied().unwrap_or_default();
            let change = if before > 0.0 {
                format!(" ({:+.1} %)", 100.0 * (now / before - 1.0))
            } else {
                String::new()
            };
            // Writing to a `String` cannot fail.
            let _ = write!(lines, "\n  {what}, {name}: {before} in the file, {now} now{change}");
        }
        for (name, before) in held.iter().filter(|(name, _)| !found.contains_key(*name)) {
            let _ = write!(self.more, "\n  {what}, {name}: {before} in the file, not counted now");
        }
    }
}

fn table(held: &Counts, found: &Counts) -> Table {
    let columns = ["count", "instructions", "in the file", "allocations", "in the file"];
    let mut table = Table::new("Counts and expected counts", &columns);
    for (name, &allocations) in &found.allocations {
        let [now, before] = [found, held].map(|counts| counts.instructions.get(name).copied());
        table.row(vec![
            name.clone(),
            cell(now, 1),
            cell(before, 1),
            cell(Some(allocations), 2),
            cell(held.allocations.get(name).copied(), 2),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(figures: &[(&str, f64)]) -> Figures {
        figures.iter().map(|&(name, figure)| (name.to_owned(), figure)).collect()
    }

    fn judged(held: f64, now: f64, most: fn(f64) -> f64) -> [bool; 2] {
        let mut verdict = Verdict::default();
        verdict.judge("x", &figures(&[("pick", held)]), &figures(&[("pick", now)]), most);
        [verdict.more, verdict.less].map(|lines| !lines.is_empty())
    }

    #[test]
    fn more_is_an_error_and_less_is_worth_a_word() {
        let instructions = |held: f64| held * INSTRUCTIONS;
        assert_eq!(judged(100.0, 104.0, instructions), [false, false]);
        assert_eq!(judged(100.0, 106.0, instructions), [true, false]);
        assert_eq!(judged(100.0, 96.0, instructions), [false, false]);
        assert_eq!(judged(100.0, 94.0, instructions), [false, true]);
        let allocations = |held: f64| held + ALLOCATIONS;
        assert_eq!(judged(0.0, 0.05, allocations), [false, false]);
        assert_eq!(judged(0.0, 1.0, allocations), [true, false]);
        assert_eq!(judged(20.0, 19.0, allocations), [false, true]);
    }

    #[test]
    fn an_error_names_the_count_and_both_figures() {
        let mut verdict = Verdict::default();
        let (held, found) = (figures(&[("a", 100.0), ("gone", 7.0)]), figures(&[("a", 120.0), ("new", 3.0)]));
        verdict.judge("instructions", &held, &found, |held| held * INSTRUCTIONS);
        let lines: Vec<_> = verdict.more.lines().skip(1).collect();
        let expected = [
            "  instructions, a: 100 in the file, 120 now (+20.0 %)",
            "  instructions, new: not in the file, 3 now",
            "  instructions, gone: 7 in the file, not counted now",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let mut counts = Counts { built: built(), ..Counts::default() };
        counts.add("call".to_owned(), Some(12_345.678), 20.004);
        let read = Counts::read(&counts.write().expect("written")).expect("read");
        assert_eq!(read, counts);
        assert_eq!(read.instructions, figures(&[("call", 12_345.7)]));
        assert_eq!(read.allocations, figures(&[("call", 20.0)]));
        assert_eq!(read.why_not_comparable(&counts), None);
        for broken in
            ["", "[]", r#"{"built": {}}"#, r#"{"built": {}, "allocations": {"a": "b"}, "instructions": {}}"#]
        {
            assert!(Counts::read(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn another_compiler_or_no_valgrind_is_no_judge_of_instructions() {
        let mut held = Counts { built: built(), ..Counts::default() };
        assert!(held.why_not_comparable(&held).is_some_and(|reason| reason.contains("valgrind")));
        held.add("call".to_owned(), Some(1.0), 1.0);
        let mut found = held.clone();
        found.built.insert("compiler".to_owned(), "1.2.3".to_owned());
        let reason = held.why_not_comparable(&found).unwrap_or_default();
        assert!(reason.contains("compiler") && reason.contains("1.2.3"), "{reason}");
    }
}
