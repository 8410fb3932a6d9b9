//! Policies at any depth that listen to load out of band.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_core::{
    ConfigError, ConfigFields, Core, Cx, DescribeCx, Description, Endpoints, LbConfig, LbState, LoadReport,
    Policy, Registry, Rng,
};
use serde_json::{Value, json};
use testkit::{CoreSim, endpoints};

/// A policy above others that listens to what their endpoints report. Those below know nothing of it.
#[derive(Default)]
struct Listener {
    child: evenkeel_core::ChildPolicy,
    heard: BTreeMap<String, (u32, f64)>,
}

impl Policy for Listener {
    type Config = (Option<Duration>, LbConfig);

    fn parse(fields: &ConfigFields<'_>) -> Result<Self::Config, ConfigError> {
        Ok((fields.duration("every")?, fields.child("child")?))
    }

    fn reconcile(
        &mut self,
        (every, child): &Self::Config,
        endpoints: &Endpoints,
        cx: &mut Cx<'_>,
    ) -> LbState {
        let state = self.child.reconcile(child, endpoints, cx);
        let Some(every) = every else { return state };
        for address in endpoints.iter().flat_map(|endpoint| endpoint.addresses().iter()) {
            let Some(subchannel) = cx.find(address) else { continue };
            if let Some((_, load)) = subchannel.load() {
                self.heard.insert(address.to_string(), (subchannel.loads(), load.cpu_utilization));
            }
            let id = subchannel.id();
            cx.watch_load(id, *every);
        }
        state
    }

    fn describe(&self, look: &DescribeCx<'_>) -> Description {
        let heard: BTreeMap<_, _> =
            self.heard.iter().map(|(from, heard)| (from.clone(), json!(heard))).collect();
        Description::new().detail("heard", json!(heard)).child("child", self.child.describe(look))
    }
}

fn listening(every: Option<&str>, child: &Value) -> Value {
    match every {
        Some(every) => json!([{"listener": {"every": every, "child": child}}]),
        None => json!([{"listener": {"child": child}}]),
    }
}

fn heard(policy: &Description) -> &Value {
    &policy.details["heard"]
}

fn busy(cpu_utilization: f64) -> LoadReport {
    LoadReport { cpu_utilization, requests_per_second: 100.0, ..LoadReport::default() }
}

fn sim(config: &Value) -> CoreSim {
    let mut registry = Registry::standard();
    registry.register::<Listener>("listener");
    CoreSim::with(Core::builder(Rng::fixed(1)).build(), registry, config, endpoints(["a", "b"])).all_up()
}

/// ORCA-11: a policy above one that knows nothing of reports gets them, and so does another above it.
#[test]
fn above_a_policy_that_does_not_listen() {
    let round_robin = json!([{"round_robin": {}}]);
    let lower = listening(Some("5s"), &round_robin);
    let mut sim = sim(&listening(Some("7s"), &lower));
    assert_eq!(sim.watch_log(), ["a every 5s", "b every 5s"]);
    sim.load("a", busy(0.25));
    sim.load("a", busy(0.5));
    sim.load("b", busy(0.75));
    let upper = sim.describe();
    let expected = json!({"a": [2, 0.5], "b": [1, 0.75]});
    assert_eq!(heard(&upper), &expected);
    assert_eq!(heard(&upper.children[0].1), &expected, "each report reaches all who listen");
}

/// ORCA-8, ORCA-11: one stream for the policy above and the one below, as often as the more curious of them wants; if that
/// one stops to listen, as often as the other wants; and none when nobody listens.
#[test]
fn as_often_as_the_most_curious_wants() {
    let weighted = |settings: Value| json!([{"weighted_round_robin": settings}]);
    let out_of_band = weighted(json!({"enableOobLoadReport": true, "oobReportingPeriod": "10s"}));
    let mut sim = sim(&listening(Some("30s"), &out_of_band));
    // The one above listens to endpoints that are not connected yet, too.
    assert_eq!(sim.watch_log(), ["a every 30s", "b every 30s", "a every 10s", "b every 10s"]);
    sim.config(&listening(Some("2s"), &out_of_band));
    assert_eq!(sim.watch_log(), ["a every 2s", "b every 2s"]);
    sim.load("a", busy(0.5));
    assert_eq!(heard(&sim.describe()), &json!({"a": [1, 0.5]}));
    sim.config(&listening(None, &out_of_band));
    assert_eq!(sim.watch_log(), ["a every 10s", "b every 10s"]);
    sim.config(&listening(None, &weighted(json!({}))));
    assert_eq!(sim.watch_log(), ["a stop", "b stop"]);
    assert_eq!(sim.closed(), Vec::<String>::new(), "the connections stay");
}
