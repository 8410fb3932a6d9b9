//! Frame layout (RFC 9113, section 4): a header of nine bytes, then a payload.
//!
//! Contains the constants of the RFC and the writers of small frames. [`FrameReader`](crate::reader::FrameReader)
//! parses frames, and `state` builds HEADERS and DATA.

use crate::error::Reason;

/// Connection preface that a client sends before its first frame (RFC 9113, section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Maximum payload of a frame until SETTINGS_MAX_FRAME_SIZE sets another.
pub(crate) const DEFAULT_MAX_SIZE: usize = 1 << 14;
pub(crate) const LARGEST_MAX_SIZE: usize = (1 << 24) - 1;

/// Initial flow-control window of a stream and of the connection until the peer changes it.
pub(crate) const DEFAULT_WINDOW: u32 = (1 << 16) - 1;
pub(crate) const MAX_WINDOW: i64 = (1 << 31) - 1;

pub(crate) const FRAME_HEADER_LEN: usize = 9;

/// Frame types (RFC 9113, section 6). Frames of unknown types are ignored.
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

pub(crate) mod flag {
    pub(crate) const END_STREAM: u8 = 0x1;
    pub(crate) const ACK: u8 = 0x1;
    pub(crate) const END_HEADERS: u8 = 0x4;
    pub(crate) const PADDED: u8 = 0x8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

pub(crate) mod setting {
    pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
    pub(crate) const ENABLE_PUSH: u16 = 2;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(crate) const MAX_FRAME_SIZE: u16 = 5;
    pub(crate) const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// Header of a frame: length of the payload, type, flags and stream id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) len: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

impl FrameHeader {
    pub(crate) fn read(bytes: &[u8; FRAME_HEADER_LEN]) -> FrameHeader {
        let [a, b, c, kind, flags, stream @ ..] = *bytes;
        FrameHeader {
            len: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            // The top bit is reserved and ignored (RFC 9113, 4.1).
            stream: u32::from_be_bytes(stream) & (u32::MAX >> 1),
        }
    }

    pub(crate) fn has_flag(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn bytes(self) -> [u8; FRAME_HEADER_LEN] {
        let mut bytes = [0; FRAME_HEADER_LEN];
        // 24 bits are enough: payloads are split at SETTINGS_MAX_FRAME_SIZE, at most 2^24-1.
        bytes[..3].copy_from_slice(&(self.len as u32).to_be_bytes()[1..]);
        (bytes[3], bytes[4]) = (self.kind, self.flags);
        bytes[5..].copy_from_slice(&self.stream.to_be_bytes());
        bytes
    }

    pub(crate) fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes());
    }
}

pub(crate) fn reset(out: &mut Vec<u8>, stream: u32, reason: Reason) {
    FrameHeader { len: 4, kind: kind::RST_STREAM, flags: 0, stream }.write(out);
    out.extend_from_slice(&u32::from(reason).to_be_bytes());
}

pub(crate) fn window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    FrameHeader { len: 4, kind: kind::WINDOW_UPDATE, flags: 0, stream }.write(out);
    out.extend_from_slice(&increment.to_be_bytes());
}

pub(crate) fn ping(out: &mut Vec<u8>, flags: u8, payload: [u8; 8]) {
    FrameHeader { len: 8, kind: kind::PING, flags, stream: 0 }.write(out);
    out.extend_from_slice(&payload);
}

/// Writes GOAWAY. Its last stream id is 0: without push, the server opens no streams.
pub(crate) fn goaway(out: &mut Vec<u8>, reason: Reason) {
    FrameHeader { len: 8, kind: kind::GOAWAY, flags: 0, stream: 0 }.write(out);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&u32::from(reason).to_be_bytes());
}

pub(crate) fn settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    FrameHeader { len: settings.len() * 6, kind: kind::SETTINGS, flags: 0, stream: 0 }.write(out);
    for (name, value) in settings {
        out.extend_from_slice(&name.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

pub(crate) fn settings_ack(out: &mut Vec<u8>) {
    FrameHeader { len: 0, kind: kind::SETTINGS, flags: flag::ACK, stream: 0 }.write(out);
}

/// Returns the payload without its padding. `None` if the padding is longer than the payload.
pub(crate) fn strip_padding(head: FrameHeader, payload: &[u8]) -> Option<&[u8]> {
    if !head.has_flag(flag::PADDED) {
        return Some(payload);
    }
    let (&padding, rest) = payload.split_first()?;
    // Padding may fill the rest completely, but not exceed it (RFC 9113, 6.1).
    rest.get(..rest.len().checked_sub(usize::from(padding))?)
}
