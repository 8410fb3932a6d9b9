//! A server of the stage. It has threads of its own, so that it can die as a process does: at once, with all its connections.

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

use crate::shop::{Orders, OrdersServer};

/// A server of `shop.Orders` that answers with its name. It dies when this is dropped.
#[derive(Debug)]
pub struct Backend {
    shop: Shop,
    address: SocketAddr,
    /// Sent or dropped: the server finishes what it has and ends.
    drain: Option<oneshot::Sender<()>>,
    served: JoinHandle<()>,
    runtime: Option<Runtime>,
}

/// TLS of a server, as PEM texts: what it shows, and who may call.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The certificate that it shows.
    pub certificate: String,
    /// The key of that.
    pub key: String,
    /// Who must have signed the certificates of clients.
    pub clients: String,
}

/// What it does with a call.
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
    /// The last client's certificate.
    caller: Mutex<Option<Vec<u8>>>,
}

#[tonic::async_trait]
impl Orders for Shop {
    async fn get(&self, order: Request<String>) -> Result<Response<String>, Status> {
        self.behaviour.calls.fetch_add(1, Ordering::Relaxed);
        let certificate = order.peer_certs().and_then(|chain| Some(chain.first()?.to_vec()));
        *self.behaviour.caller.lock().unwrap_or_else(PoisonError::into_inner) = certificate;
        tokio::time::sleep(Duration::from_millis(self.behaviour.takes_ms.load(Ordering::Relaxed))).await;
        if self.behaviour.fails.load(Ordering::Relaxed) {
            return Err(Status::unavailable(format!("{} has no database", self.name)));
        }
        Ok(Response::new(self.name.clone()))
    }
}

impl Backend {
    /// Starts a server on a free port.
    pub async fn start(name: &str) -> io::Result<Backend> {
        Backend::start_at(name, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), None).await
    }

    /// Starts a server at an address, such as that of one that was killed.
    pub async fn start_at(name: &str, address: SocketAddr, tls: Option<Tls>) -> io::Result<Backend> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        // Its own runtime takes it over.
        let listener = listener.into_std()?;
        let shop = Shop { name: name.to_owned(), behaviour: Arc::default() };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (drain, drained) = oneshot::channel();
        let served = runtime.spawn(serve(shop.clone(), listener, tls, drained));
        Ok(Backend { shop, address, drain: Some(drain), served, runtime: Some(runtime) })
    }

    /// What it is called, and answers.
    pub fn name(&self) -> &str {
        &self.shop.name
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many calls reached it.
    pub fn calls(&self) -> u64 {
        self.shop.behaviour.calls.load(Ordering::Relaxed)
    }

    /// The certificate of its last caller.
    pub fn caller(&self) -> Option<Vec<u8>> {
        self.shop.behaviour.caller.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has it fail all calls, or none.
    pub fn set_failing(&self, fails: bool) {
        self.shop.behaviour.fails.store(fails, Ordering::Relaxed);
    }

    /// Has it take its time for every call.
    pub fn set_slow(&self, takes: Duration) {
        self.shop.behaviour.takes_ms.store(takes.as_millis() as u64, Ordering::Relaxed);
    }

    /// Ends it as an orderly process does: no further calls, those under way finish. Clients are told by HTTP/2 (GOAWAY).
    pub async fn drain(mut self) {
        drop(self.drain.take());
        // It ends in any case.
        let _ = (&mut self.served).await;
    }

    /// Ends it as a crash does: at once, whatever is under way.
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
