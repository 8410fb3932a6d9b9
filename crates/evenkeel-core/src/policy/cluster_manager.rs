//! `xds_cluster_manager_experimental`: one child per cluster, selected by the call's route (A31, A28).
//!
//! A pick is delegated to the child that the route named, whatever the child's state. A pick for an unknown
//! cluster fails with INTERNAL: the config selector must retain a cluster in the config until the last call
//! that chose it is committed. A child that is removed from the config is released at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::collections::fast_map::FastMap;
use crate::collections::persistent_vec::PersistentVec;
use crate::config::{ConfigError, ConfigFields, LbConfig};
use crate::engine::describe::{DescribeCx, Description};
use crate::policy::children::NamedChildren;
use crate::policy::{LbState, Policy};
use crate::{Code, Cx, Endpoints, PickArgs, PickResult, Picker, Status};

/// Implementation of the `xds_cluster_manager_experimental` policy.
#[derive(Debug, Default)]
pub struct ClusterManager {
    children: NamedChildren,
    /// Index of each child by name.
    positions: Arc<FastMap<Arc<str>, usize>>,
    /// Last picker of each child, by index.
    pickers: PersistentVec<Arc<dyn Picker>>,
    /// Last returned state; `None` before the first pass. Rebuilt if the set of children or a child's state
    /// changed.
    cached: Option<LbState>,
}

/// Settings of the `xds_cluster_manager_experimental` policy.
#[derive(Clone, Debug, Default)]
pub struct ClusterManagerConfig {
    /// Policy config of each cluster, by cluster name. The name also selects the endpoint group of the child.
    pub children: BTreeMap<Arc<str>, LbConfig>,
}

impl Policy for ClusterManager {
    type Config = ClusterManagerConfig;

    fn parse(fields: &ConfigFields<'_>) -> Result<ClusterManagerConfig, ConfigError> {
        let child = |(name, child): (&str, ConfigFields<'_>)| Ok((name.into(), child.child("childPolicy")?));
        let children = fields.map("children")?.into_iter().map(child).collect::<Result<_, _>>()?;
        Ok(ClusterManagerConfig { children })
    }

    fn to_json(config: &ClusterManagerConfig) -> Value {
        let child = |(name, policy): (&Arc<str>, &LbConfig)| {
            (name.to_string(), json!({ "childPolicy": [policy.to_json()] }))
        };
        json!({ "children": config.children.iter().map(child).collect::<Map<_, _>>() })
    }

    fn reconcile(
        &mut self,
        config: &ClusterManagerConfig,
        endpoints: &Endpoints,
        cx: &mut Cx<'_>,
    ) -> LbState {
        let is_new = match self.children.keep(cx) {
            Some(due) => self.run_some(config, &due, cx),
            None => self.run_all(config, endpoints, cx),
        };
        if let Some(cached) = self.cached.as_ref().filter(|_| !is_new) {
            return cached.clone();
        }
        let state = if let Some(only) = self.children.only() {
            let picker =
                SingleClusterPicker { name: only.name().clone(), picker: only.state().picker.clone() };
            LbState::new(only.connectivity(), picker)
        } else {
            let picker =
                ClusterManagerPicker { positions: self.positions.clone(), pickers: self.pickers.clone() };
            LbState::new(self.children.connectivity(), picker)
        };
        self.cached.insert(state).clone()
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        self.children.describe(Description::new(), cx)
    }
}

impl ClusterManager {
    /// Runs the children at `due`. Returns true if a child's state changed.
    fn run_some(&mut self, config: &ClusterManagerConfig, due: &[usize], cx: &mut Cx<'_>) -> bool {
        let mut is_new = false;
        for &place in due {
            let child = self.children.at(place);
            // The inputs are those of the previous run, so the config has every child.
            let Some(policy) = config.children.get(child.name()) else { continue };
            if child.reconcile_here(policy, cx) {
                self.pickers.set(place, child.state().picker.clone());
                is_new = true;
            }
        }
        is_new
    }

    /// Runs every child. Returns true if the set of children or a child's state changed.
    fn run_all(&mut self, config: &ClusterManagerConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) -> bool {
        // Calls keep their cluster in the config (CM-5), so a removed child needs no retention.
        let are_others = self.children.update(config.children.keys(), endpoints, Duration::ZERO, cx);
        if are_others {
            // Both lists are in the order of the map, so positions fit the children.
            self.positions = Arc::new(config.children.keys().cloned().zip(0..).collect());
        }
        let mut is_new = are_others;
        for (child, policy) in self.children.iter_mut().zip(config.children.values()) {
            // Every child is run or requested here; the core removes the others.
            is_new |= child.reconcile_here(policy, cx);
        }
        // A new child has no node to store the index in before its first run.
        self.children.set_indices(cx);
        if is_new {
            self.pickers = self.children.iter().map(|child| child.state().picker.clone()).collect();
        }
        is_new
    }
}

/// Picker for a single child: comparing one name is faster than a map lookup.
struct SingleClusterPicker {
    name: Arc<str>,
    picker: Arc<dyn Picker>,
}

impl Picker for SingleClusterPicker {
    fn pick(&self, call: &PickArgs<'_>) -> PickResult {
        match call.cluster() {
            Some(cluster) if *cluster == *self.name => self.picker.pick(call),
            cluster => fail(cluster),
        }
    }
}

/// Picker that delegates to the child named by the call's route.
struct ClusterManagerPicker {
    /// Shared by all pickers that were built for the same set of names.
    positions: Arc<FastMap<Arc<str>, usize>>,
    pickers: PersistentVec<Arc<dyn Picker>>,
}

impl Picker for ClusterManagerPicker {
    fn pick(&self, call: &PickArgs<'_>) -> PickResult {
        let cluster = call.cluster();
        let position = cluster.and_then(|cluster| self.positions.get(cluster));
        match position.and_then(|position| self.pickers.get(*position)) {
            Some(picker) => picker.pick(call),
            None => fail(cluster),
        }
    }
}

/// Returns the pick result for a cluster without a child.
#[cold]
fn fail(cluster: Option<&str>) -> PickResult {
    let problem = match cluster {
        Some(name) => format!("unknown cluster selected for RPC: \"{name}\""),
        None => "no cluster selected for RPC".to_owned(),
    };
    PickResult::Fail(Status::new(Code::Internal, problem))
}
