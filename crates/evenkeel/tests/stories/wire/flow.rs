//! Peers that delay calls and uploads, or respond early: no data is lost, and buffers stay bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use testkit::net::echo::echo_client::EchoClient;
use testkit::net::frames::{Conn, Frame, Peer, code, flag, kind, setting};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Request};

use super::{accept, client_stream, data_of, long, message, request, to, unary, until_pong};

/// fault 54: a peer allows no streams, then two, then one: calls are queued, sent as allowed, and use another
/// connection if the peer disconnects.
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

    // Streams above a lowered limit count: a further stream must wait until they end.
    let calls = [unary(&channel, b"x"), unary(&channel, b"y")];
    let streams = [request(&mut next).await.stream, request(&mut next).await.stream];
    next.settings(&[(setting::MAX_CONCURRENT_STREAMS, 1)]).await.unwrap();
    next.ping().await.unwrap();
    next.respond(streams[0], b"", 0).await.unwrap();
    next.ping().await.unwrap();
    let mut short = Request::new(message(b"short"));
    short.set_timeout(Duration::from_millis(20));
    let status = EchoClient::new(channel.clone()).unary(short).await.unwrap_err();
    let text = format!(
        "deadline exceeded: endpoint {} has reached its maximum of concurrent streams",
        peer.address()
    );
    assert_eq!((status.code(), status.message()), (Code::DeadlineExceeded, &*text));
    next.respond(streams[1], b"", 0).await.unwrap();
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

/// Asserts, over several pings, that no request arrives.
async fn quiet(conn: &mut Conn) {
    for _ in 0..10 {
        conn.ping().await.expect("the client is there");
    }
    let request = timeout(Duration::from_millis(1), conn.next_request()).await;
    assert!(request.is_err(), "{request:?}");
}

/// An upload waits for the peer's window: the request stream is polled only as far as it fits, and buffers
/// stay bounded. Message sizes are below and above the replay buffer.
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
        // One partially sent message, one held, and as many as tonic buffers (32 KiB).
        let most = 3 + (64 << 10) / size;
        let count = asked.load(Ordering::SeqCst);
        assert!(count <= most, "{count} messages of {size} bytes were polled, response begun: {begun}");

        conn.send(Frame::new(kind::WINDOW_UPDATE, 0, stream, 40_000_u32.to_be_bytes().to_vec()))
            .await
            .unwrap();
        while received < 41_500 {
            received += data_of(&until_pong(&mut conn).await);
        }
        call.abort();
    }
}

/// A replayed upload waits for the window. If response headers arrive meanwhile, the call is committed, and
/// the buffered messages are still sent.
#[tokio::test]
async fn a_replayed_upload_is_sent_whole_despite_headers() {
    let peer = Peer::bind().await;
    let channel = to(peer.address()).build().unwrap();
    let (sender, requests) = mpsc::unbounded_channel();
    let mut client = EchoClient::new(channel.clone());
    let call = tokio::spawn(async move { client.bidi(UnboundedReceiverStream::new(requests)).await });
    let mut conn = accept(&peer).await;
    let mut expected = Vec::new();
    let mut received = 0;
    // One frame per message.
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

/// A peer may respond before it has read the whole request. The call completes, and the remaining request is
/// not sent.
#[tokio::test]
async fn a_response_may_precede_the_end_of_the_request() {
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

/// Metadata above the peer's header list limit fails the call before it is sent, and no other call.
#[tokio::test]
async fn metadata_larger_than_the_server_accepts() {
    // h2 does not expose the peer's limit and sends the request, which the server rejects.
    if crate::is_over_h2() {
        return;
    }
    let peer = Peer::bind().await;
    let channel = to(peer.address()).build().unwrap();
    channel.connect();
    let mut conn = accept(&peer).await;
    conn.settings(&[(setting::MAX_HEADER_LIST_SIZE, 1_000)]).await.unwrap();
    conn.ping().await.unwrap();
    let mut large = Request::new(message(b"x"));
    large.metadata_mut().insert("large", "x".repeat(1_000).parse().unwrap());
    let status = long(EchoClient::new(channel.clone()).unary(large)).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal, "{status}");
    assert!(status.message().contains("maximum size of 1000 bytes set by the server"), "{status}");
    let call = unary(&channel, b"x");
    let request = request(&mut conn).await;
    assert_eq!(request.stream, 1);
    conn.respond(request.stream, b"", 0).await.unwrap();
    call.await.unwrap().unwrap();
}
