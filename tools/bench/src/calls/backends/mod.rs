//! Backend process: each backend serves on its own port and counts its calls.
//!
//! It prints the addresses on stdout. For every line on stdin it prints the number of calls of each backend.
//! It ends when stdin closes. Every response carries a load report, so that weighted_round_robin gets a weight from
//! each call.
//!
//! [`ServerKind::Tonic`] shows the cost of a call with ordinary servers. They cost more than the fastest clients, so
//! those wait for them. [`ServerKind::Batching`] costs less than any client: it implements only the part of HTTP/2
//! that the clients need. The message defines the call, request headers are not decoded, and all responses to one
//! read are one write, which saves the clients most of their reads.

mod connection;
mod headers;
mod tonic;

use std::fmt;
use std::io::BufRead as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::available_parallelism;

use tokio::net::TcpListener;

use crate::Error;

/// Implementation of the backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum ServerKind {
    /// Servers of tonic.
    Tonic,
    /// Servers that answer all requests of a read with one write.
    Batching,
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServerKind::Tonic => "tonic",
            ServerKind::Batching => "batching",
        })
    }
}

/// Runs the backends. It leaves one processor to the client if there are two.
pub(crate) fn run(backends: usize, servers: ServerKind) -> Result<(), Error> {
    let workers = available_parallelism().map_or(1, NonZeroUsize::get).saturating_sub(1).max(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    let mut counts: Vec<Arc<AtomicU64>> = Vec::new();
    let mut bound = Vec::new();
    for _ in 0..backends {
        let listener = runtime.block_on(TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))))?;
        bound.push(listener.local_addr()?.to_string());
        let calls = Arc::new(AtomicU64::new(0));
        counts.push(calls.clone());
        match servers {
            ServerKind::Batching => drop(runtime.spawn(accept(listener, calls))),
            ServerKind::Tonic => drop(runtime.spawn(async {
                if let Err(error) = tonic::serve(listener, calls).await {
                    eprintln!("a tonic server ended: {error}");
                }
            })),
        }
    }
    println!("{}", bound.join(" "));
    for line in std::io::stdin().lock().lines() {
        line?;
        let counts: Vec<String> =
            counts.iter().map(|calls| calls.load(Ordering::Relaxed).to_string()).collect();
        println!("{}", counts.join(" "));
    }
    // Pending calls of clients do not matter.
    runtime.shutdown_background();
    Ok(())
}

async fn accept(listener: TcpListener, calls: Arc<AtomicU64>) {
    while let Ok((socket, _)) = listener.accept().await {
        let calls = calls.clone();
        tokio::spawn(async move {
            // A client that disconnects is not an error. A failing one reports the error itself.
            let _ = connection::serve(socket, &calls).await;
        });
    }
}
