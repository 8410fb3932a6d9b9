//! One stream to a control plane: gRPC messages over HTTP/2, sent and received by a task.

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use evenkeel_core::{Code, Status};
use evenkeel_proto::prost::Message;
use http::header;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::server_connection::{OpenedStream, ServerConnection, XdsDialer};
use super::streams::{StreamEvent, StreamKey};
use super::worker::WorkerEvent;
use crate::call::status;
use crate::text::quoted;
use crate::transport::connection::{self, Connection};
use crate::transport::http2::{Error, HttpRecvStream, HttpSendStream, ResponseHeaders};

/// Maximum time for a server to end a stream that the client has finished.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Length of a gRPC message's prefix: the compressed flag and the message length.
const PREFIX: usize = 5;

/// State of one stream's task.
pub(super) struct StreamTask {
    pub(super) dialer: Arc<XdsDialer>,
    pub(super) link: Arc<ServerConnection>,
    pub(super) method: &'static str,
    pub(super) response_bytes: usize,
    pub(super) to_write: mpsc::UnboundedReceiver<Bytes>,
    pub(super) to_read: mpsc::UnboundedReceiver<()>,
    pub(super) event_sender: StreamEventSender,
}

#[derive(Clone)]
pub(super) struct StreamEventSender {
    pub(super) key: StreamKey,
    pub(super) events: mpsc::UnboundedSender<WorkerEvent>,
}

impl StreamTask {
    pub(super) async fn run(self, connect_timeout: Option<Duration>) {
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
        // The dialer is kept until the stream has ended: `StreamSet::closed` waits for its sender.
        let StreamTask { mut to_write, to_read, event_sender, response_bytes, dialer: _dialer, .. } = self;
        let written = async {
            while let Some(message) = to_write.recv().await {
                match write(&mut send, message).await {
                    Some(()) => event_sender.send(StreamEvent::Written),
                    // The reading half reports the reason.
                    None => return pending().await,
                }
            }
            // The worker has finished the stream. The reading half waits for the server's end.
            send.send(Bytes::new(), true);
            pending::<Infallible>().await
        };
        tokio::select! {
            never = written => match never {},
            Err(end) = read(&connection, response, response_bytes, to_read, &event_sender) => end,
        }
    }
}

impl StreamEventSender {
    fn send(&self, event: StreamEvent) {
        // The client has ended if no receiver is left.
        let _ = self.events.send(WorkerEvent::StreamEvent(self.key, event));
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
        let text = format!("expected a gRPC response, found HTTP status {}", head.status.as_u16());
        return Err(Status::new(status::code_of_http(head.status), text));
    }
    let kind = head.headers.get(header::CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    if !kind.starts_with(b"application/grpc") {
        let kind = quoted(&String::from_utf8_lossy(kind));
        let text = format!("expected a gRPC response, found content-type {kind}");
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
pub(super) fn transport_error(connection: &Connection, error: &Error) -> Status {
    match connection.transport_state().disconnected() {
        // A reset concerns one stream, also if the connection was lost later.
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

/// Encodes a message with its gRPC prefix.
pub(super) fn encode_frame(message: &impl Message) -> Bytes {
    let len = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + len);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(len).expect("a request consists of names and counts, far below 4 GiB"));
    message.encode(&mut bytes).expect("the buffer grows as needed");
    bytes.freeze()
}

/// Removes the first message from the buffer if it is complete. An error states what the server sent.
fn take(buffer: &mut BytesMut, limit: usize) -> Result<Option<Bytes>, String> {
    let Some((prefix, _)) = buffer.split_first_chunk::<PREFIX>() else { return Ok(None) };
    let [compressed, len @ ..] = *prefix;
    if compressed != 0 {
        return Err("sent a compressed response, which this client does not accept".to_owned());
    }
    let len = u32::from_be_bytes(len) as usize;
    // Before the payload arrives, so that a message above the limit is not buffered.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
