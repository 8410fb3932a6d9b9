//! The process of backends: every one answers on a port of its own and counts its calls.
//!
//! It says on stdout where they are. For every line on stdin it prints how many calls each has had; it ends with stdin.
//! Every answer carries the same load report, so that weighted_round_robin has a weight from each call.
//!
//! Backends must cost less than the fastest client, or it is they who are measured. So they speak just as much HTTP/2 as
//! clients of the comparison need: a call is what its message says, and its headers are not read.

mod connection;
mod headers;

use std::io::BufRead as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::available_parallelism;

use tokio::net::TcpListener;

use crate::Error;
use crate::calls::backends::connection::serve;

/// Leaves the client a processor of its own where there are two.
pub(crate) fn run(backends: usize) -> Result<(), Error> {
    let workers = available_parallelism().map_or(1, NonZeroUsize::get).saturating_sub(1).max(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    let mut counts: Vec<Arc<AtomicU64>> = Vec::new();
    let mut bound = Vec::new();
    for _ in 0..backends {
        let listener = runtime.block_on(TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))))?;
        bound.push(listener.local_addr()?.to_string());
        let calls = Arc::new(AtomicU64::new(0));
        counts.push(calls.clone());
        runtime.spawn(accept(listener, calls));
    }
    println!("{}", bound.join(" "));
    for line in std::io::stdin().lock().lines() {
        line?;
        let counts: Vec<String> =
            counts.iter().map(|calls| calls.load(Ordering::Relaxed).to_string()).collect();
        println!("{}", counts.join(" "));
    }
    // What clients still wait for is of no interest.
    runtime.shutdown_background();
    Ok(())
}

async fn accept(listener: TcpListener, calls: Arc<AtomicU64>) {
    while let Ok((socket, _)) = listener.accept().await {
        let calls = calls.clone();
        tokio::spawn(async move {
            // A client that leaves is no fault; one that fails says so itself.
            let _ = serve(socket, &calls).await;
        });
    }
}
