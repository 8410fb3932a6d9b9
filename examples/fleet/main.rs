//! What does each policy do with a fleet of unequal servers?
//!
//! The simulation runs on virtual time: expected and actual shares, and the effect of a failure and a
//! recovery. It covers minutes of traffic in a moment, with the same numbers on every machine. The last line
//! of each table has failures and latencies.
//!
//! `cargo run --release -p examples --bin fleet`

mod sim;
mod table;

use serde_json::{Value, json};

use sim::{Fault, Fleet, Scene};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    table::title(&Fleet::unequal());
    for scene in scenes() {
        let acts = sim::play(&scene)?;
        table::scene(&scene, &acts);
    }
    table::legend();
    Ok(())
}

fn scenes() -> Vec<Scene> {
    let scene = |name: &'static str, says: &'static str, policy: Value, fault: Fault| {
        // weighted_round_robin gets no weights: it learns them from load reports.
        let weighted = name != "weighted_round_robin";
        Scene { name, says, policy, fault, weighted }
    };
    let weighted = json!([{"weighted_round_robin": {}}]);
    vec![
        scene(
            "pick_first",
            "one connection for everything",
            json!([{"pick_first": {}}]),
            Fault::Dies("small-1"),
        ),
        scene(
            "round_robin",
            "every backend in turn, whatever its capacity",
            json!([{"round_robin": {}}]),
            Fault::Dies("large"),
        ),
        scene(
            "edf_weighted_round_robin",
            "the control plane's weights, in exact order",
            json!([{"edf_weighted_round_robin": {}}]),
            Fault::Dies("large"),
        ),
        scene(
            "weighted_round_robin",
            "no weights configured: weights from load reports",
            weighted.clone(),
            Fault::Dies("large"),
        ),
        scene(
            "least_request",
            "the less busy of two at random",
            json!([{"least_request_experimental": {"choiceCount": 2}}]),
            Fault::Dies("large"),
        ),
        scene(
            "ring_hash",
            "the same user, the same backend",
            json!([{"ring_hash_experimental": {"minRingSize": 4096}}]),
            Fault::Dies("large"),
        ),
        scene(
            "outlier_detection over weighted_round_robin",
            "a backend that returns errors is ejected",
            json!([{"outlier_detection_experimental": {
                "interval": "1s", "baseEjectionTime": "5s", "maxEjectionPercent": 40,
                "failurePercentageEjection": {"threshold": 50, "minimumHosts": 3, "requestVolume": 10},
                "childPolicy": weighted,
            }}]),
            Fault::Errs("large"),
        ),
        scene(
            "priority over weighted_round_robin",
            "all of zone a first, zone b when zone a is down",
            json!([{"priority_experimental": {
                "priorities": ["zone-a", "zone-b"],
                "children": {"zone-a": {"config": weighted}, "zone-b": {"config": weighted}},
            }}]),
            Fault::ZoneDies("zone-a"),
        ),
    ]
}
