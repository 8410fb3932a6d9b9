//! Snapshots of a channel: routes, picker and connections, published together.
//!
//! The driver [publishes](SnapshotPublisher::publish) a [`ChannelSnapshot`] after a pass, and a call
//! [loads](SnapshotPublisher::load) the latest one. Loading never waits for the driver. A snapshot is replaced, never
//! modified. Consecutive snapshots share the unchanged parts of their connection table.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use arc_swap::{ArcSwap, Guard};
use evenkeel_core::{Address, ConnectivityState, Instant, RootPicker, Status, SubchannelMap};
use evenkeel_xds::routing::ConfigSelector;
use tokio::sync::{Notify, watch};

use crate::resolver::progress::ResolutionProgress;
use crate::sync::lock;
use crate::text::elapsed;
use crate::transport::connection::Connection;

/// Immutable view of a channel, as one attempt uses it.
#[derive(Debug)]
pub(crate) struct ChannelSnapshot {
    /// Increases with every snapshot. A call compares it to detect a change since its last pick.
    pub(crate) serial: u64,
    pub(crate) state: ChannelState,
    pub(crate) connections: ConnectionMap,
}

/// Handling of calls in this snapshot.
#[derive(Debug)]
pub(crate) enum ChannelState {
    /// The channel is IDLE; a call wakes it.
    Idle,
    /// No config and endpoints have arrived; calls wait.
    Resolving(ResolutionProgress),
    /// There is no usable config. Calls fail with this status, unless they are `wait_for_ready`.
    Failed(Status),
    /// Calls are routed, if there are routes, and picked for.
    Active {
        /// The control plane's routes; `None` if all calls use the same picker.
        selector: Option<Arc<ConfigSelector>>,
        /// Selects a subchannel for each attempt.
        picker: RootPicker,
    },
    /// The application closed the channel.
    Closed,
}

/// The latest snapshot, and notification of the next one.
#[derive(Debug)]
pub(crate) struct SnapshotPublisher {
    latest: ArcSwap<ChannelSnapshot>,
    changed: watch::Sender<()>,
    /// Wakes the driver when a call starts to wait: a deferred pass then runs sooner.
    waiting: Notify,
    connectivity: watch::Sender<ConnectivityState>,
    /// Connection attempts while the channel is not READY.
    connecting: Mutex<ConnectProgress>,
}

/// Connection attempts of a channel that is not READY, for the status of calls that wait for one.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectProgress {
    /// Number of attempts that have not finished.
    pub(crate) attempts: usize,
    /// Address and start of an attempt in progress.
    pub(crate) oldest: Option<(Address, Instant)>,
    /// Error of the last attempt that failed.
    pub(crate) error: Option<Status>,
}

impl ConnectProgress {
    /// Returns what a call waits for at `now`.
    fn describe(&self, now: Instant) -> String {
        let mut text = "no endpoint is connected".to_owned();
        if self.attempts > 0 {
            let plural = if self.attempts == 1 { "" } else { "s" };
            let _ = write!(text, ": {} connection attempt{plural} in progress", self.attempts);
        }
        if let Some((address, since)) = &self.oldest {
            let _ = write!(text, ", to {address} for {}", elapsed(*since, now));
        }
        if let Some(error) = &self.error {
            let _ = write!(text, "; last error: {}", error.message());
        }
        text
    }
}

impl SnapshotPublisher {
    pub(crate) fn new() -> SnapshotPublisher {
        let first =
            ChannelSnapshot { serial: 0, state: ChannelState::Idle, connections: ConnectionMap::default() };
        SnapshotPublisher {
            latest: ArcSwap::from_pointee(first),
            changed: watch::Sender::new(()),
            waiting: Notify::new(),
            connectivity: watch::Sender::new(ConnectivityState::Idle),
            connecting: Mutex::default(),
        }
    }

    /// Returns the latest snapshot without locking.
    pub(crate) fn load(&self) -> Guard<Arc<ChannelSnapshot>> {
        self.latest.load()
    }

    /// Returns a receiver that is notified of every snapshot published from here on.
    pub(crate) fn subscribe(&self) -> watch::Receiver<()> {
        let receiver = self.changed.subscribe();
        // After the subscription, which the driver looks for in `has_waiters`.
        self.waiting.notify_one();
        receiver
    }

    /// Returns true if a call waits for the next snapshot.
    pub(crate) fn has_waiters(&self) -> bool {
        self.changed.receiver_count() > 0
    }

    /// Waits until a call starts to wait. It may return early.
    pub(crate) async fn wait_for_waiter(&self) {
        self.waiting.notified().await;
    }

    /// Replaces the snapshot and notifies waiting calls. Only the driver calls it, so the serial needs no atomic
    /// update.
    pub(crate) fn publish(&self, state: ChannelState, connections: ConnectionMap) {
        let serial = self.latest.load().serial + 1;
        self.latest.store(Arc::new(ChannelSnapshot { serial, state, connections }));
        // Notify after the store, so that a call that wakes loads the stored snapshot.
        self.changed.send_replace(());
    }

    /// The channel's connectivity state. Receivers see the latest value.
    pub(crate) fn connectivity(&self) -> &watch::Sender<ConnectivityState> {
        &self.connectivity
    }

    /// Replaces the connection attempts that calls wait for.
    pub(crate) fn update_connecting(&self, connecting: ConnectProgress) {
        *lock(&self.connecting) = connecting;
    }

    /// Returns what a call with the latest snapshot waits for.
    pub(crate) fn wait_reason(&self, now: Instant) -> String {
        match &self.load().state {
            ChannelState::Idle => "the channel is leaving IDLE".to_owned(),
            ChannelState::Resolving(progress) => progress.describe(now),
            ChannelState::Failed(status) => status.message().to_owned(),
            // The attempts are those before the channel was READY.
            ChannelState::Active { .. } if *self.connectivity.borrow() == ConnectivityState::Ready => {
                "the connection of the pick closed".to_owned()
            }
            ChannelState::Active { .. } => lock(&self.connecting).describe(now),
            ChannelState::Closed => "the channel is closed".to_owned(),
        }
    }

    /// Replaces the connectivity state. Returns the state before, if it changed.
    pub(crate) fn update_connectivity(&self, connectivity: ConnectivityState) -> Option<ConnectivityState> {
        let mut before = connectivity;
        let is_changed = self.connectivity.send_if_modified(|shown| {
            before = std::mem::replace(shown, connectivity);
            before != connectivity
        });
        is_changed.then_some(before)
    }
}

/// The connections that calls can be sent on, by subchannel.
pub(crate) type ConnectionMap = SubchannelMap<Arc<Connection>>;
