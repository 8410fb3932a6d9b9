//! Open connections of a channel or a server.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use evenkeel::{Address, Connector, Io};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::{Ids, lock};

/// List of the connections that one channel opens or one server accepts. Clones share it.
#[derive(Clone)]
pub struct Sockets {
    ids: Ids,
    open: Arc<Mutex<BTreeMap<i64, Arc<Socket>>>>,
}

/// Connection, or listening socket.
pub(super) struct Socket {
    pub(super) id: i64,
    /// For a channel, the dialled address as endpoints name it. For a server, the client's address.
    pub(super) name: String,
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
}

impl Sockets {
    pub(super) fn new(ids: Ids) -> Sockets {
        Sockets { ids, open: Arc::default() }
    }

    /// Returns the open connections, by id.
    pub(super) fn open(&self) -> Vec<Arc<Socket>> {
        lock(&self.open).values().cloned().collect()
    }

    /// Registers an accepted connection. IPv4-mapped addresses of a dual-stack socket become IPv4, since
    /// drivers look up the client's end by its address.
    pub fn taken(&self, stream: TcpStream) -> Connection {
        let plain = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        let ends = [stream.local_addr(), stream.peer_addr()].map(|end| end.ok().map(plain));
        let name = ends[1].map_or_else(String::new, |remote| remote.to_string());
        self.listed(name, Box::new(stream), ends)
    }

    fn listed(&self, name: String, io: Box<dyn Io>, ends: [Option<SocketAddr>; 2]) -> Connection {
        let (id, [local, remote]) = (self.ids.next(), ends);
        let socket = Arc::new(Socket { id, name, local, remote });
        lock(&self.open).insert(id, socket.clone());
        Connection { io, socket, list: self.clone() }
    }

    async fn dial(&self, address: Address) -> io::Result<Box<dyn Io>> {
        Ok(Box::new(match &address {
            Address::Ip(to) => {
                let stream = TcpStream::connect(to).await?;
                // HTTP/2 batches its frames itself.
                stream.set_nodelay(true)?;
                let ends = [stream.local_addr().ok(), stream.peer_addr().ok()];
                self.listed(address.to_string(), Box::new(stream), ends)
            }
            #[cfg(unix)]
            Address::Unix(path) => {
                let stream = UnixStream::connect(&**path).await?;
                self.listed(address.to_string(), Box::new(stream), [None, None])
            }
            other => {
                let problem = format!("expected an IP address or a unix socket, found {other}");
                return Err(io::Error::new(io::ErrorKind::Unsupported, problem));
            }
        }))
    }
}

impl Connector for Sockets {
    fn connect(
        &self,
        address: &Address,
    ) -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send + '_>> {
        Box::pin(self.dial(address.clone()))
    }
}

/// Connection that is listed until dropped.
pub struct Connection {
    io: Box<dyn Io>,
    socket: Arc<Socket>,
    list: Sockets,
}

impl Drop for Connection {
    fn drop(&mut self) {
        lock(&self.list.open).remove(&self.socket.id);
    }
}

/// Exposes the client's address to services, as a plain stream does.
impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        TcpConnectInfo { local_addr: self.socket.local, remote_addr: self.socket.remote }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
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

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
