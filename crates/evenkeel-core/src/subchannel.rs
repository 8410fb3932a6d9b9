//! Subchannels: connections to one address, with back-off.
//!
//! ```text
//!              connect                   connected
//!    Idle ──────┬────────────▶ Connecting ──────────▶ Ready
//!     ▲ ▲       │ connect,       ▲     │                │
//!     │ │       │ too early      │     │ failed         │ disconnected
//!     │ │       ▼    start_paced │     ▼                │
//!     │ │     Paced ─────────────┘  BackingOff          │
//!     │ │                              │                │
//!     │ └────────── end_back_off ──────┘                │
//!     └─────────────────────────────────────────────────┘
//! ```
//!
//! `Paced` is reported as CONNECTING and `BackingOff` as TRANSIENT_FAILURE. Only a policy or a queued call
//! leaves `Idle`. An attempt's back-off runs from its start: after an attempt that took longer, the next one
//! may start at once (gRPC connection back-off).
//!
//! gRPC's back-off covers failed attempts only. A peer that accepts each connection and closes it at once
//! would be redialled in a loop. A connection is *fruitless* if it ends within [`Backoff::initial`] without a
//! response to any call. After the first one the next attempt starts at once, since the peer may be
//! restarting. After each further one in a row the attempt is *paced*: it starts no sooner than `initial`,
//! plus jitter, after that connection was opened.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::collections::fast_map::FastMap;
use crate::collections::inline_vec::InlineVec;
use crate::engine::revision::{CompactRevision, Revision};
use crate::engine::tree::NodeId;
use crate::{Address, Instant, LoadReport, Rng, Status, TransportParams};

/// Connectivity state of a subchannel, a policy or a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ConnectivityState {
    /// Not connected, and no attempt in progress.
    Idle,
    /// Connection attempt in progress or scheduled.
    Connecting,
    /// Connected; calls can be sent.
    Ready,
    /// Last attempt failed; waiting for the back-off.
    TransientFailure,
}

/// Identifies a subchannel. An id is never reused, so a stale one refers to nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubchannelId {
    index: u32,
    generation: u32,
}

impl SubchannelId {
    /// Returns a small number, unique among the existing subchannels, for use as a table index.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

impl fmt::Debug for SubchannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}.{}", self.index, self.generation)
    }
}

/// Connection to one address.
#[derive(Debug)]
pub struct Subchannel {
    id: SubchannelId,
    address: Address,
    /// Transport parameters; `None` for those of the channel.
    transport: Option<TransportParams>,
    state: SubchannelState,
    attempts: u32,
    was_connected: bool,
    /// True once the last connection has received a response.
    was_answered: bool,
    /// Number of consecutive fruitless connections.
    fruitless: u8,
    failures: u32,
    disconnects: u32,
    failure_order: u64,
    error: Option<Status>,
    /// Policy tree nodes that hold the subchannel, each listed once.
    pub(crate) holders: InlineVec<NodeId>,
    /// State of out-of-band load reports; `None` for most subchannels.
    out_of_band: Option<Box<OobLoadState>>,
}

/// Watchers of out-of-band load reports, and the last report.
#[derive(Debug, Default)]
pub(crate) struct OobLoadState {
    /// Nodes that watch the reports, with the interval of each.
    pub(crate) watchers: Vec<(NodeId, Duration)>,
    /// Interval of the last watch effect sent to the driver.
    pub(crate) watching: Option<Duration>,
    last: Option<(Instant, LoadReport)>,
    count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum SubchannelState {
    /// `opened_at` is the opening time of the last connection, if nothing but its loss has happened since.
    Idle {
        opened_at: Option<Instant>,
    },
    /// An attempt is requested and starts at `until`.
    Paced {
        until: Instant,
    },
    /// `retry_at` is the end of the back-off that started with this attempt.
    Connecting {
        retry_at: Instant,
    },
    Ready {
        opened_at: Instant,
    },
    BackingOff {
        until: Instant,
    },
}

/// Result of a request to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectStart {
    /// The attempt starts at once; the driver cancels it at `deadline`.
    Started { deadline: Instant },
    /// The attempt is paced and starts at `until`.
    Paced { until: Instant },
}

impl Subchannel {
    /// Returns the id of the subchannel.
    pub fn id(&self) -> SubchannelId {
        self.id
    }

    /// Returns the address that it connects to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the transport parameters, if they differ from those of the channel.
    pub fn transport(&self) -> Option<&TransportParams> {
        self.transport.as_ref()
    }

    /// Returns the connectivity state.
    pub fn connectivity(&self) -> ConnectivityState {
        match self.state {
            SubchannelState::Idle { .. } => ConnectivityState::Idle,
            SubchannelState::Paced { .. } | SubchannelState::Connecting { .. } => {
                ConnectivityState::Connecting
            }
            SubchannelState::Ready { .. } => ConnectivityState::Ready,
            SubchannelState::BackingOff { .. } => ConnectivityState::TransientFailure,
        }
    }

    /// Returns true if calls can be sent on it.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, SubchannelState::Ready { .. })
    }

    /// Returns the end of the back-off, while backing off.
    pub fn retry_at(&self) -> Option<Instant> {
        match self.state {
            SubchannelState::BackingOff { until } => Some(until),
            _ => None,
        }
    }

    /// Returns the time at which the state changes without an event: the end of a back-off or the start of a
    /// paced attempt.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        match self.state {
            SubchannelState::BackingOff { until } | SubchannelState::Paced { until } => Some(until),
            _ => None,
        }
    }

    /// Returns the total number of failed attempts. A counter, so that a change between two passes is not
    /// missed.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns the number of times that an established connection was lost.
    pub fn disconnects(&self) -> u32 {
        self.disconnects
    }

    /// Returns the global sequence number of the last failure: of all subchannels, the highest failed last.
    pub(crate) fn failure_order(&self) -> u64 {
        self.failure_order
    }

    /// Returns the error of the last failed attempt or lost connection.
    pub fn error(&self) -> Option<&Status> {
        self.error.as_ref()
    }

    /// Returns the last out-of-band load report, with its time of arrival.
    pub fn load(&self) -> Option<(Instant, &LoadReport)> {
        let (at, report) = self.out_of_band.as_ref()?.last.as_ref()?;
        Some((*at, report))
    }

    /// Returns the number of out-of-band load reports received.
    pub fn loads(&self) -> u32 {
        self.out_of_band.as_ref().map_or(0, |out_of_band| out_of_band.count)
    }

    pub(crate) fn out_of_band(&mut self) -> &mut OobLoadState {
        self.out_of_band.get_or_insert_default()
    }

    /// Returns true if an effect about this subchannel was ever sent to the driver.
    pub(crate) fn is_known_to_driver(&self) -> bool {
        self.was_connected
            || self.out_of_band.as_ref().is_some_and(|out_of_band| out_of_band.watching.is_some())
    }

    /// Starts or paces an attempt if idle. Returns `None` if not idle.
    pub(crate) fn connect(&mut self, now: Instant, backoff: &Backoff, rng: &mut Rng) -> Option<ConnectStart> {
        let SubchannelState::Idle { opened_at } = self.state else { return None };
        // A single fruitless connection is not paced: the peer may be restarting.
        if let Some(opened_at) = opened_at
            && self.fruitless > 1
        {
            let until = opened_at + backoff.pace(rng);
            if until > now {
                self.state = SubchannelState::Paced { until };
                return Some(ConnectStart::Paced { until });
            }
        }
        Some(self.start(now, backoff, rng))
    }

    fn start(&mut self, now: Instant, backoff: &Backoff, rng: &mut Rng) -> ConnectStart {
        // The back-off runs from the start of the attempt (PF-10), so it is drawn here and not at the failure.
        let wait = backoff.wait(self.attempts, rng);
        self.attempts = self.attempts.saturating_add(1);
        self.was_connected = true;
        self.state = SubchannelState::Connecting { retry_at: now + wait };
        // A short back-off does not shorten the attempt: it has at least `min_connect_timeout` (PF-10).
        ConnectStart::Started { deadline: now + wait.max(backoff.min_connect_timeout) }
    }

    /// Starts a paced attempt that is due.
    pub(crate) fn start_paced(
        &mut self,
        now: Instant,
        backoff: &Backoff,
        rng: &mut Rng,
    ) -> Option<ConnectStart> {
        let is_due = matches!(self.state, SubchannelState::Paced { until } if until <= now);
        is_due.then(|| self.start(now, backoff, rng))
    }

    /// Handles a successful attempt. Returns true if the state changed.
    pub(crate) fn connected(&mut self, now: Instant) -> bool {
        let expected = matches!(self.state, SubchannelState::Connecting { .. });
        if expected {
            self.state = SubchannelState::Ready { opened_at: now };
            self.attempts = 0;
            self.was_answered = false;
        }
        expected
    }

    /// Handles a response on the connection. Returns true if there is a connection.
    pub(crate) fn answered(&mut self) -> bool {
        self.was_answered = self.is_ready();
        self.was_answered
    }

    /// Handles a failed attempt. Returns the end of the back-off, or `None` if the event is stale.
    pub(crate) fn failed(&mut self, now: Instant, error: Status, order: u64) -> Option<Instant> {
        let SubchannelState::Connecting { retry_at } = self.state else { return None };
        let until = retry_at.max(now);
        self.state = SubchannelState::BackingOff { until };
        // Wraps: readers only compare it with an earlier value.
        self.failures = self.failures.wrapping_add(1);
        self.failure_order = order;
        self.error = Some(error);
        Some(until)
    }

    /// Handles the loss of the connection. Returns true if the state changed.
    pub(crate) fn disconnected(&mut self, now: Instant, error: Status, backoff: &Backoff) -> bool {
        let SubchannelState::Ready { opened_at } = self.state else { return false };
        let is_fruitless = !self.was_answered && now < opened_at + backoff.initial;
        self.fruitless = if is_fruitless { self.fruitless.saturating_add(1) } else { 0 };
        self.state = SubchannelState::Idle { opened_at: Some(opened_at) };
        self.disconnects = self.disconnects.wrapping_add(1);
        self.error = Some(error);
        true
    }

    /// Ends the back-off if it is due. Returns true if it was.
    pub(crate) fn end_back_off(&mut self, now: Instant) -> bool {
        let due = matches!(self.state, SubchannelState::BackingOff { until } if until <= now);
        if due {
            // A failed attempt has its own back-off, so the pacing of the lost connection ends.
            self.state = SubchannelState::Idle { opened_at: None };
        }
        due
    }

    pub(crate) fn report(&mut self, now: Instant, report: LoadReport) {
        let out_of_band = self.out_of_band();
        out_of_band.last = Some((now, report));
        out_of_band.count = out_of_band.count.wrapping_add(1);
    }
}

/// Parameters of gRPC's connection back-off.
#[derive(Clone, Debug)]
pub struct Backoff {
    /// Back-off of the first attempt.
    pub initial: Duration,
    /// Factor by which the back-off grows with each attempt.
    pub multiplier: f64,
    /// Maximum random deviation, as a fraction of the nominal back-off.
    pub jitter: f64,
    /// Maximum back-off before jitter is applied.
    pub max: Duration,
    /// Minimum time given to an attempt before it is cancelled.
    pub min_connect_timeout: Duration,
}

impl Default for Backoff {
    /// Returns gRPC's defaults: 1 s, times 1.6, jitter 20 %, at most 120 s; 20 s per attempt.
    fn default() -> Backoff {
        Backoff {
            initial: Duration::from_secs(1),
            multiplier: 1.6,
            jitter: 0.2,
            max: Duration::from_secs(120),
            min_connect_timeout: Duration::from_secs(20),
        }
    }
}

impl Backoff {
    /// Returns the back-off that starts with an attempt after `attempts` consecutive ones.
    pub fn wait(&self, attempts: u32, rng: &mut Rng) -> Duration {
        let growth = self.multiplier.max(1.0).powi(attempts.min(1_000).cast_signed());
        // `f64::min` ignores a NaN operand. Extreme settings therefore result in `max`.
        let nominal = (self.initial.as_secs_f64() * growth).min(self.max.as_secs_f64());
        let jitter = 1.0 + self.jitter.clamp(0.0, 1.0) * (2.0 * rng.unit() - 1.0);
        Duration::try_from_secs_f64(nominal * jitter).unwrap_or(self.max)
    }

    /// Returns the minimum time between the openings of fruitless connections: `initial`, extended by up to
    /// its jitter. The jitter keeps clients that were disconnected together from reconnecting together.
    fn pace(&self, rng: &mut Rng) -> Duration {
        let pace =
            self.initial.min(self.max).as_secs_f64() * (1.0 + self.jitter.clamp(0.0, 1.0) * rng.unit());
        Duration::try_from_secs_f64(pace).unwrap_or(self.max)
    }
}

/// All subchannels of a core, by id and by address and transport parameters.
#[derive(Debug, Default)]
pub(crate) struct SubchannelTable {
    slots: Vec<SubchannelSlot>,
    free: Vec<u32>,
    /// Subchannels with the transport parameters of the channel.
    by_address: FastMap<Address, SubchannelId>,
    by_transport: FastMap<TransportParams, FastMap<Address, SubchannelId>>,
    failures: u64,
    /// Revision at which the last subchannel was created.
    created_at: Revision,
}

/// Slot of a subchannel. The fields that a pass reads for ten thousand subchannels are outside of the box,
/// for locality.
#[derive(Debug)]
struct SubchannelSlot {
    generation: u32,
    changed_at: CompactRevision,
    subchannel: Option<Box<Subchannel>>,
}

impl SubchannelTable {
    pub(crate) fn find(
        &self,
        address: &Address,
        transport: Option<&TransportParams>,
    ) -> Option<SubchannelId> {
        let by_address = match transport {
            None => &self.by_address,
            Some(transport) => self.by_transport.get(transport)?,
        };
        by_address.get(address).copied()
    }

    /// Creates the subchannel for an address. The caller has checked that there is none.
    pub(crate) fn create(
        &mut self,
        address: &Address,
        transport: Option<&TransportParams>,
        at: Revision,
    ) -> SubchannelId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(SubchannelSlot { generation: 0, changed_at: at.compact(), subchannel: None });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.changed_at = at.compact();
        let id = SubchannelId { index, generation: slot.generation };
        slot.subchannel = Some(Box::new(Subchannel {
            id,
            address: address.clone(),
            transport: transport.cloned(),
            state: SubchannelState::Idle { opened_at: None },
            attempts: 0,
            was_connected: false,
            was_answered: false,
            fruitless: 0,
            failures: 0,
            disconnects: 0,
            failure_order: 0,
            error: None,
            holders: InlineVec::default(),
            out_of_band: None,
        }));
        let by_address = match transport {
            None => &mut self.by_address,
            Some(transport) => self.by_transport.entry(transport.clone()).or_default(),
        };
        by_address.insert(address.clone(), id);
        self.created_at = at;
        id
    }

    pub(crate) fn get(&self, id: SubchannelId) -> Option<&Subchannel> {
        let slot = self.slots.get(id.index())?;
        slot.subchannel.as_deref().filter(|_| slot.generation == id.generation)
    }

    pub(crate) fn get_mut(&mut self, id: SubchannelId) -> Option<&mut Subchannel> {
        let slot = self.slots.get_mut(id.index())?;
        slot.subchannel.as_deref_mut().filter(|_| slot.generation == id.generation)
    }

    /// Returns the subchannel for a change that policies can see.
    pub(crate) fn change(&mut self, id: SubchannelId, at: Revision) -> Option<&mut Subchannel> {
        let slot = self.slots.get_mut(id.index()).filter(|slot| slot.generation == id.generation)?;
        slot.changed_at = at.compact();
        slot.subchannel.as_deref_mut()
    }

    /// Returns the revision of the last change of a subchannel, if it exists.
    pub(crate) fn changed_at(&self, id: SubchannelId) -> Option<CompactRevision> {
        let slot = self.slots.get(id.index()).filter(|slot| slot.generation == id.generation)?;
        Some(slot.changed_at)
    }

    /// Removes a subchannel. Its id is never reused.
    pub(crate) fn remove(&mut self, id: SubchannelId) -> Option<Box<Subchannel>> {
        let slot = self.slots.get_mut(id.index()).filter(|slot| slot.generation == id.generation)?;
        let subchannel = slot.subchannel.take()?;
        match &subchannel.transport {
            None => drop(self.by_address.remove(&subchannel.address)),
            Some(transport) => {
                if let Some(by_address) = self.by_transport.get_mut(transport) {
                    by_address.remove(&subchannel.address);
                    // An empty map would keep the parameters of a removed cluster in memory.
                    if by_address.is_empty() {
                        self.by_transport.remove(transport);
                    }
                }
            }
        }
        // The generation makes ids of the removed subchannel stale when the slot is reused.
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index);
        Some(subchannel)
    }

    pub(crate) fn next_failure(&mut self) -> u64 {
        self.failures += 1;
        self.failures
    }

    /// Returns the revision at which the last subchannel was created. Until it changes, no address has another subchannel.
    pub(crate) fn created_at(&self) -> Revision {
        self.created_at
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
