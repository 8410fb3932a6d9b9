//! Byte streams to endpoints, TLS over them, and HTTP/2 connections on top.
//!
//! | file | content |
//! |---|---|
//! | `connector.rs` | [`Connector`], and the one for the operating system's sockets |
//! | `connect.rs` | opens a byte stream and secures it according to the credentials |
//! | `tls_socket.rs` | TLS stream that reports the server's alert |
//! | `errors.rs` | error texts for failed connections |
//! | `connect_queue.rs` | order and pace of connection attempts |
//! | `connection.rs` | one HTTP/2 connection |
//! | `stream_quota.rs` | limit of concurrent streams of a connection |
//! | `keepalive.rs` | keepalive pings of a connection |
//! | `http2/` | HTTP/2 implementations behind one interface |

pub(crate) mod connect_queue;
pub(crate) mod connection;
pub(crate) mod http2;
pub(crate) mod keepalive;

mod connect;
mod connector;
mod errors;
mod stream_quota;
mod tls_socket;

#[cfg(test)]
mod tests;

pub(crate) use self::connect::{connect, connect_by_cluster};
pub use self::connector::{Connector, Io};
pub(crate) use self::connector::{SocketConnector, TcpKeepaliveParams};
pub(crate) use self::errors::describe_io_error;
