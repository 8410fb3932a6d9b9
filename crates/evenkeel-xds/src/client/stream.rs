//! One ADS stream: what was asked on it, what must be answered, and what is awaited.
//!
//! A stream does not follow changes of subscriptions one by one. It knows what the server was told last; when something
//! may differ it is compared with what is wanted, and the difference is one request. At most one request is under way,
//! so that changes meanwhile become one request too, and a server that does not read costs no memory.
//!
//! | | state of the world | delta |
//! |---|---|---|
//! | a subscription | every name of the type | the names that came and went |
//! | an answer | names, version and nonce in one request | a request with the nonce only |
//! | a new stream | the version accepted last | the version of each resource |
//!
//! A server of the state of the world drops a request whose nonce is not that of its last response. If a response crossed
//! the request that a name is not wanted any more, the server may believe that we have it, and would not send it when the name
//! is back. Such a name is therefore left out of the answer to that response, and asked for with the next request; it has no
//! longer to come for that.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::{Code, Instant};
use evenkeel_proto::envoy::config::core::v3::Node;
use evenkeel_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use evenkeel_proto::google::rpc;

use super::key::Key;
use super::{StreamId, SubscriberId};
use crate::resource::ResourceType;

/// A request to a control plane.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Of a stream of [`Variant::StateOfTheWorld`](super::Variant::StateOfTheWorld).
    Sotw(DiscoveryRequest),
    /// Of a stream of [`Variant::Delta`](super::Variant::Delta).
    Delta(DeltaDiscoveryRequest),
}

/// An open stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: StreamId,
    /// Whether a response came.
    pub(super) responded: bool,
    /// Who has yet to deal with the last response (ADS-9); meanwhile no other is read.
    pub(super) pending: BTreeSet<SubscriberId>,
    /// When resources that were asked for and did not come count as absent (FM-3).
    pub(super) timers: BTreeMap<Key, Instant>,
    topics: BTreeMap<ResourceType, Topic>,
    /// The request that is on its way to the wire.
    under_way: Option<UnderWay>,
    /// The type of the last request: the others come first, so that none starves.
    last: Option<ResourceType>,
}

/// What was said about one type.
#[derive(Debug, Default)]
struct Topic {
    /// The names that the server was told.
    asked: BTreeSet<Key>,
    /// Whether anything was ever asked: an empty list means everything before, and nothing after.
    begun: bool,
    /// The nonce of the last response.
    nonce: String,
    answer: Option<Answer>,
    /// Whether what is wanted may differ from what was asked.
    dirty: bool,
    /// Names that went, which the server may not have heard.
    gone: BTreeSet<Key>,
}

/// So many names that went are remembered, and are not wanted.
const MAX_GONE: usize = 10_000;

#[derive(Debug)]
enum Answer {
    Ack,
    Nack(String),
}

#[derive(Debug, Default)]
struct UnderWay {
    added: BTreeSet<Key>,
    removed: BTreeSet<Key>,
}

/// What a request is made of, besides what the stream knows.
pub(super) struct Wanted<'a> {
    pub(super) node: &'a Node,
    pub(super) names: BTreeSet<Key>,
    /// Those of them that nothing was heard of.
    pub(super) unanswered: BTreeSet<Key>,
    /// The version that was accepted last.
    pub(super) version: String,
    /// The versions of the resources that are in use, by name.
    pub(super) versions: BTreeMap<String, String>,
}

impl Stream {
    pub(super) fn new(id: StreamId) -> Stream {
        let topic = || Topic { dirty: true, ..Topic::default() };
        Stream {
            id,
            responded: false,
            pending: BTreeSet::new(),
            timers: BTreeMap::new(),
            topics: ResourceType::ALL.into_iter().map(|kind| (kind, topic())).collect(),
            under_way: None,
            last: None,
        }
    }

    /// What is wanted of this type may differ from what was asked.
    pub(super) fn touch(&mut self, kind: ResourceType) {
        self.topic(kind).dirty = true;
    }

    /// A response of this type came; an answer is due. `Err` says what is wrong with it.
    pub(super) fn answer(&mut self, kind: ResourceType, nonce: String, verdict: Result<(), String>) {
        let topic = self.topic(kind);
        topic.nonce = nonce;
        topic.answer = Some(verdict.map_or_else(Answer::Nack, |()| Answer::Ack));
    }

    /// Whether anything of this type was ever asked on this stream.
    pub(super) fn has_asked_for(&self, kind: ResourceType) -> bool {
        self.topics.get(&kind).is_some_and(|topic| topic.begun)
    }

    /// Whether the server may still believe that we want this.
    pub(super) fn holds(&self, key: &Key) -> bool {
        let asked = self.topics.get(&key.kind).is_some_and(|topic| topic.asked.contains(key));
        asked || self.under_way.as_ref().is_some_and(|request| request.removed.contains(key))
    }

    /// The names of this type that the server was told, as far as that is on the wire.
    pub(super) fn written(&self, kind: ResourceType) -> impl Iterator<Item = &Key> {
        let asked = self.topics.get(&kind).into_iter().flat_map(|topic| &topic.asked);
        asked.filter(|key| self.under_way.as_ref().is_none_or(|request| !request.added.contains(*key)))
    }

    /// The request is on the wire; these names are new in it, and not awaited yet.
    pub(super) fn handle_written(&mut self) -> BTreeSet<Key> {
        let mut added = self.under_way.take().map(|request| request.added).unwrap_or_default();
        added.retain(|key| !self.timers.contains_key(key));
        added
    }

    /// The resources that did not come in time.
    pub(super) fn handle_time(&mut self, now: Instant) -> Vec<Key> {
        let due = self.timers.iter().filter(|(_, until)| **until <= now).map(|(key, _)| key.clone());
        let due: Vec<Key> = due.collect();
        for key in &due {
            self.timers.remove(key);
        }
        due
    }

    /// A type about which there may be something to say, if something can be said now.
    pub(super) fn due(&self) -> Option<ResourceType> {
        if self.under_way.is_some() {
            return None;
        }
        let is_due = |kind: &&ResourceType| {
            self.topics.get(*kind).is_some_and(|topic| topic.dirty || topic.answer.is_some())
        };
        let kinds = &ResourceType::ALL;
        let after_last = kinds.iter().skip_while(|kind| self.last.is_some_and(|last| **kind <= last));
        after_last.chain(kinds).find(is_due).copied()
    }

    /// The answer to the last response of a type, alone: with names in the same request a server that finds the nonce stale
    /// would drop those too.
    pub(super) fn delta_answer(&mut self, kind: ResourceType) -> Option<Request> {
        let topic = self.topic(kind);
        let error_detail = topic.answer.take()?.error_detail();
        let request = DeltaDiscoveryRequest {
            type_url: kind.type_url().to_owned(),
            response_nonce: topic.nonce.clone(),
            error_detail,
            ..DeltaDiscoveryRequest::default()
        };
        self.send(kind, UnderWay::default());
        Some(Request::Delta(request))
    }

    /// The names of a type that came and went.
    pub(super) fn delta_change(&mut self, kind: ResourceType, wanted: Wanted<'_>) -> Option<Request> {
        let node = self.node(wanted.node);
        let topic = self.topic(kind);
        let change = topic.change(&wanted.names);
        if change.is_empty() {
            return None;
        }
        let names = |keys: &BTreeSet<Key>| keys.iter().map(|key| key.name.as_ref().to_owned()).collect();
        let versions = if topic.begun { BTreeMap::new() } else { wanted.versions };
        let request = DeltaDiscoveryRequest {
            node,
            type_url: kind.type_url().to_owned(),
            resource_names_subscribe: names(&change.added),
            resource_names_unsubscribe: names(&change.removed),
            initial_resource_versions: versions.into_iter().collect(),
            ..DeltaDiscoveryRequest::default()
        };
        self.send(kind, change);
        Some(Request::Delta(request))
    }

    /// The names of a type, with the answer to its last response.
    pub(super) fn sotw(&mut self, kind: ResourceType, wanted: Wanted<'_>) -> Option<Request> {
        let node = self.node(wanted.node);
        let topic = self.topic(kind);
        let answer = topic.answer.take();
        let unheard = topic.unheard(&wanted);
        let mut names = wanted.names;
        if answer.is_some() {
            names.retain(|key| !unheard.contains(key));
        }
        let change = topic.change(&names);
        topic.dirty = answer.is_some() && !unheard.is_empty();
        if change.is_empty() && answer.is_none() {
            return None;
        }
        topic.gone.extend(change.removed.iter().cloned());
        let request = DiscoveryRequest {
            version_info: wanted.version,
            node,
            resource_names: names.iter().map(|key| key.name.as_ref().to_owned()).collect(),
            type_url: kind.type_url().to_owned(),
            response_nonce: topic.nonce.clone(),
            error_detail: answer.and_then(Answer::error_detail),
        };
        let awaited: Vec<_> = unheard.iter().filter_map(|key| self.timers.remove_entry(key)).collect();
        self.send(kind, change);
        self.timers.extend(awaited);
        Some(Request::Sotw(request))
    }

    /// Who we are; the first request of a stream says it (ADS-1).
    fn node(&self, node: &Node) -> Option<Node> {
        self.topics.values().all(|topic| !topic.begun).then(|| node.clone())
    }

    fn send(&mut self, kind: ResourceType, change: UnderWay) {
        let topic = self.topic(kind);
        topic.begun = true;
        // Most often nothing went: an answer does not look at every name.
        for key in &change.removed {
            topic.asked.remove(key);
        }
        topic.asked.extend(change.added.iter().cloned());
        self.timers.retain(|key, _| !change.removed.contains(key));
        self.under_way = Some(change);
        self.last = Some(kind);
    }

    fn topic(&mut self, kind: ResourceType) -> &mut Topic {
        self.topics.entry(kind).or_default()
    }
}

impl Topic {
    /// The names that went and are wanted again, and did not come since.
    fn unheard(&mut self, wanted: &Wanted<'_>) -> BTreeSet<Key> {
        self.gone.retain(|key| !wanted.names.contains(key) || wanted.unanswered.contains(key));
        if self.gone.len() > MAX_GONE {
            self.gone.retain(|key| wanted.names.contains(key));
        }
        self.gone.intersection(&wanted.names).cloned().collect()
    }

    /// How what is wanted differs from what was asked.
    fn change(&mut self, wanted: &BTreeSet<Key>) -> UnderWay {
        self.dirty = false;
        UnderWay {
            added: wanted.difference(&self.asked).cloned().collect(),
            removed: self.asked.difference(wanted).cloned().collect(),
        }
    }
}

impl UnderWay {
    fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }
}

impl Answer {
    fn error_detail(self) -> Option<rpc::Status> {
        match self {
            Answer::Ack => None,
            Answer::Nack(message) => {
                Some(rpc::Status { code: Code::InvalidArgument as i32, message, details: Vec::new() })
            }
        }
    }
}
