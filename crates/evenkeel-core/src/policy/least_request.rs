//! `least_request_experimental`: samples a few endpoints and picks the one with the fewest calls in flight
//! (A48).
//!
//! Calls in flight are counted exactly, per policy and endpoint, across pickers and updates. A call is
//! counted when it is picked and released when it ends, however it ends. Endpoint weights and the load of
//! other clients are ignored.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value};

use crate::config::{ConfigError, ConfigFields};
use crate::endpoint::connection::ConnectMode;
use crate::engine::describe::{DescribeCx, Description};
use crate::policy::{CachedState, LbState, Policy};
use crate::{
    CallOutcome, CallTracker, CallTrackers, ConnectivityState, Cx, EndpointList, Endpoints, PickArgs,
    PickResult, Picker, Status, SubchannelId,
};

/// Maximum number of endpoints sampled per call (A48).
const MAX_CHOICES: usize = 10;

/// Implementation of the `least_request_experimental` policy.
#[derive(Debug, Default)]
pub struct LeastRequest {
    list: EndpointList<Arc<OutstandingCalls>>,
    config: LeastRequestConfig,
    cached: CachedState<LeastRequestInputs>,
}

/// Settings of the `least_request_experimental` policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeastRequestConfig {
    /// Number of endpoints sampled per call: 2 to 10, default 2.
    pub choice_count: usize,
    /// True to sample without replacement. An extension of evenkeel, off by default. gRPC samples with
    /// replacement, so that even a stalled endpoint gets about one call in n².
    pub distinct_samples: bool,
}

impl Default for LeastRequestConfig {
    fn default() -> LeastRequestConfig {
        LeastRequestConfig { choice_count: 2, distinct_samples: false }
    }
}

impl Policy for LeastRequest {
    type Config = LeastRequestConfig;

    fn parse(fields: &ConfigFields<'_>) -> Result<LeastRequestConfig, ConfigError> {
        let default = LeastRequestConfig::default();
        let choice_count = match fields.u32("choiceCount")?.map(|n| n as usize) {
            None => default.choice_count,
            // LR-1: below 2 is invalid, above 10 counts as 10.
            Some(n @ (0 | 1)) => {
                return Err(fields.error("choiceCount", format!("must be at least 2, found {n}")));
            }
            Some(n) => n.min(MAX_CHOICES),
        };
        let distinct_samples = fields.bool("distinctSamples")?.unwrap_or(default.distinct_samples);
        Ok(LeastRequestConfig { choice_count, distinct_samples })
    }

    fn reconcile(&mut self, config: &LeastRequestConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        self.list.reconcile(endpoints, ConnectMode::Eager, cx);
        self.config.clone_from(config);
        let connectivity = self.list.connectivity();
        let ready =
            self.list.ready().map(|(member, id)| LeastRequestEndpoint { id, calls: member.data.clone() });
        let inputs = LeastRequestInputs {
            connectivity,
            ready: ready.collect(),
            failure: (connectivity == ConnectivityState::TransientFailure).then(|| self.list.failure(cx)),
            config: config.clone(),
        };
        self.cached.get_or_build(inputs, |inputs| match &inputs.failure {
            Some(failure) => LbState::failing(failure.clone()),
            None if inputs.ready.is_empty() => LbState::connecting(),
            None => LbState::new(connectivity, LeastRequestPicker::new(inputs)),
        })
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        let outstanding = self.list.entries().iter().map(|member| {
            let name = member.endpoint.addresses().first().map(ToString::to_string).unwrap_or_default();
            (name, Value::from(member.data.active()))
        });
        let mut description = Description::new()
            .detail("choiceCount", self.config.choice_count)
            .detail("distinctSamples", self.config.distinct_samples)
            .detail("outstanding", outstanding.collect::<Map<_, _>>());
        self.list.describe(&mut description, cx, |_, member, row| {
            row.picks = member.data.started.load(Ordering::Relaxed);
        });
        description
    }
}

/// Inputs of the picker; a changed input rebuilds it.
#[derive(Debug, PartialEq)]
struct LeastRequestInputs {
    connectivity: ConnectivityState,
    ready: Arc<[LeastRequestEndpoint]>,
    failure: Option<Status>,
    config: LeastRequestConfig,
}

/// Ready endpoint in a picker.
#[derive(Debug)]
struct LeastRequestEndpoint {
    id: SubchannelId,
    calls: Arc<OutstandingCalls>,
}

impl PartialEq for LeastRequestEndpoint {
    fn eq(&self, other: &LeastRequestEndpoint) -> bool {
        self.id == other.id && Arc::ptr_eq(&self.calls, &other.calls)
    }
}

/// Calls of one policy to one endpoint, aligned to a cache line. Both counters only grow; their difference is
/// the number of calls in flight.
#[derive(Debug, Default)]
#[repr(align(64))]
struct OutstandingCalls {
    started: AtomicU64,
    finished: AtomicU64,
}

impl OutstandingCalls {
    fn active(&self) -> u64 {
        // Acquire pairs with the Release in `finished`: a visible end implies a visible start. The difference
        // is therefore never negative, provided that `finished` is loaded first.
        let finished = self.finished.load(Ordering::Acquire);
        self.started.load(Ordering::Relaxed).wrapping_sub(finished)
    }
}

impl CallTracker for OutstandingCalls {
    fn finished(&self, _: &CallOutcome<'_>) {
        self.finished.fetch_add(1, Ordering::Release);
    }
}

struct LeastRequestPicker {
    ready: Arc<[LeastRequestEndpoint]>,
    choices: usize,
    distinct: bool,
}

impl LeastRequestPicker {
    fn new(inputs: &LeastRequestInputs) -> LeastRequestPicker {
        let LeastRequestConfig { choice_count, distinct_samples } = inputs.config;
        let choices = choice_count.clamp(2, MAX_CHOICES);
        LeastRequestPicker { ready: inputs.ready.clone(), choices, distinct: distinct_samples }
    }

    /// Returns the sampled endpoint with the fewest calls in flight; on ties the first sampled (A48).
    fn least(&self, samples: impl Iterator<Item = usize>) -> Option<&LeastRequestEndpoint> {
        // `min_by_key` returns the first of equal elements.
        samples.filter_map(|i| self.ready.get(i)).min_by_key(|candidate| candidate.calls.active())
    }
}

impl Picker for LeastRequestPicker {
    fn pick(&self, call: &PickArgs<'_>) -> PickResult {
        let count = self.ready.len();
        let candidate = if self.distinct {
            self.least(distinct(call, count, self.choices))
        } else {
            self.least((0..self.choices).map(|_| call.random_below(count as u64) as usize))
        };
        let Some(candidate) = candidate else { return PickResult::QUEUE };
        // Counted at the pick, so that concurrent picks see each other (LR-4).
        candidate.calls.started.fetch_add(1, Ordering::Relaxed);
        PickResult::Complete(candidate.id, CallTrackers::one(candidate.calls.clone()))
    }
}

/// Draws up to `choices` distinct numbers below `count`, in uniformly random order.
fn distinct(call: &PickArgs<'_>, count: usize, choices: usize) -> impl Iterator<Item = usize> {
    let mut drawn = [0; MAX_CHOICES];
    (0..choices.min(count)).map(move |n| {
        // The n-th draw is an index into the numbers that are left. Skipping drawn numbers in ascending order
        // maps it back.
        let mut at = call.random_below((count - n) as u64) as usize;
        let mut place = 0;
        while place < n && drawn[place] <= at {
            at += 1;
            place += 1;
        }
        drawn.copy_within(place..n, place + 1);
        drawn[place] = at;
        at
    })
}
