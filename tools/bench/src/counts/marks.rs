//! Instruction counts of sections of a process, by callgrind.
//!
//! A process calls [`mark`] at the end of a section. Callgrind writes a file for each, so that one run yields
//! the cost between two marks.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::Error;
use crate::common::process::printed_numbers;
use crate::common::profile::{Places, by_place, counted, is_valgrind_installed, total};

/// Ends a section and starts the next. Callgrind detects it by its name.
#[inline(never)]
pub(super) fn mark() {
    // Without an effect the function could be removed, or merged with others.
    std::hint::black_box("a section of counts ends");
}

/// Folder for the files of one run at a time.
pub(super) struct Sections {
    directory: tempfile::TempDir,
}

impl Sections {
    pub(super) fn new() -> Result<Sections, Error> {
        Ok(Sections { directory: tempfile::tempdir()? })
    }

    /// Returns a command that runs this program under callgrind. Removes the sections of earlier runs.
    fn command(&self) -> Result<Command, Error> {
        for file in fs::read_dir(self.directory.path())? {
            fs::remove_file(file?.path())?;
        }
        counted(&self.directory.path().join("section"), &["--dump-before=*counts*marks*mark*"])
    }

    /// Returns the command that runs this program, counted if valgrind is installed.
    pub(super) fn command_or_plain(sections: Option<&Sections>) -> Result<Command, Error> {
        match sections {
            Some(sections) => sections.command(),
            None => Ok(Command::new(std::env::current_exe()?)),
        }
    }

    /// Returns the file of a section. Section 0 is before the first mark.
    fn file(&self, section: usize) -> PathBuf {
        self.directory.path().join(format!("section.{}", section + 1))
    }

    /// Returns the instructions of each section of the last run, of all threads, without the part after the
    /// last mark.
    pub(super) fn instructions(&self) -> Result<Vec<f64>, Error> {
        let files = (0..).map(|section| self.file(section)).take_while(|file| file.exists());
        files.map(|file| total(&fs::read_to_string(file)?)).collect()
    }

    /// Returns the instructions of one section by file and function.
    pub(super) fn by_place(&self, section: usize) -> Result<Places, Error> {
        let file = self.file(section);
        fs::write(&file, without_open_calls(&fs::read_to_string(&file)?))?;
        by_place(&file)
    }
}

/// Runs a worker of this program with this number of turns for each size. Returns the allocations that it
/// prints, one line per item, and the instructions of its sections; `None` without valgrind.
pub(super) fn count(
    worker: &str,
    turns: u64,
    sizes: &[usize],
) -> Result<(Vec<f64>, Option<Vec<f64>>), Error> {
    let sections = is_valgrind_installed().then(Sections::new).transpose()?;
    let mut command = Sections::command_or_plain(sections.as_ref())?;
    command.args(["counts-worker", worker, &turns.to_string()]);
    let allocations = printed_numbers(command.args(sizes.iter().map(usize::to_string)), worker)?;
    Ok((allocations, sections.map(|sections| sections.instructions()).transpose()?))
}

/// Removes open calls. A section is written while `main` and others wait for their callees. Callgrind records
/// such calls as `calls=0` with their inclusive cost so far, which its tool attributes to the caller.
fn without_open_calls(counts: &str) -> String {
    let mut lines = counts.lines();
    let mut kept = String::with_capacity(counts.len());
    while let Some(line) = lines.next() {
        if line.starts_with("calls=0 ") {
            lines.next();
            continue;
        }
        kept.push_str(line);
        kept.push('\n');
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_have_not_ended_are_no_cost_of_the_caller() {
        let counts = "fn=(1) main\ncfn=(2) run\ncalls=0 0 \n0 1200019\n\nfn=(2) run\n0 7\ncfn=(3) pick\ncalls=40 0 \n0 56\n";
        let kept = "fn=(1) main\ncfn=(2) run\n\nfn=(2) run\n0 7\ncfn=(3) pick\ncalls=40 0 \n0 56\n";
        assert_eq!(without_open_calls(counts), kept);
    }

    #[test]
    fn a_section_has_a_total() {
        assert_eq!(total("events: Ir\nfn=(1) f\n1 2\n\ntotals: 292509\n").ok(), Some(292_509.0));
        assert!(total("events: Ir\n").is_err());
        assert!(total("totals: many\n").is_err());
    }
}
