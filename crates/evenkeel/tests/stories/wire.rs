//! Peers that do on the wire what a sound server never does, played frame by frame.

use std::net::SocketAddr;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel::{Backoff, Builder, Channel};
use testkit::net::Backend;
use testkit::net::echo::echo_client::EchoClient;
use testkit::net::echo::{EchoRequest, EchoResponse};
use testkit::net::frames::{
    Answer, Conn, Frame, Peer, Request as Received, block, code, flag, kind, serve, setting,
};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Request, Status};

use crate::load::Load;

/// Only a failure takes this long.
const LONG: Duration = Duration::from_secs(30);

const ROUND_ROBIN: &str = r#"{"loadBalancingConfig": [{"round_robin": {}}]}"#;

/// All methods are tried up to four times if the endpoint is unavailable.
const RETRIES: &str = r#"{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.001s",
    "maxBackoff": "0.001s", "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]}}]}"#;

fn to(address: SocketAddr) -> Builder {
    let backoff =
        Backoff { initial: Duration::from_millis(20), max: Duration::from_millis(100), ..Backoff::default() };
    Channel::builder(format!("ipv4:{address}")).backoff(backoff)
}

fn message(payload: &[u8]) -> EchoRequest {
    EchoRequest { payload: payload.to_vec(), ..EchoRequest::default() }
}

/// A call in a task of its own.
fn unary(channel: &Channel, payload: &[u8]) -> JoinHandle<Result<EchoResponse, Status>> {
    let mut client = EchoClient::new(channel.clone());
    let mut request = Request::new(message(payload));
    request.set_timeout(LONG);
    tokio::spawn(async move { Ok(client.unary(request).await?.into_inner()) })
}

/// A call whose messages come from the sender.
fn client_stream(
    channel: &Channel,
) -> (mpsc::UnboundedSender<EchoRequest>, JoinHandle<Result<EchoResponse, Status>>) {
    let (sender, requests) = mpsc::unbounded_channel();
    let mut client = EchoClient::new(channel.clone());
    let call =
        async move { Ok(client.client_stream(UnboundedReceiverStream::new(requests)).await?.into_inner()) };
    (sender, tokio::spawn(call))
}

/// The next connection, with SETTINGS exchanged.
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

/// The payloads of gRPC messages that a request's body carries.
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

/// Frames that the client sends until it answers this ping; nothing is given back for them.
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

/// A peer says goodbye below the streams that were sent: those it did not process are sent again elsewhere, once, and those
/// that it did are answered by it. It does not matter how often the application has sent something by then.
///
/// fault 44
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
    // Two messages of five and three bytes each.
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

/// Under load, connections say goodbye between all that calls do: before they are picked, before they are sent, and after.
///
/// fault 44
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
    let channel = Channel::builder(format!("ipv4:{list}")).service_config(ROUND_ROBIN).build().unwrap();
    let load = Load::start(&channel, 32);
    for _ in 0..50 {
        armed.store(true, Ordering::SeqCst);
        while armed.load(Ordering::SeqCst) {
            load.further(0).await;
        }
        // No call meets two goodbyes: the second may fail it.
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

/// Of a thousand calls a tenth is refused at first, and a hundredth always: the first are sent again and the second fail, after
/// two attempts.
///
/// fault 45
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

/// Whether a call came out as its number says, after as many attempts.
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

/// A stream that is reset fails its call with gRPC's code for the reason, and only its call. After the answer has begun nothing
/// is tried again, whatever the reason and whatever the policy.
#[tokio::test]
async fn resets_mean_what_the_table_says() {
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

/// How a peer ends a connection with a call on this stream. One that is given back stays open until the call has ended.
type End = fn(Conn, u32) -> Pin<Box<dyn Future<Output = Option<Conn>> + Send>>;

/// A connection that ends under a call: the call is unavailable, and says where and why.
///
/// PF-15
#[tokio::test]
async fn a_call_says_how_its_connection_ended() {
    let peer = Peer::bind().await;
    let channel =
        to(peer.address()).keepalive(Duration::from_millis(200), Duration::from_millis(100)).build().unwrap();
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
        ("no answer to a keepalive ping within 100ms", |mut conn, _| {
            Box::pin(async move {
                conn.mute_pings();
                conn.closed().await;
                None
            })
        }),
        ("the peer broke HTTP/2 or a limit (PROTOCOL_ERROR)", |mut conn, _| {
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
        // Half a message.
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

/// Answers that are not gRPC's: the HTTP status says what kind of failure it is, and the text what came. A retry policy holds
/// for them.
#[tokio::test]
async fn an_answer_that_is_not_grpc_is_named() {
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
                format!("endpoint {}: expected a gRPC answer, found HTTP status {status}", peer.address());
            assert_eq!(failed.code(), code, "{failed}");
            assert!(failed.message().starts_with(&expected), "{failed}, expected {expected}");
            assert!(failed.message().ends_with(&format!(" and content type {kind_of:?}")), "{failed}");
        }
    }
    // Trailers that say no status.
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

/// What breaks HTTP/2 ends the connection, and nothing else: its call fails with the address, and calls go
/// on at the other endpoint, and at this one over another connection. What breaks only a stream ends the call alone.
///
/// fault 55, fault 56
#[tokio::test]
async fn broken_frames_end_a_connection_and_no_more() {
    let sound = Backend::start().await;
    let table: [(&str, Frame); 12] = [
        ("DATA on stream 0", Frame::new(kind::DATA, 0, 0, &b"x"[..])),
        ("DATA on a stream that never was", Frame::new(kind::DATA, 0, 99, &b"x"[..])),
        ("SETTINGS of five bytes", Frame::new(kind::SETTINGS, 0, 0, &b"12345"[..])),
        ("PING of seven bytes", Frame::new(kind::PING, 0, 0, &b"1234567"[..])),
        ("a frame above the limit", Frame::new(kind::DATA, 0, 1, vec![0; 16_385])),
        ("WINDOW_UPDATE by nothing", Frame::new(kind::WINDOW_UPDATE, 0, 0, &[0; 4][..])),
        ("a window above the limit", Frame::new(kind::WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff][..])),
        ("HPACK garbage", Frame::new(kind::HEADERS, flag::END_HEADERS, 1, vec![0xff; 64])),
        (
            "a push that was not asked for",
            Frame::new(
                kind::PUSH_PROMISE,
                flag::END_HEADERS,
                1,
                [&[0, 0, 0, 2][..], &block(&[(":path", "/")])].concat(),
            ),
        ),
        ("more padding than frame", Frame::new(kind::DATA, flag::PADDED, 1, &[200, 1, 2][..])),
        (
            "a name in capitals",
            Frame::new(kind::HEADERS, flag::END_HEADERS, 1, block(&[(":status", "200"), ("Capital", "x")])),
        ),
        (
            "a CONTINUATION of nothing",
            Frame::new(kind::CONTINUATION, flag::END_HEADERS, 1, block(&[("a", "b")])),
        ),
    ];
    let peer = Peer::bind().await;
    let list = format!("ipv4:{},{}", peer.address(), sound.address());
    let channel = Channel::builder(list).service_config(ROUND_ROBIN).build().unwrap();
    channel.connect();
    let mut conn = accept(&peer).await;
    let load = Load::start(&Channel::builder(format!("ipv4:{}", sound.address())).build().unwrap(), 2);
    for (what, frame) in table {
        // One of two calls in a row is at the bad peer.
        let mut calls = JoinSet::new();
        let mut stream = None;
        while stream.is_none() {
            let call = unary(&channel, b"x");
            calls.spawn(async move { call.await.unwrap() });
            tokio::select! {
                request = conn.next_request() => stream = Some(request.expect("it is there").stream),
                Some(done) = calls.join_next() => drop(done.unwrap().expect("the sound one answers")),
            }
        }
        assert_eq!(stream, Some(1), "{what}: the first on its connection");
        conn.send(frame).await.unwrap();
        let code = long(conn.closed()).await;
        assert!(code.is_some_and(|code| code != code::NO_ERROR), "{what}: the peer is told, with {code:?}");
        let mut failed = Vec::new();
        while let Some(call) = calls.join_next().await {
            failed.extend(call.unwrap().err());
        }
        println!("{what}: {}", failed[0]);
        assert_eq!(failed.len(), 1, "{what}");
        assert_eq!(failed[0].code(), Code::Unavailable, "{what}");
        assert!(failed[0].message().contains(&peer.address().to_string()), "{what}: {}", failed[0]);
        conn = accept(&peer).await;
    }
    load.stop().await.expect_none_failed();

    // Headers above the limit end their call, and a frame of an unknown type ends nothing.
    let channel = to(peer.address()).build().unwrap();
    channel.connect();
    let mut conn = accept(&peer).await;
    let call = unary(&channel, b"x");
    let stream = request(&mut conn).await.stream;
    let value = "x".repeat(20 << 10);
    let oversized = block(&[(":status", "200"), ("content-type", "application/grpc"), ("filler", &value)]);
    let (first, second) = oversized.split_at(16_000);
    conn.send(Frame::new(kind::HEADERS, 0, stream, first.to_vec())).await.unwrap();
    conn.send(Frame::new(kind::CONTINUATION, flag::END_HEADERS, stream, second.to_vec())).await.unwrap();
    let status = long(call).await.unwrap().unwrap_err();
    println!("{status}");
    assert_eq!(status.code(), Code::Internal);
    assert!(status.message().contains(&peer.address().to_string()), "{status}");
    let call = unary(&channel, b"x");
    let stream = request(&mut conn).await.stream;
    conn.send(Frame::new(200, 0xff, stream, &b"?"[..])).await.unwrap();
    conn.respond(stream, b"", 0).await.unwrap();
    call.await.unwrap().unwrap();
}

/// A message in frames of one byte, each padded with 255: padding is given back like data, or the answer would never be whole.
///
/// fault 55
#[tokio::test]
async fn padding_is_given_back() {
    let peer = Peer::bind().await;
    let channel = to(peer.address()).build().unwrap();
    let call = unary(&channel, b"x");
    let mut conn = accept(&peer).await;
    let stream = request(&mut conn).await.stream;
    conn.respond_headers(stream, &[]).await.unwrap();
    let message = evenkeel_proto::prost::Message::encode_to_vec(&EchoResponse {
        payload: vec![7; 25_000],
        ..EchoResponse::default()
    });
    let mut body = vec![0; 5];
    body[1..].copy_from_slice(&(message.len() as u32).to_be_bytes());
    body.extend_from_slice(&message);

    // Frames of 6.4 million bytes, through windows of two and five million.
    let mut of_stream = 2 << 20;
    let mut of_connection = 5 << 20;
    let padded = 257;
    for byte in body {
        while of_stream < padded || of_connection < padded {
            let frame = long(conn.next_frame()).await.expect("the client is there");
            if frame.kind == kind::WINDOW_UPDATE {
                let more = i64::from(u32::from_be_bytes(frame.payload[..4].try_into().unwrap()));
                *(if frame.stream == 0 { &mut of_connection } else { &mut of_stream }) += more;
            }
        }
        of_stream -= padded;
        of_connection -= padded;
        let mut payload = vec![0; 257];
        payload[..2].copy_from_slice(&[255, byte]);
        conn.send(Frame::new(kind::DATA, flag::PADDED, stream, payload)).await.unwrap();
    }
    conn.respond_trailers(stream, 0, &[]).await.unwrap();
    assert_eq!(long(call).await.unwrap().unwrap().payload, vec![7; 25_000]);
}

/// Floods of PING, SETTINGS, CONTINUATION, empty DATA, and headers that unpack to a thousand times their size: what is harmless
/// is answered, what is not ends the connection, memory stays where it is, and others do not notice. This starts a
/// process, so that its memory is its own.
///
/// fault 55, fault 56
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_cost_no_memory() {
    let output = tokio::task::spawn_blocking(|| {
        Command::new(std::env::current_exe().unwrap())
            .args(["wire::floods_in_a_process_of_their_own", "--exact", "--nocapture"])
            .env("STORY_FLOODS", "1")
            .output()
            .unwrap()
    });
    let output = timeout(2 * LONG, output).await.expect("the process ends").unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    println!("{}", said.lines().filter(|line| line.starts_with("fault")).collect::<Vec<_>>().join("\n"));
}

/// The other process of the story above; by itself it does nothing.
#[tokio::test]
async fn floods_in_a_process_of_their_own() {
    const FRAMES: usize = 50_000;
    if std::env::var_os("STORY_FLOODS").is_none() {
        return;
    }
    let sound = Backend::start().await;
    let others = Load::start(&Channel::builder(format!("ipv4:{}", sound.address())).build().unwrap(), 2);
    others.further(5).await;
    let peer = Peer::bind().await;
    let channel = to(peer.address()).service_config(ROUND_ROBIN).build().unwrap();
    channel.connect();

    // Small frames are sent many at a time, so that it does not take long.
    let many = |frame: &[u8]| frame.repeat(1000);
    let ping = many(&[&[0, 0, 8, kind::PING, 0, 0, 0, 0, 0][..], b"evenkeel"].concat());
    let settings = many(&[0, 0, 0, kind::SETTINGS, 0, 0, 0, 0, 0]);
    let empty = many(&[0, 0, 0, kind::DATA, 0, 0, 0, 0, 1]);
    let window = many(&[0, 0, 4, kind::WINDOW_UPDATE, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let unknown = many(&[0, 0, 4, 250, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let harmless =
        [("PING", &ping), ("SETTINGS", &settings), ("WINDOW_UPDATE", &window), ("unknown", &unknown)];
    for (what, flood) in harmless {
        let mut conn = accept(&peer).await;
        let call = unary(&channel, b"x");
        let stream = request(&mut conn).await.stream;
        let before = most_memory();
        for _ in 0..FRAMES / 1000 {
            conn.send_bytes(flood).await.unwrap();
            // Takes in what the client answers, or both would wait for the other to read.
            long(conn.ping()).await.unwrap();
        }
        conn.respond(stream, b"", 0).await.unwrap();
        long(call).await.unwrap().unwrap();
        let grown = most_memory() - before;
        println!("fault 55: {FRAMES} frames of {what} cost {grown} KiB");
        assert!(grown <= 1024, "{what}");
        conn.hang_up().await;
    }

    // A header of 4,000 bytes that goes into the table, and 12,000 times the same by one byte each: 48 MB.
    let mut bomb = block(&[(":status", "200")]);
    bomb.extend_from_slice(&[0x40, 1, b'b', 0x7f, 0xa1, 0x1e]);
    bomb.extend_from_slice(&[b'x'; 4000]);
    bomb.extend_from_slice(&[0xbe; 12_000]);
    let floods: [(&str, Vec<u8>, Vec<u8>); 4] = [
        ("HPACK bombs", Vec::new(), frame(kind::HEADERS, flag::END_HEADERS, &bomb)),
        (
            "CONTINUATION",
            frame(kind::HEADERS, 0, &block(&[(":status", "200")])),
            frame(kind::CONTINUATION, 0, &block(&[("a", "b")])),
        ),
        (
            "empty CONTINUATION",
            frame(kind::HEADERS, 0, &block(&[(":status", "200")])),
            frame(kind::CONTINUATION, 0, &[]).repeat(1000),
        ),
        (
            "empty DATA",
            frame(
                kind::HEADERS,
                flag::END_HEADERS,
                &block(&[(":status", "200"), ("content-type", "application/grpc")]),
            ),
            empty,
        ),
    ];
    for (what, first, then) in floods {
        let mut conn = accept(&peer).await;
        // A stream whose answer nobody reads: what comes for it has to be kept, or refused.
        let mut client = EchoClient::new(channel.clone());
        let call = tokio::spawn(async move {
            let answers = client.server_stream(message(b"x")).await;
            let held = answers.map(tonic::Response::into_inner);
            std::future::pending::<()>().await;
            drop(held);
        });
        let stream = request(&mut conn).await.stream;
        assert_eq!(stream, 1);
        let before = most_memory();
        conn.send_bytes(&first).await.unwrap();
        let mut sent = 0;
        let flooding = async {
            // The client ends it, or it takes all of this.
            while sent < FRAMES && conn.send_bytes(&then).await.is_ok() {
                sent += then.len() / 9;
                tokio::task::yield_now().await;
            }
        };
        long(flooding).await;
        let code = if sent < FRAMES { long(conn.closed()).await } else { None };
        let grown = most_memory() - before;
        println!("fault 56: {what} cost {grown} KiB; ended with {code:?} after {sent}");
        assert!(grown <= 1024, "{what}");
        call.abort();
    }
    others.further(5).await;
    others.stop().await.expect_none_failed();
}

/// A frame of stream 1.
fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
}

/// The most memory that this process ever had, in KiB.
fn most_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux says so");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// A peer that takes no calls at first, then two at once, then one: calls wait, go as they may, and go elsewhere if the peer
/// leaves.
///
/// fault 54
#[tokio::test]
async fn calls_wait_for_a_peer_that_takes_none() {
    let peer = Peer::bind().await;
    let channel = to(peer.address()).build().unwrap();
    channel.connect();
    let mut conn = long(peer.accept()).await;
    conn.settings(&[(setting::MAX_CONCURRENT_STREAMS, 0)]).await.unwrap();
    long(channel.ready()).await.unwrap();
    let calls: Vec<_> = (0..6).map(|i| unary(&channel, &[i])).collect();
    quiet(&mut conn).await;
    conn.settings(&[(setting::MAX_CONCURRENT_STREAMS, 2)]).await.unwrap();
    let streams = [request(&mut conn).await.stream, request(&mut conn).await.stream];
    quiet(&mut conn).await;
    conn.settings(&[(setting::MAX_CONCURRENT_STREAMS, 1)]).await.unwrap();
    quiet(&mut conn).await;
    conn.respond(streams[0], b"", 0).await.unwrap();
    quiet(&mut conn).await;
    conn.respond(streams[1], b"", 0).await.unwrap();
    let third = request(&mut conn).await.stream;
    quiet(&mut conn).await;
    conn.settings(&[(setting::MAX_CONCURRENT_STREAMS, 2)]).await.unwrap();
    let fourth = request(&mut conn).await.stream;
    quiet(&mut conn).await;

    conn.go_away(fourth, code::NO_ERROR, b"").await.unwrap();
    let mut next = accept(&peer).await;
    for _ in 0..2 {
        let stream = request(&mut next).await.stream;
        next.respond(stream, b"", 0).await.unwrap();
    }
    conn.respond(third, b"", 0).await.unwrap();
    conn.respond(fourth, b"", 0).await.unwrap();
    for call in calls {
        call.await.unwrap().unwrap();
    }

    // One call too many for a limit that was lowered counts: there is no room before it is over.
    let calls = [unary(&channel, b"x"), unary(&channel, b"y")];
    let streams = [request(&mut next).await.stream, request(&mut next).await.stream];
    next.settings(&[(setting::MAX_CONCURRENT_STREAMS, 1)]).await.unwrap();
    next.ping().await.unwrap();
    next.respond(streams[0], b"", 0).await.unwrap();
    next.ping().await.unwrap();
    let mut short = Request::new(message(b"short"));
    short.set_timeout(Duration::from_millis(20));
    let status = EchoClient::new(channel.clone()).unary(short).await.unwrap_err();
    let text = format!("the deadline passed: endpoint {} takes no more calls at once", peer.address());
    assert_eq!((status.code(), status.message()), (Code::DeadlineExceeded, &*text));
    next.respond(streams[1], b"", 0).await.unwrap();
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

/// Sees that no request comes, as far as one can.
async fn quiet(conn: &mut Conn) {
    for _ in 0..10 {
        conn.ping().await.expect("the client is there");
    }
    let request = timeout(Duration::from_millis(1), conn.next_request()).await;
    assert!(request.is_err(), "{request:?}");
}

/// An upload waits for the peer's window, whatever it has sent before: the application is not asked for more than fits, and
/// nothing piles up. Messages are of one size, and of one that is not kept for another attempt.
#[tokio::test]
async fn an_upload_waits_for_the_window() {
    for (size, begun) in [(1000, false), (1000, true), (300_000, false), (300_000, true)] {
        let peer = Peer::bind().await;
        let channel = to(peer.address()).build().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let messages = tokio_stream::StreamExt::map(tokio_stream::iter(0..), move |_: u32| {
            counted.fetch_add(1, Ordering::SeqCst);
            message(&vec![0; size])
        });
        let mut client = EchoClient::new(channel.clone());
        let call = tokio::spawn(async move { client.bidi(messages).await });
        let mut conn = long(peer.accept()).await;
        conn.settings(&[(setting::INITIAL_WINDOW_SIZE, 1500)]).await.unwrap();
        let stream = loop {
            let frame = long(conn.next_frame()).await.unwrap();
            if frame.kind == kind::HEADERS {
                break frame.stream;
            }
        };
        if begun {
            conn.respond_headers(stream, &[]).await.unwrap();
        }
        let mut received = 0;
        while received < 1500 {
            received += data_of(&until_pong(&mut conn).await);
        }
        for _ in 0..20 {
            received += data_of(&until_pong(&mut conn).await);
        }
        assert_eq!(received, 1500, "it fills the window, and no more");
        // One that is sent in part, one that is held, and as many as tonic gathers before it hands on: 32 KiB.
        let most = 3 + (64 << 10) / size;
        let count = asked.load(Ordering::SeqCst);
        assert!(count <= most, "{count} messages of {size} bytes were asked for, answer begun: {begun}");

        conn.send(Frame::new(kind::WINDOW_UPDATE, 0, stream, 40_000_u32.to_be_bytes().to_vec()))
            .await
            .unwrap();
        while received < 41_500 {
            received += data_of(&until_pong(&mut conn).await);
        }
        call.abort();
    }
}

/// An upload that is sent again waits for the window with messages that the application gave long ago. If the answer begins
/// then, the call is committed, and those messages are still sent.
#[tokio::test]
async fn what_is_sent_again_is_sent_whole_though_the_answer_begins() {
    let peer = Peer::bind().await;
    let channel = to(peer.address()).build().unwrap();
    let (sender, requests) = mpsc::unbounded_channel();
    let mut client = EchoClient::new(channel.clone());
    let call = tokio::spawn(async move { client.bidi(UnboundedReceiverStream::new(requests)).await });
    let mut conn = accept(&peer).await;
    let mut expected = Vec::new();
    let mut received = 0;
    // Each in a frame of its own.
    for i in 0..10_u8 {
        expected.push(vec![i; 1000]);
        sender.send(message(&[i; 1000])).unwrap();
        let until = received + 1000;
        while received < until {
            received += data_of(&until_pong(&mut conn).await);
        }
    }
    // From here on streams have a small window.
    conn.settings(&[(setting::INITIAL_WINDOW_SIZE, 1500)]).await.unwrap();
    until_pong(&mut conn).await;
    conn.reset(1, code::REFUSED_STREAM).await.unwrap();
    let mut received = 0;
    while received < 1500 {
        received += data_of(&until_pong(&mut conn).await);
    }
    assert_eq!(received, 1500);
    conn.respond_headers(3, &[]).await.unwrap();
    let answers = long(call).await.unwrap().unwrap();
    until_pong(&mut conn).await;

    sender.send(message(b"last")).unwrap();
    drop(sender);
    conn.send(Frame::new(kind::WINDOW_UPDATE, 0, 3, 60_000_u32.to_be_bytes().to_vec())).await.unwrap();
    let mut rest = Vec::new();
    loop {
        let frame = long(conn.next_frame()).await.expect("the client is there");
        if frame.kind == kind::DATA {
            rest.extend_from_slice(&frame.payload);
            if frame.flags & flag::END_STREAM != 0 {
                break;
            }
        }
    }
    let sent = 10 * (5 + message(&[0; 1000]).payload.len() + 3) + 5 + 6;
    assert_eq!(received + rest.len(), sent, "ten messages and the last");
    assert!(rest.ends_with(b"last"));
    conn.respond_trailers(3, 0, &[]).await.unwrap();
    drop(answers);
    assert_eq!(expected.len(), 10);
}

/// A peer may answer before it has read all: the call is answered, and the rest is not sent.
#[tokio::test]
async fn an_answer_may_come_before_the_request_is_over() {
    let peer = Peer::bind().await;
    let channel = to(peer.address()).build().unwrap();
    let (sender, call) = client_stream(&channel);
    sender.send(message(b"first")).unwrap();
    let mut conn = accept(&peer).await;
    while data_of(&until_pong(&mut conn).await) == 0 {}
    conn.respond(1, b"", 0).await.unwrap();
    conn.reset(1, code::NO_ERROR).await.unwrap();
    long(call).await.unwrap().unwrap();
}

/// Load reports that cannot be read, and several of them, are no matter for the call.
///
/// fault 57
#[tokio::test]
async fn malformed_load_reports_fail_nothing() {
    const NAME: &str = "endpoint-load-metrics-bin";
    let peer = Peer::bind().await;
    let wrr = r#"{"loadBalancingConfig": [{"weighted_round_robin": {}}]}"#;
    let channel = to(peer.address()).service_config(wrr).build().unwrap();
    channel.connect();
    let mut conn = accept(&peer).await;
    // cpu_utilization 0.5; a double that is cut short; a length beyond the end; not base64; a NaN; nothing.
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

/// A peer that finds our pings too many gets half as many from its next connection on, as often as it says so; a peer that wants
/// calm for another reason gets as many as before.
#[tokio::test]
async fn pings_get_rarer_if_the_peer_says_so() {
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
    // If each of the twelve had counted, the next ping would come in ten minutes.
    pinged(&mut conn).await;
    conn.go_away(0, code::ENHANCE_YOUR_CALM, b"too_many_pings").await.unwrap();
    let mut conn = long(peer.accept()).await;
    let greeted = Instant::now();
    conn.handshake().await.unwrap();
    pinged(&mut conn).await;
    assert!(greeted.elapsed() >= 2 * time, "the time has doubled: {:?}", greeted.elapsed());
    // As often as it wants: there is an end to doubling.
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

/// Whoever does not speak HTTP/2 is not connected to, and the call says what came.
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

    // One that answers pings and sends no SETTINGS is alive, and still no endpoint.
    let mut conn = long(peer.accept()).await;
    while conn.next_frame().await.is_some() {}
    let mut conn = long(peer.accept()).await;
    conn.go_away(0, code::NO_ERROR, b"").await.unwrap();
    while conn.next_frame().await.is_some() {}
    let mut conn = accept(&peer).await;
    let ready = async {
        while *connectivity.borrow_and_update() != evenkeel::Connectivity::Ready {
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
