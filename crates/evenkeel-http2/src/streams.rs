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

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::task::Waker;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::error::Error;
use crate::recv_buffer::RecvBuffer;
use crate::stream::ResponseHeaders;

/// A queue is kept for the slot's next stream up to this many pieces.
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
    /// The length is stated without content: the request is HEAD, or the status says so (RFC 9110, section 8.6).
    Ignored,
    /// Number of bytes that are missing to the stated length.
    Left(u64),
}

impl ContentLength {
    /// The same after the head of the response has stated a length.
    pub(crate) fn stated(self, status: StatusCode, length: u64) -> ContentLength {
        match status {
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED => ContentLength::Ignored,
            _ if self == ContentLength::Ignored => ContentLength::Ignored,
            _ => ContentLength::Left(length),
        }
    }

    /// Counts content. Returns false if there is more than was stated, or less at the end.
    pub(crate) fn count(&mut self, len: usize, end_stream: bool) -> bool {
        let ContentLength::Left(left) = self else { return true };
        let Some(rest) = left.checked_sub(len as u64) else { return false };
        *left = rest;
        !end_stream || rest == 0
    }
}

/// One request and its answer.
#[derive(Debug)]
pub(crate) struct Http2Stream {
    /// 0 while the slot is free.
    pub(crate) id: u32,
    pub(crate) send_state: SendState,
    pub(crate) recv_state: RecvState,
    /// Why it ended early.
    pub(crate) error: Option<Error>,

    pub(crate) head: Option<ResponseHeaders>,
    pub(crate) content: ContentLength,
    pub(crate) data: RecvBuffer,
    pub(crate) trailers: Option<HeaderMap>,
    /// Who waits for more of the answer.
    pub(crate) reader: Option<Waker>,
    /// How much the peer may send, and how much was read that it was not told of.
    pub(crate) recv_window: i64,
    pub(crate) released: u32,

    /// What waits for the window.
    pub(crate) queue: VecDeque<Bytes>,
    /// The send window, relative to the peer's initial window. A change of that needs no visit of every stream.
    pub(crate) send_offset: i64,
    /// Position in the list of streams that wait for their send window.
    blocked_at: Option<usize>,
    /// Whether it stands in the line of those who want to send.
    pub(crate) is_send_queued: bool,
    /// Who waits for room.
    pub(crate) writer: Option<Waker>,

    /// Whether somebody holds its ends.
    pub(crate) has_reader: bool,
    pub(crate) has_writer: bool,
}

/// Where a stream is.
pub(crate) type StreamIndex = u32;

#[derive(Debug, Default)]
pub(crate) struct StreamStore {
    slots: Vec<Http2Stream>,
    free: Vec<StreamIndex>,
    /// Those that frames may still come for or go out for.
    open: HashMap<u32, StreamIndex, BuildHasherDefault<IdHasher>>,
    /// Open streams that wait for their send window, in any order.
    blocked: Vec<StreamIndex>,
    /// Number of streams looked at, for tests that bound the work.
    #[cfg(test)]
    pub(crate) visits: std::cell::Cell<usize>,
}

impl StreamStore {
    /// Opens a stream. A free slot comes with empty queues.
    pub(crate) fn open(&mut self, id: u32, recv_window: i64, is_head: bool) -> StreamIndex {
        let key = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Http2Stream::free());
            (self.slots.len() - 1) as StreamIndex
        });
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

    /// Open streams whose ids are above `last` and below `next`.
    ///
    /// Ids or open streams are walked, whichever are fewer. In sum over decreasing `last` that is no more than there were ids.
    pub(crate) fn open_between(&self, last: u32, next: u32) -> Vec<StreamIndex> {
        // Ids of a client's streams are odd.
        let first = last.saturating_add(1) | 1;
        let ids = next.saturating_sub(first).div_ceil(2) as usize;
        #[cfg(test)]
        self.visit(ids.min(self.open.len()));
        if ids <= self.open.len() {
            return (first..next).step_by(2).filter_map(|id| self.find(id)).collect();
        }
        let open = self.open.iter().filter(|(id, _)| (first..next).contains(id));
        open.map(|(_, key)| *key).collect()
    }

    /// The highest send window of an open stream, relative to the initial window.
    pub(crate) fn highest_offset(&self) -> i64 {
        #[cfg(test)]
        self.visit(self.open.len());
        let offsets = self.open.values().map(|key| self.slots[*key as usize].send_offset);
        offsets.max().unwrap_or(0).max(0)
    }

    /// Adds an open stream to those that wait for their send window.
    pub(crate) fn block(&mut self, key: StreamIndex) {
        let stream = &mut self.slots[key as usize];
        if stream.blocked_at.is_none() {
            stream.blocked_at = Some(self.blocked.len());
            self.blocked.push(key);
        }
    }

    pub(crate) fn unblock(&mut self, key: StreamIndex) {
        let Some(at) = self.slots[key as usize].blocked_at.take() else { return };
        self.blocked.swap_remove(at);
        if let Some(moved) = self.blocked.get(at) {
            self.slots[*moved as usize].blocked_at = Some(at);
        }
    }

    /// The stream at this position of the list of those that wait for their send window.
    pub(crate) fn blocked_at(&self, at: usize) -> Option<StreamIndex> {
        self.blocked.get(at).copied()
    }

    #[cfg(test)]
    fn visit(&self, streams: usize) {
        self.visits.set(self.visits.get() + streams);
    }

    /// Forgets a stream that is not open any more. Its slot is free once nobody holds it.
    pub(crate) fn close(&mut self, key: StreamIndex) {
        let stream = &self.slots[key as usize];
        if !stream.is_open() {
            let is_blocked = stream.blocked_at.is_some();
            self.open.remove(&stream.id);
            // A key in the list must not outlive the stream: the slot may be another's next.
            if is_blocked {
                self.unblock(key);
            }
            self.free_if_unused(key);
        }
    }

    pub(crate) fn free_if_unused(&mut self, key: StreamIndex) {
        let stream = &mut self.slots[key as usize];
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

    /// Gives back what a burst of calls needed and nobody needs any more.
    pub(crate) fn shrink(&mut self) {
        // The list of blocked streams is empty with the last open stream, and goes with the slots.
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

    /// Whether frames may still go or come.
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

/// Ids are ours, so nobody can choose them to collide, and one multiplication is hash enough.
#[derive(Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, id: u32) {
        // 2^64 divided by the golden ratio.
        self.0 = (self.0.rotate_left(32) ^ u64::from(id)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}
