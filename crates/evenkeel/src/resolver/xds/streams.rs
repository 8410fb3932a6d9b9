//! Streams to control planes: the set of open ones, and the connections that they share.
//!
//! Each stream is a [task](StreamTask) that connects if needed, sends messages in order, and reads one message per
//! [`StreamSet::read`]. So a slow client applies flow control to the server. Events are reported as [`StreamEvent`]; a
//! closed stream carries a status with the cause. Streams to the same server share one connection, which is closed when
//! no stream needs it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_core::{Code, Status};
use evenkeel_xds::ads;
use evenkeel_xds::bootstrap::ServerConfig;
use evenkeel_xds::lrs;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::server_connection::{ServerConnection, XdsDialer};
use super::stream_task::{StreamEventSender, StreamTask};
use super::worker::WorkerEvent;

/// Maximum number of messages that wait to be sent. Load reports are periodic, even if the server does not read.
const MAX_WAITING: usize = 8;

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
        let dialer = Arc::new(dialer.with_alive(alive));
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
            let text = format!("the server stopped reading: {MAX_WAITING} messages are queued");
            let closed = StreamEvent::Closed(Status::new(Code::ResourceExhausted, text));
            // Through the queue: `record` must see the end before the client does.
            let _ = self.events.send(WorkerEvent::StreamEvent(key, closed));
            return;
        }
        // If the stream has just ended, its `Closed` event is in the queue.
        let _ = stream.writes.send(message);
    }

    /// Requests the next message of a stream.
    pub(super) fn read(&mut self, key: StreamKey) {
        if let Some(stream) = self.open.get(&key) {
            // As in `send`: a stream that has just ended has its `Closed` event in the queue.
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

#[cfg(test)]
mod tests {
    use testkit::net::frames::{Conn, Peer, kind, setting};
    use tokio::time::timeout;

    use super::*;
    use crate::transport::SocketConnector;
    use crate::transport::connection::Http2Config;

    /// Opens a stream to a test server that has sent its SETTINGS.
    async fn opened(
        settings: &[(u16, u32)],
    ) -> (StreamSet, StreamKey, Conn, mpsc::UnboundedReceiver<WorkerEvent>) {
        let peer = Peer::bind().await;
        let (events, mut happened) = mpsc::unbounded_channel();
        let mut streams = StreamSet::new(
            XdsDialer::new(Arc::new(SocketConnector::default()), Http2Config::default()),
            1024,
            events,
        );
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
            matches!(&event, StreamEvent::Closed(status) if status.message().contains("stopped reading")),
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
