//! One stream of discovery, as the protocol has it: what the client asked for, what it was told, what it answered.
//!
//! It waits for nothing and sends nothing: requests come in by [`Stream::handle`], and [`Stream::responses`] compares what
//! is with what was told. Of each type one response is under way at a time; what changes meanwhile is told, in its
//! latest form, once that is answered. A rejected resource is not sent again until it changes.
//!
//! ```text
//!            responses: news                 handle: ACK or NACK of the latest nonce
//!  in step ------------------> unanswered ------------------------------------------> in step
//! ```

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::{BufMut, Bytes, BytesMut};
use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::core::v3::Node;
use evenkeel_proto::envoy::config::listener::v3::Listener;
use evenkeel_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use evenkeel_proto::google::rpc;
use evenkeel_proto::prost::{Name, encoding};

use crate::ClientLimits;
use crate::limits::{LimitExceeded, MAX_NACK_BYTES, MAX_TYPE_URL_BYTES, MAX_TYPES, check_length, cut};
use crate::records::{Nack, Subscribed, TypeRecord};
use crate::world::{Held, Kind, Variant, World};

/// Stands for all resources of a type.
const ALL: &str = "*";

/// A request of either variant.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) node: Option<Node>,
    pub(crate) type_url: String,
    nonce: String,
    error: Option<rpc::Status>,
    names: Names,
}

#[derive(Debug)]
enum Names {
    /// All that are wanted.
    All(Vec<String>),
    Change {
        subscribe: Vec<String>,
        unsubscribe: Vec<String>,
        initial: BTreeMap<String, String>,
    },
}

impl Names {
    /// Returns an error if a name is too long.
    fn check(&self, limits: &ClientLimits) -> Result<(), LimitExceeded> {
        let check = |name: &String| check_length("a resource name", name.len(), limits.name_bytes);
        match self {
            Names::All(names) => names.iter().try_for_each(check),
            Names::Change { subscribe, unsubscribe, initial } => {
                subscribe.iter().chain(unsubscribe).chain(initial.keys()).try_for_each(check)
            }
        }
    }
}

impl From<DiscoveryRequest> for Asked {
    fn from(request: DiscoveryRequest) -> Asked {
        Asked {
            node: request.node,
            type_url: request.type_url,
            nonce: request.response_nonce,
            error: request.error_detail,
            names: Names::All(request.resource_names),
        }
    }
}

impl From<DeltaDiscoveryRequest> for Asked {
    fn from(request: DeltaDiscoveryRequest) -> Asked {
        Asked {
            node: request.node,
            type_url: request.type_url,
            nonce: request.response_nonce,
            error: request.error_detail,
            names: Names::Change {
                subscribe: request.resource_names_subscribe,
                unsubscribe: request.resource_names_unsubscribe,
                initial: request.initial_resource_versions,
            },
        }
    }
}

/// Whether a request answered the latest response, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    None,
    Ack,
    Nack,
}

pub(crate) struct Stream {
    variant: Variant,
    subscriptions: BTreeMap<String, Subscription>,
    nonces: u64,
}

impl Stream {
    pub(crate) fn new(variant: Variant) -> Stream {
        Stream { variant, subscriptions: BTreeMap::new(), nonces: 0 }
    }

    /// Takes in a request. After an error the stream is to end.
    pub(crate) fn handle(
        &mut self,
        asked: Asked,
        world: &World,
        limits: &ClientLimits,
        now: SystemTime,
    ) -> Result<Answer, LimitExceeded> {
        check_length("a type URL", asked.type_url.len(), MAX_TYPE_URL_BYTES)?;
        if self.subscriptions.len() >= MAX_TYPES && !self.subscriptions.contains_key(&asked.type_url) {
            return Err(LimitExceeded::new("a stream", MAX_TYPES, "types"));
        }
        asked.names.check(limits)?;
        let subscription = self
            .subscriptions
            .entry(asked.type_url.clone())
            .or_insert_with(|| Subscription::new(Arc::clone(&world.nothing)));
        let is_latest = asked.nonce == subscription.nonce || subscription.nonce.is_empty();
        // An answer to an older response is outdated; the answer to the latest is under way. In delta it may
        // change the subscription all the same.
        if !is_latest && !asked.nonce.is_empty() && self.variant == Variant::StateOfTheWorld {
            return Ok(Answer::None);
        }
        let mut answer = Answer::None;
        if subscription.reply == Reply::Awaited && asked.nonce == subscription.nonce {
            subscription.answer(asked.error.as_ref(), now);
            answer = if subscription.reply == Reply::Rejected { Answer::Nack } else { Answer::Ack };
        }
        match asked.names {
            Names::All(names) => subscription.ask_for(names, &asked.type_url),
            Names::Change { subscribe, unsubscribe, initial } => {
                subscription.change(subscribe, unsubscribe, initial, &asked.type_url);
            }
        }
        self.check_totals(limits)?;
        Ok(answer)
    }

    /// Returns an error if the names of all subscriptions together are beyond a limit.
    fn check_totals(&self, limits: &ClientLimits) -> Result<(), LimitExceeded> {
        let mut subscribed = NameTally::default();
        let mut noted = NameTally::default();
        for subscription in self.subscriptions.values() {
            subscribed.merge(subscription.subscribed_tally);
            noted.merge(subscription.noted_tally);
        }
        for tally in [subscribed, noted] {
            if tally.count > limits.names {
                return Err(LimitExceeded::new("a stream", limits.names, "resource names"));
            }
            if tally.bytes > limits.total_name_bytes {
                return Err(LimitExceeded::new(
                    "a stream",
                    limits.total_name_bytes,
                    "bytes of resource names",
                ));
            }
        }
        Ok(())
    }

    /// What there is to send, each response in the pieces of its gRPC frame. It counts as sent.
    ///
    /// By type URL is clusters, endpoints, listeners, routes: nothing leads to what was not sent.
    pub(crate) fn responses(&mut self, world: &World) -> Vec<Vec<Bytes>> {
        let mut responses = Vec::new();
        for (type_url, subscription) in &mut self.subscriptions {
            let kind = world.kind(type_url);
            let Some(news) = subscription.news(self.variant, type_url, kind) else { continue };
            self.nonces = self.nonces.wrapping_add(1);
            subscription.nonce = self.nonces.to_string();
            subscription.reply = Reply::Awaited;
            subscription.sent = Some(kind.version);
            let pieces = kind.pieces(self.variant, news.resources);
            responses.push(frame(
                self.variant,
                type_url,
                kind.version,
                &subscription.nonce,
                &news.removed,
                pieces,
            ));
        }
        responses
    }

    /// Whether all of a type was told and accepted. None if nothing of the type was asked for.
    pub(crate) fn is_in_step(&self, type_url: &str, world: &World) -> Option<bool> {
        let subscription =
            self.subscriptions.get(type_url).filter(|subscription| subscription.wants_any())?;
        let kind = world.kind(type_url);
        Some(subscription.is_told_of(kind) && subscription.reply == Reply::Accepted)
    }

    /// What was rejected of what there is, if that is how it stands.
    pub(crate) fn rejection(&self, type_url: &str, world: &World) -> Option<&Nack> {
        let subscription = self.subscriptions.get(type_url)?;
        let is_latest =
            subscription.is_told_of(world.kind(type_url)) && subscription.reply == Reply::Rejected;
        subscription.nack.as_ref().filter(|_| is_latest)
    }

    /// The version of a type that was last accepted.
    pub(crate) fn acked(&self, type_url: &str) -> Option<u64> {
        self.subscriptions.get(type_url)?.acked
    }

    /// What was last rejected of a type.
    pub(crate) fn last_nack(&self, type_url: &str) -> Option<&Nack> {
        self.subscriptions.get(type_url)?.nack.as_ref()
    }

    pub(crate) fn types(&self) -> BTreeMap<String, TypeRecord> {
        let record = |subscription: &Subscription| TypeRecord {
            subscribed: Subscribed {
                wildcard: subscription.wildcard,
                names: subscription.names.iter().cloned().collect(),
            },
            sent: subscription.sent,
            acked: subscription.acked,
            nack: subscription.nack.clone(),
            is_rejecting: subscription.reply == Reply::Rejected,
        };
        self.subscriptions
            .iter()
            .map(|(type_url, subscription)| (type_url.clone(), record(subscription)))
            .collect()
    }
}

/// What the client says to the latest response. It has nothing against none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Accepted,
    Rejected,
    Awaited,
}

/// Number and total length of the names that a client made a stream hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NameTally {
    count: usize,
    bytes: usize,
}

impl NameTally {
    fn add(&mut self, name: &str) {
        self.merge(NameTally { count: 1, bytes: name.len() });
    }

    fn remove(&mut self, name: &str) {
        self.count = self.count.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(name.len());
    }

    fn merge(&mut self, other: NameTally) {
        self.count = self.count.saturating_add(other.count);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// What a stream wants of one type, and what it knows.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about the client")]
struct Subscription {
    wildcard: bool,
    names: BTreeSet<String>,
    /// Number and bytes of the names in `names`.
    subscribed_tally: NameTally,
    /// Whether it ever named something: from then on no names are none, not all.
    named: bool,
    /// What it was last told of.
    told: Arc<Kind>,
    /// Where it knows something else than that: another version, or nothing yet.
    except: BTreeMap<String, Option<u64>>,
    /// Number and bytes of the names in `except`.
    noted_tally: NameTally,
    /// All resources in `told` are to be sent again.
    is_resend: bool,
    /// It wants to hear something, be it that there is nothing.
    expectant: bool,
    nonce: String,
    reply: Reply,
    sent: Option<u64>,
    acked: Option<u64>,
    nack: Option<Nack>,
}

struct News {
    resources: Vec<Arc<Held>>,
    removed: Vec<String>,
}

impl Subscription {
    fn new(nothing: Arc<Kind>) -> Subscription {
        Subscription {
            wildcard: false,
            names: BTreeSet::new(),
            subscribed_tally: NameTally::default(),
            named: false,
            told: nothing,
            except: BTreeMap::new(),
            noted_tally: NameTally::default(),
            is_resend: false,
            expectant: false,
            nonce: String::new(),
            reply: Reply::Accepted,
            sent: None,
            acked: None,
            nack: None,
        }
    }

    fn wants_any(&self) -> bool {
        self.wildcard || !self.names.is_empty()
    }

    fn is_told_of(&self, kind: &Arc<Kind>) -> bool {
        Arc::ptr_eq(&self.told, kind) && self.except.is_empty() && !self.expectant && !self.is_resend
    }

    fn answer(&mut self, error: Option<&rpc::Status>, now: SystemTime) {
        self.reply = if error.is_some() { Reply::Rejected } else { Reply::Accepted };
        match error {
            Some(error) => {
                let version = self.sent.unwrap_or_default();
                self.nack = Some(Nack { version, error: cut(&error.message, MAX_NACK_BYTES), at: now });
            }
            None => self.acked = self.sent,
        }
    }

    /// The state of the world: these names and no others.
    fn ask_for(&mut self, names: Vec<String>, type_url: &str) {
        let wildcard = if names.is_empty() {
            !self.named && is_whole(type_url)
        } else {
            self.named = true;
            names.iter().any(|name| name == ALL)
        };
        let names: BTreeSet<String> = names.into_iter().filter(|name| name != ALL).collect();
        let before = std::mem::take(&mut self.names);
        for name in names.difference(&before) {
            self.note(name.clone(), None);
        }
        for name in before.difference(&names) {
            self.forget(name);
        }
        if wildcard && !self.wildcard {
            self.expect_all();
        }
        self.wildcard = wildcard;
        self.subscribed_tally = NameTally::default();
        for name in &names {
            self.subscribed_tally.add(name);
        }
        self.names = names;
    }

    fn change(
        &mut self,
        subscribe: Vec<String>,
        unsubscribe: Vec<String>,
        initial: BTreeMap<String, String>,
        type_url: &str,
    ) {
        let is_first = self.nonce.is_empty() && !self.named && !self.wildcard;
        if is_first && subscribe.is_empty() && is_whole(type_url) {
            self.wildcard = true;
            self.expect_all();
        }
        for name in unsubscribe {
            if name == ALL {
                self.wildcard = false;
            } else if self.names.remove(&name) {
                self.subscribed_tally.remove(&name);
                if self.wildcard {
                    // It is one of all again, and the client has to hear which.
                    self.note(name, None);
                } else {
                    self.forget(&name);
                }
            }
        }
        for name in subscribe {
            self.named = true;
            if name == ALL {
                self.wildcard = true;
                self.expect_all();
            } else {
                // Who subscribes again is told again.
                self.note(name.clone(), None);
                let length = name.len();
                if self.names.insert(name) {
                    self.subscribed_tally.merge(NameTally { count: 1, bytes: length });
                }
            }
        }
        self.expectant &= initial.is_empty();
        for (name, version) in initial {
            // The version of a resource that is not subscribed to has no effect, so it is not kept.
            if self.wildcard || self.names.contains(&name) {
                self.note(name, u64::from_str_radix(&version, 16).ok());
            }
        }
    }

    /// Records what the client knows of a resource, other than what it was told.
    fn note(&mut self, name: String, version: Option<u64>) {
        match self.except.entry(name) {
            Entry::Occupied(mut known) => *known.get_mut() = version,
            Entry::Vacant(unknown) => {
                self.noted_tally.add(unknown.key());
                unknown.insert(version);
            }
        }
    }

    /// Drops what was recorded of a resource that the client no longer names. Otherwise a client that subscribes and
    /// unsubscribes in turn would make this grow without end.
    fn forget(&mut self, name: &str) {
        if self.except.remove(name).is_some() {
            self.noted_tally.remove(name);
        }
    }

    /// From nothing: what was told before may have been forgotten.
    fn expect_all(&mut self) {
        for (name, known) in &mut self.except {
            if self.told.held.contains_key(name) {
                *known = None;
            }
        }
        self.is_resend = !self.told.held.is_empty();
        self.expectant = true;
    }

    /// What to send, if anything. It counts as told.
    fn news(&mut self, variant: Variant, type_url: &str, kind: &Arc<Kind>) -> Option<News> {
        if self.reply == Reply::Awaited || self.is_told_of(kind) || !self.wants_any() {
            return None;
        }
        let told = std::mem::replace(&mut self.told, Arc::clone(kind));
        let except = std::mem::take(&mut self.except);
        self.noted_tally = NameTally::default();
        let is_resend = std::mem::take(&mut self.is_resend);
        let expectant = std::mem::take(&mut self.expectant);
        let is_news = |name: &str| {
            let is = kind.held.get(name).map(|held| held.version);
            match except.get(name) {
                Some(None) => true,
                Some(known) => *known != is,
                None => match told.held.get(name) {
                    Some(held) => is_resend || Some(held.version) != is,
                    None => is.is_some(),
                },
            }
        };
        let mut news: BTreeSet<&str> =
            self.names.iter().map(String::as_str).filter(|name| is_news(name)).collect();
        if self.wildcard {
            let all = told.held.keys().chain(kind.held.keys()).chain(except.keys());
            news.extend(all.map(String::as_str).filter(|name| is_news(name)));
        }
        let held = |name: &str| kind.held.get(name).cloned();
        match variant {
            Variant::Delta => {
                if news.is_empty() && !expectant {
                    return None;
                }
                let removed = news.iter().filter(|name| !kind.held.contains_key(**name));
                let removed = removed.map(|name| (*name).to_owned()).collect();
                Some(News { resources: news.into_iter().filter_map(held).collect(), removed })
            }
            // What is missing in a whole does not exist.
            Variant::StateOfTheWorld if is_whole(type_url) => {
                if news.is_empty() && !expectant {
                    return None;
                }
                let resources = if self.wildcard {
                    kind.held.values().cloned().collect()
                } else {
                    self.names.iter().filter_map(|name| held(name)).collect()
                };
                Some(News { resources, removed: Vec::new() })
            }
            Variant::StateOfTheWorld => {
                let resources: Vec<_> = news.into_iter().filter_map(held).collect();
                (!resources.is_empty()).then_some(News { resources, removed: Vec::new() })
            }
        }
    }
}

/// Listeners and clusters come all at once in the state of the world, and can be asked for without names.
fn is_whole(type_url: &str) -> bool {
    type_url == Listener::type_url() || type_url == Cluster::type_url()
}

/// A response as a gRPC frame: a few bytes of its own, then what is shared.
fn frame(
    variant: Variant,
    type_url: &str,
    version: u64,
    nonce: &str,
    removed: &[String],
    pieces: Vec<Bytes>,
) -> Vec<Bytes> {
    // `version_info` and `system_version_info`, `type_url` and `nonce` have the same numbers in both.
    let mut own = BytesMut::new();
    encoding::string::encode(1, &version.to_string(), &mut own);
    encoding::string::encode(4, &type_url.to_owned(), &mut own);
    encoding::string::encode(5, &nonce.to_owned(), &mut own);
    if variant == Variant::Delta {
        encoding::string::encode_repeated(6, removed, &mut own);
    }
    let length = own.len() + pieces.iter().map(Bytes::len).sum::<usize>();
    let mut head = BytesMut::with_capacity(own.len() + 5);
    head.put_u8(0);
    // Protobuf itself ends at 2 GiB.
    head.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    head.put(own);
    std::iter::once(head.freeze()).chain(pieces).collect()
}
