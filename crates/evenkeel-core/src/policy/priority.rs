//! `priority_experimental`: sends all calls to the highest usable priority.
//!
//! Implements A56 (the algorithm), A115 (a child removed from the config is released at once) and A37
//! (ignored re-resolution requests). Each priority is a named child policy. It is created only if every
//! higher priority fails or is connecting for too long:
//!
//! ```text
//!            10 s, or TRANSIENT_FAILURE above        READY or IDLE above
//!   (none) ─────────────────────────────────▶ active ───────────────────▶ deactivated ── 15 min ──▶ (none)
//!                                               ▲                              │
//!                                               └──────── needed again ────────┘
//! ```
//!
//! A deactivated child keeps running, with its connections and updates, so that a flapping priority costs no
//! reconnects. Priorities do not share calls (A27): the policy returns the picker of the chosen child.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::config::{ConfigError, ConfigFields};
use crate::engine::describe::{DescribeCx, Description};
use crate::engine::pure_parent::PureParent;
use crate::policy::{CachedState, LbState, Policy};
use crate::{ChildPolicy, ClusterTransport, ConnectivityState, Cx, Endpoints, Instant, LbConfig, Status};

/// Registered name of the policy; also used by the policies that create it as a child.
pub(crate) const NAME: &str = "priority_experimental";

/// Failover timer: maximum time in CONNECTING before the next priority is tried (A56).
const FAILOVER: Duration = Duration::from_secs(10);

/// Retention time of a child after a higher priority took over (A56).
const RETENTION: Duration = Duration::from_secs(15 * 60);

/// Implementation of the `priority_experimental` policy.
#[derive(Debug, Default)]
pub struct Priority {
    /// Existing children by name.
    child_states: BTreeMap<Arc<str>, PriorityChildState>,
    priorities: Vec<Arc<str>>,
    chosen: Option<Arc<str>>,
    nothing: CachedState<Status>,
}

/// Settings of the `priority_experimental` policy.
#[derive(Clone, Debug, Default)]
pub struct PriorityConfig {
    /// Children by name. A child is kept while its name is listed, whatever its priority.
    pub children: BTreeMap<Arc<str>, PriorityChild>,
    /// Names of children without duplicates, highest priority first. Unknown names are skipped.
    pub priorities: Vec<Arc<str>>,
}

/// One child of `priority_experimental`.
#[derive(Clone, Debug)]
pub struct PriorityChild {
    /// Config of the child policy.
    pub config: LbConfig,
    /// True to ignore the child's re-resolution requests (A37).
    pub ignore_reresolution_requests: bool,
    /// Resolution note for the child's failures, if it has a separate one (A88). Not part of the JSON form.
    pub note: Option<Arc<str>>,
    /// Name of the cluster, as a label of measurements below this child (A91). Not part of the JSON form.
    pub backend_service: Option<Arc<str>>,
    /// Transport parameters of connections below this child; `None` inherits them. Not part of the JSON form.
    pub transport: Option<Arc<ClusterTransport>>,
}

impl Policy for Priority {
    type Config = PriorityConfig;

    fn parse(fields: &ConfigFields<'_>) -> Result<PriorityConfig, ConfigError> {
        let mut children = BTreeMap::new();
        for (name, child) in fields.map("children")? {
            let ignore = child.bool("ignoreReresolutionRequests")?.unwrap_or(false);
            let child = PriorityChild {
                config: child.child("config")?,
                ignore_reresolution_requests: ignore,
                note: None,
                backend_service: None,
                transport: None,
            };
            children.insert(Arc::from(name), child);
        }
        let priorities: Vec<Arc<str>> = fields.strings("priorities")?.into_iter().map(Arc::from).collect();
        let mut listed = BTreeSet::new();
        for (i, name) in priorities.iter().enumerate() {
            let at = format!("priorities[{i}]");
            if !children.contains_key(name) {
                return Err(fields.error(&at, format!("{name:?} is not one of the children")));
            }
            if !listed.insert(name) {
                return Err(fields.error(&at, format!("{name:?} is listed twice; a child has one priority")));
            }
        }
        for name in children.keys().filter(|name| !listed.contains(name)) {
            fields.warn(&format!("children[{name:?}]"), "has no priority and is never used");
        }
        Ok(PriorityConfig { children, priorities })
    }

    fn to_json(config: &PriorityConfig) -> Value {
        let child = |(name, child): (&Arc<str>, &PriorityChild)| {
            let json = json!({
                "config": [child.config.to_json()],
                "ignoreReresolutionRequests": child.ignore_reresolution_requests,
            });
            (name.to_string(), json)
        };
        let children: Map<String, Value> = config.children.iter().map(child).collect();
        json!({ "children": children, "priorities": config.priorities })
    }

    fn reconcile(&mut self, config: &PriorityConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        self.update(config, endpoints, cx);
        self.chosen = self.choose(config, endpoints, cx);
        self.expire(cx);
        self.priorities.clone_from(&config.priorities);
        if let Some(chosen) = self.chosen.as_ref().and_then(|name| self.child_states.get(name)) {
            return chosen.state.clone();
        }
        let status = cx.unavailable("the list of priorities is empty");
        self.nothing.get_or_build(status, |status| LbState::failing(status.clone()))
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        let mut description = Description::new()
            .detail("priorities", self.priorities.iter().map(|name| &**name).collect::<Vec<_>>())
            .detail("chosen", self.chosen.as_deref().map(Value::from))
            .detail("failoverIn", self.remaining(cx, |child_state| child_state.failover_at))
            .detail("removedIn", self.remaining(cx, |child_state| child_state.remove_at));
        let unlisted = self.child_states.keys().filter(|name| !self.priorities.contains(name));
        for name in self.priorities.iter().chain(unlisted) {
            let child = self.child_states.get(name).and_then(|child_state| child_state.child.describe(cx));
            description = description.child(&**name, child);
        }
        description
    }
}

impl PureParent for Priority {
    fn each_child(&mut self, visit: &mut dyn FnMut(&mut ChildPolicy)) {
        for child_state in self.child_states.values_mut() {
            visit(&mut child_state.child);
        }
    }
}

impl Priority {
    /// Runs every existing child, deactivated ones included, before the choice. A child that is removed from
    /// the config is released at once (A115).
    fn update(&mut self, config: &PriorityConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) {
        self.child_states.retain(|name, child_state| {
            // The core removes the child, since this run does not request it.
            let Some(settings) = config.children.get(name) else { return false };
            child_state.reconcile(settings, &endpoints.group(name), cx);
            true
        });
    }

    /// Chooses a child as in A56: the first that is READY, IDLE or within its failover timer; else the first
    /// that is CONNECTING; else the last.
    fn choose(
        &mut self,
        config: &PriorityConfig,
        endpoints: &Endpoints,
        cx: &mut Cx<'_>,
    ) -> Option<Arc<str>> {
        for (i, name) in config.priorities.iter().enumerate() {
            let Some(settings) = config.children.get(name) else { continue };
            let child_state = self.child_states.entry(name.clone()).or_insert_with(|| {
                let mut child_state = PriorityChildState::new(cx.now());
                child_state.reconcile(settings, &endpoints.group(name), cx);
                child_state
            });
            child_state.remove_at = None;
            if matches!(child_state.state.connectivity, ConnectivityState::Ready | ConnectivityState::Idle) {
                // PR-4: READY or IDLE deactivates the lower priorities; a pending failover timer keeps them.
                self.deactivate_all_but(&config.priorities[..=i], cx.now());
                return Some(name.clone());
            }
            if let Some(at) = child_state.failover_at.filter(|at| cx.now() < *at) {
                cx.wake_at(at);
                return Some(name.clone());
            }
        }
        let is_connecting = |name: &&Arc<str>| {
            let child_state = self.child_states.get(*name);
            child_state
                .is_some_and(|child_state| child_state.state.connectivity == ConnectivityState::Connecting)
        };
        let mut tried = config.priorities.iter().filter(|name| self.child_states.contains_key(*name));
        // Without a usable child, the last one reports the failure.
        tried.clone().find(is_connecting).or_else(|| tried.next_back()).cloned()
    }

    fn deactivate_all_but(&mut self, needed: &[Arc<str>], now: Instant) {
        for (name, child_state) in &mut self.child_states {
            if !needed.contains(name) {
                // A child that is deactivated already keeps its deadline.
                child_state.remove_at.get_or_insert(now + RETENTION);
            }
        }
    }

    /// Releases children whose retention time has passed. Runs after the choice, so that a child that is
    /// needed again at that very moment is kept.
    fn expire(&mut self, cx: &mut Cx<'_>) {
        self.child_states.retain(|_, child_state| {
            let Some(at) = child_state.remove_at else { return true };
            let keep = cx.now() < at;
            if keep {
                cx.wake_at(at);
            } else {
                // `update` requested the child in this run, so the core would not remove it.
                std::mem::take(&mut child_state.child).release(cx);
            }
            keep
        });
    }

    /// Returns the pending deadlines, as `{"child": "7.5s"}`.
    fn remaining(
        &self,
        cx: &DescribeCx<'_>,
        deadline: impl Fn(&PriorityChildState) -> Option<Instant>,
    ) -> Map<String, Value> {
        let ahead = |(name, child_state): (&Arc<str>, &PriorityChildState)| {
            let wait = deadline(child_state)?.since(cx.now());
            (wait > Duration::ZERO).then(|| (name.to_string(), Value::from(format!("{wait:.1?}"))))
        };
        self.child_states.iter().filter_map(ahead).collect()
    }
}

/// State of an existing child.
#[derive(Debug)]
struct PriorityChildState {
    child: ChildPolicy,
    state: LbState,
    /// End of the failover timer; `None` once the child was READY, IDLE or TRANSIENT_FAILURE.
    failover_at: Option<Instant>,
    /// True if the child was READY or IDLE after its last TRANSIENT_FAILURE.
    was_up: bool,
    /// Removal time of a deactivated child; `None` while it is active.
    remove_at: Option<Instant>,
}

impl PriorityChildState {
    fn new(now: Instant) -> PriorityChildState {
        PriorityChildState {
            child: ChildPolicy::new(),
            state: LbState::connecting(),
            failover_at: Some(now + FAILOVER),
            was_up: false,
            remove_at: None,
        }
    }

    fn reconcile(&mut self, settings: &PriorityChild, endpoints: &Endpoints, cx: &mut Cx<'_>) {
        let mut scope = cx.scope().clone();
        if settings.ignore_reresolution_requests {
            scope = scope.without_reresolution();
        }
        if let Some(note) = &settings.note {
            scope = scope.and_note(note);
        }
        if let Some(name) = &settings.backend_service {
            scope = scope.with_backend_service(name.clone());
        }
        if let Some(transport) = &settings.transport {
            scope = scope.with_transport(transport.clone());
        }
        if self.remove_at.is_some() {
            scope = scope.deactivated();
        }
        let before = self.state.connectivity;
        self.state = self.child.reconcile_in(scope, &settings.config, endpoints, cx);
        match self.state.connectivity {
            ConnectivityState::Ready | ConnectivityState::Idle => {
                self.failover_at = None;
                self.was_up = true;
            }
            ConnectivityState::TransientFailure => {
                self.failover_at = None;
                self.was_up = false;
            }
            // A56: the failover timer restarts only after READY or IDLE, not after TRANSIENT_FAILURE.
            ConnectivityState::Connecting if before != ConnectivityState::Connecting && self.was_up => {
                self.failover_at = Some(cx.now() + FAILOVER);
            }
            ConnectivityState::Connecting => {}
        }
    }
}
