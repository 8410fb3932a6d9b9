//! Instructions and allocations of a pick, for every policy, alone and below the whole tree.
//!
//! One process makes all picks, so that valgrind starts once. The cost of the loop around the picks is
//! measured and subtracted.

use std::fmt;

use super::cell;
use super::marks::{self, mark};
use crate::Error;
use crate::common::allocator::Totals;
use crate::picks::{POLICIES, PickHarness, Picks, Policy, Tree};
use crate::table::Table;

/// Number of counted picks of each kind.
pub(super) const PICKS: u64 = 4_000;

/// Source of the picks.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    policy: Policy,
    tree: Tree,
    endpoints: usize,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tree = match self.tree {
            Tree::Alone => "alone",
            Tree::Whole => "whole tree",
        };
        write!(f, "{}, {tree}, {} endpoints", self.policy.name, self.endpoints)
    }
}

/// Cost of one pick of a kind.
pub(super) struct Counted {
    pub(super) kind: Kind,
    /// `None` if valgrind is missing.
    pub(super) instructions: Option<f64>,
    pub(super) allocations: f64,
}

fn kinds(sizes: &[usize]) -> Vec<Kind> {
    let of_tree = |tree| {
        POLICIES
            .into_iter()
            .flat_map(move |policy| sizes.iter().map(move |&endpoints| Kind { policy, tree, endpoints }))
    };
    [Tree::Alone, Tree::Whole].into_iter().flat_map(of_tree).collect()
}

/// Worker process: prints the allocations of each kind, and marks the start and the end of its picks.
pub(super) fn work(picks: u64, sizes: &[usize]) -> Result<(), Error> {
    for (kind, is_first) in kinds(sizes).into_iter().zip([true].into_iter().chain(std::iter::repeat(false))) {
        let mut harness = PickHarness::new(kind.policy, kind.tree, kind.endpoints, picks)?;
        // Usage of the schedule decides how many slots are computed ahead.
        all(picks, harness.picker())?;
        harness.a_second_later();
        if is_first {
            count(picks, |i| harness.picker().around(i))?;
        }
        count(picks, |i| harness.picker().pick(i)).map_err(|error| format!("{kind}: {error}"))?;
    }
    Ok(())
}

fn all(picks: u64, from: Picks<'_>) -> Result<(), Error> {
    if (0..picks).all(|i| from.pick(i)) { Ok(()) } else { Err("a pick found no connected endpoint".into()) }
}

fn count(picks: u64, pick: impl Fn(u64) -> bool) -> Result<(), Error> {
    mark();
    let (before, _) = Totals::now();
    let good = (0..picks).all(pick);
    let (after, _) = Totals::now();
    mark();
    println!("{}", after - before);
    if good { Ok(()) } else { Err("a pick found no connected endpoint".into()) }
}

/// Counts the pick of every kind in a worker process.
pub(super) fn counted(sizes: &[usize]) -> Result<Vec<Counted>, Error> {
    let (allocations, sections) = marks::count("picks", PICKS, sizes)?;
    figures(&kinds(sizes), &allocations, sections.as_deref())
}

/// Evaluates the sections: the loop first, then preparation and picks alternate.
fn figures(kinds: &[Kind], allocations: &[f64], sections: Option<&[f64]>) -> Result<Vec<Counted>, Error> {
    let sections: Option<Vec<f64>> =
        sections.map(|sections| sections.iter().skip(1).step_by(2).copied().collect());
    let all = sections.as_deref();
    let expected = kinds.len() + 1;
    if allocations.len() != expected || all.is_some_and(|all| all.len() != expected) {
        let found = all.map_or(allocations.len(), <[f64]>::len);
        return Err(format!("expected counts of {expected} kinds of picks, found {found}").into());
    }
    let of_each = |i: usize| {
        let around = all?.first()?;
        Some((all?.get(i)? - around) / PICKS as f64)
    };
    let counted = |(i, (&kind, allocations)): (usize, (&Kind, &f64))| Counted {
        kind,
        instructions: of_each(i + 1),
        allocations: allocations / PICKS as f64,
    };
    Ok(kinds.iter().zip(&allocations[1..]).enumerate().map(counted).collect())
}

pub(super) fn table(sizes: &[u16]) -> Result<Table, Error> {
    let sizes: Vec<usize> = sizes.iter().copied().map(usize::from).collect();
    let columns = ["policy", "tree", "endpoints", "instructions", "allocations"];
    let mut table = Table::new("A pick, counted", &columns)
        .note(format!("A pick and the end of its call, of {PICKS} with a precomputed schedule."));
    for Counted { kind, instructions, allocations } in counted(&sizes)? {
        let names = [
            kind.policy.name.to_owned(),
            format!("{:?}", kind.tree).to_lowercase(),
            kind.endpoints.to_string(),
        ];
        table.row(names.into_iter().chain([cell(instructions, 1), cell(Some(allocations), 2)]).collect());
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_around_picks_is_taken_off() {
        let kinds = kinds(&[10]);
        let n = PICKS as f64;
        // Start, loop, then preparation and picks alternating, and the end.
        let mut sections = vec![9e9, 10.0 * n];
        for i in 0..kinds.len() {
            sections.extend([7e9, (110.0 + i as f64) * n]);
        }
        sections.push(5e6);
        let allocations: Vec<f64> = (0..=kinds.len()).map(|i| i as f64 * n).collect();
        let counted = figures(&kinds, &allocations, Some(&sections)).expect("whole");
        let instructions: Vec<_> = counted.iter().map(|counted| counted.instructions).collect();
        assert_eq!(instructions[..3], [Some(100.0), Some(101.0), Some(102.0)]);
        assert!((counted[2].allocations - 3.0).abs() < 1e-9);
        let unknown = figures(&kinds, &allocations, None).expect("whole");
        assert!(unknown.iter().all(|counted| counted.instructions.is_none()));
        assert!(figures(&kinds, &allocations[1..], None).is_err());
        assert!(figures(&kinds, &allocations, Some(&sections[2..])).is_err());
    }
}
