//! What calls hold: the sender of a connection, and the two ends of a stream.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use crate::error::{Error, Reason};
use crate::state::ConnectionState;
use crate::streams::StreamIndex;

/// The head of a request, as it goes to the wire. It is borrowed, so that it can be sent again.
#[derive(Clone, Copy, Debug)]
pub struct RequestHeaders<'a> {
    /// The method; gRPC's is POST.
    pub method: &'a Method,
    /// Whether the scheme is https.
    pub is_https: bool,
    /// Whom it is for.
    pub authority: &'a str,
    /// The path, and the query if there is one.
    pub path: &'a str,
    /// Header fields of the request.
    pub headers: &'a HeaderMap,
    /// More headers, behind the others.
    pub extra_headers: &'a [(HeaderName, HeaderValue)],
    /// Whether there is no body.
    pub end_stream: bool,
}

/// The head of an answer.
#[derive(Debug)]
pub struct ResponseHeaders {
    /// The status of HTTP.
    pub status: StatusCode,
    /// Header fields of the response.
    pub headers: HeaderMap,
    /// Whether it is the whole answer.
    pub end_stream: bool,
}

/// What is left of an answer that came as a whole.
#[derive(Default)]
pub(crate) struct BufferedResponse {
    pub(crate) data: Option<Bytes>,
    pub(crate) trailers: Option<HeaderMap>,
}

pub(crate) struct SharedConnection(Mutex<ConnectionState>);

/// Leaves the state out: it holds request headers that wait to be written, tokens among them.
impl fmt::Debug for SharedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl SharedConnection {
    pub(crate) fn new(state: ConnectionState) -> SharedConnection {
        SharedConnection(Mutex::new(state))
    }

    /// Nothing that is done under the lock can be left half done.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something that may leave frames to be written, and wakes the driver if it does.
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

/// Sends requests on a connection. When it is dropped, the connection ends as soon as its streams have.
#[derive(Debug)]
pub struct SendRequest {
    shared: Arc<SharedConnection>,
}

impl SendRequest {
    pub(crate) fn new(shared: Arc<SharedConnection>) -> SendRequest {
        SendRequest { shared }
    }

    /// Opens a stream. It never waits: how many streams the peer takes at once is the caller's to keep.
    ///
    /// If the peer does not read, the request is queued. Cancelled before it was sent, it leaves no frames behind.
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

    /// Why no more requests are taken, once they are not.
    pub fn close_reason(&self) -> Option<Error> {
        self.shared.lock().close_reason.clone()
    }
}

impl Drop for SendRequest {
    fn drop(&mut self) {
        let driver = {
            let mut state = self.shared.lock();
            state.is_sender_dropped = true;
            state.take_driver_waker()
        };
        wake([driver]);
    }
}

/// The body of a request. Dropped before its end it leaves the request incomplete; the stream is then cancelled with its other
/// end.
#[derive(Debug)]
pub struct SendStream {
    shared: Arc<SharedConnection>,
    key: StreamIndex,
    /// Whether the end was sent: the slot may be another stream's by now.
    is_done: bool,
}

impl SendStream {
    /// Sends data, or has it wait for the window. `None` if the stream takes no more: its [`RecvStream`] says why.
    pub fn send(&mut self, data: Bytes, end_stream: bool) -> Option<()> {
        if self.is_done {
            return None;
        }
        self.is_done = end_stream;
        self.shared.change(|state| {
            let sent = state.send_data(self.key, data, end_stream);
            if end_stream {
                state.drop_send_half(self.key);
            }
            sent
        })
    }

    /// Waits until data would go out at once, at least in part. `None` if the stream takes no more.
    pub fn poll_capacity(&mut self, cx: &Context<'_>) -> Poll<Option<()>> {
        if self.is_done {
            return Poll::Ready(None);
        }
        self.shared.lock().poll_capacity(self.key, cx)
    }

    /// Waits until the stream takes no more data.
    pub fn poll_closed(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.is_done {
            return Poll::Ready(());
        }
        self.shared.lock().poll_closed(self.key, cx)
    }

    /// Ends the stream, whatever became of it.
    pub fn reset(&mut self, reason: Reason) {
        if !self.is_done {
            self.is_done = true;
            let waiting = self.shared.change(|state| {
                let waiting = state.cancel(self.key, reason);
                state.drop_send_half(self.key);
                waiting
            });
            wake(waiting);
        }
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        if !self.is_done {
            self.shared.change(|state| state.drop_send_half(self.key));
        }
    }
}

/// An answer. Dropped before its end it cancels the stream.
pub struct RecvStream {
    shared: Arc<SharedConnection>,
    key: StreamIndex,
    /// Whether the rest of it is here: the slot may be another stream's by now.
    is_done: bool,
    buffered: BufferedResponse,
}

impl RecvStream {
    /// Waits for the head. It comes once.
    pub fn poll_head(&mut self, cx: &Context<'_>) -> Poll<Result<ResponseHeaders, Error>> {
        if self.is_done {
            return Poll::Ready(Err(Error::Exhausted));
        }
        self.take(|state, key| state.poll_head(key, cx))
    }

    /// Waits for data. `None` is the end of it.
    pub fn poll_data(&mut self, cx: &Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        if self.is_done {
            return Poll::Ready(self.buffered.data.take().map(Ok));
        }
        self.take(|state, key| state.poll_data(key, cx))
    }

    /// Waits for the trailers, behind the data.
    pub fn poll_trailers(&mut self, cx: &Context<'_>) -> Poll<Result<Option<HeaderMap>, Error>> {
        if self.is_done {
            return Poll::Ready(Ok(self.buffered.trailers.take()));
        }
        self.shared.lock().poll_trailers(self.key, cx)
    }

    /// Takes something of the answer, and with it the rest if that is small and there is no more to come.
    fn take<T>(&mut self, take: impl FnOnce(&mut ConnectionState, StreamIndex) -> Poll<T>) -> Poll<T> {
        let RecvStream { shared, key, is_done, buffered } = self;
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

/// Leaves out the content of the response.
impl fmt::Debug for RecvStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvStream").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        if !self.is_done {
            wake(self.shared.change(|state| state.drop_recv_half(self.key)));
        }
    }
}
