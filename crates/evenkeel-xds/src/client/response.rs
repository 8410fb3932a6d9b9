//! Responses of both variants, in one shape.

use evenkeel_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryResponse, DiscoveryResponse, Resource as Wrapper, ResourceError,
};
use evenkeel_proto::prost::{DecodeError, Message as _, Name as _};
use evenkeel_proto::prost_types::Any;

use super::cache::Good;
use super::{Parse, Variant, key};
use crate::bootstrap::ServerConfig;
use crate::resource::{Parsed, Resource, ResourceType, message_of, name_within};
use crate::text::quoted_whole;

/// A response.
pub(super) struct Response {
    pub(super) type_url: String,
    pub(super) version: String,
    pub(super) nonce: String,
    pub(super) items: Vec<Item>,
    pub(super) removed: Vec<String>,
    pub(super) errors: Vec<ResourceError>,
}

/// One resource of a response, out of its wrapper.
pub(super) struct Item {
    /// The name on the wrapper.
    name: Option<String>,
    version: String,
    /// The resource, or why there is none.
    body: Result<Any, String>,
}

/// A resource that can be used.
pub(super) struct Received {
    pub(super) name: String,
    pub(super) resource: Resource,
    pub(super) warnings: Vec<String>,
    /// As it came.
    pub(super) raw: Any,
    pub(super) version: String,
}

/// A resource that cannot be used.
pub(super) struct Spoiled {
    /// Its name, if it could be read.
    pub(super) name: Option<String>,
    pub(super) why: String,
    pub(super) version: String,
}

impl Response {
    pub(super) fn decode(variant: Variant, bytes: &[u8]) -> Result<Response, DecodeError> {
        match variant {
            Variant::StateOfTheWorld => DiscoveryResponse::decode(bytes).map(Response::from),
            Variant::Delta => DeltaDiscoveryResponse::decode(bytes).map(Response::from),
        }
    }
}

impl From<DiscoveryResponse> for Response {
    fn from(response: DiscoveryResponse) -> Response {
        let version = response.version_info;
        Response {
            type_url: response.type_url,
            nonce: response.nonce,
            items: response.resources.into_iter().map(|any| Item::of_any(any, &version)).collect(),
            removed: Vec::new(),
            errors: response.resource_errors,
            version,
        }
    }
}

impl From<DeltaDiscoveryResponse> for Response {
    fn from(response: DeltaDiscoveryResponse) -> Response {
        Response {
            type_url: response.type_url,
            version: response.system_version_info,
            nonce: response.nonce,
            items: response.resources.into_iter().map(Item::of_wrapper).collect(),
            removed: response.removed_resources,
            errors: response.resource_errors,
        }
    }
}

impl Item {
    /// Resources of the state of the world may be wrapped, and then carry a name outside too.
    fn of_any(any: Any, version: &str) -> Item {
        if message_of(&any.type_url) != Wrapper::full_name() {
            return Item { name: None, version: version.to_owned(), body: Ok(any) };
        }
        match Wrapper::decode(&*any.value) {
            Ok(wrapper) => Item { version: version.to_owned(), ..Item::of_wrapper(wrapper) },
            Err(error) => {
                let why = format!("the wrapper cannot be decoded: {error}");
                Item { name: None, version: version.to_owned(), body: Err(why) }
            }
        }
    }

    fn of_wrapper(wrapper: Wrapper) -> Item {
        Item {
            name: Some(wrapper.name).filter(|name| !name.is_empty()),
            version: wrapper.version,
            body: wrapper.resource.ok_or_else(|| "the wrapper holds no resource".to_owned()),
        }
    }

    /// The name before the resource is parsed, of those that have many parts, of which most stay the same.
    pub(super) fn name_of_parts(&self, kind: ResourceType) -> Option<&str> {
        if kind != ResourceType::Endpoints {
            return None;
        }
        self.name.as_deref().or_else(|| name_within(self.body.as_ref().ok()?))
    }

    /// The resource, if it is one and the names on wrapper and resource agree (ADS-8). `before` is the one in use.
    pub(super) fn parse(
        self,
        parser: &dyn Parse,
        kind: ResourceType,
        from: &ServerConfig,
        before: Option<&Good>,
    ) -> Result<Received, Spoiled> {
        let Item { name, version, body } = self;
        let spoiled = |name, why| Spoiled { name, why, version: version.clone() };
        let raw = match body {
            Ok(raw) => raw,
            Err(why) => return Err(spoiled(name, why)),
        };
        let parsed = match before {
            Some(before) => parser.parse_after((&before.raw, &before.resource), kind, &raw, from),
            None => parser.parse(kind, &raw, from),
        };
        let parsed = match parsed {
            Ok(parsed) => parsed,
            Err(rejected) => return Err(spoiled(name.or(rejected.name), rejected.problems.to_string())),
        };
        if let Some(name) = &name
            && !key::is_same(kind, name, &parsed.name)
        {
            let why = format!("holds the resource {}", quoted_whole(&parsed.name));
            return Err(spoiled(Some(name.clone()), why));
        }
        let Parsed { name, resource, warnings } = parsed;
        Ok(Received { name, resource, warnings, raw, version })
    }
}
