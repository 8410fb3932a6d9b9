//! Samples of the process: its channels and xDS clients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_core::{Address, ConnectivityState, Description};
use evenkeel_proto::envoy::admin::v3::ClientResourceStatus;
use evenkeel_proto::envoy::service::status::v3::ClientConfig;
use evenkeel_proto::prost_types::Timestamp;

use super::state::{XdsClientInfo, XdsResourceError, XdsResourceInfo, XdsServerInfo};
use super::view::{self, EndpointPosition};
use crate::channel::snapshot::ChannelState;
use crate::channel::{Channel, ChannelInner};
use crate::clock;
use crate::resolver::xds::XdsClient;
use crate::sync::lock;
use crate::telemetry::traffic::{CallStats, CallStatsSnapshot};

static CHANNELS: Mutex<Vec<(u64, Weak<ChannelInner>)>> = Mutex::new(Vec::new());
static IDS: AtomicU64 = AtomicU64::new(1);

/// Registers a new channel. The registry holds a weak reference, so a channel is listed only while it exists.
pub(crate) fn register_channel(channel: &Arc<ChannelInner>) {
    let mut channels = lock(&CHANNELS);
    channels.retain(|(_, channel)| channel.strong_count() > 0);
    channels.push((IDS.fetch_add(1, Ordering::Relaxed), Arc::downgrade(channel)));
}

/// Channels and xDS clients at one time.
#[derive(Debug, Default)]
pub(super) struct AdminSample {
    pub(super) channels: Vec<ChannelSample>,
    pub(super) xds: Vec<XdsClientInfo>,
}

#[derive(Debug)]
pub(super) struct ChannelSample {
    pub(super) id: u64,
    pub(super) target: String,
    pub(super) state: ConnectivityState,
    pub(super) tree: Option<Description>,
    /// Reason why the channel has no config.
    pub(super) waiting: Option<String>,
    pub(super) calls: CallStatsSnapshot,
    pub(super) endpoints: Vec<EndpointSample>,
}

#[derive(Debug)]
pub(super) struct EndpointSample {
    pub(super) position: EndpointPosition,
    pub(super) counts: CallStatsSnapshot,
    /// Counters, which the watcher holds: [`ChannelStats`](crate::telemetry::traffic::ChannelStats) holds them weakly,
    /// and the failures of a broken connection would be gone with it.
    pub(super) stats: Vec<Arc<CallStats>>,
}

pub(super) async fn collect_sample() -> AdminSample {
    // Collected first: the lock must not be held across the awaits below.
    let channels: Vec<_> = {
        let channels = lock(&CHANNELS);
        channels.iter().filter_map(|(id, channel)| Some((*id, channel.upgrade()?))).collect()
    };
    let mut seen = AdminSample::default();
    for (id, inner) in channels {
        seen.channels.push(sample_channel(id, Channel { inner }).await);
    }
    for client in XdsClient::all() {
        if let Ok(status) = client.status().await {
            seen.xds.push(client_state(&client, status));
        }
    }
    seen
}

async fn sample_channel(id: u64, channel: Channel) -> ChannelSample {
    let tree = channel.tree().await;
    let channel_stats = channel.inner.calls.channel_stats();
    let endpoints = tree.as_ref().map(view::endpoints).unwrap_or_default();
    let endpoints = endpoints.into_iter().map(|position| {
        let of_addresses: Vec<_> = position
            .addresses
            .iter()
            .map(|address| channel_stats.for_address(&Address::from(address.as_str())))
            .collect();
        let counts = of_addresses
            .iter()
            .map(|tally| tally.snapshot())
            .reduce(CallStatsSnapshot::merge)
            .unwrap_or_default();
        EndpointSample { position, counts, stats: of_addresses }
    });
    let published = &channel.inner.published;
    let is_waiting = matches!(published.load().state, ChannelState::Failed(_) | ChannelState::Resolving(_));
    let waiting = is_waiting.then(|| published.wait_reason(clock::now()));
    ChannelSample {
        id,
        waiting,
        target: channel.inner.target.to_string(),
        state: channel.connectivity(),
        endpoints: endpoints.collect(),
        calls: channel_stats.calls().snapshot(),
        tree,
    }
}

fn client_state(client: &XdsClient, config: ClientConfig) -> XdsClientInfo {
    let servers = client
        .server_stats()
        .into_iter()
        .filter(|tally| tally.in_use)
        .map(|tally| XdsServerInfo { uri: tally.server.uri.to_string(), connected: tally.connected });
    let resources = config.generic_xds_configs.into_iter().map(|resource| XdsResourceInfo {
        kind: kind(&resource.type_url),
        status: ClientResourceStatus::try_from(resource.client_status)
            .unwrap_or(ClientResourceStatus::Unknown)
            .as_str_name()
            .to_owned(),
        updated: resource.last_updated.as_ref().and_then(millis),
        error: resource.error_state.map(|error| XdsResourceError {
            version: error.version_info,
            details: error.details,
            at: error.last_update_attempt.as_ref().and_then(millis),
        }),
        name: resource.name,
        version: resource.version_info,
    });
    XdsClientInfo {
        scope: config.client_scope,
        node: config.node.map(|node| node.id).unwrap_or_default(),
        servers: servers.collect(),
        resources: resources.collect(),
    }
}

/// Returns the message name of a type URL, such as `Listener`.
fn kind(type_url: &str) -> String {
    type_url.rsplit(['.', '/']).next().unwrap_or(type_url).to_owned()
}

fn millis(time: &Timestamp) -> Option<u64> {
    let seconds = u64::try_from(time.seconds).ok()?;
    Some(seconds.checked_mul(1000)? + u64::try_from(time.nanos).ok()? / 1_000_000)
}

/// Returns the wall-clock time in milliseconds since the Unix epoch.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
