//! Which cluster a call goes to, and how.
//!
//! A [`ConfigSelector`] is made from a virtual host and its listener, once per config; a call asks it once (A31) and keeps the
//! answer for its retries. Everything that does not depend on the call is settled when the selector is made: timeouts,
//! retry policies, filters with their overrides. Nothing here waits; what a filter wants done comes out as
//! a value.
//!
//! | where | what |
//! |---|---|
//! | [`Route`], [`RouteMatch`], [`RouteAction`] | routes as the control plane wrote them, checked |
//! | [`ConfigSelector`], [`SelectedRoute`] | the way of one call |
//! | [`ActiveClusters`], [`ClusterRef`] | clusters that a call may still need (A31) |
//! | [`XdsHttpFilter`], [`FaultConfig`] | HTTP filters (A39) and fault injection (A33) |
//! | [`XdsRetryPolicy`], [`HashPolicy`] | what routes say about retries (A44) and hashes (A42) |

mod clusters;
mod fault;
mod filter;
mod hash;
mod matcher;
mod retry;
mod route;
mod selector;
pub(crate) mod text_matcher;

pub use clusters::{ActiveClusters, ClusterRef, lb_config};
pub(crate) use fault::{AbortSpec, DelaySpec, FaultFraction, code_from_grpc, code_from_http};
pub use fault::{ActiveFaults, FaultConfig, InjectedFault};
pub use filter::{FilterInstance, FilterOverride, FilterOverrides, XdsHttpFilter};
pub use hash::HashPolicy;
pub(crate) use hash::{HashSource, RegexRewrite};
pub use matcher::RouteMatch;
pub(crate) use matcher::{HeaderMatchKind, HeaderMatcher, HeaderName};
pub use retry::XdsRetryPolicy;
pub use route::{ForwardAction, Route, RouteAction, StreamLimit, WeightedCluster};
pub use selector::{ConfigSelector, ExplainedRoute, RouteOutcome, SelectedRoute};
