//! Holding a child policy: running it when it must be run, and switching gracefully when its policy changes.

use crate::config::LbConfig;
use crate::engine::cx::{Cx, PolicyScope};
use crate::engine::describe::{DescribeCx, Description};
use crate::engine::tree::{NodeId, PolicyTree};
use crate::policy::{AnyPolicy, LbState};
use crate::{ConnectivityState, Endpoints};

/// A child policy. It is made by its first [`ChildPolicy::reconcile`] and let go when its parent runs without
/// reconciling it.
///
/// When the config names another policy, the old one serves, without further updates, until the new one leaves
/// CONNECTING or the old one leaves READY.
#[derive(Debug, Default)]
pub struct ChildPolicy {
    current: Option<ChildSlot>,
    pending: Option<ChildSlot>,
}

#[derive(Debug)]
struct ChildSlot {
    node: Option<NodeId>,
    config: LbConfig,
    endpoints: Endpoints,
    policy: Box<dyn AnyPolicy>,
    state: LbState,
}

impl ChildPolicy {
    /// A child that has not run yet.
    pub fn new() -> ChildPolicy {
        ChildPolicy::default()
    }

    /// Runs the child if anything changed for it, and answers its state. The same picker means that nothing did.
    pub fn reconcile(&mut self, config: &LbConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        let scope = cx.scope().clone();
        self.reconcile_in(scope, config, endpoints, cx)
    }

    /// The same, below another scope.
    pub fn reconcile_in(
        &mut self,
        scope: PolicyScope,
        config: &LbConfig,
        endpoints: &Endpoints,
        cx: &mut Cx<'_>,
    ) -> LbState {
        let runs_already =
            |slot: &Option<ChildSlot>| slot.as_ref().is_some_and(|s| s.config.policy() == config.policy());
        if self.current.is_none() || runs_already(&self.current) {
            if let Some(pending) = self.pending.take() {
                pending.remove(cx.tree);
            }
            let current = self.current.get_or_insert_with(|| ChildSlot::new(config, endpoints));
            return current.reconcile(scope, config, endpoints, cx);
        }
        if !runs_already(&self.pending)
            && let Some(pending) = self.pending.replace(ChildSlot::new(config, endpoints))
        {
            pending.remove(cx.tree);
        }
        let old = self.keep_current(scope.clone(), cx);
        let Some(pending) = &mut self.pending else { return old };
        let new = pending.reconcile(scope, config, endpoints, cx);
        if new.connectivity == ConnectivityState::Connecting && old.connectivity == ConnectivityState::Ready {
            return old;
        }
        if let Some(current) = std::mem::replace(&mut self.current, self.pending.take()) {
            current.remove(cx.tree);
        }
        new
    }

    /// Runs the child with what it was last given, if anything happened to it. Answers whether its state is the same as before;
    /// `false` too if that takes its parent.
    fn rerun(&mut self, tree: &mut PolicyTree) -> bool {
        match (&mut self.current, &self.pending) {
            (Some(current), None) => current.rerun(tree),
            (current, pending) => current.is_none() && pending.is_none(),
        }
    }

    /// Says where the parent keeps the child, for [`Cx::keep_children`].
    pub(crate) fn set_index(&self, place: usize, cx: &mut Cx<'_>) {
        for node in self.current.iter().chain(&self.pending).filter_map(|slot| slot.node) {
            cx.tree.set_index(node, place);
        }
    }

    /// Keeps a child that [`ChildPolicy::reconcile`] would not run: it was given the same before, below the same scope, and nothing
    /// happened to it since. Answers whether that is so; its state is then the same too. The cheapest way.
    pub(crate) fn keep_unchanged(
        &mut self,
        config: &LbConfig,
        endpoints: &Endpoints,
        cx: &mut Cx<'_>,
    ) -> bool {
        let (Some(current), None) = (&self.current, &self.pending) else { return false };
        let Some(id) = current.node else { return false };
        let is_same = current.config.is_same(config)
            && current.endpoints.is_same(endpoints)
            && !cx.tree.is_dirty(id)
            && cx.tree.node(id).is_some_and(|node| node.scope == cx.scope);
        if is_same {
            cx.tree.visit(Some(id), cx.node);
        }
        is_same
    }

    /// Runs a child that has been left without a config of its own, with what it was last given: a child kept for
    /// later (A56).
    pub fn keep(&mut self, cx: &mut Cx<'_>) {
        if let Some(pending) = self.pending.take() {
            pending.remove(cx.tree);
        }
        let node = self.current.as_ref().and_then(|current| cx.tree.node(current.node?));
        let scope = node.map_or_else(|| cx.scope().clone(), |node| node.scope.clone());
        self.keep_current(scope, cx);
    }

    /// Lets the child go at once; what it held is free for others in the same pass.
    pub fn release(self, cx: &mut Cx<'_>) {
        for slot in self.current.into_iter().chain(self.pending) {
            slot.remove(cx.tree);
        }
    }

    /// The state that the child last gave, if it ran.
    pub fn state(&self) -> Option<&LbState> {
        self.current.as_ref().map(|current| &current.state)
    }

    /// The child and all below it, as data.
    pub fn describe(&self, cx: &DescribeCx<'_>) -> Option<Description> {
        let mut description = self.current.as_ref()?.describe(cx);
        if let Some(pending) = &self.pending {
            let note = format!(
                "switching to {}, which is {:?}",
                pending.config.policy(),
                pending.state.connectivity
            );
            description.warnings.push(note);
        }
        Some(description)
    }

    pub(crate) fn is_dirty(&self, tree: &PolicyTree) -> bool {
        let mut slots = self.current.iter().chain(&self.pending);
        slots.any(|slot| slot.node.is_some_and(|node| tree.is_dirty(node)))
    }

    fn keep_current(&mut self, scope: PolicyScope, cx: &mut Cx<'_>) -> LbState {
        match &mut self.current {
            Some(current) => {
                let (config, endpoints) = (current.config.clone(), current.endpoints.clone());
                current.reconcile(scope, &config, &endpoints, cx)
            }
            None => LbState::connecting(),
        }
    }
}

impl ChildSlot {
    fn new(config: &LbConfig, endpoints: &Endpoints) -> ChildSlot {
        ChildSlot {
            node: None,
            config: config.clone(),
            endpoints: endpoints.clone(),
            policy: config.build(),
            state: LbState::connecting(),
        }
    }

    fn reconcile(
        &mut self,
        scope: PolicyScope,
        config: &LbConfig,
        endpoints: &Endpoints,
        cx: &mut Cx<'_>,
    ) -> LbState {
        let scope = scope.within(cx.scope());
        let node = cx.tree.visit(self.node, cx.node);
        self.node = Some(node);
        let same_inputs = self.config.is_same(config)
            && self.endpoints.is_same(endpoints)
            && cx.tree.node(node).is_some_and(|node| node.has_run() && node.scope == scope);
        if same_inputs && (!cx.tree.is_dirty(node) || self.run_descendants(node, cx.tree)) {
            return self.state.clone();
        }
        self.config = config.clone();
        self.endpoints = endpoints.clone();
        self.run(node, scope, same_inputs, cx.tree);
        self.state.clone()
    }

    /// Runs it with what it was last given, if anything happened to it. Answers whether its state is the same as before.
    fn rerun(&mut self, tree: &mut PolicyTree) -> bool {
        let Some(node) = self.node.filter(|node| tree.is_dirty(*node)) else { return true };
        if self.run_descendants(node, tree) {
            return true;
        }
        let Some(scope) = tree.node(node).map(|node| node.scope.clone()) else { return false };
        let before = self.state.clone();
        self.run(node, scope, true, tree);
        self.state.is_same(&before)
    }

    /// Where nothing happened but below it: lets those below run. Answers whether that is all, since the state of none of its
    /// children is another, so that its own is not either.
    fn run_descendants(&mut self, node: NodeId, tree: &mut PolicyTree) -> bool {
        if !tree.begin_descendants(node) {
            return false;
        }
        let made = tree.subchannels.made();
        let (mut children, mut unchanged) = (0, true);
        self.policy.each_child(&mut |child| {
            children += 1;
            unchanged &= child.rerun(tree);
        });
        // Who looks at subchannels that others hold has to look at new ones.
        let is_all = children > 0 && unchanged && made == tree.subchannels.made();
        if is_all {
            tree.end_descendants(node);
        }
        is_all
    }

    fn run(&mut self, node: NodeId, scope: PolicyScope, inputs_unchanged: bool, tree: &mut PolicyTree) {
        let before = tree.begin(node, scope.clone());
        let mut cx = Cx { tree: &mut *tree, node: Some(node), scope, inputs_unchanged };
        self.state = self.policy.reconcile(&self.config, &self.endpoints, &mut cx);
        tree.end(node, &before);
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        let mut description = self.policy.describe(cx);
        self.config.policy().clone_into(&mut description.policy);
        description.state = Some(self.state.connectivity);
        description.warnings.extend_from_slice(self.config.warnings());
        if let Some(node) = self.node.and_then(|id| cx.tree.node(id)) {
            description.warnings.extend_from_slice(&node.warnings);
        }
        description
    }

    fn remove(self, tree: &mut PolicyTree) {
        if let Some(node) = self.node {
            tree.remove(node);
        }
    }
}
