//! Child policies by name: what weighted_target and xds_cluster_manager have in common.
//!
//! A name decides which child is which across updates, and which group of the endpoints it is given (A56, hierarchical
//! addresses). A child whose name is gone is kept for a while, in case it comes back, or let go at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::cx::PolicyScope;
use crate::engine::describe::{DescribeCx, Description};
use crate::policy::LbState;
use crate::{ChildPolicy, ConnectivityState, Cx, Endpoints, Instant, LbConfig};

/// Child policies by name, in the order of the names they were last given.
#[derive(Debug, Default)]
pub(crate) struct NamedChildren {
    named: Vec<NamedChild>,
    /// No longer named, each with the moment when it is let go.
    leaving: Vec<(NamedChild, Instant)>,
    source: Option<Endpoints>,
}

/// One child.
#[derive(Debug)]
pub(crate) struct NamedChild {
    name: Arc<str>,
    child: ChildPolicy,
    endpoints: Endpoints,
    state: LbState,
    /// Failed, and not ready since.
    failed: bool,
}

impl NamedChildren {
    /// Takes in which children there should be, and gives each its group of the endpoints; the caller then runs each
    /// of them. Those that are no longer named are kept `retention` long. Answers whether the names are others than
    /// before.
    pub(crate) fn update<'n>(
        &mut self,
        names: impl Iterator<Item = &'n Arc<str>> + Clone,
        endpoints: &Endpoints,
        retention: Duration,
        cx: &mut Cx<'_>,
    ) -> bool {
        let is_same = |a: &Arc<str>, b: &Arc<str>| Arc::ptr_eq(a, b) || a == b;
        let mut known = self.named.iter();
        let all_known =
            names.clone().all(|name| known.next().is_some_and(|named| is_same(&named.name, name)));
        let renamed = !all_known || known.next().is_some();
        self.leaving.retain(|(_, at)| *at > cx.now());
        if renamed {
            self.rename(names, cx.now() + retention);
            self.leaving.retain(|(_, at)| *at > cx.now());
        }
        if renamed || self.source.as_ref().is_none_or(|source| !source.is_same(endpoints)) {
            self.regroup(endpoints);
        }
        for (named, at) in &mut self.leaving {
            named.keep(cx);
            cx.wake_at(*at);
        }
        renamed
    }

    /// Keeps all children where nothing but what happened to some of them can have changed since the last run, and answers
    /// which those are; they are to be [run](NamedChildren::at). `None` if all have to be: [`NamedChildren::update`] comes first then, and
    /// [`NamedChildren::set_indices`] at the end.
    pub(crate) fn keep(&self, cx: &mut Cx<'_>) -> Option<Vec<usize>> {
        if !self.leaving.is_empty() {
            return None;
        }
        cx.request_all_children()
    }

    /// The child at a place, to be run.
    pub(crate) fn at(&mut self, place: usize) -> &mut NamedChild {
        &mut self.named[place]
    }

    /// Has children found by [`NamedChildren::keep`].
    pub(crate) fn set_indices(&self, cx: &mut Cx<'_>) {
        for (place, named) in self.named.iter().enumerate() {
            named.child.set_index(place, cx);
        }
    }

    fn rename<'n>(&mut self, names: impl Iterator<Item = &'n Arc<str>>, leave_at: Instant) {
        let present = std::mem::take(&mut self.named).into_iter().map(|named| (named, leave_at));
        let all = present.chain(std::mem::take(&mut self.leaving));
        let mut old: BTreeMap<_, _> = all.map(|(named, at)| (named.name.clone(), (named, at))).collect();
        self.named = names
            .map(|name| old.remove(name).map_or_else(|| NamedChild::new(name), |(named, _)| named))
            .collect();
        self.leaving = old.into_values().collect();
    }

    fn regroup(&mut self, endpoints: &Endpoints) {
        let mut groups = HashMap::new();
        for group in endpoints.as_groups() {
            groups.entry(&group.name).or_insert(&group.endpoints);
        }
        for named in &mut self.named {
            named.endpoints = groups.get(&named.name).map_or_else(Endpoints::none, |group| (*group).clone());
        }
        self.source = Some(endpoints.clone());
    }

    /// Shows every child, those that are leaving too.
    pub(crate) fn each(&mut self, visit: &mut dyn FnMut(&mut ChildPolicy)) {
        for named in self.named.iter_mut().chain(self.leaving.iter_mut().map(|(named, _)| named)) {
            visit(&mut named.child);
        }
    }

    /// The children that are named, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &NamedChild> {
        self.named.iter()
    }

    /// The children that are named, in order, to be run.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut NamedChild> {
        self.named.iter_mut()
    }

    /// The child, if only one is named.
    pub(crate) fn only(&self) -> Option<&NamedChild> {
        match &self.named[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    /// The children that are kept although no longer named, with the moment when each is let go.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = (&NamedChild, Instant)> {
        self.leaving.iter().map(|(named, at)| (named, *at))
    }

    /// READY if any child is, else CONNECTING if any is, else IDLE if any is, else TRANSIENT_FAILURE.
    pub(crate) fn connectivity(&self) -> ConnectivityState {
        let is_any =
            |state: &ConnectivityState| self.named.iter().any(|named| named.connectivity() == *state);
        let order = [ConnectivityState::Ready, ConnectivityState::Connecting, ConnectivityState::Idle];
        order.into_iter().find(is_any).unwrap_or(ConnectivityState::TransientFailure)
    }

    /// Adds the children to a description, those that are leaving too: they hold connections.
    pub(crate) fn describe(&self, description: Description, cx: &DescribeCx<'_>) -> Description {
        let all = self.named.iter().chain(self.leaving.iter().map(|(named, _)| named));
        all.fold(description, |all, named| all.child(&*named.name, named.child.describe(cx)))
    }
}

impl NamedChild {
    fn new(name: &Arc<str>) -> NamedChild {
        NamedChild {
            name: name.clone(),
            child: ChildPolicy::new(),
            endpoints: Endpoints::none(),
            state: LbState::connecting(),
            failed: false,
        }
    }

    /// Runs the child with its group of the endpoints.
    pub(crate) fn reconcile(&mut self, scope: PolicyScope, config: &LbConfig, cx: &mut Cx<'_>) {
        self.state = self.child.reconcile_in(scope, config, &self.endpoints, cx);
        self.remember_failure();
    }

    /// The same below the scope of the policy that holds it. Answers whether its state is another than before.
    pub(crate) fn reconcile_here(&mut self, config: &LbConfig, cx: &mut Cx<'_>) -> bool {
        if self.child.reuse(config, &self.endpoints, cx) {
            return false;
        }
        let before = self.state.clone();
        self.reconcile(cx.scope().clone(), config, cx);
        !self.state.is_same(&before)
    }

    fn keep(&mut self, cx: &mut Cx<'_>) {
        self.child.keep(cx);
        if let Some(state) = self.child.state() {
            self.state = state.clone();
        }
        self.remember_failure();
    }

    fn remember_failure(&mut self) {
        match self.state.connectivity {
            ConnectivityState::TransientFailure => self.failed = true,
            ConnectivityState::Ready => self.failed = false,
            ConnectivityState::Connecting | ConnectivityState::Idle => {}
        }
    }

    /// The name.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What the child itself last answered.
    pub(crate) fn state(&self) -> &LbState {
        &self.state
    }

    /// How the child counts: once failed it counts as failed until it is ready, so that a child which only ever
    /// tries again does not hold the whole in CONNECTING.
    pub(crate) fn connectivity(&self) -> ConnectivityState {
        if self.failed { ConnectivityState::TransientFailure } else { self.state.connectivity }
    }
}
