//! Route configurations (RDS) with their virtual hosts.
//!
//! A configuration is parsed with all its virtual hosts, because every channel of the process may use it.
//! Routes that gRPC does not support are skipped (A28), and a warning names each.

mod action;
mod domains;
pub(super) mod filters;
mod matching;
mod retry;

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_proto::envoy::config::route::v3 as proto;

use crate::FieldPath;
use crate::bootstrap::ServerConfig;
use crate::resource::reader::ResourceReader;
use crate::resource::{ParsedResource, RejectedResource, Resource, ResourceParser, fields, wire};
use crate::routing::{FilterOverrides, Route, RouteAction};
use crate::text::quoted;
use action::{RouteContext, RouteRejection};
use domains::{DomainError, DomainTable};

/// Route configuration: virtual hosts with their routes.
#[derive(Clone, Debug)]
pub struct RouteConfig {
    /// Name of the configuration. Empty if it is part of a listener.
    pub name: String,
    /// Virtual hosts in the order of the message.
    pub virtual_hosts: Vec<Arc<VirtualHost>>,
    domains: DomainTable,
}

/// Routes for a set of domains.
#[derive(Clone, Debug)]
pub struct VirtualHost {
    /// Name of the virtual host.
    pub name: String,
    /// Domains of the virtual host, as received.
    pub domains: Vec<String>,
    /// Distinct clusters of its routes, in order of appearance.
    pub clusters: Vec<Arc<str>>,
    /// Routes in the order in which they are matched.
    pub routes: Vec<Route>,
    /// Filter overrides of the virtual host.
    pub overrides: FilterOverrides,
}

impl RouteConfig {
    /// Returns the virtual host for an authority: by an exact domain, else the longest `*suffix`, else the
    /// longest `prefix*`, else `*` (VAL-R7).
    pub fn virtual_host(&self, authority: &str) -> Option<&Arc<VirtualHost>> {
        self.virtual_hosts.get(self.domains.find(authority)?)
    }
}

pub(super) fn parse(
    bytes: &[u8],
    parser: &ResourceParser,
    from: &ServerConfig,
) -> Result<ParsedResource, RejectedResource> {
    wire::check(bytes, &[], &FieldPath::root(), &wire::route_limits(&parser.limits))?;
    let message: proto::RouteConfiguration = fields::decode(bytes)?;
    let mut reader = ResourceReader::new(parser, from);
    reader.name(&message.name, &FieldPath::root().field("name"));
    let config = read(&message, &FieldPath::root(), &mut reader);
    reader.finish(message.name, Some(Resource::RouteConfig(Arc::new(config))))
}

/// Parses a route configuration, possibly inside another resource. Invalid parts are omitted and reported to
/// `reader`.
pub(super) fn read(
    message: &proto::RouteConfiguration,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> RouteConfig {
    let mut config = RouteConfig {
        name: message.name.clone(),
        virtual_hosts: Vec::new(),
        domains: DomainTable::default(),
    };
    if message.ignore_port_in_host_matching {
        reader.warn(&path.field("ignore_port_in_host_matching"), "is ignored, as gRPC does");
    }
    if !message.typed_per_filter_config.is_empty() {
        let text = "is ignored: overrides belong to virtual hosts, routes and weighted clusters (A39)";
        reader.warn(&path.field("typed_per_filter_config"), text);
    }
    let hosts = path.field("virtual_hosts");
    let plugins = path.field("cluster_specifier_plugins");
    let plugins = action::plugins(&message.cluster_specifier_plugins, &plugins, reader);
    for (i, host) in message.virtual_hosts.iter().enumerate() {
        let path = hosts.index(i);
        add_domains(&mut config.domains, i, &host.domains, &path.field("domains"), reader);
        config.virtual_hosts.push(Arc::new(virtual_host(host, &path, &plugins, reader)));
    }
    config
}

fn add_domains(
    domains: &mut DomainTable,
    host: usize,
    messages: &[String],
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) {
    if messages.is_empty() {
        reader.problem(path, "expected at least one domain, found none");
    }
    for (i, domain) in messages.iter().enumerate() {
        let path = path.index(i);
        if domain.is_empty() || domain.len() > reader.parser.limits.name_bytes {
            reader.name(domain, &path);
            continue;
        }
        match domains.add(domain, host) {
            Ok(()) => {}
            Err(DomainError::Invalid) => {
                let text = format!("expected a name, *suffix, prefix* or *, found {}", quoted(domain));
                reader.problem(&path, text);
            }
            Err(DomainError::Duplicate) => {
                reader.warn(&path, format!("{} occurs twice: the first one is used", quoted(domain)));
            }
        }
    }
}

fn virtual_host(
    message: &proto::VirtualHost,
    path: &FieldPath<'_>,
    plugins: &BTreeSet<&str>,
    reader: &mut ResourceReader<'_>,
) -> VirtualHost {
    let policy = message.retry_policy.as_ref();
    let retry = policy.and_then(|policy| retry::read(policy, &path.field("retry_policy"), reader));
    let context = RouteContext { plugins, retry };
    let overrides = filters::overrides(&message.typed_per_filter_config, path, reader);
    let list = path.field("routes");
    let routes: Vec<Route> = (message.routes.iter().enumerate())
        .filter_map(|(i, message)| route(message, &list.index(i), &context, reader))
        .collect();
    let mut seen = BTreeSet::new();
    let mut clusters = Vec::new();
    for route in &routes {
        let RouteAction::Forward(forward) = &route.action else { continue };
        let new = forward.clusters.iter().map(|cluster| &cluster.name).filter(|name| seen.insert(*name));
        clusters.extend(new.cloned());
    }
    VirtualHost { name: message.name.clone(), domains: message.domains.clone(), clusters, routes, overrides }
}

fn route(
    message: &proto::Route,
    path: &FieldPath<'_>,
    context: &RouteContext<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<Route> {
    let at = path.field("match");
    let matching = reader.required(message.r#match.as_ref(), &at)?;
    // A skipped route is not validated further (VAL-R2).
    if !matching.query_parameters.is_empty() {
        reader.warn(&at.field("query_parameters"), "never match in gRPC: the route is skipped");
        return None;
    }
    let matches = matching::read(matching, &at, reader);
    let action = action::read(message.action.as_ref(), path, context, reader);
    if let Err(RouteRejection::Skipped) = action {
        return None;
    }
    let overrides = filters::overrides(&message.typed_per_filter_config, path, reader);
    // Every part is read before `?` returns, so that all errors are reported (VAL-X1).
    Some(Route { name: message.name.clone(), matches: matches?, action: action.ok()?, overrides })
}
