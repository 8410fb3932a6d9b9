//! `evenkeel demo`, as a process.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::browser::{Browser, Theme};

use crate::common::{MAX_WAIT, RunningCommand, evenkeel};

/// All acts run, each shows its effect, and every call is accounted for.
#[test]
fn the_story_shows_what_it_promises() {
    let report = evenkeel(["demo", "--seconds", "18", "--json", "--no-page"]).ends_with(0).json();
    let acts = report["acts"].as_array().expect("acts");
    let titles: Vec<_> = acts.iter().map(|act| act["title"].as_str().expect("a title")).collect();
    assert_eq!(
        titles,
        [
            "round robin",
            "weights from the control plane",
            "weights from reported load",
            "a backend dies and returns",
            "a priority fails over",
            "weights edited live"
        ]
    );
    for act in acts {
        assert!(act["calls"].as_u64().is_some_and(|calls| calls > 200), "{act:#}");
    }
    // Expected shares in percent, with a tolerance. The first two acts are exact except for calls at their
    // boundaries.
    assert_shares(&acts[0], [20.0; 5], 2.5);
    assert_shares(&acts[1], [6.25, 6.25, 12.5, 25.0, 50.0], 2.5);
    // Weights from load reports depend on the machine's own load, so only a clear order is asserted.
    let learned = shares(&acts[2]);
    assert!(learned[4] > 2.0 * learned[0] && learned[3] > 1.5 * learned[0], "{learned:?}");
    // The backend was down for a part of the act.
    let without_large = shares(&acts[3]);
    assert!(without_large[3] < learned[3], "{without_large:?} after {learned:?}");
    // The four endpoints of the lower priority got calls during the failover.
    let reserve = shares(&acts[4]);
    assert!(reserve.iter().all(|share| *share > 2.0), "{reserve:?}");
    // Each weight applies for half of the act.
    let edited = shares(&acts[5]);
    assert!((34.0..50.0).contains(&edited[4]) && edited[3] > 25.0, "{edited:?}");
}

fn shares(act: &Value) -> Vec<f64> {
    let backends = act["backends"].as_array().expect("backends");
    backends.iter().map(|backend| backend["share"].as_f64().expect("a share") * 100.0).collect()
}

fn assert_shares(act: &Value, expected: [f64; 5], off: f64) {
    let found = shares(act);
    let is_near = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() <= off);
    assert!(found.len() == 5 && is_near, "{}: {found:?} instead of {expected:?}", act["title"]);
}

/// No process survives the demo, even if it is killed with SIGKILL.
#[test]
fn nothing_is_left_running() {
    let mut demo = RunningCommand::start(["demo", "--seconds", "600"]);
    let page = page(&mut demo);
    let mut backends = Vec::new();
    wait_until("five endpoints are shown", || {
        let state: Value = serde_json::from_str(&get(&page, "/api/state")).expect("a state");
        let endpoints = state["channels"][0]["endpoints"].as_array().cloned().unwrap_or_default();
        backends =
            endpoints.iter().filter_map(|endpoint| endpoint["address"].as_str().map(str::to_owned)).collect();
        backends.len() == 5
    });
    assert!(backends.iter().all(|address| TcpStream::connect(address).is_ok()), "{backends:?}");
    demo.signal("KILL");
    demo.end();
    wait_until("no process listens", || {
        backends.iter().chain([&page]).all(|address| TcpStream::connect(address).is_err())
    });
}

/// With `--stay` the demo outlives its acts. An edit of the mesh file reaches the client, and an invalid one is reported.
#[test]
fn the_demo_stays_for_edits() {
    let mut demo = RunningCommand::start(["demo", "--stay", "--seconds", "12"]);
    let page = page(&mut demo);
    let mesh = PathBuf::from(demo.line_with("mesh: ").trim_start_matches("mesh: "));
    demo.line_with("round robin failed");
    demo.line_with("Running until Ctrl-C.");
    assert_eq!(demo.line_with("page: "), format!("  page: http://{page}/"));
    assert_eq!(demo.line_with("mesh: "), format!("  mesh: {}", mesh.display()));
    let state = || -> Value { serde_json::from_str(&get(&page, "/api/state")).expect("a state") };
    let addresses = |state: &Value| -> Vec<String> {
        let endpoints = state["channels"][0]["endpoints"].as_array().cloned().unwrap_or_default();
        endpoints.iter().filter_map(|endpoint| endpoint["address"].as_str().map(str::to_owned)).collect()
    };
    let backend = addresses(&state()).pop().expect("five endpoints");

    let edit = |text: &str| std::fs::write(&mesh, text).expect("the file can be written");
    edit(&format!("services: {{orders: {{}}}}\nclusters: {{orders: {{endpoints: [\"{backend}\"]}}}}\n"));
    demo.line_with("read again: 1 service, 1 cluster, 1 endpoint");
    wait_until("the client has one endpoint with calls", || {
        let state = state();
        addresses(&state) == [backend.as_str()]
            && state["channels"][0]["traffic"]["rate"].as_f64() > Some(0.0)
    });
    edit("services: {orders: {cluster: nowhere}}\n");
    demo.line_with("services.orders.cluster: unknown cluster \"nowhere\"");
    demo.line_with("the edit is rejected; the previous version is still served");
    demo.signal("INT");
    assert_eq!(demo.end().code(), Some(0));
    assert!(!mesh.exists(), "its folder is removed");
}

/// The page shows the endpoints and the acts, and loads nothing from other origins. The screenshots are those
/// of the README.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_the_story() {
    let Some(browser) = Browser::start().await else { return };
    let mut demo = RunningCommand::start(["demo", "--seconds", "36"]);
    let address = format!("http://{}/", page(&mut demo));
    let shown = browser.page(1280, 1180, Theme::Light).await;
    shown.open(&address).await;
    shown.wait_for("document.querySelectorAll('[data-endpoint]').length === 5").await;
    // At act 4 the charts contain the first three acts, and the third one is stable.
    demo.line_with("act 4: ");
    shown
        .wait_for("[...document.querySelectorAll('[data-level=mark]')].some((event) => event.innerText.includes('act 4'))")
        .await;
    let text: String = shown.eval("document.querySelector('main').innerText").await;
    for name in ["small-1", "small-2", "medium", "large", "huge"] {
        assert!(text.contains(name), "{name} in {text}");
    }
    shown.screenshot(picture("demo-light")).await;
    shown.prefer(&[("prefers-color-scheme", "dark")]).await;
    shown.screenshot(picture("demo-dark")).await;
    assert_eq!(shown.problems(), [""; 0]);
    demo.signal("INT");
    assert_eq!(demo.end().code(), Some(0));
}

fn picture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name("page").join(format!("{name}.png"))
}

/// Returns the address of the demo's page.
fn page(demo: &mut RunningCommand) -> String {
    let line = demo.line_with("page: http://");
    line.trim_start_matches("page: http://").trim_end_matches('/').to_owned()
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the page is served");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer.split_once("\r\n\r\n").expect("a head and a body").1.to_owned()
}

fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < MAX_WAIT, "it never came that {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Invalid flags are reported at once, with exit code 2.
#[test]
fn invalid_flags_are_reported() {
    let refused = |args: &[&str]| evenkeel(["demo"].iter().chain(args)).ends_with(2).stderr;
    assert!(refused(&["--seconds", "5"]).contains("12..=3600"));
    assert!(refused(&["--page", "127.0.0.1:0", "--no-page"]).contains("cannot be used with"));
    assert!(refused(&["--stay", "--json"]).contains("cannot be used with"));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    assert!(refused(&["--page", &address]).contains(&format!("cannot listen on {address}")));
}
