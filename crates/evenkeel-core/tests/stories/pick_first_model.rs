//! `pick_first`, compared with an event-by-event model of A61 under generated events.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_core::{Backoff, ConnectivityState, Core, Endpoint, Endpoints, LbEvent, Registry, Rng};
use proptest::prelude::*;
use serde_json::json;
use testkit::CoreSim;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const DELAY: u64 = 250;

#[derive(Clone, Debug)]
enum Step {
    Ready(usize),
    Fail(usize),
    Lose(usize),
    PickArgs,
    Wait(u64),
    List(Vec<usize>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let address = 0..NAMES.len();
    let list =
        proptest::sample::subsequence((0..NAMES.len()).collect::<Vec<_>>(), 0..=NAMES.len()).prop_shuffle();
    let step = prop_oneof![
        2 => address.clone().prop_map(Step::Ready),
        6 => address.clone().prop_map(Step::Fail),
        1 => address.prop_map(Step::Lose),
        2 => Just(Step::PickArgs),
        4 => prop_oneof![Just(1), Just(DELAY), Just(1_000), Just(5_000), Just(130_000)].prop_map(Step::Wait),
        1 => list.prop_map(Step::List),
    ];
    proptest::collection::vec(step, 1..60)
}

/// State of one address in the model.
#[derive(Clone, Debug, Default)]
struct Address {
    connecting_since: Option<u64>,
    backing_off_until: Option<u64>,
    attempts: i32,
    failed_in_pass: bool,
}

impl Address {
    fn is_idle(&self) -> bool {
        self.connecting_since.is_none() && self.backing_off_until.is_none()
    }

    fn start(&mut self, now: u64) {
        self.connecting_since = Some(now);
        self.attempts += 1;
    }

    /// The backoff is 1 s, times 1.6 for each earlier attempt, at most 120 s, from the start of the attempt.
    fn back_off(&mut self, now: u64) {
        let Some(start) = self.connecting_since.take() else { return };
        let wait = (1_000.0 * 1.6_f64.powi(self.attempts - 1)).min(120_000.0);
        self.backing_off_until = Some((start + wait.ceil() as u64).max(now));
        self.failed_in_pass = true;
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Mode {
    Idle,
    /// Index of the last started address, and the time at which the next one starts.
    PassResult(usize, u64),
    Retry,
    Ready(usize),
}

struct Model {
    now: u64,
    list: Vec<usize>,
    addresses: BTreeMap<usize, Address>,
    mode: Mode,
    sticky: bool,
}

impl Model {
    fn new(list: Vec<usize>) -> Model {
        let mut model =
            Model { now: 0, list: Vec::new(), addresses: BTreeMap::new(), mode: Mode::Idle, sticky: false };
        model.list(list, true);
        model
    }

    fn list(&mut self, list: Vec<usize>, start: bool) {
        if list == self.list {
            return;
        }
        let was_empty = self.list.is_empty();
        self.list = list;
        if self.list.is_empty() {
            self.mode = Mode::Idle;
            self.sticky = true;
            self.addresses.clear();
            return;
        }
        match self.mode {
            Mode::Ready(chosen) if self.list.contains(&chosen) => {}
            Mode::Idle if !start && !was_empty => self.addresses.clear(),
            _ => {
                let list = self.list.clone();
                self.addresses.retain(|address, _| list.contains(address));
                self.begin_pass();
            }
        }
    }

    fn begin_pass(&mut self) {
        for address in self.addresses.values_mut() {
            address.failed_in_pass = false;
        }
        let unstarted = self.list.clone();
        self.start(0);
        // Addresses that the pass has not reached are dropped.
        if let Mode::PassResult(last, _) = self.mode {
            self.addresses.retain(|address, _| unstarted[..=last].contains(address));
        }
    }

    /// Tries the address at this index; an address in backoff counts as failed.
    fn start(&mut self, place: usize) {
        let now = self.now;
        self.mode = Mode::PassResult(place, now + DELAY);
        let address = self.addresses.entry(self.list[place]).or_default();
        if address.backing_off_until.is_some() {
            address.failed_in_pass = true;
            self.after_failure(self.list[place]);
        } else if address.connecting_since.is_none() {
            address.start(now);
        }
    }

    fn after_failure(&mut self, which: usize) {
        let Mode::PassResult(last, _) = self.mode else { return };
        if self.list[last] == which && last + 1 < self.list.len() {
            self.start(last + 1);
        } else if last + 1 == self.list.len() && self.list.iter().all(|a| self.addresses[a].failed_in_pass) {
            self.mode = Mode::Retry;
            self.sticky = true;
            self.retry_idle();
        }
    }

    fn retry_idle(&mut self) {
        let now = self.now;
        for address in self.addresses.values_mut().filter(|address| address.is_idle()) {
            address.start(now);
        }
    }

    fn ready(&mut self, which: usize) {
        if self.addresses.get(&which).is_some_and(|address| address.connecting_since.is_some()) {
            self.addresses.clear();
            self.mode = Mode::Ready(which);
            self.sticky = false;
        }
    }

    fn fail(&mut self, which: usize) {
        let now = self.now;
        let Some(address) = self.addresses.get_mut(&which).filter(|a| a.connecting_since.is_some()) else {
            return;
        };
        address.back_off(now);
        if address.backing_off_until == Some(now) {
            address.backing_off_until = None;
        }
        self.after_failure(which);
        if self.mode == Mode::Retry {
            self.retry_idle();
        }
    }

    fn call(&mut self) {
        if self.mode == Mode::Idle && !self.list.is_empty() {
            self.begin_pass();
        }
    }

    fn wait(&mut self, millis: u64) {
        let end = self.now + millis;
        while self.now < end {
            self.now = self.next_change().clamp(self.now + 1, end);
            for address in self.addresses.values_mut() {
                if address.backing_off_until.is_some_and(|until| until <= self.now) {
                    address.backing_off_until = None;
                }
            }
            match self.mode {
                Mode::PassResult(last, next) if next <= self.now && last + 1 < self.list.len() => {
                    self.start(last + 1);
                }
                Mode::Retry => self.retry_idle(),
                _ => {}
            }
        }
    }

    /// Returns the time of the next change that no event causes: a backoff ends, or the next attempt is due.
    fn next_change(&self) -> u64 {
        let attempt = match self.mode {
            Mode::PassResult(last, next) if last + 1 < self.list.len() => Some(next),
            Mode::Retry if self.addresses.values().any(Address::is_idle) => Some(self.now),
            _ => None,
        };
        let backoffs = self.addresses.values().filter_map(|address| address.backing_off_until);
        backoffs.chain(attempt).min().unwrap_or(u64::MAX)
    }

    fn state(&self) -> ConnectivityState {
        match self.mode {
            Mode::Ready(_) => ConnectivityState::Ready,
            _ if self.list.is_empty() => ConnectivityState::TransientFailure,
            Mode::Idle => ConnectivityState::Idle,
            _ if self.sticky => ConnectivityState::TransientFailure,
            _ => ConnectivityState::Connecting,
        }
    }

    fn connecting(&self) -> Vec<&'static str> {
        let connecting = self.addresses.iter().filter(|(_, address)| address.connecting_since.is_some());
        connecting.map(|(which, _)| NAMES[*which]).collect()
    }
}

fn endpoints(list: &[usize]) -> Endpoints {
    Endpoints::list(list.iter().map(|which| Endpoint::at(NAMES[*which])))
}

fn is_in(sim: &CoreSim, which: usize, state: ConnectivityState) -> bool {
    sim.state_of(NAMES[which]) == Some(state)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// PF-4, PF-5, PF-6, PF-7, PF-8, PF-10, LBX-3: after every event, state and connecting addresses are
    /// those of the model.
    #[test]
    fn follows_the_model(steps in steps()) {
        let start = vec![0, 1, 2];
        // Backoffs in whole milliseconds, as in the model.
        let backoff = Backoff { jitter: 0.0, ..Backoff::default() };
        let core = Core::builder(Rng::fixed(1)).backoff(backoff).build();
        let mut sim = CoreSim::with(core, Registry::standard(), &json!([{"pick_first": {}}]), endpoints(&start));
        let mut model = Model::new(start);
        for step in steps {
            match &step {
                Step::Ready(which) if is_in(&sim, *which, ConnectivityState::Connecting) => {
                    sim.ready(NAMES[*which]);
                    // Pacing has tests of its own.
                    let id = sim.find(NAMES[*which]).expect("it is ready");
                    sim.handle(LbEvent::ResponseReceived(id));
                    model.ready(*which);
                }
                Step::Fail(which) if is_in(&sim, *which, ConnectivityState::Connecting) => {
                    sim.fail(NAMES[*which]);
                    model.fail(*which);
                }
                Step::Lose(which) if is_in(&sim, *which, ConnectivityState::Ready) => {
                    sim.lose(NAMES[*which]);
                    model.mode = Mode::Idle;
                }
                Step::PickArgs => {
                    let outcome = sim.pick().outcome();
                    match model.mode {
                        Mode::Ready(chosen) => prop_assert_eq!(outcome, NAMES[chosen]),
                        _ => prop_assert!(outcome == "queue" || outcome == "fail"),
                    }
                    model.call();
                }
                Step::Wait(millis) => {
                    sim.advance(Duration::from_millis(*millis));
                    model.wait(*millis);
                }
                Step::List(list) => {
                    sim.endpoints(endpoints(list));
                    model.list(list.clone(), false);
                }
                _ => {}
            }
            prop_assert_eq!(sim.state(), model.state(), "after {:?}", &step);
            let all = NAMES.iter().enumerate();
            let connecting: Vec<_> =
                all.filter(|(i, _)| is_in(&sim, *i, ConnectivityState::Connecting)).map(|(_, name)| *name).collect();
            prop_assert_eq!(connecting, model.connecting(), "after {:?}", step);
        }
    }
}
