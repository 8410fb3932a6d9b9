//! The sink of load reports (LRS): what clients say they sent where, the latest and the sum.

use std::collections::BTreeMap;
use std::time::SystemTime;

use evenkeel_proto::envoy::config::endpoint::v3::ClusterStats;

use crate::Locality;

/// How many rows are kept. When there are more, the ones that were silent longest go.
const MAX_ROWS: usize = 20_000;

/// The load of one locality of a cluster, as one client reports it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LoadReport {
    /// The id of the client's node.
    pub node_id: String,
    /// The cluster.
    pub cluster: String,
    /// The locality, and its priority.
    pub locality: Locality,
    /// 0 is the highest.
    pub priority: u32,
    /// What the last report said.
    pub latest: LoadCounts,
    /// All reports together; in progress is the latest.
    pub total: LoadCounts,
    /// When the last report came.
    pub at: SystemTime,
}

/// Calls that a client dropped on purpose.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DropReport {
    /// The id of the client's node.
    pub node_id: String,
    /// The cluster.
    pub cluster: String,
    /// Why; none is circuit breaking.
    pub category: Option<String>,
    /// How many in the last report.
    pub latest: u64,
    /// How many in all.
    pub total: u64,
    /// When the last report came.
    pub at: SystemTime,
}

/// Numbers of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadCounts {
    /// Begun.
    pub issued: u64,
    /// Ended well.
    pub succeeded: u64,
    /// Failed.
    pub failed: u64,
    /// Not ended.
    pub in_progress: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Loads {
    localities: BTreeMap<(String, String, u32, Locality), LoadReport>,
    drops: BTreeMap<(String, String, Option<String>), DropReport>,
}

impl Loads {
    pub(crate) fn reports(&self) -> Vec<LoadReport> {
        self.localities.values().cloned().collect()
    }

    pub(crate) fn drops(&self) -> Vec<DropReport> {
        self.drops.values().cloned().collect()
    }

    pub(crate) fn add(&mut self, node_id: &str, stats: ClusterStats, now: SystemTime) {
        let cluster = stats.cluster_name;
        for stats in stats.upstream_locality_stats {
            let locality = stats.locality.unwrap_or_default();
            let locality =
                Locality { region: locality.region, zone: locality.zone, sub_zone: locality.sub_zone };
            let latest = LoadCounts {
                issued: stats.total_issued_requests,
                succeeded: stats.total_successful_requests,
                failed: stats.total_error_requests,
                in_progress: stats.total_requests_in_progress,
            };
            let key = (node_id.to_owned(), cluster.clone(), stats.priority, locality.clone());
            let row = self.localities.entry(key).or_insert_with(|| LoadReport {
                node_id: node_id.to_owned(),
                cluster: cluster.clone(),
                locality,
                priority: stats.priority,
                latest,
                total: LoadCounts::default(),
                at: now,
            });
            row.latest = latest;
            row.total = LoadCounts {
                issued: row.total.issued.saturating_add(latest.issued),
                succeeded: row.total.succeeded.saturating_add(latest.succeeded),
                failed: row.total.failed.saturating_add(latest.failed),
                in_progress: latest.in_progress,
            };
            row.at = now;
        }
        let by_category: u64 = stats.dropped_requests.iter().map(|drops| drops.dropped_count).sum();
        let others = stats.total_dropped_requests.saturating_sub(by_category);
        let named =
            stats.dropped_requests.into_iter().map(|drops| (Some(drops.category), drops.dropped_count));
        for (category, latest) in named.chain((others > 0).then_some((None, others))) {
            let key = (node_id.to_owned(), cluster.clone(), category.clone());
            let row = self.drops.entry(key).or_insert_with(|| DropReport {
                node_id: node_id.to_owned(),
                cluster: cluster.clone(),
                category,
                latest,
                total: 0,
                at: now,
            });
            row.latest = latest;
            row.total = row.total.saturating_add(latest);
            row.at = now;
        }
        forget(&mut self.localities, |row| row.at);
        forget(&mut self.drops, |row| row.at);
    }
}

/// Makes room, a tenth at a time: a flood of names costs no search per row.
fn forget<K: Clone + Ord, R>(rows: &mut BTreeMap<K, R>, at: impl Fn(&R) -> SystemTime) {
    if rows.len() <= MAX_ROWS {
        return;
    }
    let mut by_age: Vec<_> = rows.iter().map(|(key, row)| (at(row), key.clone())).collect();
    by_age.sort();
    for (_, key) in by_age.into_iter().take(rows.len() - MAX_ROWS + MAX_ROWS / 10) {
        rows.remove(&key);
    }
}
