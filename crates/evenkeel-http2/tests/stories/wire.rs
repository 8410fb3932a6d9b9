//! Valid and invalid frames of a server.

use evenkeel_http2::{Error, Reason};
use http::HeaderName;
use testkit::net::frames::{Frame, Peer, block, code, flag, kind, setting};

use super::windows::pair;
use super::*;

const GOOD: [(&str, &str); 1] = [(":status", "200")];

fn headers(flags: u8, stream: u32, fields: &[(&str, &str)]) -> Frame {
    Frame::new(kind::HEADERS, flags, stream, block(fields))
}

/// Each of these frames ends the connection with the expected error code. One stream is open.
#[tokio::test]
async fn connection_errors_end_the_connection() {
    let all = flag::END_HEADERS;
    let rows: &[(&str, Frame, u32)] = &[
        ("data for the connection", Frame::new(kind::DATA, 0, 0, "x"), code::PROTOCOL_ERROR),
        ("headers for a stream that never was", headers(all, 3, &GOOD), code::PROTOCOL_ERROR),
        ("headers for a stream of the server's", headers(all, 2, &GOOD), code::PROTOCOL_ERROR),
        ("data for a stream that never was", Frame::new(kind::DATA, 0, 5, "x"), code::PROTOCOL_ERROR),
        ("empty data for an idle stream", Frame::new(kind::DATA, 0, 5, ""), code::PROTOCOL_ERROR),
        ("a push", Frame::new(kind::PUSH_PROMISE, all, 1, vec![0, 0, 0, 2]), code::PROTOCOL_ERROR),
        ("a continuation of nothing", Frame::new(kind::CONTINUATION, all, 1, ""), code::PROTOCOL_ERROR),
        ("a reset of the connection", Frame::new(kind::RST_STREAM, 0, 0, vec![0; 4]), code::PROTOCOL_ERROR),
        ("a short reset", Frame::new(kind::RST_STREAM, 0, 1, vec![0; 3]), code::FRAME_SIZE_ERROR),
        ("a short ping", Frame::new(kind::PING, 0, 0, vec![0; 7]), code::FRAME_SIZE_ERROR),
        ("a ping of a stream", Frame::new(kind::PING, 0, 1, vec![0; 8]), code::PROTOCOL_ERROR),
        ("a short goodbye", Frame::new(kind::GOAWAY, 0, 0, vec![0; 7]), code::FRAME_SIZE_ERROR),
        ("half a setting", Frame::new(kind::SETTINGS, 0, 0, vec![0; 5]), code::FRAME_SIZE_ERROR),
        (
            "an answer to settings with settings",
            Frame::new(kind::SETTINGS, flag::ACK, 0, vec![0; 6]),
            code::FRAME_SIZE_ERROR,
        ),
        ("a window of 0 more", Frame::new(kind::WINDOW_UPDATE, 0, 0, vec![0; 4]), code::PROTOCOL_ERROR),
        ("a push setting", setting_frame(2, 1), code::PROTOCOL_ERROR),
        (
            "a window too large",
            setting_frame(setting::INITIAL_WINDOW_SIZE, 1 << 31),
            code::FLOW_CONTROL_ERROR,
        ),
        ("frames too small", setting_frame(setting::MAX_FRAME_SIZE, 100), code::PROTOCOL_ERROR),
        ("a frame too large", Frame::new(kind::PING, 0, 0, vec![0; 16_385]), code::FRAME_SIZE_ERROR),
        (
            "more padding than payload",
            Frame::new(kind::DATA, flag::PADDED, 1, vec![9, 1]),
            code::PROTOCOL_ERROR,
        ),
        ("a block that is none", Frame::new(kind::HEADERS, all, 1, vec![0x80]), code::COMPRESSION_ERROR),
    ];
    for (what, frame, expected) in rows {
        let (client, mut conn) = pair(Http2Settings::default(), &[]).await;
        let (_send, mut recv) = client.send("/s/m", &HeaderMap::new(), true).unwrap();
        within(conn.next_request()).await.unwrap();
        conn.send(frame.clone()).await.unwrap();
        assert_eq!(within(conn.closed()).await, Some(*expected), "{what}");
        let error = head(&mut recv).await.unwrap_err();
        assert!(
            matches!(error, Error::ConnectionError(reason) if u32::from(reason) == *expected),
            "{what}: {error:?}"
        );
        assert!(client.send("/s/m", &HeaderMap::new(), true).is_err(), "{what}");
    }
}

fn setting_frame(name: u16, value: u32) -> Frame {
    let payload = [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    Frame::new(kind::SETTINGS, 0, 0, payload)
}

/// Each of these frames ends its stream with the expected error code, and the other stream gets its response.
#[tokio::test]
async fn stream_errors_end_their_stream() {
    let all = flag::END_HEADERS;
    let end = all | flag::END_STREAM;
    let rows: &[(&str, &[Frame], u32)] = &[
        ("no status", &[headers(all, 1, &[("a", "b")])], code::PROTOCOL_ERROR),
        ("no number", &[headers(all, 1, &[(":status", "abc")])], code::PROTOCOL_ERROR),
        (
            "a header of HTTP/1",
            &[headers(all, 1, &[(":status", "200"), ("connection", "close")])],
            code::PROTOCOL_ERROR,
        ),
        ("data before the head", &[Frame::new(kind::DATA, 0, 1, "x")], code::PROTOCOL_ERROR),
        ("empty data before the head", &[Frame::new(kind::DATA, 0, 1, "")], code::PROTOCOL_ERROR),
        (
            "trailers that are not the end",
            &[headers(all, 1, &GOOD), headers(all, 1, &[("a", "b")])],
            code::PROTOCOL_ERROR,
        ),
        ("trailers with a status", &[headers(all, 1, &GOOD), headers(end, 1, &GOOD)], code::PROTOCOL_ERROR),
        ("a first answer that is the last", &[headers(end, 1, &[(":status", "103")])], code::PROTOCOL_ERROR),
        ("a window of 0 more", &[Frame::new(kind::WINDOW_UPDATE, 0, 1, vec![0; 4])], code::PROTOCOL_ERROR),
        (
            "a window without end",
            &[Frame::new(kind::WINDOW_UPDATE, 0, 1, vec![0x7f, 255, 255, 255])],
            code::FLOW_CONTROL_ERROR,
        ),
        (
            "too many headers",
            &[headers(
                all,
                1,
                &[(":status", "200"), ("a", &"b".repeat(16_000)[..]), ("c", &"d".repeat(300))],
            )],
            code::PROTOCOL_ERROR,
        ),
    ];
    // Content whose length differs from `content-length`.
    let says = |length: &str| headers(all, 1, &[(":status", "200"), ("content-length", length)]);
    let data = |flags, data: &'static str| Frame::new(kind::DATA, flags, 1, data);
    let lengths: &[(&str, &[Frame], u32)] = &[
        ("less content", &[says("5"), data(flag::END_STREAM, "four")], code::PROTOCOL_ERROR),
        ("more content", &[says("5"), data(0, "123"), data(0, "456")], code::PROTOCOL_ERROR),
        ("content of length 0", &[says("0"), data(0, "1")], code::PROTOCOL_ERROR),
        ("less before trailers", &[says("5"), headers(end, 1, &[("a", "b")])], code::PROTOCOL_ERROR),
        (
            "no content",
            &[headers(end, 1, &[(":status", "200"), ("content-length", "5")])],
            code::PROTOCOL_ERROR,
        ),
        (
            "two lengths",
            &[headers(all, 1, &[(":status", "200"), ("content-length", "5"), ("content-length", "5")])],
            code::PROTOCOL_ERROR,
        ),
        ("no length", &[says("five")], code::PROTOCOL_ERROR),
        ("a sign", &[says("+5")], code::PROTOCOL_ERROR),
        ("a list", &[says("5, 5")], code::PROTOCOL_ERROR),
        ("an empty length", &[says("")], code::PROTOCOL_ERROR),
        ("too large a length", &[says("18446744073709551616")], code::PROTOCOL_ERROR),
    ];
    for (what, frames, expected) in rows.iter().chain(lengths) {
        let (client, mut conn) = pair(Http2Settings::default(), &[]).await;
        let (_send, mut bad) = client.send("/s/m", &HeaderMap::new(), false).unwrap();
        let (_send, mut good) = client.send("/s/m", &HeaderMap::new(), true).unwrap();
        for frame in *frames {
            conn.send(frame.clone()).await.unwrap();
        }
        conn.ping().await.unwrap();
        assert_eq!(conn.resets(), [(1, *expected)], "{what}");
        let error = match head(&mut bad).await {
            Ok(head) => {
                assert!(!head.end_stream, "{what}");
                rest(&mut bad).await.unwrap_err()
            }
            Err(error) => error,
        };
        assert!(
            matches!(error, Error::StreamError(reason) if u32::from(reason) == *expected),
            "{what}: {error:?}"
        );
        conn.respond(3, b"fine", 0).await.unwrap();
        assert_eq!(head(&mut good).await.unwrap().status, 200, "{what}");
    }
}

/// Unknown frames and settings, interim responses, PRIORITY, CONTINUATION and fragmented frames are accepted.
#[tokio::test]
async fn unusual_frames_are_accepted() {
    let (client, mut conn) = pair(Http2Settings::default(), &[(0x99, 7)]).await;
    let (_send, mut recv) = client.send("/s/m", &HeaderMap::new(), true).unwrap();
    within(conn.next_request()).await.unwrap();
    conn.send(Frame::new(0x77, 0xff, 1, "what")).await.unwrap();
    conn.send(headers(flag::END_HEADERS, 1, &[(":status", "103"), ("link", "x")])).await.unwrap();
    conn.send(Frame::new(kind::PRIORITY, 0, 1, vec![0; 5])).await.unwrap();
    let fields = block(&[(":status", "200"), ("a", "b")]);
    let (first, second) = fields.split_at(5);
    let padded = [&[3, 0, 0, 0, 0, 9][..], first, &[0; 3]].concat();
    conn.send(Frame::new(kind::HEADERS, flag::PADDED | flag::PRIORITY, 1, padded)).await.unwrap();
    conn.send(Frame::new(kind::CONTINUATION, 0, 1, "")).await.unwrap();
    conn.send(Frame::new(kind::CONTINUATION, flag::END_HEADERS, 1, second.to_vec())).await.unwrap();
    for byte in [0, 0, 2, 0, 0, 0, 0, 0, 1, b'h', b'i'] {
        conn.send_bytes(&[byte]).await.unwrap();
        conn.send_bytes(&[]).await.unwrap();
    }
    conn.send(Frame::new(kind::DATA, 0, 1, "")).await.unwrap();
    conn.send(Frame::new(kind::DATA, flag::END_STREAM, 1, "")).await.unwrap();
    let head = head(&mut recv).await.unwrap();
    assert_eq!((head.status.as_u16(), head.headers.len()), (200, 1));
    assert_eq!(rest(&mut recv).await.unwrap(), (b"hi".to_vec(), None));
    client.end().await.unwrap();
}

/// The first frame of a server must be SETTINGS.
#[tokio::test]
async fn a_peer_that_is_not_http2() {
    for said in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        b"\0\0\x08\x06\0\0\0\0\x0012345678",
        b"\0\0\0\x04\x01\0\0\0\0",
    ] {
        let peer = Peer::bind().await;
        let client = Client::connect(peer.address(), Http2Settings::default()).await;
        let mut conn = within(peer.accept()).await;
        conn.send_bytes(said).await.unwrap();
        let error = within(client.task).await.unwrap().unwrap_err();
        assert!(
            matches!(error, Error::ConnectionError(Reason::PROTOCOL_ERROR | Reason::FRAME_SIZE_ERROR)),
            "{error:?}"
        );
    }
}

/// GOAWAY fails the streams above its last stream id as unprocessed, and those below get their responses.
#[tokio::test]
async fn goaway_fails_streams_above_its_last_id() {
    let (client, mut conn) = pair(Http2Settings::default(), &[]).await;
    let (_a, mut answered) = client.send("/s/m", &HeaderMap::new(), true).unwrap();
    let (_b, mut cut) = client.send("/s/m", &HeaderMap::new(), true).unwrap();
    let (_c, mut unseen) = client.send("/s/m", &HeaderMap::new(), true).unwrap();
    conn.go_away(3, code::ENHANCE_YOUR_CALM, b"too_many\npings").await.unwrap();
    let error = head(&mut unseen).await.unwrap_err();
    assert_eq!(error.to_string(), r#"GOAWAY ENHANCE_YOUR_CALM, "too_many\npings""#);
    let error = client.send("/s/m", &HeaderMap::new(), true).unwrap_err();
    assert!(matches!(error, Error::GoAway(Reason::ENHANCE_YOUR_CALM, _)), "{error:?}");
    conn.respond(1, b"fine", 0).await.unwrap();
    assert_eq!(head(&mut answered).await.unwrap().status, 200);
    conn.hang_up().await;
    // The peer may have processed this stream.
    let error = head(&mut cut).await.unwrap_err();
    assert!(matches!(error, Error::Closed), "{error:?}");
}

/// After GOAWAY the client closes the connection when its last stream ends.
#[tokio::test]
async fn the_last_stream_of_a_connection() {
    let (client, mut conn) = pair(Http2Settings::default(), &[]).await;
    let (_send, mut recv) = client.send("/s/m", &HeaderMap::new(), true).unwrap();
    conn.go_away(1, code::NO_ERROR, b"").await.unwrap();
    conn.respond(1, b"fine", 0).await.unwrap();
    assert_eq!(head(&mut recv).await.unwrap().status, 200);
    assert_eq!(within(conn.closed()).await, Some(code::NO_ERROR));
    within(client.task).await.unwrap().unwrap();
}

/// A complete response counts, even if the stream is reset afterwards.
#[tokio::test]
async fn an_early_response_counts() {
    let (client, mut conn) = pair(Http2Settings::default(), &[]).await;
    let (mut send, mut recv) = client.send("/s/m", &HeaderMap::new(), false).unwrap();
    conn.respond(1, b"enough", 8).await.unwrap();
    conn.reset(1, code::NO_ERROR).await.unwrap();
    within(poll_fn(|cx| send.poll_closed(cx))).await;
    assert_eq!(send.send("more".into(), false), None);
    assert_eq!(head(&mut recv).await.unwrap().status, 200);
    let (body, trailers) = rest(&mut recv).await.unwrap();
    assert_eq!(
        (&body[5..], &trailers.unwrap()["grpc-status"]),
        (&b"enough"[..], &HeaderValue::from_static("8"))
    );
}

/// When the byte stream ends, received data can still be read, and then the stream fails.
#[tokio::test]
async fn received_data_survives_the_connection() {
    let (client, mut conn) = pair(Http2Settings::default(), &[]).await;
    let (_send, mut recv) = client.send("/s/m", &HeaderMap::new(), true).unwrap();
    conn.respond_headers(1, &[]).await.unwrap();
    conn.send(Frame::new(kind::DATA, 0, 1, "some")).await.unwrap();
    conn.ping().await.unwrap();
    conn.hang_up().await;
    assert!(matches!(within(client.task).await.unwrap(), Err(Error::Closed)));
    assert_eq!(head(&mut recv).await.unwrap().status, 200);
    assert_eq!(data(&mut recv).await.unwrap().unwrap(), "some");
    assert!(matches!(data(&mut recv).await, Some(Err(Error::Closed))));
}

/// A peer that floods PING without reading the acknowledgements is disconnected, and so is one that sends
/// CONTINUATION without end.
#[tokio::test]
async fn floods_end_the_connection() {
    let (client, mut conn) = pair(Http2Settings::default(), &[]).await;
    let pings: Vec<u8> = b"\0\0\x08\x06\0\0\0\0\x0012345678".repeat(1_000);
    // Sending fails once the client has closed the connection.
    within(async { while conn.send_bytes(&pings).await.is_ok() {} }).await;
    let error = within(client.task).await.unwrap().unwrap_err();
    assert!(!matches!(error, Error::Closed), "{error:?}");

    for piece in ["", &"x".repeat(1_000)[..]] {
        let (client, mut conn) = pair(Http2Settings::default(), &[]).await;
        let (_send, _recv) = client.send("/s/m", &HeaderMap::new(), true).unwrap();
        within(conn.next_request()).await.unwrap();
        conn.send(Frame::new(kind::HEADERS, 0, 1, piece.to_owned())).await.unwrap();
        let more = Frame::new(kind::CONTINUATION, 0, 1, piece.to_owned());
        within(async { while conn.send(more.clone()).await.is_ok() {} }).await;
        let error = within(client.task).await.unwrap().unwrap_err();
        assert!(matches!(error, Error::ConnectionError(Reason::ENHANCE_YOUR_CALM)), "{error:?}");
    }
}

/// Data in frames of one byte is merged while it waits for the reader.
#[tokio::test]
async fn tiny_frames_are_merged() {
    let (client, mut conn) = pair(Http2Settings::default(), &[]).await;
    let (_send, mut recv) = client.send("/s/m", &HeaderMap::new(), true).unwrap();
    conn.respond_headers(1, &[]).await.unwrap();
    for _ in 0..500 {
        conn.send(Frame::new(kind::DATA, 0, 1, "x")).await.unwrap();
        // The PING makes each frame a read of its own.
        conn.ping().await.unwrap();
    }
    conn.respond_trailers(1, 0, &[]).await.unwrap();
    head(&mut recv).await.unwrap();
    let mut pieces = 0;
    while let Some(piece) = data(&mut recv).await {
        piece.unwrap();
        pieces += 1;
    }
    assert!((1..=2).contains(&pieces), "{pieces}");
}

/// A request with a header that HTTP/2 forbids fails before it is sent. Long headers are sent in several frames.
#[tokio::test]
async fn requests_with_forbidden_or_long_headers() {
    let (client, mut conn) = pair(Http2Settings::default(), &[]).await;
    for name in ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"] {
        let odd = HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static("x"))]);
        let error = client.send("/s/m", &odd, true).unwrap_err();
        assert_eq!(error.to_string(), format!("HTTP/2 does not allow header {name:?}"));
    }
    let long = HeaderValue::try_from("x".repeat(40_000)).unwrap();
    let long = HeaderMap::from_iter([(HeaderName::from_static("long"), long)]);
    let (_send, mut recv) = client.send("/s/m", &long, true).unwrap();
    within(conn.next_request()).await.expect("a complete header block");
    conn.respond(1, b"", 0).await.unwrap();
    assert_eq!(head(&mut recv).await.unwrap().status, 200);
}

/// A header with an invalid value fails its stream only, and its name stays usable in the dynamic table.
#[tokio::test]
async fn invalid_header_value_fails_one_stream() {
    let (client, mut conn) = pair(Http2Settings::default(), &[]).await;
    let mut streams: Vec<_> = (0..4).map(|_| client.send("/s/m", &HeaderMap::new(), true).unwrap()).collect();
    let end = flag::END_HEADERS | flag::END_STREAM;
    // `note` with a line break is indexed. The other blocks use its name with a valid value, the entry itself, and
    // the valid entry.
    for (stream, fields) in
        [(1, &b"\x88\x40\x04note\x03a\nb"[..]), (3, b"\x88\x7e\x04fine"), (5, b"\x88\xbf"), (7, b"\x88\xbe")]
    {
        conn.send(Frame::new(kind::HEADERS, end, stream, fields.to_vec())).await.unwrap();
    }
    conn.ping().await.unwrap();
    for (at, expected) in [None, Some("fine"), None, Some("fine")].into_iter().enumerate() {
        let found = head(&mut streams[at].1).await;
        match expected {
            Some(value) => assert_eq!(found.unwrap().headers["note"], value, "stream {at}"),
            None => assert!(
                matches!(found, Err(Error::StreamError(Reason::PROTOCOL_ERROR))),
                "stream {at}: {found:?}"
            ),
        }
    }
    assert_eq!(conn.resets(), [(1, code::PROTOCOL_ERROR), (5, code::PROTOCOL_ERROR)]);
    client.end().await.unwrap();
}

/// Content of the length in `content-length` is accepted, and so is none where RFC 9110, section 8.6, permits none.
#[tokio::test]
async fn content_length_that_fits() {
    let end = flag::END_HEADERS | flag::END_STREAM;
    for (method, status, length, content) in [
        (Method::POST, "200", "5", Some("hello")),
        (Method::POST, "200", "0", Some("")),
        (Method::POST, "200", "0", None),
        (Method::POST, "204", "5", None),
        (Method::POST, "304", "5", None),
        (Method::HEAD, "200", "5", None),
    ] {
        let (client, mut conn) = pair(Http2Settings::default(), &[]).await;
        let request = RequestHeaders {
            method: &method,
            is_https: false,
            authority: "orders",
            path: "/",
            headers: &HeaderMap::new(),
            extra_headers: &[],
            end_stream: true,
        };
        let (_send, mut recv) = client.sender.send(&request).unwrap();
        let flags = if content.is_some() { flag::END_HEADERS } else { end };
        conn.send(headers(flags, 1, &[(":status", status), ("content-length", length)])).await.unwrap();
        if let Some(content) = content {
            // Padding is not content.
            let padded = [&[3][..], content.as_bytes(), &[0; 3]].concat();
            conn.send(Frame::new(kind::DATA, flag::PADDED | flag::END_STREAM, 1, padded)).await.unwrap();
        }
        assert_eq!(head(&mut recv).await.unwrap().headers["content-length"], length);
        assert_eq!(
            rest(&mut recv).await.unwrap().0,
            content.unwrap_or_default().as_bytes(),
            "{method} {status}"
        );
        assert_eq!(conn.resets(), []);
    }
}

/// A request that is larger than the peer's SETTINGS_MAX_HEADER_LIST_SIZE fails before it is sent.
#[tokio::test]
async fn requests_fit_the_header_list_of_the_peer() {
    // `:method`, `:scheme`, `:path` and `:authority`, with 32 bytes for each (RFC 9113, section 6.5.2).
    const PSEUDO: usize = 43 + 43 + 41 + 48;
    let limit = PSEUDO + 36 + 100;
    let (client, mut conn) =
        pair(Http2Settings::default(), &[(setting::MAX_HEADER_LIST_SIZE, limit as u32)]).await;
    let long = |len| {
        let value = HeaderValue::try_from("x".repeat(len)).unwrap();
        HeaderMap::from_iter([(HeaderName::from_static("long"), value)])
    };
    client.send("/s/m", &long(100), true).unwrap();
    let error = client.send("/s/m", &long(101), true).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "header list of {} bytes violates the maximum size of {limit} bytes set by the server",
            limit + 1
        )
    );
    // Its stream id is not used, and the next request is sent.
    let (_send, mut recv) = client.send("/s/m", &long(100), true).unwrap();
    let ids = [conn.next_request().await.unwrap().stream, conn.next_request().await.unwrap().stream];
    assert_eq!(ids, [1, 3]);
    conn.respond(3, b"", 0).await.unwrap();
    assert_eq!(head(&mut recv).await.unwrap().status, 200);
}

/// Debug output of a connection has neither headers nor messages of its calls, which may be secrets.
#[tokio::test]
async fn debug_output_has_no_secrets() {
    let (sender, driver) = client(Http2Settings::default());
    let headers =
        HeaderMap::from_iter([(http::header::AUTHORIZATION, HeaderValue::from_static("token-1234"))]);
    let request = RequestHeaders {
        method: &Method::POST,
        is_https: false,
        authority: "orders",
        path: "/shop.Orders/Get",
        headers: &headers,
        extra_headers: &[],
        end_stream: false,
    };
    let (mut send, recv) = sender.send(&request).expect("the connection is open");
    send.send(Bytes::from_static(b"card-5678"), false).expect("the stream is open");
    let text = format!("{sender:?} {driver:?} {send:?} {recv:?}");
    for secret in ["token-1234", "card-5678", &format!("{:?}", b"token"), &format!("{:?}", b"card")] {
        let bytes = secret.trim_matches(['[', ']']);
        assert!(!text.contains(bytes), "{bytes} is in {text}");
    }
}
