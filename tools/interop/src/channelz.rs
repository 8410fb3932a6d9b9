//! channelz for evenkeel: channels with their states, endpoints as subchannels, servers, and the connections
//! of both as sockets.
//!
//! A response is a snapshot. Ids are stable while the object exists, and are never reused. ADS streams are
//! listed as channels too, since drivers look for them. A fallback control plane is listed while it is in use
//! (A71).
//!
//! Data that evenkeel does not expose is omitted: the calls of a subchannel or a server, and the streams of a
//! socket. `security` is never set, because a connection does not know of the TLS session above it.

mod sockets;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use evenkeel::{ConnectivityState, Description, EndpointRow, ServerStats, XdsClient};
use tonic::{Request, Response, Status};

use crate::proto::channelz as wire;
use crate::proto::channelz::channelz_server::{Channelz as Service, ChannelzServer};
use crate::sync::lock;
use sockets::Socket;
pub use sockets::{Connection, Sockets};

/// Default maximum number of objects per response.
const PAGE: usize = 100;

/// Registry of channelz objects. Clones share it.
#[derive(Clone, Default)]
pub struct Channelz {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    ids: Ids,
    channels: Mutex<Vec<Arc<ChannelEntry>>>,
    clients: Mutex<Vec<XdsClient>>,
    /// Ids of the control planes in use, by address.
    control_planes: Mutex<HashMap<String, i64>>,
    servers: Mutex<Vec<Arc<ServerEntry>>>,
}

/// Source of unique ids for channels, subchannels, servers and sockets.
#[derive(Clone, Default)]
struct Ids(Arc<AtomicI64>);

struct ChannelEntry {
    id: i64,
    target: String,
    channel: evenkeel::Channel,
    sockets: Sockets,
    calls: Arc<Calls>,
    /// Ids of subchannels, by the addresses of the endpoint.
    subchannels: Mutex<HashMap<Vec<String>, i64>>,
}

struct ServerEntry {
    id: i64,
    listener: Arc<Socket>,
    sockets: Sockets,
}

/// Call counters of a channel. The caller updates them.
#[derive(Debug, Default)]
pub struct Calls {
    counts: Mutex<Counts>,
}

#[derive(Clone, Debug, Default)]
struct Counts {
    started: i64,
    succeeded: i64,
    failed: i64,
    last_started: Option<SystemTime>,
}

/// Channel with its subchannels at one time.
#[derive(Default)]
struct ChannelSnapshot {
    channel: wire::Channel,
    subchannels: Vec<wire::Subchannel>,
}

impl Channelz {
    /// Creates an empty registry.
    pub fn new() -> Channelz {
        Channelz::default()
    }

    /// Returns the connector for a channel to be registered.
    pub fn sockets(&self) -> Sockets {
        Sockets::new(self.shared.ids.clone())
    }

    /// Registers a channel that opens its connections through these sockets.
    pub fn add(&self, target: &str, channel: evenkeel::Channel, sockets: Sockets) -> Arc<Calls> {
        let calls = Arc::<Calls>::default();
        let known = ChannelEntry {
            id: self.shared.ids.next(),
            target: target.to_owned(),
            channel,
            sockets,
            calls: calls.clone(),
            subchannels: Mutex::default(),
        };
        lock(&self.shared.channels).push(Arc::new(known));
        calls
    }

    /// Registers the control planes of this client.
    pub fn add_client(&self, client: XdsClient) {
        lock(&self.shared.clients).push(client);
    }

    /// Registers a server with this listening address. It accepts its connections through the returned
    /// sockets.
    pub fn add_server(&self, listens_on: SocketAddr) -> Sockets {
        let ids = &self.shared.ids;
        let listener =
            Socket { id: ids.next(), name: listens_on.to_string(), local: Some(listens_on), remote: None };
        let sockets = Sockets::new(ids.clone());
        let server = ServerEntry { id: ids.next(), listener: Arc::new(listener), sockets: sockets.clone() };
        lock(&self.shared.servers).push(Arc::new(server));
        sockets
    }

    /// Returns the service for a tonic server.
    pub fn service(&self) -> ChannelzServer<Channelz> {
        ChannelzServer::new(self.clone())
    }

    /// Returns snapshots of all channels, by id.
    async fn look(&self) -> Vec<ChannelSnapshot> {
        let known = lock(&self.shared.channels).clone();
        let mut all = Vec::new();
        for known in known {
            all.push(known.look(&self.shared.ids).await);
        }
        all.extend(self.control_planes());
        all.sort_by_key(ChannelSnapshot::id);
        all
    }

    fn control_planes(&self) -> Vec<ChannelSnapshot> {
        let clients = lock(&self.shared.clients).clone();
        let in_use: Vec<ServerStats> =
            clients.iter().flat_map(XdsClient::server_stats).filter(|tally| tally.in_use).collect();
        let mut ids = lock(&self.shared.control_planes);
        ids.retain(|uri, _| in_use.iter().any(|tally| *tally.server.uri == **uri));
        let mut look = |tally: &ServerStats| {
            let uri = tally.server.uri.to_string();
            let id = *ids.entry(uri.clone()).or_insert_with(|| self.shared.ids.next());
            ChannelSnapshot { channel: control_plane(id, uri, tally), ..ChannelSnapshot::default() }
        };
        in_use.iter().map(&mut look).collect()
    }

    fn server(&self, id: i64) -> Result<Arc<ServerEntry>, Status> {
        let found = lock(&self.shared.servers).iter().find(|server| server.id == id).cloned();
        found.ok_or_else(|| not_found("server", id))
    }

    /// Returns the sockets of all channels and servers.
    fn all_sockets(&self) -> Vec<Arc<Socket>> {
        let mut all: Vec<Arc<Socket>> =
            lock(&self.shared.channels).iter().flat_map(|known| known.sockets.open()).collect();
        for server in lock(&self.shared.servers).iter() {
            all.push(server.listener.clone());
            all.extend(server.sockets.open());
        }
        all
    }
}

impl Ids {
    fn next(&self) -> i64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl ChannelSnapshot {
    fn id(&self) -> i64 {
        self.channel.r#ref.as_ref().map_or(0, |channel| channel.channel_id)
    }
}

impl Calls {
    /// Counts a call as started.
    pub fn start(&self) {
        let mut counts = lock(&self.counts);
        counts.started += 1;
        counts.last_started = Some(SystemTime::now());
    }

    /// Counts a started call as ended.
    pub fn end(&self, succeeded: bool) {
        let mut counts = lock(&self.counts);
        if succeeded {
            counts.succeeded += 1;
        } else {
            counts.failed += 1;
        }
    }
}

impl ChannelEntry {
    async fn look(&self, ids: &Ids) -> ChannelSnapshot {
        let mut endpoints = Vec::new();
        if let Some(tree) = self.channel.tree().await {
            gather(&tree, &mut endpoints);
        }
        let sockets = self.sockets.open();
        let mut known = lock(&self.subchannels);
        known.retain(|addresses, _| endpoints.iter().any(|row| row.addresses == *addresses));
        let subchannel = |row: &EndpointRow| {
            let id = *known.entry(row.addresses.clone()).or_insert_with(|| ids.next());
            subchannel(id, row, &sockets)
        };
        let subchannels: Vec<wire::Subchannel> = endpoints.iter().map(subchannel).collect();
        let counts = lock(&self.calls.counts).clone();
        let data = wire::ChannelData {
            state: Some(state(self.channel.connectivity())),
            target: self.target.clone(),
            calls_started: counts.started,
            calls_succeeded: counts.succeeded,
            calls_failed: counts.failed,
            last_call_started_timestamp: counts.last_started.map(Into::into),
        };
        let channel = wire::Channel {
            r#ref: Some(wire::ChannelRef { channel_id: self.id, name: self.target.clone() }),
            data: Some(data),
            subchannel_ref: subchannels.iter().filter_map(|subchannel| subchannel.r#ref.clone()).collect(),
            ..wire::Channel::default()
        };
        ChannelSnapshot { channel, subchannels }
    }
}

/// Collects the endpoints below a policy. Endpoints with equal addresses share connections and are merged.
/// The result is READY if one of them is.
fn gather(description: &Description, endpoints: &mut Vec<EndpointRow>) {
    for row in &description.endpoints {
        match endpoints.iter_mut().find(|known| known.addresses == row.addresses) {
            None => endpoints.push(row.clone()),
            Some(known) if row.state == ConnectivityState::Ready => known.state = row.state,
            Some(_) => {}
        }
    }
    for (_, child) in &description.children {
        gather(child, endpoints);
    }
}

fn subchannel(id: i64, row: &EndpointRow, sockets: &[Arc<Socket>]) -> wire::Subchannel {
    let target = row.addresses.join(",");
    let own = sockets.iter().filter(|socket| row.addresses.contains(&socket.name));
    wire::Subchannel {
        r#ref: Some(wire::SubchannelRef { subchannel_id: id, name: target.clone() }),
        data: Some(wire::ChannelData {
            state: Some(state(row.state)),
            target,
            ..wire::ChannelData::default()
        }),
        socket_ref: own.map(|socket| socket_ref(socket)).collect(),
        ..wire::Subchannel::default()
    }
}

/// Describes an ADS stream as a channel: one active call while it works, and one failed call per failure.
fn control_plane(id: i64, uri: String, tally: &ServerStats) -> wire::Channel {
    let connectivity = match tally {
        ServerStats { connected: true, .. } => ConnectivityState::Ready,
        ServerStats { failures: 0, .. } => ConnectivityState::Connecting,
        _ => ConnectivityState::TransientFailure,
    };
    let failures = i64::try_from(tally.failures).unwrap_or(i64::MAX);
    let data = wire::ChannelData {
        state: Some(state(connectivity)),
        target: uri.clone(),
        calls_started: failures.saturating_add(i64::from(tally.connected)),
        calls_failed: failures,
        ..wire::ChannelData::default()
    };
    wire::Channel {
        r#ref: Some(wire::ChannelRef { channel_id: id, name: uri }),
        data: Some(data),
        ..wire::Channel::default()
    }
}

fn socket_ref(socket: &Socket) -> wire::SocketRef {
    wire::SocketRef { socket_id: socket.id, name: socket.name.clone() }
}

fn server(server: &ServerEntry) -> wire::Server {
    wire::Server {
        r#ref: Some(wire::ServerRef { server_id: server.id, name: server.listener.name.clone() }),
        data: Some(wire::ServerData::default()),
        listen_socket: vec![socket_ref(&server.listener)],
    }
}

fn socket(socket: &Socket) -> wire::Socket {
    let address = |address: Option<SocketAddr>| {
        let address = address?;
        let ip_address = match address.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let address = wire::address::TcpIpAddress { ip_address, port: address.port().into() };
        Some(wire::Address { address: Some(wire::address::Address::TcpipAddress(address)) })
    };
    wire::Socket {
        r#ref: Some(socket_ref(socket)),
        data: Some(wire::SocketData::default()),
        local: address(socket.local),
        remote: address(socket.remote),
        remote_name: String::new(),
    }
}

fn state(connectivity: ConnectivityState) -> wire::ChannelConnectivityState {
    use wire::channel_connectivity_state::State;
    let state = match connectivity {
        ConnectivityState::Idle => State::Idle,
        ConnectivityState::Connecting => State::Connecting,
        ConnectivityState::Ready => State::Ready,
        ConnectivityState::TransientFailure => State::TransientFailure,
    };
    wire::ChannelConnectivityState { state: state.into() }
}

#[tonic::async_trait]
impl Service for Channelz {
    async fn get_top_channels(
        &self,
        request: Request<wire::GetTopChannelsRequest>,
    ) -> Result<Response<wire::GetTopChannelsResponse>, Status> {
        let wire::GetTopChannelsRequest { start_channel_id, max_results } = request.into_inner();
        let (shown, end) = page(self.look().await, ChannelSnapshot::id, start_channel_id, max_results)?;
        let channel = shown.into_iter().map(|look| look.channel).collect();
        Ok(Response::new(wire::GetTopChannelsResponse { channel, end }))
    }

    async fn get_channel(
        &self,
        request: Request<wire::GetChannelRequest>,
    ) -> Result<Response<wire::GetChannelResponse>, Status> {
        let id = request.into_inner().channel_id;
        let found = self.look().await.into_iter().find(|look| look.id() == id);
        let channel = found.ok_or_else(|| not_found("channel", id))?.channel;
        Ok(Response::new(wire::GetChannelResponse { channel: Some(channel) }))
    }

    async fn get_subchannel(
        &self,
        request: Request<wire::GetSubchannelRequest>,
    ) -> Result<Response<wire::GetSubchannelResponse>, Status> {
        let id = request.into_inner().subchannel_id;
        let is_it = |subchannel: &wire::Subchannel| {
            subchannel.r#ref.as_ref().is_some_and(|subchannel| subchannel.subchannel_id == id)
        };
        let found = self.look().await.into_iter().flat_map(|look| look.subchannels).find(is_it);
        let subchannel = found.ok_or_else(|| not_found("subchannel", id))?;
        Ok(Response::new(wire::GetSubchannelResponse { subchannel: Some(subchannel) }))
    }

    async fn get_socket(
        &self,
        request: Request<wire::GetSocketRequest>,
    ) -> Result<Response<wire::GetSocketResponse>, Status> {
        let id = request.into_inner().socket_id;
        let found = self.all_sockets().into_iter().find(|socket| socket.id == id);
        let found = found.ok_or_else(|| not_found("socket", id))?;
        Ok(Response::new(wire::GetSocketResponse { socket: Some(socket(&found)) }))
    }

    async fn get_servers(
        &self,
        request: Request<wire::GetServersRequest>,
    ) -> Result<Response<wire::GetServersResponse>, Status> {
        let wire::GetServersRequest { start_server_id, max_results } = request.into_inner();
        let all = lock(&self.shared.servers).clone();
        let (shown, end) = page(all, |server| server.id, start_server_id, max_results)?;
        let server = shown.iter().map(|shown| server(shown)).collect();
        Ok(Response::new(wire::GetServersResponse { server, end }))
    }

    async fn get_server(
        &self,
        request: Request<wire::GetServerRequest>,
    ) -> Result<Response<wire::GetServerResponse>, Status> {
        let found = self.server(request.into_inner().server_id)?;
        Ok(Response::new(wire::GetServerResponse { server: Some(server(&found)) }))
    }

    async fn get_server_sockets(
        &self,
        request: Request<wire::GetServerSocketsRequest>,
    ) -> Result<Response<wire::GetServerSocketsResponse>, Status> {
        let wire::GetServerSocketsRequest { server_id, start_socket_id, max_results } = request.into_inner();
        let all = self.server(server_id)?.sockets.open();
        let (shown, end) = page(all, |socket| socket.id, start_socket_id, max_results)?;
        let socket_ref = shown.iter().map(|socket| socket_ref(socket)).collect();
        Ok(Response::new(wire::GetServerSocketsResponse { socket_ref, end }))
    }
}

/// Returns the objects from this id on, up to the maximum, sorted by id, and a flag for the end.
fn page<T>(
    all: Vec<T>,
    id: impl Fn(&T) -> i64,
    start: i64,
    max_results: i64,
) -> Result<(Vec<T>, bool), Status> {
    let size = match usize::try_from(max_results) {
        Ok(0) => PAGE,
        Ok(size) => size,
        Err(_) => {
            let problem = format!("max_results: expected 0 or more, found {max_results}");
            return Err(Status::invalid_argument(problem));
        }
    };
    let mut rest = all.into_iter().filter(|one| id(one) >= start);
    let shown = rest.by_ref().take(size).collect();
    Ok((shown, rest.next().is_none()))
}

fn not_found(what: &str, id: i64) -> Status {
    Status::not_found(format!("{what} {id} not found"))
}
