//! Custom policy that keeps calls in the client's zone while that zone has capacity.
//!
//! It uses data that the public API gives every policy: endpoint weights, localities, metadata and load
//! reports. Backends report load with each call and out of band. Out-of-band reports are needed because a
//! zone without calls reports no load per call, so its recovery would go unnoticed. The config is `{"zone":
//! "eu-1a", "maxUtilization": 0.8}`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_core::{
    CachedState, CallOutcome, CallTracker, CallTrackers, ConfigError, ConfigFields, ConnectMode,
    ConnectivityState, Cx, DescribeCx, Description, Endpoint, EndpointEntry, EndpointList, Endpoints,
    LbState, PickArgs, PickResult, Picker, Policy, Status, SubchannelId,
};

/// Metadata key with which an operator excludes an endpoint: `{"example": {"aside": true}}`.
pub(crate) const ASIDE: (&str, &str) = ("example", "aside");

/// Policy that prefers the endpoints of one zone.
#[derive(Default)]
pub(crate) struct Nearest {
    endpoints: EndpointList<EndpointLoad>,
    state: CachedState<PickerInputs>,
}

/// Load state of one endpoint, kept across passes.
#[derive(Default)]
struct EndpointLoad {
    utilization: Arc<Utilization>,
    /// Number of out-of-band reports received.
    reports: u32,
}

/// Parsed config of the policy.
pub(crate) struct NearestConfig {
    zone: String,
    max_utilization: f64,
}

/// Inputs of the picker. While they are equal, the policy returns the same picker.
#[derive(PartialEq)]
struct PickerInputs {
    connectivity: ConnectivityState,
    near: Vec<(SubchannelId, u32)>,
    far: Vec<(SubchannelId, u32)>,
    max_utilization: f64,
    failure: Option<Status>,
}

impl Policy for Nearest {
    type Config = NearestConfig;

    fn parse(fields: &ConfigFields<'_>) -> Result<NearestConfig, ConfigError> {
        let zone =
            fields.str("zone")?.ok_or_else(|| fields.error("zone", "is required: the zone to stay in"))?;
        let max_utilization = fields.f64("maxUtilization")?.unwrap_or(0.8);
        if max_utilization <= 0.0 {
            return Err(fields.error("maxUtilization", "must be above 0"));
        }
        Ok(NearestConfig { zone: zone.to_owned(), max_utilization })
    }

    fn reconcile(&mut self, config: &NearestConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        self.endpoints.reconcile(endpoints, ConnectMode::Eager, cx);
        for member in self.endpoints.entries_mut() {
            read_load(member, cx);
        }
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for (member, id) in self.endpoints.ready().filter(|(member, _)| !is_aside(&member.endpoint)) {
            let is_near = member.endpoint.locality().is_some_and(|locality| locality.zone == config.zone);
            let side = if is_near { &mut near } else { &mut far };
            side.push((id, member.endpoint.weight().unwrap_or(1)));
        }
        let connectivity = self.endpoints.connectivity();
        let failing = connectivity == ConnectivityState::TransientFailure;
        let failure = failing.then(|| self.endpoints.failure(cx));
        let max_utilization = config.max_utilization;
        let list = &self.endpoints;
        self.state.get_or_build(
            PickerInputs { connectivity, near, far, max_utilization, failure },
            |inputs| match &inputs.failure {
                Some(failure) => LbState::failing(failure.clone()),
                None if inputs.near.is_empty() && inputs.far.is_empty() => LbState::connecting(),
                None => LbState::new(connectivity, NearestPicker::new(inputs, list)),
            },
        )
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        let mut description = Description::new();
        self.endpoints.describe(&mut description, cx, |_, member, row| {
            row.weight = member.endpoint.weight().map(f64::from);
            if is_aside(&member.endpoint) {
                row.unused = Some("set aside by its metadata".to_owned());
            }
        });
        description
    }
}

/// Requests out-of-band reports and stores the report received since the last pass.
fn read_load(member: &mut EndpointEntry<EndpointLoad>, cx: &mut Cx<'_>) {
    let Some(id) = member.ready() else { return };
    cx.watch_load(id, Duration::from_secs(1));
    let Some(subchannel) = cx.peek(id) else { return };
    if let Some((_, load)) = subchannel.load().filter(|_| subchannel.loads() != member.data.reports) {
        member.data.reports = subchannel.loads();
        member.data.utilization.set(load.cpu_utilization);
    }
}

fn is_aside(endpoint: &Endpoint) -> bool {
    endpoint.metadata(ASIDE).and_then(serde_json::Value::as_bool).unwrap_or(false)
}

/// Utilization that an endpoint last reported, as the bits of an `f64`; 0 until the first report.
#[derive(Default)]
pub(crate) struct Utilization(AtomicU64);

impl Utilization {
    fn set(&self, utilization: f64) {
        self.0.store(utilization.to_bits(), Ordering::Relaxed);
    }

    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

impl CallTracker for Utilization {
    fn finished(&self, end: &CallOutcome<'_>) {
        if let CallOutcome::Finished { load: Some(load), .. } = end {
            self.set(load.cpu_utilization);
        }
    }

    fn needs_load_report(&self) -> bool {
        true
    }
}

struct NearestPicker {
    near: Vec<Candidate>,
    far: Vec<Candidate>,
    max_utilization: f64,
}

struct Candidate {
    id: SubchannelId,
    weight: u64,
    utilization: Arc<Utilization>,
}

impl NearestPicker {
    fn new(inputs: &PickerInputs, list: &EndpointList<EndpointLoad>) -> NearestPicker {
        let load_of = |id| {
            list.ready()
                .find(|(_, ready)| *ready == id)
                .map(|(member, _): (&EndpointEntry<_>, _)| member.data.utilization.clone())
        };
        let candidates = |side: &[(SubchannelId, u32)]| {
            let candidate = |&(id, weight): &(SubchannelId, u32)| {
                Some(Candidate { id, weight: u64::from(weight), utilization: load_of(id)? })
            };
            side.iter().filter_map(candidate).collect()
        };
        NearestPicker {
            near: candidates(&inputs.near),
            far: candidates(&inputs.far),
            max_utilization: inputs.max_utilization,
        }
    }
}

impl Picker for NearestPicker {
    fn pick(&self, call: &PickArgs<'_>) -> PickResult {
        let has_room = |candidate: &&Candidate| candidate.utilization.get() < self.max_utilization;
        let sides = [
            self.near.iter().filter(has_room).collect::<Vec<_>>(),
            self.far.iter().collect(),
            self.near.iter().collect(),
        ];
        let Some(side) = sides.into_iter().find(|side| !side.is_empty()) else { return PickResult::QUEUE };
        let mut point = call.random_below(side.iter().map(|candidate| candidate.weight).sum());
        for candidate in side {
            if point < candidate.weight {
                return PickResult::Complete(candidate.id, CallTrackers::one(candidate.utilization.clone()));
            }
            point -= candidate.weight;
        }
        PickResult::QUEUE
    }
}
