//! Rule that decides what runs in a pass.
//!
//! The policy tree is an incremental computation. Each node memoizes the state that its policy returned last, and each
//! change advances one [`RevisionClock`]. A value has two revisions: `changed_at`, its last change, and `verified_at`,
//! the last time that the engine knew the memo to be current. A pass treats a node in one of three ways
//! ([`PassAction`]):
//!
//! 1. It runs the policy if its inputs (config, endpoints, scope) are not identical to those of the last run, or if one
//!    of its dependencies changed after `verified_at`. Dependencies are the subchannels that it holds, its timer, and
//!    the clusters and endpoint sets that it read.
//! 2. If only dependencies of descendants changed, it verifies the children first. The node runs only if the state of
//!    a child changed. This applies to the policies in [`pure_parent`](crate::engine::pure_parent); all others run.
//! 3. Otherwise it reuses the memo.
//!
//! The same comparison decides for the parts of a policy that are memoized one by one:
//! the connections of an [`EndpointList`](crate::EndpointList) and the tables of subchannels by address. Policies
//! cannot take part in the decision, so they cannot leave an outdated picker in use.
//!
//! An idle pass therefore costs the same for any number of endpoints, and one changed endpoint runs its ancestors only.

/// Point in the history of changes. The default value precedes every change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Revision(u64);

impl Revision {
    /// Returns the compact form.
    pub(crate) fn compact(self) -> CompactRevision {
        CompactRevision(self.0 as u32)
    }
}

/// Low half of a revision, for tables with an entry per endpoint: a subchannel slot stays at 16 bytes.
///
/// The clock invalidates every memo once per [`COMPACT_RANGE`] revisions. The next pass verifies all of them again, so that the
/// compact forms that are compared are never a full turn of the counter apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompactRevision(u32);

/// Number of revisions after which the clock invalidates every memo.
const COMPACT_RANGE: u64 = 1 << 31;

/// Counter of all changes that policies can observe.
#[derive(Debug, Default)]
pub(crate) struct RevisionClock {
    current: Revision,
    /// Memos that were verified before this revision are outdated.
    invalidated_at: Revision,
}

impl RevisionClock {
    /// Returns the revision of the last change.
    pub(crate) fn current(&self) -> Revision {
        self.current
    }

    /// Starts the next revision, for a change or a run.
    pub(crate) fn advance(&mut self) -> Revision {
        self.current.0 += 1;
        if self.current.0.is_multiple_of(COMPACT_RANGE) {
            self.invalidated_at = self.current;
        }
        self.current
    }

    /// Invalidates every memo, for a full pass.
    pub(crate) fn invalidate_all(&mut self) {
        self.invalidated_at = self.advance();
    }

    /// Returns true if a memo that was verified at `verified_at` is current, given the last change of its dependencies.
    pub(crate) fn is_current(&self, verified_at: Revision, changed_at: Revision) -> bool {
        // Each change advances the clock, so a change after the verification has a later revision.
        changed_at <= verified_at && self.invalidated_at <= verified_at
    }

    /// Acts as [`RevisionClock::is_current`] on compact revisions. A change that is older than the counter's range may count as a
    /// recent one, which costs one needless verification.
    pub(crate) fn is_current_compact(
        &self,
        verified_at: CompactRevision,
        changed_at: CompactRevision,
    ) -> bool {
        let current = self.current.compact().0;
        let verified_age = current.wrapping_sub(verified_at.0);
        // The forms wrap, so ages are compared: of two revisions the older one has the greater age.
        verified_age <= current.wrapping_sub(changed_at.0)
            && u64::from(verified_age) <= self.current.0 - self.invalidated_at.0
    }
}

/// Treatment of a node in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassAction {
    /// Run the policy again.
    Run,
    /// Verify the children, and run the policy if the state of one of them changed.
    VerifyChildren,
    /// Reuse the state that the policy returned last.
    Reuse,
}

/// Revisions of one node of the policy tree.
#[expect(clippy::struct_field_names, reason = "these are the terms of incremental computation")]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NodeRevisions {
    /// Revision at which the memoized state was last known to be current; the default if the policy never ran.
    verified_at: Revision,
    /// Last change of a dependency of the node itself.
    changed_at: Revision,
    /// Last change of a dependency of a descendant.
    descendant_changed_at: Revision,
}

impl NodeRevisions {
    /// Returns true if the policy has run.
    pub(crate) fn has_run(&self) -> bool {
        self.verified_at > Revision::default()
    }

    /// Decides what a pass does with the node.
    pub(crate) fn action(&self, inputs_unchanged: bool, clock: &RevisionClock) -> PassAction {
        // A node that never ran has no change after its `verified_at` either, so `has_run` is checked separately.
        if !inputs_unchanged || !self.has_run() || !clock.is_current(self.verified_at, self.changed_at) {
            PassAction::Run
        } else if self.descendant_changed_at > self.verified_at {
            PassAction::VerifyChildren
        } else {
            PassAction::Reuse
        }
    }

    /// Returns true if a pass has to run the node or to verify its children.
    pub(crate) fn is_outdated(&self, clock: &RevisionClock) -> bool {
        self.action(true, clock) != PassAction::Reuse
    }

    /// Returns true if every child was run or verified after the last invalidation of all memos.
    pub(crate) fn has_valid_children(&self, clock: &RevisionClock) -> bool {
        // Only invalidations count here. Changes of single children are listed as outdated children.
        self.has_run() && clock.is_current(self.verified_at, Revision::default())
    }

    /// Records a change of a dependency of the node.
    pub(crate) fn set_changed(&mut self, at: Revision) {
        self.changed_at = at;
    }

    /// Records a change of a dependency of a descendant.
    pub(crate) fn set_descendant_changed(&mut self, at: Revision) {
        self.descendant_changed_at = at;
    }

    /// Records that the memoized state is current. Changes during a run get later revisions and are not lost.
    pub(crate) fn set_verified(&mut self, at: Revision) {
        self.verified_at = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_runs_for_its_inputs_and_dependencies_only() {
        let mut clock = RevisionClock::default();
        let mut node = NodeRevisions::default();
        assert_eq!(node.action(true, &clock), PassAction::Run, "it has not run yet");

        node.set_verified(clock.advance());
        assert_eq!(node.action(true, &clock), PassAction::Reuse);
        assert_eq!(node.action(false, &clock), PassAction::Run);

        clock.advance();
        assert_eq!(node.action(true, &clock), PassAction::Reuse, "the change is elsewhere");
        node.set_descendant_changed(clock.advance());
        assert_eq!(node.action(true, &clock), PassAction::VerifyChildren);
        node.set_changed(clock.advance());
        assert_eq!(node.action(true, &clock), PassAction::Run);
    }

    #[test]
    fn a_change_during_a_run_outdates_its_result() {
        let mut clock = RevisionClock::default();
        let mut node = NodeRevisions::default();
        node.set_verified(clock.advance());
        node.set_changed(clock.advance());
        assert_eq!(node.action(true, &clock), PassAction::Run);
        node.set_verified(clock.advance());
        assert_eq!(node.action(true, &clock), PassAction::Reuse);
    }

    #[test]
    fn compact_revisions_are_compared_across_the_wrap() {
        let near_wrap = Revision(u64::from(u32::MAX) - 1);
        let mut clock = RevisionClock { current: near_wrap, invalidated_at: Revision(COMPACT_RANGE) };
        let before = clock.current().compact();
        assert!(clock.is_current_compact(before, before));
        let last = clock.advance().compact();
        assert!(clock.is_current_compact(last, before));
        assert!(!clock.is_current_compact(before, last));
        let wrapped = clock.advance().compact();
        assert!(!clock.is_current_compact(last, before), "the clock invalidated every memo");
        assert!(clock.is_current_compact(wrapped, last));
        assert!(!clock.is_current_compact(last, wrapped));
    }

    #[test]
    fn invalidation_reaches_every_memo_once() {
        let mut clock = RevisionClock::default();
        let mut node = NodeRevisions::default();
        node.set_verified(clock.advance());
        assert!(clock.is_current(clock.current(), Revision::default()));
        let verified_at = clock.current();
        clock.invalidate_all();
        assert!(!clock.is_current(verified_at, Revision::default()));
        assert_eq!(node.action(true, &clock), PassAction::Run);
        assert!(!node.has_valid_children(&clock));
        node.set_verified(clock.advance());
        assert_eq!(node.action(true, &clock), PassAction::Reuse);
        assert!(node.has_valid_children(&clock));
    }
}
