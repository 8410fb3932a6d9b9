//! Last valid value of a file that is reloaded.

use std::time::Duration;

use crate::credentials::CredentialsError;

/// When files are read again that could not be used: a pair that was caught half written is whole a moment later.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The last good value of something that is read again and again.
pub(super) struct ReloadedValue<T> {
    pub(super) value: T,
    /// Why the last reading gave nothing, as it was logged.
    pub(super) last_error: Option<String>,
}

impl<T> ReloadedValue<T> {
    pub(super) fn new(value: T) -> ReloadedValue<T> {
        ReloadedValue { value, last_error: None }
    }

    pub(super) fn replace(&mut self, read: Result<T, CredentialsError>) {
        let last_error = match read {
            Ok(value) => {
                self.value = value;
                None
            }
            Err(error) => Some(error.to_string()),
        };
        if let Some(last_error) = &last_error
            && self.last_error.as_ref() != Some(last_error)
        {
            tracing::warn!(
                error = last_error,
                "certificate reload failed, previously loaded certificates stay in use"
            );
        }
        self.last_error = last_error;
    }
}
