//! Byte streams to endpoints: sockets, and TLS over them.
//!
//! [`connect`] gives a stream that HTTP/2 can start on, or says in words what failed. It takes everything for each
//! connection anew, and never goes on in the clear when TLS was asked for. How long it may take is the caller's business: it
//! drops the future.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use evenkeel_core::{Address, Status};
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio_rustls::TlsConnector;

use crate::credentials::{Credentials, H2};

/// A byte stream to an endpoint. Whatever reads and writes is one.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// Opens byte streams to addresses. TCP and unix sockets unless the user gives another, as for simulations and tunnels.
///
/// TLS, if the credentials ask for it, runs over the streams that a connector opens. A call that takes too long is dropped.
/// The error's text reaches the callers of RPCs, behind the address.
pub trait Connector: Send + Sync + 'static {
    /// Opens a stream to this address.
    #[expect(clippy::type_complexity, reason = "an implementation has to spell it out as well")]
    fn connect(
        &self,
        address: &Address,
    ) -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send + '_>>;
}

/// The sockets of the operating system. The name of a unix socket that starts with a zero byte is in Linux's abstract
/// namespace.
pub(crate) struct Sockets;

impl Connector for Sockets {
    fn connect(
        &self,
        address: &Address,
    ) -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send + '_>> {
        let address = address.clone();
        Box::pin(async move {
            let io: Box<dyn Io> = match address {
                Address::Ip(address) => {
                    let stream = TcpStream::connect(address).await?;
                    // HTTP/2 gathers its frames itself; waiting for more would only delay calls.
                    stream.set_nodelay(true)?;
                    Box::new(stream)
                }
                #[cfg(unix)]
                Address::Unix(path) => Box::new(UnixStream::connect(&*path).await?),
                other => {
                    let text =
                        format!("there are no sockets to {other}; expected an IP address or a unix socket");
                    return Err(io::Error::new(io::ErrorKind::Unsupported, text));
                }
            };
            Ok(io)
        })
    }
}

/// Opens a stream to an endpoint, secured as the credentials say. `host` is the name that the endpoint's certificate must be
/// valid for: a DNS name or an IP address, without a port.
///
/// With TLS 1.3 a server judges our certificate after the handshake has ended for us. Its refusal then comes with the first
/// read; [`in_words`] makes it readable.
pub(crate) async fn connect(
    connector: &dyn Connector,
    address: &Address,
    credentials: &Credentials,
    host: &str,
) -> Result<Box<dyn Io>, ConnectError> {
    let io = connector.connect(address).await.map_err(|error| ConnectError {
        address: address.clone(),
        name: None,
        cause: in_words(&error),
    })?;
    let Some(tls) = credentials.live() else { return Ok(io) };
    let failed =
        |name: &str, cause| ConnectError { address: address.clone(), name: Some(name.to_owned()), cause };
    let name = tls.server_name(host).map_err(|error| failed(host, error.to_string()))?;
    let shown = name.to_str().into_owned();
    handshake(io, tls.config().await, name).await.map_err(|cause| failed(&shown, cause))
}

async fn handshake(
    io: Box<dyn Io>,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
) -> Result<Box<dyn Io>, String> {
    let stream = TlsConnector::from(config).connect(name, io).await.map_err(|error| in_words(&error))?;
    match stream.get_ref().1.alpn_protocol() {
        Some(H2) => Ok(Box::new(stream)),
        _ => Err("the server does not confirm \"h2\" (ALPN), which gRPC needs".to_owned()),
    }
}

/// Why there is no stream.
#[derive(Debug)]
pub(crate) struct ConnectError {
    address: Address,
    /// The name that the server was expected to prove, if it came to TLS.
    name: Option<String>,
    cause: String,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An abstract unix socket has a zero byte in its name.
        let address = line(&self.address.to_string());
        match &self.name {
            None => write!(f, "connecting to {address}: {}", self.cause),
            Some(name) => write!(f, "TLS handshake with {address} as {name:?}: {}", self.cause),
        }
    }
}

impl std::error::Error for ConnectError {}

impl From<ConnectError> for Status {
    fn from(error: ConnectError) -> Status {
        Status::unavailable(error.to_string())
    }
}

/// An error of a stream as a user can read it: what the system says, and for TLS what it means.
pub(crate) fn in_words(error: &io::Error) -> String {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    line(&match tls {
        Some(tls) => tls_in_words(tls),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "the server closed the connection".to_owned(),
        None => uncapitalised(&error.to_string()),
    })
}

fn tls_in_words(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "invalid peer certificate: it is not signed by a trusted CA (UnknownIssuer)".to_owned()
        }
        rustls::Error::InvalidMessage(_) => format!("the server does not speak TLS ({error})"),
        rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            "the server does not take \"h2\" (ALPN), which gRPC needs".to_owned()
        }
        rustls::Error::AlertReceived(alert) => {
            format!("the server refused: {}", separated(&format!("{alert:?}")))
        }
        error => error.to_string(),
    }
}

/// `CertificateRequired` as `certificate required`.
fn separated(name: &str) -> String {
    let mut words = String::new();
    let mut after_lower = false;
    for c in name.chars() {
        if c.is_uppercase() && after_lower {
            words.push(' ');
        }
        after_lower = c.is_lowercase();
        words.extend(c.to_lowercase());
    }
    words
}

/// `Connection refused` as our messages have it; `EOF` stays.
fn uncapitalised(text: &str) -> String {
    let mut rest = text.chars();
    match rest.next() {
        Some(first) if rest.clone().next().is_some_and(char::is_lowercase) => {
            first.to_lowercase().chain(rest).collect()
        }
        _ => text.to_owned(),
    }
}

/// Text that a server may have had a hand in, as with the names in its certificate: on one line, and cut if it is long.
fn line(text: &str) -> String {
    const TOLD: usize = 512;
    let mut line = String::new();
    for (i, c) in text.chars().enumerate() {
        if i == TOLD {
            line.push_str("...");
            break;
        }
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}
