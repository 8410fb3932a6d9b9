//! Where the server listens: on all interfaces, for IPv4, IPv6 or both.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::server::TcpIncoming;

/// Who can connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addresses {
    V4,
    V6,
    Both,
    /// Both, or those of IPv4 where there is no IPv6.
    Any,
}

impl Addresses {
    /// The value of `--address_type`; the error says what is expected.
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

/// The connections that come, and where they come. Port 0 is a free one.
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
    // A socket of IPv6 takes IPv4 as well. The standard library cannot ask it not to, so those who come are sent away.
    let is_welcome = move |stream: &TcpStream| {
        addresses != Addresses::V6 || stream.peer_addr().is_ok_and(|peer| peer.ip().to_canonical().is_ipv6())
    };
    let incoming = incoming.with_nodelay(Some(true));
    Ok((incoming.filter(move |stream| stream.as_ref().map_or(true, is_welcome)), address))
}
