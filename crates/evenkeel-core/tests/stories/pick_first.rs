//! `pick_first`: one connection, to the first address that answers.

use evenkeel_core::Connectivity;
use serde_json::json;
use testkit::{World, endpoints, secs};

/// PF-8
#[test]
fn a_lost_connection_waits_for_a_call() {
    let mut world = World::new(&json!([{"pick_first": {}}]), endpoints(["a", "b"]));
    assert_eq!(world.dialled(), ["a"]);
    world.ready("a");
    assert_eq!(world.picks(2), ["a", "a"]);
    world.lose("a");
    assert_eq!(world.state(), Connectivity::Idle);
    world.advance(secs(100));
    assert!(world.dialled().is_empty());
    assert_eq!(world.picks(1), ["queue"]);
    assert_eq!(world.dialled(), ["a"]);
    world.ready("a");
    assert_eq!(world.picks(1), ["a"]);
}
