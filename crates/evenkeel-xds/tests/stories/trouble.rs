//! Closed streams, unreachable servers and missing resources: cached resources stay in use.

use std::time::Duration;

use evenkeel_core::Instant;
use evenkeel_xds::bootstrap::ServerFeatures;
use evenkeel_xds::resource::ResourceType::{Cluster, Endpoints};
use testkit::secs;

use crate::client::{with_clusters, world};
use crate::script::{ClientScript, ScriptResponse, bootstrap, bootstrap_with, reply};

/// FM-1: a stream that ends before its first response is a failure, with backoff. One that ends after a response is
/// reopened at once.
#[test]
fn a_stream_that_ends() {
    let mut world = world();
    let id = world.channel(&[(Cluster, "a")]);
    world.accepts("one");
    world.ends("one", "no \"thanks\"");
    let early = r#"xDS server "one" ended the stream before a response: Unavailable: "no \"thanks\"" (xDS node id "me")"#;
    let awaited = r#"!Unavailable: cluster "a": not received: "#;
    assert_eq!(world.sees(Cluster, "a"), format!("{awaited}{early}"));
    assert_eq!(world.log(), [format!("warning: {early}")]);
    assert_eq!(world.changed(), [id]);
    world.passes(Duration::from_millis(1200));
    world.refuses("one");
    let refused =
        r#"xDS server "one" cannot be reached: Unavailable: "connection refused" (xDS node id "me")"#;
    assert_eq!(world.sees(Cluster, "a"), format!("{awaited}{refused}"));
    world.passes(secs(2));
    world.accepts("one");
    assert_eq!(world.changed(), [id]);
    world.sends("one", reply(Cluster, "1", &["a=1"]));
    assert_eq!(world.sees(Cluster, "a"), "1");
    world.dialled();
    world.changed();
    world.log();
    world.ends("one", "max age");
    assert_eq!(world.dialled(), ["one"], "at once");
    assert_eq!(world.sees(Cluster, "a"), "1");
    world.refuses("one");
    assert_eq!(world.sees(Cluster, "a"), format!("1 ~Unavailable: {refused}"));
    assert_eq!(world.changed(), [id]);
    world.passes(secs(2));
    world.refuses("one");
    assert!(world.changed().is_empty(), "the error is unchanged");
    assert_eq!(world.log(), [format!("warning: {refused}")], "logged once");
}

/// fault 3: a server that ends every stream after a response causes no error and no change.
#[test]
fn a_server_that_ends_every_stream_after_a_response() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1"]);
    for _ in 0..100 {
        world.ends("one", "max age");
        world.redials("one");
        world.accepts("one");
        world.sends("one", reply(Cluster, "1", &["a=1"]));
    }
    assert!(world.changed().is_empty());
    assert_eq!(world.dialled().len(), 101);
    assert!(world.requests("one").iter().all(|request| request.starts_with("cluster [a] v1 ")));
    assert_eq!(world.sees(Cluster, "a"), "1");
}

/// fault 3, FM-1: streams that end after a response are reopened at once the first time, then at most once per
/// second. A stream that lived longer is reopened at once again.
#[test]
fn streams_that_end_after_a_response_have_a_floor() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1"]);
    world.passes(secs(60));
    world.dialled();
    world.ends("one", "max age");
    assert_eq!(world.dialled(), ["one"], "the stream lived for a minute");
    let (start, mut opens) = (world.now, vec![world.now]);
    while world.now < start + secs(5) {
        if world.streams().contains(&"one") {
            world.accepts("one");
            world.passes(Duration::from_millis(1));
            world.sends("one", reply(Cluster, "1", &["a=1"]));
            world.ends("one", "max age");
        } else {
            world.passes(Duration::from_millis(1));
        }
        opens.extend(world.dialled().iter().map(|_| world.now));
    }
    assert!((5..=7).contains(&opens.len()), "{} streams in 5 s", opens.len());
    assert!(opens[1].since(opens[0]) < Duration::from_millis(10), "the first one is replaced at once");
    for pair in opens[1..].windows(2) {
        let apart = pair[1].since(pair[0]).as_secs_f64();
        assert!((1.0..=1.25).contains(&apart), "{apart} s between two streams");
    }
    assert!(world.changed().is_empty() && world.log().is_empty(), "none of this is a failure");
    assert!(world.client.server_stats().all(|tally| tally.connected && tally.failures == 0));

    world.redials("one");
    world.dialled();
    world.accepts("one");
    world.sends("one", reply(Cluster, "1", &["a=1"]));
    world.passes(secs(10));
    world.ends("one", "max age");
    assert_eq!(world.dialled(), ["one"], "a stream that lived for 10 s is replaced at once");
}

/// FM-2, fault 1: a control plane that responded before and refuses connections is dialled about once per second in
/// the first minute. The client reconnects about one second after its return.
#[test]
fn a_server_that_returns_is_followed_in_about_a_second() {
    for absence in [100, 900, 2_000, 6_000, 20_000, 59_000].map(Duration::from_millis) {
        let mut world = with_clusters(ServerFeatures::default(), &["a=1"]);
        world.passes(secs(60));
        world.ends("one", "killed");
        let returns = world.now + absence;
        let mut attempts = 0;
        while world.now < returns {
            world.refuses("one");
            world.redials("one");
            attempts += 1;
        }
        let late = world.now.since(returns);
        assert!(late <= Duration::from_millis(1_200), "away for {absence:?}, followed {late:?} later");
        assert!(attempts <= 2 + absence.as_millis() / 800, "{attempts} attempts in {absence:?}");
        world.accepts("one");
        world.sends("one", reply(Cluster, "2", &["a=2"]));
        assert_eq!(world.sees(Cluster, "a"), "2");
    }
}

/// FM-2: the longer the server is unavailable, the longer the backoff, up to two minutes.
#[test]
fn attempts_grow_rare_while_a_server_stays_away() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1"]);
    world.ends("one", "killed");
    let start = world.now;
    let mut attempts = Vec::new();
    while world.now < start + secs(24 * 3600) {
        attempts.push(world.now);
        world.refuses("one");
        world.redials("one");
    }
    let within = |from: u64, to: u64| {
        attempts.iter().filter(|at| (secs(from)..secs(to)).contains(&at.since(start))).count()
    };
    assert!((45..=80).contains(&within(0, 60)), "{} in the first minute", within(0, 60));
    assert!((3..=8).contains(&within(600, 660)), "{} in the 11th minute", within(600, 660));
    assert!((24..=40).contains(&within(80_000, 83_600)), "{} in the 23rd hour", within(80_000, 83_600));
}

/// Clients that lose their control plane at the same moment reconnect at different times. A server that accepts
/// streams but does not respond gets the backoff of A57.
#[test]
fn a_herd_is_spread() {
    let mut delays = Vec::new();
    for seed in 0..200 {
        let mut world = ClientScript::seeded(seed, &["one"]);
        world.channel(&[(Cluster, "a")]);
        world.accepts("one");
        world.sends("one", reply(Cluster, "1", &["a=1"]));
        world.ends("one", "killed");
        let returns = world.now + secs(6);
        while world.now < returns {
            world.refuses("one");
            world.redials("one");
        }
        delays.push(world.now.since(returns));
        // The server accepts streams and ends them without a response.
        let mut waits = Vec::new();
        for _ in 0..6 {
            world.accepts("one");
            world.ends("one", "overloaded");
            let failed = world.now;
            world.redials("one");
            waits.push(world.now.since(failed).as_secs_f64());
        }
        for (i, wait) in waits.iter().enumerate() {
            let nominal = 1.6_f64.powi(i32::try_from(i).expect("small"));
            assert!((0.8 * nominal..=1.2 * nominal).contains(wait), "{i}: {wait}, nominally {nominal}");
        }
    }
    for tenth in 0..12 {
        let window = Duration::from_millis(100 * tenth)..Duration::from_millis(100 * (tenth + 1));
        let count = delays.iter().filter(|delay| window.contains(*delay)).count();
        assert!(count <= 50, "{count} of 200 clients in {window:?}");
    }
}

/// FM-2, fault 4: the backoff grows until a response is received.
#[test]
fn backs_off_until_a_response() {
    let mut world = world();
    world.channel(&[(Cluster, "a")]);
    let mut waits = Vec::new();
    for i in 0..20 {
        if i % 2 == 0 {
            world.refuses("one");
        } else {
            world.accepts("one");
            world.ends("one", "gone");
        }
        let failed = world.now;
        let due = world.client.next_deadline().expect("another attempt");
        world.dialled();
        world.nearly_passes(due.since(failed));
        assert!(world.dialled().is_empty(), "no attempt early");
        world.passes(Duration::from_nanos(1));
        assert_eq!(world.dialled(), ["one"]);
        waits.push(due.since(failed).as_secs_f64());
    }
    for (i, wait) in waits.iter().enumerate() {
        let nominal = 1.6_f64.powi(i32::try_from(i).expect("small")).min(120.0);
        assert!((0.8 * nominal..=1.2 * nominal).contains(wait), "{i}: {wait}, nominally {nominal}");
    }
    world.accepts("one");
    world.sends("one", reply(Cluster, "1", &["a=1"]));
    world.ends("one", "max age");
    world.refuses("one");
    let wait = world.client.next_deadline().expect("another attempt").since(world.now).as_secs_f64();
    assert!((0.8..=1.2).contains(&wait), "a response starts the back-off over: {wait}");
}

/// FM-3, DE-4, fault 6: a resource that is not received within its timeout is absent, or has a transient error if the
/// bootstrap requests that.
#[test]
fn a_resource_times_out() {
    let transient = ServerFeatures { resource_timer_is_transient_error: true, ..ServerFeatures::default() };
    let absent = r#"!NotFound: cluster "a": does not exist: xDS server "one" did not send it within 15s (xDS node id "me")"#;
    let late =
        r#"!Unavailable: cluster "a": no response from xDS server "one" within 30s (xDS node id "me")"#;
    for (features, seconds, text) in [(ServerFeatures::default(), 15, absent), (transient, 30, late)] {
        let mut world = ClientScript::new(bootstrap_with(features));
        let id = world.channel(&[(Cluster, "a")]);
        world.accepts("one");
        world.nearly_passes(secs(seconds));
        assert_eq!(world.sees(Cluster, "a"), "");
        world.passes(Duration::from_nanos(1));
        assert_eq!(world.sees(Cluster, "a"), text);
        assert_eq!(world.changed(), [id]);
        world.sends("one", reply(Cluster, "1", &["a=1"]));
        assert_eq!(world.sees(Cluster, "a"), "1");
    }
}

/// FM-3: the timeout of a resource starts when its request is written, on each stream again. A cached or rejected
/// resource has none.
#[test]
fn the_timeout_starts_with_the_request() {
    let mut world = world();
    world.holds_writes = true;
    world.channel(&[(Cluster, "a")]);
    world.accepts("one");
    world.passes(secs(60));
    assert_eq!(world.sees(Cluster, "a"), "", "not on the wire");
    world.write("one");
    world.passes(secs(14));
    world.ends("one", "gone");
    world.holds_writes = false;
    world.passes(secs(2));
    assert!(world.sees(Cluster, "a").contains("ended the stream"));
    world.accepts("one");
    world.passes(secs(14));
    assert!(!world.sees(Cluster, "a").contains("does not exist"), "the timeout restarts with the stream");
    world.sends("one", reply(Cluster, "1", &["a=1"]));
    assert_eq!(world.client.next_deadline(), None, "a received resource has no timeout");
    world.sends("one", reply(Cluster, "2", &["a=bad"]));
    assert_eq!(world.client.next_deadline(), None);
    world.channel(&[(Cluster, "b")]);
    world.sends("one", reply(Cluster, "3", &["a=1", "b=bad"]));
    assert_eq!(world.client.next_deadline(), None, "a rejected resource has no timeout");
}

/// FM-3: neither a response with other resources nor the end of a subscription changes the timeout of a resource.
#[test]
fn the_timeout_of_a_resource_is_its_own() {
    let mut world = world();
    let id = world.channel(&[(Endpoints, "a"), (Endpoints, "b")]);
    world.accepts("one");
    world.passes(secs(10));
    world.sends("one", reply(Endpoints, "1", &["a=1"]));
    world.passes(secs(5));
    assert!(world.sees(Endpoints, "b").contains("does not exist"));
    world.wants(id, &[(Endpoints, "a"), (Endpoints, "c")]);
    world.passes(secs(14));
    world.wants(id, &[(Endpoints, "a")]);
    world.holds_writes = true;
    world.wants(id, &[(Endpoints, "a"), (Endpoints, "c")]);
    world.passes(secs(60));
    assert_eq!(world.sees(Endpoints, "c"), "", "the second request is not written");
    world.write("one");
    world.nearly_passes(secs(15));
    assert_eq!(world.sees(Endpoints, "c"), "");
    world.passes(Duration::from_nanos(1));
    assert!(world.sees(Endpoints, "c").contains("does not exist"));
    // The state of a timed-out resource does not change when the server fails, so no subscriber is notified.
    world.wants(id, &[(Endpoints, "c")]);
    world.changed();
    world.ends("one", "killed");
    world.refuses("one");
    assert!(world.changed().is_empty());
    assert!(world.sees(Endpoints, "c").contains("does not exist"));
}

/// fault 8: a server that sends nothing after a reconnect, because nothing changed, does not time out cached
/// resources.
#[test]
fn cached_resources_do_not_time_out() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1"]);
    world.ends("one", "restart");
    world.accepts("one");
    assert_eq!(world.requests("one"), ["cluster [a] v1 as me"]);
    world.passes(secs(60));
    assert_eq!(world.sees(Cluster, "a"), "1");
    assert!(world.changed().is_empty());
}

/// fault 5, FB-1: a server that does not accept the stream within 20 s is failed, and the next server is used.
#[test]
fn the_second_server_is_used_within_20_seconds() {
    let mut world = ClientScript::new(bootstrap(&["one", "two"]));
    let id = world.channel(&[(Cluster, "a")]);
    world.dialled();
    world.nearly_passes(secs(20));
    assert!(world.dialled().is_empty(), "only the first server is tried so far");
    world.passes(Duration::from_nanos(1));
    assert_eq!(world.dialled(), ["two"], "20 s after the attempt began");
    assert_eq!((world.sees(Cluster, "a"), world.changed()), (String::new(), Vec::new()), "no error so far");
    world.accepts("two");
    world.sends("two", reply(Cluster, "1", &["a=1"]));
    assert_eq!((world.sees(Cluster, "a"), world.changed()), ("1".to_owned(), vec![id]));
}

/// FM-4, fault 5: no resource times out while the server is unreachable. A connection attempt times out after 20 s.
#[test]
fn a_server_that_cannot_be_reached_for_a_minute() {
    let mut world = world();
    world.channel(&[(Cluster, "a")]);
    world.nearly_passes(secs(20));
    assert_eq!(world.sees(Cluster, "a"), "");
    world.passes(Duration::from_nanos(1));
    let late = r#"!Unavailable: cluster "a": not received: xDS server "one" did not accept a connection within 20s (xDS node id "me")"#;
    assert_eq!(world.sees(Cluster, "a"), late);
    assert_eq!(world.log()[0], "closes one");
    world.passes(secs(40));
    assert_eq!(world.sees(Cluster, "a"), late);
    world.redials("one");
    world.accepts("one");
    world.sends("one", reply(Cluster, "1", &["a=1"]));
    assert_eq!(world.sees(Cluster, "a"), "1");
}

/// FM-5, DE-1: cached resources stay in use while the control plane is unavailable for half an hour.
#[test]
fn cached_resources_outlive_the_control_plane() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1", "b=1"]);
    world.ends("one", "killed");
    while world.now < Instant::ORIGIN + secs(1800) {
        world.redials("one");
        world.refuses("one");
    }
    let error = r#"~Unavailable: xDS server "one" cannot be reached: Unavailable: "connection refused" (xDS node id "me")"#;
    assert_eq!(world.sees(Cluster, "a"), format!("1 {error}"));
    world.channel(&[(Cluster, "c")]);
    let known = error.trim_start_matches("~Unavailable: ");
    let known = format!(r#"!Unavailable: cluster "c": not received: {known}"#);
    assert_eq!(world.sees(Cluster, "c"), known, "the error is there at once");
    world.redials("one");
    world.accepts("one");
    world.sends("one", reply(Cluster, "1", &["a=1", "b=1"]));
    assert_eq!([world.sees(Cluster, "a"), world.sees(Cluster, "c")], ["1", ""]);
}

/// DE-1, DE-2, DE-3, DE-5, DE-6: every kind of error keeps, holds or drops a cached resource, depending on the server
/// features.
#[test]
fn errors_keep_or_drop_a_cached_resource() {
    let none = ServerFeatures::default();
    let ignore = ServerFeatures { ignore_resource_deletion: true, ..none };
    let fail = ServerFeatures { fail_on_data_errors: true, ..none };
    let slow = ServerFeatures { resource_timer_is_transient_error: true, ..none };
    let both = ServerFeatures { ignore_resource_deletion: true, ..fail };
    let nack: fn() -> ScriptResponse = || reply(Cluster, "2", &["a=bad"]);
    let deletion: fn() -> ScriptResponse = || reply(Cluster, "2", &[]);
    let not_found: fn() -> ScriptResponse = || reply(Cluster, "2", &[]).error("a", 5, "no such thing");
    let denied: fn() -> ScriptResponse = || reply(Cluster, "2", &[]).error("a", 7, "not for you");
    let overload: fn() -> ScriptResponse = || reply(Cluster, "2", &[]).error("a", 8, "later");
    let cases = [
        (nack, [(none, "kept"), (ignore, "kept"), (fail, "dropped"), (slow, "kept"), (both, "dropped")]),
        (deletion, [(none, "held"), (ignore, "kept"), (fail, "dropped"), (slow, "kept"), (both, "dropped")]),
        (not_found, [(none, "kept"), (ignore, "kept"), (fail, "dropped"), (slow, "kept"), (both, "dropped")]),
        (denied, [(none, "kept"), (ignore, "kept"), (fail, "dropped"), (slow, "kept"), (both, "dropped")]),
        (overload, [(none, "kept"), (ignore, "kept"), (fail, "kept"), (slow, "kept"), (both, "kept")]),
    ];
    for (trouble, outcomes) in cases {
        for (features, outcome) in outcomes {
            let mut world = with_clusters(features, &["a=1"]);
            world.sends("one", trouble());
            if outcome == "held" {
                assert!(world.sees(Cluster, "a").starts_with("1 ~"), "for the grace period");
                assert_eq!(world.changed().len(), 1);
                world.passes(secs(1));
            }
            let seen = world.sees(Cluster, "a");
            let start = if outcome == "kept" { "1 ~" } else { "!" };
            assert!(seen.starts_with(start), "{:?} with {features:?}: {seen}", trouble());
            assert_eq!(world.changed().len(), 1);
            world.sends("one", trouble());
            assert!(world.changed().is_empty(), "the same error notifies no subscriber");
            // Fault 24: the resource returns unchanged, and no ambient error remains.
            world.sends("one", reply(Cluster, "3", &["a=1"]));
            assert_eq!(world.sees(Cluster, "a"), "1");
            assert_eq!(world.changed().len(), 1);
        }
    }
}

/// DE-5: an error that the server sends for a resource ends its timeout. The error's code is part of the text, but
/// not the code of the status.
#[test]
fn errors_of_resources_reach_the_subscriber() {
    let mut world = world();
    world.channel(&[(Endpoints, "a"), (Endpoints, "b")]);
    world.accepts("one");
    world.requests("one");
    world.sends("one", reply(Endpoints, "1", &["b=1"]).error("a", 7, "not for you").error("z", 5, ""));
    assert_eq!(world.requests("one"), ["endpoints [a b] v1 n1"], "an ACK");
    assert_eq!(world.client.next_deadline(), None);
    let error = |what: &str| {
        format!("!Unavailable: endpoints \"a\": xDS server \"one\" reports {what} (xDS node id \"me\")")
    };
    assert_eq!(world.sees(Endpoints, "a"), error(r#"PERMISSION_DENIED: "not for you""#));
    world.ends("one", "max age");
    world.accepts("one");
    world.passes(secs(60));
    assert_eq!(world.sees(Endpoints, "a"), error(r#"PERMISSION_DENIED: "not for you""#), "the error is kept");
    world.sends("one", reply(Endpoints, "1", &[]).error("a", 77, "?"));
    assert_eq!(world.sees(Endpoints, "a"), error(r#"the unknown code 77: "?""#));
    world.sends("one", reply(Endpoints, "1", &[]).error("b", 0, "fine"));
    assert_eq!(world.sees(Endpoints, "b"), "1");
    world.sends("one", reply(Endpoints, "1", &[]).error("b", -1, "odd"));
    assert!(world.sees(Endpoints, "b").starts_with("1 ~Unavailable"));
    world.sends("one", reply(Endpoints, "2", &["a=2"]));
    assert_eq!(world.sees(Endpoints, "a"), "2");
}

/// DE-3, fault 24: an ignored deletion is logged once, and so is its end.
#[test]
fn an_ignored_deletion_is_logged() {
    let features = ServerFeatures { ignore_resource_deletion: true, ..ServerFeatures::default() };
    let begins = r#"warning: cluster "a": xDS server "one" removed it; it stays in use (xDS node id "me")"#;
    let over = r#"info: cluster "a": its ignored removal by xDS server "one" ended (xDS node id "me")"#;
    let mut world = with_clusters(features, &["a=1", "b=1"]);
    world.sends("one", reply(Cluster, "2", &["b=1"]));
    world.sends("one", reply(Cluster, "3", &["b=1"]));
    assert_eq!(world.log(), [begins]);
    let ambient =
        r#"1 ~NotFound: cluster "a": does not exist: xDS server "one" removed it (xDS node id "me")"#;
    assert_eq!(world.sees(Cluster, "a"), ambient);
    world.sends("one", reply(Cluster, "4", &["a=1", "b=1"]));
    assert_eq!(world.log(), [over]);
}

/// DE-3: an ignored deletion ends with the subscription.
#[test]
fn an_ignored_deletion_ends_with_the_subscription() {
    let features = ServerFeatures { ignore_resource_deletion: true, ..ServerFeatures::default() };
    let mut world = ClientScript::new(bootstrap_with(features));
    let id = world.channel(&[(Cluster, "a"), (Cluster, "b")]);
    world.accepts("one");
    world.sends("one", reply(Cluster, "1", &["a=1"]));
    world.sends("one", reply(Cluster, "2", &[]));
    world.log();
    world.wants(id, &[(Cluster, "b")]);
    let over = r#"info: cluster "a": its ignored removal by xDS server "one" ended (xDS node id "me")"#;
    assert_eq!(world.log(), [over]);
}
