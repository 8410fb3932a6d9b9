//! Metrics exporter that blocks.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel::{Channel, OtelMetrics};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, MetricData, ResourceMetrics, ScopeMetrics, SumDataPoint,
};
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider, Temporality};
use testkit::net::Backend;
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

use super::{LONG, lock};

/// Exporter that reports the start of each export, and blocks its thread until it is released.
struct BlockedExporter {
    begun: Sender<()>,
    released: Mutex<Receiver<()>>,
    /// Number of started attempts in each export.
    started: Arc<Mutex<Vec<u64>>>,
}

impl PushMetricExporter for BlockedExporter {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        lock(&self.started).push(started_attempts(metrics));
        let _ = self.begun.send(());
        // An error is the release: the test has dropped its sender.
        let _ = lock(&self.released).recv();
        Ok(())
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }

    fn temporality(&self) -> Temporality {
        Temporality::Cumulative
    }
}

/// Returns the sum of all series of `grpc.client.attempt.started`.
fn started_attempts(metrics: &ResourceMetrics) -> u64 {
    let metrics = metrics.scope_metrics().flat_map(ScopeMetrics::metrics);
    let started = metrics.filter(|metric| metric.name() == "grpc.client.attempt.started");
    started
        .map(|metric| match metric.data() {
            AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                sum.data_points().map(SumDataPoint::value).sum::<u64>()
            }
            other => panic!("not a counter: {other:?}"),
        })
        .sum()
}

/// fault 78: while an export blocks, calls succeed on an existing channel and on one built meanwhile. The
/// next export contains all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_exporter_delays_no_call() {
    let (begun, begins) = channel();
    let (release, released) = channel();
    let started = Arc::<Mutex<Vec<u64>>>::default();
    let exporter = BlockedExporter { begun, released: Mutex::new(released), started: started.clone() };
    let reader = PeriodicReader::builder(exporter).with_interval(Duration::from_millis(10)).build();
    let provider = SdkMeterProvider::builder().with_reader(reader).build();
    let metrics = OtelMetrics::builder(&provider).build();

    let backend = Backend::start().await;
    let open = || Channel::builder(format!("ipv4:{}", backend.address())).metrics(&metrics).build().unwrap();
    let first = open();
    EchoClient::new(first.clone()).unary(EchoRequest::default()).await.unwrap();
    let begins = spawn_blocking(move || {
        begins.recv_timeout(LONG).expect("an export begins");
        begins
    });
    let begins = begins.await.unwrap();

    let mut calls = JoinSet::new();
    for channel in [first, open()] {
        for _ in 0..8 {
            let mut client = EchoClient::new(channel.clone());
            calls.spawn(async move {
                for _ in 0..50 {
                    client.unary(EchoRequest::default()).await.unwrap();
                }
            });
        }
    }
    timeout(LONG, calls.join_all()).await.expect("calls are answered during the export");
    assert_eq!(begins.try_recv(), Err(TryRecvError::Empty), "the first export still blocks");
    assert_eq!(lock(&started).len(), 1);

    drop(release);
    spawn_blocking(move || provider.force_flush()).await.unwrap().unwrap();
    assert_eq!(lock(&started).last(), Some(&801));
}
