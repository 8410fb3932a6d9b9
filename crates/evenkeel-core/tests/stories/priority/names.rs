//! Child names that follow localities.

use std::collections::BTreeSet;

use evenkeel_core::policy::PriorityNames;
use proptest::prelude::*;

use super::{deactivated, existing, secs, sim, update};

fn assign(names: &mut PriorityNames<String>, priorities: &[&[&str]]) -> Vec<String> {
    let priorities = priorities.iter().map(|localities| localities.iter().map(ToString::to_string));
    names.assign(priorities).iter().map(ToString::to_string).collect()
}

/// PR-10: the example of A115, then cases that it does not define.
#[test]
fn names_follow_localities() {
    let mut names = PriorityNames::new("child");
    for (priorities, expected) in [
        (&[&["AA", "BB"][..], &["CC", "DD"]][..], &["child0", "child1"][..]),
        (&[&["CC"], &["DD", "EE"]], &["child1", "child2"]),
        (&[&["AA", "BB"], &["CC", "DD"]], &["child3", "child1"]),
        // Swapped, merged, split.
        (&[&["DD", "CC"], &["AA", "BB"]], &["child1", "child3"]),
        (&[&["AA", "CC", "BB", "DD"]], &["child3"]),
        (&[&["AA"], &["BB"], &["CC", "DD"]], &["child3", "child4", "child5"]),
        // Without any priority, every name is released.
        (&[], &[]),
        (&[&["AA"]], &["child6"]),
        // A locality in two priorities, and priorities without localities, keep their names.
        (&[&["AA"], &["AA"], &[], &[]], &["child6", "child7", "child8", "child9"]),
        (&[&["AA"], &["AA"], &[], &[]], &["child6", "child7", "child8", "child9"]),
        (&[&["AA", "AA"], &["AA"], &[]], &["child6", "child7", "child8"]),
    ] {
        assert_eq!(assign(&mut names, priorities), expected, "{priorities:?}");
    }
}

proptest! {
    /// PR-10: names are unique, never reused after their release, and kept when nothing changed. A priority
    /// takes a name only from one with a common locality.
    #[test]
    fn names_are_unique_stable_and_never_reused(
        updates in prop::collection::vec(prop::collection::vec(prop::collection::vec(0..8u8, 0..4), 0..5), 1..12)
    ) {
        let mut names = PriorityNames::new("p");
        let mut seen = BTreeSet::new();
        let mut last: Vec<(_, Vec<u8>)> = Vec::new();
        for update in updates {
            let given = names.assign(update.clone());
            prop_assert_eq!(given.len(), update.len());
            prop_assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), given.len());
            for (name, localities) in given.iter().zip(&update) {
                let earlier = last.iter().find(|(earlier, _)| earlier == name).map(|(_, theirs)| theirs);
                let shares = |theirs: &Vec<u8>| {
                    (theirs.is_empty() && localities.is_empty()) || localities.iter().any(|l| theirs.contains(l))
                };
                prop_assert!(earlier.map_or(!seen.contains(name), shares), "{name} for {localities:?} after {last:?}");
            }
            seen.extend(given.iter().cloned());
            prop_assert_eq!(&names.assign(update.clone()), &given);
            last = given.into_iter().zip(update).collect();
        }
    }
}

/// PR-10: localities that move from p1 to p0 keep their child, and nothing reconnects.
#[test]
fn a_locality_that_moves_up_keeps_its_child_and_its_connections() {
    let mut names = PriorityNames::new("child");
    let mut name = |priorities: &[&[&str]]| assign(&mut names, priorities);

    let before = name(&[&["a", "b"], &["c", "d"]]);
    let mut sim = sim(&[(&before[0], "round_robin", "ab"), (&before[1], "round_robin", "cd")]);
    sim.down("a");
    sim.down("b");
    sim.up("c");
    sim.up("d");
    assert_eq!(sim.letters(4), "cdcd");
    sim.dialled();

    let after = name(&[&["c", "d"], &["e"]]);
    assert_eq!(after, ["child1", "child2"]);
    sim.published();
    update(&mut sim, &[(&after[0], "round_robin", "cd"), (&after[1], "round_robin", "e")]);
    assert_eq!((sim.letters(4), existing(&sim)), ("cdcd".to_owned(), vec!["child1".to_owned()]));
    assert_eq!(sim.published(), 0, "for calls nothing changed");
    assert!(sim.dialled().is_empty());
    assert_eq!(sim.closed(), ["a", "b"]);

    // Back again: the child moves down. A new child goes before it and has its own ten seconds.
    let back = name(&[&["a", "b"], &["c", "d"]]);
    assert_eq!(back, ["child3", "child1"]);
    update(&mut sim, &[(&back[0], "round_robin", "ab"), (&back[1], "round_robin", "cd")]);
    assert_eq!((sim.letters(2), sim.dialled()), ("cd".to_owned(), vec!["a".to_owned(), "b".to_owned()]));
    sim.up("a");
    sim.advance(secs(3));
    assert_eq!((sim.letters(2), deactivated(&sim)), ("aa".to_owned(), vec!["child1".to_owned()]));
    assert!(sim.closed().is_empty());
}
