//! Counts of the last minute, from the counters of consecutive samples.

use std::collections::VecDeque;

use evenkeel_core::Code;

use super::state::{FailedCall, FailureCause, FailureCount, TrafficStats};
use crate::telemetry::traffic::{CallStatsSnapshot, FailureCounts};

/// Length of the window in milliseconds.
const WINDOW_MS: u64 = 60_000;

/// Minimum length of a slice in milliseconds. Shorter sampling intervals share one.
const SLICE_MS: u64 = 1000;

/// Calls of the last minute of a channel or an endpoint.
#[derive(Debug, Default)]
pub(super) struct CallWindow {
    /// Number of ended calls and of failures in the previous sample.
    before: (u64, FailureCounts),
    /// Time of the previous sample.
    at: u64,
    slices: VecDeque<CallSlice>,
}

/// Calls between two samples.
#[derive(Debug)]
struct CallSlice {
    at: u64,
    ended: u64,
    failures: FailureCounts,
}

impl CallWindow {
    /// Processes the counters at this time. Calls before the first sample of the process have no time, so
    /// `is_first` leaves them out.
    pub(super) fn handle_sample(&mut self, at: u64, now: &CallStatsSnapshot, is_first: bool) {
        self.at = at;
        self.slices.retain(|slice| at.saturating_sub(slice.at) < WINDOW_MS);
        let all_ended = now.succeeded + now.failed + now.abandoned;
        let (before, known) = std::mem::replace(&mut self.before, (all_ended, now.failures.clone()));
        if is_first {
            return;
        }
        let ended = all_ended.saturating_sub(before);
        if ended == 0 {
            return;
        }
        if self.slices.back().is_none_or(|slice| at.saturating_sub(slice.at) >= SLICE_MS) {
            self.slices.push_back(CallSlice { at, ended: 0, failures: Vec::new() });
        }
        let Some(slice) = self.slices.back_mut() else { return };
        slice.ended += ended;
        for (kind, count) in &now.failures {
            let earlier = known.iter().find(|(known, _)| known == kind).map_or(0, |(_, count)| *count);
            add(&mut slice.failures, *kind, count.saturating_sub(earlier));
        }
    }

    /// Returns true once the window has not been sampled for its length.
    pub(super) fn is_outdated(&self, at: u64) -> bool {
        at.saturating_sub(self.at) >= WINDOW_MS
    }

    /// Sets the figures of the last minute.
    pub(super) fn fill(&self, traffic: &mut TrafficStats, now: &CallStatsSnapshot) {
        traffic.recent_calls = self.slices.iter().map(|slice| slice.ended).sum();
        let mut failures = FailureCounts::new();
        for (kind, count) in self.slices.iter().flat_map(|slice| &slice.failures) {
            add(&mut failures, *kind, *count);
        }
        failures.sort_by_key(|((code, cause), count)| (std::cmp::Reverse(*count), *code as u8, *cause));
        let counted = |((code, cause), count): ((Code, _), _)| FailureCount {
            code: code.name().to_owned(),
            cause,
            count,
        };
        traffic.recent_failures = failures.into_iter().map(counted).collect();
        traffic.last_error = now.last_failure.as_ref().map(|failure| FailedCall {
            at: failure.at,
            code: failure.code.name().to_owned(),
            cause: failure.cause,
            text: failure.text.clone(),
        });
    }
}

fn add(counts: &mut FailureCounts, kind: (Code, FailureCause), count: u64) {
    if count == 0 {
        return;
    }
    match counts.iter_mut().find(|(known, _)| *known == kind) {
        Some((_, sum)) => *sum += count,
        None => counts.push((kind, count)),
    }
}

/// Increase of a counter in the last minute.
#[derive(Debug, Default)]
pub(super) struct CounterWindow {
    before: u64,
    slices: VecDeque<(u64, u64)>,
}

impl CounterWindow {
    /// Processes the counter at this time and returns its increase in the last minute. `is_first` has the meaning
    /// of [`CallWindow::handle_sample`].
    pub(super) fn handle_sample(&mut self, at: u64, now: u64, is_first: bool) -> u64 {
        self.slices.retain(|(then, _)| at.saturating_sub(*then) < WINDOW_MS);
        let before = std::mem::replace(&mut self.before, now);
        let more = if is_first { 0 } else { now.saturating_sub(before) };
        match self.slices.back_mut() {
            Some((then, sum)) if at.saturating_sub(*then) < SLICE_MS => *sum += more,
            _ if more > 0 => self.slices.push_back((at, more)),
            _ => {}
        }
        self.slices.iter().map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(succeeded: u64, unavailable: u64) -> CallStatsSnapshot {
        let mut counts = CallStatsSnapshot::default();
        (counts.succeeded, counts.failed) = (succeeded, unavailable);
        counts.failures = vec![((Code::Unavailable, FailureCause::Connection), unavailable)];
        counts
    }

    #[test]
    fn the_window_covers_the_last_minute() {
        let mut window = CallWindow::default();
        let mut traffic = TrafficStats::default();
        // Half a second between samples: slices are shared.
        for step in 0..=240u64 {
            let now = counts(10 * step, step);
            window.handle_sample(step * 500, &now, step == 0);
            window.fill(&mut traffic, &now);
        }
        assert!((1300..=1322).contains(&traffic.recent_calls), "{}", traffic.recent_calls);
        assert!((118..=121).contains(&traffic.recent_failed()), "{:?}", traffic.recent_failures);
        assert_eq!(traffic.recent_failures[0].code, "UNAVAILABLE");
        let quiet = counts(2400, 240);
        window.handle_sample(240_000, &quiet, false);
        window.fill(&mut traffic, &quiet);
        assert_eq!((traffic.recent_calls, traffic.recent_failures.len()), (0, 0));
    }

    #[test]
    fn calls_before_the_first_sample_are_not_recent() {
        let (mut window, mut traffic) = (CallWindow::default(), TrafficStats::default());
        window.handle_sample(1000, &counts(5000, 70), true);
        window.fill(&mut traffic, &counts(5000, 70));
        assert_eq!((traffic.recent_calls, traffic.recent_failed()), (0, 0));
        let mut drops = CounterWindow::default();
        assert_eq!(drops.handle_sample(1000, 40, true), 0);
        assert_eq!(drops.handle_sample(2000, 43, false), 3);
        assert_eq!(CounterWindow::default().handle_sample(2000, 3, false), 3);
    }
}
