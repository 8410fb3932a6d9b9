//! Byte stream in memory, for tests in which a whole connection runs in one thread.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::cell::{RefCell, RefMut};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use evenkeel_http2::RequestHeaders;
use http::{HeaderMap, Method};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Byte stream between a client and a scripted server. Clones are handles of the same stream.
#[derive(Clone, Debug)]
pub(crate) struct MemoryIo(Rc<RefCell<MemoryIoState>>);

/// Bytes of a [`MemoryIo`] and the behaviour of its server.
#[derive(Debug)]
pub(crate) struct MemoryIoState {
    input: Vec<u8>,
    /// Number of bytes that the client has read.
    pub(crate) read: usize,
    /// End of the input that the client may read at present.
    pub(crate) limit: usize,
    /// Maximum size of one read.
    pub(crate) max_read: usize,
    /// True if the byte stream ends after the input. Otherwise the client waits for more.
    pub(crate) is_ended: bool,
    /// True if the server does not read, so that writes wait.
    pub(crate) is_stalled: bool,
    /// Bytes that the client has written.
    pub(crate) written: Vec<u8>,
}

impl MemoryIo {
    /// Creates a stream whose server has sent these bytes.
    pub(crate) fn new(input: &[u8]) -> MemoryIo {
        MemoryIo(Rc::new(RefCell::new(MemoryIoState {
            input: input.to_vec(),
            read: 0,
            limit: input.len(),
            max_read: usize::MAX,
            is_ended: false,
            is_stalled: false,
            written: Vec::new(),
        })))
    }

    pub(crate) fn state(&self) -> RefMut<'_, MemoryIoState> {
        self.0.borrow_mut()
    }
}

impl MemoryIoState {
    /// Returns true if the client has read everything that it may.
    pub(crate) fn is_drained(&self) -> bool {
        self.read == self.limit
    }

    /// Returns the input, to which a test appends what the server sends next. Bytes that were read are gone.
    pub(crate) fn send(&mut self, append: impl FnOnce(&mut Vec<u8>)) {
        self.input.drain(..std::mem::take(&mut self.read));
        append(&mut self.input);
        self.limit = self.input.len();
    }
}

impl AsyncRead for MemoryIo {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let state = &mut *self.state();
        let unread = &state.input[state.read..state.limit];
        if unread.is_empty() && !state.is_ended {
            return Poll::Pending;
        }
        let len = unread.len().min(into.remaining()).min(state.max_read);
        into.put_slice(&unread[..len]);
        state.read += len;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for MemoryIo {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let state = &mut *self.state();
        if state.is_stalled {
            return Poll::Pending;
        }
        state.written.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Returns the headers of a request over plaintext.
pub(crate) fn request(headers: &HeaderMap, end_stream: bool) -> RequestHeaders<'_> {
    RequestHeaders {
        method: &Method::POST,
        is_https: false,
        authority: "a",
        path: "/s/m",
        extra_headers: &[],
        headers,
        end_stream,
    }
}
