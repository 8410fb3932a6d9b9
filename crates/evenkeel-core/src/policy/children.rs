//! Child policies by name, for weighted_target and xds_cluster_manager.
//!
//! The name identifies a child across updates and selects its group of the endpoints (A56, hierarchical addresses). A child
//! whose name was removed is retained for a while, in case the name is added again, or released at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::cx::PolicyScope;
use crate::engine::describe::{DescribeCx, Description};
use crate::policy::LbState;
use crate::{ChildPolicy, ConnectivityState, Cx, Endpoints, Instant, LbConfig};

/// Child policies in the order of the last list of names.
#[derive(Debug, Default)]
pub(crate) struct NamedChildren {
    named: Vec<NamedChild>,
    /// Removed children, each with the time of its release.
    leaving: Vec<(NamedChild, Instant)>,
    source: Option<Endpoints>,
}

/// Child policy with its name, endpoints and state.
#[derive(Debug)]
pub(crate) struct NamedChild {
    name: Arc<str>,
    child: ChildPolicy,
    endpoints: Endpoints,
    state: LbState,
    /// True if the child has been in TRANSIENT_FAILURE and not READY since.
    failed: bool,
}

impl NamedChildren {
    /// Replaces the names and assigns each child its group of the endpoints. The caller then reconciles each of them. Removed
    /// children are retained for `retention`. Returns true if the names changed.
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
        // A name that returns after the end of its retention gets a new child.
        self.leaving.retain(|(_, at)| *at > cx.now());
        if renamed {
            self.rename(names, cx.now() + retention);
            // With a retention of zero, the children that were just removed are released here.
            self.leaving.retain(|(_, at)| *at > cx.now());
        }
        if renamed || self.source.as_ref().is_none_or(|source| !source.is_same(endpoints)) {
            self.regroup(endpoints);
        }
        for (named, at) in &mut self.leaving {
            // The core releases children and timers that a run does not request.
            named.keep(cx);
            cx.wake_at(*at);
        }
        renamed
    }

    /// Requests all children if the inputs of the parent did not change. Returns the indexes of the outdated ones, which the
    /// caller reconciles ([`NamedChildren::at`]). Returns `None` if the caller must reconcile all: [`NamedChildren::update`] comes
    /// first then, and [`NamedChildren::set_indices`] last.
    pub(crate) fn keep(&self, cx: &mut Cx<'_>) -> Option<Vec<usize>> {
        // Leaving children need `update`, which requests their timers.
        if !self.leaving.is_empty() {
            return None;
        }
        cx.request_all_children()
    }

    /// Returns the child at an index.
    pub(crate) fn at(&mut self, index: usize) -> &mut NamedChild {
        &mut self.named[index]
    }

    /// Sets the indexes that [`NamedChildren::keep`] returns.
    pub(crate) fn set_indices(&self, cx: &mut Cx<'_>) {
        for (index, named) in self.named.iter().enumerate() {
            named.child.set_index(index, cx);
        }
    }

    fn rename<'n>(&mut self, names: impl Iterator<Item = &'n Arc<str>>, leave_at: Instant) {
        let present = std::mem::take(&mut self.named).into_iter().map(|named| (named, leave_at));
        let all = present.chain(std::mem::take(&mut self.leaving));
        let mut old: BTreeMap<_, _> = all.map(|(named, at)| (named.name.clone(), (named, at))).collect();
        // A child that was leaving is used again, with its connections (WT-4).
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

    /// Visits every child, including removed ones.
    pub(crate) fn each(&mut self, visit: &mut dyn FnMut(&mut ChildPolicy)) {
        for named in self.named.iter_mut().chain(self.leaving.iter_mut().map(|(named, _)| named)) {
            visit(&mut named.child);
        }
    }

    /// Returns the children in order, without removed ones.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &NamedChild> {
        self.named.iter()
    }

    /// Returns the children in order, to be reconciled, without removed ones.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut NamedChild> {
        self.named.iter_mut()
    }

    /// Returns the only child, if there is exactly one.
    pub(crate) fn only(&self) -> Option<&NamedChild> {
        match &self.named[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Returns the removed children, with the time of their release.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = (&NamedChild, Instant)> {
        self.leaving.iter().map(|(named, at)| (named, *at))
    }

    /// Returns READY if any child is, else CONNECTING if any is, else IDLE if any is, else TRANSIENT_FAILURE.
    pub(crate) fn connectivity(&self) -> ConnectivityState {
        let is_any =
            |state: &ConnectivityState| self.named.iter().any(|named| named.connectivity() == *state);
        let order = [ConnectivityState::Ready, ConnectivityState::Connecting, ConnectivityState::Idle];
        order.into_iter().find(is_any).unwrap_or(ConnectivityState::TransientFailure)
    }

    /// Adds the children to a description, including removed ones, since they hold connections.
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

    /// Reconciles the child with its group of the endpoints.
    pub(crate) fn reconcile(&mut self, scope: PolicyScope, config: &LbConfig, cx: &mut Cx<'_>) {
        self.state = self.child.reconcile_in(scope, config, &self.endpoints, cx);
        self.remember_failure();
    }

    /// Reconciles the child in the scope of its parent. Returns true if its state changed.
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

    /// Returns the name of the child.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the last state of the child.
    pub(crate) fn state(&self) -> &LbState {
        &self.state
    }

    /// Returns the connectivity for aggregation. A failed child counts as failed until it is ready, so that repeated attempts
    /// do not keep the parent in CONNECTING.
    pub(crate) fn connectivity(&self) -> ConnectivityState {
        if self.failed { ConnectivityState::TransientFailure } else { self.state.connectivity }
    }
}
