//! Counter of message bytes in a gRPC body, without the framing (A66).
//!
//! Each message follows a five-byte prefix: the compressed flag and the length. Chunks of a body may be cut anywhere,
//! also inside a prefix. Messages are not decompressed or buffered.

/// Incremental parser of the length prefixes. It counts message bytes, compressed if the messages are.
#[derive(Debug, Default)]
pub(super) struct MessageByteCounter {
    /// Bytes of the current prefix, of which the first `head` are valid.
    head_bytes: [u8; PREFIX_LEN],
    head: usize,
    /// Number of bytes of the current message still to come.
    left: usize,
    messages: u64,
}

const PREFIX_LEN: usize = 5;

impl MessageByteCounter {
    /// Counts the next chunk of the body.
    pub(super) fn take(&mut self, mut chunk: &[u8]) {
        while !chunk.is_empty() {
            let wanted = if self.left > 0 { self.left } else { PREFIX_LEN - self.head };
            let (now, rest) = chunk.split_at(wanted.min(chunk.len()));
            chunk = rest;
            if self.left > 0 {
                self.left -= now.len();
                self.messages += now.len() as u64;
                continue;
            }
            let until = self.head + now.len();
            // Always present: `wanted` ends with the prefix.
            if let Some(space) = self.head_bytes.get_mut(self.head..until) {
                space.copy_from_slice(now);
            }
            self.head = until % PREFIX_LEN;
            if until == PREFIX_LEN {
                let [_, length @ ..] = self.head_bytes;
                self.left = u32::from_be_bytes(length) as usize;
            }
        }
    }

    /// Returns the number of message bytes so far.
    pub(super) fn messages(&self) -> u64 {
        self.messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a body of framed messages with these lengths.
    fn framed(lengths: &[usize]) -> Vec<u8> {
        let message = |length: &usize| {
            let head = [[1].to_vec(), (*length as u32).to_be_bytes().to_vec()].concat();
            [head, vec![0xff; *length]].concat()
        };
        lengths.iter().flat_map(message).collect()
    }

    #[test]
    fn framing_does_not_count_wherever_bodies_are_cut() {
        for lengths in [&[][..], &[0], &[1], &[0, 0, 7], &[300, 0, 2, 1000]] {
            let body = framed(lengths);
            for size in [1, 2, 3, 4, 5, 6, 7, 64, 4096] {
                let mut framing = MessageByteCounter::default();
                body.chunks(size).for_each(|chunk| framing.take(chunk));
                assert_eq!(framing.messages(), lengths.iter().sum::<usize>() as u64, "{lengths:?} by {size}");
            }
        }
    }

    #[test]
    fn what_is_cut_off_counts_as_far_as_it_came() {
        let mut framing = MessageByteCounter::default();
        framing.take(&framed(&[10])[..9]);
        assert_eq!(framing.messages(), 4);
        let mut framing = MessageByteCounter::default();
        framing.take(&[0, 0xff, 0xff, 0xff, 0xff, 1, 2]);
        assert_eq!(framing.messages(), 2);
    }
}
