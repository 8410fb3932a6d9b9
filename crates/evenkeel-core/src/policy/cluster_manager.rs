//! `xds_cluster_manager_experimental`: one child per cluster; routing has chosen which (A31, A28).
//!
//! A call goes to the child that its route named, ready or not. A call for a cluster that is not there fails with
//! INTERNAL: whoever routes must keep a cluster in the config until the last call that chose it is committed. A child that
//! leaves the config is let go at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::collections::fast_map::FastMap;
use crate::config::{ConfigError, ConfigFields, LbConfig};
use crate::engine::describe::{DescribeCx, Description};
use crate::policy::children::NamedChildren;
use crate::policy::{LbState, Policy};
use crate::{Code, Cx, Endpoints, PersistentVec, PickArgs, PickResult, Picker, Status};

/// The policy.
#[derive(Debug, Default)]
pub struct ClusterManager {
    children: NamedChildren,
    /// Where each child stands among them, by name.
    positions: Arc<FastMap<Arc<str>, usize>>,
    /// The picker of each child, as last shown.
    pickers: PersistentVec<Arc<dyn Picker>>,
    /// The last state; another one is made when the children are others, or one of them has another state.
    cached: Option<LbState>,
}

/// Settings of `xds_cluster_manager_experimental`.
#[derive(Clone, Debug, Default)]
pub struct ClusterManagerConfig {
    /// The policy of each cluster, by the name that routing gives a call. The name also decides which group of the
    /// endpoints the policy is given.
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
    /// Runs those children to which something happened. Answers whether one has another state than before.
    fn run_some(&mut self, config: &ClusterManagerConfig, due: &[usize], cx: &mut Cx<'_>) -> bool {
        let mut is_new = false;
        for &place in due {
            let child = self.children.at(place);
            let Some(policy) = config.children.get(child.name()) else { continue };
            if child.reconcile_here(policy, cx) {
                self.pickers.set(place, child.state().picker.clone());
                is_new = true;
            }
        }
        is_new
    }

    /// Runs every child. Answers whether they are others than before, or one has another state.
    fn run_all(&mut self, config: &ClusterManagerConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) -> bool {
        let are_others = self.children.update(config.children.keys(), endpoints, Duration::ZERO, cx);
        if are_others {
            self.positions = Arc::new(config.children.keys().cloned().zip(0..).collect());
        }
        let mut is_new = are_others;
        for (child, policy) in self.children.iter_mut().zip(config.children.values()) {
            is_new |= child.reconcile_here(policy, cx);
        }
        self.children.set_indices(cx);
        if is_new {
            self.pickers = self.children.iter().map(|child| child.state().picker.clone()).collect();
        }
        is_new
    }
}

/// Where there is only one child: comparing its name is quicker than looking it up.
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

/// Sends each call to the child that its route named.
struct ClusterManagerPicker {
    /// Made once per set of names and shared by the pickers.
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

/// What becomes of a call for which there is no child.
#[cold]
fn fail(cluster: Option<&str>) -> PickResult {
    let problem = match cluster {
        Some(name) => format!("the call's route names the cluster \"{name}\", which is not configured"),
        None => "the call's route names no cluster".to_owned(),
    };
    PickResult::Fail(Status::new(Code::Internal, problem))
}
