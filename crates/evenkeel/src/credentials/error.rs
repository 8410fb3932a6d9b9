//! Error type of credentials.

use std::error::Error;
use std::fmt;

/// Error of credentials that cannot be used. Its text names the file or PEM text and the problem. The operator of the
/// process can fix it.
#[derive(Debug)]
pub struct CredentialsError {
    what: String,
    cause: Option<Box<dyn Error + Send + Sync>>,
}

impl CredentialsError {
    pub(super) fn new(what: impl Into<String>) -> CredentialsError {
        CredentialsError { what: what.into(), cause: None }
    }

    pub(super) fn with_cause(
        what: String,
        cause: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> CredentialsError {
        CredentialsError { what, cause: Some(cause.into()) }
    }
}

impl fmt::Display for CredentialsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Some(cause) => write!(f, "{}: {cause}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl Error for CredentialsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as &(dyn Error + 'static))
    }
}
