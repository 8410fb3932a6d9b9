//! Memory that a connection holds, by a counting allocator. The byte stream is in memory, so that all of it happens in one thread.

use std::task::{Context, Poll, Waker};

use evenkeel_http2::{ConnectionDriver, RecvStream, SendStream, client};
use testkit::Counting;

use super::memory_io::{MemoryIo, request};
use super::*;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn frame(kind: u8, flags: u8, stream: usize, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &(stream as u32).to_be_bytes(), payload].concat()
}

fn data_frame(stream: usize, len: usize) -> Vec<u8> {
    frame(0, 0, stream, &vec![7; len])
}

/// A connection with open streams that have a response each, and have sent and received nothing else.
struct Connection {
    driver: ConnectionDriver,
    streams: Vec<(SendStream, RecvStream)>,
    _sender: SendRequest,
}

impl Connection {
    fn open(count: usize) -> Connection {
        let (sender, driver) = client(Http2Settings::default());
        let headers = HeaderMap::new();
        let request = request(&headers, true);
        let streams = (0..count).map(|_| sender.send(&request).expect("a connection that is open")).collect();
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
        let mut io = MemoryIo::new(bytes);
        while !io.state().is_drained() {
            let polled = self.driver.poll(&mut io, &mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending(), "{polled:?}");
        }
        assert!(self.driver.poll(&mut io, &mut Context::from_waker(Waker::noop())).is_pending());
    }

    /// Reads at most this number of pieces from a stream. Returns the number of bytes.
    fn read(&mut self, at: usize, pieces: usize) -> usize {
        let mut read = 0;
        for _ in 0..pieces {
            match self.streams[at].1.poll_data(&Context::from_waker(Waker::noop())) {
                Poll::Ready(Some(Ok(piece))) => read += piece.len(),
                other => {
                    assert!(other.is_pending(), "{other:?}");
                    break;
                }
            }
        }
        read
    }
}

/// The id of the stream that was opened at this position.
fn id(at: usize) -> usize {
    2 * at + 1
}

/// After a burst of small frames, the buffers that grew are released when the connection is idle.
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

/// Bytes of DATA from which on the data of a read may stay in its buffer.
const LARGE: usize = 4 << 10;

/// Small constant that a stream, and a connection, may hold beside its data.
const SMALL_CONSTANT: usize = 4 << 10;

#[track_caller]
fn check_held(held: i64, unread: usize, streams: usize, what: &str) {
    let bound = 2 * unread + SMALL_CONSTANT * (streams + 1);
    let bound = i64::try_from(bound).expect("less than memory has");
    assert!(held <= bound, "{what}: {held} bytes held for {unread} unread, at most {bound}");
}

/// Streams that are not read hold at most two bytes per byte of window, whatever the size and the order of their
/// frames.
#[test]
fn unread_data_holds_two_bytes_per_byte_of_window() {
    Connection::open(1);
    for (len, total) in
        [(1, 50_000), (100, 500_000), (1 << 10, 1 << 20), (4 << 10, 2 << 20), (16 << 10, 2 << 20)]
    {
        for streams in [1, 3, 16] {
            // Frames of all streams in turn; and several of one, then of the next.
            for row in [1, 5] {
                let mut connection = Connection::open(streams);
                let rounds = total / (len * row);
                let round: Vec<u8> =
                    (0..streams).flat_map(|at| data_frame(id(at), len).repeat(row)).collect();
                let script = round.repeat(rounds);
                let (held, ()) = Counting::during(|| connection.feed(&script));
                let what = format!("{streams} streams, {row} frames of {len} bytes");
                let unread = rounds * row * len;
                check_held(held.net_bytes, unread * streams, streams, &what);
                for at in 0..streams {
                    assert_eq!(connection.read(at, usize::MAX), unread, "{what}");
                }
            }
        }
    }
}

/// A reader that pauses in the middle of a response does not hold the data that it has read.
#[test]
fn partly_read_data_holds_two_bytes_per_byte_of_window() {
    Connection::open(1);
    // One stream, after each number of pieces.
    let mut connection = Connection::open(1);
    let script = data_frame(id(0), 16 << 10).repeat(100);
    let (mut unread, mut held) = (100 * (16 << 10), 0);
    held += Counting::during(|| connection.feed(&script)).0.net_bytes;
    while unread > 0 {
        let (change, read) = Counting::during(|| connection.read(0, 1));
        (unread, held) = (unread - read, held + change.net_bytes);
        check_held(held, unread, 1, "one stream");
    }
}

/// A stream that pauses beside one that is read, or was cancelled, does not hold the buffers of their data.
#[test]
fn paused_stream_holds_no_data_of_others() {
    Connection::open(1);
    for is_cancelled in [false, true] {
        for len in [LARGE, 3 * LARGE, 4 * LARGE] {
            let mut connection = Connection::open(2);
            if is_cancelled {
                connection.streams.pop();
            }
            let round = [data_frame(id(0), len), data_frame(id(1), 4 * LARGE).repeat(3)].concat();
            let (mut held, mut unread) = (0, 0);
            for _ in 0..100 {
                held += Counting::during(|| connection.feed(&round)).0.net_bytes;
                unread += len;
                if !is_cancelled {
                    let (change, read) = Counting::during(|| connection.read(1, usize::MAX));
                    assert_eq!(read, 3 * 4 * LARGE);
                    held += change.net_bytes;
                }
                check_held(held, unread, 2, &format!("pieces of {len}, cancelled: {is_cancelled}"));
            }
            assert_eq!(connection.read(0, usize::MAX), unread);
        }
    }
}
