//! One HTTP/2 connection of a backend.
//!
//! All received frames are processed before anything is written, so that responses to concurrent calls are
//! sent together. Requests are shorter than a stream's window. Responses respect the client's windows.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::Error;
use crate::calls::backends::headers::Headers;
use crate::calls::raw::frame;
use crate::client::echo::{EchoRequest, EchoResponse};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 0x1;
const ACK: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;

const HEADER_TABLE_SIZE: u16 = 1;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;

/// Initial stream window. Requests are shorter, so no WINDOW_UPDATE is sent for streams.
const STREAM_WINDOW: u32 = 1 << 20;
/// Connection window. It covers 256 concurrent calls of 64 KiB, so that no client is blocked by it.
const CONNECTION_WINDOW: u32 = 64 << 20;
/// Default initial window (RFC 9113, section 6.9.2).
const DEFAULT_WINDOW: u32 = 65_535;
/// Maximum size of a response.
const LONGEST: usize = 16 << 20;
/// Default maximum frame size.
const DEFAULT_FRAME: usize = 16_384;

/// Serves until the client disconnects or violates the protocol.
pub(crate) async fn serve(mut socket: TcpStream, calls: &AtomicU64) -> Result<(), Error> {
    socket.set_nodelay(true)?;
    let mut connection = Connection::new(calls);
    let mut input = BytesMut::with_capacity(64 * 1024);
    while input.len() < PREFACE.len() {
        if socket.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
    }
    if !input.starts_with(PREFACE) {
        return Err("not the preface of HTTP/2".into());
    }
    input.advance(PREFACE.len());
    loop {
        while let Some(frame) = Frame::take(&mut input) {
            connection.handle(&frame)?;
        }
        connection.answer_waiting();
        if !connection.out.is_empty() {
            socket.write_all(&connection.out).await?;
            connection.out.clear();
        }
        if socket.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
    }
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Bytes,
}

impl Frame {
    /// Removes the first frame from the input; `None` while it is incomplete.
    fn take(input: &mut BytesMut) -> Option<Frame> {
        let head: [u8; 9] = input.get(..9)?.try_into().ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        if input.len() < 9 + length {
            input.reserve(9 + length - input.len());
            return None;
        }
        input.advance(9);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & (u32::MAX >> 1);
        Some(Frame { kind: head[3], flags: head[4], stream, payload: input.split_to(length).freeze() })
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the 32-bit number at the start of the payload.
    fn number(&self) -> Result<u32, Error> {
        Ok(self
            .payload
            .first_chunk()
            .map(|bytes| u32::from_be_bytes(*bytes))
            .ok_or("a frame is too short")?)
    }
}

struct Connection<'a> {
    calls: &'a AtomicU64,
    headers: Headers,
    /// Calls without a complete response.
    streams: HashMap<u32, Stream>,
    /// Streams with a pending response, in order.
    waiting: VecDeque<u32>,
    /// Client's settings: connection window, initial stream window and maximum frame size.
    window: i64,
    stream_window: i64,
    frame: usize,
    /// Bytes received since the last WINDOW_UPDATE of the connection.
    received: u32,
    out: BytesMut,
}

struct Stream {
    /// Client's window for the stream; negative after it was lowered.
    window: i64,
    request: BytesMut,
    /// Set once the request is complete.
    answer: Option<PendingResponse>,
}

/// Response and the number of bytes sent.
struct PendingResponse {
    bytes: Bytes,
    sent: usize,
    is_ok: bool,
}

impl<'a> Connection<'a> {
    fn new(calls: &'a AtomicU64) -> Connection<'a> {
        let mut connection = Connection {
            calls,
            headers: Headers::new(),
            streams: HashMap::new(),
            waiting: VecDeque::new(),
            window: DEFAULT_WINDOW.into(),
            stream_window: DEFAULT_WINDOW.into(),
            frame: DEFAULT_FRAME,
            received: 0,
            out: BytesMut::new(),
        };
        connection.put_head(6, SETTINGS, 0, 0);
        connection.out.put_u16(INITIAL_WINDOW_SIZE);
        connection.out.put_u32(STREAM_WINDOW);
        connection.put_head(4, WINDOW_UPDATE, 0, 0);
        connection.out.put_u32(CONNECTION_WINDOW - DEFAULT_WINDOW);
        connection
    }

    fn put_head(&mut self, length: usize, kind: u8, flags: u8, stream: u32) {
        self.out.put_uint(length as u64, 3);
        self.out.put_u8(kind);
        self.out.put_u8(flags);
        self.out.put_u32(stream);
    }

    fn handle(&mut self, frame: &Frame) -> Result<(), Error> {
        match frame.kind {
            HEADERS => {
                let stream = Stream { window: self.stream_window, request: BytesMut::new(), answer: None };
                self.streams.insert(frame.stream, stream);
                if frame.has(END_STREAM) {
                    self.handle_request(frame.stream);
                }
            }
            DATA => self.handle_data(frame)?,
            RST_STREAM => {
                self.streams.remove(&frame.stream);
            }
            SETTINGS if !frame.has(ACK) => self.handle_settings(&frame.payload)?,
            PING if !frame.has(ACK) => {
                self.put_head(frame.payload.len(), PING, ACK, 0);
                self.out.put_slice(&frame.payload);
            }
            WINDOW_UPDATE => {
                let more = i64::from(frame.number()?);
                if frame.stream == 0 {
                    self.window += more;
                } else if let Some(stream) = self.streams.get_mut(&frame.stream) {
                    stream.window += more;
                }
            }
            // Header blocks are not decoded, so CONTINUATION is ignored too. Other frames need no response.
            _ => {}
        }
        Ok(())
    }

    fn handle_data(&mut self, frame: &Frame) -> Result<(), Error> {
        // A frame is at most 16 KiB, the default maximum.
        self.received += frame.payload.len() as u32;
        if self.received > CONNECTION_WINDOW / 2 {
            self.put_head(4, WINDOW_UPDATE, 0, 0);
            self.out.put_u32(self.received);
            self.received = 0;
        }
        let padding =
            if frame.has(PADDED) { 1 + usize::from(*frame.payload.first().ok_or("no padding")?) } else { 0 };
        let from = usize::from(padding > 0);
        let to = frame.payload.len().checked_sub(padding).ok_or("more padding than frame")? + from;
        let data = frame.payload.get(from..to).ok_or("more padding than frame")?;
        if let Some(stream) = self.streams.get_mut(&frame.stream) {
            stream.request.extend_from_slice(data);
            if frame.has(END_STREAM) {
                self.handle_request(frame.stream);
            }
        }
        Ok(())
    }

    fn handle_settings(&mut self, payload: &[u8]) -> Result<(), Error> {
        for setting in payload.chunks_exact(6) {
            let [a, b, value @ ..] = setting else { continue };
            let value =
                value.first_chunk().map(|bytes| u32::from_be_bytes(*bytes)).ok_or("a short setting")?;
            match u16::from_be_bytes([*a, *b]) {
                HEADER_TABLE_SIZE => self.headers.table_size(value),
                INITIAL_WINDOW_SIZE => {
                    let more = i64::from(value) - self.stream_window;
                    self.stream_window = value.into();
                    for stream in self.streams.values_mut() {
                        stream.window += more;
                    }
                }
                MAX_FRAME_SIZE => self.frame = (value as usize).max(DEFAULT_FRAME),
                _ => {}
            }
        }
        self.put_head(0, SETTINGS, ACK, 0);
        Ok(())
    }

    /// Starts the response to a complete request.
    fn handle_request(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        self.calls.fetch_add(1, Ordering::Relaxed);
        stream.answer = Some(PendingResponse::to(std::mem::take(&mut stream.request).freeze()));
        self.waiting.push_back(id);
        let at = self.out.len();
        self.put_head(0, HEADERS, END_HEADERS, id);
        self.headers.put_headers(&mut self.out);
        self.fill_length(at);
    }

    /// Writes the length of the frame that starts at this offset.
    fn fill_length(&mut self, at: usize) {
        let [_, length @ ..] = ((self.out.len() - at - 9) as u32).to_be_bytes();
        self.out[at..at + 3].copy_from_slice(&length);
    }

    /// Sends as much of every response as the windows allow.
    fn answer_waiting(&mut self) {
        for _ in 0..self.waiting.len() {
            let Some(id) = self.waiting.pop_front() else { return };
            // The call may have been reset.
            let Some(mut stream) = self.streams.remove(&id) else { continue };
            if self.send(id, &mut stream) {
                continue;
            }
            self.streams.insert(id, stream);
            self.waiting.push_back(id);
        }
    }

    /// Returns true if the response has been sent completely, including trailers.
    fn send(&mut self, id: u32, stream: &mut Stream) -> bool {
        let Some(answer) = &mut stream.answer else { return false };
        while answer.sent < answer.bytes.len() {
            let left = &answer.bytes[answer.sent..];
            let window = self.window.min(stream.window).max(0) as usize;
            let now = left.len().min(self.frame).min(window);
            if now == 0 {
                return false;
            }
            self.put_head(now, DATA, 0, id);
            self.out.put_slice(&left[..now]);
            self.window = self.window.saturating_sub_unsigned(now as u64);
            stream.window = stream.window.saturating_sub_unsigned(now as u64);
            answer.sent += now;
        }
        let is_ok = answer.is_ok;
        let at = self.out.len();
        self.put_head(0, HEADERS, END_HEADERS | END_STREAM, id);
        self.headers.put_trailers(&mut self.out, is_ok);
        self.fill_length(at);
        true
    }
}

impl PendingResponse {
    /// Creates the response. For a unary call it is the request unchanged: a response lacks the second field,
    /// and so does a unary request. Messages of a stream are sent together, as servers do; h2 treats many
    /// small frames as an attack.
    fn to(request: Bytes) -> PendingResponse {
        let message = request.get(5..).map(|_| request.slice(5..));
        let bytes = match message.map(EchoRequest::decode) {
            Some(Ok(EchoRequest { messages: 0, .. })) => Some(request),
            Some(Ok(EchoRequest { payload, messages })) => {
                let message = frame(&EchoResponse { payload });
                let length = message.len().checked_mul(messages as usize);
                length.filter(|length| *length <= LONGEST).map(|_| message.repeat(messages as usize).into())
            }
            _ => None,
        };
        PendingResponse { is_ok: bytes.is_some(), bytes: bytes.unwrap_or_default(), sent: 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::num::NonZeroU32;
    use std::sync::Arc;

    use http::{HeaderMap, Request};
    use tokio::net::TcpListener;

    use super::*;
    use crate::client::echo::Ask;

    /// Makes concurrent calls over one connection, and returns the bytes and trailers of each response.
    async fn calls(
        client: &h2::client::Builder,
        messages: Vec<Bytes>,
    ) -> Result<(Vec<(Bytes, HeaderMap)>, u64), Error> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let socket = TcpStream::connect(listener.local_addr()?).await?;
        let (accepted, _) = listener.accept().await?;
        let counted = Arc::new(AtomicU64::new(0));
        let counts = counted.clone();
        tokio::spawn(async move { serve(accepted, &counts).await });
        let (sender, connection) = client.handshake::<_, Bytes>(socket).await?;
        tokio::spawn(connection);
        let mut tasks = Vec::new();
        for message in messages {
            let mut sender = sender.clone();
            tasks.push(tokio::spawn(async move {
                poll_fn(|cx| sender.poll_ready(cx)).await?;
                let request = Request::post("http://backend/bench.Echo/Unary").body(())?;
                let (response, mut stream) = sender.send_request(request, message.is_empty())?;
                if !message.is_empty() {
                    stream.send_data(message, true)?;
                }
                let response = response.await?;
                assert_eq!(response.headers()["content-type"], "application/grpc");
                let mut body = response.into_body();
                let mut received = BytesMut::new();
                while let Some(data) = body.data().await {
                    let data = data?;
                    body.flow_control().release_capacity(data.len())?;
                    received.extend_from_slice(&data);
                }
                Ok::<_, Error>((received.freeze(), body.trailers().await?.ok_or("no trailers")?))
            }));
        }
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await??);
        }
        Ok((answers, counted.load(Ordering::Relaxed)))
    }

    fn ask(size: usize, messages: u32) -> Ask {
        Ask { payload: Bytes::from(vec![b'k'; size]), messages: NonZeroU32::new(messages) }
    }

    async fn check(client: &h2::client::Builder, ask: Ask) {
        let message = frame(&ask.request());
        let answer = frame(&EchoResponse { payload: ask.payload.clone() });
        let answer = answer.repeat(ask.answers() as usize);
        let (answers, counted) = calls(client, vec![message; 20]).await.expect("answers");
        assert_eq!(counted, 20);
        for (received, trailers) in answers {
            assert_eq!(received, answer);
            assert_eq!(trailers["grpc-status"], "0");
            let report = evenkeel_orca::read_trailers(&trailers).report.expect("a load report");
            assert!((report.rps_fractional - 1_000.0).abs() < 1e-9);
        }
    }

    #[tokio::test]
    async fn a_message_comes_back_once_or_often() {
        let client = h2::client::Builder::new();
        for ask in [ask(16, 0), ask(64 * 1024, 0), ask(16, 100), ask(0, 1)] {
            check(&client, ask).await;
        }
    }

    #[tokio::test]
    async fn windows_and_frames_of_the_client_are_respected() {
        let mut client = h2::client::Builder::new();
        client.initial_window_size(1_000).max_frame_size(20_000);
        check(&client, ask(64 * 1024, 0)).await;
        check(&client, ask(16, 100)).await;
    }

    #[tokio::test]
    async fn a_client_may_want_no_table_of_headers() {
        let mut client = h2::client::Builder::new();
        client.header_table_size(0);
        check(&client, ask(16, 0)).await;
    }

    /// A malformed message fails its call only.
    #[tokio::test]
    async fn what_cannot_be_read_is_refused() {
        let good = frame(&ask(16, 0).request());
        let long = frame(&ask(1_000, u32::MAX).request());
        let messages = vec![Bytes::new(), Bytes::from_static(b"\0\0\0\0\x02\x0a\x10"), long, good.clone()];
        let (answers, _) = calls(&h2::client::Builder::new(), messages).await.expect("answers");
        let statuses: Vec<_> = answers.iter().map(|(_, trailers)| trailers["grpc-status"].clone()).collect();
        assert_eq!(statuses, ["3", "3", "3", "0"]);
        assert_eq!(answers[3].0, good);
    }

    #[tokio::test]
    async fn a_peer_of_another_protocol_is_disconnected() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut socket = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
        let (accepted, _) = listener.accept().await.expect("accepted");
        socket.write_all(b"GET / HTTP/1.1\r\nhost: backend\r\n\r\n").await.expect("sent");
        let error = serve(accepted, &AtomicU64::new(0)).await.expect_err("not HTTP/2");
        assert!(error.to_string().contains("preface"), "{error}");
    }
}
