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

/// Returns a script in which the server has sent these clusters on an open stream.
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

/// ADS-1, ADS-4, ADS-7: the client subscribes per type, ACKs with the version, and NACKs with the last accepted one.
/// A stream that is reopened carries the version again.
#[test]
fn subscribes_and_acks() {
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

/// ADS-4: a NACK of the first response has no version.
#[test]
fn rejects_the_first_response() {
    let mut world = world();
    world.channel(&[(Cluster, "a")]);
    world.accepts("one");
    world.sends("one", reply(Cluster, "1", &["a=bad"]));
    assert_eq!(world.requests("one"), ["cluster [a] as me", r#"cluster [a] n1 !"a": content: is bad"#]);
    let error = r#"!Unavailable: cluster "a": invalid resource from xDS server "one": content: is bad (xDS node id "me")"#;
    assert_eq!(world.sees(Cluster, "a"), error);
}

/// ADS-4: a resource that cannot be decoded is named by its index in the NACK.
#[test]
fn rejects_nameless_resources_by_index() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1", "b=1"]);
    let garbage = Any { type_url: Cluster.type_url().to_owned(), value: vec![0xff; 3] };
    world.sends("one", reply(Cluster, "2", &["a=bad"]).with("b", garbage));
    let nack = r#"cluster [a b] v1 n2 !"a": content: is bad; resource 1: cannot be decoded"#;
    assert_eq!(world.requests("one"), [nack]);
    assert_eq!(world.sees(Cluster, "b"), "1", "the resource without a name may be b");
}

/// ADS-4: a resource name that occurs twice in a response leads to a NACK, and the first of the two is used.
#[test]
fn rejects_a_duplicate_name() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1"]);
    world.sends("one", reply(Cluster, "2", &["a=2", "a=3"]));
    assert_eq!(world.requests("one"), [r#"cluster [a] v1 n2 !"a": occurs twice in the response"#]);
    assert_eq!(world.sees(Cluster, "a"), "2");
}

/// ADS-2: subscribers share one subscription, and a later subscriber sees the cached resource and its error at once.
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
    let both = r#"1 ~Unavailable: cluster "a": invalid resource from xDS server "one": content: is bad (xDS node id "me")"#;
    assert_eq!(world.sees(Cluster, "a"), both);
    world.leaves(first);
    world.leaves(second);
    assert_eq!(world.sees(Cluster, "a"), both, "the third subscriber remains");
}

/// ADS-3: a resource is unsubscribed when its last subscriber drops it, and the stream is closed with the last
/// subscription.
#[test]
fn the_last_subscriber_ends_the_subscription() {
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
    assert_eq!(
        world.requests("one"),
        ["cluster [] v2 n2"],
        "an empty list after a subscription is no wildcard"
    );
    world.wants(second, &[(Cluster, "b")]);
    assert_eq!(world.sees(Cluster, "b"), "", "it was evicted");
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

/// ADS-3, fault 18: a version is dropped with its last resource. Otherwise the server would have nothing to send.
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

/// ADS-5, fault 21: one invalid cluster of a hundred is rejected, and the others are used.
#[test]
fn one_invalid_cluster_of_a_hundred_is_rejected_alone() {
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

/// fault 21: a NACK text is at most 4 KiB long, and names every rejected resource that fits.
#[test]
fn the_text_of_a_nack_is_bounded() {
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

/// ADS-6: resources without a subscription are ignored. A response of a type without a subscription is neither ACKed
/// nor NACKed, and is logged once.
#[test]
fn resources_without_a_subscription_are_ignored() {
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
    assert_eq!(world.requests("one"), [""; 0], "neither an ACK nor a NACK");
    assert_eq!(world.sees(Cluster, "a"), "1");
    let warning = |kind: &str| {
        format!("warning: xDS server \"one\" sent resources of type \"{kind}\", which is not subscribed")
    };
    assert_eq!(world.log(), [warning(Endpoints.type_url()), warning(other)]);
}

/// ADS-8: resources in a `Resource` wrapper are used, and an invalid wrapper leads to a NACK.
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

/// ADS-9: the next response is read when every subscriber has processed the last one. New subscriptions are sent
/// meanwhile.
#[test]
fn reads_when_all_subscribers_processed_the_last_response() {
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
    assert!(world.reads("one"), "removed subscribers delay nothing");
    world.sends("one", reply(Cluster, "3", &["a=1", "b=2"]));
    assert!(world.reads("one"), "no subscriber has a change");
    for spoiled in [reply(Cluster, "4", &["a=bad"]), reply(Cluster, "5", &[])] {
        world.sends("one", spoiled);
        assert!(!world.reads("one"), "errors and deletions are changes too");
        world.process(a);
        assert!(world.reads("one"));
    }
}

/// ADS-9: a resource changes again while a subscriber processes the last change. The subscriber still receives the
/// second change.
#[test]
fn changes_during_processing_are_not_lost() {
    let mut world = ClientScript::new(bootstrap_with(ServerFeatures::default()));
    let id = world.channel(&[(Cluster, "a"), (Cluster, "b")]);
    world.accepts("one");
    world.holds_changes = true;
    world.sends("one", reply(Cluster, "1", &["a=1"]));
    world.client.handle_time(world.now + secs(15));
    world.client.processed(id);
    assert!(world.client.poll_effect().is_none(), "the timeout of b is not processed");
    assert_eq!(world.client.poll_changed(), Some((id, ChangedResources::Anything)));
    world.client.processed(id);
    assert!(world.client.poll_effect().is_some());
}

/// ADS-10, fault 15: a response with unchanged resources or an unchanged error notifies no subscriber.
#[test]
fn the_same_again_changes_nothing() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1"]);
    world.sends("one", reply(Cluster, "2", &["a=1"]));
    assert!(world.changed().is_empty());
    assert_eq!(world.requests("one"), ["cluster [a] v2 n2"]);
    world.sends("one", reply(Cluster, "3", &["a=bad"]));
    assert_eq!(world.changed().len(), 1);
    world.sends("one", reply(Cluster, "4", &["a=bad"]));
    assert!(world.changed().is_empty(), "the error is unchanged");
    world.sends("one", reply(Cluster, "5", &["a=bad luck"]));
    assert_eq!(world.changed().len(), 1);
    world.sends("one", reply(Cluster, "6", &["a=1"]));
    assert_eq!(world.changed().len(), 1, "the error is gone");
    assert_eq!(world.sees(Cluster, "a"), "1");
}

/// ADS-11: a response without a listener or cluster deletes it. Route configurations and endpoints are not deleted.
#[test]
fn listeners_and_clusters_can_be_deleted() {
    for (kind, gone) in [(Listener, true), (Cluster, true), (RouteConfig, false), (Endpoints, false)] {
        let mut world = world();
        world.channel(&[(kind, "a"), (kind, "b")]);
        world.accepts("one");
        world.sends("one", reply(kind, "1", &["a=1"]));
        assert_eq!(world.sees(kind, "b"), "", "{kind} that was never received is requested, not deleted");
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

/// ADS-11, fault 17: a response that the server sent before it received a subscription does not delete the resource.
#[test]
fn resources_unknown_to_the_server_are_not_deleted() {
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

/// fault 17: a resource that is unsubscribed and subscribed again before the server receives either stays cached,
/// since the server would not send it again.
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
    assert_eq!(world.sees(Cluster, "a"), "1", "not evicted before the server receives the request");
    world.write("one");
    assert_eq!(world.requests("one"), ["cluster [b] v1 n1", "cluster [a b] v1 n1"]);
    world.sends("one", reply(Cluster, "2", &["b=1"]));
    assert_eq!(world.sees(Cluster, "a"), "1", "sent before the server received the second request");
    world.write("one");
    world.write("one");
    world.passes(secs(60));
    assert_eq!(world.sees(Cluster, "a"), "1", "and not declared missing");
}

/// fault 17: a response crosses the request that unsubscribes a name. The server drops that request, whose nonce is
/// stale, and assumes that the client has the resource. When the name is subscribed again, the client first sends the
/// request without it.
#[test]
fn a_response_crosses_an_unsubscription() {
    let mut world = world();
    let id = world.channel(&[(Endpoints, "a"), (Endpoints, "b")]);
    world.accepts("one");
    world.sends("one", reply(Endpoints, "1", &["a=1", "b=1"]));
    world.requests("one");
    world.wants(id, &[(Endpoints, "b")]);
    assert_eq!(world.requests("one"), ["endpoints [b] v1 n1"]);
    // The ACK is delayed, and the name is subscribed again before it is sent.
    world.holds_writes = true;
    world.wants(id, &[(Endpoints, "b"), (Cluster, "c")]);
    world.sends("one", reply(Endpoints, "2", &["a=2", "b=2"]));
    world.wants(id, &[(Endpoints, "a"), (Endpoints, "b"), (Cluster, "c")]);
    assert_eq!(world.sees(Endpoints, "a"), "", "it had no subscription when it was received");
    world.holds_writes = false;
    world.write("one");
    let said = world.requests("one");
    assert_eq!(said, ["cluster [c]", "endpoints [b] v2 n2", "endpoints [a b] v2 n2"]);
    world.sends("one", reply(Endpoints, "2", &["a=2"]));
    assert_eq!(world.sees(Endpoints, "a"), "2");
    assert_eq!(world.requests("one"), ["endpoints [a b] v2 n3"], "one request: the resource was received");

    // The name is subscribed again before the response arrives.
    world.wants(id, &[(Endpoints, "b"), (Cluster, "c")]);
    world.wants(id, &[(Endpoints, "a"), (Endpoints, "b"), (Cluster, "c")]);
    assert_eq!(world.requests("one"), ["endpoints [b] v2 n3", "endpoints [a b] v2 n3"]);
    world.sends("one", reply(Endpoints, "3", &["b=3"]));
    assert_eq!(world.requests("one"), ["endpoints [b] v3 n4", "endpoints [a b] v3 n4"]);
    world.sends("one", reply(Endpoints, "3", &["a=3", "b=3"]));
    assert_eq!(world.requests("one"), ["endpoints [a b] v3 n5"]);
    assert_eq!(world.sees(Endpoints, "a"), "3");
}

/// FM-3, fault 17: a resource that is subscribed again times out after 15 s, although responses with other resources
/// keep crossing the requests.
#[test]
fn a_resource_subscribed_again_times_out() {
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
    assert!(world.sees(Endpoints, "a").contains("does not exist"), "15 s after the request");
    world.requests("one");
    world.sends("one", reply(Endpoints, "4", &["b=1"]));
    assert_eq!(world.requests("one"), ["endpoints [a b] v4 n4"], "one ACK");
}

/// fault 16: every repetition of an invalid resource is NACKed, but notifies and logs only once.
#[test]
fn the_same_bad_resource_over_and_over() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1"]);
    for i in 0..1000 {
        world.sends("one", reply(Cluster, &i.to_string(), &["a=bad"]));
    }
    assert_eq!(world.requests("one").len(), 1000, "one NACK per response");
    assert_eq!(world.changed().len(), 1);
    let warning = r#"warning: xDS server "one" sent an invalid cluster response: "a": content: is bad (xDS node id "me")"#;
    assert_eq!(world.log(), [warning]);
    world.sends("one", reply(Cluster, "good", &["a=1"]));
    world.sends("one", reply(Cluster, "again", &["a=bad"]));
    let valid_again = r#"info: xDS server "one" sent a valid cluster response after an invalid one"#;
    assert_eq!(world.log(), [valid_again, warning], "it was valid in between");
}

/// The warning of an accepted resource is logged once, and again after the resource was invalid or its warning
/// changed.
#[test]
fn warnings_of_resources_reach_the_operator() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1"]);
    for reply in [&["a=odd"], &["a=odd"], &["a=bad"], &["a=odd"]].map(|items| reply(Cluster, "2", items)) {
        world.sends("one", reply);
    }
    let log = world.log();
    assert_eq!(log[0], r#"warning: cluster "a": content: odd is ignored (xDS node id "me")"#);
    assert!(log[1].contains("sent an invalid cluster response"), "{log:?}");
    assert!(log[2].contains("sent a valid cluster response after an invalid one"), "{log:?}");
    assert_eq!(log.len(), 3, "{log:?}");
    world.sends("one", reply(Cluster, "3", &["a=odd odder"]));
    assert_eq!(
        world.log(),
        [r#"warning: cluster "a": content: odd is ignored; content: odder is ignored (xDS node id "me")"#],
        "one line for each resource"
    );
}

/// A response that cannot be decoded or is too large closes the stream as a failure, with backoff.
#[test]
fn an_invalid_response_ends_the_stream() {
    let mut world = with_clusters(ServerFeatures::default(), &["a=1"]);
    world.sends_bytes("one", &[0xff, 0xff, 0xff]);
    assert!(world.streams().is_empty());
    let seen = world.sees(Cluster, "a");
    assert!(seen.starts_with("1 ~Unavailable: xDS server \"one\" sent a malformed response: "), "{seen}");
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
    assert!(wait >= Duration::from_millis(800), "backoff although there was a response: {wait:?}");
}

/// Late events of an old stream are ignored.
#[test]
fn events_of_old_streams_are_ignored() {
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

/// A message on a stream that has not opened is ignored, and the stream opens as usual.
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

/// ADS-9, FM-3: a resource times out, and a response arrives before its subscriber polls the change. The change is
/// kept. It does not delay the next response, because this response did not cause it.
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

/// A bootstrap without servers, which only a program can make, gives subscribers an error at once.
#[test]
fn a_bootstrap_without_servers_is_an_error() {
    let mut world = ClientScript::new(bootstrap(&[]));
    let id = world.channel(&[(Cluster, "a")]);
    assert_eq!(world.changed(), [id]);
    assert_eq!(world.dialled(), [""; 0]);
    let text = r#"!Unavailable: cluster "a": not received: the bootstrap names no xDS server"#;
    assert!(world.sees(Cluster, "a").starts_with(text), "{}", world.sees(Cluster, "a"));
}

/// Events of a removed subscriber are ignored.
#[test]
fn removed_subscribers_are_ignored() {
    let mut world = world();
    let id = world.channel(&[(Cluster, "a")]);
    world.leaves(id);
    world.leaves(id);
    world.wants(id, &[(Cluster, "a")]);
    assert!(world.streams().is_empty());
    assert_eq!(world.sees(Cluster, "a"), "");
}

/// Subscription changes during a write become one request, and do not delay an ACK forever.
#[test]
fn one_request_is_in_flight_at_a_time() {
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

/// XM-1: connections, failures, and valid and invalid resources are counted per server.
#[test]
fn events_are_counted_per_server() {
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
    assert_eq!((tally(&world).connected, tally(&world).failures), (false, 1), "still failing");
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
    assert_eq!(tally.invalid, [].into(), "only subscribed resources count");
}

/// A response with more resources than the limit is rejected as a whole.
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
