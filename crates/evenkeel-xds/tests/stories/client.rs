//! Subscriptions, answers, failures and errors on one stream of the state of the world.

use std::time::Duration;

use evenkeel_core::Status;
use evenkeel_proto::envoy::service::discovery::v3::Resource as Wrapper;
use evenkeel_proto::prost_types::Any;
use evenkeel_xds::bootstrap::ServerFeatures;
use evenkeel_xds::client::{Input, Variant};
use evenkeel_xds::resource::ResourceType::{Cluster, Endpoints, Listener, RouteConfig};
use testkit::{resources, secs};

use crate::script::{Marks, World, bootstrap, bootstrap_with, reply};

fn world() -> World {
    World::new(bootstrap(&["one"]))
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
