//! From bytes to picks: a scripted control plane, the client, the follower of one channel, and the core with its backends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_core::{Call, Core, Endpoints, Registry, Rng};
use evenkeel_proto::envoy::config::core::v3::HealthStatus;
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_proto::prost::Name;
use evenkeel_proto::prost_types::Any;
use evenkeel_xds::bootstrap::{Bootstrap, ServerFeatures};
use evenkeel_xds::client::{SubscriberId, Variant};
use evenkeel_xds::follow::{Follower, Step};
use evenkeel_xds::resource::{Parser, ResourceType};
use evenkeel_xds::routing::{Selected, Selector};
use serde_json::json;
use testkit::resources::{
    aggregate_cluster, any, cluster, dns_cluster, listener_with_rds, load_assignment, locality, route,
    route_config, virtual_host,
};
use testkit::{World as Backends, secs};

use ResourceType::{Cluster as Cds, Endpoints as Eds, Listener as Lds, RouteConfig as Rds};

use crate::script::{World as Plane, bootstrap, bootstrap_with, reply};

/// One channel to `orders`.
struct Mesh {
    plane: Plane,
    id: SubscriberId,
    follower: Follower,
    backends: Backends,
    route: Option<Result<Arc<Selector>, String>>,
    steps: usize,
    idle: Arc<AtomicUsize>,
    version: usize,
}

impl Mesh {
    fn new() -> Mesh {
        Mesh::with(bootstrap(&["one"]), Variant::StateOfTheWorld)
    }

    fn with(bootstrap: Bootstrap, variant: Variant) -> Mesh {
        let mut plane = Plane::with(bootstrap, Parser::new(Registry::standard()), variant);
        let id = plane.channel(&[]);
        let idle = Arc::<AtomicUsize>::default();
        let count = idle.clone();
        let on_idle = Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let core = Core::builder(Rng::fixed(1)).build();
        let nothing = json!([{"xds_cluster_manager_experimental": {"children": {}}}]);
        let mut mesh = Mesh {
            plane,
            id,
            follower: Follower::new("orders", "orders", "me", 7, on_idle),
            backends: Backends::with(core, Registry::standard(), &nothing, Endpoints::none()).all_up(),
            route: None,
            steps: 0,
            idle,
            version: 0,
        };
        mesh.follow();
        mesh.plane.accepts("one");
        mesh
    }

    /// Everything that leads to the endpoints of the cluster `a`.
    fn serving() -> Mesh {
        Mesh::new().with_all_of_a()
    }

    fn with_all_of_a(mut self) -> Mesh {
        self.send(Lds, &[("orders", any(&listener_with_rds("orders", "routes")))]);
        self.send(Rds, &[("routes", any(&route_config("routes", "a")))]);
        self.send(Cds, &[("a", any(&cluster("a")))]);
        self.send(Eds, &[("a", any(&load_assignment("a", &["10.0.0.1:80"])))]);
        self
    }

    fn send(&mut self, kind: ResourceType, resources: &[(&str, Any)]) {
        self.version += 1;
        let mut response = reply(kind, &self.version.to_string(), &[]);
        for (name, resource) in resources {
            response = response.with(name, resource.clone());
        }
        self.plane.sends("one", response);
        self.follow();
    }

    fn send_one<M: Name>(&mut self, kind: ResourceType, name: &str, message: &M) {
        self.send(kind, &[(name, any(message))]);
    }

    /// The driver of the channel: until nothing more is wanted than before.
    fn follow(&mut self) {
        loop {
            let dynamic: Vec<_> = self.backends.core().wanted_clusters().cloned().collect();
            let followed = self.follower.follow(&dynamic, &self.plane.client);
            if let Some(Step { update, route }) = followed.step {
                self.steps += 1;
                self.backends.take(update);
                self.route = Some(route.map_err(|status| status.to_string()));
            }
            let before = self.plane.told("one");
            let names: Vec<_> = followed.wanted.iter().map(|(kind, name)| (*kind, name.as_str())).collect();
            self.plane.wants(self.id, &names);
            if !self.plane.is_open("one") || self.plane.told("one") == before {
                return;
            }
        }
    }

    fn select(&mut self, path: &str) -> Result<Selected, String> {
        let entropy = self.backends.entropy();
        match self.route.as_ref() {
            None => Err("waits".to_owned()),
            Some(Err(status)) => Err(status.clone()),
            Some(Ok(selector)) => {
                selector.select(&Call::new(path, entropy)).map_err(|status| status.to_string())
            }
        }
    }

    /// Where a call goes, or what becomes of it.
    fn call(&mut self, path: &str) -> String {
        match self.select(path) {
            Ok(selected) => self.pick(&selected),
            Err(status) => status,
        }
    }

    fn pick(&mut self, selected: &Selected) -> String {
        let entropy = self.backends.entropy();
        let call =
            Call::new("/s/m", entropy).with_cluster(selected.cluster().child()).with_hash(selected.hash());
        let picked = self.backends.pick_call(&call);
        let outcome = picked.outcome();
        match picked.status() {
            Some(status) => format!("{outcome} {status}"),
            None => outcome,
        }
    }

    fn calls(&mut self, n: usize) -> Vec<String> {
        (0..n).map(|_| self.call("/s/m")).collect()
    }
}

/// The whole way: each answer leads to the next question, and the endpoints' weights decide in exact order (EDF-1).
#[test]
fn from_bytes_to_picks() {
    for variant in [Variant::StateOfTheWorld, Variant::Delta] {
        let mut mesh = Mesh::with(bootstrap(&["one"]), variant);
        assert_eq!(mesh.call("/s/m"), "waits");
        mesh.send_one(Lds, "orders", &listener_with_rds("orders", "routes"));
        mesh.send_one(Rds, "routes", &route_config("routes", "a"));
        mesh.send_one(Cds, "a", &cluster("a"));
        assert_eq!(mesh.call("/s/m"), "waits");
        let mut assignment = load_assignment("a", &["10.0.0.1:80", "10.0.0.2:80"]);
        for (endpoint, weight) in assignment.endpoints[0].lb_endpoints.iter_mut().zip([2, 4]) {
            endpoint.load_balancing_weight = Some(weight);
        }
        mesh.send_one(Eds, "a", &assignment);
        let last: String = mesh.calls(12).iter().map(|call| &call[7..8]).collect();
        assert_eq!(last, "212212212212");
        assert_eq!(mesh.steps, 1, "one complete config, delivered at once");
    }
}

/// fault 3, ADS-7: a server that ends the stream after each response is not in trouble, and nothing happens below.
#[test]
fn streams_that_end_after_a_response_change_nothing() {
    let mut mesh = Mesh::serving();
    let (steps, published) = (mesh.steps, mesh.backends.published());
    assert!(published > 0);
    for _ in 0..100 {
        mesh.plane.ends("one", "end of stream");
        mesh.plane.redials("one");
        mesh.plane.accepts("one");
        mesh.send_one(Eds, "a", &load_assignment("a", &["10.0.0.1:80"]));
        assert_eq!(mesh.call("/s/m"), "10.0.0.1:80");
    }
    assert!(mesh.plane.dialled().len() > 100);
    assert_eq!((mesh.steps, mesh.backends.published()), (steps, 0), "no new config, no new picker");
}

/// fault 8: a server that comes back and does not repeat itself is believed to have nothing new.
#[test]
fn a_server_that_does_not_resend_deletes_nothing() {
    let mut mesh = Mesh::serving();
    mesh.plane.ends("one", "restarts");
    mesh.plane.redials("one");
    mesh.plane.accepts("one");
    mesh.plane.passes(secs(60));
    mesh.follow();
    assert_eq!((mesh.call("/s/m"), mesh.steps), ("10.0.0.1:80".to_owned(), 1));
}

/// fault 10, fault 31, CDS-1, CM-5, CM-7: routes to a cluster that is not known yet; the old one serves until all of the new
/// one is there, and stays for the calls that chose it.
#[test]
fn routes_change_without_a_gap() {
    let mut mesh = Mesh::serving();
    let early = mesh.select("/s/m").expect("a route");
    mesh.send_one(Rds, "routes", &route_config("routes", "b"));
    assert_eq!(mesh.call("/s/m"), "10.0.0.1:80");
    mesh.send(Cds, &[("a", any(&cluster("a"))), ("b", any(&cluster("b")))]);
    assert_eq!(mesh.call("/s/m"), "10.0.0.1:80");
    mesh.send_one(Eds, "b", &load_assignment("b", &["10.0.0.2:80"]));
    assert_eq!(mesh.call("/s/m"), "10.0.0.2:80");
    assert_eq!(mesh.pick(&early), "10.0.0.1:80", "who chose the old cluster still gets it");
    assert!(mesh.plane.told("one").contains(&(Cds, "a".to_owned())));
    assert_eq!(mesh.idle.load(Ordering::Relaxed), 0);
    drop(early);
    assert_eq!(mesh.idle.load(Ordering::Relaxed), 1, "the last call let go of it");
    mesh.follow();
    assert!(!mesh.plane.told("one").contains(&(Cds, "a".to_owned())));
    assert_eq!(mesh.backends.closed(), ["10.0.0.1:80"]);
}

/// fault 21: one bad cluster among a hundred spoils itself only.
#[test]
fn one_bad_cluster_spoils_itself_only() {
    let names: Vec<String> = (0..100).map(|i| format!("c{i:02}")).collect();
    let routes = names.iter().map(|name| route(&format!("/{name}/"), name)).collect();
    let mut mesh = Mesh::new();
    mesh.send_one(Lds, "orders", &listener_with_rds("orders", "routes"));
    let mut table = route_config("routes", "");
    table.virtual_hosts = vec![virtual_host("*", routes)];
    mesh.send_one(Rds, "routes", &table);
    let clusters: Vec<_> = names
        .iter()
        .map(|name| {
            let mut message = cluster(name);
            if name == "c42" {
                message.eds_cluster_config = None;
            }
            (name.as_str(), any(&message))
        })
        .collect();
    mesh.plane.requests("one");
    mesh.send(Cds, &clusters);
    let nack = mesh.plane.requests("one").into_iter().find(|request| request.contains('!')).expect("a NACK");
    assert!(nack.contains("c42") && nack.contains("eds_cluster_config"), "{nack}");
    assert!(!nack.contains("c41") || nack.len() < 5_000, "{nack}");
    let all: Vec<_> = names.iter().map(|name| load_assignment(name, &["10.0.0.1:80"])).collect();
    let all: Vec<_> = all.iter().map(|message| (message.cluster_name.as_str(), any(message))).collect();
    mesh.send(Eds, &all);
    assert_eq!(mesh.call("/c41/m"), "10.0.0.1:80");
    let failure = mesh.call("/c42/m");
    assert!(failure.contains("c42") && failure.contains("eds_cluster_config"), "{failure}");
}

/// VAL-E9, FM-5: a bad update leaves the endpoints before it in use; so does a control plane that is gone.
#[test]
fn bad_updates_and_lost_servers_leave_what_works() {
    let mut mesh = Mesh::serving();
    let bad = load_assignment("a", &["10.0.0.9:80", "10.0.0.9:80"]);
    mesh.send_one(Eds, "a", &bad);
    assert_eq!(mesh.call("/s/m"), "10.0.0.1:80");
    mesh.plane.ends("one", "gone");
    for _ in 0..5 {
        mesh.plane.redials("one");
        mesh.plane.refuses("one");
        mesh.follow();
        assert_eq!(mesh.call("/s/m"), "10.0.0.1:80");
    }
}

/// fault 26, VAL-E8: without an endpoint that can be called, calls fail at once and say which cluster.
#[test]
fn without_healthy_endpoints_calls_fail_at_once() {
    let mut unhealthy = load_assignment("a", &["10.0.0.1:80", "10.0.0.2:80"]);
    for (endpoint, health) in
        unhealthy.endpoints[0].lb_endpoints.iter_mut().zip([HealthStatus::Unhealthy, HealthStatus::Draining])
    {
        endpoint.health_status = health.into();
    }
    let none = ClusterLoadAssignment { cluster_name: "a".to_owned(), ..ClusterLoadAssignment::default() };
    for nothing in [unhealthy, none] {
        let mut mesh = Mesh::serving();
        mesh.send_one(Eds, "a", &nothing);
        let failure = mesh.call("/s/m");
        assert!(failure.starts_with("fail Unavailable"), "{failure}");
        assert!(failure.contains("me"), "names the node: {failure}");
        mesh.send_one(Eds, "a", &load_assignment("a", &["10.0.0.1:80"]));
        assert_eq!(mesh.call("/s/m"), "10.0.0.1:80");
    }
}

/// CM-6, DE-3, fault 24: a cluster that is deleted fails its calls and recovers when it returns, also unchanged; where
/// the bootstrap says so it is kept.
#[test]
fn a_deleted_cluster_comes_back() {
    let mut mesh = Mesh::serving();
    mesh.send(Cds, &[]);
    let failure = mesh.call("/s/m");
    assert_eq!(
        failure,
        r#"drop Unavailable: cluster "a": does not exist: xDS server "one" removed it (xDS node id "me")"#
    );
    mesh.send_one(Cds, "a", &cluster("a"));
    mesh.send_one(Eds, "a", &load_assignment("a", &["10.0.0.1:80"]));
    assert_eq!(mesh.call("/s/m"), "10.0.0.1:80");
    mesh.backends.down("10.0.0.1:80");
    let failure = mesh.call("/s/m");
    assert!(!failure.contains("does not exist"), "no stale note: {failure}");

    let keeps = ServerFeatures { ignore_resource_deletion: true, ..ServerFeatures::default() };
    let mut mesh = Mesh::with(bootstrap_with(keeps), Variant::StateOfTheWorld).with_all_of_a();
    mesh.send(Cds, &[]);
    assert_eq!(mesh.call("/s/m"), "10.0.0.1:80");
}

/// CDS-2, A54: without a listener every call fails with UNAVAILABLE, and names the listener and the node; calls that chose
/// a cluster before go on.
#[test]
fn a_deleted_listener_fails_new_calls() {
    let mut mesh = Mesh::serving();
    let early = mesh.select("/s/m").expect("a route");
    mesh.send(Lds, &[]);
    let failure = mesh.call("/s/m");
    assert!(failure.starts_with("Unavailable: listener \"orders\""), "{failure}");
    assert!(failure.contains("me"), "{failure}");
    assert_eq!(mesh.pick(&early), "10.0.0.1:80");
    drop(early);
    mesh.follow();
    assert_eq!(mesh.backends.closed(), ["10.0.0.1:80"]);
    mesh = mesh.with_all_of_a();
    assert_eq!(mesh.call("/s/m"), "10.0.0.1:80");
}

/// CDS-5, CDS-8, CDS-10, CDS-12: an aggregate over a cluster of the control plane and a DNS name.
#[test]
fn an_aggregate_falls_over_to_dns() {
    let mut mesh = Mesh::new();
    mesh.send_one(Lds, "orders", &listener_with_rds("orders", "routes"));
    mesh.send_one(Rds, "routes", &route_config("routes", "all"));
    let all = [
        ("all", any(&aggregate_cluster("all", &["main", "spare"]))),
        ("main", any(&cluster("main"))),
        ("spare", any(&dns_cluster("spare", "spare.example", 443))),
    ];
    mesh.send(Cds, &all[..1]);
    mesh.send(Cds, &all);
    let mut main = load_assignment("main", &["10.0.0.1:80"]);
    main.endpoints.push(locality("far", 1, 1, &["10.0.0.2:80"]));
    mesh.send_one(Eds, "main", &main);
    assert_eq!(mesh.call("/s/m"), "waits");
    mesh.follower.handle_resolved("spare.example:443", Ok(vec!["10.0.0.3:443".into()]));
    mesh.follow();
    assert_eq!(mesh.call("/s/m"), "10.0.0.1:80");
    mesh.backends.down("10.0.0.1:80");
    assert_eq!(mesh.call("/s/m"), "10.0.0.2:80");
    assert_eq!(mesh.backends.reresolutions(), 0);
    mesh.backends.down("10.0.0.2:80");
    assert_eq!(mesh.call("/s/m"), "10.0.0.3:443");
    mesh.backends.down("10.0.0.3:443");
    mesh.call("/s/m");
    assert!(mesh.backends.reresolutions() > 0, "DNS is asked again");
}
