//! Last valid value of a file, kept when a reload fails.

use std::time::Duration;

use crate::credentials::CredentialsError;

/// Delay before a failed reload is repeated. A pair of files that was half written is usually complete by then.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Last valid value of a file that is reloaded.
pub(super) struct ReloadedValue<T> {
    pub(super) value: T,
    /// Error of the last reload, as it was logged; `None` if it succeeded.
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
        // Logged once per cause: handshakes repeat a failed reload every second.
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
