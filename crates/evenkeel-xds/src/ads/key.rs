//! Where a resource is kept.

use std::sync::Arc;

use crate::resource::ResourceType;
use crate::resource::name::ResourceName;

/// The place of a resource in the cache (A47: authority, then type, then name).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ResourceKey {
    /// The index of the authority.
    pub(super) authority: usize,
    pub(super) kind: ResourceType,
    /// The canonical spelling, which is also what goes over the wire.
    pub(super) name: Arc<str>,
}

/// Whether two spellings name one resource.
pub(super) fn is_same(kind: ResourceType, one: &str, other: &str) -> bool {
    let name = |text| ResourceName::parse(kind, text);
    one == other || matches!((name(one), name(other)), (Ok(one), Ok(other)) if one == other)
}
