//! Reconcile pass at the end of every method of the client.
//!
//! The pass selects servers, opens and closes streams, queues requests, evicts unused resources and reports failures.
//! It computes its result from the current state, not from events.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use evenkeel_core::Instant;

use super::cache::ResourceEntry;
use super::key::ResourceKey;
use super::server::AdsStreamState;
use super::stream::{AdsStream, RequestFields};
use super::{AdsClient, AdsEffect, AdsRequest, AdsStreamId, ChangedResources, XdsVariant};
use crate::resource::ResourceType;

impl AdsClient {
    pub(super) fn reconcile(&mut self, now: Instant) {
        let mut used = vec![false; self.servers.len()];
        // All authorities first, since they share servers (FED-4): one that uses a server keeps its stream open.
        for authority in 0..self.authorities.len() {
            self.reconcile_authority(authority, &mut used);
        }
        for (server, used) in used.into_iter().enumerate() {
            let idle = matches!(self.servers[server].stream_state, AdsStreamState::Idle);
            if used && idle {
                self.open(server, now);
            } else if !used && !idle {
                // Read before `enter_idle` drops the stream.
                let stream = self.servers[server].stream_id();
                self.effects.extend(stream.map(|stream| AdsEffect::Close { stream }));
                self.servers[server].enter_idle();
            }
            self.send_due_requests(server);
        }
        // After the requests: an entry is evicted once no server is subscribed to it.
        self.evict_unwatched();
        let cache = &self.cache;
        self.deleted.retain(|key| cache.get(key).and_then(ResourceEntry::held_until).is_some());
        // Last, since the servers in use determine the combined failure.
        for authority in 0..self.authorities.len() {
            self.update_failure(authority);
        }
    }

    /// Selects the servers of an authority (A71) and marks them as used.
    fn reconcile_authority(&mut self, index: usize, used: &mut [bool]) {
        if !self.is_in_use(index) {
            self.authorities[index].reset();
            return;
        }
        let failing: Vec<bool> = self.servers.iter().map(|server| server.failure.is_some()).collect();
        let is_missing =
            |(_, entry): (&ResourceKey, &ResourceEntry)| entry.is_watched() && entry.is_missing();
        // Fall back only if a watched resource is missing: cached resources stay in use while the server is down (A71).
        if failing.contains(&true)
            && self.entries(index).any(is_missing)
            && self.authorities[index].fall_back(|server| failing[server])
        {
            // The next server receives all subscriptions (FB-2).
            for kind in ResourceType::ALL {
                self.mark_dirty(index, kind);
            }
        }
        for server in self.authorities[index].in_use() {
            used[*server] = true;
        }
    }

    pub(super) fn open(&mut self, server: usize, now: Instant) {
        let stream = AdsStreamId(self.next_stream);
        self.next_stream = self.next_stream.saturating_add(1);
        let variant = self.variant;
        let until = now + self.backoff.min_connect_timeout;
        let server = &mut self.servers[server];
        server.enter_opening(stream, now, until);
        self.effects.push_back(AdsEffect::Open { stream, server: Arc::clone(&server.config), variant });
    }

    /// Sends the next request of a stream, if one is due.
    fn send_due_requests(&mut self, server: usize) {
        while let Some(kind) = self.servers[server].stream().and_then(AdsStream::due) {
            // A type may turn out to need no request. `change` has cleared `dirty` then, so the loop ends.
            if self.send_due_request(server, kind) {
                return;
            }
        }
    }

    fn send_due_request(&mut self, index: usize, kind: ResourceType) -> bool {
        let request = match self.variant {
            XdsVariant::StateOfTheWorld => None,
            // An ACK has a request of its own, before any change of the subscription (`delta_ack`).
            XdsVariant::Delta => self.servers[index].stream_mut().and_then(|stream| stream.delta_ack(kind)),
        };
        let Some(request) = request.or_else(|| self.names_request(index, kind)) else { return false };
        let Some(stream) = self.servers[index].stream_id() else { return false };
        self.effects.push_back(AdsEffect::Send { stream, request: Box::new(request) });
        true
    }

    /// Returns the subscription request of a type, if it differs from the last one or must carry an ACK.
    fn names_request(&mut self, index: usize, kind: ResourceType) -> Option<AdsRequest> {
        let names = self.watched_keys(index, kind);
        let is_first = !self.servers[index].stream()?.has_requested(kind);
        let mut versions = BTreeMap::new();
        if is_first {
            let came_from_here = |key: &ResourceKey| {
                self.cache.get(key).and_then(ResourceEntry::cached).is_some_and(|cached| cached.from == index)
            };
            // Without cached resources the version must not be sent: the server would consider us up to date and send
            // nothing.
            if !names.iter().any(came_from_here) {
                self.servers[index].versions.remove(&kind);
            }
            versions = self.versions(index, &names);
        }
        let is_unanswered = |key: &&ResourceKey| self.cache.get(key).is_none_or(ResourceEntry::is_requested);
        let unanswered = names.iter().filter(is_unanswered).cloned().collect();
        let server = &mut self.servers[index];
        let version = server.versions.get(&kind).cloned().unwrap_or_default();
        let stream = server.stream_mut()?;
        let wanted = RequestFields { node: &self.bootstrap.node, names, unanswered, version, versions };
        match self.variant {
            XdsVariant::StateOfTheWorld => stream.sotw(kind, wanted),
            XdsVariant::Delta => stream.delta_subscription(kind, wanted),
        }
    }

    /// Returns the versions of the cached resources that this server sent. Resources with an error are omitted: the
    /// server must send them again, even if unchanged, to clear the error.
    fn versions(&self, server: usize, names: &BTreeSet<ResourceKey>) -> BTreeMap<String, String> {
        let mut versions = BTreeMap::new();
        for key in names {
            let entry = self.cache.get(key).filter(|entry| entry.error().is_none());
            if let Some(cached) = entry.and_then(ResourceEntry::cached)
                && cached.from == server
                && !cached.version.is_empty()
            {
                versions.insert(key.name.as_ref().to_owned(), cached.version.clone());
            }
        }
        versions
    }

    /// Returns the names that the server should have in its subscription.
    fn watched_keys(&self, server: usize, kind: ResourceType) -> BTreeSet<ResourceKey> {
        let authorities = self.authorities.iter().enumerate();
        let here = authorities.filter(|(_, authority)| authority.in_use().contains(&server));
        let entries = here.flat_map(|(authority, _)| self.entries_of(authority, kind));
        entries.filter(|(_, entry)| entry.is_watched()).map(|(key, _)| key.clone()).collect()
    }

    /// Evicts resources without subscribers once every server is unsubscribed from them. Before that, a new subscriber
    /// would not change the request, so the server would not send the resource again (fault 17).
    fn evict_unwatched(&mut self) {
        let is_held = |key: &ResourceKey| {
            self.servers.iter().any(|server| server.stream().is_some_and(|stream| stream.is_subscribed(key)))
        };
        let is_watched = |key: &ResourceKey| self.cache.get(key).is_some_and(ResourceEntry::is_watched);
        // Names that are watched again are no orphans any more.
        let (held, settled): (BTreeSet<ResourceKey>, _) = mem::take(&mut self.orphans)
            .into_iter()
            .filter(|key| !is_watched(key))
            .partition(|key| is_held(key));
        self.orphans = held;
        for key in settled {
            let Some(entry) = self.cache.remove(&key) else { continue };
            if let Some(cached) = entry.cached().filter(|_| entry.is_deletion_ignored()) {
                let text = self.resource_context(cached.from, &key).deletion_ended();
                self.effects.push_back(AdsEffect::Info(text));
            }
        }
    }

    /// Notifies the subscribers of an authority when every server in use fails, and when that ends.
    fn update_failure(&mut self, index: usize) {
        let authority = &self.authorities[index];
        let failure = self.is_in_use(index).then(|| authority.combined_failure(&self.servers)).flatten();
        // Compared with the failure that subscribers were notified of, since the pass runs after every event.
        if failure == authority.failure {
            return;
        }
        self.authorities[index].failure = failure;
        let mut changed = BTreeSet::new();
        for (_, entry) in self.entries(index) {
            // An error of the resource takes precedence over the failure, so these subscribers see no change.
            if entry.error().is_none() {
                changed.extend(&entry.subscribers);
            }
        }
        self.notify(changed, &ChangedResources::Anything);
    }
}
