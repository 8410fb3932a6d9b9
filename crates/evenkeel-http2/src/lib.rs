//! HTTP/2 for gRPC clients: one connection, many short calls, little work for each.
//!
//! ```text
//!  calls ──▶ SendRequest::send ──▶ │ state, behind a lock: │ ◀──▶ ConnectionDriver::poll ◀──▶ socket
//!            SendStream            │ streams, windows,     │
//!        ◀── RecvStream            │ write buffer          │
//! ```
//!
//! Each call writes its frames into the connection's buffer and wakes the task that polls the
//! [driver](ConnectionDriver), once for all calls that come together. The task writes the queued frames, reads, and
//! applies the received frames under one lock. Slots and queues of closed streams are reused, so a stream usually costs
//! no allocation. An idle connection holds no buffers: the connections of a thread share one read buffer.
//!
//! The crate is a client only: no push, no priorities, no CONNECT, no request trailers. Sent headers are indexed but
//! not Huffman-coded. The caller must respect the peer's [maximum number of concurrent
//! streams](ConnectionDriver::max_streams). The crate reads no clock: the caller implements keepalive with
//! [`ConnectionDriver::ping`].
//!
//! The window of the connection is returned to the peer on receipt, that of a stream as its data is read. So a stream
//! that is read makes progress, even if other streams are not read. Memory for unread data is at most
//! [`stream_window`](Http2Settings::stream_window) for each stream that is not read.
//!
//! A peer's error ends the stream or the connection with the error code of RFC 9113. No input causes a panic. Memory is
//! bounded by the windows, the header limit and a maximum number of queued replies.
//!
//! While a peer does not read, requests beyond 64 KiB of frames wait without being encoded. A call that is cancelled
//! then is never sent. So memory is bounded by the calls that are alive, not by the number of calls begun.

#![forbid(unsafe_code)]
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![expect(clippy::cast_possible_wrap, reason = "what lies in memory is far shorter than 2^63")]

mod driver;
mod error;
mod frame;
mod hpack;
mod reader;
mod recv_buffer;
mod state;
mod stream;
mod streams;
mod waiting;
mod write_buffer;

pub use driver::{ConnectionDriver, Http2Settings, client};
pub use error::{Error, Reason};
pub use stream::{RecvStream, RequestHeaders, ResponseHeaders, SendRequest, SendStream};
