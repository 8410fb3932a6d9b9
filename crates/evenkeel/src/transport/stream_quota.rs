//! Limit of the calls in flight on a connection: the peer's maximum number of concurrent streams.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Slots for as many calls as the peer allows concurrent streams. A waiting call has sent nothing. Cancelling it
/// therefore sends no RST_STREAM, a pattern that servers treat as an attack (rapid reset).
///
/// Without contention, a slot costs one atomic operation to take and one to return. A waiter increments `waiting`
/// before it checks for a slot, and [`StreamQuota::release`] checks `waiting` after it returned one. Both are
/// `SeqCst`, so no wake-up is lost.
#[derive(Debug, Default)]
pub(super) struct StreamQuota {
    pub(super) in_use: AtomicUsize,
    pub(super) limit: AtomicUsize,
    pub(super) waiting: AtomicUsize,
    changed: Notify,
    is_closed: AtomicBool,
}

impl StreamQuota {
    pub(super) fn try_acquire(&self) -> bool {
        let limit = self.limit.load(Ordering::SeqCst);
        // Compared, not subtracted: the peer may lower its limit below the calls in flight.
        let more = |in_use: usize| (in_use < limit).then_some(in_use + 1);
        self.in_use.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    pub(super) fn release(&self) {
        self.in_use.fetch_sub(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            // `Notify` keeps a permit for a waiter that has not registered yet.
            self.changed.notify_one();
        }
    }

    /// Waits for a slot. Returns false if the connection is closed. Dropping the future is safe: a notification it
    /// received passes to the next waiter.
    pub(super) async fn acquire(&self) -> bool {
        let _waiting = QuotaWaiter::new(&self.waiting);
        loop {
            // Register for notifications before the checks, or a release between check and wait would be missed.
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.is_closed.load(Ordering::SeqCst) {
                return false;
            }
            if self.try_acquire() {
                return true;
            }
            changed.await;
        }
    }

    /// Sets the peer's maximum number of concurrent streams. If it shrinks, calls above it finish normally.
    pub(super) fn set_limit(&self, limit: usize) {
        if self.limit.swap(limit, Ordering::SeqCst) < limit {
            // All waiters, because several slots may be free. One that registers later reads the raised limit.
            self.changed.notify_waiters();
        }
    }

    pub(super) fn close(&self) {
        // Before the notification: waiters that wake check it.
        self.is_closed.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }
}

/// Counts as a waiting call until it is dropped, also when the wait is cancelled.
struct QuotaWaiter<'r>(&'r AtomicUsize);

impl QuotaWaiter<'_> {
    fn new(waiting: &AtomicUsize) -> QuotaWaiter<'_> {
        waiting.fetch_add(1, Ordering::SeqCst);
        QuotaWaiter(waiting)
    }
}

impl Drop for QuotaWaiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::task::{JoinSet, yield_now};

    use super::*;

    /// Many tasks compete for three slots, and some cancel their wait. The limit holds at all times and no task waits
    /// forever, also while the limit changes.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_crowd_goes_through_few_places() {
        const PLACES: usize = 3;
        let quota = Arc::new(StreamQuota::default());
        quota.set_limit(PLACES);
        let inside = Arc::new(AtomicUsize::new(0));
        let mut crowd = JoinSet::new();
        for one in 0..64 {
            let (quota, inside) = (quota.clone(), inside.clone());
            crowd.spawn(async move {
                for permit in 0..200 {
                    if (one + permit) % 5 == 0 {
                        // This task polls once, waits at most until others have run, and cancels.
                        tokio::select! {
                            biased;
                            true = quota.acquire() => quota.release(),
                            () = yield_now() => {}
                        }
                        continue;
                    }
                    assert!(quota.acquire().await, "it was never closed");
                    assert!(inside.fetch_add(1, Ordering::SeqCst) < PLACES, "more inside than places");
                    yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    quota.release();
                    if one == 0 {
                        quota.set_limit(permit % PLACES + 1);
                    }
                }
            });
        }
        let all = tokio::time::timeout(Duration::from_secs(60), crowd.join_all());
        all.await.expect("somebody waits for ever");
        assert_eq!(quota.in_use.load(Ordering::SeqCst) + quota.waiting.load(Ordering::SeqCst), 0);
        quota.close();
        assert!(!quota.acquire().await, "it is closed");
    }
}
