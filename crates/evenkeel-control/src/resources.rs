//! Resources as they are sent: encoded, by type and name.

use std::collections::BTreeMap;

use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_proto::envoy::config::listener::v3::Listener;
use evenkeel_proto::envoy::config::route::v3::RouteConfiguration;
use evenkeel_proto::prost::Name;
use evenkeel_proto::prost_types::Any;

/// A kind of resource that is sent on its own.
pub trait NamedResource: Name {
    /// What clients subscribe to.
    fn resource_name(&self) -> &str;
}

impl NamedResource for Listener {
    fn resource_name(&self) -> &str {
        &self.name
    }
}

impl NamedResource for RouteConfiguration {
    fn resource_name(&self) -> &str {
        &self.name
    }
}

impl NamedResource for Cluster {
    fn resource_name(&self) -> &str {
        &self.name
    }
}

impl NamedResource for ClusterLoadAssignment {
    fn resource_name(&self) -> &str {
        &self.cluster_name
    }
}

/// What a control plane holds: encoded resources by type URL and name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResourceSet {
    by_type: BTreeMap<String, BTreeMap<String, Any>>,
}

impl ResourceSet {
    /// None.
    pub fn new() -> ResourceSet {
        ResourceSet::default()
    }

    /// Holds a resource, new or in place of the one of its type and name.
    // By value: callers make what they set.
    #[allow(clippy::needless_pass_by_value)]
    pub fn set<M: NamedResource>(&mut self, resource: M) {
        let any = Any { type_url: M::type_url(), value: resource.encode_to_vec() };
        self.set_any(&M::type_url(), resource.resource_name(), any);
    }

    /// Holds these bytes for whoever subscribes to this type and name, whatever they are.
    pub fn set_any(&mut self, type_url: &str, name: &str, resource: Any) {
        self.by_type.entry(type_url.to_owned()).or_default().insert(name.to_owned(), resource);
    }

    /// Holds a resource no longer.
    pub fn remove<M: NamedResource>(&mut self, name: &str) {
        if let Some(of_type) = self.by_type.get_mut(&M::type_url()) {
            of_type.remove(name);
        }
    }

    /// A resource, decoded; none if there is none, or if its bytes are not one.
    pub fn get<M: NamedResource + Default>(&self, name: &str) -> Option<M> {
        let any = self.by_type.get(&M::type_url())?.get(name)?;
        M::decode(&*any.value).ok()
    }

    /// All of them with type URL and name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &Any)> {
        self.by_type.iter().flat_map(|(type_url, of_type)| {
            of_type.iter().map(move |(name, any)| (type_url.as_str(), name.as_str(), any))
        })
    }
}
