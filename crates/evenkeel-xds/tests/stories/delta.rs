//! The delta variant: its own requests and responses, with the same behaviour towards subscribers.

use evenkeel_xds::bootstrap::ServerFeatures;
use evenkeel_xds::resource::ResourceType::{self, Cluster, Endpoints};
use testkit::secs;

use crate::script::{ClientScript, bootstrap, bootstrap_with, reply};

/// ADS-12: requests carry the added and removed names, and responses are ACKed by nonce.
#[test]
fn subscribes_and_acks() {
    let mut world = ClientScript::delta(bootstrap(&["one"]));
    let id = world.channel(&[(Cluster, "a"), (Cluster, "b"), (Endpoints, "e")]);
    world.accepts("one");
    assert_eq!(world.requests("one"), ["cluster +a b as me", "endpoints +e"]);
    world.sends("one", reply(Cluster, "1", &["a=1", "z=1"]));
    assert_eq!(world.requests("one"), ["cluster n1"]);
    assert_eq!([world.sees(Cluster, "a"), world.sees(Cluster, "b"), world.sees(Cluster, "z")], ["1", "", ""]);
    world.wants(id, &[(Cluster, "a"), (Cluster, "c"), (Endpoints, "e")]);
    assert_eq!(world.requests("one"), ["cluster +c -b"]);
    world.sends("one", reply(Cluster, "2", &["a=bad", "c=2"]));
    assert_eq!(world.requests("one"), [r#"cluster n2 !"a": content: is bad"#]);
    assert!(world.sees(Cluster, "a").starts_with("1 ~"));
    assert_eq!(world.sees(Cluster, "c"), "2");
    world.sends("one", reply(Cluster, "3", &["c=3"]));
    assert_eq!(world.sees(Cluster, "c"), "3");
    assert!(world.sees(Cluster, "a").starts_with("1 ~"), "what is not mentioned stays as it is");
    world.sends("one", reply(Cluster, "4", &["a=1"]));
    assert_eq!(world.sees(Cluster, "a"), "1", "the error is gone");
}

/// ADS-7, ADS-12: the first request of a new stream carries the versions of the cached resources.
#[test]
fn a_new_stream_sends_known_versions() {
    let mut world = ClientScript::delta(bootstrap(&["one"]));
    world.channel(&[(Cluster, "a"), (Cluster, "b"), (Cluster, "c"), (Endpoints, "e")]);
    world.accepts("one");
    world.sends("one", reply(Cluster, "1", &["a=1"]));
    world.sends("one", reply(Cluster, "2", &["b=1", "c=1"]));
    world.sends("one", reply(Cluster, "3", &["b=bad"]));
    world.requests("one");
    world.ends("one", "max age");
    world.accepts("one");
    let first = "cluster +a b c {a:1 c:2} as me";
    assert_eq!(
        world.requests("one"),
        [first, "endpoints +e"],
        "no version for b, so that the server sends it again"
    );
    world.passes(secs(60));
    assert_eq!(world.sees(Cluster, "a"), "1", "unchanged resources are not sent again");
    let absent = r#"!NotFound: endpoints "e": does not exist: xDS server "one" did not send it within 15s (xDS node id "me")"#;
    assert_eq!(world.sees(Endpoints, "e"), absent);
}

/// FB-2, ADS-12: versions are not sent to another server.
#[test]
fn versions_are_not_sent_to_another_server() {
    let mut world = ClientScript::delta(bootstrap(&["one", "two"]));
    world.channel(&[(Cluster, "a")]);
    world.refuses("one");
    world.accepts("two");
    world.sends("two", reply(Cluster, "t", &["a=1"]));
    world.redials("one");
    world.accepts("one");
    assert_eq!(world.requests("one"), ["cluster +a as me"]);
}

/// ADS-12, DE-2, DE-3: resources of every type can be removed, even before they were received.
#[test]
fn removed_resources() {
    let keeps = ServerFeatures { ignore_resource_deletion: true, ..ServerFeatures::default() };
    for kind in ResourceType::ALL {
        for (features, known) in [(ServerFeatures::default(), "!NotFound: "), (keeps, "1 ~NotFound: ")] {
            let mut world = ClientScript::delta(bootstrap_with(features));
            let id = world.channel(&[(kind, "a"), (kind, "b")]);
            world.accepts("one");
            world.sends("one", reply(kind, "1", &["a=1"]));
            world.changed();
            world.sends("one", reply(kind, "", &[]).removing(&["a", "b", "z"]));
            assert_eq!(world.changed(), [id]);
            world.passes(secs(1));
            assert!(world.sees(kind, "a").starts_with(known), "{kind}: {}", world.sees(kind, "a"));
            let removed = format!(
                "!NotFound: {kind} \"b\": does not exist: xDS server \"one\" removed it (xDS node id \"me\")"
            );
            assert_eq!(world.sees(kind, "b"), removed, "without a grace period");
            assert_eq!(world.client.next_deadline(), None);
            world.sends("one", reply(kind, "1", &["a=1", "b=1"]).removing(&["a"]));
            assert_eq!(
                [world.sees(kind, "a"), world.sees(kind, "b")],
                ["1", "1"],
                "a resource that is sent exists"
            );
        }
    }
}

/// ADS-8, ADS-12: a resource whose name differs from that of its wrapper is NACKed.
#[test]
fn names_inside_and_outside_must_agree() {
    let mut world = ClientScript::delta(bootstrap(&["one"]));
    world.channel(&[(Cluster, "a")]);
    world.accepts("one");
    world.requests("one");
    world.sends("one", reply(Cluster, "1", &[]).with("a", crate::script::resource(Cluster, "b=1")));
    assert_eq!(world.requests("one"), [r#"cluster n1 !"a": holds the resource "b""#]);
    assert!(world.sees(Cluster, "a").starts_with("!Unavailable"));
}

/// DE-5, ADS-12: an error that the server sends for a resource becomes the resource's error.
#[test]
fn errors_of_resources_reach_the_subscriber() {
    let mut world = ClientScript::delta(bootstrap(&["one"]));
    world.channel(&[(Cluster, "a")]);
    world.accepts("one");
    world.sends("one", reply(Cluster, "1", &[]).error("a", 5, "gone"));
    let text = r#"!Unavailable: cluster "a": xDS server "one" reports NOT_FOUND: "gone" (xDS node id "me")"#;
    assert_eq!(world.sees(Cluster, "a"), text);
}

/// fault 17, ADS-12: an ACK is sent first and without names, and a name that is added back is subscribed again.
#[test]
fn acks_and_names_do_not_mix() {
    let mut world = ClientScript::delta(bootstrap(&["one"]));
    let id = world.channel(&[(Cluster, "a")]);
    world.accepts("one");
    world.holds_writes = true;
    world.sends("one", reply(Cluster, "1", &["a=1"]));
    world.requests("one");
    world.wants(id, &[(Cluster, "b")]);
    world.wants(id, &[(Cluster, "a"), (Cluster, "b")]);
    assert_eq!(world.sees(Cluster, "a"), "1");
    world.write("one");
    world.write("one");
    assert_eq!(world.requests("one"), ["cluster +b"]);
    world.wants(id, &[(Cluster, "b")]);
    world.write("one");
    world.wants(id, &[(Cluster, "a"), (Cluster, "b")]);
    world.write("one");
    assert_eq!(world.sees(Cluster, "a"), "", "the server knows that it was not wanted");
    assert_eq!(world.requests("one"), ["cluster -a", "cluster +a"]);
}
