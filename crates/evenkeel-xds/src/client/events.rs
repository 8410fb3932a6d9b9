//! What happens to streams, and what that means for the resources on them (A57).

use std::collections::BTreeSet;
use std::mem;

use evenkeel_core::{Instant, Status};

use super::cache::{Entry, Old, Trouble, TroubleKind};
use super::key::Key;
use super::server::{AttemptFailure, Link, Topic};
use super::stream::Stream;
use super::{Client, Effect, StreamId, words};

impl Client {
    pub(super) fn handle_opened(&mut self, server: usize, id: StreamId) {
        let server = &mut self.servers[server];
        if matches!(server.link, Link::Opening { .. }) {
            server.link = Link::Open(Box::new(Stream::new(id)));
            server.tally.connected = server.failure.is_none();
            self.effects.push_back(Effect::Read { stream: id });
        }
    }

    pub(super) fn handle_written(&mut self, server: usize, now: Instant) {
        if let Some(stream) = self.servers[server].stream_mut() {
            let added = stream.handle_written();
            self.await_all(server, added, now);
        }
    }

    /// From here on the server has so long to send these (FM-3). What is cached, or known otherwise, need not come. What
    /// nobody wants at the moment is awaited too: it may be wanted again before the server hears of it.
    pub(super) fn await_all(&mut self, index: usize, keys: BTreeSet<Key>, now: Instant) {
        let server = &mut self.servers[index];
        let until = now + server.patience();
        let Some(stream) = server.stream_mut() else { return };
        for key in keys {
            if self.cache.get(&key).is_some_and(Entry::is_unanswered) {
                stream.timers.insert(key, until);
            }
        }
    }

    /// A resource did not come in time (DE-4). That counts only for the server that gives the resources.
    pub(super) fn give_up(&mut self, server: usize, key: &Key, now: Instant) {
        let unanswered = self.cache.get(key).is_some_and(Entry::is_unanswered);
        if !unanswered || !self.authorities[key.authority].is_active(server) {
            return;
        }
        let within = self.servers[server].patience();
        let subject = self.subject(server, key);
        let (kind, status) = if subject.server.features.resource_timer_is_transient_error {
            (TroubleKind::Timeout, subject.no_response(within))
        } else {
            (TroubleKind::DoesNotExist, subject.not_sent(within))
        };
        self.trouble(server, key, Trouble { kind, status, version: String::new(), at: now }, Old::Keep);
    }

    /// A stream that ends after a response is no failure (A57): servers balance load that way. It is reopened at once, unless
    /// streams end soon after each response.
    pub(super) fn handle_closed(&mut self, server: usize, status: &Status, now: Instant) {
        let cause = words::cause(status);
        match self.servers[server].stream() {
            None => {
                let why = format!("cannot be reached: {cause}");
                self.fail(server, &why, AttemptFailure::Unreachable, now);
            }
            Some(stream) if !stream.responded => {
                let why = format!("ended the stream before a response: {cause}");
                self.fail(server, &why, AttemptFailure::NoResponse, now);
            }
            Some(_) => {
                let until = self.servers[server].reopen_at(now, &mut self.rng);
                if until > now {
                    self.servers[server].link = Link::Waiting { until };
                } else {
                    self.open(server, now);
                }
            }
        }
    }

    pub(super) fn fail(&mut self, index: usize, why: &str, failure: AttemptFailure, now: Instant) {
        let node = words::node_suffix(&self.bootstrap.node.id);
        let server = &mut self.servers[index];
        let text = format!("xDS server {:?} {why}{node}", server.config.uri);
        let until = server.retry_at(failure, &self.backoff, now, &mut self.rng);
        server.link = Link::Waiting { until };
        server.tally.connected = false;
        if server.failure.is_none() {
            server.tally.failures = server.tally.failures.saturating_add(1);
        }
        if server.is_news(Topic::Failure, &text) {
            self.effects.push_back(Effect::Warn(text.clone()));
        }
        server.failure = Some(Status::unavailable(text));
    }

    /// Takes in a response. The next one is read when all whom this one changed something for have dealt with it.
    pub(super) fn handle_message(&mut self, server: usize, id: StreamId, bytes: &[u8], now: Instant) {
        if self.servers[server].stream().is_none() {
            return;
        }
        let before = mem::take(&mut self.changed);
        self.take_in(server, bytes, now);
        self.reconcile(now);
        if let Some(stream) = self.servers[server].stream_mut().filter(|stream| stream.id == id) {
            stream.pending = self.changed.keys().copied().collect();
            if stream.pending.is_empty() {
                self.effects.push_back(Effect::Read { stream: id });
            }
        }
        for (subscriber, changed) in before {
            self.tell([subscriber], &changed);
        }
    }
}
