//! Discovered clusters, as input of the policies.
//!
//! A driver passes one [`ClusterMap`] with each [`LbUpdate`](crate::LbUpdate). `cds_experimental` and
//! `xds_cluster_resolver_experimental` look up the clusters of their configs in it. A map is replaced, never modified, and parts that
//! did not change keep their allocation: identity is the change signal.

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

/// Clusters and endpoint sets of one update.
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

    /// Returns the locality of the endpoint at this address, if the cluster has one with a locality.
    pub(crate) fn locality(&self, cluster: &Arc<str>, address: &Address) -> Option<&Arc<Locality>> {
        let Cluster::Leaf(leaf) = &**self.cluster(cluster)?.as_ref().ok()? else { return None };
        let mut endpoints = self.endpoint_set(&leaf.source)?.priorities.iter().flat_map(Endpoints::iter);
        endpoints.find(|endpoint| endpoint.addresses().contains(address))?.locality()
    }
}

/// Returns true if both are the same allocation or equal errors. Clusters are replaced, never modified.
pub(crate) fn is_same_cluster(a: &Result<Arc<Cluster>, Status>, b: &Result<Arc<Cluster>, Status>) -> bool {
    match (a, b) {
        (Ok(a), Ok(b)) => Arc::ptr_eq(a, b),
        (Err(a), Err(b)) => a == b,
        _ => false,
    }
}

/// Cluster of an update.
#[derive(Clone, Debug)]
pub enum Cluster {
    /// Leaf cluster with endpoints of its own.
    Leaf(LeafCluster),
    /// Aggregate of other clusters (A37).
    Aggregate {
        /// Names of the leaf clusters, highest priority first, each once (A37).
        leaves: Vec<Arc<str>>,
    },
}

/// Cluster with endpoints of its own.
#[derive(Clone, Debug)]
pub struct LeafCluster {
    /// Name of the cluster.
    pub name: Arc<str>,
    /// Source of its endpoints.
    pub source: EndpointSource,
    /// Policy that picks localities and endpoints.
    pub lb_policy: LbConfig,
    /// Maximum number of calls in flight; `None` for the default (A32).
    pub max_concurrent_requests: Option<u32>,
    /// Outlier detection settings; `None` disables it (A50).
    pub outlier_detection: Option<OutlierSettings>,
    /// Server for its load reports; `None` disables them.
    pub load_reporting: Option<Arc<LoadReporting>>,
    /// Transport parameters; `None` for those of the channel. Not part of the JSON form.
    pub transport: Option<TransportParams>,
}

/// Source of the endpoints of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndpointSource {
    /// EDS resource of a control plane.
    Eds {
        /// Name of the cluster, which is also the resource name unless `eds_service_name` is set.
        cluster: Arc<str>,
        /// Name of the EDS resource.
        service_name: Option<Arc<str>>,
    },
    /// DNS name. All of its addresses form one endpoint.
    LogicalDns {
        /// Host name and port, as in `example.com:443`.
        hostname: Arc<str>,
    },
}

/// Endpoints of a cluster.
#[derive(Clone, Debug, Default)]
pub struct EndpointSet {
    /// Priorities, highest first, each a plain list of endpoints with locality and weights. Empty if there are no
    /// endpoints.
    pub priorities: Vec<Endpoints>,
    /// Drop categories, tried in order.
    pub drops: Vec<DropCategory>,
    /// Resolution note for error messages: the reason for missing endpoints, or an ambient error of the source.
    pub note: Option<Arc<str>>,
}

/// Load reporting settings of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LoadReporting {
    /// URI of the LRS server.
    pub server: Arc<str>,
    /// Metrics of per-call load reports to include.
    pub metrics: BackendMetrics,
}

/// Metrics of per-call load reports that are included in load reports to the control plane (A64, A85).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(clippy::struct_excessive_bools, reason = "independent metrics, on or off")]
pub struct BackendMetrics {
    /// True to include `cpu_utilization`.
    pub cpu_utilization: bool,
    /// True to include `mem_utilization`.
    pub mem_utilization: bool,
    /// True to include `application_utilization`.
    pub application_utilization: bool,
    /// True to include every key of `named_metrics`.
    pub all_named: bool,
    /// Keys of `named_metrics` to include.
    pub named: BTreeSet<String>,
}

impl Cluster {
    /// Returns the source of its endpoints; `None` for an aggregate cluster.
    pub fn source(&self) -> Option<&EndpointSource> {
        match self {
            Cluster::Leaf(leaf) => Some(&leaf.source),
            Cluster::Aggregate { .. } => None,
        }
    }
}

impl BackendMetrics {
    /// Adds a metric by its name in A85: `cpu_utilization`, `mem_utilization`, `application_utilization`,
    /// `named_metrics.KEY` or `named_metrics.*`. Returns false for other names, which callers ignore.
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

    /// Returns the metrics in the form that [`BackendMetrics::add`] accepts.
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
    /// Returns the name of the EDS resource or the host.
    pub fn name(&self) -> &Arc<str> {
        match self {
            EndpointSource::Eds { cluster, service_name } => service_name.as_ref().unwrap_or(cluster),
            EndpointSource::LogicalDns { hostname } => hostname,
        }
    }
}

impl EndpointSet {
    /// Creates one priority without endpoints, for a source without a valid resource (A37). Error messages contain the note.
    pub fn unreachable(note: impl Into<Arc<str>>) -> EndpointSet {
        EndpointSet { priorities: vec![Endpoints::none()], drops: Vec::new(), note: Some(note.into()) }
    }
}

impl LoadReporting {
    /// Parses the `lrsLoadReportingServer` of a policy's config, in the form of the bootstrap or as a plain URI, and the metrics
    /// to include, as in A85.
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
                fields.warn(METRICS, &format!("{name:?} is an unknown metric; it is ignored"));
            }
        }
        Ok(Some(LoadReporting { server, metrics }))
    }

    /// Returns the server in the form that [`LoadReporting::parse`] accepts.
    pub(crate) fn server_to_json(&self) -> Value {
        json!({ "server_uri": self.server })
    }

    /// Returns the metrics in the form that [`LoadReporting::parse`] accepts, if there are any.
    pub(crate) fn metrics_to_json(&self) -> Option<Value> {
        let names: Vec<String> = self.metrics.names().collect();
        (!names.is_empty()).then(|| names.into())
    }
}

/// Configs of the policies of a cluster, each derived from the previous one. They are built by the same code that the
/// policies use.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LbConfigStages {
    /// Policy list of the cluster, converted from the control plane's.
    pub lb_policy_config: Value,
    /// Settings of `xds_cluster_resolver_experimental`, as built by `cds_experimental`.
    pub cluster_resolver: Value,
    /// Settings of `priority_experimental`, as built by the cluster resolver.
    pub priority: Value,
    /// Settings of `weighted_target_experimental`, as built by `xds_wrr_locality_experimental` for the first priority; `None` if
    /// the cluster uses another policy.
    pub weighted_target: Option<Value>,
}

/// Returns the configs for a cluster with these endpoints, from the control plane's policy to the localities (A52).
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
