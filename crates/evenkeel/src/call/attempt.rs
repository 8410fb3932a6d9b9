//! One attempt of a call: a stream whose request headers are sent, up to the response headers.

use std::mem;
use std::task::{Context, Poll};

use evenkeel_core::Code;

use crate::call::deadline::CallDeadline;
use crate::call::observer::{AttemptObserver, CallObserver, failure_of};
use crate::call::request::{RequestBuffer, RequestSendResult, RequestSendTask, RequestSender};
use crate::call::response::{ResponseBody, ResponseStream};
use crate::call::status;
use crate::channel::PeerAddress;
use crate::telemetry::traffic::{FailureCause, FailureInfo};
use crate::transport::http2::{Error, HttpRecvStream, HttpSendStream, ResponseHeaders};

/// Attempt in progress: its request headers are sent, and its response headers are not received.
pub(crate) struct Attempt {
    /// Receiving half of the stream. The response body takes it.
    response: Option<HttpRecvStream>,
    /// Sender of the request body, `None` once a task owns it.
    sender: Option<RequestSender>,
    progress: SendProgress,
    /// `None` once the response headers are received.
    observer: Option<AttemptObserver>,
    captures_peer: bool,
}

/// Progress of the request body.
enum SendProgress {
    /// Polled together with the response.
    Inline,
    /// Sent by a task, because it had to wait.
    Spawned(RequestSendTask),
    /// Sent as a whole, or the peer reads no more of it.
    Done,
    /// The application's body returned this error.
    Failed(tonic::Status),
}

/// Response headers; `None` if the request body failed or the deadline passed first.
type HeadResult = Option<Result<ResponseHeaders, Error>>;

impl Attempt {
    /// Creates an attempt whose request headers are sent.
    pub(crate) fn new(
        (stream, response): (HttpSendStream, HttpRecvStream),
        buffer: RequestBuffer,
        observer: AttemptObserver,
        captures_peer: bool,
    ) -> Attempt {
        let sender = Some(RequestSender::new(buffer, stream, observer.meter.clone()));
        Attempt {
            response: Some(response),
            sender,
            progress: SendProgress::Inline,
            observer: Some(observer),
            captures_peer,
        }
    }

    /// Sends the request body and polls for the response headers.
    pub(crate) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        deadline: &mut CallDeadline,
    ) -> Poll<HeadResult> {
        // Before the response: most bodies are sent as a whole here, and need no task.
        if let (SendProgress::Inline, Some(sender)) = (&self.progress, &mut self.sender) {
            self.progress = match sender.poll(cx) {
                Poll::Ready(RequestSendResult::Done) => SendProgress::Done,
                Poll::Ready(RequestSendResult::Failed(status)) => SendProgress::Failed(status),
                // The task polls the body again, which replaces the waker that this poll registered.
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
            // A response that has arrived wins over the deadline.
            Poll::Pending => deadline.poll_expired(cx).map(|()| None),
        }
    }

    /// Returns the response of these headers, or the failed attempt.
    pub(crate) fn handle_head(
        &mut self,
        head: HeadResult,
        deadline: &mut CallDeadline,
        call_observer: &mut CallObserver,
    ) -> Result<http::Response<ResponseBody>, Box<FailedAttempt>> {
        let Some(observer) = self.observer.take() else {
            return Err(self.fail_attempt(
                Err(tonic::Status::internal("the attempt was polled after completion")),
                None,
            ));
        };
        match head {
            Some(Ok(head)) => self.handle_response(head, observer, deadline, call_observer),
            Some(Err(error)) => {
                let mut status = observer.error_status(&error);
                // The peer has the same deadline. If it expires there first, the peer cancels the call.
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

    /// Returns the response, or a failed attempt if the headers contain an error.
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
                let text = format!("endpoint {address}: expected a gRPC response, found {found}");
                return Err(self.fail_attempt(Err(tonic::Status::new(code, text)), Some(observer)));
            }
        };
        if code == Some(Code::Cancelled) && deadline.is_expired() {
            return Err(self.fail_attempt(Err(observer.no_response_status()), Some(observer)));
        }
        // An error in the headers is the whole response, even if the stream has not ended: a server that responds before
        // it received the whole request resets the stream afterwards.
        if let Some(code) = code.filter(|code| *code != Code::Ok || end_stream) {
            if code != Code::Ok {
                return Err(self.fail_attempt(Ok((code, parts)), Some(observer)));
            }
            observer.finish(code, FailureInfo::of_server(&parts.headers));
            call_observer.commit(code);
            return Ok(http::Response::from_parts(parts, ResponseBody::empty()));
        }
        let sender = match mem::replace(&mut self.progress, SendProgress::Done) {
            SendProgress::Spawned(mut task) => {
                // The call is committed: the task need not keep data for a retry (A6).
                task.back = None;
                Some(task)
            }
            _ => None,
        };
        let Some(stream) = self.response.take() else {
            return Err(self.fail_attempt(
                Err(tonic::Status::internal("the attempt was polled after completion")),
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

/// Attempt that failed before a response other than a status was received.
pub(crate) struct FailedAttempt {
    sender: Option<RequestSender>,
    progress: SendProgress,
    observer: Option<AttemptObserver>,
    /// Trailers-only response of the peer, or the local error.
    why: Result<(Code, http::response::Parts), tonic::Status>,
    is_unprocessed: bool,
}

impl FailedAttempt {
    /// Recovers the request body, so that it can be sent again. If the body itself failed, its error is the outcome.
    pub(crate) async fn recover_body(self: Box<FailedAttempt>) -> AttemptOutcome {
        let FailedAttempt { sender, progress, observer, why, is_unprocessed } = *self;
        let back = match progress {
            SendProgress::Inline | SendProgress::Done => Ok(sender.map(|sender| sender.buffer)),
            // The task ends when it is stopped, in any state of the stream.
            SendProgress::Spawned(task) => task.stop().await,
            SendProgress::Failed(status) => Err(status),
        };
        let is_body_error = why.is_err() && back.is_err();
        let (why, buffer) = match (why, back) {
            (Err(_), Err(status)) => (Err(status), None),
            // A status of the peer is kept even if the body has failed since.
            (why, back) => (why, back.unwrap_or(None).filter(RequestBuffer::is_replayable)),
        };
        // Consumes the observer and its permit: the next attempt must not wait for the stream of this one.
        let finish = |code, failure: FailureInfo<'_>| {
            if let Some(observer) = observer {
                observer.finish(code, failure);
            }
            failure.cause
        };
        let (code, cause, outcome) = match why {
            Ok((code, parts)) => {
                let cause = finish(code, FailureInfo::of_server(&parts.headers));
                (code, cause, Ok(http::Response::from_parts(parts, ResponseBody::empty())))
            }
            Err(status) => {
                let code = status::code(status.code() as i32);
                let failure = if is_body_error {
                    FailureInfo::local(FailureCause::Local, status.message())
                } else {
                    failure_of(&status)
                };
                (code, finish(code, failure), Err(status))
            }
        };
        AttemptOutcome { code, cause, outcome, is_unprocessed, buffer }
    }
}

/// Outcome of a failed attempt.
pub(crate) struct AttemptOutcome {
    pub(crate) code: Code,
    pub(crate) cause: FailureCause,
    pub(crate) outcome: Result<http::Response<ResponseBody>, tonic::Status>,
    /// True if the peer provably did not process the request (RFC 9113, 8.7).
    pub(crate) is_unprocessed: bool,
    /// Request body, if it can be sent again.
    pub(crate) buffer: Option<RequestBuffer>,
}
