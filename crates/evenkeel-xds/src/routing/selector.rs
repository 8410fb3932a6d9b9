//! Config selector: matches a call to a route and selects its cluster and settings (A31).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{Code, PickArgs, Status};

use crate::resource::{Listener, VirtualHost};
use crate::routing::filter;
use crate::routing::hash;
use crate::routing::matcher::RouteMismatch;
use crate::routing::{
    ActiveClusters, ClusterRef, FilterInstance, ForwardAction, Route, RouteAction, XdsRetryPolicy,
};
use crate::text::quoted;

/// Immutable router for one virtual host. A config change creates another one.
#[derive(Debug)]
pub struct ConfigSelector {
    host: Arc<VirtualHost>,
    /// Targets of each route of the host. Empty for a route that does not forward.
    targets: Vec<RouteTargets>,
    channel_id: u64,
}

/// Weighted targets of one route.
#[derive(Debug)]
struct RouteTargets {
    /// Sum of the weights up to and including each target.
    cumulative_weights: Vec<u64>,
    targets: Vec<Arc<RouteTarget>>,
}

/// Target of calls with all settings that do not depend on the call.
#[derive(Debug)]
struct RouteTarget {
    cluster: Arc<ClusterRef>,
    limit: Option<Duration>,
    retry: Option<Arc<XdsRetryPolicy>>,
    auto_host_rewrite: bool,
    filters: Arc<[FilterInstance]>,
}

/// Routing result of a call, valid for all its attempts (A31). It keeps the cluster active until it is
/// dropped, when the call is committed or ends.
#[derive(Clone, Debug)]
pub struct SelectedRoute {
    target: Arc<RouteTarget>,
    hash: u64,
}

impl ConfigSelector {
    /// Creates a selector for the channel with this random number (A42). It acquires every cluster of the
    /// host, so that [`ActiveClusters::names`] contains them. The balancing config must be updated before
    /// calls use the selector (A31).
    pub fn new(
        host: Arc<VirtualHost>,
        listener: &Listener,
        clusters: &ActiveClusters,
        channel_id: u64,
    ) -> ConfigSelector {
        let refs: ClusterRefs<'_> =
            host.clusters.iter().map(|name| (&**name, clusters.acquire(name))).collect();
        let common = TargetBuilder {
            refs,
            listener,
            filters: filter::resolve(&listener.filters, &[&host.overrides]),
            host: &host,
        };
        let targets = host.routes.iter().map(|route| common.targets(route)).collect();
        // It borrows `host`, which is moved below.
        drop(common);
        ConfigSelector { host, targets, channel_id }
    }

    /// Routes a call, or returns the status that it fails with. Called once per call.
    pub fn select(&self, call: &PickArgs<'_>) -> Result<SelectedRoute, Status> {
        // A path that is not canonical could match rules that were written for other paths.
        if !call.path().starts_with('/') {
            return Err(Status::new(
                Code::Internal,
                format!("the path {} does not start with \"/\"", quoted(call.path())),
            ));
        }
        let mut routes = self.host.routes.iter().zip(&self.targets);
        let Some((route, targets)) = routes.find(|(route, _)| route.matches.matches(call)) else {
            return Err(self.unavailable_route(call, "no route matches"));
        };
        match (&route.action, targets.pick(call)) {
            (RouteAction::Forward(ForwardAction { hash: policies, .. }), Some(target)) => {
                let hash = hash::of_call(policies, call, self.channel_id);
                Ok(SelectedRoute { target: target.clone(), hash })
            }
            _ => Err(self.unavailable_route(call, "the matching route is not for clients")),
        }
    }

    fn unavailable_route(&self, call: &PickArgs<'_>, why: &str) -> Status {
        Status::unavailable(format!(
            "virtual host {}: {why} (path {})",
            quoted(&self.host.name),
            quoted(call.path())
        ))
    }

    /// Returns the outcome of each route for this call, up to the first certain match. It samples no
    /// fractions.
    pub fn explain(&self, call: &PickArgs<'_>) -> Vec<ExplainedRoute> {
        let mut steps = Vec::new();
        for route in &self.host.routes {
            let outcome = match route.matches.mismatch(call) {
                Some(RouteMismatch::Path) => RouteOutcome::PathMismatch,
                Some(RouteMismatch::Header(header)) => RouteOutcome::HeaderMismatch(header.to_string()),
                None => match route.matches.per_million() {
                    Some(share) => RouteOutcome::FractionMatched(share),
                    None => RouteOutcome::Matched,
                },
            };
            let taken = outcome == RouteOutcome::Matched;
            steps.push(ExplainedRoute { name: route.name.clone(), route: route.to_string(), outcome });
            if taken {
                break;
            }
        }
        steps
    }
}

/// Outcome of one route for a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedRoute {
    /// Name of the route, often empty.
    pub name: String,
    /// Match and target of the route as text.
    pub route: String,
    /// Outcome of the match.
    pub outcome: RouteOutcome,
}

/// Outcome of matching a route.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteOutcome {
    /// The path does not match.
    PathMismatch,
    /// This header matcher does not match.
    HeaderMismatch(String),
    /// The route matches this fraction of such calls, in millionths.
    FractionMatched(u32),
    /// The route matches every such call.
    Matched,
}

type ClusterRefs<'a> = BTreeMap<&'a str, Arc<ClusterRef>>;

/// Common inputs of all targets of a selector.
struct TargetBuilder<'a> {
    refs: ClusterRefs<'a>,
    listener: &'a Listener,
    host: &'a VirtualHost,
    /// Filters for targets without overrides on the route and the weighted cluster.
    filters: Arc<[FilterInstance]>,
}

impl TargetBuilder<'_> {
    fn targets(&self, route: &Route) -> RouteTargets {
        let mut made = RouteTargets { cumulative_weights: Vec::new(), targets: Vec::new() };
        let RouteAction::Forward(forward) = &route.action else { return made };
        let mut sum = 0_u64;
        for weighted in &forward.clusters {
            // Not missing: `host.clusters` has every cluster of its routes.
            let Some(cluster) = self.refs.get(&*weighted.name) else { continue };
            let filters = if route.overrides.is_empty() && weighted.overrides.is_empty() {
                self.filters.clone()
            } else {
                // The most specific override is first (VAL-R5).
                let levels = [&weighted.overrides, &route.overrides, &self.host.overrides];
                filter::resolve(&self.listener.filters, &levels)
            };
            sum = sum.saturating_add(u64::from(weighted.weight));
            made.cumulative_weights.push(sum);
            made.targets.push(Arc::new(RouteTarget {
                cluster: cluster.clone(),
                limit: forward.limit.effective(self.listener.max_stream_duration),
                retry: forward.retry.clone(),
                auto_host_rewrite: forward.auto_host_rewrite,
                filters,
            }));
        }
        made
    }
}

impl RouteTargets {
    /// Selects a target by weight, independent of the state of its cluster (A31).
    fn pick(&self, call: &PickArgs<'_>) -> Option<&Arc<RouteTarget>> {
        let total = match self.cumulative_weights.as_slice() {
            // A single target needs no random number.
            [_] => return self.targets.first(),
            sums => *sums.last()?,
        };
        let drawn = call.random_below(total);
        self.targets.get(self.cumulative_weights.partition_point(|sum| *sum <= drawn))
    }
}

impl SelectedRoute {
    /// Returns the cluster. [`ClusterRef::child`] is its name for a pick.
    pub fn cluster(&self) -> &Arc<ClusterRef> {
        &self.target.cluster
    }

    /// Returns the timeout of the call: the minimum of `own`, which the application sets, and the route's
    /// limit. `None` means no timeout.
    pub fn timeout(&self, own: Option<Duration>) -> Option<Duration> {
        match (own, self.target.limit) {
            (Some(own), Some(limit)) => Some(own.min(limit)),
            (own, limit) => own.or(limit),
        }
    }

    /// Returns the retry policy, if there is one.
    pub fn retry(&self) -> Option<&Arc<XdsRetryPolicy>> {
        self.target.retry.as_ref()
    }

    /// Returns the request hash for hash-based policies.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns true if the endpoint's host name becomes the authority (A81).
    pub fn auto_host_rewrite(&self) -> bool {
        self.target.auto_host_rewrite
    }

    /// Returns the filters to run before the call is sent, in order.
    pub fn filters(&self) -> &[FilterInstance] {
        &self.target.filters
    }
}
