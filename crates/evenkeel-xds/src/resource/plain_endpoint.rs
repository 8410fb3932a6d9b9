//! Fast parser for the common form of an endpoint: IP address and port, with optional health, weight and
//! metadata.
//!
//! Ten thousand of these are parsed before the first call is sent, and decoding the messages dominates that
//! cost. This parser reads the bytes in place without allocation. It returns `None` for any other or invalid
//! contents, which are then decoded and validated. It must not accept bytes that the decoder rejects or
//! decodes to another result.
//!
//! Every endpoint of Istio has metadata, of which only `envoy.lb` is used. Other metadata is validated and
//! skipped in place if it consists of maps of texts, numbers and booleans. Endpoints do not store it, since a
//! slice would add 32 bytes to each. The cache keeps the bytes of the resource, in which the same walk finds
//! it again.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use evenkeel_core::HASH_KEY;

/// Key of the field `LbEndpoint.endpoint`: the field number and the wire type.
const ENDPOINT: u8 = 1 << 3 | MESSAGE;

/// Key of the field `LbEndpoint.health_status`.
const HEALTH_STATUS: u8 = 2 << 3 | NUMBER;

/// Key of the field `LbEndpoint.metadata`.
const METADATA: u8 = 3 << 3 | MESSAGE;

/// Key of the field `LbEndpoint.load_balancing_weight`.
const WEIGHT: u8 = 4 << 3 | MESSAGE;

/// Key of the field `UInt32Value.value`.
const VALUE: u8 = 1 << 3 | NUMBER;

/// Key of the field `Endpoint.address`.
const ADDRESS: u8 = 1 << 3 | MESSAGE;

/// Key of the field `Address.socket_address`.
const SOCKET_ADDRESS: u8 = 1 << 3 | MESSAGE;

/// Key of the field `SocketAddress.protocol`.
const PROTOCOL: u8 = 1 << 3 | NUMBER;

/// Key of the field `SocketAddress.address`.
const IP: u8 = 2 << 3 | MESSAGE;

/// Key of the field `SocketAddress.port_value`.
const PORT: u8 = 3 << 3 | NUMBER;

/// Key of the map fields `Metadata.filter_metadata` and `Struct.fields`.
const MAP_ENTRY: u8 = 1 << 3 | MESSAGE;

/// Key of the key field in a map entry.
const MAP_KEY: u8 = 1 << 3 | MESSAGE;

/// Key of the value field in a map entry.
const MAP_VALUE: u8 = 2 << 3 | MESSAGE;

/// Key of the field `Value.null_value`.
const NULL_VALUE: u8 = 1 << 3 | NUMBER;

/// Key of the field `Value.number_value`.
const NUMBER_VALUE: u8 = 2 << 3 | FIXED_64;

/// Key of the field `Value.string_value`.
const STRING_VALUE: u8 = 3 << 3 | MESSAGE;

/// Key of the field `Value.bool_value`.
const BOOL_VALUE: u8 = 4 << 3 | NUMBER;

/// Wire type of a fixed 64-bit value.
const FIXED_64: u8 = 1;

/// Wire type of a varint.
const NUMBER: u8 = 0;

/// Wire type of a length-delimited value.
const MESSAGE: u8 = 2;

/// Contents of a plain endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlainEndpoint {
    pub(super) address: SocketAddr,
    /// Status as in the message, including those of unusable endpoints.
    pub(super) health_status: i32,
    /// Weight of the endpoint, never 0.
    pub(super) weight: Option<u32>,
}

/// Parses an `LbEndpoint`. Returns `None` if it is not plain or not valid.
pub(super) fn read(mut bytes: &[u8]) -> Option<PlainEndpoint> {
    let (mut endpoint, mut health_status, mut weight, mut has_metadata) = (None, None, None, false);
    while let Some(tag) = next(&mut bytes) {
        match tag {
            // A repeated field is not plain: the decoder merges messages and keeps the last number.
            ENDPOINT if endpoint.is_none() => endpoint = Some(message(&mut bytes)?),
            HEALTH_STATUS if health_status.is_none() => health_status = Some(number(&mut bytes)?),
            WEIGHT if weight.is_none() => weight = Some(wrapped(message(&mut bytes)?)?),
            // The decoder merges repeated metadata, so a second one is not plain.
            METADATA if !has_metadata => {
                skip_metadata(long_message(&mut bytes)?)?;
                has_metadata = true;
            }
            _ => return None,
        }
    }
    let address = socket_address(only(only(endpoint?, ADDRESS)?, SOCKET_ADDRESS)?)?;
    let health_status = i32::try_from(health_status.unwrap_or(0)).ok()?;
    Some(PlainEndpoint { address, health_status, weight })
}

/// Validates metadata without effect. `None` if it has an effect or needs the decoder.
fn skip_metadata(mut bytes: &[u8]) -> Option<()> {
    let (namespace_in_use, _) = HASH_KEY;
    while let Some(tag) = next(&mut bytes) {
        let (namespace, mut fields) = (tag == MAP_ENTRY).then(|| map_entry(&mut bytes))??;
        // May contain the hash key, which only the decoder reads.
        if namespace == namespace_in_use.as_bytes() {
            return None;
        }
        while let Some(tag) = next(&mut fields) {
            let (_, value) = (tag == MAP_ENTRY).then(|| map_entry(&mut fields))??;
            skip_value(value)?;
        }
    }
    Some(())
}

/// Reads a map entry. It has a key and a value, each at most once.
fn map_entry<'a>(bytes: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let mut entry = long_message(bytes)?;
    let (mut key, mut value) = (None, None);
    while let Some(tag) = next(&mut entry) {
        match tag {
            MAP_KEY if key.is_none() => key = Some(text(&mut entry)?),
            MAP_VALUE if value.is_none() => value = Some(long_message(&mut entry)?),
            _ => return None,
        }
    }
    Some((key.unwrap_or_default(), value.unwrap_or_default()))
}

/// Validates a `google.protobuf.Value` of a scalar kind.
fn skip_value(mut bytes: &[u8]) -> Option<()> {
    match next(&mut bytes) {
        None => {}
        Some(STRING_VALUE) => _ = text(&mut bytes)?,
        Some(BOOL_VALUE | NULL_VALUE) => _ = number(&mut bytes)?,
        Some(NUMBER_VALUE) => bytes = bytes.split_at_checked(8)?.1,
        Some(_) => return None,
    }
    bytes.is_empty().then_some(())
}

fn socket_address(mut bytes: &[u8]) -> Option<SocketAddr> {
    let (mut protocol, mut ip, mut port) = (None, None, None);
    while let Some(tag) = next(&mut bytes) {
        match tag {
            PROTOCOL if protocol.is_none() => protocol = Some(number(&mut bytes)?),
            IP if ip.is_none() => ip = Some(message(&mut bytes)?),
            PORT if port.is_none() => port = Some(number(&mut bytes)?),
            _ => return None,
        }
    }
    let port = u16::try_from(port?).ok().filter(|port| *port > 0)?;
    // Protocol 0 is TCP.
    (protocol.unwrap_or(0) == 0).then_some(SocketAddr::new(ip_address(ip?)?, port))
}

/// Returns the value of a `UInt32Value`, if it is not 0.
fn wrapped(mut bytes: &[u8]) -> Option<u32> {
    let tag = next(&mut bytes)?;
    let value = number(&mut bytes)?;
    // A weight of 0 is an error (VAL-E6), which needs the field path of the thorough reader.
    (tag == VALUE && value > 0 && bytes.is_empty()).then_some(value)
}

/// Returns the value of the only field of a message.
fn only(mut bytes: &[u8], tag: u8) -> Option<&[u8]> {
    let found = next(&mut bytes)?;
    let value = message(&mut bytes)?;
    (found == tag && bytes.is_empty()).then_some(value)
}

fn next(bytes: &mut &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*first)
}

/// Reads a message or a text. Its length must be a varint of one byte, as in any plain endpoint.
fn message<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = next(bytes).filter(|length| *length < 0x80)?;
    let (message, rest) = bytes.split_at_checked(usize::from(length))?;
    *bytes = rest;
    Some(message)
}

/// Reads a length-delimited value of any length.
fn long_message<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(number(bytes)?).ok()?;
    let (message, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(message)
}

/// Reads a text. The decoder rejects invalid UTF-8.
fn text<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    long_message(bytes).filter(|text| std::str::from_utf8(text).is_ok())
}

/// Reads a varint of at most 32 bits.
fn number(bytes: &mut &[u8]) -> Option<u32> {
    let mut number = 0;
    for shift in [0, 7, 14, 21, 28] {
        let byte = next(bytes)?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            // Five bytes have 35 bits; a larger number is not plain.
            return u32::try_from(number).ok();
        }
    }
    None
}

/// Parses an IP address. Most are IPv4. The standard library parses the others.
fn ip_address(text: &[u8]) -> Option<IpAddr> {
    if let Some(ip) = ipv4_address(text) {
        return Some(IpAddr::V4(ip));
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn ipv4_address(mut text: &[u8]) -> Option<Ipv4Addr> {
    let mut bits = octet(&mut text)?;
    for _ in 0..3 {
        next(&mut text).filter(|byte| *byte == b'.')?;
        bits = bits << 8 | octet(&mut text)?;
    }
    text.is_empty().then_some(Ipv4Addr::from_bits(bits))
}

/// Reads an octet. Leading zeros are rejected, because some parsers read them as octal.
fn octet(text: &mut &[u8]) -> Option<u32> {
    let digit = |byte: &u8| u32::from(byte & 0xf);
    let decimal = |number: u32, digit: u32| number.saturating_mul(10).saturating_add(digit);
    let (octet, rest) = match text {
        // Numbers with leading zeros are invalid, as in the standard library.
        [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', rest @ ..] => {
            (decimal(decimal(digit(a), digit(b)), digit(c)), rest)
        }
        [a @ b'1'..=b'9', b @ b'0'..=b'9', rest @ ..] => (decimal(digit(a), digit(b)), rest),
        [a @ b'0'..=b'9', rest @ ..] => (digit(a), rest),
        _ => return None,
    };
    *text = rest;
    (octet <= 255).then_some(octet)
}

#[cfg(test)]
pub(super) mod tests {
    use evenkeel_proto::envoy::config::core::v3::address::Address as AddressKind;
    use evenkeel_proto::envoy::config::core::v3::socket_address::PortSpecifier;
    use evenkeel_proto::envoy::config::core::v3::{Address, Metadata, SocketAddress};
    use evenkeel_proto::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
    use evenkeel_proto::envoy::config::endpoint::v3::{Endpoint, LbEndpoint};
    use evenkeel_proto::prost::Message as _;
    use evenkeel_proto::prost::encoding::encode_varint;
    use evenkeel_proto::prost_types::value::Kind;
    use evenkeel_proto::prost_types::{Struct, Value};
    use proptest::prelude::*;
    use proptest::sample::{Index, select};
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;
    use testkit::resources::endpoint;

    use super::*;

    /// Valid addresses, and texts that resemble one.
    const TEXTS: &[&str] = &[
        "10.0.0.1",
        "0.0.0.0",
        "255.255.255.255",
        "::1",
        "2001:db8::10.0.0.1",
        "1:2:3:4:5:6:7:8",
        "",
        "1",
        "1.2.3",
        "1.2.3.4.5",
        "1.2.3.4.",
        ".1.2.3.4",
        "1..2.3",
        "1.2.3.04",
        "1.2.3.00",
        "1.2.3.256",
        "1.2.3.1000",
        "1.2.3.4 ",
        "+1.2.3.4",
        "1.2.3.4:80",
        "1.2.3.:",
        "1.2./.4",
        "[::1]",
        "::1%eth0",
        "1:2:3:4:5:6:7:8:9",
        "\u{661}.2.3.4",
        "host",
    ];

    /// Returns the decoded form of a valid endpoint that has no further settings.
    fn decoded(bytes: &[u8]) -> Option<PlainEndpoint> {
        let LbEndpoint { health_status, metadata, load_balancing_weight: weight, host_identifier } =
            LbEndpoint::decode(bytes).ok()?;
        if metadata.is_some_and(|metadata| metadata.filter_metadata.contains_key("envoy.lb")) {
            return None;
        }
        let Some(HostIdentifier::Endpoint(endpoint)) = host_identifier else { return None };
        let Some(AddressKind::SocketAddress(socket)) = endpoint.address.clone()?.address else { return None };
        let Some(PortSpecifier::PortValue(port)) = socket.port_specifier else { return None };
        let alone = Endpoint { address: endpoint.address.clone(), ..Endpoint::default() };
        let is_plain = endpoint == alone && socket.protocol == 0 && weight != Some(0) && port != 0;
        let address = SocketAddr::new(socket.address.parse().ok()?, u16::try_from(port).ok()?);
        is_plain.then_some(PlainEndpoint { address, health_status, weight })
    }

    fn plain(address: &str, health_status: i32, weight: Option<u32>) -> PlainEndpoint {
        PlainEndpoint { address: address.parse().unwrap(), health_status, weight }
    }

    fn at(text: &str, port: u32) -> LbEndpoint {
        let socket = SocketAddress {
            address: text.to_owned(),
            port_specifier: Some(PortSpecifier::PortValue(port)),
            ..SocketAddress::default()
        };
        let address = Some(Address { address: Some(AddressKind::SocketAddress(socket)) });
        let endpoint = Endpoint { address, ..Endpoint::default() };
        LbEndpoint { host_identifier: Some(HostIdentifier::Endpoint(endpoint)), ..LbEndpoint::default() }
    }

    #[test]
    fn what_nearly_all_endpoints_are_is_read() {
        let read = |message: LbEndpoint| read(&message.encode_to_vec());
        assert_eq!(read(endpoint("10.0.0.1", 80)), Some(plain("10.0.0.1:80", 0, None)));
        assert_eq!(read(endpoint("2001:DB8::0:1", 1)), Some(plain("[2001:db8::1]:1", 0, None)));
        let full = LbEndpoint {
            health_status: 3,
            load_balancing_weight: Some(u32::MAX),
            ..endpoint("255.255.255.255", u16::MAX)
        };
        assert_eq!(read(full), Some(plain("255.255.255.255:65535", 3, Some(u32::MAX))));
    }

    /// Fields in another order and explicit default values do not change the result.
    #[test]
    fn fields_may_stand_in_any_order() {
        let socket = [&[PORT, 80, PROTOCOL, 0, IP, 7], &b"1.2.3.4"[..]].concat();
        let length = socket.len() as u8;
        let endpoint = [ENDPOINT, length + 4, ADDRESS, length + 2, SOCKET_ADDRESS, length];
        let bytes = [&[WEIGHT, 2, VALUE, 5, HEALTH_STATUS, 1], &endpoint[..], &socket].concat();
        assert_eq!(read(&bytes), Some(plain("1.2.3.4:80", 1, Some(5))));
        assert_eq!(read(&bytes), decoded(&bytes));
    }

    #[test]
    fn whatever_else_there_is_makes_it_not_plain() {
        let known = at("10.0.0.1", 80);
        let mut named = known.clone();
        if let Some(HostIdentifier::Endpoint(endpoint)) = &mut named.host_identifier {
            endpoint.hostname = "host".to_owned();
        }
        for message in [
            LbEndpoint::default(),
            LbEndpoint { load_balancing_weight: Some(0), ..known.clone() },
            LbEndpoint { metadata: Some(metadata("envoy.lb", &[("hash_key", "x")])), ..known.clone() },
            LbEndpoint { health_status: -1, ..known.clone() },
            named,
            at("10.0.0.1", 0),
            at("10.0.0.1", 65_536),
        ] {
            assert_eq!(read(&message.encode_to_vec()), None, "{message:?}");
        }
        let bytes = known.encode_to_vec();
        assert!(read(&bytes).is_some());
        // A repeated field, an unknown field, and a weight above 32 bits.
        for more in [&bytes, &[8 << 3, 1][..], &[WEIGHT, 6, VALUE, 0x80, 0x80, 0x80, 0x80, 0x10]] {
            assert_eq!(read(&[&bytes, more].concat()), None, "{more:?}");
        }
        for end in 0..bytes.len() {
            assert_eq!(read(bytes.split_at(end).0), None, "{end} bytes");
        }
    }

    /// Returns metadata with these texts in one namespace.
    fn metadata(namespace: &str, texts: &[(&str, &str)]) -> Metadata {
        let value = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
        let fields = texts.iter().map(|(key, text)| ((*key).to_owned(), value(text))).collect();
        let filter_metadata = [(namespace.to_owned(), Struct { fields })].into();
        Metadata { filter_metadata, ..Metadata::default() }
    }

    /// Metadata of Istio's endpoints has no effect.
    #[test]
    fn metadata_is_skipped() {
        let mut istio = metadata("istio", &[("workload", "ratings;shop;ratings;v1;Kubernetes")]);
        istio
            .filter_metadata
            .extend(metadata("envoy.transport_socket_match", &[("tlsMode", "istio")]).filter_metadata);
        let long = metadata("istio", &[("workload", &"w".repeat(300)), ("", "")]);
        let kinds = [Kind::NumberValue(1.5), Kind::BoolValue(true), Kind::NullValue(0)];
        let fields = kinds.into_iter().enumerate();
        let fields = fields.map(|(i, kind)| (i.to_string(), Value { kind: Some(kind) })).collect();
        let kinds = Metadata {
            filter_metadata: [("kinds".to_owned(), Struct { fields })].into(),
            ..Metadata::default()
        };
        for metadata in [Metadata::default(), istio, long, kinds] {
            let bytes = LbEndpoint { metadata: Some(metadata), ..at("10.0.0.1", 80) }.encode_to_vec();
            assert_eq!(read(&bytes), Some(plain("10.0.0.1:80", 0, None)));
            assert_eq!(read(&bytes), decoded(&bytes));
        }
    }

    /// The decoder uses the last of several values, but rejects an earlier one with invalid UTF-8.
    #[test]
    fn an_address_that_is_there_twice_is_left_to_decoding() {
        let socket = |first: &[u8]| {
            let socket = [&[IP, first.len() as u8], first, &[IP, 7], b"1.2.3.4", &[PORT, 80]].concat();
            let length = socket.len() as u8;
            let outer = [ENDPOINT, length + 4, ADDRESS, length + 2, SOCKET_ADDRESS, length];
            [&outer[..], &socket].concat()
        };
        let (text, none) = (socket(b"::1"), socket(b"\xff"));
        assert_eq!((read(&text), decoded(&text)), (None, Some(plain("1.2.3.4:80", 0, None))));
        assert_eq!((read(&none), decoded(&none)), (None, None));
    }

    /// The standard library defines valid addresses.
    #[test]
    fn an_address_is_one_for_all() {
        for text in TEXTS {
            assert_eq!(ip_address(text.as_bytes()), text.parse().ok(), "{text}");
            assert_eq!(ipv4_address(text.as_bytes()), text.parse().ok(), "{text}");
        }
        for octet in 0..1_100 {
            for text in [format!("{octet}.1.20.0"), format!("255.0.9.{octet}"), format!("1.{octet:03}.1.1")] {
                assert_eq!(ipv4_address(text.as_bytes()), text.parse().ok(), "{text}");
            }
        }
        assert_eq!(ip_address(b"1.2.3.\xff"), None);
    }

    /// Generates encoded endpoints: half of them plain, the others unusual or invalid.
    pub(in crate::resource) fn endpoints() -> impl Strategy<Value = Vec<u8>> {
        let ip = prop_oneof![
            20 => (0..5_u8).prop_map(|last| format!("10.0.0.{last}")),
            5 => (0..3_u8).prop_map(|last| format!("2001:db8::{last}")),
            5 => any::<IpAddr>().prop_map(|ip| ip.to_string()),
            1 => select(TEXTS).prop_map(ToOwned::to_owned),
            1 => "[0-9.:]{0,16}",
        ];
        let port = prop_oneof![20 => 80..83_u64, 5 => 1..65_536_u64, 1 => odd_number()];
        let protocol = prop_oneof![10 => Just(0), 1 => odd_number()];
        let socket = message(vec![
            mostly(0.1, numbered(1, protocol)),
            mostly(0.98, texts(2, ip)),
            mostly(0.98, numbered(3, port)),
        ]);
        let address = message(vec![mostly(0.98, within(1, socket))]);
        let host = "h{0,200}".boxed();
        let endpoint = message(vec![mostly(0.98, within(1, address)), mostly(0.03, texts(3, host))]);
        let health = prop_oneof![20 => 0..2_u64, 2 => 2..6_u64, 1 => odd_number()];
        let weight = prop_oneof![
            20 => 1..300_u64,
            1 => Just(0),
            1 => Just(u64::from(u32::MAX)),
            1 => odd_number()
        ];
        let whole = message(vec![
            mostly(0.98, within(1, endpoint)),
            mostly(0.5, numbered(2, health)),
            mostly(0.4, within(3, any_metadata())),
            mostly(0.5, within(4, message(vec![mostly(0.95, numbered(1, weight))]))),
        ]);
        let change = (any::<Index>(), any::<u8>(), 0..3_u8);
        (whole, prop::option::weighted(0.1, change)).prop_map(|(mut bytes, change)| {
            if let Some((at, byte, how)) = change
                && !bytes.is_empty()
            {
                let at = at.index(bytes.len());
                match how {
                    0 => drop(bytes.splice(at..=at, [byte])),
                    1 => bytes.insert(at, byte),
                    _ => bytes.truncate(at),
                }
            }
            bytes
        })
    }

    /// Metadata of all kinds: as Istio has it, with a hash key, with nested values, and malformed.
    fn any_metadata() -> BoxedStrategy<Vec<u8>> {
        let text = prop_oneof![20 => "[a-z;]{0,9}", 1 => "w{120,200}"].prop_map(String::into_bytes);
        let text = prop_oneof![50 => text, 1 => Just(vec![b'a', 0xff])].boxed();
        let eight = prop::collection::vec(any::<u8>(), 8);
        let value = prop_oneof![
            20 => within(3, text.clone()),
            2 => eight.prop_map(|bytes| [vec![2 << 3 | 1], bytes].concat()),
            2 => numbered(4, prop_oneof![Just(1), odd_number()]),
            1 => numbered(1, prop_oneof![Just(0), odd_number()]),
            1 => within(5, Just(Vec::new()).boxed()),
            1 => within(6, Just(Vec::new()).boxed()),
        ];
        let map = |key: BoxedStrategy<Vec<u8>>, value: BoxedStrategy<Vec<u8>>, most: usize| {
            let entry = message(vec![mostly(0.98, within(1, key)), mostly(0.98, within(2, value))]);
            prop::collection::vec(within(1, entry), 0..=most).prop_map(|all| all.concat()).boxed()
        };
        let key = prop_oneof![9 => text.clone(), 1 => Just(b"hash_key".to_vec())].boxed();
        let fields = map(key, message(vec![mostly(0.98, value.boxed())]), 2);
        let namespace = prop_oneof![9 => text, 1 => Just(b"envoy.lb".to_vec())].boxed();
        let typed = mostly(0.02, within(2, Just(Vec::new()).boxed()));
        (map(namespace, fields, 2), typed).prop_map(|(plain, typed)| [plain, typed].concat()).boxed()
    }

    /// Generates a message with these fields in any order, rarely with a repeated or unknown field.
    fn message(fields: Vec<BoxedStrategy<Vec<u8>>>) -> BoxedStrategy<Vec<u8>> {
        let again = prop::option::weighted(0.03, (fields.clone(), any::<Index>()));
        let odd = (1..9_u8, 0..6_u8, prop::collection::vec(0..4_u8, 0..5));
        let odd = odd.prop_map(|(field, kind, rest)| [vec![field << 3 | kind], rest].concat());
        (fields, again, mostly(0.02, odd.boxed()))
            .prop_map(|(mut fields, again, odd)| {
                fields.extend(again.map(|(again, one)| one.get(&again).clone()));
                fields.push(odd);
                fields
            })
            .prop_shuffle()
            .prop_map(|fields| fields.concat())
            .boxed()
    }

    fn mostly(share: f64, field: BoxedStrategy<Vec<u8>>) -> BoxedStrategy<Vec<u8>> {
        prop::option::weighted(share, field).prop_map(Option::unwrap_or_default).boxed()
    }

    fn odd_number() -> BoxedStrategy<u64> {
        let edges = [0, 127, 128, 65_535, 65_536, u64::from(u32::MAX), 1 << 32, (1 << 32) + 1, u64::MAX];
        prop_oneof![select(edges.to_vec()), any::<u32>().prop_map(u64::from), any::<u64>()].boxed()
    }

    fn numbered(field: u64, value: impl Strategy<Value = u64> + 'static) -> BoxedStrategy<Vec<u8>> {
        (varint(Just(field << 3)), varint(value)).prop_map(|(tag, value)| [tag, value].concat()).boxed()
    }

    fn texts(field: u64, value: impl Strategy<Value = String> + 'static) -> BoxedStrategy<Vec<u8>> {
        within(field, value.prop_map(String::into_bytes).boxed())
    }

    /// Returns a length-delimited field, rarely with an invalid length.
    fn within(field: u64, value: BoxedStrategy<Vec<u8>>) -> BoxedStrategy<Vec<u8>> {
        let lie = prop_oneof![100 => Just(0), 1 => -2..3_i64];
        let value = (value, lie).prop_flat_map(|(value, lie)| {
            let length = (value.len() as u64).saturating_add_signed(lie);
            (varint(Just(length)), Just(value))
        });
        let tag = varint(Just(field << 3 | 2));
        (tag, value).prop_map(|(tag, (length, value))| [tag, length, value].concat()).boxed()
    }

    /// Returns a varint, rarely with more bytes than it needs.
    fn varint(value: impl Strategy<Value = u64>) -> impl Strategy<Value = Vec<u8>> {
        (value, prop_oneof![100 => Just(0), 1 => 1..4_usize]).prop_map(|(value, more)| {
            let mut bytes = Vec::new();
            encode_varint(value, &mut bytes);
            if more > 0 {
                *bytes.last_mut().unwrap() |= 0x80;
                bytes.extend(vec![0x80; more - 1]);
                bytes.push(0);
            }
            bytes
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn what_is_read_is_what_decoding_finds(bytes in endpoints()) {
            if let Some(plain) = read(&bytes) {
                prop_assert_eq!(Some(plain), decoded(&bytes));
            }
        }

        /// Plain endpoints in the form of control planes never need the decoder.
        #[test]
        fn what_is_plain_is_read(bytes in endpoints()) {
            if let Some(plain) = decoded(&bytes).filter(|plain| plain.health_status >= 0) {
                let known = at(&plain.address.ip().to_string(), plain.address.port().into());
                let PlainEndpoint { health_status, weight, .. } = plain;
                let message = LbEndpoint { health_status, load_balancing_weight: weight, ..known };
                prop_assert_eq!(read(&message.encode_to_vec()), Some(plain));
            }
        }

        #[test]
        fn bytes_are_no_endpoint(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assert!(read(&bytes).is_none_or(|plain| decoded(&bytes) == Some(plain)));
        }
    }

    /// Guards the generator: the properties above need both kinds of endpoints.
    #[test]
    fn some_are_plain_and_some_are_not() {
        let (mut runner, endpoints) = (TestRunner::deterministic(), endpoints());
        let all: Vec<_> =
            (0..1_000).map(|_| endpoints.new_tree(&mut runner).expect("bytes").current()).collect();
        let plain = all.iter().filter(|bytes| read(bytes).is_some()).count();
        let decoded = all.iter().filter(|bytes| LbEndpoint::decode(&***bytes).is_ok()).count();
        assert!((300..800).contains(&plain), "{plain} of 1000");
        assert!((plain + 50..950).contains(&decoded), "{decoded} of 1000");
    }
}
