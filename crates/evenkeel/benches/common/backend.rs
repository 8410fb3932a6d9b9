//! Backends that answer every unary call with the same 16 bytes, as cheaply as h2 can. They run in a process of their
//! own, so that nothing of them is counted.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::server::SendResponse;
use http::header::{CONTENT_TYPE, DATE};
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::net::{TcpListener, TcpStream};

use crate::Error;
use crate::process::until_stdin_ends;
use crate::wire::MESSAGE;

/// Binds one backend for each address, says on stdout where they are, and serves until stdin ends.
pub(crate) async fn serve(addresses: Vec<SocketAddr>) -> Result<(), Error> {
    let mut bound = Vec::new();
    for address in addresses {
        let listener = TcpListener::bind(address).await?;
        bound.push(listener.local_addr()?.to_string());
        tokio::spawn(accept(listener));
    }
    println!("{}", bound.join(" "));
    until_stdin_ends().await
}

async fn accept(listener: TcpListener) {
    while let Ok((socket, _)) = listener.accept().await {
        tokio::spawn(async move {
            // A client that leaves is no fault; one that fails says so itself.
            let _ = connection(socket).await;
        });
    }
}

async fn connection(socket: TcpStream) -> Result<(), Error> {
    socket.set_nodelay(true)?;
    let mut connection = h2::server::handshake(socket).await?;
    while let Some(call) = connection.accept().await {
        let (request, respond) = call?;
        tokio::spawn(answer(request, respond));
    }
    Ok(())
}

/// The headers are those of a tonic server.
async fn answer(mut request: Request<h2::RecvStream>, mut respond: SendResponse<Bytes>) -> Result<(), Error> {
    let body = request.body_mut();
    while let Some(data) = body.data().await {
        let bytes = data?.len();
        body.flow_control().release_capacity(bytes)?;
    }
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response.headers_mut().insert(DATE, HeaderValue::from_static("Thu, 01 Jan 2026 00:00:00 GMT"));
    let mut stream = respond.send_response(response, false)?;
    stream.send_data(Bytes::from_static(MESSAGE), false)?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    stream.send_trailers(trailers)?;
    Ok(())
}
