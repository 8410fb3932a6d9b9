//! Persistent vector: clones share pages. A change among ten thousand values copies one page and its directory.

use std::fmt;
use std::sync::Arc;

/// Number of values per page, and of pages per directory.
const FANOUT: usize = 32;

type VecLeaf<V> = [Option<V>; FANOUT];
type VecNode<V> = [Option<Arc<VecLeaf<V>>>; FANOUT];

/// Values by index. A clone with one replaced value copies a small part and shares the others. Gaps between indices need little
/// memory.
pub(crate) struct PersistentVec<V> {
    nodes: Vec<Option<Arc<VecNode<V>>>>,
}

impl<V> PersistentVec<V> {
    /// Returns the value at an index, if there is one.
    pub(crate) fn get(&self, index: usize) -> Option<&V> {
        let node = self.nodes.get(index / (FANOUT * FANOUT))?.as_ref()?;
        node[index / FANOUT % FANOUT].as_ref()?[index % FANOUT].as_ref()
    }

    /// Returns the values in the order of their indices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &V> {
        let pages = self.nodes.iter().flatten().flat_map(|node| node.iter().flatten());
        pages.flat_map(|leaf| leaf.iter().flatten())
    }
}

impl<V> PersistentVec<V> {
    /// Returns the indices at which the vectors differ. Skips shared pages.
    pub(crate) fn diff(&self, other: &PersistentVec<V>, is_same: impl Fn(&V, &V) -> bool) -> Vec<usize> {
        let mut found = Vec::new();
        for node in 0..self.nodes.len().max(other.nodes.len()) {
            let [left, right] = [self, other].map(|pages| pages.nodes.get(node).and_then(Option::as_ref));
            if is_shared(left, right) {
                continue;
            }
            for leaf in 0..FANOUT {
                let [left, right] = [left, right].map(|node| node.and_then(|node| node[leaf].as_ref()));
                if is_shared(left, right) {
                    continue;
                }
                found.extend((0..FANOUT).map(|i| (node * FANOUT + leaf) * FANOUT + i).filter(
                    |&index| match (self.get(index), other.get(index)) {
                        (Some(left), Some(right)) => !is_same(left, right),
                        (left, right) => left.is_some() || right.is_some(),
                    },
                ));
            }
        }
        found
    }
}

fn is_shared<T>(left: Option<&Arc<T>>, right: Option<&Arc<T>>) -> bool {
    left.map(Arc::as_ptr) == right.map(Arc::as_ptr)
}

impl<V: Clone> PersistentVec<V> {
    /// Sets the value at an index. Returns the previous one.
    pub(crate) fn set(&mut self, index: usize, value: V) -> Option<V> {
        let node = index / (FANOUT * FANOUT);
        if self.nodes.len() <= node {
            self.nodes.resize_with(node + 1, || None);
        }
        self.place(index).replace(value)
    }

    /// Removes the value at an index, if there is one.
    pub(crate) fn take(&mut self, index: usize) -> Option<V> {
        // Looked up first, since `place` copies shared pages.
        self.get(index)?;
        self.place(index).take()
    }

    /// Returns the slot of an index, in a page that is not shared.
    fn place(&mut self, index: usize) -> &mut Option<V> {
        let node =
            self.nodes[index / (FANOUT * FANOUT)].get_or_insert_with(|| Arc::new([const { None }; FANOUT]));
        let leaf = Arc::make_mut(node)[index / FANOUT % FANOUT]
            .get_or_insert_with(|| Arc::new([const { None }; FANOUT]));
        &mut Arc::make_mut(leaf)[index % FANOUT]
    }
}

impl<V> Clone for PersistentVec<V> {
    fn clone(&self) -> PersistentVec<V> {
        PersistentVec { nodes: self.nodes.clone() }
    }
}

impl<V> Default for PersistentVec<V> {
    fn default() -> PersistentVec<V> {
        PersistentVec { nodes: Vec::new() }
    }
}

impl<V: Clone> FromIterator<V> for PersistentVec<V> {
    fn from_iter<I: IntoIterator<Item = V>>(values: I) -> PersistentVec<V> {
        let mut pages = PersistentVec::default();
        for (index, value) in values.into_iter().enumerate() {
            pages.set(index, value);
        }
        pages
    }
}

impl<V> fmt::Debug for PersistentVec<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PersistentVec({} values)", self.iter().count())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Checks the contents against a standard map, and that later changes do not affect a clone.
        #[test]
        fn is_a_map_by_index(changes in proptest::collection::vec((0..5_000_usize, any::<Option<u8>>()), 0..300)) {
            let (mut pages, mut plain) = (PersistentVec::default(), BTreeMap::new());
            let mut before = None;
            for (i, (index, value)) in changes.iter().enumerate() {
                if i == changes.len() / 2 {
                    before = Some((pages.clone(), plain.clone()));
                }
                if let Some(value) = *value {
                    pages.set(*index, value);
                    plain.insert(*index, value);
                } else {
                    prop_assert_eq!(pages.take(*index), plain.remove(index));
                }
            }
            if let Some((before, before_plain)) = &before {
                let diff: Vec<usize> =
                    (0..5_000).filter(|index| plain.get(index) != before_plain.get(index)).collect();
                prop_assert_eq!(before.diff(&pages, u8::eq), diff);
            }
            for (pages, plain) in before.into_iter().chain([(pages, plain)]) {
                prop_assert!(pages.iter().eq(plain.values()));
                for index in 0..6_000 {
                    prop_assert_eq!(pages.get(index), plain.get(&index));
                }
            }
        }
    }

    /// Checks that a change copies one page and its directory, and shares all others.
    #[test]
    fn what_did_not_change_is_shared() {
        let before: PersistentVec<Arc<usize>> = (0..10_000).map(Arc::new).collect();
        let mut after = before.clone();
        after.set(5_000, Arc::new(0));
        let is_copied = |index: usize| Arc::strong_count(before.get(index).expect("it is there")) > 1;
        let copied: Vec<usize> = (0..10_000).filter(|&index| is_copied(index)).collect();
        let leaf = 5_000 / FANOUT * FANOUT;
        assert_eq!(copied, (leaf..leaf + FANOUT).filter(|&index| index != 5_000).collect::<Vec<_>>());
    }
}
