//! HTTP/2 by the crate `h2`, behind the same interface as the default.
//!
//! `h2` does not expose everything that a channel needs. A [`ByteTap`] on the byte stream counts the bytes read and
//! detects the end of the peer's first SETTINGS. A second `SendRequest` of the connection, the *probe*, returns an
//! error as soon as `h2` takes no more requests. Streams are counted here too.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};

use ::h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use ::h2::{Ping, PingPong};
use bytes::Bytes;
use evenkeel_http2::{Error, Http2Settings, Reason, RequestHeaders, ResponseHeaders};
use http::{HeaderMap, HeaderName, HeaderValue, Uri, Version, header};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::sync::lock;
use crate::transport::Io;

/// Number of streams reset by us that `h2` remembers. Late frames of others are stream errors, which cost a RST_STREAM each.
const MAX_RESET_STREAMS: usize = 1024;

/// The flow-control window of a connection before any WINDOW_UPDATE.
const DEFAULT_WINDOW: u32 = 65_535;

/// Length of a frame header (RFC 9113, section 4.1).
const FRAME_HEAD: usize = 9;

/// Type of a SETTINGS frame (RFC 9113, section 6.5).
const SETTINGS: u8 = 4;

/// Header fields of HTTP/1 (RFC 9113, section 8.2.2).
const CONNECTION_SPECIFIC: [HeaderName; 5] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Starts HTTP/2 on a byte stream.
pub(super) async fn start(
    io: Box<dyn Io>,
    settings: Http2Settings,
) -> Result<(H2Sender, H2Transport), Error> {
    let read = Arc::<BytesRead>::default();
    let tap = ByteTap { io, head: [0; FRAME_HEAD], read: read.clone() };
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(settings.stream_window)
        // The connection's window cannot shrink below its initial size (RFC 9113, section 6.9.2).
        .initial_connection_window_size(settings.connection_window.max(DEFAULT_WINDOW))
        .max_frame_size(settings.max_frame_size)
        .max_header_list_size(settings.max_header_list_size)
        // A client may cancel any number of calls. The limit of `h2` on local errors protects servers from clients.
        .max_concurrent_reset_streams(MAX_RESET_STREAMS)
        .max_local_error_reset_streams(None);
    let (requests, mut connection) =
        builder.handshake::<_, Bytes>(tap).await.map_err(|error| from_h2(&error))?;
    let shared = Arc::<H2Shared>::default();
    let transport = H2Transport {
        pings: connection.ping_pong(),
        connection,
        probe: Some(requests.clone()),
        shared: shared.clone(),
        read,
        close_reason: None,
        max_streams: None,
    };
    Ok((H2Sender { requests, shared }, transport))
}

/// State that the transport, the sender and the streams of a connection share.
#[derive(Default)]
struct H2Shared {
    /// Waker of the transport's task, for changes of its streams.
    waker: Mutex<Option<Waker>>,
    /// True once the sender was dropped.
    is_released: AtomicBool,
    /// Number of streams with at least one half alive.
    streams: AtomicUsize,
    /// True once a call has read the head of a response.
    has_received_response: AtomicBool,
}

impl H2Shared {
    fn wake(&self) {
        // Release the lock before the wake-up: the waker may run the task, which takes the lock.
        let waker = lock(&self.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Opens streams on a connection of the crate h2.
pub(crate) struct H2Sender {
    requests: SendRequest<Bytes>,
    shared: Arc<H2Shared>,
}

impl H2Sender {
    pub(super) fn send(&self, request: &RequestHeaders<'_>) -> Result<(H2SendStream, H2RecvStream), Error> {
        let mut headers = request.headers.clone();
        headers.extend(request.extra_headers.iter().cloned());
        let is_unsendable = |name: &HeaderName, value: &HeaderValue| {
            CONNECTION_SPECIFIC.contains(name) || *name == header::TE && value != "trailers"
        };
        if let Some((name, _)) = headers.iter().find(|(name, value)| is_unsendable(name, value)) {
            return Err(Error::InvalidHeader(name.clone()));
        }
        let uri = Uri::builder()
            .scheme(if request.is_https { "https" } else { "http" })
            .authority(request.authority)
            .path_and_query(request.path)
            .build()
            .map_err(|_| Error::InvalidHeader(header::HOST))?;
        let mut head = http::Request::new(());
        (*head.method_mut(), *head.uri_mut(), *head.version_mut(), *head.headers_mut()) =
            (request.method.clone(), uri, Version::HTTP_2, headers);
        // A fresh clone has no pending stream. `h2` would reject this request if one were pending.
        let opened = self.requests.clone().send_request(head, request.end_stream);
        let (response, send) = opened.map_err(|error| from_h2(&error))?;
        // Counted once `h2` has accepted the request. The drop of `H2Stream` subtracts it.
        self.shared.streams.fetch_add(1, Ordering::SeqCst);
        let stream = Arc::new(H2Stream { send: Mutex::new(send), shared: self.shared.clone() });
        let send = H2SendStream { stream: stream.clone(), is_done: request.end_stream };
        Ok((send, H2RecvStream { stream, part: ResponsePart::ResponseHeaders(response) }))
    }
}

impl Drop for H2Sender {
    fn drop(&mut self) {
        self.shared.is_released.store(true, Ordering::SeqCst);
        self.shared.wake();
    }
}

/// One stream, shared by its two halves. Only the sending half of `h2` can reset it.
struct H2Stream {
    send: Mutex<::h2::SendStream<Bytes>>,
    shared: Arc<H2Shared>,
}

impl Drop for H2Stream {
    fn drop(&mut self) {
        self.shared.streams.fetch_sub(1, Ordering::SeqCst);
        self.shared.wake();
    }
}

/// The request half of a stream.
pub(crate) struct H2SendStream {
    stream: Arc<H2Stream>,
    is_done: bool,
}

impl H2SendStream {
    pub(super) fn send(&mut self, data: Bytes, end_stream: bool) -> Option<()> {
        if self.is_done {
            return None;
        }
        self.is_done = end_stream;
        lock(&self.stream.send).send_data(data, end_stream).ok()
    }

    pub(super) fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<Option<()>> {
        if self.is_done {
            return Poll::Ready(None);
        }
        let mut send = lock(&self.stream.send);
        while send.capacity() == 0 {
            // Any capacity is enough: `send_data` queues the rest.
            send.reserve_capacity(1);
            match ready!(send.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Poll::Ready(None),
            }
        }
        Poll::Ready(Some(()))
    }

    pub(super) fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_done {
            return Poll::Ready(());
        }
        lock(&self.stream.send).poll_reset(cx).map(drop)
    }

    pub(super) fn reset(&mut self, reason: Reason) {
        if !self.is_done {
            self.is_done = true;
            lock(&self.stream.send).send_reset(u32::from(reason).into());
        }
    }
}

/// The response half of a stream.
pub(crate) struct H2RecvStream {
    stream: Arc<H2Stream>,
    part: ResponsePart,
}

/// Part of a response that is read next.
enum ResponsePart {
    ResponseHeaders(ResponseFuture),
    Body(::h2::RecvStream),
    /// The response has ended, with or without an error.
    Ended,
}

impl H2RecvStream {
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<ResponseHeaders, Error>> {
        let ResponsePart::ResponseHeaders(response) = &mut self.part else {
            return Poll::Ready(Err(Error::Exhausted));
        };
        let response = ready!(Pin::new(response).poll(cx)).map_err(|error| self.end(&error));
        Poll::Ready(response.map(|response| {
            let (head, body) = response.into_parts();
            let end_stream = body.is_end_stream();
            self.part = ResponsePart::Body(body);
            self.stream.shared.has_received_response.store(true, Ordering::Relaxed);
            ResponseHeaders { status: head.status, headers: head.headers, end_stream }
        }))
    }

    pub(super) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        let ResponsePart::Body(body) = &mut self.part else { return Poll::Ready(None) };
        let data = match ready!(body.poll_data(cx)) {
            Some(Ok(data)) => {
                // It fails only for streams without a window, which need none.
                let _ = body.flow_control().release_capacity(data.len());
                Some(Ok(data))
            }
            Some(Err(error)) => Some(Err(self.end(&error))),
            None => None,
        };
        Poll::Ready(data)
    }

    pub(super) fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<HeaderMap>, Error>> {
        let ResponsePart::Body(body) = &mut self.part else { return Poll::Ready(Ok(None)) };
        let trailers = ready!(body.poll_trailers(cx)).map_err(|error| self.end(&error));
        self.part = ResponsePart::Ended;
        Poll::Ready(trailers)
    }

    fn end(&mut self, error: &::h2::Error) -> Error {
        self.part = ResponsePart::Ended;
        from_h2(error)
    }
}

impl Drop for H2RecvStream {
    /// Cancels the stream if the response is incomplete. Otherwise `h2` would wait until the other half is dropped.
    fn drop(&mut self) {
        let has_ended = match &self.part {
            ResponsePart::ResponseHeaders(_) => false,
            ResponsePart::Body(body) => body.is_end_stream(),
            ResponsePart::Ended => true,
        };
        if !has_ended {
            lock(&self.stream.send).send_reset(::h2::Reason::CANCEL);
        }
    }
}

/// The I/O part of a connection over `h2`.
pub(crate) struct H2Transport {
    connection: Connection<ByteTap, Bytes>,
    /// Dropped with the sender: `h2` keeps a connection open while a `SendRequest` exists.
    probe: Option<SendRequest<Bytes>>,
    pings: Option<PingPong>,
    shared: Arc<H2Shared>,
    read: Arc<BytesRead>,
    close_reason: Option<Error>,
    max_streams: Option<usize>,
}

impl H2Transport {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // Store the waker before reading the flag, or a sender dropped in between would not wake this task.
        *lock(&self.shared.waker) = Some(cx.waker().clone());
        if self.shared.is_released.load(Ordering::SeqCst) {
            self.probe = None;
        }
        // Examined last: SETTINGS and GOAWAY that arrived before the end must take effect first.
        let polled = Pin::new(&mut self.connection).poll(cx);
        if self.read.is_not_http2.load(Ordering::Relaxed) {
            return Poll::Ready(Err(self.refuse(Error::ConnectionError(Reason::PROTOCOL_ERROR))));
        }
        if self.read.has_settings.load(Ordering::Relaxed) {
            self.max_streams = Some(self.connection.max_concurrent_send_streams());
        }
        // At most one ping is outstanding. Its bytes count as data from the peer. The second poll registers the
        // waker.
        if let Some(pings) = &mut self.pings
            && let Poll::Ready(Ok(_)) = pings.poll_pong(cx)
        {
            let _ = pings.poll_pong(cx);
        }
        if let Some(probe) = &mut self.probe
            && self.close_reason.is_none()
            && let Poll::Ready(Err(error)) = probe.poll_ready(cx)
        {
            self.close_reason = Some(from_h2(&error));
        }
        match ready!(polled) {
            Ok(()) if self.probe.is_none() => Poll::Ready(Ok(())),
            // An end that the peer announced by GOAWAY is not an error, for every reason code. If it follows the
            // peer's SETTINGS immediately, the connection attempt still succeeded.
            _ if matches!(self.close_reason, Some(Error::GoAway(..))) => Poll::Ready(Ok(())),
            Ok(()) => Poll::Ready(Err(self.refuse(Error::Closed))),
            Err(error) => Poll::Ready(Err(self.refuse(from_h2(&error)))),
        }
    }

    fn refuse(&mut self, error: Error) -> Error {
        self.close_reason.get_or_insert_with(|| error.clone());
        error
    }

    pub(super) fn max_streams(&self) -> Option<usize> {
        self.max_streams
    }

    pub(super) fn close_reason(&self) -> Option<&Error> {
        self.close_reason.as_ref()
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.read.count.load(Ordering::Relaxed)
    }

    pub(super) fn has_open_streams(&self) -> bool {
        self.shared.streams.load(Ordering::SeqCst) > 0
    }

    /// Requests without a response do not count: `h2` does not report which of them the peer's GOAWAY excludes.
    pub(super) fn has_served_calls(&self) -> bool {
        self.shared.has_received_response.load(Ordering::Relaxed)
    }

    pub(super) fn ping(&mut self) {
        if let Some(pings) = &mut self.pings {
            // It fails if a ping is outstanding, which then serves the purpose.
            let _ = pings.send_ping(Ping::opaque());
        }
    }
}

/// State of reading, shared by [`ByteTap`] and the transport.
#[derive(Default)]
struct BytesRead {
    count: AtomicU64,
    /// True once the peer's first SETTINGS are complete.
    has_settings: AtomicBool,
    /// True if the peer's first frame is not SETTINGS, which RFC 9113, section 3.4, requires.
    is_not_http2: AtomicBool,
}

/// Byte stream that counts the bytes read and parses the header of the peer's first frame.
struct ByteTap {
    io: Box<dyn Io>,
    head: [u8; FRAME_HEAD],
    read: Arc<BytesRead>,
}

impl ByteTap {
    fn observe(&mut self, bytes: &[u8]) {
        let before = self.read.count.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if self.read.has_settings.load(Ordering::Relaxed) {
            return;
        }
        let start = usize::try_from(before).unwrap_or(FRAME_HEAD).min(FRAME_HEAD);
        // Behind the header, `start` is its end and no slot is left.
        for (slot, byte) in self.head[start..].iter_mut().zip(bytes) {
            *slot = *byte;
        }
        let [a, b, c, kind, ..] = self.head;
        let count = before + bytes.len() as u64;
        if count >= FRAME_HEAD as u64 {
            self.read.is_not_http2.store(kind != SETTINGS, Ordering::Relaxed);
            let len = u64::from(u32::from_be_bytes([0, a, b, c]));
            self.read.has_settings.store(count >= FRAME_HEAD as u64 + len, Ordering::Relaxed);
        }
    }
}

impl AsyncRead for ByteTap {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        self.observe(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ByteTap {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

/// Converts an error of `h2`.
fn from_h2(error: &::h2::Error) -> Error {
    if let Some(io) = error.get_io() {
        return match io.kind() {
            // `h2` reports a connection closed by the peer as a broken pipe.
            io::ErrorKind::BrokenPipe => Error::Closed,
            kind => Error::Io(Arc::new(io::Error::new(kind, io.to_string()))),
        };
    }
    let Some(reason) = error.reason() else { return Error::Exhausted };
    let reason = Reason::from(u32::from(reason));
    match (error.is_go_away(), error.is_remote()) {
        (true, true) => Error::GoAway(reason, debug_data(error)),
        (true, false) => Error::ConnectionError(reason),
        (false, true) => Error::Reset(reason),
        (false, false) => Error::StreamError(reason),
    }
}

/// Returns the debug data of a GOAWAY frame. `h2` exposes it only in its text, as `(b"...")` with Rust's escapes.
fn debug_data(error: &::h2::Error) -> Bytes {
    let text = error.to_string();
    let quoted = text.split_once(" (b\"").and_then(|(_, rest)| rest.strip_suffix("\")"));
    unescape(quoted.unwrap_or_default()).into()
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let escaped = if byte == b'\\' { rest.next() } else { None };
        bytes.push(match escaped {
            None => byte,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'0') => 0,
            Some(b'x') => {
                let digit =
                    |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16)).unwrap_or(0);
                (digit(rest.next()) * 16 + digit(rest.next())) as u8
            }
            Some(other) => other,
        });
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Debug data of arbitrary bytes is recovered.
    #[test]
    fn debug_data_is_unescaped() {
        let all = (0..=u8::MAX).collect::<Bytes>();
        let text = format!("{all:?}");
        let quoted = text.strip_prefix("b\"").and_then(|text| text.strip_suffix('"')).unwrap();
        assert_eq!(unescape(quoted), all);
        assert_eq!(unescape(""), b"");
    }

    /// The first frame is detected in chunks of any size.
    #[test]
    fn the_first_frame_is_followed() {
        for (kind, payload) in [(SETTINGS, 0), (SETTINGS, 12), (6, 8)] {
            let mut frame = vec![0, 0, payload, kind, 0, 0, 0, 0, 0];
            frame.resize(FRAME_HEAD + usize::from(payload), 7);
            for piece in 1..=frame.len() {
                let read = Arc::<BytesRead>::default();
                let (io, _peer) = tokio::io::duplex(1);
                let mut tap = ByteTap { io: Box::new(io), head: [0; FRAME_HEAD], read: read.clone() };
                let mut count = 0;
                for bytes in frame.chunks(piece) {
                    assert!(!read.has_settings.load(Ordering::Relaxed), "after {count} bytes");
                    tap.observe(bytes);
                    count += bytes.len();
                }
                assert!(read.has_settings.load(Ordering::Relaxed));
                assert_eq!(read.is_not_http2.load(Ordering::Relaxed), kind != SETTINGS);
                assert_eq!(read.count.load(Ordering::Relaxed), frame.len() as u64);
            }
        }
    }
}
