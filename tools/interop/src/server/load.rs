//! Load reports of the server: from requests and flags only.
//!
//! Per-call and out-of-band reports are separate, so that a case about one cannot pass by the other. Nothing
//! is measured: a client sees exactly what it sent, and weights follow from the flags.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_orca::{CallLoad, LoadLayer, LoadService, ServerLoad};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tonic::Status;

use crate::proto::testing::TestOrcaReport;

/// Minimum report interval for clients. gRPC's own programs use one second; a shorter one speeds up the
/// cases.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Load values from the flags.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Fixed {
    pub(super) utilization: Option<f64>,
    pub(super) qps: Option<f64>,
    /// Reports that contain the values.
    pub(super) reports: Reports,
}

/// Selection of reports for the values of the flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reports {
    #[default]
    All,
    Calls,
    OutOfBand,
}

impl Reports {
    /// Parses the value of the flag. The error describes the expectation.
    pub(super) fn named(name: &str) -> Result<Reports, String> {
        match name {
            "all" => Ok(Reports::All),
            "calls" => Ok(Reports::Calls),
            "out_of_band" => Ok(Reports::OutOfBand),
            _ => Err("all, calls or out_of_band".to_owned()),
        }
    }
}

/// Load that the server reports.
#[derive(Clone)]
pub(super) struct Load {
    calls: ServerLoad,
    out_of_band: ServerLoad,
    /// Only one stream at a time sets the out-of-band report. Others wait for its end.
    turn: Arc<Mutex<()>>,
}

impl Load {
    pub(super) fn new(fixed: Fixed) -> Load {
        let load = |not_by: Reports| {
            // A window that never ends: no rates are measured.
            let load = ServerLoad::builder().without_cpu().window(Duration::MAX).build();
            let is_said = fixed.reports != not_by;
            if let Some(utilization) = fixed.utilization.filter(|_| is_said) {
                load.set_application_utilization(utilization);
            }
            if let Some(qps) = fixed.qps.filter(|_| is_said) {
                load.set_qps(qps);
            }
            load
        };
        Load { calls: load(Reports::OutOfBand), out_of_band: load(Reports::Calls), turn: Arc::default() }
    }

    pub(super) fn layer(&self) -> LoadLayer {
        self.calls.layer()
    }

    pub(super) fn service(&self) -> LoadService {
        self.out_of_band.service().min_interval(MIN_INTERVAL)
    }

    /// Waits until no other stream sets the out-of-band report.
    pub(super) async fn turn(&self) -> OutOfBandGuard {
        let guard = self.turn.clone().lock_owned().await;
        OutOfBandGuard { load: self.out_of_band.clone(), _guard: guard }
    }
}

/// Exclusive right to set the out-of-band report, until dropped.
pub(super) struct OutOfBandGuard {
    load: ServerLoad,
    _guard: OwnedMutexGuard<()>,
}

impl OutOfBandGuard {
    /// Replaces the out-of-band report. Request costs belong to calls and are not included.
    pub(super) fn report(&self, report: &TestOrcaReport) -> Result<(), Status> {
        let taken = self.load.set_cpu_utilization(report.cpu_utilization)
            & self.load.set_memory_utilization(report.memory_utilization)
            & self
                .load
                .set_all_utilization(report.utilization.iter().map(|(name, value)| (name.as_str(), *value)));
        check("orca_oob_report", taken)
    }
}

/// Records this report for the current call.
pub(super) fn report_call(report: &TestOrcaReport) -> Result<(), Status> {
    let call =
        CallLoad::current().ok_or_else(|| Status::internal("no load layer around the test service"))?;
    let mut taken = call.record_cpu_utilization(report.cpu_utilization)
        & call.record_memory_utilization(report.memory_utilization);
    for (name, value) in &report.utilization {
        taken &= call.record_utilization(name, *value);
    }
    for (name, value) in &report.request_cost {
        taken &= call.record_request_cost(name, *value);
    }
    check("orca_per_query_report", taken)
}

fn check(field: &str, taken: bool) -> Result<(), Status> {
    if taken {
        return Ok(());
    }
    let expected = "expected a CPU utilisation from 0 on, shares from 0 to 1 and finite costs";
    Err(Status::invalid_argument(format!("{field}: {expected}, found a value outside")))
}
