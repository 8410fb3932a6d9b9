//! A policy from outside the crate that uses only the public API.

#[path = "../../examples/custom_policy/nearest.rs"]
mod nearest;

use std::sync::Arc;

use evenkeel_core::{Code, Core, Endpoint, Endpoints, LoadReport, Locality, Registry, Rng};
use serde_json::json;
use testkit::CoreSim;

use nearest::{ASIDE, Nearest};

fn sim(endpoints: Endpoints) -> CoreSim {
    let mut registry = Registry::standard();
    registry.register::<Nearest>("example.Nearest");
    let config = json!([{"not.Known": {}}, {"example.Nearest": {"zone": "a", "max_utilization": 0.7}}]);
    CoreSim::with(Core::builder(Rng::fixed(1)).build(), registry, &config, endpoints).all_up()
}

fn in_zone(address: &str, zone: &str) -> Endpoint {
    let locality = Locality { zone: zone.to_owned(), ..Locality::default() };
    Endpoint::at(address).with_locality(Arc::new(locality), 1)
}

fn busy(utilization: f64) -> LoadReport {
    LoadReport { cpu_utilization: utilization, ..LoadReport::default() }
}

/// REG-9: a custom policy reads localities and load reports.
#[test]
fn stays_in_its_zone_while_it_has_capacity() {
    let mut sim = sim(Endpoints::list([in_zone("near", "a"), in_zone("far", "b")]));
    assert_eq!(sim.pick().finish(Code::Ok, Some(&busy(0.9))), "near");
    assert_eq!(sim.picks(3), ["far", "far", "far"]);
    assert_eq!(sim.pick().finish(Code::Ok, None), "far");
    // The policy also watches out-of-band reports. Otherwise no report would show that the zone has capacity
    // again.
    assert_eq!(sim.watches().len(), 2);
    sim.load("near", busy(0.3));
    assert_eq!(sim.picks(3), ["near", "near", "near"]);
}

/// REG-9: a custom policy reads weights and metadata.
#[test]
fn follows_weights_and_metadata() {
    let aside = in_zone("c", "a").with_metadata(ASIDE, true);
    let mut sim = sim(Endpoints::list([in_zone("a", "a").with_weight(3), in_zone("b", "a"), aside]));
    let shares = sim.shares(4_000);
    assert!((2_900..3_100).contains(&shares["a"]), "{shares:?}");
    assert!(!shares.contains_key("c"));
    let rows = sim.describe().endpoints;
    assert_eq!(rows[2].unused.as_deref(), Some("set aside by its metadata"));
}

/// REG-9: config errors of a custom policy name the policy and the field.
#[test]
fn config_errors_name_policy_and_field() {
    let mut registry = Registry::standard();
    registry.register::<Nearest>("example.Nearest");
    let error =
        registry.parse_json(r#"[{"example.Nearest": {"zone": "a", "maxUtilization": -1}}]"#).unwrap_err();
    assert_eq!(error.policy(), Some("example.Nearest"));
    assert_eq!(error.path(), "loadBalancingConfig[0].example.Nearest.maxUtilization");
}
