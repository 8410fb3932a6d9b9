//! Route matching and cluster selection per call.
//!
//! A [`ConfigSelector`] is created from a virtual host and its listener, once per config. A call uses it once
//! (A31) and keeps the result for its retries. Timeouts, retry policies and filters with their overrides are
//! resolved when the selector is created. This module never waits: it returns filter actions as values.
//!
//! | types | purpose |
//! |---|---|
//! | [`Route`], [`RouteMatch`], [`RouteAction`] | validated routes of the control plane |
//! | [`ConfigSelector`], [`SelectedRoute`] | routing of one call |
//! | [`ActiveClusters`], [`ClusterRef`] | clusters that a call may still need (A31) |
//! | [`XdsHttpFilter`], [`FaultConfig`] | HTTP filters (A39) and fault injection (A33) |
//! | [`XdsRetryPolicy`], [`HashPolicy`] | retry policies (A44) and hash policies (A42) of routes |

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
