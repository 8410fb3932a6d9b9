//! The part of a connection that reads and writes.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use crate::error::{Error, Reason};
use crate::frame::{self, DEFAULT_MAX_SIZE};
use crate::reader::{FrameReader, ReadChunk};
use crate::recv_buffer::READ_BUFFER_SIZE;
use crate::state::ConnectionState;
use crate::stream::{SendRequest, SharedConnection};
use crate::write_buffer::WriteBuffer;

/// From so much at once on, the next read is expected to be as large.
const BULK_READ: usize = 16 << 10;

/// After so many reads others have their turn.
const MAX_READS: usize = 16;

/// Number of events and wakers that an idle connection keeps room for.
const MAX_IDLE_CAPACITY: usize = 32;

thread_local! {
    /// Where the connections of a thread read to. An idle connection needs no buffer of its own.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// What we tell the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Settings {
    /// Bytes that the peer may send on a stream before they are read. Memory for unread responses is bounded by this, times the
    /// number of streams that are not read.
    pub stream_window: u32,
    /// Maximum number of bytes in flight from the peer on all streams together. They are returned on receipt, as in grpc-go. So
    /// streams that are not read do not stop the others.
    pub connection_window: u32,
    /// The largest frame that the peer may send; 16 KiB at least.
    pub max_frame_size: u32,
    /// The most bytes of headers or trailers that are taken in.
    pub max_header_list_size: u32,
}

/// Windows as hyper has them for clients; 16 KiB of headers.
impl Default for Http2Settings {
    fn default() -> Http2Settings {
        Http2Settings {
            stream_window: 2 << 20,
            connection_window: 5 << 20,
            max_frame_size: DEFAULT_MAX_SIZE as u32,
            max_header_list_size: 16 << 10,
        }
    }
}

/// A connection as a client has it. What the sender sends moves when the driver is polled with the byte stream.
pub fn client(settings: Http2Settings) -> (SendRequest, ConnectionDriver) {
    let shared = Arc::new(SharedConnection::new(ConnectionState::new(settings)));
    let driver = ConnectionDriver {
        shared: shared.clone(),
        writing: WriteBuffer::default(),
        reader: FrameReader::new(settings.max_frame_size as usize, settings.max_header_list_size as usize),
        wake: Vec::new(),
        max_streams: None,
        close_reason: None,
        bytes_read: 0,
        is_bulk: false,
        is_closing: false,
    };
    (SendRequest::new(shared), driver)
}

/// Reads and writes. It must be polled, or nothing moves.
pub struct ConnectionDriver {
    shared: Arc<SharedConnection>,
    /// What is on its way to the byte stream.
    writing: WriteBuffer,
    reader: FrameReader,
    wake: Vec<Waker>,
    max_streams: Option<usize>,
    close_reason: Option<Error>,
    bytes_read: u64,
    is_bulk: bool,
    /// Whether the last words are on their way.
    is_closing: bool,
}

impl ConnectionDriver {
    /// Moves bytes in both directions for as long as there are any. Ready when the connection is over: `Ok` if it ended because
    /// nobody needs it any more, or because the peer said goodbye and all streams are done.
    pub fn poll<I: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        io: &mut I,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        let moved = self.poll_io(io, cx);
        for waker in self.wake.drain(..) {
            waker.wake();
        }
        if moved.is_pending() {
            self.shrink();
        }
        moved
    }

    /// How many streams the peer takes at once; `None` until its settings have come.
    pub fn max_streams(&self) -> Option<usize> {
        self.max_streams
    }

    /// Why no more requests are taken, once they are not.
    pub fn close_reason(&self) -> Option<&Error> {
        self.close_reason.as_ref()
    }

    /// How many bytes were read so far: a sign of life.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Returns true while the connection has streams that neither side has closed or reset.
    pub fn has_open_streams(&self) -> bool {
        self.shared.lock().streams.has_open()
    }

    /// Returns true if the peer has sent the head of a response, on any stream.
    pub fn has_received_response(&self) -> bool {
        self.shared.lock().has_received_response
    }

    /// Asks the peer for a sign of life. It goes out when the driver is polled next.
    pub fn ping(&mut self) {
        frame::ping(self.shared.lock().out.tail(), 0, *b"evenkeel");
    }

    /// Releases buffers that a burst needed.
    fn shrink(&mut self) {
        if self.reader.events.capacity() > MAX_IDLE_CAPACITY {
            self.reader.events = Vec::new();
        }
        if self.wake.capacity() > MAX_IDLE_CAPACITY {
            self.wake = Vec::new();
        }
    }

    fn poll_io<I: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        io: &mut I,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        for _ in 0..MAX_READS {
            if let Err(error) = self.write(io, cx) {
                return self.fail(error, io, cx);
            }
            if self.is_closing {
                return self.poll_close(io, cx);
            }
            match ready!(self.poll_read(io, cx)) {
                Ok(()) => {}
                Err(error) => return self.fail(error, io, cx),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes until there is nothing left, or no room.
    fn write<I: AsyncWrite + Unpin>(&mut self, io: &mut I, cx: &mut Context<'_>) -> Result<(), Error> {
        loop {
            if self.writing.is_empty() {
                let mut state = self.shared.lock();
                state.fill_write_buffer(&mut self.wake);
                if check_closing(&mut state, &mut self.close_reason) {
                    self.is_closing = true;
                }
                if state.out.is_empty() {
                    state.written();
                    state.register_driver(cx);
                    drop(state);
                    // What is written goes out, also through a byte stream that gathers.
                    return match Pin::new(io).poll_flush(cx) {
                        Poll::Ready(Err(error)) => Err(error.into()),
                        _ => Ok(()),
                    };
                }
                state.take_out(&mut self.writing);
            }
            match self.writing.with_slices(|slices| match slices {
                [one] => Pin::new(&mut *io).poll_write(cx, one),
                many => Pin::new(&mut *io).poll_write_vectored(cx, many),
            }) {
                Poll::Ready(Ok(0)) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Poll::Ready(Ok(written)) => self.writing.advance(written),
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Pending => {
                    self.shared.lock().register_driver(cx);
                    return Ok(());
                }
            }
        }
    }

    fn poll_read<I: AsyncRead + Unpin>(
        &mut self,
        io: &mut I,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        if self.is_bulk {
            return self.poll_read_bulk(io, cx);
        }
        let mut buffer = BUFFER.try_with(Cell::take).unwrap_or_default();
        buffer.resize(READ_BUFFER_SIZE, 0);
        let mut read = ReadBuf::new(&mut buffer);
        let taken = match Pin::new(io).poll_read(cx, &mut read) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            Poll::Ready(Ok(())) => Poll::Ready(self.take(ReadChunk { rest: read.filled(), shared: None })),
        };
        let _ = BUFFER.try_with(|kept| kept.set(buffer));
        taken
    }

    /// Reads much at once, into a buffer of its own that large pieces of data may keep.
    fn poll_read_bulk<I: AsyncRead + Unpin>(
        &mut self,
        io: &mut I,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        let mut buffer = BytesMut::with_capacity(READ_BUFFER_SIZE);
        ready!(pin!(io.read_buf(&mut buffer)).poll(cx))?;
        let read = buffer.freeze();
        Poll::Ready(self.take(ReadChunk { rest: &read, shared: Some(&read) }))
    }

    /// Takes in what was read.
    fn take(&mut self, read: ReadChunk<'_>) -> Result<(), Error> {
        let len = read.rest.len();
        if len == 0 {
            return Err(Error::Closed);
        }
        self.is_bulk = len >= BULK_READ;
        self.bytes_read += len as u64;
        let read = self.reader.read(read);
        let mut state = self.shared.lock();
        // What came before an error counts.
        for event in self.reader.events.drain(..) {
            state.apply(event, &mut self.wake).map_err(Error::ConnectionError)?;
        }
        self.max_streams = state.max_streams;
        self.close_reason.clone_from(&state.close_reason);
        read.map_err(Error::ConnectionError)
    }

    /// The connection is over: streams learn why, and so does the peer if it is its fault.
    fn fail<I: AsyncWrite + Unpin>(
        &mut self,
        error: Error,
        io: &mut I,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        let mut state = self.shared.lock();
        state.fail(&error, &mut self.wake);
        self.close_reason.clone_from(&state.close_reason);
        if let Error::ConnectionError(reason) = error {
            state.has_sent_goaway = true;
            frame::goaway(state.out.tail(), reason);
            drop(state);
            // It is told if it listens; nobody waits for that.
            let _ = self.write(io, cx);
        }
        Poll::Ready(Err(error))
    }

    /// Closes once the last words are out. A peer that is gone does not need them.
    fn poll_close<I: AsyncWrite + Unpin>(
        &mut self,
        io: &mut I,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        if self.writing.is_empty() {
            let _ = ready!(Pin::new(io).poll_shutdown(cx));
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }
}

/// Looks whether the connection takes no more requests and has nothing left to do. If so, the peer is told goodbye.
fn check_closing(state: &mut ConnectionState, close_reason: &mut Option<Error>) -> bool {
    if close_reason.is_none() {
        close_reason.clone_from(&state.close_reason);
    }
    let is_over = state.is_over();
    if is_over && !state.has_sent_goaway {
        state.has_sent_goaway = true;
        frame::goaway(state.out.tail(), Reason::NO_ERROR);
    }
    is_over
}

/// Leaves out buffers: they hold headers and messages of calls.
impl fmt::Debug for ConnectionDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Driver");
        text.field("bytes_read", &self.bytes_read)
            .field("refusal", &self.close_reason)
            .finish_non_exhaustive()
    }
}

impl Drop for ConnectionDriver {
    /// Also when the runtime ends under it: nobody should wait for a connection that is gone.
    fn drop(&mut self) {
        self.shared.lock().fail(&Error::Exhausted, &mut self.wake);
        for waker in self.wake.drain(..) {
            waker.wake();
        }
    }
}
