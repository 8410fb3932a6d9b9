//! Protocol state of one discovery stream: subscriptions, sent versions, ACKs and NACKs.
//!
//! It performs no I/O. Requests come in by [`StreamState::handle`]. [`StreamState::responses`] compares the current
//! snapshot with the one that was last sent. Of each type one response is pending at a time. Changes in the meantime
//! are sent in their latest form after its ACK or NACK. A rejected resource is not sent again until it changes.
//!
//! ```text
//!           responses: changes             handle: ACK or NACK of the latest nonce
//!  in sync ---------------------> pending ------------------------------------------> in sync
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
use crate::limits::{LimitExceeded, MAX_NACK_BYTES, MAX_TYPE_URL_BYTES, MAX_TYPES, check_length, truncate};
use crate::records::{Nack, SubscribedNames, TypeRecord};
use crate::snapshot::{EncodedResource, ProtocolVariant, ResourceSnapshot, TypeResources};

/// Wildcard name: subscribes to all resources of a type.
const ALL: &str = "*";

/// Discovery request of either protocol variant.
#[derive(Debug)]
pub(crate) struct WatchRequest {
    pub(crate) node: Option<Node>,
    pub(crate) type_url: String,
    nonce: String,
    error: Option<rpc::Status>,
    names: RequestedNames,
}

#[derive(Debug)]
enum RequestedNames {
    /// Complete list of subscribed names (state of the world).
    All(Vec<String>),
    Change {
        subscribe: Vec<String>,
        unsubscribe: Vec<String>,
        initial: BTreeMap<String, String>,
    },
}

impl RequestedNames {
    /// Returns an error if a name is too long.
    fn check(&self, limits: &ClientLimits) -> Result<(), LimitExceeded> {
        let check = |name: &String| check_length("a resource name", name.len(), limits.name_bytes);
        match self {
            RequestedNames::All(names) => names.iter().try_for_each(check),
            RequestedNames::Change { subscribe, unsubscribe, initial } => {
                subscribe.iter().chain(unsubscribe).chain(initial.keys()).try_for_each(check)
            }
        }
    }
}

impl From<DiscoveryRequest> for WatchRequest {
    fn from(request: DiscoveryRequest) -> WatchRequest {
        WatchRequest {
            node: request.node,
            type_url: request.type_url,
            nonce: request.response_nonce,
            error: request.error_detail,
            names: RequestedNames::All(request.resource_names),
        }
    }
}

impl From<DeltaDiscoveryRequest> for WatchRequest {
    fn from(request: DeltaDiscoveryRequest) -> WatchRequest {
        WatchRequest {
            node: request.node,
            type_url: request.type_url,
            nonce: request.response_nonce,
            error: request.error_detail,
            names: RequestedNames::Change {
                subscribe: request.resource_names_subscribe,
                unsubscribe: request.resource_names_unsubscribe,
                initial: request.initial_resource_versions,
            },
        }
    }
}

/// Meaning of a request for the latest response: ACK, NACK or neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckKind {
    None,
    Ack,
    Nack,
}

pub(crate) struct StreamState {
    variant: ProtocolVariant,
    subscriptions: BTreeMap<String, TypeSubscription>,
    nonces: u64,
}

impl StreamState {
    pub(crate) fn new(variant: ProtocolVariant) -> StreamState {
        StreamState { variant, subscriptions: BTreeMap::new(), nonces: 0 }
    }

    /// Applies a request. After an error the stream must end.
    pub(crate) fn handle(
        &mut self,
        request: WatchRequest,
        snapshot: &ResourceSnapshot,
        limits: &ClientLimits,
        now: SystemTime,
    ) -> Result<AckKind, LimitExceeded> {
        check_length("a type URL", request.type_url.len(), MAX_TYPE_URL_BYTES)?;
        if self.subscriptions.len() >= MAX_TYPES && !self.subscriptions.contains_key(&request.type_url) {
            return Err(LimitExceeded::new("a stream", MAX_TYPES, "types"));
        }
        request.names.check(limits)?;
        let subscription = self
            .subscriptions
            .entry(request.type_url.clone())
            .or_insert_with(|| TypeSubscription::new(Arc::clone(&snapshot.empty)));
        let is_latest = request.nonce == subscription.nonce || subscription.nonce.is_empty();
        // A request with an older nonce is outdated: the one with the latest nonce is still to come. In delta it may
        // change the subscription all the same.
        if !is_latest && !request.nonce.is_empty() && self.variant == ProtocolVariant::StateOfTheWorld {
            return Ok(AckKind::None);
        }
        let mut ack = AckKind::None;
        // A request that only changes names repeats the nonce, so the first one is the ACK.
        if subscription.ack_state == AckState::Pending && request.nonce == subscription.nonce {
            subscription.ack(request.error.as_ref(), now);
            ack = if subscription.ack_state == AckState::Nacked { AckKind::Nack } else { AckKind::Ack };
        }
        match request.names {
            RequestedNames::All(names) => subscription.set_names(names, &request.type_url),
            RequestedNames::Change { subscribe, unsubscribe, initial } => {
                subscription.apply_delta(subscribe, unsubscribe, initial, &request.type_url);
            }
        }
        self.check_totals(limits)?;
        Ok(ack)
    }

    /// Returns an error if the names of all subscriptions together exceed a limit.
    fn check_totals(&self, limits: &ClientLimits) -> Result<(), LimitExceeded> {
        let mut subscribed = NameCounts::default();
        let mut known = NameCounts::default();
        for subscription in self.subscriptions.values() {
            subscribed.merge(subscription.name_counts);
            known.merge(subscription.known_version_counts);
        }
        for counts in [subscribed, known] {
            if counts.count > limits.names {
                return Err(LimitExceeded::new("a stream", limits.names, "resource names"));
            }
            if counts.bytes > limits.total_name_bytes {
                return Err(LimitExceeded::new(
                    "a stream",
                    limits.total_name_bytes,
                    "bytes of resource names",
                ));
            }
        }
        Ok(())
    }

    /// Returns the pending responses, each in the pieces of its gRPC frame, and records them as sent.
    ///
    /// The order of type URLs is clusters, endpoints, listeners, routes. So no resource refers to one that was not
    /// sent.
    pub(crate) fn responses(&mut self, snapshot: &ResourceSnapshot) -> Vec<Vec<Bytes>> {
        let mut responses = Vec::new();
        for (type_url, subscription) in &mut self.subscriptions {
            let kind = snapshot.type_resources(type_url);
            let Some(pending) = subscription.pending(self.variant, type_url, kind) else { continue };
            self.nonces = self.nonces.wrapping_add(1);
            subscription.nonce = self.nonces.to_string();
            subscription.ack_state = AckState::Pending;
            subscription.sent = Some(kind.version);
            let pieces = kind.chunks(self.variant, pending.resources);
            responses.push(frame(
                self.variant,
                type_url,
                kind.version,
                &subscription.nonce,
                &pending.removed,
                pieces,
            ));
        }
        responses
    }

    /// Returns true if the client has ACKed the current resources of a type. `None` if it does not subscribe to the
    /// type.
    pub(crate) fn is_in_sync(&self, type_url: &str, snapshot: &ResourceSnapshot) -> Option<bool> {
        let subscription =
            self.subscriptions.get(type_url).filter(|subscription| subscription.is_active())?;
        let kind = snapshot.type_resources(type_url);
        Some(subscription.is_up_to_date(kind) && subscription.ack_state == AckState::Acked)
    }

    /// Returns the NACK of the current resources of a type, if the client rejected them.
    pub(crate) fn rejection(&self, type_url: &str, snapshot: &ResourceSnapshot) -> Option<&Nack> {
        let subscription = self.subscriptions.get(type_url)?;
        let is_latest = subscription.is_up_to_date(snapshot.type_resources(type_url))
            && subscription.ack_state == AckState::Nacked;
        subscription.nack.as_ref().filter(|_| is_latest)
    }

    /// Returns the version of a type that was last ACKed.
    pub(crate) fn acked_version(&self, type_url: &str) -> Option<u64> {
        self.subscriptions.get(type_url)?.acked
    }

    /// Returns the last NACK of a type.
    pub(crate) fn last_nack(&self, type_url: &str) -> Option<&Nack> {
        self.subscriptions.get(type_url)?.nack.as_ref()
    }

    pub(crate) fn types(&self) -> BTreeMap<String, TypeRecord> {
        let record = |subscription: &TypeSubscription| TypeRecord {
            subscribed: SubscribedNames {
                wildcard: subscription.wildcard,
                names: subscription.names.iter().cloned().collect(),
            },
            sent: subscription.sent,
            acked: subscription.acked,
            nack: subscription.nack.clone(),
            is_rejecting: subscription.ack_state == AckState::Nacked,
        };
        self.subscriptions
            .iter()
            .map(|(type_url, subscription)| (type_url.clone(), record(subscription)))
            .collect()
    }
}

/// State of the latest response. Before the first response it is `Acked`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckState {
    Acked,
    Nacked,
    Pending,
}

/// Number and total length of the names that a client makes a stream hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NameCounts {
    count: usize,
    bytes: usize,
}

impl NameCounts {
    fn add(&mut self, name: &str) {
        self.merge(NameCounts { count: 1, bytes: name.len() });
    }

    fn remove(&mut self, name: &str) {
        self.count = self.count.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(name.len());
    }

    fn merge(&mut self, other: NameCounts) {
        self.count = self.count.saturating_add(other.count);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// Subscription of a stream to one type, and the client's knowledge of its resources.
#[expect(clippy::struct_excessive_bools, reason = "independent facts about the client")]
struct TypeSubscription {
    wildcard: bool,
    names: BTreeSet<String>,
    /// Number and length of the names in `names`.
    name_counts: NameCounts,
    /// True once the client has named a resource. From then on an empty list means none, not all.
    has_named: bool,
    /// Resources that the last response was made from.
    last_sent: Arc<TypeResources>,
    /// Versions that the client has where they differ from `last_sent`. `None` means that it has no version.
    known_versions: BTreeMap<String, Option<u64>>,
    /// Number and length of the names in `known_versions`.
    known_version_counts: NameCounts,
    /// True if all resources in `last_sent` must be sent again.
    resend_all: bool,
    /// True if the client expects a response, even an empty one.
    response_due: bool,
    nonce: String,
    ack_state: AckState,
    sent: Option<u64>,
    acked: Option<u64>,
    nack: Option<Nack>,
}

struct PendingResources {
    resources: Vec<Arc<EncodedResource>>,
    removed: Vec<String>,
}

impl TypeSubscription {
    fn new(empty: Arc<TypeResources>) -> TypeSubscription {
        TypeSubscription {
            wildcard: false,
            names: BTreeSet::new(),
            name_counts: NameCounts::default(),
            has_named: false,
            last_sent: empty,
            known_versions: BTreeMap::new(),
            known_version_counts: NameCounts::default(),
            resend_all: false,
            response_due: false,
            nonce: String::new(),
            ack_state: AckState::Acked,
            sent: None,
            acked: None,
            nack: None,
        }
    }

    fn is_active(&self) -> bool {
        self.wildcard || !self.names.is_empty()
    }

    fn is_up_to_date(&self, kind: &Arc<TypeResources>) -> bool {
        Arc::ptr_eq(&self.last_sent, kind)
            && self.known_versions.is_empty()
            && !self.response_due
            && !self.resend_all
    }

    fn ack(&mut self, error: Option<&rpc::Status>, now: SystemTime) {
        self.ack_state = if error.is_some() { AckState::Nacked } else { AckState::Acked };
        match error {
            Some(error) => {
                let version = self.sent.unwrap_or_default();
                self.nack = Some(Nack { version, error: truncate(&error.message, MAX_NACK_BYTES), at: now });
            }
            None => self.acked = self.sent,
        }
    }

    /// Applies a state-of-the-world request: these names and no others.
    fn set_names(&mut self, names: Vec<String>, type_url: &str) {
        let wildcard = if names.is_empty() {
            // An empty list is a wildcard only before the client listed names (ADS-3).
            !self.has_named && all_resources_required_in_sotw(type_url)
        } else {
            self.has_named = true;
            names.iter().any(|name| name == ALL)
        };
        let names: BTreeSet<String> = names.into_iter().filter(|name| name != ALL).collect();
        let before = std::mem::take(&mut self.names);
        for name in names.difference(&before) {
            // `None` sends the resource, even if an earlier subscription received it.
            self.set_known_version(name.clone(), None);
        }
        for name in before.difference(&names) {
            self.remove_known_version(name);
        }
        if wildcard && !self.wildcard {
            self.resend_wildcard();
        }
        self.wildcard = wildcard;
        self.name_counts = NameCounts::default();
        for name in &names {
            self.name_counts.add(name);
        }
        self.names = names;
    }

    fn apply_delta(
        &mut self,
        subscribe: Vec<String>,
        unsubscribe: Vec<String>,
        initial: BTreeMap<String, String>,
        type_url: &str,
    ) {
        let is_first = self.nonce.is_empty() && !self.has_named && !self.wildcard;
        if is_first && subscribe.is_empty() && all_resources_required_in_sotw(type_url) {
            self.wildcard = true;
            self.resend_wildcard();
        }
        for name in unsubscribe {
            if name == ALL {
                self.wildcard = false;
            } else if self.names.remove(&name) {
                self.name_counts.remove(&name);
                if self.wildcard {
                    // The wildcard still covers the resource, so the client must get its current state.
                    self.set_known_version(name, None);
                } else {
                    self.remove_known_version(&name);
                }
            }
        }
        for name in subscribe {
            self.has_named = true;
            if name == ALL {
                self.wildcard = true;
                self.resend_wildcard();
            } else {
                // A repeated subscription requires a repeated response.
                self.set_known_version(name.clone(), None);
                let length = name.len();
                if self.names.insert(name) {
                    self.name_counts.merge(NameCounts { count: 1, bytes: length });
                }
            }
        }
        self.response_due &= initial.is_empty();
        for (name, version) in initial {
            // The version of a resource that is not subscribed to has no effect, so it is not kept.
            if self.wildcard || self.names.contains(&name) {
                self.set_known_version(name, u64::from_str_radix(&version, 16).ok());
            }
        }
    }

    /// Records the version that the client has of a resource, where it differs from `last_sent`.
    fn set_known_version(&mut self, name: String, version: Option<u64>) {
        match self.known_versions.entry(name) {
            Entry::Occupied(mut known) => *known.get_mut() = version,
            Entry::Vacant(unknown) => {
                self.known_version_counts.add(unknown.key());
                unknown.insert(version);
            }
        }
    }

    /// Forgets the recorded version of a resource that is no longer named.
    ///
    /// Otherwise a client that subscribes and unsubscribes in turn would make the map grow without limit.
    fn remove_known_version(&mut self, name: &str) {
        if self.known_versions.remove(name).is_some() {
            self.known_version_counts.remove(name);
        }
    }

    /// Requires all resources to be sent again: the client may have dropped those that it had.
    fn resend_wildcard(&mut self) {
        for (name, known) in &mut self.known_versions {
            if self.last_sent.items.contains_key(name) {
                *known = None;
            }
        }
        self.resend_all = !self.last_sent.items.is_empty();
        self.response_due = true;
    }

    /// Returns the resources to send, if any, and records them as sent.
    fn pending(
        &mut self,
        variant: ProtocolVariant,
        type_url: &str,
        kind: &Arc<TypeResources>,
    ) -> Option<PendingResources> {
        if self.ack_state == AckState::Pending || self.is_up_to_date(kind) || !self.is_active() {
            return None;
        }
        let last_sent = std::mem::replace(&mut self.last_sent, Arc::clone(kind));
        let known_versions = std::mem::take(&mut self.known_versions);
        self.known_version_counts = NameCounts::default();
        let resend_all = std::mem::take(&mut self.resend_all);
        let response_due = std::mem::take(&mut self.response_due);
        let is_pending = |name: &str| {
            let is = kind.items.get(name).map(|held| held.version);
            match known_versions.get(name) {
                Some(None) => true,
                Some(known) => *known != is,
                None => match last_sent.items.get(name) {
                    Some(held) => resend_all || Some(held.version) != is,
                    None => is.is_some(),
                },
            }
        };
        let mut pending: BTreeSet<&str> =
            self.names.iter().map(String::as_str).filter(|name| is_pending(name)).collect();
        if self.wildcard {
            let all = last_sent.items.keys().chain(kind.items.keys()).chain(known_versions.keys());
            pending.extend(all.map(String::as_str).filter(|name| is_pending(name)));
        }
        let held = |name: &str| kind.items.get(name).cloned();
        match variant {
            ProtocolVariant::Delta => {
                if pending.is_empty() && !response_due {
                    return None;
                }
                let removed = pending.iter().filter(|name| !kind.items.contains_key(**name));
                let removed = removed.map(|name| (*name).to_owned()).collect();
                Some(PendingResources { resources: pending.into_iter().filter_map(held).collect(), removed })
            }
            // The client takes a resource that is missing from a complete response as deleted.
            ProtocolVariant::StateOfTheWorld if all_resources_required_in_sotw(type_url) => {
                if pending.is_empty() && !response_due {
                    return None;
                }
                let resources = if self.wildcard {
                    kind.items.values().cloned().collect()
                } else {
                    self.names.iter().filter_map(|name| held(name)).collect()
                };
                Some(PendingResources { resources, removed: Vec::new() })
            }
            ProtocolVariant::StateOfTheWorld => {
                let resources: Vec<_> = pending.into_iter().filter_map(held).collect();
                // Omission deletes none of these types (ADS-11), so an empty response would have no content.
                (!resources.is_empty()).then_some(PendingResources { resources, removed: Vec::new() })
            }
        }
    }
}

/// Returns true for listeners and clusters: state-of-the-world responses contain all of them, and requests need no
/// names.
fn all_resources_required_in_sotw(type_url: &str) -> bool {
    type_url == Listener::type_url() || type_url == Cluster::type_url()
}

/// Returns a response as a gRPC frame: a few bytes of its own, then the shared pieces.
fn frame(
    variant: ProtocolVariant,
    type_url: &str,
    version: u64,
    nonce: &str,
    removed: &[String],
    pieces: Vec<Bytes>,
) -> Vec<Bytes> {
    // `version_info` and `system_version_info`, `type_url` and `nonce` have the same field numbers in both variants.
    let mut own = BytesMut::new();
    encoding::string::encode(1, &version.to_string(), &mut own);
    encoding::string::encode(4, &type_url.to_owned(), &mut own);
    encoding::string::encode(5, &nonce.to_owned(), &mut own);
    if variant == ProtocolVariant::Delta {
        encoding::string::encode_repeated(6, removed, &mut own);
    }
    let length = own.len() + pieces.iter().map(Bytes::len).sum::<usize>();
    let mut head = BytesMut::with_capacity(own.len() + 5);
    // The prefix of a gRPC message: the flag for compression, then the length.
    head.put_u8(0);
    // Protobuf limits a message to 2 GiB.
    head.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    head.put(own);
    std::iter::once(head.freeze()).chain(pieces).collect()
}
