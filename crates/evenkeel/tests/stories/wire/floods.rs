//! Malformed frames and floods: they cost one connection at most.

use std::process::Command;

use testkit::net::Backend;
use testkit::net::echo::EchoResponse;
use testkit::net::echo::echo_client::EchoClient;
use testkit::net::frames::{Frame, Peer, block, code, flag, kind};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Code;

use super::{LONG, ROUND_ROBIN, accept, long, message, request, to, unary};
use crate::load::Load;

/// fault 55, fault 56: a connection error closes the connection only: its call fails with the address, and
/// calls continue on the other endpoint and on a new connection. A stream error fails its call only.
#[tokio::test]
async fn broken_frames_end_a_connection_and_no_more() {
    let sound = Backend::start().await;
    let table: [(&str, Frame); 11] = [
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
            "a CONTINUATION of nothing",
            Frame::new(kind::CONTINUATION, flag::END_HEADERS, 1, block(&[("a", "b")])),
        ),
    ];
    let peer = Peer::bind().await;
    let list = format!("ipv4:{},{}", peer.address(), sound.address());
    let channel = crate::builder(list).service_config(ROUND_ROBIN).build().unwrap();
    channel.connect();
    let mut conn = accept(&peer).await;
    let load = Load::start(&crate::builder(format!("ipv4:{}", sound.address())).build().unwrap(), 2);
    for (what, frame) in table {
        // round_robin sends one of two consecutive calls to the misbehaving peer.
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
        assert!(code.is_some_and(|code| code != code::NO_ERROR), "{what}: GOAWAY has the code {code:?}");
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

    // Headers above the limit, or with an upper-case name, fail their call. A frame of an unknown type is
    // ignored.
    let channel = to(peer.address()).build().unwrap();
    channel.connect();
    let mut conn = accept(&peer).await;
    let filler = "x".repeat(20 << 10);
    let mut malformed = vec![("filler", &*filler), ("Capital", "x")];
    // h2 closes the connection for an upper-case name.
    malformed.truncate(if crate::is_over_h2() { 1 } else { 2 });
    for (name, value) in malformed {
        let call = unary(&channel, b"x");
        let stream = request(&mut conn).await.stream;
        let wrong = block(&[(":status", "200"), ("content-type", "application/grpc"), (name, value)]);
        let (first, second) = wrong.split_at(wrong.len().min(16_000));
        conn.send(Frame::new(kind::HEADERS, 0, stream, first.to_vec())).await.unwrap();
        conn.send(Frame::new(kind::CONTINUATION, flag::END_HEADERS, stream, second.to_vec())).await.unwrap();
        let status = long(call).await.unwrap().unwrap_err();
        println!("{status}");
        assert_eq!(status.code(), Code::Internal);
        assert!(status.message().contains(&peer.address().to_string()), "{status}");
    }
    let call = unary(&channel, b"x");
    let stream = request(&mut conn).await.stream;
    conn.send(Frame::new(200, 0xff, stream, &b"?"[..])).await.unwrap();
    conn.respond(stream, b"", 0).await.unwrap();
    call.await.unwrap().unwrap();
}

/// fault 55: a message in frames of one byte, each padded with 255 bytes: padding must be returned to the
/// flow-control window, or the response would never complete.
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

    // Frames of 6.4 million bytes in total, through windows of two and five million.
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

/// fault 55, fault 56: floods of PING, SETTINGS, CONTINUATION, empty DATA, and headers that expand a
/// thousandfold. Harmless ones are processed, others close the connection. Memory stays bounded, and other
/// calls are unaffected. This test starts a process, to measure its memory alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_cost_no_memory() {
    let output = tokio::task::spawn_blocking(|| {
        Command::new(std::env::current_exe().unwrap())
            .args(["wire::floods::floods_in_a_process_of_their_own", "--exact", "--nocapture"])
            .env("STORY_FLOODS", "1")
            .output()
            .unwrap()
    });
    let output = timeout(2 * LONG, output).await.expect("the process ends").unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    println!("{}", said.lines().filter(|line| line.starts_with("fault")).collect::<Vec<_>>().join("\n"));
}

/// Child process of the test above. Without its environment variable it does nothing.
#[tokio::test]
async fn floods_in_a_process_of_their_own() {
    const FRAMES: usize = 50_000;
    if std::env::var_os("STORY_FLOODS").is_none() {
        return;
    }
    let sound = Backend::start().await;
    let others = Load::start(&crate::builder(format!("ipv4:{}", sound.address())).build().unwrap(), 2);
    others.further(5).await;
    let peer = Peer::bind().await;
    let channel = to(peer.address()).service_config(ROUND_ROBIN).build().unwrap();
    channel.connect();

    // Small frames are sent in batches, for speed.
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
        // The first frames fill buffers and load code, of which a build without optimisation has 1 MiB.
        conn.send_bytes(flood).await.unwrap();
        long(conn.ping()).await.unwrap();
        let before = most_memory();
        for _ in 0..FRAMES / 1000 {
            conn.send_bytes(flood).await.unwrap();
            // Reads the client's replies. Otherwise both sides would block on full socket buffers.
            long(conn.ping()).await.unwrap();
        }
        conn.respond(stream, b"", 0).await.unwrap();
        long(call).await.unwrap().unwrap();
        let grown = most_memory() - before;
        println!("fault 55: {FRAMES} frames of {what} cost {grown} KiB");
        assert!(grown <= 1024, "{what}");
        conn.hang_up().await;
    }

    // A header of 4,000 bytes in the dynamic table, referenced 12,000 times by one byte each: 48 MB.
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
        // A stream whose response is not read: its data must be buffered or rejected.
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
            // The client closes the connection, or accepts all frames.
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

/// Returns a frame of stream 1.
fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
}

/// Returns the peak memory of this process, in KiB.
fn most_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux says so");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}
