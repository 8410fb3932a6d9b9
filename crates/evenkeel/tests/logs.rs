//! Log of a process with one channel: a healthy start, a rejected resource, an outage of the control plane and of the
//! backend. It is a program of its own, since it records the events of all threads.

use std::time::Duration;

use evenkeel::{Backoff, Bootstrap, Channel};
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use testkit::net::{Backend, ControlPlane};
use testkit::{Log, resources};
use tokio::time::{sleep, timeout};

/// Maximum wait. Only a failing test reaches it.
const LONG: Duration = Duration::from_secs(30);

/// Waits until the log has a line with this start and these parts, after the first `seen` lines. Returns the number of
/// lines up to it.
async fn logged(log: &Log, seen: usize, start: &str, parts: &[&str]) -> usize {
    let found = timeout(LONG, async {
        loop {
            let lines = log.lines();
            let is_it =
                |line: &String| line.starts_with(start) && parts.iter().all(|part| line.contains(part));
            if let Some(at) = lines[seen..].iter().position(is_it) {
                return seen + at + 1;
            }
            sleep(Duration::from_millis(5)).await;
        }
    });
    found.await.unwrap_or_else(|_| panic!("no {start:?} with {parts:?} in {:#?}", &log.lines()[seen..]))
}

/// Returns the lines of a level without the fields that differ between runs.
fn messages(log: &Log, level: &str) -> Vec<String> {
    let message = |line: String| line.split('=').next().unwrap_or_default().to_owned();
    log.at(level).into_iter().map(message).collect()
}

/// INFO has one line for each step of a healthy start. The end of each failure is logged once, with its duration.
#[tokio::test]
async fn the_log_shows_starts_and_recoveries() {
    let log = Log::default();
    tracing::subscriber::set_global_default(log.clone()).expect("the first subscriber");
    let control = ControlPlane::start().await;
    let backend = Backend::start().await;
    control.serve("orders", "pay", &[backend.address()]);
    let soon = Duration::from_millis(50);
    let channel = Channel::builder("xds:///orders")
        .bootstrap(Bootstrap::from_json(&control.bootstrap("node-7")).expect("a bootstrap"))
        .backoff(Backoff { initial: soon, max: soon, ..Backoff::default() })
        .build()
        .expect("a channel");
    let call = async || EchoClient::new(channel.clone()).unary(EchoRequest::default()).await;
    call().await.expect("the mesh is healthy");
    let server = format!("server=\"{}\"", control.address());
    let mut seen = logged(&log, 0, "INFO ADS stream open", &[&server, r#"node="node-7""#]).await;
    seen = logged(&log, seen, "INFO first config in use", &[r#"channel="xds:///orders""#]).await;
    seen = logged(&log, seen, "INFO channel connectivity changed", &["state=Ready"]).await;
    let start =
        ["ADS stream open server", "channel connectivity changed channel", "first config in use channel"];
    let mut shown: Vec<_> = messages(&log, "INFO");
    shown.sort();
    shown.dedup();
    assert_eq!(shown, start.map(|text| format!("INFO {text}")));
    assert_eq!(log.at("WARN"), [""; 0]);

    let mut invalid = resources::cluster("pay");
    invalid.set_lb_policy(evenkeel_proto::envoy::config::cluster::v3::cluster::LbPolicy::Maglev);
    control.set(invalid);
    seen = logged(&log, seen, "WARN xDS server", &["sent an invalid cluster response"]).await;
    control.set(resources::cluster("pay"));
    seen =
        logged(&log, seen, "INFO xDS server", &["sent a valid cluster response after an invalid one"]).await;

    control.kill();
    seen = logged(&log, seen, "WARN xDS server", &["cannot be reached"]).await;
    control.restart().await;
    seen = logged(&log, seen, "INFO xDS server recovered", &[&server, "after="]).await;

    backend.kill();
    seen = logged(&log, seen, "INFO subchannel disconnected", &[]).await;
    seen = logged(&log, seen, "INFO channel connectivity changed", &["state=TransientFailure"]).await;
    backend.restart().await;
    logged(&log, seen, "INFO channel recovered", &["state=Ready", "before=TransientFailure", "after="]).await;
    call().await.expect("the backend is back");
}
