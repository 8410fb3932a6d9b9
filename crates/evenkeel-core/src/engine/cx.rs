//! Context of a policy run: its inputs besides config and endpoints, and the resources that it can request.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::config::cluster::{Cluster, EndpointSet, EndpointSource};
use crate::engine::core::LbEffect;
use crate::engine::dependencies::DiscoveryDependency;
use crate::engine::revision::{CompactRevision, Revision};
use crate::engine::tree::{NodeId, PolicyTree};
use crate::load::LoadStore;
use crate::load::call_counters::CallCounters;
use crate::load::measurement::{LbLabels, Measurement};
use crate::{Address, ClusterTransport, Instant, Rng, Status, Subchannel, SubchannelId, TransportParams};

/// Context of one run of a policy.
///
/// A policy holds a subchannel, a load watch, a child or a timer until its next run. The core releases resources that this run
/// does not request again. A repeated request within a run has no effect.
#[derive(Debug)]
pub struct Cx<'a> {
    pub(crate) tree: &'a mut PolicyTree,
    pub(crate) node: Option<NodeId>,
    pub(crate) scope: PolicyScope,
    /// True if the policy may reuse the memos of its children without passing them their inputs again: it has the same inputs
    /// as in its previous run.
    pub(crate) children_reusable: bool,
}

impl Cx<'_> {
    /// Returns the time of this pass. It is monotonic.
    pub fn now(&self) -> Instant {
        self.tree.now
    }

    /// Returns the subchannel for an address, created if there is none, and holds it until this policy's next run. Clusters with
    /// [transport parameters](TransportParams) of their own have separate subchannels.
    pub fn subchannel(&mut self, address: &Address) -> &Subchannel {
        let transport = self.tree.transport_in(&self.scope, address).cloned();
        let id = self.tree.find_or_create_subchannel(address, transport.as_ref());
        self.keep(id).expect("it was found or created just now")
    }

    /// Returns the subchannel with this id if it exists, and holds it until this policy's next run. It is faster than a lookup
    /// by address. Returns `None` if the subchannel has other [transport parameters](TransportParams) than this scope.
    pub fn keep(&mut self, id: SubchannelId) -> Option<&Subchannel> {
        if !self.peek(id).is_some_and(|subchannel| self.has_same_transport(subchannel)) {
            return None;
        }
        if let Some(node) = self.node {
            self.tree.hold(node, id);
        }
        self.tree.subchannels.get(id)
    }

    /// Returns true if `last` is the previous run of this policy, in the same scope: memos of that run may be reused.
    pub(crate) fn follows(&self, last: Option<&PolicyRun>) -> bool {
        let previous = self.node.and_then(|node| self.tree.runs_of(node)).map(|(_, previous)| previous);
        // Ejections and transport parameters are part of the scope, and both change the state of a connection.
        last.is_some_and(|last| Some(last.run_at) == previous && last.scope == self.scope)
    }

    /// Returns the current run, if this context belongs to one.
    pub(crate) fn run(&self) -> Option<PolicyRun> {
        let (run_at, _) = self.tree.runs_of(self.node?)?;
        Some(PolicyRun { run_at, scope: self.scope.clone() })
    }

    /// Holds a subchannel that this policy held in its [previous run](Cx::follows), unless it changed after `verified_at`.
    /// Returns true if so; the memo of its connection is then current.
    pub(crate) fn keep_unchanged(&mut self, id: SubchannelId, verified_at: CompactRevision) -> bool {
        self.node.is_some_and(|node| self.tree.hold_if_unchanged(node, id, verified_at))
    }

    /// Requests all children of the previous run, and returns the [indexes](crate::ChildPolicy::set_index) of those that must
    /// be reconciled. Returns `None` if the parent must reconcile each child.
    pub(crate) fn request_all_children(&mut self) -> Option<Vec<usize>> {
        let node = self.node.filter(|_| self.children_reusable)?;
        Some(self.tree.request_all_children(node))
    }

    /// Returns the revision of the last change.
    pub(crate) fn revision(&self) -> Revision {
        self.tree.revision()
    }

    /// Returns true if no address has another subchannel in this scope than at `verified_at`.
    pub(crate) fn has_same_subchannels(&self, verified_at: Revision) -> bool {
        // The subchannel of an address also depends on the scope if clusters have transport parameters of their own.
        !self.tree.per_cluster_transport && self.tree.has_same_subchannels(verified_at)
    }

    /// Returns the subchannel for an address, if a policy holds one. Does not hold it.
    pub fn find(&self, address: &Address) -> Option<&Subchannel> {
        let transport = self.tree.transport_in(&self.scope, address);
        self.tree.subchannels.get(self.tree.subchannels.find(address, transport)?)
    }

    /// Returns true if clusters with different transport parameters do not share subchannels.
    pub(crate) fn has_per_cluster_transport(&self) -> bool {
        self.tree.per_cluster_transport
    }

    /// Warns that the transport parameters of a cluster are ignored, if the driver requested such warnings.
    pub(crate) fn warn_of_ignored_transport(&mut self, cluster: &str) {
        let text = self.tree.ignored_transport_warning.filter(|_| !self.tree.per_cluster_transport);
        if let Some(text) = text {
            self.warn(format!("cluster {cluster:?}: {text}"));
        }
    }

    /// Returns true if the subchannel has the transport parameters of this scope.
    pub(crate) fn has_same_transport(&self, subchannel: &Subchannel) -> bool {
        subchannel.transport() == self.tree.transport_in(&self.scope, subchannel.address())
    }

    /// Returns the subchannel with this id, if it exists. Does not hold it.
    pub fn peek(&self, id: SubchannelId) -> Option<&Subchannel> {
        self.tree.subchannels.get(id)
    }

    /// Starts a connection attempt if the subchannel is idle.
    pub fn connect(&mut self, id: SubchannelId) {
        self.tree.connect(id, self.node);
    }

    /// Requests out-of-band load reports from a subchannel, at least once per interval. They arrive as [`Subchannel::load`], and
    /// each one runs this policy again.
    pub fn watch_load(&mut self, id: SubchannelId, every: Duration) {
        if let Some(node) = self.node {
            self.tree.watch(node, id, every);
        }
    }

    /// Requests a run at this time at the latest.
    pub fn wake_at(&mut self, at: Instant) {
        if let Some(node) = self.node {
            self.tree.wake_at(node, at);
        }
    }

    /// Requests re-resolution from the resolver.
    pub fn reresolve(&mut self) {
        // A flag: one request to the resolver serves all policies of a pass.
        self.tree.reresolve |= !self.scope.ignore_reresolution;
    }

    /// Returns true if idle policies should start to connect in this pass: the application asked the channel to connect, or an
    /// ancestor does not allow its descendants to be idle.
    pub fn exit_idle(&self) -> bool {
        match self.scope.idle_mode {
            IdleMode::UntilRequested => self.tree.exit_idle,
            IdleMode::Never => true,
            IdleMode::Deactivated => false,
        }
    }

    /// Returns the delay between parallel connection attempts (Happy Eyeballs, A61).
    pub fn attempt_delay(&self) -> Duration {
        self.tree.attempt_delay
    }

    /// Returns the random number generator of the core.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.tree.rng
    }

    /// Returns the counters of calls in flight, which cores share.
    pub fn counters(&self) -> &CallCounters {
        &self.tree.counters
    }

    /// Returns a discovered cluster, or the error that makes it unusable; `None` if the update does not contain it. The policy
    /// depends on it: a change runs the policy again.
    pub fn cluster(&mut self, name: &Arc<str>) -> Option<Result<Arc<Cluster>, Status>> {
        // An absent cluster is a dependency too, so that the policy runs when it appears.
        let found = self.tree.clusters.as_ref().and_then(|all| all.cluster(name)).cloned();
        self.add_dependency(DiscoveryDependency::Cluster(name.clone(), found.clone()));
        found
    }

    /// Returns the endpoints of `source`; `None` if they are not known yet. The policy depends on them: a change runs the policy
    /// again.
    pub fn endpoint_set(&mut self, source: &EndpointSource) -> Option<Arc<EndpointSet>> {
        let found = self.tree.clusters.as_ref().and_then(|all| all.endpoint_set(source)).cloned();
        self.add_dependency(DiscoveryDependency::Endpoints(source.clone(), found.clone()));
        found
    }

    fn add_dependency(&mut self, dependency: DiscoveryDependency) {
        if let Some(node) = self.node.and_then(|id| self.tree.node_mut(id)) {
            node.dependencies.push(dependency);
        }
    }

    /// Subscribes to a cluster that no route refers to (A74), until this policy's next run.
    pub fn subscribe_cluster(&mut self, name: &Arc<str>) {
        if let Some(node) = self.node.and_then(|id| self.tree.node_mut(id)) {
            node.subscriptions.push(name.clone());
        }
    }

    /// Returns the store of load statistics, which cores share.
    pub fn load_store(&self) -> &LoadStore {
        &self.tree.load_store
    }

    /// Emits a measurement. `measurement` is called only if measurements are enabled.
    pub fn measure(&mut self, measurement: impl FnOnce(&PolicyScope) -> Measurement) {
        if self.tree.measure {
            self.tree.effects.push(LbEffect::Measure(Box::new(measurement(&self.scope))));
        }
    }

    /// Releases values that the driver drops later, off the request path.
    pub(crate) fn discard<T: Send + 'static>(&mut self, gone: Vec<T>) {
        self.tree.released.add(gone);
    }

    /// Returns the inputs from ancestor policies.
    pub fn scope(&self) -> &PolicyScope {
        &self.scope
    }

    /// Emits a warning for the operator, once while consecutive runs repeat it. The tree's description shows it.
    pub fn warn(&mut self, text: impl Into<String>) {
        if let Some(node) = self.node.and_then(|id| self.tree.node_mut(id)) {
            node.warnings.push(text.into());
        }
    }

    /// Returns an `UNAVAILABLE` status whose message ends with the resolution note (A88).
    pub fn unavailable(&self, message: impl fmt::Display) -> Status {
        match &self.scope.note {
            Some(note) => Status::unavailable(format!("{message} ({note})")),
            None => Status::unavailable(message.to_string()),
        }
    }
}

/// Identifies a run of a policy.
#[derive(Debug)]
pub(crate) struct PolicyRun {
    run_at: Revision,
    scope: PolicyScope,
}

/// Inputs that a policy passes to its descendants besides config and endpoints.
#[derive(Clone, Debug, Default)]
pub struct PolicyScope {
    note: Option<Arc<str>>,
    locality: Option<Arc<str>>,
    backend_service: Option<Arc<str>>,
    transport: Option<Arc<ClusterTransport>>,
    ejected: Option<Arc<HashSet<Address>>>,
    ignore_reresolution: bool,
    idle_mode: IdleMode,
}

impl PolicyScope {
    /// Sets the resolution note, which error messages include (A88).
    #[must_use]
    pub fn with_note(self, note: Option<Arc<str>>) -> PolicyScope {
        PolicyScope { note, ..self }
    }

    /// Prepends a resolution note to the current one, unless it contains that one.
    #[must_use]
    pub(crate) fn and_note(self, note: &Arc<str>) -> PolicyScope {
        let note = match &self.note {
            Some(outer) if !note.contains(&**outer) => format!("{note}; {outer}").into(),
            _ => note.clone(),
        };
        self.with_note(Some(note))
    }

    /// Sets the locality of the descendants, for labels (A78).
    #[must_use]
    pub fn with_locality(self, name: Arc<str>) -> PolicyScope {
        PolicyScope { locality: Some(name), ..self }
    }

    /// Sets the cluster of the descendants, for labels (A89).
    #[must_use]
    pub(crate) fn with_backend_service(self, name: Arc<str>) -> PolicyScope {
        PolicyScope { backend_service: Some(name), ..self }
    }

    /// Sets the transport parameters of the descendants. They are ignored unless
    /// [enabled](crate::CoreBuilder::per_cluster_transport).
    #[must_use]
    pub(crate) fn with_transport(self, transport: Arc<ClusterTransport>) -> PolicyScope {
        PolicyScope { transport: Some(transport), ..self }
    }

    /// Inherits the transport parameters of the outer scope, unless it has its own. A policy that builds a new scope therefore
    /// cannot drop them by mistake.
    pub(crate) fn within(self, outer: &PolicyScope) -> PolicyScope {
        let transport = self.transport.or_else(|| outer.transport.clone());
        PolicyScope { transport, ..self }
    }

    /// Sets the ejected addresses (A50). Descendants see their endpoints as TRANSIENT_FAILURE and keep the connections. Replaces
    /// the set of ancestors.
    #[must_use]
    pub fn with_ejected(self, addresses: Arc<HashSet<Address>>) -> PolicyScope {
        PolicyScope { ejected: Some(addresses), ..self }
    }

    /// Ignores re-resolution requests of descendants (A37).
    #[must_use]
    pub(crate) fn without_reresolution(self) -> PolicyScope {
        PolicyScope { ignore_reresolution: true, ..self }
    }

    /// Prevents descendants from being idle: [`Cx::exit_idle`] returns true in each of their runs.
    #[must_use]
    pub fn without_idle(self) -> PolicyScope {
        PolicyScope { idle_mode: IdleMode::Never, ..self }
    }

    /// Marks the descendants as not in use: they ignore the application's requests to connect.
    #[must_use]
    pub fn deactivated(self) -> PolicyScope {
        PolicyScope { idle_mode: IdleMode::Deactivated, ..self }
    }

    /// Returns the locality label.
    pub fn locality(&self) -> Option<&Arc<str>> {
        self.locality.as_ref()
    }

    /// Returns the cluster label.
    pub fn backend_service(&self) -> Option<&Arc<str>> {
        self.backend_service.as_ref()
    }

    /// Returns the metric labels: locality and cluster.
    pub fn labels(&self) -> LbLabels {
        LbLabels { backend_service: self.backend_service.clone(), locality: self.locality.clone() }
    }

    /// Returns the transport parameters for an address, if there are any.
    pub(crate) fn transport(&self, address: &Address) -> Option<&TransportParams> {
        self.transport.as_ref().map(|transport| transport.of(address))
    }

    /// Returns true if the endpoint at this address is ejected.
    pub fn is_ejected(&self, address: &Address) -> bool {
        self.ejected.as_ref().is_some_and(|ejected| ejected.contains(address))
    }
}

/// Condition for an idle policy to connect without a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum IdleMode {
    /// The application asked the channel to connect.
    #[default]
    UntilRequested,
    /// Always: the policy is never idle.
    Never,
    /// Never, since the policy is not in use.
    Deactivated,
}

impl PartialEq for PolicyScope {
    /// Compares ejections and transport parameters by identity, since they are replaced and never modified. Text is usually
    /// the same allocation too.
    fn eq(&self, other: &PolicyScope) -> bool {
        let is_same = |a: &Option<Arc<str>>, b: &Option<Arc<str>>| match (a, b) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
            (a, b) => a.is_none() && b.is_none(),
        };
        self.ejected.as_ref().map(Arc::as_ptr) == other.ejected.as_ref().map(Arc::as_ptr)
            && self.transport.as_ref().map(Arc::as_ptr) == other.transport.as_ref().map(Arc::as_ptr)
            && is_same(&self.note, &other.note)
            && is_same(&self.locality, &other.locality)
            && is_same(&self.backend_service, &other.backend_service)
            && self.ignore_reresolution == other.ignore_reresolution
            && self.idle_mode == other.idle_mode
    }
}
