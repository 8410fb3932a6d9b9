//! Subchannel states, compared with a model under generated events.

use std::time::Duration;

use evenkeel_core::{
    Backoff, ConnectivityState, Core, Instant, LbEffect, LbEvent, LbUpdate, LoadReport, Registry, Rng,
    Status, SubchannelId,
};
use proptest::prelude::*;
use serde_json::json;
use testkit::endpoints;

#[derive(Clone, Copy, Debug)]
enum Step {
    Connected,
    Failed,
    Responded,
    Lost,
    Requested,
    Load,
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => Just(Step::Connected),
        4 => Just(Step::Failed),
        1 => Just(Step::Responded),
        2 => Just(Step::Lost),
        1 => Just(Step::Requested),
        1 => Just(Step::Load),
        4 => prop_oneof![Just(1u64), Just(500), Just(1_600), Just(30_000), Just(121_000)].prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 1..80)
}

/// Subchannel states of gRPC's connection backoff document, with one policy that always requests a
/// connection.
#[derive(Debug)]
struct Model {
    state: ConnectivityState,
    started: u64,
    failures_in_row: i32,
    until: u64,
    opened: u64,
    responded: bool,
    /// Number of consecutive connections that ended within a second and without a response.
    fruitless: u32,
    /// Time at which a paced attempt begins; the state is CONNECTING until then.
    paced_until: Option<u64>,
}

impl Model {
    fn connect(&mut self, now: u64) {
        self.state = ConnectivityState::Connecting;
        self.started = now;
    }

    fn is_under_way(&self) -> bool {
        self.state == ConnectivityState::Connecting && self.paced_until.is_none()
    }

    fn lose(&mut self, now: u64) {
        let is_fruitless = !self.responded && now < self.opened + 1_000_000_000;
        self.fruitless = if is_fruitless { self.fruitless + 1 } else { 0 };
        self.connect(now);
        self.paced_until = (self.fruitless > 1).then_some(self.opened + 1_000_000_000);
    }

    fn fail(&mut self, now: u64) {
        let wait = (1e9 * 1.6_f64.powi(self.failures_in_row)).min(120e9);
        self.failures_in_row += 1;
        self.until = (self.started + wait as u64).max(now);
        self.state = ConnectivityState::TransientFailure;
        self.tick(now);
    }

    fn tick(&mut self, now: u64) {
        if let Some(at) = self.paced_until
            && at <= now
        {
            self.paced_until = None;
            self.connect(now);
        }
        if self.state == ConnectivityState::TransientFailure && self.until <= now {
            self.connect(now);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// PF-10: after every event the subchannel has the state and the retry time of the model.
    #[test]
    fn follows_the_model(steps in steps()) {
        let backoff = Backoff { jitter: 0.0, ..Backoff::default() };
        let mut core = Core::builder(Rng::fixed(1)).backoff(backoff).build();
        let config = Registry::standard().parse(&json!([{"round_robin": {}}])).expect("valid");
        core.update(LbUpdate::new(config, endpoints(["a"])));
        let mut now = 0;
        let mut model = Model {
            state: ConnectivityState::Connecting, started: 0, failures_in_row: 0, until: 0,
            opened: 0, responded: false, fruitless: 0, paced_until: None,
        };
        let id = pass(&mut core, now).expect("a is dialled at once");
        for step in steps {
            let at = Instant::from_nanos(now);
            let error = Status::unavailable("x");
            let (news, expected) = match step {
                Step::Connected => (core.handle(LbEvent::Connected(id), at), model.is_under_way()),
                Step::Failed => (core.handle(LbEvent::ConnectFailed(id, error), at), model.is_under_way()),
                Step::Responded => (core.handle(LbEvent::ResponseReceived(id), at), model.state == ConnectivityState::Ready),
                Step::Lost => (core.handle(LbEvent::Disconnected(id, error), at), model.state == ConnectivityState::Ready),
                Step::Requested => (core.handle(LbEvent::Connect(id), at), true),
                Step::Load => (core.handle(LbEvent::Load(id, LoadReport::default()), at), true),
                Step::Wait(millis) => {
                    now += Duration::from_millis(millis).as_nanos() as u64;
                    (true, true)
                }
            };
            prop_assert_eq!(news, expected, "{:?} in {:?}", step, &model);
            match (step, expected) {
                (Step::Connected, true) => {
                    model.state = ConnectivityState::Ready;
                    model.failures_in_row = 0;
                    (model.opened, model.responded) = (now, false);
                }
                (Step::Responded, true) => model.responded = true,
                (Step::Failed, true) => model.fail(now),
                (Step::Lost, true) => model.lose(now),
                _ => {}
            }
            model.tick(now);
            pass(&mut core, now);
            let subchannel = core.subchannel(id).expect("its endpoint stays");
            prop_assert_eq!(subchannel.connectivity(), model.state, "after {:?} at {}", step, now);
            if model.state == ConnectivityState::TransientFailure {
                let off = subchannel.retry_at().map_or(0, Instant::as_nanos).abs_diff(model.until);
                prop_assert!(off < 1_000, "retry is {off} ns off");
            }
        }
    }
}

/// Runs one pass and returns the subchannel if it was dialled.
fn pass(core: &mut Core, now: u64) -> Option<SubchannelId> {
    let effects = core.reconcile(Instant::from_nanos(now)).effects;
    effects.iter().find_map(|effect| match effect {
        LbEffect::Connect { id, .. } => Some(*id),
        _ => None,
    })
}
