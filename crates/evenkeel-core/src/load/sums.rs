//! Sums of the metrics in per-call load reports (A64, A85).
//!
//! A report is added under a lock that is held for a few additions. Each locality has several shards with one
//! lock each. Calls alternate between the shards, so that contention is rare.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::store::lock;
use crate::LoadReport;
use crate::collections::fast_map::FastMap;
use crate::config::cluster::BackendMetrics;

/// Number of shards per locality.
const SHARDS: usize = 8;

/// Maximum number of named metrics per shard. Backends choose the names, and the next load report may be far
/// away.
const MAX_NAMES: usize = 1_000;

/// Sum of a metric over several calls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MetricSum {
    /// Number of calls that reported the metric.
    pub count: u64,
    /// Sum of the reported values; finite.
    pub total: f64,
}

impl MetricSum {
    /// Adds a value. Skips values that are not finite, since they would invalidate the sum.
    fn add(&mut self, value: f64) {
        if value.is_finite() {
            self.merge(MetricSum { count: 1, total: value });
        }
    }

    fn merge(&mut self, other: MetricSum) {
        self.count += other.count;
        // A clamped sum stays finite: infinity could not be reported.
        self.total = (self.total + other.total).clamp(f64::MIN, f64::MAX);
    }

    /// Adds a utilization. 0 means "not reported": the wire format does not distinguish the two.
    fn add_utilization(&mut self, value: f64) {
        if value > 0.0 {
            self.add(value);
        }
    }
}

/// Metric sums of one locality.
#[derive(Debug)]
pub(super) struct MetricSums {
    metrics: BackendMetrics,
    /// Shards of the sums; empty if no metric is enabled.
    shards: Box<[Mutex<SumShard>]>,
}

#[derive(Debug, Default)]
struct SumShard {
    cpu_utilization: MetricSum,
    mem_utilization: MetricSum,
    application_utilization: MetricSum,
    named: FastMap<String, MetricSum>,
    dropped: u64,
}

/// Sums since the last report.
#[derive(Debug, Default)]
pub(super) struct DrainedSums {
    pub(super) cpu_utilization: MetricSum,
    pub(super) mem_utilization: MetricSum,
    pub(super) application_utilization: MetricSum,
    pub(super) named: BTreeMap<String, MetricSum>,
    pub(super) dropped: u64,
}

impl MetricSums {
    pub(super) fn new(metrics: &BackendMetrics) -> MetricSums {
        let shards = if *metrics == BackendMetrics::default() { 0 } else { SHARDS };
        MetricSums { metrics: metrics.clone(), shards: (0..shards).map(|_| Mutex::default()).collect() }
    }

    pub(super) fn is_enabled(&self) -> bool {
        !self.shards.is_empty()
    }

    /// Adds the report of a call; `turn` selects the shard.
    pub(super) fn add(&self, report: &LoadReport, turn: u64) {
        // Consecutive calls use different shards, so that threads rarely wait for each other.
        let Some(shard) = self.shards.get(turn as usize % SHARDS) else { return };
        let shard = &mut *lock(shard);
        if self.metrics.cpu_utilization {
            shard.cpu_utilization.add_utilization(report.cpu_utilization);
        }
        if self.metrics.mem_utilization {
            shard.mem_utilization.add_utilization(report.mem_utilization);
        }
        if self.metrics.application_utilization {
            shard.application_utilization.add_utilization(report.application_utilization);
        }
        for (name, value) in &report.named_metrics {
            if !self.metrics.all_named && !self.metrics.named.contains(name) {
                continue;
            }
            if let Some(sum) = shard.named.get_mut(name) {
                sum.add(*value);
            } else if shard.named.len() < MAX_NAMES {
                shard.named.entry(name.clone()).or_default().add(*value);
            } else {
                shard.dropped += 1;
            }
        }
    }

    pub(super) fn take(&self) -> DrainedSums {
        let mut taken = DrainedSums::default();
        for shard in &self.shards {
            let shard = &mut *lock(shard);
            taken.cpu_utilization.merge(std::mem::take(&mut shard.cpu_utilization));
            taken.mem_utilization.merge(std::mem::take(&mut shard.mem_utilization));
            taken.application_utilization.merge(std::mem::take(&mut shard.application_utilization));
            taken.dropped += std::mem::take(&mut shard.dropped);
            // Names that were used are kept for the next interval, so that calls need not allocate them
            // again.
            shard.named.retain(|name, sum| {
                let sum = std::mem::take(sum);
                if sum.count > 0 {
                    taken.named.entry(name.clone()).or_default().merge(sum);
                }
                sum.count > 0
            });
        }
        taken
    }
}
