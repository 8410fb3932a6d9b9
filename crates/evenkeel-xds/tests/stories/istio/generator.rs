//! Resources as istiod serves them to proxyless gRPC clients (`GENERATOR: grpc`), made from a small description.
//!
//! The shapes follow Istio's published generator (`pilot/pkg/networking/grpcgen` and `pilot/pkg/xds/endpoints`), with
//! every field that it fills. Fields that evenkeel's copy of the protocol omits are appended as raw bytes, since a
//! client has to skip them. A [`ServiceSpec`] holds the parts of a `ServiceEntry`, a `VirtualService` and a
//! `DestinationRule` that reach gRPC clients.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel_proto::envoy::config::cluster::v3::circuit_breakers::Thresholds;
use evenkeel_proto::envoy::config::cluster::v3::cluster::{
    ClusterDiscoveryType, DiscoveryType, EdsClusterConfig, LbConfig, LbPolicy, RingHashLbConfig,
};
use evenkeel_proto::envoy::config::cluster::v3::{CircuitBreakers, Cluster};
use evenkeel_proto::envoy::config::core::v3::transport_socket::ConfigType;
use evenkeel_proto::envoy::config::core::v3::{HealthStatus, Locality, Metadata, TransportSocket};
use evenkeel_proto::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpoint, LocalityLbEndpoints};
use evenkeel_proto::envoy::config::listener::v3::Listener;
use evenkeel_proto::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use evenkeel_proto::envoy::config::route::v3::route_action::hash_policy::{Header, PolicySpecifier};
use evenkeel_proto::envoy::config::route::v3::route_action::{
    ClusterSpecifier, HashPolicy, MaxStreamDuration,
};
use evenkeel_proto::envoy::config::route::v3::route_match::PathSpecifier;
use evenkeel_proto::envoy::config::route::v3::weighted_cluster::ClusterWeight;
use evenkeel_proto::envoy::config::route::v3::{
    HeaderMatcher, RetryPolicy, Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost,
    WeightedCluster,
};
use evenkeel_proto::envoy::extensions::filters::common::fault::v3::FaultDelay;
use evenkeel_proto::envoy::extensions::filters::common::fault::v3::fault_delay::FaultDelaySecifier;
use evenkeel_proto::envoy::extensions::filters::http::fault::v3::fault_abort::ErrorType;
use evenkeel_proto::envoy::extensions::filters::http::fault::v3::{FaultAbort, HttpFault};
use evenkeel_proto::envoy::extensions::filters::http::router::v3::Router;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, Rds,
};
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::common_tls_context::{
    CertificateProviderInstance, CombinedCertificateValidationContext, ValidationContextType,
};
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::{
    CertificateProviderPluginInstance, CertificateValidationContext, CommonTlsContext, UpstreamTlsContext,
};
use evenkeel_proto::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use evenkeel_proto::envoy::r#type::matcher::v3::{RegexMatcher, StringMatcher};
use evenkeel_proto::envoy::r#type::v3::FractionalPercent;
use evenkeel_proto::envoy::r#type::v3::fractional_percent::DenominatorType;
use evenkeel_proto::prost::encoding::{WireType, encode_key, encode_varint};
use evenkeel_proto::prost::{Message, Name};
use evenkeel_proto::prost_types::{self, Any, Struct, Value, value::Kind};
use evenkeel_xds::resource::ResourceType;
use testkit::resources::{address, ads, any, endpoint, filter, listener};

/// A service of the mesh and the configuration that applies to it.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceSpec {
    pub(super) host: String,
    pub(super) port: u16,
    /// Routes of the `VirtualService`; the default route if there are none.
    pub(super) routes: Vec<RouteSpec>,
    /// Traffic policy of the `DestinationRule`.
    pub(super) policy: PolicySpec,
    /// Subsets by name, each with the value of the label `version` that selects its endpoints.
    pub(super) subsets: BTreeMap<String, String>,
    pub(super) endpoints: Vec<EndpointSpec>,
    /// SPIFFE ids that the service runs as.
    pub(super) identities: Vec<String>,
}

/// An HTTP route of a `VirtualService`.
#[derive(Clone, Debug, Default)]
pub(super) struct RouteSpec {
    pub(super) path: Option<PathMatch>,
    pub(super) headers: Vec<(String, TextMatch)>,
    pub(super) without_headers: Vec<(String, TextMatch)>,
    /// Subsets with their weights; the service itself is the subset `""`.
    pub(super) destinations: Vec<(String, u32)>,
    pub(super) timeout: Option<Duration>,
    pub(super) retries: Option<RetrySpec>,
    pub(super) fault: Option<FaultSpec>,
}

#[derive(Clone, Debug)]
pub(super) enum PathMatch {
    Exact(&'static str),
    Prefix(&'static str),
    Regex(&'static str),
}

#[derive(Clone, Debug)]
pub(super) enum TextMatch {
    Exact(&'static str),
    Prefix(&'static str),
    Regex(&'static str),
    Present,
}

#[derive(Clone, Debug)]
pub(super) struct RetrySpec {
    /// Retries beyond the first attempt; 0 turns them off.
    pub(super) attempts: u32,
    pub(super) retry_on: &'static str,
    pub(super) per_try_timeout: Duration,
}

#[derive(Clone, Debug, Default)]
pub(super) struct FaultSpec {
    /// Percentage of calls and their delay.
    pub(super) delay: Option<(f64, Duration)>,
    /// Percentage of calls and their gRPC status.
    pub(super) abort: Option<(f64, u32)>,
}

/// The parts of a traffic policy that Istio translates for gRPC clients.
#[derive(Clone, Debug, Default)]
pub(super) struct PolicySpec {
    /// Header that consistent hashing uses.
    pub(super) hash_header: Option<&'static str>,
    pub(super) least_request: bool,
    pub(super) max_requests: Option<u32>,
    pub(super) istio_mutual: bool,
    /// Outlier detection. It is not sent to gRPC clients, but it turns locality failover on.
    pub(super) outlier_detection: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct EndpointSpec {
    pub(super) address: &'static str,
    pub(super) port: u16,
    pub(super) weight: u32,
    /// Value of the label `version`.
    pub(super) version: &'static str,
    /// Region, zone and sub-zone, separated by slashes.
    pub(super) locality: &'static str,
}

impl ServiceSpec {
    /// Returns the name of a subset's cluster, route configuration and endpoints.
    pub(super) fn key(&self, subset: &str) -> String {
        format!("outbound|{}|{subset}|{}", self.port, self.host)
    }

    /// Returns the name of the listener, which is also the authority of calls.
    pub(super) fn target(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Returns the resource of a type and name that istiod serves to a client in `from`, if it exists.
    pub(super) fn resource(&self, kind: ResourceType, name: &str, from: &str) -> Option<Any> {
        let subset = || {
            let names = self.subsets.keys().map(String::as_str).chain([""]);
            names.into_iter().find(|subset| self.key(subset) == name)
        };
        match kind {
            ResourceType::Listener => (name == self.target()).then(|| any(&self.listener())),
            ResourceType::RouteConfig => (name == self.key("")).then(|| self.route_config()),
            ResourceType::Cluster => Some(self.cluster(subset()?)),
            ResourceType::Endpoints => Some(any(&self.load_assignment(subset()?, from))),
        }
    }

    fn listener(&self) -> Listener {
        let rds = Rds { route_config_name: self.key(""), config_source: Some(ads()) };
        let manager = HttpConnectionManager {
            http_filters: vec![
                filter("envoy.filters.http.fault", any(&HttpFault::default())),
                filter("envoy.filters.http.router", any(&Router::default())),
            ],
            route_specifier: Some(RouteSpecifier::Rds(rds)),
            ..HttpConnectionManager::default()
        };
        Listener { address: Some(address("240.240.0.7", self.port)), ..listener(&self.target(), &manager) }
    }

    fn route_config(&self) -> Any {
        let target = self.target();
        let host = VirtualHost {
            name: target.clone(),
            domains: vec![
                self.host.clone(),
                target,
                "240.240.0.7".to_owned(),
                format!("240.240.0.7:{}", self.port),
            ],
            ..VirtualHost::default()
        };
        let mut host = RawMessage::of(&host);
        if self.routes.is_empty() {
            host = host.message(3, &self.default_route());
        }
        for route in &self.routes {
            host = host.message(3, &self.route(route));
        }
        // include_request_attempt_count
        let host = host.number(14, 1);
        let config = RouteConfiguration { name: self.key(""), ..RouteConfiguration::default() };
        RawMessage::of(&config).message(2, &host).packed::<RouteConfiguration>()
    }

    /// Returns the route of a service without a `VirtualService`. It has the deprecated limits and no stream
    /// duration.
    fn default_route(&self) -> RawMessage {
        let action = RouteAction {
            cluster_specifier: Some(ClusterSpecifier::Cluster(self.key(""))),
            timeout: Some(prost_types::Duration::default()),
            max_grpc_timeout: Some(prost_types::Duration::default()),
            ..RouteAction::default()
        };
        let route = Route { name: "default".to_owned(), r#match: Some(prefix("/")), ..Route::default() };
        let action = RawMessage::of(&action).message(9, &self.retry_policy(None));
        let operation = format!("{}/*", self.target());
        RawMessage::of(&route).message(2, &action).message(5, &RawMessage::default().text(1, &operation))
    }

    fn route(&self, spec: &RouteSpec) -> RawMessage {
        let limit = proto_duration(spec.timeout.unwrap_or_default());
        let action = RouteAction {
            cluster_specifier: Some(self.destinations(&spec.destinations)),
            timeout: Some(limit),
            max_stream_duration: Some(MaxStreamDuration {
                max_stream_duration: Some(limit),
                ..MaxStreamDuration::default()
            }),
            // Istio repeats the policy for every weighted destination.
            hash_policy: spec.destinations.iter().filter_map(|_| self.hash_policy()).collect(),
            ..RouteAction::default()
        };
        let mut action = RawMessage::of(&action);
        if spec.retries.as_ref().is_none_or(|retries| retries.attempts > 0) {
            action = action.message(9, &self.retry_policy(spec.retries.as_ref()));
        }
        let mut route = Route { r#match: Some(route_match(spec)), ..Route::default() };
        if let Some(fault) = &spec.fault {
            let fault = any(&http_fault(fault));
            route.typed_per_filter_config.insert("envoy.filters.http.fault".to_owned(), fault);
        }
        let config = "/apis/networking.istio.io/v1/namespaces/shop/virtual-service/orders";
        let metadata = metadata("istio", &[("config", config)]);
        let decorator = RawMessage::default().text(1, &format!("orders:{}/*", self.port));
        RawMessage::of(&route)
            .message(2, &action)
            .message(4, &RawMessage::of(&metadata))
            .message(5, &decorator)
    }

    fn destinations(&self, destinations: &[(String, u32)]) -> ClusterSpecifier {
        if let [(subset, _)] = destinations {
            return ClusterSpecifier::Cluster(self.key(subset));
        }
        // Destinations without weight are left out.
        let weighted = destinations.iter().filter(|(_, weight)| *weight > 0);
        let clusters = weighted.map(|(subset, weight)| ClusterWeight {
            name: self.key(subset),
            weight: Some(*weight),
            ..ClusterWeight::default()
        });
        ClusterSpecifier::WeightedClusters(WeightedCluster {
            clusters: clusters.collect(),
            ..WeightedCluster::default()
        })
    }

    fn hash_policy(&self) -> Option<HashPolicy> {
        let header = Header { header_name: self.policy.hash_header?.to_owned(), ..Header::default() };
        Some(HashPolicy { policy_specifier: Some(PolicySpecifier::Header(header)), terminal: false })
    }

    fn retry_policy(&self, spec: Option<&RetrySpec>) -> RawMessage {
        let default = "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes";
        let policy = RetryPolicy {
            retry_on: spec.map_or(default, |spec| spec.retry_on).to_owned(),
            num_retries: Some(spec.map_or(2, |spec| spec.attempts)),
            per_try_timeout: spec.map(|spec| proto_duration(spec.per_try_timeout)),
            ..RetryPolicy::default()
        };
        let mut policy = RawMessage::of(&policy);
        if self.policy.hash_header.is_none() {
            let predicate = "envoy.retry_host_predicates.previous_hosts";
            let config = Any {
                type_url:
                    "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                        .to_owned(),
                value: Vec::new(),
            };
            let predicate = RawMessage::default().text(1, predicate).message(3, &RawMessage::of(&config));
            policy = policy.message(5, &predicate);
        }
        // host_selection_retry_max_attempts
        policy.number(6, 5)
    }

    fn cluster(&self, subset: &str) -> Any {
        let name = self.key(subset);
        let mut cluster = Cluster {
            name: name.clone(),
            cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into())),
            eds_cluster_config: Some(EdsClusterConfig {
                eds_config: Some(ads()),
                service_name: name.clone(),
            }),
            ..Cluster::default()
        };
        if self.policy.hash_header.is_some() {
            cluster.lb_policy = LbPolicy::RingHash.into();
            let ring = RingHashLbConfig { minimum_ring_size: Some(1024), ..RingHashLbConfig::default() };
            cluster.lb_config = Some(LbConfig::RingHashLbConfig(ring));
        } else if self.policy.least_request {
            cluster.lb_policy = LbPolicy::LeastRequest.into();
        }
        cluster.circuit_breakers = self.policy.max_requests.map(|max| CircuitBreakers {
            thresholds: vec![Thresholds { max_requests: Some(max), ..Thresholds::default() }],
            ..CircuitBreakers::default()
        });
        if self.policy.istio_mutual {
            cluster.transport_socket = Some(TransportSocket {
                name: "envoy.transport_sockets.tls".to_owned(),
                config_type: Some(ConfigType::TypedConfig(any(&self.tls_context()))),
            });
        }
        // alt_stat_name
        RawMessage::of(&cluster).text(28, &format!("{name};")).packed::<Cluster>()
    }

    /// Names each provider twice: in the current field and in the deprecated one.
    fn tls_context(&self) -> UpstreamTlsContext {
        let current = |certificate: &str| CertificateProviderPluginInstance {
            instance_name: "default".to_owned(),
            certificate_name: certificate.to_owned(),
        };
        let deprecated = |certificate: &str| CertificateProviderInstance {
            instance_name: "default".to_owned(),
            certificate_name: certificate.to_owned(),
        };
        let identities = self.identities.iter().map(|identity| exact(identity));
        let validation = CombinedCertificateValidationContext {
            default_validation_context: Some(CertificateValidationContext {
                match_subject_alt_names: identities.collect(),
                ca_certificate_provider_instance: Some(current("ROOTCA")),
                ..CertificateValidationContext::default()
            }),
            validation_context_certificate_provider_instance: Some(deprecated("ROOTCA")),
            ..CombinedCertificateValidationContext::default()
        };
        UpstreamTlsContext {
            common_tls_context: Some(CommonTlsContext {
                tls_certificate_provider_instance: Some(current("default")),
                tls_certificate_certificate_provider_instance: Some(deprecated("default")),
                validation_context_type: Some(ValidationContextType::CombinedValidationContext(validation)),
                ..CommonTlsContext::default()
            }),
            ..UpstreamTlsContext::default()
        }
    }

    fn load_assignment(&self, subset: &str, from: &str) -> ClusterLoadAssignment {
        let version = self.subsets.get(subset);
        let mut localities: BTreeMap<&str, Vec<&EndpointSpec>> = BTreeMap::new();
        for spec in &self.endpoints {
            if version.is_none_or(|version| version == spec.version) {
                localities.entry(spec.locality).or_default().push(spec);
            }
        }
        let distances: BTreeSet<_> = localities.keys().map(|locality| distance(from, locality)).collect();
        let endpoints = localities.into_iter().map(|(locality, members)| {
            // Priorities have no gaps.
            let rank = distances.range(..distance(from, locality)).count();
            LocalityLbEndpoints {
                locality: Some(proto_locality(locality)),
                load_balancing_weight: Some(members.iter().map(|spec| spec.weight).sum()),
                lb_endpoints: members.into_iter().map(|spec| self.endpoint(spec)).collect(),
                priority: if self.policy.outlier_detection { rank as u32 } else { 0 },
                ..LocalityLbEndpoints::default()
            }
        });
        ClusterLoadAssignment {
            cluster_name: self.key(subset),
            endpoints: endpoints.collect(),
            ..ClusterLoadAssignment::default()
        }
    }

    fn endpoint(&self, spec: &EndpointSpec) -> LbEndpoint {
        let workload = format!("orders-{0};shop;orders;{0};Kubernetes", spec.version);
        let mut metadata = metadata("istio", &[("workload", &workload)]);
        if self.policy.istio_mutual {
            metadata
                .filter_metadata
                .insert("envoy.transport_socket_match".to_owned(), text_struct(&[("tlsMode", "istio")]));
        }
        LbEndpoint {
            health_status: HealthStatus::Healthy.into(),
            metadata: Some(metadata),
            load_balancing_weight: Some(spec.weight),
            ..endpoint(spec.address, spec.port)
        }
    }
}

/// Returns the distance of a locality from the client's: 0 for the same sub-zone, 3 for another region.
fn distance(from: &str, to: &str) -> usize {
    let parts = |locality: &str| {
        let mut parts = locality.split('/').map(str::to_owned);
        [parts.next(), parts.next(), parts.next()].map(Option::unwrap_or_default)
    };
    let (from, to) = (parts(from), parts(to));
    3 - from.iter().zip(&to).take_while(|(from, to)| from == to).count()
}

fn proto_locality(text: &str) -> Locality {
    let mut parts = text.split('/').map(str::to_owned);
    Locality {
        region: parts.next().unwrap_or_default(),
        zone: parts.next().unwrap_or_default(),
        sub_zone: parts.next().unwrap_or_default(),
    }
}

fn proto_duration(duration: Duration) -> prost_types::Duration {
    duration.try_into().expect("a duration within protobuf's range")
}

fn prefix(prefix: &str) -> RouteMatch {
    RouteMatch { path_specifier: Some(PathSpecifier::Prefix(prefix.to_owned())), ..RouteMatch::default() }
}

fn route_match(spec: &RouteSpec) -> RouteMatch {
    let path = match spec.path {
        None => return headers_match(spec, prefix("/")),
        Some(PathMatch::Exact(path)) => PathSpecifier::Path(path.to_owned()),
        Some(PathMatch::Prefix(path)) => PathSpecifier::Prefix(path.to_owned()),
        Some(PathMatch::Regex(path)) => PathSpecifier::SafeRegex(regex(path)),
    };
    headers_match(spec, RouteMatch { path_specifier: Some(path), ..RouteMatch::default() })
}

fn headers_match(spec: &RouteSpec, mut all: RouteMatch) -> RouteMatch {
    for (name, text) in &spec.headers {
        all.headers.push(header_match(name, text));
    }
    for (name, text) in &spec.without_headers {
        all.headers.push(HeaderMatcher {
            invert_match: true,
            treat_missing_header_as_empty: !matches!(text, TextMatch::Present),
            ..header_match(name, text)
        });
    }
    all.headers.sort_by(|a, b| a.name.cmp(&b.name));
    all.case_sensitive = Some(true);
    all
}

fn header_match(name: &str, text: &TextMatch) -> HeaderMatcher {
    let pattern = |pattern| {
        HeaderMatchSpecifier::StringMatch(StringMatcher {
            match_pattern: Some(pattern),
            ..StringMatcher::default()
        })
    };
    let specifier = match text {
        TextMatch::Exact(text) => pattern(MatchPattern::Exact((*text).to_owned())),
        TextMatch::Prefix(text) => pattern(MatchPattern::Prefix((*text).to_owned())),
        TextMatch::Regex(text) => pattern(MatchPattern::SafeRegex(regex(text))),
        TextMatch::Present => HeaderMatchSpecifier::PresentMatch(true),
    };
    HeaderMatcher {
        name: name.to_owned(),
        header_match_specifier: Some(specifier),
        ..HeaderMatcher::default()
    }
}

fn regex(text: &str) -> RegexMatcher {
    RegexMatcher { regex: text.to_owned(), ..RegexMatcher::default() }
}

fn http_fault(spec: &FaultSpec) -> HttpFault {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a percentage is small")]
    let percentage = |percent: f64| FractionalPercent {
        numerator: (percent * 10_000.0) as u32,
        denominator: DenominatorType::Million.into(),
    };
    HttpFault {
        delay: spec.delay.map(|(percent, delay)| FaultDelay {
            percentage: Some(percentage(percent)),
            fault_delay_secifier: Some(FaultDelaySecifier::FixedDelay(proto_duration(delay))),
        }),
        abort: spec.abort.map(|(percent, code)| FaultAbort {
            percentage: Some(percentage(percent)),
            error_type: Some(ErrorType::GrpcStatus(code)),
        }),
        ..HttpFault::default()
    }
}

fn exact(text: &str) -> StringMatcher {
    StringMatcher { match_pattern: Some(MatchPattern::Exact(text.to_owned())), ..StringMatcher::default() }
}

fn metadata(filter: &str, fields: &[(&str, &str)]) -> Metadata {
    Metadata { filter_metadata: [(filter.to_owned(), text_struct(fields))].into(), ..Metadata::default() }
}

fn text_struct(fields: &[(&str, &str)]) -> Struct {
    let value = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
    Struct { fields: fields.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect() }
}

/// Encoded message, for fields that evenkeel's copy of the protocol omits.
#[derive(Clone, Debug, Default)]
struct RawMessage(Vec<u8>);

impl RawMessage {
    fn of(message: &impl Message) -> RawMessage {
        RawMessage(message.encode_to_vec())
    }

    fn message(mut self, number: u32, value: &RawMessage) -> RawMessage {
        encode_key(number, WireType::LengthDelimited, &mut self.0);
        encode_varint(value.0.len() as u64, &mut self.0);
        self.0.extend_from_slice(&value.0);
        self
    }

    fn text(self, number: u32, text: &str) -> RawMessage {
        self.message(number, &RawMessage(text.as_bytes().to_vec()))
    }

    fn number(mut self, number: u32, value: u64) -> RawMessage {
        encode_key(number, WireType::Varint, &mut self.0);
        encode_varint(value, &mut self.0);
        self
    }

    fn packed<M: Name>(self) -> Any {
        Any { type_url: M::type_url(), value: self.0 }
    }
}
