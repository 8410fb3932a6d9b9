//! Observers of a call and of its attempts: each one reports how it ended, once.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{CallOutcome, CallTrackers, Code};
use evenkeel_orca::read_trailers;
use http::HeaderValue;

use crate::call::deadline::deadline_exceeded;
use crate::call::in_flight::InFlightGuard;
use crate::call::retry::{RetryPolicy, RetryPushback, RetryState, RetryThrottle};
use crate::call::status;
use crate::telemetry::metrics::{AttemptMeter, CallMeter};
use crate::telemetry::traffic::{CallTimer, FailureCause, FailureInfo, FailureText};
use crate::transport::connection::{StreamPermit, describe_error};
use crate::transport::http2::Error;
use crate::{clock, load};

/// Observer of a call: counts it as in flight, counts its attempts for retries, and reports its end.
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

    /// Creates the observer of a stream of the channel itself, which is not a call.
    pub(crate) fn unobserved() -> CallObserver {
        CallObserver { in_flight: None, retries: RetryState::default(), throttle: None, meter: None }
    }

    /// Returns the maximum number of running calls of the channel, if the call must wait for a slot.
    pub(crate) fn awaited_limit(&self) -> Option<usize> {
        self.in_flight.as_ref().and_then(InFlightGuard::awaited_limit)
    }

    /// Waits for a slot among the running calls of the channel, or until the channel closes.
    pub(crate) async fn acquire_slot(&mut self) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.acquire_slot().await;
        }
    }

    /// Replaces the retry policy, before the first attempt.
    pub(crate) fn replace_retry_policy(&mut self, policy: RetryPolicy) {
        self.retries = RetryState::new(policy);
    }

    /// Records a failed attempt that can be retried. Returns the backoff before the next attempt, if there is one.
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

    /// Records a transparent retry: the peer did not process the attempt.
    pub(crate) fn record_transparent_retry(&mut self) {
        if let Some(meter) = &mut self.meter {
            meter.transparently_retried();
        }
    }

    /// Records the start of an attempt.
    pub(crate) fn start_attempt(&self) -> Option<AttemptMeter> {
        self.meter.as_ref().map(CallMeter::start_attempt)
    }

    /// Records the end of the call. Only the first one counts. `failure` is read only if the code is an error.
    pub(crate) fn finish(&mut self, code: Code, failure: FailureInfo<'_>) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.finish(Some((code, failure)));
        }
        if let Some(mut meter) = self.meter.take() {
            meter.finish(code);
        }
    }

    /// Records the end of an attempt that cannot be retried.
    pub(crate) fn commit(&mut self, code: Code) {
        self.retries.next(code, None, true, self.throttle.as_deref(), 0.0);
    }

    /// Returns the value of `grpc-previous-rpc-attempts` for the next attempt.
    pub(crate) fn previous_attempts(&self) -> Option<HeaderValue> {
        self.retries.previous_attempts()
    }

    /// Moves the observer to the response body.
    pub(super) fn take(&mut self) -> CallObserver {
        CallObserver {
            in_flight: self.in_flight.take(),
            retries: mem::take(&mut self.retries),
            throttle: self.throttle.take(),
            meter: self.meter.take(),
        }
    }
}

/// Observer of an attempt. Trackers, statistics and metrics get its outcome once, also if it is dropped.
pub(crate) struct AttemptObserver {
    /// `None` once the outcome is reported.
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

    /// Creates the observer of a stream of the channel itself, which is not a call.
    pub(crate) fn unobserved(permit: StreamPermit) -> AttemptObserver {
        AttemptObserver { trackers: None, permit, meter: None, timer: CallTimer::default() }
    }

    /// Records the end of the attempt. `failure` contains the trailers, if there are any.
    pub(crate) fn finish(mut self, code: Code, failure: FailureInfo<'_>) {
        let meter = self.meter.take();
        if let Some(meter) = &meter {
            meter.finish(code);
        }
        let stats = self.permit.transport_state().stats();
        stats.finish(mem::take(&mut self.timer), Some((code, failure)));
        let trackers = self.trackers.take().filter(|trackers| !trackers.is_empty());
        // Parsing the report costs time in every call, so it is skipped if it has no reader.
        let want_load =
            trackers.as_ref().is_some_and(CallTrackers::needs_load_report) || stats.records_load();
        let trailers = match failure.text {
            FailureText::Trailers(trailers) if want_load => Some(trailers),
            _ => None,
        };
        let load = trailers.and_then(|trailers| {
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

    /// Returns the status of a call whose deadline passed before the response headers arrived.
    pub(super) fn no_response_status(&self) -> tonic::Status {
        deadline_exceeded(&format!(
            "endpoint {} has not sent response headers",
            self.permit.transport_state().address()
        ))
    }

    /// Returns the status of a broken stream. It contains the reason why the connection was closed, if there is one.
    pub(super) fn error_status(&self, error: &Error) -> tonic::Status {
        let code = status::code_of_error(error);
        let why = match self.permit.transport_state().disconnected() {
            // These errors concern the whole connection, and its first reason is more precise, such as a keepalive
            // timeout.
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
        // After `finish` the timer is empty and counts nothing.
        self.permit.transport_state().stats().finish(mem::take(&mut self.timer), None);
        if let Some(trackers) = self.trackers.take() {
            catch_panic(|| drop(trackers));
        }
    }
}

/// Returns the statistics' view of a status that the process made for an attempt.
pub(super) fn failure_of(status: &tonic::Status) -> FailureInfo<'_> {
    let cause = match status.code() {
        tonic::Code::DeadlineExceeded => FailureCause::Deadline,
        _ => FailureCause::Connection,
    };
    FailureInfo::local(cause, status.message())
}

/// Calls trackers. A tracker may be the application's own, and its panic must not reach the caller of the RPC.
fn catch_panic(callback: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(callback)).is_err() {
        tracing::error!("a load balancing policy panicked in finish");
    }
}
