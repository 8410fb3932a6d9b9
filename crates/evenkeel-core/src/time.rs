//! Time as a value.
//!
//! The core reads no clock. The driver maps its clock to [`Instant`]: nanoseconds since an arbitrary origin.
//! Arithmetic saturates, so no input can make it panic.

use std::fmt;
use std::ops::{Add, AddAssign};
use std::time::Duration;

/// Point in time on the driver's clock.
///
/// ```
/// # use std::time::Duration;
/// use evenkeel_core::Instant;
/// let start = Instant::ORIGIN;
/// let later = start + Duration::from_secs(3);
/// assert_eq!(later.since(start), Duration::from_secs(3));
/// assert_eq!(start.since(later), Duration::ZERO);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// Origin of the driver's clock.
    pub const ORIGIN: Instant = Instant(0);

    /// Creates the instant `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Instant {
        Instant(nanos)
    }

    /// Returns the nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time since `earlier`; zero if `earlier` is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, wait: Duration) -> Instant {
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        Instant(self.0.saturating_add(nanos))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, wait: Duration) {
        *self = *self + wait;
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{:?}", Duration::from_nanos(self.0))
    }
}
