//! HealthVerdict over a process and its channels: a level, a headline and named causes.
//!
//! It is a pure function of [`AdminState`]. The page and `evenkeel inspect` show it, so both agree.

use std::cmp::Reverse;
use std::fmt::Write as _;

use evenkeel_core::ConnectivityState;
use serde::{Deserialize, Serialize};

use super::state::{
    AdminState, ChannelInfo, EndpointInfo, FailureCause, FailureCount, TrafficStats, XdsClientInfo,
    XdsResourceInfo,
};
use super::view;

/// Share of failed calls above which the calls of a channel count as failing.
const FAILING: f64 = 0.005;

/// Calls per second below which the share of failures covers the last minute instead of two samples.
const FEW_CALLS: f64 = 10.0;

/// Utilization from which an endpoint counts as busy.
const BUSY: f64 = 0.85;

/// Judgement of a channel or a process, for the page, `evenkeel inspect` and monitoring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HealthVerdict {
    /// Highest level of the causes.
    pub level: VerdictLevel,
    /// Two or three words, such as `Calls fail`.
    pub headline: String,
    /// Sentences with the figures of all causes.
    pub text: String,
    /// Findings, the worst first; empty if there are none.
    pub causes: Vec<VerdictCause>,
}

/// Level of a verdict. A higher level is worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerdictLevel {
    /// There are no calls to judge.
    Idle,
    /// Calls succeed and endpoints get their shares.
    Good,
    /// Calls succeed, and an operator should check something.
    Warn,
    /// Calls fail, or would fail.
    Bad,
}

/// One finding of a verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct VerdictCause {
    /// Name of the cause, for programs.
    pub kind: VerdictKind,
    /// Level of this cause alone.
    pub level: VerdictLevel,
    /// Description of the cause, with names and figures.
    pub text: String,
}

/// Name of a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum VerdictKind {
    /// Servers return errors, by their own status.
    ServerStatus,
    /// Connections or response streams fail.
    ConnectionFailed,
    /// Servers do not respond before the deadline.
    DeadlineExceeded,
    /// The channel has no config.
    NoConfig,
    /// No route matches calls.
    NoRoute,
    /// No endpoint is connected, or the cluster has none.
    NoEndpoint,
    /// The control plane drops calls.
    Dropped,
    /// Calls exceed the maximum of a cluster.
    CircuitBreaking,
    /// Fault injection aborts calls.
    FaultInjection,
    /// Calls fail in the process, for example because of their request body.
    LocalFailure,
    /// Endpoints are at or close to their capacity.
    Overloaded,
    /// Endpoints cannot be reached.
    Unreachable,
    /// A lower priority is in use.
    Failover,
    /// Endpoints get another share of calls than they should.
    Uneven,
    /// The control plane is not connected.
    ControlPlane,
    /// Resources were rejected (NACKED).
    ResourceRejected,
    /// Resources do not exist, or have not arrived.
    ResourceMissing,
    /// Another cause, of a later version.
    #[serde(other)]
    Other,
}

/// Cause with the headline that it gives to the verdict.
struct VerdictFinding {
    headline: String,
    cause: VerdictCause,
}

impl VerdictFinding {
    fn new(
        kind: VerdictKind,
        level: VerdictLevel,
        headline: impl Into<String>,
        text: String,
    ) -> VerdictFinding {
        VerdictFinding { headline: headline.into(), cause: VerdictCause { kind, level, text } }
    }
}

impl HealthVerdict {
    fn idle(headline: &str, text: impl Into<String>) -> HealthVerdict {
        let level = VerdictLevel::Idle;
        HealthVerdict { level, headline: headline.to_owned(), text: text.into(), causes: Vec::new() }
    }

    /// Returns the verdict of these findings, or `otherwise` without any.
    fn of(mut findings: Vec<VerdictFinding>, otherwise: impl FnOnce() -> HealthVerdict) -> HealthVerdict {
        findings.sort_by_key(|finding| Reverse(finding.cause.level));
        let Some(first) = findings.first() else { return otherwise() };
        let (level, headline) = (first.cause.level, first.headline.clone());
        let causes: Vec<_> = findings.into_iter().map(|finding| finding.cause).collect();
        let text = causes.iter().map(|cause| cause.text.as_str()).collect::<Vec<_>>().join(" ");
        HealthVerdict { level, headline, text, causes }
    }
}

impl AdminState {
    /// Sets the verdicts of the process and of its channels, from all other fields.
    pub fn judge(&mut self) {
        let verdicts: Vec<_> =
            self.channels.iter().map(|channel| channel_verdict(channel, &self.xds)).collect();
        self.verdict = Some(process_verdict(self, &verdicts));
        for (channel, verdict) in self.channels.iter_mut().zip(verdicts) {
            channel.verdict = Some(verdict);
        }
    }
}

/// Returns the worst verdict of all channels, and of clients without a channel.
fn process_verdict(state: &AdminState, verdicts: &[HealthVerdict]) -> HealthVerdict {
    let failed = |channel: &ChannelInfo| channel.traffic.failures;
    let mut judged: Vec<_> = state.channels.iter().zip(verdicts).collect();
    judged.sort_by(|(a, a_verdict), (b, b_verdict)| {
        (b_verdict.level.cmp(&a_verdict.level)).then(failed(b).total_cmp(&failed(a)))
    });
    let mut others = Vec::new();
    for client in &state.xds {
        if !state
            .channels
            .iter()
            .any(|channel| clients_of(channel, &state.xds).any(|own| std::ptr::eq(own, client)))
        {
            others.extend(configuration([client]));
        }
    }
    let Some((worst, verdict)) = judged.first() else {
        return HealthVerdict::of(others, || {
            HealthVerdict::idle("No channels", "The process has no channel.")
        });
    };
    let mut verdict = (*verdict).clone();
    if let [_, _, ..] = judged[..] {
        verdict.text = format!("{}: {}", worst.target, verdict.text);
        let same = judged.iter().filter(|(_, other)| other.level == verdict.level).count();
        let failing = match verdict.level {
            VerdictLevel::Bad => "fail",
            _ => "need a check",
        };
        if verdict.level >= VerdictLevel::Warn && same > 1 {
            let _ = write!(verdict.text, " {same} of {} channels {failing}.", judged.len());
        }
    }
    for finding in others {
        if finding.cause.level > verdict.level {
            (verdict.level, verdict.headline) = (finding.cause.level, finding.headline);
        }
        let _ = write!(verdict.text, " {}", finding.cause.text);
        verdict.causes.push(finding.cause);
    }
    verdict
}

fn channel_verdict(channel: &ChannelInfo, xds: &[XdsClientInfo]) -> HealthVerdict {
    let clients: Vec<_> = clients_of(channel, xds).collect();
    let config = || configuration(clients.iter().copied());
    if channel.tree.is_none() {
        return without_config(channel, &clients);
    }
    let mut findings = failing(channel);
    if channel.endpoints.is_empty() {
        let headline = "No endpoints";
        let text = "The channel has received no endpoints.";
        if !findings.is_empty() || channel.state == ConnectivityState::TransientFailure {
            let (kind, level) = (VerdictKind::NoEndpoint, VerdictLevel::Bad);
            findings.insert(0, VerdictFinding::new(kind, level, headline, text.to_owned()));
        }
        findings.extend(config());
        return HealthVerdict::of(findings, || HealthVerdict::idle(headline, text));
    }
    findings.extend(overloaded(&channel.endpoints));
    findings.extend(unreachable(&channel.endpoints));
    findings.extend(failover(channel));
    findings.extend(uneven(&channel.endpoints));
    findings.extend(config());
    HealthVerdict::of(findings, || {
        if channel.traffic.rate > 0.0 || channel.traffic.recent_calls > 0 {
            return good(&channel.endpoints);
        }
        let ready =
            channel.endpoints.iter().filter(|endpoint| endpoint.state == ConnectivityState::Ready).count();
        HealthVerdict::idle(
            "No calls",
            format!(
                "{} of {} endpoints are ready.",
                grouped(ready as u64),
                grouped(channel.endpoints.len() as u64)
            ),
        )
    })
}

/// Returns the clients with resources of the channel. A scope lists the targets of a client.
fn clients_of<'a>(
    channel: &ChannelInfo,
    xds: &'a [XdsClientInfo],
) -> impl Iterator<Item = &'a XdsClientInfo> {
    let is_own = |client: &XdsClientInfo| client.scope.split(',').any(|target| target == channel.target);
    let any_own = xds.iter().any(is_own);
    let is_xds = channel.target.starts_with("xds:");
    let target = channel.target.clone();
    xds.iter().filter(
        move |client| {
            if any_own { client.scope.split(',').any(|own| own == target) } else { is_xds }
        },
    )
}

fn without_config(channel: &ChannelInfo, clients: &[&XdsClientInfo]) -> HealthVerdict {
    let (traffic, reason) = (&channel.traffic, waiting_for(channel, clients));
    let share = failing_share(traffic).filter(|share| *share > FAILING);
    let is_failed = channel.state == ConnectivityState::TransientFailure;
    let mut findings = Vec::new();
    if share.is_some() || is_failed {
        let share = share.map(|share| format!("{} of calls fail: ", percent(share))).unwrap_or_default();
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        let text = sentence(&format!("{share}the channel has no config{reason}"));
        findings.push(VerdictFinding::new(VerdictKind::NoConfig, VerdictLevel::Bad, "No config", text));
    } else if traffic.in_flight > 0 {
        let calls = plural(traffic.in_flight, "call waits", "calls wait");
        let reason = if reason.is_empty() { "the channel has no config yet" } else { &reason };
        let text = sentence(&format!("{calls} for a config: {reason}"));
        findings.push(VerdictFinding::new(
            VerdictKind::NoConfig,
            VerdictLevel::Warn,
            "Waiting for config",
            text,
        ));
    }
    let config = configuration(clients.iter().copied());
    // The reason names the missing resource.
    let is_named =
        |finding: &VerdictFinding| finding.cause.kind == VerdictKind::ResourceMissing && !reason.is_empty();
    let is_first = findings.is_empty();
    findings.extend(config.into_iter().filter(|finding| is_first || !is_named(finding)));
    HealthVerdict::of(findings, || match (channel.state, reason.as_str()) {
        (ConnectivityState::Idle, _) => {
            HealthVerdict::idle("Idle", "The channel is IDLE: it has no calls and no connections.")
        }
        (_, "") => HealthVerdict::idle("Waiting for config", "The channel has no config yet."),
        (_, reason) => HealthVerdict::idle("Waiting for config", sentence(reason)),
    })
}

/// Returns the reason why the channel has no config; empty if it is unknown.
fn waiting_for(channel: &ChannelInfo, clients: &[&XdsClientInfo]) -> String {
    if let Some(waiting) = channel.waiting.as_ref().filter(|waiting| !waiting.is_empty()) {
        return waiting.trim_end_matches('.').to_owned();
    }
    let mut resources =
        clients.iter().flat_map(|client| &client.resources).filter(|one| one.version.is_empty());
    let Some(resource) = resources.next() else { return String::new() };
    let server = clients.iter().flat_map(|client| &client.servers).next();
    let from = server.map(|server| format!(" from {}", server.uri)).unwrap_or_default();
    match resource.status.as_str() {
        "REQUESTED" => format!("waiting for {} {:?}{from}", resource.kind, resource.name),
        _ => resource.absence().unwrap_or_default(),
    }
}

/// Returns the share of calls that fail, `None` without calls.
fn failing_share(traffic: &TrafficStats) -> Option<f64> {
    if traffic.rate < FEW_CALLS && traffic.recent_calls > 0 {
        return Some(traffic.recent_failed() as f64 / traffic.recent_calls as f64);
    }
    if traffic.rate > 0.0 {
        return Some((traffic.failures / traffic.rate).min(1.0));
    }
    (traffic.failures > 0.0).then_some(1.0)
}

/// Returns one finding for each cause of failed calls, with the share of failures in the first.
fn failing(channel: &ChannelInfo) -> Vec<VerdictFinding> {
    let Some(share) = failing_share(&channel.traffic).filter(|share| *share > FAILING) else {
        return Vec::new();
    };
    let mut causes: Vec<_> =
        channel.traffic.recent_failures.iter().flat_map(|failures| named_causes(channel, failures)).collect();
    causes.sort_by_key(|(_, count, _)| Reverse(*count));
    let total = format!("{} of calls fail", percent(share));
    let finding = |kind, text| VerdictFinding::new(kind, VerdictLevel::Bad, "Calls fail", text);
    if causes.is_empty() {
        let worst = most_failures(&channel.endpoints, |endpoint| endpoint.traffic.failures);
        let worst = worst.map(|worst| format!(" Most of them on {}.", worst.label())).unwrap_or_default();
        return vec![finding(VerdictKind::Other, format!("{total}.{worst}"))];
    }
    let texts = causes.into_iter().enumerate().map(|(at, (kind, count, text))| {
        let times = format!("{} × {text}.", grouped(count));
        finding(kind, if at == 0 { format!("{total}. In the last minute: {times}") } else { times })
    });
    texts.collect()
}

/// Returns the causes of these failures with their numbers of calls and descriptions.
fn named_causes(channel: &ChannelInfo, failures: &FailureCount) -> Vec<(VerdictKind, u64, String)> {
    let FailureCount { code, cause, count } = failures;
    let (kind, text) = match cause {
        FailureCause::Server => {
            (VerdictKind::ServerStatus, format!("the server returned {code}{}", mostly(channel, failures)))
        }
        FailureCause::Connection => (
            VerdictKind::ConnectionFailed,
            format!("the connection failed ({code}){}", mostly(channel, failures)),
        ),
        FailureCause::Deadline => {
            let text = format!("the server had not responded at the deadline{}", mostly(channel, failures));
            (VerdictKind::DeadlineExceeded, text)
        }
        FailureCause::NoConfig => (VerdictKind::NoConfig, format!("the channel had no config ({code})")),
        FailureCause::NoRoute => (VerdictKind::NoRoute, format!("no route matched the call ({code})")),
        FailureCause::NoEndpoint => (VerdictKind::NoEndpoint, format!("no endpoint was connected ({code})")),
        FailureCause::Dropped => return dropped(channel, *count),
        FailureCause::FaultInjection => {
            (VerdictKind::FaultInjection, format!("fault injection returned {code}"))
        }
        FailureCause::Local => {
            (VerdictKind::LocalFailure, format!("the call failed in this process ({code})"))
        }
    };
    vec![(kind, *count, text)]
}

/// Returns one cause for each drop category and circuit breaker, and one for drops of other policies.
fn dropped(channel: &ChannelInfo, count: u64) -> Vec<(VerdictKind, u64, String)> {
    let named = channel.drops.iter().map(|drops| {
        let cluster = &drops.cluster;
        if let Some(category) = &drops.category {
            let text = format!("dropped by drop category {category:?} of cluster {cluster:?}");
            return (VerdictKind::Dropped, drops.count, text);
        }
        let limit = drops.limit.map(|limit| format!(" of {}", grouped(limit))).unwrap_or_default();
        let text = format!("circuit breaking: cluster {cluster:?} is at its maximum{limit} calls in flight");
        (VerdictKind::CircuitBreaking, drops.count, text)
    });
    let mut causes: Vec<_> = named.collect();
    // Retried attempts can be dropped too, so the sum may be larger than the number of calls.
    let rest = count.saturating_sub(causes.iter().map(|(_, count, _)| count).sum());
    if causes.is_empty() && rest > 0 {
        causes.push((VerdictKind::Dropped, rest, "dropped by the load balancing policy".to_owned()));
    }
    causes
}

/// Returns the endpoint with most of these failures, as an apposition; empty if no endpoint stands out.
fn mostly(channel: &ChannelInfo, failures: &FailureCount) -> String {
    let of = |endpoint: &EndpointInfo| {
        let own = endpoint.traffic.recent_failures.iter();
        own.filter(|own| own.code == failures.code && own.cause == failures.cause)
            .map(|own| own.count)
            .sum::<u64>()
    };
    let Some(worst) = most_failures(&channel.endpoints, |endpoint| of(endpoint) as f64) else {
        return String::new();
    };
    let (own, all) = (of(worst), channel.endpoints.iter().map(of).sum::<u64>());
    match own {
        own if own == all => format!(", all on {}", worst.label()),
        own if own * 2 > all => format!(", mostly on {}", worst.label()),
        _ => String::new(),
    }
}

fn most_failures(
    endpoints: &[EndpointInfo],
    failures: impl Fn(&EndpointInfo) -> f64,
) -> Option<&EndpointInfo> {
    let failing = endpoints.iter().filter(|endpoint| failures(endpoint) > 0.0);
    failing.max_by(|a, b| failures(a).total_cmp(&failures(b)))
}

fn overloaded(endpoints: &[EndpointInfo]) -> Option<VerdictFinding> {
    let utilization = |endpoint: &EndpointInfo| endpoint.utilization.unwrap_or(0.0);
    let over: Vec<_> = endpoints.iter().filter(|endpoint| utilization(endpoint) >= BUSY).collect();
    let busiest = over.iter().map(|endpoint| utilization(endpoint)).max_by(f64::total_cmp)?;
    let usable = endpoints.iter().filter(|endpoint| {
        endpoint.state == ConnectivityState::Ready
            && endpoint.unused.is_none()
            && endpoint.utilization.is_some()
    });
    let idlest = usable.min_by(|a, b| utilization(a).total_cmp(&utilization(b)));
    let idlest = idlest.filter(|idlest| utilization(idlest) < busiest / 2.0);
    let room = idlest.map_or_else(String::new, |idlest| {
        format!(" while {} has spare capacity ({})", idlest.label(), whole_percent(utilization(idlest)))
    });
    let is_full = busiest >= 1.0;
    let place = match busiest {
        busiest if busiest > 1.005 => "above",
        _ if is_full => "at",
        _ => "close to",
    };
    let (is, its) = if over.len() > 1 { ("are", "their") } else { ("is", "its") };
    let text =
        format!("{} {is} {place} {its} capacity (up to {}){room}.", labels(&over), whole_percent(busiest));
    let (level, headline) = match (is_full, room.is_empty()) {
        (true, _) => (VerdictLevel::Bad, "Overloaded"),
        (false, true) => (VerdictLevel::Warn, "Busy"),
        (false, false) => (VerdictLevel::Warn, "Imbalanced"),
    };
    Some(VerdictFinding::new(VerdictKind::Overloaded, level, headline, text))
}

fn unreachable(endpoints: &[EndpointInfo]) -> Option<VerdictFinding> {
    let down: Vec<_> =
        endpoints.iter().filter(|endpoint| endpoint.state == ConnectivityState::TransientFailure).collect();
    let first = down.first()?;
    let is_all = down.len() == endpoints.len();
    // The same reason for all endpoints is named once.
    let reason = first.reason();
    let is_same = !reason.is_empty() && down.iter().all(|endpoint| endpoint.reason() == reason);
    let why = if is_same { format!(": {reason}") } else { String::new() };
    let gets = if down.len() > 1 { "get" } else { "gets" };
    let rest = if is_all { "" } else { " The others get the calls." };
    let text = format!("{} {gets} no calls{why}.{rest}", labels(&down));
    let (level, headline) = if is_all {
        (VerdictLevel::Bad, "No endpoint is reachable".to_owned())
    } else {
        (
            VerdictLevel::Warn,
            format!("{} of {} endpoints down", grouped(down.len() as u64), grouped(endpoints.len() as u64)),
        )
    };
    Some(VerdictFinding::new(VerdictKind::Unreachable, level, headline, text))
}

/// Returns a finding for each cluster that uses a lower priority than its first.
fn failover(channel: &ChannelInfo) -> Vec<VerdictFinding> {
    let priorities = channel.tree.as_ref().map(view::priorities).unwrap_or_default();
    let lower = priorities
        .into_iter()
        .filter_map(|(cluster, chosen)| Some((cluster, chosen.filter(|rank| *rank > 0)?)));
    let findings = lower.map(|(cluster, chosen)| {
        let above = if chosen == 1 {
            "priority 0 is".to_owned()
        } else {
            format!("priorities 0 to {} are", chosen - 1)
        };
        let text =
            format!("Cluster {cluster:?} has failed over to priority {chosen}: {above} not available.");
        let headline = format!("Failover to priority {chosen}");
        VerdictFinding::new(VerdictKind::Failover, VerdictLevel::Warn, headline, text)
    });
    findings.collect()
}

fn uneven(endpoints: &[EndpointInfo]) -> Option<VerdictFinding> {
    let mut off: Vec<_> = endpoints
        .iter()
        .filter_map(|endpoint| Some((endpoint, endpoint.off.filter(|off| off.is_finite())?)))
        .collect();
    off.sort_by(|(_, a), (_, b)| b.abs().total_cmp(&a.abs()));
    let (endpoint, error) = *off.first()?;
    let others = match off.len() - 1 {
        0 => String::new(),
        1 => ", and 1 more is off".to_owned(),
        more => format!(", and {more} more are off"),
    };
    let want = endpoint.want.unwrap_or(0.0);
    // A tiny share is off by a part of itself.
    let amount = if error.abs() >= 0.002 || want == 0.0 {
        points(error.abs())
    } else {
        whole_percent(error.abs() / want)
    };
    let more = if error > 0.0 { "more" } else { "less" };
    let text = format!("{} gets {amount} {more} than it should{others}.", endpoint.label());
    Some(VerdictFinding::new(VerdictKind::Uneven, VerdictLevel::Warn, "Uneven", text))
}

/// Returns the findings of the configuration. Calls use the last valid resources, so it is never worse than a warning.
fn configuration<'a>(clients: impl IntoIterator<Item = &'a XdsClientInfo>) -> Vec<VerdictFinding> {
    let clients: Vec<_> = clients.into_iter().collect();
    let mut findings = Vec::new();
    let mut warn = |kind, headline: &str, text| {
        findings.push(VerdictFinding::new(kind, VerdictLevel::Warn, headline, text));
    };
    let servers: Vec<_> = clients.iter().flat_map(|client| &client.servers).collect();
    let resources: Vec<_> = clients.iter().flat_map(|client| &client.resources).collect();
    if !servers.is_empty() && servers.iter().all(|server| !server.connected) {
        let text = if resources.iter().any(|resource| !resource.version.is_empty()) {
            "The control plane is not connected; its last resources stay in use."
        } else {
            "The control plane is not connected."
        };
        warn(VerdictKind::ControlPlane, "Control plane lost", text.to_owned());
    }
    let rejected: Vec<_> = resources.iter().filter(|resource| resource.is_rejected()).collect();
    if !rejected.is_empty() {
        let in_use = rejected.iter().filter(|resource| !resource.version.is_empty()).count();
        let count = plural(rejected.len() as u64, "resource was", "resources were");
        let serving = match in_use {
            0 => "no version is in use",
            1 => "the previous version stays in use",
            _ => "the previous versions stay in use",
        };
        warn(VerdictKind::ResourceRejected, "Update rejected", format!("{count} rejected; {serving}."));
    }
    let mut missing = resources.iter().filter_map(|resource| resource.absence());
    if let Some(first) = missing.next() {
        let more = missing.count() as u64;
        let more = if more > 0 {
            format!(" {} more {} missing.", more, if more > 1 { "are" } else { "is" })
        } else {
            String::new()
        };
        warn(VerdictKind::ResourceMissing, "Resource missing", format!("{}{more}", sentence(&first)));
    }
    findings
}

fn good(endpoints: &[EndpointInfo]) -> HealthVerdict {
    let errors = endpoints.iter().filter_map(|endpoint| Some((endpoint.got? - endpoint.want?).abs()));
    let mut text = match errors.max_by(f64::total_cmp) {
        Some(error) => format!("Every endpoint gets the share it should, within {}.", points(error)),
        None => "Calls succeed.".to_owned(),
    };
    let busy = endpoints.iter().filter_map(|endpoint| Some((endpoint, endpoint.utilization?)));
    if let Some((busiest, utilization)) = busy.max_by(|(_, a), (_, b)| a.total_cmp(b)) {
        let _ = write!(text, " The busiest, {}, is at {}.", busiest.label(), whole_percent(utilization));
    }
    HealthVerdict {
        level: VerdictLevel::Good,
        headline: "On an even keel".to_owned(),
        text,
        causes: Vec::new(),
    }
}

impl EndpointInfo {
    /// Returns the reason why the endpoint gets no calls, without its address and the time of the next attempt.
    fn reason(&self) -> String {
        let why = self.unused.as_deref().unwrap_or_default();
        let why = why.split(';').next().unwrap_or_default();
        why.replace(&format!("connecting to {}: ", self.address), "")
    }

    /// Returns the hostname, or the address without one.
    pub(super) fn label(&self) -> &str {
        self.name.as_deref().filter(|name| !name.is_empty()).unwrap_or(&self.address)
    }
}

impl XdsResourceInfo {
    /// Returns true if the control plane sent an invalid version. An absent resource is not rejected.
    pub fn is_rejected(&self) -> bool {
        self.status == "NACKED"
    }

    /// Returns a description if the control plane has not sent the resource, has removed it, or returned an error.
    pub fn absence(&self) -> Option<String> {
        let XdsResourceInfo { kind, name, version, .. } = self;
        let text = match self.status.as_str() {
            "DOES_NOT_EXIST" => format!("{kind} {name} does not exist"),
            "TIMEOUT" => format!("{kind} {name} has not arrived from the control plane"),
            "RECEIVED_ERROR" => format!("the control plane returned an error for {kind} {name}"),
            _ => return None,
        };
        Some(if version.is_empty() { text } else { format!("{text}; version {version} stays in use") })
    }
}

fn labels(endpoints: &[&EndpointInfo]) -> String {
    match endpoints {
        [] => String::new(),
        [one] => one.label().to_owned(),
        [one, two] => format!("{} and {}", one.label(), two.label()),
        [one, two, rest @ ..] => {
            format!("{}, {} and {} more", one.label(), two.label(), grouped(rest.len() as u64))
        }
    }
}

/// Formats a share with one decimal; with two below one percent.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 1.0 { format!("{percent:.2}%") } else { format!("{percent:.1}%") }
}

fn whole_percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

fn points(share: f64) -> String {
    if share < 0.0005 {
        "rounding".to_owned()
    } else {
        format!("{} points", percent(share).trim_end_matches('%'))
    }
}

fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { one } else { many })
}

/// Formats a number with commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns the text with a capital first letter and a full stop.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    format!("{first}{}.", chars.as_str().trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn endpoint(name: &str) -> Value {
        json!({
            "address": format!("{name}:1"), "name": name, "cluster": "orders", "priority": 0, "locality": null,
            "state": "READY", "unused": null, "weight": null, "want": 0.5, "got": 0.5, "utilization": null,
            "traffic": traffic(50.0),
        })
    }

    fn traffic(rate: f64) -> Value {
        json!({
            "started": 10, "succeeded": 10, "failed": 0, "in_flight": 0, "rate": rate, "failures": 0.0,
            "p50_ms": 1.0, "p99_ms": 3.5, "recent_calls": (rate * 60.0) as u64,
        })
    }

    fn channel(target: &str) -> Value {
        json!({
            "id": 1, "target": target, "state": "READY", "traffic": traffic(100.0),
            "endpoints": [endpoint("a"), endpoint("b")],
            "tree": { "policy": "round_robin", "state": "READY", "details": {} },
        })
    }

    fn failing(mut channel: Value, failures: &[(&str, &str, u64)]) -> Value {
        let sum: u64 = failures.iter().map(|(_, _, count)| count).sum();
        channel["traffic"]["failures"] = json!(sum as f64 / 60.0);
        channel["traffic"]["recent_failures"] = failures
            .iter()
            .map(|(code, cause, count)| json!({ "code": code, "cause": cause, "count": count }))
            .collect();
        channel
    }

    fn judged(channels: &[Value], xds: &Value) -> AdminState {
        let state = json!({
            "title": "t", "version": "1", "pid": 1, "since": 0, "at": 0, "channels": channels, "xds": xds,
            "events": [], "hints": [],
        });
        let mut state: AdminState = serde_json::from_value(state).expect("a state");
        state.judge();
        state
    }

    /// Returns level, headline and text of the process.
    fn told(channels: &[Value], xds: &Value) -> (VerdictLevel, String, String) {
        let HealthVerdict { level, headline, text, .. } = judged(channels, xds).verdict.expect("a verdict");
        (level, headline, text)
    }

    fn resource(kind: &str, name: &str, version: &str, status: &str) -> Value {
        json!({ "kind": kind, "name": name, "version": version, "status": status, "updated": null, "error": null })
    }

    fn client(scope: &str, resources: &[Value]) -> Value {
        json!({
            "scope": scope, "node": "n", "servers": [{ "uri": "cp:1", "connected": true }], "resources": resources,
        })
    }

    #[test]
    fn causes_of_failures_are_named() {
        use VerdictKind::{CircuitBreaking, DeadlineExceeded, Dropped, NoRoute, ServerStatus};

        let mut busy = channel("xds:///orders");
        busy["endpoints"][1]["traffic"]["recent_failures"] =
            json!([{ "code": "UNAVAILABLE", "cause": "server", "count": 300 }]);
        busy["drops"] = json!([
            { "cluster": "orders", "category": "throttle", "limit": null, "count": 60 },
            { "cluster": "orders", "category": null, "limit": 1024, "count": 30 },
        ]);
        let failures = [
            ("UNAVAILABLE", "server", 300),
            ("UNAVAILABLE", "dropped", 90),
            ("UNAVAILABLE", "no_route", 20),
            ("DEADLINE_EXCEEDED", "deadline", 10),
        ];
        let state = judged(&[failing(busy, &failures)], &json!([]));
        let verdict = state.verdict.expect("a verdict");
        assert_eq!((verdict.level, &*verdict.headline), (VerdictLevel::Bad, "Calls fail"));
        let expected = "7.0% of calls fail. In the last minute: 300 × the server returned UNAVAILABLE, all on b. \
            60 × dropped by drop category \"throttle\" of cluster \"orders\". \
            30 × circuit breaking: cluster \"orders\" is at its maximum of 1,024 calls in flight. \
            20 × no route matched the call (UNAVAILABLE). 10 × the server had not responded at the deadline.";
        assert_eq!(verdict.text, expected);
        let kinds: Vec<_> = verdict.causes.iter().map(|cause| cause.kind).collect();
        assert_eq!(kinds, [ServerStatus, Dropped, CircuitBreaking, NoRoute, DeadlineExceeded]);
    }

    /// With few calls, the share of failures is that of the last minute.
    #[test]
    fn rare_calls_are_judged_too() {
        let mut rare = failing(channel("dns:///orders"), &[("INTERNAL", "server", 3)]);
        rare["traffic"]["rate"] = json!(0.0);
        rare["traffic"]["failures"] = json!(0.0);
        rare["traffic"]["recent_calls"] = json!(6);
        let (level, _, text) = told(&[rare], &json!([]));
        assert_eq!(level, VerdictLevel::Bad);
        assert!(text.starts_with("50.0% of calls fail."), "{text}");
    }

    #[test]
    fn a_channel_without_config_is_not_idle() {
        let mut waiting = channel("xds:///order");
        waiting["tree"] = Value::Null;
        waiting["endpoints"] = json!([]);
        waiting["state"] = json!("CONNECTING");
        waiting["traffic"] = traffic(0.0);
        let xds = json!([client("xds:///order", &[resource("Listener", "order", "", "REQUESTED")])]);
        let reason = "Waiting for Listener \"order\" from cp:1.".to_owned();
        let headline = "Waiting for config".to_owned();
        assert_eq!(told(&[waiting.clone()], &xds), (VerdictLevel::Idle, headline.clone(), reason));

        waiting["traffic"]["in_flight"] = json!(2);
        let reason = "2 calls wait for a config: waiting for Listener \"order\" from cp:1.".to_owned();
        let mut held = waiting.clone();
        held["waiting"] = json!("waiting for listener \"order\" from cp:1 for 3 s");
        let said = "2 calls wait for a config: waiting for listener \"order\" from cp:1 for 3 s.".to_owned();
        assert_eq!(told(&[waiting.clone()], &xds), (VerdictLevel::Warn, headline.clone(), reason));
        assert_eq!(told(&[held], &xds).2, said);

        waiting["traffic"]["rate"] = json!(50.0);
        let failing = failing(waiting, &[("DEADLINE_EXCEEDED", "no_config", 3000)]);
        let xds = json!([client("xds:///order", &[resource("Listener", "order", "", "DOES_NOT_EXIST")])]);
        let (level, headline, text) = told(&[failing], &xds);
        assert_eq!((level, &*headline), (VerdictLevel::Bad, "No config"));
        let expected = "100.0% of calls fail: the channel has no config: Listener order does not exist.";
        assert_eq!(text, expected);

        let mut idle = channel("xds:///orders");
        (idle["tree"], idle["endpoints"], idle["state"]) = (Value::Null, json!([]), json!("IDLE"));
        idle["traffic"] = traffic(0.0);
        assert_eq!(told(&[idle], &json!([])).1, "Idle");
    }

    #[test]
    fn an_absent_resource_is_not_rejected() {
        let xds = |resource| json!([client("xds:///orders", &[resource])]);
        let of = |resource| {
            let (level, headline, text) = told(&[channel("xds:///orders")], &xds(resource));
            assert_eq!(level, VerdictLevel::Warn);
            (headline, text)
        };
        let pair = |headline: &str, text: &str| (headline.to_owned(), text.to_owned());
        assert_eq!(
            of(resource("Cluster", "pay", "3", "NACKED")),
            pair("Update rejected", "1 resource was rejected; the previous version stays in use.")
        );
        assert_eq!(
            of(resource("Cluster", "pay", "", "NACKED")),
            pair("Update rejected", "1 resource was rejected; no version is in use.")
        );
        for (status, text) in [
            ("DOES_NOT_EXIST", "Cluster pay does not exist."),
            ("TIMEOUT", "Cluster pay has not arrived from the control plane."),
            ("RECEIVED_ERROR", "The control plane returned an error for Cluster pay."),
        ] {
            assert_eq!(of(resource("Cluster", "pay", "", status)), pair("Resource missing", text));
        }
    }

    /// The worst channel gives the verdict. A problem of one xDS client is none of another channel.
    #[test]
    fn the_process_is_as_bad_as_its_worst_channel() {
        use VerdictLevel::{Bad, Good, Warn};

        let xds = json!([client("xds:///pay,xds:///users", &[resource("Cluster", "pay", "3", "NACKED")])]);
        let bad = failing(channel("dns:///users"), &[("INTERNAL", "server", 6000)]);
        let state = judged(&[channel("dns:///orders"), bad.clone(), channel("xds:///pay")], &xds);
        let levels: Vec<_> = state
            .channels
            .iter()
            .map(|channel| channel.verdict.as_ref().map(|verdict| verdict.level))
            .collect();
        assert_eq!(levels, [Some(Good), Some(Bad), Some(Warn)]);
        let verdict = state.verdict.expect("a verdict");
        assert_eq!((verdict.level, &*verdict.headline), (Bad, "Calls fail"));
        assert!(verdict.text.starts_with("dns:///users: 100.0% of calls fail."), "{}", verdict.text);

        let (_, _, text) = told(&[channel("dns:///orders"), bad.clone(), bad], &json!([]));
        assert!(text.ends_with(" 2 of 3 channels fail."), "{text}");
        // The client of no channel is judged too.
        let (level, headline, _) = told(&[channel("dns:///orders")], &xds);
        assert_eq!((level, &*headline), (Warn, "Update rejected"));
        assert_eq!(told(&[], &json!([])).1, "No channels");
    }

    type Change = fn(&mut Value);

    #[test]
    fn endpoints_are_judged() {
        let of = |change: Change| {
            let mut channel = channel("dns:///orders");
            change(&mut channel);
            let (level, headline, text) = told(&[channel], &json!([]));
            format!("{level:?} {headline}: {text}")
        };
        let cases: [(Change, &str); 8] = [
            (|_| {}, "Good On an even keel: Every endpoint gets the share it should, within rounding."),
            (
                |channel| channel["endpoints"][0]["utilization"] = json!(0.9),
                "Warn Busy: a is close to its capacity (up to 90%).",
            ),
            (
                |channel| {
                    channel["endpoints"][0]["utilization"] = json!(1.2);
                    channel["endpoints"][1]["utilization"] = json!(0.2);
                },
                "Bad Overloaded: a is above its capacity (up to 120%) while b has spare capacity (20%).",
            ),
            (
                |channel| {
                    channel["endpoints"][0]["state"] = json!("TRANSIENT_FAILURE");
                    channel["endpoints"][0]["unused"] =
                        json!("connecting to a:1: refused; next attempt in 3s");
                },
                "Warn 1 of 2 endpoints down: a gets no calls: refused. The others get the calls.",
            ),
            (
                |channel| {
                    channel["tree"] = json!({
                        "policy": "priority_experimental", "state": "READY", "children": [],
                        "details": { "cluster": "pay", "priorities": ["child0", "child1"], "chosen": "child1" },
                    });
                },
                "Warn Failover to priority 1: Cluster \"pay\" has failed over to priority 1: priority 0 is not available.",
            ),
            (
                |channel| channel["endpoints"][0]["off"] = json!(-0.125),
                "Warn Uneven: a gets 12.5 points less than it should.",
            ),
            (|channel| channel["traffic"] = traffic(0.0), "Idle No calls: 2 of 2 endpoints are ready."),
            (
                |channel| channel["endpoints"] = json!([]),
                "Idle No endpoints: The channel has received no endpoints.",
            ),
        ];
        for (change, expected) in cases {
            assert_eq!(of(change), expected);
        }
    }

    /// A state of a later version with unknown causes can be read.
    #[test]
    fn unknown_causes_are_read() {
        let cause: VerdictKind = serde_json::from_value(json!("from_the_future")).expect("a cause");
        assert_eq!(cause, VerdictKind::Other);
        let cause: FailureCause = serde_json::from_value(json!("from_the_future")).expect("a cause");
        assert_eq!(cause, FailureCause::Local);
    }
}
