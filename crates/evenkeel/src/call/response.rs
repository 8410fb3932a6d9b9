//! Response body of a call, observed up to its trailers.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use evenkeel_core::Code;
use http_body::{Frame, SizeHint};

use crate::call::deadline::{CallDeadline, deadline_exceeded};
use crate::call::observer::{AttemptObserver, CallObserver, failure_of};
use crate::call::request::RequestSendTask;
use crate::call::status;
use crate::telemetry::traffic::{FailureCause, FailureInfo};
use crate::transport::http2::HttpRecvStream;

/// Body of a response. The call's observers get the outcome at its end, or when it is dropped.
///
/// The default is an empty body, which interceptors of generated clients need for calls that they reject.
#[derive(Default)]
pub struct ResponseBody(pub(super) Option<ResponseStream>);

/// Response that has not ended.
pub(super) struct ResponseStream {
    pub(super) stream: HttpRecvStream,
    pub(super) observer: AttemptObserver,
    // Not read: its drop aborts the task of the request body.
    pub(super) _sender: Option<RequestSendTask>,
    pub(super) deadline: CallDeadline,
    pub(super) call_observer: CallObserver,
}

impl ResponseBody {
    pub(crate) fn empty() -> ResponseBody {
        ResponseBody(None)
    }

    fn finish(&mut self, code: Code, failure: FailureInfo<'_>) {
        if let Some(mut response) = self.0.take() {
            response.observer.finish(code, failure);
            response.call_observer.commit(code);
            response.call_observer.finish(code, failure);
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
            // The deadline applies even while data is available: the caller may read slowly.
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
                    self.finish(code, FailureInfo::of_server(&trailers));
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                Poll::Ready(Ok(None)) => {
                    // Without trailers there is no `grpc-status`.
                    let text = "the response has no trailers with grpc-status";
                    self.finish(Code::Unknown, FailureInfo::local(FailureCause::Connection, text));
                    return Poll::Ready(None);
                }
                Poll::Ready(Err(error)) => error,
                Poll::Pending => return response.poll_deadline(cx).map(|status| Some(self.fail(status))),
            },
            Poll::Pending => return response.poll_deadline(cx).map(|status| Some(self.fail(status))),
        };
        let mut status = response.observer.error_status(&error);
        // The peer has the same deadline, and may cancel the stream first.
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
        self.finish(status::code(status.code() as i32), failure_of(&status));
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
            "endpoint {} has not completed its response",
            self.observer.permit.transport_state().address()
        ))
    }
}

impl std::fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseBody").field("is_over", &self.0.is_none()).finish()
    }
}
