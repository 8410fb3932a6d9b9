//! `xds_cluster_resolver_experimental`: turns the endpoints of clusters into priorities (A37).
//!
//! Each discovery mechanism names a leaf cluster and the source of its endpoints. The policy looks up the
//! endpoints in the update's config and builds the config and endpoints of `priority_experimental`:
//!
//! ```text
//!   priority ─┬─ orders/priority-0 ── (outlier_detection) ── xds_cluster_impl ── the policy of the cluster
//!             ├─ orders/priority-1 ── ...
//!             └─ backup/priority-0 ── ...
//! ```
//!
//! The priorities of all mechanisms are concatenated. Child names follow localities from update to update
//! (A115). Parts that are equal to the previous ones keep their allocation, so that only changed children
//! run. While the endpoints of any mechanism are unknown, the previous priorities stay in use; without any,
//! calls are queued.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::config::cluster::{EndpointSet, EndpointSource, LeafCluster, LoadReporting};
use crate::config::{ConfigError, ConfigFields, LbConfig, object};
use crate::engine::describe::{DescribeCx, Description};
use crate::engine::pure_parent::PureParent;
use crate::policy::cluster_impl::{self, ClusterImpl, ClusterImplConfig};
use crate::policy::outlier_detection::{self, OutlierDetection, OutlierDetectionConfig, OutlierSettings};
use crate::policy::priority::{self, Priority, PriorityChild, PriorityConfig};
use crate::policy::{CachedState, DropCategory, LbState, PickFirst, PickFirstConfig, Policy, PriorityNames};
use crate::{ChildPolicy, ClusterTransport, Cx, Endpoint, Endpoints, Locality, Status};

/// Registered name of the policy; also used by the policies that create it as a child.
pub(crate) const NAME: &str = "xds_cluster_resolver_experimental";

/// Implementation of the `xds_cluster_resolver_experimental` policy.
#[derive(Debug, Default)]
pub struct ClusterResolver {
    /// State of each mechanism, in config order.
    parts: Vec<MechanismState>,
    plan: Option<PriorityPlan>,
    child: ChildPolicy,
    waiting: CachedState<()>,
}

/// Settings of the `xds_cluster_resolver_experimental` policy.
#[derive(Clone, Debug)]
pub struct ClusterResolverConfig {
    /// Discovery mechanisms with distinct clusters, highest priority first.
    pub mechanisms: Vec<DiscoveryMechanism>,
}

/// Cluster whose endpoints the policy uses.
#[derive(Clone, Debug)]
pub enum DiscoveryMechanism {
    /// Cluster with endpoints and its own policy (A75). Boxed because the other variant is small.
    Leaf(Box<LeafCluster>),
    /// Unusable leaf of an aggregate: becomes one failing priority (A74).
    Unusable {
        /// Name of the cluster.
        cluster: Arc<str>,
        /// Status of the failing priority.
        reason: Status,
    },
}

impl Policy for ClusterResolver {
    type Config = ClusterResolverConfig;

    fn parse(fields: &ConfigFields<'_>) -> Result<ClusterResolverConfig, ConfigError> {
        let lb_policy = fields.child("xdsLbPolicy")?;
        let mut mechanisms = Vec::new();
        let mut names = BTreeSet::new();
        for mechanism in fields.objects("discoveryMechanisms")? {
            let leaf = parse_leaf(&mechanism, &lb_policy)?;
            if !names.insert(leaf.name.clone()) {
                let problem =
                    format!("{:?} is listed twice; a cluster has one discovery mechanism", leaf.name);
                return Err(mechanism.error("cluster", problem));
            }
            mechanisms.push(DiscoveryMechanism::Leaf(Box::new(leaf)));
        }
        if mechanisms.is_empty() {
            return Err(fields.error("discoveryMechanisms", "is required: a list of at least one"));
        }
        Ok(ClusterResolverConfig { mechanisms })
    }

    /// Writes the first cluster's policy as the common `xdsLbPolicy`. A cluster with another policy carries
    /// its own, an extension of gRPC's config.
    fn to_json(config: &ClusterResolverConfig) -> Value {
        let leaves = config.mechanisms.iter().filter_map(DiscoveryMechanism::leaf);
        let common = leaves.clone().next().map(|leaf| &leaf.lb_policy);
        let mechanisms: Vec<Value> = config.mechanisms.iter().map(|each| each.to_json(common)).collect();
        let fields = [
            ("discoveryMechanisms", Some(mechanisms.into())),
            ("xdsLbPolicy", common.map(|policy| json!([policy.to_json()]))),
        ];
        object(fields).into()
    }

    fn reconcile(&mut self, config: &ClusterResolverConfig, _: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        self.resolve(&config.mechanisms, cx);
        for leaf in config.mechanisms.iter().filter_map(DiscoveryMechanism::leaf) {
            if leaf.transport.is_some() {
                cx.warn_of_ignored_transport(&leaf.name);
            }
        }
        match &self.plan {
            Some(plan) => {
                let scope = cx.scope().clone();
                let scope = if plan.uses_dns { scope } else { scope.without_reresolution() };
                self.child.reconcile_in(scope, &plan.config, &plan.groups, cx)
            }
            None => self.waiting.get_or_build((), |()| LbState::connecting()),
        }
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        let mechanisms: Map<String, Value> =
            self.parts.iter().map(|part| (part.mechanism.cluster().to_string(), part.describe())).collect();
        Description::new().detail("mechanisms", mechanisms).child("priority", self.child.describe(cx))
    }
}

impl PureParent for ClusterResolver {
    fn each_child(&mut self, visit: &mut dyn FnMut(&mut ChildPolicy)) {
        visit(&mut self.child);
    }
}

impl ClusterResolver {
    /// Rebuilds the plan if a mechanism or its endpoints changed. Does nothing while any endpoints are
    /// unknown.
    fn resolve(&mut self, mechanisms: &[DiscoveryMechanism], cx: &mut Cx<'_>) {
        // Every set is read, even after a missing one: each read is a dependency.
        let sets: Vec<_> = mechanisms.iter().map(|mechanism| self.set_of(mechanism, cx)).collect();
        let Some(sets) = sets.into_iter().collect::<Option<Vec<_>>>() else { return };
        let is_same = self.parts.len() == sets.len()
            && self.parts.iter().zip(mechanisms.iter().zip(&sets)).all(|(part, (mechanism, set))| {
                Arc::ptr_eq(&part.set, set) && part.mechanism.is_same(mechanism)
            });
        if is_same {
            return;
        }
        let old = std::mem::take(&mut self.parts).into_iter();
        let mut old: BTreeMap<_, _> = old.map(|part| (part.mechanism.cluster().clone(), part)).collect();
        let each = mechanisms.iter().zip(sets);
        let part = |(mechanism, set): (&DiscoveryMechanism, Arc<EndpointSet>)| {
            let old = old.remove(mechanism.cluster());
            let transport = if cx.has_per_cluster_transport() {
                transport_of(mechanism, &set, old.as_ref())
            } else {
                None
            };
            MechanismState { transport, ..MechanismState::new(mechanism, set, old) }
        };
        self.parts = each.map(part).collect();
        self.plan = Some(PriorityPlan::new(&self.parts, self.plan.take()));
    }

    /// Returns the endpoints of a mechanism; the previous ones if the update has none for it (A74).
    fn set_of(&self, mechanism: &DiscoveryMechanism, cx: &mut Cx<'_>) -> Option<Arc<EndpointSet>> {
        let last = self.parts.iter().find(|part| part.mechanism.cluster() == mechanism.cluster());
        match mechanism {
            DiscoveryMechanism::Leaf(leaf) => {
                // Endpoints from another source must not serve for this one.
                let last = last.filter(|last| last.mechanism.leaf().is_some_and(|l| l.source == leaf.source));
                cx.endpoint_set(&leaf.source).or_else(|| last.map(|last| last.set.clone()))
            }
            DiscoveryMechanism::Unusable { reason, .. } => {
                let last = last.filter(|last| last.mechanism.is_same(mechanism));
                let set = || Arc::new(EndpointSet::unreachable(reason.message()));
                Some(last.map_or_else(set, |last| last.set.clone()))
            }
        }
    }
}

impl ClusterResolverConfig {
    /// Returns the settings for a cluster outside of any aggregate.
    pub(crate) fn of_leaf(leaf: &LeafCluster) -> ClusterResolverConfig {
        ClusterResolverConfig { mechanisms: vec![DiscoveryMechanism::Leaf(Box::new(leaf.clone()))] }
    }

    /// Returns the `priority_experimental` config for a cluster outside of any aggregate.
    pub(crate) fn priorities(leaf: &LeafCluster, set: &EndpointSet) -> LbConfig {
        let mechanism = DiscoveryMechanism::Leaf(Box::new(leaf.clone()));
        PriorityPlan::new(&[MechanismState::new(&mechanism, Arc::new(set.clone()), None)], None).config
    }
}

impl DiscoveryMechanism {
    /// Returns the name of the cluster.
    pub fn cluster(&self) -> &Arc<str> {
        match self {
            DiscoveryMechanism::Leaf(leaf) => &leaf.name,
            DiscoveryMechanism::Unusable { cluster, .. } => cluster,
        }
    }

    /// Returns the leaf cluster, or `None` if it is unusable.
    pub fn leaf(&self) -> Option<&LeafCluster> {
        match self {
            DiscoveryMechanism::Leaf(leaf) => Some(leaf),
            DiscoveryMechanism::Unusable { .. } => None,
        }
    }

    fn is_same(&self, other: &DiscoveryMechanism) -> bool {
        match (self, other) {
            (DiscoveryMechanism::Leaf(a), DiscoveryMechanism::Leaf(b)) => {
                a.name == b.name
                    && a.source == b.source
                    && a.lb_policy.is_same(&b.lb_policy)
                    && a.max_concurrent_requests == b.max_concurrent_requests
                    && a.outlier_detection == b.outlier_detection
                    && a.load_reporting == b.load_reporting
                    && a.transport == b.transport
            }
            (
                DiscoveryMechanism::Unusable { cluster: a, reason: because },
                DiscoveryMechanism::Unusable { cluster: b, reason },
            ) => a == b && because == reason,
            _ => false,
        }
    }

    fn to_json(&self, common: Option<&LbConfig>) -> Value {
        let leaf = match self {
            DiscoveryMechanism::Leaf(leaf) => leaf,
            DiscoveryMechanism::Unusable { cluster, reason } => {
                return json!({ "cluster": cluster, "unusable": reason.message() });
            }
        };
        let (kind, service, hostname) = match &leaf.source {
            EndpointSource::Eds { service_name, .. } => ("EDS", service_name.as_deref(), None),
            EndpointSource::LogicalDns { hostname } => ("LOGICAL_DNS", None, Some(&**hostname)),
        };
        let policy =
            Some(&leaf.lb_policy).filter(|policy| !common.is_some_and(|common| common.is_same(policy)));
        let load = leaf.load_reporting.as_deref();
        let limit = leaf.max_concurrent_requests.filter(|limit| *limit != cluster_impl::DEFAULT_LIMIT);
        let fields = [
            ("cluster", Some(leaf.name.to_string().into())),
            ("type", Some(kind.into())),
            ("edsServiceName", service.map(Value::from)),
            ("dnsHostname", hostname.map(Value::from)),
            ("maxConcurrentRequests", limit.map(Value::from)),
            ("lrsLoadReportingServer", load.map(LoadReporting::server_to_json)),
            ("lrsReportEndpointMetrics", load.and_then(LoadReporting::metrics_to_json)),
            ("outlierDetection", leaf.outlier_detection.as_ref().map(|settings| settings.to_json().into())),
            ("xdsLbPolicy", policy.map(|policy| json!([policy.to_json()]))),
        ];
        object(fields).into()
    }
}

fn parse_leaf(fields: &ConfigFields<'_>, lb_policy: &LbConfig) -> Result<LeafCluster, ConfigError> {
    let text = |name| Ok(fields.str(name)?.filter(|text| !text.is_empty()).map(Arc::<str>::from));
    let required = |name, what| text(name)?.ok_or_else(|| fields.error(name, format!("is required: {what}")));
    let name = required("cluster", "the name of the cluster")?;
    // Each is read for one type of mechanism only.
    fields.allow(&["edsServiceName", "dnsHostname"]);
    let source = match fields.value("type").map(|kind| kind.as_str().ok_or(kind)) {
        None | Some(Ok("EDS")) => {
            EndpointSource::Eds { cluster: name.clone(), service_name: text("edsServiceName")? }
        }
        Some(Ok("LOGICAL_DNS")) => EndpointSource::LogicalDns {
            hostname: required("dnsHostname", "a name and a port, \"example.com:443\"")?,
        },
        Some(Ok(other)) => {
            return Err(fields.error("type", format!("expected EDS or LOGICAL_DNS, found {other:?}")));
        }
        Some(Err(other)) => {
            return Err(fields.error("type", format!("expected EDS or LOGICAL_DNS, found {other}")));
        }
    };
    let outlier_detection = fields.object("outlierDetection")?;
    let lb_policy = match fields.value("xdsLbPolicy") {
        Some(_) => fields.child("xdsLbPolicy")?,
        None => lb_policy.clone(),
    };
    Ok(LeafCluster {
        name,
        source,
        lb_policy,
        max_concurrent_requests: fields.u32("maxConcurrentRequests")?,
        outlier_detection: outlier_detection.as_ref().map(OutlierSettings::parse).transpose()?,
        load_reporting: LoadReporting::parse(fields)?.map(Arc::new),
        transport: None,
    })
}

/// Priorities of one mechanism, with the inputs that they were built from.
#[derive(Debug)]
struct MechanismState {
    mechanism: DiscoveryMechanism,
    set: Arc<EndpointSet>,
    names: PriorityNames<Arc<Locality>>,
    /// Policy config of each priority.
    config: LbConfig,
    /// Transport parameters of the cluster, if they differ between clusters.
    transport: Option<Arc<ClusterTransport>>,
    priorities: Vec<(Arc<str>, Endpoints)>,
}

impl MechanismState {
    fn new(
        mechanism: &DiscoveryMechanism,
        set: Arc<EndpointSet>,
        old: Option<MechanismState>,
    ) -> MechanismState {
        let config = match &old {
            // Policies compare configs by identity, so an equal config is not built again.
            Some(old) if old.mechanism.is_same(mechanism) && old.set.drops == set.drops => old.config.clone(),
            _ => policy_of(mechanism, &set.drops),
        };
        let (mut names, last) = match old {
            Some(old) => (old.names, old.priorities),
            None => (PriorityNames::new(format!("{}/priority-", mechanism.cluster())), Vec::new()),
        };
        // A37: an empty list of priorities counts as one priority without endpoints.
        let nothing = [Endpoints::none()];
        let priorities = if set.priorities.is_empty() { &nothing[..] } else { &set.priorities[..] };
        let mut last: BTreeMap<_, _> = last.into_iter().collect();
        let assigned = names.assign(priorities.iter().map(localities));
        let priorities = assigned.into_iter().zip(priorities).map(|(name, endpoints)| {
            // Reusing the equal list keeps its identity, so that the child below does not run.
            let same =
                last.remove(&name).filter(|last| last.is_same(endpoints) || last.iter().eq(endpoints.iter()));
            (name, same.unwrap_or_else(|| endpoints.clone()))
        });
        let priorities = priorities.collect();
        MechanismState { mechanism: mechanism.clone(), config, transport: None, priorities, names, set }
    }

    /// Returns true if the endpoints come from DNS. Re-resolution applies to DNS only; a control plane pushes
    /// its endpoints (A37).
    fn uses_dns(&self) -> bool {
        matches!(self.mechanism.leaf().map(|leaf| &leaf.source), Some(EndpointSource::LogicalDns { .. }))
    }

    /// Returns the children of `priority_experimental`. `beside_dns` is true if any mechanism uses DNS. Only
    /// then must the re-resolution requests of this mechanism be ignored one by one.
    fn children(&self, beside_dns: bool) -> impl Iterator<Item = (&Arc<str>, PriorityChild)> {
        let child = PriorityChild {
            config: self.config.clone(),
            ignore_reresolution_requests: beside_dns && !self.uses_dns(),
            note: self.set.note.clone(),
            backend_service: Some(self.mechanism.cluster().clone()),
            transport: self.transport.clone(),
        };
        self.priorities.iter().map(move |(name, _)| (name, child.clone()))
    }

    fn describe(&self) -> Value {
        let names: Vec<&str> = self.priorities.iter().map(|(name, _)| &**name).collect();
        let source = self.mechanism.leaf().map(|leaf| leaf.source.to_string());
        json!({ "source": source, "priorities": names, "note": self.set.note })
    }
}

/// Returns the transport parameters of a mechanism; the previous ones if they are equal.
fn transport_of(
    mechanism: &DiscoveryMechanism,
    set: &Arc<EndpointSet>,
    old: Option<&MechanismState>,
) -> Option<Arc<ClusterTransport>> {
    let transport = mechanism.leaf()?.transport.as_ref()?;
    let is_same = |last: &&Arc<ClusterTransport>| {
        let same_set =
            || old.is_some_and(|old| Arc::ptr_eq(&old.set, set) && old.mechanism.is_same(mechanism));
        last.is_fixed(transport) || same_set()
    };
    if let Some(last) = old.and_then(|old| old.transport.as_ref()).filter(is_same) {
        return Some(last.clone());
    }
    Some(Arc::new(ClusterTransport::new(transport.clone(), set.priorities.iter().flat_map(Endpoints::iter))))
}

/// Returns the policy config of every priority of a mechanism.
fn policy_of(mechanism: &DiscoveryMechanism, drops: &[DropCategory]) -> LbConfig {
    let DiscoveryMechanism::Leaf(leaf) = mechanism else {
        // The set has no endpoints, so pick_first fails calls with the note that carries the reason.
        return LbConfig::new::<PickFirst>("pick_first", PickFirstConfig::default());
    };
    let eds_service_name = match &leaf.source {
        EndpointSource::Eds { service_name, .. } => service_name.clone(),
        EndpointSource::LogicalDns { .. } => None,
    };
    let settings = ClusterImplConfig {
        cluster: leaf.name.clone(),
        eds_service_name: eds_service_name.unwrap_or_default(),
        max_concurrent_requests: leaf.max_concurrent_requests.unwrap_or(cluster_impl::DEFAULT_LIMIT),
        drop_categories: drops.to_vec(),
        load_reporting: leaf.load_reporting.clone(),
        child_policy: leaf.lb_policy.clone(),
    };
    let child_policy = LbConfig::new::<ClusterImpl>(cluster_impl::NAME, settings);
    match leaf.outlier_detection.clone() {
        None => child_policy,
        Some(settings) => {
            let settings = OutlierDetectionConfig { settings, child_policy };
            LbConfig::new::<OutlierDetection>(outlier_detection::NAME, settings)
        }
    }
}

/// Returns the distinct localities of a priority, in the order of its endpoints.
fn localities(endpoints: &Endpoints) -> Vec<Arc<Locality>> {
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    // Adjacent endpoints of one locality share its `Arc`; comparing pointers skips most lookups.
    let mut last = None;
    for locality in endpoints.iter().map(Endpoint::locality) {
        let at = locality.map(Arc::as_ptr);
        if last.replace(at) != Some(at) {
            let locality = locality.cloned().unwrap_or_default();
            if seen.insert(locality.clone()) {
                all.push(locality);
            }
        }
    }
    all
}

/// Config and endpoints for `priority_experimental`.
#[derive(Debug)]
struct PriorityPlan {
    config: LbConfig,
    groups: Endpoints,
    /// True if any endpoints come from DNS. If false, re-resolution is disabled for the whole subtree.
    uses_dns: bool,
}

impl PriorityPlan {
    fn new(parts: &[MechanismState], old: Option<PriorityPlan>) -> PriorityPlan {
        let uses_dns = parts.iter().any(MechanismState::uses_dns);
        let children = || parts.iter().flat_map(|part| part.children(uses_dns));
        let settings = PriorityConfig {
            children: children().map(|(name, child)| (name.clone(), child)).collect(),
            priorities: children().map(|(name, _)| name.clone()).collect(),
        };
        let groups = || parts.iter().flat_map(|part| &part.priorities);
        let old_groups = old.as_ref().map(|old| old.groups.as_groups()).unwrap_or_default();
        // Groups and config keep their allocation if equal, so that unchanged priorities do not run.
        let same_groups = old_groups.len() == groups().count()
            && old_groups
                .iter()
                .zip(groups())
                .all(|(old, (name, endpoints))| old.name == *name && old.endpoints.is_same(endpoints));
        let groups = match &old {
            Some(old) if same_groups => old.groups.clone(),
            _ => Endpoints::groups(groups().map(|(name, endpoints)| (name.clone(), endpoints.clone()))),
        };
        let last = old.map(|old| old.config);
        let config = match last.filter(|last| last.settings().is_some_and(|last| are_same(last, &settings))) {
            Some(last) => last,
            None => LbConfig::new::<Priority>(priority::NAME, settings),
        };
        PriorityPlan { config, groups, uses_dns }
    }
}

fn are_same(a: &PriorityConfig, b: &PriorityConfig) -> bool {
    let same_child = |(a, b): (&PriorityChild, &PriorityChild)| {
        a.config.is_same(&b.config)
            && a.note == b.note
            && a.backend_service == b.backend_service
            && a.transport.as_ref().map(Arc::as_ptr) == b.transport.as_ref().map(Arc::as_ptr)
            && a.ignore_reresolution_requests == b.ignore_reresolution_requests
    };
    // Every child has a priority, so equal priorities imply children with equal names.
    a.priorities == b.priorities && a.children.values().zip(b.children.values()).all(same_child)
}
