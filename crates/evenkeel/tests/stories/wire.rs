//! Peers that misbehave on the wire, scripted frame by frame.

mod closing;
mod floods;
mod flow;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use evenkeel::{Backoff, Channel, ChannelBuilder};
use testkit::net::echo::echo_client::EchoClient;
use testkit::net::echo::{EchoRequest, EchoResponse};
use testkit::net::frames::{Answer, Conn, Frame, Peer, Request as Received, block, code, flag, kind, serve};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Request, Status};

use crate::load::Load;

/// Maximum wait. Only a failing test reaches it.
const LONG: Duration = Duration::from_secs(30);

const ROUND_ROBIN: &str = r#"{"loadBalancingConfig": [{"round_robin": {}}]}"#;

/// Retry policy for all methods: up to four attempts on UNAVAILABLE.
const RETRIES: &str = r#"{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.001s",
    "maxBackoff": "0.001s", "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]}}]}"#;

fn to(address: SocketAddr) -> ChannelBuilder {
    let backoff =
        Backoff { initial: Duration::from_millis(20), max: Duration::from_millis(100), ..Backoff::default() };
    crate::builder(format!("ipv4:{address}")).backoff(backoff)
}

fn message(payload: &[u8]) -> EchoRequest {
    EchoRequest { payload: payload.to_vec(), ..EchoRequest::default() }
}

/// Starts a unary call in a task.
fn unary(channel: &Channel, payload: &[u8]) -> JoinHandle<Result<EchoResponse, Status>> {
    let mut client = EchoClient::new(channel.clone());
    let mut request = Request::new(message(payload));
    request.set_timeout(LONG);
    tokio::spawn(async move { Ok(client.unary(request).await?.into_inner()) })
}

/// Starts a client-streaming call. Its messages come from the returned sender.
fn client_stream(
    channel: &Channel,
) -> (mpsc::UnboundedSender<EchoRequest>, JoinHandle<Result<EchoResponse, Status>>) {
    let (sender, requests) = mpsc::unbounded_channel();
    let mut client = EchoClient::new(channel.clone());
    let call =
        async move { Ok(client.client_stream(UnboundedReceiverStream::new(requests)).await?.into_inner()) };
    (sender, tokio::spawn(call))
}

/// Accepts the next connection and exchanges SETTINGS.
async fn accept(peer: &Peer) -> Conn {
    let mut conn = long(peer.accept()).await;
    conn.handshake().await.expect("the client is there");
    conn
}

async fn request(conn: &mut Conn) -> Received {
    long(conn.next_request()).await.expect("the client is there")
}

async fn long<T>(work: impl Future<Output = T>) -> T {
    timeout(LONG, work).await.expect("it takes no time unless it fails")
}

/// Returns the message payloads of a request body.
fn payloads(body: &[u8]) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    let mut rest = body;
    while let Some((head, more)) = rest.split_first_chunk::<5>() {
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let (message, more) = more.split_at(length);
        payloads.push(decode(message).payload);
        rest = more;
    }
    payloads
}

fn decode(message: &[u8]) -> EchoRequest {
    evenkeel_proto::prost::Message::decode(message).expect("a request")
}

/// Sends a PING and returns the frames before its acknowledgement. No flow-control window is released for
/// them.
async fn until_pong(conn: &mut Conn) -> Vec<Frame> {
    conn.send(Frame::new(kind::PING, 0, 0, &b"evenkeel"[..])).await.expect("the client is there");
    let mut frames = Vec::new();
    loop {
        let frame = long(conn.next_frame()).await.expect("the client is there");
        if frame.kind == kind::PING && frame.flags & flag::ACK != 0 {
            return frames;
        }
        frames.push(frame);
    }
}

fn data_of(frames: &[Frame]) -> usize {
    frames.iter().filter(|frame| frame.kind == kind::DATA).map(|frame| frame.payload.len()).sum()
}

/// fault 44: GOAWAY with a last stream id below the sent streams: unprocessed streams are retried on another
/// connection, once. Processed ones complete. The amount of data that the application has sent does not
/// matter.
#[tokio::test]
async fn what_a_goodbye_leaves_out_is_sent_again() {
    let peer = Peer::bind().await;
    let channel = to(peer.address()).build().unwrap();
    let calls: Vec<_> = (0..5).map(|i| unary(&channel, &[i])).collect();
    let mut first = accept(&peer).await;
    let mut requests = Vec::new();
    for _ in 0..5 {
        requests.push(request(&mut first).await);
    }
    let (sender, upload) = client_stream(&channel);
    for payload in [b"a", b"b"] {
        sender.send(message(payload)).unwrap();
    }
    // Two messages with a prefix of five bytes and a payload of three each.
    let mut uploaded = 0;
    while uploaded < 16 {
        uploaded += data_of(&until_pong(&mut first).await);
    }

    requests.sort_by_key(|request| request.stream);
    first.go_away(requests[1].stream, code::NO_ERROR, b"").await.unwrap();
    let mut second = accept(&peer).await;
    let mut again = Vec::new();
    for _ in 0..3 {
        let request = request(&mut second).await;
        again.push(request.body.clone());
        second.respond(request.stream, b"", 0).await.unwrap();
    }
    again.sort();
    let mut left_out: Vec<_> = requests[2..].iter().map(|request| request.body.clone()).collect();
    left_out.sort();
    assert_eq!(again, left_out);
    sender.send(message(b"c")).unwrap();
    drop(sender);
    let streamed = request(&mut second).await;
    assert_eq!(payloads(&streamed.body), [b"a", b"b", b"c"]);
    second.respond(streamed.stream, b"", 0).await.unwrap();
    upload.await.unwrap().unwrap();

    for request in &requests[..2] {
        first.respond(request.stream, b"", 0).await.unwrap();
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(long(first.closed()).await, Some(code::NO_ERROR), "with its calls the old connection ends");
}

/// fault 44: GOAWAY under load at all phases of a call: before the pick, before the send and after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn goodbyes_under_load_fail_nothing() {
    let armed = Arc::new(AtomicBool::new(false));
    let goes = armed.clone();
    let served = serve(move |call| {
        let answer = Answer::Ok(Vec::new().into());
        if goes.swap(false, Ordering::SeqCst) {
            Answer::GoAwayThen { last_stream: call.stream, code: code::NO_ERROR, answer: answer.into() }
        } else {
            answer
        }
    });
    let list = [served.address(0).to_string(), served.address(1).to_string(), served.address(2).to_string()]
        .join(",");
    let channel = crate::builder(format!("ipv4:{list}")).service_config(ROUND_ROBIN).build().unwrap();
    let load = Load::start(&channel, 32);
    for _ in 0..50 {
        armed.store(true, Ordering::SeqCst);
        while armed.load(Ordering::SeqCst) {
            load.further(0).await;
        }
        // Each call sees at most one GOAWAY: a second one may fail it.
        load.further(0).await;
    }
    let counts = load.stop().await;
    let connections: u64 = served.connections_by_address().values().sum();
    println!(
        "fault 44: {} calls at {} per second over {connections} connections, 0 failed",
        counts.ok, counts.rate
    );
    assert!(connections >= 50, "{connections} connections");
    counts.expect_none_failed();
}

/// fault 45: of a thousand calls, a tenth is refused (REFUSED_STREAM) once and a hundredth always. The former
/// are retried transparently, the latter fail after two attempts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_is_sent_again_once() {
    let attempts: Arc<[AtomicU32]> = (0..1000).map(|_| AtomicU32::new(0)).collect();
    let counted = attempts.clone();
    let served = serve(move |call| {
        let number: usize = String::from_utf8(decode(call.message).payload).unwrap().parse().unwrap();
        let before = counted[number].fetch_add(1, Ordering::SeqCst);
        if number.is_multiple_of(100) || number.is_multiple_of(10) && before == 0 {
            Answer::Refuse
        } else {
            Answer::Ok(Vec::new().into())
        }
    });
    let channel = to(served.address(0)).build().unwrap();
    let mut calls = JoinSet::new();
    for number in 0..1000_usize {
        let call = unary(&channel, number.to_string().as_bytes());
        calls.spawn(async move { (number, call.await.unwrap()) });
        if calls.len() >= 32 {
            check(calls.join_next().await.unwrap().unwrap(), &attempts, served.address(0));
        }
    }
    while let Some(call) = calls.join_next().await {
        check(call.unwrap(), &attempts, served.address(0));
    }
}

/// Asserts the result and the number of attempts that the call's number implies.
fn check(
    (number, result): (usize, Result<EchoResponse, Status>),
    attempts: &[AtomicU32],
    address: SocketAddr,
) {
    let attempts = attempts[number].load(Ordering::SeqCst);
    match result {
        Ok(_) => assert!(
            number % 100 != 0 && attempts == if number % 10 == 0 { 2 } else { 1 },
            "{number}: {attempts}"
        ),
        Err(status) => {
            assert!(number % 100 == 0 && attempts == 2, "{number}: {status} after {attempts} attempts");
            assert_eq!(status.code(), Code::Unavailable);
            assert_eq!(status.message(), format!("endpoint {address}: RST_STREAM REFUSED_STREAM"));
        }
    }
}

/// RST_STREAM fails its call with the gRPC status of the error code, and no other call. Response headers
/// prevent any retry.
#[tokio::test]
async fn resets_map_to_status_codes() {
    let table = [
        (code::NO_ERROR, Code::Internal, "NO_ERROR"),
        (code::PROTOCOL_ERROR, Code::Internal, "PROTOCOL_ERROR"),
        (code::INTERNAL_ERROR, Code::Internal, "INTERNAL_ERROR"),
        (code::FLOW_CONTROL_ERROR, Code::Internal, "FLOW_CONTROL_ERROR"),
        (4, Code::Internal, "SETTINGS_TIMEOUT"),
        (5, Code::Internal, "STREAM_CLOSED"),
        (code::FRAME_SIZE_ERROR, Code::Internal, "FRAME_SIZE_ERROR"),
        (code::CANCEL, Code::Cancelled, "CANCEL"),
        (code::COMPRESSION_ERROR, Code::Internal, "COMPRESSION_ERROR"),
        (10, Code::Internal, "CONNECT_ERROR"),
        (code::ENHANCE_YOUR_CALM, Code::ResourceExhausted, "ENHANCE_YOUR_CALM"),
        (12, Code::PermissionDenied, "INADEQUATE_SECURITY"),
        (13, Code::Internal, "HTTP_1_1_REQUIRED"),
        (code::REFUSED_STREAM, Code::Unavailable, "REFUSED_STREAM"),
    ];
    let peer = Peer::bind().await;
    let channel = to(peer.address()).service_config(RETRIES).build().unwrap();
    channel.connect();
    let mut conn = accept(&peer).await;
    for (reset, code, name) in table {
        let expected = format!("endpoint {}: RST_STREAM {name}", peer.address());
        if reset != code::REFUSED_STREAM {
            let call = unary(&channel, b"x");
            let stream = request(&mut conn).await.stream;
            conn.reset(stream, reset).await.unwrap();
            let status = call.await.unwrap().unwrap_err();
            assert_eq!((status.code(), status.message()), (code, &*expected));
        }
        let call = unary(&channel, b"x");
        let stream = request(&mut conn).await.stream;
        conn.respond_headers(stream, &[]).await.unwrap();
        conn.reset(stream, reset).await.unwrap();
        let status = call.await.unwrap().unwrap_err();
        assert_eq!((status.code(), status.message()), (code, &*expected));
    }
    let call = unary(&channel, b"x");
    let request = request(&mut conn).await;
    conn.respond(request.stream, b"", 0).await.unwrap();
    call.await.unwrap().unwrap();
    assert_eq!(request.stream as usize, 2 * (2 * table.len() - 1) + 1, "every call had one stream");
}

/// Ends a connection with a call on this stream. A returned connection stays open until the call has ended.
type End = fn(Conn, u32) -> Pin<Box<dyn Future<Output = Option<Conn>> + Send>>;

/// PF-15: a connection that closes during a call fails it with UNAVAILABLE, the address and the reason.
#[tokio::test]
async fn calls_report_how_their_connection_ended() {
    let peer = Peer::bind().await;
    let channel =
        to(peer.address()).keepalive(Duration::from_millis(200), Duration::from_millis(100)).build().unwrap();
    // h2 has one error code for all parse errors.
    let broken = if crate::is_over_h2() {
        "the peer violated HTTP/2 or a limit (PROTOCOL_ERROR)"
    } else {
        "the peer violated HTTP/2 or a limit (FRAME_SIZE_ERROR)"
    };
    let ends: [(&str, End); 5] = [
        ("closed by the peer", |conn, _| {
            Box::pin(async move {
                conn.hang_up().await;
                None
            })
        }),
        ("connection reset", |conn, _| {
            Box::pin(async move {
                conn.abort();
                None
            })
        }),
        ("GOAWAY INTERNAL_ERROR, \"out of \\x07coffee\"", |mut conn, stream| {
            Box::pin(async move {
                conn.go_away(stream, code::INTERNAL_ERROR, b"out of \x07coffee").await.unwrap();
                conn.ping().await.unwrap();
                conn.hang_up().await;
                None
            })
        }),
        ("no ACK of a keepalive PING within 100ms", |mut conn, _| {
            Box::pin(async move {
                conn.mute_pings();
                conn.closed().await;
                None
            })
        }),
        (broken, |mut conn, _| {
            Box::pin(async move {
                conn.send(Frame::new(kind::PING, 0, 0, &b"seven.."[..])).await.unwrap();
                Some(conn)
            })
        }),
    ];
    for (why, end) in ends {
        let call = unary(&channel, b"x");
        let mut conn = accept(&peer).await;
        let stream = request(&mut conn).await.stream;
        conn.respond_headers(stream, &[]).await.unwrap();
        // An incomplete message: a prefix with length 9, and one byte.
        conn.send(Frame::new(kind::DATA, 0, stream, &[0, 0, 0, 0, 9, 1][..])).await.unwrap();
        let conn = end(conn, stream).await;
        let status = long(call).await.unwrap().unwrap_err();
        println!("{status}");
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains(why), "{status}, expected {why:?}");
        assert!(status.message().contains(&peer.address().to_string()), "{status}");
        drop(conn);
    }
}

/// Responses that are not gRPC: the HTTP status selects the status code, and the message describes the
/// response. Retry policies apply.
#[tokio::test]
async fn a_response_that_is_not_grpc_is_described() {
    let peer = Peer::bind().await;
    let plain = to(peer.address()).build().unwrap();
    plain.connect();
    let mut conn = accept(&peer).await;
    let page = b"<html><body>Service Unavailable</body></html>";
    let table = [
        ("503", "text/html; charset=utf-8", Code::Unavailable),
        ("503", "application/grpc", Code::Unavailable),
        ("502", "text/html", Code::Unavailable),
        ("429", "application/json", Code::Unavailable),
        ("404", "text/plain", Code::Unimplemented),
        ("403", "text/plain", Code::PermissionDenied),
        ("401", "text/plain", Code::Unauthenticated),
        ("400", "text/plain", Code::Internal),
        ("418", "text/plain", Code::Unknown),
        ("200", "text/html", Code::Unknown),
    ];
    for (status, kind_of, code) in table {
        for body in [&page[..], b""] {
            let call = unary(&plain, b"x");
            let stream = request(&mut conn).await.stream;
            let head = block(&[(":status", status), ("content-type", kind_of)]);
            let end = if body.is_empty() { flag::END_STREAM } else { 0 };
            conn.send(Frame::new(kind::HEADERS, flag::END_HEADERS | end, stream, head)).await.unwrap();
            if !body.is_empty() {
                conn.send(Frame::new(kind::DATA, flag::END_STREAM, stream, body)).await.unwrap();
            }
            let failed = call.await.unwrap().unwrap_err();
            let expected =
                format!("endpoint {}: expected a gRPC response, found HTTP status {status}", peer.address());
            assert_eq!(failed.code(), code, "{failed}");
            assert!(failed.message().starts_with(&expected), "{failed}, expected {expected}");
            assert!(failed.message().ends_with(&format!(" and content type {kind_of:?}")), "{failed}");
        }
    }
    // The trailers have no `grpc-status`.
    let call = unary(&plain, b"x");
    let stream = request(&mut conn).await.stream;
    conn.respond_headers(stream, &[]).await.unwrap();
    conn.respond_data(stream, b"").await.unwrap();
    let trailers =
        Frame::new(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, stream, block(&[("x", "y")]));
    conn.send(trailers).await.unwrap();
    let failed = call.await.unwrap().unwrap_err();
    assert_eq!(failed.code(), Code::Unknown, "{failed}");

    let retrying = to(peer.address()).service_config(RETRIES).build().unwrap();
    let call = unary(&retrying, b"x");
    let mut conn = accept(&peer).await;
    let stream = request(&mut conn).await.stream;
    let head = block(&[(":status", "503"), ("content-type", "text/html")]);
    conn.send(Frame::new(kind::HEADERS, flag::END_HEADERS, stream, head)).await.unwrap();
    let stream = request(&mut conn).await.stream;
    conn.respond(stream, b"", 0).await.unwrap();
    call.await.unwrap().unwrap();
}

/// fault 57: malformed and repeated load reports do not fail the call.
#[tokio::test]
async fn malformed_load_reports_fail_nothing() {
    const NAME: &str = "endpoint-load-metrics-bin";
    let peer = Peer::bind().await;
    let wrr = r#"{"loadBalancingConfig": [{"weighted_round_robin": {}}]}"#;
    let channel = to(peer.address()).service_config(wrr).build().unwrap();
    channel.connect();
    let mut conn = accept(&peer).await;
    // cpu_utilization 0.5; a truncated double; a length beyond the end; invalid base64; a NaN; empty.
    let reports = ["CQAAAAAAAOA/", "CQAA", "Iv8B", "!!!", "CQAAAAAAAPh/", ""];
    for first in reports {
        for second in reports {
            for trailers in [&[(NAME, first)][..], &[(NAME, first), (NAME, second)]] {
                let call = unary(&channel, b"x");
                let stream = request(&mut conn).await.stream;
                conn.respond_headers(stream, &[]).await.unwrap();
                conn.respond_data(stream, b"").await.unwrap();
                conn.respond_trailers(stream, 0, trailers).await.unwrap();
                call.await.unwrap().unwrap_or_else(|status| panic!("{trailers:?}: {status}"));
            }
        }
    }
}

/// GOAWAY with `too_many_pings` doubles the keepalive time of the next connection, each time.
/// ENHANCE_YOUR_CALM for another reason does not.
#[tokio::test]
async fn too_many_pings_lengthens_the_keepalive_time() {
    let time = Duration::from_millis(200);
    let peer = Peer::bind().await;
    let channel = to(peer.address())
        .service_config(ROUND_ROBIN)
        .keepalive(time, LONG)
        .keepalive_without_calls(true)
        .build()
        .unwrap();
    channel.connect();
    for _ in 0..12 {
        let mut conn = accept(&peer).await;
        conn.go_away(0, code::ENHANCE_YOUR_CALM, b"too_many_calls").await.unwrap();
    }
    let mut conn = accept(&peer).await;
    // If each of the twelve had counted, the next ping would be ten minutes away.
    pinged(&mut conn).await;
    conn.go_away(0, code::ENHANCE_YOUR_CALM, b"too_many_pings").await.unwrap();
    let mut conn = long(peer.accept()).await;
    let greeted = Instant::now();
    conn.handshake().await.unwrap();
    pinged(&mut conn).await;
    assert!(greeted.elapsed() >= 2 * time, "the time has doubled: {:?}", greeted.elapsed());
    // The doubling has an upper bound.
    for _ in 0..80 {
        conn.go_away(0, code::ENHANCE_YOUR_CALM, b"too_many_pings").await.unwrap();
        conn = accept(&peer).await;
    }
    let call = unary(&channel, b"x");
    let stream = request(&mut conn).await.stream;
    conn.respond(stream, b"", 0).await.unwrap();
    call.await.unwrap().unwrap();
}

async fn pinged(conn: &mut Conn) {
    loop {
        let frame = long(conn.next_frame()).await.expect("the client is there");
        if frame.kind == kind::PING && frame.flags & flag::ACK == 0 {
            return;
        }
    }
}

/// A peer that does not speak HTTP/2 never becomes READY, and the status contains its reply.
#[tokio::test]
async fn a_peer_without_settings_is_not_ready() {
    let peer = Peer::bind().await;
    let channel = to(peer.address())
        .service_config(ROUND_ROBIN)
        .connect_timeout(Duration::from_millis(300))
        .build()
        .unwrap();
    let mut connectivity = channel.watch_connectivity();
    let call = unary(&channel, b"x");
    let mut conn = long(peer.accept()).await;
    conn.send_bytes(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    let status = long(call).await.unwrap().unwrap_err();
    println!("{status}");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains(&format!("HTTP/2 handshake with {}", peer.address())), "{status}");

    // A peer that acknowledges pings and sends no SETTINGS is alive, but not READY.
    let mut conn = long(peer.accept()).await;
    while conn.next_frame().await.is_some() {}
    let mut conn = long(peer.accept()).await;
    conn.go_away(0, code::NO_ERROR, b"").await.unwrap();
    while conn.next_frame().await.is_some() {}
    let mut conn = accept(&peer).await;
    let ready = async {
        while *connectivity.borrow_and_update() != evenkeel::ConnectivityState::Ready {
            connectivity.changed().await.unwrap();
        }
    };
    long(ready).await;
    let call = unary(&channel, b"x");
    let stream = request(&mut conn).await.stream;
    assert_eq!(stream, 1, "nothing was sent before");
    conn.respond(stream, b"", 0).await.unwrap();
    call.await.unwrap().unwrap();
}
