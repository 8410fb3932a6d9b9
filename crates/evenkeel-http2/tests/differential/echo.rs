//! Generated headers through our encoder to an h2 server, and back through h2's encoder, which Huffman-codes and indexes.

use std::future::poll_fn;

use bytes::Bytes;
use evenkeel_http2::{Http2Settings, RequestHeaders, client};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response};
use proptest::prelude::*;

/// One request: path, and header fields of which some are sensitive.
#[derive(Clone, Debug)]
struct RequestPlan {
    path: String,
    fields: Vec<(String, Vec<u8>, bool)>,
}

fn request_plan() -> impl Strategy<Value = RequestPlan> {
    let name = prop_oneof![
        3 => prop::sample::select(vec!["grpc-timeout", "x-request-id", "authorization", "cookie", "user-agent", "a"])
            .prop_map(str::to_owned),
        1 => "x-[a-z0-9-]{0,40}",
    ];
    let value = prop_oneof![
        3 => prop::sample::select(vec!["", "1S", "Bearer token", "repeated value"]).prop_map(|text| text.as_bytes().to_vec()),
        2 => "[!-~]([ -~]{0,60}[!-~])?".prop_map(String::into_bytes),
        1 => prop::collection::vec(0x80..=0xff_u8, 1..30),
        1 => (500..3_000_usize).prop_map(|len| vec![b'y'; len]),
    ];
    let path = prop_oneof![Just("/shop.Orders/Get".to_owned()), "/[a-z]{1,8}/[A-Z]{1,8}"];
    (path, prop::collection::vec((name, value, prop::bool::weighted(0.1)), 0..8))
        .prop_map(|(path, fields)| RequestPlan { path, fields })
}

fn header_map(plan: &RequestPlan) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value, is_sensitive) in &plan.fields {
        let mut value = HeaderValue::from_bytes(value).expect("a valid value");
        value.set_sensitive(*is_sensitive);
        headers.append(HeaderName::try_from(name).expect("a valid name"), value);
    }
    headers
}

/// Serves each request with its own headers, in the response and in the trailers, and with its path.
async fn serve(io: tokio::io::DuplexStream, table_size: u32) {
    let mut builder = h2::server::Builder::new();
    builder.header_table_size(table_size).max_header_list_size(1 << 20);
    let mut connection = builder.handshake::<_, Bytes>(io).await.expect("a client");
    while let Some(accepted) = connection.accept().await {
        let (request, mut respond) = accepted.expect("the client's header blocks are valid");
        let mut response = Response::new(());
        *response.headers_mut() = request.headers().clone();
        let path = request.uri().path().parse().expect("a path is a value");
        response.headers_mut().insert("x-path", path);
        let mut out = respond.send_response(response, false).expect("the stream is open");
        out.send_trailers(request.headers().clone()).expect("the stream is open");
    }
}

async fn run(requests: Vec<RequestPlan>, table_size: u32) {
    let (mut ours, theirs) = tokio::io::duplex(1 << 16);
    let server = tokio::spawn(serve(theirs, table_size));
    let (sender, mut driver) =
        client(Http2Settings { max_header_list_size: 1 << 20, ..Http2Settings::default() });
    let connection = tokio::spawn(async move { poll_fn(|cx| driver.poll(&mut ours, cx)).await });
    for plan in &requests {
        let headers = header_map(plan);
        let request = RequestHeaders {
            method: &Method::POST,
            is_https: true,
            authority: "orders.example.com",
            path: &plan.path,
            headers: &headers,
            extra_headers: &[],
            end_stream: true,
        };
        // The first request is sent before the server's table size is known, the others after.
        let (_send, mut recv) = sender.send(&request).expect("the connection is open");
        let mut head = poll_fn(|cx| recv.poll_head(cx)).await.expect("a response");
        assert_eq!(head.headers.remove("x-path").expect("the path"), plan.path);
        assert_eq!(head.headers, headers, "response to {plan:?}");
        assert!(poll_fn(|cx| recv.poll_data(cx)).await.is_none());
        let trailers = poll_fn(|cx| recv.poll_trailers(cx)).await.expect("a response");
        assert_eq!(trailers.expect("trailers"), headers, "trailers of {plan:?}");
    }
    drop(sender);
    connection.await.expect("no panic").expect("the connection is closed in order");
    server.await.expect("no panic");
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 2_000, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn headers_come_back_unchanged(
        requests in prop::collection::vec(request_plan(), 1..12),
        table_size in prop_oneof![Just(0_u32), 0..200_u32, Just(4_096), Just(65_536)],
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let limit = std::time::Duration::from_secs(60);
            tokio::time::timeout(limit, run(requests, table_size)).await.expect("the run does not stall");
        });
    }
}
