//! `evenkeel validate` on files, and against control planes that are valid, invalid, silent or unreachable.

use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType};
use evenkeel_proto::envoy::config::route::v3::route::Action;
use evenkeel_proto::envoy::config::route::v3::route_action::HashPolicy;
use evenkeel_proto::envoy::config::route::v3::route_action::hash_policy::{Cookie, PolicySpecifier};
use evenkeel_proto::envoy::config::route::v3::{QueryParameterMatcher, RouteConfiguration};
use evenkeel_proto::prost::{Message as _, Name as _};
use evenkeel_proto::prost_types::Any;
use serde_json::json;
use testkit::net::certs::Ca;
use testkit::net::{ControlPlane, Tls};
use testkit::resources;

use crate::common::{TempFolder, command, evenkeel, evenkeel_with_input};

/// All problems of a bootstrap are reported at once, each with its line and column.
#[test]
fn a_bad_bootstrap_is_shown_where_it_is_bad() {
    let folder = TempFolder::new();
    let file = folder.file(
        "bootstrap.json",
        "{\n  \"xds_servers\": [\n    {\"server_uri\": \"localhost:18000\", \"channel_creds\": [{\"type\": \"none\"}]}\n  ],\n  \"node\": {\"id\": 7}\n}\n",
    );
    let outcome = evenkeel(["validate", &file]).ends_with(1);
    let expected = format!(
        "{file}:3:56: error: xds_servers[0].channel_creds: expected insecure or tls, found \"none\"\n\
         {file}:5:18: error: node.id: expected a string, found 7\n\
         {file}: 2 errors\n"
    );
    assert_eq!(outcome.stdout, expected);
    assert_eq!(outcome.stderr, "");
}

#[test]
fn a_valid_bootstrap_passes_with_warnings() {
    let folder = TempFolder::new();
    let server = |uri: &str| json!({ "server_uri": uri, "channel_creds": [{ "type": "insecure" }] });
    let local = json!({ "xds_servers": [server("localhost:18000")], "node": { "id": "n" } });
    let file = folder.file("local.json", &local.to_string());
    let outcome = evenkeel(["validate", &file]).ends_with(0);
    assert_eq!(outcome.stdout, format!("{file}: fine: 1 control plane, node \"n\"\n"));

    let remote = json!({ "xds_servers": [server("control.example:18000")], "node": { "id": "n" } });
    let file = folder.file("remote.json", &remote.to_string());
    let outcome = evenkeel(["validate", &file]).ends_with(0);
    let (warning, verdict) = outcome.stdout.split_once('\n').expect("two lines");
    assert!(
        warning.starts_with(&format!("{file}: warning: xds server \"control.example:18000\"")),
        "{warning}"
    );
    assert_eq!(verdict, format!("{file}: fine: 1 control plane, node \"n\"; 1 warning\n"));
}

/// Addresses and credentials that no channel can use are errors, at their positions. The prefix of a URL is a
/// warning.
#[test]
fn control_planes_that_no_channel_can_use() {
    let folder = TempFolder::new();
    let server = |uri: &str, kind: &str| json!({ "server_uri": uri, "channel_creds": [{ "type": kind }] });
    let bad = json!({ "xds_servers": [server("etcd:///a", "insecure"), server("a:1", "google_default")] });
    let file = folder.file("bad.json", &bad.to_string());
    let outcome = evenkeel(["validate", &file]).ends_with(1);
    for error in [
        "error: xds_servers[0].server_uri: \"etcd:///a\": expected host:port, dns:///host:port, ipv4:address:port, \
         ipv6:[address]:port or unix:/path, found scheme \"etcd\"\n",
        "error: xds_servers[1].channel_creds: expected insecure or tls, found \"google_default\"; google_default needs \
         access tokens, which are not supported\n",
        ": 2 errors\n",
    ] {
        assert!(outcome.stdout.contains(error), "{error} in:\n{}", outcome.stdout);
    }
    let url = json!({ "xds_servers": [server("https://localhost:18000", "insecure")] });
    let file = folder.file("url.json", &url.to_string());
    let outcome = evenkeel(["validate", &file]).ends_with(0);
    let warning = format!(
        "{file}: warning: xds_servers[0].server_uri: https:// has no effect; channel_creds are insecure, so the \
         connection is plaintext\n"
    );
    assert!(outcome.stdout.starts_with(&warning), "{}", outcome.stdout);
}

/// Malformed JSON is reported with the position of the syntax error, and treated as a bootstrap.
#[test]
fn broken_json_is_shown_where_it_breaks() {
    let folder = TempFolder::new();
    let file = folder.file("b.json", "{\n  \"xds_servers\": [}\n");
    let outcome = evenkeel(["validate", "--json", &file]).ends_with(1);
    let verdicts = outcome.json();
    assert_eq!(verdicts[0]["subject"], file);
    assert_eq!(verdicts[0]["summary"], json!(null));
    let finding = &verdicts[0]["findings"][0];
    assert_eq!((&finding["severity"], &finding["place"]), (&json!("error"), &json!([2, 19])));
    let text = finding["text"].as_str().expect("a text");
    assert!(text.starts_with("cannot be read as JSON: "), "{text}");
    assert!(!text.contains("line"), "the position is reported once: {text}");
}

#[test]
fn wrong_use_ends_with_2() {
    let missing = evenkeel(["validate", "there-is-no-such-file.yaml"]).ends_with(2);
    assert!(missing.stderr.contains("there-is-no-such-file.yaml: cannot be read"), "{}", missing.stderr);
    assert_eq!(missing.stdout, "");
    let folder = TempFolder::new();
    let file = folder.file("mesh.yaml", "services: {}\n");
    for args in [
        &["validate"][..],
        &["validate", "--server", "127.0.0.1:1"],
        &["validate", &file, "--server", "127.0.0.1:1", "--target", "xds:///orders"],
        &["validate", &file, "--kind", "poem"],
        &["validate", &file, "--no-such-flag"],
        &["validate", "--server", "127.0.0.1:1", "--target", "xds:///orders", "--wait", "soon"],
        &["validate", "--server", "127.0.0.1:1", "--target", "xds://nobody/orders"],
    ] {
        let outcome = evenkeel(args).ends_with(2);
        assert!(outcome.stderr.starts_with("error: "), "{args:?}: {}", outcome.stderr);
    }
}

/// Runs the command on a blocking thread, beside the control plane of the test.
async fn ask(control: &ControlPlane, more: &'static [&'static str]) -> crate::common::CommandOutput {
    let server = control.address().to_string();
    let run = move || {
        let args = ["validate", "--server", &server, "--target", "xds:///orders"];
        evenkeel(args.iter().chain(more))
    };
    tokio::task::spawn_blocking(run).await.expect("the command ran")
}

#[tokio::test]
async fn a_valid_control_plane_passes() {
    let control = ControlPlane::start().await;
    control.serve("orders", "pay", &["127.0.0.1:1".parse().expect("an address")]);
    let outcome = ask(&control, &["--node", "me"]).await.ends_with(0);
    let expected =
        "xds:///orders: fine: 1 listener, 1 route configuration, 1 cluster, 1 set of endpoints accepted\n";
    assert_eq!(outcome.stdout, expected);
    assert_eq!(outcome.stderr, "");
    let asked = control.requests();
    assert!(
        asked.iter().all(|request| request.node.as_ref().is_none_or(|node| node.id == "me")),
        "{asked:?}"
    );
    assert!(!asked.is_empty());
}

/// A cluster that clients would NACK is reported with all problems, and the NACK is sent to the control
/// plane.
#[tokio::test]
async fn invalid_resources_are_reported_with_paths() {
    let control = ControlPlane::start().await;
    control.serve("orders", "pay", &[]);
    control.set(Cluster {
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Static.into())),
        ..resources::cluster("pay")
    });
    let outcome = ask(&control, &[]).await.ends_with(1);
    let (finding, verdict) = outcome.stdout.split_once('\n').expect("two lines");
    assert!(finding.starts_with("xds:///orders: error: cluster \"pay\": NACKed: "), "{finding}");
    assert!(
        finding.contains("type: expected EDS, LOGICAL_DNS or an aggregate cluster, found STATIC"),
        "{finding}"
    );
    assert_eq!(verdict, "xds:///orders: 1 error\n");
    assert!(!control.nacks().is_empty());
}

/// Missing resources are reported after the timeout, also if the control plane sends nothing about them.
#[tokio::test]
async fn missing_resources_are_reported() {
    let control = ControlPlane::start().await;
    control.set(resources::listener_with_rds("orders", "routes"));
    let outcome = ask(&control, &["--wait", "2", "--json"]).await.ends_with(1);
    let verdict = &outcome.json()[0];
    let finding = json!({
        "severity": "error",
        "place": null,
        "resource": "route configuration \"routes\"",
        "path": "",
        "text": "was not sent in time",
    });
    assert_eq!(verdict["findings"], json!([finding]));
    assert_eq!(verdict["subject"], "xds:///orders");
}

/// `--bootstrap` selects the control planes.
#[tokio::test]
async fn the_control_planes_of_a_bootstrap_are_asked() {
    let control = ControlPlane::start().await;
    control.serve("orders", "pay", &["127.0.0.1:1".parse().expect("an address")]);
    let folder = TempFolder::new();
    let file = folder.file("bootstrap.json", &control.bootstrap("from-the-file"));
    let run = move || evenkeel(["validate", "--bootstrap", &file, "--target", "xds:///orders"]);
    tokio::task::spawn_blocking(run).await.expect("the command ran").ends_with(0);
    let nodes: Vec<_> = control.requests().into_iter().filter_map(|request| request.node).collect();
    assert!(nodes.iter().all(|node| node.id == "from-the-file") && !nodes.is_empty(), "{nodes:?}");
}

/// An unreachable control plane is not a finding if the fallback responds.
#[tokio::test]
async fn the_second_control_plane_is_asked_if_the_first_is_gone() {
    let [gone, control] = [ControlPlane::start().await, ControlPlane::start().await];
    gone.kill();
    control.serve("orders", "pay", &["127.0.0.1:1".parse().expect("an address")]);
    let servers = [gone.address(), control.address()]
        .map(|address| json!({ "server_uri": address, "channel_creds": [{ "type": "insecure" }] }));
    let folder = TempFolder::new();
    let file = folder.file("bootstrap.json", &json!({ "xds_servers": servers }).to_string());
    let run = move || evenkeel(["validate", "--bootstrap", &file, "--target", "xds:///orders"]);
    tokio::task::spawn_blocking(run).await.expect("the command ran").ends_with(0);
}

/// `--tls` verifies the certificate against the system's roots, here the CA of the test.
#[tokio::test]
async fn tls_is_spoken_if_asked_for() {
    let ca = Ca::new("the test's own");
    let cert = ca.issue(&["127.0.0.1"]);
    let tls = Tls { certificate: cert.pem, key: cert.key_pem, client_ca: None };
    let control = ControlPlane::start_with_tls(tls).await;
    control.serve("orders", "pay", &["127.0.0.1:1".parse().expect("an address")]);
    let folder = TempFolder::new();
    let roots = folder.file("roots.pem", &ca.pem());
    let other = folder.file("other.pem", &Ca::new("another").pem());
    let server = control.address().to_string();
    let run = move || {
        let ask = |roots: &str, tls: &[&str]| {
            let args = ["validate", "--server", &server, "--target", "xds:///orders"];
            let mut command = command(args.iter().chain(tls));
            command.env("SSL_CERT_FILE", roots).env_remove("SSL_CERT_DIR");
            command.output().expect("it runs").status.code()
        };
        [ask(&roots, &["--tls"]), ask(&other, &["--tls"]), ask(&roots, &[])]
    };
    let codes = tokio::task::spawn_blocking(run).await.expect("the command ran");
    assert_eq!(codes, [Some(0), Some(3), Some(3)]);
}

#[tokio::test]
async fn a_dead_control_plane_cannot_be_reached() {
    let control = ControlPlane::start().await;
    control.kill();
    let outcome = ask(&control, &[]).await.ends_with(3);
    let address = control.address();
    assert!(
        outcome.stderr.starts_with(&format!("error: no control plane responds ({address}): ")),
        "{}",
        outcome.stderr
    );
    assert!(outcome.stderr.contains("connection refused"), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, "");
}

/// A control plane that accepts the stream and sends nothing counts as reachable. The missing resources are
/// reported.
#[tokio::test]
async fn a_silent_control_plane_is_given_up() {
    let control = ControlPlane::start().await;
    control.silent(true);
    let outcome = ask(&control, &["--wait", "1"]).await.ends_with(1);
    let expected =
        "xds:///orders: error: listener \"orders\": was not sent in time\nxds:///orders: 1 error\n";
    assert_eq!(outcome.stdout, expected);
}

/// A valid mesh is summarized. The errors of an invalid one are reported with their positions.
#[test]
fn a_mesh_is_judged_by_its_yaml_first() {
    let folder = TempFolder::new();
    let good = folder.file(
        "good.yaml",
        "services:\n  orders: {}\n  carts: {cluster: orders}\nclusters:\n  orders:\n    endpoints: [10.0.0.1:1, {address: 10.0.0.2:1, health: draining}]\n",
    );
    let bad = folder.file(
        "bad.yaml",
        "services:\n  orders: {cluster: pay}\nclusters:\n  orders:\n    endpoints: [10.0.0.1]\n",
    );
    let outcome = evenkeel(["validate", &good]).ends_with(0);
    assert_eq!(outcome.stdout, format!("{good}: fine: 2 services, 1 cluster, 2 endpoints\n"));
    let outcome = evenkeel(["validate", &good, &bad]).ends_with(1);
    let lines: Vec<_> = outcome.stdout.lines().collect();
    assert!(lines[1].starts_with(&format!("{bad}:2:")), "{lines:?}");
    assert!(lines[1].contains(": error: services.orders.cluster: unknown cluster"), "{lines:?}");
    assert!(lines[2].starts_with(&format!("{bad}:5:")), "{lines:?}");
    assert!(lines[2].contains(": error: clusters.orders.endpoints[0]"), "{lines:?}");
    assert_eq!(lines.last(), Some(&format!("{bad}: 2 errors").as_str()));
}

/// A resource that clients would NACK is reported with its name, the field path and the position of the
/// policy in the file.
#[test]
fn resources_that_clients_would_nack_are_reported() {
    let folder = TempFolder::new();
    let file = folder.file(
        "mesh.yaml",
        "services:\n  orders: {}\nclusters:\n  orders:\n    policy: {myorg.Fastest: {}}\n    endpoints: [10.0.0.1:1]\n",
    );
    let outcome = evenkeel(["validate", "--json", &file]).ends_with(1);
    let findings = outcome.json()[0]["findings"].as_array().expect("findings").clone();
    assert_eq!(findings.len(), 1, "a cluster is reported once: {findings:?}");
    let finding = &findings[0];
    assert_eq!((&finding["severity"], &finding["place"]), (&json!("error"), &json!([5, 13])));
    assert_eq!(finding["resource"], "cluster \"orders\"");
    assert!(
        finding["path"].as_str().is_some_and(|path| path.starts_with("load_balancing_policy")),
        "{finding}"
    );
    let text = finding["text"].as_str().expect("a text");
    assert!(text.starts_with("would be NACKed: ") && text.contains("myorg.Fastest"), "{text}");
}

/// A valid cluster without a usable endpoint is an error.
#[test]
fn a_cluster_without_usable_endpoints_is_reported() {
    let folder = TempFolder::new();
    let file = folder.file(
        "mesh.yaml",
        "services:\n  orders: {}\nclusters:\n  orders:\n    endpoints: [{address: 10.0.0.1:1, health: unhealthy}]\n",
    );
    let outcome = evenkeel(["validate", &file]).ends_with(1);
    let first = outcome.stdout.lines().next().expect("a line");
    assert!(first.starts_with(&format!("{file}:4:3: error: clusters.orders: every call fails: ")), "{first}");
    assert!(first.contains("no healthy endpoints"), "{first}");
}

/// `--kind` sets the kind of a file. A mesh in JSON is detected without it.
#[test]
fn the_kind_of_a_file_can_be_set() {
    let folder = TempFolder::new();
    let mesh =
        json!({ "services": { "a": {} }, "clusters": { "a": { "endpoints": ["10.0.0.1:1"] } } }).to_string();
    let file = folder.file("mesh.json", &mesh);
    let outcome = evenkeel(["validate", &file]).ends_with(0);
    assert_eq!(outcome.stdout, format!("{file}: fine: 1 service, 1 cluster, 1 endpoint\n"));
    let outcome = evenkeel(["validate", "--kind", "bootstrap", &file]).ends_with(1);
    assert!(outcome.stdout.contains("xds_servers"), "{}", outcome.stdout);
}

/// Warnings of policies about their endpoints do not change the exit code.
#[test]
fn warnings_of_policies_are_reported() {
    let folder = TempFolder::new();
    let many: Vec<_> = (0..40).map(|i| format!("10.0.0.{i}:1")).collect();
    let endpoints = many.join(", ");
    let file = folder.file(
        "mesh.yaml",
        &format!(
            "services:\n  a: {{}}\nclusters:\n  a:\n    policy: {{ring_hash: {{min_ring_size: 1, max_ring_size: 8}}}}\n    endpoints: [{endpoints}]\n"
        ),
    );
    let outcome = evenkeel(["validate", &file]).ends_with(0);
    let (warning, verdict) = outcome.stdout.split_once('\n').expect("two lines");
    assert!(warning.starts_with(&format!("{file}:4:3: warning: clusters.a: ")), "{warning}");
    assert_eq!(verdict, format!("{file}: fine: 1 service, 1 cluster, 40 endpoints; 1 warning\n"));
}

/// A service whose resources are all accepted and whose calls all fail is an error.
#[tokio::test]
async fn targets_whose_calls_all_fail_are_reported() {
    let control = ControlPlane::start().await;
    let address = "127.0.0.1:1".parse().expect("an address");
    control.serve("orders", "pay", &[address]);
    let mut routes = resources::route_config("orders", "pay");
    routes.virtual_hosts[0].domains = vec!["other".to_owned()];
    control.set(routes);
    let outcome = ask(&control, &[]).await.ends_with(1);
    let first = outcome.stdout.lines().next().expect("a line");
    assert!(first.starts_with("xds:///orders: error: every call fails: "), "{first}");
    assert!(first.contains("virtual host"), "{first}");

    control.serve("orders", "pay", &[address]);
    let mut routes = resources::route_config("orders", "pay");
    routes.virtual_hosts[0].routes.clear();
    control.set(routes);
    let outcome = ask(&control, &[]).await.ends_with(1);
    assert!(outcome.stdout.contains("every call fails: no route leads to a cluster"), "{}", outcome.stdout);

    control.serve("orders", "pay", &[]);
    let outcome = ask(&control, &[]).await.ends_with(1);
    let first = outcome.stdout.lines().next().expect("a line");
    assert!(first.starts_with("xds:///orders: error: cluster \"pay\": every call fails: "), "{first}");
    assert!(first.ends_with("xDS node id \"evenkeel-validate\")"), "{first}");
}

/// Ignored fields of accepted resources are warnings: fields that the parser decodes, and fields that it
/// skips.
#[tokio::test]
async fn ignored_fields_are_warned_about() {
    let control = ControlPlane::start().await;
    control.serve("orders", "pay", &["127.0.0.1:1".parse().expect("an address")]);
    let mut routes = resources::route_config("orders", "pay");
    let host = &mut routes.virtual_hosts[0];
    let mut by_query = host.routes[0].clone();
    let parameter = QueryParameterMatcher { name: "q".to_owned(), ..QueryParameterMatcher::default() };
    by_query.r#match.as_mut().expect("a match").query_parameters = vec![parameter];
    let Some(Action::Route(action)) = &mut host.routes[0].action else { panic!("a route") };
    let cookie = Cookie { name: "c".to_owned(), ..Cookie::default() };
    let policy =
        HashPolicy { policy_specifier: Some(PolicySpecifier::Cookie(cookie)), ..HashPolicy::default() };
    action.hash_policy = vec![policy];
    host.routes.insert(0, by_query);
    let mut value = routes.encode_to_vec();
    // `request_headers_to_add` and `request_mirror_policies` of the route configuration, both empty.
    value.extend_from_slice(&[6 << 3 | 2, 0, 13 << 3 | 2, 0]);
    control.set_raw::<RouteConfiguration>("orders", Any { type_url: RouteConfiguration::type_url(), value });
    let outcome = ask(&control, &[]).await.ends_with(0);
    for (path, reason) in [
        ("virtual_hosts[0].routes[0].match.query_parameters", "the route is skipped"),
        ("virtual_hosts[0].routes[1].route.hash_policy[0]", "yields no hash"),
        ("request_headers_to_add", "gRPC clients change no headers"),
        ("request_mirror_policies", "gRPC clients mirror no calls"),
    ] {
        let is_told = |line: &str| {
            line.starts_with("xds:///orders: warning: route configuration \"orders\": ")
                && line.contains(path)
                && line.contains(reason)
        };
        assert!(outcome.stdout.lines().any(is_told), "{path} in:\n{}", outcome.stdout);
    }
    assert!(outcome.stdout.ends_with("; 4 warnings\n"), "{}", outcome.stdout);
}

/// A control plane with an xDS target as URI is unsupported, and so is a target without a control plane.
#[test]
fn unsupported_control_planes_are_reported() {
    let folder = TempFolder::new();
    let text = "{\"xds_servers\": [\n  {\"server_uri\": \"xds:///control\", \"channel_creds\": [{\"type\": \"insecure\"}]}]}";
    let file = folder.file("bootstrap.json", text);
    let outcome = evenkeel(["validate", &file]).ends_with(1);
    let first = outcome.stdout.lines().next().expect("a line");
    assert!(first.starts_with(&format!("{file}:2:18: error: xds_servers[0].server_uri: ")), "{first}");
    assert!(first.contains("\"xds:///control\" is an xDS target itself; expected the address"), "{first}");
    let outcome = evenkeel(["validate", "--target", "xds:///orders"]).ends_with(2);
    assert!(outcome.stderr.contains("--server HOST:PORT, or --bootstrap FILE"), "{}", outcome.stderr);
}

/// The path `-` is standard input, for both kinds of files.
#[test]
fn standard_input_is_validated() {
    let mesh = "services:\n  orders: {}\nclusters:\n  orders:\n    endpoint: []\n";
    let invalid = evenkeel_with_input(["validate", "-"], mesh).ends_with(1).stdout;
    assert!(invalid.starts_with("<stdin>:5:5: error: clusters.orders.endpoint: unknown key"), "{invalid}");
    let bootstrap = r#"{"xds_servers": [{"server_uri": "a:1", "channel_creds": [{"type": "tls"}]}]}"#;
    let valid = evenkeel_with_input(["validate", "-"], bootstrap).ends_with(0).stdout;
    assert!(valid.starts_with("<stdin>: fine: 1 control plane"), "{valid}");
    let twice = evenkeel_with_input(["validate", "-", "-"], bootstrap).ends_with(2).stderr;
    assert!(twice.contains("standard input can be read only once"), "{twice}");
}
