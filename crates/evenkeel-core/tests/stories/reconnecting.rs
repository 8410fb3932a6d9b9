//! Connections that the peer closes as soon as they are open: reconnecting is paced, and no call fails
//! because of it.

use std::time::Duration;

use evenkeel_core::{ConnectivityState, Core, LbEvent, Registry, Rng};
use serde_json::{Value, json};
use testkit::{CoreSim, endpoints, secs};

fn round_robin() -> Value {
    json!([{"round_robin": {}}])
}

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns a simulation whose only backend accepts every connection; it is connected.
fn connected(config: &Value) -> CoreSim {
    let mut sim = CoreSim::new(config, endpoints(["a"]));
    sim.up("a");
    sim.pick();
    assert_eq!(sim.state(), ConnectivityState::Ready);
    sim.dialled();
    sim
}

/// Closes the connection to `a`, as GOAWAY does, and returns the number of attempts that begin at once.
fn lose(sim: &mut CoreSim) -> usize {
    sim.lose("a");
    sim.dialled().len()
}

/// The first connection that is closed at once is replaced at once. After that, at most one attempt per
/// second starts, with jitter, and calls queue.
#[test]
fn connections_that_end_at_once_are_paced() {
    let mut sim = connected(&round_robin());
    assert_eq!(lose(&mut sim), 1, "the first time at once");
    assert_eq!(sim.state(), ConnectivityState::Ready);
    let mut gaps = Vec::new();
    for _ in 0..20 {
        let opened = sim.now();
        assert_eq!(lose(&mut sim), 0, "no attempt begins");
        assert_eq!((sim.state(), sim.pick().outcome()), (ConnectivityState::Connecting, "queue".to_owned()));
        sim.advance(millis(999));
        assert_eq!(sim.dialled(), [""; 0], "no sooner than a second after the last one was opened");
        let due = sim.wake_at().expect("it reconnects by itself");
        sim.advance(due.since(sim.now()));
        assert_eq!((sim.dialled(), sim.state()), (vec!["a".to_owned()], ConnectivityState::Ready));
        gaps.push(sim.now().since(opened));
    }
    assert!(gaps.iter().all(|gap| (secs(1)..millis(1201)).contains(gap)), "{gaps:?}");
    gaps.sort();
    gaps.dedup();
    assert!(gaps.len() > 10, "with jitter: {gaps:?}");
}

/// A connection that lasted a second is replaced at once, however often. The first short connection after it
/// is replaced at once too.
#[test]
fn lasting_connections_are_replaced_at_once() {
    let mut sim = connected(&round_robin());
    assert_eq!((lose(&mut sim), lose(&mut sim)), (1, 0));
    sim.advance(secs(2));
    assert_eq!(sim.dialled(), ["a"]);
    for _ in 0..3 {
        sim.advance(secs(1));
        assert_eq!(lose(&mut sim), 1, "it lasted a second");
    }
    sim.advance(secs(1));
    assert_eq!((lose(&mut sim), lose(&mut sim), lose(&mut sim)), (1, 1, 0), "two that did not last");
}

/// A connection with a response is replaced at once, however short it was. A proxy that closes connections
/// after a number of requests is not paced.
#[test]
fn connections_with_responses_are_replaced_at_once() {
    let mut sim = connected(&round_robin());
    for _ in 0..100 {
        let id = sim.find("a").expect("it is connected");
        assert!(sim.handle(LbEvent::ResponseReceived(id)));
        assert_eq!(lose(&mut sim), 1);
    }
    assert_eq!((lose(&mut sim), lose(&mut sim)), (1, 0), "and the first of those without a response");
    let id = sim.find("a").expect("it reconnects");
    assert!(!sim.handle(LbEvent::ResponseReceived(id)), "there is no connection");
}

/// If another endpoint is READY, no call queues.
#[test]
fn other_endpoints_take_the_calls() {
    let mut sim = CoreSim::new(&round_robin(), endpoints(["a", "b"])).all_up();
    for _ in 0..50 {
        sim.lose("a");
        assert_eq!((sim.state(), sim.picks(2).contains(&"b".to_owned())), (ConnectivityState::Ready, true));
        sim.advance(millis(100));
    }
    let dialled = sim.dialled().iter().filter(|address| *address == "a").count();
    assert!((5..=8).contains(&dialled), "in 5 s: {dialled}");
}

/// With pick_first a lost connection leads to IDLE. The next call queues until the paced attempt starts, and
/// any number of calls share one attempt. With a second address, calls wait only for the Happy Eyeballs
/// delay.
#[test]
fn pick_first_is_paced_when_a_call_reconnects() {
    let pick_first = json!([{"pick_first": {}}]);
    let mut sim = connected(&pick_first);
    assert_eq!((lose(&mut sim), sim.state()), (0, ConnectivityState::Idle));
    assert_eq!((sim.pick().outcome(), sim.dialled()), ("queue".to_owned(), vec!["a".to_owned()]));
    assert_eq!(lose(&mut sim), 0);
    for _ in 0..5 {
        assert_eq!((sim.pick().outcome(), sim.dialled()), ("queue".to_owned(), vec![]));
        sim.advance(millis(10));
    }
    sim.advance(millis(1200));
    assert_eq!((sim.dialled(), sim.pick().outcome()), (vec!["a".to_owned()], "a".to_owned()));

    sim.endpoints(endpoints(["a", "b"]));
    sim.up("b");
    assert_eq!((lose(&mut sim), sim.pick().outcome()), (0, "queue".to_owned()));
    sim.advance(millis(250));
    assert_eq!((sim.dialled(), sim.pick().outcome()), (vec!["b".to_owned()], "b".to_owned()));
}

/// An address keeps its history while addresses before it are tried. Behind an address that refuses, it is
/// paced as well.
#[test]
fn an_address_behind_one_that_refuses_is_paced() {
    let mut sim = CoreSim::new(&json!([{"pick_first": {}}]), endpoints(["dead", "a"]));
    sim.down("dead");
    sim.up("a");
    let mut opened = 0;
    for _ in 0..500 {
        sim.pick();
        opened += sim.dialled().iter().filter(|address| *address == "a").count();
        if sim.state_of("a") == Some(ConnectivityState::Ready) {
            sim.lose("a");
        }
        sim.advance(millis(10));
    }
    assert!((3..=7).contains(&opened), "in 5 s: {opened}");
}

/// A failed attempt has its usual backoff. An endpoint that is removed while it is paced leaves no timer.
#[test]
fn failures_back_off_and_removals_leave_no_timer() {
    let mut sim = connected(&round_robin());
    assert_eq!((lose(&mut sim), lose(&mut sim)), (1, 0));
    sim.down("a");
    sim.advance(millis(1300));
    assert_eq!((sim.dialled(), sim.state()), (vec!["a".to_owned()], ConnectivityState::TransientFailure));
    assert_eq!(sim.pick().outcome(), "fail");
    sim.up("a");
    let retry = sim.wake_at().expect("its back-off ends");
    sim.advance(retry.since(sim.now()));
    assert_eq!((sim.dialled(), lose(&mut sim)), (vec!["a".to_owned()], 0));
    sim.endpoints(endpoints(["b"]));
    assert_eq!(sim.closed(), ["a"]);
    sim.advance(secs(5));
    assert_eq!(sim.dialled(), ["b"]);
}

/// Clients that lose their connections together do not reconnect together.
#[test]
fn clients_do_not_reconnect_together() {
    let mut due: Vec<Duration> = (0..20)
        .map(|seed| {
            let core = Core::builder(Rng::from_entropy(seed)).build();
            let mut sim = CoreSim::with(core, Registry::standard(), &round_robin(), endpoints(["a"]));
            sim.up("a");
            sim.lose("a");
            sim.lose("a");
            sim.wake_at().expect("it reconnects by itself").since(sim.now())
        })
        .collect();
    due.sort();
    due.dedup();
    assert!(due.len() > 15, "{due:?}");
}
