//! Diff of endpoint lists, applied to state per endpoint.
//!
//! An update of thousands of endpoints usually changes one, and the others are the same allocations. The lists are therefore
//! compared by identity, side by side. Only endpoints that are in one list are looked up by their addresses. Retained state is
//! moved only if necessary.

use crate::collections::fast_map::{FastHashSeed, FastMap, FastSet};
use crate::{Endpoint, EndpointKey, Endpoints};

/// Maximum distance at which the comparison searches for the next common endpoint.
const LOOKAHEAD: usize = 8;

/// State of an endpoint, retained while the endpoint is in the list.
pub(crate) trait PerEndpoint {
    /// Creates the state of a new endpoint.
    fn new(endpoint: &Endpoint) -> Self;

    /// Returns the endpoint as of the last update.
    fn endpoint(&self) -> &Endpoint;

    /// Replaces the endpoint by one with the same addresses and other attributes.
    fn update(&mut self, endpoint: &Endpoint);

    /// Returns true if the list includes this endpoint. Endpoints without addresses are never included.
    fn accepts(endpoint: &Endpoint) -> bool {
        let _ = endpoint;
        true
    }
}

/// Applies a list of endpoints to the state per endpoint, in the order of the list. If several have the same addresses, the
/// first applies. Returns the removed state.
pub(crate) fn apply_diff<K: PerEndpoint>(kept: &mut Vec<K>, endpoints: &Endpoints) -> Vec<K> {
    match endpoints.as_distinct_list() {
        Some(list) => apply_diff_by_position(kept, list),
        None => apply_diff_by_key(kept, endpoints.iter().filter(|endpoint| is_kept::<K>(endpoint))),
    }
}

fn is_kept<K: PerEndpoint>(endpoint: &Endpoint) -> bool {
    !endpoint.addresses().is_empty() && K::accepts(endpoint)
}

/// Applies a list without known properties: looks up every endpoint.
fn apply_diff_by_key<'e, K: PerEndpoint>(
    kept: &mut Vec<K>,
    endpoints: impl Iterator<Item = &'e Endpoint>,
) -> Vec<K> {
    let mut old: FastMap<_, _> = kept.drain(..).map(|one| (one.endpoint().key(), one)).collect();
    let (_, count) = endpoints.size_hint();
    let mut seen = FastSet::with_capacity_and_hasher(count.unwrap_or(0), FastHashSeed::default());
    for endpoint in endpoints {
        let key = endpoint.key();
        let one = old.remove(&key);
        if seen.insert(key) {
            kept.push(updated_or_new(one, endpoint));
        }
    }
    kept.shrink_to_fit();
    old.into_values().collect()
}

/// Applies a list of endpoints that share no address: looks up only endpoints that are in one of the lists.
fn apply_diff_by_position<K: PerEndpoint>(kept: &mut Vec<K>, list: &[Endpoint]) -> Vec<K> {
    let segments = compare(kept, list);
    update_in_place(kept, list, &segments).unwrap_or_else(|| merge(kept, list, &segments))
}

/// Section of two lists: `same` common endpoints, then `removed` ones of the old and `added` ones of the new list.
#[derive(Debug, Default, PartialEq, Eq)]
struct DiffSegment {
    same: usize,
    removed: usize,
    added: usize,
}

/// Compares the lists by identity. If no common endpoint follows soon, the remainder counts as removed and added.
fn compare<K: PerEndpoint>(kept: &[K], list: &[Endpoint]) -> Vec<DiffSegment> {
    let mut segments = Vec::new();
    let (mut old, mut new) = (kept, list);
    loop {
        let pairs = old.iter().zip(new);
        let same = pairs.take_while(|(old, new)| old.endpoint().is_same(new)).count();
        (old, new) = (&old[same..], &new[same..]);
        if old.is_empty() && new.is_empty() {
            if same > 0 {
                segments.push(DiffSegment { same, ..DiffSegment::default() });
            }
            return segments;
        }
        let (removed, added) = next_match(old, new).unwrap_or((old.len(), new.len()));
        segments.push(DiffSegment { same, removed, added });
        (old, new) = (&old[removed..], &new[added..]);
    }
}

/// Returns the numbers of endpoints to skip in each list until the next common one, with the smallest sum.
fn next_match<K: PerEndpoint>(old: &[K], new: &[Endpoint]) -> Option<(usize, usize)> {
    let agree = |removed: usize, added: usize| match (old.get(removed), new.get(added)) {
        (Some(old), Some(new)) => old.endpoint().is_same(new),
        _ => false,
    };
    (1..=LOOKAHEAD)
        .flat_map(|both| (0..=both).map(move |removed| (removed, both - removed)))
        .find(|(o, n)| agree(*o, *n))
}

/// Updates the state in place. Returns the removed state; `None` if an added endpoint does not take the position of a
/// removed one.
fn update_in_place<K: PerEndpoint>(
    kept: &mut [K],
    list: &[Endpoint],
    segments: &[DiffSegment],
) -> Option<Vec<K>> {
    let mut changed = Vec::new();
    let mut at = 0;
    for DiffSegment { same, removed, added } in segments {
        if removed != added {
            return None;
        }
        changed.extend(at + same..at + same + removed);
        at += same + removed;
    }
    let is_there = |kept: &[K], at: usize| kept[at].endpoint().key() == list[at].key();
    let is_plain = match changed[..] {
        // A single changed position cannot be a move.
        [only] => is_kept::<K>(&list[only]),
        // An endpoint that was added here may have been removed elsewhere.
        _ => changed.iter().all(|at| is_there(kept, *at) && is_kept::<K>(&list[*at])),
    };
    if !is_plain {
        return None;
    }
    let mut removed = Vec::new();
    for at in changed {
        if is_there(kept, at) {
            kept[at].update(&list[at]);
        } else {
            removed.push(std::mem::replace(&mut kept[at], K::new(&list[at])));
        }
    }
    Some(removed)
}

/// Builds the state in the order of the new list. Returns the removed state.
fn merge<K: PerEndpoint>(kept: &mut Vec<K>, list: &[Endpoint], segments: &[DiffSegment]) -> Vec<K> {
    let removed = extract_removed(kept, segments);
    if segments.iter().all(|segment| segment.added == 0) {
        return removed;
    }
    let mut removed = RemovedEntries::new(removed);
    let stay = std::mem::replace(kept, Vec::with_capacity(list.len()));
    let (mut stay, mut rest) = (stay.into_iter(), list);
    for segment in segments {
        kept.extend(stay.by_ref().take(segment.same));
        let added;
        (added, rest) = rest[segment.same..].split_at(segment.added);
        for endpoint in added.iter().filter(|endpoint| is_kept::<K>(endpoint)) {
            kept.push(updated_or_new(removed.take(endpoint), endpoint));
        }
    }
    removed.all
}

/// Removes the state of removed endpoints.
fn extract_removed<K: PerEndpoint>(kept: &mut Vec<K>, segments: &[DiffSegment]) -> Vec<K> {
    // One section without common endpoints: nothing stays.
    if let [DiffSegment { same: 0, .. }] = segments {
        return std::mem::take(kept);
    }
    let stays =
        segments.iter().flat_map(|DiffSegment { same, removed, .. }| [(true, *same), (false, *removed)]);
    let mut stays = stays.flat_map(|(stays, count)| std::iter::repeat_n(stays, count));
    kept.extract_if(.., |_| stays.next() == Some(false)).collect()
}

/// Removed state, with its positions by key: an endpoint may only have moved. If all endpoints are replaced, nothing is
/// moved.
struct RemovedEntries<K> {
    all: Vec<K>,
    index_by_key: FastMap<EndpointKey, usize>,
}

impl<K: PerEndpoint> RemovedEntries<K> {
    fn new(all: Vec<K>) -> RemovedEntries<K> {
        let mut index_by_key = FastMap::with_capacity_and_hasher(all.len(), FastHashSeed::default());
        index_by_key.extend(all.iter().enumerate().map(|(at, one)| (one.endpoint().key(), at)));
        RemovedEntries { all, index_by_key }
    }

    /// Returns the state of this endpoint, if it was removed.
    fn take(&mut self, endpoint: &Endpoint) -> Option<K> {
        if self.index_by_key.is_empty() {
            return None;
        }
        let at = self.index_by_key.remove(&endpoint.key()).filter(|at| *at < self.all.len())?;
        let one = self.all.swap_remove(at);
        // `swap_remove` moved the last entry here, so its position changed.
        if let Some(moved) = self.all.get(at) {
            self.index_by_key.insert(moved.endpoint().key(), at);
        }
        Some(one)
    }
}

fn updated_or_new<K: PerEndpoint>(kept: Option<K>, endpoint: &Endpoint) -> K {
    match kept {
        Some(mut kept) => {
            kept.update(endpoint);
            kept
        }
        None => K::new(endpoint),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Endpoint with a number that is assigned when it is added.
    #[derive(Debug)]
    struct Numbered(Endpoint, usize);

    impl PerEndpoint for Numbered {
        fn new(endpoint: &Endpoint) -> Numbered {
            Numbered(endpoint.clone(), usize::MAX)
        }

        fn endpoint(&self) -> &Endpoint {
            &self.0
        }

        fn update(&mut self, endpoint: &Endpoint) {
            self.0 = endpoint.clone();
        }

        fn accepts(endpoint: &Endpoint) -> bool {
            endpoint.weight() != Some(13)
        }
    }

    /// Checks that the fast path retains the same state as the full lookup, for any sequence of lists.
    #[test]
    fn both_ways_lead_to_the_same() {
        let mut random = crate::Rng::fixed(7);
        let mut below = |bound: usize| random.below(bound as u64) as usize;
        let fresh = |i: usize| Endpoint::at(format!("10.0.{}.{}:1", i / 256, i % 256).as_str());
        let mut next = 60;
        let mut list: Vec<Endpoint> = (0..next).map(fresh).collect();
        let mut kept: Vec<Numbered> = Vec::new();
        let mut number = 0;
        for round in 0..600 {
            for _ in 0..below(4) {
                let at = below(list.len());
                match below(7) {
                    0 => drop(list.remove(at)),
                    1 => list[at] = list[at].clone().with_weight(1 + below(20) as u32),
                    2 => list.rotate_left(at),
                    3 => list.swap(0, at),
                    4 => list.extend((0..below(20)).map(|i| fresh(next + i))),
                    5 => list.insert(at, fresh(next + 30)),
                    _ => list[at] = fresh(next + 31),
                }
                next += 40;
            }
            list.truncate(80);
            let mut thorough: Vec<Numbered> = kept.iter().map(|one| Numbered(one.0.clone(), one.1)).collect();
            let mut removed = apply_diff(&mut thorough, &Endpoints::list(list.iter().cloned()));
            let mut removed_too = apply_diff(&mut kept, &Endpoints::distinct(list.iter().cloned()));
            removed.sort_by_key(|one| one.1);
            removed_too.sort_by_key(|one| one.1);
            let shown = |kept: &[Numbered]| -> Vec<_> {
                kept.iter().map(|one| (one.1, format!("{:?}", one.0))).collect()
            };
            assert_eq!(shown(&kept), shown(&thorough), "round {round}");
            assert_eq!(shown(&removed_too), shown(&removed), "round {round}");
            for one in kept.iter_mut().filter(|one| one.1 == usize::MAX) {
                one.1 = number;
                number += 1;
            }
        }
        assert!(number > 300, "{number}");
    }

    /// Checks that single changes in a long list do not touch the other entries.
    #[test]
    fn what_stays_is_not_looked_up() {
        let mut list: Vec<Endpoint> = (0..100).map(|i| Endpoint::at(format!("e{i}").as_str())).collect();
        let kept: Vec<_> = list.iter().map(Numbered::new).collect();
        list.remove(10);
        list.insert(50, Endpoint::at("new"));
        list[80] = Endpoint::at("other");
        let segment = |same, removed, added| DiffSegment { same, removed, added };
        let expected = [segment(10, 1, 0), segment(40, 0, 1), segment(29, 1, 1), segment(19, 0, 0)];
        assert_eq!(compare(&kept, &list), expected);
    }
}
