//! Resources, parsed and checked.
//!
//! A resource comes as bytes with a type. What [`ResourceParser::parse`] accepts is a type that cannot be wrong; what it does not
//! accept is answered with every problem at once, each with the path to its field (A40). Nothing past this door
//! checks again.

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

/// The types of resources that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResourceType {
    /// `envoy.config.listener.v3.Listener`
    Listener,
    /// `envoy.config.route.v3.RouteConfiguration`
    RouteConfig,
    /// `envoy.config.cluster.v3.Cluster`
    Cluster,
    /// `envoy.config.endpoint.v3.ClusterLoadAssignment`
    Endpoints,
}

impl ResourceType {
    /// All of them, in the order in which they lead to each other.
    pub const ALL: [ResourceType; 4] =
        [ResourceType::Listener, ResourceType::RouteConfig, ResourceType::Cluster, ResourceType::Endpoints];

    /// The full name of the message.
    pub fn message(self) -> &'static str {
        match self {
            ResourceType::Listener => "envoy.config.listener.v3.Listener",
            ResourceType::RouteConfig => "envoy.config.route.v3.RouteConfiguration",
            ResourceType::Cluster => "envoy.config.cluster.v3.Cluster",
            ResourceType::Endpoints => "envoy.config.endpoint.v3.ClusterLoadAssignment",
        }
    }

    /// The type URL that requests carry.
    pub fn type_url(self) -> &'static str {
        match self {
            ResourceType::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            ResourceType::RouteConfig => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            ResourceType::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            ResourceType::Endpoints => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        }
    }

    /// The type that a type URL names; what stands before the last slash does not matter.
    pub fn from_type_url(type_url: &str) -> Option<ResourceType> {
        let message = message_name(type_url);
        ResourceType::ALL.into_iter().find(|kind| kind.message() == message)
    }

    /// Whether a response of the state-of-the-world variant lists every resource there is, so that one that is missing
    /// is gone (A53).
    pub fn is_complete_in_sotw(self) -> bool {
        matches!(self, ResourceType::Listener | ResourceType::Cluster)
    }
}

impl fmt::Display for ResourceType {
    /// What errors call a resource of this type.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ResourceType::Listener => "listener",
            ResourceType::RouteConfig => "route configuration",
            ResourceType::Cluster => "cluster",
            ResourceType::Endpoints => "endpoints",
        })
    }
}

/// The name of the message that a type URL names: what stands after its last slash.
pub(crate) fn message_name(type_url: &str) -> &str {
    type_url.rsplit('/').next().unwrap_or(type_url)
}

/// The name in a resource, found without decoding the whole: its first field.
pub(crate) fn name_within(any: &Any) -> Option<&str> {
    wire::first_text(&any.value)
}

/// A resource that is fit for use. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Resource {
    /// A listener.
    Listener(Arc<Listener>),
    /// A route configuration.
    RouteConfig(Arc<RouteConfig>),
    /// A cluster.
    Cluster(Arc<Cluster>),
    /// The endpoints of a cluster.
    Endpoints(Arc<EndpointSet>),
}

/// A resource with its name, and what is odd about it.
#[derive(Clone, Debug)]
pub struct ParsedResource {
    /// The name.
    pub name: String,
    /// The resource.
    pub resource: Resource,
    /// What was accepted but the operator should know: fields that are ignored, values that were held to a limit.
    pub warnings: Vec<String>,
}

/// A resource that is not fit for use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedResource {
    /// Its name, if it could be read.
    pub name: Option<String>,
    /// What is wrong.
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

/// Parses resources by what this client supports.
#[derive(Clone, Debug)]
pub struct ResourceParser {
    /// The policies that clusters may use.
    pub registry: Registry,
    /// How the control plane's policies become ours.
    pub converters: LbPolicyConverters,
    /// How much is accepted.
    pub limits: XdsLimits,
    /// The certificate providers of the bootstrap, by instance name.
    pub certificate_providers: BTreeSet<String>,
}

impl ResourceParser {
    /// A parser with everything that is built in, for clusters that may use the policies of `registry`.
    pub fn new(registry: Registry) -> ResourceParser {
        ResourceParser {
            registry,
            converters: LbPolicyConverters::standard(),
            limits: XdsLimits::default(),
            certificate_providers: BTreeSet::new(),
        }
    }

    /// Parses one resource of a response of type `kind`, as `from` sent it; a `Resource` wrapper must be opened before.
    pub fn parse(
        &self,
        kind: ResourceType,
        any: &Any,
        from: &ServerConfig,
    ) -> Result<ParsedResource, RejectedResource> {
        self.parse_incremental(None, kind, any, from)
    }

    /// Parses one resource of which another version may be in use, as it was received and as it was parsed. Parts that are equal
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
