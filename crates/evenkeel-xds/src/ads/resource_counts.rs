//! Numbers of resources by state (A78, A88).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::AdsClient;
use super::cache::{ResourceEntry, ResourceErrorKind};
use crate::resource::ResourceType;

/// Number of subscribed resources with the same authority, type and state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceCounts {
    /// Authority; `None` for old-style names, which metrics call `#old`.
    pub authority: Option<Arc<str>>,
    /// Type of the resources.
    pub kind: ResourceType,
    /// Cache state of the resources.
    pub state: CacheState,
    /// Number of resources, at least one.
    pub count: u64,
}

/// Cache state of a resource. *ButCached* means that an earlier version is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CacheState {
    /// There was no response for the resource yet.
    Requested,
    /// The resource does not exist on the control plane.
    DoesNotExist,
    /// The resource was accepted and is in use.
    Acked,
    /// The resource was rejected and no earlier version is cached.
    Nacked,
    /// The latest version was rejected and an earlier one is in use.
    NackedButCached,
    /// The control plane did not send the resource in time.
    Timeout,
    /// The control plane deleted the resource and it is still in use.
    DoesNotExistButCached,
    /// The control plane reported an error and no version is cached.
    ReceivedError,
    /// The control plane reported an error and an earlier version is in use.
    ReceivedErrorButCached,
}

impl CacheState {
    fn of(entry: &ResourceEntry) -> CacheState {
        match (entry.error().map(|error| error.kind), entry.cached().is_some()) {
            (None, false) => CacheState::Requested,
            (None, true) => CacheState::Acked,
            (Some(ResourceErrorKind::DoesNotExist), false) => CacheState::DoesNotExist,
            (Some(ResourceErrorKind::DoesNotExist), true) => CacheState::DoesNotExistButCached,
            (Some(ResourceErrorKind::Nacked), false) => CacheState::Nacked,
            (Some(ResourceErrorKind::Nacked), true) => CacheState::NackedButCached,
            (Some(ResourceErrorKind::ReceivedError { .. }), false) => CacheState::ReceivedError,
            (Some(ResourceErrorKind::ReceivedError { .. }), true) => CacheState::ReceivedErrorButCached,
            (Some(ResourceErrorKind::Timeout), _) => CacheState::Timeout,
        }
    }

    /// Returns the value of the label `grpc.xds.cache_state`.
    pub fn as_str(self) -> &'static str {
        match self {
            CacheState::Requested => "requested",
            CacheState::DoesNotExist => "does_not_exist",
            CacheState::Acked => "acked",
            CacheState::Nacked => "nacked",
            CacheState::NackedButCached => "nacked_but_cached",
            CacheState::Timeout => "timeout",
            CacheState::DoesNotExistButCached => "does_not_exist_but_cached",
            CacheState::ReceivedError => "received_error",
            CacheState::ReceivedErrorButCached => "received_error_but_cached",
        }
    }
}

impl AdsClient {
    /// Returns the numbers of subscribed resources. Walks the whole cache, so it suits periodic metrics only.
    pub fn resource_counts(&self) -> Vec<ResourceCounts> {
        let mut counts = BTreeMap::<_, u64>::new();
        for (key, entry) in self.cache.iter().filter(|(_, entry)| entry.is_watched()) {
            let count = counts.entry((key.authority, key.kind, CacheState::of(entry))).or_default();
            *count = count.saturating_add(1);
        }
        let census = |((authority, kind, state), count): ((usize, _, _), _)| {
            let authority = self.authorities.get(authority).and_then(|authority| authority.name.clone());
            ResourceCounts { authority, kind, state, count }
        };
        counts.into_iter().map(census).collect()
    }
}
