//! What a route matches: the path, headers, and a share of the calls (A28).

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use evenkeel_core::PickArgs;

use crate::routing::text_matcher::TextMatcher;

/// What a call must be like for a route to take it.
#[derive(Clone, Debug)]
pub struct RouteMatch {
    pub(crate) path: TextMatcher,
    pub(crate) headers: Vec<HeaderMatcher>,
    /// How many calls in a million; all if it is not said.
    pub(crate) per_million: Option<u32>,
}

impl RouteMatch {
    /// Whether the route takes this call. Chance is asked last, and only if all else matches.
    pub fn matches(&self, call: &PickArgs<'_>) -> bool {
        self.mismatch(call).is_none()
            && self.per_million.is_none_or(|share| call.random_below(MILLION) < u64::from(share))
    }

    /// How many in a million of the calls that match otherwise are taken, if not all.
    pub fn per_million(&self) -> Option<u32> {
        self.per_million
    }

    /// The first thing about the call that does not match, chance apart.
    pub(crate) fn mismatch(&self, call: &PickArgs<'_>) -> Option<RouteMismatch<'_>> {
        if !self.path.matches(call.path()) {
            return Some(RouteMismatch::Path);
        }
        self.headers.iter().find(|header| !header.matches(call)).map(RouteMismatch::Header)
    }
}

/// What fractions are counted in.
pub(crate) const MILLION: u64 = 1_000_000;

/// What does not match.
pub(crate) enum RouteMismatch<'a> {
    Path,
    Header(&'a HeaderMatcher),
}

impl fmt::Display for RouteMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "path {}", self.path)?;
        for header in &self.headers {
            write!(f, " and {header}")?;
        }
        match self.per_million {
            Some(share) => write!(f, " and {share} in a million"),
            None => Ok(()),
        }
    }
}

/// What one header must be like.
#[derive(Clone, Debug)]
pub(crate) struct HeaderMatcher {
    pub(crate) name: HeaderName,
    pub(crate) test: HeaderMatchKind,
    pub(crate) invert: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum HeaderMatchKind {
    Text(TextMatcher),
    /// A whole number from `start` up to, but not, `end`.
    Range(Range<i64>),
    /// Whether it is there.
    Present(bool),
}

impl HeaderMatcher {
    fn matches(&self, call: &PickArgs<'_>) -> bool {
        // A41: inverting turns the comparison around, and a header that is absent fails every comparison but the one
        // for its presence.
        let compared = match (&self.test, self.name.value(call)) {
            (HeaderMatchKind::Present(expected), value) => value.is_some() == *expected,
            (_, None) => return false,
            (HeaderMatchKind::Text(text), Some(value)) => text.matches(&value),
            (HeaderMatchKind::Range(range), Some(value)) => {
                value.parse().is_ok_and(|number: i64| range.contains(&number))
            }
        };
        compared != self.invert
    }
}

impl fmt::Display for HeaderMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = if self.invert { "not " } else { "" };
        write!(f, "header {:?} {not}", self.name.as_str())?;
        match &self.test {
            HeaderMatchKind::Text(text) => text.fmt(f),
            HeaderMatchKind::Range(range) => write!(f, "in [{}, {})", range.start, range.end),
            HeaderMatchKind::Present(true) => f.write_str("present"),
            HeaderMatchKind::Present(false) => f.write_str("absent"),
        }
    }
}

/// The name of a header, and what of it routing sees.
#[derive(Clone, Debug)]
pub(crate) struct HeaderName {
    name: Arc<str>,
    visibility: HeaderVisibility,
}

#[derive(Clone, Copy, Debug)]
enum HeaderVisibility {
    AsIs,
    /// Present in any case: whoever routes before the transport adds the header assumes gRPC's value (A28).
    ContentType,
    /// A28: only custom metadata is looked at, and never what ends in `-bin`.
    Hidden,
}

impl HeaderName {
    pub(crate) fn new(name: &str) -> HeaderName {
        let name = name.to_ascii_lowercase();
        let transport = name.starts_with(':')
            || name.starts_with("grpc-")
            || matches!(name.as_str(), "te" | "user-agent");
        let visibility = match name.as_str() {
            "content-type" => HeaderVisibility::ContentType,
            text if transport || text.ends_with("-bin") => HeaderVisibility::Hidden,
            _ => HeaderVisibility::AsIs,
        };
        HeaderName { name: name.into(), visibility }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.name
    }

    /// The value as routing sees it; several values joined by commas.
    pub(crate) fn value<'a>(&self, call: &PickArgs<'a>) -> Option<Cow<'a, str>> {
        match self.visibility {
            HeaderVisibility::AsIs => call.header(&self.name),
            HeaderVisibility::ContentType => {
                call.header(&self.name).or(Some(Cow::Borrowed("application/grpc")))
            }
            HeaderVisibility::Hidden => None,
        }
    }
}
