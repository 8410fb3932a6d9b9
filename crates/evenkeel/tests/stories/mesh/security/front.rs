//! Proxy before a backend that accepts TLS and plaintext on one port, and records each connection.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use rustls::ServerConfig;
use testkit::lock;
use testkit::net::Backend;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use super::super::until;

/// Kind of an accepted connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FrontConnection {
    /// Plaintext, without a handshake.
    Plain,
    /// TLS, with the SNI and the client certificate.
    Tls { sni: Option<String>, client: Option<Vec<u8>> },
    /// TLS with a failed handshake.
    NotIn,
}

/// Running proxy. Dropping it closes all connections.
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

    /// Returns all connections so far, in order.
    pub(super) fn seen(&self) -> Vec<FrontConnection> {
        self.look(|_| true)
    }

    /// Returns the open connections.
    pub(super) fn inside(&self) -> Vec<FrontConnection> {
        self.look(|visit| visit.is_open)
    }

    fn look(&self, filter: impl Fn(&Visit) -> bool) -> Vec<FrontConnection> {
        let seen = lock(&self.seen);
        seen.iter().filter(|visit| filter(visit)).map(|visit| visit.came.clone()).collect()
    }

    /// Waits until exactly one connection is open and satisfies the condition, and returns it.
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
        // The first byte of a TLS handshake record is 22. HTTP/2 starts with `P`.
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
        lock(&self.seen)[visit].is_open = false;
    }

    fn note(&self, came: FrontConnection, is_open: bool) -> usize {
        let mut seen = lock(&self.seen);
        seen.push(Visit { came, is_open });
        seen.len() - 1
    }
}
