//! Byte streams to addresses: the trait that opens them, and its implementation with sockets.

use std::io;
use std::pin::Pin;

use evenkeel_core::Address;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

/// Byte stream to an endpoint. Implemented for every type with the required traits.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// Opens byte streams to addresses. The default opens TCP and unix sockets; simulations and tunnels can provide
/// another.
///
/// If the credentials require TLS, it runs over the streams that a connector opens. On timeout, the future is
/// dropped. The error's text follows the address in the status of failed RPCs.
pub trait Connector: Send + Sync + 'static {
    /// Opens a byte stream to this address.
    #[expect(clippy::type_complexity, reason = "implementations write the type out too")]
    fn connect(
        &self,
        address: &Address,
    ) -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send + '_>>;
}

/// Connector for the operating system's sockets. A unix socket name that starts with a zero byte is in Linux's
/// abstract namespace.
pub(crate) struct SocketConnector;

impl Connector for SocketConnector {
    fn connect(
        &self,
        address: &Address,
    ) -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send + '_>> {
        let address = address.clone();
        Box::pin(async move {
            let io: Box<dyn Io> = match address {
                Address::Ip(address) => {
                    let stream = TcpStream::connect(address).await?;
                    // HTTP/2 batches its own frames; Nagle's algorithm would only delay calls.
                    stream.set_nodelay(true)?;
                    Box::new(stream)
                }
                #[cfg(unix)]
                Address::Unix(path) => Box::new(UnixStream::connect(&*path).await?),
                other => {
                    let text =
                        format!("unsupported address {other}; expected an IP address or a unix socket");
                    return Err(io::Error::new(io::ErrorKind::Unsupported, text));
                }
            };
            Ok(io)
        })
    }
}
