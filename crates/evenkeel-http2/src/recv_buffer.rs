//! Received data of a stream that waits to be read.
//!
//! At most two bytes of memory are held per byte of data, beside a small constant. Data that came with a large read is kept
//! as a part of the read buffer, without a copy, for as long as the stream uses most of that buffer. Small pieces behind
//! unread data are gathered, so that a peer cannot make a byte cost much more.

use std::collections::VecDeque;
use std::mem;

use bytes::Bytes;

/// Bytes of a read buffer.
pub(crate) const READ_BUFFER_SIZE: usize = 64 << 10;

/// A read buffer is kept while one stream has at least this much unread data in it.
pub(crate) const MIN_SHARED: usize = READ_BUFFER_SIZE / 16 * 9;

/// Data from this size on is neither copied if it need not be, nor gathered.
pub(crate) const LARGE: usize = 4096;

/// Small pieces are gathered up to this size.
const MAX_GATHERED: usize = 16 << 10;

/// Number of pieces that an empty buffer keeps room for.
const MAX_IDLE_CAPACITY: usize = 16;

/// Data of a stream: its own, or a part of what was read.
#[derive(Debug)]
pub(crate) enum Chunk {
    Owned(Vec<u8>),
    /// `in_buffer` is the length of this piece and of all later ones of the same stream in the same read buffer.
    Shared {
        data: Bytes,
        in_buffer: usize,
    },
}

impl Chunk {
    pub(crate) fn len(&self) -> usize {
        match self {
            Chunk::Owned(data) => data.len(),
            Chunk::Shared { data, .. } => data.len(),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct RecvBuffer {
    chunks: VecDeque<BufferedChunk>,
    /// Small pieces behind `chunks`.
    gathered: Vec<u8>,
    len: usize,
}

#[derive(Debug)]
struct BufferedChunk {
    data: Bytes,
    /// As in [`Chunk::Shared`]; 0 for data with memory of its own.
    in_buffer: usize,
}

impl RecvBuffer {
    /// Returns the number of unread bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there is no more than one piece to be read.
    pub(crate) fn is_one_chunk(&self) -> bool {
        self.chunks.len() + usize::from(!self.gathered.is_empty()) <= 1
    }

    pub(crate) fn push(&mut self, chunk: Chunk) {
        let is_behind = self.len > 0;
        self.len += chunk.len();
        match chunk {
            Chunk::Owned(data) if !is_behind => {
                self.chunks.push_back(BufferedChunk { data: data.into(), in_buffer: 0 });
            }
            Chunk::Owned(data) if data.len() < LARGE => {
                if self.gathered.len() + data.len() > MAX_GATHERED {
                    self.seal();
                }
                self.gathered.extend_from_slice(&data);
            }
            Chunk::Owned(mut data) => {
                self.seal();
                data.shrink_to_fit();
                self.chunks.push_back(BufferedChunk { data: data.into(), in_buffer: 0 });
            }
            Chunk::Shared { data, in_buffer } => {
                self.seal();
                self.chunks.push_back(BufferedChunk { data, in_buffer });
            }
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        let data = match self.chunks.pop_front() {
            Some(BufferedChunk { data, in_buffer }) => {
                if in_buffer > 0 {
                    self.keep_buffer(in_buffer - data.len());
                }
                data
            }
            None if self.gathered.is_empty() => return None,
            None => mem::take(&mut self.gathered).into(),
        };
        self.len -= data.len();
        Some(data)
    }

    pub(crate) fn clear(&mut self) {
        // Most are read to their end, and then `gathered` has no memory either.
        if self.len > 0 {
            self.chunks.clear();
            self.gathered = Vec::new();
            self.len = 0;
        }
        if self.chunks.capacity() > MAX_IDLE_CAPACITY {
            self.chunks = VecDeque::new();
        }
    }

    /// Makes the gathered bytes a piece of their exact size.
    fn seal(&mut self) {
        if !self.gathered.is_empty() {
            let data = mem::take(&mut self.gathered).into_boxed_slice();
            self.chunks.push_back(BufferedChunk { data: data.into(), in_buffer: 0 });
        }
    }

    /// Looks at a read buffer in which `left` bytes are unread. If they are few, they move to memory of their own: the reader may pause
    /// here, and would hold the whole buffer for them.
    fn keep_buffer(&mut self, mut left: usize) {
        if left >= MIN_SHARED {
            return;
        }
        for chunk in &mut self.chunks {
            if left == 0 {
                return;
            }
            if chunk.in_buffer > 0 {
                left = left.saturating_sub(chunk.data.len());
                *chunk = BufferedChunk { data: Bytes::copy_from_slice(&chunk.data), in_buffer: 0 };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the sizes and the order, what comes out is what was put in.
    #[test]
    fn data_comes_out_as_it_was_put_in() {
        let bytes = Bytes::from((0..READ_BUFFER_SIZE).map(|at| (at / 7) as u8).collect::<Vec<u8>>());
        for pops in 1..5 {
            let mut buffer = RecvBuffer::default();
            let (mut expected, mut found) = (Vec::new(), Vec::new());
            for round in 0..200 {
                let at = (round * 777) % (READ_BUFFER_SIZE / 2);
                match round % 5 {
                    // Two parts of a read, with a small piece between.
                    0 => {
                        let (first, second) =
                            (bytes.slice(at..READ_BUFFER_SIZE / 2), bytes.slice(READ_BUFFER_SIZE / 2..));
                        let in_buffer = first.len() + second.len();
                        expected.extend([&first[..], &[1], &second].concat());
                        buffer.push(Chunk::Shared { data: first, in_buffer });
                        buffer.push(Chunk::Owned(vec![1]));
                        buffer.push(Chunk::Shared { in_buffer: second.len(), data: second });
                    }
                    1 => {
                        expected.extend_from_slice(&bytes[at..]);
                        buffer.push(Chunk::Owned(bytes[at..].to_vec()));
                    }
                    _ => {
                        let small = &bytes[..at % LARGE];
                        expected.extend_from_slice(small);
                        buffer.push(Chunk::Owned(small.to_vec()));
                    }
                }
                if round % 3 == 0 {
                    for chunk in (0..pops).map_while(|_| buffer.pop()) {
                        found.extend_from_slice(&chunk);
                    }
                }
                assert_eq!(buffer.len(), expected.len() - found.len());
            }
            while let Some(chunk) = buffer.pop() {
                found.extend_from_slice(&chunk);
            }
            assert!(found == expected, "{pops}");
            assert!(buffer.len() == 0 && buffer.is_one_chunk());
        }
    }
}
