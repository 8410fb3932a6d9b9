//! Calls in flight of a channel: counted, timed, limited, and awaited when the channel closes.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use evenkeel_core::Code;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::telemetry::traffic::{CallTimer, ChannelStats, FailureInfo};

/// Counter of the calls of a channel.
#[derive(Debug, Default)]
pub(crate) struct InFlightCalls {
    /// Low half: calls in flight. High half: calls ever started, which may wrap.
    counts: AtomicU64,
    closing: AtomicBool,
    all_finished: Notify,
    channel_stats: ChannelStats,
    limit: Option<ConcurrencyLimit>,
}

/// Limit of the calls that the channel runs at the same time. Further calls wait in their order.
#[derive(Debug)]
struct ConcurrencyLimit {
    slots: Semaphore,
    maximum: usize,
}

/// Guard that counts a call as in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlightGuard {
    calls: Arc<InFlightCalls>,
    timer: CallTimer,
    /// True if the call uses a slot of the limit, which the guard returns.
    holds_slot: bool,
}

impl InFlightCalls {
    /// Creates a counter without calls. `maximum` limits the calls that run at the same time.
    pub(crate) fn new(maximum: Option<usize>) -> InFlightCalls {
        let limit = maximum.map(|maximum| {
            let maximum = maximum.min(Semaphore::MAX_PERMITS);
            ConcurrencyLimit { slots: Semaphore::new(maximum), maximum }
        });
        InFlightCalls { limit, ..InFlightCalls::default() }
    }

    /// Counts a call that starts. With a limit, it may run once [`InFlightGuard::holds_slot`] is true.
    pub(crate) fn start(self: &Arc<InFlightCalls>) -> InFlightGuard {
        // One operation for both halves. The high half may wrap without an effect on the low one.
        self.counts.fetch_add((1 << 32) | 1, Ordering::Relaxed);
        let holds_slot = match &self.limit {
            None => false,
            // Fails while other calls wait, so that no call is overtaken.
            Some(limit) => limit.slots.try_acquire().map(SemaphorePermit::forget).is_ok(),
        };
        InFlightGuard { calls: self.clone(), timer: self.channel_stats.start(), holds_slot }
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
        if let Some(limit) = &self.limit {
            // Calls that wait for a slot find the channel closed.
            limit.slots.close();
        }
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
    /// Returns the maximum number of running calls, if the call must wait for a slot.
    pub(super) fn awaited_limit(&self) -> Option<usize> {
        let limit = self.calls.limit.as_ref().filter(|limit| !self.holds_slot && !limit.slots.is_closed())?;
        Some(limit.maximum)
    }

    /// Waits for a slot. Returns at once without a limit, and when the channel closes.
    pub(super) async fn acquire_slot(&mut self) {
        let Some(limit) = self.calls.limit.as_ref().filter(|_| !self.holds_slot) else { return };
        if let Ok(slot) = limit.slots.acquire().await {
            slot.forget();
            self.holds_slot = true;
        }
    }

    /// Records the end of the call and returns its slot. Only the first time counts.
    pub(super) fn finish(&mut self, end: Option<(Code, FailureInfo<'_>)>) {
        self.calls.channel_stats.finish(mem::take(&mut self.timer), end);
        if mem::take(&mut self.holds_slot)
            && let Some(limit) = &self.calls.limit
        {
            limit.slots.add_permits(1);
        }
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
