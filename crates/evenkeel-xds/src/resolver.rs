//! What one channel follows: from what is known to what it routes and balances by.
//!
//! A [`XdsResolver`] puts the parts together for a channel. Its driver calls [`XdsResolver::resolve`] whenever something changed that
//! concerns the channel: resources, a DNS answer, a cluster that the last call let go of, a cluster that a policy asks
//! for. What comes back is wanted from the client and from DNS, and perhaps a [`XdsResolverUpdate`]: first the core takes the update and
//! runs a pass, then calls see the selector, together with the picker of that pass (A31). Where only endpoints changed,
//! [`XdsResolver::resolve_endpoints`] leads to the same step without a look at everything else.
//!
//! ```
//! use std::sync::Arc;
//!
//! use evenkeel_xds::ads::ResourceState;
//! use evenkeel_xds::resolver::XdsResolver;
//! use evenkeel_xds::resource::ResourceType;
//!
//! let wake = Arc::new(|| { /* wake the driver */ });
//! let mut resolver = XdsResolver::new("orders", "orders", "node-7", 42, wake);
//! let nothing_known = |_: ResourceType, _: &str| ResourceState::default();
//! let followed = resolver.resolve([], &nothing_known);
//! assert!(followed.wanted.contains(&(ResourceType::Listener, "orders".to_owned())));
//! assert!(followed.update.is_none(), "calls wait");
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_core::cluster::ClusterMap;
use evenkeel_core::{Address, Endpoints, LbConfig, LbUpdate, Status};

use crate::dependency_manager::{DependencyManager, DependencyOutcome, ResourceView, XdsConfig};
use crate::resource::ResourceType;
use crate::routing::{ActiveClusters, ConfigSelector, lb_config};
use crate::text::quoted_long;

/// One channel's view of xDS.
#[derive(Debug)]
pub struct XdsResolver {
    dependency_manager: DependencyManager,
    active: ActiveClusters,
    /// The target of the channel, which failures name.
    target: Option<String>,
    /// Whom to ask about, for failures.
    node: Arc<str>,
    channel_id: u64,
    /// The config in use, until its listener or its routes are gone.
    config: Option<Arc<XdsConfig>>,
    /// How calls are routed.
    route: Option<Result<Arc<ConfigSelector>, Status>>,
    lb_config: Option<LbConfig>,
    clusters: Arc<ClusterMap>,
    /// How often a cluster had come or gone when everything was last looked at.
    cluster_changes: u64,
}

/// What following led to.
#[derive(Debug)]
pub struct XdsResolverOutput {
    /// Every resource that the channel wants.
    pub wanted: BTreeSet<(ResourceType, String)>,
    /// Every DNS name that the channel wants, with its port.
    pub hosts: BTreeSet<Arc<str>>,
    /// What changed for the channel, if anything did.
    pub update: Option<XdsResolverUpdate>,
}

/// What a channel does next: the core takes the update and runs a pass, then calls are routed another way.
#[derive(Clone, Debug)]
pub struct XdsResolverUpdate {
    /// For the core. While the channel fails it holds what calls under way still need.
    pub update: LbUpdate,
    /// For calls that begin from then on: how they are routed, or what they fail with.
    pub route: Result<Arc<ConfigSelector>, Status>,
}

/// What a look at endpoints alone led to.
#[derive(Debug)]
pub enum EndpointsOnlyUpdate {
    /// That was all there is to look at. What changed for the channel, if anything did; it wants what it wanted before.
    Applied(Option<XdsResolverUpdate>),
    /// It does not do: [`XdsResolver::resolve`] has to look at everything.
    NeedsFullUpdate,
}

impl XdsResolver {
    /// Follows a listener for calls to an authority. `node` is the node's id, which failures name; `channel_id` is the
    /// channel's random number for hash policies (A42). `on_idle` is called when a cluster is no longer needed by any
    /// call, from whichever thread ended it: it should only see to it that [`XdsResolver::resolve`] is called soon.
    pub fn new(
        listener: impl Into<String>,
        authority: impl Into<String>,
        node: &str,
        channel_id: u64,
        on_idle: Arc<dyn Fn() + Send + Sync>,
    ) -> XdsResolver {
        XdsResolver {
            dependency_manager: DependencyManager::new(listener, authority),
            active: ActiveClusters::new(on_idle),
            target: None,
            node: format!("xDS node id {}", quoted_long(node)).into(),
            channel_id,
            config: None,
            route: None,
            lb_config: None,
            clusters: Arc::default(),
            cluster_changes: 0,
        }
    }

    /// Names the target of the channel in failures that concern all of its calls.
    #[must_use]
    pub fn for_target(mut self, target: &str) -> XdsResolver {
        self.target = Some(quoted_long(target));
        self
    }

    /// Takes in what came of resolving a DNS name with its port.
    pub fn handle_resolved(&mut self, host: &str, addresses: Result<Vec<Address>, Status>) {
        self.dependency_manager.handle_resolved(host, addresses);
    }

    /// Looks at what is known. `dynamic` are the clusters that policies ask for beside the routes
    /// ([`Core::subscribed_clusters`](evenkeel_core::Core::subscribed_clusters)).
    pub fn resolve<'d>(
        &mut self,
        dynamic: impl IntoIterator<Item = &'d Arc<str>>,
        view: &impl ResourceView,
    ) -> XdsResolverOutput {
        // In this order: what goes between the two is looked at again.
        self.cluster_changes = self.active.changes();
        let mut held = self.active.names();
        held.extend(dynamic.into_iter().cloned());
        let resolution = self.dependency_manager.resolve(&held, view);
        let update = match resolution.outcome {
            DependencyOutcome::Waiting => None,
            DependencyOutcome::Config(config) => {
                let is_same = self.config.as_ref().is_some_and(|last| Arc::ptr_eq(last, &config));
                let route = self.config_selector(&config);
                self.clusters = config.clusters.clone();
                self.config = Some(config);
                self.finish_update(Ok(route), is_same)
            }
            DependencyOutcome::Failed(status) => {
                self.config = None;
                // A control plane's codes are not for calls (A54).
                let status = match &self.target {
                    Some(target) => Status::unavailable(format!("target {target}: {}", status.message())),
                    None => Status::unavailable(status.message()),
                };
                let is_same = matches!(&self.route, Some(Err(last)) if *last == status);
                self.finish_update(Err(status), is_same)
            }
        };
        XdsResolverOutput { wanted: resolution.wanted, hosts: resolution.hosts, update }
    }

    /// The same, when nothing but these endpoints changed since [`XdsResolver::resolve`] last looked at everything and led to
    /// nothing new: no other resource, and not which clusters policies ask for. Names are in their canonical spelling, as
    /// [`ChangedResources`](crate::ads::ChangedResources) has them.
    pub fn resolve_endpoints<'n>(
        &mut self,
        names: impl IntoIterator<Item = &'n Arc<str>>,
        view: &impl ResourceView,
    ) -> EndpointsOnlyUpdate {
        if self.cluster_changes != self.active.changes() {
            return EndpointsOnlyUpdate::NeedsFullUpdate;
        }
        let (Some(last), Some(Ok(route)), Some(lb_config)) = (&self.config, &self.route, &self.lb_config)
        else {
            return EndpointsOnlyUpdate::NeedsFullUpdate;
        };
        let Some(config) = self.dependency_manager.resolve_endpoints(names, view) else {
            return EndpointsOnlyUpdate::NeedsFullUpdate;
        };
        if Arc::ptr_eq(last, &config) {
            return EndpointsOnlyUpdate::Applied(None);
        }
        let (route, lb_config) = (route.clone(), lb_config.clone());
        self.clusters = config.clusters.clone();
        self.config = Some(config);
        EndpointsOnlyUpdate::Applied(Some(XdsResolverUpdate {
            update: self.build_update(lb_config),
            route: Ok(route),
        }))
    }

    /// The config in use; `None` while there is none, or its listener or its routes are gone.
    pub fn config(&self) -> Option<&Arc<XdsConfig>> {
        self.config.as_ref()
    }

    /// A selector by these routes; the one in use if they did not change.
    fn config_selector(&self, config: &XdsConfig) -> Arc<ConfigSelector> {
        if let (Some(Ok(selector)), Some(last)) = (&self.route, &self.config)
            && Arc::ptr_eq(&last.listener, &config.listener)
            && Arc::ptr_eq(&last.virtual_host, &config.virtual_host)
        {
            return selector.clone();
        }
        let host = config.virtual_host.clone();
        Arc::new(ConfigSelector::new(host, &config.listener, &self.active, self.channel_id))
    }

    /// The step to this route, unless nothing changed: neither the route nor which clusters are active.
    fn finish_update(
        &mut self,
        route: Result<Arc<ConfigSelector>, Status>,
        is_same: bool,
    ) -> Option<XdsResolverUpdate> {
        // What it replaces must go first: a selector keeps its clusters active.
        self.route = Some(route.clone());
        let before = self.lb_config.take();
        let lb_config = lb_config(&self.active.names(), before.as_ref());
        let same_clusters = before.is_some_and(|before| before.is_same(&lb_config));
        self.lb_config = Some(lb_config.clone());
        if is_same && same_clusters {
            return None;
        }
        Some(XdsResolverUpdate { update: self.build_update(lb_config), route })
    }

    fn build_update(&self, lb_config: LbConfig) -> LbUpdate {
        // A88: what is wrong although all can be used, else whom to ask about.
        let ambient = self.config.as_ref().and_then(|config| config.note.clone());
        LbUpdate::new(lb_config, Endpoints::none())
            .with_clusters(self.clusters.clone())
            .with_note(ambient.unwrap_or_else(|| self.node.clone()))
    }
}
