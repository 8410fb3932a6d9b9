//! Retry policies of routes (A44).

use std::time::Duration;

use evenkeel_core::Code;

/// Conditions, number and backoff of retries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdsRetryPolicy {
    /// Retryable status codes, at least one.
    pub retry_on: Vec<Code>,
    /// Maximum number of attempts including the first, 2 to 5.
    pub max_attempts: u32,
    /// Maximum first backoff, at least 1 ms. It doubles with each further attempt.
    pub base_interval: Duration,
    /// Maximum backoff, not below the first one.
    pub max_interval: Duration,
}

impl XdsRetryPolicy {
    /// Factor by which the backoff grows with each attempt.
    pub const MULTIPLIER: u32 = 2;

    /// Returns true if this code is retryable.
    pub fn retries(&self, code: Code) -> bool {
        self.retry_on.contains(&code)
    }
}
