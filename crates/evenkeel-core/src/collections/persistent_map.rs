//! Persistent map: clones share the keys and the pages of values that did not change.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use crate::collections::fast_map::FastMap;
use crate::collections::persistent_vec::PersistentVec;

/// Map in insertion order. A clone with one replaced value copies a small part and shares the others. Insertion or removal of a
/// key copies the whole map.
pub(crate) struct PersistentMap<K, V> {
    keys: Arc<MapKeys<K>>,
    /// Values by the position of their keys.
    values: PersistentVec<V>,
}

#[derive(Clone)]
struct MapKeys<K> {
    list: Vec<K>,
    /// Position of each key in the list.
    places: FastMap<K, usize>,
}

impl<K: Hash + Eq + Clone, V: Clone> PersistentMap<K, V> {
    /// Returns the value of a key.
    pub(crate) fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.values.get(*self.keys.places.get(key)?)
    }

    /// Returns true if the key has a value.
    pub(crate) fn contains_key<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.keys.places.contains_key(key)
    }

    /// Inserts or replaces the value of a key.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        let place = self.keys.places.get(&key).copied().unwrap_or_else(|| {
            let keys = Arc::make_mut(&mut self.keys);
            keys.places.insert(key.clone(), keys.list.len());
            keys.list.push(key);
            keys.list.len() - 1
        });
        self.values.set(place, value);
    }

    /// Removes a key, if present. Copies the whole map.
    pub(crate) fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        let others = self.iter().filter(|(other, _)| <K as Borrow<Q>>::borrow(other) != key);
        *self = others.map(|(key, value)| (key.clone(), value.clone())).collect();
    }

    /// Returns the entries in insertion order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.keys.list.iter().zip(self.values.iter())
    }

    /// Returns the keys that are in only one of the maps or have different values. Skips shared parts.
    pub(crate) fn diff<'m>(
        &'m self,
        other: &'m PersistentMap<K, V>,
        is_same: impl Fn(&V, &V) -> bool,
    ) -> Vec<&'m K> {
        // The same list of keys means the same positions, so only the values can differ.
        if Arc::ptr_eq(&self.keys, &other.keys) {
            let places = self.values.diff(&other.values, is_same).into_iter();
            return places.map(|place| &self.keys.list[place]).collect();
        }
        let is_other = |(key, value): &(&K, &V)| other.get(*key).is_none_or(|other| !is_same(value, other));
        let ours = self.iter().filter(is_other).map(|(key, _)| key);
        ours.chain(other.keys.list.iter().filter(|key| !self.contains_key(*key))).collect()
    }
}

impl<K, V> Clone for PersistentMap<K, V> {
    fn clone(&self) -> PersistentMap<K, V> {
        PersistentMap { keys: self.keys.clone(), values: self.values.clone() }
    }
}

impl<K, V> Default for PersistentMap<K, V> {
    fn default() -> PersistentMap<K, V> {
        let keys = MapKeys { list: Vec::new(), places: FastMap::default() };
        PersistentMap { keys: Arc::new(keys), values: PersistentVec::default() }
    }
}

impl<K: Hash + Eq + Clone, V: Clone> FromIterator<(K, V)> for PersistentMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> PersistentMap<K, V> {
        let mut table = PersistentMap::default();
        for (key, value) in entries {
            table.insert(key, value);
        }
        table
    }
}

impl<K: Hash + Eq + Clone + fmt::Debug, V: Clone + fmt::Debug> fmt::Debug for PersistentMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Change {
        Insert(u16, u8),
        Remove(u16),
    }

    const KEYS: u16 = 150;

    fn changes(most: usize) -> impl Strategy<Value = Vec<Change>> {
        let change = prop_oneof![
            8 => (0..KEYS, 0..3_u8).prop_map(|(key, value)| Change::Insert(key, value)),
            1 => (0..KEYS).prop_map(Change::Remove),
        ];
        proptest::collection::vec(change, 0..most)
    }

    fn apply(changes: &[Change], table: &mut PersistentMap<u16, u8>, plain: &mut BTreeMap<u16, u8>) {
        for change in changes {
            match *change {
                Change::Insert(key, value) => {
                    table.insert(key, value);
                    plain.insert(key, value);
                }
                Change::Remove(key) => {
                    table.remove(&key);
                    plain.remove(&key);
                }
            }
        }
    }

    proptest! {
        /// Checks contents and differences against a standard map.
        #[test]
        fn is_a_map(first in changes(300), then in changes(10)) {
            let (mut table, mut plain) = (PersistentMap::default(), BTreeMap::new());
            apply(&first, &mut table, &mut plain);
            let (before, before_plain) = (table.clone(), plain.clone());
            apply(&then, &mut table, &mut plain);
            for (table, plain) in [(&table, &plain), (&before, &before_plain)] {
                prop_assert_eq!(&table.iter().map(|(k, v)| (*k, *v)).collect::<BTreeMap<_, _>>(), plain);
                prop_assert_eq!(table.iter().count(), plain.len());
                for key in 0..KEYS {
                    prop_assert_eq!(table.get(&key), plain.get(&key));
                    prop_assert_eq!(table.contains_key(&key), plain.contains_key(&key));
                }
            }
            let diff: Vec<u16> = (0..KEYS).filter(|key| plain.get(key) != before_plain.get(key)).collect();
            let mut found: Vec<u16> = before.diff(&table, u8::eq).into_iter().copied().collect();
            found.sort_unstable();
            prop_assert_eq!(found, diff);
        }
    }

    /// Checks that a change shares the keys and nearly all values, and that the comparison skips them.
    #[test]
    fn what_did_not_change_is_shared() {
        let before: PersistentMap<u32, u32> = (0..10_000).map(|key| (key, key)).collect();
        let mut after = before.clone();
        after.insert(5_000, 0);
        let compared = Cell::new(0);
        let is_same = |a: &u32, b: &u32| {
            compared.set(compared.get() + 1);
            a == b
        };
        assert_eq!(before.diff(&after, is_same), [&5_000]);
        assert!(compared.get() <= 64, "{} entries were compared", compared.get());
        assert!(Arc::ptr_eq(&before.keys, &after.keys));
    }
}
