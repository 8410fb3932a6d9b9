//! Instruction counts of a process of this program, by callgrind.

use std::path::PathBuf;
use std::process::Command;

use super::profile::{Places, by_place, counted, total};
use crate::Error;

/// Folder for callgrind's files of one run at a time.
pub(crate) struct Callgrind {
    directory: tempfile::TempDir,
}

impl Callgrind {
    pub(crate) fn new() -> Result<Callgrind, Error> {
        Ok(Callgrind { directory: tempfile::tempdir()? })
    }

    /// Returns a command that runs this program under callgrind.
    pub(crate) fn command(&self) -> Result<Command, Error> {
        counted(&self.counts(), &[])
    }

    fn counts(&self) -> PathBuf {
        self.directory.path().join("callgrind.out")
    }

    /// Returns the instructions of the last run, of all threads.
    pub(crate) fn instructions(&self) -> Result<f64, Error> {
        total(&std::fs::read_to_string(self.counts())?)
    }

    /// Returns the instructions of the last run by file and function.
    pub(crate) fn by_place(&self) -> Result<Places, Error> {
        by_place(&self.counts())
    }
}

/// Cost of a number of calls. `instructions` is 0 if they are not counted.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) instructions: f64,
    pub(crate) allocations: f64,
    pub(crate) held: f64,
}

impl Cost {
    /// Returns the cost per call from the difference of two runs. One-time costs cancel out.
    pub(crate) fn of_each(few: Cost, many: Cost, calls: usize) -> Cost {
        let calls = calls as f64;
        Cost {
            instructions: (many.instructions - few.instructions) / calls,
            allocations: (many.allocations - few.allocations) / calls,
            held: (many.held - few.held) / calls,
        }
    }
}
