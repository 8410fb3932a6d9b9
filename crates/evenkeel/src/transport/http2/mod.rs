//! The HTTP/2 implementation of a connection: `evenkeel-http2`, or the crate `h2` if the application selects it.
//!
//! This module is the whole abstraction. Calls open streams by [`HttpSender::send`]; [`HttpSendStream`] and
//! [`HttpRecvStream`] are the two halves of a stream. The connection's task polls the [`HttpTransport`], which owns
//! the byte stream.
//!
//! Both implementations use the requests, responses, error codes and errors of `evenkeel-http2`, so callers need not
//! distinguish them. Dispatch is by enums: without the feature `h2` they have one variant and cost nothing.

#[cfg(feature = "h2")]
mod h2_transport;

use std::task::{Context, Poll};

use bytes::Bytes;
pub(crate) use evenkeel_http2::{Error, Http2Settings, Reason, RequestHeaders, ResponseHeaders};
use http::HeaderMap;

use crate::transport::Io;

/// HTTP/2 implementation that a channel uses.
///
/// The default is written for gRPC clients, and published figures refer to it. `h2`, the implementation used by hyper
/// and tonic, is the fallback. An application can select it when a vulnerability or an incompatibility of the default
/// has no released fix. It is also the reference of differential tests: the channel's tests run over both.
///
/// Behaviour is the same with both: deadlines, retries, statuses, keepalive, limits and every setting of the
/// [builder](crate::ChannelBuilder). With `h2`, a call costs more instructions and a connection more memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Http2Implementation {
    /// The implementation of this project, `evenkeel-http2`.
    #[default]
    Evenkeel,
    /// The crate `h2`. Needs the feature `h2`.
    #[cfg(feature = "h2")]
    H2,
}

macro_rules! dispatch {
    ($self:expr, $inner:ident => $call:expr) => {
        match $self {
            Self::Evenkeel($inner) => $call,
            #[cfg(feature = "h2")]
            Self::H2($inner) => $call,
        }
    };
}

/// Opens streams. Dropping it closes the connection as soon as its streams are closed.
pub(crate) enum HttpSender {
    Evenkeel(evenkeel_http2::SendRequest),
    #[cfg(feature = "h2")]
    H2(h2_transport::H2Sender),
}

impl HttpSender {
    /// Opens a stream without waiting. The caller must observe the peer's [maximum](HttpTransport::max_streams).
    pub(crate) fn send(
        &self,
        request: &RequestHeaders<'_>,
    ) -> Result<(HttpSendStream, HttpRecvStream), Error> {
        match self {
            HttpSender::Evenkeel(sender) => {
                let (send, receive) = sender.send(request)?;
                Ok((HttpSendStream::Evenkeel(send), HttpRecvStream::Evenkeel(receive)))
            }
            #[cfg(feature = "h2")]
            HttpSender::H2(sender) => {
                let (send, receive) = sender.send(request)?;
                Ok((HttpSendStream::H2(send), HttpRecvStream::H2(Box::new(receive))))
            }
        }
    }
}

/// The request half of a stream. The request stays incomplete if this half is dropped before its end.
pub(crate) enum HttpSendStream {
    Evenkeel(evenkeel_http2::SendStream),
    #[cfg(feature = "h2")]
    H2(h2_transport::H2SendStream),
}

impl HttpSendStream {
    /// Sends data, or queues it until the flow-control window has room. Returns `None` if the stream takes no more
    /// data; the other half reports the reason.
    pub(crate) fn send(&mut self, data: Bytes, end_stream: bool) -> Option<()> {
        dispatch!(self, stream => stream.send(data, end_stream))
    }

    /// Ready when data would be sent at once, at least in part. `None` if the stream takes no more data.
    pub(crate) fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<Option<()>> {
        dispatch!(self, stream => stream.poll_capacity(cx))
    }

    /// Ready when the stream takes no more data.
    pub(crate) fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        dispatch!(self, stream => stream.poll_closed(cx))
    }

    /// Resets the stream, and reports the reason to the peer.
    pub(crate) fn reset(&mut self, reason: Reason) {
        dispatch!(self, stream => stream.reset(reason));
    }
}

/// The response half of a stream. Dropping it before its end cancels the stream.
pub(crate) enum HttpRecvStream {
    Evenkeel(evenkeel_http2::RecvStream),
    #[cfg(feature = "h2")]
    H2(Box<h2_transport::H2RecvStream>),
}

impl HttpRecvStream {
    /// Ready with the head of the response, once.
    pub(crate) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<ResponseHeaders, Error>> {
        dispatch!(self, stream => stream.poll_head(cx))
    }

    /// Ready with data, or with `None` at the end of the data. Returned bytes are released to the flow-control
    /// window.
    pub(crate) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        dispatch!(self, stream => stream.poll_data(cx))
    }

    /// Ready with the trailers. Poll it after the end of the data.
    pub(crate) fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<HeaderMap>, Error>> {
        dispatch!(self, stream => stream.poll_trailers(cx))
    }
}

/// The I/O part of a connection. It makes no progress unless it is polled.
#[cfg_attr(feature = "h2", expect(clippy::large_enum_variant, reason = "the large one is the default"))]
pub(crate) enum HttpTransport {
    Evenkeel(EvenkeelTransport),
    #[cfg(feature = "h2")]
    H2(Box<h2_transport::H2Transport>),
}

impl HttpTransport {
    /// Starts HTTP/2 on a byte stream, without waiting for the peer.
    #[cfg_attr(not(feature = "h2"), expect(clippy::unused_async, reason = "only h2 waits"))]
    pub(crate) async fn start(
        io: Box<dyn Io>,
        implementation: Http2Implementation,
        settings: Http2Settings,
    ) -> Result<(HttpSender, HttpTransport), Error> {
        match implementation {
            Http2Implementation::Evenkeel => {
                let (sender, driver) = evenkeel_http2::client(settings);
                Ok((HttpSender::Evenkeel(sender), HttpTransport::Evenkeel(EvenkeelTransport { driver, io })))
            }
            #[cfg(feature = "h2")]
            Http2Implementation::H2 => {
                let (sender, transport) = h2_transport::start(io, settings).await?;
                Ok((HttpSender::H2(sender), HttpTransport::H2(Box::new(transport))))
            }
        }
    }

    /// Reads and writes. Ready when the connection has ended: `Ok` if the sender was dropped, or if the peer sent
    /// GOAWAY and all streams are closed.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        dispatch!(self, transport => transport.poll(cx))
    }

    /// Maximum number of concurrent streams that the peer allows; `None` until its SETTINGS have come.
    pub(crate) fn max_streams(&self) -> Option<usize> {
        dispatch!(self, transport => transport.max_streams())
    }

    /// Returns the reason why the connection takes no more requests, `None` while it takes them.
    pub(crate) fn close_reason(&self) -> Option<&Error> {
        dispatch!(self, transport => transport.close_reason())
    }

    /// Returns the number of bytes read so far.
    pub(crate) fn bytes_read(&self) -> u64 {
        dispatch!(self, transport => transport.bytes_read())
    }

    /// Returns true while streams are open.
    pub(crate) fn has_open_streams(&self) -> bool {
        dispatch!(self, transport => transport.has_open_streams())
    }

    /// Returns true if the peer has responded to a request, or processes one after its GOAWAY.
    pub(crate) fn has_served_calls(&self) -> bool {
        dispatch!(self, transport => transport.has_served_calls())
    }

    /// Queues a PING frame, which the next poll sends.
    pub(crate) fn ping(&mut self) {
        dispatch!(self, transport => transport.ping());
    }
}

/// The default implementation with its byte stream.
pub(crate) struct EvenkeelTransport {
    driver: evenkeel_http2::ConnectionDriver,
    io: Box<dyn Io>,
}

impl EvenkeelTransport {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.driver.poll(&mut self.io, cx)
    }

    fn max_streams(&self) -> Option<usize> {
        self.driver.max_streams()
    }

    fn close_reason(&self) -> Option<&Error> {
        self.driver.close_reason()
    }

    fn bytes_read(&self) -> u64 {
        self.driver.bytes_read()
    }

    fn has_open_streams(&self) -> bool {
        self.driver.has_open_streams()
    }

    fn has_served_calls(&self) -> bool {
        // Queried after GOAWAY: streams that are still open are those that the peer processes.
        self.driver.has_received_response() || self.driver.has_open_streams()
    }

    fn ping(&mut self) {
        self.driver.ping();
    }
}
