//! Weighted scheduling over the ready endpoints of a list.
//!
//! Shared by `round_robin`, `edf_weighted_round_robin` and `weighted_round_robin`. A [`ScheduledPicker`] is
//! an immutable snapshot. The [`WeightedScheduler`] replaces it if the ready endpoints, their subchannels,
//! their weights or the rule change, and keeps it otherwise. The pick sequence continues over replacements:
//! endpoints that stay keep their position. Pick counts are derived from the schedule's position, so that
//! counting costs a pick nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::endpoint::connection::ConnectMode;
use crate::engine::describe::{DescribeCx, Description, EndpointRow};
use crate::policy::dormant::DormantState;
use crate::policy::{CachedState, LbState};
use crate::schedule::{Schedule, ScheduleRule};
use crate::{
    ConnectivityState, Cx, Endpoint, EndpointEntry, EndpointList, Endpoints, Instant, PickArgs, PickResult,
    Picker, Status, SubchannelId,
};

/// Complete policy that picks endpoints in turn by weights that depend on the endpoints alone.
#[derive(Debug, Default)]
pub(super) struct StaticWrr {
    list: EndpointList<SchedulerSlot>,
    scheduler: WeightedScheduler,
    cached: CachedState<(SchedulerInputs, ())>,
    /// Position in the schedule at the last refill check.
    checked: Option<SchedulePosition>,
    dormant: DormantState,
}

impl StaticWrr {
    pub(super) fn reconcile(
        &mut self,
        endpoints: &Endpoints,
        weigh: impl Fn(&Endpoint) -> u32,
        cx: &mut Cx<'_>,
    ) -> LbState {
        self.list.reconcile(endpoints, ConnectMode::Eager, cx);
        let weights: Vec<u32> = self.list.ready().map(|(member, _)| weigh(&member.endpoint)).collect();
        let is_unused = self.scheduler.position() == self.checked;
        let (was_dormant, is_due) = (self.scheduler.is_dormant, self.scheduler.is_check_due(cx.now()));
        let is_dormant = is_unused && (was_dormant || is_due);
        self.scheduler.reconcile(&mut self.list, &weights, ScheduleRule::Literal, is_dormant, cx);
        if is_due || was_dormant {
            self.checked = self.scheduler.position();
        }
        let state = self.scheduler.get_or_build(&self.list, &mut self.cached, (), cx, |order| LbState {
            connectivity: ConnectivityState::Ready,
            picker: order,
        });
        self.dormant.get_or_build(state, is_dormant)
    }

    /// Returns a row for each endpoint; `fill` adds the weights.
    pub(super) fn describe(
        &self,
        cx: &DescribeCx<'_>,
        fill: impl Fn(&Endpoint, &mut EndpointRow),
    ) -> Description {
        let mut description = Description::new();
        self.scheduler.describe(&self.list, &mut description, cx, |member, row| fill(&member.endpoint, row));
        description
    }
}

/// Owner of the current schedule.
#[derive(Debug, Default)]
pub(super) struct WeightedScheduler {
    order: Option<Arc<ScheduledPicker>>,
    orders: u64,
    /// Time of the next refill check; set only for an open-ended schedule.
    check_at: Option<Instant>,
    /// True while there are no picks, so that no slots are consumed.
    is_dormant: bool,
}

/// Schedule number and position in that schedule. It differs after each pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SchedulePosition {
    order: u64,
    drawn: u64,
}

/// Scheduler state of an endpoint.
#[derive(Debug, Default)]
pub(super) struct SchedulerSlot {
    /// Index of the endpoint in the current schedule.
    index: Option<u32>,
    /// Number of picks by earlier schedules that the current one does not count.
    before: u64,
}

/// Inputs of a state; a changed input rebuilds it.
#[derive(Debug, PartialEq)]
pub(super) struct SchedulerInputs {
    connectivity: ConnectivityState,
    failure: Option<Status>,
    order: Option<u64>,
}

impl WeightedScheduler {
    /// Updates the schedule to the ready endpoints, whose weights are given in list order. A dormant policy
    /// sets no timer.
    pub(super) fn reconcile<T: AsRef<SchedulerSlot> + AsMut<SchedulerSlot>>(
        &mut self,
        list: &mut EndpointList<T>,
        weights: &[u32],
        rule: ScheduleRule,
        is_dormant: bool,
        cx: &mut Cx<'_>,
    ) {
        let wakes = std::mem::replace(&mut self.is_dormant, is_dormant) && !is_dormant;
        let stays =
            self.covers_ready(list) && self.order.as_ref().is_none_or(|order| order.has(weights, rule));
        let is_due = self.is_check_due(cx.now());
        // A depleted schedule would make picks wait for its producer, so its successor takes over with a full
        // queue.
        if !stays || is_due && self.order.as_ref().is_some_and(|order| order.is_depleted()) {
            self.replace(list, weights, rule, cx);
        }
        if !stays || is_due || wakes {
            self.check_at = None;
            if let Some(PickSequence::Scheduled(schedule)) = self.order.as_ref().map(|order| &order.sequence)
            {
                schedule.prefill();
                self.check_at = (!schedule.is_cyclic()).then(|| cx.now() + CHECK_INTERVAL);
            }
        }
        if is_dormant {
            self.check_at = None;
        }
        if let Some(at) = self.check_at {
            cx.wake_at(at);
        }
    }

    /// Returns the position in the current schedule.
    pub(super) fn position(&self) -> Option<SchedulePosition> {
        self.order.as_ref().map(|order| SchedulePosition { order: order.number, drawn: order.drawn() })
    }

    fn is_check_due(&self, now: Instant) -> bool {
        self.check_at.is_some_and(|at| at <= now)
    }

    /// Returns true if the current schedule covers exactly the ready endpoints, with their current
    /// subchannels.
    pub(super) fn covers_ready<T: AsRef<SchedulerSlot>>(&self, list: &EndpointList<T>) -> bool {
        let listed = self.order.as_ref().map_or(&[][..], |order| &order.ready);
        let mut ready = list.ready();
        let same = (0..).zip(listed).all(|(index, listed)| {
            ready
                .next()
                .is_some_and(|(member, id)| id == *listed && member.data.as_ref().index == Some(index))
        });
        same && ready.next().is_none()
    }

    /// Returns the cached state if its inputs are unchanged, else builds one. `extra` is the part of the
    /// policy's inputs that is not in the schedule.
    pub(super) fn get_or_build<T, K: PartialEq>(
        &self,
        list: &EndpointList<T>,
        cached: &mut CachedState<(SchedulerInputs, K)>,
        extra: K,
        cx: &Cx<'_>,
        make: impl FnOnce(Arc<ScheduledPicker>) -> LbState,
    ) -> LbState {
        let connectivity = list.connectivity();
        let failing = connectivity == ConnectivityState::TransientFailure;
        let seen = SchedulerInputs {
            connectivity,
            failure: failing.then(|| list.failure(cx)),
            order: self.order.as_ref().map(|order| order.number),
        };
        cached.get_or_build((seen, extra), |(seen, _)| match (&seen.failure, &self.order) {
            (Some(failure), _) => LbState::failing(failure.clone()),
            (None, Some(order)) => make(order.clone()),
            (None, None) => LbState::connecting(),
        })
    }

    /// Adds a row for each endpoint with its share and picks; `fill` adds policy-specific columns.
    pub(super) fn describe<T: AsRef<SchedulerSlot>>(
        &self,
        list: &EndpointList<T>,
        description: &mut Description,
        cx: &DescribeCx<'_>,
        fill: impl Fn(&EndpointEntry<T>, &mut EndpointRow),
    ) {
        let order = self.order.as_deref();
        let picks = order.map(ScheduledPicker::picks).unwrap_or_default();
        list.describe(description, cx, |_, member, row| {
            let place = member.data.as_ref();
            row.picks = place.before;
            if let Some((order, index)) = order.zip(place.index) {
                row.picks += picks.get(index as usize).copied().unwrap_or(0);
                row.share = Some(order.share(index as usize));
            }
            fill(member, row);
        });
    }

    fn replace<T: AsRef<SchedulerSlot> + AsMut<SchedulerSlot>>(
        &mut self,
        list: &mut EndpointList<T>,
        weights: &[u32],
        rule: ScheduleRule,
        cx: &mut Cx<'_>,
    ) {
        let mut from = Vec::with_capacity(weights.len());
        let mut ready = Vec::with_capacity(weights.len());
        for (member, id) in list.ready() {
            from.push(member.data.as_ref().index);
            ready.push(id);
        }
        // Picks in progress complete on the old schedule (WRR-10).
        let old = self.order.take();
        let successor = match old.as_ref().map(|order| &order.sequence) {
            Some(PickSequence::Scheduled(old)) if weights.len() > 1 => old.successor(weights, rule, &from),
            _ => None,
        };
        reassign_slots(list, old.as_deref(), successor.is_some());
        let sequence = match successor {
            Some(successor) => Some(PickSequence::Scheduled(successor)),
            None if weights.len() == 1 => Some(PickSequence::Single(AtomicU64::new(0))),
            // Each first picker starts at a random index (RR-1).
            None => Schedule::new(weights, rule).map(|schedule| {
                PickSequence::Scheduled(match cx.rng().phase() {
                    Some(random) => schedule.at_random_phase(random),
                    None => schedule,
                })
            }),
        };
        self.orders += 1;
        let number = self.orders;
        self.order =
            sequence.map(|sequence| Arc::new(ScheduledPicker { number, ready: ready.into(), sequence }));
    }
}

/// Assigns every ready endpoint its index in the next schedule. An endpoint that the schedule does not carry
/// over keeps its pick count in the slot.
fn reassign_slots<T: AsRef<SchedulerSlot> + AsMut<SchedulerSlot>>(
    list: &mut EndpointList<T>,
    old: Option<&ScheduledPicker>,
    carried: bool,
) {
    let leaves = |member: &EndpointEntry<T>| {
        member.data.as_ref().index.is_some() && !(carried && member.ready().is_some())
    };
    // Counting picks walks the consumed slots, so it runs only if an endpoint leaves the schedule.
    let picks =
        old.filter(|_| list.entries().iter().any(leaves)).map(ScheduledPicker::picks).unwrap_or_default();
    let mut next = 0;
    for member in list.entries_mut() {
        let (leaves, is_ready) = (leaves(member), member.ready().is_some());
        let place = member.data.as_mut();
        if let Some(index) = place.index.take().filter(|_| leaves) {
            place.before += picks.get(index as usize).copied().unwrap_or(0);
        }
        if is_ready {
            place.index = Some(next);
            next += 1;
        }
    }
}

/// Snapshot of the ready subchannels with their pick sequence; never empty.
#[derive(Debug)]
pub(super) struct ScheduledPicker {
    number: u64,
    ready: Box<[SubchannelId]>,
    sequence: PickSequence,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one per policy, and calls should not follow another pointer")]
enum PickSequence {
    /// A single endpoint needs no schedule (WRR-16), only a pick count.
    Single(AtomicU64),
    Scheduled(Schedule),
}

impl SchedulePosition {
    /// Returns true if both positions belong to the same schedule.
    pub(super) fn is_in_order_of(self, other: SchedulePosition) -> bool {
        self.order == other.order
    }
}

impl ScheduledPicker {
    /// Returns the next index among the ready endpoints, with its subchannel.
    #[inline]
    pub(super) fn next(&self) -> (usize, SubchannelId) {
        let index = match &self.sequence {
            PickSequence::Scheduled(schedule) => schedule.pick(),
            PickSequence::Single(picks) => {
                picks.fetch_add(1, Ordering::Relaxed);
                0
            }
        };
        // The schedule has as many indexes as there are ready endpoints.
        (index, self.ready[index])
    }

    fn has(&self, weights: &[u32], rule: ScheduleRule) -> bool {
        match &self.sequence {
            PickSequence::Scheduled(schedule) => schedule.rule() == rule && schedule.weights() == weights,
            PickSequence::Single(_) => weights.len() == 1,
        }
    }

    /// Returns a number that differs after each pick.
    fn drawn(&self) -> u64 {
        match &self.sequence {
            PickSequence::Scheduled(schedule) => schedule.position(),
            PickSequence::Single(picks) => picks.load(Ordering::Relaxed),
        }
    }

    fn is_depleted(&self) -> bool {
        matches!(&self.sequence, PickSequence::Scheduled(schedule) if schedule.is_depleted())
    }

    fn picks(&self) -> Vec<u64> {
        match &self.sequence {
            PickSequence::Scheduled(schedule) => schedule.picks(),
            PickSequence::Single(picks) => vec![picks.load(Ordering::Relaxed)],
        }
    }

    fn share(&self, index: usize) -> f64 {
        match &self.sequence {
            PickSequence::Scheduled(schedule) => schedule.share(index),
            PickSequence::Single(_) => 1.0,
        }
    }
}

impl Picker for ScheduledPicker {
    fn pick(&self, _: &PickArgs<'_>) -> PickResult {
        PickResult::complete(self.next().1)
    }
}

impl AsRef<SchedulerSlot> for SchedulerSlot {
    fn as_ref(&self) -> &SchedulerSlot {
        self
    }
}

impl AsMut<SchedulerSlot> for SchedulerSlot {
    fn as_mut(&mut self) -> &mut SchedulerSlot {
        self
    }
}

/// Interval of refill checks for open-ended schedules; short enough for picks to find slots ready.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
