//! `priority_experimental`: all calls to the highest priority that works.

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

/// Priorities from the top: the name of the child, its policy, and its endpoints, one letter each.
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

fn world(priorities: Priorities<'_>) -> CoreSim {
    CoreSim::new(&config(priorities), groups(priorities))
}

fn update(world: &mut CoreSim, priorities: Priorities<'_>) {
    world.update(&config(priorities), groups(priorities));
}

/// Three priorities with one endpoint each, `a`, `b` and `c`.
const ABC: Priorities<'_> =
    &[("p0", "round_robin", "a"), ("p1", "round_robin", "b"), ("p2", "round_robin", "c")];

fn chosen(world: &CoreSim) -> Option<String> {
    world.describe().details["chosen"].as_str().map(str::to_owned)
}

fn existing(world: &CoreSim) -> Vec<String> {
    world.describe().children.into_iter().map(|(name, _)| name).collect()
}

fn deactivated(world: &CoreSim) -> Vec<String> {
    let details = world.describe().details;
    details["removedIn"].as_object().expect("a map").keys().cloned().collect()
}

fn failure(world: &mut CoreSim) -> String {
    world.pick().status().map(ToString::to_string).expect("the call fails")
}

/// PR-2, PR-3, PR-4, PR-11
#[test]
fn falls_over_after_ten_seconds_and_returns() {
    let mut world = world(ABC);
    world.advance(Duration::from_nanos(9_999_999_999));
    assert_eq!((world.dialled(), existing(&world)), (vec!["a".to_owned()], vec!["p0".to_owned()]));
    assert_eq!(world.picks(1), ["queue"]);
    world.advance(Duration::from_nanos(1));
    assert_eq!(world.dialled(), ["b"]);
    assert_eq!(chosen(&world).as_deref(), Some("p1"));
    world.ready("b");
    assert_eq!(world.letters(3), "bbb");
    world.ready("a");
    assert_eq!(world.letters(3), "aaa");
    assert_eq!(deactivated(&world), ["p1"]);
    world.advance(secs(60));
    assert!(world.dialled().is_empty(), "p2 was never needed");
    assert_eq!(existing(&world), ["p0", "p1"]);
}

/// PR-4, PR-11
#[test]
fn a_priority_that_fails_is_left_at_once() {
    let mut world = world(ABC);
    for address in ["a", "b", "c"] {
        world.up(address);
    }
    assert_eq!((world.dialled(), world.letters(2)), (vec!["a".to_owned()], "aa".to_owned()));
    world.down("a");
    assert_eq!(world.letters(3), "bbb");
    world.down("b");
    assert_eq!(world.letters(3), "ccc");
    assert!(deactivated(&world).is_empty());
    world.dialled();
    world.up("b");
    world.advance(secs(3));
    assert_eq!(world.letters(3), "bbb");
    assert_eq!(deactivated(&world), ["p2"]);
    world.up("a");
    world.advance(secs(3));
    assert_eq!(world.letters(3), "aaa");
    assert_eq!(deactivated(&world), ["p1", "p2"]);
    // What was kept serves at once.
    world.dialled();
    world.down("a");
    assert_eq!(world.letters(3), "bbb");
    assert_eq!(world.dialled(), ["a"]);
    assert_eq!(deactivated(&world), ["p2"]);
}

/// PR-3: what worked is given ten seconds to reconnect before the next priority takes over.
#[test]
fn a_lost_connection_gets_its_ten_seconds() {
    let mut world = world(ABC);
    world.ready("a");
    world.advance(secs(100));
    world.lose("a");
    assert_eq!((world.state(), world.picks(1)), (ConnectivityState::Connecting, vec!["queue".to_owned()]));
    world.advance(secs(9));
    assert_eq!(existing(&world), ["p0"]);
    world.advance(secs(1));
    assert_eq!(existing(&world), ["p0", "p1"]);
    // p0 is still connecting, without a deadline: it does not hold up the others a second time.
    world.advance(secs(9));
    assert_eq!(existing(&world), ["p0", "p1"]);
    world.advance(secs(1));
    assert_eq!(existing(&world), ["p0", "p1", "p2"]);
}

/// PR-4: with no time left anywhere, the first that is connecting; if none is, the last, with its message.
#[test]
fn with_nothing_ready_the_first_that_connects_or_the_last() {
    let mut world = world(ABC);
    world.advance(secs(30));
    assert_eq!((chosen(&world).as_deref(), world.state()), (Some("p0"), ConnectivityState::Connecting));
    world.fail("a");
    assert_eq!((chosen(&world).as_deref(), world.state()), (Some("p1"), ConnectivityState::Connecting));
    world.fail("c");
    assert_eq!(chosen(&world).as_deref(), Some("p1"));
    assert_eq!(world.picks(1), ["queue"]);
    world.fail("b");
    assert_eq!((chosen(&world).as_deref(), world.state()), (Some("p2"), ConnectivityState::TransientFailure));
    assert_eq!(failure(&mut world), "Unavailable: c: c refused");
    assert!(deactivated(&world).is_empty());
}

/// PR-4: IDLE counts as working; PR-11 with pick_first.
#[test]
fn an_idle_priority_is_used_and_woken_by_a_call() {
    let priorities: Priorities<'_> = &[("p0", "pick_first", "a"), ("p1", "pick_first", "b")];
    let mut world = world(priorities);
    world.advance(secs(10));
    world.ready("b");
    world.ready("a");
    world.lose("a");
    assert_eq!((chosen(&world).as_deref(), world.state()), (Some("p0"), ConnectivityState::Idle));
    assert_eq!(deactivated(&world), ["p1"]);
    world.dialled();
    world.advance(secs(60));
    assert!(world.dialled().is_empty());
    // Having been idle, it is given time: the call waits although p1 is ready.
    assert_eq!(world.picks(2), ["queue", "queue"]);
    assert_eq!(world.dialled(), ["a"]);
    assert_eq!(deactivated(&world), ["p1"]);
    world.fail("a");
    assert_eq!(world.letters(2), "bb");
    assert!(deactivated(&world).is_empty());
}

/// PR-5: what is deactivated is not woken when the application asks for a connection; what is chosen is.
#[test]
fn asking_for_a_connection_wakes_the_chosen_child_only() {
    let config = json!([{"priority_experimental": {
        "priorities": ["p0", "p1"],
        "children": {"p0": {"config": [{"pick_first": {}}]}, "p1": {"config": [{"pick_first": {}}]}},
    }}]);
    let groups = Endpoints::groups([("p0", endpoints(["a"])), ("p1", endpoints(["b"]))]);
    let mut world = CoreSim::new(&config, groups);
    world.fail("a");
    world.ready("b");
    world.advance(secs(2));
    world.ready("a");
    world.lose("b");
    world.lose("a");
    world.dialled();
    world.handle(LbEvent::ExitIdle);
    assert_eq!(world.dialled(), ["a"], "b is kept, but not in use");
}

/// PR-5
#[test]
fn a_deactivated_priority_is_kept_for_fifteen_minutes() {
    let mut world = world(ABC);
    world.advance(secs(10));
    world.ready("b");
    world.ready("a");
    world.advance(secs(MINUTES_15 - 1));
    assert!(world.closed().is_empty());
    // Needed again: the clock stops, and starts anew when p0 is back.
    world.lose("a");
    world.fail("a");
    assert_eq!(world.letters(1), "b");
    world.advance(secs(2));
    world.ready("a");
    world.advance(secs(MINUTES_15 - 1));
    assert!(world.closed().is_empty());
    assert_eq!(existing(&world), ["p0", "p1"]);
    world.advance(secs(1));
    assert_eq!((world.closed(), existing(&world)), (vec!["b".to_owned()], vec!["p0".to_owned()]));
    assert_eq!(world.wake_at(), None);
    // Gone is gone: the next failover makes a new child.
    world.dialled();
    world.down("a");
    assert_eq!(world.dialled(), ["a", "b"]);
}

/// PR-5: a child that is needed at the very moment its time is over is used, not made anew.
#[test]
fn a_child_needed_when_its_time_is_over_is_used() {
    let mut world = world(ABC);
    world.advance(secs(10));
    world.ready("b");
    world.ready("a");
    world.advance(secs(MINUTES_15 - 10));
    world.lose("a");
    world.advance(secs(10));
    assert_eq!(world.letters(2), "bb");
    assert!(world.closed().is_empty());
    assert!(deactivated(&world).is_empty());
}

/// PR-5: a deactivated child runs on: it follows updates, keeps connecting, and is as ready as it can be.
#[test]
fn a_deactivated_priority_follows_updates() {
    let mut world = world(ABC);
    world.advance(secs(10));
    world.ready("b");
    world.ready("a");
    world.dialled();
    world.endpoints(groups(&[("p0", "", "a"), ("p1", "", "bx"), ("p2", "", "c")]));
    assert_eq!(world.dialled(), ["x"]);
    world.lose("b");
    world.ready("b");
    assert_eq!(world.dialled(), ["b"]);
    world.endpoints(groups(&[("p0", "", "a"), ("p1", "", "b"), ("p2", "", "c")]));
    assert_eq!(world.closed(), ["x"]);
    assert_eq!(deactivated(&world), ["p1"]);
    world.advance(secs(MINUTES_15));
    assert_eq!(world.closed(), ["b"], "updates do not prolong its time");
}

/// PR-6
#[test]
fn a_child_that_left_the_config_is_gone_at_once() {
    let mut world = world(ABC);
    world.advance(secs(10));
    world.ready("b");
    world.ready("a");
    world.dialled();
    update(&mut world, &[("p0", "round_robin", "a"), ("p2", "round_robin", "c")]);
    assert_eq!((world.closed(), existing(&world)), (vec!["b".to_owned()], vec!["p0".to_owned()]));
    // The one in use, too; the next one takes over.
    update(&mut world, &[("p2", "round_robin", "c")]);
    assert_eq!((world.closed(), world.dialled()), (vec!["a".to_owned()], vec!["c".to_owned()]));
    assert_eq!(existing(&world), ["p2"]);
    // Back in the config, b's child is a new one with its own ten seconds.
    update(&mut world, &[("p1", "round_robin", "b"), ("p2", "round_robin", "c")]);
    assert_eq!(world.dialled(), ["b"]);
    world.ready("c");
    assert_eq!(world.picks(1), ["queue"]);
    world.advance(secs(10));
    assert_eq!(world.letters(1), "c");
}

/// PR-5: a child without a priority is not used, gets its updates, and goes when its time is over.
#[test]
fn a_child_that_lost_its_priority_is_deactivated() {
    let mut world = world(ABC);
    world.ready("a");
    let mut edited = config(ABC);
    edited[0]["priority_experimental"]["priorities"] = json!(["p1"]);
    world.config(&edited);
    world.ready("b");
    assert_eq!((world.letters(1), deactivated(&world)), ("b".to_owned(), vec!["p0".to_owned()]));
    world.endpoints(groups(&[("p0", "", "ax"), ("p1", "", "b")]));
    assert_eq!(world.dialled(), ["a", "b", "x"]);
    world.advance(secs(MINUTES_15));
    assert_eq!(world.closed(), ["a", "x"]);
    let warnings = world.describe().warnings;
    let path = "loadBalancingConfig[0].priority_experimental.children";
    let expected = ["p0", "p2"].map(|name| {
        format!("policy \"priority_experimental\": {path}[\"{name}\"]: has no priority and is never used")
    });
    assert_eq!(warnings, expected);
}

/// PR-7
#[test]
fn an_empty_list_fails_calls() {
    for empty in [json!({}), json!({"children": {}, "priorities": []}), json!({"priorities": null})] {
        let mut world = CoreSim::new(&json!([{"priority_experimental": empty}]), Endpoints::none());
        assert_eq!(world.state(), ConnectivityState::TransientFailure);
        assert_eq!(world.pick().status().map(Status::code), Some(Code::Unavailable));
        world.note("node n1");
        assert_eq!(failure(&mut world), "Unavailable: the list of priorities is empty (node n1)");
        assert_eq!(chosen(&world), None);
    }
    // A list that becomes empty takes the children with it; one that is filled again starts anew.
    let mut world = world(ABC).all_up();
    update(&mut world, &[]);
    assert_eq!((world.picks(1), world.closed()), (vec!["fail".to_owned()], vec!["a".to_owned()]));
    assert_eq!(world.subchannel_count(), 0);
    update(&mut world, ABC);
    assert_eq!(world.letters(1), "a");
}

/// PR-9
#[test]
fn re_resolution_requests_are_swallowed_where_the_config_says_so() {
    for ignore in [false, true] {
        let mut edited = config(ABC);
        ignore_p0(&mut edited, ignore);
        let mut world = CoreSim::new(&edited, groups(ABC));
        for address in ["a", "b"] {
            world.up(address);
        }
        world.reresolutions();
        world.down("a");
        world.advance(secs(30));
        assert_eq!(world.reresolutions() > 0, !ignore, "ignored: {ignore}");
        // Those of the other children come through, also when the flag changes while they run.
        world.down("b");
        assert!(world.reresolutions() > 0);
        world.up("b");
        world.advance(secs(30));
        ignore_p0(&mut edited, !ignore);
        world.config(&edited);
        world.reresolutions();
        world.advance(secs(300));
        assert_eq!(world.reresolutions() > 0, ignore, "ignored at first: {ignore}");
    }
}

fn ignore_p0(config: &mut Value, ignore: bool) {
    let children = &mut config[0]["priority_experimental"]["children"];
    children["p0"]["ignoreReresolutionRequests"] = ignore.into();
}

/// PR-12
#[test]
fn a_priority_that_is_half_down_keeps_all_calls() {
    let priorities: Priorities<'_> = &[("p0", "round_robin", "abcd"), ("p1", "round_robin", "xyz")];
    let mut world = world(priorities);
    for address in ["a", "b", "c", "d", "x", "y", "z"] {
        world.up(address);
    }
    assert_eq!(world.letters(8), "abcdabcd");
    for (lost, left) in [("b", "acd"), ("d", "ac"), ("a", "c")] {
        world.down(lost);
        let shares = world.shares(300);
        assert_eq!(shares.keys().cloned().collect::<String>(), left);
    }
    assert_eq!(existing(&world), ["p0"]);
    world.down("c");
    assert_eq!(world.shares(300).keys().cloned().collect::<String>(), "xyz");
}

/// PR-8; fault 68: after a pause every deadline that went by counts once, and nothing that it starts is overdue.
#[test]
fn a_pause_fires_each_timer_once() {
    let mut world = world(ABC);
    assert_eq!((world.dialled(), world.published()), (vec!["a".to_owned()], 1));
    world.sleep_through(secs(30));
    assert_eq!((world.dialled(), world.published()), (vec!["b".to_owned()], 1));
    assert_eq!(world.wake_at(), Some(world.now() + secs(10)));
    world.set_clock(Instant::ORIGIN);
    assert_eq!((existing(&world).len(), world.published()), (2, 0));
    world.sleep_through(secs(3600));
    assert_eq!((world.dialled(), world.published()), (vec!["c".to_owned()], 1));
    for address in ["a", "b", "c"] {
        world.ready(address);
    }
    world.published();
    world.sleep_through(secs(24 * 3600));
    assert_eq!((world.closed(), world.published()), (vec!["b".to_owned(), "c".to_owned()], 0));
    assert_eq!((world.letters(1), world.wake_at()), ("a".to_owned(), None));
}

#[test]
fn a_priority_without_endpoints_is_passed_over() {
    let mut world = world(&[("p0", "round_robin", ""), ("p1", "pick_first", ""), ("p2", "round_robin", "c")]);
    assert_eq!(world.dialled(), ["c"]);
    world.ready("c");
    assert_eq!(world.letters(1), "c");
    // Endpoints that are not in groups belong to nobody.
    world.endpoints(endpoints(["a", "b"]));
    assert_eq!(failure(&mut world), "Unavailable: no endpoints");
    assert_eq!(world.subchannel_count(), 0);
    world.endpoints(groups(&[("p0", "", "a"), ("stranger", "", "s")]));
    assert_eq!(world.dialled(), ["a"]);
    world.ready("a");
    assert_eq!(world.letters(1), "a");
}

#[test]
fn priorities_may_share_an_endpoint() {
    let mut world = world(&[("p0", "round_robin", "ab"), ("p1", "round_robin", "bbc")]);
    for address in ["a", "b", "c"] {
        world.up(address);
    }
    assert_eq!(world.letters(4), "abab");
    world.down("a");
    world.down("b");
    assert_eq!(world.letters(2), "cc");
    world.up("b");
    world.advance(secs(5));
    assert_eq!(world.letters(2), "bb");
    assert_eq!(world.subchannel_count(), 3);
    world.advance(secs(MINUTES_15));
    assert_eq!(world.closed(), ["c"], "b is p0's as well");
    assert_eq!(world.letters(2), "bb");
}

/// A56: an application that asks the channel to connect wakes the priority in use.
#[test]
fn connecting_on_request_wakes_an_idle_priority() {
    let mut world = world(&[("p0", "pick_first", "a"), ("p1", "pick_first", "b")]);
    world.ready("a");
    world.lose("a");
    world.dialled();
    world.handle(LbEvent::ExitIdle);
    assert_eq!(world.dialled(), ["a"]);
    assert_eq!(existing(&world), ["p0"]);
}

/// The whole list may be replaced by one in another order, with other policies: the change is seen as one.
#[test]
fn an_update_is_applied_to_all_children_before_a_priority_is_chosen() {
    let mut world = world(ABC);
    world.up("b");
    world.advance(secs(10));
    world.up("a");
    world.published();
    update(&mut world, &[("p1", "round_robin", "a"), ("p0", "round_robin", "b"), ("p2", "round_robin", "c")]);
    assert_eq!((world.letters(2), world.published()), ("aa".to_owned(), 1));
    update(&mut world, &[("p0", "pick_first", "b"), ("p1", "round_robin", "a")]);
    assert_eq!((world.letters(2), world.published()), ("bb".to_owned(), 1));
}

/// PR-1
#[test]
fn both_spellings_parse_and_bad_configs_say_why() {
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
        json!({"children": {"": {"config": rr, "future": 1}}, "priorities": [""], "more": {}}),
    ] {
        assert_eq!(check(good), Ok(Vec::new()));
    }
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
    let error = Registry::standard().parse(&unknown).expect_err("nobody registered it");
    assert_eq!(error.path(), "loadBalancingConfig[0].priority_experimental.children[\"a\"].config");
}

/// PR-8: settings made in code are not checked; names without a child are passed over, a second mention counts for nothing.
#[test]
fn careless_settings_made_in_code_do_no_harm() {
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
fn the_description_says_what_is_used_and_what_is_kept_for_how_long() {
    let mut world = world(ABC);
    world.advance(secs(10));
    world.ready("b");
    world.ready("a");
    world.advance(secs(60));
    world.lose("a");
    world.advance(secs(4));
    let description = world.describe();
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
