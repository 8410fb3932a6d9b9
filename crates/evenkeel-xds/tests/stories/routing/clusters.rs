//! Clusters remain active while a call may need them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_core::LbConfig;
use evenkeel_core::PickArgs;
use evenkeel_core::policy::ClusterManagerConfig;
use evenkeel_xds::routing::{ActiveClusters, ConfigSelector, lb_config};
use serde_json::json;
use testkit::resources::route;

use super::selector_with;
use crate::route::{routes, to_weighted};

/// Returns active clusters, and the number of times that one became idle.
fn counted() -> (ActiveClusters, Arc<AtomicUsize>) {
    let gone = Arc::new(AtomicUsize::new(0));
    let counter = gone.clone();
    let on_idle = move || {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    (ActiveClusters::new(Arc::new(on_idle)), gone)
}

fn names(clusters: &ActiveClusters) -> Vec<String> {
    clusters.names().iter().map(ToString::to_string).collect()
}

fn to(cluster: &str, clusters: &ActiveClusters) -> ConfigSelector {
    selector_with(routes([route("/", cluster)]), vec![], None, clusters)
}

/// CM-7: the clusters of a selector are active before any call can use it.
#[test]
fn a_selector_makes_its_clusters_active() {
    let (clusters, _) = counted();
    assert_eq!(names(&clusters), [""; 0]);
    let config = routes([to_weighted(&[("b", 1), ("a", 1), ("never", 0)]), route("/", "a"), route("/", "c")]);
    let _selector = selector_with(config, vec![], None, &clusters);
    assert_eq!(names(&clusters), ["a", "b", "c"]);
}

/// CM-5, CM-6, fault 32: a cluster removed from the routes stays in the config until the last call on it ends, even
/// if its resource is deleted. Its own policy decides those calls. It then becomes idle once.
#[test]
fn a_cluster_stays_until_its_last_call_ends() {
    let (clusters, gone) = counted();
    let gone = || gone.load(Ordering::Relaxed);
    let old = to("old", &clusters);
    let first = old.select(&PickArgs::new("/s/m", 1)).unwrap();
    let second = first.clone();
    let new = to("new", &clusters);
    drop(old);
    assert_eq!((names(&clusters), gone()), (vec!["new".to_owned(), "old".to_owned()], 0));
    drop(first);
    assert_eq!((names(&clusters).len(), gone()), (2, 0));
    assert_eq!(
        lb_config(&clusters.names(), None).to_json()["xds_cluster_manager_experimental"]["children"]
            [second.cluster().child()],
        json!({"childPolicy": [{"cds_experimental": {"cluster": "old"}}]})
    );
    drop(second);
    assert_eq!((names(&clusters), gone()), (vec!["new".to_owned()], 1));
    drop(new);
    assert_eq!((names(&clusters), gone()), (vec![], 2));
}

/// CM-5: a cluster in both the old and the new routes never becomes idle.
#[test]
fn a_cluster_that_stays_in_the_routes_never_idles() {
    let (clusters, gone) = counted();
    let mut current = to("a", &clusters);
    let before = current.select(&PickArgs::new("/s/m", 1)).unwrap();
    for _ in 0..10 {
        current = to("a", &clusters);
    }
    let after = current.select(&PickArgs::new("/s/m", 1)).unwrap();
    assert!(Arc::ptr_eq(before.cluster(), after.cluster()), "the same allocation");
    assert_eq!((names(&clusters), gone.load(Ordering::Relaxed)), (vec!["a".to_owned()], 0));
}

/// CM-5: a cluster that is added back as its last reference ends is active.
#[test]
fn a_cluster_may_come_back() {
    let (clusters, gone) = counted();
    drop(to("a", &clusters));
    let _back = to("a", &clusters);
    assert_eq!((names(&clusters), gone.load(Ordering::Relaxed)), (vec!["a".to_owned()], 1));
}

/// A31: config of the root policy. Equal clusters give the same config, and a retained cluster keeps the same child.
#[test]
fn one_child_per_cluster() {
    let config = lb_config(&["orders".into(), "pay \"eu\"".into()], None);
    assert_eq!(
        config.to_json(),
        json!({"xds_cluster_manager_experimental": {"children": {
            "cluster:orders": {"childPolicy": [{"cds_experimental": {"cluster": "orders"}}]},
            "cluster:pay \"eu\"": {"childPolicy": [{"cds_experimental": {"cluster": "pay \"eu\""}}]},
        }}})
    );
    let same = lb_config(&["orders".into(), "pay \"eu\"".into()], Some(&config));
    assert!(same.is_same(&config));
    let other = lb_config(&["orders".into()], Some(&config));
    let child = |config: &LbConfig| {
        config.settings::<ClusterManagerConfig>().expect("a manager's").children["cluster:orders"].clone()
    };
    assert!(!other.is_same(&config) && child(&other).is_same(&child(&config)));
    assert_eq!(lb_config(&[], None).to_json(), json!({"xds_cluster_manager_experimental": {"children": {}}}));
}
