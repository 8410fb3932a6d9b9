//! Local resource cache: state of a client that has received every resource. It uses the client's own parser
//! and serves the client's own resolver.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use evenkeel_control::Mesh;
use evenkeel_core::cluster::EndpointSet;
use evenkeel_core::{Address, Endpoint, Endpoints, HASH_KEY, Registry, Status};
use evenkeel_proto::prost_types::Any;
use evenkeel_xds::ads::ResourceState;
use evenkeel_xds::bootstrap::ServerConfig;
use evenkeel_xds::dependency_manager::ResourceView;
use evenkeel_xds::resource::{ParsedResource, RejectedResource, Resource, ResourceParser, ResourceType};

/// Parse results of all resources.
#[derive(Debug, Default)]
pub(crate) struct LocalResources {
    resources: BTreeMap<(ResourceType, String), LocalResource>,
    hosts: HostPlaceholders,
}

/// Resource as sent, and its parse result.
#[derive(Debug)]
pub(crate) struct LocalResource {
    pub(crate) raw: Any,
    pub(crate) read: Result<ParsedResource, RejectedResource>,
}

impl LocalResources {
    /// Parses the resources of a mesh, without a lookup: a host name counts as one endpoint.
    pub(crate) fn of_mesh(mesh: &Mesh) -> LocalResources {
        let hosts = HostPlaceholders::new(mesh);
        let resources = mesh.resolve_hosts(|host| hosts.address(host).into_iter().collect()).resources();
        let mut known = LocalResources::parse(resources.iter());
        for local in known.resources.values_mut() {
            if let Ok(ParsedResource { resource: Resource::Endpoints(set), .. }) = &mut local.read {
                *set = hosts.restore(set);
            }
        }
        known.hosts = hosts;
        known
    }

    /// Returns the host name whose place this address takes, with the port.
    pub(crate) fn host_of(&self, address: &str) -> Option<String> {
        self.hosts.name(address.parse().ok()?)
    }

    /// Parses resources, each with its type URL and name. Types that clients do not subscribe to are skipped.
    pub(crate) fn parse<'a>(
        resources: impl IntoIterator<Item = (&'a str, &'a str, &'a Any)>,
    ) -> LocalResources {
        LocalResources::parse_as(
            resources,
            &ResourceParser::new(Registry::standard()),
            &ServerConfig::insecure("mesh"),
        )
    }

    /// Like [`LocalResources::parse`], with a given parser and control plane.
    pub(crate) fn parse_as<'a>(
        resources: impl IntoIterator<Item = (&'a str, &'a str, &'a Any)>,
        parser: &ResourceParser,
        server: &ServerConfig,
    ) -> LocalResources {
        let mut known = LocalResources::default();
        for (type_url, name, any) in resources {
            let Some(kind) = ResourceType::from_type_url(type_url) else { continue };
            let read = LocalResource { raw: any.clone(), read: parser.parse(kind, any, server) };
            known.resources.insert((kind, name.to_owned()), read);
        }
        known
    }

    /// Iterates over all resources, in dependency order of their types.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ResourceType, &str, &LocalResource)> {
        self.resources.iter().map(|((kind, name), read)| (*kind, name.as_str(), read))
    }

    pub(crate) fn find(&self, kind: ResourceType, name: &str) -> Option<&LocalResource> {
        self.resources.get(&(kind, name.to_owned()))
    }
}

/// Addresses in place of host names, since EDS resources cannot contain names.
#[derive(Debug, Default)]
struct HostPlaceholders(Vec<String>);

impl HostPlaceholders {
    /// Prefix of the placeholders: discard-only addresses (RFC 6666), which no endpoint has.
    const PREFIX: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0);

    fn new(mesh: &Mesh) -> HostPlaceholders {
        HostPlaceholders(mesh.host_names().into_iter().map(str::to_owned).collect())
    }

    fn address(&self, host: &str) -> Option<IpAddr> {
        let index = self.0.iter().position(|known| known == host)?;
        Some(Ipv6Addr::from_bits(Self::PREFIX.to_bits() | index as u128).into())
    }

    fn name(&self, address: SocketAddr) -> Option<String> {
        let IpAddr::V6(ip) = address.ip() else { return None };
        let index = ip.to_bits().checked_sub(Self::PREFIX.to_bits())?;
        let host = self.0.get(usize::try_from(index).ok()?)?;
        Some(format!("{host}:{}", address.port()))
    }

    /// Returns the endpoints with the names in place of the placeholders.
    fn restore(&self, set: &Arc<EndpointSet>) -> Arc<EndpointSet> {
        if self.0.is_empty() {
            return Arc::clone(set);
        }
        let mut set = EndpointSet::clone(set);
        for priority in &mut set.priorities {
            *priority = Endpoints::distinct(priority.iter().map(|endpoint| self.restore_endpoint(endpoint)));
        }
        Arc::new(set)
    }

    fn restore_endpoint(&self, endpoint: &Endpoint) -> Endpoint {
        let name = match &endpoint.addresses()[..] {
            [Address::Ip(address)] => self.name(*address),
            _ => None,
        };
        let Some(name) = name else { return endpoint.clone() };
        let mut named = Endpoint::at(Address::Name(name.into())).with_health(endpoint.health());
        if let Some(weight) = endpoint.weight() {
            named = named.with_weight(weight);
        }
        if let Some((locality, weight)) = endpoint.locality().zip(endpoint.locality_weight()) {
            named = named.with_locality(Arc::clone(locality), weight);
        }
        if let Some(hostname) = endpoint.hostname() {
            named = named.with_hostname(hostname);
        }
        if let Some(key) = endpoint.metadata(HASH_KEY) {
            named = named.with_metadata(HASH_KEY, key.clone());
        }
        named
    }
}

impl ResourceView for LocalResources {
    /// All resources are present, so a missing one does not exist.
    fn resource_state(&self, kind: ResourceType, name: &str) -> ResourceState {
        let value = match self.find(kind, name).map(|found| &found.read) {
            None => Err(Status::unavailable(format!("{kind} {name:?} does not exist"))),
            Some(Err(rejected)) => Err(Status::unavailable(format!("{kind} {rejected}"))),
            Some(Ok(parsed)) => Ok(parsed.resource.clone()),
        };
        ResourceState { value: Some(value), ambient: None }
    }
}
