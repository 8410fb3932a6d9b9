//! Pacing of passes: the earliest time of the core's next pass.
//!
//! A pass takes time in proportion to the number of endpoints, on a thread that calls need too. When thousands of endpoints are
//! replaced, their connections report one after the other for seconds. A pass for each batch of reports would take all of that
//! time. So the pause after a pass is a multiple of its duration, by the urgency of the events since:
//!
//! | urgency | events | pause | share of the time |
//! |---|---|---|---|
//! | immediate | update, command, first connection of a channel that is not READY | none | unbounded |
//! | prompt | lost connection, waiting call, any event of a channel that is not READY | 1 duration | 1/2 |
//! | routine | the same events as below while no calls are in flight | 9 durations | 1/10 |
//! | background | further connection, failed attempt, load report, timer of a policy | 19 durations | 1/20 |
//!
//! An event after a sufficiently long pause is never delayed. Time is an argument; the driver owns the clock.

use std::time::Duration;

use evenkeel_core::Instant;

/// Minimum pause; shorter ones are skipped. Timers are no finer, and such short passes belong to channels with few
/// endpoints.
const MIN_PAUSE: Duration = Duration::from_millis(1);

/// Maximum pause. The operating system may have interrupted a pass, so its duration is not a reliable cost.
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// Urgency of a pass, ascending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PassUrgency {
    /// The channel is READY and calls are in flight. The pass adds endpoints or updates weights.
    Background,
    /// The channel is READY and no calls are in flight.
    Routine,
    /// Calls may wait for the pass.
    Prompt,
    /// The pass must not be delayed.
    Immediate,
}

/// State between passes: urgency of the pending events, and duration of the last pass.
#[derive(Debug, Default)]
pub(crate) struct PassPacer {
    pending: Option<PassUrgency>,
    last_end: Instant,
    last_duration: Duration,
}

impl PassPacer {
    /// Records an event that needs a pass.
    pub(crate) fn record(&mut self, urgency: PassUrgency) {
        self.pending = self.pending.max(Some(urgency));
    }

    /// Returns true if a pending event waits for a pass that a waiting call would bring forward.
    pub(crate) fn is_deferring(&self) -> bool {
        self.pending == Some(PassUrgency::Background)
    }

    /// Returns the time of the next pass, `None` if nothing needs one. Every event counts as at least as urgent as
    /// `least`. `timer` is the time at which the core needs a pass without an event.
    pub(crate) fn due_at(&self, least: PassUrgency, timer: Option<Instant>) -> Option<Instant> {
        let by_event = self.pending.map(|urgency| self.earliest(urgency.max(least)));
        let by_timer = timer.map(|at| at.max(self.earliest(least)));
        by_event.into_iter().chain(by_timer).min()
    }

    /// Records a pass and clears the pending events, which it has processed.
    pub(crate) fn finish_pass(&mut self, began: Instant, ended: Instant) {
        *self = PassPacer { pending: None, last_end: ended, last_duration: ended.since(began) };
    }

    fn earliest(&self, urgency: PassUrgency) -> Instant {
        let durations = match urgency {
            PassUrgency::Background => 19,
            PassUrgency::Routine => 9,
            PassUrgency::Prompt => 1,
            PassUrgency::Immediate => 0,
        };
        let pause = self.last_duration.saturating_mul(durations).min(MAX_PAUSE);
        if pause < MIN_PAUSE { self.last_end } else { self.last_end + pause }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::SocketAddr;

    use evenkeel_core::{
        ConnectivityState, Core, Endpoint, Endpoints, LbEffect, LbEvent, LbUpdate, Registry, Rng,
        SubchannelId,
    };

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(millis: u32) -> Instant {
        Instant::ORIGIN + MS * millis
    }

    /// Returns a pacer after a pass of this duration that ended at 100 ms.
    fn after_pass(duration: Duration) -> PassPacer {
        let mut pacer = PassPacer::default();
        pacer.record(PassUrgency::Background);
        pacer.finish_pass(at(100), at(100) + duration);
        pacer
    }

    #[test]
    fn a_pause_is_a_multiple_of_the_last_pass() {
        let mut pacer = after_pass(2 * MS);
        assert_eq!(pacer.due_at(PassUrgency::Background, None), None);
        pacer.record(PassUrgency::Background);
        assert_eq!(pacer.due_at(PassUrgency::Background, None), Some(at(140)));
        assert_eq!(pacer.due_at(PassUrgency::Routine, None), Some(at(120)));
        assert_eq!(pacer.due_at(PassUrgency::Prompt, None), Some(at(104)));
        pacer.record(PassUrgency::Prompt);
        pacer.record(PassUrgency::Background);
        assert_eq!(pacer.due_at(PassUrgency::Background, None), Some(at(104)));
        pacer.record(PassUrgency::Immediate);
        assert_eq!(pacer.due_at(PassUrgency::Background, None), Some(at(102)));
    }

    #[test]
    fn short_passes_are_not_paced_and_long_ones_within_bounds() {
        let mut pacer = after_pass(MS / 20);
        pacer.record(PassUrgency::Background);
        assert_eq!(pacer.due_at(PassUrgency::Background, None), Some(at(100) + MS / 20));
        let mut pacer = after_pass(500 * MS);
        pacer.record(PassUrgency::Background);
        assert_eq!(pacer.due_at(PassUrgency::Background, None), Some(at(600) + MAX_PAUSE));
    }

    #[test]
    fn a_timer_waits_for_its_time_and_for_the_pause() {
        let pacer = after_pass(2 * MS);
        assert_eq!(pacer.due_at(PassUrgency::Background, Some(at(110))), Some(at(140)));
        assert_eq!(pacer.due_at(PassUrgency::Background, Some(at(150))), Some(at(150)));
        assert_eq!(pacer.due_at(PassUrgency::Prompt, Some(at(101))), Some(at(104)));
    }

    /// 9,500 endpoints are replaced: connections report in batches of four, a batch each quarter of a millisecond. A pass that
    /// changes the schedule takes 2 ms. Without pacing there is a pass for each batch: 2,375 of them, more than four seconds.
    #[test]
    fn a_storm_of_connection_reports_takes_a_twentieth_of_the_time() {
        const ENDPOINTS: u16 = 9_500;
        const BATCH: usize = 4;
        let config =
            Registry::standard().parse_json(r#"[{"weighted_round_robin": {}}]"#).expect("a valid config");
        let mut core = Core::builder(Rng::fixed(1)).build();
        let endpoint = |port| Endpoint::at(SocketAddr::from(([127, 0, 0, 1], port)));
        core.update(LbUpdate::new(config, Endpoints::list((1..=ENDPOINTS).map(endpoint))));
        let (mut now, mut is_ready) = (at(1), false);
        let mut pacer = PassPacer::default();
        pacer.record(PassUrgency::Immediate);
        let (mut timer, mut dialled) = (None, BTreeSet::<SubchannelId>::new());
        let (mut passes, mut schedules, mut first_ready, mut connected) = (0, 0, None, 0);
        while connected < usize::from(ENDPOINTS) || pacer.due_at(PassUrgency::Background, timer).is_some() {
            let batch: Vec<SubchannelId> = dialled.iter().copied().take(BATCH).collect();
            for id in batch {
                dialled.remove(&id);
                connected += 1;
                assert!(core.handle(LbEvent::Connected(id), now));
                pacer.record(if is_ready { PassUrgency::Background } else { PassUrgency::Immediate });
            }
            let least = if is_ready { PassUrgency::Background } else { PassUrgency::Prompt };
            if pacer.due_at(least, timer).is_some_and(|due| due <= now) {
                let pass = core.reconcile(now);
                passes += 1;
                schedules += u32::from(pass.picker.is_some());
                is_ready = pass.connectivity == ConnectivityState::Ready;
                if is_ready {
                    // The next pass applies the first batch of reports.
                    first_ready.get_or_insert((connected, now));
                }
                let effects = pass.effects.into_iter();
                dialled.extend(effects.filter_map(|effect| match effect {
                    LbEffect::Connect { id, .. } => Some(id),
                    _ => None,
                }));
                // With two READY endpoints, the policy requests a wake-up each second to update weights.
                timer = pass.wake_at.filter(|at| *at <= now);
                let ended = now + 2 * MS;
                pacer.finish_pass(now, ended);
                now = ended;
            }
            now += MS / 4;
        }
        let elapsed = now.since(at(1));
        assert_eq!(connected, usize::from(ENDPOINTS));
        assert_eq!(first_ready.map(|(connected, _)| connected), Some(BATCH));
        // The core begins attempts in parts of 256, one with each pass.
        assert!(elapsed <= Duration::from_secs(2), "{elapsed:?}");
        // A pass per 40 ms, and a few of the start.
        let bound = u32::try_from(elapsed.as_millis() / 40).expect("a short time") + 4;
        assert!(passes <= bound && schedules > 1, "{passes} passes ({schedules} schedules) in {elapsed:?}");
    }
}
