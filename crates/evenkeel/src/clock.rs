//! The one clock that the core, the xDS client and load reports are told the time by.

use std::sync::OnceLock;

use evenkeel_core::Instant;
use tokio::time;

/// The moment that counts as the origin. One for the process: load is counted by channels and reported by xDS clients, and
/// both must mean the same by a time.
static ORIGIN: OnceLock<time::Instant> = OnceLock::new();

fn origin() -> time::Instant {
    *ORIGIN.get_or_init(time::Instant::now)
}

/// Now.
pub(crate) fn now() -> Instant {
    at(time::Instant::now())
}

/// A moment of tokio's clock on ours.
pub(crate) fn at(moment: time::Instant) -> Instant {
    let since = moment.saturating_duration_since(origin());
    Instant::ORIGIN + since
}

/// A moment of our clock on tokio's, to sleep until. One that is centuries away is held to what tokio can sleep.
pub(crate) fn sleep_until(at: Instant) -> time::Instant {
    const FAR: std::time::Duration = std::time::Duration::from_secs(365 * 24 * 3600);
    origin() + at.since(Instant::ORIGIN).min(time::Instant::now().saturating_duration_since(origin()) + FAR)
}
