//! State of one ADS stream: subscriptions, pending ACKs and resource timers.
//!
//! A stream does not send a request per subscription change. It records the names of the last request. When a type is
//! marked as dirty, the stream compares them with the watched names and sends the difference as one request. At most
//! one request is in flight. Changes that happen meanwhile are combined, so a server that does not read costs no
//! memory.
//!
//! | | state of the world | delta |
//! |---|---|---|
//! | subscription | every name of the type | the added and removed names |
//! | ACK or NACK | names, version and nonce in one request | a request with the nonce only |
//! | first request of a stream | last accepted version | version of each resource |
//!
//! A state-of-the-world server drops a request with a stale nonce. A response and an unsubscribe request may cross. The
//! server may then assume that we have the resource, and would not send it after a new subscription. The ACK of that
//! response therefore omits the name, and the next request subscribes to it again. Its resource timer continues.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::{Code, Instant};
use evenkeel_proto::envoy::config::core::v3::Node;
use evenkeel_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use evenkeel_proto::google::rpc;

use super::key::ResourceKey;
use super::{AdsStreamId, SubscriberId};
use crate::resource::ResourceType;

/// Request to a control plane.
#[derive(Clone, Debug, PartialEq)]
pub enum AdsRequest {
    /// Request of a [`XdsVariant::StateOfTheWorld`](super::XdsVariant::StateOfTheWorld) stream.
    Sotw(DiscoveryRequest),
    /// Request of a [`XdsVariant::Delta`](super::XdsVariant::Delta) stream.
    Delta(DeltaDiscoveryRequest),
}

/// Open stream to a control plane.
#[derive(Debug)]
pub(super) struct AdsStream {
    pub(super) id: AdsStreamId,
    /// True once the server sent a response on this stream.
    pub(super) responded: bool,
    /// Subscribers that have yet to process the last response (ADS-9). The next one is read when this is empty.
    pub(super) pending: BTreeSet<SubscriberId>,
    /// Times at which subscribed resources count as absent unless received (FM-3).
    pub(super) timers: BTreeMap<ResourceKey, Instant>,
    types: BTreeMap<ResourceType, ResourceTypeState>,
    /// Subscription change of the request in flight.
    in_flight: Option<SubscriptionChange>,
    /// Type of the last request. Other types take precedence, so that none starves.
    last: Option<ResourceType>,
}

/// Protocol state of one resource type.
#[derive(Debug, Default)]
struct ResourceTypeState {
    /// Names in the server's subscription, including the request in flight.
    subscribed: BTreeSet<ResourceKey>,
    /// True after the first request. An empty list of names means a wildcard before that, and no resources after it.
    requested: bool,
    /// Nonce of the last response.
    nonce: String,
    ack: Option<PendingAck>,
    /// True if the watched names may differ from `subscribed`.
    dirty: bool,
    /// Removed names of which the server may have sent the resource before it read the request.
    unsubscribed: BTreeSet<ResourceKey>,
}

/// Maximum number of removed names that are kept without subscribers.
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

/// Inputs to a request that the stream does not hold.
pub(super) struct RequestFields<'a> {
    pub(super) node: &'a Node,
    pub(super) names: BTreeSet<ResourceKey>,
    /// Watched names without a response or an error.
    pub(super) unanswered: BTreeSet<ResourceKey>,
    /// Last accepted version of the type.
    pub(super) version: String,
    /// Versions of the cached resources, by name.
    pub(super) versions: BTreeMap<String, String>,
}

impl AdsStream {
    pub(super) fn new(id: AdsStreamId) -> AdsStream {
        // A new stream sends all names again (ADS-7), so every type starts dirty.
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

    /// Marks the subscription of a type as possibly different from the watched names.
    pub(super) fn mark_dirty(&mut self, kind: ResourceType) {
        self.type_state(kind).dirty = true;
    }

    /// Records a response and queues its ACK. An `Err` verdict queues a NACK with that text.
    pub(super) fn queue_ack(&mut self, kind: ResourceType, nonce: String, verdict: Result<(), String>) {
        let type_state = self.type_state(kind);
        // Stored for an invalid response too: the NACK refers to it, and later requests of the type repeat it (ADS-4).
        type_state.nonce = nonce;
        type_state.ack = Some(verdict.map_or_else(PendingAck::Nack, |()| PendingAck::Ack));
    }

    /// Returns true if this stream has sent a request of this type.
    pub(super) fn has_requested(&self, kind: ResourceType) -> bool {
        self.types.get(&kind).is_some_and(|type_state| type_state.requested)
    }

    /// Returns true if the server may still have this name in its subscription.
    pub(super) fn is_subscribed(&self, key: &ResourceKey) -> bool {
        let asked = self.types.get(&key.kind).is_some_and(|type_state| type_state.subscribed.contains(key));
        // Until the request is written, the server still has the removed names.
        asked || self.in_flight.as_ref().is_some_and(|request| request.removed.contains(key))
    }

    /// Returns the subscribed names of this type whose request has been written.
    pub(super) fn written(&self, kind: ResourceType) -> impl Iterator<Item = &ResourceKey> {
        let asked = self.types.get(&kind).into_iter().flat_map(|type_state| &type_state.subscribed);
        // The server did not read names of the request in flight, so their absence means nothing.
        asked.filter(|key| self.in_flight.as_ref().is_none_or(|request| !request.added.contains(*key)))
    }

    /// Handles the end of a write. Returns the added names without a resource timer.
    pub(super) fn handle_written(&mut self) -> BTreeSet<ResourceKey> {
        let mut added = self.in_flight.take().map(|request| request.added).unwrap_or_default();
        // A name that was subscribed again keeps its running timer.
        added.retain(|key| !self.timers.contains_key(key));
        added
    }

    /// Removes the expired resource timers and returns their names.
    pub(super) fn handle_time(&mut self, now: Instant) -> Vec<ResourceKey> {
        let due = self.timers.iter().filter(|(_, until)| **until <= now).map(|(key, _)| key.clone());
        let due: Vec<ResourceKey> = due.collect();
        for key in &due {
            self.timers.remove(key);
        }
        due
    }

    /// Returns a type that may need a request. Returns `None` while a request is in flight.
    pub(super) fn due(&self) -> Option<ResourceType> {
        if self.in_flight.is_some() {
            return None;
        }
        let is_due = |kind: &&ResourceType| {
            self.types.get(*kind).is_some_and(|type_state| type_state.dirty || type_state.ack.is_some())
        };
        let kinds = &ResourceType::ALL;
        // `ALL` is sorted, so this starts after the type of the last request.
        let after_last = kinds.iter().skip_while(|kind| self.last.is_some_and(|last| **kind <= last));
        after_last.chain(kinds).find(is_due).copied()
    }

    /// Returns the ACK of the last response of a type. It carries no names: a server that considers the nonce stale
    /// would drop them with the ACK.
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

    /// Returns the request for the added and removed names of a type. Returns `None` if there are none.
    pub(super) fn delta_subscription(
        &mut self,
        kind: ResourceType,
        wanted: RequestFields<'_>,
    ) -> Option<AdsRequest> {
        // Read before `send`, which marks the type as requested.
        let node = self.node(wanted.node);
        let type_state = self.type_state(kind);
        let change = type_state.change(&wanted.names);
        if change.is_empty() {
            return None;
        }
        let names =
            |keys: &BTreeSet<ResourceKey>| keys.iter().map(|key| key.name.as_ref().to_owned()).collect();
        // Versions are part of the first request of a type only; later ones list changes.
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

    /// Returns the request with all names of a type, and with the pending ACK. Returns `None` if neither is due.
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
        // The names that the ACK omits follow in the next request.
        type_state.dirty = ack.is_some() && !resubscribed.is_empty();
        if change.is_empty() && ack.is_none() {
            return None;
        }
        type_state.unsubscribed.extend(change.removed.iter().cloned());
        let request = DiscoveryRequest {
            // The last accepted version, also in a NACK (ADS-4).
            version_info: wanted.version,
            node,
            resource_names: names.iter().map(|key| key.name.as_ref().to_owned()).collect(),
            type_url: kind.type_url().to_owned(),
            response_nonce: type_state.nonce.clone(),
            error_detail: ack.and_then(PendingAck::error_detail),
        };
        // `send` removes the timers of unsubscribed names. Names that are subscribed again keep theirs.
        let awaited: Vec<_> = resubscribed.iter().filter_map(|key| self.timers.remove_entry(key)).collect();
        self.send(kind, change);
        self.timers.extend(awaited);
        Some(AdsRequest::Sotw(request))
    }

    /// Returns the node for the first request of a stream (ADS-1), and `None` for later ones.
    fn node(&self, node: &Node) -> Option<Node> {
        self.types.values().all(|type_state| !type_state.requested).then(|| node.clone())
    }

    fn send(&mut self, kind: ResourceType, change: SubscriptionChange) {
        let type_state = self.type_state(kind);
        type_state.requested = true;
        // Usually no name was removed, so an ACK does not visit every name.
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
    /// Returns the removed names that are watched again and were not received since.
    fn resubscribed(&mut self, wanted: &RequestFields<'_>) -> BTreeSet<ResourceKey> {
        // A name that was received since needs no second subscription.
        self.unsubscribed.retain(|key| !wanted.names.contains(key) || wanted.unanswered.contains(key));
        if self.unsubscribed.len() > MAX_UNSUBSCRIBED {
            self.unsubscribed.retain(|key| wanted.names.contains(key));
        }
        self.unsubscribed.intersection(&wanted.names).cloned().collect()
    }

    /// Returns the difference between the watched names and the subscription, and clears `dirty`.
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
