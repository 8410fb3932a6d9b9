//! Names for the children of `priority_experimental` (A56, A115).
//!
//! A control plane numbers priorities, but a child policy should follow its localities: when they move to another
//! priority, the child moves with them and keeps its connections.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Gives priorities names that follow their localities from update to update.
///
/// A priority takes the name that the first of its localities to have one had in the update before, unless a higher
/// priority took it; otherwise it gets a new one. A name that an update does not use is never used again. The same
/// update gives the same names. A locality may be in several priorities; a priority without localities takes after the
/// one that had none.
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
    /// How many names have been given out.
    given: u64,
    /// The names of the last update by locality, higher priorities first; under `None` those without localities.
    last: BTreeMap<Option<L>, Vec<Arc<str>>>,
}

impl<L: Ord> PriorityNames<L> {
    /// Names that begin with `prefix` and end with a number. Generators whose names meet in one policy need
    /// prefixes of their own.
    pub fn new(prefix: impl Into<String>) -> PriorityNames<L> {
        PriorityNames { prefix: prefix.into(), given: 0, last: BTreeMap::new() }
    }

    /// The names for the priorities of an update, each given as its localities.
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
        self.last = next;
        names
    }

    fn fresh(&mut self) -> Arc<str> {
        let name = format!("{}{}", self.prefix, self.given);
        self.given += 1;
        name.into()
    }
}
