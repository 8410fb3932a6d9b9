//! Host names of endpoints, and the endpoints that they stand for.
//!
//! EDS has IP addresses only: gRPC clients reject names in it. So each name becomes the endpoints of its addresses. Looking
//! up names is left to `host_resolver`.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};

use super::cluster::{Cluster, Endpoint, MeshClusterMembers};
use super::errors::{MeshError, MeshPath, quoted};
use super::{Mesh, yaml};

impl Mesh {
    /// Returns the host names of all endpoints.
    pub fn host_names(&self) -> BTreeSet<&str> {
        let clusters = self.clusters.values().flat_map(Cluster::host_endpoints);
        clusters.filter_map(|(_, endpoint)| Some(endpoint.host.as_ref()?.name.as_str())).collect()
    }

    /// Returns the mesh with endpoints in place of host names. `addresses` returns the addresses of a name; a name without
    /// any keeps its place, and is not served.
    ///
    /// Each address becomes an endpoint with the settings of the name. An IPv4 and an IPv6 address count as one server
    /// with two addresses (A61) if the name has one of each. Otherwise IPv6 addresses are used only if there are no
    /// others, so that a server with both is not counted twice. Addresses that the cluster already has are left out.
    #[must_use]
    pub fn resolve_hosts(&self, addresses: impl Fn(&str) -> Vec<IpAddr>) -> Mesh {
        let mut mesh = self.clone();
        for cluster in mesh.clusters.values_mut() {
            cluster.resolve_hosts(&addresses);
        }
        mesh
    }

    /// Returns an error for each endpoint with one of these names, with its position in the text of the mesh.
    pub(crate) fn host_errors(&self, text: &str, reasons: &BTreeMap<String, String>) -> Vec<MeshError> {
        let yaml = yaml::parse(text).ok();
        let mut errors = Vec::new();
        let root = MeshPath::Root;
        let at = root.key("clusters");
        for (name, cluster) in &self.clusters {
            let at = at.key(name);
            let at = at.key("endpoints");
            for (i, endpoint) in cluster.host_endpoints() {
                let Some(host) = &endpoint.host else { continue };
                let Some(reason) = reasons.get(&host.name) else { continue };
                let at = at.index(i);
                let position = yaml.as_ref().and_then(|yaml| yaml.position_of(&at));
                let text = format!("the host name {} cannot be resolved: {reason}", quoted(&host.name));
                errors.push(MeshError::new(position, at.to_string(), text));
            }
        }
        errors
    }
}

impl Cluster {
    /// Iterates over the endpoints that have a host name, with their indices.
    fn host_endpoints(&self) -> impl Iterator<Item = (usize, &Endpoint)> {
        let endpoints = match &self.members {
            MeshClusterMembers::Endpoints(endpoints) => endpoints.as_slice(),
            MeshClusterMembers::Dns { .. } | MeshClusterMembers::Clusters(_) => &[],
        };
        endpoints.iter().enumerate().filter(|(_, endpoint)| endpoint.host.is_some())
    }

    fn resolve_hosts(&mut self, addresses: &impl Fn(&str) -> Vec<IpAddr>) {
        let MeshClusterMembers::Endpoints(endpoints) = &mut self.members else { return };
        if endpoints.iter().all(|endpoint| endpoint.host.is_none()) {
            return;
        }
        // Clients reject an address that occurs twice.
        let mut taken: HashSet<SocketAddr> =
            endpoints.iter().flat_map(|endpoint| &endpoint.addresses).copied().collect();
        let mut resolved = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints.drain(..) {
            let Some(host) = &endpoint.host else {
                resolved.push(endpoint);
                continue;
            };
            let servers = servers(addresses(&host.name), host.port);
            if servers.is_empty() {
                resolved.push(endpoint);
                continue;
            }
            let is_single = servers.len() == 1;
            for server in servers {
                let addresses: Vec<_> = server.into_iter().filter(|address| taken.insert(*address)).collect();
                if addresses.is_empty() {
                    continue;
                }
                resolved.push(Endpoint {
                    addresses,
                    host: None,
                    name: endpoint.name.clone().or_else(|| Some(host.name.clone())),
                    // With one key, all would have the same place on the ring.
                    hash_key: endpoint.hash_key.clone().filter(|_| is_single),
                    ..endpoint.clone()
                });
            }
        }
        *endpoints = resolved;
    }
}

/// Groups the addresses of a name into servers. The result does not depend on the order of the addresses, which differs
/// from lookup to lookup.
fn servers(addresses: Vec<IpAddr>, port: u16) -> Vec<Vec<SocketAddr>> {
    let addresses: BTreeSet<_> = addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
    let (v4, v6): (Vec<_>, Vec<_>) = addresses.into_iter().partition(SocketAddr::is_ipv4);
    match (v4.as_slice(), v6.as_slice()) {
        // IPv4 first, for clients that use only the first address.
        ([v4], [v6]) => vec![vec![*v4, *v6]],
        ([], _) => v6.into_iter().map(|address| vec![address]).collect(),
        _ => v4.into_iter().map(|address| vec![address]).collect(),
    }
}
