//! Checks of the fuzz target, on generated cases in every test run: frames of all kinds in any order, valid responses
//! with a few bytes changed, and arbitrary bytes.

#[path = "../../../tools/fuzz/src/http2.rs"]
pub mod http2;

use http2::{check_connection, check_frames, check_header_blocks, check_unread_streams};
use proptest::prelude::*;
use proptest::sample::Index;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns SETTINGS and valid responses to all three calls: in few frames, in many frames after an interim response,
/// and trailers-only.
fn good() -> Vec<u8> {
    let head = b"\x88\x40\x0ccontent-type\x10application/grpc";
    let again = b"\x88\xbe";
    let trailers = b"\x40\x0bgrpc-status\x010";
    [
        frame(4, 0, 0, &[0, 4, 0, 1, 0, 0]),
        frame(8, 0, 0, &[0, 1, 0, 0]),
        frame(1, 4, 1, head),
        frame(0, 0, 1, b"\0\0\0\0\x05hello"),
        frame(1, 5, 1, trailers),
        frame(6, 0, 0, b"12345678"),
        frame(1, 4, 3, b"\x08\x03103"),
        frame(1, 0, 3, again),
        frame(9, 4, 3, b""),
        frame(0, 8, 3, b"\x02ab\0\0"),
        frame(0, 1, 3, b""),
        frame(1, 5, 5, again),
        frame(7, 0, 0, &[0, 0, 0, 5, 0, 0, 0, 0]),
    ]
    .concat()
}

/// A valid response with any one byte changed, or truncated at any byte, causes no panic.
#[test]
fn every_response_survives_changed_bytes() {
    let good = good();
    for piece in [1, 7, usize::MAX] {
        assert_eq!(check_connection(&good, piece), 3, "every call has a response");
    }
    let mut heads = [0; 4];
    for at in 0..good.len() {
        check_connection(&good[..at], usize::MAX);
        for byte in [0, 1, good[at] ^ 1, good[at].wrapping_add(1), 0x7f, 0x80, 0xff] {
            let mut changed = good.clone();
            changed[at] = byte;
            heads[check_connection(&changed, 5)] += 1;
        }
    }
    assert!(heads.iter().all(|count| *count > 10), "{heads:?}");
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        Just(b"\x88".to_vec()),
        Just(vec![0, 0, 0, 1]),
        Just(vec![0; 8]),
        (0..7_u8, any::<u32>()).prop_map(|(name, value)| [&[0, name][..], &value.to_be_bytes()].concat()),
        Just(vec![0; 16_384]),
    ];
    let stream = prop_oneof![Just(0_u32), Just(1), Just(3), Just(5), 0..10_u32];
    (0..11_u8, prop_oneof![Just(0_u8), Just(1), Just(4), Just(5), any::<u8>()], stream, payload)
        .prop_map(|(kind, flags, stream, payload)| frame(kind, flags, stream, &payload))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn frames_of_all_kinds(frames in prop::collection::vec(any_frame(), 0..40), piece in 1..5000_usize) {
        check_connection(&[frame(4, 0, 0, &[]), frames.concat()].concat(), piece);
    }

    #[test]
    fn valid_responses_with_changed_bytes(changes in prop::collection::vec((any::<Index>(), any::<u8>()), 1..6), piece in 1..300_usize) {
        let mut bytes = good();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        check_connection(&bytes, piece);
    }

    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
        check_connection(&bytes, usize::MAX);
    }

    #[test]
    fn frames_with_short_heads(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        check_frames(&bytes);
    }

    #[test]
    fn arbitrary_header_blocks(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_header_blocks(&bytes);
    }

    #[test]
    fn streams_that_are_left_unread(bytes in prop::collection::vec(any::<u8>(), 0..900)) {
        check_unread_streams(&bytes);
    }
}
