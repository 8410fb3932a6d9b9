//! Sending: HEADERS and DATA, as far as the peer's limits and flow-control windows allow.

use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::Method;

use super::{ConnectionState, LAST_ID, MAX_IDLE_SEND_QUEUE, MAX_OUT, register};
use crate::error::Error;
use crate::frame::{self, FRAME_HEADER_LEN, flag, kind};
use crate::hpack::HpackEncoder;
use crate::stream::RequestHeaders;
use crate::streams::{Http2Stream, SendState, StreamIndex};
use crate::waiting::PendingRequest;
use crate::write_buffer::WriteBuffer;

impl ConnectionState {
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

    /// Resumes a stream if its send window is open: queues its data, or wakes its writer.
    pub(super) fn resume(&mut self, key: StreamIndex, wake: &mut Vec<Waker>) {
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
