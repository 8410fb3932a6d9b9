//! Cases of circuit breaking, timeouts and outlier detection.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_control::{Mesh, OutlierDetection, Route, Service, SuccessRate};

use super::round_robin;
use crate::driver::client::Totals;
use crate::driver::stage::{CLUSTER, SERVICE, Server};
use crate::driver::{Calls, Result, Stage};
use crate::proto::testing::client_configure_request::RpcType::{EmptyCall, UnaryCall};

const UNARY: &str = "/grpc.testing.TestService/UnaryCall";
const EMPTY: &str = "/grpc.testing.TestService/EmptyCall";

/// fault 64: circuit breaking limits concurrent calls.
pub(super) async fn circuit_breaking(mut stage: Stage) -> Result {
    let unary = stage.servers(["s1", "s2"]).await?;
    let empty = stage.servers(["t1", "t2"]).await?;
    let mesh = |max_unary| {
        let service =
            Service::new().route(Route::to("unary").path(UNARY)).route(Route::to("empty").path(EMPTY));
        Mesh::new()
            .service(SERVICE, service)
            .cluster("unary", round_robin(&unary).max_requests(max_unary))
            .cluster("empty", round_robin(&empty).max_requests(1_000))
    };
    stage.set(&mesh(500)).await?;
    let forever = "UnaryCall:rpc-behavior:keep-open,EmptyCall:rpc-behavior:keep-open";
    let mut client = stage.client(Calls::both().qps(300).metadata(forever)).await?;
    let in_flight = |totals: &BTreeMap<String, Totals>, kind| totals.get(kind).map_or(0, Totals::in_flight);
    client
        .until_totals("500 unary calls and 1,000 empty ones in flight", |totals| {
            in_flight(totals, "UNARY_CALL") == 500 && in_flight(totals, "EMPTY_CALL") == 1_000
        })
        .await?;
    stage.set(&mesh(800)).await?;
    client
        .until_totals("800 unary calls and 1,000 empty ones in flight", |totals| {
            in_flight(totals, "UNARY_CALL") == 800 && in_flight(totals, "EMPTY_CALL") == 1_000
        })
        .await
}

pub(super) async fn timeout(mut stage: Stage) -> Result {
    let servers = stage.servers(["s1"]).await?;
    let limited = Route::to(CLUSTER).path(UNARY).timeout(Duration::from_secs(3));
    let service = Service::new().route(limited).route(Route::to(CLUSTER));
    stage.set(&Mesh::new().service(SERVICE, service).cluster(CLUSTER, round_robin(&servers))).await?;
    let mut client = stage.client(Calls::unary().qps(25)).await?;
    client.until(10, "calls that succeed", |stats| stats.only(&["s1"])).await?;

    client.configure(&[UnaryCall], &[(UnaryCall, "rpc-behavior", "sleep-2")], 1).await?;
    client.until_results("UNARY_CALL", 4).await?;
    client.configure(&[UnaryCall], &[], 0).await?;
    client.until_results("UNARY_CALL", 0).await?;
    let slow = [(UnaryCall, "rpc-behavior", "sleep-4"), (EmptyCall, "rpc-behavior", "sleep-4")];
    client.configure(&[UnaryCall, EmptyCall], &slow, 0).await?;
    client.until_results("UNARY_CALL", 4).await?;
    client.until_results("EMPTY_CALL", 0).await
}

/// fault 51: outlier detection ejects a failing server.
pub(super) async fn outlier_detection(mut stage: Stage) -> Result {
    let names = ["s1", "s2", "s3", "s4", "s5"];
    let servers: [Server; 5] = stage.servers(names).await?;
    let settings = OutlierDetection {
        interval: Some(Duration::from_secs(1)),
        base_ejection_time: Some(Duration::from_secs(2)),
        max_ejection_percent: Some(20),
        success_rate: Some(SuccessRate { request_volume: Some(10), ..SuccessRate::default() }),
        ..OutlierDetection::default()
    };
    let cluster = round_robin(&servers).outlier_detection(settings);
    stage.set(&Mesh::new().service(SERVICE, Service::to(CLUSTER)).cluster(CLUSTER, cluster)).await?;
    let mut client = stage.client(Calls::unary()).await?;
    client.until(50, "calls at all five", |stats| stats.only(&names)).await?;
    let bad = [(UnaryCall, "rpc-behavior", "hostname=s3 error-code-2")];
    client.configure(&[UnaryCall], &bad, 0).await?;
    client.until(50, "calls that fail at s3", |stats| stats.failures > 0 && stats.of("s3") == 0).await?;
    let others = ["s1", "s2", "s4", "s5"];
    client.until(100, "calls at the other four, without a failure", |stats| stats.only(&others)).await?;
    client.configure(&[UnaryCall], &[], 0).await?;
    let even = |count: i32| (18..=22).contains(&count);
    client
        .until(100, "20 calls at each of the five, again", |stats| {
            stats.failures == 0 && names.iter().all(|name| even(stats.of(name)))
        })
        .await?;
    Ok(())
}
