//! State that the calls and the driver of a connection share: streams, flow-control windows and the write buffer.
//!
//! Every function runs under one lock and never waits. Wakers are collected and called after the lock is released.
//! Stream errors reset the stream here; connection errors are returned as a [`Reason`], and the driver sends GOAWAY.
//!
//! Memory is bounded by windows and limits, whatever the peer sends. I/O and parsing are left to the driver and the
//! reader. This file has the life of connection and streams, and the reading of responses.

mod recv;
mod send;

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;

pub(crate) use self::recv::FrameEvent;
use crate::driver::Http2Settings;
use crate::error::{Error, Reason};
use crate::frame::{self, DEFAULT_MAX_SIZE, DEFAULT_WINDOW, MAX_WINDOW, setting};
use crate::hpack::HpackEncoder;
use crate::stream::{BufferedResponse, ResponseHeaders};
use crate::streams::{RecvState, SendState, StreamIndex, StreamStore};
use crate::waiting::PendingRequests;
use crate::write_buffer::WriteBuffer;

/// Maximum size of the write buffer, in bytes. Beyond it, data waits at its stream, and requests wait to open theirs.
const MAX_OUT: usize = 64 << 10;

/// Maximum size of a complete response that is handed out at once, in bytes.
const MAX_BUFFERED_RESPONSE: usize = 16 << 10;

/// Maximum number of replies (PING and SETTINGS ACK, WINDOW_UPDATE, RST_STREAM) in the write buffer. A peer that causes
/// more does not read them.
const MAX_REPLIES: usize = 10_000;

/// Send queue length that an idle connection keeps room for, and beyond which closed streams are pruned.
const MAX_IDLE_SEND_QUEUE: usize = 64;

/// Highest stream id (RFC 9113, section 5.1.1).
const LAST_ID: u32 = u32::MAX >> 1;

/// Wakers of a stream's reader and writer.
pub(crate) type StreamWakers = [Option<Waker>; 2];

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not states of one machine")]
pub(crate) struct ConnectionState {
    pub(crate) out: WriteBuffer,
    encoder: HpackEncoder,
    pub(crate) streams: StreamStore,
    /// Id of the next stream.
    next_id: u32,
    /// Requests that wait for room in `out`. Their streams have ids and count as open.
    pending_open: PendingRequests,
    /// Streams with an open window that have something to send, or whose writers wait for room.
    send_queue: VecDeque<StreamIndex>,
    /// Bytes of DATA that the client may send on all streams together.
    send_window: i64,
    /// Bytes of DATA that the peer may send on all streams together.
    recv_window: i64,
    /// Bytes of DATA received since the last WINDOW_UPDATE of the connection.
    received: u32,
    local_settings: Http2Settings,
    /// Maximum payload of a frame that the peer accepts.
    max_frame_size: usize,
    /// Maximum size of a request's header list, from the peer's SETTINGS.
    max_header_list_size: usize,
    /// The peer's SETTINGS_INITIAL_WINDOW_SIZE, the base of every stream's send window.
    initial_window: i64,
    /// True if the initial window was raised and [`fill_write_buffer`](ConnectionState::fill_write_buffer) has not
    /// resumed the blocked streams yet.
    is_window_raised: bool,
    /// Upper bound of the streams' send windows, relative to the initial window.
    highest_offset: i64,
    /// The lowest last stream id of the peer's GOAWAY frames.
    last_accepted: u32,
    /// Maximum number of concurrent streams. `None` before the peer's SETTINGS, `usize::MAX` if they set no maximum.
    pub(crate) max_streams: Option<usize>,
    /// Number of replies in the write buffer, limited by [`MAX_REPLIES`].
    replies: usize,
    driver: Option<Waker>,
    /// Reason why the connection accepts no more requests.
    pub(crate) close_reason: Option<Error>,
    /// True once the [`SendRequest`](crate::SendRequest) was dropped: no further requests follow.
    pub(crate) is_sender_dropped: bool,
    /// True once GOAWAY was queued.
    pub(crate) has_sent_goaway: bool,
    /// True once the peer has sent response headers.
    pub(crate) has_received_response: bool,
}

impl ConnectionState {
    /// Creates the state, and queues the connection preface, SETTINGS and the first WINDOW_UPDATE.
    pub(crate) fn new(mut local_settings: Http2Settings) -> ConnectionState {
        // A window above 2^31-1 in SETTINGS is a connection error at the peer (RFC 9113, 6.5.2).
        local_settings.stream_window = local_settings.stream_window.min(MAX_WINDOW as u32);
        // The connection starts at the default, and WINDOW_UPDATE only raises it (RFC 9113, 6.9.2).
        local_settings.connection_window =
            local_settings.connection_window.clamp(DEFAULT_WINDOW, MAX_WINDOW as u32);
        let mut out = WriteBuffer::default();
        let frames = out.tail();
        // The preface must precede all frames, and SETTINGS must be the first frame (RFC 9113, 3.4).
        frames.extend_from_slice(frame::PREFACE);
        let mut entries = vec![
            (setting::ENABLE_PUSH, 0),
            (setting::INITIAL_WINDOW_SIZE, local_settings.stream_window),
            (setting::MAX_HEADER_LIST_SIZE, local_settings.max_header_list_size),
        ];
        if local_settings.max_frame_size as usize != DEFAULT_MAX_SIZE {
            entries.push((setting::MAX_FRAME_SIZE, local_settings.max_frame_size));
        }
        frame::settings(frames, &entries);
        let recv_window = local_settings.connection_window;
        if recv_window > DEFAULT_WINDOW {
            frame::window_update(frames, 0, recv_window - DEFAULT_WINDOW);
        }
        ConnectionState {
            out,
            encoder: HpackEncoder::default(),
            streams: StreamStore::default(),
            next_id: 1,
            pending_open: PendingRequests::new(),
            send_queue: VecDeque::new(),
            send_window: i64::from(DEFAULT_WINDOW),
            recv_window: i64::from(recv_window),
            received: 0,
            local_settings,
            // Until the peer's SETTINGS arrive, the defaults of RFC 9113, 6.5.2, apply.
            max_frame_size: DEFAULT_MAX_SIZE,
            max_header_list_size: usize::MAX,
            initial_window: i64::from(DEFAULT_WINDOW),
            is_window_raised: false,
            highest_offset: 0,
            last_accepted: LAST_ID,
            max_streams: None,
            replies: 0,
            driver: None,
            close_reason: None,
            is_sender_dropped: false,
            has_sent_goaway: false,
            has_received_response: false,
        }
    }

    /// Stores the driver's waker, for the next call that leaves frames to write.
    pub(crate) fn register_driver(&mut self, cx: &Context<'_>) {
        if !self.driver.as_ref().is_some_and(|driver| driver.will_wake(cx.waker())) {
            self.driver = Some(cx.waker().clone());
        }
    }

    /// Returns true if there are frames to write.
    pub(crate) fn has_work(&self) -> bool {
        // GOAWAY is the last frame to write. A queued request that is cancelled leaves no other frame that would wake
        // the driver.
        // `pending_open` needs no check: a request is queued only while the driver has frames to write.
        !self.out.is_empty()
            || !self.send_queue.is_empty() && self.send_window > 0
            || self.is_over() && !self.has_sent_goaway
    }

    /// Returns true if the connection accepts no more requests and has no open streams.
    pub(crate) fn is_over(&self) -> bool {
        (self.is_sender_dropped || self.close_reason.is_some()) && !self.streams.has_open()
    }

    /// Returns true if requests and data have to wait until the peer reads.
    ///
    /// Queued requests come first, also when the driver has just taken `out`: streams are opened in the order of their
    /// ids.
    fn is_full(&self) -> bool {
        self.out.len() > MAX_OUT || !self.pending_open.is_empty()
    }

    /// Takes the driver's waker. Only the first caller gets it, so the driver is woken once for many changes.
    pub(crate) fn take_driver_waker(&mut self) -> Option<Waker> {
        self.driver.take()
    }

    /// Ready when the response headers have arrived, or the stream has failed.
    pub(crate) fn poll_head(
        &mut self,
        key: StreamIndex,
        cx: &Context<'_>,
    ) -> Poll<Result<ResponseHeaders, Error>> {
        let stream = self.streams.get(key);
        match (stream.head.take(), &stream.error) {
            // Headers that arrived before a reset are still returned.
            (Some(head), _) => Poll::Ready(Ok(head)),
            (None, Some(error)) => Poll::Ready(Err(error.clone())),
            (None, None) => {
                register(&mut stream.reader, cx);
                Poll::Pending
            }
        }
    }

    /// Returns the unread rest of a response that is complete and small. The receive half is closed then.
    pub(crate) fn take_buffered(&mut self, key: StreamIndex) -> Option<BufferedResponse> {
        let stream = self.streams.get(key);
        if stream.recv_state != RecvState::Closed
            || !stream.data.is_one_chunk()
            || stream.data.len() > MAX_BUFFERED_RESPONSE
        {
            return None;
        }
        let buffered = BufferedResponse { data: stream.data.pop(), trailers: stream.trailers.take() };
        // The send half may stay open: a complete response does not end the request.
        // No waker is lost: the reader is the caller, and a stream whose writer still exists is not cancelled.
        self.drop_recv_half(key);
        Some(buffered)
    }

    pub(crate) fn poll_data(
        &mut self,
        key: StreamIndex,
        cx: &Context<'_>,
    ) -> Poll<Option<Result<Bytes, Error>>> {
        let stream = self.streams.get(key);
        if let Some(data) = stream.data.pop() {
            // Not counted as a reply: the reader causes this WINDOW_UPDATE, not the peer.
            self.release_capacity(key, data.len());
            return Poll::Ready(Some(Ok(data)));
        }
        if stream.recv_state == RecvState::Closed {
            return Poll::Ready(None);
        }
        if let Some(error) = &stream.error {
            return Poll::Ready(Some(Err(error.clone())));
        }
        register(&mut stream.reader, cx);
        Poll::Pending
    }

    /// Ready with the trailers when the response is complete. The caller has read the data before.
    pub(crate) fn poll_trailers(
        &mut self,
        key: StreamIndex,
        cx: &Context<'_>,
    ) -> Poll<Result<Option<HeaderMap>, Error>> {
        let stream = self.streams.get(key);
        if stream.recv_state == RecvState::Closed {
            // A complete response has no error, also if the stream was reset afterwards.
            return Poll::Ready(Ok(stream.trailers.take()));
        }
        if let Some(error) = &stream.error {
            return Poll::Ready(Err(error.clone()));
        }
        register(&mut stream.reader, cx);
        Poll::Pending
    }

    /// Drops the receive half. The stream is cancelled unless the response is complete and a writer exists.
    pub(crate) fn drop_recv_half(&mut self, key: StreamIndex) -> StreamWakers {
        let stream = self.streams.get(key);
        stream.has_reader = false;
        stream.reader = None;
        // Unread data needs no WINDOW_UPDATE: the response is complete, or the stream is cancelled below.
        stream.data.clear();
        // After a complete response the writer decides whether to finish the request.
        let is_over = stream.recv_state == RecvState::Closed && stream.has_writer;
        let waiting = if is_over { StreamWakers::default() } else { self.cancel(key, Reason::CANCEL) };
        self.streams.free_if_unused(key);
        waiting
    }

    /// Drops the send half. The stream is cancelled if the request is incomplete and no reader exists.
    pub(crate) fn drop_send_half(&mut self, key: StreamIndex) {
        let stream = self.streams.get(key);
        stream.has_writer = false;
        stream.writer = None;
        if !stream.has_reader && stream.send_state == SendState::Open {
            // No waker is lost: the writer's is cleared above, and there is no reader.
            self.cancel(key, Reason::CANCEL);
        }
        self.streams.free_if_unused(key);
    }

    /// Cancels a stream with RST_STREAM. Returns the wakers of its reader and writer.
    pub(crate) fn cancel(&mut self, key: StreamIndex, reason: Reason) -> StreamWakers {
        let stream = self.streams.get(key);
        if !stream.is_open() {
            return StreamWakers::default();
        }
        // The peer does not know a stream whose HEADERS were not sent.
        if self.pending_open.remove(&stream.id).is_none() {
            // Not limited as a reply: each stream sends one at most, and opening a stream needs room in `out`.
            frame::reset(self.out.tail(), stream.id, reason);
        }
        if stream.recv_state != RecvState::Closed {
            stream.error = Some(Error::Reset(reason));
        }
        stream.send_state = SendState::Closed;
        // At once: a peer that grants no window must not retain the data of cancelled calls (story `stalled_peer`).
        stream.queue.clear();
        let waiting = [stream.reader.take(), stream.writer.take()];
        self.streams.close(key);
        waiting
    }

    /// Returns bytes that were read or discarded to the window of their stream. Returns true if a WINDOW_UPDATE was
    /// queued.
    fn release_capacity(&mut self, key: StreamIndex, bytes: usize) -> bool {
        let stream = self.streams.get(key);
        stream.released += bytes as u32;
        // After END_STREAM the peer sends nothing, and needs no window.
        if stream.recv_state != RecvState::Closed && stream.released > self.local_settings.stream_window / 2 {
            let (id, increment) = (stream.id, std::mem::take(&mut stream.released));
            stream.recv_window += i64::from(increment);
            // A failed stream keeps its unread data, but is closed on the wire.
            if stream.is_open() {
                frame::window_update(self.out.tail(), id, increment);
                return true;
            }
        }
        false
    }

    /// Hands the write buffer to the driver, and resets the number of replies.
    ///
    /// Otherwise a connection that always has frames to write would reach the limit over time.
    pub(crate) fn take_out(&mut self, writing: &mut WriteBuffer) {
        self.replies = 0;
        // Swapped, not moved: `out` reuses the memory of the buffer that was just written.
        std::mem::swap(&mut self.out, writing);
    }

    /// Called when all frames are written. Releases the memory of a burst once no stream is open.
    pub(crate) fn written(&mut self) {
        self.replies = 0;
        if !self.streams.has_open() {
            self.streams.shrink();
            // Exact again: streams open with an offset of 0.
            self.highest_offset = 0;
            if self.send_queue.is_empty() && self.send_queue.capacity() > MAX_IDLE_SEND_QUEUE {
                self.send_queue = VecDeque::new();
            }
        }
    }

    /// Closes both halves of a stream. Its reader gets `error` unless the response is complete.
    fn close_stream(&mut self, key: StreamIndex, error: Error, wake: &mut Vec<Waker>) {
        let stream = self.streams.get(key);
        if stream.recv_state != RecvState::Closed {
            stream.error = Some(error);
        }
        stream.send_state = SendState::Closed;
        // Cleared here and not with the slot, which lives until both handles are dropped.
        stream.queue.clear();
        self.pending_open.remove(&stream.id);
        wake.extend(stream.reader.take());
        wake.extend(stream.writer.take());
        self.streams.close(key);
    }

    /// Fails all open streams, and accepts no more requests. An earlier close reason is kept.
    pub(crate) fn fail(&mut self, error: &Error, wake: &mut Vec<Waker>) {
        self.close_reason.get_or_insert_with(|| error.clone());
        for key in self.streams.open_between(0, self.next_id) {
            self.close_stream(key, error.clone(), wake);
        }
    }
}

fn register(slot: &mut Option<Waker>, cx: &Context<'_>) {
    // An equal waker is kept: cloning one costs an atomic operation.
    if !slot.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        *slot = Some(cx.waker().clone());
    }
}

#[cfg(test)]
mod tests;
