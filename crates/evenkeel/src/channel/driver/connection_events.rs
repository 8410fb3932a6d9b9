//! Events that the tasks of connections report, and their effect on an active channel.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{LbEvent, LbLabels, LoadReport, Status, SubchannelId};

use crate::channel::driver::active::ActiveChannel;
use crate::channel::pass_pacer::PassUrgency;
use crate::clock;
use crate::transport::connection::{Connection, Disconnect};

/// Event reported by the task of a connection.
pub(super) enum ConnectionEvent {
    /// An attempt succeeded, after its polls took this long.
    Connected(SubchannelId, Arc<Connection>, Duration),
    /// An attempt failed, after its polls took this long.
    Failed(SubchannelId, Status, Duration),
    Lost(SubchannelId, Disconnect),
    Load(SubchannelId, LoadReport),
}

impl ActiveChannel {
    /// Applies an event of a connection. Returns true if the peer rejected our keepalive pings (`too_many_pings`,
    /// A8).
    pub(super) fn handle_event(&mut self, report: ConnectionEvent) -> bool {
        let now = clock::now();
        // Closed connections and cancelled attempts report as well. The core ignores those events, and they need no
        // pass.
        match report {
            ConnectionEvent::Connected(id, connection, spent) => {
                self.connect_queue.handle_finished(id, spent);
                self.connect_error = None;
                // If the core has closed the subchannel, dropping the handle closes the connection.
                if self.core.handle(LbEvent::Connected(id), now) {
                    let is_first = !self.is_ready;
                    self.pacer.record(if is_first {
                        PassUrgency::Immediate
                    } else {
                        PassUrgency::Background
                    });
                    tracing::debug!(address = %connection.transport_state().address(), "subchannel connected");
                    let transport = connection.transport_state();
                    self.calls.channel_stats().attach(transport.address(), transport.stats());
                    self.load.connected(id, &connection);
                    self.meters.insert(id, self.metrics.connected(self.labels(id), transport.security()));
                    // In a large change, the index is reused before the earlier subchannel is closed. Dropping its
                    // connection here would close one for each that opens, at the expense of calls.
                    self.released.extend(self.connections.insert(id, connection));
                    self.is_dirty = true;
                }
                false
            }
            ConnectionEvent::Failed(id, status, spent) => {
                self.connect_queue.handle_finished(id, spent);
                tracing::debug!(error = status.message(), "connection attempt failed");
                self.connect_error = Some(status.clone());
                let labels = self.labels(id);
                // A cancelled attempt is counted neither as succeeded nor as failed (A94).
                if self.core.handle(LbEvent::ConnectFailed(id, status), now) {
                    self.pacer.record(PassUrgency::Background);
                    self.metrics.connect_failed(&labels);
                }
                false
            }
            ConnectionEvent::Load(id, report) => {
                if let Some(connection) = self.connections.get(id) {
                    connection.transport_state().stats().load(&report);
                }
                if self.core.handle(LbEvent::Load(id, report), now) {
                    self.pacer.record(PassUrgency::Background);
                }
                false
            }
            ConnectionEvent::Lost(id, disconnect) => {
                self.load.lost(id);
                if let Some(mut meter) = self.meters.remove(&id) {
                    meter.lost(disconnect.reason);
                }
                if let Some(connection) = self.connections.remove(id) {
                    if connection.transport_state().has_served_calls() {
                        // Must precede `Disconnected`, which decides on the backoff by it.
                        self.core.handle(LbEvent::ResponseReceived(id), now);
                    }
                    tracing::info!(
                    address = %connection.transport_state().address(),
                    reason = ?disconnect.reason,
                    error = disconnect.status.message(),
                    "subchannel disconnected"
                    );
                    self.is_dirty = true;
                    self.pacer.record(PassUrgency::Prompt);
                }
                if self.core.handle(LbEvent::Disconnected(id, disconnect.status), now) {
                    self.pacer.record(PassUrgency::Prompt);
                }
                disconnect.too_many_pings
            }
        }
    }

    /// Returns the metric labels of a subchannel, empty if no metric needs them.
    fn labels(&self, id: SubchannelId) -> LbLabels {
        if self.metrics.needs_labels() { self.core.labels(id) } else { LbLabels::default() }
    }
}
