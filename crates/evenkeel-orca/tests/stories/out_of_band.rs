//! Out-of-band reports: from a real server, and their intervals on virtual time.

use std::time::Duration;

use evenkeel_orca::{CallLoad, OrcaLoadReport, ServerLoad, TRAILER};
use evenkeel_proto::prost_types;
use evenkeel_proto::xds::service::orca::v3::OrcaLoadReportRequest;
use http::uri::PathAndQuery;
use testkit::net::echo::EchoRequest;
use tokio::time::Instant;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::{channel, client, handler, server};

const METHOD: &str = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics";

fn every(seconds: i64) -> OrcaLoadReportRequest {
    let interval = prost_types::Duration { seconds, nanos: 0 };
    OrcaLoadReportRequest { report_interval: Some(interval), ..OrcaLoadReportRequest::default() }
}

async fn listen<S>(service: S, request: OrcaLoadReportRequest) -> Result<Streaming<OrcaLoadReport>, Status>
where
    S: GrpcService<Body>,
    S::ResponseBody: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    <S::ResponseBody as http_body::Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    S::Error: std::fmt::Debug,
{
    let mut grpc = Grpc::new(service);
    grpc.ready().await.expect("a connection");
    let codec = ProstCodec::<OrcaLoadReportRequest, OrcaLoadReport>::default();
    let answer =
        grpc.server_streaming(Request::new(request), PathAndQuery::from_static(METHOD), codec).await?;
    Ok(answer.into_inner())
}

fn unmeasured() -> ServerLoad {
    ServerLoad::builder().without_cpu().window(Duration::MAX).build()
}

/// ORCA-6, ORCA-7, ORCA-12: a report stream shares a connection with calls and does not delay them. Each report has
/// all server values, and no request costs.
#[tokio::test]
async fn a_stream_beside_calls() {
    let load = unmeasured();
    load.set_cpu_utilization(0.5);
    load.set_utilization("disk", 0.25);
    let record = handler(|load: CallLoad| {
        load.record_request_cost("rows", 1.0);
        Ok(())
    });
    let backend = server(&load, record).await;
    let channel = channel(&backend);
    let mut reports = listen(channel.clone(), every(1)).await.unwrap();
    let first = reports.message().await.unwrap().expect("a report at once");
    assert_eq!((first.cpu_utilization, first.utilization["disk"]), (0.5, 0.25));

    let mut client = testkit::net::echo::echo_client::EchoClient::new(channel.clone());
    for _ in 0..10 {
        client.unary(EchoRequest::default()).await.unwrap();
    }
    assert_eq!(backend.connections(), 1);
    let mut reports = listen(channel, every(1)).await.unwrap();
    let again = reports.message().await.unwrap().expect("a report at once");
    assert_eq!(again, first);
    assert!(again.request_cost.is_empty());
}

/// ORCA-6: the first report is sent at once, then one per max(requested, minimum). The minimum is 30 s by default. A
/// requested interval that is zero, missing or negative becomes the minimum. ORCA-7: unchanged reports are sent too.
#[tokio::test(start_paused = true)]
async fn reports_come_as_often_as_allowed() {
    let hours = 3600 * 24 * 365 * 200;
    for (min, asked, expected) in [
        (None, every(10), 30),
        (None, every(0), 30),
        (None, OrcaLoadReportRequest::default(), 30),
        (None, every(-5), 30),
        (None, every(45), 45),
        (None, every(100_000), 100_000),
        (None, every(hours), 3600 * 24 * 365),
        (Some(5), every(10), 10),
        (Some(5), every(1), 5),
        (Some(5), OrcaLoadReportRequest::default(), 5),
    ] {
        let load = unmeasured();
        load.set_cpu_utilization(0.5);
        let mut service = load.service();
        if let Some(min) = min {
            service = service.min_interval(Duration::from_secs(min));
        }
        let mut reports = listen(service, asked.clone()).await.unwrap();
        let began = Instant::now();
        for round in 0..4 {
            if round == 3 {
                load.set_memory_utilization(0.25);
            }
            let report = reports.message().await.unwrap().expect("a report");
            assert_eq!(began.elapsed().as_secs(), round * expected, "minimum {min:?}, asked {asked:?}");
            let memory = if round == 3 { 0.25 } else { 0.0 };
            assert_eq!((report.cpu_utilization, report.mem_utilization), (0.5, memory));
        }
    }
}

/// Without calls, each report still has the measurements up to its time.
#[tokio::test(start_paused = true)]
async fn a_report_is_current() {
    let mut window = 0.0;
    let meter = move |_| {
        window += 0.125;
        Some(window)
    };
    let load = ServerLoad::builder().cpu(meter).build();
    let mut reports = listen(load.service(), every(30)).await.unwrap();
    for cpu in [0.0, 0.25, 0.375] {
        let report = reports.message().await.unwrap().expect("a report");
        assert_eq!(report.cpu_utilization, cpu);
    }
}

/// Other methods of the service are UNIMPLEMENTED.
#[tokio::test]
async fn other_methods_are_unimplemented() {
    let request =
        http::Request::post("/xds.service.orca.v3.OpenRcaService/Other").body(Body::empty()).unwrap();
    let answer = tower_service::Service::call(&mut unmeasured().service(), request).await.unwrap();
    assert_eq!(answer.headers()["grpc-status"], (Code::Unimplemented as i32).to_string());
    assert!(!answer.headers().contains_key(TRAILER));
}

/// A client that disconnects ends its stream, and no state is kept for it.
#[tokio::test]
async fn a_disconnected_client_ends_its_stream() {
    let load = unmeasured();
    let backend = server(&load, super::record_nothing()).await;
    let mut reports = listen(channel(&backend), every(1)).await.unwrap();
    reports.message().await.unwrap().expect("a report at once");
    drop(reports);
    backend.wait_until(|backend| backend.open_connections() == 0).await;
    // The server continues to serve.
    client(&backend).unary(EchoRequest::default()).await.unwrap();
}
