//! The clusters that calls of a channel may still need (A31).
//!
//! A cluster is active while anybody holds its [`ClusterRef`]: the selector in use, an old selector, a call that chose it. The
//! balancing config must hold every active cluster, so that no call loses its cluster to a change of routes:
//!
//! ```text
//! new routes -> ConfigSelector::new (takes refs) -> lb_config(names()) -> balancing updated -> selector published
//! old selector and its calls end -> last ref dropped -> callback -> lb_config(names()) -> balancing updated
//! ```
//!
//! Taking and dropping a last reference locks; routing a call does not.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use evenkeel_core::LbConfig;
use evenkeel_core::policy::{Cds, CdsConfig, ClusterManager, ClusterManagerConfig};

/// The active clusters of one channel. Clones share them.
#[derive(Clone)]
pub struct ActiveClusters {
    shared: Arc<ActiveClustersShared>,
}

struct ActiveClustersShared {
    active: Mutex<ActiveClusterMap>,
    on_idle: Arc<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct ActiveClusterMap {
    clusters: BTreeMap<Arc<str>, Weak<ClusterRef>>,
    /// How often a cluster came or went.
    changes: u64,
}

impl ActiveClusters {
    /// No cluster yet. `on_idle` is called once for each cluster whose last reference goes, by whoever dropped it and
    /// without a lock held; it should only wake a driver, who then asks for [`ActiveClusters::names`].
    pub fn new(on_idle: Arc<dyn Fn() + Send + Sync>) -> ActiveClusters {
        ActiveClusters { shared: Arc::new(ActiveClustersShared { active: Mutex::default(), on_idle }) }
    }

    /// A reference to the cluster; it is active from here on until the last one is dropped.
    pub fn acquire(&self, name: &Arc<str>) -> Arc<ClusterRef> {
        let mut active = self.shared.lock();
        if let Some(cluster) = active.clusters.get(name).and_then(Weak::upgrade) {
            return cluster;
        }
        let cluster =
            ClusterRef { name: name.clone(), child: child_name(name).into(), shared: self.shared.clone() };
        let cluster = Arc::new(cluster);
        active.clusters.insert(name.clone(), Arc::downgrade(&cluster));
        active.changes = active.changes.wrapping_add(1);
        cluster
    }

    /// The clusters that the balancing config must hold, in alphabetical order.
    pub fn names(&self) -> Vec<Arc<str>> {
        self.shared.lock().clusters.keys().cloned().collect()
    }

    /// How often a cluster came or went so far: while it stands still, the [names](ActiveClusters::names) do too.
    pub(crate) fn changes(&self) -> u64 {
        self.shared.lock().changes
    }
}

impl fmt::Debug for ActiveClusters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ActiveClusters").field(&self.names()).finish()
    }
}

impl ActiveClustersShared {
    fn lock(&self) -> MutexGuard<'_, ActiveClusterMap> {
        // Nothing panics while the lock is held, and the map is whole between any two statements.
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a cluster active.
pub struct ClusterRef {
    name: Arc<str>,
    child: Box<str>,
    shared: Arc<ActiveClustersShared>,
}

impl ClusterRef {
    /// The name of the cluster.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What the balancing config calls it: what [`PickArgs::with_cluster`](evenkeel_core::PickArgs::with_cluster) wants.
    pub fn child(&self) -> &str {
        &self.child
    }
}

impl Drop for ClusterRef {
    fn drop(&mut self) {
        let mut active = self.shared.lock();
        // Between the last reference's end and this lock, somebody may have made the cluster active again.
        if active.clusters.get(&self.name).is_none_or(|held| held.strong_count() > 0) {
            return;
        }
        active.clusters.remove(&self.name);
        active.changes = active.changes.wrapping_add(1);
        drop(active);
        (self.shared.on_idle)();
    }
}

impl fmt::Debug for ClusterRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClusterRef").field(&self.name).finish()
    }
}

/// The config of the policy at the root: one child for each of these clusters. Where `last` has the same clusters it is
/// answered again, and a child that stays keeps its allocation: those that did not change need not run.
pub fn lb_config(names: &[Arc<str>], last: Option<&LbConfig>) -> LbConfig {
    let known = last.and_then(|last| last.settings::<ClusterManagerConfig>()).map(|last| &last.children);
    let child = |name: &Arc<str>| {
        let child: Arc<str> = child_name(name).into();
        let config = known.and_then(|known| known.get(&child)).cloned().unwrap_or_else(|| {
            let settings = CdsConfig { cluster: name.clone(), is_dynamic: false };
            LbConfig::new::<Cds>("cds_experimental", settings)
        });
        (child, config)
    };
    let children: BTreeMap<_, _> = names.iter().map(child).collect();
    match last {
        Some(last) if known.is_some_and(|known| known.keys().eq(children.keys())) => last.clone(),
        _ => {
            let settings = ClusterManagerConfig { children };
            LbConfig::new::<ClusterManager>("xds_cluster_manager_experimental", settings)
        }
    }
}

fn child_name(cluster: &str) -> String {
    format!("cluster:{cluster}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CM-5: a last reference ends, and before its end is noticed somebody takes the cluster anew: it stays, and nobody is
    /// told otherwise. Threads hit this too rarely to prove it.
    #[test]
    fn a_late_end_does_not_take_the_cluster_from_others() {
        let clusters = ActiveClusters::new(Arc::new(|| panic!("the cluster is still active")));
        let name: Arc<str> = "c".into();
        let ending =
            ClusterRef { name: name.clone(), child: "cluster:c".into(), shared: clusters.shared.clone() };
        let taken = clusters.acquire(&name);
        drop(ending);
        assert_eq!(clusters.names(), [name]);
        std::mem::forget(taken);
    }
}
