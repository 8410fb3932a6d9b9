//! Request body of a call: buffered for another attempt, and sent on a stream.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Body as _;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tonic::body::Body;

use crate::telemetry::metrics::AttemptMeter;
use crate::transport::http2::{HttpSendStream, Reason};

/// Maximum number of buffered bytes per call. A call that sent more is not retried (gRPC's default).
const MAX_BUFFERED_BYTES: usize = 256 << 10;

/// Request body that can be sent again.
pub(crate) struct RequestBuffer {
    body: Body,
    ended: bool,
    /// Data read from the body so far, for most calls in one part.
    first: Option<Bytes>,
    more: Vec<Bytes>,
    buffered_bytes: usize,
    /// True while `first` and `more` contain everything that another attempt needs.
    is_replayable: bool,
}

impl RequestBuffer {
    pub(crate) fn new(body: Body) -> RequestBuffer {
        let ended = body.is_end_stream();
        RequestBuffer { body, ended, first: None, more: Vec::new(), buffered_bytes: 0, is_replayable: true }
    }

    /// Returns true if the whole body can be sent again.
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
            // Shares the memory of the data.
            self.first = Some(data.clone());
        } else {
            self.more.push(data.clone());
        }
    }

    /// Releases the buffered data. The call will not be retried.
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

/// Sender of a request body on one stream.
pub(super) struct RequestSender {
    pub(super) buffer: RequestBuffer,
    stream: HttpSendStream,
    /// Number of parts that this attempt has taken: first the buffered ones, then those of the body.
    chunks_taken: usize,
    /// Part that is not sent yet. If it is the last one, it carries END_STREAM.
    pending_chunk: Option<Bytes>,
    /// True if no other attempt follows, so that sent data is not buffered.
    is_committed: bool,
    meter: Option<AttemptMeter>,
}

/// Result of sending a request body.
pub(super) enum RequestSendResult {
    /// Sent as a whole, or the peer reads no more of it.
    Done,
    /// The application's body returned an error.
    Failed(tonic::Status),
}

impl RequestSender {
    pub(super) fn new(
        buffer: RequestBuffer,
        stream: HttpSendStream,
        meter: Option<AttemptMeter>,
    ) -> RequestSender {
        RequestSender { buffer, stream, chunks_taken: 0, pending_chunk: None, is_committed: false, meter }
    }

    /// Sends available data. The body is polled for the next part only when the flow-control window allows it; the first
    /// part does not wait.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RequestSendResult> {
        loop {
            // Before the body is polled: the application must not produce faster than the peer reads.
            if self.pending_chunk.is_some()
                && self.chunks_taken > 1
                && ready!(self.stream.poll_capacity(cx)).is_none()
            {
                return Poll::Ready(RequestSendResult::Done);
            }
            match self.poll_chunk(cx) {
                Poll::Ready(Some(Ok(chunk))) => {
                    // One part is held back: only the end of the body shows which is the last, with END_STREAM.
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
                    // If the stream accepts no more data, the response reports the reason.
                    self.stream.send(self.pending_chunk.take().unwrap_or_default(), true);
                    return Poll::Ready(RequestSendResult::Done);
                }
                Poll::Pending => {
                    if let Some(pending_chunk) = self.pending_chunk.take()
                        && self.stream.send(pending_chunk, false).is_none()
                    {
                        return Poll::Ready(RequestSendResult::Done);
                    }
                    // The body has registered the waker for more data. A reset by the peer must end the wait too.
                    return self.stream.poll_closed(cx).map(|()| RequestSendResult::Done);
                }
            }
        }
    }

    /// Returns the next part: a buffered one, or one of the body.
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
        // After the buffered parts, which this attempt still had to send.
        if self.is_committed {
            self.buffer.discard();
        }
        if self.buffer.ended {
            return Poll::Ready(None);
        }
        loop {
            match ready!(Pin::new(&mut self.buffer.body).poll_frame(cx)) {
                // gRPC requests have no trailers.
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

/// Task that sends a request body, so that the application can read and write independently.
pub(super) struct RequestSendTask {
    task: AbortHandle,
    /// Stops the task of a failed attempt. Dropped when the call is committed, after which the task buffers no more
    /// data.
    pub(super) back: Option<BufferReturn>,
}

/// Request to stop the task, with the sender through which it returns the body.
pub(super) type BufferReturn = (oneshot::Sender<()>, oneshot::Receiver<Result<RequestBuffer, tonic::Status>>);

impl RequestSendTask {
    pub(super) fn spawn(mut sender: RequestSender) -> RequestSendTask {
        let (return_buffer, back) = oneshot::channel();
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let send_result = poll_fn(|cx| {
                if !sender.is_committed {
                    match Pin::new(&mut stopped).poll(cx) {
                        Poll::Ready(Ok(())) => return Poll::Ready(RequestSendResult::Done),
                        // The handle was dropped: the call is committed.
                        Poll::Ready(Err(_)) => sender.is_committed = true,
                        Poll::Pending => {}
                    }
                }
                sender.poll(cx)
            })
            .await;
            // The receiver is dropped once the call is committed.
            let _ = return_buffer.send(match send_result {
                RequestSendResult::Done => Ok(sender.buffer),
                RequestSendResult::Failed(status) => Err(status),
            });
        });
        RequestSendTask { task: task.abort_handle(), back: Some((stop, back)) }
    }

    /// Stops the task. Returns the body, or its error.
    pub(super) async fn stop(mut self) -> Result<Option<RequestBuffer>, tonic::Status> {
        let Some((stop, back)) = self.back.take() else { return Ok(None) };
        // Fails if the task has ended. Its result waits in `back`.
        let _ = stop.send(());
        // `Err` if the application's body panicked: it cannot be sent again then.
        back.await.ok().transpose()
    }
}

impl Drop for RequestSendTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}
