//! A peer that is connected and does not read, or grants no window. Memory stays bounded, whatever calls are started
//! and cancelled.

use std::task::{Context, Waker};

use evenkeel_http2::{ConnectionDriver, Reason, client};
use testkit::Counting;
use tokio::io::DuplexStream;

use super::against_h2::echo;
use super::memory_io::{MemoryIo, request};
use super::*;

/// Number of calls that are begun and cancelled.
const CALLS: usize = 100_000;

/// Maximum number of bytes held. Two buffers of 64 KiB and a frame, each with unused capacity.
const MAX_HELD: i64 = 300 << 10;

fn send(sender: &SendRequest, headers: &HeaderMap, end_stream: bool) -> (SendStream, RecvStream) {
    sender.send(&request(headers, end_stream)).expect("the connection is open")
}

/// Headers that are encoded in full with each request.
fn secret_headers() -> HeaderMap {
    let token = "t".repeat(100).parse().expect("a header value");
    HeaderMap::from_iter([(http::header::AUTHORIZATION, token)])
}

/// Begins and cancels a call, in one of several ways.
fn cancel_one(sender: &SendRequest, headers: &HeaderMap, way: usize) {
    let (mut send, recv) = send(sender, headers, way == 0);
    match way {
        0 => drop(recv),
        1 => {
            send.send(Bytes::from_static(b"hello"), true).expect("the stream is open");
            drop((send, recv));
        }
        2 => {
            send.send(Bytes::from_static(b"hello"), false).expect("the stream is open");
            drop((recv, send));
        }
        3 => {
            send.send(Bytes::new(), true).expect("the stream is open");
            drop(recv);
        }
        _ => {
            let _ = send.poll_capacity(&Context::from_waker(Waker::noop()));
            send.reset(Reason::CANCEL);
            drop(recv);
        }
    }
}

fn poll(driver: &mut ConnectionDriver, is_stalled: bool) {
    let mut io = MemoryIo::new(&[]);
    io.state().is_stalled = is_stalled;
    let polled = driver.poll(&mut io, &mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "{polled:?}");
}

/// Calls with short deadlines on a connection whose peer does not read hold no memory once they are cancelled.
#[test]
fn cancelled_calls_leave_nothing_in_the_write_buffer() {
    let headers = secret_headers();
    // The thread's read buffer is allocated here.
    let (_sender, mut idle) = client(Http2Settings::default());
    poll(&mut idle, false);
    for way in 0..5 {
        let (sender, mut driver) = client(Http2Settings::default());
        let (held, ()) = Counting::during(|| {
            for call in 0..CALLS {
                cancel_one(&sender, &headers, way);
                // The driver runs between calls, or calls are started faster than it runs.
                if call % 1_000 < 500 {
                    poll(&mut driver, true);
                }
            }
        });
        assert!(held.net_bytes < MAX_HELD, "way {way}: {held:?}");
        // The peer reads again: all of it is released.
        let (released, ()) = Counting::during(|| poll(&mut driver, false));
        assert!(held.net_bytes + released.net_bytes < 16 << 10, "way {way}: {held:?}, {released:?}");
    }
}

/// A peer that reads and grants no window for the connection: data of cancelled calls is released, and so are their streams.
#[test]
fn cancelled_calls_leave_no_streams_that_wait_for_the_window() {
    let headers = HeaderMap::new();
    for way in [1, 2, 4] {
        let (sender, mut driver) = client(Http2Settings::default());
        let (mut first, _recv) = send(&sender, &headers, false);
        first.send(vec![0; 100_000].into(), true).expect("the stream is open");
        poll(&mut driver, false);
        let (held, ()) = Counting::during(|| {
            for _ in 0..CALLS {
                cancel_one(&sender, &headers, way);
                poll(&mut driver, false);
            }
        });
        assert!(held.net_bytes < 64 << 10, "way {way}: {held:?}");
    }
}

/// Returns a connection to a peer that does not read yet, and the peer's end.
fn stalled() -> (Client, DuplexStream) {
    let (mut io, peer) = tokio::io::duplex(100);
    let (sender, mut driver) = client(Http2Settings::default());
    let task = tokio::spawn(async move { poll_fn(|cx| driver.poll(&mut io, cx)).await });
    (Client { sender, task }, peer)
}

/// When a stalled peer reads again, queued and later calls get their responses. The header tables of both sides are
/// equal: `h2` would otherwise end the connection.
#[tokio::test]
async fn calls_succeed_after_the_peer_reads_again() {
    let (client, peer) = stalled();
    let headers = secret_headers();
    for call in 0..CALLS {
        cancel_one(&client.sender, &headers, call % 5);
        if call % 100 == 0 {
            tokio::task::yield_now().await;
        }
    }
    // Bodies in one piece, in two, none, and one that is larger than the window.
    let bodies = ["hello".into(), "two".repeat(2), String::new(), "large".repeat(100_000)];
    let mut waiting = Vec::new();
    for (index, body) in bodies.iter().cycle().take(40).enumerate() {
        let id = HeaderValue::from(index);
        let path = format!("/s/m{index}/");
        let (mut send, recv) = client
            .send(&path, &HeaderMap::from_iter([(http::HeaderName::from_static("id"), id)]), false)
            .unwrap();
        let (first, second) = body.split_at(body.len() / 2);
        send.send(first.to_owned().into(), false).unwrap();
        send.send(second.to_owned().into(), true).unwrap();
        waiting.push((path, body, send, recv));
        cancel_one(&client.sender, &headers, index % 5);
    }
    tokio::spawn(async move {
        let mut server = h2::server::Builder::new();
        // The cancelled calls with encoded HEADERS are all in transit.
        server.max_pending_accept_reset_streams(CALLS).max_concurrent_reset_streams(CALLS);
        let mut connection = server.handshake::<_, Bytes>(peer).await.expect("a client");
        while let Some(Ok((request, respond))) = connection.accept().await {
            tokio::spawn(echo(request, respond));
        }
    });
    for (path, body, _send, mut recv) in waiting {
        let head = head(&mut recv).await.unwrap();
        assert_eq!(head.headers["path"], path);
        let (data, trailers) = rest(&mut recv).await.unwrap();
        assert!(data == body.as_bytes(), "{path}: {} bytes", data.len());
        assert_eq!(trailers.unwrap()["trailer-id"], head.headers["id"]);
    }
    let (_, mut recv) = client.ask("again").await.unwrap();
    assert_eq!(rest(&mut recv).await.unwrap().0, b"again");
    client.end().await.unwrap();
}
