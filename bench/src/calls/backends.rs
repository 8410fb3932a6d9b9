//! The process of backends: every one answers on a port of its own, as cheaply as h2 can, and counts its calls.
//!
//! It says on stdout where they are. For every line on stdin it prints how many calls each has had; it ends with stdin.
//! Every answer carries the same load report, so that weighted_round_robin has a weight from each call.

use std::io::BufRead as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::available_parallelism;

use bytes::{Bytes, BytesMut};
use evenkeel_proto::xds::data::orca::v3::OrcaLoadReport;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::header::{CONTENT_TYPE, DATE};
use http::{HeaderMap, HeaderValue, Request, Response};
use prost::Message as _;
use tokio::net::{TcpListener, TcpStream};
use tonic::metadata::{MetadataMap, MetadataValue};

use crate::Error;
use crate::calls::raw::frame;
use crate::client::echo::{EchoRequest, EchoResponse, STREAM, UNARY};

/// As much as 256 calls with 64 KiB each have under way, so that no client waits for updates of windows.
const CONNECTION_WINDOW: u32 = 64 << 20;
const STREAM_WINDOW: u32 = 1 << 20;

/// Leaves the client a processor of its own where there are two.
pub(crate) fn run(backends: usize) -> Result<(), Error> {
    let workers = available_parallelism().map_or(1, NonZeroUsize::get).saturating_sub(1).max(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    let mut counts: Vec<Arc<AtomicU64>> = Vec::new();
    let mut bound = Vec::new();
    let report = report()?;
    for _ in 0..backends {
        let listener = runtime.block_on(TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))))?;
        bound.push(listener.local_addr()?.to_string());
        let calls = Arc::new(AtomicU64::new(0));
        counts.push(calls.clone());
        runtime.spawn(accept(listener, Backend { calls, report: report.clone() }));
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

/// The trailer's value.
fn report() -> Result<HeaderValue, Error> {
    let report =
        OrcaLoadReport { cpu_utilization: 0.5, rps_fractional: 1_000.0, ..OrcaLoadReport::default() };
    let mut trailers = MetadataMap::new();
    trailers.insert_bin(evenkeel_orca::TRAILER, MetadataValue::from_bytes(&report.encode_to_vec()));
    Ok(trailers.into_headers().remove(evenkeel_orca::TRAILER).ok_or("no value of a trailer")?)
}

#[derive(Clone)]
struct Backend {
    calls: Arc<AtomicU64>,
    report: HeaderValue,
}

async fn accept(listener: TcpListener, backend: Backend) {
    while let Ok((socket, _)) = listener.accept().await {
        let backend = backend.clone();
        tokio::spawn(async move {
            // A client that leaves is no fault; one that fails says so itself.
            let _ = connection(socket, backend).await;
        });
    }
}

async fn connection(socket: TcpStream, backend: Backend) -> Result<(), Error> {
    socket.set_nodelay(true)?;
    let mut connection = h2::server::Builder::new()
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_window_size(STREAM_WINDOW)
        .handshake(socket)
        .await?;
    while let Some(call) = connection.accept().await {
        let (request, respond) = call?;
        tokio::spawn(answer(request, respond, backend.clone()));
    }
    Ok(())
}

/// The headers are those of a tonic server.
async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    backend: Backend,
) -> Result<(), Error> {
    let (head, body) = request.into_parts();
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response.headers_mut().insert(DATE, HeaderValue::from_static("Thu, 01 Jan 2026 00:00:00 GMT"));
    let is_unary = head.uri.path() == UNARY;
    if !is_unary && head.uri.path() != STREAM {
        // UNIMPLEMENTED: a client that asks for load out of band is not to ask again.
        response.headers_mut().insert("grpc-status", HeaderValue::from_static("12"));
        respond.send_response(response, true)?;
        return Ok(());
    }
    backend.calls.fetch_add(1, Ordering::Relaxed);
    let mut stream = respond.send_response(response, false)?;
    let mut trailers = HeaderMap::new();
    let done = if is_unary { echo(body, &mut stream).await } else { repeat(body, &mut stream).await };
    // INVALID_ARGUMENT for what cannot be read.
    let status = HeaderValue::from_static(if done.is_ok() { "0" } else { "3" });
    trailers.insert("grpc-status", status);
    trailers.insert(evenkeel_orca::TRAILER, backend.report);
    stream.send_trailers(trailers)?;
    Ok(())
}

/// An answer is a request without its second field, which a unary call does not have: its bytes go back as they are.
async fn echo(mut body: RecvStream, stream: &mut SendStream<Bytes>) -> Result<(), Error> {
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        stream.send_data(data, false)?;
    }
    Ok(())
}

async fn repeat(mut body: RecvStream, stream: &mut SendStream<Bytes>) -> Result<(), Error> {
    let mut received = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        received.extend_from_slice(&data);
    }
    let message = received.freeze();
    let request = EchoRequest::decode(message.get(5..).ok_or("no message")?)?;
    let answer = frame(&EchoResponse { payload: request.payload });
    for _ in 0..request.messages {
        stream.send_data(answer.clone(), false)?;
    }
    Ok(())
}
