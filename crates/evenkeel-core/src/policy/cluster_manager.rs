//! `xds_cluster_manager_experimental`: one child per cluster; routing has chosen which (A31, A28).
//!
//! A call goes to the child that its route named, ready or not. A call for a cluster that is not there fails with
//! INTERNAL: whoever routes must keep a cluster in the config until the last call that chose it is committed. A child that
//! leaves the config is let go at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::config::{ConfigError, Fields, LbConfig};
use crate::describe::{Description, Look};
use crate::fast_map::FastMap;
use crate::policy::children::Children;
use crate::policy::{LbState, Policy};
use crate::{Call, Code, Cx, Endpoints, Pick, Picker, Status};

/// The policy.
#[derive(Debug, Default)]
pub struct ClusterManager {
    children: Children,
    names: Arc<Names>,
    /// The last state; another one is made when the children are others, or one of them has another state.
    shown: Option<LbState>,
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

    fn parse(fields: &Fields<'_>) -> Result<ClusterManagerConfig, ConfigError> {
        let child = |(name, child): (&str, Fields<'_>)| Ok((name.into(), child.child("childPolicy")?));
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
        let mut changed = self.children.update(config.children.keys(), endpoints, Duration::ZERO, cx);
        if changed {
            self.names = Arc::new(Names::new(config.children.keys()));
        }
        for (child, policy) in self.children.iter_mut().zip(config.children.values()) {
            changed |= child.reconcile_here(policy, cx);
        }
        if let Some(shown) = self.shown.as_ref().filter(|_| !changed) {
            return shown.clone();
        }
        let pickers = self.children.iter().map(|child| child.state().picker.clone()).collect();
        let picker = ClusterPicker { names: self.names.clone(), pickers };
        self.shown.insert(LbState::new(self.children.connectivity(), picker)).clone()
    }

    fn describe(&self, look: &Look<'_>) -> Description {
        self.children.describe(Description::new(), look)
    }
}

/// Sends each call to the child that its route named.
struct ClusterPicker {
    names: Arc<Names>,
    pickers: Box<[Arc<dyn Picker>]>,
}

impl Picker for ClusterPicker {
    fn pick(&self, call: &Call<'_>) -> Pick {
        let Some(cluster) = call.cluster() else {
            return Pick::Fail(Status::new(Code::Internal, "the call's route names no cluster"));
        };
        let Some(position) = self.names.find(cluster) else {
            let problem =
                format!("the call's route names the cluster \"{cluster}\", which is not configured");
            return Pick::Fail(Status::new(Code::Internal, problem));
        };
        self.pickers[position].pick(call)
    }
}

/// The positions of the children by name. Made once per set of names and shared by the pickers.
#[derive(Debug, Default)]
struct Names {
    /// The only name, if there is just one: comparing is quicker than hashing.
    only: Option<Arc<str>>,
    positions: FastMap<Arc<str>, usize>,
}

impl Names {
    fn new<'n>(names: impl Iterator<Item = &'n Arc<str>>) -> Names {
        let positions: FastMap<_, _> = names.cloned().zip(0..).collect();
        let only = positions.keys().next().filter(|_| positions.len() == 1).cloned();
        Names { only, positions }
    }

    fn find(&self, name: &str) -> Option<usize> {
        match &self.only {
            Some(only) => (**only == *name).then_some(0),
            None => self.positions.get(name).copied(),
        }
    }
}
