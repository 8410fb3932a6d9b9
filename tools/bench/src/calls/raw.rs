//! Clients without a channel: the senders of hyper and h2, a connection to each backend, and an atomic round
//! robin.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, Method, Request, Uri, Version};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use crate::Error;
use crate::client::drive::Client;
use crate::client::echo::{Ask, EchoResponse, STREAM, UNARY};

/// Request of an [`Ask`], prepared once.
#[derive(Clone)]
struct Prepared {
    uri: Uri,
    /// gRPC message with its prefix.
    message: Bytes,
    /// Number of bytes of a valid response.
    expected: usize,
}

impl Prepared {
    fn new(address: SocketAddr, ask: &Ask) -> Result<Prepared, Error> {
        let answer = frame(&EchoResponse { payload: ask.payload.clone() });
        let path = if ask.messages.is_some() { STREAM } else { UNARY };
        Ok(Prepared {
            uri: format!("http://{address}{path}").parse()?,
            message: frame(&ask.request()),
            expected: answer.len() * ask.answers() as usize,
        })
    }

    /// Builds a request with the `http` crate. Parsing names and copying values costs two allocations and
    /// about two thousand instructions. A client with prepared headers avoids them, as every channel may.
    fn request<B>(&self, body: B) -> Result<Request<B>, Error> {
        Ok(Request::builder()
            .method(Method::POST)
            .uri(self.uri.clone())
            .version(Version::HTTP_2)
            .header("te", "trailers")
            .header("content-type", "application/grpc")
            .body(body)?)
    }

    /// Copies the message, since every call has its own bytes.
    fn message(&self) -> Bytes {
        Bytes::copy_from_slice(&self.message)
    }

    fn check(&self, received: usize, trailers: Option<&HeaderMap>) -> Result<(), Error> {
        match trailers.and_then(|trailers| trailers.get("grpc-status")) {
            Some(status) if status == "0" => {}
            other => return Err(format!("expected grpc-status 0, found {other:?}").into()),
        }
        let expected = self.expected;
        if received == expected {
            Ok(())
        } else {
            Err(format!("expected {expected} bytes of messages, found {received}").into())
        }
    }
}

/// Frames a message for gRPC: uncompressed flag, length, message.
pub(crate) fn frame(message: &impl prost::Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(5 + length);
    frame.put_u8(0);
    // Messages of a benchmark are far below 4 GiB.
    frame.put_u32(length as u32);
    // Cannot fail: the buffer has the capacity.
    let _ = message.encode(&mut frame);
    frame.freeze()
}

/// hyper's sender of one connection.
#[derive(Clone)]
pub(crate) struct Hyper {
    sender: hyper::client::conn::http2::SendRequest<Full<Bytes>>,
    prepared: Prepared,
}

impl Hyper {
    pub(crate) async fn connect(address: SocketAddr, ask: &Ask) -> Result<Self, Error> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await?;
        tokio::spawn(connection);
        Ok(Self { sender, prepared: Prepared::new(address, ask)? })
    }
}

impl Client for Hyper {
    async fn call(&mut self, ask: &Ask) -> Result<(), Error> {
        let request = self.prepared.request(Full::new(self.prepared.message()))?;
        let mut body = self.sender.send_request(request).await?.into_body();
        if ask.messages.is_none() {
            // Decoding a message needs the whole body.
            let body = body.collect().await?;
            let trailers = body.trailers().cloned();
            return self.prepared.check(body.to_bytes().len(), trailers.as_ref());
        }
        let (mut received, mut trailers) = (0, None);
        while let Some(frame) = body.frame().await {
            match frame?.into_data() {
                Ok(data) => received += data.len(),
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        }
        self.prepared.check(received, trailers.as_ref())
    }
}

/// h2's sender of one connection.
#[derive(Clone)]
pub(crate) struct H2 {
    sender: h2::client::SendRequest<Bytes>,
    prepared: Prepared,
}

impl H2 {
    /// Connects with hyper's window sizes, so that as few WINDOW_UPDATE frames are sent.
    pub(crate) async fn connect(address: SocketAddr, ask: &Ask) -> Result<Self, Error> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let (sender, connection) = h2::client::Builder::new()
            .initial_window_size(2 * 1024 * 1024)
            .initial_connection_window_size(5 * 1024 * 1024)
            .handshake(socket)
            .await?;
        tokio::spawn(connection);
        Ok(Self { sender, prepared: Prepared::new(address, ask)? })
    }
}

impl Client for H2 {
    async fn call(&mut self, _: &Ask) -> Result<(), Error> {
        poll_fn(|cx| self.sender.poll_ready(cx)).await?;
        let (response, mut stream) = self.sender.send_request(self.prepared.request(())?, false)?;
        stream.send_data(self.prepared.message(), true)?;
        let mut body = response.await?.into_body();
        let mut received = 0;
        while let Some(data) = body.data().await {
            let data = data?;
            body.flow_control().release_capacity(data.len())?;
            received += data.len();
        }
        let trailers = body.trailers().await?;
        self.prepared.check(received, trailers.as_ref())
    }
}

/// Round robin over connections. Every task has its own senders, created once, and shares the counter.
#[derive(Clone)]
pub(crate) struct RoundRobin<C> {
    connections: Vec<C>,
    turn: Arc<AtomicUsize>,
}

impl<C> RoundRobin<C> {
    pub(crate) fn new(connections: Vec<C>) -> Self {
        Self { connections, turn: Arc::default() }
    }
}

impl<C: Client + Sync> Client for RoundRobin<C> {
    async fn call(&mut self, ask: &Ask) -> Result<(), Error> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed).checked_rem(self.connections.len());
        let connection = turn.and_then(|turn| self.connections.get_mut(turn)).ok_or("no backend")?;
        connection.call(ask).await
    }
}
