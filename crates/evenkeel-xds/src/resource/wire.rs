//! A look at a message before it is decoded.
//!
//! An empty element of a list is two bytes on the wire and hundreds in memory. So lists are counted first, without
//! allocating, and one that is too long is refused: what came over the network never decides how much memory is taken.

use evenkeel_proto::prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use crate::resource::RejectedResource;
use crate::{FieldPath, ValidationErrors, XdsLimits};

/// A list in a message, which may have so many elements in all its places together.
pub(super) struct ListLimit {
    /// What its elements are called.
    of: &'static str,
    /// The field to blame.
    field: &'static str,
    /// The numbers of the fields that lead to it.
    path: &'static [u32],
    limit: usize,
}

/// How many parts of one kind, such as header matchers, a route or an endpoint may have on average.
const MAX_NESTING: usize = 16;

/// The lists of a `RouteConfiguration`.
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

/// The lists of a `ClusterLoadAssignment`.
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

/// The first list that is too long, and what is wrong with it. The message that the lists are of stands in `within`, the
/// fields of which lead to it from `bytes`.
pub(super) fn exceeded_limit(
    bytes: &[u8],
    within: &[u32],
    lists: &[ListLimit],
) -> Option<(&'static str, String)> {
    // An element takes two bytes or more, so that most resources are too short for a list that is too long.
    let most = bytes.len() / 2;
    lists.iter().filter(|list| list.limit < most).find_map(|ListLimit { of, field, path, limit }| {
        let path = [within, path].concat();
        let count = count(bytes, &path);
        (count > *limit).then(|| (*field, format!("there are {count} {of}; at most {limit} are allowed")))
    })
}

/// Refuses a resource with a list that is too long, in the message at `path`. The name of a resource is its first field.
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

/// The text in the first field: the name of a resource.
pub(super) fn first_text(bytes: &[u8]) -> Option<&str> {
    let mut name = None;
    each(&mut &*bytes, 0, &[1], &mut |bytes| name = std::str::from_utf8(bytes).ok());
    name
}

/// How many values there are at the end of `path`.
pub(super) fn count(bytes: &[u8], path: &[u32]) -> usize {
    let mut count = 0_usize;
    each(&mut &*bytes, 0, path, &mut |_| count = count.saturating_add(1));
    count
}

/// The messages in the list `field`, and all that is beside it; `None` if decoding would give up. A long list that is
/// decoded message by message never stands in memory as a whole.
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

/// The number in a field, the last of several; `None` if there is none, or decoding would give up.
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

/// Calls `visit` with every value at the end of `path`, until only `left` bytes are left. It goes through the bytes just
/// as decoding does, also where lengths are lies, so that it sees all that decoding would see. `None` where both give up.
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
            each(bytes, rest.len(), inner, visit)?;
        }
    }
    (bytes.len() == left).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two bytes each are the least that elements take: nothing may be too short for being looked at.
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
