//! Cache entry of one resource.
//!
//! An entry holds the cached resource, if any, and the last error since it was accepted, if any. The states of A88
//! follow from the two:
//!
//! | state | resource | error |
//! |---|---|---|
//! | REQUESTED | none | none |
//! | ACKED | yes | none |
//! | DOES_NOT_EXIST, NACKED, RECEIVED_ERROR | optional | yes |
//! | TIMEOUT | none | yes |
//!
//! A deleted resource that stays in use for its grace period is in the state DOES_NOT_EXIST and has a deadline.
//!
//! Connection failures are not part of the entry. They belong to the authority, as they concern all its resources.

use std::collections::BTreeSet;

use evenkeel_core::{Instant, Status};
use evenkeel_proto::prost_types::Any;

use super::{ResourceState, SubscriberId};
use crate::resource::Resource;

/// State of one subscribed resource.
#[derive(Debug, Default)]
pub(super) struct ResourceEntry {
    /// Subscribers of the resource. An entry without subscribers stays until the servers are unsubscribed from it.
    pub(super) subscribers: BTreeSet<SubscriberId>,
    cached: Option<CachedResource>,
    error: Option<ResourceError>,
    /// End of the grace period. Set while a deleted resource stays in use.
    held_until: Option<Instant>,
}

/// Resource in use, as received and as parsed.
#[derive(Debug)]
pub(super) struct CachedResource {
    pub(super) resource: Resource,
    /// Resource as received, for CSDS and to detect that an update contains no change.
    pub(super) raw: Any,
    pub(super) version: String,
    pub(super) at: Instant,
    /// Index of the server that sent the resource.
    pub(super) from: usize,
}

/// Last error of a resource.
#[derive(Debug)]
pub(super) struct ResourceError {
    pub(super) kind: ResourceErrorKind,
    pub(super) status: Status,
    /// Rejected version. Empty if the error is not a rejection.
    pub(super) version: String,
    pub(super) at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResourceErrorKind {
    DoesNotExist,
    Nacked,
    /// The control plane reported an error for the resource (TP3).
    ReceivedError {
        /// True if the resource is absent or access is denied. False if the error is transient.
        about_data: bool,
    },
    Timeout,
}

/// Effect of a received resource on the cache entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheChange {
    None,
    /// The resource is unchanged and its error is cleared.
    Recovered,
    Resource,
}

/// Retention of the cached resource after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheRetention {
    Keep,
    /// Keep the resource until this time. A deadline that is already set is not extended.
    Hold {
        until: Instant,
    },
    Drop,
}

impl ResourceEntry {
    /// Stores a received resource and clears the error. Equal bytes from the same server are the same resource, which
    /// then keeps its allocation (ADS-10).
    pub(super) fn accept(&mut self, new: CachedResource) -> CacheChange {
        // Also for equal bytes: the next valid update clears the error (CSDS-4).
        let recovered = self.error.take().is_some();
        self.held_until = None;
        match &mut self.cached {
            // The same bytes from another server may parse to another result, since features and the LRS server differ.
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

    /// Records an error. Returns true if the state changed for subscribers.
    pub(super) fn record_error(&mut self, error: ResourceError, old: CacheRetention) -> bool {
        let dropped = old == CacheRetention::Drop && self.cached.take().is_some();
        self.held_until = match old {
            // State of the world repeats a deletion with every response, which must not extend the grace period.
            CacheRetention::Hold { until } => self.cached.as_ref().map(|_| self.held_until.unwrap_or(until)),
            // A rejected version proves that the resource exists again, so the deletion is void.
            CacheRetention::Keep if error.kind == ResourceErrorKind::Nacked => None,
            CacheRetention::Keep => self.held_until,
            CacheRetention::Drop => None,
        };
        let repeated =
            self.error.as_ref().is_some_and(|old| old.kind == error.kind && old.status == error.status);
        self.error = Some(error);
        dropped || !repeated
    }

    /// Returns the state for subscribers. `failure` is the combined failure of the authority's servers (A88).
    pub(super) fn state(&self, failure: Option<&Status>) -> ResourceState {
        // An error of the resource takes precedence over a failure of the servers.
        let error = self.error.as_ref().map(|error| &error.status).or(failure).cloned();
        match &self.cached {
            Some(cached) => ResourceState { value: Some(Ok(cached.resource.clone())), ambient: error },
            // Without a cached resource the error takes its place and is not ambient (DE-1).
            None => ResourceState { value: error.map(Err), ambient: None },
        }
    }

    pub(super) fn cached(&self) -> Option<&CachedResource> {
        self.cached.as_ref()
    }

    pub(super) fn error(&self) -> Option<&ResourceError> {
        self.error.as_ref()
    }

    /// Returns the end of the grace period if the resource was deleted and is still in use.
    pub(super) fn held_until(&self) -> Option<Instant> {
        self.held_until
    }

    pub(super) fn is_watched(&self) -> bool {
        !self.subscribers.is_empty()
    }

    /// Returns true in the state REQUESTED: there was no response and no error yet.
    pub(super) fn is_requested(&self) -> bool {
        self.cached.is_none() && self.error.is_none()
    }

    /// Returns true if the resource is neither cached nor known to be absent (A71).
    pub(super) fn is_missing(&self) -> bool {
        // A rejected or late resource may exist on the next server, so it is missing (FB-1).
        let known_absent = self.error.as_ref().is_some_and(|error| {
            matches!(
                error.kind,
                ResourceErrorKind::DoesNotExist | ResourceErrorKind::ReceivedError { about_data: true }
            )
        });
        self.cached.is_none() && !known_absent
    }

    /// Returns true if the control plane deleted the resource and it stays in use without a deadline.
    pub(super) fn is_deletion_ignored(&self) -> bool {
        self.cached.is_some()
            && self.held_until.is_none()
            && self.error.as_ref().is_some_and(|error| error.kind == ResourceErrorKind::DoesNotExist)
    }
}
