//! Route matching by path, headers and fraction of calls (A28).

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use evenkeel_core::PickArgs;

use crate::routing::text_matcher::TextMatcher;

/// Condition of a route on calls.
#[derive(Clone, Debug)]
pub struct RouteMatch {
    pub(crate) path: TextMatcher,
    pub(crate) headers: Vec<HeaderMatcher>,
    /// Fraction of calls in millionths. `None` for all calls.
    pub(crate) per_million: Option<u32>,
}

impl RouteMatch {
    /// Returns true if the route matches this call. The fraction is sampled last, and only if everything else
    /// matches.
    pub fn matches(&self, call: &PickArgs<'_>) -> bool {
        self.mismatch(call).is_none()
            && self.per_million.is_none_or(|share| call.random_below(MILLION) < u64::from(share))
    }

    /// Returns the fraction of otherwise matching calls in millionths, if it is not all.
    pub fn per_million(&self) -> Option<u32> {
        self.per_million
    }

    /// Returns the first part that does not match. The fraction is not sampled.
    pub(crate) fn mismatch(&self, call: &PickArgs<'_>) -> Option<RouteMismatch<'_>> {
        if !self.path.matches(call.path()) {
            return Some(RouteMismatch::Path);
        }
        self.headers.iter().find(|header| !header.matches(call)).map(RouteMismatch::Header)
    }
}

/// Denominator of all fractions, which are in millionths.
pub(crate) const MILLION: u64 = 1_000_000;

/// Part of a route match that does not match.
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

/// Matcher of one header.
#[derive(Clone, Debug)]
pub(crate) struct HeaderMatcher {
    pub(crate) name: HeaderName,
    pub(crate) test: HeaderMatchKind,
    pub(crate) invert: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum HeaderMatchKind {
    Text(TextMatcher),
    /// Integer from `start` (inclusive) to `end` (exclusive).
    Range(Range<i64>),
    /// Presence or absence of the header.
    Present(bool),
}

impl HeaderMatcher {
    fn matches(&self, call: &PickArgs<'_>) -> bool {
        // A41: `invert` negates the comparison. An absent header fails every comparison except the one for
        // presence, inverted or not.
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

/// Header name with its visibility to routing.
#[derive(Clone, Debug)]
pub(crate) struct HeaderName {
    name: Arc<str>,
    visibility: HeaderVisibility,
}

#[derive(Clone, Copy, Debug)]
enum HeaderVisibility {
    AsIs,
    /// Always present. Routing runs before the transport adds the header, so gRPC's value is the default
    /// (A28).
    ContentType,
    /// Not visible to routing: names that end in `-bin`, and headers other than custom metadata (A28).
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

    /// Returns the value as visible to routing. Several values are joined by commas.
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
