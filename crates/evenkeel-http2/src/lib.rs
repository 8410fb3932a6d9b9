//! HTTP/2 for gRPC clients: one connection, many short calls, little work for each.
//!
//! ```text
//!  calls ──▶ Sender::send ──▶ │ state, behind a lock:  │ ◀──▶ Driver::poll ◀──▶ socket
//!            SendStream       │ streams, windows,      │
//!        ◀── RecvStream       │ what is to be written  │
//! ```
//!
//! A call writes its frames into the connection's buffer itself and wakes the task that [drives](ConnectionDriver) the connection, once for
//! all calls that come together; the task writes what there is, reads what came, and hands it out under one lock. Nothing is
//! allocated for a stream that has a predecessor: slots and their queues are used again. An idle connection holds no
//! buffers: what is read goes through one that the thread's connections share.
//!
//! It is a client and no more: no push, no priorities, no CONNECT, no request trailers. Headers are not Huffman-coded when
//! they are sent; names and values that are said again and again are indexed. How many streams the peer takes at once is
//! [told](ConnectionDriver::max_streams) and for the user to keep. Time does not exist here: keepalive is the user's, by
//! [`ConnectionDriver::ping`].
//!
//! The window of the connection is returned to the peer on receipt, that of a stream as its data is read. So a stream that is
//! read makes progress, whatever other streams leave unread. Memory for unread data is at most
//! [`stream_window`](Http2Settings::stream_window) for each stream that is not read.
//!
//! What a peer can do wrong ends the stream or the connection with the error that RFC 9113 names; nothing of it panics or
//! makes memory grow beyond the windows, the header limit and a bounded number of answers that wait to be written.
//!
//! While a peer does not read, requests beyond 64 KiB of frames wait without being encoded. A call that is cancelled then is
//! never sent. So memory is bounded by the calls that are alive, however many were begun and cancelled.

#![forbid(unsafe_code)]
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
