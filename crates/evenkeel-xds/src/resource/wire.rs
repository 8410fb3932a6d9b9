//! Checks of an encoded message before it is decoded.
//!
//! An empty list element takes two bytes on the wire and hundreds in memory. The elements are therefore
//! counted first, without allocation. A resource with a list above the limit is rejected, so its memory use
//! stays bounded.

use evenkeel_proto::prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use crate::resource::RejectedResource;
use crate::{FieldPath, ValidationErrors, XdsLimits};

/// Maximum number of elements of a list, over all its occurrences in a message.
pub(super) struct ListLimit {
    /// Name of the elements for the error text.
    of: &'static str,
    /// Field that the error names.
    field: &'static str,
    /// Field numbers that lead to the list.
    path: &'static [u32],
    limit: usize,
}

/// Maximum average number of parts of one kind, such as header matchers, per route or endpoint.
const MAX_NESTING: usize = 16;

/// Returns the limits of a `RouteConfiguration`.
pub(super) fn route_limits(limits: &XdsLimits) -> [ListLimit; 5] {
    let (field, limit) = ("virtual_hosts", limits.routes);
    let parts = limit.saturating_mul(MAX_NESTING);
    [
        ListLimit { of: "routes", field, path: &[2, 3], limit },
        ListLimit { of: "virtual hosts", field, path: &[2], limit },
        ListLimit { of: "header matchers", field, path: &[2, 3, 1, 6], limit: parts },
        ListLimit { of: "weighted clusters", field, path: &[2, 3, 2, 3, 1], limit: parts },
        ListLimit { of: "hash policies", field, path: &[2, 3, 2, 15], limit: parts },
    ]
}

/// Returns the limits of a `ClusterLoadAssignment`.
pub(super) fn endpoint_limits(limits: &XdsLimits) -> [ListLimit; 4] {
    let (field, limit) = ("endpoints", limits.endpoints);
    let parts = limit.saturating_mul(MAX_NESTING);
    [
        ListLimit { of: "endpoints", field, path: &[2, 2], limit },
        ListLimit { of: "localities", field, path: &[2], limit },
        ListLimit { of: "additional addresses", field, path: &[2, 2, 1, 4], limit: parts },
        ListLimit { of: "drop categories", field: "policy", path: &[4, 2], limit },
    ]
}

/// Returns the field and the error of the first list above its limit. `within` holds the field numbers that
/// lead from `bytes` to the message with the lists.
pub(super) fn exceeded_limit(
    bytes: &[u8],
    within: &[u32],
    lists: &[ListLimit],
) -> Option<(&'static str, String)> {
    // An element takes at least two bytes, so most resources are too short to exceed a limit.
    let most = bytes.len() / 2;
    lists.iter().filter(|list| list.limit < most).find_map(|ListLimit { of, field, path, limit }| {
        let path = [within, path].concat();
        let count = count(bytes, &path);
        (count > *limit).then(|| (*field, format!("there are {count} {of}; at most {limit} are allowed")))
    })
}

/// Rejects a resource with a list above its limit, in the message at `path`. The first field is the resource
/// name.
pub(super) fn check(
    bytes: &[u8],
    within: &[u32],
    path: &FieldPath<'_>,
    lists: &[ListLimit],
) -> Result<(), RejectedResource> {
    let Some((field, text)) = exceeded_limit(bytes, within, lists) else { return Ok(()) };
    let name = first_text(bytes);
    Err(RejectedResource {
        name: name.map(str::to_owned),
        problems: ValidationErrors::one(&path.field(field), text),
    })
}

/// Returns the text in field 1, which is the name of a resource.
pub(super) fn first_text(bytes: &[u8]) -> Option<&str> {
    let mut name = None;
    // The last of repeated names is used, as by the decoder.
    each(&mut &*bytes, 0, &[1], &mut |bytes| name = std::str::from_utf8(bytes).ok());
    name
}

/// Returns the number of values at `path`.
pub(super) fn count(bytes: &[u8], path: &[u32]) -> usize {
    let mut count = 0_usize;
    each(&mut &*bytes, 0, path, &mut |_| count = count.saturating_add(1));
    count
}

/// Splits a message into the elements of the list `field` and all other fields. `None` if it cannot be
/// decoded. Decoding the elements one by one avoids having the whole decoded list in memory.
pub(super) fn split_field(bytes: &[u8], field: u32) -> Option<(Vec<&[u8]>, Vec<u8>)> {
    let (mut list, mut beside) = (Vec::new(), Vec::new());
    let mut left = bytes;
    while !left.is_empty() {
        let before = left;
        let (tag, kind) = decode_key(&mut left).ok()?;
        if tag == field && kind == WireType::LengthDelimited {
            let length = usize::try_from(decode_varint(&mut left).ok()?).ok()?;
            let (message, rest) = left.split_at_checked(length)?;
            list.push(message);
            left = rest;
        } else {
            skip_field(kind, tag, &mut left, DecodeContext::default()).ok()?;
            beside.extend_from_slice(before.get(..before.len().checked_sub(left.len())?)?);
        }
    }
    Some((list, beside))
}

/// Returns the last value of a varint field. `None` if there is none, or if the message cannot be decoded.
pub(super) fn last_number(bytes: &[u8], field: u32) -> Option<u64> {
    let (mut left, mut last) = (bytes, None);
    while !left.is_empty() {
        let (tag, kind) = decode_key(&mut left).ok()?;
        if tag == field && kind == WireType::Varint {
            last = Some(decode_varint(&mut left).ok()?);
        } else {
            skip_field(kind, tag, &mut left, DecodeContext::default()).ok()?;
        }
    }
    last
}

/// Calls `visit` with every value at `path`, until `left` bytes remain. It walks the bytes as the decoder
/// does, even with invalid lengths, so it visits every value that the decoder would. `None` where the decoder
/// fails.
fn each<'a>(bytes: &mut &'a [u8], left: usize, path: &[u32], visit: &mut impl FnMut(&'a [u8])) -> Option<()> {
    let (field, inner) = path.split_first()?;
    while bytes.len() > left {
        let (tag, kind) = decode_key(bytes).ok()?;
        if tag != *field || kind != WireType::LengthDelimited {
            skip_field(kind, tag, bytes, DecodeContext::default()).ok()?;
            continue;
        }
        let length = usize::try_from(decode_varint(bytes).ok()?).ok()?;
        let (value, rest) = bytes.split_at_checked(length)?;
        if inner.is_empty() {
            visit(value);
            *bytes = rest;
        } else {
            // The inner message ends at the start of `rest`.
            each(bytes, rest.len(), inner, visit)?;
        }
    }
    (bytes.len() == left).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements of two bytes, the minimum, must not be skipped by the length check.
    #[test]
    fn a_list_of_the_shortest_elements_is_counted() {
        let exceeded_limit = |elements: usize, endpoints: usize| {
            let limits = XdsLimits { endpoints, ..XdsLimits::default() };
            exceeded_limit(&[2 << 3 | 2, 0].repeat(elements), &[], &endpoint_limits(&limits))
        };
        for limit in 0..10 {
            assert_eq!(exceeded_limit(limit, limit), None);
            let text = format!("there are {} localities; at most {limit} are allowed", limit + 1);
            assert_eq!(exceeded_limit(limit + 1, limit), Some(("endpoints", text)));
        }
    }
}
