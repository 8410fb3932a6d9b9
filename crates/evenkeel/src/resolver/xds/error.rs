//! Error of the xDS client.

use std::fmt;

use evenkeel_xds::bootstrap::{BootstrapError, TargetError};

/// Error of the xDS client. Its text states whether the bootstrap or the target must change.
#[derive(Debug)]
pub struct XdsError {
    pub(super) kind: XdsErrorKind,
}

#[derive(Debug)]
pub(super) enum XdsErrorKind {
    Bootstrap(BootstrapError),
    Target(TargetError),
    Gone,
}

impl XdsError {
    /// Returns true if no bootstrap is configured, so that a program may continue without xDS.
    pub fn is_unset(&self) -> bool {
        matches!(&self.kind, XdsErrorKind::Bootstrap(error) if error.is_unset())
    }
}

impl fmt::Display for XdsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            XdsErrorKind::Bootstrap(error) => error.fmt(f),
            XdsErrorKind::Target(error) => error.fmt(f),
            XdsErrorKind::Gone => f.write_str("the xDS client thread is not running"),
        }
    }
}

impl std::error::Error for XdsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            XdsErrorKind::Bootstrap(error) => Some(error),
            XdsErrorKind::Target(error) => Some(error),
            XdsErrorKind::Gone => None,
        }
    }
}
