//! Decodes the header blocks of responses.
//!
//! A malformed field marks its block, which becomes a stream error. Only a block that cannot be decoded ends the
//! connection: its effect on the dynamic table is unknown.

use std::collections::VecDeque;
use std::sync::LazyLock;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use super::table::STATIC_TABLE;
use super::{DEFAULT_TABLE_SIZE, ENTRY_OVERHEAD, huffman, integer};

/// Maximum capacity with which the buffer for decoded strings is kept for the next block.
const MAX_IDLE_TEXT: usize = 1024;

/// Decoded fields of a header block.
#[derive(Debug, Default)]
pub(crate) struct HeaderBlock {
    pub(crate) status: Option<StatusCode>,
    pub(crate) headers: HeaderMap,
    /// Value of `content-length`, if it is present and valid.
    pub(crate) content_length: Option<u64>,
    /// True if a field is malformed, or not allowed in a response.
    pub(crate) is_malformed: bool,
    /// True if the header list exceeded the limit. Fields beyond it are not kept.
    pub(crate) is_too_long: bool,
}

/// Name of a field, with the names that need special treatment.
#[derive(Clone, Debug)]
enum FieldName {
    Status,
    ContentLength,
    Te,
    Header(HeaderName),
    /// A name that no response may have: a pseudo-header of requests, a connection-specific field (RFC 9113, section
    /// 8.2.2), or an invalid name. It still takes its place in the table.
    Invalid,
}

#[derive(Clone, Debug)]
struct HeaderField {
    name: FieldName,
    name_len: usize,
    /// `None` if it is invalid. The name stays valid: later fields may refer to it alone (RFC 7541, section 6.2).
    value: Option<HeaderValue>,
    /// Length of name and value, in bytes.
    len: usize,
}

static STATIC_FIELDS: LazyLock<Vec<HeaderField>> = LazyLock::new(|| {
    STATIC_TABLE
        .iter()
        .map(|(name, value)| HeaderField::new(FieldName::read(name.as_bytes()), value.as_bytes(), name.len()))
        .collect()
});

/// Decoder with the dynamic table for the peer's header blocks.
#[derive(Debug)]
pub(crate) struct HpackDecoder {
    /// Dynamic table, newest entry first.
    fields: VecDeque<HeaderField>,
    size: usize,
    max_size: usize,
    /// Buffer into which Huffman-coded strings are decoded.
    text: Vec<u8>,
}

impl FieldName {
    fn read(bytes: &[u8]) -> FieldName {
        // Matching the length first spares most names a comparison.
        match (bytes.len(), bytes) {
            (2, b"te") => FieldName::Te,
            (7, b":status") => FieldName::Status,
            (14, b"content-length") => FieldName::ContentLength,
            (7, b"upgrade")
            | (10, b"connection" | b"keep-alive")
            | (16, b"proxy-connection")
            | (17, b"transfer-encoding") => FieldName::Invalid,
            // A name with upper-case letters is malformed in HTTP/2.
            _ => HeaderName::from_lowercase(bytes).map_or(FieldName::Invalid, FieldName::Header),
        }
    }
}

impl HeaderField {
    fn new(name: FieldName, value: &[u8], name_len: usize) -> HeaderField {
        let len = name_len + value.len();
        HeaderField { name, name_len, value: HeaderValue::from_bytes(value).ok(), len }
    }
}

impl Default for HpackDecoder {
    fn default() -> HpackDecoder {
        HpackDecoder { fields: VecDeque::new(), size: 0, max_size: DEFAULT_TABLE_SIZE, text: Vec::new() }
    }
}

impl HpackDecoder {
    /// Decodes a complete header block. `None` is a compression error: the tables of the peers have diverged.
    ///
    /// At most `limit` bytes of fields are kept, counted as SETTINGS_MAX_HEADER_LIST_SIZE counts them.
    pub(crate) fn decode(&mut self, mut from: &[u8], limit: usize) -> Option<HeaderBlock> {
        let mut block = HeaderBlock::default();
        let mut left = limit;
        while let Some(&first) = from.first() {
            let field = match first {
                // Indexed field (RFC 7541, 6.1).
                0x80.. => {
                    let index = integer::read(&mut from, 7)?;
                    block.add(self.field(index)?, &mut left);
                    continue;
                }
                // Literal with incremental indexing (RFC 7541, 6.2.1).
                0x40.. => {
                    let field = self.literal(&mut from, 6)?;
                    block.add(&field, &mut left);
                    self.insert(field);
                    continue;
                }
                // Dynamic table size update (RFC 7541, 6.3). Our SETTINGS leave the maximum at its default.
                0x20.. => {
                    let size = integer::read(&mut from, 5)?;
                    // The table size changes before the first field only (RFC 7541, section 4.2). Every field reduces
                    // `left`, or sets `is_too_long`.
                    let has_fields = left < limit || block.is_too_long;
                    if size > DEFAULT_TABLE_SIZE || has_fields {
                        return None;
                    }
                    self.max_size = size;
                    self.evict(0);
                    continue;
                }
                // Literals without indexing and never indexed (RFC 7541, 6.2.2 and 6.2.3): the same for a decoder.
                _ => self.literal(&mut from, 4)?,
            };
            block.add(&field, &mut left);
        }
        if self.text.capacity() > MAX_IDLE_TEXT {
            self.text = Vec::new();
        }
        Some(block)
    }

    fn field(&self, index: usize) -> Option<&HeaderField> {
        // Index 0 is a decoding error (RFC 7541, 6.1). Static entries precede the dynamic ones (2.3.3).
        let index = index.checked_sub(1)?;
        match index.checked_sub(STATIC_TABLE.len()) {
            None => STATIC_FIELDS.get(index),
            Some(index) => self.fields.get(index),
        }
    }

    fn literal(&mut self, from: &mut &[u8], prefix: u32) -> Option<HeaderField> {
        let (name, name_len) = match integer::read(from, prefix)? {
            0 => {
                let text = read_string(from, &mut self.text)?;
                (FieldName::read(text), text.len())
            }
            index => {
                let field = self.field(index)?;
                // Cloned: the new entry may evict the one that it takes the name from (RFC 7541, 4.4).
                (field.name.clone(), field.name_len)
            }
        };
        let value = read_string(from, &mut self.text)?;
        Some(HeaderField::new(name, value, name_len))
    }

    fn insert(&mut self, field: HeaderField) {
        let size = field.len + ENTRY_OVERHEAD;
        self.evict(size);
        // A field larger than the table empties it, and is no error (RFC 7541, 4.4).
        if size <= self.max_size {
            self.size += size;
            self.fields.push_front(field);
        }
    }

    /// Evicts the oldest entries until `more` bytes fit.
    fn evict(&mut self, more: usize) {
        while self.size + more > self.max_size {
            // An empty table: the new entry alone is too large, and `insert` drops it.
            let Some(oldest) = self.fields.pop_back() else { return };
            self.size -= oldest.len + ENTRY_OVERHEAD;
        }
    }
}

impl HeaderBlock {
    fn add(&mut self, field: &HeaderField, left: &mut usize) {
        let Some(rest) = left.checked_sub(field.len + ENTRY_OVERHEAD) else {
            // Decoding continues: the table must remain equal to the peer's.
            self.is_too_long = true;
            return;
        };
        *left = rest;
        match (&field.name, &field.value) {
            (FieldName::Header(name), Some(value)) => self.append(name.clone(), value),
            (FieldName::ContentLength, Some(value)) => {
                let length = read_length(value.as_bytes());
                // A repeated length is rejected even if it is equal, as RFC 9110, 8.6, permits.
                self.is_malformed |= length.is_none() || self.content_length.is_some();
                self.content_length = length;
                self.append(header::CONTENT_LENGTH, value);
            }
            (FieldName::Te, Some(value)) => {
                // The only value that HTTP/2 permits (RFC 9113, 8.2.2).
                self.is_malformed |= value != "trailers";
                self.append(header::TE, value);
            }
            // `:status` comes once, and before all other fields.
            (FieldName::Status, Some(value)) if self.status.is_none() && self.headers.is_empty() => {
                self.status = StatusCode::from_bytes(value.as_bytes()).ok();
                self.is_malformed |= self.status.is_none();
            }
            _ => self.is_malformed = true,
        }
    }

    fn append(&mut self, name: HeaderName, value: &HeaderValue) {
        // A `HeaderMap` has a limit of its own, which a larger configured limit can reach.
        self.is_too_long |= self.headers.try_append(name, value.clone()).is_err();
    }
}

/// Parses a content length: digits and nothing else (RFC 9110, section 8.6).
fn read_length(value: &[u8]) -> Option<u64> {
    let digits =
        std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok()
}

/// Reads a string from the front. It is borrowed from the block, or decoded into `text`.
fn read_string<'t, 'f: 't>(from: &mut &'f [u8], text: &'t mut Vec<u8>) -> Option<&'t [u8]> {
    // The top bit marks a Huffman-coded string (RFC 7541, 5.2).
    let is_coded = from.first()? & 0x80 != 0;
    let len = integer::read(from, 7)?;
    let (string, rest) = from.split_at_checked(len)?;
    *from = rest;
    if !is_coded {
        return Some(string);
    }
    text.clear();
    // The shortest code has five bits, so the text has at most 8/5 of the string's length.
    huffman::decode(string, text)?;
    Some(text)
}
