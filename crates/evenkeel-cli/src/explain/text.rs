//! Explanation as text: a headline, then the routes, then each cluster as a tree with shares.

use std::fmt::Write as _;

use crate::table::{TableCell, table};
use crate::ui::{self, TerminalOutput, TextStyle};

use super::answer::{
    ClusterExplanation, ConfigStage, ExcludedEndpoint, Explanation, ForwardExplanation, LeafExplanation,
    OTHER_PATH, RouteExplanation,
};
use super::tree::{EndpointShare, PolicyNode};

/// Width of a 100 % bar, in characters.
const BAR: f64 = 10.0;

/// Maximum width of prose lines, in characters.
const WIDTH: usize = 79;

/// Renders the explanation. `with_stages` adds the four configs of each cluster.
pub(crate) fn text(answer: &Explanation, with_stages: bool, terminal: &TerminalOutput) -> String {
    let mut out = format!("{}\n", terminal.paint(TextStyle::Title, wrapped(&headline(answer), 0)));
    if answer.failure.is_some() {
        return out;
    }
    out.push_str(&routes(answer, terminal));
    for cluster in &answer.clusters {
        out.push_str(&of_cluster(cluster, terminal));
        if with_stages {
            cluster.leaves.iter().for_each(|leaf| out.push_str(&stages(leaf, terminal)));
        }
    }
    if !with_stages && !answer.clusters.is_empty() {
        let hint = "--stages shows the four configs that lead here, --json everything.";
        line(&mut out, format_args!("\n{}", terminal.paint(TextStyle::Faint, hint)));
    }
    out
}

/// Summarizes the outcome of the call in one sentence.
fn headline(answer: &Explanation) -> String {
    let calls = match answer.path.as_str() {
        "/" => format!("Calls to {}", answer.target),
        path => format!("Calls to {path} of {}", answer.target),
    };
    let refused = match answer.unrouted {
        0.0 => String::new(),
        share => format!("; {} find no route and fail", percent(share)),
    };
    if let Some(failure) = &answer.failure {
        return format!("{calls} fail: {failure}");
    }
    match answer.clusters.as_slice() {
        [] => format!("{calls} find no route and fail."),
        [only] if refused.is_empty() => {
            format!("{calls} go to cluster {}: {}.", only.name, cluster_summary(only))
        }
        clusters => {
            let each =
                clusters.iter().map(|cluster| format!("{} to {}", percent(cluster.share), cluster.name));
            format!("{calls} go {}{refused}.", each.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Summarizes the balancing of a cluster in a few words.
fn cluster_summary(cluster: &ClusterExplanation) -> String {
    if let Some(failure) = &cluster.failure {
        return format!("they fail, {failure}");
    }
    if let Some(address) = &cluster.this_call {
        return format!("by its hash this one to {address}");
    }
    let nodes = cluster.tree.as_ref().map(PolicyNode::walk).unwrap_or_default();
    let rows: Vec<&EndpointShare> = nodes.iter().flat_map(|node| &node.endpoints).collect();
    let is_used = |row: &&&EndpointShare| row.share.map_or(row.unused.is_none(), |share| share > 0.0);
    let used = rows.iter().filter(is_used).count();
    let policy = nodes.iter().find(|node| !node.endpoints.is_empty()).and_then(|node| node.policy.as_deref());
    let what = if rows.len() == 1 { "endpoint" } else { "endpoints" };
    let count = if used == rows.len() { format!("{used}") } else { format!("{used} of {}", rows.len()) };
    match policy {
        Some(policy) => format!("{count} {what} by {policy}"),
        None => format!("{count} {what}"),
    }
}

fn routes(answer: &Explanation, terminal: &TerminalOutput) -> String {
    let host = answer.virtual_host.as_deref().unwrap_or_default();
    let mut out =
        format!("\n{}\n", terminal.paint(TextStyle::Title, format_args!("Routes of virtual host {host:?}")));
    for (i, route) in answer.routes.iter().enumerate() {
        let (sign, style, fate) = route_outcome(route);
        let name = if route.name.is_empty() { String::new() } else { format!("{:?} ", route.name) };
        let route_text = wrapped(&format!("{name}{}", route.route), 7);
        line(&mut out, format_args!("  {sign} {}. {route_text}", i + 1));
        line(&mut out, format_args!("       {}", terminal.paint(style, wrapped(&fate, 7))));
        if let Some(forward) = &route.forward {
            for text in forward_details(forward) {
                line(&mut out, format_args!("       {}", wrapped(&text, 7)));
            }
        }
    }
    if answer.unrouted > 0.0 {
        let text =
            format!("{} of the calls find no route and fail with UNAVAILABLE", percent(answer.unrouted));
        line(&mut out, format_args!("  ✗ {}", terminal.paint(TextStyle::Bad, text)));
    }
    let is_path_missed = answer.routes.iter().any(|route| route.misses.as_deref() == Some(OTHER_PATH));
    if is_path_missed && answer.path == "/" {
        line(
            &mut out,
            format_args!("  {}", terminal.paint(TextStyle::Faint, "--path sets the method of the call.")),
        );
    }
    out
}

/// Returns a symbol, a style and a text for the outcome at a route.
fn route_outcome(route: &RouteExplanation) -> (char, TextStyle, String) {
    match &route.misses {
        Some(why) => ('·', TextStyle::Faint, format!("does not match: {why}")),
        None if route.forward.is_none() => {
            ('✗', TextStyle::Bad, format!("fails {} of the calls", percent(route.share)))
        }
        None if route.share >= 1.0 => ('→', TextStyle::Good, "matches".to_owned()),
        None => ('→', TextStyle::Good, format!("matches {} of such calls", percent(route.share))),
    }
}

/// Returns the properties of a route's forwarding action.
fn forward_details(forward: &ForwardExplanation) -> Vec<String> {
    let mut all = Vec::new();
    if forward.clusters.len() > 1 {
        let each = forward.clusters.iter().map(|to| format!("{} {}", to.name, percent(to.share)));
        all.push(each.collect::<Vec<_>>().join(", "));
    }
    all.push(match forward.timeout {
        Some(timeout) => format!("timeout {}", seconds(timeout)),
        None => "no timeout except the caller's".to_owned(),
    });
    if let Some(retry) = &forward.retry {
        let (first, longest) = (seconds(retry.first_backoff), seconds(retry.longest_backoff));
        let on = retry.on.join(", ");
        all.push(format!("up to {} attempts on {on}, back-off {first} to {longest}", retry.max_attempts));
    }
    if !forward.hash_of.is_empty() {
        let of = forward.hash_of.join("; ");
        all.push(match &forward.hash {
            Some(hash) => format!("hash of {of}: {hash}"),
            None if forward.hash_by_channel => format!("hash of {of}: each channel has its own"),
            None => format!("hash of {of}: this call has none, so it gets a random one"),
        });
    }
    if !forward.filters.is_empty() {
        all.push(format!("filters: {}", forward.filters.join(", ")));
    }
    all
}

fn of_cluster(cluster: &ClusterExplanation, terminal: &TerminalOutput) -> String {
    let share = if cluster.share < 1.0 {
        format!(", {} of the calls", percent(cluster.share))
    } else {
        String::new()
    };
    let title = ui::safe(&format!("Cluster {}{share}", cluster.name));
    let mut out = format!("\n{}\n", terminal.paint(TextStyle::Title, title));
    if let Some(failure) = &cluster.failure {
        let failure = wrapped(&format!("✗ its calls fail: {failure}"), 4);
        line(&mut out, format_args!("  {}", terminal.paint(TextStyle::Bad, failure)));
    }
    if let Some(tree) = &cluster.tree {
        let mut rows = Vec::new();
        draw(tree, "  ", "  ", &mut rows);
        out.push_str(&table(&rows, terminal));
    }
    for note in notes(cluster) {
        line(&mut out, format_args!("  {} {}", terminal.paint(TextStyle::Faint, "*"), wrapped(&note, 4)));
    }
    out
}

/// Adds one row per policy and endpoint. `first` is the prefix of the row itself, `rest` that of the rows
/// below it.
fn draw(node: &PolicyNode, first: &str, rest: &str, rows: &mut Vec<Vec<TableCell>>) {
    let policy = node.policy.as_deref().unwrap_or("inactive");
    let name = if node.name.is_empty() { policy.to_owned() } else { format!("{}  {policy}", node.name) };
    let name = TableCell::new(format!("{first}{name}"));
    rows.push(match node.policy {
        None => vec![name.style(TextStyle::Faint)],
        // An only child has the share of its parent.
        Some(_) if node.name.is_empty() => vec![name],
        Some(_) => vec![name, TableCell::default(), share(node.share)],
    });
    let count = node.children.len() + node.endpoints.len();
    let stem = |i: usize| if i + 1 == count { ("└ ", "  ") } else { ("├ ", "│ ") };
    for (i, row) in node.endpoints.iter().enumerate() {
        let (branch, _) = stem(i);
        rows.push(endpoint(row, node.policy.as_deref(), &format!("{rest}{branch}")));
    }
    for (i, child) in node.children.iter().enumerate() {
        let (branch, below) = stem(node.endpoints.len() + i);
        draw(child, &format!("{rest}{branch}"), &format!("{rest}{below}"), rows);
    }
}

fn endpoint(row: &EndpointShare, policy: Option<&str>, stem: &str) -> Vec<TableCell> {
    let name = TableCell::new(format!("{stem}{}", row.addresses.join(", ")));
    if policy.is_none() {
        return vec![name.style(TextStyle::Faint)];
    }
    // Weights of the ring are already shares of the ring.
    let weight = row.weight.filter(|weight| *weight > 0.0 && policy != Some("ring_hash_experimental"));
    let weight = TableCell::right(
        weight.map(|weight| format!("weight {}", ui::number(weight, 3))).unwrap_or_default(),
    );
    match (row.share, &row.unused) {
        (Some(part), _) if part > 0.0 => {
            let bar = "█".repeat((part * BAR).round() as usize);
            let bar = if bar.is_empty() { "▏".to_owned() } else { bar };
            vec![name, weight, TableCell::right(percent(part)), TableCell::new(bar).style(TextStyle::Good)]
        }
        (_, Some(why)) => {
            vec![name, weight, TableCell::right(percent(0.0)), TableCell::new(why).style(TextStyle::Faint)]
        }
        (Some(_), None) => vec![name, weight, TableCell::right(percent(0.0))],
        (None, None) => vec![name, weight, TableCell::right("by load")],
    }
}

fn share(share: Option<f64>) -> TableCell {
    match share {
        Some(share) => TableCell::right(percent(share)),
        None => TableCell::right("by load"),
    }
}

/// Returns properties of a cluster that the tree does not show.
fn notes(cluster: &ClusterExplanation) -> Vec<String> {
    let mut notes = Vec::new();
    let several = cluster.leaves.len() > 1;
    if several {
        let names = cluster.leaves.iter().map(|leaf| leaf.name.as_str()).collect::<Vec<_>>().join(", ");
        notes.push(format!("aggregate of {names}: the first usable one gets all calls"));
    }
    for leaf in &cluster.leaves {
        let of = if several { format!("{}: ", leaf.name) } else { String::new() };
        notes.extend(leaf_notes(leaf).into_iter().map(|note| format!("{of}{note}")));
    }
    if let Some(address) = &cluster.this_call {
        notes.push(format!("the hash of this call selects {address}"));
    }
    for node in cluster.tree.as_ref().map(PolicyNode::walk).unwrap_or_default() {
        let note = node.policy.as_deref().and_then(|policy| policy_note(policy, node));
        let warnings = node.warnings.iter().map(|warning| format!("warning: {warning}"));
        for note in note.into_iter().chain(warnings) {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    notes
}

fn leaf_notes(leaf: &LeafExplanation) -> Vec<String> {
    let mut notes = Vec::new();
    match &leaf.source {
        Some(source) if leaf.is_dns => notes.push(format!(
            "endpoints are all addresses of {source}, which is not resolved here: one endpoint for all of them"
        )),
        Some(source) => notes.push(format!("endpoints from {source}")),
        None => {}
    }
    for drop in &leaf.drops {
        notes.push(format!("{} of the calls are dropped (category {:?})", percent(drop.share), drop.name));
    }
    if let Some(limit) = leaf.max_concurrent_requests {
        notes.push(format!("at most {limit} calls at a time from one client"));
    }
    if leaf.has_outlier_detection {
        notes.push("failing endpoints are ejected for a while (outlier detection)".to_owned());
    }
    if leaf.reports_load {
        notes.push("clients report their load to the control plane".to_owned());
    }
    for ExcludedEndpoint { address, why } in &leaf.left_out {
        notes.push(format!("excluded: {address} ({why})"));
    }
    notes
}

/// Returns a note on decisions that a policy makes at run time.
fn policy_note(policy: &str, node: &PolicyNode) -> Option<String> {
    let detail = |name: &str| node.details.get(name).map(ToString::to_string).unwrap_or_default();
    Some(match policy {
        "weighted_round_robin" => {
            "weights are learned from load reports at run time; until then the EDS weights apply, as shown"
                .to_owned()
        }
        "least_request_experimental" => format!(
            "of {} random endpoints, the one with the fewest calls in flight is picked: even if all are equally fast",
            detail("choiceCount")
        ),
        "ring_hash_experimental" => {
            format!(
                "shares are those of the ring ({} entries): the hash of a call selects the entry",
                detail("ringSize")
            )
        }
        "random_subsetting_experimental" => {
            format!("each client draws {} of {} endpoints; shown is one draw", detail("chosen"), detail("of"))
        }
        "pick_first" => "one address at a time: the first that connects".to_owned(),
        _ => return None,
    })
}

fn stages(leaf: &LeafExplanation, terminal: &TerminalOutput) -> String {
    let mut out = String::new();
    for (i, ConfigStage { name, config }) in leaf.stages.iter().enumerate() {
        let title = format!("Cluster {}, config {} of {}: {name}", leaf.name, i + 1, leaf.stages.len());
        let title = ui::safe(&title);
        line(&mut out, format_args!("\n{}", terminal.paint(TextStyle::Title, title)));
        line(&mut out, format_args!("{}", ui::json_escaped(&format!("{config:#}"))));
    }
    out
}

/// Formats a share as a percentage: `25 %`, `18.8 %`, `0.05 %`.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let decimals = if percent > 0.0 && percent < 0.95 { 2 } else { 1 };
    format!("{} %", ui::number(percent, decimals))
}

/// Formats a duration: `250 ms`, `5 s`.
fn seconds(seconds: f64) -> String {
    match seconds {
        short if short < 1.0 => format!("{} ms", ui::number(short * 1000.0, 3)),
        long => format!("{} s", ui::number(long, 3)),
    }
}

/// Wraps text at [`WIDTH`]. Lines after the first are indented.
fn wrapped(text: &str, indent: usize) -> String {
    let mut out = String::new();
    let mut column = indent;
    let text = ui::safe(text);
    for (i, word) in text.split(' ').enumerate() {
        let width = word.chars().count();
        if i > 0 && column + 1 + width > WIDTH {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            column = indent;
        } else if i > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += width;
    }
    out
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a `String` cannot fail.
    let _ = writeln!(out, "{text}");
}
