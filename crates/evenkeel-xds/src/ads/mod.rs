//! xDS client: ADS streams, subscriptions, resource cache, failures and fallback.
//!
//! The driver reports subscriptions and stream events to an [`AdsClient`] and performs the [`AdsEffect`]s that it
//! returns. There are no callbacks. [`AdsClient::poll_changed`] returns the subscribers with changes, which then read
//! [`AdsClient::resource_state`]. One client serves any number of subscribers, with one stream per control plane.
//!
//! Every method ends with the same reconcile pass. It selects the servers in use, opens and closes streams, queues
//! requests, evicts unused resources and reports failures. The pass depends on the state alone, not on the order of
//! events, so running it twice changes nothing.
//!
//! ```
//! use std::sync::Arc;
//!
//! use evenkeel_core::{Instant, Registry, Rng};
//! use evenkeel_xds::bootstrap::Bootstrap;
//! use evenkeel_xds::ads::{AdsClient, AdsEffect, XdsVariant};
//! use evenkeel_xds::resource::{ResourceParser, ResourceType};
//! let bootstrap = Bootstrap::from_json(
//!     r#"{"xds_servers": [{"server_uri": "xds.example.com:443", "channel_creds": [{"type": "tls"}]}]}"#,
//! )?;
//! let bootstrap = Arc::new(bootstrap);
//! let parser = ResourceParser::new(Registry::standard());
//! let mut client = AdsClient::new(bootstrap, parser, XdsVariant::StateOfTheWorld, Rng::from_entropy(42));
//! let channel = client.add_subscriber();
//! client.watch(channel, [(ResourceType::Listener, "orders".to_owned())].into(), Instant::ORIGIN);
//! assert!(matches!(client.poll_effect(), Some(AdsEffect::Open { .. })));
//! assert!(client.resource_state(ResourceType::Listener, "orders").value.is_none());
//! # Ok::<(), evenkeel_xds::bootstrap::BootstrapError>(())
//! ```

mod authority;
mod cache;
mod csds;
mod events;
mod key;
mod messages;
mod pass;
mod resource_counts;
mod response;
mod server;
mod stream;
mod update;

use std::collections::btree_map::Entry as MapEntry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{Backoff, Instant, Rng, Status};
use evenkeel_proto::prost_types::Any;

use self::authority::AuthorityState;
use self::cache::ResourceEntry;
use self::key::ResourceKey;
use self::server::{AdsServer, AdsStreamFailure, AdsStreamState};
use crate::XdsLimits;
use crate::bootstrap::{Bootstrap, ServerConfig};
use crate::resource::name::ResourceName;
use crate::resource::{ParsedResource, RejectedResource, Resource, ResourceParser, ResourceType};
use crate::text::quoted_long;

pub use csds::client_status;
pub use resource_counts::{CacheState, ResourceCounts};
pub use server::ServerStats;
pub use stream::AdsRequest;

/// Default grace period of deleted resources; see [`AdsClient::with_deletion_grace`].
pub const DELETION_GRACE: Duration = Duration::from_secs(1);

/// Snapshot of what is known about a resource.
#[derive(Clone, Debug, Default)]
pub struct ResourceState {
    /// The resource, or the error that replaces it. `None` until the first response, error or timeout.
    pub value: Option<Result<Resource, Status>>,
    /// Error that does not prevent use of the cached resource (A88).
    pub ambient: Option<Status>,
}

/// Subscriber to resources, usually a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubscriberId(u64);

/// Changes for a subscriber since its last [`AdsClient::poll_changed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedResources {
    /// Only these endpoint resources changed, each by its canonical name.
    Endpoints(BTreeSet<Arc<str>>),
    /// Any subscribed resource may have changed.
    Anything,
}

impl ChangedResources {
    /// Merges the changes of `other` into `self`.
    pub fn add(&mut self, other: ChangedResources) {
        match (self, other) {
            (ChangedResources::Endpoints(names), ChangedResources::Endpoints(others)) => names.extend(others),
            // The union of an unknown set with any other is unknown.
            (changed, _) => *changed = ChangedResources::Anything,
        }
    }

    /// Returns the change that an update of this resource causes.
    fn of(key: &ResourceKey) -> ChangedResources {
        match key.kind {
            // Endpoints refer to no other resource, so their change leaves the dependencies as they are.
            ResourceType::Endpoints => ChangedResources::Endpoints([key.name.clone()].into()),
            ResourceType::Listener | ResourceType::RouteConfig | ResourceType::Cluster => {
                ChangedResources::Anything
            }
        }
    }
}

/// Id of an ADS stream. Ids are never reused, so late events of an old stream are recognised and ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdsStreamId(u64);

/// Variants of the ADS protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdsVariant {
    /// `StreamAggregatedResources`: requests and responses list all names of a type.
    StateOfTheWorld,
    /// `DeltaAggregatedResources`: requests and responses list the changes.
    Delta,
}

/// Action for the driver to perform.
#[derive(Clone, Debug, PartialEq)]
pub enum AdsEffect {
    /// Connect to the server if necessary and open a stream. The driver reports [`AdsEvent::Opened`] or
    /// [`AdsEvent::Closed`].
    Open {
        /// Id of the stream to open.
        stream: AdsStreamId,
        /// Control plane to connect to.
        server: Arc<ServerConfig>,
        /// Variant, which selects the RPC method.
        variant: XdsVariant,
    },
    /// Send a request. The driver reports [`AdsEvent::Written`]; the stream has no other request in flight until then.
    Send {
        /// Stream to send on.
        stream: AdsStreamId,
        /// Request to encode and send.
        request: Box<AdsRequest>,
    },
    /// Read one message, and no more until the next `Read`. The driver reports [`AdsEvent::Message`]. This gives flow
    /// control.
    Read {
        /// Stream to read from.
        stream: AdsStreamId,
    },
    /// Close the stream. Later events of this stream are ignored.
    Close {
        /// Id of the stream to close.
        stream: AdsStreamId,
    },
    /// Log a warning. The client suppresses repetitions of the same warning.
    Warn(String),
    /// Log the end of a condition that an earlier warning reported.
    Info(String),
}

/// Event of an ADS stream, reported by the driver.
#[derive(Clone, Debug)]
pub enum AdsEvent<'a> {
    /// The stream is open and accepts requests.
    Opened {
        /// Id of the stream that opened.
        stream: AdsStreamId,
    },
    /// The request was written to the transport.
    Written {
        /// Stream of the request.
        stream: AdsStreamId,
    },
    /// The server sent a message.
    Message {
        /// Stream of the message.
        stream: AdsStreamId,
        /// Encoded response of the stream's variant.
        bytes: &'a [u8],
    },
    /// The server sent something that cannot be a response, for example a message above the size limit. The stream
    /// fails.
    ProtocolError {
        /// Stream of the invalid message.
        stream: AdsStreamId,
        /// Description of the error, as in `sent a compressed response`.
        why: &'a str,
    },
    /// The stream ended or could not be opened.
    Closed {
        /// Id of the stream that closed.
        stream: AdsStreamId,
        /// Status that the stream ended with.
        status: Status,
    },
}

/// Parser of the resources that a control plane sends.
pub trait ParseResource {
    /// Parses one resource of a response of type `kind` that `from` sent.
    fn parse(
        &self,
        kind: ResourceType,
        any: &Any,
        from: &ServerConfig,
    ) -> Result<ParsedResource, RejectedResource>;

    /// Returns the limits on accepted data.
    fn limits(&self) -> XdsLimits {
        XdsLimits::default()
    }
}

impl ParseResource for ResourceParser {
    fn parse(
        &self,
        kind: ResourceType,
        any: &Any,
        from: &ServerConfig,
    ) -> Result<ParsedResource, RejectedResource> {
        ResourceParser::parse(self, kind, any, from)
    }

    fn limits(&self) -> XdsLimits {
        self.limits.clone()
    }
}

/// A parser that can reuse the version in use of a resource.
///
/// Only [`ResourceParser`] does; any other parser parses each version alone. The check is by type, so that the public trait
/// does not mention it.
trait ParseIncremental: ParseResource {
    /// Parses one resource. `before` is the version in use, as it was received and as it was parsed.
    fn parse_incremental(
        &self,
        before: Option<(&Any, &Resource)>,
        kind: ResourceType,
        any: &Any,
        from: &ServerConfig,
    ) -> Result<ParsedResource, RejectedResource>;
}

impl<P: ParseResource + 'static> ParseIncremental for P {
    fn parse_incremental(
        &self,
        before: Option<(&Any, &Resource)>,
        kind: ResourceType,
        any: &Any,
        from: &ServerConfig,
    ) -> Result<ParsedResource, RejectedResource> {
        match (self as &dyn std::any::Any).downcast_ref::<ResourceParser>() {
            Some(parser) => parser.parse_incremental(before, kind, any, from),
            None => self.parse(kind, any, from),
        }
    }
}

/// State machine of the xDS client: subscribers, cached resources and ADS streams.
pub struct AdsClient {
    bootstrap: Arc<Bootstrap>,
    parser: Box<dyn ParseIncremental + Send + Sync>,
    limits: XdsLimits,
    variant: XdsVariant,
    rng: Rng,
    backoff: Backoff,
    authorities: Vec<AuthorityState>,
    servers: Vec<AdsServer>,
    cache: BTreeMap<ResourceKey, ResourceEntry>,
    /// Entries without subscribers. They stay until no server has them in its subscription.
    orphans: BTreeSet<ResourceKey>,
    /// Grace period of deleted resources.
    deletion_grace: Duration,
    /// Entries with a deleted resource in its grace period.
    deleted: BTreeSet<ResourceKey>,
    subscribers: BTreeMap<SubscriberId, BTreeSet<ResourceKey>>,
    changed: BTreeMap<SubscriberId, ChangedResources>,
    effects: VecDeque<AdsEffect>,
    next_subscriber: u64,
    next_stream: u64,
}

impl AdsClient {
    /// Creates a client without subscribers. It opens no stream until a subscriber watches a resource.
    pub fn new(
        bootstrap: Arc<Bootstrap>,
        parser: impl ParseResource + Send + Sync + 'static,
        variant: XdsVariant,
        rng: Rng,
    ) -> AdsClient {
        let mut servers = Vec::new();
        let mut authorities = vec![AuthorityState::new(None, &bootstrap.servers, &mut servers)];
        for (name, authority) in &bootstrap.authorities {
            let own = &authority.servers;
            let configs = if own.is_empty() { &bootstrap.servers } else { own };
            authorities.push(AuthorityState::new(Some(name.as_str().into()), configs, &mut servers));
        }
        AdsClient {
            bootstrap,
            limits: parser.limits(),
            parser: Box::new(parser),
            variant,
            rng,
            backoff: Backoff::default(),
            authorities,
            servers,
            cache: BTreeMap::new(),
            orphans: BTreeSet::new(),
            deletion_grace: DELETION_GRACE,
            deleted: BTreeSet::new(),
            subscribers: BTreeMap::new(),
            changed: BTreeMap::new(),
            effects: VecDeque::new(),
            next_subscriber: 0,
            next_stream: 0,
        }
    }

    /// Sets the grace period of deleted resources, [`DELETION_GRACE`] by default. Zero drops them at once.
    ///
    /// A deleted cluster, route configuration or endpoint resource stays in use until no subscriber watches it or the
    /// grace period ends. Then it does not exist (A53). Control planes such as istiod delete a cluster before they move
    /// the routes away from it. Deleted listeners, and all resources of servers with `fail_on_data_errors`, are dropped
    /// at once.
    #[must_use]
    pub fn with_deletion_grace(mut self, grace: Duration) -> AdsClient {
        self.deletion_grace = grace;
        self
    }

    /// Adds a subscriber that watches no resources.
    pub fn add_subscriber(&mut self) -> SubscriberId {
        let id = SubscriberId(self.next_subscriber);
        self.next_subscriber = self.next_subscriber.saturating_add(1);
        self.subscribers.insert(id, BTreeSet::new());
        id
    }

    /// Replaces the set of resources that a subscriber watches. The state of cached resources is available at once.
    pub fn watch(&mut self, id: SubscriberId, names: BTreeSet<(ResourceType, String)>, now: Instant) {
        if !self.subscribers.contains_key(&id) {
            return;
        }
        // Invalid names are not watched. `resource_state` returns their error.
        let keys = names.into_iter().filter_map(|(kind, name)| self.key(kind, &name).ok()).collect();
        self.replace(id, keys, now);
    }

    /// Removes a subscriber and all its subscriptions.
    pub fn remove_subscriber(&mut self, id: SubscriberId, now: Instant) {
        self.replace(id, BTreeSet::new(), now);
        self.subscribers.remove(&id);
        self.changed.remove(&id);
        // A removed subscriber must not block the next read (ADS-9).
        self.processed(id);
    }

    /// Returns the state of a resource. A malformed name, or one with an authority that is not in the bootstrap, has an
    /// error. A resource without subscribers has the default state, as if unknown.
    pub fn resource_state(&self, kind: ResourceType, name: &str) -> ResourceState {
        match self.key(kind, name) {
            Err(error) => ResourceState { value: Some(Err(error)), ambient: None },
            Ok(key) => match self.cache.get(&key).filter(|entry| entry.is_watched()) {
                Some(entry) => {
                    let failure = self.authorities.get(key.authority).and_then(|a| a.failure.as_ref());
                    match failure.filter(|_| entry.is_requested()) {
                        Some(failure) => {
                            ResourceState { value: Some(Err(not_received(&key, failure))), ambient: None }
                        }
                        None => entry.state(failure),
                    }
                }
                None => ResourceState::default(),
            },
        }
    }

    /// Returns the server of a watched resource that has not been received, and the state of the stream to it, as in
    /// `listener "orders" from xDS server "localhost:18000": the stream is open, no response yet`.
    pub fn pending_text(&self, kind: ResourceType, name: &str) -> String {
        let resource = format!("{kind} {}", quoted_long(name));
        let server = self.key(kind, name).ok().and_then(|key| {
            let active = self.authorities.get(key.authority)?.in_use().last()?;
            self.servers.get(*active)
        });
        // Without a server the resource has an error, so it is not pending.
        let Some(server) = server else { return resource };
        format!("{resource} from xDS server {:?}: {}", server.config.uri, server.stream_text())
    }

    /// Handles a stream event. Events of streams that are no longer in use are ignored.
    pub fn handle(&mut self, input: AdsEvent<'_>, now: Instant) {
        let (AdsEvent::Opened { stream }
        | AdsEvent::Written { stream }
        | AdsEvent::Message { stream, .. }
        | AdsEvent::ProtocolError { stream, .. }
        | AdsEvent::Closed { stream, .. }) = input;
        let Some(server) = self.servers.iter().position(|server| server.stream_id() == Some(stream)) else {
            return;
        };
        match input {
            AdsEvent::Opened { .. } => self.handle_opened(server, stream),
            AdsEvent::Written { .. } => self.handle_written(server, now),
            // `handle_message` runs the reconcile pass itself, between the response and the next read.
            AdsEvent::Message { bytes, .. } => return self.handle_message(server, stream, bytes, now),
            AdsEvent::ProtocolError { why, .. } => self.fail_stream(server, why, now),
            AdsEvent::Closed { status, .. } => self.handle_closed(server, &status, now),
        }
        self.reconcile(now);
    }

    /// Handles expired deadlines: connection timeouts, backoff, resource timers and grace periods.
    pub fn handle_time(&mut self, now: Instant) {
        for server in 0..self.servers.len() {
            match &mut self.servers[server].stream_state {
                AdsStreamState::Opening { stream, until } if *until <= now => {
                    let stream = *stream;
                    self.effects.push_back(AdsEffect::Close { stream });
                    let within = self.backoff.min_connect_timeout;
                    let why = format!("did not accept a connection within {within:?}");
                    self.fail(server, &why, AdsStreamFailure::NoResponse, now);
                }
                AdsStreamState::BackingOff { until } if *until <= now => self.open(server, now),
                AdsStreamState::Open(stream) => {
                    for key in stream.handle_time(now) {
                        self.handle_resource_timeout(server, &key, now);
                    }
                }
                AdsStreamState::Idle | AdsStreamState::Opening { .. } | AdsStreamState::BackingOff { .. } => {
                }
            }
        }
        // Before the pass, which evicts and notifies.
        self.expire_deleted(now);
        self.reconcile(now);
    }

    /// Returns the time at which [`AdsClient::handle_time`] is next due.
    pub fn next_deadline(&self) -> Option<Instant> {
        let of_servers = self.servers.iter().filter_map(AdsServer::deadline);
        let of_deleted = self.deleted.iter().filter_map(|key| self.cache.get(key)?.held_until());
        of_servers.chain(of_deleted).min()
    }

    /// Returns the next effect for the driver to perform.
    pub fn poll_effect(&mut self) -> Option<AdsEffect> {
        self.effects.pop_front()
    }

    /// Returns the next subscriber with changes, and the changes. The subscriber reads the states of the resources that
    /// it watches, or of the changed ones. Then the driver calls [`AdsClient::processed`].
    pub fn poll_changed(&mut self) -> Option<(SubscriberId, ChangedResources)> {
        self.changed.pop_first()
    }

    /// Records that a subscriber has applied its changes and updated its subscriptions. The next response is read when
    /// all subscribers have done so. If the subscriber has further changes already, it remains pending.
    pub fn processed(&mut self, id: SubscriberId) {
        if self.changed.contains_key(&id) {
            return;
        }
        for server in &mut self.servers {
            if let Some(stream) = server.stream_mut()
                && stream.pending.remove(&id)
                && stream.pending.is_empty()
            {
                self.effects.push_back(AdsEffect::Read { stream: stream.id });
            }
        }
    }

    /// Returns the statistics of each control plane.
    pub fn server_stats(&self) -> impl Iterator<Item = &ServerStats> {
        self.servers.iter().map(|server| &server.stats)
    }
}

/// Returns the status of a resource that no server could deliver. The failure names the servers; this adds the
/// resource. The first RPC of a channel then fails with the name of the resource that it waits for.
fn not_received(key: &ResourceKey, failure: &Status) -> Status {
    let (kind, name) = (key.kind, quoted_long(&key.name));
    Status::unavailable(format!("{kind} {name}: not received: {}", failure.message()))
}

/// Resource keys and subscriptions.
impl AdsClient {
    fn key(&self, kind: ResourceType, name: &str) -> Result<ResourceKey, Status> {
        let fail = |problem: String| {
            let node = messages::node_suffix(&self.bootstrap.node.id);
            Status::unavailable(format!("{kind} {}: {problem}{node}", quoted_long(name)))
        };
        let name = ResourceName::parse(kind, name).map_err(|error| fail(error.problem().to_owned()))?;
        let index = self.authorities.iter().position(|known| known.name.as_deref() == name.authority());
        let Some(authority) = index else {
            let authority = quoted_long(name.authority().unwrap_or_default());
            return Err(fail(format!("authority {authority} is not in the bootstrap")));
        };
        Ok(ResourceKey { authority, kind, name: name.into_canonical() })
    }

    fn replace(&mut self, id: SubscriberId, keys: BTreeSet<ResourceKey>, now: Instant) {
        let Some(wants) = self.subscribers.get_mut(&id) else { return };
        let before = mem::take(wants);
        for key in keys.difference(&before) {
            let entry = self.cache.entry(key.clone()).or_default();
            entry.subscribers.insert(id);
            // A further subscriber needs no request, since the name is subscribed already (ADS-2).
            if entry.subscribers.len() == 1 {
                self.mark_dirty(key.authority, key.kind);
            }
        }
        for key in before.difference(&keys) {
            let Some(entry) = self.cache.get_mut(key) else { continue };
            entry.subscribers.remove(&id);
            if !entry.is_watched() {
                // The pass evicts the entry once no server is subscribed to it (fault 17).
                self.orphans.insert(key.clone());
                self.mark_dirty(key.authority, key.kind);
            }
        }
        self.subscribers.insert(id, keys);
        self.reconcile(now);
    }

    /// Marks the subscription of a type as possibly different from the last request, on every stream of the authority.
    fn mark_dirty(&mut self, authority: usize, kind: ResourceType) {
        for server in self.authorities[authority].servers() {
            if let Some(stream) = self.servers[*server].stream_mut() {
                stream.mark_dirty(kind);
            }
        }
    }

    /// Adds the changes to the pending changes of these subscribers.
    fn notify(&mut self, subscribers: impl IntoIterator<Item = SubscriberId>, what: &ChangedResources) {
        for id in subscribers {
            match self.changed.entry(id) {
                MapEntry::Vacant(place) => drop(place.insert(what.clone())),
                MapEntry::Occupied(mut changed) => changed.get_mut().add(what.clone()),
            }
        }
    }

    fn is_in_use(&self, authority: usize) -> bool {
        self.entries(authority).any(|(_, entry)| entry.is_watched())
    }

    fn entries(&self, authority: usize) -> impl Iterator<Item = (&ResourceKey, &ResourceEntry)> {
        ResourceType::ALL.into_iter().flat_map(move |kind| self.entries_of(authority, kind))
    }

    fn entries_of(
        &self,
        authority: usize,
        kind: ResourceType,
    ) -> impl Iterator<Item = (&ResourceKey, &ResourceEntry)> {
        // Keys sort by authority, type and name, so the empty name sorts before all others of the type.
        let first = ResourceKey { authority, kind, name: "".into() };
        self.cache.range(first..).take_while(move |(key, _)| key.authority == authority && key.kind == kind)
    }
}
