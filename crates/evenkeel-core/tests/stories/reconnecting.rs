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
    let mut world = CoreSim::new(config, endpoints(["a"]));
    world.up("a");
    world.pick();
    assert_eq!(world.state(), ConnectivityState::Ready);
    world.dialled();
    world
}

/// Ends the connection to `a`, as GOAWAY does, and returns the number of attempts that begin at once.
fn lose(world: &mut CoreSim) -> usize {
    world.lose("a");
    world.dialled().len()
}

/// The first connection that ends at once is followed by another one at once. From then on there is no more than one per second,
/// at distances that are not the same, and calls wait meanwhile.
#[test]
fn connections_that_end_at_once_are_paced() {
    let mut world = connected(&round_robin());
    assert_eq!(lose(&mut world), 1, "the first time at once");
    assert_eq!(world.state(), ConnectivityState::Ready);
    let mut gaps = Vec::new();
    for _ in 0..20 {
        let opened = world.now();
        assert_eq!(lose(&mut world), 0, "no attempt begins");
        assert_eq!(
            (world.state(), world.pick().outcome()),
            (ConnectivityState::Connecting, "queue".to_owned())
        );
        world.advance(millis(999));
        assert_eq!(world.dialled(), [""; 0], "no sooner than a second after the last one was opened");
        let due = world.wake_at().expect("it reconnects by itself");
        world.advance(due.since(world.now()));
        assert_eq!((world.dialled(), world.state()), (vec!["a".to_owned()], ConnectivityState::Ready));
        gaps.push(world.now().since(opened));
    }
    assert!(gaps.iter().all(|gap| (secs(1)..millis(1201)).contains(gap)), "{gaps:?}");
    gaps.sort();
    gaps.dedup();
    assert!(gaps.len() > 10, "with jitter: {gaps:?}");
}

/// A connection that lived for a second is replaced at once, however often, and after it one that ended at once is too.
#[test]
fn connections_that_lived_are_replaced_at_once() {
    let mut world = connected(&round_robin());
    assert_eq!((lose(&mut world), lose(&mut world)), (1, 0));
    world.advance(secs(2));
    assert_eq!(world.dialled(), ["a"]);
    for _ in 0..3 {
        world.advance(secs(1));
        assert_eq!(lose(&mut world), 1, "it lived");
    }
    world.advance(secs(1));
    assert_eq!((lose(&mut world), lose(&mut world), lose(&mut world)), (1, 1, 0), "two that did not");
}

/// A connection on which a call was answered is replaced at once, however short it lived: a proxy that ends connections after a
/// number of requests is not slowed down.
#[test]
fn connections_that_answered_are_replaced_at_once() {
    let mut world = connected(&round_robin());
    for _ in 0..100 {
        let id = world.find("a").expect("it is connected");
        assert!(world.handle(LbEvent::ResponseReceived(id)));
        assert_eq!(lose(&mut world), 1);
    }
    assert_eq!((lose(&mut world), lose(&mut world)), (1, 0), "and of those that answered nothing, the first");
    let id = world.find("a").expect("it reconnects");
    assert!(!world.handle(LbEvent::ResponseReceived(id)), "there is no connection");
}

/// With another endpoint no call waits.
#[test]
fn other_endpoints_take_the_calls() {
    let mut world = CoreSim::new(&round_robin(), endpoints(["a", "b"])).all_up();
    for _ in 0..50 {
        world.lose("a");
        assert_eq!(
            (world.state(), world.picks(2).contains(&"b".to_owned())),
            (ConnectivityState::Ready, true)
        );
        world.advance(millis(100));
    }
    let dialled = world.dialled().iter().filter(|address| *address == "a").count();
    assert!((5..=8).contains(&dialled), "in 5 s: {dialled}");
}

/// pick_first goes to IDLE when its connection ends. The call that wakes it waits until the paced attempt may begin; there is one
/// attempt for any number of calls. With a second address the head start of Happy Eyeballs is all that a call waits.
#[test]
fn pick_first_is_paced_when_a_call_wakes_it() {
    let pick_first = json!([{"pick_first": {}}]);
    let mut world = connected(&pick_first);
    assert_eq!((lose(&mut world), world.state()), (0, ConnectivityState::Idle));
    assert_eq!((world.pick().outcome(), world.dialled()), ("queue".to_owned(), vec!["a".to_owned()]));
    assert_eq!(lose(&mut world), 0);
    for _ in 0..5 {
        assert_eq!((world.pick().outcome(), world.dialled()), ("queue".to_owned(), vec![]));
        world.advance(millis(10));
    }
    world.advance(millis(1200));
    assert_eq!((world.dialled(), world.pick().outcome()), (vec!["a".to_owned()], "a".to_owned()));

    world.endpoints(endpoints(["a", "b"]));
    world.up("b");
    assert_eq!((lose(&mut world), world.pick().outcome()), (0, "queue".to_owned()));
    world.advance(millis(250));
    assert_eq!((world.dialled(), world.pick().outcome()), (vec!["b".to_owned()], "b".to_owned()));
}

/// The history of an address survives attempts at those before it: behind one that refuses, it is paced as well.
#[test]
fn an_address_behind_one_that_refuses_is_paced() {
    let mut world = CoreSim::new(&json!([{"pick_first": {}}]), endpoints(["dead", "a"]));
    world.down("dead");
    world.up("a");
    let mut opened = 0;
    for _ in 0..500 {
        world.pick();
        opened += world.dialled().iter().filter(|address| *address == "a").count();
        if world.state_of("a") == Some(ConnectivityState::Ready) {
            world.lose("a");
        }
        world.advance(millis(10));
    }
    assert!((3..=7).contains(&opened), "in 5 s: {opened}");
}

/// An attempt that fails has its back-off as ever, and an endpoint that goes while it is paced leaves nothing behind.
#[test]
fn failures_and_removals_are_as_ever() {
    let mut world = connected(&round_robin());
    assert_eq!((lose(&mut world), lose(&mut world)), (1, 0));
    world.down("a");
    world.advance(millis(1300));
    assert_eq!((world.dialled(), world.state()), (vec!["a".to_owned()], ConnectivityState::TransientFailure));
    assert_eq!(world.pick().outcome(), "fail");
    world.up("a");
    let retry = world.wake_at().expect("its back-off ends");
    world.advance(retry.since(world.now()));
    assert_eq!((world.dialled(), lose(&mut world)), (vec!["a".to_owned()], 0));
    world.endpoints(endpoints(["b"]));
    assert_eq!(world.closed(), ["a"]);
    world.advance(secs(5));
    assert_eq!(world.dialled(), ["b"]);
}

/// Clients that lost their connections together do not come back together.
#[test]
fn clients_do_not_come_back_together() {
    let mut due: Vec<Duration> = (0..20)
        .map(|seed| {
            let core = Core::builder(Rng::from_entropy(seed)).build();
            let mut world = CoreSim::with(core, Registry::standard(), &round_robin(), endpoints(["a"]));
            world.up("a");
            world.lose("a");
            world.lose("a");
            world.wake_at().expect("it reconnects by itself").since(world.now())
        })
        .collect();
    due.sort();
    due.dedup();
    assert!(due.len() > 15, "{due:?}");
}
