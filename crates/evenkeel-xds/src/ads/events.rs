//! Handlers of ADS stream events and their effects on resources (A57).

use std::collections::BTreeSet;
use std::mem;

use evenkeel_core::{Instant, Status};

use super::cache::{CacheRetention, ResourceEntry, ResourceError, ResourceErrorKind};
use super::key::ResourceKey;
use super::server::{AdsStreamFailure, AdsStreamState, WarningKind};
use super::stream::AdsStream;
use super::{AdsClient, AdsEffect, AdsStreamId, messages};

impl AdsClient {
    pub(super) fn handle_opened(&mut self, server: usize, id: AdsStreamId) {
        let server = &mut self.servers[server];
        if matches!(server.stream_state, AdsStreamState::Opening { .. }) {
            server.stream_state = AdsStreamState::Open(Box::new(AdsStream::new(id)));
            // After a failure only a response makes the server connected again (XM-1).
            server.stats.connected = server.failure.is_none();
            self.effects.push_back(AdsEffect::Read { stream: id });
        }
    }

    pub(super) fn handle_written(&mut self, server: usize, now: Instant) {
        if let Some(stream) = self.servers[server].stream_mut() {
            // The resource timers start when the request is on the wire (FM-3).
            let added = stream.handle_written();
            self.start_resource_timers(server, added, now);
        }
    }

    /// Starts the resource timers of these names (FM-3). Resources that are cached or have an error are skipped. Names
    /// without subscribers are included, because they may be subscribed again before the server is unsubscribed from
    /// them.
    pub(super) fn start_resource_timers(&mut self, index: usize, keys: BTreeSet<ResourceKey>, now: Instant) {
        let server = &mut self.servers[index];
        let until = now + server.resource_timeout();
        let Some(stream) = server.stream_mut() else { return };
        for key in keys {
            if self.cache.get(&key).is_some_and(ResourceEntry::is_requested) {
                stream.timers.insert(key, until);
            }
        }
    }

    /// Handles the expiry of a resource timer (DE-4). Only timers of the active server count.
    pub(super) fn handle_resource_timeout(&mut self, server: usize, key: &ResourceKey, now: Instant) {
        let unanswered = self.cache.get(key).is_some_and(ResourceEntry::is_requested);
        // Timers of a server that is not active have no effect; `return_to` starts them again.
        if !unanswered || !self.authorities[key.authority].is_active(server) {
            return;
        }
        let within = self.servers[server].resource_timeout();
        let context = self.resource_context(server, key);
        let (kind, status) = if context.server.features.resource_timer_is_transient_error {
            (ResourceErrorKind::Timeout, context.no_response(within))
        } else {
            (ResourceErrorKind::DoesNotExist, context.not_sent(within))
        };
        self.record_error(
            server,
            key,
            ResourceError { kind, status, version: String::new(), at: now },
            CacheRetention::Keep,
        );
    }

    /// Handles the end of a stream. A stream that ends after a response is no failure (A57): servers balance load that
    /// way. It is reopened at once, unless streams repeatedly end soon after a response.
    pub(super) fn handle_closed(&mut self, server: usize, status: &Status, now: Instant) {
        let cause = messages::cause(status);
        match self.servers[server].stream() {
            None => {
                let why = format!("cannot be reached: {cause}");
                self.fail(server, &why, AdsStreamFailure::Unreachable, now);
            }
            Some(stream) if !stream.responded => {
                let why = format!("ended the stream before a response: {cause}");
                self.fail(server, &why, AdsStreamFailure::NoResponse, now);
            }
            Some(_) => {
                let until = self.servers[server].reopen_at(now, &mut self.rng);
                if until > now {
                    // Not a failure: subscribers see no error while the stream is reopened (FM-1).
                    self.servers[server].stream_state = AdsStreamState::BackingOff { until };
                } else {
                    self.open(server, now);
                }
            }
        }
    }

    pub(super) fn fail(&mut self, index: usize, why: &str, failure: AdsStreamFailure, now: Instant) {
        let node = messages::node_suffix(&self.bootstrap.node.id);
        let server = &mut self.servers[index];
        let text = format!("xDS server {:?} {why}{node}", server.config.uri);
        let until = server.retry_at(failure, &self.backoff, now, &mut self.rng);
        server.stream_state = AdsStreamState::BackingOff { until };
        server.stats.connected = false;
        if server.failure.is_none() {
            server.stats.failures = server.stats.failures.saturating_add(1);
        }
        if server.is_new_warning(WarningKind::Failure, &text) {
            self.effects.push_back(AdsEffect::Warn(text.clone()));
        }
        server.failure = Some(Status::unavailable(text));
    }

    /// Handles a response. The next one is read when every subscriber with changes has processed this one.
    pub(super) fn handle_message(&mut self, server: usize, id: AdsStreamId, bytes: &[u8], now: Instant) {
        if self.servers[server].stream().is_none() {
            return;
        }
        // Set earlier changes aside, so that `pending` contains only the subscribers that this response concerns.
        let before = mem::take(&mut self.changed);
        self.handle_response(server, bytes, now);
        self.reconcile(now);
        // The response may have failed the stream, or the pass closed it.
        if let Some(stream) = self.servers[server].stream_mut().filter(|stream| stream.id == id) {
            stream.pending = self.changed.keys().copied().collect();
            if stream.pending.is_empty() {
                self.effects.push_back(AdsEffect::Read { stream: id });
            }
        }
        // Added after `pending` is set: a subscriber with earlier changes alone does not delay the next read.
        for (subscriber, changed) in before {
            self.notify([subscriber], &changed);
        }
    }
}
