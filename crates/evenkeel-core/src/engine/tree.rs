//! The bookkeeping behind a pass: which node of the policy tree holds what, and which must look again.
//!
//! Every running policy is a node. A node is dirty when a subchannel that it holds changed, when its timer is due or
//! when it is new; its ancestors are dirty with it, so that a pass from the root reaches it. A node that is not dirty
//! and was given the same inputs is not run: that is what makes an idle pass cheap.
//!
//! What a node asked for in its last run it holds: subchannels, load watches, children, clusters, a timer. What it does
//! not ask for again in its next run is let go at the end of that run. What it looked at in its last run, of what
//! discovery found, makes it dirty once that is something else.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use crate::collections::fast_map::FastMap;
use crate::collections::inline_vec::InlineVec;
use crate::config::cluster::{Cluster, ClusterMap, EndpointSet, EndpointSource, is_same_cluster};
use crate::engine::core::LbEffect;
use crate::engine::cx::PolicyScope;
use crate::engine::released::ReleasedValues;
use crate::load::LoadStore;
use crate::load::call_counters::CallCounters;
use crate::subchannel::{Backoff, ConnectStart, Subchannel, SubchannelTable};
use crate::{Address, Instant, Rng, Status, SubchannelId, TransportParams};

/// So many subchannels are closed at the end of one pass. Others follow with passes of their own: where thousands are replaced,
/// those that come need not wait for the end of those that went.
const MAX_CLOSES_PER_PASS: usize = 256;

/// Names a node. Stale ones name nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId {
    index: u32,
    generation: u32,
}

/// What one node holds, and what it ran with.
#[derive(Debug, Default)]
pub(crate) struct PolicyTreeNode {
    parent: Option<NodeId>,
    dirty: bool,
    /// It is dirty for a reason of its own, and not only because a node below it is.
    is_self_dirty: bool,
    /// The children that were marked since this node's latest run began.
    marked: Vec<NodeId>,
    /// The children that were marked when it began.
    due: Vec<NodeId>,
    /// Where the parent keeps this node, if it said so.
    place: usize,
    /// Number of this node's latest run.
    run: u64,
    /// Number of the run before that.
    previous: u64,
    /// Number of the run in which children were last asked for one by one, and of the one before that.
    visit_run: u64,
    visit_run_before: u64,
    /// Number of the parent's run in which this node was last asked for.
    visited_in: u64,
    wake: Option<Instant>,
    /// The timer in the heap that stands for `wake`.
    armed: Option<Instant>,
    pub(crate) scope: PolicyScope,
    held: Vec<SubchannelId>,
    watches: Vec<(SubchannelId, Duration)>,
    children: Vec<NodeId>,
    /// The children before the run that is under way.
    children_before: Vec<NodeId>,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) wanted: Vec<Arc<str>>,
    pub(crate) warnings: Vec<String>,
}

/// A look at what discovery found, and what was seen.
#[derive(Debug)]
pub(crate) enum Dependency {
    Cluster(Arc<str>, Option<Result<Arc<Cluster>, Status>>),
    Endpoints(EndpointSource, Option<Arc<EndpointSet>>),
}

/// What a look is at.
#[derive(Debug, PartialEq, Eq, Hash)]
enum DependencyKey {
    Cluster(Arc<str>),
    Endpoints(EndpointSource),
}

impl PolicyTreeNode {
    pub(crate) fn has_run(&self) -> bool {
        self.run > 0
    }
}

impl Dependency {
    fn key(&self) -> DependencyKey {
        match self {
            Dependency::Cluster(name, _) => DependencyKey::Cluster(name.clone()),
            Dependency::Endpoints(source, _) => DependencyKey::Endpoints(source.clone()),
        }
    }

    fn has_same_key(&self, other: &Dependency) -> bool {
        match (self, other) {
            (Dependency::Cluster(a, _), Dependency::Cluster(b, _)) => a == b,
            (Dependency::Endpoints(a, _), Dependency::Endpoints(b, _)) => a == b,
            _ => false,
        }
    }

    /// Whether the same look would see the same.
    fn is_current(&self, clusters: Option<&ClusterMap>) -> bool {
        match self {
            Dependency::Cluster(name, seen) => match (seen, clusters.and_then(|all| all.cluster(name))) {
                (Some(seen), Some(is)) => is_same_cluster(seen, is),
                (seen, is) => seen.is_none() && is.is_none(),
            },
            Dependency::Endpoints(source, seen) => {
                let is = clusters.and_then(|all| all.endpoint_set(source));
                seen.as_ref().map(Arc::as_ptr) == is.map(Arc::as_ptr)
            }
        }
    }
}

/// Everything that policies share: the state of a core without the policies themselves.
#[expect(clippy::struct_excessive_bools, reason = "two are settings, two are asked for in a pass")]
#[derive(Debug)]
pub(crate) struct PolicyTree {
    pub(crate) now: Instant,
    pub(crate) rng: Rng,
    pub(crate) backoff: Backoff,
    pub(crate) attempt_delay: Duration,
    pub(crate) counters: Arc<CallCounters>,
    pub(crate) load_store: Arc<LoadStore>,
    /// Whether measurements are wanted.
    pub(crate) measure: bool,
    /// Whether means tell subchannels apart.
    pub(crate) per_cluster_transport: bool,
    pub(crate) subchannels: SubchannelTable,
    /// What discovery found, if there is any.
    pub(crate) clusters: Option<Arc<ClusterMap>>,
    pub(crate) effects: Vec<LbEffect>,
    pub(crate) released: ReleasedValues,
    /// Somebody asked for fresh addresses in this pass.
    pub(crate) reresolve: bool,
    /// Somebody asked the whole channel to connect: policies that are idle start.
    pub(crate) exit_idle: bool,
    /// In this pass everything is looked at, changed or not.
    pub(crate) run_all: bool,
    nodes: Vec<NodeSlot>,
    free: Vec<u32>,
    timers: BinaryHeap<Reverse<(Instant, TimerTarget)>>,
    /// Subchannels that lost a holder, and may have lost their last.
    unreferenced: Vec<SubchannelId>,
    /// Subchannels whose load watchers changed in this pass.
    rewatched: Vec<SubchannelId>,
    /// The clusters that nodes want, each with how many times it is wanted.
    wanted: BTreeMap<Arc<str>, usize>,
    /// The nodes that looked at a place in their last run.
    dependents: FastMap<DependencyKey, InlineVec<NodeId>>,
    runs: u64,
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

/// What a node held before the run that is under way.
#[derive(Default)]
pub(crate) struct PreviousRun {
    held: Vec<SubchannelId>,
    watches: Vec<(SubchannelId, Duration)>,
    dependencies: Vec<Dependency>,
    wanted: Vec<Arc<str>>,
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
            subchannels: SubchannelTable::default(),
            clusters: None,
            effects: Vec::new(),
            released: ReleasedValues::default(),
            reresolve: false,
            exit_idle: false,
            run_all: false,
            nodes: Vec::new(),
            free: Vec::new(),
            timers: BinaryHeap::new(),
            unreferenced: Vec::new(),
            rewatched: Vec::new(),
            wanted: BTreeMap::new(),
            dependents: FastMap::default(),
            runs: 0,
        }
    }

    /// By what means connections to an address are made in this scope, if any matter.
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

    /// Makes sure that `id` is a node below `parent`, asked for in the parent's present run. A new one is dirty.
    pub(crate) fn visit(&mut self, id: Option<NodeId>, parent: Option<NodeId>) -> NodeId {
        let id = id.filter(|id| self.node(*id).is_some()).unwrap_or_else(|| self.create(parent));
        if let Some(parent) = parent
            && let Some(run) = self.node(parent).map(|node| node.visit_run)
            && let Some(node) = self.node_mut(id)
            && std::mem::replace(&mut node.visited_in, run) != run
            && let Some(parent) = self.node_mut(parent)
        {
            parent.children.push(id);
        }
        id
    }

    fn create(&mut self, parent: Option<NodeId>) -> NodeId {
        let node = PolicyTreeNode { parent, dirty: true, is_self_dirty: true, ..PolicyTreeNode::default() };
        let index = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(NodeSlot { generation: 0, node: None });
            (self.nodes.len() - 1) as u32
        });
        let slot = &mut self.nodes[index as usize];
        slot.node = Some(node);
        NodeId { index, generation: slot.generation }
    }

    /// Removes a node and all below it, and lets go of what they held.
    pub(crate) fn remove(&mut self, id: NodeId) {
        let Some(slot) =
            self.nodes.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation)
        else {
            return;
        };
        let Some(node) = slot.node.take() else { return };
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index);
        for child in node.children {
            self.remove(child);
        }
        self.unwatch(id, &node.watches);
        self.unsubscribe(&node.wanted);
        self.remove_dependencies(id, &node.dependencies);
        self.release(id, &node.held);
        self.unreferenced.extend(node.held);
    }

    pub(crate) fn is_dirty(&self, id: NodeId) -> bool {
        self.node(id).is_none_or(|node| node.dirty)
    }

    /// Marks a node and its ancestors: the next pass runs them.
    pub(crate) fn mark(&mut self, id: NodeId) {
        if let Some(node) = self.node_mut(id) {
            node.is_self_dirty = true;
        }
        let mut id = id;
        while let Some(node) = self.node_mut(id).filter(|node| !node.dirty) {
            node.dirty = true;
            let Some(parent) = node.parent else { return };
            if let Some(parent) = self.node_mut(parent) {
                parent.marked.push(id);
            }
            id = parent;
        }
    }

    /// Marks everything, so that the next pass runs every node.
    pub(crate) fn mark_all(&mut self) {
        self.run_all = true;
        for node in self.nodes.iter_mut().filter_map(|slot| slot.node.as_mut()) {
            (node.dirty, node.is_self_dirty) = (true, true);
        }
    }

    /// Takes in what discovery found: nodes that looked at something that is another now look again.
    pub(crate) fn update_clusters(&mut self, clusters: Option<&Arc<ClusterMap>>) {
        if self.clusters.as_ref().map(Arc::as_ptr) == clusters.map(Arc::as_ptr) {
            return;
        }
        let before = std::mem::replace(&mut self.clusters, clusters.cloned()).unwrap_or_default();
        let clusters = clusters.map(|clusters| &**clusters);
        let nothing = ClusterMap::default();
        let (of_clusters, of_endpoints) = before.diff(clusters.unwrap_or(&nothing));
        let of_clusters = of_clusters.into_iter().cloned().map(DependencyKey::Cluster);
        for place in of_clusters.chain(of_endpoints.into_iter().cloned().map(DependencyKey::Endpoints)) {
            let dependents: Vec<NodeId> =
                self.dependents.get(&place).into_iter().flat_map(InlineVec::iter).copied().collect();
            for id in dependents {
                let is_stale = |node: &PolicyTreeNode| {
                    node.dependencies.iter().any(|dependency| !dependency.is_current(clusters))
                };
                if self.node(id).is_some_and(is_stale) {
                    self.mark(id);
                }
            }
        }
    }

    /// Keeps the children of a node that runs as if it had asked for each of them, and answers where it keeps those that were
    /// marked since its last run: no other is dirty, unless the pass is thorough.
    pub(crate) fn keep_children(&mut self, id: NodeId) -> Vec<usize> {
        let Some(node) = self.node_mut(id) else { return Vec::new() };
        std::mem::swap(&mut node.children, &mut node.children_before);
        node.children_before.clear();
        node.visit_run = node.visit_run_before;
        let due = std::mem::take(&mut node.due);
        let mut places: Vec<usize> = due.iter().filter_map(|child| Some(self.node(*child)?.place)).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    /// Begins to look below a node that is dirty only because nodes below it are: they may come to rest without it.
    pub(crate) fn begin_descendants(&mut self, id: NodeId) -> bool {
        let Some(node) = self.node_mut(id).filter(|node| !node.is_self_dirty) else { return false };
        node.dirty = false;
        true
    }

    /// Ends a look below a node that need not run.
    pub(crate) fn end_descendants(&mut self, id: NodeId) {
        if let Some(node) = self.node_mut(id) {
            node.marked.clear();
        }
    }

    /// Says where the parent of a node keeps it.
    pub(crate) fn set_index(&mut self, id: NodeId, place: usize) {
        if let Some(node) = self.node_mut(id) {
            node.place = place;
        }
    }

    /// The clusters that nodes want, by name.
    pub(crate) fn subscribed_clusters(&self) -> impl Iterator<Item = &Arc<str>> {
        self.wanted.keys()
    }

    /// Marks the nodes that hold a subchannel, except the one that caused the change.
    pub(crate) fn mark_holders(&mut self, id: SubchannelId, except: Option<NodeId>) {
        let mut i = 0;
        while let Some(holder) =
            self.subchannels.get(id).and_then(|subchannel| subchannel.holders.get(i).copied())
        {
            if Some(holder) != except {
                self.mark(holder);
            }
            i += 1;
        }
    }

    /// Begins a run of `id`, which asks anew for what it held. What nobody asks for again is closed when the pass ends.
    pub(crate) fn begin(&mut self, id: NodeId, scope: PolicyScope) -> PreviousRun {
        self.runs += 1;
        let run = self.runs;
        let Some(node) = self.node_mut(id) else { return PreviousRun::default() };
        (node.dirty, node.is_self_dirty) = (false, false);
        std::mem::swap(&mut node.marked, &mut node.due);
        node.marked.clear();
        node.wake = None;
        node.scope = scope;
        node.previous = std::mem::replace(&mut node.run, run);
        node.visit_run_before = std::mem::replace(&mut node.visit_run, run);
        std::mem::swap(&mut node.children, &mut node.children_before);
        node.children.clear();
        let room = node.held.len();
        PreviousRun {
            held: std::mem::replace(&mut node.held, Vec::with_capacity(room)),
            watches: std::mem::take(&mut node.watches),
            dependencies: std::mem::take(&mut node.dependencies),
            wanted: std::mem::take(&mut node.wanted),
            warnings: std::mem::take(&mut node.warnings),
        }
    }

    /// Ends a run: lets go of what was held before and not asked for again.
    pub(crate) fn end(&mut self, id: NodeId, before: &PreviousRun) {
        let Some(node) = self.node_mut(id) else { return };
        let (visit_run, wake) = (node.visit_run, node.wake);
        let children_before = std::mem::take(&mut node.children_before);
        let arm = wake.filter(|_| node.armed != wake);
        node.armed = wake;
        let (watches, wanted) = (node.watches.clone(), node.wanted.clone());
        let news: Vec<LbEffect> = node
            .warnings
            .iter()
            .filter(|warning| !before.warnings.contains(warning))
            .map(|warning| LbEffect::Warn(warning.clone()))
            .collect();
        self.effects.extend(news);
        self.update_dependencies(id, &before.dependencies);
        for name in wanted {
            *self.wanted.entry(name).or_default() += 1;
        }
        self.unsubscribe(&before.wanted);
        if let Some(at) = arm {
            self.timers.push(Reverse((at, TimerTarget::Node(id))));
        }
        for child in children_before {
            if self.node(child).is_some_and(|node| node.visited_in != visit_run) {
                self.remove(child);
            }
        }
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

    /// Lets `node` hold a subchannel until its next run.
    pub(crate) fn hold(&mut self, node: NodeId, id: SubchannelId) {
        let Some(subchannel) = self.subchannels.get_mut(id) else { return };
        if !subchannel.holders.iter().any(|holder| *holder == node) {
            subchannel.holders.push(node);
        }
        if let Some(node) = self.node_mut(node) {
            node.held.push(id);
        }
    }

    /// Lets `node` go on holding a subchannel that it held in its last run, if nothing happened to it since there were so many
    /// changes. Answers whether it does.
    pub(crate) fn hold_on(&mut self, node: NodeId, id: SubchannelId, since: u32) -> bool {
        let is_same = self.subchannels.is_unchanged(id, since);
        if let Some(node) = self.node_mut(node).filter(|_| is_same) {
            node.held.push(id);
        }
        is_same
    }

    /// The number of the run of `node` that is under way, and of the one before.
    pub(crate) fn runs_of(&self, node: NodeId) -> Option<(u64, u64)> {
        self.node(node).map(|node| (node.run, node.previous))
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
        let Some(subchannel) = self.subchannels.change(id) else { return };
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
        self.mark_holders(id, by);
    }

    /// Starts the paced attempt of a subchannel, if it is due. Policies see no change: it was CONNECTING before.
    fn start_paced(&mut self, id: SubchannelId) {
        let Some(subchannel) = self.subchannels.get_mut(id) else { return };
        let started = subchannel.start_paced(self.now, &self.backoff, &mut self.rng);
        if let Some(ConnectStart::Started { deadline }) = started {
            let address = subchannel.address().clone();
            self.effects.push(LbEffect::Connect { id, address, deadline });
        }
    }

    /// Applies something that happened to a subchannel; if it was news, its holders look again.
    pub(crate) fn change(&mut self, id: SubchannelId, apply: impl FnOnce(&mut Subchannel) -> bool) -> bool {
        let news = self.subchannels.change(id).is_some_and(apply);
        if news {
            self.mark_holders(id, None);
        }
        news
    }

    /// A connection was lost. Returns true if the state changed.
    pub(crate) fn disconnected(&mut self, id: SubchannelId, error: Status) -> bool {
        let Some(subchannel) = self.subchannels.change(id) else { return false };
        let has_changed = subchannel.disconnected(self.now, error, &self.backoff);
        if has_changed {
            self.mark_holders(id, None);
        }
        has_changed
    }

    /// An attempt failed: begins the back-off.
    pub(crate) fn failed(&mut self, id: SubchannelId, error: Status) -> bool {
        let order = self.subchannels.next_failure();
        let now = self.now;
        let Some(until) = self.subchannels.change(id).and_then(|s| s.failed(now, error, order)) else {
            return false;
        };
        self.timers.push(Reverse((until, TimerTarget::Subchannel(id))));
        self.mark_holders(id, None);
        true
    }

    /// Lets every timer that is due take effect.
    pub(crate) fn fire_timers(&mut self) {
        while let Some(Reverse((at, target))) = self.timers.peek().copied() {
            if at > self.now {
                return;
            }
            self.timers.pop();
            match target {
                TimerTarget::Subchannel(id) => {
                    let now = self.now;
                    self.start_paced(id);
                    if self.subchannels.change(id).is_some_and(|subchannel| subchannel.end_back_off(now)) {
                        self.mark_holders(id, None);
                    }
                }
                TimerTarget::Node(id) => {
                    let Some(node) = self.node_mut(id) else { continue };
                    if node.armed == Some(at) {
                        node.armed = None;
                    }
                    if node.wake.is_some_and(|wake| wake <= at) {
                        self.mark(id);
                    }
                }
            }
        }
    }

    /// When the next timer is due.
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
            self.timers.pop();
        }
        None
    }

    /// Whether there are subchannels left that nobody may hold, for the next pass.
    pub(crate) fn has_unreferenced(&self) -> bool {
        !self.unreferenced.is_empty()
    }

    /// Ends a pass: subchannels that nobody holds are closed, so many of them, and load watches that changed are told.
    pub(crate) fn finish_pass(&mut self) {
        for id in std::mem::take(&mut self.rewatched) {
            let Some(subchannel) = self.subchannels.get_mut(id) else { continue };
            let out_of_band = subchannel.out_of_band();
            let wanted = out_of_band.watchers.iter().map(|(_, every)| *every).min();
            if wanted != std::mem::replace(&mut out_of_band.watching, wanted) {
                self.effects.push(LbEffect::WatchLoad { id, every: wanted });
            }
        }
        let mut gone = Vec::new();
        let later = self.unreferenced.split_off(self.unreferenced.len().min(MAX_CLOSES_PER_PASS));
        for id in std::mem::replace(&mut self.unreferenced, later) {
            let Some(subchannel) = self.subchannels.get(id).filter(|s| s.holders.is_empty()) else {
                continue;
            };
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
            if let Some(count) = self.wanted.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    self.wanted.remove(name);
                }
            }
        }
    }

    /// Remembers by place where a node looked in the run that ends, and no longer where it looked before.
    fn update_dependencies(&mut self, id: NodeId, before: &[Dependency]) {
        let Some(node) = self.node(id) else { return };
        let mut pairs = node.dependencies.iter().zip(before);
        if node.dependencies.len() == before.len() && pairs.all(|(new, old)| new.has_same_key(old)) {
            return;
        }
        let places: Vec<DependencyKey> = node.dependencies.iter().map(Dependency::key).collect();
        self.remove_dependencies(id, before);
        for place in places {
            self.dependents.entry(place).or_default().push(id);
        }
    }

    fn remove_dependencies(&mut self, node: NodeId, dependencies: &[Dependency]) {
        for dependency in dependencies {
            let place = dependency.key();
            if let Some(dependents) = self.dependents.get_mut(&place) {
                dependents.remove(&node);
                if dependents.get(0).is_none() {
                    self.dependents.remove(&place);
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

/// Those of the subchannels that were held which are not held again. Most often nearly all are, in the same order.
fn released(before: &[SubchannelId], held: &[SubchannelId]) -> Vec<SubchannelId> {
    let mut gone = Vec::new();
    let mut rest = held;
    for id in before {
        if rest.first() == Some(id) {
            rest = &rest[1..];
            continue;
        }
        // Past a few that came.
        match rest.iter().take(8).position(|held| held == id) {
            Some(at) => rest = &rest[at + 1..],
            None => gone.push(*id),
        }
    }
    // Some may only stand elsewhere. Few are looked for one by one, which takes less than a table of all.
    if gone.len() <= 8 {
        gone.retain(|id| !held.contains(id));
    } else {
        let size = held.iter().map(|id| id.index() + 1).max().unwrap_or(0);
        let mut table = vec![None; size];
        for id in held {
            table[id.index()] = Some(id);
        }
        gone.retain(|id| table.get(id.index()).is_none_or(|held| *held != Some(id)));
    }
    gone
}
