//! The way of one call: which route takes it, and all that follows (A31).

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

/// Routes calls by one virtual host. It never changes; a change of config makes another one.
#[derive(Debug)]
pub struct ConfigSelector {
    host: Arc<VirtualHost>,
    /// For each route of the host, where its calls may go; nowhere if it does not forward.
    targets: Vec<RouteTargets>,
    channel_id: u64,
}

/// Where the calls of one route may go.
#[derive(Debug)]
struct RouteTargets {
    /// The sum of the weights up to and with each target.
    cumulative_weights: Vec<u64>,
    targets: Vec<Arc<RouteTarget>>,
}

/// One way for calls to go, with all that is known before there is a call.
#[derive(Debug)]
struct RouteTarget {
    cluster: Arc<ClusterRef>,
    limit: Option<Duration>,
    retry: Option<Arc<XdsRetryPolicy>>,
    auto_host_rewrite: bool,
    filters: Arc<[FilterInstance]>,
}

/// The way that was chosen for a call. It holds for all its attempts (A31), and keeps the cluster active until it is dropped:
/// when the call is committed, or over.
#[derive(Clone, Debug)]
pub struct SelectedRoute {
    target: Arc<RouteTarget>,
    hash: u64,
}

impl ConfigSelector {
    /// A selector for a channel with this random number (A42). It takes references to every cluster of the host, so that
    /// [`ActiveClusters::names`] holds them; the balancing config must be updated before calls see the selector (A31).
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
        drop(common);
        ConfigSelector { host, targets, channel_id }
    }

    /// The way of this call, or what it fails with. Asked once per call.
    pub fn select(&self, call: &PickArgs<'_>) -> Result<SelectedRoute, Status> {
        // A path that is not canonical could pass rules that were written for the canonical one.
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
            _ => Err(self.unavailable_route(call, "the route that matches is not for clients")),
        }
    }

    fn unavailable_route(&self, call: &PickArgs<'_>, why: &str) -> Status {
        Status::unavailable(format!(
            "virtual host {}: {why} (path {})",
            quoted(&self.host.name),
            quoted(call.path())
        ))
    }

    /// Why each route takes this call or does not, in order, up to the first that takes it for certain. Chance is not
    /// asked.
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

/// Why a route takes a call or does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedRoute {
    /// The route's name, often empty.
    pub name: String,
    /// What it matches and where it goes.
    pub route: String,
    /// What became of it.
    pub outcome: RouteOutcome,
}

/// What became of a route for a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteOutcome {
    /// Its path is another.
    PathMismatch,
    /// The call does not have this header.
    HeaderMismatch(String),
    /// It takes so many calls like this one in a million.
    FractionMatched(u32),
    /// It takes the call.
    Matched,
}

type ClusterRefs<'a> = BTreeMap<&'a str, Arc<ClusterRef>>;

/// What all targets of a selector are made with.
struct TargetBuilder<'a> {
    refs: ClusterRefs<'a>,
    listener: &'a Listener,
    host: &'a VirtualHost,
    /// The filters where neither the route nor the weighted cluster says anything.
    filters: Arc<[FilterInstance]>,
}

impl TargetBuilder<'_> {
    fn targets(&self, route: &Route) -> RouteTargets {
        let mut made = RouteTargets { cumulative_weights: Vec::new(), targets: Vec::new() };
        let RouteAction::Forward(forward) = &route.action else { return made };
        let mut sum = 0_u64;
        for weighted in &forward.clusters {
            let Some(cluster) = self.refs.get(&*weighted.name) else { continue };
            let filters = if route.overrides.is_empty() && weighted.overrides.is_empty() {
                self.filters.clone()
            } else {
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
    /// A target by its weight, whatever the state of its cluster (A31).
    fn pick(&self, call: &PickArgs<'_>) -> Option<&Arc<RouteTarget>> {
        let total = match self.cumulative_weights.as_slice() {
            [_] => return self.targets.first(),
            sums => *sums.last()?,
        };
        let drawn = call.random_below(total);
        self.targets.get(self.cumulative_weights.partition_point(|sum| *sum <= drawn))
    }
}

impl SelectedRoute {
    /// The cluster; [`ClusterRef::child`] is what a pick wants to know.
    pub fn cluster(&self) -> &Arc<ClusterRef> {
        &self.target.cluster
    }

    /// How long the call may take, where the application allows `own`: never longer than that. `None` is without end.
    pub fn timeout(&self, own: Option<Duration>) -> Option<Duration> {
        match (own, self.target.limit) {
            (Some(own), Some(limit)) => Some(own.min(limit)),
            (own, limit) => own.or(limit),
        }
    }

    /// When it is tried again, if ever.
    pub fn retry(&self) -> Option<&Arc<XdsRetryPolicy>> {
        self.target.retry.as_ref()
    }

    /// What hash-based policies place it by.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Whether the endpoint's host name becomes its authority (A81).
    pub fn auto_host_rewrite(&self) -> bool {
        self.target.auto_host_rewrite
    }

    /// The filters to run before it is sent, in order.
    pub fn filters(&self) -> &[FilterInstance] {
        &self.target.filters
    }
}
