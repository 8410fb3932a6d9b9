//! Header compression (RFC 7541).
//!
//! Encoder and decoder each keep a dynamic table of earlier fields. Every header block must be decoded, also one of a
//! closed stream: otherwise the tables of the two peers diverge.

mod decoder;
mod encoder;
mod huffman;
mod integer;
mod table;

pub(crate) use decoder::{HeaderBlock, HpackDecoder};
pub(crate) use encoder::HpackEncoder;

/// Initial size of a dynamic table, and the maximum that either side uses here.
pub(crate) const DEFAULT_TABLE_SIZE: usize = 4096;

/// Size that a field has in a table beside its name and value (RFC 7541, section 4.1).
const ENTRY_OVERHEAD: usize = 32;

#[cfg(test)]
mod tests;
