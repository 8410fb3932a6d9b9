//! `weighted_target_experimental`: distributes calls over named children at random, by weight (A28).
//!
//! Only READY children get calls. If none is READY, calls are queued or connect an IDLE child. If all have
//! failed, a call fails with the status of one of them, chosen by weight. A child that is removed from the
//! config is retained for 15 minutes, so that a returning locality keeps its connections. Children get their
//! name as locality label (A78).

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::config::{ConfigError, ConfigFields, LbConfig};
use crate::engine::describe::{DescribeCx, Description};
use crate::engine::pure_parent::PureParent;
use crate::policy::children::{NamedChild, NamedChildren};
use crate::policy::{CachedState, LbState, Policy};
use crate::{ChildPolicy, ConnectivityState, Cx, Endpoints, PickArgs, PickResult, Picker, Status};

/// Registered name of the policy; also used by the policies that create it as a child.
pub(crate) const NAME: &str = "weighted_target_experimental";

/// Retention time of a child that was removed from the config (A28).
const RETENTION: Duration = Duration::from_secs(15 * 60);

/// Implementation of the `weighted_target_experimental` policy.
#[derive(Debug, Default)]
pub(crate) struct WeightedTarget {
    children: NamedChildren,
    weights: Vec<NonZeroU32>,
    cached: CachedState<WeightedTargetInputs>,
}

#[derive(Debug, PartialEq)]
struct WeightedTargetInputs {
    connectivity: ConnectivityState,
    choices: Vec<TargetChoice>,
    /// Status of calls if there are no targets.
    failure: Option<Status>,
}

/// Settings of the `weighted_target_experimental` policy.
#[derive(Clone, Debug, Default)]
pub(crate) struct WeightedTargetConfig {
    /// Children by name. The name identifies a child across updates and selects its endpoint group.
    pub(crate) targets: BTreeMap<Arc<str>, WeightedTargetChild>,
}

/// One child of `weighted_target_experimental`.
#[derive(Clone, Debug)]
pub(crate) struct WeightedTargetChild {
    /// Weight of the child relative to the sum of all weights.
    pub(crate) weight: NonZeroU32,
    /// Config of the child policy.
    pub(crate) child_policy: LbConfig,
}

impl Policy for WeightedTarget {
    type Config = WeightedTargetConfig;

    fn parse(fields: &ConfigFields<'_>) -> Result<WeightedTargetConfig, ConfigError> {
        let mut targets = BTreeMap::new();
        for (name, target) in fields.map("targets")? {
            let weight = target.u32("weight")?.and_then(NonZeroU32::new);
            let weight =
                weight.ok_or_else(|| target.error("weight", "must be a whole number of at least 1"))?;
            targets.insert(
                name.into(),
                WeightedTargetChild { weight, child_policy: target.child("childPolicy")? },
            );
        }
        Ok(WeightedTargetConfig { targets })
    }

    fn to_json(WeightedTargetConfig { targets }: &WeightedTargetConfig) -> Value {
        let target = |(name, target): (&Arc<str>, &WeightedTargetChild)| {
            let json =
                json!({ "weight": target.weight.get(), "childPolicy": [target.child_policy.to_json()] });
            (name.to_string(), json)
        };
        json!({ "targets": targets.iter().map(target).collect::<Map<_, _>>() })
    }

    fn reconcile(
        &mut self,
        WeightedTargetConfig { targets }: &WeightedTargetConfig,
        endpoints: &Endpoints,
        cx: &mut Cx<'_>,
    ) -> LbState {
        self.children.update(targets.keys(), endpoints, RETENTION, cx);
        for (child, target) in self.children.iter_mut().zip(targets.values()) {
            // An IDLE child gets no calls while another is READY, so no call would ever connect it.
            let scope = cx.scope().clone().with_locality(child.name().clone()).without_idle();
            child.reconcile(scope, &target.child_policy, cx);
        }
        self.weights.clear();
        self.weights.extend(targets.values().map(|target| target.weight));
        let connectivity = self.children.connectivity();
        let failure = targets.is_empty().then(|| match cx.scope().backend_service() {
            Some(cluster) => cx.unavailable(format!("cluster \"{cluster}\": no targets to send calls to")),
            None => cx.unavailable("no targets to send calls to"),
        });
        let inputs = WeightedTargetInputs { connectivity, choices: self.choices(connectivity), failure };
        self.cached.get_or_build(inputs, |WeightedTargetInputs { choices, failure, .. }| {
            match (failure, connectivity, &choices[..]) {
                (Some(failure), ..) => LbState::failing(failure.clone()),
                (None, ConnectivityState::Connecting, _) => LbState::connecting(),
                (None, _, [only]) => LbState { connectivity, picker: only.state.picker.clone() },
                // Some child has the aggregated state if there are targets, so there is a first choice.
                (None, _, _) if choices.iter().all(|choice| choice.weight == choices[0].weight) => {
                    LbState::new(connectivity, UniformPicker::new(choices))
                }
                (None, ..) => LbState::new(connectivity, WeightedPicker::new(choices)),
            }
        })
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        let is_used = |state| state == ConnectivityState::Ready;
        let each = || self.children.iter().zip(&self.weights);
        let used = each().filter(|(child, _)| is_used(child.connectivity()));
        let sum: u64 = used.map(|(_, weight)| u64::from(weight.get())).sum();
        let target = |(child, weight): (&NamedChild, &NonZeroU32)| {
            let state = child.connectivity();
            let share = is_used(state).then(|| f64::from(weight.get()) / sum as f64);
            (child.name().to_string(), json!({ "weight": weight.get(), "state": state, "share": share }))
        };
        let targets: Map<String, Value> = each().map(target).collect();
        let mut description = Description::new().detail("targets", targets);
        let leaving: Map<String, Value> = self
            .children
            .leaving()
            .map(|(child, at)| (child.name().to_string(), format!("in {:.0?}", at.since(cx.now())).into()))
            .collect();
        if !leaving.is_empty() {
            description = description.detail("leaving", leaving);
        }
        self.children.describe(description, cx)
    }
}

impl PureParent for WeightedTarget {
    fn each_child(&mut self, visit: &mut dyn FnMut(&mut ChildPolicy)) {
        self.children.each(visit);
    }
}

impl WeightedTarget {
    /// Returns the children to pick from: those in the aggregated state.
    fn choices(&self, connectivity: ConnectivityState) -> Vec<TargetChoice> {
        let each = self.children.iter().zip(&self.weights);
        each.filter(|(child, _)| child.connectivity() == connectivity)
            .map(|(child, weight)| TargetChoice { weight: *weight, state: child.state().clone() })
            .collect()
    }
}

/// Child in a picker.
#[derive(Debug)]
struct TargetChoice {
    weight: NonZeroU32,
    state: LbState,
}

impl PartialEq for TargetChoice {
    fn eq(&self, other: &TargetChoice) -> bool {
        self.weight == other.weight && self.state.is_same(&other.state)
    }
}

/// Picker over children of equal weight.
struct UniformPicker {
    pickers: Box<[Arc<dyn Picker>]>,
}

impl UniformPicker {
    fn new(choices: &[TargetChoice]) -> UniformPicker {
        UniformPicker { pickers: choices.iter().map(|choice| choice.state.picker.clone()).collect() }
    }
}

impl Picker for UniformPicker {
    fn pick(&self, call: &PickArgs<'_>) -> PickResult {
        self.pickers[call.random_below(self.pickers.len() as u64) as usize].pick(call)
    }
}

/// Picker over children of different weights.
struct WeightedPicker {
    /// Cumulative weights, in child order. 64 bits cannot overflow: the weights have 32 bits and the children
    /// fit into memory.
    ends: Box<[u64]>,
    pickers: Box<[Arc<dyn Picker>]>,
    total: u64,
}

impl WeightedPicker {
    fn new(choices: &[TargetChoice]) -> WeightedPicker {
        let mut total = 0;
        let ends = choices.iter().map(|choice| {
            total += u64::from(choice.weight.get());
            total
        });
        let ends = ends.collect();
        WeightedPicker { ends, pickers: UniformPicker::new(choices).pickers, total }
    }
}

impl Picker for WeightedPicker {
    fn pick(&self, call: &PickArgs<'_>) -> PickResult {
        let at = call.random_below(self.total);
        // `at` is below the last cumulative weight, so the index is in bounds.
        self.pickers[self.ends.partition_point(|end| *end <= at)].pick(call)
    }
}
