//! Observers of a call and of its attempts: each one reports how it ended, once.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{CallOutcome, CallTrackers, Code};
use evenkeel_orca::read_trailers;
use http::{HeaderMap, HeaderValue};

use crate::call::deadline::deadline_exceeded;
use crate::call::in_flight::InFlightGuard;
use crate::call::retry::{RetryPolicy, RetryPushback, RetryState, RetryThrottle};
use crate::call::status;
use crate::telemetry::metrics::{AttemptMeter, CallMeter};
use crate::telemetry::traffic::CallTimer;
use crate::transport::connection::{StreamPermit, describe_error};
use crate::transport::http2::Error;
use crate::{clock, load};

/// What a call does at its end, and whether there is one yet: it counts as under way, and its attempts count for retries.
#[derive(Debug)]
pub(crate) struct CallObserver {
    in_flight: Option<InFlightGuard>,
    retries: RetryState,
    throttle: Option<Arc<RetryThrottle>>,
    meter: Option<CallMeter>,
}

impl CallObserver {
    pub(crate) fn new(
        in_flight: InFlightGuard,
        policy: Option<RetryPolicy>,
        throttle: Option<Arc<RetryThrottle>>,
        meter: CallMeter,
    ) -> CallObserver {
        CallObserver {
            in_flight: Some(in_flight),
            retries: RetryState::new(policy),
            throttle,
            meter: Some(meter),
        }
    }

    /// Of a stream that is the channel's own and not a call.
    pub(crate) fn unobserved() -> CallObserver {
        CallObserver { in_flight: None, retries: RetryState::default(), throttle: None, meter: None }
    }

    /// The policy by which the call is tried again.
    pub(crate) fn replace_retry_policy(&mut self, policy: RetryPolicy) {
        self.retries = RetryState::new(policy);
    }

    /// An attempt failed that could be repeated: how long to wait before the next one, if there is one.
    pub(crate) fn next_retry_delay(
        &mut self,
        code: Code,
        pushback: Option<RetryPushback>,
        random: f64,
    ) -> Option<Duration> {
        let delay = self.retries.next(code, pushback, false, self.throttle.as_deref(), random)?;
        if let Some(meter) = &mut self.meter {
            meter.retried(delay);
        }
        Some(delay)
    }

    /// An attempt is repeated that the peer did not process.
    pub(crate) fn record_transparent_retry(&mut self) {
        if let Some(meter) = &mut self.meter {
            meter.transparently_retried();
        }
    }

    /// Another attempt begins.
    pub(crate) fn start_attempt(&self) -> Option<AttemptMeter> {
        self.meter.as_ref().map(CallMeter::start_attempt)
    }

    /// The call is over.
    pub(crate) fn finish(&mut self, code: Code) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.finish(Some(code));
        }
        if let Some(mut meter) = self.meter.take() {
            meter.finish(code);
        }
    }

    /// An attempt ended that is not repeated in any case.
    pub(crate) fn commit(&mut self, code: Code) {
        self.retries.next(code, None, true, self.throttle.as_deref(), 0.0);
    }

    /// What the next attempt says about those before it.
    pub(crate) fn previous_attempts(&self) -> Option<HeaderValue> {
        self.retries.previous_attempts()
    }

    /// Hands the duty on to the answer's body.
    pub(super) fn take(&mut self) -> CallObserver {
        CallObserver {
            in_flight: self.in_flight.take(),
            retries: mem::take(&mut self.retries),
            throttle: self.throttle.take(),
            meter: self.meter.take(),
        }
    }
}

/// Tells those who track an attempt how it ended, once, also if it is dropped.
pub(crate) struct AttemptObserver {
    /// `None` once they are told.
    trackers: Option<CallTrackers>,
    pub(super) permit: StreamPermit,
    pub(super) meter: Option<AttemptMeter>,
    timer: CallTimer,
}

impl AttemptObserver {
    pub(crate) fn new(
        trackers: CallTrackers,
        permit: StreamPermit,
        meter: Option<AttemptMeter>,
    ) -> AttemptObserver {
        let timer = permit.transport_state().stats().start();
        AttemptObserver { trackers: Some(trackers), permit, meter, timer }
    }

    /// Of a stream that is the channel's own and not a call.
    pub(crate) fn unobserved(permit: StreamPermit) -> AttemptObserver {
        AttemptObserver { trackers: None, permit, meter: None, timer: CallTimer::default() }
    }

    pub(crate) fn finish(mut self, code: Code, trailers: Option<&HeaderMap>) {
        let meter = self.meter.take();
        if let Some(meter) = &meter {
            meter.finish(code);
        }
        let stats = self.permit.transport_state().stats();
        stats.finish(mem::take(&mut self.timer), Some(code));
        let trackers = self.trackers.take().filter(|trackers| !trackers.is_empty());
        let want_load =
            trackers.as_ref().is_some_and(CallTrackers::needs_load_report) || stats.records_load();
        let load = trailers.filter(|_| want_load).and_then(|trailers| {
            let ignored = |why| meter.iter().for_each(|meter| meter.load_ignored(why));
            load::usable(read_trailers(trailers), ignored)
        });
        if let Some(load) = &load {
            stats.load(load);
        }
        let Some(trackers) = trackers else { return };
        catch_panic(|| {
            trackers.finish(&CallOutcome::Finished { code, at: clock::now(), load: load.as_ref() });
        });
    }

    /// What a call says whose time is over before it had an answer.
    pub(super) fn no_response_status(&self) -> tonic::Status {
        deadline_exceeded(&format!("endpoint {} has not answered", self.permit.transport_state().address()))
    }

    /// What a stream that was cut short means, with the reason of the connection's end where there is one.
    pub(super) fn error_status(&self, error: &Error) -> tonic::Status {
        let code = status::code_of_error(error);
        let why = match self.permit.transport_state().disconnected() {
            Some(disconnect) if matches!(error, Error::Io(_) | Error::Closed | Error::Exhausted) => {
                disconnect.status.message().to_owned()
            }
            _ => format!("endpoint {}: {}", self.permit.transport_state().address(), describe_error(error)),
        };
        tonic::Status::new(tonic::Code::from(code as i32), why)
    }
}

impl Drop for AttemptObserver {
    fn drop(&mut self) {
        self.permit.transport_state().stats().finish(mem::take(&mut self.timer), None);
        if let Some(trackers) = self.trackers.take() {
            catch_panic(|| drop(trackers));
        }
    }
}

/// Tells trackers. One may be the application's own; if it panics, that is not the caller's trouble.
fn catch_panic(callback: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(callback)).is_err() {
        tracing::error!("a load balancing policy panicked while it was told how a call ended");
    }
}
