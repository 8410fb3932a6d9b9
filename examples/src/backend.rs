//! Server of the examples. It has its own runtime, so that it can die like a process: at once, with all its
//! connections.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

use crate::shop::orders_server::{Orders, OrdersServer};
use crate::shop::{GetRequest, Order};

/// Server of `shop.Orders` whose orders have its name. It is killed when dropped.
#[derive(Debug)]
pub struct Backend {
    shop: Shop,
    address: SocketAddr,
    /// Sending or dropping it starts a graceful shutdown.
    drain: Option<oneshot::Sender<()>>,
    served: JoinHandle<()>,
    runtime: Option<Runtime>,
}

/// TLS settings of a server, as PEM texts.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Certificate chain of the server.
    pub certificate: String,
    /// Private key of the certificate.
    pub key: String,
    /// CA of the client certificates.
    pub clients: String,
}

/// Implementation of the service.
#[derive(Clone, Debug)]
struct Shop {
    name: String,
    behaviour: Arc<Behaviour>,
}

#[derive(Debug, Default)]
struct Behaviour {
    fails: AtomicBool,
    takes_ms: AtomicU64,
    calls: AtomicU64,
    /// Certificate of the last client.
    caller: Mutex<Option<Vec<u8>>>,
}

#[tonic::async_trait]
impl Orders for Shop {
    async fn get(&self, request: Request<GetRequest>) -> Result<Response<Order>, Status> {
        self.behaviour.calls.fetch_add(1, Ordering::Relaxed);
        let certificate = request.peer_certs().and_then(|chain| Some(chain.first()?.to_vec()));
        *self.behaviour.caller.lock().unwrap_or_else(PoisonError::into_inner) = certificate;
        tokio::time::sleep(Duration::from_millis(self.behaviour.takes_ms.load(Ordering::Relaxed))).await;
        if self.behaviour.fails.load(Ordering::Relaxed) {
            return Err(Status::unavailable(format!("{} has no database", self.name)));
        }
        Ok(Response::new(Order { id: request.into_inner().id, backend: self.name.clone() }))
    }
}

impl Backend {
    /// Starts a server on a free port.
    pub async fn start(name: &str) -> io::Result<Backend> {
        Backend::start_at(name, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), None).await
    }

    /// Starts a server at an address, such as that of a killed one.
    pub async fn start_at(name: &str, address: SocketAddr, tls: Option<Tls>) -> io::Result<Backend> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        // The listener is registered again with the server's own runtime.
        let listener = listener.into_std()?;
        let shop = Shop { name: name.to_owned(), behaviour: Arc::default() };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (drain, drained) = oneshot::channel();
        let served = runtime.spawn(serve(shop.clone(), listener, tls, drained));
        Ok(Backend { shop, address, drain: Some(drain), served, runtime: Some(runtime) })
    }

    /// Returns the name, which every response has.
    pub fn name(&self) -> &str {
        &self.shop.name
    }

    /// Returns the listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of received calls.
    pub fn calls(&self) -> u64 {
        self.shop.behaviour.calls.load(Ordering::Relaxed)
    }

    /// Returns the certificate of the last client.
    pub fn caller(&self) -> Option<Vec<u8>> {
        self.shop.behaviour.caller.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes all calls fail, or none.
    pub fn set_failing(&self, fails: bool) {
        self.shop.behaviour.fails.store(fails, Ordering::Relaxed);
    }

    /// Delays every response by this time.
    pub fn set_slow(&self, takes: Duration) {
        self.shop.behaviour.takes_ms.store(takes.as_millis() as u64, Ordering::Relaxed);
    }

    /// Shuts down gracefully: sends GOAWAY, accepts no further calls and waits for active ones.
    pub async fn drain(mut self) {
        drop(self.drain.take());
        // An error means that the task has ended too.
        let _ = (&mut self.served).await;
    }

    /// Stops at once like a crash, and closes all connections.
    pub async fn kill(mut self) {
        if let Some(runtime) = self.runtime.take() {
            let ended =
                tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(10)));
            let _ = ended.await;
        }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn serve(
    shop: Shop,
    listener: std::net::TcpListener,
    tls: Option<Tls>,
    drained: oneshot::Receiver<()>,
) {
    let name = shop.name.clone();
    if let Err(error) = try_serve(shop, listener, tls, drained).await {
        eprintln!("server {name}: {error}");
    }
}

async fn try_serve(
    shop: Shop,
    listener: std::net::TcpListener,
    tls: Option<Tls>,
    drained: oneshot::Receiver<()>,
) -> Result<(), Box<dyn std::error::Error>> {
    let incoming = TcpListenerStream::new(TcpListener::from_std(listener)?);
    let mut server = Server::builder();
    if let Some(tls) = tls {
        let settings = ServerTlsConfig::new()
            .identity(Identity::from_pem(tls.certificate, tls.key))
            .client_ca_root(Certificate::from_pem(tls.clients));
        server = server.tls_config(settings)?;
    }
    let end = async {
        let _ = drained.await;
    };
    server.add_service(OrdersServer::new(shop)).serve_with_incoming_shutdown(incoming, end).await?;
    Ok(())
}
