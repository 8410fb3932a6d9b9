//! Queries a process: CSDS over HTTP/2 and `/api/state` over HTTP/1.1, concurrently at the same address.
//!
//! The peer is untrusted. Each response is limited in size and time, and a malformed one is an error with a
//! description.

use std::error::Error;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use evenkeel::admin::AdminState;
use evenkeel_proto::envoy::service::status::v3::{ClientStatusRequest, ClientStatusResponse};
use http::uri::{Authority, PathAndQuery};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::transport::Endpoint;
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use crate::ui::{self, CliError};

/// Maximum time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of a response. A client with thousands of resources sends some megabytes.
const MAX_BYTES: usize = 64 << 20;

/// Maximum size of an HTTP response head.
const MAX_HEAD: usize = 64 << 10;

/// Address of the inspected process.
#[derive(Clone, Debug)]
pub(crate) struct InspectTarget(Authority);

impl FromStr for InspectTarget {
    type Err = String;

    /// Parses `HOST:PORT`. A URL such as `http://127.0.0.1:9901/` is accepted too.
    fn from_str(text: &str) -> Result<InspectTarget, String> {
        let text = text.strip_prefix("http://").unwrap_or(text);
        let text = text.strip_suffix('/').unwrap_or(text);
        let expected = || "expected HOST:PORT, as in 127.0.0.1:9901".to_owned();
        let authority = Authority::try_from(text).map_err(|_| expected())?;
        let is_plain = authority.port_u16().is_some() && !authority.host().is_empty();
        if is_plain && !text.contains('@') { Ok(InspectTarget(authority)) } else { Err(expected()) }
    }
}

impl fmt::Display for InspectTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Responses of a process; at least one is present.
#[derive(Debug)]
pub(super) struct InspectData {
    pub(super) csds: Option<ClientStatusResponse>,
    pub(super) state: Option<AdminState>,
}

/// Sends both requests. If both fail, the error lists them with the likely cause.
pub(super) async fn fetch(peer: &InspectTarget) -> Result<InspectData, CliError> {
    connect(peer).await.map_err(|error| CliError::unreachable(unreachable(peer, &error)))?;
    let (csds, state) = tokio::join!(csds(peer), state(peer));
    match (csds, state) {
        (Err(csds), Err(state)) => Err(CliError::unreachable(no_response_text(peer, &csds, &state))),
        (csds, state) => Ok(InspectData { csds: csds.ok(), state: state.ok() }),
    }
}

fn unreachable(peer: &InspectTarget, error: &io::Error) -> String {
    let cause = match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "no process listens there: the process has ended, has no admin server, or listens on another port"
        }
        io::ErrorKind::TimedOut => "no response: a firewall, or the wrong address",
        _ => "check the name and the port",
    };
    format!("{peer} cannot be reached: {}\n  likely: {cause}", ui::safe(&error.to_string()))
}

fn no_response_text(peer: &InspectTarget, csds: &CsdsError, state: &str) -> String {
    let cause = match csds.code {
        Some(Code::Unimplemented) => {
            "a gRPC server, but without CSDS: register the admin services there, or ask the process's admin port"
        }
        Some(Code::Unauthenticated | Code::PermissionDenied) => "the process requires authentication",
        _ => "not the admin port of an xDS client: that is another port, or it has none yet",
    };
    format!(
        "{peer} supports neither API\n  CSDS: {}\n  GET /api/state: {}\n  likely: {cause}",
        ui::safe(&csds.text),
        ui::safe(state)
    )
}

async fn connect(peer: &InspectTarget) -> io::Result<TcpStream> {
    let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect(peer.0.as_str())).await;
    connecting.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "timed out")))
}

/// Error of the CSDS request.
struct CsdsError {
    code: Option<Code>,
    text: String,
}

impl CsdsError {
    fn new(error: &dyn Error) -> CsdsError {
        CsdsError { code: None, text: chain(error) }
    }
}

async fn csds(peer: &InspectTarget) -> Result<ClientStatusResponse, CsdsError> {
    let endpoint = Endpoint::from_shared(format!("http://{peer}")).map_err(|error| CsdsError::new(&error))?;
    let answer = async {
        let channel = endpoint.connect_timeout(CONNECT_TIMEOUT).connect().await;
        let channel = channel.map_err(|error| CsdsError::new(&error))?;
        let mut client = Grpc::new(channel).max_decoding_message_size(MAX_BYTES);
        client.ready().await.map_err(|error| CsdsError::new(&error))?;
        let path = PathAndQuery::from_static(
            "/envoy.service.status.v3.ClientStatusDiscoveryService/FetchClientStatus",
        );
        let request = Request::new(ClientStatusRequest::default());
        let codec = ProstCodec::<ClientStatusRequest, ClientStatusResponse>::default();
        let answer = client.unary(request, path, codec).await.map_err(|status| CsdsError {
            code: Some(status.code()),
            text: format!("{:?}: {}", status.code(), status.message()),
        })?;
        Ok(answer.into_inner())
    };
    let late =
        || CsdsError { code: None, text: format!("no response within {} s", RESPONSE_TIMEOUT.as_secs()) };
    timeout(RESPONSE_TIMEOUT, answer).await.unwrap_or_else(|_| Err(late()))
}

/// Formats an error with its sources, each once.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

async fn state(peer: &InspectTarget) -> Result<AdminState, String> {
    let body = timeout(RESPONSE_TIMEOUT, get(peer, "/api/state")).await;
    let body = body.map_err(|_| format!("no response within {} s", RESPONSE_TIMEOUT.as_secs()))??;
    serde_json::from_slice(&body).map_err(|error| format!("not the state of an evenkeel process: {error}"))
}

async fn get(peer: &InspectTarget, path: &str) -> Result<Vec<u8>, String> {
    let failed = |error: io::Error| error.to_string();
    let mut stream = connect(peer).await.map_err(failed)?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {peer}\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.map_err(failed)?;
    let mut received = Vec::new();
    loop {
        let read = stream.read_buf(&mut received).await.map_err(failed)?;
        if let Some(body) = body(&received, read == 0)? {
            return Ok(body);
        }
    }
}

/// Returns the body of an HTTP/1.1 response, or `None` while it is incomplete.
fn body(received: &[u8], ended: bool) -> Result<Option<Vec<u8>>, String> {
    let Some(end) = received.windows(4).take(MAX_HEAD).position(|window| window == b"\r\n\r\n") else {
        let text = || String::from_utf8_lossy(&received[..received.len().min(40)]).into_owned();
        return match received {
            [] if ended => Err("closed the connection without a response".to_owned()),
            _ if ended || received.len() > MAX_HEAD || !may_be_http(received) => {
                Err(format!("not HTTP/1.1: {:?}", text()))
            }
            _ => Ok(None),
        };
    };
    let head = std::str::from_utf8(&received[..end]).map_err(|_| "not HTTP/1.1".to_owned())?;
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        return Err(format!("expected 200 OK, found {status:?}"));
    }
    let (mut length, mut is_chunked) = (None, false);
    for line in lines {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse::<usize>().ok();
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            is_chunked = value.trim().eq_ignore_ascii_case("chunked");
        }
    }
    let rest = &received[end + 4..];
    if rest.len() > MAX_BYTES || length.is_some_and(|length| length > MAX_BYTES) {
        return Err(format!("the response has more than {MAX_BYTES} bytes"));
    }
    let whole = match length {
        _ if is_chunked => dechunked(rest)?,
        Some(length) => rest.get(..length).map(<[u8]>::to_vec),
        None => ended.then(|| rest.to_vec()),
    };
    match whole {
        None if ended => Err("closed the connection within the response".to_owned()),
        whole => Ok(whole),
    }
}

fn may_be_http(received: &[u8]) -> bool {
    let start = b"HTTP/1.";
    received.iter().zip(start).all(|(a, b)| a == b)
}

/// Decodes a chunked body. Returns `None` until the last chunk has arrived.
fn dechunked(mut rest: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let mut whole = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|window| window == b"\r\n") else { return Ok(None) };
        let size = std::str::from_utf8(&rest[..end]).ok();
        let size = size.and_then(|size| usize::from_str_radix(size.split(';').next()?.trim(), 16).ok());
        let size = size.filter(|size| *size <= MAX_BYTES).ok_or("malformed HTTP/1.1 chunks")?;
        if size == 0 {
            return Ok(Some(whole));
        }
        let Some(chunk) = rest.get(end + 2..end + 2 + size) else { return Ok(None) };
        whole.extend_from_slice(chunk);
        // Each chunk ends with CRLF.
        let Some(next) = rest.get(end + 4 + size..) else { return Ok(None) };
        rest = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_hosts_with_ports() {
        let read = |text: &str| text.parse::<InspectTarget>().map(|peer| peer.to_string());
        for text in ["127.0.0.1:9901", "orders-7:9901", "[::1]:9901"] {
            assert_eq!(read(text).as_deref(), Ok(text));
        }
        assert_eq!(read("http://127.0.0.1:9901/").as_deref(), Ok("127.0.0.1:9901"));
        for text in ["", "9901", "localhost", ":9901", "a:b", "u@h:1", "h:99999", "a b:1", "https://h:1"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    /// Bodies are complete for every split of the input and every framing: content-length, chunked and
    /// close-delimited.
    #[test]
    fn bodies_are_put_together() {
        let head = "HTTP/1.1 200 OK\r\n";
        let answers = [
            format!("{head}content-length: 5\r\n\r\nhello"),
            format!("{head}Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n"),
            format!("{head}\r\nhello"),
        ];
        for answer in answers {
            let mut found = None;
            for length in 1..=answer.len() {
                found = body(&answer.as_bytes()[..length], length == answer.len()).unwrap();
                if found.is_some() {
                    break;
                }
            }
            assert_eq!(found.as_deref(), Some(&b"hello"[..]), "{answer:?}");
        }
    }

    #[test]
    fn other_answers_are_refused() {
        let refused = |bytes: &[u8]| body(bytes, true).unwrap_err();
        assert_eq!(refused(b""), "closed the connection without a response");
        assert_eq!(refused(b"\0\0\x12\x04"), "not HTTP/1.1: \"\\0\\0\\u{12}\\u{4}\"");
        assert_eq!(
            refused(b"HTTP/1.1 404 Not Found\r\n\r\n"),
            "expected 200 OK, found \"HTTP/1.1 404 Not Found\""
        );
        let cut = refused(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell");
        assert_eq!(cut, "closed the connection within the response");
        let chunks = refused(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n");
        assert_eq!(chunks, "malformed HTTP/1.1 chunks");
        let huge = body(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n", false).unwrap_err();
        assert!(huge.contains("more than"), "{huge}");
        // HTTP/2 is detected before the connection closes.
        assert!(body(b"\0\0\x12\x04", false).is_err());
    }
}
