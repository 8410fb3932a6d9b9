//! One attempt of a call: a stream whose request headers are sent, up to the response headers.

use std::mem;
use std::task::{Context, Poll};

use evenkeel_core::Code;
use http::HeaderMap;

use crate::call::deadline::CallDeadline;
use crate::call::observer::{AttemptObserver, CallObserver};
use crate::call::request::{RequestBuffer, RequestSendResult, RequestSendTask, RequestSender};
use crate::call::response::{ResponseBody, ResponseStream};
use crate::call::status;
use crate::channel::PeerAddress;
use crate::transport::http2::{Error, HttpRecvStream, HttpSendStream, ResponseHeaders};

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

/// An attempt that failed.
pub(crate) struct AttemptOutcome {
    pub(crate) code: Code,
    pub(crate) outcome: Result<http::Response<ResponseBody>, tonic::Status>,
    /// Whether the peer promised that it did nothing with it.
    pub(crate) is_unprocessed: bool,
    /// The body, if it can be sent again.
    pub(crate) buffer: Option<RequestBuffer>,
}
