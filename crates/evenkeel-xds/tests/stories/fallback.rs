//! Authorities and their servers: server selection, fallback, and shared streams.

use std::time::Duration;

use evenkeel_xds::bootstrap::{Bootstrap, ServerFeatures};
use evenkeel_xds::resource::ResourceType::{Cluster, Endpoints};
use testkit::secs;

use crate::script::{ClientScript, authority, bootstrap, reply, server};

/// FB-1, FB-2, fault 9: the first server is unavailable from the start, so the second is used until the first has
/// sent a resource.
#[test]
fn falls_back_and_returns() {
    let mut world = ClientScript::new(bootstrap(&["one", "two"]));
    let id = world.channel(&[(Cluster, "a"), (Endpoints, "e")]);
    assert_eq!(world.dialled(), ["one"]);
    world.refuses("one");
    assert_eq!(world.dialled(), ["two"]);
    assert!(world.changed().is_empty(), "not every server failed");
    assert_eq!(world.sees(Cluster, "a"), "");
    world.accepts("two");
    assert_eq!(world.requests("two"), ["cluster [a] as me", "endpoints [e]"]);
    world.sends("two", reply(Cluster, "t1", &["a=two"]));
    assert_eq!(world.sees(Cluster, "a"), "two");
    world.redials("one");
    world.accepts("one");
    assert_eq!(
        world.requests("one"),
        ["cluster [a] as me", "endpoints [e]"],
        "versions of another server are not sent"
    );
    world.changed();
    world.log();
    // FB-3: the first resource from the first server ends the fallback.
    world.sends("one", reply(Cluster, "o1", &["a=one"]));
    assert_eq!(world.sees(Cluster, "a"), "one");
    assert_eq!(world.changed(), [id]);
    assert_eq!(world.log(), ["closes two"]);
    assert_eq!(world.streams(), ["one"]);
    world.passes(secs(15));
    assert!(world.sees(Endpoints, "e").contains(r#"xDS server "one" did not send it"#));
}

/// XM-1: a fallback server is in use only during fallback. Closing its stream is no failure.
#[test]
fn servers_count_while_they_are_in_use() {
    let mut world = ClientScript::new(bootstrap(&["one", "two"]));
    let tally = |world: &ClientScript| -> Vec<(bool, bool, u64)> {
        world.client.server_stats().map(|tally| (tally.in_use, tally.connected, tally.failures)).collect()
    };
    let unused = (false, false, 0);
    assert_eq!(tally(&world), [unused, unused]);
    world.channel(&[(Cluster, "a")]);
    assert_eq!(tally(&world), [(true, false, 0), unused]);
    world.refuses("one");
    world.accepts("two");
    world.sends("two", reply(Cluster, "1", &["a=1"]));
    assert_eq!(tally(&world), [(true, false, 1), (true, true, 0)]);
    world.redials("one");
    world.accepts("one");
    world.sends("one", reply(Cluster, "1", &["a=1"]));
    assert_eq!(tally(&world), [(true, true, 1), unused]);
}

/// FB-3: the same bytes from another server are a different resource, because `self` in them refers to the sender.
#[test]
fn the_sender_is_part_of_a_resource() {
    let mut world = ClientScript::new(bootstrap(&["one", "two"]));
    let id = world.channel(&[(Cluster, "a")]);
    world.refuses("one");
    world.accepts("two");
    world.sends("two", reply(Cluster, "1", &["a=1"]));
    world.redials("one");
    world.accepts("one");
    world.changed();
    world.sends("one", reply(Cluster, "1", &["a=1"]));
    assert_eq!(world.changed(), [id]);
    world.sends("one", reply(Cluster, "1", &["a=1"]));
    assert!(world.changed().is_empty());
}

/// FM-3: only the server in use can time out a resource.
#[test]
fn an_unused_server_does_not_time_out_resources() {
    let mut world = ClientScript::new(bootstrap(&["one", "two"]));
    let id = world.channel(&[(Cluster, "a")]);
    world.refuses("one");
    world.accepts("two");
    world.sends("two", reply(Cluster, "t", &["a=two"]));
    world.redials("one");
    world.accepts("one");
    world.holds_writes = true;
    world.wants(id, &[(Cluster, "a"), (Cluster, "b")]);
    world.write("one");
    world.passes(secs(16));
    assert_eq!(world.sees(Cluster, "b"), "");
    world.write("two");
    world.passes(secs(15));
    assert!(world.sees(Cluster, "b").contains(r#"xDS server "two" did not send it"#));
}

/// FB-1, fault 11: with every resource cached or known to be absent, a failed server does not cause fallback.
#[test]
fn no_fallback_when_every_resource_is_known() {
    let mut world = ClientScript::new(bootstrap(&["one", "two"]));
    let id = world.channel(&[(Cluster, "a"), (Cluster, "b")]);
    world.accepts("one");
    world.sends("one", reply(Cluster, "1", &["a=1"]));
    world.passes(secs(15));
    assert!(world.sees(Cluster, "b").contains("does not exist"));
    world.changed();
    world.dialled();
    world.ends("one", "killed");
    for _ in 0..5 {
        world.redials("one");
        world.refuses("one");
    }
    assert!(!world.dialled().contains(&"two".to_owned()));
    let error = r#"1 ~Unavailable: xDS server "one" cannot be reached: Unavailable: "connection refused" (xDS node id "me")"#;
    assert_eq!(world.sees(Cluster, "a"), error);
    assert_eq!(world.changed(), [id]);
    // Fault 10: a subscription to a resource that is not cached causes fallback.
    world.wants(id, &[(Cluster, "a"), (Cluster, "c")]);
    assert_eq!(world.dialled(), ["two"]);
    assert_eq!([world.sees(Cluster, "a"), world.sees(Cluster, "c")], ["1", ""], "not every server failed");
    world.accepts("two");
    assert_eq!(world.requests("two"), ["cluster [a c] as me"], "all names, not only the missing one");
    world.sends("two", reply(Cluster, "t", &["a=2", "c=2"]));
    assert_eq!([world.sees(Cluster, "a"), world.sees(Cluster, "c")], ["2", "2"]);
}

/// FB-1: a resource that was rejected or timed out is neither cached nor known to be absent, so it causes fallback.
#[test]
fn a_missing_resource_causes_fallback() {
    let slow = ServerFeatures { resource_timer_is_transient_error: true, ..ServerFeatures::default() };
    let servers = vec![server("one", slow), server("two", slow)];
    let mut world = ClientScript::new(Bootstrap { servers, ..bootstrap(&[]) });
    let id = world.channel(&[(Cluster, "a")]);
    world.accepts("one");
    world.sends("one", reply(Cluster, "1", &["a=bad"]));
    world.ends("one", "killed");
    assert_eq!(world.streams(), ["one"], "a stream that ends after a response is no failure");
    world.refuses("one");
    assert_eq!(world.streams(), ["two"]);
    world.leaves(id);
    world.channel(&[(Endpoints, "late")]);
    world.accepts("one");
    world.passes(secs(30));
    assert!(world.sees(Endpoints, "late").contains("no response"));
    assert_eq!(world.streams(), ["one"], "the resource timed out, but the server is reachable");
    world.ends("one", "killed");
    assert_eq!(world.streams(), ["two"]);
}

/// FB-2: subscribers see an error when every server failed.
#[test]
fn every_server_fails() {
    let mut world = ClientScript::new(bootstrap(&["one", "two"]));
    let id = world.channel(&[(Cluster, "a")]);
    world.refuses("one");
    world.accepts("two");
    assert!(world.changed().is_empty());
    world.ends("two", "overload");
    assert_eq!(world.changed(), [id]);
    let one = r#"xDS server "one" cannot be reached: Unavailable: "connection refused" (xDS node id "me")"#;
    let two =
        r#"xDS server "two" ended the stream before a response: Unavailable: "overload" (xDS node id "me")"#;
    assert_eq!(world.sees(Cluster, "a"), format!(r#"!Unavailable: cluster "a": not received: {one}; {two}"#));
    world.redials("two");
    world.accepts("two");
    world.sends("two", reply(Endpoints, "1", &[]));
    assert_eq!(world.sees(Cluster, "a"), "", "one server works again");
}

/// FB-3, fault 13: with three servers, the client returns one level at a time.
#[test]
fn returns_level_by_level() {
    let mut world = ClientScript::new(bootstrap(&["one", "two", "three"]));
    world.channel(&[(Cluster, "a")]);
    world.refuses("one");
    world.refuses("two");
    world.accepts("three");
    world.sends("three", reply(Cluster, "3", &["a=three"]));
    world.redials("two");
    world.accepts("two");
    world.log();
    // A response without a valid subscribed resource does not end the fallback.
    world.sends("two", reply(Cluster, "1", &[]));
    world.sends("two", reply(Cluster, "2", &["z=1"]));
    world.sends("two", reply(Cluster, "3", &["a=bad"]));
    world.sends("two", reply(Cluster, "3", &[]).error("a", 5, "gone"));
    assert_eq!(world.sees(Cluster, "a"), "three");
    world.log();
    world.sends("two", reply(Cluster, "4", &["a=two"]));
    assert_eq!(world.sees(Cluster, "a"), "two");
    assert_eq!(world.log(), ["closes three"]);
    world.redials("one");
    world.accepts("one");
    world.sends("one", reply(Cluster, "1", &["a=one"]));
    assert_eq!(world.sees(Cluster, "a"), "one");
    assert_eq!((world.log(), world.streams()), (vec!["closes two".to_owned()], vec!["one"]));
}

/// fault 12: with a first server that flaps, there is at most one switch per response, and one stream per server.
#[test]
fn a_first_server_that_flaps() {
    let mut world = ClientScript::new(bootstrap(&["one", "two"]));
    world.channel(&[(Cluster, "a"), (Cluster, "b")]);
    let mut responses = 0;
    for round in 0..300 {
        if world.streams().contains(&"two") && !world.is_open("two") {
            world.accepts("two");
            world.sends("two", reply(Cluster, "t", &["a=two"]));
        }
        if world.streams().contains(&"one") {
            match (world.is_open("one"), round % 3) {
                (false, 0) => world.accepts("one"),
                (false, _) => world.refuses("one"),
                (true, 1) => {
                    world.sends("one", reply(Cluster, "o", &["a=one"]));
                    responses += 1;
                }
                (true, _) => world.ends("one", "flap"),
            }
        }
        world.passes(Duration::from_millis(200));
    }
    let switches = world.log().iter().filter(|line| *line == "closes two").count();
    assert!(responses > 0 && switches <= responses, "{switches} switches, {responses} responses");
    assert!(world.streams().len() <= 2);
}

/// FB-2: fallback skips a server that already fails for another authority.
#[test]
fn skips_a_server_that_is_known_to_fail() {
    let authorities = [("other".to_owned(), authority(&["two"]))].into();
    let mut world = ClientScript::new(Bootstrap { authorities, ..bootstrap(&["one", "two", "three"]) });
    let other = "xdstp://other/envoy.config.cluster.v3.Cluster/x";
    world.channel(&[(Cluster, other)]);
    world.refuses("two");
    world.channel(&[(Cluster, "a")]);
    world.refuses("one");
    assert!(world.streams().contains(&"three"));
}

const EAST_A: &str = "xdstp://east/envoy.config.cluster.v3.Cluster/a";
const WEST_A: &str = "xdstp://west/envoy.config.cluster.v3.Cluster/a";

fn federated() -> ClientScript {
    let authorities =
        [("east".to_owned(), authority(&["one"])), ("west".to_owned(), authority(&["three", "one"]))].into();
    ClientScript::new(Bootstrap { authorities, ..bootstrap(&["one", "two"]) })
}

/// FED-4: two authorities share the stream to one server, and each name is requested from its own authority's server.
#[test]
fn authorities_share_servers() {
    let mut world = federated();
    let id = world.channel(&[(Cluster, "a"), (Cluster, EAST_A), (Cluster, WEST_A)]);
    assert_eq!(world.dialled(), ["one", "three"]);
    world.accepts("one");
    world.accepts("three");
    assert_eq!(world.requests("one"), [format!("cluster [a {EAST_A}] as me")]);
    assert_eq!(world.requests("three"), [format!("cluster [{WEST_A}] as me")]);
    world.sends("one", reply(Cluster, "1", &["a=1", &format!("{EAST_A}=1"), &format!("{WEST_A}=wrong")]));
    assert_eq!([world.sees(Cluster, "a"), world.sees(Cluster, EAST_A)], ["1", "1"]);
    assert_eq!(world.sees(Cluster, WEST_A), "", "not subscribed at this server");
    // Fallback of one authority does not affect another.
    world.requests("one");
    world.ends("three", "down");
    assert_eq!(world.requests("one"), [format!("cluster [a {EAST_A} {WEST_A}] v1 n1")]);
    world.sends("one", reply(Cluster, "2", &["a=1", &format!("{EAST_A}=1"), &format!("{WEST_A}=one")]));
    assert_eq!(world.sees(Cluster, WEST_A), "one");
    world.redials("three");
    world.accepts("three");
    world.requests("one");
    world.sends("three", reply(Cluster, "1", &[&format!("{WEST_A}=three")]));
    assert_eq!(world.sees(Cluster, WEST_A), "three");
    let unsubscribed = format!("cluster [a {EAST_A}] v2 n2");
    assert_eq!(world.requests("one"), [unsubscribed], "and the stream stays for the others");
    world.sends("one", reply(Cluster, "3", &["a=1", &format!("{EAST_A}=1"), &format!("{WEST_A}=late")]));
    assert_eq!(world.sees(Cluster, WEST_A), "three", "late data is ignored");
    world.sends("one", reply(Cluster, "4", &["a=1"]));
    assert!(world.sees(Cluster, EAST_A).contains("removed it"));
    assert_eq!(world.sees(Cluster, WEST_A), "three", "absence counts only at the resource's own server");
    world.wants(id, &[(Cluster, WEST_A)]);
    assert_eq!(world.streams(), ["three"]);
}

/// FED-3: all spellings of a name refer to one resource.
#[test]
fn spellings_of_one_name() {
    let mut world = federated();
    world.channel(&[(Cluster, &format!("{EAST_A}?y=2&x=1"))]);
    world.accepts("one");
    assert_eq!(world.requests("one"), [format!("cluster [{EAST_A}?x=1&y=2] as me")]);
    // The resource may use either spelling. The script cannot put "=" into a name, so the wrapper is built by hand.
    let mut cluster = testkit::resources::cluster(&format!("{EAST_A}?y=2&x=1"));
    cluster.eds_cluster_config.get_or_insert_default().service_name = "1".to_owned();
    world.sends("one", reply(Cluster, "1", &[]).with("", testkit::resources::any(&cluster)));
    assert_eq!(world.sees(Cluster, &format!("{EAST_A}?x=1&y=2")), "1");
    assert_eq!(world.sees(Cluster, &format!("{EAST_A}?y=2&x=1")), "1");
    world.requests("one");
    let wrapped = reply(Cluster, "2", &[]).with("", testkit::resources::any(&cluster));
    world.sends("one", wrapped.wrapped_as(&format!("{EAST_A}?x=1&y=2")));
    assert_eq!(world.requests("one"), [format!("cluster [{EAST_A}?x=1&y=2] v2 n2")]);
}

/// A name of an unknown authority has an error at once, and other names are not affected.
#[test]
fn unknown_authorities() {
    let mut world = federated();
    let lost = "xdstp://north/envoy.config.cluster.v3.Cluster/a";
    world.channel(&[(Cluster, lost), (Cluster, "a"), (Cluster, "xdstp:nonsense")]);
    let error = format!(
        "!Unavailable: cluster \"{lost}\": authority \"north\" is not in the bootstrap (xDS node id \"me\")"
    );
    assert_eq!(world.sees(Cluster, lost), error);
    assert!(world.sees(Cluster, "xdstp:nonsense").starts_with("!Unavailable: cluster \"xdstp:nonsense\": "));
    world.accepts("one");
    assert_eq!(world.requests("one"), ["cluster [a] as me"]);
    world.sends("one", reply(Cluster, "1", &["a=1", &format!("{lost}=1"), "xdstp:nonsense=1"]));
    assert_eq!(world.requests("one"), ["cluster [a] v1 n1"]);
    assert_eq!(world.sees(Cluster, "a"), "1");
}

/// FB-4: two clients fall back independently.
#[test]
fn clients_fall_back_independently() {
    let mut worlds = [0, 1].map(|_| ClientScript::new(bootstrap(&["one", "two"])));
    for world in &mut worlds {
        world.channel(&[(Cluster, "a")]);
        world.accepts("one");
    }
    worlds[0].sends("one", reply(Cluster, "1", &["a=1"]));
    for world in &mut worlds {
        world.ends("one", "killed");
    }
    worlds[0].refuses("one");
    assert_eq!(worlds[0].streams(), [""; 0], "everything is cached: it waits for the first server");
    assert_eq!(worlds[1].streams(), ["two"]);
}
