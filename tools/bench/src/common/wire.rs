//! Bytes of a call, the same for every client.

pub(crate) const PAYLOAD: &[u8] = b"0123456789abcdef";

/// Framed gRPC message whose first field is the payload.
pub(crate) const MESSAGE: &[u8] = b"\0\0\0\0\x12\x0a\x100123456789abcdef";

pub(crate) const PATH: &str = "/bench.Echo/Unary";
