//! The hash of a request, as the hash policies of its route make it (A42).

use std::borrow::Cow;

use evenkeel_core::{Call, hash};
use regex::bytes::Regex;

use crate::routing::HeaderName;

/// One hash policy of a route.
#[derive(Clone, Debug)]
pub struct HashPolicy {
    pub(crate) source: HashSource,
    /// Whether the policies behind it are skipped once there is a hash.
    pub(crate) terminal: bool,
}

/// What is hashed.
#[derive(Clone, Debug)]
pub(crate) enum HashSource {
    Header(HeaderName, Option<Rewrite>),
    /// The channel's random number, as it is.
    ChannelId,
    /// A kind that gRPC does not have; it yields nothing (A42).
    Unsupported,
}

/// How a header's value is changed before it is hashed.
#[derive(Clone, Debug)]
pub(crate) struct Rewrite {
    pub(crate) pattern: Regex,
    /// In the notation of the `regex` crate.
    pub(crate) substitution: String,
}

impl HashPolicy {
    fn hash(&self, call: &Call<'_>, channel_id: u64) -> Option<u64> {
        match &self.source {
            HashSource::Header(name, rewrite) => {
                let value = name.value(call)?;
                let bytes = match rewrite {
                    Some(rewrite) => rewrite.apply(value.as_bytes()),
                    None => Cow::Borrowed(value.as_bytes()),
                };
                Some(hash::of_bytes(&bytes))
            }
            HashSource::ChannelId => Some(channel_id),
            HashSource::Unsupported => None,
        }
    }
}

impl Rewrite {
    fn apply<'a>(&self, value: &'a [u8]) -> Cow<'a, [u8]> {
        self.pattern.replace_all(value, self.substitution.as_bytes())
    }
}

/// What the policies make of a call; a random number if none of them yields anything.
pub(crate) fn of_call(policies: &[HashPolicy], call: &Call<'_>, channel_id: u64) -> u64 {
    let hashes = policies.iter().map(|policy| (policy.hash(call, channel_id), policy.terminal));
    hash::combine(hashes).unwrap_or_else(|| call.random())
}
