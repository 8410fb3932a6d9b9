//! Mesh: services, routes, clusters and endpoints in a form for people.
//!
//! It is parsed from YAML ([`Mesh::from_yaml`]; `docs/mesh.md` describes the format) or built in code.
//! [`Mesh::resources`] converts it to xDS resources. A mesh from YAML is already checked; one built in code can be
//! ([`Mesh::check`]). Serving is left to [`SnapshotCache`](crate::SnapshotCache).

mod check;
mod cluster;
mod errors;
mod hosts;
mod messages;
mod policy;
mod read;
mod service;
mod values;
mod yaml;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

pub use cluster::{
    Cluster, Endpoint, EndpointHealth, FailurePercentage, Locality, OutlierDetection, SuccessRate,
};
pub use errors::{MeshError, MeshErrors};
pub use policy::ClusterPolicy;
pub use service::{HeaderMatch, RetryOn, Route, RouteHash, RouteRetry, Service};
pub use values::TrafficFraction;

use crate::ResourceSet;

/// Services, and the clusters that their routes lead to.
///
/// ```
/// use evenkeel_control::{Cluster, Endpoint, Mesh, Service};
///
/// let in_yaml = Mesh::from_yaml("
/// services:
///   orders: {}
/// clusters:
///   orders:
///     policy: round_robin
///     endpoints:
///       - 10.0.0.1:50051
///       - {address: 10.0.0.2:50051, weight: 3}
/// ")?;
/// let orders = Cluster::new()
///     .policy("round_robin")
///     .endpoint(Endpoint::at("10.0.0.1:50051".parse()?))
///     .endpoint(Endpoint::at("10.0.0.2:50051".parse()?).weight(3));
/// let in_code = Mesh::new().service("orders", Service::to("orders")).cluster("orders", orders);
/// assert_eq!(in_code, in_yaml);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mesh {
    services: BTreeMap<String, Service>,
    clusters: BTreeMap<String, Cluster>,
}

impl Mesh {
    /// Creates a mesh without services and clusters.
    pub fn new() -> Mesh {
        Mesh::default()
    }

    /// Parses a mesh from YAML. On failure returns all errors, not only the first.
    pub fn from_yaml(text: &str) -> Result<Mesh, MeshErrors> {
        read::mesh(text)
    }

    /// Parses a mesh from a file. Errors contain the path of the file.
    pub fn load(path: &Path) -> Result<Mesh, MeshErrors> {
        let text = read_text(path).map_err(|errors| errors.in_file(path))?;
        Mesh::from_yaml(&text).map_err(|errors| errors.in_file(path))
    }

    /// Adds a service, or replaces the one with this name. Clients use the target `xds:///name`.
    #[must_use]
    pub fn service(mut self, name: &str, service: Service) -> Mesh {
        self.services.insert(name.to_owned(), service);
        self
    }

    /// Adds a cluster, or replaces the one with this name.
    #[must_use]
    pub fn cluster(mut self, name: &str, cluster: Cluster) -> Mesh {
        self.clusters.insert(name.to_owned(), cluster);
        self
    }

    /// Returns the names of the services, in alphabetical order.
    pub fn services(&self) -> impl Iterator<Item = &str> {
        self.services.keys().map(String::as_str)
    }

    /// Returns the names of the clusters, in alphabetical order.
    pub fn clusters(&self) -> impl Iterator<Item = &str> {
        self.clusters.keys().map(String::as_str)
    }

    /// Checks that all referenced clusters exist, and that clients accept all values. Returns all errors.
    pub fn check(&self) -> Result<(), MeshErrors> {
        check::mesh(self, None)
    }

    /// Returns the xDS resources of the mesh: a listener and a route configuration for each service, and a cluster for
    /// each cluster. The endpoints of a cluster have its name.
    pub fn resources(&self) -> ResourceSet {
        let mut resources = ResourceSet::new();
        for (name, service) in &self.services {
            resources.set(messages::listener(name));
            resources.set(messages::route_configuration(name, service));
        }
        for (name, cluster) in &self.clusters {
            resources.set(messages::cluster(name, cluster));
            if let Some(endpoints) = messages::endpoints(name, cluster) {
                resources.set(endpoints);
            }
        }
        resources
    }
}

/// Reads the text of a file, up to the maximum size of a mesh.
pub(crate) fn read_text(path: &Path) -> Result<String, MeshErrors> {
    let mut bytes = Vec::new();
    // One byte above the limit: enough to detect a larger file without reading all of it.
    let most = yaml::MAX_BYTES as u64 + 1;
    let read = File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
    read.map_err(|error| MeshErrors::of_file(format!("cannot be read: {error}")))?;
    if bytes.len() > yaml::MAX_BYTES {
        return Err(MeshErrors::of_file(format!("expected at most {} bytes, found more", yaml::MAX_BYTES)));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        MeshErrors::of_file(format!("expected UTF-8, found another byte after {at} bytes"))
    })
}
