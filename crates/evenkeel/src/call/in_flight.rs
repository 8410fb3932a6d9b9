//! Calls in flight of a channel: counted, timed, and awaited when the channel closes.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use evenkeel_core::Code;
use tokio::sync::Notify;

use crate::telemetry::traffic::{CallTimer, ChannelStats};

/// Counter of the calls of a channel.
#[derive(Debug, Default)]
pub(crate) struct InFlightCalls {
    /// Low half: calls in flight. High half: calls ever started, which may wrap.
    counts: AtomicU64,
    closing: AtomicBool,
    all_finished: Notify,
    channel_stats: ChannelStats,
}

/// Guard that counts a call as in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlightGuard {
    calls: Arc<InFlightCalls>,
    timer: CallTimer,
}

impl InFlightCalls {
    pub(crate) fn start(self: &Arc<InFlightCalls>) -> InFlightGuard {
        // One operation for both halves. The high half may wrap without an effect on the low one.
        self.counts.fetch_add((1 << 32) | 1, Ordering::Relaxed);
        InFlightGuard { calls: self.clone(), timer: self.channel_stats.start() }
    }

    /// Returns the call statistics of the channel.
    pub(crate) fn channel_stats(&self) -> &ChannelStats {
        &self.channel_stats
    }

    /// Returns the number of calls in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        self.counts.load(Ordering::Acquire) as u32
    }

    /// Returns a number that changes whenever a call starts.
    pub(crate) fn started(&self) -> u32 {
        (self.counts.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Waits until no call is in flight.
    pub(crate) async fn wait_finished(&self) {
        // Before the count is read, and with SeqCst: see the drop of `InFlightGuard`.
        self.closing.store(true, Ordering::SeqCst);
        loop {
            let mut all_finished = std::pin::pin!(self.all_finished.notified());
            // Registered first, so that the end of the last call is not missed.
            all_finished.as_mut().enable();
            if self.counts.load(Ordering::SeqCst) as u32 == 0 {
                return;
            }
            all_finished.await;
        }
    }
}

impl InFlightGuard {
    pub(super) fn finish(&mut self, code: Option<Code>) {
        self.calls.channel_stats.finish(mem::take(&mut self.timer), code);
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.finish(None);
        // The mirror image of `wait_finished`: with SeqCst, one side sees the write of the other.
        let before = self.calls.counts.fetch_sub(1, Ordering::SeqCst);
        if before as u32 == 1 && self.calls.closing.load(Ordering::SeqCst) {
            self.calls.all_finished.notify_waiters();
        }
    }
}
