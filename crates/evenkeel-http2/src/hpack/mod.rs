//! Header compression (RFC 7541).
//!
//! Both sides keep a table of fields that were said before. A header block must be decoded in any case, also one that nobody
//! wants, or the tables part.

mod decoder;
mod encoder;
mod huffman;
mod integer;
mod table;

pub(crate) use decoder::{HeaderBlock, HpackDecoder};
pub(crate) use encoder::HpackEncoder;

/// The size of a table unless it is said otherwise, and the most that we keep for either side.
pub(crate) const DEFAULT_TABLE_SIZE: usize = 4096;

/// What a field costs in a table beside its bytes.
const ENTRY_OVERHEAD: usize = 32;

#[cfg(test)]
mod tests;
