//! `evenkeel doctor` against everything that can be wrong on the way to an endpoint and can be staged on one machine.

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::{Folder, Outcome, command, evenkeel};
use evenkeel_proto::envoy::config::core::v3::HealthStatus;
use serde_json::{Value, json};
use testkit::net::certs::Ca;
use testkit::net::frames::{Frame, Peer, block, flag, kind};
use testkit::net::{Backend, ControlPlane, Tls};
use testkit::resources;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

/// What a walk ended with: its exit code, its output with the times masked, and the words of its last step.
struct Ended {
    code: Option<i32>,
    text: String,
}

impl Ended {
    fn of(outcome: Outcome) -> Ended {
        assert_eq!(outcome.stderr, "");
        Ended { code: outcome.code, text: masked(&outcome.stdout) }
    }

    /// The walk stopped at this step, with these words among those of each line.
    #[track_caller]
    fn stopped_at(self, code: i32, step: &str, found: &str, likely: &str) -> Ended {
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
    fn fine(self) -> Ended {
        assert_eq!(self.code, Some(0), "{}", self.text);
        assert!(self.text.lines().last().is_some_and(|line| line.starts_with("all fine: ")), "{}", self.text);
        self
    }
}

/// Times differ from run to run.
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

/// Runs it beside the servers of the test.
async fn run(args: Vec<String>) -> Outcome {
    let run = move || evenkeel(["doctor".to_owned()].into_iter().chain(args));
    tokio::task::spawn_blocking(run).await.expect("it runs")
}

async fn doctor(bootstrap: &str, more: &[&str]) -> Ended {
    let folder = Folder::new();
    let file = folder.file("bootstrap.json", bootstrap);
    let mut args = vec!["xds:///orders".to_owned(), "--bootstrap".to_owned(), file.clone()];
    args.extend(more.iter().map(|more| (*more).to_owned()));
    let outcome = run(args).await;
    let stdout = outcome.stdout.replace(&file, "FILE");
    Ended::of(Outcome { stdout, ..outcome })
}

/// A bootstrap with one control plane.
fn bootstrap(uri: &str, credentials: Value) -> String {
    json!({
        "xds_servers": [{ "server_uri": uri, "channel_creds": [credentials] }],
        "node": { "id": "node-7" },
    })
    .to_string()
}

fn insecure(address: SocketAddr) -> String {
    bootstrap(&address.to_string(), json!({ "type": "insecure" }))
}

/// Short, for what never comes; nothing that comes takes as long on a machine that is not stuck.
const SOON: [&str; 2] = ["--wait", "2s"];

/// A port that nobody listens on for as long as this is held.
async fn nobody() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().unwrap()).expect("a port");
    let address = socket.local_addr().expect("an address");
    (socket, address)
}

/// A server that says this to whoever says something, and closes.
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

/// A server that takes connections and says nothing.
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

/// An HTTP/2 server that answers every request with these header fields, and nothing more.
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

/// A control plane with all that `xds:///orders` needs, and the backend behind it.
async fn mesh() -> (ControlPlane, Backend) {
    let control = ControlPlane::start().await;
    let backend = Backend::start().await;
    control.serve("orders", "pay", &[backend.address()]);
    (control, backend)
}

/// Everything works: the whole walk.
#[tokio::test(flavor = "multi_thread")]
async fn all_fine() {
    let (control, _backend) = mesh().await;
    let ended = doctor(&insecure(control.address()), &[]).await.fine();
    let shown = ended.text.replace(&control.address().to_string(), "CONTROL");
    let expected = "\
✓ bootstrap  ok T ms  FILE (--bootstrap), node \"node-7\"
- DNS        skipped           there is no name to resolve
✓ TCP        ok T ms  CONTROL takes connections
✓ HTTP/2     ok T ms  is spoken
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
