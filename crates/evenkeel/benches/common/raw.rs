//! The clients below every channel: hyper's and h2's own senders, with nothing between them and the caller.

use std::future::poll_fn;
use std::net::SocketAddr;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, Method, Request, Uri, Version};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use crate::Error;
use crate::wire::MESSAGE;

/// hyper's sender of one connection.
#[derive(Clone)]
pub(crate) struct Hyper {
    sender: hyper::client::conn::http2::SendRequest<Full<Bytes>>,
    uri: Uri,
}

impl Hyper {
    pub(crate) async fn connect(address: SocketAddr) -> Result<Self, Error> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await?;
        tokio::spawn(connection);
        Ok(Self { sender, uri: uri(address)? })
    }

    pub(crate) async fn call(&mut self) -> Result<(), Error> {
        let request = request(&self.uri, Full::new(frame()))?;
        let response = self.sender.send_request(request).await?;
        let body = response.into_body().collect().await?;
        check_trailers(body.trailers())?;
        check_message(&body.to_bytes())
    }
}

/// h2's sender of one connection.
#[derive(Clone)]
pub(crate) struct H2 {
    sender: h2::client::SendRequest<Bytes>,
    uri: Uri,
}

impl H2 {
    /// With the windows that hyper asks for, so that as few updates are sent.
    pub(crate) async fn connect(address: SocketAddr) -> Result<Self, Error> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let (sender, connection) = h2::client::Builder::new()
            .initial_window_size(2 * 1024 * 1024)
            .initial_connection_window_size(5 * 1024 * 1024)
            .handshake(socket)
            .await?;
        tokio::spawn(connection);
        Ok(Self { sender, uri: uri(address)? })
    }

    pub(crate) async fn call(&mut self) -> Result<(), Error> {
        poll_fn(|cx| self.sender.poll_ready(cx)).await?;
        let (response, mut stream) = self.sender.send_request(request(&self.uri, ())?, false)?;
        stream.send_data(frame(), true)?;
        let mut body = response.await?.into_body();
        while let Some(data) = body.data().await {
            let data = data?;
            body.flow_control().release_capacity(data.len())?;
            check_message(&data)?;
        }
        check_trailers(body.trailers().await?.as_ref())
    }
}

fn uri(address: SocketAddr) -> Result<Uri, Error> {
    Ok(format!("http://{address}/bench.Echo/Unary").parse()?)
}

/// As one writes it with the `http` crate. Parsing the names and copying the values costs two allocations and some two
/// thousand instructions that a client with ready-made headers saves; every channel may.
fn request<B>(uri: &Uri, body: B) -> Result<Request<B>, Error> {
    Ok(Request::builder()
        .method(Method::POST)
        .uri(uri.clone())
        .version(Version::HTTP_2)
        .header("te", "trailers")
        .header("content-type", "application/grpc")
        .body(body)?)
}

/// A message has its own bytes in every call.
fn frame() -> Bytes {
    let mut frame = BytesMut::with_capacity(MESSAGE.len());
    frame.put_slice(MESSAGE);
    frame.freeze()
}

fn check_message(message: &[u8]) -> Result<(), Error> {
    if message == MESSAGE { Ok(()) } else { Err("the answer is not the message".into()) }
}

fn check_trailers(trailers: Option<&HeaderMap>) -> Result<(), Error> {
    match trailers.and_then(|trailers| trailers.get("grpc-status")) {
        Some(status) if status == "0" => Ok(()),
        other => Err(format!("expected grpc-status 0, found {other:?}").into()),
    }
}
