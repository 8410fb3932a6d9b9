//! Byte stream in memory, for tests in which all of a connection happens in one thread.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A byte stream that has these bytes to read, and then no more for now.
pub(crate) struct ScriptedIo<'a> {
    pub(crate) unread: &'a [u8],
    /// True if the peer does not read. Otherwise everything is written at once.
    pub(crate) is_stalled: bool,
}

impl AsyncRead for ScriptedIo<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            return Poll::Pending;
        }
        let (now, later) = self.unread.split_at(self.unread.len().min(into.remaining()));
        self.unread = later;
        into.put_slice(now);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ScriptedIo<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_stalled { Poll::Pending } else { Poll::Ready(Ok(bytes.len())) }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
