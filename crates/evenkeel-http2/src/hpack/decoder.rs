//! What a peer's header block says.

use std::collections::VecDeque;
use std::sync::LazyLock;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use super::table::STATIC;
use super::{OVERHEAD, TABLE_SIZE, huffman, integer};

/// Bytes that the buffer for decoded strings keeps for the next block.
const KEPT_TEXT: usize = 1024;

/// The decoded fields of a block.
#[derive(Debug, Default)]
pub(crate) struct Block {
    pub(crate) status: Option<StatusCode>,
    pub(crate) headers: HeaderMap,
    /// The value of `content-length`.
    pub(crate) content_length: Option<u64>,
    /// Whether it says something that no answer may say.
    pub(crate) is_malformed: bool,
    /// Whether it was longer than the limit; what is beyond is not kept.
    pub(crate) is_too_long: bool,
}

/// The name of a field.
#[derive(Clone, Debug)]
enum Name {
    Status,
    ContentLength,
    Te,
    Header(HeaderName),
    /// One that no answer has: a request's, one of a connection of HTTP/1 (RFC 9113, section 8.2.2), or no name at all. It takes its
    /// place in the table all the same.
    Bad,
}

#[derive(Clone, Debug)]
struct Field {
    name: Name,
    name_len: usize,
    /// `None` if it is invalid. The name stays valid: later fields may refer to it alone (RFC 7541, section 6.2).
    value: Option<HeaderValue>,
    /// Of name and value.
    len: usize,
}

static FIELDS: LazyLock<Vec<Field>> = LazyLock::new(|| {
    STATIC
        .iter()
        .map(|(name, value)| Field::new(Name::read(name.as_bytes()), value.as_bytes(), name.len()))
        .collect()
});

/// The peer's table.
#[derive(Debug)]
pub(crate) struct Decoder {
    /// The newest first.
    fields: VecDeque<Field>,
    size: usize,
    max_size: usize,
    /// Where strings are decoded.
    text: Vec<u8>,
}

impl Name {
    fn read(bytes: &[u8]) -> Name {
        // By length first, so that most names are compared with none of these.
        match (bytes.len(), bytes) {
            (2, b"te") => Name::Te,
            (7, b":status") => Name::Status,
            (14, b"content-length") => Name::ContentLength,
            (7, b"upgrade")
            | (10, b"connection" | b"keep-alive")
            | (16, b"proxy-connection")
            | (17, b"transfer-encoding") => Name::Bad,
            // Upper case is no name of HTTP/2.
            _ => HeaderName::from_lowercase(bytes).map_or(Name::Bad, Name::Header),
        }
    }
}

impl Field {
    fn new(name: Name, value: &[u8], name_len: usize) -> Field {
        let len = name_len + value.len();
        Field { name, name_len, value: HeaderValue::from_bytes(value).ok(), len }
    }
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder { fields: VecDeque::new(), size: 0, max_size: TABLE_SIZE, text: Vec::new() }
    }
}

impl Decoder {
    /// Reads a whole block. `None` if it is none; the tables have parted then. Of what it says at most `limit` bytes are
    /// kept, counted as SETTINGS_MAX_HEADER_LIST_SIZE counts them.
    pub(crate) fn decode(&mut self, mut from: &[u8], limit: usize) -> Option<Block> {
        let mut block = Block::default();
        let mut left = limit;
        while let Some(&first) = from.first() {
            let field = match first {
                0x80.. => {
                    let index = integer::read(&mut from, 7)?;
                    block.add(self.field(index)?, &mut left);
                    continue;
                }
                0x40.. => {
                    let field = self.literal(&mut from, 6)?;
                    block.add(&field, &mut left);
                    self.insert(field);
                    continue;
                }
                0x20.. => {
                    let size = integer::read(&mut from, 5)?;
                    // The size of the table changes before the first field only (RFC 7541, section 4.2). A field takes of the limit.
                    let has_fields = left < limit || block.is_too_long;
                    if size > TABLE_SIZE || has_fields {
                        return None;
                    }
                    self.max_size = size;
                    self.evict(0);
                    continue;
                }
                _ => self.literal(&mut from, 4)?,
            };
            block.add(&field, &mut left);
        }
        if self.text.capacity() > KEPT_TEXT {
            self.text = Vec::new();
        }
        Some(block)
    }

    fn field(&self, index: usize) -> Option<&Field> {
        let index = index.checked_sub(1)?;
        match index.checked_sub(STATIC.len()) {
            None => FIELDS.get(index),
            Some(index) => self.fields.get(index),
        }
    }

    fn literal(&mut self, from: &mut &[u8], prefix: u32) -> Option<Field> {
        let (name, name_len) = match integer::read(from, prefix)? {
            0 => {
                let text = read_string(from, &mut self.text)?;
                (Name::read(text), text.len())
            }
            index => {
                let field = self.field(index)?;
                (field.name.clone(), field.name_len)
            }
        };
        let value = read_string(from, &mut self.text)?;
        Some(Field::new(name, value, name_len))
    }

    fn insert(&mut self, field: Field) {
        let size = field.len + OVERHEAD;
        self.evict(size);
        if size <= self.max_size {
            self.size += size;
            self.fields.push_front(field);
        }
    }

    /// Makes room for so many bytes.
    fn evict(&mut self, more: usize) {
        while self.size + more > self.max_size {
            let Some(oldest) = self.fields.pop_back() else { return };
            self.size -= oldest.len + OVERHEAD;
        }
    }
}

impl Block {
    fn add(&mut self, field: &Field, left: &mut usize) {
        let Some(rest) = left.checked_sub(field.len + OVERHEAD) else {
            self.is_too_long = true;
            return;
        };
        *left = rest;
        match (&field.name, &field.value) {
            (Name::Header(name), Some(value)) => self.append(name.clone(), value),
            (Name::ContentLength, Some(value)) => {
                let length = read_length(value.as_bytes());
                self.is_malformed |= length.is_none() || self.content_length.is_some();
                self.content_length = length;
                self.append(header::CONTENT_LENGTH, value);
            }
            (Name::Te, Some(value)) => {
                self.is_malformed |= value != "trailers";
                self.append(header::TE, value);
            }
            // Once, and before the others.
            (Name::Status, Some(value)) if self.status.is_none() && self.headers.is_empty() => {
                self.status = StatusCode::from_bytes(value.as_bytes()).ok();
                self.is_malformed |= self.status.is_none();
            }
            _ => self.is_malformed = true,
        }
    }

    fn append(&mut self, name: HeaderName, value: &HeaderValue) {
        // The map has a limit of its own, which a user's larger one may come to.
        self.is_too_long |= self.headers.try_append(name, value.clone()).is_err();
    }
}

/// Parses a content length: digits and nothing else (RFC 9110, section 8.6).
fn read_length(value: &[u8]) -> Option<u64> {
    let digits =
        std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok()
}

/// Takes a string off the front. It is borrowed where it came from, or decoded into `text`.
fn read_string<'t, 'f: 't>(from: &mut &'f [u8], text: &'t mut Vec<u8>) -> Option<&'t [u8]> {
    let is_coded = from.first()? & 0x80 != 0;
    let len = integer::read(from, 7)?;
    let (string, rest) = from.split_at_checked(len)?;
    *from = rest;
    if !is_coded {
        return Some(string);
    }
    text.clear();
    huffman::decode(string, text)?;
    Some(text)
}
