//! What a policy can see and ask for during a pass.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::{Cluster, EndpointSet, Source};
use crate::core::Effect;
use crate::counters::CallCounters;
use crate::load::LoadStore;
use crate::measure::{Labels, Measurement};
use crate::tree::{Looked, NodeId, Tree};
use crate::{Address, ClusterMeans, Instant, Means, Rng, Status, Subchannel, SubchannelId};

/// The world as a policy sees it in one pass, and what it may ask for.
///
/// Asking keeps: a subchannel, a load watch, a child or a timer that a policy does not ask for again in its next
/// run is let go. Asking twice is harmless.
#[derive(Debug)]
pub struct Cx<'a> {
    pub(crate) tree: &'a mut Tree,
    pub(crate) node: Option<NodeId>,
    pub(crate) scope: Scope,
    /// Whether this run was given the same config, endpoints and scope as the one before.
    pub(crate) is_given_same: bool,
}

impl Cx<'_> {
    /// The time of this pass; it never goes backwards.
    pub fn now(&self) -> Instant {
        self.tree.now
    }

    /// The subchannel for an address, made if there is none, and kept until this policy's next run. Where the cluster has
    /// [means](Means) of its own for connections, it is another one than elsewhere.
    pub fn subchannel(&mut self, address: &Address) -> &Subchannel {
        let means = self.tree.means_in(&self.scope, address).cloned();
        let id = self.tree.subchannels.find_or_create(address, means.as_ref());
        self.keep(id).expect("it was found or made just now")
    }

    /// The subchannel with this id if it still exists, kept until this policy's next run. Cheaper than by address. One whose
    /// connections are made by other [means](Means) than those that hold here is not kept.
    pub fn keep(&mut self, id: SubchannelId) -> Option<&Subchannel> {
        if !self.look(id).is_some_and(|subchannel| self.is_by_our_means(subchannel)) {
            return None;
        }
        if let Some(node) = self.node {
            self.tree.hold(node, id);
        }
        self.tree.subchannels.get(id)
    }

    /// Keeps a subchannel that this policy kept in the run before, if nothing happened to it since there were so many
    /// [changes](Cx::changes); answers whether that is so. The cheapest way.
    pub(crate) fn keep_unchanged(&mut self, id: SubchannelId, since: u32) -> bool {
        !self.tree.thorough && self.node.is_some_and(|node| self.tree.hold_on(node, id, since))
    }

    /// Keeps all children of this policy, where all of them would be given the same as in the run before, and answers which of
    /// them have to run, by the places that their parent [gave](crate::Child::set_place) them in its last run without this.
    /// `None` if each has to be asked.
    pub(crate) fn keep_children(&mut self) -> Option<Vec<usize>> {
        let node = self.node.filter(|_| self.is_given_same && !self.tree.thorough)?;
        Some(self.tree.keep_children(node))
    }

    /// How many changes of subchannels there were so far.
    pub(crate) fn changes(&self) -> u32 {
        self.tree.subchannels.changes()
    }

    /// The number of this policy's run that is under way, and of the one before.
    pub(crate) fn runs(&self) -> Option<(u64, u64)> {
        self.tree.runs_of(self.node?)
    }

    /// The subchannel for an address if somebody keeps one; looking does not keep it.
    pub fn find(&self, address: &Address) -> Option<&Subchannel> {
        let means = self.tree.means_in(&self.scope, address);
        self.tree.subchannels.get(self.tree.subchannels.find(address, means)?)
    }

    /// Whether means tell subchannels apart.
    pub(crate) fn heeds_means(&self) -> bool {
        self.tree.heed_means
    }

    /// Whether the connections of a subchannel are made by the means that hold here.
    pub(crate) fn is_by_our_means(&self, subchannel: &Subchannel) -> bool {
        subchannel.means() == self.tree.means_in(&self.scope, subchannel.address())
    }

    /// The subchannel with this id if it still exists; looking does not keep it.
    pub fn look(&self, id: SubchannelId) -> Option<&Subchannel> {
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
        match self.scope.idling {
            Idling::UntilAsked => self.tree.exit_idle,
            Idling::Never => true,
            Idling::Asleep => false,
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
        let found = self.tree.clusters.as_ref().and_then(|all| all.clusters.get(name)).cloned();
        self.remember(Looked::AtCluster(name.clone(), found.clone()));
        found
    }

    /// The endpoints that come from `source`, if they are known yet. An update with others runs this policy again.
    pub fn endpoint_set(&mut self, source: &Source) -> Option<Arc<EndpointSet>> {
        let found = self.tree.clusters.as_ref().and_then(|all| all.endpoints.get(source)).cloned();
        self.remember(Looked::AtEndpoints(source.clone(), found.clone()));
        found
    }

    fn remember(&mut self, looked: Looked) {
        if let Some(node) = self.node.and_then(|id| self.tree.node_mut(id)) {
            node.looks.push(looked);
        }
    }

    /// Wants a cluster to be discovered although no route names it (A74), until this policy's next run.
    pub fn want_cluster(&mut self, name: &Arc<str>) {
        if let Some(node) = self.node.and_then(|id| self.tree.node_mut(id)) {
            node.wanted.push(name.clone());
        }
    }

    /// The counts for load reports that this core shares with others.
    pub fn load_store(&self) -> &LoadStore {
        &self.tree.load_store
    }

    /// Gives a measurement to the driver. It is not made if nobody measures.
    pub fn measure(&mut self, measurement: impl FnOnce(&Scope) -> Measurement) {
        if self.tree.measure {
            self.tree.effects.push(Effect::Measure(Box::new(measurement(&self.scope))));
        }
    }

    /// Has these dropped when there is time for it.
    pub(crate) fn discard<T: Send + 'static>(&mut self, gone: Vec<T>) {
        self.tree.rubbish.add(gone);
    }

    /// How many subchannels were ever made: while it stands still, no address has another subchannel than before.
    pub(crate) fn subchannels_made(&self) -> u64 {
        self.tree.subchannels.made()
    }

    /// What the policies above say about the place of this one.
    pub fn scope(&self) -> &Scope {
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

/// What a policy passes down to the policies below it besides config and endpoints.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    note: Option<Arc<str>>,
    locality: Option<Arc<str>>,
    backend_service: Option<Arc<str>>,
    means: Option<Arc<ClusterMeans>>,
    ejected: Option<Arc<HashSet<Address>>>,
    ignore_reresolution: bool,
    idling: Idling,
}

impl Scope {
    /// Adds the resolution note: what the resolver wants said with every failure (A88).
    #[must_use]
    pub fn with_note(self, note: Option<Arc<str>>) -> Scope {
        Scope { note, ..self }
    }

    /// Puts a note in front of the one that is there, unless it says that too.
    #[must_use]
    pub fn and_note(self, note: &Arc<str>) -> Scope {
        let note = match &self.note {
            Some(outer) if !note.contains(&**outer) => format!("{note}; {outer}").into(),
            _ => note.clone(),
        };
        self.with_note(Some(note))
    }

    /// Names the locality below, for labels (A78).
    #[must_use]
    pub fn with_locality(self, name: Arc<str>) -> Scope {
        Scope { locality: Some(name), ..self }
    }

    /// Names the cluster below, for labels (A89).
    #[must_use]
    pub fn with_backend_service(self, name: Arc<str>) -> Scope {
        Scope { backend_service: Some(name), ..self }
    }

    /// Has the connections below made by these means. A core that was not built to
    /// [heed](crate::Builder::heed_means) means passes over them.
    #[must_use]
    pub fn with_means(self, means: Arc<ClusterMeans>) -> Scope {
        Scope { means: Some(means), ..self }
    }

    /// With the means of the scope around it, unless it has its own: no policy leaves them out by mistake.
    pub(crate) fn within(self, outer: &Scope) -> Scope {
        let means = self.means.or_else(|| outer.means.clone());
        Scope { means, ..self }
    }

    /// Shows the endpoints at these addresses as failed to the policies below (A50). Their connections are kept.
    /// Replaces what policies above said.
    #[must_use]
    pub fn with_ejected(self, addresses: Arc<HashSet<Address>>) -> Scope {
        Scope { ejected: Some(addresses), ..self }
    }

    /// Swallows requests for re-resolution from below (A37).
    #[must_use]
    pub fn without_reresolution(self) -> Scope {
        Scope { ignore_reresolution: true, ..self }
    }

    /// Keeps the policies below from being idle: [`Cx::exit_idle`] holds in each of their runs.
    #[must_use]
    pub fn without_idling(self) -> Scope {
        Scope { idling: Idling::Never, ..self }
    }

    /// Leaves the policies below alone when the application asks the channel to connect: they are not in use.
    #[must_use]
    pub fn asleep(self) -> Scope {
        Scope { idling: Idling::Asleep, ..self }
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
    pub fn labels(&self) -> Labels {
        Labels { backend_service: self.backend_service.clone(), locality: self.locality.clone() }
    }

    /// By what means connections to an address are made, if any are said.
    pub(crate) fn means(&self, address: &Address) -> Option<&Means> {
        self.means.as_ref().map(|means| means.of(address))
    }

    /// Whether the endpoint at this address is ejected.
    pub fn is_ejected(&self, address: &Address) -> bool {
        self.ejected.as_ref().is_some_and(|ejected| ejected.contains(address))
    }
}

/// When a policy that is idle starts connecting without a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Idling {
    /// When the application asks for it.
    #[default]
    UntilAsked,
    /// At once, always.
    Never,
    /// Not even when asked.
    Asleep,
}

impl PartialEq for Scope {
    /// Ejections and means are compared by identity: they are replaced, never changed. Text mostly is the same allocation, too.
    fn eq(&self, other: &Scope) -> bool {
        let is_same = |a: &Option<Arc<str>>, b: &Option<Arc<str>>| match (a, b) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
            (a, b) => a.is_none() && b.is_none(),
        };
        self.ejected.as_ref().map(Arc::as_ptr) == other.ejected.as_ref().map(Arc::as_ptr)
            && self.means.as_ref().map(Arc::as_ptr) == other.means.as_ref().map(Arc::as_ptr)
            && is_same(&self.note, &other.note)
            && is_same(&self.locality, &other.locality)
            && is_same(&self.backend_service, &other.backend_service)
            && self.ignore_reresolution == other.ignore_reresolution
            && self.idling == other.idling
    }
}
