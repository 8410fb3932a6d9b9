//! Byte streams to addresses: the trait that opens them, and its implementation with sockets.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use evenkeel_core::Address;
use socket2::{SockRef, TcpKeepalive};
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
#[derive(Clone, Debug, Default)]
pub(crate) struct SocketConnector {
    keepalive: Option<TcpKeepalive>,
}

impl SocketConnector {
    /// Returns the connector with keepalive probes on its TCP sockets.
    pub(crate) fn with_keepalive(keepalive: Option<TcpKeepalive>) -> SocketConnector {
        SocketConnector { keepalive }
    }
}

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
                    if let Some(keepalive) = &self.keepalive {
                        SockRef::from(&stream).set_tcp_keepalive(keepalive)?;
                    }
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

/// Settings of the operating system's keepalive probes. Without any, no probes are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TcpKeepaliveParams {
    /// Time without data before the first probe.
    pub(crate) time: Option<Duration>,
    /// Time between two unanswered probes.
    pub(crate) interval: Option<Duration>,
    /// Number of unanswered probes after which the connection is closed.
    pub(crate) retries: Option<u32>,
}

/// Largest values that Linux accepts (`MAX_TCP_KEEPIDLE`, `MAX_TCP_KEEPINTVL`, `MAX_TCP_KEEPCNT`).
const MAX_SECONDS: u64 = 32_767;
const MAX_RETRIES: u32 = 127;

impl TcpKeepaliveParams {
    /// Returns the socket option; `None` if nothing is set. The error names the setting that no socket would accept.
    pub(crate) fn socket_option(self) -> Result<Option<TcpKeepalive>, String> {
        if self == TcpKeepaliveParams::default() {
            return Ok(None);
        }
        for (name, value) in [("tcp_keepalive", self.time), ("tcp_keepalive_interval", self.interval)] {
            if let Some(value) = value
                && !(1..=MAX_SECONDS).contains(&value.as_secs())
            {
                return Err(format!("{name} {value:?}: expected 1 s to {MAX_SECONDS} s"));
            }
        }
        if let Some(retries) = self.retries
            && !(1..=MAX_RETRIES).contains(&retries)
        {
            return Err(format!("tcp_keepalive_retries {retries}: expected 1 to {MAX_RETRIES}"));
        }
        if cfg!(not(any(
            target_vendor = "apple",
            windows,
            target_os = "android",
            target_os = "freebsd",
            target_os = "linux"
        ))) && (self.interval.is_some() || self.retries.is_some())
        {
            let names = "tcp_keepalive_interval and tcp_keepalive_retries";
            return Err(format!("{names}: are not supported on this system; expected tcp_keepalive only"));
        }
        let mut option = TcpKeepalive::new();
        if let Some(time) = self.time {
            option = option.with_time(time);
        }
        #[cfg(any(
            target_vendor = "apple",
            windows,
            target_os = "android",
            target_os = "freebsd",
            target_os = "linux"
        ))]
        {
            if let Some(interval) = self.interval {
                option = option.with_interval(interval);
            }
            if let Some(retries) = self.retries {
                option = option.with_retries(retries);
            }
        }
        Ok(Some(option))
    }
}
