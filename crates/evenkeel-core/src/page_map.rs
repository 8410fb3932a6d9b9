//! A sorted map in pages, which its clones share: one change among thousands copies one page, and two versions of a map are
//! compared page by page.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Index;
use std::sync::Arc;

/// How many entries stand on a page at most.
const PAGE: usize = 64;

type Page<K, V> = Vec<(K, V)>;

/// A sorted map. Cloning it and changing one entry takes a small part of what it takes to make it anew, and what did not
/// change is shared.
///
/// ```
/// use evenkeel_core::cluster::PageMap;
///
/// let before: PageMap<&str, u32> = [("orders", 1), ("users", 2)].into_iter().collect();
/// let mut after = before.clone();
/// after.insert("users", 3);
/// assert_eq!(before.differing(&after, u32::eq), [&"users"]);
/// ```
#[derive(Clone)]
pub struct PageMap<K, V> {
    /// In order, none of them empty.
    pages: Vec<Arc<Page<K, V>>>,
}

impl<K: Ord + Clone, V: Clone> PageMap<K, V> {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.pages.iter().map(|page| page.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let page = self.pages.get(self.page_of(key)?)?;
        Some(&page[find(page, key).ok()?].1)
    }

    /// Whether the key has a value.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// Puts a value in the place of the one that the key has, if any.
    pub fn insert(&mut self, key: K, value: V) {
        let Some(at) = self.page_of(&key) else {
            self.insert_first(key, value);
            return;
        };
        let page = Arc::make_mut(&mut self.pages[at]);
        match find(page, &key) {
            Ok(i) => page[i].1 = value,
            Err(i) => page.insert(i, (key, value)),
        }
        if page.len() > PAGE {
            let upper = page.split_off(page.len() / 2);
            self.pages.insert(at + 1, Arc::new(upper));
        }
    }

    /// Removes a key, and answers its value if it had one.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let at = self.page_of(key)?;
        let i = find(&self.pages[at], key).ok()?;
        let page = Arc::make_mut(&mut self.pages[at]);
        let (_, value) = page.remove(i);
        if page.is_empty() {
            self.pages.remove(at);
        }
        Some(value)
    }

    /// The entries, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.pages.iter().flat_map(|page| page.iter()).map(|(key, value)| (key, value))
    }

    /// The values, by key.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// The keys that stand in one of both maps only, or with something else in the other, in order. Pages that both have
    /// are passed over.
    pub fn differing<'m>(&'m self, other: &'m PageMap<K, V>, is_same: impl Fn(&V, &V) -> bool) -> Vec<&'m K> {
        let mut found = Vec::new();
        let (mut ours, mut theirs) = (Cursor::new(self), Cursor::new(other));
        loop {
            if ours.skip_shared(&mut theirs) {
                continue;
            }
            let key = match (ours.entry(), theirs.entry()) {
                (None, None) => return found,
                (Some((a, x)), Some((b, y))) if a == b => {
                    ours.advance();
                    theirs.advance();
                    if is_same(x, y) {
                        continue;
                    }
                    a
                }
                (ours_now, Some((b, _))) if ours_now.is_none_or(|(a, _)| b < a) => {
                    theirs.advance();
                    b
                }
                (Some((a, _)), _) => {
                    ours.advance();
                    a
                }
                (None, Some((b, _))) => {
                    theirs.advance();
                    b
                }
            };
            found.push(key);
        }
    }

    /// The page on which a key stands or would stand; `None` if it would be the first of all.
    fn page_of<Q: Ord + ?Sized>(&self, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        self.pages.partition_point(|page| page[0].0.borrow() <= key).checked_sub(1)
    }

    /// Inserts a key that is less than all others.
    fn insert_first(&mut self, key: K, value: V) {
        match self.pages.first_mut().filter(|page| page.len() < PAGE) {
            Some(page) => Arc::make_mut(page).insert(0, (key, value)),
            None => self.pages.insert(0, Arc::new(vec![(key, value)])),
        }
    }
}

fn find<K: Borrow<Q>, V, Q: Ord + ?Sized>(page: &Page<K, V>, key: &Q) -> Result<usize, usize> {
    page.binary_search_by(|(at, _)| at.borrow().cmp(key))
}

/// A place in a map.
struct Cursor<'m, K, V> {
    pages: &'m [Arc<Page<K, V>>],
    /// How many entries of the first page are behind.
    past: usize,
}

impl<'m, K, V> Cursor<'m, K, V> {
    fn new(map: &'m PageMap<K, V>) -> Cursor<'m, K, V> {
        Cursor { pages: &map.pages, past: 0 }
    }

    fn entry(&self) -> Option<&'m (K, V)> {
        self.pages.first()?.get(self.past)
    }

    fn advance(&mut self) {
        self.past += 1;
        if self.pages.first().is_some_and(|page| page.len() == self.past) {
            self.skip_page();
        }
    }

    fn skip_page(&mut self) {
        (self.pages, self.past) = (&self.pages[1..], 0);
    }

    /// Goes past a page that begins for both and is the same allocation. Answers whether there was one.
    fn skip_shared(&mut self, other: &mut Cursor<'m, K, V>) -> bool {
        let (Some(a), Some(b)) = (self.pages.first(), other.pages.first()) else { return false };
        let is_shared = self.past == 0 && other.past == 0 && Arc::ptr_eq(a, b);
        if is_shared {
            self.skip_page();
            other.skip_page();
        }
        is_shared
    }
}

impl<K, V> Default for PageMap<K, V> {
    fn default() -> PageMap<K, V> {
        PageMap { pages: Vec::new() }
    }
}

impl<K: Ord + Clone, V: Clone> FromIterator<(K, V)> for PageMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> PageMap<K, V> {
        let mut map = PageMap::default();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

impl<K: Ord + Clone + Borrow<Q>, V: Clone, Q: Ord + ?Sized> Index<&Q> for PageMap<K, V> {
    type Output = V;

    /// # Panics
    ///
    /// If the key is not there.
    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("the key is in the map")
    }
}

impl<K: Ord + Clone + fmt::Debug, V: Clone + fmt::Debug> fmt::Debug for PageMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Change {
        Insert(u16, u8),
        Remove(u16),
    }

    fn changes(most: usize) -> impl Strategy<Value = Vec<Change>> {
        let change = prop_oneof![
            4 => (0..400u16, 0..3u8).prop_map(|(key, value)| Change::Insert(key, value)),
            1 => (0..400u16).prop_map(Change::Remove),
        ];
        proptest::collection::vec(change, 0..most)
    }

    fn apply(changes: &[Change], map: &mut PageMap<u16, u8>, plain: &mut BTreeMap<u16, u8>) {
        for change in changes {
            match *change {
                Change::Insert(key, value) => {
                    map.insert(key, value);
                    plain.insert(key, value);
                }
                Change::Remove(key) => assert_eq!(map.remove(&key), plain.remove(&key)),
            }
        }
    }

    proptest! {
        /// A map holds what a standard one holds, and two versions differ where the standard ones do.
        #[test]
        fn is_a_map(first in changes(600), then in changes(20)) {
            let (mut map, mut plain) = (PageMap::default(), BTreeMap::new());
            apply(&first, &mut map, &mut plain);
            let (before, before_plain) = (map.clone(), plain.clone());
            apply(&then, &mut map, &mut plain);
            prop_assert!(map.iter().eq(plain.iter()));
            prop_assert!(before.iter().eq(before_plain.iter()));
            prop_assert_eq!(map.len(), plain.len());
            prop_assert_eq!(map.is_empty(), plain.is_empty());
            for key in 0..400 {
                prop_assert_eq!(map.get(&key), plain.get(&key));
            }
            let differing: Vec<u16> = (0..400).filter(|key| plain.get(key) != before_plain.get(key)).collect();
            let found: Vec<u16> = before.differing(&map, u8::eq).into_iter().copied().collect();
            prop_assert_eq!(found, differing);
        }
    }

    /// A change shares all other pages, which a comparison passes over.
    #[test]
    fn what_did_not_change_is_shared() {
        let before: PageMap<u32, u32> = (0..10_000).map(|key| (key, key)).collect();
        let mut after = before.clone();
        after.insert(5_000, 0);
        let compared = std::cell::Cell::new(0);
        let is_same = |a: &u32, b: &u32| {
            compared.set(compared.get() + 1);
            a == b
        };
        assert_eq!(before.differing(&after, is_same), [&5_000]);
        assert!(compared.get() <= PAGE, "{} entries were compared", compared.get());
        let shared = before.pages.iter().zip(&after.pages).filter(|(a, b)| Arc::ptr_eq(a, b)).count();
        assert_eq!(shared, before.pages.len() - 1);
    }
}
