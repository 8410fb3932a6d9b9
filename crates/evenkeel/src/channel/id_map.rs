//! Maps keyed by subchannel id, with a cheap hash.
//!
//! The core assigns the ids, so peers cannot choose them to collide, and one multiplication is a sufficient hash.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use evenkeel_core::SubchannelId;

pub(crate) type IdMap<V> = HashMap<SubchannelId, V, BuildHasherDefault<IdHasher>>;

#[derive(Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, n: u32) {
        // 2^64 divided by the golden ratio (Fibonacci hashing).
        self.0 = (self.0.rotate_left(32) ^ u64::from(n)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}
