//! Where an endpoint can be reached.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;

/// One address of an endpoint. Equality is identity: two endpoints with the same address share a connection.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Address {
    /// An IP address with its port.
    Ip(SocketAddr),
    /// The path of a unix socket.
    Unix(Arc<str>),
    /// A name that only the transport understands, as in tests and simulations.
    Name(Arc<str>),
}

impl Address {
    /// The address family, for interleaving (A61): families of equal number alternate with the others.
    pub(crate) fn family(&self) -> u8 {
        match self {
            Address::Ip(SocketAddr::V6(_)) => 0,
            Address::Ip(SocketAddr::V4(_)) => 1,
            Address::Unix(_) | Address::Name(_) => 2,
        }
    }
}

/// In as few words as tell addresses apart: ten thousand are looked up when endpoints are replaced.
impl Hash for Address {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Address::Ip(SocketAddr::V4(ip)) => {
                state.write_u64(u64::from(ip.ip().to_bits()) << 16 | u64::from(ip.port()));
            }
            Address::Ip(SocketAddr::V6(ip)) => {
                let bits = ip.ip().to_bits();
                state.write_u64((bits >> 64) as u64 ^ u64::from(ip.scope_id()));
                state.write_u64(bits as u64);
                state.write_u16(ip.port());
            }
            Address::Unix(name) | Address::Name(name) => state.write(name.as_bytes()),
        }
    }
}

impl From<&str> for Address {
    /// `1.2.3.4:80` and `[::1]:80` become IP addresses, `unix:/path` a unix socket, anything else a name.
    fn from(text: &str) -> Address {
        if let Ok(ip) = text.parse() {
            Address::Ip(ip)
        } else if let Some(path) = text.strip_prefix("unix:") {
            Address::Unix(path.into())
        } else {
            Address::Name(text.into())
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(ip: SocketAddr) -> Address {
        Address::Ip(ip)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Ip(ip) => ip.fmt(f),
            Address::Unix(path) => write!(f, "unix:{path}"),
            Address::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
