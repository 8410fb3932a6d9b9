//! Streams of a connection, in reusable slots.
//!
//! The states of RFC 9113, section 5.1, reduced to a client without push: `reserved` does not exist, and only
//! the client opens streams. Transitions have the names of the functions that make them:
//!
//! ```text
//!    idle ───────── send, open_pending: HEADERS ────────┐
//!                        │                              │ with END_STREAM
//!                        ▼                              ▼
//!                      open ── send_data: ────▶ half-closed (local)
//!                        │     END_STREAM               │
//!    handle_headers,     │                              │ handle_headers,
//!    handle_data:        │                              │ handle_data:
//!    END_STREAM          ▼                              ▼ END_STREAM
//!          half-closed (remote) ── send_data: ──────▶ closed
//!                                  END_STREAM           ▲
//!                                                       │
//!    any ── cancel, reset_stream: RST_STREAM sent ──────┤
//!        ── handle_reset, handle_goaway, fail ──────────┘
//! ```
//!
//! A stream holds the two halves separately: [`SendState`] and [`RecvState`]. Half-closed (local) is
//! `SendState::Closed`, half-closed (remote) is `RecvState::Closed`. `SendState::Closing` is still open on
//! the wire: `fill_write_buffer` sends END_STREAM behind the queued data. A reset keeps the receive state and
//! sets `error` instead; [`Http2Stream::is_open`] covers both.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use rustc_hash::FxHashMap;

use crate::error::Error;
use crate::recv_buffer::RecvBuffer;
use crate::stream::ResponseHeaders;

/// Maximum capacity, in chunks, with which a send queue is kept for the next stream in its slot.
const MAX_IDLE_CAPACITY: usize = 16;

/// Receive half of a stream: progress of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecvState {
    /// The response headers have not been received.
    AwaitingHeaders,
    /// Response headers received; data or trailers follow.
    Open,
    /// END_STREAM received, the response is complete.
    Closed,
}

/// Send half of a stream: progress of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendState {
    /// The caller may send more data.
    Open,
    /// The caller has finished; END_STREAM waits behind queued data.
    Closing,
    /// END_STREAM was sent, or the stream was reset.
    Closed,
}

/// Length of a response's content, as its `content-length` states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentLength {
    /// No length is stated so far.
    Unknown,
    /// The length describes content that is not sent: the request is HEAD, or the status implies it (RFC 9110, section
    /// 8.6).
    Ignored,
    /// Number of bytes that are missing to reach the stated length.
    Left(u64),
}

impl ContentLength {
    /// Returns the value after the response headers have stated a length.
    pub(crate) fn stated(self, status: StatusCode, length: u64) -> ContentLength {
        match status {
            // A 304 has the length of the content that it omits.
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED => ContentLength::Ignored,
            _ if self == ContentLength::Ignored => ContentLength::Ignored,
            _ => ContentLength::Left(length),
        }
    }

    /// Counts received content. Returns false if it exceeds the stated length, or falls short of it at the end.
    pub(crate) fn count(&mut self, len: usize, end_stream: bool) -> bool {
        let ContentLength::Left(left) = self else { return true };
        let Some(rest) = left.checked_sub(len as u64) else { return false };
        *left = rest;
        !end_stream || rest == 0
    }
}

/// State of one stream: a request and its response.
#[derive(Debug)]
pub(crate) struct Http2Stream {
    /// Stream id; 0 while the slot is free.
    pub(crate) id: u32,
    pub(crate) send_state: SendState,
    pub(crate) recv_state: RecvState,
    /// Reason why the stream ended early. The receive state keeps its value.
    pub(crate) error: Option<Error>,

    pub(crate) head: Option<ResponseHeaders>,
    pub(crate) content: ContentLength,
    pub(crate) data: RecvBuffer,
    pub(crate) trailers: Option<HeaderMap>,
    /// Task that waits for more of the response.
    pub(crate) reader: Option<Waker>,
    /// Number of bytes that the peer may still send on this stream.
    pub(crate) recv_window: i64,
    /// Number of bytes that were read since the last WINDOW_UPDATE of this stream.
    pub(crate) released: u32,

    /// Data that waits for the flow-control window.
    pub(crate) queue: VecDeque<Bytes>,
    /// Send window, relative to the peer's initial window. So a new SETTINGS_INITIAL_WINDOW_SIZE needs no visit of
    /// every stream.
    pub(crate) send_offset: i64,
    /// Position in the list of streams that wait for their send window.
    blocked_at: Option<usize>,
    /// True while the stream is in the connection's send queue.
    pub(crate) is_send_queued: bool,
    /// Task that waits for the stream to accept more data.
    pub(crate) writer: Option<Waker>,

    /// True while the [`RecvStream`](crate::RecvStream) of this stream exists.
    pub(crate) has_reader: bool,
    /// True while the [`SendStream`](crate::SendStream) exists and has not sent END_STREAM.
    pub(crate) has_writer: bool,
}

/// Index of a stream's slot. It is valid until the slot is freed.
pub(crate) type StreamIndex = u32;

#[derive(Debug, Default)]
pub(crate) struct StreamStore {
    slots: Vec<Http2Stream>,
    free: Vec<StreamIndex>,
    /// Slots of the open streams, by stream id. Frames of other streams are ignored. The client assigns the ids, so a
    /// peer cannot choose colliding ones and an unkeyed hash is safe.
    open: FxHashMap<u32, StreamIndex>,
    /// Open streams that wait for their send window, in any order.
    blocked: Vec<StreamIndex>,
    /// Number of streams visited, for tests that bound the work.
    #[cfg(test)]
    pub(crate) visits: std::cell::Cell<usize>,
}

impl StreamStore {
    /// Opens a stream in a free slot, whose queues are empty, or in an added one.
    pub(crate) fn open(&mut self, id: u32, recv_window: i64, is_head: bool) -> StreamIndex {
        let key = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Http2Stream::free());
            (self.slots.len() - 1) as StreamIndex
        });
        // Fields that are not set here were reset by `clear`, or by leaving their list.
        let stream = &mut self.slots[key as usize];
        stream.id = id;
        stream.send_state = SendState::Open;
        stream.recv_state = RecvState::AwaitingHeaders;
        stream.content = if is_head { ContentLength::Ignored } else { ContentLength::Unknown };
        stream.recv_window = recv_window;
        stream.released = 0;
        stream.send_offset = 0;
        stream.has_reader = true;
        stream.has_writer = true;
        self.open.insert(id, key);
        key
    }

    pub(crate) fn get(&mut self, key: StreamIndex) -> &mut Http2Stream {
        #[cfg(test)]
        self.visit(1);
        &mut self.slots[key as usize]
    }

    pub(crate) fn find(&self, id: u32) -> Option<StreamIndex> {
        self.open.get(&id).copied()
    }

    pub(crate) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    pub(crate) fn count_open(&self) -> usize {
        self.open.len()
    }

    /// Returns the open streams whose ids are above `last` and below `next`.
    ///
    /// It walks the ids or the open streams, whichever are fewer. Over all calls with decreasing `last`, that is at
    /// most the number of ids.
    pub(crate) fn open_between(&self, last: u32, next: u32) -> Vec<StreamIndex> {
        // A client's stream ids are odd.
        let first = last.saturating_add(1) | 1;
        let ids = next.saturating_sub(first).div_ceil(2) as usize;
        #[cfg(test)]
        self.visit(ids.min(self.open.len()));
        if ids <= self.open.len() {
            // Collected, since the caller closes these streams.
            return (first..next).step_by(2).filter_map(|id| self.find(id)).collect();
        }
        let open = self.open.iter().filter(|(id, _)| (first..next).contains(id));
        open.map(|(_, key)| *key).collect()
    }

    /// Returns the highest send window of an open stream, relative to the initial window.
    pub(crate) fn highest_offset(&self) -> i64 {
        #[cfg(test)]
        self.visit(self.open.len());
        let offsets = self.open.values().map(|key| self.slots[*key as usize].send_offset);
        // Not below 0: a stream that opens later has the offset 0.
        offsets.max().unwrap_or(0).max(0)
    }

    /// Adds an open stream to the list of streams that wait for their send window.
    pub(crate) fn block(&mut self, key: StreamIndex) {
        let stream = &mut self.slots[key as usize];
        if stream.blocked_at.is_none() {
            stream.blocked_at = Some(self.blocked.len());
            self.blocked.push(key);
        }
    }

    pub(crate) fn unblock(&mut self, key: StreamIndex) {
        let Some(at) = self.slots[key as usize].blocked_at.take() else { return };
        // The last stream of the list takes the position, so its index changes too.
        self.blocked.swap_remove(at);
        if let Some(moved) = self.blocked.get(at) {
            self.slots[*moved as usize].blocked_at = Some(at);
        }
    }

    /// Returns the stream at this position in the list of streams that wait for their send window.
    pub(crate) fn blocked_at(&self, at: usize) -> Option<StreamIndex> {
        self.blocked.get(at).copied()
    }

    #[cfg(test)]
    fn visit(&self, streams: usize) {
        self.visits.set(self.visits.get() + streams);
    }

    /// Removes a stream from the open streams unless it is open. Frees its slot once no handle refers to it.
    pub(crate) fn close(&mut self, key: StreamIndex) {
        let stream = &self.slots[key as usize];
        if !stream.is_open() {
            let is_blocked = stream.blocked_at.is_some();
            self.open.remove(&stream.id);
            // A key in the list must not outlive the stream: its slot is reused.
            if is_blocked {
                self.unblock(key);
            }
            self.free_if_unused(key);
        }
    }

    pub(crate) fn free_if_unused(&mut self, key: StreamIndex) {
        let stream = &mut self.slots[key as usize];
        // Each of these keeps an index of the slot in use. The id 0 marks a free slot, which must not enter `free`
        // twice.
        if stream.has_reader
            || stream.has_writer
            || stream.is_send_queued
            || stream.is_open()
            || stream.id == 0
        {
            return;
        }
        stream.clear();
        self.free.push(key);
    }

    /// Releases the slots of a burst of calls once all of them are free.
    pub(crate) fn shrink(&mut self) {
        // The list of blocked streams is empty when no stream is open, and is replaced with the slots.
        // All slots are free, so no handle holds an index into the replaced store.
        if self.free.len() == self.slots.len() && self.slots.len() > MAX_IDLE_CAPACITY {
            *self = StreamStore::default();
        }
    }
}

impl Http2Stream {
    fn free() -> Http2Stream {
        Http2Stream {
            id: 0,
            send_state: SendState::Closed,
            recv_state: RecvState::Closed,
            error: None,
            head: None,
            content: ContentLength::Unknown,
            data: RecvBuffer::default(),
            trailers: None,
            reader: None,
            recv_window: 0,
            released: 0,
            queue: VecDeque::new(),
            send_offset: 0,
            blocked_at: None,
            is_send_queued: false,
            writer: None,
            has_reader: false,
            has_writer: false,
        }
    }

    /// Returns true while frames may still be sent or received.
    pub(crate) fn is_open(&self) -> bool {
        self.send_state != SendState::Closed || self.recv_state != RecvState::Closed && self.error.is_none()
    }

    fn clear(&mut self) {
        self.id = 0;
        self.send_state = SendState::Closed;
        self.recv_state = RecvState::Closed;
        self.error = None;
        self.head = None;
        self.trailers = None;
        self.reader = None;
        self.writer = None;
        self.data.clear();
        self.queue.clear();
        if self.queue.capacity() > MAX_IDLE_CAPACITY {
            self.queue = VecDeque::new();
        }
    }
}
