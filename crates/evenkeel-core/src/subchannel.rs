//! Subchannels: one connection to one address by one means, and when to try again.
//!
//! ```text
//!            connect                connected
//!   Idle ───────────────▶ Connecting ─────────▶ Ready
//!    ▲                        │                   │
//!    │ back-off over          │ failed            │ disconnected
//!    └── TransientFailure ◀───┘                   │
//!    ▲                                            │
//!    └────────────────────────────────────────────┘
//! ```
//!
//! Only a policy's wish or a waiting call leaves `Idle`. An attempt's back-off runs from its start: an attempt that
//! took longer than its back-off may be repeated at once (gRPC connection back-off).
//!
//! gRPC's back-off knows failed attempts only: a peer that accepts each connection and ends it at once would be dialled without
//! pause. A connection is *fruitless* if it ends within [`Backoff::initial`] and no call was answered on it. The first one is
//! followed by another attempt at once, as peers that restart deserve. After each further one in a row the attempt is *paced*:
//! it begins no sooner than `initial`, plus jitter, after that connection was opened. A paced subchannel is CONNECTING, so
//! that calls without another endpoint wait rather than fail, as they do during any reconnection.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::collections::fast_map::FastMap;
use crate::collections::inline_vec::InlineVec;
use crate::engine::tree::NodeId;
use crate::{Address, Instant, LoadReport, Rng, Status, TransportParams};

/// How well a subchannel, a policy or the whole channel is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ConnectivityState {
    /// Not connected and not trying.
    Idle,
    /// Trying.
    Connecting,
    /// Connected.
    Ready,
    /// Tried and failed; waiting to try again.
    TransientFailure,
}

/// Names a subchannel. Ids are never given out twice: a stale one names nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubchannelId {
    index: u32,
    generation: u32,
}

impl SubchannelId {
    /// A small number, unique among the subchannels that exist at one time; it may serve as a table index.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

impl fmt::Debug for SubchannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}.{}", self.index, self.generation)
    }
}

/// One connection to one address.
#[derive(Debug)]
pub struct Subchannel {
    id: SubchannelId,
    address: Address,
    /// By what its connections are made beside that, if anything matters.
    transport: Option<TransportParams>,
    state: SubchannelState,
    attempts: u32,
    was_connected: bool,
    /// True once a call was answered on the last connection.
    was_answered: bool,
    /// Number of fruitless connections in a row.
    fruitless: u8,
    failures: u32,
    disconnects: u32,
    failure_order: u64,
    error: Option<Status>,
    /// Which nodes of the policy tree hold it; a node that holds it twice is listed twice.
    pub(crate) holders: InlineVec<NodeId>,
    /// Out-of-band load reports; most subchannels have none.
    out_of_band: Option<Box<OobLoadState>>,
}

/// Who wants out-of-band load reports, and what came.
#[derive(Debug, Default)]
pub(crate) struct OobLoadState {
    /// Which nodes want them, and how often.
    pub(crate) watchers: Vec<(NodeId, Duration)>,
    /// What the driver was last told.
    pub(crate) watching: Option<Duration>,
    last: Option<(Instant, LoadReport)>,
    count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum SubchannelState {
    /// `opened_at` is when its last connection was opened, if nothing but its loss has happened since.
    Idle {
        opened_at: Option<Instant>,
    },
    /// An attempt is wanted and begins at `until`.
    Paced {
        until: Instant,
    },
    /// `retry_at` is when the back-off that began with this attempt is over.
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

/// Result of asking a subchannel to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectStart {
    /// The attempt begins at once; the driver gives it up at `deadline`.
    Started { deadline: Instant },
    /// The attempt is paced and begins at `until`.
    Paced { until: Instant },
}

impl Subchannel {
    /// Its name.
    pub fn id(&self) -> SubchannelId {
        self.id
    }

    /// Where it connects to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// By what means its connections are made, if it is not by those of the whole channel.
    pub fn transport(&self) -> Option<&TransportParams> {
        self.transport.as_ref()
    }

    /// How it is connected.
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

    /// Whether calls can be sent on it.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, SubchannelState::Ready { .. })
    }

    /// When its back-off ends, while it is backing off.
    pub fn retry_at(&self) -> Option<Instant> {
        match self.state {
            SubchannelState::BackingOff { until } => Some(until),
            _ => None,
        }
    }

    /// When time alone changes its state: the end of its back-off, or the start of a paced attempt.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        match self.state {
            SubchannelState::BackingOff { until } | SubchannelState::Paced { until } => Some(until),
            _ => None,
        }
    }

    /// How many attempts have failed since it exists. A counter, so that an edge between two passes is not lost.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// How many times an established connection was lost.
    pub fn disconnects(&self) -> u32 {
        self.disconnects
    }

    /// Grows with every failure of any subchannel: the greatest one failed last.
    pub fn failure_order(&self) -> u64 {
        self.failure_order
    }

    /// Why the last attempt failed or the last connection was lost.
    pub fn error(&self) -> Option<&Status> {
        self.error.as_ref()
    }

    /// The last out-of-band load report and when it came.
    pub fn load(&self) -> Option<(Instant, &LoadReport)> {
        let (at, report) = self.out_of_band.as_ref()?.last.as_ref()?;
        Some((*at, report))
    }

    /// How many out-of-band load reports have come.
    pub fn loads(&self) -> u32 {
        self.out_of_band.as_ref().map_or(0, |out_of_band| out_of_band.count)
    }

    pub(crate) fn out_of_band(&mut self) -> &mut OobLoadState {
        self.out_of_band.get_or_insert_default()
    }

    /// Whether the driver was ever told of it.
    pub(crate) fn is_known_to_driver(&self) -> bool {
        self.was_connected
            || self.out_of_band.as_ref().is_some_and(|out_of_band| out_of_band.watching.is_some())
    }

    /// Starts an attempt if idle, or paces it. Returns `None` if it is not idle.
    pub(crate) fn connect(&mut self, now: Instant, backoff: &Backoff, rng: &mut Rng) -> Option<ConnectStart> {
        let SubchannelState::Idle { opened_at } = self.state else { return None };
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
        let wait = backoff.wait(self.attempts, rng);
        self.attempts = self.attempts.saturating_add(1);
        self.was_connected = true;
        self.state = SubchannelState::Connecting { retry_at: now + wait };
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

    /// The attempt succeeded. Answers whether that was news.
    pub(crate) fn connected(&mut self, now: Instant) -> bool {
        let expected = matches!(self.state, SubchannelState::Connecting { .. });
        if expected {
            self.state = SubchannelState::Ready { opened_at: now };
            self.attempts = 0;
            self.was_answered = false;
        }
        expected
    }

    /// A call was answered on the connection. Returns true if there is one.
    pub(crate) fn answered(&mut self) -> bool {
        self.was_answered = self.is_ready();
        self.was_answered
    }

    /// The attempt failed. Answers when the back-off ends, if that was news.
    pub(crate) fn failed(&mut self, now: Instant, error: Status, order: u64) -> Option<Instant> {
        let SubchannelState::Connecting { retry_at } = self.state else { return None };
        let until = retry_at.max(now);
        self.state = SubchannelState::BackingOff { until };
        self.failures = self.failures.wrapping_add(1);
        self.failure_order = order;
        self.error = Some(error);
        Some(until)
    }

    /// The connection was lost. Answers whether that was news.
    pub(crate) fn disconnected(&mut self, now: Instant, error: Status, backoff: &Backoff) -> bool {
        let SubchannelState::Ready { opened_at } = self.state else { return false };
        let is_fruitless = !self.was_answered && now < opened_at + backoff.initial;
        self.fruitless = if is_fruitless { self.fruitless.saturating_add(1) } else { 0 };
        self.state = SubchannelState::Idle { opened_at: Some(opened_at) };
        self.disconnects = self.disconnects.wrapping_add(1);
        self.error = Some(error);
        true
    }

    /// Ends the back-off if it is due. Answers whether it did.
    pub(crate) fn end_back_off(&mut self, now: Instant) -> bool {
        let due = matches!(self.state, SubchannelState::BackingOff { until } if until <= now);
        if due {
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

/// gRPC's connection back-off: how long to wait between attempts.
#[derive(Clone, Debug)]
pub struct Backoff {
    /// The first wait.
    pub initial: Duration,
    /// How much each wait exceeds the one before.
    pub multiplier: f64,
    /// How far a wait may lie from its nominal length, as a share of it.
    pub jitter: f64,
    /// The longest nominal wait.
    pub max: Duration,
    /// An attempt is given at least this long.
    pub min_connect_timeout: Duration,
}

impl Default for Backoff {
    /// 1 s, times 1.6, plus or minus 20 %, at most 120 s; 20 s per attempt.
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
    /// The wait that starts with the attempt after `attempts` others in a row.
    pub fn wait(&self, attempts: u32, rng: &mut Rng) -> Duration {
        let growth = self.multiplier.max(1.0).powi(attempts.min(1_000).cast_signed());
        let nominal = (self.initial.as_secs_f64() * growth).min(self.max.as_secs_f64());
        let jitter = 1.0 + self.jitter.clamp(0.0, 1.0) * (2.0 * rng.unit() - 1.0);
        Duration::try_from_secs_f64(nominal * jitter).unwrap_or(self.max)
    }

    /// The least time between the openings of fruitless connections: `initial`, lengthened by up to its jitter. Clients whose
    /// connections were ended together do not come back together.
    fn pace(&self, rng: &mut Rng) -> Duration {
        let pace =
            self.initial.min(self.max).as_secs_f64() * (1.0 + self.jitter.clamp(0.0, 1.0) * rng.unit());
        Duration::try_from_secs_f64(pace).unwrap_or(self.max)
    }
}

/// All subchannels of a core, by id, and by address and means.
#[derive(Debug, Default)]
pub(crate) struct SubchannelMap {
    slots: Vec<SubchannelSlot>,
    free: Vec<u32>,
    /// Those without means of their own.
    by_address: FastMap<Address, SubchannelId>,
    by_transport: FastMap<TransportParams, FastMap<Address, SubchannelId>>,
    failures: u64,
    made: u64,
    /// How many changes there were, in any of them. It may begin again from 0.
    changes: u32,
}

/// Beside the subchannel, what is asked of ten thousand in a pass stands here, where it is near.
#[derive(Debug)]
struct SubchannelSlot {
    generation: u32,
    /// The number of its last change.
    changed: u32,
    subchannel: Option<Box<Subchannel>>,
}

impl SubchannelMap {
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

    pub(crate) fn find_or_create(
        &mut self,
        address: &Address,
        transport: Option<&TransportParams>,
    ) -> SubchannelId {
        if let Some(id) = self.find(address, transport) {
            return id;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(SubchannelSlot { generation: 0, changed: 0, subchannel: None });
            (self.slots.len() - 1) as u32
        });
        self.changes = self.changes.wrapping_add(1);
        let slot = &mut self.slots[index as usize];
        slot.changed = self.changes;
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
        self.made += 1;
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

    /// The subchannel, to change what policies see of it.
    pub(crate) fn change(&mut self, id: SubchannelId) -> Option<&mut Subchannel> {
        let slot = self.slots.get_mut(id.index()).filter(|slot| slot.generation == id.generation)?;
        self.changes = self.changes.wrapping_add(1);
        slot.changed = self.changes;
        slot.subchannel.as_deref_mut()
    }

    /// How many changes there were so far.
    pub(crate) fn changes(&self) -> u32 {
        self.changes
    }

    /// Whether it is there and did not change since there were so many changes.
    pub(crate) fn is_unchanged(&self, id: SubchannelId, since: u32) -> bool {
        let slot = self.slots.get(id.index()).filter(|slot| slot.generation == id.generation);
        // The difference may have wrapped around; what is older than half of the range counts as changed.
        slot.is_some_and(|slot| since.wrapping_sub(slot.changed).cast_signed() >= 0)
    }

    /// Removes it; its id will not come back.
    pub(crate) fn remove(&mut self, id: SubchannelId) -> Option<Box<Subchannel>> {
        let slot = self.slots.get_mut(id.index()).filter(|slot| slot.generation == id.generation)?;
        let subchannel = slot.subchannel.take()?;
        match &subchannel.transport {
            None => drop(self.by_address.remove(&subchannel.address)),
            Some(transport) => {
                if let Some(by_address) = self.by_transport.get_mut(transport) {
                    by_address.remove(&subchannel.address);
                    if by_address.is_empty() {
                        self.by_transport.remove(transport);
                    }
                }
            }
        }
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index);
        Some(subchannel)
    }

    pub(crate) fn next_failure(&mut self) -> u64 {
        self.failures += 1;
        self.failures
    }

    /// How many there ever were.
    pub(crate) fn made(&self) -> u64 {
        self.made
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
