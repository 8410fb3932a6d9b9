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

use crate::collections::inline_vec::InlineVec;
use crate::{Address, ConnectivityState, Cx, Instant, Subchannel, SubchannelId};

/// The connection of one endpoint.
#[derive(Debug, Default)]
pub(crate) struct EndpointConnection {
    phase: ConnectionPhase,
    /// The only subchannel that its state depends on, if there is one: while nothing happens to it, nothing happens here.
    only_subchannel: Option<SubchannelId>,
    /// Failed, and not ready since.
    failed: bool,
    /// Ready at some time, if only between two looks.
    was_ready: bool,
}

#[derive(Debug, Default)]
enum ConnectionPhase {
    #[default]
    Idle,
    /// Idle since the connection of this subchannel was lost.
    Lost(SubchannelId),
    Trying(Box<AddressAttempts>),
    Ready(SubchannelId),
}

#[derive(Debug)]
struct AddressAttempts {
    addresses: Arc<[Address]>,
    /// Subchannels tried so far, in the order of the addresses, each with its failure count when the pass began.
    tried: InlineVec<(SubchannelId, u32)>,
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
pub(crate) struct EndpointConnectionState {
    /// The state; an endpoint without addresses is in TRANSIENT_FAILURE.
    pub(crate) connectivity: ConnectivityState,
    /// Ready: the one to use. Idle: the one to wake. Failed: the one that failed last. Connecting: one that tries.
    pub(crate) subchannel: Option<SubchannelId>,
}

/// Whether to leave IDLE without being asked by a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectMode {
    /// Connect at once, and again whenever the connection is lost.
    Eager,
    /// Wait for a call or for the application.
    Lazy,
    /// Wait until a call or the policy wakes the subchannel; what the application asks for is the policy's to answer.
    OnCall,
}

impl EndpointConnection {
    /// Looks at the subchannels of the endpoint, starts what should be started, and answers the state.
    pub(crate) fn reconcile(
        &mut self,
        addresses: &Arc<[Address]>,
        connect_mode: ConnectMode,
        cx: &mut Cx<'_>,
    ) -> EndpointConnectionState {
        let Some(first) = addresses.first() else {
            *self = EndpointConnection { failed: true, ..EndpointConnection::default() };
            return EndpointConnectionState {
                connectivity: ConnectivityState::TransientFailure,
                subchannel: None,
            };
        };
        let mut lost = None;
        let attempts = match std::mem::take(&mut self.phase) {
            ConnectionPhase::Ready(id) => match cx.peek(id).filter(|chosen| is_one_of(chosen, addresses, cx))
            {
                Some(chosen) if chosen.is_ready() => return self.ready(id, cx),
                Some(_) => {
                    cx.reresolve();
                    lost = Some(id);
                    None
                }
                // The address left the list with its connection in use, or is to be reached by other means: start over
                // with the new list at once.
                None => Some(Box::new(AddressAttempts::new(addresses))),
            },
            ConnectionPhase::Trying(attempts) if attempts.matches_addresses(addresses, cx) => {
                lost = attempts.lost_since(cx);
                if lost.is_some() {
                    cx.reresolve();
                    self.was_ready = true;
                }
                lost.is_none().then_some(attempts)
            }
            ConnectionPhase::Lost(id) => {
                lost = Some(id);
                None
            }
            ConnectionPhase::Trying(_) => Some(Box::new(AddressAttempts::new(addresses))),
            ConnectionPhase::Idle => None,
        };
        let lost = lost.filter(|id| cx.peek(*id).is_some_and(|lost| is_one_of(lost, addresses, cx)));
        let is_lazy = match connect_mode {
            ConnectMode::Eager => false,
            ConnectMode::Lazy => !cx.exit_idle(),
            ConnectMode::OnCall => true,
        };
        let is_idle =
            |cx: &Cx<'_>| cx.find(first).is_none_or(|s| s.connectivity() == ConnectivityState::Idle);
        if attempts.is_none() && is_lazy && is_idle(cx) {
            let first = cx.subchannel(first).id();
            let other = lost.filter(|lost| *lost != first && keep_idle(*lost, cx));
            self.phase = other.map_or(ConnectionPhase::Idle, ConnectionPhase::Lost);
            self.only_subchannel = Some(first).filter(|_| other.is_none());
            return EndpointConnectionState {
                connectivity: ConnectivityState::Idle,
                subchannel: Some(first),
            };
        }
        let mut attempts = attempts.unwrap_or_else(|| Box::new(AddressAttempts::new(addresses)));
        attempts.lost = lost.or(attempts.lost);
        self.attempt(attempts, cx)
    }

    /// The subchannel that its state depends on, if it depends on nothing else but what it was given.
    pub(crate) fn only_subchannel(&self) -> Option<SubchannelId> {
        self.only_subchannel
    }

    /// Whether it was never looked at.
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.phase, ConnectionPhase::Idle) && self.only_subchannel.is_none() && !self.failed
    }

    /// Whether it was ever ready since there are addresses.
    pub(crate) fn was_ready(&self) -> bool {
        self.was_ready
    }

    fn ready(&mut self, id: SubchannelId, cx: &mut Cx<'_>) -> EndpointConnectionState {
        *self = EndpointConnection {
            phase: ConnectionPhase::Ready(id),
            only_subchannel: Some(id),
            failed: false,
            was_ready: true,
        };
        cx.keep(id);
        EndpointConnectionState { connectivity: ConnectivityState::Ready, subchannel: Some(id) }
    }

    fn attempt(&mut self, mut attempts: Box<AddressAttempts>, cx: &mut Cx<'_>) -> EndpointConnectionState {
        if let Some(id) = attempts.reconcile(cx) {
            return self.ready(id, cx);
        }
        attempts.lost = attempts.lost.filter(|lost| keep_idle(*lost, cx));
        self.failed |= attempts.passed;
        let state = {
            let mut tried = attempts.tried.iter().filter_map(|(id, _)| cx.peek(*id));
            if self.failed {
                let last = tried.max_by_key(|subchannel| subchannel.failure_order()).map(Subchannel::id);
                EndpointConnectionState {
                    connectivity: ConnectivityState::TransientFailure,
                    subchannel: last,
                }
            } else {
                let last = tried.next_back().map(Subchannel::id);
                EndpointConnectionState { connectivity: ConnectivityState::Connecting, subchannel: last }
            }
        };
        self.only_subchannel = attempts.only_subchannel();
        self.phase = ConnectionPhase::Trying(attempts);
        state
    }
}

impl AddressAttempts {
    fn new(addresses: &Arc<[Address]>) -> AddressAttempts {
        AddressAttempts {
            addresses: addresses.clone(),
            tried: InlineVec::default(),
            next_at: None,
            passed: false,
            reported: 0,
            lost: None,
        }
    }

    /// The only subchannel that there is to try; with it no time has to pass.
    fn only_subchannel(&self) -> Option<SubchannelId> {
        let (id, _) = self.tried.get(0).filter(|_| self.addresses.len() == 1)?;
        Some(*id)
    }

    /// Whether these addresses are tried, by the means that hold.
    fn matches_addresses(&self, addresses: &Arc<[Address]>, cx: &Cx<'_>) -> bool {
        let has_other_transport = |id| cx.peek(id).is_some_and(|tried| !cx.has_same_transport(tried));
        self.addresses == *addresses && !self.tried.iter().any(|tried| has_other_transport(tried.0))
    }

    /// The subchannel whose connection was made and lost since the last look: an attempt leaves IDLE and comes back to it only by a
    /// failure, which is counted, or so. After the pass idle ones are connected in any case.
    fn lost_since(&self, cx: &Cx<'_>) -> Option<SubchannelId> {
        let is_idle = |id| cx.peek(id).is_some_and(|tried| tried.connectivity() == ConnectivityState::Idle);
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
            let tried = self.tried.iter().filter_map(|(id, _)| cx.peek(*id));
            tried.filter(|subchannel| subchannel.is_ready()).map(Subchannel::id).next()
        };
        if ready.is_some() {
            return ready;
        }
        let before = self.tried.len();
        while let Some(address) = self.next_to_try(cx) {
            match cx.find(&address).map(|known| (known.id(), known.connectivity(), known.failures())) {
                Some((id, ConnectivityState::Ready, _)) => return Some(id),
                // It is backing off: it has failed for this pass too.
                Some((id, ConnectivityState::TransientFailure, failures)) => {
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
        let each = self.tried.iter().filter_map(|(id, _)| cx.peek(*id)).map(Subchannel::failures);
        each.fold(0, u32::wrapping_add)
    }
}

/// Whether a subchannel is for one of the addresses, by the means that hold.
fn is_one_of(subchannel: &Subchannel, addresses: &[Address], cx: &Cx<'_>) -> bool {
    addresses.contains(subchannel.address()) && cx.has_same_transport(subchannel)
}

fn has_failed((id, before): &(SubchannelId, u32), cx: &Cx<'_>) -> bool {
    cx.peek(*id).is_none_or(|subchannel| subchannel.failures() != *before)
}

/// Keeps a subchannel that is idle; returns true if it is. One that connects is kept by the attempts, or is not wanted.
fn keep_idle(id: SubchannelId, cx: &mut Cx<'_>) -> bool {
    let is_idle = cx.peek(id).is_some_and(|lost| lost.connectivity() == ConnectivityState::Idle);
    is_idle && cx.keep(id).is_some()
}
