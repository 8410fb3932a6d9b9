//! What a policy can see and ask for during a pass.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::config::cluster::{Cluster, EndpointSet, EndpointSource};
use crate::engine::core::LbEffect;
use crate::engine::dependencies::Dependency;
use crate::engine::revision::{CompactRevision, Revision};
use crate::engine::tree::{NodeId, PolicyTree};
use crate::load::LoadStore;
use crate::load::call_counters::CallCounters;
use crate::load::measurement::{LbLabels, Measurement};
use crate::{Address, ClusterTransport, Instant, Rng, Status, Subchannel, SubchannelId, TransportParams};

/// The world as a policy sees it in one pass, and what it may ask for.
///
/// Asking keeps: a subchannel, a load watch, a child or a timer that a policy does not ask for again in its next
/// run is let go. Asking twice is harmless.
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
    /// The time of this pass; it never goes backwards.
    pub fn now(&self) -> Instant {
        self.tree.now
    }

    /// The subchannel for an address, made if there is none, and kept until this policy's next run. Where the cluster has
    /// [means](TransportParams) of its own for connections, it is another one than elsewhere.
    pub fn subchannel(&mut self, address: &Address) -> &Subchannel {
        let transport = self.tree.transport_in(&self.scope, address).cloned();
        let id = self.tree.find_or_create_subchannel(address, transport.as_ref());
        self.keep(id).expect("it was found or made just now")
    }

    /// The subchannel with this id if it still exists, kept until this policy's next run. Cheaper than by address. One whose
    /// connections are made by other [means](TransportParams) than those that hold here is not kept.
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

    /// The subchannel for an address if somebody keeps one; looking does not keep it.
    pub fn find(&self, address: &Address) -> Option<&Subchannel> {
        let transport = self.tree.transport_in(&self.scope, address);
        self.tree.subchannels.get(self.tree.subchannels.find(address, transport)?)
    }

    /// Whether means tell subchannels apart.
    pub(crate) fn has_per_cluster_transport(&self) -> bool {
        self.tree.per_cluster_transport
    }

    /// Whether the connections of a subchannel are made by the means that hold here.
    pub(crate) fn has_same_transport(&self, subchannel: &Subchannel) -> bool {
        subchannel.transport() == self.tree.transport_in(&self.scope, subchannel.address())
    }

    /// The subchannel with this id if it still exists; looking does not keep it.
    pub fn peek(&self, id: SubchannelId) -> Option<&Subchannel> {
        self.tree.subchannels.get(id)
    }

    /// Starts connecting a subchannel that is idle; otherwise does nothing.
    pub fn connect(&mut self, id: SubchannelId) {
        self.tree.connect(id, self.node);
    }

    /// Wants out-of-band load reports from a subchannel at least this often. They arrive as
    /// [`Subchannel::load`], and each one runs this policy again.
    pub fn watch_load(&mut self, id: SubchannelId, every: Duration) {
        if let Some(node) = self.node {
            self.tree.watch(node, id, every);
        }
    }

    /// Wants to run again at this time at the latest.
    pub fn wake_at(&mut self, at: Instant) {
        if let Some(node) = self.node {
            self.tree.wake_at(node, at);
        }
    }

    /// Asks the resolver for fresh addresses.
    pub fn reresolve(&mut self) {
        self.tree.reresolve |= !self.scope.ignore_reresolution;
    }

    /// Whether policies that are idle should start in this pass: the application asked the channel to connect, or a
    /// policy above does not let those below it idle.
    pub fn exit_idle(&self) -> bool {
        match self.scope.idle_mode {
            IdleMode::UntilRequested => self.tree.exit_idle,
            IdleMode::Never => true,
            IdleMode::Deactivated => false,
        }
    }

    /// How long to wait for one connection attempt before starting the next one beside it (Happy Eyeballs, A61).
    pub fn attempt_delay(&self) -> Duration {
        self.tree.attempt_delay
    }

    /// The random source.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.tree.rng
    }

    /// The counters of calls in flight that this core shares with others.
    pub fn counters(&self) -> &CallCounters {
        &self.tree.counters
    }

    /// What discovery found about a cluster, or why it cannot be used; `None` if the update says nothing of it. An
    /// update that says something else runs this policy again.
    pub fn cluster(&mut self, name: &Arc<str>) -> Option<Result<Arc<Cluster>, Status>> {
        let found = self.tree.clusters.as_ref().and_then(|all| all.cluster(name)).cloned();
        self.add_dependency(Dependency::Cluster(name.clone(), found.clone()));
        found
    }

    /// The endpoints that come from `source`, if they are known yet. An update with others runs this policy again.
    pub fn endpoint_set(&mut self, source: &EndpointSource) -> Option<Arc<EndpointSet>> {
        let found = self.tree.clusters.as_ref().and_then(|all| all.endpoint_set(source)).cloned();
        self.add_dependency(Dependency::Endpoints(source.clone(), found.clone()));
        found
    }

    fn add_dependency(&mut self, dependency: Dependency) {
        if let Some(node) = self.node.and_then(|id| self.tree.node_mut(id)) {
            node.dependencies.push(dependency);
        }
    }

    /// Wants a cluster to be discovered although no route names it (A74), until this policy's next run.
    pub fn subscribe_cluster(&mut self, name: &Arc<str>) {
        if let Some(node) = self.node.and_then(|id| self.tree.node_mut(id)) {
            node.subscriptions.push(name.clone());
        }
    }

    /// The counts for load reports that this core shares with others.
    pub fn load_store(&self) -> &LoadStore {
        &self.tree.load_store
    }

    /// Gives a measurement to the driver. It is not made if nobody measures.
    pub fn measure(&mut self, measurement: impl FnOnce(&PolicyScope) -> Measurement) {
        if self.tree.measure {
            self.tree.effects.push(LbEffect::Measure(Box::new(measurement(&self.scope))));
        }
    }

    /// Has these dropped when there is time for it.
    pub(crate) fn discard<T: Send + 'static>(&mut self, gone: Vec<T>) {
        self.tree.released.add(gone);
    }

    /// What the policies above say about the place of this one.
    pub fn scope(&self) -> &PolicyScope {
        &self.scope
    }

    /// Tells the operator something, once for as long as every run repeats it; shown in the tree's description.
    pub fn warn(&mut self, text: impl Into<String>) {
        if let Some(node) = self.node.and_then(|id| self.tree.node_mut(id)) {
            node.warnings.push(text.into());
        }
    }

    /// An `UNAVAILABLE` status whose message ends with the resolution note (A88).
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
    /// Adds the resolution note: what the resolver wants said with every failure (A88).
    #[must_use]
    pub fn with_note(self, note: Option<Arc<str>>) -> PolicyScope {
        PolicyScope { note, ..self }
    }

    /// Puts a note in front of the one that is there, unless it says that too.
    #[must_use]
    pub(crate) fn and_note(self, note: &Arc<str>) -> PolicyScope {
        let note = match &self.note {
            Some(outer) if !note.contains(&**outer) => format!("{note}; {outer}").into(),
            _ => note.clone(),
        };
        self.with_note(Some(note))
    }

    /// Names the locality below, for labels (A78).
    #[must_use]
    pub fn with_locality(self, name: Arc<str>) -> PolicyScope {
        PolicyScope { locality: Some(name), ..self }
    }

    /// Names the cluster below, for labels (A89).
    #[must_use]
    pub(crate) fn with_backend_service(self, name: Arc<str>) -> PolicyScope {
        PolicyScope { backend_service: Some(name), ..self }
    }

    /// Has the connections below made by these means. A core that was not built to
    /// [heed](crate::CoreBuilder::per_cluster_transport) means passes over them.
    #[must_use]
    pub(crate) fn with_transport(self, transport: Arc<ClusterTransport>) -> PolicyScope {
        PolicyScope { transport: Some(transport), ..self }
    }

    /// With the means of the scope around it, unless it has its own: no policy leaves them out by mistake.
    pub(crate) fn within(self, outer: &PolicyScope) -> PolicyScope {
        let transport = self.transport.or_else(|| outer.transport.clone());
        PolicyScope { transport, ..self }
    }

    /// Shows the endpoints at these addresses as failed to the policies below (A50). Their connections are kept.
    /// Replaces what policies above said.
    #[must_use]
    pub fn with_ejected(self, addresses: Arc<HashSet<Address>>) -> PolicyScope {
        PolicyScope { ejected: Some(addresses), ..self }
    }

    /// Swallows requests for re-resolution from below (A37).
    #[must_use]
    pub(crate) fn without_reresolution(self) -> PolicyScope {
        PolicyScope { ignore_reresolution: true, ..self }
    }

    /// Keeps the policies below from being idle: [`Cx::exit_idle`] holds in each of their runs.
    #[must_use]
    pub fn without_idle(self) -> PolicyScope {
        PolicyScope { idle_mode: IdleMode::Never, ..self }
    }

    /// Leaves the policies below alone when the application asks the channel to connect: they are not in use.
    #[must_use]
    pub fn deactivated(self) -> PolicyScope {
        PolicyScope { idle_mode: IdleMode::Deactivated, ..self }
    }

    /// The locality, as its label says it.
    pub fn locality(&self) -> Option<&Arc<str>> {
        self.locality.as_ref()
    }

    /// The cluster.
    pub fn backend_service(&self) -> Option<&Arc<str>> {
        self.backend_service.as_ref()
    }

    /// The locality and the cluster.
    pub fn labels(&self) -> LbLabels {
        LbLabels { backend_service: self.backend_service.clone(), locality: self.locality.clone() }
    }

    /// By what means connections to an address are made, if any are said.
    pub(crate) fn transport(&self, address: &Address) -> Option<&TransportParams> {
        self.transport.as_ref().map(|transport| transport.of(address))
    }

    /// Whether the endpoint at this address is ejected.
    pub fn is_ejected(&self, address: &Address) -> bool {
        self.ejected.as_ref().is_some_and(|ejected| ejected.contains(address))
    }
}

/// When a policy that is idle starts connecting without a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum IdleMode {
    /// When the application asks for it.
    #[default]
    UntilRequested,
    /// At once, always.
    Never,
    /// Not even when asked.
    Deactivated,
}

impl PartialEq for PolicyScope {
    /// Ejections and means are compared by identity: they are replaced, never changed. Text mostly is the same allocation, too.
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
