//! Values by index, in pages which clones share: one change among ten thousand copies a page and the list that it stands in.

use std::fmt;
use std::sync::Arc;

/// How many values stand on a page, and how many pages in a book.
const MANY: usize = 32;

type Page<V> = [Option<V>; MANY];
type Book<V> = [Option<Arc<Page<V>>>; MANY];

/// Values by index. Cloning it and changing one value takes a small part of what it takes to copy all, and what did not change
/// is shared. Gaps between indices take little room.
///
/// ```
/// use evenkeel_core::Pages;
///
/// let mut before = Pages::default();
/// before.set(7_000, "a");
/// let mut after = before.clone();
/// after.set(7_000, "b");
/// assert_eq!((before.get(7_000), after.get(7_000), after.get(0)), (Some(&"a"), Some(&"b"), None));
/// ```
pub struct Pages<V> {
    books: Vec<Option<Arc<Book<V>>>>,
}

impl<V> Pages<V> {
    /// The value at an index, if there is one.
    pub fn get(&self, index: usize) -> Option<&V> {
        let book = self.books.get(index / (MANY * MANY))?.as_ref()?;
        book[index / MANY % MANY].as_ref()?[index % MANY].as_ref()
    }

    /// The values, by index.
    pub fn iter(&self) -> impl Iterator<Item = &V> {
        let pages = self.books.iter().flatten().flat_map(|book| book.iter().flatten());
        pages.flat_map(|page| page.iter().flatten())
    }
}

impl<V> Pages<V> {
    /// The indices at which one of both has a value and the other has none or another. What both share is passed over.
    pub fn differing(&self, other: &Pages<V>, is_same: impl Fn(&V, &V) -> bool) -> Vec<usize> {
        let mut found = Vec::new();
        for book in 0..self.books.len().max(other.books.len()) {
            let [ours, theirs] = [self, other].map(|pages| pages.books.get(book).and_then(Option::as_ref));
            if is_shared(ours, theirs) {
                continue;
            }
            for page in 0..MANY {
                let [ours, theirs] = [ours, theirs].map(|book| book.and_then(|book| book[page].as_ref()));
                if is_shared(ours, theirs) {
                    continue;
                }
                found.extend((0..MANY).map(|i| (book * MANY + page) * MANY + i).filter(|&index| {
                    match (self.get(index), other.get(index)) {
                        (Some(ours), Some(theirs)) => !is_same(ours, theirs),
                        (ours, theirs) => ours.is_some() || theirs.is_some(),
                    }
                }));
            }
        }
        found
    }
}

fn is_shared<T>(ours: Option<&Arc<T>>, theirs: Option<&Arc<T>>) -> bool {
    ours.map(Arc::as_ptr) == theirs.map(Arc::as_ptr)
}

impl<V: Clone> Pages<V> {
    /// Puts a value in the place of the one that is there, if any, and returns that one.
    pub fn set(&mut self, index: usize, value: V) -> Option<V> {
        let book = index / (MANY * MANY);
        if self.books.len() <= book {
            self.books.resize_with(book + 1, || None);
        }
        self.place(index).replace(value)
    }

    /// Takes a value out, if there is one.
    pub fn take(&mut self, index: usize) -> Option<V> {
        self.get(index)?;
        self.place(index).take()
    }

    /// The place for a value, in a page of its own.
    fn place(&mut self, index: usize) -> &mut Option<V> {
        let book = self.books[index / (MANY * MANY)].get_or_insert_with(|| Arc::new([const { None }; MANY]));
        let page =
            Arc::make_mut(book)[index / MANY % MANY].get_or_insert_with(|| Arc::new([const { None }; MANY]));
        &mut Arc::make_mut(page)[index % MANY]
    }
}

impl<V> Clone for Pages<V> {
    fn clone(&self) -> Pages<V> {
        Pages { books: self.books.clone() }
    }
}

impl<V> Default for Pages<V> {
    fn default() -> Pages<V> {
        Pages { books: Vec::new() }
    }
}

impl<V: Clone> FromIterator<V> for Pages<V> {
    fn from_iter<I: IntoIterator<Item = V>>(values: I) -> Pages<V> {
        let mut pages = Pages::default();
        for (index, value) in values.into_iter().enumerate() {
            pages.set(index, value);
        }
        pages
    }
}

impl<V> fmt::Debug for Pages<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages({} values)", self.iter().count())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// It holds what a map by index holds, and a clone is not touched by what comes after.
        #[test]
        fn is_a_map_by_index(changes in proptest::collection::vec((0..5_000_usize, any::<Option<u8>>()), 0..300)) {
            let (mut pages, mut plain) = (Pages::default(), BTreeMap::new());
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
                let differing: Vec<usize> =
                    (0..5_000).filter(|index| plain.get(index) != before_plain.get(index)).collect();
                prop_assert_eq!(before.differing(&pages, u8::eq), differing);
            }
            for (pages, plain) in before.into_iter().chain([(pages, plain)]) {
                prop_assert!(pages.iter().eq(plain.values()));
                for index in 0..6_000 {
                    prop_assert_eq!(pages.get(index), plain.get(&index));
                }
            }
        }
    }

    /// A change copies a page and its book; all others are shared.
    #[test]
    fn what_did_not_change_is_shared() {
        let before: Pages<Arc<usize>> = (0..10_000).map(Arc::new).collect();
        let mut after = before.clone();
        after.set(5_000, Arc::new(0));
        let is_copied = |index: usize| Arc::strong_count(before.get(index).expect("it is there")) > 1;
        let copied: Vec<usize> = (0..10_000).filter(|&index| is_copied(index)).collect();
        let page = 5_000 / MANY * MANY;
        assert_eq!(copied, (page..page + MANY).filter(|&index| index != 5_000).collect::<Vec<_>>());
    }
}
