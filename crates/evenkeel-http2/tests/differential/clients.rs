//! The two clients over a scripted byte stream, and the outcome of their calls.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use evenkeel_http2::{Error, Http2Settings, RecvStream, SendStream, client};
use http::HeaderMap;

use super::memory_io::{MemoryIo, request};

/// Both clients announce these.
pub(crate) const STREAM_WINDOW: u32 = 20_000;
pub(crate) const CONNECTION_WINDOW: u32 = 65_535;
pub(crate) const MAX_HEADER_LIST: u32 = 16 << 10;

/// Polls without any effect after which a client is taken to wait for the server.
const IDLE_POLLS: usize = 3;

/// Bytes of a server, and the points at which a read ends.
#[derive(Clone, Debug)]
pub(crate) struct ServerScript {
    pub(crate) bytes: Vec<u8>,
    /// Positions in `bytes` in ascending order. Calls read their responses at each of them.
    pub(crate) cuts: Vec<usize>,
    /// Reads response bodies at every cut; otherwise only at the end, when all data waits unread.
    pub(crate) reads_early: bool,
    pub(crate) calls: Vec<RequestBody>,
}

/// Body of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestBody {
    /// END_STREAM is on the HEADERS frame.
    Absent,
    /// Ten bytes with END_STREAM.
    Sent,
    /// Ten bytes, and the stream stays open on our side.
    Open,
}

/// Outcome of one call.
#[derive(Debug, PartialEq)]
pub(crate) struct CallOutcome {
    pub(crate) head: Option<(u16, HeaderMap)>,
    pub(crate) body: Vec<u8>,
    pub(crate) end: CallEnd,
}

/// End of one call. Numbers are codes of RFC 9113, section 7.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CallEnd {
    /// The response is complete, with these trailers.
    Complete(Option<HeaderMap>),
    /// The server reset the stream.
    PeerReset(u32),
    /// The client reset the stream because of an error in it.
    StreamError(u32),
    /// The client closed the connection because of an error.
    ConnectionError(u32),
    /// The server sent GOAWAY and did not process the stream.
    GoAway(u32),
    /// The byte stream ended.
    Closed,
}

/// One of the two clients.
trait ScriptedClient {
    /// Moves bytes. Returns true once the connection has ended.
    fn poll_connection(&mut self, cx: &mut Context<'_>) -> bool;

    /// Reads of a call's response, and fills in its outcome when it ends.
    fn poll_call(&mut self, index: usize, call: &mut PartialOutcome, reads: bool, cx: &mut Context<'_>);
}

#[derive(Debug, Default)]
struct PartialOutcome {
    head: Option<(u16, HeaderMap)>,
    body: Vec<u8>,
    has_body: bool,
    end: Option<CallEnd>,
}

/// Runs a script with a client until the byte stream has ended.
fn run(script: &ServerScript, io: &MemoryIo, mut client: impl ScriptedClient) -> Vec<CallOutcome> {
    let mut cx = Context::from_waker(Waker::noop());
    let mut calls: Vec<PartialOutcome> = script.calls.iter().map(|_| PartialOutcome::default()).collect();
    settle(io, &mut client, &mut cx);
    for &cut in script.cuts.iter().chain([&script.bytes.len()]) {
        io.state().limit = cut;
        if !settle(io, &mut client, &mut cx) {
            for (index, call) in calls.iter_mut().enumerate() {
                client.poll_call(index, call, script.reads_early, &mut cx);
            }
        }
    }
    io.state().is_ended = true;
    // Reading may return window, and the peer is told; then the end of the byte stream is seen.
    settle(io, &mut client, &mut cx);
    for (index, call) in calls.iter_mut().enumerate() {
        client.poll_call(index, call, true, &mut cx);
    }
    let outcome = |call: PartialOutcome| CallOutcome {
        head: call.head,
        body: call.body,
        end: call.end.expect("every call ends when the byte stream has ended"),
    };
    calls.into_iter().map(outcome).collect()
}

/// Polls the connection until nothing moves any more. Returns true once it has ended.
fn settle(io: &MemoryIo, client: &mut impl ScriptedClient, cx: &mut Context<'_>) -> bool {
    let moved = || {
        let state = io.state();
        (state.read, state.written.len())
    };
    let mut idle = 0;
    while idle < IDLE_POLLS {
        let before = moved();
        if client.poll_connection(cx) {
            return true;
        }
        idle = if moved() == before { idle + 1 } else { 0 };
    }
    false
}

/// Creates the byte stream of a script, of which nothing can be read yet.
fn server_io(script: &ServerScript) -> MemoryIo {
    let io = MemoryIo::new(&script.bytes);
    io.state().limit = 0;
    io
}

/// Runs a script with our client.
pub(crate) fn run_ours(script: &ServerScript) -> Vec<CallOutcome> {
    let io = server_io(script);
    let (sender, driver) = client(Http2Settings {
        stream_window: STREAM_WINDOW,
        connection_window: CONNECTION_WINDOW,
        max_header_list_size: MAX_HEADER_LIST,
        ..Http2Settings::default()
    });
    let headers = HeaderMap::new();
    let mut streams = Vec::new();
    for body in &script.calls {
        let request = request(&headers, *body == RequestBody::Absent);
        let (mut send, recv) = sender.send(&request).expect("the connection is new");
        if *body != RequestBody::Absent {
            send.send(Bytes::from_static(&[7; 10]), *body == RequestBody::Sent).expect("the stream is open");
        }
        streams.push((send, recv));
    }
    let client = OurClient { driver, io: io.clone(), streams, is_ended: false };
    let outcomes = run(script, &io, client);
    drop(sender);
    outcomes
}

struct OurClient {
    driver: evenkeel_http2::ConnectionDriver,
    io: MemoryIo,
    streams: Vec<(SendStream, RecvStream)>,
    is_ended: bool,
}

impl ScriptedClient for OurClient {
    fn poll_connection(&mut self, cx: &mut Context<'_>) -> bool {
        self.is_ended = self.is_ended || self.driver.poll(&mut self.io, cx).is_ready();
        self.is_ended
    }

    fn poll_call(&mut self, index: usize, call: &mut PartialOutcome, reads: bool, cx: &mut Context<'_>) {
        let recv = &mut self.streams[index].1;
        if call.end.is_some() {
            return;
        }
        if call.head.is_none() {
            match recv.poll_head(cx) {
                Poll::Ready(Ok(head)) => call.head = Some((head.status.as_u16(), head.headers)),
                Poll::Ready(Err(error)) => call.end = Some(our_end(&error)),
                Poll::Pending => {}
            }
        }
        while reads && call.head.is_some() && !call.has_body && call.end.is_none() {
            match recv.poll_data(cx) {
                Poll::Ready(Some(Ok(data))) => call.body.extend_from_slice(&data),
                Poll::Ready(Some(Err(error))) => call.end = Some(our_end(&error)),
                Poll::Ready(None) => call.has_body = true,
                Poll::Pending => return,
            }
        }
        if call.has_body && call.end.is_none() {
            match recv.poll_trailers(cx) {
                Poll::Ready(Ok(trailers)) => call.end = Some(CallEnd::Complete(trailers)),
                Poll::Ready(Err(error)) => call.end = Some(our_end(&error)),
                Poll::Pending => {}
            }
        }
    }
}

fn our_end(error: &Error) -> CallEnd {
    match error {
        Error::Reset(reason) => CallEnd::PeerReset((*reason).into()),
        Error::StreamError(reason) => CallEnd::StreamError((*reason).into()),
        Error::ConnectionError(reason) => CallEnd::ConnectionError((*reason).into()),
        Error::GoAway(reason, _) => CallEnd::GoAway((*reason).into()),
        Error::Closed | Error::Io(_) => CallEnd::Closed,
        _ => panic!("not an end of a call: {error}"),
    }
}

/// Runs a script with h2's client.
pub(crate) fn run_h2(script: &ServerScript) -> Vec<CallOutcome> {
    let io = server_io(script);
    let mut builder = h2::client::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(MAX_HEADER_LIST)
        .enable_push(false);
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(handshake) = pin!(builder.handshake::<_, Bytes>(io.clone())).poll(&mut cx) else {
        panic!("the handshake of h2 does not wait for the server");
    };
    let (mut sender, connection) = handshake.expect("nothing was read");
    let mut streams = Vec::new();
    for body in &script.calls {
        let request = http::Request::post("http://a/s/m").body(()).expect("a request");
        let (response, mut send) =
            sender.send_request(request, *body == RequestBody::Absent).expect("the connection is new");
        if *body != RequestBody::Absent {
            send.send_data(Bytes::from_static(&[7; 10]), *body == RequestBody::Sent)
                .expect("the stream is open");
        }
        streams.push(H2Stream { response, recv: None, _send: send });
    }
    let client = H2Client { connection, streams, is_ended: false };
    let outcomes = run(script, &io, client);
    drop(sender);
    outcomes
}

struct H2Client {
    connection: h2::client::Connection<MemoryIo, Bytes>,
    streams: Vec<H2Stream>,
    is_ended: bool,
}

struct H2Stream {
    response: h2::client::ResponseFuture,
    recv: Option<h2::RecvStream>,
    _send: h2::SendStream<Bytes>,
}

impl ScriptedClient for H2Client {
    fn poll_connection(&mut self, cx: &mut Context<'_>) -> bool {
        self.is_ended = self.is_ended || Pin::new(&mut self.connection).poll(cx).is_ready();
        self.is_ended
    }

    fn poll_call(&mut self, index: usize, call: &mut PartialOutcome, reads: bool, cx: &mut Context<'_>) {
        let stream = &mut self.streams[index];
        if call.end.is_some() {
            return;
        }
        if stream.recv.is_none() {
            match Pin::new(&mut stream.response).poll(cx) {
                Poll::Ready(Ok(response)) => {
                    let (parts, recv) = response.into_parts();
                    call.head = Some((parts.status.as_u16(), parts.headers));
                    stream.recv = Some(recv);
                }
                Poll::Ready(Err(error)) => call.end = Some(h2_end(&error)),
                Poll::Pending => {}
            }
        }
        let Some(recv) = &mut stream.recv else { return };
        while reads && !call.has_body && call.end.is_none() {
            match recv.poll_data(cx) {
                Poll::Ready(Some(Ok(data))) => {
                    call.body.extend_from_slice(&data);
                    // Fails once the stream has ended, when no window is needed.
                    let _ = recv.flow_control().release_capacity(data.len());
                }
                Poll::Ready(Some(Err(error))) => call.end = Some(h2_end(&error)),
                Poll::Ready(None) => call.has_body = true,
                Poll::Pending => return,
            }
        }
        if call.has_body && call.end.is_none() {
            match recv.poll_trailers(cx) {
                Poll::Ready(Ok(trailers)) => call.end = Some(CallEnd::Complete(trailers)),
                Poll::Ready(Err(error)) => call.end = Some(h2_end(&error)),
                Poll::Pending => {}
            }
        }
    }
}

fn h2_end(error: &h2::Error) -> CallEnd {
    let code = error.reason().map(u32::from);
    match code {
        None => CallEnd::Closed,
        Some(code) if error.is_reset() && error.is_remote() => CallEnd::PeerReset(code),
        Some(code) if error.is_reset() => CallEnd::StreamError(code),
        Some(code) if error.is_remote() => CallEnd::GoAway(code),
        Some(code) => CallEnd::ConnectionError(code),
    }
}
