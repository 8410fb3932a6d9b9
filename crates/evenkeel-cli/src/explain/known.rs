//! Local resource cache: state of a client that has received every resource. It uses the client's own parser
//! and serves the client's own resolver.

use std::collections::BTreeMap;

use evenkeel_core::{Registry, Status};
use evenkeel_proto::prost_types::Any;
use evenkeel_xds::ads::ResourceState;
use evenkeel_xds::bootstrap::ServerConfig;
use evenkeel_xds::dependency_manager::ResourceView;
use evenkeel_xds::resource::{ParsedResource, RejectedResource, ResourceParser, ResourceType};

/// Parse results of all resources.
#[derive(Debug, Default)]
pub(crate) struct LocalResources {
    resources: BTreeMap<(ResourceType, String), LocalResource>,
}

/// Resource as sent, and its parse result.
#[derive(Debug)]
pub(crate) struct LocalResource {
    pub(crate) raw: Any,
    pub(crate) read: Result<ParsedResource, RejectedResource>,
}

impl LocalResources {
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
