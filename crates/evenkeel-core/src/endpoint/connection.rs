//! Connection of one endpoint: pick_first over its addresses (A61, A62).
//!
//! It is the leaf of every policy, so that an endpoint with several addresses behaves the same in all of them:
//!
//! ```text
//!                 requested                      one is ready
//!       Idle ──────────────────▶ Pass ─────────────────────────▶ Ready
//!        ▲                        │  every address failed once     │
//!        │                        ▼                                │
//!        │                      Retry ── one is ready ────────────▶│
//!        └──────────────────── connection lost ◀───────────────────┘
//! ```
//!
//! In a *pass* the addresses are tried in order. The next attempt starts when the last one failed or after the attempt delay
//! (Happy Eyeballs); earlier attempts continue. In *retry* every address is tried again whenever its own back-off ends. A
//! failed connection counts as failed until it is ready (sticky TRANSIENT_FAILURE).
//!
//! After a disconnect the subchannel is held until another one is ready, for its history. The next attempt at its address may
//! be paced, even if other addresses are tried first.

use std::sync::Arc;

use crate::collections::inline_vec::InlineVec;
use crate::{Address, ConnectivityState, Cx, Instant, Subchannel, SubchannelId};

/// Connection of one endpoint.
#[derive(Debug, Default)]
pub(crate) struct EndpointConnection {
    phase: ConnectionPhase,
    /// Only subchannel that the state depends on, if there is exactly one.
    only_subchannel: Option<SubchannelId>,
    /// True if it has been in TRANSIENT_FAILURE and not READY since.
    failed: bool,
    /// True if it has been READY, even if only between two passes.
    was_ready: bool,
}

#[derive(Debug, Default)]
enum ConnectionPhase {
    #[default]
    Idle,
    /// Idle after a disconnect of this subchannel.
    Lost(SubchannelId),
    Trying(Box<AddressAttempts>),
    Ready(SubchannelId),
}

#[derive(Debug)]
struct AddressAttempts {
    addresses: Arc<[Address]>,
    /// Subchannels tried so far, in the order of the addresses, each with its failure count at the start of the pass.
    tried: InlineVec<(SubchannelId, u32)>,
    /// Time at which the next attempt starts, unless the last one fails earlier.
    next_at: Option<Instant>,
    /// True if every address has failed once.
    passed: bool,
    /// Sum of all failures at the last re-resolution request.
    reported: u32,
    /// Subchannel of the last disconnect.
    lost: Option<SubchannelId>,
}

/// State of the connection to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndpointConnectionState {
    /// Connectivity state. An endpoint without addresses is in TRANSIENT_FAILURE.
    pub(crate) connectivity: ConnectivityState,
    /// Subchannel to use if READY, to wake if IDLE, that failed last if TRANSIENT_FAILURE, or that is connecting.
    pub(crate) subchannel: Option<SubchannelId>,
}

/// Condition for leaving IDLE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectMode {
    /// Connect at once, and again after each disconnect.
    Eager,
    /// Wait for a call, or for the application to connect the channel.
    Lazy,
    /// Wait for a call or the policy to connect the subchannel. The policy itself handles requests of the application.
    OnCall,
}

impl EndpointConnection {
    /// Updates the connection and starts due attempts. Returns its state.
    pub(crate) fn reconcile(
        &mut self,
        addresses: &Arc<[Address]>,
        connect_mode: ConnectMode,
        cx: &mut Cx<'_>,
    ) -> EndpointConnectionState {
        let Some(first) = addresses.first() else {
            // `failed` is sticky: with new addresses the endpoint stays in TRANSIENT_FAILURE until it is READY (LBX-3).
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
                // The connection was lost. Re-resolution may find a replacement (RR-4).
                Some(_) => {
                    cx.reresolve();
                    lost = Some(id);
                    None
                }
                // The address in use was removed from the list, or has other transport parameters now: restart with the new list
                // at once.
                None => Some(Box::new(AddressAttempts::new(addresses))),
            },
            ConnectionPhase::Trying(attempts) if attempts.matches_addresses(addresses, cx) => {
                // The connection opened and closed between two runs, so it counts as a lost READY connection.
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
            // Other addresses start a new pass (PF-7).
            ConnectionPhase::Trying(_) => Some(Box::new(AddressAttempts::new(addresses))),
            ConnectionPhase::Idle => None,
        };
        // The history of a subchannel matters only while its address is in the list.
        let lost = lost.filter(|id| cx.peek(*id).is_some_and(|lost| is_one_of(lost, addresses, cx)));
        let is_lazy = match connect_mode {
            ConnectMode::Eager => false,
            ConnectMode::Lazy => !cx.exit_idle(),
            ConnectMode::OnCall => true,
        };
        // If another policy connects to the first address, this connection joins the attempt.
        let is_idle =
            |cx: &Cx<'_>| cx.find(first).is_none_or(|s| s.connectivity() == ConnectivityState::Idle);
        if attempts.is_none() && is_lazy && is_idle(cx) {
            // Held while IDLE, so that a picker can name it in a request to connect.
            let first = cx.subchannel(first).id();
            let other = lost.filter(|lost| *lost != first && keep_idle(*lost, cx));
            self.phase = other.map_or(ConnectionPhase::Idle, ConnectionPhase::Lost);
            // The state also depends on `other`, whose pacing may matter.
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

    /// Returns the subchannel that the state depends on, if it depends on nothing else.
    pub(crate) fn only_subchannel(&self) -> Option<SubchannelId> {
        self.only_subchannel
    }

    /// Returns true if it was never reconciled.
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.phase, ConnectionPhase::Idle) && self.only_subchannel.is_none() && !self.failed
    }

    /// Returns true if it was ever ready since it has addresses.
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
        // Subchannels that this run does not hold are released, which cancels the other attempts (PF-4).
        cx.keep(id);
        EndpointConnectionState { connectivity: ConnectivityState::Ready, subchannel: Some(id) }
    }

    fn attempt(&mut self, mut attempts: Box<AddressAttempts>, cx: &mut Cx<'_>) -> EndpointConnectionState {
        if let Some(id) = attempts.reconcile(cx) {
            return self.ready(id, cx);
        }
        attempts.lost = attempts.lost.filter(|lost| keep_idle(*lost, cx));
        // Sticky: a new list starts with `passed` unset, but the endpoint stays failed until it is READY (LBX-3).
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

    /// Returns the only subchannel to try. A single subchannel needs no attempt delay.
    fn only_subchannel(&self) -> Option<SubchannelId> {
        let (id, _) = self.tried.get(0).filter(|_| self.addresses.len() == 1)?;
        Some(*id)
    }

    /// Returns true if the attempts are for these addresses and the transport parameters of the scope.
    fn matches_addresses(&self, addresses: &Arc<[Address]>, cx: &Cx<'_>) -> bool {
        let has_other_transport = |id| cx.peek(id).is_some_and(|tried| !cx.has_same_transport(tried));
        self.addresses == *addresses && !self.tried.iter().any(|tried| has_other_transport(tried.0))
    }

    /// Returns the subchannel that was connected and disconnected since the last run. An attempt returns to IDLE only by a
    /// disconnect or by a failure, which is counted. After the pass idle subchannels are connected in any case.
    fn lost_since(&self, cx: &Cx<'_>) -> Option<SubchannelId> {
        let is_idle = |id| cx.peek(id).is_some_and(|tried| tried.connectivity() == ConnectivityState::Idle);
        let lost = self.tried.iter().find(|tried| is_idle(tried.0) && !has_failed(tried, cx));
        lost.filter(|_| !self.passed).map(|(id, _)| *id)
    }

    /// Returns a ready subchannel, or continues the attempts. Holds only subchannels that are needed.
    fn reconcile(&mut self, cx: &mut Cx<'_>) -> Option<SubchannelId> {
        let ready = if self.tried.is_empty() {
            // At its start a pass reuses a connection of another policy. Later it ignores addresses that it has not
            // tried yet, since their changes would not run this policy.
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
                // A subchannel in back-off counts as failed in this pass too.
                Some((id, ConnectivityState::TransientFailure, failures)) => {
                    // One less than its count, so that `has_failed` is true at once.
                    self.tried.push((id, failures.wrapping_sub(1)));
                    cx.keep(id);
                }
                _ => self.start(&address, cx),
            }
        }
        // `start` holds the subchannels that this run added.
        for (id, _) in self.tried.iter().take(before) {
            cx.keep(*id);
        }
        // The last attempt has no delay timer (PF-4).
        if self.tried.len() == self.addresses.len() {
            self.retry(cx);
        } else if let Some(at) = self.next_at {
            cx.wake_at(at);
        }
        None
    }

    /// Returns the next address, if the last attempt failed or the attempt delay has passed.
    fn next_to_try(&self, cx: &Cx<'_>) -> Option<Address> {
        let next = self.addresses.get(self.tried.len())?;
        let due = self.next_at.is_none_or(|at| at <= cx.now());
        (due || self.tried.last().is_none_or(|last| has_failed(last, cx))).then(|| next.clone())
    }

    fn start(&mut self, address: &Address, cx: &mut Cx<'_>) {
        let subchannel = cx.subchannel(address);
        let (id, failures) = (subchannel.id(), subchannel.failures());
        self.tried.push((id, failures));
        // An attempt of another policy counts as started (PF-7). `connect` has no effect then.
        cx.connect(id);
        self.next_at = Some(cx.now() + cx.attempt_delay());
    }

    /// Handles the state in which every address was tried. The pass ends when each has failed. From then on each address is
    /// tried again when its own back-off ends.
    fn retry(&mut self, cx: &mut Cx<'_>) {
        if !self.passed && !self.tried.iter().all(|tried| has_failed(tried, cx)) {
            return;
        }
        let failures = self.failures(cx);
        // PF-6: re-resolution is due each time as many attempts failed as there are subchannels.
        let due = failures.wrapping_sub(self.reported) >= self.tried.len() as u32;
        if !self.passed || due {
            cx.reresolve();
            self.reported = failures;
        }
        self.passed = true;
        // `connect` starts only idle subchannels, so each address waits for the end of its own back-off (PF-6).
        for (id, _) in self.tried.iter() {
            cx.connect(*id);
        }
    }

    fn failures(&self, cx: &Cx<'_>) -> u32 {
        let each = self.tried.iter().filter_map(|(id, _)| cx.peek(*id)).map(Subchannel::failures);
        each.fold(0, u32::wrapping_add)
    }
}

/// Returns true if a subchannel is for one of the addresses, with the transport parameters of the scope.
fn is_one_of(subchannel: &Subchannel, addresses: &[Address], cx: &Cx<'_>) -> bool {
    addresses.contains(subchannel.address()) && cx.has_same_transport(subchannel)
}

fn has_failed((id, before): &(SubchannelId, u32), cx: &Cx<'_>) -> bool {
    cx.peek(*id).is_none_or(|subchannel| subchannel.failures() != *before)
}

/// Holds a subchannel if it is idle; returns true if so. The attempts hold one that is connecting.
fn keep_idle(id: SubchannelId, cx: &mut Cx<'_>) -> bool {
    let is_idle = cx.peek(id).is_some_and(|lost| lost.connectivity() == ConnectivityState::Idle);
    is_idle && cx.keep(id).is_some()
}
