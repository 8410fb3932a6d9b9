//! A rota: the ready members of a fleet, each in turn, as often as its weight says.
//!
//! What `round_robin`, `edf_weighted_round_robin` and `weighted_round_robin` have in common. An [`Order`] is an
//! immutable snapshot for pickers; the [`Rota`] replaces it when the ready members, their subchannels, their weights or
//! the rule differ, and keeps it otherwise. The sequence goes on over replacements: who stays keeps its place. Picks are
//! counted by the order itself, so that counting costs a call nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::conn::Eagerness;
use crate::describe::{Description, EndpointRow, Look};
use crate::policy::dormant::DormantState;
use crate::policy::{LbState, Shown};
use crate::schedule::{Rule, Schedule};
use crate::{
    Call, Connectivity, Cx, Endpoint, Endpoints, Fleet, Instant, Member, Pick, Picker, Status, SubchannelId,
};

/// A whole policy that does nothing but take turns, by weights that are known from the endpoints.
#[derive(Debug, Default)]
pub(super) struct Rotation {
    fleet: Fleet<Place>,
    rota: Rota,
    shown: Shown<(Seen, ())>,
    /// Position in the order at the last check of how much of it is used up.
    checked: Option<Position>,
    dormant: DormantState,
}

impl Rotation {
    pub(super) fn reconcile(
        &mut self,
        endpoints: &Endpoints,
        weigh: impl Fn(&Endpoint) -> u32,
        cx: &mut Cx<'_>,
    ) -> LbState {
        self.fleet.reconcile(endpoints, Eagerness::Eager, cx);
        let weights: Vec<u32> = self.fleet.ready().map(|(member, _)| weigh(&member.endpoint)).collect();
        let is_unused = self.rota.position() == self.checked;
        let (was_dormant, is_due) = (self.rota.is_dormant, self.rota.is_check_due(cx.now()));
        let is_dormant = is_unused && (was_dormant || is_due);
        self.rota.reconcile(&mut self.fleet, &weights, Rule::Literal, is_dormant, cx);
        if is_due || was_dormant {
            self.checked = self.rota.position();
        }
        let state = self.rota.show(&self.fleet, &mut self.shown, (), cx, |order| LbState {
            connectivity: Connectivity::Ready,
            picker: order,
        });
        self.dormant.show(state, is_dormant)
    }

    /// Rows for all endpoints; `fill` adds what the policy has to say about weights.
    pub(super) fn describe(
        &self,
        look: &Look<'_>,
        fill: impl Fn(&Endpoint, &mut EndpointRow),
    ) -> Description {
        let mut description = Description::new();
        self.rota.describe(&self.fleet, &mut description, look, |member, row| fill(&member.endpoint, row));
        description
    }
}

/// The order in force.
#[derive(Debug, Default)]
pub(super) struct Rota {
    order: Option<Arc<Order>>,
    orders: u64,
    /// When to see how much of an open schedule is used up.
    check_at: Option<Instant>,
    /// No call is picked, so that nothing is used up.
    is_dormant: bool,
}

/// Number of an order and the position in it. It differs after each pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    order: u64,
    drawn: u64,
}

/// What a policy remembers about a member that takes turns.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// Its index in the order in force.
    index: Option<u32>,
    /// Its picks by earlier orders, as far as the one in force does not count them.
    before: u64,
}

/// What a state was made from.
#[derive(Debug, PartialEq)]
pub(super) struct Seen {
    connectivity: Connectivity,
    failure: Option<Status>,
    order: Option<u64>,
}

impl Rota {
    /// Brings the order up to date with the ready members of the fleet, whose weights are given in their order. A dormant
    /// policy sets no timer.
    pub(super) fn reconcile<T: AsRef<Place> + AsMut<Place>>(
        &mut self,
        fleet: &mut Fleet<T>,
        weights: &[u32],
        rule: Rule,
        is_dormant: bool,
        cx: &mut Cx<'_>,
    ) {
        let wakes = std::mem::replace(&mut self.is_dormant, is_dormant) && !is_dormant;
        let stays = self.is_over(fleet) && self.order.as_ref().is_none_or(|order| order.has(weights, rule));
        let is_due = self.is_check_due(cx.now());
        if !stays || is_due && self.order.as_ref().is_some_and(|order| order.is_worn()) {
            self.replace(fleet, weights, rule, cx);
        }
        if !stays || is_due || wakes {
            self.check_at = None;
            if let Some(Turns::Scheduled(schedule)) = self.order.as_ref().map(|order| &order.turns) {
                schedule.prefill();
                self.check_at = (!schedule.is_cyclic()).then(|| cx.now() + CHECK);
            }
        }
        if is_dormant {
            self.check_at = None;
        }
        if let Some(at) = self.check_at {
            cx.wake_at(at);
        }
    }

    /// Returns the position in the order in force.
    pub(super) fn position(&self) -> Option<Position> {
        self.order.as_ref().map(|order| Position { order: order.number, drawn: order.drawn() })
    }

    fn is_check_due(&self, now: Instant) -> bool {
        self.check_at.is_some_and(|at| at <= now)
    }

    /// Whether the order in force is over exactly the ready members, with the subchannels that they have.
    pub(super) fn is_over<T: AsRef<Place>>(&self, fleet: &Fleet<T>) -> bool {
        let listed = self.order.as_ref().map_or(&[][..], |order| &order.ready);
        let mut ready = fleet.ready();
        let same = (0..).zip(listed).all(|(index, listed)| {
            ready.next().is_some_and(|(member, id)| id == *listed && member.own.as_ref().index == Some(index))
        });
        same && ready.next().is_none()
    }

    /// The same state as the last time if it was made from the same, else a new one; `extra` is what the
    /// policy's picker is made from besides the order.
    pub(super) fn show<T, K: PartialEq>(
        &self,
        fleet: &Fleet<T>,
        shown: &mut Shown<(Seen, K)>,
        extra: K,
        cx: &Cx<'_>,
        make: impl FnOnce(Arc<Order>) -> LbState,
    ) -> LbState {
        let connectivity = fleet.connectivity();
        let failing = connectivity == Connectivity::TransientFailure;
        let seen = Seen {
            connectivity,
            failure: failing.then(|| fleet.failure(cx)),
            order: self.order.as_ref().map(|order| order.number),
        };
        shown.show((seen, extra), |(seen, _)| match (&seen.failure, &self.order) {
            (Some(failure), _) => LbState::failing(failure.clone()),
            (None, Some(order)) => make(order.clone()),
            (None, None) => LbState::connecting(),
        })
    }

    /// Adds a row per endpoint with its share and picks; `fill` completes what the policy knows.
    pub(super) fn describe<T: AsRef<Place>>(
        &self,
        fleet: &Fleet<T>,
        description: &mut Description,
        look: &Look<'_>,
        fill: impl Fn(&Member<T>, &mut EndpointRow),
    ) {
        let order = self.order.as_deref();
        let picks = order.map(Order::picks).unwrap_or_default();
        fleet.describe(description, look, |_, member, row| {
            let place = member.own.as_ref();
            row.picks = place.before;
            if let Some((order, index)) = order.zip(place.index) {
                row.picks += picks.get(index as usize).copied().unwrap_or(0);
                row.share = Some(order.share(index as usize));
            }
            fill(member, row);
        });
    }

    fn replace<T: AsRef<Place> + AsMut<Place>>(
        &mut self,
        fleet: &mut Fleet<T>,
        weights: &[u32],
        rule: Rule,
        cx: &mut Cx<'_>,
    ) {
        let mut from = Vec::with_capacity(weights.len());
        let mut ready = Vec::with_capacity(weights.len());
        for (member, id) in fleet.ready() {
            from.push(member.own.as_ref().index);
            ready.push(id);
        }
        let old = self.order.take();
        let heir = match old.as_ref().map(|order| &order.turns) {
            Some(Turns::Scheduled(old)) if weights.len() > 1 => old.succeed(weights, rule, &from),
            _ => None,
        };
        resettle(fleet, old.as_deref(), heir.is_some());
        let turns = match heir {
            Some(heir) => Some(Turns::Scheduled(heir)),
            None if weights.len() == 1 => Some(Turns::Single(AtomicU64::new(0))),
            None => Schedule::new(weights, rule).map(|schedule| {
                Turns::Scheduled(match cx.rng().phase() {
                    Some(random) => schedule.at_random_phase(random),
                    None => schedule,
                })
            }),
        };
        self.orders += 1;
        let number = self.orders;
        self.order = turns.map(|turns| Arc::new(Order { number, ready: ready.into(), turns }));
    }
}

/// Gives every ready member its place in a new order. Who is not carried over takes its picks along.
fn resettle<T: AsRef<Place> + AsMut<Place>>(fleet: &mut Fleet<T>, old: Option<&Order>, carried: bool) {
    let leaves =
        |member: &Member<T>| member.own.as_ref().index.is_some() && !(carried && member.ready().is_some());
    // Counting walks over what was handed out: only if somebody leaves.
    let picks = old.filter(|_| fleet.members().iter().any(leaves)).map(Order::picks).unwrap_or_default();
    let mut next = 0;
    for member in fleet.members_mut() {
        let (leaves, is_ready) = (leaves(member), member.ready().is_some());
        let place = member.own.as_mut();
        if let Some(index) = place.index.take().filter(|_| leaves) {
            place.before += picks.get(index as usize).copied().unwrap_or(0);
        }
        if is_ready {
            place.index = Some(next);
            next += 1;
        }
    }
}

/// Subchannels in turn, at least one.
#[derive(Debug)]
pub(super) struct Order {
    number: u64,
    ready: Box<[SubchannelId]>,
    turns: Turns,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one per policy, and calls should not follow another pointer")]
enum Turns {
    /// One endpoint needs no schedule (WRR-16), but its picks count.
    Single(AtomicU64),
    Scheduled(Schedule),
}

impl Position {
    /// Returns true if both are positions in the same order.
    pub(super) fn is_in_order_of(self, other: Position) -> bool {
        self.order == other.order
    }
}

impl Order {
    /// Whose turn it is: the index among the ready members, and the subchannel.
    #[inline]
    pub(super) fn next(&self) -> (usize, SubchannelId) {
        let index = match &self.turns {
            Turns::Scheduled(schedule) => schedule.pick(),
            Turns::Single(picks) => {
                picks.fetch_add(1, Ordering::Relaxed);
                0
            }
        };
        (index, self.ready[index])
    }

    fn has(&self, weights: &[u32], rule: Rule) -> bool {
        match &self.turns {
            Turns::Scheduled(schedule) => schedule.rule() == rule && schedule.weights() == weights,
            Turns::Single(_) => weights.len() == 1,
        }
    }

    /// Returns a number that differs after each pick.
    fn drawn(&self) -> u64 {
        match &self.turns {
            Turns::Scheduled(schedule) => schedule.position(),
            Turns::Single(picks) => picks.load(Ordering::Relaxed),
        }
    }

    fn is_worn(&self) -> bool {
        matches!(&self.turns, Turns::Scheduled(schedule) if schedule.is_worn())
    }

    fn picks(&self) -> Vec<u64> {
        match &self.turns {
            Turns::Scheduled(schedule) => schedule.picks(),
            Turns::Single(picks) => vec![picks.load(Ordering::Relaxed)],
        }
    }

    fn share(&self, index: usize) -> f64 {
        match &self.turns {
            Turns::Scheduled(schedule) => schedule.share(index),
            Turns::Single(_) => 1.0,
        }
    }
}

impl Picker for Order {
    fn pick(&self, _: &Call<'_>) -> Pick {
        Pick::to(self.next().1)
    }
}

impl AsRef<Place> for Place {
    fn as_ref(&self) -> &Place {
        self
    }
}

impl AsMut<Place> for Place {
    fn as_mut(&mut self) -> &mut Place {
        self
    }
}

/// How often an open schedule is looked after: often enough that picks find their slots ready.
const CHECK: Duration = Duration::from_secs(1);
