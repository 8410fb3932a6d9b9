//! `pick_first`: one connection, to the first address that accepts it.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_core::{
    Backoff, Code, ConnectivityState, Core, Endpoint, Endpoints, Instant, LbEffect, LbEvent, LbUpdate,
    Locality, Registry, Rng, Status,
};
use serde_json::{Value, json};
use testkit::{CoreSim, endpoints, secs};

fn pick_first() -> Value {
    json!([{"pick_first": {}}])
}

fn shuffling() -> Value {
    json!([{"pick_first": {"shuffleAddressList": true}}])
}

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns the addresses in the order in which they are dialled if every attempt fails at once.
fn order(config: &Value, endpoints: Endpoints, seed: u64) -> Vec<String> {
    let core = Core::builder(Rng::from_entropy(seed)).build();
    let mut sim = CoreSim::with(core, Registry::standard(), config, endpoints);
    let mut order = Vec::new();
    while let [address] = &sim.dialled()[..] {
        order.push(address.clone());
        sim.fail(address);
    }
    order
}

/// PF-1, LBX-2: both spellings of the field are accepted, and only a bool.
#[test]
fn the_config_accepts_both_spellings_and_only_a_bool() {
    let registry = Registry::standard();
    for good in
        ["{}", "null", r#"{"shuffleAddressList": true}"#, r#"{"shuffle_address_list": false, "new": 1}"#]
    {
        let config = registry.parse_json(&format!("[{{\"pick_first\": {good}}}]"));
        assert!(config.is_ok(), "{good}: {config:?}");
    }
    let error = registry.parse_json(r#"[{"pick_first": {"shuffle_address_list": 3}}]"#).unwrap_err();
    assert_eq!(
        error.to_string(),
        "policy \"pick_first\": loadBalancingConfig[0].pick_first.shuffleAddressList: expected true or false, found 3"
    );
}

/// PF-2: endpoints are flattened in order. IPv6 and IPv4 then alternate, starting with the family of the
/// first address.
#[test]
fn addresses_are_flattened_and_interleaved() {
    let list = || {
        Endpoints::list([
            Endpoint::new(["1.0.0.1:1", "1.0.0.2:1", "[::1]:1"]),
            Endpoint::new(["1.0.0.3:1", "[::2]:1", "1.0.0.1:1"]),
        ])
    };
    let expected = ["1.0.0.1:1", "[::1]:1", "1.0.0.2:1", "[::2]:1", "1.0.0.3:1"];
    assert_eq!(order(&pick_first(), list(), 1), expected);
}

/// PF-2: shuffling changes the order of endpoints, never the order of addresses inside an endpoint.
#[test]
fn shuffling_keeps_the_addresses_of_an_endpoint_in_order() {
    let list = || Endpoints::list([Endpoint::new(["a1", "a2"]), Endpoint::new(["b1", "b2"])]);
    let mut seen = BTreeMap::new();
    for seed in 0..200 {
        *seen.entry(order(&shuffling(), list(), seed).join(" ")).or_insert(0) += 1;
    }
    assert_eq!(seen.keys().collect::<Vec<_>>(), ["a1 a2 b1 b2", "b1 b2 a1 a2"]);
    assert!(seen.values().all(|n| (70..=130).contains(n)), "{seen:?}");
}

/// PF-3, PF-4: attempts start 250 ms apart and run in parallel, without a timer after the last. The first
/// READY subchannel is selected and the others are closed.
#[test]
fn happy_eyeballs() {
    let mut sim = CoreSim::new(&pick_first(), endpoints(["a", "b", "c"]));
    assert_eq!(sim.dialled(), ["a"]);
    sim.advance(millis(249));
    assert!(sim.dialled().is_empty());
    sim.advance(millis(1));
    assert_eq!(sim.dialled(), ["b"]);
    sim.fail("b");
    assert_eq!(sim.dialled(), ["c"], "a failure does not wait for the timer");
    sim.advance(millis(600));
    assert!(sim.dialled().is_empty());
    assert_eq!(sim.state(), ConnectivityState::Connecting, "a and c are still connecting");
    sim.ready("a");
    let mut closed = sim.closed();
    closed.sort();
    assert_eq!(closed, ["b", "c"]);
    assert_eq!(sim.picks(2), ["a", "a"]);
    assert_eq!(sim.wake_at(), None);
}

/// PF-3: the delay is clamped to 100 ms to 2 s.
#[test]
fn the_attempt_delay_can_be_set_within_limits() {
    for (set, used) in [(1, 100), (700, 700), (60_000, 2_000)] {
        let core = Core::builder(Rng::fixed(1)).attempt_delay(millis(set)).build();
        let sim = CoreSim::with(core, Registry::standard(), &pick_first(), endpoints(["a", "b"]));
        assert_eq!(sim.wake_at(), Some(Instant::ORIGIN + millis(used)));
    }
}

/// PF-5, PF-6: TRANSIENT_FAILURE is reported after every address failed once. Then each address retries on
/// its own backoff. Re-resolution is requested each time the number of failures reaches the number of
/// addresses.
#[test]
fn fails_after_a_whole_pass_and_keeps_trying() {
    let mut sim = CoreSim::new(&pick_first(), endpoints(["a", "b"]));
    sim.fail("a");
    assert_eq!(sim.state(), ConnectivityState::Connecting);
    assert_eq!((sim.reresolutions(), sim.dialled()), (0, vec!["a".to_owned(), "b".to_owned()]));
    sim.fail("b");
    assert_eq!(sim.state(), ConnectivityState::TransientFailure);
    assert_eq!(sim.reresolutions(), 1);
    let status = sim.pick().status().cloned().expect("the pick fails");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().ends_with("the last, b: b refused"), "{status}");
    sim.advance(secs(2));
    let mut again = sim.dialled();
    again.sort();
    assert_eq!(again, ["a", "b"], "each after its own back-off of about a second");
    sim.fail("a");
    assert_eq!(sim.reresolutions(), 0);
    sim.advance(secs(2));
    sim.fail("a");
    assert_eq!(sim.reresolutions(), 1, "two failures, although of the same address");
    assert_eq!(sim.state(), ConnectivityState::TransientFailure);
    sim.ready("b");
    assert_eq!(sim.picks(1), ["b"]);
}

/// LBX-3, PF-7: a new list starts a new pass. A subchannel in backoff counts as failed and a CONNECTING one
/// as started. TRANSIENT_FAILURE is kept until READY.
#[test]
fn a_new_list_starts_a_new_pass() {
    let mut sim = CoreSim::new(&pick_first(), endpoints(["a", "b"]));
    sim.fail("a");
    sim.fail("b");
    sim.dialled();
    sim.endpoints(endpoints(["b", "c", "d"]));
    assert_eq!(sim.dialled(), ["c"], "b is in backoff: the next address is tried");
    assert_eq!(sim.closed(), ["a"]);
    assert_eq!(sim.state(), ConnectivityState::TransientFailure);
    sim.endpoints(endpoints(["c", "e"]));
    assert!(sim.dialled().is_empty(), "c is connecting: nothing to start");
    sim.advance(millis(250));
    assert_eq!(sim.dialled(), ["e"]);
    sim.ready("e");
    assert_eq!(sim.state(), ConnectivityState::Ready);
}

/// PF-7: the selected connection is kept while its address stays in the list.
#[test]
fn a_ready_address_that_stays_is_kept() {
    let mut sim = CoreSim::new(&pick_first(), endpoints(["a", "b"])).all_up();
    sim.dialled();
    sim.endpoints(endpoints(["c", "a"]));
    assert_eq!((sim.dialled().len(), sim.closed().len()), (0, 0));
    assert_eq!(sim.picks(1), ["a"]);
    sim.endpoints(endpoints(["c", "d"]));
    assert_eq!((sim.dialled(), sim.closed()), (vec!["c".to_owned()], vec!["a".to_owned()]));
    assert_eq!(sim.picks(1), ["c"]);
}

/// PF-8: a lost connection leads to IDLE. The next call reconnects.
#[test]
fn a_lost_connection_waits_for_a_call() {
    let mut sim = CoreSim::new(&pick_first(), endpoints(["a", "b"]));
    assert_eq!(sim.dialled(), ["a"]);
    sim.ready("a");
    assert_eq!(sim.picks(2), ["a", "a"]);
    sim.lose("a");
    assert_eq!(sim.state(), ConnectivityState::Idle);
    assert_eq!(sim.reresolutions(), 1);
    sim.advance(secs(100));
    assert!(sim.dialled().is_empty());
    assert_eq!(sim.picks(1), ["queue"]);
    assert_eq!(sim.dialled(), ["a"]);
    sim.fail("a");
    assert_eq!(sim.dialled(), ["b"]);
    sim.ready("b");
    assert_eq!(sim.picks(1), ["b"]);
}

/// PF-8: a connection that was lost before a pass saw it READY is made again once. After a second loss only a
/// call reconnects, else reconnecting could loop forever.
#[test]
fn a_short_connection_is_made_again_once() {
    let mut sim = CoreSim::new(&pick_first(), endpoints(["a", "b"]));
    for dialled in [&["a"][..], &["a"], &[]] {
        assert_eq!(sim.dialled(), dialled);
        let now = sim.now();
        if let (Some(id), false) = (sim.find("a"), dialled.is_empty()) {
            assert!(sim.core().handle(LbEvent::Connected(id), now));
            // A connection without a response would be paced.
            assert!(sim.core().handle(LbEvent::ResponseReceived(id), now));
            sim.lose("a");
        }
    }
    assert_eq!(sim.state(), ConnectivityState::Idle);
    sim.pick();
    assert_eq!(sim.dialled(), ["a"]);
    sim.ready("a");
    assert_eq!(sim.pick().finish_ok(), "a");
}

/// PF-8: the application can request the connection instead of making a call.
#[test]
fn an_idle_channel_connects_on_request() {
    let mut sim = CoreSim::new(&pick_first(), endpoints(["a"])).all_up();
    sim.down("a");
    sim.dialled();
    sim.handle(LbEvent::ExitIdle);
    assert_eq!(sim.dialled(), ["a"]);
}

/// PF-9: without addresses calls fail at once. Addresses that arrive later are connected without a call.
#[test]
fn no_addresses_fail_at_once() {
    let mut sim = CoreSim::new(&pick_first(), Endpoints::none());
    assert_eq!(sim.state(), ConnectivityState::TransientFailure);
    assert_eq!(sim.pick().status().map(Status::code), Some(Code::Unavailable));
    sim.endpoints(Endpoints::list([Endpoint::new([] as [&str; 0])]));
    assert_eq!(sim.picks(1), ["fail"]);
    sim.up("a");
    sim.endpoints(endpoints(["a"]));
    assert_eq!(sim.picks(1), ["a"]);
    sim.endpoints(Endpoints::none());
    assert_eq!((sim.state(), sim.closed()), (ConnectivityState::TransientFailure, vec!["a".to_owned()]));
}

/// PF-10: the backoff starts at 1 s and grows by 1.6 up to 120 s, with a jitter of 20 %. An attempt has at
/// least 20 s.
#[test]
fn attempts_back_off() {
    let config = Registry::standard().parse(&pick_first()).expect("valid");
    for seed in 0..50 {
        let mut core = Core::builder(Rng::fixed(seed)).build();
        core.update(LbUpdate::new(config.clone(), endpoints(["a"])));
        let mut now = Instant::ORIGIN;
        for nominal in
            [1.0, 1.6, 2.56, 4.096, 6.5536, 10.48576, 16.777_216, 26.84, 42.95, 68.7, 109.95, 120.0, 120.0]
        {
            let pass = core.reconcile(now);
            let Some(LbEffect::Connect { id, deadline, .. }) =
                pass.effects.into_iter().find(|effect| matches!(effect, LbEffect::Connect { .. }))
            else {
                panic!("an attempt is due at {now:?}");
            };
            core.handle(LbEvent::ConnectFailed(id, Status::unavailable("refused")), now);
            let next = core.reconcile(now).wake_at.expect("a back-off ends");
            let wait = next.since(now).as_secs_f64();
            assert!((nominal * 0.799..=nominal * 1.201).contains(&wait), "{wait} instead of {nominal}");
            assert_eq!(deadline.since(now), secs(20).max(next.since(now)));
            now = next;
        }
    }
}

/// PF-10: the backoff counts from the start of an attempt. A success resets it.
#[test]
fn a_slow_attempt_is_repeated_at_once() {
    let backoff = Backoff { jitter: 0.0, ..Backoff::default() };
    let core = Core::builder(Rng::fixed(1)).backoff(backoff).build();
    let mut sim = CoreSim::with(core, Registry::standard(), &pick_first(), endpoints(["a"]));
    sim.advance(secs(20));
    sim.dialled();
    sim.fail("a");
    assert_eq!(sim.dialled(), ["a"], "the back-off of 1 s was over long ago");
    sim.fail("a");
    sim.advance(millis(1_599));
    assert!(sim.dialled().is_empty());
    sim.advance(millis(1));
    assert_eq!(sim.dialled(), ["a"]);
    sim.ready("a");
    sim.lose("a");
    sim.picks(1);
    sim.fail("a");
    sim.dialled();
    sim.advance(secs(1));
    assert_eq!(sim.dialled(), ["a"]);
}

/// PF-11: an endpoint is first with a probability proportional to its weight. A missing weight is 1.
#[test]
fn shuffling_follows_the_weights() {
    let list = || {
        Endpoints::list([
            Endpoint::at("a").with_weight(6),
            Endpoint::at("b").with_weight(3),
            Endpoint::at("c"),
        ])
    };
    let mut first = BTreeMap::new();
    for seed in 0..5_000 {
        *first.entry(order(&shuffling(), list(), seed)[0].clone()).or_insert(0) += 1;
    }
    // With 5,000 draws the standard deviation is below 36; the tolerance is four of them.
    for (address, share) in [("a", 3_000), ("b", 1_500), ("c", 500)] {
        assert!(i32::abs(first[address] - share) < 144, "{first:?}");
    }
}

/// PF-12: the locality weight is divided first, then the endpoint weight inside the locality. Locality `l`
/// has one endpoint and half of the total.
#[test]
fn shuffling_weighs_localities_before_endpoints() {
    let locality =
        |zone: &str| std::sync::Arc::new(Locality { zone: zone.to_owned(), ..Locality::default() });
    let list = || {
        let (l, m) = (locality("l"), locality("m"));
        Endpoints::list([
            Endpoint::at("l1").with_weight(1).with_locality(l, 5),
            Endpoint::at("m1").with_weight(100).with_locality(m.clone(), 5),
            Endpoint::at("m2").with_weight(100).with_locality(m, 5),
        ])
    };
    let wins = (0..2_000).filter(|seed| order(&shuffling(), list(), *seed)[0] == "l1").count();
    assert!((910..=1_090).contains(&wins), "{wins}");
}
