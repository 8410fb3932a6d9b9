//! Integers with a prefix (RFC 7541, section 5.1).
//!
//! Small values fit into the rest of a byte. Larger ones continue in bytes of seven bits each.

/// Appends `value` with a prefix of `prefix` bits, below the bits of `first`.
pub(super) fn write(out: &mut Vec<u8>, first: u8, prefix: u32, value: usize) {
    let most = (1 << prefix) - 1;
    if value < most {
        out.push(first | value as u8);
        return;
    }
    out.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Reads an integer from the front of `from`. `None` if it is incomplete, or has more than four continuation bytes.
pub(super) fn read(from: &mut &[u8], prefix: u32) -> Option<usize> {
    let (&first, rest) = from.split_first()?;
    *from = rest;
    let most = (1 << prefix) - 1;
    let mut value = usize::from(first) & most;
    if value < most {
        return Some(value);
    }
    // 28 bits exceed every index and length that occurs here, and cannot overflow `usize`.
    for shift in [0, 7, 14, 21] {
        let (&byte, rest) = from.split_first()?;
        *from = rest;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
