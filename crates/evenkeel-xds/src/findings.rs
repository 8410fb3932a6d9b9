//! What is found while something is read: problems that spoil it, and warnings that do not.

use std::fmt;

use crate::{Path, Problems};

/// How many warnings are told apart; more are only counted.
const KEPT: usize = 32;

/// Problems and warnings, each with the path to its field.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) problems: Problems,
    warnings: Vec<String>,
    more_warnings: usize,
}

impl Findings {
    /// Something is wrong with the field at `path`.
    pub(crate) fn problem(&mut self, path: &Path<'_>, text: impl Into<String>) {
        self.problems.add(path, text);
    }

    /// The operator should know something about the field at `path`.
    pub(crate) fn warn(&mut self, path: &Path<'_>, text: impl fmt::Display) {
        if self.warnings.len() < KEPT {
            self.warnings.push(format!("{path}: {text}"));
        } else {
            self.more_warnings = self.more_warnings.saturating_add(1);
        }
    }

    /// The warnings if there is no problem.
    pub(crate) fn warnings(mut self) -> Result<Vec<String>, Problems> {
        if self.more_warnings > 0 {
            self.warnings.push(format!("and {} more warnings", self.more_warnings));
        }
        self.problems.or(self.warnings)
    }
}
