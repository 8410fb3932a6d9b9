//! Parses a target or a control plane's URI into the addresses that the DNS and TCP checks need.
//!
//! The channel has validated the text before, so this parser reports no errors.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Default port of gRPC targets.
const DEFAULT_PORT: u16 = 443;

/// Address of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TargetAddress {
    /// Host name to resolve by DNS.
    Name { host: String, port: u16 },
    /// IP addresses that need no DNS.
    Addresses(Vec<SocketAddr>),
    /// Path of a unix domain socket.
    Socket(PathBuf),
}

impl TargetAddress {
    pub(super) fn parse(target: &str) -> TargetAddress {
        let (scheme, rest) = target.split_once(':').unwrap_or(("", target));
        let path =
            rest.strip_prefix("//").map_or(rest, |rest| rest.split_once('/').map_or(rest, |(_, path)| path));
        let path = path.strip_prefix('/').unwrap_or(path);
        match scheme.to_ascii_lowercase().as_str() {
            "unix" => TargetAddress::Socket(rest.strip_prefix("//").unwrap_or(rest).into()),
            "ipv4" | "ipv6" => TargetAddress::Addresses(path.split(',').filter_map(address).collect()),
            "dns" => name(path),
            _ => name(target),
        }
    }
}

fn name(text: &str) -> TargetAddress {
    if let Some(address) = address(text) {
        return TargetAddress::Addresses(vec![address]);
    }
    let with_port = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = with_port.unwrap_or((text, DEFAULT_PORT));
    TargetAddress::Name { host: host.to_owned(), port }
}

fn address(text: &str) -> Option<SocketAddr> {
    let bare = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().ok();
    text.parse().ok().or_else(|| Some(SocketAddr::new(bare(text)?, DEFAULT_PORT)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        let name = |host: &str, port| TargetAddress::Name { host: host.to_owned(), port };
        let one = |address: &str| TargetAddress::Addresses(vec![address.parse().unwrap()]);
        for (target, place) in [
            ("control.prod:18000", name("control.prod", 18000)),
            ("dns:///control.prod:18000", name("control.prod", 18000)),
            ("dns:control.prod", name("control.prod", 443)),
            ("dns:///127.0.0.1:80", one("127.0.0.1:80")),
            ("127.0.0.1:80", one("127.0.0.1:80")),
            ("ipv6:[::1]:80", one("[::1]:80")),
            ("[::1]", one("[::1]:443")),
            ("ipv4:///10.0.0.1", one("10.0.0.1:443")),
            ("unix:/run/xds.sock", TargetAddress::Socket("/run/xds.sock".into())),
            ("unix:///run/xds.sock", TargetAddress::Socket("/run/xds.sock".into())),
            ("unix:xds.sock", TargetAddress::Socket("xds.sock".into())),
        ] {
            assert_eq!(TargetAddress::parse(target), place, "{target}");
        }
        let two =
            TargetAddress::Addresses(vec!["10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap()]);
        assert_eq!(TargetAddress::parse("ipv4:10.0.0.1:1,10.0.0.2:2"), two);
    }
}
