//! What the client knows, for tools that ask (A40).

use evenkeel_core::{Code, Instant, Status};
use evenkeel_proto::envoy::admin::v3::{ClientResourceStatus, UpdateFailureState};
use evenkeel_proto::envoy::service::status::v3::client_config::GenericXdsConfig;
use evenkeel_proto::envoy::service::status::v3::{ClientConfig, ClientStatusRequest, ClientStatusResponse};
use evenkeel_proto::prost_types::Timestamp;

use super::Client;
use super::cache::{Entry, TroubleKind};
use super::key::Key;

/// Answers a request for the status of some clients, each with its scope: the target that it serves, or `#server` (A71).
///
/// Requests for certain nodes are refused: there is one here, and nothing to choose from.
pub fn answer<'a>(
    request: &ClientStatusRequest,
    clients: impl IntoIterator<Item = (&'a str, &'a Client)>,
    wall: impl Fn(Instant) -> Timestamp,
) -> Result<ClientStatusResponse, Status> {
    if !request.node_matchers.is_empty() {
        return Err(Status::new(Code::InvalidArgument, "node_matchers are not supported; leave them out"));
    }
    let contents = if request.exclude_resource_contents { Contents::LeftOut } else { Contents::Shown };
    let config = clients.into_iter().map(|(scope, client)| client.describe(scope, &wall, contents)).collect();
    Ok(ClientStatusResponse { config })
}

#[derive(Clone, Copy)]
enum Contents {
    Shown,
    LeftOut,
}

impl Client {
    /// Every resource that somebody wants, with the bytes as they were received. `wall` turns the driver's time into a date.
    pub fn dump(&self, scope: &str, wall: impl Fn(Instant) -> Timestamp) -> ClientConfig {
        self.describe(scope, &wall, Contents::Shown)
    }

    fn describe(
        &self,
        scope: &str,
        wall: &impl Fn(Instant) -> Timestamp,
        contents: Contents,
    ) -> ClientConfig {
        let wanted = self.cache.iter().filter(|(_, entry)| entry.is_wanted());
        ClientConfig {
            node: Some(self.bootstrap.node.clone()),
            generic_xds_configs: wanted.map(|(key, entry)| describe(key, entry, wall, contents)).collect(),
            client_scope: scope.to_owned(),
        }
    }
}

fn describe(
    key: &Key,
    entry: &Entry,
    wall: &impl Fn(Instant) -> Timestamp,
    contents: Contents,
) -> GenericXdsConfig {
    let good = entry.good();
    let error_state = entry.trouble().map(|trouble| UpdateFailureState {
        failed_configuration: None,
        last_update_attempt: Some(wall(trouble.at)),
        details: trouble.status.message().to_owned(),
        version_info: trouble.version.clone(),
    });
    GenericXdsConfig {
        type_url: key.kind.type_url().to_owned(),
        name: key.name.as_ref().to_owned(),
        version_info: good.map(|good| good.version.clone()).unwrap_or_default(),
        xds_config: match contents {
            Contents::Shown => good.map(|good| good.raw.clone()),
            Contents::LeftOut => None,
        },
        last_updated: good.map(|good| wall(good.at)),
        client_status: status(entry).into(),
        error_state,
        ..GenericXdsConfig::default()
    }
}

/// The states of A88.
fn status(entry: &Entry) -> ClientResourceStatus {
    match (entry.trouble().map(|trouble| trouble.kind), entry.good()) {
        (None, None) => ClientResourceStatus::Requested,
        (None, Some(_)) => ClientResourceStatus::Acked,
        (Some(TroubleKind::DoesNotExist), _) => ClientResourceStatus::DoesNotExist,
        (Some(TroubleKind::Nacked), _) => ClientResourceStatus::Nacked,
        (Some(TroubleKind::ReceivedError { .. }), _) => ClientResourceStatus::ReceivedError,
        (Some(TroubleKind::Timeout), _) => ClientResourceStatus::Timeout,
    }
}
