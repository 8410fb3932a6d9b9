//! HTTP/2 servers without an HTTP/2 library, for behaviour that a conforming server never shows.
//!
//! [`Peer`] is manual: a test accepts one connection, sees each frame and writes any frame, valid or not.
//! [`serve`] responds by a closure, for many calls on many connections: one listener covers every address of
//! 127.0.0.0/8, and so thousands of endpoints. [`MemoryServers`] do the same without a socket, for tests with
//! paused time.
//!
//! Requests are assembled from their frames. Their header blocks stay in HPACK, since no test needs the
//! fields. Written header blocks are literals without indexing. A [`Conn`] ignores flow-control windows;
//! [`serve`] respects that of the connection.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

use crate::net::proxy::{close, reset};

mod serve;

pub use serve::{Answer, Call, MemoryServers, Served, serve};

/// Frame types (RFC 9113, section 6).
pub mod kind {
    #![allow(missing_docs, reason = "the RFC's names")]
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// Frame flags. The meaning of a bit depends on the frame type.
pub mod flag {
    #![allow(missing_docs, reason = "the RFC's names")]
    pub const ACK: u8 = 0x1;
    pub const END_STREAM: u8 = 0x1;
    pub const END_HEADERS: u8 = 0x4;
    pub const PADDED: u8 = 0x8;
    pub const PRIORITY: u8 = 0x20;
}

/// Error codes of RST_STREAM and GOAWAY (RFC 9113, section 7).
pub mod code {
    #![allow(missing_docs, reason = "the RFC's names")]
    pub const NO_ERROR: u32 = 0;
    pub const PROTOCOL_ERROR: u32 = 1;
    pub const INTERNAL_ERROR: u32 = 2;
    pub const FLOW_CONTROL_ERROR: u32 = 3;
    pub const FRAME_SIZE_ERROR: u32 = 6;
    pub const REFUSED_STREAM: u32 = 7;
    pub const CANCEL: u32 = 8;
    pub const COMPRESSION_ERROR: u32 = 9;
    pub const ENHANCE_YOUR_CALM: u32 = 11;
}

/// Setting identifiers (RFC 9113, section 6.5.2).
pub mod setting {
    #![allow(missing_docs, reason = "the RFC's names")]
    pub const HEADER_TABLE_SIZE: u16 = 1;
    pub const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
    pub const MAX_FRAME_SIZE: u16 = 5;
    pub const MAX_HEADER_LIST_SIZE: u16 = 6;
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEAD: usize = 9;
/// Default maximum frame size and default initial window.
const MAX_FRAME: usize = 16_384;
const WINDOW: u32 = 65_535;

/// One frame, as on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Frame type: one of [`kind`], or any other.
    pub kind: u8,
    /// Frame flags: bits of [`flag`].
    pub flags: u8,
    /// Stream id; 0 for the connection.
    pub stream: u32,
    /// Payload of the frame, including padding.
    pub payload: Bytes,
}

impl Frame {
    /// Creates a frame without any validation.
    pub fn new(kind: u8, flags: u8, stream: u32, payload: impl Into<Bytes>) -> Self {
        Self { kind, flags, stream, payload: payload.into() }
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the 32-bit number at the start of the payload.
    fn number(&self) -> u32 {
        self.payload.clone().try_get_u32().unwrap_or_default()
    }

    /// Returns the payload of DATA or HEADERS without padding and priority; `None` if malformed.
    fn content(&self) -> Option<&[u8]> {
        let mut content = &self.payload[..];
        if self.has(flag::PADDED) {
            let (padding, rest) = content.split_first()?;
            content = rest.get(..rest.len().checked_sub(usize::from(*padding))?)?;
        }
        if self.kind == kind::HEADERS && self.has(flag::PRIORITY) {
            content = content.get(5..)?;
        }
        Some(content)
    }

    /// Removes the first frame from the input, if it is complete.
    fn decode(inbox: &mut BytesMut) -> Option<Self> {
        let mut head = inbox.get(..FRAME_HEAD)?;
        let length = usize::try_from(head.get_uint(3)).ok()?;
        let (kind, flags, stream) = (head.get_u8(), head.get_u8(), head.get_u32() & (u32::MAX >> 1));
        if inbox.len() < FRAME_HEAD + length {
            return None;
        }
        inbox.advance(FRAME_HEAD);
        Some(Self { kind, flags, stream, payload: inbox.split_to(length).freeze() })
    }
}

/// Encodes a header block of literals without indexing (RFC 7541, section 6.2.2).
pub fn block(fields: &[(impl AsRef<[u8]>, impl AsRef<[u8]>)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name.as_ref(), value.as_ref()] {
            put_length(&mut block, text.len());
            block.extend_from_slice(text);
        }
    }
    block
}

/// Encodes an integer with a 7-bit prefix (RFC 7541, section 5.1). The eighth bit is 0: no Huffman coding.
fn put_length(out: &mut Vec<u8>, length: usize) {
    if length < 127 {
        out.push(length as u8);
        return;
    }
    out.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        out.push((rest % 128) as u8 | 128);
        rest /= 128;
    }
    out.push(rest as u8);
}

fn put(out: &mut BytesMut, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.put_uint(payload.len() as u64, 3);
    out.put_u8(kind);
    out.put_u8(flags);
    out.put_u32(stream);
    out.put_slice(payload);
}

/// Writes HEADERS, followed by as many CONTINUATION frames as needed.
fn put_block(out: &mut BytesMut, stream: u32, end: u8, block: &[u8]) {
    let mut parts = block.chunks(MAX_FRAME).peekable();
    let (mut kind, mut flags) = (kind::HEADERS, end);
    loop {
        let part = parts.next().unwrap_or_default();
        if parts.peek().is_none() {
            return put(out, kind, flags | flag::END_HEADERS, stream, part);
        }
        put(out, kind, flags, stream, part);
        (kind, flags) = (kind::CONTINUATION, 0);
    }
}

fn put_headers(out: &mut BytesMut, stream: u32, more: &[(&str, &str)]) {
    put_block(out, stream, 0, &[block(&RESPONSE), block(more)].concat());
}

const RESPONSE: [(&str, &str); 2] = [(":status", "200"), ("content-type", "application/grpc")];

/// Writes one uncompressed gRPC message, without END_STREAM.
fn put_message(out: &mut BytesMut, stream: u32, message: &[u8]) {
    let mut body = Vec::with_capacity(message.len() + 5);
    body.put_u8(0);
    body.put_u32(message.len() as u32);
    body.put_slice(message);
    for part in body.chunks(MAX_FRAME) {
        put(out, kind::DATA, 0, stream, part);
    }
}

fn put_trailers(out: &mut BytesMut, stream: u32, status: u32, more: &[(&str, &str)]) {
    let status = block(&[("grpc-status", status.to_string())]);
    put_block(out, stream, flag::END_STREAM, &[status, block(more)].concat());
}

fn put_go_away(out: &mut BytesMut, last_stream: u32, code: u32, debug: &[u8]) {
    let payload = [&last_stream.to_be_bytes(), &code.to_be_bytes(), debug].concat();
    put(out, kind::GOAWAY, 0, 0, &payload);
}

fn put_settings(out: &mut BytesMut, settings: &[(u16, u32)]) {
    let mut payload = Vec::new();
    for (id, value) in settings {
        payload.put_u16(*id);
        payload.put_u32(*value);
    }
    put(out, kind::SETTINGS, 0, 0, &payload);
}

/// Request whose stream the client has half-closed.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Stream id of the request.
    pub stream: u32,
    /// Header block, in HPACK.
    pub headers: Vec<u8>,
    /// Concatenated payloads of the DATA frames.
    pub body: Vec<u8>,
}

impl Request {
    /// Returns the body without the prefix of its first gRPC message. For a single message that is the
    /// message.
    pub fn message(&self) -> &[u8] {
        self.body.get(5..).unwrap_or_default()
    }
}

/// Protocol state of one connection, without the socket.
#[derive(Default)]
struct Session {
    inbox: BytesMut,
    outbox: BytesMut,
    mute_pings: bool,
    /// True once the client's SETTINGS have arrived.
    greeted: bool,
    open: HashMap<u32, Request>,
    /// Stream with an incomplete header block, and the END_STREAM flag of its HEADERS.
    unfinished: Option<(u32, bool)>,
    requests: VecDeque<Request>,
    resets: Vec<(u32, u32)>,
    pongs: u64,
    farewell: Option<u32>,
    /// Bytes of DATA received without a WINDOW_UPDATE of the connection.
    consumed: u32,
    /// Connection window for sending: WINDOW_UPDATE increases it, DATA reduces it.
    credit: u64,
}

impl Session {
    /// Processes a frame, and queues the frames that it requires in response.
    fn absorb(&mut self, frame: &Frame) {
        match frame.kind {
            kind::SETTINGS if !frame.has(flag::ACK) => {
                self.greeted = true;
                put(&mut self.outbox, kind::SETTINGS, flag::ACK, 0, &[]);
            }
            kind::PING if frame.has(flag::ACK) => self.pongs += 1,
            kind::PING if !self.mute_pings => {
                put(&mut self.outbox, kind::PING, flag::ACK, 0, &frame.payload);
            }
            kind::HEADERS => {
                self.unfinished = Some((frame.stream, frame.has(flag::END_STREAM)));
                self.absorb_block(frame);
            }
            kind::CONTINUATION => self.absorb_block(frame),
            kind::DATA => self.absorb_data(frame),
            kind::RST_STREAM => {
                self.open.remove(&frame.stream);
                self.resets.push((frame.stream, frame.number()));
            }
            kind::GOAWAY => {
                let code = frame.payload.get(4..).and_then(|mut rest| rest.try_get_u32().ok());
                self.farewell = code;
            }
            kind::WINDOW_UPDATE if frame.stream == 0 => self.credit += u64::from(frame.number()),
            _ => {}
        }
    }

    fn absorb_block(&mut self, frame: &Frame) {
        let Some((stream, ends)) = self.unfinished else { return };
        let content = if frame.kind == kind::HEADERS { frame.content() } else { Some(&frame.payload[..]) };
        let request = self.open.entry(stream).or_insert_with(|| Request { stream, ..Request::default() });
        request.headers.extend_from_slice(content.unwrap_or_default());
        if frame.has(flag::END_HEADERS) {
            self.unfinished = None;
            if ends {
                self.end(stream);
            }
        }
    }

    fn absorb_data(&mut self, frame: &Frame) {
        self.consumed += frame.payload.len() as u32;
        if self.consumed >= WINDOW / 4 {
            put(&mut self.outbox, kind::WINDOW_UPDATE, 0, 0, &self.consumed.to_be_bytes());
            self.consumed = 0;
        }
        if let Some(request) = self.open.get_mut(&frame.stream) {
            request.body.extend_from_slice(frame.content().unwrap_or_default());
        }
        if frame.has(flag::END_STREAM) {
            self.end(frame.stream);
        } else if !frame.payload.is_empty() {
            let more = (frame.payload.len() as u32).to_be_bytes();
            put(&mut self.outbox, kind::WINDOW_UPDATE, 0, frame.stream, &more);
        }
    }

    fn end(&mut self, stream: u32) {
        self.requests.extend(self.open.remove(&stream));
    }

    /// Reads into the input buffer. Returns false at the end. The buffer of an idle connection is freed.
    async fn read(&mut self, io: &mut (impl AsyncRead + Unpin)) -> io::Result<bool> {
        if self.inbox.is_empty() {
            self.inbox = BytesMut::new();
        }
        // The buffer is on the stack of the poll, so that a waiting connection holds no memory for it.
        poll_fn(|cx| {
            let mut bytes = [0; 4096];
            let mut buffer = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut *io).poll_read(cx, &mut buffer))?;
            self.inbox.extend_from_slice(buffer.filled());
            Poll::Ready(Ok(!buffer.filled().is_empty()))
        })
        .await
    }

    async fn flush(&mut self, io: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        io.write_all_buf(&mut self.outbox).await
    }

    /// Removes the client's connection preface from the input.
    async fn read_preface(&mut self, io: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
        while self.inbox.len() < PREFACE.len() {
            if !self.read(io).await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        if !self.inbox.starts_with(PREFACE) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.inbox.advance(PREFACE.len());
        Ok(())
    }
}

/// Server that a test drives manually.
pub struct Peer {
    listener: TcpListener,
}

impl Peer {
    /// Listens on a free port of 127.0.0.1.
    pub async fn bind() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        Self { listener: listener.expect("loopback has a free port") }
    }

    /// Returns the listening address.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("a listener has an address")
    }

    /// Accepts the next connection and reads its preface, without sending anything. A connection without a
    /// valid preface is dropped.
    pub async fn accept(&self) -> Conn {
        loop {
            let (mut io, _) = self.listener.accept().await.expect("a test has descriptors to spare");
            let mut session = Session::default();
            if io.set_nodelay(true).is_ok() && session.read_preface(&mut io).await.is_ok() {
                return Conn { io, session };
            }
        }
    }
}

/// Connection under manual control. All waits are cancel-safe.
///
/// Writes fail if the client has closed. Every method that reads, except [`next_frame`](Conn::next_frame),
/// acknowledges SETTINGS and PING and sends WINDOW_UPDATE.
pub struct Conn {
    io: TcpStream,
    session: Session,
}

impl Conn {
    /// Returns the next frame without any reply. Returns `None` when the client has closed.
    pub async fn next_frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = Frame::decode(&mut self.session.inbox) {
                return Some(frame);
            }
            if !self.session.read(&mut self.io).await.unwrap_or_default() {
                return None;
            }
        }
    }

    /// Returns the next complete request. Requests may be interleaved. Returns `None` when the client has
    /// closed.
    pub async fn next_request(&mut self) -> Option<Request> {
        loop {
            if let Some(request) = self.session.requests.pop_front() {
                return Some(request);
            }
            self.absorb().await.ok()?;
        }
    }

    /// Sends empty SETTINGS, waits for the client's and acknowledges them.
    pub async fn handshake(&mut self) -> io::Result<()> {
        self.settings(&[]).await?;
        while !self.session.greeted {
            self.absorb().await?;
        }
        Ok(())
    }

    /// Stops acknowledging PINGs, so that the client's keepalive fails.
    pub fn mute_pings(&mut self) {
        self.session.mute_pings = true;
    }

    /// Returns the streams that the client has reset so far, with their error codes.
    pub fn resets(&self) -> &[(u32, u32)] {
        &self.session.resets
    }

    /// Sends a SETTINGS frame.
    pub async fn settings(&mut self, settings: &[(u16, u32)]) -> io::Result<()> {
        put_settings(&mut self.session.outbox, settings);
        self.flush().await
    }

    /// Sends a response with one message and a status.
    pub async fn respond(&mut self, stream: u32, message: &[u8], grpc_status: u32) -> io::Result<()> {
        put_headers(&mut self.session.outbox, stream, &[]);
        put_message(&mut self.session.outbox, stream, message);
        put_trailers(&mut self.session.outbox, stream, grpc_status, &[]);
        self.flush().await
    }

    /// Sends response headers: status 200, gRPC's content type, and these.
    pub async fn respond_headers(&mut self, stream: u32, more: &[(&str, &str)]) -> io::Result<()> {
        put_headers(&mut self.session.outbox, stream, more);
        self.flush().await
    }

    /// Sends one message of a response.
    pub async fn respond_data(&mut self, stream: u32, message: &[u8]) -> io::Result<()> {
        put_message(&mut self.session.outbox, stream, message);
        self.flush().await
    }

    /// Ends a response with a status and these trailers.
    pub async fn respond_trailers(
        &mut self,
        stream: u32,
        grpc_status: u32,
        more: &[(&str, &str)],
    ) -> io::Result<()> {
        put_trailers(&mut self.session.outbox, stream, grpc_status, more);
        self.flush().await
    }

    /// Sends GOAWAY. The connection stays open; [`hang_up`](Self::hang_up) closes it.
    pub async fn go_away(&mut self, last_stream: u32, code: u32, debug: &[u8]) -> io::Result<()> {
        put_go_away(&mut self.session.outbox, last_stream, code, debug);
        self.flush().await
    }

    /// Sends a RST_STREAM frame.
    pub async fn reset(&mut self, stream: u32, code: u32) -> io::Result<()> {
        put(&mut self.session.outbox, kind::RST_STREAM, 0, stream, &code.to_be_bytes());
        self.flush().await
    }

    /// Sends PING and waits for its acknowledgement. The client has then read everything sent before.
    pub async fn ping(&mut self) -> io::Result<()> {
        let before = self.session.pongs;
        put(&mut self.session.outbox, kind::PING, 0, 0, b"evenkeel");
        while self.session.pongs == before {
            self.absorb().await?;
        }
        Ok(())
    }

    /// Sends this frame unchanged.
    pub async fn send(&mut self, frame: Frame) -> io::Result<()> {
        put(&mut self.session.outbox, frame.kind, frame.flags, frame.stream, &frame.payload);
        self.flush().await
    }

    /// Sends raw bytes that need not be frames.
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.session.outbox.put_slice(bytes);
        self.flush().await
    }

    /// Waits until the client closes the connection. Returns the error code of its GOAWAY, if any.
    pub async fn closed(&mut self) -> Option<u32> {
        while self.absorb().await.is_ok() {}
        self.session.farewell
    }

    /// Closes the connection (FIN).
    pub async fn hang_up(mut self) {
        let _ = self.flush().await;
        close(self.io);
    }

    /// Resets the connection (RST).
    pub fn abort(self) {
        reset(self.io);
    }

    /// Reads and processes one frame. Pending output is flushed first, so that the client does not wait for
    /// it.
    async fn absorb(&mut self) -> io::Result<()> {
        self.flush().await?;
        let frame = self.next_frame().await.ok_or(io::ErrorKind::UnexpectedEof)?;
        self.session.absorb(&frame);
        self.flush().await
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.session.flush(&mut self.io).await
    }
}
