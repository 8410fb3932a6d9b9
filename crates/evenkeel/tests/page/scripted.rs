//! Server of the page with states from the test. It can send states that no process would, and stop and
//! restart.

use std::path::Path;
use std::sync::Arc;

use evenkeel::admin::{AdminState, ChannelHistory};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The admin server's policy header.
const POLICY: &str =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'";

/// Start of virtual time.
pub(crate) const START: u64 = 1_700_000_000_000;

pub(crate) struct Script {
    url: String,
    said: Arc<watch::Sender<ScriptedState>>,
}

#[derive(Clone, Default)]
struct ScriptedState {
    state: String,
    history: String,
    resources: String,
    /// True if requests for the history are delayed.
    is_slow: bool,
    is_gone: bool,
}

impl Script {
    /// Serves the page with this state.
    pub(crate) async fn start(state: Value) -> Script {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let said = Arc::new(watch::Sender::new(ScriptedState {
            history: "[]".to_owned(),
            resources: "{}".to_owned(),
            ..ScriptedState::default()
        }));
        let script = Script { url, said: Arc::clone(&said) };
        script.say(state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, said.subscribe()));
            }
        });
        script
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Replaces the current state.
    pub(crate) fn say(&self, state: Value) {
        // Only states that a process could send are valid.
        let mut state: AdminState = serde_json::from_value(state).expect("a state");
        state.judge();
        self.said.send_modify(|said| said.state = serde_json::to_string(&state).expect("JSON"));
    }

    /// Replaces the history of `/api/history`.
    pub(crate) fn remember(&self, history: Value) {
        let history: Vec<ChannelHistory> = serde_json::from_value(history).expect("a history");
        self.said.send_modify(|said| said.history = serde_json::to_string(&history).expect("JSON"));
    }

    /// Replaces the resources of `/api/resources`.
    pub(crate) fn provide(&self, resources: &Value) {
        self.said.send_modify(|said| said.resources = resources.to_string());
    }

    /// Delays responses for the history, or releases them.
    pub(crate) fn be_slow(&self, is_slow: bool) {
        self.said.send_modify(|said| said.is_slow = is_slow);
    }

    /// Ends every stream and stops responding, or resumes.
    pub(crate) fn go(&self, is_gone: bool) {
        self.said.send_modify(|said| said.is_gone = is_gone);
    }
}

async fn answer(mut stream: TcpStream, mut said: watch::Receiver<ScriptedState>) {
    let (reader, mut writer) = stream.split();
    let mut lines = BufReader::new(reader).lines();
    let Ok(Some(request)) = lines.next_line().await else { return };
    while lines.next_line().await.is_ok_and(|line| line.is_some_and(|line| !line.is_empty())) {}
    let now = said.borrow_and_update().clone();
    if now.is_gone {
        return;
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    let (status, kind, body) = match path {
        "/api/events" => return tell(writer, said).await,
        "/api/state" => ("200 OK", "application/json", now.state),
        "/api/resources" => ("200 OK", "application/json", now.resources),
        "/api/history" => {
            let Ok(now) = said.wait_for(|said| !said.is_slow).await else { return };
            ("200 OK", "application/json", now.history.clone())
        }
        path => file(path),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\ncontent-security-policy: {POLICY}\r\n\r\n",
        body.len()
    );
    writer.write_all(format!("{head}{body}").as_bytes()).await.ok();
}

async fn tell(mut writer: tokio::net::tcp::WriteHalf<'_>, mut said: watch::Receiver<ScriptedState>) {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let mut text = head.to_owned();
    loop {
        let now = said.borrow_and_update().clone();
        if now.is_gone {
            return;
        }
        text.extend(["data: ", &now.state, "\n\n"]);
        if writer.write_all(text.as_bytes()).await.is_err() || said.changed().await.is_err() {
            return;
        }
        text.clear();
    }
}

fn file(path: &str) -> (&'static str, &'static str, String) {
    let name = if path == "/" { "index.html" } else { &path[1..] };
    let kind = match Path::new(name).extension().and_then(|end| end.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css",
        Some("js") => "text/javascript",
        _ => "image/svg+xml",
    };
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/admin/page").join(name);
    match std::fs::read_to_string(place) {
        Ok(body) => ("200 OK", kind, body),
        Err(_) => ("404 Not Found", kind, String::new()),
    }
}

/// Returns a state with these channels, `second` seconds after the start.
pub(crate) fn state(second: u64, channels: &[Value]) -> Value {
    json!({
        "title": "story", "version": "0.1.0", "pid": 7, "since": START, "at": START + second * 1000,
        "channels": channels, "xds": [], "events": [], "hints": [],
    })
}

/// Returns a channel over these endpoints, with one policy per locality.
pub(crate) fn channel(id: u64, target: &str, endpoints: &[Value]) -> Value {
    let mut localities: Vec<&str> =
        endpoints.iter().filter_map(|endpoint| endpoint["locality"].as_str()).collect();
    localities.dedup();
    let children: Vec<Value> = localities.iter().map(|name| json!([name, leaf(name, endpoints)])).collect();
    let share = 1.0 / children.len().max(1) as f64;
    let targets: serde_json::Map<_, _> = localities
        .iter()
        .map(|name| ((*name).to_owned(), json!({ "weight": 1, "state": "READY", "share": share })))
        .collect();
    let chain = [
        ("xds_cluster_manager_experimental", json!({}), "cluster:orders"),
        ("cds_experimental", json!({ "cluster": "orders" }), "priority"),
        ("priority_experimental", json!({ "priorities": ["orders-0"], "chosen": "orders-0" }), "orders-0"),
    ];
    let mut tree = json!({ "policy": "weighted_target_experimental", "state": "READY", "details": { "targets": targets }, "children": children });
    for (policy, details, child) in chain.into_iter().rev() {
        tree = json!({ "policy": policy, "state": "READY", "details": details, "children": [[child, tree]] });
    }
    let sum = |field: &str| {
        endpoints.iter().filter_map(|endpoint| endpoint["traffic"][field].as_f64()).sum::<f64>()
    };
    let traffic = json!({
        "started": 1000, "succeeded": 990, "failed": 10, "in_flight": 6, "rate": sum("rate"), "failures": sum("failures"),
        "p50_ms": 1.25, "p99_ms": 4.5,
    });
    json!({ "id": id, "target": target, "state": "READY", "traffic": traffic, "endpoints": endpoints, "tree": tree })
}

fn leaf(locality: &str, endpoints: &[Value]) -> Value {
    let own = endpoints.iter().filter(|endpoint| endpoint["locality"] == locality);
    let row = |endpoint: &Value| {
        json!({
            "addresses": [endpoint["address"]], "hostname": endpoint["name"], "locality": locality, "state": endpoint["state"],
            "weight": endpoint["weight"], "share": endpoint["want"], "picks": 0, "unused": endpoint["unused"],
        })
    };
    let rows: Vec<Value> = own.map(row).collect();
    json!({
        "policy": "weighted_round_robin", "state": "READY",
        "details": { "weights_from": "load", "blackoutPeriod": "10s" }, "endpoints": rows,
    })
}

/// Returns a READY endpoint whose actual share equals the expected one.
pub(crate) fn endpoint(name: &str, address: &str, rate: f64, share: f64, busy: f64) -> Value {
    json!({
        "address": address, "name": name, "cluster": "orders", "priority": 0,
        "locality": if rate < 60.0 { "{region=\"eu\", zone=\"a\", sub_zone=\"\"}" } else { "{region=\"eu\", zone=\"b\", sub_zone=\"\"}" },
        "state": "READY", "unused": null, "weight": rate * 2.5, "want": share, "got": share, "utilization": busy,
        "traffic": {
            "started": 500, "succeeded": 490, "failed": 10, "in_flight": 1, "rate": rate, "failures": 0.0,
            "p50_ms": 1.25, "p99_ms": 4.5,
        },
    })
}

/// Returns five endpoints of different capacity and equal utilization.
pub(crate) fn fleet() -> Vec<Value> {
    let sizes = [("small-1", 37.5), ("small-2", 37.5), ("medium", 75.0), ("large", 150.0), ("huge", 300.0)];
    let of = |(index, (name, rate)): (usize, (&str, f64))| {
        endpoint(name, &format!("127.0.0.1:{}", 41_001 + index), rate, rate / 600.0, 0.375)
    };
    sizes.into_iter().enumerate().map(of).collect()
}

/// Returns the five endpoints with all other parts of a state: events, resources, hints.
pub(crate) fn busy_state(second: u64) -> Value {
    let mut state = state(second, &[channel(1, "xds:///orders", &fleet())]);
    let event = |number: u64, level: &str, subject: &str, text: &str| json!({ "number": number, "at": START + number * 8000, "level": level, "subject": subject, "text": text });
    state["events"] = json!([
        event(1, "info", "xds:///orders", "channel created"),
        event(2, "mark", "", "act 1: round robin"),
        event(3, "warning", "small-1", "busier than it can bear"),
        event(4, "error", "small-1", "connection lost"),
        event(5, "mark", "", "act 2: weights from load reports"),
    ]);
    let resource = |kind: &str, name: &str, status: &str| json!({ "kind": kind, "name": name, "version": "3", "status": status, "updated": START, "error": null });
    state["xds"] = json!([{
        "scope": "#default", "node": "story", "servers": [{ "uri": "http://127.0.0.1:18000", "connected": true }],
        "resources": [
            resource("Listener", "orders", "ACKED"), resource("RouteConfiguration", "routes", "REQUESTED"),
            resource("Cluster", "orders", "ACKED"), resource("ClusterLoadAssignment", "orders", "ACKED"),
        ],
    }]);
    state["hints"] = json!(["cluster \"orders\": one priority only: there is nobody to fail over to"]);
    state
}

/// Returns a history of the endpoints with this many samples.
pub(crate) fn fleet_history(looks: u64) -> Value {
    let series = |endpoint: &Value, second: u64| {
        let wave = 1.0
            + 0.05 * (second as f64 * 0.7 + endpoint["traffic"]["rate"].as_f64().unwrap_or_default()).sin();
        (endpoint["traffic"]["rate"].as_f64().unwrap_or_default() * wave, 4.5 * wave, 0.375 * wave)
    };
    let of = |endpoint: &Value| {
        let values: Vec<_> = (0..looks).map(|second| series(endpoint, second)).collect();
        let each = |pick: fn(&(f64, f64, f64)) -> f64| values.iter().map(pick).collect::<Vec<_>>();
        let none = vec![0.0; looks as usize];
        let series = json!({
            "rate": each(|value| value.0), "p99_ms": each(|value| value.1), "utilization": each(|value| value.2),
            "failures": none, "got": none,
        });
        json!([endpoint["address"], series])
    };
    let empty = json!({ "rate": [], "failures": [], "p99_ms": [], "got": [], "utilization": [] });
    let at: Vec<u64> = (0..looks).map(|second| START + second * 1000).collect();
    json!([{ "id": 1, "at": at, "total": empty, "endpoints": fleet().iter().map(of).collect::<Vec<_>>() }])
}

/// Adds failed calls of the last minute, as code, cause and number, and a text of the last one.
pub(crate) fn fail(traffic: &mut Value, failures: &[(&str, &str, u64)], text: &str) {
    let sum: u64 = failures.iter().map(|(_, _, count)| count).sum();
    traffic["failures"] = json!(sum as f64 / 60.0);
    traffic["recent_calls"] = json!((traffic["rate"].as_f64().unwrap_or_default() * 60.0) as u64);
    let count =
        |(code, cause, count): &(&str, &str, u64)| json!({ "code": code, "cause": cause, "count": count });
    traffic["recent_failures"] = failures.iter().map(count).collect();
    let (code, cause, _) = failures[0];
    traffic["last_error"] = json!({ "at": START, "code": code, "cause": cause, "text": text });
}

/// Returns a channel without config.
pub(crate) fn without_config(id: u64, target: &str, rate: f64) -> Value {
    let mut channel = channel(id, target, &[]);
    (channel["tree"], channel["state"]) = (Value::Null, json!("CONNECTING"));
    (channel["traffic"]["rate"], channel["traffic"]["in_flight"]) = (json!(rate), json!(0));
    channel
}
