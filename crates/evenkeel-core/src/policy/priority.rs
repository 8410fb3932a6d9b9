//! `priority_experimental`: all calls to the highest priority that works.
//!
//! A56 (the algorithm), A115 (a child that left the config is gone at once), A37 (requests for re-resolution that are
//! swallowed). Each priority is a named child policy, made only when every priority above it fails or takes too long:
//!
//! ```text
//!            10 s, or TRANSIENT_FAILURE above        READY or IDLE above
//!   (none) ─────────────────────────────────▶ active ───────────────────▶ deactivated ── 15 min ──▶ (none)
//!                                               ▲                              │
//!                                               └──────── needed again ────────┘
//! ```
//!
//! A deactivated child goes on running, connections and updates included, so that a priority that flaps costs
//! nothing. Priorities do not share calls (A27): the chosen child's picker is the policy's picker.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::config::{ConfigError, ConfigFields};
use crate::engine::describe::{DescribeCx, Description};
use crate::policy::{CachedState, LbState, Policy};
use crate::{ChildPolicy, ClusterTransport, ConnectivityState, Cx, Endpoints, Instant, LbConfig, Status};

/// The name under which the policy is registered, and under which others run it.
pub(crate) const NAME: &str = "priority_experimental";

/// How long a child may be connecting before the next priority is tried beside it (A56).
const FAILOVER: Duration = Duration::from_secs(10);

/// How long a child is kept after a higher priority took over (A56).
const RETENTION: Duration = Duration::from_secs(15 * 60);

/// The policy.
#[derive(Debug, Default)]
pub struct Priority {
    /// The children that exist, by name.
    child_states: BTreeMap<Arc<str>, PriorityChildState>,
    priorities: Vec<Arc<str>>,
    chosen: Option<Arc<str>>,
    nothing: CachedState<Status>,
}

/// Settings of `priority_experimental`.
#[derive(Clone, Debug, Default)]
pub struct PriorityConfig {
    /// The children by name. A name keeps its child, whatever its priority becomes.
    pub children: BTreeMap<Arc<str>, PriorityChild>,
    /// Names of children, each once, the highest priority first. Names without a child are passed over.
    pub priorities: Vec<Arc<str>>,
}

/// One child of `priority_experimental`.
#[derive(Clone, Debug)]
pub struct PriorityChild {
    /// Its policy.
    pub config: LbConfig,
    /// Whether its requests for re-resolution are swallowed (A37).
    pub ignore_reresolution_requests: bool,
    /// The resolution note for its failures, if it has one of its own (A88). Not part of the JSON form.
    pub note: Option<Arc<str>>,
    /// The cluster that it serves, for the labels of what is measured below it (A91). Not part of the JSON form.
    pub backend_service: Option<Arc<str>>,
    /// By what means connections below it are made, if by others than elsewhere. Not part of the JSON form.
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

    fn each_child(&mut self, visit: &mut dyn FnMut(&mut ChildPolicy)) {
        for child_state in self.child_states.values_mut() {
            visit(&mut child_state.child);
        }
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

impl Priority {
    /// Brings every child that exists up to date, deactivated ones too, before anything is chosen. A child that left
    /// the config is let go at once (A115).
    fn update(&mut self, config: &PriorityConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) {
        self.child_states.retain(|name, child_state| {
            let Some(settings) = config.children.get(name) else { return false };
            child_state.reconcile(settings, &endpoints.group(name), cx);
            true
        });
    }

    /// A56's choice: the first that works or still has time to; else the first that is connecting; else the last.
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
        tried.clone().find(is_connecting).or_else(|| tried.next_back()).cloned()
    }

    fn deactivate_all_but(&mut self, needed: &[Arc<str>], now: Instant) {
        for (name, child_state) in &mut self.child_states {
            if !needed.contains(name) {
                child_state.remove_at.get_or_insert(now + RETENTION);
            }
        }
    }

    /// Lets go of children that have been deactivated for long. This comes after the choice: a child that is needed
    /// at the moment its time is over is still there.
    fn expire(&mut self, cx: &mut Cx<'_>) {
        self.child_states.retain(|_, child_state| {
            let Some(at) = child_state.remove_at else { return true };
            let keep = cx.now() < at;
            if keep {
                cx.wake_at(at);
            } else {
                std::mem::take(&mut child_state.child).release(cx);
            }
            keep
        });
    }

    /// The deadlines that lie ahead, as `{"child": "7.5s"}`.
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

/// A child that exists.
#[derive(Debug)]
struct PriorityChildState {
    child: ChildPolicy,
    state: LbState,
    /// It is given until then to connect; `None` once it was READY, IDLE or TRANSIENT_FAILURE.
    failover_at: Option<Instant>,
    /// It was READY or IDLE, and not TRANSIENT_FAILURE since.
    was_up: bool,
    /// It is deactivated, and removed at that time.
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
            // A56: only what worked is given time again; what failed last is not waited for.
            ConnectivityState::Connecting if before != ConnectivityState::Connecting && self.was_up => {
                self.failover_at = Some(cx.now() + FAILOVER);
            }
            ConnectivityState::Connecting => {}
        }
    }
}
