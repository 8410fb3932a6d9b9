//! Receiving: effects of the peer's frames on the connection and its streams.

use std::task::Waker;

use bytes::Bytes;

use super::{ConnectionState, MAX_REPLIES};
use crate::error::{Error, Reason};
use crate::frame::{self, DEFAULT_MAX_SIZE, LARGEST_MAX_SIZE, MAX_WINDOW, flag, setting};
use crate::hpack::HeaderBlock;
use crate::recv_buffer::Chunk;
use crate::stream::ResponseHeaders;
use crate::streams::{RecvState, StreamIndex};

/// Frame received from the peer, parsed.
#[derive(Debug)]
pub(crate) enum FrameEvent {
    Headers {
        stream: u32,
        block: HeaderBlock,
        end_stream: bool,
    },
    /// `flow` is the number of bytes that count for flow control, padding included.
    Data {
        stream: u32,
        chunk: Chunk,
        flow: usize,
        end_stream: bool,
    },
    Reset {
        stream: u32,
        reason: Reason,
    },
    Settings(Vec<(u16, u32)>),
    Ping([u8; 8]),
    GoAway {
        last: u32,
        reason: Reason,
        debug_data: Bytes,
    },
    WindowUpdate {
        stream: u32,
        increment: u32,
    },
}

impl ConnectionState {
    /// Applies a received frame. An error is a connection error.
    pub(crate) fn apply(&mut self, event: FrameEvent, wake: &mut Vec<Waker>) -> Result<(), Reason> {
        match event {
            FrameEvent::Headers { stream, block, end_stream } => {
                self.handle_headers(stream, block, end_stream, wake)
            }
            FrameEvent::Data { stream, chunk, flow, end_stream } => {
                self.handle_data(stream, chunk, flow, end_stream, wake)
            }
            FrameEvent::Reset { stream, reason } => self.handle_reset(stream, reason, wake),
            FrameEvent::Settings(settings) => self.handle_settings(&settings),
            FrameEvent::Ping(payload) => {
                frame::ping(self.out.tail(), flag::ACK, payload);
                self.count_reply()
            }
            FrameEvent::GoAway { last, reason, debug_data } => {
                self.handle_goaway(last, &Error::GoAway(reason, debug_data), wake)
            }
            FrameEvent::WindowUpdate { stream, increment } => {
                self.handle_window_update(stream, increment, wake)
            }
        }
    }

    fn count_reply(&mut self) -> Result<(), Reason> {
        self.replies += 1;
        if self.replies > MAX_REPLIES { Err(Reason::ENHANCE_YOUR_CALM) } else { Ok(()) }
    }

    /// Returns the slot of a frame's stream, or `None` if the stream has closed. A stream that was never opened is an
    /// error.
    fn find(&self, id: u32) -> Result<Option<StreamIndex>, Reason> {
        // Even ids belong to the server, which opens none. An id whose HEADERS still wait is idle (RFC 9113, 5.1).
        let was_opened = id % 2 == 1 && id < self.next_unsent();
        // Frames of closed streams are ignored: they may have been in flight during a reset (RFC 9113, 5.4.2).
        if was_opened { Ok(self.streams.find(id)) } else { Err(Reason::PROTOCOL_ERROR) }
    }

    /// Returns the lowest stream id whose HEADERS were not sent.
    fn next_unsent(&self) -> u32 {
        self.pending_open.first_key_value().map_or(self.next_id, |(id, _)| *id)
    }

    fn handle_headers(
        &mut self,
        id: u32,
        block: HeaderBlock,
        end_stream: bool,
        wake: &mut Vec<Waker>,
    ) -> Result<(), Reason> {
        let Some(key) = self.find(id)? else { return Ok(()) };
        let stream = self.streams.get(key);
        // A copy: a 1xx response must not set the content length of the final one.
        let mut content = stream.content;
        if let (Some(status), Some(length)) = (block.status, block.content_length) {
            content = content.stated(status, length);
        }
        // Content of another length than the response states makes it malformed (RFC 9113, section 8.1.1).
        let is_short = end_stream && !content.count(0, true);
        let fits = !block.is_malformed
            && !block.is_too_long
            && !is_short
            && match stream.recv_state {
                RecvState::AwaitingHeaders => {
                    block.status.is_some_and(|status| !status.is_informational() || !end_stream)
                }
                // Trailers must carry END_STREAM.
                RecvState::Open => end_stream && block.status.is_none(),
                // Half-closed (remote), since `find` returns no closed stream (RFC 9113, 5.1).
                RecvState::Closed => return self.reset_stream(key, Reason::STREAM_CLOSED, wake),
            };
        if !fits {
            return self.reset_stream(key, Reason::PROTOCOL_ERROR, wake);
        }
        match (stream.recv_state, block.status) {
            // 1xx responses precede the final one and change nothing (RFC 9113, 8.1).
            (RecvState::AwaitingHeaders, Some(status)) if status.is_informational() => return Ok(()),
            (RecvState::AwaitingHeaders, Some(status)) => {
                stream.content = content;
                stream.head = Some(ResponseHeaders { status, headers: block.headers, end_stream });
                stream.recv_state = RecvState::Open;
                self.has_received_response = true;
            }
            // `fits` leaves only trailers.
            _ => stream.trailers = Some(block.headers),
        }
        wake.extend(stream.reader.take());
        if end_stream {
            stream.recv_state = RecvState::Closed;
            self.streams.close(key);
        }
        Ok(())
    }

    fn handle_data(
        &mut self,
        id: u32,
        chunk: Chunk,
        flow: usize,
        end_stream: bool,
        wake: &mut Vec<Waker>,
    ) -> Result<(), Reason> {
        // Before the lookup: data of closed streams counts against the connection window too (RFC 9113, 6.9).
        self.consume_recv_window(flow)?;
        let Some(key) = self.find(id)? else { return Ok(()) };
        let stream = self.streams.get(key);
        stream.recv_window -= flow as i64;
        let wrong = match stream.recv_state {
            _ if stream.recv_window < 0 => Some(Reason::FLOW_CONTROL_ERROR),
            // A response begins with HEADERS (RFC 9113, 8.1).
            RecvState::AwaitingHeaders => Some(Reason::PROTOCOL_ERROR),
            RecvState::Open => {
                (!stream.content.count(chunk.len(), end_stream)).then_some(Reason::PROTOCOL_ERROR)
            }
            RecvState::Closed => Some(Reason::STREAM_CLOSED),
        };
        if let Some(reason) = wrong {
            return self.reset_stream(key, reason, wake);
        }
        let kept = if stream.has_reader { chunk.len() } else { 0 };
        if kept > 0 {
            stream.data.push(chunk);
        }
        // Padding alone is no progress for the reader.
        if kept > 0 || end_stream {
            wake.extend(stream.reader.take());
        }
        if end_stream {
            // Set before `release_capacity`, which sends no WINDOW_UPDATE after END_STREAM.
            stream.recv_state = RecvState::Closed;
        }
        // Padding is not kept, nor is data of a stream without a reader.
        let is_answered = self.release_capacity(key, flow - kept);
        if end_stream {
            // After `release_capacity`: the slot may be freed.
            self.streams.close(key);
        }
        // Padding is released without a reader, so WINDOW_UPDATE frames for it are limited like other replies.
        if is_answered { self.count_reply() } else { Ok(()) }
    }

    fn handle_reset(&mut self, id: u32, reason: Reason, wake: &mut Vec<Waker>) -> Result<(), Reason> {
        if let Some(key) = self.find(id)? {
            // A response that was complete before RST_STREAM stays readable: `close_stream` sets no error then.
            self.close_stream(key, Error::Reset(reason), wake);
        }
        Ok(())
    }

    /// Resets a stream after a stream error of the peer.
    fn reset_stream(
        &mut self,
        key: StreamIndex,
        reason: Reason,
        wake: &mut Vec<Waker>,
    ) -> Result<(), Reason> {
        let stream = self.streams.get(key);
        // Before `close_stream`, which may free the slot and with it the id.
        frame::reset(self.out.tail(), stream.id, reason);
        self.close_stream(key, Error::StreamError(reason), wake);
        self.count_reply()
    }

    /// Applies SETTINGS. Every value is checked. Of several initial windows only the last takes effect, so that a frame
    /// costs one adjustment.
    fn handle_settings(&mut self, settings: &[(u16, u32)]) -> Result<(), Reason> {
        // Settings that are absent keep their value, and without any the number is unlimited (RFC 9113, 6.5.2).
        let mut max_streams = self.max_streams.unwrap_or(usize::MAX);
        let mut initial_window = self.initial_window;
        for &(name, value) in settings {
            match name {
                setting::HEADER_TABLE_SIZE => self.encoder.set_max_size(value as usize),
                // A server must not enable push (RFC 9113, section 6.5.2).
                setting::ENABLE_PUSH if value != 0 => return Err(Reason::PROTOCOL_ERROR),
                setting::MAX_CONCURRENT_STREAMS => max_streams = value as usize,
                setting::INITIAL_WINDOW_SIZE => {
                    initial_window = i64::from(value);
                    if initial_window > MAX_WINDOW {
                        return Err(Reason::FLOW_CONTROL_ERROR);
                    }
                }
                setting::MAX_FRAME_SIZE => {
                    if !(DEFAULT_MAX_SIZE..=LARGEST_MAX_SIZE).contains(&(value as usize)) {
                        return Err(Reason::PROTOCOL_ERROR);
                    }
                    self.max_frame_size = value as usize;
                }
                setting::MAX_HEADER_LIST_SIZE => self.max_header_list_size = value as usize,
                // Unknown settings must be ignored (RFC 9113, 6.5.2).
                _ => {}
            }
        }
        self.max_streams = Some(max_streams);
        self.set_initial_window(initial_window)?;
        // After the values are applied, which the ACK confirms (RFC 9113, 6.5.3).
        frame::settings_ack(self.out.tail());
        self.count_reply()
    }

    fn set_initial_window(&mut self, window: i64) -> Result<(), Reason> {
        if window > self.initial_window {
            if window + self.highest_offset > MAX_WINDOW {
                // The bound may stem from a stream that has closed or sent data since. The exact value needs a visit of
                // every stream. It counts as many replies, so that a peer cannot trigger it without limit.
                self.highest_offset = self.streams.highest_offset();
                // Compared with the limit by the caller, which counts its ACK.
                self.replies += (self.streams.count_open() / 8).min(MAX_REPLIES / 4);
                if window + self.highest_offset > MAX_WINDOW {
                    return Err(Reason::FLOW_CONTROL_ERROR);
                }
            }
            // Blocked streams are resumed with the next write, once for all frames of a read.
            self.is_window_raised = true;
        }
        // A lower window needs no visit: a stream without a window leaves the send queue when its turn comes.
        self.initial_window = window;
        Ok(())
    }

    fn handle_window_update(&mut self, id: u32, increment: u32, wake: &mut Vec<Waker>) -> Result<(), Reason> {
        if id == 0 {
            // Streams that wait for this window are in the send queue, which the driver's next write serves.
            self.send_window += i64::from(increment);
            let is_wrong = increment == 0 || self.send_window > MAX_WINDOW;
            return match is_wrong {
                // An increment of 0 is an error of the connection here, and of the stream below (RFC 9113, 6.9).
                true if increment == 0 => Err(Reason::PROTOCOL_ERROR),
                true => Err(Reason::FLOW_CONTROL_ERROR),
                false => Ok(()),
            };
        }
        let Some(key) = self.find(id)? else { return Ok(()) };
        // The send half may have closed: WINDOW_UPDATE is valid on a half-closed stream (RFC 9113, 5.1).
        let initial = self.initial_window;
        let stream = self.streams.get(key);
        stream.send_offset += i64::from(increment);
        if increment == 0 {
            return self.reset_stream(key, Reason::PROTOCOL_ERROR, wake);
        }
        if initial + stream.send_offset > MAX_WINDOW {
            return self.reset_stream(key, Reason::FLOW_CONTROL_ERROR, wake);
        }
        self.highest_offset = self.highest_offset.max(stream.send_offset);
        self.resume(key, wake);
        Ok(())
    }

    fn handle_goaway(&mut self, last: u32, error: &Error, wake: &mut Vec<Waker>) -> Result<(), Reason> {
        // The last stream id must not increase (RFC 9113, section 6.8).
        if last > self.last_accepted {
            return Err(Reason::PROTOCOL_ERROR);
        }
        // Replaces the reason of an earlier GOAWAY: a graceful shutdown sends two (RFC 9113, 6.8).
        self.close_reason = Some(error.clone());
        // Streams above the last id of an earlier GOAWAY have ended.
        let next = self.next_id.min(self.last_accepted.saturating_add(1));
        self.last_accepted = last;
        // No queued request may open its stream after GOAWAY, whatever the last stream id is.
        let last_kept = last.min(self.next_unsent() - 1);
        for key in self.streams.open_between(last_kept, next) {
            self.close_stream(key, error.clone(), wake);
        }
        Ok(())
    }

    /// Counts received DATA against the connection window, and returns it to the peer, a quarter of the window at a
    /// time.
    ///
    /// It does not wait for readers: unread streams would otherwise exhaust the window and stop all others.
    fn consume_recv_window(&mut self, bytes: usize) -> Result<(), Reason> {
        self.recv_window -= bytes as i64;
        if self.recv_window < 0 {
            return Err(Reason::FLOW_CONTROL_ERROR);
        }
        // Cannot overflow: `recv_window` plus `received` is always the connection window, at most 2^31-1.
        self.received += bytes as u32;
        if self.received < self.local_settings.connection_window / 4 {
            return Ok(());
        }
        self.recv_window += i64::from(self.received);
        frame::window_update(self.out.tail(), 0, std::mem::take(&mut self.received));
        self.count_reply()
    }
}
