//! Authorities and their fallback (A47, A71).
//!
//! An authority has a list of servers in order of preference. Those up to the *active* one are in use: the active one
//! gives the resources, those above it keep trying. The active one moves down while it fails and something is missing
//! that it cannot give, and up to any server above that sends a resource.

use std::sync::Arc;

use evenkeel_core::Status;

use super::server::AdsServer;
use crate::bootstrap::ServerConfig;

/// An authority, with the servers by their index.
#[derive(Debug)]
pub(super) struct AuthorityState {
    /// `None` for names without an authority.
    pub(super) name: Option<Arc<str>>,
    servers: Vec<usize>,
    /// The position of the active server.
    active: usize,
    /// What is wrong when every server in use fails, as subscribers were told.
    pub(super) failure: Option<Status>,
}

impl AuthorityState {
    /// An authority with servers of these configs. Equal configs are one server, whichever authorities name them (FED-4).
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
            if !servers.contains(&index) {
                servers.push(index);
            }
        }
        AuthorityState { name, servers, active: 0, failure: None }
    }

    /// All servers, in use or not.
    pub(super) fn servers(&self) -> &[usize] {
        &self.servers
    }

    /// The servers in use, the active one last.
    pub(super) fn in_use(&self) -> &[usize] {
        self.servers.get(..=self.active).unwrap_or(&self.servers)
    }

    pub(super) fn is_active(&self, server: usize) -> bool {
        self.servers.get(self.active) == Some(&server)
    }

    /// What is wrong, if every server in use fails; subscribers do not hear of fewer (FB-2).
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

    /// Starts over with the first server; nobody wants anything of this authority any more.
    pub(super) fn reset(&mut self) {
        self.active = 0;
        self.failure = None;
    }

    /// Makes the next server active while the active one fails (FB-1); tells whether any did.
    pub(super) fn fall_back(&mut self, fails: impl Fn(usize) -> bool) -> bool {
        let before = self.active;
        let last = self.servers.len().saturating_sub(1);
        while self.active < last && self.in_use().last().is_some_and(|server| fails(*server)) {
            self.active = self.active.saturating_add(1);
        }
        self.active > before
    }

    /// Makes a server active that stands above the active one (FB-3); tells whether it does.
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
