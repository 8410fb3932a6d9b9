//! Closure that serves as thousands of servers.
//!
//! It uses one listener, one task per connection and no HTTP/2 library: an endpoint costs its socket and a
//! few hundred bytes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use super::{
    Frame, RESPONSE, Session, WINDOW, block, code, flag, kind, put, put_block, put_go_away, put_headers,
    put_message, put_settings, put_trailers,
};
use crate::lock;

/// Response of [`serve`] to a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// One message and status OK. It must fit the initial stream window of 65,535 bytes.
    Ok(Bytes),
    /// Trailers with this status and no message.
    Status(u32),
    /// RST_STREAM with REFUSED_STREAM: not processed, safe to retry.
    Refuse,
    /// RST_STREAM with this code.
    Reset(u32),
    /// No response, while the stream stays open.
    Silent,
    /// GOAWAY, then the response. Later requests on streams above `last_stream` are ignored and not counted.
    GoAwayThen {
        /// Last stream id of the GOAWAY.
        last_stream: u32,
        /// Error code of the GOAWAY.
        code: u32,
        /// Response to this request.
        answer: Box<Answer>,
    },
    /// The connection closes with all its streams.
    HangUp,
}

/// Request, as the closure of [`serve`] sees it.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Local address, which identifies the endpoint.
    pub local: IpAddr,
    /// Number of the connection, from 0 in order of acceptance.
    pub connection: u64,
    /// Number of the request on its connection, from 0.
    pub index: u64,
    /// Stream id of the request.
    pub stream: u32,
    /// Message of the request, without its prefix.
    pub message: &'a [u8],
}

/// Servers behind one listener. Dropping it ends all tasks and connections.
pub struct Served {
    port: u16,
    tally: Arc<Tally>,
    accepting: JoinHandle<()>,
}

/// Serves on a free port of all local addresses, so that any 127.x.y.z is an endpoint, to clients on loopback
/// only. `handler` responds synchronously on the connection's task. It must be called inside a tokio runtime.
pub fn serve(handler: impl Fn(&Call<'_>) -> Answer + Send + Sync + 'static) -> Served {
    let socket = TcpSocket::new_v4().expect("a test has descriptors to spare");
    socket.bind((Ipv4Addr::UNSPECIFIED, 0).into()).expect("there is a free port");
    // Thousands may connect at once. A SYN that overflows the backlog is retransmitted only after a second.
    let listener = socket.listen(4096).expect("a bound socket listens");
    let port = listener.local_addr().expect("a listener has an address").port();
    let tally = Arc::<Tally>::default();
    let accepting = tokio::spawn(accept(listener, Arc::clone(&tally), Arc::new(handler)));
    Served { port, tally, accepting }
}

impl Served {
    /// Returns the port, which all addresses share.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the address of an endpoint: number 0 is 127.0.0.1, and further ones follow in order.
    pub fn address(&self, endpoint: u32) -> SocketAddr {
        let ip = Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + endpoint);
        assert!(ip.is_loopback() && !ip.is_broadcast(), "127.0.0.0/8 has no endpoint {endpoint}");
        (ip, self.port).into()
    }

    /// Returns the number of requests by address. Addresses without requests are not listed.
    pub fn calls_by_address(&self) -> BTreeMap<IpAddr, u64> {
        self.tally.list(|counts| counts.calls.load(Ordering::SeqCst))
    }

    /// Returns the number of accepted connections by address. Addresses without connections are not listed.
    pub fn connections_by_address(&self) -> BTreeMap<IpAddr, u64> {
        self.tally.list(|counts| counts.connections.load(Ordering::SeqCst))
    }

    /// Returns the number of accepted connections of all addresses.
    pub fn accepted_connections(&self) -> u64 {
        self.tally.accepted.load(Ordering::SeqCst)
    }

    /// Returns the number of open connections of all addresses.
    pub fn open_connections(&self) -> usize {
        self.tally.open.load(Ordering::SeqCst)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Servers that are reached through [`connect`](MemoryServers::connect) instead of a socket.
///
/// All I/O stays in the test's runtime. A paused clock therefore advances only when every task waits for a
/// timer, and durations are exact. Any address is an endpoint. A connection ends when its client drops it.
pub struct MemoryServers {
    tally: Arc<Tally>,
    handler: Arc<Handler>,
}

/// Buffer size of each direction of an in-memory connection.
const MEMORY_BUFFER: usize = 64 << 10;

impl MemoryServers {
    /// Returns servers that respond to each request by `handler`.
    pub fn new(handler: impl Fn(&Call<'_>) -> Answer + Send + Sync + 'static) -> Self {
        Self { tally: Arc::default(), handler: Arc::new(handler) }
    }

    /// Opens a connection to the endpoint at `address` and returns the client's side. Panics outside a tokio
    /// runtime.
    pub fn connect(&self, address: IpAddr) -> DuplexStream {
        let (client, server) = duplex(MEMORY_BUFFER);
        let serving = Serving::new(address, Arc::clone(&self.tally), Arc::clone(&self.handler));
        tokio::spawn(serving.run(server));
        client
    }

    /// Returns the number of requests by address. Addresses without requests are not listed.
    pub fn calls_by_address(&self) -> BTreeMap<IpAddr, u64> {
        self.tally.list(|counts| counts.calls.load(Ordering::SeqCst))
    }

    /// Returns the number of connections by address, including closed ones. Addresses without connections are
    /// not listed.
    pub fn connections_by_address(&self) -> BTreeMap<IpAddr, u64> {
        self.tally.list(|counts| counts.connections.load(Ordering::SeqCst))
    }

    /// Returns the number of open connections of all addresses.
    pub fn open_connections(&self) -> usize {
        self.tally.open.load(Ordering::SeqCst)
    }
}

#[derive(Default)]
struct Tally {
    by_address: Mutex<HashMap<IpAddr, Arc<Counts>>>,
    accepted: AtomicU64,
    open: AtomicUsize,
}

#[derive(Default)]
struct Counts {
    connections: AtomicU64,
    calls: AtomicU64,
}

impl Tally {
    fn of(&self, address: IpAddr) -> Arc<Counts> {
        let mut all = lock(&self.by_address);
        Arc::clone(all.entry(address).or_default())
    }

    fn list(&self, count: impl Fn(&Counts) -> u64) -> BTreeMap<IpAddr, u64> {
        let all = lock(&self.by_address);
        let counted = all.iter().map(|(address, counts)| (*address, count(counts)));
        counted.filter(|(_, count)| *count > 0).collect()
    }
}

type Handler = dyn Fn(&Call<'_>) -> Answer + Send + Sync;

async fn accept(listener: TcpListener, tally: Arc<Tally>, handler: Arc<Handler>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((io, client)) => {
                // The listener is bound to all addresses, but serves only loopback clients.
                if let (Ok(local), Ok(()), true) =
                    (io.local_addr(), io.set_nodelay(true), client.ip().is_loopback())
                {
                    let serving = Serving::new(local.ip(), Arc::clone(&tally), Arc::clone(&handler));
                    connections.spawn(serving.run(io));
                }
            }
            // Most likely no descriptors are left. The loop must survive it.
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

/// One connection of [`serve`].
struct Serving {
    local: IpAddr,
    tally: Arc<Tally>,
    counts: Arc<Counts>,
    handler: Arc<Handler>,
    session: Session,
    connection: u64,
    calls: u64,
    /// Last stream id of the latest GOAWAY.
    last_stream: u32,
    /// Messages that wait for the connection window, in order.
    waiting: VecDeque<(u32, Bytes)>,
}

impl Serving {
    fn new(local: IpAddr, tally: Arc<Tally>, handler: Arc<Handler>) -> Self {
        let counts = tally.of(local);
        counts.connections.fetch_add(1, Ordering::SeqCst);
        tally.open.fetch_add(1, Ordering::SeqCst);
        let connection = tally.accepted.fetch_add(1, Ordering::SeqCst);
        let session = Session { credit: u64::from(WINDOW), ..Session::default() };
        let (calls, last_stream, waiting) = (0, u32::MAX, VecDeque::new());
        Self { local, tally, counts, handler, session, connection, calls, last_stream, waiting }
    }

    /// Serves until the client closes or the handler hangs up. Any error ends the connection.
    async fn run(mut self, mut io: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
        self.session.read_preface(&mut io).await?;
        put_settings(&mut self.session.outbox, &[]);
        loop {
            let goes_on = self.answer_all();
            self.session.flush(&mut io).await?;
            if !goes_on || !self.session.read(&mut io).await? {
                return Ok(());
            }
        }
    }

    /// Responds to all complete requests. Returns false to hang up.
    fn answer_all(&mut self) -> bool {
        while let Some(frame) = Frame::decode(&mut self.session.inbox) {
            self.session.absorb(&frame);
        }
        while let Some(request) = self.session.requests.pop_front() {
            if request.stream > self.last_stream {
                continue;
            }
            self.counts.calls.fetch_add(1, Ordering::SeqCst);
            let (local, connection, index, stream) =
                (self.local, self.connection, self.calls, request.stream);
            self.calls += 1;
            let call = Call { local, connection, index, stream, message: request.message() };
            let answer = (self.handler)(&call);
            if !self.answer(request.stream, answer) {
                return false;
            }
        }
        self.release();
        true
    }

    fn answer(&mut self, stream: u32, answer: Answer) -> bool {
        let out = &mut self.session.outbox;
        match answer {
            Answer::Ok(message) => {
                assert!(
                    message.len() + 5 <= WINDOW as usize,
                    "an answer must fit in a stream's first window"
                );
                self.waiting.push_back((stream, message));
            }
            Answer::Status(status) => {
                let fields = [RESPONSE[0], RESPONSE[1], ("grpc-status", &status.to_string())];
                put_block(out, stream, flag::END_STREAM, &block(&fields));
            }
            Answer::Refuse => {
                put(out, kind::RST_STREAM, 0, stream, &code::REFUSED_STREAM.to_be_bytes());
            }
            Answer::Reset(code) => put(out, kind::RST_STREAM, 0, stream, &code.to_be_bytes()),
            Answer::Silent => {}
            Answer::GoAwayThen { last_stream, code, answer } => {
                put_go_away(out, last_stream, code, &[]);
                self.last_stream = last_stream;
                return self.answer(stream, *answer);
            }
            Answer::HangUp => return false,
        }
        true
    }

    /// Sends the messages that fit the connection window.
    fn release(&mut self) {
        while let Some((stream, message)) = self.waiting.front() {
            let size = message.len() as u64 + 5;
            if size > self.session.credit {
                return;
            }
            self.session.credit -= size;
            put_headers(&mut self.session.outbox, *stream, &[]);
            put_message(&mut self.session.outbox, *stream, message);
            put_trailers(&mut self.session.outbox, *stream, 0, &[]);
            self.waiting.pop_front();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.tally.open.fetch_sub(1, Ordering::SeqCst);
    }
}
