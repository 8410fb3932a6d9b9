//! Meters of calls and attempts (A66, A96).
//!
//! Each meter records its status exactly once, also if it is dropped. Latencies use tokio's clock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_core::{BackendLabels, Code, LbLabels};
use evenkeel_orca::IgnoredReason;
use opentelemetry::KeyValue;
use tokio::time::Instant;

use super::channel::ChannelInstruments;
use super::framing::MessageByteCounter;
use super::instruments::{OtelInstruments, target, text};
use crate::sync::lock;

/// Meter of one call. It finishes once; dropping an unfinished meter records CANCELLED.
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

/// Labels and instruments that a call and its attempts share.
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
        [method, target, KeyValue::new("grpc.status", code.name())]
    }
}

impl CallMeter {
    /// Starts the meter of a call to the method at this path. Methods that the filter rejects are recorded as `other`.
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

    /// Starts the meter of an attempt, before its pick.
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

    /// Records a retry by policy. `delay` is the time without an active attempt.
    pub(crate) fn retried(&mut self, delay: Duration) {
        if let Some(call) = &mut self.0 {
            call.retries += 1;
            call.delay += delay;
        }
    }

    /// Records a transparent retry.
    pub(crate) fn transparently_retried(&mut self) {
        if let Some(call) = &mut self.0 {
            call.transparent_retries += 1;
        }
    }

    /// Records the end of the call. Only the first call has an effect.
    pub(crate) fn finish(&mut self, code: Code) {
        let Some(call) = self.0.take() else { return };
        let instruments = call.context.instruments();
        if let Some(duration) = &instruments.call_duration {
            duration.record(call.began.elapsed().as_secs_f64(), &call.context.attributes_with(code));
        }
        // A96: a call without retries records nothing, rather than zero.
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

/// Meter of one attempt. The request body and the response body may each hold a clone. It finishes once; dropping the
/// last clone of an unfinished meter records CANCELLED.
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
    /// Records the labels of the picked endpoint. `place` runs only if the attempt is measured.
    pub(crate) fn record_picked<'p>(&self, place: impl FnOnce() -> Option<&'p BackendLabels>) {
        if let Some((attempt, place)) = self.0.as_ref().and_then(|attempt| Some((attempt, place()?))) {
            attempt.label(|| LbLabels {
                backend_service: Some(place.backend_service.clone()),
                locality: Some(place.locality.clone()),
            });
        }
    }

    /// Records the backend service of a pick that returned no endpoint (A89).
    pub(crate) fn record_unpicked(&self, backend_service: Option<Arc<str>>) {
        if let Some(attempt) = &self.0 {
            attempt.label(|| LbLabels { backend_service, locality: None });
        }
    }

    /// Counts a chunk of the request body. Chunks include gRPC framing and need not end at message boundaries.
    pub(crate) fn sent(&self, chunk: &[u8]) {
        if let Some(attempt) = self.0.as_ref().filter(|attempt| attempt.instruments().attempt_sent.is_some())
        {
            lock(&attempt.sent).take(chunk);
        }
    }

    /// Counts a chunk of the response body. Chunks include gRPC framing and need not end at message boundaries.
    pub(crate) fn received(&self, chunk: &[u8]) {
        if let Some(attempt) =
            self.0.as_ref().filter(|attempt| attempt.instruments().attempt_received.is_some())
        {
            lock(&attempt.received).take(chunk);
        }
    }

    /// Records that the load report in the attempt's trailers was ignored, in whole or in part.
    pub(crate) fn load_ignored(&self, why: IgnoredReason) {
        if let Some(attempt) = &self.0 {
            attempt.context.channel.load_ignored(why);
        }
    }

    /// Records the end of the attempt. Only the first call has an effect.
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
