//! Cache keys of resources.

use std::sync::Arc;

use crate::resource::ResourceType;
use crate::resource::name::ResourceName;

/// Key of a resource in the cache. The order is authority, type, name (A47).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ResourceKey {
    /// Index of the authority in the client's list.
    pub(super) authority: usize,
    pub(super) kind: ResourceType,
    /// Canonical name, which is also the name in requests.
    pub(super) name: Arc<str>,
}

/// Returns true if two spellings have the same canonical name.
pub(super) fn is_same(kind: ResourceType, one: &str, other: &str) -> bool {
    let name = |text| ResourceName::parse(kind, text);
    one == other || matches!((name(one), name(other)), (Ok(one), Ok(other)) if one == other)
}
