//! Nodes of the policy tree and the resources that each one holds.
//!
//! Every running policy is a node. A run requests the resources that the policy needs: subchannels, load watches,
//! children, clusters and a timer. The node holds them until its next run; resources that this run does not request
//! again are released at its end. [`revision`](crate::engine::revision) decides which nodes run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use crate::config::cluster::ClusterMap;
use crate::engine::core::LbEffect;
use crate::engine::cx::PolicyScope;
use crate::engine::dependencies::{DependencyIndex, DependencyKey, DiscoveryDependency};
use crate::engine::released::ReleasedValues;
use crate::engine::revision::{CompactRevision, NodeRevisions, PassAction, Revision, RevisionClock};
use crate::load::LoadStore;
use crate::load::call_counters::CallCounters;
use crate::subchannel::{Backoff, ConnectStart, Subchannel, SubchannelTable};
use crate::{Address, Instant, Rng, Status, SubchannelId, TransportParams};

/// Maximum number of subchannels closed at the end of one pass. The next passes close the others, so that an update that
/// replaces thousands of endpoints does not delay the new connections.
const MAX_CLOSES_PER_PASS: usize = 256;

/// Identifies a node. An id is never reused, so a stale one refers to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId {
    index: u32,
    generation: u32,
}

/// Node of the policy tree: its revisions and the resources that it holds.
#[derive(Debug, Default)]
pub(crate) struct PolicyTreeNode {
    parent: Option<NodeId>,
    revisions: NodeRevisions,
    /// Children that became outdated after the start of the latest run.
    outdated_children: Vec<NodeId>,
    /// Children that were outdated at the start of the latest run.
    due_children: Vec<NodeId>,
    /// Index of the node among the children of its parent, if the parent has set it.
    index: usize,
    /// Revision at which the latest run started.
    run_at: Revision,
    /// Revision at which the run before the latest one started.
    previous_run_at: Revision,
    /// Revision of the latest run that requested its children one by one, and of the one before it.
    children_requested_at: Revision,
    children_requested_before: Revision,
    /// Run of the parent that last requested this node.
    requested_at: Revision,
    wake: Option<Instant>,
    /// Expiry of the entry in the timer heap that implements `wake`.
    armed: Option<Instant>,
    pub(crate) scope: PolicyScope,
    held: Vec<SubchannelId>,
    watches: Vec<(SubchannelId, Duration)>,
    children: Vec<NodeId>,
    /// Children of the run before the current one; empty between runs.
    children_before: Vec<NodeId>,
    pub(crate) dependencies: Vec<DiscoveryDependency>,
    pub(crate) subscriptions: Vec<Arc<str>>,
    pub(crate) warnings: Vec<String>,
}

/// State that the policies of a core share.
#[expect(clippy::struct_excessive_bools, reason = "two are settings, two are requests within a pass")]
#[derive(Debug)]
pub(crate) struct PolicyTree {
    pub(crate) now: Instant,
    pub(crate) rng: Rng,
    pub(crate) backoff: Backoff,
    pub(crate) attempt_delay: Duration,
    pub(crate) counters: Arc<CallCounters>,
    pub(crate) load_store: Arc<LoadStore>,
    /// True if the driver collects measurements.
    pub(crate) measure: bool,
    /// True if clusters with different transport parameters do not share subchannels.
    pub(crate) per_cluster_transport: bool,
    /// Warning for clusters whose transport parameters are ignored.
    pub(crate) ignored_transport_warning: Option<&'static str>,
    pub(crate) subchannels: SubchannelTable,
    /// Discovered clusters and endpoint sets.
    pub(crate) clusters: Option<Arc<ClusterMap>>,
    pub(crate) effects: Vec<LbEffect>,
    pub(crate) released: ReleasedValues,
    /// True if a policy requested re-resolution in this pass.
    pub(crate) reresolve: bool,
    /// True if the application asked the channel to connect: idle policies start connecting.
    pub(crate) exit_idle: bool,
    clock: RevisionClock,
    nodes: Vec<NodeSlot>,
    free: Vec<u32>,
    timers: BinaryHeap<Reverse<(Instant, TimerTarget)>>,
    /// Subchannels that lost a holder and may have none left.
    unreferenced: Vec<SubchannelId>,
    /// Subchannels whose load watchers changed in this pass.
    rewatched: Vec<SubchannelId>,
    /// Clusters that nodes subscribe to, with the number of subscriptions.
    subscriptions: BTreeMap<Arc<str>, usize>,
    dependents: DependencyIndex,
}

#[derive(Debug)]
struct NodeSlot {
    generation: u32,
    node: Option<PolicyTreeNode>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TimerTarget {
    Subchannel(SubchannelId),
    Node(NodeId),
}

/// Resources that a node held before the current run.
#[derive(Default)]
pub(crate) struct PreviousRun {
    held: Vec<SubchannelId>,
    watches: Vec<(SubchannelId, Duration)>,
    dependencies: Vec<DiscoveryDependency>,
    subscriptions: Vec<Arc<str>>,
    warnings: Vec<String>,
}

impl PolicyTree {
    pub(crate) fn new(
        rng: Rng,
        backoff: Backoff,
        attempt_delay: Duration,
        counters: Arc<CallCounters>,
        load_store: Arc<LoadStore>,
    ) -> PolicyTree {
        PolicyTree {
            now: Instant::ORIGIN,
            rng,
            backoff,
            attempt_delay,
            counters,
            load_store,
            measure: false,
            per_cluster_transport: false,
            ignored_transport_warning: None,
            subchannels: SubchannelTable::default(),
            clusters: None,
            effects: Vec::new(),
            released: ReleasedValues::default(),
            reresolve: false,
            exit_idle: false,
            clock: RevisionClock::default(),
            nodes: Vec::new(),
            free: Vec::new(),
            timers: BinaryHeap::new(),
            unreferenced: Vec::new(),
            rewatched: Vec::new(),
            subscriptions: BTreeMap::new(),
            dependents: DependencyIndex::default(),
        }
    }

    /// Returns the transport parameters for an address in this scope, if clusters have their own.
    pub(crate) fn transport_in<'s>(
        &self,
        scope: &'s PolicyScope,
        address: &Address,
    ) -> Option<&'s TransportParams> {
        scope.transport(address).filter(|_| self.per_cluster_transport)
    }

    pub(crate) fn node(&self, id: NodeId) -> Option<&PolicyTreeNode> {
        let slot = self.nodes.get(id.index as usize)?;
        slot.node.as_ref().filter(|_| slot.generation == id.generation)
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> Option<&mut PolicyTreeNode> {
        let slot = self.nodes.get_mut(id.index as usize)?;
        slot.node.as_mut().filter(|_| slot.generation == id.generation)
    }

    /// Returns the node `id`, requested in the current run of `parent`. Creates the node if there is none.
    pub(crate) fn request_child(&mut self, id: Option<NodeId>, parent: Option<NodeId>) -> NodeId {
        // The core removed the node if the last run of the parent did not request it. The child then starts without state.
        let id = id.filter(|id| self.node(*id).is_some()).unwrap_or_else(|| self.create(parent));
        // A child that is requested twice in a run is listed once. Its `requested_at` is that of the run already.
        if let Some(parent) = parent
            && let Some(run) = self.node(parent).map(|node| node.children_requested_at)
            && let Some(node) = self.node_mut(id)
            && std::mem::replace(&mut node.requested_at, run) != run
            && let Some(parent) = self.node_mut(parent)
        {
            parent.children.push(id);
        }
        id
    }

    fn create(&mut self, parent: Option<NodeId>) -> NodeId {
        let node = PolicyTreeNode { parent, ..PolicyTreeNode::default() };
        let index = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(NodeSlot { generation: 0, node: None });
            (self.nodes.len() - 1) as u32
        });
        let slot = &mut self.nodes[index as usize];
        slot.node = Some(node);
        NodeId { index, generation: slot.generation }
    }

    /// Removes a node and its descendants, and releases their resources.
    pub(crate) fn remove(&mut self, id: NodeId) {
        let Some(slot) =
            self.nodes.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation)
        else {
            return;
        };
        let Some(node) = slot.node.take() else { return };
        // Timers and lists of outdated children may still contain the id; the generation makes it stale.
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index);
        for child in node.children {
            self.remove(child);
        }
        self.unwatch(id, &node.watches);
        self.unsubscribe(&node.subscriptions);
        self.dependents.remove(id, &node.dependencies);
        self.release(id, &node.held);
        // Not closed here: another node may hold the subchannel before the pass ends.
        self.unreferenced.extend(node.held);
    }

    /// Decides what the current pass does with a node, for inputs that are or are not those of its last run.
    pub(crate) fn action(&self, id: NodeId, inputs_unchanged: bool) -> PassAction {
        self.node(id).map_or(PassAction::Run, |node| node.revisions.action(inputs_unchanged, &self.clock))
    }

    /// Returns true if a pass has to run a node or a descendant of it.
    pub(crate) fn is_outdated(&self, id: NodeId) -> bool {
        self.node(id).is_none_or(|node| node.revisions.is_outdated(&self.clock))
    }

    /// Records a change of a dependency of a node, so that the next pass reaches and runs it.
    pub(crate) fn set_changed(&mut self, id: NodeId) {
        let at = self.clock.advance();
        // Read before the change is recorded. A removed node counts as outdated, so the walk ends at once.
        let mut was_outdated = self.is_outdated(id);
        if let Some(node) = self.node_mut(id) {
            node.revisions.set_changed(at);
        }
        let mut id = id;
        // The ancestors of an outdated node are outdated already.
        while !was_outdated {
            let Some(parent) = self.node(id).and_then(|node| node.parent) else { return };
            was_outdated = self.is_outdated(parent);
            if let Some(node) = self.node_mut(parent) {
                node.outdated_children.push(id);
                node.revisions.set_descendant_changed(at);
            }
            id = parent;
        }
    }

    /// Invalidates every memo, so that the next pass runs every node.
    pub(crate) fn invalidate_all(&mut self) {
        self.clock.invalidate_all();
    }

    /// Replaces the discovered clusters. Nodes that read a value that changed become outdated.
    pub(crate) fn update_clusters(&mut self, clusters: Option<&Arc<ClusterMap>>) {
        if self.clusters.as_ref().map(Arc::as_ptr) == clusters.map(Arc::as_ptr) {
            return;
        }
        let before = std::mem::replace(&mut self.clusters, clusters.cloned()).unwrap_or_default();
        let clusters = clusters.map(|clusters| &**clusters);
        let nothing = ClusterMap::default();
        let (of_clusters, of_endpoints) = before.diff(clusters.unwrap_or(&nothing));
        let of_clusters = of_clusters.into_iter().cloned().map(DependencyKey::Cluster);
        for key in of_clusters.chain(of_endpoints.into_iter().cloned().map(DependencyKey::Endpoints)) {
            for id in self.dependents.dependents(&key) {
                let has_changed = |node: &PolicyTreeNode| {
                    node.dependencies.iter().any(|dependency| !dependency.is_current(clusters))
                };
                if self.node(id).is_some_and(has_changed) {
                    self.set_changed(id);
                }
            }
        }
    }

    /// Returns true if the memos of the children of a node are valid, apart from those listed as outdated.
    pub(crate) fn has_valid_children(&self, id: NodeId) -> bool {
        self.node(id).is_some_and(|node| node.revisions.has_valid_children(&self.clock))
    }

    /// Requests all children that a node requested in its previous run. Returns the indexes of the outdated ones.
    pub(crate) fn request_all_children(&mut self, id: NodeId) -> Vec<usize> {
        let Some(node) = self.node_mut(id) else { return Vec::new() };
        // `begin` moved the children to `children_before`. This moves them back, so that `end` removes none.
        std::mem::swap(&mut node.children, &mut node.children_before);
        node.children_before.clear();
        // They were requested at that earlier revision. `request_child` compares with it and adds no duplicates.
        node.children_requested_at = node.children_requested_before;
        let due = std::mem::take(&mut node.due_children);
        let mut indexes: Vec<usize> = due.iter().filter_map(|child| Some(self.node(*child)?.index)).collect();
        indexes.sort_unstable();
        // Both policies of a graceful switch have the same index, and a child may be listed by two changes.
        indexes.dedup();
        indexes
    }

    /// Starts to verify the children of a node. Marks the node as verified first, so that a change that a child causes
    /// outdates it again.
    pub(crate) fn begin_verify(&mut self, id: NodeId) {
        let at = self.clock.current();
        if let Some(node) = self.node_mut(id) {
            node.revisions.set_verified(at);
        }
    }

    /// Ends the verification of a node whose children did not change.
    pub(crate) fn end_verify(&mut self, id: NodeId) {
        if let Some(node) = self.node_mut(id) {
            node.outdated_children.clear();
        }
    }

    /// Returns the revision of the last change.
    pub(crate) fn revision(&self) -> Revision {
        self.clock.current()
    }

    /// Returns true if no subchannel was created after `verified_at`.
    pub(crate) fn has_same_subchannels(&self, verified_at: Revision) -> bool {
        self.clock.is_current(verified_at, self.subchannels.created_at())
    }

    /// Sets the index of a node among the children of its parent.
    pub(crate) fn set_index(&mut self, id: NodeId, index: usize) {
        if let Some(node) = self.node_mut(id) {
            node.index = index;
        }
    }

    /// Returns the names of the clusters that nodes subscribe to, sorted.
    pub(crate) fn subscribed_clusters(&self) -> impl Iterator<Item = &Arc<str>> {
        self.subscriptions.keys()
    }

    /// Records a change of a subchannel for the nodes that hold it, except the node that caused the change.
    pub(crate) fn set_holders_changed(&mut self, id: SubchannelId, except: Option<NodeId>) {
        // By index, since `set_changed` borrows the tree. It modifies no list of holders.
        let mut i = 0;
        while let Some(holder) =
            self.subchannels.get(id).and_then(|subchannel| subchannel.holders.get(i).copied())
        {
            if Some(holder) != except {
                self.set_changed(holder);
            }
            i += 1;
        }
    }

    /// Begins a run of `id`. Returns the resources of the previous run, which [`PolicyTree::end`] releases unless the run
    /// requests them again.
    pub(crate) fn begin(&mut self, id: NodeId, scope: PolicyScope) -> PreviousRun {
        let run_at = self.clock.advance();
        let Some(node) = self.node_mut(id) else { return PreviousRun::default() };
        node.revisions.set_verified(run_at);
        // Children that become outdated during the run belong to the next run.
        std::mem::swap(&mut node.outdated_children, &mut node.due_children);
        node.outdated_children.clear();
        // Each run requests its timer again. The heap keeps its entry, which is ignored unless it still fits.
        node.wake = None;
        node.scope = scope;
        node.previous_run_at = std::mem::replace(&mut node.run_at, run_at);
        node.children_requested_before = std::mem::replace(&mut node.children_requested_at, run_at);
        std::mem::swap(&mut node.children, &mut node.children_before);
        node.children.clear();
        let capacity = node.held.len();
        PreviousRun {
            held: std::mem::replace(&mut node.held, Vec::with_capacity(capacity)),
            watches: std::mem::take(&mut node.watches),
            dependencies: std::mem::take(&mut node.dependencies),
            subscriptions: std::mem::take(&mut node.subscriptions),
            warnings: std::mem::take(&mut node.warnings),
        }
    }

    /// Ends a run: releases the resources of the previous run that this run did not request again.
    pub(crate) fn end(&mut self, id: NodeId, before: &PreviousRun) {
        let Some(node) = self.node_mut(id) else { return };
        let (children_requested_at, wake) = (node.children_requested_at, node.wake);
        let children_before = std::mem::take(&mut node.children_before);
        // An equal entry is in the heap already. Entries for other times are ignored when they expire.
        let arm = wake.filter(|_| node.armed != wake);
        node.armed = wake;
        let (watches, subscriptions) = (node.watches.clone(), node.subscriptions.clone());
        let new_warnings: Vec<LbEffect> = node
            .warnings
            .iter()
            .filter(|warning| !before.warnings.contains(warning))
            .map(|warning| LbEffect::Warn(warning.clone()))
            .collect();
        self.effects.extend(new_warnings);
        if let Some(slot) = self.nodes.get(id.index as usize)
            && let Some(node) = &slot.node
        {
            self.dependents.replace(id, &before.dependencies, &node.dependencies);
        }
        // Counted before the old ones are removed, so that a name in both never drops to zero.
        for name in subscriptions {
            *self.subscriptions.entry(name).or_default() += 1;
        }
        self.unsubscribe(&before.subscriptions);
        if let Some(at) = arm {
            self.timers.push(Reverse((at, TimerTarget::Node(id))));
        }
        for child in children_before {
            if self.node(child).is_some_and(|node| node.requested_at != children_requested_at) {
                self.remove(child);
            }
        }
        // A run renews every watch, so the registration changes only if the list did.
        if watches != before.watches {
            self.unwatch(id, &before.watches);
            for (subchannel, every) in watches {
                if let Some(subchannel) = self.subchannels.get_mut(subchannel) {
                    subchannel.out_of_band().watchers.push((id, every));
                }
                self.rewatched.push(subchannel);
            }
        }
        if let Some(node) = self.node(id) {
            let gone = released(&before.held, &node.held);
            self.release(id, &gone);
            self.unreferenced.extend(gone);
        }
    }

    /// Returns the subchannel for an address, created if there is none.
    pub(crate) fn find_or_create_subchannel(
        &mut self,
        address: &Address,
        transport: Option<&TransportParams>,
    ) -> SubchannelId {
        match self.subchannels.find(address, transport) {
            Some(id) => id,
            None => self.subchannels.create(address, transport, self.clock.advance()),
        }
    }

    /// Makes `node` hold a subchannel until its next run.
    pub(crate) fn hold(&mut self, node: NodeId, id: SubchannelId) {
        let Some(subchannel) = self.subchannels.get_mut(id) else { return };
        // Endpoints that share an address share the subchannel, and the node is listed as its holder once.
        if !subchannel.holders.iter().any(|holder| *holder == node) {
            subchannel.holders.push(node);
        }
        if let Some(node) = self.node_mut(node) {
            node.held.push(id);
        }
    }

    /// Makes `node` hold a subchannel that it held in its previous run, unless the subchannel changed after `verified_at`.
    /// Returns true if the node holds it.
    pub(crate) fn hold_if_unchanged(
        &mut self,
        node: NodeId,
        id: SubchannelId,
        verified_at: CompactRevision,
    ) -> bool {
        let changed_at = self.subchannels.changed_at(id);
        let is_current =
            changed_at.is_some_and(|changed_at| self.clock.is_current_compact(verified_at, changed_at));
        if let Some(node) = self.node_mut(node).filter(|_| is_current) {
            // The node is a holder since its previous run: `end` releases only subchannels that this run did not hold.
            node.held.push(id);
        }
        is_current
    }

    /// Returns the revisions of the current run of `node` and of the previous one.
    pub(crate) fn runs_of(&self, node: NodeId) -> Option<(Revision, Revision)> {
        self.node(node).map(|node| (node.run_at, node.previous_run_at))
    }

    pub(crate) fn watch(&mut self, node: NodeId, id: SubchannelId, every: Duration) {
        if let Some(node) = self.node_mut(node) {
            node.watches.push((id, every));
        }
    }

    pub(crate) fn wake_at(&mut self, node: NodeId, at: Instant) {
        if let Some(node) = self.node_mut(node) {
            node.wake = Some(node.wake.map_or(at, |wake| wake.min(at)));
        }
    }

    /// Starts an attempt on an idle subchannel.
    pub(crate) fn connect(&mut self, id: SubchannelId, by: Option<NodeId>) {
        let Some(subchannel) = self.subchannels.change(id, self.clock.advance()) else { return };
        match subchannel.connect(self.now, &self.backoff, &mut self.rng) {
            Some(ConnectStart::Started { deadline }) => {
                let address = subchannel.address().clone();
                self.effects.push(LbEffect::Connect { id, address, deadline });
            }
            Some(ConnectStart::Paced { until }) => {
                self.timers.push(Reverse((until, TimerTarget::Subchannel(id))));
            }
            None => return,
        }
        // The node that connects is running and reads the state afterwards.
        self.set_holders_changed(id, by);
    }

    /// Starts the paced attempt of a subchannel, if it is due. Policies observe no change: a paced subchannel is CONNECTING.
    fn start_paced(&mut self, id: SubchannelId) {
        let Some(subchannel) = self.subchannels.get_mut(id) else { return };
        let started = subchannel.start_paced(self.now, &self.backoff, &mut self.rng);
        if let Some(ConnectStart::Started { deadline }) = started {
            let address = subchannel.address().clone();
            self.effects.push(LbEffect::Connect { id, address, deadline });
        }
    }

    /// Applies a change to a subchannel. Returns the result of `apply`: true if policies can observe the change.
    pub(crate) fn change(&mut self, id: SubchannelId, apply: impl FnOnce(&mut Subchannel) -> bool) -> bool {
        let has_changed = self.subchannels.change(id, self.clock.advance()).is_some_and(apply);
        if has_changed {
            self.set_holders_changed(id, None);
        }
        has_changed
    }

    /// Handles the loss of a connection. Returns true if the state changed.
    pub(crate) fn disconnected(&mut self, id: SubchannelId, error: Status) -> bool {
        let Some(subchannel) = self.subchannels.change(id, self.clock.advance()) else { return false };
        let has_changed = subchannel.disconnected(self.now, error, &self.backoff);
        if has_changed {
            self.set_holders_changed(id, None);
        }
        has_changed
    }

    /// Handles a failed attempt: starts the back-off. Returns true if the state changed.
    pub(crate) fn failed(&mut self, id: SubchannelId, error: Status) -> bool {
        let order = self.subchannels.next_failure();
        let now = self.now;
        let Some(until) =
            self.subchannels.change(id, self.clock.advance()).and_then(|s| s.failed(now, error, order))
        else {
            return false;
        };
        self.timers.push(Reverse((until, TimerTarget::Subchannel(id))));
        self.set_holders_changed(id, None);
        true
    }

    /// Fires every timer that is due.
    pub(crate) fn fire_timers(&mut self) {
        while let Some(Reverse((at, target))) = self.timers.peek().copied() {
            if at > self.now {
                return;
            }
            self.timers.pop();
            match target {
                TimerTarget::Subchannel(id) => {
                    let now = self.now;
                    // The entry serves both states with a deadline. Each call checks that its state is due.
                    self.start_paced(id);
                    if self
                        .subchannels
                        .change(id, self.clock.advance())
                        .is_some_and(|subchannel| subchannel.end_back_off(now))
                    {
                        self.set_holders_changed(id, None);
                    }
                }
                TimerTarget::Node(id) => {
                    let Some(node) = self.node_mut(id) else { continue };
                    // The entry left the heap, so a run that requests the same time again must push it.
                    if node.armed == Some(at) {
                        node.armed = None;
                    }
                    // A run since then may have requested a later time, or none.
                    if node.wake.is_some_and(|wake| wake <= at) {
                        self.set_changed(id);
                    }
                }
            }
        }
    }

    /// Returns the expiry of the next timer.
    pub(crate) fn next_wake(&mut self) -> Option<Instant> {
        while let Some(Reverse((at, target))) = self.timers.peek().copied() {
            let live = match target {
                TimerTarget::Subchannel(id) => {
                    self.subchannels.get(id).and_then(Subchannel::due_at) == Some(at)
                }
                TimerTarget::Node(id) => self.node(id).is_some_and(|node| node.wake == Some(at)),
            };
            if live {
                return Some(at);
            }
            // Replaced timers stay in the heap. They are dropped here, so that they wake no pass.
            self.timers.pop();
        }
        None
    }

    /// Returns true if subchannels without a holder wait for the next pass to close them.
    pub(crate) fn has_unreferenced(&self) -> bool {
        !self.unreferenced.is_empty()
    }

    /// Ends a pass: closes subchannels without a holder, up to the maximum, and emits the changed load watches.
    pub(crate) fn finish_pass(&mut self) {
        for id in std::mem::take(&mut self.rewatched) {
            let Some(subchannel) = self.subchannels.get_mut(id) else { continue };
            let out_of_band = subchannel.out_of_band();
            let every = out_of_band.watchers.iter().map(|(_, every)| *every).min();
            // A subchannel may be listed several times. Only its first entry finds a changed interval.
            if every != std::mem::replace(&mut out_of_band.watching, every) {
                self.effects.push(LbEffect::WatchLoad { id, every });
            }
        }
        let mut gone = Vec::new();
        let later = self.unreferenced.split_off(self.unreferenced.len().min(MAX_CLOSES_PER_PASS));
        for id in std::mem::replace(&mut self.unreferenced, later) {
            // It may be held again by now, or listed twice and removed already.
            let Some(subchannel) = self.subchannels.get(id).filter(|s| s.holders.is_empty()) else {
                continue;
            };
            // Without an effect the driver does not know the id, and a Close would refer to nothing.
            if subchannel.is_known_to_driver() {
                self.effects.push(LbEffect::Close { id });
            }
            gone.extend(self.subchannels.remove(id));
        }
        self.released.add(gone);
        if std::mem::take(&mut self.reresolve) {
            self.effects.push(LbEffect::Reresolve);
        }
    }

    fn unwatch(&mut self, node: NodeId, watches: &[(SubchannelId, Duration)]) {
        for (id, _) in watches {
            if let Some(subchannel) = self.subchannels.get_mut(*id) {
                subchannel.out_of_band().watchers.retain(|(watcher, _)| *watcher != node);
                self.rewatched.push(*id);
            }
        }
    }

    fn unsubscribe(&mut self, names: &[Arc<str>]) {
        for name in names {
            if let Some(count) = self.subscriptions.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    self.subscriptions.remove(name);
                }
            }
        }
    }

    fn release(&mut self, node: NodeId, held: &[SubchannelId]) {
        for id in held {
            if let Some(subchannel) = self.subchannels.get_mut(*id) {
                subchannel.holders.remove(&node);
            }
        }
    }
}

/// Returns the subchannels of `before` that are not in `held`. Most runs hold nearly all of them again, in the same order.
fn released(before: &[SubchannelId], held: &[SubchannelId]) -> Vec<SubchannelId> {
    let mut gone = Vec::new();
    let mut rest = held;
    for id in before {
        if rest.first() == Some(id) {
            rest = &rest[1..];
            continue;
        }
        // Skip a few that were added.
        match rest.iter().take(8).position(|held| held == id) {
            Some(at) => rest = &rest[at + 1..],
            None => gone.push(*id),
        }
    }
    // Some may only have moved. A linear search for a few of them is faster than building a table of all.
    if gone.len() <= 8 {
        gone.retain(|id| !held.contains(id));
    } else {
        let size = held.iter().map(|id| id.index() + 1).max().unwrap_or(0);
        let mut table = vec![None; size];
        for id in held {
            table[id.index()] = Some(id);
        }
        // Indexes are unique among existing subchannels only, so the whole id is compared.
        gone.retain(|id| table.get(id.index()).is_none_or(|held| *held != Some(id)));
    }
    gone
}
