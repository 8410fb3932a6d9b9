//! Child policies: memoized runs, and the graceful switch to another policy.

use crate::config::LbConfig;
use crate::engine::cx::{Cx, PolicyScope};
use crate::engine::describe::{DescribeCx, Description};
use crate::engine::revision::PassAction;
use crate::engine::tree::{NodeId, PolicyTree};
use crate::policy::{AnyPolicy, LbState};
use crate::{ConnectivityState, Endpoints};

/// Child of a policy. The first [`ChildPolicy::reconcile`] creates the policy; a run of the parent that does not reconcile it
/// releases its connections.
///
/// When the config names another policy, the current one serves until the new one leaves CONNECTING or the current one
/// leaves READY. It receives no further updates meanwhile.
#[derive(Debug, Default)]
pub struct ChildPolicy {
    current: Option<ChildSlot>,
    pending: Option<ChildSlot>,
}

/// Policy, the inputs of its last run, and the state that it returned.
#[derive(Debug)]
struct ChildSlot {
    node: Option<NodeId>,
    config: LbConfig,
    endpoints: Endpoints,
    policy: Box<dyn AnyPolicy>,
    state: LbState,
}

impl ChildPolicy {
    /// Creates a child that has not run yet.
    pub fn new() -> ChildPolicy {
        ChildPolicy::default()
    }

    /// Returns the state of the child. Runs it first if its inputs or its dependencies changed. If they did not, the picker is
    /// the same allocation as before.
    pub fn reconcile(&mut self, config: &LbConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        let scope = cx.scope().clone();
        self.reconcile_in(scope, config, endpoints, cx)
    }

    /// Acts as [`ChildPolicy::reconcile`], with another scope.
    pub fn reconcile_in(
        &mut self,
        scope: PolicyScope,
        config: &LbConfig,
        endpoints: &Endpoints,
        cx: &mut Cx<'_>,
    ) -> LbState {
        // The name decides. A policy keeps its state across changes of its settings.
        let runs_already =
            |slot: &Option<ChildSlot>| slot.as_ref().is_some_and(|s| s.config.policy() == config.policy());
        if self.current.is_none() || runs_already(&self.current) {
            // The config names the current policy again, which ends the switch.
            if let Some(pending) = self.pending.take() {
                pending.remove(cx.tree);
            }
            let current = self.current.get_or_insert_with(|| ChildSlot::new(config, endpoints));
            return current.reconcile(scope, config, endpoints, cx);
        }
        // If the config names a third policy, it replaces the pending one.
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

    /// Brings the child up to date with the inputs of its last run. Returns true if its state did not change. Returns false
    /// during a switch too, since only the parent's run can complete it.
    fn verify(&mut self, tree: &mut PolicyTree) -> bool {
        match (&mut self.current, &self.pending) {
            (Some(current), None) => current.verify(tree),
            (current, pending) => current.is_none() && pending.is_none(),
        }
    }

    /// Sets the index that [`Cx::request_all_children`] returns for the child.
    pub(crate) fn set_index(&self, index: usize, cx: &mut Cx<'_>) {
        for node in self.current.iter().chain(&self.pending).filter_map(|slot| slot.node) {
            cx.tree.set_index(node, index);
        }
    }

    /// Requests the child if [`ChildPolicy::reconcile`] would reuse its memo. Returns true if so; the state is then the same.
    /// Unlike `reconcile` it clones neither the scope nor the state.
    pub(crate) fn reuse(&mut self, config: &LbConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) -> bool {
        // During a switch the parent must reconcile: only its run can complete the switch.
        let (Some(current), None) = (&self.current, &self.pending) else { return false };
        let Some(node) = current.node else { return false };
        let inputs_unchanged = current.has_inputs(node, &cx.scope, config, endpoints, cx.tree);
        let is_current = cx.tree.action(node, inputs_unchanged) == PassAction::Reuse;
        if is_current {
            cx.tree.request_child(Some(node), cx.node);
        }
        is_current
    }

    /// Runs the child with the inputs of its last run. Used for a child that is retained after its removal from the config
    /// (A56).
    pub fn keep(&mut self, cx: &mut Cx<'_>) {
        if let Some(pending) = self.pending.take() {
            pending.remove(cx.tree);
        }
        let node = self.current.as_ref().and_then(|current| cx.tree.node(current.node?));
        // The parent has no settings for this child any more, so the scope of its last run applies.
        let scope = node.map_or_else(|| cx.scope().clone(), |node| node.scope.clone());
        self.keep_current(scope, cx);
    }

    /// Releases the child at once. Other policies can use its subchannels in the same pass.
    pub fn release(self, cx: &mut Cx<'_>) {
        for slot in self.current.into_iter().chain(self.pending) {
            slot.remove(cx.tree);
        }
    }

    /// Returns the state of the last run, if there was one.
    pub fn state(&self) -> Option<&LbState> {
        self.current.as_ref().map(|current| &current.state)
    }

    /// Describes the child and its descendants.
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

    /// Returns true if a pass has to run the child or a descendant of it.
    pub(crate) fn is_outdated(&self, tree: &PolicyTree) -> bool {
        let mut slots = self.current.iter().chain(&self.pending);
        slots.any(|slot| slot.node.is_some_and(|node| tree.is_outdated(node)))
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
        // Requested even if it does not run: the core removes children that the parent's run did not request.
        let node = cx.tree.request_child(self.node, cx.node);
        self.node = Some(node);
        let inputs_unchanged = self.has_inputs(node, &scope, config, endpoints, cx.tree);
        let is_current = match cx.tree.action(node, inputs_unchanged) {
            PassAction::Reuse => true,
            PassAction::VerifyChildren => self.verify_children(node, cx.tree),
            PassAction::Run => false,
        };
        if !is_current {
            self.config = config.clone();
            self.endpoints = endpoints.clone();
            self.run(node, scope, inputs_unchanged, cx.tree);
        }
        self.state.clone()
    }

    /// Returns true if these are the inputs of the last run. Config and endpoints are compared by identity.
    fn has_inputs(
        &self,
        node: NodeId,
        scope: &PolicyScope,
        config: &LbConfig,
        endpoints: &Endpoints,
        tree: &PolicyTree,
    ) -> bool {
        self.config.is_same(config)
            && self.endpoints.is_same(endpoints)
            && tree.node(node).is_some_and(|node| node.scope == *scope)
    }

    /// Brings the policy up to date with the inputs of its last run. Returns true if its state did not change.
    fn verify(&mut self, tree: &mut PolicyTree) -> bool {
        let Some(node) = self.node else { return true };
        let is_current = match tree.action(node, true) {
            PassAction::Reuse => true,
            PassAction::VerifyChildren => self.verify_children(node, tree),
            PassAction::Run => false,
        };
        if is_current {
            return true;
        }
        let Some(scope) = tree.node(node).map(|node| node.scope.clone()) else { return false };
        let before = self.state.clone();
        self.run(node, scope, true, tree);
        self.state.is_same(&before)
    }

    /// Brings the children up to date. Returns true if the state of none of them changed, so that the policy need not run.
    fn verify_children(&mut self, node: NodeId, tree: &mut PolicyTree) -> bool {
        tree.begin_verify(node);
        let started_at = tree.revision();
        let (mut children, mut unchanged) = (0, true);
        self.policy.each_child(&mut |child| {
            children += 1;
            unchanged &= child.verify(tree);
        });
        // Pure parents look up the subchannels of their descendants by address, so a new subchannel is a change too.
        // `each_child` visits no child of other policies, which therefore run.
        let is_current = children > 0 && unchanged && tree.has_same_subchannels(started_at);
        if is_current {
            tree.end_verify(node);
        }
        is_current
    }

    fn run(&mut self, node: NodeId, scope: PolicyScope, inputs_unchanged: bool, tree: &mut PolicyTree) {
        // Read before `begin`, which marks the node as verified.
        let children_reusable = inputs_unchanged && tree.has_valid_children(node);
        let before = tree.begin(node, scope.clone());
        let mut cx = Cx { tree: &mut *tree, node: Some(node), scope, children_reusable };
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
