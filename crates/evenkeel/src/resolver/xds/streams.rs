//! Streams to control planes: gRPC over HTTP/2, one task each.
//!
//! A stream connects if need be, sends what it is given in that order, and reads one message whenever it is asked to, so
//! that a client which takes its time slows the server down. What happens on it is told as [`StreamEvent`]; why it ended is told in
//! words. Streams to the same server share one connection, which is let go when no stream needs it.

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

/// How long one address has a head start over the next (as with Happy Eyeballs, RFC 8305).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Minimum time between two lookups of a control plane's name.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(5);

/// How many messages may wait for a server to read them. Load reports come by the clock, whether it reads or not.
const MAX_WAITING: usize = 8;

/// How long a server has to end a stream that we ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

const USER_AGENT: &str = concat!("evenkeel/", env!("CARGO_PKG_VERSION"));

/// What comes before a message: a byte that says whether it is compressed, and its length.
const PREFIX: usize = 5;

/// Names a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StreamKey {
    /// ADS.
    Resources(ads::AdsStreamId),
    /// LRS.
    Load(lrs::LrsStreamId),
}

/// What happened on a stream.
#[derive(Debug)]
pub(super) enum StreamEvent {
    /// It can be sent on.
    Opened,
    /// One message went to the wire.
    Written,
    /// A message came that was asked for.
    Message(Bytes),
    /// The server did something that no message can be made of: this. The stream is over.
    InvalidMessage(String),
    /// It ended, or could not be opened.
    Closed(Status),
}

/// A message with what comes before it on the wire.
pub(super) fn encode_frame(message: &impl Message) -> Bytes {
    let len = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + len);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(len).expect("a request has names and counts, far below 4 GiB"));
    message.encode(&mut bytes).expect("there is room for all of it");
    bytes.freeze()
}

/// All streams, and the connections under them.
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
    /// How many messages are not on the wire yet.
    waiting: usize,
}

impl StreamSet {
    /// `response_bytes` is the longest message that is taken in.
    pub(super) fn new(
        dialer: XdsDialer,
        response_bytes: usize,
        events: mpsc::UnboundedSender<WorkerEvent>,
    ) -> StreamSet {
        let (alive, ended) = mpsc::channel(1);
        let dialer = Arc::new(XdsDialer { alive: Some(alive), ..dialer });
        StreamSet { dialer, response_bytes, open: BTreeMap::new(), links: BTreeMap::new(), events, ended }
    }

    /// Starts a stream. It ends if it takes longer than `connect_timeout` to open.
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

    /// Takes note of what happened on a stream, before others do.
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

    /// Sends a message after those before it.
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
        // A stream that has just ended is told as such.
        let _ = stream.writes.send(message);
    }

    /// Reads one message.
    pub(super) fn read(&mut self, key: StreamKey) {
        if let Some(stream) = self.open.get(&key) {
            let _ = stream.reads.send(());
        }
    }

    /// Ends a stream at once. Nothing is told of it any more.
    pub(super) fn cancel(&mut self, key: StreamKey) {
        if let Some(stream) = self.open.remove(&key) {
            tracing::debug!(server = &*stream.server.uri, ?key, "xDS stream closed");
            stream.task.abort();
        }
    }

    /// Ends a stream after what there is to send; at once if it did not open yet.
    pub(super) fn finish(&mut self, key: StreamKey) {
        if self.open.get(&key).is_some_and(|stream| !stream.is_open) {
            return self.cancel(key);
        }
        // Its task knows by what it does not get any more.
        self.open.remove(&key);
    }

    /// Lets go of connections that no stream needs.
    pub(super) fn drop_unused(&mut self) {
        self.links.retain(|server, _| self.open.values().any(|stream| stream.server == *server));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Waits until all tasks are over.
    pub(super) async fn closed(mut self) {
        drop((self.dialer, self.links, self.open));
        let _ = self.ended.recv().await;
    }
}

/// One stream, as its task sees it.
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
        // Nobody listens any more if the client is gone.
        let _ = self.events.send(WorkerEvent::StreamEvent(self.key, event));
    }
}

/// An open stream.
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

    /// Writes and reads until the stream ends; answers how it did.
    async fn exchange(self, OpenedStream { connection, mut send, response }: OpenedStream) -> StreamEvent {
        let StreamTask { mut to_write, to_read, event_sender, response_bytes, dialer: _dialer, .. } = self;
        let written = async {
            while let Some(message) = to_write.recv().await {
                match write(&mut send, message).await {
                    Some(()) => event_sender.send(StreamEvent::Written),
                    // Whoever reads learns why.
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

/// Hands a message to HTTP/2 as fast as the server takes it. `None` if it takes no more.
async fn write(send: &mut HttpSendStream, message: Bytes) -> Option<()> {
    poll_fn(|cx| send.poll_capacity(cx)).await?;
    send.send(message, false)
}

/// Reads a message whenever it is asked for, until the stream ends.
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
    // Nobody asks any more: we ended it, and the server should too. Until it does, what we said may be on its way.
    let end = async {
        loop {
            messages.next().await?;
        }
    };
    let late = || StreamEvent::Closed(Status::new(Code::Cancelled, "the server did not end the stream"));
    timeout(CLOSE_TIMEOUT, end).await.unwrap_or_else(|_| Err(late()))
}

/// Whether an answer is one of gRPC and good.
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

/// What the server ended a stream with.
fn from_tonic(status: &tonic::Status) -> Status {
    let code = status::code(status.code() as i32);
    match status.message() {
        "" => Status::new(code, "the server ended the stream"),
        message => Status::new(code, message),
    }
}

/// Why a stream was cut: the connection's reason, if it is over, or else the stream's.
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

/// The messages of a stream, put together from its DATA frames.
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
                // It grows by what came, never by what was announced.
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

/// Takes the first message off the buffer, once all of it is there. An error says what the server did.
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
    // The start of the next one moves to a place of its own, so that a large message is not kept for it.
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

/// How connections are made.
pub(super) struct XdsDialer {
    connector: Arc<dyn Connector>,
    http2: Http2Config,
    /// Lookups of control planes by host and port.
    resolved: sync::Mutex<BTreeMap<(String, u16), NameLookup>>,
    /// Held by every task, so that the end of all of them can be seen.
    alive: Option<mpsc::Sender<Infallible>>,
}

impl XdsDialer {
    pub(super) fn new(connector: Arc<dyn Connector>, http2: Http2Config) -> XdsDialer {
        XdsDialer { connector, http2, resolved: sync::Mutex::default(), alive: None }
    }

    /// Returns the addresses of a control plane, from a lookup that is at most [`LOOKUP_INTERVAL`] old.
    ///
    /// A control plane that is away is tried once per second. A lookup with each attempt would move the load of all
    /// clients to the DNS server.
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

/// What streams to one server share.
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

    /// The connection that there is, or a new one.
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

    /// Reads files, which may take a while.
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

/// Connects to the first address that answers. Each has a head start over the next.
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

    /// Messages come out whole, whatever the pieces; what is compressed or too long does not.
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

    /// A stream to a server that a test plays, with its SETTINGS sent and the stream open.
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

    /// fault 76: a server that does not read ends its stream, and does not fill our memory.
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

    /// ADS-9: one message is read for each time that it is asked for, however many there are; and what is written is told.
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

    /// Attempts that follow each other share a lookup.
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

    /// Any id: only a reporter makes them.
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
