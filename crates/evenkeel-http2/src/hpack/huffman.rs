//! Decodes strings in HPACK's Huffman code (RFC 7541, appendix B).
//!
//! The code is canonical: the lengths of its codes define it completely. Codes of up to eight bits, which cover nearly
//! all header text, are looked up in a table. Longer ones are found by their length.

use std::sync::LazyLock;

/// Code length of each byte, in bits.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

const SHORT: u32 = 8;
const LONGEST: u32 = 30;

static CODE: LazyLock<HuffmanTable> = LazyLock::new(HuffmanTable::new);

struct HuffmanTable {
    /// Byte and code length for each value of the next eight bits. A length of 0 stands for a longer code.
    short: [(u8, u8); 1 << SHORT],
    /// Two values for each length. The first is the lowest code that is longer, aligned to 32 bits. The second is the
    /// offset from a code of this length to its position in `sorted`.
    long: [(u64, i64); LONGEST as usize + 1],
    /// All bytes, in the order of their codes.
    sorted: Vec<u8>,
}

impl HuffmanTable {
    fn new() -> HuffmanTable {
        let mut sorted: Vec<u8> = (0..=u8::MAX).collect();
        sorted.sort_by_key(|&byte| LENGTHS[usize::from(byte)]);
        let mut short = [(0, 0); 1 << SHORT];
        let mut long = [(0, 0); LONGEST as usize + 1];
        let mut code: u64 = 0;
        let mut place = 0;
        for length in 1..=LONGEST {
            code <<= 1;
            let first = place as i64 - code as i64;
            while let Some(&byte) =
                sorted.get(place).filter(|&&byte| u32::from(LENGTHS[usize::from(byte)]) == length)
            {
                if length <= SHORT {
                    let from = (code << (SHORT - length)) as usize;
                    short[from..from + (1 << (SHORT - length))].fill((byte, length as u8));
                }
                code += 1;
                place += 1;
            }
            long[length as usize] = (code << (32 - length), first);
        }
        HuffmanTable { short, long, sorted }
    }
}

/// Appends the decoded bytes to `out`. `None` if the string is malformed: its padding is invalid, or it contains EOS.
pub(super) fn decode(coded: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let code = &*CODE;
    // The undecoded bits, first bit on top.
    let mut bits: u64 = 0;
    let mut count: u32 = 0;
    let mut coded = coded.iter();
    loop {
        // Room for another byte in 64 bits.
        while count <= 56 {
            let Some(&byte) = coded.next() else { break };
            bits |= u64::from(byte) << (56 - count);
            count += 8;
        }
        if count == 0 {
            return Some(());
        }
        let found = match code.short[(bits >> (64 - SHORT)) as usize] {
            (byte, length @ 1..) => Some((byte, u32::from(length))),
            // The upper half is enough: the longest code has 30 bits.
            _ => code.find((bits >> 32) as u32),
        };
        // A code longer than `count` would include zero bits that were not received.
        let Some((byte, length)) = found.filter(|(_, length)| *length <= count) else {
            // The rest is padding: less than a byte, all ones.
            return (count < 8 && bits >> (64 - count) == (1 << count) - 1).then_some(());
        };
        out.push(byte);
        bits <<= length;
        count -= length;
    }
}

impl HuffmanTable {
    /// Returns the byte whose code begins `bits`, and the code length. `None` for EOS, which must not be sent.
    fn find(&self, bits: u32) -> Option<(u8, u32)> {
        for length in SHORT + 1..=LONGEST {
            let (beyond, first) = self.long[length as usize];
            if u64::from(bits) < beyond {
                let place = first + i64::from(bits >> (32 - length));
                return self.sorted.get(usize::try_from(place).ok()?).map(|&byte| (byte, length));
            }
        }
        None
    }
}

/// Encodes a string as a peer would, for tests.
#[cfg(test)]
pub(super) fn encode(text: &[u8]) -> Vec<u8> {
    let mut sorted: Vec<u8> = (0..=u8::MAX).collect();
    sorted.sort_by_key(|&byte| LENGTHS[usize::from(byte)]);
    let mut codes = [(0_u32, 0_u8); 256];
    let (mut code, mut before) = (0, 0);
    for byte in sorted {
        let length = LENGTHS[usize::from(byte)];
        code <<= length - before;
        codes[usize::from(byte)] = (code, length);
        code += 1;
        before = length;
    }
    let mut bits: Vec<bool> = Vec::new();
    for &byte in text {
        let (code, length) = codes[usize::from(byte)];
        bits.extend((0..length).rev().map(|i| code >> i & 1 == 1));
    }
    while !bits.len().is_multiple_of(8) {
        bits.push(true);
    }
    bits.chunks(8).map(|byte| byte.iter().fold(0, |all, &bit| all << 1 | u8::from(bit))).collect()
}
