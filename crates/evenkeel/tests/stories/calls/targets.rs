//! Targets, and the builder's errors for invalid ones.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use evenkeel::{Address, ConnectivityState, Connector, Io, TargetError, policy};
use testkit::net::Backend;
use testkit::net::echo::echo_client::EchoClient;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;

use super::server::{Step, service};
use super::{Client, client, connected, request, to, within};

/// round_robin over a list of addresses distributes calls evenly.
#[tokio::test]
async fn lists_are_shared_evenly() {
    let backends = [Backend::start().await, Backend::start().await, Backend::start().await];
    let channel = to(&backends).policy(policy::round_robin()).build().unwrap();
    connected(&channel, 3).await;
    let mut client = EchoClient::new(channel);
    let mut answers = BTreeMap::<String, usize>::new();
    for _ in 0..30 {
        *answers.entry(client.unary(request("")).await.unwrap().into_inner().backend).or_default() += 1;
    }
    assert_eq!(answers.into_values().collect::<Vec<_>>(), [10; 3]);
}

/// A DNS name with and without its scheme, and an IP address in place of a name.
#[tokio::test]
async fn names_are_looked_up() {
    let backend = Backend::start().await;
    let port = backend.address().port();
    for target in
        [format!("dns:///localhost:{port}"), format!("localhost:{port}"), format!("dns:127.0.0.1:{port}")]
    {
        let channel = crate::builder(&target).build().unwrap();
        let answer =
            within(EchoClient::new(channel).unary(request(target.clone()))).await.unwrap().into_inner();
        assert_eq!(answer.payload, target.as_bytes());
        let authority = target.trim_start_matches("dns:").trim_start_matches('/');
        assert_eq!(answer.metadata[":authority"], authority);
    }
}

/// An unresolvable name fails calls with a status that contains the name.
#[tokio::test]
async fn unknown_names_fail_calls() {
    let channel = crate::builder("dns:///nobody.invalid:1234").build().unwrap();
    let status = within(EchoClient::new(channel.clone()).unary(request(""))).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable);
    let text = r#"dns name "nobody.invalid": cannot be resolved"#;
    assert!(status.message().starts_with(text), "{status}");
    assert_eq!(channel.connectivity(), ConnectivityState::TransientFailure);
}

/// A unix domain socket.
#[tokio::test]
async fn unix_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("orders.sock");
    let sockets = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
    let service = service(Arc::default(), |_| Step::Echo);
    tokio::spawn(tonic::transport::Server::builder().serve_with_incoming(service, sockets));
    for target in [format!("unix:{}", path.display()), format!("unix://{}", path.display())] {
        let mut client = EchoClient::new(crate::builder(target).build().unwrap());
        let answer = within(client.unary(request("through a file"))).await.unwrap().into_inner();
        assert_eq!(answer.payload, b"through a file");
    }
    let nowhere = folder.path().join("nobody.sock");
    let channel = crate::builder(format!("unix:{}", nowhere.display())).build().unwrap();
    let status = within(EchoClient::new(channel).unary(request(""))).await.unwrap_err();
    let text = format!("connecting to unix:{}: no such file or directory (os error 2)", nowhere.display());
    assert!(status.message().contains(&text), "{status}");
}

/// Invalid settings fail `build`, and the error names the setting.
#[tokio::test]
async fn invalid_settings_fail_build() {
    let target = |target: &str| crate::builder(target);
    let config = |json: &str| target("ipv4:127.0.0.1:1").service_config(json);
    let cases = [
        (target(""), r#"target "": expected "#),
        (target("etcd:///orders"), r#"target "etcd:///orders": expected "#),
        (target("ipv4:orders:80"), r#"target "ipv4:orders:80": expected an IPv4 address and a port"#),
        (
            target("https://orders"),
            r#"target "https://orders": expected dns:///host:port; the credentials configure TLS"#,
        ),
        (config("{"), "service config: cannot be read as JSON: "),
        (config("[]"), "service config: expected an object, found "),
        (
            config(r#"{"loadBalancingConfig": [{"fastest": {}}]}"#),
            r#"service config: loadBalancingConfig: no policy of the list is supported: "fastest""#,
        ),
        (
            config(r#"{"loadBalancingPolicy": "fastest"}"#),
            r#"service config: loadBalancingPolicy: expected the name of a registered policy, found "fastest""#,
        ),
        (
            config(r#"{"methodConfig": [{"name": [{}], "timeout": "soon"}]}"#),
            r#"service config: methodConfig[0].timeout: expected a duration above zero such as "1.5s", found "#,
        ),
        (
            config(r#"{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 1}}]}"#),
            "service config: methodConfig[0].retryPolicy.maxAttempts: expected a whole number of 2 or more, found 1",
        ),
        (config("{}").authority("a b"), r#"authority "a b": "#),
        (config("{}").user_agent("a\nb"), r#"user agent "a\nb": expected visible ASCII characters"#),
        (config("{}").timeout(std::time::Duration::ZERO), "timeout: expected a duration above zero"),
        (config("{}").concurrency_limit(0), "concurrency_limit: expected at least 1, found 0"),
        (
            config("{}").tcp_keepalive(std::time::Duration::from_millis(500)),
            "tcp_keepalive 500ms: expected 1 s to 32767 s",
        ),
        (
            config("{}").tcp_keepalive_interval(super::LONG * 10_000),
            "tcp_keepalive_interval 300000s: expected 1 s to 32767 s",
        ),
        (config("{}").tcp_keepalive_retries(0), "tcp_keepalive_retries 0: expected 1 to 127"),
        (
            config("{}").tcp_keepalive(super::LONG).connector(NoSockets),
            "tcp_keepalive: is not supported with a connector of the application",
        ),
        (
            target("ipv4:127.0.0.1:1").policy(policy::ring_hash().min_ring_size(0)),
            "policy: policy \"ring_hash_experimental\": loadBalancingConfig[0].ring_hash_experimental.minRingSize: must be",
        ),
        (
            target("ipv4:127.0.0.1:1").policy(policy::custom("round_robbin", "{}")),
            "policy: loadBalancingConfig: no policy of the list is supported: \"round_robbin\"; did you mean \"round_robin\"?",
        ),
        (
            target("ipv4:127.0.0.1:1").policy(policy::custom("round_robin", "[")),
            "policy: settings of \"round_robin\": expected a JSON object: ",
        ),
        (
            config(r#"{"loadBalancingConfig": [{"pick_first": {}}]}"#).policy(policy::round_robin()),
            "service config: loadBalancingConfig: is set beside the policy \"round_robin\" of the channel; expected one",
        ),
        (
            config(r#"{"loadBalancingPolicy": "pick_first"}"#).policy(policy::round_robin()),
            "service config: loadBalancingPolicy: is set beside the policy \"round_robin\" of the channel; expected one",
        ),
        (
            target("xds:///orders").policy(policy::round_robin()),
            "target \"xds:///orders\": a policy is not supported with a control plane; its clusters define",
        ),
        (config("{}").max_frame_size(1), "max_frame_size 1: expected 16384 to 16777215"),
        (
            config("{}").keepalive(std::time::Duration::ZERO, super::LONG),
            "keepalive: expected a time and a timeout above zero",
        ),
    ];
    for (builder, expected) in cases {
        let error = builder.build().unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}\nexpected: {expected}");
    }
    let error = target("orders:http").build().unwrap_err();
    let source = std::error::Error::source(&error).unwrap();
    assert!(source.is::<TargetError>(), "the cause is there for programs");
}

/// Connector that is never used.
struct NoSockets;

impl Connector for NoSockets {
    fn connect(&self, _: &Address) -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send + '_>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}

/// The sockets of a channel with TCP keepalive have its timer, and those of other channels do not.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn sockets_send_tcp_keepalive_probes() {
    let backend = Backend::start().await;
    for (keepalive, timer) in [(Some(super::LONG), "02"), (None, "00")] {
        let channel = to([&backend]).tcp_keepalive(keepalive).build().unwrap();
        EchoClient::new(channel.clone()).unary(request("")).await.unwrap();
        // Column 2 is the peer's address, column 5 the timer of the socket: 00 none, 01 retransmission, 02 keepalive.
        let peer = format!(":{:04X}", backend.address().port());
        let timers = || {
            let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
            let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let of_channel = rows.filter(|row| row[2].ends_with(&peer) && row[3] == "01");
            of_channel.map(|row| row[5][..2].to_owned()).collect::<Vec<_>>()
        };
        super::until(|| timers() == [timer]).await;
        within(channel.close()).await;
        super::until(|| timers().is_empty()).await;
    }
}

/// `build` outside a runtime returns an error and does not panic.
#[test]
fn a_channel_needs_a_runtime() {
    let error = crate::builder("ipv4:127.0.0.1:1").build().unwrap_err();
    assert_eq!(error.to_string(), "a channel must be built within a tokio runtime, found none");
}

/// The server sees the configured authority, and the user agent followed by evenkeel's own. A header of the
/// application takes precedence.
#[tokio::test]
async fn servers_see_authority_and_user_agent() {
    let ours = concat!("evenkeel/", env!("CARGO_PKG_VERSION"));
    let backend = Backend::start().await;
    let seen = async |mut client: Client| client.unary(request("")).await.unwrap().into_inner().metadata;
    let plain = seen(client(&backend)).await;
    assert_eq!(plain[":authority"], backend.address().to_string());
    let named = to([&backend]).authority("orders.prod:443").user_agent("shop/1.0").build().unwrap();
    let named = seen(EchoClient::new(named)).await;
    assert_eq!(named[":authority"], "orders.prod:443");
    assert_eq!(named["user-agent"], format!("shop/1.0 {ours}"));
    println!("a generated client is {:?}", plain["user-agent"]);
    assert!(plain["user-agent"].ends_with(ours), "{}", plain["user-agent"]);
}
