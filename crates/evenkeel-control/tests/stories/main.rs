//! Control plane, tested through its public API and over the wire.

mod files;
mod good;
mod protocol;
mod serving;
mod wrong;

use std::future::Future;
use std::time::Duration;

/// Maximum time of every wait; only a failure reaches it.
const LONG: Duration = Duration::from_secs(30);

/// Waits for a future and panics after the maximum time.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.unwrap_or_else(|_| panic!("timed out waiting for {what}"))
}
