//! Clusters and their endpoints, as builders.
//!
//! They store values without checking them; [`Mesh::check`](crate::Mesh::check) does.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::{ClusterPolicy, TrafficFraction};

/// Cluster of a mesh: endpoints, a DNS name, or an aggregate of other clusters.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    pub(super) members: MeshClusterMembers,
    pub(super) policy: Option<ClusterPolicy>,
    pub(super) localities: BTreeMap<Locality, LocalitySettings>,
    pub(super) drops: Vec<(String, TrafficFraction)>,
    pub(super) max_requests: Option<u32>,
    pub(super) outlier_detection: Option<OutlierDetection>,
    pub(super) lrs: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum MeshClusterMembers {
    Endpoints(Vec<Endpoint>),
    Dns { host: String, port: u16 },
    Clusters(Vec<String>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LocalitySettings {
    pub(super) weight: Option<u32>,
    pub(super) priority: Option<u32>,
}

impl Cluster {
    /// Creates a cluster without endpoints.
    pub fn new() -> Cluster {
        Cluster::of(MeshClusterMembers::Endpoints(Vec::new()))
    }

    /// Creates a cluster that resolves its addresses by DNS (LOGICAL_DNS).
    pub fn dns(host: &str, port: u16) -> Cluster {
        Cluster::of(MeshClusterMembers::Dns { host: host.to_owned(), port })
    }

    /// Creates an aggregate cluster (A37). The clusters are used in this order: each when all before it have failed.
    pub fn aggregate<'a>(clusters: impl IntoIterator<Item = &'a str>) -> Cluster {
        Cluster::of(MeshClusterMembers::Clusters(clusters.into_iter().map(str::to_owned).collect()))
    }

    pub(super) fn of(members: MeshClusterMembers) -> Cluster {
        Cluster {
            members,
            policy: None,
            localities: BTreeMap::new(),
            drops: Vec::new(),
            max_requests: None,
            outlier_detection: None,
            lrs: false,
        }
    }

    /// Adds an endpoint. It replaces a DNS name or a list of clusters.
    #[must_use]
    pub fn endpoint(mut self, endpoint: Endpoint) -> Cluster {
        if let MeshClusterMembers::Endpoints(endpoints) = &mut self.members {
            endpoints.push(endpoint);
        } else {
            self.members = MeshClusterMembers::Endpoints(vec![endpoint]);
        }
        self
    }

    /// Adds several endpoints; see [`Cluster::endpoint`].
    #[must_use]
    pub fn endpoints(self, endpoints: impl IntoIterator<Item = Endpoint>) -> Cluster {
        endpoints.into_iter().fold(self, Cluster::endpoint)
    }

    /// Sets the load balancing policy.
    #[must_use]
    pub fn policy(mut self, policy: impl Into<ClusterPolicy>) -> Cluster {
        self.policy = Some(policy.into());
        self
    }

    /// Sets the weight of a locality among the localities of its priority.
    #[must_use]
    pub fn locality_weight(mut self, locality: Locality, weight: u32) -> Cluster {
        self.localities.entry(locality).or_default().weight = Some(weight);
        self
    }

    /// Sets the priority of a locality's endpoints that have no priority of their own.
    #[must_use]
    pub fn locality_priority(mut self, locality: Locality, priority: u32) -> Cluster {
        self.localities.entry(locality).or_default().priority = Some(priority);
        self
    }

    /// Drops a fraction of the calls. Load reports contain the category.
    #[must_use]
    pub fn drop_calls(mut self, category: &str, share: TrafficFraction) -> Cluster {
        self.drops.push((category.to_owned(), share));
        self
    }

    /// Sets the maximum number of concurrent requests per client (circuit breaking). Further calls fail.
    #[must_use]
    pub fn max_requests(mut self, max: u32) -> Cluster {
        self.max_requests = Some(max);
        self
    }

    /// Enables outlier detection (A50).
    #[must_use]
    pub fn outlier_detection(mut self, settings: OutlierDetection) -> Cluster {
        self.outlier_detection = Some(settings);
        self
    }

    /// Enables load reports of clients to this control plane.
    #[must_use]
    pub fn lrs(mut self) -> Cluster {
        self.lrs = true;
        self
    }

    /// Returns the priority of an endpoint: its own, else that of its locality, else 0.
    pub(super) fn priority_of(&self, endpoint: &Endpoint) -> u32 {
        let of_locality = || self.localities.get(&endpoint.locality)?.priority;
        endpoint.priority.or_else(of_locality).unwrap_or(0)
    }
}

impl Default for Cluster {
    fn default() -> Cluster {
        Cluster::new()
    }
}

/// Host name of an endpoint, with its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EndpointHost {
    pub(super) name: String,
    pub(super) port: u16,
}

/// Server of a cluster, with one or more addresses, or a host name.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    /// Empty if `host` is set.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) host: Option<EndpointHost>,
    pub(super) name: Option<String>,
    pub(super) weight: Option<u32>,
    pub(super) locality: Locality,
    pub(super) priority: Option<u32>,
    pub(super) health: EndpointHealth,
    pub(super) hash_key: Option<String>,
}

impl Endpoint {
    /// Creates an endpoint with this address.
    pub fn at(address: SocketAddr) -> Endpoint {
        Endpoint::at_any([address])
    }

    /// Creates an endpoint with several addresses, in order of preference (A61).
    pub fn at_any(addresses: impl IntoIterator<Item = SocketAddr>) -> Endpoint {
        Endpoint {
            addresses: addresses.into_iter().collect(),
            host: None,
            name: None,
            weight: None,
            locality: Locality::default(),
            priority: None,
            health: EndpointHealth::default(),
            hash_key: None,
        }
    }

    /// Creates an endpoint with a host name, which stands for all of its addresses.
    ///
    /// xDS has no names here, so this endpoint is served once the name is resolved: by
    /// [`SnapshotCache::watch_file`](crate::SnapshotCache::watch_file), or by
    /// [`Mesh::resolve_hosts`](crate::Mesh::resolve_hosts).
    pub fn at_host(host: &str, port: u16) -> Endpoint {
        let host = EndpointHost { name: host.to_owned(), port };
        Endpoint { host: Some(host), ..Endpoint::at_any([]) }
    }

    /// Sets the host name, for display and for authority rewriting (A81).
    #[must_use]
    pub fn name(mut self, name: &str) -> Endpoint {
        self.name = Some(name.to_owned());
        self
    }

    /// Sets the weight within the locality; 1 unless set.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Endpoint {
        self.weight = Some(weight);
        self
    }

    /// Sets the locality; the empty one unless set.
    #[must_use]
    pub fn locality(mut self, locality: Locality) -> Endpoint {
        self.locality = locality;
        self
    }

    /// Sets the priority; 0 is the highest.
    #[must_use]
    pub fn priority(mut self, priority: u32) -> Endpoint {
        self.priority = Some(priority);
        self
    }

    /// Sets the health status; unknown unless set.
    #[must_use]
    pub fn health(mut self, health: EndpointHealth) -> Endpoint {
        self.health = health;
        self
    }

    /// Sets the hash key that replaces the address in ring_hash (A76).
    #[must_use]
    pub fn hash_key(mut self, key: &str) -> Endpoint {
        self.hash_key = Some(key.to_owned());
        self
    }
}

/// Health status of an endpoint. Clients send calls only to unknown and healthy endpoints (A27).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum EndpointHealth {
    #[default]
    Unknown,
    Healthy,
    Unhealthy,
    Draining,
    Timeout,
    Degraded,
}

impl EndpointHealth {
    pub(super) const ALL: [(&'static str, EndpointHealth); 6] = [
        ("unknown", EndpointHealth::Unknown),
        ("healthy", EndpointHealth::Healthy),
        ("unhealthy", EndpointHealth::Unhealthy),
        ("draining", EndpointHealth::Draining),
        ("timeout", EndpointHealth::Timeout),
        ("degraded", EndpointHealth::Degraded),
    ];

    pub(super) fn is_usable(self) -> bool {
        matches!(self, EndpointHealth::Unknown | EndpointHealth::Healthy)
    }
}

/// Locality of endpoints. Its text is `zone`, `region/zone` or `region/zone/sub_zone`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Locality {
    /// Region, such as `eu-west`.
    pub region: String,
    /// Zone within the region, such as `eu-west-1a`.
    pub zone: String,
    /// Part of the zone, such as a rack.
    pub sub_zone: String,
}

impl Locality {
    /// Creates a locality with a zone only.
    pub fn zone(zone: &str) -> Locality {
        Locality { zone: zone.to_owned(), ..Locality::default() }
    }

    pub(super) fn parse(text: &str) -> Option<Locality> {
        let parts: Vec<_> = text.split('/').map(str::to_owned).collect();
        if parts.iter().all(String::is_empty) {
            return None;
        }
        match <[String; 3]>::try_from(parts) {
            Ok([region, zone, sub_zone]) => Some(Locality { region, zone, sub_zone }),
            Err(parts) => match <[String; 2]>::try_from(parts) {
                Ok([region, zone]) => Some(Locality { region, zone, sub_zone: String::new() }),
                Err(parts) => match <[String; 1]>::try_from(parts) {
                    Ok([zone]) => Some(Locality { zone, ..Locality::default() }),
                    Err(_) => None,
                },
            },
        }
    }
}

impl std::fmt::Display for Locality {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.region.is_empty(), self.sub_zone.is_empty()) {
            (true, true) => f.write_str(&self.zone),
            (false, true) => write!(f, "{}/{}", self.region, self.zone),
            (_, false) => write!(f, "{}/{}/{}", self.region, self.zone, self.sub_zone),
        }
    }
}

/// Settings of outlier detection (A50). Unset values have Envoy's defaults. If neither kind of ejection is set,
/// ejection by success rate is enabled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutlierDetection {
    /// Interval between evaluations; 10 s unless set.
    pub interval: Option<Duration>,
    /// Ejection time of an endpoint, multiplied by the number of its ejections; 30 s unless set.
    pub base_ejection_time: Option<Duration>,
    /// Maximum ejection time of an endpoint; 300 s unless set.
    pub max_ejection_time: Option<Duration>,
    /// Maximum percentage of endpoints that are ejected at a time; 10 unless set.
    pub max_ejection_percent: Option<u32>,
    /// Ejection by success rate.
    pub success_rate: Option<SuccessRate>,
    /// Ejection by failure percentage.
    pub failure_percentage: Option<FailurePercentage>,
}

/// Ejects endpoints with a success rate far below that of the others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SuccessRate {
    /// Distance below the mean, in thousandths of a standard deviation; 1900 unless set.
    pub stdev_factor: Option<u32>,
    /// Probability of an ejection, in percent; 100 unless set.
    pub enforcing_percent: Option<u32>,
    /// Minimum number of endpoints with the minimum number of calls; 5 unless set.
    pub minimum_hosts: Option<u32>,
    /// Minimum number of calls of an endpoint per interval; 100 unless set.
    pub request_volume: Option<u32>,
}

/// Ejects endpoints with too high a percentage of failed calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FailurePercentage {
    /// Percentage of failed calls at which an endpoint is ejected; 85 unless set.
    pub threshold_percent: Option<u32>,
    /// Probability of an ejection, in percent; 100 unless set.
    pub enforcing_percent: Option<u32>,
    /// Minimum number of endpoints with the minimum number of calls; 5 unless set.
    pub minimum_hosts: Option<u32>,
    /// Minimum number of calls of an endpoint per interval; 50 unless set.
    pub request_volume: Option<u32>,
}
