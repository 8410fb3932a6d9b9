//! What a connection does with whatever a server sends.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use evenkeel_http2::{Request, Settings, client};
use http::{HeaderMap, Method};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most that may wait to be written, whatever is read.
const MAX_WRITTEN: usize = 1 << 20;

/// A byte stream that has these bytes and takes so many.
struct Script<'a> {
    read: &'a [u8],
    piece: usize,
    written: usize,
}

impl AsyncRead for Script<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (now, later) = self.read.split_at(self.piece.min(self.read.len()).min(into.remaining()));
        self.read = later;
        into.put_slice(now);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Script<'_> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.written += bytes.len();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Three calls are under way when a server sends these bytes, in pieces of this size: nothing panics, the connection ends, every
/// call learns how it ended, and little is written. Answers how many calls got the head of an answer.
pub fn check_connection(bytes: &[u8], piece: usize) -> usize {
    let mut cx = Context::from_waker(Waker::noop());
    let (sender, mut driver) =
        client(Settings { stream_window: 1 << 16, connection_window: 1 << 17, ..Settings::default() });
    let headers = HeaderMap::new();
    let request = Request {
        method: &Method::POST,
        is_https: false,
        authority: "a",
        path: "/s/m",
        more: &[],
        headers: &headers,
        ends: false,
    };
    let mut streams: Vec<_> = (0..3).map(|_| sender.send(&request).expect("it is new")).collect();
    for (i, (send, _)) in streams.iter_mut().enumerate() {
        send.send(Bytes::from(vec![0; 40_000 * i]), i != 2).expect("the stream is open");
    }
    let mut script = Script { read: bytes, piece: piece.max(1), written: 0 };
    let mut heads = 0;
    for _ in 0..=bytes.len() + 1 {
        let over = driver.poll(&mut script, &mut cx).is_ready();
        for (i, (_, recv)) in streams.iter_mut().enumerate() {
            heads += usize::from(matches!(recv.poll_head(&cx), Poll::Ready(Ok(_))));
            // One reads as it comes, the others at the end.
            if i == 0 || over {
                while let Poll::Ready(Some(Ok(_))) = recv.poll_data(&cx) {}
            }
            if over {
                assert!(recv.poll_trailers(&cx).is_ready(), "a call waits for a connection that is over");
            }
        }
        if over {
            assert!(script.written < MAX_WRITTEN + 4 * bytes.len(), "{} bytes written", script.written);
            assert!(sender.send(&request).is_err(), "a connection that is over takes a request");
            return heads;
        }
    }
    panic!("a connection goes on after the end of its byte stream");
}
