//! Core with all endpoints connected, for picks and passes.
//!
//! The whole tree is that of an xDS cluster: cluster manager, priority, outlier detection, drops and circuit
//! breaker, locality picking, and an endpoint policy. Endpoints are in two localities and have three weights.
//! Calls end with different load reports, so that weighted_round_robin uses them, and its schedule is rebuilt
//! each second.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{
    CallOutcome, Code, Core, Endpoint, Endpoints, Instant, LbConfig, LbEffect, LbEvent, LbUpdate, LoadReport,
    Locality, PickArgs, PickResult, Registry, Rng, RootPicker, Status, SubchannelId,
};
use serde_json::{Value, json};

use crate::Error;

/// Endpoint policy: its name in figures, and its config.
#[derive(Clone, Copy)]
pub(crate) struct Policy {
    pub(crate) name: &'static str,
    config: &'static str,
}

pub(crate) const POLICIES: [Policy; 6] = [
    Policy { name: "pick_first", config: r#"{"pick_first": {}}"# },
    Policy { name: "round_robin", config: r#"{"round_robin": {}}"# },
    Policy { name: "edf", config: r#"{"edf_weighted_round_robin": {}}"# },
    Policy { name: "weighted_round_robin", config: r#"{"weighted_round_robin": {"blackoutPeriod": "0s"}}"# },
    Policy { name: "least_request", config: r#"{"least_request_experimental": {}}"# },
    Policy { name: "ring_hash", config: r#"{"ring_hash_experimental": {}}"# },
];

impl Policy {
    pub(crate) fn named(name: &str) -> Result<Policy, Error> {
        let known = POLICIES.into_iter().find(|policy| policy.name == name);
        known.ok_or_else(|| {
            let names = POLICIES.map(|policy| policy.name).join(", ");
            format!("unknown policy {name:?}; there are {names}").into()
        })
    }
}

/// Position of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tree {
    Alone,
    Whole,
}

/// Core whose endpoints are connected as far as picks need them, and the state to disturb it.
pub(crate) struct PickHarness {
    core: Core,
    picker: RootPicker,
    ids: Vec<SubchannelId>,
    config: LbConfig,
    tree: Tree,
    now: Instant,
    n: usize,
    reports: Vec<LoadReport>,
    /// Effects of passes that have not been performed.
    asked: Vec<LbEffect>,
}

impl PickHarness {
    /// Creates a harness for this number of picks.
    pub(crate) fn new(policy: Policy, tree: Tree, n: usize, picks: u64) -> Result<PickHarness, Error> {
        let policy = json!([serde_json::from_str::<Value>(policy.config)?]);
        let config = match tree {
            Tree::Alone => policy,
            Tree::Whole => whole_tree(&policy),
        };
        let config = Registry::standard().parse(&config)?;
        let mut core = Core::builder(Rng::fixed(1)).build();
        core.update(LbUpdate::new(config.clone(), endpoints(tree, n, 0, None)));
        let now = Instant::ORIGIN;
        let pass = core.reconcile(now);
        let picker = pass.picker.ok_or("the core has no picker after its first pass")?;
        let (ids, asked) = (Vec::new(), pass.effects);
        let mut harness = PickHarness { core, picker, ids, config, tree, now, n, reports: reports(), asked };
        harness.connect();
        harness.connect_lazy(picks);
        harness.report_all();
        Ok(harness)
    }

    /// Connects all endpoints that this number of picks will need, since ring_hash connects on demand.
    fn connect_lazy(&mut self, picks: u64) {
        loop {
            let asked = (0..picks).filter_map(|i| match self.picker.pick(&call(i)) {
                PickResult::Queue { connect } => connect,
                _ => None,
            });
            let asked: BTreeSet<_> = asked.collect();
            if asked.is_empty() {
                break;
            }
            for id in asked {
                self.core.handle(LbEvent::Connect(id), self.now);
            }
            self.reconcile();
            self.connect();
        }
    }

    /// Reports load from every endpoint, and lets the policy compute weights.
    fn report_all(&mut self) {
        // Two cycles over all endpoints by EDS weights, whose mean is 7 / 3.
        let picker = self.picker();
        for i in 0..5 * self.n as u64 {
            picker.pick(i);
        }
        self.a_second_later();
    }

    pub(crate) fn picker(&self) -> Picks<'_> {
        Picks { picker: &self.picker, now: self.now, reports: &self.reports }
    }

    /// Advances virtual time by a second, and runs a pass.
    pub(crate) fn a_second_later(&mut self) {
        self.now += Duration::from_secs(1);
        self.reconcile();
    }

    /// Runs a pass. Connections are left to [`PickHarness::connect`].
    pub(super) fn reconcile(&mut self) {
        let pass = self.core.reconcile(self.now);
        if let Some(picker) = pass.picker {
            self.picker = picker;
        }
        self.asked.extend(pass.effects);
    }

    /// Performs all pending connection attempts.
    pub(super) fn connect(&mut self) {
        while !self.asked.is_empty() {
            for effect in std::mem::take(&mut self.asked) {
                if let LbEffect::Connect { id, .. } = effect {
                    self.core.handle(LbEvent::Connected(id), self.now);
                    self.ids.push(id);
                }
            }
            self.reconcile();
        }
    }

    pub(super) fn lose_one(&mut self) {
        if let Some(id) = self.one() {
            self.core.handle(LbEvent::Disconnected(id, Status::unavailable("gone")), self.now);
        }
    }

    /// Returns a subchannel in the middle, while the first endpoints are in use.
    fn one(&self) -> Option<SubchannelId> {
        self.ids.get(self.n / 2).copied()
    }

    /// Returns an update with the endpoints of this generation, all of them or one.
    pub(super) fn next(&self, all: usize, one: Option<usize>) -> LbUpdate {
        LbUpdate::new(self.config.clone(), endpoints(self.tree, self.n, all, one))
    }

    pub(super) fn update(&mut self, update: LbUpdate) {
        self.core.update(update);
    }
}

/// Picks from one picker.
#[derive(Clone, Copy)]
pub(crate) struct Picks<'a> {
    picker: &'a RootPicker,
    now: Instant,
    reports: &'a [LoadReport],
}

impl Picks<'_> {
    /// Performs the work of [`Picks::pick`] except the pick and the end of the call.
    pub(crate) fn around(&self, i: u64) -> bool {
        let load = self.reports.get(i as usize % REPORTS);
        black_box((call(i), CallOutcome::Finished { code: Code::Ok, at: self.now, load }));
        true
    }

    /// Picks without ending the call.
    pub(super) fn begin(&self, i: u64) -> PickResult {
        self.picker.pick(&call(i))
    }

    /// Ends such a call. Returns true if the pick was complete.
    pub(super) fn end(&self, pick: PickResult) -> bool {
        match pick {
            PickResult::Complete(_, trackers) => {
                trackers.finish(&CallOutcome::Finished {
                    code: Code::Ok,
                    at: self.now,
                    load: self.reports.first(),
                });
                true
            }
            PickResult::Drop(_) => true,
            PickResult::Queue { .. } | PickResult::Fail(_) => false,
        }
    }

    /// Picks and ends the call. Returns true if the result is as expected; one call in a million is dropped.
    pub(crate) fn pick(&self, i: u64) -> bool {
        match self.picker.pick(&call(i)) {
            PickResult::Complete(id, trackers) => {
                black_box(id);
                let load = self.reports.get(i as usize % REPORTS);
                trackers.finish(&CallOutcome::Finished { code: Code::Ok, at: self.now, load });
                true
            }
            PickResult::Drop(_) => true,
            PickResult::Queue { .. } | PickResult::Fail(_) => false,
        }
    }
}

const REPORTS: usize = 128;

/// Load reports that yield weights from 1 to 100.
fn reports() -> Vec<LoadReport> {
    let weight = |i: usize| 1.0 + (i * 37 % 100) as f64;
    let report =
        |weight| LoadReport { cpu_utilization: 0.5, requests_per_second: weight, ..LoadReport::default() };
    (0..REPORTS).map(weight).map(report).collect()
}

/// Returns the config that a cluster with one priority gets from xDS.
fn whole_tree(policy: &Value) -> Value {
    let locality = json!([{"xds_wrr_locality_experimental": {"childPolicy": policy}}]);
    let cluster = json!([{"xds_cluster_impl_experimental": {
        "cluster": "orders", "maxConcurrentRequests": 1_000_000,
        "dropCategories": [{"category": "shed", "requestsPerMillion": 1}], "childPolicy": locality,
    }}]);
    let outlier = json!([{"outlier_detection_experimental": {
        "failurePercentageEjection": {}, "childPolicy": cluster,
    }}]);
    let priority =
        json!([{"priority_experimental": {"priorities": ["p0"], "children": {"p0": {"config": outlier}}}}]);
    json!([{"xds_cluster_manager_experimental": {"children": {"cluster:orders": {"childPolicy": priority}}}}])
}

/// Returns a call. Its hashes are spread over the ring.
fn call<'a>(i: u64) -> PickArgs<'a> {
    let entropy = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    PickArgs::new("/shop.Orders/Get", entropy).with_cluster("cluster:orders").with_hash(entropy)
}

/// Returns endpoints with two localities and three weights. One endpoint may have another generation.
fn endpoints(tree: Tree, n: usize, all: usize, one: Option<usize>) -> Endpoints {
    let zones = ["a", "b"].map(|zone| Arc::new(Locality { zone: zone.to_owned(), ..Locality::default() }));
    let endpoint = |i: usize| {
        let generation = one.filter(|_| i == n / 2).unwrap_or(all);
        let address = format!("10.{}.{}.{}:{}", generation, i / 256 % 256, i % 256, 443 + i / 65_536);
        Endpoint::at(&*address).with_weight(1 << (i % 3)).with_locality(zones[i % 2].clone(), 1)
    };
    let list = Endpoints::list((0..n).map(endpoint));
    match tree {
        Tree::Alone => list,
        Tree::Whole => Endpoints::groups([("cluster:orders", Endpoints::groups([("p0", list)]))]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_policy_is_named_with_those_that_are_known() {
        assert_eq!(Policy::named("edf").map(|policy| policy.name).ok(), Some("edf"));
        let error = Policy::named("fastest").err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("\"fastest\"") && error.contains("ring_hash"), "{error}");
    }

    /// Weights come from reports; otherwise the schedule would equal that of edf.
    #[test]
    fn weighted_round_robin_goes_by_load() {
        let policy = Policy::named("weighted_round_robin").expect("known");
        for tree in [Tree::Alone, Tree::Whole] {
            let harness = PickHarness::new(policy, tree, 20, 100).expect("a harness");
            let described = format!("{:?}", harness.core.describe());
            assert!(described.contains("load") && !described.contains("EDS"), "{described}");
        }
    }
}
