//! Meters of xDS clients (A78, A88).
//!
//! The xDS thread publishes statistics, and exporters observe the last published ones. An observable instrument cannot
//! be unregistered. Therefore all clients share one set of instruments, and dropped clients are skipped on export.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};

use evenkeel_xds::ads::{AdsClient, ResourceCounts, ServerStats};
use evenkeel_xds::resource::ResourceType;
use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;

use super::catalogue::Metric;
use super::channel::ChannelInstruments;
use super::instruments::{target, text};
use crate::sync::lock;

/// Registry of the xDS clients to report.
#[derive(Debug, Default)]
pub(super) struct XdsClientRegistry {
    known: Mutex<Vec<Weak<XdsClientStats>>>,
    /// True if resources are counted by state. Counting visits every resource, so it is skipped otherwise.
    counts_resources: bool,
}

/// Statistics that one client published last.
#[derive(Debug)]
struct XdsClientStats {
    target: Arc<str>,
    servers: Mutex<Vec<ServerStats>>,
    resources: Mutex<Vec<ResourceCounts>>,
}

impl XdsClientRegistry {
    /// Creates the enabled instruments. Returns `None` if no xDS metric is enabled.
    pub(super) fn register(meter: &Meter, enabled: &BTreeSet<Metric>) -> Option<Arc<XdsClientRegistry>> {
        let is_on = |metric| enabled.contains(&metric);
        let clients = Arc::new(XdsClientRegistry {
            known: Mutex::default(),
            counts_resources: is_on(Metric::XdsResources),
        });
        if is_on(Metric::XdsConnected) {
            let (metric, clients) = (Metric::XdsConnected, clients.clone());
            let gauge = meter.u64_observable_gauge(metric.name()).with_unit(metric.unit());
            let gauge = gauge.with_description(metric.description()).with_callback(move |gauge| {
                clients.each_server(|tally, attributes| {
                    // An unused fallback server has no stream, which is not a failure.
                    if tally.in_use {
                        gauge.observe(u64::from(tally.connected), attributes);
                    }
                });
            });
            // Dropping the instrument does not unregister its callback.
            gauge.build();
        }
        if is_on(Metric::XdsServerFailure) {
            let (metric, clients) = (Metric::XdsServerFailure, clients.clone());
            let counter = meter.u64_observable_counter(metric.name()).with_unit(metric.unit());
            let counter = counter.with_description(metric.description()).with_callback(move |counter| {
                clients.each_server(|tally, attributes| counter.observe(tally.failures, attributes));
            });
            counter.build();
        }
        let updates: [(Metric, UpdateCounts); 2] = [
            (Metric::XdsResourceUpdatesValid, |tally| &tally.valid),
            (Metric::XdsResourceUpdatesInvalid, |tally| &tally.invalid),
        ];
        for (metric, updates) in updates.into_iter().filter(|(metric, _)| is_on(*metric)) {
            let clients = clients.clone();
            let counter = meter.u64_observable_counter(metric.name()).with_unit(metric.unit());
            let counter = counter.with_description(metric.description()).with_callback(move |counter| {
                clients.each_server(|tally, attributes| {
                    for (kind, count) in updates(tally) {
                        let attributes = [attributes, &[resource_type(*kind)]].concat();
                        counter.observe(*count, &attributes);
                    }
                });
            });
            counter.build();
        }
        if is_on(Metric::XdsResources) {
            let (metric, clients) = (Metric::XdsResources, clients.clone());
            let gauge = meter.u64_observable_gauge(metric.name()).with_unit(metric.unit());
            let gauge = gauge.with_description(metric.description()).with_callback(move |gauge| {
                clients.each_resource(|census, attributes| gauge.observe(census.count, attributes));
            });
            gauge.build();
        }
        let any = [
            Metric::XdsConnected,
            Metric::XdsServerFailure,
            Metric::XdsResourceUpdatesValid,
            Metric::XdsResourceUpdatesInvalid,
            Metric::XdsResources,
        ];
        any.into_iter().any(is_on).then_some(clients)
    }

    /// Calls `each` for every server of every live client, with its labels.
    fn each_server(&self, mut each: impl FnMut(&ServerStats, &[KeyValue])) {
        for client_stats in self.live_clients() {
            for tally in lock(&client_stats.servers).iter() {
                let server = KeyValue::new("grpc.xds.server", text(tally.server.uri.clone()));
                each(tally, &[target(&client_stats.target), server]);
            }
        }
    }

    fn each_resource(&self, mut each: impl FnMut(&ResourceCounts, &[KeyValue])) {
        for client_stats in self.live_clients() {
            for census in lock(&client_stats.resources).iter() {
                // A78: resource names without `xdstp:` have the authority `#old`.
                let authority = census.authority.clone().unwrap_or_else(|| "#old".into());
                let attributes = [
                    target(&client_stats.target),
                    KeyValue::new("grpc.xds.authority", text(authority)),
                    KeyValue::new("grpc.xds.cache_state", census.state.as_str()),
                    resource_type(census.kind),
                ];
                each(census, &attributes);
            }
        }
    }

    fn live_clients(&self) -> Vec<Arc<XdsClientStats>> {
        let mut known = lock(&self.known);
        known.retain(|client_stats| client_stats.strong_count() > 0);
        // Collected, so that the registry is not locked while an exporter observes.
        known.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Selects the counts of a server that an instrument reports.
type UpdateCounts = fn(&ServerStats) -> &BTreeMap<ResourceType, u64>;

fn resource_type(kind: ResourceType) -> KeyValue {
    KeyValue::new("grpc.xds.resource_type", kind.message())
}

/// Meter of one xDS client. The client is reported until its meter is dropped.
#[derive(Debug)]
pub(crate) struct XdsMeter(Option<(Arc<XdsClientRegistry>, Arc<XdsClientStats>)>);

impl XdsMeter {
    pub(super) fn begin(channel: Option<&ChannelInstruments>) -> XdsMeter {
        XdsMeter(channel.and_then(|channel| {
            let clients = channel.instruments.xds_clients.clone()?;
            let client_stats = Arc::new(XdsClientStats {
                target: channel.target.clone(),
                servers: Mutex::default(),
                resources: Mutex::default(),
            });
            lock(&clients.known).push(Arc::downgrade(&client_stats));
            Some((clients, client_stats))
        }))
    }

    /// Publishes the client's statistics. It may visit every resource, so the client calls it when it becomes idle, not
    /// after each step.
    pub(crate) fn publish(&self, client: &AdsClient) {
        let Some((clients, client_stats)) = &self.0 else { return };
        *lock(&client_stats.servers) = client.server_stats().cloned().collect();
        if clients.counts_resources {
            *lock(&client_stats.resources) = client.resource_counts();
        }
    }
}
