//! `xds_wrr_locality_experimental`: balances over localities by weight, with one policy config for each
//! (A52).
//!
//! The policy runs `weighted_target_experimental` with one target per locality. A target is named by the
//! locality's label (A78). Each endpoint carries its locality's weight; if they differ, the first one is used
//! and a warning is reported. If the endpoints are grouped, each group is a locality.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::config::{ConfigError, ConfigFields, LbConfig};
use crate::engine::describe::{DescribeCx, Description};
use crate::engine::pure_parent::PureParent;
use crate::policy::weighted_target::{self, WeightedTarget, WeightedTargetChild, WeightedTargetConfig};
use crate::policy::{LbState, Policy};
use crate::{ChildPolicy, Cx, Endpoint, Endpoints, Locality};

/// Implementation of the `xds_wrr_locality_experimental` policy.
#[derive(Debug, Default)]
pub(crate) struct WrrLocality {
    split: Option<LocalitySplit>,
    child: ChildPolicy,
}

/// Settings of the `xds_wrr_locality_experimental` policy.
#[derive(Clone, Debug)]
pub struct WrrLocalityConfig {
    /// Policy config of each locality.
    pub child_policy: LbConfig,
}

impl Policy for WrrLocality {
    type Config = WrrLocalityConfig;

    fn parse(fields: &ConfigFields<'_>) -> Result<WrrLocalityConfig, ConfigError> {
        Ok(WrrLocalityConfig { child_policy: fields.child("childPolicy")? })
    }

    fn to_json(config: &WrrLocalityConfig) -> Value {
        json!({ "childPolicy": [config.child_policy.to_json()] })
    }

    fn reconcile(&mut self, config: &WrrLocalityConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        let child_policy = &config.child_policy;
        let split = match self.split.take() {
            Some(split) if split.is_of(child_policy, endpoints) => split,
            old => LocalitySplit::new(child_policy, endpoints, old.as_ref()),
        };
        let split = self.split.insert(split);
        for warning in &split.warnings {
            cx.warn(warning);
        }
        self.child.reconcile(&split.config, &split.groups, cx)
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        Description::new().child("weighted_target", self.child.describe(cx))
    }
}

impl PureParent for WrrLocality {
    fn each_child(&mut self, visit: &mut dyn FnMut(&mut ChildPolicy)) {
        visit(&mut self.child);
    }
}

impl WrrLocalityConfig {
    /// Returns the `weighted_target_experimental` config for these endpoints.
    pub(crate) fn targets(&self, endpoints: &Endpoints) -> LbConfig {
        LocalitySplit::new(&self.child_policy, endpoints, None).config
    }
}

/// Config and endpoints for `weighted_target_experimental`, with their inputs.
#[derive(Debug)]
struct LocalitySplit {
    child_policy: LbConfig,
    endpoints: Endpoints,
    config: LbConfig,
    groups: Endpoints,
    warnings: Vec<String>,
}

impl LocalitySplit {
    fn new(child_policy: &LbConfig, endpoints: &Endpoints, old: Option<&LocalitySplit>) -> LocalitySplit {
        let parts = parts(endpoints);
        let warnings = parts.iter().filter_map(|(name, part)| part.warning(name)).collect();
        let target = |(name, part): (&Arc<str>, &LocalityPart<'_>)| {
            (name.clone(), WeightedTargetChild { weight: part.weight, child_policy: child_policy.clone() })
        };
        let targets = parts.iter().map(target).collect();
        let groups = parts.into_iter().map(|(name, part)| {
            let group = part.group(endpoints, old.map(|old| old.groups.group(&name)));
            (name, group)
        });
        LocalitySplit {
            child_policy: child_policy.clone(),
            endpoints: endpoints.clone(),
            config: LbConfig::new::<WeightedTarget>(weighted_target::NAME, WeightedTargetConfig { targets }),
            groups: Endpoints::groups(groups),
            warnings,
        }
    }

    fn is_of(&self, child_policy: &LbConfig, endpoints: &Endpoints) -> bool {
        self.child_policy.is_same(child_policy) && self.endpoints.is_same(endpoints)
    }
}

/// Endpoints of one locality, as slices of a list.
struct LocalityPart<'e> {
    weight: NonZeroU32,
    /// First weight that differs from `weight`.
    ignored: Option<NonZeroU32>,
    slices: Vec<&'e [Endpoint]>,
}

/// Groups the endpoints by locality name, which is also the child name. Endpoints without a locality are in
/// the empty one.
fn parts(endpoints: &Endpoints) -> BTreeMap<Arc<str>, LocalityPart<'_>> {
    let mut parts = BTreeMap::new();
    for group in endpoints.as_groups() {
        for list in group.endpoints.lists() {
            add(&mut parts, &group.name, group.weight, list);
        }
    }
    if !endpoints.as_groups().is_empty() {
        return parts;
    }
    let mut names: HashMap<Option<&Locality>, Arc<str>> = HashMap::new();
    // Adjacent endpoints of one locality usually share its `Arc`; comparing pointers avoids formatting each
    // name.
    let place = |endpoint: &Endpoint| (endpoint.locality().map(Arc::as_ptr), endpoint.locality_weight());
    let slices = endpoints.lists().flat_map(|list| list.chunk_by(|a, b| place(a) == place(b)));
    for slice in slices {
        let Some(first) = slice.first() else { continue };
        let locality = first.locality().map(Arc::as_ref);
        let name = names
            .entry(locality)
            .or_insert_with(|| locality.unwrap_or(&Locality::default()).to_string().into());
        add(&mut parts, name, first.locality_weight().and_then(NonZeroU32::new), slice);
    }
    parts
}

fn add<'e>(
    parts: &mut BTreeMap<Arc<str>, LocalityPart<'e>>,
    name: &Arc<str>,
    weight: Option<NonZeroU32>,
    slice: &'e [Endpoint],
) {
    if slice.is_empty() {
        return;
    }
    let weight = weight.unwrap_or(NonZeroU32::MIN);
    let part = parts.entry(name.clone()).or_insert_with(|| LocalityPart::new(weight));
    // The first weight of a locality is used (WL-3).
    if part.weight != weight {
        part.ignored.get_or_insert(weight);
    }
    part.slices.push(slice);
}

impl LocalityPart<'_> {
    fn new(weight: NonZeroU32) -> Self {
        LocalityPart { weight, ignored: None, slices: Vec::new() }
    }

    fn warning(&self, name: &str) -> Option<String> {
        let (weight, ignored) = (self.weight, self.ignored?);
        Some(format!("locality {name} has two weights: the first, {weight}, is used, {ignored} is ignored"))
    }

    /// Returns the endpoints of the locality. An equal previous list is reused, so that the child of an
    /// unchanged locality does not run.
    fn group(&self, whole: &Endpoints, old: Option<Endpoints>) -> Endpoints {
        let endpoints = || self.slices.iter().copied().flatten();
        match (old, &self.slices[..]) {
            (Some(old), _) if old.iter().eq(endpoints()) => old,
            (_, [only]) if whole.as_list().is_some_and(|list| list.len() == only.len()) => whole.clone(),
            _ => whole.part(endpoints().cloned()),
        }
    }
}
