//! Flow control, with a scripted server.

use evenkeel_http2::{Error, Reason};
use testkit::net::frames::{Conn, Frame, Peer, flag, kind, setting};

use super::*;

pub(super) async fn pair(settings: Http2Settings, theirs: &[(u16, u32)]) -> (Client, Conn) {
    let peer = Peer::bind().await;
    let client = Client::connect(peer.address(), settings).await;
    let mut conn = within(peer.accept()).await;
    conn.settings(theirs).await.expect("the client is there");
    conn.ping().await.expect("the client is there");
    (client, conn)
}

/// Returns the next frame of this kind, and skips others.
async fn next(conn: &mut Conn, kind: u8) -> Frame {
    within(async {
        loop {
            let frame = conn.next_frame().await.expect("the client is there");
            if frame.kind == kind {
                return frame;
            }
        }
    })
    .await
}

fn update(stream: u32, by: u32) -> Frame {
    Frame::new(kind::WINDOW_UPDATE, 0, stream, by.to_be_bytes().to_vec())
}

/// Data is sent only as far as the windows of both the stream and the connection permit.
#[tokio::test]
async fn data_waits_for_both_windows() {
    let (client, mut conn) = pair(Http2Settings::default(), &[(setting::INITIAL_WINDOW_SIZE, 10)]).await;
    let (mut send, _recv) = client.send("/s/m", &HeaderMap::new(), false).unwrap();
    send.send(Bytes::from(vec![7; 25]), true).unwrap();
    assert_eq!(next(&mut conn, kind::DATA).await.payload.len(), 10);
    conn.send(update(1, 5)).await.unwrap();
    assert_eq!(next(&mut conn, kind::DATA).await.payload.len(), 5);
    // A lower initial window makes the stream's window negative. 5 more bytes are needed before the next one is sent.
    conn.settings(&[(setting::INITIAL_WINDOW_SIZE, 5)]).await.unwrap();
    conn.send(update(1, 5)).await.unwrap();
    conn.ping().await.unwrap();
    conn.send(update(1, 3)).await.unwrap();
    assert_eq!(next(&mut conn, kind::DATA).await.payload.len(), 3);
    conn.send(update(1, 100)).await.unwrap();
    let last = next(&mut conn, kind::DATA).await;
    assert_eq!((last.payload.len(), last.flags), (7, flag::END_STREAM));
}

/// A writer is woken when there is capacity, and when the peer resets the stream.
#[tokio::test]
async fn writers_wait_for_room() {
    let (client, mut conn) = pair(Http2Settings::default(), &[(setting::INITIAL_WINDOW_SIZE, 4)]).await;
    let (mut send, _recv) = client.send("/s/m", &HeaderMap::new(), false).unwrap();
    within(poll_fn(|cx| send.poll_capacity(cx))).await.unwrap();
    send.send("12345".into(), false).unwrap();
    next(&mut conn, kind::DATA).await;
    let waiting = tokio::spawn(async move {
        let room = poll_fn(|cx| send.poll_capacity(cx)).await;
        (send, room)
    });
    conn.send(update(1, 1)).await.unwrap();
    assert_eq!(next(&mut conn, kind::DATA).await.payload, "5");
    assert!(!waiting.is_finished(), "the window is used up");
    conn.send(update(1, 1)).await.unwrap();
    let (mut send, room) = within(waiting).await.unwrap();
    assert_eq!(room, Some(()));
    send.send("6".into(), false).unwrap();
    let waiting = tokio::spawn(async move { poll_fn(|cx| send.poll_capacity(cx)).await });
    conn.reset(1, 8).await.unwrap();
    assert_eq!(within(waiting).await.unwrap(), None);
}

/// WINDOW_UPDATE is sent for data that was read, in large steps, and not for unread data.
#[tokio::test]
async fn read_data_returns_window() {
    let settings = Http2Settings { stream_window: 1_000, ..Http2Settings::default() };
    let (client, mut conn) = pair(settings, &[]).await;
    let (_send, mut recv) = client.send("/s/m", &HeaderMap::new(), true).unwrap();
    conn.respond_headers(1, &[]).await.unwrap();
    conn.send(Frame::new(kind::DATA, 0, 1, vec![0; 400])).await.unwrap();
    conn.ping().await.unwrap();
    conn.send(Frame::new(kind::DATA, 0, 1, vec![0; 400])).await.unwrap();
    head(&mut recv).await.unwrap();
    let mut read = 0;
    while read < 800 {
        read += data(&mut recv).await.unwrap().unwrap().len();
    }
    let told = next(&mut conn, kind::WINDOW_UPDATE).await;
    assert!(told.stream == 0 || told.stream == 1);
    let told = if told.stream == 0 { next(&mut conn, kind::WINDOW_UPDATE).await } else { told };
    assert_eq!((told.stream, &told.payload[..]), (1, &800_u32.to_be_bytes()[..]));
}

/// DATA beyond a stream's window resets the stream. A WINDOW_UPDATE beyond the maximum ends the connection.
#[tokio::test]
async fn data_beyond_the_window_is_an_error() {
    let settings = Http2Settings { stream_window: 10, ..Http2Settings::default() };
    let (client, mut conn) = pair(settings, &[]).await;
    let (_send, mut recv) = client.send("/s/m", &HeaderMap::new(), true).unwrap();
    conn.respond_headers(1, &[]).await.unwrap();
    conn.send(Frame::new(kind::DATA, 0, 1, vec![0; 11])).await.unwrap();
    conn.ping().await.unwrap();
    assert_eq!(conn.resets(), [(1, 3)]);
    head(&mut recv).await.unwrap();
    let error = data(&mut recv).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::StreamError(Reason::FLOW_CONTROL_ERROR)), "{error:?}");
    for _ in 0..6 * 64 {
        if conn.send(Frame::new(kind::DATA, 0, 1, vec![0; 16_384])).await.is_err() {
            break;
        }
    }
    // The stream has no reader, so the window of its data is returned at once.
    conn.ping().await.unwrap();
    let grown = update(0, u32::MAX >> 1);
    conn.send(grown).await.unwrap();
    assert_eq!(within(conn.closed()).await, Some(3), "the connection window exceeds its maximum");
    assert!(matches!(
        within(client.task).await.unwrap(),
        Err(Error::ConnectionError(Reason::FLOW_CONTROL_ERROR))
    ));
}

/// Padding consumes the windows and is returned to them.
#[tokio::test]
async fn padding_is_returned_to_the_window() {
    let settings =
        Http2Settings { stream_window: 4_000, connection_window: 65_535, ..Http2Settings::default() };
    let (client, mut conn) = pair(settings, &[]).await;
    let (_send, mut recv) = client.send("/s/m", &HeaderMap::new(), true).unwrap();
    conn.respond_headers(1, &[]).await.unwrap();
    let padded: Vec<u8> = std::iter::once(255).chain(*b"x").chain([0; 255]).collect();
    for _ in 0..1_000 {
        conn.send(Frame::new(kind::DATA, flag::PADDED, 1, padded.clone())).await.unwrap();
        conn.ping().await.unwrap();
    }
    conn.respond_trailers(1, 0, &[]).await.unwrap();
    head(&mut recv).await.unwrap();
    assert_eq!(rest(&mut recv).await.unwrap().0, vec![b'x'; 1_000]);
}

/// The connection window counts every byte of DATA once: unread, padded, and of streams that were cancelled, refused or have ended.
#[tokio::test]
async fn connection_window_counts_every_byte_once() {
    const WINDOW: usize = 65_535;
    let settings =
        Http2Settings { stream_window: 30_000, connection_window: WINDOW as u32, ..Http2Settings::default() };
    let (client, mut conn) = pair(settings, &[]).await;
    let streams: Vec<_> = (0..4).map(|_| client.send("/s/m", &HeaderMap::new(), true).unwrap()).collect();
    for stream in [1, 3, 5, 7] {
        conn.respond_headers(stream, &[]).await.unwrap();
    }
    conn.respond_trailers(5, 0, &[]).await.unwrap();
    let [unread, cancelled, ended, refused]: [_; 4] = streams.try_into().unwrap();
    drop(cancelled);
    // A second response head makes the response malformed.
    conn.send(Frame::new(kind::HEADERS, flag::END_HEADERS, 7, vec![0x88])).await.unwrap();

    let padded: Vec<u8> = std::iter::once(100).chain([1; 899]).chain([0; 100]).collect();
    let (mut sent, mut returned) = (0, 0);
    for round in 0..240 {
        // The unread stream retains its whole stream window. The others retain nothing.
        let stream = if round < 25 { 1 } else { [3, 5, 7][round % 3] };
        let (flags, payload) =
            if round % 2 == 0 { (flag::PADDED, padded.clone()) } else { (0, vec![1; 1_000]) };
        sent += payload.len();
        conn.send(Frame::new(kind::DATA, flags, stream, payload)).await.unwrap();
        conn.send(Frame::new(kind::PING, 0, 0, vec![round as u8; 8])).await.unwrap();
        loop {
            let frame = within(conn.next_frame()).await.expect("the client is there");
            if frame.kind == kind::WINDOW_UPDATE && frame.stream == 0 {
                returned += u32::from_be_bytes(frame.payload[..].try_into().unwrap()) as usize;
            } else if frame.kind == kind::PING {
                break;
            }
        }
        assert!(returned <= sent, "{returned} of {sent}");
        assert!(sent - returned <= WINDOW / 4, "{returned} of {sent}");
    }
    drop((unread, ended, refused));
    client.end().await.unwrap();
}

/// An empty DATA frame needs no window (RFC 9113, section 6.9.1). END_STREAM is sent even if the data before it used
/// up the window of the stream or of the connection.
#[tokio::test]
async fn end_of_request_needs_no_window() {
    const CONNECTION: usize = 65_535;
    for (stream_window, len, update) in [(10, 25, update(1, 15)), (1 << 20, CONNECTION + 100, update(0, 100))]
    {
        let (client, mut conn) =
            pair(Http2Settings::default(), &[(setting::INITIAL_WINDOW_SIZE, stream_window)]).await;
        let (mut send, _recv) = client.send("/s/m", &HeaderMap::new(), false).unwrap();
        send.send(Bytes::from(vec![7; len]), false).unwrap();
        send.send(Bytes::new(), true).unwrap();
        let mut found = 0;
        while found < len.min(stream_window as usize).min(CONNECTION) {
            found += next(&mut conn, kind::DATA).await.payload.len();
        }
        conn.send(update).await.unwrap();
        loop {
            let frame = next(&mut conn, kind::DATA).await;
            found += frame.payload.len();
            if frame.flags & flag::END_STREAM != 0 {
                break;
            }
        }
        assert_eq!(found, len);
    }
}
