//! gRPC server of a control plane on a port of its own.
//!
//! It owns the sockets: connection limit, TLS handshakes, keepalive and the deadline of the HTTP/2 preface. Resources and streams
//! belong to the [`SnapshotCache`].

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Sleep, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::ClientLimits;
use crate::snapshot_cache::{FaultModes, SnapshotCache};
#[cfg(feature = "tls")]
use crate::tls::{ServerTls, TlsHandshakes};

/// Interval and timeout of HTTP/2 keepalive. A connection without a live peer is closed after both.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));

/// Maximum time from the start of a connection to the end of the HTTP/2 preface. Keepalive begins after the preface.
/// Without this timeout, a connection that sends nothing would be held for ever.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum time of a TLS handshake. It counts before the timeout of the preface.
#[cfg(feature = "tls")]
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// Length of the HTTP/2 preface (RFC 9113, 3.4).
const PREFACE_BYTES: usize = 24;

/// Pause after a failure to accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Control plane that serves until it is dropped. Then it closes its port and all connections.
///
/// It dereferences to a [`SnapshotCache`] and has all its methods.
///
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use evenkeel_control::{Cluster, ControlPlane, Endpoint, Mesh, Service};
///
/// let control = ControlPlane::builder().serve().await?;
/// let orders = Cluster::new().endpoint(Endpoint::at("127.0.0.1:50051".parse()?));
/// control.set_mesh(&Mesh::new().service("orders", Service::to("orders")).cluster("orders", orders));
/// let bootstrap = control.bootstrap("my-node"); // for `xds:///orders`
/// # assert!(bootstrap.contains(&control.address().to_string()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ControlPlane {
    cache: SnapshotCache,
    /// Credentials of clients, as in `channel_creds` of a bootstrap.
    channel_creds: Value,
    address: SocketAddr,
    /// `server_uri` of bootstraps, if it is not the address.
    advertised: Option<String>,
    /// Dropped with the control plane. All connections wait for that.
    _alive: watch::Sender<()>,
}

/// Configuration of a [`ControlPlane`] before it serves.
pub struct ControlPlaneBuilder {
    address: SocketAddr,
    advertised: Option<String>,
    cache: SnapshotCache,
    #[cfg(feature = "tls")]
    tls: Option<ServerTls>,
}

impl ControlPlaneBuilder {
    /// Sets the address to listen on; any free port of 127.0.0.1 unless set.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> ControlPlaneBuilder {
        self.address = address;
        self
    }

    /// Sets the `server_uri` of bootstraps, such as `mesh.example:18000`; the listen address unless set.
    ///
    /// Set it if clients reach the control plane under another address: through a Kubernetes Service, a port mapping or
    /// NAT. It is not checked: clients resolve it.
    #[must_use]
    pub fn advertise(mut self, server_uri: &str) -> ControlPlaneBuilder {
        self.advertised = Some(server_uri.to_owned());
        self
    }

    /// Sets the interval at which clients report load; 10 s unless set.
    #[must_use]
    pub fn lrs_interval(self, interval: Duration) -> ControlPlaneBuilder {
        self.cache.set_lrs_interval(interval);
        self
    }

    /// Sets the fault modes, for tests of clients.
    #[must_use]
    pub fn fault_modes(self, fault_modes: FaultModes) -> ControlPlaneBuilder {
        self.cache.set_fault_modes(fault_modes);
        self
    }

    /// Sets the limits on clients. Unless set, the limits of the cache apply.
    #[must_use]
    pub fn client_limits(self, limits: ClientLimits) -> ControlPlaneBuilder {
        self.cache.set_client_limits(limits);
        self
    }

    /// Serves TLS only; plaintext unless set. The files are read again while it serves: a new version applies to
    /// connections from then on.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    #[must_use]
    pub fn tls(mut self, tls: ServerTls) -> ControlPlaneBuilder {
        self.tls = Some(tls);
        self
    }

    /// Sets the cache to serve; an empty one unless set. The cache outlives the server.
    #[must_use]
    pub fn cache(mut self, cache: SnapshotCache) -> ControlPlaneBuilder {
        self.cache = cache;
        self
    }

    /// Binds the address and serves on the current tokio runtime. Returns an error if the address cannot be bound.
    pub async fn serve(self) -> io::Result<ControlPlane> {
        let listener = TcpListener::bind(self.address).await?;
        let address = listener.local_addr()?;
        let (alive, shutdown) = watch::channel(());
        let (sockets, incoming) = mpsc::channel(16);
        let limits = self.cache.client_limits();
        #[cfg(feature = "tls")]
        let (channel_creds, security) = match self.tls {
            Some(tls) => (tls.channel_creds(), PortSecurity::Tls(tls.serve(shutdown.clone()))),
            None => (insecure_creds(), PortSecurity::Plaintext),
        };
        #[cfg(not(feature = "tls"))]
        let (channel_creds, security) = (insecure_creds(), PortSecurity::Plaintext);
        tokio::spawn(accept(listener, security, limits.connections, shutdown, sockets));
        let service = self.cache.service();
        let server = Server::builder()
            .max_concurrent_streams(limits.streams_per_connection)
            .http2_keepalive_interval(Some(KEEPALIVE.0))
            .http2_keepalive_timeout(Some(KEEPALIVE.1))
            .serve_with_incoming(service, ReceiverStream::new(incoming));
        tokio::spawn(async move {
            if let Err(error) = server.await {
                tracing::error!(%address, %error, "control plane server stopped");
            }
        });
        Ok(ControlPlane {
            cache: self.cache,
            channel_creds,
            address,
            advertised: self.advertised,
            _alive: alive,
        })
    }
}

impl ControlPlane {
    /// Returns a builder with the defaults: a free loopback port and an empty cache.
    pub fn builder() -> ControlPlaneBuilder {
        ControlPlaneBuilder {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            advertised: None,
            cache: SnapshotCache::new(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Returns the address that the control plane listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the cache. A clone of it outlives the control plane.
    pub fn cache(&self) -> &SnapshotCache {
        &self.cache
    }

    /// Returns a bootstrap for clients of this control plane, in the format of `GRPC_XDS_BOOTSTRAP_CONFIG`.
    ///
    /// Its `server_uri` is the text of [`ControlPlaneBuilder::advertise`], else the listen address. If the control plane
    /// listens on all addresses, it is the loopback address.
    pub fn bootstrap(&self, node_id: &str) -> String {
        let server_uri = self.advertised.clone().unwrap_or_else(|| local_address(self.address).to_string());
        let bootstrap = json!({
            "xds_servers": [{
                "server_uri": server_uri,
                "channel_creds": [self.channel_creds],
                "server_features": ["xds_v3"],
            }],
            // grpc-js rejects a node without a locality.
            "node": { "id": node_id, "locality": {} },
        });
        format!("{bootstrap:#}")
    }
}

impl Deref for ControlPlane {
    type Target = SnapshotCache;

    fn deref(&self) -> &SnapshotCache {
        &self.cache
    }
}

/// Credentials of clients without TLS.
fn insecure_creds() -> Value {
    json!({ "type": "insecure" })
}

/// Returns an address under which this machine reaches a listener.
fn local_address(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

/// Accepts connections until the control plane is dropped. A failed accept affects one client only.
async fn accept(
    listener: TcpListener,
    security: PortSecurity,
    maximum: usize,
    mut shutdown: watch::Receiver<()>,
    sockets: mpsc::Sender<io::Result<ControlPlaneSocket>>,
) {
    // More permits would panic.
    let slots = Arc::new(Semaphore::new(maximum.min(Semaphore::MAX_PERMITS)));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = shutdown.changed() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                // Closed at once: a client that waited in the backlog would time out without a reason.
                let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
                    tracing::warn!(maximum, "connection limit reached, connection closed");
                    continue;
                };
                // A failure only costs latency.
                let _ = stream.set_nodelay(true);
                // A task of its own: a slow handshake must not delay other clients.
                let connection = security.clone().connect(stream, slot, shutdown.clone(), sockets.clone());
                tokio::spawn(connection);
            }
            Err(error) => {
                tracing::warn!(%error, "control plane server failed to accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Security of the port.
#[derive(Clone)]
enum PortSecurity {
    Plaintext,
    #[cfg(feature = "tls")]
    Tls(TlsHandshakes),
}

impl PortSecurity {
    /// Performs the handshake of a connection, and passes it to the server. The slot counts it from the start.
    async fn connect(
        self,
        stream: TcpStream,
        slot: OwnedSemaphorePermit,
        shutdown: watch::Receiver<()>,
        sockets: mpsc::Sender<io::Result<ControlPlaneSocket>>,
    ) {
        let info = stream.connect_info();
        let stream: Box<dyn SocketStream> = match self {
            PortSecurity::Plaintext => Box::new(stream),
            #[cfg(feature = "tls")]
            PortSecurity::Tls(handshakes) => {
                let mut shutdown = shutdown.clone();
                let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshakes.accept(stream));
                let accepted = tokio::select! {
                    accepted = handshake => accepted,
                    _ = shutdown.changed() => return,
                };
                let peer = info.remote_addr();
                match accepted {
                    Ok(Ok(stream)) => Box::new(stream),
                    Ok(Err(error)) => {
                        tracing::debug!(?peer, %error, "TLS handshake failed");
                        return;
                    }
                    Err(_) => {
                        tracing::debug!(?peer, "TLS handshake timed out");
                        return;
                    }
                }
            }
        };
        let mut shutdown = shutdown;
        let ended = Box::pin(async move {
            let _ = shutdown.changed().await;
        });
        let preface = Some((Box::pin(sleep(PREFACE_TIMEOUT)), PREFACE_BYTES));
        // Fails only if the control plane has ended.
        let _ = sockets.send(Ok(ControlPlaneSocket { stream, info, ended, preface, _slot: slot })).await;
    }
}

/// Byte stream of a connection: TCP, or TLS over it.
trait SocketStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> SocketStream for S {}

/// Connection that closes with the control plane, whatever its client does.
struct ControlPlaneSocket {
    stream: Box<dyn SocketStream>,
    info: TcpConnectInfo,
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Deadline of the HTTP/2 preface, and the number of its bytes that are missing. `None` once it is complete.
    preface: Option<(Pin<Box<Sleep>>, usize)>,
    _slot: OwnedSemaphorePermit,
}

impl Connected for ControlPlaneSocket {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.info.clone()
    }
}

impl AsyncRead for ControlPlaneSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ended.as_mut().poll(cx).is_ready() {
            // A completed future must not be polled again.
            self.ended = Box::pin(std::future::ready(()));
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let this = &mut *self;
        let Some((deadline, missing)) = &mut this.preface else {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        };
        if deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buf.filled().len();
        std::task::ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        *missing = missing.saturating_sub(buf.filled().len().saturating_sub(before));
        if *missing == 0 {
            this.preface = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ControlPlaneSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
