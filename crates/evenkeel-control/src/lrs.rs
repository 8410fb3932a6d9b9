//! Store of load reports (LRS): the latest counts of each client and locality, and their sums.
//!
//! Rows and the length of their names are bounded. The store neither reads a clock nor sends requests: `service` runs
//! the streams.

use std::collections::BTreeMap;
use std::time::SystemTime;

use evenkeel_proto::envoy::config::endpoint::v3::ClusterStats;

use crate::Locality;
use crate::limits::{LimitExceeded, check_length};

/// Maximum number of rows. Beyond it, the rows without a report for the longest time are evicted.
const MAX_ROWS: usize = 20_000;

/// Maximum length of the names in all rows, in bytes. Beyond it, the rows without a report for the longest time are
/// evicted.
const MAX_ROW_BYTES: usize = 16 << 20;

/// Load of one locality of a cluster, as one client reports it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LocalityLoadStats {
    /// Id of the client's node.
    pub node_id: String,
    /// Name of the cluster.
    pub cluster: String,
    /// Locality of the endpoints.
    pub locality: Locality,
    /// Priority of the locality; 0 is the highest.
    pub priority: u32,
    /// Counts of the latest report.
    pub latest: LoadCounts,
    /// Sum of all reports; `in_progress` is that of the latest.
    pub total: LoadCounts,
    /// Time of the latest report.
    pub at: SystemTime,
}

/// Calls that a client dropped, by a drop policy or circuit breaking.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DropStats {
    /// Id of the client's node.
    pub node_id: String,
    /// Name of the cluster.
    pub cluster: String,
    /// Drop category; `None` for circuit breaking.
    pub category: Option<String>,
    /// Number of drops in the latest report.
    pub latest: u64,
    /// Number of drops in all reports.
    pub total: u64,
    /// Time of the latest report.
    pub at: SystemTime,
}

/// Numbers of calls, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadCounts {
    /// Number of calls that were started.
    pub issued: u64,
    /// Number of calls that succeeded.
    pub succeeded: u64,
    /// Number of calls that failed.
    pub failed: u64,
    /// Number of calls that have not ended.
    pub in_progress: u64,
}

#[derive(Debug, Default)]
pub(crate) struct LoadStatsStore {
    localities: LoadTable<(String, String, u32, Locality), LocalityLoadStats>,
    drops: LoadTable<(String, String, Option<String>), DropStats>,
}

/// Returns an error if a name in a report is longer than `maximum` bytes.
pub(crate) fn check(stats: &ClusterStats, maximum: usize) -> Result<(), LimitExceeded> {
    check_length("a cluster name", stats.cluster_name.len(), maximum)?;
    for locality in stats.upstream_locality_stats.iter().filter_map(|stats| stats.locality.as_ref()) {
        for part in [&locality.region, &locality.zone, &locality.sub_zone] {
            check_length("a part of a locality", part.len(), maximum)?;
        }
    }
    let mut drops = stats.dropped_requests.iter();
    drops.try_for_each(|drops| check_length("a drop category", drops.category.len(), maximum))
}

impl LoadStatsStore {
    pub(crate) fn reports(&self) -> Vec<LocalityLoadStats> {
        self.localities.rows.values().cloned().collect()
    }

    pub(crate) fn drops(&self) -> Vec<DropStats> {
        self.drops.rows.values().cloned().collect()
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
            let row = self.localities.row(key, || LocalityLoadStats {
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
                // A gauge: the sum over reports has no meaning.
                in_progress: latest.in_progress,
            };
            row.at = now;
        }
        let dropped = stats.dropped_requests.iter().map(|drops| drops.dropped_count);
        let by_category = dropped.fold(0, u64::saturating_add);
        // Drops without a category are part of the total only.
        let others = stats.total_dropped_requests.saturating_sub(by_category);
        let named =
            stats.dropped_requests.into_iter().map(|drops| (Some(drops.category), drops.dropped_count));
        for (category, latest) in named.chain((others > 0).then_some((None, others))) {
            let key = (node_id.to_owned(), cluster.clone(), category.clone());
            let row = self.drops.row(key, || DropStats {
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
    }
}

/// Row of a [`LoadTable`], with the values that eviction needs.
trait LoadRow {
    /// Returns the time of the latest report.
    fn at(&self) -> SystemTime;

    /// Returns the length of all names in bytes.
    fn name_bytes(&self) -> usize;
}

impl LoadRow for LocalityLoadStats {
    fn at(&self) -> SystemTime {
        self.at
    }

    fn name_bytes(&self) -> usize {
        let Locality { region, zone, sub_zone } = &self.locality;
        [&self.node_id, &self.cluster, region, zone, sub_zone].map(String::len).iter().sum()
    }
}

impl LoadRow for DropStats {
    fn at(&self) -> SystemTime {
        self.at
    }

    fn name_bytes(&self) -> usize {
        let category = self.category.as_ref().map_or(0, String::len);
        self.node_id.len() + self.cluster.len() + category
    }
}

/// Rows by their keys, at most [`MAX_ROWS`] with names of at most [`MAX_ROW_BYTES`].
#[derive(Debug)]
struct LoadTable<K, R> {
    rows: BTreeMap<K, R>,
    name_bytes: usize,
}

impl<K, R> Default for LoadTable<K, R> {
    fn default() -> LoadTable<K, R> {
        LoadTable { rows: BTreeMap::new(), name_bytes: 0 }
    }
}

impl<K: Clone + Ord, R: LoadRow> LoadTable<K, R> {
    /// Returns the row of a key, and inserts it if it is missing. Older rows are evicted to make room.
    fn row(&mut self, key: K, new: impl FnOnce() -> R) -> &mut R {
        // An existing row needs no space.
        if !self.rows.contains_key(&key) {
            self.evict();
        }
        self.rows.entry(key).or_insert_with(|| {
            let row = new();
            self.name_bytes = self.name_bytes.saturating_add(row.name_bytes());
            row
        })
    }

    /// Evicts the oldest tenth once a limit is reached. So a flood of names costs no search per row.
    fn evict(&mut self) {
        if self.rows.len() < MAX_ROWS && self.name_bytes < MAX_ROW_BYTES {
            return;
        }
        let mut by_age: Vec<_> = self.rows.iter().map(|(key, row)| (row.at(), key.clone())).collect();
        by_age.sort();
        for (_, key) in by_age {
            // A tenth is evicted at once, so that sorting the rows is rare.
            if self.rows.len() < MAX_ROWS - MAX_ROWS / 10
                && self.name_bytes < MAX_ROW_BYTES - MAX_ROW_BYTES / 10
            {
                return;
            }
            if let Some(row) = self.rows.remove(&key) {
                self.name_bytes = self.name_bytes.saturating_sub(row.name_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use evenkeel_proto::envoy::config::core::v3::Locality as LocalityMessage;
    use evenkeel_proto::envoy::config::endpoint::v3::UpstreamLocalityStats;
    use evenkeel_proto::envoy::config::endpoint::v3::cluster_stats::DroppedRequests;

    use super::*;

    fn stats(cluster: &str, locality: Option<String>, count: u64) -> ClusterStats {
        let dropped = ["a", "b"]
            .map(|category| DroppedRequests { category: category.to_owned(), dropped_count: count });
        ClusterStats {
            cluster_name: cluster.to_owned(),
            upstream_locality_stats: vec![UpstreamLocalityStats {
                locality: locality.map(|zone| LocalityMessage { zone, ..LocalityMessage::default() }),
                total_issued_requests: count,
                total_successful_requests: count,
                total_error_requests: count,
                total_requests_in_progress: count,
                ..UpstreamLocalityStats::default()
            }],
            dropped_requests: dropped.into(),
            total_dropped_requests: count,
            ..ClusterStats::default()
        }
    }

    /// Counts at the end of their range neither panic nor wrap around.
    #[test]
    fn sums_saturate() {
        let mut loads = LoadStatsStore::default();
        for _ in 0..3 {
            loads.add("n", stats("c", None, u64::MAX), UNIX_EPOCH);
        }
        let [report] = &loads.reports()[..] else { panic!("one row") };
        let most = u64::MAX;
        let all = LoadCounts { issued: most, succeeded: most, failed: most, in_progress: most };
        assert_eq!((report.latest, report.total), (all, all));
        let drops: Vec<_> = loads.drops().into_iter().map(|drops| (drops.category, drops.total)).collect();
        assert_eq!(drops, [(Some("a".to_owned()), most), (Some("b".to_owned()), most)]);
    }

    /// A report with any number of rows, and of any length, holds no more than the tables do.
    #[test]
    fn rows_are_bounded_in_number_and_length() {
        let mut loads = LoadStatsStore::default();
        let mut many = stats("c", None, 1);
        let row = many.upstream_locality_stats[0].clone();
        many.upstream_locality_stats = (0..3 * MAX_ROWS)
            .map(|i| UpstreamLocalityStats { priority: u32::try_from(i).unwrap(), ..row.clone() })
            .collect();
        loads.add("n", many, UNIX_EPOCH);
        assert!(loads.reports().len() <= MAX_ROWS, "{}", loads.reports().len());
        for i in 0..10_000_u64 {
            let zone = format!("{i:04096}");
            loads.add("n", stats("c", Some(zone), 1), UNIX_EPOCH + Duration::from_secs(i));
            assert!(loads.localities.name_bytes <= MAX_ROW_BYTES + 8192);
        }
        let held: usize = loads.reports().iter().map(LoadRow::name_bytes).sum();
        assert_eq!(held, loads.localities.name_bytes);
        // The latest rows are kept.
        let latest = format!("{:04096}", 9_999);
        assert!(loads.reports().iter().any(|report| report.locality.zone == latest));
    }

    #[test]
    fn long_names_are_refused() {
        assert_eq!(check(&stats("c", Some("z".repeat(8)), 1), 8), Ok(()));
        let refused = check(&stats("c", Some("z".repeat(9)), 1), 8);
        assert_eq!(refused, Err(LimitExceeded("a part of a locality has at most 8 bytes".to_owned())));
    }
}
