//! The policy, compared with a model that handles each event as A56 describes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_core::policy::Policy;
use evenkeel_core::{
    CachedState, ConfigError, ConfigFields, ConnectivityState, Core, Cx, DescribeCx, Description, Endpoint,
    Endpoints, Instant, LbEvent, LbState, PickArgs, PickResult, Picker, Registry, Rng, Status,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use testkit::{CoreSim, lock};

use super::{chosen, deactivated, existing, secs};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Event-by-event model of A56.
#[derive(Default)]
struct Model {
    now: Duration,
    /// State that each child reports. For children that do not exist yet, the state that they will report
    /// after their creation.
    reports: BTreeMap<&'static str, ConnectivityState>,
    configured: Vec<&'static str>,
    priorities: Vec<&'static str>,
    children: BTreeMap<&'static str, ModelChild>,
    current: Option<&'static str>,
}

struct ModelChild {
    state: ConnectivityState,
    failover_timer: Option<Duration>,
    deactivation_timer: Option<Duration>,
    ready_or_idle_since_failure: bool,
}

impl Model {
    fn report(&mut self, name: &'static str) {
        let state = self.reports.get(name).copied().unwrap_or_else(|| panic!("{name} was not created"));
        let failover_at = self.now + secs(10);
        let Some(child) = self.children.get_mut(name) else { return };
        match state {
            ConnectivityState::Ready | ConnectivityState::Idle => {
                child.failover_timer = None;
                child.ready_or_idle_since_failure = true;
            }
            ConnectivityState::TransientFailure => {
                child.failover_timer = None;
                child.ready_or_idle_since_failure = false;
            }
            ConnectivityState::Connecting => {
                if child.state != ConnectivityState::Connecting && child.ready_or_idle_since_failure {
                    child.failover_timer = Some(failover_at);
                }
            }
        }
        child.state = state;
    }

    fn create(&mut self, name: &'static str) {
        let child = ModelChild {
            state: ConnectivityState::Connecting,
            failover_timer: Some(self.now + secs(10)),
            deactivation_timer: None,
            ready_or_idle_since_failure: false,
        };
        self.children.insert(name, child);
        self.report(name);
    }

    fn choose_priority(&mut self) {
        self.current = None;
        for priority in 0..self.priorities.len() {
            let name = self.priorities[priority];
            if !self.children.contains_key(name) {
                self.create(name);
            }
            let child = self.children.get_mut(name).expect("the child was created");
            child.deactivation_timer = None;
            if matches!(child.state, ConnectivityState::Ready | ConnectivityState::Idle) {
                return self.set_current_priority(priority, true);
            }
            if child.failover_timer.is_some() {
                return self.set_current_priority(priority, false);
            }
        }
        let is_connecting = |name: &&str| self.children[*name].state == ConnectivityState::Connecting;
        match self.priorities.iter().position(is_connecting) {
            Some(priority) => self.set_current_priority(priority, false),
            None if self.priorities.is_empty() => {}
            None => self.set_current_priority(self.priorities.len() - 1, false),
        }
    }

    fn set_current_priority(&mut self, priority: usize, deactivate_lower_priorities: bool) {
        let needed = &self.priorities[..=priority];
        if deactivate_lower_priorities {
            // evenkeel: a child of the config without a priority counts as lower than any.
            for (_, child) in self.children.iter_mut().filter(|(name, _)| !needed.contains(name)) {
                child.deactivation_timer.get_or_insert(self.now + secs(15 * 60));
            }
        }
        self.current = Some(self.priorities[priority]);
    }

    fn handle_report(&mut self, name: &'static str) {
        self.report(name);
        self.choose_priority();
    }

    fn handle_config(&mut self, configured: Vec<&'static str>, priorities: Vec<&'static str>) {
        // A115: a child that the config no longer names is dropped.
        self.children.retain(|name, _| configured.contains(name));
        (self.configured, self.priorities) = (configured, priorities);
        self.choose_priority();
    }

    /// Next timer: time, whether it is a deactivation timer, and child. Overdue timers fire now. At the same
    /// time a failover fires first, so that a child is not removed when it is needed.
    fn next_timer(&self) -> Option<(Duration, bool, &'static str)> {
        let due = |timer: Option<Duration>| timer.map(|at| at.max(self.now));
        let timers = self.children.iter().flat_map(|(name, child)| {
            let failover = due(child.failover_timer).map(|at| (at, false, *name));
            failover.into_iter().chain(due(child.deactivation_timer).map(|at| (at, true, *name)))
        });
        timers.min()
    }

    fn fire_until(&mut self, end: Duration) {
        while let Some((at, deactivation, name)) = self.next_timer().filter(|(at, ..)| *at <= end) {
            self.now = self.now.max(at);
            if deactivation {
                self.children.remove(name);
            } else if let Some(child) = self.children.get_mut(name) {
                child.failover_timer = None;
                self.choose_priority();
            }
        }
        self.now = end;
    }

    fn state(&self) -> ConnectivityState {
        self.current.map_or(ConnectivityState::TransientFailure, |name| self.children[name].state)
    }

    fn existing(&self) -> BTreeSet<String> {
        self.children.keys().map(ToString::to_string).collect()
    }

    fn deactivated(&self) -> Vec<String> {
        let deactivated = self.children.iter().filter(|(_, child)| child.deactivation_timer.is_some());
        deactivated.map(|(name, _)| name.to_string()).collect()
    }

    fn config(&self, policy: impl Fn(&str) -> Value) -> Value {
        let children: serde_json::Map<_, _> = self
            .configured
            .iter()
            .map(|name| (name.to_string(), json!({"config": [policy(name)]})))
            .collect();
        json!([{"priority_experimental": {"children": children, "priorities": self.priorities}}])
    }

    fn agrees_with(&self, sim: &CoreSim) -> Result<(), TestCaseError> {
        prop_assert_eq!(chosen(sim), self.current.map(str::to_owned));
        prop_assert_eq!(sim.state(), self.state());
        prop_assert_eq!(existing(sim).into_iter().collect::<BTreeSet<_>>(), self.existing());
        prop_assert_eq!(deactivated(sim), self.deactivated());
        Ok(())
    }
}

/// Random config: the names of the children, and those of them that are priorities, in order.
fn any_config() -> impl Strategy<Value = (Vec<&'static str>, Vec<&'static str>)> {
    let shuffled = Just(NAMES.to_vec()).prop_shuffle();
    (shuffled, 0..=5usize, 0..4usize).prop_map(|(names, listed, unlisted)| {
        // Children without a priority are rare.
        let configured = (listed + unlisted.saturating_sub(2)).min(names.len());
        (names[..configured].to_vec(), names[..listed].to_vec())
    })
}

fn any_wait() -> impl Strategy<Value = Duration> {
    prop::sample::select(vec![1, 4, 5, 9, 10, 60, 440, 890, 900]).prop_map(secs)
}

/// Test leaf with the state that the test sets. Its picker fails calls with its name.
struct Scripted {
    stage: Stage,
    name: String,
    state: CachedState<ConnectivityState>,
}

#[derive(Clone, Default)]
struct Stage(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    states: BTreeMap<String, ConnectivityState>,
    /// Names of the leaves that exist.
    existing: BTreeSet<String>,
}

impl Stage {
    fn with<T>(&self, access: impl FnOnce(&mut Script) -> T) -> T {
        access(&mut lock(&self.0))
    }
}

struct Named(String);

impl Picker for Named {
    fn pick(&self, _: &PickArgs<'_>) -> PickResult {
        PickResult::Fail(Status::unavailable(self.0.as_str()))
    }
}

impl Policy for Scripted {
    type Config = String;

    fn parse(fields: &ConfigFields<'_>) -> Result<String, ConfigError> {
        Ok(fields.str("name")?.unwrap_or_default().to_owned())
    }

    fn reconcile(&mut self, name: &String, _: &Endpoints, _: &mut Cx<'_>) -> LbState {
        self.name.clone_from(name);
        let state = self.stage.with(|script| {
            script.existing.insert(name.clone());
            script.states[name]
        });
        self.state.get_or_build(state, |state| LbState::new(*state, Named(name.clone())))
    }

    fn describe(&self, _: &DescribeCx<'_>) -> Description {
        Description::new()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.stage.with(|script| script.existing.remove(&self.name));
    }
}

#[derive(Clone, Debug)]
enum Cue {
    Report(&'static str, ConnectivityState),
    Config(Vec<&'static str>, Vec<&'static str>),
    Advance(Duration),
    Sleep(Duration),
}

fn any_cue() -> impl Strategy<Value = Cue> {
    let states = vec![
        ConnectivityState::Idle,
        ConnectivityState::Connecting,
        ConnectivityState::Connecting,
        ConnectivityState::Ready,
        ConnectivityState::TransientFailure,
    ];
    prop_oneof![
        8 => (prop::sample::select(NAMES.to_vec()), prop::sample::select(states))
            .prop_map(|(name, state)| Cue::Report(name, state)),
        2 => any_config().prop_map(|(configured, priorities)| Cue::Config(configured, priorities)),
        4 => any_wait().prop_map(Cue::Advance),
        1 => any_wait().prop_map(Cue::Sleep),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// PR-2, PR-3, PR-4, PR-5, PR-6, PR-8: children that report any state at any time are selected, created
    /// and dropped as in A56.
    #[test]
    fn scripted_children_are_chosen_created_and_dropped_as_in_a56(
        first in any_config(),
        cues in prop::collection::vec(any_cue(), 1..60),
    ) {
        let stage = Stage::default();
        let mut model = Model { reports: NAMES.map(|name| (name, ConnectivityState::Connecting)).into(), ..Model::default() };
        stage.with(|script| script.states = NAMES.map(|name| (name.to_owned(), ConnectivityState::Connecting)).into());
        let policy = |name: &str| json!({"scripted": {"name": name}});
        model.handle_config(first.0, first.1);
        let mut registry = Registry::standard();
        let make = stage.clone();
        registry.register_with("scripted", move || {
            Scripted { stage: make.clone(), name: String::new(), state: CachedState::default() }
        });
        let core = Core::builder(Rng::fixed(1)).build();
        let mut sim = CoreSim::with(core, registry, &model.config(policy), Endpoints::none());
        model.agrees_with(&sim)?;
        for cue in cues {
            match cue {
                Cue::Report(name, state) => {
                    model.reports.insert(name, state);
                    stage.with(|script| script.states.insert(name.to_owned(), state));
                    // ExitIdle reconciles every policy.
                    sim.handle(LbEvent::ExitIdle);
                    model.handle_report(name);
                }
                Cue::Config(configured, priorities) => {
                    model.handle_config(configured, priorities);
                    sim.config(&model.config(policy));
                }
                Cue::Advance(by) => {
                    sim.advance(by);
                    model.fire_until(model.now + by);
                }
                Cue::Sleep(by) => {
                    sim.sleep_through(by);
                    // During the pause nothing fired on time. All elapsed timers fire at its end.
                    model.now += by;
                    model.fire_until(model.now);
                }
            }
            model.agrees_with(&sim)?;
            prop_assert_eq!(stage.with(|script| script.existing.clone()), model.existing());
            let status = sim.pick().status().map(|status| status.message().to_owned());
            prop_assert_eq!(status.as_deref(), Some(model.current.unwrap_or("the list of priorities is empty")));
        }
    }
}

#[derive(Clone, Debug)]
enum Happening {
    Up(&'static str),
    Down(&'static str),
    PickArgs,
    Config(Vec<&'static str>, Vec<&'static str>),
    Advance(Duration),
}

fn any_happening() -> impl Strategy<Value = Happening> {
    let name = || prop::sample::select(NAMES.to_vec());
    prop_oneof![
        4 => name().prop_map(Happening::Up),
        4 => name().prop_map(Happening::Down),
        2 => Just(Happening::PickArgs),
        2 => any_config().prop_map(|(configured, priorities)| Happening::Config(configured, priorities)),
        4 => any_wait().prop_map(Happening::Advance),
    ]
}

impl Model {
    /// Applies the reports of all leaves as one update.
    fn observe(&mut self, sim: &CoreSim) {
        let described = sim.describe().children;
        self.reports = NAMES
            .into_iter()
            .filter_map(|name| {
                let (_, child) = described.iter().find(|(child, _)| child == name)?;
                Some((name, child.state?))
            })
            .collect();
        let news: Vec<_> =
            self.children.keys().copied().filter(|name| self.reports.contains_key(name)).collect();
        for name in news {
            self.report(name);
        }
        self.choose_priority();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    /// PR-2, PR-3, PR-4, PR-5, PR-6, PR-8, PR-11: real leaves whose backends go up and down are selected,
    /// created and dropped as in A56. `a`, `c` and `e` are round_robin, `b` and `d` pick_first, each over the
    /// backend of its name.
    #[test]
    fn real_children_are_chosen_created_and_dropped_as_in_a56(
        first in any_config(),
        happenings in prop::collection::vec(any_happening(), 1..40),
    ) {
        let policy = |name: &str| if "bd".contains(name) { json!({"pick_first": {}}) } else { json!({"round_robin": {}}) };
        let mut model = Model { configured: first.0, priorities: first.1, ..Model::default() };
        let endpoints = Endpoints::groups(NAMES.map(|name| (name, Endpoints::list([Endpoint::at(name)]))));
        let mut sim = CoreSim::new(&model.config(policy), endpoints);
        model.observe(&sim);
        model.agrees_with(&sim)?;
        for happening in happenings {
            match happening {
                Happening::Up(name) => sim.up(name),
                Happening::Down(name) => sim.down(name),
                Happening::PickArgs => {
                    let outcome = sim.pick().finish_ok();
                    match model.state() {
                        ConnectivityState::Ready => prop_assert_eq!(Some(outcome.as_str()), model.current),
                        ConnectivityState::TransientFailure => prop_assert_eq!(outcome, "fail"),
                        ConnectivityState::Idle | ConnectivityState::Connecting => prop_assert_eq!(outcome, "queue"),
                    }
                }
                Happening::Config(configured, priorities) => {
                    model.children.retain(|name, _| configured.contains(name));
                    (model.configured, model.priorities) = (configured, priorities);
                    sim.config(&model.config(policy));
                }
                Happening::Advance(by) => {
                    let end = sim.now() + by;
                    // Stop at each time at which the core acts, so that the model sees every step.
                    while let Some(at) = sim.wake_at().filter(|at| *at <= end) {
                        sim.advance(at.since(sim.now()));
                        model.observe_at(&sim);
                        model.agrees_with(&sim)?;
                    }
                    sim.advance(end.since(sim.now()));
                }
            }
            model.observe_at(&sim);
            model.agrees_with(&sim)?;
        }
    }
}

impl Model {
    /// Observes the simulation. Reports of this time precede timers that fire at this time.
    fn observe_at(&mut self, sim: &CoreSim) {
        let now = sim.now().since(Instant::ORIGIN);
        let due = |timer: &mut Option<Duration>| *timer = timer.filter(|at| *at > now);
        self.now = now;
        self.children.values_mut().for_each(|child| due(&mut child.failover_timer));
        self.observe(sim);
        self.fire_until(now);
    }
}
