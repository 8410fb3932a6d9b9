//! Streams, subscriptions, cache, failures and fallback.

use evenkeel_core::Status;

use crate::resource::Resource;

/// How a resource stands at one time.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The resource, or why it cannot be had; `None` while nothing is known yet.
    pub value: Option<Result<Resource, Status>>,
    /// What is wrong although there is a resource to use (A88).
    pub ambient: Option<Status>,
}
