//! Calls counted for those who look inside: how many, how they ended, how long they took, what endpoints said of their load.
//!
//! Nothing is counted, and no clock is read, until somebody [watches](enable). Without the feature `admin` nobody can, and the
//! same types are empty and do nothing, so that the request path need not care.

#[cfg(not(feature = "admin"))]
mod off;
#[cfg(feature = "admin")]
mod on;

#[cfg(not(feature = "admin"))]
pub(crate) use off::{CallTimer, ChannelStats, EndpointStats};
#[cfg(feature = "admin")]
pub(crate) use on::{CallStats, CallStatsSnapshot, CallTimer, ChannelStats, EndpointStats, enable};
