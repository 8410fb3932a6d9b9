//! Load: what a backend says about itself (ORCA), and what calls to it add up to for the control plane (LRS).

pub(crate) mod call_counters;
pub(crate) mod measurement;
mod store;
mod sums;

pub use store::{ClusterLoad, ClusterStats, DropCount, LoadStore, LocalityLoad, LocalityStats};
pub use sums::MetricSum;

/// One load report, per call or out of band. Utilisations are shares of capacity, rates are per second; what was not
/// reported is 0 or absent, as on the wire.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadReport {
    /// CPU utilisation; may exceed 1 above a soft limit.
    pub cpu_utilization: f64,
    /// Memory utilisation, at most 1.
    pub mem_utilization: f64,
    /// The application's own view of its utilisation; beats CPU where it is above 0.
    pub application_utilization: f64,
    /// Requests per second (`rps_fractional` on the wire).
    pub requests_per_second: f64,
    /// Errors per second.
    pub errors_per_second: f64,
    /// Named utilisations.
    pub utilization: Vec<(String, f64)>,
    /// Named metrics of any meaning.
    pub named_metrics: Vec<(String, f64)>,
    /// Named costs of this request.
    pub request_cost: Vec<(String, f64)>,
}

impl LoadReport {
    /// The value under a metric name as A114 and A85 spell it: `cpu_utilization`, `mem_utilization`,
    /// `application_utilization`, `utilization.KEY`, `named_metrics.KEY`; the key is everything after the first dot.
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
