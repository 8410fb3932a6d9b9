//! The streams of a connection, in slots that are used again.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::task::Waker;

use bytes::Bytes;
use http::HeaderMap;

use crate::error::Error;
use crate::stream::Head;

/// A queue is kept for the slot's next stream up to this many pieces.
const KEPT: usize = 16;

/// How far the peer's answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Its head is to come.
    Awaited,
    /// Data or trailers are to come.
    Begun,
    /// All of it came.
    Ended,
}

/// How far the request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// More is to come from the caller.
    Open,
    /// The last of it waits to be sent.
    Closing,
    /// All of it was sent, or will not be.
    Closed,
}

/// One request and its answer.
#[derive(Debug)]
pub(crate) struct Stream {
    /// 0 while the slot is free.
    pub(crate) id: u32,
    pub(crate) asked: Asked,
    pub(crate) answer: Answer,
    /// Why it ended early.
    pub(crate) error: Option<Error>,

    pub(crate) head: Option<Head>,
    pub(crate) data: VecDeque<Bytes>,
    /// How many bytes `data` has.
    pub(crate) unread: usize,
    pub(crate) trailers: Option<HeaderMap>,
    /// Who waits for more of the answer.
    pub(crate) reader: Option<Waker>,
    /// How much the peer may send, and how much was read that it was not told of.
    pub(crate) recv_window: i64,
    pub(crate) released: u32,

    /// What waits for the window.
    pub(crate) queue: VecDeque<Bytes>,
    pub(crate) send_window: i64,
    /// Whether it stands in the line of those who want to send.
    pub(crate) is_in_line: bool,
    /// Who waits for room.
    pub(crate) writer: Option<Waker>,

    /// Whether somebody holds its ends.
    pub(crate) has_reader: bool,
    pub(crate) has_writer: bool,
}

/// Where a stream is.
pub(crate) type Key = u32;

#[derive(Debug, Default)]
pub(crate) struct Streams {
    slots: Vec<Stream>,
    free: Vec<Key>,
    /// Those that frames may still come for or go out for.
    open: HashMap<u32, Key, BuildHasherDefault<IdHasher>>,
}

impl Streams {
    /// Opens a stream. A free slot comes with empty queues.
    pub(crate) fn open(&mut self, id: u32, send_window: i64, recv_window: i64) -> Key {
        let key = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Stream::free());
            (self.slots.len() - 1) as Key
        });
        let stream = &mut self.slots[key as usize];
        stream.id = id;
        stream.asked = Asked::Open;
        stream.answer = Answer::Awaited;
        stream.recv_window = recv_window;
        stream.released = 0;
        stream.send_window = send_window;
        stream.has_reader = true;
        stream.has_writer = true;
        self.open.insert(id, key);
        key
    }

    pub(crate) fn get(&mut self, key: Key) -> &mut Stream {
        &mut self.slots[key as usize]
    }

    pub(crate) fn find(&self, id: u32) -> Option<Key> {
        self.open.get(&id).copied()
    }

    pub(crate) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    pub(crate) fn all_open(&self) -> impl Iterator<Item = Key> + use<> {
        let mut keys: Vec<Key> = self.open.values().copied().collect();
        keys.sort_unstable();
        keys.into_iter()
    }

    /// Forgets a stream that is not open any more. Its slot is free once nobody holds it.
    pub(crate) fn close(&mut self, key: Key) {
        let stream = &self.slots[key as usize];
        if !stream.is_open() {
            self.open.remove(&stream.id);
            self.free_if_unused(key);
        }
    }

    pub(crate) fn free_if_unused(&mut self, key: Key) {
        let stream = &mut self.slots[key as usize];
        if stream.has_reader || stream.has_writer || stream.is_in_line || stream.is_open() || stream.id == 0 {
            return;
        }
        stream.clear();
        self.free.push(key);
    }

    /// Gives back what a burst of calls needed and nobody needs any more.
    pub(crate) fn shrink(&mut self) {
        if self.free.len() == self.slots.len() && self.slots.len() > KEPT {
            *self = Streams::default();
        }
    }
}

impl Stream {
    fn free() -> Stream {
        Stream {
            id: 0,
            asked: Asked::Closed,
            answer: Answer::Ended,
            error: None,
            head: None,
            data: VecDeque::new(),
            unread: 0,
            trailers: None,
            reader: None,
            recv_window: 0,
            released: 0,
            queue: VecDeque::new(),
            send_window: 0,
            is_in_line: false,
            writer: None,
            has_reader: false,
            has_writer: false,
        }
    }

    /// Whether frames may still go or come.
    pub(crate) fn is_open(&self) -> bool {
        self.asked != Asked::Closed || self.answer != Answer::Ended && self.error.is_none()
    }

    fn clear(&mut self) {
        self.id = 0;
        self.asked = Asked::Closed;
        self.answer = Answer::Ended;
        self.error = None;
        self.head = None;
        self.trailers = None;
        self.unread = 0;
        self.reader = None;
        self.writer = None;
        for queue in [&mut self.data, &mut self.queue] {
            queue.clear();
            if queue.capacity() > KEPT {
                *queue = VecDeque::new();
            }
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
