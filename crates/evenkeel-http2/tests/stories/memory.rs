//! Memory that a connection holds, by a counting allocator. The byte stream is in memory, so that all of it happens in one thread.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use evenkeel_http2::{Driver, RecvStream, SendStream, client};
use testkit::Counting;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::*;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A byte stream that has these bytes to read, and then no more for now. It takes whatever is written.
struct ScriptedIo<'a>(&'a [u8]);

impl AsyncRead for ScriptedIo<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.0.is_empty() {
            return Poll::Pending;
        }
        let (now, later) = self.0.split_at(self.0.len().min(into.remaining()));
        self.0 = later;
        into.put_slice(now);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ScriptedIo<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn frame(kind: u8, flags: u8, stream: usize, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &(stream as u32).to_be_bytes(), payload].concat()
}

/// A connection with open streams that have a response each, and have sent and received nothing else.
struct Connection {
    driver: Driver,
    streams: Vec<(SendStream, RecvStream)>,
    _sender: Sender,
}

impl Connection {
    fn open(count: usize) -> Connection {
        let (sender, driver) = client(Settings::default());
        let headers = HeaderMap::new();
        let request = Request {
            method: &Method::POST,
            is_https: false,
            authority: "orders",
            path: "/s/m",
            headers: &headers,
            more: &[],
            ends: true,
        };
        let streams = (0..count).map(|_| sender.send(&request).unwrap()).collect();
        let mut connection = Connection { driver, streams, _sender: sender };
        let heads = (0..count).flat_map(|at| frame(1, 4, id(at), &[0x88]));
        connection.feed(&[frame(4, 0, 0, &[]), heads.collect()].concat());
        for (_, recv) in &mut connection.streams {
            assert!(recv.poll_head(&Context::from_waker(Waker::noop())).is_ready());
        }
        connection
    }

    /// Has the connection read all of these bytes.
    fn feed(&mut self, bytes: &[u8]) {
        let mut io = ScriptedIo(bytes);
        while !io.0.is_empty() {
            let polled = self.driver.poll(&mut io, &mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending(), "{polled:?}");
        }
        assert!(self.driver.poll(&mut io, &mut Context::from_waker(Waker::noop())).is_pending());
    }
}

/// The id of the stream that was opened at this position.
fn id(at: usize) -> usize {
    2 * at + 1
}

/// A burst of small frames leaves nothing behind: buffers that grew are released when the connection is idle.
#[test]
fn burst_of_frames_releases_its_buffers() {
    let mut connection = Connection::open(1);
    let pings = frame(6, 0, 0, b"12345678").repeat(4_000);
    let updates = frame(8, 0, id(0), &[0, 0, 0, 1]).repeat(10_000);
    // A value of 16,000 bytes, Huffman-coded in 10,000.
    let long = [&[0, 1, b'a', 0xff, 0x91, 0x4d][..], &[0x18, 0xc6, 0x31, 0x8c, 0x63].repeat(2_000)].concat();
    let trailers = frame(1, 5, id(0), &long);
    let (held, ()) = Counting::during(|| {
        connection.feed(&pings);
        connection.feed(&updates);
        connection.feed(&trailers);
        connection.streams.clear();
    });
    assert!(held.net_bytes < 16 << 10, "{held:?}");
}
