//! Listeners (LDS): root of a channel's configuration.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_proto::envoy::config::core::v3::ConfigSource;
use evenkeel_proto::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use evenkeel_proto::envoy::config::listener::v3 as proto;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;

use crate::FieldPath;
use crate::bootstrap::ServerConfig;
use crate::resource::reader::ResourceReader;
use crate::resource::route::filters;
use crate::resource::{
    ParsedResource, RejectedResource, Resource, ResourceParser, RouteConfig, fields, route, wire,
};
use crate::routing::FilterInstance;

/// API listener with its HTTP connection manager.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Name of the listener.
    pub name: String,
    /// Source of the route configuration.
    pub routes: RouteSource,
    /// Maximum duration of a stream whose route does not set one (RT-1).
    pub max_stream_duration: Option<Duration>,
    /// HTTP filters in the order in which they run. The last one is the router (A39).
    pub filters: Vec<FilterInstance>,
}

/// Source of a listener's route configuration.
#[derive(Clone, Debug)]
pub enum RouteSource {
    /// Route configuration inside the listener.
    Inline(Arc<RouteConfig>),
    /// Name of the route configuration to subscribe to.
    Rds(String),
}

pub(super) fn parse(
    bytes: &[u8],
    parser: &ResourceParser,
    from: &ServerConfig,
) -> Result<ParsedResource, RejectedResource> {
    let message: proto::Listener = fields::decode(bytes)?;
    let mut reader = ResourceReader::new(parser, from);
    let root = FieldPath::root();
    reader.name(&message.name, &root.field("name"));
    let outer = root.field("api_listener");
    let path = outer.field("api_listener");
    let listener = manager(&message, &path, &mut reader).and_then(|manager| {
        let routes = routes(manager.route_specifier.as_ref(), &path, &mut reader);
        let filters = filters::chain(&manager.http_filters, &path.field("http_filters"), &mut reader);
        let max_stream_duration = options(&manager, &path, &mut reader);
        Some(Listener { name: message.name.clone(), routes: routes?, max_stream_duration, filters })
    });
    let listener = listener.map(|listener| Resource::Listener(Arc::new(listener)));
    reader.finish(message.name, listener)
}

/// Returns the connection manager of an API listener.
fn manager(
    message: &proto::Listener,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<HttpConnectionManager> {
    let Some(api) = &message.api_listener else {
        let text = "is required: only listeners of clients are supported, not those of servers";
        reader.problem(&FieldPath::root().field("api_listener"), text);
        return None;
    };
    let manager = api.api_listener.as_ref();
    let bytes = manager.map_or(&[][..], |any| &any.value);
    // Field 4 is `route_config`.
    if let Some((field, text)) = wire::exceeded_limit(bytes, &[4], &wire::route_limits(&reader.parser.limits))
    {
        reader.problem(&path.field("route_config").field(field), text);
        return None;
    }
    reader.message(manager, path)
}

fn routes(
    message: Option<&RouteSpecifier>,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<RouteSource> {
    match message {
        Some(RouteSpecifier::RouteConfig(message)) => {
            let config = route::read(message, &path.field("route_config"), reader);
            Some(RouteSource::Inline(Arc::new(config)))
        }
        Some(RouteSpecifier::Rds(rds)) => {
            let path = path.field("rds");
            reader.name(&rds.route_config_name, &path.field("route_config_name"));
            check_source(rds.config_source.as_ref(), &path.field("config_source"), reader);
            Some(RouteSource::Rds(rds.route_config_name.clone()))
        }
        Some(RouteSpecifier::ScopedRoutes(_)) => {
            reader.problem(&path.field("scoped_routes"), "is not supported: expected route_config or rds");
            None
        }
        None => {
            reader.problem(path, "expected route_config or rds, found neither");
            None
        }
    }
}

fn check_source(message: Option<&ConfigSource>, path: &FieldPath<'_>, reader: &mut ResourceReader<'_>) {
    let found = match message.and_then(|source| source.config_source_specifier.as_ref()) {
        Some(ConfigSourceSpecifier::Ads(_) | ConfigSourceSpecifier::Self_(_)) => return,
        Some(ConfigSourceSpecifier::PathConfigSource(_)) => "path_config_source",
        None => "neither",
    };
    reader.problem(path, format!("expected ads or self, found {found}"));
}

/// Validates the connection options. Returns the default for `max_stream_duration`.
fn options(
    manager: &HttpConnectionManager,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<Duration> {
    // A41: gRPC does not derive the peer address from headers.
    if manager.xff_num_trusted_hops != 0 {
        let text = format!("expected 0, found {}", manager.xff_num_trusted_hops);
        reader.problem(&path.field("xff_num_trusted_hops"), text);
    }
    if !manager.original_ip_detection_extensions.is_empty() {
        let text = format!("must be empty, found {}", manager.original_ip_detection_extensions.len());
        reader.problem(&path.field("original_ip_detection_extensions"), text);
    }
    let options = manager.common_http_protocol_options.as_ref()?;
    let path = path.field("common_http_protocol_options");
    if options.idle_timeout.is_some() {
        reader.warn(&path.field("idle_timeout"), "is ignored, as gRPC does");
    }
    reader.duration(options.max_stream_duration.as_ref(), &path.field("max_stream_duration"))
}
