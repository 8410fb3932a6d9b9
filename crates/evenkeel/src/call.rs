//! One call: what it keeps over its attempts, how an attempt is sent, and how its answer is watched to the end.
//!
//! A request body is read once and sent as it comes; what was sent is kept until the call is committed, so that an attempt
//! which the peer did not process, or which a policy repeats, can be sent again (A6). The common request, one message that is
//! there at once, is sent without a task of its own and without waiting for the peer.

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

use crate::channel::Peer;
use crate::connection::{Turn, cause};
use crate::http2::{Error, Head, Reason, RequestStream, ResponseStream};
use crate::metrics::{AttemptMeter, CallMeter};
use crate::retry::{Pushback, Retries, RetryPolicy, Throttle};
use crate::traffic::{Counted, Tallies};
use crate::{clock, load, status};

/// What is kept of a request body for another attempt; a call that sent more is not repeated (gRPC's default).
const MAX_KEPT: usize = 256 << 10;

/// The calls of a channel.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// In the low half those under way, in the high half how many there ever were; it may wrap.
    counts: AtomicU64,
    closing: AtomicBool,
    none_left: Notify,
    tallies: Tallies,
}

/// A call that counts as under way until this is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay {
    calls: Arc<Calls>,
    counted: Counted,
}

impl Calls {
    pub(crate) fn begin(self: &Arc<Calls>) -> UnderWay {
        self.counts.fetch_add((1 << 32) | 1, Ordering::Relaxed);
        UnderWay { calls: self.clone(), counted: self.tallies.begin() }
    }

    /// Counts them for those who look inside.
    pub(crate) fn tallies(&self) -> &Tallies {
        &self.tallies
    }

    /// How many are under way.
    pub(crate) fn under_way(&self) -> u32 {
        self.counts.load(Ordering::Acquire) as u32
    }

    /// A number that is another one after a call began.
    pub(crate) fn begun(&self) -> u32 {
        (self.counts.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Waits until no call is under way.
    pub(crate) async fn finished(&self) {
        self.closing.store(true, Ordering::SeqCst);
        loop {
            let mut none_left = std::pin::pin!(self.none_left.notified());
            // From here on the last call's end is not missed.
            none_left.as_mut().enable();
            if self.counts.load(Ordering::SeqCst) as u32 == 0 {
                return;
            }
            none_left.await;
        }
    }
}

impl UnderWay {
    fn over(&mut self, code: Option<Code>) {
        self.calls.tallies.end(mem::take(&mut self.counted), code);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.over(None);
        let before = self.calls.counts.fetch_sub(1, Ordering::SeqCst);
        if before as u32 == 1 && self.calls.closing.load(Ordering::SeqCst) {
            self.calls.none_left.notify_waiters();
        }
    }
}

/// What a call does at its end, and whether there is one yet: it counts as under way, and its attempts count for retries.
#[derive(Debug)]
pub(crate) struct End {
    under_way: Option<UnderWay>,
    retries: Retries,
    throttle: Option<Arc<Throttle>>,
    meter: Option<CallMeter>,
}

impl End {
    pub(crate) fn new(
        under_way: UnderWay,
        policy: Option<RetryPolicy>,
        throttle: Option<Arc<Throttle>>,
        meter: CallMeter,
    ) -> End {
        End { under_way: Some(under_way), retries: Retries::new(policy), throttle, meter: Some(meter) }
    }

    /// Of a stream that is the channel's own and not a call.
    pub(crate) fn untold() -> End {
        End { under_way: None, retries: Retries::default(), throttle: None, meter: None }
    }

    /// The policy by which the call is tried again.
    pub(crate) fn retry_by(&mut self, policy: RetryPolicy) {
        self.retries = Retries::new(policy);
    }

    /// An attempt failed that could be repeated: how long to wait before the next one, if there is one.
    pub(crate) fn failed(&mut self, code: Code, pushback: Option<Pushback>, random: f64) -> Option<Duration> {
        let delay = self.retries.next(code, pushback, false, self.throttle.as_deref(), random)?;
        if let Some(meter) = &mut self.meter {
            meter.retried(delay);
        }
        Some(delay)
    }

    /// An attempt is repeated that the peer did not process.
    pub(crate) fn refused(&mut self) {
        if let Some(meter) = &mut self.meter {
            meter.transparently_retried();
        }
    }

    /// Another attempt begins.
    pub(crate) fn attempt(&self) -> Option<AttemptMeter> {
        self.meter.as_ref().map(CallMeter::attempt)
    }

    /// The call is over.
    pub(crate) fn over(&mut self, code: Code) {
        if let Some(under_way) = &mut self.under_way {
            under_way.over(Some(code));
        }
        if let Some(mut meter) = self.meter.take() {
            meter.finish(code);
        }
    }

    /// An attempt ended that is not repeated in any case.
    pub(crate) fn committed(&mut self, code: Code) {
        self.retries.next(code, None, true, self.throttle.as_deref(), 0.0);
    }

    /// What the next attempt says about those before it.
    pub(crate) fn previous_attempts(&self) -> Option<HeaderValue> {
        self.retries.previous_attempts()
    }

    /// Hands the duty on to the answer's body.
    fn hand_on(&mut self) -> End {
        End {
            under_way: self.under_way.take(),
            retries: mem::take(&mut self.retries),
            throttle: self.throttle.take(),
            meter: self.meter.take(),
        }
    }
}

/// Until when a call may take.
#[derive(Debug, Default)]
pub(crate) struct Deadline(Option<Pin<Box<Sleep>>>);

impl Deadline {
    pub(crate) fn at(at: Option<Instant>) -> Deadline {
        Deadline(at.map(|at| Box::pin(sleep_until(at))))
    }

    /// How much time is left; `None` is without end.
    pub(crate) fn left(&self) -> Option<Duration> {
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

    pub(crate) fn has_passed(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// Ready when it has passed.
    pub(crate) fn poll_passed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
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
            Poll::Pending => self.poll_passed(cx).map(|()| None),
        })
        .await
    }
}

/// A request body that can be sent again.
pub(crate) struct Replay {
    body: Body,
    ended: bool,
    /// What was read of the body so far; of most calls it is one piece.
    first: Option<Bytes>,
    more: Vec<Bytes>,
    kept: usize,
    /// Whether nothing was thrown away that another attempt would need.
    whole: bool,
}

impl Replay {
    pub(crate) fn new(body: Body) -> Replay {
        let ended = body.is_end_stream();
        Replay { body, ended, first: None, more: Vec::new(), kept: 0, whole: true }
    }

    /// Whether all of it can be sent again.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ended && self.kept == 0
    }

    fn keep(&mut self, data: &Bytes) {
        if !self.whole {
            return;
        }
        self.kept += data.len();
        if self.kept > MAX_KEPT {
            self.forget();
        } else if self.first.is_none() {
            self.first = Some(data.clone());
        } else {
            self.more.push(data.clone());
        }
    }

    /// Keeps nothing any more: the call will not be repeated.
    fn forget(&mut self) {
        self.whole = false;
        self.first = None;
        self.more = Vec::new();
    }

    fn sent_before(&self, position: usize) -> Option<&Bytes> {
        match position {
            0 => self.first.as_ref(),
            _ => self.more.get(position - 1),
        }
    }
}

/// A request body on its way.
struct Upload {
    replay: Replay,
    stream: RequestStream,
    /// How many pieces this attempt has come to: those that were sent before, then those of the body.
    taken: usize,
    /// A piece that is not sent yet: it may turn out to be the last one.
    held: Option<Bytes>,
    /// Whether this attempt is the last one.
    is_committed: bool,
    meter: Option<AttemptMeter>,
}

/// What became of an upload that is over.
enum Uploaded {
    /// All was sent, or the peer wants no more.
    Done,
    /// The application's body failed.
    Failed(tonic::Status),
}

impl Upload {
    fn new(replay: Replay, stream: RequestStream, meter: Option<AttemptMeter>) -> Upload {
        Upload { replay, stream, taken: 0, held: None, is_committed: false, meter }
    }

    /// Sends what there is. The next piece is asked for only when there is room for it on the wire, except that the first one
    /// does not wait.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Uploaded> {
        loop {
            if self.held.is_some() && self.taken > 1 && ready!(self.stream.poll_room(cx)).is_none() {
                return Poll::Ready(Uploaded::Done);
            }
            match self.poll_piece(cx) {
                Poll::Ready(Some(Ok(piece))) => {
                    if let Some(held) = self.held.replace(piece)
                        && self.stream.send(held, false).is_none()
                    {
                        return Poll::Ready(Uploaded::Done);
                    }
                }
                Poll::Ready(Some(Err(status))) => {
                    self.stream.reset(Reason::CANCEL);
                    return Poll::Ready(Uploaded::Failed(status));
                }
                Poll::Ready(None) => {
                    self.stream.send(self.held.take().unwrap_or_default(), true);
                    return Poll::Ready(Uploaded::Done);
                }
                Poll::Pending => {
                    if let Some(held) = self.held.take()
                        && self.stream.send(held, false).is_none()
                    {
                        return Poll::Ready(Uploaded::Done);
                    }
                    return self.stream.poll_unwanted(cx).map(|()| Uploaded::Done);
                }
            }
        }
    }

    /// The next piece of data: one that was sent before, or one of the body.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, tonic::Status>>> {
        let piece = ready!(self.poll_unmeasured(cx));
        if let (Some(meter), Some(Ok(piece))) = (&self.meter, &piece) {
            meter.sent(piece);
        }
        Poll::Ready(piece)
    }

    fn poll_unmeasured(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, tonic::Status>>> {
        if let Some(piece) = self.replay.sent_before(self.taken) {
            self.taken += 1;
            return Poll::Ready(Some(Ok(piece.clone())));
        }
        if self.is_committed {
            self.replay.forget();
        }
        if self.replay.ended {
            return Poll::Ready(None);
        }
        loop {
            match ready!(Pin::new(&mut self.replay.body).poll_frame(cx)) {
                // Requests of gRPC have no trailers.
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.replay.keep(&data);
                        self.taken += 1;
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    self.replay.ended = true;
                    return Poll::Ready(None);
                }
            }
        }
    }
}

/// An upload in a task of its own, since the application may read and write at its own pace.
struct UploadTask {
    task: AbortHandle,
    /// For an attempt that failed: how to get the body back. Dropped when the call is committed, by which the task knows to
    /// keep nothing.
    back: Option<WayBack>,
}

/// How to stop an upload, and where its body comes back to.
type WayBack = (oneshot::Sender<()>, oneshot::Receiver<Result<Replay, tonic::Status>>);

impl UploadTask {
    fn spawn(mut upload: Upload) -> UploadTask {
        let (give_back, back) = oneshot::channel();
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let uploaded = poll_fn(|cx| {
                if !upload.is_committed {
                    match Pin::new(&mut stopped).poll(cx) {
                        Poll::Ready(Ok(())) => return Poll::Ready(Uploaded::Done),
                        // Nobody will stop it any more.
                        Poll::Ready(Err(_)) => upload.is_committed = true,
                        Poll::Pending => {}
                    }
                }
                upload.poll(cx)
            })
            .await;
            let _ = give_back.send(match uploaded {
                Uploaded::Done => Ok(upload.replay),
                Uploaded::Failed(status) => Err(status),
            });
        });
        UploadTask { task: task.abort_handle(), back: Some((stop, back)) }
    }

    /// Stops the upload. The body comes back, or what it failed with.
    async fn stop(mut self) -> Result<Option<Replay>, tonic::Status> {
        let Some((stop, back)) = self.back.take() else { return Ok(None) };
        let _ = stop.send(());
        back.await.ok().transpose()
    }
}

impl Drop for UploadTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An attempt that failed.
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) outcome: Result<http::Response<ResponseBody>, tonic::Status>,
    /// Whether the peer promised that it did nothing with it.
    pub(crate) is_unprocessed: bool,
    /// The body, if it can be sent again.
    pub(crate) replay: Option<Replay>,
}

/// Tells those who track an attempt how it ended, once, also if it is dropped.
pub(crate) struct Attempt {
    /// `None` once they are told.
    trackers: Option<CallTrackers>,
    turn: Turn,
    meter: Option<AttemptMeter>,
    counted: Counted,
}

impl Attempt {
    pub(crate) fn new(trackers: CallTrackers, turn: Turn, meter: Option<AttemptMeter>) -> Attempt {
        let counted = turn.link().tally().begin();
        Attempt { trackers: Some(trackers), turn, meter, counted }
    }

    /// Of a stream that is the channel's own and not a call.
    pub(crate) fn untold(turn: Turn) -> Attempt {
        Attempt { trackers: None, turn, meter: None, counted: Counted::default() }
    }

    pub(crate) fn finish(mut self, code: Code, trailers: Option<&HeaderMap>) {
        let meter = self.meter.take();
        if let Some(meter) = &meter {
            meter.finish(code);
        }
        let tally = self.turn.link().tally();
        tally.end(mem::take(&mut self.counted), Some(code));
        let trackers = self.trackers.take().filter(|trackers| !trackers.is_empty());
        let want_load = trackers.as_ref().is_some_and(CallTrackers::needs_load_report) || tally.wants_load();
        let load = trailers.filter(|_| want_load).and_then(|trailers| {
            let ignored = |why| meter.iter().for_each(|meter| meter.load_ignored(why));
            load::usable(read_trailers(trailers), ignored)
        });
        if let Some(load) = &load {
            tally.load(load);
        }
        let Some(trackers) = trackers else { return };
        contained(|| {
            trackers.finish(&CallOutcome::Finished { code, at: clock::now(), load: load.as_ref() });
        });
    }

    /// What a call says whose time is over before it had an answer.
    fn unanswered(&self) -> tonic::Status {
        late(&format!("endpoint {} has not answered", self.turn.link().address()))
    }

    /// What a stream that was cut short means, with the reason of the connection's end where there is one.
    fn failure(&self, error: &Error) -> tonic::Status {
        let code = status::code_of_error(error);
        let why = match self.turn.link().loss() {
            Some(loss) if matches!(error, Error::Io(_) | Error::Closed | Error::Exhausted) => {
                loss.status.message().to_owned()
            }
            _ => format!("endpoint {}: {}", self.turn.link().address(), cause(error)),
        };
        tonic::Status::new(tonic::Code::from(code as i32), why)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.turn.link().tally().end(mem::take(&mut self.counted), None);
        if let Some(trackers) = self.trackers.take() {
            contained(|| drop(trackers));
        }
    }
}

/// Tells trackers. One may be the application's own; if it panics, that is not the caller's trouble.
fn contained(tell: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(tell)).is_err() {
        tracing::error!("a load balancing policy panicked while it was told how a call ended");
    }
}

/// An attempt on its way: sent, or being sent, and not answered yet.
pub(crate) struct Flight {
    /// Given to the answer's body.
    response: Option<ResponseStream>,
    /// The request body, while it is here.
    upload: Option<Upload>,
    progress: Progress,
    /// `None` once there is an answer.
    attempt: Option<Attempt>,
    asks_peer: bool,
}

/// How far the request body is.
enum Progress {
    /// It is sent by whoever waits for the answer.
    InPlace,
    /// It takes its time, in a task of its own.
    Apart(UploadTask),
    /// All of it was sent, or the peer wants no more.
    Done,
    /// It failed.
    Failed(tonic::Status),
}

/// The head of an answer; `None` if there is none because the request body failed or the deadline passed.
type Landed = Option<Result<Head, Error>>;

impl Flight {
    /// An attempt whose head is sent.
    pub(crate) fn new(
        (stream, response): (RequestStream, ResponseStream),
        replay: Replay,
        attempt: Attempt,
    ) -> Flight {
        let upload = Some(Upload::new(replay, stream, attempt.meter.clone()));
        Flight {
            response: Some(response),
            upload,
            progress: Progress::InPlace,
            attempt: Some(attempt),
            asks_peer: false,
        }
    }

    /// Whether the answer tells who gave it.
    pub(crate) fn asking_peer(self, asks_peer: bool) -> Flight {
        Flight { asks_peer, ..self }
    }

    /// Sends, and waits for the head of the answer.
    pub(crate) fn poll_head(&mut self, cx: &mut Context<'_>, deadline: &mut Deadline) -> Poll<Landed> {
        if let (Progress::InPlace, Some(upload)) = (&self.progress, &mut self.upload) {
            self.progress = match upload.poll(cx) {
                Poll::Ready(Uploaded::Done) => Progress::Done,
                Poll::Ready(Uploaded::Failed(status)) => Progress::Failed(status),
                Poll::Pending => self
                    .upload
                    .take()
                    .map_or(Progress::Done, |upload| Progress::Apart(UploadTask::spawn(upload))),
            };
        }
        if let Progress::Failed(_) = self.progress {
            return Poll::Ready(None);
        }
        let Some(response) = &mut self.response else { return Poll::Ready(None) };
        match response.poll_head(cx) {
            Poll::Ready(head) => Poll::Ready(Some(head)),
            Poll::Pending => deadline.poll_passed(cx).map(|()| None),
        }
    }

    /// Makes an answer of the head, or a failure.
    pub(crate) fn land(
        &mut self,
        head: Landed,
        deadline: &mut Deadline,
        end: &mut End,
    ) -> Result<http::Response<ResponseBody>, Box<Fallen>> {
        let Some(attempt) = self.attempt.take() else {
            return Err(self.fall(Err(tonic::Status::internal("an attempt was answered twice")), None));
        };
        match head {
            Some(Ok(head)) => self.answered(head, attempt, deadline, end),
            Some(Err(error)) => {
                let mut status = attempt.failure(&error);
                // A peer that keeps the same deadline may notice first, and cancels the call.
                if status.code() == tonic::Code::Cancelled && deadline.has_passed() {
                    status = attempt.unanswered();
                }
                let mut fallen = self.fall(Err(status), Some(attempt));
                fallen.is_unprocessed = status::is_unprocessed(&error);
                Err(fallen)
            }
            None => Err(self.fall(Err(attempt.unanswered()), Some(attempt))),
        }
    }

    /// The answer, if its head is not the end of it.
    fn answered(
        &mut self,
        head: Head,
        attempt: Attempt,
        deadline: &mut Deadline,
        end: &mut End,
    ) -> Result<http::Response<ResponseBody>, Box<Fallen>> {
        let Head { status, headers, ends } = head;
        let (mut parts, ()) = http::Response::new(()).into_parts();
        (parts.status, parts.headers, parts.version) = (status, headers, http::Version::HTTP_2);
        if self.asks_peer {
            parts.extensions.insert(Peer(attempt.turn.link().address().clone()));
        }
        let code = match status::read_head(&parts) {
            Ok(code) => code,
            Err(found) => {
                let code = tonic::Code::from(status::code_of_http(parts.status) as i32);
                let address = attempt.turn.link().address();
                let text = format!("endpoint {address}: expected a gRPC answer, found {found}");
                return Err(self.fall(Err(tonic::Status::new(code, text)), Some(attempt)));
            }
        };
        if code == Some(Code::Cancelled) && deadline.has_passed() {
            return Err(self.fall(Err(attempt.unanswered()), Some(attempt)));
        }
        // A failure in the head is the whole answer, also if the stream has not ended: a server that answers before it has
        // the whole request resets it behind its answer.
        if let Some(code) = code.filter(|code| *code != Code::Ok || ends) {
            if code != Code::Ok {
                return Err(self.fall(Ok((code, parts)), Some(attempt)));
            }
            attempt.finish(code, Some(&parts.headers));
            end.committed(code);
            end.over(code);
            return Ok(http::Response::from_parts(parts, ResponseBody::empty()));
        }
        let upload = match mem::replace(&mut self.progress, Progress::Done) {
            Progress::Apart(mut task) => {
                task.back = None;
                Some(task)
            }
            _ => None,
        };
        let Some(stream) = self.response.take() else {
            return Err(
                self.fall(Err(tonic::Status::internal("an attempt was answered twice")), Some(attempt))
            );
        };
        let live =
            Live { stream, attempt, _upload: upload, deadline: mem::take(deadline), end: end.hand_on() };
        Ok(http::Response::from_parts(parts, ResponseBody(Some(live))))
    }

    fn fall(
        &mut self,
        why: Result<(Code, http::response::Parts), tonic::Status>,
        attempt: Option<Attempt>,
    ) -> Box<Fallen> {
        let progress = mem::replace(&mut self.progress, Progress::Done);
        Box::new(Fallen { upload: self.upload.take(), progress, attempt, why, is_unprocessed: false })
    }
}

/// An attempt that failed before there was anything of an answer but a status.
pub(crate) struct Fallen {
    upload: Option<Upload>,
    progress: Progress,
    attempt: Option<Attempt>,
    /// The peer's answer, or what went wrong.
    why: Result<(Code, http::response::Parts), tonic::Status>,
    is_unprocessed: bool,
}

impl Fallen {
    /// Gets the body back, so that it can be sent again. If the body itself failed, that is what the call failed with.
    pub(crate) async fn body_back(self: Box<Fallen>) -> Failure {
        let Fallen { upload, progress, attempt, why, is_unprocessed } = *self;
        let back = match progress {
            Progress::InPlace | Progress::Done => Ok(upload.map(|upload| upload.replay)),
            // It ends when it is told to, whatever becomes of the stream.
            Progress::Apart(task) => task.stop().await,
            Progress::Failed(status) => Err(status),
        };
        let (why, replay) = match (why, back) {
            (Err(_), Err(status)) => (Err(status), None),
            (why, back) => (why, back.unwrap_or(None).filter(Replay::is_whole)),
        };
        let finish = |code, headers: Option<&HeaderMap>| {
            if let Some(attempt) = attempt {
                attempt.finish(code, headers);
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
        Failure { code, outcome, is_unprocessed, replay }
    }
}

/// What a call says whose time is over.
pub(crate) fn late(waiting_for: &str) -> tonic::Status {
    tonic::Status::deadline_exceeded(format!("the deadline passed: {waiting_for}"))
}

/// The body of an answer. It is watched to its end: those who track the call are told how it ended, also if it is dropped.
///
/// The default is an empty one, as interceptors of generated clients want it for the calls that they refuse.
#[derive(Default)]
pub struct ResponseBody(Option<Live>);

/// An answer that is not over.
struct Live {
    stream: ResponseStream,
    attempt: Attempt,
    _upload: Option<UploadTask>,
    deadline: Deadline,
    end: End,
}

impl ResponseBody {
    pub(crate) fn empty() -> ResponseBody {
        ResponseBody(None)
    }

    fn finish(&mut self, code: Code, trailers: Option<&HeaderMap>) {
        if let Some(mut live) = self.0.take() {
            live.attempt.finish(code, trailers);
            live.end.committed(code);
            live.end.over(code);
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
        let Some(live) = &mut self.0 else { return Poll::Ready(None) };
        let error = match live.stream.poll_data(cx) {
            // However much there is to read: the caller may be slow.
            Poll::Ready(Some(Ok(_))) if live.deadline.has_passed() => {
                let status = live.unfinished();
                return Poll::Ready(Some(self.fail(status)));
            }
            Poll::Ready(Some(Ok(data))) => {
                if let Some(meter) = &live.attempt.meter {
                    meter.received(&data);
                }
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            Poll::Ready(Some(Err(error))) => error,
            Poll::Ready(None) => match live.stream.poll_trailers(cx) {
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
                Poll::Pending => return live.poll_late(cx).map(|status| Some(self.fail(status))),
            },
            Poll::Pending => return live.poll_late(cx).map(|status| Some(self.fail(status))),
        };
        let mut status = live.attempt.failure(&error);
        if status.code() == tonic::Code::Cancelled && live.deadline.has_passed() {
            status = live.unfinished();
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

impl Live {
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<tonic::Status> {
        ready!(self.deadline.poll_passed(cx));
        Poll::Ready(self.unfinished())
    }

    fn unfinished(&self) -> tonic::Status {
        late(&format!("endpoint {} has not finished its answer", self.attempt.turn.link().address()))
    }
}

impl std::fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseBody").field("is_over", &self.0.is_none()).finish()
    }
}
