//! Endpoints of clusters (EDS): parses a `ClusterLoadAssignment` into an [`EndpointSet`].
//!
//! The parser follows A27, with A61 for additional addresses, A76 for hash keys and A81 for host names.
//! Localities without a weight and unhealthy endpoints are skipped without validation. One invalid endpoint
//! among the others invalidates the resource. The cost is linear in the size of the resource, except for
//! sorting the addresses.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use evenkeel_core::cluster::EndpointSet;
use evenkeel_core::policy::DropCategory;
use evenkeel_core::{Endpoint, EndpointHealthStatus, Endpoints, HASH_KEY, Locality};
use evenkeel_proto::envoy::config::core::v3::address::Address as AddressKind;
use evenkeel_proto::envoy::config::core::v3::socket_address::{PortSpecifier, Protocol};
use evenkeel_proto::envoy::config::core::v3::{Address as AddressMessage, HealthStatus, Metadata};
use evenkeel_proto::envoy::config::endpoint::v3::cluster_load_assignment::Policy;
use evenkeel_proto::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use evenkeel_proto::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpoint, LocalityLbEndpoints};
use evenkeel_proto::prost_types::value::Kind;

use crate::bootstrap::ServerConfig;
use crate::resource::addresses::{AddressBatch, DuplicateCheck};
use crate::resource::endpoints_before::PreviousEndpoints;
use crate::resource::reader::ResourceReader;
use crate::resource::{
    ParsedResource, RejectedResource, Resource, ResourceParser, fields, plain_endpoint, wire,
};
use crate::text::quoted;
use crate::{FieldPath, ValidationErrors};

/// Maximum number of addresses of an endpoint. It exceeds any real host, and is small enough for a pairwise
/// comparison.
const MAX_ADDRESSES: usize = 100;

/// Field number of `ClusterLoadAssignment.endpoints`.
pub(super) const LOCALITIES_FIELD: u32 = 2;

/// Field number of `LocalityLbEndpoints.lb_endpoints`.
pub(super) const ENDPOINTS_FIELD: u32 = 2;

/// Parses a resource. `before` is the version in use, as received and as parsed. Endpoints that are equal in
/// both keep their allocation, and their warnings are not repeated.
pub(super) fn parse(
    bytes: &[u8],
    parser: &ResourceParser,
    from: &ServerConfig,
    before: Option<(&[u8], &EndpointSet)>,
) -> Result<ParsedResource, RejectedResource> {
    wire::check(bytes, &[], &FieldPath::root(), &wire::endpoint_limits(&parser.limits))?;
    let Some((localities, beside)) = wire::split_field(bytes, LOCALITIES_FIELD) else {
        let problems =
            ValidationErrors::one(&FieldPath::root(), "cannot be decoded: a field is truncated or malformed");
        return Err(RejectedResource { name: None, problems });
    };
    let message: ClusterLoadAssignment = fields::decode(&beside)?;
    let before = before.map(|(bytes, set)| PreviousEndpoints::new(bytes, set)).unwrap_or_default();
    // The fast reader only detects that something is invalid. The thorough one then collects all errors with
    // their paths.
    EndpointsReader::fast(parser, from, before)
        .finish(&message, &localities)
        .or_else(|_| EndpointsReader::thorough(parser, from).finish(&message, &localities))
}

struct EndpointsReader<'a> {
    reader: ResourceReader<'a>,
    before: PreviousEndpoints<'a>,
    addresses: DuplicateCheck,
    /// Endpoints of the previous version. No two of them share an address.
    known: Vec<&'a Endpoint>,
}

/// State of one priority while its localities are read.
#[derive(Default)]
struct PriorityBuilder {
    localities: HashSet<Arc<Locality>>,
    weights: WeightSum,
    endpoints: Vec<Endpoint>,
}

/// Returns the note for failures if there are localities and none has a usable endpoint.
fn no_endpoints_note(priorities: &BTreeMap<u32, PriorityBuilder>) -> Option<Arc<str>> {
    let localities = || priorities.values().flat_map(|priority| &priority.localities);
    let has_endpoints = priorities.values().any(|priority| !priority.endpoints.is_empty());
    let first = localities().min().filter(|_| !has_endpoints)?;
    Some(match localities().count() {
        1 => format!("no healthy endpoints in locality {first}").into(),
        more => format!("no healthy endpoints in {more} localities, such as {first}").into(),
    })
}

/// Sum of weights, which must fit into 32 bits. `None` after an overflow.
struct WeightSum(Option<u32>);

impl Default for WeightSum {
    fn default() -> WeightSum {
        WeightSum(Some(0))
    }
}

impl WeightSum {
    /// Adds a weight. Returns true if this weight causes the overflow.
    fn add_overflows(&mut self, weight: u32) -> bool {
        let Some(sum) = self.0 else { return false };
        self.0 = sum.checked_add(weight);
        self.0.is_none()
    }
}

impl<'a> EndpointsReader<'a> {
    /// Creates a reader for the common case of a valid resource. Its errors are incomplete and without exact
    /// texts.
    fn fast(
        parser: &'a ResourceParser,
        from: &ServerConfig,
        before: PreviousEndpoints<'a>,
    ) -> EndpointsReader<'a> {
        let addresses = DuplicateCheck::Deferred(AddressBatch::default());
        EndpointsReader { reader: ResourceReader::new(parser, from), before, addresses, known: Vec::new() }
    }

    /// Creates a reader that reports every error with its field path.
    fn thorough(parser: &'a ResourceParser, from: &ServerConfig) -> EndpointsReader<'a> {
        let addresses = DuplicateCheck::Immediate(HashSet::new());
        EndpointsReader {
            reader: ResourceReader::new(parser, from),
            before: PreviousEndpoints::default(),
            addresses,
            known: Vec::new(),
        }
    }

    fn finish(
        mut self,
        message: &ClusterLoadAssignment,
        localities: &[&[u8]],
    ) -> Result<ParsedResource, RejectedResource> {
        let set = self.assignment(message, localities);
        if let DuplicateCheck::Deferred(gathered) = self.addresses
            && gathered.has_duplicates(self.known.iter().flat_map(|known| known.addresses().iter()))
        {
            self.reader.problem(
                &FieldPath::root().field("endpoints"),
                "an address is in the resource more than once",
            );
        }
        self.reader.finish(message.cluster_name.clone(), Some(Resource::Endpoints(Arc::new(set))))
    }

    fn assignment(&mut self, message: &ClusterLoadAssignment, localities: &[&[u8]]) -> EndpointSet {
        let root = FieldPath::root();
        self.reader.name(&message.cluster_name, &root.field("cluster_name"));
        let drops = message.policy.as_ref().map(|policy| self.policy(policy)).unwrap_or_default();
        let path = root.field("endpoints");
        let mut priorities = BTreeMap::<u32, PriorityBuilder>::new();
        for (i, bytes) in localities.iter().enumerate() {
            let path = path.index(i);
            // If the fields cannot be split, decode the locality in one piece: the decoder then reports the
            // position.
            let (endpoints, beside) =
                wire::split_field(bytes, ENDPOINTS_FIELD).unwrap_or_else(|| (Vec::new(), bytes.to_vec()));
            if let Some(locality) = self.reader.decode(&beside, &path) {
                self.locality(&locality, &endpoints, &path, &mut priorities);
            }
        }
        // A27: priorities must be contiguous from 0.
        if let Some((expected, found)) = (0..).zip(priorities.keys()).find(|(i, found)| i != *found) {
            self.reader.problem(&path, format!("there is a priority {found} but no priority {expected}"));
        }
        let note = no_endpoints_note(&priorities);
        // Duplicate addresses are rejected elsewhere (A27), so all endpoints are distinct.
        let priorities = priorities.into_values().map(|priority| Endpoints::distinct(priority.endpoints));
        EndpointSet { priorities: priorities.collect(), drops, note }
    }

    fn policy(&mut self, policy: &Policy) -> Vec<DropCategory> {
        let root = FieldPath::root();
        let path = root.field("policy");
        let ignored = [
            ("overprovisioning_factor", policy.overprovisioning_factor.is_some()),
            ("endpoint_stale_after", policy.endpoint_stale_after.is_some()),
        ];
        self.reader.warn_fields(&path, ignored, "is ignored");
        let path = path.field("drop_overloads");
        let mut drops = Vec::new();
        for (i, overload) in policy.drop_overloads.iter().enumerate() {
            let path = path.index(i);
            let category = path.field("category");
            self.reader.name(&overload.category, &category);
            let path = path.field("drop_percentage");
            let Some(percentage) = &overload.drop_percentage else {
                self.reader.problem(&path, "must be set");
                continue;
            };
            let rate = self.reader.fraction(*percentage, &path);
            drops.extend(rate.map(|(requests_per_million, _)| DropCategory {
                category: overload.category.as_str().into(),
                requests_per_million,
            }));
        }
        drops
    }

    fn locality(
        &mut self,
        message: &LocalityLbEndpoints,
        endpoints: &[&[u8]],
        path: &FieldPath<'_>,
        priorities: &mut BTreeMap<u32, PriorityBuilder>,
    ) {
        let path_of_endpoints = path.field("lb_endpoints");
        let Some(weight) = message.load_balancing_weight.filter(|weight| *weight > 0) else {
            // A skipped locality need not be valid, but its endpoints must be decodable.
            for (i, bytes) in endpoints.iter().enumerate() {
                self.reader.decode::<LbEndpoint>(bytes, &path_of_endpoints.index(i));
            }
            return;
        };
        // After the check of the weight: a skipped locality must not close a gap in the priorities.
        let priority = priorities.entry(message.priority).or_default();
        if priority.weights.add_overflows(weight) {
            let text = format!(
                "the weights of the localities in priority {} add up to more than {}",
                message.priority,
                u32::MAX
            );
            self.reader.problem(&path.field("load_balancing_weight"), text);
        }
        let Some(locality) = &message.locality else {
            self.reader.problem(&path.field("locality"), "must be set");
            return;
        };
        let locality = Locality {
            region: locality.region.clone(),
            zone: locality.zone.clone(),
            sub_zone: locality.sub_zone.clone(),
        };
        // Policies compare localities by allocation first, so an unchanged one is reused.
        let locality = self.before.locality(&locality).cloned().unwrap_or_else(|| Arc::new(locality));
        if !priority.localities.insert(locality.clone()) {
            let name = quoted(&locality.to_string());
            let text = format!("the locality {name} is in priority {} more than once", message.priority);
            self.reader.problem(&path.field("locality"), text);
        }
        let path = path_of_endpoints;
        let mut weights = WeightSum::default();
        priority.endpoints.reserve(endpoints.len());
        for (i, (bytes, known)) in endpoints.iter().zip(self.before.find(message, endpoints)).enumerate() {
            let path = path.index(i);
            if let Some(known) = known {
                if weights.add_overflows(known.weight().unwrap_or(1)) {
                    self.reader.problem(&path, "is too heavy");
                }
                // Its addresses are compared with all others at the end.
                self.known.push(known);
                priority.endpoints.push(known.clone());
                continue;
            }
            // Only the fast reader uses it: the thorough one needs field paths.
            if let DuplicateCheck::Deferred(addresses) = &mut self.addresses
                && let Some(plain) = plain_endpoint::read(bytes)
            {
                // Unhealthy endpoints are skipped before their weight and address are checked.
                let Some(health) = health(plain.health_status) else { continue };
                if weights.add_overflows(plain.weight.unwrap_or(1)) {
                    self.reader.problem(&path, "is too heavy");
                }
                addresses.push(plain.address);
                let (locality, own) = ((locality.clone(), weight), plain.weight.unwrap_or(0));
                priority.endpoints.push(Endpoint::in_locality(locality, plain.address, own, health));
                continue;
            }
            let Some(endpoint) = self.reader.decode::<LbEndpoint>(bytes, &path) else { continue };
            let Some(health) = health(endpoint.health_status) else { continue };
            if weights.add_overflows(endpoint.load_balancing_weight.unwrap_or(1)) {
                let text =
                    format!("the weights of the locality's endpoints add up to more than {}", u32::MAX);
                self.reader.problem(&path.field("load_balancing_weight"), text);
            }
            if let Some(endpoint) = self.endpoint(&endpoint, &path) {
                let endpoint = endpoint.with_health(health).with_locality(locality.clone(), weight);
                priority.endpoints.push(endpoint);
            }
        }
    }

    fn endpoint(&mut self, message: &LbEndpoint, path: &FieldPath<'_>) -> Option<Endpoint> {
        if message.load_balancing_weight == Some(0) {
            self.reader.problem(&path.field("load_balancing_weight"), "must be at least 1, found 0");
        }
        let hash_key = message.metadata.as_ref().and_then(|metadata| self.hash_key(metadata, path));
        let path = path.field("endpoint");
        let Some(HostIdentifier::Endpoint(endpoint)) = &message.host_identifier else {
            self.reader.problem(&path, "must be set");
            return None;
        };
        self.reader.length(&endpoint.hostname, &path.field("hostname"));
        let further = &endpoint.additional_addresses;
        if further.len() >= MAX_ADDRESSES {
            let found = further.len().saturating_add(1);
            let text = format!("an endpoint has at most {MAX_ADDRESSES} addresses, found {found}");
            self.reader.problem(&path.field("additional_addresses"), text);
            return None;
        }
        // All addresses are read before one that is missing ends the function (VAL-X1).
        let first = self.address(endpoint.address.as_ref(), &path.field("address"));
        let further_path = path.field("additional_addresses");
        let further: Vec<Option<SocketAddr>> = further
            .iter()
            .enumerate()
            .map(|(i, address)| {
                let path = further_path.index(i);
                self.address(address.address.as_ref(), &path.field("address"))
            })
            .collect();
        // Nearly all endpoints have one address.
        let known = if further.is_empty() {
            Endpoint::at(first?)
        } else {
            let addresses: Option<Vec<_>> = [first].into_iter().chain(further).collect();
            Endpoint::new(addresses?)
        };
        let mut known = known.with_weight(message.load_balancing_weight.unwrap_or(0));
        if !endpoint.hostname.is_empty() {
            known = known.with_hostname(endpoint.hostname.as_str());
        }
        if let Some(key) = hash_key {
            known = known.with_metadata(HASH_KEY, key);
        }
        Some(known)
    }

    /// Reads an IP address with a port, and checks that it is unique in the resource.
    fn address(&mut self, message: Option<&AddressMessage>, path: &FieldPath<'_>) -> Option<SocketAddr> {
        let path = path.field("socket_address");
        let Some(AddressKind::SocketAddress(socket)) = message.and_then(|message| message.address.as_ref())
        else {
            self.reader.problem(&path, "must be set");
            return None;
        };
        if socket.protocol != Protocol::Tcp as i32 {
            let text = format!("expected TCP (0), found {}", socket.protocol);
            self.reader.problem(&path.field("protocol"), text);
        }
        let ip = socket.address.parse::<IpAddr>();
        if ip.is_err() {
            let text = format!("expected an IPv4 or IPv6 address, found {}", quoted(&socket.address));
            self.reader.problem(&path.field("address"), text);
        }
        let port_path = path.field("port_value");
        let port = match &socket.port_specifier {
            Some(PortSpecifier::PortValue(port)) => {
                let known = u16::try_from(*port).ok().filter(|port| *port > 0);
                if known.is_none() {
                    self.reader.problem(&port_path, format!("expected a port from 1 to 65535, found {port}"));
                }
                known
            }
            Some(PortSpecifier::NamedPort(name)) => {
                self.reader.problem(&port_path, format!("must be set; found named_port {}", quoted(name)));
                None
            }
            None => {
                self.reader.problem(&port_path, "must be set");
                None
            }
        };
        let address = SocketAddr::new(ip.ok()?, port?);
        if self.addresses.is_duplicate(address) {
            self.reader.problem(&path, format!("the address {address} is in the resource more than once"));
        }
        Some(address)
    }

    /// Returns the key that replaces the address in the hash ring (A76).
    fn hash_key(&mut self, metadata: &Metadata, path: &FieldPath<'_>) -> Option<String> {
        let (namespace, key) = HASH_KEY;
        let value = metadata.filter_metadata.get(namespace)?.fields.get(key)?;
        let path = path.field("metadata");
        let path = path.field("filter_metadata");
        let path = path.key(namespace);
        let path = path.key("hash_key");
        let Some(Kind::StringValue(key)) = &value.kind else {
            self.reader.warn(&path, "is ignored: it is not a string");
            return None;
        };
        self.reader.length(key, &path);
        Some(key.clone()).filter(|key| !key.is_empty())
    }
}

/// Returns the health of a usable endpoint. A draining endpoint may serve only its existing sessions (A55),
/// which are not supported.
pub(super) fn health(status: i32) -> Option<EndpointHealthStatus> {
    match HealthStatus::try_from(status) {
        Ok(HealthStatus::Unknown) => Some(EndpointHealthStatus::Unknown),
        Ok(HealthStatus::Healthy) => Some(EndpointHealthStatus::Healthy),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_core::Registry;
    use evenkeel_proto::prost::Message as _;
    use evenkeel_proto::prost::encoding::bytes::encode;
    use proptest::prelude::*;
    use proptest::sample::select;
    use testkit::resources;

    use super::*;

    /// Encodes a resource with these localities: priority, weight and encoded endpoints of each.
    fn resource(all: &[(u32, u32, Vec<Vec<u8>>)]) -> Vec<u8> {
        let named =
            ClusterLoadAssignment { cluster_name: "c".to_owned(), ..ClusterLoadAssignment::default() };
        let mut bytes = named.encode_to_vec();
        for (i, (priority, weight, endpoints)) in all.iter().enumerate() {
            let mut locality = resources::locality(&i.to_string(), *weight, *priority, &[]).encode_to_vec();
            for endpoint in endpoints {
                encode(ENDPOINTS_FIELD, endpoint, &mut locality);
            }
            encode(LOCALITIES_FIELD, &locality, &mut bytes);
        }
        bytes
    }

    /// Returns all parsed contents, or the validation errors.
    fn told(
        read: Result<ParsedResource, RejectedResource>,
    ) -> Result<(String, Vec<Vec<Endpoint>>, String), RejectedResource> {
        let ParsedResource { name, resource, warnings } = read?;
        let Resource::Endpoints(set) = resource else { panic!("not endpoints: {resource:?}") };
        let EndpointSet { priorities, drops, note } = &*set;
        let endpoints = priorities.iter().map(|priority| priority.iter().cloned().collect()).collect();
        Ok((name, endpoints, format!("{drops:?} {note:?} {warnings:?}")))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        /// Compares both readers on valid endpoints, and on endpoints that are invalid alone or in
        /// combination.
        #[test]
        fn what_is_read_quickly_is_what_is_read_as_a_whole(
            localities in prop::collection::vec(
                (
                    prop_oneof![9 => Just(0), 1 => 1..3_u32],
                    prop_oneof![9 => 1..4_u32, 1 => select(vec![0, u32::MAX])],
                    prop::collection::vec(plain_endpoint::tests::endpoints(), 0..4),
                ),
                1..4,
            ),
        ) {
            let (parser, from) = (ResourceParser::new(Registry::empty()), ServerConfig::insecure("xds.test:443"));
            let bytes = resource(&localities);
            let (localities, beside) = wire::split_field(&bytes, LOCALITIES_FIELD).expect("they were just put together");
            let message = ClusterLoadAssignment::decode(&*beside).expect("a message");
            let whole = told(EndpointsReader::thorough(&parser, &from).finish(&message, &localities));
            let quick = told(EndpointsReader::fast(&parser, &from, PreviousEndpoints::default()).finish(&message, &localities));
            prop_assert_eq!(quick.as_ref().ok(), whole.as_ref().ok());
            prop_assert_eq!(told(parse(&bytes, &parser, &from, None)), whole);
        }
    }
}
