//! Relay between a client and its control plane that counts bytes.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::Error;

/// Relay that lives as long as its runtime.
pub(super) struct Relay {
    address: SocketAddr,
    bytes: Arc<Bytes>,
}

#[derive(Default)]
struct Bytes {
    to_client: AtomicU64,
    to_server: AtomicU64,
}

impl Relay {
    pub(super) async fn start(to: SocketAddr) -> Result<Relay, Error> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (address, bytes) = (listener.local_addr()?, Arc::<Bytes>::default());
        tokio::spawn(accept(listener, to, bytes.clone()));
        Ok(Relay { address, bytes })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of bytes that the client has received and sent so far.
    pub(super) fn bytes(&self) -> [u64; 2] {
        [&self.bytes.to_client, &self.bytes.to_server].map(|bytes| bytes.load(Ordering::Relaxed))
    }
}

async fn accept(listener: TcpListener, to: SocketAddr, bytes: Arc<Bytes>) {
    while let Ok((client, _)) = listener.accept().await {
        // The client sees the closed connection.
        let Ok(server) = TcpStream::connect(to).await else { continue };
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let both = [bytes.clone(), bytes.clone()];
        let [up, down] = both;
        tokio::spawn(async move { copy(from_client, to_server, &up.to_server).await });
        tokio::spawn(async move { copy(from_server, to_client, &down.to_client).await });
    }
}

/// Copies until either end closes.
async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, count: &AtomicU64) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        count.fetch_add(n as u64, Ordering::Relaxed);
        if to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_are_counted_both_ways() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let relay = Relay::start(server.local_addr().expect("bound")).await.expect("a relay");
        let mut client = TcpStream::connect(relay.address()).await.expect("connects");
        let (mut accepted, _) = server.accept().await.expect("accepts");
        client.write_all(b"ask").await.expect("writes");
        accepted.read_exact(&mut [0; 3]).await.expect("reads");
        accepted.write_all(b"answer").await.expect("writes");
        client.read_exact(&mut [0; 6]).await.expect("reads");
        assert_eq!(relay.bytes(), [6, 3]);
    }
}
