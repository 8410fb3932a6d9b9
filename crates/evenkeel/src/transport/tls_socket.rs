//! TLS stream that reports the alert of a server that rejects our certificate.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;

use crate::transport::Io;
use crate::transport::errors::describe_io_error;

/// TLS stream with descriptions in its errors, since HTTP/2 keeps only their text.
///
/// A server that rejects our certificate sends an alert and closes. A failed write then hides the cause; the unread
/// alert contains it.
pub(super) struct TlsSocket {
    stream: TlsStream<Box<dyn Io>>,
    /// Error of a failed write, kept until the read that may return the alert completes.
    failed: Option<io::Error>,
}

impl TlsSocket {
    pub(super) fn new(stream: TlsStream<Box<dyn Io>>) -> TlsSocket {
        TlsSocket { stream, failed: None }
    }

    /// Runs a write. If it fails because the server has closed, returns the alert that the server sent before, if
    /// any.
    fn poll_written<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut TlsStream<Box<dyn Io>>>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let error = match self.failed.take() {
            Some(failed) => failed,
            None => match ready!(write(Pin::new(&mut self.stream), cx)) {
                Err(error) if is_closed(&error) => error,
                written => return Poll::Ready(written.map_err(with_description)),
            },
        };
        let mut scrap = [0; 64];
        match Pin::new(&mut self.stream).poll_read(cx, &mut ReadBuf::new(&mut scrap)) {
            Poll::Ready(Err(read_error)) if is_tls(&read_error) => {
                Poll::Ready(Err(with_description(read_error)))
            }
            // Data that this read returned is lost, but the connection has failed anyway.
            Poll::Ready(_) => Poll::Ready(Err(error)),
            Poll::Pending => {
                // The read has registered the waker, so the next poll must not write again.
                self.failed = Some(error);
                Poll::Pending
            }
        }
    }
}

impl AsyncRead for TlsSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf).map_err(with_description)
    }
}

impl AsyncWrite for TlsSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_written(cx, |stream, cx| stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_written(cx, |stream, cx| stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_written(cx, TlsStream::poll_flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn is_tls(error: &io::Error) -> bool {
    error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()).is_some()
}

fn with_description(error: io::Error) -> io::Error {
    if is_tls(&error) { io::Error::new(error.kind(), describe_io_error(&error)) } else { error }
}
