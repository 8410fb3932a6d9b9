//! Hash maps whose hashing does not show: on the request path, and where 10,000 endpoints are looked up in a pass.
//!
//! The standard hasher is made to withstand keys that an attacker chose, at some 25 ns a key. Here a key is folded in word
//! by word with one multiplication each. Names and addresses come from a control plane, whose content may be hostile, so the
//! fold starts from a random seed per map: keys that collide in one map do not in another.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};

/// A map with quick hashing. Its order of iteration is random: do not show it.
pub(crate) type FastMap<K, V> = HashMap<K, V, FastHashSeed>;

/// A set with quick hashing.
pub(crate) type FastSet<K> = HashSet<K, FastHashSeed>;

#[derive(Clone, Debug)]
pub(crate) struct FastHashSeed(u64);

impl Default for FastHashSeed {
    fn default() -> FastHashSeed {
        FastHashSeed(RandomState::new().hash_one(0u64))
    }
}

impl BuildHasher for FastHashSeed {
    type Hasher = FastHasher;

    fn build_hasher(&self) -> FastHasher {
        FastHasher(self.0)
    }
}

pub(crate) struct FastHasher(u64);

impl FastHasher {
    fn mix(&mut self, word: u64) {
        // 2^64 divided by the golden ratio; adding the upper half of the product spreads every bit over the whole word.
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for FastHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        // The length precedes the bytes, so texts that differ only in zero bytes result in different words.
        let rest = rest.iter().fold(rest.len() as u64, |rest, byte| rest << 8 | u64::from(*byte));
        self.mix(rest);
    }

    fn write_u8(&mut self, n: u8) {
        self.mix(u64::from(n));
    }

    fn write_u16(&mut self, n: u16) {
        self.mix(u64::from(n));
    }

    fn write_u32(&mut self, n: u32) {
        self.mix(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        self.mix(n);
    }

    fn write_usize(&mut self, n: usize) {
        self.mix(n as u64);
    }

    fn write_isize(&mut self, n: isize) {
        self.mix(n.cast_unsigned() as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;

    /// Ten thousand consecutive addresses are spread over the buckets like random numbers.
    #[test]
    fn neighbours_do_not_crowd() {
        let seed = FastHashSeed(7);
        let mut buckets = vec![0u32; 1 << 14];
        for i in 0..10_000u32 {
            let address = Address::from(&*format!("10.0.{}.{}:443", i / 256, i % 256));
            buckets[seed.hash_one(&address) as usize & 0x3fff] += 1;
        }
        assert!(buckets.iter().max().is_some_and(|most| *most <= 9), "{:?}", buckets.iter().max());
    }
}
