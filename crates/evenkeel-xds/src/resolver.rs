//! xDS resolver of one channel: turns the resource cache into an LB update and a config selector.
//!
//! The driver calls [`XdsResolver::update`] after each change that concerns the channel: a resource, a DNS result, a
//! cluster that no call uses any more, or a cluster that a policy subscribes to. The result lists the resources and DNS names to
//! watch. If the config of the channel changed, it also has a [`XdsResolverUpdate`]. The driver passes its LB update to the core
//! and runs a pass. It then publishes the selector together with the picker of that pass (A31).
//!
//! ```
//! use std::sync::Arc;
//!
//! use evenkeel_xds::ads::{ChangedResources, ResourceState};
//! use evenkeel_xds::resolver::XdsResolver;
//! use evenkeel_xds::resource::ResourceType;
//!
//! let wake = Arc::new(|| { /* wake the driver */ });
//! let mut resolver = XdsResolver::new("orders", "orders", "node-7", 42, wake);
//! let empty_cache = |_: ResourceType, _: &str| ResourceState::default();
//! let output = resolver.update(&ChangedResources::Anything, [], &empty_cache);
//! let watches = output.watches.expect("a full update returns all names");
//! assert!(watches.resources.contains(&(ResourceType::Listener, "orders".to_owned())));
//! assert!(output.update.is_none(), "calls are queued");
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_core::cluster::ClusterMap;
use evenkeel_core::{Address, Endpoints, LbConfig, LbUpdate, Status};

use crate::ads::ChangedResources;
use crate::dependency_manager::{
    DependencyManager, DependencyOutcome, DependencyUpdate, MissingDependency, ResourceView, WatchedNames,
    XdsConfig,
};
use crate::routing::{ActiveClusters, ConfigSelector, lb_config};
use crate::text::quoted_long;

/// xDS resolver of one channel.
#[derive(Debug)]
pub struct XdsResolver {
    dependency_manager: DependencyManager,
    active: ActiveClusters,
    /// Channel target, for error messages.
    target: Option<String>,
    /// Node id, for error messages.
    node: Arc<str>,
    channel_id: u64,
    /// Dependency that the first config waits for.
    missing: Option<MissingDependency>,
    /// Config in use; `None` while the listener or the routes are missing or invalid.
    config: Option<Arc<XdsConfig>>,
    /// Selector in use, or the status that calls fail with.
    route: Option<Result<Arc<ConfigSelector>, Status>>,
    /// LB config, with the value of `ActiveClusters::changes` that it was built for.
    lb_config: Option<(u64, LbConfig)>,
    clusters: Arc<ClusterMap>,
    /// Clusters of the last full update that calls or policies refer to.
    held: Vec<Arc<str>>,
    /// Clusters that policies subscribed to, as of the last full update.
    subscribed: BTreeSet<Arc<str>>,
    /// Value of `ActiveClusters::changes` before the last full update.
    cluster_changes: u64,
}

/// Result of an update.
#[derive(Debug)]
pub struct XdsResolverOutput {
    /// Names to watch; `None` if they are those of the previous update.
    pub watches: Option<WatchedNames>,
    /// Changes for the channel; `None` if there are none.
    pub update: Option<XdsResolverUpdate>,
}

/// Update of a channel. The core runs a pass with the LB update before new calls use the selector.
#[derive(Clone, Debug)]
pub struct XdsResolverUpdate {
    /// Update for the core. While the channel fails, it retains the clusters of calls in flight.
    pub update: LbUpdate,
    /// Selector for new calls, or the status that they fail with.
    pub route: Result<Arc<ConfigSelector>, Status>,
}

impl XdsResolver {
    /// Creates the resolver of a channel that uses this listener for calls to this authority. Error messages contain the node
    /// id `node`. Hash policies use `channel_id`, a random number (A42). `on_idle` is called from any thread when the last call
    /// of a cluster ends. It should only schedule a call of [`XdsResolver::update`].
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
            missing: None,
            config: None,
            route: None,
            lb_config: None,
            clusters: Arc::default(),
            held: Vec::new(),
            subscribed: BTreeSet::new(),
            cluster_changes: 0,
        }
    }

    /// Adds the channel target to the error messages that concern all calls.
    #[must_use]
    pub fn for_target(mut self, target: &str) -> XdsResolver {
        self.target = Some(quoted_long(target));
        self
    }

    /// Handles the result of a DNS lookup of `host`, which includes the port.
    pub fn handle_resolved(&mut self, host: &str, addresses: Result<Vec<Address>, Status>) {
        self.dependency_manager.handle_resolved(host, addresses);
    }

    /// Brings the channel up to date with the resource cache.
    ///
    /// `changed` names the resources that changed since the previous update; the first update and those after a DNS result pass
    /// [`ChangedResources::Anything`]. `subscribed` are the clusters that policies subscribe to
    /// ([`Core::subscribed_clusters`](evenkeel_core::Core::subscribed_clusters)). If the result has other names to watch than the
    /// one before, some of them may be cached already. The driver then updates again, with [`ChangedResources::Anything`].
    pub fn update<'d>(
        &mut self,
        changed: &ChangedResources,
        subscribed: impl IntoIterator<Item = &'d Arc<str>>,
        view: &impl ResourceView,
    ) -> XdsResolverOutput {
        let subscribed: BTreeSet<Arc<str>> = subscribed.into_iter().cloned().collect();
        // Read before the names: the next update sees a cluster that changes between the two.
        let cluster_changes = self.active.changes();
        let is_same_held = cluster_changes == self.cluster_changes && subscribed == self.subscribed;
        let changed = match changed {
            // The shortcut is valid only for the clusters of the last walk.
            ChangedResources::Endpoints(_) if is_same_held && self.config.is_some() => changed,
            _ => {
                self.cluster_changes = cluster_changes;
                self.held = self.active.names();
                self.held.extend(subscribed.iter().cloned());
                self.subscribed = subscribed;
                &ChangedResources::Anything
            }
        };
        let DependencyUpdate { watches, outcome } = self.dependency_manager.update(changed, &self.held, view);
        self.missing = None;
        let update = match outcome {
            DependencyOutcome::Waiting(missing) => {
                self.missing = Some(missing);
                None
            }
            DependencyOutcome::Config(config) => {
                let is_same = self.config.as_ref().is_some_and(|last| Arc::ptr_eq(last, &config));
                let route = self.config_selector(&config);
                self.clusters = config.clusters.clone();
                self.config = Some(config);
                self.finish_update(Ok(route), is_same)
            }
            DependencyOutcome::Failed(status) => {
                // `clusters` stays, since calls in flight still use it.
                self.config = None;
                // Calls do not fail with the status codes of the control plane (A54).
                let status = match &self.target {
                    Some(target) => Status::unavailable(format!("target {target}: {}", status.message())),
                    None => Status::unavailable(status.message()),
                };
                let is_same = matches!(&self.route, Some(Err(last)) if *last == status);
                self.finish_update(Err(status), is_same)
            }
        };
        XdsResolverOutput { watches, update }
    }

    /// Returns the dependency that calls wait for; `None` if they are routed or fail.
    pub fn missing(&self) -> Option<&MissingDependency> {
        self.missing.as_ref()
    }

    /// Returns the config in use; `None` while the listener or the routes are missing or invalid.
    pub fn config(&self) -> Option<&Arc<XdsConfig>> {
        self.config.as_ref()
    }

    /// Returns the selector for these routes, or the one in use if they did not change.
    fn config_selector(&self, config: &XdsConfig) -> Arc<ConfigSelector> {
        if let (Some(Ok(selector)), Some(last)) = (&self.route, &self.config)
            && Arc::ptr_eq(&last.listener, &config.listener)
            // Other virtual hosts of the route configuration do not concern this channel.
            && Arc::ptr_eq(&last.virtual_host, &config.virtual_host)
        {
            return selector.clone();
        }
        let host = config.virtual_host.clone();
        Arc::new(ConfigSelector::new(host, &config.listener, &self.active, self.channel_id))
    }

    /// Returns the update to this route; `None` if neither the config nor the set of active clusters changed.
    fn finish_update(
        &mut self,
        route: Result<Arc<ConfigSelector>, Status>,
        is_same: bool,
    ) -> Option<XdsResolverUpdate> {
        // Drop the previous selector first, since it keeps its clusters active.
        self.route = Some(route.clone());
        // Read before the names, as in `update`.
        let cluster_changes = self.active.changes();
        let (lb_config, same_clusters) = match self.lb_config.take() {
            Some((changes, before)) if changes == cluster_changes => (before, true),
            before => {
                let before = before.map(|(_, before)| before);
                let lb_config = lb_config(&self.active.names(), before.as_ref());
                let same_clusters = before.is_some_and(|before| before.is_same(&lb_config));
                (lb_config, same_clusters)
            }
        };
        self.lb_config = Some((cluster_changes, lb_config.clone()));
        if is_same && same_clusters {
            return None;
        }
        Some(XdsResolverUpdate { update: self.build_update(lb_config), route })
    }

    fn build_update(&self, lb_config: LbConfig) -> LbUpdate {
        // A88: the ambient error, or else the node id.
        let ambient = self.config.as_ref().and_then(|config| config.note.clone());
        LbUpdate::new(lb_config, Endpoints::none())
            .with_clusters(self.clusters.clone())
            .with_note(ambient.unwrap_or_else(|| self.node.clone()))
    }
}
