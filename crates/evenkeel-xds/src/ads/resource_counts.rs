//! How many resources there are in which state (A78, A88).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::AdsClient;
use super::cache::{ResourceEntry, ResourceErrorKind};
use crate::resource::ResourceType;

/// Resources that somebody wants and that are alike in authority, type and state; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceCounts {
    /// The authority; `None` for names without one, which metrics call `#old`.
    pub authority: Option<Arc<str>>,
    /// The type.
    pub kind: ResourceType,
    /// The state.
    pub state: CacheState,
    /// How many.
    pub count: u64,
}

/// How a resource stands. *Cached* means that an earlier version of it is in use all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CacheState {
    /// Nothing was heard of it yet.
    Requested,
    /// The control plane has none.
    DoesNotExist,
    /// It is in use.
    Acked,
    /// What the control plane sent cannot be used.
    Nacked,
    /// What the control plane sent last cannot be used.
    NackedButCached,
    /// The control plane did not send it in time.
    Timeout,
    /// The control plane deleted it.
    DoesNotExistButCached,
    /// The control plane said why it does not send it.
    ReceivedError,
    /// The control plane said why it does not send it any more.
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

    /// The value of the label `grpc.xds.cache_state`.
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
    /// The resources that somebody wants, counted. Looks at all of them: meant for now and then.
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
