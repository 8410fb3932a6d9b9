//! Subscriptions, ACKs and errors on one state-of-the-world stream.

use std::time::Duration;

use evenkeel_core::Status;
use evenkeel_proto::envoy::service::discovery::v3::{DiscoveryResponse, Resource as Wrapper};
use evenkeel_proto::prost::Message as _;
use evenkeel_proto::prost_types::Any;
use evenkeel_xds::XdsLimits;
use evenkeel_xds::ads::{
    AdsEffect, AdsEvent, ChangedResources, DELETION_GRACE, ParseResource, ServerStats, XdsVariant,
};
use evenkeel_xds::bootstrap::{ServerConfig, ServerFeatures};
use evenkeel_xds::resource::ResourceType::{Cluster, Endpoints, Listener, RouteConfig};
use evenkeel_xds::resource::{ParsedResource, RejectedResource, ResourceType};
use testkit::{resources, secs};

use crate::script::{ClientScript, MarkParser, bootstrap, bootstrap_with, reply};

pub(crate) fn world() -> ClientScript {
    ClientScript::new(bootstrap(&["one"]))
}

/// A world whose server has sent these clusters on an open stream.
pub(crate) fn with_clusters(features: ServerFeatures, clusters: &[&str]) -> ClientScript {
    let mut world = ClientScript::new(bootstrap_with(features));
    let names: Vec<_> = clusters.iter().filter_map(|text| Some((Cluster, text.split_once('=')?.0))).collect();
    world.channel(&names);
    world.accepts("one");
    world.sends("one", reply(Cluster, "1", clusters));
    world.requests("one");
    world.changed();
    world
}

/// ADS-1, ADS-4, ADS-7
#[test]
fn asks_and_answers() {
    let mut world = world();
    world.channel(&[(Cluster, "b"), (Cluster, "a"), (Listener, "l")]);
    assert_eq!(world.dialled(), ["one"]);
    world.accepts("one");
    assert_eq!(world.requests("one"), ["listener [l] as me", "cluster [a b]"]);
    world.sends("one", reply(Cluster, "1", &["a=1", "b=1"]));
    assert_eq!(world.requests("one"), ["cluster [a b] v1 n1"]);
    assert_eq!(world.sees(Cluster, "a"), "1");
    assert_eq!(world.sees(Listener, "l"), "");
    world.sends("one", reply(Cluster, "2", &["a=bad", "b=2"]));
    assert_eq!(world.requests("one"), [r#"cluster [a b] v1 n2 !"a": content: is bad"#]);
    world.sends("one", reply(Cluster, "3", &["a=3", "b=2"]));
    assert_eq!(world.requests("one"), ["cluster [a b] v3 n3"]);
    world.ends("one", "max age");
    world.accepts("one");
    assert_eq!(world.requests("one"), ["listener [l] as me", "cluster [a b] v3"]);
}

/// ADS-4: the first response is bad.
#[test]
fn rejects_the_first_response() {
    let mut world = world();
    world.channel(&[(Cluster, "a")]);
    world.accepts("one");
    world.sends("one", reply(Cluster, "1", &["a=bad"]));
    assert_eq!(world.requests("one"), ["cluster [a] as me", r#"cluster [a] n1 !"a": content: is bad"#]);
    let error = r#"!Unavailable: cluster "a": what xDS server "one" sent cannot be used: content: is bad (xDS node id "me")"#;
    assert_eq!(world.sees(Cluster, "a"), error);
}

/// ADS-4: what cannot be decoded is known by its place.
#[test]
fn rejects_nameless_resources_by_index() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1", "b=1"]);
    let garbage = Any { type_url: Cluster.type_url().to_owned(), value: vec![0xff; 3] };
    world.sends("one", reply(Cluster, "2", &["a=bad"]).with("b", garbage));
    let nack = r#"cluster [a b] v1 n2 !"a": content: is bad; resource 1: cannot be decoded"#;
    assert_eq!(world.requests("one"), [nack]);
    assert_eq!(world.sees(Cluster, "b"), "1", "the one without a name may be the one that is missing");
}

/// ADS-4: a name that stands twice is ambiguous; the first is used.
#[test]
fn rejects_a_name_that_stands_twice() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1"]);
    world.sends("one", reply(Cluster, "2", &["a=2", "a=3"]));
    assert_eq!(world.requests("one"), [r#"cluster [a] v1 n2 !"a": stands twice in the response"#]);
    assert_eq!(world.sees(Cluster, "a"), "2");
}

/// ADS-2: one subscription, and the second subscriber sees all at once.
#[test]
fn subscribers_share_a_subscription() {
    let mut world = world();
    let first = world.channel(&[(Cluster, "a")]);
    world.accepts("one");
    world.requests("one");
    let second = world.channel(&[(Cluster, "a")]);
    assert_eq!(world.requests("one"), [""; 0]);
    world.sends("one", reply(Cluster, "1", &["a=1"]));
    assert_eq!(world.changed(), [first, second]);
    world.sends("one", reply(Cluster, "2", &["a=bad"]));
    world.changed();
    world.channel(&[(Cluster, "a")]);
    let both = r#"1 ~Unavailable: cluster "a": what xDS server "one" sent cannot be used: content: is bad (xDS node id "me")"#;
    assert_eq!(world.sees(Cluster, "a"), both);
    world.leaves(first);
    world.leaves(second);
    assert_eq!(world.sees(Cluster, "a"), both, "the third is still there");
}

/// ADS-3
#[test]
fn the_last_one_takes_the_subscription_along() {
    let mut world = world();
    let first = world.channel(&[(Cluster, "a"), (Cluster, "b"), (Endpoints, "e")]);
    let second = world.channel(&[(Cluster, "b")]);
    world.accepts("one");
    world.sends("one", reply(Cluster, "1", &["a=1", "b=1"]));
    world.requests("one");
    world.wants(first, &[(Cluster, "b"), (Endpoints, "e")]);
    assert_eq!(world.requests("one"), ["cluster [b] v1 n1"]);
    assert_eq!(world.sees(Cluster, "a"), "");
    world.wants(first, &[(Endpoints, "e")]);
    assert_eq!(world.requests("one"), [""; 0]);
    world.wants(second, &[]);
    assert_eq!(world.requests("one"), ["cluster [] v1 n1"]);
    world.sends("one", reply(Cluster, "2", &["b=2"]));
    assert_eq!(world.requests("one"), ["cluster [] v2 n2"], "an empty list is no wildcard by now");
    world.wants(second, &[(Cluster, "b")]);
    assert_eq!(world.sees(Cluster, "b"), "", "it was forgotten");
    world.leaves(second);
    world.leaves(first);
    assert_eq!(world.log(), ["closes one"]);
    assert_eq!(world.client.next_deadline(), None);
    world.channel(&[(Cluster, "b")]);
    world.accepts("one");
    world.requests("one");
    world.sends("one", reply(Cluster, "2", &["b=2"]));
    assert_eq!(world.requests("one"), ["cluster [b] v2 n3"]);
}

/// ADS-3, fault 18: a version of which nothing is left is not claimed, or the server would have nothing to send.
#[test]
fn a_version_is_forgotten_with_its_resources() {
    let mut world = world();
    let channel = world.channel(&[(Cluster, "a"), (Endpoints, "e")]);
    world.accepts("one");
    world.sends("one", reply(Cluster, "1", &["a=1"]));
    world.wants(channel, &[(Endpoints, "e")]);
    world.ends("one", "max age");
    world.wants(channel, &[(Cluster, "b"), (Endpoints, "e")]);
    world.requests("one");
    world.accepts("one");
    assert_eq!(world.requests("one"), ["cluster [b] as me", "endpoints [e]"]);
    world.wants(channel, &[(Cluster, "b"), (Cluster, "c"), (Endpoints, "e")]);
    assert_eq!(world.requests("one"), ["cluster [b c]"]);
}

/// ADS-5, fault 21
#[test]
fn one_bad_cluster_of_a_hundred_spoils_no_other() {
    let mut world = world();
    let names: Vec<String> = (0..100).map(|i| format!("c{i:02}")).collect();
    let wanted: Vec<_> = names.iter().map(|name| (Cluster, name.as_str())).collect();
    world.channel(&wanted);
    world.accepts("one");
    world.requests("one");
    let sent: Vec<String> =
        names.iter().map(|n| format!("{n}={}", if n == "c42" { "bad" } else { "1" })).collect();
    let sent: Vec<&str> = sent.iter().map(String::as_str).collect();
    world.sends("one", reply(Cluster, "1", &sent));
    let good = names.iter().filter(|name| world.sees(Cluster, name) == "1").count();
    assert_eq!(good, 99);
    let request = world.requests("one").remove(0);
    assert!(request.ends_with(r#" n1 !"c42": content: is bad"#), "{request}");
    let valid: u64 = world.client.server_stats().map(|tally| tally.valid[&Cluster]).sum();
    let invalid: u64 = world.client.server_stats().map(|tally| tally.invalid[&Cluster]).sum();
    assert_eq!((valid, invalid), (99, 1));
}

/// fault 21: every name fits into 4 KiB, and no text is longer.
#[test]
fn what_a_nack_says_is_bounded() {
    let mut world = world();
    world.channel(&[(Cluster, "a")]);
    world.accepts("one");
    world.requests("one");
    let long = format!("bad{}", "x".repeat(10_000));
    let sent: Vec<String> = (0..40).map(|i| format!("spoiled-{i:02}={long}")).collect();
    let sent: Vec<&str> = sent.iter().map(String::as_str).collect();
    world.sends("one", reply(Cluster, "1", &sent));
    let nack = world.requests("one").remove(0);
    let (_, text) = nack.split_once('!').expect("a NACK");
    assert!(text.len() <= 4096, "{}", text.len());
    for i in 0..40 {
        assert!(text.contains(&format!("spoiled-{i:02}")), "{i}: {text}");
    }
    let sent: Vec<String> = (0..4_000).map(|i| format!("ä{i}=bad")).collect();
    let sent: Vec<&str> = sent.iter().map(String::as_str).collect();
    world.sends("one", reply(Cluster, "1", &sent));
    let nack = world.requests("one").remove(0);
    let (_, text) = nack.split_once('!').expect("a NACK");
    assert!(text.len() <= 4096 && text.contains("; and 3") && text.ends_with(" more"), "{text}");
    world.sends("one", reply(Cluster, "1", &[&format!("a={long}")]));
    assert!(world.sees(Cluster, "a").len() < 4096 + 200);
}

/// ADS-6
#[test]
fn what_was_not_asked_for_is_ignored() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1"]);
    world.sends("one", reply(Cluster, "2", &["a=1", "b=2"]));
    assert_eq!(world.requests("one"), ["cluster [a] v2 n2"]);
    assert_eq!(world.sees(Cluster, "b"), "");
    assert!(world.changed().is_empty());
    world.sends("one", reply(Endpoints, "1", &["e=1"]));
    let other = "type.googleapis.com/envoy.config.core.v3.Node";
    for _ in 0..3 {
        world.sends("one", reply(Cluster, "1", &["a=9"]).of_type(other));
    }
    assert_eq!(world.requests("one"), [""; 0], "an answer would say whether it is right");
    assert_eq!(world.sees(Cluster, "a"), "1");
    let warning = |kind: &str| {
        format!("warning: xDS server \"one\" sent resources of type \"{kind}\", which was not asked for")
    };
    assert_eq!(world.log(), [warning(Endpoints.type_url()), warning(other)]);
}

/// ADS-8
#[test]
fn wrappers_are_opened() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1"]);
    world.sends("one", reply(Cluster, "2", &["a=2"]).wrapped_as("a"));
    world.sends("one", reply(Cluster, "3", &["a=3"]).wrapped_as(""));
    assert_eq!(world.requests("one"), ["cluster [a] v2 n2", "cluster [a] v3 n3"]);
    assert_eq!(world.sees(Cluster, "a"), "3");
    let inside = |name: &str| format!("cluster [a] v3 {name}");
    world.sends("one", reply(Cluster, "4", &["b=4"]).wrapped_as("a"));
    assert_eq!(world.requests("one"), [inside(r#"n4 !"a": holds the resource "b""#)]);
    let empty = Wrapper { name: "a".to_owned(), ..Wrapper::default() };
    world.sends("one", reply(Cluster, "4", &[]).with("a", resources::any(&empty)));
    assert_eq!(world.requests("one"), [inside(r#"n5 !"a": the wrapper holds no resource"#)]);
    let broken = Any { value: vec![0xff], ..resources::any(&empty) };
    world.sends("one", reply(Cluster, "4", &[]).with("a", broken));
    let nack = world.requests("one").remove(0);
    assert!(nack.starts_with(&inside("n6 !resource 0: the wrapper cannot be decoded: ")), "{nack}");
    assert!(world.sees(Cluster, "a").starts_with("3 ~"));
}

/// ADS-9: the next response is read when everybody has dealt with the last; who wants more meanwhile is heard.
#[test]
fn reads_when_all_have_dealt_with_the_last() {
    let mut world = world();
    let a = world.channel(&[(Cluster, "a")]);
    let b = world.channel(&[(Cluster, "b")]);
    let ab = world.channel(&[(Cluster, "a"), (Cluster, "b")]);
    world.accepts("one");
    world.holds_changes = true;
    assert!(world.reads("one"));
    world.sends("one", reply(Cluster, "1", &["a=1"]));
    assert_eq!(world.unprocessed(), [a, ab]);
    world.requests("one");
    world.wants(a, &[(Cluster, "a"), (Endpoints, "e")]);
    assert_eq!(world.requests("one"), ["endpoints [e]"]);
    world.process(a);
    assert!(!world.reads("one"));
    world.process(ab);
    assert!(world.reads("one"));
    world.sends("one", reply(Cluster, "2", &["a=1", "b=2"]));
    assert_eq!(world.unprocessed(), [b, ab]);
    world.leaves(b);
    assert!(!world.reads("one"));
    world.leaves(ab);
    assert!(world.reads("one"), "who left need not be waited for");
    world.sends("one", reply(Cluster, "3", &["a=1", "b=2"]));
    assert!(world.reads("one"), "nobody has anything to do");
    for spoiled in [reply(Cluster, "4", &["a=bad"]), reply(Cluster, "5", &[])] {
        world.sends("one", spoiled);
        assert!(!world.reads("one"), "errors and deletions are waited for too");
        world.process(a);
        assert!(world.reads("one"));
    }
}

/// ADS-9: something changes again while a subscriber is at work. It has not seen that yet.
#[test]
fn what_changes_meanwhile_is_not_lost() {
    let mut world = ClientScript::new(bootstrap_with(ServerFeatures::default()));
    let id = world.channel(&[(Cluster, "a"), (Cluster, "b")]);
    world.accepts("one");
    world.holds_changes = true;
    world.sends("one", reply(Cluster, "1", &["a=1"]));
    world.client.handle_time(world.now + secs(15));
    world.client.processed(id);
    assert!(world.client.poll_effect().is_none(), "b timed out, and that was not seen");
    assert_eq!(world.client.poll_changed(), Some((id, ChangedResources::Anything)));
    world.client.processed(id);
    assert!(world.client.poll_effect().is_some());
}

/// ADS-10, fault 15
#[test]
fn the_same_again_changes_nothing() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1"]);
    world.sends("one", reply(Cluster, "2", &["a=1"]));
    assert!(world.changed().is_empty());
    assert_eq!(world.requests("one"), ["cluster [a] v2 n2"]);
    world.sends("one", reply(Cluster, "3", &["a=bad"]));
    assert_eq!(world.changed().len(), 1);
    world.sends("one", reply(Cluster, "4", &["a=bad"]));
    assert!(world.changed().is_empty(), "the same error is no news");
    world.sends("one", reply(Cluster, "5", &["a=bad luck"]));
    assert_eq!(world.changed().len(), 1);
    world.sends("one", reply(Cluster, "6", &["a=1"]));
    assert_eq!(world.changed().len(), 1, "the error is gone");
    assert_eq!(world.sees(Cluster, "a"), "1");
}

/// ADS-11, RDS and EDS included
#[test]
fn listeners_and_clusters_can_be_deleted() {
    for (kind, gone) in [(Listener, true), (Cluster, true), (RouteConfig, false), (Endpoints, false)] {
        let mut world = world();
        world.channel(&[(kind, "a"), (kind, "b")]);
        world.accepts("one");
        world.sends("one", reply(kind, "1", &["a=1"]));
        assert_eq!(world.sees(kind, "b"), "", "{kind} that never came is awaited, not deleted");
        world.sends("one", reply(kind, "2", &["b=1"]));
        world.passes(DELETION_GRACE);
        let deleted = format!(
            "!NotFound: {kind} \"a\": does not exist: xDS server \"one\" removed it (xDS node id \"me\")"
        );
        assert_eq!(world.sees(kind, "a"), if gone { deleted.as_str() } else { "1" });
        world.changed();
        world.sends("one", reply(kind, "3", &["b=1"]));
        assert!(world.changed().is_empty(), "it is deleted once");
        world.sends("one", reply(kind, "4", &["a=1", "b=1"]));
        assert_eq!(world.sees(kind, "a"), "1");
    }
}

/// ADS-11, fault 17: a response that the server sent before it knew of a name does not delete it.
#[test]
fn what_the_server_does_not_know_of_yet_is_not_deleted() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1", "b=1"]);
    let id = world.channel(&[]);
    world.holds_writes = true;
    world.wants(id, &[(Cluster, "c")]);
    assert_eq!(world.requests("one"), ["cluster [a b c] v1 n1"]);
    world.sends("one", reply(Cluster, "2", &["a=1", "b=1", "c=1"]));
    assert_eq!(world.sees(Cluster, "c"), "1");
    world.sends("one", reply(Cluster, "3", &["a=1", "b=1"]));
    assert_eq!(world.sees(Cluster, "c"), "1");
}

/// fault 17: a name that goes and comes back before the server hears of it was never gone; nothing would be sent again.
#[test]
fn unsubscribing_and_subscribing_within_a_round_trip() {
    let mut world = world();
    let id = world.channel(&[(Cluster, "a"), (Cluster, "b")]);
    world.accepts("one");
    world.sends("one", reply(Cluster, "1", &["a=1", "b=1"]));
    world.requests("one");
    world.holds_writes = true;
    // Another request is in flight, so the server receives neither change.
    world.wants(id, &[(Cluster, "a"), (Cluster, "b"), (Endpoints, "e")]);
    world.wants(id, &[(Cluster, "b"), (Endpoints, "e")]);
    assert_eq!(world.sees(Cluster, "a"), "");
    world.wants(id, &[(Cluster, "a"), (Cluster, "b"), (Endpoints, "e")]);
    assert_eq!(world.sees(Cluster, "a"), "1");
    world.write("one");
    assert_eq!(world.requests("one"), ["endpoints [e]"]);
    // The server receives both changes.
    world.wants(id, &[(Cluster, "b"), (Endpoints, "e")]);
    world.wants(id, &[(Cluster, "a"), (Cluster, "b"), (Endpoints, "e")]);
    assert_eq!(world.sees(Cluster, "a"), "1", "not forgotten before the server knows");
    world.write("one");
    assert_eq!(world.requests("one"), ["cluster [b] v1 n1", "cluster [a b] v1 n1"]);
    world.sends("one", reply(Cluster, "2", &["b=1"]));
    assert_eq!(world.sees(Cluster, "a"), "1", "sent before the server heard of the second");
    world.write("one");
    world.write("one");
    world.passes(secs(60));
    assert_eq!(world.sees(Cluster, "a"), "1", "and not declared missing");
}

/// fault 17: a name goes, and a response crosses the request that says so: the server drops that request, since its nonce is
/// not the last one, and believes that we have the resource. When the name is back it is first said again that it went.
#[test]
fn a_response_crosses_the_request_that_a_name_went() {
    let mut world = world();
    let id = world.channel(&[(Endpoints, "a"), (Endpoints, "b")]);
    world.accepts("one");
    world.sends("one", reply(Endpoints, "1", &["a=1", "b=1"]));
    world.requests("one");
    world.wants(id, &[(Endpoints, "b")]);
    assert_eq!(world.requests("one"), ["endpoints [b] v1 n1"]);
    // The answer has to wait, and the name is back before it is sent.
    world.holds_writes = true;
    world.wants(id, &[(Endpoints, "b"), (Cluster, "c")]);
    world.sends("one", reply(Endpoints, "2", &["a=2", "b=2"]));
    world.wants(id, &[(Endpoints, "a"), (Endpoints, "b"), (Cluster, "c")]);
    assert_eq!(world.sees(Endpoints, "a"), "", "it was not wanted when it came");
    world.holds_writes = false;
    world.write("one");
    let said = world.requests("one");
    assert_eq!(said, ["cluster [c]", "endpoints [b] v2 n2", "endpoints [a b] v2 n2"]);
    world.sends("one", reply(Endpoints, "2", &["a=2"]));
    assert_eq!(world.sees(Endpoints, "a"), "2");
    assert_eq!(world.requests("one"), ["endpoints [a b] v2 n3"], "it came: no more of that");

    // The name is back before the response comes.
    world.wants(id, &[(Endpoints, "b"), (Cluster, "c")]);
    world.wants(id, &[(Endpoints, "a"), (Endpoints, "b"), (Cluster, "c")]);
    assert_eq!(world.requests("one"), ["endpoints [b] v2 n3", "endpoints [a b] v2 n3"]);
    world.sends("one", reply(Endpoints, "3", &["b=3"]));
    assert_eq!(world.requests("one"), ["endpoints [b] v3 n4", "endpoints [a b] v3 n4"]);
    world.sends("one", reply(Endpoints, "3", &["a=3", "b=3"]));
    assert_eq!(world.requests("one"), ["endpoints [a b] v3 n5"]);
    assert_eq!(world.sees(Endpoints, "a"), "3");
}

/// FM-3, fault 17: a name that is back has no longer to come because responses with other resources cross it again and again.
#[test]
fn a_name_that_is_back_does_not_come() {
    let mut world = world();
    let id = world.channel(&[(Endpoints, "a"), (Endpoints, "b")]);
    world.accepts("one");
    world.sends("one", reply(Endpoints, "1", &["a=1", "b=1"]));
    world.wants(id, &[(Endpoints, "b")]);
    world.wants(id, &[(Endpoints, "a"), (Endpoints, "b")]);
    for version in ["2", "3"] {
        world.passes(secs(5));
        world.sends("one", reply(Endpoints, version, &["b=1"]));
        assert_eq!(world.sees(Endpoints, "a"), "");
    }
    world.nearly_passes(secs(5));
    assert_eq!(world.sees(Endpoints, "a"), "");
    world.passes(Duration::from_nanos(1));
    assert!(world.sees(Endpoints, "a").contains("does not exist"), "15 s since it was asked for");
    world.requests("one");
    world.sends("one", reply(Endpoints, "4", &["b=1"]));
    assert_eq!(world.requests("one"), ["endpoints [a b] v4 n4"], "that was the answer");
}

/// fault 16
#[test]
fn the_same_bad_resource_over_and_over() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1"]);
    for i in 0..1000 {
        world.sends("one", reply(Cluster, &i.to_string(), &["a=bad"]));
    }
    assert_eq!(world.requests("one").len(), 1000, "each is answered");
    assert_eq!(world.changed().len(), 1);
    let warning = r#"warning: xDS server "one" sent what cannot be used as cluster: "a": content: is bad (xDS node id "me")"#;
    assert_eq!(world.log(), [warning]);
    world.sends("one", reply(Cluster, "good", &["a=1"]));
    world.sends("one", reply(Cluster, "again", &["a=bad"]));
    assert_eq!(world.log(), [warning], "it had been well in between");
}

/// What was accepted but is odd is said when it comes, and not again while it stays.
#[test]
fn warnings_of_resources_reach_the_operator() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1"]);
    for reply in [&["a=odd"], &["a=odd"], &["a=bad"], &["a=odd"]].map(|items| reply(Cluster, "2", items)) {
        world.sends("one", reply);
    }
    let log = world.log();
    assert_eq!(log[0], r#"warning: cluster "a": content: odd is ignored (xDS node id "me")"#);
    assert_eq!(log.len(), 2, "{log:?}");
    world.sends("one", reply(Cluster, "3", &["a=odd odder"]));
    assert_eq!(
        world.log(),
        [r#"warning: cluster "a": content: odd is ignored; content: odder is ignored (xDS node id "me")"#],
        "one line for each resource"
    );
}

/// Bytes that are no response, and responses that are too large, end the stream as a failure.
#[test]
fn nonsense_ends_the_stream() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1"]);
    world.sends_bytes("one", &[0xff, 0xff, 0xff]);
    assert!(world.streams().is_empty());
    let seen = world.sees(Cluster, "a");
    assert!(seen.starts_with("1 ~Unavailable: xDS server \"one\" sent what is no response: "), "{seen}");
    let wait = world.client.next_deadline().expect("another attempt").since(world.now);
    assert!(wait >= Duration::from_millis(800), "{wait:?}");
    let log = world.log();
    assert_eq!(log[0], "closes one");
    assert_eq!(log.len(), 2);
    world.redials("one");
    world.accepts("one");
    world.sends("one", reply(Cluster, "2", &["a=2"]));
    assert_eq!(world.sees(Cluster, "a"), "2");
    world.refuses_response("one", "sent a compressed response");
    assert!(world.streams().is_empty());
    let text = r#"2 ~Unavailable: xDS server "one" sent a compressed response (xDS node id "me")"#;
    assert_eq!(world.sees(Cluster, "a"), text);
    let wait = world.client.next_deadline().expect("another attempt").since(world.now);
    assert!(wait >= Duration::from_millis(800), "no hurry, although there was a response: {wait:?}");
}

/// Late events of an old stream are ignored.
#[test]
fn old_streams_are_not_heard() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1"]);
    let old = world.stream("one");
    world.ends("one", "max age");
    world.accepts("one");
    world.requests("one");
    let late = [
        AdsEvent::Opened { stream: old },
        AdsEvent::Written { stream: old },
        AdsEvent::Message { stream: old, bytes: &[0xff] },
        AdsEvent::Closed { stream: old, status: Status::unavailable("late") },
    ];
    for input in late {
        world.client.handle(input, world.now);
        assert!(world.client.poll_effect().is_none());
    }
    let new = world.stream("one");
    world.client.handle(AdsEvent::Opened { stream: new }, world.now);
    assert!(world.client.poll_effect().is_none(), "it is open already");
    assert_eq!(world.sees(Cluster, "a"), "1");
}

/// A driver delivers a message of a stream that has not opened: the message is ignored, and the stream opens as usual.
#[test]
fn messages_before_the_stream_opens_are_ignored() {
    let mut world = world();
    world.channel(&[(Cluster, "a")]);
    let stream = world.stream("one");
    world.client.handle(AdsEvent::Message { stream, bytes: &[0xff] }, world.now);
    assert!(world.client.poll_effect().is_none() && world.client.poll_changed().is_none());
    world.accepts("one");
    assert_eq!(world.requests("one"), ["cluster [a] as me"]);
    assert_eq!(world.log(), [""; 0]);
}

/// ADS-9, FM-3: a resource times out, and a response arrives before its subscriber has taken the change. The change survives. It
/// does not delay the next response, because this one did not cause it.
#[test]
fn responses_keep_changes_that_were_not_taken() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1"]);
    let waiting = world.channel(&[(Cluster, "absent")]);
    world.now = world.client.next_deadline().expect("the timer of the resource");
    world.client.handle_time(world.now);
    let stream = world.stream("one");
    let unknown = DiscoveryResponse { type_url: "unknown".to_owned(), ..DiscoveryResponse::default() };
    world.client.handle(AdsEvent::Message { stream, bytes: &unknown.encode_to_vec() }, world.now);
    let mut effects = std::iter::from_fn(|| world.client.poll_effect());
    assert!(effects.any(|effect| effect == AdsEffect::Read { stream }), "the next response is read");
    assert_eq!(world.client.poll_changed().map(|(id, _)| id), Some(waiting));
    assert_eq!(world.client.poll_changed(), None);
}

/// A program may make a bootstrap without servers, which the parser refuses: subscribers learn why they get nothing.
#[test]
fn a_bootstrap_without_servers_is_an_error() {
    let mut world = ClientScript::new(bootstrap(&[]));
    let id = world.channel(&[(Cluster, "a")]);
    assert_eq!(world.changed(), [id]);
    assert_eq!(world.dialled(), [""; 0]);
    let text = r#"!Unavailable: cluster "a": not received: the bootstrap names no xDS server"#;
    assert!(world.sees(Cluster, "a").starts_with(text), "{}", world.sees(Cluster, "a"));
}

/// Removed subscribers are ignored.
#[test]
fn who_left_wants_nothing() {
    let mut world = world();
    let id = world.channel(&[(Cluster, "a")]);
    world.leaves(id);
    world.leaves(id);
    world.wants(id, &[(Cluster, "a")]);
    assert!(world.streams().is_empty());
    assert_eq!(world.sees(Cluster, "a"), "");
}

/// Changes while a request is under way become one request, and an answer is not starved by them.
#[test]
fn one_request_is_under_way_at_a_time() {
    let mut world = world();
    let id = world.channel(&[(Cluster, "a"), (Endpoints, "a")]);
    world.accepts("one");
    world.sends("one", reply(Cluster, "1", &["a=1"]));
    world.requests("one");
    world.holds_writes = true;
    let mut names = vec![(Cluster, "a"), (Endpoints, "a")];
    for name in ["b", "c", "d", "e"] {
        names.push((Cluster, name));
        world.wants(id, &names);
    }
    world.sends("one", reply(Endpoints, "1", &["a=1"]));
    world.sends("one", reply(Endpoints, "2", &["a=2"]));
    assert_eq!(world.requests("one"), ["cluster [a b] v1 n1"]);
    world.write("one");
    names.push((Cluster, "f"));
    world.wants(id, &names);
    world.write("one");
    assert_eq!(world.requests("one"), ["endpoints [a] v2 n3", "cluster [a b c d e f] v1 n1"]);
}

/// XM-1
#[test]
fn what_happened_is_counted() {
    let mut world = ClientScript::new(bootstrap(&["one"]));
    let tally = |world: &ClientScript| -> ServerStats {
        world.client.server_stats().next().expect("one server").clone()
    };
    world.channel(&[(Cluster, "a")]);
    assert_eq!((tally(&world).connected, tally(&world).failures), (false, 0));
    world.accepts("one");
    assert!(tally(&world).connected);
    world.ends("one", "early");
    world.passes(secs(2));
    world.refuses("one");
    assert_eq!((tally(&world).connected, tally(&world).failures), (false, 1), "failing still");
    world.passes(secs(2));
    world.accepts("one");
    assert!(!tally(&world).connected, "until a response comes");
    world.sends("one", reply(Cluster, "1", &["a=1", "z=1", "y=bad"]));
    assert!(tally(&world).connected);
    world.sends("one", reply(Cluster, "1", &["a=1"]));
    world.ends("one", "max age");
    world.refuses("one");
    let tally = tally(&world);
    assert_eq!((tally.connected, tally.failures), (false, 2));
    assert_eq!(tally.valid, [(Cluster, 2)].into());
    assert_eq!(tally.invalid, [].into(), "only what was asked for counts");
}

/// A response with more resources than are accepted is rejected as a whole.
#[test]
fn too_many_resources() {
    let mut world = ClientScript::with(bootstrap(&["one"]), Few, XdsVariant::StateOfTheWorld);
    world.channel(&[(Cluster, "a")]);
    world.accepts("one");
    world.requests("one");
    world.sends("one", reply(Cluster, "1", &["a=1", "b=1", "c=1"]));
    assert_eq!(world.requests("one"), ["cluster [a] n1 !3 resources; at most 2 are accepted"]);
    assert_eq!(world.sees(Cluster, "a"), "");
    world.sends_bytes("one", &[0; 301]);
    let seen = world.sees(Cluster, "a");
    let text = r#"!Unavailable: cluster "a": not received: xDS server "one" sent a response of 301 bytes; at most 300 are accepted (xDS node id "me")"#;
    assert_eq!(seen, text);
}

#[derive(Debug)]
struct Few;

impl ParseResource for Few {
    fn parse(
        &self,
        kind: ResourceType,
        any: &Any,
        from: &ServerConfig,
    ) -> Result<ParsedResource, RejectedResource> {
        MarkParser.parse(kind, any, from)
    }

    fn limits(&self) -> XdsLimits {
        let mut limits = XdsLimits::default();
        limits.resources = 2;
        limits.response_bytes = 300;
        limits
    }
}
