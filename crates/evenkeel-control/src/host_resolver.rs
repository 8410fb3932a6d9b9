//! Looks up the host names of endpoints, and keeps the last addresses of each.
//!
//! A name that cannot be resolved keeps its last addresses. Time is an argument: the watcher of the mesh file decides when
//! to wait.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Interval between lookups of all names: the usual TTL in clusters, and the minimum of gRPC's DNS resolvers. The system's
/// resolver does not return TTLs.
const REFRESH_INTERVAL: Duration = Duration::from_secs(30);

/// Interval between lookups while a name cannot be resolved, for backends that start after the control plane.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum time of all lookups of one update. Edits of the file wait for it.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of concurrent lookups, each of which blocks a thread.
const MAX_LOOKUPS: usize = 16;

/// Blocking lookup of a host name.
pub(crate) type HostLookup = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// Last addresses of the host names of a mesh.
pub(crate) struct HostResolver {
    lookup: Arc<HostLookup>,
    slots: Arc<Semaphore>,
    addresses: BTreeMap<String, Vec<IpAddr>>,
    /// Names whose last lookup failed.
    failing: BTreeSet<String>,
    /// Number of the last round in which a lookup of the name ended.
    ended_in: BTreeMap<String, u64>,
    round: u64,
    /// Time of the next lookup of all names; `None` without names.
    next_refresh: Option<Instant>,
}

/// Names with another result than before.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct HostChanges {
    /// True if a name has other addresses, or can be resolved again.
    pub(crate) is_resolved: bool,
    /// Reasons of the names that can no longer be resolved.
    pub(crate) failures: BTreeMap<String, String>,
}

impl HostResolver {
    /// Creates a resolver that uses the system's: `/etc/hosts` and DNS.
    pub(crate) fn system() -> HostResolver {
        HostResolver::new(Arc::new(|host: &str| {
            Ok((host, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
        }))
    }

    pub(crate) fn new(lookup: Arc<HostLookup>) -> HostResolver {
        HostResolver {
            lookup,
            slots: Arc::new(Semaphore::new(MAX_LOOKUPS)),
            addresses: BTreeMap::new(),
            failing: BTreeSet::new(),
            ended_in: BTreeMap::new(),
            round: 0,
            next_refresh: None,
        }
    }

    /// Returns the last addresses of a name; none if it was never resolved.
    pub(crate) fn addresses(&self, host: &str) -> Vec<IpAddr> {
        self.addresses.get(host).cloned().unwrap_or_default()
    }

    /// Returns the time of the next refresh, if there are names.
    pub(crate) fn next_refresh(&self) -> Option<Instant> {
        self.next_refresh
    }

    /// Replaces the names, and looks up those that have no addresses.
    pub(crate) async fn set_names(&mut self, names: BTreeSet<String>, now: Instant) -> HostChanges {
        self.addresses.retain(|name, _| names.contains(name));
        self.failing.retain(|name| names.contains(name));
        self.ended_in.retain(|name, _| names.contains(name));
        let unknown = names.iter().filter(|name| !self.addresses.contains_key(*name)).cloned().collect();
        let changes = self.update(unknown).await;
        self.schedule(!names.is_empty(), now);
        changes
    }

    /// Looks up all of these names.
    pub(crate) async fn refresh(&mut self, names: BTreeSet<String>, now: Instant) -> HostChanges {
        let has_names = !names.is_empty();
        let changes = self.update(names).await;
        self.schedule(has_names, now);
        changes
    }

    fn schedule(&mut self, has_names: bool, now: Instant) {
        let interval = if self.failing.is_empty() { REFRESH_INTERVAL } else { RETRY_INTERVAL };
        self.next_refresh = has_names.then(|| now + interval);
    }

    async fn update(&mut self, names: BTreeSet<String>) -> HostChanges {
        let mut changes = HostChanges::default();
        let results = self.look_up(self.ordered(names)).await;
        self.round = self.round.saturating_add(1);
        for (name, result) in results {
            let result = match result {
                Some(result) => {
                    self.ended_in.insert(name.clone(), self.round);
                    result
                }
                None => Err(format!("no response within {} s", LOOKUP_TIMEOUT.as_secs())),
            };
            match result {
                Ok(mut addresses) => {
                    // Lookups return them in any order.
                    addresses.sort_unstable();
                    addresses.dedup();
                    let has_recovered = self.failing.remove(&name);
                    changes.is_resolved |= has_recovered || self.addresses.get(&name) != Some(&addresses);
                    self.addresses.insert(name, addresses);
                }
                Err(reason) => {
                    if self.failing.insert(name.clone()) {
                        changes.failures.insert(name, reason);
                    }
                }
            }
        }
        changes
    }

    /// Returns the names in the order of their lookups: first those that waited longest. Otherwise slow lookups could keep
    /// the same names from their turn in every round.
    fn ordered(&self, names: BTreeSet<String>) -> Vec<String> {
        let mut ordered: Vec<_> = names.into_iter().collect();
        ordered.sort_by_key(|name| self.ended_in.get(name).copied().unwrap_or_default());
        ordered
    }

    /// Looks up names concurrently. A name without a result until the timeout has `None`.
    async fn look_up(&self, names: Vec<String>) -> BTreeMap<String, Option<Result<Vec<IpAddr>, String>>> {
        let mut results: BTreeMap<_, _> = names.iter().map(|name| (name.clone(), None)).collect();
        let mut lookups = JoinSet::new();
        for name in names {
            let (lookup, slots) = (Arc::clone(&self.lookup), Arc::clone(&self.slots));
            lookups.spawn(async move {
                let slot = slots.acquire_owned().await.ok()?;
                let found = tokio::task::spawn_blocking(move || {
                    let result = match lookup(&name) {
                        Ok(addresses) if addresses.is_empty() => Err("it has no addresses".to_owned()),
                        other => other.map_err(|error| error.to_string()),
                    };
                    // A lookup cannot be cancelled. Its thread counts until it ends, also after the timeout.
                    drop(slot);
                    (name, result)
                });
                found.await.ok()
            });
        }
        let all = async {
            while let Some(done) = lookups.join_next().await {
                if let Ok(Some((name, result))) = done {
                    results.insert(name, Some(result));
                }
            }
        };
        // After the timeout, the others have no result.
        let _ = tokio::time::timeout(LOOKUP_TIMEOUT, all).await;
        results
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(of: &[&str]) -> BTreeSet<String> {
        of.iter().map(|name| (*name).to_owned()).collect()
    }

    /// With more names than a slow server can resolve in a round, each has its turn.
    #[tokio::test]
    async fn names_that_waited_longest_come_first() {
        let mut resolver = HostResolver::new(Arc::new(|_: &str| Ok(vec![[10, 0, 0, 1].into()])));
        let now = Instant::now();
        let changes = resolver.set_names(names(&["a", "c"]), now).await;
        assert_eq!(changes, HostChanges { is_resolved: true, failures: BTreeMap::new() });
        resolver.refresh(names(&["a"]), now).await;
        assert_eq!(resolver.ordered(names(&["a", "b", "c"])), ["b", "c", "a"]);
        assert_eq!(resolver.next_refresh(), Some(now + REFRESH_INTERVAL));
        resolver.set_names(BTreeSet::new(), now).await;
        assert_eq!((resolver.next_refresh(), resolver.addresses("a")), (None, Vec::new()));
    }
}
