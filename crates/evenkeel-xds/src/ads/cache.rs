//! What is known about one resource.
//!
//! An entry holds the resource in use, if there is one, and the last thing that went wrong with it, if anything did
//! since. The states of A88 follow from the two:
//!
//! | state | resource | trouble |
//! |---|---|---|
//! | REQUESTED | none | none |
//! | ACKED | yes | none |
//! | DOES_NOT_EXIST, NACKED, RECEIVED_ERROR | perhaps kept | yes |
//! | TIMEOUT | none | yes |
//!
//! A deleted resource that stays in use for its grace period is in the state DOES_NOT_EXIST and has a deadline.
//!
//! That no control plane can be reached is not a matter of one resource: it stands with the authority.

use std::collections::BTreeSet;

use evenkeel_core::{Instant, Status};
use evenkeel_proto::prost_types::Any;

use super::{ResourceState, SubscriberId};
use crate::resource::Resource;

/// One resource that somebody wants.
#[derive(Debug, Default)]
pub(super) struct ResourceEntry {
    /// Who wants it. An entry that nobody wants stays until the control plane has been told.
    pub(super) subscribers: BTreeSet<SubscriberId>,
    cached: Option<CachedResource>,
    error: Option<ResourceError>,
    /// End of the grace period of a resource that was deleted and is in use.
    held_until: Option<Instant>,
}

/// A resource in use.
#[derive(Debug)]
pub(super) struct CachedResource {
    pub(super) resource: Resource,
    /// As it was received, for CSDS and to recognise it when it comes again.
    pub(super) raw: Any,
    pub(super) version: String,
    pub(super) at: Instant,
    /// The index of the server that sent it.
    pub(super) from: usize,
}

/// What went wrong.
#[derive(Debug)]
pub(super) struct ResourceError {
    pub(super) kind: ResourceErrorKind,
    pub(super) status: Status,
    /// The version that was rejected, if there is one.
    pub(super) version: String,
    pub(super) at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResourceErrorKind {
    DoesNotExist,
    Nacked,
    /// The control plane said why it does not send the resource (TP3).
    ReceivedError {
        /// The resource is absent or not for us, as opposed to not to be had at the moment.
        about_data: bool,
    },
    Timeout,
}

/// What a resource that came changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheChange {
    None,
    /// It is the one in use, and the trouble with it is over.
    Recovered,
    Resource,
}

/// Whether a resource in use survives trouble with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheRetention {
    Keep,
    /// It stays in use until then, unless a deadline was set before.
    Hold {
        until: Instant,
    },
    Drop,
}

impl ResourceEntry {
    /// Takes in a resource. The same bytes from the same server are the same resource, which then keeps its identity
    /// (ADS-10).
    pub(super) fn accept(&mut self, new: CachedResource) -> CacheChange {
        let recovered = self.error.take().is_some();
        self.held_until = None;
        match &mut self.cached {
            Some(old) if old.raw == new.raw && old.from == new.from => {
                old.version = new.version;
                old.at = new.at;
                if recovered { CacheChange::Recovered } else { CacheChange::None }
            }
            cached => {
                *cached = Some(new);
                CacheChange::Resource
            }
        }
    }

    /// Takes in trouble; tells whether that changes anything.
    pub(super) fn record_error(&mut self, error: ResourceError, old: CacheRetention) -> bool {
        let dropped = old == CacheRetention::Drop && self.cached.take().is_some();
        self.held_until = match old {
            // State of the world repeats a deletion with every response, which must not extend the grace period.
            CacheRetention::Hold { until } => self.cached.as_ref().map(|_| self.held_until.unwrap_or(until)),
            // An invalid version is a version, so it ends the deletion.
            CacheRetention::Keep if error.kind == ResourceErrorKind::Nacked => None,
            CacheRetention::Keep => self.held_until,
            CacheRetention::Drop => None,
        };
        let repeated =
            self.error.as_ref().is_some_and(|old| old.kind == error.kind && old.status == error.status);
        self.error = Some(error);
        dropped || !repeated
    }

    /// What a subscriber sees while the servers stand as `failure` says (A88).
    pub(super) fn state(&self, failure: Option<&Status>) -> ResourceState {
        let error = self.error.as_ref().map(|error| &error.status).or(failure).cloned();
        match &self.cached {
            Some(cached) => ResourceState { value: Some(Ok(cached.resource.clone())), ambient: error },
            None => ResourceState { value: error.map(Err), ambient: None },
        }
    }

    pub(super) fn cached(&self) -> Option<&CachedResource> {
        self.cached.as_ref()
    }

    pub(super) fn error(&self) -> Option<&ResourceError> {
        self.error.as_ref()
    }

    /// Returns the end of the grace period, if the resource was deleted and is in use for it.
    pub(super) fn held_until(&self) -> Option<Instant> {
        self.held_until
    }

    pub(super) fn is_watched(&self) -> bool {
        !self.subscribers.is_empty()
    }

    /// Whether nothing at all was heard about it: the state REQUESTED.
    pub(super) fn is_requested(&self) -> bool {
        self.cached.is_none() && self.error.is_none()
    }

    /// Whether there is neither a resource nor the knowledge that there is none (A71).
    pub(super) fn is_missing(&self) -> bool {
        let known_absent = self.error.as_ref().is_some_and(|error| {
            matches!(
                error.kind,
                ResourceErrorKind::DoesNotExist | ResourceErrorKind::ReceivedError { about_data: true }
            )
        });
        self.cached.is_none() && !known_absent
    }

    /// Returns true if the control plane deleted the resource and it stays in use without a limit.
    pub(super) fn is_deletion_ignored(&self) -> bool {
        self.cached.is_some()
            && self.held_until.is_none()
            && self.error.as_ref().is_some_and(|error| error.kind == ResourceErrorKind::DoesNotExist)
    }
}
