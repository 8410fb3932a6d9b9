//! DNS resolution with the resolver of the operating system.
//!
//! [`resolve`] performs one lookup. [`DnsRefresh`] decides when a name may be resolved again. It reads no clock:
//! [`DnsResolver`] waits until the lookup is due, performs it and reports the outcome.

use std::collections::HashSet;
use std::future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{Backoff, Endpoint, Endpoints, Instant, LbConfig, LbUpdate, Rng, Status};
use tokio::net::lookup_host;
use tokio::time::sleep_until;

use crate::clock;
use crate::resolver::ResolverUpdate;
use crate::resolver::progress::ResolutionProgress;
use crate::text::quoted;

/// Minimum time between a successful lookup and the next one, independent of the number of requests.
const MIN_INTERVAL: Duration = Duration::from_secs(30);

/// A DNS name that is resolved again when a policy requests it.
pub(crate) struct DnsResolver {
    host: Arc<str>,
    port: u16,
    config: LbConfig,
    refresh: DnsRefresh,
    rng: Rng,
    /// Time at which resolution started.
    started: Instant,
    running: Option<DnsLookup>,
}

type DnsLookup = Pin<Box<dyn Future<Output = Result<Vec<SocketAddr>, Status>> + Send>>;

impl DnsResolver {
    pub(crate) fn new(host: Arc<str>, port: u16, config: LbConfig, seed: u64) -> DnsResolver {
        DnsResolver {
            host,
            port,
            config,
            refresh: DnsRefresh::new(),
            rng: Rng::from_entropy(seed),
            started: clock::now(),
            running: None,
        }
    }

    pub(super) async fn next(&mut self) -> ResolverUpdate {
        if self.running.is_none() {
            match self.refresh.due() {
                Some(at) => sleep_until(clock::sleep_until(at)).await,
                None => future::pending().await,
            }
        }
        // The lookup stays in `running` if this future is dropped, so a cancelled `next` continues it.
        let (host, port) = (self.host.clone(), self.port);
        let resolving =
            self.running.get_or_insert_with(|| Box::pin(async move { resolve(&host, port).await }));
        let resolved = resolving.await;
        self.running = None;
        match resolved {
            Ok(addresses) => {
                self.refresh.resolved(clock::now());
                let endpoints = Endpoints::list(addresses.into_iter().map(Endpoint::at));
                ResolverUpdate::Resolved(LbUpdate::new(self.config.clone(), endpoints))
            }
            Err(status) => {
                self.refresh.failed(clock::now(), &mut self.rng);
                ResolverUpdate::Failed(status)
            }
        }
    }

    pub(super) fn progress(&self) -> ResolutionProgress {
        ResolutionProgress::Dns(self.host.clone(), self.started)
    }

    pub(super) fn reresolve(&mut self) {
        self.refresh.request(clock::now());
    }
}

/// Resolves a host, which is a name or an IP address without brackets. Returns at least one address, without
/// duplicates, in the order of the system. On failure, the status is the one for calls.
pub(crate) async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, Status> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let found = lookup_host((host, port)).await;
    let found = found.map_err(|error| unavailable(host, &format!("cannot be resolved: {error}")))?;
    let found = deduplicated(found);
    if found.is_empty() { Err(unavailable(host, "has no addresses")) } else { Ok(found) }
}

fn unavailable(host: &str, problem: &str) -> Status {
    Status::unavailable(format!("dns name {}: {problem}", quoted(host)))
}

fn deduplicated(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut seen = HashSet::new();
    addresses.filter(|address| seen.insert(*address)).collect()
}

/// Schedule of the lookups of one name.
///
/// ```text
/// new ──▶ due at once ──resolved──▶ not due ──requested──▶ due, at the earliest 30 s after it was resolved
///              │                       ▲
///            failed ──▶ due after a back-off ──resolved──┘
/// ```
///
/// Requests while a lookup is due or in progress are satisfied by that lookup.
#[derive(Debug)]
pub(crate) struct DnsRefresh {
    due: Option<Instant>,
    /// Time before which no further lookup starts.
    fresh_until: Instant,
    /// Number of consecutive failures.
    failures: u32,
}

impl DnsRefresh {
    /// Returns the schedule of a name that was never resolved: a lookup is due at once.
    pub(crate) fn new() -> DnsRefresh {
        DnsRefresh { due: Some(Instant::ORIGIN), fresh_until: Instant::ORIGIN, failures: 0 }
    }

    /// Requests a lookup, typically because connections to the known addresses fail.
    pub(crate) fn request(&mut self, now: Instant) {
        // A time that is set stays: a request must not end the back-off after a failure.
        self.due.get_or_insert(now.max(self.fresh_until));
    }

    /// Records a successful lookup.
    pub(crate) fn resolved(&mut self, now: Instant) {
        *self = DnsRefresh { due: None, fresh_until: now + MIN_INTERVAL, failures: 0 };
    }

    /// Records a failed lookup and schedules the next one after a back-off.
    pub(crate) fn failed(&mut self, now: Instant, rng: &mut Rng) {
        self.due = Some(now + Backoff::default().wait(self.failures, rng));
        self.failures = self.failures.saturating_add(1);
    }

    /// Returns the start time of the next lookup, which may be in the past; `None` if none is requested.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_core::Code;

    use super::*;

    fn at(seconds: f64) -> Instant {
        Instant::ORIGIN + Duration::from_secs_f64(seconds)
    }

    #[tokio::test]
    async fn literals_need_no_look_up() {
        for (host, address) in [("127.0.0.1", "127.0.0.1:80"), ("::1", "[::1]:80")] {
            assert_eq!(resolve(host, 80).await, Ok(vec![address.parse().unwrap()]));
        }
    }

    #[tokio::test]
    async fn names_are_looked_up() {
        let found = resolve("localhost", 80).await.unwrap();
        assert!(!found.is_empty());
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 80), "{found:?}");
        assert_eq!(deduplicated(found.iter().copied()), found);
    }

    #[tokio::test]
    async fn a_failure_names_the_name() {
        // Rejected before any query is sent, so the test needs no network.
        let status = resolve("no\0name", 80).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().starts_with("dns name \"no\\0name\": cannot be resolved: "), "{status}");
    }

    #[test]
    fn each_address_once_in_the_order_of_the_system() {
        let addresses = ["[::1]:80", "10.0.0.2:80", "10.0.0.1:80", "10.0.0.2:80", "10.0.0.2:81", "[::1]:80"];
        let addresses = addresses.map(|address| address.parse::<SocketAddr>().unwrap());
        let [six, two, one, _, port, _] = addresses;
        assert_eq!(deduplicated(addresses.into_iter()), [six, two, one, port]);
    }

    #[test]
    fn a_name_is_resolved_at_once_and_then_when_asked_but_not_too_often() {
        let mut refresh = DnsRefresh::new();
        assert_eq!(refresh.due(), Some(Instant::ORIGIN));
        refresh.request(at(1.0));
        assert_eq!(refresh.due(), Some(Instant::ORIGIN));
        refresh.resolved(at(2.0));
        assert_eq!(refresh.due(), None);
        refresh.request(at(3.0));
        assert_eq!(refresh.due(), Some(at(32.0)));
        refresh.request(at(31.0));
        assert_eq!(refresh.due(), Some(at(32.0)));
        refresh.resolved(at(33.0));
        assert_eq!(refresh.due(), None);
        refresh.request(at(100.0));
        assert_eq!(refresh.due(), Some(at(100.0)));
    }

    #[test]
    fn failures_are_repeated_with_growing_waits() {
        let mut rng = Rng::fixed(1);
        let mut refresh = DnsRefresh::new();
        let mut now = at(1000.0);
        for nominal in [1.0, 1.6, 2.56, 4.096] {
            refresh.failed(now, &mut rng);
            let due = refresh.due().unwrap();
            let share = due.since(now).as_secs_f64() / nominal;
            assert!((0.8..=1.2).contains(&share), "{nominal} s: {share}");
            // A request does not shorten the back-off.
            refresh.request(now);
            assert_eq!(refresh.due(), Some(due));
            now = due;
        }
        for _ in 0..100 {
            refresh.failed(now, &mut rng);
        }
        let wait = refresh.due().unwrap().since(now).as_secs_f64();
        assert!((96.0..=144.0).contains(&wait), "{wait}");
        refresh.resolved(now);
        refresh.request(now);
        refresh.failed(now, &mut rng);
        let wait = refresh.due().unwrap().since(now).as_secs_f64();
        assert!((0.8..=1.2).contains(&wait), "a success starts the waits again: {wait}");
    }
}
