//! Client Status Discovery Service: dumps of the client's resources (A40).

use evenkeel_core::{Code, Instant, Status};
use evenkeel_proto::envoy::admin::v3::{ClientResourceStatus, UpdateFailureState};
use evenkeel_proto::envoy::service::status::v3::client_config::GenericXdsConfig;
use evenkeel_proto::envoy::service::status::v3::{ClientConfig, ClientStatusRequest, ClientStatusResponse};
use evenkeel_proto::prost_types::Timestamp;

use super::AdsClient;
use super::cache::{ResourceEntry, ResourceErrorKind};
use super::key::ResourceKey;

/// Builds the response to a CSDS request. Each client comes with its scope: its target, or `#server` (A71).
///
/// Returns `InvalidArgument` for requests with `node_matchers`, because there is only one node to match. `wall`
/// converts the driver's time to wall-clock time.
pub fn client_status<'a>(
    request: &ClientStatusRequest,
    clients: impl IntoIterator<Item = (&'a str, &'a AdsClient)>,
    wall: impl Fn(Instant) -> Timestamp,
) -> Result<ClientStatusResponse, Status> {
    if !request.node_matchers.is_empty() {
        return Err(Status::new(Code::InvalidArgument, "node_matchers are not supported; omit them"));
    }
    let contents =
        if request.exclude_resource_contents { DumpContents::Excluded } else { DumpContents::Included };
    let config = clients.into_iter().map(|(scope, client)| client.describe(scope, &wall, contents)).collect();
    Ok(ClientStatusResponse { config })
}

#[derive(Clone, Copy)]
enum DumpContents {
    Included,
    Excluded,
}

impl AdsClient {
    /// Returns every subscribed resource, as received. `wall` converts the driver's time to wall-clock time.
    pub fn dump(&self, scope: &str, wall: impl Fn(Instant) -> Timestamp) -> ClientConfig {
        self.describe(scope, &wall, DumpContents::Included)
    }

    fn describe(
        &self,
        scope: &str,
        wall: &impl Fn(Instant) -> Timestamp,
        contents: DumpContents,
    ) -> ClientConfig {
        let wanted = self.cache.iter().filter(|(_, entry)| entry.is_watched());
        ClientConfig {
            node: Some(self.bootstrap.node.clone()),
            generic_xds_configs: wanted.map(|(key, entry)| describe(key, entry, wall, contents)).collect(),
            client_scope: scope.to_owned(),
        }
    }
}

fn describe(
    key: &ResourceKey,
    entry: &ResourceEntry,
    wall: &impl Fn(Instant) -> Timestamp,
    contents: DumpContents,
) -> GenericXdsConfig {
    let cached = entry.cached();
    let error_state = entry.error().map(|error| UpdateFailureState {
        failed_configuration: None,
        last_update_attempt: Some(wall(error.at)),
        details: error.status.message().to_owned(),
        version_info: error.version.clone(),
    });
    GenericXdsConfig {
        type_url: key.kind.type_url().to_owned(),
        name: key.name.as_ref().to_owned(),
        version_info: cached.map(|cached| cached.version.clone()).unwrap_or_default(),
        xds_config: match contents {
            DumpContents::Included => cached.map(|cached| cached.raw.clone()),
            DumpContents::Excluded => None,
        },
        last_updated: cached.map(|cached| wall(cached.at)),
        client_status: status(entry).into(),
        error_state,
        ..GenericXdsConfig::default()
    }
}

/// Returns the client status of A88.
fn status(entry: &ResourceEntry) -> ClientResourceStatus {
    match (entry.error().map(|error| error.kind), entry.cached()) {
        (None, None) => ClientResourceStatus::Requested,
        (None, Some(_)) => ClientResourceStatus::Acked,
        (Some(ResourceErrorKind::DoesNotExist), _) => ClientResourceStatus::DoesNotExist,
        (Some(ResourceErrorKind::Nacked), _) => ClientResourceStatus::Nacked,
        (Some(ResourceErrorKind::ReceivedError { .. }), _) => ClientResourceStatus::ReceivedError,
        (Some(ResourceErrorKind::Timeout), _) => ClientResourceStatus::Timeout,
    }
}
