//! Admin server over HTTP, as browsers and tools use it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel::admin::{
    AdminServer, AdminState, AdminWatch, ChannelHistory, ChannelInfo, EventLevel, FailureCause, TrafficStats,
    VerdictKind, VerdictLevel,
};
use evenkeel::{Bootstrap, Channel, ConnectivityState, XdsClient};
use evenkeel_proto::envoy::config::cluster::v3::circuit_breakers::Thresholds;
use evenkeel_proto::envoy::config::cluster::v3::{CircuitBreakers, Cluster};
use evenkeel_proto::envoy::config::endpoint::v3::cluster_load_assignment::policy::DropOverload;
use evenkeel_proto::envoy::config::endpoint::v3::{ClusterLoadAssignment, cluster_load_assignment};
use evenkeel_proto::envoy::service::status::v3::ClientStatusRequest;
use evenkeel_proto::envoy::r#type::v3::FractionalPercent;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use testkit::net::Backend;
use testkit::net::control::ControlPlane;
use testkit::net::csds::client_status_discovery_service_client::ClientStatusDiscoveryServiceClient;
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use testkit::resources;
use tokio::net::TcpStream;

/// Control plane, two backends of weights 1 and 3, a channel under constant load, and the admin server.
struct AdminFixture {
    control: ControlPlane,
    backends: [Backend; 2],
    admin: AdminServer,
    watch: AdminWatch,
    channel: Channel,
    ended: Arc<AtomicBool>,
}

impl AdminFixture {
    async fn new(service: &str) -> AdminFixture {
        let backends = [Backend::start().await, Backend::start().await];
        let control = ControlPlane::start().await;
        let addresses = backends.each_ref().map(Backend::address);
        control.serve(service, service, &addresses);
        set_weights(&control, service, &backends, [1, 3]);
        let bootstrap = Bootstrap::from_json(&control.bootstrap("admin")).expect("a bootstrap");
        let channel = Channel::builder(format!("xds:///{service}"))
            .xds_client(XdsClient::builder(bootstrap).build())
            .build()
            .expect("a channel");
        channel.ready().await.expect("an open channel");
        let ended = Arc::new(AtomicBool::new(false));
        for _ in 0..4 {
            let (mut client, ended) = (EchoClient::new(channel.clone()), ended.clone());
            tokio::spawn(async move {
                while !ended.load(Ordering::Relaxed) {
                    let _ = client.unary(EchoRequest::default()).await;
                }
            });
        }
        let watch = AdminWatch::start("stage", Duration::from_millis(50)).await;
        let admin = AdminServer::builder().watch(watch.clone()).start().await.expect("an admin server");
        AdminFixture { control, backends, admin, watch, channel, ended }
    }

    /// Waits for a sample that satisfies the condition.
    async fn until(&mut self, what: &str, is: impl Fn(&AdminState) -> bool) -> Arc<AdminState> {
        let looks = async {
            loop {
                let state = self.watch.changed().await;
                if is(&state) {
                    return state;
                }
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(30), looks).await;
        found.unwrap_or_else(|_| panic!("{what}: {:#?}", self.watch.state()))
    }
}

impl Drop for AdminFixture {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

fn set_weights(control: &ControlPlane, cluster: &str, backends: &[Backend; 2], weights: [u32; 2]) {
    let addresses = backends.each_ref().map(|backend| backend.address().to_string());
    let endpoints = resources::load_assignment(cluster, &addresses.each_ref().map(String::as_str));
    control.set(resources::weighted(endpoints, weights));
}

/// Returns the expected and the actual share of each endpoint of the service's channel.
fn shares(state: &AdminState, service: &str) -> Vec<(f64, f64)> {
    let target = format!("xds:///{service}");
    let channel = state.channels.iter().find(|channel| channel.target == target);
    let of = channel.iter().flat_map(|channel| &channel.endpoints);
    of.map(|endpoint| (endpoint.want.unwrap_or(-1.0), endpoint.got.unwrap_or(-1.0))).collect()
}

fn is_about(found: &[(f64, f64)], wanted: [f64; 2]) -> bool {
    found.len() == 2
        && found
            .iter()
            .zip(wanted)
            .all(|((want, got), expected)| (want - expected).abs() < 1e-9 && (got - expected).abs() < 0.02)
}

/// CSDS-9: the state shows the shares of calls, a changed weight, a killed backend and a NACKed update.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_follows_the_process() {
    let mut mesh = AdminFixture::new("orders").await;
    let shares_of = |state: &AdminState| shares(state, "orders");
    let state = mesh.until("shares 1:3", |state| is_about(&shares_of(state), [0.25, 0.75])).await;
    let channel =
        state.channels.iter().find(|channel| channel.target == "xds:///orders").expect("it is there");
    assert_eq!((channel.state, &*state.title), (ConnectivityState::Ready, "stage"));
    assert!(channel.traffic.rate > 0.0 && channel.traffic.p99_ms.is_some() && channel.tree.is_some());
    assert_eq!(channel.endpoints[1].weight, Some(3.0));
    let client =
        state.xds.iter().find(|client| client.resources.iter().any(|resource| resource.name == "orders"));
    let client = client.expect("its client");
    assert!(client.servers[0].connected);
    assert!(client.resources.iter().all(|resource| resource.status == "ACKED"), "{:?}", client.resources);

    set_weights(&mesh.control, "orders", &mesh.backends, [1, 1]);
    mesh.until("shares 1:1", |state| is_about(&shares_of(state), [0.5, 0.5])).await;

    mesh.backends[0].kill();
    let dead = mesh.backends[0].address().to_string();
    let state = mesh
        .until("shares 0:1", |state| {
            let shares = shares_of(state);
            shares.len() == 2 && shares[0].1 == 0.0 && shares[1] == (1.0, 1.0)
        })
        .await;
    assert!(state.events.iter().any(|event| event.subject == dead && event.text == "connection lost"));
    mesh.backends[0].restart().await;
    mesh.until("shares 1:1 again", |state| is_about(&shares_of(state), [0.5, 0.5])).await;

    mesh.control.set(Cluster { name: "orders".to_owned(), ..Cluster::default() });
    let state = mesh
        .until("a rejected cluster", |state| state.hints.iter().any(|hint| hint.contains("rejected")))
        .await;
    let rejected = state
        .events
        .iter()
        .find(|event| event.level == EventLevel::Error && event.subject == "Cluster orders");
    assert!(rejected.is_some_and(|event| event.text.contains("rejected")), "{:?}", state.events);
    assert!(is_about(&shares_of(&state), [0.5, 0.5]), "the last good one serves");
}

/// Returns the number of calls of the last minute that failed with this code and cause.
fn failed(traffic: &TrafficStats, code: &str, cause: FailureCause) -> u64 {
    let of =
        traffic.recent_failures.iter().filter(|failures| failures.code == code && failures.cause == cause);
    of.map(|failures| failures.count).sum()
}

fn channel<'s>(state: &'s AdminState, target: &str) -> &'s ChannelInfo {
    let mut channels = state.channels.iter();
    channels.find(|channel| channel.target == target).expect("the channel is listed")
}

fn has_cause(state: &AdminState, target: &str, kind: VerdictKind) -> bool {
    let verdict = channel(state, target).verdict.as_ref().expect("a verdict");
    verdict.causes.iter().any(|cause| cause.kind == kind)
}

/// Failures are counted by code and cause, for the channel and for each endpoint, with the text of the last one.
/// The verdict names every cause: status of a server, drop category, circuit breaker, route, connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_have_codes_causes_and_texts() {
    let mut mesh = AdminFixture::new("failing").await;
    let target = "xds:///failing";
    let is_good = |state: &AdminState| {
        let verdict = channel(state, target).verdict.as_ref().expect("a verdict");
        verdict.level == VerdictLevel::Good && channel(state, target).traffic.rate > 0.0
    };
    mesh.until("a good verdict", is_good).await;

    mesh.backends[1].fail_with(Some(tonic::Code::ResourceExhausted));
    let bad = mesh.backends[1].address().to_string();
    let is_counted =
        |traffic: &TrafficStats| failed(traffic, "RESOURCE_EXHAUSTED", FailureCause::Server) > 10;
    let state = mesh
        .until("counts by code", |state| {
            let channel = channel(state, target);
            is_counted(&channel.traffic)
                && channel.endpoints.iter().any(|endpoint| is_counted(&endpoint.traffic))
        })
        .await;
    for endpoint in &channel(&state, target).endpoints {
        assert_eq!(is_counted(&endpoint.traffic), endpoint.address == bad, "{}", endpoint.address);
    }
    let error = channel(&state, target).traffic.last_error.clone().expect("an error");
    assert_eq!((&*error.code, error.cause), ("RESOURCE_EXHAUSTED", FailureCause::Server));
    assert!(!error.text.is_empty());
    let state = mesh.until("a verdict", |state| has_cause(state, target, VerdictKind::ServerStatus)).await;
    let verdict = channel(&state, target).verdict.clone().expect("a verdict");
    assert_eq!((verdict.level, &*verdict.headline), (VerdictLevel::Bad, "Calls fail"));
    let expected = format!("the server returned RESOURCE_EXHAUSTED, all on {bad}.");
    assert!(verdict.text.contains(&expected), "{}", verdict.text);
    mesh.backends[1].fail_with(None);

    let addresses = mesh.backends.each_ref().map(|backend| backend.address().to_string());
    let addresses = addresses.each_ref().map(String::as_str);
    let drop_percentage = Some(FractionalPercent { numerator: 50, denominator: 0 });
    let drop_overloads = vec![DropOverload { category: "maintenance".to_owned(), drop_percentage }];
    let policy = cluster_load_assignment::Policy { drop_overloads, ..Default::default() };
    mesh.control.set(ClusterLoadAssignment {
        policy: Some(policy),
        ..resources::load_assignment("failing", &addresses)
    });
    let state = mesh.until("drops", |state| has_cause(state, target, VerdictKind::Dropped)).await;
    let drops = &channel(&state, target).drops[0];
    assert_eq!((&*drops.cluster, drops.category.as_deref()), ("failing", Some("maintenance")));
    assert!(failed(&channel(&state, target).traffic, "UNAVAILABLE", FailureCause::Dropped) > 0);
    mesh.control.set(resources::load_assignment("failing", &addresses));

    let thresholds = vec![Thresholds { max_requests: Some(1), ..Thresholds::default() }];
    let circuit_breakers = Some(CircuitBreakers { thresholds, ..CircuitBreakers::default() });
    mesh.control.set(Cluster { circuit_breakers, ..resources::cluster("failing") });
    let state =
        mesh.until("circuit breaking", |state| has_cause(state, target, VerdictKind::CircuitBreaking)).await;
    let verdict = channel(&state, target).verdict.clone().expect("a verdict");
    let expected = "circuit breaking: cluster \"failing\" is at its maximum of 1 calls in flight";
    assert!(verdict.text.contains(expected), "{}", verdict.text);
    mesh.control.set(resources::cluster("failing"));

    let mut routes = resources::route_config("failing", "failing");
    routes.virtual_hosts[0].routes = vec![resources::route("/another.Service/", "failing")];
    mesh.control.set(routes);
    let no_route = |state: &AdminState| {
        let error = channel(state, target).traffic.last_error.as_ref();
        error.is_some_and(|error| error.cause == FailureCause::NoRoute)
            && has_cause(state, target, VerdictKind::NoRoute)
    };
    mesh.until("no route", no_route).await;
    mesh.control.set(resources::route_config("failing", "failing"));

    // The failures of a broken connection remain with its endpoint.
    mesh.until("the route again", |state| {
        let traffic = &channel(state, target).traffic;
        traffic.rate > 0.0 && traffic.failures == 0.0
    })
    .await;
    let held = EchoRequest { forever: true, ..EchoRequest::default() };
    for _ in 0..32 {
        let (mut client, request) = (EchoClient::new(mesh.channel.clone()), held.clone());
        tokio::spawn(async move { client.unary(request).await });
    }
    // More than the steady callers can have.
    mesh.backends[1].wait_until(|backend| backend.in_flight() > 4).await;
    mesh.backends[1].kill();
    mesh.until("a broken connection", |state| {
        let mut endpoints = channel(state, target).endpoints.iter();
        let broken = endpoints.find(|endpoint| endpoint.address == bad);
        broken.is_some_and(|broken| failed(&broken.traffic, "UNAVAILABLE", FailureCause::Connection) > 0)
    })
    .await;

    mesh.backends.iter().for_each(Backend::kill);
    mesh.until("no endpoint", |state| {
        has_cause(state, target, VerdictKind::NoEndpoint)
            && has_cause(state, target, VerdictKind::Unreachable)
    })
    .await;
}

/// A channel whose listener is absent is not idle, and the listener is not rejected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_without_config_is_reported() {
    let mut mesh = AdminFixture::new("configured").await;
    let bootstrap = Bootstrap::from_json(&mesh.control.bootstrap("misspelled")).expect("a bootstrap");
    let client = XdsClient::builder(bootstrap).build();
    let target = "xds:///misspelled";
    let misspelled = Channel::builder(target).xds_client(client).build().expect("a channel");
    let failing = tokio::spawn(async move {
        let mut client = EchoClient::new(misspelled);
        loop {
            let mut request = tonic::Request::new(EchoRequest::default());
            request.set_timeout(Duration::from_millis(20));
            let _ = client.unary(request).await;
        }
    });
    let state = mesh
        .until("no config", |state| {
            let channel = state.channels.iter().find(|channel| channel.target == target);
            let verdict = channel.and_then(|channel| channel.verdict.as_ref());
            verdict.is_some_and(|verdict| verdict.headline == "No config")
        })
        .await;
    let misspelled = channel(&state, target);
    let verdict = misspelled.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.level, VerdictLevel::Bad);
    assert!(verdict.text.contains("listener \"misspelled\""), "{}", verdict.text);
    assert!(failed(&misspelled.traffic, "DEADLINE_EXCEEDED", FailureCause::NoConfig) > 0);
    // Channels of other tests in this process may be worse.
    assert_eq!(state.verdict.as_ref().expect("a verdict").level, VerdictLevel::Bad);
    failing.abort();
    let mut hints = state.hints.iter().filter(|hint| hint.contains("misspelled"));
    assert!(hints.all(|hint| !hint.contains("rejected")), "{:?}", state.hints);
}

/// Responses on the wire: content types, status codes and headers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_served_by_host_and_origin() {
    let mut mesh = AdminFixture::new("payments").await;
    mesh.until("shares", |state| is_about(&shares(state, "payments"), [0.25, 0.75])).await;
    let address = mesh.admin.address().to_string();

    let (status, headers, body) = get(&address, "/api/state", &[("host", &address)]).await;
    assert_eq!((status, headers["content-type"].as_bytes()), (200, &b"application/json"[..]));
    let state: AdminState = serde_json::from_slice(&body).expect("a state");
    assert_eq!(shares(&state, "payments").len(), 2);
    let (_, _, body) = get(&address, "/api/history", &[("host", &address)]).await;
    let histories: Vec<ChannelHistory> = serde_json::from_slice(&body).expect("histories");
    assert!(histories.iter().any(|history| history.endpoints.len() == 2 && history.at.len() >= 2));

    let (status, headers, body) = get(&address, "/api/resources", &[("host", &address)]).await;
    assert_eq!((status, headers["content-type"].as_bytes()), (200, &b"application/json"[..]));
    let resources: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    let mut clients = resources["config"].as_array().expect("a list").iter();
    let client = clients.find(|client| client["clientScope"] == "xds:///payments").expect("the client");
    let config = &client["genericXdsConfigs"][0]["xdsConfig"];
    assert_eq!((&config["name"], config["apiListener"].is_object()), (&"payments".into(), true), "{config}");

    let (status, headers, body) = get(&address, "/", &[("host", &address)]).await;
    assert_eq!(status, 200);
    assert!(
        headers["content-security-policy"].to_str().is_ok_and(|policy| policy.contains("default-src 'none'"))
    );
    assert!(body.starts_with(b"<!doctype html>"));

    // A rebound host name, and a request from another origin.
    let (status, ..) = get(&address, "/api/state", &[("host", "evil.example")]).await;
    assert_eq!(status, 403);
    let foreign = [("host", &*address), ("origin", "http://evil.example")];
    assert_eq!(get(&address, "/api/state", &foreign).await.0, 403);
    assert_eq!(get(&address, "/nothing", &[("host", &address)]).await.0, 404);

    let own = evenkeel::channel(format!("ipv4:{address}")).expect("a channel");
    let mut csds = ClientStatusDiscoveryServiceClient::new(own);
    let answer =
        csds.fetch_client_status(ClientStatusRequest::default()).await.expect("an answer").into_inner();
    let mut names = answer.config.iter().flat_map(|client| &client.generic_xds_configs);
    assert!(names.any(|resource| resource.name == "payments"));
}

/// Event streams end when the server is dropped, and its port is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_end_with_the_server() {
    let watch = AdminWatch::start("short", Duration::from_millis(20)).await;
    let admin = AdminServer::builder().watch(watch.clone()).start().await.expect("an admin server");
    let address = admin.address().to_string();
    let (status, _, mut body) = ask(&address, "/api/events", &[("host", &address)]).await;
    assert_eq!(status, 200);
    watch.mark("halfway");
    let mut text = String::new();
    while !text.contains("halfway") {
        let frame = body.frame().await.expect("a further event").expect("an open connection");
        text.push_str(&String::from_utf8_lossy(frame.data_ref().expect("data")));
    }
    drop(admin);
    let ends = async { while body.frame().await.is_some_and(|frame| frame.is_ok()) {} };
    tokio::time::timeout(Duration::from_secs(30), ends).await.expect("the events end");
    let refused = async {
        while TcpStream::connect(&address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), refused).await.expect("the port is closed");
}

async fn get(address: &str, path: &str, headers: &[(&str, &str)]) -> (u16, http::HeaderMap, Vec<u8>) {
    let (status, headers, body) = ask(address, path, headers).await;
    (status, headers, body.collect().await.expect("a body").to_bytes().to_vec())
}

async fn ask(
    address: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> (u16, http::HeaderMap, hyper::body::Incoming) {
    let io = TokioIo::new(TcpStream::connect(address).await.expect("the server listens"));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.expect("HTTP/1");
    tokio::spawn(connection);
    let mut request = http::Request::get(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(http_body_util::Empty::<bytes::Bytes>::new()).expect("a request");
    let (head, body) = sender.send_request(request).await.expect("an answer").into_parts();
    (head.status.as_u16(), head.headers, body)
}

/// Other origins cannot read the port: responses carry the policy header, and requests of other sites are
/// rejected.
#[tokio::test]
async fn pages_of_other_sites_are_refused() {
    let admin = AdminServer::builder().start().await.expect("an admin server");
    let address = admin.address().to_string();
    for (site, expected) in
        [("none", 200), ("same-origin", 200), ("same-site", 403), ("cross-site", 403), ("other", 200)]
    {
        for path in ["/", "/api/state", "/api/history", "/api/resources"] {
            let headers = [("host", &*address), ("sec-fetch-site", site)];
            let (status, headers, _) = get(&address, path, &headers).await;
            assert_eq!(status, expected, "{site} {path}");
            if status == 200 {
                assert_eq!(headers["cross-origin-resource-policy"], "same-origin");
            }
        }
    }
    let (status, headers, _) = get(&address, "/nothing", &[("host", &address)]).await;
    assert_eq!((status, headers["cross-origin-resource-policy"].as_bytes()), (404, &b"same-origin"[..]));
}

/// Reads until the server closes the connection, and returns the received text.
async fn read_to_end(mut stream: TcpStream) -> String {
    use tokio::io::AsyncReadExt;
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(120), stream.read_to_end(&mut bytes));
    // A reset also ends the connection.
    let _ = read.await.expect("the server closes the connection");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A connection without a complete request is closed at its deadline. A connection with a response in flight is not.
#[tokio::test(start_paused = true)]
async fn slow_heads_are_cut_off() {
    use tokio::io::AsyncWriteExt;
    let watch = AdminWatch::start("slow", Duration::from_secs(1)).await;
    let admin = AdminServer::builder().watch(watch).start().await.expect("an admin server");
    let address = admin.address().to_string();
    let connect = async || TcpStream::connect(&address).await.expect("a connection");
    assert_eq!(read_to_end(connect().await).await, "");
    let mut partial = connect().await;
    partial.write_all(b"GET / HTTP/1.1\r\nHost: loc").await.expect("an open connection");
    assert_eq!(read_to_end(partial).await, "");
    let mut trickle = connect().await;
    trickle.write_all(b"GET / HTTP/1.1\r\n").await.expect("an open connection");
    let mut bytes = 0;
    while trickle.write_all(b"a").await.is_ok() {
        bytes += 1;
        assert!(bytes < 200, "a head that trickles in is taken for ever");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // The deadline also applies between requests. A request before it is served.
    let mut kept = connect().await;
    let request = format!("GET /icon.svg HTTP/1.1\r\nHost: {address}\r\n\r\n");
    for _ in 0..3 {
        kept.write_all(request.as_bytes()).await.expect("an open connection");
        tokio::time::sleep(Duration::from_secs(20)).await;
    }
    assert_eq!(read_to_end(kept).await.matches("HTTP/1.1 200 OK").count(), 3);
    // A streaming response keeps its connection open.
    let (status, _, mut body) = ask(&address, "/api/events", &[("host", &address)]).await;
    assert_eq!(status, 200);
    let begun = tokio::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(100) {
        body.frame().await.expect("a further event").expect("an open connection");
    }
}

/// Connections and event streams are limited independently. CSDS is served beside them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_limited() {
    let watch = AdminWatch::start("many", Duration::from_millis(20)).await;
    let admin = AdminServer::builder().watch(watch).start().await.expect("an admin server");
    let address = admin.address().to_string();
    let own = evenkeel::channel(format!("ipv4:{address}")).expect("a channel");
    let mut csds = ClientStatusDiscoveryServiceClient::new(own);
    csds.fetch_client_status(ClientStatusRequest::default()).await.expect("an answer");
    let (_, _, mut events) = ask(&address, "/api/events", &[("host", &address)]).await;
    let mut open = Vec::new();
    for _ in 0..62 {
        open.push(TcpStream::connect(&address).await.expect("a connection"));
    }
    let refused = TcpStream::connect(&address).await.expect("a connection");
    assert_eq!(read_to_end(refused).await, "");
    csds.fetch_client_status(ClientStatusRequest::default()).await.expect("an answer");
    events.frame().await.expect("a further event").expect("an open connection");
    // A released slot is reused.
    open.clear();
    let served = async {
        loop {
            let mut stream = TcpStream::connect(&address).await.expect("a connection");
            let request = format!("GET /icon.svg HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await;
            if read_to_end(stream).await.starts_with("HTTP/1.1 200 OK") {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), served).await.expect("a place is free");
}

/// A request that announces a large body is rejected before its body is read.
#[tokio::test]
async fn large_requests_are_refused() {
    use tokio::io::AsyncWriteExt;
    let admin = AdminServer::builder().start().await.expect("an admin server");
    let address = admin.address().to_string();
    for (length, expected) in [(1 << 20, "405"), ((1 << 20) + 1, "413")] {
        let mut stream = TcpStream::connect(&address).await.expect("a connection");
        let head = format!(
            "POST /api/state HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.expect("an open connection");
        stream.shutdown().await.expect("an open connection");
        let answer = read_to_end(stream).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{answer}");
    }
}

/// Headers that keep other origins and browsers from using a response otherwise than as the page does.
const HARDENING: [&str; 5] = [
    "content-security-policy",
    "x-content-type-options",
    "referrer-policy",
    "cache-control",
    "cross-origin-resource-policy",
];

/// Sends a request without a body and returns the response, head included, as text.
async fn exchange(address: &str, method: &str, path: &str, host: &str, length: u64) -> String {
    use tokio::io::AsyncWriteExt;
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("an open connection");
    stream.shutdown().await.expect("an open connection");
    let response = read_to_end(stream).await.to_lowercase();
    for name in HARDENING {
        assert!(response.contains(&format!("\r\n{name}: ")), "{method} {path}: no {name} in {response}");
    }
    response
}

/// Responses to probes and to rejected requests have the headers of all others.
#[tokio::test]
async fn every_response_is_hardened() {
    let admin = AdminServer::builder().start().await.expect("an admin server");
    let address = admin.address().to_string();
    let is = |response: &str, status: &str, body: &str| {
        assert!(response.starts_with(&format!("http/1.1 {status}")), "{response}");
        assert!(response.ends_with(&format!("\r\n\r\n{body}")), "{response}");
    };
    is(&exchange(&address, "GET", "/healthz", &address, 0).await, "200", "ok\n");
    is(&exchange(&address, "HEAD", "/healthz", &address, 0).await, "200", "");
    is(&exchange(&address, "POST", "/healthz", &address, 0).await, "405", "");
    is(&exchange(&address, "GET", "/nothing", &address, 0).await, "404", "");
    let text = "unknown host \"evil.example\": use an address or localhost, or allow the name in the builder of the admin server\n";
    is(&exchange(&address, "GET", "/healthz", "evil.example", 0).await, "403", text);
    let text = "a request has at most 1048576 bytes\n";
    is(&exchange(&address, "GET", "/healthz", &address, (1 << 20) + 1).await, "413", text);
}

/// A channel fails readiness while its calls wait for a config, and while its only endpoint is unreachable. The process
/// stays healthy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_follows_the_channels() {
    let (backend, control) = (Backend::start().await, ControlPlane::start().await);
    let watch = AdminWatch::start("probed", Duration::from_millis(20)).await;
    let admin = AdminServer::builder().watch(watch.clone()).start().await.expect("an admin server");
    let address = admin.address().to_string();
    let bootstrap = Bootstrap::from_json(&control.bootstrap("probed")).expect("a bootstrap");
    let channel = Channel::builder("xds:///probed")
        .xds_client(XdsClient::builder(bootstrap).build())
        .idle_timeout(None)
        .build()
        .expect("a channel");
    // Other tests of the binary have channels in the same process, so only the lines of this one count.
    let until_line = async |expected: Option<&str>| {
        let mut samples = watch.clone();
        let polls = async {
            loop {
                let (status, headers, body) = get(&address, "/ready", &[("host", &address)]).await;
                assert_eq!(headers["content-type"], "text/plain; charset=utf-8");
                let body = String::from_utf8(body).expect("UTF-8");
                assert_eq!(status, if body == "ok\n" { 200 } else { 503 }, "{body}");
                let line = body.lines().find_map(|line| line.strip_prefix("channel \"xds:///probed\": "));
                // The reason follows.
                let is_expected = match (line, expected) {
                    (Some(line), Some(expected)) => line.starts_with(expected),
                    (line, expected) => line == expected,
                };
                if is_expected {
                    return;
                }
                samples.changed().await;
            }
        };
        let done = tokio::time::timeout(Duration::from_secs(30), polls).await;
        done.unwrap_or_else(|_| panic!("no line {expected:?}"));
    };
    until_line(None).await;
    // The control plane has no resources. The call waits for its first config.
    let mut client = EchoClient::new(channel.clone());
    let call = tokio::spawn(async move { client.unary(EchoRequest::default()).await });
    until_line(Some("no config yet, 1 call waits: waiting for ")).await;
    assert_eq!(get(&address, "/healthz", &[("host", &address)]).await.0, 200);
    control.serve("probed", "probed", &[backend.address()]);
    call.await.expect("the call ends").expect("a response");
    until_line(None).await;
    backend.kill();
    until_line(Some("TRANSIENT_FAILURE")).await;
    backend.restart().await;
    until_line(None).await;
}
