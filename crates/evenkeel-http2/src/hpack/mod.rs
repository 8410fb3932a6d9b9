//! Header compression (RFC 7541).
//!
//! Both sides keep a table of fields that were said before. A header block must be decoded in any case, also one that nobody
//! wants, or the tables part.

mod decoder;
mod encoder;
mod huffman;
mod integer;
mod table;

use http::{HeaderName, header};

pub(crate) use decoder::{Block, Decoder};
pub(crate) use encoder::Encoder;

/// Whether a header concerns a connection of HTTP/1, which has no place in HTTP/2 (RFC 9113, section 8.2.2).
pub(crate) fn is_of_http1(name: &HeaderName) -> bool {
    *name == header::CONNECTION || *name == header::TRANSFER_ENCODING || *name == header::UPGRADE
}

/// The size of a table unless it is said otherwise, and the most that we keep for either side.
pub(crate) const TABLE_SIZE: usize = 4096;

/// What a field costs in a table beside its bytes.
const OVERHEAD: usize = 32;

#[cfg(test)]
mod tests;
