//! Validation errors of a resource, each with its field path.

use std::fmt;

/// Path of a field in a message. It borrows its parents and is formatted only for an error, so it needs no
/// allocation.
///
/// ```
/// use evenkeel_xds::FieldPath;
/// let root = FieldPath::root();
/// let hosts = root.field("virtual_hosts");
/// let host = hosts.index(2);
/// assert_eq!(host.field("name").to_string(), "virtual_hosts[2].name");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FieldPath<'a> {
    parent: Option<&'a FieldPath<'a>>,
    segment: PathSegment<'a>,
}

#[derive(Clone, Copy, Debug)]
enum PathSegment<'a> {
    Root,
    Field(&'a str),
    Index(usize),
    Key(&'a str),
}

impl FieldPath<'static> {
    /// Returns the path of the resource itself.
    pub fn root() -> FieldPath<'static> {
        FieldPath { parent: None, segment: PathSegment::Root }
    }
}

impl<'a> FieldPath<'a> {
    /// Returns the path of a field of this message, named as in the `.proto` file.
    #[must_use]
    pub fn field(&'a self, name: &'a str) -> FieldPath<'a> {
        FieldPath { parent: Some(self), segment: PathSegment::Field(name) }
    }

    /// Returns the path of an element of this list.
    #[must_use]
    pub fn index(&'a self, index: usize) -> FieldPath<'a> {
        FieldPath { parent: Some(self), segment: PathSegment::Index(index) }
    }

    /// Returns the path of an entry of this map.
    #[must_use]
    pub fn key(&'a self, key: &'a str) -> FieldPath<'a> {
        FieldPath { parent: Some(self), segment: PathSegment::Key(key) }
    }
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.segment {
            PathSegment::Root => Ok(()),
            PathSegment::Field(name)
                if self.parent.is_some_and(|parent| !matches!(parent.segment, PathSegment::Root)) =>
            {
                write!(f, ".{name}")
            }
            PathSegment::Field(name) => f.write_str(name),
            PathSegment::Index(index) => write!(f, "[{index}]"),
            PathSegment::Key(key) => write!(f, "[{key:?}]"),
        }
    }
}

/// One validation error with its field path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidationError {
    /// Path of the field. Empty for the whole resource.
    pub path: String,
    /// Description of the error.
    pub text: String,
}

impl fmt::Display for ValidationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.text),
            path => write!(f, "{path}: {}", self.text),
        }
    }
}

/// Maximum number of errors that are kept per resource. Further ones are counted.
const MAX_KEPT: usize = 32;

/// Validation errors of one resource, in the order of detection (A40: all are reported together).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValidationErrors {
    kept: Vec<ValidationError>,
    more: usize,
}

impl ValidationErrors {
    /// Creates an empty list of errors.
    pub fn new() -> ValidationErrors {
        ValidationErrors::default()
    }

    /// Creates a list with one error.
    pub fn one(path: &FieldPath<'_>, text: impl Into<String>) -> ValidationErrors {
        let mut problems = ValidationErrors::new();
        problems.add(path, text);
        problems
    }

    /// Adds an error of the field at `path`.
    pub fn add(&mut self, path: &FieldPath<'_>, text: impl Into<String>) {
        if self.kept.len() < MAX_KEPT {
            self.kept.push(ValidationError { path: path.to_string(), text: text.into() });
        } else {
            self.more = self.more.saturating_add(1);
        }
    }

    /// Returns true if there is no error.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Returns the errors that are kept.
    pub fn iter(&self) -> impl Iterator<Item = &ValidationError> {
        self.kept.iter()
    }

    /// Returns `value` if there is no error.
    pub fn or<T>(self, value: T) -> Result<T, ValidationErrors> {
        if self.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl fmt::Display for ValidationErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.kept.iter().enumerate() {
            let between = if i == 0 { "" } else { "; " };
            write!(f, "{between}{problem}")?;
        }
        match self.more {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl std::error::Error for ValidationErrors {}
