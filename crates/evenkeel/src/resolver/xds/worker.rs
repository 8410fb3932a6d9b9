//! Event loop of an xDS client: the only place where it waits.
//!
//! Commands come from handles, events from the tasks of streams and lookups. Both only change state. The loop then
//! [processes effects](XdsWorker::process_effects): it performs them, updates channels with changed resources and
//! publishes their updates. It is level-triggered, so repeated commands change nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use evenkeel_core::{Address, Code, Instant, Rng, Status};
use evenkeel_proto::envoy::service::status::v3::{ClientStatusRequest, ClientStatusResponse};
use evenkeel_proto::prost_types::Timestamp;
use evenkeel_xds::ads::{self, AdsClient, AdsEvent, AdsRequest, ChangedResources, SubscriberId, XdsVariant};
use evenkeel_xds::bootstrap::{Bootstrap, ServerConfig};
use evenkeel_xds::dependency_manager::MissingDependency;
use evenkeel_xds::lrs::{self, LrsClient};
use evenkeel_xds::resolver::{XdsResolver, XdsResolverOutput, XdsResolverUpdate};
use evenkeel_xds::resource::ResourceType;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep_until, timeout};

use super::WorkerStatus;
use super::names::{DnsCache, DnsResult};
use super::server_connection::XdsDialer;
use super::stream_task::encode_frame;
use super::streams::{StreamEvent, StreamKey, StreamSet};
use crate::resolver::dns;
use crate::resolver::progress::XdsProgress;
use crate::sync::lock;
use crate::telemetry::metrics::XdsMeter;
use crate::text::quoted;
use crate::{clock, entropy};

const STATE_OF_THE_WORLD: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const DELTA: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
const LOAD_STATS: &str = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats";

/// Maximum time for sending the last load reports after the last handle was dropped.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Command of a handle. Channels are identified by their keys.
pub(super) enum WorkerCommand {
    Subscribe {
        key: u64,
        target: String,
        listener: String,
        authority: String,
        channel_id: u64,
        meter: XdsMeter,
        progress: Arc<XdsProgress>,
        steps: watch::Sender<Option<XdsResolverUpdate>>,
    },
    WatchClusters {
        key: u64,
        dynamic: BTreeSet<Arc<str>>,
    },
    Reresolve {
        key: u64,
    },
    Unsubscribe {
        key: u64,
    },
    PollLoadStats,
    Describe {
        request: ClientStatusRequest,
        reply: oneshot::Sender<Result<ClientStatusResponse, Status>>,
    },
}

/// Event of a task around the loop.
pub(super) enum WorkerEvent {
    /// An event of an ADS or LRS stream.
    StreamEvent(StreamKey, StreamEvent),
    /// A DNS lookup has finished.
    Resolved(Arc<str>, DnsResult),
    /// A cluster of this channel is no longer needed by any call.
    Idle(u64),
}

pub(super) struct XdsWorker {
    bootstrap: Arc<Bootstrap>,
    client: AdsClient,
    reporter: LrsClient,
    names: DnsCache,
    streams: StreamSet,
    channels: BTreeMap<u64, WatchedChannel>,
    /// Keys of the channels by their subscriber ids.
    owners: BTreeMap<SubscriberId, u64>,
    /// Channels to update, and the resources that changed.
    dirty: BTreeMap<u64, ChangedResources>,
    load_is_due: bool,
    worker_status: Arc<WorkerStatus>,
    /// Logged state of each control plane, in the order of the client's statistics.
    server_logs: Vec<ServerLog>,
    wall: WallClock,
    events: mpsc::UnboundedSender<WorkerEvent>,
    received: mpsc::UnboundedReceiver<WorkerEvent>,
}

struct WatchedChannel {
    id: SubscriberId,
    target: String,
    follower: XdsResolver,
    /// Clusters that its policies request.
    dynamic: BTreeSet<Arc<str>>,
    wanted: BTreeSet<(ResourceType, String)>,
    steps: watch::Sender<Option<XdsResolverUpdate>>,
    meter: XdsMeter,
    progress: Arc<XdsProgress>,
    /// True if `progress` shows a dependency.
    is_waiting: bool,
    /// True while a [`WorkerEvent::Idle`] is in the queue.
    idle_event_sent: Arc<AtomicBool>,
}

impl XdsWorker {
    pub(super) fn new(
        bootstrap: Arc<Bootstrap>,
        client: AdsClient,
        reporter: LrsClient,
        worker_status: Arc<WorkerStatus>,
        dialer: XdsDialer,
        response_bytes: usize,
    ) -> XdsWorker {
        let (events, received) = mpsc::unbounded_channel();
        XdsWorker {
            bootstrap,
            client,
            reporter,
            names: DnsCache::new(Rng::from_entropy(entropy::fresh())),
            streams: StreamSet::new(dialer, response_bytes, events.clone()),
            channels: BTreeMap::new(),
            owners: BTreeMap::new(),
            dirty: BTreeMap::new(),
            load_is_due: false,
            worker_status,
            server_logs: Vec::new(),
            wall: WallClock::new(),
            events,
            received,
        }
    }

    /// Runs until the last sender of commands is dropped.
    pub(super) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<WorkerCommand>) {
        loop {
            self.process_effects();
            tokio::select! {
                command = commands.recv() => {
                    let Some(command) = command else { break };
                    self.handle_command(command);
                    while let Ok(command) = commands.try_recv() {
                        self.handle_command(command);
                    }
                }
                // Cancel-safe: an event is applied in the poll that receives it.
                () = self.wait_for_event() => {}
            }
        }
        // Best effort: a server that does not read must not keep the thread.
        let _ = timeout(SHUTDOWN_TIMEOUT, self.end()).await;
    }

    /// Sends the last load reports and waits until connections are closed gracefully.
    async fn end(mut self) {
        self.load_is_due = true;
        self.process_effects();
        // `run` bounds this loop by `SHUTDOWN_TIMEOUT`.
        while self.reporter.next_deadline().is_some() || !self.streams.is_empty() {
            self.wait_for_event().await;
            self.process_effects();
        }
        self.streams.closed().await;
    }

    /// Waits for an event or a deadline, and applies it.
    async fn wait_for_event(&mut self) {
        let due = self.next_deadline();
        let due = async {
            match due {
                Some(at) => sleep_until(clock::sleep_until(at)).await,
                None => pending().await,
            }
        };
        tokio::select! {
            // The worker holds a sender itself, so `recv` never returns `None`.
            Some(event) = self.received.recv() => {
                self.handle_event(event);
                while let Ok(event) = self.received.try_recv() {
                    self.handle_event(event);
                }
            }
            () = due => self.handle_time(),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let all = [self.client.next_deadline(), self.reporter.next_deadline(), self.names.next_deadline()];
        all.into_iter().flatten().min()
    }

    fn handle_time(&mut self) {
        let now = clock::now();
        if self.client.next_deadline().is_some_and(|at| at <= now) {
            self.client.handle_time(now);
        }
        self.load_is_due |= self.reporter.next_deadline().is_some_and(|at| at <= now);
    }

    /// Performs effects until none is left: streams, channels, lookups, load reports. Publishes metrics and
    /// statistics.
    fn process_effects(&mut self) {
        loop {
            while let Some(effect) = self.client.poll_effect() {
                self.apply_effect(effect);
            }
            while let Some((id, changed)) = self.client.poll_changed() {
                // The channel may have unsubscribed since.
                let Some(key) = self.owners.get(&id) else { continue };
                match self.dirty.get_mut(key) {
                    Some(dirty) => dirty.add(changed),
                    None => drop(self.dirty.insert(*key, changed)),
                }
            }
            // One channel at a time: its update may cause effects, and changes of other channels.
            let Some((key, changed)) = self.dirty.pop_first() else { break };
            self.update_channel(key, &changed);
        }
        for host in self.names.poll(clock::now()) {
            self.look_up(host);
        }
        if std::mem::take(&mut self.load_is_due) {
            // Clear the flag before the poll: a pass that ends during the poll then sends another command.
            self.worker_status.load_is_due.store(false, Ordering::Release);
            for effect in self.reporter.poll(clock::now()) {
                self.apply_lrs_effect(effect);
            }
        }
        // After all effects: a stream that opens in this pass keeps the connection of one that closed.
        self.streams.drop_unused();
        let now = clock::now();
        for channel in self.channels.values_mut() {
            channel.meter.publish(&self.client);
            channel.publish_progress(&self.client, now);
        }
        self.log_server_changes(now);
        let mut shown = lock(&self.worker_status.server_stats);
        if !self.client.server_stats().eq(shown.iter()) {
            *shown = self.client.server_stats().cloned().collect();
        }
    }
}

impl XdsWorker {
    /// Logs the first stream to each control plane, and the end of each failure. The failure itself is a warning of the
    /// client.
    fn log_server_changes(&mut self, now: Instant) {
        let node = &*self.bootstrap.node.id;
        for (index, stats) in self.client.server_stats().enumerate() {
            if self.server_logs.len() == index {
                self.server_logs.push(ServerLog::default());
            }
            let log = &mut self.server_logs[index];
            let server = &*stats.server.uri;
            if log.failures != stats.failures {
                log.failures = stats.failures;
                log.failing_since.get_or_insert(now);
            }
            if !stats.in_use {
                log.failing_since = None;
            }
            if !stats.connected {
                continue;
            }
            if let Some(since) = log.failing_since.take() {
                let after = Duration::from_millis(now.since(since).as_millis() as u64);
                tracing::info!(server, node, ?after, "xDS server recovered");
            } else if !log.was_connected {
                tracing::info!(server, node, "ADS stream open");
            }
            log.was_connected = true;
        }
    }
}

/// State of a control plane that decides which changes are logged.
#[derive(Default)]
struct ServerLog {
    was_connected: bool,
    /// Number of failures at the last check.
    failures: u64,
    /// Start of a failure that lasts.
    failing_since: Option<Instant>,
}

impl WatchedChannel {
    /// Publishes the dependency that calls wait for.
    fn publish_progress(&mut self, client: &AdsClient, now: Instant) {
        let missing = self.follower.missing();
        // Routed channels, which are nearly all, need neither a lock nor a text.
        if missing.is_none() && !self.is_waiting {
            return;
        }
        self.is_waiting = missing.is_some();
        let pending = missing.map(|missing| match missing {
            MissingDependency::Resource(kind, name) => {
                (format!("{kind} {name}"), client.pending_text(*kind, name))
            }
            MissingDependency::DnsName(host) => {
                (host.to_string(), format!("the DNS lookup of {}", quoted(host)))
            }
        });
        self.progress.publish(pending, now);
    }
}

/// Commands and updates of channels.
impl XdsWorker {
    fn handle_command(&mut self, command: WorkerCommand) {
        match command {
            WorkerCommand::Subscribe {
                key,
                target,
                listener,
                authority,
                channel_id,
                meter,
                progress,
                steps,
            } => {
                let idle_event_sent = Arc::new(AtomicBool::new(false));
                let (sent, events) = (idle_event_sent.clone(), self.events.clone());
                // Called by the thread that drops the last reference, which may be this loop.
                let on_idle = Arc::new(move || {
                    // At most one event per channel is queued. The loop clears the flag before it processes the
                    // event.
                    if !sent.swap(true, Ordering::AcqRel) {
                        let _ = events.send(WorkerEvent::Idle(key));
                    }
                });
                let node = &self.bootstrap.node.id;
                let follower = XdsResolver::new(listener, authority, node, channel_id, on_idle);
                let channel = WatchedChannel {
                    id: self.client.add_subscriber(),
                    follower: follower.for_target(&target),
                    target,
                    dynamic: BTreeSet::new(),
                    wanted: BTreeSet::new(),
                    steps,
                    meter,
                    progress,
                    is_waiting: false,
                    idle_event_sent,
                };
                self.owners.insert(channel.id, key);
                self.channels.insert(key, channel);
                self.dirty.insert(key, ChangedResources::Anything);
            }
            WorkerCommand::WatchClusters { key, dynamic } => {
                if let Some(channel) = self.channels.get_mut(&key) {
                    channel.dynamic = dynamic;
                    self.dirty.insert(key, ChangedResources::Anything);
                }
            }
            WorkerCommand::Reresolve { key } => self.names.request_reresolution(key, clock::now()),
            WorkerCommand::Unsubscribe { key } => {
                if let Some(channel) = self.channels.remove(&key) {
                    self.owners.remove(&channel.id);
                    self.client.remove_subscriber(channel.id, clock::now());
                    self.names.watch(key, &BTreeSet::new());
                    self.load_is_due = true;
                }
            }
            WorkerCommand::PollLoadStats => self.load_is_due = true,
            WorkerCommand::Describe { request, reply } => {
                // The requester may have dropped its receiver.
                let _ = reply.send(self.describe(&request));
            }
        }
    }

    /// Resolves a channel's config. Repeats until nothing further is needed.
    fn update_channel(&mut self, key: u64, changed: &ChangedResources) {
        let Some(channel) = self.channels.get_mut(&key) else { return };
        let mut changed = changed;
        loop {
            let XdsResolverOutput { watches, update } =
                channel.follower.update(changed, &channel.dynamic, &self.client);
            if let Some(step) = update {
                // Replaces an update that the channel has not seen: only the latest counts.
                channel.steps.send_replace(Some(step));
            }
            let Some(watches) = watches else { break };
            let known = self.names.watch(key, &watches.hosts);
            // Resources that it requests in addition may be cached already, for other channels. Then it resolves
            // again.
            let is_done = watches.resources == channel.wanted && known.is_empty();
            for (host, answer) in known {
                channel.follower.handle_resolved(&host, answer);
            }
            if watches.resources != channel.wanted {
                self.client.watch(channel.id, watches.resources.clone(), clock::now());
                channel.wanted = watches.resources;
            }
            if is_done {
                break;
            }
            changed = &ChangedResources::Anything;
        }
        self.client.processed(channel.id);
    }

    fn look_up(&self, host: Arc<str>) {
        let events = self.events.clone();
        tokio::spawn(async move {
            let found = match host.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse().ok()?)))
            {
                Some((name, port)) => dns::resolve(name, port).await,
                None => Err(Status::unavailable(format!("dns name {host:?}: expected host:port"))),
            };
            let answer = found.map(|all| all.into_iter().map(Address::Ip).collect());
            let _ = events.send(WorkerEvent::Resolved(host, answer));
        });
    }

    fn describe(&mut self, request: &ClientStatusRequest) -> Result<ClientStatusResponse, Status> {
        // A71 has one client per target and names it after that. This client serves all targets from one cache.
        // Repeating the cache for each target would multiply the dump, so its scope lists all targets.
        let targets: BTreeSet<&str> = self.channels.values().map(|channel| channel.target.as_str()).collect();
        let scope = targets.into_iter().collect::<Vec<_>>().join(",");
        self.wall.update();
        ads::client_status(request, [(scope.as_str(), &self.client)], |at| self.wall.date(at))
    }
}

/// Streams to control planes and their events.
impl XdsWorker {
    fn handle_event(&mut self, event: WorkerEvent) {
        let now = clock::now();
        match event {
            WorkerEvent::StreamEvent(StreamKey::Resources(stream), event) => {
                self.handle_ads_event(stream, event, now);
            }
            WorkerEvent::StreamEvent(StreamKey::Load(stream), event) => {
                self.handle_lrs_event(stream, event, now);
            }
            WorkerEvent::Resolved(host, answer) => {
                for key in self.names.handle(&host, &answer, now) {
                    if let Some(channel) = self.channels.get_mut(&key) {
                        channel.follower.handle_resolved(&host, answer.clone());
                        self.dirty.insert(key, ChangedResources::Anything);
                    }
                }
            }
            WorkerEvent::Idle(key) => {
                if let Some(channel) = self.channels.get(&key) {
                    channel.idle_event_sent.store(false, Ordering::Release);
                    self.dirty.insert(key, ChangedResources::Anything);
                }
            }
        }
    }

    fn handle_ads_event(&mut self, stream: ads::AdsStreamId, event: StreamEvent, now: Instant) {
        self.streams.record(StreamKey::Resources(stream), &event);
        match event {
            StreamEvent::Opened => self.client.handle(AdsEvent::Opened { stream }, now),
            StreamEvent::Written => self.client.handle(AdsEvent::Written { stream }, now),
            StreamEvent::Message(bytes) => {
                self.client.handle(AdsEvent::Message { stream, bytes: &bytes }, now);
            }
            StreamEvent::InvalidMessage(why) => {
                self.client.handle(AdsEvent::ProtocolError { stream, why: &why }, now);
            }
            StreamEvent::Closed(status) => self.client.handle(AdsEvent::Closed { stream, status }, now),
        }
    }

    fn handle_lrs_event(&mut self, stream: lrs::LrsStreamId, event: StreamEvent, now: Instant) {
        let key = StreamKey::Load(stream);
        self.streams.record(key, &event);
        match event {
            StreamEvent::Opened => {
                self.reporter.handle_opened(stream);
                // Requested at once: the reporter has no effect for reading, unlike the ADS client.
                self.streams.read(key);
            }
            StreamEvent::Written => {}
            StreamEvent::Message(bytes) => {
                self.reporter.handle_message(stream, &bytes, now);
                self.streams.read(key);
            }
            StreamEvent::InvalidMessage(why) => {
                let status = Status::new(Code::Internal, format!("the server {why}"));
                self.reporter.handle_closed(stream, &status, now);
            }
            StreamEvent::Closed(status) => self.reporter.handle_closed(stream, &status, now),
        }
        self.load_is_due = true;
    }

    fn apply_effect(&mut self, effect: ads::AdsEffect) {
        match effect {
            ads::AdsEffect::Open { stream, server, variant } => {
                let method = match variant {
                    XdsVariant::StateOfTheWorld => STATE_OF_THE_WORLD,
                    XdsVariant::Delta => DELTA,
                };
                // `AdsClient` applies its own connect timeout.
                self.streams.open(StreamKey::Resources(stream), server, method, None);
            }
            ads::AdsEffect::Send { stream, request } => {
                let message = match *request {
                    AdsRequest::Sotw(request) => encode_frame(&request),
                    AdsRequest::Delta(request) => encode_frame(&request),
                };
                self.streams.send(StreamKey::Resources(stream), message);
            }
            ads::AdsEffect::Read { stream } => self.streams.read(StreamKey::Resources(stream)),
            ads::AdsEffect::Close { stream } => self.streams.cancel(StreamKey::Resources(stream)),
            ads::AdsEffect::Warn(text) => tracing::warn!(node = self.bootstrap.node.id, "{text}"),
            ads::AdsEffect::Info(text) => tracing::info!(node = self.bootstrap.node.id, "{text}"),
        }
    }

    fn apply_lrs_effect(&mut self, effect: lrs::LrsEffect) {
        match effect {
            lrs::LrsEffect::Open { stream, server } => {
                if let Some(config) = self.server(&server) {
                    let connect_timeout = evenkeel_core::Backoff::default().min_connect_timeout;
                    self.streams.open(StreamKey::Load(stream), config, LOAD_STATS, Some(connect_timeout));
                } else {
                    let status = Status::new(Code::NotFound, "the server is not in the bootstrap");
                    self.reporter.handle_closed(stream, &status, clock::now());
                }
            }
            lrs::LrsEffect::Send { stream, request } => {
                self.streams.send(StreamKey::Load(stream), encode_frame(&*request));
            }
            lrs::LrsEffect::Close { stream } => self.streams.finish(StreamKey::Load(stream)),
            lrs::LrsEffect::Warn(text) => tracing::warn!(node = self.bootstrap.node.id, "{text}"),
            other => tracing::error!(effect = ?other, "unsupported load reporting effect ignored"),
        }
    }

    /// Returns the control plane with this URI.
    fn server(&self, uri: &str) -> Option<Arc<ServerConfig>> {
        let of_authorities = self.bootstrap.authorities.values().flat_map(|authority| &authority.servers);
        self.bootstrap.servers.iter().chain(of_authorities).find(|server| &*server.uri == uri).cloned()
    }
}

/// Conversion of the monotonic clock to dates. An instant keeps its date unless the system clock is adjusted.
struct WallClock {
    /// Date of the monotonic clock's origin.
    origin: SystemTime,
}

impl WallClock {
    fn new() -> WallClock {
        let since = clock::now().since(Instant::ORIGIN);
        WallClock { origin: SystemTime::now().checked_sub(since).unwrap_or(SystemTime::UNIX_EPOCH) }
    }

    /// Recomputes the origin if the system clock was adjusted or the machine was suspended.
    fn update(&mut self) {
        const SET: Duration = Duration::from_secs(1);
        let now = WallClock::new();
        let apart =
            |from: &WallClock, to: &WallClock| to.origin.duration_since(from.origin).unwrap_or_default();
        if apart(self, &now) > SET || apart(&now, self) > SET {
            *self = now;
        }
    }

    fn date(&self, at: Instant) -> Timestamp {
        Timestamp::from(self.origin.checked_add(at.since(Instant::ORIGIN)).unwrap_or(SystemTime::UNIX_EPOCH))
    }
}
