//! Retry policies, as data (A44).

use std::time::Duration;

use evenkeel_core::Code;

/// When and how often a call is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdsRetryPolicy {
    /// The codes that are worth another attempt; at least one.
    pub retry_on: Vec<Code>,
    /// How many attempts there are in all, the first included: 2 to 5.
    pub max_attempts: u32,
    /// The first back-off, 1 ms or more. Each one after it may be twice as long.
    pub base_interval: Duration,
    /// The longest back-off, no shorter than the first.
    pub max_interval: Duration,
}

impl XdsRetryPolicy {
    /// By how much the back-off grows with each attempt.
    pub const MULTIPLIER: u32 = 2;

    /// Whether a call that failed with this code is worth another attempt.
    pub fn retries(&self, code: Code) -> bool {
        self.retry_on.contains(&code)
    }
}
