//! What is found while something is read: problems that spoil it, and warnings that do not.

use std::fmt;

use crate::{FieldPath, ValidationErrors};

/// How many warnings are told apart; more are only counted.
const MAX_KEPT: usize = 32;

/// Problems and warnings, each with the path to its field.
#[derive(Debug, Default)]
pub(crate) struct ParseDiagnostics {
    pub(crate) problems: ValidationErrors,
    warnings: Vec<String>,
    more_warnings: usize,
}

impl ParseDiagnostics {
    /// Something is wrong with the field at `path`.
    pub(crate) fn problem(&mut self, path: &FieldPath<'_>, text: impl Into<String>) {
        self.problems.add(path, text);
    }

    /// The operator should know something about the field at `path`.
    pub(crate) fn warn(&mut self, path: &FieldPath<'_>, text: impl fmt::Display) {
        if self.warnings.len() < MAX_KEPT {
            self.warnings.push(format!("{path}: {text}"));
        } else {
            self.more_warnings = self.more_warnings.saturating_add(1);
        }
    }

    /// The warnings if there is no problem.
    pub(crate) fn warnings(mut self) -> Result<Vec<String>, ValidationErrors> {
        if self.more_warnings > 0 {
            self.warnings.push(format!("and {} more warnings", self.more_warnings));
        }
        self.problems.or(self.warnings)
    }
}
