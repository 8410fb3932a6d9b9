//! Diagnoses: maps a finding to its likely cause and the next action.
//!
//! The functions perform no I/O. Each takes an observation and names the component to fix.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::reach::{PeerProtocol, PeerRole};
use super::report::Diagnosis;
use crate::ui::{self, CliExit};

pub(super) fn unresolved(host: &str, error: &str, role: PeerRole) -> Diagnosis {
    // A diagnosis may have several lines, so text from outside is escaped before it becomes part of one.
    let (host, error) = (ui::safe(host), ui::safe(error));
    let next = match role {
        PeerRole::ControlPlane => format!("getent hosts {host}; correct server_uri in the bootstrap"),
        PeerRole::Endpoint => format!("getent hosts {host}; correct the target"),
    };
    Diagnosis::new("DNS", role.exit(), format!("{host} does not resolve: {error}"))
        .expected(format!("addresses of {host}"))
        .likely("the name is misspelt, or resolves only in another network or namespace")
        .next(next)
}

pub(super) fn unconnected(failures: &[(SocketAddr, io::Error)], wait: Duration, role: PeerRole) -> Diagnosis {
    let found: Vec<_> = failures.iter().map(|(address, error)| format!("{address}: {error}")).collect();
    let kinds = || failures.iter().map(|(_, error)| error.kind());
    let (likely, next) = if kinds().all(|kind| kind == io::ErrorKind::ConnectionRefused) {
        (
            "no process listens on that port: it is not running, is starting, or uses another port"
                .to_owned(),
            format!("start {}, or correct the port", role.name()),
        )
    } else if kinds().any(|kind| kind == io::ErrorKind::TimedOut) {
        (
            format!(
                "packets are dropped: a firewall or network policy, a wrong address, or a machine that is down (waited {wait:?})"
            ),
            "try from a machine next to it; ask the operator of the network".to_owned(),
        )
    } else {
        ("no route to that network".to_owned(), "check routes and VPN: ip route get ADDRESS".to_owned())
    };
    Diagnosis::new("TCP", role.exit(), found.join("\n"))
        .expected(format!("a connection to {}", role.name()))
        .likely(likely)
        .next(next)
}

pub(super) fn no_socket(path: &Path, error: &io::Error, role: PeerRole) -> Diagnosis {
    let likely = match error.kind() {
        io::ErrorKind::NotFound => "no such file: its server has not started, or the path is wrong",
        io::ErrorKind::PermissionDenied => "the socket belongs to another user",
        io::ErrorKind::ConnectionRefused => "the file is a leftover of a server that exited",
        _ => "the path does not lead to a socket",
    };
    let path = ui::safe(&path.display().to_string());
    Diagnosis::new("TCP", role.exit(), format!("{path}: {error}"))
        .expected("a unix socket that accepts connections")
        .likely(likely)
        .next(format!("ls -l {path}"))
}

/// Diagnoses a failed handshake of the channel. `protocol` is the result of a plaintext probe.
pub(super) fn no_http2(
    step: &'static str,
    is_tls: bool,
    found: &str,
    protocol: &PeerProtocol,
    role: PeerRole,
) -> Diagnosis {
    let (expected, likely, next) =
        if is_tls { tls(found, protocol, role) } else { in_the_clear(protocol, role) };
    Diagnosis::new(step, role.exit(), with_plaintext_reply(found, protocol))
        .expected(expected)
        .likely(likely)
        .next(next)
}

/// Returns the channel's error, with the reply to the plaintext probe appended.
fn with_plaintext_reply(found: &str, protocol: &PeerProtocol) -> String {
    match protocol {
        PeerProtocol::Http1(line) => format!("{found}\nin plaintext it responds with {line:?}"),
        PeerProtocol::Other(bytes) => format!("{found}\nin plaintext it responds with {bytes:?}"),
        PeerProtocol::Tls => format!("{found}\nin plaintext it responds with a TLS alert"),
        _ => found.to_owned(),
    }
}

fn how_to_secure(role: PeerRole) -> &'static str {
    match role {
        PeerRole::ControlPlane => "set channel_creds of the bootstrap to [{\"type\": \"tls\"}]",
        PeerRole::Endpoint => "use TLS credentials for the channel (here: --tls, or --ca FILE)",
    }
}

fn how_to_unsecure(role: PeerRole) -> &'static str {
    match role {
        PeerRole::ControlPlane => {
            "use its TLS port, or set channel_creds of the bootstrap to [{\"type\": \"insecure\"}]"
        }
        PeerRole::Endpoint => "use its TLS port, or a channel without TLS",
    }
}

fn tls(found: &str, protocol: &PeerProtocol, role: PeerRole) -> (String, String, String) {
    let text =
        |expected: &str, likely: &str, next: &str| (expected.to_owned(), likely.to_owned(), next.to_owned());
    let plaintext = matches!(protocol, PeerProtocol::Http2 | PeerProtocol::Http1(_));
    if plaintext || found.contains("does not support TLS") {
        text("TLS", "the client uses TLS, the port is plaintext", how_to_unsecure(role))
    } else if found.contains("UnknownIssuer") {
        text(
            "a certificate that a trusted CA signed",
            "the server's certificate is from a CA that is not trusted here",
            match role {
                PeerRole::ControlPlane => {
                    "name the CA: \"config\": {\"ca_certificate_file\": \"/path/ca.pem\"} in channel_creds"
                }
                PeerRole::Endpoint => "name the CA: Credentials::tls().ca_file(...) (here: --ca FILE)",
            },
        )
    } else if found.contains("not valid for name") || found.contains("NotValidForName") {
        text(
            "a certificate for the requested name",
            "the certificate is for another name: the address is that of another server, or the certificate lacks the name",
            "use a name that the certificate has, or have it issued for this one",
        )
    } else if found.contains("expired") || found.contains("Expired") {
        text(
            "a certificate that is valid now",
            "the server's certificate has expired, or a clock is skewed",
            "renew it; check the clocks",
        )
    } else if found.contains("the server refused") {
        text(
            "a server that accepts the client certificate",
            "the server requires a client certificate (mTLS), and received none or another one",
            "name certificate_file and private_key_file beside the CA",
        )
    } else if found.contains("ALPN") {
        text(
            "HTTP/2 over TLS (ALPN \"h2\")",
            "a web server or proxy for HTTP/1 only",
            "enable HTTP/2 there, or use the gRPC port",
        )
    } else if matches!(protocol, PeerProtocol::Silent) {
        text(
            "a TLS handshake",
            "the port accepts connections and sends nothing: another protocol, or a server that hangs",
            "check the port, and the server's log",
        )
    } else {
        text(
            "a TLS handshake",
            "the peer does not complete the handshake",
            "look into the server's log; openssl s_client -connect HOST:PORT -alpn h2",
        )
    }
}

fn in_the_clear(protocol: &PeerProtocol, role: PeerRole) -> (String, String, String) {
    let expected = "plaintext HTTP/2 with prior knowledge".to_owned();
    let (likely, next) = match protocol {
        PeerProtocol::Tls => {
            ("the port requires TLS, the client uses plaintext".to_owned(), how_to_secure(role).to_owned())
        }
        PeerProtocol::Http1(_) => (
            "an HTTP/1 server: a web or metrics port, or a proxy without HTTP/2".to_owned(),
            "use the gRPC port".to_owned(),
        ),
        PeerProtocol::Other(_) => ("a server of another protocol".to_owned(), "check the port".to_owned()),
        PeerProtocol::Closed => (
            "the server closes the connection: it may require TLS, or is not a gRPC server".to_owned(),
            format!("check the port; for TLS {}", how_to_secure(role)),
        ),
        PeerProtocol::Silent => (
            "the port accepts connections and sends nothing: it waits for TLS or another protocol, or hangs"
                .to_owned(),
            format!("check the port, and the server's log; for TLS {}", how_to_secure(role)),
        ),
        PeerProtocol::Http2 => (
            "it works on retry: the server was starting, or is overloaded".to_owned(),
            "try again".to_owned(),
        ),
        PeerProtocol::Unreachable(_) => (
            "it no longer accepts connections: it is restarting, or drops connections".to_owned(),
            "look into the server's log, and try again".to_owned(),
        ),
    };
    (expected, likely, next)
}

/// Completes the diagnosis of a missing listener when the control plane serves only Envoy listeners.
/// `is_grpc_node` is true if the node's metadata requests listeners for gRPC.
pub(super) fn envoy_listeners(diagnosis: Diagnosis, is_grpc_node: bool) -> Diagnosis {
    let diagnosis = diagnosis.expected("a listener with an api_listener, as gRPC clients require");
    if is_grpc_node {
        return diagnosis
            .likely("the control plane has listeners for Envoy only: filter chains, and no api_listener")
            .next("have it serve listeners for gRPC clients to this node; its log may have the reason");
    }
    diagnosis
        .likely("the control plane treats this client as Envoy: its listeners have filter chains and no api_listener. Istio does so for nodes without GENERATOR: grpc")
        .next("for Istio add \"metadata\": {\"GENERATOR\": \"grpc\"} to node in the bootstrap; its agent does so for pods with the template grpc-agent")
}

/// Diagnoses an ADS stream that cannot be opened. `found` contains the status code as text.
pub(super) fn no_stream(found: &str) -> Diagnosis {
    let has = |word: &str| found.contains(word);
    let (likely, next) = if has("Unimplemented") && (has("HTTP status") || has("content type")) {
        (
            "an HTTP/2 server that is not gRPC, or a proxy without a route for the path (404)",
            "use the xDS port of the control plane",
        )
    } else if has("Unimplemented") {
        (
            "a gRPC server that is not a control plane: it has no AggregatedDiscoveryService",
            "use the xDS port; Istio's is 15010 or 15012, go-control-plane's is often 18000",
        )
    } else if has("Unauthenticated") {
        (
            "the control plane requires authentication: a client certificate or a token",
            "add certificate_file and private_key_file to channel_creds, or the required token",
        )
    } else if has("PermissionDenied") {
        (
            "the control plane authenticated this node and denies it access",
            "check node.id, node.cluster and the identity in the certificate with the operator",
        )
    } else if has("HTTP status") || has("content type") {
        ("an HTTP/2 server or proxy that is not gRPC", "use the xDS port of the control plane")
    } else if has("ended the stream before a response") {
        (
            "the control plane ends every stream at once: it rejects the node, is overloaded, or accepts only one stream",
            "look into its log for this node id",
        )
    } else {
        ("the connection ends as soon as the stream is opened", "look into the control plane's log")
    };
    Diagnosis::new("ADS", CliExit::Findings, found)
        .expected("a stream of AggregatedDiscoveryService that stays open")
        .likely(likely)
        .next(next)
}
