//! Deleted resources that other resources still name: the grace period, from bytes to picks.

use std::time::Duration;

use evenkeel_proto::envoy::admin::v3::ClientResourceStatus;
use evenkeel_proto::envoy::service::status::v3::client_config::GenericXdsConfig;
use evenkeel_proto::prost_types::Timestamp;
use evenkeel_xds::ads::CacheState;

use super::*;

const VARIANTS: [XdsVariant; 2] = [XdsVariant::StateOfTheWorld, XdsVariant::Delta];

const REMOVED: &str =
    r#"drop Unavailable: cluster "a": does not exist: xDS server "one" removed it (xDS node id "me")"#;

impl TestMesh {
    /// Returns a mesh in which the cluster `a` serves calls, in this variant.
    fn serving_in(variant: XdsVariant) -> TestMesh {
        let mut mesh = TestMesh::with(bootstrap(&["one"]), variant).with_all_of_a();
        assert_eq!(mesh.call("/s/m"), "10.0.0.1:80");
        mesh.plane.log();
        mesh
    }

    /// Deletes a resource in the form of the variant.
    fn delete(&mut self, kind: ResourceType, name: &str) {
        self.version += 1;
        self.plane.sends("one", reply(kind, &self.version.to_string(), &[]).removing(&[name]));
        self.follow();
    }

    fn passes(&mut self, wait: Duration) {
        self.plane.passes(wait);
        self.follow();
    }

    /// Returns the cluster `a` as CSDS dumps it.
    fn shown(&self) -> GenericXdsConfig {
        let dump = self.plane.client.dump("scope", |_| Timestamp::default());
        let of_a = |config: &GenericXdsConfig| config.type_url == Cds.type_url() && config.name == "a";
        dump.generic_xds_configs.into_iter().find(of_a).expect("the cluster is wanted")
    }
}

/// fault 24: istiod deletes a cluster some milliseconds before it moves the routes away from it. The config never loses the
/// cluster, so no call fails.
#[test]
fn a_cluster_deleted_before_the_routes_move() {
    for variant in VARIANTS {
        let mut mesh = TestMesh::serving_in(variant);
        mesh.delete(Cds, "a");
        mesh.delete(Eds, "a");
        for _ in 0..20 {
            mesh.passes(Duration::from_millis(1));
            assert_eq!(mesh.call("/s/m"), "10.0.0.1:80", "{variant:?}");
        }
        mesh.send_one(Rds, "routes", &route_config("routes", "b"));
        assert_eq!(mesh.call("/s/m"), "10.0.0.1:80", "until all of b is known");
        mesh.send_one(Cds, "b", &cluster("b"));
        mesh.send_one(Eds, "b", &load_assignment("b", &["10.0.0.2:80"]));
        assert_eq!(mesh.call("/s/m"), "10.0.0.2:80");
        mesh.follow();
        assert!(!mesh.plane.told("one").contains(&(Cds, "a".to_owned())));
        assert_eq!(mesh.backends.closed(), ["10.0.0.1:80"]);
        assert_eq!(mesh.plane.client.next_deadline(), None, "nothing is left to expire");
        assert_eq!(mesh.plane.log(), Vec::<String>::new(), "and there is nothing to warn about");
    }
}

/// fault 24, CM-6: when the grace period ends, calls on routes that still name the cluster fail, as in A53. They
/// succeed again with the response that contains the cluster.
#[test]
fn a_deleted_cluster_fails_after_the_grace_period() {
    for variant in VARIANTS {
        let mut mesh = TestMesh::serving_in(variant);
        mesh.delete(Cds, "a");
        mesh.passes(Duration::from_millis(600));
        // In state of the world, every response repeats the deletion.
        mesh.delete(Cds, "a");
        mesh.plane.nearly_passes(Duration::from_millis(400));
        mesh.follow();
        assert_eq!(mesh.call("/s/m"), "10.0.0.1:80");
        mesh.passes(Duration::from_nanos(1));
        assert_eq!(mesh.call("/s/m"), REMOVED, "{variant:?}");
        let log = mesh.plane.log();
        let warning =
            r#"warning: cluster "a": xDS server "one" removed it 1s ago and it is still referenced"#;
        assert!(log.len() == 1 && log[0].starts_with(warning), "{log:?}");

        let before = mesh.plane.now;
        mesh.send_one(Cds, "a", &cluster("a"));
        mesh.send_one(Eds, "a", &load_assignment("a", &["10.0.0.1:80"]));
        assert_eq!((mesh.call("/s/m"), mesh.plane.now), ("10.0.0.1:80".to_owned(), before), "at once");
    }
}

/// fault 24: a cluster that returns within the grace period keeps its connection, and no note of the deletion
/// remains.
#[test]
fn a_deleted_cluster_that_returns_in_time() {
    for variant in VARIANTS {
        let mut mesh = TestMesh::serving_in(variant);
        for _ in 0..3 {
            mesh.delete(Cds, "a");
            mesh.passes(Duration::from_millis(900));
            mesh.send_one(Cds, "a", &cluster("a"));
            mesh.passes(secs(60));
            assert_eq!(mesh.call("/s/m"), "10.0.0.1:80");
        }
        assert_eq!(mesh.backends.closed(), Vec::<String>::new(), "{variant:?}");
        assert_eq!(mesh.plane.log(), Vec::<String>::new());
        mesh.backends.down("10.0.0.1:80");
        let failure = mesh.call("/s/m");
        assert!(!failure.contains("removed"), "{failure}");
    }
}

/// fault 24: in the delta variant, deleted endpoints and route configurations have the same grace period.
#[test]
fn deleted_endpoints_and_routes_have_a_grace_period() {
    for kind in [Eds, Rds] {
        let name = if kind == Eds { "a" } else { "routes" };
        let mut mesh = TestMesh::serving_in(XdsVariant::Delta);
        mesh.delete(kind, name);
        mesh.plane.nearly_passes(secs(1));
        mesh.follow();
        assert_eq!(mesh.call("/s/m"), "10.0.0.1:80");
        mesh.passes(Duration::from_nanos(1));
        let failure = mesh.call("/s/m");
        assert!(failure.contains("Unavailable") && failure.contains("removed it"), "{kind}: {failure}");
    }
}

/// DE-2, DE-3: there is no grace period for listeners, with `fail_on_data_errors`, or if the period is zero.
#[test]
fn deletions_without_a_grace_period() {
    let mut mesh = TestMesh::serving();
    mesh.delete(Lds, "orders");
    assert!(mesh.call("/s/m").starts_with("Unavailable: listener \"orders\""));

    let fails = ServerFeatures { fail_on_data_errors: true, ..ServerFeatures::default() };
    let mut mesh = TestMesh::with(bootstrap_with(fails), XdsVariant::StateOfTheWorld).with_all_of_a();
    mesh.delete(Cds, "a");
    assert_eq!(mesh.call("/s/m"), REMOVED);

    let mut mesh = TestMesh::new();
    let parser = ResourceParser::new(Registry::standard());
    mesh.plane =
        Plane::with(bootstrap(&["one"]), parser, XdsVariant::StateOfTheWorld).deletion_grace(secs(0));
    mesh.id = mesh.plane.channel(&[]);
    mesh.follow();
    mesh.plane.accepts("one");
    let mut mesh = mesh.with_all_of_a();
    mesh.delete(Cds, "a");
    assert_eq!(mesh.call("/s/m"), REMOVED);
}

/// DE-6: CSDS and the metrics show that the cluster is deleted, and that it is in use during the grace period.
#[test]
fn csds_shows_a_deletion_in_its_grace_period() {
    let mut mesh = TestMesh::serving();
    mesh.delete(Cds, "a");
    let state = |mesh: &TestMesh| {
        let census = mesh.plane.client.resource_counts();
        census.into_iter().find(|census| census.kind == Cds).map(|census| census.state)
    };
    let shown = mesh.shown();
    assert_eq!(shown.client_status(), ClientResourceStatus::DoesNotExist);
    assert!(shown.xds_config.is_some(), "it is in use");
    let details = shown.error_state.expect("an error").details;
    assert!(details.contains("stays in use for at most 1s"), "{details}");
    assert_eq!(state(&mesh), Some(CacheState::DoesNotExistButCached));
    mesh.backends.down("10.0.0.1:80");
    let failure = mesh.call("/s/m");
    assert!(failure.contains("removed it"), "failures for other reasons mention it (A88): {failure}");

    mesh.passes(secs(1));
    let shown = mesh.shown();
    assert_eq!(shown.client_status(), ClientResourceStatus::DoesNotExist);
    assert!(shown.xds_config.is_none(), "it is not in use");
    assert_eq!(state(&mesh), Some(CacheState::DoesNotExist));
}

/// DE-2: a rejected version ends the grace period, because the cluster exists again. The previous version stays in
/// use.
#[test]
fn an_invalid_version_ends_a_grace_period() {
    let mut mesh = TestMesh::serving();
    mesh.delete(Cds, "a");
    let mut invalid = cluster("a");
    invalid.eds_cluster_config = None;
    mesh.send_one(Cds, "a", &invalid);
    mesh.passes(secs(60));
    assert_eq!(mesh.call("/s/m"), "10.0.0.1:80");
    assert_eq!(mesh.shown().client_status(), ClientResourceStatus::Nacked);
}
