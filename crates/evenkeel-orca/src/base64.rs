//! Base64 for binary metadata in gRPC headers, encoded without padding. Some peers add padding, so decoding accepts
//! it.
//!
//! Reports are short, and one arrives with every call. For such lengths a table lookup is several times faster than
//! implementations that are optimised for long inputs.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Table entry of bytes outside of the alphabet. Its high bits cannot occur in a 6-bit value.
const NONE: u8 = 0xff;

static VALUES: [u8; 256] = {
    let mut values = [NONE; 256];
    let mut i = 0;
    while i < 64 {
        values[LETTERS[i] as usize] = i as u8;
        i += 1;
    }
    values
};

/// Returns the maximum number of bytes that a text of this length decodes to.
pub(crate) fn max_decoded_len(text: usize) -> usize {
    text.div_ceil(4) * 3
}

/// Decodes into `bytes`, which must have room for [`max_decoded_len`]. Returns the number of bytes, or `None` if the
/// text is malformed.
pub(crate) fn decode(text: &[u8], bytes: &mut [u8]) -> Option<usize> {
    let text = match text {
        [rest @ .., b'=', b'='] | [rest @ .., b'='] if text.len().is_multiple_of(4) => rest,
        text => text,
    };
    let (groups, rest) = text.as_chunks::<4>();
    let (whole, last) = bytes.split_at_mut_checked(groups.len() * 3)?;
    let mut bad = 0;
    for (group, room) in groups.iter().zip(whole.as_chunks_mut::<3>().0) {
        let [a, b, c, d] = group.map(|letter| VALUES[usize::from(letter)]);
        // Valid values have six bits, so the union equals `NONE` only if a letter is invalid.
        bad |= a | b | c | d;
        *room = [a << 2 | b >> 4, b << 4 | c >> 2, c << 6 | d];
    }
    let value = |letter: &u8| VALUES[usize::from(*letter)];
    let (a, b, c) = match rest {
        [] => return (bad != NONE).then_some(whole.len()),
        [a, b] => (value(a), value(b), 0),
        [a, b, c] => (value(a), value(b), value(c)),
        // A single character has six bits, less than a byte.
        _ => return None,
    };
    let count = rest.len() - 1;
    last.get_mut(..count)?.copy_from_slice(&[a << 2 | b >> 4, b << 4 | c >> 2][..count]);
    (bad | a | b | c != NONE).then_some(whole.len() + count)
}

/// Encodes the bytes without padding.
pub(crate) fn encode(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity((bytes.len() * 4).div_ceil(3));
    for group in bytes.chunks(3) {
        let byte = |i: usize| u32::from(group.get(i).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let letter = |i: u32| LETTERS[(bits >> (18 - 6 * i)) as usize & 63];
        text.extend((0..=group.len() as u32).map(letter));
    }
    text
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
    use proptest::prelude::*;

    use super::*;

    fn decoded(text: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = vec![0; max_decoded_len(text.len())];
        let length = decode(text, &mut bytes)?;
        bytes.truncate(length);
        Some(bytes)
    }

    #[test]
    fn known_texts() {
        let texts: [(&str, &[u8]); 6] = [
            ("", b""),
            ("Zg", b"f"),
            ("Zm8", b"fo"),
            ("Zm9v", b"foo"),
            ("Zm9vYg", b"foob"),
            ("+/+/", &[0xfb, 0xff, 0xbf]),
        ];
        for (text, bytes) in texts {
            assert_eq!(encode(bytes), text.as_bytes());
            assert_eq!(decoded(text.as_bytes()).as_deref(), Some(bytes));
        }
        for text in [
            "=", "==", "A", "A===", "AA=", "AAA==", "AAAA=", "AAAA====", "A=AA", "AA=A", "AA\n=", "AAAAA",
            "A-_A",
        ] {
            assert_eq!(decoded(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

        /// Agrees with the `base64` crate.
        #[test]
        fn as_others_have_it(bytes in prop::collection::vec(any::<u8>(), 0..100), text in "[A-Za-z0-9+/=]{0,12}|[ -~]{0,12}") {
            let ours = encode(&bytes);
            prop_assert_eq!(&ours, &STANDARD_NO_PAD.encode(&bytes).into_bytes());
            prop_assert_eq!(decoded(&ours), Some(bytes.clone()));
            prop_assert_eq!(decoded(STANDARD.encode(&bytes).as_bytes()), Some(bytes));
            // The crate rejects non-zero trailing bits, which this decoder ignores.
            if let Ok(theirs) = STANDARD.decode(&text).or_else(|_| STANDARD_NO_PAD.decode(&text)) {
                prop_assert_eq!(decoded(text.as_bytes()), Some(theirs));
            }
        }
    }
}
