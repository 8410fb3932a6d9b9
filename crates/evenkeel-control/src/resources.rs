//! Encoded xDS resources by type URL and name.
//!
//! The set checks nothing: tests can serve resources that clients must reject. [`Mesh`](crate::Mesh) makes valid ones.

use std::collections::BTreeMap;

use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_proto::envoy::config::listener::v3::Listener;
use evenkeel_proto::envoy::config::route::v3::RouteConfiguration;
use evenkeel_proto::prost::Name;
use evenkeel_proto::prost_types::Any;

/// xDS resource type that is sent on its own, with a name.
pub trait NamedResource: Name {
    /// Returns the name that clients subscribe to.
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

/// Resources of a control plane: encoded, by type URL and name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResourceSet {
    by_type: BTreeMap<String, BTreeMap<String, Any>>,
}

impl ResourceSet {
    /// Creates an empty set.
    pub fn new() -> ResourceSet {
        ResourceSet::default()
    }

    /// Inserts a resource, or replaces the one with its type and name.
    // By value: callers build the resource for this call.
    #[allow(clippy::needless_pass_by_value)]
    pub fn set<M: NamedResource>(&mut self, resource: M) {
        let any = Any { type_url: M::type_url(), value: resource.encode_to_vec() };
        self.set_any(&M::type_url(), resource.resource_name(), any);
    }

    /// Inserts these bytes under this type and name without checking them. They may be an invalid resource.
    pub fn set_any(&mut self, type_url: &str, name: &str, resource: Any) {
        self.by_type.entry(type_url.to_owned()).or_default().insert(name.to_owned(), resource);
    }

    /// Removes a resource, if it is there.
    pub fn remove<M: NamedResource>(&mut self, name: &str) {
        if let Some(of_type) = self.by_type.get_mut(&M::type_url()) {
            of_type.remove(name);
        }
    }

    /// Returns a resource, decoded. `None` if it is missing, or its bytes do not decode.
    pub fn get<M: NamedResource + Default>(&self, name: &str) -> Option<M> {
        let any = self.by_type.get(&M::type_url())?.get(name)?;
        M::decode(&*any.value).ok()
    }

    /// Iterates over all resources, with type URL and name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &Any)> {
        self.by_type.iter().flat_map(|(type_url, of_type)| {
            of_type.iter().map(move |(name, any)| (type_url.as_str(), name.as_str(), any))
        })
    }
}
