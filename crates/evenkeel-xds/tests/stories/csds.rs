//! Client status over CSDS.

use std::fmt::Write as _;

use evenkeel_core::{Code, Instant};
use evenkeel_proto::envoy::admin::v3::ClientResourceStatus;
use evenkeel_proto::envoy::config::core::v3::Node;
use evenkeel_proto::envoy::config::core::v3::node::UserAgentVersionType;
use evenkeel_proto::envoy::service::status::v3::ClientStatusRequest;
use evenkeel_proto::envoy::r#type::matcher::v3::NodeMatcher;
use evenkeel_proto::prost_types::{Any, Timestamp};
use evenkeel_xds::ads::{CacheState, ResourceCounts, client_status};
use evenkeel_xds::bootstrap::{Bootstrap, ServerFeatures};
use evenkeel_xds::resource::ResourceType::{self, Cluster, Endpoints, Listener};
use testkit::secs;

use crate::script::{ClientScript, authority, bootstrap, bootstrap_with, reply, resource};

fn wall(at: Instant) -> Timestamp {
    Timestamp { seconds: 1_000 + (at.as_nanos() / 1_000_000_000).cast_signed(), nanos: 0 }
}

/// Returns one line per resource: type, name, state, version and time of the resource in use, version, time and text
/// of the error.
fn lines(world: &ClientScript) -> Vec<String> {
    let config = world.client.dump("target", wall);
    let configs = config.generic_xds_configs.into_iter().map(|config| {
        let kind = ResourceType::from_type_url(&config.type_url).expect("a known type");
        let status = ClientResourceStatus::try_from(config.client_status).expect("a status");
        let mut line = format!("{kind} {} {}", config.name, status.as_str_name());
        if let Some(at) = config.last_updated {
            let _ = write!(line, " v{} at {}", config.version_info, at.seconds);
        }
        if let Some(error) = config.error_state {
            let at = error.last_update_attempt.expect("a time").seconds;
            let _ = write!(line, " !v{} at {at}: {}", error.version_info, error.details);
        }
        line
    });
    configs.collect()
}

/// CSDS-4, CSDS-5: the example of A40, with the states of A46.
#[test]
fn an_invalid_update_shows_its_error() {
    let mut world = ClientScript::new(bootstrap(&["one"]));
    world.channel(&[(Endpoints, "A"), (Endpoints, "B"), (Endpoints, "C")]);
    world.accepts("one");
    world.sends("one", reply(Endpoints, "1", &["A=1", "B=1", "C=1"]));
    let acked = |name: &str, version: u32, at: u32| format!("endpoints {name} ACKED v{version} at {at}");
    assert_eq!(lines(&world), [acked("A", 1, 1000), acked("B", 1, 1000), acked("C", 1, 1000)]);
    world.passes(secs(5));
    world.sends("one", reply(Endpoints, "2", &["A=2", "B=bad"]));
    let error = r#"invalid resource from xDS server "one": content: is bad (xDS node id "me")"#;
    let b = format!("endpoints B NACKED v1 at 1000 !v2 at 1005: endpoints \"B\": {error}");
    assert_eq!(lines(&world), [acked("A", 2, 1005), b, acked("C", 1, 1000)]);
    world.passes(secs(5));
    world.sends("one", reply(Endpoints, "3", &["B=1", "C=3"]));
    assert_eq!(lines(&world), [acked("A", 2, 1005), acked("B", 3, 1010), acked("C", 3, 1010)]);
}

/// CSDS-8, DE-6: every state, with and without a cached resource.
#[test]
fn every_state_has_its_name() {
    let none = ServerFeatures::default();
    let ignore = ServerFeatures { ignore_resource_deletion: true, ..none };
    let fail = ServerFeatures { fail_on_data_errors: true, ..none };
    let slow = ServerFeatures { resource_timer_is_transient_error: true, ..none };
    let state = |features: ServerFeatures, story: &dyn Fn(&mut ClientScript)| -> String {
        let mut world = ClientScript::new(bootstrap_with(features));
        world.channel(&[(Cluster, "a")]);
        world.accepts("one");
        story(&mut world);
        let line = lines(&world).remove(0);
        let line = line.split(": ").next().unwrap_or_default();
        line.trim_start_matches("cluster a ").to_owned()
    };
    let sends = |replies: &'static [&'static [&'static str]]| {
        move |world: &mut ClientScript| {
            for (i, items) in replies.iter().enumerate() {
                world.sends("one", reply(Cluster, &i.to_string(), items));
            }
        }
    };
    let denies = |world: &mut ClientScript| {
        world.sends("one", reply(Cluster, "0", &[]).error("a", 7, "no"));
    };
    let sends_and_denies = |world: &mut ClientScript| {
        world.sends("one", reply(Cluster, "0", &["a=1"]));
        denies(world);
    };
    let waits = |world: &mut ClientScript| world.passes(secs(30));
    let deletes_and_waits = |world: &mut ClientScript| {
        sends(&[&["a=1"], &[]])(world);
        waits(world);
    };
    assert_eq!(state(none, &|_| {}), "REQUESTED");
    assert_eq!(state(none, &sends(&[&["a=1"]])), "ACKED v0 at 1000");
    assert_eq!(state(none, &sends(&[&["a=bad"]])), "NACKED !v0 at 1000");
    assert_eq!(state(none, &sends(&[&["a=1"], &["a=bad"]])), "NACKED v0 at 1000 !v1 at 1000");
    assert_eq!(state(fail, &sends(&[&["a=1"], &["a=bad"]])), "NACKED !v1 at 1000");
    assert_eq!(state(none, &sends(&[&["a=1"], &[]])), "DOES_NOT_EXIST v0 at 1000 !v at 1000");
    assert_eq!(state(none, &deletes_and_waits), "DOES_NOT_EXIST !v at 1000");
    assert_eq!(state(fail, &sends(&[&["a=1"], &[]])), "DOES_NOT_EXIST !v at 1000");
    assert_eq!(state(ignore, &sends(&[&["a=1"], &[]])), "DOES_NOT_EXIST v0 at 1000 !v at 1000");
    assert_eq!(state(none, &waits), "DOES_NOT_EXIST !v at 1015");
    assert_eq!(state(slow, &waits), "TIMEOUT !v at 1030");
    assert_eq!(state(none, &denies), "RECEIVED_ERROR !v at 1000");
    assert_eq!(state(none, &sends_and_denies), "RECEIVED_ERROR v0 at 1000 !v at 1000");
    assert_eq!(state(fail, &sends_and_denies), "RECEIVED_ERROR !v at 1000");
}

/// XM-2: every state has the metric label of A78, which shows if a cached resource is in use.
#[test]
fn resources_are_counted_by_state() {
    let none = ServerFeatures::default();
    let ignore = ServerFeatures { ignore_resource_deletion: true, ..none };
    let fail = ServerFeatures { fail_on_data_errors: true, ..none };
    let slow = ServerFeatures { resource_timer_is_transient_error: true, ..none };
    let stories: &[(ServerFeatures, &[&str], &str)] = &[
        (none, &[], "requested"),
        (none, &["a=1"], "acked"),
        (none, &["a=bad"], "nacked"),
        (none, &["a=1", "a=bad"], "nacked_but_cached"),
        (fail, &["a=1", "a=bad"], "nacked"),
        (none, &["a=bad", "a=1"], "acked"),
        (none, &["a=1", ""], "does_not_exist_but_cached"),
        (none, &["a=1", "", "wait"], "does_not_exist"),
        (fail, &["a=1", ""], "does_not_exist"),
        (ignore, &["a=1", ""], "does_not_exist_but_cached"),
        (none, &["wait"], "does_not_exist"),
        (slow, &["wait"], "timeout"),
        (none, &["deny"], "received_error"),
        (none, &["a=1", "deny"], "received_error_but_cached"),
        (fail, &["a=1", "deny"], "received_error"),
    ];
    for (features, events, word) in stories {
        let mut world = ClientScript::new(bootstrap_with(*features));
        world.channel(&[(Cluster, "a")]);
        world.accepts("one");
        for event in *events {
            match *event {
                "wait" => {
                    world.passes(secs(30));
                    continue;
                }
                "deny" => world.sends("one", reply(Cluster, "1", &[]).error("a", 7, "no")),
                "" => world.sends("one", reply(Cluster, "1", &[])),
                item => world.sends("one", reply(Cluster, "1", &[item])),
            };
        }
        let census: Vec<_> = world.client.resource_counts();
        let [ResourceCounts { authority: None, kind: Cluster, state, count: 1 }] = census[..] else {
            panic!("{features:?} {events:?}: {census:?}");
        };
        assert_eq!(state.as_str(), *word, "{features:?} {events:?}");
    }
}

/// XM-2: only subscribed resources count, by authority and type.
#[test]
fn resources_are_counted_by_authority_and_type() {
    let authorities = [("far".to_owned(), authority(&["two"]))].into();
    let mut world = ClientScript::new(Bootstrap { authorities, ..bootstrap(&["one"]) });
    let far = "xdstp://far/envoy.config.cluster.v3.Cluster/a";
    let id = world.channel(&[(Cluster, "a"), (Cluster, "b"), (Listener, "l"), (Cluster, far)]);
    world.accepts("one");
    world.accepts("two");
    world.sends("one", reply(Cluster, "1", &["a=1", "b=1"]));
    let census = |authority: Option<&str>, kind, state, count| ResourceCounts {
        authority: authority.map(Into::into),
        kind,
        state,
        count,
    };
    let requested = |authority, kind| census(authority, kind, CacheState::Requested, 1);
    assert_eq!(
        world.client.resource_counts(),
        [
            requested(None, Listener),
            census(None, Cluster, CacheState::Acked, 2),
            requested(Some("far"), Cluster),
        ]
    );
    world.holds_writes = true;
    world.wants(id, &[(Cluster, "b")]);
    assert_eq!(world.client.resource_counts(), [census(None, Cluster, CacheState::Acked, 1)]);
}

/// CSDS-3: resources are dumped as received, unknown fields included.
#[test]
fn resources_are_shown_as_they_came() {
    let mut world = ClientScript::new(bootstrap(&["one"]));
    world.channel(&[(Cluster, "a"), (Listener, "l")]);
    world.accepts("one");
    let mut raw = resource(Cluster, "a=1");
    // Field 9999, a varint.
    raw.value.extend([0xf8, 0xf0, 0x04, 0x2a]);
    raw.type_url = "other.host/envoy.config.cluster.v3.Cluster".to_owned();
    world.sends("one", reply(Cluster, "1", &[]).with("a", raw.clone()));
    let shown: Vec<Option<Any>> =
        world.client.dump("", wall).generic_xds_configs.into_iter().map(|config| config.xds_config).collect();
    assert_eq!(shown, [None, Some(raw)], "listeners come first, and none was received");
}

/// CSDS-1, CSDS-2, CSDS-6, CSDS-7: each request gets one response with all clients. Node matchers are rejected.
#[test]
fn one_response_for_several_clients() {
    let node = Node {
        id: "me".to_owned(),
        user_agent_name: "evenkeel".to_owned(),
        user_agent_version_type: Some(UserAgentVersionType::UserAgentVersion("1".to_owned())),
        client_features: vec!["xds.config.resource-in-sotw".to_owned()],
        ..Node::default()
    };
    let worlds = ["one", "two"].map(|server| {
        let mut world = ClientScript::new(Bootstrap { node: node.clone(), ..bootstrap(&[server]) });
        world.channel(&[(Cluster, "a")]);
        world.accepts(server);
        world.sends(server, reply(Cluster, "1", &["a=1"]));
        world
    });
    let clients = || ["xds:///orders", "#server"].into_iter().zip(worlds.iter().map(|world| &world.client));
    let request = ClientStatusRequest::default();
    let response = client_status(&request, clients(), wall).expect("an answer");
    let scopes: Vec<&str> = response.config.iter().map(|config| config.client_scope.as_str()).collect();
    assert_eq!(scopes, ["xds:///orders", "#server"]);
    assert!(response.config.iter().all(|config| config.node.as_ref() == Some(&node)));
    let shown = |request: &ClientStatusRequest| -> Vec<bool> {
        let response = client_status(request, clients(), wall).expect("an answer");
        let configs = response.config.into_iter().flat_map(|config| config.generic_xds_configs);
        configs.map(|config| config.xds_config.is_some()).collect()
    };
    assert_eq!(shown(&request), [true, true]);
    let without = ClientStatusRequest { exclude_resource_contents: true, ..request.clone() };
    assert_eq!(shown(&without), [false, false]);
    let matching = ClientStatusRequest { node_matchers: vec![NodeMatcher::default()], ..request };
    let refused = client_status(&matching, clients(), wall).expect_err("node matchers");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(refused.message(), "node_matchers are not supported; omit them");
}

/// CSDS-3: a resource without a subscriber is not dumped.
#[test]
fn resources_without_a_subscriber_are_not_dumped() {
    let mut world = ClientScript::new(bootstrap(&["one"]));
    let id = world.channel(&[(Cluster, "a"), (Cluster, "b")]);
    world.accepts("one");
    world.holds_writes = true;
    world.wants(id, &[(Cluster, "b")]);
    assert_eq!(lines(&world), ["cluster b REQUESTED"]);
}
