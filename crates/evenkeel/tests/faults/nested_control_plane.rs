//! Control plane whose URI is itself an xDS target.

use std::sync::Arc;
use std::time::Duration;

use evenkeel::{Bootstrap, Channel, XdsClient};
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use tokio::time::timeout;
use tonic::Code;

use super::LONG;

/// Number of open and close cycles.
const CYCLES: usize = 1_000;

/// fault 20: the bootstrap parser rejects an `xds:` server. If a program sets one, calls fail with the server
/// and the reason. A thousand channels and clients are opened and closed, some during calls, and none hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nested_xds_server_is_refused_and_never_hangs() {
    let text = |uri: &str| {
        let server = format!(r#"{{"server_uri": "{uri}", "channel_creds": [{{"type": "insecure"}}]}}"#);
        format!(r#"{{"xds_servers": [{server}], "node": {{"id": "node-7"}}}}"#)
    };
    let refused = Bootstrap::from_json(&text("xds:///control")).unwrap_err().to_string();
    assert!(refused.contains("\"xds:///control\" is an xDS target itself"), "{refused}");
    let mut bootstrap = Bootstrap::from_json(&text("localhost:1")).unwrap();
    Arc::make_mut(&mut bootstrap.servers[0]).uri = "xds:///control".into();
    let cycles = async {
        for cycle in 0..CYCLES {
            let client = XdsClient::builder(bootstrap.clone()).build();
            let channel = Channel::builder("xds:///orders").xds_client(client.clone()).build().unwrap();
            let mut echo = EchoClient::new(channel.clone());
            if cycle % 2 == 0 {
                let status = echo.unary(EchoRequest::default()).await.unwrap_err();
                assert_eq!(status.code(), Code::Unavailable, "{status}");
                for part in ["server_uri", "xds:///control", "node-7"] {
                    assert!(status.message().contains(part), "no {part:?} in {:?}", status.message());
                }
            } else {
                // Drop the call at once.
                let _ = timeout(Duration::ZERO, echo.unary(EchoRequest::default())).await;
            }
            if cycle % 4 < 2 {
                channel.close().await;
            }
            drop(client);
        }
    };
    timeout(LONG, cycles).await.expect("opening and closing never hangs");
}
