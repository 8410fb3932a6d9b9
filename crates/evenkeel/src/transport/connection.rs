//! One HTTP/2 connection: a task that reads and writes, and a handle that calls are sent on.
//!
//! ```text
//!  handshake ──▶ settled (SETTINGS received) ──▶ serving ──▶ lost (GOAWAY, error, keepalive timeout) ──▶ closed
//!                                                   └────── released (the handle was dropped) ────────────┘
//! ```
//!
//! *Lost* is reported at once, so that no further call is sent on the connection. Calls in flight continue for as
//! long as the peer processes them. *Released* is the graceful shutdown from our side: calls finish, then GOAWAY is
//! sent. The core decides when to connect.
//!
//! In both cases, the last frames and the shutdown of the byte stream depend on a peer that reads. Otherwise the
//! socket is closed and the task ends [`CLOSE_TIMEOUT`] after the last stream was closed.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_core::{Address, Status};
use tokio::time::{Sleep, sleep};

use crate::telemetry::metrics::{DisconnectReason, SecurityLevel};
use crate::telemetry::traffic::EndpointStats;
use crate::transport::http2::{Error, Http2Implementation, Http2Settings, HttpSender, HttpTransport, Reason};
use crate::transport::keepalive::{KeepaliveParams, KeepaliveState};
use crate::transport::stream_quota::StreamQuota;
use crate::transport::{self, Io};

/// Maximum time for sending the last frames and shutting down a connection without open streams; as in grpc-go.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// HTTP/2 settings of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Http2Config {
    pub(crate) implementation: Http2Implementation,
    pub(crate) settings: Http2Settings,
    pub(crate) keepalive: Option<KeepaliveParams>,
}

/// Handle of a connection that calls can be sent on. Dropping the last reference shuts the connection down
/// gracefully.
pub(crate) struct Connection {
    sender: HttpSender,
    shared: Arc<TransportState>,
}

/// State shared by the handle, the task and the calls of a connection.
#[derive(Debug)]
pub(crate) struct TransportState {
    address: Address,
    security: SecurityLevel,
    /// Limits the calls in flight to the peer's maximum number of concurrent streams.
    quota: StreamQuota,
    lost: OnceLock<Disconnect>,
    /// True once the peer turned out not to support out-of-band load reports (A51).
    load_reports_disabled: AtomicBool,
    /// True once the peer has responded to a call, or processes one after its GOAWAY.
    has_served_calls: AtomicBool,
    /// True once the handle was dropped.
    is_released: AtomicBool,
    stats: EndpointStats,
}

/// Reason why a connection takes no more calls.
#[derive(Clone, Debug)]
pub(crate) struct Disconnect {
    pub(crate) reason: DisconnectReason,
    pub(crate) status: Status,
    /// True if the peer rejected our keepalive pings (A8).
    pub(crate) too_many_pings: bool,
}

impl Connection {
    pub(crate) fn sender(&self) -> &HttpSender {
        &self.sender
    }

    pub(crate) fn transport_state(&self) -> &TransportState {
        &self.shared
    }

    /// Returns a permit for a call, not yet held. It keeps the connection open.
    pub(crate) fn permit(self: &Arc<Connection>) -> StreamPermit {
        StreamPermit { connection: self.clone(), is_held: false }
    }
}

impl TransportState {
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Returns true if the `:scheme` of requests is `https`.
    pub(crate) fn is_https(&self) -> bool {
        match self.security {
            SecurityLevel::None => false,
            SecurityLevel::PrivacyAndIntegrity => true,
        }
    }

    /// Returns the security level of the connection.
    pub(crate) fn security(&self) -> SecurityLevel {
        self.security
    }

    /// Returns the statistics of the endpoint's calls for the admin interface.
    pub(crate) fn stats(&self) -> &EndpointStats {
        &self.stats
    }

    /// Returns true if calls are in flight on the connection or wait for a stream.
    pub(crate) fn is_in_use(&self) -> bool {
        // Relaxed: only a hint for keepalive, which reads no other memory by it.
        self.quota.in_use.load(Ordering::Relaxed) > 0 || self.quota.waiting.load(Ordering::Relaxed) > 0
    }

    /// Returns true if the peer allows a second call beside one in flight.
    pub(crate) fn allows_two_streams(&self) -> bool {
        self.quota.limit.load(Ordering::Relaxed) >= 2
    }

    /// Returns true unless the peer turned out not to support out-of-band load reports.
    pub(crate) fn supports_load_reports(&self) -> bool {
        !self.load_reports_disabled.load(Ordering::Relaxed)
    }

    /// Records that the peer does not support out-of-band load reports, so no further stream is opened.
    pub(crate) fn disable_load_reports(&self) {
        self.load_reports_disabled.store(true, Ordering::Relaxed);
    }

    /// Returns true if the connection was of use to a call.
    pub(crate) fn has_served_calls(&self) -> bool {
        self.has_served_calls.load(Ordering::Relaxed)
    }

    /// Returns the reason why the connection takes no more calls, `None` while it takes them.
    pub(crate) fn disconnected(&self) -> Option<&Disconnect> {
        self.lost.get()
    }
}

/// A call's slot among the peer's concurrent streams, once it is held. Dropping the permit returns the slot. It keeps
/// the connection open.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    connection: Arc<Connection>,
    is_held: bool,
}

impl StreamPermit {
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn transport_state(&self) -> &TransportState {
        &self.connection.shared
    }

    /// Takes a slot if one is free and no other call waits for it.
    pub(crate) fn try_acquire(&mut self) -> bool {
        let quota = &self.transport_state().quota;
        // A free slot belongs to the calls that wait: a new call must not overtake them.
        self.is_held = quota.waiting.load(Ordering::SeqCst) == 0 && quota.try_acquire();
        self.is_held
    }

    /// Waits for a slot. Returns false if the connection takes no more calls.
    pub(crate) async fn acquire(&mut self) -> bool {
        self.is_held = self.transport_state().quota.acquire().await;
        self.is_held
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        if self.is_held {
            self.transport_state().quota.release();
        }
    }
}

impl Drop for Connection {
    /// Sets the flag before the sender is dropped, because dropping the sender wakes the task.
    fn drop(&mut self) {
        self.shared.is_released.store(true, Ordering::Release);
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection to {}", self.shared.address)
    }
}

/// The I/O part of a connection. It makes no progress unless it is [run](ConnectionTask::run).
pub(crate) struct ConnectionTask {
    transport: HttpTransport,
    keepalive_state: Option<KeepaliveState>,
    shared: Arc<TransportState>,
    /// Maximum number of concurrent streams that was last passed to the quota.
    limit: Option<usize>,
    /// Fires [`CLOSE_TIMEOUT`] after the connection had nothing left to do but to close.
    closing: Option<Pin<Box<Sleep>>>,
}

/// Starts HTTP/2 on a byte stream and waits for the peer's SETTINGS.
pub(crate) async fn handshake(
    io: Box<dyn Io>,
    (address, security): (Address, SecurityLevel),
    settings: &Http2Config,
) -> Result<(Connection, ConnectionTask), Status> {
    let shared = Arc::new(TransportState {
        address,
        security,
        quota: StreamQuota::default(),
        lost: OnceLock::new(),
        load_reports_disabled: AtomicBool::new(false),
        has_served_calls: AtomicBool::new(false),
        is_released: AtomicBool::new(false),
        stats: EndpointStats::default(),
    });
    let keepalive_state = settings.keepalive.map(KeepaliveState::new);
    let failed = |why: &str| Status::unavailable(format!("HTTP/2 handshake with {}: {why}", shared.address));
    let started = HttpTransport::start(io, settings.implementation, settings.settings).await;
    let (sender, mut transport) = started.map_err(|error| failed(&describe_error(&error)))?;
    // Before its SETTINGS, the peer has shown nothing but an open port.
    let settled = poll_fn(|cx| match transport.poll(cx) {
        Poll::Ready(Err(Error::Closed)) => {
            Poll::Ready(Err(failed("the peer closed the connection before its SETTINGS")))
        }
        Poll::Ready(Err(error)) => Poll::Ready(Err(failed(&describe_error(&error)))),
        // Must precede the next arm: GOAWAY directly behind SETTINGS is a success here, and `run` reports the loss.
        _ if transport.max_streams().is_some() => Poll::Ready(Ok(())),
        Poll::Ready(Ok(())) => Poll::Ready(Err(failed("the connection ended before the peer's SETTINGS"))),
        Poll::Pending => Poll::Pending,
    });
    settled.await?;
    let mut task =
        ConnectionTask { transport, keepalive_state, shared: shared.clone(), limit: None, closing: None };
    task.update_stream_limit();
    Ok((Connection { sender, shared }, task))
}

impl ConnectionTask {
    /// Reads and writes until the connection is closed. Calls `lost` once, when the connection takes no more calls.
    pub(crate) async fn run(mut self, lost: impl FnOnce(Disconnect)) {
        let mut lost = Some(lost);
        let mut report = |shared: &TransportState, disconnect: Disconnect| {
            if let Some(lost) = lost.take() {
                // Set before any waiting call wakes: calls read the reason. It is the first value, since `lost` was
                // taken.
                let _ = shared.lost.set(disconnect.clone());
                // Calls that wait for a stream wake and pick another connection.
                shared.quota.close();
                lost(disconnect);
            }
        };
        poll_fn(|cx| {
            let finished = self.transport.poll(cx);
            self.update_stream_limit();
            // A GOAWAY received before the end of the stream is the reason to report, not the end of the stream.
            if let Some(close_reason) = self.transport.close_reason() {
                // Calls may not have read their responses yet, so the transport is queried as well.
                // Stored before the report, because the driver reads it with that event. The event's queue orders both.
                if self.shared.disconnected().is_none() && self.transport.has_served_calls() {
                    self.shared.has_served_calls.store(true, Ordering::Relaxed);
                }
                report(&self.shared, Disconnect::from_error(&self.shared.address, close_reason));
            }
            if let Poll::Ready(result) = finished {
                let why = match result {
                    Err(error) => Disconnect::from_error(&self.shared.address, &error),
                    Ok(()) => Disconnect::shutdown(&self.shared.address),
                };
                report(&self.shared, why);
                return Poll::Ready(());
            }
            if self.poll_close_timeout(cx).is_ready() {
                tracing::debug!(address = %self.shared.address, "connection closed: the peer stopped reading");
                report(&self.shared, Disconnect::shutdown(&self.shared.address));
                return Poll::Ready(());
            }
            if let Some(keepalive_state) = &mut self.keepalive_state
                && keepalive_state.poll_timeout(&mut self.transport, &self.shared, cx).is_ready()
            {
                report(
                    &self.shared,
                    Disconnect::keepalive_timeout(&self.shared.address, keepalive_state.keepalive.timeout),
                );
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
    }

    /// Ready when the connection has had no streams and taken no calls for [`CLOSE_TIMEOUT`]. Without this timeout, a
    /// peer that stops reading would hold the socket and the task forever.
    fn poll_close_timeout(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Once started, the timer is never cancelled: no further call can open a stream.
        if self.closing.is_none() {
            let takes_calls =
                self.transport.close_reason().is_none() && !self.shared.is_released.load(Ordering::Acquire);
            if takes_calls || self.transport.has_open_streams() {
                return Poll::Pending;
            }
        }
        self.closing.get_or_insert_with(|| Box::pin(sleep(CLOSE_TIMEOUT))).as_mut().poll(cx)
    }

    /// Applies the maximum number of concurrent streams of the peer's latest SETTINGS.
    fn update_stream_limit(&mut self) {
        let limit = self.transport.max_streams();
        if limit != self.limit {
            self.limit = limit;
            self.shared.quota.set_limit(limit.unwrap_or(0));
        }
    }
}

impl Drop for ConnectionTask {
    /// Also runs when the runtime shuts down: calls must not wait for a connection that no longer exists.
    fn drop(&mut self) {
        self.shared.quota.close();
    }
}

impl Disconnect {
    fn from_error(address: &Address, error: &Error) -> Disconnect {
        let reason = match error {
            Error::GoAway(reason, _) => DisconnectReason::GoAway(*reason),
            Error::Io(io) => match io.kind() {
                io::ErrorKind::ConnectionReset => DisconnectReason::Reset,
                io::ErrorKind::TimedOut => DisconnectReason::TimedOut,
                io::ErrorKind::ConnectionAborted => DisconnectReason::Aborted,
                _ => DisconnectReason::Socket,
            },
            Error::Closed => DisconnectReason::Socket,
            _ => DisconnectReason::Unknown,
        };
        let status = Status::unavailable(format!("connection to {address}: {}", describe_error(error)));
        let too_many_pings =
            matches!(error, Error::GoAway(Reason::ENHANCE_YOUR_CALM, words) if *words == "too_many_pings");
        Disconnect { reason, status, too_many_pings }
    }

    fn shutdown(address: &Address) -> Disconnect {
        let status = Status::unavailable(format!("connection to {address}: closed"));
        Disconnect { reason: DisconnectReason::Shutdown, status, too_many_pings: false }
    }

    fn keepalive_timeout(address: &Address, timeout: Duration) -> Disconnect {
        let status = Status::unavailable(format!(
            "connection to {address}: no ACK of a keepalive PING within {timeout:?}"
        ));
        Disconnect { reason: DisconnectReason::TimedOut, status, too_many_pings: false }
    }
}

/// Returns the message for an HTTP/2 error, for use in a status.
pub(crate) fn describe_error(error: &Error) -> String {
    match error {
        // The peer closed first, and a write noticed it before the read.
        Error::Io(io) if io.kind() == io::ErrorKind::BrokenPipe => Error::Closed.to_string(),
        Error::Io(io) => transport::describe_io_error(io),
        _ => error.to_string(),
    }
}
