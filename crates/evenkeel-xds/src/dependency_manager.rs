//! From a listener to one complete config (A74).
//!
//! A channel follows names: its listener leads to routes, those to clusters, those to more clusters (A37) and to endpoints
//! or DNS names. [`DependencyManager::resolve`] walks them over what is known and answers which names are wanted, and one complete
//! [`XdsConfig`] once everything that the routes need is there; until then the config before it serves, with what
//! its own clusters were told since. Nothing is remembered but DNS answers and what was made last, so that parts that did
//! not change stay the same allocation.
//!
//! Where a walk led to a config and nothing but endpoints changed since, another walk would go the same way and find other
//! endpoints at its ends. [`DependencyManager::resolve_endpoints`] looks at those ends alone.
//!
//! A listener or a route configuration that cannot be had fails the channel. A cluster or its endpoints that
//! cannot be had fail that cluster alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use evenkeel_core::cluster::{self as core, ClusterMap, EndpointSet, EndpointSource};
use evenkeel_core::{Address, Endpoint, Endpoints, Locality, Status};

use crate::ads::{AdsClient, ResourceState};
use crate::resource::name::ResourceName;
use crate::resource::{
    Cluster, ClusterKind, Listener, Resource, ResourceType, RouteConfig, RouteSource, VirtualHost,
};

/// How many clusters may stand on one path from an aggregate cluster down to a leaf, both ends included (A37).
const MAX_DEPTH: usize = 16;

/// What is known about resources, by type and name.
pub trait ResourceView {
    /// How the resource stands.
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

/// Everything that a channel needs to route and balance, delivered at once.
#[derive(Clone, Debug)]
pub struct XdsConfig {
    /// The listener.
    pub listener: Arc<Listener>,
    /// The routes, wherever they were.
    pub route_config: Arc<RouteConfig>,
    /// The virtual host for the channel's authority.
    pub virtual_host: Arc<VirtualHost>,
    /// What the policies are given: every cluster that the routes, an aggregate cluster or a call refers to.
    pub clusters: Arc<ClusterMap>,
    /// The clusters as the control plane described them, by name, where they could be had.
    pub resources: Arc<BTreeMap<Arc<str>, Arc<Cluster>>>,
    /// What is wrong with the listener or the routes although they can be used (A88); failures should say it.
    pub note: Option<Arc<str>>,
}

/// What one walk found.
#[derive(Clone, Debug)]
pub struct DependencyUpdate {
    /// Every resource that the channel wants.
    pub wanted: BTreeSet<(ResourceType, String)>,
    /// Every DNS name that the channel wants, with its port. When a policy asks for re-resolution, all of them are
    /// resolved again (A74).
    pub hosts: BTreeSet<Arc<str>>,
    /// What the channel should use.
    pub outcome: DependencyOutcome,
}

/// What a channel should use.
#[derive(Clone, Debug)]
pub enum DependencyOutcome {
    /// Nothing yet: something has not come. Calls wait.
    Waiting,
    /// This config. The same allocation as before means that nothing changed.
    Config(Arc<XdsConfig>),
    /// Nothing: calls fail with this status.
    Failed(Status),
}

/// What a channel follows.
#[derive(Clone, Debug)]
pub struct DependencyManager {
    listener: String,
    authority: String,
    dns_results: BTreeMap<Arc<str>, LogicalDnsResult>,
    /// The config that was complete last.
    current: Option<Arc<XdsConfig>>,
    /// Endpoint sets that were made here, with what they were made from.
    built: HashMap<EndpointSource, BuiltEndpoints>,
    /// Where endpoints of the config that is shown come from, by the name of the resource in its canonical spelling; `None`
    /// if the last walk did not show one, or would find something else now.
    eds_sources: Option<HashMap<Arc<str>, Vec<EndpointSource>>>,
}

/// What DNS said about a name.
#[derive(Clone, Debug, Default)]
struct LogicalDnsResult {
    /// The last addresses that it gave.
    found: Option<Arc<EndpointSet>>,
    /// What went wrong the last time.
    error: Option<Status>,
}

/// An endpoint set with a note on it, and the set it was made from.
#[derive(Clone, Debug)]
struct BuiltEndpoints {
    from: Option<Arc<EndpointSet>>,
    set: Arc<EndpointSet>,
    /// What is wrong with the cluster although it can be used: the note, unless something is wrong with the endpoints.
    cluster: Option<Status>,
}

impl DependencyManager {
    /// Follows the listener of this name for calls to this authority.
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

    /// Takes in what came of resolving a DNS name with its port. An error after an answer leaves the answer in use.
    pub fn handle_resolved(&mut self, host: &str, addresses: Result<Vec<Address>, Status>) {
        self.eds_sources = None;
        let answer = self.dns_results.entry(host.into()).or_default();
        match addresses {
            Ok(addresses) => {
                *answer = LogicalDnsResult { found: Some(answer.with(host, addresses)), error: None }
            }
            Err(error) => answer.error = Some(error),
        }
    }

    /// Walks from the listener down. `held` are the clusters that calls still refer to (A31) or that were asked for
    /// beside the routes; they are kept, and do not keep a config from being complete.
    pub fn resolve<'h>(
        &mut self,
        held: impl IntoIterator<Item = &'h Arc<str>>,
        view: &impl ResourceView,
    ) -> DependencyUpdate {
        self.eds_sources = None;
        let dns_results = std::mem::take(&mut self.dns_results);
        let mut walk = DependencyWalk::new(view, &dns_results);
        let outcome = match walk.routing_resources(&self.listener, &self.authority) {
            Err(status) => {
                self.current = None;
                walk.clusters(held);
                DependencyOutcome::Failed(status)
            }
            Ok(roots) => {
                let roots = roots.filter(|roots| walk.clusters(&roots.virtual_host.clusters));
                // Until the clusters of new routes are there the routes before serve, and their clusters go on following.
                let before = self.current.as_deref().filter(|_| roots.is_none()).map(RoutingResources::of);
                let roots = roots.or(before.filter(|roots| walk.clusters(&roots.virtual_host.clusters)));
                walk.clusters(held);
                match roots {
                    Some(roots) => DependencyOutcome::Config(self.build_config(roots, &walk)),
                    None => {
                        self.current.clone().map_or(DependencyOutcome::Waiting, DependencyOutcome::Config)
                    }
                }
            }
        };
        let DependencyWalk { wanted, hosts, .. } = walk;
        self.dns_results = dns_results;
        self.dns_results.retain(|host, _| hosts.contains(host));
        DependencyUpdate { wanted, hosts, outcome }
    }

    /// What [`DependencyManager::resolve`] would answer as config when nothing but these endpoints changed since it was last called, each by
    /// the canonical spelling of its name; what is wanted is what it was then. `None` if that cannot be said without a walk.
    pub fn resolve_endpoints<'n>(
        &mut self,
        names: impl IntoIterator<Item = &'n Arc<str>>,
        view: &impl ResourceView,
    ) -> Option<Arc<XdsConfig>> {
        let (current, eds_sources) = (self.current.as_ref()?, self.eds_sources.as_ref()?);
        let mut updated = Vec::new();
        for name in names {
            // Endpoints that come to be known may complete a config.
            for source in eds_sources.get(name)? {
                let last = self.built.get(source)?;
                let made = EndpointsResult::from_view(source, view)?.build(last.cluster.as_ref(), Some(last));
                if !Arc::ptr_eq(&made.set, &last.set) {
                    updated.push((source.clone(), made));
                }
            }
        }
        if updated.is_empty() {
            return Some(current.clone());
        }
        let mut clusters = ClusterMap::clone(&current.clusters);
        for (source, made) in updated {
            clusters.insert_endpoint_set(source.clone(), made.set.clone());
            self.built.insert(source, made);
        }
        let config = Arc::new(XdsConfig { clusters: Arc::new(clusters), ..XdsConfig::clone(current) });
        self.current = Some(config.clone());
        Some(config)
    }

    /// The complete config of what a walk found; the last one if it is the same.
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
            Some(current) if current.is_same(&new) => current,
            Some(current) if current.clusters.is_same(&new.clusters) => {
                Arc::new(XdsConfig { clusters: current.clusters.clone(), ..new })
            }
            _ => Arc::new(new),
        };
        self.current = Some(config.clone());
        config
    }

    /// The clusters that a walk came by, in the core's words.
    fn collect(
        &mut self,
        walk: &DependencyWalk<'_, impl ResourceView>,
    ) -> (ClusterMap, BTreeMap<Arc<str>, Arc<Cluster>>) {
        let mut clusters = ClusterMap::default();
        let mut resources = BTreeMap::new();
        let mut made = HashMap::new();
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
                        if made.insert(source.clone(), entry).is_none()
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
        self.built = made;
        self.eds_sources = Some(eds_sources);
        (clusters, resources)
    }

    /// An aggregate cluster with these leaves; the allocation of last time if they are the same.
    fn aggregate(&self, name: &str, leaves: &[Arc<str>]) -> Arc<core::Cluster> {
        let last = self.current.as_ref().and_then(|current| current.clusters.cluster(name));
        match last {
            Some(Ok(cluster)) if is_aggregate_of(cluster, leaves) => cluster.clone(),
            _ => Arc::new(core::Cluster::Aggregate { leaves: leaves.to_vec() }),
        }
    }
}

impl LogicalDnsResult {
    /// The addresses as endpoints: all are one endpoint in one locality without a name (A37, A61), called by the name that
    /// was resolved (A81). The allocation of last time if they are the same.
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
    /// Whether both are made of the same parts, so that nothing changed.
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

/// What stands above the clusters.
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

/// One walk over what is known.
struct DependencyWalk<'a, V> {
    view: &'a V,
    dns_results: &'a BTreeMap<Arc<str>, LogicalDnsResult>,
    wanted: BTreeSet<(ResourceType, String)>,
    hosts: BTreeSet<Arc<str>>,
    /// Every cluster that the walk came by.
    nodes: BTreeMap<Arc<str>, ClusterNode>,
    /// What is below each of them.
    subtrees: BTreeMap<Arc<str>, ClusterSubtree>,
    /// The endpoints that are known.
    endpoints: BTreeMap<EndpointSource, EndpointsResult>,
}

/// A cluster that the walk came by.
enum ClusterNode {
    /// Nothing is known about it yet.
    Waiting,
    /// It cannot be had.
    Failed(Status),
    /// It is there.
    Known {
        resource: Arc<Cluster>,
        /// What is wrong with it although it can be used.
        ambient: Option<Status>,
    },
}

/// What is below a cluster, itself included.
struct ClusterSubtree {
    /// The tree, or why it cannot be used.
    tree: Result<AggregateLeaves, Status>,
    /// Whether all of it is known.
    is_complete: bool,
}

struct AggregateLeaves {
    /// The leaves, depth first, each where it is seen first (A37).
    leaves: Vec<Arc<str>>,
    /// How many clusters stand on the longest path down.
    height: usize,
}

impl<'a, V: ResourceView> DependencyWalk<'a, V> {
    fn new(view: &'a V, dns_results: &'a BTreeMap<Arc<str>, LogicalDnsResult>) -> DependencyWalk<'a, V> {
        DependencyWalk {
            view,
            dns_results,
            wanted: BTreeSet::new(),
            hosts: BTreeSet::new(),
            nodes: BTreeMap::new(),
            subtrees: BTreeMap::new(),
            endpoints: BTreeMap::new(),
        }
    }

    fn resource_state(&mut self, kind: ResourceType, name: &str) -> ResourceState {
        self.wanted.insert((kind, name.to_owned()));
        self.view.resource_state(kind, name)
    }

    /// The listener and the routes; `None` while something of them is not known.
    fn routing_resources(
        &mut self,
        listener: &str,
        authority: &str,
    ) -> Result<Option<RoutingResources>, Status> {
        let seen = self.resource_state(ResourceType::Listener, listener);
        let mut ambient = seen.ambient;
        let Some(Resource::Listener(listener)) = seen.value.transpose()? else { return Ok(None) };
        let route_config = match &listener.routes {
            RouteSource::Inline(routes) => routes.clone(),
            RouteSource::Rds(name) => {
                let seen = self.resource_state(ResourceType::RouteConfig, name);
                ambient = ambient.or(seen.ambient);
                let Some(Resource::RouteConfig(routes)) = seen.value.transpose()? else { return Ok(None) };
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

    /// Walks into these clusters and everything below them; answers whether all of it is known.
    fn clusters<'n>(&mut self, names: impl IntoIterator<Item = &'n Arc<str>>) -> bool {
        let mut is_complete = true;
        for name in names {
            self.discover(name);
            self.flatten(name);
            is_complete &= self.subtrees.get(name).is_some_and(|subtrees| subtrees.is_complete);
        }
        is_complete
    }

    /// Looks at a cluster and at everything below it, each once.
    fn discover(&mut self, name: &Arc<str>) {
        let mut open = vec![name.clone()];
        while let Some(name) = open.pop() {
            if self.nodes.contains_key(&name) {
                continue;
            }
            let seen = self.resource_state(ResourceType::Cluster, &name);
            let node = match seen.value {
                Some(Ok(Resource::Cluster(resource))) => {
                    match &resource.kind {
                        ClusterKind::Aggregate(members) => open.extend(members.iter().cloned()),
                        ClusterKind::Leaf(cluster) => {
                            cluster.source().into_iter().for_each(|s| self.resolve_source(s));
                        }
                    }
                    ClusterNode::Known { resource, ambient: seen.ambient }
                }
                Some(Err(status)) => ClusterNode::Failed(status),
                _ => ClusterNode::Waiting,
            };
            self.nodes.insert(name, node);
        }
    }

    /// Puts together what is below a cluster and below everything on the way. No recursion: how deep clusters are
    /// nested is up to the control plane.
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
                        format!("cluster {name:?}: aggregate clusters form a circle through {member:?}");
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

    /// What is below a cluster, when that is known of each of its members.
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
            // What cannot be had may be a leaf; as one it is a priority that fails (A74).
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
            tree.leaves.extend(part.leaves.iter().filter(|leaf| listed.insert(*leaf)).cloned());
        }
        if tree.height > MAX_DEPTH {
            let text = format!("cluster {name:?}: aggregate clusters are nested more than {MAX_DEPTH} deep");
            return ClusterSubtree { tree: Err(Status::unavailable(text)), is_complete: true };
        }
        ClusterSubtree { tree: Ok(tree), is_complete }
    }

    /// Looks at the endpoints from a source.
    fn resolve_source(&mut self, source: &EndpointSource) {
        let found = match source {
            EndpointSource::Eds { .. } => {
                self.wanted.insert((ResourceType::Endpoints, source.name().as_ref().to_owned()));
                let Some(found) = EndpointsResult::from_view(source, self.view) else { return };
                found
            }
            EndpointSource::LogicalDns { hostname } => {
                self.hosts.insert(hostname.clone());
                let Some(answer) = self.dns_results.get(hostname) else { return };
                match (&answer.found, &answer.error) {
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

/// Endpoints as they were found.
enum EndpointsResult {
    /// Some, and what is wrong with their source although there are some.
    Set(Arc<EndpointSet>, Option<Status>),
    /// None, and why.
    Unavailable(Arc<str>),
}

impl EndpointsResult {
    /// The endpoints that a control plane gave, if it said anything.
    fn from_view(source: &EndpointSource, view: &impl ResourceView) -> Option<EndpointsResult> {
        let seen = view.resource_state(ResourceType::Endpoints, source.name());
        match seen.value? {
            Ok(Resource::Endpoints(set)) => Some(EndpointsResult::Set(set, seen.ambient)),
            Ok(_) => None,
            Err(status) => Some(EndpointsResult::Unavailable(status.message().into())),
        }
    }

    /// The set to use, with a note for failures: what is wrong with the endpoints, else with their cluster. The
    /// allocation of last time if it is the same.
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
