//! Tests of the fault injection: a fault that does not happen would make its tests meaningless.
#![cfg(feature = "net")]
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Ping, Reason};
use http::{Request, Response};
use testkit::net::certs::{self, Ca, Cert};
use testkit::net::frames::{
    self, Answer, Conn, Frame, Peer, Served, block, code, flag, kind, serve, setting,
};
use testkit::net::proxy::Proxy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Maximum time of every wait; only a failure reaches it.
const BOUND: Duration = Duration::from_secs(30);
/// Time for which a test checks that nothing happens. If it is too short, a fault of the kit may go
/// unnoticed, but no test fails.
const QUIET: Duration = Duration::from_millis(50);

async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(BOUND, future).await.expect("it happens in time")
}

async fn until(holds: impl Fn() -> bool) {
    within(async {
        while !holds() {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

// Proxy.

#[tokio::test]
async fn bytes_go_both_ways_and_connections_count() {
    let (echo, proxy) = proxied().await;
    let mut one = connect(&proxy).await;
    let mut two = connect(&proxy).await;
    exchange(&mut one, b"hello").await;
    exchange(&mut two, &vec![7; 1 << 20]).await;
    assert_eq!((proxy.connections(), proxy.open_connections()), (2, 2));
    drop(one);
    until(|| proxy.open_connections() == 1).await;
    exchange(&mut two, b"still here").await;
    assert_eq!((proxy.connections(), echo.accepted()), (2, 2));
}

#[tokio::test]
async fn a_half_closed_client_still_gets_its_response() {
    let (_echo, proxy) = proxied().await;
    let mut client = connect(&proxy).await;
    client.write_all(b"last words").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(rest(&mut client).await.unwrap(), b"last words");
    until(|| proxy.open_connections() == 0).await;
}

#[tokio::test]
async fn a_black_hole_forwards_nothing() {
    let (echo, proxy) = proxied().await;
    let mut client = connect(&proxy).await;
    exchange(&mut client, b"before").await;
    proxy.black_hole(true);
    client.write_all(b"into the dark").await.unwrap();
    silent(&mut client).await;
    // The FIN of the server is not forwarded either.
    echo.close_all();
    silent(&mut client).await;
    assert_eq!(proxy.open_connections(), 1);
    // New connections fall into the black hole too.
    let mut second = connect(&proxy).await;
    second.write_all(b"x").await.unwrap();
    silent(&mut second).await;
    proxy.black_hole(false);
    assert_eq!(received(&mut second, 1).await, b"x");
    assert_eq!(rest(&mut client).await.unwrap_or_default(), b"");
}

#[tokio::test]
async fn a_client_that_closes_in_a_black_hole_is_dropped() {
    let (_echo, proxy) = proxied().await;
    for unread in [&b""[..], b"ping"] {
        let mut client = connect(&proxy).await;
        exchange(&mut client, b"before").await;
        proxy.black_hole(true);
        client.write_all(unread).await.unwrap();
        drop(client);
        until(|| proxy.open_connections() == 0).await;
        proxy.black_hole(false);
    }
}

#[tokio::test]
async fn delay_applies_to_every_byte_in_both_directions() {
    let (echo, proxy) = proxied().await;
    let delay = Duration::from_millis(40);
    let mut client = connect(&proxy).await;
    exchange(&mut client, b"before").await;
    proxy.delay(delay);
    let start = Instant::now();
    exchange(&mut client, b"there and back").await;
    assert!(start.elapsed() >= 2 * delay);
    // Removing the delay releases the waiting bytes, unless the black hole holds them.
    let before = echo.bytes();
    proxy.delay(Duration::from_secs(3600));
    client.write_all(b"soon").await.unwrap();
    silent(&mut client).await;
    proxy.black_hole(true);
    proxy.delay(Duration::ZERO);
    silent(&mut client).await;
    assert_eq!(echo.bytes(), before);
    proxy.black_hole(false);
    assert_eq!(received(&mut client, 4).await, b"soon");
}

#[tokio::test]
async fn rate_limits_and_can_be_removed() {
    let (_echo, proxy) = proxied().await;
    let mut client = connect(&proxy).await;
    proxy.rate(10_000);
    let start = Instant::now();
    exchange(&mut client, &[1; 1200]).await;
    // Six parts of 200 bytes have five waits of 20 ms in each direction.
    assert!(start.elapsed() >= Duration::from_millis(100));
    proxy.rate(1);
    client.write_all(&vec![2; 100_000]).await.unwrap();
    proxy.rate(None);
    assert_eq!(received(&mut client, 100_000).await, vec![2; 100_000]);
}

#[tokio::test]
async fn refused_and_accepted_again_on_the_same_port() {
    let (_echo, proxy) = proxied().await;
    let mut old = connect(&proxy).await;
    exchange(&mut old, b"before").await;
    for _ in 0..20 {
        proxy.refuse(true).await;
        let refused = TcpStream::connect(proxy.address()).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        // The port is not assigned to another socket in between.
        let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        assert_ne!(other.local_addr().unwrap(), proxy.address());
        proxy.refuse(false).await;
        exchange(&mut connect(&proxy).await, b"again").await;
    }
    exchange(&mut old, b"untouched").await;
    assert_eq!(proxy.connections(), 21);
}

#[tokio::test]
async fn accept_only_completes_tcp_and_forwards_nothing() {
    let (echo, proxy) = proxied().await;
    let mut old = connect(&proxy).await;
    exchange(&mut old, b"before").await;
    proxy.accept_only(true);
    let mut waiting = connect(&proxy).await;
    waiting.write_all(b"accepted").await.unwrap();
    let leaving = connect(&proxy).await;
    until(|| proxy.open_connections() == 3).await;
    silent(&mut waiting).await;
    drop(leaving);
    until(|| proxy.open_connections() == 2).await;
    assert_eq!(echo.accepted(), 1);
    exchange(&mut old, b"goes on").await;
    proxy.accept_only(false);
    assert_eq!(received(&mut waiting, 8).await, b"accepted");
    assert_eq!(echo.accepted(), 2);
}

#[tokio::test]
async fn connections_end_as_commanded() {
    let (echo, proxy) = proxied().await;

    let mut client = connect(&proxy).await;
    exchange(&mut client, b"before").await;
    proxy.reset_all();
    assert_eq!(rest(&mut client).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    until(|| proxy.open_connections() == 0).await;

    // Unread bytes do not turn the FIN into an RST.
    let mut client = connect(&proxy).await;
    exchange(&mut client, b"before").await;
    proxy.black_hole(true);
    client.write_all(b"unread").await.unwrap();
    proxy.close_all();
    assert_eq!(rest(&mut client).await.unwrap(), b"");
    until(|| proxy.open_connections() == 0).await;
    assert!(client.take_error().unwrap().is_none());
    proxy.black_hole(false);

    let mut client = connect(&proxy).await;
    exchange(&mut client, b"before").await;
    let echoed = echo.bytes();
    proxy.half_close_all();
    assert_eq!(rest(&mut client).await.unwrap(), b"");
    client.write_all(b"still heard").await.unwrap();
    until(|| echo.bytes() == echoed + 11).await;
    assert_eq!(proxy.open_connections(), 1);

    // A command applies to open connections, not to later ones.
    exchange(&mut connect(&proxy).await, b"after").await;
}

#[tokio::test]
async fn commands_reach_a_connection_whose_client_does_not_read() {
    let (echo, proxy) = proxied().await;
    let mut client = connect(&proxy).await;
    exchange(&mut client, b"before").await;
    // Fills every buffer on the way.
    let flood = vec![0; 1 << 20];
    while timeout(QUIET, client.write_all(&flood)).await.is_ok() {}
    assert!(echo.bytes() > 0);
    proxy.reset_all();
    until(|| proxy.open_connections() == 0).await;
    assert_eq!(within(client.write_all(&flood)).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_connection_is_cut_after_so_many_bytes() {
    let (_echo, proxy) = proxied().await;
    let mut old = connect(&proxy).await;
    exchange(&mut old, b"older").await;
    for cut in [0, 1, 5, 20_000] {
        proxy.cut_after(cut as u64);
        let mut client = connect(&proxy).await;
        client.write_all(&vec![3; 20_001]).await.unwrap();
        assert_eq!(rest(&mut client).await.unwrap(), vec![3; cut]);
    }
    exchange(&mut old, &vec![4; 20_001]).await;
    proxy.cut_after(None);
    exchange(&mut connect(&proxy).await, &vec![5; 20_001]).await;
}

#[tokio::test]
async fn one_byte_is_flipped_towards_the_client() {
    let (_echo, proxy) = proxied().await;
    let mut old = connect(&proxy).await;
    exchange(&mut old, b"0123").await;
    proxy.flip_byte_at(6);
    // Four bytes of this connection have passed, so its sixth byte is the third of this write.
    old.write_all(b"4567").await.unwrap();
    assert_eq!(received(&mut old, 4).await, [b'4', b'5', !b'6', b'7']);
    exchange(&mut old, b"whole").await;
    let mut fresh = connect(&proxy).await;
    fresh.write_all(b"01234567").await.unwrap();
    assert_eq!(received(&mut fresh, 8).await, [b'0', b'1', b'2', b'3', b'4', b'5', !b'6', b'7']);
}

#[tokio::test]
async fn a_dead_upstream_resets_and_a_dropped_proxy_refuses() {
    let (echo, proxy) = proxied().await;
    let mut client = connect(&proxy).await;
    exchange(&mut client, b"before").await;
    drop(echo);
    assert_eq!(rest(&mut client).await.unwrap_or_default(), b"");
    let mut late = connect(&proxy).await;
    assert_eq!(rest(&mut late).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);

    let (_echo, proxy) = proxied().await;
    let address = proxy.address();
    let mut client = connect(&proxy).await;
    exchange(&mut client, b"before").await;
    drop(proxy);
    assert_eq!(rest(&mut client).await.unwrap(), b"");
    within(async { while TcpStream::connect(address).await.is_ok() {} }).await;
}

async fn proxied() -> (Echo, Proxy) {
    let echo = Echo::start().await;
    let proxy = Proxy::to(echo.address).await;
    (echo, proxy)
}

async fn connect(proxy: &Proxy) -> TcpStream {
    within(TcpStream::connect(proxy.address())).await.unwrap()
}

async fn exchange(stream: &mut TcpStream, bytes: &[u8]) {
    let (mut from, mut to) = stream.split();
    let mut back = vec![0; bytes.len()];
    let both = async { tokio::try_join!(to.write_all(bytes), from.read_exact(&mut back)) };
    within(both).await.unwrap();
    assert_eq!(back, bytes);
}

async fn received(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    within(stream.read_exact(&mut bytes)).await.unwrap();
    bytes
}

async fn rest(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    within(stream.read_to_end(&mut bytes)).await?;
    Ok(bytes)
}

/// Checks that neither data nor a FIN arrives.
async fn silent(stream: &mut TcpStream) {
    assert!(timeout(QUIET, stream.read_u8()).await.is_err(), "unexpected data or FIN");
}

/// Server that echoes what it receives.
struct Echo {
    address: SocketAddr,
    seen: watch::Sender<ReceivedEcho>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct ReceivedEcho {
    accepted: usize,
    bytes: usize,
    closes: usize,
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = watch::Sender::<ReceivedEcho>::default();
        let accepting = tokio::spawn({
            let seen = seen.clone();
            async move {
                // Connections are dropped with the listener.
                let mut connections = tokio::task::JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    seen.send_modify(|seen| seen.accepted += 1);
                    connections.spawn(echo(stream, seen.clone()));
                }
            }
        });
        Self { address, seen, accepting }
    }

    fn accepted(&self) -> usize {
        self.seen.borrow().accepted
    }

    fn bytes(&self) -> usize {
        self.seen.borrow().bytes
    }

    fn close_all(&self) {
        self.seen.send_modify(|seen| seen.closes += 1);
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn echo(mut stream: TcpStream, seen: watch::Sender<ReceivedEcho>) -> io::Result<()> {
    let mut commands = seen.subscribe();
    let closes = commands.borrow().closes;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = tokio::select! {
            _ = commands.wait_for(|seen| seen.closes > closes) => return Ok(()),
            read = stream.read(&mut buffer) => read?,
        };
        if read == 0 {
            return stream.shutdown().await;
        }
        seen.send_modify(|seen| seen.bytes += read);
        stream.write_all(&buffer[..read]).await?;
    }
}

// Frames written by the test, against a correct client.

#[tokio::test]
async fn a_call_is_answered_frame_by_frame() {
    let (mut conn, client, _driver) = pair().await;
    let call = client.call(b"question");
    let request = next_request(&mut conn).await;
    assert_eq!((request.stream, request.message()), (1, &b"question"[..]));
    assert!(!request.headers.is_empty());
    conn.respond(1, b"reply", 0).await.unwrap();
    assert_eq!(outcome(call).await.unwrap(), ("0".into(), grpc(b"reply")));

    // The same in parts, as a streaming server sends it.
    let call = client.call(b"");
    let stream = next_request(&mut conn).await.stream;
    conn.respond_headers(stream, &[("x-part", "1")]).await.unwrap();
    let response = within(call).await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/grpc");
    assert_eq!(response.headers()["x-part"], "1");
    conn.respond_data(stream, b"one").await.unwrap();
    conn.respond_data(stream, b"two").await.unwrap();
    conn.respond_trailers(stream, 14, &[("grpc-message", "went")]).await.unwrap();
    let (body, trailers) = body(response).await.unwrap();
    assert_eq!(body, [grpc(b"one"), grpc(b"two")].concat());
    assert_eq!(
        (&trailers["grpc-status"], &trailers["grpc-message"]),
        (&"14".parse().unwrap(), &"went".parse().unwrap())
    );
}

#[tokio::test]
async fn interleaved_requests_are_separated() {
    let (mut conn, client, _driver) = pair().await;
    let (first, mut slow) = client.open(&[]);
    let _second = client.call(b"second");
    // Larger than the initial flow-control windows of stream and connection.
    let large = vec![9; 300_000];
    let _third = client.call(&large);
    assert_eq!(next_request(&mut conn).await.message(), b"second");
    assert_eq!(next_request(&mut conn).await.message(), large);
    slow.send_data(grpc(b"first").into(), true).unwrap();
    let request = next_request(&mut conn).await;
    assert_eq!((request.stream, request.message()), (1, &b"first"[..]));
    conn.respond(1, b"ok", 0).await.unwrap();
    assert_eq!(outcome(first).await.unwrap().0, "0");
}

#[tokio::test]
async fn header_blocks_run_over_frames() {
    let (mut conn, client, _driver) = pair().await;
    let long = "v".repeat(40_000);
    let (call, mut body) = client.open(&[("x-long", &long)]);
    body.send_data(Bytes::new(), true).unwrap();
    let request = next_request(&mut conn).await;
    assert!(request.headers.len() > 16_384);
    // Lengths at the limits of the HPACK encoding in one, two and three bytes.
    let fields: Vec<_> =
        [0, 126, 127, 254, 255, 16_510, 16_511, 40_000].map(|length| "w".repeat(length)).into();
    let fields: Vec<_> = fields.iter().map(|value| ("x-wide", value.as_str())).collect();
    conn.respond_headers(request.stream, &fields).await.unwrap();
    let response = within(call).await.unwrap();
    let lengths: Vec<_> = response.headers().get_all("x-wide").iter().map(http::HeaderValue::len).collect();
    assert_eq!(lengths, [0, 126, 127, 254, 255, 16_510, 16_511, 40_000]);
}

#[tokio::test]
async fn streams_are_reset_both_ways() {
    let (mut conn, client, _driver) = pair().await;
    let call = client.call(b"");
    let stream = next_request(&mut conn).await.stream;
    conn.reset(stream, code::REFUSED_STREAM).await.unwrap();
    assert_eq!(outcome(call).await.unwrap_err().reason(), Some(Reason::REFUSED_STREAM));

    let call = client.call(b"");
    let stream = next_request(&mut conn).await.stream;
    drop(call);
    let later = client.call(b"later");
    assert_eq!(next_request(&mut conn).await.message(), b"later");
    drop(later);
    assert_eq!(conn.resets(), [(stream, code::CANCEL)]);
}

#[tokio::test]
async fn go_away_has_the_last_processed_stream() {
    let (mut conn, client, driver) = pair().await;
    let calls = [client.call(b"1"), client.call(b"3")];
    for stream in [1, 3] {
        assert_eq!(next_request(&mut conn).await.stream, stream);
    }
    conn.go_away(1, code::NO_ERROR, b"enough").await.unwrap();
    conn.respond(1, b"done", 0).await.unwrap();
    let [first, second] = calls;
    assert_eq!(outcome(first).await.unwrap().0, "0");
    let lost = outcome(second).await.unwrap_err();
    assert!(lost.is_go_away() && lost.is_remote(), "{lost}");
    assert_eq!(within(conn.closed()).await, Some(code::NO_ERROR));
    within(driver).await.unwrap().unwrap();
}

#[tokio::test]
async fn settings_are_chosen_by_the_test() {
    let (mut conn, client, _driver) = greeting().await;
    conn.settings(&[(setting::MAX_CONCURRENT_STREAMS, 1)]).await.unwrap();
    // The PING ACK shows that the settings were read.
    within(conn.ping()).await.unwrap();
    let _call = client.call(b"");
    next_request(&mut conn).await;
    assert_eq!(client.requests.current_max_send_streams(), 1);
}

#[tokio::test]
async fn pings_are_answered_unless_muted() {
    let (mut conn, mut client, _driver) = pair().await;
    tokio::select! {
        pong = within(client.pings.ping(Ping::opaque())) => assert!(pong.is_ok()),
        _ = conn.next_request() => panic!("unexpected request"),
    }
    conn.mute_pings();
    let unanswered = async {
        tokio::select! {
            _ = client.pings.ping(Ping::opaque()) => panic!("unexpected PING ACK"),
            _ = conn.next_request() => panic!("unexpected request"),
        }
    };
    assert!(timeout(QUIET, unanswered).await.is_err());
}

#[tokio::test]
async fn frames_are_passed_on_unchanged() {
    let (mut conn, client, _driver) = greeting().await;
    let settings = within(conn.next_frame()).await.unwrap();
    assert_eq!((settings.kind, settings.flags, settings.stream), (kind::SETTINGS, 0, 0));
    let (_call, mut body) = client.open(&[]);
    body.send_data("tail".into(), true).unwrap();
    let mut frames = Vec::new();
    while frames.len() < 2 {
        let frame = within(conn.next_frame()).await.unwrap();
        if frame.stream > 0 {
            frames.push(frame);
        }
    }
    assert_eq!((frames[0].kind, frames[0].flags, frames[0].stream), (kind::HEADERS, flag::END_HEADERS, 1));
    assert_eq!(frames[1], Frame::new(kind::DATA, flag::END_STREAM, 1, &b"tail"[..]));
    drop(client);
}

/// The error code with which a client closes shows how it handled an invalid frame.
#[tokio::test]
async fn invalid_frames_are_rejected_by_the_client() {
    let bad = [
        (Frame::new(kind::DATA, 0, 0, &b"no stream"[..]), code::PROTOCOL_ERROR),
        (Frame::new(kind::PING, 0, 0, &b"short"[..]), code::PROTOCOL_ERROR),
        (Frame::new(kind::WINDOW_UPDATE, 0, 0, vec![0x7f, 0xff, 0xff, 0xff]), code::FLOW_CONTROL_ERROR),
        (Frame::new(kind::HEADERS, flag::END_HEADERS, 1, vec![0xff; 40]), code::PROTOCOL_ERROR),
        (Frame::new(kind::CONTINUATION, 0, 1, block(&[("a", "b")])), code::PROTOCOL_ERROR),
    ];
    for (frame, code) in bad {
        let (mut conn, client, driver) = pair().await;
        let call = client.call(b"");
        next_request(&mut conn).await;
        conn.send(frame.clone()).await.unwrap();
        assert_eq!(within(conn.closed()).await, Some(code), "{frame:?}");
        assert!(outcome(call).await.is_err());
        assert!(within(driver).await.unwrap().is_err());
    }
    let (mut conn, _client, _driver) = pair().await;
    conn.send_bytes(&[0xff; 64]).await.unwrap();
    assert_eq!(within(conn.closed()).await, Some(code::FRAME_SIZE_ERROR));
}

#[tokio::test]
async fn a_peer_closes_with_fin_or_rst() {
    // Unread bytes do not turn the FIN into an RST.
    let peer = Peer::bind().await;
    let mut client = TcpStream::connect(peer.address()).await.unwrap();
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nunread").await.unwrap();
    within(peer.accept()).await.hang_up().await;
    assert_eq!(rest(&mut client).await.unwrap(), b"");
    assert!(client.take_error().unwrap().is_none());

    let (mut conn, client, driver) = pair().await;
    let call = client.call(b"");
    next_request(&mut conn).await;
    conn.abort();
    let lost = outcome(call).await.unwrap_err();
    assert_eq!(lost.get_io().map(io::Error::kind), Some(io::ErrorKind::ConnectionReset), "{lost}");
    assert!(within(driver).await.unwrap().is_err());

    // A connection that closes before its preface does not block the next one.
    let peer = Peer::bind().await;
    drop(TcpStream::connect(peer.address()).await.unwrap());
    let (mut conn, client) = tokio::join!(within(peer.accept()), Client::connect(peer.address()));
    drop(client);
    assert_eq!(within(conn.closed()).await, Some(code::NO_ERROR));
}

/// Connection on which the peer has sent nothing.
async fn greeting() -> (Conn, Client, Driver) {
    let peer = Peer::bind().await;
    let (conn, (client, driver)) = tokio::join!(within(peer.accept()), Client::connect(peer.address()));
    (conn, client, driver)
}

async fn pair() -> (Conn, Client, Driver) {
    let (mut conn, client, driver) = greeting().await;
    within(conn.handshake()).await.unwrap();
    (conn, client, driver)
}

/// Returns the next request.
async fn next_request(conn: &mut Conn) -> frames::Request {
    within(conn.next_request()).await.unwrap()
}

type Driver = JoinHandle<Result<(), h2::Error>>;

struct Client {
    requests: SendRequest<Bytes>,
    pings: h2::PingPong,
}

impl Client {
    async fn connect(address: SocketAddr) -> (Self, Driver) {
        let stream = within(TcpStream::connect(address)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (requests, mut connection) = h2::client::handshake(stream).await.unwrap();
        let pings = connection.ping_pong().unwrap();
        (Self { requests, pings }, tokio::spawn(connection))
    }

    fn call(&self, message: &[u8]) -> ResponseFuture {
        let (response, mut body) = self.open(&[]);
        body.send_data(grpc(message).into(), true).unwrap();
        response
    }

    fn open(&self, headers: &[(&str, &str)]) -> (ResponseFuture, h2::SendStream<Bytes>) {
        let mut request = Request::post("http://orders/orders.Orders/Get");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.requests.clone().send_request(request.body(()).unwrap(), false).unwrap()
    }
}

fn grpc(message: &[u8]) -> Vec<u8> {
    [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
}

/// Returns the status and the body of a response.
async fn outcome(call: ResponseFuture) -> Result<(String, Vec<u8>), h2::Error> {
    let response = within(call).await?;
    let early = response.headers().get("grpc-status").cloned();
    let (body, trailers) = body(response).await?;
    let status = early.as_ref().unwrap_or_else(|| &trailers["grpc-status"]);
    Ok((status.to_str().unwrap().to_owned(), body))
}

async fn body(response: Response<h2::RecvStream>) -> Result<(Vec<u8>, http::HeaderMap), h2::Error> {
    let mut stream = response.into_body();
    let mut body = Vec::new();
    while let Some(data) = within(stream.data()).await {
        let data = data?;
        stream.flow_control().release_capacity(data.len())?;
        body.extend_from_slice(&data);
    }
    Ok((body, within(stream.trailers()).await?.unwrap_or_default()))
}

// Many endpoints behind one listener.

#[tokio::test]
async fn one_listener_serves_many_endpoints() {
    const ENDPOINTS: u32 = 300;
    let served = serve(|call| Answer::Ok(call.local.to_string().into()));
    let mut expected = BTreeMap::new();
    let mut clients = Vec::new();
    for endpoint in 0..ENDPOINTS {
        let address = served.address(endpoint);
        let (client, driver) = Client::connect(address).await;
        for _ in 0..endpoint % 4 {
            let (status, body) = outcome(client.call(b"address")).await.unwrap();
            assert_eq!((status.as_str(), body), ("0", grpc(address.ip().to_string().as_bytes())));
            *expected.entry(address.ip()).or_insert(0) += 1;
        }
        clients.push((client, driver));
    }
    assert_eq!(served.address(ENDPOINTS - 1).ip().to_string(), "127.0.1.44");
    assert_eq!(served.calls_by_address(), expected);
    until(|| served.connections_by_address().len() == ENDPOINTS as usize).await;
    assert!(served.connections_by_address().values().all(|count| *count == 1));
    assert_eq!(served.open_connections(), ENDPOINTS as usize);
    clients.truncate(100);
    until(|| served.open_connections() == 100).await;
    drop(served);
    for (_client, driver) in clients {
        drop(within(driver).await.unwrap());
    }
}

#[tokio::test]
async fn the_closure_determines_the_response() {
    let served = serve(|call| {
        assert_eq!(call.stream, 2 * call.index as u32 + 1);
        let go_away = |last_stream, answer| Answer::GoAwayThen {
            last_stream,
            code: code::NO_ERROR,
            answer: Box::new(answer),
        };
        match call.message {
            b"ok" => Answer::Ok("fine".into()),
            b"status" => Answer::Status(8),
            b"refuse" => Answer::Refuse,
            b"reset" => Answer::Reset(code::ENHANCE_YOUR_CALM),
            b"drain" => go_away(call.stream, Answer::Ok("last".into())),
            b"hang up" => Answer::HangUp,
            b"which" => Answer::Ok(format!("{} {}", call.connection, call.index).into()),
            _ => Answer::Silent,
        }
    });
    let (client, _driver) = dial(&served).await;
    let silent = client.call(b"silent");
    assert_eq!(outcome(client.call(b"ok")).await.unwrap(), ("0".into(), grpc(b"fine")));
    assert_eq!(outcome(client.call(b"status")).await.unwrap(), ("8".into(), vec![]));
    assert_eq!(outcome(client.call(b"refuse")).await.unwrap_err().reason(), Some(Reason::REFUSED_STREAM));
    assert_eq!(outcome(client.call(b"reset")).await.unwrap_err().reason(), Some(Reason::ENHANCE_YOUR_CALM));
    assert_eq!(outcome(client.call(b"which")).await.unwrap().1, grpc(b"0 5"));
    // Streams up to the last stream of the GOAWAY still get a response, and the connection stays open for
    // them.
    assert_eq!(outcome(client.call(b"drain")).await.unwrap().1, grpc(b"last"));
    assert_eq!(served.calls_by_address().into_values().collect::<Vec<_>>(), [7]);
    assert_eq!(served.open_connections(), 1);

    let (second, driver) = dial(&served).await;
    assert_eq!(outcome(second.call(b"which")).await.unwrap().1, grpc(b"1 0"));
    assert!(outcome(second.call(b"hang up")).await.is_err());
    drop(within(driver).await.unwrap());
    assert!(timeout(QUIET, silent).await.is_err());
}

/// Requests above the last stream of a GOAWAY are not processed and not counted.
#[tokio::test]
async fn requests_above_the_goaway_stream_do_not_count() {
    let served = serve(|call| Answer::GoAwayThen {
        last_stream: 1,
        code: code::NO_ERROR,
        answer: Box::new(Answer::Ok(Bytes::copy_from_slice(call.message))),
    });
    let (client, _driver) = dial(&served).await;
    let calls = [client.call(b"in"), client.call(b"out")];
    let [first, second] = calls;
    assert_eq!(outcome(first).await.unwrap().1, grpc(b"in"));
    assert!(outcome(second).await.unwrap_err().is_go_away());
    assert_eq!(served.calls_by_address().into_values().sum::<u64>(), 1);
}

/// Responses respect the flow-control window of the client: many large ones at once do not break the
/// connection.
#[tokio::test]
async fn served_responses_respect_the_window() {
    let served = serve(|call| Answer::Ok(vec![call.index as u8; 60_000].into()));
    let (client, _driver) = dial(&served).await;
    let calls: Vec<_> = (0..50).map(|_| client.call(b"much")).collect();
    for (index, call) in calls.into_iter().enumerate() {
        assert_eq!(outcome(call).await.unwrap().1, grpc(&vec![index as u8; 60_000]));
    }
}

async fn dial(served: &Served) -> (Client, Driver) {
    Client::connect(served.address(0)).await
}

// Certificates.

#[tokio::test]
async fn certificates_are_valid_for_their_names() {
    let ca = Ca::new("test ca");
    let cert = ca.issue(&["localhost", "127.0.0.1", "*.orders.test", "spiffe://test/ns/orders"]);
    let config = || certs::server_config(&cert, None);
    for name in ["localhost", "127.0.0.1", "eu.orders.test"] {
        let (client, server) = shake(config(), &ca.pem(), None, name).await;
        assert_eq!(client.unwrap().as_deref(), Some(&b"h2"[..]), "{name}");
        server.unwrap();
    }
    for name in ["127.0.0.2", "orders.test", "elsewhere"] {
        let (client, _) = shake(config(), &ca.pem(), None, name).await;
        assert!(client.unwrap_err().to_string().contains("not valid for name"), "{name}");
    }
    // rustls does not check URI names; the certificate must contain it all the same.
    let der = &certs::chain(&cert.pem)[0];
    assert!(der.windows(23).any(|part| part == b"spiffe://test/ns/orders"));
}

#[tokio::test]
async fn each_invalid_certificate_has_one_defect() {
    let ca = Ca::new("test ca");
    let same_name = Ca::new("test ca");
    let bad = [
        (ca.issue_expired(&["localhost"]), "expired"),
        (same_name.issue(&["localhost"]), "BadSignature"),
        (Ca::new("other").issue(&["localhost"]), "UnknownIssuer"),
        (ca.issue(&[]), "not valid for"),
        (ca.issue_client(&["localhost"]), "extended key usage"),
    ];
    for (cert, reason) in bad {
        let (client, server) = shake(certs::server_config(&cert, None), &ca.pem(), None, "localhost").await;
        let error = client.unwrap_err().to_string();
        assert!(error.contains(reason), "{error} is not about {reason}");
        assert!(server.is_err());
    }
}

#[tokio::test]
async fn clients_present_a_certificate_on_request() {
    let (ca, clients) = (Ca::new("servers"), Ca::new("clients"));
    let server = ca.issue(&["localhost"]);
    let cases = [
        (Some(clients.issue_client(&["spiffe://test/ns/web"])), true),
        (None, false),
        (Some(ca.issue_client(&["spiffe://test/ns/web"])), false),
        (Some(clients.issue(&["localhost"])), false),
    ];
    for (index, (client_cert, accepted)) in cases.into_iter().enumerate() {
        let config = certs::server_config(&server, Some(&clients.pem()));
        let (_, outcome) = shake(config, &ca.pem(), client_cert.as_ref(), "localhost").await;
        assert_eq!(outcome.is_ok(), accepted, "case {index}: {outcome:?}");
    }
}

/// Runs both sides of a TLS handshake. Returns the ALPN protocol of the client and the result of the server.
async fn shake(
    server: rustls::ServerConfig,
    roots: &str,
    client_cert: Option<&Cert>,
    name: &str,
) -> (io::Result<Option<Vec<u8>>>, io::Result<()>) {
    let builder = rustls::ClientConfig::builder_with_provider(certs::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(certs::roots(roots));
    let mut client = match client_cert {
        None => builder.with_no_client_auth(),
        Some(cert) => {
            builder.with_client_auth_cert(certs::chain(&cert.pem), certs::private_key(&cert.key_pem)).unwrap()
        }
    };
    client.alpn_protocols = vec![b"h2".to_vec()];
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let name = name.to_owned().try_into().unwrap();
    let ours = async {
        let stream = TcpStream::connect(address).await?;
        let stream = TlsConnector::from(Arc::new(client)).connect(name, stream).await?;
        Ok(stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec))
    };
    let theirs = async {
        let (stream, _) = listener.accept().await?;
        TlsAcceptor::from(Arc::new(server)).accept(stream).await.map(drop)
    };
    within(async { tokio::join!(ours, theirs) }).await
}
