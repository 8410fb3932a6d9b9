//! Stories with a server of the crate `h2`.

use bytes::Bytes;
use evenkeel_http2::{Error, Reason};
use h2::server::SendResponse;
use http::{HeaderName, Response};
use tokio::net::TcpListener;

use super::*;

/// Serves every request with its own body, its header `id` and its path, frame by frame. A path that ends with a
/// number resets the stream with that code.
async fn serve(server: h2::server::Builder) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let server = server.clone();
            tokio::spawn(async move {
                socket.set_nodelay(true).expect("a socket");
                let mut connection = server.handshake::<_, Bytes>(socket).await.expect("a client");
                while let Some(Ok((request, respond))) = connection.accept().await {
                    tokio::spawn(echo(request, respond));
                }
            });
        }
    });
    address
}

pub(super) async fn echo(
    request: http::Request<h2::RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let path = request.uri().path().to_owned();
    if let Some(code) = path.rsplit('/').next().and_then(|code| code.parse::<u32>().ok()) {
        respond.send_reset(h2::Reason::from(code));
        return Ok(());
    }
    let id = request.headers().get("id").cloned();
    let mut answer = Response::new(());
    answer.headers_mut().insert("path", path.parse().expect("a path is a value"));
    answer.headers_mut().extend(id.clone().map(|id| (HeaderName::from_static("id"), id)));
    let mut out = respond.send_response(answer, false)?;
    let mut body = request.into_body();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        // h2 queues the data until the window permits it.
        out.send_data(piece, false)?;
    }
    let trailers = id.into_iter().map(|id| (HeaderName::from_static("trailer-id"), id));
    out.send_trailers(trailers.collect())
}

#[tokio::test]
async fn a_call_gets_its_response() {
    let client = Client::connect(serve(h2::server::Builder::new()).await, Http2Settings::default()).await;
    let (head, mut recv) = client.ask("hello").await.unwrap();
    assert_eq!(
        (head.status.as_u16(), &head.headers["path"]),
        (200, &HeaderValue::from_static("/shop.Orders/Get"))
    );
    assert!(!head.end_stream);
    let (body, trailers) = rest(&mut recv).await.unwrap();
    assert_eq!((&body[..], trailers.map(|trailers| trailers.len())), (&b"hello"[..], Some(0)));
    client.end().await.unwrap();
}

/// With hundreds of concurrent calls, each gets its own response, and the header tables of both sides stay equal.
#[tokio::test]
async fn concurrent_calls_get_their_own_responses() {
    let client = Client::connect(serve(h2::server::Builder::new()).await, Http2Settings::default()).await;
    let client = std::sync::Arc::new(client);
    let mut calls = tokio::task::JoinSet::new();
    for task in 0..100_u32 {
        let client = client.clone();
        calls.spawn(async move {
            for round in 0..30 {
                let id = format!("{task}-{round}");
                let headers = HeaderMap::from_iter([
                    (HeaderName::from_static("id"), id.parse().unwrap()),
                    (HeaderName::from_static("tenant"), HeaderValue::from(task % 7)),
                ]);
                let path = format!("/s/m{}-", round % 5);
                let (mut send, mut recv) = client.send(&path, &headers, false).unwrap();
                let body = vec![task as u8; (task * round) as usize];
                send.send(body.clone().into(), true).unwrap();
                assert_eq!(head(&mut recv).await.unwrap().headers["id"], id);
                let (answer, trailers) = rest(&mut recv).await.unwrap();
                assert_eq!(answer, body);
                assert_eq!(trailers.unwrap()["trailer-id"], id);
            }
        });
    }
    within(calls.join_all()).await;
    std::sync::Arc::into_inner(client).unwrap().end().await.unwrap();
}

/// Bodies larger than every window pass in both directions at once.
#[tokio::test]
async fn large_bodies_go_through_small_windows() {
    let mut server = h2::server::Builder::new();
    server.initial_window_size(10_000).initial_connection_window_size(70_000).max_frame_size(20_000);
    let settings =
        Http2Settings { stream_window: 9_000, connection_window: 65_535, ..Http2Settings::default() };
    let client = Client::connect(serve(server).await, settings).await;
    let body: Vec<u8> = (0..3_000_000_u32).map(|i| (i / 7) as u8).collect();
    let call = || async {
        let (_, mut recv) = client.ask(body.clone()).await.unwrap();
        assert!(rest(&mut recv).await.unwrap().0 == body);
    };
    // The server's own windows apply from its first response on.
    client.ask("first").await.unwrap();
    within(async { tokio::join!(call(), call(), call()) }).await;
    client.end().await.unwrap();
}

#[tokio::test]
async fn resets_carry_their_reason() {
    let client = Client::connect(serve(h2::server::Builder::new()).await, Http2Settings::default()).await;
    for reason in [Reason::REFUSED_STREAM, Reason::CANCEL, Reason::INTERNAL_ERROR] {
        let (_send, mut recv) =
            client.send(&format!("/{}", u32::from(reason)), &HeaderMap::new(), true).unwrap();
        let error = head(&mut recv).await.unwrap_err();
        assert!(matches!(error, Error::Reset(found) if found == reason), "{error:?}");
    }
    assert!(client.ask("still there").await.is_ok());
    client.end().await.unwrap();
}

/// Calls that are cancelled at any point leak no window: later calls can use all of it.
#[tokio::test]
async fn cancelled_calls_leak_no_window() {
    let settings = Http2Settings { connection_window: 65_535, ..Http2Settings::default() };
    let client = Client::connect(serve(h2::server::Builder::new()).await, settings).await;
    for round in 0..50 {
        let body = vec![round; 20_000];
        let (_, mut recv) = client.ask(body).await.unwrap();
        if round % 2 == 0 {
            let _ = data(&mut recv).await;
        }
        drop(recv);
        let unsent = client.send("/s/m", &HeaderMap::new(), false).unwrap();
        drop(unsent);
    }
    let (_, mut recv) = client.ask(vec![1; 60_000]).await.unwrap();
    assert_eq!(rest(&mut recv).await.unwrap().0.len(), 60_000);
    client.end().await.unwrap();
}

/// Responses that are not read do not stop other streams, since the connection window is returned on receipt. In the
/// second row, more than the whole connection window is unread.
#[tokio::test]
async fn paused_readers_do_not_stop_other_streams() {
    for (paused, size) in [(2, 1_400_000), (4, 1_900_000)] {
        let client = Client::connect(serve(h2::server::Builder::new()).await, Http2Settings::default()).await;
        let mut unread = Vec::new();
        for _ in 0..paused {
            unread.push(client.ask(vec![1; size]).await.unwrap().1);
        }
        // In sum more than the connection window.
        for call in 0..700 {
            let (_, mut recv) = client.ask(vec![2; 10_000]).await.unwrap();
            assert_eq!(rest(&mut recv).await.unwrap().0.len(), 10_000, "call {call} beside {paused}");
        }
        for mut recv in unread {
            assert_eq!(rest(&mut recv).await.unwrap().0.len(), size);
        }
        client.end().await.unwrap();
    }
}

/// Requests that are rejected before they are sent leave the header tables of both sides equal.
#[tokio::test]
async fn refused_requests_leave_header_tables_the_same() {
    let mut server = h2::server::Builder::new();
    server.max_header_list_size(2_000);
    let client = Client::connect(serve(server).await, Http2Settings::default()).await;
    // The limit applies from the server's SETTINGS on.
    client.ask("first").await.unwrap();
    for round in 0..100_u32 {
        let tenant = (HeaderName::from_static("tenant"), HeaderValue::from(round % 5));
        let id = HeaderValue::from(round / 2);
        let mut headers = HeaderMap::from_iter([tenant, (HeaderName::from_static("id"), id.clone())]);
        match round % 4 {
            1 => headers.insert("long", "x".repeat(1_800).parse().unwrap()),
            3 => headers.insert(http::header::CONNECTION, HeaderValue::from_static("close")),
            _ => None,
        };
        let path = format!("/s/m{}-", round % 7);
        let sent = client.send(&path, &headers, true);
        assert_eq!(sent.is_err(), round % 2 == 1, "{round}");
        if let Ok((_, mut recv)) = sent {
            let head = head(&mut recv).await.unwrap();
            assert_eq!((&head.headers["id"], head.headers["path"].to_str().unwrap()), (&id, &path[..]));
        }
    }
    client.end().await.unwrap();
}
