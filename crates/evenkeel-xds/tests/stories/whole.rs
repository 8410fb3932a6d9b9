//! From bytes to picks: a scripted control plane, the client, the resolver of one channel, and the core with its
//! backends.

mod deletion;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_core::{Core, Endpoints, PickArgs, Registry, Rng, Status};
use evenkeel_proto::envoy::config::core::v3::HealthStatus;
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_proto::prost::Name;
use evenkeel_proto::prost_types::Any;
use evenkeel_xds::ads::{ChangedResources, SubscriberId, XdsVariant};
use evenkeel_xds::bootstrap::{Bootstrap, ServerFeatures};
use evenkeel_xds::resolver::{XdsResolver, XdsResolverUpdate};
use evenkeel_xds::resource::{ResourceParser, ResourceType};
use evenkeel_xds::routing::{ConfigSelector, SelectedRoute};
use proptest::prelude::*;
use serde_json::json;
use testkit::resources::{
    aggregate_cluster, any as packed, cluster, dns_cluster, listener_with_rds, load_assignment, locality,
    route, route_config, virtual_host, weighted,
};
use testkit::{CoreSim as Backends, secs};

use ResourceType::{Cluster as Cds, Endpoints as Eds, Listener as Lds, RouteConfig as Rds};

use crate::script::{ClientScript as Plane, bootstrap, bootstrap_with, reply};

/// A channel to `orders` with its control plane and backends.
struct TestMesh {
    plane: Plane,
    id: SubscriberId,
    resolver: XdsResolver,
    backends: Backends,
    route: Option<Result<Arc<ConfigSelector>, String>>,
    steps: usize,
    idle: Arc<AtomicUsize>,
    version: usize,
}

impl TestMesh {
    fn new() -> TestMesh {
        TestMesh::with(bootstrap(&["one"]), XdsVariant::StateOfTheWorld)
    }

    fn with(bootstrap: Bootstrap, variant: XdsVariant) -> TestMesh {
        let mut plane = Plane::with(bootstrap, ResourceParser::new(Registry::standard()), variant);
        let id = plane.channel(&[]);
        let idle = Arc::<AtomicUsize>::default();
        let count = idle.clone();
        let on_idle = Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let core = Core::builder(Rng::fixed(1)).build();
        let nothing = json!([{"xds_cluster_manager_experimental": {"children": {}}}]);
        let mut mesh = TestMesh {
            plane,
            id,
            resolver: XdsResolver::new("orders", "orders", "me", 7, on_idle),
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

    /// Returns a mesh in which the cluster `a` serves calls.
    fn serving() -> TestMesh {
        TestMesh::new().with_all_of_a()
    }

    fn with_all_of_a(mut self) -> TestMesh {
        self.send(Lds, &[("orders", packed(&listener_with_rds("orders", "routes")))]);
        self.send(Rds, &[("routes", packed(&route_config("routes", "a")))]);
        self.send(Cds, &[("a", packed(&cluster("a")))]);
        self.send(Eds, &[("a", packed(&load_assignment("a", &["10.0.0.1:80"])))]);
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
        self.send(kind, &[(name, packed(message))]);
    }

    /// Runs the channel's driver until its subscriptions no longer change.
    fn follow(&mut self) {
        loop {
            let dynamic: Vec<_> = self.backends.core().subscribed_clusters().cloned().collect();
            let followed = self.resolver.update(&ChangedResources::Anything, &dynamic, &self.plane.client);
            if let Some(XdsResolverUpdate { update, route }) = followed.update {
                self.steps += 1;
                self.backends.take(update);
                self.route = Some(route.map_err(|status| status.to_string()));
            }
            let before = self.plane.told("one");
            let watches = followed.watches.expect("a full update lists all names");
            let names: Vec<_> = watches.resources.iter().map(|(kind, name)| (*kind, name.as_str())).collect();
            self.plane.wants(self.id, &names);
            if !self.plane.is_open("one") || self.plane.told("one") == before {
                return;
            }
        }
    }

    fn select(&mut self, path: &str) -> Result<SelectedRoute, String> {
        let entropy = self.backends.entropy();
        match self.route.as_ref() {
            None => Err("waits".to_owned()),
            Some(Err(status)) => Err(status.clone()),
            Some(Ok(selector)) => {
                selector.select(&PickArgs::new(path, entropy)).map_err(|status| status.to_string())
            }
        }
    }

    /// Returns the endpoint of a call, or its outcome.
    fn call(&mut self, path: &str) -> String {
        match self.select(path) {
            Ok(selected) => self.pick(&selected),
            Err(status) => status,
        }
    }

    fn pick(&mut self, selected: &SelectedRoute) -> String {
        let entropy = self.backends.entropy();
        let call = PickArgs::new("/s/m", entropy)
            .with_cluster(selected.cluster().child())
            .with_hash(selected.hash());
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

/// Each resource adds the subscriptions that it needs, and endpoint weights are applied in exact order (EDF-1).
#[test]
fn from_bytes_to_picks() {
    for variant in [XdsVariant::StateOfTheWorld, XdsVariant::Delta] {
        let mut mesh = TestMesh::with(bootstrap(&["one"]), variant);
        assert_eq!(mesh.call("/s/m"), "waits");
        mesh.send_one(Lds, "orders", &listener_with_rds("orders", "routes"));
        mesh.send_one(Rds, "routes", &route_config("routes", "a"));
        mesh.send_one(Cds, "a", &cluster("a"));
        assert_eq!(mesh.call("/s/m"), "waits");
        let assignment = load_assignment("a", &["10.0.0.1:80", "10.0.0.2:80"]);
        mesh.send_one(Eds, "a", &weighted(assignment, [2, 4]));
        let last: String = mesh.calls(12).iter().map(|call| &call[7..8]).collect();
        assert_eq!(last, "212212212212");
        assert_eq!(mesh.steps, 1, "one complete config, delivered at once");
    }
}

/// fault 3, ADS-7: a server that ends the stream after each response causes no new config and no new picker.
#[test]
fn streams_that_end_after_a_response_change_nothing() {
    let mut mesh = TestMesh::serving();
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

/// fault 8: a server that sends nothing after a reconnect deletes nothing.
#[test]
fn a_server_that_does_not_resend_deletes_nothing() {
    let mut mesh = TestMesh::serving();
    mesh.plane.ends("one", "restarts");
    mesh.plane.redials("one");
    mesh.plane.accepts("one");
    mesh.plane.passes(secs(60));
    mesh.follow();
    assert_eq!((mesh.call("/s/m"), mesh.steps), ("10.0.0.1:80".to_owned(), 1));
}

/// fault 10, fault 31, CDS-1, CM-5, CM-7: for routes to an unknown cluster, the old cluster serves until the new one
/// is complete. It stays active for the calls that chose it.
#[test]
fn routes_change_without_a_gap() {
    let mut mesh = TestMesh::serving();
    let early = mesh.select("/s/m").expect("a route");
    mesh.send_one(Rds, "routes", &route_config("routes", "b"));
    assert_eq!(mesh.call("/s/m"), "10.0.0.1:80");
    mesh.send(Cds, &[("a", packed(&cluster("a"))), ("b", packed(&cluster("b")))]);
    assert_eq!(mesh.call("/s/m"), "10.0.0.1:80");
    mesh.send_one(Eds, "b", &load_assignment("b", &["10.0.0.2:80"]));
    assert_eq!(mesh.call("/s/m"), "10.0.0.2:80");
    assert_eq!(mesh.pick(&early), "10.0.0.1:80", "a call on the old cluster still uses it");
    assert!(mesh.plane.told("one").contains(&(Cds, "a".to_owned())));
    assert_eq!(mesh.idle.load(Ordering::Relaxed), 0);
    drop(early);
    assert_eq!(mesh.idle.load(Ordering::Relaxed), 1, "the last call released it");
    mesh.follow();
    assert!(!mesh.plane.told("one").contains(&(Cds, "a".to_owned())));
    assert_eq!(mesh.backends.closed(), ["10.0.0.1:80"]);
}

/// fault 21: one invalid cluster of a hundred fails only its own calls.
#[test]
fn one_invalid_cluster_fails_alone() {
    let names: Vec<String> = (0..100).map(|i| format!("c{i:02}")).collect();
    let routes = names.iter().map(|name| route(&format!("/{name}/"), name)).collect();
    let mut mesh = TestMesh::new();
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
            (name.as_str(), packed(&message))
        })
        .collect();
    mesh.plane.requests("one");
    mesh.send(Cds, &clusters);
    let nack = mesh.plane.requests("one").into_iter().find(|request| request.contains('!')).expect("a NACK");
    let (_, told) = nack.split_once('!').expect("a reason");
    assert!(told.contains("\"c42\"") && told.contains("eds_cluster_config"), "{told}");
    assert!(!told.contains("c41") && told.len() <= 4 << 10, "{told}");
    let all: Vec<_> = names.iter().map(|name| load_assignment(name, &["10.0.0.1:80"])).collect();
    let all: Vec<_> = all.iter().map(|message| (message.cluster_name.as_str(), packed(message))).collect();
    mesh.send(Eds, &all);
    assert_eq!(mesh.call("/c41/m"), "10.0.0.1:80");
    let failure = mesh.call("/c42/m");
    assert!(failure.contains("c42") && failure.contains("eds_cluster_config"), "{failure}");
}

/// VAL-E9, FM-5: an invalid update leaves the previous endpoints in use, and so does an unavailable control plane.
#[test]
fn invalid_updates_and_lost_servers_keep_the_config() {
    let mut mesh = TestMesh::serving();
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

/// fault 2: a failure of all calls begins with the target of their channel. An update with the same failure changes
/// nothing.
#[test]
fn failures_of_all_calls_name_the_target() {
    let mut mesh = TestMesh::new();
    let on_idle = Arc::new(|| ());
    mesh.resolver = XdsResolver::new("orders", "orders", "me", 7, on_idle).for_target("xds:///or\nders");
    mesh.plane.ends("one", "connection refused");
    mesh.follow();
    let Some(Err(failure)) = &mesh.route else { panic!("calls can be routed") };
    let expected = r#"Unavailable: target "xds:///or\nders": listener "orders": "#;
    assert!(failure.starts_with(expected) && failure.contains("connection refused"), "{failure}");
    let steps = mesh.steps;
    mesh.follow();
    assert_eq!(mesh.steps, steps);
}

/// fault 26, VAL-E8: without a healthy endpoint, calls fail at once, and the status names the node.
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
        let mut mesh = TestMesh::serving();
        mesh.send_one(Eds, "a", &nothing);
        let failure = mesh.call("/s/m");
        assert!(failure.starts_with("fail Unavailable"), "{failure}");
        assert!(failure.contains("me"), "names the node: {failure}");
        mesh.send_one(Eds, "a", &load_assignment("a", &["10.0.0.1:80"]));
        assert_eq!(mesh.call("/s/m"), "10.0.0.1:80");
    }
}

/// CM-6, DE-3, fault 24: a deleted cluster fails its calls, and recovers when it is sent again, even unchanged. If
/// the bootstrap ignores deletions, the cluster is kept.
#[test]
fn a_deleted_cluster_comes_back() {
    let mut mesh = TestMesh::serving();
    mesh.send(Cds, &[]);
    mesh.plane.passes(secs(1));
    mesh.follow();
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
    let mut mesh = TestMesh::with(bootstrap_with(keeps), XdsVariant::StateOfTheWorld).with_all_of_a();
    mesh.send(Cds, &[]);
    assert_eq!(mesh.call("/s/m"), "10.0.0.1:80");
}

/// CDS-2, A54: without a listener every new call fails with UNAVAILABLE, and the status names the listener and the
/// node. Calls that chose a cluster before continue.
#[test]
fn a_deleted_listener_fails_new_calls() {
    let mut mesh = TestMesh::serving();
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

/// CDS-5, CDS-8, CDS-10, CDS-12: an aggregate fails over from an EDS cluster to a DNS name.
#[test]
fn an_aggregate_falls_over_to_dns() {
    let mut mesh = TestMesh::new();
    mesh.send_one(Lds, "orders", &listener_with_rds("orders", "routes"));
    mesh.send_one(Rds, "routes", &route_config("routes", "all"));
    let all = [
        ("all", packed(&aggregate_cluster("all", &["main", "spare"]))),
        ("main", packed(&cluster("main"))),
        ("spare", packed(&dns_cluster("spare", "spare.example", 443))),
    ];
    mesh.send(Cds, &all[..1]);
    mesh.send(Cds, &all);
    let mut main = load_assignment("main", &["10.0.0.1:80"]);
    main.endpoints.push(locality("far", 1, 1, &["10.0.0.2:80"]));
    mesh.send_one(Eds, "main", &main);
    assert_eq!(mesh.call("/s/m"), "waits");
    mesh.resolver.handle_resolved("spare.example:443", Ok(vec!["10.0.0.3:443".into()]));
    mesh.follow();
    assert_eq!(mesh.call("/s/m"), "10.0.0.1:80");
    mesh.backends.down("10.0.0.1:80");
    assert_eq!(mesh.call("/s/m"), "10.0.0.2:80");
    assert_eq!(mesh.backends.reresolutions(), 0);
    mesh.backends.down("10.0.0.2:80");
    assert_eq!(mesh.call("/s/m"), "10.0.0.3:443");
    mesh.backends.down("10.0.0.3:443");
    mesh.call("/s/m");
    assert!(mesh.backends.reresolutions() > 0, "the name is resolved again");
}

/// Event of the generated story below.
#[derive(Clone, Debug)]
enum TestEvent {
    /// A listener with this route configuration, or its deletion.
    Listener(Option<&'static str>),
    /// Routes to these clusters, each by its own path, and to the first by every other path. An empty list is an
    /// invalid resource.
    Routes(&'static str, Vec<char>),
    /// All subscribed clusters, except one that is invalid and one that is omitted.
    Clusters {
        spoiled: Option<char>,
        left_out: Option<char>,
    },
    /// Endpoints of a cluster: a number of them, or an invalid list.
    Endpoints(char, Option<usize>),
    Resolved(bool),
    StreamEnds,
    Refused,
    Accepted,
    Later(u64),
    BackendDown(usize),
    BackendUp(usize),
    /// A call begins and retains its cluster.
    Begins,
    /// Ends the oldest call.
    Ends,
}

/// Returns the cluster of a letter: `x` is an aggregate of `a` and `d`, `d` is a DNS cluster, and the others use EDS.
fn cluster_of(letter: char) -> Any {
    match letter {
        'x' => packed(&aggregate_cluster("x", &["a", "d"])),
        'd' => packed(&dns_cluster("d", "d.example", 443)),
        other => packed(&cluster(&other.to_string())),
    }
}

fn routes_to(name: &str, letters: &[char]) -> Any {
    let mut routes: Vec<_> = letters.iter().map(|c| route(&format!("/{c}/"), &c.to_string())).collect();
    routes.extend(letters.first().map(|c| route("", &c.to_string())));
    let mut table = route_config(name, "");
    table.virtual_hosts = vec![virtual_host(if letters.is_empty() { "a*b" } else { "*" }, routes)];
    packed(&table)
}

fn happenings() -> impl Strategy<Value = Vec<TestEvent>> {
    let letter = || prop::sample::select(vec!['a', 'b', 'c', 'd', 'x']);
    let table = || prop::sample::select(vec!["one", "two"]);
    let one = prop_oneof![
        1 => prop::option::of(table()).prop_map(TestEvent::Listener),
        3 => (table(), prop::collection::vec(letter(), 0..3)).prop_map(|(t, c)| TestEvent::Routes(t, c)),
        4 => (prop::option::weighted(0.2, letter()), prop::option::weighted(0.2, letter()))
            .prop_map(|(spoiled, left_out)| TestEvent::Clusters { spoiled, left_out }),
        4 => (letter(), prop::option::weighted(0.9, 0..4_usize)).prop_map(|(c, n)| TestEvent::Endpoints(c, n)),
        1 => any::<bool>().prop_map(TestEvent::Resolved),
        1 => Just(TestEvent::StreamEnds),
        1 => Just(TestEvent::Refused),
        4 => Just(TestEvent::Accepted),
        1 => (0..20_u64).prop_map(TestEvent::Later),
        1 => (0..4_usize).prop_map(TestEvent::BackendDown),
        1 => (0..4_usize).prop_map(TestEvent::BackendUp),
        2 => Just(TestEvent::Begins),
        2 => Just(TestEvent::Ends),
    ];
    prop::collection::vec(one, 0..40)
}

impl TestMesh {
    /// Waits until the client dials the server, and accepts the stream.
    fn reconnect(&mut self) {
        self.plane.redials("one");
        if !self.plane.is_open("one") {
            self.plane.accepts("one");
        }
        self.follow();
    }

    fn happens(&mut self, happening: &TestEvent, held: &mut Vec<SelectedRoute>) {
        let is_open = self.plane.streams().contains(&"one") && self.plane.is_open("one");
        match happening {
            TestEvent::Listener(table) if is_open => {
                let listener = table.map(|table| ("orders", packed(&listener_with_rds("orders", table))));
                self.send(Lds, listener.as_slice());
            }
            TestEvent::Routes(name, letters) if is_open => {
                self.send(Rds, &[(*name, routes_to(name, letters))]);
            }
            TestEvent::Clusters { spoiled, left_out } if is_open => {
                let wanted = self.plane.told("one").into_iter().filter(|(kind, _)| *kind == Cds);
                let names: Vec<String> = wanted.map(|(_, name)| name).collect();
                let letters = names.iter().filter_map(|name| Some((name.as_str(), name.chars().next()?)));
                let sent = letters.filter(|(_, letter)| Some(*letter) != *left_out).map(|(name, letter)| {
                    let mut resource = cluster_of(letter);
                    if Some(letter) == *spoiled {
                        resource.value = packed(&aggregate_cluster(name, &[])).value;
                    }
                    (name, resource)
                });
                self.send(Cds, &sent.collect::<Vec<_>>());
            }
            TestEvent::Endpoints(letter, n) if is_open => {
                let list: Vec<String> = (0..n.unwrap_or(0)).map(|i| format!("10.0.0.{i}:80")).collect();
                let list: Vec<&str> = list.iter().map(String::as_str).collect();
                let list = if n.is_some() { &list[..] } else { &["10.0.0.7:80", "10.0.0.7:80"][..] };
                let name = letter.to_string();
                self.send(Eds, &[(&name, packed(&load_assignment(&name, list)))]);
            }
            TestEvent::Resolved(is_well) => {
                let answer =
                    if *is_well { Ok(vec!["10.0.0.3:443".into()]) } else { Err(Status::unavailable("no")) };
                self.resolver.handle_resolved("d.example:443", answer);
                self.follow();
            }
            TestEvent::StreamEnds if is_open => self.plane.ends("one", "ends"),
            TestEvent::Refused if !is_open && self.plane.streams().contains(&"one") => {
                self.plane.refuses("one");
            }
            TestEvent::Accepted if !is_open => self.reconnect(),
            TestEvent::Later(seconds) => {
                self.plane.passes(secs(*seconds));
                self.backends.advance(secs(*seconds));
            }
            TestEvent::BackendDown(i) => self.backends.down(&format!("10.0.0.{i}:80")),
            TestEvent::BackendUp(i) => self.backends.up(&format!("10.0.0.{i}:80")),
            TestEvent::Begins => held.extend(self.select("/s/m")),
            TestEvent::Ends if !held.is_empty() => drop(held.remove(0)),
            _ => {}
        }
        self.follow();
    }

    /// Sends every subscribed resource until the channel has its complete config.
    fn comes_to_rest(&mut self) {
        self.reconnect();
        for i in 0..4 {
            self.backends.up(&format!("10.0.0.{i}:80"));
        }
        self.send(Lds, &[("orders", packed(&listener_with_rds("orders", "one")))]);
        self.send(Rds, &[("one", routes_to("one", &['c', 'x']))]);
        for _ in 0..3 {
            let wanted = self.plane.told("one").into_iter().filter(|(kind, _)| *kind == Cds);
            let names: Vec<String> = wanted.map(|(_, name)| name).collect();
            let all: Vec<_> = names
                .iter()
                .filter_map(|name| Some((name.as_str(), cluster_of(name.chars().next()?))))
                .collect();
            self.send(Cds, &all);
        }
        let all: Vec<_> = ["a", "b", "c"]
            .into_iter()
            .map(|name| {
                (
                    name,
                    packed(&load_assignment(
                        name,
                        &[if name == "c" { "10.0.0.2:80" } else { "10.0.0.1:80" }],
                    )),
                )
            })
            .collect();
        self.send(Eds, &all);
        self.resolver.handle_resolved("d.example:443", Ok(vec!["10.0.0.3:443".into()]));
        self.follow();
        self.backends.advance(secs(300));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// fault 17, fault 37, CM-5: after any events, no call with a cluster fails because the cluster is missing. When
    /// the control plane sends everything, the channel has exactly that config.
    #[test]
    fn the_final_config_counts_after_any_events(happenings in happenings(), delta in any::<bool>()) {
        let variant = if delta { XdsVariant::Delta } else { XdsVariant::StateOfTheWorld };
        let mut mesh = TestMesh::with(bootstrap(&["one"]), variant);
        let mut held = Vec::new();
        for happening in &happenings {
            mesh.happens(happening, &mut held);
            for selected in &held {
                let outcome = mesh.pick(selected);
                prop_assert!(!outcome.contains("Internal"), "{outcome}");
            }
        }
        mesh.comes_to_rest();
        prop_assert_eq!(mesh.call("/s/m"), "10.0.0.2:80");
        prop_assert_eq!(mesh.call("/x/m"), "10.0.0.1:80");
        held.clear();
        mesh.follow();
        let wanted: Vec<String> =
            mesh.plane.told("one").into_iter().map(|(kind, name)| format!("{kind} {name}")).collect();
        prop_assert_eq!(
            wanted,
            [
                "listener orders", "route configuration one", "cluster a", "cluster c", "cluster d", "cluster x",
                "endpoints a", "endpoints c",
            ]
        );
    }
}
