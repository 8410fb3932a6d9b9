//! `xds_cluster_impl_experimental`: what holds for a whole cluster, whichever endpoint is picked.
//!
//! A27 (drops ordered by the control plane) and A32 (circuit breaking). A call passes three gates in this order: the
//! drop categories, each with a random number of its own; the circuit breaker, which holds calls in flight to a
//! limit that all channels of the process share; the child's pick. Drops are rolled only while the child is READY, so
//! that a call that waits for the next picker is not rolled twice. Every call that is counted in flight is counted
//! out once, however it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};

use crate::child::Child;
use crate::cluster::LoadReporting;
use crate::config::{ConfigError, Fields, LbConfig, object};
use crate::counters::InFlight;
use crate::describe::{Description, Look};
use crate::policy::{LbState, Policy};
use crate::{Call, CallEnd, Connectivity, Cx, Endpoints, Pick, Picker, Status, Tracker};

/// The name under which the policy is registered, and under which others run it.
pub(crate) const NAME: &str = "xds_cluster_impl_experimental";

/// The limit of calls in flight where none is given (A32).
pub(crate) const DEFAULT_LIMIT: u32 = 1024;

const MILLION: u32 = 1_000_000;

/// The policy.
#[derive(Debug, Default)]
pub struct ClusterImpl {
    child: Child,
    gate: Option<Arc<Gate>>,
    shown: Option<Shown>,
}

/// The last state, and what it was made from.
#[derive(Debug)]
struct Shown {
    gate: Arc<Gate>,
    child: LbState,
    state: LbState,
}

/// Settings of `xds_cluster_impl_experimental`.
#[derive(Clone, Debug)]
pub struct ClusterImplConfig {
    /// The name of the cluster.
    pub cluster: Arc<str>,
    /// The name under which its endpoints are asked for; empty if that is the cluster's.
    pub eds_service_name: Arc<str>,
    /// The circuit breaker's limit: how many calls may be in flight to the cluster, over the whole process.
    pub max_concurrent_requests: u32,
    /// Which calls to drop, tried in order.
    pub drop_categories: Vec<DropCategory>,
    /// Where its load is reported to, if anywhere.
    pub load_reporting: Option<Arc<LoadReporting>>,
    /// The policy below.
    pub child_policy: LbConfig,
}

/// A share of calls that the control plane wants dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropCategory {
    /// The name that these drops are reported under; not empty.
    pub category: Arc<str>,
    /// How many calls in a million to drop, at most a million.
    pub requests_per_million: u32,
}

/// What the numerator of a fraction counts, as control planes write drop rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denominator {
    /// Per hundred.
    Hundred,
    /// Per ten thousand.
    TenThousand,
    /// Per million.
    Million,
}

impl Denominator {
    /// The fraction as so many in a million; above one it counts as one.
    ///
    /// ```
    /// use evenkeel_core::policy::Denominator;
    /// assert_eq!(Denominator::Hundred.per_million(5), 50_000);
    /// ```
    pub fn per_million(self, numerator: u32) -> u32 {
        let factor = match self {
            Denominator::Hundred => 10_000,
            Denominator::TenThousand => 100,
            Denominator::Million => 1,
        };
        numerator.saturating_mul(factor).min(MILLION)
    }
}

impl Policy for ClusterImpl {
    type Config = ClusterImplConfig;

    fn parse(fields: &Fields<'_>) -> Result<ClusterImplConfig, ConfigError> {
        let cluster = fields.str("cluster")?.filter(|name| !name.is_empty());
        let cluster =
            cluster.ok_or_else(|| fields.error("cluster", "is required: the name of the cluster"))?;
        Ok(ClusterImplConfig {
            cluster: cluster.into(),
            eds_service_name: fields.str("edsServiceName")?.unwrap_or_default().into(),
            max_concurrent_requests: fields.u32("maxConcurrentRequests")?.unwrap_or(DEFAULT_LIMIT),
            drop_categories: fields
                .objects("dropCategories")?
                .iter()
                .map(DropCategory::parse)
                .collect::<Result<_, _>>()?,
            load_reporting: None,
            child_policy: fields.child("childPolicy")?,
        })
    }

    fn to_json(config: &ClusterImplConfig) -> Value {
        let (service, limit) = (&*config.eds_service_name, config.max_concurrent_requests);
        let drop = |drop: &DropCategory| json!({ "category": drop.category, "requestsPerMillion": drop.requests_per_million });
        let drops: Vec<Value> = config.drop_categories.iter().map(drop).collect();
        let fields = [
            ("cluster", Some(config.cluster.to_string().into())),
            ("edsServiceName", (!service.is_empty()).then(|| service.into())),
            ("lrsLoadReportingServer", config.load_reporting.as_ref().map(|load| load.server_to_json())),
            ("maxConcurrentRequests", (limit != DEFAULT_LIMIT).then(|| limit.into())),
            ("dropCategories", (!drops.is_empty()).then(|| drops.into())),
            ("childPolicy", Some(json!([config.child_policy.to_json()]))),
        ];
        object(fields).into()
    }

    fn reconcile(&mut self, config: &ClusterImplConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        let gate = match self.gate.take() {
            Some(gate) if gate.is_for(config) => gate,
            old => Arc::new(Gate::new(config, old.as_deref(), cx)),
        };
        self.gate = Some(gate.clone());
        let scope = cx.scope().clone().with_backend_service(config.cluster.clone());
        let child = self.child.reconcile_in(scope, &config.child_policy, endpoints, cx);
        if let Some(shown) = &self.shown
            && Arc::ptr_eq(&shown.gate, &gate)
            && shown.child.is_same(&child)
        {
            return shown.state.clone();
        }
        let picker = ClusterPicker { gate: gate.clone(), child: child.clone() };
        let state = LbState::new(child.connectivity, picker);
        self.shown = Some(Shown { gate, child, state: state.clone() });
        state
    }

    fn describe(&self, look: &Look<'_>) -> Description {
        let description = match &self.gate {
            Some(gate) => gate.describe(),
            None => Description::new(),
        };
        description.child("childPolicy", self.child.describe(look))
    }
}

impl DropCategory {
    fn parse(fields: &Fields<'_>) -> Result<DropCategory, ConfigError> {
        let category = fields.str("category")?.filter(|name| !name.is_empty());
        let category =
            category.ok_or_else(|| fields.error("category", "is required: a name that is not empty"))?;
        let rate = fields.u32("requestsPerMillion")?.unwrap_or(0);
        if rate > MILLION {
            fields.warn(
                "requestsPerMillion",
                "is above a million and counts as a million: every call is dropped",
            );
        }
        Ok(DropCategory { category: category.into(), requests_per_million: rate.min(MILLION) })
    }
}

/// What calls have to pass, with what it stopped so far.
#[derive(Debug)]
struct Gate {
    cluster: Arc<str>,
    eds_service_name: Arc<str>,
    limit: u32,
    rules: Vec<Rule>,
    /// What the circuit breaker answers.
    full: Status,
    /// How many calls the circuit breaker dropped.
    shed: Arc<AtomicU64>,
    in_flight: Arc<Running>,
}

#[derive(Debug)]
struct Rule {
    drop: DropCategory,
    status: Status,
    dropped: Arc<AtomicU64>,
}

impl Gate {
    /// Counts go on from those of the gate before.
    fn new(config: &ClusterImplConfig, old: Option<&Gate>, cx: &Cx<'_>) -> Gate {
        let ClusterImplConfig { cluster, eds_service_name, max_concurrent_requests: limit, .. } = config;
        let mut rules: Vec<Rule> = Vec::new();
        for drop in &config.drop_categories {
            // A category that is named twice is rolled twice and counted as one.
            let counted = dropped(&rules, &drop.category);
            let counted = counted.or_else(|| dropped(&old?.rules, &drop.category)).unwrap_or_default();
            let status = Status::unavailable(format!(
                "cluster {cluster:?}: dropped as the control plane asks for category {:?}",
                drop.category
            ));
            rules.push(Rule { drop: drop.clone(), status, dropped: counted });
        }
        Gate {
            cluster: cluster.clone(),
            eds_service_name: eds_service_name.clone(),
            limit: *limit,
            rules,
            full: Status::unavailable(format!(
                "cluster {cluster:?}: the circuit breaker allows {limit} calls in flight, and so many are"
            )),
            shed: old.map(|old| old.shed.clone()).unwrap_or_default(),
            in_flight: Arc::new(Running(cx.counters().counter(cluster, eds_service_name))),
        }
    }

    fn is_for(&self, config: &ClusterImplConfig) -> bool {
        self.cluster == config.cluster
            && self.eds_service_name == config.eds_service_name
            && self.limit == config.max_concurrent_requests
            && self.rules.iter().map(|rule| &rule.drop).eq(&config.drop_categories)
    }

    fn roll(&self, call: &Call<'_>) -> Option<Pick> {
        let hit =
            |rule: &&Rule| call.random_below(u64::from(MILLION)) < u64::from(rule.drop.requests_per_million);
        let rule = self.rules.iter().find(hit)?;
        rule.dropped.fetch_add(1, Ordering::Relaxed);
        Some(Pick::Drop(rule.status.clone()))
    }

    fn is_full(&self) -> bool {
        self.in_flight.0.count() >= u64::from(self.limit)
    }

    fn shed(&self) -> Pick {
        self.shed.fetch_add(1, Ordering::Relaxed);
        Pick::Drop(self.full.clone())
    }

    fn describe(&self) -> Description {
        let dropped = |rule: &Rule| {
            let count = rule.dropped.load(Ordering::Relaxed);
            (rule.drop.category.to_string(), Value::from(count))
        };
        Description::new()
            .detail("cluster", &*self.cluster)
            .detail("edsServiceName", &*self.eds_service_name)
            .detail("maxConcurrentRequests", self.limit)
            .detail("inFlight", self.in_flight.0.count())
            .detail("circuitBreakerDrops", self.shed.load(Ordering::Relaxed))
            .detail("drops", self.rules.iter().map(dropped).collect::<Map<_, _>>())
    }
}

fn dropped(rules: &[Rule], category: &str) -> Option<Arc<AtomicU64>> {
    let rule = rules.iter().find(|rule| &*rule.drop.category == category)?;
    Some(rule.dropped.clone())
}

struct ClusterPicker {
    gate: Arc<Gate>,
    child: LbState,
}

impl Picker for ClusterPicker {
    fn pick(&self, call: &Call<'_>) -> Pick {
        let gate = &self.gate;
        if self.child.connectivity == Connectivity::Ready {
            if let Some(drop) = gate.roll(call) {
                return drop;
            }
            if gate.is_full() {
                return gate.shed();
            }
        }
        match self.child.picker.pick(call) {
            Pick::To(id, mut trackers) => {
                // The last place may have gone to another call since the look above.
                if !gate.in_flight.0.try_start(u64::from(gate.limit)) {
                    trackers.finish(&CallEnd::Unsent);
                    return gate.shed();
                }
                trackers.push(gate.in_flight.clone());
                Pick::To(id, trackers)
            }
            other => other,
        }
    }
}

/// Told of the end of every call that was counted in flight.
#[derive(Debug)]
struct Running(Arc<InFlight>);

impl Tracker for Running {
    fn finished(&self, _: &CallEnd<'_>) {
        self.0.end();
    }
}
