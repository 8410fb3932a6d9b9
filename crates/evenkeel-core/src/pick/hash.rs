//! Request hashes, as computed by the hash policies of a route (A42).
//!
//! Contains the rules that need no route: hashing a header, and combining the hashes of several policies. The
//! router evaluates the policies, rewrites header values, and passes the result to
//! [`PickArgs::with_hash`](crate::PickArgs::with_hash).
//!
//! ```
//! use evenkeel_core::hash;
//! // An absent header yields no hash; the random channel id is used as a hash directly.
//! let (user, channel_id) = (hash::of_header("x-user", None), 42);
//! assert_eq!(hash::combine([(user, true), (Some(channel_id), false)]), Some(42));
//! ```

use xxhash_rust::xxh64;

/// Returns the hash of requests and ring entries: XXH64 with seed 0.
pub fn of_bytes(bytes: &[u8]) -> u64 {
    xxh64::xxh64(bytes, 0)
}

/// Returns the hash of a header's value, after any rewrite; several values are joined by commas. Returns
/// `None` if the header is absent or binary: names that end in `-bin` never match (A28).
pub fn of_header(name: &str, value: Option<&str>) -> Option<u64> {
    if is_binary(name) {
        return None;
    }
    value.map(|value| of_bytes(value.as_bytes()))
}

/// Returns true if gRPC treats the values of this header as bytes.
pub(crate) fn is_binary(name: &str) -> bool {
    name.as_bytes().last_chunk().is_some_and(|end: &[u8; 4]| end.eq_ignore_ascii_case(b"-bin"))
}

/// Combines the hashes of a route's policies, in order, each with its `terminal` flag. An unsupported policy,
/// or one without a match, has no hash. A terminal policy stops the evaluation once there is a hash. Returns
/// `None` if no policy has a hash; the call then gets a random one.
pub fn combine(policies: impl IntoIterator<Item = (Option<u64>, bool)>) -> Option<u64> {
    let mut hash: Option<u64> = None;
    for (own, terminal) in policies {
        hash = match (hash, own) {
            // The rotation makes the order of the policies significant (RH-7).
            (Some(hash), Some(own)) => Some(hash.rotate_left(1) ^ own),
            (hash, own) => hash.or(own),
        };
        // Any hash so far counts, also one of an earlier policy (RH-7).
        if terminal && hash.is_some() {
            break;
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RequestMetadata;

    /// RH-3: XXH64, seed 0 (the reference's own vectors).
    #[test]
    fn xxh64_with_seed_0() {
        assert_eq!(of_bytes(b""), 0xef46_db37_51d8_e999);
        assert_eq!(of_bytes(b"a"), 0xd24e_c4f1_a98c_6e5b);
        assert_eq!(of_bytes(b"as"), 0x1c33_0fb2_d66b_e179);
        assert_eq!(of_bytes(b"abc"), 0x44bc_2cf5_ad77_0999);
    }

    /// RH-7
    #[test]
    fn policies_combine_in_order() {
        const HIGH: u64 = 1 << 63;
        let (go_on, stop) = (false, true);
        let check = |policies: &[(Option<u64>, bool)], expected| {
            assert_eq!(combine(policies.iter().copied()), expected, "{policies:?}");
        };
        check(&[], None);
        check(&[(None, go_on), (None, stop)], None);
        check(&[(Some(5), go_on)], Some(5));
        check(&[(Some(0), go_on)], Some(0));
        check(&[(Some(HIGH), go_on), (Some(2), go_on)], Some(3));
        check(&[(None, go_on), (Some(5), go_on), (None, go_on), (Some(1), go_on)], Some(11));
        check(&[(Some(5), stop), (Some(1), go_on)], Some(5));
        // Terminal stops once a hash exists, be it its own or an earlier one.
        check(&[(None, stop), (Some(5), go_on)], Some(5));
        check(&[(Some(5), go_on), (None, stop), (Some(1), go_on)], Some(5));
    }

    /// RH-7
    #[test]
    fn policies_behind_a_terminal_one_are_not_asked() {
        let mut asked = 0;
        let hash = combine([(Some(1), true), (Some(2), false)].into_iter().inspect(|_| asked += 1));
        assert_eq!((hash, asked), (Some(1), 1));
    }

    /// RH-8
    #[test]
    fn headers_are_joined_and_binary_ones_never_match() {
        let headers = [("x-user", "ann"), ("x-key-bin", "ann"), ("x-user", "bob")];
        let hash = |name: &str| of_header(name, headers.value(name).as_deref());
        assert_eq!(hash("x-user"), Some(of_bytes(b"ann,bob")));
        assert_eq!(hash("x-other"), None);
        assert_eq!(hash("x-key-bin"), None);
        assert_eq!(of_header("X-Key-BIN", Some("ann")), None);
        assert_eq!(of_header("x-user", Some("")), Some(of_bytes(b"")));
    }
}
