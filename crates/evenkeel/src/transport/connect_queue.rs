//! Queue of connection attempts: limits how many are in progress, and paces them while calls are in flight.
//!
//! A control plane may replace ten thousand endpoints at once, and calls need only the first one that connects. So a
//! few attempts start, and more as those finish. Unresponsive endpoints would block the queue, so an attempt counts
//! against the limit only for [`COUNTED_FOR`].
//!
//! Attempts take processor time: system calls, HTTP/2 and TLS handshakes. While calls are in flight on a READY
//! channel, polls of attempts get a [`CONNECT_SHARE`] of the runtime's time. Each attempt measures its own polls, and
//! the mean cost determines the start of the next ones. The driver runs the attempts; time is an argument.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use evenkeel_core::{Address, Instant, SubchannelId};
use rustc_hash::FxHashMap;
use tokio::task::AbortHandle;

/// Limits on the number of counted attempts in progress: initially, and after many have finished.
const INITIAL_LIMIT: usize = 16;
const MAX_LIMIT: usize = 128;

/// Share of the worker threads' time for attempts while calls are in flight: numerator and denominator.
const CONNECT_SHARE: (u32, u32) = (1, 9);

/// Total cost of the attempts that start together. A single attempt wakes a thread of the peer and one here;
/// a group shares the wake-ups, which makes each attempt a fifth cheaper.
const CONNECT_PERIOD: Duration = Duration::from_millis(8);

/// Assumed processor time of an attempt, before the first measurement.
const ASSUMED_COST: Duration = Duration::from_micros(100);

/// Time for which an attempt counts against the limit.
const COUNTED_FOR: Duration = Duration::from_millis(100);

/// Connection attempt requested by the core.
#[derive(Debug)]
pub(crate) struct ConnectRequest {
    pub(crate) id: SubchannelId,
    pub(crate) address: Address,
    pub(crate) deadline: Instant,
}

/// Connection attempts of a channel. Dropping the queue cancels those in progress.
#[derive(Debug)]
pub(crate) struct ConnectQueue {
    all: FxHashMap<SubchannelId, QueuedConnect>,
    /// Attempts that have not started, in order. Cancelled ones remain until they reach the front.
    waiting: VecDeque<ConnectRequest>,
    /// Start times of the attempts that may count against the limit, in order.
    started: VecDeque<(Instant, SubchannelId)>,
    in_progress: usize,
    /// Maximum number of counted attempts. Each attempt that ends raises it; it is reset when no attempt waits.
    limit: usize,
    /// Number of worker threads that attempts run on.
    workers: u32,
    /// Moving average of the processor time of an attempt.
    cost: Duration,
    /// Time up to which the attempts started so far use the share, if calls are in flight.
    paid_at: Instant,
    /// Earliest time of the next attempt, if calls are in flight.
    next_at: Instant,
    calls_in_flight: bool,
    /// An attempt in progress, with its address and start. It is the oldest unless an older one has outlived its own.
    oldest: Option<(SubchannelId, Address, Instant)>,
}

#[derive(Debug, Default)]
struct QueuedConnect {
    /// `None` while the attempt waits in the queue.
    task: Option<AbortHandle>,
    counts: bool,
}

impl ConnectQueue {
    /// Returns an empty queue for a runtime with this number of worker threads.
    pub(crate) fn new(workers: usize) -> ConnectQueue {
        ConnectQueue {
            all: FxHashMap::default(),
            waiting: VecDeque::new(),
            started: VecDeque::new(),
            in_progress: 0,
            limit: INITIAL_LIMIT,
            workers: u32::try_from(workers).unwrap_or(u32::MAX).max(1),
            cost: ASSUMED_COST,
            paid_at: Instant::ORIGIN,
            next_at: Instant::ORIGIN,
            calls_in_flight: false,
            oldest: None,
        }
    }

    pub(crate) fn push(&mut self, request: ConnectRequest) {
        self.all.insert(request.id, QueuedConnect::default());
        self.waiting.push_back(request);
    }

    /// Returns an attempt to start at `now`, if the limit and the share of time permit one.
    pub(crate) fn next(&mut self, now: Instant, calls_in_flight: bool) -> Option<ConnectRequest> {
        while let Some(&(at, id)) = self.started.front()
            && at + COUNTED_FOR <= now
        {
            self.started.pop_front();
            // The attempt may have ended since. `counts` is taken, or `remove` would subtract it again.
            if let Some(dial) = self.all.get_mut(&id) {
                self.in_progress -= usize::from(mem::take(&mut dial.counts));
            }
        }
        self.calls_in_flight = calls_in_flight;
        if calls_in_flight && now < self.next_at {
            return None;
        }
        while self.in_progress < self.limit {
            let Some(request) = self.waiting.pop_front() else {
                self.limit = INITIAL_LIMIT;
                return None;
            };
            // Cancelled attempts are skipped here: removing one from the middle of the queue would visit all others.
            if self.all.contains_key(&request.id) {
                self.oldest.get_or_insert_with(|| (request.id, request.address.clone(), now));
                return Some(request);
            }
        }
        None
    }

    /// Records that the caller started an attempt returned by [`ConnectQueue::next`].
    pub(crate) fn handle_started(&mut self, id: SubchannelId, task: AbortHandle, now: Instant) {
        self.all.insert(id, QueuedConnect { task: Some(task), counts: true });
        self.started.push_back((now, id));
        self.in_progress += 1;
        if self.calls_in_flight {
            let (share, of) = CONNECT_SHARE;
            // Timers fire late: unused time is credited, up to one period.
            let earliest = Instant::ORIGIN + now.since(Instant::ORIGIN).saturating_sub(CONNECT_PERIOD);
            self.paid_at = self.paid_at.max(earliest) + self.cost * of / share / self.workers;
            // Attempts of one period start together. The next one then waits until their share has passed.
            if self.paid_at > now + CONNECT_PERIOD {
                self.next_at = self.paid_at;
            }
        } else {
            // Without calls no debt or credit accumulates.
            (self.paid_at, self.next_at) = (now, now);
        }
    }

    /// Records the end of an attempt. `spent` is the time spent in its polls.
    pub(crate) fn handle_finished(&mut self, id: SubchannelId, spent: Duration) {
        if self.remove(id).is_some() {
            self.cost = (self.cost * 15 + spent) / 16;
        }
    }

    /// Cancels an attempt, whether it waits or is in progress.
    pub(crate) fn cancel(&mut self, id: SubchannelId) {
        if let Some(task) = self.remove(id) {
            task.abort();
        }
    }

    fn remove(&mut self, id: SubchannelId) -> Option<AbortHandle> {
        let QueuedConnect { task, counts } = self.all.remove(&id)?;
        if self.oldest.as_ref().is_some_and(|(oldest, ..)| *oldest == id) {
            self.oldest = None;
        }
        self.in_progress -= usize::from(counts);
        // An attempt that no longer counts frees no slot and raises no limit.
        self.limit = (self.limit + usize::from(counts)).min(MAX_LIMIT);
        task
    }

    /// Returns the number of attempts that have not finished, and the address and the start of one of them.
    pub(crate) fn in_progress(&self) -> (usize, Option<(Address, Instant)>) {
        let oldest = self.oldest.as_ref().map(|(_, address, since)| (address.clone(), *since));
        (self.all.len(), oldest)
    }

    /// Returns the earliest time at which an attempt can start without another event, `None` if none waits.
    pub(crate) fn due(&self) -> Option<Instant> {
        if self.waiting.is_empty() {
            return None;
        }
        if self.in_progress < self.limit {
            // In the past if the attempt may start at once.
            return Some(self.next_at);
        }
        // Never empty: the counted attempts, which fill the limit, are in `started`.
        let (at, _) = self.started.front()?;
        Some((*at + COUNTED_FOR).max(self.next_at))
    }

    /// Returns true if attempts wait for their share of the time and not for the limit.
    pub(crate) fn is_paced(&self) -> bool {
        !self.waiting.is_empty() && self.in_progress < self.limit
    }
}

impl Drop for ConnectQueue {
    fn drop(&mut self) {
        for task in self.all.values().filter_map(|dial| dial.task.as_ref()) {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::net::SocketAddr;

    use evenkeel_core::{Core, Endpoint, Endpoints, LbEffect, LbUpdate, Registry, Rng};
    use tokio::task::JoinHandle;

    use super::*;

    const NOW: Instant = Instant::ORIGIN;

    /// Returns a queue with the attempts that a core requests for this number of endpoints.
    fn request(count: u16) -> ConnectQueue {
        let mut core = Core::builder(Rng::fixed(1)).build();
        let endpoints = (0..count).map(|port| Endpoint::at(SocketAddr::from(([127, 0, 0, 1], port + 1))));
        let config = Registry::standard().parse_json(r#"[{"round_robin": {}}]"#).unwrap();
        core.update(LbUpdate::new(config, Endpoints::list(endpoints)));
        let mut connect_queue = ConnectQueue::new(1);
        // The core requests attempts in batches.
        let mut is_due = true;
        while is_due {
            let pass = core.reconcile(NOW);
            is_due = pass.wake_at == Some(NOW);
            for effect in pass.effects {
                if let LbEffect::Connect { id, address, deadline } = effect {
                    connect_queue.push(ConnectRequest { id, address, deadline });
                }
            }
        }
        assert_eq!(connect_queue.waiting.len(), usize::from(count));
        connect_queue
    }

    /// Starts all attempts that are permitted; none of them ever completes.
    fn begin(connect_queue: &mut ConnectQueue, now: Instant) -> Vec<(SubchannelId, JoinHandle<()>)> {
        let mut started = Vec::new();
        while let Some(request) = connect_queue.next(now, false) {
            let task = tokio::spawn(pending());
            connect_queue.handle_started(request.id, task.abort_handle(), now);
            started.push((request.id, task));
        }
        started
    }

    /// A few attempts start, then two for each that ends until the maximum is reached, then one for each.
    #[tokio::test]
    async fn one_ends_and_others_begin() {
        let mut connect_queue = request(600);
        let mut under_way = begin(&mut connect_queue, NOW);
        assert_eq!(under_way.len(), INITIAL_LIMIT);
        assert_eq!(connect_queue.due(), Some(NOW + COUNTED_FOR));
        for started in [2 * INITIAL_LIMIT, 4 * INITIAL_LIMIT, 8 * INITIAL_LIMIT, MAX_LIMIT] {
            for (id, _) in under_way {
                connect_queue.handle_finished(id, ASSUMED_COST);
            }
            under_way = begin(&mut connect_queue, NOW);
            assert_eq!(under_way.len(), started);
        }
    }

    /// Unresponsive endpoints delay the others only for a limited time.
    #[tokio::test]
    async fn slow_ones_count_for_a_while() {
        let count = 40;
        let mut connect_queue = request(count);
        let slow = begin(&mut connect_queue, NOW);
        let later = NOW + COUNTED_FOR;
        assert_eq!(begin(&mut connect_queue, NOW + COUNTED_FOR / 2).len(), 0);
        assert_eq!(begin(&mut connect_queue, later).len(), INITIAL_LIMIT);
        // An attempt that ends after it stopped counting frees no slot.
        connect_queue.handle_finished(slow[0].0, ASSUMED_COST);
        assert_eq!(begin(&mut connect_queue, later).len(), 0);
        let rest = usize::from(count);
        let all = (1..)
            .map(|n| begin(&mut connect_queue, later + COUNTED_FOR * n).len())
            .take_while(|started| *started > 0);
        assert_eq!(all.sum::<usize>(), rest - 2 * INITIAL_LIMIT);
        assert_eq!(connect_queue.due(), None);
    }

    /// While calls are in flight, attempts take their share of the time, independent of their cost.
    #[tokio::test]
    async fn attempts_leave_time_for_calls() {
        const STEP: Duration = Duration::from_millis(1);
        for cost in [Duration::from_micros(50), Duration::from_micros(400)] {
            let mut connect_queue = request(4_000);
            let (mut now, mut started, mut measured, mut groups) = (NOW + COUNTED_FOR, 0, Duration::ZERO, 0);
            for step in 0..400 {
                let before = started;
                while let Some(ConnectRequest { id, .. }) = connect_queue.next(now, true) {
                    connect_queue.handle_started(id, tokio::spawn(pending::<()>()).abort_handle(), now);
                    connect_queue.handle_finished(id, cost);
                    started += 1;
                    // The pace of the first attempts is based on the assumed cost.
                    measured += if step < 100 { Duration::ZERO } else { cost };
                }
                assert!(connect_queue.due().is_some_and(|due| due > now) && connect_queue.is_paced());
                groups += u32::from(started > before);
                now += STEP;
            }
            let (share, of) = CONNECT_SHARE;
            let least = (290 * STEP).saturating_sub(CONNECT_PERIOD) * share / of;
            let most = (300 * STEP + CONNECT_PERIOD) * share / of + 2 * cost;
            assert!(CONNECT_PERIOD * groups <= 400 * STEP + CONNECT_PERIOD, "{groups} groups in 400 ms");
            assert!((least..=most).contains(&measured), "{measured:?} of 300 ms by {started} attempts");
            assert!(connect_queue.next(now, false).is_some(), "without calls there is no pace");
        }
    }

    /// Cancelling stops an attempt in progress and removes a waiting one.
    #[tokio::test]
    async fn cancelled_attempts_stop() {
        let mut connect_queue = request(300);
        let waiting: Vec<SubchannelId> =
            connect_queue.waiting.iter().skip(INITIAL_LIMIT).map(|request| request.id).collect();
        let (id, task) = begin(&mut connect_queue, NOW).remove(0);
        connect_queue.cancel(id);
        assert!(task.await.is_err_and(|ended| ended.is_cancelled()));
        for id in &waiting[1..] {
            connect_queue.cancel(*id);
        }
        let last = begin(&mut connect_queue, NOW);
        assert_eq!(last.iter().map(|(id, _)| *id).collect::<Vec<_>>(), waiting[..1]);
        drop(connect_queue);
        for (_, task) in last {
            assert!(task.await.is_err_and(|ended| ended.is_cancelled()));
        }
    }
}
