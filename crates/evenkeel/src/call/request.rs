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

/// What is kept of a request body for another attempt; a call that sent more is not repeated (gRPC's default).
const MAX_BUFFERED_BYTES: usize = 256 << 10;

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
pub(super) struct RequestSender {
    pub(super) buffer: RequestBuffer,
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
pub(super) enum RequestSendResult {
    /// All was sent, or the peer wants no more.
    Done,
    /// The application's body failed.
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

    /// Sends what there is. The next piece is asked for only when there is room for it on the wire, except that the first one
    /// does not wait.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RequestSendResult> {
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
pub(super) struct RequestSendTask {
    task: AbortHandle,
    /// For an attempt that failed: how to get the body back. Dropped when the call is committed, by which the task knows to
    /// keep nothing.
    pub(super) back: Option<BufferReturn>,
}

/// How to stop an upload, and where its body comes back to.
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
    pub(super) async fn stop(mut self) -> Result<Option<RequestBuffer>, tonic::Status> {
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
