//! The pass that every call ends with: which servers are in use, which streams open and close, what there is to say on
//! them, what can be forgotten, and who hears of failures. It looks at what is, not at what happened.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use evenkeel_core::Instant;

use super::cache::Entry;
use super::key::Key;
use super::server::Link;
use super::stream::{Stream, Wanted};
use super::{Changed, Client, Effect, Request, StreamId, Variant};
use crate::resource::ResourceType;

impl Client {
    pub(super) fn reconcile(&mut self, now: Instant) {
        let mut used = vec![false; self.servers.len()];
        for authority in 0..self.authorities.len() {
            self.reconcile_authority(authority, &mut used);
        }
        for (server, used) in used.into_iter().enumerate() {
            let idle = matches!(self.servers[server].link, Link::Idle);
            if used && idle {
                self.open(server, now);
            } else if !used && !idle {
                let stream = self.servers[server].stream_id();
                self.effects.extend(stream.map(|stream| Effect::Close { stream }));
                self.servers[server].rest();
            }
            self.speak(server);
        }
        self.forget();
        let cache = &self.cache;
        self.deleted.retain(|key| cache.get(key).and_then(Entry::held_until).is_some());
        for authority in 0..self.authorities.len() {
            self.report(authority);
        }
    }

    /// Chooses the servers of an authority (A71), and marks those that it uses.
    fn reconcile_authority(&mut self, index: usize, used: &mut [bool]) {
        if !self.is_in_use(index) {
            self.authorities[index].reset();
            return;
        }
        let failing: Vec<bool> = self.servers.iter().map(|server| server.failure.is_some()).collect();
        let is_missing = |(_, entry): (&Key, &Entry)| entry.is_wanted() && entry.is_missing();
        if failing.contains(&true)
            && self.entries(index).any(is_missing)
            && self.authorities[index].fall_back(|server| failing[server])
        {
            for kind in ResourceType::ALL {
                self.touch(index, kind);
            }
        }
        for server in self.authorities[index].in_use() {
            used[*server] = true;
        }
    }

    pub(super) fn open(&mut self, server: usize, now: Instant) {
        let stream = StreamId(self.next_stream);
        self.next_stream = self.next_stream.saturating_add(1);
        let variant = self.variant;
        let until = now + self.backoff.min_connect_timeout;
        let server = &mut self.servers[server];
        server.opening(stream, now, until);
        self.effects.push_back(Effect::Open { stream, server: Arc::clone(&server.config), variant });
    }

    /// Sends the next request of a stream, if there is something to say.
    fn speak(&mut self, server: usize) {
        while let Some(kind) = self.servers[server].stream().and_then(Stream::due) {
            if self.speak_of(server, kind) {
                return;
            }
        }
    }

    fn speak_of(&mut self, index: usize, kind: ResourceType) -> bool {
        let request = match self.variant {
            Variant::StateOfTheWorld => None,
            Variant::Delta => self.servers[index].stream_mut().and_then(|stream| stream.delta_answer(kind)),
        };
        let Some(request) = request.or_else(|| self.names_request(index, kind)) else { return false };
        let Some(stream) = self.servers[index].stream_id() else { return false };
        self.effects.push_back(Effect::Send { stream, request: Box::new(request) });
        true
    }

    /// What there is to say about the names of a type.
    fn names_request(&mut self, index: usize, kind: ResourceType) -> Option<Request> {
        let names = self.wanted(index, kind);
        let is_first = !self.servers[index].stream()?.has_asked_for(kind);
        let mut versions = BTreeMap::new();
        if is_first {
            let came_from_here =
                |key: &Key| self.cache.get(key).and_then(Entry::good).is_some_and(|good| good.from == index);
            // A version that nothing is left of would keep the server from sending anything.
            if !names.iter().any(came_from_here) {
                self.servers[index].versions.remove(&kind);
            }
            versions = self.versions(index, &names);
        }
        let is_unanswered = |key: &&Key| self.cache.get(key).is_none_or(Entry::is_unanswered);
        let unanswered = names.iter().filter(is_unanswered).cloned().collect();
        let server = &mut self.servers[index];
        let version = server.versions.get(&kind).cloned().unwrap_or_default();
        let stream = server.stream_mut()?;
        let wanted = Wanted { node: &self.bootstrap.node, names, unanswered, version, versions };
        match self.variant {
            Variant::StateOfTheWorld => stream.sotw(kind, wanted),
            Variant::Delta => stream.delta_change(kind, wanted),
        }
    }

    /// The versions of what is in use, as far as this server sent it. What there is trouble with is left out: it must come
    /// again, be it unchanged, for the trouble to end.
    fn versions(&self, server: usize, names: &BTreeSet<Key>) -> BTreeMap<String, String> {
        let mut versions = BTreeMap::new();
        for key in names {
            let entry = self.cache.get(key).filter(|entry| entry.trouble().is_none());
            if let Some(good) = entry.and_then(Entry::good)
                && good.from == server
                && !good.version.is_empty()
            {
                versions.insert(key.name.as_ref().to_owned(), good.version.clone());
            }
        }
        versions
    }

    /// What a server should know that we want.
    fn wanted(&self, server: usize, kind: ResourceType) -> BTreeSet<Key> {
        let authorities = self.authorities.iter().enumerate();
        let here = authorities.filter(|(_, authority)| authority.in_use().contains(&server));
        let entries = here.flat_map(|(authority, _)| self.entries_of(authority, kind));
        entries.filter(|(_, entry)| entry.is_wanted()).map(|(key, _)| key.clone()).collect()
    }

    /// Drops what nobody wants, once every server knows: as long as one does not, wanting it again changes nothing on
    /// the wire, and so nothing would be sent again (fault 17).
    fn forget(&mut self) {
        let is_held = |key: &Key| {
            self.servers.iter().any(|server| server.stream().is_some_and(|stream| stream.holds(key)))
        };
        let is_wanted = |key: &Key| self.cache.get(key).is_some_and(Entry::is_wanted);
        let (held, settled): (BTreeSet<Key>, _) = mem::take(&mut self.orphans)
            .into_iter()
            .filter(|key| !is_wanted(key))
            .partition(|key| is_held(key));
        self.orphans = held;
        for key in settled {
            let Some(entry) = self.cache.remove(&key) else { continue };
            if let Some(good) = entry.good().filter(|_| entry.outlives_deletion()) {
                let text = self.subject(good.from, &key).deletion_over();
                self.effects.push_back(Effect::Info(text));
            }
        }
    }

    /// Tells the subscribers of an authority when every server in use fails, and when that is over.
    fn report(&mut self, index: usize) {
        let authority = &self.authorities[index];
        let failure = self.is_in_use(index).then(|| authority.join(&self.servers)).flatten();
        if failure == authority.failure {
            return;
        }
        self.authorities[index].failure = failure;
        let mut changed = BTreeSet::new();
        for (_, entry) in self.entries(index) {
            if entry.trouble().is_none() {
                changed.extend(&entry.subscribers);
            }
        }
        self.tell(changed, &Changed::Anything);
    }
}
