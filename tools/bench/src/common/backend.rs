//! Backends that respond to every unary call with the same 16 bytes, at h2's minimum cost. They run in a
//! process of their own, so that they are not counted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::server::SendResponse;
use http::header::{CONTENT_TYPE, DATE};
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::net::{TcpListener, TcpStream};

use super::process::until_stdin_ends;
use super::wire::{MESSAGE, PATH};
use crate::Error;

/// Binds one backend for each address, prints the addresses on stdout, and serves until stdin closes.
/// Responses carry the load reports in rotation, if there are any.
pub(crate) async fn serve(addresses: Vec<SocketAddr>, reports: Vec<HeaderValue>) -> Result<(), Error> {
    let reports = Arc::new(Reports { all: reports, turn: AtomicUsize::new(0) });
    let mut bound = Vec::new();
    for address in addresses {
        let listener = TcpListener::bind(address).await?;
        bound.push(listener.local_addr()?.to_string());
        tokio::spawn(accept(listener, reports.clone()));
    }
    println!("{}", bound.join(" "));
    until_stdin_ends().await
}

struct Reports {
    all: Vec<HeaderValue>,
    turn: AtomicUsize,
}

impl Reports {
    fn next(&self) -> Option<HeaderValue> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed).checked_rem(self.all.len())?;
        Some(self.all[turn].clone())
    }
}

async fn accept(listener: TcpListener, reports: Arc<Reports>) {
    while let Ok((socket, _)) = listener.accept().await {
        let reports = reports.clone();
        tokio::spawn(async move {
            // A client that disconnects is not an error. A failing one reports the error itself.
            let _ = connection(socket, &reports).await;
        });
    }
}

async fn connection(socket: TcpStream, reports: &Arc<Reports>) -> Result<(), Error> {
    socket.set_nodelay(true)?;
    let mut connection = h2::server::handshake(socket).await?;
    while let Some(call) = connection.accept().await {
        let (request, respond) = call?;
        tokio::spawn(answer(request, respond, reports.clone()));
    }
    Ok(())
}

/// Responds to a request with the headers of a tonic server.
async fn answer(
    mut request: Request<h2::RecvStream>,
    mut respond: SendResponse<Bytes>,
    reports: Arc<Reports>,
) -> Result<(), Error> {
    let body = request.body_mut();
    while let Some(data) = body.data().await {
        let bytes = data?.len();
        body.flow_control().release_capacity(bytes)?;
    }
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response.headers_mut().insert(DATE, HeaderValue::from_static("Thu, 01 Jan 2026 00:00:00 GMT"));
    if request.uri().path() != PATH {
        // UNIMPLEMENTED: a client that requests out-of-band load does not retry.
        response.headers_mut().insert("grpc-status", HeaderValue::from_static("12"));
        respond.send_response(response, true)?;
        return Ok(());
    }
    let mut stream = respond.send_response(response, false)?;
    stream.send_data(Bytes::from_static(MESSAGE), false)?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    if let Some(report) = reports.next() {
        trailers.insert(evenkeel_orca::TRAILER, report);
    }
    stream.send_trailers(trailers)?;
    Ok(())
}
