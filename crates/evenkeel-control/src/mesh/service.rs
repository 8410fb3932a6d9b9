//! Services and their routes, as builders.
//!
//! They store values without checking them; [`Mesh::check`](crate::Mesh::check) does.

use std::time::Duration;

use super::TrafficFraction;

/// Service of a mesh: its routes, in the order in which they are matched.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Service {
    pub(super) routes: Vec<Route>,
    /// True if it is written without `routes`. Its only route matches every call, and errors have no route index.
    pub(super) is_plain: bool,
}

impl Service {
    /// Creates a service without routes.
    pub fn new() -> Service {
        Service::default()
    }

    /// Creates a service that sends every call to one cluster.
    pub fn to(cluster: &str) -> Service {
        Service { routes: vec![Route::to(cluster)], is_plain: true }
    }

    /// Adds a route behind the existing ones.
    #[must_use]
    pub fn route(mut self, route: Route) -> Service {
        self.routes.push(route);
        self.is_plain = false;
        self
    }
}

/// Route of a service: conditions on calls, the clusters that get them, and settings. Without conditions it matches
/// every call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Route {
    pub(super) path: Option<PathMatch>,
    pub(super) ignore_case: bool,
    pub(super) headers: Vec<(String, HeaderMatch)>,
    pub(super) fraction: Option<TrafficFraction>,
    pub(super) to: Vec<(String, u32)>,
    /// True if it is written as `weights`.
    pub(super) is_split: bool,
    pub(super) timeout: Option<Duration>,
    pub(super) retry: Option<RouteRetry>,
    pub(super) hash: Vec<RouteHash>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum PathMatch {
    Exact(String),
    Prefix(String),
    Regex(String),
}

impl Route {
    /// Creates a route to one cluster.
    pub fn to(cluster: &str) -> Route {
        Route { to: vec![(cluster.to_owned(), 1)], ..Route::default() }
    }

    /// Creates a route to several clusters by weight.
    pub fn split<'a>(weights: impl IntoIterator<Item = (&'a str, u32)>) -> Route {
        let to = weights.into_iter().map(|(cluster, weight)| (cluster.to_owned(), weight)).collect();
        Route { to, is_split: true, ..Route::default() }
    }

    /// Matches calls of this method only, such as `/shop.Orders/Get`.
    #[must_use]
    pub fn path(mut self, path: &str) -> Route {
        self.path = Some(PathMatch::Exact(path.to_owned()));
        self
    }

    /// Matches paths with this prefix only, such as `/shop.Orders/`.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Route {
        self.path = Some(PathMatch::Prefix(prefix.to_owned()));
        self
    }

    /// Matches paths that this regular expression matches completely, in RE2 syntax.
    #[must_use]
    pub fn regex(mut self, regex: &str) -> Route {
        self.path = Some(PathMatch::Regex(regex.to_owned()));
        self
    }

    /// Ignores the case of path or prefix.
    #[must_use]
    pub fn ignore_case(mut self) -> Route {
        self.ignore_case = true;
        self
    }

    /// Matches calls with such a header only. All header conditions of a route must hold.
    #[must_use]
    pub fn header(mut self, name: &str, value: HeaderMatch) -> Route {
        self.headers.push((name.to_owned(), value));
        self
    }

    /// Matches a random fraction of the calls only.
    #[must_use]
    pub fn fraction(mut self, share: TrafficFraction) -> Route {
        self.fraction = Some(share);
        self
    }

    /// Sets the maximum duration of a call; zero is no limit.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Route {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the retry policy.
    #[must_use]
    pub fn retry(mut self, retry: RouteRetry) -> Route {
        self.retry = Some(retry);
        self
    }

    /// Adds a hash source, for policies such as ring_hash (A42).
    #[must_use]
    pub fn hash(mut self, hash: RouteHash) -> Route {
        self.hash.push(hash);
        self
    }

    /// Returns true if the route matches every call.
    pub(super) fn matches_all(&self) -> bool {
        let any_path = match &self.path {
            None => true,
            Some(PathMatch::Prefix(prefix)) => prefix.is_empty() || prefix == "/",
            Some(PathMatch::Exact(_) | PathMatch::Regex(_)) => false,
        };
        any_path && self.headers.is_empty() && self.fraction.is_none_or(|share| share == TrafficFraction::ALL)
    }
}

/// Condition on the value of a header.
#[derive(Clone, Debug, PartialEq)]
pub struct HeaderMatch {
    pub(super) test: HeaderCondition,
    pub(super) ignore_case: bool,
    pub(super) invert: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum HeaderCondition {
    Exact(String),
    Prefix(String),
    Suffix(String),
    Contains(String),
    Regex(String),
    Range { from: i64, below: i64 },
    Present(bool),
}

impl HeaderMatch {
    /// The value equals this text.
    pub fn exact(text: &str) -> HeaderMatch {
        HeaderMatch::of(HeaderCondition::Exact(text.to_owned()))
    }

    /// The value begins with this text.
    pub fn prefix(text: &str) -> HeaderMatch {
        HeaderMatch::of(HeaderCondition::Prefix(text.to_owned()))
    }

    /// The value ends with this text.
    pub fn suffix(text: &str) -> HeaderMatch {
        HeaderMatch::of(HeaderCondition::Suffix(text.to_owned()))
    }

    /// The value contains this text.
    pub fn contains(text: &str) -> HeaderMatch {
        HeaderMatch::of(HeaderCondition::Contains(text.to_owned()))
    }

    /// The regular expression matches the whole value, in RE2 syntax.
    pub fn regex(regex: &str) -> HeaderMatch {
        HeaderMatch::of(HeaderCondition::Regex(regex.to_owned()))
    }

    /// The value is an integer, at least `from` and below `below`.
    pub fn range(from: i64, below: i64) -> HeaderMatch {
        HeaderMatch::of(HeaderCondition::Range { from, below })
    }

    /// The header is present, or is absent.
    pub fn present(yes: bool) -> HeaderMatch {
        HeaderMatch::of(HeaderCondition::Present(yes))
    }

    /// Ignores case. It has no effect on ranges, regular expressions and presence.
    #[must_use]
    pub fn ignore_case(mut self) -> HeaderMatch {
        self.ignore_case = true;
        self
    }

    /// Inverts the condition. A missing header still does not match.
    #[must_use]
    pub fn invert(mut self) -> HeaderMatch {
        self.invert = true;
        self
    }

    pub(super) fn of(test: HeaderCondition) -> HeaderMatch {
        HeaderMatch { test, ignore_case: false, invert: false }
    }
}

/// Retry policy of a route (A44).
#[derive(Clone, Debug, PartialEq)]
pub struct RouteRetry {
    pub(super) on: Vec<RetryOn>,
    pub(super) attempts: Option<u32>,
    pub(super) backoff: Option<(Duration, Option<Duration>)>,
}

impl RouteRetry {
    /// Retries calls that fail with one of these statuses, once.
    pub fn on(statuses: impl IntoIterator<Item = RetryOn>) -> RouteRetry {
        RouteRetry { on: statuses.into_iter().collect(), attempts: None, backoff: None }
    }

    /// Sets the maximum number of attempts, the first included: 2 to 5.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> RouteRetry {
        self.attempts = Some(attempts);
        self
    }

    /// Sets the backoff before the second attempt, and the maximum before later ones.
    #[must_use]
    pub fn backoff(mut self, base: Duration, max: Duration) -> RouteRetry {
        self.backoff = Some((base, Some(max)));
        self
    }
}

/// Status codes that gRPC can retry on (A44).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum RetryOn {
    Cancelled,
    DeadlineExceeded,
    Internal,
    ResourceExhausted,
    Unavailable,
}

impl RetryOn {
    pub(super) const ALL: [RetryOn; 5] = [
        RetryOn::Cancelled,
        RetryOn::DeadlineExceeded,
        RetryOn::Internal,
        RetryOn::ResourceExhausted,
        RetryOn::Unavailable,
    ];

    /// Returns the name in Envoy's `retry_on` field.
    pub(super) fn name(self) -> &'static str {
        match self {
            RetryOn::Cancelled => "cancelled",
            RetryOn::DeadlineExceeded => "deadline-exceeded",
            RetryOn::Internal => "internal",
            RetryOn::ResourceExhausted => "resource-exhausted",
            RetryOn::Unavailable => "unavailable",
        }
    }
}

/// Source of a call's hash, for policies such as ring_hash (A42).
#[derive(Clone, Debug, PartialEq)]
pub struct RouteHash {
    pub(super) by: RouteHashSource,
    pub(super) terminal: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum RouteHashSource {
    Header { name: String, rewrite: Option<(String, String)> },
    ChannelId,
}

impl RouteHash {
    /// Hashes the value of a header.
    pub fn header(name: &str) -> RouteHash {
        RouteHash { by: RouteHashSource::Header { name: name.to_owned(), rewrite: None }, terminal: false }
    }

    /// Hashes a header after replacing the matches of a regular expression (`\1` is its first group).
    pub fn rewritten_header(name: &str, regex: &str, with: &str) -> RouteHash {
        let rewrite = Some((regex.to_owned(), with.to_owned()));
        RouteHash { by: RouteHashSource::Header { name: name.to_owned(), rewrite }, terminal: false }
    }

    /// Hashes the channel id: all calls of a channel have the same hash.
    pub fn channel_id() -> RouteHash {
        RouteHash { by: RouteHashSource::ChannelId, terminal: false }
    }

    /// Ignores later hash sources if this one has a value.
    #[must_use]
    pub fn terminal(mut self) -> RouteHash {
        self.terminal = true;
        self
    }
}
