//! Keepalive of a connection by HTTP/2 pings ([A8](https://github.com/grpc/proposal/blob/master/A8-client-side-keepalive.md)).

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Sleep, sleep_until};

use crate::clock;
use crate::transport::connection::TransportState;
use crate::transport::http2::HttpTransport;

/// Keepalive settings of a connection (A8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeepaliveParams {
    /// Time without data from the peer after which a ping is sent.
    pub(crate) time: Duration,
    /// Maximum time between a ping and the next data from the peer.
    pub(crate) timeout: Duration,
    /// True if pings are also sent while no calls are in flight.
    pub(crate) without_calls: bool,
}

/// Keepalive timer of a connection, and its last ping.
pub(super) struct KeepaliveState {
    pub(super) keepalive: KeepaliveParams,
    timer: Pin<Box<Sleep>>,
    /// Time of the last data from the peer, and the number of bytes read by then.
    last_read: (evenkeel_core::Instant, u64),
    /// Time of the ping that is still unacknowledged.
    ping_sent_at: Option<evenkeel_core::Instant>,
}

impl KeepaliveState {
    pub(super) fn new(keepalive: KeepaliveParams) -> KeepaliveState {
        let now = clock::now();
        let timer = Box::pin(sleep_until(clock::sleep_until(now + keepalive.time)));
        KeepaliveState { keepalive, timer, last_read: (now, 0), ping_sent_at: None }
    }

    /// Ready when the peer sent no data within the timeout after a ping.
    pub(super) fn poll_timeout(
        &mut self,
        transport: &mut HttpTransport,
        shared: &TransportState,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        // Any bytes are a sign of life, not only the ACK of the ping.
        if transport.bytes_read() != self.last_read.1 {
            self.last_read = (clock::now(), transport.bytes_read());
        }
        let last_read_at = self.last_read.0;
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let ping_due_at = last_read_at + self.keepalive.time;
            let now = clock::now();
            let next = match self.ping_sent_at {
                Some(ping_sent_at) if last_read_at < ping_sent_at => return Poll::Ready(()),
                // Data arrived since the timer was set. Resetting it with each read would cost more than this wake-up.
                _ if now < ping_due_at => {
                    self.ping_sent_at = None;
                    ping_due_at
                }
                _ if !self.keepalive.without_calls && !shared.is_in_use() => {
                    self.ping_sent_at = None;
                    now + self.keepalive.time
                }
                _ => {
                    transport.ping();
                    // The transport sends the ping on its next poll, so the task is woken for another one.
                    cx.waker().wake_by_ref();
                    self.ping_sent_at = Some(now);
                    now + self.keepalive.timeout
                }
            };
            // The loop polls the timer again, which registers the waker for the new time.
            self.timer.as_mut().reset(clock::sleep_until(next));
        }
    }
}
