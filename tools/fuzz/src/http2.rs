//! Properties of an HTTP/2 client connection for arbitrary input from a server.
//!
//! Inputs are interpreted in three ways: as bytes of the connection, as frames, and as steps of a conforming
//! server while the client does not read some streams.

#[path = "../../../crates/evenkeel-http2/tests/common/memory_io.rs"]
mod memory_io;

use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use evenkeel_http2::{Http2Settings, client};
use http::HeaderMap;

use self::memory_io::{MemoryIo, request};

/// Maximum number of bytes that the client may write, for any input.
const MAX_WRITTEN: usize = 1 << 20;

/// Delivers these bytes, in pieces of this size, to a connection with three active calls. Asserts that
/// nothing panics, the connection ends, every call ends, and writes are bounded. Returns the number of calls
/// with response headers.
pub fn check_connection(bytes: &[u8], piece: usize) -> usize {
    let mut cx = Context::from_waker(Waker::noop());
    let (sender, mut driver) = client(Http2Settings {
        stream_window: 1 << 16,
        connection_window: 1 << 17,
        ..Http2Settings::default()
    });
    let headers = HeaderMap::new();
    let request = request(&headers, false);
    let mut streams: Vec<_> = (0..3).map(|_| sender.send(&request).expect("it is new")).collect();
    for (i, (send, _)) in streams.iter_mut().enumerate() {
        send.send(Bytes::from(vec![0; 40_000 * i]), i != 2).expect("the stream is open");
    }
    let mut io = MemoryIo::new(bytes);
    io.state().max_read = piece.max(1);
    io.state().is_ended = true;
    let mut heads = 0;
    for _ in 0..=bytes.len() + 1 {
        let over = driver.poll(&mut io, &mut cx).is_ready();
        for (i, (_, recv)) in streams.iter_mut().enumerate() {
            heads += usize::from(matches!(recv.poll_head(&cx), Poll::Ready(Ok(_))));
            // The first call reads continuously, the others at the end.
            if i == 0 || over {
                while let Poll::Ready(Some(Ok(_))) = recv.poll_data(&cx) {}
            }
            if over {
                assert!(recv.poll_trailers(&cx).is_ready(), "a call waits for a connection that is over");
            }
        }
        if over {
            let written = io.state().written.len();
            assert!(written < MAX_WRITTEN + 4 * bytes.len(), "{written} bytes written");
            assert!(sender.send(&request).is_err(), "a connection that is over takes a request");
            return heads;
        }
    }
    panic!("a connection goes on after the end of its byte stream");
}

/// Maximum number of frames per input.
const MAX_FRAMES: usize = 200;

/// Appends an HTTP/2 frame.
pub fn push_frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let len = (payload.len() as u32).to_be_bytes();
    out.extend_from_slice(&len[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Interprets an input as frames: type, flags, stream and length take one byte each, then the payload. The
/// framing is therefore valid, and mutations reach the layers behind it. Asserts that the result does not
/// depend on the size of the reads.
pub fn check_frames(bytes: &[u8]) {
    let mut sent = Vec::new();
    push_frame(&mut sent, 4, 0, 0, &[]);
    let mut rest = bytes;
    for _ in 0..MAX_FRAMES {
        let Some((&[kind, flags, stream, len], more)) = rest.split_first_chunk() else { break };
        let (payload, more) = more.split_at(usize::from(len).min(more.len()));
        push_frame(&mut sent, kind % 11, flags, u32::from(stream % 8), payload);
        rest = more;
    }
    let whole = check_connection(&sent, usize::MAX);
    assert_eq!(check_connection(&sent, 3), whole, "the size of the reads changes the outcome");
}

/// Interprets an input as header blocks with their lengths, each the response of its own stream.
pub fn check_header_blocks(bytes: &[u8]) {
    let mut sent = Vec::new();
    push_frame(&mut sent, 4, 0, 0, &[]);
    let mut rest = bytes;
    for stream in [1, 3, 5] {
        let Some((&len, more)) = rest.split_first() else { break };
        let (block, more) = more.split_at(usize::from(len).min(more.len()));
        // An interim response allows another block in the same stream.
        push_frame(&mut sent, 1, 4, stream, &[&b"\x08\x03103"[..], block].concat());
        push_frame(&mut sent, 1, 4, stream, &[&b"\x88"[..], block].concat());
        push_frame(&mut sent, 1, 5, stream, block);
        rest = more;
    }
    let whole = check_connection(&sent, usize::MAX);
    assert_eq!(check_connection(&sent, 1), whole, "the size of the reads changes the outcome");
}

const STREAM_WINDOW: u32 = 10_000;
const CONNECTION_WINDOW: u32 = 70_000;
const STREAMS: usize = 12;

/// Flow-control windows that the client has granted, as the server counts them.
struct GrantedWindows {
    connection: i64,
    streams: [i64; STREAMS],
}

impl GrantedWindows {
    /// Processes the WINDOW_UPDATE frames that the client wrote. The preface and incomplete frames do not
    /// occur here.
    fn update(&mut self, written: &mut Vec<u8>) {
        let mut rest = &written[..];
        while let Some((&[a, b, c, kind, _, d, e, f, g], more)) = rest.split_first_chunk::<9>() {
            let len = u32::from_be_bytes([0, a, b, c]) as usize;
            let (payload, more) = more.split_at(len);
            let stream = u32::from_be_bytes([d, e, f, g]) as usize;
            if let (8, Ok(by)) = (kind, <[u8; 4]>::try_from(payload)) {
                let by = i64::from(u32::from_be_bytes(by));
                match stream {
                    0 => self.connection += by,
                    _ => self.streams[stream / 2] += by,
                }
            }
            rest = more;
        }
        written.clear();
    }
}

/// Interprets an input as steps: the server sends data within its windows, the client reads one stream or
/// drops it. Asserts that unread data never blocks a stream that is read, and that data arrives unchanged.
pub fn check_unread_streams(bytes: &[u8]) {
    let mut cx = Context::from_waker(Waker::noop());
    let (sender, mut driver) = client(Http2Settings {
        stream_window: STREAM_WINDOW,
        connection_window: CONNECTION_WINDOW,
        ..Http2Settings::default()
    });
    let headers = HeaderMap::new();
    let request = request(&headers, true);
    let mut io = MemoryIo::new(&[]);
    let mut streams: Vec<_> =
        (0..STREAMS).map(|_| Some(sender.send(&request).expect("the connection is open").1)).collect();
    assert!(driver.poll(&mut io, &mut cx).is_pending());
    io.state().written.drain(..24);
    let mut granted = GrantedWindows { connection: 65_535, streams: [i64::from(STREAM_WINDOW); STREAMS] };
    granted.update(&mut io.state().written);
    io.state().send(|input| {
        push_frame(input, 4, 0, 0, &[]);
        for index in 0..STREAMS {
            push_frame(input, 1, 4, 2 * index as u32 + 1, b"\x88");
        }
    });
    let mut unread = [0_i64; STREAMS];
    for step in bytes.chunks_exact(3).take(1_000) {
        let index = usize::from(step[0]) % STREAMS;
        let stream = 2 * index as u32 + 1;
        match step[1] % 8 {
            0..=3 => {
                let window = granted.connection.min(granted.streams[index]).min(16_384);
                let len = (i64::from(step[2]) * 64 + i64::from(step[1] >> 3)).min(window).max(0);
                granted.connection -= len;
                granted.streams[index] -= len;
                unread[index] += len;
                let data = vec![index as u8; len as usize];
                io.state().send(|input| push_frame(input, 0, 0, stream, &data));
            }
            4..=6 => {
                let Some(recv) = &mut streams[index] else { continue };
                let _ = recv.poll_head(&cx);
                while let Poll::Ready(Some(data)) = recv.poll_data(&cx) {
                    let data = data.expect("the server keeps to the protocol");
                    assert!(data.iter().all(|byte| *byte == index as u8), "data of another stream");
                    unread[index] -= i64::try_from(data.len()).expect("a piece is smaller than its window");
                }
            }
            _ => streams[index] = None,
        }
        while !io.state().is_drained() {
            assert!(driver.poll(&mut io, &mut cx).is_pending(), "the connection ends");
        }
        assert!(driver.poll(&mut io, &mut cx).is_pending(), "the connection ends");
        granted.update(&mut io.state().written);
        assert!(
            granted.connection >= i64::from(CONNECTION_WINDOW / 2),
            "unread streams hold the connection's window"
        );
        for (index, stream) in streams.iter().enumerate() {
            let window = granted.streams[index];
            assert!(
                window + unread[index] <= i64::from(STREAM_WINDOW),
                "more than a stream's window is granted"
            );
            let is_read = stream.is_some() && unread[index] == 0;
            assert!(
                !is_read || window >= i64::from(STREAM_WINDOW / 2),
                "a stream that is read has no window"
            );
        }
    }
}
