//! Control plane whose URI is itself an xDS target.

use std::sync::Arc;

use evenkeel::{Bootstrap, Channel, XdsClient};
use tokio::time::timeout;

use super::LONG;

/// Number of open and close cycles.
const CYCLES: usize = 1_000;

/// fault 20: the bootstrap parser rejects an `xds:` server. If a program sets one, `build` fails with the server and
/// the reason. A thousand clients are opened and closed, and none hangs.
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
            let error = Channel::builder("xds:///orders").xds_client(client.clone()).build().unwrap_err();
            let refused = "server_uri \"xds:///control\": expected an address such as dns:///host:port";
            assert!(error.to_string().starts_with(refused), "{error}");
            if cycle % 2 == 0 {
                client.status().await.expect("the client runs");
            }
            drop(client);
        }
    };
    timeout(LONG, cycles).await.expect("opening and closing never hangs");
}
