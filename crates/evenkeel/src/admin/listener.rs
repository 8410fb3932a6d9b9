//! Connections of the admin server, with their limits.
//!
//! A debugging port is used while a process has problems, so it must not add load. The number of connections
//! is limited. A connection is closed if its peer neither completes a request head nor reads a response in
//! time. axum has no such timeouts, so they apply here, at the socket.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// Maximum number of connections. Further ones are closed at once. A browser opens six at most.
pub(super) const MAX_CONNECTIONS: usize = 64;

/// Maximum time between the start of a connection, or the end of its last response, and the end of the next request head.
pub(super) const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum time that a peer may read nothing while a response is being written.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause after a failure to accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts up to [`MAX_CONNECTIONS`] at a time.
pub(super) struct AdminListener {
    listener: TcpListener,
    slots: Arc<Semaphore>,
}

impl AdminListener {
    pub(super) fn new(listener: TcpListener) -> AdminListener {
        AdminListener { listener, slots: Arc::new(Semaphore::new(MAX_CONNECTIONS)) }
    }
}

impl Listener for AdminListener {
    type Io = AdminSocket;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (AdminSocket, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
                        tracing::debug!(maximum = MAX_CONNECTIONS, "admin connection limit reached");
                        // Dropping the stream closes it.
                        continue;
                    };
                    return (AdminSocket::new(stream, slot), address);
                }
                Err(error) => {
                    tracing::warn!(%error, "admin server failed to accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Number of requests of one connection whose response has not ended.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestGauge {
    active: Arc<AtomicUsize>,
    /// Number of requests so far.
    started: Arc<AtomicUsize>,
}

impl RequestGauge {
    /// Counts a request until the guard is dropped.
    pub(super) fn start(&self) -> ActiveRequest {
        self.active.fetch_add(1, Ordering::AcqRel);
        self.started.fetch_add(1, Ordering::AcqRel);
        ActiveRequest { gauge: self.clone() }
    }

    fn is_idle(&self) -> bool {
        self.active.load(Ordering::Acquire) == 0
    }
}

impl Connected<IncomingStream<'_, AdminListener>> for RequestGauge {
    fn connect_info(stream: IncomingStream<'_, AdminListener>) -> RequestGauge {
        stream.io().gauge.clone()
    }
}

/// A request whose response has not ended.
#[derive(Debug)]
pub(super) struct ActiveRequest {
    gauge: RequestGauge,
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.gauge.active.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A connection with deadlines for heads and for writes.
pub(super) struct AdminSocket {
    stream: TcpStream,
    gauge: RequestGauge,
    head: IoDeadline,
    /// Number of requests at the last read. A request may begin and end between two reads.
    started: usize,
    write: IoDeadline,
    _slot: OwnedSemaphorePermit,
}

impl AdminSocket {
    fn new(stream: TcpStream, slot: OwnedSemaphorePermit) -> AdminSocket {
        let (head, write) = (IoDeadline::new(HEAD_TIMEOUT), IoDeadline::new(WRITE_TIMEOUT));
        AdminSocket { stream, gauge: RequestGauge::default(), head, started: 0, write, _slot: slot }
    }

    /// Runs a write, and fails it if none makes progress in time.
    fn poll_progress<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match write(Pin::new(&mut self.stream), cx) {
            Poll::Ready(written) => {
                self.write.clear();
                Poll::Ready(written)
            }
            Poll::Pending => self.write.poll_expired(cx).map(Err),
        }
    }
}

impl AsyncRead for AdminSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let started = this.gauge.started.load(Ordering::Acquire);
        if std::mem::replace(&mut this.started, started) != started {
            this.head.clear();
        }
        if this.gauge.is_idle() {
            // Checked before the read: a peer that sends a head byte by byte is always readable.
            if let Poll::Ready(error) = this.head.poll_expired(cx) {
                return Poll::Ready(Err(error));
            }
        } else {
            this.head.clear();
        }
        Pin::new(&mut this.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for AdminSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_progress(cx, |stream, cx| stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_progress(cx, |stream, cx| stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Deadline that starts on the first poll, and restarts on the first poll after it was cleared.
struct IoDeadline {
    after: Duration,
    sleep: Pin<Box<Sleep>>,
    is_armed: bool,
}

impl IoDeadline {
    fn new(after: Duration) -> IoDeadline {
        IoDeadline { after, sleep: Box::pin(sleep(after)), is_armed: false }
    }

    fn clear(&mut self) {
        self.is_armed = false;
    }

    /// Returns an error once the deadline has passed.
    fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if !self.is_armed {
            self.is_armed = true;
            self.sleep.as_mut().reset(Instant::now() + self.after);
        }
        self.sleep.as_mut().poll(cx).map(|()| io::ErrorKind::TimedOut.into())
    }
}
