//! `round_robin`: every endpoint in turn.

use serde_json::json;
use testkit::{World, endpoints};

/// RR-1
#[test]
fn every_endpoint_in_turn() {
    let mut world = World::new(&json!([{"round_robin": {}}]), endpoints(["a", "b", "c"])).all_up();
    assert_eq!(world.letters(7), "abcabca");
}
