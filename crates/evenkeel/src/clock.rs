//! Process-wide clock that supplies `now` to the core, the xDS client and load reporting.
//!
//! These components take time as an argument and never read a clock. The clock follows tokio's, so paused
//! time in tests applies to it.

use std::sync::OnceLock;

use evenkeel_core::Instant;
use tokio::time;

/// tokio time that corresponds to [`Instant::ORIGIN`], fixed on first use.
///
/// It is shared by the whole process: channels count load and xDS clients report it, so both need the same time base.
static ORIGIN: OnceLock<time::Instant> = OnceLock::new();

fn origin() -> time::Instant {
    *ORIGIN.get_or_init(time::Instant::now)
}

/// Returns the current time.
pub(crate) fn now() -> Instant {
    at(time::Instant::now())
}

/// Converts a tokio instant. Instants before the origin become [`Instant::ORIGIN`].
pub(crate) fn at(moment: time::Instant) -> Instant {
    let since = moment.saturating_duration_since(origin());
    Instant::ORIGIN + since
}

/// Converts to a tokio instant for `sleep_until`. The result is at most one year ahead, so that adding to it cannot
/// overflow the system's clock type.
pub(crate) fn sleep_until(at: Instant) -> time::Instant {
    const FAR: std::time::Duration = std::time::Duration::from_secs(365 * 24 * 3600);
    origin() + at.since(Instant::ORIGIN).min(time::Instant::now().saturating_duration_since(origin()) + FAR)
}
