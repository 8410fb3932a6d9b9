//! Meters of xDS clients (A78, A88).
//!
//! The thread of a client publishes how things stand; exporters read what was published last. Instruments that are read on
//! export cannot be taken back, so there is one set of them for all clients, and a client that is gone is not reported.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};

use evenkeel_xds::ads::{AdsClient, ResourceCounts, ServerStats};
use evenkeel_xds::resource::ResourceType;
use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;

use super::call::lock;
use super::catalogue::Metric;
use super::channel::ChannelInstruments;
use super::instruments::{target, text};

/// The clients that there are.
#[derive(Debug, Default)]
pub(super) struct XdsClientRegistry {
    known: Mutex<Vec<Weak<XdsClientStats>>>,
    /// Whether resources are counted by state; that takes a look at all of them.
    counts_resources: bool,
}

/// How things stand with one client.
#[derive(Debug)]
struct XdsClientStats {
    target: Arc<str>,
    servers: Mutex<Vec<ServerStats>>,
    resources: Mutex<Vec<ResourceCounts>>,
}

impl XdsClientRegistry {
    /// Makes the instruments that are enabled, if there are any.
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
                    // A fallback server that nobody needs is not in trouble.
                    if tally.in_use {
                        gauge.observe(u64::from(tally.connected), attributes);
                    }
                });
            });
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

    /// All servers, with the labels of each.
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
        known.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Which of a server's counts an instrument reports.
type UpdateCounts = fn(&ServerStats) -> &BTreeMap<ResourceType, u64>;

fn resource_type(kind: ResourceType) -> KeyValue {
    KeyValue::new("grpc.xds.resource_type", kind.message())
}

/// Measures one xDS client, for as long as it lives.
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

    /// Says how things stand with the client. To be called when there is nothing to do for it, not after each step: it may
    /// look at every resource.
    pub(crate) fn publish(&self, client: &AdsClient) {
        let Some((clients, client_stats)) = &self.0 else { return };
        *lock(&client_stats.servers) = client.server_stats().cloned().collect();
        if clients.counts_resources {
            *lock(&client_stats.resources) = client.resource_counts();
        }
    }
}
