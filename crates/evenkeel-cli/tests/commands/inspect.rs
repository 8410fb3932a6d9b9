//! `evenkeel inspect` against real clients, and against other peers.

use std::net::SocketAddr;
use std::time::Duration;

use evenkeel::admin::{AdminServer, AdminWatch};
use evenkeel::{Bootstrap, Channel, XdsClient};
use evenkeel_proto::envoy::config::core::v3::HealthStatus;
use evenkeel_proto::envoy::config::listener::v3::Listener;
use evenkeel_proto::envoy::config::route::v3::RouteConfiguration;
use evenkeel_proto::prost_types::Any;
use serde_json::{Value, json};
use testkit::net::{Backend, ControlPlane};
use testkit::resources;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::common::{MAX_WAIT, RunningCommand, evenkeel, first_line};

/// Process with one channel to `xds:///orders` and a CSDS service.
struct InspectedProcess {
    control: ControlPlane,
    backend: Backend,
    client: XdsClient,
    channel: Channel,
    address: SocketAddr,
}

impl InspectedProcess {
    /// Starts it with a working service.
    async fn start() -> InspectedProcess {
        let control = ControlPlane::start().await;
        let backend = Backend::start().await;
        control.serve("orders", "pay", &[backend.address()]);
        let process = InspectedProcess::with(control, backend);
        timeout(MAX_WAIT, process.channel.ready()).await.expect("in time").expect("a channel");
        process
    }

    fn with(control: ControlPlane, backend: Backend) -> InspectedProcess {
        let bootstrap = Bootstrap::from_json(&control.bootstrap("node-7")).expect("a bootstrap");
        let client = XdsClient::builder(bootstrap).build();
        let channel =
            Channel::builder("xds:///orders").xds_client(client.clone()).build().expect("a channel");
        channel.connect();
        let address = serve_csds(client.clone());
        InspectedProcess { control, backend, client, channel, address }
    }

    /// Waits until a resource of the client has this status.
    async fn wait_status(&self, wanted: &str) {
        let found = async {
            loop {
                let config = self.client.status().await.expect("the client lives");
                let mut states =
                    config.generic_xds_configs.iter().map(|one| one.client_status().as_str_name());
                if states.any(|state| state == wanted) {
                    return;
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(MAX_WAIT, found).await.unwrap_or_else(|_| panic!("nothing is {wanted}"));
    }
}

fn serve_csds(client: XdsClient) -> SocketAddr {
    let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    let address = incoming.local_addr().expect("an address");
    let service = evenkeel::csds::Csds::of([client]);
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    address
}

/// Starts a server that replies with these bytes to the first input, and closes.
async fn peer_that_says(bytes: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let bytes = bytes.clone();
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(&bytes).await;
            });
        }
    });
    address
}

/// Runs the command on a blocking thread, beside the servers of the test.
async fn inspect(args: Vec<String>) -> crate::common::CommandOutput {
    let run = move || evenkeel(["inspect".to_owned()].into_iter().chain(args));
    tokio::task::spawn_blocking(run).await.expect("it runs")
}

async fn inspect_at(address: SocketAddr) -> crate::common::CommandOutput {
    inspect(vec![address.to_string()]).await
}

/// Masks ages and ports, which differ between runs.
fn masked(text: &str, addresses: &[(SocketAddr, &str)]) -> String {
    let mut text = text.to_owned();
    for (address, name) in addresses {
        text = text.replace(&address.to_string(), name);
    }
    let mut words: Vec<_> = text.split(' ').map(str::to_owned).collect();
    while let Some(i) = words.windows(2).position(|two| two[0] == "s" && two[1].starts_with("ago")) {
        words[i + 1] = words[i + 1].replacen("ago", "now", 1);
        words.splice(i - 1..=i, ["just".to_owned()]);
    }
    words.join(" ")
}

/// CSDS-3, CSDS-7: every resource of a client, below the one that refers to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_works() {
    let process = InspectedProcess::start().await;
    let outcome = inspect_at(process.address).await.ends_with(0);
    let shown = masked(&outcome.stdout, &[(process.backend.address(), "BACKEND")]);
    let expected = "\
xds:///orders node node-7, evenkeel 0.1.0
└─ listener orders ACKED (version 1, just now)
   └─ routes orders ACKED (version 1, just now)
      ├─ for *
      │  └─ all calls → pay
      └─ cluster pay ACKED (version 1, just now) round_robin
         └─ endpoints pay ACKED (version 1, just now)
            └─ local, weight 1, priority 0
               └─ BACKEND, weight 1
";
    assert_eq!(shown, expected);
    assert_eq!(outcome.stderr, "");
}

/// CSDS-4, CSDS-8, fault 22: a NACKed resource is shown with its full error and the version in use.
#[tokio::test(flavor = "multi_thread")]
async fn a_resource_that_is_rejected() {
    let process = InspectedProcess::start().await;
    let mut broken = resources::route_config("orders", "pay");
    broken.virtual_hosts[0].domains = vec!["a*b".to_owned()];
    process.control.set(broken);
    process.wait_status("NACKED").await;
    let outcome = inspect_at(process.address).await.ends_with(1);
    let shown = masked(&outcome.stdout, &[(process.control.address(), "CONTROL")]);
    let line =
        |text: &str| shown.lines().find(|line| line.contains(text)).unwrap_or_else(|| panic!("{shown}"));
    assert_eq!(line("routes orders").trim_start(), "└─ routes orders NACKED (version 1, just now)");
    assert_eq!(line("still serving"), "      ├─ NACKED version 2, just now: still serving version 1");
    let details = line("virtual_hosts[0].domains[0]");
    assert!(details.contains("invalid resource from xDS server \"CONTROL\""), "{details}");
    assert!(shown.contains("all calls → pay"), "the one in use is shown:\n{shown}");
}

/// CSDS-8: a resource that the control plane does not have.
#[tokio::test(flavor = "multi_thread")]
async fn a_resource_that_is_missing() {
    let control = ControlPlane::start().await;
    control.set(resources::listener_with_rds("orders", "orders"));
    control.set(resources::route_config("orders", "pay"));
    control.set(resources::cluster("other"));
    let process = InspectedProcess::with(control, Backend::start().await);
    process.wait_status("REQUESTED").await;
    // Absence from a later response counts as deletion only for a cluster that was received before (state of
    // the world).
    process.control.set(resources::cluster("pay"));
    process.wait_status("ACKED").await;
    process.control.remove::<evenkeel_proto::envoy::config::cluster::v3::Cluster>("pay");
    process.wait_status("DOES_NOT_EXIST").await;
    // Routes still name the cluster, so it stays in use for its grace period.
    let gone = async {
        loop {
            let outcome = inspect_at(process.address).await.ends_with(1);
            assert!(outcome.stdout.contains("cluster pay DOES_NOT_EXIST"), "{}", outcome.stdout);
            if !outcome.stdout.contains("still serving version") {
                return outcome;
            }
        }
    };
    let outcome = timeout(MAX_WAIT, gone).await.expect("the grace period ends");
    let shown = &outcome.stdout;
    assert!(shown.contains(": nothing to serve\n"), "{shown}");
}

/// Routes, weights, health and drops as text.
#[tokio::test(flavor = "multi_thread")]
async fn contents_are_for_people() {
    let process = InspectedProcess::start().await;
    let mut routes = resources::route_config("orders", "pay");
    routes.virtual_hosts[0].routes = rich_routes();
    let mut endpoints = resources::load_assignment("pay", &["10.0.0.1:80", "[::1]:80"]);
    endpoints.endpoints[0].lb_endpoints[1].set_health_status(HealthStatus::Draining);
    endpoints.endpoints[0].lb_endpoints[1].load_balancing_weight = Some(3);
    process.control.set(resources::cluster("pay-v2"));
    process.control.set_endpoints("pay-v2", &[]);
    process.control.set(endpoints);
    process.control.set(routes);
    process.control.wait_acked::<RouteConfiguration>().await;
    let told = async {
        loop {
            let shown = inspect_at(process.address).await.ends_with(0).stdout;
            if shown.contains("pay-v2 ACKED") && shown.contains("no endpoints") {
                return shown;
            }
        }
    };
    let shown = timeout(MAX_WAIT, told).await.expect("in time");
    for line in [
        "│  ├─ /pay.Pay/Refund, x-user = vip*, 5 % of them → pay 75 %, pay-v2 25 %",
        "│  ├─ /pay.Pay/*, no header x-test → pay-v2",
        "│  └─ all calls → pay",
        "├─ 10.0.0.1:80, weight 1\n",
        "└─ [::1]:80, weight 3 DRAINING\n",
    ] {
        assert!(shown.contains(line), "{line} in:\n{shown}");
    }
}

fn rich_routes() -> Vec<evenkeel_proto::envoy::config::route::v3::Route> {
    use evenkeel_proto::envoy::config::core::v3::RuntimeFractionalPercent;
    use evenkeel_proto::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
    use evenkeel_proto::envoy::config::route::v3::route::Action;
    use evenkeel_proto::envoy::config::route::v3::route_action::ClusterSpecifier;
    use evenkeel_proto::envoy::config::route::v3::route_match::PathSpecifier;
    use evenkeel_proto::envoy::config::route::v3::weighted_cluster::ClusterWeight;
    use evenkeel_proto::envoy::config::route::v3::{HeaderMatcher, WeightedCluster};
    use evenkeel_proto::envoy::r#type::v3::FractionalPercent;

    let header = |name: &str, specifier| HeaderMatcher {
        name: name.to_owned(),
        header_match_specifier: Some(specifier),
        ..HeaderMatcher::default()
    };
    let weight = |name: &str, weight| ClusterWeight {
        name: name.to_owned(),
        weight: Some(weight),
        ..ClusterWeight::default()
    };
    let mut split = resources::route("", "pay");
    let matched = split.r#match.as_mut().expect("a match");
    matched.path_specifier = Some(PathSpecifier::Path("/pay.Pay/Refund".to_owned()));
    matched.headers = vec![header("x-user", HeaderMatchSpecifier::PrefixMatch("vip".to_owned()))];
    let share = FractionalPercent { numerator: 5, denominator: 0 };
    matched.runtime_fraction =
        Some(RuntimeFractionalPercent { default_value: Some(share), ..RuntimeFractionalPercent::default() });
    if let Some(Action::Route(action)) = &mut split.action {
        let clusters = vec![weight("pay", 75), weight("pay-v2", 25)];
        action.cluster_specifier = Some(ClusterSpecifier::WeightedClusters(WeightedCluster {
            clusters,
            ..WeightedCluster::default()
        }));
    }
    let mut other = resources::route("/pay.Pay/", "pay-v2");
    let absent = header("x-test", HeaderMatchSpecifier::PresentMatch(false));
    other.r#match.as_mut().expect("a match").headers = vec![absent];
    vec![split, other, resources::route("", "pay")]
}

/// `--json` follows protobuf's JSON mapping, also around unknown types.
#[tokio::test(flavor = "multi_thread")]
async fn everything_as_json() {
    let process = InspectedProcess::start().await;
    let outcome = inspect(vec![process.address.to_string(), "--json".to_owned()]).await.ends_with(0);
    let json = outcome.json();
    assert_eq!(json["peer"], process.address.to_string());
    assert_eq!(json["state"], Value::Null);
    let client = &json["csds"]["config"][0];
    assert_eq!(client["node"]["id"], "node-7");
    let listener = &client["genericXdsConfigs"][0];
    assert_eq!(listener["clientStatus"], "ACKED");
    let manager = &listener["xdsConfig"]["apiListener"]["apiListener"];
    assert_eq!(manager["rds"]["routeConfigName"], "orders");
    assert!(listener["lastUpdated"].as_str().is_some_and(|at| at.ends_with('Z')), "{listener}");
}

/// fault 77: the admin server of a process adds channels, policies, weights and shares.
#[tokio::test(flavor = "multi_thread")]
async fn an_evenkeel_process() {
    let control = ControlPlane::start().await;
    let (alive, dead) = (Backend::start().await, Backend::start().await);
    dead.kill();
    control.serve("admin-orders", "pay", &[alive.address(), dead.address()]);
    let watch = AdminWatch::start("orders-7", Duration::from_millis(50)).await;
    let admin = AdminServer::builder().watch(watch).listen(SocketAddr::from(([127, 0, 0, 1], 0))).start();
    let admin = admin.await.expect("an admin server");
    let bootstrap = Bootstrap::from_json(&control.bootstrap("node-7")).expect("a bootstrap");
    let channel = Channel::builder("xds:///admin-orders").bootstrap(bootstrap).build().expect("a channel");
    timeout(MAX_WAIT, channel.ready()).await.expect("in time").expect("a channel");
    let told = async {
        loop {
            let shown = inspect_at(admin.address()).await.stdout;
            let row = |backend: &Backend| format!("  {}", backend.address());
            let state_of = |backend: &Backend| {
                let row = row(backend);
                let line = shown.lines().find(|line| line.starts_with(&row))?;
                line.split_whitespace().nth(1).map(str::to_owned)
            };
            if state_of(&alive).as_deref() == Some("READY")
                && state_of(&dead).as_deref() == Some("TRANSIENT_FAILURE")
            {
                return shown;
            }
        }
    };
    let shown = timeout(MAX_WAIT, told).await.expect("in time");
    assert!(shown.starts_with("orders-7 evenkeel 0.1.0, process "), "{shown}");
    assert!(shown.contains("channel xds:///admin-orders READY 0 calls/s"), "{shown}");
    assert!(shown.contains("round_robin"), "{shown}");
    assert!(shown.contains("endpoint"), "{shown}");
    assert!(shown.contains("xds:///admin-orders node node-7"), "CSDS is requested too:\n{shown}");
    assert!(shown.contains("1 of 2 endpoints down: "), "the verdict of the page:\n{shown}");
    inspect_at(admin.address()).await.ends_with(1);
    let json = inspect(vec![admin.address().to_string(), "--json".to_owned()]).await.json();
    assert_eq!(json["state"]["title"], "orders-7");
    assert!(json["csds"]["config"].is_array(), "{json}");
}

/// A peer that supports only one of the two requests is shown.
#[tokio::test(flavor = "multi_thread")]
async fn a_state_without_csds() {
    let state = json!({
        "title": "stand-in", "version": "9.9.9", "pid": 7, "since": 0, "at": 0, "xds": [], "events": [],
        "hints": ["look here"],
        "channels": [{
            "id": 1, "target": "dns:///orders:80", "state": "READY",
            "traffic": traffic(1234.0),
            "tree": { "policy": "round_robin", "state": "READY", "details": {} },
            "endpoints": [endpoint("10.0.0.1:80", 0.75, None), endpoint("10.0.0.2:80", 0.25, Some("ejected"))],
        }],
    });
    let body = state.to_string();
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let shown = inspect_at(peer_that_says(answer.into_bytes()).await).await.ends_with(0).stdout;
    let expected = "\
stand-in evenkeel 9.9.9, process 7
On an even keel: Every endpoint gets the share it should, within rounding. The busiest, 10.0.0.2:80, is at 50%.
hint: look here

channel dns:///orders:80 READY 1,234 calls/s, p99 3.5 ms
└─ round_robin READY
  endpoint     state  weight   want    got  picks  busy  p99 ms
  10.0.0.1:80  READY     2.5  75.0%  75.0%     10   50%     3.5
  10.0.0.2:80  READY     2.5  25.0%  25.0%     10   50%     3.5
    unused: ejected
";
    assert_eq!(shown, expected);
}

/// Returns a state with a good channel and one in which 7 % of calls fail.
fn failing_state() -> Value {
    let mut bad = traffic(100.0);
    bad["failures"] = json!(7.0);
    bad["recent_calls"] = json!(6000);
    bad["recent_failures"] = json!([
        { "code": "RESOURCE_EXHAUSTED", "cause": "server", "count": 400 },
        { "code": "UNAVAILABLE", "cause": "no_route", "count": 20 },
    ]);
    let error = json!({
        "at": 0, "code": "RESOURCE_EXHAUSTED", "cause": "server", "text": "the quota\u{1b}[2J of \"acme\" is used up",
    });
    let mut endpoints = [endpoint("10.0.0.1:80", 0.5, None), endpoint("10.0.0.2:80", 0.5, None)];
    endpoints[1]["name"] = json!("orders-2");
    endpoints[1]["traffic"] = bad.clone();
    endpoints[1]["traffic"]["recent_failures"] =
        json!([{ "code": "RESOURCE_EXHAUSTED", "cause": "server", "count": 400 }]);
    endpoints[1]["traffic"]["last_error"] = error.clone();
    bad["last_error"] = error;
    let channel = |id: u64, target: &str, traffic: Value, endpoints: Value| {
        json!({
            "id": id, "target": target, "state": "READY", "traffic": traffic, "endpoints": endpoints,
            "tree": { "policy": "round_robin", "state": "READY", "details": {} },
        })
    };
    let good = json!([endpoint("10.0.1.1:80", 1.0, None)]);
    json!({
        "title": "stand-in", "version": "9.9.9", "pid": 7, "since": 0, "at": 0, "xds": [], "events": [],
        "hints": [],
        "channels": [
            channel(1, "xds:///users", traffic(50.0), good),
            channel(2, "xds:///orders", bad, json!(endpoints)),
        ],
    })
}

/// A failover is named by its priority. The names of the children count generations.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_is_named() {
    let mut state = failing_state();
    state["channels"].as_array_mut().expect("a list").truncate(1);
    let leaf = |state: &str| json!({ "policy": "round_robin", "state": state, "details": {} });
    state["channels"][0]["tree"] = json!({
        "policy": "priority_experimental", "state": "READY",
        "details": {
            "cluster": "pay", "priorities": ["pay/priority-4", "pay/priority-2"], "chosen": "pay/priority-2",
        },
        "children": [["pay/priority-4", leaf("TRANSIENT_FAILURE")], ["pay/priority-2", leaf("READY")]],
    });
    let shown = inspect_at(serve_state(&state).await).await.ends_with(1).stdout;
    for line in [
        "Failover to priority 1: Cluster \"pay\" has failed over to priority 1: priority 0 is not available.",
        "failover to priority 1",
        "├─ priority 0: round_robin TRANSIENT_FAILURE",
        "└─ priority 1: round_robin READY",
    ] {
        assert!(shown.contains(line), "{line} in:\n{shown}");
    }
    assert!(!shown.contains("priority-"), "{shown}");
}

async fn serve_state(state: &Value) -> SocketAddr {
    let body = state.to_string();
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    peer_that_says(answer.into_bytes()).await
}

/// Failing calls are the verdict, with exit code 1, codes, causes and the last error.
#[tokio::test(flavor = "multi_thread")]
async fn failing_calls_are_findings() {
    let address = serve_state(&failing_state()).await;
    let shown = inspect_at(address).await.ends_with(1).stdout;
    assert!(!shown.contains('\u{1b}'), "{shown}");
    for line in [
        "Calls fail: xds:///orders: 7.0% of calls fail. In the last minute: 400 × the server returned \
         RESOURCE_EXHAUSTED, all on orders-2. 20 × no route matched the call (UNAVAILABLE).",
        "├─ On an even keel: Every endpoint gets the share it should, within rounding.",
        "├─ failed 420 of 6,000 calls in the last minute: 400 × RESOURCE_EXHAUSTED (returned by the server), \
         20 × UNAVAILABLE (no route)",
        "10.0.0.2:80  orders-2  READY",
        "    failed 400 of 6,000 calls in the last minute: 400 × RESOURCE_EXHAUSTED (returned by the server)",
        "ago: RESOURCE_EXHAUSTED: the quota\\u{1b}[2J of \"acme\" is used up",
    ] {
        assert!(shown.contains(line), "{line} in:\n{shown}");
    }
    let json = inspect(vec![address.to_string(), "--json".to_owned()]).await.ends_with(1).json();
    assert_eq!(json["state"]["verdict"]["level"], "bad");
    assert_eq!(json["state"]["channels"][1]["verdict"]["causes"][1]["kind"], "no_route");
}

/// `--channel` and `--only` select a part of the report, and the exit code is that of the part.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_the_report() {
    let address = serve_state(&failing_state()).await.to_string();
    let with = async |args: &[&str]| {
        let args = args.iter().map(|arg| (*arg).to_owned());
        inspect([address.clone()].into_iter().chain(args).collect()).await
    };
    for name in ["users", "xds:///users"] {
        let shown = with(&["--channel", name]).await.ends_with(0).stdout;
        assert!(shown.contains("channel xds:///users") && !shown.contains("orders"), "{shown}");
    }
    let shown = with(&["--channel", "orders"]).await.ends_with(1).stdout;
    assert!(shown.contains("Calls fail: 7.0% of calls fail.") && !shown.contains("users"), "{shown}");

    let shown = with(&["--only", "failing"]).await.ends_with(1).stdout;
    assert!(shown.contains("10.0.0.2:80") && !shown.contains("10.0.0.1:80"), "{shown}");
    assert!(!shown.contains("channel xds:///users"), "{shown}");
    let shown = with(&["--only", "failing", "--channel", "users"]).await.ends_with(0).stdout;
    assert!(shown.contains("On an even keel") && shown.contains("nothing fails"), "{shown}");

    let stderr = with(&["--channel", "order"]).await.ends_with(2).stderr;
    let expected = "no channel \"order\" in the process; its channels: xds:///users, xds:///orders";
    assert!(stderr.contains(expected), "{stderr}");
}

fn traffic(rate: f64) -> Value {
    json!({
        "started": 10, "succeeded": 10, "failed": 0, "in_flight": 0, "rate": rate, "failures": 0.0,
        "p50_ms": 1.0, "p99_ms": 3.5,
    })
}

fn endpoint(address: &str, share: f64, unused: Option<&str>) -> Value {
    json!({
        "address": address, "name": null, "cluster": null, "priority": null, "locality": null, "state": "READY",
        "unused": unused, "weight": 2.5, "want": share, "got": share, "utilization": 0.5,
        "traffic": traffic(1.0),
    })
}

/// Peers without either response: the attempts and the likely cause.
#[tokio::test(flavor = "multi_thread")]
async fn peers_that_are_no_clients() {
    let backend = Backend::start().await;
    let outcome = inspect_at(backend.address()).await.ends_with(3);
    assert!(outcome.stderr.contains("CSDS: Unimplemented"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("a gRPC server, but without CSDS"), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, "");

    let address = backend.address();
    backend.kill();
    let outcome = inspect_at(address).await.ends_with(3);
    assert!(outcome.stderr.contains("no process listens there"), "{}", outcome.stderr);

    let web = peer_that_says(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec()).await;
    let outcome = inspect_at(web).await.ends_with(3);
    assert!(
        outcome.stderr.contains("GET /api/state: expected 200 OK, found \"HTTP/1.1 404"),
        "{}",
        outcome.stderr
    );

    let outcome = inspect(vec!["nowhere".to_owned()]).await.ends_with(2);
    assert!(outcome.stderr.contains("expected HOST:PORT"), "{}", outcome.stderr);
}

/// Malicious responses neither panic nor reach the terminal unescaped.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_answers() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{deep}", deep.len());
    for bytes in [answer.into_bytes(), vec![0; 1 << 20], b"\x1b[2J\x07".to_vec(), Vec::new()] {
        let outcome = inspect_at(peer_that_says(bytes).await).await.ends_with(3);
        assert!(
            !outcome.stderr.contains('\x1b') && !outcome.stderr.contains("panicked"),
            "{}",
            outcome.stderr
        );
    }

    let control = ControlPlane::start().await;
    let evil = "or\x1b[2Jders";
    control.set(resources::listener_with_rds("orders", evil));
    control.set(resources::route_config(evil, "pay"));
    control.set(resources::cluster("pay"));
    let garbage = Any { type_url: String::new(), value: vec![0xff; 64] };
    control.set_raw::<Listener>("other", garbage);
    let process = InspectedProcess::with(control, Backend::start().await);
    process.control.wait_until(|control| !control.subscribed::<RouteConfiguration>().is_empty()).await;
    for args in [vec![], vec!["--json".to_owned()]] {
        let args = [vec![process.address.to_string()], args].concat();
        let outcome = inspect(args).await;
        assert!(!outcome.stdout.contains('\x1b'), "{}", outcome.stdout);
        assert!(outcome.stdout.contains("ders"), "{}", outcome.stdout);
    }
}

/// `--watch` in a pipe appends reports and exits silently on a signal.
#[tokio::test(flavor = "multi_thread")]
async fn watching() {
    let process = InspectedProcess::start().await;
    let address = process.address.to_string();
    let watched = tokio::task::spawn_blocking(move || {
        let mut running = RunningCommand::start(["inspect", &address, "--watch", "--interval", "20ms"]);
        running.line_with("listener orders");
        running.line_with("listener orders");
        running.signal("INT");
        running.end()
    });
    assert_eq!(watched.await.expect("it runs").code(), Some(0));
}

/// A closed pipe ends the command silently.
#[tokio::test(flavor = "multi_thread")]
async fn closed_pipes() {
    let process = InspectedProcess::start().await;
    let address = process.address.to_string();
    let ended = tokio::task::spawn_blocking(move || {
        first_line(["inspect", &address, "--watch", "--interval", "1ms"])
    });
    let (line, code, stderr) = ended.await.expect("it runs");
    assert_eq!(line, "xds:///orders node node-7, evenkeel 0.1.0\n");
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
}
