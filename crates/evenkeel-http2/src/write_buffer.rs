//! Frames to be written, in order: small ones in one contiguous buffer, large chunks without a copy.
//!
//! It only queues bytes. The limit on their number and the write itself belong to the state and the driver.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem;

use bytes::{Buf as _, Bytes};

/// Minimum size of a chunk that is not copied.
const LARGE: usize = 2048;

/// Maximum capacity with which an empty buffer is kept for the next frames.
const MAX_IDLE_CAPACITY: usize = 4096;

/// Maximum number of slices in one vectored write.
const SLICES: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct WriteBuffer {
    /// Written before `tail`; empty unless there were large chunks.
    before: VecDeque<Bytes>,
    tail: Vec<u8>,
    /// Number of bytes of `tail` that are written.
    written: usize,
    before_len: usize,
}

impl WriteBuffer {
    pub(crate) fn len(&self) -> usize {
        self.before_len + self.tail.len() - self.written
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Buffer to which small frames are appended.
    pub(crate) fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }

    pub(crate) fn push(&mut self, chunk: Bytes) {
        if chunk.len() < LARGE {
            self.tail.extend_from_slice(&chunk);
            return;
        }
        // Small frames queued before the chunk keep their place. Their buffer is moved, not copied.
        if self.tail.len() > self.written {
            let mut tail = Bytes::from(mem::take(&mut self.tail));
            tail.advance(mem::take(&mut self.written));
            self.before_len += tail.len();
            self.before.push_back(tail);
        }
        self.before_len += chunk.len();
        self.before.push_back(chunk);
    }

    /// Passes the next slices to `write`, and returns its result.
    pub(crate) fn with_slices<T>(&self, write: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
        let tail = IoSlice::new(&self.tail[self.written..]);
        if self.before.is_empty() {
            return write(&[tail]);
        }
        let mut slices = [IoSlice::new(&[]); SLICES];
        let mut len = 0;
        for (slot, chunk) in slices.iter_mut().zip(&self.before) {
            *slot = IoSlice::new(chunk);
            len += 1;
        }
        // Otherwise the tail waits for a later write: it follows every chunk.
        if len < SLICES {
            slices[len] = tail;
            len += 1;
        }
        write(&slices[..len])
    }

    /// Removes this number of bytes from the front.
    pub(crate) fn advance(&mut self, mut written: usize) {
        while let Some(first) = self.before.front_mut() {
            let part = first.len().min(written);
            first.advance(part);
            self.before_len -= part;
            written -= part;
            if !first.is_empty() {
                return;
            }
            self.before.pop_front();
        }
        // Clamped: a byte stream that reports too much must not move the position past the end.
        self.written = (self.written + written).min(self.tail.len());
        if self.written == self.tail.len() {
            self.written = 0;
            self.tail.clear();
            // An idle connection must not retain the memory of a burst (story `memory`).
            if self.tail.capacity() > MAX_IDLE_CAPACITY {
                self.tail = Vec::new();
            }
            if self.before.capacity() > SLICES {
                self.before = VecDeque::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes come out in order, whatever number is written at a time.
    #[test]
    fn pieces_come_out_in_order() {
        for step in [1, 7, 1_000, 5_000, 100_000] {
            let mut write_buffer = WriteBuffer::default();
            let mut expected = Vec::new();
            let mut found = Vec::new();
            for round in 0..60_u8 {
                let small = vec![round; usize::from(round)];
                write_buffer.tail().extend_from_slice(&small);
                expected.extend_from_slice(&small);
                if round % 3 == 0 {
                    let large = Bytes::from(vec![round; LARGE + usize::from(round)]);
                    expected.extend_from_slice(&large);
                    write_buffer.push(large);
                }
                if round % 10 == 9 {
                    take(&mut write_buffer, step, &mut found);
                }
            }
            while !write_buffer.is_empty() {
                take(&mut write_buffer, step, &mut found);
            }
            assert_eq!(found, expected, "{step}");
            assert_eq!(write_buffer.len(), 0);
        }
    }

    fn take(write_buffer: &mut WriteBuffer, most: usize, into: &mut Vec<u8>) {
        let len = write_buffer.with_slices(|slices| {
            let before = into.len();
            into.extend(slices.iter().flat_map(|slice| slice.iter()).take(most));
            into.len() - before
        });
        write_buffer.advance(len);
    }
}
