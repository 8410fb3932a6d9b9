//! Client on h2's own sender.

use std::future::poll_fn;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Uri};
use tokio::net::TcpStream;

use super::raw::{check_message, check_trailers, frame, request, uri};
use crate::Error;

/// h2's sender of one connection.
#[derive(Clone)]
pub(crate) struct H2 {
    sender: h2::client::SendRequest<Bytes>,
    uri: Uri,
}

/// Connects with the windows that hyper uses, so that as few updates are sent.
pub(crate) async fn connect(address: SocketAddr) -> Result<h2::client::SendRequest<Bytes>, Error> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    let (sender, connection) = h2::client::Builder::new()
        .initial_window_size(2 * 1024 * 1024)
        .initial_connection_window_size(5 * 1024 * 1024)
        .handshake(socket)
        .await?;
    tokio::spawn(connection);
    Ok(sender)
}

impl H2 {
    pub(crate) async fn connect(address: SocketAddr) -> Result<Self, Error> {
        Ok(Self { sender: connect(address).await?, uri: uri(address)? })
    }

    pub(crate) async fn call(&mut self) -> Result<(), Error> {
        let trailers = self.exchange().await?;
        check_trailers(trailers.as_ref())
    }

    /// Makes a call and returns its trailers unchecked.
    pub(crate) async fn exchange(&mut self) -> Result<Option<HeaderMap>, Error> {
        poll_fn(|cx| self.sender.poll_ready(cx)).await?;
        let (response, mut stream) = self.sender.send_request(request(&self.uri, ())?, false)?;
        stream.send_data(frame(), true)?;
        let mut body = response.await?.into_body();
        while let Some(data) = body.data().await {
            let data = data?;
            body.flow_control().release_capacity(data.len())?;
            check_message(&data)?;
        }
        Ok(body.trailers().await?)
    }
}
