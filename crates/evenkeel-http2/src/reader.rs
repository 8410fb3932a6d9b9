//! Parses the received bytes into frame events.
//!
//! DATA is passed on as it arrives, without waiting for the rest of its frame. Small DATA frames of one stream that
//! arrive together become one chunk. Of other frames, the incomplete part is buffered for the next read.
//!
//! The reader checks frame sizes, frame order and header compression. Stream states and windows are left to
//! [`ConnectionState`](crate::state::ConnectionState).

use std::mem;

use bytes::Bytes;

use crate::error::Reason;
use crate::frame::{FRAME_HEADER_LEN, FrameHeader, flag, kind, strip_padding};
use crate::hpack::HpackDecoder;
use crate::recv_buffer::{Chunk, LARGE, MIN_SHARED};
use crate::state::FrameEvent;

/// Maximum number of frames in a header block, HEADERS included. It bounds the cost of a CONTINUATION flood.
const MAX_CONTINUATIONS: usize = 256;

/// Maximum number of bytes kept of a GOAWAY frame's debug data.
const MAX_DEBUG_DATA: usize = 1024;

#[derive(Debug)]
pub(crate) struct FrameReader {
    /// Incomplete frame from earlier reads.
    buffer: Vec<u8>,
    decoder: HpackDecoder,
    /// Header block whose END_HEADERS has not arrived.
    block: Option<PartialHeaderBlock>,
    /// DATA frame whose payload is not complete.
    data: Option<PartialData>,
    has_settings: bool,
    max_frame_size: usize,
    max_header_list_size: usize,
    /// Parsed frames that the driver has not applied yet.
    pub(crate) events: Vec<FrameEvent>,
}

/// Unparsed rest of one read. `shared` is the buffer of that read if chunks may keep it.
#[derive(Debug)]
pub(crate) struct ReadChunk<'a> {
    pub(crate) rest: &'a [u8],
    pub(crate) shared: Option<&'a Bytes>,
}

#[derive(Debug)]
struct PartialHeaderBlock {
    stream: u32,
    end_stream: bool,
    bytes: Vec<u8>,
    frames: usize,
}

#[derive(Clone, Copy, Debug)]
struct PartialData {
    stream: u32,
    end_stream: bool,
    left: usize,
}

impl FrameReader {
    pub(crate) fn new(max_frame_size: usize, max_header_list_size: usize) -> FrameReader {
        FrameReader {
            buffer: Vec::new(),
            decoder: HpackDecoder::default(),
            block: None,
            data: None,
            has_settings: false,
            max_frame_size,
            max_header_list_size,
            events: Vec::new(),
        }
    }

    /// Parses the next bytes. An error is a connection error; frames before it are among the events.
    pub(crate) fn read(&mut self, mut bytes: ReadChunk<'_>) -> Result<(), Reason> {
        // The buffered frame is completed first, and only its missing bytes are copied.
        while !self.buffer.is_empty() && !bytes.rest.is_empty() {
            let missing = missing(&self.buffer).min(bytes.rest.len());
            let (now, later) = bytes.rest.split_at(missing);
            bytes.rest = later;
            // Taken, because `frames` borrows the reader. An error closes the connection, so it is not put back then.
            let mut buffer = mem::take(&mut self.buffer);
            buffer.extend_from_slice(now);
            let mut begun = ReadChunk { rest: &buffer, shared: None };
            self.frames(&mut begun)?;
            let read = buffer.len() - begun.rest.len();
            // A frame is consumed as a whole or not at all: a rest exists only if nothing was read.
            if read == 0 {
                self.buffer = buffer;
            }
        }
        let read = self.frames(&mut bytes);
        // Before `read?`: frames in front of an error are applied too.
        if bytes.shared.is_some() {
            self.unshare_small_chunks();
        }
        read?;
        // Less than one frame, and `check` has bounded its length.
        self.buffer.extend_from_slice(bytes.rest);
        Ok(())
    }

    /// Copies the chunks of a read out of its buffer, unless they belong to one stream and fill most of the buffer.
    ///
    /// Otherwise one unread chunk would retain the whole buffer after the others were read.
    fn unshare_small_chunks(&mut self) {
        let (mut of, mut total, mut is_one_stream) = (None, 0, true);
        // From the back: `in_buffer` counts a chunk and all later ones.
        for event in &mut self.events.iter_mut().rev() {
            if let FrameEvent::Data { stream, chunk: Chunk::Shared { data, in_buffer }, .. } = event {
                is_one_stream &= of.replace(*stream).is_none_or(|of| of == *stream);
                total += data.len();
                *in_buffer = total;
            }
        }
        if is_one_stream && total >= MIN_SHARED {
            return;
        }
        for event in &mut self.events {
            if let FrameEvent::Data { chunk, .. } = event
                && let Chunk::Shared { data, .. } = chunk
            {
                *chunk = Chunk::Owned(data.to_vec());
            }
        }
    }

    /// Parses frames from the front for as long as they are complete. DATA need not be.
    fn frames(&mut self, bytes: &mut ReadChunk<'_>) -> Result<(), Reason> {
        loop {
            if let Some(data) = self.data.take() {
                self.continue_data(data, bytes);
                if self.data.is_some() {
                    return Ok(());
                }
            }
            let Some((head, rest)) = bytes.rest.split_first_chunk::<FRAME_HEADER_LEN>() else {
                return Ok(());
            };
            let head = FrameHeader::read(head);
            // Before the payload arrives: a frame that is too large must not be buffered.
            self.check(head)?;
            if head.kind == kind::DATA && !head.has_flag(flag::PADDED) {
                bytes.rest = rest;
                let end_stream = head.has_flag(flag::END_STREAM);
                self.data = Some(PartialData { stream: head.stream, end_stream, left: head.len });
                continue;
            }
            // Padding ends the frame, so padded DATA is buffered as a whole like other frames.
            let Some((payload, rest)) = rest.split_at_checked(head.len) else { return Ok(()) };
            bytes.rest = rest;
            self.frame(head, payload)?;
        }
    }

    /// Checks a frame's size, its position in the sequence of frames and its stream id.
    fn check(&mut self, head: FrameHeader) -> Result<(), Reason> {
        if head.len > self.max_frame_size {
            return Err(Reason::FRAME_SIZE_ERROR);
        }
        // The server's preface is a SETTINGS frame, and no ACK (RFC 9113, 3.4).
        if !self.has_settings && (head.kind != kind::SETTINGS || head.has_flag(flag::ACK)) {
            return Err(Reason::PROTOCOL_ERROR);
        }
        let is_continuation = head.kind == kind::CONTINUATION;
        // CONTINUATION follows an open header block of its stream, and nothing else does (RFC 9113, 6.10).
        if self.block.as_ref().map(|block| block.stream) != is_continuation.then_some(head.stream) {
            return Err(Reason::PROTOCOL_ERROR);
        }
        let is_of_stream = match head.kind {
            kind::DATA | kind::HEADERS | kind::PRIORITY | kind::RST_STREAM | kind::CONTINUATION => true,
            kind::SETTINGS | kind::PING | kind::GOAWAY => false,
            // The client's SETTINGS disable push.
            kind::PUSH_PROMISE => return Err(Reason::PROTOCOL_ERROR),
            // WINDOW_UPDATE is valid with any stream id, and unknown frame types are ignored (RFC 9113, 4.1).
            _ => return Ok(()),
        };
        if is_of_stream == (head.stream != 0) { Ok(()) } else { Err(Reason::PROTOCOL_ERROR) }
    }

    fn frame(&mut self, head: FrameHeader, payload: &[u8]) -> Result<(), Reason> {
        let FrameHeader { stream, .. } = head;
        match head.kind {
            kind::DATA => {
                let data = strip_padding(head, payload).ok_or(Reason::PROTOCOL_ERROR)?;
                self.handle_data(stream, data, payload.len(), head.has_flag(flag::END_STREAM));
            }
            kind::HEADERS => self.handle_headers(head, payload)?,
            kind::CONTINUATION => self.handle_continuation(head, payload)?,
            kind::RST_STREAM => {
                let reason = Reason::from(read_u32(payload)?);
                self.events.push(FrameEvent::Reset { stream, reason });
            }
            kind::SETTINGS => self.handle_settings(head, payload)?,
            kind::PING => {
                let payload = <[u8; 8]>::try_from(payload).map_err(|_| Reason::FRAME_SIZE_ERROR)?;
                // The ACK of our PING needs no event: its bytes count as data from the peer, which keepalive observes.
                if !head.has_flag(flag::ACK) {
                    self.events.push(FrameEvent::Ping(payload));
                }
            }
            kind::GOAWAY => {
                let (last, rest) = payload.split_at_checked(4).ok_or(Reason::FRAME_SIZE_ERROR)?;
                let (reason, debug_data) = rest.split_at_checked(4).ok_or(Reason::FRAME_SIZE_ERROR)?;
                self.events.push(FrameEvent::GoAway {
                    // The top bit is reserved and ignored (RFC 9113, 6.8).
                    last: read_u32(last)? & (u32::MAX >> 1),
                    reason: Reason::from(read_u32(reason)?),
                    debug_data: Bytes::copy_from_slice(&debug_data[..debug_data.len().min(MAX_DEBUG_DATA)]),
                });
            }
            kind::WINDOW_UPDATE => {
                let increment = read_u32(payload)? & (u32::MAX >> 1);
                self.events.push(FrameEvent::WindowUpdate { stream, increment });
            }
            // Deprecated and without effect, but its size is checked (RFC 9113, 6.3).
            kind::PRIORITY if payload.len() != 5 => return Err(Reason::FRAME_SIZE_ERROR),
            _ => {}
        }
        Ok(())
    }

    fn continue_data(&mut self, data: PartialData, bytes: &mut ReadChunk<'_>) {
        let (part, rest) = bytes.rest.split_at(data.left.min(bytes.rest.len()));
        bytes.rest = rest;
        let left = data.left - part.len();
        // An empty frame is not skipped: it may carry END_STREAM.
        if part.is_empty() && left > 0 {
            self.data = Some(data);
            return;
        }
        let end_stream = data.end_stream && left == 0;
        self.data = (left > 0).then_some(PartialData { left, ..data });
        match bytes.shared {
            Some(shared) if part.len() >= LARGE => {
                let chunk = Chunk::Shared { data: shared.slice_ref(part), in_buffer: 0 };
                self.events.push(FrameEvent::Data {
                    stream: data.stream,
                    chunk,
                    flow: part.len(),
                    end_stream,
                });
            }
            _ => self.handle_data(data.stream, part, part.len(), end_stream),
        }
    }

    fn handle_data(&mut self, stream: u32, data: &[u8], flow: usize, end_stream: bool) {
        if let Some(FrameEvent::Data {
            stream: before,
            chunk: Chunk::Owned(gathered),
            flow: sum,
            end_stream: is_over,
        }) = self.events.last_mut()
            && *before == stream
            // Data behind END_STREAM stays an event of its own, which the state rejects.
            && !*is_over
            && gathered.len() + data.len() <= LARGE
        {
            gathered.extend_from_slice(data);
            *sum += flow;
            *is_over = end_stream;
        } else {
            // An empty frame is reported too: on an idle stream it is an error (RFC 9113, section 5.1).
            self.events.push(FrameEvent::Data {
                stream,
                chunk: Chunk::Owned(data.to_vec()),
                flow,
                end_stream,
            });
        }
    }

    fn handle_headers(&mut self, head: FrameHeader, payload: &[u8]) -> Result<(), Reason> {
        // Padding and priority are parts of HEADERS only, not of CONTINUATION (RFC 9113, 6.10).
        let mut bytes = strip_padding(head, payload).ok_or(Reason::PROTOCOL_ERROR)?;
        if head.has_flag(flag::PRIORITY) {
            bytes = bytes.get(5..).ok_or(Reason::FRAME_SIZE_ERROR)?;
        }
        let end_stream = head.has_flag(flag::END_STREAM);
        if head.has_flag(flag::END_HEADERS) {
            return self.decode(head.stream, bytes, end_stream);
        }
        self.block =
            Some(PartialHeaderBlock { stream: head.stream, end_stream, bytes: bytes.to_vec(), frames: 1 });
        Ok(())
    }

    fn handle_continuation(&mut self, head: FrameHeader, payload: &[u8]) -> Result<(), Reason> {
        // Never `None`: `check` admits CONTINUATION only behind an open block.
        let Some(mut block) = self.block.take() else { return Err(Reason::PROTOCOL_ERROR) };
        block.bytes.extend_from_slice(payload);
        block.frames += 1;
        // A header list within the limit never needs this many bytes, even with the least efficient encoding.
        if block.bytes.len() > 4 * self.max_header_list_size + self.max_frame_size
            || block.frames > MAX_CONTINUATIONS
        {
            return Err(Reason::ENHANCE_YOUR_CALM);
        }
        if head.has_flag(flag::END_HEADERS) {
            return self.decode(block.stream, &block.bytes, block.end_stream);
        }
        self.block = Some(block);
        Ok(())
    }

    fn decode(&mut self, stream: u32, bytes: &[u8], end_stream: bool) -> Result<(), Reason> {
        // Also for a closed stream: every block may change the dynamic table (RFC 9113, 4.3).
        let block = self.decoder.decode(bytes, self.max_header_list_size);
        let block = block.ok_or(Reason::COMPRESSION_ERROR)?;
        self.events.push(FrameEvent::Headers { stream, block, end_stream });
        Ok(())
    }

    fn handle_settings(&mut self, head: FrameHeader, payload: &[u8]) -> Result<(), Reason> {
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() || head.has_flag(flag::ACK) && !settings.is_empty() {
            return Err(Reason::FRAME_SIZE_ERROR);
        }
        // Our settings never change, so their ACK has no effect.
        if head.has_flag(flag::ACK) {
            return Ok(());
        }
        self.has_settings = true;
        let settings = settings
            .iter()
            .map(|&[a, b, c, d, e, f]| (u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, f])));
        self.events.push(FrameEvent::Settings(settings.collect()));
        Ok(())
    }
}

/// Returns the number of bytes that are missing to complete the frame header, or else the payload.
fn missing(begun: &[u8]) -> usize {
    let whole = begun
        .first_chunk::<FRAME_HEADER_LEN>()
        .map_or(FRAME_HEADER_LEN, |head| FRAME_HEADER_LEN + FrameHeader::read(head).len);
    // At least 1, so that the loop in `read` advances.
    whole.saturating_sub(begun.len()).max(1)
}

/// Parses a payload of exactly four bytes.
fn read_u32(payload: &[u8]) -> Result<u32, Reason> {
    <[u8; 4]>::try_from(payload).map(u32::from_be_bytes).map_err(|_| Reason::FRAME_SIZE_ERROR)
}
