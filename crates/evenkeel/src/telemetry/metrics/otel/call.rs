//! Meters of calls and attempts (A66, A96).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_core::{BackendLabels, Code, LbLabels};
use evenkeel_orca::IgnoredReason;
use opentelemetry::KeyValue;
use tokio::time::Instant;

use super::channel::ChannelInstruments;
use super::framing::MessageByteCounter;
use super::instruments::{OtelInstruments, target, text};

/// Measures one call. Finishes once; a call that is dropped before was cancelled.
#[derive(Debug)]
pub(crate) struct CallMeter(Option<Box<OpenCall>>);

#[derive(Debug)]
struct OpenCall {
    context: MethodContext,
    began: Instant,
    retries: u64,
    transparent_retries: u64,
    delay: Duration,
}

/// What a call and its attempts have in common.
#[derive(Clone, Debug)]
struct MethodContext {
    channel: ChannelInstruments,
    method: Arc<str>,
}

impl MethodContext {
    fn instruments(&self) -> &OtelInstruments {
        &self.channel.instruments
    }

    fn attributes(&self) -> [KeyValue; 2] {
        [KeyValue::new("grpc.method", text(self.method.clone())), target(&self.channel.target)]
    }

    fn attributes_with(&self, code: Code) -> [KeyValue; 3] {
        let [method, target] = self.attributes();
        [method, target, KeyValue::new("grpc.status", status(code))]
    }
}

impl CallMeter {
    /// A call to the method at this path begins.
    pub(super) fn begin(channel: Option<&ChannelInstruments>, path: &str) -> CallMeter {
        let Some(channel) = channel.filter(|channel| channel.instruments.measure_calls()) else {
            return CallMeter(None);
        };
        let method = path.strip_prefix('/').unwrap_or(path);
        let is_recorded =
            channel.instruments.selection.method_filter.as_ref().is_none_or(|filter| filter(method));
        let method = if is_recorded { method } else { "other" }.into();
        let context = MethodContext { channel: channel.clone(), method };
        let (retries, transparent_retries, delay) = (0, 0, Duration::ZERO);
        CallMeter(Some(Box::new(OpenCall {
            context,
            began: Instant::now(),
            retries,
            transparent_retries,
            delay,
        })))
    }

    /// An attempt begins; its endpoint is not chosen yet.
    pub(crate) fn start_attempt(&self) -> AttemptMeter {
        AttemptMeter(self.0.as_ref().map(|call| {
            if let Some(started) = &call.context.instruments().attempt_started {
                started.add(1, &call.context.attributes());
            }
            Arc::new(OpenAttempt {
                context: call.context.clone(),
                began: Instant::now(),
                labels: Mutex::default(),
                sent: Mutex::default(),
                received: Mutex::default(),
                finished: AtomicBool::new(false),
            })
        }))
    }

    /// The call is tried again, after it waited so long without an attempt.
    pub(crate) fn retried(&mut self, delay: Duration) {
        if let Some(call) = &mut self.0 {
            call.retries += 1;
            call.delay += delay;
        }
    }

    /// The call is tried again since nothing of it was processed.
    pub(crate) fn transparently_retried(&mut self) {
        if let Some(call) = &mut self.0 {
            call.transparent_retries += 1;
        }
    }

    /// The call is over. Only the first end counts.
    pub(crate) fn finish(&mut self, code: Code) {
        let Some(call) = self.0.take() else { return };
        let instruments = call.context.instruments();
        if let Some(duration) = &instruments.call_duration {
            duration.record(call.began.elapsed().as_secs_f64(), &call.context.attributes_with(code));
        }
        // A96: what did not happen is not reported.
        if let Some(retries) = instruments.call_retries.as_ref().filter(|_| call.retries > 0) {
            retries.record(call.retries, &call.context.attributes());
        }
        if let Some(retries) =
            instruments.call_transparent_retries.as_ref().filter(|_| call.transparent_retries > 0)
        {
            retries.record(call.transparent_retries, &call.context.attributes());
        }
        if let Some(delay) = instruments.call_retry_delay.as_ref().filter(|_| call.delay > Duration::ZERO) {
            delay.record(call.delay.as_secs_f64(), &call.context.attributes());
        }
    }
}

impl Drop for CallMeter {
    fn drop(&mut self) {
        self.finish(Code::Cancelled);
    }
}

/// Measures one attempt. The two bodies may each have a clone. Finishes once; an attempt of which the last clone is dropped
/// before was cancelled.
#[derive(Clone, Debug)]
pub(crate) struct AttemptMeter(Option<Arc<OpenAttempt>>);

#[derive(Debug)]
struct OpenAttempt {
    context: MethodContext,
    began: Instant,
    labels: Mutex<LbLabels>,
    sent: Mutex<MessageByteCounter>,
    received: Mutex<MessageByteCounter>,
    finished: AtomicBool,
}

impl AttemptMeter {
    /// An endpoint was picked, in this place if it is known.
    pub(crate) fn record_picked<'p>(&self, place: impl FnOnce() -> Option<&'p BackendLabels>) {
        if let Some((attempt, place)) = self.0.as_ref().and_then(|attempt| Some((attempt, place()?))) {
            attempt.label(|| LbLabels {
                backend_service: Some(place.backend_service.clone()),
                locality: Some(place.locality.clone()),
            });
        }
    }

    /// A pick gave no endpoint, but came to this backend service (A89).
    pub(crate) fn record_unpicked(&self, backend_service: Option<Arc<str>>) {
        if let Some(attempt) = &self.0 {
            attempt.label(|| LbLabels { backend_service, locality: None });
        }
    }

    /// A piece of the request body was sent: messages with their framing, cut anywhere.
    pub(crate) fn sent(&self, chunk: &[u8]) {
        if let Some(attempt) = self.0.as_ref().filter(|attempt| attempt.instruments().attempt_sent.is_some())
        {
            lock(&attempt.sent).take(chunk);
        }
    }

    /// A piece of the response body came: messages with their framing, cut anywhere.
    pub(crate) fn received(&self, chunk: &[u8]) {
        if let Some(attempt) =
            self.0.as_ref().filter(|attempt| attempt.instruments().attempt_received.is_some())
        {
            lock(&attempt.received).take(chunk);
        }
    }

    /// The load report that came with the attempt's end, or something of it, is of no use.
    pub(crate) fn load_ignored(&self, why: IgnoredReason) {
        if let Some(attempt) = &self.0 {
            attempt.context.channel.load_ignored(why);
        }
    }

    /// The attempt is over. Only the first end counts.
    pub(crate) fn finish(&self, code: Code) {
        if let Some(attempt) = &self.0 {
            attempt.finish(code);
        }
    }
}

impl OpenAttempt {
    fn instruments(&self) -> &OtelInstruments {
        self.context.instruments()
    }

    fn label(&self, labels: impl FnOnce() -> LbLabels) {
        if self.instruments().needs_labels() {
            *lock(&self.labels) = labels();
        }
    }

    fn finish(&self, code: Code) {
        if self.finished.swap(true, Ordering::Relaxed) {
            return;
        }
        let instruments = self.instruments();
        let mut attributes = Vec::with_capacity(5);
        attributes.extend(self.context.attributes_with(code));
        instruments.push_labels(&mut attributes, &lock(&self.labels));
        if let Some(duration) = &instruments.attempt_duration {
            duration.record(self.began.elapsed().as_secs_f64(), &attributes);
        }
        if let Some(size) = &instruments.attempt_sent {
            size.record(lock(&self.sent).messages(), &attributes);
        }
        if let Some(size) = &instruments.attempt_received {
            size.record(lock(&self.received).messages(), &attributes);
        }
    }
}

impl Drop for OpenAttempt {
    fn drop(&mut self) {
        self.finish(Code::Cancelled);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// gRPC's name of a code.
fn status(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
