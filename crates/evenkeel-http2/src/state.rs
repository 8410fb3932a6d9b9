//! What the calls and the driver of a connection share: streams, windows, and what is to be written.
//!
//! Everything here happens under one lock and never waits. Who has to be woken is collected, and woken after the lock.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, Method};

use crate::driver::Settings;
use crate::error::{Error, Reason};
use crate::frame::{
    self, DEFAULT_MAX_SIZE, DEFAULT_WINDOW, HEAD, LARGEST_MAX_SIZE, MAX_WINDOW, flag, kind, setting,
};
use crate::hpack::{Block, Encoder};
use crate::outbox::Outbox;
use crate::recv_buffer::Piece;
use crate::stream::{Head, Request, Whole};
use crate::streams::{Answer, Asked, Key, Stream, Streams};
use crate::waiting::{WaitingRequest, WaitingRequests};

/// While more than this waits to be written, data waits at its stream, and new streams wait to be opened.
const MAX_OUT: usize = 64 << 10;

/// An answer of up to this many bytes is handed out as a whole.
const SMALL: usize = 16 << 10;

/// So many answers to pings, settings and bad frames may wait to be written. A peer that asks for more does not read them.
const MAX_REPLIES: usize = 10_000;

/// Number of streams in line that an idle connection keeps room for, and that may stand there after they were closed.
const KEPT_LINE: usize = 64;

/// The last number that a stream of ours can have.
const LAST_ID: u32 = u32::MAX >> 1;

/// Who waits for a stream, at either end.
pub(crate) type Waiting = [Option<Waker>; 2];

/// What came from the peer.
#[derive(Debug)]
pub(crate) enum Event {
    Headers {
        stream: u32,
        block: Block,
        ends: bool,
    },
    /// `flow` is what it takes of the windows, padding included.
    Data {
        stream: u32,
        piece: Piece,
        flow: usize,
        ends: bool,
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
        words: Bytes,
    },
    WindowUpdate {
        stream: u32,
        by: u32,
    },
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not states of one machine")]
pub(crate) struct State {
    pub(crate) out: Outbox,
    encoder: Encoder,
    pub(crate) streams: Streams,
    next_id: u32,
    /// Requests that wait for room in `out`. Their streams have ids and count as open.
    waiting: WaitingRequests,
    /// Streams with an open window that have something to send, or whose writers wait for room.
    line: VecDeque<Key>,
    send_window: i64,
    /// Bytes of DATA that the peer may send on all streams together.
    recv_window: i64,
    /// Bytes of DATA received since the last WINDOW_UPDATE of the connection.
    received: u32,
    ours: Settings,
    max_frame_size: usize,
    /// Maximum size of a request's header list, from the peer's SETTINGS.
    max_header_list_size: usize,
    initial_window: i64,
    /// True if the initial window was raised and [`fill`](State::fill) has not resumed the blocked streams yet.
    is_window_raised: bool,
    /// Upper bound of the streams' send windows, relative to the initial window.
    highest_offset: i64,
    /// The lowest last stream id of the peer's GOAWAY frames.
    last_accepted: u32,
    /// How many streams the peer takes at once, once it said so or that it does not care.
    pub(crate) max_streams: Option<usize>,
    /// Frames that answer the peer's and wait to be written.
    replies: usize,
    driver: Option<Waker>,
    /// Why no more requests are taken.
    pub(crate) refusal: Option<Error>,
    /// Whether nobody will send requests any more.
    pub(crate) is_let_go: bool,
    /// Whether the peer was told goodbye.
    pub(crate) has_left: bool,
    /// True once the peer has sent the head of a response.
    pub(crate) has_answered: bool,
}

impl State {
    /// A connection that has said its preface.
    pub(crate) fn new(mut ours: Settings) -> State {
        ours.stream_window = ours.stream_window.min(MAX_WINDOW as u32);
        ours.connection_window = ours.connection_window.clamp(DEFAULT_WINDOW, MAX_WINDOW as u32);
        let mut out = Outbox::default();
        let frames = out.tail();
        frames.extend_from_slice(frame::PREFACE);
        let mut said = vec![
            (setting::ENABLE_PUSH, 0),
            (setting::INITIAL_WINDOW_SIZE, ours.stream_window),
            (setting::MAX_HEADER_LIST_SIZE, ours.max_header_list_size),
        ];
        if ours.max_frame_size as usize != DEFAULT_MAX_SIZE {
            said.push((setting::MAX_FRAME_SIZE, ours.max_frame_size));
        }
        frame::settings(frames, &said);
        let recv_window = ours.connection_window;
        if recv_window > DEFAULT_WINDOW {
            frame::window_update(frames, 0, recv_window - DEFAULT_WINDOW);
        }
        State {
            out,
            encoder: Encoder::default(),
            streams: Streams::default(),
            next_id: 1,
            waiting: WaitingRequests::new(),
            line: VecDeque::new(),
            send_window: i64::from(DEFAULT_WINDOW),
            recv_window: i64::from(recv_window),
            received: 0,
            ours,
            max_frame_size: DEFAULT_MAX_SIZE,
            max_header_list_size: usize::MAX,
            initial_window: i64::from(DEFAULT_WINDOW),
            is_window_raised: false,
            highest_offset: 0,
            last_accepted: LAST_ID,
            max_streams: None,
            replies: 0,
            driver: None,
            refusal: None,
            is_let_go: false,
            has_left: false,
            has_answered: false,
        }
    }

    /// The driver sleeps from here on, until somebody takes its waker.
    pub(crate) fn sleep(&mut self, cx: &Context<'_>) {
        if !self.driver.as_ref().is_some_and(|driver| driver.will_wake(cx.waker())) {
            self.driver = Some(cx.waker().clone());
        }
    }

    /// Whether there is something to write.
    pub(crate) fn has_work(&self) -> bool {
        // At last GOAWAY is to be written. A waiting stream that was the last leaves no other frame when it is cancelled.
        !self.out.is_empty()
            || !self.line.is_empty() && self.send_window > 0
            || self.is_over() && !self.has_left
    }

    /// Returns true if the connection takes no more requests and has no open streams.
    pub(crate) fn is_over(&self) -> bool {
        (self.is_let_go || self.refusal.is_some()) && !self.streams.has_open()
    }

    /// Returns true if the peer has to read before more requests and data are written.
    ///
    /// Requests that wait come first, also when `out` has just been handed over: streams are opened in the order of their ids.
    fn is_full(&self) -> bool {
        self.out.len() > MAX_OUT || !self.waiting.is_empty()
    }

    /// The driver, if it has to be woken: the first to come does.
    pub(crate) fn stir(&mut self) -> Option<Waker> {
        self.driver.take()
    }

    /// Sends the head of a request.
    pub(crate) fn send(&mut self, request: &Request<'_>) -> Result<(Key, u32), Error> {
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        let id = self.next_id;
        if self.is_full() {
            // A request that cannot be sent is refused at once. The size of a header list does not depend on the header table.
            encode(&mut Encoder::default(), &mut Vec::new(), request, self.max_header_list_size)?;
            self.waiting.insert(id, Box::new(WaitingRequest::new(request)));
        } else {
            self.write_head(id, request)?;
        }
        let key = self.streams.open(id, i64::from(self.ours.stream_window), *request.method == Method::HEAD);
        if request.ends {
            let stream = self.streams.get(key);
            stream.asked = Asked::Closed;
            stream.has_writer = false;
        }
        self.next_id += 2;
        if self.next_id > LAST_ID {
            self.refusal = Some(Error::Exhausted);
        }
        Ok((key, id))
    }

    /// Writes the head of a request.
    fn write_head(&mut self, id: u32, request: &Request<'_>) -> Result<(), Error> {
        let out = self.out.tail();
        let start = out.len();
        // Its length and flags are known later.
        out.extend_from_slice(&[0; HEAD]);
        if let Err(error) = encode(&mut self.encoder, out, request, self.max_header_list_size) {
            out.truncate(start);
            self.encoder.abandon();
            return Err(error);
        }
        finish_headers(out, start, id, request.ends, self.max_frame_size);
        Ok(())
    }

    /// Opens streams that wait, for as long as the write buffer has room.
    fn open_waiting(&mut self, wake: &mut Vec<Waker>) {
        while self.out.len() <= MAX_OUT {
            let Some((id, waiting)) = self.waiting.pop_first() else { return };
            let Some(key) = self.streams.find(id) else { continue };
            let mut request = waiting.as_request();
            let stream = self.streams.get(key);
            // Data that waits carries END_STREAM itself.
            if stream.asked == Asked::Closing && stream.queue.is_empty() {
                stream.asked = Asked::Closed;
                request.ends = true;
            }
            // The peer may have lowered its limit meanwhile.
            if let Err(error) = self.write_head(id, &request) {
                self.end(key, error, wake);
            }
        }
    }

    /// Sends data of a request, or has it wait for the window. `None` if the stream takes none any more.
    pub(crate) fn send_data(&mut self, key: Key, data: Bytes, ends: bool) -> Option<()> {
        let (room, initial) = (self.send_window, self.initial_window);
        let is_full = self.is_full();
        let stream = self.streams.get(key);
        if stream.asked != Asked::Open {
            return None;
        }
        if data.is_empty() && !ends {
            return Some(());
        }
        let len = data.len() as i64;
        let is_sent_at_once = stream.queue.is_empty()
            && match len {
                // An empty frame needs no window (RFC 9113, section 6.9.1).
                0 => !self.waiting.contains_key(&stream.id),
                _ => len <= room.min(initial + stream.send_offset) && !is_full,
            };
        if is_sent_at_once {
            stream.send_offset -= len;
            self.send_window -= len;
            let id = stream.id;
            if ends {
                stream.asked = Asked::Closed;
            }
            data_frames(&mut self.out, id, data, ends, self.max_frame_size);
            self.streams.close(key);
            return Some(());
        }
        if ends {
            stream.asked = Asked::Closing;
        }
        // The last piece in the queue carries END_STREAM. An empty piece behind it would wait for a window that it does not need.
        if !data.is_empty() {
            stream.queue.push_back(data);
            self.stand_in_line(key);
        }
        Some(())
    }

    /// Whether data would go out at once, at least in part.
    pub(crate) fn poll_room(&mut self, key: Key, cx: &Context<'_>) -> Poll<Option<()>> {
        let is_blocked = self.send_window <= 0 || self.is_full();
        let initial = self.initial_window;
        let stream = self.streams.get(key);
        if stream.asked != Asked::Open {
            return Poll::Ready(None);
        }
        if stream.queue.is_empty() && initial + stream.send_offset > 0 && !is_blocked {
            return Poll::Ready(Some(()));
        }
        register(&mut stream.writer, cx);
        self.stand_in_line(key);
        Poll::Pending
    }

    /// Ready when the stream takes no more data.
    pub(crate) fn poll_unwanted(&mut self, key: Key, cx: &Context<'_>) -> Poll<()> {
        let stream = self.streams.get(key);
        if stream.asked == Asked::Closed {
            return Poll::Ready(());
        }
        register(&mut stream.writer, cx);
        Poll::Pending
    }

    /// Puts a stream in line to send, or among those that wait for their window if that is used up.
    fn stand_in_line(&mut self, key: Key) {
        let initial = self.initial_window;
        let stream = self.streams.get(key);
        if stream.is_in_line {
            return;
        }
        if initial + stream.send_offset > 0 {
            stream.is_in_line = true;
            // Closed streams leave the line when data moves, and that depends on the peer.
            if self.line.len() > KEPT_LINE && self.line.len() > 2 * self.streams.count_open() {
                self.prune_line();
            }
            self.line.push_back(key);
        } else {
            self.streams.block(key);
        }
    }

    /// Removes closed streams from the line, and frees their slots.
    fn prune_line(&mut self) {
        let State { line, streams, .. } = self;
        line.retain(|&key| {
            let stream = streams.get(key);
            let is_open = stream.is_open();
            stream.is_in_line = is_open;
            streams.free_if_unused(key);
            is_open
        });
    }

    /// Moves data from streams to where it is written, a frame of each in turn, as far as the windows allow.
    pub(crate) fn fill(&mut self, wake: &mut Vec<Waker>) {
        if std::mem::take(&mut self.is_window_raised) {
            self.resume_blocked(wake);
        }
        // Afterwards none waits, or there is no room for data either. So no data overtakes the head of its request.
        if !self.waiting.is_empty() {
            self.open_waiting(wake);
        }
        while self.send_window > 0 && self.out.len() <= MAX_OUT {
            let Some(key) = self.line.pop_front() else { return };
            let room = self.send_window.min(self.max_frame_size as i64);
            let initial = self.initial_window;
            let stream = self.streams.get(key);
            stream.is_in_line = false;
            if let Some(data) = next_frame(stream, room.min(initial + stream.send_offset)) {
                let id = stream.id;
                let ends = stream.asked == Asked::Closing && stream.queue.is_empty();
                if ends {
                    stream.asked = Asked::Closed;
                }
                self.send_window -= data.len() as i64;
                data_frames(&mut self.out, id, data, ends, self.max_frame_size);
                self.streams.close(key);
            }
            let stream = self.streams.get(key);
            if stream.queue.is_empty() {
                wake.extend(stream.writer.take());
            } else {
                self.stand_in_line(key);
            }
            self.streams.free_if_unused(key);
        }
    }

    /// The peer's answer so far, once there is something of it.
    pub(crate) fn poll_head(&mut self, key: Key, cx: &Context<'_>) -> Poll<Result<Head, Error>> {
        let stream = self.streams.get(key);
        match (stream.head.take(), &stream.error) {
            (Some(head), _) => Poll::Ready(Ok(head)),
            (None, Some(error)) => Poll::Ready(Err(error.clone())),
            (None, None) => {
                register(&mut stream.reader, cx);
                Poll::Pending
            }
        }
    }

    /// All that is left of an answer, if it has ended and is small. The stream is done then.
    pub(crate) fn take_whole(&mut self, key: Key) -> Option<Whole> {
        let stream = self.streams.get(key);
        if stream.answer != Answer::Ended || !stream.data.is_one_piece() || stream.data.len() > SMALL {
            return None;
        }
        let whole = Whole { data: stream.data.pop(), trailers: stream.trailers.take() };
        // Whoever writes is not waited for.
        self.leave(key);
        Some(whole)
    }

    pub(crate) fn poll_data(&mut self, key: Key, cx: &Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        let stream = self.streams.get(key);
        if let Some(data) = stream.data.pop() {
            self.release(key, data.len());
            return Poll::Ready(Some(Ok(data)));
        }
        if stream.answer == Answer::Ended {
            return Poll::Ready(None);
        }
        if let Some(error) = &stream.error {
            return Poll::Ready(Some(Err(error.clone())));
        }
        register(&mut stream.reader, cx);
        Poll::Pending
    }

    /// Nobody reads the answer any more.
    pub(crate) fn leave(&mut self, key: Key) -> Waiting {
        let stream = self.streams.get(key);
        stream.has_reader = false;
        stream.reader = None;
        stream.data.clear();
        // Whoever still writes to a peer that has answered decides for itself.
        let is_over = stream.answer == Answer::Ended && stream.has_writer;
        let waiting = if is_over { Waiting::default() } else { self.cancel(key, Reason::CANCEL) };
        self.streams.free_if_unused(key);
        waiting
    }

    /// Nobody sends the request any more.
    pub(crate) fn stop_writing(&mut self, key: Key) {
        let stream = self.streams.get(key);
        stream.has_writer = false;
        stream.writer = None;
        if !stream.has_reader && stream.asked == Asked::Open {
            self.cancel(key, Reason::CANCEL);
        }
        self.streams.free_if_unused(key);
    }

    /// Ends a stream from our side. Answers with who waits for it.
    pub(crate) fn cancel(&mut self, key: Key, reason: Reason) -> Waiting {
        let stream = self.streams.get(key);
        if !stream.is_open() {
            return Waiting::default();
        }
        // The peer does not know a stream that was not opened.
        if self.waiting.remove(&stream.id).is_none() {
            frame::reset(self.out.tail(), stream.id, reason);
        }
        if stream.answer != Answer::Ended {
            stream.error = Some(Error::Reset(reason));
        }
        stream.asked = Asked::Closed;
        stream.queue.clear();
        let waiting = [stream.reader.take(), stream.writer.take()];
        self.streams.close(key);
        waiting
    }

    /// Takes DATA from the connection window and returns it to the peer, a quarter of the window at a time.
    ///
    /// It does not wait for readers: streams that are not read would otherwise use up the window and stop all others.
    fn receive(&mut self, bytes: usize) -> Result<(), Reason> {
        self.recv_window -= bytes as i64;
        if self.recv_window < 0 {
            return Err(Reason::FLOW_CONTROL_ERROR);
        }
        self.received += bytes as u32;
        if self.received < self.ours.connection_window / 4 {
            return Ok(());
        }
        self.recv_window += i64::from(self.received);
        frame::window_update(self.out.tail(), 0, std::mem::take(&mut self.received));
        self.reply()
    }

    /// Returns bytes that were read, or are not kept, to the window of their stream. Returns true if the peer gets a frame for it.
    fn release(&mut self, key: Key, bytes: usize) -> bool {
        let stream = self.streams.get(key);
        stream.released += bytes as u32;
        if stream.answer != Answer::Ended && stream.released > self.ours.stream_window / 2 {
            let (id, by) = (stream.id, std::mem::take(&mut stream.released));
            stream.recv_window += i64::from(by);
            if stream.is_open() {
                frame::window_update(self.out.tail(), id, by);
                return true;
            }
        }
        false
    }

    /// Hands over the frames to be written. Replies are limited while they wait here: a connection that always has something to
    /// write would otherwise come to the limit over time.
    pub(crate) fn take_out(&mut self, writing: &mut Outbox) {
        self.replies = 0;
        std::mem::swap(&mut self.out, writing);
    }

    /// All that waited to be written is on its way.
    pub(crate) fn written(&mut self) {
        self.replies = 0;
        if !self.streams.has_open() {
            self.streams.shrink();
            self.highest_offset = 0;
            if self.line.is_empty() && self.line.capacity() > KEPT_LINE {
                self.line = VecDeque::new();
            }
        }
    }

    /// Takes in what the peer sent. An error is one of the connection.
    pub(crate) fn apply(&mut self, event: Event, wake: &mut Vec<Waker>) -> Result<(), Reason> {
        match event {
            Event::Headers { stream, block, ends } => self.on_headers(stream, block, ends, wake),
            Event::Data { stream, piece, flow, ends } => self.on_data(stream, piece, flow, ends, wake),
            Event::Reset { stream, reason } => self.on_reset(stream, reason, wake),
            Event::Settings(settings) => self.on_settings(&settings),
            Event::Ping(payload) => {
                frame::ping(self.out.tail(), flag::ACK, payload);
                self.reply()
            }
            Event::GoAway { last, reason, words } => {
                self.on_goaway(last, &Error::GoAway(reason, words), wake)
            }
            Event::WindowUpdate { stream, by } => self.on_window_update(stream, by, wake),
        }
    }

    fn reply(&mut self) -> Result<(), Reason> {
        self.replies += 1;
        if self.replies > MAX_REPLIES { Err(Reason::ENHANCE_YOUR_CALM) } else { Ok(()) }
    }

    /// The stream of a frame, if it is still of interest. A stream that never was is an error.
    fn find(&self, id: u32) -> Result<Option<Key>, Reason> {
        let was_opened = id % 2 == 1 && id < self.next_unsent();
        if was_opened { Ok(self.streams.find(id)) } else { Err(Reason::PROTOCOL_ERROR) }
    }

    /// The lowest id whose stream was not opened.
    fn next_unsent(&self) -> u32 {
        self.waiting.first_key_value().map_or(self.next_id, |(id, _)| *id)
    }

    fn on_headers(&mut self, id: u32, block: Block, ends: bool, wake: &mut Vec<Waker>) -> Result<(), Reason> {
        let Some(key) = self.find(id)? else { return Ok(()) };
        let stream = self.streams.get(key);
        let mut content = stream.content;
        if let (Some(status), Some(length)) = (block.status, block.content_length) {
            content = content.stated(status, length);
        }
        // Content of another length than the response states makes it malformed (RFC 9113, section 8.1.1).
        let is_short = ends && !content.count(0, true);
        let fits = !block.is_malformed
            && !block.is_too_long
            && !is_short
            && match stream.answer {
                Answer::Awaited => block.status.is_some_and(|status| !status.is_informational() || !ends),
                // Trailers are the end.
                Answer::Begun => ends && block.status.is_none(),
                Answer::Ended => return self.refuse(key, Reason::STREAM_CLOSED, wake),
            };
        if !fits {
            return self.refuse(key, Reason::PROTOCOL_ERROR, wake);
        }
        match (stream.answer, block.status) {
            (Answer::Awaited, Some(status)) if status.is_informational() => return Ok(()),
            (Answer::Awaited, Some(status)) => {
                stream.content = content;
                stream.head = Some(Head { status, headers: block.headers, ends });
                stream.answer = Answer::Begun;
                self.has_answered = true;
            }
            _ => stream.trailers = Some(block.headers),
        }
        wake.extend(stream.reader.take());
        if ends {
            stream.answer = Answer::Ended;
            self.streams.close(key);
        }
        Ok(())
    }

    fn on_data(
        &mut self,
        id: u32,
        piece: Piece,
        flow: usize,
        ends: bool,
        wake: &mut Vec<Waker>,
    ) -> Result<(), Reason> {
        self.receive(flow)?;
        let Some(key) = self.find(id)? else { return Ok(()) };
        let stream = self.streams.get(key);
        stream.recv_window -= flow as i64;
        let wrong = match stream.answer {
            _ if stream.recv_window < 0 => Some(Reason::FLOW_CONTROL_ERROR),
            Answer::Awaited => Some(Reason::PROTOCOL_ERROR),
            Answer::Begun => (!stream.content.count(piece.len(), ends)).then_some(Reason::PROTOCOL_ERROR),
            Answer::Ended => Some(Reason::STREAM_CLOSED),
        };
        if let Some(reason) = wrong {
            return self.refuse(key, reason, wake);
        }
        let kept = if stream.has_reader { piece.len() } else { 0 };
        if kept > 0 {
            stream.data.push(piece);
        }
        if kept > 0 || ends {
            wake.extend(stream.reader.take());
        }
        if ends {
            stream.answer = Answer::Ended;
        }
        // Padding, and data of a stream without a reader, is not kept.
        let is_answered = self.release(key, flow - kept);
        if ends {
            self.streams.close(key);
        }
        // Padding costs the peer no reader: frames for it are limited like other replies.
        if is_answered { self.reply() } else { Ok(()) }
    }

    fn on_reset(&mut self, id: u32, reason: Reason, wake: &mut Vec<Waker>) -> Result<(), Reason> {
        if let Some(key) = self.find(id)? {
            // An answer that came as a whole counts, whatever the peer thinks of the rest of the request.
            self.end(key, Error::Reset(reason), wake);
        }
        Ok(())
    }

    /// Ends a stream in which the peer did something wrong.
    fn refuse(&mut self, key: Key, reason: Reason, wake: &mut Vec<Waker>) -> Result<(), Reason> {
        let stream = self.streams.get(key);
        frame::reset(self.out.tail(), stream.id, reason);
        self.end(key, Error::Malformed(reason), wake);
        self.reply()
    }

    /// The stream is over, and what has not come will not come.
    fn end(&mut self, key: Key, error: Error, wake: &mut Vec<Waker>) {
        let stream = self.streams.get(key);
        if stream.answer != Answer::Ended {
            stream.error = Some(error);
        }
        stream.asked = Asked::Closed;
        stream.queue.clear();
        self.waiting.remove(&stream.id);
        wake.extend(stream.reader.take());
        wake.extend(stream.writer.take());
        self.streams.close(key);
    }

    /// Every value is checked. Of the initial window only the last value takes effect, so that a frame costs one adjustment.
    fn on_settings(&mut self, settings: &[(u16, u32)]) -> Result<(), Reason> {
        let mut max_streams = self.max_streams.unwrap_or(usize::MAX);
        let mut initial_window = self.initial_window;
        for &(name, value) in settings {
            match name {
                setting::HEADER_TABLE_SIZE => self.encoder.set_max_size(value as usize),
                // A server has nothing to say of it.
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
                _ => {}
            }
        }
        self.max_streams = Some(max_streams);
        self.set_initial_window(initial_window)?;
        frame::settings_ack(self.out.tail());
        self.reply()
    }

    fn set_initial_window(&mut self, window: i64) -> Result<(), Reason> {
        if window > self.initial_window {
            if window + self.highest_offset > MAX_WINDOW {
                // The bound may be of a stream that has ended or sent since. The exact value needs a visit of every stream: it counts as
                // many replies, so that a peer cannot have it made again and again.
                self.highest_offset = self.streams.highest_offset();
                self.replies += (self.streams.count_open() / 8).min(MAX_REPLIES / 4);
                if window + self.highest_offset > MAX_WINDOW {
                    return Err(Reason::FLOW_CONTROL_ERROR);
                }
            }
            // Streams that wait are resumed with the next write, once for all frames of a read.
            self.is_window_raised = true;
        }
        self.initial_window = window;
        Ok(())
    }

    /// Resumes the streams whose window a higher initial window has opened.
    fn resume_blocked(&mut self, wake: &mut Vec<Waker>) {
        let mut at = 0;
        while let Some(key) = self.streams.blocked_at(at) {
            if self.initial_window + self.streams.get(key).send_offset > 0 {
                // The last of the list takes its position.
                self.resume(key, wake);
            } else {
                at += 1;
            }
        }
    }

    fn on_window_update(&mut self, id: u32, by: u32, wake: &mut Vec<Waker>) -> Result<(), Reason> {
        if id == 0 {
            self.send_window += i64::from(by);
            let is_wrong = by == 0 || self.send_window > MAX_WINDOW;
            return match is_wrong {
                true if by == 0 => Err(Reason::PROTOCOL_ERROR),
                true => Err(Reason::FLOW_CONTROL_ERROR),
                false => Ok(()),
            };
        }
        let Some(key) = self.find(id)? else { return Ok(()) };
        let initial = self.initial_window;
        let stream = self.streams.get(key);
        stream.send_offset += i64::from(by);
        if by == 0 {
            return self.refuse(key, Reason::PROTOCOL_ERROR, wake);
        }
        if initial + stream.send_offset > MAX_WINDOW {
            return self.refuse(key, Reason::FLOW_CONTROL_ERROR, wake);
        }
        self.highest_offset = self.highest_offset.max(stream.send_offset);
        self.resume(key, wake);
        Ok(())
    }

    /// The window of a stream is another one.
    fn resume(&mut self, key: Key, wake: &mut Vec<Waker>) {
        let initial = self.initial_window;
        let stream = self.streams.get(key);
        if initial + stream.send_offset > 0 {
            if stream.queue.is_empty() {
                wake.extend(stream.writer.take());
            } else {
                self.stand_in_line(key);
            }
            self.streams.unblock(key);
        }
    }

    fn on_goaway(&mut self, last: u32, error: &Error, wake: &mut Vec<Waker>) -> Result<(), Reason> {
        // The last stream id must not increase (RFC 9113, section 6.8).
        if last > self.last_accepted {
            return Err(Reason::PROTOCOL_ERROR);
        }
        self.refusal = Some(error.clone());
        // Streams above the last id of an earlier GOAWAY have ended.
        let next = self.next_id.min(self.last_accepted.saturating_add(1));
        self.last_accepted = last;
        // No more streams may be opened, whatever the last stream id is.
        let last_kept = last.min(self.next_unsent() - 1);
        for key in self.streams.open_between(last_kept, next) {
            self.end(key, error.clone(), wake);
        }
        Ok(())
    }

    /// The connection is over.
    pub(crate) fn fail(&mut self, error: &Error, wake: &mut Vec<Waker>) {
        self.refusal.get_or_insert_with(|| error.clone());
        for key in self.streams.open_between(0, self.next_id) {
            self.end(key, error.clone(), wake);
        }
    }

    /// Trailers, once the data is read.
    pub(crate) fn poll_trailers(
        &mut self,
        key: Key,
        cx: &Context<'_>,
    ) -> Poll<Result<Option<HeaderMap>, Error>> {
        let stream = self.streams.get(key);
        if stream.answer == Answer::Ended {
            return Poll::Ready(Ok(stream.trailers.take()));
        }
        if let Some(error) = &stream.error {
            return Poll::Ready(Err(error.clone()));
        }
        register(&mut stream.reader, cx);
        Poll::Pending
    }
}

fn register(slot: &mut Option<Waker>, cx: &Context<'_>) {
    if !slot.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        *slot = Some(cx.waker().clone());
    }
}

/// Takes what goes out next off a stream's queue; `None` if there is nothing, or no room for it.
fn next_frame(stream: &mut Stream, room: i64) -> Option<Bytes> {
    let first = stream.queue.front_mut()?;
    let len = (first.len() as i64).min(room);
    if len <= 0 {
        return None;
    }
    stream.send_offset -= len;
    let data = first.split_to(len as usize);
    if first.is_empty() {
        stream.queue.pop_front();
    }
    Some(data)
}

/// Encodes the header block of a request. After an error the block must be abandoned: it is not complete.
fn encode(
    encoder: &mut Encoder,
    out: &mut Vec<u8>,
    request: &Request<'_>,
    limit: usize,
) -> Result<(), Error> {
    encoder.begin(out, request.method, request.is_https, request.authority, request.path);
    for (name, value) in request.headers {
        if encoder.header(out, name, value).is_none() {
            return Err(Error::Unsendable(name.clone()));
        }
    }
    for (name, value) in request.more {
        if encoder.header(out, name, value).is_none() {
            return Err(Error::Unsendable(name.clone()));
        }
    }
    let size = encoder.list_size();
    if size > limit { Err(Error::HeaderListTooLarge { size, limit }) } else { Ok(()) }
}

/// Completes a block of headers that begins at `start`, in as many frames as it takes.
fn finish_headers(out: &mut Vec<u8>, start: usize, stream: u32, ends: bool, max_size: usize) {
    let end_stream = if ends { flag::END_STREAM } else { 0 };
    let len = out.len() - start - HEAD;
    if len <= max_size {
        let head = frame::Head { len, kind: kind::HEADERS, flags: flag::END_HEADERS | end_stream, stream };
        out[start..start + HEAD].copy_from_slice(&head.bytes());
        return;
    }
    let block = out.split_off(start + HEAD);
    out.truncate(start);
    let last = block.len().div_ceil(max_size) - 1;
    for (i, part) in block.chunks(max_size).enumerate() {
        let (kind, flags) = if i == 0 { (kind::HEADERS, end_stream) } else { (kind::CONTINUATION, 0) };
        let flags = if i == last { flags | flag::END_HEADERS } else { flags };
        frame::Head { len: part.len(), kind, flags, stream }.write(out);
        out.extend_from_slice(part);
    }
}

/// Appends frames of data.
fn data_frames(out: &mut Outbox, stream: u32, mut data: Bytes, ends: bool, max_size: usize) {
    loop {
        let part = data.split_to(data.len().min(max_size));
        let flags = if ends && data.is_empty() { flag::END_STREAM } else { 0 };
        frame::Head { len: part.len(), kind: kind::DATA, flags, stream }.write(out.tail());
        out.push(part);
        if data.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
