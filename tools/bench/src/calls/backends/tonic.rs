//! Backend that is an ordinary tonic server: hyper's HTTP/2, tonic's codec, and a load report with every response.
//!
//! It writes the response of each call when its handler returns, and costs more than most clients.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use evenkeel_orca::LoadLayer;
use http_body::Body as HttpBody;
use tokio::net::TcpListener;
use tokio_stream::Iter;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, ServerStreamingService, UnaryService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::Error;
use crate::client::echo::{EchoRequest, EchoResponse, STREAM};

/// Serves until the process ends, and counts the calls.
pub(super) async fn serve(listener: TcpListener, calls: Arc<AtomicU64>) -> Result<(), Error> {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let server = Server::builder().layer(LoadLayer::new()).add_service(EchoServer { calls });
    Ok(server.serve_with_incoming(incoming).await?)
}

#[derive(Clone)]
struct EchoServer {
    calls: Arc<AtomicU64>,
}

type BoxFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl NamedService for EchoServer {
    const NAME: &'static str = "bench.Echo";
}

impl<B> Service<http::Request<B>> for EchoServer
where
    B: HttpBody + Send + 'static,
    B::Error: Into<Error> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::<EchoResponse, EchoRequest>::default());
            Ok(if request.uri().path() == STREAM {
                grpc.server_streaming(EchoMethod, request).await
            } else {
                grpc.unary(EchoMethod, request).await
            })
        })
    }
}

struct EchoMethod;

impl UnaryService<EchoRequest> for EchoMethod {
    type Response = EchoResponse;
    type Future = BoxFuture<Response<EchoResponse>, Status>;

    fn call(&mut self, request: Request<EchoRequest>) -> Self::Future {
        Box::pin(async move { Ok(Response::new(EchoResponse { payload: request.into_inner().payload })) })
    }
}

impl ServerStreamingService<EchoRequest> for EchoMethod {
    type Response = EchoResponse;
    type ResponseStream = Iter<std::vec::IntoIter<Result<EchoResponse, Status>>>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<EchoRequest>) -> Self::Future {
        Box::pin(async move {
            let EchoRequest { payload, messages } = request.into_inner();
            let messages: Vec<_> =
                (0..messages).map(|_| Ok(EchoResponse { payload: payload.clone() })).collect();
            Ok(Response::new(tokio_stream::iter(messages)))
        })
    }
}
