//! An endpoint as nearly all of them come: an IP address with its port, perhaps its health and its weight.
//!
//! Ten thousand of these are read before the first call goes out, and decoding each into its messages takes longer than
//! all that is done with it. So it is read where it stands, without allocating. Whatever else is in the bytes, or is wrong
//! with them, makes it no plain endpoint: then it is decoded, and there is said what there is to say. So nothing may be
//! read here that decoding would refuse, or would read as something else.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// `LbEndpoint.endpoint`: a field's number with the kind of value that it has, as it stands before the value.
const ENDPOINT: u8 = 1 << 3 | MESSAGE;

/// `LbEndpoint.health_status`
const HEALTH_STATUS: u8 = 2 << 3 | NUMBER;

/// `LbEndpoint.load_balancing_weight`
const WEIGHT: u8 = 4 << 3 | MESSAGE;

/// `UInt32Value.value`
const VALUE: u8 = 1 << 3 | NUMBER;

/// `Endpoint.address`
const ADDRESS: u8 = 1 << 3 | MESSAGE;

/// `Address.socket_address`
const SOCKET_ADDRESS: u8 = 1 << 3 | MESSAGE;

/// `SocketAddress.protocol`
const PROTOCOL: u8 = 1 << 3 | NUMBER;

/// `SocketAddress.address`
const IP: u8 = 2 << 3 | MESSAGE;

/// `SocketAddress.port_value`
const PORT: u8 = 3 << 3 | NUMBER;

/// A number of as many bytes as it needs.
const NUMBER: u8 = 0;

/// A message or a text, after its length.
const MESSAGE: u8 = 2;

/// What there is to know about a plain endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlainEndpoint {
    pub(super) address: SocketAddr,
    /// As in the message: it may also be one that says not to call.
    pub(super) health_status: i32,
    /// Never 0.
    pub(super) weight: Option<u32>,
}

/// Reads an `LbEndpoint`; `None` if it is not plain, or not right.
pub(super) fn read(mut bytes: &[u8]) -> Option<PlainEndpoint> {
    let (mut endpoint, mut health_status, mut weight) = (None, None, None);
    while let Some(tag) = next(&mut bytes) {
        match tag {
            ENDPOINT if endpoint.is_none() => endpoint = Some(message(&mut bytes)?),
            HEALTH_STATUS if health_status.is_none() => health_status = Some(number(&mut bytes)?),
            WEIGHT if weight.is_none() => weight = Some(wrapped(message(&mut bytes)?)?),
            _ => return None,
        }
    }
    let address = socket_address(only(only(endpoint?, ADDRESS)?, SOCKET_ADDRESS)?)?;
    let health_status = i32::try_from(health_status.unwrap_or(0)).ok()?;
    Some(PlainEndpoint { address, health_status, weight })
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
    // TCP
    (protocol.unwrap_or(0) == 0).then_some(SocketAddr::new(ip_address(ip?)?, port))
}

/// The number in a `UInt32Value`, where it is not 0.
fn wrapped(mut bytes: &[u8]) -> Option<u32> {
    let tag = next(&mut bytes)?;
    let value = number(&mut bytes)?;
    (tag == VALUE && value > 0 && bytes.is_empty()).then_some(value)
}

/// The value of the only field of a message.
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

/// Takes a message or a text. Those of a plain endpoint are short, and so their length is one byte.
fn message<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = next(bytes).filter(|length| *length < 0x80)?;
    let (message, rest) = bytes.split_at_checked(usize::from(length))?;
    *bytes = rest;
    Some(message)
}

/// Takes a number of 32 bits: in each byte seven of them, the lowest first, and whether more follow.
fn number(bytes: &mut &[u8]) -> Option<u32> {
    let mut number = 0;
    for shift in [0, 7, 14, 21, 28] {
        let byte = next(bytes)?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return u32::try_from(number).ok();
        }
    }
    None
}

/// The address that a text is. Most are IPv4; the standard library is asked about all others.
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

/// Takes a number up to 255. No digit follows a zero at its start: to some that would mean that it is octal.
fn octet(text: &mut &[u8]) -> Option<u32> {
    let digit = |byte: &u8| u32::from(byte & 0xf);
    let (octet, rest) = match text {
        [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', rest @ ..] => {
            (digit(a) * 100 + digit(b) * 10 + digit(c), rest)
        }
        [a @ b'1'..=b'9', b @ b'0'..=b'9', rest @ ..] => (digit(a) * 10 + digit(b), rest),
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
    use proptest::prelude::*;
    use proptest::sample::{Index, select};
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;
    use testkit::resources::endpoint;

    use super::*;

    /// Addresses, and texts that are nearly such.
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

    /// What decoding finds, of an endpoint with which nothing is wrong and about which no more is said.
    fn decoded(bytes: &[u8]) -> Option<PlainEndpoint> {
        let LbEndpoint { health_status, metadata: None, load_balancing_weight: weight, host_identifier } =
            LbEndpoint::decode(bytes).ok()?
        else {
            return None;
        };
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

    /// Who writes the fields in another order, or those that need not be there, says the same.
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
            LbEndpoint { metadata: Some(Metadata::default()), ..known.clone() },
            LbEndpoint { health_status: -1, ..known.clone() },
            named,
            at("10.0.0.1", 0),
            at("10.0.0.1", 65_536),
        ] {
            assert_eq!(read(&message.encode_to_vec()), None, "{message:?}");
        }
        let bytes = known.encode_to_vec();
        assert!(read(&bytes).is_some());
        // Twice the same, a field that nobody knows, a weight that does not fit.
        for more in [&bytes, &[8 << 3, 1][..], &[WEIGHT, 6, VALUE, 0x80, 0x80, 0x80, 0x80, 0x10]] {
            assert_eq!(read(&[&bytes, more].concat()), None, "{more:?}");
        }
        for end in 0..bytes.len() {
            assert_eq!(read(bytes.split_at(end).0), None, "{end} bytes");
        }
    }

    /// Decoding takes the last of several, but refuses one before it that is no text.
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

    /// The standard library says what an address is.
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

    /// Endpoints as they stand in a resource: half of them plain, the others odd in one way or another.
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

    /// These fields in any order; now and then one is there twice, or one that nobody expects.
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

    /// A message or a text with its length, which is rarely a lie.
    fn within(field: u64, value: BoxedStrategy<Vec<u8>>) -> BoxedStrategy<Vec<u8>> {
        let lie = prop_oneof![100 => Just(0), 1 => -2..3_i64];
        let value = (value, lie).prop_flat_map(|(value, lie)| {
            let length = (value.len() as u64).saturating_add_signed(lie);
            (varint(Just(length)), Just(value))
        });
        let tag = varint(Just(field << 3 | 2));
        (tag, value).prop_map(|(tag, (length, value))| [tag, length, value].concat()).boxed()
    }

    /// A number, rarely with more bytes than it needs.
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

        /// As control planes write it, nothing that is plain is left to decoding.
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

    /// Otherwise the tests with these would say little.
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
