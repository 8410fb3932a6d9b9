//! Application of a response to the cache (A46, A53, A88).

use std::collections::BTreeSet;

use evenkeel_core::Instant;
use evenkeel_proto::envoy::service::discovery::v3;

use super::cache::{
    CacheChange, CacheRetention, CachedResource, ResourceEntry, ResourceError, ResourceErrorKind,
};
use super::key::ResourceKey;
use super::messages::ResourceContext;
use super::response::{AdsResponse, InvalidResource, ReceivedResource, ResponseItem};
use super::server::{AdsStreamFailure, WarningKind};
use super::{AdsClient, AdsEffect, ChangedResources, XdsVariant, messages};
use crate::resource::ResourceType;
use crate::text::quoted_long;

impl AdsClient {
    pub(super) fn handle_response(&mut self, server: usize, bytes: &[u8], now: Instant) {
        let limit = self.limits.response_bytes;
        if bytes.len() > limit {
            let why = format!("sent a response of {} bytes; at most {limit} are accepted", bytes.len());
            return self.fail_stream(server, &why, now);
        }
        let response = match AdsResponse::decode(self.variant, bytes) {
            Ok(response) => response,
            Err(error) => {
                return self.fail_stream(server, &format!("sent a malformed response: {error}"), now);
            }
        };
        // Any response that can be decoded ends the failure (FM-2), even if its type is unknown.
        self.servers[server].recover();
        let Some(stream) = self.servers[server].stream_mut() else { return };
        stream.responded = true;
        let kind = ResourceType::from_type_url(&response.type_url);
        // A type without a subscription cannot be validated, so its response gets neither ACK nor NACK.
        let Some(kind) = kind.filter(|kind| stream.has_requested(*kind)) else {
            let text = format!(
                "xDS server {:?} sent resources of type {}, which is not subscribed",
                self.servers[server].config.uri,
                quoted_long(&response.type_url)
            );
            return self.warn(server, WarningKind::UnknownType, text);
        };
        let AdsResponse { version, nonce, .. } = &response;
        let (version, nonce) = (version.clone(), nonce.clone());
        let verdict = self.apply(server, kind, response, now);
        if let Err(why) = &verdict {
            let node = messages::node_suffix(&self.bootstrap.node.id);
            let uri = &self.servers[server].config.uri;
            let text = format!("xDS server {uri:?} sent an invalid {kind} response: {why}{node}");
            self.warn(server, WarningKind::Rejected(kind), text);
        } else if self.servers[server].handle_accepted(kind, version) {
            // Only an accepted response changes the version that later requests carry (ADS-4).
            let uri = &self.servers[server].config.uri;
            let text = format!("xDS server {uri:?} sent a valid {kind} response after an invalid one");
            self.effects.push_back(AdsEffect::Info(text));
        }
        if let Some(stream) = self.servers[server].stream_mut() {
            stream.queue_ack(kind, nonce, verdict);
        }
    }

    /// Fails the stream after an invalid message. This is a failure even if a valid response preceded it.
    pub(super) fn fail_stream(&mut self, server: usize, why: &str, now: Instant) {
        let stream = self.servers[server].stream_id();
        self.effects.extend(stream.map(|stream| AdsEffect::Close { stream }));
        self.fail(server, why, AdsStreamFailure::NoResponse, now);
    }

    fn warn(&mut self, server: usize, topic: WarningKind, text: String) {
        if self.servers[server].is_new_warning(topic, &text) {
            self.effects.push_back(AdsEffect::Warn(text));
        }
    }

    /// Applies the valid resources (A46). The error lists the invalid ones, for the NACK.
    fn apply(
        &mut self,
        server: usize,
        kind: ResourceType,
        response: AdsResponse,
        now: Instant,
    ) -> Result<(), String> {
        let count = response.items.len();
        if count > self.limits.resources {
            return Err(format!("{count} resources; at most {} are accepted", self.limits.resources));
        }
        let ClassifiedItems { valid, invalid, mut mentioned, problems, all_named } =
            self.classify(server, kind, response.items);
        let wanted = |(key, _): &&(ResourceKey, ReceivedResource)| {
            self.cache.get(key).is_some_and(ResourceEntry::is_watched)
        };
        // Return to a preferred server before its resources are applied: those of inactive servers are ignored.
        let authorities: BTreeSet<usize> =
            valid.iter().filter(wanted).map(|(key, _)| key.authority).collect();
        for authority in authorities {
            self.return_to(authority, server, now);
        }
        for (key, received) in valid {
            self.accept(server, &key, received, now);
        }
        for (key, what) in invalid {
            self.reject(server, &key, what, now);
        }
        for error in &response.errors {
            self.receive_error(server, kind, error, now);
        }
        // A resource with an error is not deleted, although the response omits it.
        let named = response.errors.iter().filter_map(|error| error.resource_name.as_ref());
        mentioned.extend(named.filter_map(|name| self.key(kind, &name.name).ok()));
        let removed = match self.variant {
            XdsVariant::Delta => {
                response.removed.iter().filter_map(|name| self.key(kind, name).ok()).collect()
            }
            // If a name could not be decoded, that resource may be the one that seems deleted.
            XdsVariant::StateOfTheWorld if kind.is_complete_in_sotw() && all_named => {
                self.cached_keys(server, kind)
            }
            XdsVariant::StateOfTheWorld => Vec::new(),
        };
        for key in removed.iter().filter(|key| !mentioned.contains(*key)) {
            self.remove(server, key, now);
        }
        let cache = &self.cache;
        // A resource that was received or has an error needs no timer.
        if let Some(stream) = self.servers[server].stream_mut() {
            stream.timers.retain(|key, _| cache.get(key).is_some_and(ResourceEntry::is_requested));
        }
        if problems.is_empty() { Ok(()) } else { Err(messages::nack(&problems, self.limits.error_bytes)) }
    }

    /// Parses every resource of a response.
    fn classify(&self, server: usize, kind: ResourceType, items: Vec<ResponseItem>) -> ClassifiedItems {
        let config = &self.servers[server].config;
        let mut sorted = ClassifiedItems { all_named: true, ..ClassifiedItems::default() };
        for (i, item) in items.into_iter().enumerate() {
            let known = item.endpoints_name(kind);
            let known = known.and_then(|name| self.cache.get(&self.key(kind, name).ok()?)?.cached());
            // Servers differ in their features, so only a version of the same server is a basis for incremental
            // parsing.
            let item = item.parse(&*self.parser, kind, config, known.filter(|valid| valid.from == server));
            let name = match &item {
                Ok(received) => Some(received.name.as_str()),
                Err(invalid) => invalid.name.as_deref(),
            };
            sorted.all_named &= name.is_some();
            let label = name.map_or_else(|| format!("resource {i}"), quoted_long);
            // A malformed name, or one of an unknown authority, cannot have been subscribed.
            let key = name.and_then(|name| self.key(kind, name).ok());
            let is_new = key.as_ref().is_none_or(|key| sorted.mentioned.insert(key.clone()));
            match (item, key) {
                // The first of two is used; the second leads to the NACK.
                (Ok(_), Some(_)) if !is_new => {
                    sorted.problems.push((label, "occurs twice in the response".to_owned()));
                }
                (Ok(received), Some(key)) => sorted.valid.push((key, received)),
                // A resource that cannot be subscribed is ignored (ADS-6).
                (Ok(_), None) => {}
                (Err(invalid), key) => {
                    sorted.problems.push((label, invalid.why.clone()));
                    sorted.invalid.extend(key.filter(|_| is_new).map(|key| (key, invalid)));
                }
            }
        }
        sorted
    }

    /// Makes a server above the active one active again, because it sent a resource (FB-3).
    fn return_to(&mut self, authority: usize, server: usize, now: Instant) {
        if !self.authorities[authority].return_to(server) {
            return;
        }
        for kind in ResourceType::ALL {
            self.mark_dirty(authority, kind);
            // Timers that expired while the server was not active had no effect, so they start again.
            let stream = self.servers[server].stream();
            let written = stream.into_iter().flat_map(|stream| stream.written(kind));
            let here = written.filter(|key| key.authority == authority).cloned().collect();
            self.start_resource_timers(server, here, now);
        }
    }

    /// Returns the cached resources of a type that the server is subscribed to send.
    fn cached_keys(&self, server: usize, kind: ResourceType) -> Vec<ResourceKey> {
        let written = self.servers[server].stream().into_iter().flat_map(|stream| stream.written(kind));
        let in_use = |key: &&ResourceKey| self.cache.get(*key).is_some_and(|entry| entry.cached().is_some());
        written.filter(in_use).cloned().collect()
    }

    fn accept(&mut self, server: usize, key: &ResourceKey, received: ReceivedResource, now: Instant) {
        let ReceivedResource { resource, raw, version, warnings, .. } = received;
        // Late data of an inactive server is ignored (FB-3), and so are unknown names (ADS-6).
        if !self.is_authoritative(server, key) {
            return;
        }
        let valid = self.servers[server].stats.valid.entry(key.kind).or_default();
        *valid = valid.saturating_add(1);
        let valid = CachedResource { resource, raw, version, at: now, from: server };
        let mut cache_change = CacheChange::None;
        self.change(server, key, |entry| {
            cache_change = entry.accept(valid);
            cache_change != CacheChange::None
        });
        // One line for all warnings: a field that is meant for another client often occurs in a hundred places.
        if cache_change == CacheChange::Resource && !warnings.is_empty() {
            let text = self.resource_context(server, key).warning(&warnings.join("; "));
            self.effects.push_back(AdsEffect::Warn(text));
        }
    }

    /// Records the error of an invalid resource (DE-2).
    fn reject(&mut self, server: usize, key: &ResourceKey, what: InvalidResource, now: Instant) {
        if self.is_authoritative(server, key) {
            let invalid = self.servers[server].stats.invalid.entry(key.kind).or_default();
            *invalid = invalid.saturating_add(1);
            let status = self.resource_context(server, key).invalid(&what.why);
            let old = self.after_data_error(server);
            let kind = ResourceErrorKind::Nacked;
            self.record_error(
                server,
                key,
                ResourceError { kind, status, version: what.version, at: now },
                old,
            );
        }
    }

    /// Records the error that a server reported for a resource (TP3).
    fn receive_error(&mut self, server: usize, kind: ResourceType, error: &v3::ResourceError, now: Instant) {
        const NOT_FOUND: i32 = 5;
        const PERMISSION_DENIED: i32 = 7;
        let (Some(name), Some(detail)) = (&error.resource_name, &error.error_detail) else { return };
        let Ok(key) = self.key(kind, &name.name) else { return };
        if detail.code == 0 || !self.is_authoritative(server, &key) {
            return;
        }
        // Other codes are transient errors (DE-1).
        let about_data = matches!(detail.code, NOT_FOUND | PERMISSION_DENIED);
        let old = if about_data { self.after_data_error(server) } else { CacheRetention::Keep };
        let status = self.resource_context(server, &key).reported(detail.code, &detail.message);
        let kind = ResourceErrorKind::ReceivedError { about_data };
        self.record_error(server, &key, ResourceError { kind, status, version: String::new(), at: now }, old);
    }

    /// Handles the deletion of a resource. By default it is dropped after the grace period (A53). It is kept if the
    /// bootstrap ignores deletions, or enables A88 without `fail_on_data_errors`.
    fn remove(&mut self, server: usize, key: &ResourceKey, now: Instant) {
        if !self.is_authoritative(server, key) {
            return;
        }
        let features = self.servers[server].config.features;
        let keeps = features.ignore_resource_deletion || features.resource_timer_is_transient_error;
        let old = if keeps { self.after_data_error(server) } else { self.after_deletion(server, key, now) };
        let context = self.resource_context(server, key);
        let status = match old {
            CacheRetention::Hold { .. } => context.removed_and_held(self.deletion_grace),
            CacheRetention::Keep | CacheRetention::Drop => context.removed(),
        };
        let kind = ResourceErrorKind::DoesNotExist;
        self.record_error(server, key, ResourceError { kind, status, version: String::new(), at: now }, old);
        if matches!(old, CacheRetention::Hold { .. }) {
            self.deleted.insert(key.clone());
        }
    }

    /// Returns the retention of a deleted resource for servers whose deletions are not ignored.
    ///
    /// A resource that another one references is held for the grace period. For example, istiod deletes a cluster some milliseconds
    /// before it moves the routes away from it. A listener is referenced by the target only, so no update can follow. A
    /// bootstrap with `fail_on_data_errors` requires failures at once (A88).
    fn after_deletion(&self, server: usize, key: &ResourceKey, now: Instant) -> CacheRetention {
        let is_in_use = self.cache.get(key).is_some_and(|entry| entry.cached().is_some());
        let fails_at_once = !is_in_use
            || self.servers[server].config.features.fail_on_data_errors
            || key.kind == ResourceType::Listener
            || self.deletion_grace.is_zero();
        if fails_at_once {
            CacheRetention::Drop
        } else {
            CacheRetention::Hold { until: now + self.deletion_grace }
        }
    }

    /// Drops the deleted resources whose grace period has ended.
    pub(super) fn expire_deleted(&mut self, now: Instant) {
        let due = |key: &&ResourceKey| {
            let until = self.cache.get(*key).and_then(ResourceEntry::held_until);
            until.is_some_and(|until| until <= now)
        };
        let due: Vec<ResourceKey> = self.deleted.iter().filter(due).cloned().collect();
        for key in due {
            let Some(entry) = self.cache.get(&key) else { continue };
            // CSDS shows the time of the deletion, not that of its expiry.
            let (is_watched, at) = (entry.is_watched(), entry.error().map_or(now, |error| error.at));
            let Some(server) = entry.cached().map(|valid| valid.from) else { continue };
            let context = self.resource_context(server, &key);
            let (status, text) = (context.removed(), context.grace_expired(self.deletion_grace));
            let error =
                ResourceError { kind: ResourceErrorKind::DoesNotExist, status, version: String::new(), at };
            self.record_error(server, &key, error, CacheRetention::Drop);
            if is_watched {
                self.effects.push_back(AdsEffect::Warn(text));
            }
        }
    }

    /// Returns true if the resource is in the cache and this server is the active one.
    fn is_authoritative(&self, server: usize, key: &ResourceKey) -> bool {
        self.cache.contains_key(key) && self.authorities[key.authority].is_active(server)
    }

    fn after_data_error(&self, server: usize) -> CacheRetention {
        if self.servers[server].config.features.fail_on_data_errors {
            CacheRetention::Drop
        } else {
            CacheRetention::Keep
        }
    }

    pub(super) fn record_error(
        &mut self,
        server: usize,
        key: &ResourceKey,
        error: ResourceError,
        old: CacheRetention,
    ) {
        self.change(server, key, |entry| entry.record_error(error, old));
    }

    /// Changes an entry and notifies its subscribers. Logs when a deletion is ignored, and when that ends (DE-3).
    fn change(&mut self, server: usize, key: &ResourceKey, change: impl FnOnce(&mut ResourceEntry) -> bool) {
        let Some(entry) = self.cache.get_mut(key) else { return };
        let before = entry.is_deletion_ignored();
        // An unchanged state does not notify subscribers (ADS-10).
        let notified = if change(entry) { entry.subscribers.clone() } else { BTreeSet::new() };
        let after = entry.is_deletion_ignored();
        self.notify(notified, &ChangedResources::of(key));
        if before != after {
            let context = self.resource_context(server, key);
            let effect = if after {
                AdsEffect::Warn(context.deletion_ignored())
            } else {
                AdsEffect::Info(context.deletion_ended())
            };
            self.effects.push_back(effect);
        }
    }

    pub(super) fn resource_context<'a>(&'a self, server: usize, key: &'a ResourceKey) -> ResourceContext<'a> {
        ResourceContext {
            kind: key.kind,
            name: &key.name,
            server: &self.servers[server].config,
            node: &self.bootstrap.node.id,
            bytes: self.limits.error_bytes,
        }
    }
}

/// Resources of a response, sorted by validity.
#[derive(Default)]
struct ClassifiedItems {
    valid: Vec<(ResourceKey, ReceivedResource)>,
    invalid: Vec<(ResourceKey, InvalidResource)>,
    mentioned: BTreeSet<ResourceKey>,
    /// Entries of the NACK: name or index, and the reason.
    problems: Vec<(String, String)>,
    all_named: bool,
}
