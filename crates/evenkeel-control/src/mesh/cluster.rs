//! Clusters and their endpoints.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::{ClusterPolicy, TrafficFraction};

/// Where calls go: endpoints, a DNS name, or other clusters.
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
    /// A cluster whose endpoints are yet to be added.
    pub fn new() -> Cluster {
        Cluster::of(MeshClusterMembers::Endpoints(Vec::new()))
    }

    /// A cluster whose addresses are those of a DNS name.
    pub fn dns(host: &str, port: u16) -> Cluster {
        Cluster::of(MeshClusterMembers::Dns { host: host.to_owned(), port })
    }

    /// A cluster made of others, which are used in this order: the next when all before it have failed.
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

    /// Adds an endpoint. A DNS name or a list of clusters that was there is forgotten.
    #[must_use]
    pub fn endpoint(mut self, endpoint: Endpoint) -> Cluster {
        if let MeshClusterMembers::Endpoints(endpoints) = &mut self.members {
            endpoints.push(endpoint);
        } else {
            self.members = MeshClusterMembers::Endpoints(vec![endpoint]);
        }
        self
    }

    /// Adds endpoints; see [`Cluster::endpoint`].
    #[must_use]
    pub fn endpoints(self, endpoints: impl IntoIterator<Item = Endpoint>) -> Cluster {
        endpoints.into_iter().fold(self, Cluster::endpoint)
    }

    /// Sets the policy that spreads calls over the endpoints.
    #[must_use]
    pub fn policy(mut self, policy: impl Into<ClusterPolicy>) -> Cluster {
        self.policy = Some(policy.into());
        self
    }

    /// Sets the weight of a locality among those of its priority.
    #[must_use]
    pub fn locality_weight(mut self, locality: Locality, weight: u32) -> Cluster {
        self.localities.entry(locality).or_default().weight = Some(weight);
        self
    }

    /// Sets the priority of the endpoints of a locality that have none of their own.
    #[must_use]
    pub fn locality_priority(mut self, locality: Locality, priority: u32) -> Cluster {
        self.localities.entry(locality).or_default().priority = Some(priority);
        self
    }

    /// Fails a share of the calls, for a reason that statistics name.
    #[must_use]
    pub fn drop_calls(mut self, category: &str, share: TrafficFraction) -> Cluster {
        self.drops.push((category.to_owned(), share));
        self
    }

    /// Fails calls beyond so many at a time, per client.
    #[must_use]
    pub fn max_requests(mut self, max: u32) -> Cluster {
        self.max_requests = Some(max);
        self
    }

    /// Has clients set endpoints aside that do badly.
    #[must_use]
    pub fn outlier_detection(mut self, settings: OutlierDetection) -> Cluster {
        self.outlier_detection = Some(settings);
        self
    }

    /// Has clients report their load to this control plane.
    #[must_use]
    pub fn lrs(mut self) -> Cluster {
        self.lrs = true;
        self
    }

    /// The priority of an endpoint: its own, else that of its locality, else the highest.
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

/// A server.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) name: Option<String>,
    pub(super) weight: Option<u32>,
    pub(super) locality: Locality,
    pub(super) priority: Option<u32>,
    pub(super) health: EndpointHealth,
    pub(super) hash_key: Option<String>,
}

impl Endpoint {
    /// The endpoint at this address.
    pub fn at(address: SocketAddr) -> Endpoint {
        Endpoint::at_any([address])
    }

    /// An endpoint with several addresses, best first (A61).
    pub fn at_any(addresses: impl IntoIterator<Item = SocketAddr>) -> Endpoint {
        Endpoint {
            addresses: addresses.into_iter().collect(),
            name: None,
            weight: None,
            locality: Locality::default(),
            priority: None,
            health: EndpointHealth::default(),
            hash_key: None,
        }
    }

    /// Its host name, for those who show it and for host rewriting (A81).
    #[must_use]
    pub fn name(mut self, name: &str) -> Endpoint {
        self.name = Some(name.to_owned());
        self
    }

    /// Its weight in its locality; 1 unless set.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Endpoint {
        self.weight = Some(weight);
        self
    }

    /// Where it is.
    #[must_use]
    pub fn locality(mut self, locality: Locality) -> Endpoint {
        self.locality = locality;
        self
    }

    /// Its priority; 0 is the highest.
    #[must_use]
    pub fn priority(mut self, priority: u32) -> Endpoint {
        self.priority = Some(priority);
        self
    }

    /// Its health.
    #[must_use]
    pub fn health(mut self, health: EndpointHealth) -> Endpoint {
        self.health = health;
        self
    }

    /// What it is hashed by instead of its address (A76).
    #[must_use]
    pub fn hash_key(mut self, key: &str) -> Endpoint {
        self.hash_key = Some(key.to_owned());
        self
    }
}

/// What the control plane knows of an endpoint's health. Calls go to those of the first two only.
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

/// Where endpoints are. As text it is `zone`, `region/zone` or `region/zone/sub_zone`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Locality {
    /// Such as `eu-west`.
    pub region: String,
    /// Such as `eu-west-1a`.
    pub zone: String,
    /// Such as a rack.
    pub sub_zone: String,
}

impl Locality {
    /// A zone, without more.
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

/// When endpoints are set aside (A50). What is not set is as in Envoy. With neither of the two ejections set, it is
/// the one by success rate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutlierDetection {
    /// How often endpoints are judged; 10 s.
    pub interval: Option<Duration>,
    /// How long an endpoint is set aside, times the number of times; 30 s.
    pub base_ejection_time: Option<Duration>,
    /// The longest that an endpoint is set aside; 300 s.
    pub max_ejection_time: Option<Duration>,
    /// How many of a hundred endpoints may be set aside; 10.
    pub max_ejection_percent: Option<u32>,
    /// Those whose success rate is far below that of the others.
    pub success_rate: Option<SuccessRate>,
    /// Those of whose calls too many fail.
    pub failure_percentage: Option<FailurePercentage>,
}

/// Sets endpoints aside whose success rate is far below that of the others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SuccessRate {
    /// How far below: standard deviations, in thousandths; 1900.
    pub stdev_factor: Option<u32>,
    /// In how many of a hundred cases it is done; 100.
    pub enforcing_percent: Option<u32>,
    /// How many endpoints must have had calls enough; 5.
    pub minimum_hosts: Option<u32>,
    /// How many calls are enough; 100.
    pub request_volume: Option<u32>,
}

/// Sets endpoints aside of whose calls too many fail.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FailurePercentage {
    /// How many of a hundred are too many; 85.
    pub threshold_percent: Option<u32>,
    /// In how many of a hundred cases it is done; 100.
    pub enforcing_percent: Option<u32>,
    /// How many endpoints must have had calls enough; 5.
    pub minimum_hosts: Option<u32>,
    /// How many calls are enough; 50.
    pub request_volume: Option<u32>,
}
