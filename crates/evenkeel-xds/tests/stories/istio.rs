//! Resources in the shapes that istiod serves to proxyless gRPC clients, from bytes to picks.
//!
//! A scripted control plane sends what istiod would send: the output of [`generator`] for a [`ServiceSpec`] and the
//! requested names. Each story runs in both variants of the protocol, and no response may be rejected.

mod generator;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{Code, Core, Endpoints, PickArgs, Registry, RequestMetadata, Rng};
use evenkeel_proto::prost_types::Any;
use evenkeel_xds::ads::{ChangedResources, SubscriberId, XdsVariant};
use evenkeel_xds::bootstrap::{Bootstrap, CertificateProvider};
use evenkeel_xds::resolver::{XdsResolver, XdsResolverUpdate};
use evenkeel_xds::resource::{
    CertificateSource, Cluster, ClusterKind, Resource, ResourceParser, ResourceType, RootCertificates,
    SanKind,
};
use evenkeel_xds::routing::{ActiveFaults, ConfigSelector, SelectedRoute, XdsHttpFilter};
use serde_json::json;
use testkit::{CoreSim as Backends, Picked};

use self::generator::{
    EndpointSpec, FaultSpec, PathMatch, PolicySpec, RetrySpec, RouteSpec, ServiceSpec, TextMatch,
};
use crate::script::{ClientScript as Plane, bootstrap, reply};

/// The order in which istiod pushes.
const PUSH_ORDER: [ResourceType; 4] =
    [ResourceType::Cluster, ResourceType::Endpoints, ResourceType::Listener, ResourceType::RouteConfig];

const METHOD: &str = "/shop.Orders/Get";

/// A channel to one service of a mesh, with its control plane and backends.
struct MeshChannel {
    plane: Plane,
    id: SubscriberId,
    resolver: XdsResolver,
    backends: Backends,
    route: Option<Result<Arc<ConfigSelector>, String>>,
    service: ServiceSpec,
    /// Resources that the control plane sent last, by type.
    sent: BTreeMap<ResourceType, Vec<(String, Any)>>,
    version: usize,
    warnings: BTreeSet<String>,
}

impl MeshChannel {
    /// Opens a channel from `eu/eu-1/a` and pushes until the client has no further subscription.
    fn open(variant: XdsVariant, service: ServiceSpec) -> MeshChannel {
        let mut parser = ResourceParser::new(Registry::standard());
        parser.certificate_providers = BTreeSet::from(["default".to_owned()]);
        let mut plane = Plane::with(bootstrap(&["istiod"]), parser, variant);
        let id = plane.channel(&[]);
        let target = service.target();
        let nothing = json!([{"xds_cluster_manager_experimental": {"children": {}}}]);
        let core = Core::builder(Rng::fixed(1)).build();
        let mut channel = MeshChannel {
            plane,
            id,
            resolver: XdsResolver::new(target.clone(), target, "me", 7, Arc::new(|| ())),
            backends: Backends::with(core, Registry::standard(), &nothing, Endpoints::none()).all_up(),
            route: None,
            service,
            sent: BTreeMap::new(),
            version: 0,
            warnings: BTreeSet::new(),
        };
        channel.follow();
        channel.plane.accepts("istiod");
        channel.push();
        channel
    }

    /// Replaces the configuration of the service.
    fn edit(&mut self, edit: impl FnOnce(&mut ServiceSpec)) {
        edit(&mut self.service);
        self.push();
    }

    /// Pushes every requested resource that differs from the last push.
    fn push(&mut self) {
        while PUSH_ORDER.into_iter().any(|kind| self.push_type(kind)) {}
        let lines = self.plane.log().into_iter().filter(|line| line.starts_with("warning"));
        self.warnings.extend(lines);
    }

    /// Returns true if a response was sent.
    fn push_type(&mut self, kind: ResourceType) -> bool {
        let names = self.plane.told("istiod").into_iter().filter(|(told, _)| *told == kind);
        let resources = names.filter_map(|(_, name)| {
            let resource = self.service.resource(kind, &name, "eu/eu-1/a")?;
            Some((name, resource))
        });
        let resources: Vec<_> = resources.collect();
        if resources.is_empty() || self.sent.get(&kind) == Some(&resources) {
            return false;
        }
        self.version += 1;
        let response = reply(kind, &self.version.to_string(), &[]);
        let response = resources.iter().fold(response, |all, (name, any)| all.with(name, any.clone()));
        self.sent.insert(kind, resources);
        self.plane.sends("istiod", response);
        self.follow();
        let requests = self.plane.requests("istiod");
        let rejected: Vec<_> = requests.iter().filter(|request| request.contains('!')).collect();
        assert!(rejected.is_empty(), "rejected: {rejected:?}");
        true
    }

    fn follow(&mut self) {
        loop {
            let dynamic: Vec<_> = self.backends.core().subscribed_clusters().cloned().collect();
            let followed = self.resolver.update(&ChangedResources::Anything, &dynamic, &self.plane.client);
            if let Some(XdsResolverUpdate { update, route }) = followed.update {
                self.backends.take(update);
                self.route = Some(route.map_err(|status| status.to_string()));
            }
            let before = self.plane.told("istiod");
            let watches = followed.watches.expect("a full update lists all names");
            let names: Vec<_> = watches.resources.iter().map(|(kind, name)| (*kind, name.as_str())).collect();
            self.plane.wants(self.id, &names);
            if !self.plane.is_open("istiod") || self.plane.told("istiod") == before {
                return;
            }
        }
    }

    fn select(&mut self, path: &str, headers: &[(&str, &str)]) -> SelectedRoute {
        let headers = SentHeaders(headers);
        let call = PickArgs::new(path, self.backends.entropy()).with_headers(&headers);
        let selector = self.route.as_ref().expect("a complete config").as_ref().expect("a route config");
        selector.select(&call).expect("a route")
    }

    /// Returns the subset that a call is routed to.
    fn subset(&mut self, path: &str, headers: &[(&str, &str)]) -> String {
        let selected = self.select(path, headers);
        selected.cluster().name().split('|').nth(2).expect("a name of istiod's form").to_owned()
    }

    fn pick(&mut self, headers: &[(&str, &str)]) -> Picked {
        let selected = self.select(METHOD, headers);
        let entropy = self.backends.entropy();
        let call = PickArgs::new(METHOD, entropy)
            .with_cluster(selected.cluster().child())
            .with_hash(selected.hash());
        self.backends.pick_call(&call)
    }

    /// Returns the number of calls by outcome. Each call ends before the next begins.
    fn shares(&mut self, calls: usize) -> BTreeMap<String, usize> {
        let mut shares = BTreeMap::new();
        for _ in 0..calls {
            *shares.entry(self.pick(&[]).finish_ok()).or_default() += 1;
        }
        shares
    }

    fn cluster(&self, subset: &str) -> Arc<Cluster> {
        match self.plane.client.resource_state(ResourceType::Cluster, &self.service.key(subset)).value {
            Some(Ok(Resource::Cluster(cluster))) => cluster,
            other => panic!("expected a cluster, found {other:?}"),
        }
    }
}

struct SentHeaders<'a>(&'a [(&'a str, &'a str)]);

impl RequestMetadata for SentHeaders<'_> {
    fn value(&self, name: &str) -> Option<Cow<'_, str>> {
        self.0.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into())
    }
}

/// Runs a story in both variants of the protocol, without a warning.
fn check(service: &ServiceSpec, story: impl Fn(&mut MeshChannel)) {
    check_warned(service, &[], story);
}

/// Runs a story in both variants of the protocol, with a warning about each of these fields and about no other.
fn check_warned(service: &ServiceSpec, ignored: &[&str], story: impl Fn(&mut MeshChannel)) {
    for variant in [XdsVariant::StateOfTheWorld, XdsVariant::Delta] {
        let mut channel = MeshChannel::open(variant, service.clone());
        story(&mut channel);
        let warnings: Vec<_> = channel.warnings.into_iter().collect();
        assert_eq!(warnings.len(), ignored.len(), "{warnings:?}");
        for (warning, field) in warnings.iter().zip(ignored) {
            assert!(warning.contains(&format!(" {field}: is ignored")), "{warning}");
        }
    }
}

fn endpoint(address: &'static str, version: &'static str) -> EndpointSpec {
    EndpointSpec { address, port: 7070, weight: 1, version, locality: "eu/eu-1/a" }
}

/// A service with the subsets `v1` and `v2`, of one endpoint each.
fn orders() -> ServiceSpec {
    ServiceSpec {
        host: "orders.shop.svc.cluster.local".to_owned(),
        port: 7070,
        subsets: ["v1", "v2"].map(|version| (version.to_owned(), version.to_owned())).into(),
        endpoints: vec![endpoint("10.0.0.1", "v1"), endpoint("10.0.0.2", "v2")],
        ..ServiceSpec::default()
    }
}

fn to(subset: &str) -> RouteSpec {
    RouteSpec { destinations: vec![(subset.to_owned(), 100)], ..RouteSpec::default() }
}

fn shares<const N: usize>(expected: [(&str, usize); N]) -> BTreeMap<String, usize> {
    expected.map(|(address, calls)| (address.to_owned(), calls)).into()
}

/// Without a `VirtualService` the default route leads to all endpoints, by endpoint weight and locality weight.
#[test]
fn endpoint_and_locality_weights_are_used() {
    let mut service = orders();
    service.endpoints = vec![
        EndpointSpec { weight: 3, ..endpoint("10.0.0.1", "v1") },
        EndpointSpec { weight: 1, ..endpoint("10.0.0.2", "v2") },
        EndpointSpec { weight: 4, locality: "us/us-1", ..endpoint("10.0.0.3", "v1") },
    ];
    check(&service, |channel| {
        let selected = channel.select(METHOD, &[]);
        assert_eq!(&**selected.cluster().name(), "outbound|7070||orders.shop.svc.cluster.local");
        let expected = shares([("10.0.0.1:7070", 300), ("10.0.0.2:7070", 100), ("10.0.0.3:7070", 400)]);
        for (address, calls) in channel.shares(800) {
            // Localities are selected at random.
            assert!(calls.abs_diff(expected[&address]) < 60, "{address}: {calls}");
        }
    });
}

#[test]
fn subsets_share_calls_by_route_weight() {
    let mut service = orders();
    service.routes = vec![RouteSpec {
        destinations: vec![("v1".to_owned(), 80), ("v2".to_owned(), 20), (String::new(), 0)],
        ..RouteSpec::default()
    }];
    check(&service, |channel| {
        let all = channel.service.key("");
        let wanted = channel.plane.told("istiod");
        assert!(!wanted.contains(&(ResourceType::Cluster, all)), "a destination of weight 0: {wanted:?}");
        let split = channel.shares(2_000);
        assert!(split["10.0.0.1:7070"].abs_diff(1_600) < 80, "{split:?}");
        channel.edit(|service| service.routes[0].destinations = vec![("v2".to_owned(), 100)]);
        assert_eq!(channel.shares(50), shares([("10.0.0.2:7070", 50)]));
    });
}

#[test]
fn matches_choose_the_subset() {
    let mut service = orders();
    let header = |name: &str, text| vec![(name.to_owned(), text)];
    service.subsets.extend(["v3", "v4"].map(|version| (version.to_owned(), version.to_owned())));
    service.routes = vec![
        RouteSpec { path: Some(PathMatch::Exact("/shop.Orders/Put")), ..to("v2") },
        RouteSpec { path: Some(PathMatch::Prefix("/shop.Admin/")), ..to("v3") },
        RouteSpec { path: Some(PathMatch::Regex("/shop[.][A-Z][a-z]+/Drop")), ..to("v4") },
        RouteSpec { headers: header("tenant", TextMatch::Exact("gold")), ..to("v2") },
        RouteSpec { headers: header("tenant", TextMatch::Prefix("test-")), ..to("v3") },
        RouteSpec { headers: header("tenant", TextMatch::Regex("t[0-9]+")), ..to("v4") },
        RouteSpec { headers: header("debug", TextMatch::Present), ..to("v3") },
        RouteSpec {
            path: Some(PathMatch::Prefix("/shop.Cart/")),
            without_headers: header("session", TextMatch::Exact("old")),
            ..to("v2")
        },
        RouteSpec {
            path: Some(PathMatch::Prefix("/shop.Audit/")),
            without_headers: header("traced", TextMatch::Present),
            ..to("v4")
        },
        to("v1"),
    ];
    let ignored = "virtual_hosts[0].routes[7].match.headers[0].treat_missing_header_as_empty";
    check_warned(&service, &[ignored], |channel| {
        for (path, headers, subset) in [
            ("/shop.Orders/Put", &[][..], "v2"),
            ("/shop.Orders/put", &[], "v1"),
            ("/shop.Admin/Get", &[], "v3"),
            ("/shop.Orders/Drop", &[], "v4"),
            (METHOD, &[("tenant", "gold")], "v2"),
            (METHOD, &[("tenant", "test-7")], "v3"),
            (METHOD, &[("tenant", "t42")], "v4"),
            (METHOD, &[("tenant", "t42x")], "v1"),
            (METHOD, &[("debug", "")], "v3"),
            // gRPC has no treat_missing_header_as_empty: an absent header matches neither way.
            ("/shop.Cart/Get", &[], "v1"),
            ("/shop.Cart/Get", &[("session", "new")], "v2"),
            ("/shop.Cart/Get", &[("session", "old")], "v1"),
            ("/shop.Audit/Get", &[], "v4"),
            ("/shop.Audit/Get", &[("traced", "yes")], "v1"),
            (METHOD, &[], "v1"),
        ] {
            assert_eq!(channel.subset(path, headers), subset, "{path} {headers:?}");
        }
    });
}

#[test]
fn consistent_hashing_keeps_a_header_at_one_endpoint() {
    let mut service = orders();
    service.policy = PolicySpec { hash_header: Some("tenant"), ..PolicySpec::default() };
    service.routes = vec![to("")];
    service.endpoints = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|address| endpoint(address, "v1")).into();
    check(&service, |channel| {
        let cluster = channel.cluster("");
        let ClusterKind::Leaf(leaf) = &cluster.kind else { panic!("an EDS cluster") };
        let evenkeel_core::cluster::Cluster::Leaf(leaf) = &**leaf else { panic!("a leaf") };
        assert_eq!(format!("{:?}", leaf.lb_policy), "LbConfig(ring_hash_experimental)");
        let mut used = BTreeSet::new();
        for tenant in 0..60 {
            let tenant = tenant.to_string();
            let mut outcomes = BTreeSet::new();
            for _ in 0..5 {
                // The ring connects on demand, so the first call is queued.
                outcomes.insert(channel.pick(&[("tenant", &tenant)]).finish_ok());
            }
            outcomes.remove("queue");
            assert_eq!(outcomes.len(), 1, "tenant {tenant}: {outcomes:?}");
            used.extend(outcomes);
        }
        assert_eq!(used.len(), 3, "{used:?}");
    });
}

/// Outlier detection enables locality failover in Istio: the nearest locality has priority 0, and priorities have no
/// gaps.
#[test]
fn localities_fail_over_by_distance() {
    let mut service = orders();
    service.policy = PolicySpec { outlier_detection: true, ..PolicySpec::default() };
    service.endpoints = [
        ("10.0.0.4", "us/us-1"),
        ("10.0.0.3", "eu/eu-2/a"),
        ("10.0.0.2", "eu/eu-1/b"),
        ("10.0.0.1", "eu/eu-1/a"),
    ]
    .map(|(address, locality)| EndpointSpec { locality, ..endpoint(address, "v1") })
    .into();
    check(&service, |channel| {
        for address in ["10.0.0.1:7070", "10.0.0.2:7070", "10.0.0.3:7070", "10.0.0.4:7070"] {
            assert_eq!(channel.shares(20), shares([(address, 20)]));
            channel.backends.down(address);
        }
        channel.backends.up("10.0.0.2:7070");
        channel.backends.advance(Duration::from_secs(300));
        assert_eq!(channel.shares(20), shares([("10.0.0.2:7070", 20)]));
    });
}

/// Istio retries by default. Retry conditions unknown to gRPC are skipped.
#[test]
fn retries_are_istios_default_unless_the_route_has_its_own() {
    let mut service = orders();
    let own = |attempts| {
        Some(RetrySpec {
            attempts,
            retry_on: "resource-exhausted,gateway-error,503",
            per_try_timeout: Duration::from_secs(2),
        })
    };
    service.routes = vec![
        RouteSpec { path: Some(PathMatch::Prefix("/shop.Own/")), retries: own(3), ..to("v1") },
        RouteSpec { path: Some(PathMatch::Prefix("/shop.Off/")), retries: own(0), ..to("v1") },
        to("v1"),
    ];
    let retried = |channel: &mut MeshChannel, path: &str| {
        let selected = channel.select(path, &[]);
        selected.retry().map(|retry| {
            let codes = [Code::Unavailable, Code::Cancelled, Code::ResourceExhausted, Code::Internal];
            (retry.max_attempts, codes.map(|code| retry.retries(code)))
        })
    };
    let ignored = "virtual_hosts[0].routes[0].route.retry_policy.per_try_timeout";
    check_warned(&service, &[ignored], |channel| {
        assert_eq!(retried(channel, METHOD), Some((3, [true, true, false, false])));
        assert_eq!(retried(channel, "/shop.Own/Get"), Some((4, [false, false, true, false])));
        assert_eq!(retried(channel, "/shop.Off/Get"), None);
        channel.edit(|service| service.routes.clear());
        assert_eq!(retried(channel, METHOD), Some((3, [true, true, false, false])));
    });
}

/// A limit of zero, which Istio sends where the `VirtualService` has none, is no limit.
#[test]
fn timeouts_limit_calls() {
    let mut service = orders();
    let limit = Duration::from_millis(1_500);
    service.routes = vec![
        RouteSpec { path: Some(PathMatch::Prefix("/shop.Slow/")), timeout: Some(limit), ..to("v1") },
        to("v1"),
    ];
    let (long, short) = (Duration::from_secs(9), Duration::from_millis(10));
    // Istio sends the timeout in two fields, of which gRPC uses max_stream_duration.
    check_warned(&service, &["virtual_hosts[0].routes[0].route.timeout"], |channel| {
        let limited = channel.select("/shop.Slow/Get", &[]);
        assert_eq!(
            [None, Some(long), Some(short)].map(|own| limited.timeout(own)),
            [Some(limit), Some(limit), Some(short)]
        );
        let unlimited = channel.select(METHOD, &[]);
        assert_eq!([None, Some(long)].map(|own| unlimited.timeout(own)), [None, Some(long)]);
        channel.edit(|service| service.routes.clear());
        let default = channel.select("/shop.Slow/Get", &[]);
        assert_eq!([None, Some(long)].map(|own| default.timeout(own)), [None, Some(long)]);
    });
}

#[test]
fn faults_are_injected_by_route() {
    let mut service = orders();
    service.routes = vec![
        RouteSpec {
            path: Some(PathMatch::Prefix("/shop.Bad/")),
            fault: Some(FaultSpec {
                delay: Some((100.0, Duration::from_millis(250))),
                abort: Some((12.5, 14)),
            }),
            ..to("v1")
        },
        to("v1"),
    ];
    check(&service, |channel| {
        let active = Arc::<ActiveFaults>::default();
        let mut counts = HashMap::<_, usize>::new();
        for path in ["/shop.Bad/Get", METHOD] {
            for _ in 0..1_000 {
                let selected = channel.select(path, &[]);
                let call = PickArgs::new(path, channel.backends.entropy());
                let [instance] = selected.filters() else { panic!("one filter") };
                let XdsHttpFilter::Fault(fault) = &instance.filter else { panic!("the fault filter") };
                let injected = fault.decide(&call, &active);
                let delay = injected.as_ref().and_then(|injected| injected.delay);
                let abort = injected.and_then(|injected| injected.abort).map(|status| status.code());
                *counts.entry((path, delay, abort)).or_default() += 1;
            }
        }
        let delay = Some(Duration::from_millis(250));
        assert_eq!(counts.remove(&(METHOD, None, None)), Some(1_000));
        let aborted = counts.remove(&("/shop.Bad/Get", delay, Some(Code::Unavailable))).unwrap_or(0);
        let delayed = counts.remove(&("/shop.Bad/Get", delay, None)).unwrap_or(0);
        assert_eq!((aborted + delayed, counts.len()), (1_000, 0), "{counts:?}");
        assert!(aborted.abs_diff(125) < 40, "{aborted}");
    });
}

/// `ISTIO_MUTUAL`: the certificate and roots of the agent, and the SPIFFE identities of the service.
#[test]
fn istio_mutual_names_providers_and_identities() {
    let mut service = orders();
    let identity = "spiffe://cluster.local/ns/shop/sa/orders";
    service.policy = PolicySpec { istio_mutual: true, ..PolicySpec::default() };
    service.identities = vec![identity.to_owned()];
    service.routes = vec![to("v1")];
    check(&service, |channel| {
        let cluster = channel.cluster("v1");
        let security = cluster.security.as_ref().expect("a secured cluster");
        let source = |certificate: &str| CertificateSource {
            instance: "default".to_owned(),
            certificate: certificate.to_owned(),
        };
        assert_eq!(security.roots, RootCertificates::Provider(source("ROOTCA")));
        assert_eq!(security.identity, Some(source("default")));
        let [matcher] = &security.san_matchers[..] else { panic!("one identity") };
        assert!(matcher.matches(SanKind::Uri, identity));
        assert!(!matcher.matches(SanKind::Uri, "spiffe://cluster.local/ns/shop/sa/other"));
        assert_eq!(channel.shares(10), shares([("10.0.0.1:7070", 10)]));
        channel.edit(|service| service.policy.istio_mutual = false);
        assert!(channel.cluster("v1").security.is_none());
    });
}

#[test]
fn circuit_breakers_limit_calls_in_flight() {
    let mut service = orders();
    service.policy = PolicySpec { max_requests: Some(3), least_request: true, ..PolicySpec::default() };
    check(&service, |channel| {
        let held: Vec<_> = (0..3).map(|_| channel.pick(&[])).collect();
        assert!(held.iter().all(|picked| picked.status().is_none()));
        let dropped = channel.pick(&[]);
        let message = dropped.status().expect("a dropped call").to_string();
        assert!(
            message.contains("outbound|7070||orders") && message.contains("maximum of 3 calls"),
            "{message}"
        );
        channel.edit(|service| service.policy.max_requests = Some(4));
        let fourth = channel.pick(&[]);
        assert_eq!((fourth.status(), channel.pick(&[]).outcome()), (None, "drop".to_owned()));
        for picked in held {
            picked.finish_ok();
        }
        assert!(channel.pick(&[]).status().is_none());
    });
}

/// The bootstrap that Istio's agent writes for gRPC: a Unix socket, all node metadata, and certificate files.
#[test]
fn the_agents_bootstrap_is_accepted() {
    let text = json!({
        "xds_servers": [{
            "server_uri": "unix:///etc/istio/proxy/XDS",
            "channel_creds": [{"type": "insecure"}],
            "server_features": ["xds_v3"],
        }],
        "node": {
            "id": "sidecar~10.0.0.9~client-7.shop~shop.svc.cluster.local",
            "metadata": {
                "GENERATOR": "grpc",
                "NAMESPACE": "shop",
                "LABELS": {"app": "client", "security.istio.io/tlsMode": "istio"},
                "PROXY_CONFIG": {"concurrency": 2, "holdApplicationUntilProxyStarts": true},
                "PILOT_SAN": ["istiod.istio-system.svc"],
            },
            "locality": {"region": "eu", "zone": "eu-1", "sub_zone": "a"},
        },
        "certificate_providers": {"default": {
            "plugin_name": "file_watcher",
            "config": {
                "certificate_file": "/var/lib/istio/data/cert-chain.pem",
                "private_key_file": "/var/lib/istio/data/key.pem",
                "ca_certificate_file": "/var/lib/istio/data/root-cert.pem",
                "refresh_interval": "900s",
            },
        }},
        "server_listener_resource_name_template": "xds.istio.io/grpc/lds/inbound/%s",
    });
    let bootstrap = Bootstrap::from_json(&text.to_string()).expect("a valid bootstrap");
    assert_eq!(&*bootstrap.servers[0].uri, "unix:///etc/istio/proxy/XDS");
    assert_eq!(bootstrap.warnings(), Vec::<String>::new());
    let metadata = bootstrap.node.metadata.as_ref().expect("metadata");
    assert!(metadata.fields.contains_key("GENERATOR"));
    let Some(CertificateProvider::FileWatcher(files)) = bootstrap.certificate_providers.get("default") else {
        panic!("a file watcher")
    };
    assert_eq!(files.refresh_interval, Duration::from_secs(900));
}
