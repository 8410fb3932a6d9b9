//! I/O half of a connection: [`ConnectionDriver`] moves bytes between the byte stream and the shared state.
//!
//! It decides nothing about streams: [`FrameReader`] parses, and [`ConnectionState`] applies each frame under the lock.
//! It starts no task and reads no clock. The caller polls it, and owns keepalive and timeouts.

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

/// Minimum number of bytes in one read after which the next read uses a buffer of its own.
const BULK_READ: usize = 16 << 10;

/// Maximum number of reads per poll, so that other tasks of the runtime can run.
const MAX_READS: usize = 16;

/// Number of events and wakers that an idle connection keeps room for.
const MAX_IDLE_CAPACITY: usize = 32;

thread_local! {
    /// Read buffer that all connections of a thread share. An idle connection needs no buffer of its own.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Settings of the client: the flow-control windows and limits that it advertises to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Settings {
    /// Initial flow-control window of each stream, in bytes. Memory for unread responses is bounded by this, times the
    /// number of streams that are not read.
    pub stream_window: u32,
    /// Flow-control window of the connection, in bytes. It is returned to the peer on receipt, as in grpc-go. So
    /// streams that are not read do not stop the others.
    pub connection_window: u32,
    /// Maximum payload of a frame that the peer may send, in bytes; at least 16 KiB.
    pub max_frame_size: u32,
    /// Maximum size of a header list (headers or trailers) that is accepted, in bytes.
    pub max_header_list_size: u32,
}

/// The windows are hyper's defaults for clients; header lists are limited to 16 KiB.
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

/// Creates a client connection: a handle that opens streams, and the driver that does the I/O.
///
/// Frames move only while the driver is polled with the byte stream.
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

/// Reads and writes the frames of a connection. Nothing moves unless it is polled.
pub struct ConnectionDriver {
    shared: Arc<SharedConnection>,
    /// Frames that are being written to the byte stream.
    writing: WriteBuffer,
    reader: FrameReader,
    wake: Vec<Waker>,
    max_streams: Option<usize>,
    close_reason: Option<Error>,
    bytes_read: u64,
    is_bulk: bool,
    /// True once the connection closes: the driver writes the remaining frames, GOAWAY last, and shuts down.
    is_closing: bool,
}

impl ConnectionDriver {
    /// Moves bytes in both directions until neither can make progress.
    ///
    /// Ready when the connection has closed. It is `Ok` if all streams have closed after the handle was dropped, the
    /// peer sent GOAWAY, or the stream ids were used up.
    pub fn poll<I: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        io: &mut I,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        let moved = self.poll_io(io, cx);
        // After `poll_io` has released the lock: a waker may run its task at once, and the task locks the state.
        for waker in self.wake.drain(..) {
            waker.wake();
        }
        if moved.is_pending() {
            self.shrink();
        }
        moved
    }

    /// Returns the peer's SETTINGS_MAX_CONCURRENT_STREAMS, `usize::MAX` if it set none. `None` until its SETTINGS
    /// arrive.
    pub fn max_streams(&self) -> Option<usize> {
        self.max_streams
    }

    /// Returns the reason why the connection accepts no more requests, or `None` while it does.
    pub fn close_reason(&self) -> Option<&Error> {
        self.close_reason.as_ref()
    }

    /// Returns the number of bytes read so far. Keepalive takes any increase as a sign of life.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Returns true while the connection has streams that neither side has closed or reset.
    pub fn has_open_streams(&self) -> bool {
        self.shared.lock().streams.has_open()
    }

    /// Returns true if the peer has sent response headers, on any stream.
    pub fn has_received_response(&self) -> bool {
        self.shared.lock().has_received_response
    }

    /// Queues a PING frame. The driver sends it on the next poll.
    pub fn ping(&mut self) {
        frame::ping(self.shared.lock().out.tail(), 0, *b"evenkeel");
    }

    /// Releases the capacity that a burst needed.
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
            // Before the read, so that replies to the last read are sent, and the driver's waker is stored before the
            // task waits.
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
        // The byte stream may still be readable: reschedule instead of waiting for its waker.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes until the buffers are empty or the byte stream accepts no more.
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
                    // Under the lock that found nothing to write: a frame that is queued later finds the waker.
                    state.register_driver(cx);
                    // Release the lock before I/O: calls take it to send.
                    drop(state);
                    // A byte stream that buffers, such as TLS, sends nothing without a flush.
                    return match Pin::new(io).poll_flush(cx) {
                        Poll::Ready(Err(error)) => Err(error.into()),
                        // A pending flush has registered the waker, and the next poll continues it.
                        _ => Ok(()),
                    };
                }
                state.take_out(&mut self.writing);
            }
            match self.writing.with_slices(|slices| match slices {
                [one] => Pin::new(&mut *io).poll_write(cx, one),
                many => Pin::new(&mut *io).poll_write_vectored(cx, many),
            }) {
                // Without progress this loop would spin.
                Poll::Ready(Ok(0)) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Poll::Ready(Ok(written)) => self.writing.advance(written),
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Pending => {
                    // Also while the byte stream is full: a dropped handle must wake the task, which limits the wait
                    // for the peer.
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
        // Taken, not borrowed: a byte stream that polls another connection finds an empty buffer, as does a thread that
        // is exiting.
        let mut buffer = BUFFER.try_with(Cell::take).unwrap_or_default();
        // Zeroes the buffer once per thread: it keeps its length.
        buffer.resize(READ_BUFFER_SIZE, 0);
        let mut read = ReadBuf::new(&mut buffer);
        let taken = match Pin::new(io).poll_read(cx, &mut read) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            // Not shared: the next read overwrites this buffer, so chunks are copied out of it.
            Poll::Ready(Ok(())) => Poll::Ready(self.take(ReadChunk { rest: read.filled(), shared: None })),
        };
        // Fails while the thread exits, and then the buffer is freed.
        let _ = BUFFER.try_with(|kept| kept.set(buffer));
        taken
    }

    /// Reads into a buffer that is not shared with other connections, so that large chunks can keep it without a copy.
    fn poll_read_bulk<I: AsyncRead + Unpin>(
        &mut self,
        io: &mut I,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        let mut buffer = BytesMut::with_capacity(READ_BUFFER_SIZE);
        // `read_buf` is cancel-safe: dropping its future while it is pending loses no bytes.
        ready!(pin!(io.read_buf(&mut buffer)).poll(cx))?;
        let read = buffer.freeze();
        Poll::Ready(self.take(ReadChunk { rest: &read, shared: Some(&read) }))
    }

    /// Parses the bytes of one read, and applies the frames. An empty read is the end of the byte stream.
    fn take(&mut self, read: ReadChunk<'_>) -> Result<(), Error> {
        let len = read.rest.len();
        if len == 0 {
            return Err(Error::Closed);
        }
        self.is_bulk = len >= BULK_READ;
        self.bytes_read += len as u64;
        // Parsed before the lock is taken, so that calls do not wait for HPACK.
        let read = self.reader.read(read);
        let mut state = self.shared.lock();
        // Frames before an error take effect, so they are applied before the error is returned.
        for event in self.reader.events.drain(..) {
            // A connection error discards the remaining events: all streams fail anyway.
            state.apply(event, &mut self.wake).map_err(Error::ConnectionError)?;
        }
        self.max_streams = state.max_streams;
        self.close_reason.clone_from(&state.close_reason);
        read.map_err(Error::ConnectionError)
    }

    /// Closes the connection: all streams fail with `error`. After a connection error the peer gets GOAWAY.
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
            // Set before `write`, which would queue a second GOAWAY with NO_ERROR.
            state.has_sent_goaway = true;
            frame::goaway(state.out.tail(), reason);
            // `write` takes the lock.
            drop(state);
            // A best effort: the connection is closed whether the peer receives GOAWAY or not.
            let _ = self.write(io, cx);
        }
        Poll::Ready(Err(error))
    }

    /// Shuts the byte stream down once all frames are written. A failure does not matter any more.
    fn poll_close<I: AsyncWrite + Unpin>(
        &mut self,
        io: &mut I,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        if self.writing.is_empty() {
            let _ = ready!(Pin::new(io).poll_shutdown(cx));
            return Poll::Ready(Ok(()));
        }
        // `write` left bytes, so the byte stream has registered the waker.
        Poll::Pending
    }
}

/// Returns true if the connection accepts no more requests and has no open streams. It then queues GOAWAY, once.
fn check_closing(state: &mut ConnectionState, close_reason: &mut Option<Error>) -> bool {
    // `take` copies the reasons that the peer causes. This one is of `send`: the stream ids are used up.
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

/// Omits the buffers: they hold headers and messages of calls.
impl fmt::Debug for ConnectionDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("ConnectionDriver");
        text.field("bytes_read", &self.bytes_read)
            .field("close_reason", &self.close_reason)
            .finish_non_exhaustive()
    }
}

impl Drop for ConnectionDriver {
    /// Fails all streams, also when the runtime drops the task: otherwise their wakers would never be called.
    fn drop(&mut self) {
        // The guard is dropped at the end of this statement, before the wakers run.
        self.shared.lock().fail(&Error::Exhausted, &mut self.wake);
        for waker in self.wake.drain(..) {
            waker.wake();
        }
    }
}
