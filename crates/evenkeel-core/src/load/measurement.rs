//! Measurements for metrics, as values (A78, A91).
//!
//! A core built with [`measure`](crate::CoreBuilder::measure) returns them as
//! [`LbEffect::Measure`](crate::LbEffect::Measure); otherwise it collects nothing. Instruments, their names
//! and exporters are left to the driver.

use std::sync::Arc;

/// Single measurement of a policy.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Measurement {
    /// Weight update of `weighted_round_robin`.
    WeightUpdate(WeightUpdate),
    /// Outliers detected by `outlier_detection_experimental`.
    OutlierCounts(OutlierCounts),
}

/// Labels of a measurement: its position in the policy tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LbLabels {
    /// Name of the cluster: the label `grpc.lb.backend_service` (A89).
    pub backend_service: Option<Arc<str>>,
    /// Locality in the form of the label `grpc.lb.locality` (A78).
    pub locality: Option<Arc<str>>,
}

/// Scheduler update of `weighted_round_robin` (A78). Reported only if at least two endpoints are ready.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightUpdate {
    /// Labels of the policy.
    pub labels: LbLabels,
    /// True if fewer than two weights were usable.
    pub rr_fallback: bool,
    /// Number of endpoints without a report, or in their blackout period.
    pub not_yet_usable: u64,
    /// Number of endpoints with an expired weight.
    pub stale: u64,
    /// Weight of each ready endpoint; 0 for an unusable weight.
    pub weights: Vec<f64>,
}

/// Outliers of one sweep by detection method and outcome (A91).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutlierCounts {
    /// Name of the cluster: the label `grpc.lb.backend_service` (A89).
    pub backend_service: Option<Arc<str>>,
    /// Algorithm that detected them.
    pub method: DetectionMethod,
    /// Reason why they were not ejected; `None` if they were.
    pub unenforced: Option<UnenforcedReason>,
    /// Number of outliers, at least one.
    pub count: u64,
}

/// Algorithm of outlier detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DetectionMethod {
    /// Success rate far below the mean of all endpoints.
    SuccessRate,
    /// Failure percentage above a fixed threshold.
    FailurePercentage,
}

impl DetectionMethod {
    /// Returns the value of the label `grpc.lb.outlier_detection.detection_method`.
    pub fn as_str(self) -> &'static str {
        match self {
            DetectionMethod::SuccessRate => "success_rate",
            DetectionMethod::FailurePercentage => "failure_percentage",
        }
    }
}

/// Reason why a detected outlier was not ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnenforcedReason {
    /// Spared at random by the enforcement percentage.
    EnforcementPercentage,
    /// Spared because the maximum ejection percentage was reached.
    MaxEjectionOverflow,
}

impl UnenforcedReason {
    /// Returns the value of the label `grpc.lb.outlier_detection.unenforced_reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            UnenforcedReason::EnforcementPercentage => "enforcement_percentage",
            UnenforcedReason::MaxEjectionOverflow => "max_ejection_overflow",
        }
    }
}
