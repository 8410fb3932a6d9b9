//! Clusters that calls of a channel may still need (A31).
//!
//! A cluster is active while a [`ClusterRef`] to it exists, in a current or old selector or in a call that
//! selected it. The balancing config must contain every active cluster, so that no call loses its cluster
//! when routes change:
//!
//! ```text
//! new routes -> ConfigSelector::new (takes refs) -> lb_config(names()) -> balancing updated -> selector published
//! old selector and its calls end -> last ref dropped -> callback -> lb_config(names()) -> balancing updated
//! ```
//!
//! Acquiring a reference and dropping the last one lock a mutex. Routing a call does not.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use evenkeel_core::LbConfig;
use evenkeel_core::policy::{Cds, CdsConfig, ClusterManager, ClusterManagerConfig};

/// Active clusters of one channel. Clones share them.
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
    /// Number of times that a cluster was added or removed.
    changes: u64,
}

impl ActiveClusters {
    /// Creates an empty set. `on_idle` is called once for each cluster whose last reference is dropped. It
    /// runs on the thread that drops it, without a lock held. It should only wake the driver, which then
    /// reads [`ActiveClusters::names`].
    pub fn new(on_idle: Arc<dyn Fn() + Send + Sync>) -> ActiveClusters {
        ActiveClusters { shared: Arc::new(ActiveClustersShared { active: Mutex::default(), on_idle }) }
    }

    /// Returns a reference to the cluster, which stays active until the last reference is dropped.
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

    /// Returns the clusters that the balancing config must contain, in alphabetical order.
    pub fn names(&self) -> Vec<Arc<str>> {
        self.shared.lock().clusters.keys().cloned().collect()
    }

    /// Returns a counter that changes whenever the [names](ActiveClusters::names) change.
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
        // No code panics while it holds the lock, and the map is consistent between any two statements.
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reference that keeps a cluster active.
pub struct ClusterRef {
    name: Arc<str>,
    child: Box<str>,
    shared: Arc<ActiveClustersShared>,
}

impl ClusterRef {
    /// Returns the name of the cluster.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the name of its child in the balancing config, for
    /// [`PickArgs::with_cluster`](evenkeel_core::PickArgs::with_cluster).
    pub fn child(&self) -> &str {
        &self.child
    }
}

impl Drop for ClusterRef {
    fn drop(&mut self) {
        let mut active = self.shared.lock();
        // Another thread may have acquired the cluster between the end of the last reference and this lock.
        if active.clusters.get(&self.name).is_none_or(|held| held.strong_count() > 0) {
            return;
        }
        active.clusters.remove(&self.name);
        active.changes = active.changes.wrapping_add(1);
        // The callback may take the lock again.
        drop(active);
        (self.shared.on_idle)();
    }
}

impl fmt::Debug for ClusterRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClusterRef").field(&self.name).finish()
    }
}

/// Returns the config of the root policy, with one child per cluster. If `last` has the same clusters, it is
/// returned again. Children that stay keep their allocation, so that unchanged ones do not run.
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

    /// CM-5: the cluster is acquired again after its last reference ended, before the drop takes the lock. It
    /// stays active and the callback is not called. Threads hit this window too rarely for a test with
    /// threads.
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
