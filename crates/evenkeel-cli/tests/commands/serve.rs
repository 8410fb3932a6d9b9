//! `evenkeel serve` with a real client: the printed bootstrap is enough to make calls, and edits of the file
//! redirect them.

use std::net::SocketAddr;
use std::process::Stdio;

use evenkeel::{Bootstrap, Channel, XdsClient};
use serde_json::Value;
use testkit::net::Backend;
use testkit::net::certs::Ca;
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;

use crate::common::{RunningCommand, TempFolder, command, evenkeel};

fn mesh(backends: &[&Backend]) -> String {
    let addresses: Vec<_> = backends.iter().map(|backend| format!("\"{}\"", backend.address())).collect();
    format!(
        "services:\n  orders: {{}}\nclusters:\n  orders:\n    policy: round_robin\n    endpoints: [{}]\n",
        addresses.join(", ")
    )
}

/// Creates a channel from the printed bootstrap.
fn channel(bootstrap: &str) -> Channel {
    let bootstrap = Bootstrap::from_json(bootstrap).expect("the bootstrap can be used");
    let client = XdsClient::builder(bootstrap).build();
    Channel::builder("xds:///orders").xds_client(client).build().expect("a channel")
}

/// Calls until this backend serves one.
async fn call_until(channel: &Channel, backend: &Backend) {
    let mut client = EchoClient::new(channel.clone());
    let calls = async {
        loop {
            let mut request = tonic::Request::new(EchoRequest::default());
            request.extensions_mut().insert(evenkeel::WaitForReady(true));
            let answer = client.unary(request).await.expect("an answer").into_inner();
            if answer.backend == backend.name() {
                return;
            }
        }
    };
    tokio::time::timeout(crate::common::MAX_WAIT, calls).await.expect("the backend is called");
}

/// Removes the quotes of a shell word.
fn unquoted(line: &str) -> String {
    let (_, quoted) = line.split_once("='").expect("a quote");
    quoted.strip_suffix('\'').expect("a quote at the end").to_owned()
}

/// The printed bootstrap leads a client to the backends. An edit of the file redirects it, an invalid edit
/// changes nothing, and both are reported.
// The client must run while the test blocks on lines.
#[tokio::test(flavor = "multi_thread")]
async fn the_printed_bootstrap_is_enough_and_the_file_steers() {
    let [one, other] = [Backend::start().await, Backend::start().await];
    let folder = TempFolder::new();
    let file = folder.file("mesh.yaml", &mesh(&[&one]));
    let mut serve = RunningCommand::start(["serve", &file, "--listen", "127.0.0.1:0", "--node", "it's me"]);
    let first = serve.line_with("Serving");
    assert!(first.starts_with(&format!("Serving {file} on 127.0.0.1:")), "{first}");
    assert!(first.ends_with(": 1 service, 1 cluster, 1 endpoint."), "{first}");
    assert_eq!(serve.line_with("Targets"), "Targets: xds:///orders");
    let export = serve.line_with("export GRPC_XDS_BOOTSTRAP_CONFIG=");
    let channel = channel(&unquoted(&export.replace(r"'\''", "\u{1}")).replace('\u{1}', "'"));

    call_until(&channel, &one).await;
    let connected = serve.line_with("connected");
    assert!(
        connected.contains("client 1") && connected.contains("node \"it's me\", evenkeel "),
        "{connected}"
    );
    serve.line_with("accepted endpoints, version 1");

    folder.file("mesh.yaml", &mesh(&[&other]));
    // The ACK may precede the line about the file.
    serve.lines_with(["read again: 1 service, 1 cluster, 1 endpoint", "accepted endpoints, version 2"]);
    call_until(&channel, &other).await;

    folder.file("mesh.yaml", "services:\n  orders: {cluster: nowhere}\n");
    let error = serve.line_with("mesh.yaml:2:");
    assert!(error.contains("services.orders") && error.contains("nowhere"), "{error}");
    serve.line_with("the edit is rejected; the previous version is still served");
    call_until(&channel, &other).await;

    folder.file("mesh.yaml", &mesh(&[&one, &other]));
    serve.line_with("read again: 1 service, 1 cluster, 2 endpoints");
    call_until(&channel, &one).await;

    drop(channel);
    assert!(serve.line_with("gone").contains("client 1"));
    serve.signal("INT");
    serve.line_with("stopped");
    assert_eq!(serve.end().code(), Some(0));
}

/// A host name is an endpoint: calls reach the server behind it. A name that cannot be resolved is reported with its
/// line, and the rest of the mesh is served.
// The client must run while the test blocks on lines.
#[tokio::test(flavor = "multi_thread")]
async fn host_names_are_endpoints() {
    let backend = Backend::start().await;
    let folder = TempFolder::new();
    let port = backend.address().port();
    let text = format!(
        "services:\n  orders: {{}}\nclusters:\n  orders:\n    endpoints:\n      - localhost:{port}\n      - does-not-exist.invalid:{port}\n"
    );
    let file = folder.file("mesh.yaml", &text);
    let mut serve = RunningCommand::start(["serve", &file, "--listen", "127.0.0.1:0"]);
    let first = serve.line_with("Serving");
    assert!(first.ends_with(": 1 service, 1 cluster, 1 endpoint."), "{first}");
    let channel = channel(&unquoted(&serve.line_with("export")));
    let error = serve.line_with("mesh.yaml:7:9: clusters.orders.endpoints[1]: ");
    assert!(error.contains("the host name \"does-not-exist.invalid\" cannot be resolved: "), "{error}");
    serve.line_with(
        "host names are looked up again every 5 s; their last addresses, if any, are still served",
    );
    call_until(&channel, &backend).await;

    // Both commands work without the network.
    evenkeel(["validate", &file]).ends_with(0);
    let explained = evenkeel(["explain", &file]).ends_with(0).stdout;
    for name in [format!("localhost:{port}"), format!("does-not-exist.invalid:{port}")] {
        assert!(explained.contains(&name), "{explained}");
    }
}

/// NACKs are reported with the client's error, also as JSON. SIGTERM ends the command with exit code 0.
// The client must run while the test blocks on lines.
#[tokio::test(flavor = "multi_thread")]
async fn a_rejection_is_reported() {
    let folder = TempFolder::new();
    let text = "services: {orders: {}}\nclusters: {orders: {policy: {myorg.Fastest: {}}, endpoints: [10.0.0.1:1]}}\n";
    let file = folder.file("mesh.yaml", text);
    let mut serve = RunningCommand::start(["serve", &file, "--listen", "127.0.0.1:0", "--json"]);
    let json = |line: String| -> Value { serde_json::from_str(&line).expect("a line is one JSON object") };
    let begin = json(serve.line_with("\"serving\""));
    assert_eq!(begin["targets"], serde_json::json!(["xds:///orders"]));
    let channel = channel(&begin["bootstrap"].to_string());
    channel.connect();
    let connected = json(serve.line_with("\"connected\""));
    assert_eq!((&connected["node"], &connected["client"]), (&begin["bootstrap"]["node"]["id"], &1.into()));
    let rejected = json(serve.line_with("\"rejected\""));
    assert_eq!(rejected["type"], "type.googleapis.com/envoy.config.cluster.v3.Cluster");
    let error = rejected["error"].as_str().expect("a text");
    assert!(error.contains("orders") && error.contains("myorg.Fastest"), "{error}");
    assert!(rejected["time"].as_f64().is_some_and(|time| time > 1.7e9), "{rejected}");

    folder.file("mesh.yaml", "clusters: 7\n");
    let bad = json(serve.line_with("\"bad_edit\""));
    assert_eq!((&bad["errors"][0]["path"], &bad["errors"][0]["line"]), (&"clusters".into(), &1.into()));
    folder.file("mesh.yaml", "services: {orders: {}}\nclusters: {orders: {endpoints: [10.0.0.1:1]}}\n");
    let [reloaded, accepted] = serve.lines_with(["\"reloaded\"", "config.cluster.v3.Cluster\""]).map(json);
    assert_eq!(reloaded["summary"], "1 service, 1 cluster, 1 endpoint");
    assert_eq!((&accepted["event"], &accepted["version"]), (&"accepted".into(), &2.into()));
    serve.signal("TERM");
    assert_eq!(json(serve.line_with("stopped"))["event"], "stopped");
    assert_eq!(serve.end().code(), Some(0));
}

/// Clients can read the bootstrap from the file of `--bootstrap-file`.
// The client must run while the test blocks on lines.
#[tokio::test(flavor = "multi_thread")]
async fn the_bootstrap_goes_to_a_file() {
    let folder = TempFolder::new();
    let backend = Backend::start().await;
    let file = folder.file("mesh.yaml", &mesh(&[&backend]));
    let path = folder.path("it's a bootstrap.json").into_os_string().into_string().expect("UTF-8");
    let mut serve =
        RunningCommand::start(["serve", &file, "--listen", "127.0.0.1:0", "--bootstrap-file", &path]);
    let export = serve.line_with("export GRPC_XDS_BOOTSTRAP=");
    assert_eq!(export.trim(), format!("export GRPC_XDS_BOOTSTRAP='{}'", path.replace('\'', r"'\''")));
    let channel = channel(&std::fs::read_to_string(&path).expect("the file is there"));
    call_until(&channel, &backend).await;
}

#[test]
fn what_cannot_be_served_ends_with_2() {
    let missing = evenkeel(["serve", "there-is-no-such-file.yaml", "--listen", "127.0.0.1:0"]).ends_with(2);
    assert!(missing.stderr.contains("there-is-no-such-file.yaml: cannot be read"), "{}", missing.stderr);
    let folder = TempFolder::new();
    let file = folder.file("mesh.yaml", "services:\n  orders: {cluster: nowhere}\n");
    let bad = evenkeel(["serve", &file, "--listen", "127.0.0.1:0"]).ends_with(2);
    assert!(bad.stderr.contains("mesh.yaml:2:"), "{}", bad.stderr);
    assert_eq!(bad.stdout, "");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let refused = evenkeel(["serve", &file, "--listen", &address]).ends_with(2);
    assert!(refused.stderr.contains(&format!("{address}: cannot listen")), "{}", refused.stderr);
    let outcome = evenkeel(["serve", &file, "--listen", "everywhere"]).ends_with(2);
    assert!(outcome.stderr.contains("--listen"), "{}", outcome.stderr);
}

/// The default address is on loopback. Listening on all interfaces prints a warning.
#[test]
fn other_machines_connect_only_if_enabled() {
    let help = evenkeel(["serve", "--help"]).ends_with(0).stdout;
    assert!(help.contains("[default: 127.0.0.1:18000]"), "{help}");
    let folder = TempFolder::new();
    let file = folder.file("mesh.yaml", "services: {a: {}}\nclusters: {a: {endpoints: [10.0.0.1:1]}}\n");
    let mut serve = RunningCommand::start(["serve", &file, "--listen", "0.0.0.0:0"]);
    serve.line_with("Any client that reaches this address can read the mesh");
    let export = serve.line_with("export");
    let bootstrap: Value = serde_json::from_str(&unquoted(&export)).expect("JSON");
    let uri: SocketAddr =
        bootstrap["xds_servers"][0]["server_uri"].as_str().expect("a uri").parse().expect("an address");
    assert!(uri.ip().is_loopback(), "{uri}");
}

/// The bootstrap has the address of `--advertise`, also in the file. Without it, a bootstrap for this machine is
/// printed with a hint.
#[test]
fn the_bootstrap_has_the_advertised_address() {
    let folder = TempFolder::new();
    let file = folder.file("mesh.yaml", "services: {a: {}}\nclusters: {a: {endpoints: [10.0.0.1:1]}}\n");
    let mut args = vec!["serve", &file, "--listen", "0.0.0.0:0"];
    let mut serve = RunningCommand::start(&args);
    serve.line_with("The bootstrap has the loopback address; set --advertise for clients on other machines.");
    drop(serve);

    args.extend(["--advertise", "mesh.example:18000"]);
    let mut serve = RunningCommand::start(&args);
    let bootstrap: Value = serde_json::from_str(&unquoted(&serve.line_with("export"))).expect("JSON");
    assert_eq!(bootstrap["xds_servers"][0]["server_uri"], "mesh.example:18000");
    assert!(!serve.lines().any(|line| line.contains("--advertise")));
    let path = folder.path("bootstrap.json").into_os_string().into_string().expect("UTF-8");
    args.pop();
    args.extend(["[2001:db8::1]:443", "--bootstrap-file", &path]);
    RunningCommand::start(&args).line_with("export");
    let bootstrap = std::fs::read_to_string(&path).expect("the file is there");
    let bootstrap: Value = serde_json::from_str(&bootstrap).expect("JSON");
    assert_eq!(bootstrap["xds_servers"][0]["server_uri"], "[2001:db8::1]:443");

    for invalid in ["http://mesh:18000", "mesh", "mesh:0", ":18000", "a b:1", "::1"] {
        let outcome = evenkeel(["serve", &file, "--advertise", invalid]).ends_with(2);
        let expected = "expected HOST:PORT without a scheme, such as mesh.example:18000";
        assert!(outcome.stderr.contains(expected), "{}", outcome.stderr);
    }
}

/// The printed bootstrap has TLS and the CA of the server, and a client needs nothing else. Rotated files are reported, and
/// apply to the next client.
// The client must run while the test blocks on lines.
#[tokio::test(flavor = "multi_thread")]
async fn tls_files_are_served_and_rotated() {
    let folder = TempFolder::new();
    let backend = Backend::start().await;
    let mesh = folder.file("mesh.yaml", &mesh(&[&backend]));
    let write = |ca: &Ca| {
        let cert = ca.issue(&["127.0.0.1"]);
        [("ca.crt", &ca.pem()), ("tls.crt", &cert.pem), ("tls.key", &cert.key_pem)]
            .map(|(name, text)| folder.file(name, text))
    };
    let [ca, certificate, key] = write(&Ca::new("first"));
    let mut args = vec!["serve", &mesh, "--listen", "127.0.0.1:0", "--tls-cert", &certificate];
    let missing = evenkeel(&args).ends_with(2);
    assert!(missing.stderr.contains("--tls-key"), "{}", missing.stderr);
    let exchanged = evenkeel(args.iter().chain(&["--tls-key", &ca])).ends_with(2);
    assert!(
        exchanged.stderr.contains(&format!("key file {ca:?}: has no private key")),
        "{}",
        exchanged.stderr
    );

    args.extend(["--tls-key", &key, "--bootstrap-ca", &ca]);
    let mut serve = RunningCommand::start(&args);
    let bootstrap = unquoted(&serve.line_with("export"));
    call_until(&channel(&bootstrap), &backend).await;

    folder.file("tls.key", "no key");
    serve.line_with("tls.key\": has no private key (PKCS#8, PKCS#1 or SEC1, and not encrypted)");
    serve.line_with("the previous TLS certificates stay in use");
    write(&Ca::new("second"));
    serve.line_with("TLS certificates read again");
    call_until(&channel(&bootstrap), &backend).await;
}

/// Each way to listen on all addresses has the warning that fits it.
#[test]
fn warnings_name_the_missing_security() {
    let folder = TempFolder::new();
    let mesh = folder.file("mesh.yaml", "services: {a: {}}\nclusters: {a: {endpoints: [10.0.0.1:1]}}\n");
    let ca = Ca::new("mesh");
    let cert = ca.issue(&["127.0.0.1"]);
    let [ca, certificate, key] = [("ca.crt", &ca.pem()), ("tls.crt", &cert.pem), ("tls.key", &cert.key_pem)]
        .map(|(name, text)| folder.file(name, text));
    let mut args = vec!["serve", &mesh, "--listen", "0.0.0.0:0", "--advertise", "mesh.example:1"];
    args.extend(["--tls-cert", &certificate, "--tls-key", &key]);
    let mut serve = RunningCommand::start(&args);
    serve.line_with(
        "Any client that reaches this address can read the mesh; --client-ca requires certificates.",
    );
    args.extend(["--client-ca", &ca]);
    let mut serve = RunningCommand::start(&args);
    serve.line_with("Clients must add certificate_file and private_key_file to the config of channel_creds.");
    serve.line_with("export");
    assert!(!serve.lines().any(|line| line.contains("Any client")));
}

/// A closed pipe ends the command.
#[test]
fn a_closed_pipe_ends_it_quietly() {
    let folder = TempFolder::new();
    let file = folder.file("mesh.yaml", "services: {a: {}}\nclusters: {a: {endpoints: [10.0.0.1:1]}}\n");
    let mut command = command(["serve", &file, "--listen", "127.0.0.1:0"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    // The first output may precede the close of the pipe, so edits cause further output.
    let end = std::time::Instant::now() + crate::common::MAX_WAIT;
    let mut edits = 0;
    while child.try_wait().expect("our child").is_none() {
        assert!(std::time::Instant::now() < end, "it does not end");
        edits += 1;
        folder.file(
            "mesh.yaml",
            &format!("services: {{a: {{}}}}\nclusters: {{a: {{endpoints: [10.0.0.1:{edits}]}}}}\n"),
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let output = child.wait_with_output().expect("it ended");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

/// Text that would clear the screen, move the cursor, change the text direction, or imitate a line of the
/// command.
const HOSTILE: &str = "x\x1b[2J\x1b]0;title\x07\r\n00:00:00Z  client 9  accepted endpoints, version 666\u{9b}31m\u{202e}\u{2028}\x7f";

/// Sends malicious text in every text field of a client's requests, and disconnects.
async fn hostile_client(address: &str) {
    use evenkeel_proto::envoy::config::core::v3::Node;
    use evenkeel_proto::envoy::config::core::v3::node::UserAgentVersionType;
    use evenkeel_proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
    use evenkeel_proto::google::rpc;
    use tokio_stream::StreamExt as _;

    let channel = tonic::transport::Endpoint::new(format!("http://{address}")).expect("an address");
    let mut client = tonic::client::Grpc::new(channel.connect().await.expect("a connection"));
    client.ready().await.expect("a connection");
    let (requests, stream) = tokio::sync::mpsc::unbounded_channel();
    let request = DiscoveryRequest {
        node: Some(Node {
            id: HOSTILE.to_owned(),
            user_agent_name: HOSTILE.to_owned(),
            user_agent_version_type: Some(UserAgentVersionType::UserAgentVersion(HOSTILE.to_owned())),
            ..Node::default()
        }),
        type_url: "type.googleapis.com/envoy.config.cluster.v3.Cluster".to_owned(),
        ..DiscoveryRequest::default()
    };
    requests.send(request.clone()).expect("an open stream");
    let path = http::uri::PathAndQuery::from_static(
        "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
    );
    let stream = tokio_stream::wrappers::UnboundedReceiverStream::new(stream);
    let codec = tonic_prost::ProstCodec::<DiscoveryRequest, DiscoveryResponse>::default();
    let mut responses =
        client.streaming(tonic::Request::new(stream), path, codec).await.expect("a stream").into_inner();
    let response = responses.next().await.expect("a response").expect("a response");
    let error = rpc::Status { code: 3, message: HOSTILE.to_owned(), ..rpc::Status::default() };
    requests
        .send(DiscoveryRequest { response_nonce: response.nonce, error_detail: Some(error), ..request })
        .expect("an open stream");
    // The server ends the stream after it has read the NACK.
    drop(requests);
    while let Some(Ok(_)) = responses.next().await {}
}

/// Returns true for characters that terminals do not display literally.
fn is_hazard(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A client's name and error texts cannot mislead a terminal or a reader of lines.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_text_of_clients_is_escaped() {
    let folder = TempFolder::new();
    let text = "services: {orders: {}}\nclusters: {orders: {endpoints: [10.0.0.1:1]}}\n";
    let file = folder.file("mesh.yaml", text);
    for options in [["--color", "never"], ["--color", "always"], ["--json", "--color=never"]] {
        let mut args = vec!["serve", &file, "--listen", "127.0.0.1:0"];
        args.extend(options);
        let mut serve = RunningCommand::start(args);
        let is_json = options[0] == "--json";
        let first = serve.line_with(if is_json { "serving" } else { "Serving" });
        let address = if is_json {
            serde_json::from_str::<Value>(&first).expect("JSON")["address"].as_str().expect("text").to_owned()
        } else {
            let (_, rest) = first.split_once(" on ").expect("an address");
            rest.split_once(": ").expect("a colon").0.to_owned()
        };
        tokio::time::timeout(crate::common::MAX_WAIT, hostile_client(&address)).await.expect("in time");
        let connected = serve.line_with("connected");
        let rejected = serve.line_with(if is_json { "\"rejected\"" } else { "REJECTED" });
        let gone = serve.line_with("gone");
        for line in [&connected, &rejected, &gone] {
            // Remove the command's own styles.
            let plain = ["0", "1", "2", "31", "32", "33"]
                .iter()
                .fold(line.clone(), |line, code| line.replace(&format!("\x1b[{code}m"), ""));
            assert!(!plain.chars().any(is_hazard), "{options:?}: {plain:?}");
            if is_json {
                serde_json::from_str::<Value>(line).expect("a line is one JSON object");
            }
        }
        if is_json {
            let json = serde_json::from_str::<Value>(&rejected).expect("JSON");
            assert_eq!((json["error"].as_str(), json["node"].as_str()), (Some(HOSTILE), Some(HOSTILE)));
        }
        serve.signal("INT");
        serve.line_with("stopped");
        // All lines have been read, so a forged one would be among them.
        assert!(!serve.lines().any(|line| line.starts_with("00:00:00Z")), "a line is forged");
    }
}
