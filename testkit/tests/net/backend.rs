//! Test backend: responses, counters and shutdown.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_proto::prost::Message as _;
use evenkeel_proto::prost_types;
use evenkeel_proto::xds::data::orca::v3::OrcaLoadReport;
use evenkeel_proto::xds::service::orca::v3::OrcaLoadReportRequest;
use testkit::net::echo::echo_client::EchoClient;
use testkit::net::echo::{EchoRequest, EchoResponse};
use testkit::net::{Backend, Tls};
use tokio::io::AsyncReadExt as _;
use tokio_stream::StreamExt as _;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::channel;

fn client(backend: &Backend) -> EchoClient<Channel> {
    EchoClient::new(channel(backend.address()))
}

fn payload(payload: &str) -> EchoRequest {
    EchoRequest { payload: payload.into(), ..EchoRequest::default() }
}

fn forever() -> EchoRequest {
    EchoRequest { forever: true, ..EchoRequest::default() }
}

async fn unary(client: &mut EchoClient<Channel>) -> Result<EchoResponse, Status> {
    Ok(client.unary(payload("hello")).await?.into_inner())
}

/// Retries until the call succeeds, since tonic's channel may first have to notice that its connection is
/// lost.
async fn unary_in_the_end(client: &mut EchoClient<Channel>) -> EchoResponse {
    let succeeded = async {
        loop {
            match unary(client).await {
                Ok(response) => return response,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), succeeded).await.expect("a response in the end")
}

#[tokio::test]
async fn all_four_kinds_of_calls_succeed() {
    let backend = Backend::builder().name("b1").start().await;
    let mut client = client(&backend);

    let response = client.unary(payload("one")).await.unwrap().into_inner();
    assert_eq!((&*response.payload, &*response.backend), (&b"one"[..], "b1"));

    let request = EchoRequest { repeat: 3, code: 5, ..payload("many") };
    let mut stream = client.server_stream(request).await.unwrap().into_inner();
    for _ in 0..3 {
        assert_eq!(stream.message().await.unwrap().unwrap().payload, b"many");
    }
    assert_eq!(stream.message().await.unwrap_err().code(), Code::NotFound);

    let requests = tokio_stream::iter([payload("a"), payload("b")]);
    assert_eq!(client.client_stream(requests).await.unwrap().into_inner().payload, b"ab");

    let requests = tokio_stream::iter([payload("a"), payload("b")]);
    let responses = client.bidi(requests).await.unwrap().into_inner();
    let payloads: Vec<_> = responses.map(|response| response.unwrap().payload).collect().await;
    assert_eq!(payloads, [b"a", b"b"]);

    backend.wait_until(|backend| backend.finished() == 4).await;
    assert_eq!((backend.calls(), backend.in_flight()), (4, 0));
    assert_eq!((backend.connections(), backend.open_connections()), (1, 1));
}

#[tokio::test]
async fn requests_select_their_response_and_responses_describe_their_request() {
    let backend = Backend::builder().at("127.0.0.7:0".parse().unwrap()).start().await;
    assert!(backend.address().ip().to_string() == "127.0.0.7" && backend.address().port() != 0);
    let mut client = client(&backend);

    let failed = client.unary(EchoRequest { code: 14, ..EchoRequest::default() }).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    let failed = client.server_stream(EchoRequest { code: 8, ..EchoRequest::default() }).await.unwrap_err();
    assert_eq!(failed.code(), Code::ResourceExhausted);

    let mut request = Request::new(payload("hello"));
    request.metadata_mut().insert("color", "green".parse().unwrap());
    let response = client.unary(request).await.unwrap().into_inner();
    assert_eq!(response.metadata["color"], "green");
    assert_eq!(response.metadata[":authority"], backend.address().to_string());
    assert_eq!(response.backend, backend.address().to_string());
    assert!(response.metadata[":peer"].starts_with("127.0.0."));
}

#[tokio::test]
async fn a_cancelled_call_is_finished() {
    let backend = Backend::start().await;
    let mut client = client(&backend);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let mut client = client.clone();
        calls.spawn(async move { client.unary(forever()).await });
    }
    let request = EchoRequest { repeat: 1, ..forever() };
    let mut stream = client.server_stream(request).await.unwrap().into_inner();
    stream.message().await.unwrap();

    backend.wait_until(|backend| backend.in_flight() == 11).await;
    drop(stream);
    backend.wait_until(|backend| backend.in_flight() == 10).await;
    calls.shutdown().await;
    backend.wait_until(|backend| backend.in_flight() == 0).await;
    assert_eq!(backend.finished(), 11);
}

#[tokio::test]
async fn a_killed_backend_closes_at_once_and_restarts_on_its_port() {
    let backend = Backend::start().await;
    let address = backend.address();
    let mut client = client(&backend);
    let mut held = client.clone();
    let call = tokio::spawn(async move { held.unary(forever()).await });
    backend.wait_until(|backend| backend.in_flight() == 1).await;

    backend.kill();
    call.await.unwrap().expect_err("the kill ends the call");
    assert_eq!((backend.in_flight(), backend.open_connections()), (0, 0));
    let refused = tokio::net::TcpStream::connect(address).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    unary(&mut client).await.expect_err("the backend is not running");

    backend.restart().await;
    assert_eq!(backend.address(), address);
    unary_in_the_end(&mut client).await;
    assert_eq!(backend.connections(), 2);

    // Killing twice, and restarting a running backend, change nothing.
    backend.restart().await;
    unary(&mut client).await.unwrap();
    backend.kill();
    backend.kill();
    backend.restart().await;
    unary_in_the_end(&mut client).await;
}

/// A connection that reads at the moment of the kill sees a reset, not a FIN.
#[tokio::test]
async fn a_kill_resets_connections() {
    let backend = Backend::start().await;
    let mut stream = tokio::net::TcpStream::connect(backend.address()).await.unwrap();
    let mut buffer = vec![0; 4096];
    // After the server's SETTINGS the connection is served.
    assert!(stream.read(&mut buffer).await.unwrap() > 0);
    backend.kill();
    let ended = loop {
        match stream.read(&mut buffer).await {
            Ok(0) => break None,
            Ok(_) => {}
            Err(error) => break Some(error.kind()),
        }
    };
    assert_eq!(ended, Some(std::io::ErrorKind::ConnectionReset));
}

#[tokio::test]
async fn a_draining_backend_finishes_its_calls_and_accepts_no_connection() {
    let backend = Backend::start().await;
    let mut client = client(&backend);
    let (requests, rx) = tokio::sync::mpsc::unbounded_channel();
    let rx = tokio_stream::wrappers::UnboundedReceiverStream::new(rx);
    requests.send(payload("before")).unwrap();
    let mut responses = client.bidi(rx).await.unwrap().into_inner();
    assert_eq!(responses.message().await.unwrap().unwrap().payload, b"before");

    let drain = backend.drain();
    tokio::pin!(drain);
    // Starts the drain, which cannot complete while the call is in flight.
    assert!(tokio::time::timeout(Duration::from_millis(1), &mut drain).await.is_err());
    let refused = async {
        loop {
            // The listener closes a moment after the drain started.
            if tokio::net::TcpStream::connect(backend.address()).await.is_err() {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), refused).await.expect("no connection is accepted");

    requests.send(payload("after")).unwrap();
    assert_eq!(responses.message().await.unwrap().unwrap().payload, b"after");
    drop(requests);
    assert!(responses.message().await.unwrap().is_none());
    tokio::time::timeout(Duration::from_secs(30), drain).await.expect("the drain ends");
    assert_eq!((backend.finished(), backend.open_connections()), (1, 0));

    backend.restart().await;
    unary_in_the_end(&mut client).await;
}

#[tokio::test]
async fn a_kill_ends_a_drain() {
    let backend = Backend::start().await;
    let mut client = client(&backend);
    let call = tokio::spawn(async move { client.unary(forever()).await });
    backend.wait_until(|backend| backend.in_flight() == 1).await;
    let kill = async {
        backend.kill();
    };
    tokio::join!(backend.drain(), kill);
    call.await.unwrap().expect_err("it was killed");
}

#[tokio::test]
async fn settings_of_a_running_backend_can_be_changed() {
    let backend = Backend::start().await;
    let mut client = client(&backend);

    backend.fail_with(Some(Code::Aborted));
    backend.set_load(Some(OrcaLoadReport { cpu_utilization: 0.5, ..OrcaLoadReport::default() }));
    let failed = unary(&mut client).await.unwrap_err();
    assert_eq!(failed.code(), Code::Aborted);
    let load = failed.metadata().get_bin("endpoint-load-metrics-bin").unwrap().to_bytes().unwrap();
    assert!(OrcaLoadReport::decode(load).unwrap().cpu_utilization.to_bits() == 0.5_f64.to_bits());

    backend.fail_with(None);
    let mut stream =
        client.server_stream(EchoRequest { repeat: 1, ..payload("x") }).await.unwrap().into_inner();
    stream.message().await.unwrap();
    let trailers = stream.trailers().await.unwrap().unwrap();
    assert!(trailers.contains_key("endpoint-load-metrics-bin"));
    backend.set_load(None);
    let response = client.unary(payload("x")).await.unwrap();
    assert!(!response.metadata().contains_key("endpoint-load-metrics-bin"));

    backend.pause();
    let mut held = client.clone();
    let call = tokio::spawn(async move { unary(&mut held).await });
    backend.wait_until(|backend| backend.in_flight() == 1).await;
    assert!(!call.is_finished());
    backend.resume();
    call.await.unwrap().unwrap();

    backend.set_delay(Duration::from_secs(3600));
    let call = tokio::spawn(async move { unary(&mut client).await });
    backend.wait_until(|backend| backend.in_flight() == 1).await;
    call.abort();
    backend.wait_until(|backend| backend.in_flight() == 0).await;
}

#[tokio::test]
async fn load_is_reported_out_of_band() {
    let backend = Backend::start().await;
    let load = |cpu_utilization| Some(OrcaLoadReport { cpu_utilization, ..OrcaLoadReport::default() });
    let mut grpc = tonic::client::Grpc::new(channel(backend.address()));
    let mut open = async || {
        grpc.ready().await.unwrap();
        let every = prost_types::Duration { seconds: 0, nanos: 1_000_000 };
        let request =
            OrcaLoadReportRequest { report_interval: Some(every), ..OrcaLoadReportRequest::default() };
        let path = PathAndQuery::from_static("/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics");
        let codec = tonic_prost::ProstCodec::<_, OrcaLoadReport>::default();
        grpc.server_streaming(Request::new(request), path, codec).await
    };
    assert_eq!(open().await.unwrap_err().code(), Code::Unimplemented);
    backend.set_load(load(0.25));
    let mut reports = open().await.unwrap().into_inner();
    assert_eq!(reports.message().await.unwrap(), load(0.25));
    backend.set_load(load(0.75));
    let changed = async { while reports.message().await.unwrap() != load(0.75) {} };
    tokio::time::timeout(Duration::from_secs(30), changed).await.expect("the other load");
    assert_eq!((backend.load_streams(), backend.calls()), (2, 0));
}

#[tokio::test]
async fn the_stream_limit_is_sent_in_settings() {
    let backend = Backend::builder().max_concurrent_streams(1).start().await;
    let mut calls = tokio::task::JoinSet::new();
    // Calls that hyper sends before it knows the limit are refused and sent again.
    let mut client = client(&backend);
    unary(&mut client).await.unwrap();
    for _ in 0..5 {
        let mut client = client.clone();
        calls.spawn(async move { client.unary(EchoRequest { delay_ms: 5, ..payload("x") }).await });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap().unwrap();
        assert!(backend.in_flight() <= 1);
    }
}

#[tokio::test]
async fn a_backend_with_tls_presents_and_requests_certificates() {
    let server = rcgen::generate_simple_self_signed(["b1.test".to_owned()]).unwrap();
    let client = rcgen::generate_simple_self_signed(["client.test".to_owned()]).unwrap();
    let tls = Tls {
        certificate: server.cert.pem(),
        key: server.signing_key.serialize_pem(),
        client_ca: Some(client.cert.pem()),
    };
    let backend = Backend::builder().tls(tls).start().await;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(server.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let key = rustls::pki_types::PrivateKeyDer::try_from(client.signing_key.serialize_der()).unwrap();
    let with = config.clone().with_client_auth_cert(vec![client.cert.der().clone()], key).unwrap();

    for (mut config, served) in [(with, true), (config.with_no_client_auth(), false)] {
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = tokio::net::TcpStream::connect(backend.address()).await.unwrap();
        let name = "b1.test".try_into().unwrap();
        let mut stream =
            tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        // A served connection starts with the server's SETTINGS, a refused one with an alert.
        assert_eq!(stream.read_u8().await.is_ok(), served);
    }
}
