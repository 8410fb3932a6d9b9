//! Dependency manager: resolves a listener and its dependencies to one complete config (A74).
//!
//! A listener depends on a route configuration, routes on clusters, and clusters on other clusters (A37), endpoints or DNS
//! names. [`DependencyManager::update`] walks these dependencies in the resource cache. It returns the names to watch, and
//! one [`XdsConfig`] once everything that the routes need is present. Until then the previous config stays in use, with the
//! updates of its own clusters. The manager stores only DNS results and the last config, so that parts that did not change
//! keep their allocation.
//!
//! If only endpoints changed since the last walk, another walk would visit the same resources. `update` then replaces the
//! endpoint sets of the last config instead.
//!
//! A missing or invalid listener or route configuration fails the channel. A missing or invalid cluster, or its endpoints,
//! fail only that cluster.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use evenkeel_core::cluster::{self as core, ClusterMap, EndpointSet, EndpointSource};
use evenkeel_core::{Address, Endpoint, Endpoints, Locality, Status};

use crate::ads::{AdsClient, ChangedResources, ResourceState};
use crate::resource::name::ResourceName;
use crate::resource::{
    Cluster, ClusterKind, Listener, Resource, ResourceType, RouteConfig, RouteSource, VirtualHost,
};

/// Maximum number of clusters on a path from an aggregate cluster to a leaf, including both (A37).
const MAX_DEPTH: usize = 16;

/// Cache of resources, by type and name.
pub trait ResourceView {
    /// Returns the cached state of a resource.
    fn resource_state(&self, kind: ResourceType, name: &str) -> ResourceState;
}

impl<F: Fn(ResourceType, &str) -> ResourceState> ResourceView for F {
    fn resource_state(&self, kind: ResourceType, name: &str) -> ResourceState {
        self(kind, name)
    }
}

impl ResourceView for AdsClient {
    fn resource_state(&self, kind: ResourceType, name: &str) -> ResourceState {
        AdsClient::resource_state(self, kind, name)
    }
}

/// Complete config of a channel for routing and load balancing.
#[derive(Clone, Debug)]
pub struct XdsConfig {
    /// Listener resource of the channel's target.
    pub listener: Arc<Listener>,
    /// Route configuration, inline in the listener or from RDS.
    pub route_config: Arc<RouteConfig>,
    /// Virtual host that matches the channel's authority.
    pub virtual_host: Arc<VirtualHost>,
    /// Clusters for the policies: each cluster that the routes, an aggregate cluster or a call refers to.
    pub clusters: Arc<ClusterMap>,
    /// Cluster resources by name, without the missing and invalid ones.
    pub resources: Arc<BTreeMap<Arc<str>, Arc<Cluster>>>,
    /// Ambient error of the listener or the route configuration (A88), to be included in error messages.
    pub note: Option<Arc<str>>,
}

/// Result of an update.
#[derive(Clone, Debug)]
pub struct DependencyUpdate {
    /// Names to watch; `None` if they are those of the previous update.
    pub watches: Option<WatchedNames>,
    /// Config of the channel, if there is one.
    pub outcome: DependencyOutcome,
}

/// Names that a channel depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedNames {
    /// Resources to watch in the xDS client.
    pub resources: BTreeSet<(ResourceType, String)>,
    /// DNS names to resolve, with their ports. A re-resolution request of a policy applies to all of them (A74).
    pub hosts: BTreeSet<Arc<str>>,
}

/// Config of a channel, or the reason why there is none.
#[derive(Clone, Debug)]
pub enum DependencyOutcome {
    /// This resource or DNS name, and maybe others, has not been received yet. Calls are queued.
    Waiting(MissingDependency),
    /// Complete config. If nothing changed, it is the same allocation as before.
    Config(Arc<XdsConfig>),
    /// A required resource is missing or invalid. Calls fail with this status.
    Failed(Status),
}

/// Dependency of a channel that has not been received yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingDependency {
    /// Resource of the control plane.
    Resource(ResourceType, String),
    /// DNS name of a cluster, with its port.
    DnsName(Arc<str>),
}

/// Dependency manager of one channel (A74).
#[derive(Clone, Debug)]
pub struct DependencyManager {
    listener: String,
    authority: String,
    dns_results: BTreeMap<Arc<str>, LogicalDnsResult>,
    /// Last config that was complete.
    current: Option<Arc<XdsConfig>>,
    /// Endpoint sets of that config, with their inputs.
    built: HashMap<EndpointSource, BuiltEndpoints>,
    /// Endpoint sources of that config, by canonical resource name. `None` if the last walk did not build it, or if a DNS
    /// result changed since.
    eds_sources: Option<HashMap<Arc<str>, Vec<EndpointSource>>>,
}

/// Result of the DNS lookups of one name.
#[derive(Clone, Debug, Default)]
struct LogicalDnsResult {
    /// Addresses of the last successful lookup.
    found: Option<Arc<EndpointSet>>,
    /// Error of the last lookup.
    error: Option<Status>,
}

/// Endpoint set with its resolution note, and the inputs that it was built from.
#[derive(Clone, Debug)]
struct BuiltEndpoints {
    from: Option<Arc<EndpointSet>>,
    set: Arc<EndpointSet>,
    /// Ambient error of the cluster. It is the note unless the endpoints have an error of their own.
    cluster: Option<Status>,
}

impl DependencyManager {
    /// Creates the manager of a channel that uses this listener for calls to this authority.
    pub fn new(listener: impl Into<String>, authority: impl Into<String>) -> DependencyManager {
        DependencyManager {
            listener: listener.into(),
            authority: authority.into(),
            dns_results: BTreeMap::new(),
            current: None,
            built: HashMap::new(),
            eds_sources: None,
        }
    }

    /// Handles the result of a DNS lookup of `host`, which includes the port. After an error the last addresses stay in use.
    pub fn handle_resolved(&mut self, host: &str, addresses: Result<Vec<Address>, Status>) {
        // The next update must walk: a DNS result may complete a config.
        self.eds_sources = None;
        let result = self.dns_results.entry(host.into()).or_default();
        match addresses {
            Ok(addresses) => {
                *result = LogicalDnsResult { found: Some(result.with(host, addresses)), error: None }
            }
            Err(error) => result.error = Some(error),
        }
    }

    /// Brings the config up to date with the resource cache.
    ///
    /// `changed` names the resources that changed since the previous update. If these are endpoints only, and `held` is as in
    /// that update, the result does not depend on the number of clusters.
    ///
    /// `held` are clusters that calls still refer to (A31) or that policies subscribe to. They are part of the config, but the
    /// config is complete without them.
    pub fn update<'h>(
        &mut self,
        changed: &ChangedResources,
        held: impl IntoIterator<Item = &'h Arc<str>>,
        view: &impl ResourceView,
    ) -> DependencyUpdate {
        if let ChangedResources::Endpoints(names) = changed
            && let Some(config) = self.update_endpoints(names, view)
        {
            return DependencyUpdate { watches: None, outcome: DependencyOutcome::Config(config) };
        }
        self.eds_sources = None;
        // Taken out for the time of the walk, which borrows them.
        let dns_results = std::mem::take(&mut self.dns_results);
        let mut walk = DependencyWalk::new(view, &dns_results);
        let outcome = match walk.routing_resources(&self.listener, &self.authority) {
            Err(status) => {
                self.current = None;
                // The clusters of calls in flight stay watched while the channel fails.
                walk.clusters(held);
                DependencyOutcome::Failed(status)
            }
            Ok(roots) => {
                let roots = roots.filter(|roots| walk.clusters(&roots.virtual_host.clusters));
                // Until the clusters of new routes are known, the previous routes stay in use and their clusters are updated.
                let before = self.current.as_deref().filter(|_| roots.is_none()).map(RoutingResources::of);
                let roots = roots.or(before.filter(|roots| walk.clusters(&roots.virtual_host.clusters)));
                // Visited last: the config is complete without them.
                walk.clusters(held);
                match roots {
                    Some(roots) => DependencyOutcome::Config(self.build_config(roots, &walk)),
                    None => match &self.current {
                        Some(config) => DependencyOutcome::Config(config.clone()),
                        None => DependencyOutcome::Waiting(walk.missing(&self.listener)),
                    },
                }
            }
        };
        let DependencyWalk { watches, .. } = walk;
        self.dns_results = dns_results;
        self.dns_results.retain(|host, _| watches.hosts.contains(host));
        DependencyUpdate { watches: Some(watches), outcome }
    }

    /// Replaces the endpoint sets with these canonical names in the last config. Returns `None` if a walk is necessary.
    fn update_endpoints(
        &mut self,
        names: &BTreeSet<Arc<str>>,
        view: &impl ResourceView,
    ) -> Option<Arc<XdsConfig>> {
        let (current, eds_sources) = (self.current.as_ref()?, self.eds_sources.as_ref()?);
        let mut updated = Vec::new();
        for name in names {
            // An endpoint set that is not part of the config may complete a new one, so it needs a walk.
            for source in eds_sources.get(name)? {
                let last = self.built.get(source)?;
                let built =
                    EndpointsResult::from_view(source, view)?.build(last.cluster.as_ref(), Some(last));
                // The cache may report a resource whose endpoints and note are unchanged.
                if !Arc::ptr_eq(&built.set, &last.set) {
                    updated.push((source.clone(), built));
                }
            }
        }
        if updated.is_empty() {
            return Some(current.clone());
        }
        let mut clusters = ClusterMap::clone(&current.clusters);
        for (source, built) in updated {
            clusters.insert_endpoint_set(source.clone(), built.set.clone());
            self.built.insert(source, built);
        }
        let config = Arc::new(XdsConfig { clusters: Arc::new(clusters), ..XdsConfig::clone(current) });
        self.current = Some(config.clone());
        Some(config)
    }

    /// Returns the config of a walk, or the previous one if they are the same.
    fn build_config(
        &mut self,
        roots: RoutingResources,
        walk: &DependencyWalk<'_, impl ResourceView>,
    ) -> Arc<XdsConfig> {
        let (clusters, resources) = self.collect(walk);
        let RoutingResources { listener, route_config, virtual_host, note } = roots;
        let (clusters, resources) = (Arc::new(clusters), Arc::new(resources));
        let new = XdsConfig { listener, route_config, virtual_host, clusters, resources, note };
        let config = match self.current.take() {
            // Identity is the change signal: equal parts keep the allocation of the last config.
            Some(current) if current.is_same(&new) => current,
            Some(current) if current.clusters.is_same(&new.clusters) => {
                Arc::new(XdsConfig { clusters: current.clusters.clone(), ..new })
            }
            _ => Arc::new(new),
        };
        self.current = Some(config.clone());
        config
    }

    /// Returns the clusters of a walk, as types of the core and as resources.
    fn collect(
        &mut self,
        walk: &DependencyWalk<'_, impl ResourceView>,
    ) -> (ClusterMap, BTreeMap<Arc<str>, Arc<Cluster>>) {
        let mut clusters = ClusterMap::default();
        let mut resources = BTreeMap::new();
        let mut built = HashMap::new();
        let mut eds_sources = HashMap::<_, Vec<EndpointSource>>::new();
        for (name, node) in &walk.nodes {
            let (resource, ambient) = match node {
                ClusterNode::Waiting => continue,
                ClusterNode::Failed(status) => {
                    clusters.insert_cluster(name.clone(), Err(status.clone()));
                    continue;
                }
                ClusterNode::Known { resource, ambient } => (resource, ambient),
            };
            let cluster = match &resource.kind {
                ClusterKind::Leaf(cluster) => {
                    if let Some(source) = cluster.source()
                        && let Some(found) = walk.endpoints.get(source)
                    {
                        let entry = found.build(ambient.as_ref(), self.built.get(source));
                        clusters.insert_endpoint_set(source.clone(), entry.set.clone());
                        if built.insert(source.clone(), entry).is_none()
                            && let EndpointSource::Eds { .. } = source
                            && let Ok(name) = ResourceName::parse(ResourceType::Endpoints, source.name())
                        {
                            eds_sources.entry(name.into_canonical()).or_default().push(source.clone());
                        }
                    }
                    Ok(cluster.clone())
                }
                ClusterKind::Aggregate(_) => match walk.subtrees.get(name).map(|subtrees| &subtrees.tree) {
                    Some(Ok(tree)) => Ok(self.aggregate(name, &tree.leaves)),
                    Some(Err(status)) => Err(status.clone()),
                    None => continue,
                },
            };
            resources.insert(name.clone(), resource.clone());
            clusters.insert_cluster(name.clone(), cluster);
        }
        self.built = built;
        self.eds_sources = Some(eds_sources);
        (clusters, resources)
    }

    /// Returns an aggregate cluster with these leaves, or the previous allocation if they are the same.
    fn aggregate(&self, name: &str, leaves: &[Arc<str>]) -> Arc<core::Cluster> {
        let last = self.current.as_ref().and_then(|current| current.clusters.cluster(name));
        match last {
            Some(Ok(cluster)) if is_aggregate_of(cluster, leaves) => cluster.clone(),
            _ => Arc::new(core::Cluster::Aggregate { leaves: leaves.to_vec() }),
        }
    }
}

impl LogicalDnsResult {
    /// Returns the addresses as one endpoint in an unnamed locality (A37, A61), with the DNS name as its hostname (A81).
    /// Returns the previous allocation if it is the same.
    fn with(&self, host: &str, addresses: Vec<Address>) -> Arc<EndpointSet> {
        let endpoint =
            Endpoint::new(addresses).with_locality(Arc::new(Locality::default()), 1).with_hostname(host);
        let is_same = |set: &&Arc<EndpointSet>| {
            set.priorities.iter().flat_map(Endpoints::iter).eq(std::iter::once(&endpoint))
        };
        if let Some(found) = self.found.as_ref().filter(is_same) {
            return found.clone();
        }
        let endpoints = Endpoints::list((!endpoint.addresses().is_empty()).then_some(endpoint));
        Arc::new(EndpointSet { priorities: vec![endpoints], ..EndpointSet::default() })
    }
}

impl XdsConfig {
    /// Returns true if both consist of the same resources.
    fn is_same(&self, other: &XdsConfig) -> bool {
        let same_resources = || {
            let pairs = self.resources.iter().zip(&*other.resources);
            self.resources.len() == other.resources.len()
                && pairs.into_iter().all(|((a, x), (b, y))| a == b && Arc::ptr_eq(x, y))
        };
        Arc::ptr_eq(&self.listener, &other.listener)
            && Arc::ptr_eq(&self.route_config, &other.route_config)
            && Arc::ptr_eq(&self.virtual_host, &other.virtual_host)
            && self.note == other.note
            && same_resources()
            && self.clusters.is_same(&other.clusters)
    }
}

fn is_aggregate_of(cluster: &core::Cluster, names: &[Arc<str>]) -> bool {
    matches!(cluster, core::Cluster::Aggregate { leaves } if leaves == names)
}

/// Listener and routes of a config.
struct RoutingResources {
    listener: Arc<Listener>,
    route_config: Arc<RouteConfig>,
    virtual_host: Arc<VirtualHost>,
    note: Option<Arc<str>>,
}

impl RoutingResources {
    fn of(config: &XdsConfig) -> RoutingResources {
        let XdsConfig { listener, route_config, virtual_host, note, .. } = config.clone();
        RoutingResources { listener, route_config, virtual_host, note }
    }
}

/// Walk over the dependencies of a listener in the resource cache.
struct DependencyWalk<'a, V> {
    view: &'a V,
    dns_results: &'a BTreeMap<Arc<str>, LogicalDnsResult>,
    watches: WatchedNames,
    /// Clusters that the walk visited.
    nodes: BTreeMap<Arc<str>, ClusterNode>,
    /// Subtree of each of them.
    subtrees: BTreeMap<Arc<str>, ClusterSubtree>,
    /// Endpoints that are known, or known to be unavailable.
    endpoints: BTreeMap<EndpointSource, EndpointsResult>,
}

/// Cluster that the walk visited.
enum ClusterNode {
    /// The resource has not been received yet.
    Waiting,
    /// The resource is missing or invalid.
    Failed(Status),
    /// The resource is cached.
    Known {
        resource: Arc<Cluster>,
        /// Error of the last update of the resource, which stays in use.
        ambient: Option<Status>,
    },
}

/// Cluster with all clusters below it.
struct ClusterSubtree {
    /// Leaves of the subtree, or the error that makes it invalid.
    tree: Result<AggregateLeaves, Status>,
    /// True if every resource of the subtree is known.
    is_complete: bool,
}

struct AggregateLeaves {
    /// Leaf clusters in depth-first order, each at its first occurrence (A37).
    leaves: Vec<Arc<str>>,
    /// Number of clusters on the longest path to a leaf.
    height: usize,
}

impl<'a, V: ResourceView> DependencyWalk<'a, V> {
    fn new(view: &'a V, dns_results: &'a BTreeMap<Arc<str>, LogicalDnsResult>) -> DependencyWalk<'a, V> {
        DependencyWalk {
            view,
            dns_results,
            watches: WatchedNames::default(),
            nodes: BTreeMap::new(),
            subtrees: BTreeMap::new(),
            endpoints: BTreeMap::new(),
        }
    }

    fn resource_state(&mut self, kind: ResourceType, name: &str) -> ResourceState {
        // Watched even if it is unknown: that is the way in which it arrives.
        self.watches.resources.insert((kind, name.to_owned()));
        self.view.resource_state(kind, name)
    }

    /// Returns the listener and the routes; `None` if one of them has not been received yet.
    fn routing_resources(
        &mut self,
        listener: &str,
        authority: &str,
    ) -> Result<Option<RoutingResources>, Status> {
        let state = self.resource_state(ResourceType::Listener, listener);
        let mut ambient = state.ambient;
        let Some(Resource::Listener(listener)) = state.value.transpose()? else { return Ok(None) };
        let route_config = match &listener.routes {
            RouteSource::Inline(routes) => routes.clone(),
            RouteSource::Rds(name) => {
                let state = self.resource_state(ResourceType::RouteConfig, name);
                ambient = ambient.or(state.ambient);
                let Some(Resource::RouteConfig(routes)) = state.value.transpose()? else { return Ok(None) };
                routes
            }
        };
        let Some(virtual_host) = route_config.virtual_host(authority).cloned() else {
            let place = match &listener.routes {
                RouteSource::Inline(_) => format!("listener {:?}", listener.name),
                RouteSource::Rds(name) => format!("route configuration {name:?}"),
            };
            let text = format!("{place} has no virtual host for the authority {authority:?}");
            return Err(Status::unavailable(text));
        };
        let note = ambient.map(|status| status.message().into());
        Ok(Some(RoutingResources { listener, route_config, virtual_host, note }))
    }

    /// Returns the first dependency that is unknown: of the listener, routes, clusters, endpoints and DNS names, in this
    /// order.
    fn missing(&self, listener: &str) -> MissingDependency {
        let is_unknown =
            |(kind, name): &&(ResourceType, String)| self.view.resource_state(*kind, name).value.is_none();
        if let Some((kind, name)) = self.watches.resources.iter().find(is_unknown) {
            return MissingDependency::Resource(*kind, name.clone());
        }
        let mut hosts = self.watches.hosts.iter();
        match hosts.find(|host| !self.dns_results.contains_key(&**host)) {
            Some(host) => MissingDependency::DnsName(host.clone()),
            // A resource of another type than its name belongs to no known state, and its listener refers to it.
            None => MissingDependency::Resource(ResourceType::Listener, listener.to_owned()),
        }
    }

    /// Visits these clusters and their subtrees. Returns true if all of them are known.
    fn clusters<'n>(&mut self, names: impl IntoIterator<Item = &'n Arc<str>>) -> bool {
        let mut is_complete = true;
        for name in names {
            // Every cluster is visited, even after an incomplete one, so that all names are watched at once.
            self.discover(name);
            self.flatten(name);
            is_complete &= self.subtrees.get(name).is_some_and(|subtrees| subtrees.is_complete);
        }
        is_complete
    }

    /// Visits a cluster and its subtree, each cluster once.
    fn discover(&mut self, name: &Arc<str>) {
        let mut open = vec![name.clone()];
        while let Some(name) = open.pop() {
            if self.nodes.contains_key(&name) {
                continue;
            }
            let state = self.resource_state(ResourceType::Cluster, &name);
            let node = match state.value {
                Some(Ok(Resource::Cluster(resource))) => {
                    match &resource.kind {
                        ClusterKind::Aggregate(members) => open.extend(members.iter().cloned()),
                        ClusterKind::Leaf(cluster) => {
                            cluster.source().into_iter().for_each(|s| self.resolve_source(s));
                        }
                    }
                    ClusterNode::Known { resource, ambient: state.ambient }
                }
                Some(Err(status)) => ClusterNode::Failed(status),
                _ => ClusterNode::Waiting,
            };
            self.nodes.insert(name, node);
        }
    }

    /// Computes the subtree of a cluster and of each cluster below it. The function is not recursive, since the control plane
    /// determines the depth of nesting.
    fn flatten(&mut self, name: &Arc<str>) {
        let mut path = vec![(name.clone(), 0)];
        let mut on_path = BTreeSet::from([name.clone()]);
        while let Some((name, next)) = path.last_mut() {
            let members = match self.nodes.get(&*name) {
                Some(ClusterNode::Known { resource, .. }) => match &resource.kind {
                    ClusterKind::Aggregate(members) => &members[..],
                    ClusterKind::Leaf(_) => &[],
                },
                _ => &[],
            };
            let done = match members.get(*next) {
                _ if self.subtrees.contains_key(&*name) => None,
                None => Some(self.combine(name, members)),
                Some(member) if on_path.contains(member) => {
                    let text =
                        format!("cluster {name:?}: aggregate clusters form a cycle through {member:?}");
                    // An error is final, so nothing is missing.
                    Some(ClusterSubtree { tree: Err(Status::unavailable(text)), is_complete: true })
                }
                Some(member) => {
                    let member = member.clone();
                    *next = next.saturating_add(1);
                    on_path.insert(member.clone());
                    path.push((member, 0));
                    continue;
                }
            };
            if let Some(subtrees) = done {
                self.subtrees.insert(name.clone(), subtrees);
            }
            on_path.remove(&*name);
            path.pop();
        }
    }

    /// Computes the subtree of a cluster from the subtrees of its members.
    fn combine(&self, name: &Arc<str>, members: &[Arc<str>]) -> ClusterSubtree {
        let mut tree = AggregateLeaves { leaves: Vec::new(), height: 1 };
        let mut is_complete = match self.nodes.get(name) {
            Some(ClusterNode::Known { resource, .. }) => match &resource.kind {
                ClusterKind::Leaf(cluster) => {
                    tree.leaves.push(name.clone());
                    let source = cluster.source();
                    source.is_none_or(|source| self.endpoints.contains_key(source))
                }
                ClusterKind::Aggregate(_) => true,
            },
            // A missing or invalid cluster may be a leaf. As a leaf it is a priority that fails (A74).
            Some(ClusterNode::Failed(_)) => {
                tree.leaves.push(name.clone());
                true
            }
            Some(ClusterNode::Waiting) | None => false,
        };
        let mut listed = BTreeSet::new();
        for subtrees in members.iter().filter_map(|member| self.subtrees.get(member)) {
            is_complete &= subtrees.is_complete;
            let part = match &subtrees.tree {
                Ok(part) => part,
                Err(status) => return ClusterSubtree { tree: Err(status.clone()), is_complete: true },
            };
            tree.height = tree.height.max(part.height.saturating_add(1));
            // Depth first, and a duplicate keeps its first position (CDS-5).
            tree.leaves.extend(part.leaves.iter().filter(|leaf| listed.insert(*leaf)).cloned());
        }
        // The limit applies to each subtree, so a cluster below an invalid aggregate may still be valid.
        if tree.height > MAX_DEPTH {
            let text = format!("cluster {name:?}: aggregate clusters are nested more than {MAX_DEPTH} deep");
            return ClusterSubtree { tree: Err(Status::unavailable(text)), is_complete: true };
        }
        ClusterSubtree { tree: Ok(tree), is_complete }
    }

    /// Visits the endpoints of a source.
    fn resolve_source(&mut self, source: &EndpointSource) {
        let found = match source {
            EndpointSource::Eds { .. } => {
                self.watches.resources.insert((ResourceType::Endpoints, source.name().as_ref().to_owned()));
                let Some(found) = EndpointsResult::from_view(source, self.view) else { return };
                found
            }
            EndpointSource::LogicalDns { hostname } => {
                self.watches.hosts.insert(hostname.clone());
                let Some(result) = self.dns_results.get(hostname) else { return };
                match (&result.found, &result.error) {
                    (Some(set), error) => EndpointsResult::Set(set.clone(), error.clone()),
                    (None, Some(error)) => {
                        EndpointsResult::Unavailable(format!("{source}: {}", error.message()).into())
                    }
                    (None, None) => return,
                }
            }
        };
        self.endpoints.insert(source.clone(), found);
    }
}

/// Endpoints of a source, as cached.
enum EndpointsResult {
    /// Endpoint set, with the error of its last update if that failed.
    Set(Arc<EndpointSet>, Option<Status>),
    /// No endpoint set, with the reason.
    Unavailable(Arc<str>),
}

impl EndpointsResult {
    /// Returns the cached endpoints of an EDS source; `None` if they have not been received yet.
    fn from_view(source: &EndpointSource, view: &impl ResourceView) -> Option<EndpointsResult> {
        let state = view.resource_state(ResourceType::Endpoints, source.name());
        match state.value? {
            Ok(Resource::Endpoints(set)) => Some(EndpointsResult::Set(set, state.ambient)),
            Ok(_) => None,
            Err(status) => Some(EndpointsResult::Unavailable(status.message().into())),
        }
    }

    /// Returns the endpoint set with its resolution note: the error of the endpoints, or else of their cluster. Returns the
    /// previous allocation if it is the same.
    fn build(&self, cluster: Option<&Status>, last: Option<&BuiltEndpoints>) -> BuiltEndpoints {
        let (from, note) = match self {
            EndpointsResult::Set(set, ambient) => {
                let ambient = ambient.as_ref().or(cluster).map(|status| status.message().into());
                (Some(set), ambient)
            }
            EndpointsResult::Unavailable(why) => (None, Some(why.clone())),
        };
        if let Some(last) = last
            && last.from.as_ref().map(Arc::as_ptr) == from.map(Arc::as_ptr)
            // The note is compared too, since it is part of the set.
            && last.set.note == note
        {
            return BuiltEndpoints { cluster: cluster.cloned(), ..last.clone() };
        }
        let set = match (from, note) {
            (Some(from), None) => from.clone(),
            (Some(from), note) => Arc::new(EndpointSet { note, ..(**from).clone() }),
            (None, note) => Arc::new(EndpointSet::unreachable(note.unwrap_or_default())),
        };
        BuiltEndpoints { from: from.cloned(), set, cluster: cluster.cloned() }
    }
}
