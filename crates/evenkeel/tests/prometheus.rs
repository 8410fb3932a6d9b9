//! `/metrics` of the admin server, as Prometheus scrapes it.

use std::time::Duration;

use evenkeel::admin::{AdminServer, AdminWatch};
use evenkeel::{Bootstrap, Channel, PrometheusMetrics, XdsClient};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use testkit::net::Backend;
use testkit::net::control::ControlPlane;
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use tokio::net::TcpStream;
use tonic::Code;

/// `Accept` header of a scrape. It prefers OpenMetrics.
const ACCEPT: &str = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
    text/plain;version=0.0.4;q=0.3,*/*;q=0.2";

/// Returns the status, the content type and the body of a scrape.
async fn scrape(admin: &AdminServer, method: &str) -> (u16, String, String) {
    let address = admin.address();
    let io = TokioIo::new(TcpStream::connect(address).await.expect("the server listens"));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.expect("HTTP/1");
    tokio::spawn(connection);
    let request = http::Request::builder().method(method).uri("/metrics");
    let request = request.header("host", address.to_string()).header("accept", ACCEPT);
    let request = request.body(http_body_util::Empty::<bytes::Bytes>::new()).expect("a request");
    let (head, body) = sender.send_request(request).await.expect("a response").into_parts();
    let kind = head.headers["content-type"].to_str().expect("ASCII").to_owned();
    let body = body.collect().await.expect("a body").to_bytes();
    (head.status.as_u16(), kind, String::from_utf8(body.to_vec()).expect("UTF-8"))
}

/// A66, A78, A94: calls, connections and the xDS client in a scrape.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scrape_has_the_calls_and_the_xds_client() {
    let (backend, control) = (Backend::start().await, ControlPlane::start().await);
    control.serve("shop", "shop-cluster", &[backend.address()]);
    let bootstrap = Bootstrap::from_json(&control.bootstrap("scraped")).expect("a bootstrap");
    let prometheus = PrometheusMetrics::new();
    let channel = Channel::builder("xds:///shop")
        .xds_client(XdsClient::builder(bootstrap).build())
        .metrics(prometheus.metrics())
        .build()
        .expect("a channel");
    let mut watch = AdminWatch::start("scraped", Duration::from_millis(20)).await;
    let admin = AdminServer::builder().watch(watch.clone()).prometheus(&prometheus).start().await;
    let admin = admin.expect("an admin server");
    let mut client = EchoClient::new(channel.clone());
    for _ in 0..3 {
        client.unary(EchoRequest::default()).await.expect("a response");
    }
    backend.fail_with(Some(Code::NotFound));
    client.unary(EchoRequest::default()).await.expect_err("a failure");

    let (target, method) = ("grpc_target=\"xds:///shop\"", "grpc_method=\"evenkeel.test.Echo/Unary\"");
    let place = "grpc_lb_backend_service=\"shop-cluster\",grpc_lb_locality=\"{region=\\\"\\\", zone=\\\"local\\\", sub_zone=\\\"\\\"}\"";
    let server = format!("grpc_xds_server=\"{}\"", control.address());
    let cluster = "grpc_xds_resource_type=\"envoy.config.cluster.v3.Cluster\"";
    let bytes = "grpc_client_attempt_sent_total_compressed_message_size_bytes";
    let expected = [
        "# HELP grpc_client_attempt_started_total Number of attempts started, including those in progress"
            .to_owned(),
        "# TYPE grpc_client_attempt_started_total counter".to_owned(),
        format!("grpc_client_attempt_started_total{{{method},{target}}} 4"),
        "# TYPE grpc_client_call_duration_seconds histogram".to_owned(),
        format!("grpc_client_call_duration_seconds_count{{{method},grpc_status=\"OK\",{target}}} 3"),
        format!("grpc_client_call_duration_seconds_count{{{method},grpc_status=\"NOT_FOUND\",{target}}} 1"),
        format!(
            "grpc_client_call_duration_seconds_bucket{{{method},grpc_status=\"OK\",{target},le=\"+Inf\"}} 3"
        ),
        format!("{bytes}_bucket{{{place},{method},grpc_status=\"OK\",{target},le=\"1024\"}} 3"),
        "# TYPE grpc_subchannel_open_connections gauge".to_owned(),
        format!("grpc_subchannel_open_connections{{{place},grpc_security_level=\"none\",{target}}} 1"),
        "# TYPE grpc_xds_client_connected gauge".to_owned(),
        format!("grpc_xds_client_connected{{{target},{server}}} 1"),
        format!("grpc_xds_client_resource_updates_valid_total{{{target},{cluster},{server}}} 1"),
        format!(
            "grpc_xds_client_resources{{{target},grpc_xds_authority=\"#old\",grpc_xds_cache_state=\"acked\",{cluster}}} 1"
        ),
    ];
    let mut last = String::new();
    let complete = async {
        loop {
            let (status, kind, text) = scrape(&admin, "GET").await;
            assert_eq!((status, &*kind), (200, "text/plain; version=0.0.4; charset=utf-8"));
            assert!(text.ends_with('\n'));
            let missing = expected.iter().filter(|line| !text.lines().any(|seen| seen == **line));
            let missing: Vec<_> = missing.cloned().collect();
            // The xDS client publishes its figures when it becomes idle.
            if missing.is_empty() {
                return;
            }
            last = format!("{missing:#?} in\n{text}");
            watch.changed().await;
        }
    };
    let done = tokio::time::timeout(Duration::from_secs(30), complete).await;
    done.unwrap_or_else(|_| panic!("{last}"));
    let (status, kind, text) = scrape(&admin, "HEAD").await;
    assert_eq!((status, &*kind, &*text), (200, PrometheusMetrics::CONTENT_TYPE, ""));
    drop(channel);
}

/// Without metrics the response has the remedy.
#[tokio::test]
async fn a_server_without_metrics_names_the_builder() {
    let admin = AdminServer::builder().start().await.expect("an admin server");
    let (status, kind, text) = scrape(&admin, "GET").await;
    assert_eq!((status, &*kind), (404, "text/plain; charset=utf-8"));
    assert_eq!(
        text,
        "no metrics: pass a PrometheusMetrics to the builders of the admin server and of the channels\n"
    );
}
