//! Host of a server: an address, and a thread with its own runtime.
//!
//! The port stays reserved while the host exists. Connections to a stopped host are refused, and a start
//! binds the same port again. A kill drops the runtime with all its tasks and resets the connections.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tower_service::Service;

use crate::lock;

/// TLS settings of a server, in PEM.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Certificate chain, leaf first.
    pub certificate: String,
    /// Private key of the certificate.
    pub key: String,
    /// CA that client certificates must be issued by.
    pub client_ca: Option<String>,
}

/// Service that a host can serve.
pub(super) trait Served:
    Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static
{
}

impl<S> Served for S where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// Two services on one port. Calls of other services are UNIMPLEMENTED.
#[derive(Clone)]
pub(super) struct Both<A, B>(pub(super) A, pub(super) B);

impl<A, B> Service<http::Request<Body>> for Both<A, B>
where
    A: Served + NamedService,
    B: Served + NamedService,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Generated services are always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = request.uri().path().split('/').nth(1).unwrap_or_default();
        if service == A::NAME {
            Box::pin(self.0.call(request))
        } else if service == B::NAME {
            Box::pin(self.1.call(request))
        } else {
            let status = Status::unimplemented(format!("no service {service:?} here"));
            Box::pin(async move { Ok(status.into_http()) })
        }
    }
}

pub(super) struct Host {
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    connections: Arc<Connections>,
    running: Mutex<Option<Running>>,
    /// Bound and never listening, which reserves the port.
    _reservation: TcpSocket,
}

impl Host {
    /// Reserves the address. Port 0 selects a free one. `changed` is notified when connections open and
    /// close.
    pub(super) fn reserve(at: SocketAddr, tls: Option<&Tls>, changed: Arc<Notify>) -> io::Result<Host> {
        let reservation = bind(at)?;
        Ok(Host {
            address: reservation.local_addr()?,
            tls: tls.map(acceptor).transpose()?,
            connections: Arc::new(Connections {
                accepted: AtomicUsize::new(0),
                open: AtomicUsize::new(0),
                changed,
            }),
            running: Mutex::new(None),
            _reservation: reservation,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of connections accepted so far.
    pub(super) fn accepted(&self) -> usize {
        self.connections.accepted.load(Ordering::SeqCst)
    }

    pub(super) fn open(&self) -> usize {
        self.connections.open.load(Ordering::SeqCst)
    }

    /// Starts serving, unless it already does. Returns once clients can connect.
    pub(super) async fn start(&self, server: Server, service: impl Served) -> io::Result<()> {
        if self.phase().is_some() {
            return Ok(());
        }
        let (phase, phases) = watch::channel(Phase::Serving);
        let (ready, is_ready) = oneshot::channel();
        let place = ServerThread {
            address: self.address,
            tls: self.tls.clone(),
            connections: Arc::clone(&self.connections),
            phases,
        };
        let thread = thread::Builder::new()
            .name(format!("server {}", self.address))
            .spawn(move || place.run(server, service, ready))?;
        let running = Running { phase: Arc::new(phase), thread };
        *lock(&self.running) = Some(running);
        is_ready.await.map_err(|_| io::Error::other("the server's thread died"))?
    }

    /// Stops at once: active calls are lost, and connections are reset. Returns once all sockets are closed.
    pub(super) fn kill(&self) {
        if let Some(phase) = self.phase() {
            phase.send_replace(Phase::Killed);
            self.join(&phase);
        }
    }

    /// Shuts down gracefully: stops accepting, sends GOAWAY and finishes active calls. Returns when the last
    /// connection has closed, or on a kill.
    pub(super) async fn drain(&self) {
        if let Some(phase) = self.phase() {
            phase.send_if_modified(|phase| {
                let was = std::mem::replace(phase, (*phase).max(Phase::Draining));
                was != *phase
            });
            phase.closed().await;
            self.join(&phase);
        }
    }

    fn phase(&self) -> Option<Arc<watch::Sender<Phase>>> {
        let running = lock(&self.running);
        running.as_ref().map(|running| Arc::clone(&running.phase))
    }

    /// Joins the thread of this phase. A concurrent caller may have joined it, and even started the next one.
    fn join(&self, phase: &Arc<watch::Sender<Phase>>) {
        let mut running = lock(&self.running);
        if let Some(running) = running.take_if(|running| Arc::ptr_eq(&running.phase, phase)) {
            // A panic of the thread has been printed already.
            let _ = running.thread.join();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.kill();
    }
}

struct Running {
    /// Closed when the runtime has been dropped.
    phase: Arc<watch::Sender<Phase>>,
    thread: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    Draining,
    Killed,
}

/// State of the server thread.
struct ServerThread {
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    connections: Arc<Connections>,
    phases: watch::Receiver<Phase>,
}

impl ServerThread {
    fn run(self, server: Server, service: impl Served, ready: oneshot::Sender<io::Result<()>>) {
        let mut killed = self.phases.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a thread can have a runtime");
        runtime.block_on(async {
            tokio::select! {
                () = self.serve(server, service, ready) => {}
                () = until(&mut killed, Phase::Killed) => {}
            }
        });
        // Drops the connection tasks while `killed` still keeps the phase open.
        drop(runtime);
    }

    async fn serve(self, server: Server, service: impl Served, ready: oneshot::Sender<io::Result<()>>) {
        let listener = match bind(self.address).and_then(|socket| socket.listen(1024)) {
            Ok(listener) => listener,
            Err(error) => {
                let _ = ready.send(Err(error));
                return;
            }
        };
        let _ = ready.send(Ok(()));
        let mut draining = self.phases.clone();
        let (sockets, incoming) = mpsc::unbounded_channel();
        tokio::spawn(self.accept(listener, sockets));
        let incoming = UnboundedReceiverStream::new(incoming);
        let drain = until(&mut draining, Phase::Draining);
        if let Err(error) = server.serve_with_incoming_shutdown(service, incoming, drain).await {
            panic!("the server ended: {error}");
        }
    }

    async fn accept(self, listener: TcpListener, sockets: mpsc::UnboundedSender<io::Result<Socket>>) {
        let mut phases = self.phases.clone();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = until(&mut phases, Phase::Draining) => return,
            };
            // For example, the client disconnected before it was accepted.
            let Ok((stream, peer)) = accepted else { continue };
            let open = Open::new(&self.connections);
            let phases = self.phases.clone();
            let (tls, sockets) = (self.tls.clone(), sockets.clone());
            // Separate task: a hanging handshake must not block other connections.
            tokio::spawn(async move {
                let _ = stream.set_nodelay(true);
                let io = match tls {
                    None => Io::Plain(stream),
                    Some(tls) => match tls.accept(stream).await {
                        Ok(stream) => Io::Tls(Box::new(stream)),
                        Err(_) => return,
                    },
                };
                let _ = sockets.send(Ok(Socket { io, peer, phases, _open: open }));
            });
        }
    }
}

async fn until(phases: &mut watch::Receiver<Phase>, phase: Phase) {
    // Cannot fail: the sender lives until the thread is joined.
    let _ = phases.wait_for(|now| *now >= phase).await;
}

fn bind(at: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if at.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // SO_REUSEADDR lets two sockets bind the port while at most one listens.
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    Ok(socket)
}

fn acceptor(tls: &Tls) -> io::Result<TlsAcceptor> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let builder = match &tls.client_ca {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = rustls::RootCertStore::empty();
            for certificate in certificates(authority)? {
                roots.add(certificate).map_err(io::Error::other)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(io::Error::other)?)
        }
    };
    let key = PrivateKeyDer::from_pem_slice(tls.key.as_bytes()).map_err(io::Error::other)?;
    let mut config =
        builder.with_single_cert(certificates(&tls.certificate)?, key).map_err(io::Error::other)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(pem: &str) -> io::Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(io::Error::other)
}

struct Connections {
    accepted: AtomicUsize,
    open: AtomicUsize,
    changed: Arc<Notify>,
}

/// Counts a connection as open until dropped.
struct Open(Arc<Connections>);

impl Open {
    fn new(connections: &Arc<Connections>) -> Open {
        connections.accepted.fetch_add(1, Ordering::SeqCst);
        connections.open.fetch_add(1, Ordering::SeqCst);
        connections.changed.notify_waiters();
        Open(Arc::clone(connections))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.notify_waiters();
    }
}

/// Connection as tonic serves it. The client's address is in the request extensions.
struct Socket {
    io: Io,
    peer: SocketAddr,
    phases: watch::Receiver<Phase>,
    _open: Open,
}

enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Drop for Socket {
    fn drop(&mut self) {
        if *self.phases.borrow() == Phase::Killed {
            let stream = match &self.io {
                Io::Plain(stream) => stream,
                Io::Tls(stream) => stream.get_ref().0,
            };
            let _ = stream.set_zero_linger();
        }
    }
}

impl Connected for Socket {
    type ConnectInfo = SocketAddr;

    fn connect_info(&self) -> SocketAddr {
        self.peer
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Io::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Io::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Io::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Io::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
