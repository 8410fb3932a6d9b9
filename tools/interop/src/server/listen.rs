//! Listening socket of the server: on all interfaces, for IPv4, IPv6 or both.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::server::TcpIncoming;

/// Address families that the server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addresses {
    V4,
    V6,
    Both,
    /// Both, or IPv4 only if IPv6 is unavailable.
    Any,
}

impl Addresses {
    /// Parses the value of `--address_type`. The error describes the expectation.
    pub(super) fn read(text: &str) -> Result<Addresses, String> {
        match text.to_ascii_lowercase().as_str() {
            "" => Ok(Addresses::Any),
            "ipv4" => Ok(Addresses::V4),
            "ipv6" => Ok(Addresses::V6),
            "ipv4_ipv6" => Ok(Addresses::Both),
            _ => Err("ipv4, ipv6 or ipv4_ipv6".to_owned()),
        }
    }
}

/// Returns the incoming connections and the listening address. Port 0 selects a free one.
pub(super) fn listen(
    port: u16,
    addresses: Addresses,
) -> io::Result<(impl Stream<Item = io::Result<TcpStream>>, SocketAddr)> {
    let v4 = || TcpIncoming::bind((Ipv4Addr::UNSPECIFIED, port).into());
    let v6 = || TcpIncoming::bind((Ipv6Addr::UNSPECIFIED, port).into());
    let incoming = match addresses {
        Addresses::V4 => v4(),
        Addresses::V6 | Addresses::Both => v6(),
        Addresses::Any => v6().or_else(|_| v4()),
    }?;
    let address = incoming.local_addr()?;
    // An IPv6 socket accepts IPv4 as well. The standard library cannot set IPV6_V6ONLY, so such connections
    // are dropped.
    let is_welcome = move |stream: &TcpStream| {
        addresses != Addresses::V6 || stream.peer_addr().is_ok_and(|peer| peer.ip().to_canonical().is_ipv6())
    };
    let incoming = incoming.with_nodelay(Some(true));
    Ok((incoming.filter(move |stream| stream.as_ref().map_or(true, is_welcome)), address))
}
