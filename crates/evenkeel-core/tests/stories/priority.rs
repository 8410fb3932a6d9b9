//! `priority_experimental`: all calls go to the highest priority that works.

mod churn;
mod model;
mod names;

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::policy::{Priority, PriorityChild, PriorityConfig};
use evenkeel_core::{
    Code, ConnectivityState, Core, Endpoint, Endpoints, Instant, LbConfig, LbEffect, LbEvent, LbUpdate,
    Registry, Status,
};
use serde_json::{Value, json};
use testkit::{CoreSim, endpoints, secs};

/// Priorities from the top: name of the child, its policy, and its endpoints, one letter each.
type Priorities<'a> = &'a [(&'a str, &'a str, &'a str)];

const MINUTES_15: u64 = 15 * 60;

fn config(priorities: Priorities<'_>) -> Value {
    let children: Value = priorities
        .iter()
        .map(|(name, policy, _)| (name.to_string(), json!({"config": [{*policy: {}}]})))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let names: Vec<&str> = priorities.iter().map(|(name, ..)| *name).collect();
    json!([{"priority_experimental": {"children": children, "priorities": names}}])
}

fn groups(priorities: Priorities<'_>) -> Endpoints {
    let letters =
        |letters: &str| Endpoints::list(letters.chars().map(|c| Endpoint::at(c.to_string().as_str())));
    Endpoints::groups(priorities.iter().map(|(name, _, group)| (*name, letters(group))))
}

fn sim(priorities: Priorities<'_>) -> CoreSim {
    CoreSim::new(&config(priorities), groups(priorities))
}

fn update(sim: &mut CoreSim, priorities: Priorities<'_>) {
    sim.update(&config(priorities), groups(priorities));
}

/// Three priorities with one endpoint each, `a`, `b` and `c`.
const ABC: Priorities<'_> =
    &[("p0", "round_robin", "a"), ("p1", "round_robin", "b"), ("p2", "round_robin", "c")];

fn chosen(sim: &CoreSim) -> Option<String> {
    sim.describe().details["chosen"].as_str().map(str::to_owned)
}

fn existing(sim: &CoreSim) -> Vec<String> {
    sim.describe().children.into_iter().map(|(name, _)| name).collect()
}

fn deactivated(sim: &CoreSim) -> Vec<String> {
    let details = sim.describe().details;
    details["removedIn"].as_object().expect("a map").keys().cloned().collect()
}

fn failure(sim: &mut CoreSim) -> String {
    sim.pick().status().map(ToString::to_string).expect("the call fails")
}

/// PR-2, PR-3, PR-4, PR-11: the second priority takes over after ten seconds. Calls return to the first once
/// it is READY.
#[test]
fn falls_over_after_ten_seconds_and_returns() {
    let mut sim = sim(ABC);
    sim.advance(Duration::from_nanos(9_999_999_999));
    assert_eq!((sim.dialled(), existing(&sim)), (vec!["a".to_owned()], vec!["p0".to_owned()]));
    assert_eq!(sim.picks(1), ["queue"]);
    sim.advance(Duration::from_nanos(1));
    assert_eq!(sim.dialled(), ["b"]);
    assert_eq!(chosen(&sim).as_deref(), Some("p1"));
    sim.ready("b");
    assert_eq!(sim.letters(3), "bbb");
    sim.ready("a");
    assert_eq!(sim.letters(3), "aaa");
    assert_eq!(deactivated(&sim), ["p1"]);
    sim.advance(secs(60));
    assert!(sim.dialled().is_empty(), "p2 was never needed");
    assert_eq!(existing(&sim), ["p0", "p1"]);
}

/// PR-4, PR-11: a priority in TRANSIENT_FAILURE is replaced at once.
#[test]
fn a_failed_priority_is_replaced_at_once() {
    let mut sim = sim(ABC);
    for address in ["a", "b", "c"] {
        sim.up(address);
    }
    assert_eq!((sim.dialled(), sim.letters(2)), (vec!["a".to_owned()], "aa".to_owned()));
    sim.down("a");
    assert_eq!(sim.letters(3), "bbb");
    sim.down("b");
    assert_eq!(sim.letters(3), "ccc");
    assert!(deactivated(&sim).is_empty());
    sim.dialled();
    sim.up("b");
    sim.advance(secs(3));
    assert_eq!(sim.letters(3), "bbb");
    assert_eq!(deactivated(&sim), ["p2"]);
    sim.up("a");
    sim.advance(secs(3));
    assert_eq!(sim.letters(3), "aaa");
    assert_eq!(deactivated(&sim), ["p1", "p2"]);
    // A retained child takes calls at once.
    sim.dialled();
    sim.down("a");
    assert_eq!(sim.letters(3), "bbb");
    assert_eq!(sim.dialled(), ["a"]);
    assert_eq!(deactivated(&sim), ["p2"]);
}

/// PR-3: a priority that was READY has ten seconds to reconnect before the next one takes over.
#[test]
fn a_lost_connection_gets_its_ten_seconds() {
    let mut sim = sim(ABC);
    sim.ready("a");
    sim.advance(secs(100));
    sim.lose("a");
    assert_eq!((sim.state(), sim.picks(1)), (ConnectivityState::Connecting, vec!["queue".to_owned()]));
    sim.advance(secs(9));
    assert_eq!(existing(&sim), ["p0"]);
    sim.advance(secs(1));
    assert_eq!(existing(&sim), ["p0", "p1"]);
    // p0 is still CONNECTING, without a failover timer. It does not delay the others a second time.
    sim.advance(secs(9));
    assert_eq!(existing(&sim), ["p0", "p1"]);
    sim.advance(secs(1));
    assert_eq!(existing(&sim), ["p0", "p1", "p2"]);
}

/// PR-4: without a pending failover timer, the first CONNECTING priority is selected, else the last one with
/// its status.
#[test]
fn with_nothing_ready_the_first_that_connects_or_the_last() {
    let mut sim = sim(ABC);
    sim.advance(secs(30));
    assert_eq!((chosen(&sim).as_deref(), sim.state()), (Some("p0"), ConnectivityState::Connecting));
    sim.fail("a");
    assert_eq!((chosen(&sim).as_deref(), sim.state()), (Some("p1"), ConnectivityState::Connecting));
    sim.fail("c");
    assert_eq!(chosen(&sim).as_deref(), Some("p1"));
    assert_eq!(sim.picks(1), ["queue"]);
    sim.fail("b");
    assert_eq!((chosen(&sim).as_deref(), sim.state()), (Some("p2"), ConnectivityState::TransientFailure));
    assert_eq!(failure(&mut sim), "Unavailable: c: c refused");
    assert!(deactivated(&sim).is_empty());
}

/// PR-4, PR-11: an IDLE priority counts as working and connects on the next call, here with pick_first.
#[test]
fn an_idle_priority_is_used_and_connects_on_a_call() {
    let priorities: Priorities<'_> = &[("p0", "pick_first", "a"), ("p1", "pick_first", "b")];
    let mut sim = sim(priorities);
    sim.advance(secs(10));
    sim.ready("b");
    sim.ready("a");
    sim.lose("a");
    assert_eq!((chosen(&sim).as_deref(), sim.state()), (Some("p0"), ConnectivityState::Idle));
    assert_eq!(deactivated(&sim), ["p1"]);
    sim.dialled();
    sim.advance(secs(60));
    assert!(sim.dialled().is_empty());
    // After IDLE the failover timer runs, so the call queues although p1 is READY.
    assert_eq!(sim.picks(2), ["queue", "queue"]);
    assert_eq!(sim.dialled(), ["a"]);
    assert_eq!(deactivated(&sim), ["p1"]);
    sim.fail("a");
    assert_eq!(sim.letters(2), "bb");
    assert!(deactivated(&sim).is_empty());
}

/// PR-5: if the application requests a connection, the selected child connects and a deactivated one does
/// not.
#[test]
fn a_connection_request_reaches_the_chosen_child_only() {
    let config = json!([{"priority_experimental": {
        "priorities": ["p0", "p1"],
        "children": {"p0": {"config": [{"pick_first": {}}]}, "p1": {"config": [{"pick_first": {}}]}},
    }}]);
    let groups = Endpoints::groups([("p0", endpoints(["a"])), ("p1", endpoints(["b"]))]);
    let mut sim = CoreSim::new(&config, groups);
    sim.fail("a");
    sim.ready("b");
    sim.advance(secs(2));
    sim.ready("a");
    sim.lose("b");
    sim.lose("a");
    sim.dialled();
    sim.handle(LbEvent::ExitIdle);
    assert_eq!(sim.dialled(), ["a"], "b is kept, but not in use");
}

/// PR-5: a deactivated child is dropped after 15 minutes.
#[test]
fn a_deactivated_priority_is_kept_for_fifteen_minutes() {
    let mut sim = sim(ABC);
    sim.advance(secs(10));
    sim.ready("b");
    sim.ready("a");
    sim.advance(secs(MINUTES_15 - 1));
    assert!(sim.closed().is_empty());
    // The child is needed again. Its timer stops, and restarts when p0 is READY again.
    sim.lose("a");
    sim.fail("a");
    assert_eq!(sim.letters(1), "b");
    sim.advance(secs(2));
    sim.ready("a");
    sim.advance(secs(MINUTES_15 - 1));
    assert!(sim.closed().is_empty());
    assert_eq!(existing(&sim), ["p0", "p1"]);
    sim.advance(secs(1));
    assert_eq!((sim.closed(), existing(&sim)), (vec!["b".to_owned()], vec!["p0".to_owned()]));
    assert_eq!(sim.wake_at(), None);
    // The child was dropped, so the next failover creates a new one.
    sim.dialled();
    sim.down("a");
    assert_eq!(sim.dialled(), ["a", "b"]);
}

/// PR-5: a child that is needed at the moment its timer expires is reused, not created again.
#[test]
fn a_child_needed_when_its_time_is_over_is_reused() {
    let mut sim = sim(ABC);
    sim.advance(secs(10));
    sim.ready("b");
    sim.ready("a");
    sim.advance(secs(MINUTES_15 - 10));
    sim.lose("a");
    sim.advance(secs(10));
    assert_eq!(sim.letters(2), "bb");
    assert!(sim.closed().is_empty());
    assert!(deactivated(&sim).is_empty());
}

/// PR-5: a deactivated child receives updates, keeps connecting, and stays as READY as it can be.
#[test]
fn a_deactivated_priority_follows_updates() {
    let mut sim = sim(ABC);
    sim.advance(secs(10));
    sim.ready("b");
    sim.ready("a");
    sim.dialled();
    sim.endpoints(groups(&[("p0", "", "a"), ("p1", "", "bx"), ("p2", "", "c")]));
    assert_eq!(sim.dialled(), ["x"]);
    sim.lose("b");
    sim.ready("b");
    assert_eq!(sim.dialled(), ["b"]);
    sim.endpoints(groups(&[("p0", "", "a"), ("p1", "", "b"), ("p2", "", "c")]));
    assert_eq!(sim.closed(), ["x"]);
    assert_eq!(deactivated(&sim), ["p1"]);
    sim.advance(secs(MINUTES_15));
    assert_eq!(sim.closed(), ["b"], "updates do not prolong its time");
}

/// PR-6: a child that the config no longer names is dropped at once.
#[test]
fn a_child_removed_from_the_config_is_dropped_at_once() {
    let mut sim = sim(ABC);
    sim.advance(secs(10));
    sim.ready("b");
    sim.ready("a");
    sim.dialled();
    update(&mut sim, &[("p0", "round_robin", "a"), ("p2", "round_robin", "c")]);
    assert_eq!((sim.closed(), existing(&sim)), (vec!["b".to_owned()], vec!["p0".to_owned()]));
    // The same applies to the selected child, and the next one takes over.
    update(&mut sim, &[("p2", "round_robin", "c")]);
    assert_eq!((sim.closed(), sim.dialled()), (vec!["a".to_owned()], vec!["c".to_owned()]));
    assert_eq!(existing(&sim), ["p2"]);
    // When the config names b's child again, it is a new one with its own ten seconds.
    update(&mut sim, &[("p1", "round_robin", "b"), ("p2", "round_robin", "c")]);
    assert_eq!(sim.dialled(), ["b"]);
    sim.ready("c");
    assert_eq!(sim.picks(1), ["queue"]);
    sim.advance(secs(10));
    assert_eq!(sim.letters(1), "c");
}

/// PR-5: a child without a priority is deactivated, receives updates, and is dropped when its timer expires.
#[test]
fn a_child_that_lost_its_priority_is_deactivated() {
    let mut sim = sim(ABC);
    sim.ready("a");
    let mut edited = config(ABC);
    edited[0]["priority_experimental"]["priorities"] = json!(["p1"]);
    sim.config(&edited);
    sim.ready("b");
    assert_eq!((sim.letters(1), deactivated(&sim)), ("b".to_owned(), vec!["p0".to_owned()]));
    sim.endpoints(groups(&[("p0", "", "ax"), ("p1", "", "b")]));
    assert_eq!(sim.dialled(), ["a", "b", "x"]);
    sim.advance(secs(MINUTES_15));
    assert_eq!(sim.closed(), ["a", "x"]);
    let warnings = sim.describe().warnings;
    let path = "loadBalancingConfig[0].priority_experimental.children";
    let expected = ["p0", "p2"].map(|name| {
        format!("policy \"priority_experimental\": {path}[\"{name}\"]: has no priority and is never used")
    });
    assert_eq!(warnings, expected);
}

/// PR-7: with an empty list of priorities, calls fail with UNAVAILABLE.
#[test]
fn an_empty_list_fails_calls() {
    for empty in [json!({}), json!({"children": {}, "priorities": []}), json!({"priorities": null})] {
        let mut sim = CoreSim::new(&json!([{"priority_experimental": empty}]), Endpoints::none());
        assert_eq!(sim.state(), ConnectivityState::TransientFailure);
        assert_eq!(sim.pick().status().map(Status::code), Some(Code::Unavailable));
        sim.note("node n1");
        assert_eq!(failure(&mut sim), "Unavailable: the list of priorities is empty (node n1)");
        assert_eq!(chosen(&sim), None);
    }
    // If the list becomes empty, the children are dropped. If it is filled again, they are created again.
    let mut sim = sim(ABC).all_up();
    update(&mut sim, &[]);
    assert_eq!((sim.picks(1), sim.closed()), (vec!["fail".to_owned()], vec!["a".to_owned()]));
    assert_eq!(sim.subchannel_count(), 0);
    update(&mut sim, ABC);
    assert_eq!(sim.letters(1), "a");
}

/// PR-9: re-resolution requests of a child are ignored if its config ignores them.
#[test]
fn re_resolution_requests_are_ignored_as_configured() {
    for ignore in [false, true] {
        let mut edited = config(ABC);
        ignore_p0(&mut edited, ignore);
        let mut sim = CoreSim::new(&edited, groups(ABC));
        for address in ["a", "b"] {
            sim.up(address);
        }
        sim.reresolutions();
        sim.down("a");
        sim.advance(secs(30));
        assert_eq!(sim.reresolutions() > 0, !ignore, "ignored: {ignore}");
        // Requests of the other children are passed on, also if the flag changes while they run.
        sim.down("b");
        assert!(sim.reresolutions() > 0);
        sim.up("b");
        sim.advance(secs(30));
        ignore_p0(&mut edited, !ignore);
        sim.config(&edited);
        sim.reresolutions();
        sim.advance(secs(300));
        assert_eq!(sim.reresolutions() > 0, ignore, "ignored at first: {ignore}");
    }
}

fn ignore_p0(config: &mut Value, ignore: bool) {
    let children = &mut config[0]["priority_experimental"]["children"];
    children["p0"]["ignoreReresolutionRequests"] = ignore.into();
}

/// PR-12: a priority with some endpoints down keeps all calls.
#[test]
fn a_priority_that_is_half_down_keeps_all_calls() {
    let priorities: Priorities<'_> = &[("p0", "round_robin", "abcd"), ("p1", "round_robin", "xyz")];
    let mut sim = sim(priorities);
    for address in ["a", "b", "c", "d", "x", "y", "z"] {
        sim.up(address);
    }
    assert_eq!(sim.letters(8), "abcdabcd");
    for (lost, left) in [("b", "acd"), ("d", "ac"), ("a", "c")] {
        sim.down(lost);
        let shares = sim.shares(300);
        assert_eq!(shares.keys().cloned().collect::<String>(), left);
    }
    assert_eq!(existing(&sim), ["p0"]);
    sim.down("c");
    assert_eq!(sim.shares(300).keys().cloned().collect::<String>(), "xyz");
}

/// PR-8, fault 68: after a pause each elapsed deadline fires once, and no timer that it starts is overdue.
#[test]
fn a_pause_fires_each_timer_once() {
    let mut sim = sim(ABC);
    assert_eq!((sim.dialled(), sim.published()), (vec!["a".to_owned()], 1));
    sim.sleep_through(secs(30));
    assert_eq!((sim.dialled(), sim.published()), (vec!["b".to_owned()], 1));
    assert_eq!(sim.wake_at(), Some(sim.now() + secs(10)));
    sim.set_clock(Instant::ORIGIN);
    assert_eq!((existing(&sim).len(), sim.published()), (2, 0));
    sim.sleep_through(secs(3600));
    assert_eq!((sim.dialled(), sim.published()), (vec!["c".to_owned()], 1));
    for address in ["a", "b", "c"] {
        sim.ready(address);
    }
    sim.published();
    sim.sleep_through(secs(24 * 3600));
    assert_eq!((sim.closed(), sim.published()), (vec!["b".to_owned(), "c".to_owned()], 0));
    assert_eq!((sim.letters(1), sim.wake_at()), ("a".to_owned(), None));
}

#[test]
fn a_priority_without_endpoints_is_skipped() {
    let mut sim = sim(&[("p0", "round_robin", ""), ("p1", "pick_first", ""), ("p2", "round_robin", "c")]);
    assert_eq!(sim.dialled(), ["c"]);
    sim.ready("c");
    assert_eq!(sim.letters(1), "c");
    // Endpoints outside the groups belong to no priority.
    sim.endpoints(endpoints(["a", "b"]));
    assert_eq!(failure(&mut sim), "Unavailable: no endpoints");
    assert_eq!(sim.subchannel_count(), 0);
    sim.endpoints(groups(&[("p0", "", "a"), ("stranger", "", "s")]));
    assert_eq!(sim.dialled(), ["a"]);
    sim.ready("a");
    assert_eq!(sim.letters(1), "a");
}

#[test]
fn priorities_may_share_an_endpoint() {
    let mut sim = sim(&[("p0", "round_robin", "ab"), ("p1", "round_robin", "bbc")]);
    for address in ["a", "b", "c"] {
        sim.up(address);
    }
    assert_eq!(sim.letters(4), "abab");
    sim.down("a");
    sim.down("b");
    assert_eq!(sim.letters(2), "cc");
    sim.up("b");
    sim.advance(secs(5));
    assert_eq!(sim.letters(2), "bb");
    assert_eq!(sim.subchannel_count(), 3);
    sim.advance(secs(MINUTES_15));
    assert_eq!(sim.closed(), ["c"], "b is p0's as well");
    assert_eq!(sim.letters(2), "bb");
}

/// A56: if the application requests a connection, the selected priority connects.
#[test]
fn a_connection_request_connects_an_idle_priority() {
    let mut sim = sim(&[("p0", "pick_first", "a"), ("p1", "pick_first", "b")]);
    sim.ready("a");
    sim.lose("a");
    sim.dialled();
    sim.handle(LbEvent::ExitIdle);
    assert_eq!(sim.dialled(), ["a"]);
    assert_eq!(existing(&sim), ["p0"]);
}

/// A list with another order and other policies is applied as one change.
#[test]
fn an_update_is_applied_to_all_children_before_a_priority_is_chosen() {
    let mut sim = sim(ABC);
    sim.up("b");
    sim.advance(secs(10));
    sim.up("a");
    sim.published();
    update(&mut sim, &[("p1", "round_robin", "a"), ("p0", "round_robin", "b"), ("p2", "round_robin", "c")]);
    assert_eq!((sim.letters(2), sim.published()), ("aa".to_owned(), 1));
    update(&mut sim, &[("p0", "pick_first", "b"), ("p1", "round_robin", "a")]);
    assert_eq!((sim.letters(2), sim.published()), ("bb".to_owned(), 1));
}

/// PR-1: both spellings parse, and config errors name the field.
#[test]
fn both_spellings_parse_and_config_errors_name_the_field() {
    let rr = json!([{"round_robin": {}}]);
    let check = |settings: Value| {
        let parsed = Registry::standard().parse(&json!([{"priority_experimental": settings}]));
        parsed.map(|config| config.warnings().to_vec()).map_err(|error| {
            assert_eq!(error.policy(), Some("priority_experimental"), "{error}");
            error.to_string().split_once("priority_experimental.").map(|(_, text)| text.to_owned())
        })
    };
    for good in [
        json!({"children": {"a": {"config": rr, "ignore_reresolution_requests": true}}, "priorities": ["a"]}),
        json!({"children": {"a": {"config": rr, "ignoreReresolutionRequests": null}}, "priorities": ["a"]}),
        json!({"children": {"": {"config": rr}}, "priorities": [""]}),
    ] {
        assert_eq!(check(good), Ok(Vec::new()));
    }
    let unknown = json!({"children": {"": {"config": rr, "future": 1}}, "priorities": [""], "more": {}});
    assert_eq!(check(unknown).map(|warnings| warnings.len()), Ok(2));
    for (bad, why) in [
        (
            json!({"children": {"a": {"config": rr}}, "priorities": ["a", "b"]}),
            "priorities[1]: \"b\" is not one of the children",
        ),
        (
            json!({"children": {"a": {"config": rr}}, "priorities": ["a", "a"]}),
            "priorities[1]: \"a\" is listed twice; a child has one priority",
        ),
        (
            json!({"children": {"a": {"config": rr}}, "priorities": [1]}),
            "priorities[0]: expected a string, found 1",
        ),
        (json!({"priorities": "a"}), "priorities: expected a list, found \"a\""),
        (json!({"children": []}), "children: expected an object, found []"),
        (json!({"children": {"a": 1}}), "children[\"a\"]: expected an object, found 1"),
        (
            json!({"children": {"a": {}}}),
            "children[\"a\"].config: is required: a list such as [{\"round_robin\": {}}]",
        ),
        (
            json!({"children": {"a": {"config": rr, "ignoreReresolutionRequests": "yes"}}}),
            "children[\"a\"].ignoreReresolutionRequests: expected true or false, found \"yes\"",
        ),
    ] {
        assert_eq!(check(bad), Err(Some(why.to_owned())));
    }
    let unknown = json!([{"priority_experimental": {"children": {"a": {"config": [{"best": {}}]}}}}]);
    let error = Registry::standard().parse(&unknown).expect_err("the policy is not registered");
    assert_eq!(error.path(), "loadBalancingConfig[0].priority_experimental.children[\"a\"].config");
}

/// PR-8: settings made in code are not validated. Names without a child and repeated names are ignored.
#[test]
fn invalid_settings_made_in_code_are_ignored() {
    let child = |policy: &str| PriorityChild {
        config: Registry::standard().parse(&json!([{policy: {}}])).expect("it parses"),
        ignore_reresolution_requests: false,
        note: None,
        backend_service: None,
        transport: None,
    };
    for (list, dialled) in
        [(&["x", "p0", "p1", "p0"][..], &["a"][..]), (&["x", "y"], &[]), (&["p1", "p1"], &["b"])]
    {
        let settings = PriorityConfig {
            children: ["p0", "p1"].map(|name| (name.into(), child("round_robin"))).into(),
            priorities: list.iter().map(|name| Arc::from(*name)).collect(),
        };
        let mut core = Core::builder(evenkeel_core::Rng::fixed(1)).build();
        let config = LbConfig::new::<Priority>("priority_experimental", settings);
        core.update(LbUpdate::new(config, groups(ABC)));
        let mut dials = Vec::new();
        for effect in core.reconcile(Instant::ORIGIN).effects {
            let LbEffect::Connect { id, address, .. } = effect else { panic!("{effect:?}") };
            dials.push(address.to_string());
            core.handle(LbEvent::Connected(id), Instant::ORIGIN);
        }
        assert_eq!(dials, dialled);
        let pass = core.reconcile(Instant::ORIGIN);
        assert_eq!(
            (pass.connectivity == ConnectivityState::Ready, pass.wake_at),
            (!dialled.is_empty(), None)
        );
        let again = core.reconcile_all(Instant::ORIGIN + secs(60));
        assert!(again.picker.is_none() && again.effects.is_empty() && again.wake_at.is_none());
    }
}

#[test]
fn the_description_has_the_chosen_child_and_the_timers() {
    let mut sim = sim(ABC);
    sim.advance(secs(10));
    sim.ready("b");
    sim.ready("a");
    sim.advance(secs(60));
    sim.lose("a");
    sim.advance(secs(4));
    let description = sim.describe();
    let expected = json!({
        "priorities": ["p0", "p1", "p2"],
        "chosen": "p0",
        "failoverIn": {"p0": "6.0s"},
        "removedIn": {"p1": "836.0s"},
    });
    assert_eq!(Value::from(description.details), expected);
    let states: Vec<_> = description.children.iter().map(|(name, child)| (&**name, child.state)).collect();
    assert_eq!(states, [("p0", Some(ConnectivityState::Connecting)), ("p1", Some(ConnectivityState::Ready))]);
}
