//! Where calls went and how they ended: for each driver that asks about the next calls, and since the start.
//!
//! A driver that asks is given the calls that *start* after its request, whatever the order in which they end: so a slow
//! server is counted as often as a fast one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tonic::metadata::{KeyAndValueRef, MetadataMap};
use tonic::{Code, Status};

use super::call::Answer;
use super::plan::Kind;
use crate::proto::testing::load_balancer_accumulated_stats_response::MethodStats;
use crate::proto::testing::load_balancer_stats_response::{MetadataEntry, MetadataType, RpcMetadata};
use crate::proto::testing::{
    LoadBalancerAccumulatedStatsResponse, LoadBalancerStatsRequest, LoadBalancerStatsResponse,
};

/// All calls of the process.
#[derive(Default)]
pub(crate) struct Stats {
    counted: Mutex<Counted>,
}

#[derive(Default)]
struct Counted {
    totals: BTreeMap<Kind, Totals>,
    /// Those that want more calls, and how many more.
    watchers: Vec<(Weak<Watcher>, usize)>,
}

#[derive(Default)]
struct Totals {
    started: i32,
    ended: BTreeMap<i32, i32>,
}

/// A driver that waits for the next calls.
struct Watcher {
    wanted: usize,
    keys: Keys,
    seen: watch::Sender<Seen>,
}

/// What became of the calls of a watcher so far.
#[derive(Default)]
struct Seen {
    ended: usize,
    answered: usize,
    told: LoadBalancerStatsResponse,
}

/// A call that has started and not ended.
pub(crate) struct Started {
    kind: Kind,
    watchers: Vec<Arc<Watcher>>,
}

impl Stats {
    /// A call begins.
    pub(crate) fn start(&self, kind: Kind) -> Started {
        let mut counted = self.counted();
        add_one(&mut counted.totals.entry(kind).or_default().started);
        let mut watchers = Vec::new();
        counted.watchers.retain_mut(|(watcher, wanted)| {
            // A driver that went away is forgotten.
            let Some(watcher) = watcher.upgrade() else { return false };
            watchers.push(watcher);
            *wanted -= 1;
            *wanted > 0
        });
        Started { kind, watchers }
    }

    /// A call has ended.
    pub(crate) fn end(&self, call: Started, outcome: &Result<Answer, Status>) {
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

    /// What became of the next calls, once all have ended or the time is over.
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

    /// What became of all calls since the start.
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

    /// Nothing panics while the lock is held.
    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher {
    fn see(&self, kind: Kind, answer: Option<&Answer>) {
        self.seen.send_modify(|seen| {
            seen.ended += 1;
            // An answer of nobody counts as a failure, as the published description has it.
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
        // If none of the calls had any of the metadata, nothing is told of it, as in C++.
        let mut of_calls = told.metadatas_by_peer.values().flat_map(|peer| &peer.rpc_metadata);
        if of_calls.all(|call| call.metadata.is_empty()) {
            told.metadatas_by_peer.clear();
        }
        told
    }
}

/// Which metadata of answers a driver wants to see.
enum Keys {
    All,
    /// In lower case.
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

    /// Headers of the protocol are not the application's, and libraries of other languages do not show them.
    fn contain(&self, key: &str) -> bool {
        match self {
            Keys::All => key != "content-type" && !key.starts_with("grpc-"),
            Keys::These(keys) => keys.iter().any(|wanted| wanted == key),
        }
    }

    fn chosen(&self, answer: &Answer) -> RpcMetadata {
        let parts = [(&answer.initial, MetadataType::Initial), (&answer.trailing, MetadataType::Trailing)];
        let mut metadata = Vec::new();
        for (map, kind) in parts {
            let all = entries(map).filter(|(key, _)| self.contain(key));
            metadata.extend(all.map(|(key, value)| MetadataEntry { key, value, r#type: kind.into() }));
        }
        RpcMetadata { metadata }
    }
}

/// Keys and values; binary ones as they are sent, in base64.
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

/// The counts of the published messages are narrow; a client that runs for weeks stays at the largest.
fn add_one(count: &mut i32) {
    *count = count.saturating_add(1);
}
