//! Which cluster a call goes to, and how.
//!
//! A [`Selector`] is made from a virtual host and its listener, once per config; a call asks it once (A31) and keeps the
//! answer for its retries. Everything that does not depend on the call is settled when the selector is made: timeouts,
//! retry policies, filters with their overrides. Nothing here waits; what a filter wants done comes out as
//! a value.
//!
//! | where | what |
//! |---|---|
//! | [`Route`], [`RouteMatch`], [`Action`] | routes as the control plane wrote them, checked |
//! | [`Selector`], [`Selected`] | the way of one call |
//! | [`ActiveClusters`], [`ClusterRef`] | clusters that a call may still need (A31) |
//! | [`Filter`], [`FaultConfig`] | HTTP filters (A39) and fault injection (A33) |
//! | [`RetryPolicy`], [`HashPolicy`] | what routes say about retries (A44) and hashes (A42) |

mod clusters;
mod fault;
mod filter;
mod hash;
mod matcher;
mod retry;
mod route;
mod selector;

pub use clusters::{ActiveClusters, ClusterRef, lb_config};
pub(crate) use fault::{Abort, Delay, Share, code_of, code_of_http};
pub use fault::{ActiveFaults, FaultConfig, Injected};
pub use filter::{Filter, FilterInstance, Override, Overrides};
pub use hash::HashPolicy;
pub(crate) use hash::{HashSource, Rewrite};
pub use matcher::RouteMatch;
pub(crate) use matcher::{HeaderMatcher, HeaderName, HeaderTest};
pub use retry::RetryPolicy;
pub use route::{Action, Forward, Route, StreamLimit, WeightedCluster};
pub use selector::{Explained, Outcome, Selected, Selector};
