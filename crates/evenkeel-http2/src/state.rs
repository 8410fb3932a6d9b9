//! State that the calls and the driver of a connection share: streams, flow-control windows and the write buffer.
//!
//! Every function runs under one lock and never waits. Wakers are collected and called after the lock is released.
//! Stream errors reset the stream here; connection errors are returned as a [`Reason`], and the driver sends GOAWAY.
//!
//! Memory is bounded by windows and limits, whatever the peer sends. I/O and parsing are left to the driver and the
//! reader.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, Method};

use crate::driver::Http2Settings;
use crate::error::{Error, Reason};
use crate::frame::{
    self, DEFAULT_MAX_SIZE, DEFAULT_WINDOW, FRAME_HEADER_LEN, LARGEST_MAX_SIZE, MAX_WINDOW, flag, kind,
    setting,
};
use crate::hpack::{HeaderBlock, HpackEncoder};
use crate::recv_buffer::Chunk;
use crate::stream::{BufferedResponse, RequestHeaders, ResponseHeaders};
use crate::streams::{Http2Stream, RecvState, SendState, StreamIndex, StreamStore};
use crate::waiting::{PendingRequest, PendingRequests};
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

/// Frame received from the peer, parsed.
#[derive(Debug)]
pub(crate) enum FrameEvent {
    Headers {
        stream: u32,
        block: HeaderBlock,
        end_stream: bool,
    },
    /// `flow` is the number of bytes that count for flow control, padding included.
    Data {
        stream: u32,
        chunk: Chunk,
        flow: usize,
        end_stream: bool,
    },
    Reset {
        stream: u32,
        reason: Reason,
    },
    Settings(Vec<(u16, u32)>),
    Ping([u8; 8]),
    GoAway {
        last: u32,
        reason: Reason,
        debug_data: Bytes,
    },
    WindowUpdate {
        stream: u32,
        increment: u32,
    },
}

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

    /// Sends the headers of a request, or queues them while the write buffer is full. Returns the slot and the id of
    /// the stream.
    pub(crate) fn send(&mut self, request: &RequestHeaders<'_>) -> Result<(StreamIndex, u32), Error> {
        if let Some(close_reason) = &self.close_reason {
            return Err(close_reason.clone());
        }
        let id = self.next_id;
        if self.is_full() {
            // A request that cannot be sent is rejected at once. The size of a header list does not depend on the
            // dynamic table.
            encode(&mut HpackEncoder::default(), &mut Vec::new(), request, self.max_header_list_size)?;
            self.pending_open.insert(id, Box::new(PendingRequest::new(request)));
        } else {
            self.write_head(id, request)?;
        }
        // After the checks: a rejected request must leave no stream.
        let key = self.streams.open(
            id,
            i64::from(self.local_settings.stream_window),
            *request.method == Method::HEAD,
        );
        if request.end_stream {
            let stream = self.streams.get(key);
            stream.send_state = SendState::Closed;
            // The `SendStream` is created as done, so its drop will not release this half.
            stream.has_writer = false;
        }
        // Advanced on success only. Ids are odd and increase, and none is used twice (RFC 9113, 5.1.1).
        self.next_id += 2;
        if self.next_id > LAST_ID {
            // Open streams continue: `is_over` waits for them.
            self.close_reason = Some(Error::Exhausted);
        }
        Ok((key, id))
    }

    /// Writes the HEADERS of a request. After an error the write buffer is as before.
    fn write_head(&mut self, id: u32, request: &RequestHeaders<'_>) -> Result<(), Error> {
        let out = self.out.tail();
        let start = out.len();
        // Placeholder: length and flags are known after encoding.
        out.extend_from_slice(&[0; FRAME_HEADER_LEN]);
        if let Err(error) = encode(&mut self.encoder, out, request, self.max_header_list_size) {
            // The encoder may have indexed fields of this block, which the peer never receives.
            out.truncate(start);
            self.encoder.abandon();
            return Err(error);
        }
        finish_headers(out, start, id, request.end_stream, self.max_frame_size);
        Ok(())
    }

    /// Opens the streams of queued requests while the write buffer has room.
    fn open_pending(&mut self, wake: &mut Vec<Waker>) {
        while self.out.len() <= MAX_OUT {
            let Some((id, waiting)) = self.pending_open.pop_first() else { return };
            // Never `None`: `cancel` and `close_stream` remove a request together with its stream.
            let Some(key) = self.streams.find(id) else { continue };
            let mut request = waiting.as_request();
            let stream = self.streams.get(key);
            // If data is queued, its last frame carries END_STREAM.
            if stream.send_state == SendState::Closing && stream.queue.is_empty() {
                stream.send_state = SendState::Closed;
                request.end_stream = true;
            }
            // The peer may have lowered SETTINGS_MAX_HEADER_LIST_SIZE meanwhile.
            if let Err(error) = self.write_head(id, &request) {
                self.close_stream(key, error, wake);
            }
        }
    }

    /// Sends DATA, or queues it until the flow-control windows allow it. `None` if the stream accepts no more data.
    pub(crate) fn send_data(&mut self, key: StreamIndex, data: Bytes, end_stream: bool) -> Option<()> {
        let (room, initial) = (self.send_window, self.initial_window);
        let is_full = self.is_full();
        let stream = self.streams.get(key);
        if stream.send_state != SendState::Open {
            return None;
        }
        // An empty frame without END_STREAM has no effect, and servers treat many of them as an attack.
        if data.is_empty() && !end_stream {
            return Some(());
        }
        let len = data.len() as i64;
        // Sent as a whole or not at all: `fill_write_buffer` splits data, and serves the streams in turn.
        let is_sent_at_once = stream.queue.is_empty()
            && match len {
                // An empty frame needs no window (RFC 9113, section 6.9.1), but must not overtake HEADERS.
                0 => !self.pending_open.contains_key(&stream.id),
                _ => len <= room.min(initial + stream.send_offset) && !is_full,
            };
        if is_sent_at_once {
            stream.send_offset -= len;
            self.send_window -= len;
            let id = stream.id;
            if end_stream {
                stream.send_state = SendState::Closed;
            }
            data_frames(&mut self.out, id, data, end_stream, self.max_frame_size);
            // No effect while the response is incomplete.
            self.streams.close(key);
            return Some(());
        }
        if end_stream {
            stream.send_state = SendState::Closing;
        }
        // The last queued chunk carries END_STREAM. An empty chunk behind it would wait for a window that it does not
        // need.
        if !data.is_empty() {
            stream.queue.push_back(data);
            self.enqueue_send(key);
        }
        Some(())
    }

    /// Ready when data could be sent at once, at least in part. `None` if the stream accepts no more data.
    pub(crate) fn poll_capacity(&mut self, key: StreamIndex, cx: &Context<'_>) -> Poll<Option<()>> {
        let is_blocked = self.send_window <= 0 || self.is_full();
        let initial = self.initial_window;
        let stream = self.streams.get(key);
        if stream.send_state != SendState::Open {
            return Poll::Ready(None);
        }
        if stream.queue.is_empty() && initial + stream.send_offset > 0 && !is_blocked {
            return Poll::Ready(Some(()));
        }
        // A writer is woken from the send queue or from the blocked streams, so the stream must be in one of them.
        register(&mut stream.writer, cx);
        self.enqueue_send(key);
        Poll::Pending
    }

    /// Ready when the stream accepts no more data.
    pub(crate) fn poll_closed(&mut self, key: StreamIndex, cx: &Context<'_>) -> Poll<()> {
        let stream = self.streams.get(key);
        if stream.send_state == SendState::Closed {
            return Poll::Ready(());
        }
        // The slot is shared with `poll_capacity`: one task polls a `SendStream`, and its last poll counts.
        register(&mut stream.writer, cx);
        Poll::Pending
    }

    /// Adds a stream to the send queue, or to the blocked streams if its window is exhausted.
    fn enqueue_send(&mut self, key: StreamIndex) {
        let initial = self.initial_window;
        let stream = self.streams.get(key);
        // One entry per stream: the flag keeps the slot from being freed while an entry has its index.
        if stream.is_send_queued {
            return;
        }
        if initial + stream.send_offset > 0 {
            stream.is_send_queued = true;
            // Closed streams leave the queue only when data is sent, and that depends on the peer.
            // Beyond twice the open streams, pruning removes at least half of the queue: its cost per entry is
            // constant.
            if self.send_queue.len() > MAX_IDLE_SEND_QUEUE
                && self.send_queue.len() > 2 * self.streams.count_open()
            {
                self.prune_send_queue();
            }
            self.send_queue.push_back(key);
        } else {
            self.streams.block(key);
        }
    }

    /// Removes closed streams from the send queue, and frees their slots.
    fn prune_send_queue(&mut self) {
        // Borrowed apart: `retain` holds the queue while its closure changes the streams.
        let ConnectionState { send_queue, streams, .. } = self;
        send_queue.retain(|&key| {
            let stream = streams.get(key);
            let is_open = stream.is_open();
            stream.is_send_queued = is_open;
            // After the flag is cleared: a queued stream keeps its slot.
            streams.free_if_unused(key);
            is_open
        });
    }

    /// Moves queued data into the write buffer, one frame per stream in turn, as far as the windows allow.
    pub(crate) fn fill_write_buffer(&mut self, wake: &mut Vec<Waker>) {
        if std::mem::take(&mut self.is_window_raised) {
            self.resume_blocked(wake);
        }
        // Afterwards no request is queued, or the write buffer has no room for data either. So no DATA overtakes its
        // HEADERS.
        if !self.pending_open.is_empty() {
            self.open_pending(wake);
        }
        // Checked before each frame, so the buffer exceeds its maximum by one frame at most.
        while self.send_window > 0 && self.out.len() <= MAX_OUT {
            let Some(key) = self.send_queue.pop_front() else { return };
            let room = self.send_window.min(self.max_frame_size as i64);
            let initial = self.initial_window;
            let stream = self.streams.get(key);
            // Cleared before `close`, which would not free the slot of a queued stream.
            stream.is_send_queued = false;
            // `None` if the stream was closed, its window has shrunk, or only its writer waits.
            if let Some(data) = next_frame(stream, room.min(initial + stream.send_offset)) {
                let id = stream.id;
                let end_stream = stream.send_state == SendState::Closing && stream.queue.is_empty();
                if end_stream {
                    stream.send_state = SendState::Closed;
                }
                self.send_window -= data.len() as i64;
                data_frames(&mut self.out, id, data, end_stream, self.max_frame_size);
                self.streams.close(key);
            }
            // `close` may have freed the slot. Nothing reuses it here, and a free slot has no queue and no writer.
            let stream = self.streams.get(key);
            if stream.queue.is_empty() {
                wake.extend(stream.writer.take());
            } else {
                self.enqueue_send(key);
            }
            self.streams.free_if_unused(key);
        }
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

    /// Counts received DATA against the connection window, and returns it to the peer, a quarter of the window at a
    /// time.
    ///
    /// It does not wait for readers: unread streams would otherwise exhaust the window and stop all others.
    fn consume_recv_window(&mut self, bytes: usize) -> Result<(), Reason> {
        self.recv_window -= bytes as i64;
        if self.recv_window < 0 {
            return Err(Reason::FLOW_CONTROL_ERROR);
        }
        // Cannot overflow: `recv_window` plus `received` is always the connection window, at most 2^31-1.
        self.received += bytes as u32;
        if self.received < self.local_settings.connection_window / 4 {
            return Ok(());
        }
        self.recv_window += i64::from(self.received);
        frame::window_update(self.out.tail(), 0, std::mem::take(&mut self.received));
        self.count_reply()
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

    /// Applies a received frame. An error is a connection error.
    pub(crate) fn apply(&mut self, event: FrameEvent, wake: &mut Vec<Waker>) -> Result<(), Reason> {
        match event {
            FrameEvent::Headers { stream, block, end_stream } => {
                self.handle_headers(stream, block, end_stream, wake)
            }
            FrameEvent::Data { stream, chunk, flow, end_stream } => {
                self.handle_data(stream, chunk, flow, end_stream, wake)
            }
            FrameEvent::Reset { stream, reason } => self.handle_reset(stream, reason, wake),
            FrameEvent::Settings(settings) => self.handle_settings(&settings),
            FrameEvent::Ping(payload) => {
                frame::ping(self.out.tail(), flag::ACK, payload);
                self.count_reply()
            }
            FrameEvent::GoAway { last, reason, debug_data } => {
                self.handle_goaway(last, &Error::GoAway(reason, debug_data), wake)
            }
            FrameEvent::WindowUpdate { stream, increment } => {
                self.handle_window_update(stream, increment, wake)
            }
        }
    }

    fn count_reply(&mut self) -> Result<(), Reason> {
        self.replies += 1;
        if self.replies > MAX_REPLIES { Err(Reason::ENHANCE_YOUR_CALM) } else { Ok(()) }
    }

    /// Returns the slot of a frame's stream, or `None` if the stream has closed. A stream that was never opened is an
    /// error.
    fn find(&self, id: u32) -> Result<Option<StreamIndex>, Reason> {
        // Even ids belong to the server, which opens none. An id whose HEADERS still wait is idle (RFC 9113, 5.1).
        let was_opened = id % 2 == 1 && id < self.next_unsent();
        // Frames of closed streams are ignored: they may have been in flight during a reset (RFC 9113, 5.4.2).
        if was_opened { Ok(self.streams.find(id)) } else { Err(Reason::PROTOCOL_ERROR) }
    }

    /// Returns the lowest stream id whose HEADERS were not sent.
    fn next_unsent(&self) -> u32 {
        self.pending_open.first_key_value().map_or(self.next_id, |(id, _)| *id)
    }

    fn handle_headers(
        &mut self,
        id: u32,
        block: HeaderBlock,
        end_stream: bool,
        wake: &mut Vec<Waker>,
    ) -> Result<(), Reason> {
        let Some(key) = self.find(id)? else { return Ok(()) };
        let stream = self.streams.get(key);
        // A copy: a 1xx response must not set the content length of the final one.
        let mut content = stream.content;
        if let (Some(status), Some(length)) = (block.status, block.content_length) {
            content = content.stated(status, length);
        }
        // Content of another length than the response states makes it malformed (RFC 9113, section 8.1.1).
        let is_short = end_stream && !content.count(0, true);
        let fits = !block.is_malformed
            && !block.is_too_long
            && !is_short
            && match stream.recv_state {
                RecvState::AwaitingHeaders => {
                    block.status.is_some_and(|status| !status.is_informational() || !end_stream)
                }
                // Trailers must carry END_STREAM.
                RecvState::Open => end_stream && block.status.is_none(),
                // Half-closed (remote), since `find` returns no closed stream (RFC 9113, 5.1).
                RecvState::Closed => return self.reset_stream(key, Reason::STREAM_CLOSED, wake),
            };
        if !fits {
            return self.reset_stream(key, Reason::PROTOCOL_ERROR, wake);
        }
        match (stream.recv_state, block.status) {
            // 1xx responses precede the final one and change nothing (RFC 9113, 8.1).
            (RecvState::AwaitingHeaders, Some(status)) if status.is_informational() => return Ok(()),
            (RecvState::AwaitingHeaders, Some(status)) => {
                stream.content = content;
                stream.head = Some(ResponseHeaders { status, headers: block.headers, end_stream });
                stream.recv_state = RecvState::Open;
                self.has_received_response = true;
            }
            // `fits` leaves only trailers.
            _ => stream.trailers = Some(block.headers),
        }
        wake.extend(stream.reader.take());
        if end_stream {
            stream.recv_state = RecvState::Closed;
            self.streams.close(key);
        }
        Ok(())
    }

    fn handle_data(
        &mut self,
        id: u32,
        chunk: Chunk,
        flow: usize,
        end_stream: bool,
        wake: &mut Vec<Waker>,
    ) -> Result<(), Reason> {
        // Before the lookup: data of closed streams counts against the connection window too (RFC 9113, 6.9).
        self.consume_recv_window(flow)?;
        let Some(key) = self.find(id)? else { return Ok(()) };
        let stream = self.streams.get(key);
        stream.recv_window -= flow as i64;
        let wrong = match stream.recv_state {
            _ if stream.recv_window < 0 => Some(Reason::FLOW_CONTROL_ERROR),
            // A response begins with HEADERS (RFC 9113, 8.1).
            RecvState::AwaitingHeaders => Some(Reason::PROTOCOL_ERROR),
            RecvState::Open => {
                (!stream.content.count(chunk.len(), end_stream)).then_some(Reason::PROTOCOL_ERROR)
            }
            RecvState::Closed => Some(Reason::STREAM_CLOSED),
        };
        if let Some(reason) = wrong {
            return self.reset_stream(key, reason, wake);
        }
        let kept = if stream.has_reader { chunk.len() } else { 0 };
        if kept > 0 {
            stream.data.push(chunk);
        }
        // Padding alone is no progress for the reader.
        if kept > 0 || end_stream {
            wake.extend(stream.reader.take());
        }
        if end_stream {
            // Set before `release_capacity`, which sends no WINDOW_UPDATE after END_STREAM.
            stream.recv_state = RecvState::Closed;
        }
        // Padding is not kept, nor is data of a stream without a reader.
        let is_answered = self.release_capacity(key, flow - kept);
        if end_stream {
            // After `release_capacity`: the slot may be freed.
            self.streams.close(key);
        }
        // Padding is released without a reader, so WINDOW_UPDATE frames for it are limited like other replies.
        if is_answered { self.count_reply() } else { Ok(()) }
    }

    fn handle_reset(&mut self, id: u32, reason: Reason, wake: &mut Vec<Waker>) -> Result<(), Reason> {
        if let Some(key) = self.find(id)? {
            // A response that was complete before RST_STREAM stays readable: `close_stream` sets no error then.
            self.close_stream(key, Error::Reset(reason), wake);
        }
        Ok(())
    }

    /// Resets a stream after a stream error of the peer.
    fn reset_stream(
        &mut self,
        key: StreamIndex,
        reason: Reason,
        wake: &mut Vec<Waker>,
    ) -> Result<(), Reason> {
        let stream = self.streams.get(key);
        // Before `close_stream`, which may free the slot and with it the id.
        frame::reset(self.out.tail(), stream.id, reason);
        self.close_stream(key, Error::StreamError(reason), wake);
        self.count_reply()
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

    /// Applies SETTINGS. Every value is checked. Of several initial windows only the last takes effect, so that a frame
    /// costs one adjustment.
    fn handle_settings(&mut self, settings: &[(u16, u32)]) -> Result<(), Reason> {
        // Settings that are absent keep their value, and without any the number is unlimited (RFC 9113, 6.5.2).
        let mut max_streams = self.max_streams.unwrap_or(usize::MAX);
        let mut initial_window = self.initial_window;
        for &(name, value) in settings {
            match name {
                setting::HEADER_TABLE_SIZE => self.encoder.set_max_size(value as usize),
                // A server must not enable push (RFC 9113, section 6.5.2).
                setting::ENABLE_PUSH if value != 0 => return Err(Reason::PROTOCOL_ERROR),
                setting::MAX_CONCURRENT_STREAMS => max_streams = value as usize,
                setting::INITIAL_WINDOW_SIZE => {
                    initial_window = i64::from(value);
                    if initial_window > MAX_WINDOW {
                        return Err(Reason::FLOW_CONTROL_ERROR);
                    }
                }
                setting::MAX_FRAME_SIZE => {
                    if !(DEFAULT_MAX_SIZE..=LARGEST_MAX_SIZE).contains(&(value as usize)) {
                        return Err(Reason::PROTOCOL_ERROR);
                    }
                    self.max_frame_size = value as usize;
                }
                setting::MAX_HEADER_LIST_SIZE => self.max_header_list_size = value as usize,
                // Unknown settings must be ignored (RFC 9113, 6.5.2).
                _ => {}
            }
        }
        self.max_streams = Some(max_streams);
        self.set_initial_window(initial_window)?;
        // After the values are applied, which the ACK confirms (RFC 9113, 6.5.3).
        frame::settings_ack(self.out.tail());
        self.count_reply()
    }

    fn set_initial_window(&mut self, window: i64) -> Result<(), Reason> {
        if window > self.initial_window {
            if window + self.highest_offset > MAX_WINDOW {
                // The bound may stem from a stream that has closed or sent data since. The exact value needs a visit of
                // every stream. It counts as many replies, so that a peer cannot trigger it without limit.
                self.highest_offset = self.streams.highest_offset();
                // Compared with the limit by the caller, which counts its ACK.
                self.replies += (self.streams.count_open() / 8).min(MAX_REPLIES / 4);
                if window + self.highest_offset > MAX_WINDOW {
                    return Err(Reason::FLOW_CONTROL_ERROR);
                }
            }
            // Blocked streams are resumed with the next write, once for all frames of a read.
            self.is_window_raised = true;
        }
        // A lower window needs no visit: a stream without a window leaves the send queue when its turn comes.
        self.initial_window = window;
        Ok(())
    }

    /// Resumes the streams whose window a higher initial window has opened.
    fn resume_blocked(&mut self, wake: &mut Vec<Waker>) {
        let mut at = 0;
        while let Some(key) = self.streams.blocked_at(at) {
            if self.initial_window + self.streams.get(key).send_offset > 0 {
                // `resume` removes the stream, and the last of the list takes its position: `at` stays.
                self.resume(key, wake);
            } else {
                at += 1;
            }
        }
    }

    fn handle_window_update(&mut self, id: u32, increment: u32, wake: &mut Vec<Waker>) -> Result<(), Reason> {
        if id == 0 {
            // Streams that wait for this window are in the send queue, which the driver's next write serves.
            self.send_window += i64::from(increment);
            let is_wrong = increment == 0 || self.send_window > MAX_WINDOW;
            return match is_wrong {
                // An increment of 0 is an error of the connection here, and of the stream below (RFC 9113, 6.9).
                true if increment == 0 => Err(Reason::PROTOCOL_ERROR),
                true => Err(Reason::FLOW_CONTROL_ERROR),
                false => Ok(()),
            };
        }
        let Some(key) = self.find(id)? else { return Ok(()) };
        // The send half may have closed: WINDOW_UPDATE is valid on a half-closed stream (RFC 9113, 5.1).
        let initial = self.initial_window;
        let stream = self.streams.get(key);
        stream.send_offset += i64::from(increment);
        if increment == 0 {
            return self.reset_stream(key, Reason::PROTOCOL_ERROR, wake);
        }
        if initial + stream.send_offset > MAX_WINDOW {
            return self.reset_stream(key, Reason::FLOW_CONTROL_ERROR, wake);
        }
        self.highest_offset = self.highest_offset.max(stream.send_offset);
        self.resume(key, wake);
        Ok(())
    }

    /// Resumes a stream if its send window is open: queues its data, or wakes its writer.
    fn resume(&mut self, key: StreamIndex, wake: &mut Vec<Waker>) {
        let initial = self.initial_window;
        let stream = self.streams.get(key);
        if initial + stream.send_offset > 0 {
            if stream.queue.is_empty() {
                wake.extend(stream.writer.take());
            } else {
                self.enqueue_send(key);
            }
            self.streams.unblock(key);
        }
    }

    fn handle_goaway(&mut self, last: u32, error: &Error, wake: &mut Vec<Waker>) -> Result<(), Reason> {
        // The last stream id must not increase (RFC 9113, section 6.8).
        if last > self.last_accepted {
            return Err(Reason::PROTOCOL_ERROR);
        }
        // Replaces the reason of an earlier GOAWAY: a graceful shutdown sends two (RFC 9113, 6.8).
        self.close_reason = Some(error.clone());
        // Streams above the last id of an earlier GOAWAY have ended.
        let next = self.next_id.min(self.last_accepted.saturating_add(1));
        self.last_accepted = last;
        // No queued request may open its stream after GOAWAY, whatever the last stream id is.
        let last_kept = last.min(self.next_unsent() - 1);
        for key in self.streams.open_between(last_kept, next) {
            self.close_stream(key, error.clone(), wake);
        }
        Ok(())
    }

    /// Fails all open streams, and accepts no more requests. An earlier close reason is kept.
    pub(crate) fn fail(&mut self, error: &Error, wake: &mut Vec<Waker>) {
        self.close_reason.get_or_insert_with(|| error.clone());
        for key in self.streams.open_between(0, self.next_id) {
            self.close_stream(key, error.clone(), wake);
        }
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
}

fn register(slot: &mut Option<Waker>, cx: &Context<'_>) {
    // An equal waker is kept: cloning one costs an atomic operation.
    if !slot.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        *slot = Some(cx.waker().clone());
    }
}

/// Takes the next DATA payload from a stream's queue. `None` if the queue is empty or `room` is.
fn next_frame(stream: &mut Http2Stream, room: i64) -> Option<Bytes> {
    let first = stream.queue.front_mut()?;
    let len = (first.len() as i64).min(room);
    // The room is negative after the peer lowered its initial window (RFC 9113, 6.9.2).
    if len <= 0 {
        return None;
    }
    stream.send_offset -= len;
    // Shares the memory of the chunk.
    let data = first.split_to(len as usize);
    if first.is_empty() {
        stream.queue.pop_front();
    }
    Some(data)
}

/// Encodes the header block of a request. After an error the block is incomplete and must be abandoned.
fn encode(
    encoder: &mut HpackEncoder,
    out: &mut Vec<u8>,
    request: &RequestHeaders<'_>,
    limit: usize,
) -> Result<(), Error> {
    encoder.begin(out, request.method, request.is_https, request.authority, request.path);
    for (name, value) in request.headers {
        if encoder.header(out, name, value).is_none() {
            return Err(Error::InvalidHeader(name.clone()));
        }
    }
    for (name, value) in request.extra_headers {
        if encoder.header(out, name, value).is_none() {
            return Err(Error::InvalidHeader(name.clone()));
        }
    }
    let size = encoder.list_size();
    if size > limit { Err(Error::HeaderListTooLarge { size, limit }) } else { Ok(()) }
}

/// Completes the header block that begins at `start`: one HEADERS frame, and CONTINUATION frames as needed.
fn finish_headers(out: &mut Vec<u8>, start: usize, stream: u32, end_stream: bool, max_size: usize) {
    // END_STREAM is a flag of HEADERS, also if CONTINUATION frames follow (RFC 9113, 6.2).
    let end_stream = if end_stream { flag::END_STREAM } else { 0 };
    let len = out.len() - start - FRAME_HEADER_LEN;
    if len <= max_size {
        let head =
            frame::FrameHeader { len, kind: kind::HEADERS, flags: flag::END_HEADERS | end_stream, stream };
        out[start..start + FRAME_HEADER_LEN].copy_from_slice(&head.bytes());
        return;
    }
    let block = out.split_off(start + FRAME_HEADER_LEN);
    out.truncate(start);
    let last = block.len().div_ceil(max_size) - 1;
    // Appended in one piece: no other frame may come in between (RFC 9113, 6.10).
    for (i, part) in block.chunks(max_size).enumerate() {
        let (kind, flags) = if i == 0 { (kind::HEADERS, end_stream) } else { (kind::CONTINUATION, 0) };
        let flags = if i == last { flags | flag::END_HEADERS } else { flags };
        frame::FrameHeader { len: part.len(), kind, flags, stream }.write(out);
        out.extend_from_slice(part);
    }
}

/// Appends DATA frames, each of at most `max_size` bytes. Empty data makes one empty frame.
fn data_frames(out: &mut WriteBuffer, stream: u32, mut data: Bytes, end_stream: bool, max_size: usize) {
    loop {
        let part = data.split_to(data.len().min(max_size));
        // `data` is the rest behind `part`: only the last frame has END_STREAM.
        let flags = if end_stream && data.is_empty() { flag::END_STREAM } else { 0 };
        frame::FrameHeader { len: part.len(), kind: kind::DATA, flags, stream }.write(out.tail());
        out.push(part);
        if data.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
