//! One control plane, and how we stand with it.
//!
//! ```text
//!            in use               opened            closed after a response
//!   Idle ------------> Opening ------------> Open ---------------------------> Opening
//!                        ^  |                  |
//!                    due |  | failed, late     | closed before a response, or nonsense received
//!                        |  v                  |
//!                       Waiting <--------------+
//! ```
//!
//! From anywhere back to Idle when no authority uses it any more. A server *fails* from its first failure to its next
//! response (A57).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{Instant, Status};

use super::StreamId;
use super::stream::Stream;
use crate::bootstrap::ServerConfig;
use crate::resource::ResourceType;

/// A control plane.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) config: Arc<ServerConfig>,
    pub(super) link: Link,
    /// Streams in a row that ended without a response.
    pub(super) attempts: u32,
    /// Why it fails, while it does.
    pub(super) failure: Option<Status>,
    /// The version of each type that was accepted last. It outlives the stream.
    pub(super) versions: BTreeMap<ResourceType, String>,
    pub(super) tally: Tally,
    said: BTreeMap<Topic, String>,
}

/// How far the stream is.
#[derive(Debug)]
pub(super) enum Link {
    Idle,
    Opening { stream: StreamId, until: Instant },
    Open(Box<Stream>),
    Waiting { until: Instant },
}

/// What operators are told about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    Failure,
    UnknownType,
    Rejected(ResourceType),
}

/// What happened with one control plane since the client was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    /// The control plane.
    pub server: Arc<ServerConfig>,
    /// Whether somebody needs it. One that nobody needs is neither well nor failing.
    pub in_use: bool,
    /// Whether there is a stream and no failure since the last response.
    pub connected: bool,
    /// How often it went from well to failing.
    pub failures: u64,
    /// Resources that were received and fit for use, by type; only those that were asked for.
    pub valid: BTreeMap<ResourceType, u64>,
    /// Resources that were received and not fit for use, by type; only those that were asked for.
    pub invalid: BTreeMap<ResourceType, u64>,
}

impl Server {
    pub(super) fn new(config: Arc<ServerConfig>) -> Server {
        let tally = Tally {
            server: Arc::clone(&config),
            in_use: false,
            connected: false,
            failures: 0,
            valid: BTreeMap::new(),
            invalid: BTreeMap::new(),
        };
        Server {
            config,
            link: Link::Idle,
            attempts: 0,
            failure: None,
            versions: BTreeMap::new(),
            tally,
            said: BTreeMap::new(),
        }
    }

    pub(super) fn stream_id(&self) -> Option<StreamId> {
        match &self.link {
            Link::Opening { stream, .. } => Some(*stream),
            Link::Open(stream) => Some(stream.id),
            Link::Idle | Link::Waiting { .. } => None,
        }
    }

    pub(super) fn stream(&self) -> Option<&Stream> {
        match &self.link {
            Link::Open(stream) => Some(stream),
            _ => None,
        }
    }

    pub(super) fn stream_mut(&mut self) -> Option<&mut Stream> {
        match &mut self.link {
            Link::Open(stream) => Some(stream),
            _ => None,
        }
    }

    /// A response came: the server is well.
    pub(super) fn recover(&mut self) {
        self.attempts = 0;
        self.failure = None;
        self.tally.connected = true;
        self.said.remove(&Topic::Failure);
    }

    /// A response was accepted as a whole. Were it spoiled again in the same way, that would be news.
    pub(super) fn accepted(&mut self, kind: ResourceType, version: String) {
        self.versions.insert(kind, version);
        self.said.remove(&Topic::Rejected(kind));
    }

    /// Nobody needs it any more.
    pub(super) fn rest(&mut self) {
        self.link = Link::Idle;
        self.attempts = 0;
        self.failure = None;
        self.tally.in_use = false;
        self.tally.connected = false;
    }

    /// Whether operators were not told this last time (fault 16: the same thing is said once).
    pub(super) fn is_news(&mut self, topic: Topic, text: &str) -> bool {
        let said = self.said.entry(topic).or_default();
        let news = said != text;
        if news {
            text.clone_into(said);
        }
        news
    }

    /// How long it may take to send a resource (FM-3).
    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(if self.config.features.resource_timer_is_transient_error { 30 } else { 15 })
    }

    /// When something is due here.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.link {
            Link::Idle => None,
            Link::Opening { until, .. } | Link::Waiting { until } => Some(*until),
            Link::Open(stream) => stream.timers.values().min().copied(),
        }
    }
}
