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

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_core::{Address, Status};
use h2::client::SendRequest;
use h2::{Ping, PingPong, Reason};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Sleep, sleep_until};

use crate::clock;
use crate::metrics::{DisconnectReason, SecurityLevel};
use crate::traffic::Link;
use crate::transport::{self, Io};

/// h2 shows the limit of streams; while it is this one, which no peer can set, the peer's SETTINGS have not come.
const NO_SETTINGS_YET: usize = usize::MAX - 1;

/// How much of a peer's last words is shown.
const MAX_LAST_WORDS: usize = 200;

/// How HTTP/2 is spoken.
#[derive(Clone, Debug)]
pub(crate) struct Http2 {
    /// How much the peer may send on a stream, and on all of them, before we read it.
    pub(crate) stream_window: u32,
    pub(crate) connection_window: u32,
    /// The largest frame that the peer may send.
    pub(crate) max_frame_size: Option<u32>,
    /// The most bytes of headers or trailers that are taken in.
    pub(crate) max_header_list_size: u32,
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

impl Default for Http2 {
    /// Windows as hyper has them for clients; 16 KiB of headers.
    fn default() -> Http2 {
        Http2 {
            stream_window: 2 << 20,
            connection_window: 5 << 20,
            max_frame_size: None,
            max_header_list_size: 16 << 10,
            keepalive: None,
        }
    }
}

/// A connection that calls can be sent on. When the last handle is dropped the connection is let go.
pub(crate) struct Connection {
    sender: SendRequest<Bytes>,
    shared: Arc<Shared>,
    _held: oneshot::Sender<()>,
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
    /// When the peer was last heard of, in our clock's nanoseconds; only kept if somebody asks.
    heard_at: AtomicU64,
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
    /// A sender for one request.
    pub(crate) fn sender(&self) -> SendRequest<Bytes> {
        self.sender.clone()
    }

    /// Whether it takes no more requests.
    pub(crate) fn is_gone(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        matches!(self.sender().poll_ready(&mut cx), Poll::Ready(Err(_)))
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

/// Places for as many calls as the peer takes at once. h2 would queue the others too, but sends what was given up meanwhile,
/// only to reset it, which servers take for an attack.
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

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection to {}", self.shared.address)
    }
}

/// The part that reads and writes. It must be [run](Task::run), or nothing moves.
pub(crate) struct Task {
    connection: h2::client::Connection<Heard, Bytes>,
    /// Knows whether the connection takes requests. It goes when the last handle goes, since it would keep the connection.
    probe: Option<SendRequest<Bytes>>,
    held: oneshot::Receiver<()>,
    alive: Option<Alive>,
    shared: Arc<Shared>,
    /// How many calls the peer takes at once, as far as we have heard.
    limit: usize,
}

/// Speaks HTTP/2 over a byte stream, up to the peer's SETTINGS. `held` and its receiver tell whether anybody still wants the
/// connection.
pub(crate) async fn handshake(
    io: Box<dyn Io>,
    (address, security): (Address, SecurityLevel),
    settings: &Http2,
    (held, released): (oneshot::Sender<()>, oneshot::Receiver<()>),
) -> Result<(Connection, Task), Status> {
    let shared = Arc::new(Shared {
        address,
        security,
        room: Room::default(),
        lost: OnceLock::new(),
        reports_no_load: AtomicBool::new(false),
        heard_at: AtomicU64::new(clock::now().as_nanos()),
        tally: Link::default(),
    });
    let heard = settings.keepalive.is_some().then(|| shared.clone());
    let mut builder = h2::client::Builder::new();
    builder
        .enable_push(false)
        .initial_max_send_streams(NO_SETTINGS_YET)
        .initial_window_size(settings.stream_window)
        .initial_connection_window_size(settings.connection_window)
        .max_header_list_size(settings.max_header_list_size)
        // Answers to calls that were given up come late, as many as there were such calls. h2 takes them for errors of the
        // peer, and after 1,024 of them would end the connection with all its calls.
        .max_local_error_reset_streams(None);
    if let Some(size) = settings.max_frame_size {
        builder.max_frame_size(size);
    }
    let failed = |error: &h2::Error| {
        Status::unavailable(format!("HTTP/2 handshake with {}: {}", shared.address, cause(error)))
    };
    let (sender, mut connection) =
        builder.handshake(Heard { io, heard }).await.map_err(|error| failed(&error))?;
    let ping_pong = settings.keepalive.and_then(|keepalive| Some((keepalive, connection.ping_pong()?)));
    let alive = ping_pong.map(|(keepalive, ping_pong)| Alive::new(keepalive, ping_pong));
    // Until the peer's SETTINGS are there it has shown nothing but an open port.
    let settled = poll_fn(|cx| match Pin::new(&mut connection).poll(cx) {
        _ if connection.max_concurrent_send_streams() != NO_SETTINGS_YET => Poll::Ready(Ok(())),
        Poll::Ready(Ok(())) => Poll::Ready(Err(Status::unavailable(format!(
            "HTTP/2 handshake with {}: the peer closed the connection before its SETTINGS",
            shared.address
        )))),
        Poll::Ready(Err(error)) => Poll::Ready(Err(failed(&error))),
        Poll::Pending => Poll::Pending,
    });
    settled.await?;
    let probe = Some(sender.clone());
    let mut task = Task { connection, probe, held: released, alive, shared: shared.clone(), limit: 0 };
    task.follow_limit();
    Ok((Connection { sender, shared, _held: held }, task))
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
            let over = Pin::new(&mut self.connection).poll(cx);
            self.follow_limit();
            // Asked after every look at the socket: what the peer said last is known only now.
            if let Some(Poll::Ready(Err(error))) = self.probe.as_mut().map(|probe| probe.poll_ready(cx)) {
                self.probe = None;
                tell(&self.shared, Loss::of(&self.shared.address, &error));
            }
            if let Poll::Ready(result) = over {
                let why = match result {
                    Err(error) => Loss::of(&self.shared.address, &error),
                    Ok(()) => Loss::shutdown(&self.shared.address),
                };
                tell(&self.shared, why);
                return Poll::Ready(());
            }
            if self.probe.is_some() && Pin::new(&mut self.held).poll(cx).is_ready() {
                self.probe = None;
                // h2 says goodbye once it sees that nobody can ask anything any more.
                cx.waker().wake_by_ref();
            }
            if let Some(alive) = &mut self.alive
                && alive.poll_dead(&self.shared, cx).is_ready()
            {
                tell(&self.shared, Loss::silent(&self.shared.address, alive.keepalive.timeout));
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
    }

    /// Makes room as the peer's last SETTINGS say.
    fn follow_limit(&mut self) {
        let limit = self.connection.max_concurrent_send_streams();
        if limit != self.limit {
            self.limit = limit;
            self.shared.room.set_limit(limit);
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
    fn of(address: &Address, error: &h2::Error) -> Loss {
        let reason = match (error.is_go_away() && error.is_remote(), error.reason(), error.get_io()) {
            (true, Some(reason), _) => DisconnectReason::GoAway(reason),
            (_, _, Some(io)) => match io.kind() {
                io::ErrorKind::ConnectionReset => DisconnectReason::Reset,
                io::ErrorKind::TimedOut => DisconnectReason::TimedOut,
                io::ErrorKind::ConnectionAborted => DisconnectReason::Aborted,
                _ => DisconnectReason::Socket,
            },
            _ => DisconnectReason::Unknown,
        };
        let status = Status::unavailable(format!("connection to {address}: {}", cause(error)));
        let too_many_pings = reason == DisconnectReason::GoAway(Reason::ENHANCE_YOUR_CALM)
            && last_words(error).as_deref() == Some("too_many_pings");
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
pub(crate) fn cause(error: &h2::Error) -> String {
    match (error.get_io(), error.reason()) {
        (Some(io), _) if io.kind() == io::ErrorKind::BrokenPipe => "closed by the peer".to_owned(),
        (Some(io), _) => transport::in_words(io),
        (None, Some(reason)) if error.is_go_away() && error.is_remote() => match last_words(error) {
            Some(words) => format!("GOAWAY {reason:?}, \"{words}\""),
            None => format!("GOAWAY {reason:?}"),
        },
        (None, Some(reason)) if error.is_reset() && error.is_remote() => format!("RST_STREAM {reason:?}"),
        (None, Some(reason)) if error.is_library() => {
            format!("the peer broke HTTP/2 or a limit ({reason:?})")
        }
        _ => error.to_string(),
    }
}

/// What the peer said beside the code of its GOAWAY, with odd bytes escaped. h2 has it in the error's text only.
fn last_words(error: &h2::Error) -> Option<String> {
    let text = error.to_string();
    let (_, words) = text.split_once(" (b\"")?;
    Some(words.strip_suffix("\")")?.chars().take(MAX_LAST_WORDS).collect())
}

/// Watches over a connection by its keepalive.
struct Alive {
    keepalive: Keepalive,
    ping_pong: PingPong,
    timer: Pin<Box<Sleep>>,
    /// When the ping was sent that has not been answered.
    asked_at: Option<evenkeel_core::Instant>,
}

impl Alive {
    fn new(keepalive: Keepalive, ping_pong: PingPong) -> Alive {
        let timer = Box::pin(sleep_until(clock::sleep_until(clock::now() + keepalive.time)));
        Alive { keepalive, ping_pong, timer, asked_at: None }
    }

    /// Ready when the peer has given no sign of life for too long.
    fn poll_dead(&mut self, shared: &Shared, cx: &mut Context<'_>) -> Poll<()> {
        // Any byte is a sign of life; the answer itself is only taken off the queue.
        let _ = self.ping_pong.poll_pong(cx);
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let heard_at = evenkeel_core::Instant::from_nanos(shared.heard_at.load(Ordering::Relaxed));
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
                    // One that cannot be sent is one that is under way still.
                    let _ = self.ping_pong.send_ping(Ping::opaque());
                    self.asked_at = Some(now);
                    now + self.keepalive.timeout
                }
            };
            self.timer.as_mut().reset(clock::sleep_until(next));
        }
    }
}

/// A byte stream that notes when something was read.
struct Heard {
    io: Box<dyn Io>,
    heard: Option<Arc<Shared>>,
}

impl AsyncRead for Heard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.io).poll_read(cx, buf);
        if let Some(shared) = &self.heard
            && buf.filled().len() > before
        {
            shared.heard_at.store(clock::now().as_nanos(), Ordering::Relaxed);
        }
        result
    }
}

impl AsyncWrite for Heard {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
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
