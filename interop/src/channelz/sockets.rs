//! A connector that knows which of its connections are open.

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

use super::{Ids, lock};

/// Opens the connections of one channel and lists them while they are open. Cheap to clone; clones are the same.
#[derive(Clone)]
pub struct Sockets {
    ids: Ids,
    open: Arc<Mutex<BTreeMap<i64, Arc<Socket>>>>,
}

/// A connection.
pub(super) struct Socket {
    pub(super) id: i64,
    /// What was asked for, as endpoints name it.
    pub(super) address: String,
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
}

impl Sockets {
    pub(super) fn new(ids: Ids) -> Sockets {
        Sockets { ids, open: Arc::default() }
    }

    /// Those that are open, by id.
    pub(super) fn open(&self) -> Vec<Arc<Socket>> {
        lock(&self.open).values().cloned().collect()
    }

    fn listed(&self, address: &Address, io: Box<dyn Io>, ends: [Option<SocketAddr>; 2]) -> Listed {
        let (id, [local, remote]) = (self.ids.next(), ends);
        let socket = Socket { id, address: address.to_string(), local, remote };
        lock(&self.open).insert(id, Arc::new(socket));
        Listed { io, id, list: self.clone() }
    }

    async fn dial(&self, address: Address) -> io::Result<Box<dyn Io>> {
        Ok(Box::new(match &address {
            Address::Ip(to) => {
                let stream = TcpStream::connect(to).await?;
                // HTTP/2 gathers its frames itself.
                stream.set_nodelay(true)?;
                let ends = [stream.local_addr().ok(), stream.peer_addr().ok()];
                self.listed(&address, Box::new(stream), ends)
            }
            #[cfg(unix)]
            Address::Unix(path) => {
                let stream = UnixStream::connect(&**path).await?;
                self.listed(&address, Box::new(stream), [None, None])
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

/// A connection that is on the list until it is dropped.
struct Listed {
    io: Box<dyn Io>,
    id: i64,
    list: Sockets,
}

impl Drop for Listed {
    fn drop(&mut self) {
        lock(&self.list.open).remove(&self.id);
    }
}

impl AsyncRead for Listed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Listed {
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
