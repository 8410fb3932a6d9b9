//! `xds_cluster_impl_experimental`: drops, circuit breaking and load counts of one cluster.
//!
//! Implements A27 (drops requested by the control plane) and A32 (circuit breaking). A pick passes three
//! gates in order: the drop categories, each with its own random number; the circuit breaker, whose limit all
//! channels of the process share; the child's picker. The picker samples drops only while the child is READY,
//! so that a queued call is not sampled twice. Every call that is counted as in flight is counted as finished
//! exactly once, however it ends.
//!
//! If the control plane asks for load reports, calls are also counted by the locality of the chosen endpoint
//! (A42). Each attempt gets the labels of its backend ([`BackendLabels`]: A78, A81, A89). One
//! [`ClusterCallTracker`] per locality and host name does all of this; a pick finds it by subchannel id and
//! clones it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use serde_json::{Map, Value, json};

use crate::collections::diff::{PerEndpoint, apply_diff};
use crate::collections::fast_map::FastMap;
use crate::config::cluster::LoadReporting;
use crate::config::{ConfigError, ConfigFields, LbConfig, object};
use crate::engine::by_subchannel::{BySubchannel, KnownSubchannels, SubchannelRow};
use crate::engine::child::ChildPolicy;
use crate::engine::describe::{DescribeCx, Description};
use crate::engine::pure_parent::PureParent;
use crate::engine::revision::Revision;
use crate::load::call_counters::InFlightCounter;
use crate::load::{ClusterLoad, DropCount, LocalityLoad};
use crate::policy::{LbState, Policy};
use crate::{
    BackendLabels, CallOutcome, CallTracker, ConnectivityState, Cx, Endpoint, Endpoints, Locality, PickArgs,
    PickResult, Picker, Status, SubchannelId,
};

/// Registered name of the policy; also used by the policies that create it as a child.
pub(crate) const NAME: &str = "xds_cluster_impl_experimental";

/// Default maximum number of calls in flight (A32).
pub(crate) const DEFAULT_LIMIT: u32 = 1024;

const MILLION: u32 = 1_000_000;

/// Implementation of the `xds_cluster_impl_experimental` policy.
#[derive(Debug, Default)]
pub(crate) struct ClusterImpl {
    child: ChildPolicy,
    cluster_trackers: Option<ClusterTrackers>,
    cached: Option<CachedClusterState>,
}

/// Last returned state, with the child state that it was built from.
#[derive(Debug)]
struct CachedClusterState {
    child: LbState,
    state: LbState,
}

/// Settings of the `xds_cluster_impl_experimental` policy.
#[derive(Clone, Debug)]
pub(crate) struct ClusterImplConfig {
    /// Name of the cluster.
    pub(crate) cluster: Arc<str>,
    /// EDS service name; empty if it equals the cluster name.
    pub(crate) eds_service_name: Arc<str>,
    /// Circuit breaker limit: maximum number of calls in flight to the cluster, over the whole process.
    pub(crate) max_concurrent_requests: u32,
    /// Drop categories, sampled in order.
    pub(crate) drop_categories: Vec<DropCategory>,
    /// Load reporting server and metrics; `None` disables load reports.
    pub(crate) load_reporting: Option<Arc<LoadReporting>>,
    /// Config of the child policy.
    pub(crate) child_policy: LbConfig,
}

/// Share of calls that the control plane wants dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropCategory {
    /// Category under which the drops are reported; not empty.
    pub category: Arc<str>,
    /// Number of calls to drop per million, at most a million.
    pub requests_per_million: u32,
}

/// Unit of a drop rate's numerator, as in xDS `FractionalPercent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denominator {
    /// Parts per hundred (percent).
    Hundred,
    /// Parts per ten thousand.
    TenThousand,
    /// Parts per one million.
    Million,
}

impl Denominator {
    /// Converts the fraction to parts per million, capped at one million.
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

    fn parse(fields: &ConfigFields<'_>) -> Result<ClusterImplConfig, ConfigError> {
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
            load_reporting: LoadReporting::parse(fields)?.map(Arc::new),
            child_policy: fields.child("childPolicy")?,
        })
    }

    fn to_json(config: &ClusterImplConfig) -> Value {
        let (service, limit) = (&*config.eds_service_name, config.max_concurrent_requests);
        let load = config.load_reporting.as_deref();
        let drop = |drop: &DropCategory| json!({ "category": drop.category, "requestsPerMillion": drop.requests_per_million });
        let drops: Vec<Value> = config.drop_categories.iter().map(drop).collect();
        let fields = [
            ("cluster", Some(config.cluster.to_string().into())),
            ("edsServiceName", (!service.is_empty()).then(|| service.into())),
            ("lrsLoadReportingServer", load.map(LoadReporting::server_to_json)),
            ("lrsReportEndpointMetrics", load.and_then(LoadReporting::metrics_to_json)),
            ("maxConcurrentRequests", (limit != DEFAULT_LIMIT).then(|| limit.into())),
            ("dropCategories", (!drops.is_empty()).then(|| drops.into())),
            ("childPolicy", Some(json!([config.child_policy.to_json()]))),
        ];
        object(fields).into()
    }

    fn reconcile(&mut self, config: &ClusterImplConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        let cluster_trackers = match self.cluster_trackers.take() {
            Some(cluster_trackers) if cluster_trackers.admission.matches_config(config) => cluster_trackers,
            old => ClusterTrackers::new(AdmissionControl::new(
                config,
                old.as_ref().map(|old| &*old.admission),
                cx,
            )),
        };
        let cluster_trackers = self.cluster_trackers.insert(cluster_trackers);
        let scope = cx.scope().clone().with_backend_service(config.cluster.clone());
        // The child runs first: it creates the subchannels whose trackers are looked up below.
        let child = self.child.reconcile_in(scope, &config.child_policy, endpoints, cx);
        if let Some(cached) = self
            .cached
            .as_ref()
            // A changed config creates trackers without endpoints, so `is_for` is false then too.
            .filter(|cached| cached.child.is_same(&child) && cluster_trackers.is_for(endpoints))
        {
            return cached.state.clone();
        }
        cluster_trackers.reconcile(endpoints, cx);
        let picker = ClusterImplPicker {
            call_trackers: cluster_trackers.call_trackers(),
            admission: cluster_trackers.admission.clone(),
            child: child.clone(),
        };
        let state = LbState::new(child.connectivity, picker);
        self.cached = Some(CachedClusterState { child, state: state.clone() });
        state
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        let description = match &self.cluster_trackers {
            Some(cluster_trackers) => cluster_trackers.admission.describe(),
            None => Description::new(),
        };
        description.child("childPolicy", self.child.describe(cx))
    }
}

impl PureParent for ClusterImpl {
    fn each_child(&mut self, visit: &mut dyn FnMut(&mut ChildPolicy)) {
        visit(&mut self.child);
    }
}

impl DropCategory {
    fn parse(fields: &ConfigFields<'_>) -> Result<DropCategory, ConfigError> {
        let category = fields.str("category")?.filter(|name| !name.is_empty());
        let category =
            category.ok_or_else(|| fields.error("category", "is required: a name that is not empty"))?;
        let rate = fields.u32("requestsPerMillion")?.unwrap_or(0);
        if rate > MILLION {
            fields.warn(
                "requestsPerMillion",
                "exceeds a million and is treated as a million: every call is dropped",
            );
        }
        Ok(DropCategory { category: category.into(), requests_per_million: rate.min(MILLION) })
    }
}

/// Drop rules and circuit breaker of a cluster, with their counters.
#[derive(Debug)]
struct AdmissionControl {
    cluster: Arc<str>,
    eds_service_name: Arc<str>,
    limit: u32,
    rules: Vec<DropRule>,
    /// Status of calls that the circuit breaker drops.
    full: Status,
    /// Number of calls that the circuit breaker dropped.
    shed: Arc<AtomicU64>,
    in_flight: Arc<InFlightCounter>,
    load: Option<ClusterLoadTarget>,
}

/// Load reporting settings, with the load counters of the cluster.
#[derive(Debug)]
struct ClusterLoadTarget {
    reporting: Arc<LoadReporting>,
    cluster: Arc<ClusterLoad>,
}

#[derive(Debug)]
struct DropRule {
    drop: DropCategory,
    status: Status,
    dropped: Arc<AtomicU64>,
    reported: Option<Arc<DropCount>>,
}

impl AdmissionControl {
    /// Builds the gates for a config. Counters continue from `old`.
    fn new(config: &ClusterImplConfig, old: Option<&AdmissionControl>, cx: &Cx<'_>) -> AdmissionControl {
        let ClusterImplConfig { cluster, eds_service_name, max_concurrent_requests: limit, .. } = config;
        let load = config.load_reporting.as_ref().map(|reporting| {
            let service = Some(&**eds_service_name).filter(|name| !name.is_empty());
            let cluster = cx.load_store().cluster(&reporting.server, cluster, service, cx.now());
            ClusterLoadTarget { reporting: reporting.clone(), cluster }
        });
        let mut rules: Vec<DropRule> = Vec::new();
        for drop in &config.drop_categories {
            // A category that is listed twice is sampled twice but shares one counter.
            let counted = dropped(&rules, &drop.category);
            let counted = counted.or_else(|| dropped(&old?.rules, &drop.category)).unwrap_or_default();
            let status = Status::unavailable(format!(
                "cluster {cluster:?}: dropped by the control plane's drop category {:?}",
                drop.category
            ));
            let reported = load.as_ref().map(|load| load.cluster.drops(&drop.category));
            rules.push(DropRule { drop: drop.clone(), status, dropped: counted, reported });
        }
        AdmissionControl {
            cluster: cluster.clone(),
            eds_service_name: eds_service_name.clone(),
            limit: *limit,
            rules,
            full: Status::unavailable(format!(
                "cluster {cluster:?}: the circuit breaker's maximum of {limit} calls in flight is reached"
            )),
            shed: old.map(|old| old.shed.clone()).unwrap_or_default(),
            // Shared in the process. A lower limit does not reset the count (CI-6).
            in_flight: cx.counters().counter(cluster, eds_service_name),
            load,
        }
    }

    fn matches_config(&self, config: &ClusterImplConfig) -> bool {
        self.cluster == config.cluster
            && self.eds_service_name == config.eds_service_name
            && self.limit == config.max_concurrent_requests
            && self.load.as_ref().map(|load| &load.reporting) == config.load_reporting.as_ref()
            && self.rules.iter().map(|rule| &rule.drop).eq(&config.drop_categories)
    }

    fn sample_drop(&self, call: &PickArgs<'_>) -> Option<PickResult> {
        // Each category draws its own random number, in order (CI-1).
        let hit = |rule: &&DropRule| {
            call.random_below(u64::from(MILLION)) < u64::from(rule.drop.requests_per_million)
        };
        let rule = self.rules.iter().find(hit)?;
        rule.dropped.fetch_add(1, Ordering::Relaxed);
        if let Some(reported) = &rule.reported {
            reported.count();
        }
        Some(PickResult::Drop(rule.status.clone()))
    }

    fn is_full(&self) -> bool {
        self.in_flight.count() >= u64::from(self.limit)
    }

    fn shed(&self) -> PickResult {
        self.shed.fetch_add(1, Ordering::Relaxed);
        if let Some(load) = &self.load {
            load.cluster.shed().count();
        }
        PickResult::Drop(self.full.clone())
    }

    fn describe(&self) -> Description {
        let dropped = |rule: &DropRule| {
            let count = rule.dropped.load(Ordering::Relaxed);
            (rule.drop.category.to_string(), Value::from(count))
        };
        let description = Description::new()
            .detail("cluster", &*self.cluster)
            .detail("edsServiceName", &*self.eds_service_name)
            .detail("maxConcurrentRequests", self.limit)
            .detail("inFlight", self.in_flight.count())
            .detail("circuitBreakerDrops", self.shed.load(Ordering::Relaxed))
            .detail("drops", self.rules.iter().map(dropped).collect::<Map<_, _>>());
        match &self.load {
            Some(load) => description
                .detail("lrsLoadReportingServer", &*load.reporting.server)
                .detail("load", load.cluster.localities().iter().map(describe_load).collect::<Vec<_>>()),
            None => description,
        }
    }
}

fn dropped(rules: &[DropRule], category: &str) -> Option<Arc<AtomicU64>> {
    let rule = rules.iter().find(|rule| &*rule.drop.category == category)?;
    Some(rule.dropped.clone())
}

/// Describes the calls of a locality: totals since counting began, over the whole process.
fn describe_load((locality, load): &(Arc<Locality>, Arc<LocalityLoad>)) -> Value {
    let [issued, succeeded, failed, in_progress] = load.totals();
    json!({
        "locality": locality.to_string(),
        "issued": issued,
        "succeeded": succeeded,
        "failed": failed,
        "inProgress": in_progress,
    })
}

/// Tracker of each call that is counted as in flight.
///
/// Releases the circuit breaker's slot, updates the load counters and provides the backend labels.
#[derive(Debug)]
struct ClusterCallTracker {
    labels: BackendLabels,
    in_flight: Arc<InFlightCounter>,
    load: Option<(Arc<LocalityLoad>, Arc<ClusterLoad>)>,
}

impl ClusterCallTracker {
    fn new(
        admission: &AdmissionControl,
        locality: Option<&Arc<Locality>>,
        hostname: Option<&Arc<str>>,
    ) -> ClusterCallTracker {
        let label = locality.map(ToString::to_string).unwrap_or_default();
        // A call in flight also holds its cluster's counters: they are reported until the call has ended.
        let load = admission.load.as_ref().map(|ClusterLoadTarget { reporting, cluster }| {
            (cluster.locality(locality, &reporting.metrics), cluster.clone())
        });
        ClusterCallTracker {
            labels: BackendLabels {
                backend_service: admission.cluster.clone(),
                locality: label.into(),
                hostname: hostname.cloned(),
            },
            in_flight: admission.in_flight.clone(),
            load,
        }
    }

    fn start(&self) {
        if let Some((load, _)) = &self.load {
            load.start();
        }
    }
}

impl CallTracker for ClusterCallTracker {
    fn finished(&self, end: &CallOutcome<'_>) {
        // Every outcome releases the slot, also that of a call which was never sent.
        self.in_flight.end();
        if let Some((load, _)) = &self.load {
            load.finish(end);
        }
    }

    fn needs_load_report(&self) -> bool {
        self.load.as_ref().is_some_and(|(load, _)| load.needs_load_report())
    }

    fn backend_labels(&self) -> Option<&BackendLabels> {
        Some(&self.labels)
    }
}

/// Trackers of all endpoints, keyed by locality and host name.
///
/// Updated when the endpoints change. If the endpoints have more than one key, a changed child picker
/// triggers an update too, provided that subchannels were created. A pass that only changes connectivity
/// states does not touch it.
#[derive(Debug)]
struct ClusterTrackers {
    admission: Arc<AdmissionControl>,
    endpoints: Option<Endpoints>,
    entries: Vec<ClusterEndpoint>,
    /// Trackers in use. Entries of dropped trackers stay until [`ClusterTrackers::prune_trackers`] removes
    /// them.
    trackers_by_key: FastMap<TrackerKey, Weak<ClusterCallTracker>>,
    /// Tracker of all endpoints, if all of them have the same key.
    only: Option<Arc<ClusterCallTracker>>,
    by_subchannel: BySubchannel<ClusterCallTracker>,
    /// Revision at which subchannels were last looked up by address.
    verified_at: Revision,
    /// Fallback tracker for subchannels of unknown endpoints.
    rest: Option<Arc<ClusterCallTracker>>,
}

/// Key of a tracker: the locality and host name of an endpoint.
type TrackerKey = (Option<Arc<Locality>>, Option<Arc<str>>);
type TrackerKeyRef<'e> = (Option<&'e Arc<Locality>>, Option<&'e Arc<str>>);

/// Endpoint with the tracker of its key.
#[derive(Debug)]
struct ClusterEndpoint {
    endpoint: Endpoint,
    tracker: Option<Arc<ClusterCallTracker>>,
    known: KnownSubchannels,
}

impl PerEndpoint for ClusterEndpoint {
    fn new(endpoint: &Endpoint) -> ClusterEndpoint {
        ClusterEndpoint { endpoint: endpoint.clone(), tracker: None, known: KnownSubchannels::default() }
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn update(&mut self, endpoint: &Endpoint) {
        if tracker_key(&self.endpoint) != tracker_key(endpoint) {
            self.tracker = None;
        }
        self.endpoint = endpoint.clone();
    }
}

impl ClusterEndpoint {
    fn row(&mut self) -> Option<SubchannelRow<'_, ClusterCallTracker>> {
        Some(SubchannelRow {
            endpoint: &self.endpoint,
            value: self.tracker.as_ref()?,
            known: &mut self.known,
        })
    }
}

fn tracker_key(endpoint: &Endpoint) -> TrackerKeyRef<'_> {
    (endpoint.locality(), endpoint.shared_hostname())
}

/// Returns the key of all endpoints, if they have the same one. Adjacent endpoints usually share the
/// locality's `Arc`.
fn only_tracker_key(endpoints: &Endpoints) -> Option<TrackerKeyRef<'_>> {
    let mut tracker_keys = endpoints.iter().map(tracker_key);
    let only = tracker_keys.next()?;
    let is_same = |a: Option<&Arc<Locality>>, b: Option<&Arc<Locality>>| match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
        (a, b) => a.is_none() && b.is_none(),
    };
    tracker_keys.all(|tracker_key| is_same(tracker_key.0, only.0) && tracker_key.1 == only.1).then_some(only)
}

impl ClusterTrackers {
    fn new(admission: AdmissionControl) -> ClusterTrackers {
        ClusterTrackers {
            admission: Arc::new(admission),
            endpoints: None,
            entries: Vec::new(),
            trackers_by_key: FastMap::default(),
            only: None,
            by_subchannel: BySubchannel::default(),
            verified_at: Revision::default(),
            rest: None,
        }
    }

    fn is_for(&self, endpoints: &Endpoints) -> bool {
        self.endpoints.as_ref().is_some_and(|known| known.is_same(endpoints))
    }

    fn reconcile(&mut self, endpoints: &Endpoints, cx: &Cx<'_>) {
        let others = !self.is_for(endpoints);
        if others {
            self.replace(endpoints);
        }
        // With a single key the picker needs no map.
        if self.only.is_some() || (!others && cx.has_same_subchannels(self.verified_at)) {
            return;
        }
        self.verified_at = cx.revision();
        self.by_subchannel.refresh(self.entries.iter_mut().filter_map(ClusterEndpoint::row), endpoints, cx);
    }

    fn replace(&mut self, endpoints: &Endpoints) {
        self.endpoints = Some(endpoints.clone());
        self.only = only_tracker_key(endpoints).map(|tracker_key| self.tracker_for(tracker_key));
        self.prune_trackers(endpoints.iter().count());
        if self.only.is_some() {
            (self.entries, self.by_subchannel, self.rest) = (Vec::new(), BySubchannel::default(), None);
            return;
        }
        for mut gone in apply_diff(&mut self.entries, endpoints) {
            self.by_subchannel.remove(&mut gone.known);
        }
        for i in 0..self.entries.len() {
            if self.entries[i].tracker.is_none() {
                let tracker = self.tracker_for_entry(i);
                let entry = &mut self.entries[i];
                // The endpoint's key changed, so its subchannels must be mapped again.
                self.by_subchannel.remove(&mut entry.known);
                entry.tracker = Some(tracker);
            }
        }
    }

    /// Removes entries of dropped trackers once the map has grown to more than twice the number of endpoints.
    fn prune_trackers(&mut self, endpoints: usize) {
        if self.trackers_by_key.len() > 2 * endpoints + 8 {
            self.trackers_by_key.retain(|_, tracker| tracker.strong_count() > 0);
        }
    }

    /// Returns the tracker for the endpoint at `i`; reuses its predecessor's if they have the same key, to
    /// skip the lookup.
    fn tracker_for_entry(&mut self, i: usize) -> Arc<ClusterCallTracker> {
        let endpoint = &self.entries[i].endpoint;
        let before = i.checked_sub(1).map(|i| &self.entries[i]);
        let before = before.filter(|before| tracker_key(&before.endpoint) == tracker_key(endpoint));
        if let Some(tracker) = before.and_then(|before| before.tracker.as_ref()) {
            return tracker.clone();
        }
        let endpoint = endpoint.clone();
        self.tracker_for(tracker_key(&endpoint))
    }

    fn tracker_for(&mut self, (locality, hostname): TrackerKeyRef<'_>) -> Arc<ClusterCallTracker> {
        // Weak, so that the map does not keep the counters of removed localities alive.
        let place = self.trackers_by_key.entry((locality.cloned(), hostname.cloned())).or_default();
        place.upgrade().unwrap_or_else(|| {
            let tracker = Arc::new(ClusterCallTracker::new(&self.admission, locality, hostname));
            *place = Arc::downgrade(&tracker);
            tracker
        })
    }

    /// Returns the lookup table for the picker.
    fn call_trackers(&mut self) -> SubchannelTrackers {
        if let Some(only) = &self.only {
            return SubchannelTrackers { by_subchannel: BySubchannel::default(), rest: only.clone() };
        }
        let rest =
            self.rest.get_or_insert_with(|| Arc::new(ClusterCallTracker::new(&self.admission, None, None)));
        SubchannelTrackers { by_subchannel: self.by_subchannel.clone(), rest: rest.clone() }
    }
}

/// Tracker of each subchannel.
struct SubchannelTrackers {
    by_subchannel: BySubchannel<ClusterCallTracker>,
    /// Tracker of all other subchannels: the only one, or the fallback.
    rest: Arc<ClusterCallTracker>,
}

impl SubchannelTrackers {
    fn of(&self, id: SubchannelId) -> &Arc<ClusterCallTracker> {
        self.by_subchannel.get(id).unwrap_or(&self.rest)
    }
}

struct ClusterImplPicker {
    admission: Arc<AdmissionControl>,
    call_trackers: SubchannelTrackers,
    child: LbState,
}

impl Picker for ClusterImplPicker {
    fn pick(&self, call: &PickArgs<'_>) -> PickResult {
        let admission = &self.admission;
        // A queued call is picked again, and its drop must be drawn once (CI-3).
        if self.child.connectivity == ConnectivityState::Ready {
            let dropped =
                // Checked early to spare the child's pick. `try_start` decides.
                admission.sample_drop(call).or_else(|| admission.is_full().then(|| admission.shed()));
            if let Some(dropped) = dropped {
                call.note_backend_service(&admission.cluster);
                return dropped;
            }
        }
        match self.child.picker.pick(call) {
            PickResult::Complete(id, mut trackers) => {
                // Another call may have taken the last slot since `is_full` was checked. The child's trackers
                // count the call as started, so they must be finished.
                if !admission.in_flight.try_start(u64::from(admission.limit)) {
                    trackers.finish(&CallOutcome::Unsent);
                    call.note_backend_service(&admission.cluster);
                    return admission.shed();
                }
                let tracker = self.call_trackers.of(id);
                tracker.start();
                trackers.push(tracker.clone());
                PickResult::Complete(id, trackers)
            }
            other => {
                call.note_backend_service(&admission.cluster);
                other
            }
        }
    }
}
