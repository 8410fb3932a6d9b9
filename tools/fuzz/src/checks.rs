//! Properties of the parsers for arbitrary input. The fuzz targets call these checks. A test of
//! `evenkeel-xds` calls them with generated cases, so that they stay valid.

use std::sync::Arc;

use evenkeel_core::{Instant, Registry, Rng};
use evenkeel_proto::envoy::config::cluster::v3::cluster::LbPolicy;
use evenkeel_proto::envoy::config::cluster::v3::load_balancing_policy::Policy;
use evenkeel_proto::envoy::config::cluster::v3::{Cluster, LoadBalancingPolicy, OutlierDetection};
use evenkeel_proto::envoy::config::core::v3::TypedExtensionConfig;
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_proto::envoy::config::listener::v3::Listener;
use evenkeel_proto::envoy::config::route::v3::RouteConfiguration;
use evenkeel_proto::envoy::extensions::load_balancing_policies::round_robin::v3::RoundRobin;
use evenkeel_proto::envoy::extensions::load_balancing_policies::wrr_locality::v3::WrrLocality;
use evenkeel_proto::envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse, Resource};
use evenkeel_proto::prost::{Message, Name};
use evenkeel_proto::prost_types::{Any, Timestamp};
use evenkeel_xds::XdsLimits;
use evenkeel_xds::ads::{AdsClient, AdsEffect, AdsEvent, AdsRequest, XdsVariant};
use evenkeel_xds::bootstrap::{Bootstrap, ServerConfig};
use evenkeel_xds::resource::name::ResourceName;
use evenkeel_xds::resource::{ResourceParser, ResourceType};
use testkit::resources;

/// Maximum length of the error text of one resource. It covers all distinct problems, each with a path and a
/// text with truncated input.
pub const MAX_TEXT: usize = 64 << 10;

/// Parses resources as a client with one certificate provider, from a trusted server.
pub struct Resources {
    parser: ResourceParser,
    server: ServerConfig,
}

impl Resources {
    /// Creates a parser with all built-in policies.
    pub fn new() -> Resources {
        let mut parser = ResourceParser::new(Registry::standard());
        parser.certificate_providers.insert("default".to_owned());
        let mut server = ServerConfig::insecure("localhost:18000");
        server.features.trusted_xds_server = true;
        Resources { parser, server }
    }

    /// Returns true if the bytes are a valid resource of this type. Asserts that any error is usable for an
    /// operator, and that the result is deterministic.
    pub fn check(&self, kind: ResourceType, bytes: &[u8]) -> bool {
        let any = Any { type_url: kind.type_url().to_owned(), value: bytes.to_vec() };
        let name = name_of(kind, bytes);
        let parsed = self.parser.parse(kind, &any, &self.server);
        let again = self.parser.parse(kind, &any, &self.server);
        assert_eq!(format!("{parsed:?}"), format!("{again:?}"), "the same bytes are the same resource");
        match parsed {
            Ok(parsed) => {
                assert_eq!(Some(parsed.name), name, "a resource has the name that was sent");
                let said: usize = parsed.warnings.iter().map(String::len).sum();
                assert!(said <= MAX_TEXT, "{said} bytes of warnings");
                assert!(parsed.warnings.iter().all(|warning| !warning.is_empty()));
                true
            }
            Err(rejected) => {
                if name.as_ref().is_some_and(|name| !name.is_empty()) {
                    assert_eq!(rejected.name, name, "a rejection says whose it is: {}", rejected.problems);
                }
                assert!(rejected.problems.iter().count() > 0, "a rejection has a reason");
                assert!(rejected.problems.iter().all(|problem| !problem.text.is_empty()));
                let said = rejected.problems.to_string().len();
                assert!(said <= MAX_TEXT, "{said} bytes of problems");
                false
            }
        }
    }
}

impl Default for Resources {
    fn default() -> Resources {
        Resources::new()
    }
}

/// Parses bytes as a bootstrap, and uses a valid one as a channel and a server would.
pub fn check_bootstrap(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    match Bootstrap::from_json(text) {
        Ok(bootstrap) => {
            assert!(!bootstrap.servers.is_empty());
            assert!(bootstrap.authorities.values().all(|authority| !authority.servers.is_empty()));
            assert!(bootstrap.warnings().iter().all(|warning| !warning.is_empty()));
            for target in ["xds:///orders", "xds://a/[::1]:80/b c"] {
                match bootstrap.listener_name(target) {
                    Ok(target) => {
                        assert!(!target.listener.as_str().is_empty() && !target.authority.is_empty());
                    }
                    Err(error) => assert!(error.to_string().starts_with("target ")),
                }
            }
            let _ = bootstrap.server_listener_name("[::]:80").map_err(|error| error.to_string());
            assert_eq!(Bootstrap::from_json(text).ok(), Some(bootstrap));
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.starts_with("bootstrap: ") && text.len() <= MAX_TEXT, "{} bytes", text.len());
        }
    }
}

/// Delivers these bytes as a response to a client that subscribes to one resource of each type. Asserts that
/// it continues or closes the stream, and that its requests are bounded.
pub fn check_response(variant: XdsVariant, bytes: &[u8]) {
    let text = r#"{"xds_servers": [{"server_uri": "one", "channel_creds": [{"type": "insecure"}]}]}"#;
    let bootstrap = Bootstrap::from_json(text).expect("it is valid");
    let parser = ResourceParser::new(Registry::standard());
    let now = Instant::ORIGIN;
    let mut client = AdsClient::new(Arc::new(bootstrap), parser, variant, Rng::fixed(1));
    let channel = client.add_subscriber();
    let wanted = WANTED.map(|(kind, name)| (kind, name.to_owned()));
    client.watch(channel, wanted.into(), now);
    let Some(AdsEffect::Open { stream, .. }) = client.poll_effect() else { panic!("it opens a stream") };
    client.handle(AdsEvent::Opened { stream }, now);
    let drain = |client: &mut AdsClient| {
        let (mut reads, mut closes) = (0, 0);
        while let Some(effect) = client.poll_effect() {
            match effect {
                AdsEffect::Read { .. } => reads += 1,
                AdsEffect::Close { .. } => closes += 1,
                AdsEffect::Send { request, .. } => {
                    let detail = match *request {
                        AdsRequest::Sotw(request) => request.error_detail,
                        AdsRequest::Delta(request) => request.error_detail,
                    };
                    let said = detail.map(|detail| detail.message).unwrap_or_default();
                    assert!(said.len() <= XdsLimits::default().error_bytes, "{} bytes of NACK", said.len());
                    client.handle(AdsEvent::Written { stream }, now);
                }
                AdsEffect::Warn(text) | AdsEffect::Info(text) => {
                    assert!(!text.is_empty() && text.len() <= MAX_TEXT);
                }
                AdsEffect::Open { .. } => {}
            }
        }
        (reads, closes)
    };
    assert_eq!(drain(&mut client), (1, 0), "it reads");
    client.handle(AdsEvent::Message { stream, bytes }, now);
    let mut after = drain(&mut client);
    while let Some((id, _)) = client.poll_changed() {
        client.processed(id);
        let more = drain(&mut client);
        after = (after.0 + more.0, after.1 + more.1);
    }
    assert!(matches!(after, (1, 0) | (0, 1)), "it reads on or hangs up: {after:?}");
    for (kind, name) in WANTED {
        client.resource_state(kind, name);
    }
    let dump = client.dump("fuzz", |_| Timestamp::default());
    assert_eq!(dump.generic_xds_configs.len(), WANTED.len());
}

/// Subscriptions of the client in [`check_response`]: the names of the seeds.
const WANTED: [(ResourceType, &str); 4] = [
    (ResourceType::Listener, "orders"),
    (ResourceType::RouteConfig, "routes"),
    (ResourceType::Cluster, "a"),
    (ResourceType::Endpoints, "a"),
];

/// Returns a response with all seeds of a type.
pub fn response(variant: XdsVariant, kind: ResourceType) -> Vec<u8> {
    let any = |value| Any { type_url: kind.type_url().to_owned(), value };
    let (type_url, nonce) = (kind.type_url().to_owned(), "n".to_owned());
    match variant {
        XdsVariant::StateOfTheWorld => DiscoveryResponse {
            version_info: "1".to_owned(),
            resources: seeds(kind).into_iter().map(any).collect(),
            type_url,
            nonce,
            ..DiscoveryResponse::default()
        }
        .encode_to_vec(),
        XdsVariant::Delta => {
            let wrap = |value| Resource { resource: Some(any(value)), ..Resource::default() };
            DeltaDiscoveryResponse {
                resources: seeds(kind).into_iter().map(wrap).collect(),
                type_url,
                nonce,
                ..DeltaDiscoveryResponse::default()
            }
            .encode_to_vec()
        }
    }
}

/// Parses bytes as a name of each type. Asserts that the canonical form of a valid name parses to itself.
pub fn check_name(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    for kind in ResourceType::ALL {
        match ResourceName::parse(kind, text) {
            Ok(name) => {
                assert_eq!(name.authority().is_some(), text.starts_with("xdstp:"));
                assert_eq!(ResourceName::parse(kind, name.as_str()), Ok(name));
            }
            Err(error) => assert!(error.to_string().len() <= 4 << 10, "{error}"),
        }
    }
}

/// Returns the name of a resource, if the bytes decode as its message.
fn name_of(kind: ResourceType, bytes: &[u8]) -> Option<String> {
    match kind {
        ResourceType::Listener => Listener::decode(bytes).ok().map(|listener| listener.name),
        ResourceType::RouteConfig => RouteConfiguration::decode(bytes).ok().map(|routes| routes.name),
        ResourceType::Cluster => Cluster::decode(bytes).ok().map(|cluster| cluster.name),
        ResourceType::Endpoints => ClusterLoadAssignment::decode(bytes).ok().map(|load| load.cluster_name),
    }
}

/// Returns valid resources as seeds.
pub fn seeds(kind: ResourceType) -> Vec<Vec<u8>> {
    match kind {
        ResourceType::Listener => vec![
            resources::listener_with_rds("orders", "routes").encode_to_vec(),
            resources::listener_with_routes("orders", resources::route_config("", "a")).encode_to_vec(),
        ],
        ResourceType::RouteConfig => {
            let mut two = resources::route_config("routes", "a");
            two.virtual_hosts.push(resources::virtual_host(
                "*.example.com",
                vec![resources::route("/shop.Orders/", "a"), resources::route("", "b")],
            ));
            vec![resources::route_config("routes", "a").encode_to_vec(), two.encode_to_vec()]
        }
        ResourceType::Cluster => {
            let mut balanced = resources::cluster("a");
            balanced.load_balancing_policy = Some(wrr_locality(one_policy(&RoundRobin::default())));
            balanced.outlier_detection = Some(OutlierDetection::default());
            let mut ring = resources::cluster("a");
            ring.set_lb_policy(LbPolicy::RingHash);
            vec![
                resources::cluster("a").encode_to_vec(),
                resources::dns_cluster("a", "orders.example.com", 443).encode_to_vec(),
                resources::aggregate_cluster("a", &["b", "c"]).encode_to_vec(),
                balanced.encode_to_vec(),
                ring.encode_to_vec(),
            ]
        }
        ResourceType::Endpoints => {
            let mut two = resources::load_assignment("a", &["10.0.0.1:80", "10.0.0.2:80"]);
            two.endpoints.push(resources::locality("far", 3, 1, &["[2001:db8::1]:80"]));
            vec![resources::load_assignment("a", &["10.0.0.1:80"]).encode_to_vec(), two.encode_to_vec()]
        }
    }
}

/// Returns a list with one policy.
pub fn one_policy<M: Name>(policy: &M) -> LoadBalancingPolicy {
    policies([(M::NAME, resources::any(policy))])
}

/// Returns a wrr_locality policy with this child.
pub fn wrr_locality(over: LoadBalancingPolicy) -> LoadBalancingPolicy {
    one_policy(&WrrLocality { endpoint_picking_policy: Some(over) })
}

/// Returns a list of named policies.
pub fn policies<'a>(list: impl IntoIterator<Item = (&'a str, Any)>) -> LoadBalancingPolicy {
    let policies = list.into_iter().map(|(name, config)| {
        let config = TypedExtensionConfig { name: name.to_owned(), typed_config: Some(config) };
        Policy { typed_extension_config: Some(config) }
    });
    LoadBalancingPolicy { policies: policies.collect() }
}
