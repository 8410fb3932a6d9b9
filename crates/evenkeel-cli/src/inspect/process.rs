//! What an evenkeel process tells beside CSDS: channels, policies, and how calls are spread over endpoints.

use std::collections::HashMap;
use std::fmt::Write as _;

use evenkeel::admin::{ChannelState, EndpointState, State};
use evenkeel::{Connectivity, Description};
use serde_json::Value;

use super::draw::{self, Branch, grouped};
use crate::table::{Cell, table};
use crate::ui::{self, Style, Terminal};

/// Whether a channel or an endpoint is in TRANSIENT_FAILURE.
pub(super) fn is_bad(state: &State) -> bool {
    let failed = |state| state == Connectivity::TransientFailure;
    state.channels.iter().any(|channel| {
        failed(channel.state) || channel.endpoints.iter().any(|endpoint| failed(endpoint.state))
    })
}

/// The process, channel by channel.
pub(super) fn text(state: &State, terminal: &Terminal, width: Option<usize>) -> String {
    let mut out = String::new();
    let about = format!("evenkeel {}, process {}", state.version, state.pid);
    let head = Branch::styled(Style::Title, &state.title).with(Style::Faint, about);
    out.push_str(&draw::text(&[head], terminal, width));
    for server in state.xds.iter().flat_map(|client| &client.servers) {
        let line = Branch::new("control plane").with(Style::Title, &server.uri);
        let line = match server.connected {
            true => line.with(Style::Good, "connected"),
            false => line.with(Style::Warn, "not connected: what it sent before stays in use"),
        };
        out.push_str(&draw::text(&[line], terminal, width));
    }
    for hint in &state.hints {
        let hint = Branch::styled(Style::Warn, "hint:").with(None, hint);
        out.push_str(&draw::text(&[hint], terminal, width));
    }
    for channel in &state.channels {
        out.push('\n');
        out.push_str(&self::channel(channel, terminal, width));
    }
    if state.channels.is_empty() {
        out.push_str("no channels\n");
    }
    out
}

fn channel(channel: &ChannelState, terminal: &Terminal, width: Option<usize>) -> String {
    let traffic = &channel.traffic;
    let mut numbers = format!("{} calls/s", decimals(traffic.rate));
    if let Some(p99) = traffic.p99_ms {
        let _ = write!(numbers, ", p99 {} ms", decimals(p99));
    }
    let mut head = Branch::new("channel")
        .with(Style::Title, &channel.target)
        .with(style(channel.state), name(channel.state))
        .with(None, numbers);
    if traffic.in_flight > 0 {
        head = head.with(None, format!(", {} in flight", grouped(traffic.in_flight)));
    }
    if traffic.failures > 0.0 {
        head = head.with(Style::Bad, format!(", {} failed/s", decimals(traffic.failures)));
    }
    if let Some(tree) = &channel.tree {
        head.push(policy(None, tree));
    }
    let mut out = draw::text(&[head], terminal, width);
    if !channel.endpoints.is_empty() {
        out.push_str(&endpoints(channel, terminal));
    }
    out
}

/// A policy with its details and those below it. How deep this goes is limited by the reader of the JSON.
fn policy(child: Option<&str>, tree: &Description) -> Branch {
    let mut branch = match child {
        Some(child) if child != tree.policy => {
            Branch::new(format!("{child}:")).with(Style::Title, &tree.policy)
        }
        _ => Branch::styled(Style::Title, &tree.policy),
    };
    if let Some(state) = tree.state {
        branch = branch.with(style(state), name(state));
    }
    let details = tree.details.iter().map(|(name, value)| format!("{name} {}", detail(value)));
    branch = branch.with(Style::Faint, details.collect::<Vec<_>>().join(", "));
    for warning in &tree.warnings {
        branch.push(Branch::styled(Style::Warn, warning));
    }
    for (name, below) in &tree.children {
        branch.push(policy(Some(name), below));
    }
    match tree.endpoints.len() {
        0 => {}
        1 => branch.push(Branch::styled(Style::Faint, "1 endpoint")),
        count => branch.push(Branch::styled(Style::Faint, format!("{count} endpoints"))),
    }
    branch
}

fn detail(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

fn endpoints(channel: &ChannelState, terminal: &Terminal) -> String {
    let mut picks = HashMap::new();
    if let Some(tree) = &channel.tree {
        collect(tree, &mut picks);
    }
    let heads = ["  endpoint", "state", "weight", "want", "got", "picks", "busy", "failed"];
    let heads = heads.iter().enumerate().map(|(i, head)| match i {
        0 | 1 => Cell::new(*head).style(Style::Faint),
        _ => Cell::right(*head).style(Style::Faint),
    });
    let mut out = String::new();
    let mut rows = vec![heads.collect::<Vec<_>>()];
    let mut notes = Vec::new();
    for endpoint in &channel.endpoints {
        rows.push(row(endpoint, picks.get(endpoint.address.as_str()).copied()));
        notes.push(endpoint.unused.as_ref().map(|why| note(endpoint, why)));
    }
    let lines = table(&rows, terminal);
    let mut lines = lines.lines();
    for note in std::iter::once(None).chain(notes) {
        out.extend(lines.next().into_iter().chain(["\n"]));
        if let Some(note) = note {
            let _ = writeln!(out, "    {}", terminal.paint(Style::Warn, note));
        }
    }
    out
}

fn row(endpoint: &EndpointState, picks: Option<u64>) -> Vec<Cell> {
    let percent =
        |share: Option<f64>| share.map(|share| format!("{:.1} %", share * 100.0)).unwrap_or_default();
    let weight = endpoint.weight.map(decimals).unwrap_or_default();
    let failed = endpoint.traffic.failed;
    let failures = Cell::right(grouped(failed));
    vec![
        Cell::new(format!("  {}", ui::safe(&endpoint.address))),
        Cell::new(name(endpoint.state)).style(style(endpoint.state)),
        Cell::right(weight),
        Cell::right(percent(endpoint.want)),
        Cell::right(percent(endpoint.got)),
        Cell::right(grouped(picks.unwrap_or(endpoint.traffic.started))),
        Cell::right(endpoint.utilization.map(|busy| format!("{:.0} %", busy * 100.0)).unwrap_or_default()),
        if failed > 0 { failures.style(Style::Bad) } else { failures },
    ]
}

fn note(endpoint: &EndpointState, why: &str) -> String {
    let place = match (&endpoint.cluster, endpoint.priority) {
        (Some(cluster), Some(priority)) if priority > 0 => format!(" ({cluster}, priority {priority})"),
        _ => String::new(),
    };
    ui::safe(&format!("unused: {why}{place}"))
}

/// Picks by address, over all policies.
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

/// Small numbers with a decimal, large ones without.
fn decimals(number: f64) -> String {
    if number.abs() >= 100.0 {
        // Beyond any rate; the cast saturates.
        grouped(number.abs().round() as u64)
    } else {
        let text = format!("{number:.1}");
        text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
    }
}

fn name(state: Connectivity) -> &'static str {
    match state {
        Connectivity::Idle => "IDLE",
        Connectivity::Connecting => "CONNECTING",
        Connectivity::Ready => "READY",
        Connectivity::TransientFailure => "TRANSIENT_FAILURE",
    }
}

fn style(state: Connectivity) -> Style {
    match state {
        Connectivity::Ready => Style::Good,
        Connectivity::Idle => Style::Faint,
        Connectivity::Connecting => Style::Warn,
        Connectivity::TransientFailure => Style::Bad,
    }
}
