//! Route fields that gRPC clients ignore silently.
//!
//! The parser warns about fields that it decodes and does not use. The fields here are not part of
//! `evenkeel-proto`, so decoding skips them as unknown. They are found by field number in the encoded
//! resource.

use evenkeel_proto::prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use evenkeel_xds::resource::ResourceType;

const MIRROR: &str = "is ignored: gRPC clients mirror no calls";
const HEADERS: &str = "is ignored: gRPC clients change no headers";
const REWRITE: &str = "is ignored: gRPC clients rewrite neither paths nor authorities";

/// Message of a route config: its ignored fields, and the messages nested in it.
struct RouteMessage {
    ignored: &'static [(u32, &'static str, &'static str)],
    within: &'static [(u32, &'static str, &'static RouteMessage)],
}

static CONFIG: RouteMessage = RouteMessage {
    ignored: &[
        (4, "response_headers_to_add", HEADERS),
        (5, "response_headers_to_remove", HEADERS),
        (6, "request_headers_to_add", HEADERS),
        (8, "request_headers_to_remove", HEADERS),
        (13, "request_mirror_policies", MIRROR),
    ],
    within: &[(2, "virtual_hosts", &HOST)],
};

static HOST: RouteMessage = RouteMessage {
    ignored: &[
        (7, "request_headers_to_add", HEADERS),
        (13, "request_headers_to_remove", HEADERS),
        (10, "response_headers_to_add", HEADERS),
        (11, "response_headers_to_remove", HEADERS),
        (22, "request_mirror_policies", MIRROR),
    ],
    within: &[(3, "routes", &ROUTE)],
};

static ROUTE: RouteMessage = RouteMessage {
    ignored: &[
        (9, "request_headers_to_add", HEADERS),
        (12, "request_headers_to_remove", HEADERS),
        (10, "response_headers_to_add", HEADERS),
        (11, "response_headers_to_remove", HEADERS),
    ],
    within: &[(2, "route", &ACTION)],
};

static ACTION: RouteMessage = RouteMessage {
    ignored: &[
        (5, "prefix_rewrite", REWRITE),
        (6, "host_rewrite_literal", REWRITE),
        (29, "host_rewrite_header", REWRITE),
        (30, "request_mirror_policies", MIRROR),
        (32, "regex_rewrite", REWRITE),
    ],
    within: &[(3, "weighted_clusters", &WEIGHTED)],
};

static WEIGHTED: RouteMessage = RouteMessage { ignored: &[], within: &[(1, "clusters", &SHARE)] };

static SHARE: RouteMessage = RouteMessage {
    ignored: &[
        (4, "request_headers_to_add", HEADERS),
        (9, "request_headers_to_remove", HEADERS),
        (5, "response_headers_to_add", HEADERS),
        (6, "response_headers_to_remove", HEADERS),
    ],
    within: &[],
};

/// Returns the ignored fields of a resource, each with its path and the reason. Only listeners and route
/// configs have any.
pub(super) fn ignored_fields(kind: ResourceType, bytes: &[u8]) -> Vec<(String, &'static str)> {
    let mut found = Vec::new();
    match kind {
        ResourceType::RouteConfig => walk(&CONFIG, bytes, "", &mut found),
        ResourceType::Listener => {
            // Field path from the listener to the inline route config of its HttpConnectionManager.
            let config = [19, 1, 2, 4].iter().try_fold(bytes, |bytes, number| field(bytes, *number));
            if let Some(config) = config {
                walk(&CONFIG, config, "api_listener.api_listener.route_config", &mut found);
            }
        }
        ResourceType::Cluster | ResourceType::Endpoints => {}
    }
    found
}

fn walk(message: &RouteMessage, bytes: &[u8], path: &str, found: &mut Vec<(String, &'static str)>) {
    let at = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let fields = fields(bytes);
    for (number, name, reason) in message.ignored {
        if fields.iter().any(|(is, _)| is == number) {
            found.push((at(name), *reason));
        }
    }
    for (number, name, within) in message.within {
        // The only two message fields that are not repeated.
        let is_single = matches!(*name, "route" | "weighted_clusters");
        for (i, (_, bytes)) in fields.iter().filter(|(is, _)| is == number).enumerate() {
            let path = if is_single { at(name) } else { format!("{}[{i}]", at(name)) };
            walk(within, bytes, &path, found);
        }
    }
}

/// Returns the first field with this number.
fn field(bytes: &[u8], number: u32) -> Option<&[u8]> {
    fields(bytes).into_iter().find(|(is, _)| *is == number).map(|(_, bytes)| bytes)
}

/// Returns the fields of an encoded message with their bytes, which are empty for scalars. Malformed input
/// ends the list: the parser has rejected it already.
fn fields(mut rest: &[u8]) -> Vec<(u32, &[u8])> {
    let mut fields = Vec::new();
    while let Ok((wire_type, number)) = decode_key(&mut rest).map(|(number, wire_type)| (wire_type, number)) {
        if wire_type == WireType::LengthDelimited {
            let length = decode_varint(&mut rest).ok().and_then(|length| usize::try_from(length).ok());
            let Some((value, after)) = length.and_then(|length| rest.split_at_checked(length)) else { break };
            fields.push((number, value));
            rest = after;
        } else {
            if skip_field(wire_type, number, &mut rest, DecodeContext::default()).is_err() {
                break;
            }
            fields.push((number, &[][..]));
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes a length-delimited field.
    fn encoded(number: u32, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        evenkeel_proto::prost::encoding::encode_key(number, WireType::LengthDelimited, &mut out);
        evenkeel_proto::prost::encoding::encode_varint(bytes.len() as u64, &mut out);
        out.extend_from_slice(bytes);
        out
    }

    #[test]
    fn fields_are_found_by_their_numbers() {
        let share = encoded(1, &encoded(4, b""));
        let action = [encoded(30, b"x"), encoded(3, &share), encoded(5, b"/")].concat();
        let route = [encoded(2, &action), encoded(12, b"h")].concat();
        let host = [encoded(3, b""), encoded(3, &route), encoded(7, b"")].concat();
        let config = [encoded(1, b"name"), encoded(2, &host), encoded(6, b"")].concat();
        let paths = |kind, bytes: &[u8]| -> Vec<String> {
            ignored_fields(kind, bytes).into_iter().map(|(path, _)| path).collect()
        };
        let expected = [
            "request_headers_to_add",
            "virtual_hosts[0].request_headers_to_add",
            "virtual_hosts[0].routes[1].request_headers_to_remove",
            "virtual_hosts[0].routes[1].route.prefix_rewrite",
            "virtual_hosts[0].routes[1].route.request_mirror_policies",
            "virtual_hosts[0].routes[1].route.weighted_clusters.clusters[0].request_headers_to_add",
        ];
        assert_eq!(paths(ResourceType::RouteConfig, &config), expected);
        let listener = encoded(19, &encoded(1, &encoded(2, &encoded(4, &config))));
        let within = expected.map(|path| format!("api_listener.api_listener.route_config.{path}"));
        assert_eq!(paths(ResourceType::Listener, &listener), within);
        assert_eq!(paths(ResourceType::Cluster, &config), [""; 0]);
    }

    #[test]
    fn arbitrary_bytes_end_the_list() {
        for bytes in
            [&b"\xff"[..], b"\x0a\xff", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x0b", b"\x08"]
        {
            assert!(ignored_fields(ResourceType::RouteConfig, bytes).is_empty());
        }
    }
}
