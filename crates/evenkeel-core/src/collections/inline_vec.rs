//! A list that is nearly always of one: the first needs no allocation.

/// Items in the order in which they were pushed, until one is removed.
#[derive(Debug)]
pub(crate) struct InlineVec<T> {
    first: Option<T>,
    more: Vec<T>,
}

impl<T> Default for InlineVec<T> {
    fn default() -> InlineVec<T> {
        InlineVec { first: None, more: Vec::new() }
    }
}

impl<T: PartialEq> InlineVec<T> {
    pub(crate) fn push(&mut self, item: T) {
        match self.first {
            None => self.first = Some(item),
            Some(_) => self.more.push(item),
        }
    }

    /// Removes one that is equal; another one takes its place.
    pub(crate) fn remove(&mut self, item: &T) {
        if self.first.as_ref() == Some(item) {
            // `first` must be set while `more` has items: `is_empty` reads only `first`.
            self.first = self.more.pop();
        } else if let Some(i) = self.more.iter().position(|found| found == item) {
            self.more.swap_remove(i);
        }
    }

    pub(crate) fn get(&self, i: usize) -> Option<&T> {
        if i == 0 { self.first.as_ref() } else { self.more.get(i - 1) }
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.first.iter().chain(&self.more)
    }

    pub(crate) fn last(&self) -> Option<&T> {
        self.iter().next_back()
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values are listed in the order of their pushes, and `remove` removes one equal value and no other.
    #[test]
    fn a_list() {
        let mut few = InlineVec::default();
        assert!(few.is_empty() && few.last().is_none() && few.get(0).is_none());
        for item in [3, 1, 4, 1, 5] {
            few.push(item);
        }
        assert_eq!(few.iter().copied().collect::<Vec<_>>(), [3, 1, 4, 1, 5]);
        assert_eq!((few.len(), few.last(), few.get(2), few.get(5)), (5, Some(&5), Some(&4), None));
        for (item, left) in [(1, 4), (9, 4), (3, 3), (5, 2), (4, 1), (1, 0), (1, 0)] {
            few.remove(&item);
            assert_eq!(few.len(), left, "after {item}");
            assert_eq!(few.is_empty(), left == 0);
        }
    }
}
