//! Client on hyper's own sender.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Uri;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::raw::{check_message, check_trailers, frame, request, uri};
use crate::Error;

/// hyper's sender of one connection.
#[derive(Clone)]
pub(crate) struct Hyper {
    sender: SendRequest<Full<Bytes>>,
    uri: Uri,
}

/// Connects with hyper's defaults.
pub(crate) async fn connect(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>, Error> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(socket)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

impl Hyper {
    pub(crate) async fn connect(address: SocketAddr) -> Result<Self, Error> {
        Ok(Self { sender: connect(address).await?, uri: uri(address)? })
    }

    pub(crate) async fn call(&mut self) -> Result<(), Error> {
        let request = request(&self.uri, Full::new(frame()))?;
        let response = self.sender.send_request(request).await?;
        let body = response.into_body().collect().await?;
        check_trailers(body.trailers())?;
        check_message(&body.to_bytes())
    }
}
