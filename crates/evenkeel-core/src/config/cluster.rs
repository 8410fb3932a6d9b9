//! Clusters as policies see them: what discovery found, in the core's own words.
//!
//! A driver that discovers clusters gives one [`ClusterMap`] value with each [`LbUpdate`](crate::LbUpdate); `cds_experimental`
//! and `xds_cluster_resolver_experimental` look up in it what their configs name. The value is replaced, never changed,
//! and parts that did not change keep their allocation: identity is the change signal here as everywhere.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::collections::persistent_map::PersistentMap;
use crate::config::{ConfigError, ConfigFields, LbConfig};
use crate::policy::{
    ClusterResolver, ClusterResolverConfig, DropCategory, OutlierSettings, Policy, WrrLocalityConfig,
};
use crate::{Address, Endpoints, Locality, Status, TransportParams};

const SERVER: &str = "lrsLoadReportingServer";
const METRICS: &str = "lrsReportEndpointMetrics";

/// Everything that is known about clusters at one time.
///
/// A clone is cheap. A driver clones the map, replaces the parts that changed and gives the clone to
/// [`LbUpdate::with_clusters`](crate::LbUpdate::with_clusters): only the policies that used a replaced part run again.
#[derive(Clone, Debug, Default)]
pub struct ClusterMap {
    clusters: PersistentMap<Arc<str>, Result<Arc<Cluster>, Status>>,
    endpoint_sets: PersistentMap<EndpointSource, Arc<EndpointSet>>,
}

impl ClusterMap {
    /// Returns the cluster of this name, or the reason why it cannot be used. Returns `None` if nothing is known about it.
    pub fn cluster(&self, name: &str) -> Option<&Result<Arc<Cluster>, Status>> {
        self.clusters.get(name)
    }

    /// Returns all clusters by name, in the order in which they were inserted.
    pub fn clusters(&self) -> impl Iterator<Item = (&Arc<str>, &Result<Arc<Cluster>, Status>)> {
        self.clusters.iter()
    }

    /// Inserts or replaces a cluster, or the reason why it cannot be used. The message need not name the cluster.
    pub fn insert_cluster(&mut self, name: impl Into<Arc<str>>, cluster: Result<Arc<Cluster>, Status>) {
        self.clusters.insert(name.into(), cluster);
    }

    /// Removes a cluster, if it is known.
    pub fn remove_cluster(&mut self, name: &str) {
        self.clusters.remove(name);
    }

    /// Returns the endpoints from this source, if they are known.
    pub fn endpoint_set(&self, source: &EndpointSource) -> Option<&Arc<EndpointSet>> {
        self.endpoint_sets.get(source)
    }

    /// Returns all endpoints by source, in the order in which they were inserted.
    pub fn endpoint_sets(&self) -> impl Iterator<Item = (&EndpointSource, &Arc<EndpointSet>)> {
        self.endpoint_sets.iter()
    }

    /// Inserts or replaces the endpoints from a source.
    pub fn insert_endpoint_set(&mut self, source: EndpointSource, set: Arc<EndpointSet>) {
        self.endpoint_sets.insert(source, set);
    }

    /// Returns true if both hold the same clusters and endpoints, by identity, and equal failures.
    pub fn is_same(&self, other: &ClusterMap) -> bool {
        let (clusters, endpoints) = self.diff(other);
        clusters.is_empty() && endpoints.is_empty()
    }

    /// Returns the names of the clusters and the sources of the endpoints that differ.
    pub(crate) fn diff<'c>(&'c self, other: &'c ClusterMap) -> (Vec<&'c Arc<str>>, Vec<&'c EndpointSource>) {
        let clusters = self.clusters.diff(&other.clusters, is_same_cluster);
        (clusters, self.endpoint_sets.diff(&other.endpoint_sets, Arc::ptr_eq))
    }

    /// The locality of the endpoint at this address, if the cluster has one with a locality.
    pub(crate) fn locality(&self, cluster: &Arc<str>, address: &Address) -> Option<&Arc<Locality>> {
        let Cluster::Leaf(leaf) = &**self.cluster(cluster)?.as_ref().ok()? else { return None };
        let mut endpoints = self.endpoint_set(&leaf.source)?.priorities.iter().flat_map(Endpoints::iter);
        endpoints.find(|endpoint| endpoint.addresses().contains(address))?.locality()
    }
}

/// Whether the same is said of a cluster: clusters are replaced, never changed.
pub(crate) fn is_same_cluster(a: &Result<Arc<Cluster>, Status>, b: &Result<Arc<Cluster>, Status>) -> bool {
    match (a, b) {
        (Ok(a), Ok(b)) => Arc::ptr_eq(a, b),
        (Err(a), Err(b)) => a == b,
        _ => false,
    }
}

/// A cluster.
#[derive(Clone, Debug)]
pub enum Cluster {
    /// One with endpoints of its own.
    Leaf(LeafCluster),
    /// One made of others.
    Aggregate {
        /// The names of its leaf clusters, highest priority first, each once (A37).
        leaves: Vec<Arc<str>>,
    },
}

/// A cluster with endpoints of its own.
#[derive(Clone, Debug)]
pub struct LeafCluster {
    /// Its name.
    pub name: Arc<str>,
    /// Where its endpoints come from.
    pub source: EndpointSource,
    /// The policy that picks localities and endpoints.
    pub lb_policy: LbConfig,
    /// How many calls may be in flight to it, if limited otherwise than by default (A32).
    pub max_concurrent_requests: Option<u32>,
    /// When endpoints are ejected, if ever (A50).
    pub outlier_detection: Option<OutlierSettings>,
    /// Where its load is reported to, if anywhere.
    pub load_reporting: Option<Arc<LoadReporting>>,
    /// By what means its connections are made, if it has its own. Not part of the JSON form.
    pub transport: Option<TransportParams>,
}

/// Where the endpoints of a cluster come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndpointSource {
    /// From a control plane.
    Eds {
        /// The name of the cluster, under which they are asked for unless there is a name of their own.
        cluster: Arc<str>,
        /// The name under which they are asked for.
        service_name: Option<Arc<str>>,
    },
    /// From DNS: all addresses of the name are one endpoint.
    LogicalDns {
        /// The name and the port, as in `example.com:443`.
        hostname: Arc<str>,
    },
}

/// The endpoints of a cluster.
#[derive(Clone, Debug, Default)]
pub struct EndpointSet {
    /// The priorities, highest first, each a plain list of endpoints that carry locality and weights. Empty means
    /// that there is nothing to call.
    pub priorities: Vec<Endpoints>,
    /// Which calls to drop, tried in order.
    pub drops: Vec<DropCategory>,
    /// What failures should say: why there are no endpoints, or what is wrong with the source although there are some.
    pub note: Option<Arc<str>>,
}

/// Where the load of a cluster is reported to, and what of the backends' own metrics.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LoadReporting {
    /// The URI of the server.
    pub server: Arc<str>,
    /// Which metrics of per-call load reports to pass on.
    pub metrics: BackendMetrics,
}

/// Which metrics of per-call load reports go into load reports to the control plane (A64, A85).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(clippy::struct_excessive_bools, reason = "each is a metric of its own, on or off")]
pub struct BackendMetrics {
    /// `cpu_utilization`.
    pub cpu_utilization: bool,
    /// `mem_utilization`.
    pub mem_utilization: bool,
    /// `application_utilization`.
    pub application_utilization: bool,
    /// Every key of `named_metrics`.
    pub all_named: bool,
    /// These keys of `named_metrics`.
    pub named: BTreeSet<String>,
}

impl Cluster {
    /// Where its endpoints come from, if it has endpoints of its own.
    pub fn source(&self) -> Option<&EndpointSource> {
        match self {
            Cluster::Leaf(leaf) => Some(&leaf.source),
            Cluster::Aggregate { .. } => None,
        }
    }
}

impl BackendMetrics {
    /// Adds a metric as A85 spells it: `cpu_utilization`, `mem_utilization`, `application_utilization`,
    /// `named_metrics.KEY`, `named_metrics.*`. Answers whether it is one of these; others are to be ignored.
    pub fn add(&mut self, name: &str) -> bool {
        match name {
            "cpu_utilization" => self.cpu_utilization = true,
            "mem_utilization" => self.mem_utilization = true,
            "application_utilization" => self.application_utilization = true,
            "named_metrics.*" => self.all_named = true,
            _ => match name.strip_prefix("named_metrics.") {
                Some(key) => drop(self.named.insert(key.to_owned())),
                None => return false,
            },
        }
        true
    }

    /// The metrics as [`BackendMetrics::add`] takes them.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let one = |is_on: bool, name: &str| is_on.then(|| name.to_owned());
        let fixed = [
            one(self.cpu_utilization, "cpu_utilization"),
            one(self.mem_utilization, "mem_utilization"),
            one(self.application_utilization, "application_utilization"),
            one(self.all_named, "named_metrics.*"),
        ];
        fixed.into_iter().flatten().chain(self.named.iter().map(|key| format!("named_metrics.{key}")))
    }
}

impl EndpointSource {
    /// The name that endpoints are asked for under: an EDS resource or a host.
    pub fn name(&self) -> &Arc<str> {
        match self {
            EndpointSource::Eds { cluster, service_name } => service_name.as_ref().unwrap_or(cluster),
            EndpointSource::LogicalDns { hostname } => hostname,
        }
    }
}

impl EndpointSet {
    /// One priority without endpoints: what a source that cannot be had stands for (A37). Failures carry the note.
    pub fn unreachable(note: impl Into<Arc<str>>) -> EndpointSet {
        EndpointSet { priorities: vec![Endpoints::none()], drops: Vec::new(), note: Some(note.into()) }
    }
}

impl LoadReporting {
    /// The `lrsLoadReportingServer` of a policy's config, as the bootstrap describes a server or its URI alone, and the
    /// metrics to pass on, as A85 spells them.
    pub(crate) fn parse(fields: &ConfigFields<'_>) -> Result<Option<LoadReporting>, ConfigError> {
        let server: Arc<str> = match fields.value(SERVER) {
            None => return Ok(None),
            Some(Value::String(uri)) => uri.as_str().into(),
            Some(_) => match fields.object(SERVER)? {
                Some(server) => server.str("serverUri")?.unwrap_or_default().into(),
                None => Arc::default(),
            },
        };
        if server.is_empty() {
            return Err(fields.error(SERVER, "expected a server URI, or an object with one as serverUri"));
        }
        let mut metrics = BackendMetrics::default();
        for name in fields.strings(METRICS)? {
            if !metrics.add(&name) {
                fields.warn(METRICS, &format!("{name:?} is no metric that is known; it is ignored"));
            }
        }
        Ok(Some(LoadReporting { server, metrics }))
    }

    /// The server as [`LoadReporting::parse`] reads it.
    pub(crate) fn server_to_json(&self) -> Value {
        json!({ "server_uri": self.server })
    }

    /// The metrics as [`LoadReporting::parse`] reads them, if there are any.
    pub(crate) fn metrics_to_json(&self) -> Option<Value> {
        let names: Vec<String> = self.metrics.names().collect();
        (!names.is_empty()).then(|| names.into())
    }
}

/// The configs that come one from the other for a cluster, each as the settings of its policy. They are made by what the
/// policies themselves run with.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LbConfigStages {
    /// The list of policies that the cluster asks for: what the control plane's was converted to.
    pub lb_policy_config: Value,
    /// `xds_cluster_resolver_experimental`, as `cds_experimental` configures it.
    pub cluster_resolver: Value,
    /// `priority_experimental`, as the cluster resolver configures it.
    pub priority: Value,
    /// `weighted_target_experimental`, as `xds_wrr_locality_experimental` configures it in the first priority; `None` if
    /// the cluster asks for another policy.
    pub weighted_target: Option<Value>,
}

/// The configs for a cluster with these endpoints, from what the control plane asked for down to the localities (A52).
pub fn stages(leaf: &LeafCluster, set: &EndpointSet) -> LbConfigStages {
    let first = set.priorities.first().cloned().unwrap_or_else(Endpoints::none);
    let localities = leaf.lb_policy.settings::<WrrLocalityConfig>().map(|policy| policy.targets(&first));
    LbConfigStages {
        lb_policy_config: json!([leaf.lb_policy.to_json()]),
        cluster_resolver: ClusterResolver::to_json(&ClusterResolverConfig::of_leaf(leaf)),
        priority: ClusterResolverConfig::priorities(leaf, set).settings_to_json(),
        weighted_target: localities.map(|targets| targets.settings_to_json()),
    }
}

impl fmt::Display for EndpointSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndpointSource::Eds { .. } => write!(f, "EDS resource {:?}", self.name()),
            EndpointSource::LogicalDns { hostname } => write!(f, "DNS name {hostname:?}"),
        }
    }
}
