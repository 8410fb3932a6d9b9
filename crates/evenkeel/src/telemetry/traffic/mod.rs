//! Call statistics for the admin page: counts by outcome, latency histograms, and the reported load of endpoints.
//!
//! Nothing is counted and no clock is read until an admin watch calls [`enable`]. Without the feature `admin` the
//! same types are empty and do nothing, so the request path needs no `cfg`.

mod cause;
#[cfg(feature = "admin")]
mod failures;
#[cfg(not(feature = "admin"))]
mod off;
#[cfg(feature = "admin")]
mod on;

#[cfg(feature = "admin")]
pub use cause::FailureCause;
#[cfg(not(feature = "admin"))]
pub(crate) use cause::FailureCause;
pub(crate) use cause::{FailureInfo, FailureText};
#[cfg(feature = "admin")]
pub(crate) use failures::FailureCounts;
#[cfg(not(feature = "admin"))]
pub(crate) use off::{CallTimer, ChannelStats, EndpointStats};
#[cfg(feature = "admin")]
pub(crate) use on::{CallStats, CallStatsSnapshot, CallTimer, ChannelStats, EndpointStats, enable};
