//! Tests of a running xDS client against control planes on real sockets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::cluster::BackendMetrics;
use evenkeel_core::{Core, LbEffect, Rng, SubchannelId};
use evenkeel_proto::envoy::admin::v3::ClientResourceStatus;
use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_proto::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use evenkeel_proto::envoy::config::listener::v3::Listener;
use evenkeel_proto::envoy::service::status::v3::ClientStatusRequest;
use evenkeel_proto::envoy::r#type::matcher::v3::NodeMatcher;
use evenkeel_proto::prost::{Message as _, Name as _};
use evenkeel_xds::XdsLimits;
use evenkeel_xds::ads::{ServerStats, XdsVariant};
use evenkeel_xds::bootstrap::Bootstrap;
use serde_json::{Value, json};
use testkit::net::certs::Ca;
use testkit::net::control::ControlPlane;
use testkit::net::csds::client_status_discovery_service_client::ClientStatusDiscoveryServiceClient;
use testkit::net::frames::flag::{END_HEADERS, END_STREAM};
use testkit::net::frames::kind::{DATA, HEADERS, RST_STREAM};
use testkit::net::frames::{Frame, Peer, block};
use testkit::net::proxy::Proxy;
use testkit::resources::{cluster, dns_cluster, listener_with_rds, load_assignment, route_config};
use tokio::time::{sleep, timeout};
use tonic::transport::server::TcpIncoming;

use super::csds::Csds;
use super::{XdsClient, XdsSubscription};
use crate::clock;
use crate::telemetry::metrics::ChannelMetrics;

/// Maximum wait, reached only if a test fails.
const LONG: Duration = Duration::from_secs(30);

/// Returns a bootstrap with these plaintext servers, in order of preference.
fn bootstrap(servers: &[SocketAddr]) -> Bootstrap {
    let server = |address: &SocketAddr| (address.to_string(), json!([{"type": "insecure"}]));
    bootstrap_with(servers.iter().map(server).collect())
}

fn bootstrap_with(servers: Vec<(String, Value)>) -> Bootstrap {
    let server = |(uri, creds)| json!({"server_uri": uri, "channel_creds": creds});
    let servers: Vec<_> = servers.into_iter().map(server).collect();
    let text = json!({"xds_servers": servers, "node": {"id": "me"}}).to_string();
    Bootstrap::from_json(&text).unwrap()
}

fn client_of(control: &ControlPlane) -> XdsClient {
    XdsClient::builder(bootstrap(&[control.address()])).build()
}

/// Returns a control plane that routes `orders` to one endpoint.
async fn serving() -> ControlPlane {
    let control = ControlPlane::start().await;
    control.serve("orders", "a", &[at(1)]);
    control
}

fn at(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 80))
}

/// Waits until the condition holds.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let wait = async {
        while !is_so() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

fn first(client: &XdsClient) -> ServerStats {
    client.server_stats().into_iter().next().expect("a server")
}

/// Returns the number of ACKs of this type.
fn acks<M: evenkeel_proto::prost::Name>(control: &ControlPlane) -> usize {
    let requests = control.requests();
    let acks = requests.iter().filter(|request| {
        request.type_url == M::type_url()
            && !request.response_nonce.is_empty()
            && request.error_detail.is_none()
    });
    acks.count()
}

/// A channel without connections: it subscribes, and its core returns the connects and closes it would perform.
struct Channel {
    subscription: XdsSubscription,
    core: Core,
    addresses: BTreeMap<SubchannelId, String>,
}

impl Channel {
    fn to(client: &XdsClient, target: &str) -> Channel {
        let subscription = client.watch_target(target, None, 7, ChannelMetrics::default().xds()).unwrap();
        let core = Core::builder(Rng::fixed(1)).load_store(client.load_store().clone()).build();
        Channel { subscription, core, addresses: BTreeMap::new() }
    }

    /// Returns the core's effects of the next update, or the status of calls.
    async fn step(&mut self) -> Result<Vec<String>, String> {
        let step = timeout(LONG, self.subscription.changed()).await.expect("a step").expect("a client");
        self.core.update(step.update);
        let mut done = Vec::new();
        for effect in self.core.reconcile(clock::now()).effects {
            match effect {
                LbEffect::Connect { id, address, .. } => {
                    done.push(format!("dials {address}"));
                    self.addresses.insert(id, address.to_string());
                }
                LbEffect::Close { id } => {
                    done.push(format!("closes {}", self.addresses.remove(&id).expect("it was dialled")));
                }
                _ => {}
            }
        }
        self.subscription.watch_clusters(self.core.subscribed_clusters().cloned().collect());
        step.route.map(|_| done).map_err(|status| status.to_string())
    }

    /// Returns true if no unread update is available.
    fn is_quiet(&self) -> bool {
        !self.subscription.steps.has_changed().unwrap()
    }

    /// Applies updates until the core has exactly these endpoints.
    async fn reaches(&mut self, endpoints: &[SocketAddr]) {
        let wanted: Vec<_> = endpoints.iter().map(SocketAddr::to_string).collect();
        let reached = async {
            loop {
                let mut has: Vec<_> = self.addresses.values().cloned().collect();
                has.sort();
                if has == wanted {
                    return;
                }
                let _ = self.step().await;
            }
        };
        timeout(LONG, reached).await.unwrap_or_else(|_| panic!("never reached {wanted:?}"));
    }
}

/// End to end in both variants: a subscription leads to one update, every response is acknowledged, changes lead to
/// further updates, and an ended subscription is removed at the control plane.
#[tokio::test]
async fn from_a_target_to_steps() {
    for variant in [XdsVariant::StateOfTheWorld, XdsVariant::Delta] {
        let control = serving().await;
        let client = XdsClient::builder(bootstrap(&[control.address()])).variant(variant).build();
        let mut orders = Channel::to(&client, "xds:///orders");
        assert_eq!(orders.subscription.authority, "orders");
        assert_eq!(orders.step().await.unwrap(), ["dials 10.0.0.1:80"], "one complete step");
        control.wait_acked::<ClusterLoadAssignment>().await;
        control.set_endpoints("a", &[at(2)]);
        let mut done = orders.step().await.unwrap();
        done.sort();
        assert_eq!(done, ["closes 10.0.0.1:80", "dials 10.0.0.2:80"]);
        control.wait_acked::<ClusterLoadAssignment>().await;
        assert_eq!(control.nacks(), []);
        assert!(first(&client).connected && first(&client).failures == 0);
        drop(orders);
        control.wait_until(|control| control.open_streams() == 0 && control.open_connections() == 0).await;
        assert_eq!(control.connections(), 1);
    }
}

/// CM-5: routes change twice; clusters that no call needs are unsubscribed.
#[tokio::test]
async fn clusters_are_let_go() {
    let control = serving().await;
    let client = client_of(&control);
    let mut orders = Channel::to(&client, "xds:///orders");
    orders.reaches(&[at(1)]).await;
    for (name, endpoint) in [("b", at(2)), ("c", at(3))] {
        control.serve("orders", name, &[endpoint]);
        orders.reaches(&[endpoint]).await;
        control
            .wait_until(|control| {
                let names = [name.to_owned()].into();
                control.subscribed::<Cluster>() == names
                    && control.subscribed::<ClusterLoadAssignment>() == names
            })
            .await;
    }
}

/// fault 22: an invalid resource is NACKed with an error that names it, and the last valid one stays in use.
#[tokio::test]
async fn what_is_bad_is_refused_and_changes_nothing() {
    let control = serving().await;
    let client = client_of(&control);
    let mut orders = Channel::to(&client, "xds:///orders");
    orders.reaches(&[at(1)]).await;
    control.set(Cluster { eds_cluster_config: None, ..cluster("a") });
    control.wait_until(|control| !control.nacks().is_empty()).await;
    let (kind, why) = control.nacks().remove(0);
    assert_eq!(kind, Cluster::type_url());
    assert!(why.contains("\"a\"") && why.contains("eds_cluster_config"), "{why}");
    control.set_endpoints("a", &[at(1), at(2)]);
    orders.reaches(&[at(1), at(2)]).await;
    let status = client.status().await.unwrap();
    let shown = status.generic_xds_configs.iter().find(|config| config.type_url == kind).unwrap();
    assert_eq!((shown.client_status(), shown.version_info.as_str()), (ClientResourceStatus::Nacked, "1"));
}

/// fault 15: a control plane closes the stream or restarts and sends the same resources; channels see no update.
#[tokio::test]
async fn the_same_resources_again_change_nothing() {
    let control = serving().await;
    let client = client_of(&control);
    let mut orders = Channel::to(&client, "xds:///orders");
    orders.reaches(&[at(1)]).await;
    control.wait_acked::<ClusterLoadAssignment>().await;

    let before = acks::<ClusterLoadAssignment>(&control);
    control.close_streams();
    control.wait_until(|control| acks::<ClusterLoadAssignment>(control) > before).await;
    // The client resolves before it acknowledges, so an update would be available by now.
    assert!(orders.is_quiet(), "a stream that ends in order is no news");
    assert_eq!((control.connections(), first(&client).failures), (1, 0), "nor a reason to connect again");

    let before = acks::<ClusterLoadAssignment>(&control);
    control.kill();
    until("the loss is seen", || !first(&client).connected).await;
    assert!(client.status().await.unwrap().generic_xds_configs.len() == 4, "nothing is forgotten");
    control.restart().await;
    control.wait_until(|control| acks::<ClusterLoadAssignment>(control) > before).await;
    while !orders.is_quiet() {
        assert_eq!(
            orders.step().await.unwrap(),
            Vec::<String>::new(),
            "notes may change, connections may not"
        );
    }
    assert!(first(&client).connected);
}

/// fault 19: channels with equal bootstraps share a stream, including one that joins later and finds all resources
/// cached. A client of its own has its own stream.
#[tokio::test]
async fn one_stream_for_all_channels() {
    let control = serving().await;
    control.only_one_stream();
    control.serve("users", "u", &[at(9)]);
    let client = XdsClient::shared(bootstrap(&[control.address()]));
    let mut channels = vec![Channel::to(&client, "xds:///orders")];
    channels[0].reaches(&[at(1)]).await;
    control.wait_acked::<ClusterLoadAssignment>().await;
    let requests = control.requests().len();
    for _ in 0..10 {
        let same = XdsClient::shared(bootstrap(&[control.address()]));
        let mut late = Channel::to(&same, "xds:///orders");
        assert_eq!(late.step().await.unwrap(), ["dials 10.0.0.1:80"]);
        channels.push(late);
    }
    assert_eq!(control.requests().len(), requests, "all of it was known");
    let mut users = Channel::to(&client, "xds:///users");
    users.reaches(&[at(9)]).await;
    assert_eq!((control.streams(), control.connections()), (1, 1));
    let scope = client.status().await.unwrap().client_scope;
    assert_eq!(scope, "xds:///orders,xds:///users");

    let other = ControlPlane::start().await;
    other.serve("orders", "a", &[at(2)]);
    let clients = [client_of(&other), client_of(&other)];
    for client in &clients {
        Channel::to(client, "xds:///orders").reaches(&[at(2)]).await;
    }
    assert_eq!((other.streams(), other.connections()), (2, 2));
}

/// fault 17: one channel unsubscribes and another subscribes to the same, before or after the control plane is
/// informed.
#[tokio::test]
async fn leaves_and_comes_back() {
    let control = serving().await;
    control.serve("users", "u", &[at(9)]);
    let client = client_of(&control);
    let mut users = Channel::to(&client, "xds:///users");
    users.reaches(&[at(9)]).await;
    for _ in 0..50 {
        Channel::to(&client, "xds:///orders").reaches(&[at(1)]).await;
    }
    assert_eq!(control.streams(), 1);
}

/// fault 30: 20 MiB of endpoints in one response.
#[tokio::test]
async fn a_large_response() {
    let control = serving().await;
    let client = client_of(&control);
    let mut orders = Channel::to(&client, "xds:///orders");
    orders.reaches(&[at(1)]).await;
    let addresses: Vec<_> = (0..20_480u32).map(|i| format!("10.1.{}.{}:80", i / 256, i % 256)).collect();
    let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
    let mut assignment = load_assignment("a", &addresses);
    for endpoint in assignment.endpoints.iter_mut().flat_map(|locality| &mut locality.lb_endpoints) {
        if let Some(HostIdentifier::Endpoint(endpoint)) = &mut endpoint.host_identifier {
            endpoint.hostname = "h".repeat(1024);
        }
    }
    control.set(assignment);
    control.wait_acked::<ClusterLoadAssignment>().await;
    assert_eq!((control.nacks(), control.streams()), (vec![], 1));
}

/// A response above the size limit is rejected: the client backs off, and cached resources stay in use.
#[tokio::test]
async fn a_response_that_is_too_long() {
    let control = serving().await;
    let mut limits = XdsLimits::default();
    limits.response_bytes = 10_000;
    let client = XdsClient::builder(bootstrap(&[control.address()])).limits(limits).build();
    let mut orders = Channel::to(&client, "xds:///orders");
    orders.reaches(&[at(1)]).await;
    let many: Vec<SocketAddr> = (0..200).map(|i| SocketAddr::from(([10, 2, 0, i], 80))).collect();
    let streams = control.streams();
    for i in 0..10 {
        // Each is a change: unchanged resources are not sent.
        control.set_endpoints("a", &many.repeat(5 + i));
    }
    until("a failure", || first(&client).failures == 1).await;
    assert!(control.streams() <= streams + 1, "no hurry to hear it again");
    control.set_endpoints("a", &[at(2)]);
    orders.reaches(&[at(2)]).await;
}

/// fault 6, first part: a control plane accepts requests and sends nothing. Channels wait until it responds.
#[tokio::test]
async fn a_silent_server() {
    let control = serving().await;
    control.silent(true);
    let client = client_of(&control);
    let mut orders = Channel::to(&client, "xds:///orders");
    control.wait_until(|control| control.subscribed::<Listener>().contains("orders")).await;
    assert!(orders.is_quiet());
    control.silent(false);
    orders.reaches(&[at(1)]).await;
    assert_eq!(control.streams(), 1);
}

/// fault 7: keepalive detects a connection that passes no data, and the client reconnects.
#[tokio::test]
async fn a_half_open_server() {
    let control = serving().await;
    let proxy = Proxy::to(control.address()).await;
    let tick = Duration::from_millis(300);
    let client = XdsClient::builder(bootstrap(&[proxy.address()])).keepalive(tick, tick).build();
    let mut orders = Channel::to(&client, "xds:///orders");
    orders.reaches(&[at(1)]).await;
    proxy.black_hole(true);
    control.set_endpoints("a", &[at(2)]);
    until("the loss is seen", || proxy.connections() > 1).await;
    proxy.black_hole(false);
    orders.reaches(&[at(2)]).await;
}

/// fault 2: if no control plane is reachable, the status of calls states the cause, the server and the node.
#[tokio::test]
async fn unreachable_servers_are_named_in_the_status() {
    let control = ControlPlane::start().await;
    control.kill();
    let refused = control.address();
    let plain = serving().await;
    let ca = Ca::new("ca");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ca.pem");
    std::fs::write(&file, ca.pem()).unwrap();
    let insecure = || json!([{"type": "insecure"}]);
    let tls = |file: &str| json!([{"type": "tls", "config": {"ca_certificate_file": file}}]);
    let file = file.to_str().unwrap();
    let table = [
        (refused.to_string(), insecure(), "connection refused"),
        (format!("ipv4:{refused},{refused}"), insecure(), "connection refused"),
        ("unix:/nowhere/at/all".to_owned(), insecure(), "no such file or directory"),
        ("dns:///nowhere.invalid:80".to_owned(), insecure(), "dns name \\\"nowhere.invalid\\\""),
        (plain.address().to_string(), tls(file), "the server does not support TLS"),
        (plain.address().to_string(), tls("/nowhere/ca.pem"), "/nowhere/ca.pem"),
        ("xds:///nested".to_owned(), insecure(), "needs a control plane"),
    ];
    for (uri, creds, text) in table {
        let mut bootstrap = bootstrap_with(vec![("localhost:1".to_owned(), creds)]);
        // Set without the parser, which rejects a nested server.
        Arc::make_mut(&mut bootstrap.servers[0]).uri = uri.as_str().into();
        let client = XdsClient::builder(bootstrap).build();
        let mut orders = Channel::to(&client, "xds:///orders");
        let failure = orders.step().await.unwrap_err();
        assert!(failure.contains(text), "expected {text:?} in {failure}");
        assert!(failure.contains(&uri) && failure.contains("(xDS node id \"me\")"), "{failure}");
    }
}

/// Servers that send something other than xDS responses: the status states what they sent.
#[tokio::test]
async fn invalid_responses_are_named_in_the_status() {
    let status = |code| [Frame::new(HEADERS, END_HEADERS | END_STREAM, 1, block(&[("grpc-status", code)]))];
    let data = |bytes: &'static [u8]| [Frame::new(DATA, 0, 1, bytes)];
    let good = [(":status", "200"), ("content-type", "application/grpc")];
    let refused = [(":status", "200"), ("grpc-status", "7"), ("grpc-message", "not%20you")];
    let table = [
        (&refused[..], status("0"), "PermissionDenied: \"not you\""),
        (&good, status("12"), "Unimplemented: \"the server ended the stream\""),
        (&good, data(&[1, 0, 0, 0, 1, 0]), "sent a compressed response"),
        (
            &good,
            data(&[0, 255, 255, 255, 255]),
            "sent a response of 4294967295 bytes; at most 67108864 are accepted",
        ),
        (&good, [Frame::new(RST_STREAM, 0, 1, &[0, 0, 0, 7][..])], "RST_STREAM REFUSED_STREAM"),
        (&[(":status", "404")], data(b"no such page"), "found HTTP status 404"),
        (&[(":status", "200"), ("content-type", "text/html")], data(b""), "found content-type"),
    ];
    for (headers, [then], text) in table {
        let peer = Peer::bind().await;
        let client = XdsClient::builder(bootstrap(&[peer.address()])).build();
        let mut orders = Channel::to(&client, "xds:///orders");
        let mut conn = peer.accept().await;
        conn.settings(&[]).await.unwrap();
        while conn.next_frame().await.expect("a stream").kind != HEADERS {}
        conn.send(Frame::new(HEADERS, END_HEADERS, 1, block(headers))).await.unwrap();
        conn.send(then).await.unwrap();
        let failure = orders.step().await.unwrap_err();
        assert!(failure.contains(text), "expected {text:?} in {failure}");
    }
}

/// A control plane on a unix socket.
#[cfg(unix)]
#[tokio::test]
async fn a_unix_socket() {
    let control = serving().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("xds.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let address = control.address();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut far = tokio::net::TcpStream::connect(address).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
        }
    });
    let uri = format!("unix:{}", path.display());
    let client = XdsClient::builder(bootstrap_with(vec![(uri, json!([{"type": "insecure"}]))])).build();
    Channel::to(&client, "xds:///orders").reaches(&[at(1)]).await;
}

/// T8: a control plane with TLS and mutual authentication; the CA is in a file.
#[tokio::test]
async fn a_server_with_tls() {
    let (ca, clients) = (Ca::new("ca"), Ca::new("clients"));
    let cert = ca.issue(&["127.0.0.1"]);
    let tls = testkit::net::Tls { certificate: cert.pem, key: cert.key_pem, client_ca: Some(clients.pem()) };
    let control = ControlPlane::start_with_tls(tls).await;
    control.serve("orders", "a", &[at(1)]);
    let own = clients.issue_client(&["me"]);
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let config = json!({
        "ca_certificate_file": write("ca.pem", &ca.pem()),
        "certificate_file": write("tls.crt", &own.pem),
        "private_key_file": write("tls.key", &own.key_pem),
    });
    let creds = json!([{"type": "tls", "config": config}]);
    let client = XdsClient::builder(bootstrap_with(vec![(control.address().to_string(), creds)])).build();
    Channel::to(&client, "xds:///orders").reaches(&[at(1)]).await;
}

/// fault 9: the first control plane is down at start and the second serves. When the first recovers, it takes over
/// and the second is no longer used.
#[tokio::test]
async fn falls_back_and_returns() {
    let [one, two] = [serving().await, ControlPlane::start().await];
    two.serve("orders", "a", &[at(2)]);
    one.kill();
    let client = XdsClient::builder(bootstrap(&[one.address(), two.address()])).build();
    let mut orders = Channel::to(&client, "xds:///orders");
    orders.reaches(&[at(2)]).await;
    one.restart().await;
    orders.reaches(&[at(1)]).await;
    two.wait_until(|two| two.open_streams() == 0 && two.open_connections() == 0).await;
}

/// fault 11: the first control plane fails after all resources are cached: the second is not connected to.
#[tokio::test]
async fn no_fallback_when_all_is_cached() {
    let [one, two] = [serving().await, serving().await];
    let client = XdsClient::builder(bootstrap(&[one.address(), two.address()])).build();
    let mut orders = Channel::to(&client, "xds:///orders");
    orders.reaches(&[at(1)]).await;
    one.wait_acked::<ClusterLoadAssignment>().await;
    one.kill();
    until("the loss is seen", || first(&client).failures == 1).await;
    let mut late = Channel::to(&client, "xds:///orders");
    late.reaches(&[at(1)]).await;
    assert_eq!(two.connections(), 0);
    // Resources that are not cached do cause fallback (A71).
    two.serve("users", "u", &[at(3)]);
    let mut users = Channel::to(&client, "xds:///users");
    users.reaches(&[at(3)]).await;
    assert_eq!(two.connections(), 1);
}

/// A cluster with endpoints from DNS: the name is resolved once for all channels.
#[tokio::test]
async fn endpoints_from_dns() {
    let control = ControlPlane::start().await;
    control.set(listener_with_rds("orders", "orders"));
    control.set(route_config("orders", "d"));
    control.set(dns_cluster("d", "127.0.0.1", 8080));
    let client = client_of(&control);
    for _ in 0..2 {
        let mut orders = Channel::to(&client, "xds:///orders");
        orders.reaches(&["127.0.0.1:8080".parse().unwrap()]).await;
        orders.subscription.reresolve();
    }
}

/// LRS-1, LRS-8: load reports use the connection of ADS. The last report is sent after the last channel, even if the
/// client was dropped too.
#[tokio::test]
async fn load_is_reported() {
    let control = serving().await;
    let client = client_of(&control);
    let mut orders = Channel::to(&client, "xds:///orders");
    orders.reaches(&[at(1)]).await;
    // There is nothing to report yet. A response shows that this state was processed.
    client.notify_pass();
    client.status().await.unwrap();
    let count = |client: &XdsClient| {
        let load = client.load_store().cluster(&control.address().to_string(), "a", None, clock::now());
        load.locality(None, &BackendMetrics::default()).start();
        client.notify_pass();
        load
    };
    let issued = || -> u64 {
        let reports = control.load_reports();
        reports
            .iter()
            .flat_map(|report| &report.upstream_locality_stats)
            .map(|l| l.total_issued_requests)
            .sum()
    };
    let load = count(&client);
    control.wait_until(|_| issued() == 1).await;
    assert_eq!((control.lrs_streams(), control.connections()), (1, 1));
    load.locality(None, &BackendMetrics::default()).start();
    drop((load, orders));
    drop(client);
    control.wait_until(|_| issued() == 2).await;
    control.wait_until(|control| control.open_connections() == 0).await;
}

/// fault 76: a control plane that does not read load reports still delivers resources.
#[tokio::test]
async fn unread_load_reports_do_not_block_resources() {
    let control = serving().await;
    control.lrs_unimplemented();
    let client = client_of(&control);
    let mut orders = Channel::to(&client, "xds:///orders");
    orders.reaches(&[at(1)]).await;
    let _load = client.load_store().cluster(&control.address().to_string(), "a", None, clock::now());
    client.notify_pass();
    control.wait_until(|control| control.lrs_streams() > 0).await;
    control.set_endpoints("a", &[at(2)]);
    orders.reaches(&[at(2)]).await;
    control.wait_until(|control| control.lrs_streams() > 1).await;
    assert_eq!((control.streams(), first(&client).failures), (1, 0));
}

/// A control plane with several addresses: neither one that refuses nor one that never responds blocks the
/// connection.
#[tokio::test]
async fn the_next_address_gets_its_turn() {
    let [control, dead] = [serving().await, ControlPlane::start().await];
    dead.kill();
    let mute = Proxy::to(control.address()).await;
    mute.accept_only(true);
    let uri = format!("ipv4:{},{},{}", dead.address(), mute.address(), control.address());
    let client = XdsClient::builder(bootstrap_with(vec![(uri, json!([{"type": "insecure"}]))])).build();
    Channel::to(&client, "xds:///orders").reaches(&[at(1)]).await;
    assert_eq!((mute.connections(), control.connections()), (1, 1));
}

/// Returns a CSDS client of a server in this process, for these xDS clients.
async fn csds(csds: Csds) -> ClientStatusDiscoveryServiceClient<tonic::transport::Channel> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap());
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    tokio::spawn(tonic::transport::Server::builder().serve_with_incoming(csds, incoming));
    let channel = tonic::transport::Endpoint::from_shared(uri).unwrap().connect().await.unwrap();
    // A service for all clients of the process also returns the large resources of tests that run meanwhile.
    ClientStatusDiscoveryServiceClient::new(channel).max_decoding_message_size(usize::MAX)
}

/// CSDS-1, CSDS-2, CSDS-3, CSDS-6, CSDS-7: both methods return every resource as it was received.
#[tokio::test]
async fn status_for_tools() {
    let control = serving().await;
    let client = client_of(&control);
    let mut orders = Channel::to(&client, "xds:///orders");
    orders.reaches(&[at(1)]).await;
    control.wait_acked::<ClusterLoadAssignment>().await;
    let mut tool = csds(Csds::of([client.clone()])).await;
    let request = ClientStatusRequest::default();
    let answer = tool.fetch_client_status(request.clone()).await.unwrap().into_inner();
    let [config] = &answer.config[..] else { panic!("{answer:?}") };
    assert_eq!(config.client_scope, "xds:///orders");
    let node = config.node.as_ref().unwrap();
    assert_eq!((node.id.as_str(), node.user_agent_name.as_str()), ("me", "evenkeel"));
    let shown: Vec<_> = config
        .generic_xds_configs
        .iter()
        .map(|c| (c.name.as_str(), c.version_info.as_str(), c.client_status))
        .collect();
    let acked = ClientResourceStatus::Acked.into();
    assert_eq!(shown, ["orders", "orders", "a", "a"].map(|name| (name, "1", acked)));
    let expected = testkit::resources::any(&load_assignment("a", &["10.0.0.1:80"]));
    let endpoints =
        config.generic_xds_configs.iter().find(|c| c.type_url == ClusterLoadAssignment::type_url());
    assert_eq!(endpoints.and_then(|c| c.xds_config.as_ref()), Some(&expected));
    assert!(
        endpoints.unwrap().last_updated.is_some_and(|at| at.seconds > 1_700_000_000),
        "a date of the wall's clock"
    );

    let short = ClientStatusRequest { exclude_resource_contents: true, ..request.clone() };
    let requests = tokio_stream::iter([request.clone(), short]);
    let mut answers = tool.stream_client_status(requests).await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap().as_ref(), Some(&answer));
    let short = answers.message().await.unwrap().unwrap();
    assert!(short.config[0].generic_xds_configs.iter().all(|config| config.xds_config.is_none()));
    assert_eq!(answers.message().await.unwrap(), None);

    let certain = ClientStatusRequest { node_matchers: vec![NodeMatcher::default()], ..request.clone() };
    assert_eq!(tool.fetch_client_status(certain).await.unwrap_err().code(), tonic::Code::InvalidArgument);

    let mut all = csds(Csds::new()).await;
    let answer = all.fetch_client_status(request).await.unwrap().into_inner();
    assert!(answer.config.contains(config), "every client of the process");
}

/// fault 77: a hundred requests while endpoints change: each response is consistent, and none is older than the last.
#[tokio::test]
async fn status_while_everything_changes() {
    let control = serving().await;
    let client = client_of(&control);
    let mut orders = Channel::to(&client, "xds:///orders");
    orders.reaches(&[at(1)]).await;
    let mut tool = csds(Csds::of([client.clone()])).await;
    let mut last = 0;
    for i in 0..100 {
        // Version n of the resource contains n endpoints.
        let endpoints: Vec<_> = (1..=i + 2).map(at).collect();
        control.set_endpoints("a", &endpoints);
        let answer = tool.fetch_client_status(ClientStatusRequest::default()).await.unwrap().into_inner();
        let config = answer.config[0]
            .generic_xds_configs
            .iter()
            .find(|c| c.type_url.ends_with("ClusterLoadAssignment"));
        let config = config.unwrap();
        let version: usize = config.version_info.parse().unwrap();
        let sent = ClusterLoadAssignment::decode(&*config.xds_config.as_ref().unwrap().value).unwrap();
        assert_eq!(sent.endpoints[0].lb_endpoints.len(), version);
        assert!(version >= last, "{version} after {last}");
        last = version;
    }
    control.wait_acked::<ClusterLoadAssignment>().await;
    assert_eq!(control.nacks(), []);
}

/// fault 72, fault 74: the channel is not polled, its runtime is shut down, and xDS continues.
#[test]
fn the_runtime_of_the_application_does_not_matter() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (control, client, orders) = runtime.block_on(async {
        let control = serving().await;
        let client = client_of(&control);
        let orders = Channel::to(&client, "xds:///orders");
        (control, client, orders)
    });
    drop(runtime);
    let mut orders = orders;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        control.wait_acked::<ClusterLoadAssignment>().await;
        orders.reaches(&[at(1)]).await;
    });
    drop((client, orders, runtime));
}

/// A target with an unknown xDS authority is rejected at once, and the error lists the known ones.
#[test]
fn targets_are_checked() {
    let client = XdsClient::builder(bootstrap(&[at(1)])).build();
    assert!(client.check("xds:///orders").is_ok());
    let error = client.watch_target("xds://eu/orders", None, 1, ChannelMetrics::default().xds()).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"target "xds://eu/orders": authority "eu" is not in authorities of the bootstrap, which has none"#
    );
    assert!(!error.is_unset());
    assert_eq!(client.node_id(), "me");
    assert!(Arc::strong_count(&client.shared) == 1, "the thread holds no handle");
}
