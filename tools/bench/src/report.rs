//! `evenkeel bench report`: runs every suite and writes a document of the results.
//!
//! The prose is in `tools/bench/docs`. All figures, the machine and the versions are those of the run.

use std::fmt::Write as _;
use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::Command;
use std::thread::available_parallelism;

use clap::ValueEnum as _;

use crate::table::Table;
use crate::thresholds::Measured;
use crate::{Error, calls, config, counts, memory, picks, thresholds};

const INTRODUCTION: &str = include_str!("../docs/introduction.md");
const STEPS: &str = include_str!("../docs/steps.md");
/// Lock file of this program.
const LOCK: &str = include_str!("../../../Cargo.lock");

/// Compared clients that are libraries of this program.
const LIBRARIES: [&str; 5] = ["h2", "hyper", "prost", "tokio", "tonic"];

/// Run every suite, and write the results as a document.
#[derive(clap::Args)]
// Arguments of another suite are flattened into these, and a group has the name of its type.
#[group(skip)]
pub(crate) struct Args {
    /// Write the document to this file instead of printing it.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Names of the suites to run. The default is all of them.
    #[arg(long, value_delimiter = ',', value_name = "SUITES")]
    suites: Vec<Suite>,
    #[command(flatten)]
    calls: calls::Args,
}

/// Suites in the order of the document.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Suite {
    Calls,
    Counts,
    Picks,
    Memory,
    Config,
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let (mut sections, mut reached, mut peers) = (Vec::new(), Vec::new(), Vec::new());
    for &suite in Suite::value_variants() {
        if !args.suites.is_empty() && !args.suites.contains(&suite) {
            continue;
        }
        let (heading, measured) = match suite {
            Suite::Calls => ("Calls", calls::run(&args.calls)?),
            Suite::Counts => ("Counts", counts::run(&defaults()?)?),
            Suite::Picks => ("Picks", picks::run(&defaults()?)?),
            Suite::Memory => ("Memory", memory::run(&defaults()?)?),
            Suite::Config => ("Config", config::run(&defaults()?)?),
        };
        let Measured { tables, thresholds, versions } = measured;
        sections.push((heading, tables));
        reached.extend(thresholds);
        peers.extend(versions);
    }
    let first = [("The machine", vec![machine(&peers)]), ("Goals", vec![thresholds::table(&reached)])];
    sections.splice(0..0, first);
    let document = document(&sections);
    match &args.write {
        None => println!("{document}"),
        Some(file) => {
            fs::write(file, document).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        }
    }
    Ok(())
}

/// Returns a suite's default arguments.
fn defaults<T: clap::Args>() -> Result<T, Error> {
    let matches = T::augment_args(clap::Command::new("defaults")).try_get_matches_from(["defaults"])?;
    Ok(T::from_arg_matches(&matches)?)
}

fn document(sections: &[(&str, Vec<Table>)]) -> String {
    let mut text = format!("{}\n", INTRODUCTION.trim_end());
    for (heading, tables) in sections {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "\n## {heading}\n");
        for table in tables {
            let _ = write!(text, "\n{}", table.markdown());
        }
    }
    let _ = write!(text, "\n{}\n", STEPS.trim_end());
    text
}

/// Returns the machine and the versions of the run.
fn machine(peers: &[(&'static str, String)]) -> Table {
    let mut table = Table::new("Environment", &["", ""]);
    let mut row = |name: &str, value: String| table.row(vec![name.to_owned(), value]);
    let processors =
        available_parallelism().map_or_else(|_| unknown(), |cores: NonZeroUsize| cores.to_string());
    row("processors", processors);
    let cpu = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| model_name(&text));
    row("model", cpu.unwrap_or_else(unknown));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
    row("kernel", kernel.map_or_else(unknown, |kernel| format!("Linux {}", kernel.trim())));
    let rustc = Command::new("rustc").arg("--version").output().ok();
    let rustc = rustc.and_then(|output| String::from_utf8(output.stdout).ok());
    row("compiler", rustc.map_or_else(unknown, |version| version.trim().to_owned()));
    row("evenkeel", env!("CARGO_PKG_VERSION").to_owned());
    let libraries: Vec<String> = LIBRARIES.iter().filter_map(|name| locked(LOCK, name)).collect();
    row("libraries", libraries.join(", "));
    for (name, versions) in peers {
        row(name, versions.clone());
    }
    table
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn model_name(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Returns a package of a lock file with its version.
fn locked(lock: &str, name: &str) -> Option<String> {
    let mut lines = lock.lines().skip_while(|line| *line != format!("name = \"{name}\""));
    let version = lines.nth(1)?.strip_prefix("version = \"")?.strip_suffix('"')?;
    Some(format!("{name} {version}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_has_a_heading_and_its_tables() {
        let table = |title| Table::new(title, &["a"]);
        let text = document(&[("First", vec![table("one"), table("two")]), ("Second", vec![table("three")])]);
        let headings: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
        let start = headings.iter().position(|line| *line == "## First").expect("the first section");
        assert_eq!(headings[start..start + 5], ["## First", "### one", "### two", "## Second", "### three"]);
        assert!(text.starts_with("# ") && text.contains(STEPS.trim_end()) && text.ends_with('\n'));
        assert!(!text.contains("\n\n\n"), "{text}");
    }

    #[test]
    fn every_suite_runs_without_arguments() {
        assert!(defaults::<calls::Args>().is_ok() && defaults::<counts::Args>().is_ok());
        assert!(defaults::<picks::Args>().is_ok() && defaults::<memory::Args>().is_ok());
        assert!(defaults::<config::Args>().is_ok());
    }

    #[test]
    fn versions_are_those_of_the_lock_file() {
        let lock = "[[package]]\nname = \"h2\"\nversion = \"0.4.1\"\n\n[[package]]\nname = \"hyper\"\nversion = \"1.2.3\"\n";
        assert_eq!(locked(lock, "hyper").as_deref(), Some("hyper 1.2.3"));
        assert_eq!(locked(lock, "tonic"), None);
        assert!(LIBRARIES.iter().all(|name| locked(LOCK, name).is_some()));
    }

    #[test]
    fn a_processor_has_a_name() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t: fpu\n";
        assert_eq!(model_name(text).as_deref(), Some("Some CPU @ 2 GHz"));
        assert_eq!(model_name("nothing"), None);
    }
}
