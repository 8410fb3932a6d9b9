//! Attempts to connect: which are under way, and which wait for their turn.
//!
//! A control plane may replace ten thousand endpoints at once, and calls need only the first that answers. So not all attempts
//! begin together: a few do, and more as those come to an end. Endpoints that do not answer at all would hold up the
//! others in this way; an attempt therefore counts only for a while.
//!
//! Attempts take processor time: system calls, HTTP/2 and TLS handshakes. While calls are in flight on a connected channel, the
//! polls of attempts get a [`CONNECT_SHARE`] of the runtime's time. Each attempt measures its own polls, and the next ones begin
//! as late as the mean of those measurements says.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use evenkeel_core::{Address, Instant, SubchannelId};
use tokio::task::AbortHandle;

use crate::channel::id_map::IdMap;

/// How many attempts that count are under way at most: at first, and when many have come to an end.
const INITIAL_LIMIT: usize = 16;
const MAX_LIMIT: usize = 128;

/// Share of the worker threads' time that attempts get while calls are in flight: a numerator and a denominator.
const CONNECT_SHARE: (u32, u32) = (1, 9);

/// Attempts of this length of time begin together. An attempt on its own wakes a thread of the peer and one here; a group
/// shares them, which makes each attempt a fifth cheaper.
const CONNECT_PERIOD: Duration = Duration::from_millis(8);

/// Processor time of an attempt before the first one was measured.
const ASSUMED_COST: Duration = Duration::from_micros(100);

/// For how long an attempt counts.
const COUNTED_FOR: Duration = Duration::from_millis(100);

/// An attempt that somebody wants.
#[derive(Debug)]
pub(crate) struct ConnectRequest {
    pub(crate) id: SubchannelId,
    pub(crate) address: Address,
    pub(crate) deadline: Instant,
}

/// The attempts of a channel; those under way are given up when this is dropped.
#[derive(Debug)]
pub(crate) struct ConnectQueue {
    all: IdMap<QueuedConnect>,
    /// Those that have not begun, with some among them that nobody wants any more.
    waiting: VecDeque<ConnectRequest>,
    /// When those began that may count, in order.
    started: VecDeque<(Instant, SubchannelId)>,
    in_progress: usize,
    /// How many may count. It grows by each that ends, until none waits.
    limit: usize,
    /// Number of worker threads that attempts run on.
    workers: u32,
    /// Mean processor time of an attempt, of the last few.
    cost: Duration,
    /// Time at which the attempts so far have had their share, if calls are in flight.
    paid_at: Instant,
    /// Earliest time of the next attempt, if calls are in flight.
    next_at: Instant,
    calls_in_flight: bool,
}

#[derive(Debug, Default)]
struct QueuedConnect {
    /// `None` if it waits.
    task: Option<AbortHandle>,
    counts: bool,
}

impl ConnectQueue {
    /// Attempts on a runtime with this number of worker threads.
    pub(crate) fn new(workers: usize) -> ConnectQueue {
        ConnectQueue {
            all: IdMap::default(),
            waiting: VecDeque::new(),
            started: VecDeque::new(),
            in_progress: 0,
            limit: INITIAL_LIMIT,
            workers: u32::try_from(workers).unwrap_or(u32::MAX).max(1),
            cost: ASSUMED_COST,
            paid_at: Instant::ORIGIN,
            next_at: Instant::ORIGIN,
            calls_in_flight: false,
        }
    }

    pub(crate) fn push(&mut self, request: ConnectRequest) {
        self.all.insert(request.id, QueuedConnect::default());
        self.waiting.push_back(request);
    }

    /// One that is to begin now, if there is one. While calls are in flight, attempts leave them a share of the time.
    pub(crate) fn next(&mut self, now: Instant, calls_in_flight: bool) -> Option<ConnectRequest> {
        while let Some(&(at, id)) = self.started.front()
            && at + COUNTED_FOR <= now
        {
            self.started.pop_front();
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
            if self.all.contains_key(&request.id) {
                return Some(request);
            }
        }
        None
    }

    /// One began.
    pub(crate) fn handle_started(&mut self, id: SubchannelId, task: AbortHandle, now: Instant) {
        self.all.insert(id, QueuedConnect { task: Some(task), counts: true });
        self.started.push_back((now, id));
        self.in_progress += 1;
        if self.calls_in_flight {
            let (share, of) = CONNECT_SHARE;
            // Timers are not exact: time that was not used is made up for, up to a period.
            let earliest = Instant::ORIGIN + now.since(Instant::ORIGIN).saturating_sub(CONNECT_PERIOD);
            self.paid_at = self.paid_at.max(earliest) + self.cost * of / share / self.workers;
            if self.paid_at > now + CONNECT_PERIOD {
                self.next_at = self.paid_at;
            }
        } else {
            (self.paid_at, self.next_at) = (now, now);
        }
    }

    /// Records the end of an attempt whose polls took this long.
    pub(crate) fn handle_finished(&mut self, id: SubchannelId, spent: Duration) {
        if self.remove(id).is_some() {
            self.cost = (self.cost * 15 + spent) / 16;
        }
    }

    /// Nobody wants it any more.
    pub(crate) fn cancel(&mut self, id: SubchannelId) {
        if let Some(task) = self.remove(id) {
            task.abort();
        }
    }

    fn remove(&mut self, id: SubchannelId) -> Option<AbortHandle> {
        let QueuedConnect { task, counts } = self.all.remove(&id)?;
        self.in_progress -= usize::from(counts);
        self.limit = (self.limit + usize::from(counts)).min(MAX_LIMIT);
        task
    }

    /// When the next one may begin if nothing happens before.
    pub(crate) fn due(&self) -> Option<Instant> {
        if self.waiting.is_empty() {
            return None;
        }
        if self.in_progress < self.limit {
            return Some(self.next_at);
        }
        let (at, _) = self.started.front()?;
        Some((*at + COUNTED_FOR).max(self.next_at))
    }

    /// Returns true if attempts wait for their share of the time and for nothing else.
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

    /// Attempts as a core wants them for so many endpoints.
    fn request(count: u16) -> ConnectQueue {
        let mut core = Core::builder(Rng::fixed(1)).build();
        let endpoints = (0..count).map(|port| Endpoint::at(SocketAddr::from(([127, 0, 0, 1], port + 1))));
        let config = Registry::standard().parse_json(r#"[{"round_robin": {}}]"#).unwrap();
        core.update(LbUpdate::new(config, Endpoints::list(endpoints)));
        let mut connect_queue = ConnectQueue::new(1);
        // Many are begun in parts.
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

    /// Begins all that may; none of them ever answers.
    fn begin(connect_queue: &mut ConnectQueue, now: Instant) -> Vec<(SubchannelId, JoinHandle<()>)> {
        let mut started = Vec::new();
        while let Some(request) = connect_queue.next(now, false) {
            let task = tokio::spawn(pending());
            connect_queue.handle_started(request.id, task.abort_handle(), now);
            started.push((request.id, task));
        }
        started
    }

    /// A few begin, and two for each that ends, well or not, until many are under way; then one for each.
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

    /// Endpoints that do not answer hold up the others for a while only.
    #[tokio::test]
    async fn slow_ones_count_for_a_while() {
        let count = 40;
        let mut connect_queue = request(count);
        let slow = begin(&mut connect_queue, NOW);
        let later = NOW + COUNTED_FOR;
        assert_eq!(begin(&mut connect_queue, NOW + COUNTED_FOR / 2).len(), 0);
        assert_eq!(begin(&mut connect_queue, later).len(), INITIAL_LIMIT);
        // One that ends when it counts no more makes no room.
        connect_queue.handle_finished(slow[0].0, ASSUMED_COST);
        assert_eq!(begin(&mut connect_queue, later).len(), 0);
        let rest = usize::from(count);
        let all = (1..)
            .map(|n| begin(&mut connect_queue, later + COUNTED_FOR * n).len())
            .take_while(|started| *started > 0);
        assert_eq!(all.sum::<usize>(), rest - 2 * INITIAL_LIMIT);
        assert_eq!(connect_queue.due(), None);
    }

    /// While calls are in flight, attempts take a share of the time, whatever they cost.
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
                    // The first ones are begun by an assumption.
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

    /// One that is given up ends if it is under way, and never begins if it is not.
    #[tokio::test]
    async fn nobody_wants_them_any_more() {
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
