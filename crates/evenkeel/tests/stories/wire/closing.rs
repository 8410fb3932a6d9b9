//! Connections to peers that do not read, which must not leak sockets or tasks, and to peers that end each
//! connection at once.
//!
//! The peers are at the ends of short pipes and time is virtual: a sleep ends when every task waits.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel::{Address, Channel, Connector, Io};
use testkit::net::frames::kind;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, duplex};
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::unary;

/// Capacity of a pipe in bytes: the client's first frames fit, a request does not.
const PIPE: usize = 256;

/// Longer than the maximum time to close a connection.
const CLOSED_BY_THEN: Duration = Duration::from_secs(6);

/// Peers that send SETTINGS and never read.
#[derive(Clone, Default)]
struct StuckPeers {
    peers: Arc<Mutex<Vec<DuplexStream>>>,
    /// Number of the channel's pipe ends that are not dropped.
    open: Arc<AtomicUsize>,
}

impl StuckPeers {
    fn connections(&self) -> usize {
        self.peers.lock().unwrap().len()
    }

    fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Sends GOAWAY on the newest connection. The peer's end stays open.
    async fn go_away(&self, last_stream: u32) {
        let mut peer = self.peers.lock().unwrap().pop().expect("a connection");
        let payload = [last_stream.to_be_bytes(), [0; 4]].concat();
        let frame = [&[0, 0, 8, kind::GOAWAY, 0, 0, 0, 0, 0][..], &payload].concat();
        peer.write_all(&frame).await.unwrap();
        self.peers.lock().unwrap().push(peer);
    }
}

impl Connector for StuckPeers {
    fn connect(&self, _: &Address) -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send + '_>> {
        Box::pin(async {
            let (ours, mut theirs) = duplex(PIPE);
            theirs.write_all(&[0, 0, 0, kind::SETTINGS, 0, 0, 0, 0, 0]).await?;
            self.peers.lock().unwrap().push(theirs);
            self.open.fetch_add(1, Ordering::SeqCst);
            Ok(Box::new(CountedPipe { pipe: ours, open: self.open.clone() }) as Box<dyn Io>)
        })
    }
}

/// Channel's end of a pipe, which counts as open until dropped.
struct CountedPipe {
    pipe: DuplexStream,
    open: Arc<AtomicUsize>,
}

impl Drop for CountedPipe {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl AsyncRead for CountedPipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_read(cx, buffer)
    }
}

impl AsyncWrite for CountedPipe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.pipe).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(cx)
    }
}

fn to_stuck_peers() -> (Channel, StuckPeers) {
    let peers = StuckPeers::default();
    let channel = crate::builder("ipv4:10.0.0.1:80").connector(peers.clone()).build().unwrap();
    (channel, peers)
}

/// Lets all pending work run that needs no further time.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

/// A peer stops reading and sends GOAWAY below the active call, 40 times. The numbers of sockets and tasks
/// return to their initial values.
#[tokio::test(start_paused = true)]
async fn goaway_by_a_peer_that_does_not_read_leaks_nothing() {
    let tasks = Handle::current().metrics().num_alive_tasks();
    let (channel, peers) = to_stuck_peers();
    let mut refused = 0;
    for connection in 1..=40 {
        let call = unary(&channel, &[0; 4 * PIPE]);
        while peers.connections() < connection {
            settle().await;
        }
        settle().await;
        assert!(!call.is_finished(), "the peer reads nothing");
        peers.go_away(0).await;
        settle().await;
        call.abort();
        refused += usize::from(call.await.is_ok());
    }
    assert_eq!(refused, 0, "a call refused once waits for the next connection");
    sleep(CLOSED_BY_THEN).await;
    let open = peers.open();
    assert!(open <= 1, "{open} of 40 connections are open, and one of them at most takes calls");
    channel.close().await;
    sleep(CLOSED_BY_THEN).await;
    assert_eq!((peers.open(), Handle::current().metrics().num_alive_tasks()), (0, tasks));
}

/// A channel is dropped while its peer does not read.
#[tokio::test(start_paused = true)]
async fn dropping_a_channel_whose_peer_does_not_read_leaks_nothing() {
    let tasks = Handle::current().metrics().num_alive_tasks();
    for _ in 0..10 {
        let (channel, peers) = to_stuck_peers();
        let call = unary(&channel, &[0; 4 * PIPE]);
        settle().await;
        call.abort();
        settle().await;
        assert_eq!(peers.open(), 1, "a connection outlives its calls");
        drop(channel);
        sleep(CLOSED_BY_THEN).await;
        assert_eq!((peers.open(), Handle::current().metrics().num_alive_tasks()), (0, tasks));
    }
}

/// A call that the peer still processes after GOAWAY keeps the connection open.
#[tokio::test(start_paused = true)]
async fn a_call_keeps_its_connection_after_goaway() {
    let tasks = Handle::current().metrics().num_alive_tasks();
    let (channel, peers) = to_stuck_peers();
    let mut client = testkit::net::echo::echo_client::EchoClient::new(channel.clone());
    let call = tokio::spawn(async move { client.unary(super::message(&[0; 4 * PIPE])).await.map(drop) });
    settle().await;
    peers.go_away(1).await;
    drop(channel);
    sleep(Duration::from_secs(3600)).await;
    assert_eq!((call.is_finished(), peers.open()), (false, 1));
    call.abort();
    sleep(CLOSED_BY_THEN).await;
    assert_eq!((peers.open(), Handle::current().metrics().num_alive_tasks()), (0, tasks));
}

/// Peers that end each connection at once, by GOAWAY or by closing it, without a response.
#[derive(Clone)]
struct FleetingPeers {
    connections: Arc<AtomicUsize>,
    sends_goaway: bool,
}

impl Connector for FleetingPeers {
    fn connect(&self, _: &Address) -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send + '_>> {
        Box::pin(async {
            // A limit: without pacing, virtual time would never advance, since there is always work.
            if self.connections.fetch_add(1, Ordering::SeqCst) >= 500 {
                return std::future::pending().await;
            }
            let (ours, mut theirs) = duplex(1 << 16);
            theirs.write_all(&[0, 0, 0, kind::SETTINGS, 0, 0, 0, 0, 0]).await?;
            if self.sends_goaway {
                let goaway = [&[0, 0, 8, kind::GOAWAY, 0, 0, 0, 0, 0][..], &[0; 8]].concat();
                tokio::spawn(async move {
                    settle().await;
                    let _ = theirs.write_all(&goaway).await;
                    settle().await;
                });
            } else {
                tokio::spawn(async move {
                    settle().await;
                    drop(theirs);
                });
            }
            Ok(Box::new(ours) as Box<dyn Io>)
        })
    }
}

/// A peer that ends every connection at once is dialled twice, then at most once per second, with or without
/// queued calls. A call that is refused twice fails; one without a connection is queued.
#[tokio::test(start_paused = true)]
async fn connections_that_end_at_once_are_paced() {
    for sends_goaway in [true, false] {
        let peers = FleetingPeers { connections: Arc::default(), sends_goaway };
        let count = peers.connections.clone();
        let channel = crate::builder("ipv4:10.0.0.1:80")
            .service_config(super::ROUND_ROBIN)
            .connector(peers)
            .build()
            .unwrap();
        channel.connect();
        sleep(Duration::from_secs(10)).await;
        let without_calls = count.load(Ordering::SeqCst);
        assert!((9..=12).contains(&without_calls), "{without_calls} connections in 10 s");
        let calls: Vec<_> = (0..10).map(|_| unary(&channel, b"x")).collect();
        sleep(Duration::from_secs(10)).await;
        let with_calls = count.load(Ordering::SeqCst) - without_calls;
        assert!((8..=11).contains(&with_calls), "{with_calls} connections in 10 s with calls");
        for call in calls {
            assert_eq!(call.await.unwrap().unwrap_err().code(), tonic::Code::Unavailable);
        }
    }
}
