//! Priorities under constant edits.

use std::collections::BTreeSet;

use evenkeel_core::Rng;

use super::{Priorities, existing, secs, sim, update};

/// Priorities to choose from: a policy over some endpoints. The name of the child is chosen at each edit.
const PARTS: [(&str, &str); 8] = [
    ("round_robin", "ab"),
    ("pick_first", "c"),
    ("round_robin", "def"),
    ("round_robin", "g"),
    ("pick_first", "hi"),
    ("round_robin", "jk"),
    ("pick_first", "l"),
    ("round_robin", "mno"),
];

struct Edited {
    rng: Rng,
    /// Priorities from the top: index of the part, and number in the child's name.
    list: Vec<(usize, u64)>,
    named: u64,
}

impl Edited {
    /// Makes one edit: swaps two priorities, or renames, removes or adds one. The list is never empty.
    fn edit(&mut self) {
        let at = self.below(self.list.len());
        match self.below(4) {
            0 => {
                let other = self.below(self.list.len());
                self.list.swap(at, other);
            }
            1 => self.list[at].1 = self.fresh(),
            2 if self.list.len() > 1 => {
                self.list.remove(at);
            }
            _ => {
                let free: Vec<usize> =
                    (0..PARTS.len()).filter(|part| self.list.iter().all(|(used, _)| used != part)).collect();
                if let Some(&part) = free.get(self.below(free.len())) {
                    let name = self.fresh();
                    self.list.insert(at, (part, name));
                }
            }
        }
    }

    fn fresh(&mut self) -> u64 {
        self.named += 1;
        self.named
    }

    fn below(&mut self, bound: usize) -> usize {
        self.rng.below(bound as u64) as usize
    }

    fn apply<T>(&self, apply: impl FnOnce(Priorities<'_>) -> T) -> T {
        let names: Vec<String> = self.list.iter().map(|(_, name)| format!("child{name}")).collect();
        let list: Vec<_> = self
            .list
            .iter()
            .zip(&names)
            .map(|((part, _), name)| {
                let (policy, endpoints) = PARTS[*part];
                (name.as_str(), policy, endpoints)
            })
            .collect();
        apply(&list)
    }
}

/// fault 63: with every backend up, 1,000 edits fail no call. Retained connections are not dialled again.
/// Calls queue only while no endpoint of the top priority is connected.
#[test]
fn a_thousand_edits_fail_no_call_and_reconnect_nothing() {
    let mut edited = Edited { rng: Rng::fixed(63), list: vec![(0, 0)], named: 0 };
    let mut sim = edited.apply(sim);
    let mut connected = BTreeSet::new();
    let (mut waits, mut kept) = (0, 0);
    for step in 0..1_000 {
        let before = edited.list.clone();
        edited.edit();
        edited.apply(|list| update(&mut sim, list));
        let (_, top) = PARTS[edited.list[0].0];
        let is_top = |outcome: &String| top.contains(outcome.as_str());
        let context = format!("step {step}: {before:?} to {:?}", edited.list);

        let dialled = sim.dialled();
        assert!(dialled.iter().all(|address| !connected.contains(address)), "{dialled:?} again; {context}");
        for address in sim.closed() {
            connected.remove(&address);
        }
        let none_connected = !top.chars().any(|c| connected.contains(&c.to_string()));
        for outcome in sim.picks(3) {
            let queues_rightly = none_connected && outcome == "queue";
            assert!(is_top(&outcome) || queues_rightly, "picked {outcome}; {context}");
            waits += usize::from(queues_rightly);
        }
        for address in dialled {
            sim.ready(&address);
            connected.insert(address);
        }
        assert!(sim.picks(3).iter().all(is_top), "{context}");
        kept += existing(&sim).len() - 1;
        if edited.below(5) == 0 {
            sim.advance(secs(100));
            for address in sim.closed() {
                connected.remove(&address);
            }
        }
    }
    assert!(waits > 100 && kept > 300, "the edits covered too little: {waits} waits, {kept} kept");
}
