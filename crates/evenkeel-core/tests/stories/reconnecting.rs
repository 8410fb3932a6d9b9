//! Connections that the peer ends as soon as they are made: reconnection is paced, and nothing fails because of it.

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

/// A world whose only backend accepts every connection; it is connected.
fn connected(config: &Value) -> CoreSim {
    let mut sim = CoreSim::new(config, endpoints(["a"]));
    sim.up("a");
    sim.pick();
    assert_eq!(sim.state(), ConnectivityState::Ready);
    sim.dialled();
    sim
}

/// Ends the connection to `a`, as GOAWAY does, and returns the number of attempts that begin at once.
fn lose(sim: &mut CoreSim) -> usize {
    sim.lose("a");
    sim.dialled().len()
}

/// The first connection that ends at once is followed by another one at once. From then on there is no more than one per second,
/// at distances that are not the same, and calls wait meanwhile.
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

/// A connection that lived for a second is replaced at once, however often, and after it one that ended at once is too.
#[test]
fn connections_that_lived_are_replaced_at_once() {
    let mut sim = connected(&round_robin());
    assert_eq!((lose(&mut sim), lose(&mut sim)), (1, 0));
    sim.advance(secs(2));
    assert_eq!(sim.dialled(), ["a"]);
    for _ in 0..3 {
        sim.advance(secs(1));
        assert_eq!(lose(&mut sim), 1, "it lived");
    }
    sim.advance(secs(1));
    assert_eq!((lose(&mut sim), lose(&mut sim), lose(&mut sim)), (1, 1, 0), "two that did not");
}

/// A connection on which a call was answered is replaced at once, however short it lived: a proxy that ends connections after a
/// number of requests is not slowed down.
#[test]
fn connections_that_answered_are_replaced_at_once() {
    let mut sim = connected(&round_robin());
    for _ in 0..100 {
        let id = sim.find("a").expect("it is connected");
        assert!(sim.handle(LbEvent::ResponseReceived(id)));
        assert_eq!(lose(&mut sim), 1);
    }
    assert_eq!((lose(&mut sim), lose(&mut sim)), (1, 0), "and of those that answered nothing, the first");
    let id = sim.find("a").expect("it reconnects");
    assert!(!sim.handle(LbEvent::ResponseReceived(id)), "there is no connection");
}

/// With another endpoint no call waits.
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

/// pick_first goes to IDLE when its connection ends. The call that wakes it waits until the paced attempt may begin; there is one
/// attempt for any number of calls. With a second address the head start of Happy Eyeballs is all that a call waits.
#[test]
fn pick_first_is_paced_when_a_call_wakes_it() {
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

/// The history of an address survives attempts at those before it: behind one that refuses, it is paced as well.
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

/// An attempt that fails has its back-off as ever, and an endpoint that goes while it is paced leaves nothing behind.
#[test]
fn failures_and_removals_are_as_ever() {
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

/// Clients that lost their connections together do not come back together.
#[test]
fn clients_do_not_come_back_together() {
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
