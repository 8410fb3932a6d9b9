//! Closing of subchannels, and dropping of connections and retired state in batches between events.

use std::mem;
use std::time::Duration;

use evenkeel_core::SubchannelId;

use crate::channel::driver::ChannelDriver;
use crate::channel::driver::active::ActiveChannel;
use crate::clock;

/// Number of connections dropped before the driver yields, while no calls are in flight.
const RELEASE_BATCH: usize = 32;

/// Number of connections dropped at once while calls are in flight, and the pause that follows. Dropping one takes a
/// few system calls, and calls need most of the time.
const RELEASE_BATCH_WITH_CALLS: usize = 4;
pub(super) const CLOSE_PAUSE: Duration = Duration::from_millis(2);

/// Number of deferred closes processed at once.
const CLOSE_BATCH: usize = 512;

impl ChannelDriver {
    /// Processes a batch of deferred closes. If there are none, drops a batch of closed connections and retired
    /// state.
    pub(super) fn release_some(&mut self) {
        let Some(active) = &mut self.active else { return };
        let has_calls = active.calls_in_flight();
        active.close_at = has_calls.then(|| clock::now() + CLOSE_PAUSE);
        // Calls must not see a connection that is dropped, so closes are published before anything is dropped.
        if !active.closes.is_empty() {
            // From the end of the lists, so that no element moves.
            let first = active.closes.len().saturating_sub(CLOSE_BATCH);
            for id in active.closes.split_off(first) {
                active.close(id);
            }
            if mem::take(&mut active.is_dirty) {
                self.published.publish(active.channel_state(), active.connections.clone());
            }
            return;
        }
        let at_once = if has_calls { RELEASE_BATCH_WITH_CALLS } else { RELEASE_BATCH };
        active.released.truncate(active.released.len().saturating_sub(at_once));
        active.released_values.drop_some();
    }
}

impl ActiveChannel {
    /// Returns true if closed subchannels, connections or retired state wait to be dropped.
    pub(super) fn has_deferred_work(&self) -> bool {
        !(self.closes.is_empty() && self.released.is_empty() && self.released_values.is_empty())
    }

    pub(super) fn close(&mut self, id: SubchannelId) {
        self.connect_queue.cancel(id);
        self.load.watch(id, None, None);
        self.meters.remove(&id);
        if let Some(connection) = self.connections.remove(id) {
            self.released.push(connection);
            self.is_dirty = true;
        }
    }
}
