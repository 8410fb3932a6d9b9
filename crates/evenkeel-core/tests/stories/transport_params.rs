//! Transport parameters of clusters: connections with different parameters are never shared, and equal
//! parameters keep connections.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_core::cluster::LeafCluster;
use evenkeel_core::{
    ChildPolicy, ConfigError, ConfigFields, Core, Cx, DescribeCx, Description, Endpoint, Endpoints, Instant,
    LbConfig, LbEffect, LbEvent, LbState, LbUpdate, Locality, PassResult, PickArgs, PickResult, Policy,
    PolicyScope, Registry, Rng, RootPicker, Subchannel, SubchannelId, TransportParams,
};
use serde_json::{Value, json};

use crate::discovered::{Discovered, eds, lb_policy, set};

/// A core with per-cluster transports, with the connections it dialled and closed: addresses followed by
/// transport parameters.
struct Run {
    core: Core,
    config: Value,
    picker: Option<RootPicker>,
    live: BTreeMap<SubchannelId, String>,
    dialled: Vec<String>,
    closed: Vec<String>,
    warned: Vec<String>,
}

impl Run {
    fn new(clusters: &[&str], discovered: &Discovered) -> Run {
        Run::of(Core::builder(Rng::fixed(1)).per_cluster_transport(true).build(), clusters, discovered)
    }

    /// Runs a core with a cluster manager over these clusters.
    fn of(core: Core, clusters: &[&str], discovered: &Discovered) -> Run {
        let child = |name: &&str| {
            let config = json!({"childPolicy": [{"cds_experimental": {"cluster": name}}]});
            ((*name).to_owned(), config)
        };
        let children: serde_json::Map<String, Value> = clusters.iter().map(child).collect();
        let config = json!([{"xds_cluster_manager_experimental": {"children": children}}]);
        let (live, dialled, closed, warned) = (BTreeMap::new(), Vec::new(), Vec::new(), Vec::new());
        let mut run = Run { core, config, picker: None, live, dialled, closed, warned };
        run.take(discovered);
        run
    }

    fn take(&mut self, discovered: &Discovered) {
        let clusters = Arc::new(discovered.0.clone());
        let update = LbUpdate::new(lb_policy(&self.config), Endpoints::none()).with_clusters(clusters);
        self.core.update(update);
        self.pass();
        self.core.handle(LbEvent::ExitIdle, Instant::ORIGIN);
        self.pass();
    }

    fn pass(&mut self) {
        let PassResult { effects, picker, .. } = self.core.reconcile(Instant::ORIGIN);
        self.picker = picker.or(self.picker.take());
        for effect in effects {
            match effect {
                LbEffect::Connect { id, address, .. } => {
                    let transport = self.core.subchannel(id).and_then(|dialled| dialled.transport().cloned());
                    let connection =
                        transport.map_or(address.to_string(), |transport| format!("{address} {transport:?}"));
                    self.live.insert(id, connection.clone());
                    self.dialled.push(connection);
                }
                LbEffect::Close { id } => self.closed.extend(self.live.remove(&id)),
                LbEffect::Warn(text) => self.warned.push(text),
                _ => {}
            }
        }
    }

    /// Completes every connection attempt.
    fn all_up(&mut self) {
        for id in self.live.keys() {
            self.core.handle(LbEvent::Connected(*id), Instant::ORIGIN);
        }
        self.pass();
    }

    /// Returns the warnings since the last call.
    fn warned(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warned)
    }

    /// Returns the warnings in the description of the tree.
    fn shown_warnings(&self) -> Vec<String> {
        let mut open = vec![self.core.describe().expect("a tree")];
        let mut warnings = Vec::new();
        while let Some(policy) = open.pop() {
            open.extend(policy.children.into_iter().map(|(_, child)| child));
            warnings.extend(policy.warnings);
        }
        warnings
    }

    fn dialled(&mut self) -> Vec<String> {
        self.dialled.sort();
        std::mem::take(&mut self.dialled)
    }

    fn closed(&mut self) -> Vec<String> {
        self.closed.sort();
        std::mem::take(&mut self.closed)
    }

    /// Returns the connections that calls to a cluster go to, each once; none while calls queue.
    fn picks(&self, cluster: &str) -> Vec<&str> {
        let mut connections: Vec<&str> = (0..64)
            .filter_map(|n| {
                let call = PickArgs::new("/a/b", n << 58 | n).with_cluster(cluster).with_hash(n << 58);
                match self.picker.as_ref()?.pick(&call) {
                    PickResult::Complete(id, _) => Some(self.live[&id].as_str()),
                    _ => None,
                }
            })
            .collect();
        connections.sort_unstable();
        connections.dedup();
        connections
    }
}

fn by(name: &str, transport: &'static str) -> LeafCluster {
    LeafCluster { transport: Some(TransportParams::new(transport)), ..eds(name) }
}

/// A driver without per-cluster transports may request a warning: once for each cluster with parameters, and in the
/// description of the tree as long as they are ignored.
#[test]
fn ignored_parameters_are_warned_about_once() {
    let core = |warn: bool| {
        let core = Core::builder(Rng::fixed(1));
        if warn { core.ignored_transport_warning("not encrypted") } else { core }
    };
    let of =
        |leaf: LeafCluster| Discovered::default().with_leaf(leaf, set("a")).with_leaf(eds("free"), set("b"));
    let clusters = ["pay", "free"];
    let mut run = Run::of(core(true).build(), &clusters, &of(by("pay", "tls")));
    let warning = r#"cluster "pay": not encrypted"#;
    assert_eq!(run.warned(), [warning]);
    assert_eq!(run.shown_warnings(), [warning]);
    run.take(&of(LeafCluster { max_concurrent_requests: Some(5), ..by("pay", "tls") }));
    assert_eq!(run.warned(), [""; 0], "once while it lasts");
    assert_eq!(run.shown_warnings(), [warning]);
    run.take(&of(eds("pay")));
    assert_eq!(run.shown_warnings(), [""; 0]);
    run.take(&of(by("pay", "tls")));
    assert_eq!(run.warned(), [warning]);

    for core in [core(false), core(true).per_cluster_transport(true)] {
        let mut run = Run::of(core.build(), &clusters, &of(by("pay", "tls")));
        assert_eq!(run.warned(), [""; 0]);
    }
}

/// With any policy, changed transport parameters open new connections. Calls queue for those and never use
/// the old ones. Equal parameters change nothing.
#[test]
fn changed_parameters_open_new_connections() {
    for policy in [
        "round_robin",
        "edf_weighted_round_robin",
        "weighted_round_robin",
        "least_request_experimental",
        "ring_hash_experimental",
        "pick_first",
    ] {
        let leaf =
            |transport| LeafCluster { lb_policy: lb_policy(&json!([{policy: {}}])), ..by("pay", transport) };
        let of = |leaf: LeafCluster| Discovered::default().with_leaf(leaf, set("a"));
        let mut run = Run::new(&["pay"], &of(leaf("plain")));
        run.all_up();
        assert_eq!(
            (run.dialled(), run.picks("pay")),
            (vec![r#"a "plain""#.to_owned()], vec![r#"a "plain""#])
        );

        run.take(&of(LeafCluster { max_concurrent_requests: Some(5), ..leaf("plain") }));
        assert!(run.dialled().is_empty() && run.closed().is_empty(), "{policy}: the parameters are equal");
        assert_eq!(run.picks("pay"), [r#"a "plain""#]);

        run.take(&of(leaf("tls")));
        assert_eq!((run.dialled(), run.closed()), (vec![r#"a "tls""#.into()], vec![r#"a "plain""#.into()]));
        assert!(run.picks("pay").is_empty(), "{policy}: calls queue");
        // The connection attempt is in progress when the parameters change again.
        run.take(&of(leaf("mtls")));
        assert_eq!((run.dialled(), run.closed()), (vec![r#"a "mtls""#.into()], vec![r#"a "tls""#.into()]));
        run.all_up();
        assert_eq!(run.picks("pay"), [r#"a "mtls""#], "{policy}");
        run.take(&of(LeafCluster { transport: None, ..leaf("") }));
        run.all_up();
        assert_eq!((run.closed(), run.picks("pay")), (vec![r#"a "mtls""#.into()], vec!["a"]), "{policy}");
        assert_eq!(run.core.subchannel_count(), 1);
    }
}

/// Clusters share the connection to an address only if their transport parameters are equal.
#[test]
fn clusters_share_connections_with_equal_parameters() {
    let discovered = Discovered::default()
        .with("plain", "a")
        .with("plain too", "a b")
        .with_leaf(by("one", "tls"), set("a b"))
        .with_leaf(by("two", "tls"), set("a"))
        .with_leaf(by("three", "mtls"), set("a"));
    let clusters = ["plain", "plain too", "one", "two", "three"];
    let mut run = Run::new(&clusters, &discovered);
    run.all_up();
    let expected = ["a", r#"a "mtls""#, r#"a "tls""#, "b", r#"b "tls""#];
    assert_eq!(run.dialled(), expected);
    let picks = clusters.map(|cluster| run.picks(cluster));
    let [plain, too, one, two, three] = picks;
    assert_eq!((plain, too), (vec!["a"], vec!["a", "b"]));
    assert_eq!((one, two), (vec![r#"a "tls""#, r#"b "tls""#], vec![r#"a "tls""#]));
    assert_eq!(three, [r#"a "mtls""#]);

    // One of the two clusters that share a connection changes its parameters. The other keeps the connection.
    run.take(&discovered.with_leaf(by("two", "mtls"), set("a")));
    assert!(run.dialled().is_empty() && run.closed().is_empty());
    assert_eq!((run.picks("one").len(), run.picks("two")), (2, vec![r#"a "mtls""#]));

    let mut shared = Run::of(Core::builder(Rng::fixed(1)).build(), &["plain", "three"], &{
        Discovered::default().with("plain", "a").with_leaf(by("three", "mtls"), set("a"))
    });
    assert_eq!(shared.dialled(), ["a"], "a core without per-cluster transports has one connection");
}

/// Each leaf of an aggregate has its own transport parameters. A change in one leaf keeps the connections of
/// the other.
#[test]
fn leaves_of_an_aggregate_have_their_own_parameters() {
    let of = |transport| {
        Discovered::default()
            .with_leaf(by("main", transport), set("a"))
            .with_leaf(by("spare", "spare's"), set("a"))
            .with_aggregate("all", &["main", "spare"])
    };
    let mut run = Run::new(&["all"], &of("main's"));
    assert_eq!(run.dialled(), [r#"a "main's""#]);
    for (id, _) in run.live.clone() {
        let failed = evenkeel_core::Status::unavailable("no");
        run.core.handle(LbEvent::ConnectFailed(id, failed), Instant::ORIGIN);
    }
    run.pass();
    assert_eq!(run.dialled(), [r#"a "spare's""#]);
    run.all_up();
    assert_eq!(run.picks("all"), [r#"a "spare's""#]);
    run.take(&of("other"));
    assert_eq!((run.dialled(), run.closed()), (vec![r#"a "other""#.into()], vec![r#"a "main's""#.into()]));
    assert_eq!(run.picks("all"), [r#"a "spare's""#]);
}

/// If the host name is part of the transport, only endpoints with a changed host name are reconnected.
#[test]
fn a_changed_host_name_reconnects_its_endpoint() {
    let locality = Arc::new(Locality::default());
    let named = |names: &[(&str, &str)]| {
        let endpoint = |(address, name): &(&str, &str)| {
            Endpoint::at(*address).with_hostname(*name).with_locality(locality.clone(), 1)
        };
        let mut set = set("a");
        set.priorities = vec![Endpoints::list(names.iter().map(endpoint))];
        set
    };
    let of = |matters: bool, names: &[(&str, &str)]| {
        let transport = TransportParams::new("tls").by_host_name(matters);
        Discovered::default()
            .with_leaf(LeafCluster { transport: Some(transport), ..eds("pay") }, named(names))
    };
    let mut run = Run::new(&["pay"], &of(true, &[("1", "a"), ("2", "b")]));
    run.all_up();
    assert_eq!(run.dialled(), [r#"1 "tls" at "a""#, r#"2 "tls" at "b""#]);
    run.take(&of(true, &[("1", "c"), ("2", "b"), ("3", "b")]));
    assert_eq!(run.dialled(), [r#"1 "tls" at "c""#, r#"3 "tls" at "b""#]);
    assert_eq!(run.closed(), [r#"1 "tls" at "a""#]);
    assert_eq!(run.picks("pay"), [r#"2 "tls" at "b""#]);

    let mut run = Run::new(&["pay"], &of(false, &[("1", "a")]));
    assert_eq!(run.dialled(), [r#"1 "tls""#]);
    run.take(&of(false, &[("1", "c")]));
    assert!(run.dialled().is_empty() && run.closed().is_empty());
}

/// Test policy that passes an empty scope to its child and keeps the first subchannel that it was given.
#[derive(Debug, Default)]
struct KeepFirst {
    child: ChildPolicy,
    first: Option<SubchannelId>,
}

impl Policy for KeepFirst {
    type Config = LbConfig;

    fn parse(fields: &ConfigFields<'_>) -> Result<LbConfig, ConfigError> {
        fields.child("childPolicy")
    }

    fn reconcile(&mut self, config: &LbConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        for endpoint in endpoints.iter() {
            let found = endpoint.addresses().iter().find_map(|address| cx.find(address).map(Subchannel::id));
            self.first = self.first.or(found);
        }
        if let Some(first) = self.first {
            let _ = cx.keep(first);
        }
        self.child.reconcile_in(PolicyScope::default(), config, endpoints, cx)
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        Description::new().child("childPolicy", self.child.describe(cx))
    }
}

/// A custom policy cannot drop the transport parameters of its cluster, nor keep a subchannel with other
/// parameters.
#[test]
fn policies_cannot_drop_transport_parameters() {
    let mut registry = Registry::standard();
    registry.register::<KeepFirst>("keep_first");
    let policy = registry.parse(&json!([{"keep_first": {"childPolicy": [{"round_robin": {}}]}}])).unwrap();
    let of = |transport| {
        let leaf = LeafCluster { lb_policy: policy.clone(), ..by("pay", transport) };
        Discovered::default().with_leaf(leaf, set("a"))
    };
    let mut run = Run::new(&["pay"], &of("plain"));
    run.all_up();
    run.take(&of("plain"));
    assert_eq!(run.dialled(), [r#"a "plain""#]);
    run.take(&of("tls"));
    run.all_up();
    assert_eq!((run.dialled(), run.closed()), (vec![r#"a "tls""#.into()], vec![r#"a "plain""#.into()]));
    assert_eq!(run.picks("pay"), [r#"a "tls""#]);
}
