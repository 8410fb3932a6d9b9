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
use crate::http2::{Error, Http2Implementation, HttpTransport, Reason, RequestSender, Settings};
use crate::metrics::{DisconnectReason, SecurityLevel};
use crate::traffic::Link;
use crate::transport::{self, Io};

/// Maximum time for sending the last frames and shutting down a connection without open streams; as in grpc-go.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How HTTP/2 is spoken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Http2 {
    pub(crate) implementation: Http2Implementation,
    pub(crate) settings: Settings,
    pub(crate) keepalive: Option<Keepalive>,
}

/// When to ask a silent peer whether it is there (A8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keepalive {
    /// After this long without a byte from it.
    pub(crate) time: Duration,
    /// It has this long to answer.
    pub(crate) timeout: Duration,
    /// Also while there are no calls.
    pub(crate) without_calls: bool,
}

/// A connection that calls can be sent on. When the last handle is dropped the connection is let go.
pub(crate) struct Connection {
    sender: RequestSender,
    shared: Arc<Shared>,
}

/// What the handle, the task and the calls know together.
#[derive(Debug)]
pub(crate) struct Shared {
    address: Address,
    security: SecurityLevel,
    /// For the calls that the peer takes at once.
    room: Room,
    lost: OnceLock<Loss>,
    /// Whether it turned out that the peer does not report load out of band (A51).
    reports_no_load: AtomicBool,
    /// True once the peer has answered a call, or processes one after its GOAWAY.
    was_useful: AtomicBool,
    /// True once the handle was dropped.
    is_released: AtomicBool,
    tally: Link,
}

/// Why a connection takes no more calls.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    pub(crate) reason: DisconnectReason,
    pub(crate) status: Status,
    /// Whether the peer complained of our keepalive pings (A8).
    pub(crate) too_many_pings: bool,
}

impl Connection {
    pub(crate) fn sender(&self) -> &RequestSender {
        &self.sender
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// A call, from the moment that it wants to be sent.
    pub(crate) fn turn(self: &Arc<Connection>) -> Turn {
        Turn { connection: self.clone(), is_taken: false }
    }
}

impl Shared {
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
    pub(crate) fn tally(&self) -> &Link {
        &self.tally
    }

    /// Whether calls are under way on it, or wait for their turn.
    pub(crate) fn is_in_use(&self) -> bool {
        self.room.taken.load(Ordering::Relaxed) > 0 || self.room.waiting.load(Ordering::Relaxed) > 0
    }

    /// Whether the peer takes a second call while one is under way.
    pub(crate) fn takes_two_calls(&self) -> bool {
        self.room.limit.load(Ordering::Relaxed) >= 2
    }

    /// Whether the peer may be asked for load out of band.
    pub(crate) fn may_report_load(&self) -> bool {
        !self.reports_no_load.load(Ordering::Relaxed)
    }

    /// The peer is not asked again.
    pub(crate) fn reports_no_load(&self) {
        self.reports_no_load.store(true, Ordering::Relaxed);
    }

    /// Returns true if the connection was of use to a call.
    pub(crate) fn was_useful(&self) -> bool {
        self.was_useful.load(Ordering::Relaxed)
    }

    /// Why it takes no more calls, once it does not.
    pub(crate) fn loss(&self) -> Option<&Loss> {
        self.lost.get()
    }
}

/// A call's place among those that the peer takes at once, once it has one; given back when dropped. It holds the
/// connection.
#[derive(Debug)]
pub(crate) struct Turn {
    connection: Arc<Connection>,
    is_taken: bool,
}

impl Turn {
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn link(&self) -> &Shared {
        &self.connection.shared
    }

    /// Takes a place if there is one and nobody waits for it.
    pub(crate) fn is_now(&mut self) -> bool {
        let room = &self.link().room;
        self.is_taken = room.waiting.load(Ordering::SeqCst) == 0 && room.take();
        self.is_taken
    }

    /// Waits for a place; `false` if the connection takes no more calls.
    pub(crate) async fn comes(&mut self) -> bool {
        self.is_taken = self.link().room.wait().await;
        self.is_taken
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.is_taken {
            self.link().room.give_back();
        }
    }
}

/// Places for as many calls as the peer takes at once. Those who wait here have sent nothing yet, so that one that is given up
/// is not a request with a reset behind it, which servers take for an attack.
///
/// Where there is room, a place costs an atomic step to take and one to give back. Who waits says so before a last look,
/// and who gives back looks for those who wait afterwards, so that none of them is missed.
#[derive(Debug, Default)]
struct Room {
    taken: AtomicUsize,
    limit: AtomicUsize,
    waiting: AtomicUsize,
    changed: Notify,
    is_closed: AtomicBool,
}

impl Room {
    fn take(&self) -> bool {
        let limit = self.limit.load(Ordering::SeqCst);
        let more = |taken: usize| (taken < limit).then_some(taken + 1);
        self.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    fn give_back(&self) {
        self.taken.fetch_sub(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.changed.notify_one();
        }
    }

    /// Waits for a place; `false` if there will be none.
    async fn wait(&self) -> bool {
        let _waiting = Waiting::new(&self.waiting);
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.is_closed.load(Ordering::SeqCst) {
                return false;
            }
            if self.take() {
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
struct Waiting<'r>(&'r AtomicUsize);

impl Waiting<'_> {
    fn new(waiting: &AtomicUsize) -> Waiting<'_> {
        waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(waiting)
    }
}

impl Drop for Waiting<'_> {
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

/// The part that reads and writes. It must be [run](Task::run), or nothing moves.
pub(crate) struct Task {
    transport: HttpTransport,
    alive: Option<Alive>,
    shared: Arc<Shared>,
    /// How many calls the peer takes at once, as far as we have heard.
    limit: Option<usize>,
    /// Ends [`CLOSE_TIMEOUT`] after the connection had nothing left to do but to close.
    closing: Option<Pin<Box<Sleep>>>,
}

/// Speaks HTTP/2 over a byte stream, up to the peer's SETTINGS.
pub(crate) async fn handshake(
    io: Box<dyn Io>,
    (address, security): (Address, SecurityLevel),
    settings: &Http2,
) -> Result<(Connection, Task), Status> {
    let shared = Arc::new(Shared {
        address,
        security,
        room: Room::default(),
        lost: OnceLock::new(),
        reports_no_load: AtomicBool::new(false),
        was_useful: AtomicBool::new(false),
        is_released: AtomicBool::new(false),
        tally: Link::default(),
    });
    let alive = settings.keepalive.map(Alive::new);
    let failed = |why: &str| Status::unavailable(format!("HTTP/2 handshake with {}: {why}", shared.address));
    let started = HttpTransport::start(io, settings.implementation, settings.settings).await;
    let (sender, mut transport) = started.map_err(|error| failed(&cause(&error)))?;
    // Until the peer's SETTINGS are there it has shown nothing but an open port.
    let settled = poll_fn(|cx| match transport.poll(cx) {
        Poll::Ready(Err(Error::Closed)) => {
            Poll::Ready(Err(failed("the peer closed the connection before its SETTINGS")))
        }
        Poll::Ready(Err(error)) => Poll::Ready(Err(failed(&cause(&error)))),
        _ if transport.max_streams().is_some() => Poll::Ready(Ok(())),
        Poll::Ready(Ok(())) => Poll::Ready(Err(failed("the connection ended before the peer's SETTINGS"))),
        Poll::Pending => Poll::Pending,
    });
    settled.await?;
    let mut task = Task { transport, alive, shared: shared.clone(), limit: None, closing: None };
    task.follow_limit();
    Ok((Connection { sender, shared }, task))
}

impl Task {
    /// Reads and writes until the connection is over. `lost` is told once, when it takes no more calls.
    pub(crate) async fn run(mut self, lost: impl FnOnce(Loss)) {
        let mut lost = Some(lost);
        let mut tell = |shared: &Shared, loss: Loss| {
            if let Some(lost) = lost.take() {
                let _ = shared.lost.set(loss.clone());
                shared.room.close();
                lost(loss);
            }
        };
        poll_fn(|cx| {
            let over = self.transport.poll(cx);
            self.follow_limit();
            // What the peer said last comes before that it is gone.
            if let Some(refusal) = self.transport.refusal() {
                // Calls may not have seen their answers yet, so that the transport has to be asked.
                if self.shared.loss().is_none() && self.transport.was_useful() {
                    self.shared.was_useful.store(true, Ordering::Relaxed);
                }
                tell(&self.shared, Loss::of(&self.shared.address, refusal));
            }
            if let Poll::Ready(result) = over {
                let why = match result {
                    Err(error) => Loss::of(&self.shared.address, &error),
                    Ok(()) => Loss::shutdown(&self.shared.address),
                };
                tell(&self.shared, why);
                return Poll::Ready(());
            }
            if self.poll_close_timeout(cx).is_ready() {
                tracing::debug!(address = %self.shared.address, "connection closed: the peer does not read");
                tell(&self.shared, Loss::shutdown(&self.shared.address));
                return Poll::Ready(());
            }
            if let Some(alive) = &mut self.alive
                && alive.poll_dead(&mut self.transport, &self.shared, cx).is_ready()
            {
                tell(&self.shared, Loss::silent(&self.shared.address, alive.keepalive.timeout));
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
                self.transport.refusal().is_none() && !self.shared.is_released.load(Ordering::Acquire);
            if takes_calls || self.transport.has_open_streams() {
                return Poll::Pending;
            }
        }
        self.closing.get_or_insert_with(|| Box::pin(sleep(CLOSE_TIMEOUT))).as_mut().poll(cx)
    }

    /// Makes room as the peer's last SETTINGS say.
    fn follow_limit(&mut self) {
        let limit = self.transport.max_streams();
        if limit != self.limit {
            self.limit = limit;
            self.shared.room.set_limit(limit.unwrap_or(0));
        }
    }
}

impl Drop for Task {
    /// Also when the runtime ends under it: nobody should wait for a connection that is gone.
    fn drop(&mut self) {
        self.shared.room.close();
    }
}

impl Loss {
    fn of(address: &Address, error: &Error) -> Loss {
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
        let status = Status::unavailable(format!("connection to {address}: {}", cause(error)));
        let too_many_pings =
            matches!(error, Error::GoAway(Reason::ENHANCE_YOUR_CALM, words) if *words == "too_many_pings");
        Loss { reason, status, too_many_pings }
    }

    fn shutdown(address: &Address) -> Loss {
        let status = Status::unavailable(format!("connection to {address}: closed"));
        Loss { reason: DisconnectReason::Shutdown, status, too_many_pings: false }
    }

    fn silent(address: &Address, timeout: Duration) -> Loss {
        let status = Status::unavailable(format!(
            "connection to {address}: no answer to a keepalive ping within {timeout:?}"
        ));
        Loss { reason: DisconnectReason::TimedOut, status, too_many_pings: false }
    }
}

/// What went wrong, in words.
pub(crate) fn cause(error: &Error) -> String {
    match error {
        Error::Io(io) if io.kind() == io::ErrorKind::BrokenPipe => Error::Closed.to_string(),
        Error::Io(io) => transport::in_words(io),
        _ => error.to_string(),
    }
}

/// Watches over a connection by its keepalive.
struct Alive {
    keepalive: Keepalive,
    timer: Pin<Box<Sleep>>,
    /// When the peer was last heard of, and how many bytes had come by then.
    heard: (evenkeel_core::Instant, u64),
    /// When the ping was sent that has not been answered.
    asked_at: Option<evenkeel_core::Instant>,
}

impl Alive {
    fn new(keepalive: Keepalive) -> Alive {
        let now = clock::now();
        let timer = Box::pin(sleep_until(clock::sleep_until(now + keepalive.time)));
        Alive { keepalive, timer, heard: (now, 0), asked_at: None }
    }

    /// Ready when the peer has given no sign of life for too long.
    fn poll_dead(
        &mut self,
        transport: &mut HttpTransport,
        shared: &Shared,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if transport.bytes_read() != self.heard.1 {
            self.heard = (clock::now(), transport.bytes_read());
        }
        let heard_at = self.heard.0;
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let quiet_until = heard_at + self.keepalive.time;
            let now = clock::now();
            let next = match self.asked_at {
                Some(asked_at) if heard_at < asked_at => return Poll::Ready(()),
                _ if now < quiet_until => {
                    self.asked_at = None;
                    quiet_until
                }
                _ if !self.keepalive.without_calls && !shared.is_in_use() => {
                    self.asked_at = None;
                    now + self.keepalive.time
                }
                _ => {
                    transport.ping();
                    // It goes out with the next look.
                    cx.waker().wake_by_ref();
                    self.asked_at = Some(now);
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
        let room = Arc::new(Room::default());
        room.set_limit(PLACES);
        let inside = Arc::new(AtomicUsize::new(0));
        let mut crowd = JoinSet::new();
        for one in 0..64 {
            let (room, inside) = (room.clone(), inside.clone());
            crowd.spawn(async move {
                for turn in 0..200 {
                    if (one + turn) % 5 == 0 {
                        // It looks once, waits at most until others had their turn, and gives up.
                        tokio::select! {
                            biased;
                            true = room.wait() => room.give_back(),
                            () = yield_now() => {}
                        }
                        continue;
                    }
                    assert!(room.wait().await, "it was never closed");
                    assert!(inside.fetch_add(1, Ordering::SeqCst) < PLACES, "more inside than places");
                    yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    room.give_back();
                    if one == 0 {
                        room.set_limit(turn % PLACES + 1);
                    }
                }
            });
        }
        let all = tokio::time::timeout(Duration::from_secs(60), crowd.join_all());
        all.await.expect("somebody waits for ever");
        assert_eq!(room.taken.load(Ordering::SeqCst) + room.waiting.load(Ordering::SeqCst), 0);
        room.close();
        assert!(!room.wait().await, "it is closed");
    }
}
