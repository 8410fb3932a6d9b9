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

use super::key::ResourceKey;
use super::{AdsStreamId, SubscriberId};
use crate::resource::ResourceType;

/// A request to a control plane.
#[derive(Clone, Debug, PartialEq)]
pub enum AdsRequest {
    /// Of a stream of [`XdsVariant::StateOfTheWorld`](super::XdsVariant::StateOfTheWorld).
    Sotw(DiscoveryRequest),
    /// Of a stream of [`XdsVariant::Delta`](super::XdsVariant::Delta).
    Delta(DeltaDiscoveryRequest),
}

/// An open stream.
#[derive(Debug)]
pub(super) struct AdsStream {
    pub(super) id: AdsStreamId,
    /// Whether a response came.
    pub(super) responded: bool,
    /// Who has yet to deal with the last response (ADS-9); meanwhile no other is read.
    pub(super) pending: BTreeSet<SubscriberId>,
    /// When resources that were asked for and did not come count as absent (FM-3).
    pub(super) timers: BTreeMap<ResourceKey, Instant>,
    types: BTreeMap<ResourceType, ResourceTypeState>,
    /// The request that is on its way to the wire.
    in_flight: Option<SubscriptionChange>,
    /// The type of the last request: the others come first, so that none starves.
    last: Option<ResourceType>,
}

/// What was said about one type.
#[derive(Debug, Default)]
struct ResourceTypeState {
    /// The names that the server was told.
    subscribed: BTreeSet<ResourceKey>,
    /// Whether anything was ever asked: an empty list means everything before, and nothing after.
    requested: bool,
    /// The nonce of the last response.
    nonce: String,
    ack: Option<PendingAck>,
    /// Whether what is wanted may differ from what was asked.
    dirty: bool,
    /// Names that went, which the server may not have heard.
    unsubscribed: BTreeSet<ResourceKey>,
}

/// So many names that went are remembered, and are not wanted.
const MAX_UNSUBSCRIBED: usize = 10_000;

#[derive(Debug)]
enum PendingAck {
    Ack,
    Nack(String),
}

#[derive(Debug, Default)]
struct SubscriptionChange {
    added: BTreeSet<ResourceKey>,
    removed: BTreeSet<ResourceKey>,
}

/// What a request is made of, besides what the stream knows.
pub(super) struct RequestFields<'a> {
    pub(super) node: &'a Node,
    pub(super) names: BTreeSet<ResourceKey>,
    /// Those of them that nothing was heard of.
    pub(super) unanswered: BTreeSet<ResourceKey>,
    /// The version that was accepted last.
    pub(super) version: String,
    /// The versions of the resources that are in use, by name.
    pub(super) versions: BTreeMap<String, String>,
}

impl AdsStream {
    pub(super) fn new(id: AdsStreamId) -> AdsStream {
        let type_state = || ResourceTypeState { dirty: true, ..ResourceTypeState::default() };
        AdsStream {
            id,
            responded: false,
            pending: BTreeSet::new(),
            timers: BTreeMap::new(),
            types: ResourceType::ALL.into_iter().map(|kind| (kind, type_state())).collect(),
            in_flight: None,
            last: None,
        }
    }

    /// What is wanted of this type may differ from what was asked.
    pub(super) fn mark_dirty(&mut self, kind: ResourceType) {
        self.type_state(kind).dirty = true;
    }

    /// A response of this type came; an answer is due. `Err` says what is wrong with it.
    pub(super) fn queue_ack(&mut self, kind: ResourceType, nonce: String, verdict: Result<(), String>) {
        let type_state = self.type_state(kind);
        type_state.nonce = nonce;
        type_state.ack = Some(verdict.map_or_else(PendingAck::Nack, |()| PendingAck::Ack));
    }

    /// Whether anything of this type was ever asked on this stream.
    pub(super) fn has_requested(&self, kind: ResourceType) -> bool {
        self.types.get(&kind).is_some_and(|type_state| type_state.requested)
    }

    /// Whether the server may still believe that we want this.
    pub(super) fn is_subscribed(&self, key: &ResourceKey) -> bool {
        let asked = self.types.get(&key.kind).is_some_and(|type_state| type_state.subscribed.contains(key));
        asked || self.in_flight.as_ref().is_some_and(|request| request.removed.contains(key))
    }

    /// The names of this type that the server was told, as far as that is on the wire.
    pub(super) fn written(&self, kind: ResourceType) -> impl Iterator<Item = &ResourceKey> {
        let asked = self.types.get(&kind).into_iter().flat_map(|type_state| &type_state.subscribed);
        asked.filter(|key| self.in_flight.as_ref().is_none_or(|request| !request.added.contains(*key)))
    }

    /// The request is on the wire; these names are new in it, and not awaited yet.
    pub(super) fn handle_written(&mut self) -> BTreeSet<ResourceKey> {
        let mut added = self.in_flight.take().map(|request| request.added).unwrap_or_default();
        added.retain(|key| !self.timers.contains_key(key));
        added
    }

    /// The resources that did not come in time.
    pub(super) fn handle_time(&mut self, now: Instant) -> Vec<ResourceKey> {
        let due = self.timers.iter().filter(|(_, until)| **until <= now).map(|(key, _)| key.clone());
        let due: Vec<ResourceKey> = due.collect();
        for key in &due {
            self.timers.remove(key);
        }
        due
    }

    /// A type about which there may be something to say, if something can be said now.
    pub(super) fn due(&self) -> Option<ResourceType> {
        if self.in_flight.is_some() {
            return None;
        }
        let is_due = |kind: &&ResourceType| {
            self.types.get(*kind).is_some_and(|type_state| type_state.dirty || type_state.ack.is_some())
        };
        let kinds = &ResourceType::ALL;
        let after_last = kinds.iter().skip_while(|kind| self.last.is_some_and(|last| **kind <= last));
        after_last.chain(kinds).find(is_due).copied()
    }

    /// The answer to the last response of a type, alone: with names in the same request a server that finds the nonce stale
    /// would drop those too.
    pub(super) fn delta_ack(&mut self, kind: ResourceType) -> Option<AdsRequest> {
        let type_state = self.type_state(kind);
        let error_detail = type_state.ack.take()?.error_detail();
        let request = DeltaDiscoveryRequest {
            type_url: kind.type_url().to_owned(),
            response_nonce: type_state.nonce.clone(),
            error_detail,
            ..DeltaDiscoveryRequest::default()
        };
        self.send(kind, SubscriptionChange::default());
        Some(AdsRequest::Delta(request))
    }

    /// The names of a type that came and went.
    pub(super) fn delta_subscription(
        &mut self,
        kind: ResourceType,
        wanted: RequestFields<'_>,
    ) -> Option<AdsRequest> {
        let node = self.node(wanted.node);
        let type_state = self.type_state(kind);
        let change = type_state.change(&wanted.names);
        if change.is_empty() {
            return None;
        }
        let names =
            |keys: &BTreeSet<ResourceKey>| keys.iter().map(|key| key.name.as_ref().to_owned()).collect();
        let versions = if type_state.requested { BTreeMap::new() } else { wanted.versions };
        let request = DeltaDiscoveryRequest {
            node,
            type_url: kind.type_url().to_owned(),
            resource_names_subscribe: names(&change.added),
            resource_names_unsubscribe: names(&change.removed),
            initial_resource_versions: versions.into_iter().collect(),
            ..DeltaDiscoveryRequest::default()
        };
        self.send(kind, change);
        Some(AdsRequest::Delta(request))
    }

    /// The names of a type, with the answer to its last response.
    pub(super) fn sotw(&mut self, kind: ResourceType, wanted: RequestFields<'_>) -> Option<AdsRequest> {
        let node = self.node(wanted.node);
        let type_state = self.type_state(kind);
        let ack = type_state.ack.take();
        let resubscribed = type_state.resubscribed(&wanted);
        let mut names = wanted.names;
        if ack.is_some() {
            names.retain(|key| !resubscribed.contains(key));
        }
        let change = type_state.change(&names);
        type_state.dirty = ack.is_some() && !resubscribed.is_empty();
        if change.is_empty() && ack.is_none() {
            return None;
        }
        type_state.unsubscribed.extend(change.removed.iter().cloned());
        let request = DiscoveryRequest {
            version_info: wanted.version,
            node,
            resource_names: names.iter().map(|key| key.name.as_ref().to_owned()).collect(),
            type_url: kind.type_url().to_owned(),
            response_nonce: type_state.nonce.clone(),
            error_detail: ack.and_then(PendingAck::error_detail),
        };
        let awaited: Vec<_> = resubscribed.iter().filter_map(|key| self.timers.remove_entry(key)).collect();
        self.send(kind, change);
        self.timers.extend(awaited);
        Some(AdsRequest::Sotw(request))
    }

    /// Who we are; the first request of a stream says it (ADS-1).
    fn node(&self, node: &Node) -> Option<Node> {
        self.types.values().all(|type_state| !type_state.requested).then(|| node.clone())
    }

    fn send(&mut self, kind: ResourceType, change: SubscriptionChange) {
        let type_state = self.type_state(kind);
        type_state.requested = true;
        // Most often nothing went: an answer does not look at every name.
        for key in &change.removed {
            type_state.subscribed.remove(key);
        }
        type_state.subscribed.extend(change.added.iter().cloned());
        self.timers.retain(|key, _| !change.removed.contains(key));
        self.in_flight = Some(change);
        self.last = Some(kind);
    }

    fn type_state(&mut self, kind: ResourceType) -> &mut ResourceTypeState {
        self.types.entry(kind).or_default()
    }
}

impl ResourceTypeState {
    /// The names that went and are wanted again, and did not come since.
    fn resubscribed(&mut self, wanted: &RequestFields<'_>) -> BTreeSet<ResourceKey> {
        self.unsubscribed.retain(|key| !wanted.names.contains(key) || wanted.unanswered.contains(key));
        if self.unsubscribed.len() > MAX_UNSUBSCRIBED {
            self.unsubscribed.retain(|key| wanted.names.contains(key));
        }
        self.unsubscribed.intersection(&wanted.names).cloned().collect()
    }

    /// How what is wanted differs from what was asked.
    fn change(&mut self, wanted: &BTreeSet<ResourceKey>) -> SubscriptionChange {
        self.dirty = false;
        SubscriptionChange {
            added: wanted.difference(&self.subscribed).cloned().collect(),
            removed: self.subscribed.difference(wanted).cloned().collect(),
        }
    }
}

impl SubscriptionChange {
    fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }
}

impl PendingAck {
    fn error_detail(self) -> Option<rpc::Status> {
        match self {
            PendingAck::Ack => None,
            PendingAck::Nack(message) => {
                Some(rpc::Status { code: Code::InvalidArgument as i32, message, details: Vec::new() })
            }
        }
    }
}
