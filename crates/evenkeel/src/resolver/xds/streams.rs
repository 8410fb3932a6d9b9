//! Streams to control planes: gRPC over HTTP/2, one task each.
//!
//! A stream connects if needed, sends messages in order, and reads one message per [`StreamSet::read`]. So a slow
//! client applies flow control to the server. Events are reported as [`StreamEvent`]; a closed stream carries a
//! status with the cause. Streams to the same server share one connection, which is closed when no stream needs it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::mem;
use std::sync::{self, Arc};
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use evenkeel_core::{Address, Code, Status};
use evenkeel_proto::prost::Message;
use evenkeel_xds::ads;
use evenkeel_xds::bootstrap::{ChannelCredentials, ServerConfig};
use evenkeel_xds::lrs;
use http::{HeaderMap, HeaderValue, Method, header};
use tokio::sync::{Mutex, mpsc};
use tokio::task::{self, AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use super::lock;
use super::worker::WorkerEvent;
use crate::call::status;
use crate::credentials::Credentials;
use crate::resolver::dns;
use crate::resolver::target::{ChannelTarget, TargetKind};
use crate::text::quoted;
use crate::transport::connection::{self, Connection, Http2Config};
use crate::transport::http2::{Error, HttpRecvStream, HttpSendStream, RequestHeaders, ResponseHeaders};
use crate::transport::{self, Connector};

/// Delay between connection attempts to the addresses of a server (Happy Eyeballs, RFC 8305).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Minimum time between two lookups of a control plane's name.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of messages that wait to be sent. Load reports are periodic, even if the server does not read.
const MAX_WAITING: usize = 8;

/// Maximum time for a server to end a stream that the client has finished.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

const USER_AGENT: &str = concat!("evenkeel/", env!("CARGO_PKG_VERSION"));

/// Length of a gRPC message's prefix: the compressed flag and the message length.
const PREFIX: usize = 5;

/// Identifies a stream of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StreamKey {
    /// Stream of the Aggregated Discovery Service (ADS).
    Resources(ads::AdsStreamId),
    /// Stream of the Load Reporting Service (LRS).
    Load(lrs::LrsStreamId),
}

/// Event of a stream.
#[derive(Debug)]
pub(super) enum StreamEvent {
    /// The stream was opened and accepts messages.
    Opened,
    /// HTTP/2 took one message for sending.
    Written,
    /// A message was received in response to a [`StreamSet::read`].
    Message(Bytes),
    /// The server sent something that is not a valid gRPC message, described by this text. The stream is closed.
    InvalidMessage(String),
    /// The stream ended or could not be opened.
    Closed(Status),
}

/// Encodes a message with its gRPC prefix.
pub(super) fn encode_frame(message: &impl Message) -> Bytes {
    let len = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + len);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(len).expect("a request has names and counts, far below 4 GiB"));
    message.encode(&mut bytes).expect("there is room for all of it");
    bytes.freeze()
}

/// All streams, and their connections.
pub(super) struct StreamSet {
    dialer: Arc<XdsDialer>,
    response_bytes: usize,
    open: BTreeMap<StreamKey, StreamHandle>,
    links: BTreeMap<Arc<ServerConfig>, Arc<ServerConnection>>,
    events: mpsc::UnboundedSender<WorkerEvent>,
    ended: mpsc::Receiver<Infallible>,
}

struct StreamHandle {
    server: Arc<ServerConfig>,
    writes: mpsc::UnboundedSender<Bytes>,
    reads: mpsc::UnboundedSender<()>,
    task: AbortHandle,
    is_open: bool,
    /// Number of messages that HTTP/2 has not taken yet.
    waiting: usize,
}

impl StreamSet {
    /// Returns an empty set. `response_bytes` is the maximum size of a received message.
    pub(super) fn new(
        dialer: XdsDialer,
        response_bytes: usize,
        events: mpsc::UnboundedSender<WorkerEvent>,
    ) -> StreamSet {
        let (alive, ended) = mpsc::channel(1);
        let dialer = Arc::new(XdsDialer { alive: Some(alive), ..dialer });
        StreamSet { dialer, response_bytes, open: BTreeMap::new(), links: BTreeMap::new(), events, ended }
    }

    /// Starts a stream. It fails if opening takes longer than `connect_timeout`.
    pub(super) fn open(
        &mut self,
        key: StreamKey,
        server: Arc<ServerConfig>,
        method: &'static str,
        connect_timeout: Option<Duration>,
    ) {
        tracing::debug!(server = &*server.uri, method, ?key, "opening xDS stream");
        let link = self
            .links
            .entry(server.clone())
            .or_insert_with(|| Arc::new(ServerConnection::new(server.clone())));
        let (writes, to_write) = mpsc::unbounded_channel();
        let (reads, to_read) = mpsc::unbounded_channel();
        let stream = StreamTask {
            dialer: self.dialer.clone(),
            link: link.clone(),
            method,
            response_bytes: self.response_bytes,
            to_write,
            to_read,
            event_sender: StreamEventSender { key, events: self.events.clone() },
        };
        let task = tokio::spawn(stream.run(connect_timeout)).abort_handle();
        self.open.insert(key, StreamHandle { server, writes, reads, task, is_open: false, waiting: 0 });
    }

    /// Updates the state of a stream. Must be called with each event before the client handles it.
    pub(super) fn record(&mut self, key: StreamKey, event: &StreamEvent) {
        let Some(stream) = self.open.get_mut(&key) else { return };
        let server = &*stream.server.uri;
        match event {
            StreamEvent::Opened => stream.is_open = true,
            StreamEvent::Written => stream.waiting = stream.waiting.saturating_sub(1),
            StreamEvent::Message(bytes) => tracing::debug!(server, ?key, bytes = bytes.len(), "xDS response"),
            StreamEvent::InvalidMessage(_) | StreamEvent::Closed(_) => {
                tracing::debug!(server, ?key, ?event, "xDS stream ended");
                self.open.remove(&key);
            }
        }
    }

    /// Queues a message behind the earlier ones.
    pub(super) fn send(&mut self, key: StreamKey, message: Bytes) {
        let Some(stream) = self.open.get_mut(&key) else { return };
        stream.waiting += 1;
        if stream.waiting > MAX_WAITING {
            stream.task.abort();
            let text = format!("the server does not read: {MAX_WAITING} messages wait to be sent");
            let closed = StreamEvent::Closed(Status::new(Code::ResourceExhausted, text));
            let _ = self.events.send(WorkerEvent::StreamEvent(key, closed));
            return;
        }
        // If the stream has just ended, its `Closed` event is in the queue.
        let _ = stream.writes.send(message);
    }

    /// Requests the next message of a stream.
    pub(super) fn read(&mut self, key: StreamKey) {
        if let Some(stream) = self.open.get(&key) {
            let _ = stream.reads.send(());
        }
    }

    /// Cancels a stream at once. No further event is reported for it.
    pub(super) fn cancel(&mut self, key: StreamKey) {
        if let Some(stream) = self.open.remove(&key) {
            tracing::debug!(server = &*stream.server.uri, ?key, "xDS stream closed");
            stream.task.abort();
        }
    }

    /// Finishes a stream after its queued messages; cancels it if it is not open yet.
    pub(super) fn finish(&mut self, key: StreamKey) {
        if self.open.get(&key).is_some_and(|stream| !stream.is_open) {
            return self.cancel(key);
        }
        // Dropping the senders makes the task finish the stream.
        self.open.remove(&key);
    }

    /// Drops connections that no stream uses.
    pub(super) fn drop_unused(&mut self) {
        self.links.retain(|server, _| self.open.values().any(|stream| stream.server == *server));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Drops all streams and waits until their tasks have ended.
    pub(super) async fn closed(mut self) {
        // Every task holds a clone of the dialer's sender; `recv` returns once the last one is dropped.
        drop((self.dialer, self.links, self.open));
        let _ = self.ended.recv().await;
    }
}

/// State of one stream's task.
struct StreamTask {
    dialer: Arc<XdsDialer>,
    link: Arc<ServerConnection>,
    method: &'static str,
    response_bytes: usize,
    to_write: mpsc::UnboundedReceiver<Bytes>,
    to_read: mpsc::UnboundedReceiver<()>,
    event_sender: StreamEventSender,
}

#[derive(Clone)]
struct StreamEventSender {
    key: StreamKey,
    events: mpsc::UnboundedSender<WorkerEvent>,
}

impl StreamEventSender {
    fn send(&self, event: StreamEvent) {
        // The client has ended if no receiver is left.
        let _ = self.events.send(WorkerEvent::StreamEvent(self.key, event));
    }
}

/// An open stream, before its response headers.
struct OpenedStream {
    connection: Arc<Connection>,
    send: HttpSendStream,
    response: HttpRecvStream,
}

impl StreamTask {
    async fn run(self, connect_timeout: Option<Duration>) {
        let event_sender = self.event_sender.clone();
        let opened = self.link.open(&self.dialer, self.method);
        let opened = match connect_timeout {
            None => opened.await,
            Some(connect_timeout) => timeout(connect_timeout, opened).await.unwrap_or_else(|_| {
                Err(Status::unavailable(format!("did not accept a connection within {connect_timeout:?}")))
            }),
        };
        let end = match opened {
            Err(status) => StreamEvent::Closed(status),
            Ok(call) => {
                event_sender.send(StreamEvent::Opened);
                self.exchange(call).await
            }
        };
        event_sender.send(end);
    }

    /// Sends and receives until the stream ends. Returns its last event.
    async fn exchange(self, OpenedStream { connection, mut send, response }: OpenedStream) -> StreamEvent {
        let StreamTask { mut to_write, to_read, event_sender, response_bytes, dialer: _dialer, .. } = self;
        let written = async {
            while let Some(message) = to_write.recv().await {
                match write(&mut send, message).await {
                    Some(()) => event_sender.send(StreamEvent::Written),
                    // The reading half reports the reason.
                    None => return pending().await,
                }
            }
            send.send(Bytes::new(), true);
            pending::<Infallible>().await
        };
        tokio::select! {
            never = written => match never {},
            Err(end) = read(&connection, response, response_bytes, to_read, &event_sender) => end,
        }
    }
}

/// Passes a message to HTTP/2 once the flow-control window has room. Returns `None` if the stream takes no more data.
async fn write(send: &mut HttpSendStream, message: Bytes) -> Option<()> {
    poll_fn(|cx| send.poll_capacity(cx)).await?;
    send.send(message, false)
}

/// Reads one message per request, until the stream ends.
async fn read(
    connection: &Connection,
    mut body: HttpRecvStream,
    response_bytes: usize,
    mut to_read: mpsc::UnboundedReceiver<()>,
    event_sender: &StreamEventSender,
) -> Result<Infallible, StreamEvent> {
    let head = poll_fn(|cx| body.poll_head(cx)).await;
    let head = head.map_err(|error| StreamEvent::Closed(transport_error(connection, &error)))?;
    check_head(&head).map_err(StreamEvent::Closed)?;
    let mut messages = MessageReader { connection, body, buffer: BytesMut::new(), response_bytes };
    while to_read.recv().await.is_some() {
        event_sender.send(StreamEvent::Message(messages.next().await?));
    }
    // The senders are dropped: the client has finished the stream. Wait for the server's end, because messages may
    // still be in flight.
    let end = async {
        loop {
            messages.next().await?;
        }
    };
    let late = || StreamEvent::Closed(Status::new(Code::Cancelled, "the server did not end the stream"));
    timeout(CLOSE_TIMEOUT, end).await.unwrap_or_else(|_| Err(late()))
}

/// Checks that a response is a gRPC response without an error status.
fn check_head(head: &ResponseHeaders) -> Result<(), Status> {
    if let Some(status) = tonic::Status::from_header_map(&head.headers) {
        return Err(from_tonic(&status));
    }
    if head.status != http::StatusCode::OK {
        let text = format!("expected an answer of gRPC, found HTTP status {}", head.status.as_u16());
        return Err(Status::new(status::code_of_http(head.status), text));
    }
    let kind = head.headers.get(header::CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    if !kind.starts_with(b"application/grpc") {
        let kind = quoted(&String::from_utf8_lossy(kind));
        let text = format!("expected an answer of gRPC, found content-type {kind}");
        return Err(Status::new(Code::Unknown, text));
    }
    Ok(())
}

/// Converts the status that ended a stream.
fn from_tonic(status: &tonic::Status) -> Status {
    let code = status::code(status.code() as i32);
    match status.message() {
        "" => Status::new(code, "the server ended the stream"),
        message => Status::new(code, message),
    }
}

/// Returns the cause of a stream's failure: the connection's reason if it is closed, or else the stream's.
fn transport_error(connection: &Connection, error: &Error) -> Status {
    match connection.transport_state().disconnected() {
        Some(disconnect) if !matches!(error, Error::Reset(_)) => disconnect.status.clone(),
        _ => {
            let (address, cause) =
                (connection.transport_state().address(), connection::describe_error(error));
            Status::new(status::code_of_error(error), format!("stream to {address}: {cause}"))
        }
    }
}

/// Decoder of a stream's gRPC messages from DATA frames.
struct MessageReader<'a> {
    connection: &'a Connection,
    body: HttpRecvStream,
    buffer: BytesMut,
    response_bytes: usize,
}

impl MessageReader<'_> {
    async fn next(&mut self) -> Result<Bytes, StreamEvent> {
        loop {
            if let Some(message) =
                take(&mut self.buffer, self.response_bytes).map_err(StreamEvent::InvalidMessage)?
            {
                return Ok(message);
            }
            match poll_fn(|cx| self.body.poll_data(cx)).await {
                // The buffer grows by received data, never by the announced length.
                Some(Ok(data)) => self.buffer.extend_from_slice(&data),
                Some(Err(error)) => {
                    return Err(StreamEvent::Closed(transport_error(self.connection, &error)));
                }
                None => return Err(StreamEvent::Closed(self.end().await)),
            }
        }
    }

    async fn end(&mut self) -> Status {
        let status = match poll_fn(|cx| self.body.poll_trailers(cx)).await {
            Ok(trailers) => trailers.as_ref().and_then(tonic::Status::from_header_map),
            Err(error) => return transport_error(self.connection, &error),
        };
        match status {
            Some(status) if status.code() != tonic::Code::Ok => from_tonic(&status),
            _ if !self.buffer.is_empty() => {
                Status::new(Code::Internal, "the server ended the stream in the middle of a message")
            }
            Some(status) => from_tonic(&status),
            None => Status::new(Code::Internal, "the server ended the stream without a status"),
        }
    }
}

/// Removes the first message from the buffer if it is complete. An error states what the server sent.
fn take(buffer: &mut BytesMut, limit: usize) -> Result<Option<Bytes>, String> {
    let Some((prefix, _)) = buffer.split_first_chunk::<PREFIX>() else { return Ok(None) };
    let [compressed, len @ ..] = *prefix;
    if compressed != 0 {
        return Err("sent a compressed response, although we said that we take none".to_owned());
    }
    let len = u32::from_be_bytes(len) as usize;
    if len > limit {
        return Err(format!("sent a response of {len} bytes; at most {limit} are accepted"));
    }
    if buffer.len() < PREFIX + len {
        return Ok(None);
    }
    let mut message = mem::take(buffer);
    // Copy the start of the next message, so that it does not keep a large buffer alive.
    buffer.extend_from_slice(&message.split_off(PREFIX + len));
    message.advance(PREFIX);
    Ok(Some(message.freeze()))
}

/// Addresses of a name, and the time at which they were resolved.
#[derive(Clone)]
struct NameLookup {
    at: Instant,
    addresses: Vec<Address>,
}

/// Opens connections to control planes.
pub(super) struct XdsDialer {
    connector: Arc<dyn Connector>,
    http2: Http2Config,
    /// Lookups of control planes by host and port.
    resolved: sync::Mutex<BTreeMap<(String, u16), NameLookup>>,
    /// Held by every task, so that the end of all of them can be awaited.
    alive: Option<mpsc::Sender<Infallible>>,
}

impl XdsDialer {
    pub(super) fn new(connector: Arc<dyn Connector>, http2: Http2Config) -> XdsDialer {
        XdsDialer { connector, http2, resolved: sync::Mutex::default(), alive: None }
    }

    /// Returns the addresses of a control plane, from a lookup that is at most [`LOOKUP_INTERVAL`] old.
    ///
    /// While a control plane is down, a connection is attempted once per second. A lookup with each attempt would
    /// move the load of all clients to the DNS server.
    async fn resolve(&self, host: &str, port: u16) -> Result<Vec<Address>, Status> {
        let key = (host.to_owned(), port);
        let known = lock(&self.resolved).get(&key).cloned();
        if let Some(NameLookup { at, addresses }) = known
            && at.elapsed() < LOOKUP_INTERVAL
        {
            return Ok(addresses);
        }
        let addresses: Vec<Address> = dns::resolve(host, port).await?.into_iter().map(Address::Ip).collect();
        lock(&self.resolved).insert(key, NameLookup { at: Instant::now(), addresses: addresses.clone() });
        Ok(addresses)
    }
}

/// Connection shared by the streams to one server.
struct ServerConnection {
    server: Arc<ServerConfig>,
    /// Held while connecting: the other streams wait for the outcome.
    state: Mutex<ServerConnectionState>,
}

#[derive(Default)]
struct ServerConnectionState {
    credentials: Option<Credentials>,
    connection: Option<Arc<Connection>>,
}

impl ServerConnection {
    fn new(server: Arc<ServerConfig>) -> ServerConnection {
        ServerConnection { server, state: Mutex::default() }
    }

    async fn open(&self, dialer: &Arc<XdsDialer>, method: &'static str) -> Result<OpenedStream, Status> {
        let target = ChannelTarget::parse_server_uri(&self.server.uri);
        let target = target.map_err(|error| Status::unavailable(error.to_string()))?;
        let authority = target.authority().map_err(|error| Status::unavailable(error.to_string()))?;
        let connection = self.connection(dialer, &target).await?;
        let (send, response) = connection
            .sender()
            .send(&RequestHeaders {
                method: &Method::POST,
                is_https: self.server.credentials != ChannelCredentials::Insecure,
                authority: authority.as_str(),
                path: method,
                extra_headers: &[],
                headers: &HeaderMap::from_iter([
                    (header::CONTENT_TYPE, HeaderValue::from_static("application/grpc")),
                    (header::TE, HeaderValue::from_static("trailers")),
                    (header::USER_AGENT, HeaderValue::from_static(USER_AGENT)),
                ]),
                end_stream: false,
            })
            .map_err(|error| transport_error(&connection, &error))?;
        Ok(OpenedStream { connection, send, response })
    }

    /// Returns the open connection, or opens one. Concurrent streams wait for the same attempt.
    async fn connection(
        &self,
        dialer: &Arc<XdsDialer>,
        target: &ChannelTarget,
    ) -> Result<Arc<Connection>, Status> {
        let mut state = self.state.lock().await;
        if let Some(connection) = &state.connection
            && connection.transport_state().disconnected().is_none()
        {
            return Ok(connection.clone());
        }
        state.connection = None;
        let credentials = match &state.credentials {
            Some(credentials) => credentials.clone(),
            None => state.credentials.insert(self.credentials().await?).clone(),
        };
        let addresses = match target.kind() {
            TargetKind::Fixed(addresses) => addresses.clone(),
            TargetKind::Dns { host, port } => dialer.resolve(host, *port).await?,
            TargetKind::Xds { .. } => {
                return Err(Status::unavailable("a control plane cannot be found by xDS"));
            }
        };
        let connection = Arc::new(dial(dialer, addresses, &credentials, target.host()).await?);
        state.connection = Some(connection.clone());
        Ok(connection)
    }

    /// Reads the credentials' files on a blocking thread.
    async fn credentials(&self) -> Result<Credentials, Status> {
        let server = self.server.clone();
        let read = task::spawn_blocking(move || Credentials::for_xds_server(&server.credentials)).await;
        match read {
            Ok(Ok(credentials)) => Ok(credentials),
            Ok(Err(error)) => Err(Status::unavailable(error.to_string())),
            Err(_) => Err(Status::unavailable("the credentials could not be read: the client ends")),
        }
    }
}

/// Connects to the first address that accepts. Attempts start [`ATTEMPT_DELAY`] apart.
async fn dial(
    dialer: &Arc<XdsDialer>,
    addresses: Vec<Address>,
    credentials: &Credentials,
    host: &str,
) -> Result<Connection, Status> {
    let mut addresses = addresses.into_iter();
    let mut attempts = JoinSet::new();
    let mut failures = Vec::new();
    loop {
        if let Some(address) = addresses.next() {
            attempts.spawn(attempt(dialer.clone(), address, credentials.clone(), host.to_owned()));
        } else if attempts.is_empty() {
            return Err(Status::unavailable(failures.join("; ")));
        }
        tokio::select! {
            Some(ended) = attempts.join_next() => match ended {
                Ok(Ok((connection, task))) => {
                    let alive = dialer.alive.clone();
                    tokio::spawn(async move {
                        task.run(|disconnect| tracing::debug!(status = %disconnect.status, "xDS connection closed")).await;
                        drop(alive);
                    });
                    return Ok(connection);
                }
                Ok(Err(status)) => failures.push(status.message().to_owned()),
                Err(error) => failures.push(error.to_string()),
            },
            () = sleep(ATTEMPT_DELAY), if addresses.len() > 0 => {}
        }
    }
}

async fn attempt(
    dialer: Arc<XdsDialer>,
    address: Address,
    credentials: Credentials,
    host: String,
) -> Result<(Connection, connection::ConnectionTask), Status> {
    let io = transport::connect(&*dialer.connector, &address, &credentials, &host).await?;
    let peer = (address, credentials.level());
    connection::handshake(io, peer, &dialer.http2).await
}

#[cfg(test)]
mod tests {
    use testkit::net::frames::{Conn, Peer, kind, setting};

    use super::*;
    use crate::transport::SocketConnector;

    /// Messages are decoded from chunks of any size; compressed or oversized ones are rejected.
    #[test]
    fn messages_are_put_together() {
        let wire = [&[0, 0, 0, 0, 3][..], b"abc", &[0, 0, 0, 0, 0], &[0, 0, 0, 0, 1], b"d"].concat();
        for piece in 1..=wire.len() {
            let (mut buffer, mut messages) = (BytesMut::new(), Vec::new());
            for bytes in wire.chunks(piece) {
                buffer.extend_from_slice(bytes);
                while let Some(message) = take(&mut buffer, 3).unwrap() {
                    messages.push(message);
                }
            }
            assert_eq!(messages, [&b"abc"[..], b"", b"d"], "in pieces of {piece}");
        }
        let refused = |bytes: &[u8]| take(&mut BytesMut::from(bytes), 3).unwrap_err();
        assert_eq!(refused(&[0, 0, 0, 0, 4]), "sent a response of 4 bytes; at most 3 are accepted");
        assert!(refused(&[1, 0, 0, 0, 1]).contains("compressed"));
    }

    #[test]
    fn messages_have_their_length_before_them() {
        assert_eq!(encode_frame(&"ab".to_owned()), &b"\0\0\0\0\x04\x0a\x02ab"[..]);
    }

    /// Opens a stream to a test server that has sent its SETTINGS.
    async fn opened(
        settings: &[(u16, u32)],
    ) -> (StreamSet, StreamKey, Conn, mpsc::UnboundedReceiver<WorkerEvent>) {
        let peer = Peer::bind().await;
        let (events, mut happened) = mpsc::unbounded_channel();
        let mut streams =
            StreamSet::new(XdsDialer::new(Arc::new(SocketConnector), Http2Config::default()), 1024, events);
        let key = StreamKey::Load(lrs_stream());
        let server = Arc::new(ServerConfig::insecure(&peer.address().to_string()));
        streams.open(key, server, "/s/m", None);
        let mut conn = peer.accept().await;
        conn.settings(settings).await.unwrap();
        let event = next(&mut happened).await;
        assert!(matches!(event, StreamEvent::Opened), "{event:?}");
        streams.record(key, &event);
        (streams, key, conn, happened)
    }

    async fn next(happened: &mut mpsc::UnboundedReceiver<WorkerEvent>) -> StreamEvent {
        match timeout(Duration::from_secs(30), happened.recv()).await {
            Ok(Some(WorkerEvent::StreamEvent(_, event))) => event,
            _ => panic!("no news"),
        }
    }

    /// fault 76: a server that does not read gets its stream closed, and memory stays bounded.
    #[tokio::test]
    async fn a_server_that_does_not_read() {
        let (mut streams, key, _conn, mut happened) = opened(&[(setting::INITIAL_WINDOW_SIZE, 0)]).await;
        for _ in 0..=MAX_WAITING {
            streams.send(key, Bytes::from_static(b"report"));
        }
        let event = next(&mut happened).await;
        streams.record(key, &event);
        assert!(
            matches!(&event, StreamEvent::Closed(status) if status.message().contains("does not read")),
            "{event:?}"
        );
        assert!(streams.is_empty());
    }

    /// ADS-9: one message is read per request, and every write is reported.
    #[tokio::test]
    async fn reads_what_it_is_asked_for() {
        let (mut streams, key, mut conn, mut happened) = opened(&[]).await;
        while conn.next_frame().await.expect("a stream").kind != kind::HEADERS {}
        conn.respond_headers(1, &[]).await.unwrap();
        for message in [b"one", b"two", b"six"] {
            conn.respond_data(1, message).await.unwrap();
        }
        for message in [b"one", b"two"] {
            streams.read(key);
            let event = next(&mut happened).await;
            assert!(matches!(&event, StreamEvent::Message(bytes) if bytes == &message[..]), "{event:?}");
        }
        for _ in 0..3 {
            streams.send(key, Bytes::from_static(b"request"));
            let event = next(&mut happened).await;
            assert!(matches!(event, StreamEvent::Written), "{event:?}");
        }
        conn.respond_trailers(1, 14, &[("grpc-message", "later")]).await.unwrap();
        streams.read(key);
        assert!(matches!(next(&mut happened).await, StreamEvent::Message(bytes) if bytes == "six"));
        streams.read(key);
        let event = next(&mut happened).await;
        assert!(
            matches!(&event, StreamEvent::Closed(status) if *status == Status::unavailable("later")),
            "{event:?}"
        );
    }

    /// Consecutive attempts share a lookup.
    #[tokio::test(start_paused = true)]
    async fn names_are_looked_up_at_most_every_five_seconds() {
        let dialer = XdsDialer::new(Arc::new(SocketConnector), Http2Config::default());
        let found = dialer.resolve("localhost", 80).await.unwrap();
        let marked = vec![Address::Ip(([10, 0, 0, 1], 80).into())];
        let lookup = NameLookup { at: Instant::now(), addresses: marked.clone() };
        lock(&dialer.resolved).insert(("localhost".to_owned(), 80), lookup);
        for _ in 0..4 {
            assert_eq!(dialer.resolve("localhost", 80).await.unwrap(), marked);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_ne!(dialer.resolve("localhost", 81).await.unwrap(), marked, "another port is another name");
        tokio::time::advance(LOOKUP_INTERVAL).await;
        assert_eq!(dialer.resolve("localhost", 80).await.unwrap(), found);
    }

    /// Returns an arbitrary id; only `LrsClient` creates them.
    fn lrs_stream() -> lrs::LrsStreamId {
        let store = Arc::new(evenkeel_core::load::LoadStore::default());
        let now = evenkeel_core::Instant::ORIGIN;
        let _load = store.cluster("server", "cluster", None, now);
        let node = evenkeel_proto::envoy::config::core::v3::Node::default();
        let mut reporter = lrs::LrsClient::new(node, store, evenkeel_core::Rng::fixed(1));
        match &reporter.poll(now)[..] {
            [lrs::LrsEffect::Open { stream, .. }] => *stream,
            other => panic!("{other:?}"),
        }
    }
}
