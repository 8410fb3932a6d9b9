//! Streams, subscriptions, cache, failures and fallback.
//!
//! A [`Client`] is told what its subscribers want and what happened to its streams; it answers with [`Effect`]s to carry out.
//! Subscribers get no callbacks: [`Client::poll_changed`] says for whom something changed, and they [look](Client::look). One
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
//! use evenkeel_xds::client::{Client, Effect, Variant};
//! use evenkeel_xds::resource::{Parser, ResourceType};
//! let bootstrap = Bootstrap::from_json(
//!     r#"{"xds_servers": [{"server_uri": "xds.example.com:443", "channel_creds": [{"type": "tls"}]}]}"#,
//! )?;
//! let bootstrap = Arc::new(bootstrap);
//! let parser = Parser::new(Registry::standard());
//! let mut client = Client::new(bootstrap, parser, Variant::StateOfTheWorld, Rng::from_entropy(42));
//! let channel = client.subscribe();
//! client.want(channel, [(ResourceType::Listener, "orders".to_owned())].into(), Instant::ORIGIN);
//! assert!(matches!(client.poll_effect(), Some(Effect::Open { .. })));
//! assert!(client.look(ResourceType::Listener, "orders").value.is_none());
//! # Ok::<(), evenkeel_xds::bootstrap::BootstrapError>(())
//! ```

mod authority;
mod cache;
mod census;
mod csds;
mod events;
mod key;
mod pass;
mod response;
mod server;
mod stream;
mod update;
mod words;

use std::collections::btree_map::Entry as MapEntry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{Backoff, Instant, Rng, Status};
use evenkeel_proto::prost_types::Any;

use self::authority::Authority;
use self::cache::Entry;
use self::key::Key;
use self::server::{AttemptFailure, Link, Server};
use crate::Limits;
use crate::bootstrap::{Bootstrap, ServerConfig};
use crate::name::ResourceName;
use crate::resource::{Parsed, Parser, Rejected, Resource, ResourceType};
use crate::text::quoted_whole;

pub use census::{CacheState, Census};
pub use csds::answer;
pub use server::Tally;
pub use stream::Request;

/// Default grace period of deleted resources; see [`Client::with_deletion_grace`].
pub const DELETION_GRACE: Duration = Duration::from_secs(1);

/// How a resource stands at one time.
#[derive(Clone, Debug, Default)]
pub struct Seen {
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
pub enum Changed {
    /// These endpoints and nothing else, each by the canonical spelling of its name.
    Endpoints(BTreeSet<Arc<str>>),
    /// Anything that it looks at.
    Anything,
}

impl Changed {
    /// Adds what changed beside it.
    pub fn add(&mut self, other: Changed) {
        match (self, other) {
            (Changed::Endpoints(names), Changed::Endpoints(others)) => names.extend(others),
            (changed, _) => *changed = Changed::Anything,
        }
    }

    /// What changes with this resource.
    fn of(key: &Key) -> Changed {
        match key.kind {
            ResourceType::Endpoints => Changed::Endpoints([key.name.clone()].into()),
            ResourceType::Listener | ResourceType::RouteConfig | ResourceType::Cluster => Changed::Anything,
        }
    }
}

/// A stream to a control plane. Ids are not used twice, so what comes late from an old stream is known as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(u64);

/// The two ways to speak ADS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// `StreamAggregatedResources`: requests and responses list all names of a type.
    StateOfTheWorld,
    /// `DeltaAggregatedResources`: requests and responses list what changes.
    Delta,
}

/// Something to do for the client.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Connect to the server if need be and start a stream. Answered by [`Input::Opened`] or [`Input::Closed`].
    Open {
        /// The stream.
        stream: StreamId,
        /// Where to.
        server: Arc<ServerConfig>,
        /// Which method to call.
        variant: Variant,
    },
    /// Send a request. Answered by [`Input::Written`]; there is no other one meanwhile.
    Send {
        /// The stream.
        stream: StreamId,
        /// The request.
        request: Box<Request>,
    },
    /// Read one message, and no more until asked again. Answered by [`Input::Message`].
    Read {
        /// The stream.
        stream: StreamId,
    },
    /// End the stream; nothing that comes from it matters any more.
    Close {
        /// The stream.
        stream: StreamId,
    },
    /// Tell the operator that something is wrong. The same thing is not repeated.
    Warn(String),
    /// Tell the operator that something is well again.
    Info(String),
}

/// Something that happened to a stream.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// It is connected, and requests can be sent.
    Opened {
        /// The stream.
        stream: StreamId,
    },
    /// The request is on the wire.
    Written {
        /// The stream.
        stream: StreamId,
    },
    /// A message came.
    Message {
        /// The stream.
        stream: StreamId,
        /// The encoded response.
        bytes: &'a [u8],
    },
    /// Something came that cannot be a response, such as one that is too long to be taken in. The stream is of no use.
    Nonsense {
        /// The stream.
        stream: StreamId,
        /// What the server did, as in `sent a compressed response`.
        why: &'a str,
    },
    /// It ended, or could not be opened.
    Closed {
        /// The stream.
        stream: StreamId,
        /// Why.
        status: Status,
    },
}

/// Turns what a control plane sends into resources.
pub trait Parse {
    /// Parses one resource of a response of type `kind` that `from` sent.
    fn parse(&self, kind: ResourceType, any: &Any, from: &ServerConfig) -> Result<Parsed, Rejected>;

    /// The same, for a resource of which another version is in use: as it came, and as it was parsed. Parts that are the same in
    /// both may keep their allocations.
    fn parse_after(
        &self,
        before: (&Any, &Resource),
        kind: ResourceType,
        any: &Any,
        from: &ServerConfig,
    ) -> Result<Parsed, Rejected> {
        let _ = before;
        self.parse(kind, any, from)
    }

    /// How much is accepted.
    fn limits(&self) -> Limits {
        Limits::default()
    }
}

impl Parse for Parser {
    fn parse(&self, kind: ResourceType, any: &Any, from: &ServerConfig) -> Result<Parsed, Rejected> {
        Parser::parse(self, kind, any, from)
    }

    fn parse_after(
        &self,
        before: (&Any, &Resource),
        kind: ResourceType,
        any: &Any,
        from: &ServerConfig,
    ) -> Result<Parsed, Rejected> {
        Parser::parse_after(self, Some(before), kind, any, from)
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }
}

/// The state of everything between subscribers and control planes.
pub struct Client {
    bootstrap: Arc<Bootstrap>,
    parser: Box<dyn Parse + Send + Sync>,
    limits: Limits,
    variant: Variant,
    rng: Rng,
    backoff: Backoff,
    authorities: Vec<Authority>,
    servers: Vec<Server>,
    cache: BTreeMap<Key, Entry>,
    /// Entries that nobody wants and that the servers may not know about yet.
    orphans: BTreeSet<Key>,
    /// Grace period of deleted resources.
    deletion_grace: Duration,
    /// Entries with a deleted resource in its grace period.
    deleted: BTreeSet<Key>,
    subscribers: BTreeMap<SubscriberId, BTreeSet<Key>>,
    changed: BTreeMap<SubscriberId, Changed>,
    effects: VecDeque<Effect>,
    next_subscriber: u64,
    next_stream: u64,
}

impl Client {
    /// A client that wants nothing yet, and so does nothing.
    pub fn new(
        bootstrap: Arc<Bootstrap>,
        parser: impl Parse + Send + Sync + 'static,
        variant: Variant,
        rng: Rng,
    ) -> Client {
        let mut servers = Vec::new();
        let mut authorities = vec![Authority::new(None, &bootstrap.servers, &mut servers)];
        for (name, authority) in &bootstrap.authorities {
            let own = &authority.servers;
            let configs = if own.is_empty() { &bootstrap.servers } else { own };
            authorities.push(Authority::new(Some(name.as_str().into()), configs, &mut servers));
        }
        Client {
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
    pub fn with_deletion_grace(mut self, grace: Duration) -> Client {
        self.deletion_grace = grace;
        self
    }

    /// Adds a subscriber that wants nothing yet.
    pub fn subscribe(&mut self) -> SubscriberId {
        let id = SubscriberId(self.next_subscriber);
        self.next_subscriber = self.next_subscriber.saturating_add(1);
        self.subscribers.insert(id, BTreeSet::new());
        id
    }

    /// Says what a subscriber wants from here on, all of it. What is known already can be looked at at once.
    pub fn want(&mut self, id: SubscriberId, names: BTreeSet<(ResourceType, String)>, now: Instant) {
        if !self.subscribers.contains_key(&id) {
            return;
        }
        let keys = names.into_iter().filter_map(|(kind, name)| self.key(kind, &name).ok()).collect();
        self.replace(id, keys, now);
    }

    /// Removes a subscriber with all that it wants.
    pub fn leave(&mut self, id: SubscriberId, now: Instant) {
        self.replace(id, BTreeSet::new(), now);
        self.subscribers.remove(&id);
        self.changed.remove(&id);
        self.processed(id);
    }

    /// How a resource stands. A name that no server of the bootstrap is responsible for has an error at once; one that
    /// nobody wants is not known.
    pub fn look(&self, kind: ResourceType, name: &str) -> Seen {
        match self.key(kind, name) {
            Err(error) => Seen { value: Some(Err(error)), ambient: None },
            Ok(key) => match self.cache.get(&key).filter(|entry| entry.is_wanted()) {
                Some(entry) => {
                    let failure = self.authorities.get(key.authority).and_then(|a| a.failure.as_ref());
                    match failure.filter(|_| entry.is_unanswered()) {
                        Some(failure) => {
                            Seen { value: Some(Err(not_received(&key, failure))), ambient: None }
                        }
                        None => entry.seen(failure),
                    }
                }
                None => Seen::default(),
            },
        }
    }

    /// Takes in what happened to a stream. What comes from a stream that is no longer used is ignored.
    pub fn handle(&mut self, input: Input<'_>, now: Instant) {
        let (Input::Opened { stream }
        | Input::Written { stream }
        | Input::Message { stream, .. }
        | Input::Nonsense { stream, .. }
        | Input::Closed { stream, .. }) = input;
        let Some(server) = self.servers.iter().position(|server| server.stream_id() == Some(stream)) else {
            return;
        };
        match input {
            Input::Opened { .. } => self.handle_opened(server, stream),
            Input::Written { .. } => self.handle_written(server, now),
            Input::Message { bytes, .. } => return self.handle_message(server, stream, bytes, now),
            Input::Nonsense { why, .. } => self.hang_up(server, why, now),
            Input::Closed { status, .. } => self.handle_closed(server, &status, now),
        }
        self.reconcile(now);
    }

    /// Does what is due.
    pub fn handle_time(&mut self, now: Instant) {
        for server in 0..self.servers.len() {
            match &mut self.servers[server].link {
                Link::Opening { stream, until } if *until <= now => {
                    let stream = *stream;
                    self.effects.push_back(Effect::Close { stream });
                    let within = self.backoff.min_connect_timeout;
                    let why = format!("did not accept a connection within {within:?}");
                    self.fail(server, &why, AttemptFailure::NoResponse, now);
                }
                Link::Waiting { until } if *until <= now => self.open(server, now),
                Link::Open(stream) => {
                    for key in stream.handle_time(now) {
                        self.give_up(server, &key, now);
                    }
                }
                Link::Idle | Link::Opening { .. } | Link::Waiting { .. } => {}
            }
        }
        self.expire_deleted(now);
        self.reconcile(now);
    }

    /// When [`Client::handle_time`] is next due.
    pub fn next_deadline(&self) -> Option<Instant> {
        let of_servers = self.servers.iter().filter_map(Server::deadline);
        let of_deleted = self.deleted.iter().filter_map(|key| self.cache.get(key)?.held_until());
        of_servers.chain(of_deleted).min()
    }

    /// The next thing to do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// The next subscriber for whom something changed, and what. It looks at what it wants, or at what changed of that, and
    /// then is [processed](Client::processed).
    pub fn poll_changed(&mut self) -> Option<(SubscriberId, Changed)> {
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
                self.effects.push_back(Effect::Read { stream: stream.id });
            }
        }
    }

    /// What happened with each control plane so far.
    pub fn tally(&self) -> impl Iterator<Item = &Tally> {
        self.servers.iter().map(|server| &server.tally)
    }
}

/// Status of a resource that no server could be asked for. The failure names the servers; this adds the resource, so that
/// the first RPC of a channel fails with the name that it waits for.
fn not_received(key: &Key, failure: &Status) -> Status {
    let (kind, name) = (key.kind, quoted_whole(&key.name));
    Status::unavailable(format!("{kind} {name}: not received: {}", failure.message()))
}

/// Names and subscriptions.
impl Client {
    fn key(&self, kind: ResourceType, name: &str) -> Result<Key, Status> {
        let fail = |problem: String| {
            let node = words::node_suffix(&self.bootstrap.node.id);
            Status::unavailable(format!("{kind} {}: {problem}{node}", quoted_whole(name)))
        };
        let name = ResourceName::parse(kind, name).map_err(|error| fail(error.problem().to_owned()))?;
        let index = self.authorities.iter().position(|known| known.name.as_deref() == name.authority());
        let Some(authority) = index else {
            let authority = quoted_whole(name.authority().unwrap_or_default());
            return Err(fail(format!("authority {authority} is not in the bootstrap")));
        };
        Ok(Key { authority, kind, name: name.into_canonical() })
    }

    fn replace(&mut self, id: SubscriberId, keys: BTreeSet<Key>, now: Instant) {
        let Some(wants) = self.subscribers.get_mut(&id) else { return };
        let before = mem::take(wants);
        for key in keys.difference(&before) {
            let entry = self.cache.entry(key.clone()).or_default();
            entry.subscribers.insert(id);
            if entry.subscribers.len() == 1 {
                self.touch(key.authority, key.kind);
            }
        }
        for key in before.difference(&keys) {
            let Some(entry) = self.cache.get_mut(key) else { continue };
            entry.subscribers.remove(&id);
            if !entry.is_wanted() {
                self.orphans.insert(key.clone());
                self.touch(key.authority, key.kind);
            }
        }
        self.subscribers.insert(id, keys);
        self.reconcile(now);
    }

    /// What is wanted of a type may differ from what the servers of the authority were asked.
    fn touch(&mut self, authority: usize, kind: ResourceType) {
        for server in self.authorities[authority].servers() {
            if let Some(stream) = self.servers[*server].stream_mut() {
                stream.touch(kind);
            }
        }
    }

    /// Something changed for these subscribers.
    fn tell(&mut self, subscribers: impl IntoIterator<Item = SubscriberId>, what: &Changed) {
        for id in subscribers {
            match self.changed.entry(id) {
                MapEntry::Vacant(place) => drop(place.insert(what.clone())),
                MapEntry::Occupied(mut changed) => changed.get_mut().add(what.clone()),
            }
        }
    }

    fn is_in_use(&self, authority: usize) -> bool {
        self.entries(authority).any(|(_, entry)| entry.is_wanted())
    }

    fn entries(&self, authority: usize) -> impl Iterator<Item = (&Key, &Entry)> {
        ResourceType::ALL.into_iter().flat_map(move |kind| self.entries_of(authority, kind))
    }

    fn entries_of(&self, authority: usize, kind: ResourceType) -> impl Iterator<Item = (&Key, &Entry)> {
        let first = Key { authority, kind, name: "".into() };
        self.cache.range(first..).take_while(move |(key, _)| key.authority == authority && key.kind == kind)
    }
}
