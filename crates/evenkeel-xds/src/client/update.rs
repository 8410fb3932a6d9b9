//! What a response says about resources (A46, A53, A88).

use std::collections::BTreeSet;

use evenkeel_core::Instant;
use evenkeel_proto::envoy::service::discovery::v3::ResourceError;

use super::cache::{Entry, Good, News, Old, Trouble, TroubleKind};
use super::key::Key;
use super::response::{Item, Received, Response, Spoiled};
use super::server::{AttemptFailure, Topic};
use super::words::Subject;
use super::{Changed, Client, Effect, Variant, words};
use crate::resource::ResourceType;
use crate::text::quoted_whole;

impl Client {
    pub(super) fn take_in(&mut self, server: usize, bytes: &[u8], now: Instant) {
        let limit = self.limits.response_bytes;
        if bytes.len() > limit {
            let why = format!("sent a response of {} bytes; at most {limit} are accepted", bytes.len());
            return self.hang_up(server, &why, now);
        }
        let response = match Response::decode(self.variant, bytes) {
            Ok(response) => response,
            Err(error) => return self.hang_up(server, &format!("sent what is no response: {error}"), now),
        };
        self.servers[server].recover();
        let Some(stream) = self.servers[server].stream_mut() else { return };
        stream.responded = true;
        let kind = ResourceType::of_type_url(&response.type_url);
        // Whether it is right cannot be said: it is neither accepted nor rejected, as what was not asked for.
        let Some(kind) = kind.filter(|kind| stream.has_asked_for(*kind)) else {
            let text = format!(
                "xDS server {:?} sent resources of type {}, which was not asked for",
                self.servers[server].config.uri,
                quoted_whole(&response.type_url)
            );
            return self.warn(server, Topic::UnknownType, text);
        };
        let Response { version, nonce, .. } = &response;
        let (version, nonce) = (version.clone(), nonce.clone());
        let verdict = self.apply(server, kind, response, now);
        if let Err(why) = &verdict {
            let node = words::node_suffix(&self.bootstrap.node.id);
            let uri = &self.servers[server].config.uri;
            let text = format!("xDS server {uri:?} sent what cannot be used as {kind}: {why}{node}");
            self.warn(server, Topic::Rejected(kind), text);
        } else {
            self.servers[server].accepted(kind, version);
        }
        if let Some(stream) = self.servers[server].stream_mut() {
            stream.answer(kind, nonce, verdict);
        }
    }

    /// The server speaks nonsense; whatever it said before, this is a failure.
    pub(super) fn hang_up(&mut self, server: usize, why: &str, now: Instant) {
        let stream = self.servers[server].stream_id();
        self.effects.extend(stream.map(|stream| Effect::Close { stream }));
        self.fail(server, why, AttemptFailure::NoResponse, now);
    }

    fn warn(&mut self, server: usize, topic: Topic, text: String) {
        if self.servers[server].is_news(topic, &text) {
            self.effects.push_back(Effect::Warn(text));
        }
    }

    /// Uses what can be used (A46); `Err` names what cannot.
    fn apply(
        &mut self,
        server: usize,
        kind: ResourceType,
        response: Response,
        now: Instant,
    ) -> Result<(), String> {
        let count = response.items.len();
        if count > self.limits.resources {
            return Err(format!("{count} resources; at most {} are accepted", self.limits.resources));
        }
        let Sorted { good, spoiled, mut mentioned, problems, all_named } =
            self.sort(server, kind, response.items);
        let wanted = |(key, _): &&(Key, Received)| self.cache.get(key).is_some_and(Entry::is_wanted);
        let authorities: BTreeSet<usize> = good.iter().filter(wanted).map(|(key, _)| key.authority).collect();
        for authority in authorities {
            self.return_to(authority, server, now);
        }
        for (key, received) in good {
            self.accept(server, &key, received, now);
        }
        for (key, what) in spoiled {
            self.spoil(server, &key, what, now);
        }
        for error in &response.errors {
            self.receive_error(server, kind, error, now);
        }
        let named = response.errors.iter().filter_map(|error| error.resource_name.as_ref());
        mentioned.extend(named.filter_map(|name| self.key(kind, &name.name).ok()));
        let removed = match self.variant {
            Variant::Delta => response.removed.iter().filter_map(|name| self.key(kind, name).ok()).collect(),
            // A resource whose name cannot be read may be the one that is missing.
            Variant::StateOfTheWorld if kind.is_complete_in_sotw() && all_named => self.held(server, kind),
            Variant::StateOfTheWorld => Vec::new(),
        };
        for key in removed.iter().filter(|key| !mentioned.contains(*key)) {
            self.remove(server, key, now);
        }
        let cache = &self.cache;
        if let Some(stream) = self.servers[server].stream_mut() {
            stream.timers.retain(|key, _| cache.get(key).is_some_and(Entry::is_unanswered));
        }
        if problems.is_empty() { Ok(()) } else { Err(words::nack(&problems, self.limits.error_bytes)) }
    }

    /// Parses every resource of a response.
    fn sort(&self, server: usize, kind: ResourceType, items: Vec<Item>) -> Sorted {
        let config = &self.servers[server].config;
        let mut sorted = Sorted { all_named: true, ..Sorted::default() };
        for (i, item) in items.into_iter().enumerate() {
            let known = item.name_of_parts(kind);
            let known = known.and_then(|name| self.cache.get(&self.key(kind, name).ok()?)?.good());
            // What another server sent may be read in another way.
            let item = item.parse(&*self.parser, kind, config, known.filter(|good| good.from == server));
            let name = match &item {
                Ok(received) => Some(received.name.as_str()),
                Err(spoiled) => spoiled.name.as_deref(),
            };
            sorted.all_named &= name.is_some();
            let label = name.map_or_else(|| format!("resource {i}"), quoted_whole);
            // A name without a key cannot have been asked for.
            let key = name.and_then(|name| self.key(kind, name).ok());
            let is_new = key.as_ref().is_none_or(|key| sorted.mentioned.insert(key.clone()));
            match (item, key) {
                (Ok(_), Some(_)) if !is_new => {
                    sorted.problems.push((label, "stands twice in the response".to_owned()));
                }
                (Ok(received), Some(key)) => sorted.good.push((key, received)),
                (Ok(_), None) => {}
                (Err(spoiled), key) => {
                    sorted.problems.push((label, spoiled.why.clone()));
                    sorted.spoiled.extend(key.filter(|_| is_new).map(|key| (key, spoiled)));
                }
            }
        }
        sorted
    }

    /// A resource from a server above the active one makes that active again (FB-3).
    fn return_to(&mut self, authority: usize, server: usize, now: Instant) {
        if !self.authorities[authority].return_to(server) {
            return;
        }
        for kind in ResourceType::ALL {
            self.touch(authority, kind);
            let stream = self.servers[server].stream();
            let written = stream.into_iter().flat_map(|stream| stream.written(kind));
            let here = written.filter(|key| key.authority == authority).cloned().collect();
            self.await_all(server, here, now);
        }
    }

    /// The resources of a type that are in use and that the server should send.
    fn held(&self, server: usize, kind: ResourceType) -> Vec<Key> {
        let written = self.servers[server].stream().into_iter().flat_map(|stream| stream.written(kind));
        let in_use = |key: &&Key| self.cache.get(*key).is_some_and(|entry| entry.good().is_some());
        written.filter(in_use).cloned().collect()
    }

    fn accept(&mut self, server: usize, key: &Key, received: Received, now: Instant) {
        let Received { resource, raw, version, warnings, .. } = received;
        if !self.counts(server, key) {
            return;
        }
        let valid = self.servers[server].tally.valid.entry(key.kind).or_default();
        *valid = valid.saturating_add(1);
        let good = Good { resource, raw, version, at: now, from: server };
        let mut news = News::None;
        self.change(server, key, |entry| {
            news = entry.accept(good);
            news != News::None
        });
        // In one line: a control plane that sets a field for another client sets it in a hundred places.
        if news == News::Resource && !warnings.is_empty() {
            let text = self.subject(server, key).warning(&warnings.join("; "));
            self.effects.push_back(Effect::Warn(text));
        }
    }

    /// A resource cannot be used (DE-2).
    fn spoil(&mut self, server: usize, key: &Key, what: Spoiled, now: Instant) {
        if self.counts(server, key) {
            let invalid = self.servers[server].tally.invalid.entry(key.kind).or_default();
            *invalid = invalid.saturating_add(1);
            let status = self.subject(server, key).spoiled(&what.why);
            let old = self.after_data_error(server);
            let kind = TroubleKind::Nacked;
            self.trouble(server, key, Trouble { kind, status, version: what.version, at: now }, old);
        }
    }

    /// A server says why it does not send a resource (TP3).
    fn receive_error(&mut self, server: usize, kind: ResourceType, error: &ResourceError, now: Instant) {
        const NOT_FOUND: i32 = 5;
        const PERMISSION_DENIED: i32 = 7;
        let (Some(name), Some(detail)) = (&error.resource_name, &error.error_detail) else { return };
        let Ok(key) = self.key(kind, &name.name) else { return };
        if detail.code == 0 || !self.counts(server, &key) {
            return;
        }
        let about_data = matches!(detail.code, NOT_FOUND | PERMISSION_DENIED);
        let old = if about_data { self.after_data_error(server) } else { Old::Keep };
        let status = self.subject(server, &key).reported(detail.code, &detail.message);
        let kind = TroubleKind::ReceivedError { about_data };
        self.trouble(server, &key, Trouble { kind, status, version: String::new(), at: now }, old);
    }

    /// A server deleted a resource. By default it is gone after the grace period (A53); it is kept if the bootstrap says so,
    /// or asks for A88 without asking to fail.
    fn remove(&mut self, server: usize, key: &Key, now: Instant) {
        if !self.counts(server, key) {
            return;
        }
        let features = self.servers[server].config.features;
        let keeps = features.ignore_resource_deletion || features.resource_timer_is_transient_error;
        let old = if keeps { self.after_data_error(server) } else { self.after_deletion(server, key, now) };
        let subject = self.subject(server, key);
        let status = match old {
            Old::Hold { .. } => subject.removed_and_held(self.deletion_grace),
            Old::Keep | Old::Drop => subject.removed(),
        };
        let kind = TroubleKind::DoesNotExist;
        self.trouble(server, key, Trouble { kind, status, version: String::new(), at: now }, old);
        if matches!(old, Old::Hold { .. }) {
            self.deleted.insert(key.clone());
        }
    }

    /// Returns the fate of a deleted resource where deletions count.
    ///
    /// A resource that another one names is held for the grace period: istiod deletes a cluster some milliseconds before it
    /// moves the routes away from it. Only the target names a listener, so there is no update to wait for. A bootstrap with
    /// `fail_on_data_errors` asks for failures at once (A88).
    fn after_deletion(&self, server: usize, key: &Key, now: Instant) -> Old {
        let is_in_use = self.cache.get(key).is_some_and(|entry| entry.good().is_some());
        let fails_at_once = !is_in_use
            || self.servers[server].config.features.fail_on_data_errors
            || key.kind == ResourceType::Listener
            || self.deletion_grace.is_zero();
        if fails_at_once { Old::Drop } else { Old::Hold { until: now + self.deletion_grace } }
    }

    /// Drops the deleted resources whose grace period has ended.
    pub(super) fn expire_deleted(&mut self, now: Instant) {
        let due = |key: &&Key| {
            let until = self.cache.get(*key).and_then(Entry::held_until);
            until.is_some_and(|until| until <= now)
        };
        let due: Vec<Key> = self.deleted.iter().filter(due).cloned().collect();
        for key in due {
            let Some(entry) = self.cache.get(&key) else { continue };
            let (is_wanted, at) = (entry.is_wanted(), entry.trouble().map_or(now, |trouble| trouble.at));
            let Some(server) = entry.good().map(|good| good.from) else { continue };
            let subject = self.subject(server, &key);
            let (status, text) = (subject.removed(), subject.grace_over(self.deletion_grace));
            let trouble = Trouble { kind: TroubleKind::DoesNotExist, status, version: String::new(), at };
            self.trouble(server, &key, trouble, Old::Drop);
            if is_wanted {
                self.effects.push_back(Effect::Warn(text));
            }
        }
    }

    /// Whether what this server says about a resource counts: it was asked for, and no better server is active.
    fn counts(&self, server: usize, key: &Key) -> bool {
        self.cache.contains_key(key) && self.authorities[key.authority].is_active(server)
    }

    fn after_data_error(&self, server: usize) -> Old {
        if self.servers[server].config.features.fail_on_data_errors { Old::Drop } else { Old::Keep }
    }

    pub(super) fn trouble(&mut self, server: usize, key: &Key, trouble: Trouble, old: Old) {
        self.change(server, key, |entry| entry.suffer(trouble, old));
    }

    /// Changes an entry and marks whom that concerns. Operators hear when a deletion is ignored, and when that ends (DE-3).
    fn change(&mut self, server: usize, key: &Key, change: impl FnOnce(&mut Entry) -> bool) {
        let Some(entry) = self.cache.get_mut(key) else { return };
        let before = entry.outlives_deletion();
        let told = if change(entry) { entry.subscribers.clone() } else { BTreeSet::new() };
        let after = entry.outlives_deletion();
        self.tell(told, &Changed::of(key));
        if before != after {
            let subject = self.subject(server, key);
            let effect = if after {
                Effect::Warn(subject.deletion_ignored())
            } else {
                Effect::Info(subject.deletion_over())
            };
            self.effects.push_back(effect);
        }
    }

    pub(super) fn subject<'a>(&'a self, server: usize, key: &'a Key) -> Subject<'a> {
        Subject {
            kind: key.kind,
            name: &key.name,
            server: &self.servers[server].config,
            node: &self.bootstrap.node.id,
            bytes: self.limits.error_bytes,
        }
    }
}

/// The resources of a response, by what can be done with them.
#[derive(Default)]
struct Sorted {
    good: Vec<(Key, Received)>,
    spoiled: Vec<(Key, Spoiled)>,
    mentioned: BTreeSet<Key>,
    /// What a NACK lists: name or index, and the reason.
    problems: Vec<(String, String)>,
    all_named: bool,
}
