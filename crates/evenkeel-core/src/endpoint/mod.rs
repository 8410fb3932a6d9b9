//! Endpoints, from a control plane or a resolver.
//!
//! An [`Endpoint`] is immutable and cheap to clone. [`Endpoints`] are the input of a policy: a plain list, or named groups
//! (priorities, localities, clusters), one per child policy. Identity is the change signal: the same allocation means that
//! nothing changed.

pub(crate) mod address;
pub(crate) mod connection;
pub(crate) mod list;
pub(crate) mod transport_params;
pub(crate) mod weights;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use serde_json::Value;

use crate::Address;

/// Metadata namespace and key of the ring-hash key of an endpoint (A76).
pub const HASH_KEY: (&str, &str) = ("envoy.lb", "hash_key");

/// Backend: an unordered set of addresses with attributes. Clones share their data.
#[derive(Clone)]
pub struct Endpoint(Arc<EndpointData>);

#[derive(Clone, PartialEq)]
struct EndpointData {
    addresses: Arc<[Address]>,
    hostname: Option<Arc<str>>,
    locality: Option<Arc<Locality>>,
    metadata: Option<Arc<EndpointMetadata>>,
    weight: Option<NonZeroU32>,
    locality_weight: Option<NonZeroU32>,
    health: EndpointHealthStatus,
}

/// Values by namespace and key, as in xDS filter metadata.
pub(crate) type EndpointMetadata = BTreeMap<String, BTreeMap<String, Value>>;

/// Health of an endpoint according to the control plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndpointHealthStatus {
    /// Health is unknown; the endpoint is used.
    #[default]
    Unknown,
    /// Health checks of the control plane succeed.
    Healthy,
    /// Draining: no new sessions (A55). Only session affinity uses such endpoints.
    Draining,
}

impl Endpoint {
    /// Creates an endpoint with `addresses` in order of preference. Duplicates are dropped.
    pub fn new<A: Into<Address>>(addresses: impl IntoIterator<Item = A>) -> Endpoint {
        let mut unique: Vec<Address> = Vec::new();
        for address in addresses.into_iter().map(Into::into) {
            if !unique.contains(&address) {
                unique.push(address);
            }
        }
        Endpoint::with_addresses(unique.into())
    }

    fn with_addresses(addresses: Arc<[Address]>) -> Endpoint {
        Endpoint(Arc::new(EndpointData {
            addresses,
            hostname: None,
            locality: None,
            metadata: None,
            weight: None,
            locality_weight: None,
            health: EndpointHealthStatus::Unknown,
        }))
    }

    /// Creates an endpoint with one address.
    pub fn at(address: impl Into<Address>) -> Endpoint {
        Endpoint::with_addresses(Arc::new([address.into()]))
    }

    /// Creates an endpoint with one address, weight, health and locality in one step, for control planes that send thousands.
    /// A weight of 0 means unset.
    pub fn in_locality(
        (locality, locality_weight): (Arc<Locality>, u32),
        address: impl Into<Address>,
        weight: u32,
        health: EndpointHealthStatus,
    ) -> Endpoint {
        Endpoint(Arc::new(EndpointData {
            addresses: Arc::new([address.into()]),
            hostname: None,
            locality: Some(locality),
            metadata: None,
            weight: NonZeroU32::new(weight),
            locality_weight: NonZeroU32::new(locality_weight),
            health,
        }))
    }

    /// Sets the weight from the control plane. 0 means unset.
    #[must_use]
    pub fn with_weight(mut self, weight: u32) -> Endpoint {
        Arc::make_mut(&mut self.0).weight = NonZeroU32::new(weight);
        self
    }

    /// Sets the locality, and the weight of that locality among its peers (0 means unset).
    #[must_use]
    pub fn with_locality(mut self, locality: Arc<Locality>, weight: u32) -> Endpoint {
        let data = Arc::make_mut(&mut self.0);
        data.locality = Some(locality);
        data.locality_weight = NonZeroU32::new(weight);
        self
    }

    /// Sets the health status.
    #[must_use]
    pub fn with_health(mut self, health: EndpointHealthStatus) -> Endpoint {
        Arc::make_mut(&mut self.0).health = health;
        self
    }

    /// Sets the host name, for `:authority` (A81).
    #[must_use]
    pub fn with_hostname(mut self, hostname: impl Into<Arc<str>>) -> Endpoint {
        Arc::make_mut(&mut self.0).hostname = Some(hostname.into());
        self
    }

    /// Adds one metadata value, for policies that read it through [`Endpoint::metadata`].
    #[must_use]
    pub fn with_metadata(mut self, (namespace, key): (&str, &str), value: impl Into<Value>) -> Endpoint {
        let all = Arc::make_mut(Arc::make_mut(&mut self.0).metadata.get_or_insert_default());
        all.entry(namespace.to_owned()).or_default().insert(key.to_owned(), value.into());
        self
    }

    /// Returns the addresses in order of preference, without duplicates. May be empty.
    pub fn addresses(&self) -> &Arc<[Address]> {
        &self.0.addresses
    }

    /// Returns the weight from the control plane. Policies treat an absent weight as 1.
    pub fn weight(&self) -> Option<u32> {
        self.0.weight.map(NonZeroU32::get)
    }

    /// Returns the locality, if known.
    pub fn locality(&self) -> Option<&Arc<Locality>> {
        self.0.locality.as_ref()
    }

    /// Returns the weight of the endpoint's locality, if known.
    pub fn locality_weight(&self) -> Option<u32> {
        self.0.locality_weight.map(NonZeroU32::get)
    }

    /// Returns the health status from the control plane.
    pub fn health(&self) -> EndpointHealthStatus {
        self.0.health
    }

    /// Returns the host name, if there is one.
    pub fn hostname(&self) -> Option<&str> {
        self.0.hostname.as_deref()
    }

    /// Returns the host name, unless it is empty.
    pub(crate) fn shared_hostname(&self) -> Option<&Arc<str>> {
        self.0.hostname.as_ref().filter(|name| !name.is_empty())
    }

    /// Returns the metadata value of a namespace and a key, if there is one.
    pub fn metadata(&self, (namespace, key): (&str, &str)) -> Option<&Value> {
        self.0.metadata.as_ref()?.get(namespace)?.get(key)
    }

    /// Returns the identity of the endpoint: its set of addresses, in any order (A61).
    pub(crate) fn key(&self) -> EndpointKey {
        let mut sorted = self.0.addresses.clone();
        // Most endpoints have one address and share their list with the key.
        if !sorted.is_sorted() {
            Arc::make_mut(&mut sorted).sort_unstable();
        }
        EndpointKey(sorted)
    }

    /// Returns true if both are the same allocation, so that nothing changed.
    pub fn is_same(&self, other: &Endpoint) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl PartialEq for Endpoint {
    /// Compares by identity first: most endpoints of an update are those of the previous one.
    fn eq(&self, other: &Endpoint) -> bool {
        self.is_same(other) || self.0 == other.0
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.addresses.iter()).finish()?;
        if let Some(weight) = self.0.weight {
            write!(f, " weight {weight}")?;
        }
        if let Some(locality) = &self.0.locality {
            write!(f, " in {locality}")?;
        }
        Ok(())
    }
}

/// Identity of an endpoint across updates: its unordered set of addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct EndpointKey(Arc<[Address]>);

/// Locality of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Locality {
    /// Region; empty if unknown.
    pub region: String,
    /// Zone; empty if unknown.
    pub zone: String,
    /// Sub-zone; empty if unknown.
    pub sub_zone: String,
}

impl fmt::Display for Locality {
    /// Writes the locality label of A78, which is also the name of a locality's child policy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Locality { region, zone, sub_zone } = self;
        write!(f, "{{region=\"{region}\", zone=\"{zone}\", sub_zone=\"{sub_zone}\"}}")
    }
}

/// Endpoints of a policy: a list, or named groups.
#[derive(Clone)]
pub struct Endpoints(EndpointsRepr);

#[derive(Clone)]
enum EndpointsRepr {
    List(Arc<[Endpoint]>),
    /// List in which no two endpoints share an address.
    Distinct(Arc<[Endpoint]>),
    Groups(Arc<[EndpointGroup]>),
}

/// Named group of [`Endpoints`], for the child policy of the same name.
#[derive(Clone, Debug)]
pub(crate) struct EndpointGroup {
    /// Name of the child policy.
    pub(crate) name: Arc<str>,
    /// Weight among the groups. Policies treat an absent weight as 1.
    pub(crate) weight: Option<NonZeroU32>,
    /// Endpoints for the child policy.
    pub(crate) endpoints: Endpoints,
}

impl Endpoints {
    /// Creates a plain list. It may contain endpoints without an address, which policies skip.
    pub fn list(endpoints: impl IntoIterator<Item = Endpoint>) -> Endpoints {
        Endpoints(EndpointsRepr::List(endpoints.into_iter().collect()))
    }

    /// Creates a plain list of endpoints that share no address, as in an EDS resource (A27). Policies rely on this and skip a
    /// check of each endpoint when one changes. If two endpoints share an address anyway, it may receive the calls of both.
    pub fn distinct(endpoints: impl IntoIterator<Item = Endpoint>) -> Endpoints {
        Endpoints(EndpointsRepr::Distinct(endpoints.into_iter().collect()))
    }

    /// Creates named groups, in order.
    pub fn groups<N: Into<Arc<str>>>(groups: impl IntoIterator<Item = (N, Endpoints)>) -> Endpoints {
        Endpoints::weighted_groups(groups.into_iter().map(|(name, endpoints)| (name, 0, endpoints)))
    }

    /// Creates named groups with weights, in order, for named localities. A weight of 0 means unset.
    pub fn weighted_groups<N: Into<Arc<str>>>(
        groups: impl IntoIterator<Item = (N, u32, Endpoints)>,
    ) -> Endpoints {
        let group = |(name, weight, endpoints): (N, u32, Endpoints)| EndpointGroup {
            name: name.into(),
            weight: NonZeroU32::new(weight),
            endpoints,
        };
        groups.into_iter().map(group).collect()
    }

    /// Creates an empty list.
    pub fn none() -> Endpoints {
        Endpoints::list([])
    }

    /// Returns the group for the child policy `name`; empty if there is none.
    #[must_use]
    pub fn group(&self, name: &str) -> Endpoints {
        let found = match &self.0 {
            EndpointsRepr::Groups(groups) => groups.iter().find(|group| &*group.name == name),
            EndpointsRepr::List(_) | EndpointsRepr::Distinct(_) => None,
        };
        found.map_or_else(Endpoints::none, |group| group.endpoints.clone())
    }

    /// Returns the groups; empty for a plain list.
    pub(crate) fn as_groups(&self) -> &[EndpointGroup] {
        match &self.0 {
            EndpointsRepr::Groups(groups) => groups,
            EndpointsRepr::List(_) | EndpointsRepr::Distinct(_) => &[],
        }
    }

    /// Returns the endpoints, if they are a plain list.
    pub(crate) fn as_list(&self) -> Option<&[Endpoint]> {
        match &self.0 {
            EndpointsRepr::List(list) | EndpointsRepr::Distinct(list) => Some(list),
            EndpointsRepr::Groups(_) => None,
        }
    }

    /// Returns the endpoints, if they are a plain list and are known to share no address.
    pub(crate) fn as_distinct_list(&self) -> Option<&[Endpoint]> {
        match &self.0 {
            EndpointsRepr::Distinct(list) => Some(list),
            EndpointsRepr::List(_) | EndpointsRepr::Groups(_) => None,
        }
    }

    /// Returns a plain list with a selection of the endpoints.
    pub(crate) fn part(&self, endpoints: impl IntoIterator<Item = Endpoint>) -> Endpoints {
        match &self.0 {
            EndpointsRepr::Distinct(_) => Endpoints::distinct(endpoints),
            EndpointsRepr::List(_) | EndpointsRepr::Groups(_) => Endpoints::list(endpoints),
        }
    }

    /// Returns every endpoint in order, with groups flattened.
    pub fn iter(&self) -> impl Iterator<Item = &Endpoint> {
        self.lists().flatten()
    }

    /// Returns every plain list in order, with groups flattened.
    pub(crate) fn lists(&self) -> impl Iterator<Item = &[Endpoint]> {
        // Stack of groups to visit, and a list outside of any group.
        let (mut open, mut alone) = (Vec::new(), self.as_list());
        if alone.is_none() {
            open.push(self.as_groups().iter());
        }
        std::iter::from_fn(move || {
            if alone.is_some() {
                return alone.take();
            }
            loop {
                match open.last_mut()?.next() {
                    None => open.truncate(open.len() - 1),
                    Some(group) => match group.endpoints.as_list() {
                        Some(list) => return Some(list),
                        None => open.push(group.endpoints.as_groups().iter()),
                    },
                }
            }
        })
    }

    /// Returns true if there is no endpoint.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Returns true if both are the same allocation, so that nothing changed.
    pub fn is_same(&self, other: &Endpoints) -> bool {
        match (&self.0, &other.0) {
            (EndpointsRepr::Groups(a), EndpointsRepr::Groups(b)) => Arc::ptr_eq(a, b),
            _ => match (self.as_list(), other.as_list()) {
                // Each empty list may have its own allocation, but all of them are the same.
                (Some(a), Some(b)) => std::ptr::eq(a, b) || (a.is_empty() && b.is_empty()),
                _ => false,
            },
        }
    }
}

impl FromIterator<EndpointGroup> for Endpoints {
    /// Collects groups in order.
    fn from_iter<I: IntoIterator<Item = EndpointGroup>>(groups: I) -> Endpoints {
        Endpoints(EndpointsRepr::Groups(groups.into_iter().collect()))
    }
}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            EndpointsRepr::List(list) | EndpointsRepr::Distinct(list) => list.fmt(f),
            EndpointsRepr::Groups(groups) => {
                f.debug_map().entries(groups.iter().map(|g| (&g.name, &g.endpoints))).finish()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LBX-6
    #[test]
    fn an_endpoint_is_known_by_its_addresses_alone() {
        let one = Endpoint::new(["b", "a", "b"]).with_weight(3).with_hostname("one");
        let other = Endpoint::new(["a", "b"]).with_health(EndpointHealthStatus::Healthy);
        assert_eq!(one.key(), other.key());
        assert_ne!(one.key(), Endpoint::at("a").key());
        assert_eq!(**one.addresses(), ["b".into(), "a".into()]);
    }

    #[test]
    fn an_endpoint_made_in_one_step_is_the_same() {
        let locality = Arc::new(Locality { zone: "z".to_owned(), ..Locality::default() });
        for (weight, locality_weight) in [(0, 0), (3, 7)] {
            let in_steps = Endpoint::at("10.0.0.1:80")
                .with_weight(weight)
                .with_health(EndpointHealthStatus::Healthy)
                .with_locality(locality.clone(), locality_weight);
            let place = (locality.clone(), locality_weight);
            assert_eq!(
                Endpoint::in_locality(place, "10.0.0.1:80", weight, EndpointHealthStatus::Healthy),
                in_steps
            );
        }
    }

    #[test]
    fn what_is_said_of_an_endpoint_is_kept() {
        let locality = Arc::new(Locality { zone: "z".to_owned(), ..Locality::default() });
        let endpoint = Endpoint::at("[::1]:443")
            .with_weight(u32::MAX)
            .with_locality(locality.clone(), 7)
            .with_hostname("host")
            .with_metadata(HASH_KEY, "k");
        let changed = endpoint.clone().with_weight(0);
        assert_eq!((endpoint.weight(), changed.weight()), (Some(u32::MAX), None));
        assert_eq!((endpoint.locality(), endpoint.locality_weight()), (Some(&locality), Some(7)));
        assert_eq!((endpoint.hostname(), endpoint.health()), (Some("host"), EndpointHealthStatus::Unknown));
        assert_eq!(endpoint.metadata(HASH_KEY), Some(&Value::from("k")));
        assert_eq!(endpoint.metadata(("envoy.lb", "other")), None);
        assert_eq!(
            format!("{endpoint:?}"),
            r#"[[::1]:443] weight 4294967295 in {region="", zone="z", sub_zone=""}"#
        );
    }
}
