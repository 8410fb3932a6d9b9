//! Names for the children of `priority_experimental` (A56, A115).
//!
//! A control plane numbers priorities, but a child policy should follow its localities. When localities move
//! to another priority, the child moves with them and keeps its connections.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Generator of priority names that follow localities from update to update.
///
/// A priority reuses a name that one of its localities had in the previous update, unless a higher priority
/// took it. Localities are tried in order. If no name is left, the priority gets a fresh one. A name that an
/// update does not use is never reused. The same update gives the same names. A locality may be in several
/// priorities. A priority without localities reuses the name of the one that had none.
///
/// ```
/// use evenkeel_core::policy::PriorityNames;
/// let mut names = PriorityNames::new("child");
/// assert_eq!(names.assign([vec!["AA", "BB"], vec!["CC", "DD"]]), ["child0".into(), "child1".into()]);
/// assert_eq!(names.assign([vec!["CC"], vec!["DD", "EE"]]), ["child1".into(), "child2".into()]);
/// ```
#[derive(Clone, Debug)]
pub struct PriorityNames<L> {
    prefix: String,
    /// Number of names generated.
    given: u64,
    /// Names of the last update by locality, highest priority first. `None` is the key of priorities without
    /// localities.
    last: BTreeMap<Option<L>, Vec<Arc<str>>>,
}

impl<L: Ord> PriorityNames<L> {
    /// Creates a generator of names made of `prefix` and a number. Generators whose names are used in one
    /// policy need distinct prefixes.
    pub fn new(prefix: impl Into<String>) -> PriorityNames<L> {
        PriorityNames { prefix: prefix.into(), given: 0, last: BTreeMap::new() }
    }

    /// Returns the name of each priority of an update. A priority is given as its localities.
    pub fn assign<P: IntoIterator<Item = L>>(
        &mut self,
        priorities: impl IntoIterator<Item = P>,
    ) -> Vec<Arc<str>> {
        let mut names: Vec<Arc<str>> = Vec::new();
        let mut taken = BTreeSet::new();
        let mut next: BTreeMap<Option<L>, Vec<Arc<str>>> = BTreeMap::new();
        for priority in priorities {
            let mut localities: Vec<Option<L>> = priority.into_iter().map(Some).collect();
            if localities.is_empty() {
                localities.push(None);
            }
            let mut earlier = localities.iter().filter_map(|locality| self.last.get(locality)).flatten();
            let name = match earlier.find(|name| !taken.contains(*name)) {
                Some(name) => name.clone(),
                None => self.fresh(),
            };
            taken.insert(name.clone());
            for locality in localities {
                next.entry(locality).or_default().push(name.clone());
            }
            names.push(name);
        }
        // A name that this update does not use is forgotten, and `fresh` never repeats one (PR-10).
        self.last = next;
        names
    }

    fn fresh(&mut self) -> Arc<str> {
        let name = format!("{}{}", self.prefix, self.given);
        self.given += 1;
        name.into()
    }
}
