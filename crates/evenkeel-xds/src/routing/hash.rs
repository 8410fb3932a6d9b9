//! The hash of a request, as the hash policies of its route make it (A42).

use std::borrow::Cow;
use std::fmt;

use evenkeel_core::{PickArgs, hash};
use regex::bytes::Regex;

use crate::routing::HeaderName;

/// One hash policy of a route.
#[derive(Clone, Debug)]
pub struct HashPolicy {
    pub(crate) source: HashSource,
    /// True if later policies are skipped once there is a hash.
    pub(crate) terminal: bool,
}

/// Input of a hash policy.
#[derive(Clone, Debug)]
pub(crate) enum HashSource {
    Header(HeaderName, Option<RegexRewrite>),
    /// The channel's random number, unhashed.
    ChannelId,
    /// Policy that gRPC does not support. It produces no hash (A42).
    Unsupported,
}

/// Rewrite of a header value before it is hashed.
#[derive(Clone, Debug)]
pub(crate) struct RegexRewrite {
    pub(crate) pattern: Regex,
    /// Substitution in the syntax of the `regex` crate.
    pub(crate) substitution: String,
}

impl HashPolicy {
    fn hash(&self, call: &PickArgs<'_>, channel_id: u64) -> Option<u64> {
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

impl fmt::Display for HashPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            HashSource::Header(name, None) => write!(f, "header {:?}", name.as_str())?,
            HashSource::Header(name, Some(rewrite)) => {
                let RegexRewrite { pattern, substitution } = rewrite;
                write!(f, "header {:?} with {:?} for {:?}", name.as_str(), substitution, pattern.as_str())?;
            }
            HashSource::ChannelId => f.write_str("the channel")?,
            HashSource::Unsupported => f.write_str("unsupported by gRPC")?,
        }
        f.write_str(if self.terminal { ", terminal" } else { "" })
    }
}

impl RegexRewrite {
    fn apply<'a>(&self, value: &'a [u8]) -> Cow<'a, [u8]> {
        self.pattern.replace_all(value, self.substitution.as_bytes())
    }
}

/// Returns the combined hash of a call, or a random one if no policy produces a hash.
pub(crate) fn of_call(policies: &[HashPolicy], call: &PickArgs<'_>, channel_id: u64) -> u64 {
    combined(policies, call, channel_id).unwrap_or_else(|| call.random())
}

/// Returns the combined hash of a call, if any policy produces one.
pub(crate) fn combined(policies: &[HashPolicy], call: &PickArgs<'_>, channel_id: u64) -> Option<u64> {
    hash::combine(policies.iter().map(|policy| (policy.hash(call, channel_id), policy.terminal)))
}
