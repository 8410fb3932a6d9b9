//! Responses of both ADS variants in one type.

use evenkeel_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryResponse, DiscoveryResponse, Resource as Wrapper, ResourceError,
};
use evenkeel_proto::prost::{DecodeError, Message as _, Name as _};
use evenkeel_proto::prost_types::Any;

use super::cache::CachedResource;
use super::{ParseIncremental, XdsVariant, key};
use crate::bootstrap::ServerConfig;
use crate::resource::{ParsedResource, Resource, ResourceType, message_name, name_within};
use crate::text::quoted_long;

/// Decoded response of either variant.
pub(super) struct AdsResponse {
    pub(super) type_url: String,
    pub(super) version: String,
    pub(super) nonce: String,
    pub(super) items: Vec<ResponseItem>,
    pub(super) removed: Vec<String>,
    pub(super) errors: Vec<ResourceError>,
}

/// One resource of a response, unwrapped.
pub(super) struct ResponseItem {
    /// Name on the wrapper.
    name: Option<String>,
    version: String,
    /// Encoded resource, or the reason why the wrapper contains none.
    body: Result<Any, String>,
}

/// Resource that passed validation.
pub(super) struct ReceivedResource {
    pub(super) name: String,
    pub(super) resource: Resource,
    pub(super) warnings: Vec<String>,
    /// Resource as received, for the cache.
    pub(super) raw: Any,
    pub(super) version: String,
}

/// Resource that failed validation.
pub(super) struct InvalidResource {
    /// Name of the resource, if it could be decoded.
    pub(super) name: Option<String>,
    pub(super) why: String,
    pub(super) version: String,
}

impl AdsResponse {
    pub(super) fn decode(variant: XdsVariant, bytes: &[u8]) -> Result<AdsResponse, DecodeError> {
        match variant {
            XdsVariant::StateOfTheWorld => DiscoveryResponse::decode(bytes).map(AdsResponse::from),
            XdsVariant::Delta => DeltaDiscoveryResponse::decode(bytes).map(AdsResponse::from),
        }
    }
}

impl From<DiscoveryResponse> for AdsResponse {
    fn from(response: DiscoveryResponse) -> AdsResponse {
        let version = response.version_info;
        AdsResponse {
            type_url: response.type_url,
            nonce: response.nonce,
            items: response.resources.into_iter().map(|any| ResponseItem::of_any(any, &version)).collect(),
            removed: Vec::new(),
            errors: response.resource_errors,
            version,
        }
    }
}

impl From<DeltaDiscoveryResponse> for AdsResponse {
    fn from(response: DeltaDiscoveryResponse) -> AdsResponse {
        AdsResponse {
            type_url: response.type_url,
            version: response.system_version_info,
            nonce: response.nonce,
            items: response.resources.into_iter().map(ResponseItem::of_wrapper).collect(),
            removed: response.removed_resources,
            errors: response.resource_errors,
        }
    }
}

impl ResponseItem {
    /// Unwraps a state-of-the-world resource. A wrapper is optional there and adds a second name.
    fn of_any(any: Any, version: &str) -> ResponseItem {
        if message_name(&any.type_url) != Wrapper::full_name() {
            return ResponseItem { name: None, version: version.to_owned(), body: Ok(any) };
        }
        match Wrapper::decode(&*any.value) {
            // In state of the world the version is that of the response, not that of the wrapper.
            Ok(wrapper) => ResponseItem { version: version.to_owned(), ..ResponseItem::of_wrapper(wrapper) },
            Err(error) => {
                let why = format!("the wrapper cannot be decoded: {error}");
                ResponseItem { name: None, version: version.to_owned(), body: Err(why) }
            }
        }
    }

    fn of_wrapper(wrapper: Wrapper) -> ResponseItem {
        ResponseItem {
            name: Some(wrapper.name).filter(|name| !name.is_empty()),
            version: wrapper.version,
            body: wrapper.resource.ok_or_else(|| "the wrapper holds no resource".to_owned()),
        }
    }

    /// Returns the name before parsing, for endpoint resources only. It finds the cached version, so that parsing is
    /// incremental: most parts of a large endpoint resource stay the same.
    pub(super) fn endpoints_name(&self, kind: ResourceType) -> Option<&str> {
        if kind != ResourceType::Endpoints {
            return None;
        }
        self.name.as_deref().or_else(|| name_within(self.body.as_ref().ok()?))
    }

    /// Parses the resource and checks that the names on wrapper and resource agree (ADS-8). `before` is the cached
    /// version.
    pub(super) fn parse(
        self,
        parser: &dyn ParseIncremental,
        kind: ResourceType,
        from: &ServerConfig,
        before: Option<&CachedResource>,
    ) -> Result<ReceivedResource, InvalidResource> {
        let ResponseItem { name, version, body } = self;
        let invalid = |name, why| InvalidResource { name, why, version: version.clone() };
        let raw = match body {
            Ok(raw) => raw,
            Err(why) => return Err(invalid(name, why)),
        };
        let before = before.map(|before| (&before.raw, &before.resource));
        let parsed = match parser.parse_incremental(before, kind, &raw, from) {
            Ok(parsed) => parsed,
            Err(rejected) => return Err(invalid(name.or(rejected.name), rejected.problems.to_string())),
        };
        if let Some(name) = &name
            && !key::is_same(kind, name, &parsed.name)
        {
            let why = format!("holds the resource {}", quoted_long(&parsed.name));
            return Err(invalid(Some(name.clone()), why));
        }
        let ParsedResource { name, resource, warnings } = parsed;
        Ok(ReceivedResource { name, resource, warnings, raw, version })
    }
}
