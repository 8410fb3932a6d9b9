//! `test_backend_metrics_load_balancer`: the policy of the ORCA cases. It picks the first READY endpoint,
//! watches out-of-band load of every endpoint, and passes each report to the waiting case.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel::Registry;
use evenkeel_core::{
    CachedState, CallOutcome, CallTracker, CallTrackers, ConfigError, ConfigFields, ConnectMode,
    ConnectivityState, Cx, DescribeCx, Description, EndpointList, Endpoints, LbState, LoadReport, PickArgs,
    PickResult, Picker, Policy, Status, SubchannelId,
};

use crate::sync::lock;

/// Published name of the policy.
pub(super) const NAME: &str = "test_backend_metrics_load_balancer";

/// Interval of out-of-band reports.
const PERIOD: Duration = Duration::from_secs(1);

/// Reports that the policy received. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Reports(Arc<Mutex<ObservedReports>>);

#[derive(Default)]
struct ObservedReports {
    /// Report of each ended call.
    calls: Vec<Option<LoadReport>>,
    out_of_band: Option<LoadReport>,
}

impl Reports {
    /// Returns a registry with a policy that records into these reports.
    pub(super) fn registry(&self) -> Registry {
        let mut registry = Registry::standard();
        let reports = self.clone();
        registry.register_with(NAME, move || LoadReportPolicy {
            reports: reports.clone(),
            ..LoadReportPolicy::default()
        });
        registry
    }

    /// Returns the report of each call so far, in the order of their ends.
    pub(super) fn of_calls(&self) -> Vec<Option<LoadReport>> {
        self.with(|told| told.calls.clone())
    }

    /// Returns the latest out-of-band report.
    pub(super) fn out_of_band(&self) -> Option<LoadReport> {
        self.with(|told| told.out_of_band.clone())
    }

    fn with<T>(&self, look: impl FnOnce(&mut ObservedReports) -> T) -> T {
        look(&mut lock(&self.0))
    }
}

impl CallTracker for Reports {
    fn finished(&self, end: &CallOutcome<'_>) {
        if let CallOutcome::Finished { load, .. } = end {
            self.with(|told| told.calls.push(load.cloned()));
        }
    }

    fn needs_load_report(&self) -> bool {
        true
    }
}

/// The policy with its endpoints.
#[derive(Default)]
struct LoadReportPolicy {
    reports: Reports,
    /// Endpoints, each with the number of reports processed.
    fleet: EndpointList<u32>,
    shown: CachedState<PickerInputs>,
}

/// Inputs of the picker.
#[derive(PartialEq)]
struct PickerInputs {
    connectivity: ConnectivityState,
    first: Option<SubchannelId>,
    failure: Option<Status>,
}

impl Policy for LoadReportPolicy {
    type Config = ();

    fn parse(_: &ConfigFields<'_>) -> Result<(), ConfigError> {
        Ok(())
    }

    fn reconcile(&mut self, (): &(), endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        self.fleet.reconcile(endpoints, ConnectMode::Eager, cx);
        for member in self.fleet.entries_mut() {
            let Some(id) = member.ready() else { continue };
            cx.watch_load(id, PERIOD);
            let Some(subchannel) = cx.peek(id).filter(|subchannel| subchannel.loads() != member.data) else {
                continue;
            };
            member.data = subchannel.loads();
            self.reports.with(|told| told.out_of_band = subchannel.load().map(|(_, load)| load.clone()));
        }
        let connectivity = self.fleet.connectivity();
        let seen = PickerInputs {
            connectivity,
            first: self.fleet.ready().next().map(|(_, id)| id),
            failure: (connectivity == ConnectivityState::TransientFailure).then(|| self.fleet.failure(cx)),
        };
        self.shown.get_or_build(seen, |seen| match (&seen.failure, seen.first) {
            (Some(failure), _) => LbState::failing(failure.clone()),
            (None, None) => LbState::connecting(),
            (None, Some(id)) => LbState::new(connectivity, ToFirst(id, Arc::new(self.reports.clone()))),
        })
    }

    fn describe(&self, look: &DescribeCx<'_>) -> Description {
        let mut description = Description::new();
        self.fleet.describe(&mut description, look, |_, _, _| {});
        description
    }
}

struct ToFirst(SubchannelId, Arc<Reports>);

impl Picker for ToFirst {
    fn pick(&self, _: &PickArgs<'_>) -> PickResult {
        PickResult::Complete(self.0, CallTrackers::one(self.1.clone()))
    }
}
