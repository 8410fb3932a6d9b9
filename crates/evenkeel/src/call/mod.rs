//! One call: what it keeps over its attempts, how an attempt is sent, and how its answer is watched to the end.
//!
//! A request body is read once and sent as it comes; what was sent is kept until the call is committed, so that an attempt
//! which the peer did not process, or which a policy repeats, can be sent again (A6). The common request, one message that is
//! there at once, is sent without a task of its own and without waiting for the peer.

pub(crate) mod retry;
pub(crate) mod status;
pub(crate) mod timeout;

use std::future::{Future, poll_fn};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_core::{CallOutcome, CallTrackers, Code};
use evenkeel_orca::read_trailers;
use http::{HeaderMap, HeaderValue};
use http_body::{Body as _, Frame, SizeHint};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::body::Body;

use crate::call::retry::{RetryPolicy, RetryPushback, RetryState, RetryThrottle};
use crate::channel::PeerAddress;
use crate::telemetry::metrics::{AttemptMeter, CallMeter};
use crate::telemetry::traffic::{CallTimer, ChannelStats};
use crate::transport::connection::{StreamPermit, describe_error};
use crate::transport::http2::{Error, HttpRecvStream, HttpSendStream, Reason, ResponseHeaders};
use crate::{clock, load};

/// What is kept of a request body for another attempt; a call that sent more is not repeated (gRPC's default).
const MAX_BUFFERED_BYTES: usize = 256 << 10;

/// The calls of a channel.
#[derive(Debug, Default)]
pub(crate) struct InFlightCalls {
    /// In the low half those under way, in the high half how many there ever were; it may wrap.
    counts: AtomicU64,
    closing: AtomicBool,
    all_finished: Notify,
    channel_stats: ChannelStats,
}

/// A call that counts as under way until this is dropped.
#[derive(Debug)]
pub(crate) struct InFlightGuard {
    calls: Arc<InFlightCalls>,
    timer: CallTimer,
}

impl InFlightCalls {
    pub(crate) fn start(self: &Arc<InFlightCalls>) -> InFlightGuard {
        self.counts.fetch_add((1 << 32) | 1, Ordering::Relaxed);
        InFlightGuard { calls: self.clone(), timer: self.channel_stats.start() }
    }

    /// Counts them for those who look inside.
    pub(crate) fn channel_stats(&self) -> &ChannelStats {
        &self.channel_stats
    }

    /// How many are under way.
    pub(crate) fn in_flight(&self) -> u32 {
        self.counts.load(Ordering::Acquire) as u32
    }

    /// A number that is another one after a call began.
    pub(crate) fn started(&self) -> u32 {
        (self.counts.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Waits until no call is under way.
    pub(crate) async fn wait_finished(&self) {
        self.closing.store(true, Ordering::SeqCst);
        loop {
            let mut all_finished = std::pin::pin!(self.all_finished.notified());
            // From here on the last call's end is not missed.
            all_finished.as_mut().enable();
            if self.counts.load(Ordering::SeqCst) as u32 == 0 {
                return;
            }
            all_finished.await;
        }
    }
}

impl InFlightGuard {
    fn finish(&mut self, code: Option<Code>) {
        self.calls.channel_stats.finish(mem::take(&mut self.timer), code);
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.finish(None);
        let before = self.calls.counts.fetch_sub(1, Ordering::SeqCst);
        if before as u32 == 1 && self.calls.closing.load(Ordering::SeqCst) {
            self.calls.all_finished.notify_waiters();
        }
    }
}

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
    fn take(&mut self) -> CallObserver {
        CallObserver {
            in_flight: self.in_flight.take(),
            retries: mem::take(&mut self.retries),
            throttle: self.throttle.take(),
            meter: self.meter.take(),
        }
    }
}

/// Until when a call may take.
#[derive(Debug, Default)]
pub(crate) struct CallDeadline(Option<Pin<Box<Sleep>>>);

impl CallDeadline {
    pub(crate) fn at(at: Option<Instant>) -> CallDeadline {
        CallDeadline(at.map(|at| Box::pin(sleep_until(at))))
    }

    /// How much time is left; `None` is without end.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.0.as_ref().map(|sleep| sleep.deadline().saturating_duration_since(Instant::now()))
    }

    /// Moves the deadline up, never back; answers whether it moved.
    pub(crate) fn tighten(&mut self, at: Instant) -> bool {
        match &mut self.0 {
            Some(sleep) if sleep.deadline() <= at => return false,
            Some(sleep) => sleep.as_mut().reset(at),
            None => self.0 = Some(Box::pin(sleep_until(at))),
        }
        true
    }

    pub(crate) fn is_expired(&self) -> bool {
        self.remaining().is_some_and(|left| left.is_zero())
    }

    /// Ready when it has passed.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Some(sleep) => sleep.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }

    /// What `work` comes to, or `None` if the deadline passes before.
    pub(crate) async fn race<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => self.poll_expired(cx).map(|()| None),
        })
        .await
    }
}

/// A request body that can be sent again.
pub(crate) struct RequestBuffer {
    body: Body,
    ended: bool,
    /// What was read of the body so far; of most calls it is one piece.
    first: Option<Bytes>,
    more: Vec<Bytes>,
    buffered_bytes: usize,
    /// Whether nothing was thrown away that another attempt would need.
    is_replayable: bool,
}

impl RequestBuffer {
    pub(crate) fn new(body: Body) -> RequestBuffer {
        let ended = body.is_end_stream();
        RequestBuffer { body, ended, first: None, more: Vec::new(), buffered_bytes: 0, is_replayable: true }
    }

    /// Whether all of it can be sent again.
    pub(crate) fn is_replayable(&self) -> bool {
        self.is_replayable
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ended && self.buffered_bytes == 0
    }

    fn push(&mut self, data: &Bytes) {
        if !self.is_replayable {
            return;
        }
        self.buffered_bytes += data.len();
        if self.buffered_bytes > MAX_BUFFERED_BYTES {
            self.discard();
        } else if self.first.is_none() {
            self.first = Some(data.clone());
        } else {
            self.more.push(data.clone());
        }
    }

    /// Keeps nothing any more: the call will not be repeated.
    fn discard(&mut self) {
        self.is_replayable = false;
        self.first = None;
        self.more = Vec::new();
    }

    fn sent_chunk(&self, position: usize) -> Option<&Bytes> {
        match position {
            0 => self.first.as_ref(),
            _ => self.more.get(position - 1),
        }
    }
}

/// A request body on its way.
struct RequestSender {
    buffer: RequestBuffer,
    stream: HttpSendStream,
    /// How many pieces this attempt has come to: those that were sent before, then those of the body.
    chunks_taken: usize,
    /// A piece that is not sent yet: it may turn out to be the last one.
    pending_chunk: Option<Bytes>,
    /// Whether this attempt is the last one.
    is_committed: bool,
    meter: Option<AttemptMeter>,
}

/// What became of an upload that is over.
enum RequestSendResult {
    /// All was sent, or the peer wants no more.
    Done,
    /// The application's body failed.
    Failed(tonic::Status),
}

impl RequestSender {
    fn new(buffer: RequestBuffer, stream: HttpSendStream, meter: Option<AttemptMeter>) -> RequestSender {
        RequestSender { buffer, stream, chunks_taken: 0, pending_chunk: None, is_committed: false, meter }
    }

    /// Sends what there is. The next piece is asked for only when there is room for it on the wire, except that the first one
    /// does not wait.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RequestSendResult> {
        loop {
            if self.pending_chunk.is_some()
                && self.chunks_taken > 1
                && ready!(self.stream.poll_capacity(cx)).is_none()
            {
                return Poll::Ready(RequestSendResult::Done);
            }
            match self.poll_chunk(cx) {
                Poll::Ready(Some(Ok(chunk))) => {
                    if let Some(pending_chunk) = self.pending_chunk.replace(chunk)
                        && self.stream.send(pending_chunk, false).is_none()
                    {
                        return Poll::Ready(RequestSendResult::Done);
                    }
                }
                Poll::Ready(Some(Err(status))) => {
                    self.stream.reset(Reason::CANCEL);
                    return Poll::Ready(RequestSendResult::Failed(status));
                }
                Poll::Ready(None) => {
                    self.stream.send(self.pending_chunk.take().unwrap_or_default(), true);
                    return Poll::Ready(RequestSendResult::Done);
                }
                Poll::Pending => {
                    if let Some(pending_chunk) = self.pending_chunk.take()
                        && self.stream.send(pending_chunk, false).is_none()
                    {
                        return Poll::Ready(RequestSendResult::Done);
                    }
                    return self.stream.poll_closed(cx).map(|()| RequestSendResult::Done);
                }
            }
        }
    }

    /// The next piece of data: one that was sent before, or one of the body.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, tonic::Status>>> {
        let chunk = ready!(self.poll_next_chunk(cx));
        if let (Some(meter), Some(Ok(chunk))) = (&self.meter, &chunk) {
            meter.sent(chunk);
        }
        Poll::Ready(chunk)
    }

    fn poll_next_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, tonic::Status>>> {
        if let Some(chunk) = self.buffer.sent_chunk(self.chunks_taken) {
            self.chunks_taken += 1;
            return Poll::Ready(Some(Ok(chunk.clone())));
        }
        if self.is_committed {
            self.buffer.discard();
        }
        if self.buffer.ended {
            return Poll::Ready(None);
        }
        loop {
            match ready!(Pin::new(&mut self.buffer.body).poll_frame(cx)) {
                // Requests of gRPC have no trailers.
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.push(&data);
                        self.chunks_taken += 1;
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    self.buffer.ended = true;
                    return Poll::Ready(None);
                }
            }
        }
    }
}

/// An upload in a task of its own, since the application may read and write at its own pace.
struct RequestSendTask {
    task: AbortHandle,
    /// For an attempt that failed: how to get the body back. Dropped when the call is committed, by which the task knows to
    /// keep nothing.
    back: Option<BufferReturn>,
}

/// How to stop an upload, and where its body comes back to.
type BufferReturn = (oneshot::Sender<()>, oneshot::Receiver<Result<RequestBuffer, tonic::Status>>);

impl RequestSendTask {
    fn spawn(mut sender: RequestSender) -> RequestSendTask {
        let (return_buffer, back) = oneshot::channel();
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let send_result = poll_fn(|cx| {
                if !sender.is_committed {
                    match Pin::new(&mut stopped).poll(cx) {
                        Poll::Ready(Ok(())) => return Poll::Ready(RequestSendResult::Done),
                        // Nobody will stop it any more.
                        Poll::Ready(Err(_)) => sender.is_committed = true,
                        Poll::Pending => {}
                    }
                }
                sender.poll(cx)
            })
            .await;
            let _ = return_buffer.send(match send_result {
                RequestSendResult::Done => Ok(sender.buffer),
                RequestSendResult::Failed(status) => Err(status),
            });
        });
        RequestSendTask { task: task.abort_handle(), back: Some((stop, back)) }
    }

    /// Stops the upload. The body comes back, or what it failed with.
    async fn stop(mut self) -> Result<Option<RequestBuffer>, tonic::Status> {
        let Some((stop, back)) = self.back.take() else { return Ok(None) };
        let _ = stop.send(());
        back.await.ok().transpose()
    }
}

impl Drop for RequestSendTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An attempt that failed.
pub(crate) struct AttemptOutcome {
    pub(crate) code: Code,
    pub(crate) outcome: Result<http::Response<ResponseBody>, tonic::Status>,
    /// Whether the peer promised that it did nothing with it.
    pub(crate) is_unprocessed: bool,
    /// The body, if it can be sent again.
    pub(crate) buffer: Option<RequestBuffer>,
}

/// Tells those who track an attempt how it ended, once, also if it is dropped.
pub(crate) struct AttemptObserver {
    /// `None` once they are told.
    trackers: Option<CallTrackers>,
    permit: StreamPermit,
    meter: Option<AttemptMeter>,
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
    fn no_response_status(&self) -> tonic::Status {
        deadline_exceeded(&format!("endpoint {} has not answered", self.permit.transport_state().address()))
    }

    /// What a stream that was cut short means, with the reason of the connection's end where there is one.
    fn error_status(&self, error: &Error) -> tonic::Status {
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

/// An attempt on its way: sent, or being sent, and not answered yet.
pub(crate) struct Attempt {
    /// Given to the answer's body.
    response: Option<HttpRecvStream>,
    /// The request body, while it is here.
    sender: Option<RequestSender>,
    progress: SendProgress,
    /// `None` once there is an answer.
    observer: Option<AttemptObserver>,
    captures_peer: bool,
}

/// How far the request body is.
enum SendProgress {
    /// It is sent by whoever waits for the answer.
    Inline,
    /// It takes its time, in a task of its own.
    Spawned(RequestSendTask),
    /// All of it was sent, or the peer wants no more.
    Done,
    /// It failed.
    Failed(tonic::Status),
}

/// The head of an answer; `None` if there is none because the request body failed or the deadline passed.
type HeadResult = Option<Result<ResponseHeaders, Error>>;

impl Attempt {
    /// An attempt whose head is sent.
    pub(crate) fn new(
        (stream, response): (HttpSendStream, HttpRecvStream),
        buffer: RequestBuffer,
        observer: AttemptObserver,
    ) -> Attempt {
        let sender = Some(RequestSender::new(buffer, stream, observer.meter.clone()));
        Attempt {
            response: Some(response),
            sender,
            progress: SendProgress::Inline,
            observer: Some(observer),
            captures_peer: false,
        }
    }

    /// Whether the answer tells who gave it.
    pub(crate) fn capture_peer(self, captures_peer: bool) -> Attempt {
        Attempt { captures_peer, ..self }
    }

    /// Sends, and waits for the head of the answer.
    pub(crate) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        deadline: &mut CallDeadline,
    ) -> Poll<HeadResult> {
        if let (SendProgress::Inline, Some(sender)) = (&self.progress, &mut self.sender) {
            self.progress = match sender.poll(cx) {
                Poll::Ready(RequestSendResult::Done) => SendProgress::Done,
                Poll::Ready(RequestSendResult::Failed(status)) => SendProgress::Failed(status),
                Poll::Pending => self.sender.take().map_or(SendProgress::Done, |sender| {
                    SendProgress::Spawned(RequestSendTask::spawn(sender))
                }),
            };
        }
        if let SendProgress::Failed(_) = self.progress {
            return Poll::Ready(None);
        }
        let Some(response) = &mut self.response else { return Poll::Ready(None) };
        match response.poll_head(cx) {
            Poll::Ready(head) => Poll::Ready(Some(head)),
            Poll::Pending => deadline.poll_expired(cx).map(|()| None),
        }
    }

    /// Makes an answer of the head, or a failure.
    pub(crate) fn handle_head(
        &mut self,
        head: HeadResult,
        deadline: &mut CallDeadline,
        call_observer: &mut CallObserver,
    ) -> Result<http::Response<ResponseBody>, Box<FailedAttempt>> {
        let Some(observer) = self.observer.take() else {
            return Err(
                self.fail_attempt(Err(tonic::Status::internal("an attempt was answered twice")), None)
            );
        };
        match head {
            Some(Ok(head)) => self.handle_response(head, observer, deadline, call_observer),
            Some(Err(error)) => {
                let mut status = observer.error_status(&error);
                // A peer that keeps the same deadline may notice first, and cancels the call.
                if status.code() == tonic::Code::Cancelled && deadline.is_expired() {
                    status = observer.no_response_status();
                }
                let mut failure = self.fail_attempt(Err(status), Some(observer));
                failure.is_unprocessed = status::is_unprocessed(&error);
                Err(failure)
            }
            None => Err(self.fail_attempt(Err(observer.no_response_status()), Some(observer))),
        }
    }

    /// The answer, if its head is not the end of it.
    fn handle_response(
        &mut self,
        head: ResponseHeaders,
        observer: AttemptObserver,
        deadline: &mut CallDeadline,
        call_observer: &mut CallObserver,
    ) -> Result<http::Response<ResponseBody>, Box<FailedAttempt>> {
        let ResponseHeaders { status, headers, end_stream } = head;
        let (mut parts, ()) = http::Response::new(()).into_parts();
        (parts.status, parts.headers, parts.version) = (status, headers, http::Version::HTTP_2);
        if self.captures_peer {
            parts.extensions.insert(PeerAddress(observer.permit.transport_state().address().clone()));
        }
        let code = match status::read_head(&parts) {
            Ok(code) => code,
            Err(found) => {
                let code = tonic::Code::from(status::code_of_http(parts.status) as i32);
                let address = observer.permit.transport_state().address();
                let text = format!("endpoint {address}: expected a gRPC answer, found {found}");
                return Err(self.fail_attempt(Err(tonic::Status::new(code, text)), Some(observer)));
            }
        };
        if code == Some(Code::Cancelled) && deadline.is_expired() {
            return Err(self.fail_attempt(Err(observer.no_response_status()), Some(observer)));
        }
        // A failure in the head is the whole answer, also if the stream has not ended: a server that answers before it has
        // the whole request resets it behind its answer.
        if let Some(code) = code.filter(|code| *code != Code::Ok || end_stream) {
            if code != Code::Ok {
                return Err(self.fail_attempt(Ok((code, parts)), Some(observer)));
            }
            observer.finish(code, Some(&parts.headers));
            call_observer.commit(code);
            call_observer.finish(code);
            return Ok(http::Response::from_parts(parts, ResponseBody::empty()));
        }
        let sender = match mem::replace(&mut self.progress, SendProgress::Done) {
            SendProgress::Spawned(mut task) => {
                task.back = None;
                Some(task)
            }
            _ => None,
        };
        let Some(stream) = self.response.take() else {
            return Err(self.fail_attempt(
                Err(tonic::Status::internal("an attempt was answered twice")),
                Some(observer),
            ));
        };
        let response = ResponseStream {
            stream,
            observer,
            _sender: sender,
            deadline: mem::take(deadline),
            call_observer: call_observer.take(),
        };
        Ok(http::Response::from_parts(parts, ResponseBody(Some(response))))
    }

    fn fail_attempt(
        &mut self,
        why: Result<(Code, http::response::Parts), tonic::Status>,
        observer: Option<AttemptObserver>,
    ) -> Box<FailedAttempt> {
        let progress = mem::replace(&mut self.progress, SendProgress::Done);
        Box::new(FailedAttempt { sender: self.sender.take(), progress, observer, why, is_unprocessed: false })
    }
}

/// An attempt that failed before there was anything of an answer but a status.
pub(crate) struct FailedAttempt {
    sender: Option<RequestSender>,
    progress: SendProgress,
    observer: Option<AttemptObserver>,
    /// The peer's answer, or what went wrong.
    why: Result<(Code, http::response::Parts), tonic::Status>,
    is_unprocessed: bool,
}

impl FailedAttempt {
    /// Gets the body back, so that it can be sent again. If the body itself failed, that is what the call failed with.
    pub(crate) async fn recover_body(self: Box<FailedAttempt>) -> AttemptOutcome {
        let FailedAttempt { sender, progress, observer, why, is_unprocessed } = *self;
        let back = match progress {
            SendProgress::Inline | SendProgress::Done => Ok(sender.map(|sender| sender.buffer)),
            // It ends when it is told to, whatever becomes of the stream.
            SendProgress::Spawned(task) => task.stop().await,
            SendProgress::Failed(status) => Err(status),
        };
        let (why, buffer) = match (why, back) {
            (Err(_), Err(status)) => (Err(status), None),
            (why, back) => (why, back.unwrap_or(None).filter(RequestBuffer::is_replayable)),
        };
        let finish = |code, headers: Option<&HeaderMap>| {
            if let Some(observer) = observer {
                observer.finish(code, headers);
            }
        };
        let (code, outcome) = match why {
            Ok((code, parts)) => {
                finish(code, Some(&parts.headers));
                (code, Ok(http::Response::from_parts(parts, ResponseBody::empty())))
            }
            Err(status) => {
                let code = status::code(status.code() as i32);
                finish(code, None);
                (code, Err(status))
            }
        };
        AttemptOutcome { code, outcome, is_unprocessed, buffer }
    }
}

/// What a call says whose time is over.
pub(crate) fn deadline_exceeded(waiting_for: &str) -> tonic::Status {
    tonic::Status::deadline_exceeded(format!("the deadline passed: {waiting_for}"))
}

/// The body of an answer. It is watched to its end: those who track the call are told how it ended, also if it is dropped.
///
/// The default is an empty one, as interceptors of generated clients want it for the calls that they refuse.
#[derive(Default)]
pub struct ResponseBody(Option<ResponseStream>);

/// An answer that is not over.
struct ResponseStream {
    stream: HttpRecvStream,
    observer: AttemptObserver,
    _sender: Option<RequestSendTask>,
    deadline: CallDeadline,
    call_observer: CallObserver,
}

impl ResponseBody {
    pub(crate) fn empty() -> ResponseBody {
        ResponseBody(None)
    }

    fn finish(&mut self, code: Code, trailers: Option<&HeaderMap>) {
        if let Some(mut response) = self.0.take() {
            response.observer.finish(code, trailers);
            response.call_observer.commit(code);
            response.call_observer.finish(code);
        }
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let Some(response) = &mut self.0 else { return Poll::Ready(None) };
        let error = match response.stream.poll_data(cx) {
            // However much there is to read: the caller may be slow.
            Poll::Ready(Some(Ok(_))) if response.deadline.is_expired() => {
                let status = response.incomplete_response_status();
                return Poll::Ready(Some(self.fail(status)));
            }
            Poll::Ready(Some(Ok(data))) => {
                if let Some(meter) = &response.observer.meter {
                    meter.received(&data);
                }
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            Poll::Ready(Some(Err(error))) => error,
            Poll::Ready(None) => match response.stream.poll_trailers(cx) {
                Poll::Ready(Ok(Some(trailers))) => {
                    let code = status::code_of(&trailers).unwrap_or(Code::Unknown);
                    self.finish(code, Some(&trailers));
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                Poll::Ready(Ok(None)) => {
                    self.finish(Code::Unknown, None);
                    return Poll::Ready(None);
                }
                Poll::Ready(Err(error)) => error,
                Poll::Pending => return response.poll_deadline(cx).map(|status| Some(self.fail(status))),
            },
            Poll::Pending => return response.poll_deadline(cx).map(|status| Some(self.fail(status))),
        };
        let mut status = response.observer.error_status(&error);
        if status.code() == tonic::Code::Cancelled && response.deadline.is_expired() {
            status = response.incomplete_response_status();
        }
        Poll::Ready(Some(self.fail(status)))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        if self.0.is_none() { SizeHint::with_exact(0) } else { SizeHint::default() }
    }
}

impl ResponseBody {
    fn fail(&mut self, status: tonic::Status) -> Result<Frame<Bytes>, tonic::Status> {
        self.finish(status::code(status.code() as i32), None);
        Err(status)
    }
}

impl ResponseStream {
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<tonic::Status> {
        ready!(self.deadline.poll_expired(cx));
        Poll::Ready(self.incomplete_response_status())
    }

    fn incomplete_response_status(&self) -> tonic::Status {
        deadline_exceeded(&format!(
            "endpoint {} has not finished its answer",
            self.observer.permit.transport_state().address()
        ))
    }
}

impl std::fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseBody").field("is_over", &self.0.is_none()).finish()
    }
}
