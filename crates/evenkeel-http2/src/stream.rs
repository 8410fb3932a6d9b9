//! Handles that calls hold: [`SendRequest`] of a connection, and the two halves of a stream.
//!
//! They only lock the shared state, change it and wake the driver. Frames are read and written by
//! [`ConnectionDriver`](crate::ConnectionDriver). Dropping a handle is always safe: it resets the stream if
//! that is not complete. The module `streams` draws the stream states of RFC 9113, section 5.1.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use crate::error::{Error, Reason};
use crate::state::ConnectionState;
use crate::streams::StreamIndex;

/// Headers of a request, borrowed so that a retry can send them again.
#[derive(Clone, Copy, Debug)]
pub struct RequestHeaders<'a> {
    /// HTTP method; POST for gRPC.
    pub method: &'a Method,
    /// True if `:scheme` is `https`, false if it is `http`.
    pub is_https: bool,
    /// Value of `:authority`: the host that the request addresses.
    pub authority: &'a str,
    /// Value of `:path`, including the query if there is one.
    pub path: &'a str,
    /// Header fields of the request, without pseudo-headers.
    pub headers: &'a HeaderMap,
    /// Further header fields, encoded behind `headers`.
    pub extra_headers: &'a [(HeaderName, HeaderValue)],
    /// True if the request has no body: HEADERS carries END_STREAM.
    pub end_stream: bool,
}

/// Headers of a response.
#[derive(Debug)]
pub struct ResponseHeaders {
    /// HTTP status code, from `:status`.
    pub status: StatusCode,
    /// Header fields of the response.
    pub headers: HeaderMap,
    /// True if the response ends with these headers.
    pub end_stream: bool,
}

/// Unread rest of a small response that was received completely.
#[derive(Default)]
pub(crate) struct BufferedResponse {
    pub(crate) data: Option<Bytes>,
    pub(crate) trailers: Option<HeaderMap>,
}

pub(crate) struct SharedConnection(Mutex<ConnectionState>);

/// Omits the state: it holds queued request headers, which may contain tokens.
impl fmt::Debug for SharedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedConnection").finish_non_exhaustive()
    }
}

impl SharedConnection {
    pub(crate) fn new(state: ConnectionState) -> SharedConnection {
        SharedConnection(Mutex::new(state))
    }

    /// Locks the state. Poisoning is ignored: no operation leaves the state half changed.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the driver if there are frames to write.
    ///
    /// The waker runs after the lock is released: it may poll the driver at once.
    fn change<T>(&self, change: impl FnOnce(&mut ConnectionState) -> T) -> T {
        let (done, driver) = {
            let mut state = self.lock();
            let done = change(&mut state);
            let driver = if state.has_work() { state.take_driver_waker() } else { None };
            (done, driver)
        };
        wake([driver]);
        done
    }
}

fn wake(waiting: impl IntoIterator<Item = Option<Waker>>) {
    for waker in waiting.into_iter().flatten() {
        waker.wake();
    }
}

/// Handle that opens streams on a connection. When it is dropped, the connection closes once its streams have closed.
#[derive(Debug)]
pub struct SendRequest {
    shared: Arc<SharedConnection>,
}

impl SendRequest {
    pub(crate) fn new(shared: Arc<SharedConnection>) -> SendRequest {
        SendRequest { shared }
    }

    /// Opens a stream without waiting. The caller must respect the peer's maximum number of concurrent streams.
    ///
    /// If the write buffer is full, the request is queued. If it is cancelled before it was sent, no frame is written
    /// for it.
    pub fn send(&self, request: &RequestHeaders<'_>) -> Result<(SendStream, RecvStream), Error> {
        let (key, _) = self.shared.change(|state| state.send(request))?;
        let send = SendStream { shared: self.shared.clone(), key, is_done: request.end_stream };
        let recv = RecvStream {
            shared: self.shared.clone(),
            key,
            is_done: false,
            buffered: BufferedResponse::default(),
        };
        Ok((send, recv))
    }

    /// Returns the reason why the connection accepts no more requests, or `None` while it does.
    pub fn close_reason(&self) -> Option<Error> {
        self.shared.lock().close_reason.clone()
    }
}

impl Drop for SendRequest {
    fn drop(&mut self) {
        let driver = {
            let mut state = self.shared.lock();
            state.is_sender_dropped = true;
            // Unconditional: the task around the driver may wait for this drop, also without a frame to write.
            state.take_driver_waker()
        };
        wake([driver]);
    }
}

/// Send half of a stream: the request body.
///
/// Dropped before END_STREAM it leaves the request incomplete. The stream is then cancelled when its receive half is
/// dropped.
#[derive(Debug)]
pub struct SendStream {
    shared: Arc<SharedConnection>,
    key: StreamIndex,
    /// True once END_STREAM was queued. The slot may then belong to another stream.
    is_done: bool,
}

impl SendStream {
    /// Sends DATA, or queues it until the flow-control window allows it. `None` if the stream accepts no more data: its
    /// [`RecvStream`] reports the reason.
    pub fn send(&mut self, data: Bytes, end_stream: bool) -> Option<()> {
        if self.is_done {
            return None;
        }
        self.is_done = end_stream;
        self.shared.change(|state| {
            let sent = state.send_data(self.key, data, end_stream);
            if end_stream {
                // Under the same lock: after END_STREAM the slot may be freed and reused.
                state.drop_send_half(self.key);
            }
            sent
        })
    }

    /// Waits until data could be sent at once, at least in part. `None` if the stream accepts no more data.
    pub fn poll_capacity(&mut self, cx: &Context<'_>) -> Poll<Option<()>> {
        if self.is_done {
            return Poll::Ready(None);
        }
        // The driver needs no wake-up: it has frames to write, or waits for a WINDOW_UPDATE.
        self.shared.lock().poll_capacity(self.key, cx)
    }

    /// Waits until the stream accepts no more data.
    pub fn poll_closed(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.is_done {
            return Poll::Ready(());
        }
        self.shared.lock().poll_closed(self.key, cx)
    }

    /// Cancels the stream with RST_STREAM, unless END_STREAM was sent or the stream has closed.
    pub fn reset(&mut self, reason: Reason) {
        if !self.is_done {
            self.is_done = true;
            let waiting = self.shared.change(|state| {
                // In this order: without a reader, `drop_send_half` would reset the stream with CANCEL.
                let waiting = state.cancel(self.key, reason);
                state.drop_send_half(self.key);
                waiting
            });
            // After `change` has released the lock.
            wake(waiting);
        }
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        // Otherwise the slot may belong to another stream.
        if !self.is_done {
            self.shared.change(|state| state.drop_send_half(self.key));
        }
    }
}

/// Receive half of a stream: the response. Dropped before the response is complete it cancels the stream.
pub struct RecvStream {
    shared: Arc<SharedConnection>,
    key: StreamIndex,
    /// True once `buffered` holds the rest. The slot may then belong to another stream.
    is_done: bool,
    buffered: BufferedResponse,
}

impl RecvStream {
    /// Waits for the response headers. They are returned once.
    pub fn poll_head(&mut self, cx: &Context<'_>) -> Poll<Result<ResponseHeaders, Error>> {
        if self.is_done {
            return Poll::Ready(Err(Error::Exhausted));
        }
        self.take(|state, key| state.poll_head(key, cx))
    }

    /// Waits for data. `None` is the end of the data.
    pub fn poll_data(&mut self, cx: &Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        if self.is_done {
            return Poll::Ready(self.buffered.data.take().map(Ok));
        }
        self.take(|state, key| state.poll_data(key, cx))
    }

    /// Waits for the trailers, which follow the data. They are `None` if the response has none.
    pub fn poll_trailers(&mut self, cx: &Context<'_>) -> Poll<Result<Option<HeaderMap>, Error>> {
        if self.is_done {
            return Poll::Ready(Ok(self.buffered.trailers.take()));
        }
        // The driver needs no wake-up: reading trailers queues no frame.
        self.shared.lock().poll_trailers(self.key, cx)
    }

    /// Reads a part of the response. The rest moves to `buffered` if it is complete and small, which spares further
    /// locking.
    fn take<T>(&mut self, take: impl FnOnce(&mut ConnectionState, StreamIndex) -> Poll<T>) -> Poll<T> {
        let RecvStream { shared, key, is_done, buffered } = self;
        // Not a plain lock: reading data may queue a WINDOW_UPDATE.
        shared.change(|state| {
            let taken = take(state, *key);
            if taken.is_ready()
                && let Some(rest) = state.take_buffered(*key)
            {
                *buffered = rest;
                *is_done = true;
            }
            taken
        })
    }
}

/// Omits the content of the response.
impl fmt::Debug for RecvStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvStream").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        if !self.is_done {
            // The task of the writer may wait for the stream that this cancels.
            wake(self.shared.change(|state| state.drop_recv_half(self.key)));
        }
    }
}
