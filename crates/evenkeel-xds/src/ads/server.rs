//! Connection state of one control plane.
//!
//! ```text
//!            in use               opened            closed after a response
//!   Idle ------------> Opening ------------> Open ---------------------------> Opening
//!                        ^  |                  |
//!                    due |  | failed, late     | closed before a response, or invalid message received,
//!                        |  v                  | or closed soon after a response, repeatedly
//!                    BackingOff <--------------+
//! ```
//!
//! Every state returns to Idle when no authority uses the server. A server *fails* from its first failure to its next
//! response (A57).
//!
//! # Delay before the next attempt
//!
//! | the last attempt | the next one |
//! |---|---|
//! | a stream ended after a response | at once; after that, no sooner than [`REOPEN_FLOOR`] after the last one began |
//! | a stream failed before a response, or a connection timed out | the backoff of A57, 1 s to 120 s |
//! | a connection failed, and the server never responded | the same |
//! | a connection failed, and the server responded before | [`PROBE_INTERVAL`]; after a minute, 1/60 of the absence |
//!
//! The last row makes a short absence cheap: the client reconnects about a second after a control plane restarted. It
//! does not cause a thundering herd. Every wait has a jitter of 20 % in both directions. Clients that lost the server
//! at the same moment are therefore spread over the interval after a few attempts. A57 lets all of them open a stream
//! at once when the server ends their streams, so probes never exceed the load of a rolling restart. A server that
//! accepts connections without responding is overloaded rather than absent, and gets the exponential backoff.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{Backoff, Instant, Rng, Status};

use super::AdsStreamId;
use super::stream::AdsStream;
use crate::bootstrap::ServerConfig;
use crate::resource::ResourceType;

/// Minimum time from the start of one stream to the start of the next, once a stream was reopened at once.
const REOPEN_FLOOR: Duration = Duration::from_secs(1);

/// Maximum fraction of [`REOPEN_FLOOR`] that is added as jitter.
const REOPEN_JITTER: f64 = 0.2;

/// Minimum interval between connection attempts to a server that responded before.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Divisor of the time since the first failure, which gives the probe interval.
const PROBE_INTERVAL_DIVISOR: u32 = 60;

/// Control plane with its stream, versions and statistics.
#[derive(Debug)]
pub(super) struct AdsServer {
    pub(super) config: Arc<ServerConfig>,
    pub(super) stream_state: AdsStreamState,
    /// Number of consecutive streams that ended without a response.
    attempts: u32,
    /// True once the server sent a response.
    has_responded: bool,
    /// Time of the first failure since the last response.
    lost_at: Option<Instant>,
    /// Start of the latest stream.
    opened_at: Option<Instant>,
    /// True if the latest stream replaced a short one at once. The next short one is subject to [`REOPEN_FLOOR`].
    reopened_early: bool,
    /// Status of the failure. `None` while the server does not fail.
    pub(super) failure: Option<Status>,
    /// Last accepted version of each type. It outlives the stream.
    pub(super) versions: BTreeMap<ResourceType, String>,
    pub(super) stats: ServerStats,
    last_warnings: BTreeMap<WarningKind, String>,
}

/// State of the stream to the server.
#[derive(Debug)]
pub(super) enum AdsStreamState {
    Idle,
    Opening { stream: AdsStreamId, until: Instant },
    Open(Box<AdsStream>),
    BackingOff { until: Instant },
}

/// Kind of a failed attempt, which determines the delay before the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdsStreamFailure {
    /// The connection was refused or lost before the stream opened.
    Unreachable,
    /// The server accepted the connection or the stream and did not respond, or sent an invalid response.
    NoResponse,
}

/// Kind of a warning. Repetitions are suppressed per kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WarningKind {
    Failure,
    UnknownType,
    Rejected(ResourceType),
}

/// Statistics of one control plane since the client was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStats {
    /// Config of the control plane.
    pub server: Arc<ServerConfig>,
    /// True while an authority uses the server. An unused server is neither connected nor failing.
    pub in_use: bool,
    /// True while there is a stream and no failure since the last response.
    pub connected: bool,
    /// Number of times that the server started to fail.
    pub failures: u64,
    /// Number of valid resources received, by type. Only subscribed resources count.
    pub valid: BTreeMap<ResourceType, u64>,
    /// Number of invalid resources received, by type. Only subscribed resources count.
    pub invalid: BTreeMap<ResourceType, u64>,
}

impl AdsServer {
    pub(super) fn new(config: Arc<ServerConfig>) -> AdsServer {
        let stats = ServerStats {
            server: Arc::clone(&config),
            in_use: false,
            connected: false,
            failures: 0,
            valid: BTreeMap::new(),
            invalid: BTreeMap::new(),
        };
        AdsServer {
            config,
            stream_state: AdsStreamState::Idle,
            attempts: 0,
            has_responded: false,
            lost_at: None,
            opened_at: None,
            reopened_early: false,
            failure: None,
            versions: BTreeMap::new(),
            stats,
            last_warnings: BTreeMap::new(),
        }
    }

    pub(super) fn stream_id(&self) -> Option<AdsStreamId> {
        match &self.stream_state {
            AdsStreamState::Opening { stream, .. } => Some(*stream),
            AdsStreamState::Open(stream) => Some(stream.id),
            AdsStreamState::Idle | AdsStreamState::BackingOff { .. } => None,
        }
    }

    pub(super) fn stream(&self) -> Option<&AdsStream> {
        match &self.stream_state {
            AdsStreamState::Open(stream) => Some(stream),
            _ => None,
        }
    }

    pub(super) fn stream_mut(&mut self) -> Option<&mut AdsStream> {
        match &mut self.stream_state {
            AdsStreamState::Open(stream) => Some(stream),
            _ => None,
        }
    }

    /// Records a response, which ends a failure.
    pub(super) fn recover(&mut self) {
        self.attempts = 0;
        self.has_responded = true;
        self.lost_at = None;
        self.failure = None;
        self.stats.connected = true;
        // The next failure is logged even if its text is that of the last one.
        self.last_warnings.remove(&WarningKind::Failure);
    }

    /// Records that a whole response was accepted. Returns true if the last one of this type was not. The next rejection
    /// is logged again, even with the same text.
    pub(super) fn handle_accepted(&mut self, kind: ResourceType, version: String) -> bool {
        self.versions.insert(kind, version);
        self.last_warnings.remove(&WarningKind::Rejected(kind)).is_some()
    }

    /// Returns the state of the stream, for the message of a call that waits for a resource.
    pub(super) fn stream_text(&self) -> &'static str {
        match &self.stream_state {
            AdsStreamState::Idle => "no stream is open",
            AdsStreamState::Opening { .. } => "the stream is being opened",
            AdsStreamState::Open(stream) if stream.responded => {
                "the stream is open, the server has not sent the resource"
            }
            AdsStreamState::Open(_) => "the stream is open, no response yet",
            AdsStreamState::BackingOff { .. } => "no stream is open, the next attempt waits for its backoff",
        }
    }

    /// Resets the state when no authority uses the server.
    pub(super) fn enter_idle(&mut self) {
        self.stream_state = AdsStreamState::Idle;
        self.attempts = 0;
        self.has_responded = false;
        self.lost_at = None;
        self.reopened_early = false;
        self.failure = None;
        self.stats.in_use = false;
        self.stats.connected = false;
    }

    /// Records the start of a stream.
    pub(super) fn enter_opening(&mut self, stream: AdsStreamId, now: Instant, until: Instant) {
        self.stream_state = AdsStreamState::Opening { stream, until };
        self.opened_at = Some(now);
        self.stats.in_use = true;
    }

    /// Returns the time of the next stream after one that ended with a response received.
    ///
    /// A short stream is replaced at once the first time. Without a floor from then on, a server that closes every
    /// stream after its first response would get hundreds of streams per second.
    pub(super) fn reopen_at(&mut self, now: Instant, rng: &mut Rng) -> Instant {
        let floor = REOPEN_FLOOR.mul_f64(1.0 + REOPEN_JITTER * rng.unit());
        let earliest = self.opened_at.map_or(now, |at| at + floor);
        let is_short = now < earliest;
        if is_short && self.reopened_early {
            return earliest;
        }
        self.reopened_early = is_short;
        now
    }

    /// Records a failed attempt and returns the time of the next one.
    pub(super) fn retry_at(
        &mut self,
        failure: AdsStreamFailure,
        backoff: &Backoff,
        now: Instant,
        rng: &mut Rng,
    ) -> Instant {
        let lost_at = *self.lost_at.get_or_insert(now);
        if failure == AdsStreamFailure::Unreachable && self.has_responded {
            let share = now.since(lost_at).checked_div(PROBE_INTERVAL_DIVISOR).unwrap_or_default();
            let interval = share.min(backoff.max).max(PROBE_INTERVAL);
            let probe = Backoff { initial: interval, multiplier: 1.0, ..backoff.clone() };
            return now + probe.wait(0, rng);
        }
        // Probes leave `attempts` unchanged: only other failures lengthen the backoff.
        let wait = backoff.wait(self.attempts, rng);
        self.attempts = self.attempts.saturating_add(1);
        now + wait
    }

    /// Returns true if the text differs from the last warning of this kind (fault 16: do not repeat a warning).
    pub(super) fn is_new_warning(&mut self, kind: WarningKind, text: &str) -> bool {
        let said = self.last_warnings.entry(kind).or_default();
        let is_new = said != text;
        if is_new {
            text.clone_into(said);
        }
        is_new
    }

    /// Returns the maximum time that the server may take to send a resource (FM-3).
    pub(super) fn resource_timeout(&self) -> Duration {
        Duration::from_secs(if self.config.features.resource_timer_is_transient_error { 30 } else { 15 })
    }

    /// Returns the next deadline of this server.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.stream_state {
            AdsStreamState::Idle => None,
            AdsStreamState::Opening { until, .. } | AdsStreamState::BackingOff { until } => Some(*until),
            AdsStreamState::Open(stream) => stream.timers.values().min().copied(),
        }
    }
}
