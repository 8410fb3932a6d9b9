//! `ring_hash_experimental`: calls with the same hash go to the same endpoint.

use evenkeel_core::policy::RingHash;
use evenkeel_core::{
    Code, ConnectivityState, Core, Endpoint, Endpoints, HASH_KEY, Instant, LbEvent, PickArgs, PickResult,
    Registry, Rng, hash,
};
use serde_json::{Value, json};
use testkit::{CoreSim, Picked, endpoints, secs, weighted};

fn config(settings: &Value) -> Value {
    json!([{"ring_hash_experimental": settings}])
}

fn ring<const N: usize>(addresses: [&str; N]) -> CoreSim {
    CoreSim::new(&config(&json!({})), endpoints(addresses))
}

/// Returns a hash that falls on the first entry of this endpoint.
fn entry_of(key: &str) -> u64 {
    hash::of_bytes(format!("{key}_0").as_bytes())
}

/// Returns the outcome of a call that hashes to the endpoint with this key.
fn call(sim: &mut CoreSim, key: &str) -> String {
    sim.pick_with(|call| call.with_hash(entry_of(key))).finish_ok()
}

fn call_with_header(sim: &mut CoreSim, headers: &[(&'static str, &'static str); 1]) -> Picked {
    let entropy = sim.entropy();
    sim.pick_call(&PickArgs::new("/test.Service/Method", entropy).with_headers(headers))
}

/// RH-1, RH-13: config errors name the field and the expected value.
#[test]
fn config_errors_name_the_field() {
    let cases = [
        (json!({"minRingSize": 0}), "minRingSize: must be from 1 to 8388608, found 0"),
        (json!({"max_ring_size": 0}), "maxRingSize: must be from 1 to 8388608, found 0"),
        (json!({"minRingSize": 8_388_609}), "minRingSize: must be from 1 to 8388608, found 8388609"),
        (json!({"maxRingSize": "8388609"}), "maxRingSize: must be from 1 to 8388608, found 8388609"),
        (
            json!({"minRingSize": 20, "maxRingSize": 10}),
            "maxRingSize: must be at least minRingSize, which is 20, found 10",
        ),
        (
            json!({"maxRingSize": 1023}),
            "maxRingSize: must be at least minRingSize, which is 1024, found 1023",
        ),
        (json!({"minRingSize": -1}), "minRingSize: expected a whole number, not negative, found -1"),
        (
            json!({"requestHashHeader": "x user"}),
            "requestHashHeader: expected a header name of letters, digits, '-', '_' and '.', found \"x user\"",
        ),
        (
            json!({"requestHashHeader": ":path"}),
            "requestHashHeader: expected a header name of letters, digits, '-', '_' and '.', found \":path\"",
        ),
        (
            json!({"requestHashHeader": "x-key-bin"}),
            "requestHashHeader: a binary header cannot be hashed, found \"x-key-bin\"",
        ),
        (json!({"requestHashHeader": 7}), "requestHashHeader: expected a string, found 7"),
    ];
    for (settings, problem) in cases {
        let error = Registry::standard().parse(&config(&settings)).unwrap_err();
        let expected = format!(
            "policy \"ring_hash_experimental\": loadBalancingConfig[0].ring_hash_experimental.{problem}"
        );
        assert_eq!(error.to_string(), expected);
    }
}

/// RH-1: ring sizes are lowered to the cap.
#[test]
fn sizes_are_lowered_to_the_cap() {
    let sizes = |registry: Registry, settings: Value| {
        let core = Core::builder(Rng::fixed(1)).build();
        let mut sim = CoreSim::with(core, registry, &config(&settings), endpoints(["a"]));
        assert_eq!(sim.warnings(), [""; 0]);
        let details = sim.describe().details;
        ["minRingSize", "maxRingSize", "ringSize"].map(|name| details[name].as_u64().unwrap())
    };
    let capped = |cap| {
        let mut registry = Registry::standard();
        registry.register_with("ring_hash_experimental", move || RingHash::with_cap(cap));
        registry
    };
    let greatest = json!({"minRingSize": 8_388_608, "maxRingSize": 8_388_608});
    let from_xds = json!({"minRingSize": 1024, "maxRingSize": 8_388_608});
    assert_eq!(sizes(Registry::standard(), json!({})), [1024, 4096, 1024]);
    assert_eq!(sizes(Registry::standard(), from_xds), [1024, 4096, 1024]);
    assert_eq!(sizes(Registry::standard(), greatest.clone()), [4096, 4096, 4096]);
    assert_eq!(sizes(capped(5000), greatest.clone()), [5000, 5000, 5000]);
    assert_eq!(sizes(capped(10), json!({})), [10, 10, 10]);
    assert_eq!(sizes(capped(0), greatest), [1, 1, 1]);
}

/// RH-3, RH-9, RH-10, RH-12: an endpoint connects on the first call that hashes to it.
#[test]
fn endpoints_are_connected_by_the_calls_that_hash_to_them() {
    let mut sim = ring(["a", "b", "c"]);
    assert_eq!((sim.state(), sim.dialled()), (ConnectivityState::Idle, vec![]));
    sim.advance(secs(1000));
    assert!(sim.dialled().is_empty());

    assert_eq!(call(&mut sim, "b"), "queue");
    assert_eq!((sim.state(), sim.dialled()), (ConnectivityState::Connecting, vec!["b".to_owned()]));
    assert_eq!(call(&mut sim, "b"), "queue");
    assert!(sim.dialled().is_empty());
    sim.ready("b");
    assert_eq!(sim.state(), ConnectivityState::Ready);
    assert_eq!(call(&mut sim, "b"), "b");

    // A call with another hash queues for its own endpoint although one is READY.
    assert_eq!(call(&mut sim, "c"), "queue");
    assert_eq!(sim.dialled(), ["c"]);
    sim.ready("c");
    assert_eq!((call(&mut sim, "c"), call(&mut sim, "b")), ("c".to_owned(), "b".to_owned()));

    // A lost connection is made again by the next call, alone or with the others.
    sim.lose("b");
    assert_eq!((sim.state(), sim.dialled()), (ConnectivityState::Ready, vec![]));
    assert_eq!(call(&mut sim, "b"), "queue");
    assert_eq!(sim.dialled(), ["b"]);
    sim.ready("b");
    sim.lose("b");
    sim.lose("c");
    sim.advance(secs(1000));
    assert_eq!((sim.state(), sim.dialled()), (ConnectivityState::Idle, vec![]));
    assert_eq!(call(&mut sim, "c"), "queue");
    assert_eq!(sim.dialled(), ["c"]);
}

/// RH-5: with one entry each, a hash goes to the entry at or after it. Hashes above the last entry go to the
/// first.
#[test]
fn a_hash_goes_to_the_entry_at_or_after_it() {
    let settings = json!({"minRingSize": 1, "maxRingSize": 3});
    let mut sim = CoreSim::new(&config(&settings), endpoints(["a", "b", "c"])).all_up();
    let mut places: Vec<(u64, &str)> = ["a", "b", "c"].map(|key| (entry_of(key), key)).into();
    places.sort_unstable();
    for (i, (place, key)) in places.iter().enumerate() {
        let next = places[(i + 1) % 3].1;
        for (hash, expected) in [(*place, *key), (place - 1, *key), (place + 1, next)] {
            sim.pick_with(|call| call.with_hash(hash));
            assert_eq!(sim.pick_with(|call| call.with_hash(hash)).outcome(), expected);
        }
    }
    assert_eq!(sim.pick_with(|call| call.with_hash(0)).outcome(), places[0].1);
    assert_eq!(sim.pick_with(|call| call.with_hash(u64::MAX)).outcome(), places[0].1);
}

/// RH-10, RH-11, LBX-3: each failure connects one more endpoint, without calls.
#[test]
fn each_failure_connects_one_more_idle_endpoint() {
    let mut sim = ring(["a", "b", "c", "d"]);
    assert_eq!(call(&mut sim, "d"), "queue");
    assert_eq!(sim.dialled(), ["d"]);
    sim.fail("d");
    assert_eq!((sim.state(), sim.dialled()), (ConnectivityState::Connecting, vec!["a".to_owned()]));
    sim.fail("a");
    assert_eq!((sim.state(), sim.dialled()), (ConnectivityState::TransientFailure, vec!["b".to_owned()]));
    // Failed endpoints retry and still count as failed; `b` is still CONNECTING.
    sim.advance(secs(3));
    assert_eq!(sim.state(), ConnectivityState::TransientFailure);
    let mut again = sim.dialled();
    again.sort_unstable();
    assert_eq!(again, ["a", "d"]);
    sim.ready("b");
    assert_eq!((sim.state(), sim.dialled()), (ConnectivityState::Ready, vec![]));
    assert_eq!(call(&mut sim, "b"), "b");
}

/// RH-10: calls skip endpoints in TRANSIENT_FAILURE and fail if all are.
#[test]
fn calls_skip_failed_endpoints_and_fail_if_all_have_failed() {
    let settings = json!({"minRingSize": 1, "maxRingSize": 3});
    let mut sim = CoreSim::new(&config(&settings), endpoints(["a", "b", "c"]));
    let mut order = ["a", "b", "c"];
    order.sort_unstable_by_key(|key| entry_of(key));
    let [first, second, third] = order;

    // The next endpoint on the ring takes the calls of a failed one.
    sim.down(first);
    sim.up(second);
    sim.up(third);
    call(&mut sim, first);
    call(&mut sim, first);
    assert_eq!(call(&mut sim, first), second);
    sim.down(second);
    call(&mut sim, second);
    call(&mut sim, second);
    assert_eq!((call(&mut sim, first), call(&mut sim, second)), (third.to_owned(), third.to_owned()));

    for key in order {
        sim.down(key);
        call(&mut sim, key);
    }
    assert_eq!(sim.state(), ConnectivityState::TransientFailure);
    for key in [third, first, second] {
        let failed = sim.pick_with(|call| call.with_hash(entry_of(key)));
        let message = failed.status().unwrap().message().to_owned();
        assert_eq!(message, format!("{key}: {key} refused"));
    }
    let waiting = sim.pick_with(|call| call.with_hash(7).wait_for_ready());
    assert_eq!(waiting.outcome(), "queue");
    sim.note("node n1");
    let failed = sim.pick_with(|call| call.with_hash(entry_of(first)));
    assert_eq!(failed.status().unwrap().message(), format!("{first}: {first} refused (node n1)"));
}

/// RH-10: if all endpoints failed, a pick on a ring of 4096 entries is one lookup, not a walk.
#[test]
fn a_pick_on_a_large_failed_ring_is_one_lookup() {
    let settings = json!({"minRingSize": 4096});
    let mut sim = CoreSim::new(&config(&settings), endpoints(["a", "b", "c"]));
    for key in ["a", "b", "c"] {
        sim.down(key);
    }
    assert_eq!(call(&mut sim, "a"), "queue");
    assert_eq!(sim.state(), ConnectivityState::TransientFailure);
    assert_eq!(sim.dialled(), ["a", "b", "c"]);
    let picker = sim.picker();
    for hash in 0..100_000 {
        let hash = hash::of_bytes(&u64::to_le_bytes(hash));
        assert!(matches!(picker.pick(&PickArgs::new("/a/b", 1).with_hash(hash)), PickResult::Fail(_)));
    }
}

/// RH-11: if the CONNECTING endpoint is removed, another one connects.
#[test]
fn removing_the_connecting_endpoint_connects_another() {
    let mut sim = ring(["a", "b", "c"]);
    call(&mut sim, "a");
    sim.fail("a");
    assert_eq!(sim.dialled(), ["a", "b"]);
    sim.endpoints(endpoints(["a", "c"]));
    assert_eq!((sim.dialled(), sim.closed()), (vec!["c".to_owned()], vec!["b".to_owned()]));
}

/// RH-9: a connection request of the application connects one endpoint, not all. If the only endpoint failed,
/// the state is TRANSIENT_FAILURE.
#[test]
fn a_connection_request_connects_one_endpoint() {
    let mut sim = ring(["a", "b", "c"]);
    sim.handle(LbEvent::ExitIdle);
    assert_eq!(sim.dialled(), ["a"]);
    sim.ready("a");
    sim.handle(LbEvent::ExitIdle);
    assert!(sim.dialled().is_empty());

    let mut sim = ring(["a"]);
    sim.handle(LbEvent::ExitIdle);
    sim.fail("a");
    assert_eq!(sim.state(), ConnectivityState::TransientFailure);
}

/// A connection request before the first config applies once there are endpoints, and only once.
#[test]
fn a_connection_request_before_the_config_is_kept() {
    let mut core = Core::builder(Rng::fixed(1)).build();
    core.handle(LbEvent::ExitIdle, Instant::ORIGIN);
    core.reconcile(Instant::ORIGIN);
    let settings = config(&json!({}));
    let mut sim = CoreSim::with(core, Registry::standard(), &settings, endpoints(["a", "b", "c"]));
    assert_eq!(sim.dialled(), ["a"]);
    sim.ready("a");
    sim.lose("a");
    assert!(sim.dialled().is_empty(), "the request applied once");
}

/// RH-13: the configured request header is hashed.
#[test]
fn the_request_header_is_hashed() {
    let settings = json!({"requestHashHeader": "X-User"});
    let mut sim = CoreSim::new(&config(&settings), endpoints(["a", "b", "c"])).all_up();
    for key in ["a_0", "b_0", "c_0"] {
        call_with_header(&mut sim, &[("x-user", key)]);
    }
    assert_eq!(call_with_header(&mut sim, &[("x-user", "a_0")]).outcome(), "a");
    assert_eq!(call_with_header(&mut sim, &[("x-user", "b_0")]).outcome(), "b");
    // Several values are joined by commas. The hash of the route is ignored.
    sim.endpoints(Endpoints::list([Endpoint::at("a").with_metadata(HASH_KEY, "x,y"), Endpoint::at("b")]));
    let headers = [("x-user", "x"), ("x-user", "y_0")];
    let call = PickArgs::new("/a/b", 1).with_headers(&headers).with_hash(entry_of("b"));
    assert_eq!(sim.pick_call(&call).outcome(), "a");
}

/// RH-13: without the header a call goes to any READY endpoint. A pick connects at most one IDLE endpoint,
/// and only if none is CONNECTING.
#[test]
fn without_the_header_calls_spread_and_connect_one_endpoint_at_a_time() {
    let settings = json!({"request_hash_header": "x-user"});
    let mut sim = CoreSim::new(&config(&settings), endpoints(["a", "b", "c", "d"]));
    assert_eq!(sim.picks(1), ["queue"]);
    let first = sim.dialled();
    assert_eq!(first.len(), 1);
    // One endpoint is CONNECTING, so no other one is connected, whatever the calls draw.
    assert_eq!(sim.shares(50).into_iter().collect::<Vec<_>>(), [("queue".to_owned(), 50)]);
    assert!(sim.dialled().is_empty());

    // From here on no call queues. Calls go to READY endpoints and connect the others one by one.
    sim.ready(&first[0]);
    let mut ready = first;
    for _ in 0..3 {
        let connected = |sim: &mut CoreSim| {
            assert!(ready.contains(&sim.pick().finish_ok()));
            Some(sim.dialled()).filter(|dialled| !dialled.is_empty())
        };
        let [next] = (0..1000).find_map(|_| connected(&mut sim)).unwrap().try_into().unwrap();
        assert!(sim.picks(50).iter().all(|outcome| ready.contains(outcome)));
        assert!(sim.dialled().is_empty());
        sim.ready(&next);
        ready.push(next);
    }
    ready.sort_unstable();
    assert_eq!(ready, ["a", "b", "c", "d"]);
    let shares = sim.shares(4000);
    assert!(shares.values().all(|n| (700..1300).contains(n)), "{shares:?}");
    // An empty value counts as a missing header.
    let spread: std::collections::BTreeSet<_> =
        (0..50).map(|_| call_with_header(&mut sim, &[("x-user", "")]).finish_ok()).collect();
    assert_eq!(spread.len(), 4);
}

/// RH-13: if all endpoints failed, a call without the header fails.
#[test]
fn without_the_header_calls_fail_if_all_have_failed() {
    let settings = json!({"requestHashHeader": "x-user"});
    let mut sim = CoreSim::new(&config(&settings), endpoints(["a", "b"]));
    sim.down("a");
    sim.down("b");
    assert_eq!(sim.picks(2), ["queue", "fail"]);
    assert_eq!(sim.state(), ConnectivityState::TransientFailure);
}

/// RH-14: without a hash and without a configured header, calls fail.
#[test]
fn without_a_hash_and_without_a_header_calls_fail() {
    let mut sim = ring(["a"]).all_up();
    let failed = sim.pick();
    assert_eq!(failed.status().unwrap().code(), Code::Internal);
    assert!(failed.status().unwrap().message().contains("requestHashHeader"));
    assert!(sim.dialled().is_empty());
}

/// RH-15, RH-3: the hash key determines the position of an endpoint on the ring. A changed key moves it and
/// keeps its connection.
#[test]
fn the_hash_key_determines_the_position() {
    let keyed = |key: Value| {
        Endpoints::list([
            Endpoint::at("a").with_metadata(HASH_KEY, key),
            Endpoint::at("b"),
            Endpoint::at("c"),
        ])
    };
    let mut sim = CoreSim::new(&config(&json!({})), keyed(json!("pod-0"))).all_up();
    let mut placed = |key: Value, expected: &[(&str, &str)]| {
        sim.endpoints(keyed(key));
        for (key, address) in expected {
            call(&mut sim, key);
            assert_eq!(call(&mut sim, key), *address, "{key}");
        }
        assert!(sim.closed().is_empty());
    };
    placed(json!("pod-0"), &[("pod-0", "a"), ("b", "b"), ("c", "c")]);
    placed(json!("pod-1"), &[("pod-1", "a"), ("b", "b")]);
    // If the key is empty, missing or not a string, the first address is hashed.
    for key in [json!(""), json!(7), json!(null)] {
        placed(key, &[("a", "a"), ("b", "b")]);
    }
}

/// RH-16: one of 20 endpoints is removed, and only its keys move.
#[test]
fn removing_an_endpoint_moves_only_its_calls() {
    let names: Vec<String> = (0..20).map(|i| format!("e{i}")).collect();
    let list = |skip: Option<usize>| {
        let kept = names.iter().enumerate().filter(|(i, _)| Some(*i) != skip);
        Endpoints::list(kept.map(|(_, name)| Endpoint::at(name.as_str())).collect::<Vec<_>>())
    };
    let mut sim = CoreSim::new(&config(&json!({"minRingSize": 10})), list(None)).all_up();
    let endpoint_of_each_hash = |sim: &mut CoreSim| -> Vec<String> {
        let hashes = (0..500u64).map(|i| hash::of_bytes(&i.to_le_bytes()));
        hashes
            .map(|hash| {
                sim.pick_with(|call| call.with_hash(hash));
                sim.pick_with(|call| call.with_hash(hash)).finish_ok()
            })
            .collect()
    };
    let before = endpoint_of_each_hash(&mut sim);
    sim.endpoints(list(Some(7)));
    let after = endpoint_of_each_hash(&mut sim);
    assert!(before.contains(&"e7".to_owned()) && !after.contains(&"e7".to_owned()));
    for (before, after) in before.iter().zip(&after) {
        assert!(before == after || before == "e7", "{before} {after}");
    }
}

/// RH-4, RH-6, RH-16: weights count and duplicates do not. A state change publishes at most one picker.
#[test]
fn the_description_has_weights_and_picks() {
    let settings = json!({"minRingSize": 6});
    let mut sim = CoreSim::new(&config(&settings), weighted([("a", 3), ("b", 3), ("c", 4), ("a", 100)]));
    sim.published();
    call(&mut sim, "a");
    assert_eq!(sim.published(), 1);
    sim.ready("a");
    assert_eq!(sim.published(), 1);
    call(&mut sim, "a");
    let description = sim.describe();
    assert_eq!(description.details["ringSize"], 7);
    let rows: Vec<_> =
        description.endpoints.iter().map(|row| (row.addresses[0].as_str(), row.picks)).collect();
    assert_eq!(rows, [("a", 1), ("b", 0), ("c", 0)]);
    let weights: Vec<_> = description.endpoints.iter().map(|row| row.weight.unwrap()).collect();
    for (weight, expected) in weights.iter().zip([0.3, 0.3, 0.4]) {
        assert!((weight - expected).abs() < 1e-6);
    }
    let share: f64 = description.endpoints.iter().filter_map(|row| row.share).sum();
    assert!((share - 1.0).abs() < 1e-9);
}

/// RH-4: endpoints without an entry get no calls and no connections, with a warning. The same applies to an
/// endpoint with the hash key of another.
#[test]
fn unreachable_endpoints_lead_to_a_warning() {
    let settings = json!({"minRingSize": 1, "maxRingSize": 2});
    let mut sim = CoreSim::new(&config(&settings), endpoints(["a", "b", "c", "d"]));
    assert_eq!(
        sim.warnings(),
        [
            "2 of 4 endpoints have no entry on a ring of 2 and get no calls: raise maxRingSize or the local cap of 4096"
        ]
    );
    for key in ["a", "b", "c", "d"] {
        sim.down(key);
    }
    call(&mut sim, "a");
    assert_eq!((sim.state(), sim.dialled().len()), (ConnectivityState::TransientFailure, 2));
    let unused: Vec<_> = sim.describe().endpoints.into_iter().filter_map(|row| row.unused).collect();
    assert_eq!(unused.iter().filter(|why| *why == "it has no entry on the ring").count(), 2);

    let twins = ["a", "b"].map(|address| Endpoint::at(address).with_metadata(HASH_KEY, "pod"));
    let mut sim = CoreSim::new(&config(&json!({})), Endpoints::list(twins)).all_up();
    assert_eq!(
        sim.warnings(),
        ["several endpoints have the hash key \"pod\": the first gets all their calls"]
    );
    call(&mut sim, "pod");
    assert_eq!(call(&mut sim, "pod"), "a");
}

/// RH-9: without endpoints, calls fail.
#[test]
fn without_endpoints_calls_fail() {
    let mut sim = ring([]);
    assert_eq!(sim.state(), ConnectivityState::TransientFailure);
    let message =
        |sim: &mut CoreSim| sim.pick_with(|call| call.with_hash(7)).status().unwrap().message().to_owned();
    assert_eq!(message(&mut sim), "no endpoints");
    sim.note("node n1");
    assert_eq!(message(&mut sim), "no endpoints (node n1)");
    sim.endpoints(Endpoints::list([Endpoint::new([""; 0]), Endpoint::at("a")]));
    assert_eq!(sim.state(), ConnectivityState::Idle);
    sim.endpoints(endpoints([]));
    assert_eq!(call(&mut sim, "a"), "fail");
}

/// RH-12, LBX-6: an endpoint with several addresses has one position on the ring, that of its first address.
#[test]
fn an_endpoint_with_several_addresses_has_one_position() {
    let list = |first, second| Endpoints::list([Endpoint::new([first, second]), Endpoint::at("b")]);
    let mut sim = CoreSim::new(&config(&json!({})), list("a", "a2"));
    call(&mut sim, "a");
    sim.fail("a");
    assert_eq!(sim.dialled(), ["a", "a2"]);
    sim.ready("a2");
    assert_eq!(call(&mut sim, "a"), "a2");
    // In another order it is the same endpoint at another position.
    sim.endpoints(list("a2", "a"));
    assert_eq!(call(&mut sim, "a2"), "a2");
    assert_eq!(sim.closed(), ["a"]);
    assert_eq!(sim.subchannel_count(), 2);
    // With fewer addresses it is another endpoint, whose picks count from 0.
    sim.endpoints(endpoints(["a2", "b"]));
    assert_eq!((call(&mut sim, "a2"), sim.describe().picks()), ("a2".to_owned(), 1));
}

/// RH-2: XX_HASH is the only hash function.
#[test]
fn there_is_one_hash_function() {
    let parse = |name: &str| {
        Registry::standard().parse(&json!([{"ring_hash_experimental": {"hash_function": name}}]))
    };
    assert!(parse("XX_HASH").is_ok() && parse("DEFAULT_HASH").is_ok());
    let error = parse("MURMUR_HASH_2").unwrap_err().to_string();
    assert!(error.ends_with("hashFunction: must be XX_HASH, found \"MURMUR_HASH_2\""), "{error}");
}
