//! TCP proxy with faults on demand, between a client and a real server.
//!
//! Each setting also applies to open connections, unless documented otherwise, from the return of its call.
//! Bytes that the kernel accepted before are out of reach. A connection counts from the proxy's accept,
//! shortly after the client's connect returned. Methods that end connections (`reset_all` and the like)
//! affect those that count.
//!
//! The proxy knows no protocol. Faults in HTTP/2 frames are in [`frames`](super::frames).

use std::collections::VecDeque;
use std::future::pending;
use std::io::{self, Read};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::lock;

/// Bytes per read, and maximum number of buffered bytes per direction before reading stops.
const CHUNK: usize = 16 << 10;
const HELD: usize = 256 << 10;

/// Polling interval after a failed accept, and for a peer that has closed unnoticed.
const REST: Duration = Duration::from_millis(10);

/// Proxy on its own port. Dropping it ends all tasks and connections.
pub struct Proxy {
    address: SocketAddr,
    upstream: SocketAddr,
    /// Bound and never listening, which reserves the port while the proxy refuses connections.
    _port: TcpSocket,
    listening: Mutex<Option<JoinHandle<()>>>,
    knobs: watch::Sender<ProxyControls>,
    counts: Arc<Counts>,
}

impl Proxy {
    /// Starts a proxy to `upstream` on a free port of 127.0.0.1, without faults.
    pub async fn to(upstream: SocketAddr) -> Self {
        let port = bound((Ipv4Addr::LOCALHOST, 0).into()).expect("loopback has a free port");
        let address = port.local_addr().expect("a bound socket has an address");
        let proxy = Self {
            address,
            upstream,
            _port: port,
            listening: Mutex::default(),
            knobs: watch::Sender::default(),
            counts: Arc::default(),
        };
        proxy.refuse(false).await;
        proxy
    }

    /// Returns the listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Refuses connections while on, by closing the listener. Off, it listens on the same port again. Open
    /// connections stay.
    pub async fn refuse(&self, on: bool) {
        let listening = || lock(&self.listening);
        let task = listening().take();
        if let Some(task) = task {
            task.abort();
            // The listener closes when its task has ended, not when the abort is requested.
            let _ = task.await;
        }
        if !on {
            let listener = bound(self.address).and_then(|socket| socket.listen(1024));
            let listener = listener.expect("the port is held for this proxy");
            let (knobs, counts) = (self.knobs.subscribe(), Arc::clone(&self.counts));
            *listening() = Some(tokio::spawn(accept(listener, self.upstream, knobs, counts)));
        }
    }

    /// Accepts connections while on, without any response or upstream connection: a peer that never speaks
    /// HTTP/2. Off, waiting connections proceed. Open connections are unaffected; use `black_hole` for them.
    pub fn accept_only(&self, on: bool) {
        self.knobs.send_modify(|knobs| knobs.accept_only = on);
    }

    /// Stops all reads and writes while on. Sockets stay open, even if the upstream closes. Off, the held
    /// bytes are forwarded.
    pub fn black_hole(&self, on: bool) {
        self.knobs.send_modify(|knobs| knobs.black_hole = on);
    }

    /// Delays every byte in each direction. Bytes in transit follow the changed delay.
    pub fn delay(&self, delay: Duration) {
        self.knobs.send_modify(|knobs| knobs.delay = delay);
    }

    /// Limits the bytes per second in each direction of each connection; `None` removes the limit.
    pub fn rate(&self, bytes_per_second: impl Into<Option<u32>>) {
        let rate = bytes_per_second.into();
        assert_ne!(rate, Some(0), "a rate of zero is a black hole");
        self.knobs.send_modify(|knobs| knobs.rate = rate);
    }

    /// Closes connections accepted from here on (FIN) after this number of bytes to the client; `None`
    /// disables it.
    pub fn cut_after(&self, bytes: impl Into<Option<u64>>) {
        let bytes = bytes.into();
        self.knobs.send_modify(|knobs| knobs.cut_after = bytes);
    }

    /// Inverts the byte at this offset of the data to the client, on each connection. Connections past the
    /// offset are unaffected. `None` disables it.
    pub fn flip_byte_at(&self, offset: impl Into<Option<u64>>) {
        let offset = offset.into();
        self.knobs.send_modify(|knobs| knobs.flip_byte_at = offset);
    }

    /// Resets all connections: the client gets an RST.
    pub fn reset_all(&self) {
        self.knobs.send_modify(|knobs| knobs.resets += 1);
    }

    /// Closes all connections: the client gets a FIN, and an RST on further writes.
    pub fn close_all(&self) {
        self.knobs.send_modify(|knobs| knobs.closes += 1);
    }

    /// Half-closes all connections towards the client (FIN). Data from the client is still forwarded.
    pub fn half_close_all(&self) {
        self.knobs.send_modify(|knobs| knobs.half_closes += 1);
    }

    /// Returns the number of connections accepted so far.
    pub fn connections(&self) -> usize {
        self.counts.accepted.load(Ordering::SeqCst)
    }

    /// Returns the number of open connections.
    pub fn open_connections(&self) -> usize {
        self.counts.open.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Connections end when the settings channel closes. Only the listener needs an abort.
        if let Some(task) = self.listening.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

/// Current settings. The counters turn commands into values: a connection compares them with those at its
/// start.
#[derive(Clone, Copy, Default)]
struct ProxyControls {
    accept_only: bool,
    black_hole: bool,
    delay: Duration,
    rate: Option<u32>,
    cut_after: Option<u64>,
    flip_byte_at: Option<u64>,
    resets: u32,
    closes: u32,
    half_closes: u32,
}

#[derive(Default)]
struct Counts {
    accepted: AtomicUsize,
    open: AtomicUsize,
}

/// Counts a connection as open until dropped.
struct Open(Arc<Counts>);

impl Open {
    fn new(counts: &Arc<Counts>) -> Self {
        counts.open.fetch_add(1, Ordering::SeqCst);
        counts.accepted.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(counts))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Kind of close towards the client.
#[derive(Clone, Copy)]
enum End {
    Close,
    Reset,
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        Self::Reset
    }
}

/// Closes a socket with an RST.
pub(super) fn reset(stream: TcpStream) {
    let _ = stream.set_zero_linger();
    drop(stream);
}

/// Closes a socket with a FIN. Unread input would make the kernel send an RST instead, so it is read here
/// directly, past the runtime, which may not know of it yet.
pub(super) fn close(stream: TcpStream) {
    let Ok(mut stream) = stream.into_std() else { return };
    let _ = stream.shutdown(Shutdown::Write);
    while stream.read(&mut [0; CHUNK]).is_ok_and(|read| read > 0) {}
}

/// Returns a socket bound to this address. Several may share it while at most one listens.
fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

async fn accept(
    listener: TcpListener,
    upstream: SocketAddr,
    knobs: watch::Receiver<ProxyControls>,
    counts: Arc<Counts>,
) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Most likely no descriptors are left. The loop must survive it.
            sleep(REST).await;
            continue;
        };
        let (open, knobs) = (Open::new(&counts), knobs.clone());
        tokio::spawn(connection(client, upstream, knobs, open));
    }
}

async fn connection(
    mut client: TcpStream,
    upstream: SocketAddr,
    mut knobs: watch::Receiver<ProxyControls>,
    open: Open,
) {
    let born = *knobs.borrow_and_update();
    let end = tokio::select! {
        biased;
        end = ordered(knobs.clone(), born) => end,
        end = forward(&mut client, upstream, knobs, born) => end.err().unwrap_or(End::Close),
    };
    match end {
        End::Reset => reset(client),
        End::Close => close(client),
    }
    // Decrement after the socket has closed, so that a count of zero means closed sockets.
    drop(open);
}

/// Waits for a close or reset command, or for the end of the proxy.
async fn ordered(mut knobs: watch::Receiver<ProxyControls>, born: ProxyControls) -> End {
    let differs = |now: &ProxyControls| (now.resets, now.closes) != (born.resets, born.closes);
    match knobs.wait_for(differs).await {
        Ok(now) if now.resets != born.resets => End::Reset,
        _ => End::Close,
    }
}

async fn forward(
    client: &mut TcpStream,
    upstream: SocketAddr,
    mut knobs: watch::Receiver<ProxyControls>,
    born: ProxyControls,
) -> Result<(), End> {
    let early = hold(client, &mut knobs).await?;
    let mut server = TcpStream::connect(upstream).await?;
    // Forward without Nagle's delay.
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let there = ProxyDirection { early, ..ProxyDirection::new(knobs.clone(), born, false) };
    let back = ProxyDirection::new(knobs, born, true);
    tokio::try_join!(there.pump(from_client, to_server), back.pump(from_server, to_client))?;
    Ok(())
}

/// Holds a client while the proxy only accepts. It reads meanwhile, to notice a disconnect.
async fn hold(client: &mut TcpStream, knobs: &mut watch::Receiver<ProxyControls>) -> Result<Bytes, End> {
    let mut early = BytesMut::new();
    while knobs.borrow_and_update().accept_only {
        tokio::select! {
            biased;
            changed = knobs.changed() => changed.map_err(|_| End::Close)?,
            read = client.read_buf(&mut early), if early.len() < HELD => {
                if read? == 0 {
                    return Err(End::Close);
                }
            }
        }
    }
    Ok(early.freeze())
}

/// One direction of a connection.
struct ProxyDirection {
    knobs: watch::Receiver<ProxyControls>,
    born: ProxyControls,
    to_client: bool,
    early: Bytes,
    /// Bytes read and not yet written, with the time of the read.
    held: VecDeque<(Instant, Bytes)>,
    held_bytes: usize,
    sent: u64,
    last_write: Option<(Instant, usize)>,
}

impl ProxyDirection {
    fn new(knobs: watch::Receiver<ProxyControls>, born: ProxyControls, to_client: bool) -> Self {
        let (early, held, held_bytes, sent, last_write) = Default::default();
        Self { knobs, born, to_client, early, held, held_bytes, sent, last_write }
    }

    /// Forwards until the source ends, then shuts down the sink. Every wait is cancel-safe.
    async fn pump(mut self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> Result<(), End> {
        let mut ended = false;
        let early = std::mem::take(&mut self.early);
        self.take_in(early);
        loop {
            let now = *self.knobs.borrow_and_update();
            if self.to_client && self.born.cut_after == Some(self.sent) {
                return Err(End::Close);
            }
            let half_closed = self.to_client && now.half_closes != self.born.half_closes;
            if half_closed || (ended && self.held.is_empty() && !now.black_hole) {
                return Ok(to.shutdown().await?);
            }
            let reads = !ended && self.held_bytes < HELD;
            let (next, due) = self.next(&now);
            let writes = !next.is_empty() && !now.black_hole;
            let mut chunk = BytesMut::new();
            tokio::select! {
                // Settings first: a change must apply to bytes that arrived after it.
                biased;
                changed = self.knobs.changed() => changed.map_err(|_| End::Close)?,
                read = read(&mut from, &mut chunk, now.black_hole, self.to_client), if reads => {
                    ended = read? == 0;
                    self.take_in(chunk.freeze());
                }
                wrote = write(&mut to, &next, due), if writes => self.take_out(wrote?),
            }
        }
    }

    /// Returns the next bytes to write, and their due time.
    fn next(&self, now: &ProxyControls) -> (Bytes, Instant) {
        let Some((read_at, chunk)) = self.held.front() else { return (Bytes::new(), Instant::now()) };
        let mut due = *read_at + now.delay;
        let mut most = u64::MAX;
        if let Some(rate) = now.rate {
            // At most 20 ms of data at a time, so that a slow stream is smooth.
            most = u64::from(rate / 50).max(1);
            if let Some((at, bytes)) = self.last_write {
                due = due.max(at + Duration::from_secs_f64(bytes as f64 / f64::from(rate)));
            }
        }
        if self.to_client {
            most = most.min(self.born.cut_after.map_or(u64::MAX, |cut| cut - self.sent));
            match now.flip_byte_at.and_then(|offset| offset.checked_sub(self.sent)) {
                Some(0) => return (chunk.iter().take(1).map(|byte| !byte).collect(), due),
                Some(before) => most = most.min(before),
                None => {}
            }
        }
        (chunk.slice(..chunk.len().min(usize::try_from(most).unwrap_or(usize::MAX))), due)
    }

    fn take_in(&mut self, chunk: Bytes) {
        self.held_bytes += chunk.len();
        if !chunk.is_empty() {
            self.held.push_back((Instant::now(), chunk));
        }
    }

    fn take_out(&mut self, written: usize) {
        self.last_write = Some((Instant::now(), written));
        self.sent += written as u64;
        self.held_bytes -= written;
        if let Some((_, chunk)) = self.held.front_mut() {
            chunk.advance(written);
            if chunk.is_empty() {
                self.held.pop_front();
            }
        }
    }
}

async fn read(
    from: &mut ReadHalf<'_>,
    chunk: &mut BytesMut,
    black_hole: bool,
    from_server: bool,
) -> io::Result<usize> {
    match (black_hole, from_server) {
        (false, _) => {
            // Allocate only when there is data to read.
            from.readable().await?;
            chunk.reserve(CHUNK);
            from.read_buf(chunk).await
        }
        // A black hole does not forward the server's close either.
        (true, true) => pending().await,
        // A client that has disconnected is released despite unread bytes. Otherwise it would count as open
        // forever.
        (true, false) => {
            while !from.ready(Interest::READABLE).await?.is_read_closed() {
                sleep(REST).await;
            }
            Err(io::ErrorKind::ConnectionAborted.into())
        }
    }
}

async fn write(to: &mut WriteHalf<'_>, bytes: &[u8], due: Instant) -> io::Result<usize> {
    if due > Instant::now() {
        sleep_until(due).await;
    }
    to.write(bytes).await
}
