//! What a control plane does, told from outside.

mod files;
mod good;
mod protocol;
mod serving;
mod wrong;

use std::future::Future;
use std::time::Duration;

/// Only a failure takes this long.
const LONG: Duration = Duration::from_secs(30);

/// Waits for something that comes.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.unwrap_or_else(|_| panic!("waited in vain: {what}"))
}
