//! Load: reports from backends (ORCA), and call statistics for the control plane (LRS).

pub(crate) mod call_counters;
pub(crate) mod measurement;
mod store;
mod sums;

pub use store::{ClusterLoad, ClusterStats, DropCount, LoadStore, LocalityLoad, LocalityStats};
pub use sums::MetricSum;

/// Load report of a backend, per call or out of band. Utilizations are fractions of capacity, rates are per
/// second. Values that were not reported are 0 or absent, as on the wire.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadReport {
    /// CPU utilization; may exceed 1 above a soft limit.
    pub cpu_utilization: f64,
    /// Memory utilization, at most 1.
    pub mem_utilization: f64,
    /// Application-specific utilization; takes precedence over CPU utilization if above 0.
    pub application_utilization: f64,
    /// Requests per second (`rps_fractional` on the wire).
    pub requests_per_second: f64,
    /// Failed requests per second (`eps` on the wire).
    pub errors_per_second: f64,
    /// Application-specific utilizations by name.
    pub utilization: Vec<(String, f64)>,
    /// Application-specific metrics by name.
    pub named_metrics: Vec<(String, f64)>,
    /// Costs of this request by name.
    pub request_cost: Vec<(String, f64)>,
}

impl LoadReport {
    /// Returns the value of a metric by its name in A114 and A85: `cpu_utilization`, `mem_utilization`,
    /// `application_utilization`, `utilization.KEY` or `named_metrics.KEY`. The key is everything after the
    /// first dot.
    pub fn metric(&self, name: &str) -> Option<f64> {
        match name {
            "cpu_utilization" => Some(self.cpu_utilization),
            "mem_utilization" => Some(self.mem_utilization),
            "application_utilization" => Some(self.application_utilization),
            _ => {
                let (map, key) = name.split_once('.')?;
                let map = match map {
                    "utilization" => &self.utilization,
                    "named_metrics" => &self.named_metrics,
                    _ => return None,
                };
                map.iter().find(|(k, _)| k == key).map(|(_, value)| *value)
            }
        }
    }
}
