//! What is found, and what that most likely means: the words of the walk.
//!
//! Nothing here looks at anything; each function takes what was seen and says whose turn it is.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::reach::{Speaks, Who};
use super::report::Trouble;
use crate::ui::{self, Exit};

pub(super) fn unresolved(host: &str, error: &str, who: Who) -> Trouble {
    // Troubles may have several lines, so text of others is escaped before it becomes part of one.
    let (host, error) = (ui::safe(host), ui::safe(error));
    let next = match who {
        Who::ControlPlane => format!("getent hosts {host}; correct server_uri in the bootstrap"),
        Who::Endpoint => format!("getent hosts {host}; correct the target"),
    };
    Trouble::new("DNS", who.exit(), format!("{host} does not resolve: {error}"))
        .expected(format!("addresses of {host}"))
        .likely("the name is misspelt, or is known only in another network or namespace")
        .next(next)
}

pub(super) fn unconnected(failures: &[(SocketAddr, io::Error)], wait: Duration, who: Who) -> Trouble {
    let found: Vec<_> = failures.iter().map(|(address, error)| format!("{address}: {error}")).collect();
    let kinds = || failures.iter().map(|(_, error)| error.kind());
    let (likely, next) = if kinds().all(|kind| kind == io::ErrorKind::ConnectionRefused) {
        (
            "nobody listens on that port: it is not running, still starts, or has another port".to_owned(),
            format!("start {}, or correct the port", who.name()),
        )
    } else if kinds().any(|kind| kind == io::ErrorKind::TimedOut) {
        (
            format!(
                "packets vanish: a firewall or network policy, a wrong address, or a machine that is down (waited {wait:?})"
            ),
            "try from a machine next to it; ask who runs the network".to_owned(),
        )
    } else {
        (
            "there is no way to that network from here".to_owned(),
            "check routes and VPN: ip route get ADDRESS".to_owned(),
        )
    };
    Trouble::new("TCP", who.exit(), found.join("\n"))
        .expected(format!("a connection to {}", who.name()))
        .likely(likely)
        .next(next)
}

pub(super) fn no_socket(path: &Path, error: &io::Error, who: Who) -> Trouble {
    let likely = match error.kind() {
        io::ErrorKind::NotFound => "there is no such file: its server has not started, or the path is wrong",
        io::ErrorKind::PermissionDenied => "the socket belongs to another user",
        io::ErrorKind::ConnectionRefused => "the file is left over from a server that has ended",
        _ => "the path does not lead to a socket",
    };
    let path = ui::safe(&path.display().to_string());
    Trouble::new("TCP", who.exit(), format!("{path}: {error}"))
        .expected("a unix socket that takes connections")
        .likely(likely)
        .next(format!("ls -l {path}"))
}

/// The channel's handshake failed. `speaks` is what a second look in the clear found.
pub(super) fn no_http2(step: &'static str, is_tls: bool, found: &str, speaks: &Speaks, who: Who) -> Trouble {
    let (expected, likely, next) = if is_tls { tls(found, speaks, who) } else { in_the_clear(speaks, who) };
    Trouble::new(step, who.exit(), said(found, speaks)).expected(expected).likely(likely).next(next)
}

/// What the channel said, and what the second look adds to it.
fn said(found: &str, speaks: &Speaks) -> String {
    match speaks {
        Speaks::Http1(line) => format!("{found}\nin the clear it answers {line:?}"),
        Speaks::Other(bytes) => format!("{found}\nin the clear it answers {bytes:?}"),
        Speaks::Tls => format!("{found}\nin the clear it answers with an alert of TLS"),
        _ => found.to_owned(),
    }
}

fn how_to_secure(who: Who) -> &'static str {
    match who {
        Who::ControlPlane => "set channel_creds of the bootstrap to [{\"type\": \"tls\"}]",
        Who::Endpoint => "use TLS credentials for the channel (here: --tls, or --ca FILE)",
    }
}

fn how_to_unsecure(who: Who) -> &'static str {
    match who {
        Who::ControlPlane => {
            "use its TLS port, or set channel_creds of the bootstrap to [{\"type\": \"insecure\"}]"
        }
        Who::Endpoint => "use its TLS port, or a channel without TLS",
    }
}

fn tls(found: &str, speaks: &Speaks, who: Who) -> (String, String, String) {
    let text =
        |expected: &str, likely: &str, next: &str| (expected.to_owned(), likely.to_owned(), next.to_owned());
    let plaintext = matches!(speaks, Speaks::Http2 | Speaks::Http1(_));
    if plaintext || found.contains("does not speak TLS") {
        text("TLS", "TLS is spoken to a port that is in the clear", how_to_unsecure(who))
    } else if found.contains("UnknownIssuer") {
        text(
            "a certificate that a trusted CA signed",
            "the server's certificate comes from a CA that is not trusted here",
            match who {
                Who::ControlPlane => {
                    "name the CA: \"config\": {\"ca_certificate_file\": \"/path/ca.pem\"} in channel_creds"
                }
                Who::Endpoint => "name the CA: Credentials::tls().ca_file(...) (here: --ca FILE)",
            },
        )
    } else if found.contains("not valid for name") || found.contains("NotValidForName") {
        text(
            "a certificate for the name that is asked for",
            "the certificate is for another name: the address is that of another server, or the certificate lacks the name",
            "use a name that the certificate has, or have it issued for this one",
        )
    } else if found.contains("expired") || found.contains("Expired") {
        text(
            "a certificate that is valid now",
            "the server's certificate has expired, or a clock is wrong",
            "renew it; check the clocks",
        )
    } else if found.contains("the server refused") {
        text(
            "a server that takes our certificate",
            "the server wants a client certificate (mTLS), and has none or another one from us",
            "name certificate_file and private_key_file beside the CA",
        )
    } else if found.contains("ALPN") {
        text(
            "HTTP/2 over TLS (ALPN \"h2\")",
            "a web server or proxy for HTTP/1 only",
            "enable HTTP/2 there, or use the gRPC port",
        )
    } else if matches!(speaks, Speaks::Nothing) {
        text(
            "a TLS handshake",
            "the port takes connections and says nothing: another protocol, or a server that hangs",
            "check the port, and the server's log",
        )
    } else {
        text(
            "a TLS handshake",
            "the other side does not go through with the handshake",
            "look into the server's log; openssl s_client -connect HOST:PORT -alpn h2",
        )
    }
}

fn in_the_clear(speaks: &Speaks, who: Who) -> (String, String, String) {
    let expected = "HTTP/2 in the clear, as gRPC speaks it".to_owned();
    let (likely, next) = match speaks {
        Speaks::Tls => {
            ("the port wants TLS, and is spoken to in the clear".to_owned(), how_to_secure(who).to_owned())
        }
        Speaks::Http1(_) => (
            "an HTTP/1 server: a web or metrics port, or a proxy without HTTP/2".to_owned(),
            "use the gRPC port".to_owned(),
        ),
        Speaks::Other(_) => ("a server of another protocol".to_owned(), "check the port".to_owned()),
        Speaks::Closes => (
            "the server closes the connection: it may want TLS, or is no gRPC server".to_owned(),
            format!("check the port; for TLS {}", how_to_secure(who)),
        ),
        Speaks::Nothing => (
            "the port takes connections and says nothing: it waits for TLS or another protocol, or hangs"
                .to_owned(),
            format!("check the port, and the server's log; for TLS {}", how_to_secure(who)),
        ),
        Speaks::Http2 => (
            "it works by now: the server was just starting, or is overloaded".to_owned(),
            "try again".to_owned(),
        ),
        Speaks::Unreachable(_) => (
            "it took the connection before and does not now: it is restarting, or drops connections"
                .to_owned(),
            "look into the server's log, and try again".to_owned(),
        ),
    };
    (expected, likely, next)
}

/// Completes a failure to get a listener from a control plane that has listeners for Envoy. `is_grpc_node`: the node's
/// metadata asks for those of gRPC.
pub(super) fn envoy_listeners(trouble: Trouble, is_grpc_node: bool) -> Trouble {
    let trouble = trouble.expected("a listener with an api_listener, as gRPC clients take it");
    if is_grpc_node {
        return trouble
            .likely("the control plane has listeners for Envoy only: filter chains, and no api_listener")
            .next("have it serve listeners for gRPC clients to this node; its log may say why it does not");
    }
    trouble
        .likely("the control plane takes this client for Envoy: its listeners have filter chains and no api_listener. Istio does so for nodes without GENERATOR: grpc")
        .next("for Istio add \"metadata\": {\"GENERATOR\": \"grpc\"} to node in the bootstrap; its agent does so for pods with the template grpc-agent")
}

/// The control plane cannot be asked. `found` has the code that the stream ended with, in its text.
pub(super) fn no_stream(found: &str) -> Trouble {
    let has = |word: &str| found.contains(word);
    let (likely, next) = if has("Unimplemented") && (has("HTTP status") || has("content type")) {
        (
            "an HTTP/2 server that is not gRPC, or a proxy that does not know the path (404)",
            "use the xDS port of the control plane",
        )
    } else if has("Unimplemented") {
        (
            "a gRPC server that is no control plane: it has no AggregatedDiscoveryService",
            "use the xDS port; Istio's is 15010 or 15012, go-control-plane's is often 18000",
        )
    } else if has("Unauthenticated") {
        (
            "the control plane wants to know who asks: a client certificate or a token",
            "add certificate_file and private_key_file to channel_creds, or the token that it wants",
        )
    } else if has("PermissionDenied") {
        (
            "the control plane knows who asks, and this node may not",
            "check node.id, node.cluster and the identity in the certificate with who runs it",
        )
    } else if has("HTTP status") || has("content type") {
        ("an HTTP/2 server or proxy that is not gRPC", "use the xDS port of the control plane")
    } else if has("ended the stream before a response") {
        (
            "the control plane ends every stream at once: it does not like the node, is overloaded, or takes one stream only",
            "look into its log for this node id",
        )
    } else {
        ("the connection ends as soon as the stream is opened", "look into the control plane's log")
    };
    Trouble::new("ADS", Exit::Findings, found)
        .expected("a stream of AggregatedDiscoveryService that stays open")
        .likely(likely)
        .next(next)
}
