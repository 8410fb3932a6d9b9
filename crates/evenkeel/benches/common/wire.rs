//! The bytes of a call, the same for every client.

/// A gRPC frame around a message whose first field is 16 bytes long.
pub(crate) const MESSAGE: &[u8] = b"\0\0\0\0\x12\x0a\x100123456789abcdef";
