//! gRPC target strings, the names that a channel is created for.
//!
//! | target | meaning |
//! |---|---|
//! | `xds:///orders`, `xds://AUTHORITY/orders` | resolved by the control plane; the bootstrap interprets the name |
//! | `dns:///host:port`, `dns:host:port`, `host:port` | a name to resolve |
//! | `ipv4:1.2.3.4:80,5.6.7.8:80`, `ipv6:[::1]:80,[::2]:80` | these addresses |
//! | `unix:/path`, `unix:///path`, `unix:relative` | the socket at this path |
//!
//! A target is parsed once, when the channel is built. The `server_uri` of a control plane has the same syntax.
//! Resolving and connecting are left to the driver.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use evenkeel_core::Address;

use crate::bootstrap::TargetError;
use crate::resource::name::{decoded, encode_authority};
use crate::text::quoted;

/// Default port of targets (gRPC's naming document).
const DEFAULT_PORT: u16 = 443;

/// Maximum length of a target in bytes. A list of many addresses may be long.
const MAX_BYTES: usize = 1 << 20;

/// Maximum length of a DNS name and of one of its labels, in bytes (RFC 1035).
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// Supported targets, for error messages.
const SCHEMES: &str = "xds:///name, dns:///host:port, ipv4:address:port, ipv6:[address]:port or unix:/path";

/// Supported targets of control planes, for error messages.
const SERVER_SCHEMES: &str =
    "host:port, dns:///host:port, ipv4:address:port, ipv6:[address]:port or unix:/path";

/// A parsed target: its kind, the default authority and the host for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelTarget {
    kind: TargetKind,
    /// Default `:authority`, derived as in gRPC.
    authority: String,
    /// Name that certificates must be valid for.
    host: String,
}

/// Kind of a target, with the data to resolve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// Resolved by a control plane. `text` is the whole target, for `Bootstrap::listener_name`.
    Xds {
        /// Target with its scheme.
        text: String,
    },
    /// A DNS name, or an IP address without brackets.
    Dns {
        /// Name to look up.
        host: String,
        /// Port of the addresses.
        port: u16,
    },
    /// A list of at least one address.
    Fixed(Vec<Address>),
}

impl ChannelTarget {
    /// Parses the target of a channel.
    pub fn parse(text: &str) -> Result<ChannelTarget, TargetError> {
        read(text, SCHEMES).map_err(|problem| TargetError::new("target", text, problem))
    }

    /// Parses the `server_uri` of a control plane: any target except `xds:`, which would need a control plane itself.
    pub fn parse_server_uri(text: &str) -> Result<ChannelTarget, TargetError> {
        let target = read(text, SERVER_SCHEMES).and_then(|target| match target.kind {
            TargetKind::Xds { .. } => {
                Err("expected an address such as dns:///host:port, found a target that needs a control plane"
                    .to_owned())
            }
            TargetKind::Dns { .. } | TargetKind::Fixed(_) => Ok(target),
        });
        target.map_err(|problem| TargetError::new("server_uri", text, problem))
    }

    /// Returns the kind of the target.
    pub fn kind(&self) -> &TargetKind {
        &self.kind
    }

    /// Returns the default `:authority` of calls. It is the percent-encoded path of the target, the first address of
    /// a list, or `localhost` for unix sockets. An xDS name may be invalid as an HTTP authority
    /// (`xds:///shop/orders`).
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Returns the host for SNI and certificate verification: a DNS name, or an IP address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }
}

fn read(text: &str, schemes: &str) -> Result<ChannelTarget, String> {
    if text.is_empty() {
        return Err(format!("expected {schemes}"));
    }
    if text.len() > MAX_BYTES {
        return Err(format!("has {} bytes; at most {MAX_BYTES} are allowed", text.len()));
    }
    if let Some(mark) = text.chars().find(|c| matches!(c, '?' | '#')) {
        let escaped = u32::from(mark);
        return Err(format!(
            "{mark} is not allowed in a target; write %{escaped:02X} if the name contains it"
        ));
    }
    let (scheme, rest) = text.split_once(':').unwrap_or(("", text));
    match scheme.to_ascii_lowercase().as_str() {
        "xds" => xds(text, rest),
        "dns" => dns(path("dns", "a name server", rest)?),
        "ipv4" => fixed(path("ipv4", "an authority", rest)?, "an IPv4 address", |ip| {
            ip.parse::<Ipv4Addr>().ok().map(|ip| (IpAddr::V4(ip), 0))
        }),
        "ipv6" => fixed(path("ipv6", "an authority", rest)?, "an IPv6 address in brackets", scoped),
        "unix" => unix(rest),
        "unix-abstract" => Err("abstract sockets are not supported; expected unix:/path".to_owned()),
        "http" | "https" if rest.starts_with("//") => {
            Err("expected dns:///host:port; the credentials configure TLS, not the target".to_owned())
        }
        _ if rest.starts_with("//") => Err(format!("expected {schemes}, found scheme {}", quoted(scheme))),
        // `orders:80` is a name with a port, not a scheme.
        _ => dns(text),
    }
}

/// Strips the slashes and the authority, which must be empty, between scheme and path.
fn path<'a>(scheme: &str, what: &str, rest: &'a str) -> Result<&'a str, String> {
    let Some(rest) = rest.strip_prefix("//") else { return Ok(rest.strip_prefix('/').unwrap_or(rest)) };
    match rest.split_once('/') {
        Some(("", path)) => Ok(path),
        None => Err(format!("expected three slashes, {scheme}:///..., or none, found two")),
        Some((authority, _)) => {
            Err(format!("expected {scheme}:///..., found {}: {what} is not supported", quoted(authority)))
        }
    }
}

fn xds(text: &str, rest: &str) -> Result<ChannelTarget, String> {
    let path = match rest.strip_prefix("//") {
        Some(rest) => rest.split_once('/').map_or("", |(_authority, path)| path),
        None => rest.strip_prefix('/').unwrap_or(rest),
    };
    if path.is_empty() {
        return Err("expected the name of a service, as in xds:///orders".to_owned());
    }
    let path = decoded(path)?;
    let host = match split_port(&path) {
        Ok((host, _port)) if !host.is_empty() => host,
        // A service name may be any text.
        _ => &path,
    };
    let host = host.to_owned();
    Ok(ChannelTarget {
        kind: TargetKind::Xds { text: text.to_owned() },
        authority: encode_authority(&path),
        host,
    })
}

fn dns(path: &str) -> Result<ChannelTarget, String> {
    let path = decoded(path)?;
    let (host, port) = split_port(&path)?;
    let port = port.unwrap_or(DEFAULT_PORT);
    let ip = is_ip(host);
    if !ip {
        check_name(host)?;
    }
    // Certificates contain neither the zone of an address nor the dot of an absolute name.
    let name = if ip { host.split('%').next() } else { host.strip_suffix('.') };
    let name = name.unwrap_or(host).to_owned();
    // An IPv6 address without a port needs no brackets here, but it does in an authority.
    let authority = if path == host && ip && host.contains(':') { format!("[{host}]") } else { path.clone() };
    Ok(ChannelTarget {
        kind: TargetKind::Dns { host: host.to_owned(), port },
        authority: encode_authority(&authority),
        host: name,
    })
}

/// Parses a comma-separated list of addresses. `read` parses an IP address and its scope id, which is 0 if absent.
fn fixed(
    path: &str,
    what: &str,
    read: impl Fn(&str) -> Option<(IpAddr, u32)>,
) -> Result<ChannelTarget, String> {
    let path = decoded(path)?;
    let mut addresses = Vec::new();
    for text in path.split(',') {
        let (host, port) = split_port(text)?;
        let Some((ip, scope)) = read(host) else {
            return Err(format!("expected {what} and a port between commas, found {}", quoted(text)));
        };
        let mut address = SocketAddr::new(ip, port.unwrap_or(DEFAULT_PORT));
        if let SocketAddr::V6(address) = &mut address {
            address.set_scope_id(scope);
        }
        addresses.push(address);
    }
    // `split` returns at least one part.
    let Some(first) = addresses.first() else { return Err(format!("expected {what}")) };
    Ok(ChannelTarget {
        authority: encode_authority(&first.to_string()),
        host: first.ip().to_string(),
        kind: TargetKind::Fixed(addresses.into_iter().map(Address::Ip).collect()),
    })
}

/// Parses an IPv6 address with an optional numeric scope id: `fe80::1%2`.
fn scoped(text: &str) -> Option<(IpAddr, u32)> {
    let (ip, scope) = text.split_once('%').unwrap_or((text, "0"));
    Some((IpAddr::V6(ip.parse().ok()?), scope.parse().ok()?))
}

fn unix(rest: &str) -> Result<ChannelTarget, String> {
    let path = match rest.strip_prefix("//") {
        Some(path) if !path.starts_with('/') => {
            return Err("expected an absolute path behind unix://, as in unix:///path".to_owned());
        }
        Some(path) => path,
        None => rest,
    };
    let path = decoded(path)?;
    check_socket(&path)?;
    Ok(ChannelTarget {
        kind: TargetKind::Fixed(vec![Address::Unix(path.into())]),
        authority: "localhost".to_owned(),
        host: "localhost".to_owned(),
    })
}

/// Checks a socket path with the operating system's rules for length and content.
#[cfg(unix)]
fn check_socket(path: &str) -> Result<(), String> {
    if path.is_empty() {
        return Err("expected the path of a socket, as in unix:/path".to_owned());
    }
    match std::os::unix::net::SocketAddr::from_pathname(path) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("expected the path of a socket: {error}")),
    }
}

#[cfg(not(unix))]
fn check_socket(_path: &str) -> Result<(), String> {
    Err("unix sockets are not supported on this system".to_owned())
}

/// Splits a host, returned without brackets, from its optional port.
fn split_port(text: &str) -> Result<(&str, Option<u16>), String> {
    if is_ip(text) {
        return Ok((text, None));
    }
    let brackets = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let (host, port) = match brackets {
        Some((host, rest)) if host.contains(':') && is_ip(host) => match rest.strip_prefix(':') {
            Some(port) => (host, port),
            None if rest.is_empty() => return Ok((host, None)),
            None => {
                return Err(format!(
                    "expected a colon and a port behind the brackets, found {}",
                    quoted(rest)
                ));
            }
        },
        _ => match text.split_once(':') {
            None => return Ok((text, None)),
            Some((host, port)) if !port.contains(':') => (host, port),
            Some(_) => {
                return Err(format!(
                    "expected host:port or an IPv6 address in brackets, found {}",
                    quoted(text)
                ));
            }
        },
    };
    // `parse` alone would accept `+80`.
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse() {
        Ok(port) if digits && port > 0 => Ok((host, Some(port))),
        _ => Err(format!("expected a port from 1 to 65535 behind the host, found {}", quoted(port))),
    }
}

/// Returns true if a host is an IP address. An IPv6 address may have a zone: `fe80::1%eth0`.
fn is_ip(host: &str) -> bool {
    match host.split_once('%') {
        None => host.parse::<IpAddr>().is_ok(),
        Some((ip, zone)) => {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            ip.parse::<Ipv6Addr>().is_ok() && !zone.is_empty() && zone.bytes().all(plain)
        }
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let labels = name.strip_suffix('.').unwrap_or(name);
    if labels.is_empty() {
        return Err("expected a host, as in dns:///host:port".to_owned());
    }
    if labels.len() > MAX_NAME {
        return Err(format!("expected a host name of at most {MAX_NAME} characters, found {}", labels.len()));
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let good = |label: &str| (1..=MAX_LABEL).contains(&label.len()) && label.bytes().all(plain);
    match labels.split('.').find(|label| !good(label)) {
        None => Ok(()),
        Some(label) => Err(format!(
            "expected a host name of ASCII letters, digits, '-' and '_', at most {MAX_LABEL} between dots, found {}",
            quoted(label)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Bootstrap;

    /// Returns a summary of a parsed target: kind, authority, and host for TLS.
    fn shown(text: &str) -> Result<(String, String, String), String> {
        let target = ChannelTarget::parse(text).map_err(|error| error.to_string())?;
        let kind = match target.kind() {
            TargetKind::Xds { text } => format!("xds {text}"),
            TargetKind::Dns { host, port } => format!("dns {host} {port}"),
            TargetKind::Fixed(addresses) => format!("fixed {addresses:?}"),
        };
        Ok((kind, target.authority().to_owned(), target.host().to_owned()))
    }

    #[test]
    fn names_to_resolve() {
        for (text, kind, authority, host) in [
            (
                "dns:///orders.example.com:50051",
                "orders.example.com 50051",
                "orders.example.com:50051",
                "orders.example.com",
            ),
            ("dns:orders:50051", "orders 50051", "orders:50051", "orders"),
            ("dns:/orders:50051", "orders 50051", "orders:50051", "orders"),
            ("DNS:///orders:50051", "orders 50051", "orders:50051", "orders"),
            ("orders:50051", "orders 50051", "orders:50051", "orders"),
            ("localhost:1", "localhost 1", "localhost:1", "localhost"),
            ("orders", "orders 443", "orders", "orders"),
            ("dns:///orders", "orders 443", "orders", "orders"),
            (
                "dns:///orders.example.com.:80",
                "orders.example.com. 80",
                "orders.example.com.:80",
                "orders.example.com",
            ),
            ("dns:///_grpc.a-b.c:80", "_grpc.a-b.c 80", "_grpc.a-b.c:80", "_grpc.a-b.c"),
            ("dns:///orders%3A80", "orders 80", "orders:80", "orders"),
            // gRPC reads a scheme wherever one is possible.
            ("dns:50051", "50051 443", "50051", "50051"),
            ("127.0.0.1:80", "127.0.0.1 80", "127.0.0.1:80", "127.0.0.1"),
            ("dns:///127.0.0.1", "127.0.0.1 443", "127.0.0.1", "127.0.0.1"),
            ("[::1]:80", "::1 80", "[::1]:80", "::1"),
            ("::1", "::1 443", "[::1]", "::1"),
            ("2001:db8::1", "2001:db8::1 443", "[2001:db8::1]", "2001:db8::1"),
            ("dns:///[::1]", "::1 443", "[::1]", "::1"),
            ("dns:///%5B::1%5D:80", "::1 80", "[::1]:80", "::1"),
            ("dns:///[fe80::1%25eth0]:80", "fe80::1%eth0 80", "[fe80::1%25eth0]:80", "fe80::1"),
        ] {
            let expected = (format!("dns {kind}"), authority.to_owned(), host.to_owned());
            assert_eq!(shown(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn lists_of_addresses() {
        for (text, addresses, authority, host) in [
            ("ipv4:1.2.3.4:50051", "[1.2.3.4:50051]", "1.2.3.4:50051", "1.2.3.4"),
            ("ipv4:1.2.3.4:50051,5.6.7.8:80", "[1.2.3.4:50051, 5.6.7.8:80]", "1.2.3.4:50051", "1.2.3.4"),
            ("ipv4:///1.2.3.4:80", "[1.2.3.4:80]", "1.2.3.4:80", "1.2.3.4"),
            ("IPv4:1.2.3.4,5.6.7.8", "[1.2.3.4:443, 5.6.7.8:443]", "1.2.3.4:443", "1.2.3.4"),
            ("ipv6:[::1]:50051,[::2]:80", "[[::1]:50051, [::2]:80]", "[::1]:50051", "::1"),
            ("ipv6:%5B::1%5D:50051,%5b::2%5d:80", "[[::1]:50051, [::2]:80]", "[::1]:50051", "::1"),
            ("ipv6:::1", "[[::1]:443]", "[::1]:443", "::1"),
            ("ipv6:[::1]", "[[::1]:443]", "[::1]:443", "::1"),
            ("ipv6:[fe80::1%252]:80", "[[fe80::1%2]:80]", "[fe80::1%252]:80", "fe80::1"),
        ] {
            let expected = (format!("fixed {addresses}"), authority.to_owned(), host.to_owned());
            assert_eq!(shown(text), Ok(expected), "{text}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn unix_sockets() {
        for (text, path) in [
            ("unix:/run/orders", "/run/orders"),
            ("unix:///run/orders", "/run/orders"),
            ("unix:run/orders", "run/orders"),
            ("unix:/run/a%20b%3F", "/run/a b?"),
        ] {
            let expected = (format!("fixed [unix:{path}]"), "localhost".to_owned(), "localhost".to_owned());
            assert_eq!(shown(text), Ok(expected), "{text}");
        }
    }

    /// FED-5: the authority is the path, independent of the xDS authority of the listener. The xDS client selects
    /// virtual hosts by the same value.
    #[test]
    fn names_of_control_planes() {
        let bootstrap = Bootstrap::from_json(
            r#"{
                "xds_servers": [{"server_uri": "a", "channel_creds": [{"type": "insecure"}]}],
                "authorities": {"eu.example.com": {}, "a b": {}}
            }"#,
        );
        let bootstrap = bootstrap.unwrap();
        for (text, authority, host) in [
            ("xds:///orders", "orders", "orders"),
            ("xds:orders", "orders", "orders"),
            ("xds:/orders", "orders", "orders"),
            ("XDS:///orders:8080", "orders:8080", "orders"),
            ("xds://eu.example.com/orders:80", "orders:80", "orders"),
            ("xds://a%20b/orders", "orders", "orders"),
            ("xds:///[::1]:80", "[::1]:80", "::1"),
        ] {
            let expected = (format!("xds {text}"), authority.to_owned(), host.to_owned());
            assert_eq!(shown(text), Ok(expected), "{text}");
            assert_eq!(bootstrap.listener_name(text).unwrap().authority, authority, "{text}");
        }
        for (text, authority) in [
            ("xds:///shop/orders", "shop%2Forders"),
            ("xds:////orders", "%2Forders"),
            ("xds:///a%20b%3F", "a%20b%3F"),
            ("xds:///caf\u{e9}", "caf%C3%A9"),
            ("xds:///a:b:c", "a:b:c"),
        ] {
            assert_eq!(shown(text).map(|(_, authority, _)| authority), Ok(authority.to_owned()), "{text}");
            assert_eq!(bootstrap.listener_name(text).unwrap().authority, authority, "{text}");
        }
    }

    #[test]
    fn control_planes_are_no_names_of_control_planes() {
        let uri = |text| {
            ChannelTarget::parse_server_uri(text).map(|target| target.kind).map_err(|error| error.to_string())
        };
        assert_eq!(
            uri("xds.example.com:443"),
            Ok(TargetKind::Dns { host: "xds.example.com".to_owned(), port: 443 })
        );
        #[cfg(unix)]
        assert_eq!(
            uri("unix:///etc/istio/proxy/XDS"),
            Ok(TargetKind::Fixed(vec!["unix:/etc/istio/proxy/XDS".into()]))
        );
        let problem =
            "expected an address such as dns:///host:port, found a target that needs a control plane";
        assert_eq!(uri("xds:///orders"), Err(format!("server_uri \"xds:///orders\": {problem}")));
        assert!(
            uri("").is_err_and(
                |error| error.starts_with("server_uri \"\": expected host:port, dns:///host:port")
            )
        );
    }

    #[test]
    fn invalid_targets_are_rejected_with_a_reason() {
        let port = |found: &str| format!("expected a port from 1 to 65535 behind the host, found {found:?}");
        let name = |found: &str| {
            let what = "ASCII letters, digits, '-' and '_', at most 63 between dots";
            format!("expected a host name of {what}, found {found:?}")
        };
        let list =
            |what: &str, found: &str| format!("expected {what} and a port between commas, found {found:?}");
        let brackets =
            |found: &str| format!("expected host:port or an IPv6 address in brackets, found {found:?}");
        let (v4, v6) = ("an IPv4 address", "an IPv6 address in brackets");
        let host = "expected a host, as in dns:///host:port".to_owned();
        let service = "expected the name of a service, as in xds:///orders".to_owned();
        let tls = "expected dns:///host:port; the credentials configure TLS, not the target";
        let cases: Vec<(&str, String)> = vec![
            ("", format!("expected {SCHEMES}")),
            ("http://orders:80", tls.to_owned()),
            ("https://orders", tls.to_owned()),
            ("etcd:///orders", format!("expected {SCHEMES}, found scheme \"etcd\"")),
            ("://orders", format!("expected {SCHEMES}, found scheme \"\"")),
            ("unix-abstract:orders", "abstract sockets are not supported; expected unix:/path".to_owned()),
            ("orders:80?a=b", "? is not allowed in a target; write %3F if the name contains it".to_owned()),
            ("unix:/a#b", "# is not allowed in a target; write %23 if the name contains it".to_owned()),
            (
                "dns://8.8.8.8/orders:80",
                "expected dns:///..., found \"8.8.8.8\": a name server is not supported".to_owned(),
            ),
            (
                "ipv4://a/1.2.3.4:80",
                "expected ipv4:///..., found \"a\": an authority is not supported".to_owned(),
            ),
            ("dns://orders:80", "expected three slashes, dns:///..., or none, found two".to_owned()),
            ("dns:", host.clone()),
            ("dns:///", host.clone()),
            (":80", host.clone()),
            (".", host.clone()),
            ("orders:", port("")),
            ("orders:0", port("0")),
            ("orders:65536", port("65536")),
            ("orders:+80", port("+80")),
            ("orders:80/a", port("80/a")),
            ("etcd:orders", port("orders")),
            ("[::1]80", "expected a colon and a port behind the brackets, found \"80\"".to_owned()),
            ("[::1", brackets("[::1")),
            ("[orders]:80", name("[orders]")),
            ("[1.2.3.4]:80", name("[1")),
            ("::1:50051", brackets("::1:50051")),
            ("dns:///[fe80::1%25]:80", brackets("[fe80::1%]:80")),
            ("a b:80", name("a b")),
            ("a..b", name("")),
            ("a/b", name("a/b")),
            ("a,b", name("a,b")),
            ("orders\n:80", name("orders\n")),
            ("orders%00:80", name("orders\0")),
            ("caf\u{e9}:80", name("caf\u{e9}")),
            ("\u{1f600}", name("\u{1f600}")),
            ("dns:///100%", "\"100%\": expected two hexadecimal digits after each %".to_owned()),
            ("dns:///%4", "\"%4\": expected two hexadecimal digits after each %".to_owned()),
            ("dns:///%+1", "\"%+1\": expected two hexadecimal digits after each %".to_owned()),
            ("dns:///%\u{e9}", "\"%\u{e9}\": expected two hexadecimal digits after each %".to_owned()),
            ("dns:///%ff", "\"%ff\": is not UTF-8 when percent-decoded".to_owned()),
            ("xds:", service.clone()),
            ("xds:///", service.clone()),
            ("xds://eu.example.com", service.clone()),
            ("xds:///%", "\"%\": expected two hexadecimal digits after each %".to_owned()),
            ("ipv4:", list(v4, "")),
            ("ipv4:1.2.3.4:80,", list(v4, "")),
            ("ipv4:orders:80", list(v4, "orders:80")),
            ("ipv4:1.2.3:80", list(v4, "1.2.3:80")),
            ("ipv4:[::1]:80", list(v4, "[::1]:80")),
            ("ipv4:1.2.3.4:80:81", brackets("1.2.3.4:80:81")),
            ("ipv4:1.2.3.4:http", port("http")),
            ("ipv6:1.2.3.4:80", list(v6, "1.2.3.4:80")),
            ("ipv6:[::1]:80,", list(v6, "")),
            ("ipv6:[::1%25eth0]:80", list(v6, "[::1%eth0]:80")),
        ];
        for (text, problem) in cases {
            assert_eq!(shown(text), Err(format!("target {text:?}: {problem}")));
        }
    }

    #[cfg(unix)]
    #[test]
    fn unix_sockets_that_cannot_be() {
        let path = "expected the path of a socket, as in unix:/path";
        assert_eq!(read("unix:", SCHEMES), Err(path.to_owned()));
        assert_eq!(
            read("unix:///%", SCHEMES),
            Err("\"/%\": expected two hexadecimal digits after each %".to_owned())
        );
        assert_eq!(
            read("unix://run/orders", SCHEMES),
            Err("expected an absolute path behind unix://, as in unix:///path".to_owned())
        );
        for text in [format!("unix:/{}", "a".repeat(200)), "unix:/a%00b".to_owned()] {
            let error = read(&text, SCHEMES).unwrap_err();
            assert!(error.starts_with("expected the path of a socket: "), "{error}");
        }
    }

    #[test]
    fn errors_of_targets_are_short() {
        let long = "a".repeat(300);
        let many = vec!["a"; 200].join(".");
        for (text, problem) in [
            (long.clone(), "expected a host name of at most 253 characters, found 300"),
            (many, "expected a host name of at most 253 characters, found 399"),
            ("a".repeat(64), "at most 63 between dots"),
            ("x".repeat(2 << 20), "has 2097152 bytes; at most 1048576 are allowed"),
            (format!("dns:///{}", "%".repeat(1000)), "expected two hexadecimal digits"),
            (format!("ipv4:{long}"), "expected an IPv4 address"),
            (format!("{long}://"), "found scheme"),
            (format!("orders:{long}"), "expected a port"),
            (format!("orders:{}", "9".repeat(1000)), "expected a port"),
            (format!("dns://{long}/orders"), "a name server is not supported"),
            ("[".repeat(1000), "expected a host name"),
            (":".repeat(1000), "expected host:port"),
        ] {
            let error = ChannelTarget::parse(&text).unwrap_err().to_string();
            assert!(error.contains(problem) && error.len() < 600, "{error}");
        }
        // A list of addresses may be long.
        let list = vec!["10.0.0.1:80"; 10_000].join(",");
        let target = ChannelTarget::parse(&format!("ipv4:{list}")).unwrap();
        assert!(matches!(target.kind(), TargetKind::Fixed(addresses) if addresses.len() == 10_000));
    }

    /// Every combination of up to four significant parts is either parsed or rejected without a panic, and a parsed
    /// target has a host.
    #[test]
    fn all_short_texts_are_read_or_refused() {
        let pieces = [
            "xds:", "dns:", "ipv4:", "ipv6:", "unix:", "/", "//", "[", "]", "::1", ":", ",", "%", "%5B",
            "80", "a", "\0", "\u{e9}",
        ];
        let mut texts = vec![String::new()];
        for _ in 0..4 {
            let longer = texts.iter().flat_map(|text| pieces.map(|piece| format!("{text}{piece}")));
            texts = longer.collect();
            for text in &texts {
                match ChannelTarget::parse(text) {
                    Ok(target) => {
                        assert!(!target.host().is_empty(), "{text:?}");
                        assert!(!target.authority().is_empty(), "{text:?}");
                    }
                    Err(error) => assert!(!error.to_string().contains('\0'), "{text:?}"),
                }
            }
        }
    }
}
