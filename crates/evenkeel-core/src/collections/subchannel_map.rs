//! Values by subchannel, for pickers and drivers.

use std::fmt;

use crate::SubchannelId;
use crate::collections::persistent_vec::PersistentVec;

/// A map from subchannels to values.
///
/// It is meant to be kept in snapshots: a clone is cheap, and a change to a clone does not affect the original.
///
/// Each value belongs to one [`SubchannelId`]. A driver may still hold the value of a closed subchannel when a later one
/// is assigned the same index. [`SubchannelMap::insert`] then returns the older value.
pub struct SubchannelMap<T> {
    values: PersistentVec<(SubchannelId, T)>,
}

impl<T> SubchannelMap<T> {
    /// Returns the value of a subchannel, if it has one.
    pub fn get(&self, id: SubchannelId) -> Option<&T> {
        let (of, value) = self.values.get(id.index())?;
        (*of == id).then_some(value)
    }

    /// Returns all subchannels with their values, ordered by index.
    pub fn iter(&self) -> impl Iterator<Item = (SubchannelId, &T)> {
        self.values.iter().map(|(id, value)| (*id, value))
    }
}

impl<T: Clone> SubchannelMap<T> {
    /// Inserts the value of a subchannel. Returns the value that it replaces: its own, or that of an earlier subchannel with
    /// the same index.
    pub fn insert(&mut self, id: SubchannelId, value: T) -> Option<T> {
        self.values.set(id.index(), (id, value)).map(|(_, replaced)| replaced)
    }

    /// Removes the value of a subchannel and returns it, if it has one.
    pub fn remove(&mut self, id: SubchannelId) -> Option<T> {
        // The entry at the index may belong to another generation, which must stay.
        self.get(id)?;
        self.values.take(id.index()).map(|(_, value)| value)
    }
}

impl<T> Clone for SubchannelMap<T> {
    fn clone(&self) -> SubchannelMap<T> {
        SubchannelMap { values: self.values.clone() }
    }
}

impl<T> Default for SubchannelMap<T> {
    fn default() -> SubchannelMap<T> {
        SubchannelMap { values: PersistentVec::default() }
    }
}

impl<T: fmt::Debug> fmt::Debug for SubchannelMap<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::revision::Revision;
    use crate::subchannel::SubchannelTable;

    /// A value belongs to one subchannel, also if a later one has the same index.
    #[test]
    fn a_value_belongs_to_one_generation() {
        let mut subchannels = SubchannelTable::default();
        let earlier = subchannels.create(&"a".into(), None, Revision::default());
        subchannels.remove(earlier);
        let later = subchannels.create(&"b".into(), None, Revision::default());
        assert_eq!(earlier.index(), later.index());
        let mut map = SubchannelMap::default();
        assert_eq!(map.insert(earlier, "a"), None);
        let before = map.clone();
        assert_eq!(map.remove(later), None);
        assert_eq!((map.get(earlier), map.get(later)), (Some(&"a"), None));
        assert_eq!(map.insert(later, "b"), Some("a"));
        assert_eq!(map.remove(earlier), None);
        assert_eq!((map.get(earlier), map.get(later)), (None, Some(&"b")));
        assert!(map.iter().eq([(later, &"b")]));
        assert_eq!(map.remove(later), Some("b"));
        assert_eq!((map.iter().count(), before.get(earlier)), (0, Some(&"a")));
    }
}
