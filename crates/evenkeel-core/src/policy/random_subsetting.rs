//! `random_subsetting_experimental`: gives the child a random subset of the endpoints (A68).
//!
//! Each client ranks the endpoints by its own seed (rendezvous hashing) and keeps the first ones. Clients
//! thus spread over all endpoints. Adding or removing an endpoint changes at most one endpoint of a client's
//! subset.

use std::collections::HashMap;

use xxhash_rust::xxh64;

use crate::config::{ConfigError, ConfigFields, LbConfig};
use crate::engine::child::ChildPolicy;
use crate::engine::describe::{DescribeCx, Description};
use crate::engine::pure_parent::PureParent;
use crate::policy::{LbState, Policy};
use crate::{Cx, Endpoint, EndpointGroup, EndpointHealthStatus, EndpointKey, Endpoints};

/// Implementation of the `random_subsetting_experimental` policy.
#[derive(Debug, Default)]
pub(crate) struct RandomSubsetting {
    /// Hash seed, drawn in the first pass and kept for the policy's lifetime.
    seed: Option<u64>,
    subset: Option<EndpointSubset>,
    child: ChildPolicy,
}

/// Settings of the `random_subsetting_experimental` policy.
#[derive(Clone, Debug)]
pub(crate) struct RandomSubsettingConfig {
    /// Number of endpoints in the subset, at least 1.
    pub(crate) subset_size: u32,
    /// Config of the child policy.
    pub(crate) child: LbConfig,
}

/// Chosen subset, with the inputs of the choice.
#[derive(Debug)]
struct EndpointSubset {
    source: Endpoints,
    /// Number of eligible endpoints.
    count: usize,
    size: u32,
    chosen: Endpoints,
}

impl Policy for RandomSubsetting {
    type Config = RandomSubsettingConfig;

    fn parse(fields: &ConfigFields<'_>) -> Result<RandomSubsettingConfig, ConfigError> {
        let subset_size = match fields.u32("subsetSize")? {
            Some(size @ 1..) => size,
            Some(0) => return Err(fields.error("subsetSize", "must be at least 1, found 0")),
            None => return Err(fields.error("subsetSize", "is required: a whole number of at least 1")),
        };
        Ok(RandomSubsettingConfig { subset_size, child: fields.child("childPolicy")? })
    }

    fn reconcile(
        &mut self,
        config: &RandomSubsettingConfig,
        endpoints: &Endpoints,
        cx: &mut Cx<'_>,
    ) -> LbState {
        let seed = *self.seed.get_or_insert_with(|| cx.rng().next_u64());
        let size = config.subset_size;
        let is_current = |last: &EndpointSubset| last.size == size && last.source.is_same(endpoints);
        let last = self.subset.take().filter(is_current);
        let subset = last.unwrap_or_else(|| EndpointSubset::choose(endpoints, size, seed));
        let subset = self.subset.insert(subset);
        self.child.reconcile(&config.child, &subset.chosen, cx)
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        let (size, count) = self.subset.as_ref().map_or((0, 0), |subset| (subset.size, subset.count));
        Description::new()
            .detail("subsetSize", size)
            .detail("chosen", count.min(size as usize))
            .detail("of", count)
            .detail("seed", self.seed)
            .child("child", self.child.describe(cx))
    }
}

impl PureParent for RandomSubsetting {
    fn each_child(&mut self, visit: &mut dyn FnMut(&mut ChildPolicy)) {
        visit(&mut self.child);
    }
}

impl EndpointSubset {
    /// Chooses the endpoints with the lowest ranks; all of them if there are at most `size`.
    fn choose(source: &Endpoints, size: u32, seed: u64) -> EndpointSubset {
        let mut ranks = HashMap::new();
        for endpoint in source.iter().filter(|endpoint| counts(endpoint)) {
            ranks.entry(endpoint.key()).or_insert_with(|| rank(endpoint, seed));
        }
        let count = ranks.len();
        let chosen = if count <= size as usize {
            source.clone()
        } else {
            let mut ranked: Vec<(u64, EndpointKey)> =
                ranks.into_iter().map(|(key, rank)| (rank, key)).collect();
            // Equal ranks are ordered by key, so the choice does not depend on the order of the list.
            ranked.sort_unstable();
            ranked.truncate(size as usize);
            let places = ranked.into_iter().enumerate().map(|(place, (_, key))| (key, place)).collect();
            keep(source, &places)
        };
        EndpointSubset { source: source.clone(), count, size, chosen }
    }
}

/// Retains the endpoints with a rank, in rank order, group by group. Draining endpoints follow them, for
/// their existing sessions.
fn keep(source: &Endpoints, places: &HashMap<EndpointKey, usize>) -> Endpoints {
    if !source.as_groups().is_empty() {
        let kept = |group: &EndpointGroup| EndpointGroup {
            endpoints: keep(&group.endpoints, places),
            ..group.clone()
        };
        return source.as_groups().iter().map(kept).filter(|group| !group.endpoints.is_empty()).collect();
    }
    let place = |endpoint: &Endpoint| match endpoint.health() {
        EndpointHealthStatus::Draining => Some(usize::MAX),
        _ => places.get(&endpoint.key()).copied(),
    };
    let mut kept: Vec<(usize, &Endpoint)> = source.iter().filter_map(|e| Some((place(e)?, e))).collect();
    kept.sort_by_key(|(place, _)| *place);
    Endpoints::list(kept.into_iter().map(|(_, endpoint)| endpoint.clone()))
}

fn rank(endpoint: &Endpoint, seed: u64) -> u64 {
    let first = endpoint.addresses().first().map(ToString::to_string).unwrap_or_default();
    xxh64::xxh64(first.as_bytes(), seed)
}

/// Returns true if the endpoint is eligible for the subset; one without addresses or in draining state is
/// not.
fn counts(endpoint: &Endpoint) -> bool {
    !endpoint.addresses().is_empty() && endpoint.health() != EndpointHealthStatus::Draining
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RS-3: endpoints stay in their groups, with the weights for the policies below. An empty group is removed.
    /// Draining endpoints stay, at the end.
    #[test]
    fn groups_stay_groups() {
        let endpoint = |name: String| Endpoint::at(name.as_str());
        let draining = |name: &str| Endpoint::at(name).with_health(EndpointHealthStatus::Draining);
        let zone = |i: usize| [draining("old"), endpoint(format!("e{i}")), endpoint(format!("f{i}"))];
        let mut groups: Vec<_> =
            (0..8).map(|i| (format!("zone-{i}"), 5, Endpoints::list(zone(i).into_iter().skip(1)))).collect();
        groups[0].2 = Endpoints::list(zone(0));
        let source = Endpoints::weighted_groups(groups);
        let EndpointSubset { chosen, count, .. } = EndpointSubset::choose(&source, 3, 7);
        assert_eq!((count, chosen.iter().filter(|e| counts(e)).count()), (16, 3));
        assert!((1..=4).contains(&chosen.as_groups().len()));
        for group in chosen.as_groups() {
            let whole = source.group(&group.name);
            assert!(!group.endpoints.is_empty());
            assert_eq!(group.weight.map(std::num::NonZero::get), Some(5));
            assert!(group.endpoints.iter().all(|endpoint| whole.iter().any(|e| e == endpoint)));
        }
        assert_eq!(chosen.group("zone-0").iter().last(), Some(&draining("old")));
    }
}
