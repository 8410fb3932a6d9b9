//! Addresses at which endpoints accept connections.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;

/// Address of an endpoint. Endpoints with equal addresses share a connection.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Address {
    /// IP address and port.
    Ip(SocketAddr),
    /// Path of a Unix socket.
    Unix(Arc<str>),
    /// Name that only the transport interprets, for tests and simulations.
    Name(Arc<str>),
}

impl Address {
    /// Returns the address family, for interleaving (A61).
    pub(crate) fn family(&self) -> u8 {
        match self {
            Address::Ip(SocketAddr::V6(_)) => 0,
            Address::Ip(SocketAddr::V4(_)) => 1,
            Address::Unix(_) | Address::Name(_) => 2,
        }
    }
}

/// Hashes few words, since an update may look up ten thousand addresses.
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
    /// Parses `1.2.3.4:80` and `[::1]:80` as IP addresses, `unix:/path` as a Unix socket, and other text as a name.
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
