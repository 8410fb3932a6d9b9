//! Streams, subscriptions, cache, failures and fallback.
//!
//! A [`AdsClient`] is told what its subscribers want and what happened to its streams; it answers with [`AdsEffect`]s to carry out.
//! Subscribers get no callbacks: [`AdsClient::poll_changed`] says for whom something changed, and they [look](AdsClient::resource_state). One
//! client serves any number of subscribers, with one stream per control plane.
//!
//! Every call ends with the same pass: which servers are in use, which streams must open or close, what there is to
//! say on each of them, what can be forgotten, and who hears of failures. Running it twice changes nothing, and
//! it does not matter in which order things happened.
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

/// How a resource stands at one time.
#[derive(Clone, Debug, Default)]
pub struct ResourceState {
    /// The resource, or why it cannot be had; `None` while nothing is known yet.
    pub value: Option<Result<Resource, Status>>,
    /// What is wrong although there is a resource to use (A88).
    pub ambient: Option<Status>,
}

/// Someone who wants resources: a channel, most often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubscriberId(u64);

/// What changed for a subscriber since it was last told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedResources {
    /// These endpoints and nothing else, each by the canonical spelling of its name.
    Endpoints(BTreeSet<Arc<str>>),
    /// Anything that it looks at.
    Anything,
}

impl ChangedResources {
    /// Adds what changed beside it.
    pub fn add(&mut self, other: ChangedResources) {
        match (self, other) {
            (ChangedResources::Endpoints(names), ChangedResources::Endpoints(others)) => names.extend(others),
            (changed, _) => *changed = ChangedResources::Anything,
        }
    }

    /// What changes with this resource.
    fn of(key: &ResourceKey) -> ChangedResources {
        match key.kind {
            ResourceType::Endpoints => ChangedResources::Endpoints([key.name.clone()].into()),
            ResourceType::Listener | ResourceType::RouteConfig | ResourceType::Cluster => {
                ChangedResources::Anything
            }
        }
    }
}

/// A stream to a control plane. Ids are not used twice, so what comes late from an old stream is known as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdsStreamId(u64);

/// The two ways to speak ADS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdsVariant {
    /// `StreamAggregatedResources`: requests and responses list all names of a type.
    StateOfTheWorld,
    /// `DeltaAggregatedResources`: requests and responses list what changes.
    Delta,
}

/// Something to do for the client.
#[derive(Clone, Debug, PartialEq)]
pub enum AdsEffect {
    /// Connect to the server if need be and start a stream. Answered by [`AdsEvent::Opened`] or [`AdsEvent::Closed`].
    Open {
        /// The stream.
        stream: AdsStreamId,
        /// Where to.
        server: Arc<ServerConfig>,
        /// Which method to call.
        variant: XdsVariant,
    },
    /// Send a request. Answered by [`AdsEvent::Written`]; there is no other one meanwhile.
    Send {
        /// The stream.
        stream: AdsStreamId,
        /// The request.
        request: Box<AdsRequest>,
    },
    /// Read one message, and no more until asked again. Answered by [`AdsEvent::Message`].
    Read {
        /// The stream.
        stream: AdsStreamId,
    },
    /// End the stream; nothing that comes from it matters any more.
    Close {
        /// The stream.
        stream: AdsStreamId,
    },
    /// Tell the operator that something is wrong. The same thing is not repeated.
    Warn(String),
    /// Tell the operator that something is well again.
    Info(String),
}

/// Something that happened to a stream.
#[derive(Clone, Debug)]
pub enum AdsEvent<'a> {
    /// It is connected, and requests can be sent.
    Opened {
        /// The stream.
        stream: AdsStreamId,
    },
    /// The request is on the wire.
    Written {
        /// The stream.
        stream: AdsStreamId,
    },
    /// A message came.
    Message {
        /// The stream.
        stream: AdsStreamId,
        /// The encoded response.
        bytes: &'a [u8],
    },
    /// Something came that cannot be a response, such as one that is too long to be taken in. The stream is of no use.
    ProtocolError {
        /// The stream.
        stream: AdsStreamId,
        /// What the server did, as in `sent a compressed response`.
        why: &'a str,
    },
    /// It ended, or could not be opened.
    Closed {
        /// The stream.
        stream: AdsStreamId,
        /// Why.
        status: Status,
    },
}

/// Turns what a control plane sends into resources.
pub trait ParseResource {
    /// Parses one resource of a response of type `kind` that `from` sent.
    fn parse(
        &self,
        kind: ResourceType,
        any: &Any,
        from: &ServerConfig,
    ) -> Result<ParsedResource, RejectedResource>;

    /// The same, for a resource of which another version is in use: as it came, and as it was parsed. Parts that are the same in
    /// both may keep their allocations.
    fn parse_incremental(
        &self,
        before: (&Any, &Resource),
        kind: ResourceType,
        any: &Any,
        from: &ServerConfig,
    ) -> Result<ParsedResource, RejectedResource> {
        let _ = before;
        self.parse(kind, any, from)
    }

    /// How much is accepted.
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

    fn parse_incremental(
        &self,
        before: (&Any, &Resource),
        kind: ResourceType,
        any: &Any,
        from: &ServerConfig,
    ) -> Result<ParsedResource, RejectedResource> {
        ResourceParser::parse_incremental(self, Some(before), kind, any, from)
    }

    fn limits(&self) -> XdsLimits {
        self.limits.clone()
    }
}

/// The state of everything between subscribers and control planes.
pub struct AdsClient {
    bootstrap: Arc<Bootstrap>,
    parser: Box<dyn ParseResource + Send + Sync>,
    limits: XdsLimits,
    variant: XdsVariant,
    rng: Rng,
    backoff: Backoff,
    authorities: Vec<AuthorityState>,
    servers: Vec<AdsServer>,
    cache: BTreeMap<ResourceKey, ResourceEntry>,
    /// Entries that nobody wants and that the servers may not know about yet.
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
    /// A client that wants nothing yet, and so does nothing.
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
    /// A deleted cluster, route configuration or endpoint resource stays in use until no subscriber wants it or the grace
    /// period ends; then it does not exist (A53). Control planes such as istiod delete a cluster before they move the
    /// routes away from it. Deleted listeners, and all resources of servers with `fail_on_data_errors`, are dropped at once.
    #[must_use]
    pub fn with_deletion_grace(mut self, grace: Duration) -> AdsClient {
        self.deletion_grace = grace;
        self
    }

    /// Adds a subscriber that wants nothing yet.
    pub fn add_subscriber(&mut self) -> SubscriberId {
        let id = SubscriberId(self.next_subscriber);
        self.next_subscriber = self.next_subscriber.saturating_add(1);
        self.subscribers.insert(id, BTreeSet::new());
        id
    }

    /// Says what a subscriber wants from here on, all of it. What is known already can be looked at at once.
    pub fn watch(&mut self, id: SubscriberId, names: BTreeSet<(ResourceType, String)>, now: Instant) {
        if !self.subscribers.contains_key(&id) {
            return;
        }
        let keys = names.into_iter().filter_map(|(kind, name)| self.key(kind, &name).ok()).collect();
        self.replace(id, keys, now);
    }

    /// Removes a subscriber with all that it wants.
    pub fn remove_subscriber(&mut self, id: SubscriberId, now: Instant) {
        self.replace(id, BTreeSet::new(), now);
        self.subscribers.remove(&id);
        self.changed.remove(&id);
        self.processed(id);
    }

    /// How a resource stands. A name that no server of the bootstrap is responsible for has an error at once; one that
    /// nobody wants is not known.
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

    /// Takes in what happened to a stream. What comes from a stream that is no longer used is ignored.
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
            AdsEvent::Message { bytes, .. } => return self.handle_message(server, stream, bytes, now),
            AdsEvent::ProtocolError { why, .. } => self.fail_stream(server, why, now),
            AdsEvent::Closed { status, .. } => self.handle_closed(server, &status, now),
        }
        self.reconcile(now);
    }

    /// Does what is due.
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
        self.expire_deleted(now);
        self.reconcile(now);
    }

    /// When [`AdsClient::handle_time`] is next due.
    pub fn next_deadline(&self) -> Option<Instant> {
        let of_servers = self.servers.iter().filter_map(AdsServer::deadline);
        let of_deleted = self.deleted.iter().filter_map(|key| self.cache.get(key)?.held_until());
        of_servers.chain(of_deleted).min()
    }

    /// The next thing to do.
    pub fn poll_effect(&mut self) -> Option<AdsEffect> {
        self.effects.pop_front()
    }

    /// The next subscriber for whom something changed, and what. It looks at what it wants, or at what changed of that, and
    /// then is [processed](AdsClient::processed).
    pub fn poll_changed(&mut self) -> Option<(SubscriberId, ChangedResources)> {
        self.changed.pop_first()
    }

    /// A subscriber has dealt with what changed for it, and said what it wants by now. Only when all have is the next
    /// response read. Where something changed again meanwhile this is not the end of it.
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

    /// What happened with each control plane so far.
    pub fn server_stats(&self) -> impl Iterator<Item = &ServerStats> {
        self.servers.iter().map(|server| &server.stats)
    }
}

/// Status of a resource that no server could be asked for. The failure names the servers; this adds the resource, so that
/// the first RPC of a channel fails with the name that it waits for.
fn not_received(key: &ResourceKey, failure: &Status) -> Status {
    let (kind, name) = (key.kind, quoted_long(&key.name));
    Status::unavailable(format!("{kind} {name}: not received: {}", failure.message()))
}

/// Names and subscriptions.
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
            if entry.subscribers.len() == 1 {
                self.mark_dirty(key.authority, key.kind);
            }
        }
        for key in before.difference(&keys) {
            let Some(entry) = self.cache.get_mut(key) else { continue };
            entry.subscribers.remove(&id);
            if !entry.is_watched() {
                self.orphans.insert(key.clone());
                self.mark_dirty(key.authority, key.kind);
            }
        }
        self.subscribers.insert(id, keys);
        self.reconcile(now);
    }

    /// What is wanted of a type may differ from what the servers of the authority were asked.
    fn mark_dirty(&mut self, authority: usize, kind: ResourceType) {
        for server in self.authorities[authority].servers() {
            if let Some(stream) = self.servers[*server].stream_mut() {
                stream.mark_dirty(kind);
            }
        }
    }

    /// Something changed for these subscribers.
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
        let first = ResourceKey { authority, kind, name: "".into() };
        self.cache.range(first..).take_while(move |(key, _)| key.authority == authority && key.kind == kind)
    }
}
