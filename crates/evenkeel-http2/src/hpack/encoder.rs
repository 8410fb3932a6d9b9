//! Encodes the header blocks of requests.
//!
//! Fields that every request of a channel has are indexed on first use. Other fields are indexed when they repeat. So
//! ids and timeouts, which never repeat, do not evict useful entries.
//!
//! Sensitive values and credentials are never indexed (RFC 7541, section 7.1.3). Strings are not Huffman-coded: that
//! would cost work for every request, and save bytes only for literals.

use std::collections::VecDeque;

use http::{HeaderName, HeaderValue, Method, header};

use super::table::STATIC_TABLE;
use super::{DEFAULT_TABLE_SIZE, ENTRY_OVERHEAD, integer};

/// First byte and prefix length of literals (RFC 7541, section 6.2): added to the dynamic table, not added, and never
/// indexed.
const INCREMENTAL_INDEXING: (u8, u32) = (0x40, 6);
const WITHOUT_INDEXING: (u8, u32) = (0x00, 4);
const NEVER_INDEXED: (u8, u32) = (0x10, 4);

/// Indices of the static table. A name with several values has the index of the first.
const AUTHORITY: usize = 1;
const PATH: usize = 4;
const METHOD: usize = 2;
const SCHEME: usize = 6;
const AUTHORIZATION: usize = 23;
const CONTENT_TYPE: usize = 31;
const COOKIE: usize = 32;
const PROXY_AUTHORIZATION: usize = 49;
const USER_AGENT: usize = 58;

/// Number of slots for fingerprints of fields.
const HINTS: usize = 64;

/// Encoder with the dynamic table that the peer keeps for the client's header blocks.
#[derive(Debug)]
pub(crate) struct HpackEncoder {
    /// Dynamic table, newest entry first.
    fields: VecDeque<DynamicTableEntry>,
    size: usize,
    max_size: usize,
    /// Size of the current block's header list, as SETTINGS_MAX_HEADER_LIST_SIZE counts it.
    list_size: usize,
    /// Number of entries ever inserted. It numbers the entries, starting at 1.
    inserted: u64,
    /// Smallest size since the last block, if the size of the table has changed. The next block announces it (RFC 7541,
    /// section 4.2).
    resized: Option<usize>,
    /// Number of the entry last found for each fingerprint: a first guess.
    hints: Box<[u64; HINTS]>,
    /// Fingerprint of the last field that was encoded as a literal, for each slot.
    recent: Box<[u32; HINTS]>,
}

#[derive(Debug)]
struct DynamicTableEntry {
    /// Name, followed by the value.
    text: Box<[u8]>,
    name_len: usize,
}

impl DynamicTableEntry {
    fn matches(&self, name: &[u8], value: &[u8]) -> bool {
        self.text.len() == name.len() + value.len()
            && self.text.split_at_checked(self.name_len) == Some((name, value))
    }

    fn size(&self) -> usize {
        self.text.len() + ENTRY_OVERHEAD
    }
}

impl Default for HpackEncoder {
    fn default() -> HpackEncoder {
        HpackEncoder {
            fields: VecDeque::new(),
            size: 0,
            max_size: DEFAULT_TABLE_SIZE,
            list_size: 0,
            inserted: 0,
            resized: None,
            hints: Box::new([0; HINTS]),
            recent: Box::new([0; HINTS]),
        }
    }
}

impl HpackEncoder {
    /// Sets the peer's SETTINGS_HEADER_TABLE_SIZE, limited to the default size.
    pub(crate) fn set_max_size(&mut self, size: usize) {
        let size = size.min(DEFAULT_TABLE_SIZE);
        if size != self.max_size {
            // The smallest size counts: the peer evicts down to it even if a later SETTINGS frame raises it again.
            self.resized = Some(self.resized.unwrap_or(size).min(size));
            self.max_size = size;
            self.evict(0);
        }
    }

    /// Begins a header block: pending changes of the table size, then the pseudo-headers.
    pub(crate) fn begin(
        &mut self,
        out: &mut Vec<u8>,
        method: &Method,
        is_https: bool,
        authority: &str,
        path: &str,
    ) {
        if let Some(smallest) = self.resized.take() {
            integer::write(out, 0x20, 5, smallest);
            if smallest < self.max_size {
                integer::write(out, 0x20, 5, self.max_size);
            }
        }
        self.list_size = ":scheme".len() + "http".len() + usize::from(is_https) + ENTRY_OVERHEAD;
        // Pseudo-headers must precede all other fields (RFC 9113, 8.3).
        match *method {
            Method::GET => out.push(0x80 | METHOD as u8),
            Method::POST => out.push(0x80 | (METHOD + 1) as u8),
            _ => self.field(out, b":method", method.as_str().as_bytes(), METHOD, true),
        }
        if matches!(*method, Method::GET | Method::POST) {
            self.list_size += ":method".len() + method.as_str().len() + ENTRY_OVERHEAD;
        }
        out.push(0x80 | (SCHEME + usize::from(is_https)) as u8);
        self.field(out, b":path", path.as_bytes(), PATH, true);
        self.field(out, b":authority", authority.as_bytes(), AUTHORITY, true);
    }

    /// Encodes a header field. `None` if it is connection-specific, which HTTP/2 does not allow (RFC 9113, section
    /// 8.2.2).
    pub(crate) fn header(&mut self, out: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) -> Option<()> {
        let text = name.as_str().as_bytes();
        let (index, index_at_once, is_secret) = match *name {
            header::CONTENT_TYPE => (CONTENT_TYPE, true, false),
            header::USER_AGENT => (USER_AGENT, true, false),
            header::TE => (0, true, false),
            header::AUTHORIZATION => (AUTHORIZATION, false, true),
            header::COOKIE => (COOKIE, false, true),
            header::PROXY_AUTHORIZATION => (PROXY_AUTHORIZATION, false, true),
            header::CONNECTION | header::TRANSFER_ENCODING | header::UPGRADE => return None,
            _ if matches!((text.len(), text), (10, b"keep-alive") | (16, b"proxy-connection")) => {
                return None;
            }
            _ => (0, false, false),
        };
        if is_secret || value.is_sensitive() {
            self.list_size += text.len() + value.len() + ENTRY_OVERHEAD;
            literal(out, NEVER_INDEXED, text, value.as_bytes(), index);
        } else {
            self.field(out, text, value.as_bytes(), index, index_at_once);
        }
        Some(())
    }

    /// Size of the header list that was encoded since [`begin`](HpackEncoder::begin).
    pub(crate) fn list_size(&self) -> usize {
        self.list_size
    }

    /// Discards a block that is not sent.
    ///
    /// The peer's table has none of its entries, and still has the entries that they evicted. So the next block empties
    /// both tables.
    pub(crate) fn abandon(&mut self) {
        self.fields.clear();
        self.size = 0;
        self.resized = Some(0);
    }

    /// Encodes one field. `index` is the index of its name in the static table, or 0.
    fn field(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8], index: usize, index_at_once: bool) {
        let size = name.len() + value.len() + ENTRY_OVERHEAD;
        self.list_size += size;
        let fingerprint = fingerprint(name, value);
        let slot = fingerprint as usize % HINTS;
        if let Some(number) = self.find(self.hints[slot], name, value) {
            self.hints[slot] = number;
            // The newest entry has the first index behind the static table (RFC 7541, 2.3.3).
            integer::write(out, 0x80, 7, STATIC_TABLE.len() + (self.inserted - number) as usize + 1);
            return;
        }
        // An entry that fills a quarter of the table evicts more than it saves.
        let fits = size <= self.max_size / 4;
        let is_repeated = std::mem::replace(&mut self.recent[slot], fingerprint) == fingerprint;
        if !fits || !(index_at_once || is_repeated) {
            literal(out, WITHOUT_INDEXING, name, value, index);
            return;
        }
        literal(out, INCREMENTAL_INDEXING, name, value, index);
        // `fits` guarantees room for the entry after eviction.
        self.evict(size);
        self.size += size;
        self.fields
            .push_front(DynamicTableEntry { text: [name, value].concat().into(), name_len: name.len() });
        self.inserted += 1;
        self.hints[slot] = self.inserted;
    }

    /// Returns the number of the entry for this field, if the table has one.
    fn find(&self, guess: u64, name: &[u8], value: &[u8]) -> Option<u64> {
        let place = |number: u64| usize::try_from(self.inserted.checked_sub(number)?).ok();
        // Guesses may be stale or empty: the entry is compared. A guess of 0 lies behind the oldest entry.
        if place(guess)
            .and_then(|place| self.fields.get(place))
            .is_some_and(|entry| entry.matches(name, value))
        {
            return Some(guess);
        }
        // At most 128 entries: 4096 bytes, of which each entry takes at least 32.
        let place = self.fields.iter().position(|entry| entry.matches(name, value))?;
        Some(self.inserted - place as u64)
    }

    fn evict(&mut self, more: usize) {
        while self.size + more > self.max_size {
            let Some(oldest) = self.fields.pop_back() else { return };
            self.size -= oldest.size();
        }
    }
}

/// Fingerprint of a field, made of the lengths and last bytes of name and value. Fields mostly differ there.
///
/// Different fields may share one: callers must compare the entry.
fn fingerprint(name: &[u8], value: &[u8]) -> u32 {
    let tail = |text: &[u8]| match text.last_chunk::<8>() {
        Some(last) => u64::from_le_bytes(*last),
        None => text.iter().fold(0, |all, &byte| all << 8 | u64::from(byte)),
    };
    let mixed = (tail(name) ^ tail(value).rotate_left(17) ^ ((name.len() as u64) << 32) ^ value.len() as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // Never 0, which marks an empty slot.
    (mixed >> 32) as u32 | 1 << 31
}

fn literal(out: &mut Vec<u8>, (first, prefix): (u8, u32), name: &[u8], value: &[u8], index: usize) {
    integer::write(out, first, prefix, index);
    if index == 0 {
        integer::write(out, 0, 7, name.len());
        out.extend_from_slice(name);
    }
    integer::write(out, 0, 7, value.len());
    out.extend_from_slice(value);
}
