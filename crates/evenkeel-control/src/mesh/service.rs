//! Services and their routes.

use std::time::Duration;

use super::TrafficFraction;

/// What clients call by a name: where its calls go.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Service {
    pub(super) routes: Vec<Route>,
    /// Written without `routes`: its only route takes every call, and has no place of its own.
    pub(super) is_plain: bool,
}

impl Service {
    /// A service whose routes are yet to be added.
    pub fn new() -> Service {
        Service::default()
    }

    /// A service that sends every call to one cluster.
    pub fn to(cluster: &str) -> Service {
        Service { routes: vec![Route::to(cluster)], is_plain: true }
    }

    /// Adds a route, to be tried after those that are there.
    #[must_use]
    pub fn route(mut self, route: Route) -> Service {
        self.routes.push(route);
        self.is_plain = false;
        self
    }
}

/// Which calls go where, and how. It takes every call unless told otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Route {
    pub(super) path: Option<PathMatch>,
    pub(super) ignore_case: bool,
    pub(super) headers: Vec<(String, HeaderMatch)>,
    pub(super) fraction: Option<TrafficFraction>,
    pub(super) to: Vec<(String, u32)>,
    /// Written as `weights`.
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
    /// A route to one cluster.
    pub fn to(cluster: &str) -> Route {
        Route { to: vec![(cluster.to_owned(), 1)], ..Route::default() }
    }

    /// A route to several clusters by weight.
    pub fn split<'a>(weights: impl IntoIterator<Item = (&'a str, u32)>) -> Route {
        let to = weights.into_iter().map(|(cluster, weight)| (cluster.to_owned(), weight)).collect();
        Route { to, is_split: true, ..Route::default() }
    }

    /// Only calls of this method, such as `/shop.Orders/Get`.
    #[must_use]
    pub fn path(mut self, path: &str) -> Route {
        self.path = Some(PathMatch::Exact(path.to_owned()));
        self
    }

    /// Only calls whose path begins so, such as `/shop.Orders/`.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Route {
        self.path = Some(PathMatch::Prefix(prefix.to_owned()));
        self
    }

    /// Only calls whose whole path is matched by this expression, in RE2's notation.
    #[must_use]
    pub fn regex(mut self, regex: &str) -> Route {
        self.path = Some(PathMatch::Regex(regex.to_owned()));
        self
    }

    /// Path or prefix hold for upper and lower case.
    #[must_use]
    pub fn ignore_case(mut self) -> Route {
        self.ignore_case = true;
        self
    }

    /// Only calls with such a header; all that are asked for must be there.
    #[must_use]
    pub fn header(mut self, name: &str, value: HeaderMatch) -> Route {
        self.headers.push((name.to_owned(), value));
        self
    }

    /// Only this share of the calls, chosen at random.
    #[must_use]
    pub fn fraction(mut self, share: TrafficFraction) -> Route {
        self.fraction = Some(share);
        self
    }

    /// The longest that a call may take; zero is no limit.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Route {
        self.timeout = Some(timeout);
        self
    }

    /// What is tried again.
    #[must_use]
    pub fn retry(mut self, retry: RouteRetry) -> Route {
        self.retry = Some(retry);
        self
    }

    /// Adds something that policies such as ring_hash choose by.
    #[must_use]
    pub fn hash(mut self, hash: RouteHash) -> Route {
        self.hash.push(hash);
        self
    }

    /// Whether no call passes it by.
    pub(super) fn matches_all(&self) -> bool {
        let any_path = match &self.path {
            None => true,
            Some(PathMatch::Prefix(prefix)) => prefix.is_empty() || prefix == "/",
            Some(PathMatch::Exact(_) | PathMatch::Regex(_)) => false,
        };
        any_path && self.headers.is_empty() && self.fraction.is_none_or(|share| share == TrafficFraction::ALL)
    }
}

/// What a header must be like.
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
    /// It is this text.
    pub fn exact(text: &str) -> HeaderMatch {
        HeaderMatch::of(HeaderCondition::Exact(text.to_owned()))
    }

    /// It begins so.
    pub fn prefix(text: &str) -> HeaderMatch {
        HeaderMatch::of(HeaderCondition::Prefix(text.to_owned()))
    }

    /// It ends so.
    pub fn suffix(text: &str) -> HeaderMatch {
        HeaderMatch::of(HeaderCondition::Suffix(text.to_owned()))
    }

    /// It has this in it.
    pub fn contains(text: &str) -> HeaderMatch {
        HeaderMatch::of(HeaderCondition::Contains(text.to_owned()))
    }

    /// All of it is matched by this expression, in RE2's notation.
    pub fn regex(regex: &str) -> HeaderMatch {
        HeaderMatch::of(HeaderCondition::Regex(regex.to_owned()))
    }

    /// It is a whole number, at least `from` and below `below`.
    pub fn range(from: i64, below: i64) -> HeaderMatch {
        HeaderMatch::of(HeaderCondition::Range { from, below })
    }

    /// It is there, or is not.
    pub fn present(yes: bool) -> HeaderMatch {
        HeaderMatch::of(HeaderCondition::Present(yes))
    }

    /// For upper and lower case. Numbers, expressions and presence have none.
    #[must_use]
    pub fn ignore_case(mut self) -> HeaderMatch {
        self.ignore_case = true;
        self
    }

    /// The opposite. A header that is not there matches neither.
    #[must_use]
    pub fn invert(mut self) -> HeaderMatch {
        self.invert = true;
        self
    }

    pub(super) fn of(test: HeaderCondition) -> HeaderMatch {
        HeaderMatch { test, ignore_case: false, invert: false }
    }
}

/// When a call is tried again.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteRetry {
    pub(super) on: Vec<RetryOn>,
    pub(super) attempts: Option<u32>,
    pub(super) backoff: Option<(Duration, Option<Duration>)>,
}

impl RouteRetry {
    /// Calls that end with one of these are tried again, once.
    pub fn on(statuses: impl IntoIterator<Item = RetryOn>) -> RouteRetry {
        RouteRetry { on: statuses.into_iter().collect(), attempts: None, backoff: None }
    }

    /// How often a call is tried at most, the first time included: 2 to 5.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> RouteRetry {
        self.attempts = Some(attempts);
        self
    }

    /// How long to wait before the second attempt, and before any later one at most.
    #[must_use]
    pub fn backoff(mut self, base: Duration, max: Duration) -> RouteRetry {
        self.backoff = Some((base, Some(max)));
        self
    }
}

/// The statuses that gRPC can retry on (A44).
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

    /// As Envoy's messages write it.
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

/// What a call is hashed by.
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
    /// A header.
    pub fn header(name: &str) -> RouteHash {
        RouteHash { by: RouteHashSource::Header { name: name.to_owned(), rewrite: None }, terminal: false }
    }

    /// A header, with what the expression matches replaced first (`\1` is its first group).
    pub fn rewritten_header(name: &str, regex: &str, with: &str) -> RouteHash {
        let rewrite = Some((regex.to_owned(), with.to_owned()));
        RouteHash { by: RouteHashSource::Header { name: name.to_owned(), rewrite }, terminal: false }
    }

    /// The channel: all its calls hash alike.
    pub fn channel_id() -> RouteHash {
        RouteHash { by: RouteHashSource::ChannelId, terminal: false }
    }

    /// Those after it are not looked at if it gave a hash.
    #[must_use]
    pub fn terminal(mut self) -> RouteHash {
        self.terminal = true;
        self
    }
}
