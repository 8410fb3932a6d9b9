//! Policies at any depth that watch out-of-band load reports.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_core::{
    ConfigError, ConfigFields, Core, Cx, DescribeCx, Description, Endpoints, LbConfig, LbState, LoadReport,
    Policy, Registry, Rng,
};
use serde_json::{Value, json};
use testkit::{CoreSim, endpoints};

/// Parent policy that watches the load reports of its child's endpoints. The child does not know about the
/// watch.
#[derive(Default)]
struct Listener {
    child: evenkeel_core::ChildPolicy,
    reports: BTreeMap<String, (u32, f64)>,
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
                self.reports.insert(address.to_string(), (subchannel.loads(), load.cpu_utilization));
            }
            let id = subchannel.id();
            cx.watch_load(id, *every);
        }
        state
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        let reports: BTreeMap<_, _> =
            self.reports.iter().map(|(from, report)| (from.clone(), json!(report))).collect();
        Description::new().detail("reports", json!(reports)).child("child", self.child.describe(cx))
    }
}

fn listening(every: Option<&str>, child: &Value) -> Value {
    match every {
        Some(every) => json!([{"listener": {"every": every, "child": child}}]),
        None => json!([{"listener": {"child": child}}]),
    }
}

fn reports(policy: &Description) -> &Value {
    &policy.details["reports"]
}

fn busy(cpu_utilization: f64) -> LoadReport {
    LoadReport { cpu_utilization, requests_per_second: 100.0, ..LoadReport::default() }
}

fn sim(config: &Value) -> CoreSim {
    let mut registry = Registry::standard();
    registry.register::<Listener>("listener");
    CoreSim::with(Core::builder(Rng::fixed(1)).build(), registry, config, endpoints(["a", "b"])).all_up()
}

/// ORCA-11: parents of a policy that does not watch load reports receive every report.
#[test]
fn parents_receive_reports_that_the_child_does_not_watch() {
    let round_robin = json!([{"round_robin": {}}]);
    let lower = listening(Some("5s"), &round_robin);
    let mut sim = sim(&listening(Some("7s"), &lower));
    assert_eq!(sim.watch_log(), ["a every 5s", "b every 5s"]);
    sim.load("a", busy(0.25));
    sim.load("a", busy(0.5));
    sim.load("b", busy(0.75));
    let upper = sim.describe();
    let expected = json!({"a": [2, 0.5], "b": [1, 0.75]});
    assert_eq!(reports(&upper), &expected);
    assert_eq!(reports(&upper.children[0].1), &expected, "each report reaches all listeners");
}

/// ORCA-8, ORCA-11: a parent and a child share one report stream with the shorter of their intervals. If one
/// stops, the interval of the other applies. If both stop, the stream ends.
#[test]
fn the_shortest_interval_applies() {
    let weighted = |settings: Value| json!([{"weighted_round_robin": settings}]);
    let out_of_band = weighted(json!({"enableOobLoadReport": true, "oobReportingPeriod": "10s"}));
    let mut sim = sim(&listening(Some("30s"), &out_of_band));
    // The parent also watches endpoints that are not connected yet.
    assert_eq!(sim.watch_log(), ["a every 30s", "b every 30s", "a every 10s", "b every 10s"]);
    sim.config(&listening(Some("2s"), &out_of_band));
    assert_eq!(sim.watch_log(), ["a every 2s", "b every 2s"]);
    sim.load("a", busy(0.5));
    assert_eq!(reports(&sim.describe()), &json!({"a": [1, 0.5]}));
    sim.config(&listening(None, &out_of_band));
    assert_eq!(sim.watch_log(), ["a every 10s", "b every 10s"]);
    sim.config(&listening(None, &weighted(json!({}))));
    assert_eq!(sim.watch_log(), ["a stop", "b stop"]);
    assert_eq!(sim.closed(), Vec::<String>::new(), "the connections are kept");
}
