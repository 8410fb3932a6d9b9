//! Checks from a name to HTTP/2: DNS, TCP, TLS.
//!
//! DNS and TCP run here, where errors keep their kinds. TLS and HTTP/2 run in a real channel. If that fails,
//! a plaintext probe identifies the peer's protocol.

use std::net::SocketAddr;
use std::time::Duration;
use std::{io, path::Path};

use evenkeel::{Channel, ConnectivityState, Credentials};
use http::uri::PathAndQuery;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;

use super::EarlyExit;
use super::causes;
use super::place::TargetAddress;
use super::report::{Diagnosis, DoctorReport};
use crate::ui::CliExit;

/// Maximum wait for the peer's first bytes.
const FIRST_BYTES: Duration = Duration::from_secs(2);

/// HTTP/2 client connection preface with an empty SETTINGS frame (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Role of the peer under check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerRole {
    ControlPlane,
    Endpoint,
}

impl PeerRole {
    pub(super) fn exit(self) -> CliExit {
        match self {
            PeerRole::ControlPlane => CliExit::Unreachable,
            PeerRole::Endpoint => CliExit::Findings,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            PeerRole::ControlPlane => "the control plane",
            PeerRole::Endpoint => "the endpoint",
        }
    }
}

/// Checks DNS, TCP, and TLS or HTTP/2 to an address, and stops the report on failure. `target` is the
/// channel's target.
pub(super) async fn run_checks(
    target: &str,
    address: &TargetAddress,
    credentials: Option<Credentials>,
    role: PeerRole,
    wait: Duration,
    report: &mut DoctorReport<'_>,
) -> Result<(), EarlyExit> {
    if let Err(diagnosis) = connection_checks(target, address, credentials, role, wait, report).await? {
        return Err(report.stop(&diagnosis)?);
    }
    Ok(())
}

/// Like [`run_checks`], but returns the diagnosis, so that the caller can try another peer.
pub(super) async fn connection_checks(
    target: &str,
    address: &TargetAddress,
    credentials: Option<Credentials>,
    role: PeerRole,
    wait: Duration,
    report: &mut DoctorReport<'_>,
) -> Result<Result<(), Diagnosis>, EarlyExit> {
    let addresses = match resolve(address, role, wait, report).await? {
        Ok(addresses) => addresses,
        Err(diagnosis) => return Ok(Err(diagnosis)),
    };
    if let Err(diagnosis) = connect(address, &addresses, role, wait, report).await? {
        return Ok(Err(diagnosis));
    }
    check_http2(target, &addresses, credentials, role, wait, report).await
}

async fn resolve(
    address: &TargetAddress,
    role: PeerRole,
    wait: Duration,
    report: &mut DoctorReport<'_>,
) -> Result<Result<Vec<SocketAddr>, Diagnosis>, EarlyExit> {
    let (host, port) = match address {
        TargetAddress::Name { host, port } => (host, *port),
        TargetAddress::Addresses(addresses) => {
            report.skipped("DNS", "no name to resolve")?;
            return Ok(Ok(addresses.clone()));
        }
        TargetAddress::Socket(path) => {
            report.skipped("DNS", &format!("{} is a unix socket", path.display()))?;
            return Ok(Ok(Vec::new()));
        }
    };
    let asked = format!("resolving {host}");
    let found =
        report.terminal.progress().during(&asked, timeout(wait, lookup_host((host.as_str(), port)))).await;
    let found: Vec<_> = match found {
        Ok(Ok(found)) => found.collect(),
        Ok(Err(error)) => return Ok(Err(causes::unresolved(host, &error.to_string(), role))),
        Err(_) => return Ok(Err(causes::unresolved(host, &format!("no response within {wait:?}"), role))),
    };
    if found.is_empty() {
        return Ok(Err(causes::unresolved(host, "the name has no addresses", role)));
    }
    let ips: Vec<_> = found.iter().map(|address| address.ip().to_string()).collect();
    report.passed("DNS", &format!("{host} is {}", ips.join(", ")))?;
    Ok(Ok(found))
}

async fn connect(
    address: &TargetAddress,
    addresses: &[SocketAddr],
    role: PeerRole,
    wait: Duration,
    report: &mut DoctorReport<'_>,
) -> Result<Result<(), Diagnosis>, EarlyExit> {
    if let TargetAddress::Socket(path) = address {
        return match unix_connect(path).await {
            Ok(()) => {
                report.passed("TCP", &format!("{} accepts connections", path.display()))?;
                Ok(Ok(()))
            }
            Err(error) => Ok(Err(causes::no_socket(path, &error, role))),
        };
    }
    let mut failures = Vec::new();
    for address in addresses {
        let asked = format!("connecting to {address}");
        match report.terminal.progress().during(&asked, tcp(*address, wait)).await {
            Ok(_) => {
                report.passed("TCP", &format!("{address} accepts connections"))?;
                for (address, error) in failures {
                    report.warn(&format!("{address} does not accept connections: {error}"))?;
                }
                return Ok(Ok(()));
            }
            Err(error) => failures.push((*address, error)),
        }
    }
    Ok(Err(causes::unconnected(&failures, wait, role)))
}

async fn tcp(address: SocketAddr, wait: Duration) -> io::Result<TcpStream> {
    let connected = timeout(wait, TcpStream::connect(address)).await;
    connected.unwrap_or_else(|_| {
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("no response within {wait:?}")))
    })
}

#[cfg(unix)]
async fn unix_connect(path: &Path) -> io::Result<()> {
    tokio::net::UnixStream::connect(path).await.map(drop)
}

#[cfg(not(unix))]
async fn unix_connect(_: &Path) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "unix sockets are not supported on this system"))
}

/// Checks TLS and HTTP/2 with a real channel.
async fn check_http2(
    target: &str,
    addresses: &[SocketAddr],
    credentials: Option<Credentials>,
    role: PeerRole,
    wait: Duration,
    report: &mut DoctorReport<'_>,
) -> Result<Result<(), Diagnosis>, EarlyExit> {
    let is_tls = credentials.is_some();
    let step = if is_tls { "TLS" } else { "HTTP/2" };
    let channel = Channel::builder(target)
        .credentials(credentials.unwrap_or_else(Credentials::insecure))
        .connect_timeout(wait)
        .build();
    let channel = match channel {
        Ok(channel) => channel,
        Err(error) => return Ok(Err(Diagnosis::new(step, CliExit::Usage, error.to_string()))),
    };
    let connectivity = report
        .terminal
        .progress()
        .during(&format!("waiting for {}", role.name()), wait_settled(&channel, wait))
        .await;
    if connectivity == Some(ConnectivityState::Ready) {
        let found =
            if is_tls { "the certificate is trusted; handshake completed" } else { "handshake completed" };
        report.passed(step, found)?;
        return Ok(Ok(()));
    }
    let found = failure_of(&channel).await.unwrap_or_else(|| format!("no response within {wait:?}"));
    let protocol = match addresses.first() {
        Some(address) => probe_protocol(*address).await,
        None => PeerProtocol::Silent,
    };
    Ok(Err(causes::no_http2(step, is_tls, &found, &protocol, role)))
}

/// Waits until a channel is READY or in TRANSIENT_FAILURE. Returns `None` on timeout.
pub(super) async fn wait_settled(channel: &Channel, wait: Duration) -> Option<ConnectivityState> {
    let mut states = channel.watch_connectivity();
    channel.connect();
    let end = |state: &ConnectivityState| {
        matches!(state, ConnectivityState::Ready | ConnectivityState::TransientFailure)
    };
    let settled = timeout(wait, states.wait_for(end)).await;
    settled.ok()?.ok().map(|state| *state)
}

/// Returns the status message of a call on a channel that cannot connect.
pub(super) async fn failure_of(channel: &Channel) -> Option<String> {
    let mut client = Grpc::new(channel.clone());
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let call = client.unary(tonic::Request::new(()), path, ProstCodec::<(), ()>::default());
    match timeout(FIRST_BYTES, call).await {
        Ok(Err(status)) => Some(status.message().to_owned()),
        _ => None,
    }
}

/// Protocol of a peer, as its reply to the HTTP/2 preface shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PeerProtocol {
    Http2,
    /// HTTP/1.x, with the status line.
    Http1(String),
    Tls,
    Other(String),
    /// The peer closed the connection without a reply.
    Closed,
    /// The peer accepted the connection and sent nothing.
    Silent,
    /// The TCP connection failed.
    Unreachable(io::ErrorKind),
}

/// Sends the HTTP/2 preface in plaintext and classifies the reply.
pub(super) async fn probe_protocol(address: SocketAddr) -> PeerProtocol {
    let mut stream = match tcp(address, FIRST_BYTES).await {
        Ok(stream) => stream,
        Err(error) => return PeerProtocol::Unreachable(error.kind()),
    };
    let mut first = [0; 256];
    let answer = async {
        stream.write_all(PREFACE).await?;
        stream.read(&mut first).await
    };
    match timeout(FIRST_BYTES, answer).await {
        Err(_) => PeerProtocol::Silent,
        Ok(Err(_) | Ok(0)) => PeerProtocol::Closed,
        Ok(Ok(count)) => detect_protocol(&first[..count]),
    }
}

fn detect_protocol(bytes: &[u8]) -> PeerProtocol {
    match bytes {
        // SETTINGS frame on stream 0.
        [_, _, _, 4, _, 0, 0, 0, 0, ..] => PeerProtocol::Http2,
        // TLS alert record: the peer expected a ClientHello.
        [0x15, 3, ..] => PeerProtocol::Tls,
        _ if bytes.starts_with(b"HTTP/1") => {
            let line = bytes.split(|byte| *byte == b'\r' || *byte == b'\n').next().unwrap_or_default();
            PeerProtocol::Http1(String::from_utf8_lossy(line).into_owned())
        }
        _ => PeerProtocol::Other(String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_identify_the_protocol() {
        assert_eq!(detect_protocol(b"\0\0\x06\x04\0\0\0\0\0\0\x03"), PeerProtocol::Http2);
        assert_eq!(detect_protocol(&[0x15, 3, 3, 0, 2, 2, 10]), PeerProtocol::Tls);
        assert_eq!(
            detect_protocol(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            PeerProtocol::Http1("HTTP/1.1 400 Bad Request".to_owned())
        );
        assert_eq!(detect_protocol(b"220 mail"), PeerProtocol::Other("220 mail".to_owned()));
    }
}
