//! A closure that stands for thousands of servers.
//!
//! One listener, one task per connection, and no library below: an endpoint costs its socket and a few hundred bytes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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

/// What [`serve`] does with a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// One message and status OK. It must fit in the window that every stream begins with, 65,535 bytes.
    Ok(Bytes),
    /// No message, and this status.
    Status(u32),
    /// RST_STREAM with REFUSED_STREAM: not processed, safe to try again.
    Refuse,
    /// RST_STREAM with this code.
    Reset(u32),
    /// Nothing, for ever.
    Silent,
    /// GOAWAY, then the answer. Later requests on streams above `last_stream` are passed over and not counted.
    GoAwayThen {
        /// The last stream that the client may think processed.
        last_stream: u32,
        /// The reason.
        code: u32,
        /// What this request gets.
        answer: Box<Answer>,
    },
    /// The connection ends, with all that is open on it.
    HangUp,
}

/// A request, as the closure of [`serve`] sees it.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The address that the client called: which of the endpoints this is.
    pub local: IpAddr,
    /// Which connection of all, from 0 in the order of their acceptance.
    pub connection: u64,
    /// Which request of its connection, from 0.
    pub index: u64,
    /// Its stream.
    pub stream: u32,
    /// Its message.
    pub message: &'a [u8],
}

/// The servers behind one listener. All tasks end when it is dropped, and with them the connections.
pub struct Served {
    port: u16,
    tally: Arc<Tally>,
    accepting: JoinHandle<()>,
}

/// Serves on a free port of all of this machine's addresses (so that 127.x.y.z can stand for any endpoint), to
/// clients on this machine only. `handler` answers each request at once; it runs where the connection does. To be
/// called where a tokio runtime runs.
pub fn serve(handler: impl Fn(&Call<'_>) -> Answer + Send + Sync + 'static) -> Served {
    let socket = TcpSocket::new_v4().expect("a test has descriptors to spare");
    socket.bind((Ipv4Addr::UNSPECIFIED, 0).into()).expect("there is a free port");
    // Thousands may come at once; one that does not fit in the queue waits a second to try again.
    let listener = socket.listen(4096).expect("a bound socket listens");
    let port = listener.local_addr().expect("a listener has an address").port();
    let tally = Arc::<Tally>::default();
    let accepting = tokio::spawn(accept(listener, Arc::clone(&tally), Arc::new(handler)));
    Served { port, tally, accepting }
}

impl Served {
    /// The port, the same on every address.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The endpoint of this number: 127.0.0.1 is the first (0), and the last octets run on from there.
    pub fn address(&self, endpoint: u32) -> SocketAddr {
        let ip = Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + endpoint);
        assert!(ip.is_loopback() && !ip.is_broadcast(), "127.0.0.0/8 has no endpoint {endpoint}");
        (ip, self.port).into()
    }

    /// How many requests each address took. One that took none is not listed.
    pub fn calls_by_address(&self) -> BTreeMap<IpAddr, u64> {
        self.tally.list(|counts| counts.calls.load(Ordering::SeqCst))
    }

    /// How many connections each address accepted. One that accepted none is not listed.
    pub fn connections_by_address(&self) -> BTreeMap<IpAddr, u64> {
        self.tally.list(|counts| counts.connections.load(Ordering::SeqCst))
    }

    /// Number of connections accepted so far, on all addresses together.
    pub fn accepted_connections(&self) -> u64 {
        self.tally.accepted.load(Ordering::SeqCst)
    }

    /// How many connections are open, on all addresses together.
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
/// No byte leaves the runtime of the test. So a paused clock advances only when every task waits for a timer, and durations
/// are exact. Any address is an endpoint. Each connection ends with its client.
pub struct MemoryServers {
    tally: Arc<Tally>,
    handler: Arc<Handler>,
}

/// Bytes that a direction of a connection in memory holds before its writer waits.
const MEMORY_BUFFER: usize = 64 << 10;

impl MemoryServers {
    /// Returns servers that answer each request by `handler`.
    pub fn new(handler: impl Fn(&Call<'_>) -> Answer + Send + Sync + 'static) -> Self {
        Self { tally: Arc::default(), handler: Arc::new(handler) }
    }

    /// Opens a connection to the endpoint at `address`, and returns the client's side. Panics outside a tokio runtime.
    pub fn connect(&self, address: IpAddr) -> DuplexStream {
        let (client, server) = duplex(MEMORY_BUFFER);
        let serving = Serving::new(address, Arc::clone(&self.tally), Arc::clone(&self.handler));
        tokio::spawn(serving.run(server));
        client
    }

    /// Number of requests by address. An address without requests is not listed.
    pub fn calls_by_address(&self) -> BTreeMap<IpAddr, u64> {
        self.tally.list(|counts| counts.calls.load(Ordering::SeqCst))
    }

    /// Number of connections by address, closed ones included. An address without connections is not listed.
    pub fn connections_by_address(&self) -> BTreeMap<IpAddr, u64> {
        self.tally.list(|counts| counts.connections.load(Ordering::SeqCst))
    }

    /// Number of open connections to all addresses together.
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
        let mut all = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(address).or_default())
    }

    fn list(&self, count: impl Fn(&Counts) -> u64) -> BTreeMap<IpAddr, u64> {
        let all = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
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
                // Bound to every address, and meant for this machine.
                if let (Ok(local), Ok(()), true) =
                    (io.local_addr(), io.set_nodelay(true), client.ip().is_loopback())
                {
                    let serving = Serving::new(local.ip(), Arc::clone(&tally), Arc::clone(&handler));
                    connections.spawn(serving.run(io));
                }
            }
            // Out of descriptors, most likely. The loop must outlive it.
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
    /// What the last GOAWAY said.
    last_stream: u32,
    /// Messages that wait for the connection's window, in order.
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

    /// Serves until the client closes or the handler hangs up. Whatever goes wrong on the way ends the connection.
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

    /// Answers what has come; `false` for hanging up.
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

    /// Sends the messages that fit in the connection's window.
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
