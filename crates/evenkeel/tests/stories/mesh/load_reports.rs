//! weighted_round_robin with load reports, per call and out of band.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_orca::{CallLoad, OrcaLoadReport, ServerLoad};
use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::extensions::load_balancing_policies::client_side_weighted_round_robin::v3::ClientSideWeightedRoundRobin;
use evenkeel_proto::envoy::extensions::load_balancing_policies::wrr_locality::v3::WrrLocality;
use evenkeel_proto::prost_types;
use testkit::net::Backend;
use testkit::resources::{self, any};
use tokio::time::Instant;
use tonic::Request;
use tonic::service::{InterceptorLayer, Routes};

use super::balance::{policy_list, share_of};
use super::{Mesh, shares, until_tree};
use crate::load::Load;

fn duration(millis: u64) -> Option<prost_types::Duration> {
    Duration::from_millis(millis).try_into().ok()
}

/// Config without a blackout period, with the minimum update period of A58.
fn at_once() -> ClientSideWeightedRoundRobin {
    ClientSideWeightedRoundRobin {
        blackout_period: duration(0),
        weight_update_period: duration(100),
        ..ClientSideWeightedRoundRobin::default()
    }
}

/// The same with out-of-band reports at this interval.
fn out_of_band(millis: u64) -> ClientSideWeightedRoundRobin {
    ClientSideWeightedRoundRobin {
        enable_oob_load_report: Some(true),
        oob_reporting_period: duration(millis),
        ..at_once()
    }
}

impl Mesh {
    /// Sets the policy config of the cluster.
    fn weigh(&self, settings: &ClientSideWeightedRoundRobin) {
        let locality = WrrLocality { endpoint_picking_policy: Some(policy_list([any(settings)])) };
        let load_balancing_policy = Some(policy_list([any(&locality)]));
        self.control.set(Cluster { load_balancing_policy, ..resources::cluster("pay") });
    }

    /// Makes every backend report this utilization at 100 requests per second, or nothing.
    fn report<const N: usize>(&self, utilizations: [Option<f64>; N]) {
        for (backend, utilization) in self.backends.iter().zip(utilizations) {
            backend.set_load(utilization.map(|application_utilization| OrcaLoadReport {
                application_utilization,
                rps_fractional: 100.0,
                ..OrcaLoadReport::default()
            }));
        }
    }

    /// Waits until the expected shares of the tree are these, within 2 %.
    async fn settles<const N: usize>(&self, parts: [f64; N]) {
        let whole: f64 = parts.iter().sum();
        until_tree(&self.channel, &format!("the shares are {parts:?}"), |tree| {
            self.backends.iter().zip(parts).all(|(backend, part)| {
                let share = share_of(tree, backend, |row| row.share).unwrap_or_default();
                (share - part / whole).abs() <= 0.02 * part / whole
            })
        })
        .await;
    }

    /// Makes calls and asserts their distribution, within 2 %.
    async fn splits<const N: usize>(&self, parts: [usize; N]) {
        let calls = 1_000 / parts.iter().sum::<usize>() * parts.iter().sum::<usize>();
        let shares = shares(&self.channel, calls).await;
        println!("{shares:?}");
        for (backend, part) in self.backends.iter().zip(parts) {
            let expected = calls * part / parts.iter().sum::<usize>();
            let got = shares.get(backend.name()).copied().unwrap_or_default();
            assert!(got.abs_diff(expected) * 100 <= expected * 2, "{parts:?}: {shares:?}");
        }
    }
}

/// Starts a backend with the ORCA layer. Its CPU is full at `capacity` requests per second. `record` sets
/// further values per call.
async fn of_capacity(capacity: f64, record: fn(&CallLoad)) -> Backend {
    let done = Arc::new(AtomicU64::new(0));
    let mut before = 0;
    let work = done.clone();
    let cpu = move |elapsed: Duration| {
        let done = work.load(Ordering::SeqCst);
        let used = (done - before) as f64 / capacity;
        before = done;
        (elapsed > Duration::ZERO).then(|| used / elapsed.as_secs_f64())
    };
    // The layer runs this predicate at the end of a call, so it counts completed work.
    let count = move |_| {
        done.fetch_add(1, Ordering::SeqCst);
        false
    };
    let load = ServerLoad::builder().cpu(cpu).errors(count).window(Duration::from_millis(200)).build();
    let around = move |routes: Routes| {
        let record = InterceptorLayer::new(move |request: Request<()>| {
            record(&CallLoad::current().expect("behind the layer"));
            Ok(request)
        });
        let routes = routes.prepare().into_axum_router().layer(record).layer(load.layer());
        Routes::from(routes).add_service(load.service().min_interval(Duration::from_millis(50)))
    };
    Backend::builder().around(around).start().await
}

async fn unequal(record: fn(&CallLoad)) -> Vec<Backend> {
    let mut backends = Vec::new();
    for capacity in [10_000.0, 20_000.0, 40_000.0] {
        backends.push(of_capacity(capacity, record).await);
    }
    backends
}

/// ORCA-1, WRR-13: three servers with capacities 1, 2 and 4 report per call and get shares 1, 2 and 4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capacities_per_call() {
    let mesh = Mesh::of(unequal(|_| ()).await).await;
    mesh.weigh(&at_once());
    let load = Load::start(&mesh.channel, 16);
    mesh.settles([1.0, 2.0, 4.0]).await;
    load.stop().await.expect_none_failed();
    mesh.splits([1, 2, 4]).await;
}

/// ORCA-8, ORCA-12, WRR-13: the same out of band. Conflicting per-call reports are ignored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capacities_out_of_band() {
    let mislead = |load: &CallLoad| {
        load.record_cpu_utilization(0.5);
        load.record_qps(100.0);
    };
    let mesh = Mesh::of(unequal(mislead).await).await;
    mesh.weigh(&out_of_band(100));
    let load = Load::start(&mesh.channel, 16);
    mesh.settles([1.0, 2.0, 4.0]).await;
    load.stop().await.expect_none_failed();
    mesh.splits([1, 2, 4]).await;
    assert_eq!(mesh.connections(), [1; 3], "reports come over the connections of calls");
}

/// WRR-14, ORCA-8: config updates switch from per-call to out-of-band reports, to another period, and back.
/// Connections stay, streams start and end, and weights follow the current source.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_source_of_reports_changes() {
    let mesh = Mesh::start(3).await;
    mesh.report([Some(0.8), Some(0.4), Some(0.2)]);
    mesh.weigh(&at_once());
    let load = Load::start(&mesh.channel, 8);
    mesh.settles([1.0, 2.0, 4.0]).await;
    assert!(mesh.backends.iter().all(|backend| backend.load_streams() == 0));

    // From here on, only the streams carry the load.
    mesh.weigh(&out_of_band(50));
    for backend in &mesh.backends {
        backend.wait_until(|backend| backend.open_load_streams() == 1).await;
        assert_eq!(backend.load_interval(), Some(Duration::from_millis(50)));
    }
    mesh.report([Some(0.2), Some(0.4), Some(0.8)]);
    for backend in &mesh.backends {
        backend.set_load_trailer(None);
    }
    mesh.settles([4.0, 2.0, 1.0]).await;

    mesh.weigh(&out_of_band(75));
    for backend in &mesh.backends {
        let is_anew = |backend: &Backend| backend.load_streams() == 2 && backend.open_load_streams() == 1;
        backend.wait_until(is_anew).await;
        assert_eq!(backend.load_interval(), Some(Duration::from_millis(75)));
    }

    mesh.weigh(&at_once());
    for backend in &mesh.backends {
        backend.wait_until(|backend| backend.open_load_streams() == 0).await;
    }
    mesh.report([Some(0.4), Some(0.4), Some(0.2)]);
    mesh.settles([1.0, 1.0, 2.0]).await;
    load.stop().await.expect_none_failed();
    assert_eq!(mesh.connections(), [1; 3]);
    assert!(mesh.backends.iter().all(|backend| backend.load_streams() == 2));
}

/// WRR-6, WRR-8: weights apply only after the blackout period and expire only after the expiration period.
/// Further reports start another blackout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blackout_expiration_and_return() {
    const BLACKOUT: Duration = Duration::from_millis(300);
    const EXPIRATION: Duration = Duration::from_millis(700);
    let mesh = Mesh::start(2).await;
    mesh.weigh(&ClientSideWeightedRoundRobin {
        blackout_period: duration(300),
        weight_expiration_period: duration(700),
        ..at_once()
    });
    mesh.report([Some(0.75), Some(0.25)]);
    let began = Instant::now();
    let load = Load::start(&mesh.channel, 4);
    mesh.settles([1.0, 3.0]).await;
    assert!(began.elapsed() >= BLACKOUT, "{:?}", began.elapsed());

    let last_reports_after = Instant::now();
    load.further(10).await;
    mesh.report([None, None]);
    mesh.settles([1.0, 1.0]).await;
    assert!(last_reports_after.elapsed() >= EXPIRATION, "{:?}", last_reports_after.elapsed());

    let again = Instant::now();
    mesh.report([Some(0.25), Some(0.75)]);
    mesh.settles([3.0, 1.0]).await;
    assert!(again.elapsed() >= BLACKOUT, "{:?}", again.elapsed());
    load.stop().await.expect_none_failed();
}

/// WRR-9: a backend that stops reporting gets the average weight once its last report expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_stops_to_report_gets_the_average() {
    let mesh = Mesh::start(3).await;
    mesh.weigh(&ClientSideWeightedRoundRobin { weight_expiration_period: duration(500), ..at_once() });
    mesh.report([Some(0.8), Some(0.2), Some(0.1)]);
    let load = Load::start(&mesh.channel, 8);
    mesh.settles([1.0, 4.0, 8.0]).await;
    mesh.report([Some(0.8), Some(0.2), None]);
    mesh.settles([2.0, 8.0, 5.0]).await;
    load.stop().await.expect_none_failed();
    mesh.splits([2, 8, 5]).await;
}

/// WRR-4: the error utilization penalty. With half of the requests failing and a penalty of 1, a utilization
/// of 0.5 counts as 1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_move_calls_away() {
    let mesh = Mesh::start(3).await;
    for (backend, eps) in mesh.backends.iter().zip([50.0, 0.0, 0.0]) {
        let load =
            OrcaLoadReport { cpu_utilization: 0.5, rps_fractional: 100.0, eps, ..OrcaLoadReport::default() };
        backend.set_load(Some(load));
    }
    mesh.weigh(&at_once());
    let load = Load::start(&mesh.channel, 8);
    mesh.settles([1.0, 2.0, 2.0]).await;
    load.stop().await.expect_none_failed();
    mesh.splits([1, 2, 2]).await;

    let load = Load::start(&mesh.channel, 8);
    mesh.weigh(&ClientSideWeightedRoundRobin { error_utilization_penalty: Some(3.0), ..at_once() });
    mesh.settles([1.0, 4.0, 4.0]).await;
    mesh.weigh(&ClientSideWeightedRoundRobin { error_utilization_penalty: Some(0.0), ..at_once() });
    mesh.settles([1.0, 1.0, 1.0]).await;
    load.stop().await.expect_none_failed();
}

/// fault 59, ORCA-9: a backend without the service gets one stream per connection, also after config updates. Calls
/// use round robin, and none fails. A new connection gets another stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backends_that_do_not_report() {
    let mesh = Mesh::start(3).await;
    mesh.weigh(&out_of_band(100));
    let load = Load::start(&mesh.channel, 8);
    for backend in &mesh.backends {
        backend.wait_until(|backend| backend.load_streams() == 1).await;
    }
    // The first UNIMPLEMENTED may arrive after the first config update. Later updates must not start a
    // stream.
    let asked = || mesh.backends.iter().map(Backend::load_streams).sum::<usize>();
    let mut changes_in_vain = 0;
    for period in 200..230 {
        let before = asked();
        mesh.weigh(&out_of_band(period));
        mesh.control.wait_acked::<Cluster>().await;
        load.further(5).await;
        changes_in_vain = if asked() == before { changes_in_vain + 1 } else { 0 };
    }
    assert!(changes_in_vain > 20, "asked {} times, {changes_in_vain} changes in vain", asked());
    mesh.settles([1.0, 1.0, 1.0]).await;
    load.stop().await.expect_none_failed();
    mesh.splits([1, 1, 1]).await;

    mesh.backends[0].kill();
    mesh.report([Some(0.5); 3]);
    mesh.backends[0].restart().await;
    mesh.backends[0].wait_until(|backend| backend.open_load_streams() == 1).await;
}

/// ORCA-10: a draining backend's stream ends with its connection, and starts again on the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_with_its_connection() {
    let mesh = Mesh::start(2).await;
    mesh.report([Some(0.5); 2]);
    mesh.weigh(&out_of_band(50));
    let load = Load::start(&mesh.channel, 4);
    let leaving = &mesh.backends[0];
    leaving.wait_until(|backend| backend.open_load_streams() == 1).await;
    // The drain waits for the last stream, so it would hang if the report stream stayed open.
    leaving.drain().await;
    assert_eq!(leaving.open_load_streams(), 0);
    leaving.restart().await;
    leaving.wait_until(|backend| backend.open_load_streams() == 1).await;
    load.stop().await.expect_none_failed();

    let Mesh { channel, backends, .. } = mesh;
    channel.close().await;
    for backend in &backends {
        backend.wait_until(|backend| backend.open_load_streams() == 0).await;
    }
}

/// ORCA-12: a backend with one concurrent stream gets no report stream, since that would block all calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_does_not_take_the_place_of_calls() {
    let mut backends = Vec::new();
    for limit in [1, 2] {
        backends.push(Backend::builder().max_concurrent_streams(limit).start().await);
    }
    let mesh = Mesh::of(backends).await;
    mesh.report([Some(0.5); 2]);
    mesh.weigh(&out_of_band(50));
    let load = Load::start(&mesh.channel, 8);
    mesh.backends[1].wait_until(|backend| backend.open_load_streams() == 1).await;
    load.further(20).await;
    load.stop().await.expect_none_failed();
    assert_eq!(mesh.backends[0].load_streams(), 0);
}
