//! Received data of a stream that waits to be read.
//!
//! At most two bytes of memory are held per byte of data, beside a small constant. Data of a large read stays in the
//! read buffer, without a copy, while the stream uses most of that buffer. Small chunks behind unread data are merged,
//! so that a peer cannot make a byte cost much more.

use std::collections::VecDeque;
use std::mem;

use bytes::Bytes;

/// Size of a read buffer, in bytes.
pub(crate) const READ_BUFFER_SIZE: usize = 64 << 10;

/// Minimum number of unread bytes of one stream for which a read buffer is retained.
pub(crate) const MIN_SHARED: usize = READ_BUFFER_SIZE / 16 * 9;

/// Minimum size of a chunk that is passed on without being copied or merged.
pub(crate) const LARGE: usize = 4096;

/// Maximum size up to which small chunks are merged.
const MAX_GATHERED: usize = 16 << 10;

/// Number of chunks that an empty buffer keeps room for.
const MAX_IDLE_CAPACITY: usize = 16;

/// Data of a stream: in memory of its own, or a part of the read buffer.
#[derive(Debug)]
pub(crate) enum Chunk {
    Owned(Vec<u8>),
    /// `in_buffer` is the length of this chunk plus all later ones of the same stream in the same read buffer.
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
    /// Small chunks behind `chunks`, merged.
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

    /// Returns true if there is at most one chunk to read.
    pub(crate) fn is_one_chunk(&self) -> bool {
        self.chunks.len() + usize::from(!self.gathered.is_empty()) <= 1
    }

    pub(crate) fn push(&mut self, chunk: Chunk) {
        let is_behind = self.len > 0;
        self.len += chunk.len();
        match chunk {
            // Not shrunk: the reader merges small frames up to `LARGE`, and growth doubles the capacity at most.
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
                // Keeps the order: `gathered` is behind all chunks.
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
        // Most responses are read to their end, and then `gathered` has no memory either.
        if self.len > 0 {
            self.chunks.clear();
            self.gathered = Vec::new();
            self.len = 0;
        }
        if self.chunks.capacity() > MAX_IDLE_CAPACITY {
            self.chunks = VecDeque::new();
        }
    }

    /// Moves the merged bytes to `chunks`, as a chunk of their exact size.
    fn seal(&mut self) {
        if !self.gathered.is_empty() {
            let data = mem::take(&mut self.gathered).into_boxed_slice();
            self.chunks.push_back(BufferedChunk { data: data.into(), in_buffer: 0 });
        }
    }

    /// Copies the rest of a read buffer in which `left` bytes are unread, unless they are most of the buffer.
    ///
    /// The reader may pause here, and would otherwise retain the whole buffer for a few bytes.
    fn keep_buffer(&mut self, mut left: usize) {
        if left >= MIN_SHARED {
            return;
        }
        for chunk in &mut self.chunks {
            // Chunks of the next read buffer follow.
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

    /// Data comes out as it was put in, whatever the sizes and the order of pushes and pops.
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
