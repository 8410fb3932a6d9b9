//! One HTTP/2 connection: a task that reads and writes, and a handle that calls are sent on.
//!
//! ```text
//!  handshake ──▶ settled (the peer's SETTINGS came) ──▶ serving ──▶ lost (GOAWAY, an error, no sign of life) ──▶ over
//!                                                          └──── let go (the handle was dropped) ────────────────┘
//! ```
//!
//! *Lost* is told at once, so that no further call is sent on it; calls that are under way go on for as long as the peer
//! lets them. *Let go* is the graceful end from our side: calls finish, then the peer is told goodbye. Nothing here decides
//! when to connect; that is the core's.
//!
//! Either way the last frames and the shutdown of the byte stream depend on a peer that reads. One that does not has
//! [`CLOSE_TIMEOUT`] once the last stream is closed; then the socket is closed and the task ends.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use evenkeel_core::{Address, Status};
use tokio::sync::Notify;
use tokio::time::{Sleep, sleep, sleep_until};

use crate::clock;
use crate::telemetry::metrics::{DisconnectReason, SecurityLevel};
use crate::telemetry::traffic::EndpointStats;
use crate::transport::http2::{Error, Http2Implementation, Http2Settings, HttpSender, HttpTransport, Reason};
use crate::transport::{self, Io};

/// Maximum time for sending the last frames and shutting down a connection without open streams; as in grpc-go.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How HTTP/2 is spoken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Http2Config {
    pub(crate) implementation: Http2Implementation,
    pub(crate) settings: Http2Settings,
    pub(crate) keepalive: Option<KeepaliveParams>,
}

/// When to ask a silent peer whether it is there (A8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeepaliveParams {
    /// After this long without a byte from it.
    pub(crate) time: Duration,
    /// It has this long to answer.
    pub(crate) timeout: Duration,
    /// Also while there are no calls.
    pub(crate) without_calls: bool,
}

/// A connection that calls can be sent on. When the last handle is dropped the connection is let go.
pub(crate) struct Connection {
    sender: HttpSender,
    shared: Arc<TransportState>,
}

/// What the handle, the task and the calls know together.
#[derive(Debug)]
pub(crate) struct TransportState {
    address: Address,
    security: SecurityLevel,
    /// For the calls that the peer takes at once.
    quota: StreamQuota,
    lost: OnceLock<Disconnect>,
    /// Whether it turned out that the peer does not report load out of band (A51).
    load_reports_disabled: AtomicBool,
    /// True once the peer has answered a call, or processes one after its GOAWAY.
    has_served_calls: AtomicBool,
    /// True once the handle was dropped.
    is_released: AtomicBool,
    stats: EndpointStats,
}

/// Why a connection takes no more calls.
#[derive(Clone, Debug)]
pub(crate) struct Disconnect {
    pub(crate) reason: DisconnectReason,
    pub(crate) status: Status,
    /// Whether the peer complained of our keepalive pings (A8).
    pub(crate) too_many_pings: bool,
}

impl Connection {
    pub(crate) fn sender(&self) -> &HttpSender {
        &self.sender
    }

    pub(crate) fn transport_state(&self) -> &TransportState {
        &self.shared
    }

    /// A call, from the moment that it wants to be sent.
    pub(crate) fn permit(self: &Arc<Connection>) -> StreamPermit {
        StreamPermit { connection: self.clone(), is_held: false }
    }
}

impl TransportState {
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Whether requests on it say that they are protected.
    pub(crate) fn is_https(&self) -> bool {
        match self.security {
            SecurityLevel::None => false,
            SecurityLevel::PrivacyAndIntegrity => true,
        }
    }

    /// How it is protected.
    pub(crate) fn security(&self) -> SecurityLevel {
        self.security
    }

    /// Where calls are counted for those who look inside.
    pub(crate) fn stats(&self) -> &EndpointStats {
        &self.stats
    }

    /// Whether calls are under way on it, or wait for their turn.
    pub(crate) fn is_in_use(&self) -> bool {
        self.quota.in_use.load(Ordering::Relaxed) > 0 || self.quota.waiting.load(Ordering::Relaxed) > 0
    }

    /// Whether the peer takes a second call while one is under way.
    pub(crate) fn allows_two_streams(&self) -> bool {
        self.quota.limit.load(Ordering::Relaxed) >= 2
    }

    /// Whether the peer may be asked for load out of band.
    pub(crate) fn supports_load_reports(&self) -> bool {
        !self.load_reports_disabled.load(Ordering::Relaxed)
    }

    /// The peer is not asked again.
    pub(crate) fn disable_load_reports(&self) {
        self.load_reports_disabled.store(true, Ordering::Relaxed);
    }

    /// Returns true if the connection was of use to a call.
    pub(crate) fn has_served_calls(&self) -> bool {
        self.has_served_calls.load(Ordering::Relaxed)
    }

    /// Why it takes no more calls, once it does not.
    pub(crate) fn disconnected(&self) -> Option<&Disconnect> {
        self.lost.get()
    }
}

/// A call's place among those that the peer takes at once, once it has one; given back when dropped. It holds the
/// connection.
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

    /// Takes a place if there is one and nobody waits for it.
    pub(crate) fn try_acquire(&mut self) -> bool {
        let quota = &self.transport_state().quota;
        self.is_held = quota.waiting.load(Ordering::SeqCst) == 0 && quota.try_acquire();
        self.is_held
    }

    /// Waits for a place; `false` if the connection takes no more calls.
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

/// Places for as many calls as the peer takes at once. Those who wait here have sent nothing yet, so that one that is given up
/// is not a request with a reset behind it, which servers take for an attack.
///
/// Where there is room, a place costs an atomic step to take and one to give back. Who waits says so before a last look,
/// and who gives back looks for those who wait afterwards, so that none of them is missed.
#[derive(Debug, Default)]
struct StreamQuota {
    in_use: AtomicUsize,
    limit: AtomicUsize,
    waiting: AtomicUsize,
    changed: Notify,
    is_closed: AtomicBool,
}

impl StreamQuota {
    fn try_acquire(&self) -> bool {
        let limit = self.limit.load(Ordering::SeqCst);
        let more = |in_use: usize| (in_use < limit).then_some(in_use + 1);
        self.in_use.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    fn release(&self) {
        self.in_use.fetch_sub(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.changed.notify_one();
        }
    }

    /// Waits for a place; `false` if there will be none.
    async fn acquire(&self) -> bool {
        let _waiting = QuotaWaiter::new(&self.waiting);
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.is_closed.load(Ordering::SeqCst) {
                return false;
            }
            if self.try_acquire() {
                return true;
            }
            changed.await;
        }
    }

    /// The peer takes so many from here on. If those are fewer, the others finish.
    fn set_limit(&self, limit: usize) {
        if self.limit.swap(limit, Ordering::SeqCst) < limit {
            self.changed.notify_waiters();
        }
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }
}

/// Counts as waiting until it is dropped.
struct QuotaWaiter<'r>(&'r AtomicUsize);

impl QuotaWaiter<'_> {
    fn new(waiting: &AtomicUsize) -> QuotaWaiter<'_> {
        waiting.fetch_add(1, Ordering::SeqCst);
        QuotaWaiter(waiting)
    }
}

impl Drop for QuotaWaiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Connection {
    /// Runs before the sender is dropped, which wakes the task.
    fn drop(&mut self) {
        self.shared.is_released.store(true, Ordering::Release);
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection to {}", self.shared.address)
    }
}

/// The part that reads and writes. It must be [run](ConnectionTask::run), or nothing moves.
pub(crate) struct ConnectionTask {
    transport: HttpTransport,
    keepalive_state: Option<KeepaliveState>,
    shared: Arc<TransportState>,
    /// How many calls the peer takes at once, as far as we have heard.
    limit: Option<usize>,
    /// Ends [`CLOSE_TIMEOUT`] after the connection had nothing left to do but to close.
    closing: Option<Pin<Box<Sleep>>>,
}

/// Speaks HTTP/2 over a byte stream, up to the peer's SETTINGS.
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
    // Until the peer's SETTINGS are there it has shown nothing but an open port.
    let settled = poll_fn(|cx| match transport.poll(cx) {
        Poll::Ready(Err(Error::Closed)) => {
            Poll::Ready(Err(failed("the peer closed the connection before its SETTINGS")))
        }
        Poll::Ready(Err(error)) => Poll::Ready(Err(failed(&describe_error(&error)))),
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
    /// Reads and writes until the connection is over. `lost` is told once, when it takes no more calls.
    pub(crate) async fn run(mut self, lost: impl FnOnce(Disconnect)) {
        let mut lost = Some(lost);
        let mut report = |shared: &TransportState, disconnect: Disconnect| {
            if let Some(lost) = lost.take() {
                let _ = shared.lost.set(disconnect.clone());
                shared.quota.close();
                lost(disconnect);
            }
        };
        poll_fn(|cx| {
            let finished = self.transport.poll(cx);
            self.update_stream_limit();
            // What the peer said last comes before that it is gone.
            if let Some(close_reason) = self.transport.close_reason() {
                // Calls may not have seen their answers yet, so that the transport has to be asked.
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

    /// Ready when the connection has had no streams and taken no calls for [`CLOSE_TIMEOUT`]. Without it a peer that stops
    /// reading would hold the socket and the task for ever.
    fn poll_close_timeout(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.closing.is_none() {
            let takes_calls =
                self.transport.close_reason().is_none() && !self.shared.is_released.load(Ordering::Acquire);
            if takes_calls || self.transport.has_open_streams() {
                return Poll::Pending;
            }
        }
        self.closing.get_or_insert_with(|| Box::pin(sleep(CLOSE_TIMEOUT))).as_mut().poll(cx)
    }

    /// Makes room as the peer's last SETTINGS say.
    fn update_stream_limit(&mut self) {
        let limit = self.transport.max_streams();
        if limit != self.limit {
            self.limit = limit;
            self.shared.quota.set_limit(limit.unwrap_or(0));
        }
    }
}

impl Drop for ConnectionTask {
    /// Also when the runtime ends under it: nobody should wait for a connection that is gone.
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
            "connection to {address}: no answer to a keepalive ping within {timeout:?}"
        ));
        Disconnect { reason: DisconnectReason::TimedOut, status, too_many_pings: false }
    }
}

/// What went wrong, in words.
pub(crate) fn describe_error(error: &Error) -> String {
    match error {
        Error::Io(io) if io.kind() == io::ErrorKind::BrokenPipe => Error::Closed.to_string(),
        Error::Io(io) => transport::describe_io_error(io),
        _ => error.to_string(),
    }
}

/// Watches over a connection by its keepalive.
struct KeepaliveState {
    keepalive: KeepaliveParams,
    timer: Pin<Box<Sleep>>,
    /// When the peer was last heard of, and how many bytes had come by then.
    last_read: (evenkeel_core::Instant, u64),
    /// When the ping was sent that has not been answered.
    ping_sent_at: Option<evenkeel_core::Instant>,
}

impl KeepaliveState {
    fn new(keepalive: KeepaliveParams) -> KeepaliveState {
        let now = clock::now();
        let timer = Box::pin(sleep_until(clock::sleep_until(now + keepalive.time)));
        KeepaliveState { keepalive, timer, last_read: (now, 0), ping_sent_at: None }
    }

    /// Ready when the peer has given no sign of life for too long.
    fn poll_timeout(
        &mut self,
        transport: &mut HttpTransport,
        shared: &TransportState,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
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
                    // It goes out with the next look.
                    cx.waker().wake_by_ref();
                    self.ping_sent_at = Some(now);
                    now + self.keepalive.timeout
                }
            };
            self.timer.as_mut().reset(clock::sleep_until(next));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::task::{JoinSet, yield_now};

    use super::*;

    /// A crowd goes through three places, some of it giving up while it waits: there are never more inside than places, and
    /// nobody waits for ever, also when the places become fewer and more.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_crowd_goes_through_few_places() {
        const PLACES: usize = 3;
        let quota = Arc::new(StreamQuota::default());
        quota.set_limit(PLACES);
        let inside = Arc::new(AtomicUsize::new(0));
        let mut crowd = JoinSet::new();
        for one in 0..64 {
            let (quota, inside) = (quota.clone(), inside.clone());
            crowd.spawn(async move {
                for permit in 0..200 {
                    if (one + permit) % 5 == 0 {
                        // It looks once, waits at most until others had their turn, and gives up.
                        tokio::select! {
                            biased;
                            true = quota.acquire() => quota.release(),
                            () = yield_now() => {}
                        }
                        continue;
                    }
                    assert!(quota.acquire().await, "it was never closed");
                    assert!(inside.fetch_add(1, Ordering::SeqCst) < PLACES, "more inside than places");
                    yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    quota.release();
                    if one == 0 {
                        quota.set_limit(permit % PLACES + 1);
                    }
                }
            });
        }
        let all = tokio::time::timeout(Duration::from_secs(60), crowd.join_all());
        all.await.expect("somebody waits for ever");
        assert_eq!(quota.in_use.load(Ordering::SeqCst) + quota.waiting.load(Ordering::SeqCst), 0);
        quota.close();
        assert!(!quota.acquire().await, "it is closed");
    }
}
