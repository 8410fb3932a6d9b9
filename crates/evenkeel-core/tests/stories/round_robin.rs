//! `round_robin`: every endpoint in turn.

use evenkeel_core::{ConnectivityState, Core, Endpoint, Endpoints, LbEvent, Registry, Rng};
use serde_json::{Value, json};
use testkit::{CoreSim, endpoints, secs, weighted};

fn round_robin() -> Value {
    json!([{"round_robin": {}}])
}

/// RR-1
#[test]
fn every_endpoint_in_turn() {
    let mut world = CoreSim::new(&round_robin(), endpoints(["a", "b", "c"]));
    assert_eq!(world.dialled(), ["a", "b", "c"]);
    let mut world = world.all_up();
    assert_eq!(world.letters(7), "abcabca");
}

/// RR-1
#[test]
fn the_first_pick_is_anybodys() {
    let first = |seed| {
        let core = Core::builder(Rng::from_entropy(seed)).build();
        let world = CoreSim::with(core, Registry::standard(), &round_robin(), endpoints(["a", "b", "c"]));
        world.all_up().letters(4)
    };
    let starts: std::collections::BTreeSet<String> = (0..40).map(first).collect();
    assert_eq!(starts.into_iter().collect::<Vec<_>>(), ["abca", "bcab", "cabc"]);
}

/// The turn goes on where it was when an endpoint leaves, comes back, or is listed elsewhere.
#[test]
fn the_turn_goes_on() {
    let mut world = CoreSim::new(&round_robin(), endpoints(["a", "b", "c"]));
    for address in ["a", "b", "c"] {
        world.ready(address);
    }
    assert_eq!(world.letters(4), "abca");
    world.lose("b");
    assert_eq!(world.letters(4), "caca");
    world.endpoints(endpoints(["c", "b", "a"]));
    assert_eq!(world.letters(4), "caca");
    world.ready("b");
    let round = world.letters(3);
    assert!("abc".chars().all(|c| round.contains(c)), "{round}");
    assert_eq!(world.letters(6), format!("{round}{round}"));
}

/// A connection that is made and lost before anybody has looked is made again.
#[test]
fn a_short_connection_is_made_again() {
    let mut world = CoreSim::new(&round_robin(), endpoints(["a", "b"]));
    assert_eq!(world.dialled(), ["a", "b"]);
    for _ in 0..3 {
        let id = world.find("a").unwrap();
        let now = world.now();
        assert!(world.core().handle(LbEvent::Connected(id), now));
        // One that answers nothing would be paced.
        assert!(world.core().handle(LbEvent::ResponseReceived(id), now));
        world.lose("a");
        assert_eq!(world.dialled(), ["a"]);
        assert_eq!(world.reresolutions(), 1);
    }
    world.ready("a");
    assert_eq!(world.letters(2), "aa");
}

/// RR-2
#[test]
fn duplicates_are_one_endpoint() {
    let twice =
        Endpoints::list([Endpoint::at("a"), Endpoint::at("b"), Endpoint::at("a"), Endpoint::new(["b", "b"])]);
    let mut world = CoreSim::new(&round_robin(), twice).all_up();
    assert_eq!(world.dialled(), ["a", "b"]);
    assert_eq!(world.letters(4), "abab");
}

/// RR-3
#[test]
fn the_state_is_that_of_the_best() {
    let mut world = CoreSim::new(&round_robin(), endpoints(["a", "b"]));
    assert_eq!(world.state(), ConnectivityState::Connecting);
    world.fail("a");
    assert_eq!((world.state(), world.letters(1)), (ConnectivityState::Connecting, "queue".to_owned()));
    world.fail("b");
    assert_eq!((world.state(), world.letters(1)), (ConnectivityState::TransientFailure, "fail".to_owned()));
    world.dialled();
    world.advance(secs(2));
    assert_eq!(world.dialled().len(), 2, "both are tried again without a call");
    assert_eq!(world.state(), ConnectivityState::TransientFailure, "failed until ready");
    world.ready("b");
    assert_eq!((world.state(), world.letters(2)), (ConnectivityState::Ready, "bb".to_owned()));
    world.lose("b");
    assert_eq!(world.state(), ConnectivityState::Connecting, "b tries again, only a has failed");
}

/// RR-4
#[test]
fn a_lost_endpoint_asks_for_addresses_and_comes_back() {
    let mut world = CoreSim::new(&round_robin(), endpoints(["a", "b"])).all_up();
    world.dialled();
    world.reresolutions();
    world.down("a");
    assert_eq!(world.reresolutions(), 1 + 1, "lost, and refused when dialled again");
    assert_eq!(world.dialled(), ["a"]);
    assert_eq!(world.letters(2), "bb");
    world.up("a");
    assert_eq!(world.letters(2), "bb", "a backs off");
    world.advance(secs(3));
    assert_eq!(world.dialled(), ["a"]);
    assert_eq!(world.shares(10).into_values().collect::<Vec<_>>(), [5, 5]);
}

/// RR-5
#[test]
fn calls_fail_with_the_words_of_who_failed_last() {
    let mut world = CoreSim::new(&round_robin(), endpoints(["a", "b"]));
    world.fail("b");
    world.fail("a");
    assert_eq!(world.pick().status().unwrap().message(), "a: a refused");
    let mut world = CoreSim::new(&round_robin(), Endpoints::none());
    assert_eq!(world.pick().status().unwrap().message(), "no endpoints");
}

/// RR-6
#[test]
fn fields_of_the_xds_message_are_ignored() {
    let config = json!([{"round_robin": {"slowStartConfig": {"aggression": 2}, "localityLbConfig": {}}}]);
    let mut world = CoreSim::new(&config, weighted([("a", 1), ("b", 9)])).all_up();
    assert_eq!(world.letters(4), "abab");
}

/// Picks are counted for as long as the endpoint is listed, ready or not.
#[test]
fn picks_are_counted() {
    let mut world = CoreSim::new(&round_robin(), endpoints(["a", "b", "c"]));
    let counts = |world: &CoreSim| world.describe().endpoints.iter().map(|row| row.picks).collect::<Vec<_>>();
    world.ready("a");
    world.letters(3);
    assert_eq!(counts(&world), [3, 0, 0]);
    world.ready("b");
    world.ready("c");
    world.letters(15);
    assert_eq!(counts(&world), [8, 5, 5]);
    world.lose("b");
    world.letters(4);
    assert_eq!(counts(&world), [10, 5, 7]);
    world.lose("c");
    world.letters(1);
    assert_eq!(counts(&world), [11, 5, 7]);
    world.ready("b");
    world.letters(4);
    assert_eq!(counts(&world), [13, 7, 7]);
    let shares: Vec<_> = world.describe().endpoints.iter().map(|row| row.share).collect();
    assert_eq!(shares, [Some(0.5), Some(0.5), None]);
    world.endpoints(endpoints(["b", "a"]));
    assert_eq!(counts(&world), [7, 13]);
}

/// An endpoint is one turn, however many addresses it has (A61).
#[test]
fn addresses_of_one_endpoint_share_a_turn() {
    let list = Endpoints::list([Endpoint::new(["a", "x"]), Endpoint::at("b")]);
    let mut world = CoreSim::new(&round_robin(), list);
    world.fail("a");
    world.ready("x");
    world.ready("b");
    assert_eq!(world.letters(4), "xbxb");
}
