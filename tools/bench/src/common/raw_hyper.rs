//! Client on hyper's own sender.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Uri;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::raw::{check_message, check_trailers, frame, request, uri};
use crate::Error;

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
