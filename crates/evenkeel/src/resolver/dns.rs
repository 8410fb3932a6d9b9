//! From names to addresses, with the resolver of the system.
//!
//! [`resolve`] asks once. [`DnsRefresh`] knows when a name may be asked for again; it reads no clock, and whoever follows a
//! name keeps one, waits until it is due and tells it how that went.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use evenkeel_core::{Backoff, Instant, Rng, Status};
use tokio::net::lookup_host;

use crate::text::quoted;

/// A name that was resolved is not asked for again for so long, however often its addresses fail.
const MIN_INTERVAL: Duration = Duration::from_secs(30);

/// The addresses of a host, which is a name or an IP address without brackets, in the order of the system and each once;
/// at least one. The status is what calls see meanwhile.
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

/// When a name is to be resolved.
///
/// ```text
/// new ──▶ due at once ──resolved──▶ not due ──asked──▶ due, at the earliest 30 s after it was resolved
///              │                       ▲
///            failed ──▶ due after a back-off ──resolved──┘
/// ```
///
/// What is asked for while a look-up is due or under way is answered by that look-up.
#[derive(Debug)]
pub(crate) struct DnsRefresh {
    due: Option<Instant>,
    /// Until when the addresses are too fresh to be asked for again.
    fresh_until: Instant,
    /// How many look-ups failed in a row.
    failures: u32,
}

impl DnsRefresh {
    /// A name that was never resolved: due at once.
    pub(crate) fn new() -> DnsRefresh {
        DnsRefresh { due: Some(Instant::ORIGIN), fresh_until: Instant::ORIGIN, failures: 0 }
    }

    /// Somebody wants the addresses again, most likely as those that we have do not work.
    pub(crate) fn request(&mut self, now: Instant) {
        self.due.get_or_insert(now.max(self.fresh_until));
    }

    /// The name was resolved.
    pub(crate) fn resolved(&mut self, now: Instant) {
        *self = DnsRefresh { due: None, fresh_until: now + MIN_INTERVAL, failures: 0 };
    }

    /// The name could not be resolved.
    pub(crate) fn failed(&mut self, now: Instant, rng: &mut Rng) {
        self.due = Some(now + Backoff::default().wait(self.failures, rng));
        self.failures = self.failures.saturating_add(1);
    }

    /// When the next look-up is to start, which may be past; `None` while nobody wants one.
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
        // Refused before anybody is asked, so that the test needs no network.
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
            // Asking does not shorten the wait.
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
