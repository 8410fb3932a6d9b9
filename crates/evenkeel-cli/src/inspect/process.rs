//! State of an evenkeel process beyond CSDS: channels, policies and the distribution of calls over endpoints.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel::admin::{AdminState, ChannelInfo, EndpointInfo, HealthVerdict, TrafficStats, VerdictLevel};
use evenkeel::{ConnectivityState, Description};
use serde_json::Value;

use super::draw::{self, TreeNode, grouped};
use super::words;
use crate::table::{TableCell, table};
use crate::ui::{self, TerminalOutput, TextStyle};

/// Removes channels without problems, and endpoints that are up and without failures in the last minute.
pub(super) fn retain_failing(state: &mut AdminState) {
    let level = |channel: &ChannelInfo| channel.verdict.as_ref().map(|verdict| verdict.level);
    state.channels.retain(|channel| level(channel) >= Some(VerdictLevel::Warn));
    for channel in &mut state.channels {
        channel.endpoints.retain(|endpoint| {
            let is_down = endpoint.state == ConnectivityState::TransientFailure;
            is_down || endpoint.traffic.failures > 0.0 || !endpoint.traffic.recent_failures.is_empty()
        });
        channel.tree = None;
    }
}

/// Renders the process, one channel after the other, or `without_channels`.
pub(super) fn text(
    state: &AdminState,
    without_channels: &str,
    now: SystemTime,
    terminal: &TerminalOutput,
    width: Option<usize>,
) -> String {
    let mut out = String::new();
    let about = format!("evenkeel {}, process {}", state.version, state.pid);
    let head = TreeNode::styled(TextStyle::Title, &state.title).with(TextStyle::Faint, about);
    out.push_str(&draw::text(&[head], terminal, width));
    if let Some(verdict) = &state.verdict {
        let line = self::verdict(verdict);
        out.push_str(&draw::text(&[line], terminal, width));
    }
    for server in state.xds.iter().flat_map(|client| &client.servers) {
        let line = TreeNode::new("control plane").with(TextStyle::Title, &server.uri);
        let line = if server.connected {
            line.with(TextStyle::Good, "connected")
        } else {
            line.with(TextStyle::Warn, "not connected: cached resources stay in use")
        };
        out.push_str(&draw::text(&[line], terminal, width));
    }
    for hint in &state.hints {
        let hint = TreeNode::styled(TextStyle::Warn, "hint:").with(None, hint);
        out.push_str(&draw::text(&[hint], terminal, width));
    }
    for channel in &state.channels {
        out.push('\n');
        let is_only = state.channels.len() == 1;
        out.push_str(&self::channel(channel, is_only, now, terminal, width));
    }
    if state.channels.is_empty() {
        out.push_str(without_channels);
    }
    out
}

fn verdict(verdict: &HealthVerdict) -> TreeNode {
    let head = format!("{}:", verdict.headline);
    TreeNode::styled(level_style(verdict.level), head).with(None, &verdict.text)
}

pub(super) fn level_style(level: VerdictLevel) -> TextStyle {
    match level {
        VerdictLevel::Idle => TextStyle::Faint,
        VerdictLevel::Good => TextStyle::Good,
        VerdictLevel::Warn => TextStyle::Warn,
        VerdictLevel::Bad => TextStyle::Bad,
    }
}

/// Returns the lines about failed calls of the last minute, and about the last error.
fn failures(traffic: &TrafficStats, now: SystemTime) -> Vec<TreeNode> {
    let counted = traffic.recent_failures.iter().map(|failures| {
        format!("{} × {} ({})", grouped(failures.count), failures.code, failures.cause.description())
    });
    let counted: Vec<_> = counted.collect();
    let mut lines = Vec::new();
    if !counted.is_empty() {
        let (failed, calls) = (grouped(traffic.recent_failed()), grouped(traffic.recent_calls));
        let counted = format!("{failed} of {calls} calls in the last minute: {}", counted.join(", "));
        lines.push(TreeNode::styled(TextStyle::Bad, "failed").with(None, counted));
    }
    if let Some(error) = &traffic.last_error {
        let at = UNIX_EPOCH.checked_add(Duration::from_millis(error.at));
        let age = at.map(|at| now.duration_since(at).unwrap_or_default().as_secs());
        let age = age.map(words::age).unwrap_or_default();
        let text = format!("{age}: {}: {}", error.code, error.text);
        lines.push(TreeNode::styled(TextStyle::Bad, "last error").with(None, text));
    }
    lines
}

fn channel(
    channel: &ChannelInfo,
    is_only: bool,
    now: SystemTime,
    terminal: &TerminalOutput,
    width: Option<usize>,
) -> String {
    let traffic = &channel.traffic;
    let mut numbers = format!("{} calls/s", decimals(traffic.rate));
    if let Some(p99) = traffic.p99_ms {
        let _ = write!(numbers, ", p99 {} ms", decimals(p99));
    }
    if traffic.in_flight > 0 {
        let _ = write!(numbers, ", {} in flight", grouped(traffic.in_flight));
    }
    let mut head = TreeNode::new("channel")
        .with(TextStyle::Title, &channel.target)
        .with(style(channel.state), name(channel.state))
        .with(None, numbers);
    if traffic.failures > 0.0 {
        head = head.with(TextStyle::Bad, format!("{} failed/s", decimals(traffic.failures)));
    }
    // The verdict of a single channel is that of the process.
    if let Some(verdict) = channel.verdict.as_ref().filter(|_| !is_only) {
        head.push(self::verdict(verdict));
    }
    for line in failures(traffic, now) {
        head.push(line);
    }
    if let Some(tree) = &channel.tree {
        head.push(policy(None, tree));
    }
    let mut out = draw::text(&[head], terminal, width);
    if !channel.endpoints.is_empty() {
        out.push_str(&endpoints(channel, now, terminal, width));
    }
    out
}

/// Returns the node of a policy and its descendants. The JSON parser limits the depth of the recursion.
fn policy(child: Option<String>, tree: &Description) -> TreeNode {
    let policy = tree.policy.strip_suffix("_experimental").unwrap_or(&tree.policy);
    let mut branch = match child.filter(|label| !policy.contains(label.as_str())) {
        Some(label) => TreeNode::new(format!("{label}:")).with(TextStyle::Title, policy),
        None => TreeNode::styled(TextStyle::Title, policy),
    };
    if let Some(state) = tree.state {
        branch = branch.with(style(state), name(state));
    }
    let details = tree.details.iter().filter_map(|(name, value)| {
        let rank = value.as_str().filter(|_| name == "chosen").and_then(|child| priority(tree, child));
        match rank {
            Some(0) => Some("uses priority 0".to_owned()),
            Some(rank) => Some(format!("failover to priority {rank}")),
            None => Some(format!("{name} {}", detail(value)?)),
        }
    });
    branch = branch.with(TextStyle::Faint, details.collect::<Vec<_>>().join(", "));
    for warning in &tree.warnings {
        branch.push(TreeNode::styled(TextStyle::Warn, warning));
    }
    for (name, below) in &tree.children {
        let label = priority(tree, name).map_or_else(|| label(name), |rank| format!("priority {rank}"));
        branch.push(self::policy(Some(label), below));
    }
    match tree.endpoints.len() {
        0 => branch,
        1 => branch.with(TextStyle::Faint, "1 endpoint"),
        count => branch.with(TextStyle::Faint, format!("{count} endpoints")),
    }
}

/// Returns the priority of a child of a priority policy. The child's name counts generations, not priorities.
fn priority(tree: &Description, child: &str) -> Option<usize> {
    let priorities = tree.details.get("priorities").filter(|_| tree.policy == "priority_experimental")?;
    priorities.as_array()?.iter().position(|name| name.as_str() == Some(child))
}

/// Returns a short label for a child: empty if its position identifies it, the parts of a locality otherwise.
fn label(child: &str) -> String {
    if child == "childPolicy" {
        return String::new();
    }
    if child.starts_with("{region=") {
        let parts = child.split('"').skip(1).step_by(2).filter(|part| !part.is_empty());
        return parts.collect::<Vec<_>>().join("/");
    }
    child.to_owned()
}

/// Returns a scalar detail that is not empty or zero. The JSON output has all details.
fn detail(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) if number.as_f64() != Some(0.0) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        _ => None,
    }
}

fn endpoints(
    channel: &ChannelInfo,
    now: SystemTime,
    terminal: &TerminalOutput,
    width: Option<usize>,
) -> String {
    let mut picks = HashMap::new();
    if let Some(tree) = &channel.tree {
        collect(tree, &mut picks);
    }
    let heads = ["  endpoint", "name", "state", "weight", "want", "got", "picks", "busy", "p99 ms", "failed"];
    let head = |(i, head): (usize, &str)| {
        let cell = if i < 3 { TableCell::new(head) } else { TableCell::right(head) };
        cell.style(TextStyle::Faint)
    };
    let mut rows = vec![heads.into_iter().enumerate().map(head).collect::<Vec<_>>()];
    let texts: Vec<_> = channel
        .endpoints
        .iter()
        .map(|endpoint| texts(endpoint, picks.get(endpoint.address.as_str()).copied()))
        .collect();
    rows.extend(channel.endpoints.iter().zip(&texts).map(|(endpoint, texts)| row(endpoint, texts)));
    // Remove columns without any text.
    for column in (0..heads.len()).rev() {
        if texts.iter().all(|texts| texts[column].is_empty()) {
            for row in &mut rows {
                row.remove(column);
            }
        }
    }
    let lines = table(&rows, terminal);
    let mut lines = lines.lines();
    let mut out = format!("{}\n", lines.next().unwrap_or_default());
    for (endpoint, line) in channel.endpoints.iter().zip(lines) {
        let _ = writeln!(out, "{line}");
        let room = width.map_or(usize::MAX, |width| width.saturating_sub(4));
        let unused = endpoint.unused.as_ref().map(|why| (TextStyle::Warn, note(endpoint, why)));
        let failed = failures(&endpoint.traffic, now).into_iter();
        let failed = failed
            .filter(|_| !endpoint.traffic.recent_failures.is_empty())
            .map(|line| (TextStyle::Bad, line.plain()));
        for (style, text) in unused.into_iter().chain(failed) {
            for line in ui::wrapped(&text, room) {
                let _ = writeln!(out, "    {}", terminal.paint(style, line));
            }
        }
    }
    out
}

/// Returns the texts of an endpoint's columns; empty where a value is absent.
fn texts(endpoint: &EndpointInfo, picks: Option<u64>) -> [String; 10] {
    let percent =
        |share: Option<f64>| share.map(|share| format!("{:.1}%", share * 100.0)).unwrap_or_default();
    let failed = endpoint.traffic.failed;
    [
        format!("  {}", ui::safe(&endpoint.address)),
        ui::safe(endpoint.name.as_deref().unwrap_or_default()),
        name(endpoint.state).to_owned(),
        endpoint.weight.map(decimals).unwrap_or_default(),
        percent(endpoint.want),
        percent(endpoint.got),
        grouped(picks.unwrap_or(endpoint.traffic.started)),
        endpoint.utilization.map(|busy| format!("{:.0}%", busy * 100.0)).unwrap_or_default(),
        endpoint.traffic.p99_ms.map(decimals).unwrap_or_default(),
        if failed > 0 { grouped(failed) } else { String::new() },
    ]
}

fn row(endpoint: &EndpointInfo, texts: &[String; 10]) -> Vec<TableCell> {
    let [address, hostname, state, weight, want, got, picks, busy, p99, failed] = texts;
    vec![
        TableCell::new(address),
        TableCell::new(hostname),
        TableCell::new(state).style(style(endpoint.state)),
        TableCell::right(weight),
        TableCell::right(want),
        TableCell::right(got),
        TableCell::right(picks),
        TableCell::right(busy),
        TableCell::right(p99),
        TableCell::right(failed).style(TextStyle::Bad),
    ]
}

fn note(endpoint: &EndpointInfo, why: &str) -> String {
    let place = match (&endpoint.cluster, endpoint.priority) {
        (Some(cluster), Some(priority)) if priority > 0 => format!(" ({cluster}, priority {priority})"),
        _ => String::new(),
    };
    ui::safe(&format!("unused: {why}{place}"))
}

/// Adds up picks by address over all policies of the tree.
fn collect<'a>(tree: &'a Description, picks: &mut HashMap<&'a str, u64>) {
    for row in &tree.endpoints {
        if let Some(address) = row.addresses.first() {
            let sum = picks.entry(address.as_str()).or_default();
            *sum = sum.saturating_add(row.picks);
        }
    }
    for (_, child) in &tree.children {
        collect(child, picks);
    }
}

/// Formats a number: one decimal below 100, none above.
fn decimals(number: f64) -> String {
    if number.abs() >= 100.0 {
        // The cast saturates, far above any rate.
        grouped(number.abs().round() as u64)
    } else {
        let text = format!("{number:.1}");
        text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
    }
}

fn name(state: ConnectivityState) -> &'static str {
    match state {
        ConnectivityState::Idle => "IDLE",
        ConnectivityState::Connecting => "CONNECTING",
        ConnectivityState::Ready => "READY",
        ConnectivityState::TransientFailure => "TRANSIENT_FAILURE",
    }
}

fn style(state: ConnectivityState) -> TextStyle {
    match state {
        ConnectivityState::Ready => TextStyle::Good,
        ConnectivityState::Idle => TextStyle::Faint,
        ConnectivityState::Connecting => TextStyle::Warn,
        ConnectivityState::TransientFailure => TextStyle::Bad,
    }
}
