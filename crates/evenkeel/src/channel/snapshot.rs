//! What calls see: routes, picker and connections, published together.
//!
//! The driver makes a [`ChannelSnapshot`] after a pass and [publishes](SnapshotPublisher::publish) it; a call [looks](SnapshotPublisher::load)
//! at the latest one and never waits for the driver, unless it has to wait anyway. A snapshot is replaced, never changed.
//! Connections stand in a table of which a new snapshot shares what did not change.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use evenkeel_core::{ConnectivityState, PersistentVec, RootPicker, Status, SubchannelId};
use evenkeel_xds::routing::ConfigSelector;
use tokio::sync::{Notify, watch};

use crate::transport::connection::Connection;

/// One moment of a channel.
#[derive(Debug)]
pub(crate) struct ChannelSnapshot {
    /// Grows with every snapshot: a call knows by it that what did not work has changed.
    pub(crate) serial: u64,
    pub(crate) state: ChannelState,
    pub(crate) connections: ConnectionMap,
}

/// What becomes of calls.
#[derive(Debug)]
pub(crate) enum ChannelState {
    /// The channel rests; a call wakes it.
    Idle,
    /// Nothing is known yet; calls wait.
    Resolving,
    /// There is no config to go by: calls fail, unless they wait for better days.
    Failed(Status),
    /// Calls are routed, if there are routes, and picked for.
    Active {
        /// How; `None` if every call goes the same way.
        selector: Option<Arc<ConfigSelector>>,
        /// Where to.
        picker: RootPicker,
    },
    /// The application closed the channel.
    Closed,
}

/// The latest snapshot, and who waits for the next one.
#[derive(Debug)]
pub(crate) struct SnapshotPublisher {
    latest: ArcSwap<ChannelSnapshot>,
    changed: watch::Sender<()>,
    /// Wakes the driver when a call begins to wait: a pass that was put off runs sooner.
    waiting: Notify,
    connectivity: watch::Sender<ConnectivityState>,
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
        }
    }

    /// The latest snapshot.
    pub(crate) fn load(&self) -> Guard<Arc<ChannelSnapshot>> {
        self.latest.load()
    }

    /// Told of every snapshot that is published from now on.
    pub(crate) fn subscribe(&self) -> watch::Receiver<()> {
        let receiver = self.changed.subscribe();
        self.waiting.notify_one();
        receiver
    }

    /// Returns true if a call waits for the next snapshot.
    pub(crate) fn has_waiters(&self) -> bool {
        self.changed.receiver_count() > 0
    }

    /// Waits until a call begins to wait. It may return early.
    pub(crate) async fn wait_for_waiter(&self) {
        self.waiting.notified().await;
    }

    /// Puts a snapshot in the place of the last one, and tells those who wait. Only the driver does.
    pub(crate) fn publish(&self, state: ChannelState, connections: ConnectionMap) {
        let serial = self.latest.load().serial + 1;
        self.latest.store(Arc::new(ChannelSnapshot { serial, state, connections }));
        self.changed.send_replace(());
    }

    /// How well the channel is connected.
    pub(crate) fn connectivity(&self) -> &watch::Sender<ConnectivityState> {
        &self.connectivity
    }

    pub(crate) fn update_connectivity(&self, connectivity: ConnectivityState) {
        self.connectivity.send_if_modified(|shown| std::mem::replace(shown, connectivity) != connectivity);
    }
}

/// The connections that calls can be sent on, by subchannel.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionMap {
    all: PersistentVec<(SubchannelId, Arc<Connection>)>,
}

impl ConnectionMap {
    /// The connection of this subchannel, if it has one.
    pub(crate) fn get(&self, id: SubchannelId) -> Option<&Arc<Connection>> {
        let (of, connection) = self.all.get(id.index())?;
        (*of == id).then_some(connection)
    }

    /// Adds the connection of this subchannel. Returns the one of an earlier subchannel with the same index, if it is still
    /// there.
    pub(crate) fn insert(
        &mut self,
        id: SubchannelId,
        connection: Arc<Connection>,
    ) -> Option<Arc<Connection>> {
        self.all.set(id.index(), (id, connection)).map(|(_, earlier)| earlier)
    }

    /// Removes the connection of this subchannel, if it has one.
    pub(crate) fn remove(&mut self, id: SubchannelId) -> Option<Arc<Connection>> {
        self.get(id)?;
        self.all.take(id.index()).map(|(_, connection)| connection)
    }
}
