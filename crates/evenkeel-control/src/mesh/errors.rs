//! Errors of a mesh, with their positions in the file and their paths in the mesh.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use crate::text::escaped;

/// All errors of a mesh, in the order of the file. `Display` prints one line per error:
///
/// ```text
/// mesh.yaml:12:9: clusters.orders.endpoints[2].weight: expected 1 to 4294967295, found 0
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct MeshErrors(Vec<MeshError>);

/// One error of a mesh. `Display` prints it as [`MeshErrors`] does, without the fields that are `None`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MeshError {
    /// Path of the file, as given to [`Mesh::load`](crate::Mesh::load).
    pub file: Option<String>,
    /// Line number, from 1.
    pub line: Option<u64>,
    /// Column in characters, from 1.
    pub column: Option<u64>,
    /// Path in the mesh, such as `clusters.orders.policy`; empty for the whole mesh.
    pub path: String,
    /// Error message: the expected value and the one that was found.
    pub text: String,
}

impl MeshErrors {
    pub(crate) fn new(mut errors: Vec<MeshError>) -> MeshErrors {
        errors.sort_by_key(|error| (error.line, error.column));
        MeshErrors(errors)
    }

    /// Creates one error about the whole file.
    pub(crate) fn of_file(text: impl Into<String>) -> MeshErrors {
        MeshErrors(vec![MeshError::new(None, String::new(), text.into())])
    }

    pub(crate) fn in_file(mut self, file: &Path) -> MeshErrors {
        for error in &mut self.0 {
            error.file = Some(file.display().to_string());
        }
        self
    }

    pub(crate) fn into_iter(self) -> impl Iterator<Item = MeshError> {
        self.0.into_iter()
    }

    /// Iterates over the errors; there is at least one.
    pub fn iter(&self) -> impl Iterator<Item = &MeshError> {
        self.0.iter()
    }
}

impl MeshError {
    pub(crate) fn new(position: Option<SourcePosition>, path: String, text: String) -> MeshError {
        let (line, column) = position.map(|position| (position.line, position.column)).unzip();
        MeshError { file: None, line, column, path, text }
    }
}

impl fmt::Display for MeshErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for MeshErrors {}

impl fmt::Display for MeshError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let position = self.line.zip(self.column);
        // Messages of the parser may quote the file, so they are escaped.
        let file = self.file.as_deref().map(escaped);
        match (file, position) {
            (Some(file), Some((line, column))) => write!(f, "{file}:{line}:{column}: ")?,
            (Some(file), None) => write!(f, "{file}: ")?,
            (None, Some((line, column))) => write!(f, "{line}:{column}: ")?,
            (None, None) => {}
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", escaped(&self.path))?;
        }
        f.write_str(&escaped(&self.text))
    }
}

/// Position in a file: line and column, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourcePosition {
    pub(crate) line: u64,
    pub(crate) column: u64,
}

/// Path in a mesh, kept on the stack and formatted only for an error.
#[derive(Clone, Copy)]
pub(crate) enum MeshPath<'a> {
    Root,
    Key(&'a MeshPath<'a>, &'a str),
    Index(&'a MeshPath<'a>, usize),
}

impl MeshPath<'_> {
    pub(crate) fn key<'a>(&'a self, key: &'a str) -> MeshPath<'a> {
        MeshPath::Key(self, key)
    }

    pub(crate) fn index(&self, index: usize) -> MeshPath<'_> {
        MeshPath::Index(self, index)
    }
}

impl fmt::Display for MeshPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MeshPath::Root => Ok(()),
            MeshPath::Index(parent, index) => write!(f, "{parent}[{index}]"),
            MeshPath::Key(parent, key) => {
                let is_plain =
                    !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || "-_/".contains(c));
                match (parent, is_plain) {
                    (MeshPath::Root, true) => f.write_str(key),
                    (_, true) => write!(f, "{parent}.{key}"),
                    (_, false) => write!(f, "{parent}[{}]", quoted(key)),
                }
            }
        }
    }
}

/// Quotes text from outside for a message: without control characters, and cut if it is long.
pub(crate) fn quoted(text: &str) -> String {
    const LONGEST: usize = 80;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}
