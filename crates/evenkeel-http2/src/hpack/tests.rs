use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use proptest::prelude::*;

use super::{HeaderBlock, HpackDecoder, HpackEncoder, huffman, integer};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        hex.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn said(block: &HeaderBlock) -> String {
    let status = block.status.map(|status| format!(":status {}\n", status.as_u16())).unwrap_or_default();
    let fields = block.headers.iter().map(|(name, value)| format!("{name} {}\n", value.to_str().unwrap()));
    status + &fields.collect::<String>()
}

/// The responses of RFC 7541, appendix C.6: Huffman code, and a table of 256 bytes that has to evict entries.
#[test]
fn the_examples_of_the_rfc_are_read() {
    let mut decoder = HpackDecoder::default();
    decoder.decode(&bytes("3fe101"), 1 << 14).unwrap();
    let first = "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7
                 8f0b 97c8 e9ae 82ae 43d3";
    let third = "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335
                 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07";
    let date = "Mon, 21 Oct 2013 20:13:2";
    let at = "location https://www.example.com\n";
    let rest = format!("cache-control private\ndate {date}1 GMT\n{at}");
    let cookie = "set-cookie foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1\n";
    for (block, expected) in [
        (first, format!(":status 302\n{rest}")),
        ("4883 640e ffc1 c0bf", format!(":status 307\n{rest}")),
        (
            third,
            format!(
                ":status 200\ncache-control private\ndate {date}2 GMT\n{at}content-encoding gzip\n{cookie}"
            ),
        ),
    ] {
        let block = decoder.decode(&bytes(block), 1 << 14).unwrap();
        assert!(!block.is_malformed && !block.is_too_long);
        assert_eq!(said(&block), expected);
    }
}

#[test]
fn every_byte_has_a_code() {
    let all: Vec<u8> = (0..=u8::MAX).chain(*b"the quick brown fox").collect();
    for from in 0..all.len() {
        let mut decoded = Vec::new();
        huffman::decode(&huffman::encode(&all[from..]), &mut decoded).unwrap();
        assert_eq!(decoded, all[from..]);
    }
}

/// Padding is less than a byte and all ones; EOS is not a valid code.
#[test]
fn bad_ends_of_strings_are_refused() {
    for coded in [&b"\xff"[..], b"\x1f\xff", b"\x18", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\xff"] {
        assert_eq!(huffman::decode(coded, &mut Vec::new()), None, "{coded:x?}");
    }
    assert_eq!(huffman::decode(b"\x1f", &mut Vec::new()), Some(()));
}

#[test]
fn integers_of_any_size() {
    for prefix in 4..=7 {
        for value in [0, 1, 14, 15, 16, 30, 31, 32, 62, 126, 127, 128, 254, 255, 256, 1337, 1 << 14, 1 << 20]
        {
            let mut out = Vec::new();
            integer::write(&mut out, 0, prefix, value);
            let mut from = &out[..];
            assert_eq!(integer::read(&mut from, prefix), Some(value));
            assert!(from.is_empty());
            let mut short = &out[..out.len() - 1];
            assert_eq!(integer::read(&mut short, prefix), None, "{value} cut off");
        }
    }
    assert_eq!(integer::read(&mut &[0xff; 20][..], 7), None, "without end");
}

/// Malformed blocks, each decoded with an empty dynamic table.
#[test]
fn blocks_that_are_none_are_refused() {
    for block in ["80", "be", "ff80808080 01", "40", "4003", "0085f2b24a84ff", "3fe21f"] {
        assert!(HpackDecoder::default().decode(&bytes(block), 1 << 14).is_none(), "{block}");
    }
}

/// A field that no response may have marks the block. It keeps its place in the table, so that later indices stay
/// valid.
#[test]
fn invalid_fields_keep_their_place() {
    let mut decoder = HpackDecoder::default();
    // An upper-case name, a value with a line break, a pseudo-header of requests; then a valid field.
    for (text, name) in
        [("4001 41 01 61", "upper case"), ("4001 61 01 0a", "line break"), ("41 01 61", ":authority")]
    {
        assert!(decoder.decode(&bytes(text), 1 << 14).unwrap().is_malformed, "{name}");
    }
    assert!(!decoder.decode(&bytes("4001 62 01 63"), 1 << 14).unwrap().is_malformed);
    let block = decoder.decode(&bytes("be"), 1 << 14).unwrap();
    assert_eq!(said(&block), "b c\n");
    assert!(decoder.decode(&bytes("bf"), 1 << 14).unwrap().is_malformed, "the one before it");
    for text in ["88 88", "4001 62 01 63 88", "48 01 61"] {
        assert!(
            HpackDecoder::default().decode(&bytes(text), 1 << 14).unwrap().is_malformed,
            "status: {text}"
        );
    }
}

/// An invalid value does not make later uses of its name invalid, nor of a status; an invalid name stays invalid.
#[test]
fn invalid_values_do_not_spread() {
    let mut decoder = HpackDecoder::default();
    let mut decode = |text: &str| {
        let block = decoder.decode(&bytes(text), 1 << 14).unwrap();
        (block.is_malformed, said(&block))
    };
    // The name `a` with a line break, then the name by its index with `b`, not indexed and indexed, then the invalid entry.
    assert!(decode("4001 61 01 0a").0);
    assert_eq!(decode("0f 2f 01 62"), (false, "a b\n".into()));
    assert_eq!(decode("7e 01 62"), (false, "a b\n".into()));
    assert!(decode("bf").0, "the whole entry is invalid");
    assert_eq!(decode("be"), (false, "a b\n".into()));
    // The same for a status.
    assert!(decode("48 01 0a").0);
    assert_eq!(decode("7e 03 323031"), (false, ":status 201\n".into()));
    // An upper-case name, by its index.
    assert!(decode("4001 41 01 61").0);
    assert!(decode("7e 01 62").0);
    assert_eq!(decode("88"), (false, ":status 200\n".into()));
}

/// A header list beyond the limit is not kept, but its entries are in the table.
#[test]
fn long_lists_are_cut() {
    let mut decoder = HpackDecoder::default();
    let block = decoder.decode(&bytes("4001 62 01 63 4001 64 01 65"), 40).unwrap();
    assert!(block.is_too_long);
    assert_eq!(said(&block), "b c\n");
    assert_eq!(said(&decoder.decode(&bytes("be bf"), 1 << 14).unwrap()), "d e\nb c\n");
}

/// The map has its own maximum number of names, whatever limit is configured.
#[test]
fn more_names_than_can_be_kept_are_too_many() {
    let mut block = Vec::new();
    for number in 0..40_000 {
        let name = format!("{number:05}");
        block.extend_from_slice(&[&[0, 5][..], name.as_bytes(), &[0]].concat());
    }
    let block = HpackDecoder::default().decode(&block, usize::MAX).unwrap();
    assert!(block.is_too_long && !block.headers.is_empty());
}

fn encode(encoder: &mut HpackEncoder, headers: &HeaderMap) -> Vec<u8> {
    let mut out = Vec::new();
    encoder.begin(&mut out, &Method::POST, false, "orders", "/shop.Orders/Get");
    for (name, value) in headers {
        encoder.header(&mut out, name, value).unwrap();
    }
    out
}

/// Fields of every request take one byte each from the second request on. Fields that always change are never indexed.
#[test]
fn repeated_fields_are_indexed() {
    let mut encoder = HpackEncoder::default();
    let request = |id: usize| {
        HeaderMap::from_iter([
            (http::header::TE, HeaderValue::from_static("trailers")),
            (http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc")),
            (HeaderName::from_static("tenant"), HeaderValue::from_static("blue")),
            (HeaderName::from_static("id"), HeaderValue::from(100_000 + id)),
        ])
    };
    let lens: Vec<usize> = (0..200).map(|id| encode(&mut encoder, &request(id)).len()).collect();
    let id = 1 + 3 + 7;
    let tenant = 1 + 7 + 5;
    assert_eq!(lens[1], 6 + tenant + id);
    assert!(lens[2..].iter().all(|len| *len == 7 + id), "{lens:?}");
}

/// Values marked as sensitive, and credentials in any case, are literals that are never indexed (RFC 7541, section 7.1.3).
#[test]
fn secrets_are_never_indexed() {
    let mut encoder = HpackEncoder::default();
    let mut token = HeaderValue::from_static("secret");
    let credentials = [header::AUTHORIZATION, header::COOKIE, header::PROXY_AUTHORIZATION];
    for name in [&credentials[..], &[HeaderName::from_static("token"), header::CONTENT_TYPE]].concat() {
        token.set_sensitive(!credentials.contains(&name));
        let headers = HeaderMap::from_iter([(name.clone(), token.clone())]);
        for _ in 0..3 {
            let out = encode(&mut encoder, &headers);
            let place = out.windows(6).position(|text| text == b"secret").expect("it is said in full");
            // The name is in the static table, at an index of two bytes; or it is written in full.
            let first = if name == "token" { place - 1 - "token".len() - 2 } else { place - 1 - 2 };
            assert_eq!(out[first] & 0xf0, 0x10, "{name}: literal, never indexed");
            let block = HpackDecoder::default().decode(&out[first..], 1 << 14).unwrap();
            assert_eq!(said(&block), format!("{name} secret\n"));
        }
    }
}

/// The size of a table changes before the first field of a block only (RFC 7541, section 4.2), and never above the limit.
#[test]
fn table_size_changes_at_the_start_of_a_block_only() {
    for (text, is_block) in [
        ("20 88", true),
        ("20 3fe11f 88", true),
        ("3fe21f", false),
        ("88 20", false),
        ("4001 62 01 63 3fe101", false),
        ("0001 62 01 63 3fe101", false),
        ("20 88 3fe101", false),
    ] {
        assert_eq!(HpackDecoder::default().decode(&bytes(text), 1 << 14).is_some(), is_block, "{text}");
    }
}

/// Fields that concern a connection of HTTP/1 make a response malformed (RFC 9113, section 8.2.2), also when they are indexed.
#[test]
fn connection_specific_fields_are_malformed() {
    for (name, value, is_malformed) in [
        ("connection", "close", true),
        ("keep-alive", "timeout=5", true),
        ("proxy-connection", "x", true),
        ("transfer-encoding", "chunked", true),
        ("upgrade", "h3", true),
        ("te", "gzip", true),
        ("te", "trailers", false),
        ("server", "x", false),
    ] {
        let lens = [name.len() as u8, value.len() as u8];
        let field = [&[0x40, lens[0]], name.as_bytes(), &[lens[1]], value.as_bytes()].concat();
        let mut decoder = HpackDecoder::default();
        for block in [&field[..], &[0xbe]] {
            let block = decoder.decode(block, 1 << 14).unwrap();
            assert_eq!(block.is_malformed, is_malformed, "{name}: {value}");
        }
    }
}

proptest! {
    /// A decoder reads all encoded fields, whatever they are and whatever table sizes the peer sets.
    #[test]
    fn what_is_written_is_read(
        requests in prop::collection::vec(
            (
                prop::collection::vec((0..12_u8, prop::collection::vec(32..127_u8, 0..300)), 0..8),
                prop::option::of(0..5000_usize),
                any::<bool>(),
            ),
            1..30,
        )
    ) {
        let (mut encoder, mut decoder) = (HpackEncoder::default(), HpackDecoder::default());
        for (fields, size, is_sent) in requests {
            if let Some(size) = size {
                encoder.set_max_size(size);
            }
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                let value = HeaderValue::from_bytes(&value[..value.len() / (1 + usize::from(name % 3))]).unwrap();
                headers.append(HeaderName::try_from(format!("name-{name}")).unwrap(), value);
            }
            let block = encode(&mut encoder, &headers);
            let size = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + 32;
            // `:method`, `:scheme`, `:path` and `:authority` are 187 bytes.
            prop_assert_eq!(encoder.list_size(), 187 + headers.iter().map(size).sum::<usize>());
            if !is_sent {
                encoder.abandon();
                continue;
            }
            let block = decoder.decode(&block, usize::MAX).unwrap();
            prop_assert_eq!(block.headers, headers);
        }
    }

    /// No input makes a decoder panic.
    #[test]
    fn garbage_is_survived(blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..10)) {
        let mut decoder = HpackDecoder::default();
        for block in blocks {
            let _ = decoder.decode(&block, 1 << 10);
        }
    }
}
