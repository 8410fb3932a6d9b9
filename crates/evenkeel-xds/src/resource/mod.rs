//! Parsed and validated resources.
//!
//! A resource arrives as bytes with a type. [`ResourceParser::parse`] returns a type that cannot be invalid,
//! or all validation errors at once, each with its field path (A40). Later code does not validate again.

mod addresses;
mod cluster;
mod endpoints;
mod endpoints_before;
pub(crate) mod fields;
pub(crate) mod findings;
mod listener;
pub mod name;
mod plain_endpoint;
pub(crate) mod problems;
mod reader;
mod regexes;
mod route;
mod security;
mod wire;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use evenkeel_core::Registry;
use evenkeel_core::cluster::EndpointSet;
use evenkeel_proto::prost_types::Any;

use crate::bootstrap::ServerConfig;
use crate::lb::LbPolicyConverters;
use crate::text::{quoted, quoted_long};
use crate::{FieldPath, ValidationErrors, XdsLimits};

pub use cluster::{Cluster, ClusterKind};
pub use listener::{Listener, RouteSource};
pub use route::{RouteConfig, VirtualHost};
pub use security::{
    CertificateSource, ClusterSecurity, RootCertificates, SanKind, SanMatcher, SecurityConfig,
};

/// Resource types that the client subscribes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResourceType {
    /// Resource of the message `envoy.config.listener.v3.Listener`.
    Listener,
    /// Resource of the message `envoy.config.route.v3.RouteConfiguration`.
    RouteConfig,
    /// Resource of the message `envoy.config.cluster.v3.Cluster`.
    Cluster,
    /// Resource of the message `envoy.config.endpoint.v3.ClusterLoadAssignment`.
    Endpoints,
}

impl ResourceType {
    /// All types, in the order in which they reference each other.
    pub const ALL: [ResourceType; 4] =
        [ResourceType::Listener, ResourceType::RouteConfig, ResourceType::Cluster, ResourceType::Endpoints];

    /// Returns the full name of the message.
    pub fn message(self) -> &'static str {
        match self {
            ResourceType::Listener => "envoy.config.listener.v3.Listener",
            ResourceType::RouteConfig => "envoy.config.route.v3.RouteConfiguration",
            ResourceType::Cluster => "envoy.config.cluster.v3.Cluster",
            ResourceType::Endpoints => "envoy.config.endpoint.v3.ClusterLoadAssignment",
        }
    }

    /// Returns the type URL for requests.
    pub fn type_url(self) -> &'static str {
        match self {
            ResourceType::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            ResourceType::RouteConfig => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            ResourceType::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            ResourceType::Endpoints => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        }
    }

    /// Returns the type of a type URL. The part up to the last slash is ignored.
    pub fn from_type_url(type_url: &str) -> Option<ResourceType> {
        let message = message_name(type_url);
        ResourceType::ALL.into_iter().find(|kind| kind.message() == message)
    }

    /// Returns true if a state-of-the-world response lists every existing resource, so that a missing one was
    /// deleted (A53).
    pub fn is_complete_in_sotw(self) -> bool {
        matches!(self, ResourceType::Listener | ResourceType::Cluster)
    }
}

impl fmt::Display for ResourceType {
    /// Writes the name of the type for error messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ResourceType::Listener => "listener",
            ResourceType::RouteConfig => "route configuration",
            ResourceType::Cluster => "cluster",
            ResourceType::Endpoints => "endpoints",
        })
    }
}

/// Returns the message name of a type URL: the part after the last slash.
pub(crate) fn message_name(type_url: &str) -> &str {
    type_url.rsplit('/').next().unwrap_or(type_url)
}

/// Returns the name of a resource without decoding all of it. The name is the first field.
pub(crate) fn name_within(any: &Any) -> Option<&str> {
    wire::first_text(&any.value)
}

/// Valid resource. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Resource {
    /// Listener (LDS) of a client.
    Listener(Arc<Listener>),
    /// Route configuration (RDS) of listeners.
    RouteConfig(Arc<RouteConfig>),
    /// Cluster (CDS), leaf or aggregate.
    Cluster(Arc<Cluster>),
    /// Endpoints (EDS) of a cluster.
    Endpoints(Arc<EndpointSet>),
}

/// Valid resource with its name and warnings.
#[derive(Clone, Debug)]
pub struct ParsedResource {
    /// Name in the resource, not normalized.
    pub name: String,
    /// Parsed contents of the resource.
    pub resource: Resource,
    /// Warnings for the operator, about ignored fields and clamped values.
    pub warnings: Vec<String>,
}

/// Invalid resource with its validation errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedResource {
    /// Name of the resource, if it could be decoded.
    pub name: Option<String>,
    /// Validation errors with their field paths.
    pub problems: ValidationErrors,
}

impl fmt::Display for RejectedResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{}: {}", quoted_long(name), self.problems),
            None => self.problems.fmt(f),
        }
    }
}

impl std::error::Error for RejectedResource {}

/// Parser of resources, configured with the supported features.
#[derive(Clone, Debug)]
pub struct ResourceParser {
    /// Policies that clusters may use.
    pub registry: Registry,
    /// Converters from policies of the control plane to policies of the registry.
    pub converters: LbPolicyConverters,
    /// Limits on accepted data.
    pub limits: XdsLimits,
    /// Instance names of the certificate providers in the bootstrap.
    pub certificate_providers: BTreeSet<String>,
}

impl ResourceParser {
    /// Creates a parser with all built-in features, for clusters that use the policies of `registry`.
    pub fn new(registry: Registry) -> ResourceParser {
        ResourceParser {
            registry,
            converters: LbPolicyConverters::standard(),
            limits: XdsLimits::default(),
            certificate_providers: BTreeSet::new(),
        }
    }

    /// Parses one resource of a response of type `kind` that `from` sent. The caller removes a `Resource`
    /// wrapper before.
    pub fn parse(
        &self,
        kind: ResourceType,
        any: &Any,
        from: &ServerConfig,
    ) -> Result<ParsedResource, RejectedResource> {
        self.parse_incremental(None, kind, any, from)
    }

    /// Parses one resource. `before` is the version in use, as received and as parsed. Parts that are equal
    /// in both keep their allocations, and their warnings are not repeated.
    pub(crate) fn parse_incremental(
        &self,
        before: Option<(&Any, &Resource)>,
        kind: ResourceType,
        any: &Any,
        from: &ServerConfig,
    ) -> Result<ParsedResource, RejectedResource> {
        if message_name(&any.type_url) != kind.message() {
            let text = format!("expected {}, found type {}", kind.message(), quoted(&any.type_url));
            return Err(RejectedResource {
                name: None,
                problems: ValidationErrors::one(&FieldPath::root(), text),
            });
        }
        match kind {
            ResourceType::Listener => listener::parse(&any.value, self, from),
            ResourceType::RouteConfig => route::parse(&any.value, self, from),
            ResourceType::Cluster => cluster::parse(&any.value, self, from),
            ResourceType::Endpoints => {
                let before = before.and_then(|(any, resource)| match resource {
                    Resource::Endpoints(set) => Some((&*any.value, &**set)),
                    _ => None,
                });
                endpoints::parse(&any.value, self, from, before)
            }
        }
    }
}
