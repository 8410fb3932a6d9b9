//! Errors and warnings of a resource, collected while it is parsed.

use std::fmt;

use crate::{FieldPath, ValidationErrors};

/// Maximum number of warnings that are kept. Further ones are counted.
const MAX_KEPT: usize = 32;

/// Errors and warnings, each with its field path.
#[derive(Debug, Default)]
pub(crate) struct ParseDiagnostics {
    pub(crate) problems: ValidationErrors,
    warnings: Vec<String>,
    more_warnings: usize,
}

impl ParseDiagnostics {
    /// Records that the field at `path` is invalid.
    pub(crate) fn problem(&mut self, path: &FieldPath<'_>, text: impl Into<String>) {
        self.problems.add(path, text);
    }

    /// Records a warning for the operator about the field at `path`.
    pub(crate) fn warn(&mut self, path: &FieldPath<'_>, text: impl fmt::Display) {
        if self.warnings.len() < MAX_KEPT {
            self.warnings.push(format!("{path}: {text}"));
        } else {
            self.more_warnings = self.more_warnings.saturating_add(1);
        }
    }

    /// Returns the warnings if there is no error.
    pub(crate) fn warnings(mut self) -> Result<Vec<String>, ValidationErrors> {
        if self.more_warnings > 0 {
            self.warnings.push(format!("and {} more warnings", self.more_warnings));
        }
        self.problems.or(self.warnings)
    }
}
