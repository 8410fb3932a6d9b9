//! Counting the instructions of sections of a process of this program, with callgrind.
//!
//! A process calls [`mark`] where a section ends and the next begins; callgrind writes a file for each. So one run tells what
//! lies between two marks, whatever came before.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::Error;
use crate::common::profile::{Places, by_place};

/// Here a section ends and the next begins. Callgrind knows it by its name.
#[inline(never)]
pub(super) fn mark() {
    // A function that does nothing may be left out, or be one with others.
    std::hint::black_box("a section of counts ends");
}

/// The place for the files of one run at a time.
pub(super) struct Sections {
    directory: tempfile::TempDir,
}

impl Sections {
    pub(super) fn new() -> Result<Sections, Error> {
        Ok(Sections { directory: tempfile::tempdir()? })
    }

    /// This program, its instructions counted. The sections of earlier runs are gone.
    pub(super) fn command(&self) -> Result<Command, Error> {
        for file in fs::read_dir(self.directory.path())? {
            fs::remove_file(file?.path())?;
        }
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["-q", "--tool=callgrind", "--dump-before=*counts*marks*mark*"]);
        valgrind.arg(format!("--callgrind-out-file={}", self.directory.path().join("section").display()));
        valgrind.arg(std::env::current_exe()?);
        Ok(valgrind)
    }

    /// From 0, which is before the first mark.
    fn file(&self, section: usize) -> PathBuf {
        self.directory.path().join(format!("section.{}", section + 1))
    }

    /// The instructions of each section of the last run, of all its threads. What follows the last mark is left out.
    pub(super) fn instructions(&self) -> Result<Vec<f64>, Error> {
        let files = (0..).map(|section| self.file(section)).take_while(|file| file.exists());
        files.map(|file| total(&fs::read_to_string(file)?)).collect()
    }

    /// The instructions of one section by file and function.
    pub(super) fn by_place(&self, section: usize) -> Result<Places, Error> {
        by_place(&self.file(section))
    }
}

fn total(counts: &str) -> Result<f64, Error> {
    let total = counts.lines().find_map(|line| line.strip_prefix("totals: "));
    Ok(total.ok_or("callgrind wrote no totals")?.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_has_a_total() {
        assert_eq!(total("events: Ir\nfn=(1) f\n1 2\n\ntotals: 292509\n").ok(), Some(292_509.0));
        assert!(total("events: Ir\n").is_err());
        assert!(total("totals: many\n").is_err());
    }
}
