//! Authorities and their fallback (A47, A71).
//!
//! An authority has a list of servers in order of preference. The servers up to the *active* one are in use. The active
//! server delivers the resources; the servers above it keep reconnecting. A failing active server is replaced by the
//! next one while a watched resource is missing. A server above the active one becomes active when it sends a resource.

use std::sync::Arc;

use evenkeel_core::Status;

use super::server::AdsServer;
use crate::bootstrap::ServerConfig;

/// Authority with the indexes of its servers in the client's list.
#[derive(Debug)]
pub(super) struct AuthorityState {
    /// Authority of the resource names. `None` for old-style names.
    pub(super) name: Option<Arc<str>>,
    servers: Vec<usize>,
    /// Position of the active server in `servers`.
    active: usize,
    /// Combined failure as last reported to subscribers, if every server in use fails.
    pub(super) failure: Option<Status>,
}

impl AuthorityState {
    /// Creates an authority with servers of these configs. Authorities share the servers of equal configs (FED-4).
    pub(super) fn new(
        name: Option<Arc<str>>,
        configs: &[Arc<ServerConfig>],
        all: &mut Vec<AdsServer>,
    ) -> AuthorityState {
        let mut servers = Vec::new();
        for config in configs {
            let known = all.iter().position(|server| server.config == *config);
            let index = known.unwrap_or_else(|| {
                all.push(AdsServer::new(Arc::clone(config)));
                all.len().saturating_sub(1)
            });
            // A server that is listed twice is no fallback for itself.
            if !servers.contains(&index) {
                servers.push(index);
            }
        }
        AuthorityState { name, servers, active: 0, failure: None }
    }

    /// Returns the indexes of all servers, in use or not.
    pub(super) fn servers(&self) -> &[usize] {
        &self.servers
    }

    /// Returns the indexes of the servers in use, with the active one last.
    pub(super) fn in_use(&self) -> &[usize] {
        // The servers above the active one stay in use: they are still retried (FB-2).
        self.servers.get(..=self.active).unwrap_or(&self.servers)
    }

    pub(super) fn is_active(&self, server: usize) -> bool {
        self.servers.get(self.active) == Some(&server)
    }

    /// Returns the combined failure if every server in use fails. Subscribers are not notified of fewer failures
    /// (FB-2).
    pub(super) fn combined_failure(&self, servers: &[AdsServer]) -> Option<Status> {
        if self.servers.is_empty() {
            return Some(Status::unavailable("the bootstrap names no xDS server"));
        }
        let failures = self.in_use().iter().map(|server| servers[*server].failure.as_ref());
        let failures: Vec<&Status> = failures.collect::<Option<_>>()?;
        match failures.as_slice() {
            [one] => Some((*one).clone()),
            several => {
                let texts: Vec<&str> = several.iter().map(|status| status.message()).collect();
                Some(Status::unavailable(texts.join("; ")))
            }
        }
    }

    /// Makes the first server active again. Called when no resource of this authority has subscribers.
    pub(super) fn reset(&mut self) {
        self.active = 0;
        self.failure = None;
    }

    /// Moves on to the next server while the active one fails (FB-1). Returns true if the active server changed.
    pub(super) fn fall_back(&mut self, fails: impl Fn(usize) -> bool) -> bool {
        let before = self.active;
        let last = self.servers.len().saturating_sub(1);
        while self.active < last && self.in_use().last().is_some_and(|server| fails(*server)) {
            self.active = self.active.saturating_add(1);
        }
        self.active > before
    }

    /// Makes a server above the active one active again (FB-3). Returns true if the active server changed.
    pub(super) fn return_to(&mut self, server: usize) -> bool {
        match self.in_use().iter().position(|one| *one == server) {
            Some(position) if position < self.active => {
                self.active = position;
                true
            }
            _ => false,
        }
    }
}
