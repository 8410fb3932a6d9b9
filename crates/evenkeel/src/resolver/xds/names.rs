//! DNS names of the clusters of an xDS client: their watchers, results and due lookups.
//!
//! A name is resolved once for all channels. The worker performs the lookups; this module only schedules them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_core::{Address, Instant, Rng, Status};

use crate::resolver::dns::DnsRefresh;

/// Result of a DNS lookup.
pub(super) type DnsResult = Result<Vec<Address>, Status>;

/// All watched names, each with its port.
#[derive(Debug)]
pub(super) struct DnsCache {
    all: BTreeMap<Arc<str>, DnsEntry>,
    rng: Rng,
}

#[derive(Debug)]
struct DnsEntry {
    refresh: DnsRefresh,
    is_in_flight: bool,
    /// Result of the last lookup.
    result: Option<DnsResult>,
    /// Keys of the channels that watch the name.
    watchers: BTreeSet<u64>,
}

impl DnsCache {
    pub(super) fn new(rng: Rng) -> DnsCache {
        DnsCache { all: BTreeMap::new(), rng }
    }

    /// Replaces the set of names that a channel watches. Returns the cached results of the names added.
    pub(super) fn watch(&mut self, channel: u64, hosts: &BTreeSet<Arc<str>>) -> Vec<(Arc<str>, DnsResult)> {
        self.all.retain(|host, name| {
            if !hosts.contains(host) {
                name.watchers.remove(&channel);
            }
            // A name without watchers is removed with its schedule: it is resolved at once when it returns.
            !name.watchers.is_empty()
        });
        let mut known = Vec::new();
        for host in hosts {
            let name = self.all.entry(host.clone()).or_insert_with(DnsEntry::new);
            if name.watchers.insert(channel) {
                known.extend(name.result.clone().map(|result| (host.clone(), result)));
            }
        }
        known
    }

    /// Requests lookups of all names of a channel, because connections to their addresses fail.
    pub(super) fn request_reresolution(&mut self, channel: u64, now: Instant) {
        for name in self.all.values_mut().filter(|name| name.watchers.contains(&channel)) {
            name.refresh.request(now);
        }
    }

    /// Returns the names to resolve now. The caller passes each result to [`DnsCache::handle`].
    pub(super) fn poll(&mut self, now: Instant) -> Vec<Arc<str>> {
        let mut due = Vec::new();
        for (host, name) in &mut self.all {
            if name.deadline().is_some_and(|at| at <= now) {
                name.is_in_flight = true;
                due.push(host.clone());
            }
        }
        due
    }

    /// Returns the time of the next lookup.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.all.values().filter_map(DnsEntry::deadline).min()
    }

    /// Stores the result of a lookup. Returns the channels that watch the name.
    pub(super) fn handle(&mut self, host: &str, result: &DnsResult, now: Instant) -> BTreeSet<u64> {
        // The last watcher may have left during the lookup.
        let Some(name) = self.all.get_mut(host) else { return BTreeSet::new() };
        name.is_in_flight = false;
        match result {
            Ok(_) => name.refresh.resolved(now),
            Err(_) => name.refresh.failed(now, &mut self.rng),
        }
        name.result = Some(result.clone());
        name.watchers.clone()
    }
}

impl DnsEntry {
    fn new() -> DnsEntry {
        DnsEntry { refresh: DnsRefresh::new(), is_in_flight: false, result: None, watchers: BTreeSet::new() }
    }

    fn deadline(&self) -> Option<Instant> {
        self.refresh.due().filter(|_| !self.is_in_flight)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn set(hosts: &[&str]) -> BTreeSet<Arc<str>> {
        hosts.iter().map(|host| Arc::from(*host)).collect()
    }

    /// A name is resolved once for two channels, a later channel gets the cached result, and the last one removes it.
    #[test]
    fn a_name_is_looked_up_once_for_all() {
        let mut names = DnsCache::new(Rng::fixed(1));
        let start = Instant::ORIGIN;
        assert!(names.watch(1, &set(&["a:80"])).is_empty());
        assert_eq!(names.poll(start), [Arc::from("a:80")]);
        assert!(names.poll(start).is_empty(), "it is under way");
        assert!(names.watch(2, &set(&["a:80"])).is_empty());
        let result: DnsResult = Ok(vec![Address::Ip("10.0.0.1:80".parse().unwrap())]);
        assert_eq!(names.handle("a:80", &result, start), [1, 2].into());
        assert_eq!(names.watch(3, &set(&["a:80"])), [(Arc::from("a:80"), result.clone())]);
        assert!(names.watch(3, &set(&["a:80"])).is_empty(), "it knows that already");
        assert_eq!(names.next_deadline(), None);
        names.request_reresolution(3, start);
        assert_eq!(names.next_deadline(), Some(start + Duration::from_secs(30)));
        for channel in [1, 2, 3] {
            names.watch(channel, &set(&[]));
        }
        assert_eq!(names.next_deadline(), None);
        assert!(names.handle("a:80", &result, start).is_empty(), "nobody wants it any more");
    }

    /// A failed lookup is reported and retried without a request.
    #[test]
    fn failures_are_reported_and_retried() {
        let mut names = DnsCache::new(Rng::fixed(1));
        names.watch(1, &set(&["a:80", "b:80"]));
        assert_eq!(names.poll(Instant::ORIGIN).len(), 2);
        let failed: DnsResult = Err(Status::unavailable("no such name"));
        assert_eq!(names.handle("b:80", &failed, Instant::ORIGIN), [1].into());
        let again = names.next_deadline().unwrap();
        assert!(again > Instant::ORIGIN, "{again:?}");
        assert_eq!(names.poll(again), [Arc::from("b:80")]);
    }
}
