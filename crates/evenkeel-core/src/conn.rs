//! The connection of one endpoint: pick_first over its addresses (A61, A62).
//!
//! Every policy above uses this as its leaf, so that an endpoint with several addresses behaves the same everywhere:
//!
//! ```text
//!                 asked for                      one is ready
//!       Idle ──────────────────▶ Pass ─────────────────────────▶ Ready
//!        ▲                        │  every address failed once     │
//!        │                        ▼                                │
//!        │                      Retry ── one is ready ────────────▶│
//!        └──────────────────── connection lost ◀───────────────────┘
//! ```
//!
//! In a *pass* addresses are tried in order, the next one when the last one failed or after the attempt delay (Happy
//! Eyeballs); earlier attempts go on. In *retry* every address is tried again whenever its own back-off is over. A
//! connection that failed counts as failed until it is ready (sticky TRANSIENT_FAILURE).
//!
//! A subchannel whose connection was lost is kept until another one is ready, for its history: the next attempt at its address may
//! have to be paced, also if other addresses are tried before.

use std::sync::Arc;

use crate::few::Few;
use crate::{Address, Connectivity, Cx, Instant, Subchannel, SubchannelId};

/// The connection of one endpoint.
#[derive(Debug, Default)]
pub struct Conn {
    phase: Phase,
    /// The only subchannel that its state depends on, if there is one: while nothing happens to it, nothing happens here.
    sole: Option<SubchannelId>,
    /// Failed, and not ready since.
    failed: bool,
    /// Ready at some time, if only between two looks.
    was_ready: bool,
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Idle,
    /// Idle since the connection of this subchannel was lost.
    Lost(SubchannelId),
    Trying(Box<Attempts>),
    Ready(SubchannelId),
}

#[derive(Debug)]
struct Attempts {
    addresses: Arc<[Address]>,
    /// Subchannels tried so far, in the order of the addresses, each with its failure count when the pass began.
    tried: Few<(SubchannelId, u32)>,
    /// When the next address joins although the last one has not failed.
    next_at: Option<Instant>,
    /// Every address has failed once.
    passed: bool,
    /// All failures when re-resolution was last asked for.
    reported: u32,
    /// The subchannel whose connection was lost last.
    lost: Option<SubchannelId>,
}

/// How an endpoint is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnState {
    /// The state; an endpoint without addresses is in TRANSIENT_FAILURE.
    pub connectivity: Connectivity,
    /// Ready: the one to use. Idle: the one to wake. Failed: the one that failed last. Connecting: one that tries.
    pub subchannel: Option<SubchannelId>,
}

/// Whether to leave IDLE without being asked by a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eagerness {
    /// Connect at once, and again whenever the connection is lost.
    Eager,
    /// Wait for a call or for the application.
    Lazy,
    /// Wait until a call or the policy wakes the subchannel; what the application asks for is the policy's to answer.
    OnCall,
}

impl Conn {
    /// Looks at the subchannels of the endpoint, starts what should be started, and answers the state.
    pub fn reconcile(
        &mut self,
        addresses: &Arc<[Address]>,
        eagerness: Eagerness,
        cx: &mut Cx<'_>,
    ) -> ConnState {
        let Some(first) = addresses.first() else {
            *self = Conn { failed: true, ..Conn::default() };
            return ConnState { connectivity: Connectivity::TransientFailure, subchannel: None };
        };
        let mut lost = None;
        let attempts = match std::mem::take(&mut self.phase) {
            Phase::Ready(id) => match cx.look(id).filter(|chosen| is_one_of(chosen, addresses, cx)) {
                Some(chosen) if chosen.is_ready() => return self.ready(id, cx),
                Some(_) => {
                    cx.reresolve();
                    lost = Some(id);
                    None
                }
                // The address left the list with its connection in use, or is to be reached by other means: start over
                // with the new list at once.
                None => Some(Box::new(Attempts::new(addresses))),
            },
            Phase::Trying(attempts) if attempts.are_for(addresses, cx) => {
                lost = attempts.lost_since(cx);
                if lost.is_some() {
                    cx.reresolve();
                    self.was_ready = true;
                }
                lost.is_none().then_some(attempts)
            }
            Phase::Lost(id) => {
                lost = Some(id);
                None
            }
            Phase::Trying(_) => Some(Box::new(Attempts::new(addresses))),
            Phase::Idle => None,
        };
        let lost = lost.filter(|id| cx.look(*id).is_some_and(|lost| is_one_of(lost, addresses, cx)));
        let waits = match eagerness {
            Eagerness::Eager => false,
            Eagerness::Lazy => !cx.exit_idle(),
            Eagerness::OnCall => true,
        };
        let is_idle = |cx: &Cx<'_>| cx.find(first).is_none_or(|s| s.connectivity() == Connectivity::Idle);
        if attempts.is_none() && waits && is_idle(cx) {
            let first = cx.subchannel(first).id();
            let other = lost.filter(|lost| *lost != first && keep_idle(*lost, cx));
            self.phase = other.map_or(Phase::Idle, Phase::Lost);
            self.sole = Some(first).filter(|_| other.is_none());
            return ConnState { connectivity: Connectivity::Idle, subchannel: Some(first) };
        }
        let mut attempts = attempts.unwrap_or_else(|| Box::new(Attempts::new(addresses)));
        attempts.lost = lost.or(attempts.lost);
        self.attempt(attempts, cx)
    }

    /// The subchannel that its state depends on, if it depends on nothing else but what it was given.
    pub(crate) fn sole(&self) -> Option<SubchannelId> {
        self.sole
    }

    /// Whether it was never looked at.
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.phase, Phase::Idle) && self.sole.is_none() && !self.failed
    }

    /// Whether it was ever ready since there are addresses.
    pub fn was_ready(&self) -> bool {
        self.was_ready
    }

    fn ready(&mut self, id: SubchannelId, cx: &mut Cx<'_>) -> ConnState {
        *self = Conn { phase: Phase::Ready(id), sole: Some(id), failed: false, was_ready: true };
        cx.keep(id);
        ConnState { connectivity: Connectivity::Ready, subchannel: Some(id) }
    }

    fn attempt(&mut self, mut attempts: Box<Attempts>, cx: &mut Cx<'_>) -> ConnState {
        if let Some(id) = attempts.reconcile(cx) {
            return self.ready(id, cx);
        }
        attempts.lost = attempts.lost.filter(|lost| keep_idle(*lost, cx));
        self.failed |= attempts.passed;
        let state = {
            let mut tried = attempts.tried.iter().filter_map(|(id, _)| cx.look(*id));
            if self.failed {
                let last = tried.max_by_key(|subchannel| subchannel.failure_order()).map(Subchannel::id);
                ConnState { connectivity: Connectivity::TransientFailure, subchannel: last }
            } else {
                let last = tried.next_back().map(Subchannel::id);
                ConnState { connectivity: Connectivity::Connecting, subchannel: last }
            }
        };
        self.sole = attempts.sole();
        self.phase = Phase::Trying(attempts);
        state
    }
}

impl Attempts {
    fn new(addresses: &Arc<[Address]>) -> Attempts {
        Attempts {
            addresses: addresses.clone(),
            tried: Few::default(),
            next_at: None,
            passed: false,
            reported: 0,
            lost: None,
        }
    }

    /// The only subchannel that there is to try; with it no time has to pass.
    fn sole(&self) -> Option<SubchannelId> {
        let (id, _) = self.tried.get(0).filter(|_| self.addresses.len() == 1)?;
        Some(*id)
    }

    /// Whether these addresses are tried, by the means that hold.
    fn are_for(&self, addresses: &Arc<[Address]>, cx: &Cx<'_>) -> bool {
        let is_by_other_means = |id| cx.look(id).is_some_and(|tried| !cx.is_by_our_means(tried));
        self.addresses == *addresses && !self.tried.iter().any(|tried| is_by_other_means(tried.0))
    }

    /// The subchannel whose connection was made and lost since the last look: an attempt leaves IDLE and comes back to it only by a
    /// failure, which is counted, or so. After the pass idle ones are connected in any case.
    fn lost_since(&self, cx: &Cx<'_>) -> Option<SubchannelId> {
        let is_idle = |id| cx.look(id).is_some_and(|tried| tried.connectivity() == Connectivity::Idle);
        let lost = self.tried.iter().find(|tried| is_idle(tried.0) && !has_failed(tried, cx));
        lost.filter(|_| !self.passed).map(|(id, _)| *id)
    }

    /// Answers a subchannel that is ready, or goes on trying. Nothing is kept before it is known to be needed.
    fn reconcile(&mut self, cx: &mut Cx<'_>) -> Option<SubchannelId> {
        let ready = if self.tried.is_empty() {
            // At its start a pass takes a connection that somebody else has made already. Later it does not look at
            // addresses that it has not come to: nobody would tell it when they change.
            let known = self.addresses.iter().filter_map(|address| cx.find(address));
            known.filter(|subchannel| subchannel.is_ready()).map(Subchannel::id).next()
        } else {
            let tried = self.tried.iter().filter_map(|(id, _)| cx.look(*id));
            tried.filter(|subchannel| subchannel.is_ready()).map(Subchannel::id).next()
        };
        if ready.is_some() {
            return ready;
        }
        let before = self.tried.len();
        while let Some(address) = self.next_to_try(cx) {
            match cx.find(&address).map(|known| (known.id(), known.connectivity(), known.failures())) {
                Some((id, Connectivity::Ready, _)) => return Some(id),
                // It is backing off: it has failed for this pass too.
                Some((id, Connectivity::TransientFailure, failures)) => {
                    self.tried.push((id, failures.wrapping_sub(1)));
                    cx.keep(id);
                }
                _ => self.start(&address, cx),
            }
        }
        // Those that were started are kept by that.
        for (id, _) in self.tried.iter().take(before) {
            cx.keep(*id);
        }
        if self.tried.len() == self.addresses.len() {
            self.retry(cx);
        } else if let Some(at) = self.next_at {
            cx.wake_at(at);
        }
        None
    }

    /// The next address, if the last one failed or has had its time.
    fn next_to_try(&self, cx: &Cx<'_>) -> Option<Address> {
        let next = self.addresses.get(self.tried.len())?;
        let due = self.next_at.is_none_or(|at| at <= cx.now());
        (due || self.tried.last().is_none_or(|last| has_failed(last, cx))).then(|| next.clone())
    }

    fn start(&mut self, address: &Address, cx: &mut Cx<'_>) {
        let subchannel = cx.subchannel(address);
        let (id, failures) = (subchannel.id(), subchannel.failures());
        self.tried.push((id, failures));
        cx.connect(id);
        self.next_at = Some(cx.now() + cx.attempt_delay());
    }

    /// Once all have been tried: the pass is over when each has failed; from then on each is tried again as its own
    /// back-off ends.
    fn retry(&mut self, cx: &mut Cx<'_>) {
        if !self.passed && !self.tried.iter().all(|tried| has_failed(tried, cx)) {
            return;
        }
        let failures = self.failures(cx);
        let due = failures.wrapping_sub(self.reported) >= self.tried.len() as u32;
        if !self.passed || due {
            cx.reresolve();
            self.reported = failures;
        }
        self.passed = true;
        for (id, _) in self.tried.iter() {
            cx.connect(*id);
        }
    }

    fn failures(&self, cx: &Cx<'_>) -> u32 {
        let each = self.tried.iter().filter_map(|(id, _)| cx.look(*id)).map(Subchannel::failures);
        each.fold(0, u32::wrapping_add)
    }
}

/// Whether a subchannel is for one of the addresses, by the means that hold.
fn is_one_of(subchannel: &Subchannel, addresses: &[Address], cx: &Cx<'_>) -> bool {
    addresses.contains(subchannel.address()) && cx.is_by_our_means(subchannel)
}

fn has_failed((id, before): &(SubchannelId, u32), cx: &Cx<'_>) -> bool {
    cx.look(*id).is_none_or(|subchannel| subchannel.failures() != *before)
}

/// Keeps a subchannel that is idle; returns true if it is. One that connects is kept by the attempts, or is not wanted.
fn keep_idle(id: SubchannelId, cx: &mut Cx<'_>) -> bool {
    let is_idle = cx.look(id).is_some_and(|lost| lost.connectivity() == Connectivity::Idle);
    is_idle && cx.keep(id).is_some()
}
