//! Resolution of a listener into one complete config (A74).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_core::cluster::{Cluster, EndpointSet, EndpointSource};
use evenkeel_core::{Code, Registry, Status};
use evenkeel_proto::prost::Name;
use evenkeel_xds::ads::{ChangedResources, ResourceState};
use evenkeel_xds::bootstrap::ServerConfig;
use evenkeel_xds::dependency_manager::{
    DependencyManager, DependencyOutcome, DependencyUpdate, MissingDependency, WatchedNames, XdsConfig,
};
use evenkeel_xds::resource::{ResourceParser, ResourceType};
use testkit::resources::{
    aggregate_cluster, any, cluster, dns_cluster, listener_with_rds, listener_with_routes, load_assignment,
    route, route_config, virtual_host,
};

use ResourceType::{Cluster as Cds, Endpoints as Eds, Listener as Lds, RouteConfig as Rds};

/// Channel to `orders`, and the resources that a control plane would have sent.
struct Story {
    graph: DependencyManager,
    parser: ResourceParser,
    server: ServerConfig,
    known: BTreeMap<(ResourceType, String), ResourceState>,
    held: Vec<Arc<str>>,
}

impl Story {
    fn new() -> Story {
        Story {
            graph: DependencyManager::new("orders", "orders"),
            parser: ResourceParser::new(Registry::standard()),
            server: ServerConfig::insecure("control:443"),
            known: BTreeMap::new(),
            held: Vec::new(),
        }
    }

    /// Returns a story with a listener and a route configuration that names one cluster.
    fn with_routes_to(cluster: &str) -> Story {
        let mut story = Story::new();
        story.know(Lds, &listener_with_rds("orders", "routes"));
        story.know(Rds, &route_config("routes", cluster));
        story
    }

    fn know<M: Name>(&mut self, kind: ResourceType, message: &M) {
        let parsed = self.parser.parse(kind, &any(message), &self.server).expect("it is valid");
        let seen = ResourceState { value: Some(Ok(parsed.resource)), ambient: None };
        self.known.insert((kind, parsed.name), seen);
    }

    fn fail(&mut self, kind: ResourceType, name: &str, text: &str) {
        let seen = ResourceState { value: Some(Err(Status::unavailable(text))), ambient: None };
        self.known.insert((kind, name.to_owned()), seen);
    }

    fn ambient(&mut self, kind: ResourceType, name: &str, text: Option<&str>) {
        let seen = self.known.get_mut(&(kind, name.to_owned())).expect("it is known");
        seen.ambient = text.map(Status::unavailable);
    }

    fn resolve(&mut self) -> DependencyUpdate {
        let known = &self.known;
        let view =
            |kind: ResourceType, name: &str| known.get(&(kind, name.to_owned())).cloned().unwrap_or_default();
        self.graph.update(&ChangedResources::Anything, &self.held, &view)
    }

    fn config(&mut self) -> Arc<XdsConfig> {
        match self.resolve().outcome {
            DependencyOutcome::Config(config) => config,
            other => panic!("no config: {other:?}"),
        }
    }

    fn failure(&mut self) -> Status {
        match self.resolve().outcome {
            DependencyOutcome::Failed(status) => status,
            other => panic!("no failure: {other:?}"),
        }
    }

    fn is_waiting(&mut self) -> bool {
        matches!(self.resolve().outcome, DependencyOutcome::Waiting(_))
    }

    /// Returns the dependency that the config waits for.
    fn missing(&mut self) -> MissingDependency {
        match self.resolve().outcome {
            DependencyOutcome::Waiting(missing) => missing,
            other => panic!("nothing is missing: {other:?}"),
        }
    }

    fn watches(&mut self) -> WatchedNames {
        self.resolve().watches.expect("a full update lists all names")
    }

    /// Returns the subscriptions as text, as in `cluster a`.
    fn wanted(&mut self) -> Vec<String> {
        self.watches().resources.iter().map(|(kind, name)| format!("{kind} {name}")).collect()
    }

    /// Returns the error of a cluster.
    fn problem(&mut self, cluster: &str) -> String {
        match self.config().clusters.cluster(cluster).expect("a known cluster") {
            Err(status) => status.message().to_owned(),
            Ok(cluster) => panic!("can be used: {cluster:?}"),
        }
    }

    fn leaves(&mut self, cluster: &str) -> Vec<String> {
        match self.config().clusters.cluster(cluster).expect("a known cluster") {
            Ok(cluster) => match &**cluster {
                Cluster::Aggregate { leaves } => leaves.iter().map(ToString::to_string).collect(),
                Cluster::Leaf(leaf) => vec![leaf.name.to_string()],
            },
            Err(status) => panic!("cannot be used: {status}"),
        }
    }

    fn endpoints(&mut self, cluster: &str) -> Arc<EndpointSet> {
        let config = self.config();
        let source = EndpointSource::Eds { cluster: cluster.into(), service_name: None };
        config.clusters.endpoint_set(&source).expect("known endpoints").clone()
    }
}

fn addresses(set: &EndpointSet) -> Vec<String> {
    let all = set.priorities.iter().flat_map(evenkeel_core::Endpoints::iter);
    all.flat_map(|endpoint| endpoint.addresses().iter().map(ToString::to_string).collect::<Vec<_>>())
        .collect()
}

/// CDS-1: a config is published when every resource is known, and each resource adds the subscriptions that it needs.
#[test]
fn a_config_is_complete_or_absent() {
    let mut story = Story::new();
    let resource = |kind, name: &str| MissingDependency::Resource(kind, name.to_owned());
    assert_eq!(story.wanted(), ["listener orders"]);
    assert_eq!(story.missing(), resource(Lds, "orders"));
    story.know(Lds, &listener_with_rds("orders", "routes"));
    assert_eq!(story.wanted(), ["listener orders", "route configuration routes"]);
    assert_eq!(story.missing(), resource(Rds, "routes"));
    let mut routes = route_config("routes", "a");
    routes.virtual_hosts[0].routes.insert(0, route("/b", "b"));
    story.know(Rds, &routes);
    assert_eq!(story.wanted(), ["listener orders", "route configuration routes", "cluster a", "cluster b"]);
    story.know(Cds, &cluster("a"));
    assert!(story.wanted().contains(&"endpoints a".to_owned()));
    assert_eq!(story.missing(), resource(Cds, "b"), "clusters come before endpoints");
    story.know(Eds, &load_assignment("a", &["10.0.0.1:80"]));
    story.know(Cds, &cluster("b"));
    assert_eq!(story.missing(), resource(Eds, "b"));
    story.know(Eds, &load_assignment("b", &["10.0.0.2:80"]));
    let config = story.config();
    assert_eq!(config.virtual_host.name, "host *");
    assert_eq!(config.clusters.clusters().count(), 2);
    assert_eq!(addresses(&story.endpoints("b")), ["10.0.0.2:80"]);
    assert_eq!(config.note, None);
}

/// CDS-1: inline routes need no route configuration.
#[test]
fn routes_may_be_inline() {
    let mut story = Story::new();
    story.know(Lds, &listener_with_routes("orders", route_config("", "a")));
    assert_eq!(story.wanted(), ["listener orders", "cluster a"]);
    story.know(Lds, &listener_with_rds("orders", "routes"));
    assert_eq!(story.wanted(), ["listener orders", "route configuration routes"]);
}

/// CDS-1, fault 10, fault 31: until the clusters of new routes are known, the old routes stay in use. Their endpoints
/// are still updated.
#[test]
fn the_old_config_serves_until_the_new_one_is_complete() {
    let mut story = Story::with_routes_to("old");
    story.know(Cds, &cluster("old"));
    story.know(Eds, &load_assignment("old", &["10.0.0.1:80"]));
    let old = story.config();
    story.know(Rds, &route_config("routes", "new"));
    assert!(Arc::ptr_eq(&story.config(), &old), "nothing changed for the old routes");
    assert!(story.wanted().contains(&"cluster new".to_owned()));
    assert!(story.wanted().contains(&"endpoints old".to_owned()), "what serves is still wanted");

    story.know(Eds, &load_assignment("old", &["10.0.0.9:80"]));
    assert_eq!(addresses(&story.endpoints("old")), ["10.0.0.9:80"]);

    story.know(Cds, &cluster("new"));
    assert_eq!(*story.config().virtual_host.clusters, ["old".into()]);
    story.know(Eds, &load_assignment("new", &["10.0.0.2:80"]));
    let new = story.config();
    assert_eq!(*new.virtual_host.clusters, ["new".into()]);
    assert!(new.clusters.cluster("old").is_none());
    assert!(!story.wanted().contains(&"cluster old".to_owned()));
}

/// CDS-2: without a listener or route configuration the channel fails. It recovers when the resource is received.
#[test]
fn a_missing_listener_or_route_fails_the_channel() {
    let mut story = Story::with_routes_to("a");
    story.know(Cds, &cluster("a"));
    story.know(Eds, &load_assignment("a", &["10.0.0.1:80"]));
    story.config();
    story.fail(Rds, "routes", "routes are gone");
    assert_eq!(story.failure().message(), "routes are gone");
    story.fail(Lds, "orders", "listener is gone");
    assert_eq!(story.failure().message(), "listener is gone");
    assert_eq!(story.wanted(), ["listener orders"]);
    story.know(Lds, &listener_with_rds("orders", "routes"));
    story.know(Rds, &route_config("routes", "a"));
    assert_eq!(story.config().clusters.clusters().count(), 1);
}

/// CDS-2: a missing cluster fails only its own calls.
#[test]
fn a_missing_cluster_fails_alone() {
    let mut story = Story::new();
    let mut routes = route_config("", "a");
    routes.virtual_hosts[0].routes.insert(0, route("/b", "b"));
    story.know(Lds, &listener_with_routes("orders", routes));
    story.know(Cds, &cluster("a"));
    story.know(Eds, &load_assignment("a", &["10.0.0.1:80"]));
    story.fail(Cds, "b", "b does not exist");
    assert_eq!(story.problem("b"), "b does not exist");
    assert_eq!(story.leaves("a"), ["a"]);
}

/// CDS-3: the channel's authority selects the virtual host. Without a match the channel fails.
#[test]
fn the_authority_chooses_the_virtual_host() {
    let mut routes = route_config("", "other");
    routes.virtual_hosts = vec![
        virtual_host("payments", vec![route("", "payments")]),
        virtual_host("orders", vec![route("", "orders")]),
    ];
    let mut story = Story::new();
    story.know(Lds, &listener_with_routes("orders", routes.clone()));
    assert_eq!(story.wanted(), ["listener orders", "cluster orders"]);
    routes.virtual_hosts.pop();
    story.know(Lds, &listener_with_routes("orders", routes.clone()));
    let failure = story.failure();
    assert_eq!(failure.code(), Code::Unavailable);
    assert_eq!(failure.message(), r#"listener "orders" has no virtual host for the authority "orders""#);
    routes.name = "routes".to_owned();
    story.know(Lds, &listener_with_rds("orders", "routes"));
    story.know(Rds, &routes);
    assert_eq!(
        story.failure().message(),
        r#"route configuration "routes" has no virtual host for the authority "orders""#
    );
}

/// CDS-5: the leaves of an aggregate are ordered depth first, each at its first occurrence. CDS-13: each is
/// subscribed once.
#[test]
fn aggregates_are_flattened() {
    let mut story = Story::with_routes_to("top");
    story.know(Cds, &aggregate_cluster("top", &["b", "middle", "b", "e"]));
    story.know(Cds, &aggregate_cluster("middle", &["d", "b", "e"]));
    for name in ["b", "d", "e"] {
        story.know(Cds, &cluster(name));
        assert!(story.is_waiting());
        story.know(Eds, &load_assignment(name, &["10.0.0.1:80"]));
    }
    assert_eq!(story.leaves("top"), ["b", "d", "e"]);
    let wanted = story.watches().resources;
    let unique: BTreeSet<_> = wanted.iter().collect();
    assert_eq!(wanted.len(), unique.len());
    assert!(wanted.contains(&(Cds, "middle".to_owned())));
    assert!(Arc::ptr_eq(&story.config(), &story.config()));
}

/// CDS-6: a missing leaf keeps its position with an error, and the other leaves are used.
#[test]
fn an_aggregate_works_without_a_leaf() {
    let mut story = Story::with_routes_to("top");
    story.know(Cds, &aggregate_cluster("top", &["gone", "b"]));
    story.know(Cds, &cluster("b"));
    story.know(Eds, &load_assignment("b", &["10.0.0.1:80"]));
    assert!(story.is_waiting());
    story.fail(Cds, "gone", "does not exist");
    assert_eq!(story.leaves("top"), ["gone", "b"]);
    assert_eq!(story.problem("gone"), "does not exist");
}

/// Adds a chain of aggregates `c1 -> c2 -> ... -> cn` that ends with a leaf.
fn chain(story: &mut Story, length: usize) {
    for i in 1..length {
        story.know(Cds, &aggregate_cluster(&format!("c{i}"), &[&format!("c{}", i + 1)]));
    }
    story.know(Cds, &cluster(&format!("c{length}")));
    story.know(Eds, &load_assignment(&format!("c{length}"), &["10.0.0.1:80"]));
}

/// CDS-5, fault 33: a path of sixteen clusters is valid, seventeen are not. Clusters further down the path are not
/// affected.
#[test]
fn aggregates_are_nested_sixteen_deep_at_most() {
    let mut story = Story::with_routes_to("c1");
    chain(&mut story, 16);
    assert_eq!(story.leaves("c1"), ["c16"]);
    let mut story = Story::with_routes_to("c1");
    chain(&mut story, 17);
    assert_eq!(story.problem("c1"), r#"cluster "c1": aggregate clusters are nested more than 16 deep"#);
    assert_eq!(story.leaves("c2"), ["c17"]);
    let mut story = Story::with_routes_to("c1");
    chain(&mut story, 20_000);
    assert!(story.problem("c1").ends_with("nested more than 16 deep"));
    assert_eq!(story.leaves("c19990"), ["c20000"]);
}

/// fault 33: the error of a cycle names its clusters, and clusters outside it are not affected.
#[test]
fn cycles_of_aggregates_are_named() {
    let mut story = Story::new();
    let mut routes = route_config("", "a");
    routes.virtual_hosts[0].routes.insert(0, route("/well", "well"));
    story.know(Lds, &listener_with_routes("orders", routes));
    story.know(Cds, &aggregate_cluster("a", &["leaf", "b"]));
    story.know(Cds, &aggregate_cluster("b", &["a"]));
    for name in ["leaf", "well"] {
        story.know(Cds, &cluster(name));
        story.know(Eds, &load_assignment(name, &["10.0.0.1:80"]));
    }
    let circle = r#"cluster "b": aggregate clusters form a cycle through "a""#;
    assert_eq!(story.problem("a"), circle);
    assert_eq!(story.problem("b"), circle);
    assert_eq!(story.leaves("well"), ["well"]);
    story.know(Cds, &aggregate_cluster("a", &["a"]));
    assert_eq!(story.problem("a"), r#"cluster "a": aggregate clusters form a cycle through "a""#);
}

/// fault 33: in a lattice of aggregates each cluster is visited once, not once per path.
#[test]
fn lattices_are_walked_once() {
    let mut story = Story::with_routes_to("l0a");
    for i in 0..14 {
        let below = [format!("l{}a", i + 1), format!("l{}b", i + 1)];
        let below: Vec<&str> = below.iter().map(String::as_str).collect();
        for side in ["a", "b"] {
            story.know(Cds, &aggregate_cluster(&format!("l{i}{side}"), &below));
        }
    }
    for side in ["a", "b"] {
        let name = format!("l14{side}");
        story.know(Cds, &cluster(&name));
        story.know(Eds, &load_assignment(&name, &["10.0.0.1:80"]));
    }
    assert_eq!(story.leaves("l0a"), ["l14a", "l14b"]);
}

/// CDS-8, CDS-10: the driver resolves the name of a DNS cluster. All addresses become one endpoint in the empty
/// locality, and every name is listed for re-resolution. An error keeps the last addresses.
#[test]
fn dns_names_are_resolved_by_the_driver() {
    let mut story = Story::with_routes_to("top");
    story.know(Cds, &aggregate_cluster("top", &["one", "two"]));
    story.know(Cds, &dns_cluster("one", "one.example", 443));
    story.know(Cds, &dns_cluster("two", "two.example", 80));
    let hosts = story.watches().hosts;
    assert_eq!(hosts, BTreeSet::from(["one.example:443".into(), "two.example:80".into()]));
    story.graph.handle_resolved("one.example:443", Ok(vec!["10.0.0.1:443".into(), "10.0.0.2:443".into()]));
    assert_eq!(story.missing(), MissingDependency::DnsName("two.example:80".into()));
    story.graph.handle_resolved("two.example:80", Err(Status::unavailable("no such host")));
    let config = story.config();
    let of = |config: &XdsConfig, hostname: &str| {
        let source = EndpointSource::LogicalDns { hostname: hostname.into() };
        config.clusters.endpoint_set(&source).expect("known endpoints").clone()
    };
    let one = of(&config, "one.example:443");
    assert_eq!(addresses(&one), ["10.0.0.1:443", "10.0.0.2:443"]);
    assert_eq!(one.priorities[0].iter().count(), 1);
    let endpoint = one.priorities[0].iter().next().unwrap();
    assert_eq!(endpoint.locality().unwrap().to_string(), r#"{region="", zone="", sub_zone=""}"#);
    assert_eq!(endpoint.locality_weight(), Some(1));
    assert_eq!(endpoint.hostname(), Some("one.example:443"), "A81");
    let two = of(&config, "two.example:80");
    assert_eq!((two.priorities.len(), addresses(&two)), (1, vec![]));
    assert_eq!(two.note.as_deref(), Some(r#"DNS name "two.example:80": no such host"#));

    story.graph.handle_resolved("one.example:443", Ok(vec!["10.0.0.1:443".into(), "10.0.0.2:443".into()]));
    assert!(Arc::ptr_eq(&story.config(), &config), "the same answer changes nothing");
    story.graph.handle_resolved("one.example:443", Err(Status::unavailable("timed out")));
    let one = of(&story.config(), "one.example:443");
    assert_eq!(addresses(&one), ["10.0.0.1:443", "10.0.0.2:443"]);
    assert_eq!(one.note.as_deref(), Some("timed out"));
    story.graph.handle_resolved("one.example:443", Ok(vec![]));
    assert_eq!(addresses(&of(&story.config(), "one.example:443")), Vec::<String>::new());
}

/// CDS-9: missing endpoints become one priority without endpoints, with a note of the reason.
#[test]
fn missing_endpoints_are_an_empty_priority() {
    let mut story = Story::with_routes_to("a");
    story.know(Cds, &cluster("a"));
    story.fail(Eds, "a", "endpoints do not exist");
    let set = story.endpoints("a");
    assert_eq!((set.priorities.len(), set.priorities[0].is_empty()), (1, true));
    assert_eq!(set.note.as_deref(), Some("endpoints do not exist"));
    assert!(Arc::ptr_eq(&story.config(), &story.config()), "the same failure changes nothing");
    story.know(Eds, &load_assignment("a", &["10.0.0.1:80"]));
    let set = story.endpoints("a");
    assert_eq!((addresses(&set), set.note.as_deref()), (vec!["10.0.0.1:80".to_owned()], None));
}

/// CDS-11, CM-5: clusters that policies or calls hold are part of the config beside those of the routes, and do not
/// delay it.
#[test]
fn held_clusters_are_followed_beside_the_routes() {
    let mut story = Story::with_routes_to("a");
    story.know(Cds, &cluster("a"));
    story.know(Eds, &load_assignment("a", &["10.0.0.1:80"]));
    story.held = vec!["dynamic".into()];
    assert!(story.config().clusters.cluster("dynamic").is_none(), "it is not received yet");
    assert!(story.wanted().contains(&"cluster dynamic".to_owned()));
    story.know(Cds, &cluster("dynamic"));
    assert!(story.wanted().contains(&"endpoints dynamic".to_owned()));
    story.know(Eds, &load_assignment("dynamic", &["10.0.0.2:80"]));
    assert_eq!(addresses(&story.endpoints("dynamic")), ["10.0.0.2:80"]);
    story.held.clear();
    assert!(story.config().clusters.cluster("dynamic").is_none());
    assert!(!story.wanted().contains(&"cluster dynamic".to_owned()));
}

/// Ambient errors become notes that end with the error. Fault 24: no stale note remains. Unchanged parts of the
/// config stay the same allocation.
#[test]
fn ambient_errors_are_notes() {
    let mut story = Story::with_routes_to("a");
    story.know(Cds, &cluster("a"));
    story.know(Eds, &load_assignment("a", &["10.0.0.1:80"]));
    let plain = story.config();
    story.ambient(Lds, "orders", Some("stream broken"));
    let config = story.config();
    assert_eq!(config.note.as_deref(), Some("stream broken"));
    assert!(Arc::ptr_eq(&config.clusters, &plain.clusters), "the clusters did not change");
    story.ambient(Lds, "orders", None);
    story.ambient(Cds, "a", Some("cluster was deleted"));
    let set = story.endpoints("a");
    assert_eq!(set.note.as_deref(), Some("cluster was deleted"));
    assert!(set.priorities[0].is_same(&plain.clusters.endpoint_sets().next().unwrap().1.priorities[0]));
    story.ambient(Eds, "a", Some("endpoints were refused"));
    assert_eq!(story.endpoints("a").note.as_deref(), Some("endpoints were refused"));
    story.ambient(Eds, "a", None);
    story.ambient(Cds, "a", None);
    let config = story.config();
    assert_eq!((config.note.as_deref(), story.endpoints("a").note.as_deref()), (None, None));
    assert!(Arc::ptr_eq(
        config.clusters.endpoint_sets().next().unwrap().1,
        plain.clusters.endpoint_sets().next().unwrap().1
    ));
}
