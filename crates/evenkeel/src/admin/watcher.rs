//! Differences between samples: rates, shares, latencies, events and chart series.
//!
//! It receives samples and returns states, without a clock or a channel. Figures cover the last two
//! intervals: long enough to be steady, short enough to follow changes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use evenkeel_core::ConnectivityState;

use super::look::{AdminSample, ChannelSample, EndpointSample};
use super::state::{
    AdminEvent, AdminState, ChannelHistory, ChannelInfo, ClusterDrops, EndpointInfo, EventLevel,
    MetricSeries, TrafficStats, XdsClientInfo, XdsResourceInfo,
};
use super::uneven::ShareErrors;
use super::view::{self, ClusterPriorities};
use super::window::{CallWindow, CounterWindow};
use crate::telemetry::traffic::{CallStats, CallStatsSnapshot};

/// Number of sampling intervals that figures cover.
const SAMPLES_BACK: usize = 2;
/// Maximum number of samples per chart.
const MAX_POINTS: usize = 120;
const MAX_EVENTS: usize = 300;
/// Maximum number of endpoints with their own event per sample. Above it, one event summarizes them.
const MAX_SINGLE_EVENTS: usize = 8;

/// Counts of each channel by id, in total and by address.
type CallCounts = BTreeMap<u64, (CallStatsSnapshot, BTreeMap<String, CallStatsSnapshot>)>;

pub(super) struct StateWatcher {
    title: String,
    since: u64,
    samples: VecDeque<(u64, CallCounts)>,
    before: Option<AdminState>,
    events: VecDeque<AdminEvent>,
    numbers: u64,
    charts: BTreeMap<u64, ChannelChart>,
    recent: BTreeMap<u64, RecentCalls>,
}

/// Figures of one channel that need more than two samples.
#[derive(Default)]
struct RecentCalls {
    all: CallWindow,
    /// Windows by address, with the counters that they come from.
    endpoints: BTreeMap<String, (CallWindow, Vec<Arc<CallStats>>)>,
    /// Dropped calls by cluster and category.
    drops: BTreeMap<(String, Option<String>), CounterWindow>,
    share_errors: ShareErrors,
}

impl StateWatcher {
    pub(super) fn new(title: String, at: u64) -> StateWatcher {
        StateWatcher {
            title,
            since: at,
            samples: VecDeque::new(),
            before: None,
            events: VecDeque::new(),
            numbers: 0,
            charts: BTreeMap::new(),
            recent: BTreeMap::new(),
        }
    }

    /// Records an event of the application.
    pub(super) fn mark(&mut self, at: u64, text: String) {
        self.record_event(at, EventLevel::Mark, "", text);
    }

    /// Processes a sample and returns the resulting state.
    pub(super) fn handle_sample(&mut self, seen: AdminSample, at: u64) -> AdminState {
        let priorities: Vec<_> =
            seen.channels.iter().map(|channel| channel.tree.as_ref().map(view::priorities)).collect();
        let call_counts = call_counts(&seen);
        let channels = {
            let (then, before) = match self.samples.front() {
                Some((then, before)) => (*then, Some(before)),
                None => (at, None),
            };
            let seconds = at.saturating_sub(then) as f64 / 1e3;
            let is_first = before.is_none();
            let last = self.samples.back().map_or(at, |(last, _)| *last);
            let sample_seconds = at.saturating_sub(last) as f64 / 1e3;
            self.recent.retain(|id, _| seen.channels.iter().any(|channel| channel.id == *id));
            let state = |channel: ChannelSample| {
                let before = before.and_then(|before| before.get(&channel.id));
                let recent = self.recent.entry(channel.id).or_default();
                let drops = recent.drops(&channel, at, is_first);
                recent.handle_sample(&channel, at, is_first);
                let mut state = channel_state(channel, before, seconds, recent);
                state.drops = drops;
                recent.share_errors.handle_sample(&mut state.endpoints, sample_seconds);
                state
            };
            seen.channels.into_iter().map(state).collect()
        };
        self.samples.push_back((at, call_counts));
        if self.samples.len() > SAMPLES_BACK {
            self.samples.pop_front();
        }
        let mut state = AdminState {
            title: self.title.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            since: self.since,
            at,
            channels,
            xds: seen.xds,
            events: Vec::new(),
            hints: Vec::new(),
            verdict: None,
        };
        self.compare(&state);
        self.compare_priorities(&state, priorities);
        // Must precede `hints`, which reads the last points of the charts.
        self.chart(&state);
        state.hints = self.hints(&state);
        state.judge();
        self.before = Some(state.clone());
        state.events = self.events.iter().cloned().collect();
        state
    }

    /// Returns the chart series of all channels.
    pub(super) fn histories(&self) -> Vec<ChannelHistory> {
        self.charts.iter().map(|(id, chart)| chart.history(*id)).collect()
    }

    fn record_event(&mut self, at: u64, level: EventLevel, subject: &str, text: String) {
        self.numbers += 1;
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(AdminEvent {
            number: self.numbers,
            at,
            level,
            subject: subject.to_owned(),
            text,
        });
    }

    fn compare(&mut self, now: &AdminState) {
        let Some(before) = self.before.take() else { return };
        let at = now.at;
        for channel in &now.channels {
            let Some(was) = before.channels.iter().find(|was| was.id == channel.id) else {
                self.record_event(at, EventLevel::Info, &channel.target, "channel created".to_owned());
                continue;
            };
            self.compare_endpoints(at, channel, was);
            if was.state != channel.state {
                let (level, text) = match channel.state {
                    ConnectivityState::Ready => (EventLevel::Info, "ready"),
                    ConnectivityState::TransientFailure => (EventLevel::Error, "no endpoint is reachable"),
                    ConnectivityState::Connecting => (EventLevel::Info, "connecting"),
                    ConnectivityState::Idle => (EventLevel::Info, "idle"),
                };
                self.record_event(at, level, &channel.target, text.to_owned());
            }
        }
        for was in &before.channels {
            if now.channels.iter().all(|channel| channel.id != was.id) {
                self.record_event(at, EventLevel::Info, &was.target, "channel removed".to_owned());
            }
        }
        for client in &now.xds {
            if let Some(was) =
                before.xds.iter().find(|was| was.scope == client.scope && was.node == client.node)
            {
                self.compare_client(at, client, was);
            }
        }
    }

    fn compare_endpoints(&mut self, at: u64, channel: &ChannelInfo, was: &ChannelInfo) {
        let by_address = |channel: &'_ ChannelInfo| -> BTreeMap<String, EndpointInfo> {
            let of = channel.endpoints.iter();
            of.map(|endpoint| (endpoint.address.clone(), endpoint.clone())).collect()
        };
        // An IDLE or new channel has no tree. The event of the channel's state covers that.
        if channel.tree.is_none() || was.tree.is_none() {
            return;
        }
        let (now, before) = (by_address(channel), by_address(was));
        let mut found = Vec::new();
        for (address, endpoint) in &now {
            match before.get(address) {
                None => found.push((EventLevel::Info, label(endpoint), "endpoint added".to_owned())),
                Some(before) => {
                    found.extend(
                        changes(before, endpoint).map(|(level, text)| (level, label(endpoint), text)),
                    );
                }
            }
        }
        for (address, endpoint) in &before {
            if !now.contains_key(address) {
                found.push((EventLevel::Info, label(endpoint), "endpoint removed".to_owned()));
            }
        }
        if found.len() > MAX_SINGLE_EVENTS {
            let mut sums = BTreeMap::<String, (EventLevel, usize)>::new();
            for (level, _, text) in found {
                let text = text.split(':').next().unwrap_or_default().to_owned();
                sums.entry(text).or_insert((level, 0)).1 += 1;
            }
            for (text, (level, count)) in sums {
                self.record_event(at, level, &channel.target, format!("{text} ({count} endpoints)"));
            }
            return;
        }
        for (level, subject, text) in found {
            self.record_event(at, level, &subject, text);
        }
    }

    fn compare_client(&mut self, at: u64, client: &XdsClientInfo, was: &XdsClientInfo) {
        for server in &client.servers {
            let before = was.servers.iter().find(|before| before.uri == server.uri);
            let was_connected = before.is_some_and(|before| before.connected);
            if server.connected && !was_connected {
                self.record_event(at, EventLevel::Info, &server.uri, "control plane connected".to_owned());
            } else if !server.connected && was_connected {
                self.record_event(
                    at,
                    EventLevel::Warning,
                    &server.uri,
                    "control plane disconnected".to_owned(),
                );
            }
        }
        for resource in &client.resources {
            let before = was.resources.iter().find(|before| is_same(before, resource));
            let subject = format!("{} {}", resource.kind, resource.name);
            if before.is_none_or(|before| before.version != resource.version) && !resource.version.is_empty()
            {
                self.record_event(
                    at,
                    EventLevel::Info,
                    &subject,
                    format!("version {} in use", resource.version),
                );
            }
            let previous_error = before.and_then(|before| before.error.as_ref());
            if let Some(error) = &resource.error
                && previous_error
                    .is_none_or(|before| (&before.version, before.at) != (&error.version, error.at))
            {
                let text = match resource.absence() {
                    Some(_) => error.details.clone(),
                    None => format!("version {} rejected: {}", error.version, error.details),
                };
                self.record_event(at, EventLevel::Error, &subject, text);
            }
        }
    }

    fn compare_priorities(&mut self, now: &AdminState, priorities: Vec<Option<ClusterPriorities>>) {
        for (channel, priorities) in now.channels.iter().zip(priorities) {
            let chart = self.charts.entry(channel.id).or_default();
            let Some(priorities) = priorities else { continue };
            let before = std::mem::replace(&mut chart.priorities, priorities);
            let moved: Vec<_> = chart
                .priorities
                .iter()
                .filter_map(|(cluster, chosen)| {
                    let (before, chosen) = ((*before.get(cluster)?)?, (*chosen)?);
                    (before != chosen).then(|| (cluster.clone(), before, chosen))
                })
                .collect();
            for (cluster, before, chosen) in moved {
                let (level, word) = if chosen > before {
                    (EventLevel::Warning, "fails over")
                } else {
                    (EventLevel::Info, "returns")
                };
                self.record_event(
                    now.at,
                    level,
                    &cluster,
                    format!("{word} from priority {before} to {chosen}"),
                );
            }
        }
    }

    fn chart(&mut self, state: &AdminState) {
        self.charts.retain(|id, _| state.channels.iter().any(|channel| channel.id == *id));
        for channel in &state.channels {
            self.charts.entry(channel.id).or_default().handle_sample(state.at, channel);
        }
    }
}

impl RecentCalls {
    fn handle_sample(&mut self, channel: &ChannelSample, at: u64, is_first: bool) {
        self.all.handle_sample(at, &channel.calls, is_first);
        let mut addresses = BTreeSet::new();
        for seen in &channel.endpoints {
            let address = address(seen);
            // An address in two clusters has one set of counters.
            if addresses.insert(address.clone()) {
                let (window, held) = self.endpoints.entry(address).or_default();
                window.handle_sample(at, &seen.counts, is_first);
                held.clone_from(&seen.stats);
            }
        }
        // A removed endpoint may return with the counters of its connection.
        self.endpoints.retain(|_, (window, _)| !window.is_outdated(at));
    }

    /// Returns the calls that clusters dropped in the last minute.
    fn drops(&mut self, channel: &ChannelSample, at: u64, is_first: bool) -> Vec<ClusterDrops> {
        let counters = channel.tree.as_ref().map(view::drop_counters).unwrap_or_default();
        let drops = counters.into_iter().map(|counter| {
            let window = self.drops.entry((counter.cluster.clone(), counter.category.clone())).or_default();
            let count = window.handle_sample(at, counter.count, is_first);
            ClusterDrops { cluster: counter.cluster, category: counter.category, limit: counter.limit, count }
        });
        drops.filter(|drops| drops.count > 0).collect()
    }
}

fn call_counts(seen: &AdminSample) -> CallCounts {
    let of = |channel: &ChannelSample| {
        let endpoints = channel.endpoints.iter().map(|seen| (address(seen), seen.counts.clone())).collect();
        (channel.id, (channel.calls.clone(), endpoints))
    };
    seen.channels.iter().map(of).collect()
}

fn address(seen: &EndpointSample) -> String {
    seen.position.addresses.first().cloned().unwrap_or_default()
}

fn channel_state(
    channel: ChannelSample,
    before: Option<&(CallStatsSnapshot, BTreeMap<String, CallStatsSnapshot>)>,
    seconds: f64,
    recent: &RecentCalls,
) -> ChannelInfo {
    let none = CallStatsSnapshot::default();
    let endpoints_before = before.map(|(_, endpoints)| endpoints);
    let mut endpoints: Vec<_> = channel
        .endpoints
        .into_iter()
        .map(|seen| {
            let address = address(&seen);
            let before = endpoints_before.and_then(|before| before.get(&address)).unwrap_or(&none);
            let mut traffic = traffic(&seen.counts, before, seconds);
            if let Some((window, _)) = recent.endpoints.get(&address) {
                window.fill(&mut traffic, &seen.counts);
            }
            let position = seen.position;
            EndpointInfo {
                address,
                name: position.name,
                cluster: position.cluster,
                priority: position.priority,
                locality: position.locality,
                state: position.state,
                unused: position.unused,
                weight: position.weight,
                want: position.want,
                got: None,
                off: None,
                utilization: seen.counts.utilization,
                traffic,
            }
        })
        .collect();
    let mut by_cluster = BTreeMap::<_, f64>::new();
    for endpoint in &endpoints {
        *by_cluster.entry(endpoint.cluster.clone()).or_default() += endpoint.traffic.rate;
    }
    for endpoint in &mut endpoints {
        let all = by_cluster.get(&endpoint.cluster).copied().unwrap_or_default();
        endpoint.got = (all > 0.0).then(|| endpoint.traffic.rate / all);
    }
    let mut traffic = traffic(&channel.calls, before.map_or(&none, |(calls, _)| calls), seconds);
    recent.all.fill(&mut traffic, &channel.calls);
    ChannelInfo {
        id: channel.id,
        target: channel.target,
        state: channel.state,
        traffic,
        endpoints,
        tree: channel.tree,
        waiting: channel.waiting,
        drops: Vec::new(),
        verdict: None,
    }
}

fn traffic(now: &CallStatsSnapshot, before: &CallStatsSnapshot, seconds: f64) -> TrafficStats {
    let per_second = |now: u64, before: u64| {
        // Saturating: the counters of an address restart once nothing holds them.
        if seconds > 0.0 { now.saturating_sub(before) as f64 / seconds } else { 0.0 }
    };
    let [p50_ms, p99_ms] = now.quantiles(before, [0.5, 0.99]);
    TrafficStats {
        started: now.started,
        succeeded: now.succeeded,
        failed: now.failed,
        in_flight: now.started.saturating_sub(now.succeeded + now.failed + now.abandoned),
        rate: per_second(now.started, before.started),
        failures: per_second(now.failed, before.failed),
        p50_ms,
        p99_ms,
        ..TrafficStats::default()
    }
}

fn label(endpoint: &EndpointInfo) -> String {
    endpoint.name.clone().unwrap_or_else(|| endpoint.address.clone())
}

fn changes(before: &EndpointInfo, now: &EndpointInfo) -> impl Iterator<Item = (EventLevel, String)> {
    let state = (before.state != now.state).then(|| match (before.state, now.state) {
        (_, ConnectivityState::Ready) => Some((EventLevel::Info, "connected".to_owned())),
        (ConnectivityState::Ready, ConnectivityState::Idle) => {
            Some((EventLevel::Info, "connection closed".to_owned()))
        }
        (ConnectivityState::Ready, _) => Some((EventLevel::Error, "connection lost".to_owned())),
        (_, ConnectivityState::TransientFailure) => {
            Some((EventLevel::Warning, "cannot be reached".to_owned()))
        }
        _ => None,
    });
    let aside =
        (before.unused != now.unused && now.state == ConnectivityState::Ready).then(|| match &now.unused {
            Some(why) => Some((EventLevel::Warning, format!("gets no calls: {why}"))),
            None if before.state == ConnectivityState::Ready => {
                Some((EventLevel::Info, "gets calls again".to_owned()))
            }
            None => None,
        });
    [state, aside].into_iter().flatten().flatten()
}

fn is_same(one: &XdsResourceInfo, other: &XdsResourceInfo) -> bool {
    one.kind == other.kind && one.name == other.name
}

/// Utilization from which an endpoint counts as full.
const FULL_UTILIZATION: f64 = 0.95;
/// Maximum deviation of an actual share from the expected one.
const MAX_SHARE_ERROR: f64 = 0.1;
/// Minimum calls per second for comparing shares. Below it they are noise.
const MIN_CALL_RATE: f64 = 20.0;

impl StateWatcher {
    fn hints(&self, state: &AdminState) -> Vec<String> {
        let mut hints = Vec::new();
        for client in &state.xds {
            for server in client.servers.iter().filter(|server| !server.connected) {
                hints.push(format!(
                    "control plane {} is not connected: cached resources stay in use",
                    server.uri
                ));
            }
            for resource in client.resources.iter().filter(|resource| resource.is_rejected()) {
                let serving = match resource.version.as_str() {
                    "" => "and no version is in use".to_owned(),
                    version => format!("version {version} stays in use"),
                };
                hints.push(format!(
                    "{} {}: the last update was rejected, {serving}",
                    resource.kind, resource.name
                ));
            }
            for resource in &client.resources {
                hints.extend(resource.absence());
            }
        }
        for channel in &state.channels {
            for endpoint in &channel.endpoints {
                if endpoint.utilization.is_some_and(|utilization| utilization >= FULL_UTILIZATION) {
                    hints.push(format!("{} has no spare capacity", label(endpoint)));
                }
                if let (Some(want), Some(got)) = (endpoint.want, endpoint.got)
                    && (want - got).abs() > MAX_SHARE_ERROR
                    && channel.traffic.rate >= MIN_CALL_RATE
                    && self.is_settled(channel.id, endpoint)
                {
                    hints.push(format!(
                        "{} should get {:.0} % of the calls and gets {:.0} %",
                        label(endpoint),
                        want * 100.0,
                        got * 100.0
                    ));
                }
            }
            let mut nodes: Vec<_> = channel.tree.iter().collect();
            while let Some(node) = nodes.pop() {
                hints.extend(node.warnings.iter().map(|warning| format!("{}: {warning}", node.policy)));
                nodes.extend(node.children.iter().map(|(_, child)| child));
            }
        }
        hints
    }

    /// Returns true if the expected share has been stable for as long as figures go back. Before that, a
    /// deviation is no problem.
    fn is_settled(&self, channel: u64, endpoint: &EndpointInfo) -> bool {
        let lines = self.charts.get(&channel).and_then(|chart| chart.endpoints.get(&endpoint.address));
        let samples = || lines.iter().flat_map(|lines| lines.0.iter().rev().take(SAMPLES_BACK + 1));
        let is_same = |point: &ChartPoint| match (point.want, endpoint.want) {
            (Some(then), Some(now)) => (then - now).abs() < MAX_SHARE_ERROR / 2.0,
            _ => false,
        };
        samples().count() > SAMPLES_BACK && samples().all(is_same)
    }
}

/// Chart series of one channel.
#[derive(Default)]
struct ChannelChart {
    at: VecDeque<u64>,
    total: ChartLine,
    endpoints: BTreeMap<String, ChartLine>,
    /// Chosen priority of each cluster.
    priorities: ClusterPriorities,
}

/// Samples in order of time.
#[derive(Default)]
struct ChartLine(VecDeque<ChartPoint>);

#[derive(Clone, Copy, Default)]
struct ChartPoint {
    rate: Option<f64>,
    failures: Option<f64>,
    p99_ms: Option<f64>,
    want: Option<f64>,
    got: Option<f64>,
    utilization: Option<f64>,
}

impl ChartPoint {
    fn from_traffic(traffic: &TrafficStats) -> ChartPoint {
        ChartPoint {
            rate: Some(traffic.rate),
            failures: Some(traffic.failures),
            p99_ms: traffic.p99_ms,
            ..ChartPoint::default()
        }
    }
}

impl ChannelChart {
    fn handle_sample(&mut self, at: u64, channel: &ChannelInfo) {
        let length = self.at.len();
        self.at.push_back(at);
        self.total.0.push_back(ChartPoint::from_traffic(&channel.traffic));
        for endpoint in &channel.endpoints {
            let lines = self.endpoints.entry(endpoint.address.clone()).or_default();
            // Pad the samples before the endpoint existed. An address that occurs twice is shown once.
            lines.0.resize(length, ChartPoint::default());
            lines.0.push_back(ChartPoint {
                want: endpoint.want,
                got: endpoint.got,
                utilization: endpoint.utilization,
                ..ChartPoint::from_traffic(&endpoint.traffic)
            });
        }
        for lines in self.endpoints.values_mut() {
            lines.0.resize(length + 1, ChartPoint::default());
        }
        if self.at.len() > MAX_POINTS {
            self.at.pop_front();
            self.total.0.pop_front();
            for lines in self.endpoints.values_mut() {
                lines.0.pop_front();
            }
            self.endpoints.retain(|_, lines| lines.0.iter().any(|point| point.rate.is_some()));
        }
    }

    fn history(&self, id: u64) -> ChannelHistory {
        ChannelHistory {
            id,
            at: self.at.iter().copied().collect(),
            total: self.total.series(),
            endpoints: self
                .endpoints
                .iter()
                .map(|(address, lines)| (address.clone(), lines.series()))
                .collect(),
        }
    }
}

impl ChartLine {
    fn series(&self) -> MetricSeries {
        let each = |line: fn(&ChartPoint) -> Option<f64>| self.0.iter().map(line).collect();
        MetricSeries {
            rate: each(|point| point.rate),
            failures: each(|point| point.failures),
            p99_ms: each(|point| point.p99_ms),
            got: each(|point| point.got),
            utilization: each(|point| point.utilization),
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_core::Description;

    use super::super::state::XdsResourceError;
    use super::super::view::EndpointPosition;
    use super::*;

    fn endpoint(address: &str, state: ConnectivityState, counts: CallStatsSnapshot) -> EndpointSample {
        let position = EndpointPosition {
            addresses: vec![address.to_owned()],
            name: None,
            cluster: Some("orders".to_owned()),
            priority: None,
            locality: None,
            state,
            unused: None,
            weight: None,
            want: Some(0.5),
        };
        EndpointSample { position, counts, stats: Vec::new() }
    }

    fn seen(endpoints: Vec<EndpointSample>) -> AdminSample {
        let started = endpoints.iter().map(|endpoint| endpoint.counts.started).sum();
        let channel = ChannelSample {
            id: 7,
            target: "xds:///orders".to_owned(),
            state: ConnectivityState::Ready,
            tree: Some(Description::new()),
            waiting: None,
            calls: calls(started),
            endpoints,
        };
        AdminSample { channels: vec![channel], xds: Vec::new() }
    }

    fn calls(started: u64) -> CallStatsSnapshot {
        let mut counts = CallStatsSnapshot::default();
        (counts.started, counts.succeeded) = (started, started);
        counts
    }

    fn found(state: &AdminState) -> Vec<(EventLevel, &str, &str)> {
        state.events.iter().map(|event| (event.level, &*event.subject, &*event.text)).collect()
    }

    #[test]
    fn figures_are_those_of_the_last_two_looks() {
        let mut watcher = StateWatcher::new("test".to_owned(), 0);
        let two = |a: u64, b: u64| {
            let ready = ConnectivityState::Ready;
            seen(vec![endpoint("a", ready, calls(a)), endpoint("b", ready, calls(b))])
        };
        let first = watcher.handle_sample(two(1000, 0), 1000);
        // The first sample has no interval, so it has no rates.
        assert_eq!((first.channels[0].traffic.rate, first.channels[0].endpoints[0].got), (0.0, None));
        watcher.handle_sample(two(1100, 300), 2000);
        let third = watcher.handle_sample(two(1200, 600), 3000);
        let [a, b] = &third.channels[0].endpoints[..] else { panic!("two endpoints") };
        assert_eq!((a.traffic.rate, b.traffic.rate, third.channels[0].traffic.rate), (100.0, 300.0, 400.0));
        assert_eq!((a.got, b.got, a.traffic.started), (Some(0.25), Some(0.75), 1200));
        assert_eq!(
            third.hints,
            ["a should get 50 % of the calls and gets 25 %", "b should get 50 % of the calls and gets 75 %"]
        );
        assert!(first.hints.is_empty(), "{:?}", first.hints);
        // The first sample is outside the window now.
        let fourth = watcher.handle_sample(two(1200, 1000), 4000);
        assert_eq!(fourth.channels[0].endpoints[0].got, Some(0.125));
    }

    #[test]
    fn what_changes_between_two_looks_is_an_event() {
        use ConnectivityState::{Connecting, Ready, TransientFailure};
        let mut watcher = StateWatcher::new("test".to_owned(), 0);
        let look = |states: &[(&str, ConnectivityState)]| {
            seen(states.iter().map(|(name, state)| endpoint(name, *state, calls(0))).collect())
        };
        assert_eq!(found(&watcher.handle_sample(look(&[("a", Ready), ("b", Connecting)]), 1)), []);
        watcher.mark(2, "act 2".to_owned());
        watcher.handle_sample(look(&[("a", TransientFailure), ("b", Ready)]), 3);
        let state = watcher.handle_sample(look(&[("b", TransientFailure), ("c", Connecting)]), 4);
        assert_eq!(
            found(&state),
            [
                (EventLevel::Mark, "", "act 2"),
                (EventLevel::Error, "a", "connection lost"),
                (EventLevel::Info, "b", "connected"),
                (EventLevel::Error, "b", "connection lost"),
                (EventLevel::Info, "c", "endpoint added"),
                (EventLevel::Info, "a", "endpoint removed"),
            ]
        );
        assert!(state.events.windows(2).all(|pair| pair[0].number < pair[1].number));
    }

    #[test]
    fn many_events_are_summed_up() {
        let mut watcher = StateWatcher::new("test".to_owned(), 0);
        let many = |from: usize| {
            let of =
                (from..from + 100).map(|i| endpoint(&format!("{i}"), ConnectivityState::Ready, calls(0)));
            seen(of.collect())
        };
        watcher.handle_sample(many(0), 1);
        let state = watcher.handle_sample(many(90), 2);
        let (joined, left) = ("endpoint added (90 endpoints)", "endpoint removed (90 endpoints)");
        let target = "xds:///orders";
        assert_eq!(found(&state), [(EventLevel::Info, target, joined), (EventLevel::Info, target, left)]);
    }

    #[test]
    fn a_rejected_resource_is_an_error_and_a_hint() {
        let mut watcher = StateWatcher::new("test".to_owned(), 0);
        let resource = |version: &str, error: Option<&str>| {
            let mut seen = seen(Vec::new());
            seen.xds.push(XdsClientInfo {
                scope: String::new(),
                node: "node".to_owned(),
                servers: Vec::new(),
                resources: vec![XdsResourceInfo {
                    kind: "Cluster".to_owned(),
                    name: "orders".to_owned(),
                    version: version.to_owned(),
                    status: if error.is_some() { "NACKED" } else { "ACKED" }.to_owned(),
                    updated: None,
                    error: error.map(|details| XdsResourceError {
                        version: "3".to_owned(),
                        details: details.to_owned(),
                        at: Some(1),
                    }),
                }],
            });
            seen
        };
        watcher.handle_sample(resource("1", None), 1);
        assert_eq!(
            found(&watcher.handle_sample(resource("2", None), 2)),
            [(EventLevel::Info, "Cluster orders", "version 2 in use")]
        );
        watcher.handle_sample(resource("2", Some("no policy")), 3);
        let state = watcher.handle_sample(resource("2", Some("no policy")), 4);
        assert_eq!(
            found(&state)[1..],
            [(EventLevel::Error, "Cluster orders", "version 3 rejected: no policy")]
        );
        assert_eq!(state.hints, ["Cluster orders: the last update was rejected, version 2 stays in use"]);
    }

    #[test]
    fn charts_drop_old_samples_and_removed_endpoints() {
        let mut watcher = StateWatcher::new("test".to_owned(), 0);
        for at in 0..MAX_POINTS as u64 + 10 {
            let names: &[&str] = if at < 5 { &["old"] } else { &["new"] };
            let of = names.iter().map(|name| endpoint(name, ConnectivityState::Ready, calls(at)));
            watcher.handle_sample(seen(of.collect()), at * 1000);
            let [history] = &watcher.histories()[..] else { panic!("one channel") };
            let lengths = history.endpoints.iter().map(|(_, series)| series.rate.len());
            assert!(lengths.chain([history.total.p99_ms.len()]).all(|length| length == history.at.len()));
        }
        let [history] = &watcher.histories()[..] else { panic!("one channel") };
        assert_eq!(history.at.len(), MAX_POINTS);
        assert_eq!(history.endpoints.iter().map(|(address, _)| &**address).collect::<Vec<_>>(), ["new"]);
    }
}
