//! `round_robin`: READY endpoints are picked in turn.

use evenkeel_core::{ConnectivityState, Core, Endpoint, Endpoints, LbEvent, Registry, Rng};
use serde_json::{Value, json};
use testkit::{CoreSim, endpoints, secs, weighted};

fn round_robin() -> Value {
    json!([{"round_robin": {}}])
}

/// RR-1: all endpoints are connected at once and picked in order.
#[test]
fn every_endpoint_in_turn() {
    let mut sim = CoreSim::new(&round_robin(), endpoints(["a", "b", "c"]));
    assert_eq!(sim.dialled(), ["a", "b", "c"]);
    let mut sim = sim.all_up();
    assert_eq!(sim.letters(7), "abcabca");
}

/// RR-1: each picker starts at a random endpoint.
#[test]
fn the_first_pick_is_random() {
    let first = |seed| {
        let core = Core::builder(Rng::from_entropy(seed)).build();
        let sim = CoreSim::with(core, Registry::standard(), &round_robin(), endpoints(["a", "b", "c"]));
        sim.all_up().letters(4)
    };
    let starts: std::collections::BTreeSet<String> = (0..40).map(first).collect();
    assert_eq!(starts.into_iter().collect::<Vec<_>>(), ["abca", "bcab", "cabc"]);
}

/// The rotation continues at its position if an endpoint is lost, returns or moves in the list.
#[test]
fn the_rotation_continues() {
    let mut sim = CoreSim::new(&round_robin(), endpoints(["a", "b", "c"]));
    for address in ["a", "b", "c"] {
        sim.ready(address);
    }
    assert_eq!(sim.letters(4), "abca");
    sim.lose("b");
    assert_eq!(sim.letters(4), "caca");
    sim.endpoints(endpoints(["c", "b", "a"]));
    assert_eq!(sim.letters(4), "caca");
    sim.ready("b");
    let round = sim.letters(3);
    assert!("abc".chars().all(|c| round.contains(c)), "{round}");
    assert_eq!(sim.letters(6), format!("{round}{round}"));
}

/// A connection that was lost before a pass saw it READY is made again.
#[test]
fn a_short_connection_is_made_again() {
    let mut sim = CoreSim::new(&round_robin(), endpoints(["a", "b"]));
    assert_eq!(sim.dialled(), ["a", "b"]);
    for _ in 0..3 {
        let id = sim.find("a").unwrap();
        let now = sim.now();
        assert!(sim.core().handle(LbEvent::Connected(id), now));
        // A connection without a response would be paced.
        assert!(sim.core().handle(LbEvent::ResponseReceived(id), now));
        sim.lose("a");
        assert_eq!(sim.dialled(), ["a"]);
        assert_eq!(sim.reresolutions(), 1);
    }
    sim.ready("a");
    assert_eq!(sim.letters(2), "aa");
}

/// RR-2: duplicate addresses share one connection and one turn.
#[test]
fn duplicates_are_one_endpoint() {
    let twice =
        Endpoints::list([Endpoint::at("a"), Endpoint::at("b"), Endpoint::at("a"), Endpoint::new(["b", "b"])]);
    let mut sim = CoreSim::new(&round_robin(), twice).all_up();
    assert_eq!(sim.dialled(), ["a", "b"]);
    assert_eq!(sim.letters(4), "abab");
}

/// RR-3: the state is that of the best endpoint, and TRANSIENT_FAILURE is kept until READY.
#[test]
fn the_state_is_that_of_the_best_endpoint() {
    let mut sim = CoreSim::new(&round_robin(), endpoints(["a", "b"]));
    assert_eq!(sim.state(), ConnectivityState::Connecting);
    sim.fail("a");
    assert_eq!((sim.state(), sim.letters(1)), (ConnectivityState::Connecting, "queue".to_owned()));
    sim.fail("b");
    assert_eq!((sim.state(), sim.letters(1)), (ConnectivityState::TransientFailure, "fail".to_owned()));
    sim.dialled();
    sim.advance(secs(2));
    assert_eq!(sim.dialled().len(), 2, "both are tried again without a call");
    assert_eq!(sim.state(), ConnectivityState::TransientFailure, "failed until ready");
    sim.ready("b");
    assert_eq!((sim.state(), sim.letters(2)), (ConnectivityState::Ready, "bb".to_owned()));
    sim.lose("b");
    assert_eq!(sim.state(), ConnectivityState::Connecting, "b tries again, only a has failed");
}

/// RR-4: a lost endpoint requests re-resolution and reconnects with backoff.
#[test]
fn a_lost_endpoint_requests_re_resolution_and_reconnects() {
    let mut sim = CoreSim::new(&round_robin(), endpoints(["a", "b"])).all_up();
    sim.dialled();
    sim.reresolutions();
    sim.down("a");
    assert_eq!(sim.reresolutions(), 1 + 1, "lost, and refused when dialled again");
    assert_eq!(sim.dialled(), ["a"]);
    assert_eq!(sim.letters(2), "bb");
    sim.up("a");
    assert_eq!(sim.letters(2), "bb", "a backs off");
    sim.advance(secs(3));
    assert_eq!(sim.dialled(), ["a"]);
    assert_eq!(sim.shares(10).into_values().collect::<Vec<_>>(), [5, 5]);
}

/// RR-5: calls fail with the status of the endpoint that failed last.
#[test]
fn calls_fail_with_the_status_of_the_last_failure() {
    let mut sim = CoreSim::new(&round_robin(), endpoints(["a", "b"]));
    sim.fail("b");
    sim.fail("a");
    assert_eq!(sim.pick().status().unwrap().message(), "a: a refused");
    let mut sim = CoreSim::new(&round_robin(), Endpoints::none());
    assert_eq!(sim.pick().status().unwrap().message(), "no endpoints");
}

/// RR-6: slow-start and locality fields of the xDS message are ignored.
#[test]
fn fields_of_the_xds_message_are_ignored() {
    let config = json!([{"round_robin": {"slowStartConfig": {"aggression": 2}, "localityLbConfig": {}}}]);
    let mut sim = CoreSim::new(&config, weighted([("a", 1), ("b", 9)])).all_up();
    assert_eq!(sim.letters(4), "abab");
}

/// Picks are counted as long as the endpoint is in the list, READY or not.
#[test]
fn picks_are_counted() {
    let mut sim = CoreSim::new(&round_robin(), endpoints(["a", "b", "c"]));
    let counts = |sim: &CoreSim| sim.describe().endpoints.iter().map(|row| row.picks).collect::<Vec<_>>();
    sim.ready("a");
    sim.letters(3);
    assert_eq!(counts(&sim), [3, 0, 0]);
    sim.ready("b");
    sim.ready("c");
    sim.letters(15);
    assert_eq!(counts(&sim), [8, 5, 5]);
    sim.lose("b");
    sim.letters(4);
    assert_eq!(counts(&sim), [10, 5, 7]);
    sim.lose("c");
    sim.letters(1);
    assert_eq!(counts(&sim), [11, 5, 7]);
    sim.ready("b");
    sim.letters(4);
    assert_eq!(counts(&sim), [13, 7, 7]);
    let shares: Vec<_> = sim.describe().endpoints.iter().map(|row| row.share).collect();
    assert_eq!(shares, [Some(0.5), Some(0.5), None]);
    sim.endpoints(endpoints(["b", "a"]));
    assert_eq!(counts(&sim), [7, 13]);
}

/// An endpoint has one turn, however many addresses it has (A61).
#[test]
fn addresses_of_one_endpoint_share_a_turn() {
    let list = Endpoints::list([Endpoint::new(["a", "x"]), Endpoint::at("b")]);
    let mut sim = CoreSim::new(&round_robin(), list);
    sim.fail("a");
    sim.ready("x");
    sim.ready("b");
    assert_eq!(sim.letters(4), "xbxb");
}
