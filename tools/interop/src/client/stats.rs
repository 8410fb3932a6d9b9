//! Distribution and results of calls: for each driver that requests the next calls, and since the start.
//!
//! A driver gets the calls that *start* after its request, in any order of completion. A slow server is thus
//! counted as often as a fast one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tonic::metadata::{KeyAndValueRef, MetadataMap};
use tonic::{Code, Status};

use super::call::CallResponse;
use super::plan::Kind;
use crate::proto::testing::load_balancer_accumulated_stats_response::MethodStats;
use crate::proto::testing::load_balancer_stats_response::{MetadataEntry, MetadataType, RpcMetadata};
use crate::proto::testing::{
    LoadBalancerAccumulatedStatsResponse, LoadBalancerStatsRequest, LoadBalancerStatsResponse,
};
use crate::sync::lock;

/// Statistics of all calls of the process.
#[derive(Default)]
pub(crate) struct Stats {
    counted: Mutex<CallTotals>,
}

#[derive(Default)]
struct CallTotals {
    totals: BTreeMap<Kind, Totals>,
    /// Pending requests, each with the number of calls that it still needs.
    watchers: Vec<(Weak<Watcher>, usize)>,
}

#[derive(Default)]
struct Totals {
    started: i32,
    ended: BTreeMap<i32, i32>,
}

/// Pending request of a driver.
struct Watcher {
    wanted: usize,
    keys: Keys,
    seen: watch::Sender<WatcherTotals>,
}

/// Results of one request's calls.
#[derive(Default)]
struct WatcherTotals {
    ended: usize,
    answered: usize,
    told: LoadBalancerStatsResponse,
}

/// Call that has started and not ended.
pub(crate) struct Started {
    kind: Kind,
    watchers: Vec<Arc<Watcher>>,
}

impl Stats {
    /// Counts a call as started.
    pub(crate) fn start(&self, kind: Kind) -> Started {
        let mut counted = self.counted();
        add_one(&mut counted.totals.entry(kind).or_default().started);
        let mut watchers = Vec::new();
        counted.watchers.retain_mut(|(watcher, wanted)| {
            // Drop requests of drivers that have disconnected.
            let Some(watcher) = watcher.upgrade() else { return false };
            watchers.push(watcher);
            *wanted -= 1;
            *wanted > 0
        });
        Started { kind, watchers }
    }

    /// Counts a call as ended.
    pub(crate) fn end(&self, call: Started, outcome: &Result<CallResponse, Status>) {
        let code = outcome.as_ref().map_or_else(Status::code, |_| Code::Ok);
        {
            let mut counted = self.counted();
            let totals = counted.totals.entry(call.kind).or_default();
            add_one(totals.ended.entry(code.into()).or_default());
        }
        for watcher in call.watchers {
            watcher.see(call.kind, outcome.as_ref().ok());
        }
    }

    /// Returns the results of the next calls, once all have ended or on timeout.
    pub(crate) async fn next_calls(
        &self,
        request: LoadBalancerStatsRequest,
    ) -> Result<LoadBalancerStatsResponse, String> {
        let wanted = at_least_zero("num_rpcs", request.num_rpcs)?;
        let limit = at_least_zero("timeout_sec", request.timeout_sec)?;
        let keys = Keys::of(&request.metadata_keys);
        let watcher = Arc::new(Watcher { wanted, keys, seen: watch::Sender::default() });
        let mut seen = watcher.seen.subscribe();
        if wanted > 0 {
            self.counted().watchers.push((Arc::downgrade(&watcher), wanted));
        }
        let all_ended = seen.wait_for(|seen| seen.ended == wanted);
        let _ = timeout(Duration::from_secs(limit as u64), all_ended).await.map(drop);
        Ok(watcher.told())
    }

    /// Returns the results of all calls since the start.
    pub(crate) fn accumulated(&self) -> LoadBalancerAccumulatedStatsResponse {
        let mut told = LoadBalancerAccumulatedStatsResponse::default();
        for (kind, totals) in &self.counted().totals {
            let name = || kind.type_name().to_owned();
            let succeeded = totals.ended.get(&Code::Ok.into()).copied().unwrap_or_default();
            let ended = totals.ended.values().fold(0, |sum: i32, count| sum.saturating_add(*count));
            told.num_rpcs_started_by_method.insert(name(), totals.started);
            told.num_rpcs_succeeded_by_method.insert(name(), succeeded);
            told.num_rpcs_failed_by_method.insert(name(), ended - succeeded);
            let result = totals.ended.iter().map(|(code, count)| (*code, *count)).collect();
            told.stats_per_method.insert(name(), MethodStats { rpcs_started: totals.started, result });
        }
        told
    }

    /// Locks the statistics. Poisoning is ignored: no code panics while holding the lock.
    fn counted(&self) -> MutexGuard<'_, CallTotals> {
        lock(&self.counted)
    }
}

impl Watcher {
    fn see(&self, kind: Kind, answer: Option<&CallResponse>) {
        self.seen.send_modify(|seen| {
            seen.ended += 1;
            // A response without a host name counts as a failure, as the published description requires.
            let Some((answer, peer)) = answer.and_then(|answer| Some((answer, answer.peer.as_ref()?))) else {
                return;
            };
            seen.answered += 1;
            let told = &mut seen.told;
            add_one(told.rpcs_by_peer.entry(peer.clone()).or_default());
            let by_method = told.rpcs_by_method.entry(kind.name().to_owned()).or_default();
            add_one(by_method.rpcs_by_peer.entry(peer.clone()).or_default());
            if !self.keys.is_empty() {
                let of_peer = told.metadatas_by_peer.entry(peer.clone()).or_default();
                of_peer.rpc_metadata.push(self.keys.chosen(answer));
            }
        });
    }

    fn told(&self) -> LoadBalancerStatsResponse {
        let seen = self.seen.borrow();
        let mut told = seen.told.clone();
        told.num_failures = i32::try_from(self.wanted - seen.answered).unwrap_or(i32::MAX);
        // Metadata is omitted if no call had any, as in C++.
        let mut of_calls = told.metadatas_by_peer.values().flat_map(|peer| &peer.rpc_metadata);
        if of_calls.all(|call| call.metadata.is_empty()) {
            told.metadatas_by_peer.clear();
        }
        told
    }
}

/// Response metadata keys that a driver requests.
enum Keys {
    All,
    /// Keys in lower case.
    These(Vec<String>),
}

impl Keys {
    fn of(keys: &[String]) -> Keys {
        if keys.iter().any(|key| key.trim() == "*") {
            return Keys::All;
        }
        Keys::These(keys.iter().map(|key| key.to_ascii_lowercase()).collect())
    }

    fn is_empty(&self) -> bool {
        matches!(self, Keys::These(keys) if keys.is_empty())
    }

    /// Returns true for a requested key. Protocol headers are excluded from `All`, as in other languages'
    /// clients.
    fn contain(&self, key: &str) -> bool {
        match self {
            Keys::All => key != "content-type" && !key.starts_with("grpc-"),
            Keys::These(keys) => keys.iter().any(|wanted| wanted == key),
        }
    }

    fn chosen(&self, answer: &CallResponse) -> RpcMetadata {
        let parts = [(&answer.initial, MetadataType::Initial), (&answer.trailing, MetadataType::Trailing)];
        let mut metadata = Vec::new();
        for (map, kind) in parts {
            let all = entries(map).filter(|(key, _)| self.contain(key));
            metadata.extend(all.map(|(key, value)| MetadataEntry { key, value, r#type: kind.into() }));
        }
        RpcMetadata { metadata }
    }
}

/// Returns keys and values; binary values in base64, as on the wire.
fn entries(map: &MetadataMap) -> impl Iterator<Item = (String, String)> {
    map.iter().map(|entry| match entry {
        KeyAndValueRef::Ascii(key, value) => (key.to_string(), lossy(value.as_encoded_bytes())),
        KeyAndValueRef::Binary(key, value) => (key.to_string(), lossy(value.as_encoded_bytes())),
    })
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn at_least_zero(name: &str, number: i32) -> Result<usize, String> {
    usize::try_from(number).map_err(|_| format!("{name}: expected 0 or more, found {number}"))
}

/// Increments a counter. The published messages use `i32`, so it saturates.
fn add_one(count: &mut i32) {
    *count = count.saturating_add(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(num_rpcs: i32, timeout_sec: i32, keys: &[&str]) -> LoadBalancerStatsRequest {
        let metadata_keys = keys.iter().map(|key| (*key).to_owned()).collect();
        LoadBalancerStatsRequest { num_rpcs, timeout_sec, metadata_keys }
    }

    fn answer(peer: &str) -> CallResponse {
        let peer = Some(peer.to_owned()).filter(|peer| !peer.is_empty());
        CallResponse { peer, address: None, initial: MetadataMap::new(), trailing: MetadataMap::new() }
    }

    /// Sends a driver's request, and runs `meanwhile` while it waits.
    async fn ask(
        stats: &Stats,
        request: LoadBalancerStatsRequest,
        meanwhile: impl FnOnce(),
    ) -> LoadBalancerStatsResponse {
        // Biased: the request is registered before the work starts.
        let (told, ()) = tokio::join!(biased; stats.next_calls(request), async { meanwhile() });
        told.unwrap()
    }

    /// Only calls that start after the request are counted, in any order of completion.
    #[tokio::test]
    async fn a_block_has_calls_that_start_after_the_request() {
        let stats = Stats::default();
        let before = stats.start(Kind::Unary);
        let told = ask(&stats, request(3, 30, &[]), || {
            let [slow, fast, failed, later] =
                [Kind::Unary, Kind::Unary, Kind::Empty, Kind::Unary].map(|kind| stats.start(kind));
            stats.end(before, &Ok(answer("before")));
            stats.end(later, &Ok(answer("later")));
            stats.end(fast, &Ok(answer("fast")));
            stats.end(failed, &Err(Status::unavailable("gone")));
            stats.end(slow, &Ok(answer("slow")));
        });
        let told = told.await;
        assert_eq!(told.rpcs_by_peer.keys().collect::<Vec<_>>(), ["fast", "slow"]);
        assert_eq!(told.rpcs_by_method.keys().collect::<Vec<_>>(), ["UnaryCall"]);
        assert_eq!(told.num_failures, 1);
        assert!(stats.counted().watchers.is_empty());

        let total = stats.accumulated();
        let unary = &total.stats_per_method["UNARY_CALL"];
        assert_eq!((unary.rpcs_started, unary.result[&0]), (4, 4));
        assert_eq!(total.stats_per_method["EMPTY_CALL"].result[&14], 1);
        assert_eq!(total.num_rpcs_failed_by_method["EMPTY_CALL"], 1);
        assert_eq!(total.num_rpcs_failed_by_method["UNARY_CALL"], 0);
    }

    /// Calls that did not end or start in time are failures, and so is a response without a host name.
    #[tokio::test]
    async fn calls_missing_at_the_timeout_have_failed() {
        let stats = Stats::default();
        let mut open = None;
        let told = ask(&stats, request(4, 1, &[]), || {
            let [named, unnamed] = [Kind::Empty, Kind::Empty].map(|kind| stats.start(kind));
            open = Some(stats.start(Kind::Empty));
            stats.end(named, &Ok(answer("a")));
            stats.end(unnamed, &Ok(answer("")));
        });
        let told = told.await;
        assert_eq!((told.rpcs_by_peer["a"], told.num_failures), (1, 3));
        stats.start(Kind::Empty);
        assert!(stats.counted().watchers.is_empty(), "the driver is gone");

        assert_eq!(stats.next_calls(request(0, 5, &[])).await.unwrap(), LoadBalancerStatsResponse::default());
        let refused = stats.next_calls(request(-1, 5, &[])).await;
        assert_eq!(refused, Err("num_rpcs: expected 0 or more, found -1".to_owned()));
        let refused = stats.next_calls(request(1, -5, &[])).await;
        assert_eq!(refused, Err("timeout_sec: expected 0 or more, found -5".to_owned()));
    }

    #[tokio::test]
    async fn metadata_is_reported_by_call_and_kind() {
        let mut marked = answer("a");
        marked.initial.insert("cookie", "1".parse().unwrap());
        marked.initial.insert("content-type", "application/grpc".parse().unwrap());
        marked.trailing.insert("cookie", "2".parse().unwrap());
        marked.trailing.insert_bin("load-bin", tonic::metadata::MetadataValue::from_bytes(b"x"));
        let marked = Ok(marked);
        let rows = [
            (vec!["Cookie"], "INITIAL cookie=1, TRAILING cookie=2"),
            (vec!["other", " * "], "INITIAL cookie=1, TRAILING cookie=2, TRAILING load-bin=eA"),
            (vec!["content-type"], "INITIAL content-type=application/grpc"),
        ];
        for (keys, expected) in rows {
            let stats = Stats::default();
            let told = ask(&stats, request(2, 30, &keys), || {
                stats.end(stats.start(Kind::Unary), &marked);
                stats.end(stats.start(Kind::Unary), &Ok(answer("a")));
            });
            let told = told.await;
            let text = |entry: &MetadataEntry| {
                format!("{} {}={}", entry.r#type().as_str_name(), entry.key, entry.value)
            };
            let of = |call: &RpcMetadata| call.metadata.iter().map(text).collect::<Vec<_>>().join(", ");
            let calls: Vec<_> = told.metadatas_by_peer["a"].rpc_metadata.iter().map(of).collect();
            assert_eq!(calls, [expected, ""], "{keys:?}");
        }
    }
}
