//! What metrics are made of, as values (A78, A91).
//!
//! A core that was built to [measure](crate::CoreBuilder::measure) gives these as [`LbEffect::Measure`](crate::LbEffect::Measure);
//! another one collects nothing. Instruments, their names and who exports them are somebody else's business.

use std::sync::Arc;

/// Something to be counted.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Measurement {
    /// `weighted_round_robin` looked its weights up.
    WeightUpdate(WeightUpdate),
    /// `outlier_detection` found outliers.
    OutlierCounts(OutlierCounts),
}

/// Where in the tree something was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LbLabels {
    /// The name of the cluster: the label `grpc.lb.backend_service` (A89).
    pub backend_service: Option<Arc<str>>,
    /// The locality, as the label `grpc.lb.locality` says it (A78).
    pub locality: Option<Arc<str>>,
}

/// One update of the scheduler of `weighted_round_robin` (A78). There is none while fewer than two endpoints are ready.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightUpdate {
    /// Where.
    pub labels: LbLabels,
    /// Whether fewer than two weights were usable.
    pub rr_fallback: bool,
    /// Endpoints that have not reported, or not for long enough.
    pub not_yet_usable: u64,
    /// Endpoints that have stopped reporting.
    pub stale: u64,
    /// The weight of each ready endpoint; 0 for one without a usable weight.
    pub weights: Vec<f64>,
}

/// What became of the outliers of one sweep that were found by one method (A91).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutlierCounts {
    /// The name of the cluster: the label `grpc.lb.backend_service` (A89).
    pub backend_service: Option<Arc<str>>,
    /// How they were found.
    pub method: DetectionMethod,
    /// Why they were not ejected; `None` if they were.
    pub unenforced: Option<UnenforcedReason>,
    /// How many, at least one.
    pub count: u64,
}

/// How an outlier was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DetectionMethod {
    /// Its success rate is far below that of its peers.
    SuccessRate,
    /// It fails too often, whatever its peers do.
    FailurePercentage,
}

impl DetectionMethod {
    /// The value of the label `grpc.lb.outlier_detection.detection_method`.
    pub fn as_str(self) -> &'static str {
        match self {
            DetectionMethod::SuccessRate => "success_rate",
            DetectionMethod::FailurePercentage => "failure_percentage",
        }
    }
}

/// Why an outlier was not ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnenforcedReason {
    /// Chance spared it: only so many percent of the outliers are to be ejected.
    EnforcementPercentage,
    /// Enough are ejected.
    MaxEjectionOverflow,
}

impl UnenforcedReason {
    /// The value of the label `grpc.lb.outlier_detection.unenforced_reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            UnenforcedReason::EnforcementPercentage => "enforcement_percentage",
            UnenforcedReason::MaxEjectionOverflow => "max_ejection_overflow",
        }
    }
}
