//! Load reports between our programs: the published cases, and the server's reports on the wire.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::programs::{Server, end_of, soon};
use evenkeel_orca::{METHOD, OrcaLoadReport, OrcaReport, read_trailers};
use evenkeel_proto::xds::service::orca::v3::OrcaLoadReportRequest;
use http::uri::PathAndQuery;
use interop::proto::testing::test_service_client::TestServiceClient;
use interop::proto::testing::{
    ResponseParameters, SimpleRequest, StreamingOutputCallRequest, StreamingOutputCallResponse,
    TestOrcaReport,
};
use tokio::net::TcpSocket;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Request, Streaming};
use tonic_prost::ProstCodec;

const CLIENT: &str = env!("CARGO_BIN_EXE_interop_client");

const POLICY: &str =
    r#"--service_config_json={"loadBalancingConfig":[{"test_backend_metrics_load_balancer":{}}]}"#;

/// Runs a case of the client, asserts its exit code, and returns its output.
async fn case(server: &Server, name: &str, flags: &[&str], exit: i32) -> String {
    let port = format!("--server_port={}", server.port);
    let case = format!("--test_case={name}");
    let all = [&["--server_host=127.0.0.1", "--use_tls=false", &port, &case], flags].concat();
    let (code, stdout, stderr) = end_of(CLIENT, &all).await;
    assert_eq!(code, Some(exit), "{name}: {stdout}{stderr}");
    stdout + &stderr
}

#[tokio::test]
async fn the_published_cases_pass() {
    let server = Server::start(&[]).await;
    for name in ["empty_unary", "large_unary"] {
        assert_eq!(case(&server, name, &[], 0).await, format!("{name}: passed\n"));
    }
    assert_eq!(case(&server, "orca_per_rpc", &[POLICY], 0).await, "orca_per_rpc: passed\n");
    // Two concurrent cases do not interfere.
    let flags = [POLICY, "--server_host_override=foo.test.google.fr"];
    let (one, other) =
        tokio::join!(case(&server, "orca_oob", &[POLICY], 0), case(&server, "orca_oob", &flags, 0));
    assert_eq!([one, other], ["orca_oob: passed\n"; 2]);
}

#[tokio::test]
async fn a_failed_case_prints_the_reason() {
    let server = Server::start(&["--load_qps=5"]).await;
    let told = case(&server, "orca_per_rpc", &[POLICY], 1).await;
    assert!(told.starts_with("orca_per_rpc: failed: expected [Some(LoadReport {"), "{told}");
    assert!(told.contains("requests_per_second: 5.0"), "{told}");
    for name in ["orca_per_rpc", "orca_oob"] {
        let told = case(&server, name, &[], 1).await;
        assert!(
            told.contains("did not go through the policy \"test_backend_metrics_load_balancer\""),
            "{told}"
        );
    }
    let told = case(&server, "empty_unary", &["--use_tls=true"], 2).await;
    assert!(told.starts_with("error: flag --use_tls:"), "{told}");
    let told = case(&server, "cacheable_unary", &[], 2).await;
    assert!(told.contains("expected one of empty_unary, large_unary, orca_per_rpc, orca_oob"), "{told}");
    let told = case(&server, "orca_oob", &["--service_config_json={"], 2).await;
    assert!(told.starts_with("error: "), "{told}");

    assert_eq!(server.end().await, Some(0));
}

#[tokio::test]
async fn a_server_that_is_not_there_fails_the_case() {
    // A bound port without a listener.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let port = format!("--server_port={}", socket.local_addr().unwrap().port());
    let flags = [port.as_str(), "--server_host=127.0.0.1", "--test_case=empty_unary"];
    let (code, _, stderr) = end_of(CLIENT, &flags).await;
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.starts_with("empty_unary: failed: EmptyCall: "), "{stderr}");
}

/// Returns the report in the trailers of a call.
async fn reported(channel: &Channel, report: Option<TestOrcaReport>) -> Option<OrcaReport> {
    let request = SimpleRequest { orca_per_query_report: report, ..SimpleRequest::default() };
    let answer = soon(TestServiceClient::new(channel.clone()).unary_call(request)).await.expect("an answer");
    let reading = read_trailers(&answer.metadata().clone().into_headers());
    assert_eq!(reading.ignored, None);
    reading.report
}

/// Streams out-of-band reports at the minimum interval.
async fn listen(channel: &Channel) -> Streaming<OrcaLoadReport> {
    let mut grpc = Grpc::new(channel.clone());
    soon(grpc.ready()).await.expect("a connection");
    let codec = ProstCodec::<OrcaLoadReportRequest, OrcaLoadReport>::default();
    let request = Request::new(OrcaLoadReportRequest::default());
    let reports = grpc.server_streaming(request, PathAndQuery::from_static(METHOD), codec);
    soon(reports).await.expect("reports").into_inner()
}

/// Waits for this out-of-band report.
async fn comes(reports: &mut Streaming<OrcaLoadReport>, expected: &OrcaLoadReport) {
    soon(async { while reports.message().await.expect("a report").as_ref() != Some(expected) {} }).await;
}

#[tokio::test]
async fn only_requested_values_are_reported() {
    let server = Server::start(&[]).await;
    let channel = server.channel();
    let asked = TestOrcaReport {
        cpu_utilization: 1.5,
        memory_utilization: 0.5,
        request_cost: [("rows".to_owned(), -3.0)].into(),
        utilization: [("disk".to_owned(), 0.25)].into(),
    };
    let found = reported(&channel, Some(asked)).await.expect("a report");
    assert_eq!((found.cpu_utilization, found.mem_utilization), (1.5, 0.5));
    assert_eq!((found.request_cost[0].name.as_str(), found.request_cost[0].value), ("rows", -3.0));
    assert_eq!((found.utilization[0].name.as_str(), found.utilization[0].value), ("disk", 0.25));
    assert_eq!((found.rps_fractional, found.eps, found.application_utilization), (0.0, 0.0, 0.0));
    // The report belonged to that call only.
    assert_eq!(reported(&channel, None).await, None);
    // Nothing is measured, also not later: a measuring server would report within a second.
    let mut reports = listen(&channel).await;
    for _ in 0..12 {
        assert_eq!(soon(reports.message()).await.unwrap(), Some(OrcaLoadReport::default()));
        assert_eq!(reported(&channel, None).await, None);
    }

    let asked = TestOrcaReport { memory_utilization: 2.0, ..TestOrcaReport::default() };
    let request = SimpleRequest { orca_per_query_report: Some(asked), ..SimpleRequest::default() };
    let status = soon(TestServiceClient::new(channel).unary_call(request)).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().starts_with("orca_per_query_report: expected "), "{status}");
}

/// Fixed load by flags: `weighted_round_robin` computes a weight of 100 / 0.5 on any machine.
#[tokio::test]
async fn flags_set_the_load() {
    let server = Server::start(&["--load_utilization=0.5", "--load_qps", "100"]).await;
    let channel = server.channel();
    let on_call = OrcaReport { application_utilization: 0.5, rps_fractional: 100.0, ..OrcaReport::default() };
    for _ in 0..3 {
        assert_eq!(reported(&channel, None).await, Some(on_call.clone()));
    }
    let mut reports = listen(&channel).await;
    let expected =
        OrcaLoadReport { application_utilization: 0.5, rps_fractional: 100.0, ..OrcaLoadReport::default() };
    for _ in 0..3 {
        assert_eq!(soon(reports.message()).await.unwrap(), Some(expected.clone()));
    }
    // Values of a request are added.
    let asked = TestOrcaReport { cpu_utilization: 0.1, ..TestOrcaReport::default() };
    assert_eq!(reported(&channel, Some(asked)).await, Some(OrcaReport { cpu_utilization: 0.1, ..on_call }));
}

/// Stream that sets the out-of-band report.
struct ReportingServer {
    requests: mpsc::Sender<StreamingOutputCallRequest>,
    answers: Streaming<StreamingOutputCallResponse>,
}

impl ReportingServer {
    async fn new(channel: &Channel) -> ReportingServer {
        let (requests, received) = mpsc::channel(1);
        let mut client = TestServiceClient::new(channel.clone());
        let answers = soon(client.full_duplex_call(ReceiverStream::new(received)))
            .await
            .expect("a stream")
            .into_inner();
        ReportingServer { requests, answers }
    }

    async fn say(&self, report: TestOrcaReport) {
        let request = StreamingOutputCallRequest {
            orca_oob_report: Some(report),
            response_parameters: vec![ResponseParameters { size: 1, ..ResponseParameters::default() }],
            ..StreamingOutputCallRequest::default()
        };
        self.requests.send(request).await.expect("the stream continues");
    }

    async fn is_answered(&mut self) {
        assert!(soon(self.answers.message()).await.expect("an answer").is_some());
    }
}

#[tokio::test]
async fn one_stream_at_a_time_sets_the_out_of_band_report() {
    let server = Server::start(&[]).await;
    let channel = server.channel();
    let share = |name: &str, value| [(name.to_owned(), value)].into();
    let said = |memory_utilization, name, value| TestOrcaReport {
        memory_utilization,
        utilization: share(name, value),
        ..TestOrcaReport::default()
    };
    let heard = |mem_utilization, name, value| OrcaLoadReport {
        mem_utilization,
        utilization: share(name, value),
        ..OrcaLoadReport::default()
    };
    let mut reports = listen(&channel).await;
    let mut first = ReportingServer::new(&channel).await;
    let mut second = ReportingServer::new(&channel).await;
    first.say(said(0.25, "disk", 0.1)).await;
    first.is_answered().await;
    comes(&mut reports, &heard(0.25, "disk", 0.1)).await;
    second.say(said(0.75, "net", 0.3)).await;
    // The second stream waits until the first ends.
    assert!(timeout(Duration::from_millis(300), second.answers.message()).await.is_err());
    first.say(said(0.5, "bus", 0.2)).await;
    first.is_answered().await;
    comes(&mut reports, &heard(0.5, "bus", 0.2)).await;
    // Out-of-band values are not part of per-call reports.
    assert_eq!(reported(&channel, None).await, None);
    drop(first);
    second.is_answered().await;
    comes(&mut reports, &heard(0.75, "net", 0.3)).await;
}
