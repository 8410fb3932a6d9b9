//! The bootstrap: its fields, their defaults, and the errors of an invalid one.

mod targets;

use std::cell::RefCell;
use std::error::Error as _;
use std::io;
use std::time::Duration;

use evenkeel_proto::envoy::config::core::v3::Locality;
use evenkeel_proto::envoy::config::core::v3::node::UserAgentVersionType;
use evenkeel_proto::prost_types::value::Kind;
use evenkeel_xds::bootstrap::{
    Bootstrap, BootstrapError, CertificateFiles, CertificateProvider, ChannelCredentials, IdentityFiles,
    ServerFeatures,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn read(bootstrap: &Value) -> Bootstrap {
    Bootstrap::from_json(&bootstrap.to_string()).unwrap_or_else(|error| panic!("{error}\nin {bootstrap}"))
}

/// Returns the errors of a bootstrap, without the word that every error starts with.
fn problems(bootstrap: &Value) -> String {
    problems_of_text(&bootstrap.to_string())
}

fn problems_of_text(text: &str) -> String {
    let error = Bootstrap::from_json(text).expect_err(text).to_string();
    error.strip_prefix("bootstrap: ").expect("the prefix of every error").to_owned()
}

/// Minimal valid server config.
fn server(uri: &str) -> Value {
    json!({"server_uri": uri, "channel_creds": [{"type": "insecure"}]})
}

/// Returns a valid bootstrap with one field replaced.
fn with(field: &str, value: Value) -> Value {
    let mut all = json!({"xds_servers": [server("localhost:18000")]});
    all[field] = value;
    all
}

/// Returns a valid bootstrap with one field of its server replaced.
fn with_server(field: &str, value: Value) -> Value {
    let mut all = json!({"xds_servers": [server("localhost:18000")]});
    all["xds_servers"][0][field] = value;
    all
}

fn uris(servers: &[std::sync::Arc<evenkeel_xds::bootstrap::ServerConfig>]) -> Vec<&str> {
    servers.iter().map(|server| &*server.uri).collect()
}

/// Returns a bootstrap with every field, and with unknown fields.
fn whole() -> Value {
    json!({
        "xds_servers": [
            {
                "server_uri": "dns:///xds.example.com:443",
                "channel_creds": [
                    {"type": "alts"},
                    {"type": "tls", "config": {
                        "ca_certificate_file": "/ca.pem", "certificate_file": "/cert.pem",
                        "private_key_file": "/key.pem", "refresh_interval": "90.5s", "later": 1,
                    }},
                    {"type": "insecure"},
                ],
                "server_features": ["xds_v3", "trusted_xds_server", 7, null, {"a": []}, "newer"],
                "later": {"x": 1},
            },
            {"server_uri": "localhost:443", "channel_creds": [{"type": "google_default", "config": {}}, {"type": "insecure"}]},
        ],
        "node": {
            "id": "orders-7", "cluster": "shop", "locality": {"region": "eu", "zone": "eu-1", "sub_zone": "b"},
            "metadata": {"a": "x", "n": 1.5, "b": true, "z": null, "l": [1, {"m": "y"}]},
            "user_agent_name": "someone else", "build_version": "7", "client_features": ["none"],
        },
        "authorities": {
            "eu.example.com": {"xds_servers": [server("localhost:1")]},
            "us.example.com": {
                "client_listener_resource_name_template":
                    "xdstp://us.example.com/envoy.config.listener.v3.Listener/client/%s?project=7",
                "xds_servers": [],
            },
        },
        "certificate_providers": {
            "default": {"plugin_name": "file_watcher", "config": {"ca_certificate_file": "/roots.pem"}},
        },
        "client_default_listener_resource_name_template": "listeners/%s",
        "server_listener_resource_name_template": "servers/%s",
        "later": [],
    })
}

/// BS-1, BS-2, BS-3, BS-5, BS-6: a bootstrap with every field is parsed, and unknown fields change nothing.
#[test]
fn a_whole_bootstrap_is_read() {
    let bootstrap = read(&whole());
    assert_eq!(uris(&bootstrap.servers), ["dns:///xds.example.com:443", "localhost:443"]);
    let files = CertificateFiles {
        ca_certificate_file: Some("/ca.pem".to_owned()),
        identity: Some(IdentityFiles {
            certificate_file: "/cert.pem".to_owned(),
            private_key_file: "/key.pem".to_owned(),
        }),
        refresh_interval: Duration::from_millis(90_500),
    };
    assert_eq!(bootstrap.servers[0].credentials, ChannelCredentials::Tls(files));
    assert_eq!(bootstrap.servers[1].credentials, ChannelCredentials::Insecure);
    let trusted = ServerFeatures { trusted_xds_server: true, ..ServerFeatures::default() };
    assert_eq!(bootstrap.servers[0].features, trusted);
    assert_eq!(bootstrap.servers[1].features, ServerFeatures::default());
    let roots = CertificateFiles {
        ca_certificate_file: Some("/roots.pem".to_owned()),
        identity: None,
        refresh_interval: Duration::from_secs(600),
    };
    let providers: Vec<_> = bootstrap.certificate_providers.iter().collect();
    assert_eq!(providers, [(&"default".to_owned(), &CertificateProvider::FileWatcher(roots))]);
    assert_eq!(bootstrap.client_default_listener_resource_name_template, "listeners/%s");
    assert_eq!(bootstrap.server_listener_resource_name_template.as_deref(), Some("servers/%s"));
    assert_eq!(bootstrap.warnings(), Vec::<String>::new());
}

/// BS-4: the node of the bootstrap is sent with the client's user agent and features.
#[test]
fn the_node_carries_the_user_agent() {
    let node = read(&whole()).node;
    assert_eq!((node.id.as_str(), node.cluster.as_str()), ("orders-7", "shop"));
    let locality = Locality { region: "eu".to_owned(), zone: "eu-1".to_owned(), sub_zone: "b".to_owned() };
    assert_eq!(node.locality, Some(locality));
    let metadata = node.metadata.unwrap().fields;
    let kind = |name: &str| metadata[name].kind.clone().unwrap();
    assert_eq!(kind("a"), Kind::StringValue("x".to_owned()));
    assert_eq!(kind("n"), Kind::NumberValue(1.5));
    assert_eq!(kind("b"), Kind::BoolValue(true));
    assert_eq!(kind("z"), Kind::NullValue(0));
    let Kind::ListValue(list) = kind("l") else { panic!("a list") };
    let Some(Kind::StructValue(inner)) = &list.values[1].kind else { panic!("an object") };
    assert_eq!(inner.fields["m"].kind, Some(Kind::StringValue("y".to_owned())));
}

/// BS-4: user agent and client features are the client's own, even if the bootstrap sets them. All other fields of
/// the node are optional.
#[test]
fn the_client_sets_its_user_agent_itself() {
    let bare = [
        json!({}),
        json!(null),
        json!({"locality": {}}),
        json!({"id": null, "cluster": "", "locality": {"region": ""}}),
    ];
    for node in bare.into_iter().chain([whole()["node"].clone()]) {
        let is_bare = node.get("metadata").is_none();
        let node = read(&with("node", node)).node;
        assert_eq!(node.user_agent_name, "evenkeel");
        let version = UserAgentVersionType::UserAgentVersion(env!("CARGO_PKG_VERSION").to_owned());
        assert_eq!(node.user_agent_version_type, Some(version));
        let features = ["envoy.lb.does_not_support_overprovisioning", "xds.config.resource-in-sotw"];
        assert_eq!(node.client_features, features);
        assert_eq!(node.locality.is_none() && node.metadata.is_none() && node.id.is_empty(), is_bare);
    }
    assert_eq!(read(&json!({"xds_servers": [server("a")]})).node.user_agent_name, "evenkeel");
    let camel = read(&with("node", json!({"locality": {"subZone": "c"}}))).node;
    assert_eq!(camel.locality.unwrap().sub_zone, "c");
}

/// BS-1: `GRPC_XDS_BOOTSTRAP` takes precedence over `GRPC_XDS_BOOTSTRAP_CONFIG`.
#[test]
fn the_file_wins_over_the_text() {
    // File variable, inline variable, files that are read, and the expected servers or error.
    type Case<'a> = (&'a str, &'a str, &'a [&'a str], Result<&'a str, &'a str>);
    let file = json!({"xds_servers": [server("of-file:1")]}).to_string();
    let text = json!({"xds_servers": [server("of-text:1")]}).to_string();
    let cases: &[Case<'_>] = &[
        ("/b.json", &text, &["/b.json"], Ok("of-file:1")),
        ("/b.json", "", &["/b.json"], Ok("of-file:1")),
        ("", &text, &[], Ok("of-text:1")),
        (
            "",
            "",
            &[],
            Err(
                "bootstrap: set GRPC_XDS_BOOTSTRAP to the name of a file, or GRPC_XDS_BOOTSTRAP_CONFIG to the JSON itself",
            ),
        ),
        (
            "/none",
            &text,
            &["/none"],
            Err("bootstrap: file \"/none\" (GRPC_XDS_BOOTSTRAP): cannot be read: entity not found"),
        ),
        (
            "/bad",
            &text,
            &["/bad"],
            Err(
                "bootstrap: file \"/bad\" (GRPC_XDS_BOOTSTRAP): xds_servers: is required: a list with at least one control plane",
            ),
        ),
        (
            "",
            "{}",
            &[],
            Err(
                "bootstrap: GRPC_XDS_BOOTSTRAP_CONFIG: xds_servers: is required: a list with at least one control plane",
            ),
        ),
    ];
    for (name, inline, expected_reads, expected) in cases {
        let reads = RefCell::new(Vec::new());
        let variable = |asked: &str| match asked {
            "GRPC_XDS_BOOTSTRAP" => (!name.is_empty()).then(|| (*name).to_owned()),
            // An empty variable counts as unset.
            "GRPC_XDS_BOOTSTRAP_CONFIG" => Some((*inline).to_owned()),
            other => panic!("{other} is not ours"),
        };
        let read = |path: &str| {
            reads.borrow_mut().push(path.to_owned());
            match path {
                "/b.json" => Ok(file.clone()),
                "/bad" => Ok("{}".to_owned()),
                _ => Err(io::Error::from(io::ErrorKind::NotFound)),
            }
        };
        let loaded = Bootstrap::load(variable, read);
        assert_eq!(*reads.borrow(), *expected_reads);
        assert_eq!(
            loaded.as_ref().is_err_and(BootstrapError::is_unset),
            name.is_empty() && inline.is_empty()
        );
        if let Err(error) = &loaded {
            // The chain of sources repeats the end of the message.
            let cause = error.source().map(ToString::to_string);
            assert_eq!(cause.is_none(), error.is_unset(), "{error}");
            assert!(error.to_string().ends_with(&cause.unwrap_or_default()), "{error}");
        }
        let loaded = loaded.map_err(|error| error.to_string());
        let loaded = loaded.as_ref().map(|bootstrap| &*bootstrap.servers[0].uri).map_err(String::as_str);
        assert_eq!(loaded, *expected);
    }
}

/// BS-2: the first supported type of credentials is used, and the entries after it are not validated.
#[test]
fn the_first_supported_credentials_are_used() {
    let files = |ca: Option<&str>, seconds| {
        ChannelCredentials::Tls(CertificateFiles {
            ca_certificate_file: ca.map(str::to_owned),
            identity: None,
            refresh_interval: Duration::from_secs(seconds),
        })
    };
    let cases = [
        (json!([{"type": "insecure"}]), ChannelCredentials::Insecure),
        (
            json!([{"type": "x"}, {"type": "google_default"}, {"type": "insecure"}]),
            ChannelCredentials::Insecure,
        ),
        (json!([{"type": "insecure", "config": "any"}, {"type": "tls"}]), ChannelCredentials::Insecure),
        (
            json!([{"type": "insecure"}, {"type": "tls", "config": {"certificate_file": "a"}}]),
            ChannelCredentials::Insecure,
        ),
        (json!([{"type": "tls"}]), files(None, 600)),
        (json!([{"type": "tls", "config": null}]), files(None, 600)),
        (json!([{"type": "tls", "config": {}}]), files(None, 600)),
        (
            json!([{"type": "tls", "config": {"certificate_file": "", "private_key_file": ""}}]),
            files(None, 600),
        ),
        (
            json!([{"type": "tls", "config": {"ca_certificate_file": "r", "refresh_interval": "5s"}}]),
            files(Some("r"), 5),
        ),
    ];
    for (credentials, expected) in cases {
        let bootstrap = read(&with_server("channel_creds", credentials.clone()));
        assert_eq!(bootstrap.servers[0].credentials, expected, "{credentials}");
    }
}

/// BS-3: known server features are applied, and unknown ones are ignored.
#[test]
fn known_features_count_and_others_do_not() {
    let none = ServerFeatures::default();
    let cases = [
        (json!(null), none),
        (json!([]), none),
        (json!(["xds_v3"]), none),
        (json!(["x", 1, true, null, [], {"ignore_resource_deletion": true}]), none),
        (json!(["ignore_resource_deletion"]), ServerFeatures { ignore_resource_deletion: true, ..none }),
        (json!(["trusted_xds_server"]), ServerFeatures { trusted_xds_server: true, ..none }),
        (json!(["fail_on_data_errors"]), ServerFeatures { fail_on_data_errors: true, ..none }),
        (
            json!(["x", "resource_timer_is_transient_error"]),
            ServerFeatures { resource_timer_is_transient_error: true, ..none },
        ),
    ];
    for (features, expected) in cases {
        let bootstrap = read(&with_server("server_features", features.clone()));
        assert_eq!(bootstrap.servers[0].features, expected, "{features}");
        assert_eq!(bootstrap.warnings(), Vec::<String>::new(), "{features}");
    }
}

/// Error text of a missing string.
const MISSING: &str = ": is required: a string that is not empty";

/// Checks the error of each value at a path of a bootstrap.
fn check(place: &str, around: &dyn Fn(Value) -> Value, cases: &[(Value, &str)]) {
    for (value, problem) in cases {
        let bootstrap = around(value.clone());
        assert_eq!(problems(&bootstrap), format!("{place}{problem}"), "{bootstrap}");
    }
}

/// BS-2, BS-3: every invalid field of a server is reported with its path, the expected and the actual value.
#[test]
fn broken_servers_are_reported_with_their_paths() {
    check(
        "",
        &|value| value,
        &[
            (json!([]), "expected an object, found an empty list"),
            (json!("x"), "expected an object, found \"x\""),
            (json!({}), "xds_servers: is required: a list with at least one control plane"),
        ],
    );
    check(
        "xds_servers",
        &|value| json!({"xds_servers": value}),
        &[
            (json!(null), ": is required: a list with at least one control plane"),
            (json!([]), ": is required: a list with at least one control plane"),
            (json!({}), ": expected a list, found an object"),
            (json!(["a:1"]), "[0]: expected an object, found \"a:1\""),
        ],
    );
    check(
        "xds_servers[0].server_uri",
        &|value| with_server("server_uri", value),
        &[(json!(null), MISSING), (json!(""), MISSING), (json!(443), ": expected a string, found 443")],
    );
    check(
        "xds_servers[0].server_features",
        &|value| with_server("server_features", value),
        &[(json!("xds_v3"), ": expected a list, found \"xds_v3\"")],
    );
    check(
        "xds_servers[0].channel_creds",
        &|value| with_server("channel_creds", value),
        &[
            (json!(null), ": is required: a list with insecure or tls"),
            (json!([]), ": is required: a list with insecure or tls"),
            (json!("tls"), ": expected a list, found \"tls\""),
            (json!(["tls"]), "[0]: expected an object, found \"tls\""),
            (json!([{"type": "x"}, {"type": "TLS"}]), ": expected insecure or tls, found \"x\", \"TLS\""),
            (json!([{"type": "insecure"}, {"type": 7}]), "[1].type: expected a string, found 7"),
            (json!([{"type": "x"}, {}]), &format!("[1].type{MISSING}")),
        ],
    );
    let tls =
        |config| with_server("channel_creds", json!([{"type": "x"}, {"type": "tls", "config": config}]));
    check(
        "xds_servers[0].channel_creds[1].config",
        &tls,
        &[
            (json!([]), ": expected an object, found an empty list"),
            (json!({"certificate_file": "c"}), ".private_key_file: is required beside certificate_file"),
            (json!({"private_key_file": "k"}), ".certificate_file: is required beside private_key_file"),
            (
                json!({"certificate_file": "c", "private_key_file": true}),
                ".private_key_file: expected a string, found true",
            ),
            (
                json!({"refresh_interval": 9}),
                ".refresh_interval: expected a duration above zero such as \"1.5s\", found 9",
            ),
        ],
    );
}

/// BS-2, FED-1: the URI of a control plane cannot be an xDS target, because resolving it would need a control plane.
/// The error names the field and the accepted forms, for the servers of an authority too.
#[test]
fn control_planes_that_are_xds_targets_are_refused() {
    const REMEDY: &str = "is an xDS target itself; expected the address of a control plane: HOST:PORT, dns:///HOST:PORT or unix:/path";
    for uri in ["xds:///control", "xds://authority/control", "xds:control", "XDS:///control", "xds:18000"] {
        let problem = format!("server_uri: {uri:?} {REMEDY}");
        let alone = json!({"xds_servers": [server(uri)]});
        assert_eq!(problems(&alone), format!("xds_servers[0].{problem}"));
        // A valid first server does not make an invalid fallback valid.
        let second = json!({"xds_servers": [server("localhost:18000"), server(uri)]});
        assert_eq!(problems(&second), format!("xds_servers[1].{problem}"));
        let authority = with("authorities", json!({"eu.example.com": {"xds_servers": [server(uri)]}}));
        assert_eq!(problems(&authority), format!("authorities[\"eu.example.com\"].xds_servers[0].{problem}"));
    }
    // The name of the scheme is valid as a host name.
    for uri in ["dns:///xds:18000", "dns:xds", "xds", "xds.example.com:443", "unix:/run/xds:1.sock"] {
        assert_eq!(uris(&read(&json!({"xds_servers": [server(uri)]})).servers), [uri]);
    }
}

/// BS-2, FED-1: the prefixes `http://` and `https://` of a server's URI are ignored with a warning. The credentials
/// decide on TLS, so neither prefix weakens or changes them.
#[test]
fn urls_of_control_planes_are_accepted_without_their_scheme() {
    let plain = "channel_creds are insecure, so the connection is plaintext";
    let tls = "channel_creds are tls, so the connection uses TLS";
    for (uri, kind, address, warning) in [
        ("http://localhost:18000", "insecure", "localhost:18000", format!("http:// has no effect; {plain}")),
        ("HTTP://localhost:18000/", "insecure", "localhost:18000", format!("http:// has no effect; {plain}")),
        (
            "https://localhost:18000",
            "insecure",
            "localhost:18000",
            format!("https:// has no effect; {plain}"),
        ),
        ("https://xds.example.com", "tls", "xds.example.com", format!("https:// has no effect; {tls}")),
        ("http://[::1]:18000", "tls", "[::1]:18000", format!("http:// has no effect; {tls}")),
    ] {
        let server = json!({"server_uri": uri, "channel_creds": [{"type": kind}]});
        let bootstrap = read(&json!({"xds_servers": [server]}));
        assert_eq!(uris(&bootstrap.servers), [address]);
        assert_eq!(bootstrap.servers[0].credentials == ChannelCredentials::Insecure, kind == "insecure");
        assert_eq!(bootstrap.warnings(), [format!("xds_servers[0].server_uri: {warning}")]);
        let authority = with("authorities", json!({"a.com": {"xds_servers": [server]}}));
        let path = "authorities[\"a.com\"].xds_servers[0].server_uri";
        assert_eq!(read(&authority).warnings(), [format!("{path}: {warning}")]);
    }
    // Both spellings are one server, which has one stream.
    let both = json!({"xds_servers": [server("http://localhost:1"), server("localhost:1")]});
    let both = read(&both);
    assert_eq!(both.servers[0], both.servers[1]);
}

/// BS-2, FED-1: a URI that is not a valid target is rejected with the field, the value and the accepted forms.
#[test]
fn control_planes_without_a_valid_address_are_refused() {
    const FORMS: &str =
        "expected host:port, dns:///host:port, ipv4:address:port, ipv6:[address]:port or unix:/path";
    const ADDRESS: &str =
        "expected the address of a control plane: HOST:PORT, dns:///HOST:PORT or unix:/path";
    let name = "expected a host name of ASCII letters, digits, '-' and '_', at most 63 between dots, found";
    let port = "expected a port from 1 to 65535 behind the host, found";
    for (uri, problem) in [
        ("etcd:///control", format!("{FORMS}, found scheme \"etcd\"")),
        ("passthrough:///control:1", format!("{FORMS}, found scheme \"passthrough\"")),
        ("unix-abstract:xds", "abstract sockets are not supported; expected unix:/path".to_owned()),
        ("control plane:18000", format!("{name} \"control plane\"")),
        ("control:", format!("{port} \"\"")),
        ("control:grpc", format!("{port} \"grpc\"")),
        ("control:18000/v3", format!("{port} \"18000/v3\"")),
        (
            "dns://8.8.8.8/control:1",
            "expected dns:///..., found \"8.8.8.8\": a name server is not supported".to_owned(),
        ),
        ("http://", FORMS.to_owned()),
        ("http://control", format!("has no port; {ADDRESS}")),
        ("http://unix:/run/xds", format!("has no port; {ADDRESS}")),
        ("https://control:18000/v3", format!("{port} \"18000/v3\"")),
        ("%zz", "\"%zz\": expected two hexadecimal digits after each %".to_owned()),
    ] {
        let alone = json!({"xds_servers": [server(uri)]});
        assert_eq!(problems(&alone), format!("xds_servers[0].server_uri: {uri:?}: {problem}"));
        let authority = with("authorities", json!({"a.com": {"xds_servers": [server(uri)]}}));
        let path = "authorities[\"a.com\"].xds_servers[0].server_uri";
        assert_eq!(problems(&authority), format!("{path}: {uri:?}: {problem}"));
    }
}

/// BS-4, BS-5, BS-6, FED-1: every other invalid field is reported with its path, the expected and the actual value.
#[test]
fn broken_fields_are_reported_with_their_paths() {
    check(
        "node",
        &|value| with("node", value),
        &[
            (json!("me"), ": expected an object, found \"me\""),
            (json!({"id": 1}), ".id: expected a string, found 1"),
            (json!({"locality": "eu"}), ".locality: expected an object, found \"eu\""),
            (json!({"locality": {"zone": []}}), ".locality.zone: expected a string, found an empty list"),
            (json!({"metadata": [1]}), ".metadata: expected an object, found a list"),
        ],
    );
    for template in
        ["client_default_listener_resource_name_template", "server_listener_resource_name_template"]
    {
        check(
            template,
            &|value| with(template, value),
            &[
                (json!(1), ": expected a string, found 1"),
                (json!({}), ": expected a string, found an object"),
            ],
        );
    }
    check(
        "authorities",
        &|value| with("authorities", value),
        &[
            (json!([]), ": expected an object, found an empty list"),
            (json!({"a.com": 7}), "[\"a.com\"]: expected an object, found 7"),
            (
                json!({"a.com": {"xds_servers": [{"channel_creds": [{"type": "tls"}]}]}}),
                &format!("[\"a.com\"].xds_servers[0].server_uri{MISSING}"),
            ),
        ],
    );
    let template =
        |value| with("authorities", json!({"a.com": {"client_listener_resource_name_template": value}}));
    check(
        "authorities[\"a.com\"].client_listener_resource_name_template",
        &template,
        &[
            (json!("%s"), ": expected \"xdstp://a.com/\" first, found \"%s\""),
            (json!("xdstp://b.com/%s"), ": expected \"xdstp://a.com/\" first, found \"xdstp://b.com/%s\""),
            (
                json!("xdstp://a.com.evil/%s"),
                ": expected \"xdstp://a.com/\" first, found \"xdstp://a.com.evil/%s\"",
            ),
        ],
    );
    check(
        "certificate_providers",
        &|value| with("certificate_providers", value),
        &[
            (json!("x"), ": expected an object, found \"x\""),
            (json!({"p": null}), "[\"p\"]: expected an object, found null"),
            (json!({"p": {}}), &format!("[\"p\"].plugin_name{MISSING}")),
            (
                json!({"p": {"plugin_name": "other", "config": 1}}),
                "[\"p\"].config: expected an object, found 1",
            ),
        ],
    );
    let watcher = |config| {
        with("certificate_providers", json!({"p": {"plugin_name": "file_watcher", "config": config}}))
    };
    check(
        "certificate_providers[\"p\"].config",
        &watcher,
        &[
            (
                json!(null),
                ": expected ca_certificate_file, or certificate_file and private_key_file, or all three",
            ),
            (
                json!({"ca_certificate_file": ""}),
                ": expected ca_certificate_file, or certificate_file and private_key_file, or all three",
            ),
            (json!({"ca_certificate_file": 1}), ".ca_certificate_file: expected a string, found 1"),
            (
                json!({"ca_certificate_file": "r", "certificate_file": "c"}),
                ".private_key_file: is required beside certificate_file",
            ),
        ],
    );
}

/// BS-5, BS-2: refresh intervals are durations in protobuf's JSON form.
#[test]
fn intervals_are_durations_of_protobuf() {
    let watcher = |interval: &str| {
        with(
            "certificate_providers",
            json!({"p": {"plugin_name": "file_watcher", "config": {
                "ca_certificate_file": "r", "refresh_interval": interval,
            }}}),
        )
    };
    for (interval, nanos) in
        [("1s", 1_000_000_000), ("0.25s", 250_000_000), ("0.000000001s", 1), ("07.50s", 7_500_000_000)]
    {
        let CertificateProvider::FileWatcher(files) = &read(&watcher(interval)).certificate_providers["p"]
        else {
            panic!("a file watcher")
        };
        assert_eq!(files.refresh_interval, Duration::from_nanos(nanos), "{interval}");
    }
    for bad in [
        "0s",
        "0.000s",
        "-1s",
        "1",
        "s",
        "1.s",
        ".5s",
        "1e3s",
        "+1s",
        "0.0000000001s",
        "315576000001s",
        "99999999999999999999999s",
    ] {
        assert!(problems(&watcher(bad)).contains("expected a duration above zero"), "{bad}");
    }
}

/// fault 36, FED-1: a long name in the path of a problem is cut between characters.
#[test]
fn long_names_are_cut_between_characters() {
    // 119 bytes and then characters of two bytes, so that the limit of 120 falls into one.
    let name = format!("{}{}", "a".repeat(119), "é".repeat(5_000));
    for field in ["authorities", "certificate_providers"] {
        let problem = problems(&with(field, json!({ &name: 7 })));
        assert_eq!(problem, format!("{field}[\"{}\"]: expected an object, found 7", "a".repeat(119)));
    }
}

/// All errors are reported together, with a count of those beyond the limit.
#[test]
fn all_problems_are_reported_together() {
    let broken = json!({
        "xds_servers": [{"server_uri": 1}, server("a"), {"channel_creds": [{"type": "x"}]}],
        "node": {"id": []},
    });
    assert_eq!(
        problems(&broken),
        "xds_servers[0].server_uri: expected a string, found 1; \
         xds_servers[0].channel_creds: is required: a list with insecure or tls; \
         xds_servers[2].server_uri: is required: a string that is not empty; \
         xds_servers[2].channel_creds: expected insecure or tls, found \"x\"; \
         node.id: expected a string, found an empty list",
    );
    let many = json!({"xds_servers": vec![json!(1); 64]});
    assert!(problems(&many).ends_with("; and 32 more"), "{}", problems(&many));
    let more = json!({"xds_servers": vec![server("a"); 65]});
    assert_eq!(problems(&more), "xds_servers: has 65 entries; at most 64 are allowed");
}

#[test]
fn what_stands_twice_is_reported() {
    let cases = [
        (
            r#"{"xds_servers": [{"server_uri": "a", "channel_creds": [{"type": "insecure"}], "server_uri": "b"}]}"#,
            "xds_servers[0].server_uri: occurs twice in its object",
        ),
        (
            r#"{"node": {}, "xds_servers": [{"server_uri": "a", "channel_creds": [{"type": "x"}, {"type": "insecure", "ty\u0070e" : "tls"}]}], "node": {}}"#,
            "xds_servers[0].channel_creds[1].type: occurs twice in its object; node: occurs twice in its object",
        ),
        (
            r#"{"xds_servers": [{"server_uri": "a", "channel_creds": [{"type": "insecure"}]}], "authorities": {"a.b\n": {}, "a.b\n": {}}}"#,
            r#"authorities["a.b\n"]: occurs twice in its object"#,
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(problems_of_text(text), expected);
    }
    // The same name in two objects, or as a value, is no duplicate key.
    let fine = r#"{"xds_servers": [{"server_uri": "server_uri", "channel_creds": [{"type": "type"}, {"type": "insecure"}]},
        {"server_uri": "a", "ignored": "\"server_uri\": [{", "channel_creds": [{"type": "insecure"}]}], "node": {"metadata": {"node": ["node", "node"]}}}"#;
    Bootstrap::from_json(fine).unwrap();
}

/// fault 36, fault 39: text that is not a valid bootstrap is rejected, and the error does not repeat it.
#[test]
fn text_that_is_no_bootstrap_is_refused_and_not_repeated() {
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(10_000), close.repeat(10_000));
    assert_eq!(problems_of_text(""), "cannot be read as JSON: EOF while parsing a value at line 1 column 0");
    assert_eq!(
        problems_of_text("{\"xds_servers\": [}"),
        "cannot be read as JSON: expected value at line 1 column 18"
    );
    assert_eq!(
        problems_of_text(&deep("[", "]")),
        "cannot be read as JSON: recursion limit exceeded at line 1 column 128"
    );
    let deep = format!("{}1{}", "{\"a\":".repeat(10_000), "}".repeat(10_000));
    assert_eq!(
        problems_of_text(&deep),
        "cannot be read as JSON: recursion limit exceeded at line 1 column 636"
    );
    let large = " ".repeat((1 << 20) + 1);
    assert_eq!(problems_of_text(&large), "has 1048577 bytes; at most 1048576 are allowed");
    let name = "n".repeat(500_000);
    for hostile in [
        with("node", json!({"id": [name]})),
        with("certificate_providers", json!({&name: {"plugin_name": [&name]}})),
        with_server("channel_creds", json!([{"type": name}])),
        with_server("channel_creds", json!(vec![json!({"type": "\u{1b}[31m"}); 10_000])),
        with("authorities", json!({&name: {"client_listener_resource_name_template": &name}})),
    ] {
        let text = problems(&hostile);
        assert!(text.len() < 1_000 && !text.contains('\u{1b}'), "{} bytes: {:.100}", text.len(), text);
    }
    let twice = format!("{{{}\"a\": 1}}", format!("{name:?}: 1,").repeat(2));
    assert!(problems_of_text(&twice).len() < 1_000);
}

/// Insecure credentials for a control plane on another machine produce a warning.
#[test]
fn insecure_servers_elsewhere_are_warned_of() {
    let here = [
        "localhost:1",
        "LOCALHOST",
        "a.localhost:1",
        "127.0.0.1:1",
        "127.9.9.9",
        "[::1]:1",
        "::1",
        "dns:///localhost:1",
        "dns:localhost:1",
        "ipv4:127.0.0.1:1,127.0.0.2:1",
        "ipv6:%5B::1%5D:1",
        "[::ffff:127.0.0.1]:1",
        "unix:///etc/istio/proxy/XDS",
        "unix:xds",
    ];
    for uri in here {
        assert_eq!(read(&with_server("server_uri", json!(uri))).warnings(), Vec::<String>::new(), "{uri}");
    }
    let elsewhere = [
        "istiod.istio-system.svc:15010",
        "10.0.0.1:1",
        "[2001:db8::1]:1",
        "0.0.0.0:1",
        "dns:///xds.example.com",
        "ipv4:127.0.0.1:1,10.0.0.1:1",
        "localhost.example.com:1",
    ];
    for uri in elsewhere {
        let warning = format!(
            "xds server {uri:?}: insecure credentials to another machine; an on-path attacker can redirect all calls"
        );
        assert_eq!(read(&with_server("server_uri", json!(uri))).warnings(), [warning], "{uri}");
    }
    let secure = json!([{"type": "tls"}]);
    let mut bootstrap = with_server("channel_creds", secure);
    bootstrap["xds_servers"][0]["server_uri"] = json!("far:1");
    assert_eq!(read(&bootstrap).warnings(), Vec::<String>::new());
    // One warning per server, those of authorities included.
    let both = json!({
        "xds_servers": [server("far:1"), server("far:2"), server("far:1")],
        "authorities": {"a": {"xds_servers": [server("far:1"), server("far:3")]}, "b": {}},
    });
    assert_eq!(read(&both).warnings().len(), 3);
}

/// BS-5: an unsupported certificate provider plugin is left out with a warning, so no resource can use it. FB-5:
/// A95's fallback on reachability alone is not supported and produces a warning. Fallback then needs a missing
/// resource (FB-1), so cached resources stay in use.
#[test]
fn what_we_know_and_cannot_honour_is_warned_of() {
    let mut bootstrap = with(
        "certificate_providers",
        json!({
            "mesh": {"plugin_name": "mesh_ca", "config": {"server": {}}},
            "spiffe": {"plugin_name": "file_watcher", "config": {"ca_certificate_file": "r", "spiffe_trust_bundle_map_file": "m"}},
        }),
    );
    bootstrap["xds_servers"][0]["call_creds"] = json!([{"type": "jwt_token_file"}]);
    bootstrap["authorities"] =
        json!({"a": {"fallback_on_reachability_only": true}, "b": {"fallback_on_reachability_only": false}});
    let bootstrap = read(&bootstrap);
    assert_eq!(bootstrap.certificate_providers.keys().collect::<Vec<_>>(), ["spiffe"]);
    assert_eq!(
        bootstrap.warnings(),
        [
            "xds_servers[0].call_creds: call credentials (A97) are not supported and not sent",
            "authorities[\"a\"].fallback_on_reachability_only: is not supported (A95): cached resources are not requested from the next server",
            "certificate_providers[\"mesh\"].plugin_name: expected file_watcher, found \"mesh_ca\"; resources cannot use it",
            "certificate_providers[\"spiffe\"].config.spiffe_trust_bundle_map_file: SPIFFE bundle maps (A87) are not supported; only the CA file is used",
        ],
    );
}

/// FED-1: authorities have servers and a listener template, with defaults from the bootstrap.
#[test]
fn authorities_have_servers_and_templates() {
    let bootstrap = read(&whole());
    let eu = &bootstrap.authorities["eu.example.com"];
    assert_eq!(uris(&eu.servers), ["localhost:1"]);
    let template = &eu.client_listener_resource_name_template;
    assert_eq!(template, "xdstp://eu.example.com/envoy.config.listener.v3.Listener/%s");
    let us = &bootstrap.authorities["us.example.com"];
    assert_eq!(us.servers, bootstrap.servers);
    let odd = read(&with("authorities", json!({"": {}, "a b/c": {}})));
    let template = |name: &str| &odd.authorities[name].client_listener_resource_name_template;
    assert_eq!(template(""), "xdstp:///envoy.config.listener.v3.Listener/%s");
    assert_eq!(template("a b/c"), "xdstp://a%20b%2Fc/envoy.config.listener.v3.Listener/%s");
}

/// Collects the paths of all values in a JSON value.
fn places(value: &Value, at: String, all: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            let key = key.replace('~', "~0").replace('/', "~1");
            places(value, format!("{at}/{key}"), all);
        }),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, value)| places(value, format!("{at}/{i}"), all));
        }
        _ => {}
    }
    all.push(at);
}

proptest! {
    /// fault 36: a bootstrap with any value at any path is accepted, or rejected with at least one path or reason.
    #[test]
    fn any_value_anywhere_is_read_or_refused(place in any::<prop::sample::Index>(), value in 0..9_usize) {
        let mut bootstrap = whole();
        let mut all = Vec::new();
        places(&bootstrap, String::new(), &mut all);
        let values = [json!(null), json!(true), json!(-1), json!(1e300), json!(""), json!("%s"), json!([]), json!({}), json!([[{"type": "tls"}]])];
        *bootstrap.pointer_mut(place.get::<String>(&all)).expect("a place of it") = values[value].clone();
        match Bootstrap::from_json(&bootstrap.to_string()) {
            Ok(read) => {
                prop_assert!(!read.servers.is_empty());
                let _ = (read.warnings(), read.listener_name("xds:///orders"), read.server_listener_name("[::]:80"));
            }
            Err(error) => {
                let text = error.to_string();
                prop_assert!(text.starts_with("bootstrap: ") && text.len() > 20 && text.len() < 8_000, "{}", text);
            }
        }
    }
}
