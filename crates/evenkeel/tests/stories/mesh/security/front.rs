//! A door before a backend that takes both TLS and connections in the clear on one port, and notes who came how.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::ServerConfig;
use testkit::net::Backend;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use super::super::until;

/// How somebody came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FrontConnection {
    /// In the clear.
    Plain,
    /// By TLS: the server name that was sent, and the certificate that was shown.
    Tls { sni: Option<String>, client: Option<Vec<u8>> },
    /// By TLS, and was not let in or went away.
    NotIn,
}

/// The door. It closes when dropped, with everything that goes through it.
pub(super) struct Front {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Visit>>>,
    task: AbortHandle,
}

struct Visit {
    came: FrontConnection,
    is_open: bool,
}

impl Front {
    pub(super) async fn start(backend: &Backend, tls: ServerConfig) -> Front {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let seen = Arc::<Mutex<Vec<Visit>>>::default();
        let door =
            Door { backend: backend.address(), tls: TlsAcceptor::from(Arc::new(tls)), seen: seen.clone() };
        let task = tokio::spawn(async move {
            let mut visits = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                visits.spawn(door.clone().visit(socket));
            }
        });
        Front { address, seen, task: task.abort_handle() }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Everybody who came, in order.
    pub(super) fn seen(&self) -> Vec<FrontConnection> {
        self.look(|_| true)
    }

    /// Those who are there.
    pub(super) fn inside(&self) -> Vec<FrontConnection> {
        self.look(|visit| visit.is_open)
    }

    fn look(&self, filter: impl Fn(&Visit) -> bool) -> Vec<FrontConnection> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().filter(|visit| filter(visit)).map(|visit| visit.came.clone()).collect()
    }

    /// Waits until exactly one is there, who came as described, and answers how.
    pub(super) async fn one_inside(
        &self,
        what: &str,
        is_so: impl Fn(&FrontConnection) -> bool,
    ) -> FrontConnection {
        let is_so = &is_so;
        until(what, || async move { matches!(&self.inside()[..], [only] if is_so(only)) }).await;
        self.inside().remove(0)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone)]
struct Door {
    backend: SocketAddr,
    tls: TlsAcceptor,
    seen: Arc<Mutex<Vec<Visit>>>,
}

impl Door {
    async fn visit(self, socket: TcpStream) {
        let mut first = [0];
        // The first byte of a TLS handshake is 22; HTTP/2 begins with a `P`.
        if !matches!(socket.peek(&mut first).await, Ok(1)) {
            return;
        }
        if first != [22] {
            return self.pass(FrontConnection::Plain, socket).await;
        }
        match self.tls.clone().accept(socket).await {
            Ok(stream) => {
                let connection = stream.get_ref().1;
                let sni = connection.server_name().map(str::to_owned);
                let client = connection.peer_certificates().map(|chain| chain[0].to_vec());
                self.pass(FrontConnection::Tls { sni, client }, stream).await;
            }
            Err(_) => drop(self.note(FrontConnection::NotIn, false)),
        }
    }

    async fn pass(self, came: FrontConnection, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        let visit = self.note(came, true);
        if let Ok(mut backend) = TcpStream::connect(self.backend).await {
            let _ = copy_bidirectional(&mut stream, &mut backend).await;
        }
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)[visit].is_open = false;
    }

    fn note(&self, came: FrontConnection, is_open: bool) -> usize {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push(Visit { came, is_open });
        seen.len() - 1
    }
}
