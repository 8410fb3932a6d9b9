//! `evenkeel doctor` against every failure on the path to an endpoint that one machine can stage.

use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::core::v3::transport_socket::ConfigType;
use evenkeel_proto::envoy::config::core::v3::{HealthStatus, TransportSocket};
use evenkeel_proto::envoy::config::listener::v3::{FilterChain, Listener};
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::certificate_validation_context::SystemRootCerts;
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::common_tls_context::ValidationContextType;
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::{
    CertificateProviderPluginInstance, CertificateValidationContext, CommonTlsContext, UpstreamTlsContext,
};
use evenkeel_proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use evenkeel_proto::prost::Message as _;
use serde_json::{Value, json};
use testkit::net::certs::Ca;
use testkit::net::frames::{Frame, Peer, block, flag, kind};
use testkit::net::{Backend, ControlPlane, Tls};
use testkit::resources;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::common::{CommandOutput, TempFolder, command, evenkeel};

/// Result of a run: its exit code, and its output with masked times.
struct DoctorOutput {
    code: Option<i32>,
    text: String,
}

impl DoctorOutput {
    fn of(outcome: &CommandOutput) -> DoctorOutput {
        assert_eq!(outcome.stderr, "");
        DoctorOutput { code: outcome.code, text: masked(&outcome.stdout) }
    }

    /// Asserts that the checks stopped at this step, with these texts in the finding and the likely cause.
    #[track_caller]
    fn stopped_at(self, code: i32, step: &str, found: &str, likely: &str) -> DoctorOutput {
        let text = &self.text;
        assert_eq!(self.code, Some(code), "{text}");
        let failed = text.lines().find(|line| line.starts_with('✗')).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(failed.split_whitespace().nth(1), Some(step), "{text}");
        // From one label to the next: `found` may have several lines.
        let between = |from: &str, to: &str| {
            let start = text.find(from).unwrap_or_else(|| panic!("{text}"));
            text[start..].split(to).next().unwrap_or_default().to_owned()
        };
        assert!(between("    found  ", "    likely ").contains(found), "{found:?} in:\n{text}");
        assert!(between("    likely ", "    next ").contains(likely), "{likely:?} in:\n{text}");
        assert!(text.lines().last().is_some_and(|line| line.len() > 20), "what to do next in:\n{text}");
        self
    }

    #[track_caller]
    fn fine(self) -> DoctorOutput {
        assert_eq!(self.code, Some(0), "{}", self.text);
        assert!(self.text.lines().last().is_some_and(|line| line.starts_with("all fine: ")), "{}", self.text);
        self
    }
}

/// Masks times, which differ between runs.
fn masked(text: &str) -> String {
    let lines = text.lines().map(|line| match line.split_once(" ms") {
        Some((before, after)) if before.ends_with(|c: char| c.is_ascii_digit()) => {
            let head = before.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end();
            format!("{head} T ms{after}")
        }
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

/// Runs the command on a blocking thread, beside the servers of the test.
async fn run(args: Vec<String>) -> CommandOutput {
    let run = move || evenkeel(["doctor".to_owned()].into_iter().chain(args));
    tokio::task::spawn_blocking(run).await.expect("it runs")
}

async fn doctor(bootstrap: &str, more: &[&str]) -> DoctorOutput {
    let folder = TempFolder::new();
    let file = folder.file("bootstrap.json", bootstrap);
    let mut args = vec!["xds:///orders".to_owned(), "--bootstrap".to_owned(), file.clone()];
    args.extend(more.iter().map(|more| (*more).to_owned()));
    let outcome = run(args).await;
    let stdout = outcome.stdout.replace(&file, "FILE");
    DoctorOutput::of(&CommandOutput { stdout, ..outcome })
}

/// Returns a bootstrap with one control plane.
fn bootstrap(uri: &str, credentials: &Value) -> String {
    json!({
        "xds_servers": [{ "server_uri": uri, "channel_creds": [credentials] }],
        "node": { "id": "node-7" },
    })
    .to_string()
}

fn insecure(address: SocketAddr) -> String {
    bootstrap(&address.to_string(), &json!({ "type": "insecure" }))
}

/// Short timeout for a response that never arrives. Responses that do arrive are much faster.
const SOON: [&str; 2] = ["--wait", "4s"];

/// Reserves a port without a listener for as long as the socket is held.
fn closed_port() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    let address = socket.local_addr().expect("an address");
    (socket, address)
}

/// Starts a server that replies with these bytes to the first input, and closes.
async fn peer_that_says(bytes: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(bytes).await;
            });
        }
    });
    address
}

/// Starts a server that accepts connections and sends nothing.
async fn silent_peer() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            held.push(stream);
        }
    });
    address
}

/// Starts an HTTP/2 server that responds to every request with these header fields only.
async fn peer_that_answers(fields: &'static [(&'static str, &'static str)]) -> SocketAddr {
    let peer = Peer::bind().await;
    let address = peer.address();
    tokio::spawn(async move {
        loop {
            let mut conn = peer.accept().await;
            tokio::spawn(async move {
                let _ = conn.settings(&[]).await;
                while let Some(frame) = conn.next_frame().await {
                    if frame.kind == kind::HEADERS {
                        let flags = flag::END_HEADERS | flag::END_STREAM;
                        let _ =
                            conn.send(Frame::new(kind::HEADERS, flags, frame.stream, block(fields))).await;
                    } else if frame.kind == kind::SETTINGS && frame.flags & flag::ACK == 0 {
                        let _ = conn.send(Frame::new(kind::SETTINGS, flag::ACK, 0, Vec::new())).await;
                    }
                }
            });
        }
    });
    address
}

/// Starts a control plane that responds to wildcard LDS requests only.
async fn control_plane_with(names: &'static [&'static str]) -> SocketAddr {
    control_plane_of(names.iter().map(|name| resources::listener_with_rds(name, name)).collect()).await
}

/// Like [`control_plane_with`], with these listeners.
async fn control_plane_of(listeners: Vec<Listener>) -> SocketAddr {
    let listeners = listeners.iter().map(resources::any);
    let response = DiscoveryResponse { resources: listeners.collect(), ..DiscoveryResponse::default() };
    let response = response.encode_to_vec();
    let peer = Peer::bind().await;
    let address = peer.address();
    tokio::spawn(async move {
        loop {
            let (mut conn, response) = (peer.accept().await, response.clone());
            tokio::spawn(async move {
                let _ = conn.settings(&[]).await;
                while let Some(frame) = conn.next_frame().await {
                    if frame.kind == kind::DATA && frame.payload.len() > 5 {
                        let request = DiscoveryRequest::decode(&frame.payload[5..]).expect("a request");
                        if request.resource_names.is_empty() {
                            let _ = conn.respond_headers(frame.stream, &[]).await;
                            let _ = conn.respond_data(frame.stream, &response).await;
                        }
                    } else if frame.kind == kind::SETTINGS && frame.flags & flag::ACK == 0 {
                        let _ = conn.send(Frame::new(kind::SETTINGS, flag::ACK, 0, Vec::new())).await;
                    }
                }
            });
        }
    });
    address
}

/// Starts a control plane with all resources of `xds:///orders`, and the backend.
async fn mesh() -> (ControlPlane, Backend) {
    let control = ControlPlane::start().await;
    let backend = Backend::start().await;
    control.serve("orders", "pay", &[backend.address()]);
    (control, backend)
}

/// All steps pass, and the whole report is checked.
#[tokio::test(flavor = "multi_thread")]
async fn all_fine() {
    let (control, _backend) = mesh().await;
    let ended = doctor(&insecure(control.address()), &[]).await.fine();
    let shown = ended.text.replace(&control.address().to_string(), "CONTROL");
    let expected = "\
✓ bootstrap  ok T ms  FILE (--bootstrap), node \"node-7\"
- DNS        skipped           no name to resolve
✓ TCP        ok T ms  CONTROL accepts connections
✓ HTTP/2     ok T ms  handshake completed
✓ ADS        ok T ms  open
✓ LDS        ok T ms  orders version 1
✓ RDS        ok T ms  orders version 1
✓ CDS        ok T ms  pay version 1
✓ EDS        ok T ms  pay: 1 of 1 endpoints usable
✓ connect    ok T ms  1 of 1 endpoints connected
all fine: calls to xds:///orders can be sent
";
    assert_eq!(shown, expected);
}

/// Bootstrap from the environment: none, and each variable.
#[tokio::test(flavor = "multi_thread")]
async fn the_bootstrap_of_the_environment() {
    let ended = DoctorOutput::of(&run(vec!["xds:///orders".to_owned()]).await);
    let expected = "\
✗ bootstrap  FAILED T ms
    expected  a bootstrap with the address of the control plane
    found     neither GRPC_XDS_BOOTSTRAP nor GRPC_XDS_BOOTSTRAP_CONFIG is set, and there is no --bootstrap
    likely    the variable is set for the service, but not in this shell
    next      GRPC_XDS_BOOTSTRAP=/path/to/bootstrap.json evenkeel doctor ..., or use --bootstrap FILE
";
    assert_eq!((ended.code, ended.text.as_str()), (Some(2), expected));

    let (control, _backend) = mesh().await;
    let folder = TempFolder::new();
    let file = folder.file("bootstrap.json", &insecure(control.address()));
    for (variable, value, origin) in [
        ("GRPC_XDS_BOOTSTRAP", file.clone(), format!("{file} (GRPC_XDS_BOOTSTRAP)")),
        (
            "GRPC_XDS_BOOTSTRAP_CONFIG",
            insecure(control.address()),
            "the text in GRPC_XDS_BOOTSTRAP_CONFIG".to_owned(),
        ),
    ] {
        let run =
            move || command(["doctor", "xds:///orders"]).env(variable, value).output().expect("it runs");
        let output = tokio::task::spawn_blocking(run).await.expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert!(text.contains(&origin), "{origin} in:\n{text}");
    }
}

/// Unusable bootstraps, each with its own diagnosis.
#[tokio::test(flavor = "multi_thread")]
async fn broken_bootstraps() {
    let missing = vec!["xds:///orders".to_owned(), "--bootstrap".to_owned(), "no/such/file".to_owned()];
    DoctorOutput::of(&run(missing).await).stopped_at(
        2,
        "bootstrap",
        "no/such/file cannot be read",
        "a wrong path",
    );
    for (text, found, likely) in [
        ("{\n  \"xds_servers\": [,]\n}", "line 2 column 19", "a comma too many"),
        ("{}", "xds_servers", "Envoy's has the same name"),
        (&bootstrap("a:1", &json!({ "type": "none" })), "found \"none\"", "a kind is misspelt"),
        (
            &bootstrap("a:1", &json!({ "type": "google_default" })),
            "xds_servers[0].channel_creds: expected insecure or tls, found \"google_default\"",
            "access tokens are not supported",
        ),
        (
            &bootstrap("etcd:///a", &json!({ "type": "insecure" })),
            "xds_servers[0].server_uri: \"etcd:///a\": expected host:port",
            "a scheme that gRPC does not have",
        ),
        (
            &bootstrap("control plane:1", &json!({ "type": "insecure" })),
            "xds_servers[0].server_uri: \"control plane:1\": expected a host name",
            "a misspelt address",
        ),
        (
            &bootstrap("a:1", &json!({ "type": "tls", "config": { "ca_certificate_file": "no/such.pem" } })),
            "no/such.pem",
            "have not been written yet",
        ),
    ] {
        doctor(text, &[]).await.stopped_at(2, "bootstrap", found, likely);
    }
}

/// The prefix of a URL has no effect, with a warning, and the checks go on.
#[tokio::test(flavor = "multi_thread")]
async fn control_planes_that_are_urls() {
    let (control, _backend) = mesh().await;
    for scheme in ["http", "https"] {
        let uri = format!("{scheme}://{}", control.address());
        let ended = doctor(&bootstrap(&uri, &json!({ "type": "insecure" })), &[]).await;
        assert_eq!(ended.code, Some(0), "{}", ended.text);
        let warning =
            format!("xds_servers[0].server_uri: {scheme}:// has no effect; channel_creds are insecure");
        assert!(ended.text.contains(&warning), "{warning} in:\n{}", ended.text);
    }
}

/// A target whose authority is not in the bootstrap.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_authority() {
    let folder = TempFolder::new();
    let file = folder.file("bootstrap.json", &bootstrap("a:1", &json!({ "type": "insecure" })));
    let args = ["xds://other/orders", "--bootstrap", &file].map(str::to_owned).to_vec();
    DoctorOutput::of(&run(args).await).stopped_at(
        2,
        "target",
        "not in authorities",
        "an authority that is not",
    );
    let ended = DoctorOutput::of(&run(vec!["bogus:///orders".to_owned()]).await);
    ended.stopped_at(2, "target", "found scheme \"bogus\"", "a mistake in the target");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_does_not_resolve() {
    let text = bootstrap("control.invalid:18000", &json!({ "type": "insecure" }));
    let ended = doctor(&text, &["--wait", "5s"]).await;
    ended.stopped_at(3, "DNS", "control.invalid does not resolve", "the name is misspelt");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_without_a_listener() {
    let (_held, address) = closed_port();
    doctor(&insecure(address), &[]).await.stopped_at(3, "TCP", "refused", "no process listens on that port");
}

/// A full listen backlog drops packets, as a firewall does.
#[tokio::test(flavor = "multi_thread")]
async fn packets_vanish() {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    let listener = socket.listen(1).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let mut held = Vec::new();
    while let Ok(Ok(stream)) = timeout(Duration::from_millis(500), TcpStream::connect(address)).await {
        held.push(stream);
    }
    let ended = doctor(&insecure(address), &SOON).await;
    ended.stopped_at(3, "TCP", "no response within 4s", "packets are dropped: a firewall");
}

fn tls_of(ca: &Ca, names: &[&str]) -> Tls {
    let cert = ca.issue(names);
    Tls { certificate: cert.pem, key: cert.key_pem, client_ca: None }
}

/// Returns a bootstrap that trusts this CA.
fn trusting(folder: &TempFolder, ca: &Ca, uri: &str) -> String {
    let file = folder.file("ca.pem", &ca.pem());
    bootstrap(uri, &json!({ "type": "tls", "config": { "ca_certificate_file": file } }))
}

/// faults 84: TLS that works, and a distinct diagnosis for each cause of a TLS failure.
#[tokio::test(flavor = "multi_thread")]
async fn tls_to_the_control_plane() {
    let folder = TempFolder::new();
    let ca = Ca::new("ours");
    let backend = Backend::start().await;

    let good = ControlPlane::start_with_tls(tls_of(&ca, &["127.0.0.1"])).await;
    good.serve("orders", "pay", &[backend.address()]);
    let uri = good.address().to_string();
    let ended = doctor(&trusting(&folder, &ca, &uri), &[]).await.fine();
    assert!(ended.text.contains("✓ TLS        ok T ms  the certificate is trusted"), "{}", ended.text);

    let stranger = Ca::new("theirs");
    let ended = doctor(&trusting(&folder, &stranger, &uri), &[]).await;
    ended.stopped_at(3, "TLS", "UnknownIssuer", "a CA that is not trusted here");

    doctor(&insecure(good.address()), &SOON).await.stopped_at(
        3,
        "HTTP/2",
        "in plaintext it responds with a TLS alert",
        "the port requires TLS, the client uses plaintext",
    );

    let other = ControlPlane::start_with_tls(tls_of(&ca, &["other.example.com"])).await;
    let ended = doctor(&trusting(&folder, &ca, &other.address().to_string()), &[]).await;
    ended.stopped_at(3, "TLS", "not valid for name", "the certificate is for another name");

    let cert = ca.issue_expired(&["127.0.0.1"]);
    let old = Tls { certificate: cert.pem, key: cert.key_pem, client_ca: None };
    let old = ControlPlane::start_with_tls(old).await;
    let ended = doctor(&trusting(&folder, &ca, &old.address().to_string()), &[]).await;
    ended.stopped_at(3, "TLS", "expired", "has expired");

    let mutual = Tls { client_ca: Some(ca.pem()), ..tls_of(&ca, &["127.0.0.1"]) };
    let mutual = ControlPlane::start_with_tls(mutual).await;
    let ended = doctor(&trusting(&folder, &ca, &mutual.address().to_string()), &[]).await;
    ended.stopped_at(3, "TLS", "certificate required", "requires a client certificate");

    let plain = ControlPlane::start().await;
    let ended = doctor(&trusting(&folder, &ca, &plain.address().to_string()), &SOON).await;
    ended.stopped_at(3, "TLS", "TLS handshake", "the client uses TLS, the port is plaintext");
}

/// Servers of other protocols on the control plane's port.
#[tokio::test(flavor = "multi_thread")]
async fn other_servers() {
    let web = peer_that_says(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
    doctor(&insecure(web), &SOON).await.stopped_at(
        3,
        "HTTP/2",
        "in plaintext it responds with \"HTTP/1.1 400 Bad Request\"",
        "an HTTP/1 server",
    );
    let mail = peer_that_says(b"220 mail.example.com ESMTP\r\n").await;
    doctor(&insecure(mail), &SOON).await.stopped_at(3, "HTTP/2", "220 mail", "a server of another protocol");
    let closing = peer_that_says(b"").await;
    doctor(&insecure(closing), &SOON).await.stopped_at(3, "HTTP/2", "", "the server closes the connection");
    let silent = silent_peer().await;
    doctor(&insecure(silent), &SOON).await.stopped_at(
        3,
        "HTTP/2",
        "",
        "accepts connections and sends nothing",
    );
}

/// Control planes that refuse the ADS stream.
#[tokio::test(flavor = "multi_thread")]
async fn streams_that_are_refused() {
    let backend = Backend::start().await;
    let ended = doctor(&insecure(backend.address()), &[]).await;
    ended.stopped_at(1, "ADS", "Unimplemented", "it has no AggregatedDiscoveryService");

    let not_grpc = peer_that_answers(&[(":status", "404"), ("content-type", "text/html")]).await;
    let ended = doctor(&insecure(not_grpc), &[]).await;
    ended.stopped_at(1, "ADS", "404", "not gRPC");

    let grpc = |status: &'static str| -> &'static [(&'static str, &'static str)] {
        let fields = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", status)];
        Box::leak(Box::new(fields))
    };
    let stranger = peer_that_answers(grpc("16")).await;
    doctor(&insecure(stranger), &[]).await.stopped_at(1, "ADS", "Unauthenticated", "requires authentication");
    let refused = peer_that_answers(grpc("7")).await;
    doctor(&insecure(refused), &[]).await.stopped_at(1, "ADS", "PermissionDenied", "denies it access");
    let ending = peer_that_answers(grpc("0")).await;
    let ended = doctor(&insecure(ending), &[]).await;
    ended.stopped_at(1, "ADS", "ended the stream before a response", "ends every stream at once");
}

/// Control planes that send no response at all, or none for the listener or a cluster.
#[tokio::test(flavor = "multi_thread")]
async fn silence() {
    let control = ControlPlane::start().await;
    control.silent(true);
    let ended = doctor(&insecure(control.address()), &SOON).await;
    let ended = ended.stopped_at(1, "LDS", "no response for listener \"orders\"", "has no listener");
    assert!(ended.text.contains("✓ ADS        ok T ms  open, no response so far"), "{}", ended.text);

    let control = control_plane_with(&["users", "orders:80"]).await;
    let ended = doctor(&insecure(control), &SOON).await;
    ended.stopped_at(1, "LDS", "listeners that it has: orders:80, users", "has no listener");

    let (control, _backend) = mesh().await;
    control.set(resources::route_config("orders", "gone"));
    let ended = doctor(&insecure(control.address()), &SOON).await;
    ended.stopped_at(1, "CDS", "cluster \"gone\"", "has no cluster of this name");
}

/// A NACKed resource is reported with every problem.
#[tokio::test(flavor = "multi_thread")]
async fn resources_that_are_rejected() {
    let (control, _backend) = mesh().await;
    let mut routes = resources::route_config("orders", "pay");
    routes.virtual_hosts[0].domains = vec!["a*b".to_owned(), "c*d".to_owned()];
    control.set(routes);
    let ended = doctor(&insecure(control.address()), &[]).await;
    let ended = ended.stopped_at(1, "RDS", "virtual_hosts[0].domains[0]", "rejected it with a NACK");
    assert!(ended.text.contains("virtual_hosts[0].domains[1]"), "{}", ended.text);
}

/// No virtual host matches the authority.
#[tokio::test(flavor = "multi_thread")]
async fn no_virtual_host() {
    let (control, _backend) = mesh().await;
    let mut routes = resources::route_config("orders", "pay");
    routes.virtual_hosts[0].domains = vec!["orders:80".to_owned(), "*.example.com".to_owned()];
    control.set(routes);
    let ended = doctor(&insecure(control.address()), &[]).await;
    ended.stopped_at(1, "RDS", "virtual hosts for orders:80, *.example.com", "port included");
}

/// Inline routes in the listener.
#[tokio::test(flavor = "multi_thread")]
async fn routes_in_the_listener() {
    let (control, _backend) = mesh().await;
    control.set(resources::listener_with_routes("orders", resources::route_config("", "pay")));
    let ended = doctor(&insecure(control.address()), &[]).await.fine();
    assert!(ended.text.contains("- RDS        skipped"), "{}", ended.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_that_are_not_there() {
    let (control, _backend) = mesh().await;
    control.set_endpoints("pay", &[]);
    let ended = doctor(&insecure(control.address()), &[]).await;
    ended.stopped_at(1, "EDS", "pay: no endpoints", "no instance of the service runs");

    let mut sick = resources::load_assignment("pay", &["127.0.0.1:1", "127.0.0.1:2"]);
    sick.endpoints[0].lb_endpoints[0].set_health_status(HealthStatus::Unhealthy);
    sick.endpoints[0].lb_endpoints[1].set_health_status(HealthStatus::Draining);
    control.set(sick);
    let ended = doctor(&insecure(control.address()), &[]).await;
    ended.stopped_at(1, "EDS", "2 endpoints, all DRAINING, UNHEALTHY", "health checks fail");
}

/// Unusable endpoints, each with its own diagnosis.
#[tokio::test(flavor = "multi_thread")]
async fn endpoints_that_do_not_take_calls() {
    let (control, backend) = mesh().await;
    let (_held, dead) = closed_port();
    control.set_endpoints("pay", &[dead]);
    let ended = doctor(&insecure(control.address()), &[]).await;
    ended.stopped_at(
        1,
        "connect",
        &format!("{dead} does not accept connections"),
        "no process listens there",
    );

    let web = peer_that_says(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    control.set_endpoints("pay", &[web]);
    let ended = doctor(&insecure(control.address()), &SOON).await;
    ended.stopped_at(1, "connect", "responds with \"HTTP/1.1 400 Bad Request\"", "not a gRPC port");

    let ca = Ca::new("ours");
    let secured = Backend::builder().tls(tls_of(&ca, &["orders"])).start().await;
    control.set_endpoints("pay", &[secured.address()]);
    let ended = doctor(&insecure(control.address()), &SOON).await;
    ended.stopped_at(1, "connect", "requires TLS", "the endpoints require TLS");
    let folder = TempFolder::new();
    let file = folder.file("ca.pem", &ca.pem());
    doctor(&insecure(control.address()), &["--ca", &file]).await.fine();

    control.set_endpoints("pay", &[backend.address()]);
    let ended = doctor(&insecure(control.address()), &["--ca", &file, "--wait", "4s"]).await;
    ended.stopped_at(1, "connect", "accepts plaintext HTTP/2", "the endpoints are plaintext");

    control.set_endpoints("pay", &[backend.address(), dead]);
    let ended = doctor(&insecure(control.address()), &[]).await.fine();
    assert!(ended.text.contains("of 2 endpoints connected"), "{}", ended.text);
}

/// A71: the fallback control plane is used if the first is unreachable.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_control_plane() {
    let (control, _backend) = mesh().await;
    let (_held, dead) = closed_port();
    let server = |address: SocketAddr| json!({ "server_uri": address.to_string(), "channel_creds": [{ "type": "insecure" }] });
    let text = json!({ "xds_servers": [server(dead), server(control.address())], "node": { "id": "n" } });
    let ended = doctor(&text.to_string(), &[]).await.fine();
    assert!(ended.text.contains("✗ TCP        FAILED"), "{}", ended.text);
    assert!(
        ended.text.contains(&format!("the next control plane is {}", control.address())),
        "{}",
        ended.text
    );
}

/// Targets without a control plane.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_control_plane() {
    let backend = Backend::start().await;
    let port = backend.address().port();
    let ended = DoctorOutput::of(&run(vec![format!("dns:///localhost:{port}")]).await).fine();
    assert!(ended.text.starts_with("✓ DNS        ok T ms  localhost is "), "{}", ended.text);
    assert!(ended.text.contains("✓ HTTP/2     ok T ms  handshake completed\n"), "{}", ended.text);
    DoctorOutput::of(&run(vec![format!("ipv4:127.0.0.1:{port}")]).await).fine();
    let tls =
        vec![format!("ipv4:127.0.0.1:{port}"), "--tls".to_owned(), "--wait".to_owned(), "4s".to_owned()];
    let ended = DoctorOutput::of(&run(tls).await);
    ended.stopped_at(1, "TLS", "TLS handshake", "the client uses TLS, the port is plaintext");
    let folder = TempFolder::new();
    let socket = folder.path("no.sock").display().to_string();
    let ended = DoctorOutput::of(&run(vec![format!("unix:{socket}")]).await);
    ended.stopped_at(1, "TCP", "no.sock", "no such file");
}

/// `--json` contains the same texts.
#[tokio::test(flavor = "multi_thread")]
async fn as_json() {
    let (control, _backend) = mesh().await;
    control.set_endpoints("pay", &[]);
    let folder = TempFolder::new();
    let file = folder.file("bootstrap.json", &insecure(control.address()));
    let args = ["xds:///orders", "--bootstrap", &file, "--json"].map(str::to_owned).to_vec();
    let json = run(args).await.ends_with(1).json();
    assert_eq!((&json["ok"], &json["target"]), (&json!(false), &json!("xds:///orders")));
    let steps = json["steps"].as_array().expect("steps");
    let names: Vec<_> = steps.iter().filter_map(|step| step["step"].as_str()).collect();
    assert_eq!(names, ["bootstrap", "DNS", "TCP", "HTTP/2", "ADS", "LDS", "RDS", "CDS", "EDS"]);
    let last = &steps[names.len() - 1];
    assert_eq!((&last["ok"], &last["found"]), (&json!(false), &json!("pay: no endpoints")));
    assert!(last["ms"].is_u64() && last["next"].is_string(), "{last}");
}

/// Returns a cluster whose connections use mTLS with the certificate provider `own`.
fn secured_cluster(name: &str) -> Cluster {
    let provider = CertificateProviderPluginInstance {
        instance_name: "own".to_owned(),
        ..CertificateProviderPluginInstance::default()
    };
    let validation = CertificateValidationContext {
        ca_certificate_provider_instance: Some(provider.clone()),
        ..CertificateValidationContext::default()
    };
    cluster_with_tls(name, validation, Some(provider))
}

/// Returns a cluster whose `transport_socket` verifies servers by this context.
fn cluster_with_tls(
    name: &str,
    validation: CertificateValidationContext,
    identity: Option<CertificateProviderPluginInstance>,
) -> Cluster {
    let common = CommonTlsContext {
        tls_certificate_provider_instance: identity,
        validation_context_type: Some(ValidationContextType::ValidationContext(validation)),
        ..CommonTlsContext::default()
    };
    let context = UpstreamTlsContext { common_tls_context: Some(common), ..UpstreamTlsContext::default() };
    let socket = TransportSocket {
        name: "envoy.transport_sockets.tls".to_owned(),
        config_type: Some(ConfigType::TypedConfig(resources::any(&context))),
    };
    Cluster { transport_socket: Some(socket), ..resources::cluster(name) }
}

/// A cluster with the system's roots (A82) needs no certificate provider: its TLS applies. A warning states that a
/// channel with default credentials does not apply it.
#[tokio::test(flavor = "multi_thread")]
async fn the_systems_roots_of_a_cluster_are_used() {
    let (folder, ca) = (TempFolder::new(), Ca::new("ours"));
    let backend = Backend::builder().tls(tls_of(&ca, &["127.0.0.1"])).start().await;
    let control = ControlPlane::start().await;
    control.serve("orders", "pay", &[backend.address()]);
    let validation = CertificateValidationContext {
        system_root_certs: Some(SystemRootCerts {}),
        ..CertificateValidationContext::default()
    };
    control.set(cluster_with_tls("pay", validation, None));
    let file = folder.file("bootstrap.json", &insecure(control.address()));
    let roots = folder.file("roots.pem", &ca.pem());
    let run = move || {
        let mut command = command(["doctor", "xds:///orders", "--bootstrap", &file]);
        command.env("SSL_CERT_FILE", roots).env_remove("SSL_CERT_DIR").output().expect("it runs")
    };
    let output = tokio::task::spawn_blocking(run).await.expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(
        text.contains("! the cluster's TLS applies here, but not to a channel with default credentials"),
        "{text}"
    );
    assert!(text.contains("1 of 1 endpoints connected"), "{text}");
}

/// `--cert` and `--key` present a client certificate to endpoints, with and without a control plane.
#[tokio::test(flavor = "multi_thread")]
async fn client_certificates_for_endpoints() {
    let (folder, ca) = (TempFolder::new(), Ca::new("ours"));
    let mutual = Tls { client_ca: Some(ca.pem()), ..tls_of(&ca, &["orders", "127.0.0.1"]) };
    let backend = Backend::builder().tls(mutual).start().await;
    let control = ControlPlane::start().await;
    control.serve("orders", "pay", &[backend.address()]);
    let own = ca.issue_client(&["me"]);
    let roots = folder.file("ca.pem", &ca.pem());
    let cert = folder.file("tls.crt", &own.pem);
    let key = folder.file("tls.key", &own.key_pem);
    let of_client = ["--ca", &roots, "--cert", &cert, "--key", &key];

    let bootstrap = insecure(control.address());
    doctor(&bootstrap, &of_client).await.fine();
    let ended = doctor(&bootstrap, &["--ca", &roots, SOON[0], SOON[1]]).await;
    ended.stopped_at(1, "connect", "", "the TLS handshake with the endpoints fails");

    let plain = |options: &[&str]| {
        let target = format!("ipv4:{}", backend.address());
        run([target.as_str()].iter().chain(options).map(|arg| (*arg).to_owned()).collect())
    };
    DoctorOutput::of(&plain(&of_client).await).fine();
    let ended = DoctorOutput::of(&plain(&["--ca", &roots, SOON[0], SOON[1]]).await);
    ended.stopped_at(1, "TLS", "", "client certificate");
    let other = folder.file("other.key", &ca.issue_client(&["other"]).key_pem);
    let ended = DoctorOutput::of(&plain(&["--ca", &roots, "--cert", &cert, "--key", &other]).await);
    ended.stopped_at(2, "certificates", "other.key", "the key is that of another certificate");
    let alone = plain(&["--cert", &cert]).await.ends_with(2);
    assert!(alone.stderr.contains("--key <FILE>"), "{}", alone.stderr);
}

/// The cluster's security applies, and the files of the certificate providers are checked.
#[tokio::test(flavor = "multi_thread")]
async fn the_security_of_clusters_is_taken() {
    let (folder, ca) = (TempFolder::new(), Ca::new("ours"));
    let mutual = Tls { client_ca: Some(ca.pem()), ..tls_of(&ca, &["127.0.0.1"]) };
    let backend = Backend::builder().tls(mutual).start().await;
    let control = ControlPlane::start().await;
    control.serve("orders", "pay", &[backend.address()]);
    control.set(secured_cluster("pay"));
    let own = ca.issue_client(&["me"]);
    let files = |certificate: &str, key: &str| {
        let mut text: Value = serde_json::from_str(&insecure(control.address())).expect("JSON");
        text["certificate_providers"] = json!({ "own": { "plugin_name": "file_watcher", "config": {
            "ca_certificate_file": folder.file("ca.pem", &ca.pem()),
            "certificate_file": folder.file("tls.crt", certificate),
            "private_key_file": folder.file("tls.key", key),
        } } });
        text.to_string()
    };
    let ended = doctor(&files(&own.pem, &own.key_pem), &[]).await.fine();
    for text in [
        "✓ certs      ok T ms  \"own\": 1 roots, a certificate for ",
        "; secured by the cluster's transport_socket",
    ] {
        assert!(ended.text.contains(text), "{text} in:\n{}", ended.text);
    }
    let expired = ca.issue_expired(&["me"]);
    let other = ca.issue_client(&["other"]);
    for (certificate, key, problem) in [
        (&*expired.pem, &*expired.key_pem, "expired "),
        (&*own.pem, &*other.key_pem, "tls.key"),
        ("no certificate", &*own.key_pem, "tls.crt"),
    ] {
        let ended = doctor(&files(certificate, key), &SOON).await;
        let ended = ended.stopped_at(1, "connect", "", "the certificates for it cannot be used");
        let is_warned =
            |line: &str| line.starts_with("! certificate provider \"own\": ") && line.contains(problem);
        assert!(ended.text.lines().any(is_warned), "{problem} in:\n{}", ended.text);
    }
    // A missing file that no cluster needs is reported, and the checks continue.
    let plain = Backend::start().await;
    control.serve("orders", "pay", &[plain.address()]);
    control.set(resources::cluster("pay"));
    let missing = files(&own.pem, &own.key_pem).replace("tls.key", "missing.key");
    let ended = doctor(&missing, &[]).await.fine();
    assert!(ended.text.contains("missing.key"), "{}", ended.text);
}

/// Returns a listener as Istio sends it to Envoy.
fn envoy_listener(name: &str) -> Listener {
    Listener {
        name: name.to_owned(),
        address: Some(resources::address("0.0.0.0", 80)),
        filter_chains: vec![FilterChain::default()],
        ..Listener::default()
    }
}

/// A control plane that treats the client as Envoy, as Istio does without `GENERATOR: grpc`.
#[tokio::test(flavor = "multi_thread")]
async fn listeners_for_envoy() {
    let likely = "Istio does so for nodes without GENERATOR: grpc";
    let (control, _backend) = mesh().await;
    control.set(envoy_listener("orders"));
    let ended = doctor(&insecure(control.address()), &SOON).await;
    let ended = ended.stopped_at(1, "LDS", "api_listener", likely);
    assert!(ended.text.contains("\"metadata\": {\"GENERATOR\": \"grpc\"}"), "{}", ended.text);

    let others = vec![envoy_listener("0.0.0.0_80"), envoy_listener("virtualOutbound")];
    let control = control_plane_of(others).await;
    let ended = doctor(&insecure(control), &SOON).await;
    ended.stopped_at(1, "LDS", "listeners that it has: 0.0.0.0_80, virtualOutbound", likely);

    let mut text: Value = serde_json::from_str(&insecure(control)).expect("JSON");
    text["node"]["metadata"] = json!({ "GENERATOR": "grpc" });
    let ended = doctor(&text.to_string(), &SOON).await;
    ended.stopped_at(1, "LDS", "virtualOutbound", "has listeners for Envoy only");
}

/// The URI of a control plane cannot be an xDS target.
#[tokio::test(flavor = "multi_thread")]
async fn control_planes_that_are_xds_targets() {
    let nested = bootstrap("xds:///control", &json!({ "type": "insecure" }));
    let ended = doctor(&nested, &[]).await;
    ended.stopped_at(
        2,
        "bootstrap",
        "xds_servers[0].server_uri: \"xds:///control\" is an xDS target itself",
        "instead of the control plane's address",
    );
}
