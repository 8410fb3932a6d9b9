//! String matchers for paths, header values and names in certificates.

use std::fmt;
use std::sync::Arc;

use regex::bytes::Regex;

/// String matcher. Case folding is limited to ASCII, as paths, header values and names in certificates are
/// ASCII.
///
/// Matchers are equal if their sources are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TextMatcher {
    Exact(String, CaseSensitivity),
    Prefix(String, CaseSensitivity),
    Suffix(String, CaseSensitivity),
    Contains(String),
    /// Source text, and an expression that finds it in any case in linear time.
    ContainsIgnoreCase(RegexMatcher),
    Regex(RegexMatcher),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CaseSensitivity {
    Sensitive,
    Insensitive,
}

/// Pattern as source text and compiled.
#[derive(Clone, Debug)]
pub(crate) struct RegexMatcher {
    pub(crate) source: Arc<str>,
    pub(crate) compiled: Regex,
}

impl TextMatcher {
    pub(crate) fn matches(&self, text: &str) -> bool {
        let bytes = text.as_bytes();
        match self {
            TextMatcher::Exact(expected, case) => case.is_equal(bytes, expected),
            TextMatcher::Prefix(expected, case) => {
                bytes.get(..expected.len()).is_some_and(|start| case.is_equal(start, expected))
            }
            TextMatcher::Suffix(expected, case) => {
                let end = bytes.len().checked_sub(expected.len()).and_then(|start| bytes.get(start..));
                end.is_some_and(|end| case.is_equal(end, expected))
            }
            TextMatcher::Contains(expected) => text.contains(expected.as_str()),
            TextMatcher::ContainsIgnoreCase(regex) | TextMatcher::Regex(regex) => {
                regex.compiled.is_match(bytes)
            }
        }
    }
}

impl CaseSensitivity {
    pub(crate) fn from_ignore_case(ignored: bool) -> CaseSensitivity {
        if ignored { CaseSensitivity::Insensitive } else { CaseSensitivity::Sensitive }
    }

    fn is_equal(self, found: &[u8], expected: &str) -> bool {
        match self {
            CaseSensitivity::Sensitive => found == expected.as_bytes(),
            CaseSensitivity::Insensitive => found.eq_ignore_ascii_case(expected.as_bytes()),
        }
    }
}

impl PartialEq for RegexMatcher {
    fn eq(&self, other: &RegexMatcher) -> bool {
        self.source == other.source
    }
}

impl Eq for RegexMatcher {}

impl fmt::Display for TextMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, text, case) = match self {
            TextMatcher::Exact(text, case) => ("exact", text.as_str(), *case),
            TextMatcher::Prefix(text, case) => ("prefix", text.as_str(), *case),
            TextMatcher::Suffix(text, case) => ("suffix", text.as_str(), *case),
            TextMatcher::Contains(text) => ("contains", text.as_str(), CaseSensitivity::Sensitive),
            TextMatcher::ContainsIgnoreCase(regex) => {
                ("contains", &*regex.source, CaseSensitivity::Insensitive)
            }
            TextMatcher::Regex(regex) => ("regex", &*regex.source, CaseSensitivity::Sensitive),
        };
        let any_case = if case == CaseSensitivity::Insensitive { " in any case" } else { "" };
        write!(f, "{kind} {text:?}{any_case}")
    }
}
